"""The command line: diagnose runs one after the other, and print verdicts as text or JSON."""

import argparse
import json
import sys

from parts.foundation.messages import Help, UserError, need, tell
from parts.foundation.settings import parse_flags
from parts.reading.causes.ranking import LEARNED, OPEN, TOO_SHORT, diagnose
from parts.reading.log_reading import FIGURES
from parts.reading.logged_run import LoggedRun
from parts.reading.run_folder import load_run
from programs.diagnose.rescoring import rescore

SHOWN_TEXT = 160  # last characters of a completion that are printed


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    text = "run folder or log, see above; several are read in turn"
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_FILE", help=text)
    parser.add_argument("--json", action="store_true", help="verdicts as JSON on standard output (default: text)")
    text = "completions per prompt, if the log does not say (default: 0, from the run's settings)"
    parser.add_argument("--group_size", "--group-size", type=int, default=0, metavar="G", help=text)
    text = f"names in this log for: {', '.join(FIGURES)} (default: known names)"
    parser.add_argument("--columns", nargs="+", metavar="FIGURE=NAME", default=[], help=text)
    for name, text in (
        ("settings", "file with the run's settings: YAML, JSON, a shell or a Python script, which is not run"),
        ("samples", "file with the run's samples: JSONL, CSV or parquet with prompt, completion, score"),
        ("data", "training data, for gold answers by prompt: JSONL, JSON, CSV or parquet"),
        ("reward", "FILE.py:function of the reward, to read, and for --rescore to run"),
    ):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"{text} (default: beside the log)")
    text = "run the reward in the sandbox on logged samples, gold and nonsense (default: run no code)"
    parser.add_argument("--rescore", action="store_true", help=text)
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """{figure: column} of --columns; UserError for an unknown figure."""
    columns = dict(pair.partition("=")[::2] for pair in pairs)
    for figure, name in columns.items():
        known = figure in FIGURES and name
        need(known, f"got --columns {figure}={name}; expected FIGURE=NAME with one of {', '.join(FIGURES)}")
    return columns


def print_verdict(run: LoggedRun, data: dict) -> None:
    first, last = data["steps"]
    since = f" since step {data['since_step']}" if data["since_step"] is not None else ""
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {data['verdict']}{since}")
    texts = {text.id: text for text in run.texts}
    for cause in data["causes"]:
        tell(f"\n  {cause['certainty'].upper()} {cause['cause']}: {cause['says']}")
        for item in cause["evidence"]:
            place = f"  ({item['figure']}{'' if item['step'] is None else ', step {step}'.format(**item)})"
            tell(f"    saw       {item['text']}{place if item['figure'] else ''}")
            for id in item["samples"]:
                text = texts[id]
                score = "" if text.score is None else f"{text.score:.3g}"
                tell(f"              {id} score {score} gold {text.gold}: {text.completion[-SHOWN_TEXT:]!r}")
        for text in cause["explains"]:
            tell(f"    explains  {text}")
        tell(f"    change    {cause['change']}")
        if cause["decide_with"]:
            tell(f"    to decide {cause['decide_with']}")
        tell(f"    source    {cause['source']}")
    for text in data["unexplained"]:
        tell(f"  seen: {text}")
    for text in data["remarks"]:
        tell(f"  note: {text}")
    tell(f"\n  had: {', '.join(data['had'])}")
    if data["lacked"]:
        tell(f"  would help to decide: {'; '.join(data['lacked'])}")


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    reports, failed = [], []
    try:
        args = parse_flags(command_line(), [word for word in words if word != "-"])  # `--json -`
        columns = named_columns(args.columns)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    for source in args.runs:
        try:
            run = load_run(source, columns, args.settings, args.samples, args.data, args.reward, args.group_size)
            if args.rescore:
                rescore(run, args.reward)
            reports.append(diagnose(run))
            if not args.json:
                tell("\n" if len(reports) > 1 else "", end="")
                print_verdict(run, reports[-1])
        except UserError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    ill = any(report["causes"] or report["verdict"] not in (LEARNED, TOO_SHORT, OPEN) for report in reports)
    code = 2 if failed else 1 if ill else 3 if any(report["verdict"] != LEARNED for report in reports) else 0
    if args.json:
        everything = reports + failed
        alone = everything[0] if len(everything) == 1 else {}  # a single run's fields are at the top too
        tell(json.dumps({**alone, "runs": everything, "exit_code": code}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
