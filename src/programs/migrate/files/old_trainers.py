"""What trainers of old versions did: a script gets the class that it needs, over its own trainer."""

from trl import DPOTrainer, GRPOTrainer, SFTTrainer


class Sampled(GRPOTrainer):
    """Made as by TRL {version}."""

    def _tokenize_prompts(self, prompts):
        if isinstance(prompts[0], str):
            ids = self.processing_class(text=prompts, add_special_tokens="{special}")["input_ids"]
            parts = ids, None, {}
        else:
            parts = super()._tokenize_prompts(prompts)
        return "{rows}", *parts[1:]


class LongDPO(DPOTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, *rest):
        def cut(row):
            prompt, answers = row["prompt_ids"], {key: row[key] for key in ("chosen_ids", "rejected_ids")}
            longest = max(map(len, answers.values()))
            if len(prompt) + longest > "{length}":
                prompt = "{part}"
            if len(prompt) + longest > "{length}":
                answers = {key: ids[: "{length}" - "{limit}"] for key, ids in answers.items()}
            return answers | {"prompt_ids": prompt}

        args.max_length, length = None, args.max_length  # leaves out no long prompt
        rows = super()._prepare_dataset(rows, tokenizer, args, *rest)
        args.max_length = length
        return rows.map(cut)


class DPO(DPOTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, *rest):
        args.max_length, length = None, args.max_length  # leaves out no long prompt
        rows = super()._prepare_dataset(rows, tokenizer, args, *rest)
        args.max_length = length
        return rows.map(lambda row: "{cuts}")


class SFT(SFTTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        if packing:
            return super()._prepare_dataset(rows, tokenizer, args, packing, formatting_func, *rest)
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
