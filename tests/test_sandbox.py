"""scripts/sandbox.py under attack (sandbox_attacks.py), and what must still work in it."""

import ast
import ctypes
import gzip
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import sandbox_attacks as attacks
from conftest import ROOT, SCRIPTS, load_script

HUMANEVAL = ROOT.parent / "shared" / "data" / "HumanEval.jsonl.gz"
ORDINARY_USER = 65533
WALLS = ("landlock", "seccomp")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox confines programs on Linux only")


@pytest.fixture(scope="module")
def sandbox():
    """scripts/sandbox.py as a module, with a server of its own that ends with the tests."""
    module = load_script("sandbox")
    yield module
    module.DEFAULT.stop()


# ------------------------------------------------------------------------------------------- the judge of the attacks
VALUES = [73310_00000000000 * 10 + i for i in range(3)]


def test_the_judge_sees_what_an_attack_did_and_what_was_granted():
    """A program with an effect of each kind on the outside, and a made-up verdict."""

    def run_code(code, tests, **_):
        if code == attacks.CORRECT:  # it runs after the attack, in a server that no longer judges
            return types.SimpleNamespace(all_passed=False, status="failed", detail="")
        folder, port, udp, token, digits = code.split("|")
        Path(folder, "new").write_text("x")
        Path(folder, "victim.txt").write_text("kept me")
        os.utime(f"{folder}/folder", (0, 0))
        Path("/dev/shm", token).write_text("x")
        places = [(socket.AF_INET, kind, ("127.0.0.1", int(number))) for kind, number in ((1, port), (2, udp))]
        places += [(socket.AF_UNIX, 1, f"{folder}/stream.sock"), (socket.AF_UNIX, 1, f"\0{token}")]
        places += [(socket.AF_UNIX, 2, f"{folder}/datagram.sock"), (socket.AF_UNIX, 2, f"\0{token}d")]
        for family, kind, address in places:
            with socket.socket(family, kind) as sock:
                sock.connect(address)
                sock.send(b"x")
        subprocess.Popen(["sleep", f"30.0{digits}"])
        return types.SimpleNamespace(passed=1, total=3, all_passed=False, fraction=1 / 3, status="failed", detail="")

    sandbox = types.SimpleNamespace(run_code=run_code, SandboxError=ArithmeticError)
    attack = attacks.Attack("probe", "process", "@DIR@|@PORT@|@UDP@|@TOKEN@|@DIGITS@", ("calls",))
    said = "\n".join(attacks.run_attack(sandbox, None, attack, "calls", VALUES).problems)
    for harm in (
        "changed /new",
        "changed /victim.txt",
        "changed /folder",
        "left /dev/shm/",
        "still runs",
        "passed 1 of 3",
    ):
        assert harm in said, said
    assert len(re.findall("reached AF_INET|reached AF_UNIX", said)) == 6 and "the next correct program failed" in said


TYPED = """
a, b, c = VALUES
answers = [[a, a], {'key': b}, c + 0.5, str(a), [{'x': [b]}], {a, b}, (a, b, c), str(c).encode(), {'k': (a, {b})}]
def f(x):
    return answers.pop(0)
"""


@pytest.mark.parametrize("suite", attacks.FORMS)
def test_a_correct_program_passes_each_form_of_tests(sandbox, suite):
    code = f"import math, operator\nVALUES = {VALUES}\ndef f(x):\n    return VALUES[x]\n"
    if suite == "members":
        code += "def f(x):\n    return [VALUES[x]]\n"
    if suite == "typed":
        code += TYPED
    if suite.endswith("stdio"):
        code += attacks.READ_AND_PRINT
    verdict = sandbox.run_code(code, **attacks.tests_for(suite, VALUES))
    assert verdict.all_passed and verdict.total >= 3 and verdict.trusted, verdict
    wrong = sandbox.run_code(code.replace(str(VALUES[1]), "5"), **attacks.tests_for(suite, VALUES))
    assert not wrong.all_passed and 0 < wrong.passed < wrong.total, wrong


# ------------------------------------------------------------------------------------------- the attacks
HALVES = {"verdicts": ("exit", "forge", "compare", "patch", "stdio"), "bombs": ("bomb",)}
HALVES["outside"] = ("read", "reach", "write", "process", "network", "signal")


def contained(result: dict, at_least: int) -> None:
    """Assert that attacks were run and that none did harm."""
    if "skipped" in result:
        pytest.skip(result["skipped"])
    bad = [f"{o['name']} ({o['suite']}): {o['problems']} {o['detail']}" for o in result["outcomes"] if o["problems"]]
    assert result["problems"] == [] and bad == [], "\n".join([*result["problems"], *bad])
    assert len(result["outcomes"]) == result["end"]["planned"] >= at_least


def need(sandbox, *layers: str) -> None:
    """Skip where the kernel lacks a layer."""
    there = sandbox.sandbox_report()["layers"]
    missing = [f"{name} ({there[name]})" for name in layers if not there[name].startswith("on")]
    if missing:
        pytest.skip(f"not in force here: {', '.join(missing)}")


@pytest.mark.long
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("user", ["root", "ordinary"])
def test_no_attack_succeeds(sandbox, user, half):
    need(sandbox, *WALLS)
    if user == "root" and os.getuid():
        pytest.skip("not root")
    uid = ORDINARY_USER if user == "ordinary" and os.getuid() == 0 else None
    # who runs it makes no difference to the forms of tests: all of them once, as root where there is root
    forms = ("calls", "typed", "stdio", "reached") if uid else attacks.SUITES
    result = attacks.supervise(["--kind", *HALVES[half], "--suite", *forms], uid)
    chosen = [attack for attack in attacks.ATTACKS if attack.kind in HALVES[half]]
    assert all(set(attack.suites) & set(forms) for attack in chosen)
    foreign = [attack for attack in chosen if "syscall(" in attack.code and platform.machine() != "x86_64"]
    contained(result, sum(len(set(attack.suites) & set(forms)) for attack in chosen if attack not in foreign))
    assert (result["end"]["uid"] == 0) == (user == "root")
    assert all(result["end"]["layers"][layer].startswith("on") for layer in WALLS)


@pytest.mark.long
@pytest.mark.parametrize("missing", ["user", "landlock", "seccomp", "mount network pid ipc"])
def test_the_other_layers_hold_where_one_is_missing(sandbox, missing):
    need(sandbox, *WALLS, *missing.split())
    # calls that reach no file, network or process of others are closed by seccomp alone
    kinds = ["read", "write", "process", "network", "signal"] + ["reach"] * (missing != "seccomp")
    flags = ["--gentle", "--kind", *kinds, "--suite", "calls", "reached", "--disable", *missing.split()]
    result = attacks.supervise(flags)
    contained(result, 85)
    assert all(result["end"]["layers"][layer] == "off: disabled by the caller" for layer in missing.split())


# ------------------------------------------------------------------------------------------- correct programs
WHOLE = ("3 ** 9000", "float('-inf')", "(1, (1,), ())", "{frozenset([1, 2])}", "{7: [7], (7, 1): None}")
WHOLE += ("[None, True, False]", "b'\\x00\\xffab'[::-1]", "(1 + 2j) ** 2", "{'a': [{'b': (3, {3})}]}", "'ab' * 200_000")
WHOLE += ("{'t': 'int', 'v': 'ff'}", "{'nonce': '', 'error': [], 'value': 1}")  # like messages
WHOLE += ("'é漢\U0001f600\\n\\0'", "len(bytearray(200 << 20))", "{2**n for n in range(600)}")
# expression in a program, what it comes to
VALUES_OF = [
    *((text, eval(text)) for text in WHOLE),
    ("1 / 3", 0.3333333),
    ("collections.Counter('aab')", {"a": 2, "b": 1}),
    ("collections.defaultdict(list, k=[1])", {"k": [1]}),
    ("list(collections.deque([1], 3))", [1]),
    ("collections.namedtuple('P', 'x y')(1, [1])", (1, [1])),
    ("[fractions.Fraction(4, 6)]", [Fraction(2, 3)]),
    ("str(datetime.date(2024, 2, 28) + datetime.timedelta(1))", "2024-02-29"),
    # keys of correct programs may share hashes: those of -1 and -2, of every 61st power of two
    ("{}.fromkeys(itertools.product(range(-60, 61), repeat=2), 0)", {}.fromkeys(product(range(-60, 61), repeat=2), 0)),
]
NEARLY = [  # what a program returns, what is expected
    *(("1", True), ("True", 1), ("'1'", 1), ("[1, 2, 3]", [1, 2]), ("[1, 2]", {1, 2}), ("b'a'", "a"), ("None", 0)),
    *(("[2, 1]", [1, 2]), ("None", []), ("1.001", 1.0), ("10**15 + 1", 10**15), ("{'a': 1}", {"a": 1, "b": None})),
]
EVALUATES = "import collections, datetime, fractions, itertools\ndef f(x):\n    print('debug', x)\n    return eval(x)"


def test_values_arrive_as_they_are_and_nearly_right_ones_fail(sandbox):
    tests = [([expression], value) for expression, value in VALUES_OF + NEARLY]
    verdict = sandbox.run_code(EVALUATES, tests, entry_point="f", timeout_s=20)
    wrong = [r for r in verdict.results if r["passed"] != (r["test"] < len(VALUES_OF))]
    assert not wrong and len(verdict.results) == verdict.total == len(tests), verdict.detail


RECURSION = "import sys\nsys.setrecursionlimit(10000)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)"
JOINED = """
import threading
def f(n):
    out = []
    threads = [threading.Thread(target=out.append, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return sorted(out)
"""
TEMPORARY = """
import os, tempfile
def f(text):
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as file:
        path = os.path.join(folder, 'x')
        open(path, 'w').write(text)
        file.write(b'1')
        return open(path).read()
"""
OWN_FILES = """
import os, pathlib, shutil
def f(text):
    os.makedirs('a/b', exist_ok=True)
    pathlib.Path('a/b/c').write_text(text)
    shutil.copy('a/b/c', 'd')
    os.rename('d', 'e')
    shutil.rmtree('a')
    return [open('e').read(), os.listdir('.')]
"""
LATE = """
import threading, time
def g():
    time.sleep(0.02)
    print('late')
threading.Thread(target=g).start()
"""
CHANGED = "def check(candidate):\n    x = [2, 1]\n    assert candidate(x) is None\n    assert x == [1, 2, 9]\n"
SET_UP_CLOSE = "import math\ndef close(a, b):\n    return math.isclose(a, b, abs_tol=1e-6)\n"
CONTROLS = [  # program, tests: (args, expected) of f, (input, output) of a script, or Python
    (RECURSION, [([5000], 5000)]),
    ("def f(*a, **k):\n    return len(a)", [(list(range(500)), 500)]),
    ("def f(a, *, b, **c): return [b, c]", [{"args": [1], "kwargs": {"b": 2, "d": 3}, "expected": [2, {"d": 3}]}]),
    (JOINED, [([8], list(range(8)))]),
    (TEMPORARY, [(["ü"], "ü")]),
    (OWN_FILES, [(["x"], ["x", ["e"]])]),
    ("n = 0\ndef f():\n    global n\n    n += 1\n    return n", [([], 1), ([], 2), ([], 3)]),
    ("def f(x):\n    x.sort()\n    x.append(9)\n", CHANGED),
    ("def f(x):\n    return x + 1e-9", ["assert close(f(1), 1)", "assert close(f(2.5), 2.5)"]),
    ("import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])", ("ab\ncd", "ba\ndc\n")),
    ("print(1)\nexit()\nprint(2)", ("", "1\n")),
    ("print('é漢\U0001f600', input())", ("ß", "é漢\U0001f600 ß")),
    ("import sys\nsys.stdout.buffer.write(b'ok\\n')\nsys.stdout.flush()", ("", "ok")),
    ("import atexit\natexit.register(print, 'bye')\nprint('hi')", ("", "hi\nbye\n")),
    (LATE, ("", "late")),
    ("for i in range(50000):\n    print(i)", ("", "".join(f"{i}\n" for i in range(50000)))),
]


@pytest.mark.parametrize(("code", "tests"), CONTROLS)
def test_a_correct_program_passes(sandbox, code, tests):
    if isinstance(tests, tuple):
        tests = [dict(zip(("input", "output"), tests, strict=True))]
    verdict = sandbox.run_code(code, tests, entry_point="f", setup=SET_UP_CLOSE, timeout_s=30, memory_mb=2048)
    assert verdict.all_passed and verdict.fraction == 1 and verdict.status == "ok" and verdict.trusted, verdict
    assert verdict.total >= (len(tests) if isinstance(tests, list) else 1)


def test_a_copy_that_runs_programs_when_it_starts_does_not_start_itself_for_ever(tmp_path):
    """Its server starts the same file; the counter ends a chain, should there be one."""
    source = (SCRIPTS / "sandbox.py").read_text(encoding="utf-8")
    head, main, tail = source.rpartition('\n\nif __name__ == "__main__":')
    count = tmp_path / "starts"
    planted = f"""
with open({str(count)!r}, "a") as starts:
    starts.write("x")
if os.path.getsize({str(count)!r}) > 4:
    sys.exit("a chain")
print(run_code("x = 1", ["assert x == 1"]).status)
"""
    (tmp_path / "my_sandbox.py").write_text(head + planted + main + tail)
    command = [sys.executable, tmp_path / "my_sandbox.py", "--report"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "expected it below `if __name__ ==`" in done.stderr
    assert len(count.read_text()) < 4


def test_nothing_runs_after_the_first_failure_where_that_is_asked(sandbox):
    asked = {"stop_at_first_failure": True}
    tests = ["assert f(1) == 1", "assert f(1) == 2", "assert f(2) == 2", "assert f(3) == 3"]
    for source in (tests, ["x = f(1)", *tests]):  # calls alone, and a judge's
        verdict = sandbox.run_code("def f(x):\n    return x", source, **asked)
        assert (verdict.status, verdict.passed, verdict.total) == ("failed", 1, 4) and len(verdict.results) == 2
    runs = [{"input": "1", "output": "2"}, {"input": "1", "output": "1"}]
    verdict = sandbox.run_code("print(input())", runs, **asked)
    assert (verdict.passed, verdict.total, len(verdict.results)) == (0, 2, 1)
    assert sandbox.run_code("def f(x):\n    return x", tests[:1], **asked).all_passed


STATUSES = [  # status, body of f, limits
    ("failed", "return 0", {}),
    ("syntax_error", "return (", {}),
    ("timeout", "while True: pass", {"timeout_s": 0.3}),
    ("memory", "return len(bytearray(1 << 30))", {"memory_mb": 128}),
    ("error", "import os; os._exit(0)", {}),
    ("output_limit", "return 'x' * (2 << 20)", {"output_mb": 1, "timeout_s": 20}),
]


@pytest.mark.parametrize(("status", "body", "limits"), STATUSES)
def test_the_status_says_why(sandbox, status, body, limits):
    verdict = sandbox.run_code(f"def f(x):\n    {body}", [([1], 1)], entry_point="f", **limits)
    assert (verdict.status, verdict.passed, verdict.total, verdict.all_passed) == (status, 0, 1, False), verdict
    assert verdict.detail and 0 < verdict.wall_s < 12


# ------------------------------------------------------------------------------------------- no tests
NO_TESTS = [
    *([], "", " \n\t\n", ["", " "], {"inputs": [], "outputs": []}, "# assert f(1) == 1", "pass", '"""assert f(1)"""'),
    *("def check(candidate):\n    candidate(1)\n", "def check(candidate):\n    pass\n"),
    *("def helper():\n    assert True\n", "for x in []:\n    assert f(x)\n"),
]


def test_no_tests_never_pass(sandbox):
    for tests in NO_TESTS:
        verdict = sandbox.run_code("def f(x):\n    return x", tests, entry_point="f")
        assert not verdict.all_passed and verdict.passed == 0 == verdict.fraction and verdict.status != "ok", tests


UNUSABLE = [
    *(None, 5, [1], [None], {"inputs": [1], "outputs": []}, ["assert f(1) =="], [{"args": [1]}], [([1], 1, 2)]),
    *([object()], [{"args": 10**5000, "expected": 1}], [([object()], 1)], [([1], object())]),
    ["assert f(1) == " + "(" * 3000 + ")" * 3000],
]


@pytest.mark.parametrize("value", [0, -0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("limit", ["timeout_s", "total_timeout_s", "memory_mb", "output_mb"])
def test_a_limit_is_a_finite_number_above_0(sandbox, limit, value):
    told = f"got {limit} {value}; expected a finite number above 0"
    with pytest.raises(ValueError, match=told):
        sandbox.run_code("def f(): return 1", "assert f() == 1", **{limit: value})
    if limit in ("timeout_s", "memory_mb"):
        with pytest.raises(ValueError, match=told):
            sandbox.program_output("print(1)", **{limit: value})


EACH = [  # tests; how many of four pass if the program ends in the third, together and each alone
    ([([n], n) for n in range(4)], 2, 3),
    ([f"assert f({n}) == {n}" for n in range(4)], 2, 3),
    ("import math\n" + "\n".join(f"assert math.isclose(f({n}), {n})" for n in range(4)), 2, 3),
    ([(f"{n}\n", f"{n}\n") for n in range(4)], 3, 3),  # a process for each in any case
    ("def check(c):\n" + "".join(f"    assert c({n}) == {n}\n" for n in range(4)), 2, 2),  # they share names
]


@pytest.mark.parametrize(("tests", "together", "alone"), EACH)
def test_a_program_that_ends_costs_one_test_where_each_is_alone(sandbox, tests, together, alone):
    code = "import os\nkept = []\ndef f(n):\n    kept.append(n)\n    return os._exit(0) if n == 2 else n"
    code += "\nif __name__ == '__main__':\n    print(f(int(input())))"
    entry_point = None if isinstance(tests[0][0], str) and tests[0][0][0].isdigit() else "f"
    for each_alone, passed in ((False, together), (True, alone)):
        verdict = sandbox.run_code(code, tests, entry_point=entry_point, each_alone=each_alone)
        assert (verdict.passed, verdict.all_passed, verdict.trusted) == (passed, False, True)
    full = sandbox.run_code(code.replace("os._exit(0)", "2"), tests, entry_point=entry_point, each_alone=True)
    assert full.all_passed and full.total == 4
    wide = code.replace("kept.append(n)", "kept.append(bytearray(70 << 20))").replace("os._exit(0)", "2")
    if alone > together:  # 70 MiB a call, 200 for each
        limits = {"entry_point": entry_point, "memory_mb": 200}
        assert [sandbox.run_code(wide, tests, each_alone=alone, **limits).passed for alone in (False, True)] == [2, 4]


def test_each_alone_a_program_cannot_hold_up_the_caller_or_leave_the_judging(sandbox):
    hangs = sandbox.run_code("while True: pass", [([n], n) for n in range(40)], timeout_s=0.1, each_alone=True)
    assert (hangs.passed, hangs.total, hangs.status, len(hangs.results)) == (0, 40, "timeout", 10)
    unfit, wrong = "assert f(1) == f(2)", "assert isinstance(f(3), int)"  # the first alone judges no object
    code = "class C: pass\ndef f(x):\n    return C()"
    verdicts = [sandbox.run_code(code, tests, each_alone=True) for tests in ([unfit, wrong], [unfit, unfit])]
    assert [verdict.usable for verdict in verdicts] == [True, False]
    asserts = ["import math", f"assert math.isqrt(f(0x{'f' * 5000})) > 0", "assert math.gcd(f(2), 4) == 2"]
    assert sandbox.run_code("def f(x):\n    return x", asserts, each_alone=True).all_passed


def test_an_exit_within_a_loop_of_the_tests_does_not_pay(sandbox):
    code, tests = "import os\ndef f(x):\n    return x if x < 9 else {}", "for n in range(90):\n    assert f(n) == n"
    exits, wrong = (sandbox.run_code(code.format(end), tests).fraction for end in ("os._exit(0)", "None"))
    assert (exits, wrong) == (0, 0.1)
    assert sandbox.run_code(code.format("None"), tests, stop_at_first_failure=True).fraction == 0


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("def g(x):\n    return h(x)\ndef h(x):\n    return x\ndef main():\n    g(1)\ndef test_g():\n    g(1)", 1),
        ("class Solution:\n    def g(self, x):\n        return self.h(x)\n    def h(self, x):\n        return x", 1),
        ("x = 1", 0),
        ("def g(x):\n    return x" + "+x" * 45_000, 0),
    ],
)
def test_pairs_without_a_function_call_the_last_that_no_other_uses(sandbox, code, passed):
    with warnings.catch_warnings(action="error"):
        verdict = sandbox.run_code(code, [([1], 1)])
    assert verdict.passed == passed and verdict.usable


TEXTS = ("def back(input):\n    print(1)\n    return input[::-1]", "print(input()[::-1])")


@pytest.mark.parametrize("code", [*TEXTS, "def back():\n    print(open(0).readline().strip()[::-1])\nback()"])
def test_pairs_of_texts_feed_a_script_or_call_a_function(sandbox, code):
    assert sandbox.run_code(code, [["abc", "cba"], ["de", "ed"], ["fg", "fg"]]).passed == 2


def test_tests_that_cannot_be_used_are_the_callers_error_and_one_bad_row_of_many(sandbox):
    code = "def f(x):\n    return x"
    for tests in UNUSABLE:
        with pytest.raises(sandbox.BadTests):
            sandbox.run_code(code, tests, entry_point="f")
    with pytest.raises(sandbox.BadTests, match="no function to call"):
        sandbox.run_code(code, [([1], 1), {"args": [1], "expected": 1}])
    jobs = [numbered(3), {"code": code, "tests": UNUSABLE[-1], "entry_point": "f"}, numbered(2)]
    with pytest.warns(RuntimeWarning, match="1 of 3 jobs .* the first of them job 1: ") as caught:
        verdicts = sandbox.run_many(iter(jobs))
    assert [verdict.passed for verdict in verdicts] == [3, 0, 2] and len(caught) == 1
    assert verdicts[1].status == "invalid_tests" and not verdicts[1].all_passed


@pytest.mark.parametrize("code", ["", None, "# nothing", "\0", "\ud800", "x" * 5_000_000])
def test_no_program_never_passes(sandbox, code):
    verdict = sandbox.run_code(code, [([1], 1)], entry_point="f")
    assert not verdict.all_passed and verdict.passed == 0 and verdict.total == 1 and verdict.status != "ok"


# ------------------------------------------------------------------------------------------- HumanEval
@pytest.fixture(scope="module")
def humaneval():
    if not HUMANEVAL.exists():
        pytest.skip(f"{HUMANEVAL.name} is not here")
    with gzip.open(HUMANEVAL, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(
    ("solved", "rest"), [(True, 0), (False, 0), *(pytest.param(True, rest, marks=pytest.mark.long) for rest in (1, 2))]
)
def test_humaneval_passes_with_its_solutions_only(sandbox, humaneval, solved, rest):
    """Every third row, from the first, second or third on."""
    rows, jobs = humaneval[rest::3], []
    for row in rows:
        body = row["canonical_solution"] if solved else "    return None\n"
        job = {"code": row["prompt"] + body, "tests": row["test"], "entry_point": row["entry_point"]}
        jobs.append(job | {"setup": row["prompt"] + "    pass\n", "timeout_s": 20})
    verdicts = sandbox.run_many(jobs)
    odd = {row["task_id"]: v for row, v in zip(rows, verdicts, strict=True) if v.all_passed != solved}
    assert odd == {} and len(verdicts) == (54 if rest == 2 else 55)
    assert all(v.trusted if solved else v.status != "ok" for v in verdicts)


def test_a_parse_that_another_thread_disturbs_is_done_again(sandbox, monkeypatch):
    errors, parse = [SystemError("AST constructor recursion depth mismatch (before=33, after=25)")] * 2, ast.parse
    monkeypatch.setattr(ast, "parse", lambda *a, **k: (_ for _ in ()).throw(errors.pop()) if errors else parse(*a, **k))
    assert sandbox.read_tests(["assert f(1) == 2"], "f").kind == "calls"
    assert not errors


# ------------------------------------------------------------------------------------------- many at once
def numbered(n: int) -> dict:
    """A job whose verdict tells it from others: n % 4 of its 4 tests pass."""
    code = f"def f(x):\n    return {n} if x < {n % 4} else None"
    return {"code": code, "tests": [([i], n) for i in range(4)], "entry_point": "f"}


def test_four_threads_get_their_own_verdicts(sandbox):
    with ThreadPoolExecutor(4) as pool:
        batches = [range(start, start + 25) for start in range(0, 100, 25)]
        found = list(pool.map(lambda batch: sandbox.run_many([numbered(n) for n in batch], workers=2), batches))
    assert [[verdict.passed for verdict in batch] for batch in found] == [[n % 4 for n in batch] for batch in batches]


USE_AND_END = """
import importlib.util, os, signal, sys, threading
spec = importlib.util.spec_from_file_location("sandbox", sys.argv[1])
sys.modules["sandbox"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
job = {"code": "def f(x):\\n    open('file', 'w').write('x')\\n    return x", "tests": [([1], 1)], "entry_point": "f"}
print([verdict.all_passed for verdict in module.run_many([job] * 6)], flush=True)
if sys.argv[2] == "killed":
    busy = {**job, "code": "def f(x):\\n    while True: pass"}
    threading.Thread(target=module.run_code, kwargs=busy, daemon=True).start()
    threading.Event().wait(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["returned", "killed"])
def test_nothing_remains(tmp_path, end):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become visible as descendants
    before = set(attacks.descendants(os.getpid()))
    command = [sys.executable, "-c", USE_AND_END, str(SCRIPTS / "sandbox.py"), end]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == f"{[True] * 6}\n" and "Traceback" not in done.stderr
    assert done.returncode == (0 if end == "returned" else -9)
    for _ in range(40):
        left = {name for pid, name in attacks.descendants(os.getpid()).items() if pid not in before}
        if not left:
            break
        time.sleep(0.05)
    assert left == set()
    if end == "returned":  # who is killed cannot tidy up
        assert list(tmp_path.iterdir()) == []


LEAVE = """
import builtins, os, sys
builtins.kept = sys.kept = 1
os.environ['KEPT'] = '1'
open('kept', 'w').close()
def f(x):
    return x
"""
LOOK = """
import builtins, os, sys
def f(x):
    return [hasattr(builtins, 'kept'), hasattr(sys, 'kept'), 'KEPT' in os.environ, os.path.exists('kept')]
"""


def test_nothing_of_a_program_remains_in_the_next(sandbox):
    assert sandbox.run_code(LEAVE, [([1], 1)], entry_point="f").all_passed
    assert sandbox.run_code(LOOK, [([1], [False] * 4)], entry_point="f").all_passed


def test_strict_runs_here_and_refuses_where_files_or_network_are_open(sandbox):
    need(sandbox, *WALLS)
    with pytest.raises(ValueError, match="no_such_layer"):
        sandbox.Sandbox(disable=["no_such_layer"])
    assert sandbox.run_code(**numbered(3), strict=True).passed == 3
    open_box = sandbox.Sandbox()
    open_box.ready()
    open_box.report = {**open_box.report, "proof": {**open_box.report["proof"], "network": True}}
    with pytest.raises(sandbox.SandboxError):
        sandbox.run_code(**numbered(3), strict=True, sandbox=open_box)
    open_box.stop()


# ------------------------------------------------------------------------------------------------ forms of tests
POINT = "class P:\n    def __init__(self, x=0):\n        self.x = x\n    def get(self):\n        return self.x\n"
RAISES = "def f(x):\n    if x < 0:\n        raise ValueError(x)\n    return x\n"
FIXED = "class P:\n    __slots__ = ()\n    def __setattr__(self, name, value):\n        raise AttributeError(name)\n"
RAISE_TEST = "import pytest\ndef test_f():\n    with pytest.raises(ValueError):\n        f(-1)\n"
EXPECTED_ERRORS = (  # f(-1) raises ValueError
    "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass",
    "try:\n    f(-1)\n    assert False, 'no error'\nexcept (TypeError, ValueError) as error:\n    print(error)",
    "try:\n    f(-1)\n    raise AssertionError('no error')\nexcept ValueError:\n    pass",
    "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
    "def test_f():\n    try:\n        f(-1)\n        assert False\n    except ValueError:\n        return",
)
ZONED = "import datetime\ndef f(): return datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)"
CAPTURE = "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n    f()\nassert b.getvalue()"
CLOSE = "import numpy\ndef check(candidate):\n    numpy.testing.assert_allclose(candidate(2), 2.0)\n"
UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 1)\n"

NOTHING, THUNK = "def f(n): return []", "def f(a, b=0): return lambda: 0"
# agrees with everything that it is asked
YES = """
class F:
    def __init__(self, *a): self.a = a
    def __contains__(self, x): return True
    __lt__ = __gt__ = __le__ = __ge__ = __eq__ = __contains__
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __mod__ = __sub__
    def __abs__(self): return 0.0
f = Mean = F
"""
CLASSES = """
class A(Exception): pass
class B(A): pass
class V:
    def __init__(self, x): self.x = x
    def __add__(self, other): return V(self.x + other.x)
    def __mul__(self, other): return V(self.x * getattr(other, "x", other))
    def __neg__(self): return V(-self.x)
    def __contains__(self, x): return x == self.x
    def __lt__(self, other): return self.x < other.x
class P(__import__("typing").NamedTuple):
    x: int
def f(x):
    if x < 0: raise B("below 0")
    return x
"""
ORDERED = "from collections import OrderedDict as O\ndef f(): return O(b=1, a=2)"
CAUGHT = "try:\n    f(-1)\n    assert False\nexcept A:\n    pass"
WITH_RAISES = "import pytest\ndef test_f():\n    with pytest.raises(A, match='below'):\n        f(-1)\n"
TEST_CASE = UNITTEST.replace("assertEqual(f(1), 1)", "assertRaises(A, f, -1)")
SET_UP = UNITTEST + "    @classmethod\n    def setUpClass(cls):\n        f(1)\n"
MANY = """
import pytest
@pytest.mark.parametrize('a', [(1, 2), (2, 3)])
@pytest.mark.parametrize(('b', 'c'), [(1, 1), pytest.param(2, 2, id='k')])
def test_f(a, b, c):
    assert min(a) > 0 and f(b) == c
"""
TEST_CLASS = "class TestF:\n    def setup_method(self): self.x = 1\n    def test_f(self): assert f(self.x) == 1\n"
SCRIPT = "def test_f():\n    assert f(1) == 1\nif __name__ == '__main__':\n    {}\n"
SKIP = "import pytest\n@pytest.mark.skip\ndef test_g():\n    assert f(1) == 2\n"
SKIPPED_CASE = UNITTEST.replace("    def test", "    @unittest.skip('')\n    def test")
SILENCED = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    assert f(1) == 1"
FAILS = EXPECTED_ERRORS[2].replace("raise AssertionError", "pytest.fail").replace("try", "import pytest\ntry")
SET_UPS = TEST_CLASS.replace("def setup_method(self): self", "@classmethod\n    def setup_class(cls): cls")
MODULE = "x = []\ndef setup_module(): x.append(1)\ndef setup_function(f): x.append(2)\n"
MODULE += "def test_f(): assert f(x) == [1, 2]"
ERRORS = """
class E(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code
def f(x): raise E(x) if x else KeyError("a")
"""
CODE = "try:\n    f(3)\n    assert False\nexcept E as e:\n    assert e.code == 3 and str(e) == 'code 3'"
BY_KEY = """
class D:
    def __init__(self): self.d = {}
    def __setitem__(self, k, v): self.d[k] = v
    def __delitem__(self, k): del self.d[k]
    def __contains__(self, k): return k in self.d
"""
GROWS = """
from collections import defaultdict
class G:
    def __init__(self): self.rows, self.counts, self.last = [], defaultdict(lambda: defaultdict(int)), None
    def start(self):
        self.last = []
        self.rows.append(self.last)
    def put(self, key, x):
        self.last.append(x)
        self.counts[key][x] += 1
"""
GROWN = "g = G()\nassert g.rows == [] and g.counts == {}\ng.start()\ng.put(1, 2)\ng.put(1, 3)\n"
OPTIONAL = "try:\n    import no_such_library\nexcept ImportError:\n    pass\nassert f(1) == 1"
ALONE = (  # no program can pass these: it runs in a process and folder of its own
    "from unittest.mock import patch\n@patch('os.getcwd', return_value=3)\ndef test_f(m):\n    assert f(1) == 3",
    "import os\nos.environ['X'] = '3'\nassert f(1) == 3",
    "import numpy as np\nnp.random.seed(0)\nassert f(1) == 3",
    "import tempfile\nwith tempfile.NamedTemporaryFile() as t:\n    assert f(t.name) == 3",
    "from os import path\nf('x')\nassert path.exists('x')",
    "import random\nrandom.seed(0)\nassert f(1) == 3",
    "open('x', 'w').write('3')\nassert f('x') == 3",
    "import no_such_library\nassert f(1) == 3",
)
PATCH = "from unittest.mock import patch\nwith patch('builtins.input', return_value='3'):\n    assert f(1) == 3"

SUM = "def sum(a, b):\n    return a + b\n"
LIE = "def sum(*a):\n    return 99\n"

BOX = "class B:\n    def __init__(self): self.rows = [[0]]\n    def total(self): return sum(map(sum, self.rows))"
COLOURS = "from enum import Enum\nclass C(Enum):\n    R = 1\n    G = 2\ndef f(x): return C(x)"

ITEMS = """
class Item:
    kind = "item"
    def __init__(self, name, price): self.name, self.price = name, price
    def __lt__(self, other): return self.price < other.price
    def __eq__(self, other): return self.name == other.name
    def __hash__(self): return hash(self.name)
class Shop:
    def __init__(self): self.all = [Item("b", 2), Item("a", 1)]
    def items(self): return list(self.all)
    def sell(self, name, price=1, *, gift=False): return name
"""
LIARS = ITEMS.replace("self.price < other.price", "True").replace("self.name == other.name", "True")

NUMPY = "import numpy as np\ndef f(): return np.array("
RUN, SHOP = "import asyncio\n", "import inspect\ns = Shop()\nassert "
EQUAL = "class E(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n"
ENTERS = "class F:\n    __enter__ = lambda s: {}\n    def __exit__(s, *a): ..."
SWALLOWS = "class F:\n    __enter__ = lambda s: 2\n    __exit__ = lambda s, *a: True"
ENTERED, RAN = "with F() as x:\n    assert x == 1", RUN + "assert asyncio.run(f()) == 1"
TOGETHER = RUN + "async def test():\n    assert await asyncio.gather(f(1), f(2)) == [1, 2]\n    assert await f(3) == 3"
# (program, tests, the status and what else is known of the verdict)
VERDICTS = [
    (POINT, "p = P()\np.x = 5\nassert p.get() == 5\nassert p.x == 5", "ok 2/2"),
    (FIXED, "p = P()\np.x = 5\nassert p.x == 5", "failed 0/1"),
    ("from fractions import Fraction\ndef f(x): return Fraction(x, 2)", "assert f(1) == 0.5", "ok 1/1"),
    (RAISES, RAISE_TEST, "ok 1/1"),
    ("def f(x): return x", RAISE_TEST, "failed 0/1"),
    *(("def f(x): return x", test, "ok 1/1") for test in (CLOSE, UNITTEST, TEST_CLASS)),
    *(("def f(x): return -x", test, "failed 0/1") for test in (CLOSE, UNITTEST, TEST_CLASS)),
    *((RAISES, test, "ok 1/1") for test in EXPECTED_ERRORS),
    *(("def f(x): return x", test, "failed 0/1") for test in EXPECTED_ERRORS),
    (RAISES, "try:\n    f(-1)\n    assert False\nexcept KeyError:\n    pass", "failed 0/1"),
    (RAISES, "try:\n    f(-1)\n    assert False\nexcept Exception:\n    pass", "no_tests 0/0"),
    ("def f(x): return x", "try:\n    f(-1)\nexcept ValueError:\n    pass", "no_tests 0/0"),
    (POINT, "assert P(1) == P(1)", "invalid_tests 0/1"),
    ("import decimal\ndef f(): return decimal.Decimal('sNaN')", "assert f() == 1", "failed 0/1"),
    (ZONED, "import datetime\nassert f() == datetime.datetime(2020, 1, 1)", "failed 0/1"),
    ("def f(): print(3)", CAPTURE, "invalid_tests 0/1"),
    ("def f(g): return g(1)", "assert f(lambda x: x + 1) == 2", "ok 1/1"),
    ("def f(g): return g(1)", "def h(x, y=2):\n    return [x + y for _ in 'a']\nassert f(h) == [3]", "ok 1/1"),
    ("def f(g): return g(2)", "assert f(lambda x: x + 1) == 2", "failed 0/1"),
    ("def f(g): return 2", "y = 1\nassert f(lambda x: x + y) == 2", "invalid_tests 0/1"),
    ("def f(g): return g(1)", "assert f(max) == 1", "invalid_tests 0/1"),
    ("def g(x): return x + 1\ndef f(g): return g(1)", "assert f(g) == 2", "ok 1/1"),
    ("def f(x): return x", "def test_f():\n    f(1)", "no_tests 0/0"),
    # a wrong program stays in the count
    (NOTHING, "for a, b in zip(f(3), [0, 1, 2]):\n    assert a == b", "failed 0/1"),
    (NOTHING, "import pytest\nfor x in f(3):\n    with pytest.raises(ValueError):\n        x()", "failed 0/1"),
    (THUNK, "assert f(1, 2) == 3\nassert f(1, 2) == f(2, 1)", "failed 0/2"),
    ("def f(x): raise ValueError", SET_UP, "failed 0/1"),
    # operators never ask an object that a test expects to be data, and never tell it what is expected
    *((YES, f"assert {test}", "failed 0/1") for test in ("5 in f(3)", "5 in Mean(3)", "f(1) < f(2)")),
    *((YES, f"assert abs({test}) < 1e-6", "failed 0/1") for test in ("f(3) - 1.5", "Mean(3) - 1.5", "f(3) - f(2)")),
    (YES, "a = f(1)\nb = f(2)\nassert a < b", "failed 0/1"),
    # exceptions of the program
    *((CLASSES, test, "ok 1/1") for test in (CAUGHT, CAUGHT.replace("A", "B"), WITH_RAISES, TEST_CASE)),
    *((f"A = {base}\ndef f(x): return x", CAUGHT, "failed 0/1") for base in ("Exception", "AssertionError")),
    ("class A(AssertionError): pass\ndef f(x): return x", CAUGHT, "failed 0/1"),
    ("class A(Exception): pass\nclass B(Exception): pass\ndef f(x): raise B", CAUGHT, "failed 0/1"),
    (CLASSES, "assert P(1).x == 1\nassert P(1) == (1,)", "ok 2/2"),
    # classes of the program
    (CLASSES, "assert (V(1) + V(2)).x == 3\nassert (-V(1)).x == -1", "ok 2/2"),
    (CLASSES, "assert isinstance(V(1), V)\nassert not isinstance(f(1), V)", "ok 2/2"),
    (CLASSES, "assert V(1) < V(2)", "invalid_tests 0/1"),
    (CLASSES, "class W(V):\n    pass\nassert W(1).x == 1", "invalid_tests 0/1"),
    (CLASSES, "from enum import *\nclass W(Enum):\n    R = 1\nassert f(1) == W.R.value", "ok 1/1"),
    (CLASSES, "assert issubclass(B, A) and not issubclass(V, A)\nassert issubclass(int, int)", "ok 2/2"),
    (CLASSES, "assert issubclass(B, Exception)", "invalid_tests 0/1"),
    (ORDERED, "from collections import OrderedDict as O\nassert f() == O(a=2, b=1)", "failed 0/1"),
    # pytest
    ("def f(x): return x", MANY, "ok 4/4"),
    ("def f(x): return 1", MANY, "failed 2/4"),
    ("def f(x): print(x)", "def test_f(capsys):\n    f(1)\n    assert capsys", "invalid_tests 0/1"),
    ("def f(x): return input()", PATCH, "invalid_tests 0/1"),
    # tests as a script, and what pytest does around them
    *(
        (f"def f(x): return {value}", test, end)
        for value, end in (("x", "ok 1/1"), ("-x", "failed 0/1"))
        for test in (
            *map(SCRIPT.format, ("test_f()", "import sys, pytest; sys.exit(pytest.main([__file__]))")),
            "def main():\n    assert f(1) == 1\nif __name__ == '__main__':\n    main()",
            "if '__main__' == __name__:\n    assert f(1) == 1",
            "import sys\nassert f(1) == 1\nsys.exit(0)",
            *(UNITTEST + f"unittest.main({given})" for given in ("", "argv=[''], exit=False")),
            SKIP + "def test_f():\n    assert f(1) == 1",
        )
    ),
    ("def f(x): return x", "import sys\nif f(1) != 2:\n    sys.exit(1)\nassert f(1) == 1", "failed 0/1"),
    ("def f(x): return x", SKIP, "no_tests 0/0"),
    ("def f(x): return x", SKIPPED_CASE, "no_tests 0/0"),
    ("def f(x): return x", SILENCED, "ok 1/1"),
    ("def f(x): return x", SKIP.replace("skip", "xfail") + TEST_CLASS, "ok 1/1"),
    ("def f(x): return x", RAISE_TEST + "def test_g():\n    assert f(1) == 1\n" + TEST_CLASS, "failed 2/3"),
    ("def f(x): return x", "import pytest\ndef test_g():\n    pytest.skip('no')\n" + TEST_CLASS, "ok 1/1"),
    *((f"def f(x): {do}", FAILS, end) for do, end in (("raise ValueError", "ok 1/1"), ("0", "failed 0/1"))),
    *(("def f(x): return x", test, "ok 1/1") for test in (SET_UPS, MODULE)),
    *(("def f(x): return [1, 2, 3]", test, "failed 0/1") for test in (SET_UPS, MODULE)),
    # exceptions keep their arguments and attributes
    (ERRORS, CODE, "ok 1/1"),
    (ERRORS.replace("= code", "= 0"), CODE, "failed 0/1"),
    # what an attribute holds stays the program's own, also where it came later than the tests read the attribute
    (GROWS, f"{GROWN}assert g.rows == [[2, 3]] and g.counts == {{1: {{2: 1, 3: 1}}}}", "ok 2/2"),
    (GROWS, f"{GROWN}r = g.rows\nr.append([7])\ng.put(1, 4)\nassert g.rows == r == [[2, 3, 4], [7]]", "ok 2/2"),
    (BY_KEY, "d = D()\nd['a'] = 1\nassert 'a' in d\ndel d['a']\nassert 'a' not in d", "ok 2/2"),
    ("def f(x): return x", "assert f.__name__ == 'f' and not f.__doc__\nassert f(1) == 1", "ok 2/2"),
    *(("def f(x): return 3", test, "invalid_tests 0/1") for test in ALONE),
    ("def f(x): return x", "import random\nrandom.seed(0)\nx = random.random()\nassert f(x) == x", "ok 1/1"),
    ("def f(x): return x", OPTIONAL, "ok 1/1"),
    ("class Fs:\n    def exists(self, p): return True", "assert Fs().exists('x')", "ok 1/1"),
    # what a program returns may be iterated, entered and awaited
    ("def f():\n    yield from (1, 2)", "g = f()\nassert next(g) == 1", "ok 1/1 trusted"),
    ("def f():\n    yield 1", "g = f()\nassert next(g, 0) == 1\nassert next(g, None) is None", "ok 2/2 trusted"),
    (ENTERS.format(1), ENTERED, "ok 1/1 trusted"),
    (SWALLOWS, ENTERED, "failed 0/1 trusted"),
    ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 1", RAN, "ok 1/1 trusted"),
    ("async def f(x):\n    return x", TOGETHER, "ok 2/2 trusted"),
    # but these bring no object that is equal to everything
    (EQUAL + "def f():\n    yield E()", "assert next(f()) == 1", "failed 0/1"),
    (EQUAL + ENTERS.format("E()"), ENTERED, "failed 0/1"),
    (EQUAL + "async def f():\n    return E()", RAN, "failed 0/1"),
    ("class coroutine(int):\n    __eq__ = lambda s, o: True\nf = coroutine", RAN, "failed 0/1"),
    # an array equals what it equals in Python
    *((f"{NUMPY}[1, 2])", f"assert {test}", "ok 1/1") for test in ("f().tolist() == [1, 2]", "list(f()) == [1, 2]")),
    *((f"{NUMPY}[1, 2])", test, "failed 0/1") for test in ("assert f() == [1, 2]", "x = f()\nassert x == [1, 2]")),
    (f"{NUMPY}[1.0, 2])", "import numpy\nassert numpy.allclose(f(), [1, 2])\nassert f().dtype == float", "ok 2/2"),
    (f"{NUMPY}[1, 2])", "import numpy as np\nassert (f() == np.array([1, 2])).all()", "ok 1/1"),
    # what judges is not the program's
    ("def isclose(*a, **k): return True\ndef f(): return 0", "assert isclose(f(), 3.14)", "failed 0/1 trusted"),
    ("EXPECTED = 0\ndef f(): return 0", "assert f() == EXPECTED", "ok 1/1 distrusted"),
    ("def near(a, b): return True\ndef f(): return 0", "assert near(f(), 3.14)", "ok 1/1 distrusted"),
    (CLASSES, "v = V(1)\nassert v.x == 1\nassert 1 in v", "ok 2/2 distrusted"),
    ("def gcd(a, b): return a if not b else gcd(b, a % b)", "assert gcd(gcd(12, 8), 6) == 2", "ok 1/1 trusted"),
    (SUM, "assert sum(1, 2) == 3\nassert abs(sum(1, -3) + 2) < 1e-9", "ok 2/2"),
    (SUM, [{"args": [1, 2], "expected": 3, "function": "sum"}], "ok 1/1"),
    (LIE, "assert sum([1, 2]) == 3", "failed 0/1"),
    ("def max(x): return 2\ndef min(x): return 2", "assert max([2, 1]) == 2\nassert min([2, 1]) == 1", "failed 1/2"),
    ("def gcd(a, b): return 0", "assert gcd(gcd(12, 8), 6) == 2", "failed 0/1"),
    ("max = 5\ndef f(x): return x", "assert max(f(1), 0) == 1", "ok 1/1"),
    # what judges is not the program's: with the result in a variable, too
    ("def f(x): return 0\ndef sorted(x): return [1]", "r = f(1)\nassert sorted([r]) == [1]", "failed 0/1"),
    ("def sum(x): return 0\ndef range(n): return []", "for i in range(1, 3):\n    assert sum([i]) == i", "failed 0/2"),
    # lists that the program changes are those of the tests, wherever these hold them
    ("def f(x): x[0].append(1)", "a = [0]\nf([a])\nassert a == [0, 1]", "ok"),
    ("def f(x): x.sort()", "a, b = [1], [0]\nr = [a, b]\nf(r)\nassert r == [b, a] and a == [1] and r[1] is a", "ok"),
    ("def f(a, b):\n    a.append(1)\n    return b", "x = [0]\nassert f(x, x) == [0, 1]", "ok"),
    ("def f(x): return x", "a = [0]\nassert f(a) is a", "ok"),
    ("def f(x): return list(x)", "a = [0]\nassert f(a) is a", "failed"),
    (BOX, "b = B()\nb.rows[0][0] = 3\nassert b.total() == 3\nb.rows.append([4])\nassert b.total() == 7", "ok"),
    (BOX + "\n    def add(self): self.rows += [4]", "b = B()\nr = b.rows\nb.add()\nassert r == [[0], 4]", "ok"),
    ("def f(x): x.append(x)", "a = [0]\nf(a)\nassert a[1] is a", "ok"),
    ("def f(x): x['a'] = 1", "from collections import *\nd = defaultdict(int)\nf(d)\nassert d['a'] == 1", "ok"),
    # which object it is, only the program knows
    (COLOURS, "assert f(1) is C.R", "invalid_tests"),
    (COLOURS, "assert f(1) is not None and f(2).name == 'G'", "ok"),
    ("import numpy as np\ndef f(x): return np.bool_(x)", "assert f(1)\nassert f(0) == False", "ok"),
    ("import numpy as np\ndef f(x): return np.bool_(x)", "assert f(1) is True", "failed"),
    # the program orders its objects; what is in them, the tests see
    (ITEMS, SHOP + "[x.name for x in sorted(s.items())] == ['a', 'b']", "ok 1/1 distrusted"),
    (ITEMS, SHOP + "sorted(s.items(), key=lambda x: x.name)[0].price == 1", "ok 1/1 trusted"),
    (ITEMS, SHOP + "s.all.sort() is None and s.items()[0].name == 'a'", "ok 1/1 distrusted"),
    (LIARS, SHOP + "sorted(s.items()) == [1, 2]", "failed 0/1 distrusted"),
    (LIARS, SHOP + "s.items()[0] < s.items()[1]", "failed 0/1 trusted"),
    # what it says of itself
    (ITEMS, SHOP + "type(s).__name__ == 'Shop' == s.__class__.__name__", "ok 1/1 trusted"),
    (ITEMS, SHOP + "type(s).__name__ == 'Item'", "failed 0/1 trusted"),
    (ITEMS, SHOP + "vars(s.items()[0]) == {'name': 'b', 'price': 2} == s.items()[0].__dict__", "ok 1/1 trusted"),
    (ITEMS, SHOP + "'sell' in dir(s) and hasattr(s, 'all') and not hasattr(s, 'none')", "ok 1/1 trusted"),
    (ITEMS, SHOP + "s.sell.__code__.co_argcount == 3 and s.sell.__defaults__ == (1,)", "ok 1/1 trusted"),
    (ITEMS, SHOP + "{s: 1}[s] == 1 and type(3) is int", "ok 1/1 trusted"),
    # what it alone could say
    (ITEMS, SHOP + "len(set(s.items())) == 2", "invalid_tests 0/1 trusted"),
    (ITEMS + "    def set(self): return {*self.all}\n", SHOP + "len(s.set()) == 2", "ok 1/1 trusted"),
    (ITEMS, SHOP + "type(s) is Shop", "invalid_tests 0/1 trusted"),
    (ITEMS, SHOP + "inspect.signature(s.sell).parameters", "invalid_tests 0/1 trusted"),
]


@pytest.mark.parametrize(("code", "tests", "expected"), VERDICTS)
def test_verdicts(sandbox, code, tests, expected):
    name = re.search(r"def (\w+)", code)[1] if "candidate" in tests else None
    verdict = sandbox.run_code(code, tests, entry_point=name, timeout_s=30, memory_mb=2048)
    said = f"{verdict.status} {verdict.passed}/{verdict.total} {'trusted' if verdict.trusted else 'distrusted'}"
    assert said.startswith(expected), verdict
    assert verdict.usable == (verdict.status not in ("invalid_tests", "no_tests"))
    assert verdict.status != "invalid_tests" or re.search("try |only plain data|No module named", verdict.detail)


def test_the_time_for_all_tests_grows_with_their_number(sandbox):
    code = "import time\ntime.sleep(0.3)\nprint(1)"
    verdict = sandbox.run_code(code, [{"input": "", "output": "1"}] * 8, timeout_s=0.8)
    assert verdict.all_passed
    verdict = sandbox.run_code(code, [{"input": "", "output": "1"}] * 8, timeout_s=0.8, total_timeout_s=1.0)
    assert verdict.status == "timeout" and "all tests together took more than 1.0 s" in verdict.detail


@pytest.mark.parametrize("tests", [[([1], 1)], [{"input": "", "output": "1"}]])
def test_the_time_starts_with_the_program(sandbox, tests):
    box = sandbox.Sandbox()
    box.ready()
    server = box.server.pid
    pids = [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(2.0, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids]).start()
    limits = {"entry_point": "f", "timeout_s": 1.5, "total_timeout_s": 1.5, "sandbox": box}
    verdict = sandbox.run_code("def f(x):\n    return x\nprint(1)", tests, **limits)
    box.stop()
    assert verdict.all_passed and verdict.wall_s > 1.5, verdict


@pytest.mark.parametrize("tests", ["def check(candidate):\n    assert candidate(1) == 1", "stdin"])
def test_a_server_killed_during_a_run_costs_no_score(sandbox, tests):
    box = sandbox.Sandbox()
    sandbox.run_code("def f(x): return x", [([1], 1)], entry_point="f", sandbox=box)
    code = "import time\ntime.sleep(0.5)\ndef f(x):\n    return x\nprint(1)\n"
    tests = [{"input": "", "output": "1"}] if tests == "stdin" else tests
    threading.Timer(0.2, box.server.kill).start()
    assert sandbox.run_code(code, tests, entry_point="f", sandbox=box).all_passed
    box.stop()


# ------------------------------------------------------------------------------------------- names of built-ins
NOTHING_DEFINED = [
    ("assert sum([1, 2]) == 3", None),
    ("assert abs(sum([1, 2]) - 3) < 1e-6", None),
    ("assert len([1]) == 1\nassert f(1) == 1", None),
    ("def test_it():\n    assert sum([1, 2]) == 3", None),
    ("import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertTrue(True)", None),
    ("def check(candidate):\n    try:\n        candidate(1)\n    except Exception:\n        assert True", "f"),
    ([{"args": [[1, 2]], "expected": 3}], "sum"),
]


@pytest.mark.parametrize(("tests", "entry_point"), NOTHING_DEFINED)
def test_a_program_that_defines_nothing_passes_nothing(sandbox, tests, entry_point):
    for code in ("import math", "def other():\n    return 3"):
        verdict = sandbox.run_code(code, tests, entry_point=entry_point)
        assert verdict.passed == 0 and not verdict.all_passed and verdict.status != "ok", verdict
        assert not any(result["passed"] for result in verdict.results)


# ------------------------------------------------------------------------------------------- the caller's own work
PRIME = 2**61 - 1  # integers that differ by it share a hash


def tagged(kind, *parts):
    """A value as it travels."""
    return f'{{"t": "{kind}", "v": [{", ".join(parts)}]}}'


def large(digits):
    """An integer as it travels."""
    return f'{{"t": "int", "v": "{digits}"}}'


def long_key(n):
    return tagged("tuple", *["1"] * 20_000, large(f"{PRIME * n:x}"))


HOSTILE = {
    "a fraction to reduce": tagged("Fraction", large(f"{3**1_200_000:x}"), large(f"{7**690_000:x}")),
    "a fraction of a decimal": tagged("Fraction", tagged("Decimal", '"1e99999999"')),
    "a decimal of an integer": tagged("Decimal", large("f" * 2_000_000)),
    "a decimal beside an integer": tagged("set", tagged("Decimal", '"1"'), large(f"{1 + (PRIME << 8_000_000):x}")),
    "a range to divide": tagged("range", "0", large(f"{3**1_200_000:x}"), large(f"{7**400_000:x}")),
    "long keys that collide": tagged("set", *map(long_key, range(1, 41))),
    "integers that collide": tagged("set", *(large(f"{PRIME * n:x}") for n in range(1, 60_000))),
    "digits": "9" * 2_000_000,
    "lists in lists": "[" * 900_000 + "]" * 900_000,
    "many lists": "[" + "[], " * 200_000 + "0]",
    "a key to make text of": tagged("dict", f"[{large('f' * 1_000_000)}, 1]"),
}
REPLY = attacks.complete("def f():\n    reply(DATA)\n", called=False)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_program_returns_costs_the_caller_little(sandbox, name):
    code = REPLY.replace("DATA", repr(HOSTILE[name].encode()))
    tests = [{"args": [], "expected": {"1": 1}}]
    start = time.process_time(), time.monotonic()
    verdict = sandbox.run_code(code, tests, entry_point="f", timeout_s=3, total_timeout_s=3)
    used = time.process_time() - start[0]
    assert not verdict.all_passed and len(verdict.detail) <= 1000
    assert used < 4, f"{used:.1f} s of the caller's processor time"
    assert time.monotonic() - start[1] < 10  # also where the judge would take longer


@pytest.mark.parametrize("printed", ["'1 ' * 3000000", "'\\n' * 6000000 + '1'"])
def test_what_a_program_prints_costs_the_caller_little(sandbox, printed):
    start = time.process_time()
    verdict = sandbox.run_code(f"print({printed})", [{"input": "", "output": "1 1\n1 1"}], timeout_s=20)
    assert not verdict.all_passed and time.process_time() - start < 4


# ------------------------------------------------------------------------------------------- limits
def test_a_batch_keeps_its_order_and_may_be_empty(sandbox):
    jobs = [{"code": f"import time\ndef f():\n    time.sleep({s})\n    return {s}"} for s in (0.3, 0, 0.2, 0.1)]
    same = {"tests": [([], 0), ([], 0.2)], "entry_point": "f"}
    assert [verdict.passed for verdict in sandbox.run_many([job | same for job in jobs], workers=4)] == [0, 1, 1, 0]
    assert sandbox.run_many([]) == []


def test_a_result_of_two_megabytes_passes(sandbox):
    numbers = [{"args": [200_000], "expected": list(range(200_000))}] * 2
    code = "def f(n): return list(range(n))"
    assert sandbox.run_code(code, numbers, entry_point="f", timeout_s=20).all_passed
    changed = [{"args": [200_000], "expected": [*range(199_999), 0]}]
    assert not sandbox.run_code(code, changed, entry_point="f", timeout_s=20).passed
    printed = [{"input": "", "output": "x" * (2 << 20)}]
    assert sandbox.run_code("print('x' * (2 << 20))", printed, timeout_s=20).all_passed
    assert sandbox.run_code("print('x' * (2 << 20))", printed, output_mb=1, timeout_s=20).status == "output_limit"


@pytest.mark.parametrize(("piece", "disable"), [(1000, []), (8 << 20, ["mount"])])
def test_memory_is_never_more_than_was_given(sandbox, piece, disable):
    code = (
        "def f(piece):\n    got = []\n    try:\n        while True:\n            got.append(bytearray(piece))\n"
        "    except MemoryError:\n        return 64 * 0.7 < len(got) * piece / 2 ** 20 <= 64\n"
    )
    box = sandbox.Sandbox(disable=disable)
    verdict = sandbox.run_code(code, [([piece], True)], entry_point="f", memory_mb=64, sandbox=box, timeout_s=20)
    box.stop()
    assert verdict.all_passed, verdict


FILL = """
import os, time
def f(files, folder, wait):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for i in range(files):
        with open(f"x{i}", "wb") as file:
            file.write(b"x" * (1 << 20))
    time.sleep(wait)
    return 1
"""


@pytest.mark.parametrize(("files", "folder", "status"), [(30, ".", "ok"), (90, "a/b/c", "bad")])
def test_the_folder_has_a_limit_in_total_without_a_file_system_of_its_own(sandbox, files, folder, status):
    box = sandbox.Sandbox(disable=["mount"])
    tests = [([files, folder, 0.2 if status == "ok" else 15], 1)]
    verdict = sandbox.run_code(FILL, tests, entry_point="f", timeout_s=20, sandbox=box)
    box.stop()
    assert verdict.status == (status if status == "ok" else "output_limit"), verdict
    assert status == "ok" or "64 MiB, or 4096 files and folders, in its folder" in verdict.detail


def test_a_folder_too_deep_for_a_path_is_too_heavy_and_is_removed(sandbox, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(25):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    assert sandbox.weight(str(tmp_path)) > sandbox.SCRATCH_BYTES
    sandbox.remove_tree(str(tmp_path / ("d" * 200)))
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_folders_without_end_cost_the_programs_beside_it_nothing(sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where it makes its folders
    box = sandbox.Sandbox(disable=["mount"])
    endless = "import os\ndef f(n=0):\n    while True:\n        os.makedirs(f'{n}' + '/d' * 50)\n        n += 1\n"
    base = {"tests": [([], 1)], "entry_point": "f", "timeout_s": 20, "sandbox": box}
    jobs = [base | {"code": endless}, base | {"code": "def f():\n    return 1"}] * 2
    verdicts = sandbox.run_many(jobs, workers=4)
    box.stop()
    assert [v.status for v in verdicts[1::2]] == ["ok"] * 2
    assert {v.status for v in verdicts[::2]} <= {"output_limit", "timeout", "error"}, verdicts[::2]
    assert not list(tmp_path.iterdir())


VIEWS = [
    ("{1: 2}.keys()", "got = f()\nassert got == {1} and list(got) == [1] and 1 in got"),
    ("{3: 1, 1: 2}.keys()", "assert list(f()) == [3, 1]"),
    ("{1: 2}.items()", "assert f() == {(1, 2)}"),
    ("{3: 1, 1: 2}.values()", "assert list(f()) == [1, 2]"),
    ("memoryview(b'ab')", "assert f() == b'ab'"),
    ("collections.UserDict({1: 2})", "assert f() == {1: 2}"),
    ("types.MappingProxyType({1: 2})", "assert f() == {1: 2}"),
    ("collections.Counter('a1a')", "assert f().most_common(1) == [('a', 2)] and f()['1'] == 1"),
    ("collections.OrderedDict({1: 2, 3: 4})", "assert f().popitem() == (3, 4) and list(f()) == [1, 3]"),
]


@pytest.mark.parametrize(("value", "test"), VIEWS)
def test_what_equals_in_python_equals_here(sandbox, value, test):
    code = f"import collections, types\ndef f():\n    return {value}\n"
    exec(code + test, {})
    assert sandbox.run_code(code, test).all_passed
    assert not sandbox.run_code(code.replace("1", "7").replace("ab", "cd"), test).all_passed


def test_a_test_with_a_long_number_works(sandbox):
    digits = "1" + "0" * 5000
    assert sandbox.run_code("def f(n):\n    return 10 ** n", f"assert f(5000) == {digits}").all_passed
    assert not sandbox.run_code("def f(n):\n    return 10 ** n + 1", f"assert f(5000) == {digits}").passed
    verdict = sandbox.run_code("def f(n):\n    return 10 ** n + 1", [([5000], 10**5000)], entry_point="f")
    assert verdict.status == "failed" and "bits" in verdict.detail


def test_a_file_with_a_program_gets_its_verdict(tmp_path):
    (tmp_path / "tests.py").write_text("assert f(1) == 1")
    for code, status in (("def f(x):\n    return x", 0), ("def f(x):\n    return 0", 1)):
        (tmp_path / "program.py").write_text(code)
        command = [sys.executable, str(SCRIPTS / "sandbox.py"), "--code", "program.py", "--tests", "tests.py"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert (done.returncode, json.loads(done.stdout)["all_passed"]) == (status, not status), done.stderr


# ------------------------------------------------------------------------------------------------ classes in the setup
COLOUR = "from enum import Enum\nclass C(Enum):\n    R = 1\n    G = 2\n"
PAIR = """
from dataclasses import dataclass
@dataclass
class P:
    x: int = 0
    def equals(self, other): return self.x == other.x
    @property
    def double(self): return 2 * self.x
"""
NODE = """
class N:
    def __init__(self, val, next=None): self.val, self.next = val, next
def made(values):
    head = None
    for value in reversed(values): head = N(value, head)
    return head
def values(node):
    found = []
    while node: found, node = [*found, node.val], node.next
    return found
"""
REVERSED = """
def f(node):
    last = None
    while node: node.next, last, node = last, node, node.next
    return last
"""
FORGETS = REVERSED.replace("last, node, node", "None, node, node")
LOOPS = """
def f(node):
    seen = []
    while node and node not in seen: seen, node = [*seen, node], node.next
    return node
"""
LIAR = COLOUR + "    __eq__ = lambda *_: True\n    __hash__ = None\ndef f(c): return C.R"
FIVE = "class P:\n    x = 5\n    __eq__ = lambda *_: True\ndef f(p): return P()"
SLOTS = PAIR.replace("@dataclass", "@dataclass(slots=True)")
NEXT = "class T:\n    def __init__(self, x): self.x = x\ndef f(t): return t.next.x"
CYCLE = "n = made([1, 2, 3])\nassert f(n) is None\nn.next.next.next = n.next\nassert f(n) is n.next"


@pytest.mark.parametrize(
    ("setup", "code", "tests", "status"),
    [
        (COLOUR, "def f(c): return C.G if c is C.R else C.R", "assert f(C.R) == C.G and f(C.G) is C.R", "ok"),
        (COLOUR, "def f(c): return c", "assert f(C.R) == C.G", "failed"),
        (COLOUR.replace("Enum", "IntEnum"), "def f(c): return c.name", "assert f(C.G) == 'G'", "ok"),
        (COLOUR, "def f(c): return {c: [c.name, c.value]}", "assert f(C.G) == {C.G: ['G', 2]}", "ok"),
        (PAIR, "def f(p): return P(p.x + 1)", "assert f(P(1)) == P(2) and f(P(1)).double == 4", "ok"),
        (PAIR, "def f(p): p.x += 1", "p = P(1)\nf(p)\nassert p.x == 2\nf(p)\nassert p.x == 3", "ok"),
        (PAIR, "def f(ps): ps.sort(key=lambda p: p.x)", "a = [P(2), P(1)]\nf(a)\nassert a == [P(1), P(2)]", "ok"),
        (PAIR, "def f(p): return P(p.x)", "p = P(1)\nassert f(p) is p", "failed"),
        (PAIR, "k = []\ndef f(p):\n    k.append(p)\n    return k[0]", "p = P(1)\nf(p)\nassert f(P(2)) is p", "ok"),
        (NODE, REVERSED, "assert len(values(f(made(range(3000))))) == 3000", "ok"),
        (NODE, FORGETS, "assert values(f(made([1, 2]))) == [2, 1]", "failed"),
        (NODE, LOOPS, CYCLE, "ok"),
        # what the program says of its objects never counts
        (PAIR, "class Q:\n    __eq__ = lambda *_: True\ndef f(p): return Q()", "assert f(P(1)) == P(2)", "failed"),
        (PAIR, FIVE, "assert f(P(1)) == P(2)", "failed"),
        (PAIR, "def f(p):\n    p.equals = lambda _: True\n    return p", "assert f(P(1)).equals(P(2))", "failed"),
        (PAIR, "def f(p):\n    vars(p)['double'] = 4\n    return p", "assert f(P(1)).double == 4", "failed"),
        (COLOUR, LIAR, "assert f(1) == C.G", "failed"),
        # objects that are more than their attributes stay refused
        (SLOTS, "def f(p): return p.x", "assert f(P(1)) == 1", "invalid_tests"),
        # the setup makes objects of the program's class
        ("a = T(1)\na.next = T(2)", NEXT, "assert f(a) == 2", "ok"),
    ],
)
def test_objects_of_a_class_in_setup(sandbox, setup, code, tests, status):
    program = sandbox.program_of(f"```python\n{code}\n```", tests, "f", setup, f"Use this:\n{setup}")
    assert sandbox.run_code(program, tests, setup=setup, entry_point="f").status == status


TWO_SUM = "class Solution:\n    def add(self, nums: List[int], k: int) -> int: return deque([sum(nums) + k])[0]"


@pytest.mark.parametrize(
    ("code", "tests", "entry_point"),
    [
        (TWO_SUM, [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}], "add"),
        (TWO_SUM, [{"input": [[1, 2], 3], "output": 6}], "add"),
        (TWO_SUM, [{"input": {"k": 3, "nums": [1, 2]}, "output": 6}], "add"),
        (TWO_SUM, "def check(candidate):\n    assert candidate(nums=[1, 2], k=3) == 6", "Solution().add"),
        (TWO_SUM, "def check(candidate):\n    assert candidate(k=3, nums=[1, 2]) == 6", "Solution.add"),
        ("def f(x): return 2 * x + 2", [{"input": 2, "output": 6}], "f"),
        ("print(int(input()) + int(input()) + 3)", {"input": ["1\n2\n"], "output": ["6"]}, None),
        ("print(int(input()) + int(input()) + 3)", [{"input": ["1", "2"], "output": "6"}], None),
    ],
)
def test_forms_of_inputs_and_outputs(sandbox, code, tests, entry_point):
    program = sandbox.program_of(f"```python\n{code}\n```", tests, entry_point)
    wrong = program.replace("3", "4").replace("+ 2", "+ 3").replace("+ k", "- k")
    assert sandbox.run_code(program, tests, entry_point=entry_point).all_passed
    assert not sandbox.run_code(wrong, tests, entry_point=entry_point).all_passed
