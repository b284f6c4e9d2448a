"""Advantage estimators, with a critic (GAE) and without; a new one is a function and an entry in ADVANTAGES."""

from parts.foundation.messages import RewardError
from parts.networks.batches import masked_whiten


def group_stats(x, groups):
    """Mean, squared deviation and size of each entry's group; x and groups are [B], each result too.

    A group of equal entries has exactly its entry as mean and 0 as deviation, whatever rounding says.
    """
    import torch

    _, index, count = torch.unique(groups, return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(count), dtype=x.dtype, device=x.device)
    mean = (zeros.index_add(0, index, x) / count)[index]
    low, high = (zeros.scatter_reduce(0, index, x, reduce=r, include_self=False)[index] for r in ("amin", "amax"))
    mean = torch.where(low == high, x, mean)
    return mean, zeros.index_add(0, index, (x - mean) ** 2)[index], count[index]


def with_singles(advantages, scores, count, alone: float):
    """Advantages [B], but `alone` times the score for a completion without others in its group."""
    import torch

    return torch.where(count > 1, advantages, alone * scores)


def grpo_advantages(scores, groups, config, alone: float = 0.0, **_):
    """(R - mean_g) / (std_g + eps): GRPO (Shao 2024, arXiv 2402.03300, section 4.1.2)."""
    mean, square, count = group_stats(scores, groups)
    n = (count - 1 if config.advantage_std == "unbiased" else count).clamp(min=1)
    return with_singles((scores - mean) / ((square / n).sqrt() + config.advantage_eps), scores, count, alone)


def mean_advantages(scores, groups, alone: float = 0.0, **_):
    """R - mean_g: Dr. GRPO (Liu 2025, arXiv 2503.20783, section 3.2); also tinker, prime-rl, nanochat."""
    mean, _, count = group_stats(scores, groups)
    return with_singles(scores - mean, scores, count, alone)


def rloo_advantages(scores, groups, alone: float = 0.0, **_):
    """R minus the mean of the others, n / (n - 1) (R - mean_g): RLOO (Ahmadian 2024, arXiv 2402.14740)."""
    mean, _, count = group_stats(scores, groups)
    return with_singles((scores - mean) * count / (count - 1).clamp(min=1), scores, count, alone)


def opo_advantages(scores, groups, mask, alone: float = 0.0, **_):
    """R - sum_g(len R) / sum_g(len): the length-weighted optimal baseline of OPO (Hao 2025, arXiv 2505.23585)."""
    import torch

    lengths = mask.sum(1).to(scores.dtype)
    mean, square, count = group_stats(scores, groups)
    weighted, total = (group_stats(x, groups)[0] for x in (lengths * scores, lengths))
    baseline = torch.where(square == 0, mean, weighted / total.clamp(min=1e-8))
    return with_singles(scores - baseline, scores, count, alone)


def gpg_advantages(scores, groups, alone: float = 0.0, **_):
    """alpha (R - mean_g), alpha = B / completions in groups of unequal score: GPG (Chu 2025, arXiv 2504.02546)."""
    _, square, _ = group_stats(scores, groups)
    alpha = len(scores) / (square > 0).sum().clamp(min=1)
    return alpha * mean_advantages(scores, groups, alone)


def gpg_verl_advantages(scores, groups, alone: float = 0.0, **_):
    """GPG as verl has it: alpha = B / completions whose score is not 0."""
    return len(scores) / (scores != 0).sum().clamp(min=1) * mean_advantages(scores, groups, alone)


def maxrl_advantages(scores, groups, **_):
    """(R - mean_g) / (mean_g + 1e-6): MaxRL (arXiv 2602.02710), for scores that are 0 or more."""
    if (scores < 0).any():
        raise RewardError(f"got a score of {scores.min():g}; expected 0 or more for maxrl; try --algorithm grpo")
    mean, _, _ = group_stats(scores, groups)
    return (scores - mean) / (mean + 1e-6)


def gdpo_advantages(parts, groups, mask, config, weights=None, alone: float = 0.0, **_):
    """Whitened sum over rewards of weight_r * GRPO's advantage of reward r alone: GDPO (arXiv 2601.05242).

    parts is [B, R], NaN where a reward does not apply; weights [R], 1 unless given. Returns [B, T].
    """
    import torch

    total = torch.zeros_like(parts[:, 0])
    for r in range(parts.shape[1]):
        known = ~parts[:, r].isnan()
        advantages = grpo_advantages(parts[known, r], groups[known], config, alone)
        total[known] += advantages if weights is None else weights[r] * advantages
    return masked_whiten(total[:, None] * mask, mask)


def discounted_returns(rewards, mask, gamma: float):
    """Sum of the rewards from each token on, discounted; all [B, T], passing over tokens outside the mask."""
    import torch

    returns, running = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        here = rewards[:, t] + gamma * running
        running = torch.where(mask[:, t].bool(), here, running)
        returns[:, t] = here * mask[:, t]
    return returns


def reinforce_pp_advantages(rewards, mask, config, **_):
    """Discounted returns, whitened over the batch's tokens, [B, T]: REINFORCE++ (Hu 2025, arXiv 2501.03262)."""
    return masked_whiten(discounted_returns(rewards, mask, config.gamma), mask)


def reinforce_pp_baseline_advantages(scores, groups, mask, alone: float = 0.0, **_):
    """R - mean_g, whitened over the batch's tokens, [B, T]: REINFORCE++-baseline (the same paper)."""
    return masked_whiten(mean_advantages(scores, groups, alone)[:, None] * mask, mask)


def remax_advantages(rewards, baselines, mask, **_):
    """Return from each token on, minus the greedy completion's score, [B, T]: ReMax (Li 2023, arXiv 2310.10505)."""
    return discounted_returns(rewards, mask, 1.0) - baselines[:, None] * mask


def gae(rewards, values, response_mask, gamma: float, gae_lambda: float):
    """Generalized advantage estimation (Schulman 2016, eq. 16), all [B, T].

    Tokens outside the mask (tool output, pads) are passed over: V_{t+1} and A_{t+1} are carried through them.

    Returns:
        (advantages, returns) with returns = advantages + values, both 0 outside the mask.
    """
    import torch

    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    start = int(response_mask.any(dim=0).int().argmax())  # no column before it has a response token
    for t in reversed(range(start, values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        keep = response_mask[:, t].bool()
        next_value = torch.where(keep, values[:, t], next_value)
        next_advantage = torch.where(keep, advantage, next_advantage)
        advantages[:, t] = torch.where(keep, advantage, torch.zeros_like(advantage))
    return advantages, (advantages + values) * response_mask


def gae_advantages(rewards, values, mask, config, **_):
    """Generalized advantage estimation with a critic, [B, T]; see `gae`."""
    return gae(rewards, values, mask, config.gamma, config.gae_lambda)[0]


# Each takes by keyword what it needs of scores [B] (after KL and penalties), groups [B] (equal = same prompt), rewards
# [B, T], mask [B, T], parts [B, R], baselines [B], and config, and returns advantages [B] or [B, T]. A completion alone
# in its group has no baseline: it gets `alone` times its score, 0 unless told; verl's estimators have 1 there.
ADVANTAGES = {
    "gae": gae_advantages,
    "grpo": grpo_advantages,
    "mean": mean_advantages,
    "rloo": rloo_advantages,
    "opo": opo_advantages,
    "gpg": gpg_advantages,
    "gpg_verl": gpg_verl_advantages,
    "maxrl": maxrl_advantages,
    "gdpo": gdpo_advantages,
    "remax": remax_advantages,
    "reinforce_pp": reinforce_pp_advantages,
    "reinforce_pp_baseline": reinforce_pp_baseline_advantages,
}
