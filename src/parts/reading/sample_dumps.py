"""Samples that other trainers leave beside their logs: verl's dumps of rollouts, TRL's tables of completions."""

import csv
import json
import math
import re
from pathlib import Path

from parts.reading.logged_run import UnreadableError
from parts.reading.plain_logs import number_or_text

HELD_OUT_FOLDER = re.compile(r"val|eval|held|test", re.IGNORECASE)
VERL_KEYS = ("input", "output", "score", "step")  # of every line of a dump; the rest is what its reward returned
TRL_KEYS = ("step", "prompt", "completion", "advantage")  # the rest are reward functions, and what these have logged


def is_number(value) -> bool:
    """Whether a value of a dump is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def verl_row(row: dict, kind: str) -> dict:
    """A line of verl's dump under the names of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    found = {"step": row["step"], "kind": kind, "prompt": row["input"], "completion": row["output"]}
    found |= {"score": row["score"], "rewards": {key: value for key, value in parts.items() if is_number(value)}}
    found |= {key: value for key, value in parts.items() if not is_number(value) and key not in found}
    return found | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_files(folder: Path, config: dict) -> list[tuple[Path, str]]:
    """(STEP.jsonl, kind) of the dumps that the settings name, or else of the folders beside the log."""
    named = {"train": config.get("trainer.rollout_data_dir"), "eval": config.get("trainer.validation_data_dir")}
    folders = [(Path(path), kind) for kind, path in named.items() if path and Path(path).is_dir()]
    if not folders:
        others = sorted(path for path in folder.iterdir() if path.is_dir())
        folders = [(path, "eval" if HELD_OUT_FOLDER.search(path.name) else "train") for path in others]
    found = [(path, kind) for folder, kind in folders for path in folder.glob("*.jsonl") if path.stem.isdecimal()]
    return sorted(found, key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0])))


def verl_samples(folder: Path, config: dict) -> tuple[list[dict], list[str]]:
    """What trainer.rollout_data_dir and trainer.validation_data_dir hold; rows and remarks."""
    rows, bad = [], 0
    for path, kind in verl_files(folder, config):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                row = json.loads(line)
                rows.append(verl_row(row, kind))
            except (ValueError, RecursionError, KeyError, AttributeError):
                bad += bool(line.strip())
    return rows, [f"verl's dumps of samples: {bad} lines are no samples; left out"] if bad else []


def rows_of_samples(path: Path) -> list[dict]:
    """The rows of a JSONL, JSON, CSV or parquet file, under the names of samples.jsonl.

    Raises:
        UnreadableError: it has no rows.
    """
    rows = []
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = parquet.read_table(path).to_pylist()
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                rows = [{key: number_or_text(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
        else:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            rows = (
                json.loads(text) if text[:1] == "[" else [json.loads(line) for line in text.split("\n") if line.strip()]
            )
    except (OSError, ValueError, RecursionError, ImportError) as error:
        raise UnreadableError(f"got {path} ({error}); expected JSONL, JSON, CSV or parquet with rows") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UnreadableError(f"got {path} without rows; expected JSONL, JSON, CSV or parquet with rows")
    return [verl_row(row, "train") if {*VERL_KEYS} <= row.keys() else renamed_row(row) for row in rows]


SAMPLE_NAMES = {  # of samples.jsonl: what others call it
    "completion": (
        "completion",
        "completions",
        "response",
        "output",
        "generation",
        "generated_text",
        "text",
        "answer_text",
    ),
    "prompt": ("prompt", "prompts", "question", "input", "problem", "query"),
    "score": ("score", "reward", "rewards", "total_reward", "return"),
    "step": ("step", "global_step", "train_step"),
}


def renamed_row(row: dict) -> dict:
    """A row of anyone's samples under the names of samples.jsonl, as far as it has them."""
    known = {name: next((key for key in names if key in row), None) for name, names in SAMPLE_NAMES.items()}
    taken = {name: row[key] for name, key in known.items() if key is not None}
    if isinstance(taken.get("score"), dict):
        taken["rewards"] = taken.pop("score")
    return {k: v for k, v in row.items() if k not in known.values()} | taken


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
    rewards = {key: value for key, value in parts.items() if value is None or is_number(value)}
    applies = {key: x for key, x in rewards.items() if x is not None and math.isfinite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    found = {"step": row["step"], "kind": "train", "prompt": row["prompt"], "completion": text, "score": score}
    found |= {"rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        found["messages"] = [*prompt, *turns]
    return found | {key: value for key, value in parts.items() if key not in rewards and key not in found}


def reward_weights(history: list[dict]) -> dict[str, float] | None:
    """The weights with which TRL's log sums the rewards to `reward`; None where its means do not tell them."""
    names = [re.fullmatch(r"rewards/(.+)/mean", key) for key in dict.fromkeys(key for row in history for key in row)]
    means = [match[0] for match in names if match]
    rows = [row for row in history if all(is_number(row.get(key)) and math.isfinite(row[key]) for key in means)]
    rows = [row for row in rows if is_number(row.get("reward"))] if means else []
    found = [1.0] * len(means)
    if len(rows) > len(means) and any(abs(row["reward"] - sum(map(row.get, means))) > 1e-4 for row in rows):
        import numpy as np

        table = np.array([[row[key] for key in means] for row in rows])
        found, _, rank, _ = np.linalg.lstsq(table, np.array([row["reward"] for row in rows]), rcond=1e-6)
        found = [] if rank < len(means) else [float(f"{weight:.4g}") for weight in found]
    sums = [sum(w * row[key] for w, key in zip(found, means, strict=True)) for row in rows] if found else []
    fits = sums and all(abs(total - row["reward"]) < 1e-3 for total, row in zip(sums, rows, strict=True))
    return dict(zip((match[1] for match in names if match), found, strict=True)) if fits else None


def trl_samples(folder: Path, history: list[dict]) -> tuple[list[dict], list[str]]:
    """What TRL's log_completions=True leaves in the folder completions/; rows and remarks."""
    files = sorted((folder / "completions").glob("completions_*.parquet"))
    if not files:
        return [], []
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return [], ["completions/ could not be read without pyarrow; try pip install pyarrow"]
    rows, bad, weights = [], [], reward_weights(history)
    for path in files:
        try:
            rows += [trl_row(row, weights) for row in parquet.read_table(path).to_pylist()]
        except (pyarrow.ArrowException, OSError, KeyError, TypeError) as error:
            bad.append(f"{path.name} ({type(error).__name__})")
    remarks = [f"completions/ has files that could not be read: {', '.join(bad[:3])}; left out"] if bad else []
    if rows and weights is None and any(len(row["rewards"]) > 1 for row in rows):
        remarks.append("TRL's log does not tell the weights of the rewards: its samples have no score")
    return rows, remarks
