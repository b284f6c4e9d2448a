"""The batch of a step: sampled completions, those of the data, and the metrics of both."""

import statistics
import time

from parts.foundation.messages import need
from parts.learning.losses import likelihood_ratio, mismatch_mode
from parts.networks.batches import masked_mean
from parts.rewards.rewards import Reward
from parts.running.progress import reward_means
from parts.sampling.rollouts import batch_rows, collect
from programs.on_policy_distillation.settings import Config, offpolicy_rows
from programs.on_policy_distillation.teachers import ask_servers, teacher_of, teacher_specs


def data_completion(config: Config, row: dict) -> str:
    """The completion that the data have for a prompt: a string, or one assistant message."""
    value = row["columns"].get(config.completion_column)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    need(
        isinstance(value, str) and value,
        f"{config.data}, prompt {str(row['prompt'])[:60]!r}: got {config.completion_column} {str(value)[:60]!r}; "
        "expected a string or one assistant message; try --completion_column NAME",
    )
    return value


def data_sample(config: Config, models, row: dict) -> dict:
    """A row of the data as if the student had written its completion; the end token is part of it."""
    text, end = data_completion(config, row), models.tokenizer.eos_token_id
    end = end if end in models.eos_ids else models.eos_ids[0]
    ids = [*models.tokenizer(text, add_special_tokens=False).input_ids, end]
    finished, ids = len(ids) <= config.max_new_tokens, ids[: config.max_new_tokens]
    sample = {"prompt": row["prompt"], "prompt_ids": row["prompt_ids"], "completion": text, "response_ids": ids}
    sample |= {"rollout_logprobs": [0.0] * len(ids), "finished": finished, "rewards": {}, "score": 0.0}
    return sample | {"group": -1, "weights": {}, "offpolicy": True}


def rollout_batch(config: Config, models, engine, reward: Reward, rows: list, step: int, start: int, timer: dict):
    """The batch of a step: sampled completions, then completions of the data, from prompt `start` of the stream on.

    Returns:
        (samples, the stream's next position).
    """
    import numpy as np

    given, size = offpolicy_rows(config), config.group_size
    fresh = config.batch_size - given
    picked = batch_rows(rows, config, start, fresh // size + given)
    prompts, rest = [row for row in picked[: fresh // size] for _ in range(size)], picked[fresh // size :]
    noise = np.random.default_rng([config.seed, 3, step]).random((fresh, config.max_new_tokens))
    samples = collect(config, models, engine, reward, prompts, noise, timer) if prompts else []
    samples += [data_sample(config, models, row) for row in rest]
    names = list(teacher_specs(config))
    for sample, row in zip(samples, prompts + rest, strict=True):
        sample["teacher"] = teacher_of(config, row, names)
    begin = time.perf_counter()
    ask_servers(models, samples)
    timer["teacher"] = time.perf_counter() - begin
    return samples, start + len(picked)


def batch_metrics(config: Config, batch: dict, samples: list[dict], timer: dict) -> dict:
    """Metrics of a rollout: rewards, lengths, speed, and how far sampler and trainer disagree."""
    sampled = [s for s in samples if "offpolicy" not in s]
    lengths = [len(s["response_ids"]) for s in sampled]
    metrics = {}
    if sampled and sampled[0]["rewards"]:
        scores = [s["score"] for s in sampled]
        metrics = {"reward/mean": statistics.fmean(scores), "reward/std": statistics.pstdev(scores)}
        metrics |= {f"reward/{name}": mean for name, mean in reward_means(sampled).items()}
        groups = [scores[i : i + config.group_size] for i in range(0, len(scores), config.group_size)]
        if config.group_size > 1:
            metrics["reward/zero_std_frac"] = statistics.fmean(len(set(group)) == 1 for group in groups)
    if sampled:
        metrics["rollout/length_mean"] = statistics.fmean(lengths)
        metrics["rollout/truncated_frac"] = statistics.fmean(not s["finished"] for s in sampled)
        metrics["rollout/tokens_per_s"] = sum(lengths) / max(timer["rollout"], 1e-9)
    if sampled and "old_logprobs" in batch:
        mask = batch["loss_mask"] * ~batch["offpolicy"]
        gap = (batch["old_logprobs"] - batch["rollout_logprobs"]) * mask
        w = likelihood_ratio(gap, 0)
        metrics["rollout/logprob_gap_max"] = gap.abs().max().item()
        metrics["mismatch/weight_mean"] = masked_mean(w, mask).item()
        metrics["mismatch/kl"] = masked_mean(w - 1 - w.log(), mask).item()
        if "corrections" in batch:
            cut = batch["corrections"] < w if mismatch_mode(config) == "tis" else batch["corrections"] == 0
            metrics["mismatch/cut_frac"] = masked_mean(cut.float(), mask).item()
    return metrics
