"""Loading a trainer by its path."""

import importlib.util
import re
import sys
from pathlib import Path

from parts.foundation.messages import UserError, need
from programs.selfcheck.one_page import OnePage
from programs.selfcheck.scripts_trainer import ScriptsTrainer
from programs.selfcheck.trainer import Trainer


def load_trainer(file: str) -> Trainer:
    """The trainer of a file, as the checks see it; UserError where it cannot be loaded or lacks a name."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is not a Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    module = import_file(path)
    kind = ScriptsTrainer if {"HFEngine", "settle_precision"} & vars(module).keys() else OnePage
    trainer, source = kind(module), path.read_text(encoding="utf-8")
    names = trainer.missing()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", source, re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        "can be called; try templates/grpo.py",
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


def import_file(path: Path):
    """The module of a file, which is not run."""
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    spec = importlib.util.spec_from_file_location("checked_trainer", path)
    sys.modules["checked_trainer"] = trainer = importlib.util.module_from_spec(spec)  # dataclasses look here
    try:
        spec.loader.exec_module(trainer)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"got trainer {str(path)!r}: importing it raises {type(error).__name__}: {error}; expected a module that "
            "runs nothing at import; try `if __name__ == '__main__': main()` at its end"
        ) from error
    return trainer
