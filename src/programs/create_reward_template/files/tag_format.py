"""Pay for the layout, whatever its content: a tenth of the weight, beside a check of content."""

import re

TAGS = ["think", "answer"]
SEEN = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # neither white space nor of no width


def score(text: str, row: dict) -> float:
    """1 for the whole layout; else half the share of marks that stand once and in order, a path to it."""
    marks, pieces = [mark for tag in TAGS for mark in (f"<{tag}>", f"</{tag}>")], [text]
    for mark in marks:
        before, found, after = pieces[-1].partition(mark)
        if not found or text.count(mark) != 1:
            break
        pieces[-1:] = [before, after]
    whole = len(pieces) == len(marks) + 1
    if whole and all(map(SEEN.search, pieces[1::2])) and not "".join(pieces[::2]).strip():
        return 1.0
    return 0.5 * (len(pieces) - 1) / len(marks)
