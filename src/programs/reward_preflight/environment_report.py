"""The report of an environment."""

from parts.foundation.messages import tell
from programs.reward_preflight.report import columns_of

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
    for finding in report["findings"]:
        shown = f" | row {finding['row']}, policy {finding['policy']}" if "row" in finding else ""
        tell(f"{finding['severity']:<7}  {finding['check']}: {finding['message']}{shown} | try: {finding['try']}")
    for check, count in report["more_findings"].items():
        tell(f"         and {count} more of {check}")
    tell("verdict  ready" if report["ready"] else "verdict  not ready", f"in {report['seconds']:.1f} s")
