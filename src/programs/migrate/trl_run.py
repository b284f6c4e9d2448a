"""A TRL run as one version reads a script: its settings, and that version's defaults for the rest."""

import ast
from dataclasses import dataclass, field

from parts.foundation.user_scripts import FUNCTIONS, PythonSource
from programs.migrate.edits import UNSURE
from programs.migrate.tables import ABSENT, default_at, gone_entry, numbers

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD Distillation OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}
SAMPLING = ("GRPOConfig", "RLOOConfig")
UNKNOWN = object()  # the value of an argument that is not a literal


def scoring(source: PythonSource) -> list[ast.AST]:
    """The functions of a file that take completions, as TRL calls rewards by keyword."""
    functions = [x for x in source.nodes if isinstance(x, FUNCTIONS)]
    return [x for x in functions if "completions" in {y.arg for y in [*x.args.args, *x.args.kwonlyargs]}]


@dataclass
class TrlRun:
    """One config call of a script under one version."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    of_trainer: dict[str, ast.expr] = field(default_factory=dict)  # settings that old trainers took themselves
    unseen_args: ast.expr | None = None  # what stands for a config that is made at run time

    def __post_init__(self):
        source, call = self.source, self.call
        self.unseen: list[ast.expr] = []
        self.unsure: set[str] = set()  # set in a branch, or changed otherwise
        self.nodes: dict[str, ast.expr] = {}  # what the script gives, by its names and by today's
        self.fields = {} if call else {x.name: x for x in source.fields(self.config)}  # of the script's own config
        self.arguments = [*self.fields.values()]
        if call is not None:
            self.arguments, self.unseen = source.arguments(call)
        if (made := call or self.unseen_args) is not None:
            self.arguments = self.arguments + source.changes(made)
            self.unsure = {getattr(change, "attr", "") for change in source.hidden_changes(made)}
        self.nodes |= {argument.name: argument.value for argument in self.arguments} | self.of_trainer
        self.unsure |= {argument.name for argument in self.arguments if not argument.is_sure}
        for name, node in [*self.nodes.items()]:
            new = gone_entry(self.config, name).get("renamed")
            if new and name != "warmup_ratio":
                self.nodes.setdefault(new, node)
                self.unsure |= {new} if name in self.unsure else set()

    def has(self, name: str) -> bool:
        return name in self.nodes

    def in_config(self, name: str) -> bool:
        return any(argument.name == name for argument in self.arguments)

    def value(self, name: str):
        """A literal, the version's default, None without one, or UNKNOWN for an expression."""
        try:
            if name in self.unsure:
                return UNKNOWN
            return self.source.value(self.nodes[name]) if name in self.nodes else self.default(name)
        except (ValueError, TypeError):
            return UNKNOWN

    def default(self, name: str):
        default = default_at(self.config, name, self.version)
        return None if default is ABSENT else default

    def text(self, name: str) -> str:
        """The source of an argument, or its default as Python; one that is set in a branch is marked as such."""
        if name in self.unsure:
            return name + UNSURE
        return self.source.code(self.nodes[name]) if name in self.nodes else repr(self.default(name))

    def place(self, name: str) -> str:
        """Where an argument is given last."""
        return self.source.place(self.source.start(self.nodes[name])) if name in self.nodes else ""

    def is_on(self, name: str) -> bool:
        """Whether a setting is given or by default, and may be other than off."""
        return self.value(name) not in (None, False, "no")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)
