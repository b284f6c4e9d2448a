"""Learning rates, their schedule, checkpointed layers, the clipped and applied gradients."""

import math

from parts.foundation.messages import DivergedError
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models


def default_learning_rate(role: str, parameters: float, lora: bool) -> float:
    """The learning rate where none is given, by role and size: the one rule of all trainers.

    Below 50M parameters a model moves too slowly at the rates of large ones: on the embedded one (0.4M), RL takes 2e-4
    and distillation 1e-3. `trl_policy` is the policy under TRL's schedule, which falls to 0, with ten times as much
    for LoRA (Schulman 2025, "LoRA Without Regret").
    """
    full, adapters, small, small_adapters = {
        "policy": (1e-6, 1e-5, 2e-4, 2e-4),
        "critic": (1e-5, 1e-5, 1e-3, 1e-3),
        "student": (1e-5, 1e-4, 1e-3, 1e-3),
        "trl_policy": (1e-6, 1e-5, 5e-4, 5e-3),
    }[role]
    if parameters < 50e6:
        return small_adapters if lora else small
    return adapters if lora else full


def learning_rates(config: BaseConfig, parameters: int) -> tuple[float, float]:
    """The policy's and the critic's learning rate, by model size where the setting is 0."""
    lora = bool(config.lora_rank)
    critic_lr = config.critic_lr or default_learning_rate("critic", parameters, lora)
    return config.lr or default_learning_rate("policy", parameters, lora), critic_lr


def lr_factor(step: int, total: int, warmup: int, schedule: str) -> float:
    """Multiplier of the learning rates at a 0-based step: linear warm-up, then constant, linear or cosine decay."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[schedule]


def set_learning_rates(config: BaseConfig, optimizer, step: int) -> None:
    """Set the rates of a 0-based step."""
    factor = lr_factor(step, config.steps, config.warmup_steps, config.lr_schedule)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def switch_checkpointing(models: Models, on: bool) -> None:
    """Put the layers that recompute into train mode, or back; all else stays in eval mode, free of dropout."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    for network in filter(None, (models.policy, models.critic and models.critic.backbone)):
        for layer in network.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.training = on


def apply_gradients(config: BaseConfig, optimizer, scaler):
    """Clip gradients, and step unless one is not finite. Returns the norms, one per network."""
    import torch

    scaler.unscale_(optimizer)
    clip = torch.nn.utils.clip_grad_norm_
    norms = torch.stack([clip(group["params"], config.max_grad_norm).cpu() for group in optimizer.param_groups])
    if torch.isfinite(norms).all():
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norms


def count_bad_update(config: BaseConfig, step: int, health: dict, finite: bool) -> None:
    """Count non-finite updates in a row in health["bad"]; raise DivergedError where they are too many."""
    health["bad"] = 0 if finite else health["bad"] + 1
    if health["bad"] >= config.max_bad_updates:
        raise DivergedError(
            f"step {step + 1}: got {health['bad']} non-finite gradients in a row; expected finite ones; "
            "try a lower --lr, or --precision bf16 in place of fp16"
        )
