"""Find where a text states its final answer, by marks and phrases in 20 languages, and trim words around it."""

import functools
import itertools
import re
from collections.abc import Iterator

ROUGHLY = "approximately|about|around|roughly|etwa|ungefähr|rund|environ|aproximadamente|unos|大约|大約|约|約"
_TO = (  # ... for x = 3, (in cm), in simplest form, rounded to two places
    r"(?:to|for|of|auf|für|zu|à|a (?:la|esta)|de (?:la|cette)|du|para)\b[^\n.:：=]{0,80}?|\(in [\w /^]{1,20}\)"
    r"|,? ?(?:in (?:its )?(?:simplest|lowest|simplified|reduced|exact) (?:form|terms)|rounded to [\w -]{1,30}),?"
)
_IS = (
    r"(?:\b(?:is|are|equals|(?:must|should|will|would) be|ist|lautet|beträgt|wäre|est|sera|serait|es|será|sería|é)\b"
    r"|\b(?:turns out to be|comes (?:out )?to|è|это|adalah|là|jest|ni|равен|হল|هو|هي)\b|হলো"
    r"|(?<=\bans)\.|(?<=ответ )[—–]|(?<=odpowiedź )to\b|[:：=]|\n)"
)
_CORRECT = "correct[ea]?|cor(?:re|ret)ta|cert[ao]|giusta|yang (?:benar|tepat)|đúng|chính xác|الصحيحة"
_OPTION = (
    r"(?:(?<![^\n*])(?:(?:my |the )?(?:selected|chosen|final) (?=\w+[*_]{0,3}:))?"
    r"|\b(?:correct|right|best|the|my|die|richtige|la|bonne|mejor)[*_ ]{1,3})"
)
_ANSWERS = {  # keyword (lower case; a text without it is not searched) -> pattern of the noun before an answer
    **{word: rf"\b{word}" for word in "antwort lösung richtig réponse respuesta solución resposta risposta".split()},
    **{word: rf"\b{word}" for word in "ответ antwoord odpowiedź cevap jibu vastaus उत्तर উত্তর సమాధానం".split()},
    **{word: rf"\b{word}" for word in ("la solution", "đáp án", "câu trả lời", "الجواب", "الإجابة")},
    **{word: _OPTION + word for word in ("option", "choice", "opción", "alternativa")},
    "ans": r"(?:\b|(?<=(?<![^\n])__))ans(?:wer)?",  # __Answer:__
    "jawaban": r"\bjawaban(?:nya)?",
}
_MARKS = {
    **{
        word: rf"{noun}(?=__|\W|$)[*_ ]*(?:{_TO}|choice|option|finale?|{_CORRECT}|exacte?)?[*_ ]*{_IS}[\s:：*_]*"
        for word, noun in _ANSWERS.items()
    },
    **{word: rf"\bi(?:'d| would|'ll| will)? {word}\b[\s:*_]*" for word in ("choose", "pick", "select", "go with")},
    **{word: rf"\b{word}\b[\s:*_]*" for word in ("ich wähle", "je choisis", "elijo", "escojo")},
    **{
        word: rf"{word}(?:应该|應該|应|應)?(?:是|为|為|选|選|คือ|[ *]{{0,3}}[:：=])[\s:：*_]*"
        for word in ("答案", "正确选项", "正確選項", "คำตอบ")
    },
    **{
        word: r"(?:(?<![^\s，。；：,.;:、*#])|(?<=[故应應该当當我题題])|(?<=因此|所以))"
        rf"(?:应|應)?{word}[择擇]?(?:是|为|為)?[:：]?(?=[\s（(*]{{0,3}}[A-ZＡ-Ｚ](?![A-Za-z]))[\s:：*_]*"
        for word in ("选", "選")
    },
    **{
        word: rf"(?<!\w){word}(?:[は은]|[ *]{{0,3}}[:：=])[、\s:：*_]*"
        for word in ("答え", "正解", "解答", "答", "정답", "답")
    },
    "svar": r"\bsvar(?:(?:et)? (?:är|er)\b|[ *]{0,3}[:：])[\s:：*_]*",
    "####": r"(?<!#)####(?!#)[ \t*_]*",
}
HEDGE = re.compile(  # after an answer: an alternative one
    r"[\s.,;!?()。，；、]*(?:(?i:or|oder|ou)\b|或|または|もしくは|(?i:maybe|perhaps|possibly|alternatively|also|and|vielleicht"
    r"|peut-être|quizás|也许|可能)\b[^.\n。]{0,40}?(?:\d|(?<![A-Za-z])[A-Z](?![A-Za-z])))"
)
NEGATED = (
    r"\bnot\b|n[’']t\b|\b(?:wrong|incorrect|false|nicht|kein\w{0,2}|falsch|n'est pas|no es|fausse?|değil)\b"
    "|不|没|ない|ません|아니|아닙|아닌|नहीं|নয়|కాదు"
)
BECAUSE = r"because|since|due to|weil|parce qu\w+|puisque|porque|ya que"
_IS_RIGHT = (
    r"(?:is|ist|est|es)[ *]{1,3}(?:(?:the|my|die|la|el)\s)?(?:only\s|most\s)?"
    r"(?:correct[eao]?|right|best|richtige?|bonne|juste|answer|option|choice|antwort|réponse|respuesta)\b"
)
_BEHIND = re.compile(  # after an answer: a reason, a claim that it is right, a remark in brackets, a copula
    rf"(?i:[\s,;:.!*_(–—-]{{1,6}}(?:{BECAUSE}|{_IS_RIGHT})\b"
    r"|\s?[,;(]\s?(?:which|where|so|as|see|da|denn|siehe|car|voir|pues|véase)\b)"
    r"|(?is:(?<=\Ayes)(?!.*\bno\b)|(?<=\Ano)(?!.*\byes\b))(?:[,;:!]|\.(?= [A-Z]))\s"  # Yes, both are American
    r"|\*\*, (?:the|an?)\b(?![^.\n]*(?:\*\*| (?:is|are|or) ))"  # the capital of France; not: the other is **Rome**
    r"|(?<=[\dA-Z*)]) {1,3}(?:car|da|denn)\b|[\s,，;；.。(（]{0,4}(?:因为|因為|由于|なぜなら)"
    r"|\s{0,3}(?:(?:是|为)?正确|が(?:正解|正しい))|(?<=[A-ZＡ-Ｚ])\s{0,3}(?:项|項|选项|選項|選択肢)"
    r"|(?:です|である|となります|になります|だ|입니다|이다|이에요|예요)(?=[。．.!！、\s]|$)"
    r"|\s{0,3}[(（](?i:see|as|from|by|using|siehe|voir|véase|见|如上)[^\d()（）]{2,60}[)）][.。]?$"
)
_EXPLANATION = re.compile(
    r"\n[\s#*_]{0,9}((?i:explanation|reason(?:ing)?|rationale|justification|here['’]s why|why|erklärung|begründung"
    r"|explication|explicación|解析|解释|解説|理由))\b"
)
_RECONSIDERED = re.compile(  # in an explanation: another answer may be right
    r"(?i)\b(?:wait[,.!…]|(?:not |un)sure\b|also (?:be )?(?:correct|right)\b|auch (?:richtig|korrekt)\b"
    r"|aussi (?:correcte?|juste)\b|también (?:es )?correct[ao]\b)|也是?(?:对|正确)"
)
_RIGHT = r"(?:correct|right|true|valid|acceptable|works?|fits?)\b"
_RIGHT_TOO = (  # after a choice: is also correct; works, too; but not: is also not right
    rf"(?![^.\n]*(?:{NEGATED}))(?i: [^.\n]{{0,20}}(?:\b(?:also|equally)\b[^.\n]{{0,20}}\b{_RIGHT}"
    rf"|\b{_RIGHT}[^.\n]{{0,9}}\b(?:too|also|as well)\b))"
)
_SO = r"\b(?i:so|thus|hence|therefore)\b[\s,*_]{0,9}(?:(?i:option|choice|answer)[\s*_]{1,5})?"
_SO_LETTER = r"[*_(]{0,5}[A-J][*_)]{0,5}"
_SO_ENDS = rf"(?:\s(?i:{_IS_RIGHT})(?![^.\n]{{0,80}}\b[A-HJ]\b|.{{0,80}}\b(?:also|too)\b)|\.?[*_]{{0,5}}\s*\Z)"
WEAK_MARK = re.compile(  # marks where there are no others
    r"\b(?i:answers(?: (?:to|for)\b[^.,\n]{0,60}?)?(?: are\b|[*_ ]{0,3}:))[\s:*_]*"
    rf"|{_SO}(?={_SO_LETTER}(?:{_SO_ENDS}|(?:[.!;][*_]{{0,5}}\s+|\n\s*){_SO}{_SO_LETTER}{_SO_ENDS}))"  # So A. So B.
)
_BEFORE = re.compile(
    r"(?i)[\s,]*(?:(?:it(?:['’]s| is)|so|hence|thus|therefore|clearly|indeed|es ist|also|c['’]est|donc|alors|es)\b"
    r"[\s,:]*|(?:所以|因此)[，,]?)+"
)
_CORRECTION = re.compile(
    r"(?i)[.!?;,\n—]\s{0,3}(?:(?:(?:but )?(?:wait|hold on|actually)|oh|oops|hmm|sorry|correction|no"
    r"|let(?:['’]s| me| us) re-?(?:check|consider|calculate|compute|evaluate|think|do)(?=\s?[.,:;!…—-]|\n)"
    r")\b[\s,.:;!…—-]{1,4}){1,4}"
    r"(?:(?:i mean|it'?s|it is|that'?s|it should be)\s)?"
)
_VALUE = re.compile(r"[$*_(\\\[ ]*-?(?:[\d\\A-Z√π]|[a-z]\b(?! [a-z]))")  # not: correct, positive, a multiple of 3
_BARE = re.compile(r"[*($]{0,3}(?:[A-J]|-?[\d.,/]*\d)[)*$]{0,3}(?: [A-Za-z]+)?[.!*]{0,3}")
_JSON_ANSWER = re.compile(
    r'(?i)(?<=[{,\s])"(?:final[_ ]?)?answer"\s*:\s*(?:"((?:[^"\\\n]|\\.)+)"|(-?[\d.,]*\d))(?=\s*[,}])'
)
_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+(?=[,{])|0(?=[,{])|\d+(?=(?:,|\{,\})(?!\d{3}(?!\d))))(?:,|\{,\})(\d+)(?![.,]?\d)"
)
# unambiguous digit groups: 1.234.567, 12'500, 1_000; decimal commas that such groups or a currency sign reveal
_GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?(?![.,]?\d)|(?<![\w.])\d{1,3}(?:['’_]\d{3})+(?!\w)"
    r"|(?<=€)\s?\d+(?:\.\d{3})*,\d\d?(?![.,]?\d)|(?<![\d.,])\d+(?:\.\d{3})*,\d\d?(?=\s?(?:€|EUR\b))"
)
_LAKHS = re.compile(r"(?<![\d.,])[1-9]\d?(?:,\d\d)+,\d{3}(?![,\d])")  # Indian digit groups: 1,00,000
_END_TOKEN = re.compile(
    r"(?:<[|｜](?!user|assistant|system)[\w▁]{1,40}[|｜]>|</s>|<(?:eos|pad|end_of_turn)>|\[(?:EOS|PAD)\])\Z"
)
_WIDE = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x3000: " "}


@functools.lru_cache(256)
def _any_of(words: tuple[str, ...]) -> re.Pattern:
    return re.compile("(?i)" + ("|".join(_MARKS[word] for word in words) or "(?!)"))


def marks(text: str) -> Iterator[re.Match]:
    """Find what precedes an answer: `####`, "the answer is", 答案是; else "answers are", "so" of "so B is right"."""
    lower = text.lower()
    strong = _any_of(tuple(word for word in _MARKS if word in lower)).finditer(text)
    first = next(strong, None)
    return itertools.chain([first], strong) if first else WEAK_MARK.finditer(text)


def has_mark(text: str) -> bool:
    """Whether a text states an answer by a mark or phrase."""
    return next(marks(text), None) is not None


def visible(text: str) -> str:
    """The text after `</think>`; "" if thinking has not ended."""
    text = text.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def without_end_tokens(text: str) -> str:
    """The text without the special tokens at its end; a text with <s> may be HTML that is struck out.

    >>> without_end_tokens("#### 42<|im_end|>\\n<|endoftext|>"), without_end_tokens("<s>42</s>")
    ('#### 42', '<s>42</s>')
    """
    if re.search("<s[ >]", text):
        return text
    kept, end = len(text), len(text.rstrip())
    while token := _END_TOKEN.search(text, max(0, end - 50), end):
        kept = end = token.start()
        while end and text[end - 1].isspace():
            end -= 1
    return text[:kept]


def narrow(text: str) -> str:
    """The text with full-width characters and the digits of all scripts as ASCII: Ｂ becomes B, ٤٢ becomes 42."""
    return text if text.isascii() else re.sub(r"\d", lambda m: str(int(m[0])), text.translate(_WIDE))


def ungrouped(text: str) -> str:
    """Remove digit group separators where they are unambiguous; 1.234 stays, as a decimal.

    >>> ungrouped("1.234.567"), ungrouped("12'500"), ungrouped("1.234,50 €"), ungrouped("€1.200")
    ('1234567', '12500', '1234.50 €', '€1.200')
    """
    return _GROUPED.sub(lambda m: re.sub("[.'’_]", "", m[0]).replace(",", "."), text)


def with_point(text: str) -> str:
    """Replace decimal commas by points (3,5; 1.234,56; 0,125); commas in 1,234 and 1,00,234 group digits."""
    text = _LAKHS.sub(lambda m: m[0].replace(",", ""), ungrouped(text))
    return _COMMA.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)


def second_letter(letter: str, rest: str) -> bool:
    """Whether `rest`, after a choice's letter, names another choice: ", C" or "D) 12", but not "Vitamin C" or "5 N"."""
    label, choice = ("[A-J]", r"(?:A(?!\s[a-z])|[B-J])") if letter.isupper() else ("[a-j]", "[b-hj]")
    choice += r"(?![\w'’])"
    other = f"(?!{letter}){choice}"
    repeated = rf"(?:[\W_]*{letter}(?![\w'’]))*"
    listed = rf"\A{repeated}[\W_]*{other}(?=[\W_]+{choice}|[\W_]*\Z)"
    labelled = rf"(?<!\w)(?!{letter}){label}(?:\)|[.:]\s)"
    joined = rf"(?:[,;/&|、，或和]|\b(?i:or|and|not|but|maybe|perhaps|also|choice|oder|und|ou|et|o|y)\b)[\s(*]*{other}"
    right_too = rf"(?:\A|[.!?;])[\W_]*(?i:the )?(?i:(?:option|choice|answer) )?[(*]*{other}[)*]*{_RIGHT_TOO}"
    return re.search(f"{listed}|{labelled}|{joined}|{right_too}", rest) is not None


def without_words(answer: str) -> str:
    """Trim words around an answer: "so B", "B because …", "42 (see above)", "B is correct", 42です, an explanation."""
    heads = [*_EXPLANATION.finditer(answer)]
    repeated = any(head[1] == heads[0][1] for head in heads[1:])  # each option is explained
    if heads and not repeated and not _RECONSIDERED.search(answer):
        answer = answer[: heads[0].start()] or answer
    start, end = _BEFORE.match(answer), _BEHIND.search(answer)
    short = answer[start.end() if start else 0 : end.start() if end else None]
    return short if short.strip(" \t\n*_") else answer


def without_json(text: str) -> str:
    """The text with `"answer": "B"` of JSON as `Answer: B` at the end of a line; an example before an answer stays."""
    end = max((m.end() for m in _JSON_ANSWER.finditer(text)), default=len(text))
    rest = text[end:].partition("}")[2]
    if any(_VALUE.match(rest, mark.end()) for mark in marks(rest)) or _BARE.fullmatch(rest.strip("\n. ")):
        return text
    return _JSON_ANSWER.sub(lambda m: "Answer: " + (m[1] or m[2]).replace(r"\\", "\\") + "\n", text)


def corrected(text: str) -> str:
    """The text after the last correction ("Wait, no,") that an answer follows; the whole text if there is none."""
    for m in [*_CORRECTION.finditer(text)][:-4:-1]:
        rest = text[m.end() :]
        # after a box, "the answer is correct" corrects nothing
        is_answer = _VALUE if "\\boxed" in text[: m.start()] else re.compile("")
        firm = "\\boxed" in rest or "<answer>" in rest or _BARE.fullmatch(rest.strip())
        stated = firm or any(is_answer.match(rest, mark.end()) for mark in marks(rest))
        if stated and rest.count("<answer>") == rest.count("</answer>"):
            return rest
    return text
