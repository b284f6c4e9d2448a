"""What the top of the page says of a run."""

import datetime
import itertools
import re
import shlex
from pathlib import Path

from parts.reading.log_reading import as_number
from parts.reading.logged_run import LoggedRun
from parts.reading.paired_tests import wilson_interval
from parts.reading.run_folder import json_beside
from parts.reading.trends import TREND_STEPS
from programs.report.sources import Source

CHEATING = ("part_bought", "reward_ignores_answer", "inverted_reward", "memorised_prompts")
TRAINED = "other_eval_task"
PLANNED = ("steps", "max_steps", "trainer.total_training_steps")  # ours, TRL's, verl's
SCRIPTS = {"ppo_train": "scripts/ppo_train.py", "grpo_train": "scripts/grpo_train.py"}


def points_of(run: LoggedRun, key: str) -> list[tuple[int, float]]:
    """(step, value) of a metric by its name in the log, finite ones."""
    return sorted(run.columns.get(key, {}).items())


def held_out_facts(run: LoggedRun) -> dict | None:
    """The held-out figure before and after, its best step, and intervals where the log has what they need."""
    is_loss = not run.series.get("held_out") and bool(points_of(run, "eval/reverse_kl"))
    if is_loss:
        key, points = "eval/reverse_kl", points_of(run, "eval/reverse_kl")
        ends = [dict(points_of(run, f"{key}_{end}")) for end in ("low", "high")]
        intervals = {step: (ends[0][step], ends[1][step]) for step in ends[0] if step in ends[1]}
    else:
        key, points = run.names.get("held_out", ""), sorted(run.series.get("held_out", {}).items())
        rows = dict(points_of(run, "eval/rows")) if key == "eval/accuracy" else {}
        accuracies = [(step, value) for step, value in points if rows.get(step, 0) >= 1 and 0 <= value <= 1]
        intervals = {step: wilson_interval(value * rows[step], rows[step]) for step, value in accuracies}
    if not points:
        return None
    (first, before), (last, after) = points[0], points[-1]
    best_step, best = (min if is_loss else max)(points, key=lambda point: point[1])
    facts = {"key": key, "name": "held-out reverse KL" if is_loss else f"held-out {key.rpartition('/')[2]}"}
    facts |= {"before": before, "after": after, "first": first, "last": last, "best": best, "best_step": best_step}
    facts |= {"before_interval": intervals.get(first), "after_interval": intervals.get(last)}
    return facts | {"better": (after < before) if is_loss else (after > before), "several": len(points) > 1}


def learnt(facts: dict | None, run: LoggedRun, verdict: dict) -> str:
    """Whether it learnt, in a sentence."""
    if any(cause["cause"] == TRAINED for cause in verdict["causes"]):
        return "Not measured: the held-out prompts also train, or are of another task."
    if not facts:
        scores = run.values("score")
        if not scores:
            return "The log has neither held-out figures nor scores."
        return f"Not measured: no held-out prompts. The training score went from {scores[0]:.3g} to {scores[-1]:.3g}."
    if not facts["several"]:
        return "Not known yet: one held-out evaluation so far."
    a, b = facts["before_interval"], facts["after_interval"]
    if facts["before"] == facts["after"]:
        return "No: the held-out figure is what it was."
    if not (a and b):
        how = "better" if facts["better"] else "worse"
        return f"The held-out figure got {how}; the log does not say of how many rows, so there is no interval."
    if a[1] < b[0] or b[1] < a[0]:
        return f"{'Yes' if facts['better'] else 'It got worse'}: the 95 % intervals of before and after lie apart."
    return "Within the noise: the 95 % intervals of before and after overlap; more held-out rows would tell."


def cheats(facts: dict | None, verdict: dict, run_steps: list[int]) -> str:
    """Whether it earns reward without the task, in a sentence."""
    names = [cause["cause"] for cause in verdict["causes"]]
    paid = [name for name in names if name in CHEATING]
    if TRAINED in names:
        return "Cannot be told: the held-out prompts also train, or are of another task."
    if paid:
        return f"Yes: {', '.join(paid)}, see below; read the samples that score high."
    if len(run_steps) < TREND_STEPS:
        return f"Too short to tell: trends are judged from {TREND_STEPS} steps on; read the samples that score high."
    if facts and facts["several"]:
        return "No sign of it: the checks that compare score, held-out figure, length and format found nothing."
    return "Cannot be told without held-out figures; read the samples that score high."


def outcome(run: LoggedRun, folder: Path, now: datetime.datetime) -> dict:
    """How far the run came, and why it ended there, as far as its files say."""
    steps = run.steps() or [b[1] for b in run.bad]
    planned = next((x for name in PLANNED if (x := as_number(run.config.get(name)))), None)
    of = f" of {planned:.0f}" if planned else ""
    log = Path(run.path)
    age = now.timestamp() - log.stat().st_mtime if log.is_file() else 0.0
    if json_beside(folder, "summary.json") or (planned and max(steps) >= planned):
        return {"done": True, "text": f"It ran to its end: step {max(steps)}{of}."}
    if run.trainer == "one_page" and json_beside(folder, "result.json"):
        return {"done": True, "text": f"It ended at step {max(steps)}{of}: its --minutes were over, or by Ctrl-C."}
    if any(step >= max(steps) for _, step, _ in run.bad):
        return {"done": False, "text": f"It ends at step {max(steps)}{of} with values that are not finite."}
    if run.trainer in ("trl", "verl") or not planned:
        return {"done": False, "text": f"The log ends at step {max(steps)}{of}; it was last written {ago(age)}."}
    what = "it still runs" if age < 120 else "it runs no more, or a step takes long: it was stopped, or failed"
    return {"done": False, "text": f"Step {max(steps)}{of}, last written {ago(age)}; no summary.json: {what}."}


def ago(seconds: float) -> str:
    """A time span in words."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return "less than two minutes ago"


def spent(run: LoggedRun, folder: Path) -> dict:
    """Samples, sampled tokens and seconds of a run; None where the log does not say."""
    steps, config = len(run.steps()), run.config
    of_step = as_number(config.get("batch_size"))
    if run.trainer == "verl":
        whole = [as_number(config.get(key)) for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n")]
        of_step = whole[0] * whole[1] if all(whole) else None
    if run.trainer == "one_page" and config.get("prompts"):
        of_step = (as_number(config["prompts"]) or 0) * (as_number(config.get("group_size")) or 1)
    logged = sorted(
        {step for points in run.columns.values() for step in points}
    )  # grpo_train.py may log every so many steps only
    since = {step: step - before for before, step in itertools.pairwise(logged)}
    sampled = [value * since.get(step, 1) for step, value in points_of(run, "rollout/samples")]
    samples = sum(sampled) if sampled else of_step * steps if of_step else None
    seconds = as_number(json_beside(folder, "summary.json").get("seconds"))
    if seconds is None:
        parts = [value for name in ("time/rollout", "time/reward", "time/update") for _, value in points_of(run, name)]
        whole = sorted(run.series.get("time_step", {}).items())  # means over the steps since the entry before
        ends = [0, *(step for step, _ in whole)]
        parts = [value * (step - ends[i]) for i, (step, value) in enumerate(whole)] or parts
        seconds = sum(parts) if parts else None
    speed, rollout = dict(points_of(run, "rollout/tokens_per_s")), dict(points_of(run, "time/rollout"))
    tokens = sum(speed[step] * rollout[step] for step in speed.keys() & rollout.keys())
    return {"steps": steps, "samples": samples, "seconds": seconds, "tokens": tokens or None}


def to_repeat(run: LoggedRun, folder: Path) -> str:
    """The command line that repeats a run; "" where the log does not have its settings."""
    if run.trainer == "one_page" and run.config:
        given = {k: v for k, v in run.config.items() if k not in ("out", "output_dir") and v not in (None, "")}
        pairs = (f"--{k} {shlex.quote(str(v))}" for k, v in given.items() if not isinstance(v, (bool, list, dict)))
        chat = " --no_chat" if run.config.get("chat") is False else ""
        return f"python templates/{page_of(run.config)} {' '.join(pairs)}{chat} --out NEW_FOLDER"
    if run.format != "metrics.jsonl" or not run.config:
        return ""
    script = "scripts/on_policy_distillation.py" if "teacher" in run.config else SCRIPTS.get(run.trainer)
    return f"python {script} --config {shlex.quote(str(folder / 'config.json'))} --output_dir NEW_FOLDER"


def trainer_name(run: LoggedRun) -> str:
    """Who trained it."""
    if run.trainer == "ppo_train" and "teacher" in run.config:
        return "on_policy_distillation"
    return {"one_page": "a page of templates/", "trl": "TRL"}.get(run.trainer, run.trainer)


def page_of(config: dict) -> str:
    """The page of templates/ that has such settings."""
    marks = {"teacher": "distillation.py", "environment": "multi_turn.py", "critic_lr": "ppo.py"}
    return next((page for name, page in marks.items() if name in config), "grpo.py")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps at which a run's folder has a checkpoint."""
    found = [*folder.glob("checkpoints/step-*"), *folder.glob("checkpoint-*")]
    return sorted(int(m[1]) for path in found if (m := re.search(r"-(\d+)$", path.name)))


def about(config: dict) -> list[str]:
    """Model, algorithm and data by the settings that are known, each in a few words."""
    names = (
        ("model", ("model", "actor_rollout_ref.model.path")),
        ("algorithm", ("algorithm", "algorithm.adv_estimator", "loss_type")),
        ("data", ("data", "data.train_files")),
    )
    shown = [(kind, next((str(config[name]) for name in keys if config.get(name)), "")) for kind, keys in names]
    return [f"{kind} {'/'.join(Path(value).parts[-2:])}" for kind, value in shown if value]


def run_facts(source: Source, now: datetime.datetime) -> dict:
    """All that the top of the page says of a run."""
    run, folder = source.run, source.folder
    facts = held_out_facts(run)
    return {
        "name": source.name,
        "trainer": trainer_name(run),
        "format": run.format,
        "about": about(run.config),
        "held_out": facts,
        "learnt": learnt(facts, run, source.verdict),
        "cheats": cheats(facts, source.verdict, run.steps()),
        "outcome": outcome(run, folder, now),
        "spent": spent(run, folder),
        "verdict": source.verdict["verdict"],
        "since": source.verdict["since_step"],
        "causes": source.verdict["causes"],
        "unexplained": source.verdict["unexplained"],
        "lacked": source.verdict["lacked"],
        "texts": {text.id: text for text in run.texts},
        "remarks": [*dict.fromkeys(source.remarks), *broken_remarks(run)],
        "versions": json_beside(folder, "versions.json"),
        "command": to_repeat(run, folder),
        "dialect": run.dialect,
    }


def broken_remarks(run: LoggedRun) -> list[str]:
    """What the log has of values that are not finite, a line each metric."""
    names = {name: [step for key, step, _ in run.bad if key == name] for name, _, _ in run.bad}
    return [
        f"{name} is not finite at {len(steps)} step{'s' * (len(steps) > 1)}, first at step {min(steps)}; left out"
        for name, steps in names.items()
    ]
