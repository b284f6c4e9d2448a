"""Sampler and trainer disagree on the probability of sampled tokens."""

import math
import statistics

from parts.reading.cause import CERTAIN, LOST, Cause, Evidence, Fact, fact
from parts.reading.logged_run import LoggedRun

MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)


def find_sampler_mismatch(run: LoggedRun) -> Evidence | None:
    """A distance beyond its limit in most steps, or a ratio other than 1 in a rollout's only update."""
    penalty = run.number("repetition_penalty")
    if penalty is not None and penalty != 1:
        text = f"the sampler has a repetition penalty of {penalty:g}, the trainer has none"
        return Evidence(CERTAIN + 0.04, [Fact(text, "repetition_penalty")], since=1)
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        values = run.values(name)
        begun = not values or not low <= statistics.median(values[:2]) <= high  # else weights that go stale
        if values and begun and not low <= statistics.median(values) <= high:
            first = next(step for step, value in sorted(run.series[name].items()) if not low <= value <= high)
            text = f"{text.format(statistics.median(values))}; median of all steps"
            return Evidence(CERTAIN + 0.03, [fact(run, name, text, first)], since=first)
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in sorted(run.series.get(name, {}).items()):
            if updates.get(step, constant) == 1 and value > limit:
                text = f"{run.name(name)} is {value:.4g} at step {step}, which has one update per rollout"
                return Evidence(CERTAIN + 0.03, [fact(run, name, text, step)], since=step)
    return None


SAMPLER_MISMATCH = Cause(
    "sampler_mismatch",
    "sampler and trainer give the same tokens different probabilities",
    find_sampler_mismatch,
    f"{LOST} sampler_gap flat_score held_out_flat critic_explains_little updates_too_large critic_useless "
    "stale_weights part_dies nothing_moves",
    "the same {temperature}, top-p 1 and top-k off on both sides, old log-probs by the trainer's own forward pass "
    "(dropout off), weights copied after every step; {mismatch} corrects what is left",
    "python scripts/selfcheck.py scripts/ppo_train.py",
    "NeMo-RL docs/guides/grpo.md (1.05, 0.01); verl docs/algo/rollout_corr.md; verl#2996, verl#6280",
    breaks=True,
)
