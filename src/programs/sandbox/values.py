"""Values sent between the processes: plain data as JSON with tags."""

import collections
import datetime
import decimal
import fractions
import importlib
import operator
import re
import types

from programs.sandbox.limits import MAX_DEPTH, Died
from programs.sandbox.messages import INVALID


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


def encode(value, shared=None, depth: int = 0):
    """Turn a value into JSON with tags; `shared` encodes what both sides share and what is not plain data.

    Subclasses lose their class, such as an IntEnum; a Counter, an OrderedDict and a namedtuple keep it for a judge.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    return (shared and shared.tagged(value)) or encode_content(value, shared, depth)


def encode_content(value, shared, depth: int = 0):
    """Encode a value by its content; values in it may be shared."""
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
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        if not shared or value.dtype.kind not in "biufc":
            return encode(value.tolist(), shared, depth + 1)
        return {"t": "ndarray", "v": [str(value.dtype), encode(value.tolist())]}  # == in tests is then numpy's

    def each(items):
        return [encode(item, shared, depth + 1) for item in items]

    kind = next((kind.__name__ for kind in CONTAINERS if isinstance(value, kind)), "")
    if isinstance(value, dict):
        kept = shared and type(value) in (collections.Counter, collections.OrderedDict)
        return {"t": type(value).__name__ if kept else "dict", "v": [each(pair) for pair in value.items()]}
    if type(value) in VIEWS:
        kind = VIEWS[type(value)]
        return {"t": kind, "v": [each(pair) for pair in value] if kind == "items" else each(value)}
    if shared and kind == "tuple" and isinstance(getattr(value, "_fields", None), tuple):
        return {"t": "namedtuple", "v": each((value._fields, *value))}
    if type(value) in PLAIN_TYPES:
        return {"t": type(value).__name__, "v": each(PLAIN_TYPES[type(value)](value))}
    if kind:
        return each(value) if kind == "list" else {"t": kind, "v": each(value)}
    if shared is None:
        raise TypeError(f"{type(value).__name__} is not plain data")
    return shared.reference(value)


def decode(data, shared=None, depth: int = 0):
    """The value that encode() was given, of exact built-in types; raises Died on anything else."""
    if depth > MAX_DEPTH:
        raise Died("a result is nested too deeply")
    if data is None or isinstance(data, bool | int | float | str):
        return data
    try:
        if isinstance(data, list):
            return [decode(item, shared, depth + 1) for item in data]
        tag, content = data["t"], data["v"]
        if shared and tag in ("shared", "member", "ref", "own_hash", "coroutine", "function"):
            return shared.untagged(tag, content)
        if shared and tag == "ndarray" and re.fullmatch(r"bool|(?:u?int|float|complex)\d{1,3}", content[0]):
            return importlib.import_module("numpy").array(decode(content[1]), content[0])[()]  # a scalar without shape
        if not isinstance(content, str):
            content = [decode(item, shared, depth + 1) for item in content]
        if shared and tag == "namedtuple":
            return collections.namedtuple("Row", content[0])(*content[1:])
        return MAKERS[tag](content)
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, ImportError):
        raise Died(INVALID) from None
