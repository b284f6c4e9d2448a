from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

settings = dict(
    output_dir="runs/dict",  # where it goes
    no_cuda=False,
    generation_batch_size=32,
    mask_truncated_completions=True,
)


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    **settings,
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[reward], args=config, train_dataset=dataset)
trainer.train()
