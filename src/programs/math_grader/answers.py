"""Find the final answer in a completion or a gold column; the score; the command line."""

import argparse
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from parts.data.answer_marks import accepted, boxes_in, is_heading, marked_gold
from parts.data.stated_answers import (
    HEDGE,
    NEGATED,
    WEAK_MARK,
    corrected,
    has_mark,
    marks,
    without_end_tokens,
    without_json,
    without_words,
)
from parts.foundation.messages import tell
from parts.rewards.contexts import SCALE_WORDS, chosen, is_denied, stated_boxes
from programs.math_grader.equality import math_equal
from programs.math_grader.values import _is_constant, _Value, _value
from programs.math_grader.vocabulary import _CUT, _FILLER, _NAMES, _NO_UNIT, _clean, _is_enclosed, _split
from programs.math_grader.worker import _WORKER, _math_worker, one_item

_FIRM = re.compile(r"\\(?:boxed|fbox)|(?i:<answer>)")
_THOUGHT, _THOUGHT_END = (
    rf"(?i:[<◁]{slash}(?:think(?:ing)?|thought|reasoning)\s*[>▷])|\[{slash}THINK\]|<\|(?:{words})\|>"
    for slash, words in (
        ("", r"begin_of_thought|channel\|>analysis<\|message"),
        ("/", r"end_of_thought|channel\|>final<\|message"),
    )
)


_SUBJECT = re.compile(  # before the number of a sentence: She has, Janet's profit is, The least value of x is
    rf"^ ?(?!.*(?:{NEGATED}))(?!(?:Half|Twice|No|None|Nobody|Each|Both)\b)(?:that )?"
    r"(?:(?:(?i:he|she|it|they|we|there|the(?: [a-z]+){1,6})|[A-Z][a-z]+(?:['’]s [a-z]+)?)"
    r" (?:is|are|has|have|makes?|earns?|needs?|takes?|costs?|pays?|spends?|gets?)"
    r"|(?:Minimum|Maximum|Total|Sum|Result|Value)(?: [a-z]+)?:)"
    r" (?=-? ?\\?[$＄€£]?(?:\d|\\frac|√))"
)
_MEANT = _NO_UNIT | SCALE_WORDS.keys() | {"percent", "base", "times"}  # words that change what a number means
_WORKING = re.compile(r" *\(([^()]+)\)[.*]*$")
_RESTATED = re.compile(r"^\s*(?:or|i\.e\.,?|that is,?|which is|equivalently,?|equal to|=)\s")
_NUMBER = re.compile(r"[*$\\( ]*(-?\d[\d,]*(?:\.\d+)?)")
_TIMES = re.compile(r" ?(?:\\times|\\cdot|(?<=[\w ])[x×·]) ?(?=[$＄€£]?\d)")
_NOUN = re.compile(r"[$＄€£]|\bi\.e\.,?|(?:\bper |/)?[A-Za-z]{2,}")


def _without_working(answer: str, gold: str) -> str:
    """Drop brackets that repeat the value before them, 0.5 (or 1/2), or its calculation: 18 dollars (9 * 2 = 18).

    It stays if the gold answer has a unit and the number has none: 18 (9 × 2 cents) is not $18.
    """
    working = _WORKING.search(answer) if len(answer) < 200 else None
    head = answer[: working.start()] if working else ""
    if not head or (_value(gold).unit and not _value(head).unit):
        return answer
    value = _RESTATED.sub("", working[1])
    spaced = working[0][0] == " " or value.isalpha()  # not: the product 2(2)
    if spaced and value not in head and math_equal(value, head):
        return head
    number = _NUMBER.match(answer)
    if not number or {*re.findall(r"[^\W\d_]+?(?=s?\b)", working[1].lower())} & _MEANT:
        return answer
    sides = _NOUN.sub("", _TIMES.sub("*", working[1])).split("=")
    is_sum = re.search(r"\d\s*[-+*/÷]\s*\d", sides[0]) and all(re.fullmatch(r"[\d.,\s+*/÷-]+", side) for side in sides)
    return head if is_sum and all(math_equal(side, number[1]) for side in sides) else answer


def _statement(text: str, m: re.Match) -> str:
    """The text after `####` or "the answer is", to the end of the sentence; hedges are kept, so they do not pay."""
    rest = text[m.end() : m.end() + 500].lstrip("}")  # of \text{The answer is }
    if block := re.match(r"\$\$(.*?)\$\$|\\\[(.*?)\\\]", rest, re.DOTALL):
        return block[1] or block[2] or ""
    rest = _FILLER.sub("", chosen(rest)) if m[0][0] != "#" else rest.partition("\n")[0]
    end = _CUT.search(re.sub(r"^([^()\[\]\n]+)\)(?=[.!\s]*(?:\n|$))", r"\1\n", rest))  # of (The answer is 18)
    return rest if end and HEDGE.match(rest, end.end()) else without_words(rest[: end.start()] if end else rest)


def _places(text: str, candidates: Iterable[re.Match]) -> list[re.Match]:
    """The marks that state an answer."""
    return [m for m in candidates if not is_heading(text, m) and not is_denied(text, m)]


def final_answer(text: str) -> str | None:
    """Return the final answer of a completion, or None if there is none, it is cut off, or two differ.

    Looks at `<answer>`, `\\boxed{}`, `#### x` and "the answer is x" after the thinking part, or takes a text that is
    nothing but an answer. A box decides over phrases before it. There is no last-number fallback, so digits of the
    prompt and lists of guesses do not count.
    """
    tail = corrected(without_json(without_end_tokens(re.split(_THOUGHT_END, text or "")[-1])))
    tags = re.split(r"(?i)<(/?)answer>", tail)
    boxes = stated_boxes(tail)
    cut = re.search(_THOUGHT, tail) or tags[1::2] != ["", "/"] * (len(tags) // 4)
    if boxes is None or cut:
        return None
    tagged = [part for part in tags[2::4] if not boxes_in(part) and not has_mark(part)]
    boxes = [_statement(box, [*marks(box)][-1]) if has_mark(box) else box for box in boxes]
    firm = [corrected(part).strip() for part in boxes + tagged]
    places = _places(tail, itertools.islice(marks(tail), 500))
    places = places if firm or places else _places(tail, WEAK_MARK.finditer(tail))
    first = _FIRM.search(tail).start() if firm else 0  # a box decides over phrases before it, but not over ####
    soft = [
        _statement(tail, m).strip()
        for m in places
        if (m.start() >= first and not (firm and ("rounded" in m[0] or m.re is WEAK_MARK))) or m[0][0] == "#"
    ]
    soft = [part for part in soft if not _FIRM.search(part)]
    prose = ("text", "raw", "bad", "huge")
    if not firm and not soft:
        return _only_answer(tail.strip())
    final = firm[-1] if firm else next((part for part in reversed(soft) if _value(part).kind not in prose), soft[-1])
    others = {*firm, *soft} - {final}
    for part in others if len(others) < 20 else [""]:
        kind = _value(part).kind
        sentences = all(map(_SUBJECT.match, (part, final)))
        is_short = kind == _value(final).kind and (kind != "text" or len(part.split()) < 4 or sentences)
        if (part in firm or kind not in prose or is_short) and not math_equal(part, final):
            return None
    return final or None


def _only_answer(text: str) -> str | None:
    """A text that is one literal, perhaps with a reason after it, else None; sums are None, as they may be the task."""
    text = _FILLER.sub("", without_words(text))
    value = _value(text) if len(text) < 120 and "\n" not in text else _Value("huge")
    sums = re.sub(r"(?:^-?|\* ?)10\^|\(\d+\+\d+/\d+\)", "", _clean(text)) if value.kind != "huge" else "+"
    sums = re.sub(r"(?<=\d) ?[A-Za-z].*", "", sums) if value.unit else sums  # cm^2
    if value.kind in ("bad", "raw", "huge", "all") or (value.kind == "text" and len(text.split()) > 3):
        return None
    if value.kind == "num" and isinstance(value.data[0], Fraction):
        top = str(abs(value.data[0].numerator))
        reduced = top in sums or not re.search("/|frac", sums)
        return text if reduced and not re.search(r"[+*^!√]|\w\s*-", sums) else None
    return text


def gold_answer(gold: Any) -> str | None:
    """Return the answer in a gold column: GSM8K's `... #### 42`, a solution with a box, LaTeX, text or a number."""
    if gold is None or (isinstance(gold, float) and not math.isfinite(gold)):
        return None
    text = str(gold).strip()
    boxes = boxes_in(text)
    if boxes is None:
        return None
    return (boxes[-1] if boxes else marked_gold(text)) or None


# a sum is never a result; a power or quotient is one unless the prompt has it
_TASK = re.compile(rf"(?<=[\w)}}!])[+*-]|[√|]|\\(?:int|sum|prod|lim|[lr]?floor|[lr]?ceil)|{_NAMES}")
_STEP = re.compile(r"[/^!]|\\(?:frac|binom)")
_OPERATION = re.compile(rf"(?<=.)[+*/^-]|[√|!]|\\(?:frac|binom|int|sum|prod|lim)|{_NAMES}|\w\(")


def _worked_out(answer: str, task: str) -> bool:
    """Whether a numerical answer is a result, not the task itself: copying 34+71 must not pay."""
    value, clean = _value(answer), _clean(answer)
    value = value.data[1] if value.kind == "eq" else value
    values = value.data if value.kind in ("all", "either") else [value]
    if value.kind != "raw" and not all(_is_constant(v) and isinstance(v.data[0], Fraction) for v in values):
        return True  # letters and roots: an expression is the answer
    sides = [side for side in re.split("[=≈]", clean) if _is_constant(_value(side))]
    return any(_is_result(side, bool(value.unit), task) for side in sides or [clean])  # in 34+71 = 105 the last one


def _is_result(side: str, has_unit: bool, task: str) -> bool:
    plain = re.sub(r"\s|^\s*[A-Za-z]\w*\s*=", "", side)
    plain = re.sub(r"(?<=\d)[A-Za-z].*", "", plain) if has_unit else plain  # 5 m/s
    literal = re.sub(r"\*10\^(?:\{[-+]?\d+\}|[-+]?\d+)|\^\{[-+]?\d+\}|\^-\d+|(?<=\d)\+(?=\d+/)", "", plain)
    return not _TASK.search(literal) and not (_STEP.search(plain) and plain in re.sub(r"\s", "", _clean(task)))


_FORM = re.compile(
    r"(?i)\b(?:prime|factor(?!s? of)|as (?:an? )?(?:product|power)|powers? of\b|scientific|exponent|standard form)"
)
_SLASH = re.compile(r"\\frac\{((?:[^{}+-]|\{[^{}]*\})+)\}\{(\w+|√\{\w+\})\}")


def _plain(text: str) -> str:
    """A text in one notation, for comparison as text: \\frac{2}{4} becomes 2/4, x^{2} x^2; words keep their spaces."""
    return re.sub(r"\{(\w)\}", r"\1", _SLASH.sub(r"\1/\2", _clean(text)))


def _bare(text: str) -> str:
    """An answer in `_plain` notation without spaces, name (y =, f(x) =) and enclosing brackets."""
    plain = re.sub(r"\s", "", _plain(text))
    plain = re.sub(r"^(?:[A-Za-z]\w*|[a-z]\([a-z]\))=(?=[^=<>≤≥≠]+$)", "", plain)
    return plain[1:-1] if plain[:1] == "(" and _is_enclosed(plain) and "," not in plain else plain


def _orders(plain: str):
    """Yield a sum with its terms in every order, if there are at most four, else as it is."""
    terms, at = [], 0
    for part in _split(plain, "[+-]"):
        if part:
            terms.append((plain[at - 1] if at else "+") + part)
        at += len(part) + 1
    for order in itertools.permutations(terms) if len(terms) < 5 else [terms]:
        yield "".join(order).removeprefix("+")


def _is_copied(answer: str, expected: str, prompt: str) -> bool:
    """Whether an answer other than the gold one's text is copied from the prompt: 2x = 6 for x = 3, 2x + 3x for 5x.

    Checked for equations, inequalities and expressions with an operation, where a sum's terms may have any order.
    """
    plain, gold = (re.sub(r"\s", "", _plain(text)) for text in (answer, expected))
    if all(re.search("[=<>≤≥≠]", text) for text in (plain, gold)):
        forms, converted = [plain], False
    else:
        plain, gold, value, other = _bare(answer), _bare(expected), _value(answer), _value(expected)
        expression = value.kind in ("num", "raw", "eq") and not value.unit and _OPERATION.search(plain)
        if plain.isdigit() and re.search(r"\d[*^]", gold):  # 30 for 2*3*5, where the prompt asks for that form
            expression = _FORM.search(prompt)
        converted = value.unit != other.unit and value.data != other.data  # 30° for π/6, 1 h 30 min for 90 min
        joined = [re.sub("and|,", joint, plain) for joint in ("", ",", "and")]  # 1 h, 30 min
        forms = [*_orders(plain), *joined] if expression or converted else []
    if gold in forms:
        return False
    task = _plain(prompt)
    spaced = [r"\s*".join(map(re.escape, form)) for form in forms]
    is_in_task = any(re.search(rf"(?<![\w.)}}^*/+-]){form}(?![\w(^*/+-]|\.\d)", task) for form in spaced)
    return is_in_task or bool(converted and re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", prompt))  # 5'6"


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
    if equal is False:
        plain = _clean(answer) if len(answer) < 200 else answer
        worked = (_without_working(form, expected) for form in (answer, plain))
        for short in (without_words(answer), _SUBJECT.sub("", plain), *worked):
            if equal is False and short not in (answer, plain):
                answer, equal = short, math_equal(short, expected)
    if equal and max(len(answer), len(expected)) < 200 and _bare(answer) != _bare(expected):
        formula = re.search(r"\\binom|!|(?<!10)\^|[\d%]-", _clean(expected))
        if not formula and _worked_out(expected, ""):
            equal = _worked_out(answer, prompt[-1000:])
        equal = equal and not _is_copied(answer, expected, prompt[-1000:])
    return None if equal is None else float(bool(answer) and equal)


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
    argv = sys.argv[1:] if argv is None else argv
    # -4i is an answer, not an option
    first = next((i for i, word in enumerate(argv) if re.match("-[^-]", word) and word != "-h"), len(argv))
    args = parser.parse_args(argv if "--" in argv else [*argv[:first], "--", *argv[first:]])
    tell(json.dumps({"score": math_score(args.text, args.gold), "answer": final_answer(args.text)}))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--math-worker"]:
        _math_worker()
    else:
        sys.exit(main())
