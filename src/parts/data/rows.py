"""Rows of data from JSONL, JSON, CSV, parquet or the hub, and what a prompt may be."""

import functools
import io
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from parts.data.data_files import open_data, refuse_no_data
from parts.data.nested_rows import rows_in, with_chats
from parts.data.tables import OTHER_ENCODING, table_rows
from parts.foundation.messages import RowFlaw, UserError, need, suggest


def read_json_lines(path: Path) -> list[dict]:
    """Read JSONL; a broken line is named by file and number (blank lines count)."""
    with path.open("rb") as f:
        return json_lines(f, str(path))


def json_lines(stream, name: str) -> list[dict]:
    """Rows of JSONL; a broken line is named by file and number (blank lines count)."""
    rows = []
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line.decode()))
        except UnicodeDecodeError as error:
            got = f"{name}:{number}: got byte {line[error.start]:#04x}, which is not UTF-8"
            raise UserError(f"{got}; expected UTF-8 text; try {OTHER_ENCODING}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}:{number}: got no JSON ({error}); expected one object a line") from None
        got = f"{name}:{number}: got {line[:40].decode('utf-8', 'replace')!r}"
        need(isinstance(rows[-1], dict), f"{got}; expected an object with a prompt")
    return rows


def is_hub_id(source: str) -> bool:
    """Whether a name, not a local path, could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


def json_rows(stream, name: str, form: str) -> list[dict]:
    """Rows of JSON: a line each, a list of objects, or an object that holds them."""
    if form == "json":
        data = stream.read()
        stream = io.BytesIO(data)
        try:
            value = json.loads(data) if data.strip() else []
        except ValueError as error:
            if "Extra data" not in str(error):
                raise
            value = json_lines(stream, name)
    else:
        value = json_lines(stream, name)
    is_object = isinstance(value, dict)
    value = (rows_in(value, name, alone=True) or [value]) if is_object else value
    need(isinstance(value, list), f"{name}: got JSON that is not a list of objects; try JSONL, one object a line")
    rows = []
    for number, row in enumerate(value, start=1):
        need(isinstance(row, dict), f"{name}, row {number}: got {str(row)[:40]!r}; expected an object with a prompt")
        inner = None if is_object else rows_in(row, name, len(value) == 1)
        rows += [row] if inner is None else inner
    return rows


def csv_rows(stream, name: str, form: str) -> list[dict]:
    """Rows of CSV with a header; one that does not fit is named by its line."""
    rows = []
    for line, row in table_rows(stream, name, "," if form == "csv" else "\t"):
        need(isinstance(row, dict), f"{name}:{line}: {row}")
        rows.append(row)
    return rows


def read_parquet(source: str) -> list[dict]:
    """Read a parquet file."""
    import pyarrow.parquet

    with open(source, "rb") as raw:
        refuse_no_data(raw.peek(), source, "parquet")
        return pyarrow.parquet.read_table(raw).to_pylist()


FORMS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}


def hub_rows(source: str) -> Iterator[dict]:
    """Rows of a data set of the hub, `owner/name[:config][@split]`; code that comes with it is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    offline = not hub_is_reached()
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or offline
    try:
        yield from datasets.load_dataset(name, subset or None, split=split or "train")
    except Exception as error:  # every layer below has its own
        why = "and the hub cannot be reached" if offline else "and the hub says"
        raise UserError(f"got data {source!r}: no such file, {why}: {str(error)[:300]}") from None


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client reads the cache alone, without minutes of trying."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
            return True  # an answer too; certificates of a proxy may be known to the hub's client alone
        hub.HF_HUB_OFFLINE = True
        return False
    return True


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV, TSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    path, form = Path(source), FORMS.get(Path(source).suffix.lower())
    if not path.is_file():
        need(
            is_hub_id(source) and not form,
            f"got data {source!r}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id",
        )
        return chat_rows(hub_rows(source), source)
    need(form, f"got data {source!r}; expected a name ending in {', '.join(FORMS)}; try data_loader.py for others")
    try:
        if form == "parquet":
            rows = read_parquet(source)
        else:
            stream, form = open_data(source, form)
            with stream:
                rows = (csv_rows if form in ("csv", "tsv") else json_rows)(stream, source, form)
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: got a file that cannot be read ({error}); expected valid {path.suffix}") from None
    return chat_rows(rows, source)


def chat_rows(rows: Iterable[dict], source: str) -> list[dict]:
    """The rows with messages where cells hold them as JSON text."""
    decoded = []
    for number, row in enumerate(rows, start=1):
        try:
            decoded.append(with_chats(row))
        except RowFlaw as flaw:
            raise UserError(f"{source}, row {number}: {flaw}") from None
    return decoded


def prompt_of(row: dict, column: str, where: str):
    """The prompt in a column of a row; UserError where there is no such column, its cell is empty, or no prompt."""
    near = suggest(column, list(row)).replace("; try ", "; try --prompt_column ")
    try_one = near or "; try --prompt_column NAME, or data_loader.py"
    need(column in row, f"{where}: got columns {', '.join(map(str, row))}; expected {column!r}{try_one}")
    got = f"{where}: got an empty cell in the column {column!r}; expected a prompt"
    need(row[column] not in (None, ""), f"{got}; try filling it, or leaving out the row")
    check_prompt(row[column], where)
    return row[column]


def check_prompt(prompt, where: str) -> None:
    """Raise UserError unless the prompt is a non-empty string or a list of chat messages."""
    is_text = isinstance(prompt, str) and prompt.strip()
    try:
        as_text = is_text and with_chats({"prompt": prompt})["prompt"] is not prompt
    except RowFlaw:
        as_text = True
    advice = "try a column named `prompt`, or data_loader.py with --map prompt=COLUMN"
    need(not as_text, f"{where}: got chat messages as text, {str(prompt)[:40]!r}; expected a list of them; {advice}")
    is_chat = isinstance(prompt, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
    )
    need(
        is_text or (is_chat and prompt),
        f"{where}: got prompt {str(prompt)[:80]!r}; expected a non-empty string or a list of "
        '{"role": …, "content": …} messages',
    )
