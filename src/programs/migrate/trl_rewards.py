"""Reward functions take what today's trainers pass beside prompts, completions and columns."""

import ast

from parts.foundation.user_scripts import FUNCTIONS, PythonSource
from programs.migrate.edits import Change, Report

WHY = "the trainer also passes completion_ids, trainer_state and more by keyword"
LIBRARIES = {"functools", "trl", "transformers", "torch", "math", "re"}


def mend_rewards(source: PythonSource, node: ast.expr | None, report: Report) -> None:
    """Put **kwargs behind the parameters of each function that takes completions; `node`: the trainer's rewards.

    TRL calls rewards by keyword: one of this file has a parameter `completions`. One that is imported is named.
    """
    for function in [x for x in source.nodes if isinstance(x, FUNCTIONS) and not x.args.kwarg]:
        given = function.args
        if "completions" in {x.arg for x in [*given.args, *given.kwonlyargs]}:
            parts = [*given.args, *given.kwonlyargs, *given.defaults, *filter(None, [*given.kw_defaults, given.vararg])]
            end = max(source.span(part)[1] for part in parts)
            if not any(edit.start == end and edit.text == ", **kwargs" for edit in report.edits):
                report.edit(end, end, ", **kwargs", Change("**kwargs", "", "0.18", WHY))
    for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node else ()):
        module = source.imports.get(name, ("", "", None))[0]
        if module and module.split(".")[0] not in LIBRARIES:
            report.note(f"{name} is imported from {module}: it needs **kwargs, which cannot be seen here")
