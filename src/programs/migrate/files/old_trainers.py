"""What old trainers did, as subclasses of a script's trainer; values from the script become default arguments."""

from trl import DPOTrainer, GRPOTrainer, SFTTrainer


class Sampled(GRPOTrainer):
    """Made as by TRL {version}."""

    def _tokenize_prompts(self, prompts, limit="{limit}"):
        if isinstance(prompts[0], str):
            ids = self.processing_class(text=prompts, add_special_tokens="{special}")["input_ids"]
            parts = ids, None, {}
        else:
            parts = super()._tokenize_prompts(prompts)
        return [row[-limit:] for row in parts[0]], *parts[1:]


class DPO(DPOTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, *rest, limit="{limit}", answer="{answer}", longest="{longest}"):
        def cut(row):
            prompt, answers = row["prompt_ids"], {key: row[key] for key in ("chosen_ids", "rejected_ids")}
            tokens = max(map(len, answers.values()))
            if len(prompt) + tokens > longest:
                prompt = "{part}"
            if len(prompt) + tokens > longest:
                answers = {key: ids[:answer] for key, ids in answers.items()}
            return answers | {"prompt_ids": prompt}

        args.max_length, length = None, args.max_length  # drops no long prompt
        rows = super()._prepare_dataset(rows, tokenizer, args, *rest)
        args.max_length = length
        return rows.map(cut)


class SFT(SFTTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        if packing:
            return super()._prepare_dataset(rows, tokenizer, args, packing, formatting_func, *rest)
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
