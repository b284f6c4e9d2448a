"""Memory that grows step by step although completions do not: of a GPU, or of the process."""

import itertools
import statistics

from parts.reading.cause import CERTAIN, Cause, Evidence, fact
from parts.reading.logged_run import LoggedRun

STRETCHES, STEPS_EACH = 6, 5  # of what is left of a run without its first tenth, in which memory still settles
GROWN, UNEVEN = 0.1, 1 / 3  # of the first stretch's memory; of the growth, which is 0.2 each where it is even


def even_growth(values: list[float]) -> tuple[float, float] | None:
    """Medians of the first and of the last stretch where each of six lies above the one before, none by most of it.

    What settles gains most at first: of a logarithm's growth 0.37 lies between the first two stretches. None where
    memory does not grow so, or by less than a tenth, or the log is short.
    """
    values = values[len(values) // 10 :]
    size = len(values) // STRETCHES
    if size < STEPS_EACH:
        return None
    middles = [statistics.median(values[i * size : (i + 1) * size]) for i in range(STRETCHES)]
    gains = [after - before for before, after in itertools.pairwise(middles)]
    grown = middles[-1] - middles[0]
    even = min(gains) > 0 and max(gains) <= UNEVEN * grown and grown > GROWN * middles[0]
    return (middles[0], middles[-1]) if even else None


def find_memory_grows(run: LoggedRun) -> Evidence | None:
    """Even growth of memory at an even length."""
    if any(run.trend(name) > 0 for name in ("length", "length_max", "turns")):
        return None
    for name in ("gpu_memory", "memory"):
        growth = even_growth(run.values(name))
        if growth:
            text = f"{run.name(name)} rose evenly from {growth[0]:.3g} to {growth[1]:.3g} GiB"
            return Evidence(CERTAIN, [fact(run, name, text)])
    return None


MEMORY_GROWS = Cause(
    "memory_grows",
    "memory grows without end: something keeps what each step made",
    find_memory_grows,
    "",
    "keep metrics as numbers (.item()), and look for lists and dicts that a reward or environment only adds to",
    "",
    "a tenth, in six even stretches: our heuristic; what settles gains most at first",
)
