"""A user's Python script or notebook: read from its source, or run in a process of its own."""

import ast
import contextlib
import itertools
import json
import operator
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from parts.foundation.messages import UserError

CHANGING = {"append", "extend", "insert", "pop", "remove", "setdefault", "update"}  # methods
QUIET = {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ARITHMETIC = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv}


@dataclass(frozen=True)
class Argument:
    """An argument of a call as it stands in the file: `name=value`, or an item of a dictionary that is spread."""

    name: str
    value: ast.expr
    start: int
    end: int
    quoted: bool = False  # an item "name": value


def without_magics(cell: str) -> str:
    """A cell of a notebook as Python of the same length: lines of its shell and its magics do nothing."""
    lines, goes_on = cell.split("\n"), False
    whole = bool(re.match(r"\s*%%(bash|sh|html|writefile|script|javascript|markdown)", cell))
    for number, line in enumerate(lines):
        indent = re.match(r"\s*(?=[%!])", line)
        if whole or indent or goes_on:
            goes_on = line.endswith("\\")
            indent = indent[0] if indent else ""
            lines[number] = (indent + "0#" + line[len(indent) + 2 :])[: len(line)]
    return "\n".join(lines)


class PythonSource:
    """The calls of a file and what their arguments are; nothing of it is run.

    A name that is bound twice, or changed after it was bound, is no constant.

    Raises:
        UserError: the text is no Python, or no notebook.
    """

    def __init__(self, name: str, text: str):
        self.name, self.raw, self.notebook = name, text, None
        self.text, shown = text, text
        if name.endswith(".ipynb"):
            try:
                self.notebook = json.loads(text)
                self.cells = [c for c in self.notebook["cells"] if c["cell_type"] == "code"]
            except (ValueError, LookupError, TypeError) as error:
                got = f"got {name}, which is no notebook ({error})"
                raise UserError(f"{got}; expected one; try it in Jupyter") from None
            sources = ["".join(cell["source"]) for cell in self.cells]
            self.text, shown = "\n".join(sources), "\n".join(map(without_magics, sources))
            self.starts = [*itertools.accumulate((len(s) + 1 for s in sources), initial=0)]
        self._lines = self.text.split("\n")
        self._offsets = [*itertools.accumulate((len(line) + 1 for line in self._lines), initial=0)]
        self.runnable = shown
        try:
            self.tree = ast.parse(shown)
        except (SyntaxError, ValueError) as error:
            where = self.place(self._offsets[(getattr(error, "lineno", None) or 1) - 1])
            got = f"{name}, {where}: got {error.args[0]}"
            raise UserError(f"{got}; expected Python; try python -m py_compile first") from None
        self.nodes = [*ast.walk(self.tree)]

    def span(self, node) -> tuple[int, int]:
        """(Start, end) of a node in the text; ast gives a line from 1 and a column in bytes."""
        places = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        start, end = (
            self._offsets[line - 1] + len(self._lines[line - 1].encode()[:column].decode(errors="ignore"))
            for line, column in places
        )
        return start, end

    def start(self, node) -> int:
        return self.span(node)[0]

    def code(self, node) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def place(self, offset: int) -> str:
        """`line 3`, or `cell 2, line 3`."""
        start, prefix = 0, ""
        if self.notebook:
            number = max(i for i, start in enumerate(self.starts[:-1] or [0]) if start <= offset)
            start, prefix = self.starts[number], f"cell {number + 1}, "
        return f"{prefix}line {self.text.count(chr(10), start, offset) + 1}"

    @cached_property
    def imports(self) -> dict[str, tuple[str, str, ast.AST]]:
        """Name in the file -> (module, name there, statement)."""
        names = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                names |= {x.asname or x.name: (node.module or "", x.name, node) for x in node.names}
            elif isinstance(node, ast.Import):
                names |= {(x.asname or x.name).partition(".")[0]: (x.name, "", node) for x in node.names}
        return names

    def name_of(self, call: ast.expr) -> str:
        """The name of what is called, as its module calls it."""
        function = call.func if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Attribute):
            return function.attr
        name = getattr(function, "id", "")
        return self.imports.get(name, ("", name))[1] or name

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        calls = {}
        for node in self.nodes:
            if isinstance(node, ast.Call):
                calls.setdefault(self.name_of(node), []).append(node)
        return calls

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return {node.name: node for node in self.nodes if isinstance(node, kinds)}

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """Name -> all that is assigned to it."""
        values = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
        return values

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names that are bound once, and not changed by an item, an attribute or a method."""
        bound = [name for node in self.nodes for name in names_bound_by(node)]
        return {name: values[0] for name, values in self.assigned.items() if bound.count(name) == 1}

    def around(self, node: ast.AST, kinds: type) -> ast.AST | None:
        """The innermost node of some kinds around a node."""
        start, end = self.span(node)
        spans = [(self.span(n), n) for n in self.nodes if isinstance(n, kinds) and n is not node]
        return max(((s, n) for (s, e), n in spans if s <= start and end <= e), key=lambda x: x[0], default=(0, None))[1]

    def names_of(self, call: ast.Call) -> set[str]:
        """The names of the object that a call makes."""
        return {name for name, values in self.assigned.items() if call in values}

    def attributes(self, call: ast.Call) -> dict[str, ast.Assign]:
        """Assignments `config.name = value` to the object that a call makes."""
        names = self.names_of(call)
        return {
            target.attr: node
            for node in self.nodes
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute)
            if isinstance(target.value, ast.Name) and target.value.id in names
        }

    def hidden_changes(self, call: ast.Call) -> list[ast.Call]:
        """Calls `setattr(config, …)` and `vars(config).update(…)` on the object that a call makes."""
        names = self.names_of(call)
        objects = [(change, change.args[0]) for change in self.calls.get("setattr", []) if change.args]
        objects += [(change, change.func) for change in self.calls.get("update", [])]
        return [c for c, node in objects if any(getattr(n, "id", "") in names for n in ast.walk(node))]

    def resolved(self, node):
        """An expression, or that which the name of a constant stands for."""
        for _ in range(4):
            if isinstance(node, ast.Name) and node.id in self.constants:
                node = self.constants[node.id]
        return node

    def value(self, node):
        """The literal of an expression or of sums and products of constants; ValueError for another thing."""
        node = self.resolved(node)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, int | float) and isinstance(right, int | float) and right:
                return ARITHMETIC[type(node.op)](left, right)
        return ast.literal_eval(node)

    def arguments(self, call: ast.Call) -> tuple[dict[str, Argument], list[ast.expr]]:
        """(Arguments by keyword, those of a dictionary `**name` of this file too; what is spread and not seen)."""
        arguments, unseen = {}, []
        for keyword in call.keywords:
            if keyword.arg:
                arguments[keyword.arg] = Argument(keyword.arg, keyword.value, *self.span(keyword))
            else:
                inside, hidden = self.items(keyword.value)
                arguments, unseen = arguments | inside, unseen + hidden
        return arguments, unseen

    def argument(self, call: ast.Call, name: str, places: tuple[str, ...] = ()) -> ast.expr | None:
        """What a call gives for a parameter, by keyword or by its place."""
        given = self.arguments(call)[0]
        return given[name].value if name in given else dict(zip(places, call.args, strict=False)).get(name)

    def items(self, node: ast.expr) -> tuple[dict[str, Argument], list[ast.expr]]:
        """(Items of a dictionary: literal, dict(…), merged with | or **; what of it is not seen)."""
        spread = self.resolved(node)
        if isinstance(spread, ast.Call) and self.name_of(spread) == "dict" and not spread.args:
            return self.arguments(spread)
        if isinstance(spread, ast.BinOp) and isinstance(spread.op, ast.BitOr):
            parts = [(None, spread.left), (None, spread.right)]
        elif isinstance(spread, ast.Dict) and all(key is None or isinstance(key, ast.Constant) for key in spread.keys):
            parts = [*zip(spread.keys, spread.values, strict=True)]
        else:
            return {}, [node]
        items, unseen = {}, []
        for key, value in parts:
            if key is None:
                inside, hidden = self.items(value)
                items, unseen = items | inside, unseen + hidden
            else:
                name = str(key.value)
                items[name] = Argument(name, value, self.start(key), self.span(value)[1], quoted=True)
        return items, unseen


def names_bound_by(node: ast.AST) -> list[str]:
    """The names that a node binds, or changes by an attribute, an item or a method."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    place = node
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CHANGING:
        place = node.func
    elif not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
        return []
    while isinstance(place, ast.Attribute | ast.Subscript):
        place = place.value
    return [place.id] if isinstance(place, ast.Name) else []


def run_as_main(file: str) -> int:
    """Run a script as Python would, in this process; 1 where it raises a UserError, which is printed."""
    sys.argv = [file]
    sys.path.insert(0, str(Path(file).parent))
    try:
        runpy.run_path(file, run_name="__main__")
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def script_end(command: list[str], folder: Path, seconds: float, **environment: str) -> str:
    """Run a command in a folder, with all that it starts; returns why it failed, or "" where it did not."""
    with tempfile.TemporaryFile("w+") as said:
        env = os.environ | QUIET | environment
        options = {"cwd": folder, "env": env, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen(command, stdout=said, stderr=said, **options) as process:
            try:
                process.wait(seconds)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return f"it takes more than {seconds} s"
        said.seek(0)
        lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    return lines[-1] if lines and process.returncode else ""
