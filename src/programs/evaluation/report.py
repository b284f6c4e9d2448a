"""The table on the screen."""

from parts.foundation.messages import tell


def in_short(metric: dict) -> list[str]:
    """Cells of a metric: value, interval, rows."""
    if metric["value"] is None:
        return ["not applicable", "", "", f"0 of {metric['of']}"]
    low_high = "" if metric["ci95"] is None else "[{:.4g}, {:.4g}]".format(*metric["ci95"])
    error = "" if metric["stderr"] is None else f"{metric['stderr']:.2g}"
    count = str(metric["n"]) if metric["n"] == metric["of"] else f"{metric['n']} of {metric['of']}"
    return [f"{metric['value']:.4g}", error, low_high, count]


TABLE_HEAD = ["task", "metric", "value", "stderr", "95 % interval", "rows"]


def table_cells(report: dict) -> list[list[str]]:
    """The metrics of all tasks as cells."""
    return [
        [task, name, *in_short(metric)]
        for task, result in report["tasks"].items()
        for name, metric in result["metrics"].items()
    ]


def print_metrics(report: dict) -> None:
    """Print the metrics of a run."""
    lines = [TABLE_HEAD, *table_cells(report)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(TABLE_HEAD))]
    tell(f"{report['model']['name']} ({report['model']['hash']})")
    for line in lines:
        tell("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for note in report["model"]["notes"]:
        tell(f"  note: {note}")
    for task, result in report["tasks"].items():
        if result["prompts_cut"]:
            tell(f"  note: {task}: {result['prompts_cut']} of {result['rows']} prompts were cut to fit the context")
        if result.get("rows_left_out"):
            tell(f"  note: {task}: {result['rows_left_out']} rows were left out, as their prompts are too long")
