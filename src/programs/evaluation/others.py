"""Results of other programs, which --compare takes like results.json."""

import dataclasses
import math
from pathlib import Path

from parts.evaluating.evaluation_results import read_report
from parts.evaluating.paired_tests import Values
from parts.evaluating.scored_samples import OtherResults, other_evaluations, pair_faults
from parts.foundation.messages import UserError, need, say


def read_models(path: str) -> list[tuple[dict, dict[str, OtherResults]]]:
    """[(report, {task: the samples that it is made of})], one for each model of another program's results.

    A results.json has one model. The newest file of a task counts; a row's value is the mean over its samples.
    """
    try:
        return [(read_report(path), {})]
    except UserError as error:
        need(Path(path).exists(), str(error))
    results, unreadable = other_evaluations(Path(path))
    for text in unreadable:
        say(f"warning: {text}")
    got = f"got {path} without scores of single rows; expected results.json of evaluation.py or scored samples"
    need(results, f"{got}; to score completions, try --task math --data FILE --completion_column COLUMN")
    files, models = {one.file for one in results}, {}
    for one in results:
        report, others = models.setdefault(one.model, ({"model": {"name": one.model or path}, "tasks": {}}, {}))
        task = one.task if one.task != "samples" or len(files) == 1 else one.file.stem
        if task in others:
            say(f"note: {task}: {one.file} is compared, {others[task].file} is not")
        rows, others[task] = one.samples[one.task], one
        scores = {metric: [mean_score(samples, metric) for samples in rows.values()] for metric in one.metrics}
        values = {metric: Values(x, higher_is_better=one.higher_is_better(metric)) for metric, x in scores.items()}
        values = {name: dataclasses.asdict(x) for name, x in values.items()}
        report["tasks"][task] = {"keys": [*rows], "values": values, "doubts": [*one.doubts.values()]}
    return [*models.values()]


def mean_score(samples: list[dict], metric: str) -> float | None:
    """The mean of a metric over a row's samples, None if they have none; UserError for nan and infinity."""
    scores = [x for sample in samples if (x := sample["metrics"].get(metric)) is not None]
    got = f"got {metric} nan or infinite in row {samples[0]['key']}"
    need(all(map(math.isfinite, scores)), f"{got}; expected numbers; try leaving a score out where a row has none")
    return sum(scores) / len(scores) if scores else None


def reports_to_compare(paths: list[str]) -> list[dict]:
    """The reports of the two models after --compare; UserError if rows of one id are not the same rows."""
    if len({Path(path).resolve() for path in paths}) < len(paths):
        say("warning: got the same path twice; expected two models")
    models = [model for path in paths for model in read_models(path)]
    names = [report["model"]["name"] for report, _ in models]
    got = f"got {' and '.join(paths)} with results of {', '.join(names[:9])}"
    need(len(names) == 2, f"{got}; expected two models: one in each of two paths, or both in one file's column `model`")
    (one, ones), (other, others) = models
    metrics = [[m for task in report["tasks"].values() for m in task["values"]] for report in (one, other)]
    got = f"got {names[0]} with {', '.join(metrics[0])} and {names[1]} with {', '.join(metrics[1])}"
    need({*metrics[0]} & {*metrics[1]}, f"{got}; expected a metric that both have; try renaming a column")
    for task in ones.keys() & others.keys():
        for fault in pair_faults(ones[task], others[task], ones[task].task):
            need("not paired" not in fault, f"got {names[0]} and {names[1]}: {fault}; expected the same rows")
            say(f"warning: {task}: {fault}")
        first = next(iter(ones[task].samples[ones[task].task].values()))[0]
        for text in filter(None, (ones[task].repeated, others[task].repeated)):
            say(f"warning: {task}: {text}")
        if not first["prompt"] and first["key"].isdecimal():
            say(f"warning: {task}: rows without prompts are paired by their numbers; expected the same ids or order")
    return [one, other]
