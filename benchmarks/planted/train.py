"""GRPO on our sums."""

from datasets import load_dataset
from reward import REWARDS
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(
    output_dir="out",
    bf16=False,
    use_cpu=True,
    gradient_checkpointing=False,
    dataloader_pin_memory=False,
    save_strategy="steps",
    log_completions=True,
    num_completions_to_print=2,
)
data = load_dataset("json", data_files={"train": "train.jsonl", "test": "eval.jsonl"})
trainer = GRPOTrainer(
    model="MODEL",
    args=args,
    reward_funcs=REWARDS,
    train_dataset=data["train"],
    eval_dataset=data["test"].select(range(64)),
)
trainer.train()
