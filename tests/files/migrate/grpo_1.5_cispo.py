from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    output_dir="runs/cispo",
    loss_type="cispo",
    epsilon_high=5.0,
    max_completion_length=128,
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[reward], args=config, train_dataset=dataset)
trainer.train()
