"""Patterns, names and units; bringing texts into one notation."""

import cmath
import functools
import itertools
import re
import unicodedata

from parts.data.stated_answers import ROUGHLY, narrow, ungrouped

_TEXT = (
    r"\\(?:text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf|bb|cal)|mbox|operatorname|bm|boldsymbol|vec|boxed|fbox|underline"
    r"|ensuremath)(?![a-z])"
)
_AMOUNT = r"[＄€£¥₹]?\d+(?:[.,]\d+)*%?"
_CJK = "\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
_LETTER_OF = "A-Za-zÀ-ÖØ-öø-ɏЀ-ӿ"
_UNIT = rf"[{_LETTER_OF}{_CJK}%＄€£¥₹¢][{_LETTER_OF}{_CJK}.'%/^{{}}234 -]{{0,60}}"
# a unit in brackets, 9 (apples) and 12 [cm]; a remark after a unit, 9 apples (total)
_BRACKETED = re.compile(
    rf"(?<=[\d)}}π%])(?: ?[(\[](?=[{_LETTER_OF}]{{4}})| [(\[]) ?({_UNIT}) ?[)\]](?= ?(?:$|[;,=]|and\b|or\b))"
)
_REMARK = re.compile(
    rf"(?<=\d)( [{_LETTER_OF}]{{3,}}(?: [{_LETTER_OF}]+){{0,3}}) \(([{_LETTER_OF}]{{2,}}(?: [{_LETTER_OF}]+)*)\)$"
)
_CLEAN = [
    (re.compile(old), new)
    for old, new in (
        (r"\\\\(?:\[\w+\])?", "⏎"),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![a-zA-Z])\.?", ""),
        (r"\\\$", "＄"),
        (r"\$(?=-?[.,]?\d[^$]*$)", "＄"),  # but not one that closes a formula
        (r"\$|\\[()\[\]]", " "),
        (r"(?<=\d)\s*(?:(?:\{,\}|,)?(?:\s*\\!)+|\{,\}|\\(?:[,:; ]|thinspace(?![a-z])))\s*(?=\d{3}(?!\d))", ""),
        (r"\\!", ""),
        (r"\\[,;:> ]|\\q?quad(?![a-z])|~", " "),
        (r"\\(?:[dtcs]|nice)frac", r"\\frac"),
        (r"\\(?:(?:text)?color|colorbox|hspace|phantom)(?![a-z])\*?\s*\{[^{}]*\}", ""),
        (r"(?:\{|^)([^{}]*)\\over(?![a-z])([^{}]*)(?:\}|$)", r"\\frac{\1}{\2}"),
        (r"\\%", "%"),
        ("℃", "°C"),
        ("℉", "°F"),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degrees?|[°º]", " degree "),
        (r"degrees? +C(?![A-Za-z])", "degree celsius"),
        (r"degrees? +F(?![A-Za-z])", "degree fahrenheit"),
        *[(_TEXT + r"\s*\{([^{}]*)\}", r" \1 ")] * 3,
        (_TEXT, ""),
        (r"(?<![A-Za-z])Rs\b\.?\s*(?=\d)|(?<=\d)\s+Rs\b\.?", "₹"),  # rs and 2Rs are products
        (r"(?<![A-Za-z])(INR|USD|EUR|GBP)\s*(?=\d)", lambda m: _UNITS[m[1].lower()]),
        (r",\s*(?:\.\.\.?|…|\\[lc]?dots)\s*$", ", and so on"),
        (r"(?<=\w) (?:times|multiplied by) (?=\w)", "*"),
        (r"(?<![\d.])(\d+) and (?:a|one)[ -]half\b", r"(\1+1/2)"),
        (r"\\(?:lor|vee)(?![a-z])|∨", " or "),
        (r"^\s*(?:either\b(?=.*\bor\b)|both\b(?=.*\band\b))", ""),
        (r"(?<=\w) plus (?=\w)", "+"),
        (r"(?<=\w) minus (?=\w)", "-"),
        (r"(?<=\w) divided by (?=\w)", "/"),
        (r"\\infty|\b(?i:inf(?:inity)?)\b", "∞"),
        (r"\\pi(?![a-zA-Z])|(?<![A-Za-z\\])pi(?![A-Za-z])", "π"),
        (r"\\pm|\+/-", "±"),
        (r"\\(?:cdot|times|ast)(?![a-z])|[×·⋅∙]|(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),
        (r"\\div(?![a-z])|[÷∕]", "/"),
        (r"\\sqrt\s*([\da-zA-Z])", r"√{\1}"),
        (r"\\sqrt|(?<![A-Za-z])sqrt(?=\s*[({])", "√"),
        (r"√\s*(\d+)", r"√{\1}"),
        (r"(\\frac|\\binom)\s*([\da-zA-Z])", r"\1{\2}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([\da-zA-Z])", r"\1{\2}"),
        (r"\\neq?(?![a-z])|\\not\s*=|(?<=\s)!=", "≠"),
        (r"\\leq?(?:slant)?(?![a-z])|<=|⩽", "≤"),
        (r"\\geq?(?:slant)?(?![a-z])|>=|⩾", "≥"),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\approx(?:eq)?(?![a-z])|≃", "≈"),
        (r"\\mp", "∓"),
        (r"\\cup(?![a-z])", "∪"),
        (r"\\in(?![a-z])", "∈"),
        (r"\\(?:mid|[lr]?vert)(?![a-z])", "|"),
        (r"\\(?:setminus|backslash)(?![a-z])|∖|\\(?=\s*\\\{)", "∖"),
        ("ℝ", "R"),
        (r"\\(?:emptyset|varnothing)|[∅Ø]", "⦃⦄"),
        (r"\\(?:\{|lbrace)", "⦃"),
        (r"\\(?:\}|rbrace)", "⦄"),
        (r"\\langle|⟨", "("),
        (r"\\rangle|⟩", ")"),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"\*\*|^[\s*_`'\"=≈「“]+|[\s.,;:。*_`'\"⏎\\」”]+$", ""),
        (r"(?<![\w.])(\d*\.?\d+)[eE]([-+]?\d+)(?!\w)", r"\1*10^{\2}"),
        (
            r"(?<![\d/.}])(\d+) +(\d+) */ *(\d+)",
            lambda m: f"({m[1]}+{m[2]}/{m[3]})" if int(m[2]) < int(m[3]) else m[0],
        ),
        (r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{(\d{1,20})\}", lambda m: _repeating(*m.groups())),
        (r"\s+", " "),
        (r"^( ?[-+]?[\d.]+ ?[-+] ?[\d.]*)j ?$", r"\1i"),  # 3+4j; with i beside it, j is a vector's
        (r"(?<![\w:.])(?<!: )(\d+) ?: ?(\d|\d{3,})(?![\w.]| ?:)", r"\1/\2"),  # a ratio; 2:30 may be a time
        (r"(?<=\d) ?([A-Za-z]{2,3}) ?\* ?([A-Za-z]+)(?=/|$)", r" \1 \2"),  # 5 kg·m/s
        (r"(?<=\d) ?\{? ?([A-Za-z]+)(?: ?\* ?| )([A-Za-z]+)\^\{? ?-1 ?\}{0,2}$", r" \1/\2"),  # 10 m s^{-1}
        (r"(?<=\d) ?\{? ?([A-Za-z]+)(?: ?\* ?| )([A-Za-z]+)\^\{? ?-([2-4]) ?\}{0,2}$", r" \1/\2^\3"),
        (r"(?i)^ ?(?:(?:there (?:is|are) )?no (?:real )?solutions?|none) ?$", "⦃⦄"),
        (r"(^|∪) ?\]", r"\1("),  # ]1, 2[
        (r"\[ ?($|∪)", r")\1"),
        (r"^ ?(?:DNE|(?i:does not exist)) ?$", "undefined"),
        (r"^ ?[⦃{(]?[A-J](?:\)?(?:[ ,;、&]|and\b)+\(?[A-J])+[⦄})]? ?$", lambda m: "".join(re.findall("[A-J]", m[0]))),
        (r"^(?: ?[A-Z][a-z]?(?: ?_ ?\{?)?\d*\}?)+ ?$", lambda m: re.sub(r"[ _{]*(\d+)\}?", r"_{\1}", m[0])),  # CO2
        (r"^ ?(?:\d+(?:\.\d+)? ?[A-Za-z]+ ?){2,4}$", lambda m: _compound(m[0])),
        (rf"^ ?(?:between ({_AMOUNT}) and|(?:from )?({_AMOUNT}) to) (?={_AMOUNT})", r"\1\2-"),
    )
]
_LATEX = str.maketrans({"√": r"\sqrt", "π": r"\pi ", "∞": r"\infty ", "*": r"\cdot ", "≤": r"\le ", "≥": r"\ge "})
_CALLS = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "exp": cmath.exp,
    "tanh": cmath.tanh,
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "ln": cmath.log,
    "log": cmath.log10,
    "cot": lambda x: 1 / cmath.tan(x),
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
}
_NAMES = "|".join(sorted(_CALLS, key=len, reverse=True))
_GREEK = r"\\(?:var)?(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|omega|Delta|Omega|Phi|psi|ell)"
_SYMBOL = re.compile(rf"(?:[^\W\d_]|{_GREEK})(?:_(?:\w|\{{\w+\}}))?'?")
_LETTER = re.compile(r"(?<![\\A-Za-z])[a-df-hj-zA-Z](?![A-Za-z])")  # a symbol by itself; e and i are numbers
_TOKEN = re.compile(
    rf"\d+(?:\.\d*)?|\.\d+|degree|\\?(?:{_NAMES})(?![a-z])|\\(?!frac|binom){_GREEK[2:]}|\\[a-zA-Z]+"
    rf"|{_SYMBOL.pattern}|\S"
)
_NO_UNIT = set(
    "或 和 与 及 不 非 か değil oder ou et und y o nicht pas "
    "or not and but maybe nor through versus otherwise squared cubed factorial halves half thirds third quarters "
    "quarter fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths below above negative inverse "
    "choose mod modulo over more less than score minus plus divided by point itself trillion".split()
)
_UNITS = {
    alias: names.split()[0]
    for names in (
        "cm centimeter centimetre zentimeter centimètre centímetro 厘米 公分 センチ|"
        "m meter metre mètre metro 米 メートル|"
        "km kilometer kilometre kilomètre kilómetro 千米 公里 キロメートル|mm millimeter millimetre 毫米|inch in inche|"
        "ft foot feet|yd yard|mile mi|g gram gramm gramme gramo 克 グラム|kg kilogram kilogramm 千克 公斤 キログラム|"
        "mg milligram|lb pound|oz ounce|ton tonne 吨|s sec second sekunde sekunden seconde segundo 秒|"
        "min minute minuten minuto 分钟 分鐘|h hr hour stunde stunden heure hora 小时 小時 時間|"
        "day tag tage jour día 天|week woche wochen semaine semana 周|month monat monate mois mes mese 个月|"
        "year yr jahr jahre an año 年|l liter litre litro 升 リットル|ml milliliter 毫升|gallon|gb|mb|"
        "＄ dollar usd 美元 ドル|€ euro eur 欧元 ユーロ|£ gbp|¥ yen yuan 元 円 块|₹ rupee inr|¢ cent|"
        "degree deg 度|celsius|fahrenheit|rad radian|% percent prozent|"
        "mph|j joule|n newton|w watt|v volt|a amp|hz hertz|k kelvin|unit|"
        "/ per|^2 square sq 平方|^3 cubic 立方"
    ).split("|")
    for alias in names.split()
}
_OF_ONE_KIND = (  # units that form one quantity, as in 2 hours 30 minutes
    "year month week day h min s|mile yd ft inch km m cm mm|ton kg g mg lb oz|gallon l ml|＄ € £ ¢|degree min s"
).split("|")
_FOLD = (
    dict.fromkeys(map(ord, "−–—‐‑‒"), "-")
    | {0x66B: ".", 0x66C: ",", 0x66A: "%", 0x2044: "/"}
    | dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u200e\u200f"))
)
_SCALE = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "dozen": 12}
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_CHOICE = re.compile(
    r"(?:(?:the |la |el |die |l')?(?:option|choice|answer|opción|antwort|réponse|respuesta)\s*:?\s*|选项|選項|選択肢)?"
    r"(?:la )?([(\[{]?)\s*([A-Za-z])\s*(\s-(?=\s[^\W\d_]{4})|[)\]}]?[.:)]?)(\s.*)?",
    re.IGNORECASE | re.DOTALL,
)
_CUT = re.compile(
    r"(?i)####|[。！？]|</?answer>|!(?=\s|$)|\.(?=\s|$)(?!(?<=\bRs\.)\s*\d)"
    r"|,?\s+(?:because|since|which|where|so|as|i hope)\b|\n"
)
_FILLER = re.compile(rf"(?i)^(?:(?:{ROUGHLY}|exactly|simply|just|therefore|thus|equal to|given by)\b|[约約\s:*])+")


def _compound(text: str) -> str:
    """Write 2 hours 30 minutes as a list; products such as 2 ln 3x and 2 m 3 s stay."""
    parts = re.findall(r"([\d.]+) ?([A-Za-z]+)", text)
    known = all(w in _UNITS or w.removesuffix("s") in _UNITS for w in (unit.lower() for _, unit in parts))
    return " and ".join(map(" ".join, parts)) if known and max(len(unit) for _, unit in parts) > 1 else text


def _repeating(whole, start, cycle) -> str:
    return f"({int(whole + start + cycle) - int('0' + whole + start)}/{10 ** len(start) * (10 ** len(cycle) - 1)})"


def _unit(m: re.Match) -> str:
    """A unit without its brackets; factors such as (x) and (ab), and words such as "mod", keep theirs."""
    words = {*re.findall(r"\w+", m[1].lower())}
    if words & _NO_UNIT:
        return "" if words & {"third", "quarters", "halves", "points"} else m[0]
    known = len(m[1]) > 2 or not m[1].isascii() or m[1].lower() in _UNITS
    return f" {' '.join(sorted(m[1].split(), key=len, reverse=True))}" if known else m[0]


def _remark(m: re.Match) -> str:
    """A unit without the remark after it, unless the remark changes the meaning, such as "(not 3)"."""
    return m[0] if _NO_UNIT & {*m[2].lower().split()} else m[1]


@functools.lru_cache(4096)
def _clean(text: str) -> str:
    """Fold scripts, spaces and LaTeX spellings into one notation."""
    if not text.isascii():
        text = re.sub("(?<=[0-9])(?=[¼-¾⅐-⅞])", " ", re.sub("[º˚]", "°", text))
        for mark, signs in (("^", "[⁰¹²³⁴-⁹⁺⁻]+"), ("_", "[₀-₉]+")):
            text = re.sub(signs, lambda m, mark=mark: f"{mark}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
        text = "".join(f" {unicodedata.digit(c)} " if c.isdigit() and not c.isdecimal() else c for c in text)  # ②
        text = narrow(unicodedata.normalize("NFKC", text).translate(_FOLD))
    text = ungrouped(text)
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
    """Whether sympy can take a text in time: known macros only, small numbers, no tower of powers."""
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
