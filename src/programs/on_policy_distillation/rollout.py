"""The batch of a step, and its metrics."""

import statistics
import time

from parts.foundation.processes import np
from parts.learning.losses import likelihood_ratio, mismatch_mode
from parts.networks.batches import masked_mean
from parts.rewards.rewards import Reward
from parts.running.progress import rollout_metrics
from parts.sampling.rollouts import batch_rows, collect
from programs.on_policy_distillation.settings import Config
from programs.on_policy_distillation.teachers import ask_servers, teacher_of, teacher_specs


def rollout_batch(config: Config, models, engine, reward: Reward, rows: list, step: int, start: int, timer: dict):
    """(samples of a step, from prompt `start` of the stream on; the stream's next position)."""
    picked = batch_rows(rows, config, start, config.batch_size // config.group_size)
    prompts = [row for row in picked for _ in range(config.group_size)]
    noise = np.random.default_rng([config.seed, 3, step]).random((config.batch_size, config.max_new_tokens))
    samples, names = collect(config, models, engine, reward, prompts, noise, timer), list(teacher_specs(config))
    for sample, row in zip(samples, prompts, strict=True):
        sample["teacher"] = teacher_of(config, row, names)
    begin = time.perf_counter()
    ask_servers(models, samples)
    timer["teacher"] = time.perf_counter() - begin
    return samples, start + len(picked)


def batch_metrics(config: Config, batch: dict, samples: list[dict], timer: dict) -> dict:
    """Metrics of a rollout: rewards, lengths, speed, and how far sampler and trainer disagree."""
    rewarded = bool(samples[0]["rewards"])
    metrics = rollout_metrics(samples, [len(s["response_ids"]) for s in samples], timer, rewarded)
    if rewarded and config.group_size > 1:
        scores = [s["score"] for s in samples]
        groups = [{*scores[i : i + config.group_size]} for i in range(0, len(scores), config.group_size)]
        metrics["reward/zero_std_frac"] = statistics.fmean(len(group) == 1 for group in groups)
    if "old_logprobs" in batch:
        mask = batch["loss_mask"]
        gap = (batch["old_logprobs"] - batch["rollout_logprobs"]) * mask
        w = likelihood_ratio(gap, 0)
        metrics["rollout/logprob_gap_max"] = gap.abs().max().item()
        metrics["mismatch/weight_mean"] = masked_mean(w, mask).item()
        metrics["mismatch/kl"] = masked_mean(w - 1 - w.log(), mask).item()
        if "corrections" in batch:
            cut = batch["corrections"] < w if mismatch_mode(config) == "tis" else batch["corrections"] == 0
            metrics["mismatch/cut_frac"] = masked_mean(cut.float(), mask).item()
    return metrics
