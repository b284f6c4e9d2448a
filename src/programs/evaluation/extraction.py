"""Answers and formats found in completions."""

import json
import re

STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))


def extract_strict(text: str) -> str:
    """The first `#### number`, as lm-evaluation-harness's strict-match of GSM8K; "[invalid]" without one."""
    matches = STRICT.findall(text)
    return matches[0].strip() if matches else "[invalid]"


def extract_flexible(text: str) -> str:
    """The last number, as lm-evaluation-harness's flexible-extract of GSM8K; "[invalid]" without one."""
    matches = FLEXIBLE.findall(text)
    return next(part for part in matches[-1] if part).strip() if matches else "[invalid]"


def gsm8k_form(text: str) -> str:
    """What lm-evaluation-harness compares: without `,`, `$`, all up to the last `#### ` and a final point, lower case.

    >>> gsm8k_form("2+2=4\\n#### $1,004.")
    '1004'
    """
    for pattern in IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def cut_at(text: str, stops: list[str]) -> str:
    """The text before the first of each stop string, one after the other."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def ngram_share(words: list[str], size: int) -> float | None:
    """Distinct n-grams divided by n-grams (Li 2016); None for a text of fewer than `size` words."""
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) if grams else None


def has_format(text: str, name: str) -> bool:
    """Whether a completion has one of FORMATS."""
    if name == "json":
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True
    return bool(FORMATS[name].fullmatch(text.strip()))


FORMATS = {
    "answer": re.compile(r"<answer>\s*[^<>\s][^<>]*</answer>"),
    "think": re.compile(r"<think>(?:(?!</?think>).)*</think>(?:(?!</?think>).)+", re.DOTALL),
    "boxed": re.compile(r"(?:(?!\\boxed).)*\\boxed\{(?:(?!\\boxed).)+\}(?:(?!\\boxed).)*", re.DOTALL),
    "json": None,
}


def text_windows(tokens: list[int], prefix: list[int], length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    """Cut tokens into (context, scored) pairs for a model of `length` positions; every token is scored once.

    The first window is conditioned on `prefix`; each later one scores the next `stride` tokens, given as many tokens
    before them as fit. stride = length is lm-evaluation-harness's rolling window: one token of context, and a last
    window that looks back over a full one.
    """
    windows, start = [], 0 if prefix else 1
    end = min(length, len(tokens))
    if tokens[start:end]:
        windows.append((prefix or tokens[:1], tokens[start:end]))
    while end < len(tokens):
        scored = min(stride, len(tokens) - end)
        end += scored
        windows.append((tokens[max(0, end - length - 1) : end - scored], tokens[end - scored : end]))
    return windows
