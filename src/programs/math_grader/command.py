"""The command line."""

import argparse
import json
import os
import re
import sys

from programs.math_grader.answers import final_answer
from programs.math_grader.score import graded_rows, math_score
from programs.math_grader.worker import _START_S, _WORKER, _math_worker


def main(argv: list[str] | None = None) -> int:
    """Run the command line: one JSON line a text on stdout; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Grade mathematical answers: 1.0 right, 0.0 wrong, null if the gold answer cannot be read. "
        "One JSON line a text on stdout; exit 0, or 2 for bad input.",
        epilog='example: math_grader.py "so it is \\boxed{42}" 42; `--` stands before a text that begins with --',
        allow_abbrev=False,
    )
    parser.add_argument("text", nargs="?", help="a completion")
    parser.add_argument("gold", nargs="?", help="its gold answer")
    parser.add_argument("--data", help="JSONL file to grade instead")
    parser.add_argument("--completion_column", "--completion-column", default="completion", help="default: %(default)s")
    parser.add_argument("--answer_column", "--answer-column", default="answer", help="default: %(default)s")
    argv = sys.argv[1:] if argv is None else argv
    if not any(re.match(r"--[a-z]|-h$|--$", argument) for argument in argv):
        argv = ["--", *argv]  # a text or gold answer such as -4i, which is no flag
    args = parser.parse_args(argv)
    if (args.gold is None) == (args.data is None):
        parser.error("got neither or both; expected a text and its gold answer, or --data FILE")
    _WORKER.patience_s = _START_S  # here a wait is better than no score
    if args.data is None:
        print(json.dumps({"score": math_score(args.text, args.gold), "answer": final_answer(args.text)}))
        return 0
    try:
        for row in graded_rows(args.data, args.completion_column, args.answer_column):
            print(json.dumps(row), flush=True)
    except BrokenPipeError:  # the reader of stdout has gone, as `| head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--math-worker"]:
        _math_worker()
    else:
        sys.exit(main())
