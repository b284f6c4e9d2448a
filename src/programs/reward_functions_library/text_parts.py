"""Find answers, blocks and sections in texts."""

import contextlib
import itertools
import json
import math
import re
import unicodedata
from fractions import Fraction

from parts.data.answer_marks import accepted, boxes_in, is_heading
from parts.data.stated_answers import (
    HEDGE,
    NEGATED,
    ROUGHLY,
    WEAK_MARK,
    corrected,
    marks,
    narrow,
    visible,
    with_point,
    without_json,
    without_words,
)
from parts.rewards.contexts import SCALE_WORDS, chosen, is_denied, stated_boxes

# ---- text: patterns run in linear time on any text: no nested repeats, no lazy match that fails from many starts
_AREA = r"(?<![A-Za-z])(?:[mcdk]?m|met(?:er|re)s?|in|inch(?:es)?|ft|feet|foot|yd|yards?|mi|miles?|units?|s)"
_SCALE = f"(?:{'|'.join(SCALE_WORDS)})(?:s|ths?)?"
_PRICE = r"(?:[A-Z]{0,3} ?[$€£¥₹] ?|(?:Rs|USD|EUR|GBP|INR|CHF|CAD|AUD)\b\.? ?)?"  # before a number: C$5, EUR 5
_NUMBER = re.compile(
    rf"(?i:{ROUGHLY}|[^\W\d]\w{{0,8}} ?=|[^\w.+√<>≤≥≠±×·÷-]){{0,3}}\s?([+-]?){_PRICE}"
    r"((?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})?(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s?/\s?([0-9]{1,20}))?((?<=\d) ?!+)?"
    # no other number, no other digit of any script after it
    r"(?! ?(?:[ikxyz]|halves|thirds|squared|cubed|factorial|below|at (?:least|most))(?![\w-])|\+$)"
    rf"(?!.*(?:\b(?:or|and|to|maybe|plus|minus|times|x|oder|und|ou|et|o|y|{_SCALE})\b|[或和か、π√]|\\(?:pi|sqrt)|{NEGATED}))"
    rf"[^\d,;=?]{{0,30}}(?:{_AREA} ?\}}? ?\^?\{{?[23]\}}?[.*_$ )]{{0,4}})?"
)
_FRACTION = re.compile(r"((?<=\d))?\\[dt]?frac ?(?:\{(\d{1,20})\}\{(\d{1,20})\}|(\d) ?(\d)(?!\d))")
_SHORT = {"k": 10**3, "m": 10**6, "b": 10**9}
_SCALED = re.compile(  # no 千克
    rf"(?ai:(?<=\d) ?({'|'.join(SCALE_WORDS)})s?(?![a-z]|(?<=千)[克米瓦]))|([$€£¥₹] ?[\d.,]+)([kKMB])(?![\w$^])"
)
_BLANK = "[ \u00a0\u202f]"
_VULGAR = re.compile(rf"{_BLANK}*([¼-¾⅐-⅞])")
_MIXED = re.compile(rf"(?<![\d./])(\d{{1,9}}){_BLANK}(\d{{1,9}})/(\d{{1,9}})(?![\d/])")  # 2 1/2
_POWER = re.compile(r"(?:\s*(?:\\times|\\cdot|[×·*xX])\s*|^)10\s*(?:\^|\*\*)\s*\{?([+-]?\d{1,3})\}?(?![\d}])")
_RESTATED = re.compile(r"([^()]+) \(([^()]*[A-Za-z]{3}[^()]*)\)")
_AROUND = " \t\n'\"`*_$「」“”"  # characters that may enclose an answer
_QUOTED = re.compile(r"^(?:(\*\*|['\"`$])((?:(?!\1).)+)\1|“([^“”]+)”|「([^「」]+)」)$")  # a gold in quotes
_WORD, _PLAIN = re.compile(r"\w+"), re.compile(r"^\\(?:text|textbf|math(?:rm|bf)|underline)\{([^{}]*)\}$")
_END = re.compile(r"[*_.]*(?:\n|$)|(?:(?<=\d)|(?<=\w{3}))[*_]*\.\s|[。！？]")  # not after the initials of a name


def _sections(text: str, tag: str) -> list[str]:
    """The contents of every `<tag>…</tag>`."""
    parts = [part.partition(f"</{tag}>") for part in text.split(f"<{tag}>")[1:]]
    return [content.strip() for content, closed, _ in parts if closed]


def _blocks(text: str) -> list[tuple[str, str]]:
    """(label, content) of every closed fenced block, without its first fence's indentation, as in a list."""
    lines, blocks = text.split("\n"), []
    fences = [i for i, line in enumerate(lines) if line.lstrip().startswith("```")]
    for start, end in zip(fences[::2], fences[1::2], strict=False):
        indent = len(lines[start]) - len(lines[start].lstrip())
        content = re.sub(rf"(?m)^[ \t]{{0,{indent}}}", "", "\n".join(lines[start + 1 : end]))
        blocks.append((lines[start].strip(" \t\r`").lower(), content))
    return blocks


def _code(text: str) -> str:
    """The last closed Python block of the visible text, else the last without label; all of it if there is no fence."""
    if "```" not in text:
        return visible(text)
    blocks = [(label.partition(" ")[0], content) for label, content in reversed(_blocks(visible(text)))]
    named = [content for label, content in blocks if label in ("python", "py", "python3")]
    return next(iter(named or [content for label, content in blocks if not label]), "")  # unlabelled: an output, maybe


def _found(text: str, marked=True) -> list[str]:
    """Answers in `<answer>`, else (if `marked`) in boxes, else after marks and phrases, with quotes around them."""
    text = corrected(without_json(visible(text))) if marked else visible(text)
    if wholes := _sections(text, "answer") or (marked and stated_boxes(text)):
        parts = [part for whole in wholes for part in boxes_in(whole) or _stated(whole) or [whole]]
    else:
        parts = _stated(text) if marked else []
    return [part for part in parts if part.strip()]


def extract_answer(text: str, marked=True) -> str | None:
    """The visible answer in `<answer>`, else in a box, after a mark or phrase; None without one, "" if two differ."""
    answers = [_PLAIN.sub(r"\1", _trimmed(part)) for part in _found(text, marked)]
    return None if not answers else answers[-1] if len({*map(without_words, answers)}) == 1 else ""


def _trimmed(text: str) -> str:
    """A text without the marks that enclose it; money such as $1M keeps its sign."""
    bare = text.strip(_AROUND)
    return f"${bare}" if text.count("$") == 1 and re.match(r"[\d.,]+[kKMB](?![\w$^])", bare) else bare


def _stated(text: str) -> list[str]:
    """The text after each mark or phrase, up to the end of its sentence, or with a hedge that follows it."""
    stated, places = [], [mark for mark in marks(text) if not is_denied(text, mark)]
    for mark, after in itertools.zip_longest(places, places[1:]):
        rest = text[mark.end() : mark.end() + 300]
        if after and mark.re is WEAK_MARK:  # So A. So B.
            rest = text[mark.end() : after.start()].rstrip()
        end = _END.search(rest)
        part = rest if HEDGE.match(rest, end.end()) else rest[: end.start()]
        follows = after and after.start() < mark.end() + end.start()  # "**Answer:** The answer is 42."
        if not follows and not is_heading(text, mark):
            stated.append(chosen(part))
    prose = [part for part in stated if len(re.findall(r"[^\W\d_]{2,}", part)) > 5]  # a heading, "Lösung: Zuerst ..."
    return stated if len(prose) == len(stated) else [part for part in stated if part not in prose]


def _final(text: str, marked=True) -> str:
    """The marked answer, else all of the visible text."""
    answer = extract_answer(text, marked)
    return (corrected(visible(text)) if marked else visible(text)).strip() if answer is None else answer


def _readings(text: str) -> tuple[str, str]:
    """The final answer in ASCII's width, (as it is, without the words after it)."""
    final = narrow(_final(text))
    return final, without_words(final).strip(_AROUND)


def _number(value) -> float | None:
    """A finite number, from a number or text such as "1,234", "$3.50", "1/2" or "46 km"."""
    text = narrow(str(value)).strip()[:120].translate(dict.fromkeys(map(ord, "−–—﹣"), "-"))
    text = re.sub(r"\\[,;:! ]|\\approx\b", " ", re.sub(r"(?<=\d)(?:\{,\}|,?\\!|\\[,;: ])(?=\d{3})", ",", text))
    text = re.sub(r"(?i)^(?:negative|minus) (?=[$\d])", "-", text)
    restated = _RESTATED.fullmatch(text)  # 12 (a dozen)
    if restated and (number := _number(restated[1])) and number == _number(re.sub("^(?:an?|one) ", "1 ", restated[2])):
        return number
    text = _POWER.sub(lambda m: f"{'' if m.start() else 1}e{m[1]}", text)
    text = _FRACTION.sub(lambda m: f"{'' if m[1] is None else ' '}{m[2] or m[4]}/{m[3] or m[5]}", text)
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[1]).replace("⁄", "/"), text).strip()
    text = _MIXED.sub(lambda m: f"{int(m[1]) * int(m[3]) + int(m[2])}/{m[3]}" if int(m[2]) < int(m[3]) else m[0], text)
    text = re.sub(rf"(?<![\d.,])\d{{1,3}}(?:{_BLANK}\d{{3}})+(?!\d)", lambda m: re.sub(_BLANK, "", m[0]), text)
    scales = [SCALE_WORDS[m[1].lower()] if m[1] else _SHORT[m[3].lower()] for m in _SCALED.finditer(text)]
    match = len(scales) < 2 and _NUMBER.fullmatch(with_point(_SCALED.sub(lambda m: m[2] or "", text)))  # no 3亿5000万
    try:
        number = Fraction(match[1] + match[2].replace(",", "")) / int(match[3] or 1) * math.prod(scales)
        if scales or not match[4] or number > 170:  # 5 million! is no factorial, nor is $1,000!
            return float(number)
        return math.gamma(number + 1) if match[4].strip() == "!" else None
    except (TypeError, ValueError, ArithmeticError):
        return None


def _tight(text: str) -> str:
    """Fold apostrophes and Unicode's forms; remove the blanks around brackets and commas in a list of numbers."""
    text = unicodedata.normalize("NFC", text).translate({0x2018: "'", 0x2019: "'", 0x2011: "-"})
    return re.sub(r" ?([\[\],]) ?", r"\1", text) if re.fullmatch(r"\[[-+\d.,eE\[\] ]*\]", text) else text


def _golds(answer) -> list[str]:
    """The accepted answers of a row: one, or a list of alternatives."""
    return [str(gold) for gold in accepted(answer) if gold is not None and str(gold).strip()]


def _units(text: str, completion_ids, unit: str):
    """The words or characters of a text, or the tokens, which completion_ids has."""
    if unit == "tokens" and completion_ids is None:
        raise TypeError("got no column completion_ids; expected it for unit='tokens'; try unit='words'")
    return list(completion_ids or ()) if unit == "tokens" else text.split() if unit == "words" else text


def _length(text: str, completion_ids, unit: str) -> int:
    """The number of units of a text, without white space around it."""
    return len(_units(text.strip(), completion_ids, unit))


def _distinct(units, size: int) -> float:
    """Distinct n-grams over all n-grams; 1 if there are none."""
    n = len(units) - size + 1
    grams = [units[i : i + size] if isinstance(units, str) else tuple(units[i : i + size]) for i in range(n)]
    return len({*grams}) / len(grams) if grams else 1.0


def _layout(text: str, tags) -> list[str]:
    """Text before, between and after the tags' marks, up to the first that is not there exactly once and in order."""
    pieces = [text]
    for mark in (mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        before, mark_found, after = pieces[-1].partition(mark)
        if not mark_found or text.count(mark) != 1:
            break
        pieces[-1:] = before, after
    return pieces


def _json(text: str, max_characters=math.inf):
    """The value of strict JSON, alone or as the only fenced block of a text after its thinking; None for others."""
    for part in dict.fromkeys((text.strip(), visible(text).strip())):  # a string may hold <think>
        blocks = _blocks(part) if part[:3] + part[-3:] == "``````" else []
        part = blocks[0][1] if len(blocks) == 1 else part
        with contextlib.suppress(ValueError, RecursionError):  # parse_constant=int refuses NaN and Infinity
            if len(part) <= max_characters:
                return json.loads(part, parse_constant=int)
    return None
