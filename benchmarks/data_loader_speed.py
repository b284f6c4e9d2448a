#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["datasets", "pyarrow", "tqdm"]
# ///
"""Time scripts/data_loader.py against `datasets.load_dataset("json")` and an identity `map`, on a file made here.

Each run is a process of its own, the contenders take turns, and medians are printed with the peak of resident memory:

    command     data_loader.py FILE --out OUT: every row checked, normalised and written
    load_rows   the same rows as a list in memory
    datasets    load_dataset("json") into an empty cache, then map(lambda row: row)

Deliberately left out: reading from a network, and packed files.

    python benchmarks/data_loader_speed.py --megabytes 50                    # about a minute
    python benchmarks/data_loader_speed.py --megabytes 1000 --repeats 3      # the size that the target speaks of
    python benchmarks/data_loader_speed.py --form messages --json            # chat rows; figures as JSON
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "data_loader.py"
CONTENDERS = ("command", "load_rows", "datasets")


def make_file(path: Path, megabytes: int, form: str) -> int:
    """Write rows like GSM8K's, or chats, of about 1 kB each; returns their number."""
    rng, rows = random.Random(0), 0
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    with open(path, "w", encoding="utf-8") as f:
        while f.tell() < megabytes * 1_000_000:
            texts = [" ".join(rng.choices(words, k=70)) for _ in range(2)]
            row = {"question": texts[0], "answer": f"{texts[1]}\n#### {rows:,}", "level": rows % 5}
            if form == "messages":
                turns = zip(("user", "assistant"), texts, strict=True)
                row = {"messages": [{"role": role, "content": text} for role, text in turns], "level": rows % 5}
            f.write(json.dumps(row) + "\n")
            rows += 1
    return rows


def work(contender: str, file: str, folder: str) -> int:
    """Do one contender's work in this process; returns the number of rows."""
    if contender == "datasets":
        import datasets

        datasets.disable_progress_bars()
        rows = datasets.load_dataset("json", data_files=file, split="train", cache_dir=folder)
        return len(rows.map(lambda row: row))
    sys.path.insert(0, str(SCRIPT.parent))
    import data_loader

    if contender == "command":
        out = Path(folder, "out.jsonl")
        if data_loader.main([file, "--out", str(out), "--json"]):
            raise SystemExit("the command failed")
        with open(out, "rb") as f:
            return sum(1 for _ in f)
    return len(data_loader.load_rows(file).rows)


def measure(contender: str, file: Path, rows: int) -> dict:
    """Seconds and peak memory in MB of one run in a process of its own."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        command = [sys.executable, __file__, "--work", contender, "--file", str(file), "--folder", folder]
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        started = time.perf_counter()
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{contender} failed: {done.stderr[-2000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    if report["rows"] != rows:
        raise SystemExit(f"{contender} gave {report['rows']} rows; expected {rows}")
    return {"seconds": seconds, "cpu_s": report["cpu_s"], "peak_mb": report["peak_mb"]}


def main() -> int:
    """Command line entry; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--megabytes", type=int, default=200, help="size of the file (default: 200)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender (default: 3)")
    parser.add_argument("--form", choices=("math", "messages"), default="math", help="rows (default: math)")
    parser.add_argument("--folder", help="where the file is made (default: the system's temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        rows, usage = work(args.work, args.file, args.folder), resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        print(json.dumps({"rows": rows, "cpu_s": cpu, "peak_mb": usage.ru_maxrss / 1024}))
        return 0
    runs: dict[str, list] = {contender: [] for contender in CONTENDERS}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        file = Path(folder, "rows.jsonl")
        rows = make_file(file, args.megabytes, args.form)
        for _ in range(args.repeats):
            for contender in CONTENDERS:
                runs[contender].append(measure(contender, file, rows))
    keys = ("seconds", "cpu_s", "peak_mb")
    medians = {
        name: {key: round(statistics.median(run[key] for run in done), 1) for key in keys}
        for name, done in runs.items()
    }
    if args.json:
        times = {name: round(one["seconds"] / medians["datasets"]["seconds"], 2) for name, one in medians.items()}
        found = {"megabytes": args.megabytes, "form": args.form, "rows": rows, "medians": medians}
        print(json.dumps(found | {"times_datasets": times}))
        return 0
    print(f"{rows} rows, {args.megabytes} MB, {args.form}; median of {args.repeats}")
    for name, figures in medians.items():
        ratio = figures["seconds"] / medians["datasets"]["seconds"]
        shown = f"{figures['seconds']:7.1f} s  {figures['cpu_s']:7.1f} s CPU  {figures['peak_mb']:7.0f} MB"
        print(f"{name:10} {shown}  {ratio:.2f} x datasets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
