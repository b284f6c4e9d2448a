"""A custom policy loss for verl 0.9: TOPR, tapered off-policy REINFORCE (arXiv 2503.14286), which verl does not have.

    VERL_USE_EXTERNAL_MODULES=topr_loss   (with PYTHONPATH=examples/verl)
    actor_rollout_ref.actor.policy_loss.loss_mode=topr

    L = - sum over completions of w · A · log pi(y|x),   w = 1 where A >= 0, else min(pi(y|x) / pi_old(y|x), 1)

The weight carries no gradient. Good completions are learnt as they are, however unlikely they have become; bad ones are
pushed down only while the policy still gives them, so the loss stays bounded without a clip in the gradient's way.
"""

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss


@register_policy_loss("topr")
def topr_loss(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode="token-mean",
    config=None,
    rollout_is_weights=None,
):
    """Return (loss, metrics).

    Args:
        old_log_prob, log_prob, advantages, response_mask: (B, T).
        loss_agg_mode: one of verl's, `actor_rollout_ref.actor.loss_agg_mode`.
        config: the actor's; its global_batch_info makes micro batches add up to the whole batch's mean.
        rollout_is_weights: (B, T) or None, algorithm.rollout_correction's weights.
    """
    log_ratio = ((log_prob - old_log_prob) * response_mask).sum(-1, keepdim=True).detach()  # (B, 1), of a completion
    weight = torch.where(advantages >= 0, 1.0, log_ratio.clamp(max=0.0).exp())  # (B, T)
    losses = -weight * advantages * log_prob
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    tapered = ((weight < 1) * response_mask).sum() / response_mask.sum().clamp(min=1)
    return loss, {"actor/tapered_frac": tapered.item()}
