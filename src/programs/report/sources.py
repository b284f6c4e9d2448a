"""What the command line names: runs and evaluations, read, and what of them cannot be."""

from dataclasses import dataclass, field
from pathlib import Path

from parts.foundation.messages import UserError
from parts.reading.causes.ranking import diagnose
from parts.reading.evaluation_results import read_report
from parts.reading.logged_run import LoggedRun
from parts.reading.run_folder import load_run
from parts.reading.sample_files import json_lines

LOGS = ("*.json", "*.jsonl", "*.log", "checkpoint-*/trainer_state.json")  # of a folder that is watched


@dataclass
class Source:
    """A run with its verdict, or an evaluation."""

    name: str
    folder: Path
    run: LoggedRun | None = None
    verdict: dict = field(default_factory=dict)
    report: dict | None = None  # results.json
    samples: list[dict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def is_evaluation(path: Path) -> bool:
    """Whether a path names what evaluation.py wrote."""
    if path.is_dir():
        return (path / "results.json").is_file() and not (path / "metrics.jsonl").is_file()
    return path.name == "results.json"


def read_source(path: Path, name: str) -> Source:
    """Read a run or an evaluation.

    Raises:
        UserError: it is neither.
    """
    folder = path if path.is_dir() else path.parent
    if not is_evaluation(path):
        run = load_run(str(path))
        return Source(name, folder, run, diagnose(run), samples=run.samples, remarks=run.remarks)
    source = Source(name, folder, report=read_report(str(path)))
    try:
        source.samples, bad = json_lines(folder / "samples.jsonl")
        source.remarks += [f"samples.jsonl: {len(bad)} lines are no JSON; left out"] if bad else []
    except OSError:
        source.remarks.append("it has no samples.jsonl that can be read")
    return source


def short_names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    whole = [(path if path.is_dir() else path.parent / path.stem).resolve().parts for path in paths]
    whole = [parts[:-1] if len(parts) > 2 and parts[-1] in ("metrics", "results") else parts for parts in whole]
    for count in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-count:]) for parts in whole]
        if len({*names}) == len({*whole}):
            break
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, start=1)]


def read_sources(paths: list[Path]) -> tuple[list[Source], list[dict]]:
    """What can be read, and {"name", "error"} of what cannot."""
    found, failed = [], []
    for path, name in zip(paths, short_names(paths), strict=True):
        try:
            found.append(read_source(path, name))
        except UserError as error:
            failed.append({"name": name, "error": str(error)})
    return found, failed


def last_changes(paths: list[Path]) -> list[tuple]:
    """Size and time of every log file, which tell whether there is something new."""
    files = []
    for path in paths:
        files += [file for pattern in LOGS for file in path.glob(pattern)] if path.is_dir() else [path]
    states = [file.stat() for file in files if file.is_file()]
    return [(state.st_size, state.st_mtime_ns) for state in states]
