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
from pathlib import Path

from programs.selfcheck.input_checks import turn_end
from programs.selfcheck.trainer import Trainer, check

PLAYED = 4  # conversations: two of each of two rows
ANSWERS = (1, 3, 2, 3)  # answers after which the environment ends each conversation
TURNS = 4  # answers that a trainer must allow
ANSWER_TOKENS = 64  # length of an answer that is cut off
NOTED = "selfcheck"  # column with a list to which every reset adds its number


def numbers_in(text: str) -> list[int]:
    """The numbers of conversations that a text names, in order; decoding may add white space."""
    return [int(number) for number in re.findall(r"\[talk(\d)\]", "".join(text.split()))]


class Record:
    """What a trainer does with the conversations of one rollout, by their numbers.

    Args:
        end: the token that ends an answer.
        raised: whether the return of conversation n is n + 1 higher.
    """

    def __init__(self, tokenizer, end: int, raised: bool):
        self.tokenizer, self.raised, self.count = tokenizer, raised, 0
        self.answers = odd_answers(tokenizer, end)
        self.turns, self.heard = defaultdict(list), defaultdict(int)  # [(prompt, ids, log-probs)]; answers heard
        self.faults = []  # what conversations wrongly share

    def answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """(Ids, log-probs) of the scripted answer to each prompt, in place of a sampler."""
        answers = []
        for prompt in prompts:
            numbers = numbers_in(self.tokenizer.decode(prompt))
            number = numbers[0] if numbers else 0
            if strangers := {*numbers} - {number}:
                self.faults.append(f"conversation {number} gets text of conversation {min(strangers)}")
            turns, script = self.turns[number], self.answers[number % PLAYED]
            ids = script[min(len(turns), len(script) - 1)]
            first = 1 + 0.1 * number + 0.01 * len(turns)  # distinct for each answer
            turns.append(([*prompt], [*ids], [-first - 1e-4 * i for i in range(len(ids))]))
            answers.append(turns[-1][1:])
        return answers

    def environment(self) -> type:
        """A class of environments that write this record."""
        record = self

        class Probe:
            """Answers by `reply`; its return depends on its number."""

            def reset(self, **row) -> str:
                notes = row.get(NOTED, [])
                if notes or ("number" in vars(self) and not self.scored):
                    record.faults.append(f"conversation {record.count} shares its row or environment with another")
                notes.append(record.count)
                self.number, self.count, self.scored = record.count, 0, False
                record.count += 1
                return f" [talk {self.number}]"

            def reply(self, text: str) -> str | None:
                record.heard[self.number] += 1
                self.count += 1
                is_over = self.count >= ANSWERS[self.number % PLAYED]
                return None if is_over else f"[talk {self.number}] No, {self.count}."

            def get_reward(self) -> float:
                if self.count < len(record.turns[self.number]):
                    record.faults.append(f"conversation {self.number} is scored before its last answer was heard")
                self.scored = True
                return 0.5 * (self.number % 2) + record.raised * (self.number + 1.0)

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


def played(s: Trainer, raised: bool = False) -> tuple[Record, dict, list[float]]:
    """(Record, batch, scores) of two rows, each passed twice as the same object, as in a group of two completions."""
    tokenizer, ends = s.models.tokenizer, [*s.models.eos_ids]
    end = next((i for i in turn_end(tokenizer) if i in ends), ends[0])  # the template's end of an answer
    record, few = Record(tokenizer, end, raised), copy.deepcopy(s.rows[:2])
    for row in few:
        row["columns"][NOTED] = []
    batch, scores = s.play(record, [row for row in few for _ in range(PLAYED // len(few))])
    if not record.turns:
        raise ValueError("the trainer did not sample with the sampler under test; see --contract")
    if len(scores) != PLAYED:
        raise ValueError(f"{PLAYED} rows gave {len(scores)} conversations")
    return record, batch, scores


@check(moved=False, plays=True)
def turn_mask(s: Trainer):
    """The mask is 1 on exactly the tokens that were sampled, with the sampler's ids and log-probs.

    Try: append the sampled ids to those before them, then the chat template's text between two answers; neither decode
        and encode an answer, nor render the conversation again. Set response_mask to 1 on sampled tokens only, an
        answer's end token included, and to 0 on the prompt, on text of tools and environment, and on the template's
        tokens between answers; rollout_logprobs use the same places.
    """
    record, batch, _ = played(s)
    decode, faults, count = s.models.tokenizer.decode, [], 0
    names = ("attention_mask", "input_ids", "response_mask", "rollout_logprobs")
    for i, (real, *columns) in enumerate(zip(*(batch[name].cpu() for name in names), strict=True)):
        pads = int(columns[1][real == 0].ne(0).sum())
        ids, mask, logprobs = (x[real.bool()].tolist() for x in columns)
        number = next(iter(numbers_in(decode(ids))), None)
        turns = record.turns.get(number, [])
        expected = [pair for _, sampled, figures in turns for pair in zip(sampled, figures, strict=True)]
        trained = [(a, x) for a, x, m in zip(ids, logprobs, mask, strict=True) if m]
        count += len(trained)
        for (_, sampled, _), (prompt, *_) in zip(turns, [*turns[1:], (ids, [], [])], strict=True):
            if not contains(prompt, sampled):
                text = f"{decode(sampled)!r} is not in the next turn's prompt or in the batch as it was sampled"
                faults.append(f"conversation {number}: {text}")
        if pads or [a for a, _ in trained] != [a for a, _ in expected]:
            leaked = decode([a for a, _ in trained])
            text = f"1 on {len(trained)} tokens and {pads} pads, of which {len(expected)} were sampled ({leaked!r})"
            faults.append(f"row {i}, conversation {number}: response_mask is {text}")
        elif any(abs(x - y) > 1e-5 for (_, x), (_, y) in zip(trained, expected, strict=True)):
            faults.append(f"conversation {number}: rollout_logprobs are not the sampler's")
    if faults:
        return False, f"{faults[0]} ({len(faults)} faults)"
    answers = [ids for turns in record.turns.values() for _, ids, _ in turns]
    if len(answers) == PLAYED:
        return None, "no conversation has a second answer: the trainer's limits allow only one"
    return True, f"1 on exactly the {count} tokens of {len(answers)} answers in {PLAYED} conversations"


def contains(ids: list[int], piece: list[int]) -> bool:
    return any(ids[i : i + len(piece)] == piece for i in range(len(ids) - len(piece) + 1))


@check(moved=False, plays=True)
def turn_state(s: Trainer):
    """Each conversation has its own environment, row, replies and return, which changes no other score.

    Try: make an environment and a copy of the row for each conversation; get its return from its own environment, after
        that has heard the last answer; keep scores in the order of the batch.
    """
    record, _, usual = played(s)
    _, batch, raised = played(s, raised=True)
    faults = [*record.faults]
    for number, turns in sorted(record.turns.items()):
        if record.heard[number] != len(turns):
            text = f"heard {record.heard[number]} answers instead of {len(turns)}"
            faults.append(f"the environment of conversation {number} {text}")
    for i, (ids, before, after) in enumerate(zip(batch["input_ids"].tolist(), usual, raised, strict=True)):
        number = next(iter(numbers_in(s.models.tokenizer.decode(ids))), None)
        if number is not None and abs(after - before - number - 1) > 1e-5:
            faults.append(f"score {i} changes by {after - before:g}, the return of its conversation by {number + 1}")
    return not faults, "; ".join(dict.fromkeys(faults)) or f"{PLAYED} environments, rows and returns, none shared"


TURN_CHECKS = (turn_mask, turn_state)
