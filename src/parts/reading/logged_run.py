"""A run as its log, settings and samples show it: the facts that causes are told by."""

import itertools
import math
import re
import statistics
from dataclasses import dataclass, field

from parts.reading.paired_tests import share_gain
from parts.reading.trends import TREND_STEPS, ends, errors_of_chance, is_format, names_correctness, noise, trend, window

SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half
EARLY = 5  # steps in which a policy is nearly the one that it was at the start


@dataclass
class LoggedRun:
    """What a run left: every figure of its log as {step: value}, `columns` by its name there, `series` by common name.

    `settings` are `config`, the run's own settings, under common names; `reward_source` is the code of its rewards.
    """

    path: str
    format: str
    trainer: str
    columns: dict[str, dict[int, float]] = field(default_factory=dict)
    bad: list[tuple[str, int, float]] = field(default_factory=list)  # (name, step, value) of what is not finite
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of the series in this log
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    settings_file: str = ""
    reward_source: str = ""
    texts: list = field(default_factory=list)  # the samples as causes read them
    trials: dict[str, str] = field(default_factory=dict)  # what --rescore saw, by the cause that it shows
    golds: dict[str, str] = field(default_factory=dict)  # gold answers of the training data by prompt, in its order

    @property
    def dialect(self) -> str:
        """Whose metric names the log has."""
        return self.trainer if self.trainer in ("trl", "verl") else "ours"

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a series, by step."""
        return sorted(self.series.get(name, {}).items())

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        return [value for _, value in self.points(name)]

    def first(self, name: str) -> float:
        """Median of the first stretch of a series; NaN without one."""
        return ends(self.values(name))[0] if self.series.get(name) else math.nan

    def last(self, name: str) -> float:
        """Median of the last stretch of a series; NaN without one."""
        return ends(self.values(name))[1] if self.series.get(name) else math.nan

    def trend(self, name: str) -> int:
        """1 where a series rises beyond chance, -1 where it falls, else 0."""
        return trend(self.values(name))

    def early(self, name: str, steps: int = EARLY) -> list[float]:
        """The values of a series at its first steps."""
        return self.values(name)[:steps]

    def name(self, series: str) -> str:
        """A series' name in this log."""
        return self.names.get(series, series)

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if not name.startswith("held_out")]
        return sorted({step for name in names for step in self.series[name]})

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def part_spread(self) -> float:
        """The largest spread of a part over a batch, as TRL logs it beside that within groups; 0 without one."""
        names = [key for key in self.columns if re.fullmatch(r"(train/)?rewards/.+/std", key)]
        return max((value for name in names for value in self.columns[name].values()), default=0.0)

    def number(self, setting: str) -> float | None:
        """A setting as a number; None where it is not known or no number."""
        value = self.settings.get(setting)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def first_part(run: LoggedRun) -> tuple[str, list[float]]:
    """Name and means of the reward that stands for correctness: named so, else the first; the score without parts."""
    parts = run.parts()
    named = next(filter(names_correctness, parts), None)
    if named:
        return named, parts[named]
    others = [(name, values) for name, values in parts.items() if not is_format(name)]
    return others[0] if others else ("score", run.values("score"))


def first_series(run: LoggedRun) -> str:
    """The series of that reward."""
    return f"part:{first_part(run)[0]}" if run.parts() else "score"


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
    means = [score for score, same in zip(run.values("score"), alike, strict=False) if same]
    differ = bool(means) and max(means) - min(means) > 1e-6  # TRL's spread is one within groups
    return len(alike) >= 3 and sum(alike) >= 0.8 * len(alike) and not differ and not run.part_spread()


def is_solved(run: LoggedRun) -> bool:
    """Whether the task was learnt in this run: held-out figure or correctness at 0.95, after having been below."""
    held_out = run.values("held_out")
    if held_out and max(held_out) <= 1:
        return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
    _, part = first_part(run)
    return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED


def held_out_gain(run: LoggedRun) -> tuple[float, float, float] | None:
    """Gain of the held-out figure from the first to the last evaluation with its 95 % interval; None without two.

    Of shares of `eval/rows` answers it is that of independent samples, which is wide for the same rows twice; without
    the number of rows 64 are taken.
    """
    points = run.points("held_out")
    if len(points) < 2:
        return None
    (_, before), (_, after) = points[0], points[-1]
    gain, rows = after - before, run.series.get("held_out_rows", {})
    if not 0 <= min(before, after) <= max(before, after) <= 1:
        scatter = max(GAIN, *(abs(b - a) for (_, a), (_, b) in itertools.pairwise(points[1:])), 0.0)
        return gain, gain - 2 * scatter, gain + 2 * scatter
    count = rows.get(points[-1][0]) or rows.get(points[0][0]) or 64
    return share_gain((before, count), (after, count))


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    gain, held_out = held_out_gain(run), run.values("held_out")
    if gain:
        return gain[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
    return trend(first_part(run)[1]) > 0


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
    points = run.points("score")
    if len(scores) < 2 * TREND_STEPS and last > 0.1 * best:
        return None
    top = max(points, key=lambda pair: pair[1])[0]
    return best, last, next((step for step, v in points if step > top and v < (best + last) / 2), points[-1][0])
