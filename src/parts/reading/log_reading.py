"""Rows of a log as metrics: names, numbers, steps and runs of any dialect, under common names."""

import difflib
import functools
import math
import re
from pathlib import Path

from parts.foundation.messages import need
from parts.reading.dialects import NAMES, PATTERNS
from parts.reading.logged_run import LoggedRun, as_number
from parts.reading.run_settings import flat_config

SHARES = ("truncated", "clip_frac", "zero_std")
KEPT = ("step", "length", "truncated", "zero_std", "kl", "entropy", "loss", "clip_frac", "lr", "grad_norm")
# name of a figure in --columns -> its common name
FIGURES = {"reward": "score", "reward_std": "score_std", "accuracy": "held_out"} | {name: name for name in KEPT}
# names of the step, the best first: a tracker's _step counts its calls
STEP_NAMES = (
    *("global_step", "global_step/max_steps", "training_step", "current_steps", "step", "iteration", "iter", "steps"),
    "_step",
)
EVALUATION = "eval|evaluation|val|valid|validation|test|held[-_ ]?out"
OUTER = re.compile(  # prefixes, words and suffixes that do not change which figure a name has
    "^(?:(?:train|trainer|training|rollout|rollout_info|metrics|env|all|ppo|policy|optim|losses|ppo_actor|grpo_actor|"
    "update)/)*(?:(?:avg|mean|average)_)?|[/_](?:mean|avg)$"
)
RUN_KEYS, SPLIT_KEYS = {"run_id", "run", "run_name"}, {"split", "phase", "mode", "stage", "kind", "partition"}
TAG_KEYS = ("key", "tag", "metric", "name")  # of tables with one value a row, such as MLflow's
ODD_KEYS = {"value"} | RUN_KEYS | SPLIT_KEYS  # a row without them is as it was logged
# a metric keeps about MOST_STEPS points or more; the first FIRST_STEPS all stay; names are judged by HEAD_ROWS rows
MOST_STEPS, FIRST_STEPS, HEAD_ROWS = 5000, 100, 200


@functools.lru_cache(1 << 14)  # a log repeats its names
def short_name(name: str) -> str:
    """A column's name without wandb's run prefix ("run - train/reward") and a notebook's spaces ("rewards / f")."""
    return name.strip().rpartition(" - ")[2].replace(" / ", "/")


def listed_name(key: str, dialect: str) -> str:
    """The name in NAMES that a metric has, as it is or without what OUTER drops ("train/avg_reward"); else ""."""
    names = [key, key.lower()]  # consoles capitalise: Reward
    names += [OUTER.sub("", name) for name in names] if dialect == "trl" else []
    return next((name for name in names if name in NAMES[dialect]), "")


@functools.lru_cache(1 << 14)
def common_name(key: str, dialect: str) -> str | None:
    """The common name of a metric, None if it has none. Trackers log TRL's metrics as train/NAME and eval/NAME."""
    if name := listed_name(key, dialect):
        return NAMES[dialect][name]
    key = re.sub("^eval/", "eval_", OUTER.sub("", key)) if dialect == "trl" else key
    for name, pattern in PATTERNS[dialect].items():
        if match := re.fullmatch(pattern, key):
            return ":".join((name, *match.groups()))
    return None


@functools.lru_cache(1 << 14)
def is_of_training(key: str) -> bool:
    """Whether in some dialect a name is not one of held-out figures."""
    return not all((common_name(key, dialect) or "held_out").startswith("held_out") for dialect in NAMES)


@functools.lru_cache(1 << 14)
def step_rank(key: str) -> int:
    """The place of a name in STEP_NAMES; their number if it names no step."""
    name = re.sub("^(train|trainer|training|rollout)/", "", key.lower())
    return STEP_NAMES.index(name) if name in STEP_NAMES else len(STEP_NAMES)


def names_step(key: str) -> bool:
    return step_rank(key) < len(STEP_NAMES)


@functools.lru_cache(1 << 14)
def is_rounded(key: str, text: str) -> bool:
    """Whether a learning rate or KL was printed as 0.000, as earlier verl does, so that its value is unknown."""
    is_short = re.fullmatch(r"-?0\.0{2,5}", text.strip())
    return bool(is_short) and any(common_name(key, dialect) in ("lr", "kl", "kl_step") for dialect in NAMES)


def number_of(value) -> float | None:
    """A JSON value or a cell as a number: 45% is 0.45, 1,234.5 is 1234.5, 0,5 is 0.5; None for other texts."""
    if not isinstance(value, str):
        return as_number(value)
    try:
        return float(value)
    except ValueError:
        text = value.strip()
    if text.endswith("%"):
        number = as_number(text[:-1])
        return None if number is None else number / 100
    groups = re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", text)
    return as_number(text.replace(",", "" if groups else "."))


def whole_number(value) -> int | None:
    """A step as a number; of ms-swift's "5/150" the first one; None for other texts and for fractions."""
    number = as_number(value.partition("/")[0] if isinstance(value, str) else value)
    return int(number) if number is not None and abs(number) < 1e18 and number % 1 == 0 else None


class Table:
    """The metrics of a log's rows as {name: {step: value}}; a repeated step keeps the later value.

    Keeps memory flat: once a metric has more than 2 x MOST_STEPS points, every second one after the first FIRST_STEPS
    is dropped. Rows that begin anew are another run: only the last one of three rows or more is kept.
    """

    def __init__(self, columns: dict[str, str]):
        self.kept = {}, [], []  # of the run before: its metrics, values that are not finite, restarts
        self.rows = self.nested = self.counted = self.runs = 0  # counted: training rows without a step
        self.step_name = short_name(columns["step"]) if "step" in columns else ""
        self.step_names = {self.step_name: -1}  # and those that rows have -> their rank; of equal ones the first wins
        self.given = {short_name(column) for figure, column in columns.items() if figure != "step"}
        self.run_names = {}  # the runs that rows name
        self.head = []  # the first rows
        self.begin()

    def begin(self) -> None:
        """Begin another run: later rows belong to it."""
        self.columns, self.bad, self.restarts = {}, [], []
        self.runs += 1
        self.step = self.before = self.offset = 0  # of the last row, of the last training row; added to steps
        self.taken = self.first = self.every = 0  # training rows so far; step of the first, from it to the next
        self.epoch, self.epochs = -math.inf, {}  # of the last training row; {epoch: its last step} of counted rows

    def add(self, row: dict) -> None:
        """Add a row, or those of a history by columns. A training row without a step counts as the next step."""
        row = self.plain_row(row)
        if {*map(type, row.values())} == {list}:
            for cells in zip(*row.values(), strict=False):
                self.add(dict(zip(row, cells, strict=True)))
            return
        self.rows += 1
        if self.rows <= HEAD_ROWS:
            self.head.append(row)
        step = self.step = self.step_of(row)
        for key, value in row.items():
            number = number_of(value)
            if number is None or (number == 0 and type(value) is str and is_rounded(key, value)):
                continue
            if abs(number) < 1e18:
                points = self.columns.setdefault(key, {})
                points[step] = number
                if len(points) > 2 * MOST_STEPS:
                    kept = list(points.items())
                    self.columns[key] = dict(kept[:FIRST_STEPS] + kept[FIRST_STEPS::2])
            else:
                self.bad.append((key, step, number))

    def is_figure(self, key: str, value) -> bool:
        """Whether a cell is a figure or a step, and no time; what only has a message is no row."""
        known = names_step(key) or key in self.given or key == self.step_name
        is_fraction = isinstance(value, float) and value < 1e9
        return known or is_fraction or any(common_name(key, dialect) for dialect in NAMES)

    def plain_row(self, row: dict) -> dict:
        """A row as {metric: value}: flat, cells `key` and `value` joined, with eval_ before an evaluation's names."""
        if isinstance(row.get("data"), dict):  # verl's file logger, whose step is beside it
            self.nested += "step" in row
            row = {"step": row.get("step"), **row["data"]}
        if dict in map(type, row.values()):
            row = {key.replace(".", "/"): value for key, value in flat_config(row).items()}
        if ODD_KEYS.isdisjoint(row):
            return row
        self.run_names |= {str(row[key]): None for key in RUN_KEYS & row.keys()}
        if "value" in row and (name := next((row[key] for key in TAG_KEYS if isinstance(row.get(key), str)), "")):
            row = {key: value for key, value in row.items() if names_step(key)} | {name: row["value"]}
        if any(re.fullmatch(EVALUATION, str(row[key]), re.IGNORECASE) for key in SPLIT_KEYS & row.keys()):
            row = {key if names_step(key) else f"eval_{key}": value for key, value in row.items()}
        return row

    def step_of(self, row: dict) -> int:
        """The step that a row names, else the next one for a training row and the current one for an evaluation row."""
        ranks = self.step_names
        ranks |= {name: step_rank(name) for name in row if name not in ranks and names_step(name)}
        numbers = (whole_number(row[name]) for name in sorted(ranks, key=ranks.get) if name in row)
        step = next((number for number in numbers if number is not None), None)
        filled = (name for name, value in row.items() if value not in (None, ""))
        if not any(name in self.given or is_of_training(name) for name in filled):
            return self.step if step is None else step + self.offset
        epoch = as_number(row.get("epoch", row.get("Epoch")))
        epoch = self.epoch if epoch is None else epoch
        if step is None:
            step = self.next_step(epoch)
        elif epoch > self.epoch and step + self.offset < self.before:  # steps begin anew in each epoch
            self.offset = self.before + (step == 0)
        self.epoch = epoch
        return self.follow(step + self.offset) if len(row) > 2 else step + self.offset

    def next_step(self, epoch: float) -> int:
        """The step of a training row without one: the next; if the epoch fell, the next after the smaller epochs."""
        self.counted += 1
        step = self.step + 1
        if epoch < self.epoch and epoch % 1:  # whole epochs may be passes over one batch
            self.epochs = {before: last for before, last in self.epochs.items() if before < epoch}
            step = 1 + max(self.epochs.values(), default=0)
        self.epochs[epoch] = step
        return step

    def follow(self, step: int) -> int:
        """The step of a training row. Notes another run if steps begin anew, a restart if they fall less."""
        if step <= self.first < self.before and self.taken >= 10 and step <= max(self.every, 1):
            epoch, self.kept = self.epoch, (self.columns, self.bad, self.restarts)
            self.begin()
            if self.counted:
                step = self.next_step(epoch)
        elif 0 < step < self.before:
            self.restarts.append(step)
        self.every = self.every or (step - self.first if self.taken else 0)
        self.before, self.first, self.taken = step, self.first if self.taken else step, self.taken + 1
        return step

    def drop_gaps(self) -> list[str]:
        """Drop NaN before numbers, since it stands for empty cells in a CSV; returns the names of these metrics."""
        last = {key: max(points) for key, points in self.columns.items()}
        gaps = {key: None for key, step, value in self.bad if math.isnan(value) and step < last.get(key, step)}
        self.bad = [entry for entry in self.bad if entry[0] not in gaps or not math.isnan(entry[2])]
        return [*gaps]


def run_of_rows(path: Path, table: Table, columns: dict[str, str], kind: str = "log entries") -> LoggedRun:
    """A run from a table; its metric names show whether ours, verl or TRL wrote it. --columns names other metrics."""
    if table.runs > 1 and table.taken < 3:  # stray rows, such as those of a summary
        table.columns, table.bad, table.restarts = table.kept
    keys = table.columns.keys() | {key for key, _, _ in table.bad}
    known = {name: [*filter(None, (common_name(key, name) for key in keys))] for name in NAMES}
    dialect = "verl" if table.nested else max(known, key=lambda name: ("score" in known[name], len(known[name])))
    trainer = "trl"
    if columns or not any(known.values()):
        kind = "named columns" if columns else kind
    elif dialect == "verl":
        kind, trainer = f"verl {kind}", "verl"
    elif dialect == "ours" and kind == "console":  # our trainers write metrics.jsonl
        trainer = "other"
    elif dialect == "ours":
        kind, trainer = "metrics.jsonl", "one_page"
        if "optim/lr" in keys:
            trainer = "grpo_train" if "time/step" in keys else "ppo_train"
    return run_of(path, kind, trainer, table, columns)


def other_quantity(name: str, points: dict[int, float], columns) -> str:
    """Why a metric's figures are not what its common name means; "" if they may be."""
    if name in SHARES and max(points.values()) > 1.001:
        return "exceeds 1, so it is no share,"
    is_sum = name == "kl" and any("rlhf_reward" in column for column in columns)  # torchtune's
    return "beside rlhf_reward is a sum over tokens" if is_sum else ""


def run_of(path: Path | str, kind: str, trainer: str, table: Table, columns: dict[str, str]) -> LoggedRun:
    """A run with a table's metrics under common names. Names given by --columns take precedence."""
    run = LoggedRun(str(path), kind, trainer, table.columns, table.bad, head=table.head)
    run.settings["restarts"] = sorted({*table.restarts})
    runs = ", ".join([*table.run_names][:3])
    need(len(table.run_names) < 2, f"got {path} with the runs {runs}; expected one run; try an export of one run")
    if table.runs > 1:
        run.remarks.append(f"the log has {table.runs} runs, as its steps begin anew; the last with 3 steps is judged")
    if any(len(points) > MOST_STEPS for points in table.columns.values()):
        run.remarks.append(f"the log is long: only part of its {table.rows} entries is judged, the first ones all")
    names = {short_name(column): figure for figure, column in columns.items()}
    for column, figure in names.items():
        near = difflib.get_close_matches(column, run.columns, n=1)
        need(
            column in run.columns,
            f"got --columns {figure}={column}, which {path} does not have; expected one of its columns: "
            f"{', '.join(sorted(run.columns)[:20])}" + (f"; try {figure}={near[0]}" if near else ""),
        )
    names = {column: FIGURES.get(figure, f"part:{column}") for column, figure in names.items() if figure != "step"}
    places = {name: place for place, name in enumerate(NAMES[run.dialect])}

    def place(key: str) -> tuple:
        """Listed names come first, then those that OUTER shortens, both in the order of the list."""
        listed = listed_name(key, run.dialect)
        return not listed, listed not in (key, key.removeprefix("train/")), places.get(listed, 0)

    sources: list[dict[int, float]] = []  # verl logs one held-out metric for each data source; their mean is taken
    for key in sorted(run.columns, key=place):
        name, points = names.get(key) or common_name(key, run.dialect), run.columns[key]
        if not name or not points or (key not in names and name in names.values()):
            continue
        if other := other_quantity(name, points, run.columns):
            run.remarks.append(f"{key} {other} and was not read")
            continue
        if name == "entropy" and max(points.values()) <= 0:  # the term of the loss
            points = {step: -value for step, value in points.items()}
        if name == "held_out" and run.dialect == "verl":
            sources.append(points)
        elif name in run.series:
            continue  # the first name of a metric wins
        run.names.setdefault(name, key)
        run.series[name] = points | run.series.get(name, {})
    low, spread = run.series.get("advantage_min", {}), run.series.get("score_std", {})
    spread = spread or {step: high - low[step] for step, high in run.points("advantage_max") if step in low}
    if "zero_std" not in run.series and spread and max(spread.values()) <= 1e-6:  # no group differed at any step
        run.names["zero_std"] = run.name("score_std" if "score_std" in run.series else "advantage_max")
        run.series["zero_std"] = dict.fromkeys(spread, 1.0)
    if sources:
        by_step = {step: [points[step] for points in sources if step in points] for step in run.series["held_out"]}
        run.series["held_out"] = {step: sum(values) / len(values) for step, values in by_step.items()}
    return run


def drop_padded(run: LoggedRun) -> None:
    """Set verl's truncated share to 0 at steps below the limit: its V1 trainer pads to the batch's longest response."""
    longest = run.series.get("length_max", {})
    limit = run.settings.get("max_length")
    if not limit and longest:  # the largest length is taken for the limit if half of the steps reach it
        top = max(longest.values())
        limit = top if sum(value == top for value in longest.values()) * 2 >= max(len(longest), 4) else math.inf
    for step, value in longest.items():
        if limit and value < limit and step in run.series.get("truncated", {}):
            run.series["truncated"][step] = 0.0
