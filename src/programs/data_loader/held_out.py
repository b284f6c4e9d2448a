"""Held-out rows: which rows leave the training data, all those of a prompt together."""

import random
import re

from parts.foundation.messages import need


def split_size(text: str, count: int) -> tuple[str, int]:
    """(name, rows) of --split: NAME=N, NAME=SHARE, or N or SHARE alone, whose name is eval."""
    name, _, size = text.rpartition("=")
    name = name if "=" in text else "eval"
    try:
        number = int(size) if size.isdigit() else round(float(size) * count)
    except (ValueError, OverflowError):
        number = 0
    good = re.fullmatch(r"\w+", name) and name != "rejected" and 0 < number < count
    expected = f"expected NAME=N with N from 1 to {count - 1}, or a share, or one of these alone; try --split 0.1"
    need(good, f"got --split {text} of {count} rows; {expected}")
    return name, number


def held_out_rows(prompts: list[bytes], size: int, seed: int) -> set[int]:
    """Rows to hold out, whole prompts at random: `size` of them, or as near below it as prompts of several rows allow.

    Args:
        prompts: a digest of each row's `asked_words`.

    Raises:
        UserError: there is one prompt only.
    """
    groups: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    got = f"got --split of {len(prompts)} rows of one prompt"
    need(len(groups) > 1, f"{got}; expected several prompts, as rows of one stay together")
    generator, owned = random.Random(seed), [*groups.values()]
    picked = generator.sample(range(len(owned)), min(size, len(owned)))
    rest = [*{*range(len(owned))}.difference(picked)]
    generator.shuffle(rest)  # where those picked have too many rows each
    chosen: set[int] = set()
    for group in [*picked, *rest]:
        if len(chosen) + len(owned[group]) <= size:
            chosen.update(owned[group])
        if len(chosen) == size:
            break
    return chosen or {*min((owned[group] for group in picked), key=len)}
