"""Logs of nothing but noise about levels that never change, as metrics.jsonl."""

import json
import math
import random
from pathlib import Path

KINDS, STEPS = ("independent", "persistent", "binomial", "heavy"), (12, 40, 150)
LEVELS = {  # level, and scatter as a share of it
    "reward/mean": (0.1, 0.5),
    "reward/std": (0.3, 0.2),
    "reward/first": (0.1, 0.5),
    "reward/second": (0.3, 0.3),
    "reward/zero_std_frac": (0.3, 0.3),
    "rollout/length_mean": (200.0, 0.4),
    "rollout/truncated_frac": (0.05, 0.5),
    "policy/entropy": (0.4, 0.5),
    "kl/ref": (0.4, 0.5),
    "mismatch/kl": (0.005, 0.5),
    "optim/grad_norm": (1.0, 0.5),
    "memory/process_gib": (8.0, 0.2),
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


def write_log(folder: Path, seed: int) -> None:
    """One log, its kind and length by its seed."""
    kind, steps = KINDS[seed % 4], STEPS[seed // 4 % 3]
    numbers = random.Random(f"{seed} {kind} {steps}")
    columns = {name: series(kind, steps, *level, numbers) for name, level in LEVELS.items()}
    rows = [{"step": i + 1} | {name: values[i] for name, values in columns.items()} for i in range(steps)]
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    label = {"cause": "noise", "variant": f"{kind} {steps}", "trainer": "simulated", "seed": seed}
    (folder / "label.json").write_text(json.dumps(label), encoding="utf-8")
