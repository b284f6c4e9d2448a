"""Trends of a series."""

import itertools
import math
import re
import statistics

from parts.finding_thresholds import TREND_STEPS


def window(count: int) -> int:
    """Steps in the first and in the last stretch of a run."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch."""
    k = window(len(values))
    return statistics.median(values[:k]), statistics.median(values[-k:])


def standard_error(values: list[float]) -> float:
    """Standard error of the difference between the medians of the first and the last stretch.

    The scatter of a step is 1.4826 times the median distance of neighbours over sqrt 2, which a trend only makes
    larger; the median of k steps has the standard error 1.25 scatter / sqrt k.
    """
    differences = [abs(b - a) for a, b in itertools.pairwise(values)]
    scatter = 1.4826 * statistics.median(differences) / math.sqrt(2)
    return 1.25 * scatter * math.sqrt(2 / window(len(values)))


def trend(values: list[float]) -> int:
    """1 where the last stretch lies above the first, -1 below, 0 within 3 standard errors or below 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    return 0 if abs(last - first) <= max(3 * standard_error(values), 1e-9) else 1 if last > first else -1


def is_flat(values: list[float], slack: float = 0.02) -> bool:
    """Whether 20 steps or more show no rise: neither a trend nor more than `slack` between the medians."""
    first, last = ends(values) if values else (0.0, 0.0)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= slack


def onset(found: dict[int, float]) -> int:
    """The first step at which a series with a trend is half way; the last step of one without."""
    steps = sorted(found)
    values = [found[step] for step in steps]
    way = trend(values)
    if not way:
        return steps[-1]
    middle = sum(ends(values)) / 2
    return next(step for step, value in zip(steps, values, strict=True) if way * (value - middle) >= 0)


def forecast(p: float, group: int) -> float:
    """Expected share of groups whose 0/1 rewards are all equal, at pass rate p."""
    return p**group + (1 - p) ** group


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the form."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def repeats(text: str) -> float:
    """Share of the 6-character pieces of a text's first 1,000 characters that occurred before; 0 below 30."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0
