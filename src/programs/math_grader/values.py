"""Read answers: expressions, evaluated at sample points, and the structures around them."""

import cmath
import functools
import itertools
import math
import operator
import re
import zlib
from fractions import Fraction
from typing import Any, NamedTuple

from parts.data.stated_answers import NEGATED, second_letter, with_point
from parts.rewards.contexts import SCALE_WORDS
from programs.math_grader.vocabulary import (
    _BETWEEN,
    _CALLS,
    _CHOICE,
    _CJK,
    _LETTER,
    _LETTER_OF,
    _MONEY,
    _NAMES,
    _NO_UNIT,
    _SI,
    _SI_BASE,
    _SYMBOL,
    _TOKEN,
    _UNIT,
    _UNITS,
    _clean,
    _is_enclosed,
    _split,
)

_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d?\d?((?:,\d{3})+|(?: \d{3})+)(?![\d,])")
_LABEL = re.compile(r"(?:(?<=\s)|\A)\(?([A-Ja-j])(?:\)|[.:](?=\s)) ?")  # labels a part of an answer


class _Refused(Exception):
    """The reader cannot read a text; the argument True says that it is too big for the worker too."""


class _Value(NamedTuple):
    """One answer; kind: num (data: values at sample points) | seq | mat | eq | rel | ne | all | either | text | raw | …

    either: two readings of one text; raw: for the worker; huge: too large to read; bad: no answer.
    """

    kind: str
    data: Any = None
    src: str = ""
    unit: str = ""
    ulp: Fraction = Fraction(0)  # value of a decimal's last place, if it has at least 4 significant digits


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
            known = {"+": operator.add, "-": operator.sub, "/": operator.truediv, "^": self.power}
            value = known.get(sign, operator.mul)(value, right)
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
            if not isinstance(low, Fraction) or low.denominator > 1 or not 0 <= low < 500:
                raise _Refused(False)
            return math.prod((top - i for i in range(int(low))), start=Fraction(1)) / math.factorial(int(low))
        if token == "√":
            degree = Fraction(2)
            if self.tokens[self.at] == "[":
                self.next()
                degree = self.read()
                self.next("]")
            return self.power(self.read(9), 1 / degree)
        if (name := token.lstrip("\\")) in _CALLS:
            return self.call(name)
        if token in (constants := {"π": math.pi, "e": math.e, "i": 1j, "∞": 7.3e99, "degree": math.pi / 180}):
            return constants[token]
        if not _SYMBOL.fullmatch(token):
            raise _Refused(False)
        self.symbols = True  # the last sample is negative; each symbol has its own step, so that a - b is not constant
        code = zlib.crc32(re.sub(r"[{} ]|(?<=\\)var", "", token).encode())
        place = code % 9973 / 9973 + 0.31 + self.sample * (0.418 + code // 9973 % 997 / 2500)
        return -place if self.sample == 3 else place

    def call(self, name: str):
        """Read a function: its power or base, then an argument in brackets, or up to the next sum or function."""
        power = base = None
        while self.tokens[self.at] in ("^", "_"):
            mark = self.next()
            power, base = (self.read(9), base) if mark == "^" else (power, self.read(9))
        tight = self.tokens[self.at] in ("(", "{")
        value = self.read(9 if tight else 3)
        while not tight and (_SYMBOL.fullmatch(self.tokens[self.at]) or self.tokens[self.at] in ("π", "degree")):
            tight = self.tokens[self.at] == "degree"  # ends the argument
            value *= self.read(3)
        if power == -1 and f"arc{name}" in _CALLS and base is None:
            name, power = f"arc{name}", None  # tan^{-1} is the inverse function
        if power is not None and (not isinstance(power, Fraction) or power < 1):
            raise _Refused(False)
        value = _CALLS[name](complex(value)) if base is None else cmath.log(complex(value)) / cmath.log(complex(base))
        return (value if abs(value.imag) > 1e-13 * abs(value) else value.real) ** int(power or 1)


def _items(parts: list[str], down) -> list[_Value]:
    """Read the items of a set or list; 1 ± 2 counts as two."""
    items = []
    for part in parts:
        if part.strip():
            value = down(part)
            items += value.data[2] if "±" in part and value.kind == "seq" and value.data[0] == "" else [value]
    return items


def _without(points: list[_Value]) -> _Value:
    """All real numbers except these points, as a union of intervals; a text if they are not all real numbers."""
    if not points or any(v.kind != "num" or len(v.data) > 1 or isinstance(v.data[0], complex) for v in points):
        return _Value("text", "∖" + "".join(v.src for v in points))
    places = {v.data[0]: v for v in points}
    ends = [_read("-∞", 1), *(places[key] for key in sorted(places)), _read("∞", 1)]
    pairs = [_Value("seq", ("(", ")", [a, b]), f"({a.src},{b.src})") for a, b in itertools.pairwise(ends)]
    return _Value("seq", ("∪", "∪", pairs))


def _unequal(text: str, down) -> _Value:
    """Read x ≠ 3, x ≠ 1 and x ≠ 3, x ≠ ±3 (all numbers but these), or an expression ≠ another."""
    sides = [part.strip() for part in text.split("≠")]
    values = [*map(down, sides)] if len(sides) == 2 and not re.search(_BETWEEN, text) else []
    sizes = [len(value.data) if value.kind == "num" else 0 for value in values]
    if sizes and min(sizes) > 1:
        return _Value("ne", _minus(*values))  # a ≠ b
    symbols, points = set(), []
    for part in _split(text, r"[,;]|\band\b"):
        if re.fullmatch(r" ?\w ?∈ ?R ?", part):
            continue
        left, *right = (side.strip() for side in part.split("≠"))
        if right and re.fullmatch(f"-? ?{_SYMBOL.pattern}", right[-1]):
            left, right = right[-1], [left]
        if len(right) == 1 and (m := re.fullmatch(f"(-?) ?({_SYMBOL.pattern})", left)):
            symbols.add(m[2])
            points.append(f"-({right[0]})" if m[1] else right[0])
        elif not right and symbols:
            points.append(left)  # x ≠ 1, 3
        else:
            symbols |= {"", part}
    if len(symbols) == 1:
        return _without(_items(points, down))
    if sizes and min(sizes) > 0 and max(sizes) > 1:
        return _Value("ne", _minus(*values))  # x² ≠ 4
    return _Value("text", text)


def _read(text: str, depth: int = 0) -> _Value:
    """Read a cleaned answer: structure first, numbers and expressions at the leaves."""
    text = text.strip().rstrip(" .,;")
    bare, down = re.sub(r"(?<!\w) | (?!\w)", "", text), functools.partial(_read, depth=depth + 1)
    if depth > 9 or len(text) > 1000:
        return _Value("huge", src=bare)
    if not re.search(r"[\w∞]|⦃⦄", text) or text.count("{") != text.count("}"):
        return _Value("bad", src=bare)
    if not re.search(r"[(\[{⦃]", text):
        text = _THOUSANDS.sub(lambda m: re.sub("[ ,]", "", m[0]), text)
    if m := re.fullmatch(r"\\begin ?\{((?:[pbB]|small)?matrix|array)\}(?:\{[clr| ]+\})?(.*)\\end ?\{\1\}", text):
        return _Value("mat", [[down(cell) for cell in row.split("&")] for row in m[2].strip(" ⏎").split("⏎")], bare)
    if m := re.fullmatch(r"⦃ ?\w ?(?:∈ ?R ?)?[|:](.*[<>≤≥≠].*)⦄", text):
        return down(m[1])  # the set of x such that
    if m := re.fullmatch(r"R ?(?:∖|- ?(?=⦃)) ?⦃(.*)⦄", text):
        return _without(_items(_split(m[1], "[,;]"), down))._replace(src=bare)
    if "≠" in text:
        return _unequal(text, down)._replace(src=bare)
    lists = len(_split(text, _BETWEEN)) > 1 or (text[0] == "⦃" and _is_enclosed(text))
    if "∓" in text or ("±" in text and not lists):
        both = [text.translate(str.maketrans("±∓", signs)).replace("=+", "=").lstrip("+") for signs in ("+-", "-+")]
        return _Value("seq", ("", "", [down(part) for part in both]), bare)
    for marks, name in ((_BETWEEN, ""), ("∪", "∪")):
        if len(parts := _split(text, marks)) > 1:
            return _Value("seq", (name, name, _items(parts, down)), bare)
    if m := re.fullmatch(r"\w ?∈(.*)", text):
        return down(m[1])
    if _is_enclosed(text):
        parts = _split(text[1:-1], "[,;]") if text[1:-1].strip() else []
        if len(parts) == 1 and (text[0] in "({" or parts[0].strip().startswith("\\begin")):
            return down(parts[0])._replace(src=bare)
        ends = "{}" if text[0] in "{⦃" else text[0] + text[-1]
        items = _items(parts, down) if ends == "{}" else [down(part) for part in parts]
        if ends == "[]" and all(v.kind == "seq" and v.data[:2] == ("[", "]") for v in items) and items:
            return _Value("mat", [v.data[2] for v in items], bare)  # [[1, 2], [3, 4]]
        return _Value("seq", (*ends, items), bare)
    if len(sides := text.split("≈")) > 1:
        return _rounded(text, sides, down)._replace(src=bare)
    parts = [part.strip() for part in _split(text, "[=<>≤≥]")]
    return (_relation(text, parts, down) if len(parts) > 1 else _as_number(text))._replace(src=bare)


def _rounded(text: str, sides: list[str], down) -> _Value:
    """√2 ≈ 1.41 is either side, if the last one rounds the first one; x ≈ 3.5 is x = 3.5."""
    exact, last = down(sides[0]), down(sides[-1])
    value = exact.data[1] if exact.kind == "eq" else exact
    digits = re.fullmatch(r"[-+]?\d*\.?(\d*)", sides[-1].replace(" ", ""))
    pair = [v.data[0] for v in (value, last) if v.kind == "num" and len(v.data) == 1]
    if digits and len(pair) == 2 and abs(pair[0] - pair[1]) <= 0.51 * 10.0 ** -len(digits[1]):
        return _Value("either", [value, last])
    return down(text.replace("≈", "="))


_WORDS = re.compile(r"[^\W\d]{3,}(?:[ *+/-]+[^\W\d]{3,})*")  # a step of a chain in words: base * height


# a number times or by one symbol, or the reverse: -x = 6, x/2 = 6 and 1/x = 6 are equations, not the value 6
_MULTIPLE = re.compile(rf"(?=.*[-\d])(?:[-\d.*/(){{}} ]|\\frac)*{_SYMBOL.pattern}(?:[-\d.*/(){{}} ]|\\frac)*")


def _relation(text: str, parts: list[str], down) -> _Value:
    """x = 5 and 5 = x assign, 2 + 2 = 4 must hold throughout, 1 < x ≤ 3 is an interval, the rest is an equation."""
    signs = "".join(c for c in re.sub(r"\([^()]*\)", "", text) if c in "=<>≤≥")  # not those of P(X > 2) = 1/3
    if "=" not in signs and any(re.fullmatch(f"- ?{_SYMBOL.pattern}", part) for part in parts):  # -x > -1 is x < 1
        parts = [part[1:].strip() if re.fullmatch(f"- ?{_SYMBOL.pattern}", part) else f"-({part})" for part in parts]
        signs = signs.translate(str.maketrans("<>≤≥", "><≥≤"))
    if _SYMBOL.fullmatch(parts[-1]) and len(parts) == 2 and not _SYMBOL.fullmatch(parts[0]):
        parts, signs = parts[::-1], signs.translate(str.maketrans("<>≤≥", "><≥≤"))
    if set(signs) != {"="}:
        if len(parts) == 2 and _SYMBOL.fullmatch(parts[0]):
            parts = ["-∞", *parts] if signs in "<≤" else [parts[1], parts[0], "∞"]
            signs = "<" + signs if signs in "<≤" else signs.translate(str.maketrans(">≥", "<≤")) + "<"
        if {*signs} <= {*">≥"}:
            parts, signs = parts[::-1], signs[::-1].translate(str.maketrans(">≥", "<≤"))
        if len(parts) != 3 or not _SYMBOL.fullmatch(parts[1]) or not {*signs} <= {*"<≤"}:
            return _Value("raw", text)
        return _Value("seq", ("(["[signs[0] == "≤"], ")]"[signs[1] == "≤"], [down(parts[0]), down(parts[2])]))
    values = [down(part) for part in parts]
    if _is_constant(values[-1]):  # m + n = 256 + 37 = 293, S = 2πr = 6π: the last part is the value
        numbers = [v for v in values[1:-1] if _is_constant(v) or not (v.kind == "num" or _WORDS.fullmatch(v.src))]
        has_digits = re.search(r"(?<![\^{_\d])\d", parts[0])  # other than exponents and indices
        named = _SYMBOL.fullmatch(parts[0]) or len(values) > 2 or not (has_digits or _MULTIPLE.fullmatch(parts[0]))
        if named and values[0].kind == "num" and len(values[0].data) > 1:
            rest = _Value("all", [*numbers, values[-1]]) if numbers else values[-1]
            return _Value("eq", (parts[0], rest, values[0]))
    rest = values[1] if len(values) == 2 else _Value("all", values[1:])
    inverse = values[-1].kind == "mat" and re.fullmatch(r"[A-Z]+\^\{?-1\}?", parts[0])
    if inverse or re.fullmatch(
        rf"{_SYMBOL.pattern}|\\frac ?\{{d ?[a-zA-Z]\}} ?\{{d ?[a-z]\}}|d[a-zA-Z]/d[a-z]", parts[0]
    ):  # dy/dx
        return _Value("eq", (parts[0], rest, values[0]))
    name = (
        r"[A-Za-z]\w*(?:'*|\^\{?-1\}?) ?\((?:[^()]|\([^()]*\))*\)|\( ?[a-z](?: ?, ?[a-z])* ?\)|\[?[A-Z]{2,}\]?"
        r"|[A-Za-z ]{3,}|\\(?:wide)?hat ?\{? ?[a-zA-Z] ?\}?"
    )
    is_name = re.fullmatch(name, parts[0]) or (
        values[0].kind == "text" and (_is_constant(values[-1]) or values[-1].kind in ("mat", "seq"))
    )
    no_name = rf"(?i)^(?:let|if|suppose|assume)\b|{NEGATED}|\bno\b|\\n(?:eg|otin)|^(?:\d+ ?)?[-+]"  # nor 1 - P(X > 2)
    if is_name and not re.search(no_name, parts[0]):
        return rest  # f(x) = …, (x, y) = …, [ABC] = …, Area = …, \angle A = 40, E[X] = 3
    if len(values) == 2 and all(v.kind == "num" for v in values) and any(len(v.data) > 1 for v in values):
        return _Value("rel", _minus(*values))
    return _Value("raw", text) if any(v.kind == "raw" for v in values) else _Value("all", values)


def _is_constant(value: _Value) -> bool:
    return value.kind == "num" and len(value.data) == 1


def _minus(left: _Value, right: _Value) -> list:
    return [(left.data * 4)[i] - (right.data * 4)[i] for i in range(4)]


_PERCENT = re.compile("per cent|percentage points?|pour cent|por ciento|パーセント")
_CJK_UNITS = "|".join(unit for unit in _UNITS if re.match(f"[{_CJK}]", unit))
_WORD = re.compile(rf"[{_LETTER_OF}]+(?:-[{_LETTER_OF}]{{3,}})*|{_CJK_UNITS}|[{_CJK}]|[%{_MONEY}¢/]|\^\d")


def _as_number(text: str) -> _Value:
    """Read an expression with an optional currency sign, percent sign or unit, a word, or leave it to the worker."""
    number, unit, scale, currency = text, "", 1, ""
    if money := re.match(rf"([-+]?) ?([A-Z]{{0,3}}) ?([{_MONEY}]) ?([-+]?)", text):
        number = money[1] + money[4] + text[money.end() :]
        code = {"CA": "C", "AU": "A"}.get(money[2], money[2])
        unit = f"{code} {_UNITS.get(money[3], money[3])}".strip()
        number, currency = re.sub(r"(?<=\d) ?/ ?(?=[a-z]{2})", " per ", number), unit  # $15/hour
    if len(text) < 200 and (m := re.fullmatch(rf"(?!.*(?:{_NAMES}).*degree)(.*?[\d)}}π])( ?)({_UNIT})", number)):
        tail = re.sub(r"[{}]|\^ ", "", _PERCENT.sub("%", re.sub(rf"\bM(?=(?:{_SI_BASE}|m)\b)", "mega", m[3]).lower()))
        words = [w for w in _WORD.findall(tail) if w != "of"] or ["of"]
        stems = [w.removesuffix("s") if len(w) > 2 else w for w in words]
        pairs = zip(words, stems, strict=True)
        names = [_UNITS.get(w) or (w if w in SCALE_WORDS else _UNITS.get(stem, stem)) for w, stem in pairs]
        known = all(name in _UNITS.values() or name in SCALE_WORDS for name in names)
        known = known or (m[2] and all(map(_SI.fullmatch, re.findall(r"[^\W\d_]+", m[3]))))  # 5 kJ, 3 V/m
        sound = not (_NO_UNIT | {*_CALLS}) & {*words} and not re.search(rf"(?<!\^)\d|{NEGATED}", m[3])
        prose = ((m[2] and len(words[0]) > 2) or re.match(f"[{_CJK}]", m[3])) and sound
        letters = [w for w in words if w.isalpha()]
        if max(map(len, letters), default=0) == 1 and (len(letters) > 1 > words.count("/") or _LETTER.search(m[1])):
            known = False  # 1/2 m v^2, n^2 + 3 n
        whole = m[3].count("{") == m[3].count("}") and not re.search(r"(?<![\^{])\d", m[3])  # no 4/{9 n}, 5% of 3
        known, prose = whole and known, whole and prose
        if len(words) < 6 and (prose or (known and (m[2] or len(words[0]) > 1 or not words[0].isalpha()))):
            number, scale = m[1], math.prod(SCALE_WORDS.get(name, 1) for name in names)
            shown = " ".join(name for name in names if name not in SCALE_WORDS)
            shown = re.sub(r"(?<=\w) (?:left|remaining|total)$", "", shown)  # 15 apples left
            above, *below = shown.replace("mph", "mile / h").replace("kph", "km / h").split("/")
            unit = " / ".join(" ".join(sorted(part.split())) for part in (above, *below)) or unit
            unit = currency + unit if unit[:2] == " /" else unit
    if m := re.fullmatch(r"(\d+)_\{?(\d+)\}?", number.strip()):
        number, unit = m[1], "_" + m[2]  # 12_8: another base is another unit
    try:
        words = re.fullmatch(rf"(?!(?:{_NAMES}) \w$)(?=...|.*[eiouEIOU])[A-Za-z][A-Za-z' -]+", number)
        words = words and not re.fullmatch("(?=.*-)[a-z](?: ?[- ] ?[a-z])+", number)  # n x - y
        # a word; letters of other scripts are no symbols side by side
        if words or re.search(r"(?<!\\)\b[A-Za-z]{5}|[^\W\d_!-~Ͱ-Ͽ]{2}", re.sub(f"{_NAMES}|degree", "", number)):
            raise _Refused(False)
        values = []
        for sample in range(4):
            reader = _Reader(number.strip(), sample)
            values.append(reader.read() * scale)
            if reader.tokens[reader.at] or values[-1] != values[-1]:
                raise _Refused(False)
            if not reader.symbols:
                break
    except (_Refused, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        formal = re.search(r"\\(?:int|sum|prod|lim|[lr](?:floor|ceil)|binom)|[|!]", text)
        return _Value("huge" if error.args != (False,) else "raw" if formal else "text", text)
    m = re.fullmatch(r"[-+]?(\d*)\.(\d+)(?:\*10\^\{?([-+]?\d{1,3})\}?)?", number.replace(" ", ""))
    ulp = Fraction(10) ** (int(m[3] or 0) - len(m[2])) * scale if m else Fraction(0)
    return _Value("num", values, unit=unit, ulp=ulp if m and len((m[1] + m[2]).lstrip("0")) > 3 else Fraction(0))


@functools.lru_cache(4096)
def _value(text: str) -> _Value:
    """Read an answer as a model or a data set writes it."""
    if len(text) > 3000:
        return _Value("huge", src=text)
    clean = _clean(text)
    reals = re.fullmatch(r"(?i)(?:\w ?∈ ?)?(?:all )?(?:the )?real(?:s| numbers)|\w ?∈ ?R", clean)
    if reals or (clean == "R" and re.search(r"\\mathbb|ℝ", text)):
        return _read("(-∞,∞)")
    if choice := _choice(clean):
        return _Value("letter", *choice)
    value, other = _read(_with_labels(clean)), with_point(clean)
    if other != clean and not re.search(r"[(\[⦃]", clean):  # 3,5 is 3.5, or a list
        other = _read(other)
        value = _Value("either", [value, other], value.src) if other.kind in ("num", "eq", "seq") else value
    return value


def _with_labels(clean: str) -> str:
    """Write labelled parts alike: `a) 12 b. 5` becomes `(a) 12, (b) 5`; other texts stay."""
    start, *labelled = _LABEL.split(clean)
    labels, parts = labelled[::2], [re.sub(r"[,;\s]+(?:and)?\s*$", "", part) for part in labelled[1::2]]
    plain = all(re.search(r"\w", part) and not re.search(r"[-+*/^=]$", part) for part in parts)
    if start or len(labels) < 2 or len({*labels}) < len(labels) or not plain:
        return clean
    return ", ".join(f"({label}) {part}" for label, part in zip(labels, parts, strict=True))


def _choice(clean: str) -> tuple[str, str] | None:
    """(Letter, text or the letter again) of `C`, `(C)` or `C) 12 apples`; None for expressions: (x + 1)^2, (a)(b)."""
    m = _CHOICE.fullmatch(clean)
    if not m or (m[1] and m[3][:1] != {"(": ")", "[": "]", "{": "}"}[m[1]]):
        return None
    rest = (m[4] or "").strip()
    if not rest:
        return m[2], m[2]
    algebra = re.match(r"[+*/^=<>≤≥≠!_]|- ", rest) or (m[2].islower() and re.match(r"[(\[{√\\-]", rest))
    return None if algebra or second_letter(m[2], rest) or not m[3] or m[2].upper() > "J" else (m[2], rest)


def _words(value: _Value) -> str:
    return re.sub(r"\b(?:the|an?)\b(?!\.)|[\s{}.,;!?'\"]", "", value.data.casefold())
