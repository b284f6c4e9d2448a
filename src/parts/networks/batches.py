"""Batches: masked statistics, padding, micro-batches, and packed layouts that hold a shared prompt once."""

import functools
import math
from dataclasses import dataclass, field

from parts.foundation.processes import dealt, torch, world

OVERHEAD = 0.125  # cost in tokens of a cell (rows x columns) of a packed pass, as every row reads its prompt's keys


def masked_mean(x, mask):
    """Mean of x where mask is 1; both [B, T]; 0 for an empty mask."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(x, mask, shift_mean: bool = True):
    """Scale x [B, T] to unit variance over the tokens where mask is 1, and to mean 0 unless `shift_mean` is false.

    The variance is unbiased and gets 1e-8 added, as in verl's `masked_whiten`. Entries with mask 0 become 0.
    """
    mean = masked_mean(x, mask)
    var = masked_mean((x - mean) ** 2, mask)
    var = var * mask.sum() / (mask.sum() - 1).clamp(min=1)  # Bessel
    white = (x - mean) * (var + 1e-8).rsqrt()
    return (white if shift_mean else white + mean) * mask


def explained_variance(values, returns, mask) -> float:
    """1 - Var[returns - values] / Var[returns] where mask is 1; all [B, T]. 0 if the returns do not vary."""
    if not mask.any():  # torch warns of the variance of nothing
        return 0.0
    r, error = returns[mask.bool()], (returns - values)[mask.bool()]
    var = r.var(unbiased=False)
    return (1 - error.var(unbiased=False) / var).item() if var > 1e-12 else 0.0


def cost_of_pass(tokens: int, cells: int) -> float:
    """Cost of a forward pass in tokens: that of a packed line of `tokens`, or of all rows x columns if this is less."""
    return min(tokens + OVERHEAD * cells, cells)


def same_prompts(piece: dict) -> tuple:
    """Find the rows that share a prompt.

    Returns:
        (first column in which a token was sampled: prompts stand before it, index [B] of each row's distinct prompt,
        row [n] in which each distinct prompt first occurs).
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
    """How the tokens of rows [B, T] are packed into one line of N tokens, without pads and without last tokens.

    The line has either whole texts, or the n distinct prompts followed by the responses. Tables hold places in the
    line, from 0 to N - 1, and N where there is no token.
    """

    ids: object  # [N]
    positions: object  # [N], position in its text, from 0
    prompts: object  # [n, P], tokens that attend within their row only: distinct prompts, or whole texts
    responses: object  # [B, C], tokens that also attend to their prompt; C is 0 if the line has whole texts
    texts: object  # [B, P + C], each row's prompt and, from column P on, its response
    back: object  # [N], index of each token in flattened `prompts` + `responses`; None if the line is `prompts`
    predicting: object  # [B, T], for each sampled token the place of the token before it
    seen: object  # [B or 1, 1, C, P + C], whether a response token attends to a text token
    masks: dict = field(default_factory=dict)

    @functools.cached_property
    def kept(self):
        """Unique places [M] in `predicting`, in order: only there are the last layer's states needed."""
        needed = torch.zeros(len(self.ids) + 1, dtype=torch.bool, device=self.ids.device)
        needed[self.predicting.flatten()] = True
        return needed[:-1].nonzero().squeeze(1)

    def added_to_scores(self, dtype):
        """Additive attention mask [B or 1, 1, C, P + C]: 0 where seen, else -inf. It is made once for all layers."""
        if dtype not in self.masks:
            zeros = torch.zeros(self.seen.shape, dtype=dtype, device=self.seen.device)
            self.masks[dtype] = zeros.masked_fill_(~self.seen, -math.inf)
        return self.masks[dtype]


def places_in_line(lengths, before: int, total: int):
    """Places [rows, longest] of consecutive texts with `lengths` [rows] after `before` tokens; pads get `total`."""
    columns = torch.arange(int(lengths.max()), device=lengths.device)
    starts = before + lengths.cumsum(0) - lengths
    return torch.where(columns < lengths[:, None], starts[:, None] + columns, total)


def layout_of(piece: dict, longest: float) -> Layout | None:
    """The cheaper layout of rows [B, T]; None if there are no prompts, or if a row is longer than `longest` tokens."""
    start, which, first = same_prompts(piece)
    mask = piece["attention_mask"].bool()
    lengths = mask.sum(1)
    if not start or int(lengths.max()) > longest:
        return None
    tokens, cells = int(lengths.sum()) - len(lengths), len(lengths) * (int(lengths.max()) - 1)
    once = tokens - int(mask[:, :start].sum()) + int(mask[first, :start].sum())
    if cost_of_pass(once, mask.numel()) < cost_of_pass(tokens, cells):
        return layout_of_rows(piece, start, which, first)
    every = torch.arange(len(mask), device=mask.device)
    return layout_of_rows(piece, mask.shape[1], every, every)


def layout_of_rows(piece: dict, start: int, which, first) -> Layout:
    """The layout that holds each distinct prompt once; further arguments are the result of `same_prompts`.

    Where `start` is T, the prompts are whole texts, and there are no responses.
    """
    ids, mask = piece["input_ids"], piece["attention_mask"].bool()
    (rows, columns), device = ids.shape, ids.device
    followed = mask & torch.nn.functional.pad(mask[:, 1:], (0, 1))  # all but each text's last token
    of_prompt, of_response = (followed if start == columns else mask)[first, :start], followed[:, start:-1]
    lengths, replies = of_prompt.sum(1), of_response.sum(1)
    before, total = int(lengths.sum()), int(lengths.sum() + replies.sum())
    prompts, responses = places_in_line(lengths, 0, total), places_in_line(replies, before, total)
    reach = responses.shape[1]
    line = torch.stack([ids, mask.cumsum(1) - 1])
    line = torch.cat([line[:, first, :start][:, of_prompt], line[:, :, start:-1][:, of_response]], dim=1)
    places = torch.full_like(ids, total)  # of each token in the line
    places[:, :start] = places[first, :start].masked_scatter(of_prompt, torch.arange(before, device=device))[which]
    places[:, start:-1].masked_scatter_(of_response, torch.arange(before, total, device=device))
    sees = torch.ones(reach, reach, dtype=torch.bool, device=device).tril().expand(rows, -1, -1)
    seen = torch.cat([(prompts < total)[which, None].expand(-1, reach, -1), sees], dim=2)[:, None]
    back = torch.cat([(table < total).flatten() for table in (prompts, responses)]).nonzero().squeeze(1)
    no_pads = bool((lengths == prompts.shape[1]).all())
    return Layout(
        ids=line[0],
        positions=line[1],
        prompts=prompts,
        responses=responses,
        texts=torch.cat([prompts[which], responses], dim=1),
        back=back if reach or not no_pads else None,
        predicting=places.roll(1, dims=1).masked_fill(piece["response_mask"] == 0, total),
        seen=seen[:1] if no_pads else seen,
    )


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Pad sequences on the left; returns (input_ids, attention_mask), both [B, T]."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


def collate(samples: list[dict], pad_id: int, device) -> dict:
    """Stack samples: prompts padded on the left, responses on the right, so every response starts in one column.

    Without a `response_mask` of its own, all of a sample's response counts as sampled.
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
    """The rows of a batch that this process takes: about equally many tokens each; rows of a prompt stay together."""
    rows, (rank, size) = [int(row) for row in rows], world()
    if size == 1 or not rows:
        return rows
    lengths = batch["attention_mask"][rows].sum(1).tolist()
    first = int(batch["response_mask"].any(0).int().argmax())  # column in which responses start
    prompts = map(tuple, batch["input_ids"][rows, :first].tolist())
    return [rows[i] for i in dealt(lengths, list(prompts), size)[rank]]


def micro_batches(batch: dict, rows, budget: int, shared: float = 0) -> list:
    """Split row indices into groups of similar length with at most `budget` tokens each, pads included.

    If no row is longer than `shared` (the networks' `shared_length`), rows of a prompt are kept together and the
    tokens are counted by `cost_of_pass`.
    """
    mask, rows = batch["attention_mask"], [int(r) for r in rows]
    firsts = mask.argmax(1).tolist()  # columns of the first and the last token of each row
    lasts = (mask.shape[1] - 1 - mask.flip(1).argmax(1)).tolist()
    lengths = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    start, prompts = 0, list(range(len(mask)))
    if rows and max(lengths[r] for r in rows) <= shared:
        start, prompt_lengths, _ = same_prompts(batch)
        prompts = prompt_lengths.tolist()
    longest = {prompts[r]: lengths[r] for r in sorted(rows, key=lambda r: lengths[r])}  # longest row of each prompt

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
    """(the given rows without columns that are padding in all of them, the slice of kept columns)."""
    used = batch["attention_mask"][rows].any(0).nonzero()
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {name: x[rows, columns] for name, x in batch.items()}, columns
