"""Files of samples: samples.jsonl, TRL's tables of completions, verl's dumps of rollouts, anyone's JSONL or CSV."""

import csv
import json
import math
import re
import sys
from pathlib import Path

from parts.foundation.messages import UserError
from parts.reading.logged_run import LoggedRun
from parts.reading.run_settings import number_or_text

HELD_OUT_FOLDER = re.compile(r"val|eval|held|test", re.IGNORECASE)
VERL_KEYS = ("input", "output", "score", "step")  # of every line of a dump; the rest is what its reward returned
TRL_KEYS = ("step", "prompt", "completion", "advantage")  # the rest are reward functions, and what these have logged
SAMPLE_NAMES = {  # of samples.jsonl: what others call it
    "completion": ("completion", "completions", "response", "output", "generation", "generated_text", "text"),
    "prompt": ("prompt", "prompts", "question", "input", "problem", "query"),
    "score": ("score", "reward", "rewards", "total_reward", "return"),
    "step": ("step", "global_step", "train_step"),
}


def json_lines(path: Path) -> tuple[list[dict], list[int]]:
    """The objects of a JSONL file, and the numbers of its lines that are none."""
    rows, bad = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line.decode("utf-8", errors="replace")) if line.strip() else None
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                rows.append({sys.intern(key): value for key, value in row.items()})
            elif line.strip():
                bad.append(number)
    return rows, bad


def samples_beside(path: Path, run: LoggedRun) -> list[dict]:
    """The rows of samples.jsonl beside a log; what cannot be read is remarked."""
    other = path.with_name("samples.jsonl")
    rows, bad = json_lines(other) if other.is_file() else ([], [])
    if bad and rows:
        run.remarks.append(f"samples.jsonl beside it: {len(bad)} lines are no JSON (line {bad[0]}); left out")
    elif other.is_file() and not rows:
        run.remarks.append("samples.jsonl beside it could not be read")
    return rows


def verl_row(row: dict, kind: str) -> dict:
    """A line of verl's dump under the names of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    rewards = {key: value for key, value in parts.items() if type(value) in (int, float)}
    sample = {"step": row["step"], "kind": kind, "prompt": row["input"], "completion": row["output"]}
    sample |= {"score": row["score"], "rewards": rewards}
    sample |= {key: value for key, value in parts.items() if key not in rewards and key not in sample}
    return sample | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows of the dumps STEP.jsonl in the folders that settings name, or else in those beside the log."""
    named = (("trainer.rollout_data_dir", "train"), ("trainer.validation_data_dir", "eval"))
    places = [(Path(place), kind) for key, kind in named if (place := run.config.get(key)) and Path(place).is_dir()]
    others = sorted(path for path in folder.iterdir() if path.is_dir())
    folders = places or [(path, "eval" if HELD_OUT_FOLDER.search(path.name) else "train") for path in others]
    files = [(path, kind) for place, kind in folders for path in place.glob("*.jsonl") if path.stem.isdecimal()]
    samples, bad = [], 0
    for path, kind in sorted(files, key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0]))):
        rows, torn = json_lines(path)
        whole = [row for row in rows if {*VERL_KEYS} <= row.keys()]
        samples += [verl_row(row, kind) for row in whole]
        bad += len(torn) + len(rows) - len(whole)
    if bad:
        run.remarks.append(f"verl's dumps of samples: {bad} lines are no samples; left out")
    return samples


def turns_of(completion) -> tuple[str, list]:
    """The text that the model wrote, and the messages where there are several; a plain text has none."""
    if not isinstance(completion, list):
        return completion, []
    said = [m.get("content") for m in completion if isinstance(m, dict) and m.get("role", "assistant") == "assistant"]
    text = "\n".join(content if isinstance(content, str) else json.dumps(content) for content in said if content)
    return text, completion if len(completion) > 1 or any(m.get("tool_calls") for m in completion) else []


def trl_row(row: dict, weights: dict[str, float] | None) -> dict:
    """A row of TRL's table under the names of samples.jsonl; its score is None where the weights are not known."""
    text, turns = turns_of(row.get("completion"))
    parts = {key: value for key, value in row.items() if key not in TRL_KEYS}
    rewards = {key: value for key, value in parts.items() if value is None or type(value) in (int, float)}
    applies = {key: x for key, x in rewards.items() if x is not None and math.isfinite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    sample = {"step": row["step"], "kind": "train", "prompt": row["prompt"], "completion": text, "score": score}
    sample |= {"rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        sample["messages"] = [*prompt, *turns]
    return sample | {key: value for key, value in parts.items() if key not in rewards and key not in sample}


def reward_weights(run: LoggedRun) -> dict[str, float] | None:
    """The settings' weights of TRL's rewards, else 1 each; None where the log's means do not sum to its score so."""
    means = {m[1]: key for key in run.columns if (m := re.fullmatch(r"rewards/(.+)/mean", key))}
    given, totals = run.config.get("reward_weights"), run.columns.get("reward", {})
    weights = given if isinstance(given, list) and len(given) == len(means) else [1.0] * len(means)
    for step in totals if means else ():
        parts = [run.columns[key].get(step, math.nan) for key in means.values()]
        total = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        if abs(total - totals[step]) > 1e-3 * max(1.0, abs(totals[step])):
            return None
    return dict(zip(means, weights, strict=True)) if means and totals else None


def trl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows that TRL's log_completions=True leaves in the folder completions/."""
    files = sorted((folder / "completions").glob("completions_*.parquet"))
    if not files:
        return []
    import pyarrow
    from pyarrow import parquet

    rows, bad, weights = [], [], reward_weights(run)
    for path in files:
        try:
            rows += [trl_row(row, weights) for row in parquet.read_table(path).to_pylist()]
        except (pyarrow.ArrowException, OSError, KeyError, TypeError) as error:
            bad.append(f"{path.name} ({type(error).__name__})")
    if bad:
        run.remarks.append(f"completions/ has files that could not be read: {', '.join(bad[:3])}; left out")
    if weights is None and any(len(row["rewards"]) > 1 for row in rows):
        run.remarks.append("settings do not tell the weights of the rewards: samples lack scores; try --settings FILE")
    return rows


def rows_of_samples(path: Path) -> list[dict]:
    """The rows of a JSONL, JSON, CSV or parquet file, under the names of samples.jsonl; UserError without rows."""
    rows, problem = [], "which has no rows"
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = parquet.read_table(path).to_pylist()
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                rows = [{key: number_or_text(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
        elif path.read_bytes()[:1] == b"[":
            rows = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        else:
            rows, bad = json_lines(path)
            problem, rows = (f"whose line {bad[0]} is no JSON", []) if bad else (problem, rows)
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"got {path}, {problem}; expected JSONL, JSON, CSV or parquet with rows")
    return [verl_row(row, "train") if {*VERL_KEYS} <= row.keys() else renamed_row(row) for row in rows]


def renamed_row(row: dict) -> dict:
    """A row of anyone's samples under the names of samples.jsonl, as far as it has them."""
    known = {name: next((key for key in names if key in row), None) for name, names in SAMPLE_NAMES.items()}
    taken = {name: row[key] for name, key in known.items() if key is not None}
    if isinstance(taken.get("score"), dict):
        taken["rewards"] = taken.pop("score")
    return {k: v for k, v in row.items() if k not in known.values()} | taken
