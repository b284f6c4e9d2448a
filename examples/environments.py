#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["bm25s"]
# ///
"""Five environments for RL over several turns. Each shows one pattern; copy the one that is nearest to yours.

SecondAttempt      a checker that talks: `reply` says "Wrong. Try again." once
Calculator         tools that compute, and one that takes the answer; the model sees a tool's exceptions
PythonInterpreter  a tool that runs what the model wrote, in the bundle's sandbox and never in this process
GuessTheNumber     a game: state that changes with every turn, and a reward for each turn
Search             a tool over a read-only collection that is loaded once and shared

The contract is that of TRL's `GRPOTrainer(environment_factory=…)`: `reset(**row)` begins a conversation and returns
text to append to the prompt, or None; public methods with type hints and `Args:` are the tools; `get_reward()` is the
return. Beyond TRL, `reply(text)` answers what the model says without a tool call, and None ends the conversation; TRL
offers it to the model as one more tool. `turn_reward` is what was earned since the last answer; TRL does not read it.

Every column of a row goes to `reset`, so it takes `**row`. An object serves one conversation at a time, and with TRL
several in turn, so `reset` sets every attribute. Text that a model wrote is hostile: bound its cost.

Deliberately left out: a shell, a browser, anything that needs the network.
"""

import ast
import functools
import importlib.util
import math
import operator
import re
import sys
from pathlib import Path


def same_answer(given: str, right: str) -> bool:
    """Whether two answers are the same number, $1,200 for 1200, or the same text but for case and outer white space."""
    try:
        numbers = [float(re.sub(r"(?<=\d),(?=\d{3}\b)|^\s*\$", "", text)) for text in (given, right)]
        return math.isclose(*numbers, rel_tol=1e-9)
    except ValueError:
        return given.strip().casefold() == right.strip().casefold()


# ---------------------------------------------------------------------------------------------------- second attempt


class SecondAttempt:
    """Rows {"prompt", "answer"}: 1 for a right first answer, 0.5 for a right second one."""

    def reset(self, answer: str, **row) -> None:
        self.answer, self.attempts, self.solved = str(answer), 0, False

    def reply(self, text: str) -> str | None:
        """Say whether an answer is right.

        Args:
            text: The answer, in <answer> tags.
        """
        self.attempts += 1
        tagged = re.findall(r"<answer>([^<]*)</answer>", text[-10_000:])
        self.solved = bool(tagged) and same_answer(tagged[-1], self.answer)  # the last one: a list of guesses is none
        return None if self.solved or self.attempts == 2 else "Wrong. Try again."

    def get_reward(self) -> float:
        return 1.0 / self.attempts if self.solved else 0.0


# ---------------------------------------------------------------------------------------------------- the answer


class Submission:
    """Rows {"prompt", "answer"}: a tool takes the answer, because TRL shows environments no text; 1 if right."""

    def reset(self, answer: str, **row) -> None:
        self.answer, self.submitted = str(answer), None

    def submit(self, answer: str) -> str:
        """Give the final answer; the first one counts.

        Args:
            answer: The answer, without explanation.

        Returns:
            That it was received.
        """
        if self.submitted is None:
            self.submitted = str(answer)
        return "Submitted."

    def get_reward(self) -> float:
        return float(self.submitted is not None and same_answer(self.submitted, self.answer))


# ---------------------------------------------------------------------------------------------------- calculator

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
LARGEST = 10**30  # Python's integers have no bound, and neither has the time that they take


def evaluate(node: ast.AST) -> float:
    """The value of an expression of numbers, + - * / // % and a power; all else is refused."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](evaluate(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        value = math.pow(evaluate(node.left), evaluate(node.right))  # a float: it overflows instead of growing
        value = int(value) if value.is_integer() and abs(value) < 2**53 else value
    else:
        raise ValueError("only numbers, + - * / // % ** and brackets are known")
    if not abs(value) <= LARGEST:  # not for nan either
        raise ValueError(f"a value is above {LARGEST:.0e}")
    return value


class Calculator(Submission):
    """A tool that computes. The model sees its exceptions, such as a division by zero."""

    def calculate(self, expression: str) -> str:
        """Compute an arithmetic expression.

        Args:
            expression: Numbers, the operators + - * / // % ** and brackets, such as "(12 + 30) * 2".

        Returns:
            Its value.
        """
        if len(expression) > 200:
            raise ValueError("an expression has at most 200 characters")
        return str(evaluate(ast.parse(expression.strip(), mode="eval").body))


# ---------------------------------------------------------------------------------------------------- interpreter


@functools.cache
def sandbox():
    """The bundle's sandbox.py, from this folder or from the bundle's scripts."""
    here = Path(__file__).resolve().parent
    path = next((p for f in (here, here.parent / "scripts") if (p := f / "sandbox.py").is_file()), None)
    if path is None:
        raise FileNotFoundError(f"got no sandbox.py in {here}; try copying the bundle's scripts/sandbox.py there")
    spec = importlib.util.spec_from_file_location("environments_sandbox", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PythonInterpreter(Submission):
    """A tool that runs what the model wrote, in a process that can reach neither files nor the network."""

    def python(self, code: str) -> str:
        """Run a Python program; nothing is kept from one call to the next.

        Args:
            code: The program. Only what it prints is seen.

        Returns:
            What it printed, and the error that ended it.
        """
        printed, problem = sandbox().program_output(code, timeout_s=3.0, memory_mb=256)
        return (printed[:2000] + (f"\n{problem}" if problem else "")).strip() or "(nothing was printed)"


# ---------------------------------------------------------------------------------------------------- game


class GuessTheNumber:
    """Rows {"prompt", "number"}, of 1 to 100: 1 for finding the number, and 0.1 for each guess that can still be right.

    The number is a column and is not drawn here, so a run can be repeated, and all conversations of a group have the
    same. The rewards of the turns add up to `get_reward`.
    """

    def reset(self, number: int, **row) -> str:
        self.number, self.low, self.high = int(number), 1, 100
        self.turn_reward, self.total, self.found = 0.0, 0.0, False
        return f" I think of a number from {self.low} to {self.high}. Guess it."

    def reply(self, text: str) -> str | None:
        """Say whether the number is higher or lower than a guess.

        Args:
            text: The guess.
        """
        numbers = re.findall(r"\d+", text[-1000:])
        guess = int(numbers[-1][:9]) if numbers else None
        if guess is None:
            return "Say a number."
        if self.low <= guess <= self.high:
            self._earn(0.1)
        if guess == self.number:
            self._earn(1.0)
            self.found = True
            return None
        if guess < self.number:
            self.low = max(self.low, guess + 1)
            return "Higher."
        self.high = min(self.high, guess - 1)
        return "Lower."

    def get_reward(self) -> float:
        return self.total

    def _earn(self, amount: float) -> None:
        self.turn_reward, self.total = self.turn_reward + amount, self.total + amount


# ---------------------------------------------------------------------------------------------------- search

PASSAGES = (
    "The Amazon carries more water than any other river; it rises in the Andes of Peru.",
    "The Nile flows north through Sudan and Egypt into the Mediterranean Sea.",
    "Mount Everest, on the border of Nepal and China, is 8,849 metres high.",
    "Kilimanjaro in Tanzania is the highest mountain of Africa, 5,895 metres.",
    "Marie Curie received Nobel prizes in physics, in 1903, and in chemistry, in 1911.",
    "Ada Lovelace described in 1843 how the Analytical Engine computes Bernoulli numbers.",
    "Water boils at 100 degrees Celsius at the pressure of the sea's level.",
    "The blue whale is the largest animal; it eats krill.",
    "Penicillin was found in 1928 by Alexander Fleming.",
    "Venus turns once in 243 days, in the direction opposite to most planets.",
)


@functools.cache
def passage_index(passages: tuple[str, ...] = PASSAGES):
    """A BM25 index of passages, made once in a process: nothing writes to it, so conversations may share it."""
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(passages), show_progress=False), show_progress=False)
    return index


class Search(Submission):
    """A tool over a collection that all conversations share."""

    def search(self, query: str) -> str:
        """Find passages by their words.

        Args:
            query: A few words that the passage should have.

        Returns:
            At most three passages, the best first.
        """
        import bm25s

        words = bm25s.tokenize([query[:1000]], show_progress=False, return_ids=False)
        found, scores = passage_index().retrieve(words, k=3, show_progress=False)
        hits = [PASSAGES[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]
        return "\n".join(hits) or "No passage has these words."


MIXED = {"calculator": Calculator, "python": PythonInterpreter, "search": Search}  # by the column `environment`
