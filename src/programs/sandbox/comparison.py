"""Compare results with expected values, and shorten both for verdicts."""

import decimal
import math
import re
import reprlib

from programs.sandbox.values import VIEWS, decode


class Brief(reprlib.Repr):
    """The beginning of a value's text, without the digits of large integers."""

    def repr_int(self, value, level):
        """An integer, or the number of its bits."""
        return repr(value) if value.bit_length() <= 256 else f"<integer of {value.bit_length()} bits>"


def brief(value) -> str:
    """The beginning of plain data's text, for messages."""
    short = Brief()
    short.maxlevel, short.maxstring, short.maxother = 3, 80, 80
    return short.repr(value)


def same(expected, actual) -> bool:
    """Compare plain data strictly: True is not 1; a float may differ by 1e-6 of itself; a tuple equals a list.

    Data from JSON has string keys only, so a dict with other keys is compared by their text.
    """
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        if isinstance(expected, float) and math.isfinite(expected):
            return math.isfinite(actual) and math.isclose(expected, actual, rel_tol=1e-6, abs_tol=1e-9)
        return expected == actual or (expected != expected and actual != actual)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        if all(isinstance(key, str) for key in expected) and not any(isinstance(key, str) for key in actual):
            actual = {str(key): item for key, item in actual.items()}
        return expected.keys() == actual.keys() and all(same(item, actual[key]) for key, item in expected.items())
    if VIEWS.get(type(actual)) in ("keys", "items"):
        return actual == expected  # as sets
    return type(expected) is type(actual) and expected == actual


def same_token(expected: str, actual: str) -> bool:
    """Compare two words of output: equal, or close where the expected one is written as a decimal; 2.0 equals 2."""
    if expected == actual:
        return True
    if len(expected) > 40 or len(actual) > 40 or not set(".eE") & set(expected + actual):
        return False
    try:
        if re.fullmatch("-?(?:0|[1-9][0-9]*)", expected):
            return decimal.Decimal(actual) == int(expected)
        return bool(set(".eE") & set(expected)) and same(float(expected), float(actual))
    except (ValueError, ArithmeticError):
        return False


def same_output(expected: str, actual: str) -> bool:
    """Compare printed text line by line; ignore white space at the ends of lines and empty lines around the text."""
    actual, start = actual.strip(), 0
    for words in map(str.split, expected.strip().split("\n")):  # reads no more output than is expected
        end = actual.find("\n", start)
        end = len(actual) if end < 0 else end
        printed = actual[start:end].split(maxsplit=len(words))
        if len(words) != len(printed) or not all(map(same_token, words, printed)):
            return False
        start = end + 1
    return start > len(actual)


def error_text(answer: dict) -> str:
    """What a program raised, in one line."""
    parts = (answer.get(part) for part in ("name", "message"))
    return ": ".join(part[:500] if isinstance(part, str) else "…" for part in parts)[:500]


def compare(answer: dict, expected, mode: str) -> str:
    """Return "" if the program's answer is the expected value; mode is same, == or wrapped (perhaps in a list)."""
    if "error" in answer:
        return error_text(answer)
    actual = decode(answer.get("value"))
    try:
        equal = actual == expected if mode == "==" else same(expected, actual)
        equal = equal or (mode == "wrapped" and same(expected[0], actual))
        return "" if equal else f"returned {brief(actual)}, expected {brief(expected)}"
    except (RecursionError, ArithmeticError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
