"""Scripted conversations: known answers, and an environment that records what it gets.

`reset` and every reply name the conversation's number, so that its tokens are recognised wherever a trainer puts them.
"""

import random
import re
import sys
import tempfile
import types
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

PLAYED = 4  # conversations: two of each of two rows
ANSWERS = (1, 3, 2, 3)  # answers after which the environment ends each conversation
TURNS = 4  # answers that a trainer must allow
ANSWER_TOKENS = 64  # length of an answer that is cut off
NOTED = "selfcheck"  # column with a list to which every reset adds its number
NUMBER = r"\[talk(\d)\]"  # marks a conversation, in text without white space


def squeezed(text: str) -> str:
    return "".join(text.split())


def numbers_in(text: str) -> list[int]:
    """The numbers of conversations that a text names, in order."""
    return list(map(int, re.findall(NUMBER, squeezed(text))))


def number_of(text: str) -> int | None:
    """The number of a text's conversation: the last one in the first run of numbers; None without one."""
    match = re.search(f"(?:{NUMBER})+", squeezed(text))
    return int(match[1]) if match else None


class Turn(NamedTuple):
    """An answer: the prompt that asked for it, its ids and their log-probs."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


class Record:
    """What a trainer does with the conversations of one rollout, by their numbers.

    Args:
        end: the token that ends an answer.
        paid: the conversation whose return is 1 higher.
    """

    def __init__(self, tokenizer, end: int, paid: int | None):
        self.tokenizer, self.paid, self.count = tokenizer, paid, 0
        self.answers = odd_answers(tokenizer, end)
        self.turns, self.heard = defaultdict(list), defaultdict(list)
        self.shared = []  # what conversations wrongly share, in words
        self.early = set()  # conversations whose return was asked for before their last answer

    def answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """(Ids, log-probs) of the scripted answer to each prompt, in place of a sampler."""
        answers = []
        for prompt in prompts:
            number = number_of(self.tokenizer.decode(prompt)) or 0
            turns, script = self.turns[number], self.answers[number % PLAYED]
            ids = script[min(len(turns), len(script) - 1)]
            first = 1 + 0.1 * number + 0.01 * len(turns)  # distinct for each answer
            turns.append(Turn([*prompt], [*ids], [-first - 1e-4 * i for i in range(len(ids))]))
            answers.append(turns[-1][1:])
        return answers

    def environment(self) -> type:
        """A class of environments that write this record."""
        record = self

        class Probe:
            """Answers by `reply`; its return depends on its number."""

            def reset(self, **row) -> str:
                notes, number = row.get(NOTED, []), record.count
                if "number" in vars(self) and not self.scored:
                    both = f"{self.number} and {number}"
                    record.shared.append(f"one environment object serves conversations {both} at once")
                if notes:
                    others = " and ".join(map(str, notes))
                    record.shared.append(f"reset of conversation {number} got columns that reset of {others} changed")
                notes.append(number)
                record.count += 1
                self.number, self.count, self.scored = number, 0, False
                return f" [talk {number}]"

            def reply(self, text: str) -> str | None:
                record.heard[self.number].append(text)
                record.early |= {self.number} if self.scored else set()
                self.count += 1
                is_over = self.count >= ANSWERS[self.number % PLAYED]
                return None if is_over else f"[talk {self.number}] No, {self.count}."

            def get_reward(self) -> float:
                self.scored = True
                return 0.5 * (self.number % 2) + float(self.number == record.paid)

        return Probe


def through_a_file(record: Record, load):
    """Load a record's environments by `load`, the trainer's own function, from a file as if they were a user's."""
    sys.modules["selfcheck_environment"] = module = types.ModuleType("selfcheck_environment")
    module.Probe = record.environment()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.py"
        file.write_text("from selfcheck_environment import Probe\n")
        return load(f"{file}:Probe")


def odd_answers(tokenizer, end: int) -> list[list[list[int]]]:
    """Answers whose text, if encoded again, gives other ids (if the tokenizer has such); every third is cut off."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    plain, draw = [i for i in range(len(tokenizer)) if i not in special], random.Random(0)

    def answer(cut: bool) -> list[int]:
        for _ in range(100):  # there may be none
            ids = [draw.choice(plain) for _ in range(ANSWER_TOKENS if cut else 5)]
            if tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids:
                break
        return ids if cut else [*ids, end]

    return [[answer((number + turn) % 3 == 1) for turn in range(count)] for number, count in enumerate(ANSWERS)]
