"""Evaluations of other programs: recount their samples, and compare the figures stated for them."""

import math
import re
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

from parts.evaluating.scored_samples import OtherResults, column_name
from programs.prove.exact_figures import Z95, share_figures, unpaired_p
from programs.prove.proof import shown

AROUND = r"(mean|average|avg|overall|total)_|_(mean|rate|percent|pct)"  # around a metric's name
SAME = ["accuracy", "acc", "score", "pass", "pass@1"]  # what the first metric may be called too
COUNT = r"n|total|count|(n|num|total)_(samples|examples|rows|questions|problems|scores)"
RIGHT = "(n_|num_|total_)?(correct|right|passed|solved)"  # numbers of rows with full marks
PASS_AT = r"(?<!\S)(pass(?:@|_at_)(\d+))(?!\S)"


def stated_value(results: OtherResults, metric: str) -> tuple[Path, str, float] | None:
    """(File, dotted name, figure) that states a metric: the least nested one; None without one or with several."""
    results_name, places = column_name(results.model or results.file.stem), {}
    names = {metric, metric.rpartition(".")[2], *(SAME if metric == results.metrics[0] else [])}
    for file, figures in results.stated.items():
        for name, x in figures.items():
            place, last = column_name(f"{file.stem}.{name}"), name.removesuffix(f".{results_name}").rpartition(".")[2]
            last = last.removeprefix(f"{results_name}_").removesuffix(f"_{results_name}")
            is_own = (file == results.file and not results.model) or results.siblings < 2
            is_own = is_own or re.search(rf"(?<![a-z0-9]){re.escape(results_name)}(?![a-z0-9])", place)
            if results.task != "samples":  # lm-eval has one file of figures for all tasks
                is_own = f".{column_name(results.task)}." in place
            is_count = isinstance(x, int) and x > 1 and re.fullmatch(RIGHT, last)
            if is_own and is_number(x) and not is_count and re.sub(AROUND, "", last) in names:
                places.setdefault(name.count("."), []).append((file, name, x))
    best = places[min(places)] if places else []
    return best[0] if len({x for _, _, x in best}) == 1 else None


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def is_stated(given: float, counted: float) -> bool:
    """Whether a figure, as it is or in percent, is the counted one, rounded to its digits, at least two of a share."""
    for scale, fewest in ((1, 2), (100, 0)):
        digits = max(fewest, len(f"{given:.12g}".partition(".")[2]))
        if abs(given - scale * counted) <= 0.51 * 10.0**-digits:
            return True
    return False


def recount_other(results: OtherResults, proof) -> dict:
    """{(task, metric): recounted figures} of one file; findings where what is stated for it differs."""
    rows, recounted = results.samples[results.task], {}
    proof.findings += results.repeated
    for metric in results.metrics:
        scores = {key: [x["metrics"].get(metric) for x in samples] for key, samples in rows.items()}
        scores = {key: [x for x in values if x is not None] for key, values in scores.items()}
        if odd := sum(not math.isfinite(x) for values in scores.values() for x in values):
            proof.find(f"{results.name}, {metric}: {odd} scores are nan or infinite")
            continue
        by_key = {key: Fraction(sum(map(Fraction, x)), len(x)) if x else None for key, x in scores.items()}
        if not any(scores.values()):
            continue
        figures = recounted[results.task, metric] = share_figures(by_key, results.higher_is_better(metric))
        count = sum(metric in x["metrics"] for samples in rows.values() for x in samples)
        compare_stated(results, metric, figures, (len(rows), figures["n"], count, results.usual), proof)
        if metric == results.metrics[0] and all({*x} <= {0, 1} for x in scores.values()):
            recount_passes(results, scores, proof)
    return recounted


def recount_passes(results: OtherResults, scores: dict[str, list], proof) -> None:
    """Add findings where a stated pass@k with k above 1 is not that of the samples (Chen 2021, eq. 1)."""
    names = " ".join(name.rpartition(".")[2] for figures in results.stated.values() for name in figures)
    for name, k in sorted({(name, int(k)) for name, k in re.findall(PASS_AT, names)}):
        if 1 < k <= min(map(len, scores.values())):
            missed = {
                key: Fraction(math.comb(len(x) - int(sum(x)), k), math.comb(len(x), k)) for key, x in scores.items()
            }
            figures = share_figures({key: 1 - x for key, x in missed.items()}, True)
            compare_stated(results, name, figures, (len(scores), sum(map(len, scores.values())), results.usual), proof)


def compare_stated(results: OtherResults, metric: str, figures: dict, counts: tuple, proof) -> None:
    """Add findings where the stated value of a metric, or a number of rows beside it, is not that of the samples."""
    stated = stated_value(results, metric)
    if stated is None:
        proof.not_measured.append(f"{results.name}, {metric}: no file states a single figure for it")
        return
    file, name, given = stated
    says, (parent, _, own) = f"{results.name}, {metric}: {file.name} says", name.rpartition(".")
    if not is_stated(given, figures["value"]):
        proof.find(f"{says} {name} {given:g}; the samples give {figures['value']:g} on {figures['n']} rows")
    beside = {n.removeprefix(f"{parent}."): x for n, x in results.stated[file].items() if n.startswith(parent)}
    beside["n_samples"] = results.stated[file].get(f"n_samples.{results.task.lower()}.effective")  # lm-eval's
    width = width_of(figures)
    full = sum(x for x in figures["values"].values() if x is not None)
    for n, x in beside.items():
        if re.fullmatch(COUNT, n) and is_number(x) and x not in counts:
            proof.find(f"{says} {n} {x}; there are samples of {counts[0]} rows")
        if re.fullmatch(RIGHT, n) and isinstance(x, int) and x > 1 and x not in (full, full * results.usual):
            proof.find(f"{says} {n} {x}; the samples give {float(full):g}")
        spread = stated_width(n, x, own) if n.startswith(own) or metric == results.metrics[0] else None
        ratio = spread / width / (100 if given > 1 >= figures["value"] else 1) if width and spread is not None else 1
        if not 0.5 <= ratio <= 3:  # other formulas give other widths, but not these
            interval = f"{figures['interval']}'s interval of the samples, {shown(figures['ci95'])}"
            proof.find(f"{says} {n} {x}, which makes an interval {ratio:.2g} times as wide as {interval}")


def width_of(figures: dict) -> float:
    """The width of the 95 % interval; 0 without one, and for shares of 0 and 1, about which formulas disagree."""
    low, high = figures["ci95"] or (0, 0)
    return high - low if figures["interval"] == "t" or 0 < figures["value"] < 1 else 0.0


def stated_width(name: str, x, own: str) -> float | None:
    """The width of the 95 % interval that a figure beside the metric `own` states; None if it is none."""
    metric, _, way = own.partition(",")
    name = name.removesuffix(f",{way}").removeprefix(f"{metric}_")
    if re.fullmatch("stderr|std_err|se|sem|standard_error", name) and is_number(x):
        return 2 * Z95 * x
    is_pair = isinstance(x, list) and len(x) == 2 and all(map(is_number, x))
    return x[1] - x[0] if is_pair and re.fullmatch("(confidence_)?(ci|interval)(_?95)?|95_?ci", name) else None


def compare_stated_test(all_results: list[OtherResults], test: dict, rights: list[tuple], proof) -> None:
    """Add findings where a stated difference of two models, or its p, is not that of their common rows.

    `rights` are (rows with full marks, rows) of each model. A p may be of another test, one-sided or of no pairs.
    """
    stated = [
        (file.name, name.rpartition(".")[2], x)
        for results in all_results
        for file, figures in results.stated.items()
        for name, x in figures.items()
        if is_number(x)
    ]
    for kind in ("difference|diff|delta", "(exact_)?(mcnemar_)?p(_?val(ue)?)?|p_mcnemar|mcnemar"):
        given = [entry for entry in stated if re.fullmatch(kind, entry[1])]
        if len({x for *_, x in given}) != 1:
            continue
        file, name, x = given[0]
        if kind[0] == "d":
            if not is_stated(abs(x), abs(test["difference"])):
                proof.find(f"{file} says {name} {x:g}; the common rows give {test['difference']:+.3f}")
            continue
        fisher = unpaired_p(*rights[0], *rights[1])
        pairs = [(normal_size(p), normal_size(q)) for p in (x, min(1.0, 2 * x)) for q in (test["p"], fisher)]
        if not 0 <= x <= 1 or all(abs(a - b) > max(0.5, 0.15 * b) for a, b in pairs):
            proof.find(
                f"{file} says {name} {x:g}; {test['test']} gives {test['p']:.2g}, Fisher's without pairs {fisher:.2g}"
            )


def normal_size(p: float) -> float:
    """The absolute normal deviate of a two-sided p."""
    return -NormalDist().inv_cdf(min(max(p, 1e-300), 1.0) / 2)
