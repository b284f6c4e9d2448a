"""Evaluations of other programs: recount their samples, and compare the figures stated for them."""

import math
import re
from fractions import Fraction
from pathlib import Path
from statistics import stdev

from parts.evaluating.scored_samples import OtherResults, column_name
from programs.prove.exact_figures import Z95, pass_at, share_figures

AROUND = r"(mean|average|avg|overall|total)_|_(mean|rate|percent|pct)"  # around a metric's name
SAME = ["accuracy", "acc", "score", "pass", "pass@1"]  # what the first metric may be called too
COUNT = r"n|total|count|(n|num|total)_(samples|examples|rows|questions|problems|scores)"
RIGHT = "(n_|num_|total_)?(correct|right|passed|solved)"  # numbers of rows with full marks
UNCERTAINTY = "(?P<error>stderr|std_err|se|sem|standard_error)|(confidence_)?(ci|interval)(_?95)?|95_?ci"
STATED_P = r"p(_?value|_?val)?|(.+[._])?mcnemar[._](exact_)?p(_?value|_?val)?"


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
        if metric == results.metrics[0] and all({*x} <= {0, 1} for x in scores.values()):
            recount_passes(results, [*scores.values()], proof)
    return recounted


def recount_passes(results: OtherResults, scores: list[list], proof) -> None:
    """Add findings where a stated pass@k, k above 1, is neither that of all samples nor that of the first k."""
    for k in range(2, 1 + min(map(len, scores))):
        shares = [sum(by(x, k) for x in scores) / len(scores) for by in (pass_at, lambda x, k: max(x[:k]))]
        for name in (f"pass@{k}", f"pass_at_{k}"):
            file, _, given = stated_value(results, name) or ("", "", None)
            if file and not any(is_stated(given, x) for x in shares):
                says = f"{results.name}: {file.name} says {name} {given:g}"
                proof.find(f"{says}; the samples give {float(shares[0]):g} on {len(scores)} rows")


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
    values = [x for x in figures["values"].values() if x is not None]
    is_main = metric == results.metrics[0] and counts[0] == counts[2]  # one sample a row
    right = sum(values) if is_main and {*values} <= {0, 1} else None
    error = stdev(map(float, values)) / len(values) ** 0.5 if is_main and len(values) > 1 else 0
    head, _, way = own.partition(",")  # lm-eval's filter
    for n, x in beside.items():
        if re.fullmatch(COUNT, n) and is_number(x) and x not in counts:
            proof.find(f"{says} {n} {x}; there are samples of {counts[0]} rows")
        if re.fullmatch(RIGHT, n) and right is not None and isinstance(x, int) and x > 1 and x != right:
            proof.find(f"{says} {n} {x}; the samples give {right}")
        kind = re.fullmatch(f"({re.escape(head)}_)?({UNCERTAINTY})", n.removesuffix(f",{way}"))
        low, high = x if isinstance(x, list) and len(x) == 2 and all(map(is_number, x)) else (given, given)
        width = high - low if low <= given <= high else 0  # else it is of another figure, such as a difference
        width = 2 * Z95 * x if kind and kind["error"] and is_number(x) else width
        # other formulas, percent and dependent rows give other widths, but not these
        if kind and error and width and not any(0.4 < width / (2 * Z95 * error * y) < 5 for y in (1, 100)):
            proof.find(f"{says} {n} {x}; the samples give a standard error of {error:.2g}")


def compare_stated_p(all_results: list[OtherResults], test: dict, proof) -> None:
    """Add a finding where a stated p is below a tenth of the exact one, which other tests, one-sided too, are not."""
    stated = {
        x: f"{file.name} says {name} {x:g}"
        for results in all_results
        for file, figures in results.stated.items()
        for name, x in figures.items()
        if is_number(x) and re.fullmatch(STATED_P, name)
    }
    if len(stated) == 1 and 10 * max(*stated, 0.001) < test["p"]:  # less may be rounded, or of few permutations
        proof.find(f"{stated.popitem()[1]}; {test['test']} gives {test['p']:.2g}")
