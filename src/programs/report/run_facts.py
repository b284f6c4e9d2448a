"""Facts of a run for the page: held-out figure, how far it got, its cost, how to repeat it."""

import datetime
import itertools
import shlex
from pathlib import Path

from parts.evaluating.paired_tests import wilson_interval
from parts.reading.logged_run import LoggedRun, as_number
from parts.reading.run_folder import json_beside
from programs.report.sources import Source

PLANNED = ("steps", "max_steps", "trainer.total_training_steps")  # ours, TRL's, verl's
ABOUT = (
    ("model", ("model", "actor_rollout_ref.model.path")),
    ("algorithm", ("algorithm", "algorithm.adv_estimator", "loss_type")),
    ("data", ("data", "data.train_files")),
)


def points_of(run: LoggedRun, key: str) -> list[tuple[int, float]]:
    """(step, value) of a metric by its name in the log."""
    return sorted(run.columns.get(key, {}).items())


def held_out_facts(run: LoggedRun) -> dict | None:
    """The held-out figure before and after, its best step, and intervals where the log has what they need."""
    key, points = run.names.get("held_out", ""), run.points("held_out")
    is_loss = not points and bool(points_of(run, "eval/reverse_kl"))
    if is_loss:
        key, points = "eval/reverse_kl", points_of(run, "eval/reverse_kl")
        low, high = (dict(points_of(run, f"{key}_{end}")) for end in ("low", "high"))
        intervals = {step: (low[step], high[step]) for step in low.keys() & high.keys()}
    else:
        rows = run.columns.get("eval/rows", {}) if key == "eval/accuracy" else {}
        shares = [(step, value) for step, value in points if rows.get(step, 0) >= 1 and 0 <= value <= 1]
        intervals = {step: wilson_interval(value * rows[step], rows[step]) for step, value in shares}
    if not points:
        return None
    (first, before), (last, after) = points[0], points[-1]
    best_step, best = (min if is_loss else max)(points, key=lambda point: point[1])
    facts = {"key": key, "name": "held-out reverse KL" if is_loss else f"held-out {key.rpartition('/')[2]}"}
    facts |= {"before": before, "after": after, "first": first, "last": last, "best": best, "best_step": best_step}
    facts |= {"before_interval": intervals.get(first), "after_interval": intervals.get(last)}
    return facts | {"several": len(points) > 1}


def outcome(run: LoggedRun, folder: Path) -> str:
    """How far the run came, and why it ended there, as far as its files say."""
    last = max(run.steps() or [step for _, step, _ in run.bad])
    planned = next((x for name in PLANNED if (x := as_number(run.config.get(name)))), None)
    at = f"step {last} of {planned:.0f}" if planned else f"step {last}"
    if json_beside(folder, "summary.json") or (planned and last >= planned):
        return f"It ran to its end: {at}."
    if any(step >= last for _, step, _ in run.bad):
        return f"It ends at {at} with values that are not finite."
    written = datetime.datetime.fromtimestamp(Path(run.path).stat().st_mtime)
    return f"The log ends at {at}; last written {written:%Y-%m-%d %H:%M}."


def seconds_of(run: LoggedRun, folder: Path) -> float | None:
    """How long a run took; None where its files do not say."""
    seconds = as_number(json_beside(folder, "summary.json").get("seconds"))
    if seconds is not None:
        return seconds
    parts = [value for name in ("time/rollout", "time/reward", "time/update") for _, value in points_of(run, name)]
    whole = [(0, 0.0), *run.points("time_step")]  # means over the steps since the entry before
    means = [value * (step - before) for (before, _), (step, value) in itertools.pairwise(whole)]
    return sum(means or parts) if means or parts else None


def to_repeat(run: LoggedRun, folder: Path) -> str:
    """The command line that repeats a run; "" where the log does not have its settings."""
    script = "on_policy_distillation" if "teacher" in run.config else run.trainer
    if run.format != "metrics.jsonl" or not run.config or run.trainer not in ("ppo_train", "grpo_train"):
        return ""
    return f"python scripts/{script}.py --config {shlex.quote(str(folder / 'config.json'))} --output_dir NEW_FOLDER"


def about(config: dict) -> list[str]:
    """Model, algorithm and data by the settings that are known, each in a few words."""
    values = [(kind, next((str(config[name]) for name in names if config.get(name)), "")) for kind, names in ABOUT]
    return [f"{kind} {'/'.join(Path(value).parts[-2:])}" for kind, value in values if value]


def run_facts(source: Source) -> dict:
    """All that the page says of a run, beside its curves and samples."""
    run, folder = source.run, source.folder
    ours = "on_policy_distillation" if run.dialect == "ours" and "teacher" in run.config else run.trainer
    bad = {name: [step for key, step, _ in run.bad if key == name] for name, _, _ in run.bad}
    broken = [f"{key} is not finite at {len(at)} steps, first at step {min(at)}; left out" for key, at in bad.items()]
    return source.verdict | {
        "name": source.name,
        "trainer": {"one_page": "a page of templates/", "trl": "TRL"}.get(run.trainer, ours),
        "about": about(run.config),
        "held_out": held_out_facts(run),
        "outcome": outcome(run, folder),
        "steps_logged": len(run.steps()),
        "seconds": seconds_of(run, folder),
        "texts": {text.id: text for text in run.texts},
        "remarks": [*dict.fromkeys(source.remarks), *broken],
        "versions": json_beside(folder, "versions.json"),
        "command": to_repeat(run, folder),
        "settings": run.config,
    }
