"""Batches of prompts: padded on the left, reshuffled in each epoch, resumable."""

import itertools
import random
from collections.abc import Iterator

from parts.data.prompts import encode_prompt
from parts.foundation.messages import need, say
from parts.foundation.processes import torch
from parts.networks.batches import left_pad
from programs.data_loader.bad_rows import BadRows, opened, shown
from programs.data_loader.row_reader import RowReader, Settings, digest, load_rows


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt with the generation prompt; the chat template also gets a column `tools`."""
    tools = opened(row.get("tools"))  # often JSON text
    return encode_prompt(tokenizer, row["prompt"], tools=tools if isinstance(tools, list) else None)


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there. Also works as `collate_fn` of a torch DataLoader.
    """

    def __init__(self, tokenizer):
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        self.tokenizer, self.pad_id = tokenizer, next((token for token in ids if token is not None), None)
        got = "got a tokenizer without pad and eos token; expected one; try setting pad_token"
        need(self.pad_id is not None, got)

    def __call__(self, rows: list[dict]) -> dict:
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        clash = ", ".join({"input_ids", "attention_mask"} & set(names))
        need(not clash, f"got the column {clash}, which a batch uses itself; expected another name; try drop")
        ids, mask = left_pad([prompt_ids(self.tokenizer, row) for row in rows], self.pad_id, None)
        return {"input_ids": ids, "attention_mask": mask, **{name: [row.get(name) for row in rows] for name in names}}


class PromptLoader:
    """Batches of prompts, epoch after epoch: each `for` goes through the rest of the current epoch.

    The order depends only on the rows, the settings and the epoch, so that `state_dict()` after a batch and
    `load_state_dict()` in another process give exactly the batches that would have followed. `left_out` counts prompts
    of more than `longest` tokens.
    """

    def __init__(self, rows, collator: Collator, batch_size: int, longest: int | None, seed: int | None, ranks: tuple):
        self.collator, self.batch_size, self.seed, (self.rank, self.world) = collator, batch_size, seed, ranks
        self.epoch = self.position = 0
        self.rows = [row for row in rows if longest is None or len(prompt_ids(collator.tokenizer, row)) <= longest]
        need(self.rows, f"got no prompt within max_prompt_tokens {longest}; expected at least one; try a higher limit")
        self.left_out = len(rows) - len(self.rows)
        if self.left_out:
            say(f"warning: left out {self.left_out} of {len(rows)} prompts longer than max_prompt_tokens {longest}")
        # what the order of rows depends on; a saved position only fits if this is equal
        self.order = {"shuffle_seed": seed, "max_prompt_tokens": longest, "world_size": self.world}
        self.order["rows"] = digest([row["id"] for row in self.rows]).hex()

    def __iter__(self) -> Iterator[dict]:
        order = list(range(len(self.rows)))
        if self.seed is not None:
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        while group := order[self.position : self.position + self.batch_size * self.world]:
            self.position += len(group)
            end = len(group) - len(group) % self.world  # all processes get the same number of rows
            if indices := group[self.rank : end : self.world]:
                yield self.collator([self.rows[index] for index in indices])
        self.epoch, self.position = self.epoch + 1, 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.rows), self.batch_size * self.world)
        return full + (rest >= self.world)

    def state_dict(self) -> dict:
        """The loader's position: epoch, rows consumed in it by all processes, and what the order depends on."""
        return {"epoch": self.epoch, "position": self.position, "order": self.order}

    def load_state_dict(self, state: dict) -> None:
        """Continue from the state of a loader with the same rows and settings."""
        fits = isinstance(state, dict) and {"epoch", "position", "order"} <= set(state)
        need(fits, f"got the state {shown(state)}; expected what state_dict returned")
        wrong = ", ".join(key for key, value in self.order.items() if state["order"].get(key) != value)
        need(not wrong, f"got the state of a loader with other {wrong}; expected the same rows and settings")
        self.epoch, self.position = state["epoch"], state["position"]


def create_dataloader(
    kind: str,
    sources,
    tokenizer,
    *,
    batch_size: int,
    max_prompt_tokens: int | None = None,
    shuffle_seed: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    **reading,
) -> PromptLoader:
    """Batches of prompts with all their columns, from any input that load_rows reads.

    Args:
        kind: one of KINDS, or "auto".
        sources: an input or a list of them.
        tokenizer: a Hugging Face tokenizer; its chat template makes the text.
        batch_size: prompts a batch and process; the last of an epoch may be smaller.
        max_prompt_tokens: leave out longer prompts, and count them in `left_out`.
        shuffle_seed: shuffle anew in each epoch, by this seed (default: the order of the files).
        rank, world_size: this process and the number of processes, which share the rows of one order.
        **reading: further arguments of load_rows: mapping, system_prompt, on_bad, limit, …

    Raises:
        UserError: an argument cannot be used, or an input cannot be read; BadRows if rows do not fit.
    """
    need(batch_size > 0, f"got batch_size {batch_size}; expected 1 or more")
    need(0 <= rank < world_size, f"got rank {rank} of {world_size}; expected 0 to world_size - 1")
    rows, ranks = load_rows(sources, kind, **reading).rows, (rank, world_size)
    return PromptLoader(rows, Collator(tokenizer), batch_size, max_prompt_tokens, shuffle_seed, ranks)


def stream_dataset(kind: str, sources, **reading):
    """The rows as a torch IterableDataset, read while iterating, for JSONL and parquet larger than memory.

    For a torch DataLoader with `collate_fn=Collator(tokenizer)`; its workers, in all processes of torch.distributed,
    share the rows. A bad row raises BadRows at once unless on_bad is "skip".
    """
    settings = Settings(kind, **reading)

    def refuse(item: dict) -> None:
        if settings.on_bad == "fail":
            raise BadRows([item], 1)

    class RowStream(torch.utils.data.IterableDataset):
        def __iter__(self):
            info, is_multi = torch.utils.data.get_worker_info(), torch.distributed.is_initialized()
            rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_multi else (0, 1)
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            reader = RowReader(sources, settings, refuse)
            yield from itertools.islice(reader, rank * workers + worker, None, world * workers)
            if not reader.counts["kept"]:
                raise reader.no_rows()

    return RowStream()
