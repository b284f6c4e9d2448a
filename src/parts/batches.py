"""Padding, collating, micro-batches under a budget of tokens."""

from parts.processes import dealt, world


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


def micro_batches(batch: dict, rows, budget: int) -> list:
    """Split row indices into groups of similar length with at most `budget` tokens each, pads included."""
    import torch

    mask = batch["attention_mask"]
    firsts = mask.argmax(1).tolist()  # columns of the first and the last token of each row
    lasts = (mask.shape[1] - 1 - mask.flip(1).argmax(1)).tolist()
    groups, current = [], []
    for row in sorted((int(r) for r in rows), key=lambda r: (lasts[r] - firsts[r], r)):
        grown = [*current, row]
        width = 1 + max(lasts[r] for r in grown) - min(firsts[r] for r in grown)
        if current and width * len(grown) > budget:
            groups.append(current)
            grown = [row]
        current = grown
    return [torch.tensor(group, device=mask.device) for group in [*groups, current] if group]


def trimmed(batch: dict, rows) -> tuple[dict, slice]:
    """The given rows without the columns that are padding in all of them, and the slice of columns kept."""
    used = batch["attention_mask"][rows].any(0).nonzero()
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {name: x[rows, columns] for name, x in batch.items()}, columns
