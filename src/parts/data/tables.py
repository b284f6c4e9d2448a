"""Rows of CSV and TSV files: the separator, the header, and the cells below it."""

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator

from parts.data.data_files import ASKS, WEAK
from parts.foundation.messages import RowFlaw, UserError, need, say

SEPARATORS = (",", ";", "\t", "|")
MARK = re.compile(r'"?sep=(.)"?[\r\n]*\Z')  # Excel's first line
LONGEST_CELL = 256 << 20  # characters of a cell
# what tells a header from a title above it, and from a row of data
HEADER_NAMES = {*ASKS, *WEAK, "answer", "response", "output", "solution", "rejected", "choices", "id"}
OTHER_ENCODING = "data_loader.py --encoding cp1252, or another's name, if the whole file is in it"
OTHER_BYTES = re.compile("[\udc80-\udcff]")


def table_rows(stream, name: str, delimiter: str, chosen: str | None = None) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line, row) below the header of a CSV file; every cell is text. A row that does not fit comes as its flaw.

    Args:
        stream: UTF-8 bytes that can be peeked at.
        name: what messages call the file.
        delimiter: what stands between cells, unless the file says or shows otherwise.
        chosen: the same, whatever the file shows.
    """
    csv.field_size_limit(LONGEST_CELL)
    head = stream.peek(1 << 20).decode("utf-8", "surrogateescape")
    with io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="") as lines:
        above = 0
        if mark := MARK.match(head.partition("\n")[0]):
            lines.readline()
            head, above, chosen = head.partition("\n")[2], 1, chosen or mark[1]
        used = chosen or separator_of(head, delimiter, name)
        if used != delimiter:
            say(f"{name}: read with {used!r} between the columns")
        records = first_records(head, used)
        at = header_at(records)
        padded = at < len(records) and len(records[at]) > 1 and all(cell[:1] == " " for cell in records[at][1:])
        reader = csv.reader(lines, delimiter=used, strict=True, skipinitialspace=padded)
        try:
            header = next(itertools.islice((cells for cells in reader if any(cells)), at, None), [])
        except csv.Error as error:
            raise UserError(f"{name}:1: got a header that is not valid CSV ({error}); expected column names") from None
        where = f"{name}:{reader.line_num + above}"
        if at:
            say(f"{where}: taken for the header; what stands above it is left out")
        yield from body(reader, column_names(header, where), used, above)


def column_names(header: list[str], where: str) -> list[str]:
    """The names of the columns: without blanks around them, and without the empty columns that spreadsheets append."""
    names = filled([cell.strip() for cell in header])
    twice = [column for column, count in Counter(names).items() if count > 1]
    need(not twice, f"{where}: got the column {twice[:1]} twice; expected each name once; try renaming one")
    text = next((cell for cell in names if len(cell) > 60 or cell[-1:] in tuple(".?!:。？！")), None)
    if text and not HEADER_NAMES & {cell.casefold() for cell in names}:
        say(
            f"warning: {where}: got the column name {text[:60]!r}; is it data? Then put a line of column names above it"
        )
    return names


def body(reader, names: list[str], delimiter: str, above: int) -> Iterator[tuple[int, dict | RowFlaw]]:
    """The rows below the header; `above` lines were read before the reader saw the file."""
    while True:
        start = reader.line_num
        line = start + above + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, RowFlaw("row", f"no CSV ({error})", "RFC 4180 quoting", 'quotes as ""')
            if reader.line_num == start:
                return
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(names):
            cells = cells[: len(names)] + filled(cells[len(names) :])
        if other := OTHER_BYTES.search("".join(cells)):
            got = f"byte {ord(other[0]) - 0xDC00:#04x}, which is not UTF-8"
            yield (
                line,
                RowFlaw("row", got, "UTF-8 text", OTHER_ENCODING),
            )
        elif len(cells) != len(names):
            advice = f"quoting fields that hold {delimiter!r}"
            yield line, RowFlaw("row", f"{len(cells)} fields", f"{len(names)} as in the header", advice)
        else:
            yield line, dict(zip(names, cells, strict=True))


def filled(cells: list[str]) -> list[str]:
    """The cells without empty ones at the end."""
    size = next((size for size in range(len(cells), 0, -1) if cells[size - 1].strip()), 0)
    return cells[:size]


def first_records(head: str, delimiter: str) -> list[list[str]]:
    """Return the first non-empty records, up to the first that is not valid CSV."""
    records = []
    try:
        for cells in itertools.islice(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter, strict=True), 50):
            if any(cells):
                records.append(cells)
    except csv.Error:
        pass
    return records


def header_at(records: list[list[str]]) -> int:
    """Which record is the header: the first, unless that is a title above known column names."""
    if not records or len(filled(records[0])) > 1 or records[0][0].strip().casefold() in HEADER_NAMES:
        return 0
    known = (len(cells) > 1 and HEADER_NAMES & {cell.strip().casefold() for cell in cells} for cells in records[:10])
    return next((number for number, is_header in enumerate(known) if is_header), 0)


def separator_of(head: str, delimiter: str, name: str) -> str:
    """What stands between the columns: as expected where that parts the header, else what parts all rows alike."""
    parted, steady = [], []
    for separator in dict.fromkeys((delimiter, *SEPARATORS)):
        records = first_records(head, separator)
        table = records[header_at(records) :]
        width = len(filled(table[0])) if table else 0
        if width > 1:
            parted.append(separator)
            if all(len(filled(cells)) <= width <= len(cells) for cells in table):
                steady.append(separator)
    if delimiter in parted and (delimiter in steady or not steady):
        return delimiter
    likely = steady or parted or [delimiter]
    got = f"{name}: got columns that may be parted by {' or '.join(map(repr, likely))}"
    advice = f"try python scripts/data_loader.py {name} --out clean.jsonl --delimiter {likely[0]!r}"
    need(len(likely) == 1, f"{got}; expected one of them; {advice}")
    return likely[0]
