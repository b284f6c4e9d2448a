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


def exact_p(better: int, worse: int) -> float:
    """Two-sided exact p of McNemar's test, computed with integers.

    >>> exact_p(1, 5)
    0.21875
    """
    n = better + worse
    tail = Fraction(sum(math.comb(n, k) for k in range(min(better, worse) + 1)), 2**n)
    return float(min(Fraction(1), 2 * tail))


def unpaired_p(right: int, n: int, other_right: int, other_n: int) -> float:
    """Two-sided p of Fisher's exact test on two shares, computed with integers.

    >>> round(unpaired_p(3, 4, 1, 4), 6)
    0.485714
    """
    total = right + other_right
    ways = [math.comb(n, k) * math.comb(other_n, total - k) for k in range(max(0, total - other_n), min(n, total) + 1)]
    observed = math.comb(n, right) * math.comb(other_n, other_right)
    return float(Fraction(sum(x for x in ways if x <= observed), sum(ways)))


def share_figures(by_key: dict, is_count: bool = False) -> dict:
    """The mean of rows' values, {row's key: value or None}; with an interval where they are shares, all 0 or 1."""
    values = [x for x in by_key.values() if x is not None]
    figures = {"value": float(sum(values) / len(values)) if values else None, "n": len(values), "ci95": None}
    if values and {*values} <= {0, 1} and not is_count:
        figures["ci95"] = share_interval(int(sum(values)), len(values))
    return figures | {"values": by_key, "is_count": is_count}


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
