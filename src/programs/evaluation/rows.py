"""Rows: reading and checking them, those that the model was trained on, files that other scripts must read."""

import contextlib
import json
from pathlib import Path

from parts.data.held_out import drawn_tasks, task_of
from parts.data.prompts import RESERVED, read_prompts, warn_unread
from parts.data.rows import is_hub_id, placed_rows
from parts.foundation.bundle import EMBEDDED_EVAL, sibling
from parts.foundation.messages import UserError, need, say

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "query", "text", "input")


def placed_rows_of(source: str, asks: bool, flag: str = "--data") -> list[tuple[str, dict]]:
    """(place, row) of a file, of a hub id, or of any other form by data_loader.py; never none.

    A task that `asks` gets the prompts of chats without a prompt, as the trainers read them.
    """
    need(source, f"got no {flag}; expected a file or hub id; try {flag} {EMBEDDED_EVAL}")
    plain = Path(source).suffix.lower() in (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
    if plain or (is_hub_id(source) and Path(source).suffix.lower() not in (".gz", ".zst", ".tsv", ".txt")):
        rows = placed_rows(source)
        if asks and all(first_of(row, PROMPT_COLUMNS) is None for _, row in rows):
            rows = read_prompts(source, "prompt")
    else:
        loader = sibling("data_loader")
        try:
            rows = [(f"{source}, row {i}", row) for i, row in enumerate(loader.load_rows(source).rows, 1)]
        except loader.UserError as error:
            raise UserError(str(error)) from None
    need(rows, f"got data {source!r} without rows; expected at least one")
    return rows


def first_of(row: dict, names) -> object:
    """The first of these columns that the row has; None without."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def what_asks(task, row: dict):
    """What tells a row from others: its prompt; all of it where the answer is one of its choices."""
    return row if task.logprobs else first_of(row, PROMPT_COLUMNS)


def task_rows(config, task) -> tuple[list[dict], list[dict]]:
    """(rows to evaluate, rows for worked examples), checked."""
    placed, shots = placed_rows_of(task.source, task.asks), []
    if config.fewshot and task.asks:
        same_rows = not config.fewshot_data
        pool = placed if same_rows else placed_rows_of(config.fewshot_data, task.asks, "--fewshot_data")
        enough = len(pool) >= config.fewshot + same_rows
        need(enough, f"got {len(pool)} rows; expected more than --fewshot {config.fewshot}; try a lower one")
        shots, count = [row for _, row in pool[: config.fewshot]], len(placed)
        shown = [what_asks(task, row) for row in shots]
        placed = [(place, row) for place, row in placed if what_asks(task, row) not in shown]
        need(placed, "got no rows besides the worked examples; expected others; try another --fewshot_data")
        if len(placed) < count:
            say(f"{task.label}: {count - len(placed)} rows serve as worked examples and are not evaluated")
    placed = placed[: task.settings["limit"] or config.limit or None]
    rows = [row for _, row in placed]
    for place, row in placed:
        try:
            task.check_row(row)
            if task.asks:
                task.question(row)
            if config.completion_column:
                given_texts(config, row)
        except UserError as error:
            raise type(error)(f"{place}: {error}") from None
    task.decide(placed)
    if task.asks:
        warn_unread(task.source, [(task.unused(row), task.question(row)) for row in rows])
    return rows, shots


def given_texts(config, row: dict) -> list[str]:
    """The completions in --completion_column: a text or a list of them."""
    given = row.get(config.completion_column)
    texts = [given] if isinstance(given, str) else given
    good = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    got = f"{str(given)[:60]!r} in column" if config.completion_column in row else "no column"
    need(good, f"got {got} {config.completion_column!r}; expected text or a list of texts")
    return texts


def run_settings(model: Path) -> tuple[Path, dict]:
    """(Folder, settings) of the run that wrote a model; {} if no run's settings lie beside it."""
    for folder in (model, *model.parents[:3]):  # the last: checkpoints/checkpoint-50
        for name in ("config.json", "settings.json"):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                saved = json.loads((folder / name).read_text(encoding="utf-8"))
                saved = saved.get("settings", saved)
                if {"data", "data.train_files"} & saved.keys():  # the config.json of a model has no data
                    return folder, saved
    return model, {}


def trained_tasks(source: str, with_columns: bool) -> set[tuple]:
    """What the prompts ask that a model, and those that it began from, were trained on, as their runs' settings say."""
    tasks, seen, model = set(), set(), Path(source).resolve()
    while model and model.is_dir() and model not in seen:
        seen.add(model)
        folder, settings = run_settings(model)
        data = settings.get("data") or settings.get("data.train_files") or []
        columns = (settings.get("prompt_column"), *PROMPT_COLUMNS)
        alike = bool(settings.get("environment")) == with_columns  # else the run told its tasks apart otherwise
        for file in data if isinstance(data, list) else [data]:
            try:
                rows = [row for _, row in read_prompts(str(file), "prompt")]
                asking = [task for row in rows if (task := asked(row, columns, with_columns))]
                tasks.update({*asking} - drawn_tasks(asking, (alike and settings.get("hold_out")) or 0))
            except UserError as error:
                say(f"note: cannot tell whether {source} was trained on these rows: {folder} names {file}: {error}")
        model = settings.get("model") and Path(str(settings["model"])).resolve()
    return tasks


def asked(row: dict, columns, with_columns: bool) -> tuple | None:
    """`task_of` a row of a data file; None where no prompt is found in it."""
    name = next((name for name in columns if row.get(name)), None)
    prompt = row.get(name)
    if not isinstance(prompt, str | list):
        return None
    others = {key: value for key, value in row.items() if key not in (*RESERVED, name)}
    try:
        return task_of({"prompt": prompt, "columns": others}, with_columns)
    except (KeyError, TypeError, AttributeError):  # a list, but not of messages
        return None


def count_trained(source: str, tasks: list[tuple]) -> dict[str, int]:
    """How many rows of each task, by its label, a model was trained on; says so in one line where there are any."""
    played = all(task.plays for task, _ in tasks)
    trained = trained_tasks(source, played)
    counts = {task.label: sum(asked(row, PROMPT_COLUMNS, played) in trained for row in rows) for task, rows in tasks}
    shares = [f"{task.label}: {counts[task.label]} of {len(rows)} rows" for task, rows in tasks if counts[task.label]]
    if shares:
        say(f"warning: {source} was trained on rows of this evaluation ({', '.join(shares)}); the figures are inflated")
    return {label: count for label, count in counts.items() if count}


def warn_of_trained(reports: list[dict]) -> None:
    """Say where results that are compared have rows that a model was trained on."""
    for report in reports:
        for label, result in report["tasks"].items():
            if result.get("trained_rows"):
                text = f"{report['model']['name']}, {label}: {result['trained_rows']} of {result['rows']}"
                say(f"warning: rows of this comparison were trained on ({text}); a gain is inflated")
