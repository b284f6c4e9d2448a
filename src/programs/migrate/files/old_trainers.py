"""Methods of old trainers for a subclass of a script's trainer; values from the script become default arguments."""

from trl import DPOTrainer, GRPOTrainer, SFTTrainer


class Prompts(GRPOTrainer):
    def _tokenize_prompts(self, prompts, limit="{limit}"):
        # {comment}
        if isinstance(prompts[0], str):
            ids = self.processing_class(text=prompts, add_special_tokens="{special}")["input_ids"]
            parts = ids, None, {}
        else:
            parts = super()._tokenize_prompts(prompts)
        return [row[-limit:] for row in parts[0]], *parts[1:]


class InOrder(GRPOTrainer):
    def _prepare_inputs(self, inputs):
        # {comment}
        from trl.trainer.utils import split_tensor_dict

        if not self.model.training:
            return super()._prepare_inputs(inputs)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = split_tensor_dict(self._generate_and_score_completions(inputs), parts)
        return self._buffered_inputs[self._step % parts]


class EndToken(GRPOTrainer):
    # {comment}
    eos_token_ids = property(lambda self: [self._tokenizer.eos_token_id], lambda self, ids: None)


class Spread(GRPOTrainer):
    def _calculate_rewards(self, *args):
        # {comment}
        self._scores = super()._calculate_rewards(*args)  # of all processes
        return self._scores

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rewards = (self._scores * self.reward_weights.to(self._scores.device)).nansum(dim=1)
        mode, size = ("train", self.num_generations) if self.model.training else ("eval", self.num_generations_eval)
        self._metrics[mode]["reward_std"][-1] = rewards.view(-1, size).std(dim=1).mean().item()
        return batch


class DPO(DPOTrainer):
    def _prepare_dataset(self, rows, tokenizer, args, *rest, limit="{limit}", answer="{answer}", longest="{longest}"):
        # {comment}
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
    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        # {comment}
        if packing:
            return super()._prepare_dataset(rows, tokenizer, args, packing, formatting_func, *rest)
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
