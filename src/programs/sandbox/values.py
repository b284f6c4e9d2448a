"""Values sent between the processes: plain data as JSON with tags, and objects that tests and program share."""

import collections
import datetime
import decimal
import enum
import fractions
import importlib
import inspect
import operator
import re
import types

from programs.sandbox.messages import INVALID, Died

MAX_DEPTH = 100  # nesting of a value


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


class SharedObjects:
    """One side's list of what both share: lists, dicts, sets, deques, and objects of classes that both sides define.

    Both sides know an object by its number: the judge gives even numbers, the program odd ones. A message mentions
    objects by number and has the state of each once. So cycles, long chains and identity survive, and no method of the
    other side runs here. A container is shared until the next message; one that an attribute of the program's object
    holds is shared until the attribute is read again. Other values that are not plain data stay on their side.

    Attributes:
        reference: function of a value that stays here; returns the JSON that stands for it.
        resolve: function of the tag and content of such JSON from the other side; returns what stands for it here.
        classes: {name: class} of this side's classes whose names the other side has too.
        lent: {(object, attribute): numbers of the shared objects that the attribute held when it was read}.
        kept: numbers of lent objects, and of all that they held after the last message.
        known: {number: the state that both sides last knew}.
    """

    def __init__(self, first: int, reference, resolve):
        self.next, self.reference, self.resolve, self.classes = first, reference, resolve, {}
        self.objects, self.numbers, self.known, self.lent, self.kept = {}, {}, {}, {}, set()
        self.mentioned, self.passing = [], []

    def number(self, value) -> int:
        """The number of an object, a new one for a new object."""
        if id(value) not in self.numbers:
            self.enter(self.next, value)
            self.next += 2
        return self.numbers[id(value)]

    def enter(self, number: int, value) -> None:
        """Share an object under a number."""
        self.objects[number], self.numbers[id(value)] = value, number
        if isinstance(value, MUTABLE):
            self.passing.append(number)

    def forget(self) -> None:
        """Before a message, stop sharing the containers of the last one, except lent ones."""
        for number in {*self.passing} - self.kept:
            del self.numbers[id(self.objects.pop(number))]
            self.known.pop(number, None)
        self.passing, self.mentioned = [*{*self.passing} & self.kept], []

    def tagged(self, value) -> dict | None:
        """The JSON of a shared object or a member of an Enum; None for another value."""
        kind = type(value)
        of_both = self.classes.get(kind.__name__) is kind
        if of_both and isinstance(value, enum.Enum):
            return {"t": "member", "v": [kind.__name__, value.name]}
        if not of_both and not isinstance(value, MUTABLE):
            return None
        self.mentioned.append(self.number(value))
        return {"t": "shared", "v": self.number(value)}

    def untagged(self, tag: str, content):
        """The value of `tagged` JSON, or the stand-in for a reference."""
        if tag == "member":
            return self.classes[content[0]][content[1]]
        return self.objects[content] if tag == "shared" else self.resolve(tag, content)

    def state(self, number: int) -> list:
        """[class, attributes] of an object, [None, items] of a container; mentions what is in it."""
        value = self.objects[number]
        if isinstance(value, MUTABLE):
            return [None, encode_content(value, self)]
        return [type(value).__name__, {name: encode(item, self) for name, item in vars(value).items()}]

    def reached(self) -> dict:
        """{number: state} of all mentioned objects and of those in them."""
        states = {}
        for number in self.mentioned:  # grows meanwhile
            if number not in states:
                states[number] = self.state(number)
        return states

    def keep_lent(self) -> dict:
        """{number: state} of lent objects and of all that they hold now, which stays shared."""
        self.mentioned = [number for numbers in self.lent.values() for number in numbers]
        states = self.reached()
        self.kept = {*states}
        return states

    def states(self) -> dict:
        """{number: state} for a message: what it mentions, and lent objects that have changed."""
        states = self.reached()
        states |= {number: state for number, state in self.keep_lent().items() if state != self.known.get(number)}
        self.known.update(states)
        return states

    def learn(self, states: dict, sent) -> None:
        """Take over the states in a message; raise Died for an object of this side that is neither `sent` nor lent."""
        states = {int(number): state for number, state in states.items()}
        for number, (name, content) in states.items():
            ours = number % 2 == self.next % 2
            if ours and number not in sent and number not in self.kept:
                raise Died(INVALID)
            if number not in self.objects:
                self.enter(number, object.__new__(self.classes[name]) if name else empty(content))
        # objects before containers, as sets hash them
        for number, (name, content) in sorted(states.items(), key=lambda item: not item[1][0]):
            value = self.objects[number]
            if bool(name) is isinstance(value, MUTABLE):
                raise Died(INVALID)
            if name:
                items = {k: decode(item, self) for k, item in content.items() if is_plain(type(value), k)}
                value = vars(value)
            else:
                items = decode(content, self)
            value.clear()
            (value.update if hasattr(value, "update") else value.extend)(items)
        self.known.update(states)
        self.keep_lent()

    def lend(self, target, name: str, value) -> None:
        """Keep sharing what an attribute holds."""
        self.mentioned = []
        encode(value, self)
        self.lent[target, name] = self.mentioned
        self.known.update(self.keep_lent())


def empty(content) -> list | dict | set:
    """An empty container of the kind that a state describes."""
    value = [] if isinstance(content, list) else MAKERS[content["t"]]([])
    if not isinstance(value, MUTABLE):
        raise Died(INVALID)
    return value


def is_plain(kind: type, name: str) -> bool:
    """Whether an attribute of this name would replace no method or property of the class."""
    try:
        encode(inspect.getattr_static(kind, name, None))
        return True
    except (TypeError, ValueError):
        return False


def classes_in(namespace: dict, module: str) -> dict:
    """{name: class} of the module's own classes whose objects consist of their attributes alone."""
    kinds = {name: kind for name, kind in namespace.items() if isinstance(kind, type) and kind.__module__ == module}
    return {
        name: kind
        for name, kind in kinds.items()
        if kind.__name__ == name
        and (issubclass(kind, enum.Enum) or (kind.__new__ is object.__new__ and kind.__dictoffset__))
    }
