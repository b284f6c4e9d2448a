"""Extract from a Python file what some of its names need."""

import ast
import sys

IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
TRAINERS = {"trl", "verl", "unsloth"}  # a reward's file may import these, but another environment may lack them


def bound_names(statement: ast.AST) -> set[str]:
    """The names that a top-level statement binds in its module; of a module, those that it binds anywhere."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def imports_trainer(source: str) -> list[str]:
    """The libraries of TRAINERS that the top level of Python source imports."""
    modules = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add((node.module or "").split(".")[0])
    return sorted(modules & TRAINERS)


def read_names(*nodes: ast.AST) -> set[str]:
    """All names that occur in pieces of source."""
    return {leaf.id for node in nodes for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}


def statements_of(source: str) -> list[tuple[ast.stmt, str]]:
    """(Statement, its text with the comments right above it) at the top level of Python source."""
    lines, pieces = source.splitlines(), []
    for statement in ast.parse(source).body:
        decorators = [node.lineno for node in getattr(statement, "decorator_list", [])]
        first = min([statement.lineno, *decorators]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        pieces.append((statement, "\n".join(lines[first : statement.end_lineno]) + "\n"))
    return pieces


def needed(pieces: list[tuple[ast.stmt, str]], names: list[str]) -> set[int]:
    """Indices of the statements that bind the names or what these use in turn; `import *` may bind any name."""
    wanted, visited, kept = [*names, "*"], set(), set()
    while wanted:
        name = wanted.pop()
        if name in visited:
            continue
        visited.add(name)
        for place, (statement, _) in enumerate(pieces):
            if place not in kept and name in bound_names(statement):
                kept.add(place)
                wanted += read_names(statement)
    return kept


def import_blocks(imports: list[ast.stmt], left_out=("__future__",)) -> str:
    """Imports as text: a block of the standard library and one of other modules, `import x` before `from x`.

    A module's names are merged into one line; `import *` has its own.
    """
    blocks = {True: {}, False: {}}  # {is standard library: {start of a line: its names}}
    for node, alias in ((x, alias) for x in imports for alias in x.names):
        module, name = (getattr(node, "module", None) or alias.name).partition(".")[0], ast.unparse(alias)
        if module in left_out:
            continue
        names = blocks[module in sys.stdlib_module_names]
        start = f"from {'.' * node.level}{node.module or ''} import " if isinstance(node, ast.ImportFrom) else "import "
        together = start != "import " and name != "*"
        names.setdefault(start if together else start + name, {}).update({name: None} if together else {})
    blocks = [[start + ", ".join(names) for start, names in block.items()] for block in blocks.values()]
    ordered = (sorted(block, key=lambda line: (line.startswith("from"), line)) for block in blocks)
    return "\n\n".join("\n".join(block) for block in ordered if block)


def joined(pieces: list[tuple[ast.stmt, str]]) -> str:
    """The text of statements, with two blank lines around definitions."""
    text, was_block = "", False
    for statement, lines in pieces:
        block = isinstance(statement, DEFINITIONS)
        text += ("\n\n" if text and (block or was_block) else "") + lines
        was_block = block
    return text


def extract(source: str, names: list[str]) -> str:
    """Reduce Python source to the top-level statements that bind the names, or that these use, in their order.

    Statements that bind nothing are left out, such as calls and the block of `if __name__ == "__main__":`.
    """
    pieces = statements_of(source)
    kept, chosen = needed(pieces, names), []
    for place, (statement, lines) in enumerate(pieces):
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if place in kept or future or docstring:
            chosen.append((statement, f"{lines}\n" if docstring else lines))
    return joined(chosen)
