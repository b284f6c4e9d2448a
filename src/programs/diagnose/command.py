"""The command line."""

import argparse
import json
import sys
from pathlib import Path

from parts.foundation.messages import tell
from parts.foundation.settings import parse_flags
from parts.reading.causes.ranking import LEARNED, TOO_SHORT, diagnose
from parts.reading.log_reading import Extras, load_run, need_log
from parts.reading.logged_run import UnreadableError
from parts.reading.plain_logs import FIGURES
from programs.diagnose.report_and_plot import draw, print_verdict
from programs.diagnose.rescoring import rescore


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_OR_FILE", help="run folder or log, see above; several are read in turn"
    )
    parser.add_argument("--json", action="store_true", help="verdicts as JSON on standard output (default: text)")
    parser.add_argument(
        "--plot", metavar="FILE.png", type=Path, help="draw the curves, evidence marked (default: none)"
    )
    parser.add_argument("--overwrite", action="store_true", help="let --plot replace a file (default: refuse)")
    text = "completions per prompt, where the log does not say (default: 0, from the run's settings)"
    parser.add_argument("--group_size", "--group-size", type=int, default=0, metavar="G", help=text)
    text = f"names in this log of the figures that are looked at: {', '.join(FIGURES)} (default: known names)"
    parser.add_argument("--columns", nargs="+", metavar="FIGURE=NAME", default=[], help=text)
    for name, text in (
        ("settings", "settings that lie elsewhere: YAML, JSON, a shell or a Python script, which is not run"),
        ("samples", "samples that lie elsewhere: JSONL, CSV or parquet with prompt, completion, score"),
        ("data", "training data, for gold answers by prompt: JSONL, JSON, CSV or parquet"),
        ("reward", "FILE.py:function of the reward, to read, and for --rescore to run"),
    ):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"{text} (default: beside the log)")
    text = "run the reward on logged samples, gold and nonsense, in a process of its own (default: run no code)"
    parser.add_argument("--rescore", action="store_true", help=text)
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """The pairs of --columns, checked."""
    columns = {}
    for pair in pairs:
        figure, _, name = pair.partition("=")
        known = figure in FIGURES and name
        need_log(known, f"got --columns {pair}; expected FIGURE=NAME with a figure of {', '.join(FIGURES)}")
        columns[figure] = name
    return columns


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    args = parse_flags(command_line(), [word for word in words if word != "-"])  # `--json -` is --json
    runs, reports, failed = [], [], []
    extras = Extras(args.settings, args.samples, args.data, args.reward, args.group_size)
    for source in args.runs:
        try:
            run = load_run(source, named_columns(args.columns), extras)
            if args.rescore:
                rescore(run, args.reward, args.data)
            reports.append(diagnose(run))
            runs.append(run)
        except UnreadableError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    try:
        if args.plot and runs:
            free = args.overwrite or not args.plot.exists()
            need_log(free, f"got --plot {args.plot}, which exists; expected a new name; try --overwrite")
            draw(runs, reports, args.plot)
    except UnreadableError as error:
        failed.append({"path": str(args.plot), "verdict": "unreadable", "error": str(error)})
        print(f"error: {error}", file=sys.stderr)
    found = any(report["causes"] or report["verdict"] not in (LEARNED, TOO_SHORT) for report in reports)
    code = 2 if failed else 1 if found else 3 if any(r["verdict"] == TOO_SHORT for r in reports) else 0
    if args.json:
        everything = reports + failed
        alone = everything[0] if len(everything) == 1 else {}  # the fields of a single run stand at the top too
        tell(json.dumps({**alone, "runs": everything, "exit_code": code}, indent=1))
    else:
        for i, (run, data) in enumerate(zip(runs, reports, strict=True)):
            tell("\n" * (i > 0), end="")
            print_verdict(run, data)
    return code


if __name__ == "__main__":
    sys.exit(main())
