"""Stale weights: the sampler keeps old weights while the trainer moves away from them."""

from parts.reading.cause import CERTAIN, LOST, Cause, Evidence, fact
from parts.reading.logged_run import LoggedRun, gained, is_solved
from parts.reading.trends import TREND_STEPS, ends, onset, trend


def find_stale_weights(run: LoggedRun) -> Evidence | None:
    """The sampler's distance from the trainer grows while the score stands still."""
    if len(run.values("score")) < TREND_STEPS or run.trend("score") > 0 or gained(run) or is_solved(run):
        return None
    for name in ("mismatch_kl", "gap_mean", "gap_max"):
        values = [abs(value) for value in run.values(name)]
        first, last = ends(values) if values else (0.0, 0.0)
        if trend(values) > 0 and last > max(1e-3, 5 * first):
            step = onset(run.series[name])
            text = f"{run.name(name)} grew from {first:.2g} to {last:.2g} nats a token while the score did not rise"
            return Evidence(CERTAIN + 0.05, [fact(run, name, text, step)], since=step)
    return None


STALE_WEIGHTS = Cause(
    "stale_weights",
    "the sampler keeps old weights, wholly or in part, while the trainer moves away from them",
    find_stale_weights,
    f"{LOST} sampler_gap flat_score held_out_flat critic_explains_little sampler_mismatch updates_too_large",
    "copy all weights to the sampler after every step; --check_sync of our trainers names the tensors that differ",
    "--check_sync 1 for ten steps",
    "allenai/open-instruct#1473; five times the start and 0.001 nats: our heuristic, kernels differ less",
    breaks=True,
)
