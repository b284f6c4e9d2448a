"""The recipe as a dataclass: its fields are the flags."""
from dataclasses import dataclass, field
from typing import Any

from datasets import load_dataset
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer


@dataclass
class ReferenceConfig(GRPOConfig):
    name: str | None = field(default=None, metadata={"help": "run name"})
    model: str = "Qwen/Qwen3-4B-Instruct-2507"
    # the data are keyed on the seed
    seed: int = 0
    lr_scheduler_type: str = "constant"
    learning_rate: float = 8e-6
    num_generations: int | None = 8
    beta: float = 0.01
    loss_type: str = "dr_grpo"
    scale_rewards: str = "none"
    warmup_ratio: float = 0.1
    model_init_kwargs: dict[str, Any] | str | None = field(default_factory=lambda: {"torch_dtype": "bfloat16"})
    use_vllm: bool = True

    def __post_init__(self):
        self.output_dir = self.output_dir or f"runs/{self.name}"
        super().__post_init__()


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


def main():
    (cfg,) = HfArgumentParser(ReferenceConfig).parse_args_into_dataclasses()
    trainer = GRPOTrainer(cfg.model, reward, args=cfg, train_dataset=load_dataset("org/data", split="train"))
    trainer.train()


if __name__ == "__main__":
    main()
