"""The key-value cache while sampling: it grows in blocks, holds shared prompts once, and keeps texts between turns."""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from parts.foundation.processes import torch, transformers

BLOCK = 64  # columns by which a cache grows
# bytes per layer that grouping must save, as it costs a dozen operations instead of one
WORTH_ON_CPU, WORTH_ON_GPU = 2**20, 2**27  # CPU: measured; GPU: estimated from 4 us per operation and 3 TB/s


@functools.cache
def roomy_layer():
    """A subclass of transformers' DynamicLayer that copies its contents every BLOCK tokens, not at every token."""

    class RoomyLayer(transformers.cache_utils.DynamicLayer):
        """`keys` and `values` [B, heads, T, D] are views of the first T columns of `rooms` [B, heads, T or more, D].

        With `column`, a tensor [1], the next token is written to that column and attention reads the whole rooms.
        """

        column = None

        def __init__(self, keys, values, rooms=None):
            super().__init__()
            keys, values = as_read(keys), as_read(values)
            self.lazy_initialization(keys, values)
            self.keys, self.values, self.rooms = keys, values, rooms

        def update(self, key_states, value_states, *args, **kwargs):
            """Append keys and values [B, heads, t, D] of new tokens; return those of all tokens."""
            if self.column is not None:
                for room, new in zip(self.rooms, (key_states, value_states), strict=True):
                    room.index_copy_(2, self.column, new.to(room.dtype))
                return self.rooms
            start = self.keys.shape[2]
            end = start + key_states.shape[2]
            self.make_room(end)
            for room, new in zip(self.rooms, (key_states, value_states), strict=True):
                room[:, :, start:end] = new
            self.end_at(end)
            return self.keys, self.values

        def make_room(self, end: int) -> None:
            """Grow the rooms to at least `end` columns."""
            if self.rooms is None or end > self.rooms[0].shape[2]:
                self.rooms = None
                self.keys, values = roomy(self.keys, end), self.values
                self.values = None  # frees the old tensor before the next room is made
                self.rooms = self.keys, roomy(values, end)

        def end_at(self, end: int) -> None:
            """Set keys and values to the rooms' first `end` columns."""
            self.keys, self.values = (room[:, :, :end] for room in self.rooms)
            self.column = None

        def reorder_cache(self, beam_idx):
            self.keys, self.values, self.rooms = self.keys[beam_idx], self.values[beam_idx], None

        batch_select_indices = reorder_cache

    return RoomyLayer


def as_read(x):
    """Keys or values in the dtype in which attention reads them.

    Under autocast, rotary embeddings return float32, and attention would round all of them again at each token.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def roomy(x, needed: int):
    """A copy of x [B, heads, T, D] with `needed` + BLOCK columns, zeros after the first T."""
    room = x.new_zeros(*x.shape[:2], needed + BLOCK, x.shape[3])
    room[:, :, : x.shape[2]] = x
    return room


def give_room(cache) -> None:
    """Replace the cache's DynamicLayers by roomy ones, except subclasses and layers with other contents."""
    for i, layer in enumerate(cache.layers if isinstance(cache, transformers.Cache) else ()):
        if type(layer) is transformers.cache_utils.DynamicLayer and layer.is_initialized and layer.keys.dim() == 4:
            cache.layers[i] = roomy_layer()(layer.keys, layer.values)


def has_plain_layers(cache, config) -> bool:
    """Whether all layers of a cache are roomy and the model has no sliding window: each token sees all before it."""
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if window or getattr(config, "window_size", None) or not isinstance(cache, transformers.DynamicCache):
        return False
    return all(type(layer) is roomy_layer() for layer in cache.layers)


@dataclass
class Part:
    """Rows that left a batch together."""

    numbers: list[int]  # their conversations
    layers: list[tuple]  # (keys, values) of each layer, [B, heads, T, D]
    mask: object  # [B, T], 1 = of the text


@dataclass
class KeptTexts:
    """Texts with cached keys and values, by the numbers of their conversations."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def take(self, order: list[int], mask, cache, places, rows, lengths) -> None:
        """Keep rows of the batch that is being sampled, without tokens fed after their end.

        Args:
            order: numbers of the conversations in the initial batch of B rows.
            mask: [B, T], 1 on the tokens that the initial batch had.
            places: [b] cache rows to keep; None keeps all without a copy.
            rows: [B'] index of each cache row in the initial batch.
            lengths: [B] tokens that each initial row has sampled; the last one was not fed.
        """
        numbers = rows if places is None else rows[places]
        pairs = pairs_of(cache)
        pairs = pairs if places is None else [(keys[places], values[places]) for keys, values in pairs]
        columns = torch.arange(cache.get_seq_length(), device=mask.device)
        before = torch.nn.functional.pad(mask[numbers], (0, len(columns) - mask.shape[1]), value=1)
        of_text = before * (columns < mask.shape[1] + lengths[numbers, None] - 1)
        self.parts.append(Part([order[i] for i in numbers.tolist()], pairs, of_text))

    def begins(self, texts: dict[int, list[int]]) -> bool:
        """Whether each text {conversation: ids} extends the kept text of its conversation."""
        known = ((self.ids.get(number), ids) for number, ids in texts.items())
        return all(old is not None and len(ids) > len(old) and ids[: len(old)] == old for old, ids in known)

    def cache_of(self, numbers: list[int], last: bool = True) -> tuple[list[int], object, object]:
        """(numbers in the order of rows, cache, mask [B, T]) of some conversations, aligned at the last column.

        `last`: this is the last use of the kept texts, so they are freed layer by layer.
        """
        wanted, width = {*numbers}, max(len(self.ids[number]) for number in numbers)
        order, masks, places = [], [], []  # places: of each part, its rows [b, 1] and columns [b, at most T]
        for part in self.parts:
            rows = [i for i, number in enumerate(part.numbers) if number in wanted]
            order += [part.numbers[i] for i in rows]
            index = torch.tensor(rows, device=part.mask.device, dtype=torch.long)
            mask, columns = part.mask[index].sort(dim=1, stable=True)
            masks.append(torch.nn.functional.pad(mask, (width, 0))[:, -width:])
            places.append((index[:, None], columns[:, -width:]))
        cache = transformers.DynamicCache()
        for layer in range(len(self.parts[0].layers)):
            pairs = [part.layers[layer] for part in self.parts]
            rooms = tuple(gathered([pair[which] for pair in pairs], places, width) for which in (0, 1))
            cache.layers.append(roomy_layer()(*(room[:, :, :width] for room in rooms), rooms))
            for part in self.parts if last else ():
                part.layers[layer] = None  # only one layer at a time is in memory twice
        return order, cache, torch.cat(masks)


def pairs_of(cache) -> list[tuple]:
    """(keys, values) of each layer of a cache with plain layers."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def gathered(tensors: list, places: list[tuple], width: int):
    """Copy (rows, columns) of tensors [., heads, T, D] to a room [B, heads, width + BLOCK, D]; all end at `width`."""
    first = tensors[0]
    room = first.new_zeros(sum(len(rows) for rows, _ in places), first.shape[1], width + BLOCK, first.shape[3])
    start = 0
    for x, (rows, columns) in zip(tensors, places, strict=True):
        picked = x.transpose(1, 2)[rows, columns].transpose(1, 2)
        room[start : start + len(rows), :, width - columns.shape[1] : width] = picked
        start += len(rows)
    return room


def continued(kept: KeptTexts, texts: dict[int, list[int]], read: Callable) -> tuple:
    """Read the new tokens of texts that extend kept ones, in groups of similar length to avoid pads.

    Args:
        read: `(new tokens of each row, mask [B, T], cache) -> (output at the last tokens [B, …], mask, cache)`; the
            returned mask and cache are of the whole texts.

    Returns:
        (the texts' numbers in the order of rows, output at each last token [B, …], mask [B, T], cache).
    """
    groups = alike({number: len(ids) - len(kept.ids[number]) for number, ids in texts.items()})
    whole, last = KeptTexts(texts), {}
    for group in groups:
        order, cache, mask = kept.cache_of(group, group is groups[-1])
        following, mask, cache = read([texts[n][len(kept.ids[n]) :] for n in order], mask, cache)
        if len(groups) == 1:
            return order, following, mask, cache
        whole.parts.append(Part(order, pairs_of(cache), mask))
        last |= zip(order, following, strict=True)
    order, cache, mask = whole.cache_of(list(texts))
    return order, torch.stack([last[number] for number in order]), mask, cache


def alike(lengths: dict[int, int]) -> list[list[int]]:
    """Group numbers by length, longest first; all in a group are within 16, or a quarter, of its longest."""
    groups, longest = [], 0
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        if not groups or lengths[number] < longest - max(16, longest // 4):
            groups, longest = [*groups, []], lengths[number]
        groups[-1].append(number)
    return groups


def select_rows(cache, rows) -> None:
    """Keep these rows of a cache, in this order; caches with recurrent states support `reorder_cache` only."""
    overridden = type(cache).batch_select_indices is not transformers.Cache.batch_select_indices
    (cache.batch_select_indices if overridden else cache.reorder_cache)(rows)
    if groups := getattr(cache, "groups", None):
        cache.groups = groups.of_rows(rows)


def wide_product(x, y):
    """x @ y for [n, heads, ., .], accumulated in float32 like fused attention: in bf16 a score of 60 is off by 0.1."""
    x = x.to(y.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if x.is_cuda and x.dtype != torch.float32:
            with contextlib.suppress(NotImplementedError):  # avoids float32 copies of keys on devices that support it
                return torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out_dtype=torch.float32).unflatten(0, x.shape[:2])
        return x.float() @ y.float()


class Groups:
    """Prompts shared by B rows: `which` [B] is each row's; a layer's keys, values [n, heads, P, D]; mask [n, P]."""

    def __init__(self, which, pairs: list[tuple], mask):
        self.which, self.pairs, self.mask = which, pairs, mask
        pads = torch.zeros(mask.shape, device=mask.device).masked_fill_(mask == 0, -math.inf)
        self.added = None if bool(mask.all()) else pads[:, None, None]  # to scores [n, heads, rows, P]
        sizes = which.bincount(minlength=len(mask))
        order = which.argsort(stable=True)
        group = which[order]
        place = torch.arange(len(which), device=which.device) - (sizes.cumsum(0) - sizes)[group]
        self.rows = which.new_zeros(len(mask), int(sizes.max()))  # [n, most rows of a prompt]; row 0 fills the rest
        self.rows[group, place] = order
        self.back = torch.empty_like(which)
        self.back[order] = group * self.rows.shape[1] + place

    def of_rows(self, chosen) -> "Groups":
        """The groups of the chosen rows, without prompts that none of them has."""
        kept, which = torch.unique(self.which[chosen], return_inverse=True)
        if len(kept) == len(self.mask):
            return Groups(which, self.pairs, self.mask)
        return Groups(which, [(keys[kept], values[kept]) for keys, values in self.pairs], self.mask[kept])

    def by_prompt(self, x):
        """Regroup x [B, heads, r, X] by prompt: [n, heads, rows of a prompt x r, X]."""
        return x[self.rows].transpose(1, 2).flatten(2, 3)

    def by_row(self, x, r: int):
        """The inverse of `by_prompt`: [B, heads, r, X]."""
        return x.unflatten(2, (-1, r)).transpose(1, 2).flatten(0, 1)[self.back]

    def attend(self, layer: int, query, key, value, scaling: float | None):
        """Attention [B, 1, H, D] of one token per row, query [B, H, 1, D], over its prompt and the row's own tokens.

        key and value [B, heads, T, D] are those of the rows' own tokens; H is a multiple of heads.
        """
        keys, values = self.pairs[layer]
        (heads, fresh), width = key.shape[1:3], keys.shape[2]
        r = query.shape[1] // heads
        query = query.unflatten(1, (heads, r)).squeeze(3)  # [B, heads, r, D]
        scores = query.new_empty(len(keys), heads, self.rows.shape[1] * r, width + fresh, dtype=torch.float32)
        scores[..., :width] = wide_product(self.by_prompt(query), keys.transpose(2, 3))
        scores[..., width:] = self.by_prompt(wide_product(query, key.transpose(2, 3)))
        scores *= scaling or query.shape[-1] ** -0.5
        if self.added is not None:
            scores[..., :width] += self.added
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        seen = self.by_row(weights[..., :width] @ values, r) + self.by_row(weights[..., width:], r) @ value
        return seen.flatten(1, 2)[:, None]


def group_rows(cache, mask, which):
    """A cache for B rows in which row i begins with text `which[i]` of a plain cache; each text is held once."""
    grouped = transformers.DynamicCache()
    grouped.groups = Groups(which, pairs_of(cache), mask)
    for keys, values in grouped.groups.pairs:
        none = (x.new_empty(len(which), x.shape[1], 0, x.shape[3]) for x in (keys, values))
        grouped.layers.append(roomy_layer()(*none))
    return grouped


def worth_grouping(cache, rows: int) -> bool:
    """Whether holding a cache's texts once for `rows` rows saves time as well as memory."""
    keys, values = pairs_of(cache)[0]
    saved = (keys[0].nbytes + values[0].nbytes) * (rows - len(keys))
    return saved > (WORTH_ON_CPU if keys.device.type == "cpu" else WORTH_ON_GPU)
