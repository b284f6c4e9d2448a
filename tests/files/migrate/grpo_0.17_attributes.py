from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

BATCH = 8


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    output_dir="runs/attr",
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[reward], args=config, train_dataset=dataset)
config.beta = 0.02
print(config.learning_rate)
trainer.train()
