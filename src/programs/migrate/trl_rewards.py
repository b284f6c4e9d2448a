"""Reward functions take what today's trainers pass beside prompts, completions and columns."""

import ast

from parts.foundation.user_scripts import FUNCTIONS, PythonSource
from programs.migrate.edits import Report, Row

WHY = "the trainer also passes completion_ids, trainer_state and more by keyword"


def add_keywords(source: PythonSource, function: ast.AST, report: Report) -> None:
    """Put **kwargs behind the parameters of a function."""
    given = function.args
    nodes = [*given.posonlyargs, *given.args, *given.kwonlyargs, *given.defaults, *filter(None, given.kw_defaults)]
    nodes += [given.vararg] if given.vararg else []
    if nodes:
        end, text = max(source.span(node)[1] for node in nodes), ", **kwargs"
    elif isinstance(function, ast.Lambda):
        end, text = source.start(function) + len("lambda"), " **kwargs"
    else:
        end, text = source.text.index("(", source.start(function)) + 1, "**kwargs"
    if not any(edit.start == end and edit.text == text for edit in report.edits):  # as for another trainer
        report.edit(end, end, text, Row("**kwargs", "0.18", WHY, "TypeError"))


def reward_functions(source: PythonSource, node: ast.expr) -> tuple[list[ast.AST], set[str]]:
    """(Functions of the file that an expression names, names that it imports)."""
    functions, imported, waiting, seen = [], set(), [node], set()
    while waiting:
        for part in ast.walk(waiting.pop()):
            name = getattr(part, "id", "")
            if isinstance(part, ast.Lambda):
                functions.append(part)
            if name in source.definitions:
                functions += contract(source.definitions[name])
            elif name in source.imports:
                imported.add(name)
            elif name in source.constants and name not in seen:
                waiting.append(source.constants[name])
            seen.add(name)
    return functions, imported


def contract(definition: ast.AST) -> list[ast.AST]:
    """What a trainer calls of a definition: a function, what it returns, or the method of a class."""
    if isinstance(definition, ast.ClassDef):
        return [x for x in definition.body if isinstance(x, FUNCTIONS) and x.name == "__call__"]
    inner = [x for x in ast.walk(definition) if isinstance(x, FUNCTIONS) and x is not definition]
    returned = [x for x in inner if takes_completions(x)]
    return [definition] if takes_completions(definition) or not returned else returned


def takes_completions(function: ast.AST) -> bool:
    return "completions" in {x.arg for x in [*function.args.args, *function.args.kwonlyargs]}


def mend_rewards(source: PythonSource, node: ast.expr | None, report: Report) -> None:
    """Give every reward function of a trainer **kwargs; say which ones lie in other files."""
    functions, imported = reward_functions(source, node) if node is not None else ([], set())
    if not functions and not imported:
        named = [x for x in source.definitions.values() if not isinstance(x, ast.ClassDef)]
        functions = [x for x in named if takes_completions(x)]
    for function in functions:
        if not function.args.kwarg:
            add_keywords(source, function, report)
    for name in sorted(imported):
        module = source.imports[name][0]
        if module.split(".")[0] not in ("functools", "trl", "transformers", "torch", "math", "re"):
            report.note(f"{name} is imported from {module}: it needs **kwargs, which cannot be seen here")
