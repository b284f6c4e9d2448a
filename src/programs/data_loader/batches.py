"""Batches of prompts for torch's DataLoader, padded on the left."""

import itertools

from parts.data.prompts import encode_prompt
from parts.foundation.messages import need
from parts.foundation.processes import torch
from parts.networks.batches import left_pad
from programs.data_loader.bad_rows import opened
from programs.data_loader.row_reader import load_rows


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt with the generation prompt; the chat template also gets a column `tools`."""
    tools = opened(row.get("tools"))  # often JSON text
    return encode_prompt(tokenizer, row["prompt"], tools=tools if isinstance(tools, list) else None)


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there.
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


def create_dataloader(kind: str, sources, tokenizer, *, batch_size: int, shuffle_seed: int | None = None, **reading):
    """torch's DataLoader over the rows that `load_rows(sources, kind, **reading)` gives, with `Collator`.

    `shuffle_seed` shuffles anew in each epoch, by this seed (default: the order of the files).
    """
    generator = None if shuffle_seed is None else torch.Generator().manual_seed(shuffle_seed)
    rows, shuffle = load_rows(sources, kind, **reading).rows, shuffle_seed is not None
    collator = Collator(tokenizer)
    return torch.utils.data.DataLoader(rows, batch_size, shuffle, generator=generator, collate_fn=collator)
