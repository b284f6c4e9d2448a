"""open-r1 of February: an own config class, registered rewards, TrlParser."""
import logging
import sys
from dataclasses import dataclass, field
from typing import Optional

import datasets
import transformers
from datasets import load_dataset
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
import trl


@dataclass
class GRPOConfig(trl.GRPOConfig):
    """Settings of benchmarks and callbacks beside TRL's."""

    benchmarks: list[str] = field(default_factory=lambda: [])
    system_prompt: Optional[str] = field(default=None)
    overwrite_hub_revision: bool = field(default=False)


@dataclass
class GRPOScriptArguments(ScriptArguments):
    reward_funcs: list[str] = field(default_factory=lambda: ["accuracy", "format"])


def accuracy_reward(completions, solution, **kwargs):
    return [float(s in c[0]["content"]) for c, s in zip(completions, solution)]


def format_reward(completions, **kwargs):
    return [float("</answer>" in c[0]["content"]) for c in completions]


REGISTRY = {"accuracy": accuracy_reward, "format": format_reward}


def main(script_args, training_args, model_args):
    set_seed(training_args.seed)
    dataset = load_dataset(script_args.dataset_name, name=script_args.dataset_config)
    torch_dtype = model_args.torch_dtype
    training_args.model_init_kwargs = dict(
        revision=model_args.model_revision,
        attn_implementation=model_args.attn_implementation,
        torch_dtype=torch_dtype,
        use_cache=False if training_args.gradient_checkpointing else True,
    )
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=[REGISTRY[name] for name in script_args.reward_funcs],
        args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
        peft_config=get_peft_config(model_args),
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)


if __name__ == "__main__":
    parser = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    main(script_args, training_args, model_args)
