"""Read tests of programs in all published forms, for the sandbox; nothing is run."""

import ast
import re

from parts.data.answer_marks import is_program, parsed
from parts.data.question_parts import is_empty, texts_in
from programs.data_loader.bad_rows import BadRow, Names, decoded, shown

METHOD = re.compile(r"\ASolution\(\)\.(\w+)\Z")  # the sandbox finds a method of class Solution by its bare name
NAMED = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)")  # `nums = [3, 3], target = 6`
CALL = re.compile(r"\s*([A-Za-z_]\w*)\(.*\)\s*")
PARTS = (("public_test_cases", "private_test_cases"), ("public_tests", "private_tests", "generated_tests"))
OTHER_LANGUAGES = re.compile(
    r"(?i)(gnu )?(c(\+\+|pp|#|sharp)?|java(script)?|js|node(\.js)?|type(script)?|ts|go(lang)?|rust|ruby|php|kotlin"
    r"|swift|scala|perl|haskell|julia|lua|dart|pascal|bash|r|d|sql)([ -]?\d.*)?"
)
LITERALS = "values in JSON or Python"
ENTRY_ADVICE = "--map entry_point=COLUMN"
ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def as_code(shape) -> None:
    """A task and its tests, as in HumanEval, MBPP and APPS."""
    shape.prompt()
    row = shape.row
    check_language(row, "tests")
    first = ("tests", "test") if row.get("entry_point") else ()
    names = (*dict.fromkeys((*first, *Names.TESTS)), "verification_info")
    name, _ = shape.take(sorted(names, key=lambda name: is_empty(row.get(name))), "tests")
    taken, tests = joined_tests(row, name)
    others = [key for key in Names.TESTS if key not in taken and name != "test" and texts_in(row.get(key))]
    others = [key for key in others if isinstance(row[key], list | dict) or ASSERTS.search(str(row[key]))]
    source = row["test"] if name == "test_list" and "test" in others else None
    alone = isinstance(source, str) and not re.search(r"candidate|def check\(", source) and parsed(source)
    if alone and isinstance(tests, list):  # MBPP+
        taken, tests, others = [*taken, "test"], [*tests, source], others[:-1]
    shape.out["tests"], shape.tests_name = tests, name
    shape.used.update(taken)
    others = [key for key in others if "tests" not in shape.facts.mapped and row[key] != row[name]]
    shape.notes += [f"rows have other tests in {key}; {name} is taken" for key in others]
    if isinstance(row.get("private_test_cases"), str) and "private_test_cases" not in taken:
        shape.notes.append("rows have pickled private_test_cases, which are never opened; only public tests are used")
    starter, message = row.get("starter_code"), shape.out["prompt"][-1]
    if isinstance(starter, str) and starter.strip() and starter.strip() not in message["content"]:
        message["content"] += f"\n\nBegin with this code:\n\n```python\n{starter.rstrip()}\n```"
    if row.get("setup") is not None:
        return
    if name == "test":  # HumanEval's tests use the imports and helpers of its prompt
        heads = [key for key in ("prompt", "complete_prompt") if isinstance(row.get(key), str) and is_program(row[key])]
        if heads:
            shape.out["setup"] = row[heads[0]]
            shape.used.add(heads[0])
    elif name == "test_list":
        imports = row.get("test_imports")
        lines = [row.get("test_setup_code"), *(imports if isinstance(imports, list) else [])]
        if setup := "\n".join(line for line in lines if isinstance(line, str) and line.strip()):
            shape.out["setup"] = setup


def joined_tests(row: dict, name: str) -> tuple[list[str], object]:
    """(Columns used, tests) of a column and the columns of PARTS that belong to it, without packed (pickled) tests."""
    names, by_column = next((part for part in PARTS if name in part), (name,)), {}
    for column in (column for column in names if row.get(column) is not None):
        value = row[column]
        packed = isinstance(value, str) and value.lstrip()[:1] not in ("[", "{")
        none = value in ([], {}, "[]", "{}") or (isinstance(value, dict) and not any(value.values()))
        if len(names) == 1 or not (packed or none):
            by_column[column] = read_tests(value, column, row)
    if not by_column:
        raise BadRow(name, shown(row[name]), "tests in JSON", "leaving out rows without tests")
    (first, tests), *others = by_column.items()
    for column, more in others:
        if isinstance(tests, list) and isinstance(more, list):
            tests = [*tests, *more]
        elif isinstance(tests, dict) and isinstance(more, dict):
            tests = {**tests, **{key: [*tests[key], *more[key]] for key in ("inputs", "outputs")}}
        else:
            raise BadRow(column, f"tests in another form than {first}", "tests in one form", f"--drop {column}")
    return [*by_column], tests


def read_tests(value, name: str, row: dict):
    """Put tests of any published form into one that scripts/sandbox.py takes; tests of a function become calls of it.

    BadRow for an empty set, which every program would pass.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = decoded(value, name)
    if isinstance(value, dict) and isinstance(value.get("test_cases"), list):  # PrimeIntellect's verification_info
        check_language(value, name)
        value = value["test_cases"]
    function = function_of(row)
    if isinstance(value, dict) and {"input", "output"} <= {*value} and not isinstance(value["input"], list):
        value = [value]
    if isinstance(value, dict):
        value = value_in_lists(value, name)
        inputs = value["inputs"]
        is_named = row.get("entry_point") or value.get("fn_name")
        if function and not is_named and all(isinstance(given, list) for given in inputs):
            value = {**value, "fn_name": function}
        if value.get("fn_name") and any(isinstance(given, str) for given in inputs):  # PRIME's: a JSON argument a line
            function, pairs = METHOD.sub(r"\1", value["fn_name"]), zip(inputs, value["outputs"], strict=True)
            value = [{"input": given, "output": output, "testtype": "functional"} for given, output in pairs]
    elif not isinstance(value, str | list):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "Python source, a list, or inputs and outputs")
    if not (value.strip() if isinstance(value, str) else value["inputs"] if isinstance(value, dict) else value):
        raise BadRow(name, "no tests", "at least one, as every program passes an empty set")
    if not isinstance(value, list) or not all(isinstance(case, dict) and "input" in case for case in value):
        return value
    calls = [as_call(case, f"{name}[{number}]", function) for number, case in enumerate(value)]
    if all(calls):
        return paired(calls, value)
    return [call or case for call, case in zip(calls, value, strict=True)]  # check_case refuses a mixture


def value_in_lists(value: dict, name: str) -> dict:
    """Tests as an object with `inputs` and `outputs`, lists of one length."""
    value = {{"input": "inputs", "output": "outputs"}.get(key, key): item for key, item in value.items()}
    inputs, outputs = value.get("inputs"), value.get("outputs")
    lists = isinstance(inputs, list) and isinstance(outputs, list)
    if not lists or len(inputs) != len(outputs):
        keys = f"the keys {', '.join(value) or 'none'}"
        got = f"{len(inputs)} inputs and {len(outputs)} outputs" if lists else keys
        raise BadRow(name, got, "inputs and outputs, lists of one length")
    return value


def check_language(value: dict, name: str) -> None:
    language = next((value[key] for key in ("language", "programming_language", "lang") if key in value), None)
    if isinstance(language, str) and OTHER_LANGUAGES.fullmatch(language):
        raise BadRow(name, f"tests of programs in {language}", "Python", "leaving out rows in other languages")


def function_of(row: dict) -> str | None:
    """The name of the function under test, from the columns of a row or their `metadata`; None without one."""
    about = row.get("metadata")
    if isinstance(about, str) and about.lstrip().startswith("{"):
        about = decoded(about, "metadata", "JSON text")
    about = about if isinstance(about, dict) else {}
    names = [row.get("entry_point"), row.get("fn_name"), row.get("func_name"), about.get("func_name")]
    name = next((name for name in names if isinstance(name, str) and name), None)
    return name and METHOD.sub(r"\1", name)


def as_call(case: dict, name: str, function: str | None) -> dict | None:
    """A case with input and output as a call; None if its input is text on stdin. `function`: the row's."""
    given, case_function = case["input"], function_of(case)
    function, named = case_function or function, isinstance(given, str) and NAMED.match(given) is not None
    is_call = case_function or case.get("testtype") == "functional" or case.get("type") == "function_call"
    if not (is_call or named or (function and isinstance(given, list | dict))):
        return None
    if named:
        raise BadRow(name, f"named arguments, {shown(given)}", "JSON values, one per line, or tests in Python")
    if "output" not in case:
        raise BadRow(name, f"the keys {', '.join(case)}", "input and output")
    if function is None:
        expected = "the function's name: a column entry_point, or func_name in metadata"
        raise BadRow(name, f"arguments, {shown(given)}, and no function to call", expected, ENTRY_ADVICE)
    output = case["output"]
    if not isinstance(given, str):
        return {"function": function, "args" if isinstance(given, list) else "kwargs": given, "expected": output}
    arguments = [decoded(line, name, LITERALS) for line in given.splitlines() if line.strip()]
    output = decoded(output, name, LITERALS) if isinstance(output, str) else output
    return {"function": function, "args": arguments, "expected": output}


def paired(calls: list[dict], cases: list[dict]):
    """Calls of one function with argument lists in APPS's form, where a result may be in a list of one; other calls."""
    is_one = {call["function"] for call in calls} == {calls[0]["function"]}
    if not is_one or not all(isinstance(case["input"], list) for case in cases):
        return calls
    inputs, outputs = [call["args"] for call in calls], [call["expected"] for call in calls]
    return {"fn_name": calls[0]["function"], "inputs": inputs, "outputs": outputs}


def calls_on_stdin(tests, name: str, row: dict, asked: str) -> list[str]:
    """A note if text on stdin may be meant for a function; BadRow if it calls one that the row or prompt names."""
    function, tests = function_of(row), tests if isinstance(tests, list) else []
    cases = [case for case in tests if isinstance(case, dict) and not {"testtype", "type", "expected"} & {*case}]
    given = [case["input"] for case in cases if isinstance(case.get("input"), str)]
    called = [call and call[1] for call in map(CALL.fullmatch, given)]
    for text in filter(None, given):  # examples in the prompt do not count
        asked = asked.replace(text.strip(), "")
    for text, word in zip(given, called, strict=True):
        named = rf"`{word}\b|\b{word}\(|\b(?:def|functions?|methods?|called|named)\W{{1,3}}{word}\b"
        named += rf"|(?i:\b{word}\b)" if all(called) and given[1:] else ""
        if word and (word == function or re.search(named, asked)):
            expected, advice = "calls as {function, args, expected}, or asserts", '"testtype": "stdin" if it is stdin'
            raise BadRow(f"{name}[{given.index(text)}]", f"{shown(text)}, a call of {word}", expected, advice)
    note = 'rows have tests that may be calls of a function, read as stdin; "testtype": "stdin" in a test says so'
    return [note] if given and (function or any(called)) else []


def check_runnable(row: dict, name: str) -> None:
    """Raise BadRow for tests that cannot tell programs apart, as no program passes, or none fails."""
    tests, entry_point = row["tests"], row.get("entry_point") or None
    if entry_point is not None and not entry_point.isidentifier():
        raise BadRow("entry_point", shown(entry_point), "the name of a function, or of a method of class Solution")
    if isinstance(tests, dict):
        function, inputs = tests.get("fn_name"), tests["inputs"]
        if entry_point and not function and not all(isinstance(given, str) for given in inputs):
            got = f"inputs that are not text, and entry_point {shown(entry_point)} without fn_name"
            raise BadRow(name, got, "text for a script, or a function to call", "the key fn_name in the tests")
        if not function:
            return
        tests, name = [{"function": function, "args": given, "expected": None} for given in inputs], f"{name}.inputs"
    tests = [tests] if isinstance(tests, str) else tests
    if any(isinstance(test, str) for test in tests) and not all(isinstance(test, str) for test in tests):
        raise BadRow(name, "Python source beside other tests", "tests in one form")
    if isinstance(tests[0], str):
        return check_asserts(tests, name, entry_point, row)
    on_stdin = isinstance(tests[0], dict) and "expected" not in tests[0]
    for number, test in enumerate(tests):
        check_case(test, f"{name}[{number}]", entry_point, on_stdin)


def check_case(test, name: str, entry_point: str | None, on_stdin: bool) -> None:
    """Raise BadRow unless a test is a script's input and output, or says which function to call with what."""
    if isinstance(test, list) and len(test) == 2:
        test = {"args": test[0] if isinstance(test[0], list) else [test[0]], "expected": test[1]}
        entry_point = entry_point or "solution"  # this bundle's rewards call that
    if not isinstance(test, dict) or ({"input", "output"} <= set(test)) == ("expected" in test) or "stdin" in test:
        raise BadRow(name, shown(test), "source, {input, output}, {args, expected} or [args, expected]")
    if ("expected" in test) == on_stdin:
        raise BadRow(name, "a test for stdin among calls, or the reverse", "tests in one form")
    if on_stdin:
        wrong = [key for key in ("input", "output") if not isinstance(test[key], str | int | float)]
        if wrong := wrong or (["fn_name"] if test.get("fn_name") else []):
            got = f"{wrong[0]} {shown(test[wrong[0]])} in a test with input and output"
            raise BadRow(name, got, "text on stdin and stdout", 'calls as {"function", "args", "expected"}')
        return
    function, arguments, named = test.get("function") or entry_point, test.get("args", []), test.get("kwargs") or {}
    if function is None:
        raise BadRow("entry_point", "no name of the function to call", "one, or `function` in each test", ENTRY_ADVICE)
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"function {shown(function)}", "the name of a function")
    if not isinstance(arguments, list) or not isinstance(named, dict):
        got = f"args {shown(arguments)} and kwargs {shown(named)}"
        raise BadRow(name, got, f"a list of the arguments of {function} and an object")


def check_asserts(sources: list[str], name: str, entry_point: str | None, row: dict) -> None:
    """Raise BadRow unless Python tests have an assertion, and the function under test has a name."""
    trees = [parsed(source) for source in sources]
    if None in trees or not all(source.strip() for source in sources):
        raise BadRow(name, f"{shown(sources)}, part of which is empty or does not parse", "Python source")
    nodes = [node for tree in trees for node in ast.walk(tree)]
    called = {node.id for node in nodes if isinstance(node, ast.Name)} | {"check"}  # the sandbox calls check and test…
    idle = [node for tree in trees for node in tree.body if isinstance(node, FUNCTIONS) and node.name not in called]
    unused = {part for node in idle if not node.name.startswith("test") for part in ast.walk(node)}
    if not any(is_counted(node) for node in nodes if node not in unused):
        expected = "an assert that is run, or a unittest.TestCase"
        raise BadRow(name, "tests that assert nothing, or only in functions that are never called", expected)
    words = [node for node in nodes if isinstance(node, ast.Name)]
    loaded = {node.id for node in words if isinstance(node.ctx, ast.Load)}
    given = {word for node in nodes for word in (getattr(node, "arg", ""), getattr(node, "name", ""))}
    given |= {node.id for node in words if not isinstance(node.ctx, ast.Load)}
    functions = {node.name for node in nodes if isinstance(node, FUNCTIONS)}
    unnamed = "tests in check(candidate)" if "check" in functions - loaded else ""
    if "candidate" in loaded - given and "candidate" not in f"{row['prompt'][-1]['content']} {row.get('setup', '')}":
        unnamed = "tests of `candidate`"
    if entry_point is None and unnamed:
        raise BadRow("entry_point", f"{unnamed} without one", "the function under test", ENTRY_ADVICE)


def is_counted(node: ast.AST) -> bool:
    """Whether a node is a test: an assert, a call of assert… or raises, a test case."""
    if isinstance(node, ast.ClassDef):
        return bool(node.bases)
    function = getattr(node, "func", None)
    name = getattr(function, "attr", getattr(function, "id", ""))
    return isinstance(node, ast.Assert) or name == "raises" or name.startswith("assert")


def is_preamble(text, entry_point) -> bool:
    """Whether a text is Python with imports and helpers, but without the function to write."""
    if not isinstance(text, str) or not entry_point or not re.search(r"^(import|from) \w", text, re.MULTILINE):
        return False
    tree = parsed(text)
    return tree is not None and all(node.name != entry_point for node in ast.walk(tree) if isinstance(node, FUNCTIONS))
