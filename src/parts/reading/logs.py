"""Reading a log file of any form in one pass: JSON lines, CSV, consoles, lines of name=value, notebooks."""

import contextlib
import csv
import io
import json
import mmap
import operator
import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.reading.dialects import NAMES
from parts.reading.log_reading import (
    EVALUATION,
    MOST_STEPS,
    Table,
    common_name,
    names_step,
    run_of,
    run_of_rows,
    short_name,
)
from parts.reading.logged_run import LoggedRun
from parts.reading.run_settings import printed_config, verl_settings
from parts.reading.sample_files import json_object

TRL_STATE = re.compile(rb'"(max_steps|num_train_epochs|train_batch_size|logging_steps|eval_steps)": ([\d.]+)')
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# the number in np.float64(0.1), tensor(0.1, …) and array(0.1, …)
WRAPPED = re.compile(r"\b(?:np\.\w+|tensor|[Aa]rray)\(([^(),]*)[^()]*\)")
PAIR = re.compile(
    r"([A-Za-z_][\w/.@-]*+)['\"]?\s*+[=:]\s*+(?=[-+.\d]|nan|inf)([-+]?\d+(?:,\d+)+(?:\.\d+)?|[-+\w.]+%?)", re.IGNORECASE
)
# above its figures
HEADING = re.compile(r"\b(?:step|iter(?:ation)?|rollout|perf)[ :#[]+(\d+)\b(?!\.\d)", re.IGNORECASE)
EPOCH = re.compile(r"\bepoch[ :=#[]+(\d+)\b(?!\.\d)", re.IGNORECASE)
SPACED = re.compile(  # • Avg Reward: 1 of NeMo-RL, | Grad. Norm: 1 of prime-rl
    r"(?:^|(?<=[•|] ))((?:[a-z]\w*\.? )+[a-z]\w*\.?):(?= *[-+.\d])", re.IGNORECASE
)
EVALUATED = re.compile(  # [eval], eval: or eval at step 3 before a line's figures; "eval " before one of them
    rf"(?:^|[\[(|,;: ])(?:{EVALUATION})(?:[\])]|\.? $|:(?= )|(?= (?:\||at\b|step\b|iter)))", re.IGNORECASE
)
CUT = re.compile(r"\{'(?:loss|reward|num_tokens|eval_\w+)': [^{}]*$")  # a printed dict that continues on the next line
CELL_PAIR = re.compile(r"(?<=\w) *[ │] *(?=(?:[-+.\deE]+|nan|inf) *([|│]|$))")  # | kl 1 |; │ kl │ 1 │ of AReaL
SECTION = re.compile(r"(?:\(\w+ pid=[^)]*\) )?( *)([\w-]+):(?: ([^ ]+))?")  # a line of EasyR1's YAML console output
ODD = re.compile(r"(?<=: )(-?inf|nan|None|True|False)(?=[,}])")  # Python literals in a printed dict that JSON lacks
BAND = re.compile("__M(IN|AX)$")  # wandb exports NAME__MIN and NAME__MAX beside each NAME
ERROR = re.compile(r"(?:\(\w+ pid=[^)]*\) )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")  # ends a traceback
CELL = re.compile(r"[-+]?[.\d]+(e[-+]?\d+)?")
DECIMAL = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
STANDING = re.compile(  # the hour of a time, or a number with its unit, in no word
    rf"(?<![\w.,/@+-])(?:(\d\d):\d\d:\d\d(?:[.,]\d+)?|({DECIMAL}(?:%|[A-Za-z]{{1,3}}(?!\w))?))(?![\w.%+-]|,\d)"
)
NUMBERS = re.compile(r"(?:step|iter(?:ation)?|rollout|perf|epoch)[ :=#[]+", re.IGNORECASE)  # above a step or an epoch
NUMBERED = re.compile(NUMBERS.pattern + "$", re.IGNORECASE)
MOST_SHAPES, SEEN = 1000, 20  # completions have many; compiling one takes milliseconds
FIRST_MARK, MARK_START = 7_700_000_000, "77000000"  # a mark stands for a number in a line's shape
PAIRED = re.compile("[=:|│]|" + HEADING.pattern + "|" + EPOCH.pattern, re.IGNORECASE)
VERL_LINE = re.compile(r"\bstep:(\d+) - (.+)")
DICT = re.compile(r"\{'[^{}\n]*\}")


class Reader:
    """Collects the metrics, settings and errors of a log line by line, each kind of line in a `Table` of its own."""

    def __init__(self, columns: dict[str, str]):
        self.json, self.console, self.plain = (Table(columns) for _ in range(3))
        self.number = self.lines = 0  # lines read: all, and those that are not empty
        self.bad = self.first_bad = 0  # how many are not JSON, and the number of the first
        self.printed, self.config = [], {}  # lines of verl's printed settings; the settings once they are complete
        self.last = {}  # the last row of the console
        self.unread = 0  # printed dicts that could not be read
        self.error = ""  # the last line of the last traceback
        self.cut = ""  # the beginning of a printed dict that the terminal wrapped
        self.shape, self.shapes, self.after = None, {}, {}  # of the last line; all; {shape: the one that followed it}
        self.epoch, self.named = {}, False  # {"epoch": …} of the last line with one; whether figures name their step
        self.heading, self.sections = {}, ()  # {"step": …} of the last heading; enclosing YAML sections (indent, name)

    def take(self, line: str) -> None:
        self.number += 1
        is_open = self.cut or (0 < len(self.printed) < MOST_STEPS and not self.config)
        shape = None if is_open else self.after.get(self.shape)  # the one that followed the last time
        if shape and shape.pattern and shape.inside == self.sections and (match := shape.pattern.fullmatch(line)):
            self.lines += 1
            self.bad += 1
            self.shape = shape
            return self.take_shape(shape, match.groups())
        start = line.lstrip()
        if not start:
            return
        self.lines += 1
        row = json_object(line) if start[0] == "{" and start[1:2] != "'" else None
        text = row.get("log", row.get("message", row.get("msg"))) if row else None  # of Docker or a cloud's logger
        if isinstance(text, str) and not any(common_name(key, name) for key in row for name in NAMES):
            row, line = None, text
        if row is not None:
            return self.json.add(row)
        self.bad += 1
        self.first_bad = self.first_bad or self.number
        plain = COLOUR.sub("", line)
        self.take_config(plain)
        if error := ERROR.match(plain):
            self.error = error[1].strip()[:200]
        is_verl = "step:" in plain and VERL_LINE.search(plain)
        torn = plain.rfind("{'") > plain.rfind("}") and CUT.search(plain)
        if not is_verl and (self.cut or torn):
            self.cut += plain.rstrip()
            if "}" not in plain and len(self.cut) < 4000:
                return
            line, self.cut = self.cut, ""
        if is_verl or "{'" in line or (not self.console.rows and PAIRED.search(line)):
            self.take_shape(*self.shape_of(line, bool(error)))

    def shape_of(self, line: str, is_odd: bool) -> tuple["LineShape", tuple[str, ...]]:
        """A line's shape and the texts of its numbers; lines that differ in their numbers only have one shape."""
        pieces, marked, texts, marks, end, has_step = [], "", [], [], 0, NUMBERS.search(line)
        for match in STANDING.finditer(line):
            hour, text, start = *match.groups(), match.start()
            before, text, mark, form = line[end:start], hour or text, f"{FIRST_MARK + len(marks)}", DECIMAL
            unit = "" if text[-1].isdecimal() else text[len(text.rstrip(f"%{string.ascii_letters}")) :]
            if has_step and NUMBERED.search(before[-24:]):  # a step is a whole number
                whole = text.removesuffix(unit).isdecimal()
                mark, form = (mark, r"\d+") if whole else (mark + ".5", rf"(?!\d+\b(?!\.)){DECIMAL}")
            marked += f"{before}{mark}{unit}{':00:00' if hour else ''}"
            pieces.append((before, form, unit, hour))
            texts.append(text)
            marks.append(mark + unit)
            end = match.end()
        key = marked + line[end:], self.sections, not self.console.rows
        if shape := self.shapes.get(key):
            shape.count += 1
            if shape.count == SEEN:
                tails = {True: r":\d\d:\d\d(?:[.,]\d+)?", False: ""}  # of a time
                pieces = [
                    f"{re.escape(before)}({form}{unit}){tails[bool(hour)]}" for before, form, unit, hour in pieces
                ]
                shape.pattern = re.compile("".join(pieces) + re.escape(line[end:]))
            self.after[self.shape] = self.shape = shape
        else:
            shape = LineShape(key[0], *key[1:], marks)
            if is_odd or shape.is_odd:
                return LineShape(line, *key[1:]), ()
            if len(self.shapes) >= MOST_SHAPES:
                self.shapes, self.after = {}, {}
            self.shapes[key] = shape
        return shape, tuple(texts)

    def take_shape(self, shape: "LineShape", texts: tuple[str, ...]) -> None:
        """Add what a line of this shape says, under the last heading and epoch; its figures end a heading."""
        cells = texts + shape.constants
        self.unread += shape.unread
        for names, values_of in shape.rows:
            row = dict(zip(names, values_of(cells)[1:], strict=True))
            if row != self.last:  # other ranks print the same dict
                self.console.add(row)
            self.last = row
        if self.console.rows or not shape.figures:
            return
        heading, epoch, *values = shape.figures(cells)
        self.sections, self.named = shape.sections, self.named or shape.name_step
        if heading and (shape.are_several or not self.named):  # "Step 1:" may be of a completion
            self.heading = {"step": heading}
        elif shape.are_several:
            self.heading = {}
        if epoch:
            self.epoch = {"epoch": epoch}
        pairs = self.heading | dict(zip(shape.names, values, strict=True))
        if len(pairs) > 1:
            self.plain.add(self.epoch | pairs)

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
        elif table is self.console and table.counted:
            run.remarks.append("the console shows no steps: they are counted entries")
        if self.error:
            run.remarks.append(f"the log has an error: {self.error}")
        if self.unread:
            run.remarks.append(f"{self.unread} printed dicts like {{'loss': … could not be read; left out")
        return run


def printed_dict(text: str) -> dict | None:
    """A flat dict as Python prints it, with numbers as texts; None if it is not one."""
    quoted = text.replace("'", '"')
    return json_object(quoted, str) or json_object(ODD.sub(r'"\1"', quoted), str)


class LineShape:
    """What lines say that differ in their numbers only. `marks` stand for the numbers in `text`.

    A row's or figure's value is the place of its text among the texts of a line's numbers and the constants.
    """

    def __init__(self, text: str, inside: tuple, has_figures: bool, marks: Sequence[str] = ()):
        self.pattern, self.count = None, 0  # a group for each number, compiled for the line of the shape number SEEN
        self.inside = self.sections = inside  # YAML sections that enclose this line and the next, as (indent, title)
        self.places, self.constants = {mark: place for place, mark in enumerate(marks)}, ()
        self.rows = []  # of the console: their names, pick of their values after an ""
        self.unread = 0  # printed dicts that could not be read
        self.figures, self.names = None, ()  # pick of a heading, an epoch and the values of name=value; their names
        self.are_several = self.name_step = False  # several figures end a heading; whether these name their step
        line = WRAPPED.sub(r"\1", COLOUR.sub("", text))
        if match := VERL_LINE.search(line):
            pairs = [part.rpartition(":") for part in match[2].strip().split(" - ")]
            self.add_row({"step": match[1], **{key: value for key, _, value in pairs if key}})
        else:
            for match in DICT.finditer(line):
                self.add_dict(match[0], HEADING.findall(line[: match.start()]))
        if has_figures and not self.rows:
            self.add_figures(line)
        self.is_odd = MARK_START in str([self.constants, self.sections, self.rows, self.names])

    def place(self, value) -> int:
        """The place of a value, which is a mark or a constant."""
        key = str(value)
        if key not in self.places:
            self.places[key] = len(self.places)
            self.constants += (value,)
        return self.places[key]

    def add_row(self, row: dict) -> None:
        self.rows.append(((*row,), operator.itemgetter(*map(self.place, ("", *row.values())))))

    def add_dict(self, text: str, headings: list[str]) -> None:
        """Add a flat dict that transformers' Trainer printed, such as {'loss': …}; the last heading is its step."""
        row = printed_dict(text)
        if row is None:
            self.unread += "'loss': " in text or "'reward': " in text
        elif not NAMES["trl"].keys().isdisjoint(row) or any(key.startswith("eval_") for key in row):
            self.add_row({"step": headings[-1]} | row if headings else row)

    def add_figures(self, line: str) -> None:
        """Add the figures name=value of a line; consoles of EasyR1 write a YAML section for each group of metrics."""
        boxed, line = "│" in line, SPACED.sub(lambda name: f"{re.sub('[. ]+', '_', name[1].lower())}:", line)
        if boxed or line.count(" | ") > 1:
            line = CELL_PAIR.sub("=", line)
        if section := SECTION.fullmatch(line.rstrip()):
            indent, title, value = section.groups()
            sections = tuple(outer for outer in self.inside if len(outer[0]) < len(indent))
            line = "/".join([*(outer for _, outer in sections), f"{title}: {value}"])
            self.sections = sections + (() if value else ((indent, title),))
        pairs, headings, epoch = pairs_of(line), HEADING.findall(line), EPOCH.search(line)
        self.names = (*pairs,)
        self.are_several = len(pairs) > 1 and not boxed and any(common_name(name, "trl") for name in pairs)
        self.name_step = self.are_several and any(names_step(name) and "/" not in name for name in pairs)
        values = headings[-1] if headings else "", epoch[1] if epoch else "", *pairs.values()
        self.figures = operator.itemgetter(*map(self.place, values))


def pairs_of(line: str) -> dict[str, str]:
    """{name: value} of a line's pairs, the first value of a name; those of an evaluation get the prefix eval_."""
    pairs, end, whole = {}, 0, ""
    for match in PAIR.finditer(line):
        name, between = short_name(match[1]), line[end : match.start()]
        tag = EVALUATED.search(between) if len(between) > 3 else None  # searches are slow
        whole = "eval_" if not end and tag and not tag[0].endswith(" ") else whole
        prefix = "" if names_step(name) else "eval_" if tag else whole
        pairs.setdefault(prefix + name, match[2])
        end = match.end()
    return pairs


def csv_separator(head: str) -> str:
    """The cell separator of a CSV file or of a pasted table, guessed from its first lines; "" for other text."""
    head = re.sub(r"^\ufeff?(#.*\n)+", "", head)
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
            lines = (line for line in file if line[0] != "#")
            lines = (re.sub(" {2,}", "\t", line.strip()) for line in lines) if separator == "  " else lines
            if separator != "," and re.search(r"\d,\d", head) and not re.search(r"\d\.\d", head):  # decimal commas
                lines = (line.replace(",", ".") for line in lines)
            shift, reader = False, csv.DictReader(lines, delimiter=separator.replace("  ", "\t"))
            names = {name: short_name(name) for name in reader.fieldnames if not BAND.search(name)}
            twice = [name for name, count in Counter(names.values()).items() if name and count > 1]
            need(not twice, f"got {path} with several columns {twice[:1]}; expected one run; try an export of one run")
            for row in reader:
                rest = row.pop(None, [""])
                if shift := shift if table.rows else rest != [""]:  # an index that has no name: pandas', R's
                    row = dict(zip(row, [*row.values(), *rest][1:], strict=False))
                table.add({short: row[name] for name, short in names.items() if short})
        gaps = table.drop_gaps()
        run = run_of_rows(path, table, columns)
        run.remarks += [f"NaN in {', '.join(gaps)} is read as an empty cell"] if gaps else []
        return run
    if re.match(r"\{\s*\n", head):
        with contextlib.suppress(ValueError):
            table.add(json.loads(path.read_text(encoding="utf-8")))
            return run_of_rows(path, table, columns)
        if re.search(r"\n\},?\s*\n\{\s*\n", head):  # one object after the other
            return read_state(path, table, columns)
    reader, line = Reader(columns), "\n"
    for start in paths:
        with opened(start) as file:
            for line in file:
                reader.take(line)
    return reader.run(path, columns, line.endswith("\n"))


def read_state(path: Path, table: Table, columns: dict[str, str]) -> LoggedRun:
    """Read a trainer_state.json or a dumped log_history; entries are flat objects, so a torn file can be read too."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        is_state = text[:1] == b"{"
        for match in re.finditer(rb"\{[^{}]*\}", text):
            row = json_object(match[0]) or printed_dict(match[0].decode(errors="replace")) or {}
            if row and ("step" in row or not is_state):
                table.add(row)
        config = {name.decode(): float(value) for name, value in TRL_STATE.findall(text)}
    need(table.rows, f"got {path} without an entry in log_history; expected one with a step; try the console output")
    if not config:
        return run_of_rows(path, table, columns)
    run = run_of(path, "trainer_state.json", "trl", table, columns)
    run.config, run.settings["steps"] = config, config.get("max_steps")
    return run
