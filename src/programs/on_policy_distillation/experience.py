"""From samples to a training batch: the teachers' figures and the advantages."""

from parts.foundation.processes import sum_over_processes
from parts.learning.advantages import discounted_returns
from parts.learning.kl import kl_estimate
from parts.learning.losses import mismatch_weights
from parts.networks.batches import collate, micro_batches, own_rows, trimmed
from parts.networks.forward import predicting_states, shared_length, token_logprobs
from parts.networks.models import autocast, unwrapped
from programs.on_policy_distillation.objective import ADVANTAGES, COMPARED
from programs.on_policy_distillation.settings import Config
from programs.on_policy_distillation.teachers import LocalTeacher


def make_experience(config: Config, models, samples: list[dict], kl_coef: float) -> dict:
    """Turn samples into a training batch of [B, T] tensors; what servers said of k tokens is [B, T, k].

    The advantages are constants: of the teacher for policy_gradient, of the rewards with `reward_coef`.
    """
    import torch

    batch = collate(samples, models.pad_id, models.device)
    shape, response = batch["input_ids"].shape, batch["response_mask"]
    per_row = {"teacher": [s.get("teacher", 0) for s in samples], "offpolicy": ["offpolicy" in s for s in samples]}
    for name, values in per_row.items():
        batch[name] = torch.tensor(values, device=models.device)[:, None].expand(shape)
    widths = torch.tensor([getattr(t, "width", 2**62) for t in models.teachers], device=models.device)
    batch["loss_mask"] = response * (batch["input_ids"] < widths[batch["teacher"]])  # a padding row may be sampled
    batch |= server_tensors(samples, batch)
    sampled, made = config.objective == "policy_gradient", []
    weighed = (sampled or config.reward_coef) and mismatch_mode(config) != "none"
    made += ["old_logprobs"] * bool(config.ppo_epochs * config.minibatches > 1 or weighed)
    made += ["teacher_logprobs", "teacher_entropy"] * (sampled and "teacher_logprobs" not in batch)
    if made:
        batch |= frozen_passes(config, models, batch, made)
    if sampled or config.reward_coef:
        batch["advantages"] = distillation_advantages(config, batch, samples, kl_coef)
    if weighed:
        known, own = (batch["old_logprobs"], batch["rollout_logprobs"]), batch["loss_mask"] * ~batch["offpolicy"]
        bounds = (mismatch_mode(config), config.mismatch_low, config.mismatch_high)
        batch["corrections"] = mismatch_weights(*known, own, *bounds)
    return batch


def mismatch_mode(config: Config) -> str:
    """How the sampled terms are corrected for a sampler that is not the trainer."""
    return {"auto": "tis" if config.rollout_engine == "vllm" else "none"}.get(config.mismatch, config.mismatch)


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


def frozen_passes(config: Config, models, batch: dict, names: list[str]) -> dict:
    """Those of old_logprobs, teacher_logprobs and teacher_entropy that are asked for, [B, T], without gradient.

    With the teacher's figures come the ids of its likeliest tokens, `teacher_ids` [B, T, COMPARED].
    """
    import torch

    shape = batch["input_ids"].shape
    made = {name: torch.zeros(shape, device=models.device) for name in names}
    if "teacher_logprobs" in made:
        count = min(COMPARED, *(t.width for t in models.teachers))
        made["teacher_ids"] = torch.zeros(*shape, count, dtype=torch.long, device=models.device)
    for teacher, rows in by_teacher(models, batch, range(shape[0])):
        for piece_rows in micro_batches(batch, rows, config.micro_batch_tokens, shared_length(models.networks)):
            piece, columns = trimmed(batch, piece_rows)
            if "old_logprobs" in made:
                with torch.no_grad(), autocast(config, models.device):
                    hidden = predicting_states(models.policy, piece)
                    made["old_logprobs"][piece_rows, columns] = token_logprobs(config, models.policy, hidden, piece)[0]
            if "teacher_logprobs" in made:
                mask = piece["loss_mask"].bool()
                figures = teacher_figures(config, teacher, teacher.states(piece)[mask], piece["input_ids"][mask])
                for name, flat in figures.items():
                    part = made[name].new_zeros(*mask.shape, *made[name].shape[2:])
                    part[mask] = flat[..., : part.shape[-1]] if part.dim() > 2 else flat
                    made[name][piece_rows, columns] = part
    return {name: sum_over_processes(x) for name, x in made.items()}


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


def distillation_advantages(config: Config, batch: dict, samples: list[dict], kl_coef: float):
    """Advantages [B, T] of teacher and rewards; 0 on completions of the data, which the student did not sample."""
    import torch

    mask, own = batch["loss_mask"], ~batch["offpolicy"]
    advantages = torch.zeros(mask.shape, device=mask.device)
    if config.objective == "policy_gradient":
        seen = batch.get("old_logprobs", batch["rollout_logprobs"])  # with one update a step they are the same
        gap = kl_estimate(seen, batch["teacher_logprobs"], "k1") * mask
        advantages = -kl_coef * discounted_returns(gap, mask, config.discount)
    if config.reward_coef:
        scores = torch.tensor([s["score"] for s in samples], device=mask.device)
        groups = torch.tensor([s.get("group", i) for i, s in enumerate(samples)], device=mask.device)
        scored = own[:, 0] & torch.tensor([any(v is not None for v in s["rewards"].values()) for s in samples]).to(own)
        if scored.any():
            found = ADVANTAGES[config.advantage](scores=scores[scored], groups=groups[scored], config=config)
            advantages[scored] += config.reward_coef * found[:, None] * mask[scored]
    return advantages * own
