"""What Python tests say: which names are the program's, and what counts as a test."""

import ast
import importlib

PROGRAM_FILES = {"solution", "main", "__main__", "answer", "program", "submission", "your_module", "my_module"}


class FromProgram(ast.NodeTransformer):
    """Have tests take from the program what they import from its file, whose name they have to guess."""

    def __init__(self):
        self.files = set()  # names under which the program's file is known

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


class CountAsserts(ast.NodeTransformer):
    """Make each assert a counted test that does not end the others.

    Inside `try` and `with` an assert keeps its meaning, since what is around it may expect an exception.
    """

    def __init__(self):
        self.guarded = 0

    @staticmethod
    def call(node, name: str, *args) -> ast.Expr:
        """A call of one of the judge's functions with the line of a test."""
        return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(node.lineno), *args], []))

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
        function = getattr(node.value, "func", None)
        name = getattr(function, "attr", getattr(function, "id", ""))
        own = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"  # unittest counts
        if not name.startswith("assert") or own:
            return node
        return self.counted(node, [node, self.call(node, "__check__", ast.Constant(True))])

    def visit_With(self, node):
        """`with pytest.raises(...)` counts as an assert."""
        calls = [getattr(item.context_expr, "func", None) for item in node.items]
        new = self.visit_guard(node)
        if not any(getattr(call, "attr", getattr(call, "id", "")) in ("raises", "assertRaises") for call in calls):
            return new
        return self.counted(node, [new, self.call(node, "__check__", ast.Constant(True))])

    def visit_guard(self, node):
        self.guarded += 1
        node.body = [self.visit(statement) for statement in node.body]
        self.guarded -= 1
        for part in ("handlers", "orelse", "finalbody"):
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
            if handler.type and not names_in(handler.type) & {"AssertionError", "Exception", "BaseException"}:
                handler.body.insert(0, self.call(node, "__check__", ast.Constant(True)))
        return ast.fix_missing_locations(new)

    def visit_Assert(self, node):
        """assert x  ->  try: __check__(line, x)  except Exception as e: __fail__(line, e)"""
        return self.counted(node, [self.call(node, "__require__" if self.guarded else "__check__", node.test)])


def always_fails(statement: ast.stmt) -> bool:
    """Whether it is `assert False` or `raise AssertionError(...)`."""
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


def names_in(*nodes: ast.AST) -> set:
    """The names that a piece of source uses."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def looks_at_output(tests: ast.AST) -> bool:
    """Whether tests capture what is printed, which in another process they cannot."""
    words = {part.attr for part in ast.walk(tests) if isinstance(part, ast.Attribute)}
    words |= {part.arg for part in ast.walk(tests) if isinstance(part, ast.arg)} | names_in(tests)
    return bool(words & {"redirect_stdout", "redirect_stderr", "capsys", "stdout", "stderr"})


def calls_in(*nodes: ast.AST) -> list[ast.Call]:
    """The calls of functions by their names."""
    parts = (part for node in nodes for part in ast.walk(node))
    return [part for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]


def judging_names(tests: ast.AST, wanted: set, program: set) -> set:
    """Those of the wanted names by which the tests judge what the program's other functions return.

    Such a function is called with the result of another one, or with a variable of the tests where these call another
    one at all, or stands on the other side of a comparison.
    """
    found, called = set(), program & names_in(tests)
    bound = {part.arg for part in ast.walk(tests) if isinstance(part, ast.arg)} - {"candidate"}
    bound |= {part.id for part in ast.walk(tests) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for call in calls_in(tests):
        name, inside = call.func.id, names_in(*call.args, *(item.value for item in call.keywords))
        others = program - {name}
        if name in wanted and (inside & others or (inside & bound and called & others)):
            found.add(name)
    for node in (part for part in ast.walk(tests) if isinstance(part, ast.Compare)):
        sides = [node.left, *node.comparators]
        for side in sides:
            beside = names_in(*(other for other in sides if other is not side)) & program
            found.update(call.func.id for call in calls_in(side) if beside - {call.func.id})
    return found & wanted


def wraps_a_call(tests: ast.AST, name: str, program: set) -> bool:
    """Whether a function is called with what another function of the program returns."""
    mine = [call for call in calls_in(tests) if call.func.id == name]
    return any({inner.func.id for inner in calls_in(call)} & program - {name} for call in mine)


def iterated_names(tests: ast.AST) -> set:
    """The names of functions that loops run over: they decide how often something is tested."""
    return {name for part in ast.walk(tests) if hasattr(part, "iter") for name in names_in(part.iter)}
