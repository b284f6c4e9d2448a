"""From scores to advantages: penalties and KL in the reward, the estimators; a new one is an entry in ADVANTAGES."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from parts.foundation.messages import RewardError
from parts.foundation.processes import of_first_process, torch
from parts.foundation.settings import BaseConfig
from parts.learning.losses import kl_estimate
from parts.networks.batches import masked_whiten
from parts.rewards.rewards import is_scored


def shape_rewards(scores, kl, response_mask, kl_coef: float):
    """Per-token rewards [B, T]: -kl_coef * kl everywhere, plus scores [B] on the last response token."""
    rewards = -kl_coef * kl * response_mask
    positions = torch.arange(response_mask.shape[1], device=response_mask.device)
    last = (positions * response_mask).argmax(dim=1, keepdim=True)  # [B, 1]
    return rewards.scatter_add(1, last, scores[:, None].to(rewards.dtype))


def move_to_turns(rewards, samples: list[dict]) -> None:
    """Move in rewards [B, T] what a conversation earned in earlier turns from its last sampled token to theirs."""
    first = rewards.shape[1] - max(len(s["response_ids"]) for s in samples)  # column in which responses begin
    for row, sample in enumerate(samples):
        *ends, last = [first + end - 1 for end in sample.get("turn_ends", [0])]
        for column, reward in zip(ends, sample.get("turn_rewards", [0.0])[:-1], strict=True):
            rewards[row, column] += reward
            rewards[row, last] -= reward


def overlong_penalty(length: int, limit: int, share: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 to 1 over the last `share` of `limit` tokens."""
    buffer = round(share * limit)
    return max(0.0, (length - (limit - buffer)) / buffer) if buffer else 0.0


def length_penalty(config: BaseConfig, sample: dict) -> float:
    """What is taken from a completion's score for its length; from a conversation's for its longest answer."""
    missing = 0.0 if sample["finished"] else config.missing_eos_penalty
    longest = max(sample.get("answer_lengths", [len(sample["response_ids"])]))  # max_new_tokens bounds each answer
    return missing + overlong_penalty(longest, config.max_new_tokens, config.overlong_share)


def shaped_score(config: BaseConfig, sample: dict) -> float:
    """A completion's score after the penalty for its length."""
    return sample["score"] - length_penalty(config, sample)


def equal_groups(samples: list[dict], size: int, each_reward: bool = False) -> list[bool]:
    """Of each group of `size` adjacent samples, whether the scored ones score alike, in total or by each reward.

    Such a group teaches nothing.
    """
    keys = [(s["score"], *(s["rewards"].values() if each_reward else ())) if is_scored(s) else None for s in samples]
    return [len({*keys[i : i + size]} - {None}) <= 1 for i in range(0, len(keys), size)]


def reward_parts(config: BaseConfig, sample: dict) -> list[float]:
    """Each reward function's own value, NaN where it does not apply, and the penalty for length as one more."""
    values = [math.nan if v is None else v for v in sample.get("rewards", {}).values()]
    return [*values, -length_penalty(config, sample)]


def group_stats(x, groups):
    """Mean, squared deviation and size of each entry's group; x and groups are [B], each result too.

    A group of equal entries has exactly its entry as mean and 0 as deviation, whatever rounding says.
    """
    _, index, count = torch.unique(groups, return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(count), dtype=x.dtype, device=x.device)
    mean = (zeros.index_add(0, index, x) / count)[index]
    low, high = (zeros.scatter_reduce(0, index, x, reduce=r, include_self=False)[index] for r in ("amin", "amax"))
    mean = torch.where(low == high, x, mean)
    return mean, zeros.index_add(0, index, (x - mean) ** 2)[index], count[index]


def with_singles(advantages, scores, count, alone: float):
    """Advantages [B], but `alone` times the score for a completion without others in its group."""
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


def opo_advantages(scores, groups, mask, response_mask=None, alone: float = 0.0, **_):
    """R - sum_g(len R) / sum_g(len): the length-weighted optimal baseline of OPO (Hao 2025, arXiv 2505.23585)."""
    lengths = (mask if response_mask is None else response_mask).sum(1).to(scores.dtype)  # untrained tokens count
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
    total = torch.zeros_like(parts[:, 0])
    for r in range(parts.shape[1]):
        known = ~parts[:, r].isnan()
        advantages = grpo_advantages(parts[known, r], groups[known], config, alone)
        total[known] += advantages if weights is None else weights[r] * advantages
    return masked_whiten(total[:, None] * mask, mask)


def discounted_returns(rewards, mask, gamma: float):
    """Sum of the rewards from each token on, discounted; all [B, T], passing over tokens outside the mask."""
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)[0]


def reinforce_pp_advantages(rewards, mask, config, **_):
    """Discounted returns, whitened over the batch's tokens, [B, T]: REINFORCE++ (Hu 2025, arXiv 2501.03262)."""
    return masked_whiten(discounted_returns(rewards, mask, config.gamma), mask)


def reinforce_pp_baseline_advantages(scores, groups, mask, alone: float = 0.0, **_):
    """R - mean_g, whitened over the batch's tokens, [B, T]: REINFORCE++-baseline (the same paper)."""
    return masked_whiten(mean_advantages(scores, groups, alone)[:, None] * mask, mask)


def remax_advantages(rewards, baselines, mask, **_):
    """Return from each token on, minus the greedy completion's score, [B, T]: ReMax (Li 2023, arXiv 2310.10505).

    Advantages are 0 where no reward applies to that completion, so that its score is NaN.
    """
    return (discounted_returns(rewards, mask, 1.0) - baselines[:, None] * mask).nan_to_num(0.0)


def gae(rewards, values, response_mask, gamma: float, gae_lambda: float):
    """Generalized advantage estimation (Schulman 2016, eq. 16), all [B, T].

    Tokens outside the mask (tool output, pads) are passed over: V_{t+1} and A_{t+1} are carried through them.

    Returns:
        (advantages, returns) with returns = advantages + values, both 0 outside the mask.
    """
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


def gae_advantages(rewards, values, response_mask, mask, config, **_):
    """Generalized advantage estimation with a critic: (advantages, returns), [B, T] each; see `gae`."""
    if config.whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False)
    advantages, returns = gae(rewards, values, response_mask, config.gamma, config.gae_lambda)
    if config.whiten_advantages:
        advantages = masked_whiten(advantages, mask)
    return advantages, returns


@dataclass(frozen=True)
class Estimator:
    """An entry of ADVANTAGES: the function, and what it needs of a step beside scores and groups.

    All take by keyword what they need of one table: config, scores [B] (after KL and penalties), groups [B] (equal =
    same prompt), rewards [B, T], response_mask [B, T], mask [B, T] (its trained tokens), parts [B, R] (each reward
    by itself, NaN where it does not apply, and the penalty for length) and their weights [R], values [B, T] with a
    critic, baselines [B] with `greedy`. They return advantages [B] or [B, T]. A completion alone in its group has no
    baseline: it gets `alone` times its score, 0 unless given; verl's estimators have 1 there.
    """

    function: Callable
    by_token: bool = False  # reads `rewards` where they are paid, those of a conversation at each of its turns
    by_turn: bool = False  # can compare the answers of one turn
    critic: bool = False  # needs `values`, and returns (advantages, returns) of all sampled tokens
    greedy: bool = False  # needs `baselines`: the score of a greedy completion of each prompt
    each_reward: bool = False  # compares `parts`: a group teaches nothing only where it is equal in each of them

    def __call__(self, **table):
        return self.function(**table)


ADVANTAGES = {
    "gae": Estimator(gae_advantages, by_token=True, critic=True),
    "grpo": Estimator(grpo_advantages, by_turn=True),
    "mean": Estimator(mean_advantages, by_turn=True),
    "rloo": Estimator(rloo_advantages, by_turn=True),
    "opo": Estimator(opo_advantages),
    "gpg": Estimator(gpg_advantages),
    "gpg_verl": Estimator(gpg_verl_advantages),
    "maxrl": Estimator(maxrl_advantages),
    "gdpo": Estimator(gdpo_advantages, each_reward=True),
    "remax": Estimator(remax_advantages, by_token=True, greedy=True),
    "reinforce_pp": Estimator(reinforce_pp_advantages, by_token=True),
    "reinforce_pp_baseline": Estimator(reinforce_pp_baseline_advantages),
}


def estimator(config: BaseConfig) -> Estimator:
    """The entry of ADVANTAGES that --advantage names; a plain function there needs nothing special."""
    entry = ADVANTAGES[config.advantage]
    return entry if isinstance(entry, Estimator) else Estimator(entry)


def agreed_advantages(config: BaseConfig, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """`advantages_of` as the first process has it: sums on a GPU have no fixed order, and 0 may differ from 1.5e-8."""
    return {name: of_first_process(x) for name, x in advantages_of(config, batch, samples, kl_coef).items()}


def advantages_of(config: BaseConfig, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """KL to the reference, rewards after shaping, advantages, and returns with a critic, all [B, T].

    A completion to which no reward applies is in no baseline.
    """
    entry, table = estimator(config), sample_table(config, batch, samples, kl_coef)
    made = {"kl": table.pop("kl"), "rewards": table["rewards"]}
    made |= {name: torch.zeros_like(made["rewards"]) for name in ("advantages", "returns")[: 1 + entry.critic]}
    scored = torch.tensor(list(map(is_scored, samples)), device=table["mask"].device)
    if scored.any():
        weights = table.pop("weights")  # one for each reward, not for each row
        part = {name: x[scored] for name, x in table.items()}
        if config.turn_baseline == "turn":
            values = advantages_by_turn(config, part, answer_numbers(samples, batch["response_mask"])[scored])
        else:
            values = entry(config=config, **part, weights=weights)
        for name, x in zip(("advantages", "returns"), values if entry.critic else [values], strict=False):
            made[name][scored] = (x if x.dim() == 2 else x[:, None]) * part["mask"]
    return made


def sample_table(config: BaseConfig, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """What every estimator may read, see Estimator; and kl [B, T]."""
    response = batch["response_mask"]

    def column(values):
        return torch.tensor(values, dtype=torch.float32, device=response.device)

    kl = torch.zeros(response.shape, device=response.device)
    if "ref_logprobs" in batch and "old_logprobs" in batch:
        kl = kl_estimate(batch["old_logprobs"], batch["ref_logprobs"], config.kl_estimator[:2]) * response
    in_reward = kl_coef if config.kl_in == "reward" else 0.0
    rewards = shape_rewards(column([shaped_score(config, s) for s in samples]), kl, response, in_reward)
    if estimator(config).by_token:
        move_to_turns(rewards, samples)
    table = {"kl": kl, "rewards": rewards, "scores": rewards.sum(1), "mask": batch["loss_mask"]}
    table |= {"response_mask": response, "parts": column([reward_parts(config, s) for s in samples])}
    table["weights"] = [*samples[0].get("weights", {}).values(), 1.0]
    table["groups"] = torch.tensor([s["group"] for s in samples], device=response.device)
    if "values" in batch:
        table["values"] = batch["values"]
    if "baseline" in samples[0]:
        table["baselines"] = column([s["baseline"] for s in samples])
    return table


def answer_numbers(samples: list[dict], response_mask):
    """Which answer of its conversation a sampled token belongs to, from 1 on, [B, T]; 0 for all other tokens."""
    first = response_mask.shape[1] - max(len(s["response_ids"]) for s in samples)  # column in which responses begin
    numbers = torch.ones_like(response_mask)
    for row, sample in enumerate(samples):
        for end in sample.get("turn_ends", ())[:-1]:
            numbers[row, first + end :] += 1
    return numbers * response_mask


def advantages_by_turn(config: BaseConfig, table: dict, numbers):
    """Advantages [B, T] of each answer among those of the same number, by `answer_numbers`, in its group."""
    advantages = torch.zeros(numbers.shape, device=numbers.device)
    for number in range(1, int(numbers.max()) + 1):
        reached = (numbers == number).any(1)
        values = estimator(config)(config=config, **{name: x[reached] for name, x in table.items()})
        advantages[reached] += values[:, None] * (numbers[reached] == number)
    return advantages
