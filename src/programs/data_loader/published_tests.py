"""Published forms of tests and ground truths, as the sandbox and the rewards take them."""

import ast
import contextlib
import re

from programs.data_loader.answers_and_tests import accepted_answers, as_answer, as_tests, tests_from_json
from programs.data_loader.bad_rows import BadRow, shown
from programs.data_loader.json_values import json_or_literal, literal_value
from programs.data_loader.messages import PROMPT_KEYS
from programs.data_loader.test_checks import parsed

METHOD = re.compile(r"\ASolution\(\)\.(\w+)\Z")  # the sandbox finds methods of a class Solution by their names
NAMED = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)")  # `nums = [3, 3], target = 6`
NODES = re.compile(r"^[^#\n]*\b(ListNode|TreeNode|Node)\b", re.MULTILINE)
PARTS = (("public_test_cases", "private_test_cases"), ("public_tests", "private_tests", "generated_tests"))
ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
CASE_KEYS = {"stdin": "input", "stdout": "output", "expected_output": "output", "expected": "output"}
OTHER_LANGUAGES = re.compile(
    r"(?i)(gnu )?(c(\+\+|pp|#|sharp)?|java(script)?|js|node(\.js)?|type(script)?|ts|go(lang)?|rust|ruby|php|kotlin"
    r"|swift|scala|perl|haskell|julia|lua|dart|pascal|bash|r|d|sql)([ -]?\d.*)?"
)


def read_tests(value, name: str, row: dict):
    """Tests of any published form; those of a function become calls of it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = python_object(value)
        value = tests_from_json(value, name) if isinstance(value, str) else value
    if isinstance(value, dict) and isinstance(value.get("test_cases"), list):  # PrimeIntellect's verification_info
        check_language(value, name)
        value = value["test_cases"]
    function = function_of(row)
    lists = isinstance(value, dict) and all(isinstance(item, list) for item in value.get("inputs") or "")
    if lists and function and not row.get("entry_point") and not value.get("fn_name"):
        value = {**value, "fn_name": function}
    if isinstance(value, list):
        value = [known_keys(case) if isinstance(case, dict) else case for case in value]
    if isinstance(value, list) and value and all(isinstance(case, dict) and "input" in case for case in value):
        calls = [as_call(case, f"{name}[{number}]", function, row) for number, case in enumerate(value)]
        if any(calls) and not all(calls):
            raise BadRow(f"{name}[{calls.index(None)}]", "a test for stdin among calls", "tests of one form")
        value = paired(calls, value) if any(calls) else [with_one_output(case) for case in value]
    elif isinstance(value, dict) and value.get("fn_name"):
        for key in ("inputs", "input"):  # PRIME's are lines of JSON, one an argument
            if isinstance(value.get(key), list) and any(isinstance(item, str) for item in value[key]):
                output = value.get(f"out{key[2:]}")
                pairs = zip(value[key], output if isinstance(output, list) else [], strict=False)
                cases = [{"input": given, "output": out, "testtype": "functional"} for given, out in pairs]
                return read_tests(cases, name, {"entry_point": value["fn_name"]})
    return as_tests(value, name)


def known_keys(case: dict) -> dict:
    """A case of a test with its keys as they are known: `stdin` is `input`, `expected_output` is `output`."""
    if "input" not in case and "stdin" not in case:
        return case
    return {CASE_KEYS.get(key, key): item for key, item in case.items()}


def check_language(value: dict, name: str) -> None:
    """Raise BadRow where tests are for another language."""
    language = next((value[key] for key in ("language", "programming_language", "lang") if key in value), None)
    if isinstance(language, str) and OTHER_LANGUAGES.fullmatch(language):
        raise BadRow(name, f"tests of programs in {language}", "Python", "leaving out rows in other languages")


def function_of(row: dict) -> str | None:
    """The name of the function under test, as the columns of a row give it."""
    about = row.get("metadata")
    if isinstance(about, str) and about.lstrip().startswith("{"):
        about = tests_from_json(about, "metadata")
    about = about if isinstance(about, dict) else {}
    names = [row.get("entry_point"), row.get("fn_name"), row.get("func_name"), about.get("func_name")]
    name = next((name for name in names if isinstance(name, str) and name), None)
    return name and METHOD.sub(r"\1", name)


def as_call(case: dict, name: str, function: str | None, row: dict) -> dict | None:
    """The call that a case with input and output asks for; None where the input is text on stdin."""
    given = case["input"]
    function = function_of(case) or function
    named = isinstance(given, str) and NAMED.match(given) is not None
    asked = case.get("testtype") == "functional" or case.get("type") == "function_call" or function_of(case)
    if not (asked or named or (function and isinstance(given, list | dict))):
        return None
    if "output" not in case:
        raise BadRow(name, f"the keys {', '.join(case)}", "input and output")
    if function is None:
        expected = "the function's name: a column entry_point, or func_name in metadata"
        raise BadRow(name, f"arguments, {shown(given)}, and no function to call", expected, "--map entry_point=COLUMN")
    nodes = NODES.search(row["starter_code"]) if isinstance(row.get("starter_code"), str) else None
    if named and nodes:
        raise BadRow(name, f"lists that stand for a {nodes[1]}", "plain values, or tests in Python in a column `test`")
    arguments = {"args": given} if isinstance(given, list) else {"kwargs": given}
    if isinstance(given, str):
        lines = [line for line in given.splitlines() if line.strip()]
        arguments = (
            {"kwargs": named_values(given, name)} if named else {"args": [plain_value(line, name) for line in lines]}
        )
    output = case["output"]
    expected = plain_value(output, name) if isinstance(given, str) and isinstance(output, str) else output
    return {"function": function, **arguments, "expected": expected}


def paired(calls: list[dict], cases: list[dict]):
    """Calls, those with lists of arguments as APPS has them: a result may be in a list of one there."""
    one = {call["function"] for call in calls} == {calls[0]["function"]}
    if not one or not all(isinstance(case["input"], list) for case in cases):
        return calls
    inputs, outputs = [call["args"] for call in calls], [call["expected"] for call in calls]
    return {"fn_name": calls[0]["function"], "inputs": inputs, "outputs": outputs}


def plain_value(text: str, name: str):
    """The value of JSON text or of a Python literal; nothing is run."""
    try:
        return json_or_literal(text)
    except ValueError:
        raise BadRow(name, shown(text), "values in JSON or Python") from None


def named_values(text: str, name: str) -> dict:
    """{name: value} of `nums = [3, 3], target = 6`, on one line or on several."""
    lines = [line.strip().rstrip(",") for line in text.splitlines() if line.strip()]
    try:
        call = ast.parse(f"f({', '.join(lines)})", mode="eval").body
        values = {item.arg: literal_value(item.value) for item in call.keywords}
        if call.args or None in values:
            raise ValueError(text)
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError):
        raise BadRow(name, shown(text), "arguments of the form `name = value`") from None
    return values


def with_one_output(case: dict) -> dict:
    """A case for stdin; xCodeEval lists the outputs that are right."""
    output = case.get("output")
    return {**case, "output": output[0]} if isinstance(output, list) and len(output) == 1 else case


def joined_tests(row: dict, name: str) -> tuple[list[str], object]:
    """(columns used, tests) of a column and those that go with it; what is packed is never opened."""
    names = next((part for part in PARTS if name in part), (name,))
    taken, tests = [], None
    for column in names:
        value = row.get(column)
        packed = len(names) > 1 and isinstance(value, str) and value.lstrip()[:1] not in ("[", "{")
        if value is None or packed or (len(names) > 1 and holds_no_tests(value)):
            continue
        read = read_tests(value, column, row)
        taken.append(column)
        if tests is None:
            tests = read
        elif isinstance(tests, list) and isinstance(read, list):
            tests = [*tests, *read]
        elif isinstance(tests, dict) and isinstance(read, dict):
            tests = {**tests, **{key: [*tests[key], *read[key]] for key in ("inputs", "outputs")}}
        else:
            raise BadRow(column, f"tests of another form than {taken[0]}", "tests of one form", f"--drop {column}")
    if tests is None:
        raise BadRow(name, shown(row[name]), "tests as JSON", "leaving out rows without tests")
    return taken, tests


def holds_no_tests(value) -> bool:
    """Whether a column that others go with holds no tests."""
    return value in ([], {}, "[]", "{}") or (isinstance(value, dict) and not any(value.values()))


def prompt_names(row: dict) -> tuple[str, ...]:
    """The names of prompts in their order, those last that hold only a program's imports and helpers."""
    present = [name for name in PROMPT_KEYS if row.get(name) is not None]
    if len(present) < 2:
        return PROMPT_KEYS
    return (*sorted(PROMPT_KEYS, key=lambda name: name in present and is_preamble(row[name], row.get("entry_point"))),)


def is_preamble(text, entry_point) -> bool:
    """Whether a text is Python that imports and defines helpers but leaves nothing to write."""
    if not isinstance(text, str) or not re.search(r"^(import|from) \w", text, re.MULTILINE):
        return False
    try:
        nodes = list(ast.walk(parsed(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    stubs = [node for node in functions if all(isinstance(part, ast.Pass | ast.Expr) for part in node.body)]
    return not stubs and entry_point not in {node.name for node in functions}


def ground_truth(value, name: str, row: dict) -> dict:
    """The fields of a ground truth: tests, an answer, or accepted answers; an object of another kind stays one.

    JSON text is decoded where it holds tests or texts; a list of numbers may be mathematics and stays text.
    """
    whole, text = value, isinstance(value, str)
    if text and value.lstrip()[:1] in ("[", "{"):
        try:
            whole = tests_from_json(value, name)
        except BadRow:
            whole = python_object(value)
    if isinstance(whole, dict) and whole:
        if isinstance(whole.get("test_code"), str):  # Skywork's
            called = METHOD.sub(r"\1", str(whole.get("entry_point") or ""))
            fields = {"entry_point": called, "setup": whole.get("import_prefix")}
            return {"tests": as_tests(whole["test_code"], name), **{k: v for k, v in fields.items() if v}}
        if source := next((whole[key] for key in ("functional", "assert_case") if whole.get(key)), None):
            return {"tests": read_tests(source, name, row)}  # Code-R1's and verl's prime_code
        if {"inputs", "outputs"} <= set(whole) or {"input", "output"} <= set(whole) or "test_cases" in whole:
            return {"tests": read_tests(whole, name, row)}
        accepted = accepted_answers(whole)
        return {"ground_truth": value} if accepted in (None, []) else {"answer": as_answer(accepted, name)}
    if isinstance(whole, list) and whole:
        cases = all(isinstance(item, dict) and "input" in item for item in whole)
        pairs = row.get("entry_point") and all(isinstance(item, list) and len(item) == 2 for item in whole)
        if cases or pairs or all(isinstance(item, str) and ASSERTS.search(item) for item in whole):
            return {"tests": read_tests(whole, name, row)}
        if not text or all(isinstance(item, str) for item in whole):
            return {"answer": as_answer(whole, name)}
    return {"answer": as_answer(value, name)}


def python_object(text: str):
    """An object that Python's repr wrote, or the text itself."""
    with contextlib.suppress(ValueError):
        value = json_or_literal(text) if text.lstrip().startswith("{'") else text
        return value if isinstance(value, dict) else text
    return text
