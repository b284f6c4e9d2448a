"""JSON values, one at a time, in bounded memory."""

import ast
import contextlib
import datetime
import decimal
import json
import math
import re
from collections import Counter
from dataclasses import dataclass

from parts.foundation.messages import RowFlaw
from programs.data_loader.bad_rows import MAX_DEPTH, BadRow, plain_text, shown
from programs.data_loader.messages import TEST_KEYS


@dataclass(slots=True)
class Record:
    """One row as read: where it stood, its fields, or the flaw that makes it unusable and its text."""

    line: int
    row: dict | None
    flaw: RowFlaw | None = None
    text: str = ""


def broken(line: int, error: RowFlaw, data: bytes | str = b"") -> Record:
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
            raise no_object(value)
        if self.long_integer or text.count("[") + text.count("{") > MAX_DEPTH or HALF_PAIR.search(text):
            return as_plain(value)
        return value


JSON_NAMES = {"null": None, "true": True, "false": False}
HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def no_object(value) -> BadRow:
    """Report a row that is not an object; a bare message gets advice of its own."""
    expected = "a JSON object with named fields"
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
    advice = ['{"messages": […]} for each row, an answer in a field of its own'] if is_chat else []
    return BadRow("row", f"{type(value).__name__} {shown(value)}", expected, *advice)


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


def json_or_literal(text: str):
    """The value of JSON text, or of a Python literal in which null, true and false may stand; ValueError for others."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return literal_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"neither JSON nor a literal: {error}") from None


def literal_value(node: ast.expr):
    """The plain value of a Python literal in which null, true and false may stand; ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in JSON_NAMES:
        return JSON_NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value
    if isinstance(node, ast.List | ast.Tuple):
        return [literal_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {literal_value(key): literal_value(item) for key, item in zip(node.keys, node.values, strict=True)}
    raise ValueError(ast.dump(node)[:80])
