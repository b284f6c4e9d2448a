"""A Python script or notebook: its calls, its constants, and the places of their arguments; nothing of it is run."""

import ast
import itertools
import json
import re
from dataclasses import dataclass
from functools import cached_property

from parts.foundation.messages import UserError
from parts.foundation.user_scripts import names_bound_by
from programs.migrate.edits import Edit, edited

MAGIC = re.compile(r"(\s*)[%!](.*)")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Argument:
    """An argument of a call as it stands in the file: `name=value`, or an item of a dictionary that is spread."""

    name: str
    value: ast.expr
    start: int  # of the name, or of the value where it has none
    name_end: int
    end: int
    quoted: bool = False  # an item "name": value


def without_magics(cell: str) -> str:
    """A cell of a notebook as Python of the same length: lines of its shell and its magics do nothing."""
    lines, goes_on = cell.split("\n"), False
    whole = bool(re.match(r"\s*%%(bash|sh|html|writefile|script|javascript|markdown)", cell))
    for number, line in enumerate(lines):
        match = MAGIC.fullmatch(line)
        if whole or match or goes_on:
            goes_on = line.endswith("\\")
            indent = match[1] if match else ""
            lines[number] = (indent + "0#" + line[len(indent) + 2 :])[: len(line)]
    return "\n".join(lines)


class PythonSource:
    """The calls of a file and what their arguments are; a name that is bound twice is no constant."""

    def __init__(self, name: str, text: str):
        self.name, self.raw, self.notebook = name, text, None
        self.text, shown = text, text
        if name.endswith(".ipynb"):
            try:
                self.notebook = json.loads(text)
                self.cells = [c for c in self.notebook["cells"] if c["cell_type"] == "code"]
            except (ValueError, LookupError, TypeError) as error:
                raise UserError(
                    f"got {name}, which is no notebook ({error}); expected one; try it in Jupyter"
                ) from None
            sources = ["".join(cell["source"]) for cell in self.cells]
            self.text, shown = "\n".join(sources), "\n".join(map(without_magics, sources))
            self.starts = [*itertools.accumulate((len(s) + 1 for s in sources), initial=0)]
        try:
            self.tree = ast.parse(shown)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            where = f"{name}, {self.place(self.offset(line, 0))}"
            raise UserError(f"{where}: got {error.args[0]}; expected Python; try python -m py_compile first") from None

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def _offsets(self) -> list[int]:
        return [*itertools.accumulate((len(line) + 1 for line in self._lines), initial=0)]

    def offset(self, line: int, column: int) -> int:
        """The place in the text of what ast gives: a line from 1, and a column in bytes."""
        return self._offsets[line - 1] + len(self._lines[line - 1].encode()[:column].decode(errors="ignore"))

    def span(self, node) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

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

    def edited(self, edits: list[Edit]) -> str:
        """The file with the edits; a notebook without the outputs of the cells that changed."""
        if not self.notebook:
            return edited(self.text, edits)
        for cell, start, end in zip(self.cells, self.starts, self.starts[1:], strict=False):
            inside = [Edit(e.start - start, e.end - start, e.text) for e in edits if start <= e.start < end]
            if inside:
                cell["source"] = edited(self.text[start : end - 1], inside).splitlines(keepends=True)
                cell["outputs"], cell["execution_count"] = [], None
        indent = re.match(r"\{\s*\n( *)", self.raw)
        ending = "\n" if self.raw.endswith("\n") else ""
        return json.dumps(self.notebook, ensure_ascii=False, indent=len(indent[1]) if indent else None) + ending

    @cached_property
    def imports(self) -> dict[str, tuple[str, str, ast.AST]]:
        """Name in the file -> (module, name there, statement)."""
        names = {}
        for node in ast.walk(self.tree):
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
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                calls.setdefault(self.name_of(node), []).append(node)
        return calls

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, kinds)}

    def fields(self, name: str) -> dict[str, ast.expr]:
        """Defaults of the fields that a class of the file declares, as of a dataclass."""
        values = {}
        for item in getattr(self.definitions.get(name), "body", []):
            if isinstance(item, ast.AnnAssign) and item.value and isinstance(item.target, ast.Name):
                made = isinstance(item.value, ast.Call) and self.name_of(item.value) == "field"
                default = [k.value for k in item.value.keywords if k.arg == "default"] if made else [item.value]
                values[item.target.id] = (default or [item.value])[0]
        return values

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names that are bound once, and not changed by an item, an attribute or a method."""
        values, bound = {}, []
        for node in ast.walk(self.tree):
            bound += names_bound_by(node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name):
                    values[target.id] = node.value
        return {name: value for name, value in values.items() if bound.count(name) == 1}

    def is_global(self, node: ast.expr) -> bool:
        """Whether all names of an expression are the module's."""
        local = [n for f in ast.walk(self.tree) if isinstance(f, FUNCTIONS) for n in ast.walk(f)]
        inside = {name for n in local for name in names_bound_by(n)}
        return not any(isinstance(n, ast.Name) and n.id in inside for n in ast.walk(node))

    def statement_of(self, node: ast.expr) -> ast.stmt:
        """The innermost statement around an expression."""
        start, _ = self.span(node)
        around = [
            n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and self.span(n)[0] <= start < self.span(n)[1]
        ]
        return max(around, key=lambda n: self.span(n)[0])

    def function_of(self, node: ast.expr) -> ast.AST | None:
        """The innermost function around an expression."""
        start, _ = self.span(node)
        functions = [f for f in ast.walk(self.tree) if isinstance(f, FUNCTIONS)]
        around = [f for f in functions if self.span(f)[0] <= start < self.span(f)[1]]
        return max(around, key=lambda f: self.span(f)[0], default=None)

    def attributes(self, call: ast.Call) -> dict[str, ast.Assign]:
        """Assignments `config.name = value` to the object that a call makes."""
        names = {name for name in self.assigned_names if call in self.bound_to(name)}
        return {
            target.attr: node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute)
            if isinstance(target.value, ast.Name) and target.value.id in names
        }

    @cached_property
    def assigned_names(self) -> dict[str, list[ast.expr]]:
        values = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
        return values

    def bound_to(self, name: str) -> list[ast.expr]:
        """All that is assigned to a name."""
        return self.assigned_names.get(name, [])

    def hidden_changes(self, call: ast.Call) -> list[ast.Call]:
        """Calls `setattr(config, …)` and `vars(config).update(…)` on the object that a call makes."""
        names = {name for name in self.assigned_names if call in self.bound_to(name)}
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
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Sub | ast.FloorDiv):
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, int | float) and isinstance(right, int | float):
                operations = {ast.Mult: left * right, ast.Add: left + right, ast.Sub: left - right}
                return operations[type(node.op)] if type(node.op) in operations else left // right
        return ast.literal_eval(node)

    def arguments(self, call: ast.Call) -> tuple[dict[str, Argument], list[ast.expr]]:
        """(Arguments by keyword, those of a dictionary `**name` of this file too; what is spread and not seen)."""
        arguments, unseen = {}, []
        for keyword in call.keywords:
            start, end = self.span(keyword)
            if keyword.arg:
                arguments[keyword.arg] = Argument(keyword.arg, keyword.value, start, start + len(keyword.arg), end)
            else:
                inside, hidden = self.items(keyword.value)
                arguments, unseen = arguments | inside, unseen + hidden
        return arguments, unseen

    def items(self, node: ast.expr) -> tuple[dict[str, Argument], list[ast.expr]]:
        """(Items of a dictionary: literal, dict(…), merged with | or **; what of it is not seen)."""
        spread = self.resolved(node)
        if isinstance(spread, ast.Call) and self.name_of(spread) == "dict" and not spread.args:
            return self.arguments(spread)
        parts = [(None, spread.left), (None, spread.right)] if is_merge(spread) else []
        if isinstance(spread, ast.Dict) and all(key is None or isinstance(key, ast.Constant) for key in spread.keys):
            parts = [*zip(spread.keys, spread.values, strict=True)]
        elif not parts:
            return {}, [node]
        items, unseen = {}, []
        for key, value in parts:
            if key is None:
                inside, hidden = self.items(value)
                items, unseen = items | inside, unseen + hidden
            else:
                (first, name_end), (_, last) = self.span(key), self.span(value)
                items[str(key.value)] = Argument(str(key.value), value, first, name_end, last, quoted=True)
        return items, unseen

    def removal(self, argument: Argument) -> tuple[int, int]:
        """What to cut with an argument: its comma, and its line where it stands alone on it."""
        start, end = argument.start, argument.end
        after = re.compile(r"\s*,").match(self.text, end)
        if not after:  # the last one: the comma before it goes
            before = re.search(r",\s*$", self.text[:start])
            return (before.start(), end) if before else (start, end)
        end = after.end()
        line = self.text.rfind("\n", 0, start) + 1
        rest = re.compile(r"[ \t]*(#[^\n]*)?\n").match(self.text, end)
        if not self.text[line:start].strip() and rest:
            return line, rest.end()
        return start, re.compile(r"[ \t]*").match(self.text, end).end()

    def additions(self, call: ast.Call, items: list) -> list[Edit]:
        """Edits that put (text, row) behind the last argument of a call, in the form of its arguments."""
        _, end = self.span(call)
        given = [*call.args, *call.keywords]
        if not given:
            texts = [text for text, _ in items]
            return [Edit(end - 1, end - 1, ", " * bool(i) + t, items[i][1]) for i, t in enumerate(texts)]
        start, last = self.span(max(given, key=lambda x: self.span(x)[1]))
        line = self.text.rfind("\n", 0, start) + 1
        is_alone = not self.text[line:start].replace("*", "").strip()
        indent = re.match(r"[ \t]*", self.text[line:])[0]
        length = end - line + sum(len(text) + 2 for text, _ in items)
        before = (
            f"\n{indent}"
            if is_alone
            else f"\n{indent}    "
            if length > 120 and self.text[line:end].count("\n") == 0
            else " "
        )
        comma = re.compile(r"\s*,").match(self.text, last)
        behind = comma.end() if comma else last
        comment = re.compile(r"[ \t]*#[^\n]*").match(self.text, behind)
        place = comment.end() if comment else behind
        edits = [Edit(place, place, f"{before}{text},", row) for text, row in items]
        if not comma:  # the last one had none: it gets one, and the new last one none
            edits = [
                Edit(place, place, f"{before}{text}" + "," * (i < len(items) - 1), r)
                for i, (text, r) in enumerate(items)
            ]
            edits.insert(0, Edit(last, last, ","))
        return edits


def is_merge(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def runnable(name: str, text: str) -> str:
    """A file as Python: the code cells of a notebook without its magics."""
    if not name.endswith(".ipynb"):
        return text
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    return "\n".join(without_magics("".join(cell["source"])) for cell in cells)
