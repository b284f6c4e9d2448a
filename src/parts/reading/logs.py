"""Reading a log file of any form in one pass: JSON lines, CSV, consoles, lines of name=value, notebooks."""

import csv
import io
import json
import mmap
import re
from collections import Counter
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.reading.dialects import NAMES
from parts.reading.log_reading import (
    EVALUATION,
    MOST_STEPS,
    Table,
    common_name,
    names_step,
    number_of,
    run_of,
    run_of_rows,
    short_name,
)
from parts.reading.logged_run import LoggedRun
from parts.reading.own_names import KIND, meanings, own_columns, words_of
from parts.reading.run_settings import printed_config, verl_settings
from parts.reading.sample_files import json_object

TRL_STATE = re.compile(rb'"(max_steps|num_train_epochs|train_batch_size|logging_steps|eval_steps)": ([\d.]+)')
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
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
WORDED = re.compile(r"(?<![\w=:.])([A-Za-z_][\w/@]*):? +(?=[-+]?(?:\d|\.\d|nan\b|inf\b))")  # step 3: loss 0.5, reward 1
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
VERL_LINE = re.compile(r"\bstep:(\d+) - (.+)")
DICT = re.compile(r"\{'[^{}\n]*\}")


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
        self.cut = ""  # the beginning of a printed dict that the terminal wrapped
        self.epoch, self.named = {}, False  # {"epoch": …} of the last line with one; whether figures name their step
        self.heading, self.sections = {}, ()  # {"step": …} of the last heading; enclosing YAML sections (indent, name)

    def take(self, line: str) -> None:
        self.number += 1
        line = COLOUR.sub("", line) if "\x1b" in line else line
        start = line.lstrip()
        if not start:
            return
        self.lines += 1
        row = json_object(line) if start[0] == "{" else None
        text = row.get("log", row.get("message", row.get("msg"))) if row else None  # of Docker or a cloud's logger
        if isinstance(text, str) and not any(self.json.is_figure(*cell) for cell in row.items()):
            row, line = None, COLOUR.sub("", text)
        if row is not None:
            return self.json.add(row)
        self.bad += 1
        self.first_bad = self.first_bad or self.number
        self.take_config(line)
        if ("Err" in line or "Exc" in line or "Interrupt" in line) and (match := ERROR.match(line)):
            self.error = match[1].strip()[:200]
        if "step:" in line and (match := VERL_LINE.search(line)):
            pairs = [part.rpartition(":") for part in unwrapped(match[2]).strip().split(" - ")]
            return self.console.add({"step": match[1], **{key: value for key, _, value in pairs if key}})
        torn = "{'" in line and line.rfind("{") > line.rfind("}") and CUT.search(line)
        if self.cut or torn:
            self.cut += line.rstrip()
            if "}" not in line and len(self.cut) < 4000:
                return
            line, self.cut = self.cut, ""
        line = unwrapped(line)
        for match in DICT.finditer(line) if "{'" in line else ():
            self.take_dict(match[0], HEADING.findall(line[: match.start()]))
        if not self.console.rows:
            self.take_pairs(line)

    def take_dict(self, text: str, headings: list[str]) -> None:
        """Add a flat dict that transformers' Trainer printed, such as {'loss': …}; the last heading is its step."""
        row = printed_dict(text)
        if row is None:
            self.unread += "'loss': " in text or "'reward': " in text
        elif not NAMES["trl"].keys().isdisjoint(row) or any(key.startswith("eval_") for key in row):
            if row != self.last:  # other ranks print the same dict
                self.console.add({"step": headings[-1]} | row if headings else row)
            self.last = row

    def take_pairs(self, line: str) -> None:
        """Add the pairs name=value of a line, under the last heading and epoch; its figures end a heading."""
        boxed = "│" in line
        if ":" in line:
            line = SPACED.sub(lambda name: f"{re.sub('[. ]+', '_', name[1].lower())}:", line)
        if boxed or line.count(" | ") > 1:
            line = CELL_PAIR.sub("=", line)
        if section := SECTION.fullmatch(line.rstrip()):
            indent, title, value = section.groups()
            outer = tuple(outer for outer in self.sections if len(outer[0]) < len(indent))
            line = "/".join([*(name for _, name in outer), f"{title}: {value}"])
            self.sections = outer if value else (*outer, (indent, title))
        pairs = pairs_of(line) if "=" in line or ":" in line else {}
        heading = None if pairs else HEADING.search(line)
        if heading and WORDED.match(line[heading.end() :].lstrip(" :|,/()[]0123456789")):
            words = pairs_of(WORDED.sub(r"\1=", line))
            pairs = words if sum(bool(common_name(name, "trl")) for name in words) > 1 else {}
        several = len(pairs) > 1 and not boxed and any(common_name(name, "trl") for name in pairs)
        self.named = self.named or (several and any(names_step(name) and "/" not in name for name in pairs))
        headings = HEADING.findall(line)
        if headings and (several or not self.named):  # "Step 1:" may be of a completion
            self.heading = {"step": headings[-1]}
        elif several:
            self.heading = {}
        if epoch := EPOCH.search(line):
            self.epoch = {"epoch": epoch[1]}
        if len(self.heading | pairs) > 1:
            self.plain.add(self.epoch | self.heading | pairs)

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
    """A flat dict as Python prints it; None if the text is not one."""
    quoted = text.replace("'", '"')
    return json_object(quoted) or json_object(ODD.sub(r'"\1"', quoted))


def unwrapped(line: str) -> str:
    """A line with the bare numbers of np.float64(0.1), tensor(0.1, …) and array(0.1, …)."""
    return WRAPPED.sub(r"\1", line) if "np." in line or "tensor(" in line or "rray(" in line else line


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


def json_objects(text: str) -> list[dict]:
    """The objects of a text that consists of these, whose last one may be torn; [] for other texts."""
    rows, end = [], 0
    while start := re.compile(r"[\s,]*(?=\{\s*\n)").match(text, end):
        try:
            row, end = json.JSONDecoder().raw_decode(text, start.end())
        except ValueError:
            return [] if "\n}" in text[start.end() :] else rows
        rows.append(row)
    return [] if text[end:].strip() else rows


def read_log(paths: list[Path], columns: dict[str, str]) -> LoggedRun:
    """Read a log as read_named does; if its score or step has no known name, columns count by the words of theirs."""
    run = read_named(paths, columns)
    fits = own_columns(run)
    guessed = {figure: names[0] for figure, names in fits.items() if len(names) == 1}
    if guessed.keys() & {"reward", "step"}:
        run = read_named(paths, guessed | columns)
        run.guessed, run.trainer = guessed, "other" if "reward" in guessed else run.trainer
        run.remarks.append(f"{meanings(guessed)}; if one is wrong, try --columns FIGURE=NAME")
        is_share = "right" in map(KIND.get, words_of(guessed.get("accuracy", "")))
        if is_share and 1.5 < max(run.values("held_out"), default=0) <= 100:
            run.series["held_out"] = {step: value / 100 for step, value in run.points("held_out")}
            run.remarks[-1] += f"; {guessed['accuracy']} exceeds 1, so it was read as per cent"
    for figure, names in fits.items():
        text = f"{' and '.join(names)} fit {figure} equally, so none was read; try --columns {figure}={names[0]}"
        run.remarks += [text] if len(names) > 1 else []
    return run


def read_named(paths: list[Path], columns: dict[str, str]) -> LoggedRun:
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
            reader = csv.DictReader(lines, delimiter=separator.replace("  ", "\t"))
            names = {name: short_name(name) for name in reader.fieldnames if not BAND.search(name)}
            if "-tag-" in path.stem and {*names} == {"Wall time", "Step", "Value"}:  # of tensorboard
                names["Value"] = path.stem.rpartition("-tag-")[2].replace("train_", "train/", 1)
            twice = [name for name, count in Counter(names.values()).items() if name and count > 1]
            need(not twice, f"got {path} with several columns {twice[:1]}; expected one run; try an export of one run")
            for row in reader:
                rest = row.pop(None, [""])
                if not table.rows:  # an index that has no name, as of pandas
                    shift = len(rest) == 1 and number_of(rest[0]) is not None
                if shift:
                    row = dict(zip(row, [*row.values(), *rest][1:], strict=False))
                table.add({short: row[name] for name, short in names.items() if short})
        gaps = table.drop_gaps()
        run = run_of_rows(path, table, columns)
        run.remarks += [f"NaN in {', '.join(gaps)} is read as an empty cell"] if gaps else []
        return run
    if re.match(r"\{\s*\n", head):
        with opened(path) as file:
            for row in json_objects(file.read()):
                table.add(row)
        if table.rows:
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
