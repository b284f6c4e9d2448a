"""Objects of classes that the tests and the program both define."""

import enum
import inspect

from programs.sandbox.limits import Died
from programs.sandbox.values import INVALID, decode, encode


class Instances:
    """How values travel that are no plain data: by class and state if both sides have the class, else as references.

    An object has a number that both sides know. A message has the states of all objects that it mentions, each once:
    so cycles, long chains and identity survive, and no method of the other side runs here.

    Attributes:
        keep: function of a value without a class on the other side; returns the number of its reference.
        refer: function of that number and the name of a type; returns what stands for the value here.
        classes: those of this side by name, as far as the other side has classes with these names.
    """

    def __init__(self, side: int, keep, refer):
        self.keep, self.refer, self.classes = keep, refer, {}
        self.objects, self.numbers, self.mentioned, self.next = {}, {}, [], side  # numbers of one side are even

    def tagged(self, value) -> dict | None:
        """The JSON of a member of an Enum, or the number of an object; None for another value."""
        kind = type(value)
        if self.classes.get(kind.__name__) is not kind:
            return None
        if isinstance(value, enum.Enum):
            return {"t": "member", "v": [kind.__name__, value.name]}
        if id(value) not in self.numbers:
            self.objects[self.next], self.numbers[id(value)] = value, self.next
            self.next += 2
        self.mentioned.append(value)
        return {"t": "object", "v": self.numbers[id(value)]}

    def untagged(self, tag: str, content):
        """The value of `tagged` JSON."""
        return self.objects[content] if tag == "object" else self.classes[content[0]][content[1]]

    def states(self) -> dict:
        """{number: [class, attributes]} of the objects mentioned since the last message, and of those in these."""
        states = {}
        for value in self.mentioned:  # grows
            number, content = self.numbers[id(value)], vars(value)
            if number not in states:
                states[number] = [type(value).__name__, {}]
                states[number][1].update({name: encode(item, self) for name, item in content.items()})
        self.mentioned = []
        return states

    def learn(self, states, sent) -> None:
        """Take over the states in a message; of this side's objects those only that were `sent`."""
        states = {int(number): state for number, state in states.items()}
        for number, (name, _) in states.items():
            if number not in self.objects and number % 2 != self.next % 2:
                self.objects[number] = value = object.__new__(self.classes[name])
                self.numbers[id(value)] = number
            elif number % 2 == self.next % 2 and number not in sent:
                raise Died(INVALID)
        for number, (_, content) in states.items():
            value = self.objects[number]
            vars(value).clear()
            vars(value).update({k: decode(item, self) for k, item in content.items() if is_plain(type(value), k)})


def is_plain(kind: type, name: str) -> bool:
    """Whether a class has no method or property of a name: an attribute with that name would take its place."""
    try:
        encode(inspect.getattr_static(kind, name, None))
        return True
    except (TypeError, ValueError):
        return False


def classes_in(namespace: dict, module: str) -> dict:
    """The classes that a module defines and whose objects are made of their attributes alone, by name."""
    kinds = {name: kind for name, kind in namespace.items() if isinstance(kind, type) and kind.__module__ == module}
    return {
        name: kind
        for name, kind in kinds.items()
        if kind.__name__ == name
        and (issubclass(kind, enum.Enum) or (kind.__new__ is object.__new__ and kind.__dictoffset__))
    }
