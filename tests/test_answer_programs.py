"""Which program an answer holds: one rule for code_execution, evaluation.py and the templates."""

import sys
import time

import pytest
from conftest import ROOT, load_module, load_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox confines programs on Linux only")

lib = load_module(ROOT / "examples" / "reward_functions_library.py", "reward_library_of_answers")

ADD = "def add(a, b):\n    return a + b\n"
TESTS = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
BLOCK = f"```python\n{ADD}```"
CALLER, HELPER = BLOCK.replace("a + b", "plus(a, b)"), "```python\ndef plus(a, b):\n    return a + b\n```"
USE = "x = int(input())\nprint(add(x, x))"


def paid(text, tests, **columns) -> float | None:
    """What code_execution pays for an answer."""
    columns = {name: [value] for name, value in columns.items()}
    prompts = columns.pop("prompt", None)
    return lib.code_execution(prompts, [text], tests=[tests], settings={"timeout_s": 20.0}, **columns)[0]


RIGHT = {
    "tildes": f"~~~python\n{ADD}~~~",
    "py": f"```py\n{ADD}```",
    "a title": f'```python title="add.py"\n{ADD}```',
    "no label": f"```\n{ADD}```",
    "four backticks": f"````python\n{ADD}````",
    "CRLF": BLOCK.replace("\n", "\r\n"),
    "text before the fence": f"Here is the code: {BLOCK}",
    "text and no fence": f"Here it is:\n\n{ADD}\nDone, enjoy.",
    "a list item": "1. So:\n   ```python\n   def add(a, b):\n       return a + b\n   ```",
    "marks of MBPP": f"[BEGIN]\n{ADD}[DONE]",
    "marks of Code Llama": f"Sure!\n[PYTHON]\n{ADD}[/PYTHON]\nIt adds (that's all).",
    "thinking with code": f"<think>{BLOCK.replace('+', '-')}</think>\n{BLOCK}",
    "unclosed": f"```python\n{ADD}",
    "unclosed, cut off in the example": f"```python\n{ADD}\nprint(add(1,",
    "closed at the end of a line": f"```python\n{ADD.rstrip()}```",
    "stray fence after": f"{BLOCK}\n```\nI hope this helps.",
    "only the closing fence": f"{ADD}```\nThis adds.",
    "fences in the docstring": BLOCK.replace("return", '"""\n    ```\n    add(1, 2)\n    ```\n    """\n    return'),
    "an example follows": f"{BLOCK}\nUse it:\n```python\nimport math\nprint(add(1, 2))\n```",
    "output follows": f"{BLOCK}\nOutput:\n```\n3\n```",
    "tests follow": f"{BLOCK}\n```python\nassert add(1, 1) == 3  # wrong\n```",
    "an example reads stdin": f"{BLOCK}\n```python\n{USE}\n```",
    "the block itself reads stdin at its end": f"```python\n{ADD}\n{USE}\n```",
    "the block itself exits at its end": f"```python\nimport sys\n{ADD}\nsys.exit(0)\n```",
    "helper before": f"{HELPER}\n{CALLER}",
    "helper after": f"{CALLER}\n{HELPER}",
    "import before": f"```python\nimport operator as o\n```\n```python\n{ADD.replace('a + b', 'o.add(a, b)')}```",
    "mended": f"{BLOCK.replace('+', '-')}\nNo, wait:\n{BLOCK}",
}
WRONG = {
    "only in the thinking": f"<think>{BLOCK}</think> Done.",
    "thinking that has not ended": f"<think>{BLOCK}",
    "another language": "```java\nint add(int a, int b) { return a + b; }\n```",
    "spoiled in the end": f"{BLOCK}\nBetter:\n{BLOCK.replace('+', '-')}",
    "exits before it defines anything": f"```python\nimport sys\nsys.exit(0)\n{ADD}```",
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_the_program_that_defines_what_is_tested_counts(name):
    assert paid((RIGHT | WRONG)[name], TESTS) == float(name in RIGHT)


@pytest.mark.parametrize(
    "tests",
    [
        ["from solution import add as plus", "assert plus(1, 2) == 3"],
        "import solution as s\nassert s.add(1, 2) == 3",
        "from solution import *\nassert add(1, 2) == 3",
        "import unittest\nfrom main import add\n\nclass T(unittest.TestCase):\n"
        "    def test(self):\n        self.assertEqual(add(1, 2), 3)",
    ],
)
def test_tests_may_import_the_program(tests):
    assert paid(BLOCK, tests) == 1.0
    assert paid(BLOCK.replace("+", "-"), tests) == 0.0


def test_what_a_missing_library_is_called_is_not_taken_from_the_program():
    tests = "from no_such_library import check_equal\nfrom solution import add\nassert check_equal(add(1, 2), 3)"
    cheat = "```python\ndef add(a, b):\n    return 7\n\ndef check_equal(a, b):\n    return True\n```"
    assert not paid(cheat, tests)


LONG = "1" + 5000 * "0"
PRINTED = {"4 / 2": "2", "1e16": str(10**16), "[1, 2][0], 3.0": "1 3", "10**5000": LONG, "'1\\n2'": "\n1 \r\n2\n\n"}
OTHERS = {"2.0000001": "2", "'v2'": "v2.0", "'10.0'": "010", "'1 2'": "1\n2", "'0\\n0'": "0", "'yes'": "YES"}
OTHERS |= {"'1.0.0'": "1.0", "10**5000 + 1": LONG}


@pytest.mark.parametrize(("outputs", "right"), [(PRINTED, 1.0), (OTHERS, 0.0)], ids=["right", "wrong"])
def test_printed_numbers(outputs, right):
    for value, expected in outputs.items():
        assert paid(f"```python\nprint({value})\n```", [{"input": "", "output": expected}]) == right, value


def test_long_integers_in_calls_and_in_tests_as_json_text():
    call, program = '{{"function": "f", "args": [5000], "expected": {}}}', "```python\ndef f(n):\n    return 10**n\n```"
    assert paid(program, f"[{call.format(LONG)}]") == 1.0
    assert paid(program.replace("10**n", "str(10**n)"), [{"function": "f", "args": [5000], "expected": LONG}]) == 1.0


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("```python\nprint(2 * int(input()))\n```\nExample:\n```\n4\n```", True),
        ("```\nprint(2 * int(input()))\n```\nOutput:\n```\n4\n```", True),
        ("```python\ndef f(x):\n    return 2 * x\n```\n```python\nprint(f(int(input())))\n```", True),
        ("```python\nprint(2 * int(input()))\n```\n```python\n# for 3\nprint(6)\n```", True),
        ("```python\nprint(int(input()))\n```", False),
    ],
)
def test_of_scripts_the_one_that_reads_stdin_counts(text, right):
    assert paid(text, [{"input": "2\n", "output": "4\n"}]) == float(right)


HEAD = (
    "from typing import List\n\ndef twice(x):\n    return 2 * x\n\ndef g(x: List[int]) -> int:\n"
    '    """Twice the first."""\n'
)
WHOLE = "```python\ndef g(x: List[int]) -> int:\n    return twice(x[0])\n```"
CHAT = [{"role": "user", "content": f"Complete this:\n```python\n{HEAD}```\n"}]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (WHOLE, {"setup": HEAD}),
        (WHOLE, {"prompt": HEAD}),
        (WHOLE, {"prompt": CHAT}),
        (WHOLE.replace("def g", "from __future__ import division\ndef g"), {"setup": HEAD}),
        ("    return twice(x[0])", {"prompt": HEAD}),
        ("y = twice(x[0])\nreturn y\n\ndef other(:", {"setup": HEAD}),
        ("```python\n    return twice(x[0])\n```", {"prompt": CHAT}),
        ("    return twice(x[0])", {"setup": f"{HEAD}    raise NotImplementedError\n"}),
        (" return 2 * x[0]", {"prompt": "def g(x):"}),
    ],
)
def test_the_prompts_preamble_belongs_to_the_program(text, columns):
    assert paid(text, ["assert g([3]) == 6"], entry_point="g", **columns) == 1.0
    assert paid(text.replace("x[0]", "x[1]"), ["assert g([3]) == 6"], entry_point="g", **columns) == 0.0


@pytest.mark.parametrize(
    ("text", "setup"),
    [
        ("```python\ndef g(x):\n    return reference(x)\n```", "def reference(x):\n    return 2 * x"),
        ("    pass", "def g(x):\n    return 2 * x"),
        ("", "def g(x):\n    return 2 * x"),
    ],
)
def test_a_reference_in_setup_stays_out_of_the_programs_reach(text, setup):
    assert paid(text, ["assert g(3) == 6"], entry_point="g", setup=setup, prompt="Write g.") == 0.0


@pytest.mark.parametrize("piece", ["`", "~ ", " ", "```python\n", "(", "-", "```python\nx=1\n```\n", "'\n", "if x:\n"])
def test_a_long_answer_is_read_in_time(piece):
    text = piece * (20_000 // len(piece)) + "\n" + BLOCK
    start = time.thread_time()
    load_script("sandbox").program_of(text, TESTS)
    assert time.thread_time() - start < 30  # seconds of processor time; a pattern that backtracks takes minutes
