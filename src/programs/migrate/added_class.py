"""The class that acts like an old trainer where no setting does, in a script."""

import ast
import re
import textwrap
from dataclasses import replace

from programs.migrate.edits import Change, Report
from programs.migrate.tables import newest
from programs.migrate.trl_settings import UNKNOWN, TrlRun, prompt_limit

HEAD = """class {}({}):
    \"""Does what TRL {} did and no setting of {} does, by private methods of {}.\"""
"""


def insert_class(
    run: TrlRun, call: ast.Call, methods: list[tuple[str, Change]], classes: dict[tuple, str], report: Report
) -> None:
    """Insert a class with these methods, unless `classes` has it, and call it in the trainer's place.

    It stands above the module's statement, or above the trainer's if it uses names that are not known there.
    """
    source, base = run.source, run.source.code(call.func)
    around = [x for x in source.blocks(call) if isinstance(x, ast.stmt)]
    starts = {x: source.text[: source.start(x)].rpartition("\n")[2] for x in around}
    limit = run.nodes.get("max_prompt_length") if prompt_limit(run)[0] is UNKNOWN else None
    if limit and (names := ", ".join(source.rebound(limit, limit, call))):
        why = f"{names} may be another value at {source.place(call)}, or none"
        report.refuse(source.place(limit), f"max_prompt_length={source.code(limit)}", why, "a number in the class")
    body = "\n\n".join(text for text, _ in methods)
    parts = [x for x in ast.walk(ast.parse(f"class _:\n{body}")) if isinstance(x, ast.arguments)]
    used = [call.func, *(default for x in parts for default in x.defaults)]
    is_local = any(source.rebound(x, call, around[-1]) for x in used)
    statement = next(x for x in [*around * is_local, around[-1]] if not starts[x].strip())
    short, key = base.split(".")[-1], (base, body, is_local and statement)
    if key not in classes:
        number = sum(name.startswith(f"{short}AsBefore") for name in classes.values()) + 1
        classes[key] = f"{short}AsBefore{number if number > 1 else ''}"
        write_class(run, statement, classes[key], base, methods, report)
    report.edit(*source.span(call.func), classes[key])


def write_class(run: TrlRun, statement: ast.stmt, name: str, base: str, methods: list, report: Report) -> None:
    """Write a class above a statement and its comments, with a row of the table for each method."""
    first = (getattr(statement, "decorator_list", None) or [statement])[0]
    lines, end, indent = run.source.text[: run.source.start(first)].rpartition("\n")
    indent, above = re.match(r"[ \t]*", indent)[0], re.sub(r"(?:^[ \t]*#[^\n]*\n)+\Z", "", lines + end, flags=re.M)
    gap = "" if indent or run.source.notebook else "\n" * (3 - len(above) + len(above.rstrip("\n")))
    head = textwrap.indent(HEAD.format(name, base, run.version, newest("trl"), newest("trl")), indent)
    report.edit(len(above), len(above), gap + head)
    for text, row in methods:
        body = f"\n{textwrap.indent(text, indent)}\n"
        report.edit(len(above), len(above), body, replace(row, name=f"{name}.{row.name}"))
    report.edit(len(above), len(above), "\n" if indent else "\n\n")
