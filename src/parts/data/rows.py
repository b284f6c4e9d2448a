"""Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts."""

import functools
import itertools
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from parts.data.data_files import (
    MAX_BYTES,
    OTHER_ENCODING,
    begins_lines,
    check_distinct,
    flaw_of_bytes,
    open_text,
    refuse_no_data,
    table_rows,
)
from parts.data.nested_rows import CHAT_COLUMNS, VISIBLE, rows_in, with_chats
from parts.foundation.messages import RowFlaw, UserError, need, suggest

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
MISNAMED = {  # role in other spellings or ShareGPT's -> our role
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
}
JSON_SPACE = re.compile(r"[ \t\n\r]*")


def placed_json_lines(path: Path) -> list[tuple[str, dict]]:
    """(`FILE:LINE`, row) of each row of JSONL; a broken line raises UserError with its place (blank lines count)."""
    rows = []
    with open_text(str(path), "jsonl")[0] as stream:
        for line, row in json_lines(stream):
            need(not isinstance(row, RowFlaw), f"{path}:{line}: {row}")
            rows.append((f"{path}:{line}", row))
    return rows


def unique(pairs: list[tuple]) -> dict:
    """Build a JSON object; RowFlaw for a duplicate key, of which Python would keep the last."""
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise RowFlaw(twice, "the key twice in one object", "each key once", "deleting one of them")
    return row


def plain_json(text: str):
    """Parse JSON text; RowFlaw if it is invalid or an object has a key twice."""
    if flaw := flaw_of_bytes(text):
        raise RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise RowFlaw("row", "nesting too deep", "fewer levels", "storing the inner part as JSON text") from None
    except ValueError as error:
        at = getattr(error, "pos", 0)
        got = f"invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        advice = ["json.dumps for each row, as this is Python's notation"] if re.match(r"\s*\[?\{\s*'", text) else []
        raise RowFlaw("row", got, "one JSON object", *advice) from None


def as_row(value) -> dict:
    """A JSON value if it is an object; RowFlaw for others, with special advice for bare messages."""
    if isinstance(value, dict):
        return value
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
    advice = ['{"messages": […]} for each row, with the answer in its own field'] if is_chat else []
    raise RowFlaw("row", f"{type(value).__name__} {value!r:.60}", "a JSON object with named fields", *advice)


def json_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from JSONL. Blank lines count but are skipped."""
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                yield number, as_row(plain_json(line))
            except RowFlaw as flaw:
                flaw.parts["row"] = line.rstrip("\r\n")
                yield number, flaw


def json_records(text: str, name: str, known) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (number, row or its flaw) from a JSON file: an array, an object that holds the rows, or several objects."""
    decoder, values, at = json.JSONDecoder(object_pairs_hook=unique), [], JSON_SPACE.match(text).end()
    flaw = flaw_of_bytes(text)
    need(not flaw, f"{name}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            at = JSON_SPACE.match(text, at).end()
    except RecursionError:
        raise UserError(f"{name}: got JSON with too many levels of nesting; expected rows; try JSONL") from None
    except RowFlaw as flaw:
        raise UserError(f"{name}: {flaw}") from None
    except ValueError as error:
        got = f"{name}: got invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        raise UserError(f"{got}; expected an array of objects; try fixing it, or JSONL") from None
    if len(values) == 1:
        inner = rows_in(values[0], name, known) if isinstance(values[0], dict) else values[0]
        values = inner if isinstance(inner, list) else values
    for number, value in enumerate(values, start=1):
        try:
            yield number, as_row(value)
        except RowFlaw as flaw:
            yield number, flaw


def parquet_records(source: str) -> Iterator[tuple[int, dict]]:
    """Yield (number, row) from a parquet file, read 1000 rows at a time."""
    import pyarrow.parquet

    try:
        with open(source, "rb") as raw:
            refuse_no_data(raw.peek(), source, "parquet")
            file = pyarrow.parquet.ParquetFile(raw)
            check_distinct(file.schema_arrow.names, source)
            size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            need(size <= MAX_BYTES, f"{source}: got {size} unpacked bytes; expected {MAX_BYTES} at most; try parts")
            yield from enumerate(map(without_nulls, arrow_rows(file.iter_batches(1000))), start=1)
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise UserError(f"{source}: got unreadable parquet ({str(error)[:200]}); expected an intact file") from None


def arrow_rows(tables: Iterable) -> Iterator[dict]:
    """Rows of Arrow tables; numbers of 32 bits as they were written, 0.1 instead of 0.10000000149011612."""
    for table in tables:
        columns = [cells.cast("string").cast("double") if cells.type == "float" else cells for cells in table.columns]
        yield from type(table).from_arrays(columns, names=table.schema.names).to_pylist()


def without_nulls(row: dict) -> dict:
    """The row without null keys in messages and tools, as Arrow adds the keys of other rows' objects."""
    lists = {name: row[name] for name in (*CHAT_COLUMNS, "tools") if isinstance(row.get(name), list)}
    turns = {"role", "from"}  # other objects may mean their nulls
    chats = [k for k, v in lists.items() if k == "tools" or all(isinstance(x, dict) and turns & x.keys() for x in v)]
    return row | {name: bare(row[name]) for name in chats}


def bare(value):
    """A value without null keys, which parquet adds for keys of other rows."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list) else value


def prompt_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from a text with one prompt per line; blank lines are skipped."""
    for number, line in enumerate(stream, start=1):
        if flaw := flaw_of_bytes(line):
            yield number, RowFlaw("prompt", flaw, "UTF-8 text", OTHER_ENCODING)
        elif line.strip():
            yield number, {"prompt": line.strip("\r\n")}


def file_records(source: str, form: str | None, encoding=None, known=()) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line or number, row or its flaw) from a file, stdin (`-`) or, if it is neither, the hub.

    Args:
        form: jsonl, json, csv, tsv, txt or parquet; None: detected from the text.
        encoding: of the text; None: detected.
        known: further column names that mark an object as a row.
    """
    name = "stdin" if source == "-" else source
    if source != "-" and not Path(source).exists():
        yield from enumerate(hub_rows(source), start=1)
        return
    if form == "parquet":
        need(source != "-", "got parquet on stdin; expected a file, as reading parquet needs random access")
        yield from parquet_records(source)
        return
    asked = form
    stream, form = open_text(source, form, encoding)
    try:
        with stream:
            if form in ("csv", "tsv"):
                yield from table_rows(stream.read(), name, "," if form == "csv" else "\t")
            elif form == "txt":
                yield from prompt_lines(stream)
            elif form == "json":
                begun = list(itertools.islice(stream, 2))  # detects JSONL whose first line exceeds the head
                if asked != "json" and begins_lines("".join(begun)):
                    yield from json_lines(itertools.chain(begun, stream))
                else:
                    yield from json_records("".join(begun) + stream.read(), name, known)
            else:
                yield from json_lines(stream)
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{name}: got bytes that cannot be read ({error}); expected an intact file") from None


def is_hub_id(source: str) -> bool:
    """Whether a name could be `owner/name` or `name` on the hub, as it is no local path."""
    name, form = re.split("[:@]", source)[0], r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b"  # as the hub's own client has it
    if Path(source).exists() or source.count("/") > 1 or re.search(r"--|\.\.", name):
        return False
    return bool(re.fullmatch(form, name, re.ASCII))


def hub_rows(source: str) -> Iterator[dict]:
    """Rows of a hub data set `owner/name[:config][@split]` (split train by default); its code is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    offline = not hub_is_reached()
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or offline
    try:
        data = datasets.load_dataset(name, subset or None, split=split or "train")
        rows = map(data.features.decode_example, arrow_rows(data.with_format("arrow").iter(1000)))
        yield from map(without_nulls, rows)
    except Exception as error:  # every layer below raises its own types
        why = "and the hub cannot be reached" if offline else "and the hub says"
        raise UserError(f"got data {source!r}: no such file, {why}: {str(error)[:300]}") from None


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client is set offline, as it would retry for minutes."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
            return True  # an HTTP error is an answer; and the hub's client may know a proxy's certificate
        hub.HF_HUB_OFFLINE = True
        return False
    return True


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV, TSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    return [row for _, row in placed_rows(source)]


def placed_rows(source: str) -> list[tuple[str, dict]]:
    """(place, row) of each row that `read_rows` reads; a place is `FILE:LINE`, or `SOURCE, row N` without lines."""
    form, is_file, placed = SUFFIXES.get(Path(source).suffix.lower()), Path(source).is_file(), []
    got = f"got data {source!r}"
    known = is_file or (is_hub_id(source) and not form)
    need(known, f"{got}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id")
    names = ", ".join(SUFFIXES)
    need(form or not is_file, f"{got}; expected a name ending in {names}; try data_loader.py for others")
    for number, row in file_records(source, form):
        place = f"{source}:{number}" if form in ("jsonl", "csv", "tsv") else f"{source}, row {number}"
        need(not isinstance(row, RowFlaw), f"{place}: {row}")
        try:
            placed.append((place, with_chats(row)))
        except RowFlaw as flaw:
            raise UserError(f"{place}: {flaw}") from None
    return placed


def prompt_of(row: dict, column: str, where: str):
    """The prompt in a row's column; UserError if the column is missing, or its cell is empty or not a prompt."""
    near = suggest(column, list(row)).replace("; try ", "; try --prompt_column ")
    chats = {"messages", "conversations", "conversation"} & row.keys()  # their last turn may be the answer
    name = next((name for name in ("question", "problem", "instruction", "query") if name in row), "NAME")
    advice = "; try data_loader.py" if chats else near or f"; try --prompt_column {name}, or data_loader.py"
    need(column in row, f"{where}: got columns {', '.join(map(str, row))}; expected {column!r}{advice}")
    got = f"{where}: got an empty cell in the column {column!r}; expected a prompt"
    need(row[column] not in (None, ""), f"{got}; try filling it in, or leaving out the row")
    check_prompt(row[column], where)
    return row[column]


def check_unicode(text: str, where: str = "") -> None:
    """Raise UserError if the text has half a surrogate pair, which tokenizers refuse and UTF-8 cannot encode."""
    half = re.search("[\ud800-\udfff]", text)
    got = half and f"got {text[max(0, half.start() - 20) : half.end() + 20]!r} with half a surrogate pair"
    need(not half, f"{where}{got}; expected Unicode text; try cutting the source between characters")


def check_prompt(prompt, where: str) -> None:
    """Raise UserError unless the prompt is a non-empty string or a list of chat messages."""
    is_text = isinstance(prompt, str) and VISIBLE.search(prompt)
    try:
        as_text = is_text and with_chats({"prompt": prompt})["prompt"] is not prompt
    except RowFlaw:
        as_text = True
    advice = "try a column named `prompt`, or data_loader.py with --map prompt=COLUMN"
    need(not as_text, f"{where}: got chat messages as text, {str(prompt)[:40]!r}; expected a list of them; {advice}")
    messages = prompt if isinstance(prompt, list) else []
    texts = [m.get(key) for m in messages if isinstance(m, dict) for key in ("role", "content")]
    is_chat = messages and len(texts) == 2 * len(messages) and all(isinstance(text, str) for text in texts)
    expected = 'expected a non-empty string or a list of {"role": …, "content": …} messages; try data_loader.py'
    need(is_text or is_chat, f"{where}: got prompt {str(prompt)[:80]!r}; {expected}")
    for text in texts[1::2] or [prompt]:
        check_unicode(text, f"{where}: ")
    for role in texts[::2]:
        known = MISNAMED.get(role.strip().lower(), role)
        need(role == known, f"{where}: got the role {role!r}; expected {known!r}; try data_loader.py")
