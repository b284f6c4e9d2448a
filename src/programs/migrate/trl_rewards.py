"""Reward functions take what today's trainers pass beside prompts, completions and columns."""

import ast
from pathlib import Path

from parts.foundation.messages import UserError
from programs.migrate.edits import Report, Row
from programs.migrate.python_source import FUNCTIONS, PythonSource

WHY = "the trainer also passes completion_ids, trainer_state and more by keyword"


def add_keywords(source: PythonSource, function: ast.AST, report: Report) -> None:
    """Put **kwargs behind the parameters of a function that has none."""
    given = function.args
    if given.kwarg:
        return
    row = Row("**kwargs", "0.18", WHY, "TypeError")
    nodes = [*given.posonlyargs, *given.args, *given.kwonlyargs, *given.defaults, *filter(None, given.kw_defaults)]
    nodes += [given.vararg] if given.vararg else []
    if nodes:
        end = max(source.span(node)[1] for node in nodes)
        if any(edit.start == end and edit.text == ", **kwargs" for edit in report.edits):
            return  # another trainer has the same reward
        report.edit(end, end, ", **kwargs", row)
        return
    start = source.span(function)[0]
    end = start + len("lambda") if isinstance(function, ast.Lambda) else source.text.index("(", start) + 1
    report.edit(end, end, " **kwargs" if isinstance(function, ast.Lambda) else "**kwargs", row)


def reward_functions(source: PythonSource, node: ast.expr) -> tuple[list[ast.AST], list[str]]:
    """(Functions of the file that an expression names, names that it imports)."""
    functions, imported, waiting, seen = [], [], [node], set()
    while waiting:
        for part in ast.walk(waiting.pop()):
            if isinstance(part, ast.Lambda):
                functions.append(part)
            if not isinstance(part, ast.Name) or part.id in seen:
                continue
            seen.add(part.id)
            if part.id in source.definitions:
                functions += contract(source.definitions[part.id])
            elif part.id in source.imports:
                imported.append(part.id)
            elif part.id in source.constants:
                waiting.append(source.constants[part.id])
    return functions, imported


def contract(definition: ast.AST) -> list[ast.AST]:
    """What a trainer calls of a definition: a function, what it returns, or the method of a class."""
    if isinstance(definition, ast.ClassDef):
        return [x for x in definition.body if isinstance(x, FUNCTIONS) and x.name == "__call__"]
    inner = [x for x in ast.walk(definition) if isinstance(x, FUNCTIONS) and x is not definition]
    names = {x.arg for x in [*definition.args.args, *definition.args.kwonlyargs]}
    returned = [x for x in inner if {"completions"} & {a.arg for a in x.args.args}]
    return [definition] if "completions" in names or not returned else returned


def mend_rewards(source: PythonSource, node: ast.expr | None, report: Report) -> None:
    """Give every reward function of a trainer **kwargs; say which ones lie in other files."""
    functions, imported = reward_functions(source, node) if node is not None else ([], [])
    if not functions and not imported:
        named = [x for x in source.definitions.values() if not isinstance(x, ast.ClassDef)]
        functions = [x for x in named if "completions" in {a.arg for a in x.args.args}]
    done = set()
    for function in functions:
        if id(function) not in done:
            done.add(id(function))
            add_keywords(source, function, report)
    for name in imported:
        check_imported(source, name, report)


def check_imported(source: PythonSource, name: str, report: Report) -> None:
    """Say where an imported reward function needs **kwargs; a file that is not here cannot be seen."""
    module, original, _ = source.imports[name]
    file = Path(source.name).parent / (module.lstrip(".").replace(".", "/") + ".py")
    if module.split(".")[0] in ("functools", "trl", "transformers", "torch", "math", "re"):
        return
    if not file.is_file():
        report.note(f"{name} is imported from {module}: it needs **kwargs, which cannot be seen here")
        return
    try:
        other = PythonSource(str(file), file.read_text(encoding="utf-8"))
    except UserError:
        return
    lacking = list(contract(other.definitions[original])) if original in other.definitions else []
    for function in lacking:
        if not function.args.kwarg:
            place = other.place(other.span(function)[0])
            report.refuse(place, f"{file.name}:{original}", WHY, f"**kwargs in {file.name}, {place}")
