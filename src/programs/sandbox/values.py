"""Messages and values between the processes."""

import collections
import datetime
import decimal
import fractions
import importlib
import json
import math
import operator
import re
import reprlib
import socket
import struct
import time
import types

from programs.sandbox.limits import MAX_DEPTH, MAX_FRAME, Died

INVALID = "the process sent no valid message"


def send_frame(channel: socket.socket, message: dict, fds=()) -> None:
    """Send a JSON message with a length in front of it, and open files with its first byte."""
    data = json.dumps(message).encode()
    data = struct.pack("!I", len(data)) + data
    sent = socket.send_fds(channel, [data], fds) if fds else 0
    channel.sendall(data[sent:])


def receive_exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    """Receive size bytes; raise Died at the end of the stream and TimeoutError at the deadline."""
    parts = []
    while size:
        if deadline is not None:
            channel.settimeout(max(deadline - time.monotonic(), 1e-4))
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise Died("the process ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive_frame(channel: socket.socket, deadline: float | None = None, limit: int = MAX_FRAME) -> dict:
    """Receive one message; whatever is no JSON object of at most `limit` bytes raises Died."""
    (size,) = struct.unpack("!I", receive_exactly(channel, 4, deadline))
    if size > limit:
        raise Died("output limit: a result is too large")
    try:
        message = json.loads(receive_exactly(channel, size, deadline))
    except (ValueError, RecursionError):
        raise Died(INVALID) from None
    if not isinstance(message, dict):
        raise Died(INVALID)
    return message


def zone(moment) -> list:
    """The time zone of a date or time as its last argument, none where it has none."""
    return [] if moment.tzinfo is None else [datetime.timezone(moment.utcoffset() or datetime.timedelta(0))]


PLAIN_TYPES = {  # further types that travel, each with what gives the arguments that make them
    complex: lambda x: (x.real, x.imag),
    fractions.Fraction: lambda x: (x.numerator, x.denominator),
    decimal.Decimal: lambda x: (str(x),),
    datetime.date: lambda x: (x.year, x.month, x.day),
    datetime.datetime: lambda x: (x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond, *zone(x)),
    datetime.time: lambda x: (x.hour, x.minute, x.second, x.microsecond, *zone(x)),
    datetime.timezone: lambda x: (x.utcoffset(None),),
    datetime.timedelta: lambda x: (x.days, x.seconds, x.microseconds),
    range: lambda x: (x.start, x.stop, x.step),
}
# views of a dict keep their order and equal sets
VIEWS = {type({}.keys()): "keys", type({}.items()): "items", type({}.values()): "values"}
ALIKE = {  # types that equal another one in Python, and travel as that
    **dict.fromkeys((collections.UserDict, collections.ChainMap, types.MappingProxyType), dict),
    **{collections.UserList: list, collections.UserString: str, memoryview: bytes, bytearray: bytes},
}
MUTABLE = (list, dict, set, collections.deque)
CONTAINERS = (list, tuple, set, frozenset, collections.deque)
MAKERS = {
    **{kind.__name__: lambda items, kind=kind: kind(*items) for kind in PLAIN_TYPES},
    "Fraction": lambda items: fractions.Fraction(*map(operator.index, items)),  # of "1e999999999" it would never end
    **{kind.__name__: kind for kind in (*CONTAINERS, dict)},
    "keys": lambda items: dict.fromkeys(items).keys(),
    "items": lambda items: dict(items).items(),
    "values": lambda items: dict(enumerate(items)).values(),
    **{"Counter": lambda items: collections.Counter(dict(items)), "OrderedDict": collections.OrderedDict},
    "bytes": bytes.fromhex,
    "int": lambda digits: int(digits, 16),
}


def encode(value, others=None, depth: int = 0):
    """Turn a value into JSON with tags; what is no plain data travels as `others`, an Instances, says.

    Subclasses lose their class, such as an IntEnum; a Counter, an OrderedDict and a namedtuple keep it for a judge.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if others and (tagged := others.tagged(value)):
        return tagged
    if value is None or isinstance(value, bool):
        return value
    if type(value) in ALIKE:
        value = ALIKE[type(value)](value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else {"t": "int", "v": format(int(value), "x")}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return {"t": "bytes", "v": bytes(value).hex()}
    kind, items = next((kind.__name__ for kind in CONTAINERS if isinstance(value, kind)), ""), value
    if isinstance(value, dict):
        kept = others and type(value) in (collections.Counter, collections.OrderedDict)
        kind, items = type(value).__name__ if kept else "dict", map(list, value.items())
    elif others and kind == "tuple" and isinstance(getattr(value, "_fields", None), tuple):
        kind, items = "namedtuple", (list(value._fields), *value)
    elif type(value) in VIEWS:
        kind = VIEWS[type(value)]
        items = map(list, value) if kind == "items" else value
    elif type(value) in PLAIN_TYPES:
        kind, items = type(value).__name__, PLAIN_TYPES[type(value)](value)
    elif hasattr(value, "tolist") and type(value).__module__.partition(".")[0] == "numpy":
        if not others or value.dtype.kind not in "biufc":
            return encode(value.tolist(), others, depth + 1)
        kind, items = "ndarray", (str(value.dtype), value.tolist())  # between judge and program; == is then numpy's
    elif not kind:
        if others is None:
            raise TypeError(f"{type(value).__name__} is not plain data")
        return {"t": "ref", "v": others.keep(value), "type": type(value).__name__}
    data = [encode(item, others, depth + 1) for item in items]
    return data if kind == "list" else {"t": kind, "v": data}


def decode(data, others=None, depth: int = 0):
    """The value that encode() was given, of exact built-in types; raises Died on anything else."""
    if depth > MAX_DEPTH:
        raise Died("a result is nested too deeply")
    if data is None or isinstance(data, bool | int | float | str):
        return data
    try:
        if isinstance(data, list):
            return [decode(item, others, depth + 1) for item in data]
        if data["t"] == "ref" and others:
            return others.refer(int(data["v"]), str(data.get("type"))[:100])
        if data["t"] in ("object", "member") and others:
            return others.untagged(data["t"], data["v"])
        content = data["v"]
        if data["t"] == "ndarray" and others and re.fullmatch(r"bool|(?:u?int|float|complex)\d{1,3}", content[0]):
            return importlib.import_module("numpy").array(decode(content[1]), content[0])[()]  # a scalar without shape
        if not isinstance(content, str):
            content = [decode(item, others, depth + 1) for item in content]
        if data["t"] == "namedtuple" and others:
            return collections.namedtuple("Row", content[0])(*content[1:])
        return MAKERS[data["t"]](content)
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, ImportError):
        raise Died(INVALID) from None


def containers(values) -> list:
    """The lists, dicts, sets and deques in values, each where it stands, the outer before the inner ones."""
    found, inside = [], values.values() if isinstance(values, dict) else values
    for value in inside:
        if isinstance(value, MUTABLE):
            found.append(value)
        if isinstance(value, (*MUTABLE, tuple)):
            found += containers(value)
    return found


def rejoined(values: list, places, known: list) -> list:
    """Values in which containers that are the same as known ones are these, with the contents of the new ones.

    Args:
        places: for each of `containers(values)` its place in `known`, -1 for a new one.
    """
    news = containers(values)
    places = places if isinstance(places, list) and len(places) == len(news) else [-1] * len(news)
    pairs = ((new, known[at]) for new, at in zip(news, places, strict=True) if type(at) is int and 0 <= at < len(known))
    olds = {id(new): old for new, old in pairs if type(new) is type(old)}

    def rejoin(value):
        if type(value) is tuple:
            return tuple(map(rejoin, value))
        if not isinstance(value, MUTABLE):
            return value
        old = olds.get(id(value), value)
        content = {key: rejoin(x) for key, x in value.items()} if isinstance(value, dict) else [*map(rejoin, value)]
        old.clear()
        (old.extend if isinstance(old, list | collections.deque) else old.update)(content)
        return old

    return [*map(rejoin, values)]


class Brief(reprlib.Repr):
    """The beginning of a value's text, without the digits of large integers."""

    def repr_int(self, value, level):
        """An integer, or the number of its bits."""
        return repr(value) if value.bit_length() <= 256 else f"<integer of {value.bit_length()} bits>"


def brief(value) -> str:
    """The text of plain data for a message: its beginning only."""
    short = Brief()
    short.maxlevel, short.maxstring, short.maxother = 3, 80, 80
    return short.repr(value)


def same(expected, actual) -> bool:
    """Compare plain data strictly: True is not 1; a float may differ by 1e-6 of itself; a tuple equals a list.

    Data from JSON has string keys only, so a dict with other keys is compared by their text.
    """
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        if isinstance(expected, float) and math.isfinite(expected):
            return math.isfinite(actual) and math.isclose(expected, actual, rel_tol=1e-6, abs_tol=1e-9)
        return expected == actual or (expected != expected and actual != actual)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        if all(isinstance(key, str) for key in expected) and not any(isinstance(key, str) for key in actual):
            actual = {str(key): item for key, item in actual.items()}
        return expected.keys() == actual.keys() and all(same(item, actual[key]) for key, item in expected.items())
    if VIEWS.get(type(actual)) in ("keys", "items"):
        return actual == expected  # as sets
    return type(expected) is type(actual) and expected == actual


def same_token(expected: str, actual: str) -> bool:
    """Compare two words of output: equal, or close where the expected one is written as a decimal; 2.0 equals 2."""
    if expected == actual:
        return True
    if len(expected) > 40 or len(actual) > 40 or not set(".eE") & set(expected + actual):
        return False
    try:
        if re.fullmatch("-?(?:0|[1-9][0-9]*)", expected):
            return decimal.Decimal(actual) == int(expected)
        return bool(set(".eE") & set(expected)) and same(float(expected), float(actual))
    except (ValueError, ArithmeticError):
        return False


def same_output(expected: str, actual: str) -> bool:
    """Compare printed text line by line, without regard to white space at the ends and to empty lines around it."""
    actual, start = actual.strip(), 0
    for words in map(str.split, expected.strip().split("\n")):  # reads only as much of what was printed as is expected
        end = actual.find("\n", start)
        end = len(actual) if end < 0 else end
        printed = actual[start:end].split(maxsplit=len(words))
        if len(words) != len(printed) or not all(map(same_token, words, printed)):
            return False
        start = end + 1
    return start > len(actual)


def error_text(answer: dict) -> str:
    """What a program raised, in one line."""
    parts = (answer.get(part) for part in ("name", "message"))
    return ": ".join(part[:500] if isinstance(part, str) else "…" for part in parts)[:500]


def compare(answer: dict, expected, mode: str) -> str:
    """Return "" if the program's answer is the expected value; mode is same, == or wrapped (perhaps in a list)."""
    if "error" in answer:
        return error_text(answer)
    actual = decode(answer.get("value"))
    try:
        equal = actual == expected if mode == "==" else same(expected, actual)
        equal = equal or (mode == "wrapped" and same(expected[0], actual))
        return "" if equal else f"returned {brief(actual)}, expected {brief(expected)}"
    except (RecursionError, ArithmeticError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
