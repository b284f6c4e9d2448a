#!/usr/bin/env python3
# Built from src/programs/math_grader/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["math-verify[antlr4_13_2]>=0.8,<1"]
# ///
"""Grade mathematical answers: the final answer of a completion against a gold answer, always within a time limit.

Numbers are compared exactly, as fractions; roots, pi, functions and polynomials at sample points. The rest (integrals,
sums, absolute values) goes to math-verify in a worker process that can be killed, so that the limits of 0.4 s per
comparison and 1 s per item hold in threads and in async code. They are processor time, so a busy machine changes no
score. The worker starts with the first item, in about 2 s of processor time; the first item that needs it waits.
Model text is never evaluated: a parser of our own reads it. Digits of any script are read; 四十二 is text.

What counts: `\\boxed{}`, `<answer>`, `####` and "the answer is", after the thinking part, or a text that is only an
answer. A box decides over phrases before it; other different answers, a box cut off and lists of guesses score 0.

Deliberately left out: taking the last number of a text as its answer, which would pay for repeating the prompt.

The reward library loads this file when a function grades mathematics.

    python scripts/math_grader.py "so it is \\boxed{\\frac{1}{2}}" 0.5
"""

# Contents
#         65-76  python source   Parses Python source in a process with threads
#         79-89  messages        Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#        92-310  stated answers  Find where a text states its final answer, by marks and phrases in 20 languages, and …
#       313-454  answer marks    Extract the final answer of a worked solution: marked by `#### 42`, `\boxed` or …
#       457-538  contexts        What around a number, a box or a mark changes what it says: 5 million, -\boxed{5}, …
#       541-878  vocabulary      Patterns, names and units; bringing texts into one notation
#      881-1281  values          Read answers: expressions, evaluated at sample points, and the structures around them
#     1284-1464  worker          The worker process that asks math-verify, with limits on its processor time, which …
#     1467-1715  equality        Equality of values and of answers
#     1718-1978  answers         Find the final answer in a completion or a gold column; the score; the command line

import argparse
import ast
import cmath
import contextlib
import contextvars
import functools
import importlib.util
import itertools
import json
import math
import numbers
import operator
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import unicodedata
import warnings
import zlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

# --------------------------------------------------------------- python source (src/parts/foundation/python_source.py)


def parse_python(source: str, name: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """`ast.parse`, repeated on SystemError: CPython 3.11 counts the depth of all threads together, so that another
    thread can make it fail on valid source. A lock would hang in a process that is forked while it is held."""
    for _ in range(100):
        try:
            return ast.parse(source, name, mode)
        except SystemError:
            continue
    return ast.parse(source, name, mode)


# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


def tell(*words, end: str = "\n") -> None:
    """Print a result on stdout; escape characters that its encoding lacks, print nothing once its reader closed it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    words = [str(word).encode(encoding, "backslashreplace").decode(encoding) for word in words]
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ------------------------------------------------------------------- stated answers (src/parts/data/stated_answers.py)

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


# ----------------------------------------------------------------------- answer marks (src/parts/data/answer_marks.py)

HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")  # a letter, or a number with a unit
# a sentence ends where another one follows; not after initials and short words: J. K. Rowling, St. Louis
SENTENCE_END = re.compile(
    r"(?<=[\d$)}\]%*])\.[*_]*\s+(?=[A-Z])|(?:(?<=\w{3})|(?<=\A\w))\.[*_]*\s+(?=[A-Z]['\w]*(?: [\w']+){2})|[。！？]"
)
NO_STATEMENT = re.compile(r"(?i)#|(?:i|ich|je|elijo|escojo)\b")  # marks that a gold answer does not use ("I choose")
# before a mark: LEAD may open its clause; NO_CLAUSE makes it a condition, or a string in a program
LEAD = re.compile(
    r"(?i)\W*+(?:(?:so|thus|hence|therefore|then|finally|and|the|my|our|final|correct|right|best|die|la|[^\x00-\x7f]++)\W*+)*+"
)
NO_CLAUSE = re.compile(r"""(?i)\b(?:if|whether|unless|when)\b|"|\(f?'""")
NO_PROSE = re.compile(r"(?i)[?&.(]\s*\Z|\A(?:\t|  )|\band\b")  # before `answer =` in a URL, code or SQL
ARGUMENT = r"(?:\d|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})"
# \boxed followed by a brace, a word, or one command with its arguments (\frac12, \text{B}) that no formula follows
BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-z])\s*"
    rf"(?:\{{|([\w-]+|\\(?!left|begin)[A-Za-z]++(?:\[\w+\])?{ARGUMENT}{{0,2}}+(?!\s*(?:\\[A-Za-z]|[\d{{])))|)"
)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
FLOW = (ast.For, ast.While, ast.If, ast.With)
STATEMENTS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, *FLOW)


def is_heading(text: str, mark: re.Match) -> bool:
    """Whether `####` starts a heading or comment: a usual title, a line over 80 characters, or words above text."""
    if mark[0][0] != "#":
        return False
    line, _, below = text[mark.start() + 4 :].partition("\n")
    line = line.strip(" \t*_")
    is_title = HEADING.fullmatch(line) or line.endswith((":", "#")) or len(line) > 80
    return bool(is_title) or (below.strip() != "" and not VALUE.fullmatch(line))


def marked_gold(text: str) -> str:
    """The gold answer in a solution: the text after its last `####` (no heading), a stated answer, or all of it."""
    text = text.rpartition("</think>")[2]
    answers = [mark[1] for mark in HASH.finditer(text) if not is_heading(text, mark)]
    return (answers[-1] if answers else stated_gold(text) or text).strip()


def stated_gold(text: str) -> str | None:
    """The short answer that the last line states ("Answer: 12", "So the answer is 12."), or that ends in `</answer>`.

    Of several in the line, the last counts. None if there is none, or if a box in the text is not closed.
    """
    tagged = text.rstrip().removesuffix("</answer>")
    if "<answer>" in tagged and tagged != text.rstrip():
        return tagged.rpartition("<answer>")[2].strip()
    *above, line = text.strip().split("\n")
    line = re.sub(r"(?i)\b(?:solution|result)(?= is\b|\W{0,3}:)", "answer", line)
    latest = [mark for mark in [*marks(line)][:-4:-1] if "=" not in mark[0] or is_prose(line, mark, "\n".join(above))]
    answer = next(filter(None, (statement(line, mark) for mark in latest)), None)
    boxes = None if answer is None or boxes_in(text) is None else boxes_in(answer)
    return None if boxes is None else [answer, *boxes][-1]


def is_prose(line: str, mark: re.Match, above: str) -> bool:
    """Whether `answer =` is prose: at the start of a line, and not in a program, SQL or a URL."""
    before, after = line[: mark.start()], line[mark.end() :].rstrip()
    in_code = NO_PROSE.search(before) or after[:1] == "=" or after[-1:] == ";"
    return bool(LEAD.fullmatch(before)) and not in_code and not is_program(above)


def statement(line: str, mark: re.Match) -> str | None:
    """The answer that follows a mark in its sentence; None if it is too long, no answer, or has another mark.

    Words count only if the mark opens a clause ("So the answer is Paris"); numbers and formulas count anywhere.
    """
    answer = without_words(SENTENCE_END.split(line[mark.end() : mark.end() + 300], maxsplit=1)[0]).strip("*_ .")
    clause = re.split(r"[.!?,;:]\s", line[: mark.start()])[-1]
    if NO_STATEMENT.match(mark[0]) or NO_CLAUSE.search(clause) or answer.count('"') % 2:
        return None
    words = 0 if VALUE.fullmatch(answer) else count_words(answer)
    is_short = len(answer) <= 100 and words < (6 if LEAD.fullmatch(clause) else 1)
    return answer if is_short and re.search(r"\w", answer) and not has_mark(answer) else None


def count_words(answer: str) -> int:
    """Number of words in an answer, not counting single letters, numbers and LaTeX commands."""
    return len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))


def boxes_in(text: str) -> list[str] | None:
    """Contents of the outermost `\\boxed` and `\\fbox`; None if one is not closed."""
    contents, at = [], 0
    while m := BOX.search(text, at):
        depth, at = 1, m.end()
        if not m[0].endswith("{"):
            contents.append(m[1] or "")
            continue
        for brace in BRACE.finditer(text, at):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if not depth:
                break
        if depth:
            return None
        contents.append(text[at : brace.start()])
        at = brace.end()
    return contents


def accepted(gold) -> list:
    """All answers that a gold value accepts: the value, or the items of nested lists; a matrix is one, as JSON text.

    >>> accepted([["NYC", "New York"], ["LA"]]), accepted([[1, 2], [3, 4]]), accepted([[1], [2]])
    (['NYC', 'New York', 'LA'], ['[[1, 2], [3, 4]]'], ['[[1], [2]]'])
    """
    if not isinstance(gold, list | tuple):
        return [gold]
    if is_matrix(gold):
        return [json.dumps(gold, default=str)]
    one_answer = [is_matrix(item) or (is_matrix([item]) and len(item) > 1) for item in gold]
    vectors = [json.dumps(item, default=str) if one else item for item, one in zip(gold, one_answer, strict=True)]
    return [one for item in vectors for one in (item if isinstance(item, list) else [item])]


def is_matrix(value) -> bool:
    """Whether a value is a list of equally long rows of numbers."""
    rows = value if isinstance(value, list) and all(isinstance(row, list) for row in value) else []
    plain = all(isinstance(cell, numbers.Number) for row in rows for cell in row)
    return plain and bool(rows) and {*map(len, rows)} == {max(1, len(rows[0]))}


@functools.lru_cache(32)
def parsed(source: str) -> ast.Module | None:
    """The syntax tree of Python source, or None if it does not parse."""
    with warnings.catch_warnings(), contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        warnings.simplefilter("ignore")  # about invalid escapes
        return parse_python(source)
    return None


def is_program(text: str) -> bool:
    """Whether a text is Python source with statements beyond expressions."""
    return any(isinstance(node, STATEMENTS) for node in getattr(parsed(text), "body", ()))


# ---------------------------------------------------------------------------- contexts (src/parts/rewards/contexts.py)

_SCALES = (  # a size and the words that multiply the number before them by it
    "12 dozen|100 hundred 백|1e4 万 萬 만|1e5 lakh लाख|1e7 crore करोड़|1e8 亿 億 억|1e12 trillion|1e15 quadrillion"
    "|1e3 thousand tausend mille tsd mil mila duizend tusen tysiąc tysiące tysięcy ribu nghìn ngàn"
    " тыс тысяча тысячи тысяч हज़ार हजार พัน 천 千"
    "|1e6 million millionen miljon miljoner millone mio mln milione milioni milhão milhõe millón milyon juta triệu"
    " млн миллион миллиона миллионов ล้าน"
    "|1e9 billion milliard milliarde milliarden miljard miljarder bn mrd млрд миллиард миллиарда миллиардов"
    "|1/5 fifths|1/6 sixths|1/7 sevenths|1/8 eighths|1/9 ninths|1/10 tenths|1/12 twelfths|1/100 hundredths"
    "|1/1000 thousandths"
)
SCALE_WORDS = {word: Fraction(size) for size, *words in map(str.split, _SCALES.split("|")) for word in words}
_BEFORE_BOX = re.compile(  # a sign (not a bullet) or a negation right before a box
    r"(?i)(?:(?<![^\s${(=])[-−](?:\\,)?|[=(] *[-−] *|\\pm *|(?:\b(?:not|cannot|nicht)|n['’]t|不是)(?: be)?[ *$(]*)\Z"
)
_AFTER_BOX = re.compile(  # a power of ten or a scale right after a box (a dozen may be what is counted); another choice
    r"(?i)[ \t$]*(?:(?:\\times|\\cdot|[x×·]) *10\^(?:\{[^{}]*\}|\d+)|or[\s$(]*(?-i:[A-J])\b"
    rf"|(?:{'|'.join(word for word in SCALE_WORDS if word != 'dozen')})s?(?![\w-]))"
)
_AFTER_NUMBER = re.compile(  # after a box with digits: another number, a denial (a choice may be what is wrong)
    r"(?i)[\s$]*(?:or[\s$]*\d+\$?\.?(?:\n|\Z)|is (?:wrong|incorrect|not (?:the )?(?:correct|right|answer)))"
)
_DENIED = re.compile(  # before "answer is"
    r"(?i)\b(?:if|whether|unless|suppose|supposing|assume|assuming|wrong|incorrect|false|not (?:true|sure)|se|si|если"
    r"|falsche|fausse|mauvaise|fel|felaktiga?t?|forkerte?|feil|błędna|nieprawidłowa|неправильный|неверный|yanlış)"
    r"(?: that)?(?: (?:the|an?|my|our|la))?(?: (?:correct|right|final|best))?[*_ ]*\Z"
)
_CHECKED = re.compile(  # before "the answer:", whose check follows
    r"(?i)\b(?:(?:double[- ]?|re-?)?check(?:ing)?|verify(?:ing)?|test(?:ing)?)[*_ ]+(?:the|this|that|my|our|your)"
    r"(?: (?:correct|right|final))?[*_ ]*\Z"
)
_NOT_BEFORE = re.compile(  # before the answer: the one that it is not
    r"(?i)^[\s*]*(?:(?:not|nicht)\b|不是)[^.\n。]{1,40}?(?:\b(?:but|sondern)\b|[，,]?\s*而是|, it(?:['’]s| is)\b)\s*"
    r"|^[^.\n。]{1,40}?(?:[가이] 아니라|ではなく)[\s、]*"
)
_NOT_AFTER = re.compile(
    r"^([\s*$(]*(?:-?\d(?:[\d.,/]*\d)?|[A-J])[)*$]*)"
    r"(?:,? (?:(?:and )?not|instead of|rather than) |[，,]不是)[*$(]*(?:-?\d|[A-J]\b).*"
)


def stated_boxes(text: str) -> list[str] | None:
    """Contents of the outermost boxes, with what right before or after a box changes; None if one is not closed.

    >>> stated_boxes("$-\\\\boxed{5}$"), stated_boxes("\\\\boxed{5} million"), stated_boxes("not \\\\boxed{5}")
    (['-5'], ['5 million'], ['not 5'])
    """
    boxes, at = boxes_in(text), 0
    for i, content in enumerate(boxes or ()):
        box = BOX.search(text, at)
        at = box.end() + (len(content) + 1) * box[0].endswith("{")
        before, after = text[max(0, box.start() - 60) : box.start()], text[at : at + 60]
        after = _AFTER_BOX.match(after) or (content.isdigit() and _AFTER_NUMBER.match(after))
        before = _BEFORE_BOX.search(before)
        if (before or after) and not content.isalnum():
            content = f"({content})"
        boxes[i] = (before[0] if before else "") + content + (after[0] if after else "")
    return boxes


@functools.lru_cache(maxsize=8)
def _states_once(text: str) -> bool:
    """Whether a text has one mark and no box."""
    return not BOX.search(text) and len([*itertools.islice(marks(text), 2)]) == 1


def is_denied(text: str, mark: re.Match) -> bool:
    """Whether a mark states no answer: "the wrong answer is", "if the answer is", "check the answer:"."""
    before = text[max(0, mark.start() - 60) : mark.start()]
    names = re.fullmatch(r"\w+(?: for \w+)?[^\w.]+", mark[0])  # no verb: "the answer for x = 3: 2x = 6"
    checked = names and _CHECKED.search(before)
    return bool(_DENIED.search(before) or (checked and not _states_once(text)))


def chosen(answer: str) -> str:
    """The answer in "not 5 but 6" or "6, not 5"; other texts as they are.

    >>> chosen("not 5 but 6"), chosen("6, not 5"), chosen("not 5")
    ('6', '6', 'not 5')
    """
    return _NOT_AFTER.sub(r"\1", _NOT_BEFORE.sub("", answer))


# ----------------------------------------------------------------- vocabulary (src/programs/math_grader/vocabulary.py)

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


# ------------------------------------------------------------------------- values (src/programs/math_grader/values.py)

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


# ------------------------------------------------------------------------- worker (src/programs/math_grader/worker.py)

_LIMIT_S = 0.4  # processor time for a comparison in the worker
_ITEM_S = 0.95  # processor time for all comparisons of an item
_LOST_S = 12.0  # on the clock: a worker that is silent for so long sleeps, and is replaced
_START_S = 60.0  # on the clock, for a worker to start
_LEFT: contextvars.ContextVar = contextvars.ContextVar("left", default=None)  # [seconds left for an item's comparisons]


@contextlib.contextmanager
def one_item():
    """Limit all comparisons inside to `_ITEM_S` seconds of the worker together; when nested, the outer limit holds."""
    token = _LEFT.set(_LEFT.get() or [_ITEM_S])
    try:
        yield
    finally:
        _LEFT.reset(token)


class MathWorker:
    """math-verify in a process that can be killed: one comparison at a time, from any thread, no signals."""

    def __init__(self):
        self.reset()
        if hasattr(os, "register_at_fork"):  # else a lock held by a thread at the fork stays locked in the child
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget the worker, which after a fork belongs to the parent."""
        self.lock, self.process, self.absent, self.patience_s = threading.Lock(), None, False, _START_S

    def ensure(self) -> None:
        """Start the worker unless one runs; does not wait for it."""
        if self.process is None and not self.absent:
            with self.lock:
                if self.process is None:
                    self.start()

    def start(self) -> None:
        self.ready, self.absent = False, os.name != "posix" or not importlib.util.find_spec("math_verify")
        if not self.absent:
            self.process = subprocess.Popen(
                [sys.executable, "-P", os.path.abspath(__file__), "--math-worker"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask(self, groups: list) -> bool | None:
        """Whether each group's answers match its golds; None if a gold cannot be parsed, False if time runs out."""
        left = _LEFT.get() or [_ITEM_S]
        self.ensure()
        with self.lock:
            if left[0] < _LIMIT_S:
                return False
            if self.process and self.process.poll() is not None:
                self.stop()
                self.start()
            if self.process and not self.ready:
                self.ready = self.answer(self.patience_s) == b"ready\n"
                self.absent = not self.ready
            if self.absent:
                self.stop()
                warnings.warn("math-verify is missing or slow: integrals, sums, … are compared as text", stacklevel=2)
                return False
            verdict, seconds = self.exchange(groups)
            left[0] -= seconds
            return verdict

    def exchange(self, groups: list) -> tuple[bool | None, float]:
        """(Verdict, seconds that it took) of the worker, which is ready; a silent one is replaced."""
        try:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.write(json.dumps(groups).encode() + b"\n")
                return tuple(json.loads(self.answer(_LOST_S)))
        except BaseException:  # an interrupt: the pending answer must not reach the next question
            self.stop()
            raise
        self.stop()
        self.start()
        warnings.warn(f"the math worker died or was silent for {_LOST_S:g} s: an answer counts as wrong", stacklevel=2)
        return False, _ITEM_S

    def answer(self, seconds: float) -> bytes:
        """The worker's next line, or b"" after `seconds`."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if waiting.select(seconds) else b""

    def stop(self) -> None:
        """Kill the worker and its children."""
        if self.process:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
        self.process = None


_WORKER = MathWorker()


def start_worker(patience_s: float = _START_S) -> None:
    """Start the worker unless it runs; does not wait for it.

    Args:
        patience_s: seconds that the first item that needs the worker may wait for it.
    """
    _WORKER.patience_s = patience_s
    _WORKER.ensure()


def _judge(groups) -> bool | None:
    """`ask`, by math-verify; runs in the worker only."""
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text):
        text = re.sub(rf"(?<![\\A-Za-z])({_NAMES})(?![A-Za-z])", r"\\\1", text).translate(_LATEX)
        return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)

    for answers, golds in groups:
        answers, golds = [[read(text) for text in texts] for texts in (answers, golds)]
        if not all(golds):
            return None
        for gold in golds:
            equal = [i for i, answer in enumerate(answers) if answer and verify(gold, answer, timeout_seconds=None)]
            if not equal:
                return False
            del answers[equal[0]]
    return True


# first uses of the parser and sympy cost up to a second; later comparisons take milliseconds
_WARM = [
    (r"\int x dx+\ln{4}", r"2\ln{2}+\frac{x^2}{2}"),
    (r"\int_0^1 x dx", r"\frac12"),
    ("|x|+1", "1+|x|"),
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    (r"\prod_{k=1}^{n} k", "n!"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\lim_{x\to 0} \frac{\sin x}{x}", "1"),
    (r"x^2 < 4", r"-2 < x < 2"),
    (r"\lfloor n/2 \rfloor", r"\lfloor \frac{n}{2} \rfloor"),
    ("n!+1", "1+n!"),
    (r"\sqrt{x^2+1}", r"(x^2+1)^{1/2}"),
]


def _math_worker() -> None:
    """Serve `ask` on stdin and stdout by a forked child, which is replaced if a comparison takes too long."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    for a, b in _WARM:
        _judge([[[a], [b]]])
    print("ready", file=out, flush=True)
    while True:
        child = os.fork()  # warmed up already, so that replacing it takes no time
        if not child:
            _serve(out)
            os._exit(0)
        if not os.waitpid(child, 0)[1]:
            return
        print(json.dumps([False, _LIMIT_S]), file=out, flush=True)


def _serve(out) -> None:
    """Answer comparisons; a timer's signal ends this process if one takes too long."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, _LIMIT_S)
        reply, started = False, time.process_time()
        with contextlib.suppress(Exception):
            reply = _judge(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([reply, time.process_time() - started]), file=out, flush=True)


# --------------------------------------------------------------------- equality (src/programs/math_grader/equality.py)

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


# ----------------------------------------------------------------------- answers (src/programs/math_grader/answers.py)

_FIRM = re.compile(r"\\(?:boxed|fbox)|(?i:<answer>)")
_THOUGHT, _THOUGHT_END = (
    rf"(?i:[<◁]{slash}(?:think(?:ing)?|thought|reasoning)\s*[>▷])|\[{slash}THINK\]|<\|(?:{words})\|>"
    for slash, words in (
        ("", r"begin_of_thought|channel\|>analysis<\|message"),
        ("/", r"end_of_thought|channel\|>final<\|message"),
    )
)

_SUBJECT = re.compile(  # before the number of a sentence: She has, Janet's profit is, The least value of x is
    rf"^ ?(?!.*(?:{NEGATED}))(?!(?:Half|Twice|No|None|Nobody|Each|Both)\b)(?:that )?"
    r"(?:(?:(?i:he|she|it|they|we|there|the(?: [a-z]+){1,6})|[A-Z][a-z]+(?:['’]s [a-z]+)?)"
    r" (?:is|are|has|have|makes?|earns?|needs?|takes?|costs?|pays?|spends?|gets?)"
    r"|(?:Minimum|Maximum|Total|Sum|Result|Value)(?: [a-z]+)?:)"
    r" (?=-? ?\\?[$＄€£]?(?:\d|\\frac|√))"
)
_MEANT = _NO_UNIT | SCALE_WORDS.keys() | {"percent", "base", "times"}  # words that change what a number means
_WORKING = re.compile(r" *\(([^()]+)\)[.*]*$")
_RESTATED = re.compile(r"^\s*(?:or|i\.e\.,?|that is,?|which is|equivalently,?|equal to|=)\s")
_NUMBER = re.compile(r"[*$\\( ]*(-?\d[\d,]*(?:\.\d+)?)")
_TIMES = re.compile(r" ?(?:\\times|\\cdot|(?<=[\w ])[x×·]) ?(?=[$＄€£]?\d)")
_NOUN = re.compile(r"[$＄€£]|\bi\.e\.,?|(?:\bper |/)?[A-Za-z]{2,}")


def _without_working(answer: str, gold: str) -> str:
    """Drop brackets that repeat the value before them, 0.5 (or 1/2), or its calculation: 18 dollars (9 * 2 = 18).

    It stays if the gold answer has a unit and the number has none: 18 (9 × 2 cents) is not $18.
    """
    working = _WORKING.search(answer) if len(answer) < 200 else None
    head = answer[: working.start()] if working else ""
    if not head or (_value(gold).unit and not _value(head).unit):
        return answer
    value = _RESTATED.sub("", working[1])
    spaced = working[0][0] == " " or value.isalpha()  # not: the product 2(2)
    if spaced and value not in head and math_equal(value, head):
        return head
    number = _NUMBER.match(answer)
    if not number or {*re.findall(r"[^\W\d_]+?(?=s?\b)", working[1].lower())} & _MEANT:
        return answer
    sides = _NOUN.sub("", _TIMES.sub("*", working[1])).split("=")
    is_sum = re.search(r"\d\s*[-+*/÷]\s*\d", sides[0]) and all(re.fullmatch(r"[\d.,\s+*/÷-]+", side) for side in sides)
    return head if is_sum and all(math_equal(side, number[1]) for side in sides) else answer


def _statement(text: str, m: re.Match) -> str:
    """The text after `####` or "the answer is", to the end of the sentence; hedges are kept, so they do not pay."""
    rest = text[m.end() : m.end() + 500].lstrip("}")  # of \text{The answer is }
    if block := re.match(r"\$\$(.*?)\$\$|\\\[(.*?)\\\]", rest, re.DOTALL):
        return block[1] or block[2] or ""
    rest = _FILLER.sub("", chosen(rest)) if m[0][0] != "#" else rest.partition("\n")[0]
    end = _CUT.search(re.sub(r"^([^()\[\]\n]+)\)(?=[.!\s]*(?:\n|$))", r"\1\n", rest))  # of (The answer is 18)
    return rest if end and HEDGE.match(rest, end.end()) else without_words(rest[: end.start()] if end else rest)


def _places(text: str, candidates: Iterable[re.Match]) -> list[re.Match]:
    """The marks that state an answer."""
    return [m for m in candidates if not is_heading(text, m) and not is_denied(text, m)]


def final_answer(text: str) -> str | None:
    """Return the final answer of a completion, or None if there is none, it is cut off, or two differ.

    Looks at `<answer>`, `\\boxed{}`, `#### x` and "the answer is x" after the thinking part, or takes a text that is
    nothing but an answer. A box decides over phrases before it. There is no last-number fallback, so digits of the
    prompt and lists of guesses do not count.
    """
    tail = corrected(without_json(without_end_tokens(re.split(_THOUGHT_END, text or "")[-1])))
    tags = re.split(r"(?i)<(/?)answer>", tail)
    boxes = stated_boxes(tail)
    cut = re.search(_THOUGHT, tail) or tags[1::2] != ["", "/"] * (len(tags) // 4)
    if boxes is None or cut:
        return None
    tagged = [part for part in tags[2::4] if not boxes_in(part) and not has_mark(part)]
    boxes = [_statement(box, [*marks(box)][-1]) if has_mark(box) else box for box in boxes]
    firm = [corrected(part).strip() for part in boxes + tagged]
    places = _places(tail, itertools.islice(marks(tail), 500))
    places = places if firm or places else _places(tail, WEAK_MARK.finditer(tail))
    first = _FIRM.search(tail).start() if firm else 0  # a box decides over phrases before it, but not over ####
    soft = [
        _statement(tail, m).strip()
        for m in places
        if (m.start() >= first and not (firm and ("rounded" in m[0] or m.re is WEAK_MARK))) or m[0][0] == "#"
    ]
    soft = [part for part in soft if not _FIRM.search(part)]
    prose = ("text", "raw", "bad", "huge")
    if not firm and not soft:
        return _only_answer(tail.strip())
    final = firm[-1] if firm else next((part for part in reversed(soft) if _value(part).kind not in prose), soft[-1])
    others = {*firm, *soft} - {final}
    for part in others if len(others) < 20 else [""]:
        kind = _value(part).kind
        sentences = all(map(_SUBJECT.match, (part, final)))
        is_short = kind == _value(final).kind and (kind != "text" or len(part.split()) < 4 or sentences)
        if (part in firm or kind not in prose or is_short) and not math_equal(part, final):
            return None
    return final or None


def _only_answer(text: str) -> str | None:
    """A text that is one literal, perhaps with a reason after it, else None; sums are None, as they may be the task."""
    text = _FILLER.sub("", without_words(text))
    value = _value(text) if len(text) < 120 and "\n" not in text else _Value("huge")
    sums = re.sub(r"(?:^-?|\* ?)10\^|\(\d+\+\d+/\d+\)", "", _clean(text)) if value.kind != "huge" else "+"
    sums = re.sub(r"(?<=\d) ?[A-Za-z].*", "", sums) if value.unit else sums  # cm^2
    if value.kind in ("bad", "raw", "huge", "all") or (value.kind == "text" and len(text.split()) > 3):
        return None
    if value.kind == "num" and isinstance(value.data[0], Fraction):
        top = str(abs(value.data[0].numerator))
        reduced = top in sums or not re.search("/|frac", sums)
        return text if reduced and not re.search(r"[+*^!√]|\w\s*-", sums) else None
    return text


def gold_answer(gold: Any) -> str | None:
    """Return the answer in a gold column: GSM8K's `... #### 42`, a solution with a box, LaTeX, text or a number."""
    if gold is None or (isinstance(gold, float) and not math.isfinite(gold)):
        return None
    text = str(gold).strip()
    boxes = boxes_in(text)
    if boxes is None:
        return None
    return (boxes[-1] if boxes else marked_gold(text)) or None


# a sum is never a result; a power or quotient is one unless the prompt has it
_TASK = re.compile(rf"(?<=[\w)}}!])[+*-]|[√|]|\\(?:int|sum|prod|lim|[lr]?floor|[lr]?ceil)|{_NAMES}")
_STEP = re.compile(r"[/^!]|\\(?:frac|binom)")
_OPERATION = re.compile(rf"(?<=.)[+*/^-]|[√|!]|\\(?:frac|binom|int|sum|prod|lim)|{_NAMES}|\w\(")


def _worked_out(answer: str, task: str) -> bool:
    """Whether a numerical answer is a result, not the task itself: copying 34+71 must not pay."""
    value, clean = _value(answer), _clean(answer)
    value = value.data[1] if value.kind == "eq" else value
    values = value.data if value.kind in ("all", "either") else [value]
    if value.kind != "raw" and not all(_is_constant(v) and isinstance(v.data[0], Fraction) for v in values):
        return True  # letters and roots: an expression is the answer
    sides = [side for side in re.split("[=≈]", clean) if _is_constant(_value(side))]
    return any(_is_result(side, bool(value.unit), task) for side in sides or [clean])  # in 34+71 = 105 the last one


def _is_result(side: str, has_unit: bool, task: str) -> bool:
    plain = re.sub(r"\s|^\s*[A-Za-z]\w*\s*=", "", side)
    plain = re.sub(r"(?<=\d)[A-Za-z].*", "", plain) if has_unit else plain  # 5 m/s
    literal = re.sub(r"\*10\^(?:\{[-+]?\d+\}|[-+]?\d+)|\^\{[-+]?\d+\}|\^-\d+|(?<=\d)\+(?=\d+/)", "", plain)
    return not _TASK.search(literal) and not (_STEP.search(plain) and plain in re.sub(r"\s", "", _clean(task)))


_FORM = re.compile(
    r"(?i)\b(?:prime|factor(?!s? of)|as (?:an? )?(?:product|power)|powers? of\b|scientific|exponent|standard form)"
)
_SLASH = re.compile(r"\\frac\{((?:[^{}+-]|\{[^{}]*\})+)\}\{(\w+|√\{\w+\})\}")


def _plain(text: str) -> str:
    """A text in one notation, for comparison as text: \\frac{2}{4} becomes 2/4, x^{2} x^2; words keep their spaces."""
    return re.sub(r"\{(\w)\}", r"\1", _SLASH.sub(r"\1/\2", _clean(text)))


def _bare(text: str) -> str:
    """An answer in `_plain` notation without spaces, name (y =, f(x) =) and enclosing brackets."""
    plain = re.sub(r"\s", "", _plain(text))
    plain = re.sub(r"^(?:[A-Za-z]\w*|[a-z]\([a-z]\))=(?=[^=<>≤≥≠]+$)", "", plain)
    return plain[1:-1] if plain[:1] == "(" and _is_enclosed(plain) and "," not in plain else plain


def _orders(plain: str):
    """Yield a sum with its terms in every order, if there are at most four, else as it is."""
    terms, at = [], 0
    for part in _split(plain, "[+-]"):
        if part:
            terms.append((plain[at - 1] if at else "+") + part)
        at += len(part) + 1
    for order in itertools.permutations(terms) if len(terms) < 5 else [terms]:
        yield "".join(order).removeprefix("+")


def _is_copied(answer: str, expected: str, prompt: str) -> bool:
    """Whether an answer other than the gold one's text is copied from the prompt: 2x = 6 for x = 3, 2x + 3x for 5x.

    Checked for equations, inequalities and expressions with an operation, where a sum's terms may have any order.
    """
    plain, gold = (re.sub(r"\s", "", _plain(text)) for text in (answer, expected))
    if all(re.search("[=<>≤≥≠]", text) for text in (plain, gold)):
        forms, converted = [plain], False
    else:
        plain, gold, value, other = _bare(answer), _bare(expected), _value(answer), _value(expected)
        expression = value.kind in ("num", "raw", "eq") and not value.unit and _OPERATION.search(plain)
        if plain.isdigit() and re.search(r"\d[*^]", gold):  # 30 for 2*3*5, where the prompt asks for that form
            expression = _FORM.search(prompt)
        converted = value.unit != other.unit and value.data != other.data  # 30° for π/6, 1 h 30 min for 90 min
        joined = [re.sub("and|,", joint, plain) for joint in ("", ",", "and")]  # 1 h, 30 min
        forms = [*_orders(plain), *joined] if expression or converted else []
    if gold in forms:
        return False
    task = _plain(prompt)
    spaced = [r"\s*".join(map(re.escape, form)) for form in forms]
    is_in_task = any(re.search(rf"(?<![\w.)}}^*/+-]){form}(?![\w(^*/+-]|\.\d)", task) for form in spaced)
    return is_in_task or bool(converted and re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", prompt))  # 5'6"


def math_score(text: str, gold: Any, prompt: str = "") -> float | None:
    """1.0 if the completion's final answer equals gold, or one of a list; 0.0 if not, None if no gold can be read.

    If gold is a number, an answer that still has to be worked out scores 0, such as 34+71 for 105. So does an equation,
    inequality or expression copied from the prompt, such as 2x + 3x for 5x.
    Takes a second of processor time at most; the first item that needs the worker also waits for its start.
    """
    _WORKER.ensure()
    with one_item():
        scores = [_score(text, one, prompt) for one in accepted(gold)]
        return max((score for score in scores if score is not None), default=None)


def _score(text: str, gold: Any, prompt: str) -> float | None:
    """math_score for one gold answer."""
    expected = gold_answer(gold)
    if expected is None or _value(expected).kind == "bad":
        return None
    answer = final_answer(text) or ""
    equal = math_equal(answer, expected)
    if equal is False:
        plain = _clean(answer) if len(answer) < 200 else answer
        worked = (_without_working(form, expected) for form in (answer, plain))
        for short in (without_words(answer), _SUBJECT.sub("", plain), *worked):
            if equal is False and short not in (answer, plain):
                answer, equal = short, math_equal(short, expected)
    if equal and max(len(answer), len(expected)) < 200 and _bare(answer) != _bare(expected):
        formula = re.search(r"\\binom|!|(?<!10)\^|[\d%]-", _clean(expected))
        if not formula and _worked_out(expected, ""):
            equal = _worked_out(answer, prompt[-1000:])
        equal = equal and not _is_copied(answer, expected, prompt[-1000:])
    return None if equal is None else float(bool(answer) and equal)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Grade a mathematical answer: 1.0 right, 0.0 wrong, null if the gold answer cannot be read. "
        "One JSON line on stdout; exit 0, or 2 for bad input.",
        epilog='example: math_grader.py "so it is \\boxed{42}" 42',
        allow_abbrev=False,
    )
    parser.add_argument("text", help="a completion")
    parser.add_argument("gold", help="its gold answer")
    argv = sys.argv[1:] if argv is None else argv
    # -4i is an answer, not an option
    first = next((i for i, word in enumerate(argv) if re.match("-[^-]", word) and word != "-h"), len(argv))
    args = parser.parse_args(argv if "--" in argv else [*argv[:first], "--", *argv[first:]])
    tell(json.dumps({"score": math_score(args.text, args.gold), "answer": final_answer(args.text)}))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--math-worker"]:
        _math_worker()
    else:
        sys.exit(main())
