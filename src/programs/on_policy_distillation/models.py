"""What a run is given: prompts, student, teachers, an optional reward; and all checks of it."""

from dataclasses import dataclass
from pathlib import Path

from parts.data.prompts import load_splits
from parts.foundation.bundle import EMBEDDED_SPECS, has_embedded_data
from parts.foundation.messages import need
from parts.learning.optimizer import adamw, default_learning_rate
from parts.networks.cache_probe import check_pads, share_prompts
from parts.networks.forward import settle_logits
from parts.networks.models import check_context, end_and_pad_ids, load_policy, load_tokenizer
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.text_servers import is_server
from programs.on_policy_distillation.settings import Config, check_config
from programs.on_policy_distillation.teachers import (
    DistillationModels,
    LocalTeacher,
    ServerTeacher,
    check_teachers,
    teacher_specs,
)


def load_reward(config: Config) -> Reward:
    """The configured reward functions, those of the embedded task with its data, or none."""
    specs = config.reward or (EMBEDDED_SPECS if has_embedded_data(config.data) else [])
    reward = Reward(specs, call_limits(config))
    need(reward.functions or not config.reward_coef, "got --reward_coef without reward; try --reward FILE.py:function")
    reward.silent = not reward.functions  # no warning that none applies
    return reward


@dataclass
class Inputs:
    """What a run is given beside its settings."""

    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    reward: Reward


def load_inputs(config: Config) -> Inputs:
    """Read prompts and rewards, and check them."""
    reward, tokenizer = load_reward(config), load_tokenizer(config)
    inputs = Inputs(tokenizer, *load_splits(config, tokenizer), reward)
    validate(config, inputs=inputs)
    return inputs


def validate(config: Config, processes: int = 1, inputs: Inputs | None = None, models=None) -> None:
    """Raise UserError for what cannot work: of the settings alone, then of the inputs, then of inputs with models."""
    if models:
        check_context(config, models, inputs.rows + inputs.held_out)
    elif inputs:
        for row in (inputs.rows + inputs.held_out)[:: max(1, len(inputs.rows))]:
            inputs.reward.check_columns(row)
        check_teachers(config, inputs.tokenizer, inputs.rows, inputs.held_out)
    else:
        check_config(config, processes)  # ranges, choices, the objective, the batch; says what is idle
        teacher_specs(config)


def load_models(config: Config, device, checkpoint: Path | None = None, tokenizer=None) -> DistillationModels:
    """Load tokenizer, student (from a checkpoint where there is one) and teachers."""
    tokenizer = tokenizer or load_tokenizer(config)
    policy = load_policy(config, device, checkpoint and checkpoint / "policy")
    if config.gradient_checkpointing:
        policy.activation_checkpointing_enable({"use_reentrant": False})
    eos_ids, pad_id = end_and_pad_ids(config, policy, tokenizer)
    models = DistillationModels(policy, None, None, tokenizer, eos_ids, pad_id, device, [])
    settle_logits(config, models)
    check_pads(config, models, policy, "model")
    share_prompts(config, models, [policy])
    for spec in teacher_specs(config).values():
        teacher = ServerTeacher(spec, config) if is_server(spec) else LocalTeacher(spec, config, models)
        models.teachers.append(teacher)
    return models


def student_learning_rate(config: Config, parameters: int) -> float:
    """The learning rate, by model size where the setting is 0."""
    return config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))


def make_optimizer(config: Config, models):
    """AdamW over the student's trained weights."""
    size = sum(p.numel() for p in models.policy.parameters())
    return adamw(config, [(models.policy, student_learning_rate(config, size))])
