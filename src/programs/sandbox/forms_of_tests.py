"""Read the tests of a program and sort them into one of three forms."""

import ast
import builtins
import decimal
import json
import re
import warnings
from dataclasses import dataclass

from parts.foundation.python_source import parse_python
from parts.rewards.extracts import IMPORTS
from programs.sandbox.comparison import brief
from programs.sandbox.tests_in_python import FromProgram, count_of_asserts, unjudged
from programs.sandbox.values import encode

MAX_PARSED = 100_000  # characters of a source that the caller parses, in some tenths of a second
BROKEN = (SyntaxError, ValueError, RecursionError, MemoryError)  # what parsing a source may raise
READS_STDIN = re.compile(r"\binput\(|\bstdin\b|\bopen\(0")


class BadTests(ValueError):
    """The tests given to run_code cannot be used: the caller's error, never the program's."""


def parsed(source: str) -> ast.Module:
    """The syntax tree of a model's source; raises one of BROKEN."""
    if len(source) > MAX_PARSED:
        raise ValueError("too long")
    warnings.filterwarnings("ignore", module=r"^model_program$")  # of invalid escapes
    return parse_python(source, "model_program.py")


def long_text(value) -> str:
    """The text of stdin or stdout: lines from a list; a number may have any length."""
    if isinstance(value, list):
        return "\n".join(map(long_text, value))
    return str(decimal.Decimal(value) if isinstance(value, int) and value.bit_length() > 13_000 else value)


def loaded_tests(tests):
    """Tests that are JSON text as data; others as they are."""
    if not isinstance(tests, str) or tests.lstrip()[:1] not in ("[", "{"):
        return tests
    try:
        return loaded(tests)
    except (ValueError, RecursionError):
        return tests


def loaded(text: str):
    """The data of JSON text; an integer of it may have any length, which int() reads up to 4,300 digits only."""
    return json.loads(text, parse_int=lambda digits: int(decimal.Decimal(digits)))


@dataclass
class Plan:
    """Tests in one of three forms."""

    kind: str  # stdin, calls or python
    cases: list  # (input, output), (function, args, kwargs, expected, mode of compare), or pieces of source
    least: int  # how many tests there are at least, where they end early
    unfit: str = ""  # what in them cannot be judged


def read_tests(tests, entry_point: str | None, code: str = "") -> Plan:
    """Sort the tests into one of the three forms, or raise BadTests, and nothing else."""
    try:
        return sort_tests(tests, entry_point, code)
    except BadTests:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise BadTests(f"got tests that cannot be read: {type(error).__name__}: {error}") from None


def sort_tests(tests, entry_point: str | None, code: str) -> Plan:
    tests = loaded_tests(tests)
    if isinstance(tests, dict):
        tests = pair_up(tests)
        entry_point = tests.pop() or entry_point
    if isinstance(tests, str):
        tests = [tests] if tests.strip() else []
    if not isinstance(tests, list | tuple):
        raise BadTests(f"got tests {brief(tests)}; expected Python source, a list, or inputs and outputs")
    if all(isinstance(test, str) for test in tests):
        return read_source(list(tests), entry_point)
    if all(isinstance(test, dict) and "input" in test and "output" in test for test in tests):
        if not any(is_call(test, entry_point) for test in tests):
            return Plan("stdin", [(long_text(test["input"]), long_text(test["output"])) for test in tests], len(tests))
        tests = [call_of_input(test) for test in tests]
    pairs = [test for test in tests if isinstance(test, list | tuple) and len(test) == 2]
    if not entry_point and len(pairs) == len(tests):
        entry_point = main_function(code)
        are_texts = all(isinstance(text, str) for pair in pairs for text in pair)
        if are_texts and (READS_STDIN.search(code) or not entry_point):  # a script; else a function of a text
            return Plan("stdin", [(given, output) for given, output in pairs], len(tests))
        entry_point = entry_point or "function"  # which fails: there is none
    return Plan("calls", [read_call(number, test, entry_point) for number, test in enumerate(tests)], len(tests))


def main_function(code: str) -> str | None:
    """The last function of a program, or of its Solution, that no other one uses, besides tests and main."""
    try:
        statements = parsed(code).body
    except BROKEN:
        return None
    for part in [part for part in statements if getattr(part, "name", "") == "Solution"]:
        statements += getattr(part, "body", [])
    functions = [part for part in statements if isinstance(part, ast.FunctionDef) and not part.name.startswith("__")]
    functions = [part for part in functions if not re.match(r"test|_?main$", part.name)] or functions
    used = set()
    for function in functions:
        used |= {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(function)} - {function.name}
    names = [function.name for function in functions]
    return ([name for name in names if name not in used] or names or [None])[-1]


def is_call(test: dict, entry_point: str | None) -> bool:
    """Whether a test calls a function, with arguments: data as input do, and text where LiveCodeBench says so."""
    functional = test.get("testtype") == "functional"
    return "args" in test or functional or bool(entry_point and not isinstance(test.get("input", ""), str))


def call_of_input(test: dict) -> dict:
    """A test of {"input", "output"} as one of a call."""
    given, output = test["input"], test["output"]
    if isinstance(given, str):  # a line of JSON for each argument
        return {"args": [*map(loaded, given.split("\n"))], "expected": loaded(output)}
    called = {"args": [], "kwargs": given} if isinstance(given, dict) else {"args": given}
    return {"args": [given], **(called if isinstance(given, list | dict) else {}), "expected": output}


def read_source(tests: list[str], entry_point: str | None) -> Plan:
    """Python tests; where all are asserts of calls with literals, as those calls."""
    statements, imports = [], FromProgram()
    for number, source in enumerate(tests):
        try:
            statements += imports.visit(parse_python(source)).body
        except BROKEN as error:
            if "integer string conversion" in str(error):  # a long number: the judge can read it
                return Plan("python", tests, 1)
            raise BadTests(f"test {number}: got {source[:80]!r}: {error}; expected Python source") from None
    lifted = [lift_assert(statement) for statement in statements if not isinstance(statement, ast.Pass)]
    names = {case[0] for case in lifted if case}
    built_in = {name for name in names if hasattr(builtins, name)} - {entry_point}
    if all(lifted) and not (built_in and (entry_point or names - built_in)):  # else the judge decides whose each is
        return Plan("calls", lifted, len(lifted))
    whole = ast.Module(statements, [])
    unfit = unjudged(whole)
    return Plan("python", tests, count_of_asserts(whole, entry_point), unfit)


def separate_plans(plan: Plan) -> list[Plan]:
    """A plan for each test, or the plan itself where its tests are more than asserts and imports."""
    if plan.kind != "python":
        return [Plan(plan.kind, [case], 1) for case in plan.cases]
    try:
        tree = parse_python("\n".join(plan.cases))
        asserts = [ast.unparse(statement) for statement in tree.body if isinstance(statement, ast.Assert)]
        imports = [ast.unparse(statement) for statement in tree.body if isinstance(statement, IMPORTS)]
    except BROKEN:
        return [plan]
    named = any(isinstance(node, ast.NamedExpr) for node in ast.walk(tree))
    if named or len(asserts) + len(imports) < len(tree.body):
        return [plan]
    return [Plan("python", [*imports, statement], 1) for statement in asserts]


def lift_assert(statement: ast.stmt) -> tuple | None:
    """Turn `assert f(literals) == literal` into a call with its result; None for anything else."""
    try:
        call, (operator,), (expected,) = statement.test.left, statement.test.ops, statement.test.comparators
        if not isinstance(operator, ast.Eq):
            return None
        args = [encode(ast.literal_eval(item)) for item in call.args]
        kwargs = {item.arg: encode(ast.literal_eval(item.value)) for item in call.keywords}
        return call.func.id, args, kwargs, encode(ast.literal_eval(expected)), "=="
    except (AttributeError, TypeError, ValueError, RecursionError, MemoryError):
        return None


def pair_up(tests: dict) -> list:
    """The form of APPS and CodeContests, {"inputs", "outputs", "fn_name"}, as a list of tests and the name."""
    inputs, outputs = (tests.get(f"{side}s", tests.get(side)) for side in ("input", "output"))
    name = tests.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise BadTests(f"got tests with the keys {sorted(tests)}; expected inputs and outputs, lists of one length")
    if name:
        return [*({"args": a, "expected": b, "apps": True} for a, b in zip(inputs, outputs, strict=True)), name]
    return [*({"input": a, "output": b} for a, b in zip(inputs, outputs, strict=True)), None]


def read_call(number: int, test, entry_point: str | None) -> tuple:
    """One test of the form of a call, as (function, args, kwargs, expected)."""
    if isinstance(test, list | tuple) and len(test) == 2:
        test = {"args": test[0] if isinstance(test[0], list | tuple) else [test[0]], "expected": test[1]}
    if not isinstance(test, dict) or "expected" not in test:
        form = '{"args", "expected"}, (args, expected), {"input", "output"}'
        raise BadTests(f"test {number}: got {brief(test)}; expected {form} or Python source, the same for all tests")
    name = test.get("function") or entry_point
    if not isinstance(name, str) or not name.isidentifier():
        raise BadTests(f"test {number}: got no function to call ({brief(name)}); try entry_point or a key 'function'")
    args, kwargs = test.get("args", []), test.get("kwargs") or {}
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise BadTests(f"test {number}: got args {brief(args)} and kwargs {brief(kwargs)}; expected a list and a dict")
    wrapped = test.get("apps") and isinstance(test["expected"], list) and len(test["expected"]) == 1
    mode = "wrapped" if wrapped else "same"  # APPS puts each result in a list, LiveCodeBench does not
    try:
        kwargs = {key: encode(item) for key, item in kwargs.items()}
        return name, [encode(item) for item in args], kwargs, encode(test["expected"]), mode
    except (TypeError, ValueError) as error:
        raise BadTests(f"test {number}: {error}; expected arguments and results of plain data") from None
