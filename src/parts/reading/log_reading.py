"""Reading a log of any dialect in one pass: ours, TRL's, verl's, CSV, lines of name=value."""

import contextlib
import csv
import difflib
import io
import json
import math
import mmap
import re
from collections import Counter
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.reading.dialects import NAMES, PATTERNS
from parts.reading.logged_run import LoggedRun, as_number, is_finite
from parts.reading.run_settings import flat_config, printed_config, verl_settings
from parts.reading.sample_files import json_object

TRL_STATE = re.compile(rb'"(max_steps|num_train_epochs|train_batch_size|logging_steps|eval_steps)": ([\d.]+)')
KEPT = ("step", "length", "truncated", "zero_std", "kl", "entropy", "loss", "clip_frac", "lr", "grad_norm")
# name of a figure in --columns -> its common name
FIGURES = {"reward": "score", "reward_std": "score_std", "accuracy": "held_out"} | {name: name for name in KEPT}
STEP_NAMES = ("step", "steps", "iter", "iteration", "global_step", "_step")
COLOUR, WRAPPED = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"\b(?:np\.\w+|tensor)\(([^(),]*)[^()]*\)")
PAIR = re.compile(r"([A-Za-z_][\w/.@-]*)['\"]?\s*[=:]\s*(?=[-+.\d]|nan|inf)([-+\w.]+)", re.IGNORECASE)
HEADING = re.compile(r"\b(?:step|iter(?:ation)?|rollout|perf)[ :#]+(\d+)\b", re.IGNORECASE)  # above its figures
SPACED = re.compile(r"(?<=[•|] )((?:\w+\.? )+\w+\.?):")  # • Avg Reward: 1 of NeMo-RL, | Grad. Norm: 1 of prime-rl
CELL_PAIR = re.compile(r"(?<=\w) *[ │] *(?=(?:[-+.\de]+|nan|inf) *([|│]|$))")  # | kl 1 |; │ kl │ 1 │ of AReaL
SECTION = re.compile(r"(?:\(\w+ pid=[^)]*\) )?( *)([\w-]+):(?: ([^ ]+))?")  # a line of EasyR1's YAML console output
OUTER = re.compile("^(train|rollout|env/all|(ppo|grpo)_actor(/update)?)/|/avg$")  # prefixes and suffix to drop
ODD = re.compile(r"(?<=: )(-?inf|nan|None|True|False)(?=[,}])")  # Python literals in a printed dict that JSON lacks
BAND = re.compile("__M(IN|AX)$")  # wandb exports NAME__MIN and NAME__MAX beside each NAME
ERROR = re.compile(r"(?:\(\w+ pid=[^)]*\) )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")  # ends a traceback
CELL = re.compile(r"[-+]?[.\d]+(e[-+]?\d+)?")
MOST_STEPS, FIRST_STEPS = 5000, 100  # a metric keeps about MOST_STEPS points or more; the first FIRST_STEPS all stay


def short_name(name: str) -> str:
    """A column's name without wandb's run prefix ("run - train/reward"); every name of the step becomes "step"."""
    name = name.strip().rpartition(" - ")[2]
    return "step" if name.lower() in STEP_NAMES else name


def common_name(key: str, dialect: str) -> str | None:
    """The common name of a metric, None if it has none. Trackers log TRL's metrics as train/NAME and eval/NAME."""
    key = re.sub("^eval/", "eval_", OUTER.sub("", key)) if dialect == "trl" else key
    if name := NAMES[dialect].get(key) or NAMES[dialect].get(key.lower()):  # consoles capitalise: Reward
        return name
    for name, pattern in PATTERNS[dialect].items():
        if match := re.fullmatch(pattern, key):
            return ":".join((name, *match.groups()))
    return None


def is_rounded(key: str, value) -> bool:
    """Whether a learning rate or KL was printed as 0.000, as earlier verl does, so that its value is unknown."""
    small = any(common_name(key, dialect) in ("lr", "kl", "kl_step") for dialect in NAMES)
    return small and isinstance(value, str) and re.fullmatch(r"-?0\.0{2,5}", value.strip()) is not None


class Table:
    """The metrics of a log's rows as {name: {step: value}}; a repeated step keeps the later value.

    Keeps memory flat: once a metric has more than 2 x MOST_STEPS points, every second one after the first FIRST_STEPS
    is dropped.
    """

    def __init__(self, columns: dict[str, str]):
        self.columns, self.bad, self.restarts = {}, [], []
        self.rows = self.nested = self.step = self.before = 0
        step_name = columns.get("step", "step")
        self.step_names = (step_name, short_name(step_name), "train/global_step", "global_step/max_steps")
        self.trains = {short_name(column): True for column in columns.values()}  # name -> whether it is not held out

    def add(self, row: dict) -> None:
        """Add a row. A training row without a step counts as the next step."""
        if isinstance(row.get("data"), dict):  # verl's file logger
            row, self.nested = {"step": row.get("step"), **row["data"]}, self.nested + 1
        if any(isinstance(value, dict) for value in row.values()):
            row = {key.replace(".", "/"): value for key, value in flat_config(row).items()}
        self.rows += 1
        step = self.step = self.step_of(row)
        if len(row) > 2:
            if 0 < step < self.before:
                self.restarts.append(step)
            self.before = step
        for key, value in row.items():
            number = value if type(value) is float else as_number(value)
            if number is None or (number == 0 and is_rounded(key, value)):
                continue
            if not is_finite(number):
                self.bad.append((key, step, number))
                continue
            points = self.columns.setdefault(key, {})
            points[step] = number
            if len(points) > 2 * MOST_STEPS:
                kept = list(points.items())
                self.columns[key] = dict(kept[:FIRST_STEPS] + kept[FIRST_STEPS::2])

    def step_of(self, row: dict) -> int:
        """The step that a row names; else the next step for a training row, the current one for an evaluation row."""
        for name in self.step_names:
            value = row.get(name)
            value = value.partition("/")[0] if isinstance(value, str) else value  # ms-swift's "5/150"
            if is_finite(value):
                return int(float(value))
        for key in row.keys() - self.trains.keys():
            self.trains[key] = not (common_name(key, "trl") or "held_out").startswith("held_out")
        return self.step + any(map(self.trains.get, row))


class Reader:
    """Collects the metrics, settings and errors of a log line by line, each kind of line in a `Table` of its own."""

    def __init__(self, columns: dict[str, str]):
        self.json, self.console, self.plain = (Table(columns) for _ in range(3))
        self.number = self.lines = 0  # lines read: all, and those that are not empty
        self.bad = self.first_bad = 0  # how many are not JSON, and the number of the first
        self.printed, self.config = [], {}  # lines of verl's printed settings; the settings once they are complete
        self.last = {}  # the last printed dict
        self.unread = 0  # printed dicts that could not be read
        self.error = ""  # the last line of the last traceback
        self.heading, self.sections = {}, []  # {"step": …} of the last heading; enclosing YAML sections (indent, name)

    def take(self, line: str) -> None:
        self.number += 1
        if not line.strip():
            return
        self.lines += 1
        row = json_object(line) if line.lstrip()[0] == "{" else None
        if row is not None:
            return self.json.add(row)
        self.bad += 1
        self.first_bad = self.first_bad or self.number
        self.take_config(line)
        if "Err" in line or "Exc" in line or "Interrupt" in line:
            match = ERROR.match(COLOUR.sub("", line))
            self.error = match[1].strip()[:200] if match else self.error
        if "step:" in line and (match := re.search(r"\bstep:(\d+) - (.+)", COLOUR.sub("", line))):
            pairs = [part.rpartition(":") for part in WRAPPED.sub(r"\1", match[2]).strip().split(" - ")]
            return self.console.add({"step": match[1], **{key: value for key, _, value in pairs if key}})
        line = WRAPPED.sub(r"\1", line) if "np." in line or "tensor(" in line else line  # the search is slow
        for text in re.findall(r"\{'[^{}\n]*\}", line) if "{'" in line else ():
            self.take_dict(text)
        if not self.console.rows:
            line, boxed = SPACED.sub(lambda name: f"{re.sub('[. ]+', '_', name[1].lower())}:", line), "│" in line
            line = CELL_PAIR.sub("=", line) if line.count(" | ") > 1 or boxed else line
            if section := SECTION.fullmatch(line.rstrip()):
                self.sections = [outer for outer in self.sections if len(outer[0]) < len(section[1])]
                self.sections += [] if section[3] else [section.groups()]
                line = "/".join([*(name for _, name, _ in self.sections), f"{section[2]}: {section[3]}"])
            pairs = {short_name(name): value for name, value in reversed(PAIR.findall(line))}  # the first value wins
            *_, last = [None, *HEADING.findall(line)]
            self.heading = {"step": last} if last else self.heading if len(pairs) < 2 or boxed else {}
            if len(self.heading | pairs) > 1:
                self.plain.add(self.heading | pairs)

    def take_dict(self, text: str) -> None:
        """Add a flat dict that transformers' Trainer printed, such as {'loss': …}."""
        row = json_object(ODD.sub(r'"\1"', text).replace("'", '"'))
        if row is None:
            self.unread += "'loss': " in text or "'reward': " in text
        elif NAMES["trl"].keys() & row.keys() or any(key.startswith("eval_") for key in row):
            if row != self.last:  # other ranks may print the same
                self.console.add(row)
            self.last = row

    def take_config(self, line: str) -> None:
        """Collect verl's printed settings line by line; parse them once they are complete."""
        begun = self.printed or "{'actor_rollout_ref': " in line
        if begun and not self.config and len(self.printed) < MOST_STEPS:
            self.printed.append(line)
            self.config = printed_config(self.printed) if line.rstrip().endswith("}}") else {}

    def run(self, path: Path, columns: dict[str, str], whole: bool) -> LoggedRun:
        """The run from JSON rows if these are half of the lines, else from text; `whole`: the last line is complete."""
        text = self.console if self.console.rows else self.plain
        table = self.json if self.json.rows * 2 >= self.lines or not text.rows else text
        need(
            table.rows,
            f"got {path}, in none of the known formats{self.error and f', ending in {self.error}'}; expected "
            "metrics.jsonl, trainer_state.json, TRL's or verl's console output, verl's file log, a CSV file, or lines "
            "of name=value; try the run's folder",
        )
        run = run_of_rows(path, table, columns, "log entries" if table is self.json else "console")
        if table is self.json and self.bad:
            torn = self.bad == 1 and (self.first_bad == self.lines or not whole)
            flaw = "the last line is torn" if torn else f"{self.bad} of {self.lines} lines are not JSON"
            run.remarks.append(f"{flaw} (line {self.first_bad}); left out")
        if run.trainer == "verl":
            run.config, run.settings = self.config, run.settings | verl_settings(self.config)
        elif table is not self.json and self.console.rows:
            run.remarks.append("the console shows no steps: they are counted entries")
        if self.error:
            run.remarks.append(f"the log has an error: {self.error}")
        if self.unread:
            run.remarks.append(f"{self.unread} printed dicts like {{'loss': … could not be read; left out")
        return run


def csv_separator(head: str) -> str:
    """The cell separator of a CSV file or of a pasted table, guessed from its first lines; "" for other text."""
    header, _, rest = head.lstrip("\ufeff\n ").partition("\n")
    separator = max((",", ";", "\t", "|", "  "), key=header.strip().count)
    rows = [line.strip().split(separator) for line in rest.splitlines()[:9] if line.strip()]
    other = separator not in header or header[0] in "{[" or PAIR.search(header)
    return separator if not other and any(CELL.fullmatch(cell.strip(' "')) for row in rows for cell in row) else ""


def opened(path: Path) -> io.TextIOBase:
    """A log as a text stream; for a notebook, the output of its cells. A progress bar's "\\r" ends a line."""
    if path.suffix != ".ipynb":
        with path.open("rb") as file:  # PowerShell redirects as UTF-16
            encoding = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return path.open(encoding=encoding, errors="replace")
    try:
        outputs = [one for cell in json.loads(path.read_bytes())["cells"] for one in cell.get("outputs", ())]
        pages = ["".join(output.get("data", {}).get("text/html", ())) for output in outputs]
    except (ValueError, KeyError, AttributeError):
        raise UserError(f"got {path}, which is not a complete notebook; expected cells with outputs") from None
    # transformers shows its steps as an HTML table; the longest one belongs to the training
    rows = max((page.split("<tr") for page in pages if ">Step<" in page), key=len, default=[])
    table = [" | ".join(re.findall(r"<t[hd][^>]*>\s*([^<]*?)\s*</t", row)) for row in rows]
    return io.StringIO("\n".join(filter(None, table)) or "".join("".join(one.get("text", ())) for one in outputs))


def head_of(path: Path) -> str:
    """The first 64 K characters of a log; UserError if the file is empty, binary or unreadable."""
    try:
        with opened(path) as file:
            text = file.read(1 << 16)
    except OSError as error:
        raise UserError(f"got {path} ({error.strerror}); expected a log file or a run folder") from None
    need(text.strip(), f"got {path}, which is empty; expected a log with at least one step")
    odd = text.count("\0") + text.count("\ufffd")
    need(odd * 50 < len(text), f"got {path}, which is binary; expected metrics.jsonl, trainer_state.json, a log")
    return text


def read_log(paths: list[Path], columns: dict[str, str]) -> LoggedRun:
    """Read a run's log; `paths` are those of its starts, in order. `columns` maps names of FIGURES to columns."""
    head, path, table = head_of(paths[0]), paths[0], Table(columns)
    if re.match(r"\s*\[\s*\{", head) or (head.lstrip().startswith("{") and '"log_history"' in head):
        return read_state(path, table, columns)
    if separator := csv_separator(head):
        with opened(path) as file:
            lines = (re.sub(" {2,}", "\t", line.strip()) for line in file) if separator == "  " else file
            reader = csv.DictReader(lines, delimiter=separator.replace("  ", "\t"))
            names = {name: short_name(name) for name in reader.fieldnames if not BAND.search(name)}
            twice = [name for name, count in Counter(names.values()).items() if name not in ("", "step") and count > 1]
            need(not twice, f"got {path} with several columns {twice[:1]}; expected one run; try an export of one run")
            for row in reader:
                table.add({short: row[name] for name, short in names.items() if short})
        return run_of_rows(path, table, columns)
    reader, line = Reader(columns), "\n"
    for start in paths:
        with opened(start) as file:
            for line in file:
                reader.take(line)
    return reader.run(path, columns, line.endswith("\n"))


def read_state(path: Path, table: Table, columns: dict[str, str]) -> LoggedRun:
    """Read a trainer_state.json or a dumped log_history; entries are flat objects, so a torn file can be read too."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for match in re.finditer(rb"\{[^{}]*\}", text):
            with contextlib.suppress(ValueError):
                row = json.loads(match[0])
                if "step" in row:
                    table.add(row)
        config = {name.decode(): float(value) for name, value in TRL_STATE.findall(text)}
    need(table.rows, f"got {path} without an entry in log_history; expected one with a step; try the console output")
    if not config:
        return run_of_rows(path, table, columns)
    run = run_of(path, "trainer_state.json", "trl", table, columns)
    run.config, run.settings["steps"] = config, config.get("max_steps")
    return run


def run_of_rows(path: Path, table: Table, columns: dict[str, str], kind: str = "log entries") -> LoggedRun:
    """A run from a table; its metric names show whether ours, verl or TRL wrote it. --columns names other metrics."""
    keys = table.columns.keys() | {key for key, _, _ in table.bad}
    known = {name: [*filter(None, (common_name(key, name) for key in keys))] for name in NAMES}
    dialect = "verl" if table.nested else max(known, key=lambda name: ("score" in known[name], len(known[name])))
    if columns or not any(known.values()):
        return run_of(path, "named columns" if columns else kind, "trl", table, columns)
    if dialect != "ours":
        return run_of(path, f"verl {kind}" if dialect == "verl" else kind, dialect, table, columns)
    if kind == "console":  # our trainers write metrics.jsonl
        return run_of(path, kind, "other", table, columns)
    trainer = "grpo_train" if "time/step" in keys else "ppo_train"
    return run_of(path, "metrics.jsonl", trainer if "optim/lr" in keys else "one_page", table, columns)


def run_of(path: Path | str, kind: str, trainer: str, table: Table, columns: dict[str, str]) -> LoggedRun:
    """A run with a table's metrics under common names. Names given by --columns take precedence."""
    run = LoggedRun(str(path), kind, trainer, table.columns, table.bad)
    run.settings["restarts"] = sorted({*table.restarts})
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
    names = {column: FIGURES[figure] for column, figure in names.items() if figure != "step"}
    places = {name: place for place, name in enumerate(NAMES[run.dialect])}
    sources: list[dict[int, float]] = []  # verl logs one held-out metric for each data source; their mean is taken
    for key in sorted(run.columns, key=lambda key: places.get(key.removeprefix("train/"), len(places))):
        name, points = names.get(key) or common_name(key, run.dialect), run.columns[key]
        if not name or not points or (key not in names and name in names.values()):
            continue
        run.names.setdefault(name, key)
        if name == "held_out" and run.dialect == "verl":
            sources.append(points)
        run.series[name] = points | run.series.get(name, {})  # the first name of a metric wins
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
