"""Batches: padding, collating, micro-batches, packed rows with each prompt once, means under a mask."""

import functools
import math
from dataclasses import dataclass, field

from parts.foundation.processes import dealt, torch, world

OVERHEAD = 0.125  # of a token, for each cell of rows x columns: keys and values, which every row has of its prompt


def masked_mean(x, mask):
    """Mean of x where mask is 1; both [B, T]; 0 for an empty mask."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(x, mask, shift_mean: bool = True):
    """Scale x [B, T] to unit variance over the masked tokens, and to mean 0 unless `shift_mean` is false.

    The variance is the unbiased one and is smoothed by 1e-8, as in verl's `masked_whiten`. Unmasked entries become 0.
    """
    mean = masked_mean(x, mask)
    var = masked_mean((x - mean) ** 2, mask)
    var = var * mask.sum() / (mask.sum() - 1).clamp(min=1)  # Bessel
    white = (x - mean) * (var + 1e-8).rsqrt()
    return (white if shift_mean else white + mean) * mask


def explained_variance(values, returns, mask) -> float:
    """1 - Var[returns - values] / Var[returns] over the masked tokens; 0 when the returns do not vary."""
    if not mask.any():  # of nothing, of which torch warns
        return 0.0
    r, error = returns[mask.bool()], (returns - values)[mask.bool()]
    var = r.var(unbiased=False)
    return (1 - error.var(unbiased=False) / var).item() if var > 1e-12 else 0.0


def cost_of_pass(tokens: int, cells: int) -> float:
    """Tokens that a pass is counted as: `tokens` in one line, or the plain way all of its rows x columns."""
    return min(tokens + OVERHEAD * cells, cells)


def same_prompts(piece: dict) -> tuple:
    """(the column after the prompts, [B] which distinct prompt each row has, [n] a row with each of these).

    The column is the first in which a token was sampled; what stands before it in a row is its prompt.
    """
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
    """Where the tokens of rows are in one line of N, one text after another; none needs a token after it.

    Texts that nothing shares stand there whole, else the distinct prompts, and after them the responses. Tables hold
    places 0 to N - 1 in the line, and N where there is no token.
    """

    ids: object  # [N]
    positions: object  # [N], from 0 on in each text
    prompts: object  # [n, P] what sees nothing but itself, each from column 0 on
    responses: object  # [B or 0, C], each from column 0 on
    texts: object  # [B or 0, P + C], of each row the prompt, and from column P on the response
    back: object  # [N], where each token of the line is among the n x P + B x C; None: the line is `prompts`
    predicting: object  # [B, T], the token before each that was sampled, in the columns of the rows
    seen: object  # [B or 1, 1, C, P + C], whether a token of a response sees one of its text; None without responses
    masks: dict = field(default_factory=dict)

    @functools.cached_property
    def kept(self):
        """Places [M] of those, in order and each once: all that the last layer's states are needed of."""
        needed = torch.zeros(len(self.ids) + 1, dtype=torch.bool, device=self.ids.device)
        needed[self.predicting.flatten()] = True
        return needed[:-1].nonzero().squeeze(1)

    def added_to_scores(self, dtype):
        """0 where a token is seen, -inf elsewhere, [B or 1, 1, C, P + C]; made once for all layers."""
        if dtype not in self.masks:
            zeros = torch.zeros(self.seen.shape, dtype=dtype, device=self.seen.device)
            self.masks[dtype] = zeros.masked_fill_(~self.seen, -math.inf)
        return self.masks[dtype]


def places_in_line(lengths, before: int, total: int):
    """Places [rows, longest] of texts of these lengths that stand one after another, after `before` tokens."""
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


def layout_of_texts(piece: dict) -> Layout:
    """The layout in which each text stands whole, without its last token."""
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
        seen=None,
    )


def layout_of_groups(piece: dict, start: int, which, first) -> Layout:
    """The layout in which prompts that rows share stand once; the arguments are those of `same_prompts`."""
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
        seen=seen[:1] if bool((lengths == width).all()) else seen,
    )


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Return (input_ids, attention_mask), both [B, T], pads on the left."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


def collate(samples: list[dict], pad_id: int, device) -> dict:
    """Stack samples: prompts padded on the left, responses on the right, so every response starts in one column.

    A sample's `response_mask`, where it has one, is 1 on what was sampled; else all of the response was.
    """
    prompt_ids, prompt_mask = left_pad([s["prompt_ids"] for s in samples], pad_id, device)
    width = max(len(s["response_ids"]) for s in samples)

    def right_pad(key, fill, dtype):
        return torch.tensor([s[key] + [fill] * (width - len(s[key])) for s in samples], dtype=dtype, device=device)

    response_ids = right_pad("response_ids", pad_id, torch.long)
    lengths = torch.tensor([len(s["response_ids"]) for s in samples], device=device)
    response = (torch.arange(width, device=device) < lengths[:, None]).long()
    sampled = [s.get("response_mask", [1] * len(s["response_ids"])) for s in samples]
    response_mask = torch.tensor([m + [0] * (width - len(m)) for m in sampled], device=device)
    return {
        "input_ids": torch.cat([prompt_ids, response_ids], dim=1),
        "attention_mask": torch.cat([prompt_mask, response], dim=1),
        "response_mask": torch.cat([torch.zeros_like(prompt_mask), response_mask], dim=1),
        "rollout_logprobs": torch.cat([prompt_mask * 0.0, right_pad("rollout_logprobs", 0.0, torch.float32)], dim=1),
    }


def own_rows(batch: dict, rows) -> list[int]:
    """This process's share of rows of a batch, as many tokens as the others'; rows of one prompt stay together."""
    rows, (rank, size) = [int(row) for row in rows], world()
    if size == 1 or not rows:
        return rows
    lengths = batch["attention_mask"][rows].sum(1).tolist()
    first = int(batch["response_mask"].any(0).int().argmax())  # column in which responses begin
    prompts = map(tuple, batch["input_ids"][rows, :first].tolist())
    return [rows[i] for i in dealt(lengths, list(prompts), size)[rank]]


def micro_batches(batch: dict, rows, budget: int, shared: float = 0) -> list:
    """Split row indices into groups of similar length with at most `budget` tokens each, pads included.

    Where no row is longer than `shared`, the `shared_length` of the networks that will run them, rows of one prompt
    stand together, and what is counted is `cost_of_pass`.
    """
    mask, rows = batch["attention_mask"], [int(r) for r in rows]
    firsts = mask.argmax(1).tolist()  # columns of the first and the last token of each row
    lasts = (mask.shape[1] - 1 - mask.flip(1).argmax(1)).tolist()
    lengths = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    start, prompts = 0, list(range(len(mask)))
    if rows and max(lengths[r] for r in rows) <= shared:
        start, prompt_lengths, _ = same_prompts(batch)
        prompts = prompt_lengths.tolist()
    longest = {prompts[r]: lengths[r] for r in sorted(rows, key=lambda r: lengths[r])}  # row of each prompt

    def cost(group) -> float:
        cells = len(group) * (1 + max(lasts[r] for r in group) - min(firsts[r] for r in group))
        once = {prompts[r]: start - firsts[r] for r in group}
        return cost_of_pass(sum(once.values()) + sum(lasts[r] - start for r in group), cells) if start else cells

    groups, current = [], []
    for row in sorted(rows, key=lambda r: (longest[prompts[r]], prompts[r], lengths[r], r)):
        if current and cost([*current, row]) > budget:
            groups.append(current)
            current = []
        current = [*current, row]
    return [torch.tensor(group, device=mask.device) for group in [*groups, current] if group]


def trimmed(batch: dict, rows) -> tuple[dict, slice]:
    """The given rows without the columns that are padding in all of them, and the slice of columns kept."""
    used = batch["attention_mask"][rows].any(0).nonzero()
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {name: x[rows, columns] for name, x in batch.items()}, columns
