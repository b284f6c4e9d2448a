"""A TRL run as one version of it reads a script: given arguments, and that version's defaults for the others."""

import ast
from dataclasses import dataclass, field

from parts.foundation.user_scripts import Argument, PythonSource
from programs.migrate.tables import ABSENT, default_at, gone_entry, numbers

UNKNOWN = object()  # the value of an argument that is not a literal


@dataclass
class TrlRun:
    """One config call of a script under one version."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    of_trainer: dict[str, ast.expr] = field(default_factory=dict)  # settings that old trainers took themselves

    def __post_init__(self):
        source, call = self.source, self.call
        self.arguments: dict[str, Argument] = {}
        self.unseen: list[ast.expr] = []
        self.attributes: dict[str, ast.Assign] = {}
        self.nodes: dict[str, ast.expr] = {}  # what the script gives, by its names and by today's
        if call is not None:
            self.arguments, self.unseen = source.arguments(call)
            self.attributes = source.attributes(call)
        self.nodes |= {name: argument.value for name, argument in self.arguments.items()} | self.of_trainer
        self.nodes |= {name: statement.value for name, statement in self.attributes.items()}
        for name, node in [*self.nodes.items()]:
            new = gone_entry(self.config, name).get("renamed")
            if new and name != "warmup_ratio":
                self.nodes.setdefault(new, node)

    def has(self, name: str) -> bool:
        return name in self.nodes

    def in_config(self, name: str) -> bool:
        return name in self.arguments or name in self.attributes

    def value(self, name: str):
        """A literal, the version's default, None without one, or UNKNOWN for an expression."""
        if name not in self.nodes:
            default = default_at(self.config, name, self.version)
            return None if default is ABSENT else default
        try:
            return self.source.value(self.nodes[name])
        except (ValueError, TypeError):
            return UNKNOWN

    def text(self, name: str) -> str:
        """The source of an argument, or its default as Python."""
        return self.source.code(self.nodes[name]) if name in self.nodes else repr(self.value(name))

    def is_on(self, name: str) -> bool:
        """Whether a setting is given or by default, and may be other than off."""
        return self.value(name) not in (None, False)

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)
