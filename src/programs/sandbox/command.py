"""The command line."""

import argparse
import json
import sys
from dataclasses import asdict

from parts.foundation.messages import tell
from programs.sandbox.limits import BadTests, SandboxError
from programs.sandbox.process import sandbox_report
from programs.sandbox.run_code import run_many
from programs.sandbox.server import serve


def read_programs(path: str) -> list[dict]:
    """Rows of a JSONL file, gzipped or not."""
    import gzip

    rows = []
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                rows += [dict(json.loads(line))] if line.strip() else []
            except (ValueError, TypeError, RecursionError) as error:
                raise BadTests(f"{path}, line {number}: {error}; expected a JSON object") from None
    return rows


def jobs_of(args: argparse.Namespace, rows: list[dict]) -> list[dict]:
    """The arguments of run_code for each program named on the command line."""
    shared = {name: getattr(args, name) for name in ("timeout_s", "memory_mb", "output_mb", "strict")}
    if args.code:
        with open(args.code, encoding="utf-8") as code, open(args.tests, encoding="utf-8") as tests:
            text = tests.read()
            job = {"code": code.read(), "tests": json.loads(text) if args.tests.endswith(".json") else text}
        return [{**job, "entry_point": args.entry_point, **shared}]
    jobs, wanted = [], [*args.code_columns, args.tests_column, *([args.setup_column] if args.setup_column else [])]
    for number, row in enumerate(rows, 1):
        if missing := [name for name in wanted if name not in row]:
            what = f"{args.data}, row {number}: got the columns {', '.join(row)}"
            raise BadTests(f"{what}; expected {', '.join(missing)} too")
        code = "".join(str(row[name]) for name in args.code_columns)
        setup = str(row[args.setup_column]) if args.setup_column else ""
        entry = row.get("entry_point", args.entry_point)
        jobs.append({"code": code, "tests": row[args.tests_column], "setup": setup, "entry_point": entry, **shared})
    return jobs


def command_flags() -> argparse.ArgumentParser:
    """Flags of the command."""
    parser = argparse.ArgumentParser(
        description="Run untrusted Python programs against tests. One JSON verdict per line on stdout; exit 0 if all "
        "pass, 1 if not, 2 for bad input, 3 where the sandbox cannot run.",
        epilog="examples:\n  sandbox.py --report\n  sandbox.py --code program.py --tests tests.py --entry_point solve\n"
        "  sandbox.py --data HumanEval.jsonl.gz --code_columns prompt canonical_solution --tests_column test "
        "--setup_column prompt",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--report", action="store_true", help="print the layers of isolation that this machine offers")
    parser.add_argument("--code", help="file with one program")
    parser.add_argument("--tests", help="its tests: Python source, or .json in one of the forms of run_code")
    parser.add_argument("--data", help="JSONL file, also .gz, with one program a row")
    parser.add_argument("--code_columns", nargs="+", default=["completion"], help="columns joined to the program")
    parser.add_argument("--tests_column", default="tests", help="column with the tests (default: tests)")
    parser.add_argument("--setup_column", help="column with trusted source that the tests may use")
    parser.add_argument("--entry_point", help="function under test (default in --data: the column entry_point)")
    parser.add_argument("--timeout_s", type=float, default=3.0, help="seconds a test may take (default: 3)")
    parser.add_argument("--memory_mb", type=int, default=512, help="MiB of memory a program may add (default: 512)")
    parser.add_argument("--output_mb", type=int, default=8, help="MiB of a result, or printed by a run (default: 8)")
    parser.add_argument("--strict", action="store_true", help="refuse to run without network and file isolation")
    parser.add_argument("--workers", type=int, help="programs side by side (default: one per core)")
    return parser


def run_command(args: argparse.Namespace) -> int:
    """Print the report, or the verdicts of the programs; return the exit code."""
    if args.report:
        tell(json.dumps(sandbox_report(), indent=2))
        return 0
    if bool(args.code) == bool(args.data) or bool(args.code) != bool(args.tests):
        raise BadTests("got neither or too much; expected --report, or --code with --tests, or --data")
    rows, lines = read_programs(args.data) if args.data else [{}], []
    verdicts = run_many(jobs_of(args, rows), args.workers)
    for number, (row, verdict) in enumerate(zip(rows, verdicts, strict=True), 1):
        named = {"row": number, **{name: row[name] for name in ("id", "task_id") if name in row}} if args.data else {}
        lines.append(json.dumps({**named, "all_passed": verdict.all_passed, **asdict(verdict)}))
    tell("\n".join(lines))
    passed = sum(verdict.all_passed for verdict in verdicts)
    print(f"{passed} of {len(verdicts)} programs passed all their tests", file=sys.stderr)
    return int(passed < len(verdicts))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    argv = ["--" + arg[2:].replace("-", "_") if arg.startswith("--") and "=" not in arg else arg for arg in argv]
    try:
        return run_command(command_flags().parse_args(argv))
    except (BadTests, SandboxError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, SandboxError) else 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["--server"]:
        serve(int(sys.argv[2]))
    else:
        sys.exit(main())
