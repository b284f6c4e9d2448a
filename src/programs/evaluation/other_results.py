"""Results of other programs, which --compare takes like results.json."""

import dataclasses
import json
import math
from pathlib import Path

from parts.evaluating.evaluation_results import read_report
from parts.evaluating.paired_tests import Values
from parts.foundation.messages import UserError, need, say
from parts.reading.scored_samples import OtherResults, completions_in, other_evaluations, pair_faults

COMPARED = (
    "expected results.json of evaluation.py, scored samples (JSON, JSONL, CSV, parquet, Inspect's .eval; a folder of "
    "them), or completions with --task"
)


def read_other(path: str) -> dict[str, OtherResults]:
    """{task: scored samples} of a file or folder; the newest file of a task counts."""
    results, unreadable = other_evaluations(Path(path))
    for text in unreadable:
        say(f"warning: {text}")
    by_task = {}
    for one in results:
        task = one.task if one.task != "samples" or len(results) == 1 else one.file.stem
        if task in by_task:
            say(f"note: {task}: {one.file} is compared, {by_task[task].file} is not")
        by_task[task] = one
    return by_task


def report_of(path: str, others: dict[str, OtherResults]) -> dict:
    """What results.json would have of scored samples for a comparison: the mean score of each row's samples."""
    tasks = {}
    for task, one in others.items():
        rows = one.samples[one.task]
        values = {metric: Values([mean_score(samples, metric) for samples in rows.values()]) for metric in one.metrics}
        tasks[task] = {"keys": [*rows], "values": {name: dataclasses.asdict(x) for name, x in values.items()}}
    return {"model": {"name": path}, "tasks": tasks}


def mean_score(samples: list[dict], metric: str) -> float | None:
    scores = [x for sample in samples if (x := sample["metrics"].get(metric)) is not None]
    got = f"got {metric} nan or infinite in row {samples[0]['key']}"
    need(all(map(math.isfinite, scores)), f"{got}; expected numbers; try leaving a score out where a row has none")
    return sum(scores) / len(scores) if scores else None


def read_either(path: str) -> tuple[dict, dict[str, OtherResults]]:
    """(Report, the scored samples that it is made of) of a results.json or of another program's results."""
    try:
        return read_report(path), {}
    except UserError as error:
        others = read_other(path) if Path(path).exists() else {}
        said = f"got {path} without scores of single rows" if Path(path).exists() else str(error).partition(";")[0]
        has_texts = not others and Path(path).is_file() and completions_in(Path(path))
        need(not has_texts, f"got {path}, completions without scores; {COMPARED}; try --task math")
        need(others, f"{said}; {COMPARED}")
        return report_of(path, others), others


def reports_to_compare(paths: list[str]) -> list[dict]:
    """The two reports after --compare; UserError if rows of one id are not the same rows."""
    (one, ones), (other, others) = map(read_either, paths)
    metrics = [[m for task in report["tasks"].values() for m in task["values"]] for report in (one, other)]
    got = f"got {paths[0]} with {', '.join(metrics[0])} and {paths[1]} with {', '.join(metrics[1])}"
    need({*metrics[0]} & {*metrics[1]}, f"{got}; expected a metric that both have; try renaming a column")
    for task in ones.keys() & others.keys():
        for fault in pair_faults(ones[task], others[task], ones[task].task):
            need("not paired" not in fault, f"got {paths[0]} and {paths[1]}: {fault}; expected the same rows")
            say(f"warning: {task}: {fault}")
    return [one, other]


def write_completions(path: str, folder: Path) -> Path | None:
    """Write a file's completions as rows that tasks read, and return that file; None for results and for no file."""
    rows = completions_in(Path(path)) if Path(path).name != "results.json" else []
    if not rows:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "completions.jsonl"
    file.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
    return file
