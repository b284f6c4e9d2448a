"""The part of a Python file that some of its names need, as a file of its own."""

import ast

TRAINERS = {"trl", "verl", "unsloth"}  # what a reward's file may import for its run, and another environment lacks


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds."""
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def imports_trainer(source: str) -> list[str]:
    """The libraries of TRAINERS that the top level of Python source imports."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return sorted(found & TRAINERS)


def extract(source: str, names: list[str]) -> str:
    """Python source with the top-level statements that bind the names, and those that these use, in their order.

    Statements that bind nothing are left out, such as calls and what stands below `if __name__ == "__main__":`.
    """
    body, lines = ast.parse(source).body, source.splitlines()
    wanted, seen, kept = [*names], set(), set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for number, statement in enumerate(body):
            if number not in kept and name in bound_names(statement):
                kept.add(number)
                wanted += [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
    text, was_block = "", False
    for number, statement in enumerate(body):
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if number not in kept and not future and not docstring:
            continue
        decorators = [node.lineno for node in getattr(statement, "decorator_list", [])]
        first = min([statement.lineno, *decorators]) - 1
        while first and lines[first - 1].startswith("#"):  # what is said about it
            first -= 1
        block = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        text += (
            ("\n\n" if text and (block or was_block) else "") + "\n".join(lines[first : statement.end_lineno]) + "\n"
        )
        text += "\n" * docstring
        was_block = block
    return text
