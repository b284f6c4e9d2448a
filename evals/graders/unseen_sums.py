"""Grade a model trained on sums of rechenheft.csv, in this folder.

python evals/graders/unseen_sums.py kept|score|gain

kept: kept_back.csv and practised.csv are parts of the file without a common question. score: score.json has what both
models reach on kept_back.csv. gain: better/ is better than tiny_lm/ on sums that are in no file.
"""

import csv
import json
import random
import re
import sys

from tiny import load, spoken

LEAST_KEPT, LEAST_GAIN, TOLERANCE = 120, 0.12, 0.02


def questions(path: str) -> list[str]:
    """The distinct questions of a file, whatever its delimiter."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        head = file.readline()
        file.seek(0)
        names = [row["Rechenfrage"].strip() for row in csv.DictReader(file, delimiter=max(";,\t", key=head.count))]
    return list(dict.fromkeys(names))


def accuracy(folder: str, sums: list[str]) -> float:
    """Share of sums that a model answers right, greedily."""
    replies = [re.fullmatch(r"\s*<answer>\s*(\d+)\s*</answer>\s*", text) for text in spoken(*load(folder), sums)]
    totals = [sum(map(int, question.rstrip("=").split("+"))) for question in sums]
    rights = [bool(reply) and int(reply[1]) == total for reply, total in zip(replies, totals, strict=True)]
    return sum(rights) / len(rights)


def kept() -> bool:
    """No question on both sides."""
    every, held, used = map(questions, ("rechenheft.csv", "kept_back.csv", "practised.csv"))
    common = set(held) & set(used)
    print(f"{len(held)} kept back, {len(used)} practised, {len(common)} in both")
    return len(held) >= LEAST_KEPT and len(used) >= LEAST_KEPT and not common and {*held, *used} <= set(every)


def score() -> bool:
    """The figures reported are those of the models."""
    with open("score.json", encoding="utf-8") as file:
        reported = json.load(file)
    held = questions("kept_back.csv")
    actual = {"before": accuracy("tiny_lm", held), "after": accuracy("better", held)}
    print(f"reported {reported}, recomputed {actual}")
    return all(abs(reported[name] - actual[name]) <= TOLERANCE for name in actual)


def gain() -> bool:
    """Sums of this file alone."""
    rng, known = random.Random(77), set(questions("rechenheft.csv"))
    drawn = [f"{rng.randrange(10, 100)}+{rng.randrange(10, 100)}=" for _ in range(400)]
    fresh = [question for question in dict.fromkeys(drawn) if question not in known]
    before, after = accuracy("tiny_lm", fresh), accuracy("better", fresh)
    print(f"{len(fresh)} new sums: {before:.3f} before, {after:.3f} after")
    return after >= before + LEAST_GAIN


if __name__ == "__main__":
    sys.exit(not {"kept": kept, "score": score, "gain": gain}[sys.argv[1]]())
