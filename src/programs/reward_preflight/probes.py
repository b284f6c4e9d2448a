"""Completions that must not be paid."""

import contextlib
import functools
import math
import random
import re

from parts.rewards.user_code import user_text

LONGEST = 40_000  # characters of a probe where the run sets no limit

PROBES = {}  # name -> (share of gold's score it may get, function)


def listed(table: dict, allowed: float):
    """Decorate a function so that a table has it under its name; the report quotes its docstring."""

    def register(function):
        table[function.__name__] = (allowed, function)
        return function

    return register


probe = functools.partial(listed, PROBES)  # decorates `probe(row) -> completions`


def answer_span(row: dict) -> tuple[int, int] | None:
    """The span of the last whole-word occurrence of the answer in the gold completion, or None."""
    if not row["answer"]:
        return None
    matches = list(re.finditer(rf"(?<!\w){re.escape(row['answer'])}(?!\w)", row["gold"]))
    return matches[-1].span() if matches else None


def in_place(row: dict, text: str) -> str:
    """The gold completion with `text` in place of its final answer; `text` alone if the answer is not found."""
    span = answer_span(row)
    return row["gold"][: span[0]] + text + row["gold"][span[1] :] if span else text


@probe(0.05)
def empty(row: dict) -> list[str]:
    """Nothing at all."""
    return [""]


@probe(0.05)
def whitespace(row: dict) -> list[str]:
    """White space only."""
    return [" ", "\n\n\t \n"]


@probe(0.05)
def unicode_junk(row: dict) -> list[str]:
    """Characters of many scripts, controls and symbols without an answer."""
    return ["\u202e\ufffd\u0000\u200b\U0001f9ee\u066a\ufdfd\U0001d54f s\u0301\u0937" * 20, "\ufeff{[(<$\\`'\"" * 40]


@probe(0.1)
def prompt_echo(row: dict) -> list[str]:
    """The prompt again; in answer marks its last line, with choices the one before them, and its formulas."""
    text = user_text(row["prompt"])
    lines = [line for line in text.splitlines() if line.strip()]
    if re.fullmatch(r"\(?[A-Za-z]\)?", row["answer"] or ""):  # the last of the choices is a guess
        lines = [line for line in lines if not re.match(r"\s*\(?[A-Za-z][).:]", line)]
    task = (lines or [""])[-1].strip().rstrip(" =?:.")
    formulas = [a or b for a, b in re.findall(r"\$([^$\n]{3,99})\$|\\\((.{3,99}?)\\\)", text)]
    formulas = [formula for formula in formulas if re.search(r"[+*/^]|\\[a-z]", formula)]  # Simplify $2x+3x$
    sums = re.findall(r"(?<![\w.])\d+(?:\s*[-+*^]\s*\d+)+(?![\w.])", text)  # What is 3 + 4?
    sums = [f"<answer>{x}</answer>" for x in sums[:2] if x.replace(" ", "") != str(row["answer"]).replace(" ", "")]
    boxed = [f"\\boxed{{{formula}}}" for formula in formulas[:3]]
    return [text, f"<answer>{task}</answer>", f"\\boxed{{{task}}}", f"#### {task}", *boxed, *sums]


@probe(0.25)
def truncated(row: dict) -> list[str]:
    """Gold cut off before its final answer (code and prose: after a quarter and a half)."""
    gold, span = row["gold"], answer_span(row)
    cuts = [span[0], 3 * span[0] // 4, span[0] // 2] if span else [len(gold) // 2, len(gold) // 4]
    return [gold[:cut] for cut in cuts if gold[:cut].strip()]


@probe(0.25)
def answer_listing(row: dict) -> list[str]:
    """Many candidate answers at once, the right one in the middle."""
    right, wrong = row["answer"], row["wrong"]
    if not right:
        return []
    several = [*wrong[: len(wrong) // 2], right, *wrong[len(wrong) // 2 :]]
    texts = [", ".join(several), " or ".join([wrong[0], right, wrong[-1]])]
    if number_of(right) is not None:
        texts.append(" ".join([*map(str, range(50)), right, *map(str, range(50, 100))]))
    if re.fullmatch(r"\(?[A-Ja-j]\)?", right):
        texts += ["A, B, C, D, E, F, G, H, I, J", "(A) (B) (C) (D) (E)"]
    repeated = "\n".join(in_place(row, text) for text in several)
    # the prompt as answer: paid by graders that evaluate `3 + 4` or search for the answer anywhere
    return [*texts, *(in_place(row, text) for text in texts), repeated, in_place(row, user_text(row["prompt"]))]


PROFILES = {  # share of gold's score that a probe may get, where a profile differs from the default
    "answer": {},
    "format": {
        **dict.fromkeys(("prompt_echo", "answer_listing", "keyword_stuffing", "wrong_answer", "very_long"), 1.0),
        "truncated": 0.75,
    },
    "judge": {"truncated": 0.75, "wrong_answer": 0.75, "answer_listing": 0.5, "keyword_stuffing": 0.5},
}
CONNECTORS = "first, second, then, next, because, since, therefore, thus, hence, however, so, finally, in conclusion"
TAGS = "<think></think> <reasoning></reasoning> <answer></answer> \\boxed{} #### ```python\n``` {} [1] (Smith, 2020)"


@probe(0.25)
def keyword_stuffing(row: dict) -> list[str]:
    """Format tags and connector words without content."""
    steps = " ".join(f"Step {i}: {word}." for i, word in enumerate(CONNECTORS.split(", "), 1))
    framed = f"<think>\n{steps}\n</think>\n<answer>\n{CONNECTORS}\n</answer>"
    return [CONNECTORS, TAGS, framed, f"{steps} The final answer is {TAGS}", f"{CONNECTORS}, " * 20]


@probe(0.5)
def wrong_answer(row: dict) -> list[str]:
    """Gold of a row with another answer, and another answer in this gold."""
    other = [row["other_gold"]] if row["other_gold"] else []
    return other + ([in_place(row, row["wrong"][0])] if answer_span(row) else [])


@probe(1.0)
def repeated_gold(row: dict) -> list[str]:
    """Gold twenty times over."""
    return ["\n".join([row["gold"]] * 20)]


@probe(0.25)
def very_long(row: dict) -> list[str]:
    """As much text without an answer as the run allows: its limit, else 40,000 characters (two rows)."""
    size = row["limit"] or LONGEST
    digits = max(1, size - len(in_place(row, ""))) if row["limit"] else size
    brackets = "(" * (size // 2) + ")" * (size // 2)
    word = "a" * (size - 1) + "!"  # which expressions such as (\w+\s?)*$ search for hours
    return ["a " * (size // 2), word, brackets, in_place(row, "9" * digits), "\\frac{" * (size // 6)]


def number_of(text: str) -> float | None:
    """The value of a text that is one number, with or without thousands separators."""
    with contextlib.suppress(ValueError):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same number or the same text."""
    numbers = number_of(a), number_of(b)
    if None in numbers:
        return a.strip().lower() == b.strip().lower()
    return numbers[0] == numbers[1]


def distractors(answer: str, others: list[str], rng: random.Random) -> list[str]:
    """At least two wrong answers: up to 8 of other rows, else near numbers, letters or words."""
    wrong = sorted({other for other in others if not same_answer(other, answer)})
    wrong = rng.sample(wrong, min(len(wrong), 8))
    number = number_of(answer)
    if number is None:
        invented = [word for word in ("B", "C", "A", "no", "unknown") if word.lower() != answer.lower()]
    else:
        invented = [f"{number + step:.15g}" for step in (1, -1, 10, 7)]
    return wrong if len(wrong) >= 2 else [*wrong, *invented][:4]


def prepare_probes(rows: list[dict], everything: list[dict], seed: int, limit: int | None) -> None:
    """Set `wrong` (answers), `other_gold` (of a row with another answer) and `limit` (characters) in each row."""
    rng = random.Random(seed)
    answers = [row["answer"] for row in everything if row["answer"]]

    def same_task(a: dict, b: dict) -> bool:
        has_answers = a["answer"] and b["answer"]
        return same_answer(a["answer"], b["answer"]) if has_answers else a["gold"] == b["gold"]

    for i, row in enumerate(rows):
        row["limit"] = limit
        row["wrong"] = distractors(row["answer"], answers, rng) if row["answer"] else []
        others = (other["gold"] for other in rows[i + 1 :] + rows[:i] if other["gold"] and not same_task(other, row))
        row["other_gold"] = next(others, "")
