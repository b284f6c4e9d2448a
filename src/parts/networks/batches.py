"""Padding, collating, micro-batches under a budget of tokens."""

from parts.foundation.processes import dealt, world
from parts.networks.shared_prompts import cost_of_pass, same_prompts


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Return (input_ids, attention_mask), both [B, T], pads on the left."""
    import torch

    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


def collate(samples: list[dict], pad_id: int, device) -> dict:
    """Stack samples: prompts padded on the left, responses on the right, so every response starts in one column.

    A sample's `response_mask`, where it has one, is 1 on what was sampled; else all of the response was.
    """
    import torch

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

    Args:
        shared: `shared_length` of the networks that will run them. Where no row is longer, rows of one prompt stand
            together, and what is counted is `cost_of_pass`.
    """
    import torch

    mask, rows = batch["attention_mask"], [int(r) for r in rows]
    firsts = mask.argmax(1).tolist()  # columns of the first and the last token of each row
    lasts = (mask.shape[1] - 1 - mask.flip(1).argmax(1)).tolist()
    lengths = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    start, prompts = 0, list(range(len(mask)))
    if rows and max(lengths[r] for r in rows) <= shared:
        start, found, _ = same_prompts(batch)
        prompts = found.tolist()
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
