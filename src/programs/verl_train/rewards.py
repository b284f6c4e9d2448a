"""Rewards inside verl's processes."""

import asyncio
import contextlib
import math
import queue
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from parts.rewards.rewards import CallLimits, Reward
from programs.verl_train.data import row_columns

REWARD_ERROR = "reward_error.txt"  # of the output folder: why a reward or an environment ended the run
REWARD_FAILED = "REWARD FAILED"


class Gathering:
    """Calls a function of a list, in one thread, with all that waits: what arrives meanwhile is its next list."""

    def __init__(self, function, name: str):
        self.function = function
        self.waiting, self.thread = queue.SimpleQueue(), ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, item) -> Future:
        """Queue one item; the future is the item's entry in the list that the function returns."""
        future = Future()
        self.waiting.put((item, future))
        self.thread.submit(self.drain)
        return future

    def drain(self) -> None:
        """Call the function with all that waits; what it raises is every item's."""
        batch = []
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self.waiting.get_nowait())
        try:
            results = self.function([item for item, _ in batch]) if batch else []
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class RewardBatcher:
    """Scores completions that come one at a time, as verl sends them, in the batches that reward functions expect.

    One thread calls the functions, as in our trainers; what arrives while it is busy is its next batch.
    """

    def __init__(self, specs: list[str], columns: list[str], error_file: str = "", limits: tuple = ()):
        self.reward, self.columns, self.error_file = Reward(specs, CallLimits(*limits)), columns, error_file
        self.gathering = Gathering(self.score_all, "reward")

    def score_all(self, batch: list[tuple]) -> list[dict]:
        """What verl gets for each completion (row, text, ids)."""
        rows, texts, ids = zip(*batch, strict=True)
        try:
            scores, parts = self.reward(list(rows), list(texts), list(ids))
        except Exception as error:  # a plain error: Ray has to carry it to processes that do not know our classes
            raise RuntimeError(f"{REWARD_FAILED}: {error}") from None
        return [named_scores(score, {name: each[i] for name, each in parts.items()}) for i, score in enumerate(scores)]

    async def score(self, row: dict, text: str, ids: list[int]) -> dict:
        """The weighted sum as `score`, and every function's own value; a failure is told and left for the launcher."""
        try:
            return await asyncio.wrap_future(self.gathering.submit((self.row(row), text, ids)))
        except Exception as error:
            tell_failure(str(error), self.error_file)
            raise

    def row(self, row: dict) -> dict:
        """A row of verl's data as our rewards know it."""
        known, messages = row_columns(row), [dict(message) for message in row["raw_prompt"]]
        is_text = bool(row["extra_info"].get("prompt_is_text"))
        prompt = "".join(message["content"] for message in messages) if is_text else messages
        return {"prompt": prompt, "columns": {name: known.get(name) for name in self.columns}}


def bits_of(group_size: int) -> int:
    """Bits of a number of which float32 adds up group_size equal ones exactly."""
    return 24 - (group_size - 1).bit_length()


def exact_in_means(score: float, group_size: int) -> float:
    """The score to so few bits that float32 adds up a group of equal ones exactly; it changes by 2^-bits at most.

    verl's mean of eight 1.2 is 1.1999999; beside a deviation of 1e-7 and its epsilon of 1e-6 that makes advantages of
    0.1 where there should be none.
    """
    bits = bits_of(group_size)
    mantissa, exponent = math.frexp(score)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def named_scores(score: float, parts: dict[str, float | None]) -> dict[str, float]:
    """What verl gets for one completion; `acc`, its name for accuracy, is full marks of the first function."""
    first = next(iter(parts.values()), None)
    named = {("acc_2" if name == "acc" else name): value or 0.0 for name, value in parts.items()}
    return {"score": score, "acc": float(first is not None and first >= 1), **named}


def tell_failure(text: str, error_file: str) -> None:
    """Print why a run will end, and leave it where the launcher looks for it."""
    print(f"\n{text}\n", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # the folder may be another machine's
        if error_file:
            Path(error_file).write_text(f"{text}\n", encoding="utf-8")
