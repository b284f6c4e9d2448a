"""A run as its log, settings and samples show it, and its trends: the facts that causes use."""

import itertools
import math
import re
import statistics
from dataclasses import dataclass, field

from parts.evaluating.paired_tests import share_gain

TREND_STEPS = 10  # fewer: no trend is judged
ALARM = 0.006  # of flat series show a trend by chance; benchmarks/false_alarms.py counts them
SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half
EARLY = 5  # steps in which a policy is nearly the one that it was at the start


def as_number(value) -> float | None:
    """A float from a JSON or console value; None where it is none."""
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number; one whose square overflows in float32 is none."""
    number = as_number(value)
    return number is not None and abs(number) < 1e18


def window(count: int) -> int:
    """Steps in the first and in the last stretch of a run."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch; NaN without values."""
    k = window(len(values))
    return (statistics.median(values[:k]), statistics.median(values[-k:])) if values else (math.nan, math.nan)


def persistence(values: list[float]) -> float:
    """Lag-1 autocorrelation of the noise, between 0 and 0.5, from the changes between steps: a trend does not count."""
    changes = [b - a for a, b in itertools.pairwise(values)]
    mean = statistics.fmean(changes)
    changes = [change - mean for change in changes]
    square = sum(change * change for change in changes)
    if square <= 1e-18 * max(map(abs, values)) ** 2 * len(values):  # a straight line
        return 0.0
    # of AR(1) noise the changes have the lag-1 autocorrelation (rho - 1) / 2
    return min(0.5, max(0.0, 1 + 2 * sum(a * b for a, b in itertools.pairwise(changes)) / square))


def noise(values: list[float]) -> float:
    """Scatter of a step, so that the median of k steps has the standard error 1.25 noise / sqrt k.

    The median of the neighbours' distances gives it, or the upper quartile if that is more, as a coarse score often has
    the distance 0, or their mean where both are 0, as where right answers are rare. Noise that persists has
    sqrt(1 + rho) / (1 - rho) times the scatter of independent noise.
    """
    distances = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    quartile = distances[3 * (len(distances) - 1) // 4]
    scatter = max(1.4826 * statistics.median(distances), 0.8693 * quartile) or 1.2533 * statistics.fmean(distances)
    rho = persistence(values)
    return scatter / math.sqrt(2) * math.sqrt(1 + rho) / (1 - rho)


def standard_error(values: list[float]) -> float:
    """Standard error of the difference between the medians of the first and the last stretch."""
    return 1.25 * noise(values) * math.sqrt(2 / window(len(values)))


def errors_of_chance(count: int, choices: float = 1) -> float:
    """Standard errors that chance exceeds in a share ALARM of flat series, for the best of several `choices`.

    It is Student's t, by Hill's first terms, with `count` degrees of freedom, as the scatter is estimated too.
    """
    z = statistics.NormalDist().inv_cdf(1 - ALARM / 2 / choices)
    return z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)


def trend(values: list[float]) -> int:
    """1 where the last stretch lies above the first, -1 below, 0 where chance explains it or below 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    chance = errors_of_chance(len(values)) * standard_error(values)
    return 0 if abs(last - first) <= max(chance, 1e-9) else 1 if last > first else -1


def is_flat(values: list[float]) -> bool:
    """Whether 20 steps or more show no rise: neither a trend nor more than 0.02 between the medians."""
    first, last = ends(values)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= 0.02


def forecast(p: float, group: int) -> float:
    """Expected share of groups whose 0/1 rewards are all equal, at pass rate p."""
    return p**group + (1 - p) ** group


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the form."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


@dataclass(frozen=True)
class Fact:
    """One piece of evidence: what was seen, in which figure, at which step, in which samples."""

    text: str
    figure: str = ""
    step: int | None = None
    samples: tuple[str, ...] = ()


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
    reward_file: str = "reward"
    texts: list = field(default_factory=list)  # the samples as causes read them
    trials: dict[str, str] = field(default_factory=dict)  # what --rescore saw, by the cause that it shows
    golds: dict[str, str] = field(default_factory=dict)  # gold answers of the training data by prompt, in its order

    @property
    def dialect(self) -> str:
        """Whose metric names the log has."""
        return self.trainer if self.trainer in ("trl", "verl") else "ours"

    def knows_settings(self) -> bool:
        """Whether the settings of the training are known; a state of TRL tells the number of steps only."""
        return bool(self.settings_file or self.settings.get("lr") or self.config.get("lr") is not None)

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a series, by step."""
        return sorted(self.series.get(name, {}).items())

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        return [value for _, value in self.points(name)]

    def ends(self, name: str) -> tuple[float, float]:
        """Medians of the first and of the last stretch of a series."""
        return ends(self.values(name))

    def trend(self, name: str) -> int:
        """1 where a series rises beyond chance, -1 where it falls, else 0."""
        return trend(self.values(name))

    def early(self, name: str, steps: int = EARLY) -> list[float]:
        """The values of a series at its first steps."""
        return self.values(name)[:steps]

    def name(self, series: str) -> str:
        """A series' name in this log."""
        return self.names.get(series, series)

    def fact(self, series: str, text: str, step: int | None = None) -> Fact:
        """A fact about a series under its name in the log; without a step, its last one."""
        return Fact(text, self.name(series), max(self.series.get(series, {}), default=None) if step is None else step)

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if not name.startswith("held_out")]
        return sorted({step for name in names for step in self.series[name]})

    def number(self, setting: str) -> float | None:
        """A setting as a number; None where it is not known or no number."""
        value = self.settings.get(setting)
        return as_number(value) if not isinstance(value, str) and is_finite(value) else None

    def batch(self, count: int = 1) -> int:
        """Completions of so many steps; 32 a step where the settings do not say."""
        size = self.number("batch") or 0
        return int(size if size >= 1 else 32) * count

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def part_spreads(self) -> list[float]:
        """Standard deviations of the parts over the whole batch, which TRL logs beside those within groups."""
        names = [key for key in self.columns if re.fullmatch(r"(train/)?rewards/.+/std", key)]
        return [value for name in names for _, value in sorted(self.columns[name].items())]

    def answer_part(self) -> tuple[str, list[float]]:
        """Name and means of the reward for correctness: named so, else the first; the score without parts."""
        parts = self.parts()
        names = [*filter(names_correctness, parts), *(name for name in parts if not is_format(name))]
        if names:
            return names[0], parts[names[0]]
        scores, lowest = self.values("score"), min(self.values("score_min"), default=0.0)
        is_signed = lowest == -1 and not parts  # DAPO's -1 and 1
        return "score", [(score + 1) / 2 for score in scores] if is_signed else scores

    def answer_series(self) -> str:
        """The series of that reward."""
        return f"part:{self.answer_part()[0]}" if self.parts() else "score"

    def is_constant(self) -> bool:
        """Whether every completion scored alike in four steps of five; without spreads, whether every mean is 0."""
        scores, pairs = self.values("score"), zip(self.values("score_max"), self.values("score_min"), strict=False)
        spreads = self.values("score_std") or [high - low for high, low in pairs]
        if not spreads:
            others = ("score", "grad_norm", "zero_std", "score_max", "score_min")
            return len(scores) >= TREND_STEPS and not any(any(self.values(name)) for name in others)
        alike = sum(spread <= 1e-6 for spread in spreads) >= max(3, 0.8 * len(spreads))
        means = [score for score, spread in zip(scores, spreads, strict=False) if spread <= 1e-6]
        same = max(means, default=0.0) - min(means, default=0.0) <= 1e-6  # TRL's spread is one within groups
        return alike and same and not any(self.part_spreads())

    def is_solved(self) -> bool:
        """Whether the task was learnt: held-out figure or correctness at 0.95, after having been below."""
        held_out, part = self.values("held_out"), self.answer_part()[1]
        if held_out and max(held_out) <= 1:
            return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
        return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED

    def held_out_gain(self) -> tuple[float, float, float] | None:
        """Gain of the held-out figure from the first to the last evaluation with its 95 % interval; None without two.

        Of shares of `eval/rows` answers it is that of independent samples, which is wide for the same rows twice;
        without the number of rows 64 are taken.
        """
        points, rows = self.points("held_out"), self.series.get("held_out_rows", {})
        if len(points) < 2:
            return None
        (start, before), (end, after) = points[0], points[-1]
        if 0 <= min(before, after) <= max(before, after) <= 1:
            count = rows.get(end) or rows.get(start) or 64
            return share_gain((before, count), (after, count))
        gain = after - before
        scatter = max([GAIN, *(abs(b - a) for (_, a), (_, b) in itertools.pairwise(points[1:]))])
        return gain, gain - 2 * scatter, gain + 2 * scatter

    def gained(self) -> bool:
        """Whether the held-out figure rose and kept 3/4 of it, or without one the correctness reward, or the score."""
        gain, held_out = self.held_out_gain(), self.values("held_out")
        if gain:
            return gain[0] > GAIN and max(held_out) - held_out[-1] < max(2 * GAIN, gain[0] / 3)
        return trend(self.answer_part()[1]) > 0

    def learns(self) -> bool:
        """Whether it gained, and its score rose too."""
        return self.gained() and self.trend("score") > 0

    def onset(self, name: str) -> int:
        """The first step at which a series with a trend is half way; the last step of one without."""
        points, way, middle = self.points(name), self.trend(name), sum(self.ends(name)) / 2
        return next((step for step, value in points if way and way * (value - middle) >= 0), points[-1][0])

    def collapse(self) -> tuple[float, float, int] | None:
        """(best stretch, last one, step at which half was lost) where the score fell by more than half, else None."""
        scores, points, count = self.values("score"), self.points("score"), len(self.values("score"))
        if count < TREND_STEPS:
            return None
        last, floor = ends(scores)[1], min(0, *scores)
        width = min(window(count), max(5, window(count) // 2))
        stretches = [statistics.median(scores[i : i + width]) for i in range(count - width + 1)]
        best, steps, choices = max(stretches), width, len(stretches) / 2  # half, as only a fall counts
        if max(scores[width:]) - floor < (scores[0] - floor) / 2:  # the first updates destroyed the policy for good
            best, steps, choices = scores[0], 1, 1
        chance = errors_of_chance(count, choices) * 1.25 * noise(scores) * math.sqrt(1 / steps + 1 / window(count))
        spread = self.ends("score_std")[0] if self.values("score_std") else 0.0
        if best - last <= max(0.5 * (best - floor), spread / 2, chance, 1e-6):
            return None
        shares = (best, self.batch(steps)), (last, self.batch(window(count)))
        if floor == 0 and max(scores) <= 1 and share_gain(*shares)[2] >= 0:  # a few lucky completions
            return None
        if count < 2 * TREND_STEPS and last > 0.1 * best:
            return None
        above = (i for i, middle in enumerate(stretches) if middle >= (best + last) / 2)
        half = points[max(above, default=-(width // 2)) + width // 2 + 1][0]
        gain = self.held_out_gain()  # harder prompts score less, and the policy gets better
        better = gain and gain[1] > 0 and self.gained() and max(self.series["held_out"]) > half
        return None if better else (best, last, half)
