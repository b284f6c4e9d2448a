"""Loading a trainer by its path; with --partial, a template stands in for what a page does not have."""

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need
from programs.selfcheck.contract import ONE_PAGE, SCRIPT, called_otherwise
from programs.selfcheck.one_page import OnePage
from programs.selfcheck.scripts_trainer import ScriptsTrainer

COMPUTING = ("token_logprobs", "response_logits", "generate", "accumulate_gradients", "make_experience", "gae")


def load_trainer(file: str, partial: bool = False):
    """The trainer of a file, as the checks see it.

    Raises:
        UserError: it cannot be loaded or lacks a name; with `partial`, has nothing that a check is about.
    """
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is no Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    module = import_file(path)
    # a page samples with `generate`, a script with an engine; a copy that has neither is what it lacks less of
    kinds = [OnePage(module, ONE_PAGE), ScriptsTrainer(module, SCRIPT)]
    trainer = min(kinds, key=lambda kind: len(kind.missing()) / len(kind.needed))
    names = trainer.missing()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", path.read_text(encoding="utf-8"), re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        "can be called; try templates/grpo.py",
    )
    if not partial:
        need_names(file, names, called_otherwise(module, trainer.needed, names))
    elif names:
        has = [name for name in COMPUTING if callable(getattr(module, name, None)) and name not in names]
        expected = f"expected a page that has {' or '.join(COMPUTING)} for --partial; try selfcheck.py --contract"
        need(isinstance(trainer, OnePage) and has, f"got trainer {file!r} without {', '.join(names)}; {expected}")
        fill(trainer, path.read_text(encoding="utf-8"))
    return trainer


def need_names(file: str, names: list[str], otherwise: list[str] = ()) -> None:
    """Raise UserError if a trainer lacks names; `otherwise` has those that are something else there."""
    need(
        not names,
        f"got trainer {file!r} without {', '.join([*names, *otherwise])}; expected all that the checks call; "
        "try selfcheck.py --contract, or --partial to check what a page has of it",
    )


def import_file(path: Path, name: str = "checked_trainer"):
    """The module of a file, which is not run."""
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = trainer = importlib.util.module_from_spec(spec)  # dataclasses look here
    try:
        spec.loader.exec_module(trainer)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"got trainer {str(path)!r}: importing it raises {type(error).__name__}: {error}; expected a module that "
            "runs nothing at import; try `if __name__ == '__main__': main()` at its end"
        ) from error
    return trainer


class Overlay:
    """A page before a template: names of the contract that it has are the page's; each calls its own functions."""

    def __init__(self, page, template, names: set[str]):
        vars(self).update(page=page, template=template, names=names)

    def __getattr__(self, name: str):
        return getattr(self.page if name in self.names else self.template, name)

    def __setattr__(self, name: str, value) -> None:
        setattr(self.page if name in self.names else self.template, name, value)


def fill(trainer: OnePage, source: str) -> None:
    """Put the nearest template behind a page that lacks some of the contract, and note what is not the page's."""
    page, fields = trainer.module, trainer.fields
    near = {"environment": "multi_turn.py", "teacher": "distillation.py"}
    file = BUNDLE / "templates" / next((name for field, name in near.items() if field in fields), "grpo.py")
    need(file.is_file(), f"got --partial without {file}, which stands in for what a page lacks; expected the bundle")
    template = import_file(file, "stand_in")
    there = {n for n in trainer.needed if n.name != "Config" and callable(getattr(page, n.name, None))}
    trainer.otherwise = {n.name for n in there if not n.is_called_so(getattr(page, n.name))}
    names = {n.name for n in there} - trainer.otherwise
    page.Config = with_fields(getattr(page, "Config", None) if fields else None, template.Config)
    trainer.absent = {*trainer.missing()} | trainer.otherwise | {"gae"} - names
    if "micro_batch" not in source:
        trainer.absent.add("Config.micro_batch")
    names |= {name for name in ("Config", "parse_config", "check_template") if hasattr(page, name)}
    trainer.module = Overlay(page, template, names)


def with_fields(own, template):
    """A page's Config with the fields that it lacks of the template's, which the template's functions read."""
    has = {f.name for f in dataclasses.fields(own)} if own else set()
    added = [
        (f.name, f.type, dataclasses.field(default=f.default))
        for f in dataclasses.fields(template)
        if f.name not in has
    ]
    return dataclasses.make_dataclass("Config", added, bases=(own,) if own else (), kw_only=True)
