#!/usr/bin/env python3
"""Measure how often diagnose.py sees trends in flat noise: percent of simulated logs that get each cause, as JSON.

    python benchmarks/false_alarms.py            # 1,000 logs per kind of noise and length
    python benchmarks/false_alarms.py --logs 20

Every series of a log is noise about a level that never changes. Kinds of noise: independent; persistent (AR(1) with
0.5); binomial (the mean of 16 answers, of which few are right); heavy (log-normal). Runs of 12, 40 and 150 steps.
"""

import argparse
import json
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from parts.reading.causes.ranking import diagnose
from parts.reading.log_reading import Table, run_of
from parts.reading.logged_run import LoggedRun

KINDS, STEPS = ("independent", "persistent", "binomial", "heavy"), (12, 40, 150)
TRENDS = ("updates_too_large", "part_bought", "part_dies", "stale_weights", "jump_at_restart", "memorised_prompts")
TRENDS += ("too_sparse", "inverted_reward", "noisy_reward")
LEVELS = {  # level, and scatter as a share of it
    "reward/mean": (0.1, 0.5),
    "reward/first": (0.1, 0.5),
    "reward/second": (0.3, 0.3),
    "rollout/length_mean": (200.0, 0.4),
    "policy/entropy": (0.4, 0.5),
    "kl/ref": (0.4, 0.5),
    "mismatch/kl": (0.005, 0.5),
    "optim/grad_norm": (1.0, 0.5),
}


def series(kind: str, steps: int, level: float, share: float, numbers: random.Random) -> list[float]:
    """Flat noise about a level; never below 0."""
    if kind == "binomial":  # of 16 with the chance that gives this scatter
        chance = 1 / (1 + 16 * share**2)
        return [level / chance * sum(numbers.random() < chance for _ in range(16)) / 16 for _ in range(steps)]
    rho, state, values = 0.5 if kind == "persistent" else 0.0, numbers.gauss(0, 1), []
    for _ in range(steps):
        values.append(level * math.exp(share * state) if kind == "heavy" else max(0.0, level * (1 + share * state)))
        state = rho * state + math.sqrt(1 - rho**2) * numbers.gauss(0, 1)
    return values


def noise_log(kind: str, steps: int, numbers: random.Random) -> LoggedRun:
    """A log of pure noise."""
    columns = {name: series(kind, steps, *level, numbers) for name, level in LEVELS.items()}
    table = Table({})
    for i in range(steps):
        table.add({"step": i + 1} | {name: values[i] for name, values in columns.items()})
    return run_of("noise", "metrics.jsonl", "ppo_train", table, {})


def measure(logs: int, seed: int = 0) -> dict[str, float]:
    """{cause: percent of logs that get it}, for the worst kind of noise and length."""
    highest = dict.fromkeys(TRENDS, 0.0)
    for kind in KINDS:
        for steps in STEPS:
            numbers = random.Random(f"{seed} {kind} {steps}")
            runs = [{c["cause"] for c in diagnose(noise_log(kind, steps, numbers))["causes"]} for _ in range(logs)]
            for name in TRENDS:
                highest[name] = max(highest[name], 100 * sum(name in ids for ids in runs) / logs)
    return highest


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=1000, help="logs of each kind and length (default: 1000)")
    args = parser.parse_args()
    print(json.dumps({"percent": {name: round(value, 2) for name, value in measure(args.logs).items()}}))


if __name__ == "__main__":
    main()
