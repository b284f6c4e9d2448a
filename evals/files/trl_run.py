"""Our GRPO run with TRL 1.16, one node of 8 GPUs."""

import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def correct(prompts, completions, answer, **kwargs):
    """1 where the number after the last #### is that of the answer."""
    found = [re.findall(r"####\s*(-?\d+)", completion[0]["content"]) for completion in completions]
    golds = [text.split("####")[-1].strip() for text in answer]
    return [float(numbers[-1:] == [gold]) for numbers, gold in zip(found, golds, strict=True)]


def brief(prompts, completions, **kwargs):
    """1 up to 200 characters, falling to 0 at 400; None for an empty completion."""
    lengths = [len(completion[0]["content"]) for completion in completions]
    return [None if n == 0 else min(1.0, max(0.0, 2 - n / 200)) for n in lengths]


REWARDS = [correct, brief]
REWARD_WEIGHTS = [1.0, 0.2]

if __name__ == "__main__":
    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-1.5B-Instruct",
        reward_funcs=REWARDS,
        args=GRPOConfig(
            output_dir="runs/trl",
            reward_weights=REWARD_WEIGHTS,
            num_generations=8,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            max_completion_length=512,
            learning_rate=2e-6,
            beta=0.02,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            temperature=0.9,
            max_steps=200,
        ),
        train_dataset=load_dataset("json", data_files="word_problems.jsonl", split="train"),
    )
    trainer.train()
