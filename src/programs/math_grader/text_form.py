"""Texts brought into one form."""

import functools
import itertools
import re
import unicodedata

from programs.math_grader.vocabulary import _BRACKETED, _CLEAN, _FOLD, _GREEK, _NAMES, _REMARK, _remark, _unit


def _is_odd_digit(c: str) -> bool:
    """Whether a character is a digit or number other than ASCII's: ٤, ②, ⒈; not ４, an exponent, index or ½."""
    if c.isascii() or "０" <= c <= "９":
        return False
    tag = unicodedata.decomposition(c).partition(" ")[0]
    if tag in ("<super>", "<sub>", "<fraction>", "<square>"):  # square: ㎡
        return False
    return c.isdigit() or any(d.isdigit() for d in unicodedata.normalize("NFKC", c))


@functools.lru_cache(4096)
def _clean(text: str) -> str:
    """Fold scripts, spaces and LaTeX spellings into one notation."""
    if not text.isascii():
        text = re.sub("(?<=[0-9])(?=[¼-¾⅐-⅞])", " ", re.sub("[º˚]", "°", text))
        for mark, signs in (("^", "[⁰¹²³⁴-⁹⁺⁻]+"), ("_", "[₀-₉]+")):
            text = re.sub(signs, lambda m, mark=mark: f"{mark}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
        text = unicodedata.normalize("NFKC", text).translate(_FOLD)
    for old, new in _CLEAN:
        text = old.sub(new, text)
    if "(" in text or "[" in text:
        text = _REMARK.sub(_remark, _BRACKETED.sub(_unit, text.strip()))
    return text.strip()


def _split(text: str, marks: str) -> list[str]:
    """Split at the marks outside brackets."""
    parts, depth, start = [], 0, 0
    for m in re.finditer(rf"([(\[{{⦃])|([)\]}}⦄])|{marks}", text):
        depth += bool(m[1]) - bool(m[2])
        if not (depth or m[1] or m[2]):
            parts, start = [*parts, text[start : m.start()]], m.end()
    return [*parts, text[start:]]


_BETWEEN = r"[,;]|\b(?:or|and)\b"  # the items of a list without brackets


def _is_enclosed(text: str) -> bool:
    """Whether the first character is a bracket that the last one closes."""
    depths = itertools.accumulate((c in "([{⦃") - (c in ")]}⦄") for c in text[:-1])
    return text[0] in "([{⦃" and text[-1] in ")]}⦄" and min(depths) > 0


def _cheap(src: str) -> bool:
    """Whether sympy may see this: known macros only, small numbers, no tower of powers."""
    # no min, max or gcd: they would pay for a list of guesses
    known = rf"\\(?:{_NAMES}|frac|binom|to|int|sum|prod|lim|[lr](?:floor|ceil))|{_GREEK}"
    return (
        len(src) < 200
        and src.count("^") < 9
        and src.count("{") < 20
        and all(re.fullmatch(known, macro) for macro in re.findall(r"\\[A-Za-z]+", src))
        and not re.search(r"\d{15}|\d\d\d!|[)}]!|!!|\^\{?-?\d{4}|\^\s*(?:\{[^{}]*|\w)\^", src)
        and not re.search(r"[^\w\s\\{}()\[\]+*/^=<>≤≥√π∞!.|,-]", src)
    )
