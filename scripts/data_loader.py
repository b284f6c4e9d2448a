#!/usr/bin/env python3
# Built from src/programs/data_loader/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "datasets", "pyarrow", "tqdm", "matplotlib"]
# ///
"""Read training data of any common form, check it row by row, and write it in the shape a trainer wants.

Prompts, conversations, prompt + response, preferences, math, choices and code, from JSONL, JSON, TXT, CSV, TSV and
parquet (.gz and .zst too), folders, globs, stdin, the hub and reasoning-gym, become one schema: `prompt` (messages),
`answer`, `tests`, `completion`, `chosen`, `rejected`, `source`, `id`, and every other column as it was. A row that
does not fit is named by file, line and field. references/data_formats.md describes schema, formats and targets.

As a library: `load_rows`, `normalise`, `write_rows`, `create_dataloader`, `stream_dataset`, `register_format`.

Deliberately left out: images and audio, tokenised data sets, packing, and any cleaning of texts. Code in the data is
parsed, never run; paths and URLs in the data are never opened; nothing is unpickled.

    python scripts/data_loader.py train.jsonl --out clean.jsonl                       # any known form, detected
    python scripts/data_loader.py train.jsonl test.csv --inspect --tokenizer MODEL    # lengths, duplicates, overlap
    python scripts/data_loader.py train.jsonl --split 0.1 --seed 0 --out part.jsonl    # and part.eval.jsonl
    python scripts/data_loader.py "data/*.jsonl.gz" --for verl --shuffle 0 --split eval=200 --out train.parquet

Exit codes: 0 done, 1 --validate or --inspect found bad rows, 2 bad input (nothing is written).
"""

import argparse
import array
import ast
import codecs
import contextlib
import csv
import datetime
import decimal
import difflib
import functools
import gzip
import hashlib
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import random
import re
import string
import sys
import tempfile
import unicodedata
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

# ------------------------------------------------------------------------------------ messages (src/parts/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def tell(*words: str, end: str = "\n") -> None:
    """Print a result on stdout; where its reader has gone, as `| head` has, this and what follows is told to nobody."""
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str]) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, n=1))


# ------------------------------------------------------------------------------------ settings (src/parts/settings.py)


def parse_flags(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse a command line; an unknown flag ends the program with the nearest known one."""
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        near = suggest(unknown[0].split("=")[0], [flag for action in parser._actions for flag in action.option_strings])
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# -------------------------------------------------------------------------------------------- rows (src/parts/rows.py)


def is_hub_id(source: str) -> bool:
    """Whether a name that is no local path could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


# -------------------------------------------------------------------------------------- batches (src/parts/batches.py)


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Return (input_ids, attention_mask), both [B, T], pads on the left."""
    import torch

    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


# --------------------------------------------------------------------- bad rows (src/programs/data_loader/bad_rows.py)

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


class BadRow(UserError):
    """A row that does not fit; says which field, what it held, what was expected, and how to mend it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


class BadRows(UserError):
    """The rows that do not fit, the first 20 in the message; `rejected` holds those that were kept."""

    def __init__(self, rejected: list[dict], count: int):
        self.rejected, self.count = rejected, count
        lines = [line_of(item) for item in rejected[:20]]
        more = [f"… and {count - len(lines)} more"] if count > len(lines) else []
        head = f"got {count} bad rows; expected none; try mending them, or on_bad skip to leave them out"
        super().__init__("\n".join([head, *lines, *more]))


def line_of(item: dict) -> str:
    """One line about a rejected row."""
    what = f"got {item['got']}; expected {item['expected']}; try {item['try']}"
    return f"{item['file']}:{item['line']}: {item['field']}: {what}"


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


# --------------------------------------------------------------------------- bytes (src/programs/data_loader/bytes.py)


class Unpacked(io.RawIOBase):
    """The bytes of a chunk iterator as a file; what cannot be unpacked is a UserError that names the file."""

    def __init__(self, chunks: Iterator[bytes], name: str, inner):
        self.chunks, self.name, self.rest, self.inner = chunks, name, b"", inner

    def close(self) -> None:
        """Close the file below too."""
        self.inner.close()
        super().close()

    def readable(self) -> bool:
        """This is a file to read from."""
        return True

    def readinto(self, buffer) -> int:
        """Fill the buffer with what there is; 0 at the end."""
        try:
            while not self.rest and (chunk := next(self.chunks, None)) is not None:
                self.rest = chunk
        except UserError:
            raise
        except Exception as error:  # zlib, gzip, zstandard, codecs and the system each have their own
            raise UserError(f"{self.name}: got bytes that cannot be read ({error}); expected an intact file") from None
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def bounded(stream, name: str, limit: int) -> Iterator[bytes]:
    """Chunks of an unpacked stream; UserError once there is more than the limit."""
    total = 0
    while chunk := stream.read(1 << 18):
        total += len(chunk)
        advice = "try --max_bytes if the file is yours"
        need(total <= limit, f"{name}: got more than {limit} unpacked bytes; expected at most max_bytes; {advice}")
        yield chunk


def recoded(stream, codec: str) -> Iterator[bytes]:
    """UTF-16 as UTF-8."""
    decoder = codecs.getincrementaldecoder(codec)()
    while chunk := stream.read(1 << 18):
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()


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


def open_bytes(source: str, max_bytes: int) -> io.BufferedReader:
    """Open a file or stdin (`-`) as UTF-8 bytes: unpacked, recoded and without a byte order mark.

    Packing and encoding are told from the bytes, as names are often wrong.
    """
    name = "stdin" if source == "-" else source
    try:
        raw = sys.stdin.buffer if source == "-" else open(source, "rb")
        head = raw.peek(4)[:4]
    except OSError as error:
        raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
    if head[:2] == b"\x1f\x8b" or head == b"\x28\xb5\x2f\xfd":
        stream = gzip.GzipFile(fileobj=raw) if head[:2] == b"\x1f\x8b" else zstd_stream(raw, name)
        raw = io.BufferedReader(Unpacked(bounded(stream, name, max_bytes), name, raw), 1 << 20)
        head = raw.peek(4)[:4]
    need(head not in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), f"{name}: got UTF-32; expected UTF-8 or UTF-16")
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return io.BufferedReader(Unpacked(recoded(raw, "utf-16"), name, raw), 1 << 20)
    if head[:3] == codecs.BOM_UTF8:
        raw.read(3)
    return raw


# --------------------------------------------------------------------- messages (src/programs/data_loader/messages.py)

PROMPT_KEYS = ("prompt", "question", "problem", "query", "instruction", "text", "input", "description")
RESPONSE_KEYS = ("completion", "response", "output", "target", "answer")
ANSWER_KEYS = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")
CHOICE_KEYS = ("choices", "options")
PICK_KEYS = ("answerKey", "answer", "answer_idx", "answer_index", "correct", "label")
CONTEXT_KEYS = ("context", "passage", "article")
CHAT_KEYS = ("messages", "conversations", "conversation")
TEST_KEYS = ("tests", "test_list", "test_cases", "input_output", "test")
ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
}
# who may speak after whom; None is the beginning
MAY_FOLLOW = {
    "system": (None,),
    "developer": (None, "system"),
    "user": (None, "system", "developer", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def read_messages(value, name: str) -> list[dict]:
    """Chat messages of OpenAI's or ShareGPT's form as {"role", "content", …}; content parts are joined."""
    if not isinstance(value, list) or not value:
        raise BadRow(name, shown(value), "a non-empty list of messages")
    return [read_message(raw, f"{name}[{number}]") for number, raw in enumerate(value)]


def read_message(raw, name: str) -> dict:
    """One chat message; further keys that hold something (tool_calls, name, …) stay."""
    if not isinstance(raw, dict):
        raise BadRow(name, shown(raw), 'a message such as {"role": "user", "content": "…"}')
    said, text = ("role", "content") if "role" in raw else ("from", "value")
    role = raw.get(said)
    known = ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        got = f"role {shown(role)}" if said in raw else f"the keys {', '.join(raw) or 'none'}"
        raise BadRow(name, got, f"a role of {', '.join(sorted(ROLES))}", "naming the speaker by one of these")
    content, calls = raw.get(text), raw.get("tool_calls") or raw.get("function_call")
    if isinstance(content, list):
        content = join_parts(content, name)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise BadRow(name, f"{text} {shown(content)}", "text, or a list of text parts")
    if not content.strip() and not calls and known != "tool":
        raise BadRow(name, f"empty content of role {known}", "text")
    if len(raw) == 2:
        return {"role": known, "content": content}
    more = {key: item for key, item in raw.items() if key not in (said, text) and item is not None}
    if clash := {"role", "content"} & set(more):
        raise BadRow(name, f"{', '.join(sorted(clash))} beside from and value", "one of the two forms")
    return {"role": known, "content": content, **more}


def join_parts(parts: list, name: str) -> str:
    """The text of OpenAI content parts, put together as chat templates do: without anything in between."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise BadRow(name, f"a content part {shown(kind)}", "text parts only", "leaving out rows with other media")
    return "".join(part["text"] for part in parts)


def check_order(messages: list[dict], name: str, before: str | None = None) -> None:
    """Raise BadRow where a message cannot follow the one before it, as chat templates see it."""
    for number, message in enumerate(messages):
        role = message["role"]
        if before not in MAY_FOLLOW[role]:
            after = f"after {before}" if before else "at the beginning"
            wanted = [other for other, roles in MAY_FOLLOW.items() if before in roles]
            raise BadRow(f"{name}[{number}]", f"role {role} {after}", " or ".join(wanted), "mending the order of turns")
        before = role


def as_prompt(value, name: str, system=None) -> list[dict]:
    """A prompt, text or messages, as messages that end where the assistant's turn begins."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(name, "an empty prompt", "text")
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, list) and value:
        messages = read_messages(value, name)
    else:
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or a list of messages")
    if system is not None:
        if not isinstance(system, str):
            raise BadRow("system", shown(system), "text")
        if system.strip() and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": system}, *messages]
    check_order(messages, name)
    if messages[-1]["role"] not in ("user", "tool"):
        got, advice = (
            f"last role {messages[-1]['role']}",
            "naming the field `messages`, or moving the end to `completion`",
        )
        raise BadRow(name, got, "a prompt that ends with user or tool", advice)
    return messages


def as_reply(value, name: str, prompt: list[dict]) -> str | list[dict]:
    """A completion: text as it is, or messages that go on from the prompt, whose repetition is cut."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(name, "an empty text", "a completion")
        return value
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or messages")
    messages = read_messages(value, name)
    if len(messages) > len(prompt) and messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    check_order(messages, name, prompt[-1]["role"])
    if messages[-1]["role"] != "assistant":
        raise BadRow(name, f"last role {messages[-1]['role']}", "assistant at the end")
    return messages


# --------------------------------------------------------------- json values (src/programs/data_loader/json_values.py)


@dataclass(slots=True)
class Record:
    """One row as read: where it stood, its fields, or the flaw that makes it unusable and its text."""

    line: int
    row: dict | None
    flaw: BadRow | None = None
    text: str = ""


def broken(line: int, error: BadRow, data: bytes | str = b"") -> Record:
    """A record that could not be read; a long text is cut, as it is only there to be found again."""
    text = data[:100_000].decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data[:100_000]
    return Record(line, None, error, text.rstrip("\r\n"))


class JsonDecoder:
    """Python's JSON decoder, which also sees duplicate keys, NaN, infinity and floats out of range.

    The hooks only take notes, so that a flawed value has an end and its neighbours in an array can be read.
    """

    def __init__(self):
        self.flaws: list[BadRow] = []
        self.long_integer = False
        hooks = {"parse_constant": self.constant, "parse_float": self.number, "parse_int": self.whole}
        self.json = json.JSONDecoder(object_pairs_hook=self.unique, **hooks)

    def unique(self, pairs: list[tuple]) -> dict:
        """Note a key that stands twice, of which Python would keep the last."""
        row = dict(pairs)
        if len(row) != len(pairs):
            key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            self.flaws.append(BadRow(key, "the key twice in one object", "each key once", "keeping one of them"))
        return row

    def constant(self, name: str) -> float:
        """Note NaN, Infinity or -Infinity, which JSON does not have."""
        self.flaws.append(BadRow("row", name, "a number that JSON has", "null, or a finite number"))
        return 0.0

    def number(self, text: str) -> float:
        """Note a float that would become infinite."""
        value = float(text)
        return value if math.isfinite(value) else self.constant(shown(text))

    def whole(self, text: str) -> int:
        """Note an integer of more digits than Python reads, or of more than 64 bits perhaps."""
        try:
            self.long_integer = self.long_integer or len(text) > 18
            return int(text)
        except ValueError as error:
            self.flaws.append(huge_integer(error))
            return 0

    def decode(self, text: str, start: int = 0) -> tuple:
        """The value that begins at `start`, and its end; BadRow where the syntax is wrong."""
        self.flaws.clear()
        self.long_integer = False
        try:
            return self.json.raw_decode(text, start)
        except RecursionError:
            raise too_deep() from None
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, " * (start > 0 or error.lineno > 1) + f"column {error.colno}"
            got = f"no JSON ({error.msg} at {where}, near {nearby(text, error.pos)})"
            raise BadRow("row", got, "one JSON object") from None

    def check(self, value, text: str) -> dict:
        """Return the value if it is an object that can be used, else raise BadRow."""
        if self.flaws:
            raise self.flaws[0]
        if not isinstance(value, dict):
            raise BadRow("row", f"{type(value).__name__} {shown(value)}", "a JSON object with named fields")
        if self.long_integer or text.count("[") + text.count("{") > MAX_DEPTH or HALF_PAIR.search(text):
            return as_plain(value)
        return value


HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def nearby(text: str, at: int) -> str:
    """What stands around a place, as a message shows it."""
    return shown(text[max(at - 20, 0) : at + 20])


def huge_integer(error: ValueError) -> BadRow:
    """The flaw of an integer that Python refuses to read."""
    return BadRow("row", f"an integer of too many digits ({error})", "at most 4300 digits", "writing it as a string")


def too_deep() -> BadRow:
    """The flaw of a row with too many levels."""
    return BadRow("row", "nesting too deep", f"at most {MAX_DEPTH} levels", "storing the inner part as JSON text")


def as_plain(value, name: str = "row", depth: int = 0, any_size: bool = False):
    """Return a value made of what JSON has; dates and decimals become text. BadRow names the field of anything else.

    Integers have at most 64 bits, as pyarrow changes or refuses longer ones; in tests they may be of any size.
    """
    if isinstance(value, str):
        if not plain_text(value):
            raise BadRow(name, f"{shown(value)}, which is not Unicode text", "UTF-8", "mending the encoding")
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not any_size and not -(2**63) <= value < 2**63:
            raise BadRow(name, "an integer of more than 64 bits", "what pyarrow can hold", "writing it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow(name, value, "a finite number", "null, or leaving the field out")
        return value
    if depth > MAX_DEPTH:
        raise too_deep()
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or not plain_text(key)]
        if wrong:
            raise BadRow(name, f"the key {shown(wrong[0])}", "names of text")
        if depth == 0 and name == "row":
            return {key: as_plain(item, key, 1, key in TEST_KEYS) for key, item in value.items()}
        return {key: as_plain(item, name, depth + 1, any_size) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item, name, depth + 1, any_size) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise BadRow(name, type(value).__name__, "text, numbers, lists and objects", f"--drop {name}")


# --------------------------------------------------------------- test checks (src/programs/data_loader/test_checks.py)


def check_test(test, name: str) -> None:
    """Raise BadRow unless a test is source, a case for stdin, or a call with what it should return."""
    if isinstance(test, str):
        check_python(test, name)
        if not test.strip():
            raise BadRow(name, "an empty test", "Python source")
    elif isinstance(test, dict):
        if not ({"input", "output"} <= set(test) or "expected" in test):
            raise BadRow(name, f"the keys {', '.join(test) or 'none'}", "input and output, or args and expected")
    elif not isinstance(test, list) or len(test) != 2:
        raise BadRow(name, shown(test), "source, {input, output}, {args, expected} or [args, expected]")


@functools.lru_cache(32)
def parsed(source: str) -> ast.Module:
    """The syntax tree of Python source, which is never run; a row's tests are asked for twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are the data's own matter
        return ast.parse(source)


def check_python(source: str, name: str) -> None:
    """Raise BadRow where tests are no Python; they are parsed, never run."""
    try:
        parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRow(name, f"{shown(source)} ({error})", "Python source") from None


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_runnable(row: dict, name: str) -> None:
    """Raise BadRow for tests that no program can pass or fail, so that the row would never train."""
    tests, entry_point = row["tests"], row.get("entry_point") or None
    if entry_point is not None and not entry_point.isidentifier():
        raise BadRow("entry_point", shown(entry_point), "the name of a function, or of a method of a class Solution")
    if isinstance(tests, dict):
        check_paired(tests, name, entry_point)
    elif isinstance(tests, str) or isinstance(tests[0], str):
        check_asserts([tests] if isinstance(tests, str) else tests, name, entry_point, row)
    elif all(isinstance(test, dict) and {"input", "output"} <= set(test) for test in tests):
        for number, test in enumerate(tests):
            check_stdin(test, f"{name}[{number}]")
    else:
        pairs = isinstance(tests[0], list)  # the rewards of this bundle call `solution` then
        for number, test in enumerate(tests):
            check_call(test, f"{name}[{number}]", entry_point or ("solution" if pairs else None))


def check_paired(tests: dict, name: str, entry_point: str | None) -> None:
    """Raise BadRow unless inputs and outputs are those of a script, or of the function `fn_name`."""
    function = tests.get("fn_name")
    if not function:
        if entry_point and not all(isinstance(item, str) for item in tests["inputs"]):
            got = f"inputs that are no text and entry_point {shown(entry_point)}, but no fn_name"
            raise BadRow(name, got, "text for a script, or a function to call", "the key fn_name in the tests")
        return
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"fn_name {shown(function)}", "the name of a function")
    for number, arguments in enumerate(tests["inputs"]):
        if not isinstance(arguments, list):
            raise BadRow(f"{name}.inputs[{number}]", shown(arguments), f"a list of the arguments of {function}")


def check_stdin(test: dict, name: str) -> None:
    """Raise BadRow unless a test is text for a script and the text that it prints."""
    wrong = [key for key in ("input", "output") if not isinstance(test[key], str | int | float)]
    if wrong or test.get("fn_name"):
        got = f"{wrong[0]} {shown(test[wrong[0]])}" if wrong else f"fn_name {shown(test['fn_name'])}"
        advice = 'calls as {"function", "args", "expected"}, by a format of your own'
        raise BadRow(name, f"{got} in a test with input and output", "text on stdin and stdout", advice)


def check_call(test, name: str, entry_point: str | None) -> None:
    """Raise BadRow unless a test says which function to call, with which arguments."""
    if isinstance(test, list):
        test = {"args": test[0] if isinstance(test[0], list) else [test[0]], "expected": test[1]}
    if "expected" not in test:
        raise BadRow(name, "a test for stdin among calls", "tests of one form")
    function, arguments, named = test.get("function") or entry_point, test.get("args", []), test.get("kwargs") or {}
    if function is None:
        raise BadRow("entry_point", "no name of the function to call", "one, or `function` in each test", ENTRY_ADVICE)
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"function {shown(function)}", "the name of a function")
    if not isinstance(arguments, list) or not isinstance(named, dict):
        raise BadRow(name, f"args {shown(arguments)} and kwargs {shown(named)}", "a list and an object")


ENTRY_ADVICE = "--map entry_point=COLUMN"


def check_asserts(sources: list[str], name: str, entry_point: str | None, row: dict) -> None:
    """Raise BadRow unless something in Python tests is counted, and what they test has a name."""
    trees = [parsed(source) for source in sources]
    if (entry_point or not any(NAMES_OF_CHECKS.search(source) for source in sources)) and asserts_plainly(trees):
        return  # nearly all
    live, idle = live_nodes(trees, entry_point)
    if entry_point is None and any(function.name == "check" for function in idle):
        raise BadRow("entry_point", "none beside tests in check(candidate)", "the function under test", ENTRY_ADVICE)
    if not any(map(is_counted, live)):
        where = f"; {idle[0].name}() is never called" if idle else ""
        raise BadRow(name, f"tests that assert nothing{where}", "an assert that is run, or a unittest.TestCase")
    said = f"{row['prompt'][-1]['content']} {row.get('setup', '')}"
    if entry_point is None and "candidate" in unbound(live) and "candidate" not in said:
        raise BadRow("entry_point", "none beside tests of `candidate`", "the function under test", ENTRY_ADVICE)


NAMES_OF_CHECKS = re.compile("check|candidate")


def asserts_plainly(trees: list[ast.Module]) -> bool:
    """Whether tests count something at their top level, or in a check or test function that stands there."""
    for node in itertools.chain.from_iterable(tree.body for tree in trees):
        called = isinstance(node, FUNCTIONS) and (node.name == "check" or node.name.startswith("test"))
        if any(map(is_counted, node.body if called else [node])):
            return True
    return False


def live_nodes(trees: list[ast.Module], entry_point: str | None) -> tuple[list[ast.AST], list]:
    """(nodes that run with the tests, functions that nothing calls), as scripts/sandbox.py runs them."""
    used, live, idle, waiting = {"check"} if entry_point else set(), [], [], [*trees]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS) and node.name not in used and not node.name.startswith("test"):
            idle.append(node)
        else:
            live.append(node)
            used |= {node.id} if isinstance(node, ast.Name) else set()
            waiting += parts_that_run(node)
        if not waiting:
            waiting, idle = [n for n in idle if n.name in used], [n for n in idle if n.name not in used]
    return live, idle


def parts_that_run(node: ast.AST) -> list[ast.AST]:
    """The children of a node, without what stands under `if __name__ == "__main__"`; methods count as called."""
    if isinstance(node, ast.ClassDef):
        methods = [part for item in node.body if isinstance(item, FUNCTIONS) for part in item.body]
        return [*methods, *(item for item in node.body if not isinstance(item, FUNCTIONS))]
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        sides = (node.test.left, *node.test.comparators)
        if {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}:
            return list(node.orelse)
    return list(ast.iter_child_nodes(node))


def is_counted(node: ast.AST) -> bool:
    """Whether scripts/sandbox.py counts a statement as a test: asserts, calls of assert…, raises, test cases."""
    if isinstance(node, ast.With):
        called = [getattr(item.context_expr, "func", None) for item in node.items]
        return any(getattr(f, "attr", getattr(f, "id", "")) in ("raises", "assertRaises") for f in called)
    if isinstance(node, ast.ClassDef):
        return bool(node.bases)
    function = getattr(node.value, "func", None) if isinstance(node, ast.Expr) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    own = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
    return isinstance(node, ast.Assert) or (name.startswith("assert") and not own)


def unbound(nodes: list[ast.AST]) -> set[str]:
    """Names that are used and that nothing among the nodes gives a meaning to."""
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    given = {node.arg for node in nodes if isinstance(node, ast.arg)}
    named = {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    return used - stored - given - named - imported


# --------------------------------------------------- answers and tests (src/programs/data_loader/answers_and_tests.py)

BARE_MARK = re.compile(r"####[^\n#\\]*|\$?\\boxed\{[^{}]*\}\$?")  # an answer in its mark and nothing else
BOXED = re.compile(r"\\f?boxed\s*(\{|(?=[^\s{]))")
MONEY = re.compile(r"-?\$?-?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{…} holds, braces inside matched; None without a complete one.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    found = list(BOXED.finditer(text))
    match = found[-1] if found else None  # an earlier one is no answer where the last is cut off
    if match is None or not match[1]:
        return text[match.end()] if match else None  # \boxed 5
    depth, escaped = 1, False
    for at in range(match.end(), len(text)):
        depth += 0 if escaped else {"{": 1, "}": -1}.get(text[at], 0)
        escaped = text[at] == "\\" and not escaped
        if depth == 0:
            return text[match.end() : at].strip()
    return None


def gold_of(text: str) -> str | None:
    r"""The final answer in a worked solution: after the last `####`, else in the last \boxed{…}; None without either.

    >>> gold_of("It is 1000 + 3.\n#### 1,003")
    '1003'
    """
    found = None
    while True:
        if "####" in text:
            text = text.rpartition("####")[2].strip()
            if MONEY.fullmatch(text):
                text = text.replace(",", "").replace("$", "")
        else:
            inner = last_boxed(text) if "boxed" in text else None
            if inner is None:
                return found
            text = inner
        found = text


def as_answer(value, name: str) -> str:
    """An answer as text; a number or truth value is written as JSON writes it."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or a number")
    if not value.strip():
        raise BadRow(name, "an empty answer", "text or a number")
    return value


def as_tests(value, name: str):
    """Tests in a form that scripts/sandbox.py takes; JSON text is decoded. An empty set would pass any program."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = tests_from_json(value, name)
    if isinstance(value, dict) and {"input", "output"} <= set(value):
        single = not isinstance(value["input"], list)
        others = {key: item for key, item in value.items() if key not in ("input", "output")}  # fn_name among them
        value = [value] if single else {**others, "inputs": value["input"], "outputs": value["output"]}
    if isinstance(value, dict):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            got = f"the keys {', '.join(value) or 'none'}"
            if isinstance(inputs, list) and isinstance(outputs, list):
                got = f"{len(inputs)} inputs and {len(outputs)} outputs"
            raise BadRow(name, got, "inputs and outputs, lists of one length")
        count = len(inputs)
    elif isinstance(value, str):
        check_python(value, name)
        count = len(value.strip())
    elif isinstance(value, list):
        count = len(value)
        for number, test in enumerate(value):
            check_test(test, f"{name}[{number}]")
        if len({isinstance(test, str) for test in value}) > 1:
            raise BadRow(name, "Python source and cases in one list", "tests of one form")
    else:
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "Python source, a list, or inputs and outputs")
    if not count:
        raise BadRow(name, "no tests", "at least one, as none at all pass every program")
    return value


def tests_from_json(text: str, name: str):
    """Decode tests given as JSON text; JSON that is cut off must not pass for Python source."""
    decoder, text = JsonDecoder(), text.strip()
    try:
        value, end = decoder.decode(text)
        if decoder.flaws or end != len(text):
            raise decoder.flaws[0] if decoder.flaws else BadRow(name, f"{shown(text[end:])} after JSON", "JSON")
    except BadRow as error:
        raise BadRow(name, error.parts["got"], "tests as JSON text, or Python source") from None
    return as_plain(value, name, any_size=True)


# ----------------------------------------------------------------------- choices (src/programs/data_loader/choices.py)

LETTERS = string.ascii_uppercase


def offered(row: dict) -> tuple[list[str], list[str]] | None:
    """(texts, labels) of a row's choices: a list, ARC's {"text", "label"}, or MedQA's {"A": text}; None without."""
    for name in CHOICE_KEYS:
        value = row.get(name)
        texts, labels = value, []
        if isinstance(value, dict) and "text" in value:
            texts, labels = value["text"], value.get("label") or []
        elif isinstance(value, dict) and all(re.fullmatch("[A-Z]", str(key)) for key in value):
            texts, labels = list(value.values()), list(value)
        plain = isinstance(texts, list) and all(isinstance(text, str | int | float) for text in texts)
        if plain and 1 < len(texts) <= len(LETTERS) and isinstance(labels, list) and len(labels) in (0, len(texts)):
            return [str(text).strip() for text in texts], [str(label) for label in labels]
    return None


def asks_with_choices(row: dict) -> bool:
    """Whether a row asks in text and has choices and the right one."""
    question = next((row[name] for name in PROMPT_KEYS if row.get(name) is not None), None)
    picked = any(row.get(name) is not None for name in PICK_KEYS)
    return isinstance(question, str) and picked and offered(row) is not None


def picked(value, texts: list[str], labels: list[str], name: str) -> int:
    """The number of the right choice, from its number (0 is the first), label, letter or text."""
    word = str(value).strip()
    letter = word.strip("()[].:").upper()
    if isinstance(value, str) and word in labels:
        return labels.index(word)
    if isinstance(value, str) and texts.count(word) == 1:
        return texts.index(word)
    if isinstance(value, str) and len(letter) == 1 and letter in LETTERS[: len(texts)]:
        return LETTERS.index(letter)
    if not isinstance(value, bool) and not labels and word.isascii() and word.isdigit() and int(word) < len(texts):
        return int(word)
    known = f"a number from 0 to {len(texts) - 1}, a letter from A to {LETTERS[len(texts) - 1]}, or a choice's text"
    advice = "mending the row, or --kind math where these are no choices"
    raise BadRow(name, shown(value), f"one of the labels {', '.join(labels)}" if labels else known, advice)


def with_choices(question: str, texts: list[str]) -> str:
    """The question and its choices, each with its letter; a question that has them already, as it is."""
    pairs = list(zip(LETTERS, texts, strict=False))
    if all(re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question) for letter, text in pairs):
        return question
    lettered = all(re.match(rf"\(?{letter}[).:]", text) for letter, text in pairs)
    lines = texts if lettered else [f"{letter}. {text}" for letter, text in pairs]
    return "\n".join([question.rstrip(), "", *lines])


# --------------------------------------------------------------------------- forms (src/programs/data_loader/forms.py)

METHOD = re.compile(r"\ASolution\(\)\.(\w+)\Z")  # the sandbox finds methods of a class Solution by their names
READERS = {
    "answer": lambda value, name, prompt: as_answer(value, name),
    "tests": lambda value, name, prompt: as_tests(value, name),
    **dict.fromkeys(("completion", "chosen", "rejected"), as_reply),
}


class Shape:
    """One row on its way to the schema: `take` fetches a field and marks it as used; what is not used stays."""

    def __init__(self, row: dict):
        self.row, self.used, self.out = row, set(), {}
        self.tests_name = "tests"  # the column they came from

    def name(self, names: Iterable[str]) -> str | None:
        """The first of these fields that the row has and that is not used yet."""
        return next((name for name in names if self.row.get(name) is not None and name not in self.used), None)

    def take(self, names: Iterable[str], what: str):
        """(name, value) of the first of these fields; BadRow where there is none."""
        names = tuple(names)
        name = self.name(names)
        if name is None:
            if empty := [name for name in names if name in self.row and name not in self.used]:
                raise BadRow(empty[0], "null, or an empty cell", what)
            has = ", ".join(key for key, item in self.row.items() if item is not None) or "none"
            advice = f"--map {names[0]}=COLUMN"
            raise BadRow(names[0], f"the columns {has[:200]}", f"{what}: one of {', '.join(names)}", advice)
        self.used.add(name)
        return name, self.row[name]

    def prompt(self) -> None:
        """Fill in the prompt: Alpaca's input follows its instruction, a passage or LLaMA-Factory's history precedes."""
        name, value = self.take(PROMPT_KEYS, "a prompt")
        more = self.name(CONTEXT_KEYS)
        if name == "question" and isinstance(value, str) and more and isinstance(self.row[more], str):
            value = f"{self.take([more], '')[1]}\n\n{value}"
        if name == "instruction" and (more := self.name(["input"])):
            extra = self.take([more], "")[1]
            if not isinstance(value, str) or not isinstance(extra, str):
                raise BadRow(more, shown(extra), "text that goes with the instruction")
            value = f"{value}\n\n{extra}" if extra.strip() else value
        elif name == "instruction":
            self.used.add("input")
        if name != "prompt" and isinstance(self.row.get("history"), list):
            value = [*self.turns(), {"role": "user", "content": value}]
        system = self.name(["system", "system_prompt"])
        self.out["prompt"] = as_prompt(value, name, self.take([system], "")[1] if system else None)

    def turns(self) -> list[dict]:
        """Earlier turns from `history`, a list of [user, assistant]."""
        turns = []
        for number, pair in enumerate(self.take(["history"], "")[1]):
            if not isinstance(pair, list) or len(pair) != 2:
                raise BadRow(f"history[{number}]", shown(pair), "[user text, assistant text]")
            turns += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), pair, strict=True)]
        return turns

    def answer(self, name: str) -> None:
        """Fill in the final answer of a worked solution, and keep the whole as `solution`; a bare answer stays."""
        text = as_answer(self.row[name], name)
        self.used.add(name)
        gold = gold_of(text)
        if gold is not None and not gold.strip():
            raise BadRow(name, f"{shown(text[-60:])}, which ends without an answer", "text after #### or in \\boxed{}")
        if name == "solution" and gold is None:
            raise BadRow(name, f"{shown(text[-60:])} without a final answer", "#### or \\boxed{…}", "a field `answer`")
        self.out["answer"] = text if gold is None else gold
        if gold is not None and not BARE_MARK.fullmatch(text.strip()):
            taken = name != "solution" and self.row.get("solution") is not None
            self.out["answer_text" if taken else "solution"] = text

    def finish(self) -> dict:
        """The normalised row: known fields first, then every field that was not used; null means absent."""
        row, out = self.row, self.out
        for name in READERS:  # these names mean the same in rows of any kind
            if row.get(name) is not None and name not in self.used and name not in out:
                out[name] = READERS[name](row[name], name, out["prompt"])
                self.used.add(name)
        for name in ("entry_point", "setup", "source", "id"):
            value = row.get(name)
            if value is None or name in out:
                continue
            if name == "id" and isinstance(value, int | float):
                value = json.dumps(value)
            if not isinstance(value, str):
                raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text", f"--map other_name={name}")
            out[name] = METHOD.sub(r"\1", value) if name == "entry_point" else value
            self.used.add(name)
        if "tests" in out:
            check_runnable(out, self.tests_name)
        if "id" not in out and isinstance(row.get("task_id"), str | int):
            out["id"] = str(row["task_id"])
        for name, value in row.items():
            if name not in self.used and value is not None:
                out.setdefault(name, value)
        if clash := [name for name in RESERVED if name in out]:
            raise BadRow(clash[0], "a column of this name", "another name, as files use this one", f"--drop {clash[0]}")
        return out


def as_prompts(shape: Shape) -> None:
    """A prompt, and an answer if there is one."""
    shape.prompt()


def as_math(shape: Shape) -> None:
    """A problem and its final answer, given or in a worked solution."""
    shape.prompt()
    name = shape.name(ANSWER_KEYS)
    if name is None:
        shape.take(ANSWER_KEYS, "an answer")
    shape.answer(name)


def as_choices(shape: Shape) -> None:
    """A question, its choices, which become part of the prompt, and the letter of the right one."""
    choices = offered(shape.row)
    if choices is None:
        names = " or ".join(CHOICE_KEYS)
        value = next((shape.row[name] for name in CHOICE_KEYS if shape.row.get(name) is not None), None)
        expected = f"{names}: a list of 2 to 26 texts, {{text, label}}, or {{A: text}}"
        raise BadRow(CHOICE_KEYS[0], shown(value) if value is not None else "no choices", expected)
    shape.prompt()
    message = shape.out["prompt"][-1]
    message["content"] = with_choices(message["content"], choices[0])
    name, value = shape.take(PICK_KEYS, "the right choice")
    shape.out["answer"] = LETTERS[picked(value, *choices, name)]


def as_worked(shape: Shape) -> None:
    """As math, in a file whose answers are worked solutions: one without a marked final answer is cut off or wrong."""
    as_math(shape)
    name = next((name for name in ANSWER_KEYS if shape.row.get(name) is not None), "answer")
    if not marks_answer(shape.row.get(name)):
        text = as_answer(shape.row.get(name), name)
        raise BadRow(name, f"{shown(text[-60:])} without a final answer", "#### or \\boxed{…}, as the other rows")


def as_code(shape: Shape) -> None:
    """A task and its tests: HumanEval, MBPP, APPS and alike."""
    shape.prompt()
    name, value = shape.take(TEST_KEYS, "tests")
    shape.out["tests"], shape.tests_name = as_tests(value, name), name
    row = shape.row
    if name == "test" and row.get("setup") is None and isinstance(row.get("prompt"), str):
        shape.out["setup"] = row["prompt"]  # HumanEval's tests use the imports and helpers that stand in its prompt
    if name == "test_list" and row.get("setup") is None:
        imports = row.get("test_imports")
        lines = [row.get("test_setup_code"), *(imports if isinstance(imports, list) else [])]
        if setup := "\n".join(line for line in lines if isinstance(line, str) and line.strip()):
            shape.out["setup"] = setup


def as_response(shape: Shape) -> None:
    """A prompt and a completion."""
    if shape.name(CHAT_KEYS) and not shape.name(["prompt"]):
        as_conversation(shape)
        if "completion" not in shape.out:
            raise BadRow("messages", "no assistant turn at the end", "a conversation that ends with the assistant")
        return
    shape.prompt()
    name, value = shape.take(RESPONSE_KEYS, "a completion")
    shape.out["completion"] = as_reply(value, name, shape.out["prompt"])


def as_conversation(shape: Shape) -> None:
    """A conversation: all before the last assistant turn is the prompt, that turn the completion."""
    name, value = shape.take(CHAT_KEYS, "messages")
    messages = read_messages(value, name)
    system = shape.name(["system", "system_prompt"])
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": as_answer(shape.take([system], "")[1], system)}, *messages]
    check_order(messages, name)
    if messages[-1]["role"] == "assistant":
        shape.out["prompt"], shape.out["completion"] = messages[:-1], messages[-1:]
    else:
        shape.out["prompt"] = messages
        gold = shape.name(ANSWER_KEYS[1:-1])  # as Tulu 3's sets for verifiable rewards have it
        if gold and isinstance(shape.row[gold], str | int | float) and shape.row.get("answer") is None:
            shape.answer(gold)
    shape.out["prompt"] = as_prompt(shape.out["prompt"], name)


def as_preferences(shape: Shape) -> None:
    """A better and a worse completion, with the prompt beside them or at their common beginning."""
    _, chosen = shape.take(["chosen"], "the better completion")
    _, rejected = shape.take(["rejected"], "the worse completion")
    if shape.name(PROMPT_KEYS):
        shape.prompt()
    else:
        shared, chosen, rejected = split_prompt(chosen, rejected)
        shape.out["prompt"] = as_prompt(shared, "chosen")
    replies = [
        as_reply(value, name, shape.out["prompt"]) for name, value in (("chosen", chosen), ("rejected", rejected))
    ]
    if replies[0] == replies[1]:
        raise BadRow("rejected", "the same as chosen", "a worse completion")
    if type(replies[0]) is not type(replies[1]):
        raise BadRow("rejected", f"{type(replies[1]).__name__} beside {type(replies[0]).__name__}", "both of one form")
    shape.out["chosen"], shape.out["rejected"] = replies


def split_prompt(chosen, rejected) -> tuple:
    """(prompt, chosen, rejected) of two dialogues that begin alike, as messages or in the text form of HH-RLHF."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        chosen, rejected = dialogue(chosen, "chosen"), dialogue(rejected, "rejected")
    chosen, rejected = read_messages(chosen, "chosen"), read_messages(rejected, "rejected")
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    same = min(same, len(chosen) - 1, len(rejected) - 1)
    while same and chosen[same - 1]["role"] not in ("user", "tool"):
        same -= 1
    if not same:
        raise BadRow("chosen", "no prompt", "a field `prompt`, or dialogues that begin alike", "--map prompt=COLUMN")
    return chosen[:same], chosen[same:], rejected[same:]


def dialogue(text: str, name: str) -> list[dict]:
    """The messages of a text with `Human:` and `Assistant:` turns."""
    pieces = re.split(r"(?:\A|\n\n)(Human|Assistant): ?", text)
    if len(pieces) < 3 or pieces[0].strip():
        expected = "a field `prompt` beside it, or turns `\\n\\nHuman: …\\n\\nAssistant: …`"
        raise BadRow(name, shown(text), expected, "--map prompt=COLUMN")
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said.strip()} for who, said in zip(pieces[1::2], pieces[2::2], strict=True)]


def as_ours(shape: Shape) -> None:
    """A row that this script wrote, for itself or for TRL: checked, and otherwise as it is."""
    row, out = shape.row, shape.out
    row.update(decoded(row, shape.used))
    texts = row["text_fields"] if isinstance(row.get("text_fields"), list) else ()
    shape.used.add("text_fields")
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    for name in texts:
        value = row.get(name) if isinstance(name, str) else None
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            row[name] = value[0].get("content")
    shape.used.add("prompt")


def as_verl(shape: Shape) -> None:
    """A row of verl's five columns; one that this script wrote comes back as it was."""
    row, out = shape.row, shape.out
    extra = row.get("extra_info")
    gold = row["reward_model"].get("ground_truth") if isinstance(row["reward_model"], dict) else None
    field = extra.get("ground_truth_field") if isinstance(extra, dict) else None
    if not isinstance(field, str):
        shape.used.add("data_source")
        out["prompt"] = as_prompt(row["prompt"], "prompt")
        shape.used.add("prompt")
        out["source"] = as_answer(row["data_source"], "data_source")
        if gold is None and row["reward_model"] != {"style": "model"}:
            raise BadRow("reward_model", shown(row["reward_model"]), 'an object such as {"ground_truth": "42"}')
        tests = gold
        if isinstance(gold, str) and gold.lstrip().startswith('{"'):
            with contextlib.suppress(BadRow):
                tests = tests_from_json(gold, "reward_model.ground_truth")
        if isinstance(tests, dict) and {"inputs", "outputs"} <= set(tests):
            out["tests"] = as_tests(tests, "reward_model.ground_truth")
        elif gold not in (None, ""):
            out["answer"] = as_answer(gold, "reward_model.ground_truth")
        if isinstance(extra, dict) and isinstance(extra.get("index"), int | str) and row.get("id") is None:
            out["id"] = str(extra["index"])
        return
    inner = {key: value for key, value in extra.items() if key not in OWN_INFO and value is not None}
    inner.update(decoded(extra, set()))
    inner = {key.removeprefix("column:"): value for key, value in inner.items()}
    name, _, form = field.partition(":")
    if name not in ("answer", "tests", "none"):
        raise BadRow("extra_info.ground_truth_field", shown(field), "answer, tests or none")
    if name != "none":
        inner[name] = from_json(gold, "reward_model.ground_truth") if form == "json" else gold
    shape.row = {"prompt": row["prompt"], **inner}
    shape.used.clear()
    as_ours(shape)


def decoded(row: dict, used: set) -> dict:
    """Columns that a parquet file holds as JSON text, as `json_columns` says."""
    names = row.get("json_columns")
    if not isinstance(names, list):
        return {}
    used.add("json_columns")
    return {name: from_json(row[name], name) for name in names if isinstance(name, str) and row.get(name) is not None}


def from_json(text, name: str):
    """The value of JSON text that this script wrote."""
    if not isinstance(text, str):
        raise BadRow(name, shown(text), "JSON text, as json_columns says")
    decoder = JsonDecoder()
    try:
        value, end = decoder.decode(text)
    except BadRow as error:
        raise BadRow(name, error.parts["got"], "JSON text, as json_columns says") from None
    if decoder.flaws or text[end:].strip():
        got = decoder.flaws[0].parts["got"] if decoder.flaws else f"{shown(text[end:])} after JSON"
        raise BadRow(name, got, "JSON text, as json_columns says")
    return as_plain(value, name, any_size=name in TEST_KEYS)


RESERVED = ("text_fields", "json_columns")
OWN_INFO = ("index", "split", "ground_truth_field", "json_columns")

TEST_SOURCE = re.compile(r"^(def check\(|assert\b)", re.MULTILINE)


def marks_answer(value) -> bool:
    """Whether a text is a worked solution that marks its final answer."""
    return isinstance(value, str) and ("####" in value or "\\boxed" in value)


# ----------------------------------------------------------------- form names (src/programs/data_loader/form_names.py)

FORMS: dict[str, Callable[[Shape], None]] = {
    "prompts": as_prompts,
    "conversations": as_conversation,
    "prompt_response": as_response,
    "preferences": as_preferences,
    "math": as_math,
    "worked": as_worked,
    "choices": as_choices,
    "code": as_code,
    "ours": as_ours,
    "verl": as_verl,
}
CUSTOM: dict[str, tuple[Callable, str]] = {}


def register_format(name: str, function: Callable | None = None, *, kind: str = "prompts"):
    """Teach load_rows a format: a function that turns a raw row into fields of the schema, or None if it is not its.

    The result passes the checks of `kind`; `prompt` may be text. Columns that the function leaves out are dropped, so
    return `{**row, "prompt": …}` to keep them. With kind "auto" registered formats are asked first, by their name only
    they are used alone. Without `function` this is a decorator.

    Raises:
        UserError: the name or the kind cannot be used.
    """
    need(name not in FORMS and name not in ("auto", "mixed"), f"got the format name {name!r}, which is built in")
    need(kind in KINDS, f"got kind {kind!r}; expected one of {', '.join(KINDS)}{suggest(str(kind), list(KINDS))}")
    if function is None:
        return lambda function: register_format(name, function, kind=kind)
    CUSTOM[name] = (function, kind)
    return function


def form_of(row: dict) -> str | None:
    """What a row is by the names of its fields: a kind, `ours`, `verl`, a registered name, or None."""
    for name, (function, _) in CUSTOM.items():
        with contextlib.suppress(Exception):  # such as KeyError: a row of another format
            if function(dict(row)) is not None:
                return name
    names = tuple(name for name, value in row.items() if value is not None)
    form = form_of_fields(names, isinstance(row.get("prompt"), list))
    if form in ("prompts", "math") and asks_with_choices(row):
        return "choices"
    if form == "prompts" and any(marks_answer(row.get(name)) for name in ("answer", "solution")):
        return "math"
    if form == "prompts" and isinstance(row.get("test"), str) and TEST_SOURCE.search(row["test"]):
        return "code"  # HumanEval's without entry_point
    return form


@functools.lru_cache(4096)
def form_of_fields(names: tuple, prompt_is_chat: bool) -> str | None:
    """The form that goes with these names; the most special one first."""
    has = set(names)
    if prompt_is_chat and {"prompt", "source", "id"} <= has:
        return "ours"
    if {"prompt", "data_source", "reward_model"} <= has:
        return "verl"
    if has & {"chosen"} and has & {"rejected"}:
        return "preferences"
    asks = has & set(PROMPT_KEYS)
    if asks and (has & set(TEST_KEYS[:-1]) or {"test", "entry_point"} <= has):
        return "code"
    if has & set(CHAT_KEYS) and "prompt" not in has:
        return "conversations"
    if asks and ({"completion"} <= has or {"response"} <= has or {"output"} <= has):
        return "prompt_response"
    if has & {"question", "problem"} and has & set(ANSWER_KEYS[:-1]):  # a solution alone may be a program
        return "math"
    return "prompts" if asks else None


def kind_of(row: dict) -> str:
    """The kind of a normalised row, by its fields."""
    marks = (("tests", "code"), ("chosen", "preferences"), ("completion", "prompt_response"), ("answer", "math"))
    return next((kind for name, kind in marks if name in row), "prompts")


def normalise(row: dict, kind: str = "auto") -> dict:
    """Return a raw row in the schema; the row itself is not changed.

    Raises:
        BadRow: a field is missing, or holds what it cannot.
        UserError: no such kind.
    """
    check_kind(kind)
    row = as_plain(row)
    if not isinstance(row, dict):
        raise BadRow("row", f"{type(row).__name__} {shown(row)}", "an object with named fields")
    return convert(row, form_of(row) or "prompts" if kind == "auto" else kind)


def convert(row: dict, form: str) -> dict:
    """A plain row of a known form in the schema."""
    if form in CUSTOM:
        function, form = CUSTOM[form]
        name = getattr(function, "__name__", "the function")
        try:
            made = function(dict(row))
        except Exception as error:
            got = f"{type(error).__name__}: {error} from {name}"
            raise BadRow("row", got, "a row of the registered format") from None
        if not isinstance(made, dict):
            raise BadRow("row", f"{shown(made)} from {name}", "a row of the registered format")
        row = as_plain(made)
    elif form in KINDS:  # files of this script and of verl may be given with any kind
        named = form_of_fields(tuple(name for name, item in row.items() if item is not None), True)
        form = named if named in ("ours", "verl") and isinstance(row.get("prompt"), list) else form
    shape = Shape(dict(row))
    FORMS[form](shape)
    out = shape.finish()
    return out


def check_kind(kind: str) -> None:
    """Raise UserError for a kind that does not exist."""
    known = ["auto", *KINDS, *CUSTOM]
    need(kind in known, f"got kind {kind!r}; expected one of {', '.join(known)}{suggest(str(kind), known)}")


# ----------------------------------------------------------------------- records (src/programs/data_loader/records.py)

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
        return broken(number, BadRow("row", where, "UTF-8 text", "saving the file as UTF-8"), data)
    except BadRow as error:
        return broken(number, error, data)


def json_values(stream) -> Iterator[Record]:
    """Rows of a JSON file: an array of objects, one object with one list of them, objects in a row, or JSONL.

    Objects one a line are read as lines, so that a broken one costs no other.
    """
    data = stream.read()
    first = data.strip().split(b"\n", 1)[0]
    try:
        text = data.decode()
        whole = first[:1] == b"[" or not isinstance(JsonDecoder().decode(first.decode().strip())[0], dict)
    except UnicodeDecodeError:
        yield from json_lines(io.BytesIO(data))
        return
    except BadRow:
        whole = not looks_like_lines(data)
    if not whole and b"\n" in data.strip():
        yield from json_lines(io.BytesIO(data))
        return
    yield from values_of(text)


def looks_like_lines(data: bytes) -> bool:
    """Whether some line after a broken first one is an object by itself."""
    for line in itertools.islice(data.split(b"\n"), 1, HEAD):
        with contextlib.suppress(BadRow, UnicodeDecodeError):
            text = line.decode().strip()
            value, end = JsonDecoder().decode(text)
            if isinstance(value, dict) and end == len(text) and line[:1] == b"{":
                return True
    return False


class Lines:
    """Numbers of the lines in which growing positions of a text stand."""

    def __init__(self, text: str):
        self.text, self.line, self.counted = text, 1, 0

    def at(self, position: int) -> int:
        """The line of a position, no smaller than the one before."""
        self.line += self.text.count("\n", self.counted, position)
        self.counted = position
        return self.line


def values_of(text: str) -> Iterator[Record]:
    """Rows of a text that holds JSON values one after another, or in one array.

    A comma too many or too few is a flaw of its own that costs no value; what follows a value without an end is lost.
    """
    decoder, lines, at = JsonDecoder(), Lines(text), JSON_SPACE.match(text).end()
    inside = text.startswith("[", at)
    at, before = at + inside, 0  # values so far
    while True:
        begin, at = at, COMMAS.match(text, at).end()
        closed = inside and text.startswith("]", at)
        if flaw := comma_flaw(text[begin:at], inside, not before, closed or at == len(text)):
            yield misplaced_comma(text, begin, at, flaw, lines)
        line = lines.at(at)
        if closed or at == len(text):
            break
        try:
            value, end = decoder.decode(text, at)
        except BadRow as error:
            what = {"field": "row", "got": error.parts["got"], "expected": error.parts["expected"]}
            yield broken(line, BadRow(**what, advice="mending it, as nothing after it could be read"), text[at:])
            return
        if not (inside or before or text[end:].strip() or decoder.flaws or not isinstance(value, dict)):
            rows = listed_rows(value)
            if rows is not None:
                yield from rows
                return
        yield value_record(decoder, value, text[at:end], line)
        at, before = end, before + 1
    if inside and not closed:
        yield broken(line, BadRow("row", "an array without end", "`]` at its end"), text[-100:])
    elif inside and (rest := text[at + 1 :].strip()):
        yield broken(line, BadRow("row", f"{shown(rest)} after the array", "the end of the file"), rest)


def value_record(decoder: JsonDecoder, value, text: str, line: int) -> Record:
    """The record of a value that was just decoded."""
    try:
        return Record(line, decoder.check(value, text))
    except BadRow as error:
        return broken(line, error, text)


def comma_flaw(between: str, inside: bool, first: bool, last: bool) -> str:
    """What is wrong with the commas between two values, or "" if nothing is."""
    count = between.count(",")
    if not inside:
        return "a comma outside an array" if count else ""
    if first and last:
        return "a comma in an array without values" if count else ""
    if first:
        return "a comma before the first value" if count else ""
    if last:
        return "a comma after the last value" if count else ""
    return "no comma between two values" if not count else f"{count} commas in a row" if count > 1 else ""


def misplaced_comma(text: str, begin: int, end: int, flaw: str, lines: Lines) -> Record:
    """The record of a flaw of commas: it names the place of the comma that is wrong, or where one is missing."""
    at = text.find(",", begin, end)
    if flaw.endswith("in a row"):
        at = text.find(",", at + 1, end)
    at = end if at < 0 else at
    column = at - text.rfind("\n", 0, at)
    got = f"{flaw} (at column {column}, near {nearby(text, at)})"
    error = BadRow("row", got, "one comma between two values of an array, and no other", "mending the commas there")
    return broken(lines.at(at), error, text[max(at - 50, 0) : at + 50])


def listed_rows(value: dict) -> list[Record] | None:
    """The rows of a JSON object that holds one list of objects and is no row itself; their numbers count from 1."""
    lists = [key for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)]
    if len(lists) != 1 or form_of(value) is not None:
        return None
    records = []
    for number, row in enumerate(value[lists[0]], start=1):
        try:
            if not isinstance(row, dict):
                raise BadRow("row", shown(row), "a JSON object")
            records.append(Record(number, as_plain(row)))
        except BadRow as error:
            records.append(broken(number, error, shown(row)))
    return records


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
            yield broken(number, BadRow("prompt", f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text"), piece)


def csv_rows(stream, name: str, delimiter: str) -> Iterator[Record]:
    """Rows of a CSV or TSV file with a header; every value is text, and an empty one is absent."""
    csv.field_size_limit(MAX_LINE)
    reader = csv.reader((data.decode("utf-8", "surrogateescape") for data in stream), delimiter=delimiter, strict=True)
    try:
        header = next((cells for cells in reader if cells), [])
    except csv.Error as error:
        raise UserError(f"{name}:1: got a header that is no CSV ({error}); expected column names") from None
    twice = [column for column, count in Counter(header).items() if count > 1]
    need(not twice, f"{name}:1: got the column {shown(twice[:1])} twice; expected each name once")
    while True:
        start = reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield broken(start + 1, BadRow("row", f"no CSV ({error})", "RFC 4180 quoting", 'quotes as ""'))
            if reader.line_num == start:
                return
            continue
        if not cells:
            continue
        try:
            if len(cells) != len(header):
                got = f"{len(cells)} fields"
                raise BadRow("row", got, f"{len(header)} as in the header", "quoting fields that hold separators")
            row = {column: cell or None for column, cell in zip(header, cells, strict=True)}
            yield Record(start + 1, as_plain(row))
        except BadRow as error:
            yield broken(start + 1, error, delimiter.join(cells))


def parquet_rows(source: str, max_bytes: int) -> Iterator[Record]:
    """Rows of a parquet file, 1000 at a time; numbered from 1."""
    import pyarrow.parquet

    number = 0
    try:
        with open(source, "rb") as raw:
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
            raise BadRow("row", shown(row), "an object with named fields")
        return Record(number, as_plain(row))
    except BadRow as error:
        return broken(number, error, shown(row))


def hub_rows(source: str) -> Iterator[Record]:
    """Rows of a data set on the hub, `owner/name[:config][@split]`; code that comes with it is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    try:
        rows = datasets.load_dataset(name, subset or None, split=split or "train")
        for number, row in enumerate(rows, start=1):
            yield checked(number, row)
    except Exception as error:  # every layer below has its own
        raise UserError(f"got {source!r}: no such file, and the hub says: {shown(str(error))}") from None


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


# ----------------------------------------------------------------------- reading (src/programs/data_loader/reading.py)


def expand(sources, max_files: int = 100_000) -> list[str]:
    """The files behind paths, folders and globs, in order; hub ids, generators and `-` stay as they are."""
    found = []
    for source in [sources] if isinstance(sources, str | Path) else list(sources):
        path, source = Path(source), str(source)
        if source == "-" or source.startswith("reasoning_gym:"):
            found.append(source)
        elif path.is_dir():
            files = (
                file
                for file in sorted(path.rglob("*"))
                if not any(p.startswith(".") for p in file.parts[len(path.parts) :])
            )
            files = list(itertools.islice((str(f) for f in files if f.is_file() and format_of(str(f))), max_files))
            need(files, f"got the folder {source} without a data file; expected names such as x.jsonl or x.csv.gz")
            found += files
        elif path.exists():
            known = format_of(source)
            expected = f"a name that ends in {', '.join(SUFFIXES)}, also with .gz or .zst"
            need(known, f"got {source}; expected {expected}; try renaming it, or --input_format")
            found.append(source)
        elif any(mark in source for mark in "*?["):
            import glob

            files = [file for file in sorted(glob.glob(source, recursive=True)) if format_of(file)]
            need(files, f"got {source}, which matches no data file; expected at least one")
            found += files
        else:
            hub = is_hub_id(source) and not format_of(source)
            need(
                hub,
                f"got {source}, which is no file, folder or glob; expected one, or a hub id such as openai/gsm8k:main",
            )
            found.append(source)
    need(found, "got no input; expected files, folders, globs, hub ids or `-`")
    return found


def format_of(name: str) -> str | None:
    """The format that a file's name tells, `.gz` and `.zst` aside."""
    path = Path(name.lower())
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in PACKED else path.suffix)


def name_of(source: str) -> str:
    """What rows of this input have as `source`, unless they say it themselves."""
    if source == "-":
        return "stdin"
    if source.startswith("reasoning_gym:"):
        return source.partition("?")[0]
    if not Path(source).exists():
        return source
    path = Path(source)
    return Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem


def distinct_names(files: list[str]) -> dict[str, str]:
    """The name of each input; files of one name also carry the folders in which they differ."""
    names = {file: name_of(file) for file in files}
    for name, count in Counter(names.values()).items():
        alike = [file for file in names if names[file] == name]
        if count > 1 and all(Path(file).is_file() for file in alike):
            inside = {file: os.path.abspath(file) for file in alike}
            top = os.path.commonpath([os.path.dirname(path) for path in inside.values()])
            inside = {file: Path(path).relative_to(top) for file, path in inside.items()}
            short = Counter(path.parent / name for path in inside.values())
            # a.jsonl and a.csv in one folder differ only by what follows the stem
            names |= {f: str(p.parent / name if short[p.parent / name] == 1 else p) for f, p in inside.items()}
    return names


@dataclass
class Settings:
    """How rows are read: the keyword arguments of load_rows."""

    kind: str = "auto"
    mapping: dict = field(default_factory=dict)
    drop: tuple = ()
    system_prompt: str | None = None
    on_bad: str = "fail"
    limit: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    text_separator: str | None = None
    input_format: str | None = None
    dedup: bool = False

    def __post_init__(self):
        check_kind(self.kind)
        self.mapping = dict(self.mapping or {})
        for field_name, source in self.mapping.items():
            need(field_name and source, f"got the mapping {field_name!r}={source!r}; expected field=source")
        need(self.on_bad in ("fail", "skip"), f"got on_bad {self.on_bad!r}; expected fail or skip")
        need(self.limit is None or self.limit > 0, f"got limit {self.limit}; expected 1 or more")
        need(self.max_bytes > 0, f"got max_bytes {self.max_bytes}; expected 1 or more")
        formats = sorted(set(SUFFIXES.values()))
        known = self.input_format in (None, *formats)
        need(known, f"got input_format {self.input_format!r}; expected one of {', '.join(formats)}")


def records_of(source: str, settings: Settings) -> Iterator[Record]:
    """The rows of one input as they stand there."""
    if source.startswith("reasoning_gym:"):
        return generated_rows(source)
    if source != "-" and not Path(source).exists():
        return hub_rows(source)
    form = settings.input_format or format_of(source)
    if form == "parquet":
        need(source != "-", "got parquet on stdin; expected a file, as parquet is not read in one go")
        return parquet_rows(source, settings.max_bytes)
    return file_rows(source, form, settings)


def file_rows(source: str, form: str | None, settings: Settings) -> Iterator[Record]:
    """The rows of a file that is read as bytes, or of stdin."""
    name = "stdin" if source == "-" else source
    with contextlib.closing(open_bytes(source, settings.max_bytes)) as stream:
        if form is None:  # stdin: JSON begins with a bracket
            start = stream.peek(64)[:64].lstrip()
            is_lines = start.startswith(b"{") and not start[1:].lstrip(b" \t").startswith((b"\n", b"\r"))
            form = "jsonl" if is_lines else "json" if start[:1] in (b"{", b"[") else "txt"
        if form in ("csv", "tsv"):
            yield from csv_rows(stream, name, "," if form == "csv" else "\t")
        elif form == "txt":
            yield from text_rows(stream, settings.text_separator)
        else:
            yield from json_values(stream) if form == "json" else json_lines(stream)


# ----------------------------------------------------------------------- writing (src/programs/data_loader/writing.py)

# names that TRL's trainers give to reward functions themselves
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?Z?")
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # str.splitlines cuts there


def json_line(row: dict) -> str:
    """A row as one line of JSON, on any reader's idea of lines."""
    text = ENCODER.encode(row)
    if not text.isascii() and any(mark in text for mark in "\x85\u2028\u2029"):
        text = text.translate(LINE_ENDS)
    return text + "\n"


def trl_row(row: dict) -> dict:
    """A row as TRL's trainers read it: completions are messages like the prompt; `text_fields` names those of text."""
    clash = [name for name in TRL_ARGUMENTS if name in row]
    advice = f"try --map old_{clash[0]}={clash[0]}" if clash else ""
    need(not clash, f"got the column {clash[:1]}, a name that TRL gives to rewards itself; expected another; {advice}")
    texts = [name for name in ("completion", "chosen", "rejected") if isinstance(row.get(name), str)]
    if not texts:
        return row
    turned = {name: [{"role": "assistant", "content": row[name]}] for name in texts}
    return {**row, **turned, "text_fields": texts}


def verl_row(row: dict, index: int, split: str, data_source: str = "") -> dict:
    """A row as verl's RLHFDataset reads it; all that verl has no column for goes into extra_info.

    `data_source` is the row's own source where none is named; extra_info keeps that one in any case.
    """
    gold, kind = next((name for name in ("tests", "answer") if name in row), "none"), kind_of(row)
    truth = row.get(gold, "")
    as_json = not isinstance(truth, str)
    extra = {"index": index, "split": split, "ground_truth_field": f"{gold}:json" if as_json else gold}
    for name, value in row.items():
        if name not in ("prompt", gold):
            extra[f"column:{name}" if name in OWN_INFO or name.startswith("column:") else name] = value
    return {
        "data_source": data_source or row.get("source") or "data",
        "prompt": row["prompt"],
        "ability": kind if kind in ("math", "code") else "chat",
        "reward_model": {"style": "rule", "ground_truth": ENCODER.encode(truth) if as_json else truth},
        "extra_info": extra,
    }


def target_rows(rows: Iterable[dict], target: str, split: str, data_source: str = "") -> Iterator[dict]:
    """Rows in the shape of the target."""
    for index, row in enumerate(rows):
        if target == "verl":
            row = verl_row(row, index, split, data_source)
        yield trl_row(row) if target == "trl" else row


def write_rows(rows: Iterable[dict], path, target: str = "ours", *, split: str = "train", data_source: str = "") -> int:
    """Write normalised rows to a .jsonl or .parquet file and return their number; the file appears whole or not at all.

    Args:
        target: "ours", "trl" or "verl"; load_rows reads each of them back as it was.
        split: what verl's extra_info.split says.
        data_source: verl's data_source of all rows; "" is each row's source.

    Raises:
        UserError: the path, the target or a column cannot be used.
    """
    rows, path = list(rows), Path(path)
    check_out(path, target)
    with new_file(path) as temporary:
        return fill_file(lambda: iter(rows), temporary, path.suffix, (target, split, data_source))


def check_out(path: Path, target: str) -> None:
    """Raise UserError unless something can be written there."""
    need(target in TARGETS, f"got the target {target!r}; expected one of {', '.join(TARGETS)}")
    need(path.suffix in (".jsonl", ".parquet"), f"got the output {path}; expected a name in .jsonl or .parquet")
    need(path.parent.is_dir(), f"got the output {path}; expected a folder that exists; try mkdir -p {path.parent}")
    need(not path.is_dir(), f"got the output {path}, a folder; expected the name of a file")


def fill_file(make_rows: Callable[[], Iterator[dict]], path: Path, suffix: str, shape: tuple[str, str, str]) -> int:
    """Write the rows that make_rows gives to a file, shaped as target_rows shapes them; parquet asks for them twice."""
    target = shape[0]
    if suffix == ".parquet":
        return write_parquet(lambda: target_rows(make_rows(), *shape), path, target)
    count, dates = 0, {}
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for row in target_rows(make_rows(), *shape):
            f.write(json_line(row))
            count += 1
            if target != "ours":
                watch_dates(row, dates)
    if dated := [name for name, all_dates in dates.items() if all_dates]:
        what = f"datasets reads {', '.join(dated)} of a .jsonl as dates, as each value looks like one"
        say(f"warning: {what}; try a .parquet output")
    return count


def watch_dates(row: dict, dates: dict) -> None:
    """Note which text columns hold nothing but dates so far: pyarrow's JSON reader turns those into datetimes."""
    inner = {**row.get("extra_info", {}), "ground_truth": row.get("reward_model", {}).get("ground_truth")}
    for name, value in {**row, **(inner if "reward_model" in row else {})}.items():
        if isinstance(value, str) and dates.get(name, True):
            dates[name] = bool(DATE_LIKE.fullmatch(value))


@contextlib.contextmanager
def new_file(path: Path):
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UserError(f"got the output {path}: {error.strerror}; expected a folder to write to") from None
    os.close(handle)
    try:
        yield Path(temporary)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's file is for its owner only
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def chunks(rows: Iterator[dict], size: int = CHUNK) -> Iterator[list[dict]]:
    """Lists of so many rows."""
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def write_parquet(make_rows: Callable[[], Iterator[dict]], path: Path, target: str) -> int:
    """Write parquet in two passes: one finds the types of all columns, one writes.

    A column whose values parquet would change (objects of different keys, numbers beside text) is stored as JSON text,
    and its name in `json_columns`; load_rows decodes it.
    """
    import pyarrow
    import pyarrow.parquet

    plan = ColumnPlan()
    for chunk in chunks(make_rows()):
        plan.look([flat(row, target) for row in chunk])
    plan.conclude(target)
    count = 0
    schema = plan.schema(target)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for chunk in chunks(make_rows()):
            rows = [nested(plan.encode(flat(row, target)), target) for row in chunk]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def flat(row: dict, target: str) -> dict:
    """A target row with verl's extra_info spread out, so that its fields are planned as columns."""
    if target != "verl":
        return row
    spread_out = {("extra", name): value for name, value in row["extra_info"].items()}
    return {**{name: value for name, value in row.items() if name != "extra_info"}, **spread_out}


def nested(row: dict, target: str) -> dict:
    """The opposite of flat."""
    if target != "verl":
        return row
    outer = {name: value for name, value in row.items() if not isinstance(name, tuple)}
    return {**outer, "extra_info": {name[1]: value for name, value in row.items() if isinstance(name, tuple)}}


MESSAGE_FIELDS = ("prompt", "completion", "chosen", "rejected")


class ColumnPlan:
    """The parquet type of each column, and which ones have to be JSON text to come back as they were."""

    def __init__(self):
        self.types: dict = {}  # column -> types seen; None: JSON text
        self.as_json: list = []

    def look(self, rows: list[dict]) -> None:
        """Take in a chunk of rows."""
        import pyarrow

        for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
            values = [row.get(name) for row in rows]
            try:
                column = pyarrow.array(values)
                back = column.to_pylist()
                same = back == values or (name in MESSAGE_FIELDS and bare(back) == values)
            except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
                same = False
            seen = self.types.setdefault(name, [])
            if not same:
                self.types[name] = None
            elif seen is not None and "struct<>" in str(column.type):  # parquet has no object without fields
                self.types[name] = None
            elif seen is not None and column.type not in seen:
                seen.append(column.type)

    def conclude(self, target: str) -> None:
        """Merge the types of all chunks; fixed columns must not become text."""
        import pyarrow

        for name, types in self.types.items():
            if types is None:
                merged = None
            else:
                merged = self.merge(types, loose=name in MESSAGE_FIELDS)
            if merged is None or pyarrow.types.is_null(merged):
                fixed = name == "prompt" or (target == "trl" and name in MESSAGE_FIELDS)
                advice = "try an output in .jsonl"
                need(
                    not fixed, f"got {name} with messages that parquet would change; expected messages alike; {advice}"
                )
                self.as_json.append(name)
                merged = pyarrow.string()
            self.types[name] = merged

    def merge(self, types: list, loose: bool):
        """One type for all, or None; objects may differ in their keys only where absent ones are told from null."""
        import pyarrow

        kinds = [kind for kind in types if not pyarrow.types.is_null(kind)] or types
        strict = any("struct" in str(kind) for kind in kinds) and not loose
        if strict and len(kinds) > 1:
            return None
        try:
            schemas = [pyarrow.schema([("x", kind)]) for kind in kinds]
            return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
        except (pyarrow.ArrowException, ValueError, TypeError):
            return None

    def encode(self, row: dict) -> dict:
        """A row with JSON text where the plan says so."""
        names = [name for name in self.as_json if row.get(name) is not None]
        if not names:
            return row
        marks = ("extra", "json_columns") if isinstance(names[0], tuple) else "json_columns"
        plain = [name[1] if isinstance(name, tuple) else name for name in names]
        return {**row, **{name: ENCODER.encode(row[name]) for name in names}, marks: plain}

    def schema(self, target: str):
        """The parquet schema."""
        import pyarrow

        listed = pyarrow.list_(pyarrow.string())
        if target != "verl":
            columns = {**self.types, **({"json_columns": listed} if self.as_json else {})}
            return pyarrow.schema(list(columns.items()))
        outer = [(name, kind) for name, kind in self.types.items() if not isinstance(name, tuple)]
        inner = [(name[1], kind) for name, kind in self.types.items() if isinstance(name, tuple)]
        inner += [("json_columns", listed)] if self.as_json else []
        return pyarrow.schema([*outer, ("extra_info", pyarrow.struct(inner))])


def bare(values: list) -> list:
    """Messages as parquet gives them back, without the keys that only other messages have."""
    return [
        [{k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else item for item in value]
        if isinstance(value, list)
        else value
        for value in values
    ]


# ----------------------------------------------------------------- row reader (src/programs/data_loader/row_reader.py)


def remapped(row: dict, settings: Settings) -> dict:
    """A row after --drop and --map; the source of a mapping may be a dotted path into objects."""
    row = {name: value for name, value in row.items() if name not in settings.drop}
    taken = {}
    for name, source in settings.mapping.items():
        value, inside = row, [source] if source in row else source.split(".")
        for key in inside:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            advice = f"--map {name}=COLUMN{suggest(source, list(row)).replace('; try', ', perhaps')}"
            raise BadRow(name, f"the columns {', '.join(row)[:200]}", f"the column {source!r} of --map", advice)
        taken[name] = value
    for source in settings.mapping.values():
        row.pop(source, None)
    if clash := [name for name in taken if name in row]:
        raise BadRow(clash[0], f"a column of that name beside --map {clash[0]}", "one of the two", f"--drop {clash[0]}")
    return {**taken, **row}


class RowReader:
    """Iterates over the good rows of all inputs, normalised, in order; what it leaves out it counts and reports.

    `counts` adds up at any time: read = kept + rejected + deduplicated. `on_reject` gets each bad row.
    """

    def __init__(self, sources, settings: Settings, on_reject: Callable[[dict], None]):
        self.files, self.settings, self.on_reject = expand(sources), settings, on_reject
        self.names, self.current = distinct_names(self.files), ""
        self.counts = {"read": 0, "kept": 0, "rejected": 0, "deduplicated": 0}
        self.kinds, self.reasons, self.seen, self.notes = Counter(), [], set(), Counter()

    @property
    def kind(self) -> str:
        """The kind of all rows so far, or `mixed`."""
        return "mixed" if len(self.kinds) > 1 else next(iter(self.kinds), "prompts")

    @property
    def why(self) -> str:
        """Why each input was taken for what it was taken for."""
        return "; ".join(self.reasons)

    def __iter__(self) -> Iterator[dict]:
        for file in self.files:
            yield from self.rows_of(file)
            if self.counts["kept"] == self.settings.limit:
                return

    def rows_of(self, file: str) -> Iterator[dict]:
        """The good rows of one input."""
        records, name = iter(records_of(file, self.settings)), self.names[file]
        self.current = name
        form, records = self.detect(file, records)
        before = self.counts["read"]
        for record in records:
            self.counts["read"] += 1
            try:
                row = self.read(record, form)
            except BadRow as error:
                self.counts["rejected"] += 1
                where = {"file": "stdin" if file == "-" else file, "line": record.line}
                self.on_reject({**where, **error.parts, "row": record.text if record.row is None else record.row})
                continue
            row.setdefault("source", name)
            row.setdefault("id", f"{name}:{record.line}")
            if self.settings.dedup and self.repeats(row):
                self.counts["deduplicated"] += 1
                continue
            self.counts["kept"] += 1
            yield row
            if self.counts["kept"] == self.settings.limit:
                return
        if self.counts["read"] == before and len(self.files) > 1:  # of a single one, need_rows says it
            say(f"warning: {'stdin' if file == '-' else file} holds no row")

    def need_rows(self, rejected: list[dict] = ()) -> None:
        """Raise UserError if no row at all could be used; of those that were rejected it shows the first."""
        if self.counts["kept"]:
            return
        inputs, bad = " ".join(self.files[:5]) + " …" * (len(self.files) > 5), self.counts["rejected"]
        counts = f"{self.counts['read']} read" + (f", {bad} bad" if bad else "")
        first = f"; the first bad one: {line_of(rejected[0])}" if rejected else ""
        raise UserError(f"got no usable row from {inputs} ({counts}); expected at least one{first}")

    def read(self, record: Record, form: str) -> dict:
        """One record normalised."""
        if record.flaw:
            raise record.flaw
        row, settings = record.row, self.settings
        if settings.mapping or settings.drop:
            row = remapped(row, settings)
        own = form_of(row)
        if settings.kind == "auto":
            form = self.agreed(form, own, row)
        row = convert(row, form)
        if settings.system_prompt:
            if row["prompt"][0]["role"] in ("system", "developer"):
                self.notes["rows kept their own system prompt"] += row["prompt"][0]["content"] != settings.system_prompt
            else:
                row["prompt"] = [{"role": "system", "content": settings.system_prompt}, *row["prompt"]]
        return row

    def agreed(self, form: str, own: str | None, row: dict) -> str:
        """The form by which a row of an input of this form is read; BadRow where it is quite another one."""
        if own in ("ours", "verl"):
            return own
        if own is None:  # the conversion says what is missing
            return "prompts" if form in ("ours", "verl") else form
        if (
            own == form
            or (own == "prompts" and form not in ("ours", "verl"))
            or (own, form) in (("math", "prompts"), ("math", "worked"))
        ):
            return form  # a row that only asks lacks what this form needs, and the conversion says what
        got = f"a row of {own}, with the columns {', '.join(row)[:200]}"
        raise BadRow("row", got, f"{form.replace('worked', 'math')}, as the other rows", "a file for each kind")

    def detect(self, file: str, records: Iterator[Record]) -> tuple[str, Iterator[Record]]:
        """(form, all records): what most of the first rows are, and why; a given kind is taken as it is."""
        settings, label = self.settings, "stdin" if file == "-" else file
        head = list(itertools.islice(records, HEAD))
        forms, kinds, fields, marked = Counter(), Counter(), {}, 0
        for record in head:
            with contextlib.suppress(BadRow):
                row = remapped(record.row, settings) if record.row is not None else None
                form = form_of(row) if row is not None else None
                if form:
                    forms[form] += 1
                    first = next((row[name] for name in ANSWER_KEYS if row.get(name) is not None), None)
                    marked += form == "math" and marks_answer(first)
                    fields.setdefault(form, [name for name in row if row[name] is not None])
                    if form in ("ours", "verl"):
                        kinds[kind_of(convert(row, form))] += 1
        records = itertools.chain(head, records)
        if settings.kind != "auto":
            kind = CUSTOM[settings.kind][1] if settings.kind in CUSTOM else settings.kind
            self.kinds[kind] += 1
            self.reasons.append(f"{label}: {settings.kind}, as asked for")
            return "worked" if kind == "math" and 2 * marked > len(head) else settings.kind, records
        if not forms:
            self.kinds["prompts"] += 1
            self.reasons.append(f"{label}: prompts, as no row has the fields of another kind")
            return "prompts", records
        form, count = forms.most_common(1)[0]
        kind = CUSTOM[form][1] if form in CUSTOM else form
        if form in ("ours", "verl"):
            self.kinds.update(kinds.keys() or ["prompts"])
            kind = f"{' and '.join(kinds) or 'prompts'}, in the form of {form}"
        else:
            self.kinds[kind] += 1
        sign = f"fields {', '.join(fields[form][:8])}" + (f", registered as {form}" if form in CUSTOM else "")
        worked = form == "math" and 2 * marked > count
        cut = (
            "; answer is the final one, the text around it is in solution (--kind prompts leaves columns as they were)"
        )
        self.reasons.append(
            f"{label}: {kind}, as {count} of the first {len(head)} rows have the {sign}{cut if worked else ''}"
        )
        return "worked" if worked else form, records

    def repeats(self, row: dict) -> bool:
        """Whether a row with the same prompt, answer, tests and completions came before."""
        parts = [row.get(name) for name in ("prompt", "answer", "tests", "completion", "chosen", "rejected")]
        mark = digest(parts)
        if mark in self.seen:
            return True
        self.seen.add(mark)
        return False


def digest(value) -> bytes:
    """16 bytes that stand for a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


@dataclass
class Loaded:
    """What load_rows returns: rows of the schema, what they were taken for and why, and what was left out."""

    rows: list[dict]
    kind: str
    why: str
    rejected: list[dict]
    counts: dict[str, int]


def load_rows(
    sources,
    kind: str = "auto",
    *,
    mapping: dict | None = None,
    system_prompt: str | None = None,
    on_bad: str = "fail",
    limit: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    text_separator: str | None = None,
    drop: Iterable[str] = (),
    dedup: bool = False,
    input_format: str | None = None,
) -> Loaded:
    """Read all rows of files, folders, globs, hub ids or generators into the schema.

    Args:
        sources: one input or a list: a path, a folder, a glob, `-` for stdin, `owner/name[:config][@split]`,
            `reasoning_gym:NAME?size=…&seed=…`.
        kind: one of KINDS, a registered format, or "auto": what most of the first 100 rows are, decided for each file.
        mapping: field of the schema -> column that holds it; the column may be a dotted path.
        system_prompt: put before prompts that have none.
        on_bad: "fail" raises BadRows after everything is read; "skip" leaves bad rows out and lists them in `rejected`.
        limit: stop after this many good rows.
        max_bytes: what a compressed or parquet file may unpack to.
        text_separator: what stands between two prompts of a .txt file (default: a line each).
        drop: columns to leave out.
        dedup: leave out rows whose prompt, answer, tests and completions came before.
        input_format: read every file as jsonl, json, txt, csv, tsv or parquet, whatever its name.

    Raises:
        BadRows: rows do not fit, and on_bad is "fail".
        UserError: an input cannot be read, an argument cannot be used, or there is no usable row.
    """
    settings = Settings(
        kind=kind,
        mapping=mapping,
        system_prompt=system_prompt,
        on_bad=on_bad,
        limit=limit,
        max_bytes=max_bytes,
        text_separator=text_separator,
        drop=tuple(drop),
        dedup=dedup,
        input_format=input_format,
    )
    rejected = []
    reader = RowReader(sources, settings, rejected.append)
    rows = list(reader)
    if rejected and on_bad == "fail":
        raise BadRows(rejected, len(rejected))
    reader.need_rows(rejected)
    return Loaded(rows, reader.kind, reader.why, rejected, reader.counts)


# ----------------------------------------------------------------------- batches (src/programs/data_loader/batches.py)


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt up to where the assistant speaks; a column `tools` goes to the chat template."""
    if tokenizer.chat_template:
        tools = row.get("tools") if isinstance(row.get("tools"), list) else None
        return tokenizer.apply_chat_template(
            row["prompt"], tools=tools, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    return tokenizer("\n".join(message["content"] for message in row["prompt"]) + "\n").input_ids


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there. Also works as `collate_fn` of a torch DataLoader.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        need(self.pad_id is not None, "got a tokenizer without pad and eos token; expected one; try setting pad_token")

    def __call__(self, rows: list[dict]) -> dict:
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        clash = {"input_ids", "attention_mask"} & set(names)
        need(
            not clash, f"got the column {', '.join(clash)}, which the batch has itself; expected another name; try drop"
        )
        ids, mask = left_pad([prompt_ids(self.tokenizer, row) for row in rows], self.pad_id, None)
        return {"input_ids": ids, "attention_mask": mask, **{name: [row.get(name) for row in rows] for name in names}}


def buffered_shuffle(rows: Iterator[dict], size: int, rng: random.Random) -> Iterator[dict]:
    """Rows in random order as far as a buffer of so many allows."""
    held = list(itertools.islice(rows, size))
    rng.shuffle(held)
    for row in rows:
        at = rng.randrange(len(held))
        held[at], row = row, held[at]
        yield row
    yield from held


@dataclass
class RowSet:
    """One set of rows: a list, or a function that starts reading it anew."""

    name: str
    rows: list[dict] | None
    read: Callable[[], Iterator[dict]] | None = None
    ids: str | None = None

    def mark(self) -> str | None:
        """What stands for the ids of all rows; None where they are streamed."""
        if self.rows is not None and self.ids is None:
            self.ids = digest([row["id"] for row in self.rows]).hex()
        return self.ids

    def one_pass(self, seed: str | None, curriculum, buffer: int) -> Iterator[dict]:
        """All rows once: as they stand, shuffled by the seed, or in the order of the curriculum."""
        rng = random.Random(seed) if seed is not None else None
        if self.rows is None:
            return buffered_shuffle(self.read(), buffer, rng) if rng else self.read()
        order = list(range(len(self.rows)))
        if rng:
            rng.shuffle(order)
        if curriculum is not None:  # the sort is stable: rows of one level stay shuffled
            keys = [difficulty(row, curriculum) for row in self.rows]
            try:
                order.sort(key=keys.__getitem__, reverse=isinstance(curriculum, str) and curriculum.startswith("-"))
            except TypeError as error:
                raise UserError(f"got curriculum values that have no order ({error}); expected all numbers") from None
        return (self.rows[index] for index in order)


def difficulty(row: dict, curriculum):
    """What the curriculum sorts by: a column (`-column`: falling) or a function of the row."""
    if callable(curriculum):
        return curriculum(row)
    name = curriculum.removeprefix("-")
    has = f"got row {row.get('id')!r} with the columns {', '.join(row)}"
    need(row.get(name) is not None, f"{has}; expected the curriculum's column {name!r}{suggest(name, list(row))}")
    return row[name]


# ----------------------------------------------------------------- inspection (src/programs/data_loader/inspection.py)


def percentiles(values) -> dict[str, int]:
    """p50, p95 and the largest of some lengths; each is a length that occurs."""
    ordered = sorted(values)
    ranks = {"p50": math.ceil(0.5 * len(ordered)) - 1, "p95": math.ceil(0.95 * len(ordered)) - 1, "max": -1}
    return {name: ordered[rank] for name, rank in ranks.items()} if ordered else {}


class Stats:
    """What --inspect shows about good rows; it keeps lengths and digests of rows, not the rows."""

    def __init__(self, tokenizer=None):
        self.tokenizer = tokenizer
        self.lengths = {name: array.array("q") for name in ("prompt_chars", "prompt_tokens", "completion_chars")}
        self.files, self.sources, self.fields, self.types, self.examples = Counter(), Counter(), Counter(), {}, []
        self.rows, self.prompts, self.place_sets, self.again, self.conflicts = set(), {}, {}, 0, set()

    def add(self, row: dict, file: str) -> None:
        """Take in a row of an input."""
        self.sources[row["source"]] += 1
        for name, value in row.items():
            self.fields[name] += 1
            self.types.setdefault(name, set()).add(type(value).__name__)
        self.lengths["prompt_chars"].append(sum(len(message["content"]) for message in row["prompt"]))
        if self.tokenizer:
            self.lengths["prompt_tokens"].append(len(prompt_ids(self.tokenizer, row)))
        for name in ("completion", "chosen"):
            if name in row:
                said = [row[name]] if isinstance(row[name], str) else [message["content"] for message in row[name]]
                self.lengths["completion_chars"].append(sum(map(len, said)))
        gold = [row.get(name) for name in ("answer", "tests", "completion", "chosen", "rejected")]
        prompt, gold = digest(row["prompt"]), digest(gold)
        whole = digest([prompt.hex(), gold.hex()])
        self.again += whole in self.rows
        self.rows.add(whole)
        first, places = self.prompts.get(prompt, (gold, frozenset()))
        places |= {(file, row["source"])}
        self.prompts[prompt] = first, self.place_sets.setdefault(places, places)  # one object for all that are equal
        self.files[file] += 1
        if gold != first:
            self.conflicts.add(prompt)
        if len(self.examples) < 3:
            self.examples.append({name: shown(value) for name, value in row.items()})

    def overlaps(self) -> dict[str, int]:
        """Prompts that stand in two inputs, or in two sources of one input."""
        found, which = Counter(), int(len(self.files) < 2)
        for _, places in self.prompts.values():
            found.update(" & ".join(pair) for pair in itertools.combinations(sorted({p[which] for p in places}), 2))
        return dict(found)

    def report(self) -> dict:
        """All of it as JSON."""
        fields = {name: {"rows": count, "types": sorted(self.types[name])} for name, count in self.fields.items()}
        return {
            "rows": self.sources.total(),
            "sources": dict(self.sources),
            "fields": fields,
            "lengths": {name: percentiles(values) for name, values in self.lengths.items() if values},
            "duplicates": self.again,
            "prompts_with_other_answers": len(self.conflicts),
            "overlap": self.overlaps(),
            "examples": self.examples,
        }


def plot_lengths(stats: Stats, path: Path) -> None:
    """Write a histogram of prompt lengths, in tokens where there is a tokenizer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    name = "prompt_tokens" if stats.lengths["prompt_tokens"] else "prompt_chars"
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.hist(stats.lengths[name], bins=50)
    for label, value in percentiles(stats.lengths[name]).items():
        axes.axvline(value, linestyle="--", linewidth=1, color="black")
        axes.annotate(f"{label} {value}", (value, axes.get_ylim()[1]), rotation=90, va="top", ha="right", fontsize=8)
    axes.set(xlabel=name.replace("_", " "), ylabel="rows")
    figure.tight_layout()
    with new_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)


# --------------------------------------------------------------------- held out (src/programs/data_loader/held_out.py)


def same_prompt(prompt: list[dict]) -> bytes:
    """A digest that is equal for prompts alike but for case, white space, Unicode form and their system prompt."""
    asked = [message for message in prompt if message["role"] not in ("system", "developer")]
    texts = [unicodedata.normalize("NFKC", message["content"]).casefold().split() for message in asked]
    return digest([[message["role"], " ".join(words)] for message, words in zip(asked, texts, strict=True)])


def split_size(text: str, count: int) -> tuple[str, int]:
    """(name, rows) of --split: NAME=N, NAME=SHARE, or N or SHARE alone, whose name is eval."""
    name, _, size = text.rpartition("=")
    name = name if "=" in text else "eval"
    try:
        number = int(size) if size.isdigit() else round(float(size) * count)
    except (ValueError, OverflowError):
        number = 0
    good = re.fullmatch(r"\w+", name) and name != "rejected" and 0 < number < count
    expected = f"expected NAME=N with N from 1 to {count - 1}, or a share, or one of these alone; try --split 0.1"
    need(good, f"got --split {text} of {count} rows; {expected}")
    return name, number


def held_out_rows(prompts: list[bytes], size: int, seed: int) -> set[int]:
    """Rows to hold out, whole prompts at random: `size` of them, or as near below it as prompts of several rows allow.

    Args:
        prompts: `same_prompt` of each row.

    Raises:
        UserError: there is one prompt only.
    """
    groups: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    got = f"got --split of {len(prompts)} rows of one prompt"
    need(len(groups) > 1, f"{got}; expected several prompts, as rows of one stay together")
    generator, owned = random.Random(seed), [*groups.values()]
    picked = generator.sample(range(len(owned)), min(size, len(owned)))
    rest = [*{*range(len(owned))}.difference(picked)]
    generator.shuffle(rest)  # where those picked have too many rows each
    chosen: set[int] = set()
    for group in [*picked, *rest]:
        if len(chosen) + len(owned[group]) <= size:
            chosen.update(owned[group])
        if len(chosen) == size:
            break
    return chosen or {*min((owned[group] for group in picked), key=len)}


# ----------------------------------------------------------------------- command (src/programs/data_loader/command.py)


def make_command() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        usage="%(prog)s IN ... [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=raw,
        allow_abbrev=False,
    )
    inputs = "files, folders, globs, `-`, hub id[:config][@split], reasoning_gym:NAME?size=100&seed=0"
    parser.add_argument("inputs", nargs="+", metavar="IN", help=inputs)

    def flag(name: str, help: str, **options) -> None:
        default = options.get("default")
        text = help + (f" (default: {default})" if default not in (None, "", []) else "")
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), help=text, **options)

    flag("kind", f"auto, {', '.join(KINDS)}", default="auto", metavar="KIND")
    flag("out", "file to write, .jsonl or .parquet", type=Path, metavar="FILE")
    flag("for", "who reads the output", dest="target", choices=TARGETS, default="ours")
    flag("data_source", "verl's data_source of all rows (default: each row's source)", metavar="NAME")
    flag("inspect", "report fields, lengths, duplicates, overlap of sources, examples", action="store_true")
    flag("tokenizer", "folder or hub id, for lengths in tokens", metavar="DIR")
    flag("plot", "histogram of prompt lengths", type=Path, metavar="FILE.png")
    flag("validate", "only report bad rows; exit 1 if there are any", action="store_true")
    flag("limit", "stop after N good rows", type=int, metavar="N")
    split = "held-out rows, whole prompts: 0.1 or 200 go to OUT.eval.jsonl, NAME=0.1 or NAME=200 to OUT.NAME.jsonl"
    flag("split", split, metavar="[NAME=]N")
    flag("seed", "of --split (default: that of --shuffle, else 0)", type=int, metavar="SEED")
    flag("dedup", "leave out rows whose prompt, answer, tests and completions came before", action="store_true")
    flag("system_prompt", "file with a system prompt for prompts that have none", type=Path, metavar="FILE")
    flag("shuffle", "shuffle the output by this seed", type=int, metavar="SEED")
    flag("map", "field=column, the column perhaps a dotted path", action="extend", nargs="+", metavar="F=C", default=[])
    flag(
        "drop",
        "columns to leave out, those that are added (source, id) too",
        action="extend",
        nargs="+",
        metavar="COLUMN",
        default=[],
    )
    flag(
        "on_bad",
        "skip: write the good rows, and the bad ones to OUT.rejected.jsonl",
        choices=("fail", "skip"),
        default="fail",
    )
    flag("txt_sep", r"what stands between prompts of a .txt, such as '\n\n' (default: a line each)", metavar="TEXT")
    flag("input_format", "read inputs as jsonl, json, txt, csv, tsv or parquet, whatever their names", metavar="NAME")
    flag("max_bytes", "what one packed file may unpack to", type=int, default=DEFAULT_MAX_BYTES, metavar="N")
    flag("json", "print one JSON object on stdout", action="store_true")
    return parser


def settings_of(args) -> Settings:
    """Check the arguments that are not checked elsewhere, and make the settings of the reading."""
    modes = args.out or args.inspect or args.validate or args.plot
    need(modes, "got nothing to do; expected --out FILE, --inspect or --validate")
    need(
        not (args.validate and args.out),
        "got --validate with --out; expected one of them, as --validate writes nothing",
    )
    need(
        args.out or not (args.split or args.shuffle is not None),
        "got --split or --shuffle without --out; expected --out",
    )
    wrong = f"got --data_source with --for {args.target}; expected --for verl, which has such a column"
    need(args.target == "verl" or args.data_source is None, wrong)
    need(args.data_source != "", "got --data_source ''; expected a name, such as openai/gsm8k")
    need(args.split or args.seed is None, "got --seed without --split; expected both; try --shuffle SEED for an order")
    need(not args.tokenizer or args.inspect or args.plot, "got --tokenizer alone; expected --inspect with it")
    wrong = [item for item in args.map if "=" not in item]
    need(not wrong, f"got --map {wrong[:1]}; expected field=column; try inputs before --map")
    if args.out:
        check_out(args.out, args.target)
    system = None
    if args.system_prompt:
        try:
            system = args.system_prompt.read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"got --system_prompt {args.system_prompt}: {error}; expected a text file") from None
        need(system, f"got --system_prompt {args.system_prompt}, which is empty; expected text")
    separator = args.txt_sep
    if separator is not None:
        separator = re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t", "\\": "\\"}[match[1]], separator)
    return Settings(
        kind=args.kind,
        mapping=dict(item.split("=", 1) for item in args.map),
        drop=tuple(args.drop),
        system_prompt=system,
        on_bad=args.on_bad,
        limit=args.limit,
        max_bytes=args.max_bytes,
        text_separator=separator,
        input_format=args.input_format,
        dedup=args.dedup,
    )


def open_tokenizer(name: str):
    """A tokenizer from a folder or the hub."""
    need(Path(name).is_dir() or is_hub_id(name), f"got --tokenizer {name}; expected a folder or a hub id")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"got --tokenizer {name}, which does not load: {shown(str(error))}") from None


class Spool:
    """Rows on disk, in an unnamed file, with their offsets: what is written later takes no memory now."""

    def __init__(self, folder: Path | None):
        self.file, self.offsets = tempfile.TemporaryFile(dir=folder), array.array("q", [0])

    def add(self, line: str) -> None:
        """Append a line."""
        self.offsets.append(self.offsets[-1] + self.file.write(line.encode()))

    def lines(self, order: Iterable[int] | None = None) -> Iterator[bytes]:
        """The lines, all or in this order."""
        self.file.seek(0)
        if order is None:
            yield from self.file
            return
        at = 0
        for index in order:
            start, end = self.offsets[index], self.offsets[index + 1]
            if at != start:
                self.file.seek(start)
            at = end
            yield self.file.read(end - start)

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Run:
    """One call of the command: reads once into spools, then writes all outputs or none."""

    def __init__(self, args, settings: Settings):
        self.args, self.first_rejected = args, []
        folder = args.out.parent if args.out else None
        self.good, self.bad = Spool(folder), Spool(folder)
        self.stats = Stats(open_tokenizer(args.tokenizer) if args.tokenizer else None)
        self.reader = RowReader(args.inputs, settings, self.reject)
        self.prompts: list[bytes] = []  # digests, for a split
        self.outputs: list[dict] = []

    def reject(self, item: dict) -> None:
        """Keep a bad row for the report and the .rejected.jsonl."""
        if len(self.first_rejected) < 20:
            self.first_rejected.append(item)
        if self.args.on_bad == "skip" and self.args.out:
            self.bad.add(json.dumps(item) + "\n")

    def read(self) -> None:
        """Go through all rows once."""
        from tqdm import tqdm

        args, looks = self.args, self.args.inspect or self.args.plot
        for row in tqdm(self.reader, desc="rows", unit="", delay=1, disable=None, file=sys.stderr):
            if looks:
                self.stats.add(row, self.reader.current)
            if args.out:
                self.good.add(json_line({name: value for name, value in row.items() if name not in args.drop}))
            if args.split:
                self.prompts.append(same_prompt(row["prompt"]))

    def parts(self) -> list[tuple[Path, str, list[int] | None]]:
        """(path, split name, order of rows) of each output."""
        args, count = self.args, len(self.good)
        order = list(range(count)) if args.split or args.shuffle is not None else None
        if args.shuffle is not None:
            random.Random(args.shuffle).shuffle(order)
        if not args.split:
            return [(args.out, "train", order)]
        name, size = split_size(args.split, count)
        chosen = held_out_rows(self.prompts, size, args.seed if args.seed is not None else args.shuffle or 0)
        if len(chosen) != size:
            say(f"note: {len(chosen)} rows are held out, not {size}, as rows of one prompt stay together")
        held, rest = [i for i in order if i in chosen], [i for i in order if i not in chosen]
        return [(args.out, "train", rest), (args.out.with_suffix(f".{name}{args.out.suffix}"), name, held)]

    def write(self) -> None:
        """Write every output beside its place, then put all in place."""
        args = self.args
        with contextlib.ExitStack() as stack:
            for path, split, order in self.parts():
                temporary = stack.enter_context(new_file(path))
                count = self.write_part(temporary, path, split, order)
                output = {"path": str(path), "rows": count, "split": split, "for": args.target}
                if args.split:
                    output["prompts"] = len({self.prompts[row] for row in order})
                self.outputs.append(output)
            if args.on_bad == "skip":
                path = args.out.with_suffix(".rejected.jsonl")
                with open(stack.enter_context(new_file(path)), "wb") as f:
                    f.writelines(self.bad.lines())
                self.outputs.append({"path": str(path), "rows": len(self.bad), "split": "rejected"})

    def write_part(self, temporary: Path, path: Path, split: str, order: list[int] | None) -> int:
        """Write one output; lines of our own schema are copied as they are."""
        if self.args.target == "ours" and path.suffix == ".jsonl":
            with open(temporary, "wb") as f:
                f.writelines(self.good.lines(order))
            return len(self.good) if order is None else len(order)
        shape = (self.args.target, split, self.args.data_source or "")
        return fill_file(lambda: map(json.loads, self.good.lines(order)), temporary, path.suffix, shape)

    def report(self) -> dict:
        """The report that --json prints."""
        looks = self.args.inspect or self.args.plot
        return {
            "kind": self.reader.kind,
            "why": self.reader.why,
            "counts": self.reader.counts,
            "outputs": self.outputs,
            "errors": self.first_rejected,
            "stats": self.stats.report() if looks else {},
        }


def run_command(args) -> int:
    """Do what the arguments ask for; returns the exit code."""
    run = Run(args, settings_of(args))
    run.read()
    counts, rejected = run.reader.counts, run.reader.counts["rejected"]
    only_look = not args.out
    failed = bool(rejected) and args.on_bad == "fail"
    error = BadRows(run.first_rejected, rejected) if failed else None
    if not failed and not (only_look and counts["read"]):
        try:
            run.reader.need_rows()
        except UserError as nothing:
            error = nothing
    if args.out and not error:
        run.write()
    if args.plot and counts["kept"]:
        plot_lengths(run.stats, args.plot)
    for text, count in run.reader.notes.items():
        if count:
            say(f"note: {count} {text}")
    if args.json:
        report = run.report()
        report["errors"] = report["errors"] or ([{"message": str(error)}] if error else [])
        tell(json.dumps(report))
    else:
        print_summary(run)
    if error:
        say(f"error: {error}")
        return 1 if only_look and failed else error.code
    return int(bool(rejected) and only_look)


def print_summary(run: Run) -> None:
    """The report for people."""
    report = run.report()
    tell(f"{report['kind']}: {report['why']}")
    tell(", ".join(f"{count} {name}" for name, count in report["counts"].items()))
    for output in report["outputs"]:
        prompts = f" of {output['prompts']} prompts" if "prompts" in output else ""
        tell(f"wrote {output['path']}: {output['rows']} rows{prompts}")
    stats = report["stats"]
    for name, item in stats.get("fields", {}).items():
        tell(f"  {name}: in {item['rows']} rows, {' or '.join(item['types'])}")
    for name, lengths in stats.get("lengths", {}).items():
        tell(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in lengths.items()))
    if stats:
        tell(f"  duplicates: {stats['duplicates']}; prompts with other answers: {stats['prompts_with_other_answers']}")
        tell(f"  overlap: {', '.join(f'{pair}: {count}' for pair, count in stats['overlap'].items()) or 'none'}")
        for number, example in enumerate(stats["examples"], start=1):
            tell(f"  example {number}: " + "; ".join(f"{name}={value}" for name, value in example.items()))


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = make_command()
    args = parse_flags(parser, argv)
    try:
        return run_command(args)
    except UserError as error:
        message, code = str(error), error.code
    except OSError as error:  # a full disk, a file that vanished
        message, code = f"got {error}; expected files that can be read and written", 2
    if args.json:
        none = {"kind": None, "why": "", "counts": {}, "outputs": [], "stats": {}}
        tell(json.dumps({**none, "errors": [{"message": message}]}))
    say(f"error: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())


# ------------------------------------------------------------------------- loader (src/programs/data_loader/loader.py)


class PromptLoader:
    """Batches of prompts, epoch after epoch: each `for` goes through the rest of the current epoch.

    The order depends on nothing but the rows, the settings and the epoch, so `state_dict()` after a batch and
    `load_state_dict()` in another process give exactly the batches that would have followed. `left_out` counts prompts
    that are longer than max_prompt_tokens.
    """

    def __init__(self, sets: list[RowSet], collator: Collator, settings: dict):
        self.sets, self.collator, self.settings = sets, collator, settings
        self.epoch, self.position, self.left_out = 0, 0, 0
        self.size = None
        longest = settings["max_prompt_tokens"]
        for rows in sets if longest is not None else ():
            if rows.rows is not None:
                kept = [row for row in rows.rows if self.fits(row)]
                need(kept, f"got no prompt of {rows.name} within max_prompt_tokens {longest}; expected some")
                rows.rows = kept
        self.tell_left_out()

    def tell_left_out(self) -> None:
        """Say how many prompts were too long."""
        if self.left_out:
            longest = self.settings["max_prompt_tokens"]
            count = f"{self.left_out} prompt" + "s" * (self.left_out > 1)
            say(f"warning: left out {count} longer than max_prompt_tokens {longest}")

    def fits(self, row: dict) -> bool:
        """Whether a prompt is short enough; counts it where it is not."""
        longest = self.settings["max_prompt_tokens"]
        if longest is None or len(prompt_ids(self.collator.tokenizer, row)) <= longest:
            return True
        self.left_out += 1
        return False

    def one_pass(self, number: int, turn: int, epoch: int) -> Iterator[dict]:
        """The rows of one set, for the turn-th time in an epoch."""
        settings, rows = self.settings, self.sets[number]
        seed = settings["shuffle_seed"]
        seed = None if seed is None else f"{seed} {epoch} {number} {turn}"
        found = rows.one_pass(seed, settings["curriculum"], settings["shuffle_buffer"])
        return found if rows.rows is not None else filter(self.fits, found)

    def rows_of(self, epoch: int) -> Iterator[dict]:
        """The rows of an epoch in order.

        With weights the next row comes from the set that is furthest behind its share. The epoch ends when every set
        has been seen whole ("all", the smaller ones several times) or when one runs out ("first").
        """
        if self.settings["weights"] is None:
            yield from self.one_pass(0, 0, epoch)
            return
        total = sum(self.settings["weights"])
        shares = [weight / total for weight in self.settings["weights"]]
        turns, drawn = [0] * len(shares), [0] * len(shares)
        passes = [self.one_pass(number, 0, epoch) for number in range(len(shares))]
        ahead = [next(rows, None) for rows in passes]
        empty = [self.sets[number].name for number, row in enumerate(ahead) if row is None]
        need(not empty, f"got no usable row from {', '.join(empty)}; expected some to mix in")
        while True:
            count = sum(drawn)
            number = max(range(len(shares)), key=lambda i: (shares[i] * (count + 1) - drawn[i], -i))
            yield ahead[number]
            drawn[number] += 1
            ahead[number] = next(passes[number], None)
            if ahead[number] is None:
                turns[number] += 1
                if all(turns) or self.settings["mix_until"] == "first":
                    return
                passes[number] = self.one_pass(number, turns[number], epoch)
                ahead[number] = next(passes[number])

    def __iter__(self) -> Iterator[dict]:
        rank, world = self.settings["rank"], self.settings["world_size"]
        streams = any(part.rows is None for part in self.sets)
        self.left_out = 0 if streams else self.left_out
        rows = itertools.islice(self.rows_of(self.epoch), self.position, None)
        for group in chunks(rows, self.settings["batch_size"] * world):
            self.position += len(group)
            if mine := group[rank : len(group) - len(group) % world : world]:  # each process as many rows
                yield self.collator(mine)
        if streams:
            longest = self.settings["max_prompt_tokens"]
            need(self.position, f"got no prompt within max_prompt_tokens {longest}; expected some")
            self.tell_left_out()
        self.epoch, self.position = self.epoch + 1, 0

    def __len__(self) -> int:
        """Batches of a whole epoch; TypeError where rows are streamed."""
        if any(rows.rows is None for rows in self.sets):
            raise TypeError("a streaming loader has no length")
        if self.size is None:
            self.size = sum(1 for _ in self.rows_of(self.epoch))
        batch, world = self.settings["batch_size"], self.settings["world_size"]
        full, rest = divmod(self.size, batch * world)
        return full + (rest >= world)

    def fingerprint(self) -> dict:
        """What the order of rows depends on; a position means nothing where it differs."""
        names = ("shuffle_seed", "weights", "mix_until", "shuffle_buffer", "max_prompt_tokens", "world_size")
        curriculum = self.settings["curriculum"]
        name = getattr(curriculum, "__qualname__", type(curriculum).__name__) if callable(curriculum) else curriculum
        rows = [[s.name, s.mark()] for s in self.sets]
        return {**{key: self.settings[key] for key in names}, "curriculum": name, "sets": rows}

    def state_dict(self) -> dict:
        """Where the loader stands: epoch, rows consumed in it (by all processes), and what both depend on."""
        return {"epoch": self.epoch, "position": self.position, "order": self.fingerprint()}

    def load_state_dict(self, state: dict) -> None:
        """Go on where a loader with the same rows and settings stood."""
        mine = self.fingerprint()
        fits = isinstance(state, dict) and {"epoch", "position", "order"} <= set(state)
        need(fits, f"got the state {shown(state)}; expected what state_dict returned")
        wrong = [key for key, value in mine.items() if state["order"].get(key) != value]
        need(
            not wrong, f"got a position of a loader with other {', '.join(wrong)}; expected the same rows and settings"
        )
        self.epoch, self.position = state["epoch"], state["position"]


def create_dataloader(
    kind: str,
    sources,
    tokenizer,
    *,
    batch_size: int,
    max_prompt_tokens: int | None = None,
    shuffle_seed: int | None = None,
    weights: list[float] | None = None,
    mix_until: str = "all",
    curriculum: str | Callable | None = None,
    streaming: bool = False,
    shuffle_buffer: int = 10_000,
    rank: int = 0,
    world_size: int = 1,
    **reading,
) -> PromptLoader:
    """Batches of prompts with all their columns, from any input that load_rows reads.

    Args:
        kind: one of KINDS, a registered format, or "auto".
        sources: an input or a list of them; with weights, one weight for each.
        tokenizer: a Hugging Face tokenizer; its chat template makes the text.
        batch_size: prompts a batch and process; the last of an epoch may be smaller.
        max_prompt_tokens: leave out longer prompts, and count them in `left_out`.
        shuffle_seed: shuffle anew in each epoch, by this seed (default: the order of the files).
        weights: shares of the sources in any stretch of rows.
        mix_until: with weights, an epoch ends when "all" sets were seen whole, or when the "first" runs out.
        curriculum: column (`-column` for falling) or function of a row; each epoch goes in its order.
        streaming: read while iterating, for files larger than memory; shuffling then has a buffer of shuffle_buffer.
        rank, world_size: this process and how many there are; each gets other rows of the same order.
        **reading: further arguments of load_rows: mapping, system_prompt, on_bad, limit, max_bytes, …

    Raises:
        UserError: an argument cannot be used, or an input cannot be read; BadRows where rows do not fit.
    """
    sources = [sources] if isinstance(sources, str | Path) else list(sources)
    need(batch_size > 0, f"got batch_size {batch_size}; expected 1 or more")
    need(0 <= rank < world_size, f"got rank {rank} of {world_size}; expected 0 to world_size - 1")
    need(mix_until in ("all", "first"), f"got mix_until {mix_until!r}; expected all or first")
    need(
        not (streaming and curriculum is not None), "got a curriculum with streaming; expected rows that can be sorted"
    )
    if weights is not None:
        weights = [float(weight) for weight in weights]
        fits = len(weights) == len(sources) and all(math.isfinite(weight) and weight > 0 for weight in weights)
        need(fits, f"got weights {weights} for {len(sources)} sources; expected a positive number for each")
    sets = []
    for part in [sources] if weights is None else [[source] for source in sources]:
        name = ", ".join(map(str, part))
        if streaming:
            read = functools.partial(stream_rows, part, kind, reading)
            sets.append(RowSet(name, None, read))
        else:
            sets.append(RowSet(name, load_rows(part, kind, **reading).rows))
    if streaming:
        reading_settings(kind, reading)  # mistakes show here, not at the first batch
        expand(sources)
    settings = {"batch_size": batch_size, "max_prompt_tokens": max_prompt_tokens, "shuffle_seed": shuffle_seed}
    settings |= {"weights": weights, "mix_until": mix_until, "curriculum": curriculum}
    settings |= {"shuffle_buffer": shuffle_buffer, "rank": rank, "world_size": world_size}
    return PromptLoader(sets, Collator(tokenizer), settings)


def reading_settings(kind: str, reading: dict) -> Settings:
    """The settings that keyword arguments of load_rows mean."""
    known = [name for name in Settings.__dataclass_fields__ if name != "kind"]
    wrong = [name for name in reading if name not in known]
    near = suggest(wrong[0], known) if wrong else ""
    need(not wrong, f"got the argument {wrong[:1]}; expected one of {', '.join(known)}{near}")
    return Settings(kind, **{**reading, "drop": tuple(reading.get("drop", ()))})


def stream_rows(sources, kind: str, reading: dict) -> Iterator[dict]:
    """Rows while they are read; a bad one raises BadRows at once unless on_bad is "skip", and none at all UserError."""
    settings = reading_settings(kind, reading)

    def refuse(item: dict) -> None:
        if settings.on_bad == "fail":
            raise BadRows([item], 1)

    reader = RowReader(sources, settings, refuse)
    yield from reader
    reader.need_rows()


def stream_dataset(kind: str, sources, **reading):
    """The rows as a torch IterableDataset, for a torch DataLoader with `collate_fn=Collator(tokenizer)`.

    Each worker of the DataLoader, in each process of torch.distributed, yields other rows.
    """
    import torch

    class RowStream(torch.utils.data.IterableDataset):
        """Rows of this worker."""

        def __iter__(self):
            info, is_multi = torch.utils.data.get_worker_info(), torch.distributed.is_initialized()
            rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_multi else (0, 1)
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            rows = stream_rows(sources, kind, reading)
            return itertools.islice(rows, rank * workers + worker, None, world * workers)

    reading_settings(kind, reading)
    return RowStream()
