"""What is printed: reports, --list and --score."""

import inspect
import json
import statistics

from parts.foundation.messages import need, tell
from parts.rewards.reward_forms import is_preset, library_rewards
from programs.reward_preflight.reward_process import declared_range, reward_process
from programs.reward_preflight.rows_and_gold import load_rows, text_of
from programs.reward_preflight.scoring import KINDS, Grader, excerpt

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
    gold, groups = report["gold"], report["groups"]
    share = f"{gold['full_marks']:.1%} full marks ({gold['full_score']:g})"
    tell(f"reward   {', '.join(report['reward'])}")
    tell(f"data     {report['data']}, {report['rows']} rows, seed {report['seed']}")
    tell(f"profile  {report['profile']}")
    tell(f"gold     {share}, mean {gold['mean']:.4g}, none {gold['none']:.1%}, as {gold['variant']!r}\n")
    tell(columns_of(report["probes"], PROBE_COLUMNS))
    tell(columns_of(report["functions"], FUNCTION_COLUMNS))
    cells = "  ".join(f"{line['pass_rate']:g}: {line['zero_std']:.3f}" for line in groups["table"])
    tell(f"groups   of {groups['group_size']} without spread, by pass rate   {cells}")
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


def score_file(args) -> int:
    """--score: the score of every row's own completion."""
    pairs, name = [], args.completion_column
    for row in load_rows(args, args.limit):
        text = text_of(row["columns"].pop(name, None))
        where = f"{args.data}, row {row['number']}"
        need(text is not None, f"{where}: got no text in {name!r}; expected a completion; try --completion_column NAME")
        pairs.append((row, text))
    with reward_process(args, [row for row, _ in pairs]) as process:
        grader = Grader(process)
        results = grader.grade(pairs)
    lines = [{"row": g.row["number"], "score": grader.total(g), "parts": g.parts} for g in results]
    for line, graded in zip(lines, results, strict=True):
        line |= {"problems": graded.problems, "completion": excerpt(graded.text)}
    totals = [line["score"] for line in lines if line["score"] is not None]
    mean = statistics.fmean(totals) if totals else None
    if args.json:
        print_json({"reward": args.reward, "data": args.data, "mean": mean, "rows": lines})
    else:
        names = list(grader.weights) if len(grader.weights) > 1 else []
        cells = [["row", "score", *names, "completion"]]
        for line in lines:
            text = " | ".join([line["completion"], *(f"{n} {problem}" for n, problem in line["problems"].items())])
            cells.append([line["row"], line["score"], *(line["parts"].get(n) for n in names), text])
        tell(aligned(cells), f"\nmean {'-' if mean is None else f'{mean:.4g}'} over {len(totals)} of {len(lines)} rows")
    return int(any(line["problems"] for line in lines))
