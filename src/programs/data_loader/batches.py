"""Batches of token ids."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parts.data.chat import chat_ids
from parts.data.prompts import encode_prompt
from parts.foundation.messages import UserError, need, suggest
from parts.networks.batches import left_pad
from programs.data_loader.row_reader import digest


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt up to where the assistant speaks; a column `tools` goes to the chat template."""
    if tokenizer.chat_template:
        tools = row.get("tools") if isinstance(row.get("tools"), list) else None
        return chat_ids(tokenizer, row["prompt"], tools=tools)
    return encode_prompt(tokenizer, row["prompt"])


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there. Also works as `collate_fn` of a torch DataLoader.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        need(self.pad_id is not None, "got a tokenizer without pad and eos token; expected one; try setting pad_token")

    def __call__(self, rows: list[dict]) -> dict:
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        clash = {"input_ids", "attention_mask"} & set(names)
        need(
            not clash, f"got the column {', '.join(clash)}, which the batch has itself; expected another name; try drop"
        )
        ids, mask = left_pad([prompt_ids(self.tokenizer, row) for row in rows], self.pad_id, None)
        return {"input_ids": ids, "attention_mask": mask, **{name: [row.get(name) for row in rows] for name in names}}


def buffered_shuffle(rows: Iterator[dict], size: int, rng: random.Random) -> Iterator[dict]:
    """Rows in random order as far as a buffer of so many allows."""
    held = list(itertools.islice(rows, size))
    rng.shuffle(held)
    for row in rows:
        at = rng.randrange(len(held))
        held[at], row = row, held[at]
        yield row
    yield from held


@dataclass
class RowSet:
    """One set of rows: a list, or a function that starts reading it anew."""

    name: str
    rows: list[dict] | None
    read: Callable[[], Iterator[dict]] | None = None
    ids: str | None = None

    def mark(self) -> str | None:
        """What stands for the ids of all rows; None where they are streamed."""
        if self.rows is not None and self.ids is None:
            self.ids = digest([row["id"] for row in self.rows]).hex()
        return self.ids

    def one_pass(self, seed: str | None, curriculum, buffer: int) -> Iterator[dict]:
        """All rows once: as they stand, shuffled by the seed, or in the order of the curriculum."""
        rng = random.Random(seed) if seed is not None else None
        if self.rows is None:
            return buffered_shuffle(self.read(), buffer, rng) if rng else self.read()
        order = list(range(len(self.rows)))
        if rng:
            rng.shuffle(order)
        if curriculum is not None:  # the sort is stable: rows of one level stay shuffled
            keys = [difficulty(row, curriculum) for row in self.rows]
            try:
                order.sort(key=keys.__getitem__, reverse=isinstance(curriculum, str) and curriculum.startswith("-"))
            except TypeError as error:
                raise UserError(f"got curriculum values that have no order ({error}); expected all numbers") from None
        return (self.rows[index] for index in order)


def difficulty(row: dict, curriculum):
    """What the curriculum sorts by: a column (`-column`: falling) or a function of the row."""
    if callable(curriculum):
        return curriculum(row)
    name = curriculum.removeprefix("-")
    has = f"got row {row.get('id')!r} with the columns {', '.join(row)}"
    need(row.get(name) is not None, f"{has}; expected the curriculum's column {name!r}{suggest(name, list(row))}")
    return row[name]
