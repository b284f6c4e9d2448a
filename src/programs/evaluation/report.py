"""Tables on the screen and in HTML."""

import html
import json

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


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Evaluation</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{border-bottom:1px solid #ddd;padding:.3rem .6rem;
text-align:left;vertical-align:top}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font-size:13px}
</style>"""


def html_table(head: list[str], lines: list[list]) -> str:
    """A table of HTML; every cell is escaped."""
    row = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    rows = "".join("<tr>" + "".join(f"<td><pre>{html.escape(str(c))}</pre></td>" for c in x) + "</tr>" for x in lines)
    return f"<table><tr>{row}</tr>{rows}</table>"


def html_report(report: dict, samples: list[dict], count: int) -> str:
    """One page with metrics, settings and the first samples of each task; nothing a model wrote becomes markup."""
    parts = [PAGE, f"<h1>{html.escape(str(report['model']['name']))}</h1>", html_table(TABLE_HEAD, table_cells(report))]
    for task, result in report["tasks"].items():
        parts.append(f"<h2>{html.escape(task)}</h2><p>{html.escape(result['definition'])}</p>")
        lines = []
        for sample in [s for s in samples if s["task"] == task][:count]:
            prompt = sample["prompt"]
            prompt = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
            metrics = ", ".join(f"{k} {v:.4g}" for k, v in sample["metrics"].items() if v is not None)
            said = "\n".join(p["text"] for p in sample["pieces"]) if "pieces" in sample else sample["completion"] or ""
            lines.append([prompt, said, sample["extracted"] or "", metrics, sample["reason"]])
        parts.append(html_table(["prompt", "completion", "extracted", "verdict", "reason"], lines))
    kept = {key: report[key] for key in ("settings", "versions", "model", "seconds")}
    return "".join(parts) + f"<h2>Settings</h2><pre>{html.escape(json.dumps(kept, indent=1))}</pre></html>"
