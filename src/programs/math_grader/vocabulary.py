"""Patterns, names and units; bringing texts into one notation."""

import cmath
import functools
import itertools
import math
import re
import unicodedata

from parts.data.stated_answers import ROUGHLY, narrow, ungrouped
from parts.rewards.contexts import SCALE_WORDS

_TEXT = (
    r"\\(?:text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf|bb|cal)|mbox|operatorname|bm|boldsymbol|vec|boxed|fbox|underline"
    r"|ensuremath|ce)(?![a-z])"
)
_MONEY = "＄€£¥₹₩₽₺₫₪฿₴₦"
_AMOUNT = rf"[{_MONEY}]?\d+(?:[.,]\d+)*%?"
_CJK = "\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
_LETTER_OF = "A-Za-zÀ-ÖØ-öø-ɏЀ-ӿμωΩ"
_UNIT = rf"[{_LETTER_OF}{_CJK}%{_MONEY}¢][{_LETTER_OF}{_CJK}.'%/^{{}}234 -]{{0,60}}"
# a unit in brackets, 9 (apples) and 12 [cm]; a remark after a unit, 9 apples (total)
_BRACKETED = re.compile(
    rf"(?<=[\d)}}π%])(?: ?[(\[](?=[{_LETTER_OF}]{{4}})| [(\[]) ?({_UNIT}) ?[)\]](?= ?(?:$|[;,=]|and\b|or\b))"
)
_REMARK = re.compile(
    rf"(?<=\d)( [{_LETTER_OF}]{{3,}}(?: [{_LETTER_OF}]+){{0,3}}) \(([{_LETTER_OF}]{{2,}}(?: [{_LETTER_OF}]+)*)\)$"
)
_CODES = "INR|USD|CAD|AUD|EUR|GBP|JPY|CNY|KRW|CHF|SEK|NOK|DKK|PLN|RUB|TRY|BRL|MXN"
_TH = "(?:st|[nr]d|th)?"
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_MONTH = rf"({'|'.join(_MONTHS)})(?:uary|ruary|ch|il|[ey]|ust|t(?:ember)?|ober|ember)?\.?"
_ONES = "zero one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: n for n, word in enumerate(_ONES + _TEENS)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4} | {
    word.removesuffix("s"): size.denominator for word, size in SCALE_WORDS.items() if size < 1
}
_OPERATIONS = {"plus": "+", "minus": "-", "times": "*", "multiplied by": "*", "divided by": "/"}
_SIGNS = {  # LaTeX's command: the sign
    name: sign
    for sign, names in {
        **{"≤": "le leq leqslant", "≥": "ge geq geqslant", "<": "lt", ">": "gt", "≠": "ne neq", "≈": "approx approxeq"},
        **{"±": "pm", "∓": "mp", "*": "cdot times ast", "/": "div", "∪": "cup", "∈": "in", "∖": "setminus backslash"},
        **{"|": "mid vert lvert rvert", "∞": "infty", "π": "pi", " or ": "lor vee", "⦃": "lbrace", "⦄": "rbrace"},
        **{"(": "langle", ")": "rangle", "⦃⦄": "emptyset varnothing", "≡": "equiv"},
    }.items()
    for name in names.split()
}
_CLEAN = [
    (re.compile(old), new)
    for old, new in (
        (r"\\\\(?:\[\w+\])?", "⏎"),
        (r"(?s)\\begin\s*\{(align(?:ed|\*)?|cases|gathered|split)\}(.*?)\\end\s*\{\1\}", lambda m: _lines(m[2])),
        (
            r"\\(?:left|right|middle|[bB]igg?[lr]?|(?:display|text)style|small|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])\.?",
            "",
        ),
        (r"\\\$", "＄"),
        (r"\$(?=-?[.,]?\d[^$]*$)|(?<=^[A-Z])\$(?= \d)", "＄"),  # but not one that closes a formula
        (r"\$|\\[()\[\]]", " "),
        (r"(?<=\d)\s*(?:(?:\{,\}|,)?(?:\s*\\!)+|\{,\}|\\(?:[,:; ]|thinspace(?![a-z])))\s*(?=\d{3}(?!\d))", ""),
        (r"\\!", ""),
        (r"\\[,;:> ]|\\q?quad(?![a-z])|~", " "),
        (r"\\(?:[dtcs]|nice)(frac|binom)", r"\\\1"),
        (r"\\(?:(?:text)?color|colorbox|hspace|phantom)(?![a-z])\*?\s*\{[^{}]*\}", ""),
        (r"(?:\{|^)([^{}]*)\\over(?![a-z])([^{}]*)(?:\}|$)", r"\\frac{\1}{\2}"),
        (r"\\%", "%"),
        (r"\\(?:vec|overrightarrow)\s*\{\s*([A-Z])\s*([A-Z])\s*\}", r"\1_{to\2}"),  # AB is not BA
        (r"\\overrightarrow(?![a-z])", r"\\vec"),
        (r"\\(?:SI|qty|num)\s*\{([^{}]*)\}(?:\s*\{([^{}]*)\})?", r"\1 \2"),
        (r"\(?(?:\\[bp]?mod|(?<=[( ])mod)(?![a-z])\s*\{?\s*(\w+)\s*\}?\)?", r" (mod \1)"),
        *[(_TEXT + r"\s*\{([^{}]*)\}", r" \1 ")] * 3,
        (_TEXT, ""),
        (rf"\\({'|'.join(_SIGNS)})(?![a-z])", lambda m: _SIGNS[m[1]]),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degrees?|[°º]", " degree "),
        (r"degrees? +([CF])(?![A-Za-z])", lambda m: f"degree {'celsius' if m[1] == 'C' else 'fahrenheit'}"),
        (r"(?<![A-Za-z])Rs\b\.?\s*(?=\d)|(?<=\d)\s+Rs\b\.?", "₹"),  # rs and 2Rs are products
        (rf"(?<![A-Za-z])({_CODES})\s*(\d+(?:[.,/-]\d+)*)", r"\2 \1"),
        (rf"([{_MONEY}] ?\d[\d.,]*) ?([kKMB])(?![A-Za-z])", lambda m: f"{m[1]} {_SHORT[m[2].upper()]}"),
        (r",\s*(?:\.\.\.?|…|\\[lc]?dots)\s*$", ", and so on"),
        (r"(?<=,) ?(?:\.{3}|…|\\[lc]?dots(?![a-z])) ?(?=,)", r"\\dots"),
        (r"(?<=[A-Za-z]) (squared|cubed)\b", lambda m: "^2" if m[1] == "squared" else "^3"),
        (r"(\d ?(?:[kcmd]?m|ft|in))([23])$", r"\1^\2"),  # 20 cm2
        (rf"(?<=\w) ({'|'.join(_OPERATIONS)}) (?=\w)", lambda m: _OPERATIONS[m[1]]),
        (rf"(?i)(?<![\w.])(\d+|{'|'.join(_SMALL)}) and (?:a|one)[ -]half\b", lambda m: f"({_counted(m[1])}+1/2)"),
        (r"^\s*(?:either\b(?=.*\bor\b)|both\b(?=.*\band\b))", ""),
        (r"\b(?i:inf(?:inity)?)\b", "∞"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", "π"),
        (r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|ln|log)x(?![A-Za-z])", r"\1 x"),
        (r"\+/-", "±"),
        (
            r"(?<=[\dA-Za-z)}π甲乙丙丁]) ?([或和与及、]) ?(?=-? ?[\dA-Za-z\\(√π甲乙丙丁])",
            lambda m: " or " if m[1] == "或" else ", ",
        ),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),
        (r"\\sqrt\s*([\da-zA-Z])", r"√{\1}"),
        (r"\\sqrt|(?<![A-Za-z])sqrt(?=\s*[({])", "√"),
        (r"√\s*(\d+)", r"√{\1}"),
        (r"\{([^{}]*)\\choose(?![a-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"(\\frac|\\binom|\\dot|\\bar)\s*([\da-zA-Z])", r"\1{\2}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([\da-zA-Z])", r"\1{\2}"),
        (r"\\not\s*=|(?<=\s)!=", "≠"),
        (r"\\(?=\s*\\\{)", "∖"),
        (r"<=|>=|\\[{}]", lambda m: {"<=": "≤", ">=": "≥", r"\{": "⦃", r"\}": "⦄"}[m[0]]),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"\.(\d*)\\dot\s*\{(\d)\}(\d*)\\dot\s*\{(\d)\}", r".\1\\overline{\2\3\4}"),
        (r"(?<!\d)(\d{,20})\.(\d{,20}?)(\d{1,9}?)\3{2,20}\s*(?:\.{3,}|\\[lc]?dots)", lambda m: _repeating(*m.groups())),
        (r"^ ?(\d+)' ?(\d+)(?:''|\") ?$", r"\1 ft and \2 inch"),
        (r"(?<=degree )\s*(\d+) ?'", r" and \1 min"),
        (r"(?<=\d)\s*\\Omega$", " Ω"),
        (r"(?<=\d)\s*\\mu\s*(?=[msgAFL]\s*$)", " μ"),
        (r"\*\*|^[\s*_`'\"=≈「“«]+|[\s.,;:。*_`'\"⏎\\」”»\u2600-\u2775\u2794-\u27bf\U0001f300-\U0001faff\ufe0f]+$", ""),
        (rf"(?i)^(?:{ROUGHLY}|exactly|a total of) |(?<=\w) (?:in total|altogether) ?$", ""),
        (r"(?<![\w.])(\d*\.?\d+)[eE]([-+]?\d+)(?!\w)", r"\1*10^{\2}"),
        (r"(?<![\d/.}])(\d+) +(\d+) */ *(\d+)", lambda m: f"({m[1]}+{m[2]}/{m[3]})" if int(m[2]) < int(m[3]) else m[0]),
        (r"(\d\.|^ ?-?\d{1,20}\.\d{1,20}(?=\(\d+\) ?$))\((\d{1,20})\)", r"\1\\bar{\2}"),  # 0.1(6); 2.5(4) = 10 is none
        (r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{(\d{1,20})\}", lambda m: _repeating(*m.groups())),
        (r"\s+", " "),
        (r"^( ?[-+]?[\d.]+ ?[-+] ?[\d.]*)j ?$", r"\1i"),  # 3+4j; with i beside it, j is a vector's
        (r"(?<![\w:.])(?<!: )(\d+) ?: ?(\d|\d{3,})(?![\w.]| ?:)", r"\1/\2"),  # a ratio; 2:30 may be a time
        (r"(?<=\d) ?([A-Za-z]{2,3}) ?\* ?([A-Za-z]+)(?=/|$)", r" \1 \2"),  # 5 kg·m/s
        (r"(?<=\d) ?\{? ?([A-Za-z]+)(?: ?\* ?| )([A-Za-z]+) ?\^ ?\{? ?-1 ?\}{0,2}$", r" \1/\2"),  # 10 m s^{-1}
        (r"(?<=\d) ?\{? ?([A-Za-z]+)(?: ?\* ?| )([A-Za-z]+) ?\^ ?\{? ?-([2-4]) ?\}{0,2}$", r" \1/\2^\3"),
        (r"(?i)^ ?(?:(?:[a-z ]{,30} (?:is|are|ha[sv]e?) (?<!t there is ))?no (?:real )?solutions?|none|无解) ?$", "⦃⦄"),
        (r"(^|∪) ?\]", r"\1("),  # ]1, 2[
        (r"\[ ?($|∪)", r")\1"),
        (r"^ ?(?:DNE|D\.N\.E|(?i:(?:the limit )?does not exist|not defined)) ?$", "undefined"),
        (r"^(.+?)[ ,;(]{1,4}([a-z]) ?∈ ?Z ?\)? ?$", lambda m: _parameter(m)),
        (r"^((?:[^⦃]*[=∈])?) ?⦃ ?([^\s⦃⦄,;|:<>≤≥≠±][^⦃⦄,;|:<>≤≥≠±]*)⦄ ?$", r"\1 \2"),  # a set of one
        (r"^ ?(\d+)(?:st|[nr]d|th) ?$", r"\1"),
        (rf"^ ?(\d\d?){_TH} (?:of )?{_MONTH}(?:,? (\d{{4}}))? ?$", r"\2 \1 \3"),
        (rf"^ ?{_MONTH} (\d\d?){_TH}(?:,? (\d{{4}}))? ?$", r"\1 \2 \3"),
        (rf"^({'|'.join(_MONTHS)}) (\d\d?) (\d{{4}})$", lambda m: f"{m[3]}-{_MONTHS.index(m[1]) + 1}-{m[2]}"),
        (r"^ ?0(?=\d:\d\d)", ""),  # 09:05
        (r"(?i)^ ?(?:an? (?=hundred|thousand|million|billion|dozen|half|third|quarter)|(?=half ?$))", "one "),
        (r"(?i)^ ?(?:(?:minus|negative) )?(?:[a-z]+|\d{1,20})(?:[ -][a-z]+)* ?$", lambda m: _counted(m[0])),
        (
            r"^ ?(1[0-2]|0?[1-9])(:\d\d)? ?([AaPp])\.?[Mm] ?$",
            lambda m: f"{int(m[1]) % 12 + 12 * (m[3] in 'Pp')}{m[2] or ':00'}",
        ),
        (r"^ ?\(?(\d[\dA-Fa-f]*|[A-F]+)\)? ?(?:_|\(?base) ?\{? ?(\w+) ?[})]* ?$", r"\1_{\2}"),
        (r"^ ?[⦃{(]?[A-J](?:\)?(?:[ ,;&]|and\b)+\(?[A-J])+[⦄})]? ?$", lambda m: "".join(re.findall("[A-J]", m[0]))),
        (r"^(?: ?[A-Z][a-z]?(?: ?_ ?\{?)?\d*\}?)+ ?$", lambda m: re.sub(r"[ _{]*(\d+)\}?", r"_{\1}", m[0])),  # CO2
        (r"^ ?(?:\d+(?:\.\d+)? ?[A-Za-z]+ ?){2,4}$", lambda m: _compound(m[0])),
        (rf"^ ?(?:between ({_AMOUNT}) and|(?:from )?({_AMOUNT}) to) (?={_AMOUNT})", r"\1\2-"),
    )
]
_LATEX = str.maketrans({"√": r"\sqrt", "π": r"\pi ", "∞": r"\infty ", "*": r"\cdot ", "≤": r"\le ", "≥": r"\ge "})
_CALLS = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{f"arc{name}": getattr(cmath, f"a{name}") for name in ("sin", "cos", "tan")},
    "ln": cmath.log,
    **dict.fromkeys(("log", "lg"), cmath.log10),
    "cot": lambda x: 1 / cmath.tan(x),
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
}
_NAMES = "|".join(sorted(_CALLS, key=len, reverse=True))
_GREEK = (
    r"\\(?:var)?(?:alpha|beta|[Gg]amma|[Dd]elta|epsilon|zeta|[Tt]heta|eta|iota|kappa|[Ll]ambda|mu|nu|[Xx]i|rho|[Ss]igma"
    r"|tau|[Pp]hi|chi|[Pp]si|[Oo]mega|ell|hbar)"
)
_SYMBOL = re.compile(rf"(?:[^\W\d_]|{_GREEK})(?:_(?:\w|\{{ ?\w+ ?\}}))?'?")
_LETTER = re.compile(r"(?<![\\A-Za-z])[a-df-hj-zA-Z](?![A-Za-z])")  # a symbol by itself; e and i are numbers
_TOKEN = re.compile(rf"\d+(?:\.\d*)?|\.\d+|degree|\\?(?:{_NAMES})(?![a-z])|{_SYMBOL.pattern}|\\[a-zA-Z]+|\S")
_NO_UNIT = set(
    "或 和 与 及 不 非 か değil oder ou et und y o nicht pas "
    "or not and but maybe nor through versus otherwise squared cubed factorial halves half thirds third quarters "
    "quarter fourths below above negative inverse excluded "
    "choose mod modulo over more less than score minus plus divided by point itself".split()
)
_UNITS = {
    alias: names.split()[0]
    for names in (
        "cm centimeter centimetre zentimeter centimètre centímetro 厘米 公分 センチ|"
        "m meter metre mètre metro 米 メートル|"
        "km kilometer kilometre kilomètre kilómetro 千米 公里 キロメートル|mm millimeter millimetre 毫米|"
        "nm nanometer nanometre|inch in inche|"
        "ft foot feet|yd yard|mile mi|g gram gramm gramme gramo 克 グラム|kg kilogram kilogramm 千克 公斤 キログラム|"
        "mg milligram|lb pound|oz ounce|ton tonne 吨|s sec second sekunde sekunden seconde segundo 秒|"
        "min minute minuten minuto 分钟 分鐘|h hr hour stunde stunden heure hora 小时 小時 時間|"
        "day tag tage jour día 天|week woche wochen semaine semana 周|month monat monate mois mes mese 个月|"
        "year yr jahr jahre an año 年|l liter litre litro 升 リットル|ml milliliter 毫升|gallon|gb|mb|"
        "＄ dollar 美元 ドル|€ euro eur 欧元 ユーロ|£ gbp|¥ yen yuan 元 円 块|₹ rupee inr|¢ cent|"
        "₽ rub ruble rouble|₩ krw won|₺ lira|kr krona krone|zł pln złoty|"
        "degree deg 度|celsius|fahrenheit|rad radian|% percent prozent|"
        "mph|kph kmh kmph|j joule|n newton|w watt|v volt|a amp|hz hertz|k kelvin|ω ohm|μm micrometer micron|"
        "pa pascal|unit|/ per|^2 square sq 平方|^3 cubic 立方"
    ).split("|")
    for alias in names.split()
} | {  # a currency whose sign other currencies have too
    **{"usd": "US ＄", "cad": "C ＄", "aud": "A ＄", "jpy": "jpy ¥", "cny": "cny ¥"},
    **{code: f"kr {code}" for code in ("sek", "nok", "dkk")},
}
_CHAINS = (  # units that form one quantity, as in 2 hours 30 minutes, each with its size in the next one
    "year 12 month|week 7 day 24 h 60 min 60 s 1000 ms|mile 1760 yd 3 ft 12 inch|km 1000 m 100 cm 10 mm 1000 μm 1000 nm"
    "|ton 1000 kg 1000 g 1000 mg|lb 16 oz|l 1000 ml|＄ 100 ¢|€ 100 ¢|£ 100 ¢|degree 60 min 60 s"
    "|kj 1000 j|kw 1000 w|kn 1000 n|kv 1000 v 1000 mv|kpa 1000 pa|a 1000 ma"
)
_SIZES = [  # {unit: its size in the smallest one}
    {unit: math.prod(map(int, words[2 * i + 1 :: 2])) for i, unit in enumerate(words[::2])}
    for words in map(str.split, _CHAINS.split("|"))
]
_FOLD = (
    dict.fromkeys(map(ord, "−–—‐‑‒˗➖"), "-")
    | {0x66B: ".", 0x66C: ",", 0x66A: "%", 0x2044: "/", 0x2032: "'"}
    | str.maketrans("⩽⩾≃×·⋅∙÷∕∶⟨⟩", "≤≥≈****//:()")
    | str.maketrans({"∅": "⦃⦄", "Ø": "⦃⦄", "∨": " or ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"})
    | dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u200e\u200f"))
)
_SHORT = {"K": "thousand", "M": "million", "B": "billion"}
_SI_BASE = "(?:[gsAKNJWVCFTLlΩB]|mol|Hz|Pa|eV|Wh|bar|cal|bps)"
_SI = re.compile(rf"[kMGTcdmnpμ]?{_SI_BASE}|[kcdmnpμ]m|hp|dB|ppm|rpm")  # a number's unit, with its prefix
_CHOICE = re.compile(
    r"(?:(?:the |la |el |die |l')?(?:option|choice|answer|opción|antwort|réponse|respuesta)\s*:?\s*|选项|選項|選択肢)?"
    r"(?:la )?([(\[{]?)\s*([A-Za-z])\s*(\s-(?=\s[^\W\d_]{4})|[)\]}]?[.:)]?)(\s.*)?",
    re.IGNORECASE | re.DOTALL,
)
_CUT = re.compile(  # the end of a statement; not the factorial in 5! = 120, 3! \times 2 and {5! 3!}
    r"(?i)####|[。！？]|</?answer>|!(?=\s|$)(?! *(?:[-+*/^=<>≤≥≈×·÷]\s?[\d\\({$√]"
    r"|\\(?:times|cdot|div|frac|[gln]eq?|approx)\b|[\d!+*() -]*\}))"
    r"|\.(?=\s|$)(?!(?<=\bRs\.)\s*\d)"
    r"|,?\s+(?:because|since|which|where|so|as|i hope)\b|\n"
)
_FILLER = re.compile(
    rf"(?i)^(?:(?:{ROUGHLY}|exactly|simply|just|clearly|indeed|actually|therefore|thus|equal to|given by)\b"
    r"|the answers are\b|[约約\s:*,])+"
)


def _counted(text: str) -> str:
    """Write number words, perhaps with a known unit, in digits; other texts stay.

    >>> [_counted(text) for text in ("one hundred and five", "minus two million dollars", "three quarters", "one two")]
    ['105', '-2000000 dollars', '3/4', 'one two']
    """
    words, total, group, last = text.replace("-", " ").split(), 0, 0, math.inf
    stems = [word.lower().removesuffix("s") for word in words]
    at = sign = words[0].lower() in ("minus", "negative")
    for stem in stems[sign:]:
        number, scale = int(stem) if stem.isdigit() else _SMALL.get(stem), SCALE_WORDS.get(stem)
        if number is not None and (group % 100 == 0 or (0 < number < 10 and group % 10 == 0 and group % 100 > 10)):
            group += number
        elif stem == "hundred" and 0 < group < 100:
            group *= 100
        elif scale and scale > 1 and group and stem != "hundred" and scale < last:
            total, group, last = total + group * scale, 0, scale
        elif stem != "and" or total + group < 100:
            break
        at += 1
    number, unit = f"{'-' * sign}{total + group}", "".join(stems[at:])
    known = unit in ("", *_PARTS) or (unit in _UNITS and words[-1].islower())  # not One Day
    if at == sign or len(words) - at > 1 or not known:
        return text
    return f"{number}/{_PARTS[unit]}" if unit in _PARTS else " ".join([number, *words[at:]])


def _compound(text: str) -> str:
    """Write 2 hours 30 minutes as a list; products such as 2 ln 3x and 2 m 3 s stay."""
    parts = re.findall(r"([\d.]+) ?([A-Za-z]+)", text)
    known = all(w in _UNITS or w.removesuffix("s") in _UNITS for w in (unit.lower() for _, unit in parts))
    return " and ".join(map(" ".join, parts)) if known and max(len(unit) for _, unit in parts) > 1 else text


def _lines(text: str) -> str:
    """The lines of aligned or cases as a list; a line that begins with = continues the one above."""
    return re.sub(r"\s*⏎\s*", ", ", re.sub(r"⏎\s*&?\s*(?==)", "", text).replace("&", ""))


def _parameter(m: re.Match) -> str:
    """x = 2n + 1 of x = 2n + 1, n ∈ Z, with k for n; other texts, such as x > 3, x ∈ Z, stay."""
    names = {*re.findall(rf"(?<![a-z\\])[k{m[2]}](?![a-z])", m[1])}
    is_side = re.search(rf"(?:^|[<>≤≥≠=]) ?{m[2]} ?(?:$|[<>≤≥≠=])", m[1])
    return m[0] if is_side or names != {m[2]} else re.sub(rf"(?<![a-z\\]){m[2]}(?![a-z])", "k", m[1])


def _repeating(whole, start, cycle) -> str:
    return f"({int(whole + start + cycle) - int('0' + whole + start)}/{10 ** len(start) * (10 ** len(cycle) - 1)})"


def _unit(m: re.Match) -> str:
    """A unit without its brackets; factors such as (x) and (ab), and words such as "mod", keep theirs."""
    words = {*re.findall(r"\w+", m[1].lower())}
    number = " ".join(re.sub("(?i)^an? ", "one ", m[1].strip()).split()[:2])
    if number and re.fullmatch(r"-?\d+(?:/\d+)?", _counted(number)):  # 12 (a dozen eggs), but 18 (a day)
        return m[0]
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
        text = re.sub(r"(?<=[①-⑳])[\s,，、]+(?=[①-⑳])", "", text)
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
