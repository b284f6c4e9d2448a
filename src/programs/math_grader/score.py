"""The score of a completion."""

import json
import re
from typing import Any

from parts.rewards.stated_answers import without_words
from programs.math_grader.answers import _bare, _is_copied, _worked_out, final_answer, gold_answer
from programs.math_grader.equal_answers import math_equal
from programs.math_grader.text_form import _clean
from programs.math_grader.values import _value
from programs.math_grader.worker import _WORKER, WorkerStarting, one_item


def math_score(text: str, gold: Any, prompt: str = "") -> float | None:
    """1.0 if the completion's final answer equals gold, or one of a list; 0.0 if not, None if no gold can be read.

    Where gold is a number, an answer still to be worked out pays nothing: 34+71 for 105, or what the prompt says; nor
    does another equation, inequality or expression that the prompt says: 2x + 3x for 5x.
    Takes a second at most, but for `start_worker(patience_s)`: None, with a warning, also where the worker was needed
    and is still starting.
    """
    _WORKER.ensure()
    with one_item():
        try:
            scores = [_score(text, one, prompt) for one in (gold if isinstance(gold, list | tuple) else [gold])]
            return max((score for score in scores if score is not None), default=None)
        except WorkerStarting:
            what = "the worker of math-verify takes more than a second to start: what needs it until then scores None"
            _WORKER.tell(f"{what}; try math_grader.start_worker(patience_s=60) before the first item")
            return None


def _score(text: str, gold: Any, prompt: str) -> float | None:
    """math_score within an item's time."""
    expected = gold_answer(gold)
    if expected is None or _value(expected).kind == "bad":
        return None
    answer = final_answer(text) or ""
    equal = math_equal(answer, expected)
    if equal is False and (short := without_words(answer)) != answer:
        answer, equal = short, math_equal(short, expected)
    if equal and max(len(answer), len(expected)) < 200 and _bare(answer) != _bare(expected):
        formula = re.search(r"\\binom|!|(?<!10)\^", _clean(expected))
        if not formula and _worked_out(expected, ""):
            equal = _worked_out(answer, prompt[-1000:])
        equal = equal and not _is_copied(answer, expected, prompt[-1000:])
    return None if equal is None else float(bool(answer) and equal)


def graded_rows(path: str, completion: str, answer: str):
    """Yield {"row", "score", "answer"} for each row of a JSONL file; ValueError names the line of a bad one."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                text, gold = row[completion], row[answer]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                what = f"{path}, line {number}: got {type(error).__name__}: {error}"
                raise ValueError(f"{what}; expected a JSON object with {completion!r} and {answer!r}") from None
            yield {"row": number, "score": math_score(str(text), gold), "answer": final_answer(str(text))}
