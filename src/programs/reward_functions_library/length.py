"""Lengths."""

import json
import math

from programs.reward_functions_library.contract import reward
from programs.reward_functions_library.correctness import math_equivalence
from programs.reward_functions_library.text_parts import _length


# ---- length, in words, or unit="characters" or "tokens"
@reward
def ideal_length(text, completion_ids=None, *, ideal=100, unit="words"):
    """max(0, 1 − |length − ideal| / ideal): [0, 1], w 0.1.
    >>> ideal_length(None, ["a b c", "a b c d"], ideal=4)
    [0.75, 1.0]"""
    return max(0.0, 1 - abs(_length(text, completion_ids, unit) - ideal) / ideal)


@reward
def min_length(text, completion_ids=None, *, minimum=50, unit="words"):
    """min(1, length / minimum): [0, 1], w 0.1. Padding pays, so pair it with no_repetition.
    >>> min_length(None, ["a b c", "a b c d e"], minimum=4)
    [0.75, 1.0]"""
    return min(1.0, _length(text, completion_ids, unit) / minimum)


@reward
def max_length_penalty(text, completion_ids=None, *, maximum=500, unit="words"):
    """−min(1, max(0, length − maximum) / maximum): [−1, 0], w 0.1 to 0.5.
    >>> max_length_penalty(None, ["a b c d", "a b c d e f"], maximum=4)
    [0.0, -0.5]"""
    return 0.0 - min(1.0, max(0, _length(text, completion_ids, unit) - maximum) / maximum)


@reward
def soft_overlong_punishment(text, completion_ids=None, *, max_length=20_480, cache=4_096):
    """DAPO eq. 13: 0 to L = max_length − cache, then (L − length) / cache, −1 past max_length: [−1, 0], w 1.
    Counts tokens of `completion_ids`, words without them; max_length is the generation limit.
    >>> soft_overlong_punishment(None, ["", ""], completion_ids=[[1] * 90, [1] * 101], max_length=100, cache=20)
    [-0.5, -1.0]"""
    length = _length(text, completion_ids, "words" if completion_ids is None else "tokens")
    return -1.0 if length > max_length else min(0.0, (max_length - cache - length) / max(cache, 1))


@reward(grades=True)
def cosine_scaled(text, answer, *, max_length=1000, correct=(0.5, 1.0), wrong=(-1.0, -0.5)):
    r"""e + (s − e)·(1 + cos(π·min(1, characters / max_length))) / 2, from s if empty to e (open-r1): [−1, 1], w 1.
    (s, e) = (1, 0.5) if math_equivalence holds, else (−1, −0.5). In place of correctness: short right answers earn
    most, long wrong ones lose least, which keeps exploration up, and lengthens them. `correct` and `wrong` are (low,
    high), and then the range: [wrong[0], correct[1]]. token_cosine_scaled counts tokens.
    >>> cosine_scaled(None, [r"\boxed{2}", r"\boxed{3}"], ["2", "2"], max_length=9)
    [0.5, -0.5]"""
    score = math_equivalence.core(text, answer)
    return None if score is None else _cosine(len(text), max_length, *(correct[::-1] if score else wrong))


def _cosine(length: float, limit: float, start: float, end: float) -> float:
    """Half a cosine from `start` at length 0 to `end` at the limit and above."""
    share = (1 + math.cos(math.pi * min(1.0, length / limit))) / 2
    return start * share + end * (1 - share)


@reward(grades=True)
def token_cosine_scaled(
    text, answer, completion_ids, *, max_length=1024, correct=(0.5, 1.0), wrong=(-1.0, -0.5), exceeded=-1.0
):
    r"""cosine_scaled over the tokens of `completion_ids`, and `exceeded` from max_length on: [−1, 1], w 1.

    The cosine reward of Demystifying Long Chain-of-Thought Reasoning (Yeo 2025, arXiv 2502.03373):
    η_min + (η_max − η_min)·(1 + cos(π·length / max_length)) / 2, and r_e where the length reaches max_length. Set that
    to the generation limit; a completion that is cut off then earns `exceeded`, right or wrong. With other options
    the range is [min(exceeded, wrong[0]), correct[1]].

    >>> ids = [[7] * 512, [7] * 512, [7] * 1024]
    >>> token_cosine_scaled(None, [r"\boxed{2}", r"\boxed{3}", r"\boxed{2}"], ["2"] * 3, completion_ids=ids)
    [0.75, -0.75, -1.0]
    """
    score = math_equivalence.core(text, answer)
    if score is None or len(completion_ids or ()) >= max_length:
        return score if score is None else exceeded
    return _cosine(len(completion_ids or ()), max_length, *(correct[::-1] if score else wrong))


def _kimi_scores(graded: list, prompts) -> list[float | None]:
    """Length rewards of (score, length) pairs; rows with one prompt form a group; without prompts, all rows do."""
    prompts = [None] * len(graded) if prompts is None else prompts
    keys = [json.dumps(prompt, sort_keys=True, default=repr) for prompt in prompts]
    lengths, scores = {}, []
    for key, (_, length) in zip(keys, graded, strict=True):
        lengths.setdefault(key, []).append(length)
    for key, (score, length) in zip(keys, graded, strict=True):
        low, high = min(lengths[key]), max(lengths[key])
        shaped = 0.5 - (length - low) / (high - low) if high > low else 0.0
        scores.append(None if score is None else shaped if score else min(0.0, shaped))
    return scores


@reward(grades=True, across=_kimi_scores)
def kimi_length(text, answer, completion_ids=None, *, unit="characters"):
    r"""λ = 0.5 − (length − min) / (max − min) over the completions of a prompt; wrong: min(0, λ): [−0.5, 0.5], w 0.2.

    The length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3; open-r1's `len_reward`): among the samples of a
    prompt short right ones gain, long ones lose, short wrong ones gain nothing; 0 where all have one length. Right is
    what math_equivalence says. Beside a correctness reward; the paper starts without it, and switches it on later. It
    needs the whole group in one call: a process or worker that scores completions one by one gets 0 for each.

    >>> kimi_length(None, [r"\boxed{2}", r"so \boxed{2}", r"thus, \boxed{2}", r"\boxed{3}"], ["2"] * 4)
    [0.5, 0.0, -0.5, 0.0]
    """
    return math_equivalence.core(text, answer), _length(text, completion_ids, unit)
