"""Messages and values between the processes."""

import collections
import datetime
import decimal
import fractions
import io
import itertools
import json
import math
import re
import socket
import struct
import time
import types

from programs.sandbox.errors import Died
from programs.sandbox.limits import MAX_COLLISIONS, MAX_DEPTH, MAX_FRAME, MAX_KEY, MAX_NUMBER


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


def short_int(text: str) -> int:
    """An integer of a message; encode() makes text of what has more digits."""
    if len(text) > 20:
        raise ValueError("too many digits")
    return int(text)


def receive_data(channel: socket.socket, deadline: float | None = None, limit: int = MAX_FRAME) -> bytes:
    """Receive one message unread; one of more than `limit` bytes raises Died."""
    (size,) = struct.unpack("!I", receive_exactly(channel, 4, deadline))
    if size > limit:
        raise Died("output limit: a result is too large")
    return receive_exactly(channel, size, deadline)


def receive_frame(channel: socket.socket, deadline: float | None = None, limit: int = MAX_FRAME) -> dict:
    """Receive one message; whatever is no JSON object of at most `limit` bytes raises Died."""
    return read_message(receive_data(channel, deadline, limit))


def read_message(data: bytes, nonce: str | None = None) -> dict:
    """The JSON object of a message, which must bear the secret if one is given; anything else raises Died."""
    try:
        message = json.loads(data, parse_int=short_int)
    except (ValueError, RecursionError):
        raise Died("the process sent no valid message") from None
    if not isinstance(message, dict) or (nonce and message.get("nonce") != nonce):
        raise Died("the process sent no valid message")
    return message


def zone(moment) -> list:
    """The time zone of a date or time as its last argument, none where it has none."""
    return [] if moment.tzinfo is None else [datetime.timezone(moment.utcoffset() or datetime.timedelta(0))]


def plain_types() -> dict:
    """Further types that travel, each with what gives the arguments that make them."""
    return {
        fractions.Fraction: lambda x: (x.numerator, x.denominator),
        decimal.Decimal: lambda x: (str(x),),
        datetime.date: lambda x: (x.year, x.month, x.day),
        datetime.datetime: lambda x: (x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond, *zone(x)),
        datetime.time: lambda x: (x.hour, x.minute, x.second, x.microsecond, *zone(x)),
        datetime.timezone: lambda x: (x.utcoffset(None),),
        datetime.timedelta: lambda x: (x.days, x.seconds, x.microseconds),
        range: lambda x: (x.start, x.stop, x.step),
        collections.deque: tuple,
    }


PLAIN_TYPES = plain_types()


def argument_types() -> dict:
    """What each of these types may be made of: Fraction("1e999999999") would never end."""
    whole = dict.fromkeys(("Fraction", "date", "timedelta", "range"), int)
    moments = dict.fromkeys(("datetime", "time"), (int, datetime.timezone))
    return {**whole, **moments, "Decimal": str, "timezone": datetime.timedelta}


ARGUMENT_TYPES = argument_types()


def views() -> dict:
    """Views of a dict that travel, each with what gives their items; they keep their order and equal sets."""
    empty = {}
    return {type(empty.keys()): "keys", type(empty.items()): "items", type(empty.values()): "values"}


VIEWS = views()


def alike() -> dict:
    """Types of the standard library that equal a built-in type, which travels in their place."""
    same_as = {collections.UserDict: dict, collections.ChainMap: dict, types.MappingProxyType: dict}
    return {**same_as, collections.UserList: list, collections.UserString: str, memoryview: bytes}


ALIKE = alike()
SIMPLE = {bool, int, str, type(None)}  # what JSON has as well: nothing to decode


def is_json(value) -> bool:
    """Whether a value travels as it is."""
    return type(value) in SIMPLE and (type(value) is not int or -(2**53) < value < 2**53)


def encode(value, keep=None, depth: int = 0):
    """Turn a value into JSON with tags; what is no plain data becomes a reference if `keep` is given.

    Subclasses lose their class: a namedtuple is a tuple, a Counter a dict, an IntEnum an int.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if is_json(value):
        return value
    if type(value) in ALIKE:
        value = ALIKE[type(value)](value)
    if type(value) in VIEWS:
        items = list(map(list, value)) if VIEWS[type(value)] == "items" else list(value)
        return {"t": VIEWS[type(value)], "v": [encode(item, keep, depth + 1) for item in items]}
    if type(value) in PLAIN_TYPES:
        return {"t": type(value).__name__, "v": [encode(item) for item in PLAIN_TYPES[type(value)](value)]}
    if isinstance(value, int):
        return int(value) if abs(value) < 2**53 else {"t": "int", "v": format(int(value), "x")}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"t": "float", "v": float.__repr__(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"t": "bytes", "v": bytes(value).hex()}
    if isinstance(value, complex):
        return {"t": "complex", "v": [encode(value.real), encode(value.imag)]}
    if type(value) is list:
        return [item if is_json(item) else encode(item, keep, depth + 1) for item in value]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {"t": kind.__name__, "v": [encode(item, keep, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in value.items()]
        return {"t": "dict", "v": pairs}
    if hasattr(value, "tolist") and type(value).__module__.partition(".")[0] == "numpy":
        return encode(value.tolist(), keep, depth + 1)
    if keep is None:
        raise TypeError(f"{type(value).__name__} is no plain data")
    return {"t": "ref", "v": keep(value), "type": type(value).__name__}


def decode(data, refer=None, depth: int = 0, hashed: bool = False):
    """The value that encode() was given, of exact built-in types; raises Died on anything else.

    Takes time in proportion to the size of the data, whatever they are; `hashed`: part of a key or in a set.
    """
    if depth > MAX_DEPTH:
        raise Died("a result is nested too deeply")
    if data is None or isinstance(data, bool | int | float | str):
        if isinstance(data, float) and not math.isfinite(data):
            raise Died("the process sent no valid message")
        return data
    try:
        if isinstance(data, list):
            return [item if type(item) in SIMPLE else decode(item, refer, depth + 1, hashed) for item in data]
        kind, content = data["t"], data["v"]
        if kind in ("int", "float", "bytes"):
            return decode_text(kind, content, hashed)
        if kind == "ref" and refer:
            return refer(int(content), str(data.get("type"))[:100])
        if kind in ("dict", "items"):
            pairs = [(decode(k, refer, depth + 1, True), decode(v, refer, depth + 1)) for k, v in content]
            check_hashes([key for key, _ in pairs])
            return dict(pairs) if kind == "dict" else dict(pairs).items()
        hashed = hashed or kind in ("set", "frozenset", "keys")
        return build(kind, [decode(item, refer, depth + 1, hashed) for item in content])
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise Died("the process sent no valid message") from None


def decode_text(kind: str, text: str, hashed: bool):
    """An integer, a float that is not finite, or bytes."""
    if kind == "float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text]
    if kind == "bytes":
        return bytes.fromhex(text)
    if hashed and len(text) > MAX_KEY // 4:
        raise Died("output limit: a key of a result is too large")
    return int(text, 16)


def build(kind: str, items: list):
    """A container, or a value of a type that is made from its arguments."""
    if kind == "complex":
        real, imaginary = map(float, items)
        return complex(real, imaginary)
    if kind in ("set", "frozenset", "keys"):
        check_hashes(items)
        return dict.fromkeys(items).keys() if kind == "keys" else {"set": set, "frozenset": frozenset}[kind](items)
    if kind == "values":
        return dict(enumerate(items)).values()
    if kind in ("list", "tuple", "deque"):
        return {"list": list, "tuple": tuple, "deque": collections.deque}[kind](items)
    for item in items:
        if not isinstance(item, ARGUMENT_TYPES[kind]):
            raise TypeError(kind)
        if isinstance(item, int) and item.bit_length() > MAX_NUMBER:
            raise Died(f"output limit: a number of a {kind} is too large")
    return {plain.__name__: plain for plain in PLAIN_TYPES}[kind](*items)


def key_weight(key) -> int:
    """About how many words a comparison of this key may have to read, and of large integers the square of that."""
    if isinstance(key, tuple | frozenset):
        return 1 + sum(map(key_weight, key))
    if isinstance(key, str | bytes):
        return 1 + len(key) // 64
    if isinstance(key, int):
        return 1 + (key.bit_length() // 32) ** 2 // 64
    return 1 if isinstance(key, float) or key is None else 64


def check_hashes(keys: list) -> None:
    """Raise Died for keys that share hashes such that a dict of them takes quadratic time.

    Keys of correct programs share some: -1 and -2, and of the powers of two every sixty-first.
    """
    counts = collections.Counter(map(hash, keys))
    if len(counts) == len(keys):
        return
    weights = collections.defaultdict(int)
    for key in keys:
        if counts[hash(key)] > 1:
            weights[hash(key)] = max(weights[hash(key)], key_weight(key))
    if sum(counts[number] ** 2 * weight for number, weight in weights.items()) > MAX_COLLISIONS:
        raise Died("the process sent keys that collide")


def brief(value, levels: int = 3) -> str:
    """The text of plain data for a message: reads its beginning only, and makes no text of a large number."""
    if isinstance(value, str | bytes):
        return repr(value[:60]) + "…" * (len(value) > 60)
    if isinstance(value, int):
        bits = int(value).bit_length()
        return repr(value) if bits <= 256 else f"<integer of {bits} bits>"
    if isinstance(value, fractions.Fraction):
        return f"Fraction({brief(value.numerator)}, {brief(value.denominator)})"
    if isinstance(value, range):
        return f"range({', '.join(map(brief, (value.start, value.stop, value.step)))})"
    if not isinstance(value, list | tuple | set | frozenset | dict | collections.deque):
        plain = type(value) in {*PLAIN_TYPES, float, complex, type(None)}
        return repr(value)[:80] if plain else type(value).__name__
    opening, closing = {list: "[]", tuple: "()", dict: "{}"}.get(type(value), (f"{type(value).__name__}(", ")"))
    if not levels:
        return f"{opening}…{closing}"
    first = list(itertools.islice(value, 6))
    parts = [brief(item, levels - 1) for item in first]
    if isinstance(value, dict):
        parts = [f"{part}: {brief(value[key], levels - 1)}" for key, part in zip(first, parts, strict=True)]
    return opening + ", ".join([*parts, *["…"] * (len(value) > 6)]) + closing


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
        pairs = zip(expected, actual, strict=False)
        equal = (a == b if type(a) is type(b) and type(a) in SIMPLE else same(a, b) for a, b in pairs)
        return len(expected) == len(actual) and all(equal)
    if isinstance(expected, dict) and isinstance(actual, dict):
        if all(isinstance(key, str) for key in expected) and not any(isinstance(key, str) for key in actual):
            if sum(map(key_weight, actual)) > MAX_COLLISIONS:
                return False  # too much to make text of
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
    wanted, got = expected.strip().split("\n"), io.StringIO(actual.strip(), newline="\n")
    for words in map(str.split, wanted):  # reads only as much of what was printed as is expected
        printed = next(got, "").split(maxsplit=len(words))
        if len(words) != len(printed) or not all(map(same_token, words, printed)):
            return False
    return not next(got, "")


def error_text(answer: dict) -> str:
    """What a program raised, in one line."""
    parts = (answer.get(part) for part in ("name", "message"))
    return ": ".join(part[:500] if isinstance(part, str) else "…" for part in parts)[:500]


def compare(answer: dict, expected, mode: str = "same") -> str:
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
