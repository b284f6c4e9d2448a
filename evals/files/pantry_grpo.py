"""Herb quiz, GRPO. Written for trl 0.17.0, transformers 4.51. Defaults wherever we had no opinion."""

import torch
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

BASE = "Qwen/Qwen2.5-0.5B-Instruct"


def herb_score(prompts, completions, herb, spice_level):
    said = [turns[0]["content"].lower() for turns in completions]
    return [level * 0.5 if name in text else -0.25 for text, name, level in zip(said, herb, spice_level, strict=True)]


def brevity(prompts, completions, herb, spice_level):
    return [1.0 if len(turns[0]["content"].split()) <= 6 else 0.0 for turns in completions]


def build_args():
    return GRPOConfig(
        output_dir="pantry_out",
        max_steps=340,
        num_generations=6,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        max_prompt_length=160,
        warmup_ratio=0.07,
        reward_weights=[1.0, 0.15],
        scale_rewards=False,
        model_init_kwargs={"torch_dtype": torch.float32},
    )


if __name__ == "__main__":
    GRPOTrainer(
        model=BASE,
        reward_funcs=[herb_score, brevity],
        args=build_args(),
        processing_class=AutoTokenizer.from_pretrained(BASE),
        train_dataset=load_dataset("json", data_files="pantry.jsonl", split="train"),
    ).train()
