"""Batches of prompts: padded on the left, reshuffled in each epoch, resumable."""

import itertools
import random
from collections.abc import Iterator

from parts.data.prompts import encode_prompt
from parts.foundation.messages import need, say
from parts.networks.batches import left_pad
from programs.data_loader.bad_rows import opened, shown
from programs.data_loader.row_reader import digest, load_rows


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt with the generation prompt; the chat template also gets a column `tools`."""
    tools = opened(row.get("tools"))  # often JSON text
    return encode_prompt(tokenizer, row["prompt"], tools=tools if isinstance(tools, list) else None)


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there. Also works as `collate_fn` of a torch DataLoader over rows.
    """

    def __init__(self, tokenizer):
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        self.tokenizer, self.pad_id = tokenizer, next((token for token in ids if token is not None), None)
        need(self.pad_id is not None, "got a tokenizer without pad and eos token; expected one; try setting pad_token")

    def __call__(self, rows: list[dict]) -> dict:
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        clash = ", ".join({"input_ids", "attention_mask"} & set(names))
        need(not clash, f"got the column {clash}, which a batch uses itself; expected another name; try drop")
        ids, mask = left_pad([prompt_ids(self.tokenizer, row) for row in rows], self.pad_id, None)
        return {"input_ids": ids, "attention_mask": mask, **{name: [row.get(name) for row in rows] for name in names}}


class PromptLoader:
    """Batches of prompts: each `for` goes through the rest of the current epoch.

    The order depends only on rows, seed and epoch, so that `load_state_dict` continues exactly where `state_dict` was.
    """

    def __init__(self, rows: list[dict], collator: Collator, batch_size: int, seed: int | None, left_out: int):
        self.rows, self.collator, self.batch_size, self.seed = rows, collator, batch_size, seed
        self.epoch, self.position, self.left_out = 0, 0, left_out  # rows of the epoch that were given; too long ones

    def __iter__(self) -> Iterator[dict]:
        order = list(range(len(self.rows)))
        if self.seed is not None:
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        while picked := order[self.position : self.position + self.batch_size]:
            self.position += len(picked)
            yield self.collator([self.rows[index] for index in picked])
        self.epoch, self.position = self.epoch + 1, 0

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def state_dict(self) -> dict:
        order = digest([self.seed, *(row["id"] for row in self.rows)]).hex()
        return {"epoch": self.epoch, "position": self.position, "order": order}

    def load_state_dict(self, state: dict) -> None:
        """Continue from the state of a loader with the same rows and seed; UserError for another state."""
        fits = isinstance(state, dict) and state.get("order") == self.state_dict()["order"]
        need(fits, f"got the state {shown(state)}; expected the state_dict of a loader with the same rows and seed")
        self.epoch, self.position = state["epoch"], state["position"]


def create_dataloader(
    kind: str, sources, tokenizer, *, batch_size: int, max_prompt_tokens=None, shuffle_seed=None, **reading
) -> PromptLoader:
    """Batches of at most `batch_size` prompts with all their columns, from any input that load_rows reads.

    Args:
        max_prompt_tokens: leave out longer prompts, and count them in `left_out`.
        shuffle_seed: shuffle anew in each epoch, by this seed (default: the order of the files).
        **reading: further arguments of load_rows: mapping, system_prompt, on_bad, limit, …

    Raises:
        UserError: an argument cannot be used, or an input cannot be read; BadRows if rows do not fit.
    """
    need(batch_size > 0, f"got batch_size {batch_size}; expected 1 or more")
    rows, longest = load_rows(sources, kind, **reading).rows, max_prompt_tokens
    kept = [row for row in rows if longest is None or len(prompt_ids(tokenizer, row)) <= longest]
    need(kept, f"got no prompt within max_prompt_tokens {longest}; expected at least one; try a higher limit")
    if left_out := len(rows) - len(kept):
        say(f"warning: left out {left_out} of {len(rows)} prompts longer than max_prompt_tokens {longest}")
    return PromptLoader(kept, Collator(tokenizer), batch_size, shuffle_seed, left_out)
