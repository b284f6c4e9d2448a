"""--list, --score, and the preflight."""

import inspect
import statistics
import time

from parts.foundation.messages import need, tell
from parts.rewards.reward_forms import is_preset, library_rewards
from parts.rewards.rewards import call_limits
from programs.reward_preflight.environment_preflight import EnvironmentPreflight
from programs.reward_preflight.environment_process import EnvironmentProcess
from programs.reward_preflight.inputs import load_data, load_samples, pick
from programs.reward_preflight.preflight import Preflight
from programs.reward_preflight.report import aligned, print_environment_report, print_json, print_report
from programs.reward_preflight.reward_process import RewardProcess, declared_range
from programs.reward_preflight.rows_and_gold import text_of
from programs.reward_preflight.scoring import Grader, excerpt


def list_library(args) -> int:
    """--list: functions with range and first line, presets with their parts; aliases are left out."""
    members, functions, presets = library_rewards(args.reward_library), [], []
    first = {id(member): name for name, member in reversed(members.items())}
    for name, member in members.items():
        if is_preset(member):
            parts = [[f.__name__, weight] for f, weight in zip(member, member.weights, strict=True)]
            presets.append({"name": name, "parts": dict(parts)})
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
    for row in pick(load_data(args), args.limit, args.seed):
        text = text_of(row["columns"].pop(name, None))
        where = f"{args.data}, row {row['number']}"
        need(text is not None, f"{where}: got no text in {name!r}; expected a completion; try --completion_column NAME")
        pairs.append((row, text))
    with RewardProcess(args.reward, args.timeout_s, call_limits(args)) as process:
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


def preflight(args) -> int:
    """--reward, --environment: all checks on rows drawn from the data."""
    started, data = time.perf_counter(), load_data(args)
    samples, rows = load_samples(args, data), pick(data, args.limit or 64, args.seed)
    if args.environment:
        with EnvironmentProcess(args, rows) as process:
            report, show = EnvironmentPreflight(args, rows, process).run(), print_environment_report
    else:
        with RewardProcess(args.reward, args.timeout_s, call_limits(args)) as process:
            report, show = Preflight(args, rows, process).run(samples), print_report
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else show)(report)
    return 0 if report["ready"] else 1
