"""The score of a completion, and the command line."""

import argparse
import json
import re
import sys
from typing import Any

from parts.data.answer_marks import accepted
from parts.data.stated_answers import without_words
from parts.foundation.messages import tell
from programs.math_grader.answers import _bare, _is_copied, _worked_out, final_answer, gold_answer
from programs.math_grader.equality import math_equal
from programs.math_grader.values import _value
from programs.math_grader.vocabulary import _clean
from programs.math_grader.worker import _WORKER, _math_worker, one_item


def math_score(text: str, gold: Any, prompt: str = "") -> float | None:
    """1.0 if the completion's final answer equals gold, or one of a list; 0.0 if not, None if no gold can be read.

    If gold is a number, an answer that still has to be worked out scores 0, such as 34+71 for 105. So does an equation,
    inequality or expression copied from the prompt, such as 2x + 3x for 5x.
    Takes a second of processor time at most; the first item that needs the worker also waits for its start.
    """
    _WORKER.ensure()
    with one_item():
        scores = [_score(text, one, prompt) for one in accepted(gold)]
        return max((score for score in scores if score is not None), default=None)


def _score(text: str, gold: Any, prompt: str) -> float | None:
    """math_score for one gold answer."""
    expected = gold_answer(gold)
    if expected is None or _value(expected).kind == "bad":
        return None
    answer = final_answer(text) or ""
    equal = math_equal(answer, expected)
    if equal is False and (short := without_words(answer)) != answer:
        answer, equal = short, math_equal(short, expected)
    if equal and max(len(answer), len(expected)) < 200 and _bare(answer) != _bare(expected):
        formula = re.search(r"\\binom|!|(?<!10)\^|[\d%]-", _clean(expected))
        if not formula and _worked_out(expected, ""):
            equal = _worked_out(answer, prompt[-1000:])
        equal = equal and not _is_copied(answer, expected, prompt[-1000:])
    return None if equal is None else float(bool(answer) and equal)


def with_end_of_options(argv: list[str]) -> list[str]:
    """The arguments with `--` before the first that begins with a single minus, as -4i is an answer, not an option."""
    first = next((i for i, word in enumerate(argv) if re.match("-[^-]", word) and word != "-h"), len(argv))
    return argv if "--" in argv or first == len(argv) else [*argv[:first], "--", *argv[first:]]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Grade a mathematical answer: 1.0 right, 0.0 wrong, null if the gold answer cannot be read. "
        "One JSON line on stdout; exit 0, or 2 for bad input.",
        epilog='example: math_grader.py "so it is \\boxed{42}" 42',
        allow_abbrev=False,
    )
    parser.add_argument("text", help="a completion")
    parser.add_argument("gold", help="its gold answer")
    args = parser.parse_args(with_end_of_options(sys.argv[1:] if argv is None else argv))
    tell(json.dumps({"score": math_score(args.text, args.gold), "answer": final_answer(args.text)}))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--math-worker"]:
        _math_worker()
    else:
        sys.exit(main())
