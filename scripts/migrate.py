#!/usr/bin/env python3
# Built from src/programs/migrate/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyyaml", "torch>=2.6", "transformers>=5.23,<6", "datasets", "pyarrow", "trl==1.16.0",  # all but pyyaml for --check
# ]
# ///
"""Make an old TRL script or verl job do the same run on today's packages.

The new file is the old one with edited lines; only --check runs it. The table has a row for each of these lines: its
text, the version that changed it, why, and what today's package would do without the edit. Defaults that changed are
written out, so that objective, sampling, batch, prompts and schedule stay; a class in the script does what no setting
does. What has no equivalent today comes first. Without --from, the version comes from a pin, or from the names that the
file uses.

Deliberately left out: main modules of verl's recipes, which are named but not changed; values that bash computes.

    python scripts/migrate.py train.py --from trl==0.14 --out new.py            # a script, or a notebook
    python scripts/migrate.py train.py --from trl==0.14 --check --data rows.jsonl  # one step of it, on the CPU
    python scripts/migrate.py run.sh --from verl==0.3 --out new.sh              # a job, or its YAML
    python scripts/migrate.py grpo.yaml --from trl==0.14 --out new.yaml         # settings of TRL's command line

Exit codes: 0 the same run; 2 bad input; 3 something has no equivalent today.
"""

# Contents
#         82-87  file text      Load texts from files beside their room, such as a page's style; a built script has …
#        90-138  messages       Errors that a user can fix, each with an exit code; messages on stderr; the layout of …
#       141-145  bundle         Paths of this bundle and of its embedded model, data and rewards; loading its other …
#       148-564  user scripts   A user's Python script or notebook, read from its source
#       567-804  data files     Open data files as text: decompress, decode, refuse files without data; parse CSV and …
#       807-903  nested rows    Find rows inside other JSON: an object with a list of rows, columns instead of rows, …
#      906-1129  rows           Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1132-1229  verl keys      Keys of verl's configuration: all current ones, and what replaces those of older guides
#     1232-1436  trl names      Names in the pinned TRL: configs with their defaults, arguments of trainers, names in …
#     1439-1475  trl scripts    A script that trains with TRL: the calls of its trainers, and of the configs that …
#     1478-2089  tables         Changes between the versions of TRL and verl: tables read from their packages
#     2092-2850  edits          Edits of a text by offset, and the table row that explains each
#     2853-3141  job files      Job files: the KEY=VALUE words of a shell script, or the keys of a YAML file, with …
#     3144-3664  trl settings   A TRL run: its settings under one version, and those that make today's TRL do it, in …
#     3667-3820  trainer parts  What a trainer is made with: models loaded as transformers wants it, rewards that …
#     3823-4235  trl script     A script that trains with TRL: its trainers, their configs and their imports
#     4238-4611  verl run       Migrate a verl job to the newest version: keys, values, and defaults that changed …
#     4614-4771  trial          --check: run one step of the new script in a separate process, on four rows and two …
#     4774-5081  command        The command line: input, the version it was written for, output, messages

import argparse
import ast
import builtins
import codecs
import contextlib
import csv
import difflib
import functools
import gzip
import io
import itertools
import json
import math
import operator
import os
import re
import runpy
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import textwrap
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

# ----------------------------------------------------------------------- file text (src/parts/foundation/file_text.py)


def with_values(text: str, **values) -> str:
    """Replace `{name}` in a text by its value; `"{name}"` loses its quotes, which keep a Python template valid."""
    return re.sub(r'("?)\{(\w+)\}\1', lambda match: str(values.get(match[2], match[0])), text)


# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns without one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


class RowFlaw(UserError):
    """A row that cannot be used: its field, what it held, what was expected, and how to fix it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, in the first process of a torchrun launch only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def tell(*words, end: str = "\n") -> None:
    """Print a result on stdout; escape characters that its encoding lacks, print nothing once its reader closed it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    words = [str(word).encode(encoding, "backslashreplace").decode(encoding) for word in words]
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str], cutoff: float = 0.6) -> str:
    """'; try NAME' for the name most similar to a word; "" if none is similar."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, 1, cutoff))


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")


# ----------------------------------------------------------------- user scripts (src/parts/foundation/user_scripts.py)

MOST_NESTED = 6  # dictionaries made of each other that are followed, as the time grows exponentially
CHANGING = {"append", "extend", "insert", "pop", "remove", "setdefault", "update"}  # methods
NAMED = ast.Name | ast.Attribute
DEFS = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = DEFS | ast.Lambda
OTHER_CELL = re.compile(r"\s*%%(bash|sh|html|writefile|file|script|javascript|js|markdown|latex|svg|sql|R)\b", re.I)
MAGIC = re.compile(r"\s*(?:[\w,. ]+=\s*)?(?=[%!])|\s*(?=\?|[\w.]+\?)")  # of a line of a notebook, before its sign
ARITHMETIC = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv}


@dataclass(frozen=True)
class Argument:
    """A setting as the file writes it: an argument of a call, an item of a spread dictionary, or a statement."""

    name: str
    value: ast.expr
    start: int
    end: int
    form: str = "{name}={text}"  # how the file writes it
    is_statement: bool = False
    is_sure: bool = True  # no `if` or loop around the statement


def without_magics(cell: str) -> str:
    """A cell of a notebook as Python of the same length: lines that only its shell, magics and help know do nothing."""
    lines = cell.split("\n")
    if OTHER_CELL.match(cell):
        return "\n".join(("0#" + line[2:])[: len(line)] for line in lines)
    try:
        ast.parse(cell)
    except SyntaxError as error:
        number = min(error.lineno or 1, len(lines)) - 1
        if magic := MAGIC.match(lines[number]):
            goes_on, before = True, magic[0]
            while goes_on and number < len(lines):
                line = lines[number]
                lines[number] = (before + "0#" + line[len(before) + 2 :])[: len(line)]
                goes_on, before, number = line.endswith("\\"), re.match(r"\s*", before)[0], number + 1
            return without_magics("\n".join(lines))
    return cell


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
                got = f"got {name}, which is not a notebook ({error})"
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
            expected = f"expected Python {sys.version_info[0]}.{sys.version_info[1]}"
            raise UserError(f"{got}; {expected}; try python -m py_compile first") from None
        self.nodes = [*ast.walk(self.tree)]
        self.reading: list[ast.expr] = []  # dictionaries whose items are being looked for

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

    def place(self, at: int | ast.AST) -> str:
        """`line 3`, or `cell 2, line 3`, of an offset or a node."""
        start, prefix, offset = 0, "", at if isinstance(at, int) else self.start(at)
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
                module = node.module or ""
                names |= {x.asname or x.name.replace("*", f"{module}.*"): (module, x.name, node) for x in node.names}
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
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def changed(self) -> list[tuple[ast.AST, str]]:
        """(What changes an object by an item, an attribute or a method; the name that stands first in it)."""
        places = [target for target, _ in self.stores] + [x.func for name in CHANGING for x in self.calls.get(name, [])]
        return [(x, re.match(r"\w*", self.code(x))[0]) for x in places]

    def binder(self, name: str, place: ast.AST) -> ast.AST | None:
        """The statement, loop or function that binds a name where it is read; None if there is none."""
        inner = place
        while here := self.parents.get(inner):
            body = next((x for _, x in ast.iter_fields(here) if isinstance(x, list) and inner in x), [inner])
            for statement in reversed(body[: body.index(inner)]):
                if name in bindings(statement):
                    return statement
            if isinstance(here, ast.For | ast.While) and name in bindings(here):
                return here
            if isinstance(here, FUNCTIONS) and inner is not here.args:
                if any(name in bindings(x) for x in ast.iter_child_nodes(here)):
                    return here
            inner = here
        return None

    def rebound(self, node: ast.expr, old: ast.AST, new: ast.AST) -> list[str]:
        """Names in an expression that may stand for something else, or nothing, at a new place than at the old one."""
        first, last = sorted(x.lineno for x in (old, new))
        others = {name for x, name in self.changed if first < x.lineno < last}
        if not self.around(new, FUNCTIONS):  # what the module binds may not be there yet
            others |= {n for n in bindings(self.tree) if not self.binder(n, new)}

        def meaning(name: str, place: ast.AST) -> ast.AST | None:
            return self.origin(self.bound(name, place)) or self.binder(name, place)

        names = sorted({x.id for x in ast.walk(node) if isinstance(x, ast.Name)})
        return [n for n in names if n in others or meaning(n, old) is not meaning(n, new)]

    def bound(self, name: str, place: ast.AST) -> ast.expr | None:
        """The value of a name where it is read; None if it depends on what runs before."""
        binder = self.binder(name, place)
        if binder is None:
            return self.constants.get(name)
        if isinstance(binder, FUNCTIONS) and name in bindings(binder.args):
            return self.passed(binder, name)
        return assigned_to(binder, name)

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names of the module that one assignment binds."""
        times = Counter(bindings(self.tree))
        outside = [x for x in self.nodes if isinstance(x, ast.Assign | ast.AnnAssign) and not self.around(x, FUNCTIONS)]
        pairs = [(name, assigned_to(x, name)) for x in outside for name in bindings(x)]
        return {name: value for name, value in pairs if value is not None and times[name] == 1}

    def bases(self, definition: ast.AST | None) -> list[str]:
        return [self.name_of(base) for base in getattr(definition, "bases", [])]

    def derived(self, base: str) -> list[str]:
        """A class's name and those of the classes of this file that are derived from it, also at second hand."""
        names = [base]
        for name, definition in self.definitions.items():
            names += [name] if name not in names and {*names} & {*self.bases(definition)} else []
        return names

    def fields(self, base: str) -> list[Argument]:
        """Fields of the classes of this file that are derived from one and used; flags may win over them."""
        used = {x.id for x in self.nodes if isinstance(x, ast.Name)}
        owners = [x for name, x in self.definitions.items() if base in self.bases(x) and name in used]
        fields = [x for owner in owners for x in owner.body if isinstance(x, ast.AnnAssign) and x.value]
        form = "{{name}}: {} = {{text}}"
        return [
            Argument(self.code(x.target), x.value, *self.span(x), form.format(self.code(x.annotation)), True, False)
            for x in fields
            if "{" not in self.code(x.annotation)
        ]

    def own(self, call: ast.Call) -> bool:
        """Whether a call names a function of this file, or a method of self."""
        owner = getattr(call.func, "value", None)
        return isinstance(call.func, ast.Name) or (isinstance(owner, ast.Name) and owner.id == "self")

    def passed(self, function: ast.AST, name: str) -> ast.expr | None:
        """The value of a parameter in the only call of a function of this file, or its default."""
        is_init = getattr(function, "name", "") == "__init__"
        maker = getattr(self.parents[function] if is_init else function, "name", "")
        calls = [call for call in self.calls.get(maker, []) if self.own(call)]
        if len(calls) != 1 or any(isinstance(x, ast.Starred) for x in calls[0].args):
            return None
        defaults, only = defaults_of(function.args), len(function.args.kwonlyargs)
        names = [*defaults][: len(defaults) - only]
        given = dict(zip(names[names[:1] == ["self"] :], calls[0].args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in calls[0].keywords}
        return given.get(name) or (None if None in given else defaults.get(name))

    def origin(self, node: ast.expr | None, whole: bool = False) -> ast.expr | None:
        """The expression that makes an object, through names, parameters, `self.name` and functions that return it.

        `whole`: not through a name whose object changes later.
        """
        for _ in range(8):
            made = node.value if isinstance(node, ast.NamedExpr) else None
            if isinstance(node, ast.Name) and not (whole and any(name == node.id for _, name in self.changed)):
                made = self.bound(node.id, node)
            elif isinstance(node, ast.Attribute) and not whole:
                targets = [x for x in self.nodes if isinstance(x, ast.Attribute) and not isinstance(x.ctx, ast.Load)]
                stored = [self.parents[x] for x in targets if ast.unparse(x) == ast.unparse(node)]
                made = getattr(stored[0], "value", None) if len(stored) == 1 else None
            elif isinstance(node, ast.Call) and self.own(node):
                maker = self.definitions.get(self.name_of(node), ast.Pass())
                returned = [x.value for x in ast.walk(maker) if isinstance(x, ast.Return) and x.value]
                made = returned[0] if len(returned) == 1 else None
            if made is None:
                return node
            node = made
        return node

    def around(self, node: ast.AST, kinds: type) -> ast.AST | None:
        while (node := self.parents.get(node)) and not isinstance(node, kinds):
            pass
        return node

    def is_object(self, node: ast.expr, made: ast.expr) -> bool:
        """Whether an expression is the object that another makes, or that a name of the same function stands for."""
        if isinstance(made, NAMED) and isinstance(node, NAMED):  # made at run time
            return self.code(node) == self.code(made) and self.around(node, DEFS) is self.around(made, DEFS)
        return self.origin(node) is made

    @cached_property
    def stores(self) -> list[tuple[ast.expr, str | None]]:
        """Attributes and items that are set or deleted, each with its name where the statement is `x.name = value`."""
        stores = []
        for node in [x for x in self.nodes if isinstance(x, ast.Attribute | ast.Subscript)]:
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node.slice, "value", None)
            is_alone = getattr(self.parents[node], "targets", None) == [node] and isinstance(node.ctx, ast.Store)
            if not isinstance(node.ctx, ast.Load):
                stores.append((node, name if is_alone and isinstance(name, str) else None))
        return stores

    def changes(self, made: ast.expr, use: ast.AST | None = None) -> list[Argument]:
        """`config.name = value`, `d["name"] = value`, `d.update(name=value)` on the object that an expression makes."""
        around = [*self.blocks(made), *(self.blocks(use) if use else [])]
        pairs = [(item, call) for call, items in self.updates(made).items() for item in items]
        arguments = [replace(item, is_sure=item.is_sure and self.is_sure(call, around)) for item, call in pairs]
        for target, name in self.stores:
            if name and self.is_object(target.value, made):
                statement, is_item = self.parents[target], isinstance(target, ast.Subscript)
                owner = self.code(target.value).replace("{", "{{").replace("}", "}}")
                form = owner + ('["{name}"] = {text}' if is_item else ".{name} = {text}")
                is_sure, place = self.is_sure(target, around), self.span(statement)
                arguments.append(Argument(name, statement.value, *place, form, is_statement=True, is_sure=is_sure))
        return sorted(arguments, key=lambda change: change.start)

    def updates(self, made: ast.expr) -> dict[ast.Call, list[Argument]]:
        """The items of each `d.update(…)` on the object that an expression makes, where all of them are seen."""
        calls = [x for x in self.calls.get("update", []) if isinstance(self.parents[x], ast.Expr)]
        calls = [x for x in calls if isinstance(x.func, ast.Attribute) and self.is_object(x.func.value, made)]
        pairs = zip(calls, map(self.items, calls), strict=True)
        return {call: items for call, (items, unseen) in pairs if not unseen}

    def is_sure(self, node: ast.AST, around: list[ast.AST]) -> bool:
        """Whether no branch or loop other than those given is around a node's statement."""
        block = self.parents[self.around(node, ast.stmt)]
        return isinstance(block, ast.Module | FUNCTIONS) or block in around

    def blocks(self, node: ast.AST) -> list[ast.AST]:
        return [node, *self.blocks(self.parents[node])] if node in self.parents else [node]

    def hidden_changes(self, made: ast.expr) -> list[ast.expr]:
        """`setattr(config, …)`, `vars(config).update(…)`, `config.x += 1`, `d[key] = …` on the object that is made."""
        objects = [(change, change.args[0]) for change in self.calls.get("setattr", []) if change.args]
        objects += [(change, change.func) for name in CHANGING for change in self.calls.get(name, [])]
        objects += [(target, target.value) for target, name in self.stores if not name]
        parts = [(change, part) for change, node in objects for part in ast.walk(node) if isinstance(part, NAMED)]
        seen, hidden = self.updates(made), dict.fromkeys(change for change, part in parts if self.is_object(part, made))
        return [change for change in hidden if change not in seen]

    def resolved(self, node):
        """What an expression stands for, where nothing changes it later."""
        return self.origin(node, whole=True)

    def value(self, node):
        """The literal of an expression or of sums and products of constants; ValueError for another thing."""
        node = self.resolved(node)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, int | float) and isinstance(right, int | float) and right:
                return ARITHMETIC[type(node.op)](left, right)
        return ast.literal_eval(node)

    def arguments(self, call: ast.Call) -> tuple[list[Argument], list[ast.expr]]:
        """(Arguments by keyword, those of a dictionary `**name` of this file too; what is spread and not seen)."""
        return self.spread(self.keywords(call))

    def keywords(self, call: ast.Call) -> list[tuple]:
        return [(keyword.arg, keyword.value, self.span(keyword)) for keyword in call.keywords]

    def spread(self, parts: list[tuple], form: str = Argument.form) -> tuple[list[Argument], list[ast.expr]]:
        """(Parts as arguments, with the items of those without a name; what is not seen)."""
        arguments, unseen = [], []
        for name, value, place in parts:
            inside, hidden = self.items(value) if name is None else ([Argument(name, value, *place, form)], [])
            arguments, unseen = arguments + inside, unseen + hidden
        return arguments, unseen

    def argument(self, call: ast.Call, name: str, places: tuple[str, ...] = ()) -> ast.expr | None:
        """What a call gives for a parameter, by keyword or by its place."""
        given = {argument.name: argument.value for argument in self.arguments(call)[0]}
        return given[name] if name in given else dict(zip(places, call.args, strict=False)).get(name)

    def items(self, node: ast.expr) -> tuple[list[Argument], list[ast.expr]]:
        """(Items of a dictionary, whatever it is made of or is set later; its unseen parts)."""
        made = self.origin(node)
        parts = self.parts(made) if made not in self.reading and len(self.reading) < MOST_NESTED else None
        if parts is None:
            return [], [node]
        self.reading.append(made)
        items, unseen = self.spread(parts, '"{name}": {text}' if isinstance(made, ast.Dict) else Argument.form)
        if isinstance(made, ast.IfExp):
            items = [replace(item, is_sure=False) for item in items]
        if node is not made:
            start, function = self.start(node), self.around(node, FUNCTIONS)
            end = self.span(function)[1] if function else len(self.text)  # what follows it may run before it is called
            changes = [x for x in self.changes(made, node) if not start <= x.start < end]
            items += [replace(x, is_sure=x.is_sure and x.start < start) for x in changes]
            unseen += self.hidden_changes(made)
        self.reading.remove(made)
        return items, unseen

    def parts(self, made: ast.expr) -> list[tuple] | None:
        """(Name, or None to spread it; value; place) of what a dictionary is made of; None if that cannot be seen."""
        name = self.name_of(made) if isinstance(made, ast.Call) else ""
        if name in ("dict", "copy", "deepcopy", "update"):
            is_method = name == "copy" and not made.args and isinstance(made.func, ast.Attribute)
            return [(None, x, ()) for x in ([made.func.value] if is_method else made.args)] + self.keywords(made)
        if isinstance(made, ast.BinOp) and isinstance(made.op, ast.BitOr):
            return [(None, made.left, ()), (None, made.right, ())]
        if isinstance(made, ast.IfExp):
            return [(None, made.body, ()), (None, made.orelse, ())]
        if isinstance(made, ast.Dict) and all(key is None or isinstance(key, ast.Constant) for key in made.keys):
            pairs = zip(made.keys, made.values, strict=True)
            return [(key and str(key.value), x, key and (self.start(key), self.span(x)[1])) for key, x in pairs]
        return None


@cache
def bindings(node: ast.AST) -> list[str]:
    """The names that a node binds, once for each binding, without those inside functions and classes."""
    names = names_bound_by(node)
    if not isinstance(node, FUNCTIONS | ast.ClassDef):
        names += [name for child in ast.iter_child_nodes(node) for name in bindings(child)]
    return names


def assigned_to(node: ast.AST, name: str) -> ast.expr | None:
    """The value of an assignment to a name alone, or of the only `(name := value)` in a statement or its condition."""
    first = getattr(node, "test", None) if hasattr(node, "body") else node
    named = [x.value for x in ast.walk(first or ast.Pass()) if isinstance(x, ast.NamedExpr) and x.target.id == name]
    if named and len(named) == bindings(node).count(name):
        return named[0]
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    is_plain = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == name
    return node.value if is_plain else None


def names_bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.ImportFrom | ast.Import):
        return [(x.asname or x.name).partition(".")[0] for x in node.names]
    return [node.name] if isinstance(node, FUNCTIONS | ast.ClassDef) and not isinstance(node, ast.Lambda) else []


def defaults_of(arguments: ast.arguments) -> dict[str, ast.expr | None]:
    """{parameter: its default, None without one} of a function, in order, without * and **."""
    names = [x.arg for x in (*arguments.posonlyargs, *arguments.args)]
    values = [*[None] * (len(names) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    return dict(zip([*names, *(x.arg for x in arguments.kwonlyargs)], values, strict=True))


# --------------------------------------------------------------------------- data files (src/parts/data/data_files.py)

HEAD_BYTES = 1 << 18  # bytes at the start of a file that identify its format
MAX_BYTES = 8 << 30  # largest unpacked size of a gzip or parquet file
EXPORT = "unpacking it, or exporting its rows as JSONL or CSV UTF-8"
# PDF, zstd, zip and Excel, old Office, Arrow, pickle, bzip2, xz, 7z, RAR; other binary files have zero bytes
BINARY = re.compile(
    rb"%PDF-|\x28\xb5\x2f\xfd|PK\x03\x04|\xd0\xcf\x11\xe0|ARROW1|\x80[\x02-\x05]|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!"
)
POINTERS = {
    rb"version https://(git-lfs|hawser)\.github\.com/spec/": ("a Git LFS pointer", "`git lfs pull` in its folder"),
    rb"[./]*(\.git|annex)/[\w./-]*objects/\S*\s*\Z": ("a git-annex pointer", "`git annex get` in its folder"),
}
PAGE = re.compile(rb"\s*<(!doctype html|html|\?xml|head|body|error)\b[^\n]*>\s*(\n|\Z)", re.IGNORECASE)
REPLY = re.compile(
    rb"\s*([1-5]\d\d:? |entry |repository |page )?(not found|forbidden|unauthorized)\s*\Z", re.IGNORECASE
)
# prompt columns: ASKS always holds prompts; WEAK does in some files and annotates the rows in others
ASKS = set("prompt question problem query instruction messages conversations conversation chosen completion".split())
WEAK = {"text", "input", "description"}
ANSWER_BELOW = re.compile(r"(?i)(q|question|user|human) ?\d*[:.].*\n\s*(a|answer|assistant|ai) ?\d*[:.]")
NUMBERING = re.compile(r"\A\s*(\d+[.:)]|[^\w\s])\t")  # of a line in a list
OTHER_ENCODING = "data_loader.py --encoding NAME, such as cp1252 or gb18030, if the whole file is in it"
OTHER_BYTES = re.compile("[\udc80-\udcff]")  # how surrogateescape decodes bytes that are invalid in the encoding
SEPARATORS = (",", ";", "\t", "|")
LONGEST_CELL = 256 << 20  # characters
# column names that do not occur as data
HEADER_NAMES = {*ASKS, *WEAK, "answer", "response", "output", "solution", "rejected", "choices", "id"}


class Unpacked(gzip.GzipFile):
    """A gzip file; UserError if it is damaged or unpacks to more than MAX_BYTES."""

    def read(self, size=-1) -> bytes:
        try:
            data = super().read(HEAD_BYTES if size < 0 else size)  # callers that want all read until it is empty
        except Exception as error:  # zlib, gzip and the system raise different types
            got = f"{self.name}: got compressed bytes that cannot be read ({error})"
            raise UserError(f"{got}; expected an intact file") from None
        got = f"{self.name}: got more than {MAX_BYTES} unpacked bytes"
        need(self.tell() <= MAX_BYTES, f"{got}; expected at most that many; try unpacking it first if you trust it")
        return data

    def close(self) -> None:
        """Close the packed file too, which gzip leaves open."""
        packed = self.fileobj
        super().close()
        if packed:
            packed.close()


def open_text(source: str, form: str | None, encoding: str | None = None) -> tuple:
    """Open a file, or stdin (`-`), as text without a byte order mark; returns (stream, form).

    The first bytes show whether it is gzip, as names are often wrong. Text is UTF-8, or UTF-16 with a byte order mark,
    unless `encoding` is given. Invalid bytes become lone surrogates (see `flaw_of_bytes`). A form of None is detected.
    UserError if the file holds no rows: an HTML page, a pickle, a Git LFS pointer.
    """
    name = "stdin" if source == "-" else source
    with contextlib.ExitStack() as opened:
        try:
            raw = io.BufferedReader(sys.stdin.buffer, HEAD_BYTES) if source == "-" else open(source, "rb", HEAD_BYTES)
            head = opened.enter_context(raw).peek(HEAD_BYTES)
        except OSError as error:
            raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
        if head[:2] == b"\x1f\x8b":
            raw = io.BufferedReader(Unpacked(name, "rb", fileobj=raw), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
        wide = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and head[2:4] != b"\0\0"
        is_given, encoding = bool(encoding), encoding or ("utf-16" if wide else "utf-8-sig")
        text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
        refuse_no_data(text.encode() if is_given or wide else head.removeprefix(codecs.BOM_UTF8), name, form)
        form = form_of_text(text, name, form)
        opened.pop_all()
    newline = "" if form in ("csv", "tsv") else "\n"
    return io.TextIOWrapper(raw, encoding, "surrogateescape", newline=newline), form


def flaw_of_bytes(text: str) -> str | None:
    """Describe the first invalid byte in a text of `open_text`; None if there is none."""
    other = OTHER_BYTES.search(text)
    return other and f"byte {ord(other[0]) - 0xDC00:#04x}, which is not UTF-8"


def form_of_text(head: str, name: str, form: str | None) -> str:
    """The form of a text: as given, or detected if it is None or `jsonl`; UserError if the text contradicts it."""
    text = head.lstrip()
    if form is None:
        form = "jsonl" if text.startswith(("{", "[")) else "txt"
    elif form in ("txt", "csv", "tsv") and holds_json(text):
        got = f"{name}: got JSON in a file that is read as {form}"
        raise UserError(f"{got}; expected text; try renaming it to end in .json")
    if form == "txt":
        lines = [line for line in text.splitlines()[:50] if line.strip() and not line.startswith("#")]
        names = re.split(r"[,;\t]", "".join(lines[:1]).strip().lower())
        is_header = len(names) > 1 and {*names} & (ASKS | WEAK) and all(map(str.isidentifier, names))
        widths = {NUMBERING.sub("", line).strip().count("\t") for line in lines} if lines[1:] else set()
        got = f"{name}: got {lines[:2]!r:.80} in a file with one prompt per line; expected prompts"
        need(not is_header, f"{got}; try renaming it to end in .csv")
        need(len(widths) != 1 or widths == {0}, f"{got}; try a first line of column names, and renaming it to .tsv")
        need(not ANSWER_BELOW.match(text), f"{got}; try JSONL with `question` and `answer`")
    return "json" if form == "jsonl" and not begins_lines(text) else form


def begins_lines(text: str) -> bool:
    """Whether a JSON text has one value per line (the first perhaps broken), rather than one array or object."""
    first, _, rest = text.partition("\n")
    if not rest.strip() or first.startswith("["):
        return bool(rest.strip()) and first.rstrip().endswith("]")
    return first.strip() != "{"


def holds_json(text: str) -> bool:
    """Whether a text's first line, or all of it, is a JSON object or array."""
    if not text.startswith(("{", "[")):
        return False
    for part in (text.partition("\n")[0], text):
        with contextlib.suppress(ValueError, RecursionError):
            return isinstance(json.loads(part), dict | list)
    return len(text) >= HEAD_BYTES  # a first line longer than that


def refuse_no_data(head: bytes, name: str, form: str | None) -> None:
    """Raise UserError if the first bytes show a kind of file that holds no rows."""
    kind, advice = None, "looking at the file, then downloading it again"
    if head.startswith(b"PAR1"):
        kind, advice = "a parquet file", "a name that ends in .parquet"
        if form == "parquet":
            return
    elif BINARY.match(head) or b"\0" in head[:1024]:
        kind = "a binary file (a workbook, PDF, archive, pickle or the like), or UTF-16 without its mark"
        advice = f"{EXPORT}, or --encoding utf-16-le"
    elif pointer := next((pair for start, pair in POINTERS.items() if re.match(start, head)), None):
        kind, advice = pointer
    elif PAGE.match(head):
        kind = "an HTML or XML page"
    elif REPLY.match(head):
        kind = f"a server's error message, {head[:80].decode('utf-8', 'replace').strip()!r}"
    need(kind is None, f"{name}: got {kind}; expected rows of data as {form or 'text'}; try {advice}")


def table_rows(text: str, name: str, delimiter: str) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from a CSV text, all cells as text; `delimiter` is the expected separator."""
    csv.field_size_limit(LONGEST_CELL)
    used = separator_of(text, delimiter, name)
    if used != delimiter:
        say(f"{name}: the columns are separated by {used!r}")
    records = first_records(text, used)
    header, *spaced = [len(cells) > 1 and all(cell[:1] == " " for cell in cells[1:]) for cells in records] or [False]
    unquoted = records != first_records(text, used, skipinitialspace=True)
    padded = header or (spaced != [] and all(spaced) and unquoted and "completion" not in records[0])
    if padded and not header:
        say(f"{name}: read without the blank that follows each {used!r} of its rows")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=used, strict=True, skipinitialspace=padded)
    try:
        header = next((cells for cells in reader if any(cells)), [])
    except csv.Error as error:
        raise UserError(f"{name}:1: got a header that is not valid CSV ({error}); expected column names") from None
    yield from body(reader, column_names(header, f"{name}:{reader.line_num}"), used)


def column_names(header: list[str], where: str) -> list[str]:
    """Column names from a header, stripped, without trailing empty ones; warns of a first row that may be data."""
    names = filled([cell.strip() for cell in header])
    flaw = flaw_of_bytes("".join(names))
    need(not flaw, f"{where}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    mark = ",".join(names)
    got = f"{where}: got Excel's mark {mark!r}"
    need(mark[:4] != "sep=", f"{got}; expected the names of columns; try deleting the line")
    check_distinct(names, where)
    text = next((cell for cell in names if len(cell) > 60 or cell[-1:] in tuple(".?!:。？！")), None)
    if text and not HEADER_NAMES & {cell.casefold() for cell in names}:
        say(f"warning: {where}: got the column name {text[:60]!r}; if it is data, put a line of column names above it")
    return names


def check_distinct(names: list[str], where: str) -> None:
    twice = [column for column, count in Counter(names).items() if count > 1]
    need(not twice, f"{where}: got the column {twice[:1]} twice; expected each name once; try renaming one")


def body(reader, names: list[str], delimiter: str) -> Iterator[tuple[int, dict | RowFlaw]]:
    while True:
        start = reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            advice = 'writing a quote inside a cell as ""'
            yield start + 1, RowFlaw("row", f"invalid CSV ({error})", "RFC 4180 quoting", advice)
            if reader.line_num == start:
                return
            continue
        if not any(cell.strip() for cell in cells):
            continue
        cells = cells[: len(names)] + filled(cells[len(names) :])
        lines = "\t".join(cells).split("\n")
        if flaw := flaw_of_bytes("".join(cells)):
            yield start + 1, RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
        elif len(cells) != len(names):
            expected = f"{len(names)} as in the header {', '.join(names)[:60]}"
            advice = f"quoting fields that hold {delimiter!r}, or a header alone in the first line"
            yield start + 1, RowFlaw("row", f"{len(cells)} fields", expected, advice)
        elif len(names) > 1 and [cell.strip("\ufeff \t") for cell in cells] == names:
            yield start + 1, RowFlaw("row", "the header again", "a row", "deleting the line, where files were joined")
        elif delimiter == "\t" and len(lines) > 1 < len(cells) and {x.count("\t") for x in lines} == {len(cells) - 1}:
            got = f"a quote that is closed in another row, {cells!r:.80}"
            yield start + 1, RowFlaw("row", got, "quotes within a row", 'a file with commas, or "" for each quote')
        else:
            yield start + 1, dict(zip(names, cells, strict=True))


def filled(cells: list[str]) -> list[str]:
    """The cells without trailing empty ones."""
    size = next((size for size in range(len(cells), 0, -1) if cells[size - 1].strip()), 0)
    return cells[:size]


def first_records(text: str, delimiter: str, **form) -> list[list[str]]:
    """The non-empty ones of the first 50 records, up to the first that is not valid CSV."""
    reader, records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, **form), []
    with contextlib.suppress(csv.Error):
        records += (cells for cells in itertools.islice(reader, 50) if any(cells))
    return records


def separator_of(text: str, delimiter: str, name: str) -> str:
    """The separator that splits the header, and preferably no row into more cells; UserError if several do."""
    parted = {}
    for separator in dict.fromkeys((delimiter, *SEPARATORS)):
        widths = [len(filled(cells)) for cells in first_records(text, separator)]
        if widths and widths[0] > 1:
            parted[separator] = max(widths) == widths[0]
    likely = [separator for separator, steady in parted.items() if steady] or [*parted] or [delimiter]
    got = f"{name}: got columns that may be separated by {' or '.join(map(repr, likely))}"
    need(delimiter in likely or len(likely) == 1, f"{got}; expected one of them; try exporting it with commas")
    return delimiter if delimiter in likely else likely[0]


# ------------------------------------------------------------------------- nested rows (src/parts/data/nested_rows.py)

ANSWERED = {"answer", "solution", "completion", "response", "output", "chosen"}
LISTS = set(
    "data rows examples samples items records instances entries tasks problems prompts dataset train test validation "
    "valid dev eval questions paragraphs qas".split()
)
CONTEXT = {"text", "context", "passage", "article", "story", "paragraphs", "document", "table", "background", "body"}
CHAT = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(role|from|content|value)\1\s*:""")
CHAT_COLUMNS = (*sorted(ASKS), "rejected", "response", "output", "text", "input", "history")


def rows_in(value: dict, name: str, known=()) -> list | None:
    """The rows inside a file's only object; None if the object is itself a row, UserError if that is unclear.

    `known` has further column names that mark a row.
    """
    if (table := rows_of_columns(value, name, known)) is not None:
        return table
    names, table = value.get("columns"), value.get("data")
    is_split = value.keys() <= {"columns", "index", "data"} and isinstance(table, list) and table
    # to_json(orient="split") of pandas
    if is_split and all(isinstance(row, list) and len(row) == len(names) for row in (names, *table)):
        return [dict(zip(map(str, names), row, strict=True)) for row in table]
    only = next(iter(value.values())) if len(value) == 1 else None
    if isinstance(only, dict) and only:
        return rows_in(only, name, known)
    lists = {key: item for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)}
    keyed = [item for item in value.values() if isinstance(item, dict) and item.keys() & {*ASKS, *known}]
    if len(keyed) == len(value) > 1 and not value.keys() & {*ASKS, *WEAK, *ANSWERED, *LISTS}:
        say(f"{name}: read the values of its one object as rows; not used: its keys, {', '.join(value)[:100]}")
        return keyed
    holders = {key: item for key, item in lists.items() if key in LISTS or is_row(item[0])}
    asks, rows = value.keys() & {*ASKS, *known}, any(is_row(holders[key][0]) for key in LISTS & holders.keys())
    if not holders or (asks and (value.keys() & {*ANSWERED, *known} or not rows)):
        return None
    key, items = next(iter(holders.items()))
    cases = {"input", "output"} <= items[0].keys() and value.keys() & WEAK  # test cases of one programming task
    if len(holders) == 1 and not asks and not cases and not value.keys() & CONTEXT:
        if unused := [other for other in value if other != key]:
            say(f"{name}: read the rows of {key!r}; not used: {', '.join(unused)[:200]}")
        if cut := sum(bool(item.get("truncated_cells")) for item in items):
            say(f"warning: {name}: the hub's viewer cut off texts in {cut} rows; try the data set's hub id instead")
        return [item["row"] if {"row_idx", "row"} <= item.keys() else item for item in items]  # the hub's viewer
    got = f"{name}: got one object that holds {' and '.join(map(repr, holders))}; it is not clear which list is meant"
    raise UserError(f"{got}; expected JSONL, or one list of objects; try a file with that list alone")


def is_row(item: dict) -> bool:
    """Whether an object has a prompt column, or one that holds questions."""
    return bool(item.keys() & {*ASKS, "questions", "paragraphs", "qas"})


def rows_of_columns(value: dict, name: str, known) -> list[dict] | None:
    """The rows of an object whose values are columns: lists, or {index: value} as pandas' to_json writes; else None."""
    asking = [value[key] for key in value.keys() & {*ASKS, *WEAK, *known}]
    if asking and all(isinstance(item, dict) and item and all(map(str.isdigit, item)) for item in value.values()):
        places = [*max(value.values(), key=len)]
        return [{key: column.get(place) for key, column in value.items()} for place in places]
    lists = len(value) > 1 and all(isinstance(item, list) for item in value.values())
    if not asking or not lists or not all(asking):
        return None
    for items in asking:  # one prompt for each row, as texts or lists of messages, not the messages of one prompt
        texts = all(isinstance(x, str) and x.strip() for x in items)
        if not texts and not all(isinstance(x, list) and x for x in items):
            return None
    sizes = {key: len(column) for key, column in value.items()}
    listed = ", ".join(f"{key}: {size}" for key, size in sizes.items())[:200]
    got = f"{name}: got columns of unequal length ({listed})"
    need(len({*sizes.values()}) == 1, f"{got}; expected one value for each row; try JSONL, one object a line")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def with_chats(row: dict) -> dict:
    """The row with chat messages parsed where a cell has their JSON text; other texts stay.

    RowFlaw if such JSON is broken, or is Python's repr.
    """
    chats = {}
    for name in CHAT_COLUMNS:
        text = row.get(name)
        start = CHAT.match(text) if isinstance(text, str) else None
        if not start or not text.rstrip().endswith(("]", "}")):
            continue
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError) as error:
            if str(error).startswith("Extra data"):
                continue  # messages followed by other text
            got = f"chat messages as Python prints them, {text[:40]!r}" if start[1] == "'" else f"broken JSON ({error})"
            advice = "json.dumps for the column, or pandas' to_json(FILE, orient='records', lines=True) for all"
            raise RowFlaw(name, got, "a list of messages, or its JSON text", advice) from None
        messages = [messages] if isinstance(messages, dict) else messages
        pairs = ({"role", "content"}, {"from", "value"})
        if all(isinstance(m, dict) and any(pair <= m.keys() for pair in pairs) for m in messages):
            chats[name] = messages
    return {**row, **chats} if chats else row


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
JSON_SPACE = re.compile(r"[ \t\n\r]*")


def unique(pairs: list[tuple]) -> dict:
    """Build a JSON object; RowFlaw for a duplicate key, of which Python would keep the last."""
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise RowFlaw(twice, "the key twice in one object", "each key once", "deleting one of them")
    return row


def plain_json(text: str):
    """Parse JSON text; RowFlaw if it is invalid or an object has a key twice."""
    if flaw := flaw_of_bytes(text):
        raise RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise RowFlaw("row", "nesting too deep", "fewer levels", "storing the inner part as JSON text") from None
    except ValueError as error:
        at = getattr(error, "pos", 0)
        got = f"invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        advice = ["json.dumps for each row, as this is Python's notation"] if re.match(r"\s*\[?\{\s*'", text) else []
        raise RowFlaw("row", got, "one JSON object", *advice) from None


def as_row(value) -> dict:
    """A JSON value if it is an object; RowFlaw for others, with special advice for bare messages."""
    if isinstance(value, dict):
        return value
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
    advice = ['{"messages": […]} for each row, with the answer in its own field'] if is_chat else []
    raise RowFlaw("row", f"{type(value).__name__} {value!r:.60}", "a JSON object with named fields", *advice)


def json_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from JSONL. Blank lines count but are skipped."""
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                yield number, as_row(plain_json(line))
            except RowFlaw as flaw:
                flaw.parts["row"] = line.rstrip("\r\n")
                yield number, flaw


def json_records(text: str, name: str, known) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (number, row or its flaw) from a JSON file: an array, an object that holds the rows, or several objects."""
    decoder, values, at = json.JSONDecoder(object_pairs_hook=unique), [], JSON_SPACE.match(text).end()
    flaw = flaw_of_bytes(text)
    need(not flaw, f"{name}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            at = JSON_SPACE.match(text, at).end()
    except RecursionError:
        raise UserError(f"{name}: got JSON with too many levels of nesting; expected rows; try JSONL") from None
    except RowFlaw as flaw:
        raise UserError(f"{name}: {flaw}") from None
    except ValueError as error:
        got = f"{name}: got invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        raise UserError(f"{got}; expected an array of objects; try fixing it, or JSONL") from None
    if len(values) == 1:
        inner = rows_in(values[0], name, known) if isinstance(values[0], dict) else values[0]
        values = inner if isinstance(inner, list) else values
    for number, value in enumerate(values, start=1):
        try:
            yield number, as_row(value)
        except RowFlaw as flaw:
            yield number, flaw


def parquet_records(source: str) -> Iterator[tuple[int, dict]]:
    """Yield (number, row) from a parquet file, read 1000 rows at a time."""
    import pyarrow.parquet

    try:
        with open(source, "rb") as raw:
            refuse_no_data(raw.peek(), source, "parquet")
            file = pyarrow.parquet.ParquetFile(raw)
            check_distinct(file.schema_arrow.names, source)
            size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            need(size <= MAX_BYTES, f"{source}: got {size} unpacked bytes; expected {MAX_BYTES} at most; try parts")
            yield from enumerate(map(without_nulls, arrow_rows(file.iter_batches(1000))), start=1)
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise UserError(f"{source}: got unreadable parquet ({str(error)[:200]}); expected an intact file") from None


def arrow_rows(tables: Iterable) -> Iterator[dict]:
    """Rows of Arrow tables; numbers of 32 bits as they were written, 0.1 instead of 0.10000000149011612."""
    for table in tables:
        columns = [cells.cast("string").cast("double") if cells.type == "float" else cells for cells in table.columns]
        yield from type(table).from_arrays(columns, names=table.schema.names).to_pylist()


def without_nulls(row: dict) -> dict:
    """The row without null keys in messages and tools, as Arrow adds the keys of other rows' objects."""
    lists = {name: row[name] for name in (*CHAT_COLUMNS, "tools") if isinstance(row.get(name), list)}
    turns = {"role", "from"}  # other objects may mean their nulls
    chats = [k for k, v in lists.items() if k == "tools" or all(isinstance(x, dict) and turns & x.keys() for x in v)]
    return row | {name: bare(row[name]) for name in chats}


def bare(value):
    """A value without null keys, which parquet adds for keys of other rows."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list) else value


def prompt_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from a text with one prompt per line; blank lines are skipped."""
    for number, line in enumerate(stream, start=1):
        if flaw := flaw_of_bytes(line):
            yield number, RowFlaw("prompt", flaw, "UTF-8 text", OTHER_ENCODING)
        elif line.strip():
            yield number, {"prompt": line.strip("\r\n")}


def file_records(source: str, form: str | None, encoding=None, known=()) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line or number, row or its flaw) from a file, stdin (`-`) or, if it is neither, the hub.

    Args:
        form: jsonl, json, csv, tsv, txt or parquet; None: detected from the text.
        encoding: of the text; None: detected.
        known: further column names that mark an object as a row.
    """
    name = "stdin" if source == "-" else source
    if source != "-" and not Path(source).exists():
        yield from enumerate(hub_rows(source), start=1)
        return
    if form == "parquet":
        need(source != "-", "got parquet on stdin; expected a file, as reading parquet needs random access")
        yield from parquet_records(source)
        return
    asked = form
    stream, form = open_text(source, form, encoding)
    try:
        with stream:
            if form in ("csv", "tsv"):
                yield from table_rows(stream.read(), name, "," if form == "csv" else "\t")
            elif form == "txt":
                yield from prompt_lines(stream)
            elif form == "json":
                begun = list(itertools.islice(stream, 2))  # detects JSONL whose first line exceeds the head
                if asked != "json" and begins_lines("".join(begun)):
                    yield from json_lines(itertools.chain(begun, stream))
                else:
                    yield from json_records("".join(begun) + stream.read(), name, known)
            else:
                yield from json_lines(stream)
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{name}: got bytes that cannot be read ({error}); expected an intact file") from None


def is_hub_id(source: str) -> bool:
    """Whether a name could be `owner/name` or `name` on the hub, as it is no local path."""
    name, form = re.split("[:@]", source)[0], r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b"  # as the hub's own client has it
    if Path(source).exists() or source.count("/") > 1 or re.search(r"--|\.\.", name):
        return False
    return bool(re.fullmatch(form, name, re.ASCII))


def hub_rows(source: str) -> Iterator[dict]:
    """Rows of a hub data set `owner/name[:config][@split]` (split train by default); its code is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    offline = not hub_is_reached()
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or offline
    try:
        data = datasets.load_dataset(name, subset or None, split=split or "train")
        rows = map(data.features.decode_example, arrow_rows(data.with_format("arrow").iter(1000)))
        yield from map(without_nulls, rows)
    except Exception as error:  # every layer below raises its own types
        why = "and the hub cannot be reached" if offline else "and the hub says"
        raise UserError(f"got data {source!r}: no such file, {why}: {str(error)[:300]}") from None


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client is set offline, as it would retry for minutes."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
            return True  # an HTTP error is an answer; and the hub's client may know a proxy's certificate
        hub.HF_HUB_OFFLINE = True
        return False
    return True


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV, TSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    return [row for _, row in placed_rows(source)]


def placed_rows(source: str) -> list[tuple[str, dict]]:
    """(place, row) of each row that `read_rows` reads; a place is `FILE:LINE`, or `SOURCE, row N` without lines."""
    form, is_file, placed = SUFFIXES.get(Path(source).suffix.lower()), Path(source).is_file(), []
    got = f"got data {source!r}"
    known = is_file or (is_hub_id(source) and not form)
    need(known, f"{got}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id")
    names = ", ".join(SUFFIXES)
    need(form or not is_file, f"{got}; expected a name ending in {names}; try data_loader.py for others")
    for number, row in file_records(source, form):
        place = f"{source}:{number}" if form in ("jsonl", "csv", "tsv") else f"{source}, row {number}"
        need(not isinstance(row, RowFlaw), f"{place}: {row}")
        try:
            placed.append((place, with_chats(row)))
        except RowFlaw as flaw:
            raise UserError(f"{place}: {flaw}") from None
    return placed


# ----------------------------------------------------------------------------- verl keys (src/parts/data/verl_keys.py)

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
FSDP, CORRECTION = f"{ACTOR}.fsdp_config", "algorithm.rollout_correction"
NAMES_FILE = BUNDLE / "assets" / "verl_keys.txt"

# Key, or key=value, from older guides or by a plausible guess -> (what verl 0.9.1 does with it, what to write instead).
# If the replacement is a section, the old section's keys follow below it.
IGNORED, GONE = "ignores it", "no longer has it"
TODAY = {
    f"{ACTOR}.clip_ratio": (IGNORED, f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high"),
    f"{ACTOR}.grad_clip": (IGNORED, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (IGNORED, "critic.optim.clip_grad"),
    f"{ACTOR}.use_torch_compile": (IGNORED, f"{FSDP}.use_torch_compile"),
    f"{FSDP}.dtype": (IGNORED, f"+{FSDP}.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.dtype": (IGNORED, f"+{REF}.fsdp_config.mixed_precision.param_dtype"),
    "critic.fsdp.dtype": (IGNORED, "+critic.fsdp.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.param_offload": (IGNORED, "leaving it out: the reference always waits in CPU memory"),
    "custom_reward_function": (IGNORED, "reward.custom_reward_function"),
    "reward_model.custom_reward_function": (GONE, "reward.custom_reward_function"),
    "custom_reward_function.overlong_buffer": (GONE, "+reward.reward_kwargs.overlong_buffer_cfg"),
    "reward_model.overlong_buffer": (GONE, "+reward.reward_kwargs.overlong_buffer_cfg"),
    **{f"{part}.megatron.grad_offload": (GONE, "leaving it out") for part in (ACTOR, REF, "critic")},
    f"{ACTOR}.use_token_level_loss=true": (GONE, f"{ACTOR}.loss_agg_mode=token-mean"),
    "reward_model": (IGNORED, "the section reward, whose model vLLM or SGLang serves"),
    "reward_model.reward_manager": (IGNORED, "reward.reward_manager.name"),
    "reward_model.enable": (IGNORED, "reward.reward_model.enable"),
    "reward_model.model.path": (IGNORED, "reward.reward_model.model_path"),
    "reward_model.num_workers": (IGNORED, "reward.num_workers"),
    **{
        f"reward_model.{name}": (IGNORED, f"reward.reward_model.{name}")
        for name in ("rollout", "enable_resource_pool", "n_gpus_per_node", "nnodes")
    },
    "reward_model.reward_kwargs": (GONE, "+reward.reward_kwargs"),
    "reward_model.use_reward_loop": (GONE, "leaving it out: it is always on"),
    "reward_model.launch_reward_fn_async": (GONE, "leaving it out: it is always on"),
    "sandbox_fusion": (IGNORED, "reward.sandbox_fusion"),
    "algorithm.filter_groups.max_num_gen_batches": (IGNORED, "algorithm.filter_groups.max_inflight_gen_batches"),
    f"{CORRECTION}.loss_type": (IGNORED, f"{ACTOR}.policy_loss.loss_mode"),
    f"{CORRECTION}.bypass_mode=true": (
        "leaves out the correction with it",
        "False, or trainer.use_v1=False, which corrects",
    ),
    "algorithm.policy_loss_fn": (GONE, f"{ACTOR}.policy_loss.loss_mode"),
    f"{ACTOR}.tis_imp_ratio_cap": (GONE, f"{CORRECTION}.rollout_is=token and {CORRECTION}.rollout_is_threshold"),
    "algorithm.rollout_is": (GONE, f"{CORRECTION}.rollout_is"),
    "data.chat_template": (GONE, f"{MODEL}.custom_chat_template, the template's text"),
    "data.sampler": (GONE, "data.shuffle=False, and a data set that orders its rows"),
    "data.datagen": (GONE, "a data set class of your own: data.custom_cls.path and name"),
    **dict.fromkeys(("data.return_raw_input_ids", "data.return_raw_chat"), (IGNORED, "leaving it out")),
    "data.reward_fn_key": (IGNORED, "the column data_source"),
    "data.truncation": (IGNORED, "data.filter_overlong_prompts=True"),
    f"{ROLLOUT}.multi_turn.max_turns": (GONE, f"{ROLLOUT}.multi_turn.max_assistant_turns"),
    f"{ROLLOUT}.multi_turn.interaction_config_path": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.multi_turn.enable": (IGNORED, f"{ROLLOUT}.agent.default_agent_loop=tool_agent"),
    f"{ROLLOUT}.multi_turn.completion_callback": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.skip": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.skip_rollout": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.skip_dump_dir": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.mode=sync": ("refuses it at the start", "leaving it out: all rollout is asynchronous"),
    f"{ROLLOUT}.name=hf": ("refuses it at the start", f"{ROLLOUT}.name=vllm"),
    f"{ROLLOUT}.name=sglang_async": ("refuses it at the start", f"{ROLLOUT}.name=sglang"),
    f"{ACTOR}.ppo_micro_batch_size": ("deprecates it", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{ACTOR}.optim.warmup_style": ("deprecates it", f"{ACTOR}.optim.lr_scheduler_type"),
    f"{ACTOR}.ulysses_sequence_parallel_size": ("deprecates it", f"{FSDP}.ulysses_sequence_parallel_size"),
    "critic.model.fsdp_config": (GONE, "critic.fsdp"),
    "trainer.use_legacy_worker_impl": (GONE, "leaving it out: there is one engine"),
    "trainer.remove_previous_ckpt_in_save=true": (
        GONE,
        "trainer.max_actor_ckpt_to_keep=1 and trainer.max_critic_ckpt_to_keep=1",
    ),
    "trainer.balance_batch=false": (IGNORED, "leaving it out"),
    "trainer.esi_redundant_time": (IGNORED, "leaving it out"),
    "ray_init": (GONE, "ray_kwargs.ray_init"),
}


def known_names(engine: str) -> set[str]:
    """Every key of verl's configuration with a model engine; an empty set for an engine that is not in the file."""
    names, has_engine = set(), False
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        where, section, *leaves = line.split()
        has_engine = has_engine or where == engine
        if where in ("*", engine):
            names |= {f"{section}.{leaf}".lstrip(".") for leaf in leaves}
    return names if has_engine else set()


def advice_today(key: str, value: str) -> tuple[str, str] | None:
    """(what verl does with a key, what to write instead) by its longest match in TODAY; None if it has none."""
    value = value.strip().lower()
    for entry in sorted(TODAY, key=len, reverse=True):
        name, _, only = entry.partition("=")
        if (key == name or key.startswith(f"{name}.")) and only in ("", value):
            effect, instead = TODAY[entry]
            is_section = re.fullmatch(r"\+?[\w.]+", instead)
            return effect, instead + key.removeprefix(name) if is_section else instead
    return None


# ----------------------------------------------------------------------------- trl names (src/parts/data/trl_names.py)

TRL_NAMES = """\
{"defaults":{"TrainingArguments":{"output_dir":null, "per_device_train_batch_size":8, "num_train_epochs":3.0,
"max_steps":-1, "learning_rate":5e-05, "lr_scheduler_type":"linear", "lr_scheduler_kwargs":null, "warmup_steps":0,
"optim":"adamw_torch_fused", "optim_args":null, "weight_decay":0.0, "adam_beta1":0.9, "adam_beta2":0.999,
"adam_epsilon":1e-08, "optim_target_modules":null, "gradient_accumulation_steps":1,
"average_tokens_across_devices":true, "max_grad_norm":1.0, "label_smoothing_factor":0.0, "bf16":false, "fp16":false,
"bf16_full_eval":false, "fp16_full_eval":false, "tf32":null, "activation_checkpointing":null,
"activation_checkpointing_kwargs":null, "gradient_checkpointing":null, "gradient_checkpointing_kwargs":null,
"torch_compile":false, "torch_compile_backend":null, "torch_compile_mode":null, "use_liger_kernel":false,
"liger_kernel_config":null, "use_cache":false, "neftune_noise_alpha":null, "torch_empty_cache_steps":null,
"auto_find_batch_size":false, "logging_strategy":"steps", "logging_steps":500, "logging_first_step":false,
"log_on_each_node":true, "logging_nan_inf_filter":true, "include_num_input_tokens_seen":"no", "log_level":"passive",
"log_level_replica":"warning", "disable_tqdm":null, "report_to":"none", "run_name":null, "project":"huggingface",
"trackio_space_id":null, "trackio_bucket_id":null, "trackio_static_space_id":null, "eval_strategy":"no",
"eval_steps":null, "eval_delay":0, "per_device_eval_batch_size":8, "prediction_loss_only":false, "eval_on_start":false,
"eval_do_concat_batches":true, "eval_use_gather_object":false, "eval_accumulation_steps":null, "include_for_metrics":[],
"batch_eval_metrics":false, "save_only_model":false, "save_strategy":"steps", "save_steps":500,
"save_on_each_node":false, "save_total_limit":null, "enable_jit_checkpoint":false, "push_to_hub":false,
"hub_token":null, "hub_private_repo":null, "hub_model_id":null, "hub_strategy":"every_save", "hub_always_push":false,
"hub_revision":null, "load_best_model_at_end":false, "metric_for_best_model":null, "greater_is_better":null,
"ignore_data_skip":false, "restore_callback_states_from_checkpoint":false, "full_determinism":false, "seed":42,
"data_seed":null, "use_cpu":false, "accelerator_config":null, "parallelism_config":null, "dataloader_drop_last":false,
"dataloader_num_workers":0, "dataloader_pin_memory":true, "dataloader_persistent_workers":false,
"dataloader_prefetch_factor":null, "dataloader_multiprocessing_context":null, "dataloader_in_order":true,
"remove_unused_columns":true, "label_names":null, "train_sampling_strategy":"random", "length_column_name":"length",
"ddp_find_unused_parameters":null, "ddp_bucket_cap_mb":null, "ddp_broadcast_buffers":null, "ddp_static_graph":null,
"ddp_backend":null, "ddp_timeout":1800, "fsdp":null, "fsdp_config":null, "deepspeed":null, "debug":"",
"skip_memory_metrics":true, "do_train":false, "do_eval":false, "do_predict":false, "resume_from_checkpoint":null,
"local_rank":-1}, "GRPOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"model_init_kwargs":null, "trust_remote_code":false, "router_aux_loss_coef":null, "disable_dropout":false,
"cast_lm_head_to_fp32":false, "remove_unused_columns":false, "num_generations":8, "num_generations_eval":null,
"max_completion_length":512, "ds3_gather_for_generation":true, "shuffle_dataset":true, "pad_to_multiple_of":"auto",
"generation_batch_size":null, "steps_per_generation":null, "temperature":1.0, "top_p":1.0, "top_k":0, "min_p":null,
"generation_kwargs":null, "chat_template_kwargs":null, "repetition_penalty":1.0, "cache_implementation":null,
"use_vllm":false, "vllm_mode":"colocate", "vllm_model_impl":"vllm", "vllm_enable_sleep_mode":false,
"vllm_structured_outputs_regex":null, "vllm_server_base_url":null, "vllm_server_host":"0.0.0.0",
"vllm_server_port":8000, "vllm_server_timeout":240.0, "vllm_group_port":51216, "vllm_gpu_memory_utilization":0.3,
"vllm_max_model_length":null, "vllm_tensor_parallel_size":1, "beta":0.0, "num_iterations":1, "epsilon":0.2,
"delta":null, "epsilon_high":null, "sapo_temperature_neg":1.05, "sapo_temperature_pos":1.0, "vespo_k_pos":2.0,
"vespo_lambda_pos":3.0, "vespo_k_neg":3.0, "vespo_lambda_neg":2.0, "importance_sampling_level":"token",
"reward_weights":null, "multi_objective_aggregation":"sum_then_normalize", "scale_rewards":"group", "loss_type":"dapo",
"mask_truncated_completions":false, "sync_ref_model":false, "ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512,
"top_entropy_quantile":1.0, "entropy_coef":0.0, "use_adaptive_entropy":false, "entropy_coef_min":0.0,
"entropy_coef_max":1.0, "entropy_coef_delta":0.005, "entropy_target":0.2, "max_tool_calling_iterations":null,
"vllm_importance_sampling_correction":true, "vllm_importance_sampling_mode":"sequence_mask",
"vllm_importance_sampling_clip_max":3.0, "vllm_importance_sampling_clip_min":null, "off_policy_mask_threshold":null,
"use_bias_correction_kl":true, "log_completions":false, "log_multimodal":true, "num_completions_to_print":null,
"log_unique_prompts":false, "log_completions_hub_repo":null, "use_transformers_continuous_batching":false,
"transformers_continuous_batching_config":null, "use_transformers_paged":false, "vllm_importance_sampling_cap":null},
"RLOOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"model_init_kwargs":null, "trust_remote_code":false, "router_aux_loss_coef":null, "disable_dropout":false,
"remove_unused_columns":false, "num_generations":2, "num_generations_eval":null, "max_completion_length":512,
"ds3_gather_for_generation":true, "shuffle_dataset":true, "pad_to_multiple_of":"auto", "generation_batch_size":null,
"steps_per_generation":null, "temperature":1.0, "top_p":1.0, "top_k":0, "min_p":null, "generation_kwargs":null,
"chat_template_kwargs":null, "repetition_penalty":1.0, "cache_implementation":null, "use_vllm":false,
"vllm_mode":"colocate", "vllm_model_impl":"vllm", "vllm_enable_sleep_mode":false, "vllm_structured_outputs_regex":null,
"vllm_server_base_url":null, "vllm_server_host":"0.0.0.0", "vllm_server_port":8000, "vllm_server_timeout":240.0,
"vllm_group_port":51216, "vllm_gpu_memory_utilization":0.3, "vllm_max_model_length":null, "vllm_tensor_parallel_size":1,
"beta":0.05, "num_iterations":1, "epsilon":0.2, "epsilon_high":null, "reward_weights":null,
"normalize_advantages":false, "reward_clip_range":null, "mask_truncated_completions":false, "sync_ref_model":false,
"ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512, "log_completions":false, "log_multimodal":true,
"num_completions_to_print":null, "log_unique_prompts":false, "use_transformers_continuous_batching":false,
"transformers_continuous_batching_config":null, "use_transformers_paged":false}, "SFTConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":2e-05, "model_init_kwargs":null, "trust_remote_code":false,
"router_aux_loss_coef":null, "chat_template_path":null, "dataset_text_field":"text", "dataset_kwargs":null,
"dataset_num_proc":null, "eos_token":null, "max_length":1024, "truncation_mode":"keep_start", "shuffle_dataset":false,
"packing":false, "packing_strategy":"bfd", "padding_free":false, "pad_to_multiple_of":"auto", "eval_packing":null,
"completion_only_loss":null, "assistant_only_loss":false, "loss_type":"nll", "activation_offloading":false,
"pad_token":null}, "DPOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"model_init_kwargs":null, "trust_remote_code":false, "router_aux_loss_coef":null, "disable_dropout":true,
"dataset_num_proc":null, "max_length":1024, "truncation_mode":"keep_start", "padding_free":false,
"pad_to_multiple_of":"auto", "precompute_ref_log_probs":false, "precompute_ref_batch_size":null,
"loss_type":["sigmoid"], "loss_weights":null, "ld_alpha":null, "f_divergence_type":"reverse_kl",
"f_alpha_divergence_coef":0.5, "label_smoothing":0.0, "beta":0.1, "use_weighting":false, "discopop_tau":0.05,
"activation_offloading":false, "sync_ref_model":false, "ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512,
"pad_token":null}, "RewardConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null,
"learning_rate":0.0001, "model_init_kwargs":null, "trust_remote_code":false, "chat_template_path":null,
"disable_dropout":true, "dataset_num_proc":null, "eos_token":null, "max_length":1024, "pad_to_multiple_of":"auto",
"center_rewards_coefficient":null, "activation_offloading":false, "pad_token":null}, "GKDConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":2e-05, "model_init_kwargs":null, "trust_remote_code":false,
"router_aux_loss_coef":null, "chat_template_path":null, "dataset_text_field":"text", "dataset_kwargs":null,
"dataset_num_proc":null, "eos_token":null, "max_length":1024, "truncation_mode":"keep_start", "shuffle_dataset":false,
"packing":false, "packing_strategy":"bfd", "padding_free":false, "pad_to_multiple_of":"auto", "eval_packing":null,
"completion_only_loss":null, "assistant_only_loss":false, "loss_type":"nll", "activation_offloading":false,
"pad_token":null, "temperature":0.9, "lmbda":0.5, "beta":0.5, "max_new_tokens":128, "teacher_model_name_or_path":null,
"teacher_model_init_kwargs":null, "disable_dropout":true, "seq_kd":false}, "DistillationConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06, "model_init_kwargs":null, "trust_remote_code":false,
"teacher_model_name_or_path":null, "teacher_model_revision":null, "teacher_model_init_kwargs":null,
"disable_dropout":false, "remove_unused_columns":false, "max_completion_length":512, "ds3_gather_for_generation":true,
"shuffle_dataset":true, "pad_to_multiple_of":"auto", "temperature":1.0, "top_p":1.0, "top_k":0, "min_p":null,
"generation_kwargs":null, "chat_template_kwargs":null, "repetition_penalty":1.0, "cache_implementation":null,
"use_vllm":false, "vllm_mode":"colocate", "vllm_model_impl":"vllm", "vllm_enable_sleep_mode":false,
"vllm_structured_outputs_regex":null, "vllm_server_base_url":null, "vllm_server_host":"0.0.0.0",
"vllm_server_port":8000, "vllm_server_timeout":240.0, "vllm_group_port":51216, "vllm_gpu_memory_utilization":0.3,
"vllm_max_model_length":null, "vllm_tensor_parallel_size":1, "beta":1.0, "max_tool_calling_iterations":null,
"log_completions":false, "num_completions_to_print":null, "log_unique_prompts":false},
"OnlineDPOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":5e-07,
"remove_unused_columns":false, "reward_model_path":null, "max_new_tokens":64, "max_length":512, "temperature":0.9,
"top_p":1.0, "top_k":0, "min_p":null, "repetition_penalty":1.0, "generation_kwargs":null, "cache_implementation":null,
"missing_eos_penalty":null, "beta":[0.1], "loss_type":"sigmoid", "disable_dropout":true, "use_vllm":false,
"vllm_model_impl":"vllm", "vllm_structured_outputs_regex":null, "vllm_gpu_memory_utilization":0.55,
"vllm_mode":"colocate", "vllm_server_base_url":null, "vllm_server_host":"0.0.0.0", "vllm_server_port":8000,
"vllm_server_timeout":240.0, "vllm_group_port":51216, "vllm_tensor_parallel_size":1, "vllm_enable_sleep_mode":false,
"ds3_gather_for_generation":true, "model_init_kwargs":null, "trust_remote_code":false, "reward_weights":null},
"KTOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"train_sampling_strategy":"sequential", "model_init_kwargs":null, "trust_remote_code":false,
"router_aux_loss_coef":null, "disable_dropout":true, "dataset_num_proc":null, "max_length":1024,
"pad_to_multiple_of":"auto", "precompute_ref_log_probs":false, "precompute_ref_batch_size":null, "loss_type":"kto",
"beta":0.1, "desirable_weight":1.0, "undesirable_weight":1.0, "activation_offloading":false, "sync_ref_model":false,
"ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512}, "ORPOConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06, "max_length":1024, "max_completion_length":null,
"beta":0.1, "disable_dropout":true, "padding_value":null, "generate_during_eval":false, "is_encoder_decoder":null,
"model_init_kwargs":null, "trust_remote_code":false, "dataset_num_proc":null}, "CPOConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06, "max_length":1024, "max_completion_length":null,
"beta":0.1, "label_smoothing":0.0, "loss_type":"sigmoid", "disable_dropout":true, "cpo_alpha":1.0, "simpo_gamma":0.5,
"alpha":0.0, "generate_during_eval":false, "is_encoder_decoder":null, "model_init_kwargs":null,
"trust_remote_code":false, "dataset_num_proc":null}, "ModelConfig":{"model_name_or_path":null, "model_revision":"main",
"dtype":"float32", "attn_implementation":null, "use_peft":false, "lora_r":16, "lora_alpha":32, "lora_dropout":0.05,
"lora_target_modules":null, "lora_target_parameters":null, "lora_modules_to_save":null, "lora_task_type":"CAUSAL_LM",
"use_rslora":false, "use_dora":false, "load_in_8bit":false, "load_in_4bit":false, "bnb_4bit_quant_type":"nf4",
"use_bnb_nested_quant":false, "bnb_4bit_quant_storage":null}}, "trainers":{"GRPOTrainer":["model", "reward_funcs",
"args", "train_dataset", "eval_dataset", "processing_class", "reward_processing_classes", "callbacks", "optimizers",
"quantization_config", "peft_config", "tools", "rollout_func", "environment_factory"], "RLOOTrainer":["model",
"reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "reward_processing_classes", "callbacks",
"optimizers", "quantization_config", "peft_config"], "SFTTrainer":["model", "args", "data_collator", "train_dataset",
"eval_dataset", "processing_class", "compute_loss_func", "compute_metrics", "callbacks", "optimizers",
"optimizer_cls_and_kwargs", "preprocess_logits_for_metrics", "quantization_config", "peft_config", "formatting_func"],
"DPOTrainer":["model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class",
"compute_metrics", "callbacks", "optimizers", "quantization_config", "peft_config"], "RewardTrainer":["model", "args",
"data_collator", "train_dataset", "eval_dataset", "processing_class", "compute_metrics", "callbacks", "optimizers",
"optimizer_cls_and_kwargs", "preprocess_logits_for_metrics", "quantization_config", "peft_config"],
"GKDTrainer":["model", "teacher_model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class",
"compute_metrics", "callbacks", "optimizers", "preprocess_logits_for_metrics", "peft_config", "formatting_func"],
"DistillationTrainer":["model", "teacher_model", "args", "train_dataset", "eval_dataset", "processing_class",
"callbacks", "optimizers", "quantization_config", "peft_config", "tools"], "OnlineDPOTrainer":["model", "ref_model",
"reward_funcs", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class",
"reward_processing_classes", "peft_config", "compute_metrics", "callbacks", "optimizers",
"preprocess_logits_for_metrics"], "KTOTrainer":["model", "ref_model", "args", "data_collator", "train_dataset",
"eval_dataset", "processing_class", "compute_metrics", "callbacks", "optimizers", "quantization_config", "peft_config"],
"ORPOTrainer":["model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init",
"callbacks", "optimizers", "preprocess_logits_for_metrics", "peft_config", "compute_metrics"], "CPOTrainer":["model",
"args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init", "callbacks", "optimizers",
"preprocess_logits_for_metrics", "peft_config", "compute_metrics"]},
"modules":{"trl.chat_template_utils":["ProcessingClassT", "add_response_schema", "clone_chat_template",
"get_training_chat_template", "has_generation_markers", "is_chat_template_prefix_preserving",
"is_chat_template_stop_token_trained", "parse_response", "supports_tool_calling"], "trl.data_utils":["DatasetType",
"IterableDatasetType", "apply_chat_template", "common_prefix_length", "extract_prompt", "get_dataset_column_names",
"is_conversational", "is_conversational_from_value", "maybe_apply_chat_template", "maybe_convert_to_chatml",
"maybe_extract_prompt", "maybe_unpair_preference_dataset", "pack_dataset", "prepare_multimodal_messages",
"unpair_preference_dataset"], "trl.distributed":["DistributedBackend"], "trl.extras.profiling":["ProfilingContext",
"profiling_context", "profiling_decorator"], "trl.import_utils":["LIGER_KERNEL_MIN_VERSION",
"PACKAGE_DISTRIBUTION_MAPPING", "TRLExperimentalWarning", "is_aiohttp_available", "is_deepspeed_available",
"is_harbor_available", "is_jmespath_available", "is_liger_kernel_available", "is_math_verify_available",
"is_mergekit_available", "is_openreward_available", "is_requests_available", "is_unsloth_available",
"is_vllm_available", "is_weave_available", "suppress_experimental_warning", "suppress_warning"],
"trl.models.activation_offloading":["DTensor", "NoOpManager", "OffloadActivations", "get_act_offloading_ctx_manager"],
"trl.models.selective_activation_checkpointing":["enable_selective_activation_checkpointing"],
"trl.models.utils":["add_hooks", "create_reference_model", "disable_gradient_checkpointing", "get_all_parameters",
"iter_params", "prepare_deepspeed", "prepare_fsdp", "remove_hooks", "unwrap_model_for_generation"],
"trl.rewards.accuracy_rewards":["accuracy_reward", "get_cosine_scaled_reward", "reasoning_accuracy_reward"],
"trl.rewards.format_rewards":["think_format_reward"], "trl.rewards.other_rewards":["get_repetition_penalty_reward",
"get_soft_overlong_punishment"], "trl.scripts.distillation":["main", "make_parser"], "trl.scripts.dpo":["main",
"make_parser"], "trl.scripts.env":["print_env"], "trl.scripts.grpo":["GRPOScriptArguments", "main", "make_parser"],
"trl.scripts.kto":["main", "make_parser"], "trl.scripts.reward":["main", "make_parser"],
"trl.scripts.rloo":["RLOOScriptArguments", "main", "make_parser"], "trl.scripts.sft":["main", "make_parser"],
"trl.scripts.utils":["DatasetConfig", "DatasetMixtureConfig", "ScriptArguments", "TrlParser", "get_dataset",
"get_git_commit_hash", "init_zero_verbose"], "trl.scripts.vllm_serve":["ScriptArguments", "build_command", "main",
"make_parser"], "trl.trainer.base_config":[], "trl.trainer.base_trainer":[], "trl.trainer.callbacks":["BEMACallback",
"LogCompletionsCallback", "RichProgressCallback", "SyncRefModelCallback", "WeaveCallback"],
"trl.trainer.distillation_config":["DistillationConfig"], "trl.trainer.distillation_trainer":["DistillationTrainer"],
"trl.trainer.dpo_config":["DPOConfig"], "trl.trainer.dpo_trainer":["DPOTrainer", "DataCollatorForPreference",
"DataCollatorForVisionPreference"], "trl.trainer.grpo_config":["GRPOConfig"],
"trl.trainer.grpo_trainer":["EnvironmentFactory", "GRPOTrainer", "RewardFunc", "RolloutFunc"],
"trl.trainer.kto_config":["KTOConfig"], "trl.trainer.kto_trainer":["DataCollatorForUnpairedPreference",
"DataCollatorForVisionUnpairedPreference", "KTOTrainer"], "trl.trainer.model_config":["ModelConfig"],
"trl.trainer.reward_config":["RewardConfig"], "trl.trainer.reward_trainer":["DataCollatorForPreference",
"RewardTrainer", "suppress_seqcls_warning"], "trl.trainer.rloo_config":["RLOOConfig"],
"trl.trainer.rloo_trainer":["RLOOTrainer", "RewardFunc"], "trl.trainer.sft_config":["SFTConfig"],
"trl.trainer.sft_trainer":["DataCollatorForLanguageModeling", "DataCollatorForVisionLanguageModeling", "SFTTrainer"],
"trl.trainer.utils":["FusedCausalLMOutput", "RepeatSampler", "TListOrMapping", "add_fused_lm_head", "adjusted_mfu",
"compute_flops_per_token", "compute_mfu", "create_model_from_path", "disable_dropout_in_model",
"ensure_master_addr_port", "entropy_from_logits", "flush_left", "generate_model_card", "get_callable_name",
"get_comet_experiment_url", "get_config_model_id", "get_peak_flops", "get_peak_flops_per_device", "get_peft_config",
"get_quantization_config", "get_trackio_space_url", "global_then_local_main_first", "hash_module", "identity",
"is_async_callable", "log_table_to_comet_experiment", "maybe_gather_lm_head_ctx", "nanmax", "nanmin", "nanstd", "pad",
"print_prompt_completions_sample", "remove_none_values", "repeat_iterable_dataset", "selective_log_softmax",
"selective_log_softmax_and_entropy", "shuffle_sequence_dict", "shutdown_event_loop_in_daemon",
"split_pixel_values_by_grid", "split_tensor_dict", "start_event_loop_in_daemon", "strip_images_from_messages",
"unsplit_pixel_values_by_grid", "use_adapter"], "trl.experimental":["a2po", "async_distillation", "async_grpo",
"bema_for_ref_model", "cpo", "distillation", "gkd", "gmpo", "gold", "harbor", "iw_opd", "kto", "merge_model_callback",
"online_dpo", "openreward", "orpo", "sdft", "sdpo", "server_distillation", "tpo", "utils"]}}
"""


@functools.cache
def trl_today(kind: str) -> dict:
    """The table `defaults` by config, `trainers` or `modules`."""
    return json.loads(TRL_NAMES)[kind]


def trl_defaults(config: str) -> dict:
    """{setting: default} of a TRL config, including the settings of transformers' TrainingArguments."""
    return trl_today("defaults")["TrainingArguments"] | trl_today("defaults").get(config, {})


# ------------------------------------------------------------------------- trl scripts (src/parts/data/trl_scripts.py)

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD Distillation OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}
BASE = "TrainingArguments"  # transformers' class, from which TRL's configs derive


def trainer_names(source: PythonSource) -> dict[str, str]:
    """{name of a trainer of TRL, or of a class of the script that is derived from one: that trainer}."""
    return {name: trainer for trainer in CONFIGS for name in source.derived(trainer)}


def class_names(source: PythonSource, call: ast.Call | None) -> list[str]:
    """Names of the classes that a call may be of, through a variable for one or for one of two."""
    origin = source.origin(call and call.func)
    return [*map(source.name_of, [origin.body, origin.orelse] if isinstance(origin, ast.IfExp) else [origin])]


def trainer_calls(source: PythonSource) -> list[tuple[str, ast.Call]]:
    """(TRL trainer, call) for calls of trainers, of the script's subclasses and of variables for one, in file order."""
    names = trainer_names(source)
    calls = [(trainer, call) for name, trainer in names.items() for call in source.calls.get(name, [])]
    variables = {*source.calls} - {*names, *source.imports, *source.definitions, *vars(builtins)}
    for call in [x for name in variables for x in source.calls[name] if isinstance(x.func, ast.Name)]:
        calls += [(names[name], call) for name in class_names(source, call) if name in names][:1]
    return sorted(calls, key=lambda pair: source.start(pair[1]))


def config_call(source: PythonSource, call: ast.Call, places=()) -> tuple[ast.Call | None, ast.expr | None]:
    """(The call that makes a trainer's config, if it is seen; the expression that the trainer gets).

    `places`: names of the trainer's arguments in order.
    """
    node = source.argument(call, "config") or source.argument(call, "args", places)
    origin = source.origin(node)
    is_config = isinstance(origin, ast.Call) and source.name_of(origin) in {*CONFIGS.values(), BASE}
    return (origin if is_config else None), node


# ----------------------------------------------------------------------------- tables (src/programs/migrate/tables.py)

TRL_CHANGES = """\
{"versions":["0.9", "0.10", "0.11", "0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "0.20", "0.21",
"0.22", "0.23", "0.24", "0.25", "0.26", "0.27", "0.28", "0.29", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7",
"1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14", "1.15", "1.16"], "transformers":{"0.9":"4.41", "0.10":"4.44",
"0.11":"4.45", "0.12":"4.46", "0.13":"4.46", "0.14":"4.47", "0.15":"4.49", "0.16":"4.50", "0.17":"4.51", "0.18":"4.52",
"0.19":"4.52", "0.20":"4.53", "0.21":"4.55", "0.22":"4.55", "0.23":"4.56", "0.24":"4.56", "0.25":"4.56", "0.26":"4.56",
"0.27":"5.0", "0.28":"5.1", "0.29":"5.3", "1.0":"5.4", "1.1":"5.4", "1.2":"5.5", "1.3":"5.6", "1.4":"5.7", "1.5":"5.9",
"1.6":"5.11", "1.7":"5.12", "1.8":"5.12", "1.9":"5.14", "1.10":"5.14", "1.11":"5.16", "1.12":"5.16", "1.13":"5.17",
"1.14":"5.19", "1.15":"5.19", "1.16":"5.19"}, "exports":["BEMACallback", "DPOConfig", "DPOTrainer",
"DatasetMixtureConfig", "DistillationConfig", "DistillationTrainer", "GRPOConfig", "GRPOTrainer", "KTOConfig",
"KTOTrainer", "LogCompletionsCallback", "ModelConfig", "RLOOConfig", "RLOOTrainer", "RewardConfig", "RewardTrainer",
"RichProgressCallback", "SFTConfig", "SFTTrainer", "ScriptArguments", "SyncRefModelCallback", "TrlParser",
"WeaveCallback", "add_response_schema", "apply_chat_template", "chat_template_utils", "clone_chat_template",
"create_reference_model", "data_utils", "extract_prompt", "get_dataset", "get_peft_config", "get_quantization_config",
"get_training_chat_template", "init_zero_verbose", "is_conversational", "is_conversational_from_value",
"maybe_apply_chat_template", "maybe_convert_to_chatml", "maybe_extract_prompt", "maybe_unpair_preference_dataset",
"models", "pack_dataset", "prepare_multimodal_messages", "scripts", "supports_tool_calling", "trainer", "trl",
"unknown", "unpair_preference_dataset"], "modules":{"AutoModelForCausalLMWithValueHead":{"0.9":"trl",
"0.29":"trl.experimental.ppo", "1.13":{"gone":""}}, "CPOConfig":{"0.9":"trl", "0.29":"trl.experimental.cpo"},
"CPOTrainer":{"0.9":"trl", "0.29":"trl.experimental.cpo"}, "DataCollatorForCompletionOnlyLM":{"0.9":"trl",
"0.20":{"gone":""}}, "DistillationConfig":{"1.1":"trl.experimental.distillation", "1.10":"trl"},
"DistillationTrainer":{"1.1":"trl.experimental.distillation", "1.10":"trl"}, "GKDConfig":{"0.11":"trl",
"0.29":"trl.experimental.gkd"}, "GKDTrainer":{"0.11":"trl", "0.29":"trl.experimental.gkd"}, "GRPOConfig":{"0.14":"trl"},
"GRPOTrainer":{"0.14":"trl"}, "ORPOConfig":{"0.9":"trl", "0.29":"trl.experimental.orpo"}, "ORPOTrainer":{"0.9":"trl",
"0.29":"trl.experimental.orpo"}, "OnlineDPOConfig":{"0.10":"trl", "0.29":"trl.experimental.online_dpo"},
"OnlineDPOTrainer":{"0.10":"trl", "0.29":"trl.experimental.online_dpo"}, "PPOConfig":{"0.9":"trl",
"0.29":"trl.experimental.ppo", "1.13":{"gone":""}}, "PPOTrainer":{"0.9":"trl", "0.29":"trl.experimental.ppo",
"1.13":{"gone":""}}, "PPOv2Config":{"0.11":"trl", "0.13":{"gone":""}}, "PPOv2Trainer":{"0.11":"trl",
"0.13":{"gone":""}}, "RLOOConfig":{"0.11":"trl"}, "RLOOTrainer":{"0.11":"trl"}, "ScriptArguments":{"0.12":"trl"},
"get_kbit_device_map":{"0.9":"trl", "1.8":{"gone":""}}, "setup_chat_format":{"0.9":"trl", "0.26":{"gone":""}}},
"trainers":{"GRPOTrainer":{"environment_factory":{"0.29":null}, "quantization_config":{"1.8":null},
"rollout_func":{"0.25":null}, "tools":{"0.26":null}}, "RLOOTrainer":{"args":{"0.22":null}, "config":{"0.9":null,
"0.25":{"gone":"args"}}, "data_collator":{"0.9":null, "0.25":{"gone":""}}, "model":{"0.22":null},
"peft_config":{"0.22":null}, "policy":{"0.9":null, "0.25":{"gone":"model"}}, "processing_class":{"0.12":null},
"quantization_config":{"1.8":null}, "ref_policy":{"0.9":null, "0.25":{"gone":""}}, "reward_funcs":{"0.22":null},
"reward_model":{"0.9":null, "0.25":{"gone":"reward_funcs"}}, "reward_processing_classes":{"0.22":null},
"tokenizer":{"0.9":null, "0.12":{"gone":"processing_class"}}}, "SFTTrainer":{"chars_per_token":{"0.9":null,
"0.13":{"gone":""}}, "compute_loss_func":{"0.15":null}, "dataset_batch_size":{"0.9":null, "0.13":{"gone":""}},
"dataset_kwargs":{"0.9":null, "0.13":{"gone":"args.dataset_kwargs"}}, "dataset_num_proc":{"0.9":null,
"0.13":{"gone":"args.dataset_num_proc"}}, "dataset_text_field":{"0.9":null, "0.13":{"gone":"args.dataset_text_field"}},
"eval_packing":{"0.9":null, "0.13":{"gone":"args.eval_packing"}}, "infinite":{"0.9":null, "0.13":{"gone":""}},
"max_seq_length":{"0.9":null, "0.13":{"gone":"args.max_length"}}, "model_init":{"0.9":null, "0.15":{"gone":""}},
"model_init_kwargs":{"0.9":null, "0.13":{"gone":"args.model_init_kwargs"}}, "neftune_noise_alpha":{"0.9":null,
"0.13":{"gone":""}}, "num_of_sequences":{"0.9":null, "0.13":{"gone":""}}, "optimizer_cls_and_kwargs":{"0.15":null},
"packing":{"0.9":null, "0.13":{"gone":"args.packing"}}, "processing_class":{"0.12":null},
"quantization_config":{"1.8":null}, "tokenizer":{"0.9":null, "0.12":{"gone":"processing_class"}}},
"DPOTrainer":{"beta":{"0.9":null, "0.13":{"gone":"args.beta"}}, "dataset_num_proc":{"0.9":null,
"0.13":{"gone":"args.dataset_num_proc"}}, "disable_dropout":{"0.9":null, "0.13":{"gone":"args.disable_dropout"}},
"force_use_ref_model":{"0.9":null, "0.13":{"gone":""}}, "generate_during_eval":{"0.9":null, "0.13":{"gone":""}},
"is_encoder_decoder":{"0.9":null, "0.13":{"gone":""}}, "label_pad_token_id":{"0.9":null, "0.13":{"gone":""}},
"label_smoothing":{"0.9":null, "0.13":{"gone":"args.label_smoothing"}}, "loss_type":{"0.9":null,
"0.13":{"gone":"args.loss_type"}}, "max_length":{"0.9":null, "0.13":{"gone":"args.max_length"}},
"max_prompt_length":{"0.9":null, "0.13":{"gone":""}}, "max_target_length":{"0.9":null, "0.13":{"gone":""}},
"model_adapter_name":{"0.9":null, "0.13":{"gone":""}}, "model_init":{"0.9":null, "0.19":{"gone":""}},
"model_init_kwargs":{"0.9":null, "0.13":{"gone":"args.model_init_kwargs"}}, "optimizer_cls_and_kwargs":{"0.19":null,
"0.29":{"gone":""}}, "padding_value":{"0.9":null, "0.13":{"gone":""}}, "precompute_ref_log_probs":{"0.9":null,
"0.13":{"gone":"args.precompute_ref_log_probs"}}, "preprocess_logits_for_metrics":{"0.9":null, "0.29":{"gone":""}},
"processing_class":{"0.12":null}, "quantization_config":{"1.8":null}, "ref_adapter_name":{"0.9":null,
"0.13":{"gone":""}}, "ref_model_init_kwargs":{"0.9":null, "0.13":{"gone":""}}, "reference_free":{"0.9":null,
"0.13":{"gone":""}}, "tokenizer":{"0.9":null, "0.12":{"gone":"processing_class"}}, "truncation_mode":{"0.9":null,
"0.13":{"gone":"args.truncation_mode"}}}, "RewardTrainer":{"max_length":{"0.9":null, "0.14":{"gone":"args.max_length"}},
"model_init":{"0.9":null, "0.24":{"gone":""}}, "optimizer_cls_and_kwargs":{"0.24":null},
"processing_class":{"0.12":null}, "quantization_config":{"1.8":null}, "tokenizer":{"0.9":null,
"0.12":{"gone":"processing_class"}}}, "GKDTrainer":{"callbacks":{"0.12":null}, "compute_metrics":{"0.12":null},
"data_collator":{"0.12":null}, "eval_dataset":{"0.12":null}, "formatting_func":{"0.12":null}, "model":{"0.12":null},
"model_init":{"0.12":null, "0.15":{"gone":""}}, "optimizers":{"0.12":null}, "peft_config":{"0.12":null},
"preprocess_logits_for_metrics":{"0.12":null}, "processing_class":{"0.12":null}, "train_dataset":{"0.12":null}},
"DistillationTrainer":{"compute_metrics":{"1.1":null, "1.10":{"gone":""}}, "data_collator":{"1.1":null,
"1.10":{"gone":""}}, "preprocess_logits_for_metrics":{"1.1":null, "1.10":{"gone":""}},
"quantization_config":{"1.10":null}, "tools":{"1.11":null}}, "OnlineDPOTrainer":{"judge":{"0.10":null,
"1.1":{"gone":""}}, "model_init":{"0.10":null, "0.11":{"gone":""}}, "peft_config":{"0.11":null},
"processing_class":{"0.12":null}, "reward_funcs":{"0.23":null}, "reward_model":{"0.10":null,
"0.25":{"gone":"reward_funcs"}}, "reward_processing_class":{"0.12":null, "0.25":{"gone":"reward_processing_classes"}},
"reward_processing_classes":{"0.23":null}, "tokenizer":{"0.10":null, "0.12":{"gone":"processing_class"}}},
"PPOTrainer":{"args":{"0.13":null}, "callbacks":{"0.12":null}, "config":{"0.9":null, "0.13":{"gone":"args"}},
"dataset":{"0.9":null, "0.12":{"gone":""}}, "eval_dataset":{"0.12":null}, "lr_scheduler":{"0.9":null,
"0.12":{"gone":""}}, "model":{"0.9":null, "0.12":{"gone":""}, "0.13":null}, "num_shared_layers":{"0.9":null,
"0.12":{"gone":""}}, "optimizer":{"0.9":null, "0.12":{"gone":""}}, "optimizers":{"0.12":null},
"peft_config":{"0.13":null}, "policy":{"0.12":null, "0.13":{"gone":"model"}}, "processing_class":{"0.12":null},
"ref_model":{"0.9":null, "0.12":{"gone":""}, "0.13":null}, "ref_policy":{"0.12":null, "0.13":{"gone":""}},
"reward_model":{"0.12":null}, "tokenizer":{"0.9":null, "0.12":{"gone":"processing_class"}},
"train_dataset":{"0.12":null}, "training_data_collator":{"0.9":null, "0.12":{"gone":""}}, "value_model":{"0.12":null}},
"KTOTrainer":{"embedding_func":{"0.9":null, "0.10":{"gone":""}}, "embedding_tokenizer":{"0.9":null, "0.10":{"gone":""}},
"model_adapter_name":{"0.9":null, "1.2":{"gone":""}}, "model_init":{"0.9":null, "1.4":{"gone":""}},
"preprocess_logits_for_metrics":{"0.9":null, "1.4":{"gone":""}}, "processing_class":{"0.12":null},
"quantization_config":{"1.8":null}, "ref_adapter_name":{"0.9":null, "1.2":{"gone":""}}, "tokenizer":{"0.9":null,
"0.12":{"gone":"processing_class"}}}, "ORPOTrainer":{"processing_class":{"0.12":null}, "tokenizer":{"0.9":null,
"0.12":{"gone":"processing_class"}}}, "CPOTrainer":{"processing_class":{"0.12":null}, "tokenizer":{"0.9":null,
"0.12":{"gone":"processing_class"}}}}, "configs":{"TrainingArguments":{"accelerator_config":{"4.38":null},
"activation_checkpointing":{"5.23":null}, "activation_checkpointing_kwargs":{"5.23":null}, "adafactor":{"4.31":false,
"5.0":{"gone":""}}, "average_tokens_across_devices":{"4.46":false, "4.54":true}, "batch_eval_metrics":{"4.41":false},
"dataloader_in_order":{"5.15":true}, "dataloader_multiprocessing_context":{"5.15":null},
"dataloader_persistent_workers":{"4.36":false}, "dataloader_prefetch_factor":{"4.38":null,
"4.39":{"expr":"None if not is_torch_available() or is_torch_greater_or_equal_than_2_0 else 2"}, "4.48":null},
"ddp_static_graph":{"5.6":null}, "dispatch_batches":{"4.32":null, "4.51":{"gone":""}},
"enable_jit_checkpoint":{"5.0":false}, "eval_do_concat_batches":{"4.40":true}, "eval_on_start":{"4.42":false},
"eval_strategy":{"4.41":"no"}, "eval_use_gather_object":{"4.43":false}, "evaluation_strategy":{"4.31":"no", "4.41":null,
"4.51":{"gone":"eval_strategy"}}, "fp16_backend":{"4.31":"auto", "5.0":{"gone":"half_precision_backend"}},
"fp16_opt_level":{"4.31":"O1", "5.0":{"gone":""}}, "fsdp":{"4.31":"", "4.57":null}, "fsdp_min_num_params":{"4.31":0,
"5.0":{"gone":""}}, "fsdp_transformer_layer_cls_to_wrap":{"4.31":null, "5.0":{"gone":""}},
"gradient_checkpointing":{"4.31":false, "5.23":null}, "gradient_checkpointing_kwargs":{"4.35":null},
"group_by_length":{"4.31":false, "5.2":{"gone":""}}, "half_precision_backend":{"4.31":"auto", "5.0":{"gone":""}},
"hub_always_push":{"4.32":false}, "hub_private_repo":{"4.31":false, "4.47":null}, "hub_revision":{"4.53":null},
"include_for_metrics":{"4.46":[]}, "include_inputs_for_metrics":{"4.31":false, "5.0":{"gone":""}},
"include_num_input_tokens_seen":{"4.36":false, "5.0":"no"}, "include_tokens_per_second":{"4.34":false,
"5.0":{"gone":""}}, "jit_mode_eval":{"4.31":false, "5.0":{"gone":""}}, "liger_kernel_config":{"4.53":null},
"logging_dir":{"4.31":null, "5.15":{"gone":""}}, "lr_scheduler_kwargs":{"4.36":{}}, "mp_parameters":{"4.31":"",
"5.0":{"gone":""}}, "neftune_noise_alpha":{"4.35":null}, "no_cuda":{"4.31":false, "5.0":{"gone":"use_cpu"}},
"optim":{"4.31":"adamw_hf", "4.32":"adamw_torch", "4.54":"adamw_torch_fused"}, "optim_target_modules":{"4.39":null},
"output_dir":{"4.31":"<required>", "4.49":null}, "overwrite_output_dir":{"4.31":false, "5.0":{"gone":""}},
"parallelism_config":{"4.56":null}, "past_index":{"4.31":-1, "5.0":{"gone":""}}, "per_gpu_eval_batch_size":{"4.31":null,
"5.0":{"gone":"per_device_eval_batch_size"}}, "per_gpu_train_batch_size":{"4.31":null,
"5.0":{"gone":"per_device_train_batch_size"}}, "project":{"4.57":"huggingface"}, "push_to_hub_model_id":{"4.31":null,
"5.0":{"gone":"hub_model_id"}}, "push_to_hub_organization":{"4.31":null, "5.0":{"gone":""}},
"push_to_hub_token":{"4.31":null, "5.0":{"gone":"hub_token"}}, "ray_scope":{"4.31":"last", "5.0":{"gone":""}},
"report_to":{"4.31":null, "5.0":"none"}, "restore_callback_states_from_checkpoint":{"4.41":false},
"save_only_model":{"4.36":false}, "save_safetensors":{"4.31":false, "4.35":true, "5.0":{"gone":""}},
"sharded_ddp":{"4.31":"", "4.35":{"gone":""}}, "split_batches":{"4.35":false, "4.38":null, "4.51":{"gone":""}},
"torch_empty_cache_steps":{"4.43":null}, "torchdynamo":{"4.31":null, "5.0":{"gone":"torch_compile_backend"}},
"tp_size":{"4.50":0, "4.52":{"gone":""}}, "tpu_metrics_debug":{"4.31":false, "5.0":{"gone":""}},
"tpu_num_cores":{"4.31":null, "5.0":{"gone":""}}, "trackio_bucket_id":{"5.6":null},
"trackio_space_id":{"4.57":"trackio", "5.6":null}, "trackio_static_space_id":{"5.6":null},
"train_sampling_strategy":{"5.2":"random"}, "use_cache":{"5.0":false}, "use_cpu":{"4.32":false},
"use_ipex":{"4.31":false, "4.57":{"gone":""}}, "use_legacy_prediction_loop":{"4.31":false, "5.0":{"gone":""}},
"use_liger_kernel":{"4.45":false}, "use_mps_device":{"4.31":false, "5.0":{"gone":""}}, "warmup_ratio":{"4.31":0.0,
"5.0":null, "5.15":{"gone":"warmup_steps"}}, "xpu_backend":{"4.31":null, "4.32":{"gone":"ddp_backend"}}},
"GRPOConfig":{"beta":{"0.14":0.04, "0.19":0.0}, "bf16":{"0.14":false, "0.19":null},
"cache_implementation":{"0.16":null}, "cast_lm_head_to_fp32":{"0.25":false}, "chat_template_kwargs":{"0.25":null},
"delta":{"0.18":null}, "disable_dropout":{"0.17":false}, "ds3_gather_for_generation":{"0.15":true},
"entropy_coef":{"1.8":0.0}, "entropy_coef_delta":{"1.8":0.005}, "entropy_coef_max":{"1.8":1.0},
"entropy_coef_min":{"1.8":0.0}, "entropy_target":{"1.8":0.2}, "epsilon":{"0.16":0.2}, "epsilon_high":{"0.16":null},
"generation_batch_size":{"0.18":null}, "generation_kwargs":{"0.19":null}, "gradient_accumulation_steps":{"0.14":8,
"0.15":1}, "gradient_checkpointing":{"0.14":false, "0.22":true}, "importance_sampling_level":{"0.20":"token"},
"learning_rate":{"0.14":1e-06}, "log_completions":{"0.15":false}, "log_completions_hub_repo":{"0.28":null},
"log_multimodal":{"1.9":true}, "log_unique_prompts":{"0.26":false}, "logging_steps":{"0.14":500, "0.19":10},
"loss_type":{"0.17":"bnpo", "0.22":"dapo"}, "lr_scheduler_kwargs":{"0.14":{}},
"mask_truncated_completions":{"0.17":false}, "max_completion_length":{"0.14":256, "1.10":512},
"max_prompt_length":{"0.14":512, "0.26":null, "0.28":{"gone":""}}, "max_tool_calling_iterations":{"0.27":null},
"min_p":{"0.16":null}, "multi_objective_aggregation":{"0.27":"sum_then_normalize"},
"num_completions_to_print":{"0.17":null}, "num_generations_eval":{"0.26":null}, "num_iterations":{"0.16":1},
"off_policy_mask_threshold":{"0.27":null}, "pad_to_multiple_of":{"1.0":null, "1.16":"auto"},
"per_device_train_batch_size":{"0.14":1, "0.15":8}, "ref_model_mixup_alpha":{"0.15":0.9, "0.16":0.6},
"ref_model_sync_steps":{"0.15":64, "0.16":512}, "remove_unused_columns":{"0.14":false},
"repetition_penalty":{"0.16":1.0}, "reward_weights":{"0.15":null}, "router_aux_loss_coef":{"1.7":0.001, "1.14":null},
"sapo_temperature_neg":{"0.26":1.05}, "sapo_temperature_pos":{"0.26":1.0}, "scale_rewards":{"0.16":true,
"0.22":"group"}, "shuffle_dataset":{"0.17":true}, "steps_per_generation":{"0.18":null}, "sync_ref_model":{"0.15":false},
"temperature":{"0.14":0.9, "0.18":1.0}, "top_entropy_quantile":{"0.20":1.0}, "top_k":{"0.16":50, "0.18":null, "0.27":0},
"top_p":{"0.16":1.0}, "torch_empty_cache_steps":{"0.14":null}, "transformers_continuous_batching_config":{"1.7":null},
"trust_remote_code":{"1.7":false}, "use_adaptive_entropy":{"1.8":false}, "use_bias_correction_kl":{"0.26":false,
"1.10":true}, "use_liger_kernel":{"0.14":false}, "use_liger_loss":{"0.17":false, "0.25":null,
"0.28":{"gone":"use_liger_kernel"}}, "use_transformers_continuous_batching":{"1.7":false},
"use_transformers_paged":{"0.20":false}, "vespo_k_neg":{"1.0":3.0}, "vespo_k_pos":{"1.0":2.0},
"vespo_lambda_neg":{"1.0":2.0}, "vespo_lambda_pos":{"1.0":3.0}, "vllm_device":{"0.14":"auto", "0.16":null,
"0.18":{"gone":""}}, "vllm_dtype":{"0.15":"auto", "0.16":null, "0.18":{"gone":""}},
"vllm_enable_prefix_caching":{"0.16":null, "0.18":{"gone":""}}, "vllm_enable_sleep_mode":{"0.23":false},
"vllm_gpu_memory_utilization":{"0.14":0.9, "0.16":null, "0.18":0.3}, "vllm_group_port":{"0.27":51216},
"vllm_guided_decoding_regex":{"0.16":null, "0.28":{"gone":"vllm_structured_outputs_regex"}},
"vllm_importance_sampling_cap":{"0.23":2.0, "0.26":3.0, "1.6":null}, "vllm_importance_sampling_clip_max":{"1.6":3.0},
"vllm_importance_sampling_clip_min":{"1.6":null}, "vllm_importance_sampling_correction":{"0.23":true},
"vllm_importance_sampling_mode":{"0.26":"sequence_mask"}, "vllm_max_model_len":{"0.15":null,
"0.18":{"gone":"vllm_max_model_length"}}, "vllm_max_model_length":{"0.26":null}, "vllm_mode":{"0.18":"server",
"1.0":"colocate"}, "vllm_model_impl":{"0.21":"vllm"}, "vllm_server_base_url":{"0.18":null},
"vllm_server_host":{"0.16":"0.0.0.0"}, "vllm_server_port":{"0.16":8000}, "vllm_server_timeout":{"0.16":120.0,
"0.17":240.0}, "vllm_structured_outputs_regex":{"0.27":null}, "vllm_tensor_parallel_size":{"0.18":1},
"wandb_log_unique_prompts":{"0.17":false, "0.26":null, "0.27":{"gone":"log_unique_prompts"}}},
"RLOOConfig":{"base_model":{"0.9":"EleutherAI/pythia-160m", "0.10":{"gone":""}}, "batch_size":{"0.9":null,
"0.22":{"gone":""}}, "beta":{"0.22":0.05}, "bf16":{"0.9":false, "0.19":null}, "cache_implementation":{"0.22":null},
"chat_template_kwargs":{"0.25":null}, "cliprange":{"0.9":0.2, "0.22":null, "0.25":{"gone":"epsilon"}},
"cliprange_value":{"0.9":0.2, "0.10":{"gone":""}}, "dataset_num_proc":{"0.10":null, "0.25":{"gone":""}},
"disable_dropout":{"0.22":false}, "ds3_gather_for_generation":{"0.14":true}, "epsilon":{"0.22":0.2},
"epsilon_high":{"0.22":null}, "exp_name":{"0.9":{"expr":"os.path.basename(__file__)[:-len('.py')]"},
"0.14":{"expr":"os.path.basename(__file__)[:-3]"}, "0.22":null, "0.25":{"gone":"run_name"}}, "gamma":{"0.9":1,
"0.10":{"gone":""}}, "generation_batch_size":{"0.22":null}, "generation_kwargs":{"0.22":null},
"gradient_checkpointing":{"0.9":false, "0.22":true}, "kl_coef":{"0.9":0.05, "0.22":null, "0.25":{"gone":"beta"}},
"lam":{"0.9":0.95, "0.10":{"gone":""}}, "learning_rate":{"0.9":5e-05, "0.22":1e-06}, "local_batch_size":{"0.9":null,
"0.22":{"gone":""}}, "local_mini_batch_size":{"0.9":null, "0.22":{"gone":""}},
"local_rollout_forward_batch_size":{"0.9":64, "0.22":null, "0.25":{"gone":""}}, "log_completions":{"0.22":false},
"log_multimodal":{"1.9":true}, "log_unique_prompts":{"0.26":false}, "logging_steps":{"0.9":500, "0.19":10},
"lr_scheduler_kwargs":{"0.9":{}}, "mask_truncated_completions":{"0.22":false}, "max_completion_length":{"0.22":256,
"1.10":512}, "max_prompt_length":{"0.22":512, "0.27":null, "0.29":{"gone":""}}, "micro_batch_size":{"0.9":null,
"0.22":{"gone":""}}, "min_p":{"0.22":null}, "mini_batch_size":{"0.9":null, "0.22":{"gone":""}},
"missing_eos_penalty":{"0.11":null, "0.25":{"gone":""}}, "model_init_kwargs":{"0.22":null},
"non_eos_penalty":{"0.9":false, "0.11":{"gone":""}}, "normalize_advantage":{"0.14":false,
"0.22":{"gone":"normalize_advantages"}}, "normalize_advantages":{"0.22":false}, "normalize_reward":{"0.14":false,
"0.22":null, "0.25":{"gone":""}}, "num_completions_to_print":{"0.22":null}, "num_generations":{"0.22":2},
"num_generations_eval":{"0.26":null}, "num_iterations":{"0.22":1}, "num_mini_batches":{"0.9":1, "0.22":null,
"0.25":{"gone":"steps_per_generation"}}, "num_ppo_epochs":{"0.9":4, "0.22":null, "0.25":{"gone":"num_iterations"}},
"num_sample_generations":{"0.9":10, "0.22":null, "0.25":{"gone":""}}, "num_total_batches":{"0.10":null,
"0.22":{"gone":""}}, "num_updates":{"0.9":null, "0.10":{"gone":""}}, "pad_to_multiple_of":{"1.0":null, "1.16":"auto"},
"penalty_reward_value":{"0.9":-1, "0.11":{"gone":""}}, "push_to_hub":{"0.9":false},
"ref_model_mixup_alpha":{"0.22":0.6}, "ref_model_sync_steps":{"0.22":512}, "remove_unused_columns":{"0.9":true,
"0.22":false}, "repetition_penalty":{"0.22":1.0}, "response_length":{"0.9":53, "0.22":null,
"0.25":{"gone":"max_completion_length"}}, "reward_clip_range":{"0.14":10.0, "0.22":null},
"reward_model_path":{"0.9":"EleutherAI/pythia-160m", "0.22":{"gone":""}}, "reward_weights":{"0.22":null},
"rloo_k":{"0.9":2, "0.22":null, "0.25":{"gone":"num_generations"}}, "router_aux_loss_coef":{"1.7":0.001, "1.14":null},
"run_name":{"0.9":null}, "sanity_check":{"0.9":false, "0.11":{"gone":""}},
"sft_model_path":{"0.9":"EleutherAI/pythia-160m", "0.22":{"gone":""}}, "shuffle_dataset":{"0.22":true},
"steps_per_generation":{"0.22":null}, "stop_token":{"0.9":null, "0.25":{"gone":""}}, "stop_token_id":{"0.9":null,
"0.25":{"gone":""}}, "sync_ref_model":{"0.22":false}, "temperature":{"0.9":0.7, "0.22":1.0},
"token_level_kl":{"0.14":false, "0.22":null, "0.25":{"gone":""}}, "top_k":{"0.22":null, "0.27":0}, "top_p":{"0.22":1.0},
"torch_empty_cache_steps":{"0.10":null}, "total_episodes":{"0.9":null, "0.25":{"gone":""}},
"transformers_continuous_batching_config":{"1.7":null}, "trust_remote_code":{"1.7":false},
"use_liger_kernel":{"0.11":false}, "use_transformers_continuous_batching":{"1.7":false},
"use_transformers_paged":{"0.22":false}, "use_vllm":{"0.22":false}, "vf_coef":{"0.9":0.1, "0.10":{"gone":""}},
"vllm_enable_sleep_mode":{"0.24":false}, "vllm_gpu_memory_utilization":{"0.22":0.3}, "vllm_group_port":{"0.27":51216},
"vllm_guided_decoding_regex":{"0.22":null, "0.28":{"gone":"vllm_structured_outputs_regex"}},
"vllm_max_model_length":{"0.27":null}, "vllm_mode":{"0.22":"server", "1.0":"colocate"},
"vllm_model_impl":{"0.22":"vllm"}, "vllm_server_base_url":{"0.22":null}, "vllm_server_host":{"0.22":"0.0.0.0"},
"vllm_server_port":{"0.22":8000}, "vllm_server_timeout":{"0.22":240.0}, "vllm_structured_outputs_regex":{"0.27":null},
"vllm_tensor_parallel_size":{"0.22":1}, "wandb_log_unique_prompts":{"0.22":false, "0.26":null,
"0.27":{"gone":"log_unique_prompts"}}, "whiten_rewards":{"0.9":false, "0.22":{"gone":""}}, "world_size":{"0.9":null,
"0.22":{"gone":""}}}, "SFTConfig":{"activation_offloading":{"0.18":false}, "assistant_only_loss":{"0.19":false},
"average_tokens_across_devices":{"0.12":false, "0.19":true}, "bf16":{"0.9":false, "0.19":null},
"chars_per_token":{"0.9":3.6, "0.15":null, "0.18":{"gone":""}}, "chat_template_path":{"0.19":null},
"completion_only_loss":{"0.17":null}, "dataset_batch_size":{"0.9":1000, "0.15":null, "0.18":{"gone":""}},
"dataset_text_field":{"0.9":null, "0.12":"text"}, "eos_token":{"0.17":null}, "gradient_checkpointing":{"0.9":false,
"0.22":true}, "learning_rate":{"0.9":5e-05, "0.12":2e-05}, "logging_steps":{"0.9":500, "0.19":10},
"loss_type":{"0.23":"nll", "1.6":null, "1.15":"nll"}, "lr_scheduler_kwargs":{"0.9":{}}, "max_length":{"0.16":1024},
"max_seq_length":{"0.9":null, "0.15":1024, "0.16":null, "0.20":{"gone":"max_length"}},
"neftune_noise_alpha":{"0.9":null}, "num_of_sequences":{"0.9":1024, "0.15":null, "0.18":{"gone":""}},
"packing_strategy":{"0.19":"ffd", "0.20":"bfd"}, "pad_to_multiple_of":{"0.18":null, "1.16":"auto"},
"pad_token":{"0.16":null}, "padding_free":{"0.16":false}, "router_aux_loss_coef":{"1.7":0.001, "1.14":null},
"shuffle_dataset":{"0.26":false}, "torch_empty_cache_steps":{"0.10":null}, "truncation_mode":{"1.0":"keep_start"},
"trust_remote_code":{"1.7":false}, "use_liger":{"0.10":false, "0.16":null, "0.18":{"gone":"use_liger_kernel"}},
"use_liger_kernel":{"0.11":false}}, "DPOConfig":{"activation_offloading":{"0.29":false},
"base_model_attribute_name":{"0.19":"model", "0.28":null, "0.29":{"gone":""}}, "bf16":{"0.9":false, "0.19":null},
"discopop_tau":{"0.13":0.05}, "f_alpha_divergence_coef":{"0.9":1.0, "0.29":0.5},
"f_divergence_type":{"0.9":{"expr":"FDivergenceType.REVERSE_KL"}, "0.28":"reverse_kl"},
"force_use_ref_model":{"0.9":false, "0.28":null, "0.29":{"gone":""}}, "generate_during_eval":{"0.9":false, "0.28":null,
"0.29":{"gone":""}}, "gradient_checkpointing":{"0.9":false, "0.22":true}, "is_encoder_decoder":{"0.9":null,
"0.15":{"gone":""}}, "label_pad_token_id":{"0.9":-100, "0.28":null, "0.29":{"gone":""}}, "ld_alpha":{"0.18":null},
"learning_rate":{"0.9":5e-05, "0.12":1e-06}, "logging_steps":{"0.9":500, "0.19":10}, "loss_type":{"0.9":"sigmoid",
"0.20":["sigmoid"]}, "loss_weights":{"0.20":null}, "lr_scheduler_kwargs":{"0.9":{}},
"max_completion_length":{"0.11":null, "0.28":-1, "0.29":{"gone":""}}, "max_length":{"0.9":null, "0.14":1024},
"max_prompt_length":{"0.9":null, "0.14":512, "0.28":-1, "0.29":{"gone":""}}, "max_target_length":{"0.9":null,
"0.14":{"gone":"max_completion_length"}}, "model_adapter_name":{"0.9":null, "0.29":{"gone":""}},
"pad_to_multiple_of":{"0.29":null, "1.16":"auto"}, "pad_token":{"0.24":null}, "padding_free":{"0.14":false},
"padding_value":{"0.9":null, "0.26":{"gone":""}}, "precompute_ref_batch_size":{"0.13":null},
"ref_adapter_name":{"0.9":null, "0.29":{"gone":""}}, "ref_model_init_kwargs":{"0.9":null, "0.29":{"gone":""}},
"ref_model_mixup_alpha":{"0.9":0.9, "0.16":0.6}, "ref_model_sync_steps":{"0.9":64, "0.16":512},
"reference_free":{"0.9":false, "0.28":null, "0.29":{"gone":""}}, "router_aux_loss_coef":{"1.8":0.001, "1.14":null},
"rpo_alpha":{"0.9":null, "0.29":{"gone":""}}, "tools":{"0.14":null, "0.29":{"gone":""}},
"torch_empty_cache_steps":{"0.10":null}, "truncation_mode":{"0.9":"keep_end", "0.29":"keep_start"},
"trust_remote_code":{"1.7":false}, "use_liger_kernel":{"0.11":false}, "use_liger_loss":{"0.19":false, "0.25":null,
"0.28":{"gone":"use_liger_kernel"}}, "use_logits_to_keep":{"0.15":false, "0.28":null, "0.29":{"gone":""}},
"use_num_logits_to_keep":{"0.13":false, "0.16":null, "0.17":{"gone":""}}, "use_weighting":{"0.12":false}},
"RewardConfig":{"activation_offloading":{"0.24":false}, "average_tokens_across_devices":{"0.12":false, "0.19":true},
"bf16":{"0.9":false, "0.19":null}, "center_rewards_coefficient":{"0.10":null}, "chat_template_path":{"0.24":null},
"dataset_num_proc":{"0.10":null}, "disable_dropout":{"0.14":true}, "eos_token":{"0.24":null},
"gradient_checkpointing":{"0.9":false, "0.22":true}, "learning_rate":{"0.9":5e-05, "0.24":0.0001},
"logging_steps":{"0.9":500, "0.19":10}, "lr_scheduler_kwargs":{"0.9":{}}, "max_length":{"0.9":null, "0.14":1024},
"model_init_kwargs":{"0.24":null}, "pad_to_multiple_of":{"0.24":null, "1.16":"auto"}, "pad_token":{"0.24":null},
"remove_unused_columns":{"0.9":true, "0.12":false, "0.24":true}, "torch_empty_cache_steps":{"0.10":null},
"trust_remote_code":{"1.7":false}, "use_liger_kernel":{"0.11":false}},
"GKDConfig":{"activation_offloading":{"0.18":false}, "assistant_only_loss":{"0.19":false},
"average_tokens_across_devices":{"0.12":false, "0.19":true}, "bf16":{"0.11":false, "0.19":null},
"chars_per_token":{"0.11":3.6, "0.15":null, "0.18":{"gone":""}}, "chat_template_path":{"0.19":null},
"completion_only_loss":{"0.17":null}, "dataset_batch_size":{"0.11":1000, "0.15":null, "0.18":{"gone":""}},
"dataset_text_field":{"0.11":null, "0.12":"text"}, "eos_token":{"0.17":null}, "gradient_checkpointing":{"0.11":false,
"0.22":true}, "learning_rate":{"0.11":5e-05, "0.12":2e-05}, "logging_steps":{"0.11":500, "0.19":10},
"loss_type":{"0.23":"nll", "1.6":null, "1.15":"nll"}, "lr_scheduler_kwargs":{"0.11":{}}, "max_length":{"0.16":1024},
"max_seq_length":{"0.11":null, "0.15":1024, "0.16":null, "0.20":{"gone":"max_length"}},
"neftune_noise_alpha":{"0.11":null}, "num_of_sequences":{"0.11":1024, "0.15":null, "0.18":{"gone":""}},
"packing_strategy":{"0.19":"ffd", "0.20":"bfd"}, "pad_to_multiple_of":{"0.18":null, "1.16":"auto"},
"pad_token":{"0.16":null}, "padding_free":{"0.16":false}, "router_aux_loss_coef":{"1.7":0.001, "1.14":null},
"seq_kd":{"0.12":false}, "shuffle_dataset":{"0.26":false}, "torch_empty_cache_steps":{"0.11":null},
"truncation_mode":{"1.0":"keep_start"}, "trust_remote_code":{"1.7":false}, "use_liger":{"0.11":false, "0.16":null,
"0.18":{"gone":"use_liger_kernel"}}, "use_liger_kernel":{"0.11":false}}, "DistillationConfig":{"bf16":{"1.1":null},
"cache_implementation":{"1.10":null}, "chat_template_kwargs":{"1.10":null}, "disable_dropout":{"1.1":true,
"1.10":false}, "ds3_gather_for_generation":{"1.10":true}, "generation_batch_size":{"1.1":null, "1.10":{"gone":""}},
"generation_kwargs":{"1.10":null}, "gradient_checkpointing":{"1.1":true}, "learning_rate":{"1.1":1e-06},
"lmbda":{"1.1":1.0, "1.9":{"gone":""}}, "log_completions_steps":{"1.1":100, "1.10":{"gone":""}},
"log_unique_prompts":{"1.10":false}, "logging_steps":{"1.1":10}, "loss_add_tail":{"1.1":true, "1.9":{"gone":""}},
"loss_top_k":{"1.1":1, "1.9":{"gone":""}}, "lr_scheduler_kwargs":{"1.1":null}, "max_length":{"1.1":1024,
"1.10":{"gone":""}}, "max_prompt_length":{"1.1":null, "1.10":{"gone":""}}, "max_tool_calling_iterations":{"1.11":null},
"min_p":{"1.10":null}, "num_generations":{"1.1":1, "1.10":{"gone":""}}, "pad_to_multiple_of":{"1.10":null,
"1.16":"auto"}, "remove_unused_columns":{"1.1":true, "1.10":false}, "repetition_penalty":{"1.10":1.0},
"reverse_kl_top_1_mode":{"1.1":"sampled", "1.9":{"gone":""}}, "shuffle_dataset":{"1.10":true},
"teacher_model_server_url":{"1.1":null, "1.9":{"gone":""}}, "top_p":{"1.1":0.95, "1.10":1.0},
"torch_empty_cache_steps":{"1.1":null}, "trust_remote_code":{"1.7":false}, "use_liger_kernel":{"1.1":false},
"use_teacher_server":{"1.1":false, "1.9":{"gone":""}}, "vllm_server_port":{"1.1":8001, "1.10":8000},
"vllm_sync_frequency":{"1.1":1, "1.10":{"gone":""}}, "wandb_entity":{"1.1":null, "1.7":{"gone":""}},
"wandb_project":{"1.1":null, "1.7":{"gone":""}}, "wandb_run_group":{"1.1":null, "1.7":{"gone":""}}},
"OnlineDPOConfig":{"beta":{"0.10":0.1, "0.11":[0.1]}, "bf16":{"0.10":false, "0.19":null},
"cache_implementation":{"0.23":null}, "dataset_num_proc":{"0.10":null, "0.25":{"gone":""}},
"disable_dropout":{"0.11":true}, "ds3_gather_for_generation":{"0.14":true}, "generation_kwargs":{"0.23":null},
"gpu_memory_utilization":{"0.17":0.55, "0.23":null, "0.25":{"gone":"vllm_gpu_memory_utilization"}},
"gradient_checkpointing":{"0.10":false, "0.22":true}, "judge":{"0.12":null, "1.1":{"gone":""}},
"learning_rate":{"0.10":5e-05, "0.11":5e-07}, "logging_steps":{"0.10":500, "0.19":10},
"lr_scheduler_kwargs":{"0.10":{}}, "max_length":{"0.14":512}, "max_new_tokens":{"0.10":53, "0.11":64},
"min_p":{"0.23":null}, "model_init_kwargs":{"0.20":null}, "remove_unused_columns":{"0.10":true, "1.0":false},
"repetition_penalty":{"0.23":1.0}, "reward_weights":{"0.23":null}, "top_k":{"0.23":null, "0.27":0},
"top_p":{"0.23":1.0}, "torch_empty_cache_steps":{"0.10":null}, "trust_remote_code":{"1.7":false},
"use_liger_kernel":{"0.11":false}, "use_transformers_paged":{"0.23":false,
"1.2":{"gone":"use_transformers_continuous_batching"}}, "use_vllm":{"0.14":false},
"vllm_enable_sleep_mode":{"0.28":false}, "vllm_gpu_memory_utilization":{"0.23":0.55}, "vllm_group_port":{"0.27":51216},
"vllm_guided_decoding_regex":{"0.23":null, "0.27":{"gone":"vllm_structured_outputs_regex"}},
"vllm_mode":{"0.23":"server", "1.0":"colocate"}, "vllm_model_impl":{"0.21":"vllm"},
"vllm_server_base_url":{"0.23":null}, "vllm_server_host":{"0.23":"0.0.0.0"}, "vllm_server_port":{"0.23":8000},
"vllm_server_timeout":{"0.23":240.0}, "vllm_structured_outputs_regex":{"0.27":null},
"vllm_tensor_parallel_size":{"0.23":1}}, "PPOConfig":{"batch_size":{"0.9":128, "0.12":null},
"gradient_accumulation_steps":{"0.9":1}, "init_kl_coef":{"0.9":0.2, "0.12":{"gone":""}}, "kl_coef":{"0.12":0.05},
"learning_rate":{"0.9":1.41e-05, "0.12":5e-05, "0.29":3e-06}, "mini_batch_size":{"0.9":128, "0.12":null},
"missing_eos_penalty":{"0.12":null}, "num_mini_batches":{"0.12":1}, "num_ppo_epochs":{"0.12":4}, "ppo_epochs":{"0.9":4,
"0.12":{"gone":""}}, "response_length":{"0.12":53}, "seed":{"0.9":0, "0.12":42}, "temperature":{"0.12":0.7}},
"PPOv2Config":{"missing_eos_penalty":{"0.11":null}}, "KTOConfig":{"activation_offloading":{"1.6":false},
"base_model_attribute_name":{"0.17":"model", "0.28":{"gone":""}}, "bf16":{"0.9":false, "0.19":null},
"disable_dropout":{"0.12":true}, "generate_during_eval":{"0.9":false, "1.2":{"gone":""}},
"gradient_checkpointing":{"0.9":false, "0.22":true}, "is_encoder_decoder":{"0.9":null, "0.27":{"gone":""}},
"label_pad_token_id":{"0.9":-100, "0.28":{"gone":""}}, "learning_rate":{"0.9":5e-05, "0.11":5e-07, "0.12":1e-06},
"logging_steps":{"0.9":500, "0.19":10}, "loss_type":{"0.9":"kto", "0.10":{"gone":""}, "0.11":"kto"},
"lr_scheduler_kwargs":{"0.9":{}}, "max_completion_length":{"0.9":null, "0.27":{"gone":""}},
"max_density_ratio":{"0.9":10.0, "0.10":{"gone":""}}, "max_length":{"0.9":null, "0.14":1024},
"max_prompt_length":{"0.9":null, "0.14":512, "0.27":{"gone":""}}, "min_density_ratio":{"0.9":0.5, "0.10":{"gone":""}},
"pad_to_multiple_of":{"1.7":null, "1.16":"auto"}, "padding_value":{"0.9":null, "0.28":{"gone":""}},
"precompute_ref_batch_size":{"1.2":null}, "prompt_sample_size":{"0.9":1024, "0.10":{"gone":""}},
"ref_model_init_kwargs":{"0.9":null, "0.28":{"gone":""}}, "ref_model_mixup_alpha":{"1.7":0.6},
"ref_model_sync_steps":{"1.7":512}, "router_aux_loss_coef":{"1.8":0.001, "1.14":null}, "sync_ref_model":{"1.7":false},
"torch_empty_cache_steps":{"0.10":null}, "train_sampling_strategy":{"0.29":"random", "1.6":"sequential"},
"truncation_mode":{"0.9":"keep_end", "0.27":{"gone":""}}, "trust_remote_code":{"1.7":false},
"use_liger_kernel":{"0.11":false}, "use_liger_loss":{"0.17":false, "0.25":null, "0.28":{"gone":"use_liger_kernel"}}},
"ORPOConfig":{"bf16":{"0.9":false, "0.19":null}, "gradient_checkpointing":{"0.9":false, "0.22":true},
"label_pad_token_id":{"0.9":-100, "0.28":{"gone":""}}, "learning_rate":{"0.9":5e-05, "0.12":1e-06},
"logging_steps":{"0.9":500, "0.19":10}, "lr_scheduler_kwargs":{"0.9":{}}, "max_length":{"0.9":null, "0.14":1024},
"max_prompt_length":{"0.9":null, "0.14":512, "0.28":{"gone":""}}, "torch_empty_cache_steps":{"0.10":null},
"truncation_mode":{"0.9":"keep_end", "1.0":{"gone":""}}, "trust_remote_code":{"1.7":false},
"use_liger_kernel":{"0.11":false}}, "CPOConfig":{"alpha":{"0.22":0.0}, "bf16":{"0.9":false, "0.19":null},
"gradient_checkpointing":{"0.9":false, "0.22":true}, "label_pad_token_id":{"0.9":-100, "0.28":{"gone":""}},
"learning_rate":{"0.9":5e-05, "0.12":1e-06}, "logging_steps":{"0.9":500, "0.19":10}, "lr_scheduler_kwargs":{"0.9":{}},
"max_length":{"0.9":null, "0.14":1024}, "max_prompt_length":{"0.9":null, "0.14":512, "0.28":{"gone":""}},
"max_target_length":{"0.9":null, "0.11":{"gone":"max_completion_length"}}, "padding_value":{"0.9":null,
"0.28":{"gone":""}}, "torch_empty_cache_steps":{"0.10":null}, "truncation_mode":{"0.9":"keep_end", "1.0":{"gone":""}},
"trust_remote_code":{"1.7":false}, "use_liger_kernel":{"0.11":false}},
"ModelConfig":{"bnb_4bit_quant_storage":{"0.26":null}, "dtype":{"0.23":null, "0.27":"float32"},
"lora_target_parameters":{"0.21":null}, "torch_dtype":{"0.9":null, "0.27":{"gone":"dtype"}},
"trust_remote_code":{"0.9":false, "1.7":{"gone":""}}, "use_dora":{"0.16":false}, "use_rslora":{"0.10":false}}}}
"""
VERL_CHANGES = """\
{"versions":["0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9"],
"keys":{"actor_rollout_ref.actor.checkpoint.contents":{"0.3":["model", "hf_model", "optimizer", "extra"],
"0.4":{"gone":"actor_rollout_ref.actor.checkpoint.save_contents"}},
"actor_rollout_ref.actor.checkpoint.mbridge_config":{"0.7":{}, "0.9":{"gone":""}},
"actor_rollout_ref.actor.entropy_coeff":{"0.2":0.001, "0.4":0},
"actor_rollout_ref.actor.fsdp_config.entropy_checkpointing":{"0.6":false,
"0.9":"${actor_rollout_ref.actor.entropy_checkpointing}"},
"actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking":{"0.6":false,
"0.9":"${actor_rollout_ref.actor.entropy_from_logits_with_chunking}"},
"actor_rollout_ref.actor.fsdp_config.grad_offload":{"0.2":false, "0.3":{"gone":""}},
"actor_rollout_ref.actor.optim.min_lr_ratio":{"0.2":null, "0.4":0.0},
"actor_rollout_ref.actor.optim.warmup_style":{"0.2":"constant", "0.6":null},
"actor_rollout_ref.actor.router_replay.mode":{"0.7":"disabled", "0.9":{"gone":""}},
"actor_rollout_ref.actor.router_replay.record_file":{"0.7":null, "0.9":{"gone":""}},
"actor_rollout_ref.actor.router_replay.replay_file":{"0.7":null, "0.9":{"gone":""}},
"actor_rollout_ref.actor.sum_pi_squared_checkpointing":{"0.7":false, "0.8":{"gone":""}},
"actor_rollout_ref.model.use_remove_padding":{"0.2":false, "0.7":true},
"actor_rollout_ref.ref.fsdp_config.entropy_checkpointing":{"0.6":false,
"0.9":"${actor_rollout_ref.ref.entropy_checkpointing}"},
"actor_rollout_ref.ref.fsdp_config.entropy_from_logits_with_chunking":{"0.6":false,
"0.9":"${actor_rollout_ref.ref.entropy_from_logits_with_chunking}"},
"actor_rollout_ref.ref.fsdp_config.forward_only":{"0.6":false, "0.7":true}, "actor_rollout_ref.ref.model":{"0.6":null,
"0.7":{"gone":""}}, "actor_rollout_ref.ref.router_replay.mode":{"0.7":"disabled", "0.9":{"gone":""}},
"actor_rollout_ref.ref.router_replay.record_file":{"0.7":null, "0.9":{"gone":""}},
"actor_rollout_ref.ref.router_replay.replay_file":{"0.7":null, "0.9":{"gone":""}},
"actor_rollout_ref.rollout.calculate_log_probs":{"0.4":false, "0.9":true},
"actor_rollout_ref.rollout.enforce_eager":{"0.2":true, "0.6":false},
"actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend":{"0.4":null, "0.6":{"gone":""}},
"actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache":{"0.4":false, "0.6":{"gone":""}},
"actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space":{"0.4":null, "0.6":{"gone":""}},
"actor_rollout_ref.rollout.load_format":{"0.2":"dummy_dtensor", "0.6":"dummy"},
"actor_rollout_ref.rollout.max_num_seqs":{"0.2":1024, "0.9":256}, "actor_rollout_ref.rollout.mode":{"0.4":"sync",
"0.7":"async"}, "actor_rollout_ref.rollout.multi_turn.completion_callback":{"0.4":null, "0.6":{"gone":""}},
"actor_rollout_ref.rollout.multi_turn.interaction_config_path":{"0.4":null, "0.8":{"gone":""}},
"actor_rollout_ref.rollout.name":{"0.2":"vllm", "0.6":"???"}, "actor_rollout_ref.rollout.skip.action":{"0.8":"cache",
"0.9":{"gone":""}}, "actor_rollout_ref.rollout.skip.dump_dir":{"0.8":"~/.verl/rollout_dump", "0.9":{"gone":""}},
"actor_rollout_ref.rollout.skip.enable":{"0.8":false, "0.9":{"gone":""}},
"actor_rollout_ref.rollout.skip.max_dump_step":{"0.8":1, "0.9":{"gone":""}},
"actor_rollout_ref.rollout.skip_dump_dir":{"0.6":"/tmp/rollout_dump", "0.8":{"gone":""}},
"actor_rollout_ref.rollout.skip_rollout":{"0.6":false, "0.8":{"gone":""}},
"actor_rollout_ref.rollout.update_weights_bucket_megabytes":{"0.5":512,
"0.7":{"gone":"actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"}},
"actor_rollout_ref.rollout.use_fire_sampling":{"0.3":false, "0.5":{"gone":""}},
"algorithm.rollout_correction.rollout_rs_threshold_lower":{"0.6":null, "0.7":{"gone":""}},
"algorithm.rollout_correction.rollout_token_veto_threshold":{"0.6":null, "0.7":{"gone":""}},
"algorithm.rollout_correction.use_policy_gradient":{"0.6":false, "0.7":{"gone":""}},
"critic.checkpoint.contents":{"0.3":["model", "hf_model", "optimizer", "extra"],
"0.4":{"gone":"critic.checkpoint.save_contents"}}, "critic.checkpoint.mbridge_config":{"0.7":{}, "0.9":{"gone":""}},
"critic.model.external_lib":{"0.2":"${actor_rollout_ref.model.external_lib}", "0.8":null},
"critic.model.fsdp_config.dtype":{"0.6":"bfloat16", "0.8":{"gone":"critic.fsdp.dtype"}},
"critic.model.fsdp_config.entropy_checkpointing":{"0.6":false, "0.8":{"gone":"critic.fsdp.entropy_checkpointing"}},
"critic.model.fsdp_config.entropy_from_logits_with_chunking":{"0.6":false,
"0.8":{"gone":"critic.fsdp.entropy_from_logits_with_chunking"}}, "critic.model.fsdp_config.forward_only":{"0.6":false,
"0.8":{"gone":"critic.fsdp.forward_only"}}, "critic.model.fsdp_config.forward_prefetch":{"0.4":false,
"0.8":{"gone":"critic.fsdp.forward_prefetch"}}, "critic.model.fsdp_config.fsdp_size":{"0.2":-1,
"0.8":{"gone":"critic.fsdp.fsdp_size"}}, "critic.model.fsdp_config.full_determinism":{"0.7":false,
"0.8":{"gone":"critic.fsdp.full_determinism"}}, "critic.model.fsdp_config.grad_offload":{"0.2":false,
"0.3":{"gone":"critic.fsdp.grad_offload"}}, "critic.model.fsdp_config.model_dtype":{"0.6":"fp32",
"0.8":{"gone":"critic.fsdp.model_dtype"}}, "critic.model.fsdp_config.offload_policy":{"0.4":false,
"0.8":{"gone":"critic.fsdp.offload_policy"}}, "critic.model.fsdp_config.optimizer_offload":{"0.2":false,
"0.8":{"gone":"critic.fsdp.optimizer_offload"}}, "critic.model.fsdp_config.param_offload":{"0.2":false,
"0.8":{"gone":"critic.fsdp.param_offload"}}, "critic.model.fsdp_config.qat.activation_observer":{"0.7":"static_minmax",
"0.8":{"gone":"critic.fsdp.qat.activation_observer"}}, "critic.model.fsdp_config.qat.enable":{"0.7":false,
"0.8":{"gone":"critic.fsdp.qat.enable"}}, "critic.model.fsdp_config.qat.group_size":{"0.7":16,
"0.8":{"gone":"critic.fsdp.qat.group_size"}}, "critic.model.fsdp_config.qat.ignore_patterns":{"0.7":["lm_head",
"embed_tokens", "re:.*mlp.gate$"], "0.8":{"gone":"critic.fsdp.qat.ignore_patterns"}},
"critic.model.fsdp_config.qat.mode":{"0.7":"w4a16", "0.8":{"gone":"critic.fsdp.qat.mode"}},
"critic.model.fsdp_config.qat.quantization_config_path":{"0.7":null,
"0.8":{"gone":"critic.fsdp.qat.quantization_config_path"}},
"critic.model.fsdp_config.reshard_after_forward":{"0.4":true, "0.8":{"gone":"critic.fsdp.reshard_after_forward"}},
"critic.model.fsdp_config.seed":{"0.7":42, "0.8":{"gone":"critic.fsdp.seed"}},
"critic.model.fsdp_config.strategy":{"0.6":"fsdp", "0.8":{"gone":"critic.fsdp.strategy"}},
"critic.model.fsdp_config.ulysses_sequence_parallel_size":{"0.6":1,
"0.8":{"gone":"critic.fsdp.ulysses_sequence_parallel_size"}}, "critic.model.fsdp_config.use_orig_params":{"0.6":false,
"0.8":{"gone":"critic.fsdp.use_orig_params"}}, "critic.model.fsdp_config.use_torch_compile":{"0.6":true,
"0.8":{"gone":"critic.fsdp.use_torch_compile"}}, "critic.model.fsdp_config.wrap_policy.min_num_params":{"0.2":0,
"0.8":{"gone":"critic.fsdp.wrap_policy.min_num_params"}},
"critic.model.tokenizer_path":{"0.2":"${actor_rollout_ref.model.path}", "0.8":null},
"critic.model.trust_remote_code":{"0.4":"${actor_rollout_ref.model.trust_remote_code}", "0.8":false},
"critic.model.use_remove_padding":{"0.2":false, "0.8":true}, "critic.optim.min_lr_ratio":{"0.2":null, "0.6":0.0},
"critic.optim.warmup_style":{"0.2":"constant", "0.6":null}, "critic.ppo_micro_batch_size_per_gpu":{"0.2":null,
"0.5":"${critic.ppo_micro_batch_size}"}, "critic.strategy":{"0.2":"fsdp", "0.4":"${actor_rollout_ref.actor.strategy}",
"0.5":"fsdp"}, "custom_reward_function.name":{"0.3":"compute_score", "0.7":null}, "data.datagen.name":{"0.5":null,
"0.8":{"gone":""}}, "data.datagen.path":{"0.5":null, "0.8":{"gone":""}}, "data.return_raw_chat":{"0.2":false,
"0.7":true}, "data.sampler.class_name":{"0.5":null, "0.8":{"gone":""}}, "data.sampler.class_path":{"0.5":null,
"0.8":{"gone":""}}, "data.val_batch_size":{"0.2":1312, "0.3":null}, "ray_init.num_cpus":{"0.4":null,
"0.6":{"gone":"ray_kwargs.ray_init.num_cpus"}}, "ray_init.timeline_json_file":{"0.4":null,
"0.6":{"gone":"ray_kwargs.timeline_json_file"}}, "reward_model.enable":{"0.2":false, "0.7":null},
"reward_model.enable_resource_pool":{"0.6":false, "0.7":null},
"reward_model.forward_max_token_len_per_gpu":{"0.2":"${critic.forward_max_token_len_per_gpu}", "0.7":{"gone":""}},
"reward_model.launch_reward_fn_async":{"0.4":false, "0.7":{"gone":""}}, "reward_model.max_length":{"0.2":null,
"0.7":{"gone":""}}, "reward_model.micro_batch_size":{"0.2":null, "0.7":{"gone":""}},
"reward_model.micro_batch_size_per_gpu":{"0.2":null, "0.7":{"gone":""}},
"reward_model.model.external_lib":{"0.2":"${actor_rollout_ref.model.external_lib}", "0.7":null},
"reward_model.model.fsdp_config.forward_prefetch":{"0.4":false, "0.7":{"gone":""}},
"reward_model.model.fsdp_config.fsdp_size":{"0.2":-1, "0.7":{"gone":""}},
"reward_model.model.fsdp_config.min_num_params":{"0.2":0, "0.3":{"gone":""}},
"reward_model.model.fsdp_config.param_offload":{"0.2":false, "0.7":{"gone":""}},
"reward_model.model.fsdp_config.reshard_after_forward":{"0.4":true, "0.7":{"gone":""}},
"reward_model.model.fsdp_config.wrap_policy.min_num_params":{"0.3":0, "0.7":{"gone":""}},
"reward_model.model.input_tokenizer":{"0.2":"${actor_rollout_ref.model.path}", "0.7":{"gone":""}},
"reward_model.model.path":{"0.2":"~/models/FsfairX-LLaMA3-RM-v0.1", "0.7":null},
"reward_model.model.trust_remote_code":{"0.4":false, "0.7":null},
"reward_model.model.use_fused_kernels":{"0.4":"${actor_rollout_ref.model.use_fused_kernels}", "0.7":{"gone":""}},
"reward_model.model.use_remove_padding":{"0.2":false, "0.7":{"gone":""}}, "reward_model.model.use_shm":{"0.4":false,
"0.7":{"gone":""}}, "reward_model.n_gpus_per_node":{"0.6":0, "0.7":null}, "reward_model.nnodes":{"0.6":0, "0.7":null},
"reward_model.reward_manager":{"0.2":"naive", "0.7":null}, "reward_model.sandbox_fusion.max_concurrent":{"0.4":64,
"0.7":{"gone":"reward.sandbox_fusion.max_concurrent"}}, "reward_model.sandbox_fusion.memory_limit_mb":{"0.4":1024,
"0.7":{"gone":"reward.sandbox_fusion.memory_limit_mb"}}, "reward_model.sandbox_fusion.url":{"0.4":null,
"0.7":{"gone":"reward.sandbox_fusion.url"}}, "reward_model.strategy":{"0.2":"fsdp",
"0.4":"${actor_rollout_ref.actor.strategy}", "0.5":"fsdp", "0.7":{"gone":""}},
"reward_model.ulysses_sequence_parallel_size":{"0.2":1, "0.7":{"gone":""}},
"reward_model.use_dynamic_bsz":{"0.2":"${critic.use_dynamic_bsz}", "0.7":{"gone":""}},
"trainer.remove_previous_ckpt_in_save":{"0.2":false, "0.3":{"gone":""}}, "trainer.resume_from_path":{"0.2":false,
"0.3":null}, "trainer.use_legacy_worker_impl":{"0.5":"auto", "0.8":{"gone":""}},
"trainer.val_generations_to_log_to_wandb":{"0.2":0, "0.4":{"gone":"trainer.log_val_generations"}}}}
"""
# Written by hand: settings and defaults that do not affect a run, and replacements for names that are gone.
NAMES_TEXT = r"""{
"places": {"GRPOTrainer": ["model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"],
"RLOOTrainer": ["model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"],
"SFTTrainer": ["model", "args", "data_collator", "train_dataset", "eval_dataset"], "DPOTrainer": ["model", "ref_model",
"args", "data_collator", "train_dataset", "eval_dataset"], "KTOTrainer": ["model", "ref_model", "args"],
"OnlineDPOTrainer": ["model", "ref_model", "reward_funcs"], "DistillationTrainer": ["model", "teacher_model", "args"],
"RewardTrainer": ["model", "args", "data_collator", "train_dataset", "eval_dataset"]},
"lossless": ["base_model_attribute_name", "chars_per_token", "dataset_batch_size", "dataset_num_proc", "exp_name",
"fp16_backend", "fp16_opt_level", "fsdp_min_num_params", "generate_during_eval", "half_precision_backend",
"include_inputs_for_metrics", "include_tokens_per_second", "infinite", "is_encoder_decoder", "jit_mode_eval",
"label_pad_token_id", "local_rank", "logging_dir", "mp_parameters", "num_of_sequences", "overwrite_output_dir",
"padding_value", "past_index", "push_to_hub_organization", "ray_scope", "save_safetensors", "sharded_ddp",
"tpu_metrics_debug", "tpu_num_cores", "use_ipex", "use_legacy_prediction_loop", "use_logits_to_keep", "use_mps_device",
"use_num_logits_to_keep", "vllm_device", "vllm_dtype", "vllm_enable_prefix_caching", "wandb_entity", "wandb_project",
"wandb_run_group"],
"same_values": {"lmbda": 1.0, "num_generations": 1, "vllm_sync_frequency": 1},
"beside_the_run": ["dataloader_prefetch_factor", "f_alpha_divergence_coef", "f_divergence_type", "fsdp",
"hub_private_repo", "include_num_input_tokens_seen", "lr_scheduler_kwargs", "output_dir", "pad_to_multiple_of",
"remove_unused_columns", "report_to", "router_aux_loss_coef", "trackio_space_id", "vllm_gpu_memory_utilization",
"vllm_server_timeout"],
"gone_arguments": {"adafactor": "optim=\"adafactor\"", "judge": "a reward function that asks the judge",
"model_init": "model=", "teacher_model_server_url": "trl.experimental.server_distillation",
"use_teacher_server": "trl.experimental.server_distillation"},
"gone_names": {
"DataCollatorForCompletionOnlyLM": "rows with the columns prompt and completion, and completion_only_loss=True",
"setup_chat_format": "clone_chat_template, or chat_template_path in SFTConfig",
"AutoModelForCausalLMWithValueHead": "scripts/ppo_train.py, which has its own value head",
"ConstantLengthDataset": "packing=True with packing_strategy='wrapped'",
"DPODataCollatorWithPadding": "leaving data_collator out",
"RewardDataCollatorWithPadding": "leaving data_collator out", "BestOfNSampler": "generate with num_return_sequences",
"LengthSampler": "random.randint", "FDivergenceType": "the text of its member, such as \"js_divergence\"",
"MergeModelCallback": "from trl.experimental.merge_model_callback import MergeModelCallback",
"truncate_dataset": "from trl.experimental.utils import truncate_dataset", "PPOConfig": "scripts/ppo_train.py",
"PPOv2Config": "scripts/ppo_train.py", "PPOTrainer": "scripts/ppo_train.py", "PPOv2Trainer": "scripts/ppo_train.py",
"SFTScriptArguments": "ScriptArguments", "DPOScriptArguments": "ScriptArguments",
"AutoModelForVision2Seq": "AutoModelForImageTextToText", "AutoModelWithLMHead": "AutoModelForCausalLM",
"AdamW": "torch.optim.AdamW", "TextDataset": "datasets.load_dataset(\"text\")",
"get_kbit_device_map": "accelerate's PartialState().local_process_index"},
"of_ppo": {"vf_coef": 0.1, "cliprange": 0.2, "cliprange_value": 0.2, "lam": 0.95, "gamma": 1.0},
"carried": {"lr": ["learning_rate"], "kl_coef": ["kl_coef", "init_kl_coef"], "ppo_epochs": ["num_ppo_epochs",
"ppo_epochs"], "minibatches": ["num_mini_batches"], "clip_eps_low": ["cliprange"], "clip_eps_high": ["cliprange"],
"vf_coef": ["vf_coef"], "gamma": ["gamma"], "gae_lambda": ["lam"], "max_new_tokens": ["response_length"],
"temperature": ["temperature"], "seed": ["seed"], "group_size": ["rloo_k"], "batch_size": ["batch_size",
"per_device_train_batch_size * gradient_accumulation_steps * num_mini_batches"],
"rows": ["mini_batch_size * gradient_accumulation_steps"], "value_clip": ["cliprange_value"],
"missing_eos_penalty": ["missing_eos_penalty"], "whiten_rewards": ["whiten_rewards"]},
"acts_unless": {"vllm_": ["use_vllm", [null, false]], "ref_model_": ["sync_ref_model", [null, false]],
"packing_strategy": ["packing", [null, false]], "use_bias_correction_kl": ["beta", [0]], "bf16": ["fp16", [true]]},
"signs": {"num_generations": "GRPOConfig", "max_completion_length": "GRPOConfig", "max_seq_length": "SFTConfig",
"packing": "SFTConfig", "precompute_ref_log_probs": "DPOConfig", "rpo_alpha": "DPOConfig"},
"forms": {"torch_dtype": ["dtype", "{}"], "use_auth_token": ["token", "{}"],
"use_flash_attention_2": ["attn_implementation", "\"flash_attention_2\" if {} else \"sdpa\""],
"group_by_length": ["train_sampling_strategy", "\"group_by_length\" if {} else \"random\""]},
"per_job": {"actor_rollout_ref.actor.ppo_micro_batch_size": "actor_rollout_ref.actor",
"actor_rollout_ref.ref.log_prob_micro_batch_size": "actor_rollout_ref.ref",
"actor_rollout_ref.rollout.log_prob_micro_batch_size": "actor_rollout_ref.actor",
"critic.ppo_micro_batch_size": "critic", "critic.forward_micro_batch_size": "critic"},
"not_written": ["actor_rollout_ref.actor.optim.min_lr_ratio", "actor_rollout_ref.actor.optim.warmup_style",
"actor_rollout_ref.ref.fsdp_config.forward_only", "actor_rollout_ref.rollout.calculate_log_probs",
"actor_rollout_ref.rollout.enforce_eager", "actor_rollout_ref.rollout.load_format",
"actor_rollout_ref.rollout.max_num_seqs", "actor_rollout_ref.rollout.mode", "critic.optim.min_lr_ratio",
"critic.optim.warmup_style", "data.return_raw_chat", "data.val_batch_size", "trainer.resume_from_path"],
"successors": {"fsdp_sft_trainer": "verl.trainer.sft_trainer, with its own keys",
"main_generation": "verl.trainer.main_generation_server, with its own keys",
"main_eval": "verl.trainer.main_eval of today, by hand",
"main_dapo": "verl.trainer.main_ppo, which reads algorithm.filter_groups since 0.9",
"main": "EasyR1's newest version, or verl.trainer.main_ppo with its own keys"}
}
"""
NAMES = json.loads(NAMES_TEXT)
ABSENT = object()  # the default of a setting that a version does not have


@functools.cache
def changes(package: str) -> dict:
    """The tables of a package; a history is {version: value from it on, or {"gone": its new name}}, oldest first."""
    return json.loads(TRL_CHANGES if package == "trl" else VERL_CHANGES)


def numbers(version: str) -> tuple[int, ...]:
    """(Major, minor) of a version, for comparison."""
    return tuple(int(part) for part in version.split(".")[:2])


def known_version(package: str, text: str) -> str:
    """The table's version 0.14 for `0.14`, `0.14.2` or `v0.14`, its first for older ones; UserError for others."""
    versions = changes(package)["versions"]
    wanted = ".".join(text.removeprefix("v").split(".")[:2])
    if wanted in versions:
        return wanted
    if re.fullmatch(r"\d+\.\d+", wanted) and numbers(wanted) < numbers(versions[0]):
        return versions[0]
    known = f"{package}=={versions[0]} to {versions[-1]}"
    raise UserError(f"got --from {package}=={text}; expected {known}; try `pip index versions {package}`")


def newest(package: str) -> str:
    return changes(package)["versions"][-1]


def is_gone(value) -> bool:
    return isinstance(value, dict) and "gone" in value


def value_at(history: dict, version: str, default=ABSENT):
    """What holds in a version; the default before the first, and where it is gone."""
    values = [value for since, value in history.items() if numbers(since) <= numbers(version)]
    return values[-1] if values and not is_gone(values[-1]) else default


def end_of(history: dict) -> dict:
    """{"since", "renamed"} of what is gone today; else {}."""
    since, value = [*history.items()][-1] if history else ("", None)
    return {"since": since, "renamed": value["gone"]} if is_gone(value) else {}


def transformers_of(version: str) -> str:
    """The newest transformers at the time of a TRL release; 99.0, above all, for the newest TRL."""
    return "99.0" if version == newest("trl") else changes("trl")["transformers"][version]


def histories(config: str, name: str) -> tuple[dict, dict]:
    """(History of a setting in a TRL config, that in transformers' TrainingArguments)."""
    configs = changes("trl")["configs"]
    return configs.get(config, {}).get(name, {}) if config != BASE else {}, configs[BASE].get(name, {})


def default_at(config: str, name: str, version: str):
    """The default of a setting in a version of TRL, from its config or from transformers; ABSENT if it is not there."""
    in_config, in_base = histories(config, name)
    value = value_at(in_config, version)
    if value is not ABSENT:
        return value
    if in_base:
        return value_at(in_base, transformers_of(version))
    return trl_defaults("" if in_config else config).get(name, ABSENT)


def gone_entry(config: str, name: str) -> dict:
    """The entry that removed a setting; {} if the setting still exists or never did."""
    in_config, in_base = histories(config, name)
    if value_at(in_config, newest("trl")) is not ABSENT or (not in_base and name in trl_defaults("")):
        return {}
    return end_of(in_base or in_config)


def since_of(config: str, name: str, version: str) -> str:
    """The first version after this one that changed a setting."""
    in_config, in_base = histories(config, name)
    later = [since for since in in_config if numbers(since) > numbers(version)]
    from_version = changes("trl")["transformers"][version]
    later += [f"transformers {since}" for since in in_base if numbers(since) > numbers(from_version)]
    gone = gone_entry(config, name).get("since", newest("trl"))
    return later[0] if later else f"transformers {gone}" if in_base else gone


# ------------------------------------------------------------------------------- edits (src/programs/migrate/edits.py)

# {rule: a change that no signature shows}, of runs from version `first` to below `before`, where it came unless `since`
# says otherwise; of TRL and transformers, and of verl
BY_HAND = r"""{
"batch": {
  "what": "GRPO's batch", "why": "batch sizes counted prompts, each with num_generations completions",
  "otherwise": "counts completions", "as_before": "per_device_train_batch_size = prompts * num_generations",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:335", "configs": ["GRPOConfig"], "before": "0.15",
  "set": {"per_device_train_batch_size": "{per_device_train_batch_size} * {num_generations}"}},
"eval_batch": {
  "why": "batch sizes counted prompts, each with num_generations completions", "otherwise": "counts completions",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:335", "configs": ["GRPOConfig"], "before": "0.15",
  "when": ["eval_strategy"], "set": {"per_device_eval_batch_size": "{per_device_eval_batch_size} * {num_generations}"}},
"temperature": {
  "what": "temperature in the loss",
  "why": "it sampled at the temperature; the loss's log-probs were not divided by it",
  "otherwise": "log-probs divided by it", "as_before": "temperature=1.0, generation_kwargs={\"temperature\": …}",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:438, and 0.15", "configs": ["GRPOConfig"], "before": "0.16",
  "is_not": {"temperature": [1]},
  "set": {"temperature": "1.0", "generation_kwargs": "{{\"temperature\": {temperature}}}"}},
"top_k": {
  "what": "top-k if unset", "why": "transformers, not vLLM, sampled from 50 tokens if top_k was unset",
  "otherwise": "all tokens", "as_before": "top_k=50", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:331",
  "configs": ["GRPOConfig"], "before": "0.16", "is_not": {"use_vllm": [true]},
  "set": {"top_k": "0 if {use_vllm} else 50"}},
"top_k_online": {
  "what": "OnlineDPO's top-k", "why": "it sampled from 50 tokens", "otherwise": "all tokens", "as_before": "top_k=50",
  "source": "TRL 0.17.0 trl/trainer/online_dpo_trainer.py:284", "configs": ["OnlineDPOConfig"], "first": "0.14",
  "before": "0.23", "unless": "top_k", "set": {"top_k": "50"}},
"top_k_unset": {
  "why": "transformers, not vLLM, sampled from 50 tokens if top_k was unset", "otherwise": "all tokens",
  "source": "TRL 0.23.1 trl/trainer/online_dpo_trainer.py:563", "configs": ["OnlineDPOConfig"], "first": "0.23",
  "before": "0.27", "unless": "top_k", "is_not": {"use_vllm": [true]}, "set": {"top_k": "0 if {use_vllm} else 50"}},
"server": {
  "why": "the server: `vllm serve MODEL --logprobs-mode processed_logprobs` (references/grpo_trl.md)",
  "configs": ["GRPOConfig"], "first": "0.16", "before": "99", "when": ["use_vllm"],
  "is": {"vllm_mode": ["server", null]}},
"top_k_none": {
  "why": "None was all tokens", "otherwise": "that of the model's generation config",
  "source": "TRL 0.26.2 trl/trainer/grpo_trainer.py:1273", "configs": ["GRPOConfig", "RLOOConfig"], "first": "0.16",
  "before": "0.27", "given": "top_k", "is": {"top_k": [null]}, "set": {"top_k": "0"}},
"mean_of_completions": {
  "what": "the mean of GRPO's loss", "since": "0.17", "why": "the loss was the mean over each completion",
  "otherwise": "dapo", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:512, and 0.15", "configs": ["GRPOConfig"],
  "before": "0.16", "set": {"loss_type": "\"grpo\""}},
"mean_of_tokens": {
  "what": "the mean of GRPO's loss", "why": "the loss was the mean over the tokens of the micro-batch",
  "otherwise": "dapo", "source": "TRL 0.16.1 trl/trainer/grpo_trainer.py:932", "configs": ["GRPOConfig"],
  "first": "0.16", "before": "0.17", "set": {"loss_type": "\"bnpo\""}},
"kl": {
  "what": "the KL's form", "since": "1.10", "why": "the KL was k3 alone", "otherwise": "k3 times the importance ratio",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:454", "configs": ["GRPOConfig"], "before": "0.26",
  "when": ["beta"], "set": {"use_bias_correction_kl": "False"}},
"vllm_correction": {
  "what": "samples of vLLM", "why": "samples of vLLM were trained on as if the trainer had drawn them",
  "otherwise": "weights of sequences outside the bound are 0",
  "source": "TRL 0.22.2 trl/trainer/grpo_trainer.py, which has no such setting", "configs": ["GRPOConfig"],
  "before": "0.23", "when": ["use_vllm"], "set": {"vllm_importance_sampling_correction": "False"}},
"vllm_correction_mode": {
  "why": "weights were bounded token by token", "otherwise": "sequence_mask",
  "source": "TRL 0.25.1 trl/trainer/grpo_trainer.py:1541", "configs": ["GRPOConfig"], "first": "0.23",
  "before": "0.26", "when": ["use_vllm"], "set": {"vllm_importance_sampling_mode": "\"token_truncate\""}},
"vllm_server": {
  "why": "vLLM was a server", "otherwise": "colocate", "source": "TRL 0.17.0 trl/trainer/grpo_trainer.py:627",
  "configs": ["GRPOConfig"], "first": "0.16", "before": "0.18", "when": ["use_vllm"],
  "set": {"vllm_mode": "\"server\""}},
"padding": {
  "what": "padding in the loss",
  "why": "the loss's forward pass did not mask left pads: the same only if a batch's prompts have one length",
  "otherwise": "masked", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:432", "configs": ["GRPOConfig"],
  "before": "0.15", "same_if": "a batch's prompts have one length"},
"shuffled": {
  "what": "GRPO's micro-batches",
  "why": "a micro-batch held whole groups; now a step's completions are shuffled, which changes bnpo's mean",
  "otherwise": "shuffled", "source": "TRL 0.18.0 trl/trainer/grpo_trainer.py:973; 0.17.0 has no shuffle",
  "configs": ["GRPOConfig"], "first": "0.16", "before": "0.18", "is": {"loss_type": ["bnpo", null]},
  "method": "InOrder"},
"spread": {
  "what": "GRPO's metric `reward_std`",
  "why": "the metric reward_std was the mean of the groups' deviations; now it is the deviation of all rewards",
  "otherwise": "the deviation of all rewards",
  "source": "TRL 0.27.0 trl/trainer/grpo_trainer.py:2078; 0.26.0: line 1975", "configs": ["GRPOConfig"],
  "before": "0.27", "is": {"scale_rewards": ["group", "none", true, false, null]}, "method": "Spread"},
"spread_of_rloo": {
  "what": "RLOO's metrics `reward` and `reward_std`",
  "why": "the metrics reward and reward_std included the KL term; reward_std was the groups' mean deviation",
  "otherwise": "without the KL term, the deviation of all rewards",
  "source": "TRL 0.26.2 trl/trainer/rloo_trainer.py:1450; 0.27.2: line 1514", "configs": ["RLOOConfig"],
  "before": "0.27"},
"window": {
  "what": "GRPO's divisor where `steps_per_generation` is not `gradient_accumulation_steps`",
  "why": "dapo, cispo and vespo divided the loss by the tokens of all steps_per_generation micro-batches",
  "otherwise": "by those of gradient_accumulation_steps micro-batches",
  "source": "TRL 1.8.0 trl/trainer/grpo_trainer.py:3006; 1.9.2: line 3140", "configs": ["GRPOConfig"], "first": "0.20",
  "before": "1.9", "when": ["steps_per_generation", "generation_batch_size"],
  "is": {"loss_type": ["dapo", "cispo", "vespo"]}, "is_not": {"steps_per_generation": ["gradient_accumulation_steps"]},
  "same_if": "steps_per_generation is gradient_accumulation_steps"},
"truncated": {
  "what": "GRPO's divisor with `mask_truncated_completions`",
  "why": "dapo, cispo and vespo divided the loss by the tokens of truncated completions, too",
  "otherwise": "by those that are trained on",
  "source": "TRL 1.8.0 trl/trainer/grpo_trainer.py:3006; 1.9.2: line 2427", "configs": ["GRPOConfig"], "first": "0.20",
  "before": "1.9", "when": ["mask_truncated_completions"], "is": {"loss_type": ["dapo", "cispo", "vespo"]},
  "same_if": "no completion is truncated"},
"unscored": {
  "what": "completions without any reward",
  "why": "a completion for which every reward is None counted as 0; it is now left out of its group",
  "otherwise": "left out of the group", "source": "TRL 1.5.1 trl/trainer/grpo_trainer.py:2144; 1.6.0: line 2171",
  "configs": ["GRPOConfig", "RLOOConfig"], "before": "1.6",
  "text": "append\\(None\\)|return None|None (for|if)\\b|else None|[=\\[] ?None\\]|\\] = None",
  "same_if": "each completion has a reward"},
"end_tokens": {
  "what": "the end of GRPO's completions",
  "why": "the tokenizer's end token alone ended a completion; now every generation_config.eos_token_id does",
  "otherwise": "the first of several end tokens",
  "source": "TRL 1.15.0 trl/trainer/grpo_trainer.py:398; 1.14.0 reads the tokenizer's",
  "configs": ["GRPOConfig", "RLOOConfig"], "first": "0.16", "before": "1.15", "same_if": "the model has one end token",
  "method": "EndToken"},
"end_pads": {
  "why": "each end token ended a completion, but behind others than the tokenizer's the loss saw pads",
  "otherwise": "no pads", "source": "TRL 0.15.2 trl/trainer/grpo_trainer.py:427 and 574", "configs": ["GRPOConfig"],
  "before": "0.16", "same_if": "the model has one end token"},
"one_device": {
  "what": "the device of a model given by name", "since": "0.26",
  "why": "a model given by name was on one GPU; device_map \"auto\" now splits it over all that one process sees",
  "otherwise": "split over the visible GPUs", "as_before": "model_init_kwargs={\"device_map\": None}",
  "source": "TRL 0.26.0 trl/trainer/utils.py:2017; 0.25.1 sets no device_map",
  "configs": ["GRPOConfig", "RLOOConfig", "SFTConfig", "DPOConfig", "RewardConfig"]},
"reports": {
  "what": "trackers if `report_to` is unset", "since": "transformers 5.0", "why": "each installed tracker got the log",
  "otherwise": "none", "as_before": "report_to=\"all\"",
  "source": "transformers 4.51.3 transformers/training_args.py, __post_init__",
  "configs": [
    "GRPOConfig", "RLOOConfig", "SFTConfig", "DPOConfig", "RewardConfig", "KTOConfig", "GKDConfig", "OnlineDPOConfig",
    "ORPOConfig", "CPOConfig"],
  "before": "0.27", "unless": "report_to", "set": {"report_to": "\"all\""}},
"reference": {
  "what": "the reference",
  "why": "where the model was an object, the reference was a copy of it: another one if it changed after loading",
  "otherwise": "loaded from the model's path", "source": "TRL 0.17.0 trl/trainer/grpo_trainer.py:430",
  "configs": ["GRPOConfig"], "before": "0.18", "when": ["beta"], "model": "object"},
"prompts": {
  "what": "long prompts", "since": "0.28",
  "why": "prompts were cut on the left, to 512 tokens if unset (GRPO and RLOO: before 0.26)",
  "otherwise": "whole prompts", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:383"},
"plain_prompts": {
  "what": "special tokens of prompts", "since": "0.26",
  "why": "prompts of plain text got no special tokens, such as BOS", "otherwise": "special tokens",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:378; 0.25.1: line 1304"},
"cut_rows": {
  "what": "DPO's long rows", "since": "0.12",
  "why": "in a row longer than max_length, the prompt was cut to max_prompt_length (128), then the answers",
  "otherwise": "the whole row is cut at max_length", "source": "TRL 0.11.4 trl/trainer/dpo_trainer.py:208"},
"smoothing": {
  "what": "`label_smoothing` of DPO's sigmoid",
  "why": "sigmoid smoothed its labels (conservative DPO); now robust, exo_pair and aot alone read label_smoothing",
  "otherwise": "ignored", "source": "TRL 0.28.0 trl/trainer/dpo_trainer.py:1152; 0.29.1 has -logsigmoid alone",
  "configs": ["DPOConfig"], "before": "0.29", "when": ["label_smoothing"], "is": {"loss_type": ["sigmoid"]},
  "shown": "label_smoothing", "nearest": "loss_type=\"robust\", or a subclass with its own loss"},
"running_mean": {
  "what": "DPO's bco_pair", "why": "bco_pair subtracted the running mean of the rewards",
  "otherwise": "subtracts nothing", "source": "TRL 0.28.0 trl/trainer/dpo_trainer.py:1181; 0.29.1 has no running mean",
  "configs": ["DPOConfig"], "before": "0.29", "is": {"loss_type": ["bco_pair"]}, "shown": "loss_type=\"bco_pair\"",
  "nearest": "as it is, without the mean"},
"exo_smoothing": {
  "why": "exo_pair took 0.001 where label_smoothing was 0", "otherwise": "ValueError",
  "source": "TRL 0.28.0 trl/trainer/dpo_trainer.py:1169", "configs": ["DPOConfig"], "before": "0.29",
  "is": {"loss_type": ["exo_pair"], "label_smoothing": [0]}, "set": {"label_smoothing": "1e-3"}},
"alpha": {
  "what": "`f_alpha_divergence_coef`", "since": "0.29", "why": "the coefficient a had the exponent -a; now a - 1",
  "otherwise": "another divergence", "as_before": "1 - f_alpha_divergence_coef",
  "source": "TRL 0.28.0 trl/trainer/dpo_trainer.py:1128; 1.16.0: line 1369", "configs": ["DPOConfig"],
  "before": "0.28", "is": {"f_divergence_type": ["alpha_divergence"]},
  "set": {"f_alpha_divergence_coef": "1 - {f_alpha_divergence_coef}"}},
"divergence_member": {
  "why": "a member of FDivergenceType never equalled the text it was compared with, so reverse KL ran",
  "otherwise": "ImportError", "source": "TRL 0.23.1 trl/trainer/dpo_trainer.py:1049; 0.24.0: line 1076",
  "configs": ["DPOConfig"], "before": "0.24", "is": {"f_divergence_type": ["alpha_divergence", "js_divergence"]},
  "member": true, "set": {"f_divergence_type": "\"reverse_kl\""}},
"divergence_text": {
  "why": "0.28 compared it with a member of FDivergenceType, which never matched, so reverse KL ran",
  "otherwise": "that divergence", "source": "TRL 0.28.0 trl/trainer/dpo_config.py:748, dpo_trainer.py:1118",
  "configs": ["DPOConfig"], "first": "0.28", "before": "0.29",
  "is": {"f_divergence_type": ["alpha_divergence", "js_divergence"]}, "set": {"f_divergence_type": "\"reverse_kl\""}},
"divergence_losses": {
  "since": "0.29",
  "why": "every loss took f_divergence_type; bco_pair, nca_pair, sppo_hard, aot and apo now refuse it",
  "source": "TRL 0.27.2 trl/trainer/dpo_trainer.py:1064; 1.16.0: line 810", "configs": ["DPOConfig"], "before": "0.28",
  "member": false,
  "is": {
    "f_divergence_type": ["alpha_divergence", "js_divergence"],
    "loss_type": ["bco_pair", "sppo_hard", "nca_pair", "aot", "aot_pair", "apo_zero", "apo_down"]},
  "shown": "f_divergence_type", "nearest": "f_divergence_type=\"reverse_kl\", or another loss_type"},
"mean_of_step": {
  "since": "transformers 4.46",
  "why": "the loss was the mean over micro-batches; since transformers 4.46 over the tokens of the step",
  "source": "transformers 4.45 transformers/trainer.py, whose training_step divides each micro-batch's loss",
  "configs": ["SFTConfig"], "before": "0.12", "is_not": {"gradient_accumulation_steps": [1]},
  "same_if": "gradient_accumulation_steps is 1"},
"kept_start": {
  "why": "truncation_mode was not read: rows longer than max_length kept their start",
  "otherwise": "its end by keep_end", "source": "TRL 0.12.2 trl/trainer/dpo_trainer.py:1255", "configs": ["DPOConfig"],
  "first": "0.12", "before": "0.14", "when": ["max_length"], "set": {"truncation_mode": "\"keep_start\""}},
"tokens_of_devices": {
  "why": "each GPU averaged over its own tokens", "otherwise": "the mean over the tokens of all GPUs",
  "source": "transformers 4.45, whose TrainingArguments has no average_tokens_across_devices",
  "configs": ["SFTConfig"], "before": "0.12", "set": {"average_tokens_across_devices": "False"}},
"mixture": {
  "what": "GKD's `beta` other than 0.5",
  "why": "beta weighed the student in the mixture, and 1 - beta the teacher; now the other way round",
  "otherwise": "another divergence", "as_before": "beta=1.0 for 0.0, beta=0.0 for 1.0",
  "source": "TRL 0.15.2 trl/trainer/gkd_trainer.py:199; 0.16.1 has 1 - beta and beta", "configs": ["GKDConfig"],
  "before": "0.16", "is_not": {"beta": [0, 0.5, 1]}, "nearest": "a subclass with that generalized_jsd_loss"},
"one_side": {
  "why": "beta 0 was the divergence of the student, 1 that of the teacher; now the other way round",
  "otherwise": "another divergence",
  "source": "TRL 0.15.2 trl/trainer/gkd_trainer.py:199; 0.16.1 has 1 - beta and beta", "configs": ["GKDConfig"],
  "before": "0.16", "given": "beta", "is": {"beta": [0, 1]}, "set": {"beta": "1.0 - {beta}"}},
"ffd": {
  "why": "ffd is gone since 0.20", "otherwise": "ValueError", "source": "TRL 0.19.1 trl/data_utils.py, pack_dataset",
  "configs": ["SFTConfig"], "before": "0.20", "when": ["packing"], "is": {"packing_strategy": ["ffd"]},
  "set": {"packing_strategy": "\"bfd\""}, "shown": "packing_strategy=\"ffd\"",
  "nearest": "packing_strategy=\"bfd\", other neighbours"},
"gkd_devices": {
  "why": "each GPU averaged over its own tokens", "otherwise": "the mean over the tokens of all GPUs",
  "source": "TRL 1.6.0 trl/experimental/gkd/gkd_trainer.py; 1.7.1: line 295", "configs": ["GKDConfig"],
  "before": "1.7", "unless": "average_tokens_across_devices", "set": {"average_tokens_across_devices": "False"}},
"gkd_steps": {
  "what": "GKD's gradient accumulation",
  "why": "GKD averaged each micro-batch over its own tokens; now over those of the step's micro-batches",
  "otherwise": "over the tokens of the step",
  "source": "TRL 1.6.0 trl/experimental/gkd/gkd_trainer.py; 1.7.1: line 295", "configs": ["GKDConfig"],
  "before": "1.7", "is_not": {"gradient_accumulation_steps": [1]}, "same_if": "gradient_accumulation_steps is 1"},
"rloo": {
  "what": "RLOO", "since": "0.22", "why": "a loop of its own: the KL in the reward, PPO epochs over minibatches",
  "otherwise": "the loop of GRPO, with the mean of the others as baseline",
  "source": "TRL 0.21.0 trl/trainer/rloo_trainer.py:414"},
"dpo_length": {
  "what": "DPO's length", "why": "512 tokens if unset", "otherwise": "1024",
  "source": "TRL 0.11.4 trl/trainer/dpo_trainer.py:665", "configs": ["DPOConfig"], "before": "0.12",
  "unless": "max_length", "set": {"max_length": "512"}},
"kto_length": {
  "why": "512 tokens if unset", "otherwise": "1024", "source": "TRL 0.13.0 trl/trainer/kto_trainer.py:488",
  "configs": ["KTOConfig"], "before": "0.14", "unless": "max_length", "set": {"max_length": "512"}},
"long_rows": {
  "what": "rows longer than max_length",
  "why": "in a row longer than max_length, the prompt was first cut to max_prompt_length; shorter rows are as before",
  "otherwise": "answers are cut, or the row is left out", "source": "TRL 0.13.0 trl/trainer/orpo_trainer.py:522",
  "configs": ["KTOConfig", "ORPOConfig", "CPOConfig"], "before": "0.27", "same_if": "no row is longer than max_length"},
"wrapped": {
  "what": "SFT's packing", "why": "packing cut one long text into pieces", "otherwise": "bfd",
  "source": "TRL 0.18.2 trl/data_utils.py:475", "configs": ["SFTConfig", "GKDConfig"], "before": "0.19",
  "when": ["packing"], "set": {"packing_strategy": "\"wrapped\""}},
"end_token": {
  "what": "the end of SFT's texts", "since": "0.16", "why": "texts got no end token",
  "otherwise": "an end token after each", "source": "TRL 0.15.2 trl/trainer/sft_trainer.py, which adds none",
  "same_if": "rows are chats"},
"dropout": {
  "why": "dropout was on", "otherwise": "True", "source": "the config of that version, which has no disable_dropout",
  "configs": ["RewardConfig"], "before": "0.14", "unless": "disable_dropout", "set": {"disable_dropout": "False"}},
"precision": {
  "what": "precision if unset", "since": "transformers 5.0",
  "why": "weights were loaded as float32, quantised ones as float16", "otherwise": "that of the checkpoint",
  "as_before": "dtype=\"float32\"", "source": "transformers 4.57.6 transformers/modeling_utils.py:2445"},
"sft_length": {
  "what": "SFT's length",
  "why": "the length was the model's longest, at most 1024: the same if the model has 1024 positions",
  "otherwise": "1024", "as_before": "max_length",
  "source": "TRL 0.12.2 trl/trainer/sft_trainer.py:307; 0.14.0: line 242", "configs": ["SFTConfig"], "first": "0.10",
  "before": "0.15", "unless": "max_length", "same_if": "the model has 1024 positions"},
"sft_default": {
  "why": "None was the default, today's length", "otherwise": "TypeError", "source": "", "configs": ["SFTConfig"],
  "before": "0.15", "given": "max_length", "is": {"max_length": [null]},
  "set": {"max_seq_length": null, "max_length": null}},
"sft_whole": {
  "why": "texts were cut at the tokenizer's model_max_length alone", "otherwise": "1024",
  "source": "TRL 0.9.6 trl/trainer/sft_trainer.py:287, whose result is not used", "configs": ["SFTConfig"],
  "before": "0.10", "unless": "max_length", "set": {"max_length": "None"},
  "same_if": "no text is longer than the tokenizer's model_max_length"},
"special_tokens": {
  "why": "dataset_kwargs other than skip_prepare_dataset did something: today plain texts get all special tokens",
  "source": "TRL 0.14.0 trl/trainer/sft_trainer.py:275", "configs": ["SFTConfig"], "before": "0.15",
  "when": ["dataset_kwargs"]},
"reward_texts": {
  "what": "the texts of RewardTrainer", "why": "plain texts got no end token, and a column prompt was left out",
  "otherwise": "prompt, answer and an end token",
  "source": "TRL 0.16.1 trl/trainer/reward_trainer.py:73; 1.16.0: lines 684 and 705", "configs": ["RewardConfig"],
  "before": "0.24", "same_if": "texts are chats, without a column prompt"},
"kto_texts": {
  "what": "KTO's tokens", "why": "each prompt got BOS, and each answer, of a chat too, an end token",
  "otherwise": "BOS if the tokenizer puts it; an end token for plain texts only",
  "source": "TRL 1.2.0 trl/experimental/kto/kto_trainer.py:211; 1.3.0: line 615", "configs": ["KTOConfig"],
  "before": "1.3",
  "same_if": "the tokenizer or the chat template puts BOS, if there is one, and chats end with the end token"},
"dpo_texts": {
  "what": "DPO's tokens",
  "why": "prompt and answer were tokenized apart, without BOS; each answer, of a chat too, got an end token",
  "otherwise": "together; BOS and end token for plain texts only",
  "source": "TRL 0.28.0 trl/trainer/dpo_trainer.py:748; 0.29.1: line 809", "configs": ["DPOConfig"], "before": "0.29",
  "same_if": "texts are plain, the tokenizer has no BOS, and no token spans prompt and answer"},
"end_token_of_chat": {
  "why": "messages got an end token after a chat template that ends otherwise, such as with a line break",
  "source": "TRL 0.16.1 trl/trainer/sft_trainer.py:521", "configs": ["SFTConfig"], "first": "0.16", "before": "0.17"},
"whole_text": {
  "what": "SFT on prompt and completion", "why": "the loss was over prompt and completion",
  "otherwise": "over the completion, for rows with both columns",
  "source": "TRL 0.16.1 trl/trainer/sft_trainer.py:488", "configs": ["SFTConfig"], "before": "0.17",
  "unless": "DataCollatorForCompletionOnlyLM", "set": {"completion_only_loss": "False"}},
"vllm_device": {
  "why": "vLLM had a device of its own; today it shares the training's (vllm_mode colocate) or is a server",
  "source": "the config of that version, which has vllm_device", "configs": ["GRPOConfig"], "before": "0.16",
  "when": ["use_vllm"]},
"distillation_loss": {
  "why": "with loss_top_k=1, its default, the divergence was over one token and a bucket for all others",
  "source": "TRL 1.5.0 trl/experimental/distillation/distillation_trainer.py:1263", "configs": ["DistillationConfig"],
  "before": "1.9", "when": ["loss_top_k"]},
"dropout_kto": {
  "why": "dropout was on", "otherwise": "True", "source": "the config of that version, which has no disable_dropout",
  "configs": ["KTOConfig"], "before": "0.12", "unless": "disable_dropout", "set": {"disable_dropout": "False"}}
}
"""
BY_HAND_VERL = """\
{
"kl_in_reward": {
  "what": "the KL in the reward", "since": "0.4", "why": "the KL was in the reward unless a KL loss was used",
  "otherwise": "no KL", "as_before": "algorithm.use_kl_in_reward=True",
  "source": "verl 0.2.0.post2 verl/trainer/ppo/ray_trainer.py:917; 0.3: line 882"},
"dual_clip": {
  "what": "dual clip", "why": "there was no second bound for negative advantages", "otherwise": "3.0",
  "source": "verl 0.3.0.post1 verl/trainer/ppo/core_algos.py:272", "before": "0.4",
  "set": {"actor_rollout_ref.actor.clip_ratio_c": "1000000000.0"}},
"schedule": {
  "what": "warmup_style", "why": "warmup_style was not read: the learning rate stayed constant after its warm-up",
  "otherwise": "cosine acts: another run", "as_before": "lr_scheduler_type=constant",
  "source": "verl 0.3.0.post1 verl/workers/fsdp_workers.py:271; 0.4.0: line 354", "before": "0.4",
  "neutral": {
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type=constant"}},
"warm_up": {
  "what": "Megatron's warm-up", "why": "Megatron's learning rate had no schedule: the warm-up was not read",
  "otherwise": "it warms up", "as_before": "lr_warmup_steps_ratio=0",
  "source": "verl 0.3.0.post1 verl/workers/megatron_workers.py has no scheduler; 0.4.1: line 214", "before": "0.4",
  "where": ["megatron"],
  "neutral": {
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "0", "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "0",
    "critic.optim.lr_warmup_steps": "0", "critic.optim.lr_warmup_steps_ratio": "0"}},
"data_seed": {
  "what": "order of the rows", "why": "the rows were shuffled with seed 1; the first epoch is the same",
  "otherwise": "another order in each run",
  "source": "verl 0.2.0.post2 verl/trainer/ppo/ray_trainer.py:475; 0.5: verl/trainer/main_ppo.py:327", "before": "0.6",
  "set": {"data.seed": "1"}},
"overlong": {
  "what": "overlong prompts", "why": "overlong prompts were left out", "otherwise": "cut on the left",
  "source": "verl 0.2.0.post2 verl/trainer/ppo/ray_trainer.py:469", "before": "0.3",
  "set": {"data.filter_overlong_prompts": "True"}},
"micro_batch": {
  "what": "ppo_micro_batch_size and similar keys", "since": "0.4",
  "why": "it counted all GPUs of the job, divided by their number", "otherwise": "deprecated",
  "as_before": "the keys that end with _per_gpu", "source": "verl 0.2.0.post2 verl/workers/fsdp_workers.py:125"},
"fetched": {
  "since": "0.9", "why": "data.gen_batch_size was the number of prompts of a step", "otherwise": "that of a fetch",
  "source": "verl 0.8.0 verl/trainer/ppo/ray_trainer.py:410; 0.9.1: trainer/ppo/v1/trainer_base.py:742"},
"token_mean": {
  "what": "token-mean", "since": "0.8",
  "why": "it averaged the tokens of a micro-batch, then the micro-batches of all GPUs; no setting does that today",
  "otherwise": "over all tokens of the mini-batch",
  "source": "verl 0.3.0.post1 verl/workers/actor/dp_actor.py:307; 0.7.1 verl/workers/actor/dp_actor.py:585"},
"token_mean_of_row": {
  "since": "0.8", "why": "with one row a micro-batch, token-mean averaged the tokens of each row, then the rows",
  "otherwise": "token-mean over all tokens of the mini-batch",
  "source": "verl 0.3.0.post1 verl/workers/actor/dp_actor.py:307; 0.7.1 verl/workers/actor/dp_actor.py:585"},
"gspo_mean": {
  "what": "the mean of gspo's loss", "since": "0.9",
  "why": "gspo's loss was seq-mean-token-mean whatever loss_agg_mode said; only KL and entropy terms took that",
  "otherwise": "loss_agg_mode", "as_before": "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
  "source": "verl 0.8.0 verl/trainer/ppo/core_algos.py, compute_policy_loss_gspo"},
"geo_mean": {
  "what": "the size of geo_mean's loss", "since": "0.8",
  "why": "geo_mean's loss was the mean over the micro-batches of a GPU; now it is their sum",
  "otherwise": "the sum of the micro-batches",
  "source": "verl 0.7.1 verl/workers/actor/dp_actor.py:585; 0.9.1 trainer/ppo/core_algos.py:2000"},
"response_length": {
  "what": "the divisor of seq-mean-token-sum-norm", "since": "0.9", "why": "the divisor was max_response_length",
  "otherwise": "the longest response of each micro-batch",
  "as_before": "actor_rollout_ref.actor.loss_scale_factor=MAX_RESPONSE_LENGTH",
  "source": "verl 0.8.0 verl/workers/utils/padding.py:49; 0.9.1: line 118"},
"sum_of_rows": {
  "since": "0.9", "why": "it divided the sum of a micro-batch by max_response_length, not by the number of its rows",
  "otherwise": "the mean of rows / the longest response",
  "source": "verl 0.4.1 verl/trainer/ppo/core_algos.py:549; 0.6.1: line 800"},
"reference_dtype": {
  "what": "the reference's weights", "why": "the reference was loaded in bfloat16", "otherwise": "fp32",
  "source": "verl 0.3.0.post1 verl/workers/fsdp_workers.py:169; 0.5.0: line 248", "before": "0.6",
  "where": ["reference"], "set": {"actor_rollout_ref.ref.fsdp_config.model_dtype": "bf16"}},
"reward_engine": {
  "what": "the reward model", "why": "FSDP ran the reward model; now a server does",
  "otherwise": "an error: the server has to be named", "as_before": "reward.reward_model.rollout.name=vllm",
  "source": "verl 0.6.1 verl/workers/fsdp_workers.py, RewardModelWorker; 0.9.1 trainer/config/reward/reward.yaml",
  "before": "0.7", "where": ["reward_model.enable", "!reward.reward_model.rollout.name", "!reward_model.rollout.name"],
  "set": {"reward.reward_model.rollout.name": "vllm"}},
"reward_text": {
  "what": "the text that a reward sees",
  "why": "a reward saw prompt and response with special tokens; it now sees the response alone, without them",
  "otherwise": "the response without special tokens",
  "source": "verl 0.2.0.post2 verl/workers/reward_manager/naive.py:54; 0.9.1: reward_loop/reward_manager/naive.py:54",
  "before": "0.3", "same_if": "the reward reads no prompt and no special tokens"},
"resume": {
  "why": "trainer.resume_mode is auto, then and now: move the old run's checkpoints away, or this job continues them",
  "source": "verl 0.9.1 trainer/config/ppo_trainer.yaml", "before": "0.9", "where": ["!trainer.resume_mode"]},
"speed": {
  "why": "left as today, memory and speed only: enforce_eager (True before 0.6), max_num_seqs (1024), max_model_len",
  "source": "the configurations of both versions; verl 0.6.1 workers/rollout/vllm_rollout/vllm_async_server.py:155",
  "before": "0.9"},
"long_prompts": {
  "what": "prompts longer than `data.max_prompt_length`", "since": "0.8",
  "why": "a prompt longer than data.max_prompt_length stopped the run; it is now cut on the left",
  "otherwise": "cut on the left, with a warning",
  "source": "verl 0.3.0.post1 verl/utils/torch_functional.py:294; 0.9.1 verl/experimental/agent_loop/agent_loop.py:445",
  "first": "0.3", "before": "0.7",
  "where": [
    "!data.filter_overlong_prompts", "data.truncation!=left", "data.truncation!=right", "data.truncation!=middle"]},
"first_step": {
  "what": "the first step without warm-up", "why": "without warm-up, the learning rate of the first step was 0",
  "otherwise": "the full learning rate",
  "source": "verl 0.3.0.post1 verl/utils/torch_functional.py:462; 0.9.1: line 788", "before": "0.4",
  "where": ["!megatron", "!actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"],
  "set": {"actor_rollout_ref.actor.optim.lr_warmup_steps": "1"}},
"first_step_critic": {
  "why": "without warm-up, the learning rate of the first step was 0", "otherwise": "the full learning rate",
  "source": "verl 0.3.0.post1 verl/utils/torch_functional.py:462; 0.9.1: line 788", "before": "0.4",
  "where": ["!megatron", "critic", "!critic.optim.lr_warmup_steps_ratio"],
  "set": {"critic.optim.lr_warmup_steps": "1"}},
"no_warm_up": {
  "why": "lr_warmup_steps=0 switched the warm-up off, whatever its ratio", "otherwise": "it warms up",
  "source": "verl 0.7.1 verl/workers/fsdp_workers.py:657; 0.9.1 workers/engine/fsdp/transformer_impl.py:514",
  "before": "0.8", "where": ["!megatron", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"],
  "neutral": {"actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "0"}},
"shuffle": {
  "what": "actor.shuffle under FSDP", "why": "FSDP did not read shuffle: mini-batches kept their order",
  "otherwise": "it shuffles them", "as_before": "actor.shuffle=False",
  "source": "verl 0.3.0.post1 verl/workers/actor/dp_actor.py:248; 0.7.1: line 548; 0.9.1 ppo/v1/trainer_base.py:1855",
  "before": "0.8", "where": ["!megatron", "trainer.use_legacy_worker_impl!=disable"],
  "neutral": {"actor_rollout_ref.actor.shuffle": "False", "critic.shuffle": "False"}},
"greedy": {
  "what": "validation without do_sample",
  "why": "without val_kwargs.do_sample, validation was greedy at any temperature", "otherwise": "it samples",
  "as_before": "val_kwargs.temperature=0",
  "source": "verl 0.3.0.post1 verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:210; 0.9.1 v1/agent_loop_tq.py:76",
  "first": "0.3", "before": "0.7",
  "where": ["!actor_rollout_ref.rollout.val_kwargs.do_sample", "actor_rollout_ref.rollout.mode!=async"],
  "neutral": {"actor_rollout_ref.rollout.val_kwargs.temperature": "0"}},
"top_k_of_async": {
  "what": "top_k of mode=async", "why": "with mode=async, top_k was not read", "otherwise": "it acts",
  "as_before": "top_k=-1",
  "source": "verl 0.5.0 verl/experimental/agent_loop/agent_loop.py:259, and 0.6; 0.9.1 v1/agent_loop_tq.py:67",
  "first": "0.5", "before": "0.7",
  "where": ["actor_rollout_ref.rollout.mode=async", "actor_rollout_ref.rollout.name!=sglang"],
  "neutral": {"actor_rollout_ref.rollout.top_k": "-1", "actor_rollout_ref.rollout.val_kwargs.top_k": "-1"}},
"top_k_of_sglang": {
  "why": "with mode=async, top_k was not read", "otherwise": "it acts",
  "source": "verl 0.6.1 verl/workers/rollout/sglang_rollout/async_sglang_server.py:224; 0.5.0 reads it",
  "first": "0.6", "before": "0.7",
  "where": ["actor_rollout_ref.rollout.mode=async", "actor_rollout_ref.rollout.name=sglang"],
  "neutral": {"actor_rollout_ref.rollout.top_k": "-1", "actor_rollout_ref.rollout.val_kwargs.top_k": "-1"}},
"ignore_eos": {
  "why": "ignore_eos was not read", "otherwise": "it acts",
  "source": "verl 0.8.0 verl/workers/rollout/vllm_rollout/vllm_async_server.py:504; 0.9.1: line 624", "first": "0.7",
  "before": "0.9", "neutral": {"actor_rollout_ref.rollout.ignore_eos": "False"}},
"sampling": {
  "what": "repetition_penalty, min_p, stop and the like below `rollout`", "why": "the rollout sampled with it",
  "otherwise": "not read", "nearest": "an agent loop of your own, whose run adds it to sampling_params",
  "source": "verl 0.6.1 verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:266; 0.9.1 v1/agent_loop_tq.py:64",
  "before": "0.7", "where": ["actor_rollout_ref.rollout.mode!=async"],
  "neutral": {
    "actor_rollout_ref.rollout.repetition_penalty": "1", "actor_rollout_ref.rollout.presence_penalty": "0",
    "actor_rollout_ref.rollout.frequency_penalty": "0", "actor_rollout_ref.rollout.min_p": "0",
    "actor_rollout_ref.rollout.min_tokens": "0", "actor_rollout_ref.rollout.stop": "null",
    "actor_rollout_ref.rollout.stop_token_ids": "null", "actor_rollout_ref.rollout.bad_words": "null",
    "actor_rollout_ref.rollout.logit_bias": "null"}},
"chat_template": {
  "what": "custom_chat_template of mode=sync", "why": "custom_chat_template did not reach the prompts",
  "otherwise": "it acts", "as_before": "custom_chat_template=null",
  "source": "verl 0.4.1 verl/trainer/main_ppo.py:87, to 0.6.1: line 287; 0.9.1 workers/config/model.py:177",
  "first": "0.4", "before": "0.7",
  "where": ["actor_rollout_ref.rollout.mode!=async", "!actor_rollout_ref.rollout.multi_turn.enable"],
  "neutral": {"actor_rollout_ref.model.custom_chat_template": "null"}},
"thinking": {
  "why": "apply_chat_template_kwargs was not read", "otherwise": "it acts",
  "source": "verl 0.5.0 verl/utils/dataset/rl_dataset.py has none; 0.6.1: line 302", "before": "0.6",
  "neutral": {"data.apply_chat_template_kwargs.enable_thinking": "True"}},
"correction": {
  "what": "rollout_correction without calculate_log_probs",
  "why": "without calculate_log_probs, rollout_correction had no log-probs and did nothing", "otherwise": "it acts",
  "source": "verl 0.8.0 verl/trainer/ppo/ray_trainer.py:1610, and 0.6; 0.9.1 trainer/config/rollout/rollout.yaml",
  "first": "0.6", "before": "0.9",
  "where": [
    "algorithm.rollout_correction.rollout_is|algorithm.rollout_correction.rollout_rs",
    "!actor_rollout_ref.rollout.calculate_log_probs"],
  "set": {"actor_rollout_ref.rollout.calculate_log_probs": "False"}},
"score_of_model": {
  "what": "a reward model beside a reward function",
  "why": "the reward model gave the reward, and the function only scored validation", "otherwise": "the function",
  "nearest": "leaving the function out",
  "source": "verl 0.6.1 verl/workers/reward_manager/naive.py:50; 0.9.1 reward_loop/reward_loop.py:146",
  "before": "0.7", "where": ["reward_model.enable", "custom_reward_function.path"]},
"vision_tower": {
  "why": "the vision tower was frozen; freeze_vision_tower is not read today", "otherwise": "it trains",
  "nearest": "a model class of your own that freezes it",
  "source": "verl 0.7.1 verl/workers/fsdp_workers.py:537; 0.9.1 workers/config/actor.py:161 alone", "first": "0.6",
  "before": "0.8", "where": ["!megatron"], "neutral": {"actor_rollout_ref.actor.freeze_vision_tower": "False"}},
"remax": {
  "what": "ReMax", "why": "the trainer sampled ReMax's baseline", "otherwise": "an error: no baseline",
  "source": "verl 0.8.0 verl/trainer/ppo/ray_trainer.py:1455; 0.9.1 ppo/v1/trainer_base.py:1745", "before": "0.9",
  "where": ["algorithm.adv_estimator=remax"], "set": {"trainer.use_v1": "False"}},
"pf_ppo": {
  "what": "use_pf_ppo", "why": "rows were drawn again together with their advantages",
  "otherwise": "advantages of other rows",
  "source": "verl 0.8.0 verl/trainer/ppo/ray_trainer.py:227; 0.9.1 ppo/v1/trainer_base.py:1797", "first": "0.4",
  "before": "0.9", "where": ["critic", "algorithm.use_pf_ppo"], "set": {"trainer.use_v1": "False"}},
"critic_sum": {
  "what": "the critic's loss", "why": "it was the sum of the means of its micro-batches",
  "otherwise": "the mean over the mini-batch", "nearest": "leaving it as it is; critic.optim.clip_grad bounds both",
  "source": "verl 0.8.0 verl/workers/utils/losses.py:167; 0.9.1: line 186", "first": "0.8", "before": "0.9",
  "where": ["critic"]},
"critic_rows": {
  "what": "the critic's mini-batch",
  "why": "critic.ppo_mini_batch_size counted rows, not prompts with rollout.n rows each", "otherwise": "prompts",
  "as_before": "critic.ppo_mini_batch_size / rollout.n", "nearest": "critic.ppo_mini_batch_size / rollout.n",
  "source": "verl 0.3.0.post1 verl/workers/fsdp_workers.py:647; 0.9.1 ppo/v1/trainer_base.py:1806", "before": "0.4",
  "where": ["critic"], "neutral": {"actor_rollout_ref.rollout.n": "1"}},
"after_the_end": {
  "what": "GAE with lam below 1", "why": "GAE with lam below 1 also counted the critic's value after the end token",
  "otherwise": "values up to it", "source": "verl 0.3.0.post1 verl/workers/critic/dp_critic.py:156; 0.4.0: line 181",
  "before": "0.4", "nearest": "algorithm.lam=1", "where": ["critic", "algorithm.lam", "algorithm.lam!=1"]},
"reward_thread": {
  "what": "the thread of a reward",
  "why": "a reward ran in the main thread; in today's, signal (the timeout of math_verify) raises",
  "otherwise": "threads",
  "source": "verl 0.6.1 verl/workers/reward_manager/naive.py:89; 0.9.1 reward_loop/reward_manager/naive.py:75",
  "before": "0.7", "where": ["custom_reward_function.path"], "same_if": "the reward uses no signal"},
"batch_end": {
  "why": "on_batch_end of a data set's class is called with trainer.use_v1=False alone",
  "source": "verl 0.5.0 verl/trainer/ppo/ray_trainer.py:1421; 0.9.1: line 1820, not in ppo/v1", "first": "0.5",
  "before": "0.9", "where": ["data.custom_cls.path"]},
"megatron_temperature": {
  "what": "Megatron's log-probs", "why": "Megatron's log-probs were not divided by the temperature",
  "otherwise": "divided by it", "nearest": "1.0",
  "source": "verl 0.5.0 verl/workers/actor/megatron_actor.py has none; 0.6.1: line 577", "before": "0.6",
  "where": ["megatron"], "neutral": {"actor_rollout_ref.rollout.temperature": "1"}},
"megatron_decay": {
  "why": "Megatron's weight decay was 0.01, whatever the setting", "otherwise": "it acts",
  "source": "verl 0.3.0.post1 verl/utils/megatron_utils.py:198; 0.4.1: line 210", "before": "0.4",
  "where": ["megatron"],
  "neutral": {"actor_rollout_ref.actor.optim.weight_decay": "0.01", "critic.optim.weight_decay": "0.01"}},
"megatron_kl_loss": {
  "why": "Megatron did not read use_kl_loss", "otherwise": "it acts",
  "source": "verl 0.2.0.post2 verl/workers/actor/megatron_actor.py:281; 0.3.0.post1: line 296", "before": "0.3",
  "where": ["megatron"], "neutral": {"actor_rollout_ref.actor.use_kl_loss": "False"}},
"megatron_shuffle": {
  "why": "its default under Megatron then", "otherwise": "False, -1",
  "source": "verl 0.3.0.post1 verl/trainer/config/ppo_megatron_trainer.yaml", "before": "0.4", "where": ["megatron"],
  "set": {"actor_rollout_ref.actor.shuffle": "True", "trainer.test_freq": "2"}},
"megatron_schedule": {
  "why": "its default under Megatron then", "otherwise": "constant",
  "source": "verl 0.4.1 verl/trainer/config/ppo_megatron_trainer.yaml", "first": "0.4", "before": "0.5",
  "where": ["megatron"], "set": {"actor_rollout_ref.actor.optim.lr_decay_style": "linear"}},
"megatron_critic": {
  "why": "its default under Megatron then", "otherwise": "constant, 1e-5",
  "source": "verl 0.5.0 verl/trainer/config/critic/megatron_critic.yaml", "first": "0.4", "before": "0.6",
  "where": ["megatron", "critic"], "set": {"critic.optim.lr_decay_style": "linear", "critic.optim.lr": "1e-6"}}
}
"""
OF_PACKAGE = {"trl": json.loads(BY_HAND), "verl": json.loads(BY_HAND_VERL)}
RULES = {r: {"since": e.get("before")} | e for rules in OF_PACKAGE.values() for r, e in rules.items()}
DEFAULT = "its default then"  # why a setting is written that the script does not give, or gives in a branch alone
UNSURE = " (set in a branch)"  # NAME + UNSURE stands for the source of a setting whose value depends on a branch


@dataclass(frozen=True)
class Change:
    """One row of the table: the name and value of a setting today, and why they changed."""

    name: str
    text: str | None  # source of the value; None removes the setting; "": a name without a value, such as a class
    since: str  # the version that changed it
    why: str
    otherwise: str = "TypeError"  # what today's package would do without the change
    source: str = ""  # file and line of the old package, where no signature shows it

    @property
    def setting(self) -> str:
        """NAME=VALUE or NAME, as the new file has it; "" for a removed setting."""
        return "" if self.text is None else f"{self.name}={self.text}" if self.text else self.name


def by_hand(name: str, text: str, rule: str) -> Change:
    """A change whose version and reasons come from a rule of by_hand.json."""
    return Change(name, text, *(RULES[rule][key] for key in ("since", "why", "otherwise", "source")))


def chosen(text: str) -> str:
    """Reduce `A if True else B` to A, and `A if False else B` to B; other text stays."""
    match = re.fullmatch(r"(.*) if (True|False) else (.*)", text)
    return match[1 if match[2] == "True" else 3] if match else text


def rules_of(package: str, version: str) -> list[tuple[str, dict]]:
    """The rules that apply to a version of a package; rules without `before` are used by name only."""
    rules, at = [(rule, RULES[rule]) for rule in OF_PACKAGE[package]], numbers(version)
    return [(r, e) for r, e in rules if "before" in e and numbers(e.get("first", "0")) <= at < numbers(e["before"])]


@dataclass(frozen=True)
class Edit:
    """Replace [start, end) of a file by `text`; start == end inserts it."""

    start: int
    end: int
    text: str
    change: Change | None = None  # None: the edit has no row in the table

    def is_inside(self, start: int, end: int) -> bool:
        """Whether the edit lies within [start, end); an insertion at either end does not, nor does the whole span."""
        return start <= self.start < end and start < self.end <= end and (self.start, self.end) != (start, end)


@dataclass
class Report:
    """What a migration changes, cannot express, and cannot see."""

    edits: list[Edit] = field(default_factory=list)
    impossible: list[dict] = field(default_factory=list)  # line, setting, why, nearest
    notes: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)  # the run is the same only if these hold

    def edit(self, start: int, end: int, text: str, change: Change | None = None) -> None:
        edit = Edit(start, end, text, change)
        if start == end or edit not in self.edits:  # two configs that share a dictionary edit it twice
            self.edits.append(edit)

    def insert(self, at: int, text: str, change: Change | None = None) -> None:
        """Insert a text once, also if two trainers ask for it."""
        if not any((e.start, e.text) == (at, text) for e in self.edits):
            self.edit(at, at, text, change)

    def drop_inner(self) -> None:
        """Drop edits inside text that another edit deletes."""
        cuts = {(e.start, e.end) for e in self.edits if not e.text and e.start < e.end}
        self.edits = [e for e in self.edits if not any(e.is_inside(*cut) for cut in cuts)]

    def refuse(self, line, setting: str, why: str, nearest: str) -> None:
        entry = {"line": line, "setting": setting, "why": why, "nearest": nearest}
        if entry not in self.impossible:
            self.impossible.append(entry)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def note_rule(self, entry: dict) -> None:
        self.note(entry["why"])
        if "same_if" in entry and entry["same_if"] not in self.conditions:
            self.conditions.append(entry["same_if"])

    def rows(self, place) -> list[dict]:
        """The rows of the table in file order; `place(offset)` names the line."""
        ordered = sorted((e for e in self.edits if e.change), key=lambda e: e.start)
        names = ("setting", "since", "why", "otherwise", "source")
        return [{"line": place(e.start)} | {name: getattr(e.change, name) for name in names} for e in ordered]


def edited(text: str, edits: list[Edit]) -> str:
    """Apply edits to a text; insertions at one offset keep their order.

    Raises:
        UserError: two edits overlap, and one of them is not a deletion.
    """
    parts, at, before = [], 0, ""
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at and (edit.text or before):
            got = f"got two changes of {text[edit.start : at].strip()!r}; expected one, so nothing was written"
            raise UserError(f"{got}; try one of them by hand, then migrate.py again")
        parts += [text[at : edit.start], edit.text]
        at, before = max(at, edit.end), edit.text
    return "".join(parts) + text[at:]


def edited_source(source: PythonSource, edits: list[Edit]) -> str:
    """Apply edits to a script or notebook; a notebook keeps its outputs and metadata."""
    if not source.notebook:
        return edited(source.text, edits)
    for cell, start, end in zip(source.cells, source.starts, source.starts[1:], strict=False):
        inside = [Edit(e.start - start, e.end - start, e.text) for e in edits if start <= e.start < end]
        if inside:
            cell["source"] = edited(source.text[start : end - 1], inside).splitlines(keepends=True)
    indent = re.match(r"\{\s*\n( *)", source.raw)
    ending = "\n" if source.raw.endswith("\n") else ""
    return json.dumps(source.notebook, ensure_ascii=False, indent=len(indent[1]) if indent else None) + ending


def edit_arguments(source: PythonSource, given: list[Argument], plan: dict[str, Change], report: Report) -> None:
    """Rename, replace or remove the given arguments that the plan names, in calls and assignments."""
    last = {argument.name: source.code(argument.value) for argument in given}
    for argument in [x for x in given if x.name in plan and plan[x.name].why != DEFAULT]:
        change, name, value = plan[argument.name], argument.name, source.code(argument.value)
        place, text = (argument.start, argument.end), argument.form.format(name=change.name, text=change.text)
        if change.text is None:
            place = place if argument.is_statement else removal(source.text, argument)
            text = "pass" * argument.is_statement
        elif change.text in (last[name], name + UNSURE):  # only the name: another edit may be inside the value
            start = source.text.rindex(name, argument.start, source.start(argument.value))
            place, text, change = (start, start + len(name)), change.name, replace(change, text=value)
        report.edit(*place, text, change)


def removal(text: str, argument: Argument) -> tuple[int, int]:
    """The span to delete for an argument: with its comma, and with its line if it is alone there."""
    start, end = argument.start, argument.end
    after = re.compile(r"\s*,").match(text, end)
    if not after:  # the last one: the comma before it goes
        before = re.search(r",\s*$", text[:start])
        return (before.start(), end) if before else (start, end)
    line = text.rfind("\n", 0, start) + 1
    rest = re.compile(r"[ \t]*(#[^\n]*)?\n").match(text, after.end())
    if not text[line:start].strip() and rest:
        return line, rest.end()
    return start, re.compile(r"[ \t]*").match(text, after.end()).end()


def add_arguments(source: PythonSource, call, added: list[Change], removed: set[int], report: Report) -> None:
    """Insert arguments before the first keyword argument that stays, one per line if the call is laid out so."""
    start, end = source.span(call)
    kept = [k for k in call.keywords if source.start(k) not in removed]
    place = source.start(kept[0]) if kept else source.span(call.args[-1])[1] if call.args else end - 1
    line = source.text.rfind("\n", 0, place) + 1
    indent = re.match(r"[ \t]*", source.text[line:])[0]
    length = len(source.text[line:].partition("\n")[0]) + sum(len(change.setting) + 2 for change in added)
    is_long = length > 110 and "\n" not in source.text[start:end]
    break_ = f"\n{indent}    " if is_long else f"\n{indent}" if kept and not source.text[line:place].strip() else " "
    for number, change in enumerate(added):
        text = change.setting
        if kept:
            text = break_ * (is_long and not number) + f"{text},{break_}"
        elif call.args or number:
            text = f",{break_}{text}"
        start = place - (is_long and not number and kept[:1] == call.keywords[:1] and source.text[place - 1] == " ")
        report.edit(start, place, text, change)


def edit_call(source: PythonSource, call, plan: dict[str, Change], report: Report) -> None:
    """Edit the arguments that a call gives, and add the plan's others."""
    given = source.arguments(call)[0] + source.changes(call)
    edit_arguments(source, given, plan, report)
    names = {argument.name for argument in given}
    added = [x for name, x in plan.items() if x.text is not None and (name not in names or x.why == DEFAULT)]
    removed = {x.start for x in given if x.name in plan and plan[x.name].text is None}
    if added:
        add_arguments(source, call, added, removed, report)


# ----------------------------------------------------------------------- job files (src/programs/migrate/job_files.py)

SECTIONS = (
    "data actor_rollout_ref critic reward_model reward algorithm trainer sandbox_fusion custom_reward_function "
    "ray_init ray_kwargs global_profiler transfer_queue distillation"
).split()
PART = r"""\\.|\$\(\([^\n]*?\)\)|\$\([^)\n]*\)|\$\{[^}\n]*\}|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\;|&()]"""
WORD = re.compile(
    rf"(?<![^\s(\"'=])(?P<sign>\+\+|\+|~)?(?P<key>(?:{'|'.join(SECTIONS)})(?:\.[\w@/-]+)+)(?:=(?P<value>(?:{PART})*))?"
)
OTHER = re.compile(rf"(?<=\s)(?P<sign>\+*)(?P<key>[a-z_]+(?:\.\w+)*)=(?P<value>(?:{PART})*)")
COMMAND = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\d?>&?\d|[^\n\\|;&>'"])*""", re.S)
STRING = re.compile(  # a quoted string, or what may hold an unpaired quote: an escape, a comment, a here-document
    r"""\\.|(?<!\S)\#[^\n]*|(?<!<)<<-?[ ]*['"]?(\w+)['"]?[^\n]*\n(?s:.*?)\n[ \t]*\1\b|'[^']*'|"(?:\\(?s:.)|[^"\\])*\""""
)
OPENED = re.compile(r"^[ \t]*(?:if\b(?!.*:[ \t]*$)|case\b.*\bin\b)", re.M)  # but no `if …:` of Python code in a job
CLOSED = re.compile(r"(?:^|;)[ \t]*(?:fi|esac)\b", re.M)
FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*\(\)", re.M)
VARIABLE = re.compile(r"^[ \t]*(?:(?:export|local|declare)[ \t]+)?(\w+)\+?=", re.M)
IN_BRANCH = "$(set in a branch)"  # stands for the value of a setting that is set in a branch or set twice
MAIN = re.compile(r"-m\s+([\w.]+)|(\S*/?\w*main_\w+\.py)\b")


@dataclass(frozen=True)
class Word:
    """A setting of a job as it stands in its file."""

    key: str
    value: str | None
    start: int
    end: int
    sign: str = ""
    in_branch: bool = False  # inside a branch of the shell, which may not run
    literal: str | None = None  # what the value stands for, if it is a variable of one plain line

    @property
    def known(self) -> str:
        return (self.value if self.literal is None else self.literal) or ""

    @property
    def plain(self) -> str:
        """The value without the quotes of the shell or of YAML."""
        return self.known.strip().strip("'\"")

    @property
    def is_fixed(self) -> bool:
        """Whether the value contains no shell variable or command."""
        return "$" not in self.known and "`" not in self.known


class JobFile:
    """A text with settings at known offsets."""

    text: str

    def place(self, offset: int) -> str:
        return f"line {self.text.count(chr(10), 0, offset) + 1}"

    def edited(self, edits: list[Edit]) -> str:
        return edited(self.text, edits)

    def commands(self) -> list["JobFile"]:
        """One job for each run that the file starts."""
        return [self]

    def apply(self, edits: list[tuple[Word, Change]], added: list[Change], report: Report) -> None:
        """Rename, replace or remove settings, and add others."""
        for word, change in edits:
            edit = self.remove if change.text is None else self.replace
            edit(word, change, report)
        self.add([change for change in added if change.text is not None], report)


class ShellJob(JobFile):
    """A shell script; only its words KEY=VALUE are edited."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text
        marks = [(match[0][0], match.start() + 1, match.end() - 1) for match in STRING.finditer(text)]
        self.strings = [(start, end) for mark, start, end in marks if mark in "'\""]
        self.comments = [(start, end) for mark, start, end in marks if mark == "#"]
        self.words = [*self.find_words(WORD, 0, len(text))]
        mains = [match for match in MAIN.finditer(text) if not self.in_comment(match.start())]
        self.mains = [(m[1] or m[2], m.start(), m.end()) for m in mains if re.search("main|sft", m[1] or m[2])]
        self.spans = [(start, self.command_end(end)) for _, start, end in self.mains]
        for start, end in self.spans:  # within a command, words of other sections are settings too
            words = self.find_words(OTHER, start, end)
            self.words += [word for word in words if word.key.split(".")[0] not in (*SECTIONS, "hydra")]

    def command_end(self, start: int) -> int:
        """The offset where a command ends: the closing quote around it, or the shell's separator."""
        return COMMAND.match(self.text, start, (self.around(start) or (0, len(self.text)))[1]).end()

    def commands(self) -> list["ShellJob"]:
        """One job for each main module, with the words of its command and variables, and words that no command uses."""
        jobs = []
        for main, span in zip(self.mains, self.spans, strict=True):
            job = copy(self)
            job.mains, job.spans, job.words = [main], [span], []
            for word in self.words:
                users = [place for place in self.spans if place[0] <= word.start < place[1]]
                is_inside = bool(users)
                if not users and (names := VARIABLE.findall(self.text, 0, word.start)):
                    users = [(a, b) for a, b in self.spans if re.search(rf"\$\{{?{names[-1]}\b", self.text[a:b])]
                if span in users or not users:
                    job.words.append(replace(word, in_branch=not is_inside and self.in_branch(word.start)))
            jobs.append(job)
        return jobs or [self]

    def in_branch(self, place: int) -> bool:
        """Whether the shell may skip an offset: inside `if` or `case`, after && or ||, or in one call of a function."""
        text = self.text[:place]
        is_inside = len(OPENED.findall(text)) > len(CLOSED.findall(text))
        statement = re.split(r"(?<!\\)\n", text)[-1]
        is_call = any(re.match(rf"\s*{name}\s", statement) for name in FUNCTION.findall(self.text))
        return is_inside or is_call or bool(re.search(r"&&|\|\|", statement))

    def find_words(self, pattern: re.Pattern, start: int, end: int):
        """Yield the words between two offsets that match, in order, except those in comments."""
        while match := pattern.search(self.text, start, end):
            word = self.word(match)
            start = max(word.end, match.start() + 1)
            if not self.in_comment(word.start) and (word.value is not None or word.sign == "~"):
                yield word

    def word(self, match: re.Match) -> Word:
        value, start, end = match["value"], match.start(), match.end()
        around = self.around(start)
        if around and value is not None:  # in quotes it ends with them, or where another setting follows
            is_alone = around[0] == start and not WORD.search(self.text, start + 1, around[1])
            end = around[1] if is_alone else match.re.match(self.text, start, around[1]).end()
            value = self.text[match.start("value") : end]
        return Word(match["key"], value, start, end, match["sign"] or "", literal=self.literal(value, start))

    def literal(self, value: str | None, place: int) -> str | None:
        """What a variable stands for, if one line of its own, outside branches, gives it a plain value."""
        text, name = self.text[:place], re.fullmatch(r'"?\$\{?(\w+)\}?"?', value or "")
        lines = [*re.finditer(rf"(?<![\w.${{/-]){name[1]}\b.*", self.text)] if name else []
        lines = [line for line in lines if not self.in_comment(line.start())]
        if len(lines) != 1 or self.in_branch(lines[0].start()) or self.around(lines[0].start()):
            return None
        line = re.compile(rf"^(?:export )?{name[1]}=((?:{PART})*)[ \t]*(?:#.*)?$(?!(?s:.*)^[ \t]*(?:source|\.) )", re.M)
        match = line.search(text)
        return match[1] if match and "$" not in match[1] and "`" not in match[1] else None

    def around(self, place: int) -> tuple[int, int] | None:
        """The span of the quoted text around an offset, or None."""
        return next((span for span in self.strings if span[0] <= place < span[1]), None)

    def in_comment(self, place: int) -> bool:
        return any(start <= place <= end for start, end in self.comments)

    def replace(self, word: Word, change: Change, report: Report) -> None:
        report.edit(word.start, word.end, change.setting, change)

    def remove(self, word: Word, change: Change, report: Report) -> None:
        text, start, end = self.text, word.start, word.end
        quote = text[start - 1 : start]
        if quote in ("'", '"') and text[end : end + 1] == quote:
            start, end = start - 1, end + 1
        line = text.rfind("\n", 0, start) + 1
        rest = re.compile(r"[ \t]*(\\)?[ \t]*(\n|$)").match(text, end)
        before = re.search(r"[ \t]*\\[ \t]*\n$", text[:line])
        if text[line:start].strip() or not rest:
            report.edit(start, re.compile(r"[ \t]*").match(text, end).end(), "", change)
        elif rest[1] or not before:
            report.edit(line, rest.end(), "", change)
        else:  # the last line of a command: the line before loses its backslash
            report.edit(before.start(), end, "", change)

    def add(self, settings: list[Change], report: Report) -> None:
        """Insert words right after each main module, so that the job's own words, which follow, win."""
        places = [end for _, _, end in self.mains]
        for place in places or [max((word.end for word in self.words), default=len(self.text))]:
            statement = self.text[self.text.rfind("\n", 0, place) + 1 : place]
            break_ = " " if statement.count("'") % 2 else " \\\n    " if places else "\n"
            for change in settings:
                is_first = place == (places or [place])[0]
                report.edit(place, place, break_ + change.setting, change if is_first else None)


class YamlJob(JobFile):
    """A YAML file of settings; lines are edited where they stand."""

    def __init__(self, name: str, text: str):
        import yaml

        self.name, self.text = name, text
        try:
            root = yaml.compose(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}, line {mark.line + 1}" if mark else name
            problem = getattr(error, "problem", error)
            advice = "try the value in place of an alias (*name), or a YAML checker"
            raise UserError(f"{where}: got {problem}; expected YAML; {advice}") from None
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"got {name} without 'key: value' lines; expected settings; try the file of a run")
        self.sections = {"": root}
        self.starts: dict[str, int] = {}  # {section: offset of its key}
        self.moved: list[Change] = []  # settings that change their section; `add` writes them
        self.removed: set[str] = set()
        words = [*self.below(root, "")]
        self.words = [w for w in words if "." in w.key or f"${{{w.key}}}" not in text]  # no names that ${…} reads
        fork_words = [w for w in words if w.key.startswith("worker.")][:1]
        self.mains = [("verl.trainer.main", w.start, w.end) for w in fork_words]

    def below(self, node, prefix: str):
        """Yield the words of a mapping; note its sections."""
        for key, value in node.value:
            name, start = f"{prefix}{key.value}", key.start_mark.index
            if name in ("defaults", "hydra"):  # Hydra's own
                continue
            if isinstance(value.value, list) and value.value and isinstance(value.value[0], tuple):
                if key.value == "<<":  # merged here
                    yield from self.below(value, prefix)
                    continue
                self.sections[name], self.starts[name] = value, start
                yield from self.below(value, f"{name}.")
                continue
            alias = re.compile(r"\s*:\s*\*[^\s,}\]]+").match(self.text, key.end_mark.index)
            end = alias.end() if alias else value.end_mark.index
            end = len(self.text[:end].rstrip()) if "\n" in self.text[start:end] else end
            text = self.text[value.start_mark.index : value.end_mark.index if alias else end]
            literal = re.sub(r"^&\S+\s*", "", text)
            yield Word(name, literal if alias else text, start, end, literal=literal)

    def edited(self, edits: list[Edit]) -> str:
        text = super().edited(edits)
        YamlJob(f"the new text of {self.name}", text)  # which an alias of a line that went would make invalid
        return text

    def replace(self, word: Word, change: Change, report: Report) -> None:
        section, _, name = change.name.lstrip("+").rpartition(".")
        if section == word.key.rpartition(".")[0]:
            report.edit(word.start, word.end, f"{name}: {change.text}", change)
        else:
            self.remove(word, change, report)
            self.moved.append(change)

    def remove(self, word: Word, change: Change, report: Report) -> None:
        self.removed.add(word.key)
        if self.sections[word.key.rpartition(".")[0]].flow_style:
            report.edit(*removal(self.text, word), "", change)
        else:
            self.cut(word.start, word.end, change, report)

    def cut(self, start: int, end: int, change: Change | None, report: Report) -> None:
        after = self.text.find("\n", end)
        report.edit(self.text.rfind("\n", 0, start) + 1, len(self.text) if after < 0 else after + 1, "", change)

    def add(self, settings: list[Change], report: Report) -> None:
        """Delete sections that are now empty; put each setting at the end of the deepest section that exists."""
        import yaml

        for name, start in self.starts.items():
            if all(word.key in self.removed for word in self.words if word.key.startswith(f"{name}.")):
                section = self.sections.pop(name)
                end = section.end_mark.index if section.flow_style else start
                line = self.text.rfind("\n", 0, start) + 1  # where the rows of the edits that the cut drops go
                inside = {"start": line, "end": line, "text": ""}
                report.edits = [replace(e, **inside) if start < e.start and e.end <= end else e for e in report.edits]
                self.cut(start, end, None, report)
        trees, rows = {}, {}
        for change in [*self.moved, *settings]:
            parts = change.name.lstrip("+").split(".")
            depth = max(i for i in range(len(parts)) if ".".join(parts[:i]) in self.sections)
            home = ".".join(parts[:depth])
            node = trees.setdefault(home, {})
            rows.setdefault(home, []).extend([change] if change in settings else [])
            for part in parts[depth:-1]:
                if not isinstance(node.get(part), dict):
                    node[part] = {}
                node = node[part]
            if not isinstance(node.get(parts[-1]), dict):  # else the section that a ${…} stands for moves here itself
                node[parts[-1]] = yaml.safe_load(change.text)
        for name, tree in sorted(trees.items(), key=lambda tree: tree[0].count(".") if tree[0] else -1, reverse=True):
            section = self.sections[name]
            last = max(node.end_mark.index for node in section.value[-1])  # an alias ends where its anchor does
            line_end = self.text.find("\n", len(self.text[:last].rstrip()))
            place = len(self.text) if line_end < 0 else line_end + 1  # on a new line, as the last one may be deleted
            text = textwrap.indent(yaml.safe_dump(tree, sort_keys=False), " " * section.value[0][0].start_mark.column)
            text = f"\n{text[:-1]}" if line_end < 0 else text
            if section.flow_style:
                place = section.end_mark.index - 1
                text = ", " + yaml.safe_dump(tree, sort_keys=False, default_flow_style=True, width=1e9).strip()[1:-1]
            report.edit(place, place, text)
            for change in rows[name]:
                report.edit(place, place, "", change)


# ----------------------------------------------------------------- trl settings (src/programs/migrate/trl_settings.py)

SAMPLING = ("GRPOConfig", "RLOOConfig")
UNKNOWN = object()  # the value of an argument that is not a literal
NO_CALLS = ("isinstance", "issubclass", "super", "hasattr", "fields")  # these call no class that they get
CUT = ("max_prompt_length", "max_target_length", "max_completion_length")  # if no config has it, an added class cuts
OF_OTHERS = ("per_device_train_batch_size", "per_device_eval_batch_size", "temperature", "generation_kwargs", "top_k")
SAME = ([None, 0, -1], [True, "group"], [False, "none"])  # values of top_k and scale_rewards that are one setting
MAKES_MODEL = re.compile("from_pretrained|from_config|^get_.*model|^[A-Z]")  # functions that return a model
GIVES_NAME = re.compile("^f?['\"]|name|path|args[.]|argv|environ|model_id|checkpoint", re.I)  # expressions of a name
OLD_TRAINERS = '''\
"""Methods of old trainers for a subclass of a script's trainer; values from the script become default arguments."""

from trl import DPOTrainer, GRPOTrainer, SFTTrainer


class Prompts(GRPOTrainer):
    def _tokenize_prompts(self, prompts, limit="{limit}"):
        # {comment}
        if isinstance(prompts[0], str):
            ids = self.processing_class(text=prompts, add_special_tokens="{special}")["input_ids"]
            parts = ids, None, {}
        else:
            parts = super()._tokenize_prompts(prompts)
        return [row[-limit:] for row in parts[0]], *parts[1:]


class InOrder(GRPOTrainer):
    def _prepare_inputs(self, inputs):
        # {comment}
        from trl.trainer.utils import split_tensor_dict

        if not self.model.training:
            return super()._prepare_inputs(inputs)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = split_tensor_dict(self._generate_and_score_completions(inputs), parts)
        return self._buffered_inputs[self._step % parts]


class EndToken(GRPOTrainer):
    # {comment}
    eos_token_ids = property(lambda self: [self._tokenizer.eos_token_id], lambda self, ids: None)


class Spread(GRPOTrainer):
    def _calculate_rewards(self, *args):
        # {comment}
        self._scores = super()._calculate_rewards(*args)  # of all processes
        return self._scores

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rewards = (self._scores * self.reward_weights.to(self._scores.device)).nansum(dim=1)
        mode, size = ("train", self.num_generations) if self.model.training else ("eval", self.num_generations_eval)
        self._metrics[mode]["reward_std"][-1] = rewards.view(-1, size).std(dim=1).mean().item()
        return batch


class DPO(DPOTrainer):
    def _prepare_dataset(self, rows, tokenizer, args, *rest, limit="{limit}", answer="{answer}", longest="{longest}"):
        # {comment}
        def cut(row):
            prompt, answers = row["prompt_ids"], {key: row[key] for key in ("chosen_ids", "rejected_ids")}
            tokens = max(map(len, answers.values()))
            if len(prompt) + tokens > longest:
                prompt = "{part}"
            if len(prompt) + tokens > longest:
                answers = {key: ids[:answer] for key, ids in answers.items()}
            return answers | {"prompt_ids": prompt}

        args.max_length, length = None, args.max_length  # drops no long prompt
        rows = super()._prepare_dataset(rows, tokenizer, args, *rest)
        args.max_length = length
        return rows.map(cut)


class SFT(SFTTrainer):
    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        # {comment}
        if packing:
            return super()._prepare_dataset(rows, tokenizer, args, packing, formatting_func, *rest)
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
'''


def reward_functions(source: PythonSource) -> list[ast.AST]:
    """The functions of a file with a parameter `completions`, which TRL passes to rewards by keyword."""
    functions = [x for x in source.nodes if isinstance(x, FUNCTIONS)]
    return [x for x in functions if "completions" in {y.arg for y in [*x.args.args, *x.args.kwonlyargs]}]


@dataclass
class TrlRun:
    """One config call of a script under one version."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    of_trainer: dict[str, ast.expr] = field(default_factory=dict)  # settings given to the trainer, not the config
    unseen_args: ast.expr | None = None  # the expression of a config that is made at run time
    trainer: ast.Call | None = None  # which reads most settings: what is set after it counts as set in a branch

    def __post_init__(self):
        source, call, made = self.source, self.call, self.call or self.unseen_args
        late = source.start(self.trainer) if self.trainer else len(source.text)
        given, self.unseen = source.arguments(call) if call else ([], [made] if made else [])
        self.fields = {} if call else {x.name: x for x in source.fields(self.config)}  # of a config class in the script
        changes = source.changes(made) if made else []
        self.arguments = [*self.fields.values(), *given]
        self.arguments += [replace(x, is_sure=x.is_sure and x.start < late) for x in changes]
        # {old or new name of a setting: the expression given}
        self.nodes = {argument.name: argument.value for argument in self.arguments} | self.of_trainer
        # set in a branch, or changed where that is not followed
        self.unsure = {argument.name for argument in self.arguments if not argument.is_sure}
        self.unsure |= {getattr(change, "attr", "") for change in (source.hidden_changes(made) if made else [])}
        for name, node in [*self.nodes.items()]:
            new = gone_entry(self.config, name).get("renamed")
            if new and name != "warmup_ratio":
                self.nodes.setdefault(new, node)
                self.unsure |= {new} if name in self.unsure else set()

    def has(self, name: str) -> bool:
        return name in self.nodes

    def in_branch(self, name: str) -> list[Argument]:
        """The arguments that set it, if each of them is in a branch of the script."""
        given = [x for x in self.arguments if name in (x.name, gone_entry(self.config, x.name).get("renamed"))]
        is_set = name in {*self.fields, *self.of_trainer} or any(argument.is_sure for argument in given)
        return [] if is_set else given

    def branches(self, name: str) -> set[ast.AST]:
        return {self.source.parents[self.source.parents[x.value]] for x in self.in_branch(name)}

    def value(self, name: str):
        """The literal given, else the version's default, else None; UNKNOWN for an expression or an unsure value."""
        try:
            if name in self.unsure:
                return UNKNOWN
            if member := self.member(name):
                return member[1]
            return self.source.value(self.nodes[name]) if self.has(name) else self.default(name)
        except (ValueError, TypeError):
            return UNKNOWN

    def member(self, name: str) -> tuple[str, str] | None:
        """(class, text) of a setting that is a member of an enumeration of TRL or transformers; else None."""
        node = self.source.resolved(self.nodes.get(name))
        owner = self.source.imports.get(getattr(getattr(node, "value", None), "id", ""), ("", ""))
        is_member = isinstance(node, ast.Attribute) and node.attr.isupper() and owner[0].startswith(("trl", "transf"))
        return (owner[1], node.attr.lower()) if is_member else None

    def default(self, name: str):
        default = default_at(self.config, name, self.version)
        return None if default is ABSENT else default

    def text(self, name: str) -> str:
        """The source of an argument, else of its default; NAME + UNSURE for an unsure value."""
        if name in self.unsure:
            return name + UNSURE
        return self.source.code(self.nodes[name]) if name in self.nodes else repr(self.default(name))

    def place(self, name: str) -> str:
        """The place where an argument is last given; "" for a default."""
        return self.source.place(self.nodes[name]) if name in self.nodes else ""

    @property
    def model(self) -> str:
        """Whether the trainer's model is given by `name` or as an `object`; "" if that cannot be seen."""
        node = self.trainer and self.source.resolved(self.source.argument(self.trainer, "model", ("model",)))
        while isinstance(node, ast.Call) and isinstance(getattr(node.func, "value", None), ast.Call):
            node = node.func.value  # of AutoModelForCausalLM.from_pretrained(NAME).to("cuda")
        if isinstance(node, ast.Call):
            return "object" if MAKES_MODEL.search(self.source.name_of(node)) else ""
        return "name" if node and GIVES_NAME.search(self.source.code(node)) else ""

    def is_on(self, name: str) -> bool:
        """Whether a setting, given or by default, may be other than off."""
        return self.value(name) not in (None, False, "no")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)


Plan = dict[str, Change]  # {argument: its change}


def by_rules(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Yield the settings of the rules in by_hand.json that apply to a run; report their notes and refusals."""
    rules = [(r, e) for r, e in rules_of("trl", run.version) if not (run.trainer and "method" in e)]
    for rule, entry in [(rule, entry) for rule, entry in rules if applies(run, entry)]:
        plan = {key: by_hand(key, text_of_rule(run, form), rule) for key, form in entry.get("set", {}).items()}
        wanted, (name, others) = entry.get("is", {}), next(iter(entry.get("is_not", {}).items()), ("", ()))
        values = [run.value(name), *(run.value(x) if isinstance(x, str) else x for x in others)]
        is_known = name != "" and not any(x is None or x is UNKNOWN for x in values)
        if is_known and values[0] in values[1:]:
            continue
        if unknown := next((x for x in wanted if run.value(x) is UNKNOWN), None):
            shown = ", ".join(map(str, wanted[unknown]))
            settings = "".join(f": {change.setting}" for change in plan.values() if change.setting)
            report.note(f"{unknown} is known at run time only; if it is {shown}: {entry['why']}{settings}")
            continue
        yield plan
        if "nearest" in entry or (is_known and "set" not in entry):
            name = name or re.match(r"\w+", entry["shown"])[0]
            nearest = entry.get("nearest") or entry["same_if"]
            report.refuse(run.place(name), entry.get("shown", f"{name}={run.text(name)}"), entry["why"], nearest)
        elif "set" not in entry or "same_if" in entry:
            report.note_rule(entry)


def applies(run: TrlRun, entry: dict) -> bool:
    """Whether a rule may apply. Each condition that the rule has must hold:

    - `configs` has the run's; `when`: one of these is on; `given`: it is given; `unless`: neither given nor imported.
    - `is`: these settings have a listed value or an unknown one; `text`: the source of some reward matches.
    - `model`: the trainer's is given like this, or it cannot be seen.
    - `member`: one of the settings of `is` is a member of an enumeration, or none if false.
    """
    unless, rewards = entry.get("unless"), reward_functions(run.source) if "text" in entry else ()
    is_on = run.config in entry["configs"] and ("when" not in entry or any(map(run.is_on, entry["when"])))
    is_out = unless in {*run.source.imports, *run.source.calls}
    is_out = is_out or (run.has(unless) and run.value(unless) is not None)
    for name, wanted in entry.get("is", {}).items():
        value = run.value(name)
        values = value if isinstance(value, list) else [value]
        is_on = is_on and (value is UNKNOWN or any(x in wanted for x in values))
    is_on = is_on and entry.get("model") in (None, run.model or entry.get("model"))
    is_on = is_on and entry.get("member") in (None, any(map(run.member, entry.get("is", ()))))
    has_text = re.search(entry.get("text", ""), "\n".join(map(run.source.code, rewards)))
    return bool(is_on and has_text) and not is_out and ("given" not in entry or run.has(entry["given"]))


def term(text: str) -> str:
    """Put an expression into parentheses unless it is a name, a number or in parentheses already."""
    return text if re.fullmatch(r"[\w.]+(\[[^][]*\])*|\([^()]*\)", text.removesuffix(UNSURE)) else f"({text})"


def text_of_rule(run: TrlRun, form: str | None) -> str | None:
    """Fill a text of by_hand.json with the settings that it names; compute it if they are two numbers."""
    if form is None:
        return None
    text = form.format_map({name: term(run.text(name)) for name in re.findall(r"\{(\w+)\}", form)})
    if numbers := re.fullmatch(r"([\d.]+) ([*-]) ([\d.]+)", text):
        first, second = map(ast.literal_eval, numbers.group(1, 3))
        return str(first * second if numbers[2] == "*" else first - second)
    return chosen(text)


def one_device(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Load a model given by name onto one device, by a `device_map` that one of the script's overrides."""
    source, change, name = run.source, by_hand("device_map", "None", "one_device"), "model_init_kwargs"
    node, value, model = run.nodes.get(name), run.value(name), run.model
    is_given = node is not None and any(item.name == "device_map" for item in source.items(node)[0])
    if is_given or model == "object" or not run.before("0.26") or run.config not in RULES["one_device"]["configs"]:
        return
    is_hidden = run.unseen or name in {*run.unsure, *run.fields, *run.of_trainer}
    if model != "name" or is_hidden or isinstance(value, str):
        report.note(change.why)
    elif value in (None, {}):
        yield {name: replace(change, name=name, text='{"device_map": None}')}
    elif isinstance(node, ast.Dict):
        space = re.match(r"\s*", source.code(node)[1:])[0]
        report.insert(source.start(node) + 1 + len(space), f'"device_map": None,{space or " "}', change)
    else:
        made = source.resolved(node)
        first, last = ("", "") if isinstance(made, ast.Dict) or source.name_of(made) == "dict" else ("(", " or {})")
        report.insert(source.start(node), f'{{"device_map": None, **{first}', change)
        report.insert(source.span(node)[1], last + "}")


def warmup(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Migrate warmup_ratio, today a warmup_steps below 1."""
    since, ratio, text = "transformers 5.0", run.value("warmup_ratio"), run.text("warmup_ratio")
    steps = run.value("warmup_steps") if run.has("warmup_steps") else 0
    if not run.has("warmup_ratio"):
        return
    if (ratio is not UNKNOWN and ratio >= 1) or steps is UNKNOWN:
        why = "warmup_steps counts steps from 1 on, and won over it if it was not 0"
        report.refuse(run.place("warmup_ratio"), f"warmup_ratio={text}", why, "the number of all steps")
    elif steps:
        yield {"warmup_ratio": Change("warmup_ratio", None, since, "warmup_steps won over it")}
    else:
        plan = {"warmup_ratio": Change("warmup_steps", text, since, "warmup_steps below 1 is the share")}
        if run.has("warmup_steps"):  # one argument for both
            plan["warmup_steps"] = Change("warmup_steps", None, since, "0 left the warmup to warmup_ratio")
        yield plan


def sft_term(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Migrate DPO's rpo_alpha, today the weight of a loss `sft`, and the loss aot_pair."""
    kinds, shown, why = run.value("loss_type"), run.text("loss_type"), "rpo_alpha weighed the SFT term"
    if run.config != "DPOConfig" or not run.before("0.29"):
        return
    renamed = re.sub(r"(['\"])aot_pair\1", r"\1aot_unpaired\1", shown)
    if renamed != shown:
        yield {"loss_type": Change("loss_type", renamed, "0.29", "its new name", "ValueError")}
    elif kinds is UNKNOWN:
        report.note("loss_type is known at run time only; if it is aot_pair: the name is gone, now aot_unpaired")
    if run.has("rpo_alpha") and run.value("rpo_alpha") is None:
        yield {"rpo_alpha": Change("rpo_alpha", None, "0.29", "there was no SFT term")}
    elif run.has("rpo_alpha"):
        weights = ", ".join(["1.0"] * (len(kinds) if isinstance(kinds, list) else 1))
        weights = run.text("loss_weights")[1:-1] if run.has("loss_weights") else weights
        losses = renamed[1:-1] if isinstance(kinds, list) else renamed
        weight = run.text("rpo_alpha") + (" or 0.0" if run.value("rpo_alpha") is UNKNOWN else "")  # None: no SFT term
        plan = {"rpo_alpha": Change("loss_weights", f"[{weights}, {weight}]", "0.29", why)}
        plan["loss_type"] = Change("loss_type", f'[{losses}, "sft"]', "0.29", why)
        if run.has("loss_weights"):
            why = "its weights stand before that of the SFT term"
            plan["loss_weights"] = Change("loss_weights", None, "0.29", why)
        yield plan


def meanings(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Yield the changes that no signature shows, in plans that apply as a whole or not at all."""
    yield from by_rules(run, report)
    yield from one_device(run, report)
    yield from warmup(run, report)
    yield from sft_term(run, report)


def python(value) -> str:
    """Python source of a default in the tables."""
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def is_same(name: str, old, new) -> bool:
    if (isinstance(old, bool) is isinstance(new, bool) and old == new) or new == [old]:
        return True
    return name in ("top_k", "scale_rewards") and any(old in group and new in group for group in SAME)


def given_changes(run: TrlRun, report: Report) -> dict[str, Change]:
    """Changes of given arguments that no longer exist."""
    plan, cut = {}, () if run.config == "DistillationConfig" else CUT  # no class cuts for Distillation
    for name, (owner, text) in {name: run.member(name) or ("", "") for name in run.nodes}.items():
        if owner in NAMES["gone_names"]:
            plan[name] = Change(name, f'"{text}"', "0.29", f"the text of a member of {owner}", "ImportError")
    for name in [n for n in run.nodes if n not in ("warmup_ratio", "rpo_alpha", *run.of_trainer)]:
        gone, place = gone_entry(run.config, name), run.source.place(run.nodes[name])
        if not gone or (name in cut and name in run.fields):
            continue
        if name in cut and name in run.unsure:
            report.refuse(place, name, f"set in a branch, and no trainer has {name}", "a trainer for each value")
            continue
        since = gone["since"] if name in cut else since_of(run.config, name, run.version)
        new, text = gone.get("renamed"), run.text(name)
        new, form = NAMES["forms"].get(name, (new if new in trl_defaults(run.config) else None, "{}"))
        others = {*run.of_trainer, *NAMES["lossless"]}
        if new and new not in {x.name for x in run.arguments} and not {new, name} & others:
            plan[name] = Change(new, chosen(form.format(text)), since, f"the new name of {name}")
            continue
        is_idle = run.value(name) in (None, False, "", NAMES["same_values"].get(name))
        is_lost = not (name in (*cut, *NAMES["lossless"]) or new or is_idle)
        effect = ", and the run is the same" if not is_lost and name not in cut else ""
        plan[name] = Change(name, None, since, f"{name} is gone{effect}")
        if is_lost:
            nearest = NAMES["gone_arguments"].get(name, "leaving it out")
            report.refuse(place, f"{name}={text}", f"gone since {since}", nearest)
    return plan


def default_changes(run: TrlRun) -> dict[str, Change]:
    """Old values of defaults that changed, for settings that the script does not give, or in a branch alone."""
    tables, plan = changes("trl")["configs"], {}
    for name in dict.fromkeys([*tables.get(run.config, {}), *tables["TrainingArguments"]]):
        old, new = default_at(run.config, name, run.version), default_at(run.config, name, newest("trl"))
        is_beside = ABSENT in (old, new) or name in NAMES["beside_the_run"]
        is_given = run.has(name) and not run.in_branch(name)
        if is_beside or is_given or is_same(name, old, new) or is_idle(run, name):
            continue
        plan[name] = Change(name, python(old), since_of(run.config, name, run.version), DEFAULT, python(new))
    return plan


def is_idle(run: TrlRun, name: str) -> bool:
    """Whether a setting has no effect in a run, for what the script gives or its config."""
    switch, off = next((x for start, x in NAMES["acts_unless"].items() if name.startswith(start)), (None, ()))
    if not switch:
        return name == "average_tokens_across_devices" and run.config != "SFTConfig"
    branches = run.branches(name)
    is_on_there = branches and branches <= run.branches(switch)  # and off elsewhere
    return run.value(switch) in off or (is_on_there and run.default(switch) in off)


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    """{argument: its change}, with arguments to add."""
    plan = given_changes(run, report) | default_changes(run)
    items = {name: [x for x in run.in_branch(name) if not x.form.endswith(".{name} = {text}")] for name in plan}
    for name in [name for name in items if items[name] and plan[name].why == DEFAULT]:  # of a dictionary
        why = f"set in a branch; without it, its default was {plan[name].text} then"
        report.refuse(run.place(name), name, why, f"{plan[name].setting} before the branch")
        del plan[name]
    is_made_elsewhere = run.call is None and run.config in run.source.calls  # that call is edited itself
    for group in meanings(run, report):
        for name in [name for name in group if run.unseen and name in OF_OTHERS and group[name].source]:
            change = group.pop(name)
            if not is_made_elsewhere or name in {*run.nodes, *run.unsure}:
                report.note(f"{name}: {change.why}: edit it by hand, as the settings cannot be seen")
        of_branch = [c for name, c in group.items() if UNSURE in (c.text or "") and c.text != name + UNSURE]
        for name in [name for name in run.unsure if any(name + UNSURE in c.text for c in of_branch)]:
            shown = ", ".join(c.setting.replace(UNSURE, "") for c in group.values() if c.text)
            why = f"set in a branch, or changed later: {of_branch[0].why}"
            report.refuse(run.place(name), name, why, f"{shown}, each with the value of its branch")
        plan |= {} if of_branch else group  # an edit would be right in one branch only
    return plan


def prompt_limit(run: TrlRun, call: ast.Call | None = None):
    """(Tokens that the old version cut prompts to, None or UNKNOWN; their source before the trainer's call)."""
    limit, node, default = run.value("max_prompt_length"), run.nodes.get("max_prompt_length"), 0
    if run.config == "DPOConfig" and run.before("0.12"):
        limit, default = limit or 128, 128
    limit = 512 if limit == -1 else limit  # DPO of 0.28: not set
    if limit is not UNKNOWN:
        is_name = call and isinstance(node, ast.Name) and not run.source.rebound(node, node, call)
        return limit, node.id if is_name and run.value("max_prompt_length") == limit else str(limit)
    is_field = "max_prompt_length" in run.fields  # which stays, as the class of the settings is the script's
    text = f"{run.source.code(run.unseen_args)}.max_prompt_length" if is_field else run.text("max_prompt_length")
    return limit, f"{term(text)} or {default}"


def old_rows(run: TrlRun, takes_text: bool, call: ast.Call | None = None) -> tuple[str, Change] | None:
    """(Source, row of the table) of a method that makes rows as the old version; None if not needed.

    `takes_text`: SFT's rows are plain texts, to which the old version added no end token.
    """
    limit, shown = prompt_limit(run, call)
    is_cut, cuts_rows = run.before("0.29") and limit is not None, run.config == "DPOConfig" and run.before("0.12")
    if run.config in SAMPLING and (is_cut or run.before("0.26")):
        values = {"limit": shown if is_cut else "0", "special": not run.before("0.26")}
        return one_method("Prompts", "prompts" if is_cut else "plain_prompts", **values)
    if run.config == "DPOConfig" and is_cut:
        longest = "512" if run.value("max_length") is None else run.text("max_length")
        answer = f"{term(longest)} - {term(shown)}" if cuts_rows else run.text("max_completion_length")
        part = ":limit" if cuts_rows and run.value("truncation_mode") == "keep_start" else "-limit:"
        values = {"answer": "None" if answer == "-1" else answer, "longest": longest if cuts_rows else "0"}
        rule = "cut_rows" if cuts_rows else "prompts"
        return one_method("DPO", rule, limit=shown, part=f"prompt[{part}]", **values)
    if run.config == "SFTConfig" and run.before("0.16") and run.value("packing") is not True and takes_text:
        return one_method("SFT", "end_token")
    return None


def old_methods(run: TrlRun) -> list[tuple[str, Change]]:
    """The same for each rule of by_hand.json whose difference a method restores."""
    rules = [(rule, entry) for rule, entry in rules_of("trl", run.version) if "method" in entry]
    return [one_method(entry["method"], rule) for rule, entry in rules if applies(run, entry)]


def one_method(name: str, rule: str, **values) -> tuple[str, Change]:
    """The body of a class of old_trainers.py, filled with values, and its row."""
    text = OLD_TRAINERS.partition(f"\nclass {name}(")[2].partition("\n\n\n")[0].partition("\n")[2].rstrip()
    why = RULES[rule]["why"]
    row = by_hand(re.search(r"(\w+)(?:\(| = )", text)[1], "", rule)
    return with_values(text, comment=f"{why[0].upper()}{why[1:]}.", **values), row


def config_of(job: YamlJob) -> str:
    """The config class that a key of the file gives away; "" if none does."""
    names = {word.key.rpartition(".")[2] for word in job.words}
    return next((config for key, config in NAMES["signs"].items() if key in names), "")


def home_of(job: YamlJob, config: str) -> str:
    """The section that has the settings of a config, with a dot; "" for the file as a whole."""
    settings = {*trl_defaults(config), *changes("trl")["configs"].get(config, {}), *changes("trl")["configs"][BASE]}
    places = [w.key.rpartition(".") for w in job.words if settings.isdisjoint(w.key.split(".")[:-1])]
    homes = Counter(section for section, _, name in places if name in settings)
    home = max(homes, key=lambda section: (homes[section], section == ""), default="")
    rivals = homes.keys() - {"", home}
    others = sorted(section for section in rivals if homes[section] > max(2, homes[home] / 2))
    got = f"got {job.name} with settings of {config} in {' and in '.join([home, *others])}"
    need(not home or not others, f"{got}; expected one section; try a file for each")
    return f"{home}." if home else ""


def run_of(job: YamlJob, config: str, version: str) -> TrlRun:
    """The run of a YAML file, with its settings as arguments of a config's call."""
    import yaml

    given = yaml.safe_load(job.text)
    for section in home_of(job, config).split(".")[:-1]:
        given = given[section]
    given = {key: value for key, value in given.items() if str(key).isidentifier()}
    source = PythonSource(job.name, f"{config}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return TrlRun(source, config, version, source.calls[config][0])


def migrate_yaml(job: YamlJob, run: TrlRun) -> Report:
    """Edit the settings of a file; refuse what only a class in a script restores."""
    report, home = Report(), home_of(job, run.config)
    plan = planned(run, report)
    for key, change in [*plan.items()]:
        try:
            value = change.text and run.source.value(ast.parse(change.text, mode="eval").body)
            plan[key] = replace(change, text=change.text and json.dumps(value))
        except ValueError:
            report.refuse("", f"{key}: {run.text(key)}", change.why, "the value by hand, as it is computed")
            del plan[key]
    plan = {f"{home}{key}": replace(change, name=f"{home}{change.name}") for key, change in plan.items()}
    for word in [word for word in job.words if word.key.endswith("torch_dtype")]:
        key = word.key.removesuffix("torch_dtype") + "dtype"
        plan[word.key] = Change(key, word.value, "transformers 5.0", "its new name", "fp32")
    given = {word.key for word in job.words}
    edits = [(word, plan[word.key]) for word in job.words if word.key in plan]
    job.apply(edits, [change for key, change in plan.items() if key not in given], report)
    nearest = "the class that migrate.py puts into a script, or rows that are short enough"
    if limit := run.value("max_prompt_length"):
        report.refuse("", f"max_prompt_length: {limit}", "prompts are no longer cut", nearest)
    if run.config == "SFTConfig" and old_rows(run, run.has("dataset_text_field")):
        report.refuse("", "dataset_text_field", RULES["end_token"]["why"], nearest.split(", or")[0])
    starts = {word.key.removeprefix(home): word.start for word in job.words}
    for entry in report.impossible:
        key = re.match(r"\w*", entry["setting"])[0]
        entry["line"] = job.place(starts[key]) if key in starts else ""
    return report


# --------------------------------------------------------------- trainer parts (src/programs/migrate/trainer_parts.py)

MODEL_ARGS = ("model_args", "model_config")  # names of a ModelConfig
QUANTISED = ("load_in_4bit", "load_in_8bit")
WITHOUT_UNSLOTH = (
    "leaving it out: AutoModelForCausalLM.from_pretrained(NAME, dtype=…, quantization_config="
    "BitsAndBytesConfig(load_in_4bit=True)), as Unsloth has by default, AutoTokenizer.from_pretrained(NAME), and for "
    "the trainer peft_config=LoraConfig(…) with r, lora_alpha and target_modules of get_peft_model"
)


def is_model(source: PythonSource, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = source.name_of(owner) if owner is not None else ""
    module = source.imports.get(getattr(owner, "id", ""), ("",))[0].split(".")[0]
    return bool(re.match(r"AutoModel|\w+For[A-Z]\w+$", name) or (module == "transformers" and name.endswith("Model")))


def renamed(source: PythonSource, arguments: list[Argument], report: Report) -> dict[str, Change]:
    """Changes to old arguments of from_pretrained; refuses a second argument with the same new name."""
    plan, since, effect = {}, "transformers 5.0", "ignored, or a TypeError"
    given = {argument.name: argument for argument in arguments}
    texts = {name: source.code(argument.value) for name, argument in given.items()}
    for old in [old for old in NAMES["forms"] if old in given]:
        new, form = NAMES["forms"][old]
        if new in {*given, *(change.name for change in plan.values())}:
            report.refuse(source.place(given[old].start), old, "no longer an argument", f"all of it in {new}=…")
        else:
            plan[old] = Change(new, form.format(texts[old]), since, f"the new name of {old}", effect)
    parts = [name for name in given if name in QUANTISED or name.startswith(("bnb_4bit_", "llm_int8_"))]
    switches = [texts[name] for name in QUANTISED if texts.get(name, "False") != "False"]
    if any(name in QUANTISED for name in parts):
        plan |= {name: Change(name, None, since, "part of quantization_config", effect) for name in parts}
    if switches:  # BitsAndBytesConfig would quantise even if all were False
        text = f"BitsAndBytesConfig({', '.join(f'{name}={texts[name]}' for name in parts)})"
        text += f" if {' or '.join(switches)} else None" if "True" not in switches else ""
        plan[parts[0]] = Change("quantization_config", text, since, f"the new form of {parts[0]}", effect)
    return plan


def precision(source: PythonSource, node: ast.expr | None, text: str) -> str:
    """Source of the dtype that old transformers chose: float16 for a quantised model, else float32.

    `node`: the call's quantization_config; `text`: the one that migration adds, or "".
    """
    origin = source.resolved(node)
    if (isinstance(origin, ast.Call) and source.name_of(origin).endswith("Config")) or text.endswith(")"):
        return '"float16"'
    condition = text.partition(") if ")[2].removesuffix(" else None") or (source.code(node) if node else "None")
    return '"float32"' if condition == "None" else f'"float16" if {condition} else "float32"'


def mend_loading(source: PythonSource, version: str, report: Report) -> bool:
    """Edit calls of from_pretrained and dictionaries of its arguments; returns whether one uses BitsAndBytesConfig."""
    is_old, plans = numbers(transformers_of(version)) < (5, 0), []
    for call in filter(lambda call: is_model(source, call), source.calls.get("from_pretrained", [])):
        arguments, unseen = source.arguments(call)
        names, plan = {argument.name for argument in arguments}, renamed(source, arguments, report)
        plans.append(plan)
        if is_old and not unseen and not {"torch_dtype", "dtype"} & names:
            text = next((change.text for change in plan.values() if change.name == "quantization_config"), "")
            dtype = precision(source, source.argument(call, "quantization_config"), text)
            plan["dtype"] = by_hand("dtype", dtype, "precision")
        edit_call(source, call, plan, report)
    named = [(x.arg, x) for x in source.nodes if isinstance(x, ast.keyword)]
    assigned = [x for x in source.nodes if isinstance(x, ast.Assign | ast.AnnAssign)]
    named += [(source.code(getattr(x, "target", None) or x.targets[0]), x) for x in assigned]
    for node in [node for name, node in named if str(name).endswith("model_init_kwargs") and node.value]:
        factories = [x.body for x in ast.walk(node.value) if isinstance(x, ast.Lambda)]  # of a dataclass field
        items, _ = source.items(factories[0] if factories else node.value)
        plans.append(renamed(source, items, report))
        edit_arguments(source, items, plans[-1], report)
    return any(change.name == "quantization_config" for plan in plans for change in plan.values())


def mend_model_config(source: PythonSource, report: Report) -> None:
    """Rename or refuse settings that TRL's ModelConfig no longer has: its arguments, and reads of `model_args.name`."""
    given = [(x.name, x.start) for call in source.calls.get("ModelConfig", []) for x in source.arguments(call)[0]]
    reads = [x for x in source.nodes if isinstance(x, ast.Attribute) and source.code(x.value).endswith(MODEL_ARGS)]
    given += [(x.attr, source.span(x)[1] - len(x.attr)) for x in reads]
    is_used = source.imports.get("ModelConfig", ("",))[0].startswith("trl")
    for name, start in [(name, source.text.index(name, start)) for name, start in given if is_used]:
        gone = gone_entry("ModelConfig", name)
        if new := gone.get("renamed"):
            row = Change(new, "", gone["since"], f"the new name of {name}", "TypeError, or AttributeError")
            report.edit(start, start + len(name), new, row)
        elif gone:
            why = f"no setting of ModelConfig since {gone['since']}"
            report.refuse(source.place(start), name, why, f"{name} of the trainer's config, or of from_pretrained")


def name_unsloth(source: PythonSource, report: Report) -> None:
    """Refuse imports of Unsloth, which replaces code of TRL, and name the plain calls."""
    for module, _, statement in source.imports.values():
        if module.split(".")[0] in ("unsloth", "unsloth_zoo"):
            why = f"{module} replaces code of TRL and of the model: its run is not that of TRL alone"
            report.refuse(source.place(statement), module, why, WITHOUT_UNSLOTH)


WHY = "the trainer also passes completion_ids, trainer_state and more by keyword"
LIBRARIES = {"functools", "trl", "transformers", "torch", "math", "re"}


def mend_rewards(source: PythonSource, node: ast.expr | None, report: Report) -> None:
    """Add **kwargs to each reward function of the file; note imported rewards, which may lack it.

    `node`: the trainer's reward_funcs, or None.
    """
    for args in [function.args for function in reward_functions(source) if not function.args.kwarg]:
        end = max(source.span(part)[1] for part in ast.iter_child_nodes(args))
        report.insert(end, ", **kwargs", Change("**kwargs", "", "0.18", WHY))
    for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node else ()):
        module = source.imports.get(name, ("", "", None))[0]
        if module and module.split(".")[0] not in LIBRARIES:
            report.note(f"{name} is imported from {module}: it needs **kwargs, which cannot be seen here")


def insert_class(run: TrlRun, call: ast.Call, methods: list, classes: dict[tuple, str], report: Report) -> None:
    """Write a class with these methods, a row of the table for each, and call it in the trainer's place.

    It stands above the module's statement, or above the trainer's if it uses names that are not known there.
    `classes`: {what a class is made of: its name} of those that are written.
    """
    source, base = run.source, run.source.code(call.func)
    around = [x for x in source.blocks(call) if isinstance(x, ast.stmt)]
    limit = run.nodes.get("max_prompt_length") if prompt_limit(run)[0] is UNKNOWN else None
    if limit and (names := ", ".join(source.rebound(limit, limit, call))):
        why = f"{names} may be another value at {source.place(call)}, or none"
        report.refuse(source.place(limit), f"max_prompt_length={source.code(limit)}", why, "a number in the class")
    body = "\n\n".join(text for text, _ in methods)
    signatures = [x for x in ast.walk(ast.parse(f"class _:\n{body}")) if isinstance(x, ast.arguments)]
    used = [call.func, *(default for x in signatures for default in x.defaults)]
    is_local = any(source.rebound(x, call, around[-1]) for x in used)
    heads = {x: source.text[: source.start(x)].rpartition("\n") for x in around}
    statement = next(x for x in around[0 if is_local else -1 :] if not heads[x][2].strip() or x is around[-1])
    first = (getattr(statement, "decorator_list", None) or [statement])[0]
    indent, key = re.match(r"[ \t]*", heads[statement][2])[0], (base, body, is_local and statement)
    if key not in classes:
        name = base.split(".")[-1] + "AsBefore"
        number = sum(other.startswith(name) for other in classes.values())
        classes[key] = f"{name}{number + 1}" if number else name
        above = source.text[: source.start(first)].rpartition("\n")[0] + "\n"
        above = re.sub(r"(?:^[ \t]*#[^\n]*\n)+\Z", "", above, flags=re.M)  # comments on the statement
        is_apart = source.notebook or any(edit.start == len(above) for edit in report.edits)
        newlines = 1 if above.rstrip().endswith(":") else 2 if indent else 3
        gap = "" if is_apart else "\n" * (newlines - len(above) + len(above.rstrip("\n")))
        doc = f"Does what TRL {run.version} did and no setting of {newest('trl')} does; overrides its private methods."
        head = textwrap.indent(f'class {classes[key]}({base}):\n    """{doc}"""\n', indent)
        report.edit(len(above), len(above), gap + head)
        for text, row in methods:
            row = replace(row, name=f"{classes[key]}.{row.name}")
            report.edit(len(above), len(above), f"\n{textwrap.indent(text, indent)}\n", row)
        report.edit(len(above), len(above), "\n" if indent else "\n\n")
    report.edit(*source.span(call.func), classes[key])


# --------------------------------------------------------------------- trl script (src/programs/migrate/trl_script.py)

MOVED = {"neftune_noise_alpha", "max_prompt_length", "max_target_length"}  # also moved to the config, by no table


def lone_configs(source: PythonSource, taken: set[int]) -> list[tuple[str, ast.Call]]:
    """(Config, call) of configs that no trainer here takes, such as a function's result; `taken`: ids of the others."""
    calls = [(config, call) for config in [*CONFIGS.values(), BASE] for call in source.calls.get(config, [])]
    return [(config, call) for config, call in calls if id(call) not in taken and not config.startswith("PPO")]


class TrlMigration:
    """One script from one version of TRL to the newest."""

    def __init__(self, source: PythonSource, version: str):
        self.source, self.version, self.report = source, version, Report()
        self.runs: list[tuple[TrlRun, dict[str, Change]]] = []  # with the changes of their settings
        self.done: set[int] = set()  # ids of config calls that are edited
        self.classes: dict[tuple, str] = {}  # {what an added class is made of: its name}

    def migrate(self) -> Report:
        source, report = self.source, self.report
        for trainer, call in trainer_calls(source):
            is_old_rloo = trainer == "RLOOTrainer" and numbers(self.version) < (0, 22)
            if is_old_rloo or trainer in ("PPOTrainer", "PPOv2Trainer"):
                self.carry_over(trainer, call)
            else:
                self.trainer(trainer, call)
        for config, call in lone_configs(source, self.done):
            self.lone_config(TrlRun(source, config, self.version, call))
        if mend_loading(source, self.version, report):
            self.add_import("transformers", "BitsAndBytesConfig")
        for run, settings in self.runs:
            self.edit_reads(run, settings)
        mend_model_config(source, report)
        name_unsloth(source, report)
        self.say_classes()
        self.move_names()
        return report

    def refuse(self, argument: Argument, why: str, nearest: str = "leaving it out") -> None:
        place, text = self.source.place(argument.start), f"{argument.name}={self.source.code(argument.value)}"
        self.report.refuse(place, text, why, nearest)

    def trainer(self, trainer: str, call: ast.Call) -> None:
        """Migrate one call of a trainer, with its config, rewards and class."""
        source, report, config = self.source, self.report, CONFIGS[trainer]
        made, node = config_call(source, call, NAMES["places"].get(trainer, ()))
        arguments, unseen = source.arguments(call)
        plan, moved, of_trainer = self.own_arguments(trainer, call, arguments, made or node)
        given = {argument.name: argument.value for argument in arguments}
        unseen_args = None if made else node or next(iter(unseen), None)
        run = TrlRun(source, config, self.version, made, of_trainer, unseen_args, call)
        settings = {change.name: change for change in moved.values()} | planned(run, report)
        if made is not None:
            for hidden in unseen:
                why = f"arguments of {trainer} that cannot be seen here"
                report.refuse(source.place(hidden), source.code(hidden), why, "NAME=VALUE for each argument")
            self.hoist(run, call, moved, settings, plan)
            self.config(run, settings)
        elif unseen_args is None:
            plan |= self.new_config(run, trainer, call, settings)
        else:
            self.say_unseen(run, call, f"args={source.code(unseen_args)}", settings)
            edit_arguments(source, run.arguments, settings, report)
            self.runs.append((run, settings))
            for name, change in moved.items():
                nearest = f"{change.setting} in {config}"
                report.refuse(source.place(call), name, "an argument of the config, which cannot be seen", nearest)
                del plan[name]
        if trainer == "SFTTrainer" and "formatting_func" in given and run.before("0.17"):
            plan |= self.format_rows(run, given["formatting_func"])
        edit_call(source, call, plan, report)
        self.restore(run, call, {*given})
        self.say_differences(run, trainer, call)
        for node in [x for x in source.nodes if isinstance(x, ast.Attribute) and x.attr == "tokenizer"]:
            if isinstance(node.ctx, ast.Load) and source.is_object(node.value, call):
                why, end = f"{source.code(node)} is gone", source.span(node)[1]
                change = Change("processing_class", "", "transformers 5.0", why, "AttributeError")
                report.edit(end - len("tokenizer"), end, "processing_class", change)
        if config in (*SAMPLING, "OnlineDPOConfig"):
            rewards = source.resolved(source.argument(call, "reward_funcs", NAMES["places"].get(trainer, ())))
            mend_rewards(source, rewards if run.before("0.18") else None, report)

    def restore(self, run: TrlRun, call: ast.Call, given: set[str]) -> None:
        """Add a class that does what no setting restores; `given`: names of the trainer's arguments."""
        source, report = self.source, self.report
        takes_text = bool({"dataset_text_field", "formatting_func"} & {*run.nodes, *given})
        field = run.value("dataset_text_field") or UNKNOWN
        takes_text = takes_text or any(getattr(node, "value", None) == field for node in source.nodes)
        if (rows := old_rows(run, takes_text, call)) and UNSURE in rows[0]:
            why = f"set in a branch, or changed later: {rows[1].why}"
            name = re.search(rf"(\w+){re.escape(UNSURE)}", rows[0])[1]
            report.refuse(source.place(call), name, why, "a trainer for each value, then migrate.py again")
            rows = None
        elif rows and run.unseen and (limit := prompt_limit(run)[0]) and not run.has("max_prompt_length"):
            why = f"prompts are cut to {limit}, the default then, as the settings cannot be seen"
            also = ", and for longest" if rows[1].why == RULES["cut_rows"]["why"] else ""
            nearest = f"your number for the {limit} of the class{also}"
            report.refuse(source.place(call), "max_prompt_length", why, nearest)
        if methods := ([rows] if rows else []) + old_methods(run):
            replaced = {method for _, _, names in self.replaced() for method in names}
            defined = [{*re.findall(r"^    (?:def )?(\w+)(?:\(| = )", text, re.M)} for text, _ in methods]
            kept = [method for method, names in zip(methods, defined, strict=True) if not replaced & names]
            for _, row in [method for method in methods if method not in kept]:
                why = f"{row.why}; the script's own method stays"
                report.refuse(source.place(call), row.name, why, "the same in that method")
            if kept:
                insert_class(run, call, kept, self.classes, report)
        elif run.config == "SFTConfig" and run.before("0.16") and run.value("packing") is not True:
            report.note_rule(RULES["end_token"])

    def own_arguments(self, trainer: str, call: ast.Call, arguments: list[Argument], made) -> tuple[dict, dict, dict]:
        """({argument: its change}, {argument: the config's new setting}, {setting: value that overrode the config})."""
        is_own = self.source.code(call.func) in self.source.definitions  # a subclass may take more
        table, plan, moved = changes("trl")["trainers"].get(trainer, {}), {}, {}
        of_trainer, names = {}, {argument.name for argument in arguments}
        for argument in arguments:
            name, value, text = argument.name, argument.value, self.source.code(argument.value)
            entry = end_of(table.get(name, {}))
            if name == "tokenizer":  # deprecated, then removed from all trainers
                entry = {"since": "0.12", "renamed": "processing_class"}
            if not entry:
                if not is_own and name not in trl_today("trainers").get(trainer, [name]):
                    self.refuse(argument, f"no {trainer} of TRL has it")
                continue
            since, new = entry["since"], entry["renamed"]
            is_moved = (new.startswith("args.") or name in MOVED) and name not in NAMES["lossless"]
            new = new.removeprefix("args.") or name
            plan[name] = Change(name, None, since, f"{name} is not an argument of {trainer}")
            if is_moved:
                is_read = isinstance(value, ast.Attribute) and value.attr in (name, new)  # beta=args.beta
                if text != "None" and not (is_read and self.source.is_object(value.value, made)):
                    of_trainer[new] = value
                    if not new.startswith(("max_prompt", "max_target")):  # a class that migration adds cuts prompts
                        moved[name] = Change(new, text, since, "an argument of the config now")
            elif new != name and new not in names:
                plan[name] = Change(new, text, since, f"the new name of {name}")
            elif new == name and name not in NAMES["lossless"] and text not in ("None", "False"):
                self.refuse(argument, f"gone since {since}", NAMES["gone_arguments"].get(name, "leaving it out"))
        return plan, moved, of_trainer

    def hoist(self, run: TrlRun, call: ast.Call, moved: dict, settings: dict, plan: dict) -> None:
        """Refuse moved arguments whose value may differ at the config's call or at another trainer that shares it."""
        source, made = self.source, run.call
        earlier = next((plan for other, plan in self.runs if other.call is made), None)  # if trainers share it
        for name, change in moved.items():
            value, text, nearest = run.of_trainer[change.name], change.text, f"{change.setting} in {run.config}"
            why = "an argument of the config now, which another trainer takes too"
            if names := ", ".join(source.rebound(value, call, made)):
                text = None if run.value(change.name) is UNKNOWN else python(run.value(change.name))
                why = f"an argument of the config now; {names} may be another value at {source.place(made)}, or none"
                settings[change.name] = replace(change, text=text)
            is_other = earlier is not None and getattr(earlier.get(change.name), "text", None) != text
            if text is None or is_other:
                self.report.refuse(source.place(value), f"{name}={change.text}", why, nearest)
                del plan[name], settings[change.name]

    def config(self, run: TrlRun, plan: dict[str, Change]) -> None:
        """Edit a config's call and the assignments to its attributes, once."""
        source, report = self.source, self.report
        if id(run.call) in self.done:
            return
        self.done.add(id(run.call))
        for change in source.hidden_changes(run.call):
            shown = source.code(source.around(change, ast.stmt)).partition("\n")[0]
            nearest = f"arguments of {run.config}(…)"
            report.refuse(source.place(change), shown, "settings that cannot be seen here", nearest)
        for argument in run.arguments if run.config in trl_today("defaults") else []:
            if argument.name not in trl_defaults(run.config) and not gone_entry(run.config, argument.name):
                self.refuse(argument, f"no {run.config} of TRL has it")
        if run.unseen:
            shown = ", ".join(f"**{source.code(node)}" for node in run.unseen)
            added = self.say_unseen(run, run.call, shown, plan)
            plan = {name: change for name, change in plan.items() if name not in added}
        edit_call(source, run.call, plan, report)
        self.runs.append((run, plan))
        if source.name_of(run.call) == BASE != run.config:
            why = "the trainer's own class, which has its settings"
            report.edit(*source.span(run.call.func), run.config, Change(run.config, "", "0.13", why, "other defaults"))
            self.add_import("trl", run.config)

    def edit_reads(self, run: TrlRun, plan: dict[str, Change]) -> None:
        """Where the script reads a setting that is gone, put its new name or its value."""
        source, report, config = self.source, self.report, run.call or run.unseen_args
        cuts = [edit for edit in report.edits if not edit.text]
        altered = {name for name, change in plan.items() if change.source and change.name == name}
        loads = [x for x in source.nodes if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Load)]
        loads = [x for x in loads if x.attr in altered or gone_entry(run.config, x.attr)]
        in_callback = [x for x in loads if len(self.runs) == 1 and source.code(x.value) == "args"]
        in_callback = [x for x in in_callback if "Callback" in str(source.bases(source.around(x, ast.ClassDef)))]
        for node in [x for x in loads if source.is_object(x.value, config) or x in in_callback]:
            (start, end), name, shown = source.span(node), node.attr, source.code(node)
            new, since = gone_entry(run.config, name).get("renamed"), since_of(run.config, name, run.version)
            is_known = run.value(name) is not UNKNOWN and (run.call is not None or run.has(name))
            if any(cut.start <= start and end <= cut.end for cut in cuts):
                continue
            if name in altered:
                why = f"reads {plan[name].setting} now: {plan[name].why}"
                report.refuse(source.place(node), shown, why, "what it was then, where it is read")
            elif new in trl_defaults(run.config) and name != "warmup_ratio":
                report.edit(end - len(name), end, new, Change(new, "", since, f"{shown} is gone", "AttributeError"))
            elif is_known:
                text = python(run.value(name))
                report.edit(start, end, text, Change(text, "", since, f"{shown} is gone", "AttributeError"))
            else:
                report.refuse(source.place(node), shown, f"{run.config} no longer has it", "its value")

    def lone_config(self, run: TrlRun) -> None:
        """Migrate a config whose trainer cannot be seen; say what a class would restore there."""
        settings, rows = planned(run, self.report), old_rows(run, False)
        if rows and run.has("max_prompt_length"):
            why = "prompts are no longer cut, and the trainer of this config cannot be seen"
            nearest = "rows that are short enough, or this number in a class that cuts prompts"
            shown = f"max_prompt_length={run.text('max_prompt_length')}"
            self.report.refuse(self.source.place(run.call), shown, why, nearest)
        elif rows:
            self.report.note_rule({"why": rows[1].why, "same_if": f"the trainer of {run.config} is migrated, too"})
        self.config(run, settings)

    def new_config(self, run: TrlRun, trainer: str, call: ast.Call, plan: dict[str, Change]) -> dict[str, Change]:
        """The argument `args` with the old defaults, for a trainer that has none."""
        self.runs.append((run, plan))
        added = [change.setting for change in plan.values() if change.text is not None]
        if not added:
            return {}
        arguments = ", ".join([f'output_dir="{trainer}"', *added])
        for change in plan.values():
            self.report.edit(self.source.start(call), self.source.start(call), "", change)
        self.add_import("trl", run.config)
        text, why = f"{run.config}({arguments})", "the defaults then, as none were given"
        return {"args": Change("args", text, newest("trl"), why, "today's")}

    def say_unseen(self, run: TrlRun, call: ast.Call, shown: str, settings: dict) -> dict[str, Change]:
        """Refuse settings that cannot be seen, and say where to look; returns old defaults for those not given."""
        calls = [] if run.call else sorted(self.source.calls.get(run.config, ()), key=self.source.start)
        places = ", ".join(dict.fromkeys(map(self.source.place, calls)))
        given = {*run.of_trainer, *(x.name for x in run.arguments)}
        added = {n: x for n, x in settings.items() if x.text and (n not in given or x.why == DEFAULT)}
        defaults = f"where nothing sets them, the old version had {', '.join(c.setting for c in added.values())}"
        why = "made at run time: its settings cannot be seen, no name in it is renamed"
        why += f"; {run.config}(…) is edited at {places}" if places else (f"; {defaults}" if added else "")
        nearest = f"one call {run.config}(…) with all settings, or its YAML file: migrate.py FILE.yaml --config_class"
        self.report.refuse(self.source.place(call), shown, why, f"{nearest} {run.config}")
        return added

    def say_differences(self, run: TrlRun, trainer: str, call: ast.Call) -> None:
        """Report what no edit restores: positions of arguments, overridden methods, imported classes."""
        source, report, place = self.source, self.report, self.source.place(call)
        first = NAMES["places"].get(trainer, ())[: 2 if trainer == "DPOTrainer" and run.before("0.13") else None]
        if len(call.args) > len(first):
            why = f"{trainer}'s arguments have other places today"
            report.refuse(place, source.code(call.args[len(first)]), why, "NAME=VALUE for each argument")
        for name in [n.id for n in ast.walk(source.origin(call.func)) if isinstance(n, ast.Name)]:
            if name in source.imports and source.imports[name][0].split(".")[0] != "trl":
                report.note(f"{name} is imported from {source.imports[name][0]}: whether it fits cannot be seen here")
        if trainer == "RewardTrainer" and "input_ids_chosen" in source.text:
            nearest = "columns chosen and rejected of text or messages; or token ids as chosen_ids and rejected_ids"
            report.refuse(place, "input_ids_chosen", "RewardTrainer tokenizes, or takes other columns", nearest)

    def say_classes(self) -> None:
        """Refuse classes that replace methods of a trainer, and trainers and configs that are called out of sight."""
        source, report = self.source, self.report
        seen = {name for trainer, _ in trainer_calls(source) for name in (trainer, CONFIGS[trainer])}
        names = {*CONFIGS, *CONFIGS.values()} - {*seen, *source.definitions}
        why = "called where it cannot be seen: no setting is renamed, no old default is written"
        for call in [call for call in source.calls.get("getattr", []) if call.args]:
            if source.imports.get(source.code(call.args[0]), ("",))[0] == "trl":
                report.refuse(source.place(call), source.code(call), why, "its name instead of getattr")
        nodes = [x for x in source.nodes if isinstance(x, NAMED) and isinstance(x.ctx, ast.Load)]
        for node in [node for node in nodes if source.name_of(node) in names]:
            shown, parent = source.code(node), source.parents[node]
            holder = source.parents[parent] if isinstance(parent, ast.Tuple | ast.IfExp) else parent
            kinds = ast.Call | ast.Dict | ast.List | ast.keyword
            is_value = isinstance(holder, kinds if parent is holder else kinds | ast.Assign)
            is_known = getattr(parent, "func", None) is node or source.name_of(holder) in NO_CALLS
            if is_value and not is_known and source.imports.get(shown.split(".")[0], ("trl",))[0].startswith("trl"):
                report.refuse(source.place(node), shown, why, f"a call {shown}(…) in the script")
        for node, name, methods in self.replaced():
            why = f"written for the {trainer_names(source)[name]} of {self.version}, whose methods it replaces"
            nearest = "a comparison with the methods of today's"
            report.refuse(source.place(node), f"{name}.{', '.join(methods)}", why, nearest)

    def replaced(self) -> list[tuple[ast.AST, str, list[str]]]:
        """(Place, trainer or class derived from one, methods) where the script replaces methods of a trainer."""
        source, trainers = self.source, trainer_names(self.source)
        places = [(x, source.name_of(x.value), [name]) for x, name in source.stores if name]
        for name, definition in [(x, source.definitions[x]) for x in trainers if x in source.definitions]:
            methods = [x.name for x in definition.body if isinstance(x, DEFS) and x.name != "__init__"]
            places += [(definition, name, methods)] if methods else []
        return [place for place in places if place[1] in trainers]

    def format_rows(self, run: TrlRun, given: ast.expr) -> dict[str, Change]:
        """Wrap a formatting_func that took a batch so that it takes one row; {} if it took a row."""
        source, function = self.source, self.source.resolved(given)
        nodes = [*ast.walk(source.definitions.get(source.code(given), ast.Pass()))]
        returned = [source.resolved(n.value) for n in nodes if isinstance(n, ast.Return)]
        returned += [function.body] if isinstance(function, ast.Lambda) else []
        has_list = any(isinstance(n, ast.List | ast.ListComp) for n in returned)
        appends = any(isinstance(n, ast.Call) and source.name_of(n) == "append" for n in nodes)
        if not (has_list or appends or (run.before("0.15") and not run.is_on("packing"))):
            return {}
        code = source.code(given) if isinstance(given, NAMED) else f"({source.code(given)})"
        text = f"lambda row: {code}({{key: [value] for key, value in row.items()}})[0]"
        why = "it took a batch; now it takes a row"
        return {"formatting_func": Change("formatting_func", text, "0.17", why, "an error")}

    def carry_over(self, trainer: str, call: ast.Call) -> None:
        """Refuse a trainer that TRL dropped; suggest this bundle's command with its settings."""
        config = CONFIGS[trainer]
        calls, constant = self.source.calls.get(config, []), NAMES["of_ppo"] if config.startswith("PPO") else {}
        run, flags, carried = TrlRun(self.source, config, self.version, calls[0] if calls else None), {}, set()
        for flag, names in [(flag, term.split(" * ")) for flag, terms in NAMES["carried"].items() for term in terms]:
            values = [constant.get(x) if run.value(x) is None else run.value(x) for x in names]
            if not any(x is None or x is False or x is UNKNOWN for x in values):  # defaults of that version count too
                flags.setdefault(flag, math.prod(values) if len(names) > 1 else values[0])
                carried.update(names)
        if (update := flags.pop("rows", 0)) and isinstance(run.value("batch_size"), int):  # before 0.12
            flags["minibatches"] = run.value("batch_size") // update
        left = ", ".join(f"{x.name}={self.source.code(x.value)}" for x in run.arguments if x.name not in carried)
        script = "scripts/ppo_train.py" + (" --advantage rloo" if trainer == "RLOOTrainer" else "")
        nearest = " ".join([f"python {script}", *(f"--{flag} {value}" for flag, value in flags.items())])
        nearest += f"; no flag was found for {left}" if left else ""
        nearest += f"; these are defaults of {config}, whose settings cannot be seen" if not calls else ""
        why = f"{trainer} of {self.version} has no successor in TRL"
        why = RULES["rloo"]["why"] if trainer == "RLOOTrainer" else why
        self.report.refuse(self.source.place(call), trainer, why, nearest)
        self.done |= {id(c) for c in calls}

    def home(self, module: str, name: str) -> str:
        """The module of TRL that has a name today; "" if none has."""
        history, modules = changes("trl")["modules"].get(name, {}), trl_today("modules")
        exports, is_top = changes("trl")["exports"], module in ("trl", "trl.trainer")
        inside = [x for place, names in modules.items() if f"{place}.".startswith(f"{module}.") for x in names]
        is_text = module in modules and name.endswith(("_template", "_schema"))  # of a chat, which no table lists
        if is_text or name in ["*", *(exports if is_top else inside)]:
            return module
        today = value_at(history, newest("trl"), None)
        if today and ("experimental" not in module or module in history.values()):
            return today
        if module.startswith("trl.experimental"):  # folders, whose names may change
            return module if (module.split(".")[2:3] or [name])[0] in modules["trl.experimental"] else ""
        places = ["trl"] if name in exports else [x for x, names in modules.items() if name in names]
        return places[0] if len(places) == 1 and name not in NAMES["gone_names"] else ""

    def nearest(self, name: str) -> str:
        """Advice for a name that TRL no longer has."""
        kind = re.search("Trainer$|Config$|Judge$|$", name)[0]
        old = f"an environment with trl=={self.version}: no current trainer gives the same run"
        advice = {"": "a copy of it in the script", "Judge": NAMES["gone_arguments"]["judge"]}.get(kind, old)
        return NAMES["gone_names"].get(name, advice)

    def is_edited_away(self, name: str) -> bool:
        """Whether edits replace every use of a name in the script."""
        spans = [self.source.span(x) for x in self.source.nodes if isinstance(x, ast.Name) and x.id == name]
        edits = [edit for edit in self.report.edits if edit.text]
        is_written = any(re.search(rf"\b{name}\b", edit.text) for edit in edits)
        is_read = any(not any(e.start <= start and end <= e.end for e in edits) for start, end in spans)
        return bool(spans) and not is_written and not is_read

    def move_names(self) -> None:
        """Edit imports from TRL that moved; refuse those that are gone, and uses of `trl.NAME` with a moved name."""
        source, table, nowhere = self.source, changes("trl")["modules"], NAMES["gone_names"]
        for module, name, node in source.imports.values():
            if module.startswith("transformers") and name in nowhere:
                self.report.refuse(source.place(node), name, f"no longer in {module}", nowhere[name])
        for node in [x for x in source.nodes if isinstance(x, ast.ImportFrom) and f"{x.module}.".startswith("trl.")]:
            homes, since = {node.module: []}, ""
            gone = [alias for alias in node.names if not self.home(node.module, alias.name)]
            unused = [alias for alias in gone if self.is_edited_away(alias.asname or alias.name)]
            for alias in [alias for alias in node.names if alias not in unused]:
                home = self.home(node.module, alias.name)
                homes.setdefault(home or node.module, []).append(source.code(alias))
                if home not in ("", node.module) and alias.name in table:
                    since = [*table[alias.name]][-1]
                if not home:
                    why = f"no longer in {node.module}"
                    self.report.refuse(source.place(node), alias.name, why, self.nearest(alias.name))
            lines = [f"from {home} import {', '.join(names)}" for home, names in homes.items() if names]
            if (moved := lines[bool(homes[node.module]) :]) or unused:
                why = "its new place" if moved else f"nothing uses {', '.join(map(source.code, unused))} any more"
                row = Change("; ".join(moved), "", since or newest("trl"), why, "ImportError")
                self.report.edit(*source.span(node), f"\n{' ' * node.col_offset}".join(lines) or "pass", row)
        modules = [name for name, (module, original, _) in source.imports.items() if not original and module == "trl"]
        for node in [x for x in source.nodes if isinstance(x, ast.Attribute) and source.code(x.value) in modules]:
            name, home = node.attr, self.home("trl", node.attr)
            if home != "trl" and name in {*table, *nowhere}:
                nearest = f"from {home} import {name}" if home else self.nearest(name)
                self.report.refuse(source.place(node), source.code(node), "no longer in trl", nearest)

    def add_import(self, module: str, name: str) -> None:
        """Import a name that an edit uses, before the first import from TRL."""
        imports = self.source.imports
        nodes = [node for module, _, node in imports.values() if module.split(".")[0] == "trl"]
        nodes.append(self.source.tree.body[0])
        text = f"from {module} import {name}"
        if name not in imports:
            row = Change(text, "", newest("trl"), "used by the lines below", "NameError")
            self.report.insert(self.source.start(nodes[0]), f"{text}\n{' ' * nodes[0].col_offset}", row)


def outcome(source: PythonSource, version: str) -> dict[str, str]:
    """{setting: value} that a version uses where the script gives none, as migration would write it out."""
    settings, report = {}, Report()
    places = NAMES["places"]
    made = [(CONFIGS[t], config_call(source, call, places.get(t, ()))[0]) for t, call in trainer_calls(source)]
    for config, call in [*made, *lone_configs(source, {id(call) for _, call in made})]:
        run = TrlRun(source, config, version, call)
        for plan in [default_changes(run), *meanings(run, report)]:
            settings |= {name: change.text or "" for name, change in plan.items()}
        if run.value("max_prompt_length"):
            settings["prompts"] = f"cut to {run.text('max_prompt_length')}"
    return settings


# ------------------------------------------------------------------------- verl run (src/programs/migrate/verl_run.py)

OLD_SECTIONS = ("reward_model.", "custom_reward_function.", "sandbox_fusion.", "ray_init.")
FREE = ("reward.reward_kwargs.", "reward.custom_reward_function.reward_kwargs.", "ray_kwargs.")  # take any name
MANAGERS = ("naive", "dapo", "gdpo", "remote", "rate_limited")
# Settings that only say how the machine holds the old reward model, or gradients.
OF_THE_MACHINE = re.compile(
    r"reward_model\.(micro_batch_size\w*|forward_\w+|use_dynamic_bsz|ulysses_\w+|prime_\w+|strategy"
    r"|model\.(fsdp_config\.[\w.]+|use_\w+))|.*\.grad_offload"
)
NUMBER = r"\d+|\$\w+|\$\{.*\}"  # or a shell variable for one
UNSET = ("False", "false", "null", "None", "0", "-1")
# (Key, value) that verl never read.
UNREAD = {("data.truncation", "left"), ("data.truncation", "error"), ("data.reward_fn_key", "data_source")}
OWN_CONFIG = re.compile(
    r"--config-(?:name[= ](?!['\"]?ppo_(?:megatron_)?trainer\b)|path[= ](?!['\"]?(?:\./)?config\b))\S+"
)
BATCH, PROMPTS = "data.gen_batch_size", "data.train_batch_size"
TARGET = r"\+?[\w.]+(?:=[\w-]+)?"  # advice that is a key, not a sentence


class VerlMigration:
    """One job from one version of verl to the newest."""

    def __init__(self, job: ShellJob | YamlJob, version: str, report: Report):
        self.job, self.version, self.report = job, version, report
        self.given: dict[str, Word] = {}
        for word in job.words:
            is_unsure = word.in_branch or self.given.get(word.key, word).value != word.value
            self.given[word.key] = replace(word, value=IN_BRANCH, literal=None) if is_unsure else word
        self.is_megatron = bool(re.search(r"ppo_megatron|model_engine(=|: )megatron", job.text))
        self.engine = known_names("megatron" if self.is_megatron else "dp")
        self.known = known_names("dp") | known_names("megatron")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)

    def migrate(self) -> None:
        report, job, edits, added, silent = self.report, self.job, [], {}, {}
        for name, start, _ in other_mains(job):
            nearest = "its authors' newest version; this script migrates jobs of verl.trainer.main_ppo"
            is_known = name.startswith(("verl.", "recipe.dapo."))
            nearest = NAMES["successors"].get(name.split(".")[-1], nearest) if is_known else nearest
            report.refuse(job.place(start), name, "a main module of its own", nearest)
        if other_mains(job):
            return
        for word in job.words:  # one key may stand twice, with a value for each branch
            changes = self.word(word)
            if len(changes) > 1 and self.is_unsure(word.key):
                names = ", ".join(change.name for change in changes.values())
                self.refuse(word, word.key, "set in a branch, or with several values", f"{names} there")
            elif word.key in changes:
                edits.append((word, changes.pop(word.key)))
                added |= changes
        done = {word.key for word, _ in edits}
        known = done | {x["setting"].partition("=")[0] for x in report.impossible}
        if fork := [w.key for w in job.words if w.sign == "+" and w.key not in known and not self.reads(w)]:
            report.note(f"verl does not read +{', +'.join(fork)}: settings of a fork, or of your own code")
        if matches := [*OWN_CONFIG.finditer(job.text)]:  # a configuration file or folder that is not verl's
            why = "settings of that file cannot be seen here: defaults that changed are not written"
            nearest = f"migrate.py on that file too, with --from verl=={self.version}"
            report.refuse(job.place(matches[0].start()), " ".join(match[0] for match in matches), why, nearest)
        else:
            silent = {key: change for key, change in self.silent().items() if key not in done}
        # defaults come before all words of a command, so that a word in a branch wins if it runs
        sure = {key for key in self.given if not self.is_unsure(key)}
        edits += [(word, silent[word.key]) for word in job.words if word.key in {*silent} & sure]
        job.apply(edits, [c for key, c in (added | silent).items() if key not in sure], report)
        if "VLLM_ATTENTION_BACKEND=" in job.text:
            report.note("VLLM_ATTENTION_BACKEND=XFORMERS was for vLLM 0.6; leave it out with today's")

    def is_unsure(self, key: str) -> bool:
        """Whether a setting is given in a branch, or with several values."""
        return self.text(key) == IN_BRANCH

    def nearest(self, key: str) -> str:
        """Advice for an unknown key: verl's most similar key, or to leave it out."""
        section, _, last = key.rpartition(".")
        names = key.split(".")[-1 if key.partition(".")[0] in SECTIONS else -2 :]  # two, if verl lacks the section
        alike = [x for x in self.known if x.endswith("." + ".".join(names))]
        alike += [x for x in self.known if x.startswith(f"{section}.") and suggest(last, [x.rpartition(".")[2]], 0.85)]
        return suggest(key, sorted(alike), 0).removeprefix("; try ") or "leaving it out"

    def refuse(self, word: Word, setting: str, why: str, nearest: str) -> None:
        self.report.refuse(self.job.place(word.start), setting, why, nearest)

    def reads(self, word: Word) -> bool:
        """Whether verl reads a key: it is known, or lies in a dictionary that takes any name."""
        parts = word.key.lstrip("+").split(".")
        above = [".".join(parts[:end]) for end in range(2, len(parts))]
        is_free = any(x in self.known and not any(k.startswith(f"{x}.") for k in self.known) for x in above)
        is_free = is_free or word.key.lstrip("+").startswith(FREE) or ".override_" in word.key
        return word.key.lstrip("+") in self.known or (is_free and (word.sign != "" or isinstance(self.job, YamlJob)))

    def manager(self, word: Word, target: str) -> dict[str, Change]:
        """The change of a reward manager: prime becomes naive, as both score row by row; unknown ones are refused."""
        name = "naive" if word.plain == "prime" else word.value
        if word.is_fixed and word.plain not in (*MANAGERS, "prime"):
            nearest = "a class of RewardManagerBase, by reward.reward_manager.source=importlib, name and module.path"
            nearest = "naive, with a function of one row" if word.plain == "batch" else nearest
            self.refuse(word, f"{word.key}={word.value}", "verl no longer has this manager", nearest)
        return {word.key: Change(target, name, self.since(word.key), "its new name", "ignored")}

    def word(self, word: Word) -> dict[str, Change]:
        """{key: change} of a setting that the job gives, under its own key or new ones; {} leaves it."""
        key, newest_verl = word.key, newest("verl")
        if key in NAMES["per_job"] and word.plain not in ("null", "None"):
            return self.per_gpu(word)
        if word.sign == "~":
            gone = Change(key, None, newest_verl, "nothing to delete", "an error of Hydra")
            return {} if key in self.known else {key: gone}
        is_other = self.text(BATCH) not in ("", "null", f"${{{PROMPTS}}}", self.text(PROMPTS))
        if key in (BATCH, PROMPTS) and is_other and self.before("0.9") and not self.before("0.4"):
            return self.prompts(word)
        if (neutral := self.neutral(word)) is not None:
            return neutral
        if key == f"{ROLLOUT}.load_format" and re.fullmatch("dummy_(dtensor|megatron|hf)", word.plain):
            return {key: Change(key, "dummy", self.since(key), "its new name", "an error")}
        if key == f"{ACTOR}.clip_ratio" and not self.before("0.4"):  # in all losses, up to today
            self.report.note(f"{key} is read only if clip_ratio_low or _high is null, as then; their default is 0.2")
            return {}
        if key.startswith("algorithm.filter_groups.") and self.before("0.9"):
            return {key: Change(key, None, newest_verl, "main_ppo did not read it", "it acts")}
        if entry := self.moved(word):
            return self.renamed(word, *entry)
        if word.sign == "+" and key in self.known and not word.plain.startswith("{"):
            return {key: Change(key, word.value, newest_verl, "a key of its own today: no +", "an error of Hydra")}
        is_anchor = "." not in key and str(word.value).startswith("&")  # a name of the file's own, which *name reads
        if not word.sign and self.known and not self.reads(word) and not is_anchor:
            was_there = ".megatron." in key or key in changes("verl")["keys"]
            why = "no release's ppo_trainer.yaml has it: it is a fork's or another trainer's"
            self.refuse(word, key, f"verl {newest_verl} does not have it" if was_there else why, self.nearest(key))
        return {}

    def neutral(self, word: Word) -> dict[str, Change] | None:
        """The change of a setting that the old version did not read: to a value that does nothing; None for others.

        Refused are a setting that acted then and does nothing today (its rule has "nearest"), and one whose rule
        depends on a value that is not known here.
        """
        for rule, entry in self.rules():
            target, _, value = entry.get("neutral", {}).get(word.key, "").rpartition("=")
            if not value or is_equal(word.plain, value):
                continue
            target, nearest = target or word.key, entry.get("nearest")
            for condition in entry.get("where", ()):
                if re.search("[$`]", self.text(re.search(r"[\w.]+", condition)[0])):
                    nearest = nearest or f"{target}={value} if {condition}"
            if not nearest:
                return {word.key: by_hand(target, value if target in self.engine else None, rule)}
            self.refuse(word, f"{word.key}={word.value}", entry["why"], nearest)
            return {}
        return None

    def rules(self) -> list[tuple[str, dict]]:
        """The rules of the old version whose conditions all hold for this job."""
        return [(r, e) for r, e in rules_of("verl", self.version) if all(map(self.holds, e.get("where", ())))]

    def holds(self, condition: str) -> bool:
        """Whether a condition holds: a part of the run, KEY (given and on), !KEY, KEY=VALUE, KEY!=VALUE or KEY|KEY."""
        if "|" in condition:
            return any(map(self.holds, condition.split("|")))
        has_reference = self.before("0.4") or self.is_on("algorithm.use_kl_in_reward")
        has_reference = has_reference or self.is_on(f"{ACTOR}.use_kl_loss")
        parts = {"critic": self.has_critic, "reference": has_reference, "megatron": self.is_megatron}
        is_not, name, sign, value = re.fullmatch(r"(!?)([\w.]+)(!?=|)(.*)", condition).groups()
        is_so = is_equal(self.text(name), value) if sign else parts.get(name, self.is_on(name))
        return is_so != (bool(is_not) or sign == "!=")

    def prompts(self, word: Word) -> dict[str, Change]:
        """The change of data.train_batch_size, or of data.gen_batch_size, which won over it."""
        if self.is_unsure(BATCH):
            self.refuse(word, BATCH, f"{RULES['fetched']['why']}; it is set in a branch", f"{PROMPTS} there")
            return {}
        is_second = word.key == BATCH and PROMPTS in self.given
        return {word.key: by_hand(PROMPTS, None if is_second else self.given[BATCH].value, "fetched")}

    def renamed(self, word: Word, targets: list[str], why: str, otherwise: str) -> dict[str, Change]:
        """Changes of one setting to today's targets: KEY, or KEY=VALUE if the value changes too; none removes it."""
        key, plan = word.key, []
        for target, _, value in [target.partition("=") for target in targets]:
            if target == "reward.reward_manager.name":
                return self.manager(word, target)
            today = replace(word, key=target, sign=target[: target.startswith("+")])
            if not self.reads(today) and self.reads(replace(today, sign="+")):
                target = f"+{target}"
            elif not self.reads(today):
                if self.is_off(word):
                    return {key: Change(key, None, self.since(key), f"{key}: gone, and the run is the same", otherwise)}
                self.refuse(word, f"{key}={word.value}", f"verl has neither it nor {target}", self.nearest(target))
                return {}
            if target.lstrip("+") not in {*self.given} - {key}:
                plan.append(Change(target, value or word.value, self.since(key), why, otherwise))
        why = f"{key}: {why}" if not targets else f"given as {' and '.join(targets)}, too"
        first = plan[0] if plan else Change(key, None, self.since(key), why, otherwise)
        return {key: first} | {change.name: change for change in plan[1:]}

    def since(self, key: str) -> str:
        if key == f"{ACTOR}.clip_ratio":
            return "0.4"
        history = changes("verl")["keys"].get(key, {})
        later = [v for v, value in history.items() if is_gone(value) or numbers(v) > numbers(self.version)]
        return later[-1] if later else newest("verl")

    def is_off(self, word: Word) -> bool:
        """Whether the old version did the same without this setting."""
        default = value_at(changes("verl")["keys"].get(word.key, {}), self.version, None)
        return word.plain in UNSET or is_equal(word.plain, default) or (word.key, word.plain) in UNREAD

    def moved(self, word: Word) -> tuple[list[str], str, str] | None:
        """(New keys, none to remove the setting; why; what verl does with the old one), or None to keep it."""
        key, is_same, advice = word.key, self.is_off(word), advice_today(word.key, word.plain)
        gone = end_of(changes("verl")["keys"].get(key, {}))
        if gone.get("renamed"):
            return [gone["renamed"]], "its new name", "an error of Hydra"
        if not advice and (not gone or key in self.engine):
            return None
        effect, instead = advice or ("", "leaving it out")
        otherwise = f"verl {effect}" if advice else "an error of Hydra"
        if re.fullmatch(f"{TARGET}(?: and {TARGET})*", instead) and (
            "=" not in instead or (effect == GONE and not is_same)
        ):
            names = re.findall(TARGET, instead.replace(" and ", " "))
            why = "its new form" if "=" in instead or len(names) > 1 else "its new name"
            return [name[name[1:] in self.known :] for name in names], why, otherwise
        if word.sign == "+" and self.reads(word):
            return None
        if key not in self.known and self.reads(replace(word, sign="+")):
            return [f"+{key}"], "it is no key of its own: +", otherwise
        is_same = is_same or OF_THE_MACHINE.fullmatch(key) or instead.partition("=")[0] in {*self.given} - {key}
        if not is_same and not (advice and instead.startswith("leaving it out")):
            self.refuse(word, f"{key}={word.value}", otherwise if advice else f"gone since {gone['since']}", instead)
            return None if key in self.known else ([], "gone, see the top", otherwise)
        return [], "gone, and the run is the same", otherwise

    def per_gpu(self, word: Word) -> dict[str, Change]:
        """Turn a micro-batch size of the whole job into one per GPU."""
        new = f"{word.key}_per_gpu"
        keys = ("trainer.n_gpus_per_node", 8), ("trainer.nnodes", 1)
        keys += ((f"{NAMES['per_job'][word.key]}.ulysses_sequence_parallel_size", 1),)
        texts = [replace(self.given[key], literal=None).plain if key in self.given else str(n) for key, n in keys]
        size = replace(word, literal=None).plain  # variables stay
        if new in self.given:
            return {word.key: Change(word.key, None, "0.2", f"{new} is given too", "an error")}
        if all(text.isdigit() for text in (*texts, size)):
            gpus, nodes, parallel = map(int, texts)
            value = str(int(size) // max(1, gpus * nodes // parallel))
        elif isinstance(self.job, ShellJob) and all(re.fullmatch(NUMBER, x) for x in (*texts, size)):
            value = "$(({} / ({} * {} / {})))".format(size, *texts)  # the shell divides
        else:
            value = "0"
        if value == "0":
            why = f"{RULES['micro_batch']['why']}: less than one row, or not known here"
            self.refuse(word, f"{word.key}={word.value}", why, f"{new}={word.value} / (nnodes x n_gpus_per_node)")
            return {}
        return {word.key: by_hand(new, value, "micro_batch")}

    def silent(self) -> dict[str, Change]:
        """Settings to write out, as the job does not give them and the old version's default or code differed."""
        plan = {}
        for key, history in changes("verl")["keys"].items():
            if not self.is_open(key) or (key.startswith("critic.") and not self.has_critic):
                continue
            is_packed = key.endswith(".use_remove_padding") and self.is_megatron  # whatever it says
            old, new = value_at(history, self.version), value_at(history, newest("verl"))
            is_out = is_packed or key in NAMES["not_written"] or key.startswith(OLD_SECTIONS)
            if is_out or old is ABSENT or new is ABSENT:
                continue
            if not is_equal(old, new) and "$" not in f"{old}{new}":
                value = "null" if old is None else str(old)
                shown = "none: it has to be given" if new == "???" else str(new)
                plan[key] = Change(key, value, self.since(key), "its default then", shown)
        plan |= self.by_code()
        return {key: change for key, change in plan.items() if self.is_open(key)} | self.mean_of_loss()

    def is_open(self, key: str) -> bool:
        """Whether verl has a key, and the job does not give it in every case."""
        return key in self.engine and (key not in self.given or self.is_unsure(key))

    @property
    def has_critic(self) -> bool:
        estimator = self.given.get("algorithm.adv_estimator")
        return not estimator or not estimator.is_fixed or estimator.plain == "gae"

    def text(self, key: str, default: str = "") -> str:
        return self.given[key].plain if key in self.given else default

    def is_on(self, key: str) -> bool:
        """Whether a setting is given and not switched off."""
        return self.text(key) != "" and not any(is_equal(self.text(key), off) for off in UNSET)

    def by_code(self) -> dict[str, Change]:
        """Settings that restore old behaviour of verl's code, which no default shows."""
        kl_loss, key, plan = self.given.get(f"{ACTOR}.use_kl_loss"), "algorithm.use_kl_in_reward", {}
        if self.before("0.4") and kl_loss and not kl_loss.is_fixed:
            why = f"{RULES['kl_in_reward']['why']}; it is a variable here, or set in a branch"
            self.refuse(kl_loss, f"{kl_loss.key}={kl_loss.value}", why, f"{key}=True where use_kl_loss is False")
        elif self.before("0.4") and (not kl_loss or kl_loss.plain.lower() != "true"):
            plan[key] = by_hand(key, "True", "kl_in_reward")
        for rule, entry in self.rules():
            plan |= {name: by_hand(name, value, rule) for name, value in entry.get("set", {}).items()}
            if "set" in entry or "neutral" in entry:
                continue
            if "nearest" in entry:
                self.report.refuse("", entry["what"], entry["why"], entry["nearest"])
            else:
                self.report.note_rule(entry)
        return plan

    def mean_of_loss(self) -> dict[str, Change]:
        """Restore a loss averaged over each GPU's micro-batch, if today's average over the mini-batch can equal it."""
        mode, scale, rows = f"{ACTOR}.loss_agg_mode", f"{ACTOR}.loss_scale_factor", self.rows()
        kind, length = self.text(mode, "token-mean"), self.text("data.max_response_length", "512")
        has_old_engine = self.before("0.8") and self.text("trainer.use_legacy_worker_impl") != "disable"
        change, rule, nearest = None, "token_mean", "token-mean as it is"
        loss = self.text(f"{ACTOR}.policy_loss.loss_mode", "vanilla")
        has_terms = self.is_on(f"{ACTOR}.use_kl_loss") or self.is_on(f"{ACTOR}.entropy_coeff")
        if not self.before("0.9"):
            return {}
        if "$" in loss + kind:
            why = f"known at run time only; for token-mean: {RULES[rule]['why']}; for gspo: {RULES['gspo_mean']['why']}"
            self.report.refuse("", f"{mode}={kind}", why, nearest)
            return {}
        if loss == "gspo" and kind != "seq-mean-token-mean":
            rule, nearest = "gspo_mean", f"{mode}=seq-mean-token-mean for gspo"
            change = None if has_terms else by_hand(mode, "seq-mean-token-mean", rule)
        elif loss == "geo_mean" and has_old_engine and not self.is_one_micro_batch(rows):
            rule, nearest = "geo_mean", f"{ACTOR}.ppo_micro_batch_size_per_gpu = the rows of a mini-batch on one GPU"
        elif loss in ("gspo", "sapo", "geo_mean") and not has_terms:  # loss_agg_mode does not affect their mean
            return {}
        elif kind == "token-mean" and has_old_engine and not self.is_one_micro_batch(rows, gpus=1):
            change = by_hand(mode, "seq-mean-token-mean", "token_mean_of_row") if rows == "1" else None
        elif kind == "seq-mean-token-sum-norm" and self.before("0.7"):
            rule, nearest = "sum_of_rows", f"{scale} = max_response_length / ppo_micro_batch_size_per_gpu"
            if rows.isdigit() and length.isdigit():
                change = by_hand(scale, str(int(length) / int(rows)).removesuffix(".0"), rule)
        elif kind == "seq-mean-token-sum-norm" and scale not in self.given:
            change = by_hand(scale, length, "response_length")
        else:
            return {}
        if not change:
            place = self.job.place(self.given[mode].start) if mode in self.given else ""
            self.report.refuse(place, f"{mode}={kind}", RULES[rule]["why"], nearest)
        return {change.name: change} if change else {}

    def is_one_micro_batch(self, rows: str, gpus: int = 0) -> bool:
        """Whether each of `gpus` GPUs (0: any number) runs its share of a mini-batch at once; False for variables."""
        keys = (f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n", "trainer.n_gpus_per_node", "trainer.nnodes")
        texts = [self.text(key, default) for key, default in zip(keys, ("256", "1", "8", "1"), strict=True)]
        if not all(map(str.isdigit, [rows, *texts])):
            return False
        mini, n, gpus_per_node, nodes = map(int, texts)
        world = gpus_per_node * nodes
        return gpus in (0, world) and int(rows) * world == mini * n

    def rows(self) -> str:
        """Rows in each micro-batch of a GPU, as text; "" if that varies or is not known here."""
        keys = [f"{section}.ppo_micro_batch_size" for section in (ACTOR, "critic")[: 1 + self.has_critic]]
        of_job = {key: self.per_gpu(self.given[key]) for key in keys if key in self.given}
        counts = {self.text(f"{k}_per_gpu") or next((c.text for c in of_job.get(k, {}).values()), "") for k in keys}
        is_fixed = len(counts) == 1 and not self.is_on(f"{ACTOR}.use_dynamic_bsz")
        return counts.pop() if is_fixed else ""


def other_mains(job: ShellJob | YamlJob) -> list[tuple[str, int, int]]:
    return [m for m in job.mains if m[0].split("/")[-1] not in ("verl.trainer.main_ppo", "main_ppo.py")]


def is_equal(old, new) -> bool:
    """Whether two values mean the same setting, such as 1 and 1.0, or true and True."""
    try:
        return float(str(old)) == float(str(new))
    except ValueError:
        return str(old).lower() == str(new).lower()


# ------------------------------------------------------------------------------- trial (src/programs/migrate/trial.py)

TRIAL_SECONDS = 600
ONE_STEP = "--one_step"  # the first argument of the process
ROWS = 4
# Settings that replace the run's: one step, in one process on the CPU, without saving or reporting.
SMALL = (
    dict.fromkeys(["bf16", "fp16", "load_best_model_at_end", "push_to_hub", "use_vllm", "torch_compile"], False)
    | dict.fromkeys(["tf32", "deepspeed", "fsdp", "resume_from_checkpoint", "steps_per_generation"], None)
    | {"generation_batch_size": None, "use_liger_kernel": False, "use_cpu": True, "dataloader_num_workers": 0}
    | {"report_to": "none", "save_strategy": "no", "eval_strategy": "no"}
    | {"max_steps": 1, "gradient_accumulation_steps": 1}
)
QUIET = {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}


def cut_model(name: str, folder: str, notes: list[str]) -> str:
    """Save two layers of a model, with random weights, and its tokenizer; the embedded model replaces a missing one."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        local = {"local_files_only": not hub_is_reached()}
        config, tokenizer = AutoConfig.from_pretrained(name, **local), AutoTokenizer.from_pretrained(name, **local)
    except (OSError, ValueError):
        notes.append(f"{name} is not here: the embedded model replaces it; --model takes another")
        return EMBEDDED_MODEL
    text = config.get_text_config()
    layers, text.num_hidden_layers = text.num_hidden_layers, min(2, text.num_hidden_layers)
    for key, value in vars(text).items():
        if isinstance(value, list) and len(value) == layers:
            setattr(text, key, value[: text.num_hidden_layers])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def replace_loading(folder: str, model: str, notes: list[str]) -> None:
    """Make every from_pretrained load a cut-down copy of its model."""
    import transformers
    from transformers.models.auto.modeling_auto import _BaseAutoModelClass

    cuts = {EMBEDDED_MODEL: EMBEDDED_MODEL}

    def place_of(name: str) -> str:
        if name in cuts or name.startswith(folder):
            return cuts.get(name, name)
        name = model or name
        if name not in cuts:
            cuts[name] = name  # cut_model itself loads the original
            cuts[name] = cut_model(name, f"{folder}/cut{len(cuts)}", notes)
        return cuts[name]

    owners = [_BaseAutoModelClass, *_BaseAutoModelClass.__subclasses__()]  # each has its own from_pretrained
    owners += [getattr(transformers, f"Auto{name}") for name in ("Config", "Tokenizer", "Processor")]
    owners += [transformers.PreTrainedModel, transformers.GenerationConfig]
    for owner in [owner for owner in owners if "from_pretrained" in vars(owner)]:
        function = vars(owner)["from_pretrained"].__func__

        def load(cls, name, *args, function=function, **kwargs):
            for key in ("quantization_config", "device_map", "attn_implementation", "revision", "token"):
                kwargs.pop(key, None)
            return function(cls, place_of(str(name)), *args, **kwargs)

        owner.from_pretrained = classmethod(load)


def replace_training(record: dict, folder: str) -> None:
    """Record each config as the script makes it, cut it to one step of four rows, and exit after that step."""
    import transformers

    arguments, trainer = transformers.TrainingArguments, transformers.Trainer
    post_init, init, train = arguments.__post_init__, trainer.__init__, trainer.train

    def shrink(self):
        kinds, given = str | int | float | bool | list | dict | None, vars(self)
        record.setdefault(type(self).__name__, {k: v for k, v in given.items() if isinstance(v, kinds)})
        lengths = ("max_completion_length", "max_new_tokens", "response_length")
        values = SMALL | {"output_dir": f"{folder}/run"} | {n: min(given[n], 8) for n in lengths if given.get(n)}
        rows = getattr(self, "num_generations", min(ROWS, self.per_device_train_batch_size))
        values["per_device_train_batch_size"] = rows
        if re.search("8bit|paged", str(self.optim)):
            values["optim"] = "adamw_torch"
        given.update({name: value for name, value in values.items() if name in given})
        post_init(self)

    def init_with_few_rows(self, *args, **kwargs):
        for name in ("train_dataset", "eval_dataset"):
            rows = kwargs.get(name)
            kwargs[name] = rows.select(range(min(ROWS, len(rows)))) if hasattr(rows, "select") else rows
        init(self, *args, **kwargs)

    def train_one_step(self, *_, **__):
        record["loss"], record["trainer"] = train(self).training_loss, type(self).__name__
        Path(folder, "trial.json").write_text(json.dumps(record, default=str), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    arguments.__post_init__, trainer.__init__, trainer.train = shrink, init_with_few_rows, train_one_step


def one_step(file: str, folder: str, model: str, data: str) -> int:
    """What the trial process does: run the script with a small model and few rows until its first step ends."""
    import datasets
    import torch
    import transformers

    def load(*_, split=None, **__):
        rows = datasets.Dataset.from_list(read_rows(data))
        return rows if split else datasets.DatasetDict({"train": rows, "test": rows})

    record: dict = {"notes": []}
    torch.nn.Module.to = torch.nn.Module.cuda = lambda self, *_, **__: self  # it stays on the CPU
    replace_loading(folder, model, record["notes"])
    datasets.load_dataset = load if data else datasets.load_dataset
    replace_training(record, folder)
    transformers.utils.logging.disable_progress_bar()
    sys.argv = [file]
    runpy.run_path(file, run_name="__main__")
    return 0


def failure_of(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command in a folder, with all that it starts; returns why it failed, or "" where it did not."""
    with tempfile.TemporaryFile("w+") as said:
        options = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen(command, stdout=said, stderr=said, **options) as process:
            try:
                process.wait(TRIAL_SECONDS)
            except subprocess.TimeoutExpired:
                return f"it takes more than {TRIAL_SECONDS} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    places = re.findall(r'migrated\.py", (line \d+)', "\n".join(lines))[-1:]
    place = f" ({places[0]} of the new script)" if places else ""
    return (errors or lines)[-1] + place if lines and process.returncode else ""


def trial(text: str, home: Path, model: str, data: str) -> dict:
    """Run one step of the new script in the old one's folder; returns its loss and its settings as TRL read them.

    Raises:
        UserError: the script fails, ends without training, or takes too long.
    """
    say(f"note: --check runs the new script in {home}, for one step on the CPU and {TRIAL_SECONDS} s at most")
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder) / "migrated.py", Path(folder) / "trial.json"
        script.write_text(text, encoding="utf-8")
        model, data = (str(Path(x).resolve()) if x and Path(x).exists() else x or "" for x in (model, data))
        modules = os.pathsep.join(filter(None, [str(home.resolve()), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, __file__, ONE_STEP, str(script), folder, model, data]
        end = failure_of(command, home, os.environ | QUIET | {"PYTHONPATH": modules})
        end = end or "it ended without a training step"
        need(answer.is_file(), f"--check: got {end}; expected one step; try --data FILE, or the new script by hand")
        return json.loads(answer.read_text(encoding="utf-8"))


# --------------------------------------------------------------------------- command (src/programs/migrate/command.py)

Use = tuple[str, str, dict]  # name that a file uses, its place, its history
MIGRATED = re.compile(r"(?:^|\")# Migrated from (trl|verl)==([\d.]+) to \1==([\d.]+) by migrate\.py", re.M)
INSTALL = re.compile(  # an install command with its continuation lines, Ray's list, or a script's PEP 723 block
    r"\b(?:pip3?|uv)\b[^\n]*?\b(?:install|add|run)\b(?:[^\n\\]|\\.)*|\bpip\W+\[[^]]*\]"
    r"|^# /// script\n(?:#.*\n)*?# ///",
    re.M | re.S,
)
ORDER = r"(?:===?|[<>!~]=|[<>])\s*[\w.*+!]+"
PIN = re.compile(
    r"(?<![\w-])(?P<name>trl|transformers|verl|vllm|sglang|torch|peft|accelerate|bitsandbytes|deepspeed)(?:\[[\w,]+\])?"
    rf"\s*(?P<version>{ORDER}(?:\s*,\s*{ORDER})*)"
)
ACCELERATE = {"compute_environment", "distributed_type"}  # keys that only Accelerate's own YAML files have
NOT_SAME = 3
AS_JOB = "try a verl job as a file .sh with its words KEY=VALUE, or as YAML"


def uses(source: PythonSource) -> list[Use]:
    """Arguments and imports of a script that only some versions have."""
    tables, version_uses = changes("trl"), []
    configs = [(config, call) for config in CONFIGS.values() for call in source.calls.get(config, [])]
    for trainer, call in trainer_calls(source):
        table, place = tables["trainers"].get(trainer, {}), source.place(call)
        names = [argument.name for argument in source.arguments(call)[0]]
        version_uses += [(f"{trainer}({n}=…)", place, table[n]) for n in names if n in table]
    for config, call in configs:
        place = source.place(call)
        for name in [argument.name for argument in source.arguments(call)[0] + source.changes(call)]:
            in_config, in_base = histories(config, name)
            if in_config and not in_base and name not in trl_defaults(""):
                version_uses.append((f"{config}({name}=…)", place, in_config))
    for name, (module, original, node) in source.imports.items():
        if module.split(".")[0] == "trl" and original in tables["modules"]:
            history = tables["modules"][original]
            here = {v: home for v, home in history.items() if module != "trl" or home == module or is_gone(home)}
            if module != "trl" and "experimental" not in module:  # has a name as long as trl itself has it
                here = {tables["versions"][0]: module}
                here |= {v: {"gone": ""} for v, home in history.items() if home != "trl"}
            version_uses.append((f"from {module} import {name}", source.place(node), here))
    return version_uses


def pinned(package: str, file: str, text: str) -> tuple[str, str] | None:
    """(Version, where) of a pin PACKAGE==… in a file, or in a requirements.txt beside it."""
    pattern = re.compile(rf"(?<![\w-]){package}(?:\[[\w,]+\])?(?:\s*==\s*|(?:\.git)?@)v?(\d+\.\d+)")
    texts, requirements = {file: text}, Path(file).parent / "requirements.txt"
    if requirements.is_file():
        texts[str(requirements)] = requirements.read_text(encoding="utf-8", errors="replace")
    for name, content in texts.items():
        if match := pattern.search(content):
            return known_version(package, match[1]), f"pinned in {Path(name).name}: {match[0]}"
    return None


def chosen_version(package: str, file: str, text: str, given: str, file_uses: list[Use], outcome: Callable) -> tuple:
    """(Version, how it was found).

    Raises:
        UserError: the given version, or every version, lacks a name of the file; or several fit, with different runs.
    """
    for use, place, history in file_uses if given else []:
        first = next(iter(history), given)
        if numbers(first) > numbers(given):
            got = f"{file}, {place}: got --from {package}=={given} and {use}, there since {first}"
            expected = f"expected a version from {first} on"
            raise UserError(f"{got}; {expected}; try without --from, which says what fits")
    if given:
        return given, "given"
    if pin := pinned(package, file, text):
        return pin
    versions = changes(package)["versions"]
    lacking = {v: [use for use, _, history in file_uses if value_at(history, v) is ABSENT] for v in versions}
    fitting = [v for v in versions if not lacking[v]]
    if not fitting:
        later = {v: sum(numbers(next(iter(h), v)) > numbers(v) for _, _, h in file_uses) for v in versions}
        best = min(versions, key=lambda v: (later[v], len(lacking[v])))
        got = f"got {file}, which fits no version of {package}: {best} is nearest and has no {', '.join(lacking[best])}"
        raise UserError(f"{got}; expected one that has all names; try --from {package}=={best}")
    span = f"{package} {fitting[0]} to {fitting[-1]} fit by the names used"
    outcomes = {version: outcome(version) for version in fitting}
    names = dict.fromkeys(name for settings in outcomes.values() for name in settings)
    lines = []
    for name in names:
        parts = []
        for value, group in itertools.groupby(fitting, lambda v, name=name: outcomes[v].get(name, "as today")):
            same = [*group]
            parts.append("-".join(dict.fromkeys((same[0], same[-1]))) + f": {value}")
        if len(parts) > 1:
            lines.append(f"  {name}: {', '.join(parts)}")
    if not lines:
        return fitting[-1], f"{span}, and make the same run"
    got = f"got {file} without --from; {span}, and make different runs:"
    expected = f"expected that of the environment that ran it; try --from {package}=={fitting[0]}, the oldest that fits"
    raise UserError("\n".join([got, *lines, expected]))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("file", help="script (.py), notebook (.ipynb), job (.sh) or YAML")
    parser.add_argument("--from", dest="version", metavar="PACKAGE==VERSION", help="trl==0.14, verl==0.3")
    parser.add_argument("--out", help="the new file; without it only the table is shown")
    parser.add_argument("--config_class", "--config-class", help="class of a YAML file: GRPOConfig, SFTConfig, …")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--check", action="store_true", help="run one step of the new script, with a cut-down model")
    parser.add_argument("--model", help="--check: a folder or hub id instead of the script's model")
    parser.add_argument("--data", help="--check: a file of rows instead of the script's data set")
    return parser.parse_args(argv)


def result_of(package: str, version: tuple[str, str], report: Report, place, new_text, text: str) -> dict:
    """The migrated text and its report; an edited file also gets a comment that names both versions.

    `version`: (version, how it was found); `new_text`: function that applies edits to `text`, the old text.
    """
    report.drop_inner()
    if report.edits:
        start = re.match(r"((?:#!|%%)[^\n]*\n)?(#.*coding[:=][^\n]*\n)?", text).end()
        line = f"# Migrated from {package}=={version[0]} to {package}=={newest(package)} by migrate.py.\n"
        report.edits.insert(0, Edit(start, start, line))
    result = {"package": package, "version": version[0], "found": version[1], "report": report}
    return result | {"rows": report.rows(place), "text": new_text(report.edits)}


def migrate_python(file: str, text: str, version: str) -> dict:
    source = PythonSource(file, text)
    uses_trl = any(module.split(".")[0] in ("trl", "unsloth") for module, _, _ in source.imports.values())
    got = f"got {file}, which imports nothing from TRL"
    need(uses_trl, f"{got}; expected a script with one of its trainers; {AS_JOB}")
    chosen = chosen_version("trl", file, source.text, version, uses(source), lambda v: outcome(source, v))
    migration = TrlMigration(source, chosen[0])
    report = migration.migrate()
    edit_pins(source.text, {"trl": newest("trl"), "transformers": "5.23"}, report)
    result = result_of("trl", chosen, report, source.place, lambda edits: edited_source(source, edits), source.text)
    compiled(file, result["text"])
    runs = [(run, change) for run, plan in migration.runs if not run.unseen for change in plan.values() if change.text]
    rows = [{"config": run.config, "setting": change.name, "new": change.text} for run, change in runs]
    return result | {"settings": rows}


def edit_pins(text: str, newer: dict[str, str], report: Report) -> None:
    """Raise the pins of `newer` packages in install commands; note which others of their stack are pinned."""
    others = []
    for match in [pin for block in INSTALL.finditer(text) for pin in PIN.finditer(text, *block.span())]:
        if match["name"] not in newer:
            others.append(match[0])
        elif re.search("[=<~]", match["version"].replace(">=", "")):
            version = f"=={newer[match['name']]}.*"
            pin = Change(f"{match['name']}{version}", "", newer[match["name"]], "the version of the new file", match[0])
            report.edit(*match.span("version"), version, pin)
    if others:
        report.note(f"pinned for the old version, too: {', '.join(dict.fromkeys(others))}")


def compiled(name: str, text: str) -> None:
    """Raise UserError unless the new text compiles; parsing alone would accept an argument given twice."""
    try:
        compile(PythonSource(name, text).runnable, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError) as error:
        got = f"got {error} in the new text of {name}; expected Python, so nothing was written"
        raise UserError(f"{got}; try writing each setting once in the old file") from None


def migrate_job(file: str, text: str, version: str) -> dict:
    """Migrate a verl job: a shell script, or its settings in YAML."""
    kind = YamlJob if Path(file).suffix in (".yaml", ".yml") else ShellJob
    job = kind(file, text)
    inherits = kind is YamlJob and re.search(r"\bppo_\w*trainer\b", text)  # from verl's own file, in `defaults`
    is_verl = job.mains or inherits or any(word.key.split(".")[0] in SECTIONS for word in job.words)
    advice = "; for settings of TRL try --from trl==VERSION, that of their run" if kind is YamlJob else ""
    need(is_verl, f"got {file} without a setting of verl; expected a job or its YAML{advice}")

    def migrations(version: str, report: Report) -> list[VerlMigration]:
        return [VerlMigration(command, version, report) for command in job.commands()]

    def outcome_of(version: str) -> dict:
        report = Report()
        silent = [migration.silent() for migration in migrations(version, report)]
        settings = {key: change.text for changes in silent for key, change in changes.items()}
        return settings | {entry["setting"]: entry["why"] for entry in report.impossible}

    table, report = changes("verl")["keys"], Report()
    named = [(w.key, job.place(w.start), table[w.key]) for w in job.words if w.key in table and w.sign != "+"]
    chosen = chosen_version("verl", file, text, version, named, outcome_of)
    for migration in migrations(chosen[0], report):
        migration.migrate()
    if kind is ShellJob:
        edit_pins(text, {"verl": newest("verl")}, report)
    result = result_of("verl", chosen, report, job.place, job.edited, text)
    if kind is ShellJob and not all(map(other_mains, job.commands())):
        engine = " and model_engine=megatron" if "ppo_megatron" in text else ""
        way = f"verl_train.py --check --overrides FILE composes its words, one KEY=VALUE a line{engine}"
        report.note(f"only names of keys were checked; in verl's environment, {way}")
    return result


def shown_rows(rows: list[dict], names: list[str]) -> str:
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [min(60, max(len(line[i]) for line in lines)) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def say_result(file: str, result: dict, out: str | None) -> None:
    report, rows, package = result["report"], result["rows"], result["package"]
    if report.impossible:
        tell("NOT THE SAME RUN: today's package has no equivalent for")
        for entry in report.impossible:
            where = f"{entry['line']}: " if entry["line"] else ""
            tell(f"  {where}{entry['setting']}: {entry['why']}; nearest: {entry['nearest']}")
        tell("")
    version = f"{package}=={result['version']} ({result['found']}) to {package}=={newest(package)}"
    condition = f"; the same run if {', and '.join(report.conditions)}" if report.conditions else ""
    tell(f"{file}: {version}, {len(rows)} changes{condition}")
    for note in report.notes:
        tell(f"note: {note}")
    if rows:
        tell("\n" + shown_rows(rows, ["line", "setting", "since", "why", "otherwise"]))
        tell("\n--json has file and line in the old source of each change that no signature shows")
    if step := result.get("trial"):
        tell("\n" + shown_rows(step["settings"], ["setting", "new", "read"]))
        tell(f"--check: one step of {step['trainer']}, loss {step['loss']:.4g}")
    tell(f"\n{out} written" if out else "\nnothing written; try --out NEW")


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [ONE_STEP]:
        return one_step(*words[1:])
    try:
        return run(parse(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code


def check_step(args: argparse.Namespace, result: dict, path: Path) -> None:
    """Run one step of the new script; put what TRL read beside each setting that the script gives."""
    need(path.suffix in (".py", ".ipynb"), "got --check with settings; expected a script; try verl_train.py --check")
    script = PythonSource(path.name, result["text"]).runnable
    answer = trial(script, path.parent, args.model, args.data)
    rows = [row | {"read": answer.get(row["config"], {}).get(row["setting"], "")} for row in result["settings"]]
    result["report"].notes += answer["notes"]
    result["trial"] = {"loss": answer["loss"], "trainer": answer["trainer"], "settings": rows}


def migrated(args: argparse.Namespace, path: Path, text: str) -> dict:
    """Migrate a file as a TRL script, TRL settings or a verl job, by its suffix and --from."""
    given = re.fullmatch(r"(trl|verl)\s*==\s*v?([\w.]+)", args.version or "")
    got = f"got --from {args.version!r}"
    need(given or not args.version, f"{got}; expected trl==VERSION or verl==VERSION; try --from trl==0.14")
    package, version = (given[1], known_version(given[1], given[2])) if given else ("", "")
    is_python, is_yaml = path.suffix in (".py", ".ipynb"), path.suffix in (".yaml", ".yml")
    need(not (is_python and package == "verl"), f"got {args.file} with --from verl; {AS_JOB}")
    if is_python:
        return migrate_python(args.file, text, version)
    if package == "trl" or args.config_class:
        got = f"got {args.file} with --from trl; expected .py, .ipynb or .yaml"
        need(is_yaml, f"{got}; try its flags as a YAML file, KEY: VALUE")
        job = YamlJob(args.file, text)
        config = args.config_class or config_of(job)
        need(config, f"got {args.file} without --config_class; expected that of its run; try --config_class GRPOConfig")
        need(version, f"got {args.file} without --from; expected trl==VERSION; try that of the environment that ran it")
        report = migrate_yaml(job, run_of(job, config, version))
        return result_of("trl", (version, "given"), report, job.place, job.edited, text)
    return migrate_job(args.file, text, version)


def run(args: argparse.Namespace) -> int:
    path, out = Path(args.file), Path(args.out) if args.out else None
    try:
        with path.open(encoding="utf-8-sig", newline="") as f:
            text = f.read()
    except (OSError, ValueError) as error:
        raise UserError(f"got {args.file} ({getattr(error, 'strerror', error)}); expected a file in UTF-8") from None
    need(not out or not out.exists(), f"got --out {args.out}, which exists; expected a new file; try another name")
    is_dos = "\r\n" in text and text.count("\r\n") == text.count("\n")
    text = text.replace("\r\n", "\n") if is_dos else text
    if before := MIGRATED.search(text):
        tell(f"{args.file} was migrated before, from {before[1]}=={before[2]} to {before[3]}: nothing changes")
        return 0
    if path.suffix in (".yaml", ".yml") and ACCELERATE & {word.key for word in YamlJob(args.file, text).words}:
        tell(f"{args.file} is accelerate's, without a setting of TRL: nothing changes; `accelerate test` tries it")
        return 0
    result = migrated(args, path, text)
    report = result["report"]
    asked = re.search(r"==\s*v?(\d+\.\d+)", args.version or result["found"])
    if asked and numbers(asked[1]) < numbers(result["version"]):
        report.note(f"read as {result['package']} {result['version']}, with which the tables of changes begin")
    if out:
        with out.open("w", encoding="utf-8", newline="\r\n" if is_dos else "") as f:
            f.write(result["text"])
    if args.check:
        check_step(args, result, path)
    if args.json:
        shown = {name: result[name] for name in ("package", "version", "found", "trial") if name in result}
        shown |= {"to": newest(result["package"]), "changes": result["rows"], "not_expressible": report.impossible}
        shown |= {"notes": report.notes, "same_if": report.conditions, "out": args.out}
        tell(json.dumps(shown, indent=1))
    elif not report.edits and not report.impossible and not report.notes:
        tell(f"{args.file} needs no change: {result['package']} {newest(result['package'])} makes the same run of it")
    else:
        say_result(args.file, result, args.out)
    return NOT_SAME if report.impossible else 0


if __name__ == "__main__":
    sys.exit(main())
