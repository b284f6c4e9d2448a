"""Metrics of three kinds of logs under one name, in groups, each with what it means."""

import re

from parts.foundation.file_text import file_text
from parts.reading.dialects import OURS
from parts.reading.log_reading import common_name

GLOSSARY_TEXT = file_text("glossary.txt")  # tools/make_glossary.py writes it
LOOK_FIRST = "Look first"
# what to look at first, as references/metrics.md has it
FIRST = (
    *("eval/accuracy", "eval/reverse_kl", "eval/score", "reward/mean", "rollout/truncated_frac"),
    *("value/explained_variance", "policy/entropy", "kl/ref", "kl/teacher"),
)
OTHER = "Other metrics of the log"


def marked_texts(text: str) -> dict[str, dict[str, list[str]]]:
    """Entries of a text file: {name: {mark: texts}}; under "#" the heading above an entry, under "" its first text.

    A line begins `name: text`, further texts are indented by two with a mark (+, !, - or =), their next lines by four.
    """
    entries, heading, entry, texts = {}, "", {}, []
    for line in text.splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line.startswith("    "):
            texts[-1] += f" {line.strip()}"
        elif line.startswith("  "):
            texts = entry.setdefault(line[2], [])
            texts.append(line[4:])
        else:
            name, _, text = line.partition(": ")
            texts = [text]
            entry = entries[name] = {"#": [heading], "": texts}
    return entries


def read_glossary() -> dict[str, dict]:
    """What each metric means: {key: {"group", "meaning", "healthy", "warning"}}, in the page's order."""
    parts = {"group": "#", "meaning": "", "healthy": "+", "warning": "!"}
    return {
        name: {part: entry.get(mark, [""])[0] for part, mark in parts.items()}
        for name, entry in marked_texts(GLOSSARY_TEXT).items()
    }


def our_name(key: str, dialect: str) -> str:
    """What metrics.jsonl calls a metric of another trainer's log; the key itself where it has no such name."""
    if dialect == "ours":
        return key
    common = common_name(key, dialect)
    if common == "held_out":
        return "eval/score" if dialect == "trl" else key
    if common and common.startswith("part:"):
        return f"reward/{common[5:]}"
    return next((ours for ours, name in OURS.items() if name == common), key) if common else key


def explained(key: str, glossary: dict[str, dict]) -> dict:
    """Group and meaning of a metric."""
    if key in glossary:
        return glossary[key]
    for prefix in ("reward", "eval"):
        if re.match(rf"{prefix}/(?!\w+/)", key):
            return glossary[f"{prefix}/<function>"]
    if key.startswith("val-"):
        return {"group": "Held-out evaluation", "meaning": "held-out figure of verl, by data source"}
    return {"group": "Time" if re.match(r"timing_|time/|perf/", key) else OTHER, "meaning": ""}


def groups_in_order(glossary: dict[str, dict]) -> list[str]:
    """The groups as the page shows them."""
    return [LOOK_FIRST, *dict.fromkeys(entry["group"] for entry in glossary.values()), OTHER]
