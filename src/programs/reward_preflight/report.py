"""The report."""

import json

from parts.foundation.messages import tell
from programs.reward_preflight.thresholds import KINDS


def aligned(lines: list[list]) -> str:
    """Lines of cells as a table; the last column is not padded."""
    shown = [["-" if c is None else f"{c:.4g}" if isinstance(c, float) else str(c) for c in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rows = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in shown]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def columns_of(lines: list[dict], heads: dict[str, str]) -> str:
    """A table of the lines' values under other names."""
    return aligned([list(heads.values()), *([line[key] for key in heads] for line in lines)]) + "\n"


PROBE_HEADS = {
    "name": "probe",
    "completions": "texts",
    "share": "share",
    "worst": "worst",
    "allowed": "allowed",
    "paying_rows": "rows paid",
    "status": "status",
    "what": "completion",
}
FUNCTION_HEADS = {
    "name": "function",
    "weight": "weight",
    "range": "range",
    "gold_mean": "gold mean",
    "none_rate": "none",
    **{kind: kind for kind in KINDS},
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}

POLICY_HEADS = {
    "name": "policy",
    "conversations": "talks",
    "mean": "return",
    "min": "min",
    "max": "max",
    "share": "share",
    "allowed": "allowed",
    "turns": "turns",
    "calls": "calls",
    "failures": "failed",
    "limit": "limit",
    "seconds": "seconds",
    "problems": "problems",
    "status": "status",
    "what": "says",
}


def print_report(report: dict) -> None:
    """The report of a preflight for people."""
    gold, groups = report["gold"], report["groups"]
    tell(f"reward   {', '.join(report['reward'])}")
    tell(f"data     {report['data']}, {report['rows']} rows, seed {report['seed']}")
    share = f"{gold['full_marks']:.1%} full marks ({gold['full_score']:g})"
    tell(f"profile  {report['profile']}")
    tell(f"gold     {share}, mean {gold['mean'] or 0:.4g}, none {gold['none']:.1%}, as {gold['variant']!r}\n")
    tell(columns_of(report["probes"], PROBE_HEADS))
    tell(columns_of(report["functions"], FUNCTION_HEADS))
    if groups["source"] == "formula":
        cells = "  ".join(f"{line['pass_rate']:g}: {line['zero_std']:.3f}" for line in groups["table"])
        tell(f"groups   of {groups['group_size']} without spread, by pass rate   {cells}")
    else:
        names = ("prompts", "mean", "std", "pass_rate", "zero_std_observed", "zero_std_forecast")
        cells = ", ".join(f"{name} {groups[name]:.4g}" for name in names if groups[name] is not None)
        tell(f"groups   {groups['samples']} samples, groups of {groups['group_size']}: {cells}")
    print_findings(report, "row {row}, score {score}: '{completion}'")


def print_environment_report(report: dict) -> None:
    """The report of a preflight of an environment, for people."""
    tell(f"environment  {report['environment']}")
    if report["reward"]:
        tell(f"reward       {', '.join(report['reward'])}")
    tell(f"data         {report['data']}, {report['rows']} rows, seed {report['seed']}")
    if gold := report["gold"]:
        tell(f"gold         {gold['full_marks']:.1%} full marks of {gold['rows']} rows, by {gold['variant']!r}")
    if "tool_format" in report:
        tell(f"tokenizer    its template goes on turn by turn; form of calls: {report['tool_format']}")
    tell()
    tell(columns_of(report["policies"], POLICY_HEADS))
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
    """One JSON object on stdout."""
    tell(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))
