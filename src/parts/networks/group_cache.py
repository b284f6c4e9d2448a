"""Keys and values of a prompt, held and read once for all rows that begin with it, while these are sampled."""

import functools
import math

from parts.networks.key_cache import pairs_of, roomy_layer

# bytes of a layer's keys and values: to read fewer takes no longer than what saves it, a dozen operations for one
WORTH_ON_CPU, WORTH_ON_GPU = 2**20, 2**27  # measured; reckoned with 4 us for an operation and 3 TB/s


class Groups:
    """The prompts of B rows: `which` [B] of n prompts each row begins with, `pairs` of keys and values by layer.

    Args:
        pairs: [n, heads, P, D] each.
        mask: [n, P], 1 on the tokens of the prompts.
    """

    def __init__(self, which, pairs: list[tuple], mask):
        import torch

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
        import torch

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

        Args:
            key: of the rows' own tokens [B, heads, T, D], as `value`; H is a multiple of heads.
        """
        import torch

        keys, values = self.pairs[layer]
        (heads, own), width = key.shape[1:3], keys.shape[2]
        r = query.shape[1] // heads
        query = query.unflatten(1, (heads, r)).squeeze(3) * (scaling or query.shape[-1] ** -0.5)  # [B, heads, r, D]
        scores = query.new_empty(len(keys), heads, self.rows.shape[1] * r, width + own, dtype=torch.float32)
        scores[..., :width] = self.by_prompt(query) @ keys.transpose(2, 3)
        scores[..., width:] = self.by_prompt(query @ key.transpose(2, 3))
        if self.added is not None:
            scores[..., :width] += self.added
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        seen = self.by_row(weights[..., :width] @ values, r) + self.by_row(weights[..., width:], r) @ value
        return seen.flatten(1, 2)[:, None]


@functools.cache
def grouped_cache():
    """A DynamicCache of the rows' own tokens, with their `groups`."""
    from transformers.cache_utils import DynamicCache

    class GroupedCache(DynamicCache):
        """What `group_rows` makes."""

        def batch_select_indices(self, indices):
            """Keep these rows, in this order."""
            super().batch_select_indices(indices)
            self.groups = self.groups.of_rows(indices)

    return GroupedCache


def group_rows(cache, mask, which):
    """A cache of rows that begin with the texts of one with plain layers; it holds each of these once.

    Args:
        mask: [n, P], 1 on the tokens of the texts.
        which: [B], the text that each row begins with.
    """
    grouped = grouped_cache()()
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
