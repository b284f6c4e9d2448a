"""A logged run: its metrics, settings and samples, and statistics of their trends."""

import itertools
import math
import re
import statistics
from dataclasses import dataclass, field

from parts.evaluating.paired_tests import share_gain

TREND_STEPS = 10  # no trend is judged from fewer steps
ALARM = 0.006  # share of flat series that show a trend by chance; benchmarks/false_alarms.py measures it
SOLVED = 0.95
GAIN = 0.03  # least gain of the held-out metric that counts: the standard error of 256 answers at rate 0.5
EARLY = 5  # first steps, in which the policy is still close to the initial one


def as_number(value) -> float | None:
    """A JSON or console value as a float; None if it is not a number."""
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number below 1e18, whose square still fits into float32."""
    number = as_number(value)
    return number is not None and abs(number) < 1e18


def window(count: int) -> int:
    """Number of steps in the first and in the last stretch of a run of `count` steps: a quarter, from 3 to 20."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch; NaN without values."""
    k = window(len(values))
    return (statistics.median(values[:k]), statistics.median(values[-k:])) if values else (math.nan, math.nan)


def persistence(values: list[float]) -> float:
    """Lag-1 autocorrelation of the noise, clamped to [0, 0.5]; estimated from step differences, so trends cancel."""
    changes = [b - a for a, b in itertools.pairwise(values)]
    mean = statistics.fmean(changes)
    changes = [change - mean for change in changes]
    square = sum(change * change for change in changes)
    if square <= 1e-18 * max(map(abs, values)) ** 2 * len(values):  # a straight line
        return 0.0
    # the differences of AR(1) noise have the lag-1 autocorrelation (rho - 1) / 2
    return min(0.5, max(0.0, 1 + 2 * sum(a * b for a, b in itertools.pairwise(changes)) / square))


def noise(values: list[float]) -> float:
    """Standard deviation of a step's noise, such that a median of k steps has the standard error 1.25 noise / sqrt k.

    It is estimated from the distances between neighbouring steps: by their median or their upper quartile, whichever
    gives more, as a coarse score often has the distance 0; by their mean if both are 0 (rare right answers).
    Autocorrelated noise counts sqrt(1 + rho) / (1 - rho) times as much as independent noise.
    """
    distances = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    quartile = distances[3 * (len(distances) - 1) // 4]
    scatter = max(1.4826 * statistics.median(distances), 0.8693 * quartile) or 1.2533 * statistics.fmean(distances)
    rho = persistence(values)
    return scatter / math.sqrt(2) * math.sqrt(1 + rho) / (1 - rho)


def errors_of_chance(count: int, choices: float = 1) -> float:
    """How many standard errors a flat series exceeds with probability ALARM, for the best of several `choices`.

    This is the two-sided quantile of Student's t with `count` degrees of freedom, by the first terms of Hill's series.
    """
    z = statistics.NormalDist().inv_cdf(1 - ALARM / 2 / choices)
    return z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)


def trend(values: list[float]) -> int:
    """1 if the last stretch lies above the first beyond chance, -1 if below, else 0; 0 for fewer than 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    chance = errors_of_chance(len(values)) * 1.25 * noise(values) * math.sqrt(2 / window(len(values)))
    return 0 if abs(last - first) <= max(chance, 1e-9) else 1 if last > first else -1


def is_flat(values: list[float]) -> bool:
    """Whether 20 or more steps show no rise: no upward trend, and end medians at most 0.02 apart."""
    first, last = ends(values)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= 0.02


def forecast(p: float, group: int) -> float:
    """Expected share of groups whose 0/1 rewards are all equal, at pass rate p."""
    return p**group + (1 - p) ** group


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the format."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


@dataclass(frozen=True)
class Fact:
    """One piece of evidence: its text, and the metric, step and ids of the samples that show it."""

    text: str
    figure: str = ""
    step: int | None = None
    samples: tuple[str, ...] = ()


@dataclass
class LoggedRun:
    """A run's metrics as {name: {step: value}}: `columns` by the log's own names, `series` by common names.

    `config` has the run's own settings, `settings` the same under common names. `reward_source` is its reward's code.
    """

    path: str
    format: str
    trainer: str
    columns: dict[str, dict[int, float]] = field(default_factory=dict)
    bad: list[tuple[str, int, float]] = field(default_factory=list)  # (name, step, value) of values that are not finite
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # common name -> the log's own name
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    settings_file: str = ""
    reward_source: str = ""
    reward_name: str = ""
    reward_file: str = "reward"
    texts: list = field(default_factory=list)  # the samples as causes read them
    rows: dict[str, dict] = field(default_factory=dict)  # prompt of a sample -> its row in the data
    trials: dict[str, str] = field(default_factory=dict)  # cause -> evidence for it that --rescore found
    golds: dict[str, str] = field(default_factory=dict)  # prompt -> gold answer, in the order of the training data
    head: list[dict] = field(default_factory=list)  # the log's first rows
    guessed: dict[str, str] = field(default_factory=dict)  # figure or text -> the column that its words point to

    @property
    def dialect(self) -> str:
        """The set of metric names that the log uses: ours, trl or verl."""
        return self.trainer if self.trainer in ("trl", "verl") else "ours"

    def knows_settings(self) -> bool:
        """Whether training settings are known: a settings file or a learning rate; trainer_state.json has neither."""
        return bool(self.settings_file or self.settings.get("lr") or self.config.get("lr") is not None)

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a series, by step."""
        return sorted(self.series.get(name, {}).items())

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    def ends(self, name: str) -> tuple[float, float]:
        return ends(self.values(name))

    def trend(self, name: str) -> int:
        return trend(self.values(name))

    def early(self, name: str, steps: int = EARLY) -> list[float]:
        return self.values(name)[:steps]

    def correlation(self, one: str, other: str = "") -> float:
        """Correlation of two series, or of one with the step; 0 for fewer than 10 common steps or a constant."""
        left = self.series.get(one, {})
        right = self.series.get(other, {}) if other else {step: step for step in left}
        steps = left.keys() & right.keys()
        columns = [[series[step] for step in steps] for series in (left, right)]
        varied = len(steps) >= TREND_STEPS and all(max(values) > min(values) for values in columns)
        return statistics.correlation(*columns) if varied else 0.0

    def name(self, series: str) -> str:
        return self.names.get(series, series)

    def fact(self, series: str, text: str, step: int | None = None) -> Fact:
        """A fact about a series under its name in the log, at `step`, by default the series' last step."""
        return Fact(text, self.name(series), max(self.series.get(series, {}), default=None) if step is None else step)

    def steps(self) -> list[int]:
        names = [name for name in self.series if not name.startswith("held_out")]
        return sorted({step for name in names for step in self.series[name]})

    def number(self, setting: str) -> float | None:
        """A setting as a number; None if it is unknown, a text or not finite."""
        value = self.settings.get(setting)
        return as_number(value) if not isinstance(value, str) and is_finite(value) else None

    def batch(self, count: int = 1) -> int:
        """Number of completions in `count` steps; 32 a step if the settings have no batch size."""
        size = self.number("batch") or 0
        return int(size if size >= 1 else 32) * count

    def parts(self) -> dict[str, list[float]]:
        """Mean rewards over the steps, by reward function, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def part_spreads(self) -> list[float]:
        """TRL's standard deviations of each reward over the whole batch; `score_std` has those within groups.

        float32's rounding of equal scores counts as 0.
        """
        names = [key for key in self.columns if re.fullmatch(r"(train/)?rewards/.+/std", key)]
        spreads = [value for name in names for _, value in sorted(self.columns[name].items())]
        return [spread if spread > 1e-6 else 0.0 for spread in spreads]

    def answer_part(self) -> tuple[str, list[float]]:
        """(name, means) of the part named after correctness, or the first part not for format, or the whole score."""
        parts = self.parts()
        names = [*filter(names_correctness, parts), *(name for name in parts if not is_format(name))]
        if names:
            return names[0], parts[names[0]]
        scores, lowest = self.values("score"), min(self.values("score_min"), default=0.0)
        is_signed = lowest == -1 and not parts  # -1 or 1, as in DAPO
        return "score", [(score + 1) / 2 for score in scores] if is_signed else scores

    def answer_series(self) -> str:
        """Common name of the correctness reward's series; the score's if the log has no parts."""
        return f"part:{self.answer_part()[0]}" if self.parts() else "score"

    def spreads(self) -> list[float]:
        """How much the scores of a step differ: their standard deviation, else from the lowest to the highest."""
        pairs = zip(self.values("score_max"), self.values("score_min"), strict=False)
        return self.values("score_std") or [high - low for high, low in pairs]

    def is_constant(self) -> bool:
        """Whether all completions scored alike in four of five steps; without spreads, whether all means are 0."""
        scores, spreads = self.values("score"), self.spreads()
        if not spreads:
            others = ("score", "grad_norm", "zero_std", "score_max", "score_min")
            return len(scores) >= TREND_STEPS and not any(any(self.values(name)) for name in others)
        alike = sum(spread <= 1e-6 for spread in spreads) >= max(3, 0.8 * len(spreads))
        means = [score for score, spread in zip(scores, spreads, strict=False) if spread <= 1e-6]
        same = max(means, default=0.0) - min(means, default=0.0) <= 1e-6  # TRL's score_std is within groups only
        return alike and same and not any(self.part_spreads())

    def is_solved(self) -> bool:
        """Whether the task is solved: the held-out metric reached 0.95, or without one correctness rose to 0.95."""
        held_out, part = self.values("held_out"), self.answer_part()[1]
        if held_out and max(held_out) <= 1:
            return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
        return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED

    def held_out_gain(self) -> tuple[float, float, float] | None:
        """(gain, low, high): the held-out gain from first to last evaluation and its 95 % interval.

        None with fewer than two evaluations. For shares the interval takes both as independent samples of `eval/rows`
        answers (64 if unknown); this is too wide, as the rows are the same. For other metrics it is twice the scatter.
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

    def held_out_peak(self) -> int | None:
        """The step of the best held-out share if the last one surely lies below it, else None."""
        points, rows = self.points("held_out"), max(self.values("held_out_rows"), default=64)
        step, best = max(points, key=lambda point: point[1], default=(0, -1))
        is_share = points and 0 <= min(self.values("held_out")) <= best <= 1
        return step if is_share and share_gain((best, rows), (points[-1][1], rows))[2] < 0 else None

    def gained(self) -> bool:
        """Whether the held-out metric gained over GAIN and kept 3/4 of its best; without one, if correctness rose."""
        gain, held_out = self.held_out_gain(), self.values("held_out")
        if gain:
            return gain[0] > GAIN and max(held_out) - held_out[-1] < max(2 * GAIN, gain[0] / 3)
        return trend(self.answer_part()[1]) > 0

    def learns(self) -> bool:
        return self.gained() and self.trend("score") > 0

    def onset(self, name: str) -> int:
        """The first step at which a series with a trend is half way between its ends; without one, the last step."""
        points, way, middle = self.points(name), self.trend(name), sum(self.ends(name)) / 2
        return next((step for step, value in points if way and way * (value - middle) >= 0), points[-1][0])

    def collapse(self) -> tuple[float, float, int] | None:
        """(best stretch's median, last one's, step at which half was lost) if the score lost over half, else None."""
        scores, points, count = self.values("score"), self.points("score"), len(self.values("score"))
        if count < TREND_STEPS:
            return None
        last, floor = ends(scores)[1], min(0, *scores)
        width = min(window(count), max(5, window(count) // 2))
        stretches = [statistics.median(scores[i : i + width]) for i in range(count - width + 1)]
        best, steps, choices = max(stretches), width, len(stretches) / 2  # / 2: the test is one-sided
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
        gain = self.held_out_gain()  # a falling score is fine if prompts got harder and the held-out metric rises
        better = gain and gain[1] > 0 and self.gained() and max(self.series["held_out"]) > half
        return None if better else (best, last, half)
