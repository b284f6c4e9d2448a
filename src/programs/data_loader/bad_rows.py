"""Errors of rows, and limits."""

from parts.foundation.messages import RowFlaw, UserError

KINDS = ("prompts", "conversations", "prompt_response", "preferences", "math", "choices", "code")
TARGETS = ("ours", "trl", "verl")
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
PACKED = (".gz", ".zst")
DEFAULT_MAX_BYTES = 8 * 2**30  # what one compressed file may unpack to
MAX_LINE = 256 * 2**20  # a longer line is a bad row: a whole file without line ends must not fill the memory
MAX_DEPTH = 100  # deeper JSON breaks readers further on, Python's own encoder among them
HEAD = 100  # rows that decide what a file is taken for
CHUNK = 10_000  # rows held at once while a parquet file is written


class BadRow(RowFlaw):
    """A row that does not fit."""


class BadRows(UserError):
    """The rows that do not fit, the first 20 in the message; `rejected` holds those that were kept."""

    def __init__(self, rejected: list[dict], count: int):
        self.rejected, self.count = rejected, count
        lines: dict[tuple, list] = {}  # rows with the same flaw are one line
        for item in rejected[:20]:
            lines.setdefault((item["file"], flaw_of(item)), []).append(item["line"])
        shown_rows = []
        for (file, flaw), (first, *others) in lines.items():
            also = f" (also in line{'s' if others[1:] else ''} {', '.join(map(str, others))})" if others else ""
            shown_rows.append(f"{file}:{first}: {flaw}{also}")
        more = [f"… and {count - 20} more"] if count > 20 else []
        head = f"got {count} bad rows; expected none; try mending them, or --on_bad skip to leave them out"
        super().__init__("\n".join([head, *shown_rows, *more]))


def flaw_of(item: dict) -> str:
    """What is wrong with a rejected row."""
    return f"{item['field']}: got {item['got']}; expected {item['expected']}; try {item['try']}"


def shown(value) -> str:
    """A value as a message shows it: short, and printable whatever it holds."""
    text = repr(value)[:1000]
    return (text if len(text) <= 80 else text[:79] + "…").encode("utf-8", "backslashreplace").decode()


def plain_text(text: str) -> bool:
    """Whether UTF-8 can hold the text, which half a surrogate pair it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
