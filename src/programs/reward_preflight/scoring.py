"""Grading completions."""

import math
from collections import Counter
from dataclasses import dataclass, field

from parts.rewards.user_code import reward_arguments
from programs.reward_preflight.reward_process import OwnProcess

KINDS = ("raised", "hung", "died", "malformed", "not_finite")  # how a call fails
GIVE_UP = 3  # hung calls or dead processes after which a function is not called again
BATCH = 64  # completions per call
TOKEN_CHARACTERS = 4  # characters that stand for a token


@dataclass
class Graded:
    """A completion with its scores by function; `problems` says why a score is missing."""

    row: dict
    text: str
    parts: dict[str, float | None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # only if it was scored alone


def as_batch(piece: list[Graded]) -> dict:
    """The arguments with which a trainer calls a reward."""
    texts = [graded.text for graded in piece]
    ids = [list(range(1, 1 + math.ceil(len(text) / TOKEN_CHARACTERS))) for text in texts]
    return reward_arguments([graded.row for graded in piece], texts, ids)


class Grader:
    """Scores completions with every function, in batches; a batch that fails is scored one completion at a time.

    `on_problem(kind, message, graded)` is called for each problem.
    """

    def __init__(self, process: OwnProcess, weights: dict[str, float], on_problem):
        self.process, self.weights, self.on_problem = process, weights, on_problem
        self.tallies = {name: Counter() for name in self.weights}  # completions, None scores and problems by kind
        self.singly = set()  # functions that took too long for a batch

    def grade(self, pairs: list[tuple], alone: bool = False) -> list[Graded]:
        results = [Graded(row, text) for row, text in pairs]
        for name in self.weights:
            size = 1 if alone or name in self.singly else BATCH
            for start in range(0, len(results), size):
                self.score(name, results[start : start + size])
        return results

    def score(self, name: str, piece: list[Graded]) -> None:
        """Fill in one function's scores of a batch; if the batch fails, score its completions one by one."""
        tally = self.tallies[name]
        if tally["hung"] + tally["died"] >= GIVE_UP:
            for graded in piece:
                graded.problems[name] = f"not called after {GIVE_UP} calls that hung or died"
            return
        reply = self.process.call(name, as_batch(piece))
        if reply.get("changed"):
            self.count("changed", name, "changes its inputs", piece[0])
        if "values" in reply:
            self.keep(name, piece, reply)
            return
        kind = next(kind for kind in KINDS if kind in reply)
        if len(piece) == 1:
            tally["completions"] += 1
            piece[0].problems[name] = reply[kind]
            self.count(kind, name, f"{reply[kind]} ({reply['where']})" if reply.get("where") else reply[kind], piece[0])
            return
        for graded in piece:
            self.score(name, [graded])
        if not any(name in graded.problems for graded in piece):
            message = f"{reply[kind]} on a batch of {len(piece)}, but on none of its completions alone"
            self.count("latency" if kind == "hung" else "batch", name, message, piece[0])
            self.singly |= {name} if kind == "hung" else set()

    def count(self, kind: str, name: str, message: str, graded: Graded) -> None:
        self.tallies[name][kind] += 1
        self.on_problem(kind, f"{name} {message}", graded)

    def keep(self, name: str, piece: list[Graded], reply: dict) -> None:
        self.tallies[name] += Counter(completions=len(piece), none=reply["values"].count(None) - len(reply["bad"]))
        for i, (graded, value) in enumerate(zip(piece, reply["values"], strict=True)):
            graded.parts[name] = value
            if len(piece) == 1:
                graded.seconds[name] = reply["seconds"]
            if i in reply["bad"]:
                graded.problems[name] = reply["bad"][i]
                self.count("not_finite", name, reply["bad"][i], graded)

    def total(self, graded: Graded) -> float | None:
        """The weighted sum of a completion's scores; None if no function applies or one failed."""
        parts = {name: value for name, value in graded.parts.items() if value is not None}
        if graded.problems or not parts:
            return None
        return sum(self.weights[name] * value for name, value in parts.items())
