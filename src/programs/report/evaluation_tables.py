"""Tables of evaluations, and the paired tests against the first."""

from parts.foundation.messages import UserError
from parts.reading.evaluation_results import compare_reports
from programs.report.sources import Source

DRAWS = 2000  # of the bootstrap, evaluation.py's default


def interval_text(metric: dict) -> str:
    """A metric's 95 % interval as text."""
    return "" if metric.get("ci95") is None else "{:.4g} to {:.4g}".format(*metric["ci95"])


def metric_row(task: str, name: str, metric: dict) -> dict:
    """A line of the table."""
    value = metric.get("value")
    count, of = metric.get("n"), metric.get("of")
    row = {"task": task, "metric": name, "value": "not applicable" if value is None else f"{value:.4g}"}
    return row | {"interval": interval_text(metric), "rows": str(count) if count == of else f"{count} of {of}"}


def evaluation_tables(sources: list[Source]) -> list[dict]:
    """Of each evaluation its table, and from the second on the paired tests against the first."""
    tables = []
    for source in sources:
        tasks = source.report["tasks"]
        rows = [metric_row(t, name, m) for t, result in tasks.items() for name, m in result["metrics"].items()]
        table = {"name": source.name, "rows": rows, "tests": [], "problem": "", "remarks": source.remarks}
        table["model"] = str((source.report.get("model") or {}).get("name", ""))
        table["definitions"] = {t: str(result.get("definition", "")) for t, result in tasks.items()}
        if source is not sources[0]:
            try:
                found = compare_reports(sources[0].report, source.report, DRAWS, 0)
                table["tests"] = [metric["verdict"] for metrics in found.values() for metric in metrics.values()]
            except UserError as error:
                table["problem"] = str(error)
        tables.append(table)
    return tables
