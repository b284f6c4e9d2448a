"""The reward library: hand-computed scores, properties on arbitrary text, its contract, reward models, TRL."""

import asyncio
import doctest
import gc
import inspect
import json
import math
import pickle
import re
import string
import subprocess
import sys
import time
import warnings
from fractions import Fraction
from unittest.mock import Mock

import pytest
from conftest import ROOT, TINY_LM, load_module, script_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parts.foundation.messages import UserError
from parts.rewards.reward_forms import load_rewards

LIBRARY = ROOT / "examples" / "reward_functions_library.py"
lib = load_module(LIBRARY, "script_reward_library")

RX = "<reasoning>{}</reasoning>\n<answer>{}</answer>"
PY = "```python\n{}\n```"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def score(name, text, options=None, prompt=None, **columns):
    """The score of one text; columns are given as single values."""
    function = getattr(lib, name)
    function = function.configure(**options) if options else function
    prompts = None if prompt is None else [prompt]
    (value,) = function(prompts=prompts, completions=[text], **{c: [v] for c, v in columns.items()})
    return value


# ------------------------------------------------------------------------------------------------ by hand
NAMES = {"e": "exact_match", "n": "numeric_correctness", "c": "multiple_choice", "m": "math_equivalence", "g": "gsm8k"}
NAMES |= {"s": "squad_exact_match", "f": "squad_f1"}
STEPS_12 = [f"6 and 6.\n{end}" for end in ("So the answer is 12.", r"Thus the answer is $\boxed{12}$.")]
STEPS_12 += ["6 and 6.\nAnswer: 12 because 6+6=12"]
# functions by NAMES, whether they pay 1 (+) or 0 (-), the gold ¦ completions; ⏎ is a line break
ANSWERS = (ROOT / "tests" / "data" / "reward_answers.txt").read_text(encoding="utf-8")
MORE_ANSWERS = [  # (functions, golds that are tried in turn, completions that earn 1, that earn 0)
    ("e", "New York", [" New\n York "], []),
    ("e", "Caf\u00e9", ["Cafe\u0301"], ["Cafe"]),
    ("e", ["'x'", '"x"', "$x$", "“x”", "**x**"], ["x"], []),
    ("n", [2.5, "2 ½", r"2\frac{1}{2}"], ["2½", "2 ½", "2 1/2", "5/2", "2.5"], ["2"]),
    ("n", ["1.234.567", "1 234 567", "1'234'567"], ["1234567"], []),
    ("n", ["Rs. 500", 500], ["500", "C$500", "R$ 500", "CHF 500", "US$500"], []),
    ("c", ["Answer: A", "A. Vitamin C", "So, the answer is (A)."], ["A"], []),
    ("e", [[["NYC", "Zürich"], ["LA"]]], ["NYC", "Zürich", "LA"], []),
    ("e", "**", [], [""]),
    ("e", [[[1, 2]]], [], ["[1, 2]"]),
    ("e", [[[1, 2], [3, 4]]], ["[[1,2],[3,4]]", "[[1, 2], [3, 4]]"], ["[1, 2]"]),
    *[
        ("e", gold, [f"<answer>{gold}</answer>"], [f"<answer>{other}</answer>"])
        for gold, other in (("A*", "A"), ('5"', "5'"), ("__init__", "init"), ("*args", "args"), ("dogs'", "dogs"))
    ],
    ("n", [[["5"], ["6"]]], ["5"], []),
    ("n", 5, ["5千克", "5 miles", "5 fifth graders", "5 most days", "5 minimum"], ["3 4/2", "5亿" * 40]),
    ("n", -5, [f"{sign}5" for sign in "−–—﹣－"], []),
    ("n", 35000 * 10**12, [], ["3亿5000万"]),
    ("nmg", STEPS_12, ["The answer is 12."], []),
    ("g", "6 and 6\n#### 12", ["6 + 6 = 12\n#### 12"], []),
    ("m", [[[1, 2], [3, 4]]], [], [r"\boxed{[1, 2]}"]),
    ("m", [[(1, 2)]], [r"\boxed{(1,2)}"], []),
    ("m", [[[Fraction(1, 2), 1]]], [], [r"\boxed{1}"]),
    ("c", "B", [], ["A", "A or B", "B or C", "Berlin", "", "BB"]),
    ("c", 2, ["<answer>C: a cat</answer>"], []),
]


def answers() -> list[tuple]:
    """(functions, gold, completion, score) of both tables."""
    cases = []
    for line in ANSWERS.rstrip("\n").split("\n"):
        head, *texts = line.replace("⏎", "\n").split(" ¦ ")
        functions, _, gold = head.partition(" ")
        cases += [(functions[:-1], gold, text, float(functions[-1] == "+")) for text in texts if head[0] != "#"]
    for functions, golds, *texts in MORE_ANSWERS:
        for gold in golds if isinstance(golds, list) else [golds]:
            cases += [(functions, gold, text, 1.0 - i) for i in (0, 1) for text in texts[i]]
    return cases


@pytest.mark.parametrize("functions", sorted({case[0] for case in answers()}))
def test_answers_that_pay_and_that_do_not(functions):
    cases = [(NAMES[name], *case[1:]) for case in answers() if case[0] == functions for name in functions]
    wrong = [case for case in cases if score(case[0], case[2], answer=case[1]) != case[3]]
    assert not wrong


UNUSABLE = {  # golds for which a function does not apply
    "exact_match": [None, " ", []],
    "numeric_correctness": ["nan", "1e999", "many", [[5], [6]]],  # the last is a matrix
    "gsm8k": ["no number", None],
    "multiple_choice": ["a, c", "A and C", "(A) & (C)", "[A, C]", "A/B", "none of these", None],
    "squad_exact_match": [{}],
    **{name: [None] for name in ("fuzzy_match", "math_equivalence", "cosine_scaled")},
}


def test_golds_that_cannot_be_used_give_none():
    for name, golds in UNUSABLE.items():
        for gold in golds:
            assert score(name, "1", answer=gold) is None, (name, gold)


def opts(**options):
    """The columns of a case that only sets options."""
    return {"options": options}


XML, LINES = RX.format("x", "y"), RX.format("\nx\n", "\ny\n")
TEXTS = {  # {function: {score: texts}}, beside the examples in the functions' documentation
    "soft_xml_format": {
        1: [" " + XML + "\n\n"],
        0: [RX.format("x", ""), "so " + XML, XML * 2, "<answer>y</answer><reasoning>x</reasoning>"],
    },
    "incremental_format": {
        **{0.75: ["<reasoning>x</reasoning><answer>"], 1: [XML], 1 - 0.004: [XML + " more"]},
        0: [XML + "z" * 2000, "<reasoning><reasoning>x</reasoning>"],
    },
    "think_format": {0: ["<think> </think>b", "<think>a</think>", "a</think>b"]},
    "code_block_format": {
        0: [PY.format(""), PY.format("x") + "\n" + PY.format("y"), "```python\nx = 1", "```\nx = 1\n```"]
    },
    "no_syntax_error": {
        1: ["So:\n" + PY.format("def f(x):\n    return x"), "def f(x):\n    return x"],
        0: [
            PY.format("def f(x) return x"),
            "x=" + "1+" * 12_000 + "1",
            "-" * 15_000 + "1",
            "(" * 300,
            "x = '\0'",
            "'text'",
        ],
    },
    "max_length_penalty": {-0.2: ["a " * 600], -1: ["a " * 2000]},
    "no_repetition": {0: [""], 1 / 7 / 0.7: ["no " * 9]},
    "ideal_length": {0.5: ["a " * 150]},
}
THOUGHTS = ("", "<think>x</think>", "<think>\n\n</think>\n\n", "plan</think>")
OVERLONG, NO_TEXT = opts(max_length=100, cache=0), {"text": [], "answer_start": []}
TWO = r"\boxed{2}"
SCORES = {  # {function: [(text, columns and options, score)]}
    "exact_match": [("paris", {"answer": "Paris", **opts(ignore_case=True)}, 1)],
    "fuzzy_match": [
        ("The CAT!", {"answer": "the cat"}, 1),
        ("x", {"answer": ["y z", "x y"]}, 2 / 3),
        ("colour", {"answer": "color", **opts(unit="character")}, 10 / 11),  # the LCS is color: 2·5 / 11
        ("a b\n#### c", {"reference": "a b c"}, 1),  # a heading of a summary is no final answer
    ],
    "numeric_correctness": [  # the task is no answer
        *(
            (r"\boxed{5!}", {"answer": "120", "prompt": prompt}, paid)
            for prompt, paid in (("5!?", 0), ("1*2*3*4*5=", 1))
        ),
        *((text, {"answer": 1000, **opts(rel_tol=0.001)}, paid) for text, paid in (("1001", 1), ("1001.5", 0))),
        *((text, {"answer": 0, **opts(abs_tol=0.05)}, paid) for text, paid in (("0.04", 1), ("0.06", 0))),
    ],
    "json_schema": [
        *((thought + '{"n": 1}', {"schema": SCHEMA}, 1) for thought in THOUGHTS),
        *((text, {"schema": SCHEMA}, 0) for text in ('{"n": "1"}', '<think>{"n": 1}', 'It is {"n": 1}')),
        ("{}", {"schema": json.dumps(SCHEMA)}, 0),
        ("1", {"schema": None}, None),
    ],
    "code_block_format": [
        ("```sql\nx\n```", opts(language="sql"), 1),
        (PY.format("x = 1"), opts(language="Python"), 1),
    ],
    "soft_xml_format": [("<a>x</a>", opts(tags=["a"]), 1)],
    "think_format": [("a</think>b", opts(prefilled=True), 1), ("<think>a</think>b", opts(prefilled=True), 0)],
    "ideal_length": [
        ("abcde", opts(ideal=10, unit="characters"), 0.5),
        ("abc", {"completion_ids": [1] * 5, **opts(ideal=10, unit="tokens")}, 0.5),
    ],
    "soft_overlong_punishment": [
        ("a", {"completion_ids": [0] * 18_432}, -0.5),
        *(("a " * n, OVERLONG, paid) for n, paid in ((100, 0), (101, -1))),
    ],
    "cosine_scaled": [  # 9 of 18 characters: the cosine is 0, so the middle of (0.5, 1)
        (TWO, {"answer": "2", **opts(max_length=18)}, 0.75),
        (TWO, {"answer": "3", **opts(max_length=18)}, -0.75),
        (TWO + " " * 99, {"answer": "2", **opts(max_length=9)}, 0.5),
        # (1 + cos(π / 3)) / 2 = 3 / 4 of the way from 0.5 to 1
        (TWO, {"answer": "2", "completion_ids": [0] * 2, **opts(unit="tokens", max_length=6)}, 0.875),
        (TWO, {"answer": "2", "completion_ids": [0] * 6, **opts(unit="tokens", max_length=6, exceeded=0.25)}, 0.25),
    ],
    "repetition_penalty": [  # 6 bigrams, 3 of them distinct
        ("a B a b A b a", opts(ngram_size=2), -4 / 6),
        ("", {"completion_ids": [], **opts(unit="tokens")}, 0),
    ],
    "no_repetition": [("好" * 113, opts(threshold=1.0), 1 / 102)],
    "squad_exact_match": [
        ("b c", {"answer": None, "answers": {"text": ["x", "B, C"], "answer_start": [0, 9]}}, 1),
        *((text, {"answer": None, "answers": NO_TEXT}, paid) for text, paid in (("", 1), ("no", 0))),
        ("b", {"answer": None, "answers": None}, None),
    ],
    "squad_f1": [("no", {"answer": "no no"}, 2 / 3), ("", {"answer": None, "answers": NO_TEXT}, 1)],
}


@pytest.mark.parametrize("name", {**TEXTS, **SCORES})
def test_score_by_hand(name):
    cases = [(text, {}, paid) for paid, texts in TEXTS.get(name, {}).items() for text in texts]
    for text, arguments, expected in cases + SCORES.get(name, []):
        value = score(name, text, **arguments)
        same = value is None if expected is None else value == pytest.approx(expected, abs=1e-12)
        assert same, (text, arguments, value)


def test_table_of_words_around_answers_on_the_page():
    """Every cell of the page's table: a function pays for a completion exactly where the last column names it."""
    page = (ROOT / "references" / "reward_design.md").read_text(encoding="utf-8").split("## Words around an answer")[1]
    rows = re.findall(r"^\| [\w ]*\| (.+?) \| ([^|]+?) \| ([a-z, ]*)\|$", page, re.M)[1:]
    names = {"exact": "e", "numeric": "n", "choice": "c", "math": "m"}
    assert len(rows) >= 30
    for text, gold, paid in rows:
        pays = {short for short, f in names.items() if score(NAMES[f], text.replace("\\n", "\n"), answer=gold) == 1}
        assert pays == {*paid.replace(",", " ").split()}, text


def test_any_of_several_golds_pays():
    for name in ("exact_match", "numeric_correctness", "math_equivalence", "gsm8k", "correctness_reward"):
        paid = [score(name, "<answer>42</answer>", answer=gold) for gold in (["41", "42"], ["42"], ["41", "43"], [])]
        assert paid == [1, 1, 0, None], name
    golds = (["B"], [1], ["A", "B"], ["A", "C"], [])
    assert [score("multiple_choice", "The answer is B.", answer=gold) for gold in golds] == [1, 1, 1, 0, None]
    for text, gold, expected in (("3,5", 3.5, 1), ("3.5", "3,5", 1), ("1,234", 1.234, 0), ("3,5", 3, 0)):
        assert score("numeric_correctness", text, answer=gold) == expected, (text, gold)


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4), st.floats(-5, 0))
@settings(max_examples=40, deadline=None)
def test_penalties_equal_trl(ids, size, most):
    from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

    (theirs,) = get_repetition_penalty_reward(ngram_size=size, max_penalty=most)(completion_ids=[ids])
    options = {"ngram_size": size, "max_penalty": most}
    tokens = options | {"unit": "tokens"}
    assert score("repetition_penalty", "", tokens, completion_ids=ids) == pytest.approx(theirs, abs=1e-12)
    assert score("repetition_penalty", " ".join(map(str, ids)), options) == pytest.approx(theirs, abs=1e-12)
    theirs = get_soft_overlong_punishment(max_completion_len=9, soft_punish_cache=size)(completion_ids=[ids])
    options = {"max_length": 9, "cache": size}
    assert score("soft_overlong_punishment", "", options, completion_ids=ids) == pytest.approx(*theirs, abs=1e-12)


SQUAD_WORDS = st.lists(st.sampled_from(["a", "An", "the", "cat", "Cat,", "dog", "the-cat", "!", "d.o.g"]), max_size=6)


@given(SQUAD_WORDS, st.lists(SQUAD_WORDS, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_squad_by_the_definition(found, golds):
    """Its three steps on words written out by hand; precision and recall by taking common words off one by one."""
    plain = {"a": [], "An": [], "the": [], "cat": ["cat"], "Cat,": ["cat"], "dog": ["dog"], "d.o.g": ["dog"]}
    plain |= {"the-cat": ["thecat"], "!": []}

    def f1(a, b):
        left = list(b)
        common = len([left.remove(word) for word in a if word in left])
        if not a or not b or not common:
            return float(a == b)
        precision, recall = common / len(a), common / len(b)
        return 2 * precision * recall / (precision + recall)

    words = [word for piece in found for word in plain[piece]]
    wanted = [[word for piece in gold for word in plain[piece]] for gold in golds]
    wanted = [gold for gold in wanted if gold] or [[]]  # as evaluate-v2.0.py: golds without words count if all are so
    row = {"answers": {"text": [" ".join(gold) for gold in golds]}}
    assert score("squad_exact_match", " ".join(found), **row) == float(words in wanted)
    best = max(f1(words, gold) for gold in wanted)
    assert score("squad_f1", " ".join(found), **row) == pytest.approx(best, abs=1e-12)


def test_doctests_of_the_whole_file_pass():
    tests = [test for test in doctest.DocTestFinder().find(lib, lib.__name__) if test.examples]
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
    documented = {test.name.rpartition(".")[2] for test in tests}
    assert {*FUNCTIONS, "RewardModel", "Combined", "AdaptiveReward"} <= documented


# ------------------------------------------------------------------------------------------------ properties
FUNCTIONS = {name: f for name, f in vars(lib).items() if hasattr(f, "core") and name == f.__name__}
EXECUTING = {"code_execution"}  # text is a program: a few cases below, more in the sandbox's tests


def documented_range(function, options):
    """The range in a docstring, its names replaced by the options' values."""
    doc = function.__doc__.partition(">>>")[0]
    found = re.search(r"(?:[:;] |^ *)([\[{])([^\]}\n]*,[^\]}\n]*)[\]}]", doc, re.MULTILINE)
    assert found, function.__name__
    ends = [end.strip().replace("−", "-") for end in (found[2].split(",")[0], found[2].split(",")[-1])]
    return [float(options[end] if end in options else end) for end in ends]


def defaults_of(function) -> dict:
    return {p.name: p.default for p in inspect.signature(function.core).parameters.values()}


RANGES = {name: documented_range(f, defaults_of(f)) for name, f in FUNCTIONS.items()}
BINARY = {name for name, f in FUNCTIONS.items() if "{0, 1}" in f.__doc__}
COLUMNS = {"answer": "42", "schema": SCHEMA, "completion_ids": [1, 2, 3]}

PIECES = "<think> </think> <answer> </answer> <reasoning> </reasoning> ``` { [ } #### 42 1e999 9^{9^{9^9}} (B)".split()
PIECES += ["[1]", "\n", "```python\n", "\\boxed{", "The answer is ", "\ud800", "\0", "٣", "−", "é", "therefore ", "$"]
PIECES += ["https://", "\\frac{", ". ", "'''", "\\", "好", "\u2028", "\U0001f600"]
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=60),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(string.printable, max_size=8)), max_size=12).map("".join),
)


def call(function, texts, chat=False, columns=COLUMNS):
    """Score texts with every column that a function may take."""
    if function is lib.multiple_choice and columns.get("answer") == COLUMNS["answer"]:
        columns = {"answer": "B"}
    wanted = {c: [value] * len(texts) for c, value in columns.items() if c in inspect.signature(function).parameters}
    completions = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
    return function(prompts=["What is 6 * 7?"] * len(texts), completions=completions, **wanted)


GOLDS = st.one_of(st.none(), TEXT, st.integers(), st.floats(), st.booleans(), st.lists(TEXT, max_size=2), st.just({}))


@pytest.mark.parametrize("name", sorted(n for n, f in FUNCTIONS.items() if f.columns.keys() & {"answer", "schema"}))
@given(gold=GOLDS, text=TEXT)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_arbitrary_columns(name, gold, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unusable schema says so
        (value,) = call(FUNCTIONS[name], [text], columns={**dict.fromkeys(COLUMNS, gold), "completion_ids": [1]})
    assert value is None or RANGES[name][0] <= value <= RANGES[name][1]


LONG = "<think> </answer> ``` { [ 42 9^{9^{9^9}} (B) \\boxed{ é therefore $ https:// \\frac{ a ( . - 1,".split()
LONG += ["\n", "\u2028", "#### ", '{"a":', "```python\n", "The answer is ", "'" * 3, "a ", "a. ", "\t\n", "A) "]


def long_texts(size: int) -> dict[str, str]:
    """Texts of about so many characters, by what they repeat."""
    texts = {repr(piece): (piece * size)[:size] for piece in LONG}
    texts |= {"sequences": " ".join(map(str, range(size // 5))), "opened": "<think>" + "<answer>" * (size // 8)}
    texts |= {"one line": "x = " + "-" * size + "1"}
    return texts | {"boxes": "\\boxed{" * (size // 7) + "1" + "}" * (size // 7)}


def least_seconds(function, text: str, tries: int) -> float:
    """Processor time of the quickest try; Python's collector would bill it for the objects of other tests."""
    took = []
    gc.disable()
    try:
        for _ in range(tries):
            start = time.thread_time()
            (value,) = call(function, [text])
            took.append(time.thread_time() - start)
            assert value is not None and math.isfinite(value)
    finally:
        gc.enable()
    return min(took)


@pytest.mark.parametrize("name", sorted(name for name in set(FUNCTIONS) - EXECUTING if not FUNCTIONS[name].grades))
def test_long_hostile_text_is_fast(name):
    quarter = long_texts(3_000)
    for kind, text in long_texts(12_000).items():
        if least_seconds(FUNCTIONS[name], text, 1) < 0.1:  # linear time takes 0.03 s
            continue
        # A text of a quarter takes a quarter of linear time and a sixteenth of quadratic time.
        took = least_seconds(FUNCTIONS[name], text, 3)
        assert took < 0.1 or took < 8 * least_seconds(FUNCTIONS[name], quarter[kind], 3), kind


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_none_and_empty_batch(name):
    function = FUNCTIONS[name]
    assert call(function, []) == [] if name not in EXECUTING else function([], [], tests=[]) == []
    columns = COLUMNS | {"tests": ["assert f() == 1"]}
    assert call(function, [None], columns=columns) == call(function, [""], columns=columns)
    (value,) = call(function, [None], columns=columns)
    if name not in {"max_length_penalty", "soft_overlong_punishment", "repetition_penalty"}:
        assert value == RANGES[name][0]  # an empty text earns the least


# ------------------------------------------------------------------------------------------------ options
ABOVE_0 = st.one_of(st.integers(1, 500), st.floats(1e-6, 1e4))
PAIR = st.tuples(st.floats(-2, 2), st.floats(-2, 2)).map(sorted).map(tuple)
NOT_NUMBERS = ["3", None, True, math.nan, math.inf, [1]]
NOT_ABOVE_0 = [0, -1, -0.5, *NOT_NUMBERS]
NOT_COUNTS = [0, -1, 1.5, *NOT_NUMBERS]
OPTIONS = {  # option: (values that are accepted, values that are not)
    **dict.fromkeys(["ideal", "maximum", "max_length"], (ABOVE_0, NOT_ABOVE_0)),
    **dict.fromkeys(["max_characters", "ngram_size"], (st.integers(1, 50), NOT_COUNTS)),
    **dict.fromkeys(["ignore_case", "prefilled"], (st.booleans(), [1, "yes", None])),
    **dict.fromkeys(["correct", "wrong"], (PAIR, [(1, 0), (0,), 1, "ab", (0, math.nan), None])),
    "unit": (st.sampled_from(["words", "characters", "tokens"]), ["word", "", None, 1]),
    "fuzzy_match.unit": (st.sampled_from(["word", "character"]), ["words", "", None]),
    "rel_tol": (st.floats(0, 1, exclude_max=True), [-0.1, 1, *NOT_NUMBERS]),
    "abs_tol": (st.floats(0, 1e9), [-0.1, *NOT_NUMBERS]),
    "mode": (st.sampled_from(["all", "fraction"]), ["some", None, True]),
    "settings": (st.sampled_from([None, {}, {"timeout_s": 2, "strict": True}]), []),
    "tags": (st.sampled_from([("a",), ["think", "answer"]]), ["think", [], ["a", "a"], ["<a>"], [""], [1], None]),
    "language": (st.sampled_from(["python", "sql", "C++", ""]), ["a b", None, 1, "`"]),
    "cache": (st.one_of(st.just(0), ABOVE_0), [-1, *NOT_NUMBERS]),
    "exceeded": (st.one_of(st.none(), st.floats(-3, 3)), ["3", True, math.nan, math.inf, [1]]),
    "max_penalty": (st.floats(-10, 0), [0.1, 1.0, *NOT_NUMBERS]),
    "threshold": (st.floats(1e-6, 1), [0, -0.5, 1.1, *NOT_NUMBERS]),
}


def option_rule(name, option):
    """What the table above says of an option of a function."""
    return OPTIONS.get(f"{name}.{option}") or OPTIONS[option]


@pytest.mark.parametrize("name", sorted(n for n, f in FUNCTIONS.items() if f.options))
def test_option_values_that_make_no_sense_are_refused(name):
    function = FUNCTIONS[name]
    for option in function.options:
        for value in option_rule(name, option)[1]:
            with pytest.raises(ValueError, match=rf"^{name}: got {option}=.*; expected .+"):
                function.configure(**{option: value})
            if not isinstance(value, list):  # in a call a list is a column
                with pytest.raises(ValueError, match=rf"^{name}: got {option}="):
                    function([""], [""], **{option: value})


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - EXECUTING))
@given(texts=st.lists(TEXT, min_size=1, max_size=4), ids=st.lists(st.integers(0, 3), max_size=9), data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_documented_range_holds_for_all_texts_and_options(name, texts, ids, data):
    """Whatever stands beside a completion, and whether it is text or chat messages."""
    function = FUNCTIONS[name]
    names = data.draw(st.lists(st.sampled_from(function.options), unique=True)) if function.options else []
    options = {option: data.draw(option_rule(name, option)[0], label=option) for option in names}
    every = {**defaults_of(function), **options}
    try:
        variant = function.configure(**options)
    except ValueError as error:  # two options that do not fit each other, and nothing else
        assert " with " in str(error)
        crossed = "cache" in every and every["cache"] > every["max_length"]
        if "wrong" in every:
            crossed |= every["wrong"][1] > every["correct"][0]
        if every.get("exceeded") is not None:
            crossed |= every["exceeded"] > every["correct"][0]
        assert crossed
        return
    columns = COLUMNS | {"completion_ids": ids} | ({"answer": "B"} if name == "multiple_choice" else {})
    scores = call(variant, texts, columns=columns)
    low, high = documented_range(function, every)
    if "correct" in every:  # the docstring gives that of the defaults, and says how options change it
        low = min(every["wrong"][0], math.inf if every["exceeded"] is None else every["exceeded"])
        high = every["correct"][1]
    for value in scores:
        assert type(value) is float and math.isfinite(value)
        assert low - 1e-12 <= value <= high + 1e-12
    assert name not in BINARY or {*scores} <= {0.0, 1.0}
    assert call(variant, texts, chat=True, columns=columns) == scores
    order = data.draw(st.permutations(range(len(texts))))
    assert call(variant, [texts[i] for i in order], columns=columns) == [scores[i] for i in order]
    assert [call(variant, [text], columns=columns)[0] for text in texts] == scores


def test_values_that_make_no_sense_elsewhere():
    with pytest.raises(ValueError, match="expected finite numbers"):
        lib.combine([lib.exact_match], [math.nan])
    with pytest.raises(ValueError, match=r"json_schema: got schema='\{'; expected a JSON Schema"):
        lib.json_schema.configure(schema="{")
    with pytest.raises(ValueError, match=r"got cache=4096 with max_length=100; .*try setting cache too"):
        lib.soft_overlong_punishment.configure(max_length=100)  # it would punish every length


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_fuzzy_match_equals_a_table_of_lcs(found, gold):
    table = [[0] * (len(gold) + 1) for _ in range(len(found) + 1)]
    for i, a in enumerate(found):
        for j, b in enumerate(gold):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    expected = 2 * table[-1][-1] / (len(found) + len(gold))
    assert score("fuzzy_match", " ".join(found), answer=" ".join(gold)) == pytest.approx(expected, abs=1e-12)


def test_missing_and_misfitting_columns_are_the_callers_error():
    one = {"prompts": ["q"], "completions": ["a"]}
    for name, columns, error, said in (
        ("exact_match", one | {"solution": ["a"]}, TypeError, "exact_match: got the columns solution; expected answer"),
        ("fuzzy_match", one, TypeError, "got the columns none; expected answer or reference"),
        ("code_execution", one, TypeError, "expected tests or test_cases"),
        ("exact_match", {"completions": ["a"]}, TypeError, "prompts"),
        ("exact_match", one | {"answer": ["a", "b"]}, ValueError, "expected a list of 1; try exact_match.configure"),
        ("exact_match", one | {"answer": 5}, ValueError, "int '5'"),
        ("code_execution", one | {"tests": ["x"], "settings": {"timeout_s": -1}}, ValueError, "got timeout_s -1"),
    ):
        with pytest.raises(error, match=said):
            getattr(lib, name)(**columns)
    with pytest.raises(TypeError, match=r"got .*tolerance.*expected.*rel_tol"):
        lib.numeric_correctness.configure(tolerance=0.1)
    assert lib.exact_match(**one, answer=None) == [None]  # a column that is absent in all rows


def test_only_what_the_model_says_is_scored():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}]
    turns = [{"role": "assistant", "content": text} for text in (parts, None)]
    assert score("exact_match", turns, answer="a") == 1 and score("exact_match", turns[0], answer="a") == 1
    turns = [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "<answer>42</answer>"}]
    assert score("exact_match", turns, answer="42") == 0


def test_options_in_a_call_and_columns_of_the_same_name():
    assert lib.numeric_correctness(None, ["11"], ["10"], rel_tol=0.1) == [1.0]
    assert lib.numeric_correctness(None, ["11"], ["10"], rel_tol=[0.1]) == [0.0]  # a list is a column of the data
    assert lib.no_syntax_error(None, ["x = 1"], tags=[["a"]], mode=["b"]) == [1.0]
    assert lib.json_schema.configure(schema=SCHEMA)(None, ['{"n": 1}']) == [1.0]


@pytest.mark.parametrize("name", ["exactmatch", "exact_match_reward"])
def test_a_name_that_the_library_lacks_is_told_the_nearest(name):
    with pytest.raises(UserError, match=r"one of [^;]*correctness_reward, exact_match, [^;]*; try exact_match"):
        load_rewards(f"{LIBRARY}:{name}*0.5")


def test_reading_texts():
    assert lib._code("```python\na\n```\n```\nb\n```\n```sql\nc\n```") == "a", "b may be its output"
    assert lib._code("```\na\n```\n```\nb\n```\n```sql\nc\n```") == "b"
    assert lib._code("```bash\nx\n```\n```python3 title=a.py\na\n```") == "a"
    listed = "1. So:\n   ```python\n   def f():\n       return 1\n\n   x = f()\n   ```"
    assert lib._code(listed) == "def f():\n    return 1\n\nx = f()"
    assert lib._code("```python\n    return 1\n```") == "    return 1", "the rest of a function"
    assert lib._code("```python\na") == "" and lib._code("a") == "a"
    assert lib.extract_answer("<answer>4</answer>") == "4"


# ------------------------------------------------------------------------------------------------ programs
ADD = "Here it is:\n" + PY.format("def add(a, b):\n    return a + b")
HALF = PY.format("def add(a, b):\n    return a + b if a < 2 else 0")


def test_code_execution():
    asserts = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
    for tests in (asserts, {"inputs": [[1, 2], [2, 2]], "outputs": [3, 4], "fn_name": "add"}):
        columns = {"tests": [tests] * 3, "entry_point": [None] * 3}
        assert lib.code_execution(None, [ADD, HALF, "```python\ndef add"], **columns) == [1.0, 0.0, 0.0]
        fraction = lib.code_execution.configure(mode="fraction")(None, [ADD, HALF, ""], **columns)
        assert fraction[0] == 1.0 and fraction[2] == 0.0 and 0 <= fraction[1] < 1
    stdin = [{"input": "3\n", "output": "6\n"}]
    texts = [PY.format("print(int(input()) * 2)"), "print(int(input()) * 2)", None]
    assert lib.code_execution(None, texts, test_cases=[stdin] * 3) == [1.0, 1.0, 0.0]
    assert lib.code_execution(None, [ADD] * 2, tests=[None, []]) == [None, None]
    with pytest.warns(UserWarning, match="unusable tests"):
        assert lib.code_execution(None, [ADD], tests=[["this is ( no python"]]) == [None]


def test_a_copy_without_the_sandbox_says_what_to_copy(tmp_path):
    copy = tmp_path / "rewards" / "mine.py"
    copy.parent.mkdir()
    copy.write_text(LIBRARY.read_text(encoding="utf-8"), encoding="utf-8")
    run_code = "mine.code_execution(None, ['x'], tests=[['assert x']])"
    run = [sys.executable, "-c", f"import mine; print(mine.exact_match(None, ['a'], ['a'])); {run_code}"]
    done = subprocess.run(run, cwd=copy.parent, capture_output=True, text=True, env=script_env(), timeout=60)
    assert done.stdout == "[1.0]\n" and "UserError: got no sandbox.py" in done.stderr
    assert "try copying" in done.stderr


# ------------------------------------------------------------------------------------------------ reward model
@pytest.fixture(scope="module", params=["chat", "plain"])
def classifier(request, tmp_path_factory):
    """A folder with a tiny random classifier, whose tokenizer has a chat template or none."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_LM)
    if request.param == "plain":
        tokenizer.chat_template = None
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.5, **sizes)
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_reward_model(classifier):
    import torch
    import transformers

    scorer = lib.reward_model.configure(model=str(classifier), device="cpu", batch_size=2)
    prompts, texts = ["1+1=", "Say hello", "x"], ["2", "hello there, you", ""]
    scores = scorer(prompts=prompts, completions=texts, answer=["2"] * 3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    for prompt, text, value in zip(prompts, texts, scores, strict=True):
        whole = prompt + text
        if tokenizer.chat_template:
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
            whole = tokenizer.apply_chat_template(turns, tokenize=False)
        with torch.inference_mode():
            ids = tokenizer(whole, return_tensors="pt").input_ids
            assert value == pytest.approx(model(ids).logits[0, 0].item(), abs=1e-4)
    assert len({round(value, 3) for value in scores}) == 3
    chat = [[{"role": "user", "content": prompt}] for prompt in prompts]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert scorer(prompts=chat, completions=completions) == pytest.approx(scores, abs=1e-4)
    assert scorer(prompts[::-1], texts[::-1]) == pytest.approx(scores[::-1], abs=1e-4)
    assert pickle.loads(pickle.dumps(scorer))(prompts, texts) == pytest.approx(scores, abs=1e-4)
    long = scorer(None, ["\ud800\0" + "a" * 5000, None])
    assert all(math.isfinite(value) for value in long)
    assert scorer([], []) == [] and scorer.__name__ == "reward_model"
    short = scorer.configure(max_length=8)(None, ["a" * 40 + "the end.", "b" * 40 + "the end.", "a" * 40 + "the dot!"])
    if not tokenizer.chat_template:  # one token a character: what is left is the end
        assert short[0] == pytest.approx(short[1], abs=1e-5) and short[0] != pytest.approx(short[2], abs=1e-3)


def test_what_is_no_reward_model():
    with pytest.raises(ValueError, match="got no model; expected a name or folder"):
        lib.reward_model(["q"], ["a"])
    # transformers gives a language model a random head, whose scores look like any others
    with pytest.raises(ValueError, match=r"lacks score\.weight; expected a reward model"):
        lib.reward_model.configure(model=str(TINY_LM), device="cpu")(["q"], ["a"])


# ------------------------------------------------------------------------------------------------ combinations
def constant(*values):
    """A reward that returns these values."""
    return lambda prompts, completions, **kwargs: list(values)


def test_combine_by_hand():
    parts = [constant(1.0, 0.5, None, None), constant(0.5, 0.5, 0.5, None)]
    rows = (None, ["a"] * 4)
    assert lib.combine(parts, [1, 2])(*rows) == [2.0, 1.5, 1.0, None]
    assert lib.combine(parts, [1, 2], mode="product")(*rows) == [0.25, 0.125, 0.25, None]
    assert lib.combine(parts, [1, 2], mode="gated")(*rows) == [2.0, 0.5, None, None]
    assert lib.combine(parts)(*rows) == [1.5, 1.0, 0.5, None]
    assert lib.combine([constant(math.nan), constant(math.inf)])(None, ["a"]) == [None]
    assert lib.combine([constant(math.nan), constant(1.0)], mode="gated")(None, ["a"]) == [None]
    assert lib.combine([constant(-1.0), constant(0.5)], mode="product")(None, ["a"]) == [0.0]
    for weights, mode in ([1, 1], "mean"), ([1, -1], "product"):
        with pytest.raises(ValueError, match=r"expected sum, gated or product \(no weight < 0\)"):
            lib.combine(parts, weights, mode=mode)
    for wrong in ([], None), (parts, [1]):
        with pytest.raises(ValueError, match="a weight each"):
            lib.combine(*wrong)
    assert lib.combine(parts, name="mine").__name__ == "mine"
    compares = constant(1.0)
    compares.needs_group = True  # it compares the completions of a prompt
    assert lib.combine([lib.exact_match, compares]).needs_group and not lib.combine([lib.exact_match]).needs_group
    both = lib.combine([lib.exact_match, lib.ideal_length])
    assert list(inspect.signature(both).parameters) == ["prompts", "completions", "answer", "completion_ids", "kwargs"]
    assert both([], [], answer=[]) == []


GPU_PLACES = [(True, "3", "auto", "cuda:3"), (True, "", "auto", "auto")]
GPU_PLACES += [(False, "3", "auto", "auto"), (True, "3", "cpu", "cpu")]


@pytest.mark.parametrize(("gpu", "rank", "device", "place"), GPU_PLACES)
def test_a_reward_model_is_on_the_gpu_of_its_process(gpu, rank, device, place, monkeypatch):
    """auto would use other processes' GPUs."""
    import torch
    import transformers

    loads = Mock(side_effect=KeyError)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: None)
    monkeypatch.setattr(transformers.AutoModelForSequenceClassification, "from_pretrained", loads)
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(KeyError):
        lib.reward_model.configure(model="m", device=device)(["q"], ["a"])
    assert loads.call_args.kwargs["device_map"] == place


async def judge(prompts, completions, **kwargs):
    """A reward that is awaited."""
    return [0.5] * len(completions)


def test_combine_is_async_if_a_part_is():
    from trl.trainer.utils import is_async_callable

    def ask(function, texts, **columns):
        return asyncio.run(function(prompts=None, completions=texts, **columns))

    both = lib.combine([judge, lib.exact_match], [1.0, 1.0])
    assert is_async_callable(judge) and is_async_callable(both) and is_async_callable(lib.combine([both]))
    assert not is_async_callable(lib.combine([lib.exact_match])) and not is_async_callable(lib.exact_match)
    assert ask(both, ["4", "5"], answer=["4", "4"]) == [1.5, 0.5]
    assert ask(pickle.loads(pickle.dumps(both)), ["4"], answer=["4"]) == [1.5]


def test_adaptive_reward_follows_success():
    def ten(prompts, completions, **kwargs):
        return [10.0] * len(completions)

    reward = lib.AdaptiveReward([lib.exact_match, ten], [1.0, 0.5], [0.0, 0.0], decay=0.5)
    answer = ["a"] * 4
    assert reward(None, ["a", "a", "a", "b"], answer=answer) == [6, 6, 6, 5]  # s = 0: weights 1 and 0.5
    assert reward.state_dict() == {"success": 0.375}  # half way from 0 to 3/4
    assert reward(None, ["b"] * 4, answer=answer) == [pytest.approx(5 * 0.625)] * 4
    reward.load_state_dict({"success": 1.0})
    assert reward(None, ["a"], answer=["a"]) == [0.0]
    assert reward(None, ["a"], answer=[None]) == [0.0]  # not applicable: no news of success
    assert reward.state_dict() == {"success": 1.0}
    for start, end, decay in (([1], [1, 2], 0.9), ([1], [math.inf], 0.9), ([1], [1], 1.0)):
        with pytest.raises(ValueError, match="adaptive_reward: "):
            lib.AdaptiveReward([lib.exact_match], start, end, decay)


# ------------------------------------------------------------------------------------------------ presets
QA_ROW = {"prompt": "Who?", "answer": "Ada"}


@pytest.mark.parametrize(("preset", "row", "gold", "bad"), [
    ("MATH_REASONING_REWARDS", {"prompt": "1+2=", "answer": "3"}, RX.format("x", "3"), RX.format("x", "4")),
    ("CODE_GENERATION_REWARDS", {"prompt": "", "tests": ["assert f(1) == 1"]}, PY.format("f = abs"), PY.format("f=0")),
    ("SUMMARIZATION_REWARDS", {"prompt": "Sum up: a cat.", "reference": "a cat"}, "a cat", "nothing of the kind " * 30),
    ("QA_REWARDS", QA_ROW, "Ada", "Ada or Bob or Cy"),
])  # fmt: skip
def test_preset_prefers_the_right_answer(preset, row, gold, bad):
    preset = getattr(lib, preset)
    assert len(preset) == len(preset.weights) >= 3 and isinstance(preset, list)
    assert sum(preset.weights[1:]) < preset.weights[0]  # nothing outbids correctness
    columns = {name: [value] * 2 for name, value in row.items() if name != "prompt"}
    good, worse = lib.combine(preset, preset.weights)(prompts=[row["prompt"]] * 2, completions=[gold, bad], **columns)
    assert good > worse + 0.5
