"""Printed reports and --list."""

import inspect
import json

from parts.foundation.messages import tell
from parts.rewards.reward_forms import is_preset, library_rewards
from programs.reward_preflight.reward_process import declared_range
from programs.reward_preflight.scoring import KINDS

TABLES = {  # {table of a report: its columns}
    "probes": ("name", "completions", "share", "worst", "allowed", "paying_rows", "status", "what"),
    "functions": ("name", "weight", "range", "gold_mean", "none_rate", *KINDS, "p50_ms", "p99_ms"),
}


def aligned(lines: list[list]) -> str:
    """Lines of cells as a text table without trailing blanks; None is shown as -."""
    shown = [["-" if c is None else f"{c:.4g}" if isinstance(c, float) else str(c) for c in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rows = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in shown]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def print_report(report: dict) -> None:
    """Print what was checked, the tables, the findings and the verdict."""
    gold = report["gold"]
    tell(f"reward   {', '.join(report['reward'])}")
    tell(f"data     {report['data']}, {report['rows']} rows, seed {report['seed']}")
    tell(f"profile  {report['profile']}")
    marks = f"{gold['full_marks']:.1%} full marks ({gold['full_score']:g})"
    tell(f"gold     {marks}, mean {gold['mean']:.4g}, none {gold['none']:.1%}, as {gold['variant']!r}")
    for name, columns in TABLES.items():
        heads = [column.replace("_", " ") for column in columns]
        tell(f"\n{aligned([heads, *([line[column] for column in columns] for line in report[name])])}")
    for x in report["findings"]:
        shown = f" | row {x['row']}, score {x['score']}: '{x['completion']}'" if "row" in x else ""
        tell(f"{x['severity']:<7}  {x['check']}: {x['message']}{shown} | try: {x['try']}")
    for check, count in report["more_findings"].items():
        tell(f"         and {count} more of {check}")
    tell("verdict  ready" if report["ready"] else "verdict  not ready", f"in {report['seconds']:.1f} s")


def print_json(value) -> None:
    tell(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def list_library(args) -> int:
    """--list: print functions with range and summary, and presets with their parts; aliases are left out."""
    members, functions, presets = library_rewards(args.list), [], []
    first = {id(member): name for name, member in reversed(members.items())}
    for name, member in members.items():
        if is_preset(member):
            parts = {f.__name__: weight for f, weight in zip(member, member.weights, strict=True)}
            presets.append({"name": name, "parts": parts})
        elif first[id(member)] == name:
            summary = (inspect.getdoc(member) or "").partition("\n")[0]
            functions.append({"name": name, "range": declared_range(member), "summary": summary})
    if args.json:
        print_json({"functions": functions, "presets": presets})
        return 0
    lines = [list(line.values()) for line in functions]
    lines += [[p["name"], "preset", " + ".join(f"{w:g} {n}" for n, w in p["parts"].items())] for p in presets]
    tell(aligned(lines) if lines else "no reward functions")
    return 0
