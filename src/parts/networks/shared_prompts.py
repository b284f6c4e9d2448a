"""A prompt that is run once for all rows that begin with it, and no pads: tokens in one line, and who sees whom."""

import math
from dataclasses import dataclass, field

from parts.networks.group_cache import Groups
from parts.networks.models import unwrapped

SHARED_PROMPTS = "shared_prompts"  # the attention's name among those of transformers
OVERHEAD = 0.125  # of a token, for each cell of rows x columns: keys and values, which every row has of its prompt


def cost_of_pass(tokens: int, cells: int) -> float:
    """Tokens that a pass is counted as: `tokens` in one line, or the plain way all of its rows x columns."""
    return min(tokens + OVERHEAD * cells, cells)


def same_prompts(piece: dict) -> tuple:
    """(the column behind the prompts, [B] which distinct prompt each row has, [n] a row with each of these).

    The column is the first in which a token was sampled; what stands before it in a row is its prompt.
    """
    import torch

    start = int(piece["response_mask"].any(0).long().argmax())
    which = torch.zeros_like(piece["input_ids"][:, 0])
    if start:
        beginnings = piece["input_ids"].masked_fill(piece["attention_mask"] == 0, -1)[:, :start]
        which = torch.unique(beginnings, dim=0, return_inverse=True)[1]
    order = torch.arange(len(which), device=which.device)
    first = torch.full_like(which, len(which)).scatter_reduce(0, which, order, "amin")
    return start, which, first[first < len(which)]


@dataclass
class Layout:
    """Where the tokens of rows are in one line of N, one text behind another; none needs a token behind it.

    Texts that nothing shares stand there whole, else the distinct prompts, and behind them the responses. Tables hold
    places 0 to N - 1 in the line, and N where there is no token.
    """

    ids: object  # [N]
    positions: object  # [N], from 0 on in each text
    prompts: object  # [n, P] what sees nothing but itself, each from column 0 on
    responses: object  # [B or 0, C], each from column 0 on
    texts: object  # [B or 0, P + C], of each row the prompt, and from column P on the response
    back: object  # [N], where each token of the line is among the n x P + B x C; None: the line is `prompts`
    predicting: object  # [B, T], the token before each that was sampled, in the columns of the rows
    kept: object  # [M], places of those, in order: all that the last layer's states are needed of
    seen: object  # [B or 1, 1, C, P + C], whether a token of a response sees one of its text; None without responses
    masks: dict = field(default_factory=dict)

    def added_to_scores(self, dtype):
        """0 where a token is seen, -inf elsewhere, [B or 1, 1, C, P + C]; made once for all layers."""
        import torch

        if dtype not in self.masks:
            zeros = torch.zeros(self.seen.shape, dtype=dtype, device=self.seen.device)
            self.masks[dtype] = zeros.masked_fill_(~self.seen, -math.inf)
        return self.masks[dtype]


def places_in_line(lengths, before: int, total: int):
    """Places [rows, longest] of texts of these lengths that stand one behind another after `before` tokens."""
    import torch

    columns = torch.arange(int(lengths.max()), device=lengths.device)
    starts = before + lengths.cumsum(0) - lengths
    return torch.where(columns < lengths[:, None], starts[:, None] + columns, total)


def layout_of(piece: dict, longest: float) -> Layout | None:
    """The layout of rows [B, T]; None where there are no prompts, or a row is longer than `longest`."""
    start, which, first = same_prompts(piece)
    mask = piece["attention_mask"].bool()
    lengths = mask.sum(1)
    if not start or int(lengths.max()) > longest:
        return None
    tokens, cells = int(lengths.sum()) - len(lengths), len(lengths) * (int(lengths.max()) - 1)
    once = tokens - int(mask[:, :start].sum()) + int(mask[first, :start].sum())
    if cost_of_pass(once, mask.numel()) < cost_of_pass(tokens, cells):
        return layout_of_groups(piece, start, which, first)
    return layout_of_texts(piece)


def kept_of(predicting, total: int):
    """Places [M] in the line, in order and each once, that a table of those that predict holds."""
    import torch

    needed = torch.zeros(total + 1, dtype=torch.bool, device=predicting.device)
    needed[predicting.flatten()] = True
    return needed[:total].nonzero().squeeze(1)


def layout_of_texts(piece: dict) -> Layout:
    """The layout in which each text stands whole, without its last token."""
    import torch

    ids, mask = piece["input_ids"], piece["attention_mask"]
    lengths, begins = mask.sum(1) - 1, mask.argmax(1)
    columns, total = torch.arange(int(lengths.max()), device=ids.device), int(lengths.sum())
    places = places_in_line(lengths, 0, total)
    back = (places < total).flatten().nonzero().squeeze(1)
    moved = ids.gather(1, (begins[:, None] + columns).clamp(max=ids.shape[1] - 1))  # [B, P], from column 0 on
    before = torch.arange(ids.shape[1], device=ids.device) - begins[:, None] - 1
    predicting = places.gather(1, before.clamp(0, len(columns) - 1))
    predicting = predicting.masked_fill(piece["response_mask"] == 0, total)
    return Layout(
        ids=moved.flatten()[back],
        positions=columns.expand(len(ids), -1).flatten()[back],
        prompts=places,
        responses=places[:0],
        texts=places[:0],
        back=None if len(back) == places.numel() else back,
        predicting=predicting,
        kept=kept_of(predicting, total),
        seen=None,
    )


def layout_of_groups(piece: dict, start: int, which, first) -> Layout:
    """The layout in which prompts that rows share stand once; the arguments are those of `same_prompts`."""
    import torch

    ids, mask = piece["input_ids"], piece["attention_mask"].bool()
    of_prompt, of_response = mask[first, :start], mask[:, start:-1] & mask[:, start + 1 :]
    lengths, replies = of_prompt.sum(1), of_response.sum(1)
    before, total = int(lengths.sum()), int(lengths.sum() + replies.sum())
    prompts, responses = places_in_line(lengths, 0, total), places_in_line(replies, before, total)
    texts = torch.cat([prompts[which], responses], dim=1)
    (n, width), (count, reach) = prompts.shape, responses.shape
    sees = torch.ones(reach, reach, dtype=torch.bool, device=ids.device).tril().expand(count, -1, -1)
    seen = torch.cat([(prompts < total)[which, None].expand(-1, reach, -1), sees], dim=2)[:, None]
    columns = torch.arange(max(width, reach), device=ids.device)
    there = torch.cat([(table < total).flatten() for table in (prompts, responses)])
    positions = [columns[:width].expand(n, -1), lengths[which, None] + columns[:reach]]
    predicting = torch.full_like(ids, total)
    predicting[:, start] = (lengths.cumsum(0) - 1)[which]
    predicting[:, start + 1 : start + 1 + reach] = responses
    predicting.masked_fill_(piece["response_mask"] == 0, total)
    return Layout(
        ids=torch.cat([ids[first, :start][of_prompt], ids[:, start:-1][of_response]]),
        positions=torch.cat([x.flatten() for x in positions])[there],
        prompts=prompts,
        responses=responses,
        texts=texts,
        back=there.nonzero().squeeze(1),
        predicting=predicting,
        kept=kept_of(predicting, total),
        seen=seen[:1] if bool((lengths == width).all()) else seen,
    )


def rows_at(x, places):
    """Rows of x [N, ...] at places [...], 0 where a place is N; backwards, equal places are summed in a fixed order."""
    import torch

    return some_rows_at(torch.cat([x, x.new_zeros(1, *x.shape[1:])]), places, padding_idx=len(x))


def some_rows_at(x, places, **kwargs):
    """The same, the last row where a place is N."""
    import torch

    found = torch.nn.functional.embedding(places.clamp(max=len(x) - 1), x.flatten(1), **kwargs)
    return found.view(*places.shape, *x.shape[1:])


def shared_attention(module, query, key, value, attention_mask, layout: Layout | Groups | None = None, **kwargs):
    """The attention "sdpa" of transformers; with a layout, of one line [1, heads, N, D] in which texts see themselves.

    With Groups, of the next token of each row.

    Prompts stand in columns from 0 on, so that being causal is all the mask that they need; what stands in the place
    of a pad is seen by pads only, and their results are left out.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if hasattr(module, "kept_tokens"):
        module.kept_tokens.kept = layout.kept if isinstance(layout, Layout) else None
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if isinstance(layout, Groups):
        return layout.attend(module.layer_idx, query, key, value, kwargs.get("scaling")), None
    line = [x[0].transpose(0, 1) for x in (query, key, value)]  # [N, heads, D]

    def attend(asking, asked, mask):
        places = (asking, asked, asked)
        if layout.back is None:
            blocks = [x.reshape(*place.shape, *x.shape[1:]) for x, place in zip(line, places, strict=True)]
        else:
            blocks = [some_rows_at(x, place) for x, place in zip(line, places, strict=True)]
        blocks = [block.transpose(1, 2) for block in blocks]
        return sdpa_attention_forward(module, *blocks, mask, **kwargs)[0].flatten(0, 1)  # [rows x columns, heads, D]

    found = attend(layout.prompts, layout.prompts, None)
    if layout.responses.numel():
        mask = layout.added_to_scores(query.dtype)
        found = torch.cat([found, attend(layout.responses, layout.texts, mask)])
    return (found if layout.back is None else some_rows_at(found, layout.back))[None], None


class KeptTokens:
    """Lets the `mlp` of a network's last layer see the kept tokens of a line alone: no other state is used behind it.

    A layer's attention, which comes first, notes which these are, also where the layer is recomputed.
    """

    def __init__(self, layer):
        self.kept, self.count = None, 0
        self.attentions = [module for module in layer.modules() if hasattr(module, "layer_idx")]
        for module in self.attentions:
            module.kept_tokens = self
        self.hooks = [layer.mlp.register_forward_pre_hook(self.narrow), layer.mlp.register_forward_hook(self.widen)]

    def remove(self) -> None:
        """Let the layer run all tokens again."""
        for hook in self.hooks:
            hook.remove()
        for module in self.attentions:
            del module.kept_tokens

    def narrow(self, mlp, args):
        """The kept of states [1, N, H]."""
        if self.kept is None:
            return None
        self.count = args[0].shape[1]
        return args[0].index_select(1, self.kept), *args[1:]

    def widen(self, mlp, args, output):
        """States [1, N, H] again, 0 where nothing is kept."""
        if self.kept is None:
            return None
        return output.new_zeros(1, self.count, output.shape[2]).index_copy(1, self.kept, output)


def set_attention(model, name: str, narrow: bool = False) -> None:
    """Let a network's layers attend by a name that transformers knows, or by that of this part.

    Args:
        narrow: the last layer's `mlp`, where it has one of this name, sees kept tokens only.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    from transformers.modeling_layers import GradientCheckpointingLayer

    AttentionInterface.register(SHARED_PROMPTS, shared_attention)
    AttentionMaskInterface.register(SHARED_PROMPTS, sdpa_mask)
    network = unwrapped(model)
    network.config.get_text_config()._attn_implementation = name
    layers = [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for module in layers[-1:] and list(layers[-1].modules()):
        if hasattr(module, "kept_tokens"):
            module.kept_tokens.remove()
    if narrow and layers and hasattr(layers[-1], "mlp"):
        KeptTokens(layers[-1])


def shared_length(networks: list) -> float:
    """Tokens of the longest rows of which all of these networks (None: left out) run a common prompt once; 0: none."""
    return min((length_that_shares(network) for network in networks if network is not None), default=0)


def length_that_shares(model) -> float:
    """The same of one network: no more than its layers look back."""
    config = unwrapped(model).config.get_text_config()
    if config._attn_implementation != SHARED_PROMPTS:
        return 0
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    if not getattr(config, "use_sliding_window", True):
        windows[0] = None
    return min((window for window in windows if window), default=math.inf)
