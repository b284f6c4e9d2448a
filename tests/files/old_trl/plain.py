"""The defaults of a version: one batch, its completions of different lengths."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def few_words(completions, **kwargs):
    return [float(-len(text.split()) + 2 * ("w5" in text)) for text in completions]


config = GRPOConfig(
    output_dir="out",
    max_steps=1,
    num_generations=4,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    max_grad_norm=0,
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOTrainer(
    model="tiny",
    reward_funcs=few_words,
    args=config,
    train_dataset=load_dataset("json", data_files="prompts.jsonl", split="train"),
)
trainer.train()
