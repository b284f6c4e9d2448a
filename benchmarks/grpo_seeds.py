#!/usr/bin/env python3
"""Train the embedded task with GRPO for several seeds and print accuracy before and after as a Markdown table.

python benchmarks/grpo_seeds.py --seeds 0 1 2 --steps 300
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def first_above(lines: list[dict], accuracy: float) -> str:
    """The first evaluated step with at least this held-out accuracy."""
    steps = [line["step"] for line in lines if line.get("eval/accuracy", 0.0) >= accuracy]
    return str(min(steps)) if steps else "–"


def main() -> None:
    """Run scripts/grpo_train.py with its defaults once per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("flags", nargs="*", help="further flags of grpo_train.py, after --")
    args = parser.parse_args()
    print("| seed | accuracy before | after | steps to 0.85 | steps | seconds |\n|---|---|---|---|---|---|", flush=True)
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ROOT / "scripts/grpo_train.py"), "--steps", str(args.steps), *args.flags]
            command += ["--seed", str(seed), "--output_dir", f"{folder}/run"]
            done = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1", **os.environ})
            if done.returncode:
                sys.exit(done.stderr)
            s = json.loads(Path(folder, "run", "summary.json").read_text())
            lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        row = [seed, f"{s['accuracy_before']:.3f}", f"{s['accuracy_after']:.3f}", first_above(lines, 0.85), s["steps"]]
        print("| " + " | ".join(map(str, [*row, f"{s['seconds']:.0f}"])) + " |", flush=True)


if __name__ == "__main__":
    main()
