"""Read tests in Python: which names are the program's, and what counts as a test."""

import ast
import importlib
import re

from parts.rewards.extracts import read_names

PROGRAM_FILES = {"solution", "main", "__main__", "answer", "program", "submission", "your_module", "my_module"}
RUNNERS = {"unittest.main", "pytest.main", "doctest.testmod", "sys.exit", "exit", "quit"}
# full names of what acts on a process or folder; the program's are not those of the tests
SURROUNDINGS = re.compile(
    r"unittest\.mock\.patch|tempfile\.|shutil\.|pathlib\.Path|os\.(?:environ|getenv|putenv|chdir|mkdir|makedirs|listdir"
    r"|remove|unlink|path\.(?:exists|is|getsize))|inspect\.|open$"
)
SORTERS = {"sorted", "sort", "min", "max", "nlargest", "nsmallest", "insort", "heapify", "heappush", "heappop"}
RAISES = ("raises", "assertRaises", "assertRaisesRegex")


class FromProgram(ast.NodeTransformer):
    """Have tests take from the program what they import from its file, whose name they have to guess."""

    def __init__(self):
        self.files = set()  # names under which the program's file is known

    def visit_Module(self, node):
        """Tests as they run as a script, `if __name__ == "__main__"` included, but for what runs them or exits."""
        inside = []
        for top in node.body:
            is_guard = isinstance(top, ast.If) and "__name__" in read_names(top.test)
            inside += top.body if is_guard else [top]
        node.body = [part for part in inside if ast.unparse(part).partition("(")[0] not in RUNNERS]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node):
        """@pytest.mark.skip def test(): …  ->  pass"""
        self.generic_visit(node)
        marks = {ast.unparse(mark).partition("(")[0].rpartition(".")[2] for mark in node.decorator_list}
        return ast.copy_location(ast.Pass(), node) if marks & {"skip", "xfail"} else node

    def visit_ImportFrom(self, node):
        """from solution import f, g as h  ->  h = g"""
        if node.module not in PROGRAM_FILES:
            return node
        named = [(alias.asname, alias.name) for alias in node.names if alias.asname]
        new = [ast.Assign([ast.Name(name, ast.Store())], ast.Name(of, ast.Load())) for name, of in named]
        return [ast.fix_missing_locations(ast.copy_location(part, node)) for part in new or [ast.Pass()]]

    def visit_Import(self, node):
        """import solution  ->  pass"""
        files = [alias for alias in node.names if alias.name in PROGRAM_FILES]
        self.files |= {alias.asname or alias.name for alias in files}
        node.names = [alias for alias in node.names if alias not in files]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def visit_Attribute(self, node):
        """solution.f  ->  f"""
        self.generic_visit(node)
        if not isinstance(node.value, ast.Name) or node.value.id not in self.files:
            return node
        return ast.copy_location(ast.Name(node.attr, node.ctx), node)


class ForJudge(ast.NodeTransformer):
    """Make each assert a counted test that does not end the others, and have the judge tell identity, type and order.

    Inside `try` and `with` an assert keeps its meaning, since what is around it may expect an exception.
    """

    def __init__(self):
        self.guarded = 0

    @staticmethod
    def call(node, name: str, *args) -> ast.Expr:
        """A call of one of the judge's functions with the line of a test."""
        return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(node.lineno), *args], []))

    @staticmethod
    def asked(node, name: str, *args, keywords=()) -> ast.Call:
        """A call of one of the judge's functions, to replace an expression."""
        new = ast.Call(ast.Name(name, ast.Load()), [*args], [*keywords])
        return ast.fix_missing_locations(ast.copy_location(new, node))

    def counted(self, node, statements: list) -> ast.AST:
        """Statements that count as a test when they end: try: ...  except Exception as e: __fail__(line, e)"""
        if self.guarded:
            new = ast.If(ast.Constant(True), statements, [])
        else:
            fail = self.call(node, "__fail__", ast.Name("__e__", ast.Load()))
            handler = ast.ExceptHandler(ast.Name("__Exception__", ast.Load()), "__e__", [fail])
            new = ast.Try(statements, [handler], [], [])
        return ast.fix_missing_locations(ast.copy_location(new, node))

    def visit_Expr(self, node):
        """A call of a function named assert…, such as numpy.testing.assert_allclose, counts as an assert."""
        self.generic_visit(node)
        function = getattr(node.value, "func", None)
        name = getattr(function, "attr", getattr(function, "id", ""))
        # unittest counts its own
        is_of_self = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
        if not name.startswith("assert") or is_of_self:
            return node
        return self.counted(node, [node, self.call(node, "__check__", ast.Constant(True))])

    def visit_With(self, node):
        """`with pytest.raises(...)` counts as an assert."""
        calls = [getattr(item.context_expr, "func", None) for item in node.items]
        new = self.visit_guard(node)
        if not any(getattr(call, "attr", getattr(call, "id", "")) in RAISES for call in calls):
            return new
        return self.counted(node, [new, self.call(node, "__check__", ast.Constant(True))])

    def visit_guard(self, node):
        self.guarded += 1
        node.body = [self.visit(statement) for statement in node.body]
        self.guarded -= 1
        for part in ("items", "handlers", "orelse", "finalbody"):
            if hasattr(node, part):
                setattr(node, part, [self.visit(n) for n in getattr(node, part)])
        return node

    visit_TryStar = visit_AsyncWith = visit_guard

    def visit_Try(self, node):
        """`try: f(0); assert False` counts where an exception that it names comes in its place."""
        expects = any(map(always_fails, [*node.body, *node.orelse]))
        silent = [h for h in node.handlers if not any(isinstance(part, ast.Assert) for part in ast.walk(h))]
        new = self.visit_guard(node)
        for handler in silent if expects else ():
            if handler.type and not read_names(handler.type) & {"AssertionError", "Exception", "BaseException"}:
                handler.body.insert(0, self.call(node, "__check__", ast.Constant(True)))
        return ast.fix_missing_locations(new)

    def visit_Assert(self, node):
        """assert x  ->  try: __check__(line, x)  except Exception as e: __fail__(line, e)"""
        self.generic_visit(node)
        return self.counted(node, [self.call(node, "__require__" if self.guarded else "__check__", node.test)])

    def visit_Compare(self, node):
        """a is b  ->  __is__(a, b)"""
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        new = self.asked(node, "__is__", node.left, *node.comparators)
        return new if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), new), node)

    def visit_Call(self, node):
        """type(a)  ->  __type__(a);  sorted(a)  ->  __sort__(sorted, a)"""
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if getattr(node.func, "id", "") == "type" and len(node.args) == 1:
            return self.asked(node, "__type__", *node.args)
        return self.asked(node, "__sort__", node.func, *node.args, keywords=node.keywords) if name in SORTERS else node

    def visit_Attribute(self, node):
        """a.__class__  ->  __type__(a)"""
        self.generic_visit(node)
        read = node.attr == "__class__" and isinstance(node.ctx, ast.Load)
        return self.asked(node, "__type__", node.value) if read else node


def count_of_asserts(tests: ast.Module, entry_point: str | None) -> int:
    """How many asserts there are, without `assert False` and functions that nothing calls; changes the tests."""
    used = read_names(tests) | ({"check"} if entry_point else set())
    functions = [part for part in tests.body if isinstance(part, ast.FunctionDef)]
    unused = [part for part in functions if not part.name.startswith("test") and part.name not in used]
    tests.body = [part for part in tests.body if part not in unused]
    hopeless = sum(isinstance(node, ast.Assert) and always_fails(node) for node in ast.walk(tests))
    counted = [call for call in calls_in(ForJudge().visit(tests)) if call.func.id in ("__check__", "__require__")]
    return len(counted) - hopeless


def always_fails(statement: ast.stmt) -> bool:
    """Whether it is `assert False`, `raise AssertionError(...)` or `pytest.fail(...)`."""
    if isinstance(statement, ast.Expr):
        return getattr(getattr(statement.value, "func", None), "attr", "") == "fail"
    if isinstance(statement, ast.Raise):
        return getattr(getattr(statement.exc, "func", statement.exc), "id", "") == "AssertionError"
    return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant) and not statement.test.value


# functions that tests often use without importing them, since the program does
STANDARD = {
    name: module
    for module in ("math", "collections", "copy", "itertools", "functools", "operator", "statistics", "json")
    for name in importlib.import_module(module).__dict__
    if not name.startswith("_")
}


def unjudged(tests: ast.AST) -> str:
    """What tests do as if they shared a process with the program, such as reading `os.environ`; "" for nothing."""
    names = [part for part in ast.walk(tests) if isinstance(part, ast.Name | ast.Attribute)]
    full = {"open": "open"}  # {name: what it stands for}: {"path": "os.path"} of `from os import path`
    for part in (part for part in ast.walk(tests) if isinstance(part, ast.Import | ast.ImportFrom)):
        for alias in part.names:
            head, dot, _ = (alias.asname or alias.name).partition(".")
            full[head] = head if dot else f"{part.module}.{alias.name}" if hasattr(part, "module") else alias.name
    parts = (text.partition(".") for text in {*map(ast.unparse, names)})
    used = {full[head] + dot + rest for head, dot, rest in parts if head in full}  # os.path.exists of `path.exists(x)`
    stored = {ast.unparse(name) for name in names if isinstance(name.ctx, ast.Store)}
    outside = {name for name in used if SURROUNDINGS.match(name)} | stored & {"sys.stdin"}
    if any(getattr(name, "attr", "") == "getvalue" for name in names):
        outside |= (used | stored) & {"contextlib.redirect_stdout", "contextlib.redirect_stderr", "sys.stdout"}
    draws = {name for name in used if re.match(r"(?:numpy\.)?random\.", name)} - {"numpy.random"}
    if all(name.endswith("seed") for name in draws):  # a seed that is not for the tests' own draws
        outside |= draws
    name = min(outside, default="")
    return name and f"the tests use {name}, but the program runs in a process of its own; try arguments and results"


def caught_names(tests: ast.AST) -> set:
    """The names that may be those of expected exceptions: in `except`, `raises(…)`, `assertRaises(…)`, `isinstance`."""
    kinds = [part.type for part in ast.walk(tests) if isinstance(part, ast.ExceptHandler) and part.type]
    for call in (part for part in ast.walk(tests) if isinstance(part, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        kinds += call.args[:1] if name in RAISES else call.args[1:2] if name == "isinstance" else []
    return read_names(*kinds)


def used_as_classes(tests: ast.AST) -> set:
    """The capitalized names whose results tests use as objects: `V(1).x`, `V(1) < V(2)`, `v = V(1)` and `v[0] = 1`."""
    makers, parts = {}, list(ast.walk(tests))

    def maker(node: ast.AST) -> str:
        node = node.left if isinstance(node, ast.BinOp) else node
        name = getattr(getattr(node, "func", None), "id", "")
        return name if name[:1].isupper() else makers.get(ast.unparse(node), "")

    for part in (part for part in parts if isinstance(part, ast.Assign)):
        for target in part.targets:
            pairs = zip(getattr(target, "elts", [target]), getattr(part.value, "elts", [part.value]), strict=False)
            makers.update({ast.unparse(name): maker(value) for name, value in pairs})
    compared = [part for part in parts if isinstance(part, ast.Compare)]
    names = {maker(part.left) for part in compared if maker(part.left) == maker(part.comparators[0])}
    changed = [p for p in parts if isinstance(p, ast.Subscript) and not isinstance(p.ctx, ast.Load)]
    changed += [part for part in parts if isinstance(part, ast.Attribute)]
    return (names | {maker(part.value) for part in changed}) - {""}


def argument_sets(test) -> list[dict]:
    """The arguments of each run of a test, by its marks `pytest.mark.parametrize`."""
    sets = [{}]
    for mark in (mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"):
        given = dict(zip(("argnames", "argvalues"), mark.args, strict=False)) | mark.kwargs
        names, rows = given["argnames"], []
        alone = isinstance(names, str) and "," not in names  # then a row is the value itself
        names = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
        for row in given["argvalues"]:
            rows.append(row.values if type(row).__name__ == "ParameterSet" else [row] if alone else row)
        sets = [{**known, **dict(zip(names, row, strict=True))} for known in sets for row in rows]
    return sets


def calls_in(*nodes: ast.AST) -> list[ast.Call]:
    """The calls of functions by their names."""
    parts = (part for node in nodes for part in ast.walk(node))
    return [part for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]


def judging_names(tests: ast.AST, wanted: set, program: set) -> set:
    """Those of the wanted names by which the tests judge what the program's other functions return.

    Such a function is called with the result of another one, or with a variable of the tests where these call another
    one at all, or stands on the other side of a comparison.
    """
    judging, called = set(), program & read_names(tests)
    bound = {part.arg for part in ast.walk(tests) if isinstance(part, ast.arg)} - {"candidate"}
    bound |= {part.id for part in ast.walk(tests) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for call in calls_in(tests):
        name, inside = call.func.id, read_names(*call.args, *(item.value for item in call.keywords))
        others = program - {name}
        if name in wanted and (inside & others or (inside & bound and called & others)):
            judging.add(name)
    for node in (part for part in ast.walk(tests) if isinstance(part, ast.Compare)):
        sides = [node.left, *node.comparators]
        for side in sides:
            beside = read_names(*(other for other in sides if other is not side)) & program
            judging.update(call.func.id for call in calls_in(side) if beside - {call.func.id})
    return judging & wanted
