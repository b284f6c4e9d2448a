"""The data loader that shuffles, mixes and resumes."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from parts.foundation.messages import need, say
from programs.data_loader.bad_rows import BadRows, shown
from programs.data_loader.batches import Collator, RowSet, prompt_ids
from programs.data_loader.reading import expand, reading_settings
from programs.data_loader.row_reader import RowReader, load_rows
from programs.data_loader.writing import chunks


class PromptLoader:
    """Batches of prompts, epoch after epoch: each `for` goes through the rest of the current epoch.

    The order depends on nothing but the rows, the settings and the epoch, so `state_dict()` after a batch and
    `load_state_dict()` in another process give exactly the batches that would have followed. `left_out` counts prompts
    that are longer than max_prompt_tokens.
    """

    def __init__(self, sets: list[RowSet], collator: Collator, settings: dict):
        self.sets, self.collator, self.settings = sets, collator, settings
        self.epoch, self.position, self.left_out = 0, 0, 0
        self.size = None
        longest = settings["max_prompt_tokens"]
        for rows in sets if longest is not None else ():
            if rows.rows is not None:
                kept = [row for row in rows.rows if self.fits(row)]
                need(kept, f"got no prompt of {rows.name} within max_prompt_tokens {longest}; expected some")
                rows.rows = kept
        self.tell_left_out()

    def tell_left_out(self) -> None:
        """Say how many prompts were too long."""
        if self.left_out:
            longest = self.settings["max_prompt_tokens"]
            count = f"{self.left_out} prompt" + "s" * (self.left_out > 1)
            say(f"warning: left out {count} longer than max_prompt_tokens {longest}")

    def fits(self, row: dict) -> bool:
        """Whether a prompt is short enough; counts it where it is not."""
        longest = self.settings["max_prompt_tokens"]
        if longest is None or len(prompt_ids(self.collator.tokenizer, row)) <= longest:
            return True
        self.left_out += 1
        return False

    def one_pass(self, number: int, turn: int, epoch: int) -> Iterator[dict]:
        """The rows of one set, for the turn-th time in an epoch."""
        settings, rows = self.settings, self.sets[number]
        seed = settings["shuffle_seed"]
        seed = None if seed is None else f"{seed} {epoch} {number} {turn}"
        found = rows.one_pass(seed, settings["curriculum"], settings["shuffle_buffer"])
        return found if rows.rows is not None else filter(self.fits, found)

    def rows_of(self, epoch: int) -> Iterator[dict]:
        """The rows of an epoch in order.

        With weights the next row comes from the set that is furthest behind its share. The epoch ends when every set
        has been seen whole ("all", the smaller ones several times) or when one runs out ("first").
        """
        if self.settings["weights"] is None:
            yield from self.one_pass(0, 0, epoch)
            return
        total = sum(self.settings["weights"])
        shares = [weight / total for weight in self.settings["weights"]]
        turns, drawn = [0] * len(shares), [0] * len(shares)
        passes = [self.one_pass(number, 0, epoch) for number in range(len(shares))]
        ahead = [next(rows, None) for rows in passes]
        empty = [self.sets[number].name for number, row in enumerate(ahead) if row is None]
        need(not empty, f"got no usable row from {', '.join(empty)}; expected some to mix in")
        while True:
            count = sum(drawn)
            number = max(range(len(shares)), key=lambda i: (shares[i] * (count + 1) - drawn[i], -i))
            yield ahead[number]
            drawn[number] += 1
            ahead[number] = next(passes[number], None)
            if ahead[number] is None:
                turns[number] += 1
                if all(turns) or self.settings["mix_until"] == "first":
                    return
                passes[number] = self.one_pass(number, turns[number], epoch)
                ahead[number] = next(passes[number])

    def __iter__(self) -> Iterator[dict]:
        rank, world = self.settings["rank"], self.settings["world_size"]
        streams = any(part.rows is None for part in self.sets)
        self.left_out = 0 if streams else self.left_out
        rows = itertools.islice(self.rows_of(self.epoch), self.position, None)
        for group in chunks(rows, self.settings["batch_size"] * world):
            self.position += len(group)
            if mine := group[rank : len(group) - len(group) % world : world]:  # each process as many rows
                yield self.collator(mine)
        if streams:
            longest = self.settings["max_prompt_tokens"]
            need(self.position, f"got no prompt within max_prompt_tokens {longest}; expected some")
            self.tell_left_out()
        self.epoch, self.position = self.epoch + 1, 0

    def __len__(self) -> int:
        """Batches of a whole epoch; TypeError where rows are streamed."""
        if any(rows.rows is None for rows in self.sets):
            raise TypeError("a streaming loader has no length")
        if self.size is None:
            self.size = sum(1 for _ in self.rows_of(self.epoch))
        batch, world = self.settings["batch_size"], self.settings["world_size"]
        full, rest = divmod(self.size, batch * world)
        return full + (rest >= world)

    def fingerprint(self) -> dict:
        """What the order of rows depends on; a position means nothing where it differs."""
        names = ("shuffle_seed", "weights", "mix_until", "shuffle_buffer", "max_prompt_tokens", "world_size")
        curriculum = self.settings["curriculum"]
        name = getattr(curriculum, "__qualname__", type(curriculum).__name__) if callable(curriculum) else curriculum
        rows = [[s.name, s.mark()] for s in self.sets]
        return {**{key: self.settings[key] for key in names}, "curriculum": name, "sets": rows}

    def state_dict(self) -> dict:
        """Where the loader stands: epoch, rows consumed in it (by all processes), and what both depend on."""
        return {"epoch": self.epoch, "position": self.position, "order": self.fingerprint()}

    def load_state_dict(self, state: dict) -> None:
        """Go on where a loader with the same rows and settings stood."""
        mine = self.fingerprint()
        fits = isinstance(state, dict) and {"epoch", "position", "order"} <= set(state)
        need(fits, f"got the state {shown(state)}; expected what state_dict returned")
        wrong = [key for key, value in mine.items() if state["order"].get(key) != value]
        need(
            not wrong, f"got a position of a loader with other {', '.join(wrong)}; expected the same rows and settings"
        )
        self.epoch, self.position = state["epoch"], state["position"]


def create_dataloader(
    kind: str,
    sources,
    tokenizer,
    *,
    batch_size: int,
    max_prompt_tokens: int | None = None,
    shuffle_seed: int | None = None,
    weights: list[float] | None = None,
    mix_until: str = "all",
    curriculum: str | Callable | None = None,
    streaming: bool = False,
    shuffle_buffer: int = 10_000,
    rank: int = 0,
    world_size: int = 1,
    **reading,
) -> PromptLoader:
    """Batches of prompts with all their columns, from any input that load_rows reads.

    Args:
        kind: one of KINDS, a registered format, or "auto".
        sources: an input or a list of them; with weights, one weight for each.
        tokenizer: a Hugging Face tokenizer; its chat template makes the text.
        batch_size: prompts a batch and process; the last of an epoch may be smaller.
        max_prompt_tokens: leave out longer prompts, and count them in `left_out`.
        shuffle_seed: shuffle anew in each epoch, by this seed (default: the order of the files).
        weights: shares of the sources in any stretch of rows.
        mix_until: with weights, an epoch ends when "all" sets were seen whole, or when the "first" runs out.
        curriculum: column (`-column` for falling) or function of a row; each epoch goes in its order.
        streaming: read while iterating, for files larger than memory; shuffling then has a buffer of shuffle_buffer.
        rank, world_size: this process and how many there are; each gets other rows of the same order.
        **reading: further arguments of load_rows: mapping, system_prompt, on_bad, limit, max_bytes, …

    Raises:
        UserError: an argument cannot be used, or an input cannot be read; BadRows where rows do not fit.
    """
    sources = [sources] if isinstance(sources, str | Path) else list(sources)
    need(batch_size > 0, f"got batch_size {batch_size}; expected 1 or more")
    need(0 <= rank < world_size, f"got rank {rank} of {world_size}; expected 0 to world_size - 1")
    need(mix_until in ("all", "first"), f"got mix_until {mix_until!r}; expected all or first")
    need(
        not (streaming and curriculum is not None), "got a curriculum with streaming; expected rows that can be sorted"
    )
    if weights is not None:
        weights = [float(weight) for weight in weights]
        fits = len(weights) == len(sources) and all(math.isfinite(weight) and weight > 0 for weight in weights)
        need(fits, f"got weights {weights} for {len(sources)} sources; expected a positive number for each")
    sets = []
    for part in [sources] if weights is None else [[source] for source in sources]:
        name = ", ".join(map(str, part))
        if streaming:
            read = functools.partial(stream_rows, part, kind, reading)
            sets.append(RowSet(name, None, read))
        else:
            sets.append(RowSet(name, load_rows(part, kind, **reading).rows))
    if streaming:
        reading_settings(kind, reading)  # mistakes show here, not at the first batch
        expand(sources)
    settings = {"batch_size": batch_size, "max_prompt_tokens": max_prompt_tokens, "shuffle_seed": shuffle_seed}
    settings |= {"weights": weights, "mix_until": mix_until, "curriculum": curriculum}
    settings |= {"shuffle_buffer": shuffle_buffer, "rank": rank, "world_size": world_size}
    return PromptLoader(sets, Collator(tokenizer), settings)


def stream_rows(sources, kind: str, reading: dict) -> Iterator[dict]:
    """Rows while they are read; a bad one raises BadRows at once unless on_bad is "skip", and none at all UserError."""
    settings = reading_settings(kind, reading)

    def refuse(item: dict) -> None:
        if settings.on_bad == "fail":
            raise BadRows([item], 1)

    reader, warned = RowReader(sources, settings, refuse), False
    for row in reader:
        if (reader.unread or reader.untaken) and not warned:  # the end of a stream may be days away
            reader.say_notes()
            warned = True
        yield row
    reader.need_rows()


def stream_dataset(kind: str, sources, **reading):
    """The rows as a torch IterableDataset, for a torch DataLoader with `collate_fn=Collator(tokenizer)`.

    Each worker of the DataLoader, in each process of torch.distributed, yields other rows.
    """
    import torch

    class RowStream(torch.utils.data.IterableDataset):
        """Rows of this worker."""

        def __iter__(self):
            info, is_multi = torch.utils.data.get_worker_info(), torch.distributed.is_initialized()
            rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_multi else (0, 1)
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            rows = stream_rows(sources, kind, reading)
            return itertools.islice(rows, rank * workers + worker, None, world * workers)

    reading_settings(kind, reading)
    return RowStream()
