"""Functions, classes and objects of the program, as the tests hold them."""

import operator

DECIDES = "which could forge the result; try comparing plain data"
# special attributes that the program answers; Python itself looks up many others
DESCRIPTIONS = ("__name__", "__qualname__", "__wrapped__", "__annotations__", "__code__", "__defaults__")


class Unsafe(Exception):
    """A test asks the program for the verdict."""


def asked(operation: str):
    """A method that asks the program to perform an operation."""
    return lambda self, *args: self._judge.ask(operation, self._target, args)


def described(name: str) -> property:
    """A property that asks the program; Python would otherwise answer it itself."""
    return property(lambda self: self._judge.ask("getattr", self._target, (name,)))


def converted(kind: type):
    """A method that asks for the plain version of a program's object and checks its type."""

    def convert(self):
        value = self._judge.ask(kind.__name__, self._target)
        if type(value) is not kind:
            raise TypeError(f"got {type(value).__name__}; expected {kind.__name__}")
        return value

    return convert


def as_instance(value):
    """An object of the program as an instance, on which operators work; plain data as it is."""
    if isinstance(value, RemoteObject):
        object.__setattr__(value, "_is_instance", True)
    return value


def forwarded(name: str):
    """A method for an operator between instances only: plain data could tell the program what a test expects."""

    def operate(self, *others):
        if not all(isinstance(item, RemoteObject) and item._is_instance for item in (self, *others)):
            self._judge.unfit += self._is_instance
            raise TypeError(f"{name} of an object of the program works only with another one; try comparing plain data")
        return as_instance(self._judge.ask(name, self._target, others))

    return operate


def ordered(name: str):
    """A method for `<` and the like; the program answers only within `sorted`, `min` and other built-in sorters."""

    def compare(self, other):
        if not isinstance(other, RemoteObject):
            return NotImplemented
        if self._judge.sorting:
            self._judge.trusted = False
            return bool(self._judge.ask(name, self._target, (other,)))
        self._judge.unfit += self._is_instance or other._is_instance
        raise Unsafe(f"orders objects of the program, {DECIDES}")

    return compare


class RemoteObject:
    """The judge's proxy of a function, class or object of the program; results that are plain data arrive as such.

    `==` never asks the program. Method calls, `in`, `+` and the like do: there the tests trust the program's answer.
    Operators work only on instances, the objects that the tests make from a class.
    """

    __slots__ = ("_has_own_hash", "_is_instance", "_judge", "_target")  # any other attribute is the program's

    def __init__(self, judge, target, has_own_hash=False):
        for name, value in zip(RemoteObject.__slots__, (has_own_hash, False, judge, target), strict=True):
            object.__setattr__(self, name, value)

    def __call__(self, *args, **kwargs):
        value = self._judge.ask("call", self._target, args, kwargs)
        return as_instance(value) if self._target in self._judge.classes else value

    def __getattr__(self, name):
        if name.startswith("__") and name not in DESCRIPTIONS:
            raise AttributeError(name)
        return self._judge.ask("getattr", self._target, (name,))

    def __iter__(self):
        return iter(self._judge.ask("items", self._target))

    def __next__(self):
        items = self._judge.ask("next", self._target)  # a list of one, empty at the end
        if type(items) is not list or len(items) != 1:
            raise StopIteration
        return items[0]

    def __exit__(self, *error):
        self._judge.ask("exit", self._target)  # without the error, which only the tests may catch

    def __eq__(self, other):
        self._judge.unfit += isinstance(other, RemoteObject)
        raise Unsafe(f"compares an object of the program, {DECIDES}")

    def __hash__(self):
        if self._has_own_hash and not self._judge.reading:
            self._judge.unfit += 1
            raise Unsafe(f"hashes an object of the program, {DECIDES}")
        return hash(("program", self._target))

    __lt__, __gt__, __le__, __ge__ = map(ordered, ("__lt__", "__gt__", "__le__", "__ge__"))
    __doc__, __dict__ = map(described, ("__doc__", "__dict__"))

    def __contains__(self, item):
        if not self._is_instance:  # the program could return this where a list is expected
            return any(one is item or one == item for one in self)
        self._judge.trusted = False
        return bool(self._judge.ask("contains", self._target, (item,)))

    def __mro_entries__(self, bases):
        self._judge.unfit += 1
        raise Unsafe("derives from a class of the program; try calling that class instead")

    def __instancecheck__(self, value):
        self._judge.trusted = False
        return bool(self._judge.ask("has_instance", self._target, (value,)))

    def __len__(self):
        try:  # list() asks for it, and takes TypeError for an answer
            return operator.index(self._judge.ask("len", self._target))
        except Exception as error:
            raise TypeError(str(error)) from None

    __enter__, __getitem__, __setitem__, __delitem__ = map(asked, ("enter", "getitem", "setitem", "delitem"))
    __setattr__, __repr__, __dir__ = map(asked, ("setattr", "repr", "dir"))
    __str__, __bool__, __int__, __float__ = map(converted, (str, bool, int, float))
    __add__, __sub__, __mul__ = map(forwarded, ("__add__", "__sub__", "__mul__"))
    __truediv__, __floordiv__, __mod__ = map(forwarded, ("__truediv__", "__floordiv__", "__mod__"))
    __matmul__, __and__, __or__, __xor__ = map(forwarded, ("__matmul__", "__and__", "__or__", "__xor__"))
    __neg__, __invert__, __abs__ = map(forwarded, ("__neg__", "__invert__", "__abs__"))
