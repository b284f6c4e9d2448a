"""Rewards of the GSM8K example: `correct` is what counts, `form*0.2` helps while the form is still new."""

import re

LAST_LINE = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)\.?\s*$")


def text_of(completion) -> str:
    """The text of a completion, which is a string or chat messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def final_number(text: str) -> float | None:
    """The number after the only #### of a text, if nothing follows it, else None."""
    match = LAST_LINE.search(text)
    return float(match[1].replace(",", "")) if match and text.count("####") == 1 else None


def correct(completions, answer, **kwargs) -> list[float]:
    """1 where the final number is the answer, else 0."""
    pairs = zip(completions, answer, strict=True)
    return [float(final_number(text_of(c)) == float(str(gold).replace(",", ""))) for c, gold in pairs]


def form(completions, **kwargs) -> list[float]:
    """1 where the completion ends with #### and a number, else 0."""
    return [float(final_number(text_of(c)) is not None) for c in completions]
