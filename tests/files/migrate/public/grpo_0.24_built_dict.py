"""A curriculum of several turns; the settings are collected in a dictionary."""
from __future__ import annotations

import os
import sys

from trl import GRPOConfig, GRPOTrainer

from training.custom_grpo_trainer import TRLOOGRPOTrainer
from training.model_loader import load_model_and_tokenizer

IS_LINUX = sys.platform.startswith("linux")
USE_VLLM = os.getenv("USE_VLLM", "0") == "1" and IS_LINUX
OPTIMIZER = "paged_adamw_8bit" if IS_LINUX else "adamw_torch"
VLLM_MODE = os.getenv("VLLM_MODE", "server")
USE_TRLOO = os.getenv("USE_TRLOO", "1") == "1"
PER_DEVICE_BATCH_SIZE = 1
GRADIENT_ACCUMULATION_STEPS = 4
NUM_GENERATIONS = 2


def reward_from_env(completions, **kwargs) -> list[float]:
    return [float(r) for r in kwargs.get("env_reward", [])]


def main():
    model, tokenizer = load_model_and_tokenizer(checkpoint_path=None)
    grpo_kwargs = dict(
        learning_rate=3e-6,
        temperature=0.7,
        num_generations=NUM_GENERATIONS,
        num_iterations=1,
        beta=0.0,                        # No ref model
        epsilon=0.2,
        scale_rewards="batch",
        remove_unused_columns=False,
        max_prompt_length=3072,
        max_completion_length=768,
        per_device_train_batch_size=PER_DEVICE_BATCH_SIZE,
        gradient_accumulation_steps=GRADIENT_ACCUMULATION_STEPS,
        max_steps=50,
        optim=OPTIMIZER,
        bf16=IS_LINUX,
        gradient_checkpointing=True,
        report_to="none",
        output_dir="outputs/stage3",
        logging_steps=1,
        save_steps=25,
        top_k=50,
        top_p=0.95,
        repetition_penalty=1.05,
    )
    if USE_VLLM:
        grpo_kwargs["use_vllm"] = True
        grpo_kwargs["vllm_mode"] = VLLM_MODE

    config = GRPOConfig(**grpo_kwargs)

    trainer_cls = TRLOOGRPOTrainer if USE_TRLOO else GRPOTrainer
    trainer = trainer_cls(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[reward_from_env],
        args=config,
        train_dataset=None,
    )
    trainer.train()


if __name__ == "__main__":
    main()
