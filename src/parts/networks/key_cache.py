"""Keys and values during sampling: room to grow, prompts stored once, texts kept for the next turn."""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from parts.foundation.processes import torch

BLOCK = 64  # columns that a room grows by
# bytes of a layer's keys and values: to read fewer takes no longer than what saves it, a dozen operations for one
WORTH_ON_CPU, WORTH_ON_GPU = 2**20, 2**27  # measured; reckoned with 4 us for an operation and 3 TB/s


@functools.cache
def roomy_layer():
    """A DynamicLayer of transformers that copies what it holds every BLOCK tokens, and not for each."""
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """`keys` and `values` [B, heads, T, D] are the beginnings of `rooms` [B, heads, T or more, D].

        With a `column` [1], a tensor, the next token is written there and the whole rooms are read.
        """

        column = None

        def __init__(self, keys, values, rooms=None):
            super().__init__()
            keys, values = as_read(keys), as_read(values)
            self.lazy_initialization(keys, values)
            self.keys, self.values, self.rooms = keys, values, rooms

        def update(self, key_states, value_states, *args, **kwargs):
            """Append [B, heads, t, D] of new tokens; return those of all."""
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
            """Let the rooms have `end` columns at least."""
            if self.rooms is None or end > self.rooms[0].shape[2]:
                self.rooms = None
                self.keys, values = roomy(self.keys, end), self.values
                self.values = None  # one at a time: the old tensors go first
                self.rooms = self.keys, roomy(values, end)

        def end_at(self, end: int) -> None:
            """Let the keys and values be the rooms' first columns."""
            self.keys, self.values = (room[:, :, :end] for room in self.rooms)
            self.column = None

        def reorder_cache(self, beam_idx):
            """Keep these rows, in this order."""
            self.keys, self.values, self.rooms = self.keys[beam_idx], self.values[beam_idx], None

        batch_select_indices = reorder_cache

    return RoomyLayer


def as_read(x):
    """Keys or values in the dtype that attention reads them in.

    Under autocast rotary embeddings make them float32, and attention would round all of them again for each token.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def roomy(x, needed: int):
    """A tensor with room for `needed` columns and a block more, that begins with x [B, heads, T, D]; 0 after it."""
    room = x.new_zeros(*x.shape[:2], needed + BLOCK, x.shape[3])
    room[:, :, : x.shape[2]] = x
    return room


def give_room(cache) -> None:
    """Let each layer of a cache that holds the keys and values of all tokens, and nothing else, grow by blocks."""
    from transformers.cache_utils import Cache, DynamicLayer

    for i, layer in enumerate(cache.layers if isinstance(cache, Cache) else ()):
        if type(layer) is DynamicLayer and layer.is_initialized and layer.keys.dim() == 4:
            cache.layers[i] = roomy_layer()(layer.keys, layer.values)


def has_plain_layers(cache, config) -> bool:
    """Whether a cache holds the keys and values of all tokens, none of which sees only those near it."""
    from transformers.cache_utils import DynamicCache

    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if window or getattr(config, "window_size", None) or not isinstance(cache, DynamicCache):
        return False
    return all(type(layer) is roomy_layer() for layer in cache.layers)


@dataclass
class Part:
    """Rows that left a batch together: whose they are, their keys and values, and which columns are of their text."""

    numbers: list[int]
    layers: list[tuple]  # (keys, values) of each layer, [B, heads, T, D]
    mask: object  # [B, T], 1 = of the text


@dataclass
class KeptTexts:
    """Texts of which the keys and values are kept, by the numbers of their conversations."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def take(self, order: list[int], mask, cache, places, rows, lengths) -> None:
        """Keep rows of a batch that is being sampled, without what they were fed after their end.

        Args:
            order: the numbers of the conversations that the batch began with.
            mask: [B, T], 1 on the tokens that they had then.
            places: [b] where in the cache the rows are; None for all, which are then not copied.
            rows: [B'] which of those that the batch began with each row of the cache is.
            lengths: [B] how many tokens each of those has said; the last one was not fed.
        """
        numbers = rows if places is None else rows[places]
        pairs = pairs_of(cache)
        pairs = pairs if places is None else [(keys[places], values[places]) for keys, values in pairs]
        columns = torch.arange(cache.get_seq_length(), device=mask.device)
        before = torch.nn.functional.pad(mask[numbers], (0, len(columns) - mask.shape[1]), value=1)
        of_text = before * (columns < mask.shape[1] + lengths[numbers, None] - 1)
        self.parts.append(Part([order[i] for i in numbers.tolist()], pairs, of_text))

    def begins(self, texts: dict[int, list[int]]) -> bool:
        """Whether each text, by the number of its conversation, begins with the one that is kept, and goes on."""
        known = ((self.ids.get(number), ids) for number, ids in texts.items())
        return all(old is not None and len(ids) > len(old) and ids[: len(old)] == old for old, ids in known)

    def cache_of(self, numbers: list[int], last: bool = True) -> tuple[list[int], object, object]:
        """(numbers in the order of the rows, cache, mask [B, T]) of conversations, whose texts end in the last column.

        `last`: nothing else will be needed, so what is kept is freed layer by layer.
        """
        from transformers.cache_utils import DynamicCache

        wanted, width = {*numbers}, max(len(self.ids[number]) for number in numbers)
        order, masks, places = [], [], []  # places: of each part, its rows [b, 1] and columns [b, at most T]
        for part in self.parts:
            rows = [i for i, number in enumerate(part.numbers) if number in wanted]
            order += [part.numbers[i] for i in rows]
            index = torch.tensor(rows, device=part.mask.device, dtype=torch.long)
            mask, columns = part.mask[index].sort(dim=1, stable=True)
            masks.append(torch.nn.functional.pad(mask, (width, 0))[:, -width:])
            places.append((index[:, None], columns[:, -width:]))
        cache = DynamicCache()
        for layer in range(len(self.parts[0].layers)):
            pairs = [part.layers[layer] for part in self.parts]
            rooms = tuple(gathered([pair[which] for pair in pairs], places, width) for which in (0, 1))
            cache.layers.append(roomy_layer()(*(room[:, :, :width] for room in rooms), rooms))
            for part in self.parts if last else ():
                part.layers[layer] = None  # one layer at a time is there twice
        return order, cache, torch.cat(masks)


def pairs_of(cache) -> list[tuple]:
    """(keys, values) of each layer of a cache with plain layers."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def gathered(tensors: list, places: list[tuple], width: int):
    """A room [B, heads, width + BLOCK, D] of the chosen rows and columns of [., heads, T, D], 0 before where fewer."""
    first = tensors[0]
    room = first.new_zeros(sum(len(rows) for rows, _ in places), first.shape[1], width + BLOCK, first.shape[3])
    start = 0
    for x, (rows, columns) in zip(tensors, places, strict=True):
        picked = x.transpose(1, 2)[rows, columns].transpose(1, 2)
        room[start : start + len(rows), :, width - columns.shape[1] : width] = picked
        start += len(rows)
    return room


def continued(kept: KeptTexts, texts: dict[int, list[int]], read: Callable) -> tuple:
    """Read what is new of texts that begin with kept ones, in groups of like length, so that hardly a pad is read.

    Args:
        read: `(new tokens of each row, mask [B, T], cache) -> (what follows from the last ones [B, …], mask, cache)`,
            the mask and the cache being those of the whole texts.

    Returns:
        (the texts' numbers in the order of the rows, what follows from each text [B, …], mask [B, T], cache).
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
    """Numbers in groups, longest first: the shortest of a group is at least 3/4 of the longest, or 16 shorter."""
    groups, longest = [], 0
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        if not groups or lengths[number] < longest - max(16, longest // 4):
            groups, longest = [*groups, []], lengths[number]
        groups[-1].append(number)
    return groups


def select_rows(cache, rows) -> None:
    """Keep these rows of a cache, in this order; layers with recurrent states know `reorder_cache` alone for it."""
    from transformers.cache_utils import Cache

    overridden = type(cache).batch_select_indices is not Cache.batch_select_indices
    (cache.batch_select_indices if overridden else cache.reorder_cache)(rows)
    if groups := getattr(cache, "groups", None):
        cache.groups = groups.of_rows(rows)


def wide_product(x, y):
    """x @ y of [n, heads, ., .] in float32, as fused attention has it: rounded to bf16, a score of 60 is off by 0.1."""
    x = x.to(y.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if x.is_cuda and x.dtype != torch.float32:
            with contextlib.suppress(NotImplementedError):  # without copies of keys, where the device has it
                return torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out_dtype=torch.float32).unflatten(0, x.shape[:2])
        return x.float() @ y.float()


class Groups:
    """The prompts of B rows: `which` [B] of n each begins with, keys and values [n, heads, P, D], mask [n, P]."""

    def __init__(self, which, pairs: list[tuple], mask):
        self.which, self.pairs, self.mask = which, pairs, mask
        pads = torch.zeros(mask.shape, device=mask.device).masked_fill_(mask == 0, -math.inf)
        self.added = None if bool(mask.all()) else pads[:, None, None]  # to scores [n, heads, rows, P]
        sizes = which.bincount(minlength=len(mask))
        order = which.argsort(stable=True)
        group = which[order]
        place = torch.arange(len(which), device=which.device) - (sizes.cumsum(0) - sizes)[group]
        self.rows = which.new_zeros(len(mask), int(sizes.max()))  # of each prompt; too many are computed for nothing
        self.rows[group, place] = order
        self.back = torch.empty_like(which)
        self.back[order] = group * self.rows.shape[1] + place

    def of_rows(self, chosen) -> "Groups":
        """The groups of some rows, without the prompts that none of these has."""
        kept, which = torch.unique(self.which[chosen], return_inverse=True)
        if len(kept) == len(self.mask):
            return Groups(which, self.pairs, self.mask)
        return Groups(which, [(keys[kept], values[kept]) for keys, values in self.pairs], self.mask[kept])

    def by_prompt(self, x):
        """[B, heads, r, X] of rows as [n, heads, rows of a prompt x r, X]."""
        return x[self.rows].transpose(1, 2).flatten(2, 3)

    def by_row(self, x, r: int):
        """The way back, [B, heads, r, X]."""
        return x.unflatten(2, (-1, r)).transpose(1, 2).flatten(0, 1)[self.back]

    def attend(self, layer: int, query, key, value, scaling: float | None):
        """What one more token of each row, query [B, H, 1, D], sees of its prompt and of its own tokens: [B, 1, H, D].

        key and value [B, heads, T, D] are of the rows' own tokens; H is a multiple of heads.
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
    """A cache of B rows that begin with texts, `which` [B], of one with plain layers, held once each as `groups`."""
    from transformers.cache_utils import DynamicCache

    grouped = DynamicCache()
    grouped.groups = Groups(which, pairs_of(cache), mask)
    for keys, values in grouped.groups.pairs:
        none = (x.new_empty(len(which), x.shape[1], 0, x.shape[3]) for x in (keys, values))
        grouped.layers.append(roomy_layer()(*none))
    return grouped


def worth_grouping(cache, rows: int) -> bool:
    """Whether to hold the texts of a cache once, for more rows, saves time as well as memory."""
    keys, values = pairs_of(cache)[0]
    saved = (keys[0].nbytes + values[0].nbytes) * (rows - len(keys))
    return saved > (WORTH_ON_CPU if keys.device.type == "cpu" else WORTH_ON_GPU)
