"""Equality of values and of answers."""

import itertools
import math
import re
from fractions import Fraction

from programs.math_grader.values import _as_number, _is_constant, _minus, _Value, _value, _words
from programs.math_grader.vocabulary import _AMOUNT, _MONEY, _SIZES, _UNIT, _UNITS, _cheap, _clean
from programs.math_grader.worker import _WORKER

_RANGE = re.compile(rf"({_AMOUNT}(?:--?{_AMOUNT})+)( ?{_UNIT})?")  # or a date, or a score
_SMALL_WORDS = {*"a an the of in on at to by for from with and or is are was were it they this that".split()}


def _close(a: _Value, g: _Value, scale: int = 1) -> bool:
    """Whether two numbers are equal at every sample point, or one correctly rounds the other's endless decimal."""
    same, count = True, max(len(a.data), len(g.data))
    for i, (x, y) in enumerate(zip((a.data * 4)[:count], (g.data * 4)[:count], strict=True)):
        x = x / scale
        exact = isinstance(x, Fraction) and isinstance(y, Fraction)
        outside = i == 3 and (isinstance(x, complex) or isinstance(y, complex))  # of a root or logarithm
        same = same and (outside or (x == y if exact else abs(x - y) <= 1e-11 * max(abs(x), abs(y))))
    if same or count > 1:
        return same
    for literal, ulp, endless, other in ((x, a.ulp / scale, y, g.ulp), (y, g.ulp, x, a.ulp)):
        rest = endless.denominator if isinstance(endless, Fraction) else 3
        while (common := math.gcd(rest, 10)) > 1:
            rest //= common
        if ulp and not other and rest > 1 and abs(endless - literal) <= max(ulp / 2, 1e-14 * abs(endless)):
            return True
    return False


def _as_symbol(value: _Value) -> _Value:
    """2/3 a or 4 m^2 read again with the letter as a symbol instead of a unit."""
    side = value.src.rpartition("=")[2]  # of f(x) = 4 m^2
    product = _as_number(re.sub(r"(?<=[\d)}π]) ?([A-Za-z](?:\^\{?\d\}?)?)$", r"*\1", side))
    return product._replace(src=value.src) if product.kind == "num" and not product.unit else value


def _same_number(a: _Value, g: _Value) -> bool:
    a, g = (_as_symbol(v) if v.unit and not w.unit and len(w.data) > 1 else v for v, w in ((a, g), (g, a)))
    if {a.unit, g.unit} == {"%", ""}:
        plain = len(a.data) == 1 and abs(a.data[0]) > 1 and _close(a, g)
        return plain or _close(*((a, g) if a.unit else (g, a)), 100)
    degrees, other = (a, g) if a.unit == "degree" else (g, a)
    if degrees.unit == "degree" and other.unit in ("", "rad") and _close(degrees, other, 180 / math.pi):
        return True
    left, right = {*a.unit.split()}, {*g.unit.split()}
    known = left | right <= {*_UNITS.values()} and "degree" not in left & right  # 25 degrees for 25 °C
    # 5 apples, 5 red apples; $5, C$5
    wider = (left < right or right < left) and not known and not {"/", "^2", "^3"} & (left ^ right)
    return _close(a, g) and (not left or not right or a.unit == g.unit or wider)


def _total(value: _Value, sizes: dict[str, int]) -> _Value | None:
    """A quantity such as 1 h 30 min in the smallest of its units, with its power as unit; None if it has others."""
    if re.search(r"\bor\b", value.src) or ("degree" in sizes and "degree" not in value.src):
        return None  # alternatives; minutes of time
    total, powers, last = 0, set(), math.inf
    for part in value.data[2] if value.kind == "seq" and not value.data[0] else [value]:
        power, _, unit = part.unit.rpartition(" ")
        size = sizes.get(unit, math.inf) if part.kind == "num" and len(part.data) == 1 else math.inf
        if size >= last or {*powers, power} not in ({""}, {"^2"}, {"^3"}):
            return None
        total, last, powers = total + part.data[0] * size ** int(power[1:] or 1), size, {power}
    return _Value("num", [total], unit="".join(powers))


def _same_quantity(a: _Value, g: _Value) -> bool:
    """Whether two quantities in different units of one kind are equal: 1 h 30 min and 90 min, 1 km and 1000 m."""
    pairs = ([_total(value, sizes) for value in (a, g)] for sizes in _SIZES)
    sides = [value.unit.split(" / ") if _is_constant(value) else [] for value in (a, g)]
    if [*map(len, sides)] == [2, 2] and sides[0] != sides[1]:  # 18 km/h and 5 m/s
        above, below = (_factor(*units) for units in zip(*sides, strict=True))
        return bool(above and below) and _close(a._replace(data=[a.data[0] * above / below]), g)
    return any(x and y and x.unit == y.unit and _close(x, y) for x, y in pairs)


def _factor(unit: str, other: str) -> Fraction | None:
    """The size of a unit in another one: 1000^2 for km^2 and m^2; None if they are of different kinds."""
    (power, _, name), (other_power, _, other_name) = unit.rpartition(" "), other.rpartition(" ")
    sizes = [{name: 1}, *_SIZES] if name == other_name else _SIZES
    factors = (Fraction(size[name], size[other_name]) for size in sizes if {name, other_name} <= {*size})
    factor = next(factors, None) if power == other_power and power in ("", "^2", "^3") else None
    return factor and factor ** int(power[1:] or 1)


def _same(a: _Value, g: _Value, todo: list) -> bool:
    """Whether two values may be equal; groups (answers, golds) that only sympy can match are added to `todo`."""
    kinds = {a.kind, g.kind}
    if (a.src and a.src == g.src and a.kind != "bad") or (kinds == {"text"} and _words(a) == _words(g)):
        return True
    if "either" in kinds:
        left, right = (v.data if v.kind == "either" else [v] for v in (a, g))
        return any(_same(x, y, todo) for x in left for y in right)
    if "all" in kinds:
        left, right = (v.data if v.kind == "all" else [v] for v in (a, g))
        pairs = zip(left, right, strict=True) if len(left) == len(right) else itertools.product(left, right)
        return all(_same(x, y, todo) for x, y in pairs)
    if a.kind == g.kind == "eq" and a.data[0] == g.data[0]:
        return _same(a.data[1], g.data[1], todo)
    if kinds == {"ne"}:
        return _proportional(a.data, g.data)
    if kinds <= {"eq", "rel"}:
        p, q = (v.data if v.kind == "rel" else v.data[1].kind == "num" and _minus(v.data[2], v.data[1]) for v in (a, g))
        return bool(p and q) and _proportional(p, q)
    a, g = (v.data[1] if v.kind == "eq" and w.kind != "raw" else v for v, w in ((a, g), (g, a)))
    kinds = {a.kind, g.kind}
    if "all" in kinds:
        return _same(a, g, todo)
    if kinds <= {"num", "seq"} and _same_quantity(a, g):
        return True
    if kinds == {"num"}:
        return _same_number(a, g)
    if kinds == {"num", "seq"}:  # 1/2 or 0.5
        choices, one = (a, g) if a.kind == "seq" else (g, a)
        pairs = itertools.product(choices.data[2], (one, *choices.data[2][:1]))  # 1 or 100 is not 100%
        return bool(re.search(r"\bor\b", choices.src)) and all(_same(x, y, todo) for x, y in pairs)
    if kinds == {"mat", "seq"}:  # a column or row, and a tuple
        a, g = (_as_tuple(v) if v.kind == "mat" else v for v in (a, g))
        kinds = {a.kind, g.kind}
    if kinds == {"mat"}:
        return [len(r) for r in a.data] == [len(r) for r in g.data] and all(
            _same(x, y, todo) for r, s in zip(a.data, g.data, strict=True) for x, y in zip(r, s, strict=True)
        )
    if kinds == {"seq"}:
        return _same_items(a.data, g.data, todo)
    if "raw" in kinds and kinds <= {"num", "raw", "eq"} and _cheap(a.src) and _cheap(g.src):
        todo.append(([a.src], [g.src]))
        return True
    return False


def _as_tuple(matrix: _Value) -> _Value:
    """A matrix of one column or row as a tuple; others as they are."""
    flat = [cell for row in matrix.data for cell in row]
    is_line = len(flat) in map(len, (matrix.data, *matrix.data))
    return matrix._replace(kind="seq", data=("(", ")", flat)) if is_line else matrix


def _span(value: _Value) -> _Value:
    """A range such as 10-20 kg, a date or a score as a sequence of numbers with units; other values unchanged."""
    m = _RANGE.fullmatch(value.src)
    if not m or (value.kind == "num" and not isinstance(value.data[0], Fraction)):
        return value
    numbers, sign = re.findall(_AMOUNT, m[1]), re.search(rf"[{_MONEY}]|$", m[1])[0]
    unit = m[2] or ("%" if "%" in m[1] else "")
    ends = [_value(sign + number.strip(f"%{sign}") + unit) for number in numbers]
    return _Value("seq", ("(", "-", ends), value.src)


def _proportional(p: list, q: list) -> bool:
    """Whether two equations, given as left − right at the sample points, differ only by a factor."""
    ratios = [x / y for x, y in zip(p, q, strict=True)] if all(q) else [0]
    return ratios[0] != 0 and all(abs(ratio - ratios[0]) < 1e-9 * abs(ratio) for ratio in ratios)


def _same_items(a: tuple, g: tuple, todo: list) -> bool:
    """Whether two sequences are equal; brackets and order matter for tuples and intervals, not for sets and lists."""
    (open_a, close_a, left), (open_g, close_g, right) = a, g
    if open_a == open_g == "{":
        left, right = (
            [v for i, v in enumerate(vs[:50]) if not any(_same(v, w, []) for w in vs[:i])] for vs in (left, right)
        )
    if len(left) != len(right) or len(left) > 50 or {open_a, open_g} == {"{", "∪"}:
        return False
    left, right = _aligned(left, right), _aligned(right, left)
    if open_a + close_a == "[]" and not open_g:
        open_a = close_a = ""  # a Python list
    if {open_a, open_g} & {"(", "["}:
        pairs = {open_a + close_a, open_g + close_g}
        vectors = pairs <= {"()", "[]", ""} and (len(right) != 2 or right[0].kind == "seq")  # no intervals
        same = vectors or len(pairs) == 1 or pairs == {"()", ""}
        return same and all(_same(x, y, todo) for x, y in zip(left, right, strict=True))
    units = {v.unit for v in right}
    if len(units) > 1 and any(units <= {*sizes} for sizes in _SIZES) and not any(v.unit for v in left):
        return False  # 2, 30 for 2 hours 30 minutes
    names = [
        {v.data[0].partition("_")[0] if v.kind == "eq" else v.unit for v in values} - {""} for values in (left, right)
    ]
    if len(names[0]) != len(names[1]) and max(map(len, names)) > 1:  # 3, 4 for a = 3, b = 4; 5, 3 for 5 km and 3 h
        return all(_same(x, y, todo) for x, y in zip(left, right, strict=True))
    left, right = list(left), list(right)
    for x in list(left):
        for y in right:
            if _same(x, y, trial := []) and not trial:
                left.remove(x)
                right.remove(y)
                break
    kinds = {v.kind for v in left + right}
    if kinds and not ("raw" in kinds <= {"num", "raw"} and all(_cheap(v.src) for v in left + right)):
        return False
    if left:
        todo.append(([v.src for v in left], [v.src for v in right]))
    return True


def _aligned(items: list[_Value], others: list[_Value]) -> list[_Value]:
    """Items named as the others, or x, y and z (y = 3, x = 2), in the order of the names; other items as they are."""
    names, other_names = ([v.data[0] if v.kind == "eq" else "" for v in values] for values in (items, others))
    if "" in names or len({*names}) < len(names) or not ({*names} == {*other_names} or {*names} <= {*"xyz"}):
        return items
    return [item for _, item in sorted(zip(names, items, strict=True), key=lambda pair: pair[0])]


def _is_prose(value: _Value) -> bool:
    parts = value.data[2] if value.kind == "seq" else value.data if value.kind in ("either", "all") else ()
    return value.kind in ("text", "bad") or any(map(_is_prose, parts))


def _agree(answer: str, gold: str) -> bool:
    """Whether the texts after the same letter may mean one option: no two values, nor texts without a common word.

    >>> _agree("It increases", "increases"), _agree("World War 2", "World War 1"), _agree("Babbage", "Darwin")
    (True, False, False)
    """
    if (same := math_equal(answer, gold)) or not (_is_prose(_value(answer)) or _is_prose(_value(gold))):
        return same is not False
    texts = (re.sub(r"[{}\\^_'’]|(?<=\d),(?=\d{3})", "", text.casefold()) for text in (answer, gold))
    left, right = ({*re.findall(r"\d+(?:\.\d+)?(?!\w)|\w+", text)} - _SMALL_WORDS for text in texts)
    numbers = [{word for word in words if word[0].isdigit()} for words in (left, right)]
    clash = all(numbers) and numbers[0].isdisjoint(numbers[1])
    return not clash and (not left.isdisjoint(right) or max(len(left), len(right)) > 8)


def math_equal(answer: str, gold: str) -> bool | None:
    """Whether two final answers are the same; None if the gold answer cannot be read.

    >>> [math_equal(a, g) for a, g in (("0.5", "1/2"), ("{2, 1}", "{1,2}"), ("(1,2]", "(1,2)"), ("1", "???"))]
    [True, True, False, None]
    """
    if re.fullmatch("[A-Za-z]+ [A-Za-z -]+", answer) and answer.casefold() == gold.casefold():
        return True  # One Day
    ends = [re.search(r"\+ ?([cC])$", _clean(text)) for text in (answer, gold) if len(text) < 200]
    if len(ends) == 2 and all(ends) and ends[0][1] != ends[1][1]:  # + c and + C, of an integral
        answer = _clean(answer)[:-1] + ends[1][1]
    g, a = _value(gold), _value(answer)
    if g.kind == "bad" or g.src.lower() in ("nan", "null", "n/a"):
        return None
    if a.kind == g.kind == "letter":
        same = a.data == g.data or (a.data.upper() == g.data and g.data < "K")
        if not same or a.src == a.data or g.src == g.data:
            return same
        return _agree(a.src, g.src)
    a, g = (_value(v.src) if v.kind == "letter" and v.src != v.data else v for v in (a, g))
    a, g = (_as_number(v.data)._replace(src=v.data) if v.kind == "letter" else v for v in (a, g))
    if a.kind != "num" or len(a.data) == 1:  # 10-20 is no difference, 5 - 3 xy is one
        a, g = (_span(a), span) if (span := _span(g)) != g else (a, g)
    todo: list = []
    if g.kind == "raw" and not _cheap(g.src) and a.src != g.src:
        return None
    try:
        same = _same(a, g, todo)
    except OverflowError:  # a fraction beyond floats, and a float
        return False
    return same and (_WORKER.ask(todo) if todo else True)
