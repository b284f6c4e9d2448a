"""Pass rates of prompts: pass@k, groups with signal, and advice: RL, a warm start, or other prompts."""

import math
import statistics

from parts.foundation.messages import need

BINS = ((0.0, 0.1), (0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.9), (0.9, 1.0))  # 0 and 1 are counted apart
LEAST_SIGNAL = 0.2  # least share of groups with signal at which RL is worth its samples; our heuristic
MEND = {
    "RL now": "enough groups have both right and wrong answers",
    "warm start": "RL has nothing to reinforce: show the model solutions first (scripts/warm_start.py)",
    "easier prompts": "most prompts are never solved: begin with those that sometimes are, or with a warm start",
    "harder prompts": "nearly all prompts are solved: there is little left to learn from them",
}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples passes, if c of n did: 1 - C(n - c, k) / C(n, k) (Chen 2021, eq. 1).

    >>> pass_at_k(5, 2, 3), pass_at_k(4, 0, 2), pass_at_k(3, 1, 3)
    (0.9, 0.0, 1.0)
    """
    need(0 <= c <= n, f"got {c} passes of {n} samples; expected 0 to {n}")
    need(1 <= k <= n, f"got pass@{k} of {n} samples; expected k of 1 to n; try --n {max(k, 1)}")
    return float((math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k))


def group_signal(n: int, c: int, group: int) -> float:
    """Probability that a prompt's group of `group` samples has both passes and failures, if c of n samples passed.

    Unbiased for n >= group; else 1 - p^G - (1 - p)^G with p = c / n, which is too low on average.

    >>> group_signal(4, 2, 2), group_signal(2, 1, 3), group_signal(8, 8, 4)
    (0.6666666666666667, 0.75, 0.0)
    """
    if n >= group:
        return 1 - (math.comb(c, group) + math.comb(n - c, group)) / math.comb(n, group)
    p = c / n
    return 1 - p**group - (1 - p) ** group


def histogram(rates: list[float]) -> dict[str, int]:
    """Number of prompts by pass rate; rates 0 and 1 are separate, as their groups have no signal."""
    counts = {"0": sum(p == 0 for p in rates)}
    for low, high in BINS:
        counts[f"{low:g} to {high:g}"] = sum(low <= p < high and p > 0 for p in rates)
    return counts | {"1": sum(p == 1 for p in rates)}


def what_fits(rate: float, signal: float, within: float, low: float, high: float) -> str:
    """The key of MEND for a mean pass rate, the share of groups with signal, and that of prompts within the bounds."""
    if rate > high:
        return "harder prompts"
    if rate >= low and signal >= LEAST_SIGNAL:
        return "RL now"
    return "easier prompts" if within >= 0.1 else "warm start"


def describe_pass_rates(counts: list[tuple[int, int]], group: int, low: float, high: float) -> dict:
    """Statistics and advice for a run with groups of `group`, from (samples, passes) of each prompt.

    RL learns from prompts with a pass rate from `low` to `high`.
    """
    rates, fewest = [c / n for n, c in counts], min(n for n, _ in counts)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= fewest]
    signal = statistics.fmean(group_signal(n, c, group) for n, c in counts)
    within = statistics.fmean(low <= p <= high for p in rates)
    rate = statistics.fmean(rates)
    fits = what_fits(rate, signal, within, low, high)
    return {
        "prompts": len(counts),
        "samples": sum(n for n, _ in counts),
        "pass_rate": rate,
        "pass_at_k": {str(k): statistics.fmean(pass_at_k(n, c, k) for n, c in counts) for k in ks},
        "prompts_by_pass_rate": histogram(rates),
        "prompts_within_bounds": within,
        "group_size": group,
        "groups_with_signal": signal,
        "fits": fits,
        "why": MEND[fits],
    }
