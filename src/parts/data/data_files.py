"""Data files as UTF-8 bytes: unpacked, recoded, and refused by name where they hold no data at all."""

import codecs
import contextlib
import gzip
import importlib
import io
import json
import re
import sys
from collections.abc import Iterator

from parts.foundation.messages import UserError, need, say

HEAD_BYTES = 1 << 18  # bytes at the beginning of a file that tell what it is
EXPORT, UNPACK, SHEET = "exporting its rows as JSONL", "unpacking it first", "saving the sheet as CSV UTF-8"
# first bytes -> what such a file is, and what to do with it; other binary files are told by their zero bytes
BINARIES = {
    rb"PAR1": ("a parquet file", "a name that ends in .parquet"),
    rb"%PDF-": ("a PDF", EXPORT),
    rb"PK\x03\x04.*(xl/|\[Content_Types\])": ("an Excel workbook", SHEET),
    rb"PK\x03\x04": ("a zip archive", UNPACK),
    rb"\xd0\xcf\x11\xe0\xa1\xb1": ("an old Office file (.xls, .doc)", SHEET),
    rb"ARROW1|\xff\xff\xff\xff": ("an Arrow file", EXPORT),
    rb".{4}\0\0\0\0\{\"": ("a safetensors file", EXPORT),
    rb"\x80[\x02-\x05]": ("a pickle, which is never opened", EXPORT),
    rb"BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|.{257}ustar": ("an archive", UNPACK),
}
POINTERS = {
    rb"version https://(git-lfs|hawser)\.github\.com/spec/": ("a pointer of Git LFS", "`git lfs pull` in its folder"),
    rb"[./]*(\.git|annex)/[\w./-]*objects/\S*\s*\Z": ("a pointer of git-annex", "`git annex get` in its folder"),
}
MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml|head\b|body\b|error\b)", re.IGNORECASE)
MARKUP_LINE = re.compile(rb"\s*(<[^<>]*>\s*)+(\n|\Z)")
REPLY = re.compile(
    rb"\s*([1-5]\d\d:? |entry |repository |page )?(not found|forbidden|unauthorized|bad (request|gateway)|gone|"
    rb"internal server error|service unavailable|too many requests|gateway time-?out|"
    rb"invalid username or password)\.?\s*\Z",
    re.IGNORECASE,
)
REASON_KEYS = ("error", "errors", "message", "detail")
REPLY_KEYS = {
    *(*REASON_KEYS, "code", "status", "statusCode", "status_code", "type", "title", "documentation_url", "path"),
    *("request_id", "requestId", "traceId", "timestamp", "success", "cause"),
}
# columns of prompts: those that always ask, and those that do in one file and are a word about the rows in another
ASKS = {
    *("prompt", "question", "problem", "query", "instruction", "messages", "conversations", "conversation"),
    *("chosen", "completion"),
}
WEAK = {"text", "input", "description"}
TEXT_CODECS = ("cp1252", "cp1250", "cp1251", "gb18030", "cp932", "big5", "euc_kr", "euc_jp")  # what spreadsheets write
EASTERN = re.compile("[a-z][¡¢£¥ª¯²³¹º¼½¾¿Ÿ][a-z]")  # Polish, Czech or Hungarian letters, read as CP1252


class Unpacked(io.RawIOBase):
    """The bytes of a chunk iterator as a file; what cannot be unpacked is a UserError that names the file."""

    def __init__(self, chunks: Iterator[bytes], name: str, inner):
        self.chunks, self.name, self.rest, self.inner = chunks, name, b"", inner

    def close(self) -> None:
        self.inner.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            while not self.rest and (chunk := next(self.chunks, None)) is not None:
                self.rest = chunk
        except UserError:
            raise
        except Exception as error:  # zlib, gzip, zstandard, codecs and the system each have their own
            advice = "; try another --encoding" if isinstance(error, UnicodeDecodeError) else ""
            got = f"{self.name}: got bytes that cannot be read ({error})"
            raise UserError(f"{got}; expected an intact file{advice}") from None
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def bounded(stream, name: str, limit: int) -> Iterator[bytes]:
    """Chunks of an unpacked stream; UserError once there is more than the limit."""
    total = 0
    while chunk := stream.read(1 << 18):
        total += len(chunk)
        got = f"{name}: got more than {limit} unpacked bytes"
        need(total <= limit, f"{got}; expected at most max_bytes; try --max_bytes if the file is yours")
        yield chunk


def recoded(stream, codec: str) -> Iterator[bytes]:
    """Text of another encoding as UTF-8."""
    chunks = iter(lambda: stream.read(1 << 18), b"")
    yield from (text.encode() for text in codecs.iterdecode(chunks, codec))


def zstd_stream(raw, name: str):
    """A reader of zstd data: Python 3.14 has one, the package zstandard another."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("compression.zstd").ZstdFile(raw)
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        advice = "try `pip install zstandard`, or unpack it first"
        raise UserError(f"{name}: got zstd data; expected the package zstandard; {advice}") from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def open_data(
    source: str, form: str | None, max_bytes: int = 8 << 30, encoding: str | None = None, sure: bool = False
) -> tuple:
    """Open a file or stdin (`-`) as UTF-8 bytes without a byte order mark; returns (stream, form).

    Packing and encoding are told from the bytes, as names are often wrong. Without a form (stdin) it is told too;
    `sure` takes the form as it is.

    Raises:
        UserError: it holds no rows whatever its name says, such as a pointer of Git LFS, an error page or a pickle, or
            its encoding cannot be told.
    """
    name = "stdin" if source == "-" else source
    with contextlib.ExitStack() as opened:
        try:
            raw = io.BufferedReader(sys.stdin.buffer, HEAD_BYTES) if source == "-" else open(source, "rb", HEAD_BYTES)
            head = opened.enter_context(raw).peek(HEAD_BYTES)
        except OSError as error:
            raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
        if head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd":
            stream = gzip.GzipFile(fileobj=raw) if head[:2] == b"\x1f\x8b" else zstd_stream(raw, name)
            raw = io.BufferedReader(Unpacked(bounded(stream, name, max_bytes), name, raw), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
        refuse_no_data(head, name, form)
        if codec := encoding or codec_of(head, name, form or ("jsonl" if head.lstrip()[:1] in (b"{", b"[") else "txt")):
            raw = io.BufferedReader(Unpacked(recoded(raw, codec), name, raw), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
            refuse_no_data(head, name, form)
        elif head.startswith(codecs.BOM_UTF8):
            head = head[raw.readinto(bytearray(len(codecs.BOM_UTF8))) :]
        form = form if sure else form_of_text(head, name, form)
        opened.pop_all()
    return raw, form


def form_of_text(head: bytes, name: str, form: str | None) -> str:
    """The form that a text shows, where it has no name that tells it, or one that tells which JSON it is."""
    start = head.lstrip()[:1]
    if form is None:
        form = "jsonl" if start in (b"{", b"[") else "txt"
    elif form in ("txt", "csv", "tsv") and holds_json(head):
        got = f"{name}: got JSON in a file that is read as {form}"
        raise UserError(f"{got}; expected text; try renaming it to end in .json")
    if form == "txt":
        names = re.split(r"[,;\t]", head.partition(b"\n")[0].decode("utf-8", "replace").strip().lower())
        got = f"{name}: got a first line of column names, {', '.join(names)[:60]}, in a file of one prompt a line"
        is_table = len(names) > 1 and {*names} & (ASKS | WEAK) and all(map(str.isidentifier, names))
        need(not is_table, f"{got}; expected prompts; try --input_format csv, or renaming it to end in .csv")
    return "json" if form == "jsonl" and not begins_lines(head) else form


def holds_json(head: bytes) -> bool:
    """Whether a text is JSON: its first line is an object or array, or all of it is one."""
    text = head.decode("utf-8", "replace").strip()
    if not text.startswith(("{", "[")):
        return False
    for part in (text.partition("\n")[0], text):
        with contextlib.suppress(ValueError, RecursionError):
            return isinstance(json.loads(part), dict | list)
    return len(head) >= HEAD_BYTES  # a first line longer than that


def begins_lines(head: bytes) -> bool:
    """Whether a JSON file has a value on its first line, not an array or object over several lines."""
    first, _, rest = head.lstrip().partition(b"\n")
    if first[:1] == b"[":
        return bool(rest.strip()) and first.rstrip().endswith(b"]")
    return first.strip() != b"{"


def refuse_no_data(head: bytes, name: str, form: str | None) -> None:
    """Raise UserError where the first bytes are those of something that holds no rows."""
    is_binary = not head.isascii() or b"\0" in head or head.startswith(b"%PDF-")
    again = "downloading it again, and look at the file first"
    fits = (pair for first, pair in BINARIES.items() if is_binary and re.match(first, head, re.DOTALL))
    kind, advice = next(fits, (None, ""))
    if kind == "a parquet file" and form == "parquet":
        return
    if kind is None:
        kind, advice = next((pair for start, pair in POINTERS.items() if re.match(start, head)), (None, again))
    if kind is None and MARKUP.match(head) and (form not in ("txt", None) or is_page(head)):
        kind = "an HTML or XML page"
    if kind is None and len(head) < 10_000 and (REPLY.match(head) or is_reply(head)):
        kind = f"a server's error message, {head[:80].decode('utf-8', 'replace').strip()!r}"
    need(kind is None, f"{name}: got {kind}; expected rows of data as {form or 'text'}; try {advice}")


def is_page(head: bytes) -> bool:
    """Whether a text that begins with markup is a page, not prompts about some."""
    closed = head.lower().count(b"</html>")
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) == 1:
        return closed < 2 and head.rstrip().endswith(b">")
    tags = sum(line.lstrip().startswith(b"<") for line in lines)
    ends = closed == 0 or (closed == 1 and head.rstrip().endswith(b">"))
    return ends and 2 * tags >= len(lines) and bool(MARKUP_LINE.match(lines[0]))


def is_reply(head: bytes) -> bool:
    """Whether a file is one JSON object that only says what went wrong."""
    if not head.lstrip().startswith(b"{"):
        return False
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return False
    failed = {"error", "errors"} & value.keys() and not value.keys() & {*ASKS, *WEAK, "data", "rows"}
    return bool(failed) or (value.keys() <= REPLY_KEYS and any(key in value for key in REASON_KEYS))


def codec_of(head: bytes, name: str, form: str) -> str | None:
    """What a file has to be decoded by; None for UTF-8, and where its flaws are those of single rows.

    JSON is UTF-8, or UTF-16 with a byte order mark; of spreadsheets and texts other encodings are told, and said.
    """
    need(head[:4] not in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), f"{name}: got UTF-32; expected UTF-8 or UTF-16")
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    got, advice = (
        f"{name}: got bytes that are not UTF-8",
        f"try python scripts/data_loader.py {name} --out clean.jsonl --encoding",
    )
    if wide := utf16_of(head):
        wrong = f"{got} but UTF-16 without a byte order mark; expected UTF-8; {advice} {wide}"
        need(form in ("csv", "tsv", "txt"), wrong)
        say(f"{name}: read as {wide.upper()}")
        return wide
    bad, good = utf8_counts(head)
    is_binary = b"\0" in head[:1024] and head.lstrip()[:1] not in (b"{", b"[")
    need(not is_binary, f"{name}: got some binary file; expected rows of data as {form}; try {EXPORT}")
    if bad < 2 or good >= bad or form in ("json", "jsonl"):
        return None
    near = near_codecs(head)
    if good and near and {*near} <= {"cp1252", "cp1250"}:
        return None  # UTF-8 with flaws: in a text of such bytes nothing looks like UTF-8
    likely = f", perhaps {' or '.join(near)}" if near else ""
    need(len(near) == 1, f"{got}{likely}; expected UTF-8; {advice} {near[0] if near else 'cp1252'}, or another's name")
    say(f"{name}: read as {near[0].upper()}")
    return near[0]


def utf16_of(head: bytes) -> str | None:
    """UTF-16 without a mark, by the zero bytes of its line feeds and Latin letters; else None."""
    for codec, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if zeros.count(0) > 10 * others.count(0) and zeros.count(0) > len(zeros) / 20:
            with contextlib.suppress(UnicodeDecodeError):
                codecs.getincrementaldecoder(codec)().decode(head, final=False)
                return codec
    return None


def utf8_counts(head: bytes) -> tuple[int, int]:
    """In how many places a text is not UTF-8, and how many characters of several bytes it has besides."""
    if len(head) >= HEAD_BYTES:  # the last character may be cut
        head = head[: head.rfind(b"\n") + 1] or head[:-4]
    text = head.decode("utf-8", "surrogateescape")
    places = [len(run) for run in re.findall("[\udc80-\udcff]+", text)]
    good = len(re.findall("[^\0-\x7f\udc80-\udcff]", text)) if places else 0
    return sum(max(1, size // 2) for size in places), good  # a character that is cut leaves 3 bytes at most


def near_codecs(head: bytes) -> list[str]:
    """The encodings that a text may well be in, by charset-normalizer; more than one where it cannot be told."""
    try:
        normalizer = importlib.import_module("charset_normalizer")
    except ImportError:
        return []
    lines = [line for line in head.split(b"\n") if not line.isascii()]
    sample = b"\n".join(lines[:-1] if len(head) >= HEAD_BYTES else lines)[: 1 << 16]
    matches = [*normalizer.from_bytes(sample, cp_isolation=TEXT_CODECS)]
    ranks = [match.chaos - match.coherence for match in matches]
    near = [match for match, rank in zip(matches, ranks, strict=True) if rank <= min(ranks) + 0.08]
    names = {name for match in near for name in match.could_be_from_charset}
    if names <= {"cp1252", "cp1250"}:
        if EASTERN.search(sample.decode("cp1252", "replace")):
            return ["cp1250"]
        return ["cp1252"] if "cp1252" in names else ["cp1252", "cp1250"]
    return sorted(match.encoding for match in near)
