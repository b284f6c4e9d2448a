"""Read files of samples: samples.jsonl, TRL's completion tables, verl's rollout dumps, other JSONL or CSV."""

import contextlib
import csv
import io
import json
import math
import re
import sys
from pathlib import Path

from parts.foundation.messages import need
from parts.reading.logged_run import LoggedRun, is_finite
from parts.reading.own_names import meanings, sample_columns
from parts.reading.run_settings import number_or_text

HELD_OUT = re.compile(r"(?<![a-z])(val|eval|held|test)", re.IGNORECASE)  # in names of files and folders
SAMPLED = re.compile("samples|completions|rollouts|generations", re.IGNORECASE)  # file names begin so
VERL_KEYS = ("input", "output", "score", "step")  # in every line of a dump; further keys come from the reward function
TRL_KEYS = ("step", "prompt", "completion", "advantage", "advantages")  # further columns: rewards and their logs
TABLES = (".csv", ".tsv")
SAMPLE_NAMES = {  # name in samples.jsonl -> names elsewhere
    "completion": ("completion", "completions", "response", "output", "generation", "generated_text", "text"),
    "prompt": ("prompt", "prompts", "question", "input", "problem", "query"),
    "score": ("score", "reward", "rewards", "total_reward", "return"),
    "step": ("step", "global_step", "train_step"),
}


def json_object(text: str | bytes) -> dict | None:
    """Parse a JSON object; None if the text is not one."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def json_lines(path: Path) -> tuple[list[dict], list[int]]:
    """The objects in a JSONL file, and the numbers of the lines that are not objects."""
    rows, bad = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = json_object(line.decode("utf-8", errors="replace"))
            if row is not None:
                rows += unfolded({sys.intern(key): value for key, value in row.items()})
            elif line.strip():
                bad.append(number)
    return rows, bad


def unfolded(row: dict) -> list[dict]:
    """Split a row whose completion is a list of texts, as ms-swift's row of a step, into one row each; else [row]."""
    texts = row.get("completion")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        return [row]
    lists = {key for key, cells in row.items() if isinstance(cells, list) and len(cells) == len(texts)}
    return [{key: cells[i] if key in lists else cells for key, cells in row.items()} for i in range(len(texts))]


def columns_of(path: Path) -> set[str]:
    """The column names of a table, from its first 64 K characters; empty if the file is not a table."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        with contextlib.suppress(OSError, ValueError):
            return {*parquet.read_schema(path).names}
    if path.suffix not in (".jsonl", ".json", *TABLES) or not path.is_file():
        return set()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.read(1 << 16)
    header = head.partition("\n")[0]
    names = header.split(separator_of(header)) if path.suffix in TABLES else re.findall(r'"([\w ]+)"\s*:', head)
    return {name.strip(' "').lower() for name in names}


def separator_of(header: str) -> str:
    """The cell separator of a CSV file, by its first line."""
    return max((",", ";", "\t"), key=header.count)


def is_samples(path: Path, needed: tuple[str, ...] = ("completion", "prompt", "score")) -> bool:
    """Whether a file has the needed columns; completions.jsonl (ms-swift's) needs no score, as the log has it."""
    columns = columns_of(path)
    return all(columns & {*SAMPLE_NAMES[name]} for name in needed[: 2 if path.stem == "completions" else None])


def samples_beside(path: Path, run: LoggedRun, alone: bool, given: str = "") -> list[dict]:
    """The rows of the file `given`, of samples.jsonl beside a log, or of the only samples in its folder `alone`."""
    if given:
        return own_samples(Path(given), run)
    usual, others = path.with_name("samples.jsonl"), sorted(path.parent.iterdir() if alone else ())
    others = [p for p in others if p != path and columns_of(p) and not HELD_OUT.search(p.stem)]
    tables = [p for p in others if is_samples(p)]
    files = [usual] if usual.is_file() else [p for p in tables if SAMPLED.match(p.stem)]
    if run.guessed and not files:
        files = [p for p in others if "step" in sample_columns(rows_of_samples(p, LoggedRun("", "", "")))]
    if tables and not files:
        run.remarks.append(f"{tables[0].name} beside it may not be this run's samples; if it is, try --samples FILE")
    if len(files) > 1:
        names = ", ".join(other.name for other in files[:4])
        run.remarks.append(f"{names} beside it all have samples, so none was read; try --samples FILE")
    return own_samples(files[0], run, run) if len(files) == 1 else []


def own_samples(path: Path, run: LoggedRun, remarks: LoggedRun | None = None) -> list[dict]:
    """The rows of a file of samples; if their names are unknown, columns count by the words of their names."""
    rows = rows_of_samples(path, remarks)
    if columns := sample_columns(rows) if run.guessed or not remarks else {}:
        run.guessed["completion"] = columns["completion"]
        run.remarks.append(f"of {path.name}, {meanings(columns)}")
    return [row | {kind: row.get(column) for kind, column in columns.items()} for row in rows]


def verl_row(row: dict) -> dict:
    """Convert a line of verl's dump to a row of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    rewards = {key: value for key, value in parts.items() if type(value) in (int, float)}
    sample = {"step": row["step"], "kind": "train", "prompt": row["input"], "completion": row["output"]}
    sample |= {"score": row["score"], "rewards": rewards}
    sample |= {key: value for key, value in parts.items() if key not in rewards and key not in sample}
    return sample | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows of verl's dumps STEP.jsonl, in the folders that the settings name or else in those beside the log."""
    named = (("trainer.rollout_data_dir", "train"), ("trainer.validation_data_dir", "eval"))
    places = [(Path(place), kind) for key, kind in named if (place := run.config.get(key)) and Path(place).is_dir()]
    others = sorted(path for path in folder.iterdir() if path.is_dir())
    folders = places or [(path, "eval" if HELD_OUT.search(path.name) else "train") for path in others]
    files = [(path, kind) for place, kind in folders for path in place.glob("*.jsonl") if path.stem.isdecimal()]
    files.sort(key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0])))
    rows = [row | {"kind": kind} for path, kind in files for row in rows_of_samples(path, run)]
    samples = [row for row in rows if "completion" in row]
    if len(rows) > len(samples):
        run.remarks.append(f"verl's dumps of samples: {len(rows) - len(samples)} lines are not samples; left out")
    return samples


def turns_of(completion) -> tuple[str, list]:
    """(text, messages): what the assistant wrote, and all messages if there are several or one calls a tool."""
    if not isinstance(completion, list):
        return completion, []
    texts = [m.get("content") for m in completion if isinstance(m, dict) and m.get("role", "assistant") == "assistant"]
    text = "\n".join(content if isinstance(content, str) else json.dumps(content) for content in texts if content)
    return text, completion if len(completion) > 1 or any(m.get("tool_calls") for m in completion) else []


def trl_row(row: dict, weights: dict[str, float] | None) -> dict:
    """Convert a row of TRL's table to a row of samples.jsonl; without reward weights its score is None."""
    text, turns = turns_of(row.get("completion"))
    parts = {key: value for key, value in row.items() if key not in TRL_KEYS}
    rewards = {key: value for key, value in parts.items() if value is None or type(value) in (int, float)}
    applies = {key: x for key, x in rewards.items() if is_finite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    sample = {"step": number_or_text(row["step"]), "kind": "train", "prompt": row["prompt"], "completion": text}
    sample |= {"score": score, "rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        sample["messages"] = [*prompt, *turns]
    return sample | {key: value for key, value in parts.items() if key not in rewards and key not in sample}


def reward_weights(run: LoggedRun) -> dict[str, float] | None:
    """TRL's reward weights, by the settings or else 1 each; None if the weighted means do not give the logged score."""
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
    """The rows that TRL writes to the folder completions/ with log_completions."""
    paths = sorted((folder / "completions").glob("completions_*.parquet"))
    rows = [row for path in paths for row in rows_of_samples(path, run)]
    if reward_weights(run) is None and any(len(row.get("rewards", ())) > 1 for row in rows):
        run.remarks.append("settings do not state the rewards' weights, so samples lack scores; try --settings FILE")
    return rows


def rows_of_samples(path: Path, run: LoggedRun | None = None) -> list[dict]:
    """The rows of a JSONL, JSON, CSV or parquet file, as rows of samples.jsonl.

    A file that cannot be read raises UserError; with `run`, it adds a remark and gives no rows.
    """
    rows, problem = [], "which has no rows"
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = parquet.read_table(path).to_pylist()
        elif path.suffix in TABLES:
            text = path.read_text(encoding="utf-8-sig", errors="replace")
            separator = separator_of(text.partition("\n")[0])
            rows = [*csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)]
            rows = [{key: cell_value(key, cell, separator) for key, cell in row.items()} for row in rows]
        elif path.read_bytes()[:1] == b"[":
            rows = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        else:
            rows, bad = json_lines(path)
            if bad and run:
                run.remarks.append(f"{path.name} beside it: {len(bad)} lines are not JSON (line {bad[0]}); left out")
            elif len(rows) == 1 and {"columns", "data"} <= rows[0].keys():  # wandb's table
                rows = [dict(zip(rows[0]["columns"], cells, strict=False)) for cells in rows[0]["data"]]
            elif bad:
                problem, rows = f"whose line {bad[0]} is not JSON", []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        problem = str(error)
    if not rows or not all(isinstance(row, dict) for row in rows):
        need(run, f"got {path}, {problem}; expected JSONL, JSON, CSV or parquet with rows")
        run.remarks.append(f"{path.name} beside it has no rows that can be read")
        return []
    weights = reward_weights(run) if run else None
    return [one for row in rows for one in unfolded(renamed_row(row, weights or {}))]


def cell_value(key: str, cell: str, separator: str):
    """A cell as a number or text: texts of prompts and completions stay as they are; 0,5 between semicolons is 0.5."""
    if str(key).lower() in (*SAMPLE_NAMES["prompt"], *SAMPLE_NAMES["completion"]):
        return cell
    is_decimal = separator != "," and re.fullmatch(r"-?\d+,\d+", str(cell))
    return number_or_text(cell.replace(",", ".") if is_decimal else cell)


def renamed_row(row: dict, weights: dict[str, float]) -> dict:
    """Convert a row of verl's, TRL's or others' samples to a row of samples.jsonl, as far as its names are known."""
    if {*VERL_KEYS} <= row.keys():
        return verl_row(row)
    is_trl = {*TRL_KEYS[:3]} < row.keys() and row.keys() & {*TRL_KEYS[3:], *weights}
    if is_trl and not row.keys() & {*SAMPLE_NAMES["score"]}:
        rewards = [key for key, value in row.items() if key not in TRL_KEYS and type(value) in (int, float)]
        return trl_row(row, {rewards[0]: 1.0} if len(rewards) == 1 else weights)
    keys = {str(key).lower(): key for key in row}
    sources = {name: next((keys[key] for key in names if key in keys), None) for name, names in SAMPLE_NAMES.items()}
    taken = {name: row[key] for name, key in sources.items() if key is not None}
    if isinstance(taken.get("score"), dict):
        taken["rewards"] = taken.pop("score")
    if isinstance(taken.get("score"), bool):
        taken["score"] = float(taken["score"])
    return {k: v for k, v in row.items() if k not in sources.values()} | taken
