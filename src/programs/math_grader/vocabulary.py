"""Patterns, names and units."""

import cmath
import re

_TEXT = r"\\(?:text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf|bb|cal)|mbox|operatorname|bm|vec|boxed|fbox)(?![a-z])"
_ANGLE_OF, _ANGLE = r"\\?(?:sin|cos|tan|cot|sec|csc)(?: *\^ *(?:\d|\{ *\d *\}))?", r"-?\d+(?:\.\d+)?"
_CLEAN = [
    (re.compile(old), new)
    for old, new in (
        (r"\\\\(?:\[\w+\])?", "⏎"),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![a-zA-Z])\.?", ""),
        (r"\\\$", "＄"),
        (r"\$(?=-?[\d.,]+[^$]*$)", "＄"),
        (r"\$|\\[()\[\]]", " "),
        (r"(?<=\d)\s*(?:(?:\{,\}|,)?(?:\s*\\!)+|\{,\}|\\(?:[,:; ]|thinspace(?![a-z])))\s*(?=\d{3}(?!\d))", ""),
        (r"\\!", ""),
        (r"\\[,;:> ]|\\q?quad(?![a-z])|~", " "),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\%", "%"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?|°", " degree "),
        (
            rf"({_ANGLE_OF}) *(?:\( *({_ANGLE}) degree *\)|\{{ *({_ANGLE}) degree *\}}|({_ANGLE}) degree)",
            lambda m: _radians(*m.groups()),
        ),
        *[(_TEXT + r"\s*\{([^{}]*)\}", r" \1 ")] * 3,
        (_TEXT, ""),
        (r",\s*(?:\.\.\.?|…|\\[lc]?dots)\s*$", ", and so on"),
        (r"(?<=\w) (?:times|multiplied by) (?=\w)", "*"),
        (r"(?<=\w) plus (?=\w)", "+"),
        (r"(?<=\w) minus (?=\w)", "-"),
        (r"(?<=\w) divided by (?=\w)", "/"),
        (r"\\infty|\b(?i:infinity)\b", "∞"),
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
        (r"\\approx|≈", "="),
        (r"\\mp", "∓"),
        (r"\\cup(?![a-z])", "∪"),
        (r"\\in(?![a-z])", "∈"),
        (r"\\(?:mid|vert)(?![a-z])", "|"),
        (r"\\(?:setminus|backslash)(?![a-z])|∖|\\(?=\s*\\\{)", "∖"),
        ("ℝ", "R"),
        (r"\\(?:emptyset|varnothing)|∅", "⦃⦄"),
        (r"\\(?:\{|lbrace)", "⦃"),
        (r"\\(?:\}|rbrace)", "⦄"),
        (r"\\langle|⟨", "("),
        (r"\\rangle|⟩", ")"),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"\*\*|^[\s*_`'\"]+|[\s.,;:*_`'\"⏎\\]+$", ""),
        (r"(?<![\w.])(\d*\.?\d+)[eE]([-+]?\d+)(?!\w)", r"\1*10^{\2}"),
        (r"(?<![\d/.}])(\d+) +(\d+) */ *(\d+)", r"(\1+\2/\3)"),
        (r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar)\s*\{(\d{1,20})\}", lambda m: _repeating(*m.groups())),
        (r"\s+", " "),
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
    rf"\d+(?:\.\d*)?|\.\d+|\\?(?:{_NAMES})(?![a-z])|\\(?!frac|binom){_GREEK[2:]}|\\[a-zA-Z]+"
    rf"|{_SYMBOL.pattern}|\S"
)
_NO_UNIT = set(
    "or not and but maybe nor through versus otherwise squared cubed factorial halves half thirds third quarters "
    "quarter fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths below above negative inverse "
    "choose mod modulo over more less than score minus plus times divided by point itself trillion".split()
)
_UNITS = {
    alias: names.split()[0]
    for names in (
        "cm centimeter centimetre|m meter metre|km kilometer kilometre|mm millimeter millimetre|inch in inche|"
        "ft foot feet|"
        "yd yard|mile mi|g gram|kg kilogram|mg milligram|lb pound|oz ounce|ton tonne|s sec second|min minute|h hr hour|"
        "day|"
        "week|month|year yr|l liter litre|ml milliliter|gallon|"
        "＄ dollar usd|€ euro|£|¥ yen|₹ rupee|¢ cent|degree deg|rad radian|"
        "% percent|mph|j joule|n newton|w watt|v volt|a amp|hz hertz|k kelvin|unit|/ per|^2 square sq|^3 cubic"
    ).split("|")
    for alias in names.split()
}
_FOLD = (
    dict.fromkeys(map(ord, "−–—‐‑‒"), "-")
    | {0x66B: ".", 0x66C: ",", 0x66A: "%", 0x2044: "/"}
    | dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u200e\u200f"))
)
_SCALE = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "dozen": 12}
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_MARKER = re.compile(
    r"(?i)(?<!#)####(?!#)|\b(?:ans(?:wer)?|correct (?:option|choice))\b[*_ ]*(?:(?:to|for|of)\b"
    r"[^\n.:=]{0,80}?|choice|option)?[*_ ]*(?:\bis\b|"
    r"\bare\b|\bequals\b|\b(?:must|should|will|would) be\b|[:=]|\n)[\s:*_]*"
)
_CHOICE = re.compile(
    r"(?:(?:the )?(?:option|choice|answer)\s*:?\s*)?([(\[{]?)\s*([A-Za-z])\s*([)\]}]?[.:)]?)(\s.*)?",
    re.IGNORECASE | re.DOTALL,
)
_CUT = re.compile(r"####|</?answer>|\.(?=\s|$)|!(?=\s|$)|,?\s+(?:because|since|which|where|so|as|i hope)\b|\n", re.I)
_HEDGE = re.compile(r"[\s.,;!?()]*(?i:or|maybe|perhaps|possibly|alternatively|also|and)\b[^.\n]{0,40}?(?:\d|\b[A-Z]\b)")
_FILLER = re.compile(r"(?i)^(?:(?:approximately|about|exactly|simply|just|therefore|thus|equal to|given by)\b|[\s:*])+")


def _radians(function, *angle) -> str:
    """The sine of 30 degrees as one of radians; an angle by itself keeps its unit."""
    return f"{function}({next(filter(None, angle))}*π/180)"


def _repeating(whole, start, cycle) -> str:
    return f"({int(whole + start + cycle) - int('0' + whole + start)}/{10 ** len(start) * (10 ** len(cycle) - 1)})"
