"""Data files as text: unpacked, decoded, and refused by name where they hold no data at all."""

import codecs
import contextlib
import gzip
import io
import json
import re
import sys

from parts.foundation.messages import UserError, need

HEAD_BYTES = 1 << 18  # bytes at the beginning of a file that tell what it is
MAX_BYTES = 8 << 30  # what one packed or parquet file may unpack to
EXPORT = "unpacking it, or exporting its rows as JSONL or CSV UTF-8"
# PDF, zip and Excel, old Office, Arrow, pickle, bzip2, xz, 7z, RAR, zstd; other binary files have zero bytes
BINARY = re.compile(
    rb"%PDF-|\x28\xb5\x2f\xfd|PK\x03\x04|\xd0\xcf\x11\xe0|ARROW1|\x80[\x02-\x05]|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!"
)
POINTERS = {
    rb"version https://(git-lfs|hawser)\.github\.com/spec/": ("a pointer of Git LFS", "`git lfs pull` in its folder"),
    rb"[./]*(\.git|annex)/[\w./-]*objects/\S*\s*\Z": ("a pointer of git-annex", "`git annex get` in its folder"),
}
PAGE = re.compile(rb"\s*<(!doctype html|html|\?xml|head|body|error)\b[^\n]*>\s*(\n|\Z)", re.IGNORECASE)
REPLY = re.compile(
    rb"\s*([1-5]\d\d:? |entry |repository |page )?(not found|forbidden|unauthorized)\s*\Z", re.IGNORECASE
)
# columns of prompts: those that always ask, and those that do in one file and are a word about the rows in another
ASKS = {
    *("prompt", "question", "problem", "query", "instruction", "messages", "conversations", "conversation"),
    *("chosen", "completion"),
}
WEAK = {"text", "input", "description"}
OTHER_ENCODING = "data_loader.py --encoding NAME, such as cp1252 or gb18030, if the whole file is in it"
OTHER_BYTES = re.compile("[\udc80-\udcff]")  # as surrogateescape reads bytes that the encoding does not have


class Unpacked(io.RawIOBase):
    """Unpacked bytes, at most MAX_BYTES; what cannot be unpacked is a UserError that names the file."""

    def __init__(self, stream, name: str):
        self.stream, self.name, self.total = stream, name, 0

    def close(self) -> None:
        self.stream.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            data = self.stream.read(len(buffer))
        except Exception as error:  # zlib, gzip and the system each have their own
            got = f"{self.name}: got compressed bytes that cannot be read ({error})"
            raise UserError(f"{got}; expected an intact file") from None
        self.total += len(data)
        got = f"{self.name}: got more than {MAX_BYTES} unpacked bytes"
        need(self.total <= MAX_BYTES, f"{got}; expected at most that many; try unpacking it if the file is yours")
        buffer[: len(data)] = data
        return len(data)


def open_text(source: str, form: str | None, encoding: str | None = None, sure: bool = False) -> tuple:
    """Open a file or stdin (`-`) as text without a byte order mark; returns (stream, form).

    Packing is told from the bytes, as names are often wrong; text is UTF-8, or UTF-16 with a byte order mark, unless
    an encoding is given. Bytes that it does not have stay as lone surrogates, see `flaw_of_bytes`. Without a form
    (stdin) it is told too; `sure` takes the form as it is.

    Raises:
        UserError: it holds no rows whatever its name says, such as a pointer of Git LFS, an HTML page or a pickle.
    """
    name = "stdin" if source == "-" else source
    with contextlib.ExitStack() as opened:
        try:
            raw = io.BufferedReader(sys.stdin.buffer, HEAD_BYTES) if source == "-" else open(source, "rb", HEAD_BYTES)
            head = opened.enter_context(raw).peek(HEAD_BYTES)
        except OSError as error:
            raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
        if head[:2] == b"\x1f\x8b":
            raw = io.BufferedReader(Unpacked(gzip.GzipFile(fileobj=raw), name), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
        wide = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and head[2:4] != b"\0\0"
        told, encoding = bool(encoding), encoding or ("utf-16" if wide else "utf-8-sig")
        text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
        refuse_no_data(text.encode() if told or wide else head.removeprefix(codecs.BOM_UTF8), name, form)
        form = form if sure else form_of_text(text, name, form)
        opened.pop_all()
    newline = "" if form in ("csv", "tsv") else "\n"
    return io.TextIOWrapper(raw, encoding, "surrogateescape", newline=newline), form


def flaw_of_bytes(text: str) -> str | None:
    """What is wrong with a text of `open_text` that has a byte which is not of its encoding."""
    other = OTHER_BYTES.search(text)
    return other and f"byte {ord(other[0]) - 0xDC00:#04x}, which is not UTF-8"


def form_of_text(head: str, name: str, form: str | None) -> str:
    """The form that a text shows, where it has no name that tells it, or one that tells which JSON it is."""
    text = head.lstrip()
    if form is None:
        form = "jsonl" if text.startswith(("{", "[")) else "txt"
    elif form in ("txt", "csv", "tsv") and holds_json(text):
        got = f"{name}: got JSON in a file that is read as {form}"
        raise UserError(f"{got}; expected text; try renaming it to end in .json")
    if form == "txt":
        names = re.split(r"[,;\t]", text.partition("\n")[0].strip().lower())
        got = f"{name}: got a first line of column names, {', '.join(names)[:60]}, in a file of one prompt a line"
        is_table = len(names) > 1 and {*names} & (ASKS | WEAK) and all(map(str.isidentifier, names))
        need(not is_table, f"{got}; expected prompts; try --input_format csv, or renaming it to end in .csv")
    if form == "jsonl":  # or an array or object over several lines
        first, _, rest = text.partition("\n")
        return "jsonl" if rest.strip() and first.rstrip().endswith(("]", "}")) else "json"
    return form


def holds_json(text: str) -> bool:
    """Whether a text is JSON: its first line is an object or array, or all of it is one."""
    if not text.startswith(("{", "[")):
        return False
    for part in (text.partition("\n")[0], text):
        with contextlib.suppress(ValueError, RecursionError):
            return isinstance(json.loads(part), dict | list)
    return len(text) >= HEAD_BYTES  # a first line longer than that


def refuse_no_data(head: bytes, name: str, form: str | None) -> None:
    """Raise UserError where the first bytes are those of something that holds no rows."""
    kind, advice = None, "downloading it again, and look at the file first"
    if head.startswith(b"PAR1"):
        kind, advice = "a parquet file", "a name that ends in .parquet"
        if form == "parquet":
            return
    elif BINARY.match(head) or b"\0" in head[:1024]:
        kind = "a binary file (a workbook, PDF, archive, pickle or the like), or UTF-16 without its mark"
        advice = f"{EXPORT}, or --encoding utf-16-le"
    elif pointer := next((pair for start, pair in POINTERS.items() if re.match(start, head)), None):
        kind, advice = pointer
    elif PAGE.match(head):
        kind = "an HTML or XML page"
    elif REPLY.match(head):
        kind = f"a server's error message, {head[:80].decode('utf-8', 'replace').strip()!r}"
    need(kind is None, f"{name}: got {kind}; expected rows of data as {form or 'text'}; try {advice}")
