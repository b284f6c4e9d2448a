"""What the teachers say of a batch's tokens: servers in answers, local ones in pieces."""

from parts.networks.batches import own_rows
from parts.networks.models import unwrapped
from programs.on_policy_distillation.objective import COMPARED
from programs.on_policy_distillation.settings import Config
from programs.on_policy_distillation.teachers import LocalTeacher


def server_tensors(samples: list[dict], batch: dict) -> dict:
    """teacher_logprobs [B, T], teacher_ids and teacher_top [B, T, k] where every sample has been scored by a server."""
    import torch

    if not all("scored" in s for s in samples):
        return {}
    mask = batch["response_mask"].bool()
    names = {"logprobs": "teacher_logprobs", "ids": "teacher_ids", "top": "teacher_top"}
    made = {}
    for key in samples[0]["scored"]:
        flat = torch.tensor([x for s in samples for x in s["scored"][key]], device=mask.device)  # [N] or [N, k]
        made[names[key]] = flat.new_zeros(*mask.shape, *flat.shape[1:])
        made[names[key]][mask] = flat
    return made


def by_teacher(models, batch: dict, rows) -> list[tuple]:
    """(teacher, this process's share of the rows that are its)."""
    owner = batch["teacher"][:, 0].tolist()
    return [
        (teacher, own_rows(batch, [r for r in rows if owner[int(r)] == index]))
        for index, teacher in enumerate(models.teachers)
    ]


def pieces_of(config: Config, model, count: int) -> list[slice]:
    """Slices over `count` tokens, each of at most `logits_chunk` logits."""
    chunk = max(1, config.logits_chunk // unwrapped(model).config.get_text_config().vocab_size)
    return [slice(start, start + chunk) for start in range(0, count, chunk)]


def teacher_figures(config: Config, teacher: LocalTeacher, hidden, targets) -> dict:
    """A local teacher's log-probs [N] of given tokens, entropies [N] and likeliest tokens [N, COMPARED]."""
    import torch

    figures = {"teacher_logprobs": [], "teacher_entropy": [], "teacher_ids": []}
    for part in pieces_of(config, teacher.model, len(targets)):
        dist = teacher.logprobs(hidden[part])
        figures["teacher_logprobs"].append(dist.gather(-1, targets[part, None]).squeeze(-1))
        figures["teacher_ids"].append(dist.topk(min(COMPARED, teacher.width)).indices)
        figures["teacher_entropy"].append(-(dist.exp() * dist).sum(-1))
    return {name: torch.cat(parts) for name, parts in figures.items()}
