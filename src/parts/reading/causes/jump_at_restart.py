"""A jump at a restart: figures after it do not go on from those before."""

import statistics

from parts.reading.cause import CERTAIN, LIKELY, LOST, Cause, Evidence, fact
from parts.reading.logged_run import LoggedRun
from parts.reading.trends import noise

WATCHED_AT_RESTART = ("score", "entropy", "length", "kl", "lr", "grad_norm", "loss", "held_out")


def jumps_at(run: LoggedRun, step: int) -> list[tuple[str, float, float]]:
    """(series, before, after) of figures whose five steps from a restart on lie beyond those before it."""
    found = []
    for name in WATCHED_AT_RESTART:
        points = sorted(run.series.get(name, {}).items())
        before = [value for at, value in points if at < step][-8:]
        after = [value for at, value in points if at >= step][:5]
        if len(before) < 4 or len(after) < 2:
            continue
        scatter = max(noise(before), 0.02 * abs(statistics.median(before)), 1e-6)
        if (
            abs(statistics.median(after) - statistics.median(before)) > 6 * scatter
            and abs(after[0] - before[-1]) > 4 * scatter
        ):
            found.append((name, statistics.median(before), statistics.median(after)))
    return found


def find_jump_at_restart(run: LoggedRun) -> Evidence | None:
    """The score, or two figures, jump where the run went on from a checkpoint."""
    for step in run.settings.get("restarts", ()):
        jumped = [jump for jump in jumps_at(run, step) if jump[0] != "lr" or jump[2] > 1.5 * jump[1]]
        if len(jumped) > 1 or any(name == "score" for name, _, _ in jumped):
            facts = [
                fact(run, name, f"{run.name(name)} goes from {a:.3g} to {b:.3g} at the restart", step)
                for name, a, b in jumped[:3]
            ]
            return Evidence(CERTAIN + 0.06 if len(jumped) > 1 else LIKELY + 0.2, facts, since=step)
    return None


JUMP_AT_RESTART = Cause(
    "jump_at_restart",
    "the run jumps at a restart: weights, optimizer, schedule, data order or settings are not those before it",
    find_jump_at_restart,
    f"{LOST} flat_score held_out_flat critic_explains_little updates_too_large part_dies critic_useless "
    "overflow stale_weights",
    "resume from the run's own newest checkpoint with its optimizer and the same settings (--resume)",
    "",
    "an exact resume gives the figures of an uninterrupted run; six times the scatter: our heuristic",
    breaks=True,
)
