"""Puzzles; a helper leaves out settings that this TRL does not have."""
import dataclasses
import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def build_config(cls, wanted):
    names = {f.name for f in dataclasses.fields(cls)}
    for name in wanted.keys() - names:
        print("left out", name, file=sys.stderr)
    return cls(**{k: v for k, v in wanted.items() if k in names})


def main(a):
    cfg = build_config(GRPOConfig, dict(
        output_dir=str(a.out), seed=a.seed, report_to="none", logging_steps=1, bf16=True,
        learning_rate=a.lr, lr_scheduler_type="constant_with_warmup", warmup_steps=2,
        per_device_train_batch_size=a.micro, gradient_accumulation_steps=8,
        num_generations=a.gens, max_prompt_length=1536, max_completion_length=a.cap,
        loss_type="dr_grpo", scale_rewards=False,
        use_vllm=True, vllm_mode="colocate",
        model_init_kwargs={"torch_dtype": torch.bfloat16},
    ))
    trainer = GRPOTrainer(
        model=a.model, reward_funcs=reward, args=cfg, train_dataset=Dataset.from_list([{"prompt": "1+1"}]),
        peft_config=LoraConfig(r=16, target_modules="all-linear"),
    )
    trainer.train()


def reward(completions, **kwargs):
    return [float("2" in c) for c in completions]
