"""Loading a trainer by its path."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

from parts.foundation.messages import UserError, need
from programs.selfcheck.contract import ONE_PAGE, SCRIPT, called_otherwise
from programs.selfcheck.one_page import OnePage
from programs.selfcheck.scripts_trainer import ScriptsTrainer


def load_trainer(file: str):
    """The trainer of a file, as the checks see it; raise UserError where it cannot be loaded or lacks a name."""
    trainer, names = nearest_kind(file)
    need_names(file, names, called_otherwise(trainer.module, trainer.needed, names))
    return trainer


def nearest_kind(file: str) -> tuple:
    """(The trainer of a file as the kind that it lacks less of, what it lacks); raise UserError for no trainer."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is no Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    module = import_file(path)
    # a page samples with `generate`, a script with an engine; a copy that has neither is what it lacks less of
    kinds = [OnePage(module, ONE_PAGE), ScriptsTrainer(module, SCRIPT)]
    trainer = min(kinds, key=lambda kind: len(kind.lacking()) / len(kind.needed))
    names = trainer.lacking()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", path.read_text(encoding="utf-8"), re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        "can be called; try templates/grpo.py",
    )
    return trainer, names


def need_names(file: str, names: list[str], otherwise: list[str] = ()) -> None:
    """Raise UserError if a trainer lacks names; `otherwise` has those that are something else there."""
    need(
        not names,
        f"got trainer {file!r} without {', '.join([*names, *otherwise])}; expected all that the checks call; "
        "try selfcheck.py --contract, or --partial to check what a page has of it",
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
