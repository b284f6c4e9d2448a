#!/usr/bin/env python3
"""Run the demo for several seeds and print its summaries as a Markdown table.

Each seed is a run of its own, one after the other.

    python benchmarks/demo_seeds.py --seeds 0 1 2 3 4
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run `make demo` settings once per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("flags", nargs="*", help="further flags of ppo_train.py, after --")
    args = parser.parse_args()
    demo = ["--steps", "60", "--max_new_tokens", "32", *args.flags]  # as in the Makefile
    print("| seed | accuracy before | after | steps | seconds |\n|---|---|---|---|---|")
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ROOT / "scripts/ppo_train.py"), *demo]
            command += ["--seed", str(seed), "--output_dir", f"{folder}/run"]
            subprocess.run(command, check=True, capture_output=True, env={"OMP_NUM_THREADS": "1", **os.environ})
            s = json.loads(Path(folder, "run", "summary.json").read_text())
        row = [seed, f"{s['accuracy_before']:.3f}", f"{s['accuracy_after']:.3f}", s["steps"], f"{s['seconds']:.0f}"]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
