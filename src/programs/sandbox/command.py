"""The command line."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from parts.foundation.messages import tell
from programs.sandbox.forms_of_tests import BadTests
from programs.sandbox.isolation import sandbox_report
from programs.sandbox.messages import SandboxError
from programs.sandbox.program import ROLES
from programs.sandbox.run_code import run_code
from programs.sandbox.server import serve


def command_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Run an untrusted Python program against tests. Its verdict is JSON on stdout; exit 0 if all tests "
        "pass, 1 if not, 2 for bad input, 3 where the sandbox cannot run.",
        epilog="example: sandbox.py --code program.py --tests tests.py --entry_point solve",
        allow_abbrev=False,
    )
    parser.add_argument("--report", action="store_true", help="print the layers of isolation that this machine offers")
    parser.add_argument("--code", help="file with the program")
    parser.add_argument("--tests", help="its tests: Python source, or .json in one of the forms of run_code")
    parser.add_argument("--entry_point", help="function under test")
    parser.add_argument("--timeout_s", type=float, default=3.0, help="seconds a test may take (default: 3)")
    parser.add_argument("--memory_mb", type=int, default=512, help="MiB of memory a program may add (default: 512)")
    parser.add_argument("--output_mb", type=int, default=8, help="MiB of a result, or printed by a run (default: 8)")
    parser.add_argument("--strict", action="store_true", help="refuse to run without network and file isolation")
    return parser


def run_command(args: argparse.Namespace) -> int:
    """Print the report, or the verdict of the program; return the exit code."""
    if args.report:
        tell(json.dumps(sandbox_report(), indent=2))
        return 0
    if not args.code or not args.tests:
        raise BadTests("got neither --report nor a program with tests; expected --code FILE --tests FILE")
    code, tests = (Path(path).read_text(encoding="utf-8") for path in (args.code, args.tests))
    tests = json.loads(tests) if args.tests.endswith(".json") else tests
    limits = {name: getattr(args, name) for name in ("timeout_s", "memory_mb", "output_mb", "strict")}
    verdict = run_code(code, tests, entry_point=args.entry_point, **limits)
    tell(json.dumps({"all_passed": verdict.all_passed, **asdict(verdict)}))
    return int(not verdict.all_passed)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    argv = ["--" + arg[2:].replace("-", "_") if arg.startswith("--") and "=" not in arg else arg for arg in argv]
    try:
        return run_command(command_flags().parse_args(argv))
    except (BadTests, SandboxError, OSError, ValueError) as error:
        problem = f"got {error.filename}: {error.strerror}; expected a file" if isinstance(error, OSError) else error
        print(f"error: {problem}", file=sys.stderr)
        return 3 if isinstance(error, SandboxError) else 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["--server"]:
        serve(int(sys.argv[2]), ROLES)
    else:
        sys.exit(main())
