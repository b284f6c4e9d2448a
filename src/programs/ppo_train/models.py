"""The networks of a run: policy, critic, reference."""

from pathlib import Path

from parts.foundation.messages import need
from parts.learning.advantages import estimator
from parts.learning.optimizer import adamw, learning_rates
from parts.networks.cache_probe import check_pads, share_prompts
from parts.networks.forward import settle_logits
from parts.networks.models import (
    Models,
    adapter_settings,
    add_lora,
    end_and_pad_ids,
    keep_as_reference,
    load_network,
    load_policy,
    load_tokenizer,
    unwrapped,
)
from programs.ppo_train.settings import Config


def make_critic(config: Config, policy, device):
    """A value head that starts at 0, with its own backbone when the critic is separate."""
    import torch
    from transformers import AutoModel

    critic = torch.nn.Module()
    critic.backbone = None
    if config.critic == "separate":
        critic.backbone = load_network(AutoModel, config.critic_model or config.model, config, device)
        known, used = (m.get_input_embeddings().weight.shape[0] for m in (critic.backbone, unwrapped(policy)))
        need(
            known >= used,
            f"got critic_model {config.critic_model!r} of {known} tokens; expected the policy's {used} at least",
        )
        if config.lora_rank:
            critic.backbone = add_lora(critic.backbone, config)
    size = unwrapped(critic.backbone or policy).config.get_text_config().hidden_size
    critic.head = torch.nn.Linear(size, 1, device=device)  # float32 whatever the backbone's dtype
    torch.nn.init.zeros_(critic.head.weight)
    torch.nn.init.zeros_(critic.head.bias)
    return critic


def load_models(config: Config, device, checkpoint: Path | None = None, tokenizer=None) -> Models:
    """Load tokenizer, policy, critic and (with KL) reference, from a checkpoint where there is one."""
    from transformers import AutoModelForCausalLM

    tokenizer = tokenizer or load_tokenizer(config)
    policy = load_policy(config, device, checkpoint and checkpoint / "policy")
    critic = make_critic(config, policy, device) if estimator(config).critic else None
    if checkpoint and critic:
        import torch

        trained = torch.load(checkpoint / "critic.pt", map_location="cpu", weights_only=True, mmap=True)
        critic.load_state_dict(trained, strict=False)
    reference = None
    if config.kl_coef:
        reference = policy
        if adapter_settings(config.model):
            keep_as_reference(policy, config.model)
        elif not config.lora_rank:
            reference = load_network(AutoModelForCausalLM, config.model, config, device, frozen=True)
    if config.gradient_checkpointing:
        for network in filter(None, (policy, critic and critic.backbone)):
            network.activation_checkpointing_enable({"use_reentrant": False})
    eos_ids, pad_id = end_and_pad_ids(config, policy, tokenizer)
    models = Models(policy, critic, reference, tokenizer, eos_ids, pad_id, device)
    settle_logits(config, models)
    check_pads(config, models, policy, "model")
    if critic and critic.backbone:
        check_pads(config, models, critic.backbone, "critic_model")
    share_prompts(config, models, models.networks)
    return models


def make_optimizer(config: Config, models: Models):
    """AdamW over the policy, and the critic where there is one."""
    rates = learning_rates(config, sum(p.numel() for p in models.policy.parameters()))
    return adamw(config, [pair for pair in zip((models.policy, models.critic), rates, strict=True) if pair[0]])
