#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Check that handwritten files stay readable from top to bottom: lines of code, and nesting.

Blank lines, comments and docstrings do not count as code, so explaining is free. Nesting counts the blocks (if, for,
while, with, try, match) around a statement inside its function; `elif` does not add one. There are no exceptions: code
that does not fit should be divided differently.

Deliberately left out: what tools/build.py writes, tests and benchmarks.

    python tools/budget.py              # exit 1 where a budget is exceeded
    python tools/budget.py --verbose    # also the figures of every file
"""

import argparse
import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "examples/verl", "templates", "assets", "tools")
FILE_LINES, FUNCTION_LINES, TRAIN_LINES, NESTING, MEDIAN = 400, 60, 120, 4, 15

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def docstring_lines(tree: ast.AST) -> set[int]:
    """Line numbers of the docstrings of module, classes and functions."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node) is not None:
            lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def code_lines(source: str) -> set[int]:
    """Line numbers that hold code; every line of a multi-line string that is no docstring counts."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(ast.parse(source))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield (dotted name, node) of every function and method, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, (*FUNCTIONS, ast.ClassDef))
        name = f"{prefix}{node.name}" if named else prefix
        if isinstance(node, FUNCTIONS):
            yield name, node
        yield from functions(node, f"{name}." if named else prefix)


def nesting(node: ast.AST) -> int:
    """Deepest stack of blocks below a node; a function inside starts again at 0."""
    deepest = 0
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, FUNCTIONS):
                continue
            is_elif = field == "orelse" and isinstance(node, ast.If) and isinstance(child, ast.If) and len(value) == 1
            deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def measure(path: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """Return (code lines of the file, {function: (code lines, nesting)})."""
    source = path.read_text(encoding="utf-8")
    lines = code_lines(source)
    sizes = {
        name: (len(lines & set(range(node.lineno, node.end_lineno + 1))), nesting(node))
        for name, node in functions(ast.parse(source))
    }
    return len(lines), sizes


def excesses(name: str, total: int, sizes: dict[str, tuple[int, int]]) -> list[str]:
    """A line for each budget that a file exceeds."""
    messages = [f"{name} has {total} lines of code; expected at most {FILE_LINES}"] if total > FILE_LINES else []
    for function, (lines, depth) in sizes.items():
        limit = TRAIN_LINES if function == "train" else FUNCTION_LINES
        if lines > limit:
            messages.append(f"{name}: {function} has {lines} lines of code; expected at most {limit}")
        if depth > NESTING:
            messages.append(f"{name}: {function} nests {depth} deep; expected at most {NESTING}")
    return messages


def budgeted_files(root: Path) -> list[Path]:
    """Every Python file that has a budget."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--verbose", action="store_true", help="print the figures of every file")
    args = parser.parse_args()
    messages, lengths = [], []
    for path in budgeted_files(ROOT):
        name = str(path.relative_to(ROOT))
        total, sizes = measure(path)
        messages += excesses(name, total, sizes)
        lengths += [lines for lines, _ in sizes.values()] if name.startswith("src") else []
        if args.verbose:
            longest, depth = (max([figures[i] for figures in sizes.values()] or [0]) for i in (0, 1))
            print(f"{name}: {total} lines of code, {len(sizes)} functions, longest {longest}, nesting {depth}")
    median = statistics.median(lengths)
    if median >= MEDIAN:
        messages.append(f"src: the median function has {median:g} lines of code; expected fewer than {MEDIAN}")
    fine = f"{len(budgeted_files(ROOT))} files within their budgets; median function {median:g} lines"
    print("\n".join(messages) or fine)
    return int(bool(messages))


if __name__ == "__main__":
    sys.exit(main())
