"""Rows of data from JSONL, JSON, CSV, parquet or the hub, and what a prompt may be."""

import csv
import json
import urllib.error
import urllib.request
from pathlib import Path

from parts.messages import UserError, need


def read_json_lines(path: Path) -> list[dict]:
    """Read JSONL; a broken line is named by file and number (blank lines count)."""
    rows = []
    with path.open(encoding="utf-8-sig", newline="\n") as f:
        for number, line in enumerate(f, start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{number}: got no JSON ({error}); expected one object a line") from None
            need(isinstance(rows[-1], dict), f"{path}:{number}: got {line[:40]!r}; expected an object with a prompt")
    return rows


def is_hub_id(source: str) -> bool:
    """Whether a name that is no local path could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


def read_csv(path: Path) -> list[dict]:
    """Read CSV with a header; a row of another number of fields is named by its line."""
    rows = []
    with path.open(encoding="utf-8-sig", newline="") as f:
        csv.field_size_limit(2**31 - 1)
        reader = csv.DictReader(f, strict=True)
        for row in reader:
            fits = None not in row and None not in row.values()
            need(fits, f"{path}:{reader.line_num}: got another number of fields than the header's; try quoting")
            rows.append(row)
    return rows


def read_json_list(path: Path) -> list[dict]:
    """Read JSON, one list of objects."""
    rows = json.loads(path.read_text(encoding="utf-8-sig"))
    objects = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    need(objects, f"{path}: got JSON that is not a list of objects; try JSONL, one object a line")
    return rows


def read_parquet(path: Path) -> list[dict]:
    """Read a parquet file."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


READERS = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_list,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_hub(source: str) -> list[dict]:
    """Read a data set of the hub: `owner/name[:config][@split]`."""
    try:
        return hub_data(source).to_list()
    except Exception as error:
        raise UserError(f"got data {source!r}: no such file, and {hub_says(error)}") from None


def hub_data(source: str):
    """The data set of `owner/name[:config][@split]`; code that comes with it is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    datasets.config.HF_HUB_OFFLINE = not hub_is_reached()
    return datasets.load_dataset(name, subset or None, split=split or "train")


def hub_says(error: Exception) -> str:
    """What is wrong with a data set of the hub, or that the hub is out of reach."""
    import huggingface_hub.constants as hub

    away = f"{hub.ENDPOINT} cannot be reached ({str(error)[:120]}); expected a file, or the network; try a file"
    return away if hub.HF_HUB_OFFLINE else f"the hub says: {error}"


def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client reads the cache alone, without minutes of trying."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:  # an answer too
        return True
    except OSError:
        hub.HF_HUB_OFFLINE = True
        return False
    return True


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    path, suffix = Path(source), Path(source).suffix.lower()
    if not path.is_file():
        need(
            is_hub_id(source) and suffix not in READERS,
            f"got data {source!r}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id",
        )
        return read_hub(source)
    need(suffix in READERS, f"got data {source!r}; expected a name ending in .jsonl, .json, .csv or .parquet")
    try:
        return READERS[suffix](path)
    except (ValueError, OSError, RecursionError, csv.Error) as error:
        raise UserError(f"{path}: got a file that cannot be read ({error}); expected valid {suffix}") from None


def check_prompt(prompt, where: str) -> None:
    """Raise UserError unless the prompt is a non-empty string or a list of chat messages."""
    is_text = isinstance(prompt, str) and prompt.strip()
    is_chat = isinstance(prompt, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
    )
    need(
        is_text or (is_chat and prompt),
        f"{where}: got prompt {str(prompt)[:80]!r}; expected a non-empty string or a list of "
        '{"role": …, "content": …} messages',
    )
