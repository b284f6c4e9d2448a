"""Rows of CSV and TSV files: the separator, the header, and the cells below it."""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator

from parts.data.data_files import ASKS, OTHER_ENCODING, WEAK, flaw_of_bytes
from parts.foundation.messages import RowFlaw, UserError, need, say

SEPARATORS = (",", ";", "\t", "|")
LONGEST_CELL = 256 << 20  # characters of a cell
# names of columns, which no row of data holds
HEADER_NAMES = {*ASKS, *WEAK, "answer", "response", "output", "solution", "rejected", "choices", "id"}


def table_rows(text: str, name: str, delimiter: str, chosen: str | None = None) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line, row) below the header of a CSV text; every cell is text. A row that does not fit comes as its flaw.

    Args:
        name: what messages call the file.
        delimiter: what stands between cells, unless the file shows otherwise.
        chosen: the same, whatever the file shows.
    """
    csv.field_size_limit(LONGEST_CELL)
    used = chosen or separator_of(text, delimiter, name)
    if used != delimiter:
        say(f"{name}: read with {used!r} between the columns")
    first = next(iter(first_records(text, used)), [])
    padded = len(first) > 1 and all(cell[:1] == " " for cell in first[1:])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=used, strict=True, skipinitialspace=padded)
    try:
        header = next((cells for cells in reader if any(cells)), [])
    except csv.Error as error:
        raise UserError(f"{name}:1: got a header that is not valid CSV ({error}); expected column names") from None
    yield from body(reader, column_names(header, f"{name}:{reader.line_num}"), used)


def column_names(header: list[str], where: str) -> list[str]:
    """The names of the columns: without blanks around them, and without the empty columns that spreadsheets append."""
    names = filled([cell.strip() for cell in header])
    flaw = flaw_of_bytes("".join(names))
    need(not flaw, f"{where}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    twice = [column for column, count in Counter(names).items() if count > 1]
    need(not twice, f"{where}: got the column {twice[:1]} twice; expected each name once; try renaming one")
    text = next((cell for cell in names if len(cell) > 60 or cell[-1:] in tuple(".?!:。？！")), None)
    if text and not HEADER_NAMES & {cell.casefold() for cell in names}:
        say(
            f"warning: {where}: got the column name {text[:60]!r}; is it data? Then put a line of column names above it"
        )
    return names


def body(reader, names: list[str], delimiter: str) -> Iterator[tuple[int, dict | RowFlaw]]:
    """The rows below the header."""
    while True:
        start = reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield start + 1, RowFlaw("row", f"no CSV ({error})", "RFC 4180 quoting", 'quotes as ""')
            if reader.line_num == start:
                return
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(names):
            cells = cells[: len(names)] + filled(cells[len(names) :])
        if flaw := flaw_of_bytes("".join(cells)):
            yield start + 1, RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
        elif len(cells) != len(names):
            expected = f"{len(names)} as in the header {', '.join(names)[:60]}"
            advice = f"quoting fields that hold {delimiter!r}, or a header alone in the first line"
            yield start + 1, RowFlaw("row", f"{len(cells)} fields", expected, advice)
        else:
            yield start + 1, dict(zip(names, cells, strict=True))


def filled(cells: list[str]) -> list[str]:
    """The cells without empty ones at the end."""
    size = next((size for size in range(len(cells), 0, -1) if cells[size - 1].strip()), 0)
    return cells[:size]


def first_records(text: str, delimiter: str) -> list[list[str]]:
    """Return the first 50 records that are not empty, up to the first that is not valid CSV."""
    reader, records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), []
    try:
        records += (cells for cells in itertools.islice(reader, 50) if any(cells))
    except csv.Error:
        pass
    return records


def separator_of(text: str, delimiter: str, name: str) -> str:
    """What stands between the columns: as expected where that parts the header, else what parts all rows alike."""
    parted, steady = [], []
    for separator in dict.fromkeys((delimiter, *SEPARATORS)):
        table = first_records(text, separator)
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
