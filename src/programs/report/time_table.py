"""Where the seconds of a step go, how fast it samples, how much memory it takes, at the start and at the end."""

import re
import statistics

from parts.reading.logged_run import LoggedRun
from parts.reading.trends import ends
from programs.report.run_facts import points_of

PHASES = {  # of a step, by whose log it is; the names of those that do not hold one another
    "ours": r"time/(rollout|reward|update|teacher)$",
    "trl": r"(?!)",
    "verl": r"timing_s/(gen|reward|old_log_prob|ref|values|adv|update_\w+|testing|save_checkpoint)$",
}
WHOLE = {"ours": "time/step", "trl": "step_time", "verl": "timing_s/step"}
SPEED = r"rollout/tokens_per_s$|perf/throughput$"
MEMORY = r"(?i).*(memory|mem_gb).*"  # ours, verl's


def stretch_of(run: LoggedRun, key: str) -> tuple[float, float]:
    """Medians of a metric over the first and the last stretch of the run."""
    return ends([value for _, value in points_of(run, key)])


def thirds_of(run: LoggedRun, key: str) -> dict:
    """Medians of a metric over the first and the last third of the run, and by how much it grew between them."""
    values = [value for _, value in points_of(run, key)]
    size = max(1, len(values) // 3)
    first, last = statistics.median(values[:size]), statistics.median(values[-size:])
    return {"name": key, "first": first, "last": last, "grown": last / first - 1 if first > 0 else None}


def time_of(run: LoggedRun) -> dict:
    """Phases with their medians and shares, the whole step, tokens per second and memory; empty lists without them."""
    dialect, keys = run.dialect, [key for key, points in run.columns.items() if points]
    phases = [(key, *stretch_of(run, key)) for key in keys if re.match(PHASES[dialect], key)]
    whole = next(((key, *stretch_of(run, key)) for key in keys if key == WHOLE[dialect]), None)
    seconds = max(whole[2] if whole else 0.0, sum(last for _, _, last in phases)) or 1.0
    if whole and phases and seconds > sum(last for _, _, last in phases) * 1.02:
        rest = [max(0.0, whole[i] - sum(phase[i] for phase in phases)) for i in (1, 2)]
        phases.append(("the rest", *rest))
    if whole and not phases:
        phases = [whole]
    rows = [
        {"name": name.rpartition("/")[2], "first": first, "last": last, "share": last / seconds}
        for name, first, last in sorted(phases, key=lambda phase: -phase[2])
    ]
    speeds = [(key, *stretch_of(run, key)) for key in keys if re.match(SPEED, key)]
    others = [{"name": key, "first": first, "last": last} for key, first, last in speeds]
    return {"phases": rows, "others": others, "memory": [thirds_of(run, key) for key in keys if re.match(MEMORY, key)]}
