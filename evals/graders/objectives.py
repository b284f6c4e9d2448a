"""Grade mini_loop.py in this folder by three_objectives.md: values and gradients against loops in plain Python.

python evals/graders/objectives.py plain|seqgeo|stopweight|softgate
"""

import math
import random
import sys
from pathlib import Path

import torch

LO, HI, STEP = 0.15, 0.4, 1e-5


def rows(seed: int) -> tuple[list, list, list, list]:
    """new, old [4][5], adv [4], keep [4][5]; the third row keeps nothing, ratios lie on both sides of the clip."""
    rng = random.Random(seed)
    old = [[-rng.uniform(0.2, 2.5) for _ in range(5)] for _ in range(4)]
    new = [[value + rng.uniform(-0.9, 0.9) for value in row] for row in old]
    keep = [[1.0, 1.0, 1.0, 0.0, 0.0], [1.0] * 5, [0.0] * 5, [0.0, 1.0, 0.0, 1.0, 1.0]]
    return new, old, [1.3, -0.8, 2.0, rng.choice([-1.7, 0.6])], keep


def cut(value: float, low: float, high: float) -> float:
    """value within bounds."""
    return min(max(value, low), high)


def loss(kind: str, new: list, old: list, adv: list, keep: list, weights: list) -> float:
    """The objective, term by term; weights are the ratios, which softened gradients must not pass (stopweight)."""
    count, total, size = sum(map(sum, keep)), 0.0, len(new)
    for i, a in enumerate(adv):
        tokens = [t for t, k in enumerate(keep[i]) if k]
        differences = [new[i][t] - old[i][t] for t in tokens]
        for t, difference in zip(tokens, differences, strict=True):
            r = math.exp(difference)
            if kind == "plain":
                total -= min(r * a, cut(r, 1 - LO, 1 + HI) * a) / count
            elif kind == "stopweight":
                total -= min(weights[i][t], 1 + HI) * a * new[i][t] / count
            elif kind == "softgate":
                tau = 1.0 if a > 0 else 1.05
                total -= 4 / tau / (1 + math.exp(-tau * (r - 1))) * a / len(tokens) / size
        if kind == "seqgeo" and tokens:
            g = math.exp(sum(differences) / len(tokens))
            total -= min(g * a, cut(g, 1 - LO, 1 + HI) * a) / size
    return total


def moved(new: list, i: int, t: int, by: float) -> list:
    """new with one entry changed."""
    return [[value + by * (i == j and t == s) for s, value in enumerate(row)] for j, row in enumerate(new)]


def differences(objective, kind: str, seed: int) -> float:
    """Largest deviation of the value and the gradient."""
    new, old, adv, keep = rows(seed)
    leaf = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    rest = [torch.tensor(x, dtype=torch.float64) for x in (old, adv, keep)]
    got = objective(kind, leaf, *rest, lo=LO, hi=HI)
    got.backward()
    weights = [[math.exp(n - o) for n, o in zip(*pair, strict=True)] for pair in zip(new, old, strict=True)]
    worst = abs(got.item() - loss(kind, new, old, adv, keep, weights))
    for i in range(len(new)):
        for t in range(len(new[i])):
            ends = [loss(kind, moved(new, i, t, by), old, adv, keep, weights) for by in (STEP, -STEP)]
            gradient = leaf.grad[i, t].item()
            worst = max(
                worst, abs(gradient - (ends[0] - ends[1]) / (2 * STEP)) if math.isfinite(gradient) else math.inf
            )
    return worst


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    from mini_loop import objective

    largest = max(differences(objective, sys.argv[1], seed) for seed in range(6))
    print(f"{sys.argv[1]}: the largest deviation is {largest:.1e}")
    sys.exit(not largest < 1e-7)
