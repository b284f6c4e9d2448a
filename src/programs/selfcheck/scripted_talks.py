"""Conversations of a script: answers that are known, and an environment that notes what it is told.

Each conversation is told its number by `reset` and by every reply, so that its tokens can be told from another's
wherever a trainer puts them.
"""

import dataclasses
import random
import re
import sys
import tempfile
import types
from pathlib import Path

PLAYED = 4  # conversations: two of each of two rows
ANSWERS = (1, 3, 2, 3)  # answers after which the environment ends each
TURNS = 4  # answers that a trainer is to allow
ANSWER_TOKENS = 64  # of an answer that is cut off
NOTED = "selfcheck"  # a column of the rows: a list, to which every reset adds its number
NUMBERS = re.compile(r"(?:\[talk(\d)\])+")


def number_of(text: str) -> int | None:
    """Which conversation a text is of: the last of the numbers with which it begins; None without one."""
    match = NUMBERS.search("".join(text.split()))
    return int(match[1]) if match else None


def numbers_in(text: str) -> set[int]:
    """The conversations of which a text holds words."""
    return {int(digit) for digit in re.findall(r"\[talk(\d)\]", "".join(text.split()))}


@dataclasses.dataclass
class Turn:
    """An answer that was asked for: what it was asked for with, the ids and log-probs that were given."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


@dataclasses.dataclass
class Record:
    """What a trainer does with the conversations of one play."""

    tokenizer: object
    answers: list[list[list[int]]]  # ids of each answer of each conversation
    paid: int | None = None  # the conversation whose return is 1 higher
    turns: dict[int, list[Turn]] = dataclasses.field(default_factory=dict)
    heard: dict[int, list[str]] = dataclasses.field(default_factory=dict)  # texts
    said: dict[int, list[str]] = dataclasses.field(default_factory=dict)  # replies
    rows: list[list[int]] = dataclasses.field(
        default_factory=list
    )  # of each reset: the resets that had noted something in its row
    reused: list[tuple[int, int]] = dataclasses.field(
        default_factory=list
    )  # conversations that one object served at once
    early: set[int] = dataclasses.field(
        default_factory=set
    )  # conversations whose return was asked for before their last answer

    def answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Answers by the script, in the place of a sampler: (ids, log-probs) for each prompt."""
        answers = []
        for prompt in prompts:
            number = number_of(self.tokenizer.decode(prompt)) or 0
            turns = self.turns.setdefault(number, [])
            script = self.answers[number % PLAYED]
            ids = script[min(len(turns), len(script) - 1)]
            first = 1 + 0.1 * number + 0.01 * len(turns)  # no two alike
            turns.append(Turn([*prompt], [*ids], [-first - 1e-4 * i for i in range(len(ids))]))
            answers.append((turns[-1].ids, turns[-1].logprobs))
        return answers

    def environment(self) -> type:
        """The class of environments that writes this record."""
        record = self

        class Probe:
            """Talks by `reply`; its return is that of its number."""

            def reset(self, **row) -> str:
                notes, number = row.get(NOTED, []), len(record.rows)
                if "number" in vars(self) and not self.scored:
                    record.reused.append((self.number, number))
                record.rows.append([*notes])
                notes.append(number)
                self.number, self.count, self.scored = number, 0, False
                return f" [talk {number}]"

            def reply(self, text: str) -> str | None:
                record.heard.setdefault(self.number, []).append(text)
                record.early |= {self.number} if self.scored else set()
                self.count += 1
                if self.count >= ANSWERS[self.number % PLAYED]:
                    return None
                said = f"[talk {self.number}] No, {self.count}."
                record.said.setdefault(self.number, []).append(said)
                return said

            def get_reward(self) -> float:
                self.scored = True
                return 0.5 * (self.number % 2) + float(self.number == record.paid)

        return Probe


def through_a_file(environment: type, load):
    """What `load`, a trainer's own, makes of a class of environments that lies in a file as a user's does."""
    sys.modules["selfcheck_environment"] = module = types.ModuleType("selfcheck_environment")
    module.Probe = environment
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.py"
        file.write_text("from selfcheck_environment import Probe\n")
        return load(f"{file}:Probe")


def odd_answers(tokenizer, end: int) -> list[list[list[int]]]:
    """Answers of ids that their text, encoded anew, would not give; every third is cut off."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    plain = [i for i in range(len(tokenizer)) if i not in special]
    draw, script = random.Random(0), []
    for count in ANSWERS:
        answers = []
        for _ in range(count):
            cut = (len(script) + len(answers)) % 3 == 1
            ids = odd_ids(tokenizer, plain, draw, ANSWER_TOKENS if cut else 5)
            answers.append(ids if cut else [*ids, end])
        script.append(answers)
    return script


def odd_ids(tokenizer, plain: list[int], draw: random.Random, count: int) -> list[int]:
    """So many ids which their text, encoded anew, would not give, where there are such."""
    ids = []
    for _ in range(100):
        ids = [draw.choice(plain) for _ in range(count)]
        if tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids:
            break
    return ids


def thought_answers(tokenizer, end: int, thinks: bool, begun: bool) -> list[list[list[int]]]:
    """Answers in words, with a thought before each if the model thinks; the second of each conversation is cut off.

    Args:
        begun: the template itself writes the tag with which a thought begins.
    """
    script = []
    for number, count in enumerate(ANSWERS):
        answers = []
        for turn in range(count):
            thought = f"{'' if begun else '<think>'}\nThought {number}{turn}\n</think>\n\n" if thinks else ""
            text = f"{thought}Answer {number}{turn}"
            ids = tokenizer.encode(text, add_special_tokens=False)
            answers.append(ids if turn == 1 else [*ids, end])
        script.append(answers)
    return script
