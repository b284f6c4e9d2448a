"""Checks of conversations: sampled ids stay, only they are trained, nothing reaches another conversation.

The trainer plays with selfcheck's answers and its environment, which records what it gets. `reset` and every reply name
the conversation's number, so that its tokens are recognised wherever a trainer puts them.
"""

import copy
import random
import re
import sys
import tempfile
import types
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from programs.selfcheck.input_checks import turn_end
from programs.selfcheck.trainer import Trainer, check

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


turn_check = check(moved=False, plays=True)


@dataclass
class Row:
    """A conversation in the trainer's batch, without pads."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    score: float
    number: int | None  # of the conversation, as its text says
    turns: list  # its `Turn`s
    outside: int  # pads at which the mask is 1


def played(s: Trainer, paid: int | None = None) -> tuple[Record, list[Row]]:
    """Let the trainer play two rows, each passed twice as the same object, as in a group of two completions."""
    tokenizer, ends = s.models.tokenizer, [*s.models.eos_ids]
    end = next((i for i in turn_end(tokenizer) if i in ends), ends[0])  # the template's end of an answer
    record, few, rows = Record(tokenizer, end, paid), copy.deepcopy(s.rows[:2]), []
    for row in few:
        row["columns"][NOTED] = []
    batch, scores = s.play(record, [row for row in few for _ in range(PLAYED // len(few))])
    if not record.turns:
        raise ValueError("the trainer did not sample with the sampler under test; see --contract")
    if len(scores) != PLAYED:
        raise ValueError(f"{PLAYED} rows gave {len(scores)} conversations")
    names = ("attention_mask", "input_ids", "response_mask", "rollout_logprobs")
    for score, real, *columns in zip(scores, *(batch[name].cpu() for name in names), strict=True):
        outside = int(columns[1][real == 0].ne(0).sum())
        ids, mask, logprobs = (x[real.bool()].tolist() for x in columns)
        number = number_of(tokenizer.decode(ids))
        about = float(score), number, record.turns.get(number, []), outside
        rows.append(Row(ids, [int(x != 0) for x in mask], logprobs, *about))
    return record, rows


def broken_turn(s: Trainer, row: Row) -> str:
    """How a conversation in the batch departs from what was sampled; "" if it does not."""
    decode, turns = s.models.tokenizer.decode, row.turns
    if not turns:
        return "it has nothing of its conversation: the text that reset returns must follow the prompt"
    places = [(f"the prompt of turn {i}", turn.prompt) for i, turn in enumerate(turns[1:], 2)] + [
        ("the batch", row.ids)
    ]
    for turn, (place, follows) in zip(turns, places, strict=True):
        expected = turn.prompt + turn.ids
        if follows[: len(expected)] != expected:
            pairs = enumerate(zip(expected, follows, strict=False))
            at = next((k for k, (a, b) in pairs if a != b), len(follows))
            one, two = (x[max(0, at - 2) : at + 6] for x in (expected, follows))
            text = f"{place} departs from what was sampled: {one} {decode(one)!r} is {two} {decode(two)!r} there"
            same = decode(follows).startswith(decode(expected))
            return text + "; the text is the same: it was encoded again" * same
    return ""


@turn_check
def turn_ids(s: Trainer):
    """Sampled ids stay unchanged, in the next turn's prompt and in the batch.

    Try: append the sampled ids to those before them, then the chat template's text between two answers; neither decode
        and encode an answer, nor render the conversation again.
    """
    (record, rows), tokenizer = played(s), s.models.tokenizer
    faults = [f"conversation {i}: {text}" for i, row in enumerate(rows) if (text := broken_turn(s, row))]
    if faults:
        return False, f"{faults[0]} ({len(faults)} of {PLAYED} conversations)"
    answers = [turn.ids for turns in record.turns.values() for turn in turns]
    if len(answers) == PLAYED:
        return None, "no conversation has a second answer: the trainer's limits allow only one"
    ambiguous = sum(tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids for ids in answers)
    text = f"{len(answers)} answers of {PLAYED} conversations are as sampled"
    return True, f"{text}; {ambiguous} of them differ if encoded again"


@turn_check
def turn_mask(s: Trainer):
    """The mask is 1 on sampled tokens and on nothing else, and each of these tokens has its own log-prob.

    Try: set response_mask to 1 on sampled tokens only, an answer's end token included, and to 0 on the prompt, on text
        of tools and environment, and on the template's tokens between answers; rollout_logprobs use the same places.
    """
    (_, rows), faults = played(s), []
    if any(broken_turn(s, row) for row in rows):
        return None, "the sampled tokens cannot be found in the batch: see turn_ids"
    for i, row in enumerate(rows):
        expected, logprobs = [0] * len(row.ids), [0.0] * len(row.ids)
        for turn in row.turns:
            places = slice(len(turn.prompt), len(turn.prompt) + len(turn.ids))
            expected[places], logprobs[places] = [1] * len(turn.ids), turn.logprobs
        leaked = [k for k, (a, b) in enumerate(zip(row.mask, expected, strict=True)) if a > b]
        lost = sum(a < b for a, b in zip(row.mask, expected, strict=True))
        wrong = sum(b and abs(x - y) > 1e-5 for x, y, b in zip(row.logprobs, logprobs, expected, strict=True))
        text = s.models.tokenizer.decode([row.ids[k] for k in leaked[:40]])
        counts = {
            f"1 on {row.outside} pads": row.outside,
            f"1 on {len(leaked)} tokens that were not sampled ({text!r})": leaked,
            f"0 on {lost} tokens that were sampled": lost,
            f"rollout_logprobs differ from the sampler's at {wrong} tokens": wrong,
        }
        faults += [f"conversation {i}: {fault}" for fault, count in counts.items() if count]
    if faults:
        return False, "response_mask: " + "; ".join(faults)
    count = sum(sum(row.mask) for row in rows)
    return True, f"1 on exactly the {count} sampled tokens of {PLAYED} conversations, with the sampler's log-probs"


@turn_check
def turn_rewards(s: Trainer):
    """A changed return changes the score of its own conversation and of no other.

    Try: get each conversation's return from its own environment, after that has heard the last answer, and keep scores
        in the order of the batch.
    """
    (record, usual), faults = played(s), []
    for paid in range(PLAYED):
        _, rows = played(s, paid)
        numbers = [row.number for row in rows]
        if {*numbers} != {*range(PLAYED)}:
            return None, "the batch's conversations cannot be told apart: see turn_ids"
        changed = [i for i, (a, b) in enumerate(zip(usual, rows, strict=True)) if abs(a.score - b.score) > 1e-6]
        if changed != [numbers.index(paid)]:
            names = ", ".join(map(str, changed)) or "none"
            faults.append(f"of conversation {paid}: score {names} changes with its return")
    if record.early:
        early = ", ".join(map(str, sorted(record.early)))
        faults.append(f"conversation {early}: asked for the return before the environment heard its last answer")
    return not faults, "; ".join(faults) or f"{PLAYED} returns, each in the score of its own conversation"


@turn_check
def turn_state(s: Trainer):
    """Each conversation has its own environment, row, prompt and replies.

    Try: make an environment and a copy of the row for each conversation: what one changes, no other may see.
    """
    (record, _), tokenizer = played(s), s.models.tokenizer
    answers = {
        n: [squeezed(tokenizer.decode(turn.ids, skip_special_tokens=True)) for turn in turns]
        for n, turns in sorted(record.turns.items())
    }
    faults = [*record.shared]
    for number, given in answers.items():
        strangers = {*numbers_in(tokenizer.decode(record.turns[number][-1].prompt))} - {number}
        if strangers:
            faults.append(f"conversation {number} gets text of conversation {', '.join(map(str, sorted(strangers)))}")
        heard = [squeezed(text) for text in record.heard[number]]
        others = [str(n) for n, texts in answers.items() if {*heard} & {*texts} - {*given}]
        if others:
            faults.append(f"the environment of conversation {number} heard answers of {', '.join(others)}")
        elif len(given) != len(heard):
            faults.append(f"the environment of conversation {number} heard {len(heard)} of its {len(given)} answers")
    return not faults, "; ".join(dict.fromkeys(faults)) or f"{PLAYED} environments, rows and prompts, none shared"


TURN_CHECKS = (turn_ids, turn_mask, turn_rewards, turn_state)
