"""Questions with choices."""

import re
import string

from programs.data_loader.bad_rows import BadRow, shown
from programs.data_loader.messages import CHOICE_KEYS, PICK_KEYS, PROMPT_KEYS

LETTERS = string.ascii_uppercase


def offered(row: dict) -> tuple[list[str], list[str]] | None:
    """(texts, labels) of a row's choices: a list, ARC's {"text", "label"}, or MedQA's {"A": text}; None without."""
    for name in CHOICE_KEYS:
        value = row.get(name)
        texts, labels = value, []
        if isinstance(value, dict) and "text" in value:
            texts, labels = value["text"], value.get("label") or []
        elif isinstance(value, dict) and all(re.fullmatch("[A-Z]", str(key)) for key in value):
            texts, labels = list(value.values()), list(value)
        plain = isinstance(texts, list) and all(isinstance(text, str | int | float) for text in texts)
        if plain and 1 < len(texts) <= len(LETTERS) and isinstance(labels, list) and len(labels) in (0, len(texts)):
            return [str(text).strip() for text in texts], [str(label) for label in labels]
    return None


def asks_with_choices(row: dict) -> bool:
    """Whether a row asks in text and has choices and the right one."""
    question = next((row[name] for name in PROMPT_KEYS if row.get(name) is not None), None)
    picked = any(row.get(name) is not None for name in PICK_KEYS)
    return isinstance(question, str) and picked and offered(row) is not None


def picked(value, texts: list[str], labels: list[str], name: str) -> int:
    """The number of the right choice, from its number (0 is the first), label, letter or text."""
    word = str(value).strip()
    letter = word.strip("()[].:").upper()
    if isinstance(value, str) and word in labels:
        return labels.index(word)
    if isinstance(value, str) and texts.count(word) == 1:
        return texts.index(word)
    if isinstance(value, str) and len(letter) == 1 and letter in LETTERS[: len(texts)]:
        return LETTERS.index(letter)
    if not isinstance(value, bool) and not labels and word.isascii() and word.isdigit() and int(word) < len(texts):
        return int(word)
    known = f"a number from 0 to {len(texts) - 1}, a letter from A to {LETTERS[len(texts) - 1]}, or a choice's text"
    advice = "mending the row, or --kind math where these are no choices"
    raise BadRow(name, shown(value), f"one of the labels {', '.join(labels)}" if labels else known, advice)


def with_choices(question: str, texts: list[str]) -> str:
    """The question and its choices, each with its letter; a question that has them already, as it is."""
    pairs = list(zip(LETTERS, texts, strict=False))
    if all(re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question) for letter, text in pairs):
        return question
    lettered = all(re.match(rf"\(?{letter}[).:]", text) for letter, text in pairs)
    lines = texts if lettered else [f"{letter}. {text}" for letter, text in pairs]
    return "\n".join([question.rstrip(), "", *lines])
