"""A KL to the reference, two steps of accumulation, completions of one length."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def fifth_words(completions, **kwargs):
    return [float(text.split().count("w5") + text.split().count("w6") / 2) for text in completions]


config = GRPOConfig(
    output_dir="out",
    max_steps=1,
    beta=0.2,
    temperature=0.7,
    num_generations=4,
    max_completion_length=6,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-5,
    max_grad_norm=0,
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOTrainer(
    model="tiny",
    reward_funcs=[fifth_words],
    args=config,
    train_dataset=load_dataset("json", data_files="prompts.jsonl", split="train"),
)
trainer.train()
