"""Rows that the model was trained on: those of the data that its run's settings name."""

import json
from collections.abc import Iterator
from pathlib import Path

from parts.data.held_out import task_of
from parts.data.prompts import RESERVED
from parts.data.rows import read_rows
from parts.foundation.messages import UserError, say
from programs.evaluation.tasks import PROMPT_COLUMNS, Task


def training_settings(source: str) -> Iterator[tuple[Path, dict]]:
    """(folder, settings) of the run that wrote a model, and of those that wrote the models before it."""
    seen, path = set(), Path(source).resolve()
    while path.is_dir() and path not in seen:
        seen.add(path)
        settings = {}
        for folder in (
            path,
            *path.parents[:3],
        ):  # the last: checkpoints/checkpoint-50
            for name in ("config.json", "settings.json"):
                try:
                    saved = json.loads((folder / name).read_text(encoding="utf-8"))
                    saved = saved.get("settings", saved)
                except (OSError, ValueError, AttributeError):
                    continue
                if not settings and isinstance(saved, dict) and {"data", "data.train_files"} & saved.keys():
                    settings = saved  # the config.json of a model has no data
                    yield folder, saved
        path = Path(str(settings.get("model") or "")).resolve() if settings.get("model") else Path()


def trained_tasks(source: str, with_columns: bool) -> set[tuple]:
    """What the prompts ask that a model was trained on; none for a model that no run's settings lie beside."""
    tasks = set()
    for folder, settings in training_settings(source):
        data = settings.get("data") or settings.get("data.train_files")
        for file in data if isinstance(data, list) else [data]:
            try:
                rows = read_rows(str(file))
            except UserError as error:
                say(f"note: cannot tell whether {source} was trained on these rows: {folder} names {file}: {error}")
                continue
            column = settings.get("prompt_column")
            tasks.update(asked(row, (column, *PROMPT_COLUMNS), with_columns) for row in rows)
    return tasks - {None}


def asked(row: dict, columns, with_columns: bool) -> tuple | None:
    """`task_of` a row of a data file; None where no prompt is found in it."""
    name = next((name for name in columns if row.get(name)), None)
    prompt = row.get(name)
    good = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(turn, dict) for turn in prompt))
    if not good or not name:
        return None
    others = {key: value for key, value in row.items() if key not in (*RESERVED, name)}
    try:
        return task_of({"prompt": prompt, "columns": others}, with_columns)
    except (KeyError, TypeError):
        return None


def count_trained(source: str, tasks: list[tuple[Task, list[dict]]]) -> dict[str, int]:
    """How many rows of each task, by its label, a model was trained on; says so in one line where there are any."""
    played = [task.plays for task, _ in tasks]
    trained = trained_tasks(source, all(played))
    counts = {
        task.label: sum(asked(row, PROMPT_COLUMNS, all(played)) in trained for row in rows) for task, rows in tasks
    }
    counts = {label: count for label, count in counts.items() if count}
    if counts:
        rows = {task.label: len(rows) for task, rows in tasks}
        shares = ", ".join(f"{label}: {count} of {rows[label]} rows" for label, count in counts.items())
        say(f"warning: {source} was trained on rows of this evaluation ({shares}); the figures are inflated")
    return counts


def warn_of_trained(reports: list[dict]) -> None:
    """Say where results that are compared have rows that a model was trained on."""
    counts = [
        f"{report['model']['name']}, {label}: {result['trained_rows']} of {result['rows']}"
        for report in reports
        for label, result in report["tasks"].items()
        if result.get("trained_rows")
    ]
    if counts:
        say(f"warning: rows of this comparison were trained on ({'; '.join(counts)}); a gain is inflated")
