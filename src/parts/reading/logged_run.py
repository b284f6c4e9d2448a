"""A run as its log shows it."""

import math
import re
import statistics
from dataclasses import dataclass, field

from parts.reading.finding_advice import ADVICE, NOTES
from parts.reading.metric_names import SETTINGS
from parts.reading.trends import TREND_STEPS, ends, errors_of_chance, is_format, noise, onset, trend, window

SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half


@dataclass
class Finding:
    """One verdict; `metric` is the name in the log, `step` and `value` where it shows."""

    id: str
    severity: str
    metric: str
    step: int
    value: float
    saw: str
    cause: str
    change: list[str]
    source: str


@dataclass
class LoggedRun:
    """What a log holds: `series` under common names, `rows` as they stand in it.

    `settings` are what the checks want to know of `config`, the run's own settings.
    """

    path: str
    format: str
    trainer: str
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    broken: list[tuple[str, int, float]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        found = self.series.get(name, {})
        return [found[step] for step in sorted(found)]

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if name != "held_out"]
        return sorted({step for name in names for step in self.series[name]})

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def find(self, id: str, name: str, saw: str, step: int | None = None, note: bool = False) -> Finding:
        """A finding about a series; without a step, where it is half way from its start to its end, or the last one."""
        found = self.series.get(name) or {0: 0.0}
        step = onset(found) if step is None else step
        cause, change, source = ADVICE[id]
        words = SETTINGS[self.trainer] | {"reward": first_part(self)[0] if self.parts() else "NAME"}
        severity = "note" if note or id in NOTES else "finding"
        metric, value = self.names.get(name, name), found.get(step, 0.0)
        return Finding(id, severity, metric, step, value, saw, cause, [c.format(**words) for c in change], source)


class UnreadableError(Exception):
    """The input is no log that can be judged."""


def late(run: LoggedRun, name: str) -> float:
    """Median of the last stretch of a series."""
    return ends(run.values(name))[1]


def span(run: LoggedRun, name: str) -> str:
    """The last stretch as text: steps 31-40."""
    steps = sorted(run.series[name])
    return f"steps {steps[-min(len(steps), window(len(steps)))]}-{steps[-1]}"


def first_part(run: LoggedRun) -> tuple[str, list[float]]:
    """Name and means of the reward that stands for correctness: named so, else the first; the score without parts."""
    parts = run.parts()
    for name in parts:
        if re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE) and not is_format(name):
            return name, parts[name]
    others = [(name, values) for name, values in parts.items() if not is_format(name)]
    return others[0] if others else ("score", run.values("score"))


def is_constant(run: LoggedRun) -> bool:
    """Whether every completion scored the same in four steps of five; without spreads, whether every mean is 0."""
    if run.series.get("score_std"):
        alike = [value <= 1e-6 for value in run.values("score_std")]
    elif run.series.get("score_max") and run.series.get("score_min"):
        pairs = zip(run.values("score_max"), run.values("score_min"), strict=False)
        alike = [high - low <= 1e-6 for high, low in pairs]
    else:
        scores, others = run.values("score"), ("grad_norm", "zero_std", "score_max", "score_min")
        return len(scores) >= TREND_STEPS and not any(scores) and not any(any(run.values(name)) for name in others)
    return len(alike) >= 3 and sum(alike) >= 0.8 * len(alike)


def is_solved(run: LoggedRun) -> bool:
    """Whether the task was learnt in this run: held-out figure or correctness at 0.95, after having been below."""
    held_out = run.values("held_out")
    if held_out and max(held_out) <= 1:
        return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
    _, part = first_part(run)
    return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    held_out = run.values("held_out")
    if len(held_out) >= 2:
        return held_out[-1] - held_out[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
    return trend(first_part(run)[1]) > 0


def rises_late(run: LoggedRun) -> bool:
    """Whether the score rises over the second half of the run."""
    scores = run.values("score")
    return trend(scores[len(scores) // 2 :]) > 0


def collapse(run: LoggedRun) -> tuple[float, float, int] | None:
    """(best stretch, last stretch, step at which half was lost) where the score fell by more than half, else None."""
    scores = run.values("score")
    if len(scores) < TREND_STEPS:
        return None
    last, floor = ends(scores)[1], min(0, *scores)
    width = min(window(len(scores)), max(5, window(len(scores)) // 2))
    stretches = [statistics.median(scores[i : i + width]) for i in range(len(scores) - width + 1)]
    best, steps, choices = max(stretches), width, len(stretches) / 2  # half, as only a fall counts
    if max(scores[width:]) - floor < (scores[0] - floor) / 2:  # the first updates destroyed the policy for good
        best, steps, choices = scores[0], 1, 1
    error = 1.25 * noise(scores) * math.sqrt(1 / steps + 1 / window(len(scores)))
    chance = errors_of_chance(len(scores), choices) * error
    spread = ends(run.values("score_std"))[0] if run.values("score_std") else 0.0
    if best - last <= max(0.5 * (best - floor), spread / 2, chance, 1e-6):
        return None
    found = sorted(run.series["score"].items())
    if len(scores) < 2 * TREND_STEPS and last > 0.1 * best:
        return None
    top = max(found, key=lambda pair: pair[1])[0]
    return best, last, next((step for step, v in found if step > top and v < (best + last) / 2), found[-1][0])
