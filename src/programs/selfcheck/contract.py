"""What a trainer must offer to be checked: names, signatures, shapes; `--contract` prints it."""

import inspect
import re
from typing import NamedTuple

from parts.foundation.file_text import file_text

CONTRACT = file_text("contract.txt")
ENTRY = re.compile(r"^  (\w+)(?:\((.*?)\))?(?: -> .*)?\n      (?:where Config has (no )?(\w+): )?", re.MULTILINE)
INSTEAD = {"response_logits": "token_logprobs"}  # what does as well


class Needed(NamedTuple):
    """A function, class or table that the checks take from a trainer."""

    name: str
    arguments: str  # as it is called
    unless: str  # asked for where Config lacks the field, else where it has it
    field: str  # "": always

    def asked_of(self, fields) -> bool:
        """Whether a trainer whose Config has these fields needs it."""
        return not self.field or (self.field in fields) != bool(self.unless)

    def offered_by(self, module) -> bool:
        """Whether a module has it, or what does as well; a function of this name that is called otherwise is not it."""
        instead = getattr(module, INSTEAD.get(self.name, ""), None)
        return callable(instead) or self.is_called_so(getattr(module, self.name, None))

    def is_called_so(self, function) -> bool:
        """Whether something can be called with the arguments of the contract."""
        arguments = list(filter(None, self.arguments.split(", ")))
        positional = [name for name in arguments if "=" not in name]
        named = {name.partition("=")[0]: None for name in arguments if "=" in name}
        try:
            inspect.signature(function).bind(*positional, **named)
        except ValueError:  # of a builtin, unknown
            return True
        except TypeError:  # nothing that is called, or otherwise
            return not arguments and callable(function)
        return True


def entries(text: str) -> tuple[Needed, ...]:
    """The names of a part of the contract."""
    return tuple(Needed(*match) for match in ENTRY.findall(text))


PAGE_TEXT, SCRIPT_TEXT, TALKS_TEXT = re.split(r"\nA script: .*\n|\n  With --environment, too:\n", CONTRACT)
ONE_PAGE, SCRIPT, SCRIPT_TALKS = entries(PAGE_TEXT), entries(SCRIPT_TEXT), entries(TALKS_TEXT)


def lacking(module, needed, fields=()) -> list[str]:
    """What a trainer whose Config has these fields does not have of what it needs."""
    return [n.name for n in needed if n.asked_of(fields) and not n.offered_by(module)]


def lacking_fields(fields) -> list[str]:
    """Fields that the Config of a one-page trainer has not."""
    names = ["model", "data", "temperature", "max_new_tokens", "micro_batch"]
    names += ["reward"] * ("environment" not in fields) + ["vf_coef"] * ("gae_lambda" in fields)
    return [f"Config.{name}" for name in names if name not in fields]


def called_otherwise(module, needed, names: list[str]) -> list[str]:
    """Of the names that a trainer lacks, how those that it has are called there, and how they would be called."""
    functions = {n: getattr(module, n.name) for n in needed if n.name in names and callable(getattr(module, n.name, 0))}
    return [f"{n.name}{inspect.signature(f)} is another one than {n.name}({n.arguments})" for n, f in functions.items()]
