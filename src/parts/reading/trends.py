"""Trends of a series."""

import itertools
import math
import re
import statistics

TREND_STEPS = 10  # fewer: no trend is judged
ALARM = 0.006  # of flat series show a trend by chance; benchmarks/false_alarms.py counts them


def window(count: int) -> int:
    """Steps in the first and in the last stretch of a run."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch."""
    k = window(len(values))
    return statistics.median(values[:k]), statistics.median(values[-k:])


def persistence(values: list[float]) -> float:
    """Lag-1 autocorrelation of the noise, between 0 and 0.5, from the changes between steps: a trend does not count."""
    changes = [b - a for a, b in itertools.pairwise(values)]
    mean = statistics.fmean(changes)
    changes = [change - mean for change in changes]
    square = sum(change * change for change in changes)
    if square <= 1e-18 * max(map(abs, values)) ** 2 * len(values):  # a straight line
        return 0.0
    # of AR(1) noise the changes have the lag-1 autocorrelation (rho - 1) / 2
    return min(0.5, max(0.0, 1 + 2 * sum(a * b for a, b in itertools.pairwise(changes)) / square))


def noise(values: list[float]) -> float:
    """Scatter of a step, so that the median of k steps has the standard error 1.25 noise / sqrt k.

    Median and upper quartile of the distances of neighbours give it, which a trend only makes larger: the median times
    1.4826 / sqrt 2, the quartile times 0.8693 / sqrt 2, whichever is more, as a coarse score often has the distance 0.
    Noise that persists has sqrt(1 + rho) / (1 - rho) times the scatter of independent noise with these distances.
    """
    distances = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    quartile = distances[3 * (len(distances) - 1) // 4]
    rho = persistence(values)
    return max(1.4826 * statistics.median(distances), 0.8693 * quartile) / math.sqrt(2) * math.sqrt(1 + rho) / (1 - rho)


def standard_error(values: list[float]) -> float:
    """Standard error of the difference between the medians of the first and the last stretch."""
    return 1.25 * noise(values) * math.sqrt(2 / window(len(values)))


def errors_of_chance(count: int, choices: float = 1) -> float:
    """Standard errors that chance exceeds in a share ALARM of flat series, for the best of several `choices`.

    It is Student's t, by Hill's first terms, with `count` degrees of freedom, as the scatter is estimated too.
    """
    z = statistics.NormalDist().inv_cdf(1 - ALARM / 2 / choices)
    return z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)


def trend(values: list[float]) -> int:
    """1 where the last stretch lies above the first, -1 below, 0 where chance explains it or below 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    chance = errors_of_chance(len(values)) * standard_error(values)
    return 0 if abs(last - first) <= max(chance, 1e-9) else 1 if last > first else -1


def is_flat(values: list[float]) -> bool:
    """Whether 20 steps or more show no rise: neither a trend nor more than 0.02 between the medians."""
    first, last = ends(values) if values else (0.0, 0.0)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= 0.02


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


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


def repeats(text: str) -> float:
    """Share of the 6-character pieces of a text's first 1,000 characters that occurred before; 0 below 30."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0
