"""The command line."""

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import need, say, tell
from parts.foundation.processes import CpuThreads
from parts.foundation.settings import parse_flags
from programs.prove.evaluation_proof import prove_evaluation, results_files
from programs.prove.function_proof import prove_functions
from programs.prove.proof import Proof
from programs.prove.reward_proof import prove_reward
from programs.prove.run_proof import prove_run
from programs.prove.run_settings import ACCEPTED, values_of


def make_parser() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        usage="%(prog)s THING [--flag value ...]", description=__doc__, formatter_class=raw, allow_abbrev=False
    )
    parser.add_argument("thing", help="a run's folder, results.json or its folder, FILE.py:function", metavar="THING")
    parser.add_argument("--data", default="", metavar="FILE", help="rows for a reward")
    parser.add_argument("--as", default="", dest="formulas", metavar="NAMES", help="formulas of functions")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="time for all (default: 1)")
    parser.add_argument("--rows", type=int, default=256, metavar="N", help="most held-out rows of a run (default: 256)")
    return parser


def proof_of(args) -> Proof:
    """The proof of the thing, by its kind; UserError for a thing of no known kind."""
    path, seconds = Path(args.thing), 60 * args.minutes
    need(args.minutes > 0 and args.rows > 0, f"got --minutes {args.minutes:g} --rows {args.rows}; expected above 0")
    if ".py:" in args.thing:
        file = Path(args.thing.rpartition(":")[0])
        need(file.is_file(), f"got {args.thing}: no file {file}; {ACCEPTED}")
        need(args.data, f"got {args.thing} without --data; expected rows to try it on; try --data FILE.jsonl")
        return prove_reward(args.thing, args.data, 0.9 * seconds)
    if path.suffix == ".py" or (path.is_dir() and not results_files(path) and [*path.glob("*.py")]):
        return prove_functions(path, "", args.formulas)
    need(not args.data, f"got --data with {args.thing}; expected it with FILE.py:function alone; {ACCEPTED}")
    need(path.exists(), f"got {args.thing}, which does not exist; {ACCEPTED}")
    if results_files(path):
        return prove_evaluation(path)
    folder = next((x for x in (path, path.parent) if path.is_dir() and {"model", "data"} <= {*values_of(x)}), None)
    need(folder, f"got {args.thing}, which is none of these; {ACCEPTED}")
    import torch

    if not torch.accelerator.is_available():
        CpuThreads().begin(SimpleNamespace(threads="auto"), torch.device("cpu"))
    return prove_run(folder, 0.8 * seconds, args.rows)


def prove(args) -> int:
    """Print the proof and return the exit code."""
    begin = time.perf_counter()
    proof = proof_of(args)
    report = {"kind": proof.kind, "thing": proof.thing, "proved": not proof.findings, "findings": proof.findings}
    report |= {"sentences": proof.sentences, "not_measured": proof.not_measured, "figures": proof.figures}
    tell(json.dumps(report | {"seconds": round(time.perf_counter() - begin, 1)}, indent=1, allow_nan=False))
    for sentence in proof.sentences:
        say(sentence)
    for finding in proof.findings:
        say(f"against it: {finding}")
    return 1 if proof.findings else 0


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    args = parse_flags(make_parser(), argv)
    quiet_environment()
    return exit_code(lambda: prove(args), mend="try the same command", stopped="stopped; nothing was written")


if __name__ == "__main__":
    sys.exit(main())
