#!/usr/bin/env python3
"""Our PPO beside TRL's last one: same model, data, batch, epochs and lengths, alternating runs.

    python3 -m venv /tmp/trl112 && /tmp/trl112/bin/pip install torch==2.13.0
    /tmp/trl112/bin/pip install trl==1.12.0 transformers==5.23.0 accelerate==1.15.0 datasets==5.2.0
    python benchmarks/ppo_vs_trl.py --trl_python /tmp/trl112/bin/python --pairs 5

Prints a JSON object: per figure the median of each side and the median of the ratios, pair by pair. With a GPU both
sides run on it, in bfloat16, and memory is what torch has allocated there. Speed and memory come from runs without
evaluation; seconds to an accuracy come from runs that evaluate after every step, with the time of the evaluation itself
not counted on either side.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ["--model", str(ROOT / "assets/tiny_lm"), "--data", str(ROOT / "assets/data/arithmetic_train.jsonl")]
DATA += ["--eval_data", str(ROOT / "assets/data/arithmetic_eval.jsonl")]
# runs a script and writes its peak memory in MiB: what torch has allocated on a GPU, else what the process held
MEASURE = """
import resource, runpy, sys
report, sys.argv = sys.argv[1], sys.argv[2:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
import torch
held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
gpu = torch.cuda.is_available() and torch.cuda.max_memory_allocated() / 2**20
open(report, "w").write(str(gpu or held))
"""


def environment(threads: int) -> dict:
    """The same thread count for both sides, offline."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


def run_ours(flags: list[str], eval_every: int, threads: int, extra: list[str], data: list[str] = DATA) -> dict:
    """Run scripts/ppo_train.py; return {"marks": [(step, seconds so far, accuracy)], "peak_mib"}."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, str(ROOT / "scripts/ppo_train.py"), *data, *flags, *extra, "--output_dir", str(out)]
        command += ["--eval_every", str(eval_every), "--save_every", "0", "--plot_every", "0", "--sample_every", "0"]
        report = Path(folder) / "peak"
        whole = [sys.executable, "-c", MEASURE, str(report), *command[1:]]
        done = subprocess.run(whole, env=environment(threads), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        marks, spent = [], 0.0
        for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
            if "time/update" in row:
                spent += row["time/rollout"] + row["time/reward"] + row["time/update"]
                marks.append((row["step"], spent, row.get("eval/accuracy")))
        return {"marks": marks, "peak_mib": float(report.read_text())}


def run_trl(python: str, flags: list[str], eval_every: int, threads: int) -> dict:
    """Run the TRL worker in its environment; the same result as run_ours."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(ROOT / "benchmarks/trl_ppo_worker.py"), *DATA, *flags, "--output_dir", folder]
        command += ["--eval_every", str(eval_every)]
        done = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])


def seconds_per_step(run: dict) -> float:
    """Median seconds between step ends, the first two steps left out."""
    ends = [mark[1] for mark in run["marks"]]
    return statistics.median(b - a for a, b in itertools.pairwise(ends[1:]))


def seconds_to(run: dict, accuracy: float) -> float:
    """Training seconds until the first step whose held-out accuracy is at least `accuracy`."""
    return next((spent for _, spent, right in run["marks"] if right is not None and right >= accuracy), float("nan"))


def medians_of(rows: list[dict]) -> dict:
    """Of each figure's pairs (ours, TRL's) the median of each side and that of the ratios, pair by pair."""
    found = {}
    for name in rows[0]:
        ours, trl = zip(*(row[name] for row in rows), strict=True)
        ratio = statistics.median(a / b for a, b in zip(ours, trl, strict=True))
        medians = {"ours": statistics.median(ours), "trl": statistics.median(trl), "ours/trl": ratio}
        found[name] = {key: round(value, 3) for key, value in medians.items()}
    return found


def main() -> None:
    """Alternate the two sides and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl_python", required=True, help="python of an environment with trl 1.12.0")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--ppo_epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--critic", default="separate", help="our critic: separate (as TRL's) or shared")
    args = parser.parse_args()
    flags = ["--steps", str(args.steps), "--batch_size", str(args.batch_size), "--ppo_epochs", str(args.ppo_epochs)]
    flags += ["--minibatches", "1", "--max_new_tokens", "32", "--lr", "2e-4", "--kl_coef", "0.01", "--vf_coef", "0.5"]
    extra = ["--critic", args.critic, "--micro_batch_tokens", "2048", "--missing_eos_penalty", "1"]  # as TRL's worker
    rows = []
    for pair in range(args.pairs):
        seeded = [*flags, "--seed", str(pair)]
        ours = run_ours(seeded, 0, args.threads, extra), run_ours(seeded, 1, args.threads, extra)
        trl = run_trl(args.trl_python, seeded, 0, args.threads), run_trl(args.trl_python, seeded, 1, args.threads)
        row = {
            "seconds_per_step": [seconds_per_step(ours[0]), seconds_per_step(trl[0])],
            "peak_mib": [ours[0]["peak_mib"], trl[0]["peak_mib"]],
            "seconds_to_0.90": [seconds_to(ours[1], 0.9), seconds_to(trl[1], 0.9)],
            "final_accuracy": [ours[1]["marks"][-1][2], trl[1]["marks"][-1][2]],
        }
        print(json.dumps({"pair": pair, **row}), file=sys.stderr, flush=True)
        rows.append(row)
    result = {"settings": vars(args)}
    print(json.dumps(result | medians_of(rows), indent=1))


if __name__ == "__main__":
    main()
