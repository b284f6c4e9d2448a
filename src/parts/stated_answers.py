"""Where a text states its final answer: marks and phrases in six languages, and the words around an answer."""

import re

ROUGHLY = "approximately|about|around|roughly|etwa|ungefähr|rund|environ|aproximadamente|unos|大约|大約|约|約"
_TO = r"(?:to|for|of|auf|für|zu|à|a (?:la|esta)|de (?:la|cette)|du|para)\b[^\n.:：=]{0,80}?"
_NOUN = (
    r"(?:ans(?:wer)?|antwort|lösung|ergebnis|réponse|la solution|résultat|respuesta|solución|resultado"
    r"|(?:(?<![^\n*])|(?:correct|right|best|the|my|die|la|bonne|mejor)[*_ ]{1,3})(?:option|choice|opción))"
)
_IS = r"(?:\b(?:is|are|equals|(?:must|should|will|would) be|ist|lautet|beträgt|est|es|sera|será)\b|[:：=]|\n)"
_CHOSEN = r"\b(?:i(?:'d| would|'ll| will)? (?:choose|pick|select|go with)|ich wähle|je choisis|elijo|escojo)\b"
_CHINESE = r"(?:答案|正确选项|正確選項)(?:应该|應該|应|應)?(?:是|为|為|选|選|[ *]{0,3}[:：=])"
_PICKED = (
    r"(?:(?<![^\s，。；：,.;:、*#])|(?<=故)|(?<=应)|(?<=應)|(?<=该)|(?<=当)|(?<=因此)|(?<=所以)|(?<=我))"
    r"(?:应|應)?(?:选择|選擇|选|選)(?:是|为|為)?[:：]?(?=[\s（(*]{0,3}[A-ZＡ-Ｚ](?![A-Za-z]))"
)
_JAPANESE = r"(?:答え|正解|解答|(?<!\w)答)(?:は|[ *]{0,3}[:：=])、?"
MARK = re.compile(  # an answer follows
    rf"(?i)(?<!#)####(?!#)[ \t*_]*|(?:\b{_NOUN}\b[*_ ]*(?:{_TO}|choice|option|finale?|correct[ea]?|exacte?)?[*_ ]*{_IS}"
    rf"|{_CHOSEN}|{_CHINESE}|{_PICKED}|{_JAPANESE})[\s:：*_]*"
)
HEDGE = re.compile(  # behind an answer: a second one
    r"[\s.,;!?()。，；、]*(?:(?i:or|oder|ou)\b|或|または|もしくは|(?i:maybe|perhaps|possibly|alternatively|also|and|vielleicht"
    r"|peut-être|quizás|也许|可能)\b[^.\n。]{0,40}?(?:\d|(?<![A-Za-z])[A-Z](?![A-Za-z])))"
)
NEGATED = (
    r"\bnot\b|n[’']t\b|\b(?:wrong|incorrect|false|nicht|kein\w{0,2}|falsch|n'est pas|no es|fausse?)\b|不|没|ない|ません"
)
_BECAUSE = r"because|since|due to|weil|parce qu\w+|puisque|porque|ya que"
_IS_RIGHT = (
    r"(?:is|ist|est|es)[ *]{1,3}(?:(?:the|my|die|la|el)\s)?(?:only\s|most\s)?"
    r"(?:correct[eao]?|right|best|richtige?|bonne|juste|answer|option|choice|antwort|réponse|respuesta)\b"
)
_BEHIND = re.compile(  # a reason, what says that it is right, a remark in brackets, a copula
    rf"(?i:\W{{1,6}}(?:{_BECAUSE}|{_IS_RIGHT})\b|,\s?(?:which|where|so|as|da|denn|car|pues)\b)"
    r"|(?<=[\dA-Z*)]) {1,3}(?:car|da|denn)\b|[\s,，;；.。(（]{0,4}(?:因为|因為|由于|なぜなら)"
    r"|\s{0,3}(?:是|为)?正确|(?<=[A-ZＡ-Ｚ])\s{0,3}(?:项|項|选项|選項|選択肢)"
    r"|(?:です|である|となります|になります|だ)(?=[。．.!！、\s]|$)"
    r"|\s{0,3}[(（](?i:see|as|from|by|using|siehe|voir|véase|见|如上)[^\d()（）]{2,60}[)）][.。]?$"
)
_CORRECTION = re.compile(
    r"(?i)[.!?;,\n—]\s{0,3}(?:(?:wait|oh|hmm|sorry|correction|actually|no)\b[\s,.:;!…—-]{1,4}){1,4}"
    r"(?:(?:i mean|it'?s|it is|that'?s|it should be)\s)?"
)
_BARE = re.compile(r"[*($]{0,3}(?:[A-J]|-?[\d.,/]*\d)[)*$]{0,3}(?: [A-Za-z]+)?[.!*]{0,3}")
_VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")
_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+(?=[,{])|0(?=[,{])|\d+(?=(?:,|\{,\})(?!\d{3}(?!\d))))(?:,|\{,\})(\d+)(?![.,]?\d)"
)
_WIDE = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x3000: " "}


def narrow(text: str) -> str:
    """The text with full-width letters, digits and marks as ASCII's: Ｂ is B, ４２ is 42."""
    return text if text.isascii() else text.translate(_WIDE)


def with_point(text: str) -> str:
    """The text with decimal commas as points: 3,5 and 1.234,56 and 0,125; 1,234 is one thousand and more."""
    return _COMMA.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)


def without_words(answer: str) -> str:
    """An answer without the reason or remark behind it: "B because …", "42 (see above)", "B is correct", 42です."""
    end = _BEHIND.search(answer)
    return answer[: end.start()] if end and answer[: end.start()].strip(" \t\n*_") else answer


def is_heading(text: str, mark: re.Match) -> bool:
    """Whether `####` opens a heading or a comment: a long line, or words with text below it."""
    if mark[0][0] != "#":
        return False
    end = text.find("\n", mark.end())
    line = text[mark.end() : end if end >= 0 else None].strip(" \t*_")
    return len(line) > 80 or (end >= 0 and not _VALUE.fullmatch(line) and not text[end:].isspace())


def marked_gold(text: str) -> str:
    """What stands behind the last `####` that is no heading; without one, the text."""
    marks = [m for m in re.finditer("(?<!#)####(?!#)", text) if not is_heading(text, m)]
    return text[marks[-1].end() :].strip().split("\n")[0].strip() if marks else text.strip()


def corrected(text: str) -> str:
    """What stands behind the last "Wait, no," that an answer follows; without one, the text."""
    for m in [*_CORRECTION.finditer(text)][:-4:-1]:
        rest = text[m.end() :]
        stated = MARK.search(rest) or "\\boxed" in rest or "<answer>" in rest or _BARE.fullmatch(rest.strip())
        if stated and rest.count("<answer>") == rest.count("</answer>"):
            return rest
    return text
