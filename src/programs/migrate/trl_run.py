"""A TRL run as one version of it reads a script: given arguments, and that version's defaults for the others."""

import ast
from dataclasses import dataclass, field

from programs.migrate.python_source import Argument, PythonSource
from programs.migrate.tables import ABSENT, INHERITED, changes, entry_at, newest, numbers

CONFIGS = {
    "GRPOTrainer": "GRPOConfig",
    "RLOOTrainer": "RLOOConfig",
    "SFTTrainer": "SFTConfig",
    "DPOTrainer": "DPOConfig",
    "RewardTrainer": "RewardConfig",
    "KTOTrainer": "KTOConfig",
    "GKDTrainer": "GKDConfig",
    "OnlineDPOTrainer": "OnlineDPOConfig",
    "ORPOTrainer": "ORPOConfig",
    "CPOTrainer": "CPOConfig",
    "PPOTrainer": "PPOConfig",
    "PPOv2Trainer": "PPOv2Config",
}
SAMPLING = ("GRPOConfig", "RLOOConfig")
# Defaults that no version changed and that the arithmetic needs.
CONSTANT = {"num_generations": 8, "per_device_eval_batch_size": 8, "num_train_epochs": 3.0, "max_steps": -1} | {
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "seed": 42,
    "lr_scheduler_type": "linear",
    "fp16": False,
}
LATEST = "99.0"
ELSEWHERE = {"warmup_ratio", "group_by_length", "adafactor", "rpo_alpha", "max_prompt_length", "max_target_length"}
UNKNOWN = object()  # the value of an argument that is not a literal


def transformers_of(version: str) -> str:
    """The newest transformers that a version of TRL was published with; for the newest TRL, the newest of all."""
    return LATEST if version == newest("trl") else changes("trl")["transformers"][version][1]


def default_at(config: str, name: str, version: str):
    """The default of a setting in a version of TRL, its own or that of transformers; ABSENT where it has none."""
    tables = changes("trl")["configs"]
    own = entry_at(tables.get(config, {}).get(name, []), version)
    if own and not own.get("gone"):
        return own["default"]
    base = tables["TrainingArguments"].get(name)
    if base:
        entry = entry_at(base, transformers_of(version))
        return ABSENT if entry is None or entry.get("gone") else entry["default"]
    if config == "RLOOConfig" and name == "num_generations":
        return 2 if numbers(version) >= (0, 22) else ABSENT
    if config == "GRPOConfig" and name == "learning_rate":
        return 1e-6
    return INHERITED.get(name, CONSTANT.get(name, ABSENT))


def is_gone(config: str, name: str, version: str | None = None) -> dict | None:
    """The entry that says since when a setting is gone; None for one that is there, or was never known."""
    tables, version = changes("trl")["configs"], version or newest("trl")
    own = entry_at(tables.get(config, {}).get(name, []), version)
    base = entry_at(tables["TrainingArguments"].get(name, []), transformers_of(version))
    if base and base.get("gone") and not (own and not own.get("gone")):
        return base
    inherited = base or name in INHERITED or name in CONSTANT
    return own if own and own.get("gone") and not inherited else None


def changed_names(config: str) -> list[str]:
    tables = changes("trl")["configs"]
    return list(dict.fromkeys([*tables.get(config, {}), *tables["TrainingArguments"]]))


@dataclass
class TrlRun:
    """One config call of a script under one version: `values` has what was read off it."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    arguments: dict[str, Argument] = field(default_factory=dict)
    unseen: list[ast.expr] = field(default_factory=list)
    of_trainer: dict[str, Argument] = field(default_factory=dict)  # settings that old trainers took themselves

    def __post_init__(self):
        if self.call is not None and not self.arguments:
            self.arguments, self.unseen = self.source.arguments(self.call)
            self.attributes = self.source.attributes(self.call)
        else:
            self.attributes = {}
        self.of_class = self.source.fields(self.source.name_of(self.call)) if self.call is not None else {}
        self.aliases = {}  # today's name -> the one that the script gives
        for name in (*self.arguments, *self.attributes, *self.of_class):
            gone = is_gone(self.config, name)
            if gone and gone.get("renamed") and name not in ELSEWHERE:
                self.aliases[gone["renamed"]] = name

    def node(self, name: str) -> ast.expr | None:
        if name in self.attributes:
            return self.attributes[name].value
        argument = self.of_trainer.get(name) or self.arguments.get(name)
        if argument is None and name in self.aliases:
            return self.node(self.aliases[name])
        return argument.value if argument else self.of_class.get(name)

    def in_config(self, name: str) -> bool:
        return name in self.arguments or name in self.attributes

    def has(self, name: str) -> bool:
        return self.node(name) is not None

    def value(self, name: str):
        """A literal, the version's default, or UNKNOWN for an expression."""
        node = self.node(name)
        if node is None:
            default = default_at(self.config, name, self.version)
            return None if default is ABSENT else default
        try:
            return self.source.value(node)
        except (ValueError, TypeError):
            return UNKNOWN

    def text(self, name: str) -> str:
        """The source of an argument, or its default as Python."""
        node = self.node(name)
        return self.source.code(node) if node is not None else repr(self.value(name))

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)
