"""From scores to rewards: the KL term, the penalties for length, groups that teach nothing."""

import math

from parts.foundation.settings import BaseConfig


def shape_rewards(scores, kl, response_mask, kl_coef: float):
    """Per-token rewards [B, T]: -kl_coef * kl everywhere, plus scores [B] on the last response token."""
    import torch

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


def all_equal(config: BaseConfig, group: list[dict]) -> bool:
    """Whether a group's scored completions score alike (GDPO: by each reward): comparing them teaches nothing."""
    each, scored = config.advantage == "gdpo", [s for s in group if any(v is not None for v in s["rewards"].values())]
    return len({(s["score"], *(s["rewards"].values() if each else ())) for s in scored}) <= 1


def reward_parts(config: BaseConfig, sample: dict) -> list[float]:
    """Each reward function's own value, NaN where it does not apply, and the penalty for length as one more."""
    own = [math.nan if v is None else v for v in sample["rewards"].values()]
    return [*own, -length_penalty(config, sample)]
