#!/usr/bin/env python3
"""Countdown problems: every part is made by a function."""

import argparse
from collections.abc import Callable

from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel
from trl import GRPOConfig, GRPOTrainer

from src.utils.rewards import (
    math_reward,
)


def create_lora_model(model_id: str, device_map: str = "cuda") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(
        model_id,
        device_map=device_map,
    )
    return get_peft_model(model, LoraConfig(r=16, task_type="CAUSAL_LM"))


def create_grpo_config(
    output_dir: str,
    learning_rate: float = 5e-6,
    per_device_train_batch_size: int = 1,
    num_generations: int = 16,
    temperature: float = 1.0,
    max_prompt_length: int = 4096,
) -> GRPOConfig:
    """
    Create the configuration.

    Returns:
        GRPOConfig: A configured trl.GRPOConfig instance
    """
    return GRPOConfig(
        output_dir=output_dir,
        learning_rate=learning_rate,
        weight_decay=0.01,
        warmup_ratio=0.1,
        lr_scheduler_type="linear",
        optim="adamw_8bit",
        remove_unused_columns=False,
        bf16=True,
        per_device_train_batch_size=per_device_train_batch_size,
        temperature=temperature,
        num_generations=num_generations,
        max_prompt_length=max_prompt_length,
        report_to=["tensorboard"],
        save_strategy="steps",
    )


def create_trainer(
    model: PreTrainedModel,
    train_dataset: Dataset,
    args: GRPOConfig,
) -> GRPOTrainer:
    reward_funcs: list[Callable[..., list[float]]] = [
        math_reward,
    ]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_funcs,
        args=args,
        train_dataset=train_dataset,
    )
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=str, required=True)
    args = parser.parse_args()
    training_args = create_grpo_config(
        output_dir=args.output_dir,
    )
    model = create_lora_model("Qwen/Qwen2.5-3B-Instruct")
    trainer = create_trainer(
        model=model, train_dataset=Dataset.from_dict({"prompt": ["1"]}), args=training_args
    )
    trainer.train()


if __name__ == "__main__":
    main()
