"""The held-out gap between student and teacher."""

import dataclasses

from parts.data.held_out import overlap_metric
from parts.evaluating.paired_tests import Values, held_out_figures, summarize
from parts.foundation.processes import np, sum_over_processes, torch
from parts.learning.losses import kl_estimate
from parts.networks.batches import collate
from parts.networks.forward import lm_logits, pieces_of_batch, predicting_states, tempered
from parts.networks.models import autocast, widest_float
from parts.rewards.rewards import Reward
from parts.sampling.rollouts import collect
from programs.on_policy_distillation.models import ask_server, pieces_of, server_tensors
from programs.on_policy_distillation.objective import gap_figures
from programs.on_policy_distillation.settings import Config

RESAMPLED = 1000  # draws of the bootstrap


def held_out_gap(config: Config, models, engine, reward: Reward, rows: list[dict]) -> tuple[dict, list[dict]]:
    """How far the student is from its teacher on its own samples of held-out prompts, drawn alike each time.

    Each prompt has `eval_samples` of them, beside each other. With a local teacher, per token over the whole
    vocabulary; with a server, the reverse KL by k3 on the sampled tokens.
    """
    repeats = config.eval_samples
    rows = [row for row in rows for _ in range(repeats)]
    noise = np.random.default_rng([config.seed, 6]).random((len(rows), config.max_new_tokens))
    alone = dataclasses.replace(config, group_size=1)
    samples = collect(alone, models, engine, reward, rows, noise, {})
    ask_server(models, samples)
    batch = collate(samples, models.pad_id, models.device)
    scored = server_tensors(samples, batch)
    tokens = batch["response_mask"].sum(1)
    if scored:
        kl = kl_estimate(batch["rollout_logprobs"], scored["teacher_logprobs"], "k3")
        figures = (kl * batch["response_mask"]).sum(1, keepdim=True)
    else:
        figures = local_figures(config, models, batch)
    means = (figures.sum(0) / tokens.sum()).tolist()
    metrics = dict(zip(GAP_KEYS[: len(means)], means, strict=True))
    spread = spread_of_mean(figures[:, 0].tolist(), tokens.tolist(), repeats, config.seed)
    return metrics | {SPREAD_KEYS[name]: value for name, value in spread.items()}, samples


def spread_of_mean(sums, tokens, samples: int, seed: int) -> dict[str, float]:
    """The 95% interval of sum(sums) / sum(tokens), `low` and `high`, and `top`, the largest completion's share of it.

    The interval is the percentile bootstrap over prompts, whose completions are adjacent and stay together; it covers
    other prompts and other samples. With one prompt there is none; with fewer than 8 completions no `top`,
    as some share is large.
    """
    sums, tokens = (np.asarray(x, dtype=np.float64).reshape(-1, samples) for x in (sums, tokens))
    interval = summarize(Values(sums.sum(1).tolist(), tokens.sum(1).tolist()), RESAMPLED, seed)["ci95"]
    figures = dict(zip(("low", "high"), interval or (), strict=False))
    if sums.size >= 8 and sums.sum() > 0:
        figures["top"] = float(sums.max() / sums.sum())
    return figures


SPREAD_KEYS = {"low": "eval/reverse_kl_low", "high": "eval/reverse_kl_high", "top": "eval/reverse_kl_top"}
GAP_KEYS = ("eval/reverse_kl", "eval/entropy", "eval/teacher_entropy", "eval/overlap")


def local_figures(config: Config, models, batch: dict):
    """Sums over a completion's tokens of what gap_figures says, with a local teacher: [B, 4]."""
    sums = torch.zeros(len(batch["input_ids"]), 4, dtype=widest_float(models.device), device=models.device)
    teacher = models.teacher
    for piece_rows, _, piece in pieces_of_batch(config, models, batch, range(len(sums))):
        mask = piece["response_mask"].bool()
        owners = torch.as_tensor(piece_rows, device=models.device)[:, None].expand(mask.shape)[mask]  # [tokens]
        with torch.no_grad(), autocast(config, models.device):
            states = predicting_states(models.policy, piece)[mask]
        theirs = teacher.states(piece)[mask]
        for part in pieces_of(config, models.policy, len(states)):
            with torch.no_grad():
                logits = lm_logits(models.policy, states[part])[:, : teacher.width]
                student = torch.log_softmax(tempered(logits, config.temperature), -1)
                figures = gap_figures(student, teacher.logprobs(theirs[part]))
                sums.index_add_(0, owners[part], figures.to(sums.dtype))
    return sum_over_processes(sums)


def evaluate(config: Config, models, engine, reward: Reward, rows: list[dict]) -> tuple[dict, list[dict]]:
    """Held-out distance to the teacher, and with rewards their greedy means: accuracy = share with full marks."""
    silent = Reward([])
    silent.silent = True
    metrics, samples = held_out_gap(config, models, engine, silent, rows)
    if reward.functions:
        samples = collect(dataclasses.replace(config, group_size=1), models, engine, reward, rows, None, {})
        metrics |= held_out_figures(samples, [len(s["response_ids"]) for s in samples], rows)
    metrics["eval/length_mean"] = sum(len(s["response_ids"]) for s in samples) / len(samples)
    return metrics | overlap_metric(rows), samples[:: len(samples) // len(rows)]
