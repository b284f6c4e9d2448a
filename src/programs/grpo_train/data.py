"""Prompts and their order, how steps, rollouts and prompts divide, and our settings as TRL's."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from parts.data.chat import template_settings
from parts.foundation.messages import UserError, need
from parts.foundation.processes import torch
from parts.networks.loading import attention_choice
from parts.networks.models import precision_on, warn_of_slow_precision
from parts.networks.tokenizers import open_tokenizer
from parts.sampling.rollouts import batch_rows
from programs.grpo_train.settings import Config, trainer_fields


def left_tokenizer(config: Config):
    tokenizer = open_tokenizer(config, padding_side="left", truncation_side="left")
    need(tokenizer.eos_token_id is not None, f"got model {config.model!r} without an end token; expected eos_token")
    return tokenizer


@dataclass
class BatchPlan:
    """How steps, rollouts and prompts divide; all counts are over all processes."""

    completions_per_rollout: int
    prompts_per_rollout: int
    completions_per_step: int
    steps_per_rollout: int  # optimizer steps, rounded up to whole rollouts
    rollouts: int
    steps: int


def plan_batches(config: Config, world_size: int, prompts: int) -> BatchPlan:
    """Batch arithmetic of a resolved config; raises UserError where something does not divide."""
    batch, group = config.per_device_train_batch_size, config.num_generations
    forward = batch * world_size  # completions in one forward pass of all processes
    passes = config.steps_per_generation or config.gradient_accumulation_steps
    rollout = forward * passes
    unit = group // math.gcd(group, world_size * passes)
    fitting = math.ceil(batch / unit) * unit
    got = f"got per_device_train_batch_size {batch} x processes {world_size} x steps_per_generation {passes}"
    expected = f"expected whole groups, a multiple of num_generations {group}"
    whole = rollout % group == 0
    need(whole, f"{got} = {rollout} completions a rollout; {expected}; try --per_device_train_batch_size {fitting}")
    accumulation, micro = config.gradient_accumulation_steps, passes * config.num_iterations
    got = f"got steps_per_generation {passes} x num_iterations {config.num_iterations}"
    together = micro % accumulation == 0 or accumulation % micro == 0
    need(together, f"{got}; expected a multiple of gradient_accumulation_steps {accumulation}, or a divisor of it")
    steps = config.steps
    if config.num_train_epochs:
        updates = prompts * group * config.num_iterations / (forward * accumulation)
        steps = max(1, math.floor(updates * config.num_train_epochs))
    return BatchPlan(
        completions_per_rollout=rollout,
        prompts_per_rollout=rollout // group,
        completions_per_step=forward * accumulation,
        steps_per_rollout=max(1, micro // accumulation),
        rollouts=math.ceil(steps * accumulation / micro),
        steps=steps,
    )


def prompt_order(config: Config, count: int, length: int) -> list[int]:
    """Row numbers of the first `length` prompts: endless passes over the rows, each in an order of its own.

    TRL shuffles each pass from a generator that a resume starts anew, drops each pass's tail, and does not train on
    fewer prompts than a rollout needs. One long list does none of that: a resume goes on where the run was.
    """
    return batch_rows(range(count), config, 0, length)


OPTIONAL = ("steps_per_generation", "epsilon_high", "vllm_server_base_url")  # 0 or "" here is None there
OTHERWISE = ("num_train_epochs", "gradient_checkpointing")  # names of TRL's with another meaning or default there


def trl_settings(config: Config, steps: int) -> dict:
    """Arguments of TRL's GRPOConfig for a resolved config."""
    from trl import GRPOConfig

    gpu = torch.cuda.is_available() and not config.use_cpu
    device = torch.device("cuda" if gpu else "cpu")
    precision = precision_on(config.precision, device)
    warn_of_slow_precision(precision, device)
    compute = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    checkpointing = config.gradient_checkpointing == "true" or (config.gradient_checkpointing == "auto" and gpu)
    names = {f.name for f in dataclasses.fields(GRPOConfig)} - {*OTHERWISE}
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name in names}
    settings |= {name: getattr(config, name) or None for name in OPTIONAL}
    settings |= {
        "output_dir": str(Path(config.output_dir) / "checkpoints"),
        "max_steps": steps,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": not gpu,
        "dataloader_pin_memory": gpu,
        "activation_checkpointing": checkpointing,  # TRL still lists the older name, gradient_checkpointing
        "use_vllm": bool(config.use_vllm),
        "vllm_mode": config.use_vllm or "colocate",
        "save_strategy": "steps" if config.save_steps else "no",
        "save_steps": config.save_steps or 500,
        "report_to": config.report_to or "none",
        "run_name": Path(config.output_dir).name,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "remove_unused_columns": False,  # prompt_order shuffles; rewards need their rows
    }
    if config.use_vllm == "colocate":
        settings["vllm_max_model_length"] = config.conversation_tokens
    settings["model_init_kwargs"] = {"dtype": config.dtype or (compute if config.lora_rank else "float32")}
    settings["model_init_kwargs"] |= attention_choice(config)
    extra = trainer_fields(config.trainer_args)
    settings["chat_template_kwargs"] = template_settings(config)
    settings["model_init_kwargs"] |= extra.pop("model_init_kwargs", None) or {}
    return settings | extra


def trl_config(config: Config, steps: int):
    """TRL's GRPOConfig; what it refuses is told as a UserError."""
    from trl import GRPOConfig

    try:
        return GRPOConfig(**trl_settings(config, steps))
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"TRL refuses these settings: {error}") from error
