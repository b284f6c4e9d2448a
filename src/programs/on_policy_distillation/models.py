"""Inputs of a run and their checks: prompts, student, teacher, an optional reward."""

from pathlib import Path

from parts.data.prompts import load_splits
from parts.foundation.bundle import EMBEDDED_SPECS, has_embedded_data
from parts.foundation.messages import need
from parts.learning.optimizer import adamw, default_learning_rate
from parts.networks.cache_probe import check_pads, share_prompts
from parts.networks.forward import settle_logits
from parts.networks.loading import load_policy
from parts.networks.models import add_sparsely
from parts.networks.tokenizers import end_and_pad_ids, load_tokenizer
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.text_servers import is_server
from programs.on_policy_distillation.settings import Config
from programs.on_policy_distillation.teachers import DistillationModels, LocalTeacher, ServerTeacher, check_teacher


def load_reward(config: Config) -> Reward:
    """The configured reward functions, those of the embedded task with its data, or none."""
    specs = config.reward or (EMBEDDED_SPECS if has_embedded_data(config.data) else [])
    reward = Reward(specs, call_limits(config))
    need(reward.functions or not config.reward_coef, "got --reward_coef without reward; try --reward FILE.py:function")
    reward.silent = not reward.functions  # no warning that none applies
    return reward


def load_inputs(config: Config) -> tuple[object, Reward, list[dict], list[dict]]:
    """(tokenizer, reward, rows, held-out rows), checked."""
    reward, tokenizer = load_reward(config), load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    check_teacher(config, tokenizer, rows, held_out)
    return tokenizer, reward, rows, held_out


def load_models(config: Config, device, checkpoint: Path | None = None, tokenizer=None) -> DistillationModels:
    """Load tokenizer, student (from a checkpoint where there is one) and teacher."""
    tokenizer = tokenizer or load_tokenizer(config)
    policy = load_policy(config, device, checkpoint and checkpoint / "policy")
    add_sparsely(policy, device)
    if config.gradient_checkpointing:
        policy.activation_checkpointing_enable({"use_reentrant": False})
    eos_ids, pad_id = end_and_pad_ids(config, policy, tokenizer)
    models = DistillationModels(policy, None, None, tokenizer, eos_ids, pad_id, device, None)
    settle_logits(config, models)
    check_pads(config, models, policy, "model")
    share_prompts(config, models, [policy])
    spec = config.teacher
    models.teacher = ServerTeacher(spec, config) if is_server(spec) else LocalTeacher(spec, config, models)
    return models


def student_learning_rate(config: Config, parameters: int) -> float:
    """The learning rate, by model size where the setting is 0."""
    return config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))


def make_optimizer(config: Config, models):
    """AdamW over the student's trained weights."""
    size = sum(p.numel() for p in models.policy.parameters())
    return adamw(config, [(models.policy, student_learning_rate(config, size))])
