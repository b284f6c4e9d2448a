#!/usr/bin/env python3
"""Run the demo for several seeds and print its summaries as a Markdown table.

Each seed is a run of its own, one after the other. The critic's explained variance is the median over all steps, those
of its warm-up included. With --tools it is `make demo-tools` instead, which has no critic; its calls are those of a
held-out conversation, the one that gives the answer included. Flags after -- win over the demo's.

    python benchmarks/demo_seeds.py --seeds 0 1 2
    python benchmarks/demo_seeds.py --seeds 0 -- --minibatches 1
    python benchmarks/demo_seeds.py --tools
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def demo_flags(name: str = "DEMO") -> list[str]:
    """A demo's flags as the Makefile has them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.search(rf"^{name} := (.*)$", makefile, re.MULTILINE)[1].split()


def main() -> None:
    """Run `make demo` settings once per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tools", action="store_true", help="make demo-tools in the place of make demo")
    parser.add_argument("flags", nargs="*", help="further flags of ppo_train.py, after --")
    args = parser.parse_args()
    of_run = "calls before | calls after" if args.tools else "explained variance"
    print(f"| seed | accuracy before | after | {of_run} | steps | seconds | of the CPU |")
    print("|---" * (7 + args.tools) + "|")
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "scripts/ppo_train.py",
                *demo_flags("DEMO_TOOLS" if args.tools else "DEMO"),
                *args.flags,
            ]
            command += ["--seed", str(seed), "--output_dir", f"{folder}/run"]
            before = cpu_seconds()
            env = {"OMP_NUM_THREADS": "1", **os.environ}
            subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=env)
            spent = cpu_seconds() - before
            s = json.loads(Path(folder, "run", "summary.json").read_text())
            rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        if args.tools:
            own = [f"{s[f'eval_{when}']['metrics']['eval/calls_mean']:.2f}" for when in ("before", "after")]
        else:
            key = "value/explained_variance"
            own = [f"{statistics.median(row[key] for row in rows if key in row):.2f}"]
        row = [seed, f"{s['accuracy_before']:.3f}", f"{s['accuracy_after']:.3f}", *own, s["steps"]]
        print("| " + " | ".join(map(str, [*row, f"{s['seconds']:.0f}", f"{spent:.0f}"])) + " |", flush=True)


def cpu_seconds() -> float:
    """CPU seconds of the runs so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
