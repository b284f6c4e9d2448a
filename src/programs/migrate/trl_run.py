"""A TRL run as one version of TRL sees it: the script's settings, and that version's defaults for the rest."""

import ast
from dataclasses import dataclass, field, replace

from parts.foundation.user_scripts import FUNCTIONS, Argument, PythonSource
from programs.migrate.edits import UNSURE
from programs.migrate.tables import ABSENT, default_at, gone_entry, numbers

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD Distillation OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}
SAMPLING = ("GRPOConfig", "RLOOConfig")
UNKNOWN = object()  # the value of an argument that is not a literal
NO_CALLS = ("isinstance", "issubclass", "super", "hasattr", "fields")  # these call no class that they get


def reward_functions(source: PythonSource) -> list[ast.AST]:
    """The functions of a file with a parameter `completions`, which TRL passes to rewards by keyword."""
    functions = [x for x in source.nodes if isinstance(x, FUNCTIONS)]
    return [x for x in functions if "completions" in {y.arg for y in [*x.args.args, *x.args.kwonlyargs]}]


@dataclass
class TrlRun:
    """One config call of a script under one version."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    of_trainer: dict[str, ast.expr] = field(default_factory=dict)  # settings given to the trainer, not the config
    unseen_args: ast.expr | None = None  # the expression of a config that is made at run time
    trainer: ast.Call | None = None  # which reads most settings: what is set after it counts as set in a branch

    def __post_init__(self):
        source, call = self.source, self.call
        self.unseen = [] if self.unseen_args is None else [self.unseen_args]
        self.unsure: set[str] = set()  # set in a branch, or changed where that is not followed
        self.nodes: dict[str, ast.expr] = {}  # {old or new name of a setting: the expression given}
        self.fields = {} if call else {x.name: x for x in source.fields(self.config)}  # of a config class in the script
        self.arguments = [*self.fields.values()]
        if call is not None:
            self.arguments, self.unseen = source.arguments(call)
        if (config_node := call or self.unseen_args) is not None:
            late = source.start(self.trainer) if self.trainer else len(source.text)
            changes = source.changes(config_node)
            self.arguments = self.arguments + [replace(x, is_sure=x.is_sure and x.start < late) for x in changes]
            self.unsure = {getattr(change, "attr", "") for change in source.hidden_changes(config_node)}
        self.nodes |= {argument.name: argument.value for argument in self.arguments} | self.of_trainer
        self.unsure |= {argument.name for argument in self.arguments if not argument.is_sure}
        for name, node in [*self.nodes.items()]:
            new = gone_entry(self.config, name).get("renamed")
            if new and name != "warmup_ratio":
                self.nodes.setdefault(new, node)
                self.unsure |= {new} if name in self.unsure else set()

    def has(self, name: str) -> bool:
        return name in self.nodes

    def in_branch(self, name: str) -> list[Argument]:
        """The arguments that set it, if each of them is in a branch of the script."""
        given = [x for x in self.arguments if name in (x.name, gone_entry(self.config, x.name).get("renamed"))]
        is_set = name in {*self.fields, *self.of_trainer} or any(argument.is_sure for argument in given)
        return [] if is_set else given

    def branches(self, name: str) -> set[ast.AST]:
        return {self.source.parents[self.source.parents[x.value]] for x in self.in_branch(name)}

    def value(self, name: str):
        """The literal given, else the version's default, else None; UNKNOWN for an expression or an unsure value."""
        try:
            if name in self.unsure:
                return UNKNOWN
            if member := self.member(name):
                return member[1]
            return self.source.value(self.nodes[name]) if self.has(name) else self.default(name)
        except (ValueError, TypeError):
            return UNKNOWN

    def member(self, name: str) -> tuple[str, str] | None:
        """(class, text) of a setting that is a member of an enumeration of TRL or transformers; else None."""
        node = self.source.resolved(self.nodes.get(name))
        owner = self.source.imports.get(getattr(getattr(node, "value", None), "id", ""), ("", ""))
        is_member = isinstance(node, ast.Attribute) and node.attr.isupper() and owner[0].startswith(("trl", "transf"))
        return (owner[1], node.attr.lower()) if is_member else None

    def default(self, name: str):
        default = default_at(self.config, name, self.version)
        return None if default is ABSENT else default

    def text(self, name: str) -> str:
        """The source of an argument, else of its default; NAME + UNSURE for an unsure value."""
        if name in self.unsure:
            return name + UNSURE
        return self.source.code(self.nodes[name]) if name in self.nodes else repr(self.default(name))

    def place(self, name: str) -> str:
        """The place where an argument is last given; "" for a default."""
        return self.source.place(self.nodes[name]) if name in self.nodes else ""

    def is_on(self, name: str) -> bool:
        """Whether a setting, given or by default, may be other than off."""
        return self.value(name) not in (None, False, "no")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)
