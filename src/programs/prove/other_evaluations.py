"""Evaluations of other programs: recount their samples, and compare the figures stated for them."""

import math
import re
from fractions import Fraction
from pathlib import Path

from parts.evaluating.scored_samples import OtherResults, column_name
from programs.prove.exact_figures import share_figures

AROUND = r"(mean|average|avg|overall|total)_|_(mean|rate|percent|pct)"  # around a metric's name
SAME = ["accuracy", "acc", "score", "pass", "pass@1"]  # what the first metric may be called too
COUNT = r"n|total|count|(n|num|total)_(samples|examples|rows|questions|problems|scores)"


def stated_value(results: OtherResults, metric: str) -> tuple[Path, str, float] | None:
    """(File, dotted name, figure) that states a metric: the least nested one; None without one or with several."""
    results_name, places = column_name(results.model or results.file.stem), {}
    names = {metric, metric.rpartition(".")[2], *(SAME if metric == results.metrics[0] else [])}
    for file, figures in results.stated.items():
        for name, x in figures.items():
            place, last = column_name(f"{file.stem}.{name}"), name.rpartition(".")[2].removeprefix(f"{results_name}_")
            is_own = (file == results.file and not results.model) or results.siblings < 2
            is_own = is_own or re.search(rf"(?<![a-z0-9]){re.escape(results_name)}(?![a-z0-9])", place)
            if results.task != "samples":  # lm-eval has one file of figures for all tasks
                is_own = f".{column_name(results.task)}." in place
            is_count = isinstance(x, int) and x > 1 and last in ("correct", "right", "passed", "solved")
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
    if results.repeated:
        proof.find(results.repeated)
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
    return recounted


def compare_stated(results: OtherResults, metric: str, figures: dict, counts: tuple, proof) -> None:
    """Add findings where the stated value of a metric, or a number of rows beside it, is not that of the samples."""
    stated = stated_value(results, metric)
    if stated is None:
        proof.not_measured.append(f"{results.name}, {metric}: no file states a single figure for it")
        return
    file, name, given = stated
    says, parent = f"{results.name}, {metric}: {file.name} says", name.rpartition(".")[0]
    if not is_stated(given, figures["value"]):
        proof.find(f"{says} {name} {given:g}; the samples give {figures['value']:g} on {figures['n']} rows")
    beside = {n.removeprefix(f"{parent}."): x for n, x in results.stated[file].items() if n.startswith(parent)}
    beside["n_samples"] = results.stated[file].get(f"n_samples.{results.task.lower()}.effective")  # lm-eval's
    for n, x in beside.items():
        if re.fullmatch(COUNT, n) and is_number(x) and x not in counts:
            proof.find(f"{says} {n} {x}; there are samples of {counts[0]} rows")
