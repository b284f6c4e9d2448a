"""Intervals and paired tests from their formulas, independent of the programs under proof."""

import math
from fractions import Fraction

Z95 = 1.959963984540054  # normal quantile of 97.5 %


def share_interval(successes: int, n: int) -> list[float]:
    """Wilson's 95 % interval: the p at which (p - successes/n)^2 = z^2 p (1 - p) / n."""
    share, z2 = successes / n, Z95**2
    a, b, c = 1 + z2 / n, -(2 * share + z2 / n), share**2  # a p^2 + b p + c = 0
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
    return [max(0.0, low) if successes else 0.0, min(1.0, high) if successes < n else 1.0]


def t_inside(t: float, df: int) -> float:
    """P(|T| <= t) of Student's t with `df` degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(t_inside(2.0, 1), 6), round(t_inside(1.979930, 120), 6)
    (0.704833, 0.95)
    """
    angle = math.atan(t / math.sqrt(df))
    term = total = 1.0 if df % 2 == 0 else math.cos(angle)
    square = math.cos(angle) ** 2
    for k in range(2 + df % 2, df - 1, 2):
        term *= (k - 1) / k * square
        total += term
    if df % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if df > 1 else 0.0))


def mean_test(values: list) -> dict:
    """Mean, 95 % interval and two-sided p against 0 by Student's t, of two values or more; None if all are equal.

    >>> figures = mean_test([1.0, 2.0, 3.0, 6.0])
    >>> [round(x, 4) for x in (figures["value"], *figures["ci95"], figures["p"])]
    [3.0, -0.4375, 6.4375, 0.0689]
    """
    values, n = [*map(float, values)], len(values)
    mean = math.fsum(values) / n
    if len({*values}) < 2:
        return {"value": mean, "ci95": None, "p": None}
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1) / n)
    low, high = 0.0, 1e4  # of the quantile of 97.5 %
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, n - 1) < 0.95 else (low, middle)
    p = max(0.0, 1.0 - t_inside(abs(mean) / error, n - 1))
    return {"value": mean, "ci95": [mean - high * error, mean + high * error], "p": p}


def exact_p(better: int, worse: int) -> float:
    """Two-sided exact p of McNemar's test, computed with integers.

    >>> exact_p(1, 5)
    0.21875
    """
    n = better + worse
    tail = Fraction(sum(math.comb(n, k) for k in range(min(better, worse) + 1)), 2**n)
    return float(min(Fraction(1), 2 * tail))


def pass_at(scores: list, k: int) -> Fraction:
    """Pass@k of a row from n >= k samples of score 0 or 1 (Chen 2021, eq. 1)."""
    failed = len(scores) - int(sum(scores))
    return 1 - Fraction(math.comb(failed, k), math.comb(len(scores), k))


def unpaired_p(right: int, n: int, other_right: int, other_n: int) -> float:
    """Two-sided p of Fisher's exact test on two shares, computed with integers.

    >>> round(unpaired_p(3, 4, 1, 4), 6)
    0.485714
    """
    total = right + other_right
    ways = [math.comb(n, k) * math.comb(other_n, total - k) for k in range(max(0, total - other_n), min(n, total) + 1)]
    observed = math.comb(n, right) * math.comb(other_n, other_right)
    return float(Fraction(sum(x for x in ways if x <= observed), sum(ways)))


def share_figures(by_key: dict, higher_is_better: bool | None) -> dict:
    """The mean of rows' values, {row's key: value or None}, with Wilson's interval if all are 0 or 1, else with t's.

    Counts, of which neither higher nor lower is better, have none.
    """
    values = [x for x in by_key.values() if x is not None]
    figures = {"value": float(sum(values) / len(values)) if values else None, "n": len(values)}
    figures |= {"ci95": None, "interval": "none"}
    if values and {*values} <= {0, 1} and higher_is_better is not None:
        figures |= {"ci95": share_interval(int(sum(values)), len(values)), "interval": "Wilson"}
    elif len({*values}) > 1 and higher_is_better is not None:
        figures |= {"ci95": mean_test(values)["ci95"], "interval": "t"}
    return figures | {"values": by_key, "higher_is_better": higher_is_better}


def paired_figures(before: list[bool], after: list[bool]) -> dict:
    """Shares with their intervals, and McNemar's test, of two outcomes on the same rows."""
    n, better = len(before), sum(b and not a for a, b in zip(before, after, strict=True))
    worse = sum(a and not b for a, b in zip(before, after, strict=True))
    figures = {"rows": n, "before": sum(before) / n, "after": sum(after) / n}
    figures |= {"ci95_before": share_interval(sum(before), n), "ci95_after": share_interval(sum(after), n)}
    return figures | {"better": better, "worse": worse, "p": exact_p(better, worse)}


def difference_interval(better: int, worse: int, n: int) -> list[float]:
    """95 % interval of a difference of paired shares, with one row added to each side (Bonett and Price 2012)."""
    up, down = Fraction(better + 1, n + 2), Fraction(worse + 1, n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return [max(-1.0, float(up - down) - half), min(1.0, float(up - down) + half)]
