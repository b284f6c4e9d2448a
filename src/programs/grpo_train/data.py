"""Prompts: how they are read, how steps, rollouts and prompts divide, and their order."""

import math
from dataclasses import dataclass

from parts.data.prompts import load_prompts
from parts.foundation.messages import need
from parts.networks.models import open_tokenizer
from programs.grpo_train.settings import Config

TRL_EXTRAS = ("trainer_state", "log_extra", "log_metric")  # what TRL gives a reward beside the columns


def load_task(config: Config, tokenizer, source: str) -> list[dict]:
    """Rows of `load_prompts`, without the columns that TRL gives a reward itself."""
    rows = load_prompts(config, tokenizer, source)
    for row in rows:
        for name in TRL_EXTRAS:
            row["columns"].pop(name, None)
    return rows


def left_tokenizer(config: Config):
    """The model's tokenizer, padding on the left."""
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
    need(
        rollout % group == 0,
        f"got per_device_train_batch_size {batch} x processes {world_size} x steps_per_generation {passes} = {rollout} "
        f"completions a rollout, which are no whole groups of num_generations {group}; expected a multiple of {group}; "
        f"try --per_device_train_batch_size {fitting}, or --num_generations {math.gcd(group, rollout)}"
        + (" (which is too small)" if math.gcd(group, rollout) < 2 else ""),
    )
    accumulation, micro = config.gradient_accumulation_steps, passes * config.num_iterations
    need(
        micro % accumulation == 0 or accumulation % micro == 0,
        f"got steps_per_generation {passes} x num_iterations {config.num_iterations} and gradient_accumulation_steps "
        f"{accumulation}; expected one to be a multiple of the other, so that steps and rollouts end together",
    )
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

    TRL shuffles each pass from a generator that a resume starts anew, drops each pass's tail, and trains nothing on
    fewer prompts than a rollout needs. One long list does none of that: a resume goes on where the run was.
    """
    import numpy as np

    order = []
    for epoch in range(math.ceil(length / count)):
        passed = np.random.default_rng([config.seed, 1, epoch]).permutation(count) if config.shuffle_dataset else None
        order += range(count) if passed is None else passed.tolist()
    return order[:length]
