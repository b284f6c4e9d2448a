#!/usr/bin/env python3
"""Prompts of mixed difficulty, drawn plainly, with dynamic sampling, by pass rate, or both, as a Markdown table.

A third of the prompts are sums that the embedded model solves now and then, a third takes any number in the tags, so it
is soon always solved, and a third are products of three-digit numbers, which it never solves. Samples are all
completions that were drawn, those of replaced groups included, up to the first evaluation on held-out sums (every four
steps) at or above each of --targets; – where there is none.

python benchmarks/prompts_by_pass_rate.py --seeds 0 1 2
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "assets" / "data"
WAYS = {
    "plain": [],
    "dynamic sampling": ["--dynamic_sampling"],
    "keep_between": ["--keep_between", "0.1", "0.9"],
    "both": ["--dynamic_sampling", "--keep_between", "0.1", "0.9"],
}
REWARD = '''
import re


def right(prompts, completions, answer, **kwargs):
    """1 for the answer in the tags; where the answer is "any", for any number there."""
    said = [re.fullmatch(r"<answer>(\\d+)</answer>", text_of(c).strip()) for c in completions]
    return [float(bool(s) and a in ("any", s[1])) for s, a in zip(said, answer)]


def text_of(completion):
    return completion if isinstance(completion, str) else completion[-1]["content"]
'''


def write_data(folder: Path, each: int, mixed: bool) -> None:
    """train.jsonl with `each` prompts of each kind, or of the first alone, eval.jsonl, and reward.py."""

    def rows(name: str, start: int, count: int) -> list[dict]:
        return [json.loads(line) for line in (DATA / name).read_text().splitlines()[start : start + count]]

    train = rows("arithmetic_train.jsonl", 0, each)
    if mixed:
        train += [row | {"answer": "any"} for row in rows("arithmetic_train.jsonl", each, each)]
        train += rows("products_train.jsonl", 0, each)
    for name, kept in (("train", train), ("eval", rows("arithmetic_eval.jsonl", 0, 128))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    (folder / "reward.py").write_text(REWARD)


def train(folder: Path, way: str, seed: int, steps: int) -> tuple[list[dict], float]:
    """metrics.jsonl of a run, and its seconds of the CPU."""
    out, before = folder / f"{way.replace(' ', '_')}-{seed}", resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        str(ROOT / "scripts" / "ppo_train.py"),
        "--algorithm",
        "grpo",
        "--kl_coef",
        "0.04",
        *WAYS[way],
    ]
    command += ["--data", str(folder / "train.jsonl"), "--eval_data", str(folder / "eval.jsonl")]
    command += ["--reward", f"{folder / 'reward.py'}:right", "--max_new_tokens", "24", "--batch_size", "64"]
    command += ["--steps", str(steps), "--eval_every", "4", "--save_every", "0", "--plot_every", "0"]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--output_dir", str(out)],
        **{"capture_output": True, "text": True, "env": {"OMP_NUM_THREADS": "1", **os.environ}},
    )
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return lines, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def described(lines: list[dict], targets: list[float]) -> list[str]:
    """Samples (and steps) to each target, in all, last accuracy, and the mean share of sampled groups with signal."""
    steps = [line for line in lines if "reward/mean" in line]
    drawn = list(itertools.accumulate(line.get("rollout/samples", 64) for line in steps))
    cells = []
    for target in targets:
        reached = [i for i, line in enumerate(steps) if line.get("eval/accuracy", 0.0) >= target]
        cells.append(f"{drawn[reached[0]]:.0f} ({steps[reached[0]]['step']})" if reached else "–")
    signal = 1 - sum(line["reward/zero_std_frac"] for line in steps) / len(steps)
    return [*cells, f"{drawn[-1]:.0f} ({len(steps)})", f"{steps[-1]['eval/accuracy']:.3f}", f"{signal:.2f}"]


def main() -> None:
    """Run every way for every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--each", type=int, default=64, help="prompts of a kind")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.85, 0.95], help="held-out accuracies")
    parser.add_argument("--sums_alone", action="store_true", help="leave out the other two kinds")
    args = parser.parse_args()
    to = " | ".join(f"samples (steps) to {target:g}" for target in args.targets)
    print(f"| seed | prompts | {to} | in all | accuracy | groups with signal | seconds |")
    print("|" + "---|" * (6 + len(args.targets)), flush=True)
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder), args.each, not args.sums_alone)
            for way in args.ways:
                lines, seconds = train(Path(folder), way, seed, args.steps)
                cells = described(lines, args.targets)
                print(f"| {seed} | {way} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
