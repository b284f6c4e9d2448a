"""Programs that pass tests."""

import ast
import os
import warnings

from parts.rewards.reward_texts import visible
from programs.reward_functions_library.contract import reward
from programs.reward_functions_library.neighbour_files import _load
from programs.reward_functions_library.text_parts import _blocks, _code

_TESTS = ("tests", "test_cases", "test", "test_list")  # names of the column in data sets that people have


def _verdict(code: str, tests, **settings):
    """Run tests, a list or its JSON, in the sandbox; None if the row's tests cannot be used."""
    sandbox = _load("sandbox")
    try:
        tests = sandbox.loaded_tests(tests)
        if isinstance(tests, list | tuple) and tests and isinstance(tests[0], list | tuple):
            settings["entry_point"] = settings.get("entry_point") or "solution"
        verdict = sandbox.run_code(code, tests, **settings)
    except (ValueError, RecursionError) as error:  # sandbox.BadTests is a ValueError
        return warnings.warn(f"got unusable tests, so code_execution does not apply: {error}", stacklevel=2)
    return None if verdict.status in ("no_tests", "invalid_tests") else verdict


@reward(one_of=_TESTS, threads=min(8, os.cpu_count() or 1))
def code_execution(
    text,
    tests=None,
    test_cases=None,
    test=None,
    test_list=None,
    entry_point=None,
    setup=None,
    prompt=None,
    *,
    mode="all",
    settings=None,
):
    r"""Tests that the answer's program passes: `mode="all"` pays 1 or 0, "fraction" passed / total; [0, 1], w 1.
    Its program: program_of in scripts/sandbox.py; `settings` ({"timeout_s": 3.0}) and forms of tests: run_code there.
    "fraction" is a denser signal, and pays programs that hard-code the easy cases.
    >>> code_execution(None, ["```python\ndef f(x): return x + 1\n```"], [["assert f(1) == 2", "assert f(2) == 3"]])
    [1.0]"""
    if not (tests := tests or test_cases or test or test_list):
        return None
    setup = setup or ""
    code = _load("sandbox").program_of(text, tests, entry_point, setup, prompt)
    verdict = _verdict(code, tests, entry_point=entry_point, setup=setup, **(settings or {}))
    return verdict and {"fraction": verdict.fraction, "all": float(verdict.all_passed)}[mode]


def run_test_cases(code: str, test_cases, **settings) -> int:
    """Return how many test cases the code passes, in the sandbox; (input, expected) pairs call `solution`."""
    return getattr(_verdict(code, test_cases, **settings), "passed", 0)


@reward
def code_block_format(text, *, language="python"):
    r"""1 if the visible text has exactly one closed, non-empty fenced block, with that label, else 0: {0, 1}, w 0.1.
    >>> code_block_format(None, ["```python\nx = 1\n```", "x = 1"])
    [1.0, 0.0]"""
    blocks = [(label, bool(content.strip())) for label, content in _blocks(visible(text))]
    return blocks == [(language.lower(), True)]


@reward
def no_syntax_error(text, *, max_characters=20_000):
    """1 if the last Python block (without any fence, the text) parses and does something, else 0: {0, 1}, w 0.1.
    Never executes. Expressions that call nothing and `pass` do nothing, so that prose does not pay.
    >>> no_syntax_error(None, ["x = [1, 2]", "x = [1, 2", "hello"])
    [1.0, 0.0, 0.0]"""
    try:
        body = ast.parse(_code(text)).body if len(text) <= max_characters else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: nested too deeply for the parser
        return 0.0
    idle = ast.Expr | ast.Pass | ast.Return
    return any(isinstance(getattr(s, "value", None), ast.Call) or not isinstance(s, idle) for s in body)
