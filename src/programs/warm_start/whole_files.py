"""Files that appear whole or not at all."""

import json
import os
from pathlib import Path

from parts.data.rows import read_json_lines


def write_whole(path: Path, text: str) -> None:
    """Write a file so that its name never stands for a part of it, also after the machine went down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value) -> None:
    """Write one JSON value."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    """Write JSONL."""
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict]:
    """Read JSONL; no rows where there is no file."""
    return read_json_lines(path) if path.exists() else []
