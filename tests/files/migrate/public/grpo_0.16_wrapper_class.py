from datasets import load_dataset
from transformers import AutoTokenizer
from trl import AutoModelForCausalLMWithValueHead, GRPOConfig, GRPOTrainer


class CueTrainer:
    """One cue, one run."""

    def __init__(self, model_path, dataset_path, output_dir):
        self.dataset = load_dataset("json", data_files={"train": dataset_path}, split="train")
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model = AutoModelForCausalLMWithValueHead.from_pretrained(model_path)
        # the group's deviation divides nothing
        self.config = GRPOConfig(
            output_dir=output_dir,
            per_device_train_batch_size=8,
            learning_rate=1e-5,
            num_iterations=1,
            beta=0.0,
            scale_rewards=False,
            max_length=128,
            logging_steps=50,
        )
        self.trainer = GRPOTrainer(
            model=self.model,
            tokenizer=self.tokenizer,
            train_dataset=self.dataset,
            reward_funcs=self.reward_fn,
            args=self.config,
            data_collator=self.data_collator,
        )

    def data_collator(self, batch):
        return {"prompt": [row["prompt"] for row in batch]}

    def reward_fn(self, prompts, completions, **kwargs):
        return [float(len(c)) for c in completions]

    def train(self):
        self.trainer.train()
