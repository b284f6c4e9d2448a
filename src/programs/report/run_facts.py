"""Facts of a run for the page: held-out figure, how far it got, its cost, how to repeat it."""

import datetime
import itertools
import math
import shlex
from pathlib import Path

from parts.evaluating.paired_tests import wilson_interval
from parts.reading.logged_run import LoggedRun, as_number
from parts.reading.run_folder import json_beside
from programs.report.sources import Source

PLANNED = ("steps", "max_steps", "trainer.total_training_steps")  # ours, TRL's, verl's
SCRIPTS = {"ppo_train": "scripts/ppo_train.py", "grpo_train": "scripts/grpo_train.py"}
ABOUT = (
    ("model", ("model", "actor_rollout_ref.model.path")),
    ("algorithm", ("algorithm", "algorithm.adv_estimator", "loss_type")),
    ("data", ("data", "data.train_files")),
)
SPANS = ((86400, "days"), (3600, "hours"), (60, "minutes"))


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


def outcome(run: LoggedRun, folder: Path, now: datetime.datetime) -> str:
    """How far the run came, and why it ended there, as far as its files say."""
    last = max(run.steps() or [step for _, step, _ in run.bad])
    planned = next((x for name in PLANNED if (x := as_number(run.config.get(name)))), None)
    at = f"step {last} of {planned:.0f}" if planned else f"step {last}"
    if json_beside(folder, "summary.json") or (planned and last >= planned):
        return f"It ran to its end: {at}."
    if run.trainer == "one_page" and json_beside(folder, "result.json"):
        return f"It ended at {at}: --minutes had passed, or Ctrl-C stopped it."
    if any(step >= last for _, step, _ in run.bad):
        return f"It ends at {at} with values that are not finite."
    log = Path(run.path)
    age = now.timestamp() - log.stat().st_mtime if log.is_file() else 0.0
    size, unit = next((pair for pair in SPANS if age >= 2 * pair[0]), (60, "minutes"))
    written = f"it was last written {age / size:.0f} {unit} ago"
    if run.trainer in ("trl", "verl") or not planned:
        return f"The log ends at {at}; {written}."
    guess = "it is probably running" if age < 120 else "it has stopped or failed, or a step takes long"
    return f"The log ends at {at}; {written}, without a summary.json: {guess}."


def spent(run: LoggedRun, folder: Path) -> dict:
    """Samples, sampled tokens and seconds of a run; None where the log does not say."""
    steps, config = len(run.steps()), run.config
    sizes = {"verl": ("data.train_batch_size", "actor_rollout_ref.rollout.n")}.get(run.trainer, ("batch_size",))
    sizes = ("prompts", "group_size") if run.trainer == "one_page" and "prompts" in config else sizes
    factors = [as_number(config.get(name)) for name in sizes]
    # grpo_train.py may log every so many steps only
    logged = sorted({step for points in run.columns.values() for step in points})
    since = {step: step - before for before, step in itertools.pairwise(logged)}
    sampled = [value * since.get(step, 1) for step, value in points_of(run, "rollout/samples")]
    seconds = as_number(json_beside(folder, "summary.json").get("seconds"))
    if seconds is None:
        parts = [value for name in ("time/rollout", "time/reward", "time/update") for _, value in points_of(run, name)]
        whole = run.points("time_step")  # means over the steps since the entry before
        before = [0, *(step for step, _ in whole)]
        parts = [value * (step - before[i]) for i, (step, value) in enumerate(whole)] or parts
        seconds = sum(parts) if parts else None
    speed, rollout = dict(points_of(run, "rollout/tokens_per_s")), dict(points_of(run, "time/rollout"))
    tokens = sum(speed[step] * rollout[step] for step in speed.keys() & rollout.keys())
    samples = sum(sampled) if sampled else math.prod(factors) * steps if all(factors) else None
    return {"steps": steps, "samples": samples, "seconds": seconds, "tokens": tokens or None}


def to_repeat(run: LoggedRun, folder: Path) -> str:
    """The command line that repeats a run; "" where the log does not have its settings."""
    if run.trainer == "one_page" and run.config:
        given = {k: v for k, v in run.config.items() if k not in ("out", "output_dir") and v not in (None, "")}
        pairs = (f"--{k} {shlex.quote(str(v))}" for k, v in given.items() if not isinstance(v, (bool, list, dict)))
        switches = [f"--{k}" for k, v in given.items() if v is True and k != "chat"]  # chat is on by default
        if given.get("chat") is False:
            switches.append("--no_chat")
        return f"python PAGE.py {' '.join([*pairs, *switches])} --out NEW_FOLDER"  # no file says which page ran
    if run.format != "metrics.jsonl" or not run.config:
        return ""
    script = "scripts/on_policy_distillation.py" if "teacher" in run.config else SCRIPTS.get(run.trainer)
    return f"python {script} --config {shlex.quote(str(folder / 'config.json'))} --output_dir NEW_FOLDER"


def about(config: dict) -> list[str]:
    """Model, algorithm and data by the settings that are known, each in a few words."""
    values = [(kind, next((str(config[name]) for name in names if config.get(name)), "")) for kind, names in ABOUT]
    return [f"{kind} {'/'.join(Path(value).parts[-2:])}" for kind, value in values if value]


def run_facts(source: Source, now: datetime.datetime) -> dict:
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
        "outcome": outcome(run, folder, now),
        "spent": spent(run, folder),
        "texts": {text.id: text for text in run.texts},
        "remarks": [*dict.fromkeys(source.remarks), *broken],
        "versions": json_beside(folder, "versions.json"),
        "command": to_repeat(run, folder),
        "settings": run.config,
    }
