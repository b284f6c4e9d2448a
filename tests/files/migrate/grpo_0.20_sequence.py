from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    output_dir="runs/gspo",
    importance_sampling_level="sequence",
    epsilon=3e-4,
    epsilon_high=4e-4,
    steps_per_generation=4,
    beta=0,
    top_k=None,
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[reward], args=config, train_dataset=dataset)
trainer.train()
