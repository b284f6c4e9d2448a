"""Stale weights: the sampler keeps old weights while the trainer moves away from them."""

import statistics

from parts.reading.cause import CERTAIN, LOST, STILL, Cause, Evidence, fact
from parts.reading.logged_run import LoggedRun
from parts.reading.trends import ends, trend

LEAST_GROWTH = {"mismatch_kl": 1e-3, "gap_mean": 1e-3, "gap_max": 0.05}  # least distance, in nats, that counts


def find_stale_weights(run: LoggedRun) -> Evidence | None:
    """Sampler and trainer agree at the first step, and their distance grows to five times that and more."""
    for name, least in LEAST_GROWTH.items():
        values = [abs(value) for value in run.values(name)]
        if len(values) < 4:
            continue
        middle, first = statistics.median(values[2:]), values[0]
        synced = 0 < first < 0.01 * least and middle > least  # one engine: they agree to rounding at the first step
        drifts = trend(values) > 0 and ends(values)[1] > max(least, 5 * ends(values)[0]) and run.trend("score") <= 0
        if synced or drifts:
            step = next(step for step, value in sorted(run.series[name].items()) if abs(value) > least)
            text = f"{run.name(name)} grew from {first:.2g} to {max(middle, ends(values)[1]):.2g} nats a token"
            return Evidence(CERTAIN + 0.05, [fact(run, name, text, step)], since=step)
    return None


STALE_WEIGHTS = Cause(
    "stale_weights",
    "the sampler keeps old weights, wholly or in part, while the trainer moves away from them",
    find_stale_weights,
    f"{STILL} {LOST} sampler_gap sampler_mismatch updates_too_large critic_useless part_bought kl_holds_policy",
    "copy all weights to the sampler after every step; --check_sync of our trainers names the tensors that differ",
    "--check_sync 1 for ten steps",
    "allenai/open-instruct#1473; five times the start: our heuristic, kernels differ less",
    breaks=True,
)
