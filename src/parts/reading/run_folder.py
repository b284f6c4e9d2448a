"""Load a run: its log, with the settings, samples, data and rewards that lie beside it or that flags name."""

import ast
import contextlib
import itertools
import json
import re
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.reading.dialects import NAMES
from parts.reading.log_reading import drop_padded, names_step
from parts.reading.logged_run import LoggedRun, names_correctness
from parts.reading.logs import Reader, read_log
from parts.reading.run_settings import add_settings, our_settings, script_of_output, verl_settings
from parts.reading.sample_files import TABLES, is_samples, rows_of_samples, samples_beside, trl_samples, verl_samples
from parts.reading.sample_texts import COMPLETIONS, gold_of, plain_text, sample_texts
from parts.rewards.extracts import extract

LOGS = ("metrics.jsonl", "trainer_state.json", "logging.jsonl")  # the last is ms-swift's
ENDINGS = (".jsonl", ".log", ".out", ".csv", ".tsv", ".txt", ".ipynb")
NO_LOG = re.compile(r"(requirements|readme|licen[cs]e|notice).*\.txt", re.IGNORECASE)
FURTHER = ("logs/*", "log/*", "wandb/*/files/*.log")  # where logs are, if the folder itself has none
# series that any kind of training may log; a log with others is one of RL
OTHER_TRAINING = {"loss", "lr", "grad_norm", "entropy", "memory", "gpu_memory", "time_step", "held_out"}
OF_TRIALS = re.compile(r"\b(trial|experiment|variant|sweep)", re.IGNORECASE)
PAIRS = re.compile(r"(?<!\S)(train/|eval_)?(rewards/)?(chosen|margins?)(?!\S)")  # of DPO, KTO, a reward model
ACCURACIES = {"part:acc", "part:accuracy", "part:train_acc", "part:train_accuracy"}  # without a score beside it


def log_of_folder(folder: Path) -> Path:
    """A log of a known name, the last checkpoint's state, or the only log in a folder or below; UserError otherwise."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda p: (len(p.parent.name), p))
    if known := [folder / name for name in LOGS if (folder / name).exists()] + states[-1:]:
        return known[0]
    others = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS and not NO_LOG.match(path.name))
    further = [path for form in FURTHER for path in folder.glob(form) if path.suffix in ENDINGS and path.is_file()]
    further = {path.resolve(): path for path in further}.values()  # wandb/latest-run is a link
    depths = ("*", "*/*", "*/*/checkpoint-*")
    below = [path.parent for name in LOGS for depth in depths for path in folder.glob(f"{depth}/{name}")]
    runs = sorted({x.parent if re.fullmatch(r"checkpoint-\d+", x.name) else x for x in below})
    logs = others if len(others) == 1 and not further and not runs else [*filter(is_log, others)]
    if len(runs) == 1 and (not logs or (len(logs) == 1 and is_console_of(logs[0], runs[0]))):
        return log_of_folder(runs[0])
    need(
        logs or not runs,
        f"got {folder}, which holds {len(runs)} runs; expected one; try diagnose.py {' '.join(map(str, runs[:3]))}",
    )
    anywhere = sorted(path for form in ("*.json", "*/*") for path in folder.glob(form))[:50]  # a self-written loop's
    anywhere = [path for path in anywhere if path.suffix in (".json", *ENDINGS)]
    for places, least in ((further, 0), (anywhere, 3)):
        logs = logs or sorted(path for path in places if is_log(path, least))
    names = ", ".join(str(path.relative_to(folder)) for path in (logs or others)[:5])
    need(
        len(logs) == 1,
        f"got {folder} with {names or 'no log'}; expected metrics.jsonl, trainer_state.json, "
        f"checkpoint-*/trainer_state.json or one {', '.join(ENDINGS)}; try the file, or what "
        "tensorboard or wandb exports as CSV",
    )
    return logs[0]


def is_console_of(path: Path, folder: Path) -> bool:
    """Whether a log beside a run's folder has the run's own figures, so that the folder, which knows more, is read."""
    with contextlib.suppress(UserError):
        console, run = (read_log([x], {}).values("score") for x in (path, log_of_folder(folder)))
        is_near = [abs(x - y) <= 1e-3 * max(1.0, abs(y)) for x, y in zip(console, run, strict=False)]
        return len(console) == len(run) > 0 and all(is_near)
    return False


def is_log(path: Path, least: int = 0) -> bool:
    """Whether a file is an RL log with `least` scores or more, not data or samples."""
    with contextlib.suppress(UserError):
        run = None if is_samples(path, ("completion",)) else read_log([path], {})
        return run is not None and has_rl(run) and len(run.values("score")) >= least
    return False


def has_rl(run: LoggedRun) -> bool:
    """Whether a log has metrics that only RL has, or values that are not finite."""
    of_pairs = PAIRS.search(" ".join(run.columns)) and "objective/scores" not in run.columns
    return not is_of_trials(run) and bool(
        run.bad or (run.steps() and not of_pairs and run.series.keys() - OTHER_TRAINING - ACCURACIES)
    )


def is_of_trials(run: LoggedRun) -> bool:
    """Whether each row is a trial of its own: the rows are numbered as such, and the learning rate goes up and down."""
    changes = [b - a for a, b in itertools.pairwise(run.values("lr"))]
    turns = sum(a * b < 0 for a, b in itertools.pairwise(changes))
    numbered = OF_TRIALS.search(" ".join(run.columns)) and not any(map(names_step, run.columns))
    return bool(numbered) and 4 * turns > len(changes)


def starts_of(path: Path) -> list[Path]:
    """The logs of all starts of a resumed verl run (metrics.jsonl, metrics.2.jsonl, …), without empty ones."""
    later = [other for other in path.parent.glob("metrics.*.jsonl") if other.suffixes[0][1:].isdecimal()]
    later = sorted(later, key=lambda other: int(other.suffixes[0][1:])) if path.name == "metrics.jsonl" else []
    return [start for start in (path, *later) if start.stat().st_size] or [path]


def json_beside(folder: Path, name: str, remarks: list[str] | None = None) -> dict:
    """The object in a JSON file of a run's folder; {} if there is no file, or it is unreadable, which adds a remark."""
    try:
        return dict(json.loads((folder / name).read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, TypeError, RecursionError):
        if remarks is not None and (folder / name).exists():
            remarks.append(f"{name} beside it could not be read")
        return {}


def add_own_settings(run: LoggedRun, path: Path) -> None:
    """Add the settings that the run's trainer wrote beside its log."""
    console = path.with_name("verl.log")
    if run.trainer == "verl" and not run.config and console.is_file():  # verl_train.py writes it beside verl's log
        reader = Reader({})
        for line in console.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            reader.take_config(line)
        run.config, run.settings = reader.config, run.settings | verl_settings(reader.config)
    if run.format != "metrics.jsonl":
        return
    is_page = run.trainer == "one_page" and path.with_name("settings.json").exists()
    run.config = json_beside(path.parent, "settings.json" if is_page else "config.json", run.remarks)
    run.config = {} if "model_type" in run.config else run.config  # of a model that was saved there
    if run.config:
        trainer, common = our_settings(run.config, is_page)
        run.trainer, run.settings = trainer or run.trainer, run.settings | common


def load_run(
    source: str,
    columns: dict[str, str] | None = None,
    settings: str = "",
    samples: str = "",
    data: str = "",
    reward: str = "",
    group_size: int = 0,
) -> LoggedRun:
    """Load a run from its log or folder, with its settings and samples.

    `settings`, `samples`, `data` and `reward` (FILE.py:function) name files that replace those beside the log.
    UserError if the log is not one of RL, or if a named file is missing or has other contents.
    """
    path, later = Path(source), []
    if path.is_dir():
        path, *later = starts_of(log_of_folder(path))
    run = read_log([path, *later], columns or {})
    if later:
        run.remarks.append(f"{1 + len(later)} starts, to {later[-1].name}: for repeated steps the last run counts")
    add_own_settings(run, path)
    folder = path.parent.parent if re.fullmatch(r"checkpoint-\d+", path.parent.name) else path.parent
    add_settings(run, folder if Path(source).is_dir() else None, settings)
    if group_size:
        run.settings["group_size"] = group_size
    if run.trainer == "verl":
        drop_padded(run)
    names = ", ".join(run.columns)
    scores = [name for name in run.columns if re.search("(?i)reward|return|score|^value$", name)]
    need(not is_of_trials(run), f"got {path}, a table of trials; expected one run; try the log of one of them")
    need(
        has_rl(run) or not is_samples(path, ("completion", "prompt")) or is_samples(path),
        f"got {path}, samples without scores; expected a score of each, and the log of the run beside them; try the "
        "samples with a column score",
    )
    need(
        has_rl(run),
        f"got {path} ({run.format}) with {names[:200] or 'no figures'} and none that only RL has: it may be a log of "
        f"another kind of training, such as SFT or DPO; expected names such as "
        f"{', '.join(list(NAMES[run.dialect])[:3])}; try diagnose.py --columns "
        f"reward={scores[0] if len(scores) == 1 else 'NAME'} where a column is the score",
    )
    for flag, file in (("data", data), ("reward", reward.rpartition(":")[0] or reward)):
        need(not file or Path(file).is_file(), f"got --{flag} {file}, which does not exist; expected a file")
    if run.trainer in ("trl", "verl") and not samples:
        run.samples = (trl_samples if run.trainer == "trl" else verl_samples)(folder, run)
    alone = Path(source).is_dir() or path.name in LOGS  # in a folder of its own
    run.samples = run.samples or samples_beside(path, run, alone, samples)
    add_texts(run, data, folder)
    need(
        run.texts or not samples,
        f"got --samples {samples} with {', '.join(map(str, [*(run.samples or [{}])[0]][:8]))}; expected prompt, "
        "completion and score; try other names for its columns",
    )
    add_reward_source(run, reward, folder, alone)
    return run


def add_texts(run: LoggedRun, data: str, folder: Path) -> None:
    """Fill `texts` and `golds` from the samples and data files: those named, else JSONL files beside the log."""
    rows = data_rows(data, folder) if data else data_rows(run.settings.get("data"), folder, run)
    others = data_rows(run.settings.get("eval_data"), folder, run)
    if run.samples and not rows:
        beside = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.jsonl"))]
        named = [path for path in beside if re.search("train|data|eval|test", path.stem)][:6]
        rows = [row for path in named if "train" in path.stem for row in data_rows(path, folder, run)]
        others = [row for path in named if "train" not in path.stem for row in data_rows(path, folder, run)]
    golds = [{prompt: gold for prompt, row in part if (gold := gold_of(row)) is not None} for part in (others, rows)]
    run.golds, run.settings["rows"] = golds[1], len({prompt for prompt, _ in rows})
    run.texts = sample_texts(run.samples, golds[0] | golds[1])
    sampled = {text.prompt for text in run.texts}
    run.rows = {prompt: row for prompt, row in [*others, *rows] if prompt in sampled}


def file_near(name: str, folder: Path) -> Path | None:
    """The file that settings name, at that path or in the run's folder or its parent; None if there is none."""
    paths = [Path(name), folder / name, folder / Path(name).name, folder.parent / Path(name).name] if name else []
    return next((path for path in paths if path.is_file()), None)


def data_rows(data, folder: Path, run: LoggedRun | None = None) -> list[tuple[str, dict]]:
    """(prompt, row) pairs of a data file; with `run`, an unreadable file adds a remark and yields none."""
    path = file_near(str(data or ""), folder)
    rows = rows_of_samples(path, run) if path and path.suffix in (".jsonl", ".json", *TABLES, ".parquet") else []
    return [(prompt, row) for row in rows if (prompt := plain_text(row.get("prompt")))]


def named_rewards(spec: str, run: LoggedRun) -> list[tuple[str, str]]:
    """(file, function) of the rewards that the flag or else the settings name; correctness rewards come first."""
    usual = run.settings.get("reward_name") or ("compute_score" if run.trainer == "verl" else "")  # verl's default
    named = spec or run.settings.get("reward") or []
    specs = [item for item in ([named] if isinstance(named, str) else named) if isinstance(item, str)]
    pairs = [(item, usual) if item.endswith(".py") else item.partition("*")[0].rpartition(":")[::2] for item in specs]
    return sorted(pairs, key=lambda pair: not names_correctness(pair[1]))


def add_reward_source(run: LoggedRun, spec: str, folder: Path, alone: bool) -> None:
    """Add the source of the correctness reward: from the flag, settings, a script beside the log or the run's own.

    In the parent folder, where other runs may have scripts, only functions count that the flag or settings name. If no
    name is known, the source is that of the only function in the run's own folder that takes completions.
    """
    rewards = named_rewards(spec, run)
    files = [(path, [name]) for file, name in rewards if (path := file_near(file, folder)) and path.suffix == ".py"]
    words = re.findall(r"\w+", str([name for _, name in rewards]))
    places = ((folder, [*words, *run.parts()]), (folder.parent, words))
    scripts = [(path, names) for place, names in places for path in sorted(place.glob("*.py"))[:20]]
    scripts += [(path, [*words, *run.parts()]) for path in [alone and script_of_output(folder)] if path]
    if alone and not words and (run.guessed or not run.parts()):
        takes, paths = {*COMPLETIONS, run.guessed.get("completion")}, sorted(folder.glob("*.py"))[:20]
        scripts = [(path, [x]) for path in paths for x in named_functions(path, [""], takes)[1]]
        scripts = scripts if len(scripts) == 1 else []
    for path, names in files or scripts:
        run.reward_name, run.reward_source = function_of(path, names)
        if run.reward_source:
            run.reward_file = path.name
            return


def named_functions(path: Path, names: list[str], takes: set[str] = COMPLETIONS) -> tuple[str, list[str]]:
    """(text, function names) of a file: those in `names`; for [""] those that take `takes` and serve no other."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (OSError, SyntaxError, ValueError):
        return "", []
    if names != [""]:
        return text, [node.name for node in functions if node.name in names]
    scorers = [node for node in functions if {argument.arg for argument in node.args.args} & takes]
    used = {n.id for node in scorers for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != node.name}
    return text, [node.name for node in scorers if node.name not in used]


def function_of(path: Path, names: list[str]) -> tuple[str, str]:
    """A file's correctness reward: its name, its source with all that it uses; "" if the file has none or several."""
    text, chosen = named_functions(path, names)
    if not chosen or (names == [""] and len(chosen) > 1):
        return "", ""  # any of several may be the reward
    name = min(chosen, key=lambda name: not names_correctness(name))
    return name, extract(text, [name])
