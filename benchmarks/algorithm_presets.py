#!/usr/bin/env python3
"""Train the embedded model with every preset of ppo_train.py and print held-out accuracy as a Markdown table.

    python benchmarks/algorithm_presets.py                                     # every preset, seed 0
    python benchmarks/algorithm_presets.py --algorithms grpo --seeds 0 1 2 3 4

Settings are the presets' own and COMMON; flags after -- win over them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = ["--steps", "60", "--max_new_tokens", "32"]


def names() -> list[str]:
    """The trainer's presets."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import ppo_train

    return list(ppo_train.PRESETS)


def main() -> None:
    """Run each preset with each seed; a run that fails is a row too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=names(), choices=names(), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("flags", nargs="*", help="further flags of ppo_train.py, after --")
    args = parser.parse_args()
    print("| algorithm | seed | accuracy before | after | steps | completions | seconds |")
    print("|---|---|---|---|---|---|---|")
    for algorithm in args.algorithms:
        for seed in args.seeds:
            row = [algorithm, seed, *result(algorithm, seed, args.flags)]
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def result(algorithm: str, seed: int, flags: list[str]) -> list:
    """One run's figures, or the end of its error."""
    command = [sys.executable, str(ROOT / "scripts/ppo_train.py"), "--algorithm", algorithm, *COMMON]
    command += [*flags, "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as folder:
        run, env = Path(folder, "run"), {"OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run([*command, "--output_dir", str(run)], capture_output=True, text=True, env=env)
        if done.returncode:
            return [f"exit {done.returncode}: {done.stderr.strip()[-200:]}"]
        s = json.loads((run / "summary.json").read_text())
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    sampled = sum(line.get("rollout/samples", 128) for line in lines if "reward/mean" in line)
    accuracies = [f"{s[f'accuracy_{when}']:.3f}" for when in ("before", "after")]
    return [*accuracies, s["steps"], f"{sampled:.0f}", f"{s['seconds']:.0f}"]


if __name__ == "__main__":
    main()
