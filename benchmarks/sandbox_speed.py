"""Programs a second in the sandbox with every layer on, beside a fresh `python -I` for each program.

Both sides run the same programs with nine cases each, on as many workers as there are cores, in alternating rounds;
the fresh interpreter gets the same limits (address space, processor time, file size, wall clock) and no other layer,
runs the asserts itself, and believes the exit status: the least that a subprocess can do.

    python benchmarks/sandbox_speed.py [--programs 200] [--rounds 5]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import sandbox

PROGRAM = """
from collections import Counter
import heapq

def top(words, k):
    counts = Counter(words)
    return [word for _, word in heapq.nsmallest(k, ((-n, word) for word, n in counts.items()))]
"""
CASES = [([["a", "b", "c"][i % 3 :] * (i + 1) + ["z"] * i, 2], None) for i in range(9)]


def expected(words, k):
    """The oracle: sort by count, then by word."""
    return sorted(set(words), key=lambda word: (-words.count(word), word))[:k]


CALLS = [(args, expected(*args)) for args, _ in CASES]
ASSERTS = [f"assert top({words!r}, {k}) == {value!r}" for (words, k), value in CALLS]
CHECK = "def check(candidate):\n" + "\n".join(f"    {line}" for line in ASSERTS).replace("top(", "candidate(")


def limit():
    """The limits of the sandbox, for the fresh interpreter."""
    for name, value in {"AS": 600 << 20, "CPU": 13, "FSIZE": 1 << 20, "CORE": 0}.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def fresh(_) -> bool:
    """One program in an interpreter of its own."""
    command = [sys.executable, "-I", "-c", PROGRAM + "\n".join(ASSERTS)]
    return subprocess.run(command, env={}, timeout=12, preexec_fn=limit, capture_output=True).returncode == 0


def asserts(_) -> bool:
    """One program in the sandbox, its tests as asserts on literals (MBPP): compared here."""
    return sandbox.run_code(PROGRAM, ASSERTS, entry_point="top", strict=True).all_passed


def check(_) -> bool:
    """One program in the sandbox, its tests as a function (HumanEval): a second process judges."""
    return sandbox.run_code(PROGRAM, CHECK, entry_point="top", strict=True).all_passed


def calls(_) -> bool:
    """One program in the sandbox, its tests as data: compared here."""
    return sandbox.run_code(PROGRAM, CALLS, entry_point="top", strict=True).all_passed


def rate(function, programs: int) -> float:
    """Programs a second; every one must pass."""
    started = time.perf_counter()
    with ThreadPoolExecutor(sandbox.available_cores()) as pool:
        if not all(pool.map(function, range(programs))):
            raise SystemExit(f"{function.__name__}: a correct program did not pass")
    return programs / (time.perf_counter() - started)


def main() -> None:
    """Run the rounds and print medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sides = {"calls": calls, "asserts": asserts, "check": check, "fresh": fresh}
    for function in sides.values():
        rate(function, 4)
    rates = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, function in sides.items():
            rates[name].append(rate(function, args.programs))
    middle = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    ratio = {
        name: round(statistics.median(a / b for a, b in zip(rates[name], rates["fresh"], strict=True)), 2)
        for name in ("calls", "asserts", "check")
    }
    load = os.getloadavg()[0]
    report = {"programs_per_s": middle, "times_fresh": ratio, "load": load, "isolated": sandbox.DEFAULT.isolated()}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
