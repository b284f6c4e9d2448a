#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow", "pyyaml"]
# ///
"""Read the logs of an RL run and name the root cause: evidence, what it explains, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json instead of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    ms-swift                      its output folder: logging.jsonl, args.json, completions.jsonl
    others                        lines of name=value, CSV (wandb's export), tables, notebooks; --columns names others

The verdict is learned, did not learn, broken (since a step), too short, no verdict (50 steps and more, with the reason)
or unreadable. It names at most two causes. The figures that a cause explains are listed under it, without advice of
their own. With two causes, a command tells them apart. Settings, samples and the reward's source are read from files
beside the log, or from those that flags name; code of the run is never run. The last lines say what was read and what
else would decide.

Trends compare the medians of the first and the last quarter of the steps (3 to 20 of them). They count only if noise of
the same scatter and persistence would rarely produce them, even in the best of many stretches: each cause appears in
at most 1 % of simulated logs of flat noise (benchmarks/false_alarms.py). A cause names the source of its thresholds, or
says "our heuristic". benchmarks/README.md says how often the cause is right.

    groups without signal, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: curves (scripts/report.py draws them), trackers' own files (wandb, tensorboard), crashes and
out-of-memory errors, which references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py runs/first --reward my_rewards.py:correct --data train.jsonl
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it

Exit codes: 0 learned, 1 a cause, broken or did not learn, 2 unreadable, 3 too short or no verdict; of several
runs 2, then 1, then 3.
"""

import argparse
import json
import sys

from parts.foundation.messages import UserError, need, tell
from parts.foundation.settings import parse_flags
from parts.reading.causes.ranking import LEARNED, OPEN, TOO_SHORT, diagnose
from parts.reading.log_reading import FIGURES
from parts.reading.logged_run import LoggedRun
from parts.reading.run_folder import load_run

SHOWN_TEXT = 160  # characters of a sample that is shown
REMOVED = {
    "rescore": "scripts/reward_preflight.py --reward FILE.py:function --data DATA, which runs the reward",
    "plot": "scripts/report.py, which draws all curves with the evidence marked",
    "overwrite": "scripts/report.py",
}


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
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
        ("reward", "FILE.py:function of the reward, which is read and not run"),
    ):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"{text} (default: beside the log)")
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """The pairs of --columns, checked."""
    columns = dict(pair.partition("=")[::2] for pair in pairs)
    for figure, name in columns.items():
        known = figure in FIGURES and name
        need(known, f"got --columns {figure}={name}; expected FIGURE=NAME with a figure of {', '.join(FIGURES)}")
    return columns


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
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
    """Command line entry; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    reports, failed = [], []
    try:
        args = parse_flags(command_line(), [word for word in words if word != "-"], removed=REMOVED)  # `--json -`
        columns = named_columns(args.columns)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    for source in args.runs:
        try:
            run = load_run(source, columns, args.settings, args.samples, args.data, args.reward, args.group_size)
            reports.append(diagnose(run))
            if not args.json:
                tell("\n" * (len(reports) > 1), end="")
                print_verdict(run, reports[-1])
        except UserError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    ill = any(report["causes"] or report["verdict"] not in (LEARNED, TOO_SHORT, OPEN) for report in reports)
    code = 2 if failed else 1 if ill else 3 if any(report["verdict"] != LEARNED for report in reports) else 0
    if args.json:
        everything = reports + failed
        alone = everything[0] if len(everything) == 1 else {}  # the fields of a single run stand at the top too
        tell(json.dumps({**alone, "runs": everything, "exit_code": code}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
