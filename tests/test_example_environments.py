"""The five environments of examples/environments.py: what they pay, hostile input, tools that TRL takes."""

import pytest
from conftest import ROOT, load_module

from parts.environments.environments import load_environments

FILE = ROOT / "examples" / "environments.py"
examples = load_module(FILE, "example_environments")
NAMES = ["SecondAttempt", "Calculator", "PythonInterpreter", "GuessTheNumber", "Search"]


def begun(name: str, **row):
    """An environment after its reset."""
    environment = getattr(examples, name)()
    environment.reset(prompt="?", **row)
    return environment


def test_a_number_is_the_same_in_every_form():
    same = [("1200", "1,200"), ("$1,200,000.50", "1200000.5"), ("Paris ", "paris")]
    other = [("1,2", "12"), ("1,2000", "12000"), ("-5", "5")]
    assert all(examples.same_answer(*pair) for pair in same)
    assert not any(examples.same_answer(*pair) for pair in other)


@pytest.mark.parametrize("name", [*NAMES, "MIXED"])
def test_each_keeps_the_contract(name):
    kinds = load_environments(f"{FILE}:{name}").kinds.values()
    assert all(kind.scores and kind.talks != bool(kind.tools) for kind in kinds)


@pytest.mark.parametrize("name", NAMES)
def test_reset_sets_all_there_is_and_trl_takes_each_as_it_is(name):
    from transformers.utils import get_json_schema

    for tool in {*vars(getattr(examples, name))} - {"reset", "get_reward"}:  # `reply` too, which TRL offers as a tool
        if not tool.startswith("_"):
            schema = get_json_schema(getattr(getattr(examples, name)(), tool))
            assert schema["function"]["parameters"]["required"]
    environment = begun(name, answer="4", number=4)
    before = {**vars(environment)}
    for text in ("3", "4"):
        environment.reply(text) if hasattr(environment, "reply") else environment.submit(text)
    assert vars(environment) != before
    environment.reset(answer="4", number=4)
    assert vars(environment) == before


AGAIN = ["Wrong. Try again.", None]


@pytest.mark.parametrize(
    "said, replies, reward",
    [
        (["<answer>4</answer>"], [None], 1.0),
        (["<answer>5</answer>", "<answer>4.0</answer>"], AGAIN, 0.5),
        (["4", "5"], AGAIN, 0.0),  # without tags
        (["<answer>4</answer><answer>5</answer>", "<answer>3</answer> <answer>4</answer>"], AGAIN, 0.5),
        (["<answer>" * 100_000 + "4", "<answer>\ud800\0</answer>"], AGAIN, 0.0),
        (["<answer>nan</answer>", "<answer>" + "9" * 5000 + "</answer>"], AGAIN, 0.0),
    ],
)
def test_second_attempt(said, replies, reward):
    environment = begun("SecondAttempt", answer="4")
    assert [environment.reply(text) for text in said] == replies and environment.get_reward() == reward


def test_calculator_computes():
    values = {"(12 + 30) * 2": "84", "7 // 2": "3", "-3 % 5": "2", " 1/4 ": "0.25", "2**0.5": str(2**0.5)}
    assert {text: begun("Calculator", answer="1").calculate(text) for text in values} == values


def test_calculator_refuses():
    for expression in [
        *["9**9**9**9", "10**29 * 10**29", "1e308 * 10", "2**-1e9**9", "(-8)**0.5", "1/0", "5 % 0", "0**-1"],
        *["__import__('os').system('id')", "().__class__", "x", "'a' * 9**9", "[1] * 9", "True + 1", "1 if 1 else 2"],
        *["lambda: 1", "f'{1}'", "1j", "", "(" * 150, "-" * 199, "1" * 201, "1 < 2", "1; 2", "\0", "1 << 99999"],
    ]:
        with pytest.raises((ValueError, ArithmeticError, SyntaxError)):
            begun("Calculator", answer="1").calculate(expression)


def test_the_first_answer_that_is_submitted_counts():
    for name in ("Calculator", "PythonInterpreter", "Search"):
        environment = begun(name, answer="Alexander Fleming")
        assert environment.get_reward() == 0.0
        environment.submit(" alexander fleming")
        environment.submit("no one")
        assert environment.get_reward() == 1.0
    environment = begun("Calculator", answer=84)  # columns may be numbers, and so may what a model gives
    environment.submit(84.0)
    assert environment.get_reward() == 1.0


@pytest.mark.parametrize(
    "code, seen",
    [
        ("print('a')\n1 / 0", "a\n\nZeroDivisionError: division by zero"),
        ("x = 1", "(nothing was printed)"),
        ("while True: pass", "timeout: more than 3.0 s"),
        ("import socket; socket.socket()", "Error"),
        ("import sys; print(sys.stdin.read() + 'end'); sys.exit(3)", "end\n\nthe process ended with status 3"),
        ("import sys; print('pytest' in sys.modules, 'torch' in sys.modules)", "False False"),
    ],
)
def test_python_runs_in_the_sandbox(code, seen):
    said = begun("PythonInterpreter", answer="1").python(code)
    assert seen in said and len(said) < 3000


def test_guess_the_number():
    environment = examples.GuessTheNumber()
    assert environment.reset(prompt="Play.", number=30) == " I think of a number from 1 to 100. Guess it."
    rewards, replies = [], []
    for text in ["I say 50", "60?", "20", "20", "nothing", "x" * 10**6 + "9" * 10**5, "10 or 30"]:
        replies.append(environment.reply(text))
        rewards.append(round(environment.turn_reward, 10))
        environment.turn_reward = 0.0
    assert replies == ["Lower.", "Lower.", "Higher.", "Higher.", "Say a number.", "Lower.", None]
    assert rewards == [0.1, 0, 0.1, 0, 0, 0, 1.1]  # what was said before can no longer be right
    assert environment.get_reward() == pytest.approx(1.3, abs=1e-12)


def test_search():
    environment = begun("Search", answer="Alexander Fleming")
    assert "Alexander Fleming" in environment.search("who found penicillin").splitlines()[0]
    assert environment.search("mountain of Africa").startswith("Kilimanjaro")
    for query in ("", "zzz", "the", "\0\ud800", "a " * 10**6, "<|end|>", "(.*)+$"):
        assert isinstance(environment.search(query), str)
    assert environment.search("zzz") == "No passage has these words."
    assert examples.passage_index() is examples.passage_index()
