"""The command line's runs and evaluations, read, and those that cannot be."""

from dataclasses import dataclass, field
from pathlib import Path

from parts.evaluating.evaluation_results import compare_reports, read_report
from parts.foundation.messages import UserError
from parts.reading.causes.ranking import diagnose
from parts.reading.logged_run import LoggedRun
from parts.reading.run_folder import load_run
from parts.reading.sample_files import json_lines

DRAWS = 2000  # of the bootstrap, evaluation.py's default


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


def read_source(path: Path, name: str) -> Source:
    """Read a run or an evaluation.

    Raises:
        UserError: it is neither.
    """
    folder = path if path.is_dir() else path.parent
    of_evaluation = (folder / "results.json").is_file() and not (folder / "metrics.jsonl").is_file()
    if not (of_evaluation if path.is_dir() else path.name == "results.json"):
        run = load_run(str(path))
        return Source(name, folder, run, diagnose(run), samples=run.samples, remarks=run.remarks)
    source = Source(name, folder, report=read_report(str(path)))
    try:
        source.samples, bad = json_lines(folder / "samples.jsonl")
        source.remarks += [f"samples.jsonl: {len(bad)} lines are not JSON; left out"] if bad else []
    except OSError:
        source.remarks.append("it has no samples.jsonl that can be read")
    return source


def read_sources(paths: list[Path]) -> tuple[list[Source], list[dict]]:
    """What can be read, and {"name", "error"} of what cannot."""
    usual = ("metrics.jsonl", "results.json")  # whose folder says more
    sources, failed, names = [], [], [(x.parent if x.name in usual else x).resolve().name for x in paths]
    if len({*names}) < len(names):
        names = [*map(str, paths)]
    for path, name in zip(paths, names, strict=True):
        try:
            sources.append(read_source(path, name))
        except UserError as error:
            failed.append({"name": name, "error": str(error)})
    return sources, failed


def metric_row(task: str, name: str, metric: dict) -> dict:
    """A line of an evaluation's table."""
    value, count, of, ends = (metric.get(key) for key in ("value", "n", "of", "ci95"))
    return {
        "task": task,
        "metric": name,
        "value": "not applicable" if value is None else f"{value:.4g}",
        "interval": "" if ends is None else "{:.4g} to {:.4g}".format(*ends),
        "rows": str(count) if count == of else f"{count} of {of}",
    }


def evaluation_tables(sources: list[Source]) -> list[dict]:
    """Of each evaluation its table, and from the second on the paired tests against the first."""
    tables = []
    for source in sources:
        tasks = source.report["tasks"]
        rows = [metric_row(t, name, m) for t, result in tasks.items() for name, m in result["metrics"].items()]
        table = {"name": source.name, "rows": rows, "tests": [], "problem": "", "remarks": source.remarks}
        table["model"] = str((source.report.get("model") or {}).get("name", ""))
        if source is not sources[0]:
            try:
                results = compare_reports(sources[0].report, source.report, DRAWS, 0)
                table["tests"] = [metric["verdict"] for metrics in results.values() for metric in metrics.values()]
            except UserError as error:
                table["problem"] = str(error)
        tables.append(table)
    return tables
