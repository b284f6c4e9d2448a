"""Files that appear whole or not at all."""

import json
from pathlib import Path

from parts.data.rows import read_json_lines
from parts.running.output_folder import write_text


def write_json(path: Path, value) -> None:
    """Write one JSON value."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    """Write JSONL."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict]:
    """Read JSONL; no rows where there is no file."""
    return read_json_lines(path) if path.exists() else []
