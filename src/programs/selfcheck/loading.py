"""Loading a trainer by its path."""

import re
import sys
from pathlib import Path

from parts.foundation.bundle import in_bundle
from parts.foundation.messages import need
from parts.rewards.reward_forms import import_file
from programs.selfcheck.one_page import OnePage
from programs.selfcheck.scripts_trainer import ScriptsTrainer
from programs.selfcheck.trainer import Trainer


def load_trainer(file: str) -> Trainer:
    """Load a trainer's file; UserError if it cannot be loaded or lacks a name of the contract."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is not a Python file; expected TRAINER.py first, then its flags; "
        f"try {in_bundle('scripts/ppo_train.py')}",
    )
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    module = import_file("trainer", file, file)
    kind = ScriptsTrainer if {"HFEngine", "settle_precision"} & vars(module).keys() else OnePage
    trainer, source = kind(module), path.read_text(encoding="utf-8")
    names = trainer.missing()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", source, re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        f"can be called; try {in_bundle('templates/grpo.py')}",
    )
    need_names(file, names)
    return trainer


def need_names(file: str, names: list[str]) -> None:
    """Raise UserError if a trainer lacks names."""
    need(
        not names,
        f"got trainer {file!r} without {', '.join(names)}; expected all that the checks call; try selfcheck.py "
        "--contract, or a copy of templates/grpo.py beside it and `from grpo import *` before your own functions",
    )
