"""What is printed: reports, --list and --score."""

import inspect
import json

from parts.foundation.messages import tell
from parts.rewards.reward_forms import is_preset, library_rewards
from programs.reward_preflight.reward_process import declared_range
from programs.reward_preflight.scoring import KINDS

PROBE_COLUMNS = ("name", "completions", "share", "worst", "allowed", "paying_rows", "status", "what")
FUNCTION_COLUMNS = ("name", "weight", "range", "gold_mean", "none_rate", *KINDS, "p50_ms", "p99_ms")
POLICY_COLUMNS = (
    *("name", "conversations", "mean", "min", "max", "share", "allowed", "turns", "calls", "failures", "limit"),
    *("seconds", "problems", "status", "what"),
)


def aligned(lines: list[list]) -> str:
    """Lines of cells as a table; the last column is not padded."""
    shown = [["-" if c is None else f"{c:.4g}" if isinstance(c, float) else str(c) for c in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rows = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in shown]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def columns_of(lines: list[dict], names: tuple[str, ...]) -> str:
    heads = [name.replace("_", " ") for name in names]
    return aligned([heads, *([line[name] for name in names] for line in lines)]) + "\n"


def print_report(report: dict) -> None:
    gold = report["gold"]
    share = f"{gold['full_marks']:.1%} full marks ({gold['full_score']:g})"
    tell(f"reward   {', '.join(report['reward'])}")
    tell(f"data     {report['data']}, {report['rows']} rows, seed {report['seed']}")
    tell(f"profile  {report['profile']}")
    tell(f"gold     {share}, mean {gold['mean']:.4g}, none {gold['none']:.1%}, as {gold['variant']!r}\n")
    tell(columns_of(report["probes"], PROBE_COLUMNS))
    tell(columns_of(report["functions"], FUNCTION_COLUMNS))
    print_findings(report, "row {row}, score {score}: '{completion}'")


def print_environment_report(report: dict) -> None:
    tell(f"environment  {report['environment']}")
    if report["reward"]:
        tell(f"reward       {', '.join(report['reward'])}")
    tell(f"data         {report['data']}, {report['rows']} rows, seed {report['seed']}")
    if gold := report["gold"]:
        tell(f"gold         {gold['full_marks']:.1%} full marks of {gold['rows']} rows, by {gold['variant']!r}")
    tell("\n" + columns_of(report["policies"], POLICY_COLUMNS))
    print_findings(report, "row {row}, policy {policy}")


def print_findings(report: dict, evidence: str) -> None:
    """Findings and verdict; `evidence` is the form in which a finding's row is shown."""
    for finding in report["findings"]:
        shown = f" | {evidence.format(**finding)}" if "row" in finding else ""
        tell(f"{finding['severity']:<7}  {finding['check']}: {finding['message']}{shown} | try: {finding['try']}")
    for check, count in report["more_findings"].items():
        tell(f"         and {count} more of {check}")
    tell("verdict  ready" if report["ready"] else "verdict  not ready", f"in {report['seconds']:.1f} s")


def print_json(value) -> None:
    tell(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def list_library(args) -> int:
    """--list: functions with range and first line, presets with their parts; aliases are left out."""
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
