"""All that is loaded and checked before the first step."""

import contextlib
import math
import os
import random
from dataclasses import dataclass
from unittest import mock

from parts.data.prompts import load_splits
from parts.environments.play_setup import PlaySetup
from parts.foundation.exit_codes import quiet_environment
from parts.foundation.messages import say
from parts.learning.idle_settings import say_idle
from parts.networks.models import settle_model, shaped_network
from programs.grpo_train.conversations_for_trl import (
    let_environments_score,
    load_kinds,
    prepare_conversations,
)
from programs.grpo_train.data import BatchPlan, left_tokenizer, load_task, plan_batches
from programs.grpo_train.rewards import Scorer, Stage, load_stages
from programs.grpo_train.settings import Config, check_machine, check_settings, fill_in


@contextlib.contextmanager
def quiet_libraries(config: Config):
    """Set what must stand in the environment when TRL is imported and used; what the user has set stays."""
    import warnings

    from transformers.utils import logging

    defaults = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    defaults |= {"TENSORBOARD_LOGGING_DIR": f"{config.output_dir}/tensorboard", "WANDB_DIR": config.output_dir}
    defaults |= {"WANDB_PROJECT": "rl-training", "TRL_EXPERIMENTAL_SILENCE": "1"}  # of rollout_func: TRL is pinned
    quiet_environment(bool(config.use_vllm))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated.*")  # inside TRL and peft
    with mock.patch.dict(os.environ, {name: value for name, value in defaults.items() if name not in os.environ}):
        yield


def parameter_count(config: Config) -> int:
    """Number of parameters, from the model's configuration alone."""
    return sum(p.numel() for p in shaped_network(config, config.model).parameters())


@dataclass
class Prepared:
    """A run with all that can be known before the weights are loaded."""

    config: Config  # resolved
    plan: BatchPlan
    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    scorer: Scorer
    stages: list[Stage]
    parameters: int
    setup: PlaySetup | None  # what conversations are played with


def prepare_run(config: Config) -> Prepared:
    """Check everything that does not need the weights."""
    import numpy as np
    import torch

    settle_model(config)
    check_settings(config)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):  # for the user's rewards
        set_seed(config.seed)
    tokenizer, setup = left_tokenizer(config), None
    environments = load_kinds(config, tokenizer)
    rows, held_out = load_splits(config, tokenizer, load_task)
    scorer, stages = load_stages(config, rows)
    if environments:
        let_environments_score(config, environments, scorer, stages)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        scorer.check_columns(row)
    if environments:
        setup, rows, held_out = prepare_conversations(config, tokenizer, environments, rows, held_out)
        scorer.rows = rows
    parameters = parameter_count(config)
    resolved = fill_in(config, parameters)
    if config.stages:
        resolved.steps = sum(stage.steps for stage in stages)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    plan = plan_batches(resolved, processes, len(rows))
    at_once = plan.completions_per_rollout // processes  # what training has memory for
    resolved.per_device_eval_batch_size = resolved.per_device_eval_batch_size or at_once
    whole = math.ceil(resolved.save_steps / plan.steps_per_rollout) * plan.steps_per_rollout
    if whole != resolved.save_steps:
        say(f"checkpoints every {whole} steps: a rollout lasts {plan.steps_per_rollout}; TRL cannot resume inside one")
        resolved.save_steps = whole
    check_machine(resolved)
    resolved.given = config.given
    say_idle(resolved, plan.steps_per_rollout)
    return Prepared(resolved, plan, tokenizer, rows, held_out, scorer, stages, parameters, setup)
