"""The command line."""

import argparse
import contextlib
import json
import sys
import time

from parts.foundation.exit_codes import quiet_environment
from parts.foundation.messages import UserError, need, say, suggest, tell
from programs.selfcheck.contract import CONTRACT
from programs.selfcheck.conversation_checks import TURN_CHECKS
from programs.selfcheck.input_checks import INPUT_CHECKS
from programs.selfcheck.loading import load_trainer, need_names
from programs.selfcheck.numeric_checks import NUMERIC_CHECKS
from programs.selfcheck.prepare import move, prepare
from programs.selfcheck.trainer import Trainer, rest

CHECKS = (*INPUT_CHECKS, *NUMERIC_CHECKS, *TURN_CHECKS)


def selfcheck(file: str, flags: list[str], partial: bool = False, left_out: tuple = ()) -> list[dict]:
    """Load a trainer with its flags and run the checks; what keeps them from starting is a UserError.

    With `partial` it may lack a part of the contract; checks of that are not run, and say so. Nor are those left out.
    """
    known = [function.__name__ for function in CHECKS]
    for name in left_out:
        need(name in known, f"got --leave_out {name}; expected one of {', '.join(known)}{suggest(name, known)}")
    trainer = load_trainer(file, partial)
    need_names(file, trainer.parse(flags))
    prepare(trainer)
    return [result_of(trainer, function, left_out) for function in CHECKS]


def result_of(s: Trainer, function, left_out: tuple = ()) -> dict:
    """Run a check, with a line on stderr; one that raises, or ends the program, fails with its exception's text."""
    started, name = time.perf_counter(), function.__name__
    try:
        if function.moved and not s.moved:
            move(s)
        passed, text = (None, "left out, by --leave_out") if name in left_out else function(s)
    except (Exception, SystemExit) as error:
        rest(s.models)
        kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
        passed, text = False, kind + str(error).removeprefix("error: ")
    status = {None: "n/a", True: "pass", False: "FAIL"}[passed if passed is None else bool(passed)]
    say(f"selfcheck: {name:<28} {status:<5} {time.perf_counter() - started:5.1f} s")
    return {
        "name": name,
        "status": status,
        "measured": " ".join(text.split())[:400],
        "try": function.advice if status == "FAIL" else "",
    }


def print_table(results: list[dict], seconds: float) -> None:
    """One line per check, then the count of each status."""
    for row in results:
        advice = f" | try: {row['try']}" if row["try"] else ""
        tell(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
    counts = {status: sum(row["status"] == status for row in results) for status in ("pass", "FAIL", "n/a")}
    tell(", ".join(f"{n} {status}" for status, n in counts.items()), f"in {seconds:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] [--contract] TRAINER.py [the trainer's flags] [--partial] [--leave_out NAME] [--json]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", nargs="?", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--partial", action="store_true", help="check what a page has of the contract, tell the rest")
    own = "checks that are not for your method, such as group_advantages for a baseline that is not the group's mean"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=own)
    parser.add_argument("--contract", action="store_true", help="print what a trainer must offer, and stop")
    options, flags = parser.parse_known_args(argv)
    if options.contract:
        tell(CONTRACT.rstrip())
        return 0
    if not options.trainer:
        parser.error("got no TRAINER.py; expected it first, then its flags; try templates/ppo.py")
    quiet_environment()
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags, options.partial, options.leave_out)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        tell(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print_table(results, seconds)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
