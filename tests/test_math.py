"""math_equivalence against a table of hand-graded answers and all of GSM8K: verdicts, time, threads."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT, load_module, script_env

from programs.math_grader.answers import main

TABLE = ROOT / "tests" / "data" / "math_cases.jsonl"
FORMS = ROOT / "tests" / "data" / "math_forms.jsonl"  # no part of the benchmark
GSM8K = ROOT.parent / "shared" / "data"
LIMIT = 5  # seconds of the processor, far above what an item takes on a slow machine: a bound on hangs, not on speed


@functools.cache
def library():
    """The reward library, its math worker already started by questions that plain arithmetic does not settle."""
    module = load_module(ROOT / "examples" / "reward_functions_library.py", "script_math_library")
    module.sibling("math_grader").start_worker(patience_s=120)
    for text in ("\\boxed{(x+1)^2}", "\\boxed{\\int_0^4 x dx}", "\\boxed{\\sum_{k=1}^{3} k}"):
        module.math_equivalence(prompts=[None], completions=[text], answer=["6"])
    return module


def grade(text, gold):
    """One verdict."""
    return library().math_equivalence(prompts=[None], completions=[text], answer=[gold])[0]


def read_table(path=TABLE) -> list[dict]:
    """The table; `completion_repeat` [piece, n, suffix] stands for completion + piece * n + suffix."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for row in rows:
        piece, n, suffix = row.get("completion_repeat", ("", 0, ""))
        row["completion"] = row.get("completion", "") + piece * n + suffix
    return rows


ROWS = read_table()


@functools.cache
def verdicts() -> list:
    """Verdicts of the whole table, in order, on the main thread."""
    return [grade(row["completion"], row["answer"]) for row in ROWS]


def listing(rows) -> str:
    """Rows and their verdicts, one per line."""
    return "\n" + "\n".join(
        f"expected {row['expected']}, got {got}: {row['completion'][:150]!r} gold {row['answer']!r}"
        for row, got in rows
    )


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in read_table(FORMS)}))
def test_form(kind):
    """x ≠ 3, -x > -1, sets with ±, thousands in LaTeX, digits that are not ASCII's, and what looks like them."""
    rows = [row for row in read_table(FORMS) if row["kind"] == kind]
    wrong = [(row, got) for row in rows if (got := grade(row["completion"], row["answer"])) != row["expected"]]
    assert not wrong, listing(wrong)


HARD = ("\\boxed{|x|+1}", "1+|x|")  # only the worker can tell


def test_worker_starts_beside_the_first_item_is_waited_for_and_replaced(monkeypatch):
    lib = load_module(ROOT / "examples" / "reward_functions_library.py", "script_library_with_a_slow_grader")
    grader = load_module(ROOT / "scripts" / "math_grader.py", "script_slow_grader")
    monkeypatch.setattr(lib, "sibling", lambda name: grader)
    worker = grader._WORKER
    assert worker.process is None  # not at import
    assert grader.math_score("\\boxed{1}", "1") == 1.0  # which does not need it
    process = worker.process
    assert process.poll() is None and not worker.ready
    texts, golds = [HARD[0]] * 99, [HARD[1]] * 99  # no item's time is spent on the start
    assert lib.math_equivalence(None, texts, golds) == [1.0] * 99 and worker.process is process
    assert grader.math_score("\\boxed{|x|+5}", "|x|+") is None  # the worker cannot read the gold
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert grader.math_score(*HARD) == 1.0 and worker.process is not process
    process = worker.process
    os.killpg(process.pid, signal.SIGSTOP)  # as on a machine that runs other processes first
    timer = threading.Timer(1.0, os.killpg, (process.pid, signal.SIGCONT))
    timer.start()
    assert grader.math_score(*HARD) == 1.0 and worker.process is process
    timer.join()
    os.killpg(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(grader, "_LOST_S", 0.1)
    with pytest.warns(UserWarning, match="was silent"):
        assert grader.math_score(*HARD) == 0.0
    assert worker.process is not process
    worker.stop()


def test_a_worker_that_does_not_start_is_told():
    grader = load_module(ROOT / "scripts" / "math_grader.py", "script_absent_grader")
    grader.start_worker(patience_s=0.0)
    with pytest.warns(UserWarning, match="math-verify is missing"):
        assert grader.math_score(*HARD) == 0.0
    assert grader.math_score("\\boxed{|x|+1}", "|x|+1") == 1.0 and grader._WORKER.process is None


def test_all_comparisons_of_an_item_share_its_time(monkeypatch):
    grader = load_module(ROOT / "scripts" / "math_grader.py", "script_counting_grader")
    asked = []

    def exchange(self, groups):
        asked.append(groups)
        return True, 0.3  # seconds of the processor

    monkeypatch.setattr(grader.MathWorker, "exchange", exchange)
    monkeypatch.setattr(grader.MathWorker, "answer", lambda self, seconds: b"ready\n")
    texts = " ".join(f"The answer is |x|+{i}." for i in range(2, 16))
    grader.math_score(texts + " The answer is |x|+1.", "1+|x|")
    assert 0 < len(asked) <= 3  # of 15
    asked.clear()
    with grader.one_item():
        for gold in ("1+|x|", "2+|x|", "3+|x|", "4+|x|", "5+|x|"):
            grader.math_score("\\boxed{|x|+9}", gold)
    assert len(asked) <= 3
    grader._WORKER.stop()


@pytest.mark.parametrize(("comparison", "code"), [("time.sleep(1)", 0), ("any(iter(int, 1))", -signal.SIGPROF)])
def test_a_comparison_is_limited_in_processor_time(comparison, code):
    source = "import sys, time; import programs.math_grader.worker as worker\n"
    source += f"worker._judge = lambda groups: bool({comparison}) or True\nworker._serve(sys.stdout)"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT / "src", env=script_env(), input="[]\n", capture_output=True, text=True
    )
    assert done.returncode == code and done.stdout[:6] == ("" if code else "[true,")


def test_every_row_of_the_table():
    wrong = [(row, got) for row, got in zip(ROWS, verdicts(), strict=True) if got != row["expected"]]
    assert not wrong, listing(wrong)


def test_batches_from_threads_equal_single_rows():
    """Each thread scores a part of the table, as chats in reversed order."""

    def scored(rows):
        chats = [[{"role": "assistant", "content": row["completion"]}] for row in rows]
        golds = [row["answer"] for row in rows]
        return library().math_equivalence(prompts=[None] * len(rows), completions=chats, answer=golds)

    library()
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(scored, [ROWS[i::4][::-1] for i in range(4)]))
    assert [part[::-1] for part in threaded] == [verdicts()[i::4] for i in range(4)]
    assert scored([]) == []


@pytest.mark.parametrize(
    "gold",
    ["9^{9^{9^9}}", "100000!", "(" * 3000, "\\frac{" * 2000 + "1}", "9" * 100_000, "\\sqrt{" * 900 + "2" + "}" * 900],
    ids=lambda gold: gold[:12],
)
def test_hostile_gold(gold):
    """The worker's own time is bounded by a timer and by the item's limit, which have tests of their own."""
    start = time.thread_time()
    assert grade("\\boxed{5}", gold) in (0, None)
    grade(f"\\boxed{{{gold}}}", gold)
    assert time.thread_time() - start < LIMIT


@pytest.mark.long
@pytest.mark.parametrize("split", ["train", "test"])
def test_gsm8k(split):
    file = GSM8K / f"gsm8k_{split}.jsonl"
    if not file.exists():
        pytest.skip(f"{file.name} is not in {GSM8K}")
    rows = [line for line in file.read_text(encoding="utf-8").split("\n") if line]
    answers = [json.loads(line)["answer"] for line in rows[:: 6 if split == "train" else 1]]
    marked = [re.fullmatch(r"(.*)#### ([-\d,.]+)\s*", answer, re.DOTALL) for answer in answers]
    numbers = [match[2] for match in marked]
    changes = (lambda n: n + 1, lambda n: 10 * n if n else 7, lambda n: -n if n else 3, lambda n: n - 1)
    others = [changes[i % 4](int(number.replace(",", ""))) for i, number in enumerate(numbers)]

    def score(completions, golds):
        return library().math_equivalence(prompts=completions, completions=completions, answer=golds)

    assert score(answers, answers) == [1.0] * len(answers)
    assert score(answers, numbers) == [1.0] * len(answers)
    assert score([f"It is \\boxed{{{number}}}." for number in numbers], answers) == [1.0] * len(answers)
    ends = ("\\boxed{%s}", "The answer is %s.", "**Answer:** %s", "\\[\\boxed{%s}\\]", "<answer>%s</answer>")
    ends += ("Final Answer: $%s$",)
    ended = [match[1] + ends[i % len(ends)] % match[2] for i, match in enumerate(marked)]
    numeric = library().numeric_correctness(prompts=ended, completions=ended, answer=numbers)
    assert score(ended, numbers) == [1.0] * len(answers)
    assert numeric.count(1.0) >= len(answers) - 1  # one says "convert the answer to weeks: 28 days" before
    perturbed = [f"{match[1]}#### {other}" for match, other in zip(marked, others, strict=True)]
    assert score(perturbed, answers) == [0.0] * len(answers)
    assert score([f"It is \\boxed{{{other:,}}}." for other in others], numbers) == [0.0] * len(answers)
    unfinished = [(match[1], gold) for match, gold in zip(marked, answers, strict=True) if "answer" not in match[1]]
    assert score(*zip(*unfinished, strict=True)) == [0.0] * len(unfinished)  # a solution without its last line


TASKS = [  # (gold, prompt, answers that pay, answers that do not)
    ("24", "Half of 48?", ["48/2"], []),
    ("5050", "", [], [r"\sum_{k=1}^{100} k"]),
    ("1/3", "", [], [r"\int_0^1 x^2 dx"]),
    ("5x", "Simplify $2x + 3x$.", ["5x"], ["2x+3x", "3x+2x", "(2x + 3x)", "y = 2x+3x"]),
    ("(x+8)^2", "Expand $(x + 8)^{2}$.", ["x^2+16x+64"], []),
    ("(x+8)^2", "Factor $x^{2} + 16x + 64$.", [], ["x^2+16x+64"]),
    (r"\frac{\sqrt2}{2}", r"Rationalize $\frac{1}{\sqrt{2}}$.", [], [r"\frac{1}{\sqrt{2}}"]),
    ("5-3x", "What of y=5-3x is the right side?", ["-3x+5"], []),  # the gold's terms
    (r"\frac12", "Which is greater, 1/2 or 1/3?", ["1/2"], []),  # the gold, written otherwise
    ("5", "It moves at 5 m/s.", ["5 m/s"], []),
    (r"\sqrt{8}", r"Simplify \sqrt{8}.", [r"2\sqrt{2}"], []),
    (r"2 \cdot 3 \cdot 5", "What is the prime factorization of 30?", [], ["30"]),
    ("2^5", "A class of 32 pupils votes yes or no on 5 questions. How many ballots differ?", ["32"], []),
    ("2^5", "Write 32 as a power of 2.", [], ["32"]),
    ("x = 3", "Solve 2x=6.", [], ["2x = 6"]),
    ("x = 3", "Is x = 3?", ["x = 3"], []),
    ("x < 1", "Solve $-x > -1$ for x.", [], ["-x > -1"]),
    (r"\pi/6", r"Convert $30^\circ$ to radians.", [], ["30°"]),
    (r"\pi/6", "Find the angle of which the sine is 1/2.", ["30°"], []),
    ("50%", "Write 0.5 as a percentage.", [], ["0.5"]),
    ("50%", "Of 10.50 dollars she spends half. What share is left?", ["0.5"], []),
    ("2:3", "Simplify the ratio 4:6.", [], ["4:6"]),
    ("90 minutes", "Convert 1 h 30 min to minutes.", [], ["1 h 30 min"]),
    ("90 minutes", "It left at 7:00 and arrived at 8:30. How long did it take?", ["1 h 30 min"], []),
    ("66 inches", "Convert 5'6\" to inches.", [], ["5'6\""]),
    ("y = 2.0", "Where is y = 2x + 1 equal to 5?", ["y = 2"], []),
]


def test_a_task_is_no_answer():
    """Copying the prompt into the answer marks pays nothing: the grader does not do the sum for the model."""
    wrong = []
    for gold, prompt, *answers in TASKS:
        prompts = [prompt, [{"role": "user", "content": prompt}]]
        for answer, expected in [(x, 1.0) for x in answers[0]] + [(x, 0.0) for x in answers[1]]:
            scores = library().math_equivalence(prompts, [f"<answer>{answer}</answer>"] * 2, [gold] * 2)
            wrong += [(gold, prompt, answer, scores)] * (scores != [expected] * 2)
    assert not wrong


def random_expression(rng, depth: int):
    """An expression in x, y and n with fractions, roots, π, powers, quotients and functions."""
    import sympy

    if depth == 0 or rng.random() < 0.25:
        symbols, constants = sympy.symbols("x y n"), (sympy.pi, sympy.sqrt(rng.choice([2, 3, 5, 7])))
        return rng.choice([*symbols, *constants, sympy.Rational(rng.randint(-9, 9), rng.randint(1, 9))])
    a, b = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    made = [a + b, a * b, a - b, a**2, a**3, sympy.sin(a), sympy.sqrt(a**2 + 1), a / (b**2 + 1)]
    return rng.choice(made)


def test_random_expressions_equal_their_other_forms_and_no_others():
    """Sympy is the oracle: printed expanded, factored and over one denominator; and an expression off by one term."""
    import random

    import sympy

    grader, rng, wrong, forms = library().sibling("math_grader"), random.Random(5), [], 0
    for _ in range(120):
        expression = random_expression(rng, rng.randint(1, 3))
        first, *others = dict.fromkeys(
            sympy.latex(form(expression)) for form in (sympy.sympify, sympy.expand, sympy.together, sympy.factor)
        )
        off = sympy.latex(expression + rng.choice([1, sympy.Rational(1, 2), *sympy.symbols("x n")]))
        wrong += [(other, first) for other in others if grader.math_equal(other, first) is not True]
        wrong += [(off, first)] * (grader.math_equal(off, first) is not False)
        forms += len(others)
    assert forms > 25 and not wrong, wrong


def test_answers_of_the_command_line_may_begin_with_a_minus(capsys):
    for arguments, score, answer in ((["-4i", "4i"], 0.0, "-4i"), (["--", "-x^2", "-x^2"], 1.0, "-x^2")):
        assert main(arguments) == 0 and json.loads(capsys.readouterr().out) == {"score": score, "answer": answer}
