"""A user's Python script or notebook, read from its source."""

import ast
import itertools
import json
import operator
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, cached_property

from parts.foundation.messages import UserError

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
