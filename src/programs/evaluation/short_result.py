"""A result in short, for --out_json: one flat JSON object of one metric."""

import json
from pathlib import Path

from parts.foundation.messages import need, suggest
from parts.running.output_folder import write_text
from programs.evaluation.settings import Config

OF_ONE = {"n": "n", "accuracy": "value", "ci95": "ci95", "stderr": "stderr"}  # name: its key in results.json
OF_TWO = {  # name: its key in comparison.json
    **{"n": "rows", "accuracy": "after", "ci95": "after_ci95", "accuracy_before": "before"},
    **{"ci95_before": "before_ci95", "difference": "difference", "difference_ci95": "ci95", "p_value": "p"},
    **{name: name for name in ("test", "better", "worse", "rows_needed", "verdict")},
}
NAMES = {False: ("task", "metric", "model"), True: ("task", "metric", "model", "model_before")}
USUAL = ("verified", "accuracy", "acc", "pass@1", "score")  # metrics that are meant where none is named


def check_short(config: Config) -> None:
    """Raise UserError for fields that are unknown, or that a result of one model does not have."""
    idle = config.out_json or not (config.fields or config.metric)
    need(idle, "got --fields or --metric without --out_json; expected a file; try --out_json result.json")
    paired = bool(config.compare) or len(config.model) == 2
    known = [*NAMES[paired], *(OF_TWO if paired else OF_ONE)]
    alone = "" if paired else " for one model (a comparison has more)"
    for name in config.fields:
        expected = f"expected among {', '.join(known)}{alone}"
        need(name in known, f"got --fields {name}; {expected}{suggest(name, known)}")


def find_metric(tasks: dict[str, dict], name: str) -> tuple[str, str]:
    """(task, metric) of this name in {task: {metric: figures}}, the first one; without a name, one of USUAL."""
    places = [(task, metric) for task, metrics in tasks.items() for metric in metrics]
    known = ", ".join(dict.fromkeys(metric for _, metric in places))
    need(places, "got --out_json, but no metric that has rows; expected one")
    wanted = [name] if name else USUAL
    matches = [place for metric in wanted for place in places if place[1] == metric]
    again = "the same command takes completions from the cache"
    need(matches or not name, f"got --metric {name}; expected one of {known}; {again}")
    return (matches or places)[0]


def write_short(config: Config, reports: list[dict], compared: dict | None) -> None:
    """Write the fields of one metric to --out_json, from one or two results.json and, of two, `compared` of both."""
    if not config.out_json:
        return
    paired = compared is not None
    tasks = compared if paired else {task: result["metrics"] for task, result in reports[0]["tasks"].items()}
    task, metric = find_metric(tasks, config.metric)
    names = [report["model"]["name"] for report in reports[::-1]]
    about = dict(zip(NAMES[paired], (task, metric, *names), strict=True))
    figures = {name: tasks[task][metric].get(key) for name, key in (OF_TWO if paired else OF_ONE).items()}
    known = about | figures
    short = {name: known[name] for name in config.fields or known}
    write_text(Path(config.out_json), json.dumps(short, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
