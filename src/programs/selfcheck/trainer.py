"""The trainer that is checked."""

import importlib
import importlib.util
import sys
from pathlib import Path

from parts.messages import UserError, need

NEEDED = (
    "UserError",
    "parse_config",
    "check_config",
    "start_processes",
    "check_context",
    "autocast",
    "load_tokenizer",
    "load_splits",
    "load_reward",
    "load_models",
    "batch_rows",
    "HFEngine",
    "collect",
    "collate",
    "make_experience",
    "make_optimizer",
    "update",
    "accumulate_gradients",
    "policy_loss",
    "switch_checkpointing",
    "predicting_states",
    "token_logprobs",
)


def load_trainer(file: str):
    """Load a trainer script by path; raise UserError where it cannot be loaded or lacks a function of NEEDED."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is no Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    spec = importlib.util.spec_from_file_location("checked_trainer", path)
    sys.modules["checked_trainer"] = trainer = importlib.util.module_from_spec(spec)  # dataclasses look here
    try:
        spec.loader.exec_module(trainer)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"got trainer {file!r}: importing it raises {type(error).__name__}: {error}; expected a module that runs "
            "nothing at import; try `if __name__ == '__main__': main()` at its end"
        ) from error
    lacking = [name for name in NEEDED if not callable(getattr(trainer, name, None))]
    need(
        not lacking,
        f"got trainer {file!r} without {', '.join(lacking)}; expected the functions of ppo_train.py under their names; "
        "try adapting a copy of it",
    )
    return trainer
