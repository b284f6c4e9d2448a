"""Metrics of a step, and the held-out evaluation."""

from collections.abc import Callable

from parts.data.held_out import overlap_metric
from parts.environments.play import play_metrics
from parts.learning.shaping import all_equal
from parts.networks.batches import explained_variance, masked_mean
from parts.networks.models import Models
from parts.reading.paired_tests import accuracy_figures
from parts.rewards.rewards import Reward
from parts.running.run_log import reward_means
from parts.sampling.rollouts import collect
from programs.ppo_train.settings import Config


def update_metrics(config: Config, applied: list, ratio_max: float, train_policy: bool) -> dict:
    """Means over the updates applied in a step; a critic's where there is one, the policy's once it is trained."""
    import torch

    policy = ("policy/loss", "policy/clip_frac", "policy/entropy", "kl/approx")
    names = (*policy, "value/loss", "mismatch/weight_mean", "mismatch/kl", "mismatch/cut_frac")
    names += ("kl/ref", "kl/ref_completion")
    names += ("optim/grad_norm", "optim/critic_grad_norm")
    means = torch.stack(applied).mean(0).tolist() if applied else []
    metrics = dict(zip(names, means, strict=False)) | {"policy/ratio_max": ratio_max} if applied else {}
    drop = ("value/loss",) if config.advantage != "gae" else ()
    if not config.kl_coef or config.kl_in == "reward" or config.ppo_epochs * config.minibatches > 1:
        drop += ("kl/ref", "kl/ref_completion")  # those of sample_metrics stand
    if not train_policy:  # warm-up: nothing was measured of the policy
        drop = (*policy, *names[5:10], "policy/ratio_max")
    return {name: value for name, value in metrics.items() if name not in drop}


def sample_metrics(config: Config, batch: dict, samples: list[dict], timer: dict) -> dict:
    """Metrics of a rollout: rewards, KL to the reference, lengths, explained variance, speed.

    `samples` are all that were sampled; with dynamic sampling, `batch` holds only those that train.
    """
    import statistics

    scores = [s["score"] for s in samples]
    lengths = sampled_lengths(samples)
    metrics = {
        "reward/mean": statistics.fmean(scores),
        "reward/std": statistics.pstdev(scores),
        **{f"reward/{name}": mean for name, mean in reward_means(samples).items()},
        "rollout/length_mean": statistics.fmean(lengths),
        "rollout/truncated_frac": statistics.fmean(not s["finished"] for s in samples),
        "rollout/tokens_per_s": sum(lengths) / max(timer["rollout"], 1e-9),
    }
    if "talk" in samples[0]:
        metrics |= play_metrics([s["talk"] for s in samples])
    if "values" in batch:
        spread = explained_variance(batch["values"], batch["returns"], batch["response_mask"])
        metrics["value/explained_variance"] = spread
    if config.group_size > 1:
        groups = [samples[i : i + config.group_size] for i in range(0, len(samples), config.group_size)]
        metrics["reward/zero_std_frac"] = statistics.fmean(all_equal(config, group) for group in groups)
    if config.dynamic_sampling:
        metrics["rollout/samples"] = len(samples)
        metrics["rollout/rounds"] = 1 + max(s.get("round", 0) for s in samples)
        differ = sum(not all_equal(config, group) for group in groups)
        metrics["rollout/unused"] = max(0, differ * config.group_size - config.batch_size)
    if "ref_logprobs" in batch and "old_logprobs" in batch:
        metrics["kl/ref"] = masked_mean(batch["kl"], batch["response_mask"]).item()
        metrics["kl/ref_completion"] = batch["kl"].sum(1).mean().item()
    if "old_logprobs" in batch:
        gap = (batch["old_logprobs"] - batch["rollout_logprobs"]).abs() * batch["response_mask"]
        metrics["rollout/logprob_gap_max"] = gap.max().item()
    return metrics


def sampled_lengths(samples: list[dict]) -> list[int]:
    """Tokens that were sampled, of each sample; tools' and replies' are not."""
    return [sum(s["response_mask"]) if "response_mask" in s else len(s["response_ids"]) for s in samples]


def evaluate(
    config: Config, models: Models, engine, reward: Reward, rows: list[dict], sample: Callable = collect
) -> tuple[dict, list[dict]]:
    """Greedy held-out evaluation: mean of each reward, and accuracy = share with full marks (>= 1) from the first.

    `sample` takes the place of `collect`.
    """
    samples = sample(config, models, engine, reward, rows, None, {})
    metrics = {f"eval/{name}": mean for name, mean in reward_means(samples).items()} | accuracy_figures(samples)
    metrics["eval/score"] = sum(s["score"] for s in samples) / len(samples)
    metrics["eval/length_mean"] = sum(sampled_lengths(samples)) / len(samples)
    metrics |= {"eval/rows": len(samples)} | overlap_metric(rows)
    if "talk" in samples[0]:
        played = play_metrics([s["talk"] for s in samples])
        metrics["eval/turns_mean"] = played["rollout/turns_mean"]
        metrics["eval/calls_mean"] = played["tool/calls_mean"]
    return metrics, samples
