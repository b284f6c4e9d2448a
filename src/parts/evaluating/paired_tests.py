"""Intervals, paired tests, pass@k."""

import math
import statistics
from dataclasses import dataclass

from parts.data.held_out import overlap_metric
from parts.environments.conversations import play_metrics
from parts.foundation.processes import np
from parts.rewards.rewards import known_scores
from parts.running.progress import reward_means

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); exact ends for 0 and n successes."""
    z, p = Z95, successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def share_gain(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float, float]:
    """(Gain, low, high) between two independent (share, count), 95 % interval by Newcombe 1998, method 10."""
    (low_a, high_a), (low_b, high_b) = (wilson_interval(p * n, n) for p, n in (before, after))
    below, above = (after[0] - low_b, high_a - before[0]), (high_b - after[0], before[0] - low_a)
    gain = after[0] - before[0]
    return gain, gain - math.hypot(*below), gain + math.hypot(*above)


def accuracy_figures(samples: list[dict]) -> dict[str, float]:
    """eval/accuracy, the share of samples with full marks (1 or more) from the first reward, and its 95 % interval."""
    values = [next(iter(s["rewards"].values())) for s in samples]
    right = sum(value is not None and value >= 1.0 for value in values)
    low, high = wilson_interval(right, len(samples))
    return {"eval/accuracy": right / len(samples), "eval/accuracy_low": low, "eval/accuracy_high": high}


def held_out_figures(samples: list[dict], lengths: list[int], rows: list[dict]) -> dict[str, float]:
    """Metrics eval/…: mean of each reward and of the score, accuracy, length, rows; of conversations turns, calls."""
    figures = {f"eval/{name}": mean for name, mean in reward_means(samples).items()} | accuracy_figures(samples)
    if scores := known_scores(samples):
        figures["eval/score"] = statistics.fmean(scores)
    figures |= {"eval/length_mean": statistics.fmean(lengths), "eval/rows": len(samples)} | overlap_metric(rows)
    if "talk" in samples[0]:
        played = play_metrics([s["talk"] for s in samples])
        figures |= {"eval/turns_mean": played["rollout/turns_mean"], "eval/calls_mean": played["tool/calls_mean"]}
    return figures


def mcnemar_exact(better: int, worse: int) -> float:
    """Two-sided exact p of a split of the differing pairs at least as uneven (McNemar 1947), binomial with 1/2.

    >>> mcnemar_exact(9, 0)
    0.00390625
    """
    n, tail = better + worse, sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_proportion_interval(better: int, worse: int, n: int) -> tuple[float, float]:
    """95 % interval of a difference of paired proportions, with one row added to each side (Bonett and Price 2012)."""
    up, down = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def rows_needed(difference: float, stderr: float, n: int) -> int | None:
    """Rows needed to find a difference at p < 0.05 in 4 of 5 runs, from its standard error over n rows."""
    return math.ceil(n * ((Z95 + Z_POWER) * stderr / difference) ** 2) if difference else None


@dataclass
class Values:
    """One metric over the rows: the mean of `top`, or f(sum of top / sum of bottom); None means not applicable."""

    top: list
    bottom: list | None = None
    exp: bool = False  # f is exp, as for perplexities, else the identity
    higher_is_better: bool | None = True

    def of(self, ratio):
        """f of a number or array."""
        with np.errstate(over="ignore"):  # callers handle inf
            return np.exp(ratio) if self.exp else ratio

    def columns(self, rows) -> list[list[float]]:
        """[top, bottom] of some rows."""
        return [[self.top[i] for i in rows], [1.0 if self.bottom is None else self.bottom[i] for i in rows]]

    def is_proportion(self) -> bool:
        """Whether all values are 0 or 1. Counts, such as the number of turns, are never proportions."""
        counts = self.bottom is not None or self.exp or self.higher_is_better is None
        return not counts and all(x in (0, 1) for x in self.top if x is not None)

    def mean(self, top: list[float], bottom: list[float]) -> float:
        """f(sum of top / sum of bottom); infinite if that overflows."""
        try:
            return float(self.of(math.fsum(top) / math.fsum(bottom)))
        except OverflowError:
            return math.inf


def bootstrap(sides: list[tuple[Values, list, list]], samples: int, seed: int) -> list:
    """Values [<= samples] of each (metric, top, bottom), from samples that draw the same rows of all.

    Samples in which something would be divided by 0 are left out.
    """
    columns = [column for _, *pair in sides for column in pair]
    table, rng = np.asarray(columns, dtype=float).T, np.random.default_rng(seed)  # [n, columns]
    n, step, sums = len(table), max(1, 2**22 // max(1, len(table))), []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, samples, step):
            picked = rng.integers(0, n, size=(min(step, samples - start), n))
            sums.append(table[picked].sum(axis=1))
        sums = np.concatenate(sums)
        sums = sums[(sums[:, 1::2] != 0).all(axis=1)]
        return [metric.of(sums[:, 2 * i] / sums[:, 2 * i + 1]) for i, (metric, *_) in enumerate(sides)]


def middle_95(draws, n: int) -> list[float]:
    """The bounds of the middle 95 % of bootstrap draws of n rows, widened as for Student's t (Hesterberg 2015, 3.3)."""
    z, df = Z95, n - 1
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)  # Abramowitz and Stegun, 26.7.5
    tail = statistics.NormalDist().cdf(-t * math.sqrt(n / df))
    with np.errstate(invalid="ignore"):
        return [float(x) for x in np.quantile(draws, [tail, 1 - tail])]


def swapped_p(sides: tuple[Values, Values], columns: list[list[float]], observed: float, samples: int, seed: int):
    """Two-sided p of a difference: each row's values, (top, bottom) of each side, may be swapped (Fisher 1935, 21).

    Of all ways to swap them if these are few, else of `samples` draws; exact for any number of rows.
    """
    table, rng = np.asarray(columns, dtype=float).T, np.random.default_rng(seed)  # [n, 4]
    change, sums, far = table[:, 2:] - table[:, :2], table.sum(axis=0), 0
    change, least = change[change.any(axis=1)], abs(observed) * (1 - 1e-9) - 1e-14 * abs(table).max()
    few, n = 2 ** len(change) <= samples, len(change)
    count = 2**n if few else samples
    for ways in np.array_split(np.arange(count), 1 + count * n // 2**22):
        moved = (ways[:, None] >> np.arange(n) & 1 if few else rng.integers(0, 2, (len(ways), n), np.int8)) @ change
        with np.errstate(all="ignore"):  # nan counts as far
            one, two = (sides[i].of(x[:, 0] / x[:, 1]) for i, x in enumerate((sums[:2] + moved, sums[2:] - moved)))
            far += int((~(abs(two - one) < least)).sum())
    return far / count if few else (far + 1) / (count + 1)


def summarize(values: Values, samples: int, seed: int) -> dict:
    """Value, standard error and 95 % interval of a metric, and how the interval was computed."""
    rows = [i for i, x in enumerate(values.top) if x is not None]
    top, bottom = values.columns(rows)
    result = {"value": None, "stderr": None, "ci95": None, "n": len(rows), "of": len(values.top), "interval": "none"}
    result["higher_is_better"] = values.higher_is_better
    if not rows or not sum(bottom):
        return result
    value, n = values.mean(top, bottom), len(rows)
    if not math.isfinite(value):
        return result | {"interval": "too large for a number"}
    result["value"] = value
    if values.is_proportion():
        result |= {"ci95": list(wilson_interval(sum(top), n)), "interval": "wilson"}
    elif n > 1:
        (draws,) = bootstrap([(values, top, bottom)], samples, seed)
        with np.errstate(over="ignore", invalid="ignore"):
            result |= {"ci95": middle_95(draws, n), "interval": "bootstrap", "stderr": float(draws.std(ddof=1))}
    if n > 1 and values.bottom is None and not values.exp:
        with np.errstate(over="ignore"):
            result["stderr"] = float(np.std(top, ddof=1) / math.sqrt(n))
    if not all(map(math.isfinite, [result["stderr"] or 0.0, *(result["ci95"] or [])])):
        result |= {"ci95": None, "stderr": None, "interval": "too large for a number"}
    return result


def compare_values(before: Values, after: Values, samples: int, seed: int) -> dict | None:
    """Paired test of two runs' values on the same rows, in the same order.

    None if no row has both values, there is nothing to divide by, or a figure overflows.
    """
    rows = [i for i, pair in enumerate(zip(before.top, after.top, strict=True)) if None not in pair]
    n = len(rows)
    if not n:
        return None
    (a, a_base), (b, b_base) = before.columns(rows), after.columns(rows)
    if not sum(a_base) or not sum(b_base):
        return None
    one, two = before.mean(a, a_base), after.mean(b, b_base)
    result = {"before": one, "after": two, "difference": two - one, "rows": n}
    if not math.isfinite(one) or not math.isfinite(two - one):
        return None
    if before.is_proportion() and after.is_proportion():
        up, down = (sum(x < y for x, y in pair) for pair in (zip(a, b, strict=True), zip(b, a, strict=True)))
        result |= {"test": "exact McNemar", "p": mcnemar_exact(up, down), "better": up, "worse": down}
        result["ci95"] = list(paired_proportion_interval(up, down, n))
        result |= {"before_ci95": list(wilson_interval(sum(a), n)), "after_ci95": list(wilson_interval(sum(b), n))}
        stderr = math.sqrt(max(0.0, (up + down) / n - ((up - down) / n) ** 2) / n)
    elif n > 1:
        sides = bootstrap([(before, a, a_base), (after, b, b_base)], samples, seed)
        with np.errstate(over="ignore", invalid="ignore"):
            draws = sides[1] - sides[0]
            stderr = float(draws.std(ddof=1))
        if not math.isfinite(stderr):
            return None
        for name, drawn in (("ci95", draws), ("before_ci95", sides[0]), ("after_ci95", sides[1])):
            result[name] = middle_95(drawn, n)
        p = swapped_p((before, after), [a, a_base, b, b_base], result["difference"], samples, seed)
        result |= {"test": "paired permutation", "p": p}
    else:
        return result | {"test": "none", "p": None, "ci95": None, "rows_needed": None}
    # even 9 better and none worse of 9, with a standard error of 0, needs the 6 rows that make p < 0.05
    needed = rows_needed(result["difference"], stderr, n)
    return result | {"rows_needed": None if needed is None else max(needed, 6)}


def other_scale(before: list[float], after: list[float]) -> bool:
    """Whether one side seems to have shares and the other percent, or one 0 and 1 and the other -1 and 1."""
    low, high = sorted((before, after), key=lambda values: max(map(abs, values)))
    signed = any(-1 in x and {*x} <= {-1, 1} and 0 in y and {*y} <= {0, 1} for x, y in ((low, high), (high, low)))
    return signed or (0 < max(map(abs, low)) <= 1 < statistics.fmean(high) and 10 < max(high) <= 100)


def ends_of(higher_is_better: bool | None) -> tuple[str, str]:
    """What a row is called whose value rises, and one whose value falls."""
    return ("better", "worse") if higher_is_better else ("higher", "lower")


def verdict_of(name: str, result: dict, higher_is_better: bool | None, doubts=()) -> str:
    """The comparison in words; doubts about the rows take the place of the verdict."""
    change = f"{name}: {result['before']:.4g} -> {result['after']:.4g}, difference {result['difference']:+.4g}"
    if result["p"] is None:
        return f"{change}; one row shows nothing"
    low, high = result["ci95"]
    up, down = ends_of(higher_is_better)
    counts = f", {result['better']} rows {up}, {result['worse']} {down}" if "better" in result else ""
    change += f", 95 % interval [{low:+.4g}, {high:+.4g}], p = {result['p']:.2g} ({result['test']}, "
    change += f"{result['rows']} rows{counts}). "
    if doubts:
        return f"{change}No verdict: {'; '.join(doubts)}."
    if result["p"] < 0.05:
        up = result["difference"] > 0
        return change + {None: "A real change.", up: "A real gain."}.get(higher_is_better, "A real loss.")
    if not result["rows_needed"]:
        return change + "No difference at all."
    return change + f"Within the noise; to see a difference of this size needs about {result['rows_needed']} rows."
