"""Tests that can be run at all."""

import ast
import functools
import warnings

from programs.data_loader.bad_rows import BadRow, shown


def check_test(test, name: str) -> None:
    """Raise BadRow unless a test is source, a case for stdin, or a call with what it should return."""
    if isinstance(test, str):
        check_python(test, name)
        if not test.strip():
            raise BadRow(name, "an empty test", "Python source")
    elif isinstance(test, dict):
        if not ({"input", "output"} <= set(test) or "expected" in test):
            raise BadRow(name, f"the keys {', '.join(test) or 'none'}", "input and output, or args and expected")
    elif not isinstance(test, list) or len(test) != 2:
        raise BadRow(name, shown(test), "source, {input, output}, {args, expected} or [args, expected]")


@functools.lru_cache(32)
def parsed(source: str) -> ast.Module:
    """The syntax tree of Python source, which is never run; a row's tests are asked for twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are the data's own matter
        return ast.parse(source)


def check_python(source: str, name: str) -> None:
    """Raise BadRow where tests are no Python; they are parsed, never run."""
    try:
        parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRow(name, f"{shown(source)} ({error})", "Python source") from None


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_runnable(row: dict, name: str) -> None:
    """Raise BadRow for tests that no program can pass or fail, so that the row would never train."""
    tests, entry_point = row["tests"], row.get("entry_point") or None
    if entry_point is not None and not entry_point.isidentifier():
        raise BadRow("entry_point", shown(entry_point), "the name of a function, or of a method of a class Solution")
    if isinstance(tests, dict):
        check_paired(tests, name, entry_point)
    elif isinstance(tests, str) or isinstance(tests[0], str):
        check_asserts([tests] if isinstance(tests, str) else tests, name, entry_point, row)
    elif all(isinstance(test, dict) and {"input", "output"} <= set(test) for test in tests):
        for number, test in enumerate(tests):
            check_stdin(test, f"{name}[{number}]")
    else:
        pairs = isinstance(tests[0], list)  # the rewards of this bundle call `solution` then
        for number, test in enumerate(tests):
            check_call(test, f"{name}[{number}]", entry_point or ("solution" if pairs else None))


def check_paired(tests: dict, name: str, entry_point: str | None) -> None:
    """Raise BadRow unless inputs and outputs are those of a script, or of the function `fn_name`."""
    function = tests.get("fn_name")
    if not function:
        if entry_point and not all(isinstance(item, str) for item in tests["inputs"]):
            got = f"inputs that are no text and entry_point {shown(entry_point)}, but no fn_name"
            raise BadRow(name, got, "text for a script, or a function to call", "the key fn_name in the tests")
        return
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"fn_name {shown(function)}", "the name of a function")
    for number, arguments in enumerate(tests["inputs"]):
        if not isinstance(arguments, list):
            raise BadRow(f"{name}.inputs[{number}]", shown(arguments), f"a list of the arguments of {function}")


def check_stdin(test: dict, name: str) -> None:
    """Raise BadRow unless a test is text for a script and the text that it prints."""
    wrong = [key for key in ("input", "output") if not isinstance(test[key], str | int | float)]
    if wrong or test.get("fn_name"):
        got = f"{wrong[0]} {shown(test[wrong[0]])}" if wrong else f"fn_name {shown(test['fn_name'])}"
        advice = 'calls as {"function", "args", "expected"}, by a format of your own'
        raise BadRow(name, f"{got} in a test with input and output", "text on stdin and stdout", advice)


def check_call(test, name: str, entry_point: str | None) -> None:
    """Raise BadRow unless a test says which function to call, with which arguments."""
    if isinstance(test, list):
        test = {"args": test[0] if isinstance(test[0], list) else [test[0]], "expected": test[1]}
    if "expected" not in test:
        raise BadRow(name, "a test for stdin among calls", "tests of one form")
    function, arguments, named = test.get("function") or entry_point, test.get("args", []), test.get("kwargs") or {}
    if function is None:
        raise BadRow("entry_point", "no name of the function to call", "one, or `function` in each test", ENTRY_ADVICE)
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"function {shown(function)}", "the name of a function")
    if not isinstance(arguments, list) or not isinstance(named, dict):
        raise BadRow(name, f"args {shown(arguments)} and kwargs {shown(named)}", "a list and an object")


ENTRY_ADVICE = "--map entry_point=COLUMN"


def check_asserts(sources: list[str], name: str, entry_point: str | None, row: dict) -> None:
    """Raise BadRow unless something in Python tests is counted, and what they test has a name."""
    live, idle = live_nodes([parsed(source) for source in sources], entry_point)
    if entry_point is None and any(function.name == "check" for function in idle):
        raise BadRow("entry_point", "none beside tests in check(candidate)", "the function under test", ENTRY_ADVICE)
    if not any(map(is_counted, live)):
        where = f"; {idle[0].name}() is never called" if idle else ""
        raise BadRow(name, f"tests that assert nothing{where}", "an assert that is run, or a unittest.TestCase")
    said = f"{row['prompt'][-1]['content']} {row.get('setup', '')}"
    if entry_point is None and "candidate" in unbound(live) and "candidate" not in said:
        raise BadRow("entry_point", "none beside tests of `candidate`", "the function under test", ENTRY_ADVICE)


def live_nodes(trees: list[ast.Module], entry_point: str | None) -> tuple[list[ast.AST], list]:
    """(nodes that run with the tests, functions that nothing calls), as scripts/sandbox.py runs them."""
    used, live, idle, waiting = {"check"} if entry_point else set(), [], [], [*trees]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS) and node.name not in used and not node.name.startswith("test"):
            idle.append(node)
        else:
            live.append(node)
            used |= {node.id} if isinstance(node, ast.Name) else set()
            waiting += parts_that_run(node)
        if not waiting:
            waiting, idle = [n for n in idle if n.name in used], [n for n in idle if n.name not in used]
    return live, idle


def parts_that_run(node: ast.AST) -> list[ast.AST]:
    """The children of a node, without what stands under `if __name__ == "__main__"`; methods count as called."""
    if isinstance(node, ast.ClassDef):
        methods = [part for item in node.body if isinstance(item, FUNCTIONS) for part in item.body]
        return [*methods, *(item for item in node.body if not isinstance(item, FUNCTIONS))]
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        sides = (node.test.left, *node.test.comparators)
        if {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}:
            return list(node.orelse)
    return list(ast.iter_child_nodes(node))


def is_counted(node: ast.AST) -> bool:
    """Whether scripts/sandbox.py counts a statement as a test: asserts, calls of assert…, raises, test cases."""
    if isinstance(node, ast.With):
        called = [getattr(item.context_expr, "func", None) for item in node.items]
        return any(getattr(f, "attr", getattr(f, "id", "")) in ("raises", "assertRaises") for f in called)
    if isinstance(node, ast.ClassDef):
        return bool(node.bases)
    function = getattr(node.value, "func", None) if isinstance(node, ast.Expr) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    own = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
    return isinstance(node, ast.Assert) or (name.startswith("assert") and not own)


def unbound(nodes: list[ast.AST]) -> set[str]:
    """Names that are used and that nothing among the nodes gives a meaning to."""
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    given = {node.arg for node in nodes if isinstance(node, ast.arg)}
    named = {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    return used - stored - given - named - imported
