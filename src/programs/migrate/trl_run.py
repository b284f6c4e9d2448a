"""A TRL run as one version reads a script: what it gives, and that version's defaults for the rest."""

import ast
from dataclasses import dataclass, field

from parts.foundation.user_scripts import Argument, PythonSource
from programs.migrate.tables import ABSENT, default_at, gone_entry, numbers

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD Distillation OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}
SAMPLING = ("GRPOConfig", "RLOOConfig")
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
        self.arguments: list[Argument] = []
        self.unseen: list[ast.expr] = []
        self.nodes: dict[str, ast.expr] = {}  # what the script gives, by its names and by today's
        if call is not None:
            self.arguments, self.unseen = source.arguments(call)
            self.arguments = self.arguments + source.changes(call)
        self.nodes |= {argument.name: argument.value for argument in self.arguments} | self.of_trainer
        self.unsure = {argument.name for argument in self.arguments if not argument.is_sure}
        for name, node in [*self.nodes.items()]:
            new = gone_entry(self.config, name).get("renamed")
            if new and name != "warmup_ratio":
                self.nodes.setdefault(new, node)

    def has(self, name: str) -> bool:
        return name in self.nodes

    def in_config(self, name: str) -> bool:
        return any(argument.name == name for argument in self.arguments)

    def value(self, name: str):
        """A literal, the version's default, None without one, or UNKNOWN for an expression."""
        if name not in self.nodes:
            default = default_at(self.config, name, self.version)
            return None if default is ABSENT else default
        try:
            return UNKNOWN if name in self.unsure else self.source.value(self.nodes[name])
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
