"""Reading an expression."""

import cmath
import math
import re
import zlib
from fractions import Fraction
from typing import Any, NamedTuple

from programs.math_grader.vocabulary import _CALLS, _SYMBOL, _TOKEN


class _Refused(Exception):
    """The reader leaves this text to the worker, or (True) calls it too big for anyone."""


class _Value(NamedTuple):
    """One answer; kind: num (data: values at sample points) | seq | mat | eq | rel | ne | all | text | raw | digits | …

    digits: text with digits of another script, equal to the same text only; huge: too large to read; bad: no answer.
    """

    kind: str
    data: Any = None
    src: str = ""
    unit: str = ""
    ulp: Fraction = Fraction(0)  # last place of a decimal of 4 or more significant digits


class _Reader:
    """Evaluate an expression at one sample point: rationals stay exact, everything else is float or complex."""

    def __init__(self, text: str, sample: int):
        self.tokens, self.sample, self.symbols = [*_TOKEN.findall(text), ""], sample, False
        self.at = self.depth = 0
        if len(self.tokens) > 400 or max(map(len, self.tokens)) > 300:
            raise _Refused(True)

    def power(self, base, exponent):
        whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        if whole and isinstance(base, Fraction):
            bits = max(abs(base.numerator), base.denominator).bit_length() - 1
            if abs(exponent) * bits > 4000 or abs(exponent) > 10**6:
                raise _Refused(True)
            return base ** int(exponent)
        if abs(exponent) > 300:  # floats would under- or overflow
            raise _Refused(True)
        if whole:
            return base ** int(exponent)
        if isinstance(base, complex) or isinstance(exponent, complex) or base >= 0:
            return (base if isinstance(base, complex) else float(base)) ** exponent
        if isinstance(exponent, Fraction) and exponent.denominator % 2:
            return (-1) ** exponent.numerator * float(-base) ** float(exponent)  # the real root
        return complex(base) ** exponent

    def next(self, wanted: str = "") -> str:
        self.at += 1
        token = self.tokens[self.at - 1]
        if not token or (wanted and token != wanted):
            raise _Refused(False)
        return token

    def read(self, floor: int = 0):
        """Read an operand and the operators that bind tighter than `floor`: 1 sum, 2 product, 4 power, 5 factorial."""
        self.depth += 1
        if self.depth > 60:
            raise _Refused(True)
        value = self.operand(self.next())
        while sign := self.tokens[self.at]:
            level = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 4, "!": 5}.get(sign)
            level = 2 * (sign[0] in "({√\\" or sign[0].isalpha()) if level is None else level
            if level <= floor:
                break
            self.at += sign in "+-*/^!"
            if sign == "!":
                if not isinstance(value, Fraction) or value.denominator > 1 or not 0 <= value <= 200:
                    raise _Refused(isinstance(value, Fraction))
                value = Fraction(math.factorial(int(value)))
                continue
            right = self.read(3 if sign == "^" else level)
            value = (
                value + right
                if sign == "+"
                else value - right
                if sign == "-"
                else value / right
                if sign == "/"
                else self.power(value, right)
                if sign == "^"
                else value * right
            )
        self.depth -= 1
        return value

    def operand(self, token: str):
        """Read a sign, number, group, fraction, root, function or symbol."""
        if token in ("+", "-"):
            return self.read(2) * (1 if token == "+" else -1)
        if token[0].isdigit() or token[0] == ".":
            value = Fraction(token)
            if token.isdigit() and self.tokens[self.at] == "\\frac":
                part = self.read(9)
                if not isinstance(part, Fraction) or not 0 < part < 1:
                    raise _Refused(False)
                value += part  # a mixed number
            return value
        if token in ("(", "{"):
            value = self.read()
            self.next(")" if token == "(" else "}")
            return value
        if token in ("\\frac", "\\binom"):
            top, low = self.read(9), self.read(9)
            if token == "\\frac":
                return top / low
            if not all(isinstance(n, Fraction) and n.denominator == 1 and 0 <= n < 500 for n in (top, low)):
                raise _Refused(False)
            return Fraction(math.comb(int(top), int(low)))
        if token == "√":
            degree = Fraction(2)
            if self.tokens[self.at] == "[":
                self.next()
                degree = self.read()
                self.next("]")
            return self.power(self.read(9), 1 / degree)
        if (name := token.lstrip("\\")) in _CALLS:
            return self.call(name)
        if token in ("π", "e", "i", "∞"):
            return {"π": math.pi, "e": math.e, "i": 1j, "∞": 7.3e99}[token]
        if not _SYMBOL.fullmatch(token):
            raise _Refused(False)
        self.symbols = True  # the last sample is negative; each symbol has its own step, so that a - b is not constant
        code = zlib.crc32(re.sub(r"[{}]", "", token).encode())
        place = code % 9973 / 9973 + 0.31 + self.sample * (0.418 + code // 9973 % 997 / 2500)
        return -place if self.sample == 3 else place

    def call(self, name: str):
        """Read a function: its power or base, then an argument in brackets or up to the next sum or function."""
        power = base = None
        while self.tokens[self.at] in ("^", "_"):
            mark = self.next()
            power, base = (self.read(9), base) if mark == "^" else (power, self.read(9))
        tight = self.tokens[self.at] in ("(", "{")
        value = self.read(9 if tight else 3)
        while not tight and (_SYMBOL.fullmatch(self.tokens[self.at]) or self.tokens[self.at] == "π"):
            value *= self.read(3)
        if power == -1 and f"arc{name}" in _CALLS and base is None:
            name, power = f"arc{name}", None  # tan^{-1} is the inverse function
        if power is not None and (not isinstance(power, Fraction) or power < 1):
            raise _Refused(False)
        value = _CALLS[name](complex(value)) if base is None else cmath.log(complex(value)) / cmath.log(complex(base))
        return (value if abs(value.imag) > 1e-13 * abs(value) else value.real) ** int(power or 1)
