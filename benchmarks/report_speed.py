#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["jinja2>=3.1", "plotly>=6,<8"]
# ///
"""Time scripts/report.py on logs made here: CPU seconds, peak of resident memory, and the size of the page.

    long        1,000 steps with 30 metrics, 8 long samples a step: 50 MB
    many        100 steps with 1,000 samples each, 100,000 in all: 50 MB

Texts are random words, so that they compress worse than a model's. Deliberately left out: the browser, in which
tests/test_report.py times nothing and references/report.md has what was measured by hand.

    python benchmarks/report_speed.py                        # both, median of 3
    python benchmarks/report_speed.py --share 0.1 --repeats 1
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEGABYTES = 50
CASES = {"long": (1000, 8), "many": (100, 1000)}  # steps, samples a step
NAMES = (
    "policy/entropy",
    "kl/ref",
    "kl/approx",
    "optim/grad_norm",
    "rollout/length_mean",
    "time/rollout",
    "time/update",
)


def sample(rng: random.Random, words: list[str], size: float) -> dict:
    """What is sampled, of about `size` bytes; a word takes about 7 of them."""
    count = max(1, round((size - 160) / 6.9))
    said = rng.choices(words, k=count)
    row = {"completion": " ".join(said), "score": round(rng.random(), 3)}
    row |= {"rewards": {"correct": rng.randint(0, 1)}, "finished": rng.random() < 0.9}
    return row


def make_run(folder: Path, steps: int, samples: int, megabytes: float) -> None:
    """A run's folder whose logs are about so large."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    size, prompt = megabytes * 1e6 / (steps * samples), ""
    with open(folder / "metrics.jsonl", "w") as metrics, open(folder / "samples.jsonl", "w") as texts:
        for step in range(1, steps + 1):
            row = {"step": step, "reward/mean": 1 - math.exp(-step / steps) + rng.gauss(0, 0.05), "reward/std": 0.4}
            row |= {name: 1 + rng.gauss(0, 0.1) for name in (*NAMES, *(f"reward/part_{i}" for i in range(21)))}
            if step in (1, steps):
                row |= {"eval/accuracy": step / steps / 2, "eval/rows": 256}
            metrics.write(json.dumps(row) + "\n")
            for i in range(samples):
                prompt = " ".join(rng.choices(words, k=8)) if i % 8 == 0 else prompt
                row = {"step": step, "kind": "train", "prompt": prompt, **sample(rng, words, size)}
                texts.write(json.dumps(row, separators=(",", ":")) + "\n")
    (folder / "config.json").write_text(json.dumps({"ppo_epochs": 1, "batch_size": samples, "steps": steps}))


def measure(folder: Path) -> dict[str, float]:
    """CPU seconds, peak MB and the size of the page of one call of report.py."""
    command = [sys.executable, ROOT / "scripts" / "report.py", folder, "--output", folder / "page.html"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"error: report.py ended with {os.waitstatus_to_exitcode(status)}")
    page = (folder / "page.html").stat().st_size / 1e6
    return {"seconds": used.ru_utime + used.ru_stime, "MB": used.ru_maxrss * 1024 / 1e6, "page_MB": page}


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="the median is printed (default: 3)")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps and of the megabytes (default: 1)")
    args = parser.parse_args()
    for case, (steps, samples) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            make_run(Path(folder), max(2, round(steps * args.share)), samples, MEGABYTES * args.share)
            logs = sum(path.stat().st_size for path in Path(folder).glob("*.jsonl")) / 1e6
            runs = [measure(Path(folder)) for _ in range(args.repeats)]
        found = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
        print(json.dumps({"case": case, "logs_MB": round(logs, 1), **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
