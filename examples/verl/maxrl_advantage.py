"""A custom advantage estimator for verl 0.9: MaxRL (arXiv 2602.02710), which verl does not have.

    VERL_USE_EXTERNAL_MODULES=maxrl_advantage   (with PYTHONPATH=examples/verl)
    algorithm.adv_estimator=maxrl actor_rollout_ref.rollout.n=8

    A_i = (R_i - mean) / (mean + 1e-6), mean over the completions of the same prompt

With scores of 0 and 1 this is the gradient of the log-likelihood of a correct answer, to the order that the group size
allows: rarely solved prompts weigh more than with GRPO. Scores must not be negative. verl calls an estimator with
keywords; what comes beside these (`reward_baselines`, ...) is in kwargs.
"""

import torch
from verl.trainer.ppo.core_algos import register_adv_est


@register_adv_est("maxrl")
def maxrl_advantage(token_level_rewards, response_mask, index, config=None, **kwargs):
    """Return (advantages, returns), both (B, T).

    Args:
        token_level_rewards: (B, T), the score on the last token.
        response_mask: (B, T), 1 = sampled by the policy.
        index: (B,), the prompt each completion belongs to.

    Raises:
        ValueError: a score is negative.
    """
    scores = token_level_rewards.sum(-1)  # (B,)
    if (scores < 0).any():
        raise ValueError(f"got a score of {scores.min():.3g}; expected none below 0; try algorithm.adv_estimator=grpo")
    groups = {prompt: group for group, prompt in enumerate(dict.fromkeys(index.tolist()))}
    member = torch.tensor([groups[prompt] for prompt in index.tolist()])
    total = torch.zeros(len(groups)).index_add_(0, member, scores.float())
    mean = (total / torch.bincount(member))[member]
    advantages = ((scores - mean) / (mean + 1e-6))[:, None] * response_mask
    return advantages, advantages
