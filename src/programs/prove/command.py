"""The command line."""

import argparse
import ast
import json
import sys
import time
from pathlib import Path

from parts.evaluating.scored_samples import SCORED_FILES, other_evaluations
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import Help, UserError, need, say, tell
from parts.foundation.settings import parse_flags
from programs.prove.environment_proof import is_environment, prove_environment
from programs.prove.evaluation_proof import Results, prove_evaluation, results_files
from programs.prove.formulas import FORMULAS
from programs.prove.function_proof import functions_of, prove_functions
from programs.prove.proof import CONTRACT, Proof, parsed, prove_job, prove_trainer
from programs.prove.reward_proof import prove_reward
from programs.prove.run_proof import other_settings, prove_run, values_of

ACCEPTED = (
    "expected a run's folder, results.json of evaluation.py or its folder, scored samples (JSON, JSONL, CSV, parquet), "
    "FILE.py:function or :Environment with --data, a trainer or a file or folder of losses and advantages in Python, "
    "or settings (.yaml) or overrides (.txt) of a verl job"
)
FLAGS = {"formulas": "--as", "python": "--python", "flags": "flags after --"}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s THING [--flag value ...] [-- flags of a trainer, an environment or reward_preflight.py]",
        description=__doc__,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("thing", help="what to prove, as above", metavar="THING")
    parser.add_argument("--data", default="", metavar="FILE", help="rows for a reward or environment; a run's test set")
    named = "formulas of functions: loss_1=grpo,loss_2=gspo, or one for each function; " + ", ".join(FORMULAS)
    parser.add_argument("--as", default="", dest="formulas", metavar="NAMES", help=named)
    python = "for a verl job: the Python that has verl (default: this one)"
    parser.add_argument("--python", metavar="PYTHON", help=python)
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="minutes for all checks (default: 1)")
    return parser


def check_flags(args, kind: str, *taken: str) -> None:
    """Raise UserError for flags of FLAGS that are set but not in `taken`, those that a kind of thing takes."""
    for place, flag in FLAGS.items():
        got = f"got {flag} with {args.thing}, which is checked as {kind}"
        need(place in taken or not getattr(args, place), f"{got}; expected no such flag; try leaving it out")


def proof_of(args) -> Proof:
    """Prove a thing by its kind; UserError if it has no known kind."""
    path, seconds = Path(args.thing), 54 * args.minutes  # of 60: imports and the report take the rest
    need(args.minutes > 0, f"got --minutes {args.minutes:g}; expected above 0")
    file, _, name = args.thing.rpartition(":") if ".py:" in args.thing else (args.thing, "", "")
    need(Path(file).exists(), f"got {args.thing}: no file or folder {file}; {ACCEPTED}")
    if args.data and file.endswith(".py") and not name:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        names = [x.name for x in parsed(Path(file)) if isinstance(x, kinds) and x.name[0] != "_"]
        got = f"got --data with {file}, which has {', '.join(names) or 'no function'}"
        need(len(names) == 1, f"{got}; expected FILE.py:NAME of a reward or environment")
        (name,) = names
        args.thing = f"{file}:{name}"
    if name and args.data:
        check_flags(args, "reward or environment", "flags")
        prove_named = prove_environment if is_environment(Path(file), name) else prove_reward
        return prove_named(args.thing, args.data, args.flags, seconds)
    folder = next((x for x in (path, path.parent) if path.is_dir() and values_of(x)), path)
    is_run = not results_files(path) and (values_of(folder) or other_settings(folder))
    got = f"got --data with {args.thing}; expected it with a run or with FILE.py:NAME"
    need(not args.data or is_run, f"{got}; {ACCEPTED}")
    if files := results_files(path):
        check_flags(args, "evaluation")
        return prove_evaluation(path, [Results(file) for file in files], [], seconds)
    if is_run:
        check_flags(args, "run")
        return prove_run(folder, seconds, args.data)
    if path.suffix in (".yaml", ".yml", ".txt", ".sh"):
        check_flags(args, "verl job", "python")
        return prove_job(path, args.python or sys.executable, seconds)
    functions = functions_of(Path(file))[0] if file.endswith(".py") or [*path.glob("*.py")] else {}
    names = {name for nodes in functions.values() for name in nodes}
    if path.suffix == ".py" and CONTRACT & names and not args.formulas:
        check_flags(args, "trainer", "flags")
        return prove_trainer(path, args.flags, seconds)
    is_of_runs = any(values_of(x) for x in path.glob("*/"))
    results, unreadable = ([], []) if names or is_of_runs else other_evaluations(path)
    if results:
        check_flags(args, "evaluation")
        return prove_evaluation(path, results, unreadable, seconds)
    names = names or (path.is_dir() and not is_of_runs and any(functions_of(path)[0].values()))  # in subfolders
    hint = "; try rows with a column correct and, of several, model" if path.suffix in SCORED_FILES else ""
    need(names, f"got {args.thing}, which is none of these; {ACCEPTED}{hint}")
    check_flags(args, "functions", "formulas")
    return prove_functions(Path(file), name, args.formulas)


def prove(args) -> int:
    """Print the proof and return the exit code."""
    begin = time.perf_counter()
    try:
        proof = proof_of(args)
    except UserError as error:
        raise UserError(str(error)) from None  # with this program's exit code, not that of what failed
    report = {"kind": proof.kind, "thing": proof.thing, "proved": proof.proved, "findings": proof.findings}
    report |= {"sentences": proof.sentences, "not_measured": proof.not_measured, "figures": proof.figures}
    tell(json.dumps(report | {"seconds": round(time.perf_counter() - begin, 1)}, indent=1, allow_nan=False))
    for sentence in proof.sentences:
        say(sentence)
    for finding in proof.findings:
        say(f"against it: {finding}")
    return 1 if proof.findings else 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    at = argv.index("--") if "--" in argv else len(argv)  # what follows is selfcheck.py's or reward_preflight.py's
    args = parse_flags(make_parser(), argv[:at])
    args.flags = argv[at + 1 :]
    quiet_environment()
    return exit_code(lambda: prove(args), mend="try the same command", stopped="stopped; nothing was written")


if __name__ == "__main__":
    sys.exit(main())
