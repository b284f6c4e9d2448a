"""A prompt that is run once for all rows that begin with it, and no pads: tokens in one line, and who sees whom."""

import math
from dataclasses import dataclass, field

from parts.group_cache import Groups
from parts.models import unwrapped

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
    """Where the tokens of rows are in one line of N: the distinct prompts one behind another, then the responses.

    Tables hold places 0 to N - 1 in the line, and N where there is no token.
    """

    ids: object  # [N]
    positions: object  # [N], from 0 on in each text
    prompts: object  # [n, P], each from column 0 on
    responses: object  # [B, C], each from column 0 on, without its last token, which predicts none
    texts: object  # [B, P + C], of each row the prompt, and from column P on the response
    back: object  # [N], where each token of the line is among the n x P + B x C
    predicting: object  # [B, T], the token before each of a response, in the columns of the rows
    seen: object  # [B or 1, 1, C, P + C], whether a token of a response sees one of its text
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
    """The layout of rows [B, T]; None where the plain way takes no longer, or a row is longer than `longest`."""
    import torch

    start, which, first = same_prompts(piece)
    ids, mask = piece["input_ids"], piece["attention_mask"].bool()
    of_prompt, of_response = mask[first, :start], mask[:, start:-1] & mask[:, start + 1 :]
    lengths, replies = of_prompt.sum(1), of_response.sum(1)
    before, total = int(lengths.sum()), int(lengths.sum() + replies.sum())
    if not start or cost_of_pass(total, mask.numel()) >= mask.numel() or int(mask.sum(1).max()) > longest:
        return None
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
    return Layout(
        ids=torch.cat([ids[first, :start][of_prompt], ids[:, start:-1][of_response]]),
        positions=torch.cat([x.flatten() for x in positions])[there],
        prompts=prompts,
        responses=responses,
        texts=texts,
        back=there.nonzero().squeeze(1),
        predicting=predicting,
        seen=seen[:1] if bool((lengths == width).all()) else seen,
    )


def rows_at(x, places):
    """Rows of x [N, ...] at places [...], 0 where a place is N; backwards, equal places are summed in a fixed order."""
    import torch

    flat = torch.cat([x, x.new_zeros(1, *x.shape[1:])]).flatten(1)
    found = torch.nn.functional.embedding(places, flat, padding_idx=len(x))
    return found.view(*places.shape, *x.shape[1:])


def shared_attention(module, query, key, value, attention_mask, layout: Layout | Groups | None = None, **kwargs):
    """The attention "sdpa" of transformers; with a layout, of one line [1, heads, N, D] in which texts see themselves.

    With Groups, of the next token of each row.

    Prompts stand in columns from 0 on, so that being causal is all the mask that they need.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if isinstance(layout, Groups):
        return layout.attend(module.layer_idx, query, key, value, kwargs.get("scaling")), None
    line = [x[0].transpose(0, 1) for x in (query, key, value)]  # [N, heads, D]

    def attend(asking, asked, mask):
        places = (asking, asked, asked)
        blocks = [rows_at(x, place).transpose(1, 2) for x, place in zip(line, places, strict=True)]
        return sdpa_attention_forward(module, *blocks, mask, **kwargs)[0].flatten(0, 1)  # [rows x columns, heads, D]

    found = attend(layout.prompts, layout.prompts, None)
    if layout.responses.numel():
        mask = layout.added_to_scores(query.dtype)
        found = torch.cat([found, attend(layout.responses, layout.texts, mask)])
    return rows_at(found, layout.back)[None], None


def set_attention(model, name: str) -> None:
    """Let a network's layers attend by a name that transformers knows, or by that of this part."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(SHARED_PROMPTS, shared_attention)
    AttentionMaskInterface.register(SHARED_PROMPTS, sdpa_mask)
    unwrapped(model).config.get_text_config()._attn_implementation = name


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
