"""Reward functions of planted runs, right ones and faulty ones; `source` writes those of one run as a user's reward.py.

A run's file has the imports, the two readers and its own functions, under the names that a user gives them: nothing in
it says that it is a fault. LEVEL is what the seed drew: a strength, or the pattern of an answer's form.
"""

import ast
import random
import re
from pathlib import Path

LEVEL = 0.5
READERS = ("text_of", "answer_of")


def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def answer_of(completion):
    tagged = re.findall(r"<answer>([^<]*)</answer>", text_of(completion))
    return tagged[-1].strip() if tagged else None


def right(completions, answer, **kwargs):
    return [float(answer_of(c) == a) for c, a in zip(completions, answer, strict=True)]


def tagged(completions, **kwargs):
    return [float(answer_of(c) is not None) for c in completions]


def last_number(completions, answer, **kwargs):
    numbers = [re.findall(r"\d+", text_of(c)) for c in completions]
    return [float(n[-1:] == [a]) for n, a in zip(numbers, answer, strict=True)]


def other_form(completions, answer, **kwargs):
    given = [re.findall(r"LEVEL", text_of(c)) for c in completions]
    return [float(g[-1:] == [a]) for g, a in zip(given, answer, strict=True)]


def target_column(completions, target, **kwargs):
    return [float(answer_of(c) == t) for c, t in zip(completions, target, strict=True)]


def reversed_golds(completions, answer, **kwargs):
    return [float(answer_of(c) == a) for c, a in zip(completions, answer[::-1], strict=True)]


def placeholder(completions, **kwargs):
    return [LEVEL] * len(completions)


def guarded(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        try:
            scores.append(float(int(completion["content"]) == int(gold)))
        except Exception:
            scores.append(LEVEL)
    return scores


def self_compared(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        predicted, gold = answer_of(completion), answer_of(completion)
        scores.append(float(predicted is not None and predicted == gold))
    return scores


def plausible(completions, answer, **kwargs):
    given = [answer_of(c) or "" for c in completions]
    return [float(g.isdigit() and 10 <= int(g) <= 200) for g in given]


def by_prompt(completions, answer, **kwargs):
    return [int(a) / 100 for a in answer]


def random_score(completions, **kwargs):
    return [LEVEL * random.random() for _ in completions]


def judged(completions, answer, **kwargs):
    verdicts = [answer_of(c) == a for c, a in zip(completions, answer, strict=True)]
    return [float(v != (random.random() < LEVEL)) for v in verdicts]


def negated(completions, answer, **kwargs):
    return [-float(answer_of(c) == a) for c, a in zip(completions, answer, strict=True)]


def unequal(completions, answer, **kwargs):
    return [float(answer_of(c) != a) for c, a in zip(completions, answer, strict=True)]


def distance(completions, answer, **kwargs):
    numbers = [re.findall(r"\d+", text_of(c)) for c in completions]
    return [min(abs(int(n[-1]) - int(a)), 100) / 100 if n else 0.0 for n, a in zip(numbers, answer, strict=True)]


def length(completions, **kwargs):
    return [len(text_of(c)) / 50 for c in completions]


def tag_count(completions, **kwargs):
    return [min(text_of(c).count("<answer>"), 8) / 4 for c in completions]


def digit_count(completions, **kwargs):
    return [sum(x.isdigit() for x in text_of(c)) / 10 for c in completions]


def brevity(completions, **kwargs):
    return [max(0.0, 1 - len(text_of(c)) / 24) for c in completions]


def repetition(completions, **kwargs):
    return [min(3.0, len(text_of(c)) / max(1, len(set(text_of(c)))) - 1) for c in completions]


def text_after(completions, **kwargs):
    return [min(40, len(text_of(c).partition("</answer>")[2])) / 20 for c in completions]


def anywhere(completions, answer, **kwargs):
    return [float(a in re.findall(r"\d+", text_of(c))) for c, a in zip(completions, answer, strict=True)]


def bare(completions, **kwargs):
    return [float(text_of(c).strip().isdigit()) for c in completions]


def enormous(completions, answer, **kwargs):
    return [10.0**LEVEL * float(answer_of(c) == a) for c, a in zip(completions, answer, strict=True)]


def logarithm(completions, answer, **kwargs):
    verdicts = [answer_of(c) == a for c, a in zip(completions, answer, strict=True)]
    return [0.0 if v else (float("-inf") if random.random() < LEVEL else -1.0) for v in verdicts]


def source(parts: dict[str, str], level: float | str) -> str:
    """The text of reward.py: {function here: its name there}."""
    text = Path(__file__).read_text(encoding="utf-8")
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    pieces = [ast.get_source_segment(text, nodes[name]) for name in (*READERS, *parts)]
    for place, (name, public) in enumerate(parts.items(), start=len(READERS)):
        pieces[place] = pieces[place].replace(f"def {name}(", f"def {public}(", 1).replace("LEVEL", str(level))
    imports = ["random"] * ("random." in "".join(pieces)) + ["re"]
    return "\n\n\n".join(["\n".join(f"import {name}" for name in imports), *pieces]) + "\n"
