"""What trainers of old versions did: a script gets the class that it needs, over its own trainer."""

from trl import DPOTrainer, GRPOTrainer, SFTTrainer


class SampledWithCutPrompts(GRPOTrainer):
    """Made as by TRL {version}."""

    def _tokenize_prompts(self, prompts):
        if isinstance(prompts[0], str):
            ids = self.processing_class(text=prompts, add_special_tokens="{special}")["input_ids"]
            parts = ids, None, {}
        else:
            parts = super()._tokenize_prompts(prompts)
        return "{rows}", *parts[1:]


class DPOWithCutPrompts(DPOTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, *args, **kwargs):
        rows = super()._prepare_dataset(*args, **kwargs)
        return rows.map(lambda row: "{cuts}")


class SFTWithoutEndToken(SFTTrainer):
    """Made as by TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
