"""Reading the logs: ours, TRL's, verl's."""

import ast
import itertools
import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from parts.reading.logged_run import LoggedRun, UnreadableError
from parts.reading.metric_names import HELD_OUT, HELD_OUT_PARTS, NAMES, OURS, PARTS
from parts.reading.plain_logs import FIGURES, NAMED_COLUMNS, plain_rows, renamed
from parts.reading.run_settings import add_settings, our_settings, page_settings, printed_config, verl_settings
from parts.reading.sample_dumps import rows_of_samples, trl_samples, verl_samples
from parts.reading.sample_texts import COMPLETIONS, gold_of, plain_text, sample_texts
from parts.reading.trends import names_correctness
from parts.rewards.extracts import extract

# what of its settings TRL's trainer_state.json has
TRL_STATE = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps")


# series that training of any kind has, without one that only RL has
OTHER_TRAINING = {"loss", "lr", "grad_norm", "entropy", "memory", "gpu_memory", "time_step"}


def need_log(condition, message: str) -> None:
    """Raise UnreadableError unless the condition holds."""
    if not condition:
        raise UnreadableError(message)


def as_number(value) -> float | None:
    """A float from a JSON or console value; None where it is none. numpy's `np.float64(1.5)` is read too."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        value = re.sub(r"^np\.\w+\((.*)\)$", r"\1", value.strip())
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number."""
    number = as_number(value)
    return number is not None and math.isfinite(number)


def step_of(row: dict) -> int:
    """The step of a log entry; 0 where it says none."""
    return int(float(as_number(row.get("step")))) if is_finite(row.get("step")) else 0


def read_text(path: Path) -> str:
    """The text of a log; a binary or empty file is refused."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"got {path} ({error.strerror}); expected a log file or a run folder") from None
    need_log(data.strip(), f"got {path}, which is empty; expected a log with at least one step")
    text = data.decode("utf-8", errors="replace")
    odd = text.count("\0") + text.count("\ufffd")
    need_log(
        odd * 50 < len(text), f"got {path}, which is binary; expected text: metrics.jsonl, trainer_state.json, a log"
    )
    return text


def rows_of_json(text: str) -> tuple[list[dict], list[int], int]:
    """Objects of a JSONL text, numbers of the lines that hold none, and how many lines are not empty."""
    rows, bad, count = [], [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        count += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
    return rows, bad, count


def console_dicts(text: str) -> list[dict]:
    """The flat dicts that transformers' Trainer prints, {'loss': …}, wherever they stand in a line."""
    found = []
    for match in re.findall(r"\{'[^{}\n]*\}", text):
        try:
            row = ast.literal_eval(re.sub(r"(?<=: )(-?inf|nan)(?=[,}])", r"'\1'", match))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(row, dict) and ({*NAMES["trl"]} & {*row} or any(str(k).startswith("eval_") for k in row)):
            found.append(row)
    return found


def console_steps(text: str) -> list[dict]:
    """The lines of verl's console logger: step:N - key:value - key:value."""
    rows = []
    for step, line in re.findall(r"\bstep:(\d+) - (.+)", re.sub(r"\x1b\[[0-9;]*m", "", text)):
        pairs = [part.rpartition(":") for part in line.strip().split(" - ")]
        rows.append({"step": int(step), **{key: value for key, _, value in pairs if key}})
    return rows


def common_name(key: str, dialect: str) -> str | None:
    """The common name of a framework's metric; trackers call TRL's train/NAME and eval/NAME."""
    names = NAMES[dialect]
    key = re.sub("^eval/", "eval_", key.removeprefix("train/")) if dialect == "trl" else key
    if key in names:
        return names[key]
    if re.fullmatch(HELD_OUT[dialect], key):
        return "held_out"
    for prefix, pattern in (("part", PARTS[dialect]), ("held_out_part", HELD_OUT_PARTS[dialect])):
        if match := re.fullmatch(pattern, key):
            return f"{prefix}:{match[1]}"
    return None


def fill_series(run: LoggedRun, rows: list[dict], dialect: str) -> LoggedRun:
    """Put log rows into a run's series; a later value of a step wins, as a resumed run repeats steps."""
    run.rows, order = rows, [step_of(row) for row in rows if len(row) > 2]
    restarts = {after for before, after in itertools.pairwise(order) if 0 < after < before}
    run.settings["restarts"] = sorted(restarts)
    held_out: dict[int, list[float]] = {}
    places = {name: place for place, name in enumerate(NAMES[dialect])}
    keys = {key: common_name(str(key), dialect) for row in rows for key in row}
    ordered = sorted(keys, key=lambda key: places.get(str(key).removeprefix("train/"), len(places)))
    for row in rows:
        step, taken = step_of(row), set()
        for key in ordered:
            name, value = keys[key], as_number(row.get(key))
            if name is None or value is None or (name in taken and name != "held_out"):
                continue
            taken.add(name)
            if not math.isfinite(value):
                run.broken.append((str(key), step, value))
                continue
            run.names.setdefault(name, str(key))
            if name == "held_out" and dialect == "verl":  # one key per data source: their mean
                held_out.setdefault(step, []).append(value)
                value = statistics.fmean(held_out[step])
            run.series.setdefault(name, {})[step] = value
        held_out.pop(step, None)
    return run


def drop_padded(run: LoggedRun) -> LoggedRun:
    """Leave out verl's clip_ratio where the limit was not reached: its V1 trainer pads to the longest of the batch."""
    longest = run.series.get("length_max", {})
    limit = run.settings.get("max_length")
    if not limit and longest:  # a length that half the steps reach and none exceeds is taken for the limit
        top = max(longest.values())
        limit = top if sum(value == top for value in longest.values()) * 2 >= max(len(longest), 4) else math.inf
    for step, value in longest.items():
        if limit and value < limit and step in run.series.get("truncated", {}):
            run.series["truncated"][step] = 0.0
    return run


def numbered(rows: list[dict]) -> list[dict]:
    """Give rows without a step the count of training entries so far."""
    step = 0
    for row in rows:
        is_training = any(not (common_name(str(key), "trl") or "held_out").startswith("held_out") for key in row)
        given = step_of(row) or step_of({"step": row.get("train/global_step")})
        step = given or (step + 1 if is_training else step)
        row["step"] = step
    return rows


def parse(path: Path, text: str, columns: dict[str, str]) -> LoggedRun:
    """Read any of the formats, or what stands in the named columns."""
    (rows, bad, count), history, config = rows_of_json(text), [], {}
    try:
        state = json.loads(text) if text.lstrip()[:1] == "{" else {}
        history = [row for row in state.get("log_history") or [] if isinstance(row, dict)]
        config = {key: state[key] for key in TRL_STATE if state.get(key) is not None}
    except (ValueError, RecursionError, AttributeError, TypeError):
        pass
    if columns:
        return parse_columns(path, history or rows or console_steps(text) or plain_rows(text), columns)
    if history:
        return fill_series(LoggedRun(str(path), "trainer_state.json", "trl", config=config), numbered(history), "trl")
    if rows and len(rows) * 2 >= count:
        run = parse_rows(path, rows)
        if bad:
            torn = bad == [count] or (len(bad) == 1 and not text.endswith("\n"))
            flaw = "the last line is torn" if torn else f"{len(bad)} of {count} lines are no JSON"
            run.remarks.append(f"{flaw} (line {bad[0]}); left out")
        return run
    rows = console_steps(text)
    if rows:
        config = printed_config(text)
        run = LoggedRun(str(path), "verl console", "verl", settings=verl_settings(config), config=config)
        return drop_padded(fill_series(run, rows, "verl"))
    rows = console_dicts(text)
    if rows:
        run = LoggedRun(str(path), "TRL console", "trl")
        run.remarks.append("the console shows no steps: they are counted entries")
        return fill_series(run, numbered(rows), "trl")
    rows = plain_rows(text)
    need_log(
        rows,
        f"got {path}, in none of the formats; expected metrics.jsonl, trainer_state.json, TRL's or verl's console "
        "output, verl's file log, a CSV file, or lines of name=value; try the run's folder",
    )
    return parse_rows(path, rows)


def parse_columns(path: Path, rows: list[dict], columns: dict[str, str]) -> LoggedRun:
    """A run of rows whose figures have the names that --columns gives; findings name these."""
    rows = renamed([row | row["data"] if isinstance(row.get("data"), dict) else row for row in rows], columns, path)
    run = fill_series(LoggedRun(str(path), NAMED_COLUMNS, "trl"), numbered(rows), "trl")
    given = {FIGURES[figure]: column for figure, column in columns.items()}
    run.names = {name: given.get(key, key) for name, key in run.names.items()}
    return run


def parse_rows(path: Path, rows: list[dict]) -> LoggedRun:
    """A run from JSONL rows: verl's file logger, our metrics.jsonl, or TRL entries."""
    if all(isinstance(row.get("data"), dict) for row in rows):
        flat = [{**row["data"], "step": row.get("step")} for row in rows]
        return drop_padded(fill_series(LoggedRun(str(path), "verl file log", "verl"), flat, "verl"))
    keys = {key for row in rows for key in row}
    if keys & set(OURS):
        trainer = "grpo_train" if "time/step" in keys else "ppo_train"
        trainer = trainer if "optim/lr" in keys else "one_page"  # whose rates never change
        if "kl/teacher" in keys:  # a distillation's loss is a divergence, of which the remarks on PPO's do not hold
            rows = [
                {key: value for key, value in row.items() if key != "policy/loss" or not is_finite(value)}
                for row in rows
            ]
        if trainer == "one_page":
            rows = [without_policy(row) if is_critic_only(row) else row for row in rows]
        return fill_series(LoggedRun(str(path), "metrics.jsonl", trainer), rows, "ours")
    if len(keys & {*NAMES["verl"]}) >= max(1, len(keys & {*NAMES["trl"]})):
        return drop_padded(fill_series(LoggedRun(str(path), "verl log entries", "verl"), rows, "verl"))
    return fill_series(LoggedRun(str(path), "TRL log entries", "trl"), numbered(rows), "trl")


def is_critic_only(row: dict) -> bool:
    """Whether a page's step trained the critic only: the policy's gradient is 0 then."""
    return "value/loss" in row and row.get("optim/grad_norm") == 0


def without_policy(row: dict) -> dict:
    """A row without what it says of the policy's update."""
    return {k: v for k, v in row.items() if not k.startswith("policy/") and k not in ("kl/approx", "optim/grad_norm")}


def log_of_folder(folder: Path) -> Path:
    """The log inside a run's folder."""
    for name in ("metrics.jsonl", "trainer_state.json"):
        if (folder / name).exists():
            return folder / name
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda p: p.stat().st_mtime)
    others = sorted([*folder.glob("*.jsonl"), *folder.glob("*.log")])
    runs = sorted({p.parent for name in ("metrics.jsonl", "trainer_state.json") for p in folder.glob(f"*/{name}")})
    need_log(
        states or others or not runs,
        f"got {folder}, which holds {len(runs)} runs; expected one; try diagnose.py {' '.join(map(str, runs[:3]))}",
    )
    need_log(
        states or len(others) == 1,
        f"got {folder} with {', '.join(p.name for p in others[:5]) or 'no log'}; expected metrics.jsonl, "
        "trainer_state.json, checkpoint-*/trainer_state.json or one .jsonl or .log; try the file itself",
    )
    return states[-1] if states else others[0]


def starts_of(path: Path) -> list[Path]:
    """The logs of all starts of a run that verl resumed, metrics.jsonl, metrics.2.jsonl …; empty ones are left out."""
    if path.name != "metrics.jsonl":
        return [path]
    numbers = [re.fullmatch(r"metrics\.(\d+)\.jsonl", other.name) for other in path.parent.glob("metrics.*.jsonl")]
    found = sorted(int(number[1]) for number in numbers if number)
    starts = [path, *(path.with_name(f"metrics.{n}.jsonl") for n in found)]
    return [start for start in starts if start.stat().st_size] or [path]


def samples_beside(path: Path, run: LoggedRun) -> list[dict]:
    """The rows of samples.jsonl, read line by line, as it may be large; what cannot be read is remarked."""
    other, rows, bad, names = path.with_name("samples.jsonl"), [], [], {}
    if not other.is_file():
        return []
    with other.open("rb") as file:
        for number, line in enumerate(file, start=1):
            found, _, filled = rows_of_json(line.decode("utf-8", errors="replace").rstrip("\n"))
            rows += [{names.setdefault(key, key): value for key, value in row.items()} for row in found]
            bad += [number] if filled and not found else []
    if bad and rows:
        run.remarks.append(f"samples.jsonl beside it: {len(bad)} lines are no JSON (line {bad[0]}); left out")
    elif bad or not rows:
        run.remarks.append("samples.jsonl beside it could not be read")
    return rows


def beside(path: Path, name: str, run: LoggedRun) -> list[dict]:
    """The object of a file beside the log; what cannot be read is remarked."""
    other = path.with_name(name)
    if not other.exists():
        return []
    try:
        return [dict(json.loads(read_text(other)))]
    except (UnreadableError, ValueError, TypeError, RecursionError):
        run.remarks.append(f"{name} beside it could not be read")
        return []


def add_dumps(run: LoggedRun, path: Path) -> None:
    """Give a run of TRL or verl the settings and samples that lie beside its log."""
    folder, console = path.parent, path.with_name("verl.log")
    if run.trainer == "trl":
        folder = folder.parent if re.fullmatch(r"checkpoint-\d+", folder.name) else folder
        run.samples, remarks = trl_samples(folder, run.rows)
    else:
        if not run.config and console.is_file() and console != path:  # verl_train.py's, beside verl's file log
            run.config = printed_config(console.read_text(encoding="utf-8", errors="replace"))
            run.settings = verl_settings(run.config)
        run.samples, remarks = verl_samples(folder, run.config)
    run.samples = run.samples or samples_beside(path, run)
    run.remarks += remarks


@dataclass
class Extras:
    """What a user names beside a log: files of settings, samples, data and rewards, and the group size."""

    settings: str = ""
    samples: str = ""
    data: str = ""
    reward: str = ""
    group_size: int = 0


def load_run(source: str, columns: dict[str, str] | None = None, extras: Extras | None = None) -> LoggedRun:
    """Read a run from a file or folder, with its settings and samples.

    Args:
        source: the file or folder.
        columns: names in this log of figures of FIGURES.
        extras: what lies elsewhere.
    """
    path, later, extras = Path(source), [], extras or Extras()
    if path.is_dir():
        path, *later = starts_of(log_of_folder(path))
    run = parse(path, "\n".join(map(read_text, [path, *later])), columns or {})
    if later:
        run.remarks.append(f"{1 + len(later)} starts, to {later[-1].name}: steps run again count as run last")
    if run.format == "metrics.jsonl":
        run.samples = samples_beside(path, run)
        for config in beside(path, "config.json", run):
            trainer, run.settings = our_settings(config)
            run.trainer, run.config = trainer or run.trainer, config
        for given in beside(path, "settings.json", run) if run.trainer == "one_page" else []:
            run.settings, run.config = page_settings(given), given
    if run.trainer in ("trl", "verl"):
        add_dumps(run, path)
    folder = path.parent.parent if re.fullmatch(r"checkpoint-\d+", path.parent.name) else path.parent
    add_settings(run, folder if Path(source).is_dir() or extras.settings else Path(), extras.settings)
    if extras.group_size:
        run.settings["group_size"] = extras.group_size
    need_log(
        run.steps() or run.broken,
        f"got {path} ({run.format}) without a training metric that is known; expected a step of training, with "
        f"names such as {', '.join(list(NAMES[dialect_of(run)])[:3])}; it has {', '.join(names_in(run)[:12])}; try "
        "diagnose.py --columns reward=NAME",
    )
    need_log(
        run.broken or not OTHER_TRAINING.issuperset(run.series),
        f"got {path} with {', '.join(names_in(run)[:8])} and no score: a log of another kind of training, such as "
        "SFT; expected a run of RL; try diagnose.py --columns reward=NAME where a column is the score",
    )
    for flag, file in (("data", extras.data), ("reward", extras.reward.rpartition(":")[0] or extras.reward)):
        need_log(not file or Path(file).is_file(), f"got --{flag} {file}, which does not exist; expected a file")
    if extras.samples:
        run.samples = rows_of_samples(Path(extras.samples))
    add_texts(run, extras.data, folder)
    need_log(
        run.texts or not extras.samples,
        f"got --samples {extras.samples} with {', '.join(map(str, [*(run.samples or [{}])[0]][:8]))}; expected prompt, "
        "completion and score; try other names for its columns",
    )
    run.reward_source = source_of_reward(extras.reward, run, folder)
    return run


def names_in(run: LoggedRun) -> list[str]:
    """The names of all figures in a log."""
    return [*dict.fromkeys(str(key) for row in run.rows for key, value in row.items() if is_finite(value))]


def add_texts(run: LoggedRun, data: str, folder: Path) -> None:
    """Give a run its samples as causes read them, with gold answers of its data and of data files beside the log."""
    rows = data_rows(data or str(run.settings.get("data") or ""), folder)
    others = data_rows(str(run.settings.get("eval_data") or ""), folder)
    if run.samples and not rows:
        beside = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.jsonl"))]
        named = [path for path in beside if re.search("train|data|eval|test", path.stem)][:6]
        rows = [row for path in named if "train" in path.stem for row in data_rows(str(path), folder)]
        others = [row for path in named if "train" not in path.stem for row in data_rows(str(path), folder)]
    golds = [{prompt: gold for prompt, row in part if (gold := gold_of(row)) is not None} for part in (others, rows)]
    run.golds, run.settings["rows"] = golds[1], len({prompt for prompt, _ in rows})
    run.texts = sample_texts(run.samples, golds[0] | golds[1])


def data_rows(data: str, folder: Path) -> list[tuple[str, dict]]:
    """(prompt, row) of a data file; none where it cannot be read."""
    paths = [Path(data), folder / data, folder / Path(data).name, folder.parent / Path(data).name] if data else []
    path = next((path for path in paths if path.is_file()), None)
    rows = rows_of_samples(path) if path and path.suffix in (".jsonl", ".json", ".csv", ".parquet") else []
    return [(prompt, row) for row in rows if (prompt := plain_text(row.get("prompt")))]


def source_of_reward(spec: str, run: LoggedRun, folder: Path) -> str:
    """The code of the reward for correctness: of files that settings name, or of scripts beside the log."""
    named = run.settings.get("reward") or []
    specs = [spec] if spec else [named] if isinstance(named, str) else [item for item in named if isinstance(item, str)]
    pairs = [item.partition("*")[0].rpartition(":")[::2] for item in specs]
    pairs.sort(key=lambda pair: not names_correctness(pair[1]))
    for file, name in pairs:
        for path in (Path(file), folder / Path(file).name, folder.parent / Path(file).name):
            if path.suffix == ".py" and path.is_file():
                return function_of(path, name)
    scripts = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.py"))[:20]]
    words = " ".join(specs)
    return next(filter(None, (function_of(path, words) for path in scripts)), "")


def function_of(path: Path, words: str) -> str:
    """The code of a file's reward for correctness, named in some words or found by what it takes, and what it uses."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        named = [node.name for node in nodes if node.name in re.findall(r"\w+", words)]
        takes = [node.name for node in nodes if {argument.arg for argument in node.args.args} & COMPLETIONS]
        tree = ast.walk(ast.parse(text))
        called = {ast.unparse(node.func) for node in tree if isinstance(node, ast.Call)}
        chosen = named or [name for name in takes if name not in called]
        chosen.sort(key=lambda name: not names_correctness(name))
        return extract(text, chosen[:1]) if chosen else ""
    except (OSError, SyntaxError, ValueError, KeyError):
        return ""


def dialect_of(run: LoggedRun) -> str:
    """Whose metric names a run's log has."""
    return run.trainer if run.trainer in ("trl", "verl") else "ours"
