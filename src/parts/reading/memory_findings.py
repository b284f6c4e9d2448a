"""The check of memory that grows without end."""

import itertools
import statistics

from parts.reading.logged_run import LoggedRun
from parts.reading.trends import trend

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


def check_memory(run: LoggedRun):
    """Memory that grows step by step although completions do not: of a GPU, or of the process."""
    if any(trend(run.values(name)) > 0 for name in ("length", "length_max", "turns")):
        return
    for name in ("gpu_memory", "memory"):
        found = even_growth(run.values(name))
        if found:
            steps = sorted(run.series[name])
            saw = f"{run.names[name]} rose evenly from {found[0]:.3g} to {found[1]:.3g} GiB, completions did not grow"
            yield run.find("memory-grows", name, saw, steps[-1])
            return
