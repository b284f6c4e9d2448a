"""Records of each file format."""

import contextlib
import importlib
import importlib.util
import io
import itertools
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

from parts.data.data_files import refuse_no_data
from parts.data.nested_rows import rows_in
from parts.data.tables import OTHER_ENCODING, table_rows
from parts.foundation.messages import RowFlaw, UserError, need, suggest
from programs.data_loader.bad_rows import HEAD, MAX_LINE, BadRow, shown
from programs.data_loader.json_values import JsonDecoder, Record, as_plain, broken, nearby, no_object

JSON_SPACE = re.compile(r"[ \t\n\r]*")
COMMAS = re.compile(r"[ \t\n\r,]*")


def json_lines(stream) -> Iterator[Record]:
    """Rows of JSONL. Lines end at line feeds only; blank ones are counted, not read."""
    decoder, number = JsonDecoder(), 0
    while data := stream.readline(MAX_LINE):
        number += 1
        if len(data) == MAX_LINE and not data.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield broken(number, BadRow("row", f"a line of {MAX_LINE} bytes and more", "a shorter one"), data)
        elif not data.isspace():
            yield read_line(decoder, data, number)


def read_line(decoder: JsonDecoder, data: bytes, number: int) -> Record:
    """One line of JSONL."""
    try:
        text = data.decode().strip()
        value, end = decoder.decode(text)
        if end < len(text):
            raise BadRow("row", f"{shown(text[end : end + 40])} after the object", "one object a line")
        return Record(number, decoder.check(value, text))
    except UnicodeDecodeError as error:
        where = f"byte {data[error.start]:#04x} at column {error.start + 1}, which is not UTF-8"
        return broken(number, BadRow("row", where, "UTF-8 text", OTHER_ENCODING), data)
    except BadRow as error:
        return broken(number, error, data)


def json_values(stream) -> Iterator[Record]:
    """Rows of a JSON file: an array of objects, one object with one list of them, objects in a row, or JSONL."""
    data = stream.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or (data.lstrip()[:1] != b"[" and has_line_object(data)):
        yield from json_lines(io.BytesIO(data))
    else:
        yield from values_of(text)


def has_line_object(data: bytes) -> bool:
    """Whether one of the first lines is an object by itself: in JSONL a broken line costs no other."""
    for line in itertools.islice(data.split(b"\n"), HEAD):
        with contextlib.suppress(BadRow, UnicodeDecodeError):
            text = line.decode().strip()
            if line[:1] == b"{" and JsonDecoder().decode(text)[1] == len(text):
                return True
    return False


def values_of(text: str) -> Iterator[Record]:
    """Rows of a text that holds JSON values one after another, or in one array.

    A comma too many or too few is a flaw of its own that costs no value; what follows a value without an end is lost.
    """
    decoder, line, counted, at = JsonDecoder(), 1, 0, JSON_SPACE.match(text).end()
    inside = text.startswith("[", at)
    at, is_first = at + inside, True
    while True:
        begin, at = at, COMMAS.match(text, at).end()
        is_closed = inside and text.startswith("]", at)
        is_last = is_closed or at == len(text)
        if (count := text.count(",", begin, at)) != (wanted := int(inside and not is_first and not is_last)):
            yield misplaced_comma(text, begin, at, count, wanted)
        if is_last:
            break
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end = decoder.decode(text, at)
        except BadRow as error:
            parts = {"field": "row", "got": error.parts["got"], "expected": error.parts["expected"]}
            yield broken(line, BadRow(**parts, advice="mending it, as nothing after it could be read"), text[at:])
            return
        try:
            yield Record(line, decoder.check(value, text[at:end]))
        except BadRow as error:
            yield broken(line, error, text[at:end])
        at, is_first = end, False
    line += text.count("\n", counted, at)
    if inside and not is_closed:
        yield broken(line, BadRow("row", "an array without end", "`]` at its end"), text[-100:])
    elif inside and (rest := text[at + 1 :].strip()):
        yield broken(line, BadRow("row", f"{shown(rest)} after the array", "the end of the file"), rest)


def misplaced_comma(text: str, begin: int, end: int, count: int, wanted: int) -> Record:
    """The record of a flaw of commas: it names the place of the first that is too many, or where one is missing."""
    commas = [at for at in range(begin, end) if text[at] == ","]
    at = commas[wanted] if count > wanted else end
    column = at - text.rfind("\n", 0, at)
    got = f"{'a comma too many' if count > wanted else 'no comma'} (at column {column}, near {nearby(text, at)})"
    error = BadRow("row", got, "one comma between two values of an array, and no other", "mending the commas there")
    return broken(text.count("\n", 0, at) + 1, error, text[max(at - 50, 0) : at + 50])


def unfolded_rows(records: Iterator[Record], name: str, known: tuple) -> Iterator[Record]:
    """The records, with the rows inside of objects that hold rows; such rows are counted from 1."""
    first, second = next(records, None), next(records, None)
    count = 0
    for record in itertools.chain([item for item in (first, second) if item], records):
        rows = rows_in(record.row, name, second is None, known) if record.row is not None else None
        if rows is None:
            yield record
        for row in rows or ():
            count += 1
            yield checked(count, row)


def text_rows(stream, separator: str | None) -> Iterator[Record]:
    """One prompt a line, or between separators; blank ones are skipped. The line is where the prompt begins."""
    pieces = ((number, line) for number, line in enumerate(stream, start=1))
    if separator is not None:
        need(separator, "got an empty text separator; expected text that stands between two prompts")
        pieces, number = [], 1
        for piece in stream.read().split(separator.encode()):
            start = number + piece[: len(piece) - len(piece.lstrip())].count(b"\n")
            number += (piece + separator.encode()).count(b"\n")
            pieces.append((start, piece))
    for number, piece in pieces:
        try:
            if piece.strip():
                yield Record(number, {"prompt": piece.decode().strip("\r\n")})
        except UnicodeDecodeError as error:
            yield broken(
                number,
                BadRow("prompt", f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text", OTHER_ENCODING),
                piece,
            )


def csv_rows(stream, name: str, delimiter: str, chosen: str | None) -> Iterator[Record]:
    """Rows of a CSV or TSV file with a header; every value is text, and an empty one is absent."""
    for line, row in table_rows(stream, name, delimiter, chosen):
        if isinstance(row, RowFlaw):
            yield broken(line, row)
        else:
            yield checked(line, {column: cell or None for column, cell in row.items()})


def parquet_rows(source: str, max_bytes: int) -> Iterator[Record]:
    """Rows of a parquet file, 1000 at a time; numbered from 1."""
    import pyarrow.parquet

    number = 0
    try:
        with open(source, "rb") as raw:
            refuse_no_data(raw.peek(), source, "parquet")
            file = pyarrow.parquet.ParquetFile(raw)
            meta = file.metadata
            size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
            too_big = f"{source}: got {size} unpacked bytes; expected at most max_bytes {max_bytes}; try --max_bytes"
            need(size <= max_bytes, too_big)
            for batch in file.iter_batches(1000):
                for row in batch.to_pylist():
                    number += 1
                    yield checked(number, row)
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise UserError(f"{source}: got no readable parquet ({shown(str(error))}); expected an intact file") from None


def checked(number: int, row) -> Record:
    """A record of a row that Python holds already."""
    try:
        if not isinstance(row, dict):
            raise no_object(row)
        return Record(number, as_plain(row))
    except BadRow as error:
        return broken(number, error, shown(row))


def generated_rows(source: str) -> Iterator[Record]:
    """Tasks of reasoning-gym: `reasoning_gym:NAME?size=100&seed=0&KEY=VALUE`, the keys those of the generator."""
    name, _, query = source.partition(":")[2].partition("?")
    try:
        gym = importlib.import_module("reasoning_gym")
    except ImportError:
        raise UserError(f"got {source!r}; expected the package; try `pip install reasoning-gym`") from None
    settings = {"size": 100, "seed": 0}
    for key, value in urllib.parse.parse_qsl(query):
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    try:
        tasks = gym.create_dataset(name, **settings)
        rows = (tasks[index] for index in range(len(tasks)))
        for number, row in enumerate(rows, start=1):
            yield checked(number, json.loads(json.dumps(row, default=str)))
    except (TypeError, ValueError, AssertionError) as error:
        known = [*importlib.import_module("reasoning_gym.factory").DATASETS]
        name = "" if name in known else name
        raise UserError(
            f"got {source!r}: {error}; expected a generator and its settings{suggest(name, known)}"
        ) from None
