"""The command line."""

import argparse
import contextlib
import json
import os
import sys
import time

from parts.messages import UserError, say
from programs.selfcheck.checks import run_checks
from programs.selfcheck.prepare import prepare
from programs.selfcheck.trainer import load_trainer


def selfcheck(file: str, flags: list[str]) -> list[dict]:
    """Load a trainer with its flags and run the checks; what keeps them from starting is a UserError."""
    trainer = load_trainer(file)
    config = trainer.parse_config(flags)
    try:
        subject = prepare(trainer, config)
    except trainer.UserError as error:
        raise UserError(str(error)) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {error}") from error
    return run_checks(subject)


def print_table(results: list[dict], seconds: float) -> None:
    """One line per check, then the count of each status."""
    for row in results:
        advice = f" | try: {row['try']}" if row["try"] else ""
        print(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
    counts = {status: sum(row["status"] == status for row in results) for status in ("pass", "FAIL", "n/a")}
    print(", ".join(f"{n} {status}" for status, n in counts.items()), f"in {seconds:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] TRAINER.py [the trainer's flags] [--json]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options, flags = parser.parse_known_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        print(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print_table(results, seconds)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
