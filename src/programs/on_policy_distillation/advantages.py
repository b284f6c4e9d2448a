"""The advantages of teacher and rewards."""

from parts.learning.advantages import discounted_returns, grpo_advantages, mean_advantages, rloo_advantages
from parts.learning.losses import kl_estimate
from programs.on_policy_distillation.settings import Config

ADVANTAGES = {"mean": mean_advantages, "grpo": grpo_advantages, "rloo": rloo_advantages}


def distillation_advantages(config: Config, batch: dict, samples: list[dict], kl_coef: float):
    """Advantages [B, T] of teacher and rewards; 0 on completions of the data, which the student did not sample."""
    import torch

    mask, sampled = batch["loss_mask"], ~batch["offpolicy"]
    advantages = torch.zeros(mask.shape, device=mask.device)
    if config.objective == "policy_gradient":
        seen = batch.get("old_logprobs", batch["rollout_logprobs"])  # with one update a step they are the same
        gap = kl_estimate(seen, batch["teacher_logprobs"], "k1") * mask
        advantages = -kl_coef * discounted_returns(gap, mask, config.discount)
    if config.reward_coef:
        scores = torch.tensor([s["score"] for s in samples], device=mask.device)
        groups = torch.tensor([s.get("group", i) for i, s in enumerate(samples)], device=mask.device)
        scored = sampled[:, 0] & torch.tensor([any(v is not None for v in s["rewards"].values()) for s in samples]).to(
            sampled
        )
        if scored.any():
            values = ADVANTAGES[config.advantage](scores=scores[scored], groups=groups[scored], config=config)
            advantages[scored] += config.reward_coef * values[:, None] * mask[scored]
    return advantages * sampled
