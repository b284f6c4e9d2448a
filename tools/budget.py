#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Hold scripts to a size that is still read from top to bottom: code lines a file and a function, and nesting.

A code line holds code: blank lines, comments and docstrings are free, so explaining never costs. Nesting counts the
blocks (if, for, while, with, try, match) around a statement inside its function; `elif` does not add one.

Deliberately left out: tests and benchmarks, which nobody copies and adapts.

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
FOLDERS = ("scripts", "examples", "templates", "assets", "tools")
FILE_LINES, FUNCTION_LINES, NESTING = 700, 60, 4

# (file, function or "" for the whole file): (code lines, reason)
EXCEPTIONS = {
    ("scripts/ppo_train.py", ""): (
        1890,
        "a full trainer in one file that is copied whole: 20 algorithms, two rollout engines, LoRA, exact resume",
    ),
    ("scripts/create_reward_template.py", ""): (
        1060,
        "six rewards and two ports as the text that is written, 600 lines of it",
    ),
    ("scripts/sandbox.py", ""): (
        1510,
        "fork server, judge, seven layers of the kernel, six forms of tests and a remote service, for one file to copy",
    ),
    ("scripts/data_loader.py", ""): (
        1900,
        "a dozen formats read and three written, each bad row named by file, line and field; a command and a library",
    ),
    ("scripts/grpo_train.py", ""): (
        1510,
        "every setting of TRL checked before a model loads, stages, profiles, exact resume; 260 lines are shared",
    ),
    ("scripts/evaluation.py", ""): (
        1720,
        "seven tasks, three engines, paired statistics, resume and report in one file; 400 lines are the trainers' own",
    ),
    ("scripts/diagnose.py", ""): (
        1180,
        "nearly half is tables: metric names of three logs, settings of four trainers, cause, remedy and source",
    ),
    ("scripts/reward_preflight.py", ""): (980, "it reads data and rewards by the trainers' own bodies, 150 lines"),
    ("scripts/on_policy_distillation.py", ""): (
        1910,
        "a full trainer in one file, half of it ppo_train's bodies; six objectives, local and server teachers",
    ),
    ("scripts/on_policy_distillation.py", "train"): (100, "the one readable loop of the run, its phases in order"),
    ("scripts/verl_train.py", ""): (
        2080,
        "tables of what verl calls each setting, refuses or ignores; a job folder, checks, five ways to start",
    ),
    ("scripts/ppo_train.py", "train"): (120, "the one readable loop of the run, its phases in order"),
}

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
    """What is above its budget in one file, one line each."""
    found = []
    for function, (lines, depth) in {"": (total, 0), **sizes}.items():
        limit = FUNCTION_LINES if function else FILE_LINES
        limit = EXCEPTIONS.get((name, function), (limit,))[0]
        where = f"{name}: {function}" if function else name
        if lines > limit:
            found.append(f"{where} has {lines} lines of code; expected at most {limit}")
        if depth > NESTING:
            found.append(f"{where} nests {depth} deep; expected at most {NESTING}")
    return found


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
    found = []
    for path in budgeted_files(ROOT):
        name = str(path.relative_to(ROOT))
        total, sizes = measure(path)
        found += excesses(name, total, sizes)
        if args.verbose:
            lengths = [lines for lines, _ in sizes.values()] or [0]
            longest, depth = max(lengths), max([depth for _, depth in sizes.values()] or [0])
            median = statistics.median(lengths)
            print(f"{name}: {total} lines of code; functions: median {median:g}, longest {longest}, nesting {depth}")
    print("\n".join(found) or f"{len(budgeted_files(ROOT))} files within their budgets")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
