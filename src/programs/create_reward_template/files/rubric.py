"""Pay by a rubric of weighted checks."""

import re

from final_answer import final_answer, visible

MAX_CHARACTERS = 20_000  # that a pattern sees: some patterns take long on long text


def equals(text: str, gold) -> bool | None:
    """Whether the final answer is the gold one, but for case and white space."""
    return None if gold is None else final_answer(text).casefold().split() == str(gold).casefold().split()


def contains(text: str, gold) -> bool | None:
    """Whether the visible text holds the gold answer as words of its own."""
    return None if gold is None else bool(re.search(rf"(?i)(?<!\w){re.escape(str(gold))}(?!\w)", visible(text)))


RUBRIC = [  # (what it asks, its weight, the check: True, False, or None where it does not apply)
    ("equals:answer", 1.0, lambda text, row: equals(text, row.get("answer"))),
    ("contains:word", 1.0, lambda text, row: contains(text, row.get("word"))),
    ("lacks:sorry", 1.0, lambda text, row: not re.search("sorry", text[:MAX_CHARACTERS])),
]
GATED = True  # 0 unless the first check holds; False: the weighted share of the checks that hold


def score(text: str, row: dict) -> float | None:
    """sum(weight * held) / sum(weight) over the checks that apply (not None); None where none does."""
    held = [check(text, row) for _, _, check in RUBRIC]
    if GATED and not held[0]:
        return None if held[0] is None else 0.0
    known = [(weight, hold) for (_, weight, _), hold in zip(RUBRIC, held, strict=True) if hold is not None]
    return sum(weight * hold for weight, hold in known) / sum(weight for weight, _ in known) if known else None
