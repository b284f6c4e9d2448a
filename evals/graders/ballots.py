"""Grade duel.json: shares of two models in ballots.csv with 95 % intervals over items, not over draws.

python evals/graders/ballots.py shares|intervals|sure

An item has five draws, which are alike: the interval of a mean of items is 1.96 sd / sqrt(items), a bootstrap of items
comes near it, and one of draws is too narrow by a third. Both models had the same items: the gap is of differences.
"""

import csv
import json
import math
import statistics
import sys
from pathlib import Path


def item_means() -> dict[str, list[float]]:
    """Share of passed draws per item, by model, in the order of items."""
    draws: dict[tuple[str, str], list[int]] = {}
    with open("ballots.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            draws.setdefault((row["model"], row["item"]), []).append(int(row["passed"]))
    items = sorted({item for _, item in draws})
    means = {name: [statistics.mean(draws[name, item]) for item in items] for name in ("alder", "birch")}
    means["gap"] = [a - b for a, b in zip(means["alder"], means["birch"], strict=True)]
    return means


def main(part: str) -> int:
    """Compare a part."""
    reported, wrong = json.loads(Path("duel.json").read_text(encoding="utf-8")), []
    for name, values in item_means().items():
        mean, half = statistics.mean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))
        low, value, high = (reported[name][key] for key in ("low", "value", "high"))
        print(f"{name}: {low} {value} {high}; recomputed {mean - half:.4f} {mean:.4f} {mean + half:.4f}")
        near = {"shares": abs(value - mean) < 5e-4}
        near["intervals"] = abs(low - mean + half) < 0.18 * half and abs(high - mean - half) < 0.18 * half
        near["sure"] = reported["sure"] is bool(abs(mean) > half) if name == "gap" else True
        if not near[part]:
            wrong.append(name)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
