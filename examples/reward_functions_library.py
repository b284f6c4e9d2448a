# Built from src/programs/reward_functions_library/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
"""Reward functions for RL post-training; copy this one file, or point a trainer at it.

A function has TRL's contract, `(prompts, completions, <columns>, **kwargs) -> list[float | None]`; completions are
strings or chat messages. Mathematics needs scripts/math_grader.py beside this file, and code scripts/sandbox.py.
None means *not applicable to this row*, for example without a usable gold answer; text that cannot be read scores the
minimum and never raises. `f.configure(name=None, option=value, ...)` returns a picklable variant and refuses invalid
values; an option may also replace a column. In braces or brackets: the range, which every accepted text, column and
option value keeps; w: the advised weight. Presets have weights:
`GRPOTrainer(reward_funcs=P, args=GRPOConfig(reward_weights=P.weights), ...)`.

    python scripts/ppo_train.py --reward "examples/reward_functions_library.py:exact_match*0.5"
"""

# Contents
#         56-67  python source    Parses Python source in a process with threads
#         70-82  messages         Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#        85-108  bundle           Paths of this bundle and of its embedded model, data and rewards; loading its other …
#       111-113  nested rows      Find rows inside other JSON: an object with a list of rows, columns instead of …
#       116-340  stated answers   Find where a text states its final answer, by marks and phrases in 20 languages, …
#       343-484  answer marks     Extract the final answer of a worked solution: marked by `#### 42`, `\boxed` or …
#       487-568  contexts         What around a number, a box or a mark changes what it says: 5 million, -\boxed{5}, …
#       571-581  schema examples  Example values that a JSON Schema accepts, for tests of rewards
#       584-747  contract         The contract of every reward function: inputs, options, and valid values
#       750-930  text parts       Find answers, blocks and sections in texts
#      933-1220  correctness      Right answers, and programs that pass tests
#     1223-1362  format           Layouts, style, repetition and length
#     1365-1428  reward models    Models that score
#     1431-1532  combined         Combined rewards and presets

import ast
import asyncio
import contextlib
import functools
import importlib.util
import inspect
import itertools
import json
import math
import numbers
import os
import re
import string
import sys
import threading
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

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


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)


def sibling_path(name: str) -> Path | None:
    """The script NAME.py beside this file or in the bundle's scripts; None if there is none."""
    places = [folder / f"{name}.py" for folder in (HERE.parent, BUNDLE / "scripts")]
    return next((place for place in places if place.is_file()), None)


@functools.cache
def sibling(name: str):
    """Load the script of `sibling_path` when it is first needed."""
    path = sibling_path(name)
    need(path, f"got no {name}.py in {HERE.parent}; expected it; try copying the bundle's scripts/{name}.py there")
    if str(path) in sys.modules:
        return sys.modules[str(path)]
    spec = importlib.util.spec_from_file_location(str(path), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # only now, as other threads and copies of this file must not see half of it; the first one counts
    return sys.modules.setdefault(str(path), module)


# ------------------------------------------------------------------------- nested rows (src/parts/data/nested_rows.py)

VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # a visible character


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


# -------------------------------------------------------------- schema examples (src/parts/rewards/schema_examples.py)


def checker_of(schema):
    """A validator of a JSON Schema that fetches nothing; an invalid schema raises jsonschema's SchemaError."""
    import jsonschema
    from referencing import Registry

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


# -------------------------------------------------------- contract (src/programs/reward_functions_library/contract.py)


def _number_between(low=-math.inf, high=math.inf, *, above=False, below=False, whole=False):
    """A check whether a value is a finite number in a range; `above` and `below` exclude its ends."""

    def check(value) -> bool:
        kinds = (int,) if whole else (int, float)
        value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value  # numpy
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        return low <= value <= high and not (above and value == low) and not (below and value == high)

    return check


def _is_pair(value) -> bool:
    """Whether a value is (low, high), low ≤ high."""
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(map(_number_between(), value))
    return numbers and value[0] <= value[1]


def _are_tags(value) -> bool:
    """Whether a value is a list of distinct tag names."""
    names = isinstance(value, list | tuple) and value and all(isinstance(tag, str) for tag in value)
    return bool(names) and len({*value}) == len(value) and all(re.fullmatch(r"[^\s<>/]+", tag) for tag in value)


_OPTIONS = {  # {option, or function.option: (what is accepted, the check)}
    **dict.fromkeys(("ideal", "maximum", "max_length"), ("a number above 0", _number_between(0, above=True))),
    **dict.fromkeys(("max_characters", "ngram_size"), ("a whole number from 1", _number_between(1, whole=True))),
    **dict.fromkeys(("ignore_case", "prefilled"), ("True or False", lambda value: isinstance(value, bool))),
    **dict.fromkeys(("correct", "wrong"), ("(low, high), low not above high", _is_pair)),
    "unit": ("words, characters or tokens", lambda value: value in ("words", "characters", "tokens")),
    "fuzzy_match.unit": ("word or character", lambda value: value in ("word", "character")),
    "rel_tol": ("a number from 0 to below 1", _number_between(0, 1, below=True)),
    "abs_tol": ("a number from 0", _number_between(0)),
    "mode": ("all or fraction", lambda value: value in ("all", "fraction")),
    "tags": ("a list of different names without < and >", _are_tags),
    "code_block_format.language": ("a word", lambda value: isinstance(value, str) and not re.search(r"[\s`]", value)),
    "cache": ("a number from 0 to max_length", _number_between(0)),
    "exceeded": ("None or a number", lambda value: value is None or _number_between()(value)),
    "max_penalty": ("a number of 0 or below", _number_between(high=0)),
    "threshold": ("a number above 0, up to 1", _number_between(0, 1, above=True)),
    "json_schema.schema": ("a JSON Schema, as a dict or as text", lambda value: _is_schema(value)),
}
_TOGETHER = (  # options of one function that limit each other: (lower, upper, how they are compared)
    ("cache", "max_length", lambda low, high: low <= high),
    ("wrong", "correct", lambda low, high: low[1] <= high[0]),
    ("exceeded", "correct", lambda low, high: low is None or low <= high[0]),
)


def _check_options(function, options: dict) -> None:
    """Raise ValueError for an unusable option value; it says what is accepted."""
    name = function.__name__
    defaults = {p.name: p.default for p in inspect.signature(function.core).parameters.values()}
    for option, value in options.items():
        expected, fits = _OPTIONS.get(f"{name}.{option}") or _OPTIONS.get(option) or ("", None)
        if fits is not None and not fits(value):
            default = defaults[option]
            tried = "" if default in (None, inspect.Parameter.empty) else f"; try {option}={default!r}"
            raise ValueError(f"{name}: got {option}={value!r}; expected {expected}{tried}")
    for lower, upper, fits in _TOGETHER if options else ():
        if {lower, upper} & options.keys() and {lower, upper} <= defaults.keys():
            low, high = (options.get(option, defaults[option]) for option in (lower, upper))
            if not fits(low, high):
                got, given = f"{lower}={low!r} with {upper}={high!r}", upper if upper in options else lower
                other = lower if given == upper else upper
                raise ValueError(f"{name}: got {got}; expected {lower} to be at most {upper}; try setting {other} too")


@functools.lru_cache(256)
def _validator(schema: str):
    """The cached validator of a JSON Schema, given as text."""
    return checker_of(json.loads(schema))


def _is_schema(schema) -> bool:
    """Whether a value is a valid JSON Schema; True without jsonschema, which then fails on the first text."""
    try:
        _validator(schema if isinstance(schema, str) else json.dumps(schema))
    except Exception as error:  # whatever a library makes of any schema
        return isinstance(error, ImportError)
    return True


def completion_text(completion, left_out=("tool", "user", "system")) -> str:
    """Return the text of a string or of chat messages (contents of other roles), without its end tokens."""
    text = completion or ""
    if not isinstance(text, str):
        messages = [text] if isinstance(text, dict) else text
        contents = [message.get("content") or "" for message in messages if message.get("role") not in left_out]
        text = "".join(c if isinstance(c, str) else "".join(part.get("text") or "" for part in c) for c in contents)
    return without_end_tokens(text)


def _evaluate(function, options: dict, prompts, completions, positional, given) -> list[float | None]:
    """Score a batch by the per-sample core; options given in a call apply, but lists among them are columns."""
    if function.grades and completions:
        sibling("math_grader").start_worker()  # in parallel with what follows
    names = [column for column in function.columns if column != "prompt"][: len(positional)]
    given = {**dict(zip(names, positional, strict=True)), **given, "prompt": prompts}
    options = {k: v for k, v in given.items() if k in function.options and not isinstance(v, list)} | options
    _check_options(function, options)
    name, have, need = function.__name__, {*given, *options}, {c for c in function.columns if function.columns[c]}
    if need - have or (function.one_of and not have & {*function.one_of}):
        got, expected = ", ".join(sorted(have - {"prompt"})), ", ".join(need) or " or ".join(function.one_of)
        raise TypeError(f"{name}: got the columns {got or 'none'}; expected {expected} too; try renaming a column")
    rows = [{"text": completion_text(completion), **options} for completion in completions]
    for column in (c for c in function.columns if c not in options):
        values = [None] * len(rows) if given.get(column) is None else given[column]
        values = values.tolist() if hasattr(values, "tolist") else values
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != len(rows):
            got = f"{name}: got {column} = {type(values).__name__} {str(values)[:60]!r}"
            raise ValueError(f"{got}; expected a list of {len(rows)}; try {name}.configure(...) for one value")
        for row, value in zip(rows, values, strict=True):
            row[column] = value.tolist() if hasattr(value, "tolist") else value  # numpy, from data frames
    with ThreadPoolExecutor(function.threads) as pool:  # starts no thread before its first job
        scores = (pool.map if function.threads > 1 else map)(lambda row: function.core(**row), rows)
        return [None if score is None else float(score) for score in scores]


def _signature(columns: dict) -> inspect.Signature:
    """(prompts, completions, columns, **kwargs), for trainers that inspect it; columns: {name: is it required}."""
    named = {"prompts": True, "completions": True} | {c: r for c, r in columns.items() if c != "prompt"}
    parameters = [inspect.Parameter(c, 1, default=inspect.Parameter.empty if r else None) for c, r in named.items()]
    return inspect.Signature([*sorted(parameters, key=lambda p: p.default is None), inspect.Parameter("kwargs", 4)])


class Configured:
    """A reward function with some options set: same contract, picklable, with a stable `__name__`."""

    def __init__(self, function, name=None, **options):
        if unknown := {*options} - {*function.options, *function.columns}:
            raise TypeError(f"{function.__name__}: got {unknown}; expected {[*function.options, *function.columns]}")
        _check_options(function, options)
        self.function, self.options, self.__name__ = function, options, name or function.__name__
        self.__signature__ = _signature({c: r for c, r in function.columns.items() if c not in options})

    def __call__(self, prompts, completions, *positional, **given) -> list[float | None]:
        return _evaluate(self.function, self.options, prompts, completions, positional, given)


def reward(core=None, *, one_of=(), threads=1, grades=False):
    """Turn `core(text, column, ..., *, option=...) -> float | None` into a reward function over a batch.

    Columns without a default are required, and one of `one_of`; the column `prompt` is the row's prompt. `grades`: the
    core uses math_grader.py.
    """
    if core is None:
        return functools.partial(reward, one_of=one_of, threads=threads, grades=grades)

    @functools.wraps(core)
    def function(prompts, completions, *positional, **given):
        return _evaluate(function, {}, prompts, completions, positional, given)

    parameters = list(inspect.signature(core).parameters.values())[1:]
    function.core, function.one_of, function.threads = core, one_of, threads
    function.grades = grades
    function.columns = {p.name: p.default is p.empty for p in parameters if p.kind is not p.KEYWORD_ONLY}
    function.options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    function.__signature__, function.configure = _signature(function.columns), functools.partial(Configured, function)
    return function


# ---------------------------------------------------- text parts (src/programs/reward_functions_library/text_parts.py)

# ---- text: patterns run in linear time on any text: no nested repeats, no lazy match that fails from many starts
_AREA = r"(?<![A-Za-z])(?:[mcdk]?m|met(?:er|re)s?|in|inch(?:es)?|ft|feet|foot|yd|yards?|mi|miles?|units?|s)"
_SCALE = f"(?:{'|'.join(SCALE_WORDS)})(?:s|ths?)?"
_PRICE = r"(?:[A-Z]{0,3} ?[$€£¥₹] ?|(?:Rs|USD|EUR|GBP|INR|CHF|CAD|AUD)\b\.? ?)?"  # before a number: C$5, EUR 5
_NUMBER = re.compile(
    rf"(?i:{ROUGHLY}|[^\W\d]\w{{0,8}} ?=|[^\w.+√<>≤≥≠±×·÷-]){{0,3}}\s?([+-]?){_PRICE}"
    r"((?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})?(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s?/\s?([0-9]{1,20}))?((?<=\d) ?!+)?"
    # no other number, no other digit of any script after it
    r"(?! ?(?:[ikxyz]|halves|thirds|squared|cubed|factorial|below|at (?:least|most))(?![\w-])|\+$)"
    rf"(?!.*(?:\b(?:or|and|to|maybe|plus|minus|times|x|oder|und|ou|et|o|y|{_SCALE})\b|[或和か、π√]|\\(?:pi|sqrt)|{NEGATED}))"
    rf"[^\d,;=?]{{0,30}}(?:{_AREA} ?\}}? ?\^?\{{?[23]\}}?[.*_$ )]{{0,4}})?"
)
_FRACTION = re.compile(r"((?<=\d))?\\[dt]?frac ?(?:\{(\d{1,20})\}\{(\d{1,20})\}|(\d) ?(\d)(?!\d))")
_SHORT = {"k": 10**3, "m": 10**6, "b": 10**9}
_SCALED = re.compile(  # no 千克
    rf"(?ai:(?<=\d) ?({'|'.join(SCALE_WORDS)})s?(?![a-z]|(?<=千)[克米瓦]))|([$€£¥₹] ?[\d.,]+)([kKMB])(?![\w$^])"
)
_BLANK = "[ \u00a0\u202f]"
_VULGAR = re.compile(rf"{_BLANK}*([¼-¾⅐-⅞])")
_MIXED = re.compile(rf"(?<![\d./])(\d{{1,9}}){_BLANK}(\d{{1,9}})/(\d{{1,9}})(?![\d/])")  # 2 1/2
_POWER = re.compile(r"(?:\s*(?:\\times|\\cdot|[×·*xX])\s*|^)10\s*(?:\^|\*\*)\s*\{?([+-]?\d{1,3})\}?(?![\d}])")
_RESTATED = re.compile(r"([^()]+) \(([^()]*[A-Za-z]{3}[^()]*)\)")
_AROUND = " \t\n'\"`*_$「」“”"  # characters that may enclose an answer
_QUOTED = re.compile(r"^(?:(\*\*|['\"`$])((?:(?!\1).)+)\1|“([^“”]+)”|「([^「」]+)」)$")  # a gold in quotes
_WORD, _PLAIN = re.compile(r"\w+"), re.compile(r"^\\(?:text|textbf|math(?:rm|bf)|underline)\{([^{}]*)\}$")
_END = re.compile(r"[*_.]*(?:\n|$)|(?:(?<=\d)|(?<=\w{3}))[*_]*\.\s|[。！？]")  # not after the initials of a name


def _sections(text: str, tag: str) -> list[str]:
    """The contents of every `<tag>…</tag>`."""
    parts = [part.partition(f"</{tag}>") for part in text.split(f"<{tag}>")[1:]]
    return [content.strip() for content, closed, _ in parts if closed]


def _blocks(text: str) -> list[tuple[str, str]]:
    """(label, content) of every closed fenced block, without its first fence's indentation, as in a list."""
    lines, blocks = text.split("\n"), []
    fences = [i for i, line in enumerate(lines) if line.lstrip().startswith("```")]
    for start, end in zip(fences[::2], fences[1::2], strict=False):
        indent = len(lines[start]) - len(lines[start].lstrip())
        content = re.sub(rf"(?m)^[ \t]{{0,{indent}}}", "", "\n".join(lines[start + 1 : end]))
        blocks.append((lines[start].strip(" \t\r`").lower(), content))
    return blocks


def _code(text: str) -> str:
    """The last closed Python block of the visible text, else the last without label; all of it if there is no fence."""
    if "```" not in text:
        return visible(text)
    blocks = [(label.partition(" ")[0], content) for label, content in reversed(_blocks(visible(text)))]
    named = [content for label, content in blocks if label in ("python", "py", "python3")]
    return next(iter(named or [content for label, content in blocks if not label]), "")  # unlabelled: an output, maybe


def _found(text: str, marked=True) -> list[str]:
    """Answers in `<answer>`, else (if `marked`) in boxes, else after marks and phrases, with quotes around them."""
    text = corrected(without_json(visible(text))) if marked else visible(text)
    if wholes := _sections(text, "answer") or (marked and stated_boxes(text)):
        parts = [part for whole in wholes for part in boxes_in(whole) or _stated(whole) or [whole]]
    else:
        parts = _stated(text) if marked else []
    return [part for part in parts if part.strip()]


def extract_answer(text: str, marked=True) -> str | None:
    """The visible answer in `<answer>`, else in a box, after a mark or phrase; None without one, "" if two differ."""
    answers = [_PLAIN.sub(r"\1", _trimmed(part)) for part in _found(text, marked)]
    return None if not answers else answers[-1] if len({*map(without_words, answers)}) == 1 else ""


def _trimmed(text: str) -> str:
    """A text without the marks that enclose it; money such as $1M keeps its sign."""
    bare = text.strip(_AROUND)
    return f"${bare}" if text.count("$") == 1 and re.match(r"[\d.,]+[kKMB](?![\w$^])", bare) else bare


def _stated(text: str) -> list[str]:
    """The text after each mark or phrase, up to the end of its sentence, or with a hedge that follows it."""
    stated, places = [], [mark for mark in marks(text) if not is_denied(text, mark)]
    for mark, after in itertools.zip_longest(places, places[1:]):
        rest = text[mark.end() : mark.end() + 300]
        if after and mark.re is WEAK_MARK:  # So A. So B.
            rest = text[mark.end() : after.start()].rstrip()
        end = _END.search(rest)
        part = rest if HEDGE.match(rest, end.end()) else rest[: end.start()]
        follows = after and after.start() < mark.end() + end.start()  # "**Answer:** The answer is 42."
        if not follows and not is_heading(text, mark):
            stated.append(chosen(part))
    prose = [part for part in stated if len(re.findall(r"[^\W\d_]{2,}", part)) > 5]  # a heading, "Lösung: Zuerst ..."
    return stated if len(prose) == len(stated) else [part for part in stated if part not in prose]


def _final(text: str, marked=True) -> str:
    """The marked answer, else all of the visible text."""
    answer = extract_answer(text, marked)
    return (corrected(visible(text)) if marked else visible(text)).strip() if answer is None else answer


def _readings(text: str) -> tuple[str, str]:
    """The final answer in ASCII's width, (as it is, without the words after it)."""
    final = narrow(_final(text))
    return final, without_words(final).strip(_AROUND)


def _number(value) -> float | None:
    """A finite number, from a number or text such as "1,234", "$3.50", "1/2" or "46 km"."""
    text = narrow(str(value)).strip()[:120].translate(dict.fromkeys(map(ord, "−–—﹣"), "-"))
    text = re.sub(r"\\[,;:! ]|\\approx\b", " ", re.sub(r"(?<=\d)(?:\{,\}|,?\\!|\\[,;: ])(?=\d{3})", ",", text))
    text = re.sub(r"(?i)^(?:negative|minus) (?=[$\d])", "-", text)
    restated = _RESTATED.fullmatch(text)  # 12 (a dozen)
    if restated and (number := _number(restated[1])) and number == _number(re.sub("^(?:an?|one) ", "1 ", restated[2])):
        return number
    text = _POWER.sub(lambda m: f"{'' if m.start() else 1}e{m[1]}", text)
    text = _FRACTION.sub(lambda m: f"{'' if m[1] is None else ' '}{m[2] or m[4]}/{m[3] or m[5]}", text)
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[1]).replace("⁄", "/"), text).strip()
    text = _MIXED.sub(lambda m: f"{int(m[1]) * int(m[3]) + int(m[2])}/{m[3]}" if int(m[2]) < int(m[3]) else m[0], text)
    text = re.sub(rf"(?<![\d.,])\d{{1,3}}(?:{_BLANK}\d{{3}})+(?!\d)", lambda m: re.sub(_BLANK, "", m[0]), text)
    scales = [SCALE_WORDS[m[1].lower()] if m[1] else _SHORT[m[3].lower()] for m in _SCALED.finditer(text)]
    match = len(scales) < 2 and _NUMBER.fullmatch(with_point(_SCALED.sub(lambda m: m[2] or "", text)))  # no 3亿5000万
    try:
        number = Fraction(match[1] + match[2].replace(",", "")) / int(match[3] or 1) * math.prod(scales)
        if scales or not match[4] or number > 170:  # 5 million! is no factorial, nor is $1,000!
            return float(number)
        return math.gamma(number + 1) if match[4].strip() == "!" else None
    except (TypeError, ValueError, ArithmeticError):
        return None


def _tight(text: str) -> str:
    """Fold apostrophes and Unicode's forms; remove the blanks around brackets and commas in a list of numbers."""
    text = unicodedata.normalize("NFC", text).translate({0x2018: "'", 0x2019: "'", 0x2011: "-"})
    return re.sub(r" ?([\[\],]) ?", r"\1", text) if re.fullmatch(r"\[[-+\d.,eE\[\] ]*\]", text) else text


def _golds(answer) -> list[str]:
    """The accepted answers of a row: one, or a list of alternatives."""
    return [str(gold) for gold in accepted(answer) if gold is not None and str(gold).strip()]


def _units(text: str, completion_ids, unit: str):
    """The words or characters of a text, or the tokens, which completion_ids has."""
    if unit == "tokens" and completion_ids is None:
        raise TypeError("got no column completion_ids; expected it for unit='tokens'; try unit='words'")
    return list(completion_ids or ()) if unit == "tokens" else text.split() if unit == "words" else text


def _length(text: str, completion_ids, unit: str) -> int:
    """The number of units of a text, without white space around it."""
    return len(_units(text.strip(), completion_ids, unit))


def _distinct(units, size: int) -> float:
    """Distinct n-grams over all n-grams; 1 if there are none."""
    n = len(units) - size + 1
    grams = [units[i : i + size] if isinstance(units, str) else tuple(units[i : i + size]) for i in range(n)]
    return len({*grams}) / len(grams) if grams else 1.0


def _layout(text: str, tags) -> list[str]:
    """Text before, between and after the tags' marks, up to the first that is not there exactly once and in order."""
    pieces = [text]
    for mark in (mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        before, mark_found, after = pieces[-1].partition(mark)
        if not mark_found or text.count(mark) != 1:
            break
        pieces[-1:] = before, after
    return pieces


def _json(text: str, max_characters=math.inf):
    """The value of strict JSON, alone or as the only fenced block of a text after its thinking; None for others."""
    for part in dict.fromkeys((text.strip(), visible(text).strip())):  # a string may hold <think>
        blocks = _blocks(part) if part[:3] + part[-3:] == "``````" else []
        part = blocks[0][1] if len(blocks) == 1 else part
        with contextlib.suppress(ValueError, RecursionError):  # parse_constant=int refuses NaN and Infinity
            if len(part) <= max_characters:
                return json.loads(part, parse_constant=int)
    return None


# -------------------------------------------------- correctness (src/programs/reward_functions_library/correctness.py)


# ---- correctness
@reward
def correctness_reward(text, answer):
    """1 where the text of the only `<answer>…</answer>` equals `answer`, else 0: {0, 1}, w 1. Listing pays nothing.
    >>> correctness_reward(None, ["<answer>46</answer>", "46", "<answer>4</answer><answer>46</answer>"], ["46"] * 3)
    [1.0, 0.0, 0.0]"""
    answers, golds = _sections(text, "answer"), _golds(answer)
    return answers in ([gold.strip()] for gold in golds) if golds else None


@reward
def exact_match(text, answer, *, ignore_case=False):
    """1 if the final answer is `answer` (or one of a list of them), else 0: {0, 1}, w 1. White space, a final point and
    full width (Ｂ) are ignored, and so is a reason or remark after it: "Paris, because ...".
    >>> exact_match(None, ["<answer>New  York</answer>", "Paris, London"], ["New York", ["London", "LON"]])
    [1.0, 0.0]"""
    golds = [*map(narrow, _golds(answer))]
    golds += [_QUOTED.sub(r"\2\3\4", gold.strip()) for gold in golds]
    answers = {*_found(text)}
    answers = [*_readings(text), narrow(visible(text)), *(map(narrow, answers) if len(answers) == 1 else ())]
    fold = str.casefold if ignore_case else str
    left, right = ({fold(_tight(" ".join(x.split()).rstrip("."))) for x in texts} for texts in (answers, golds))
    return bool(left & right) if golds else None


@reward(one_of=("answer", "reference"))
def fuzzy_match(text, answer=None, reference=None, *, unit="word"):
    """ROUGE-L, 2·LCS / (n + m), LCS the longest common subsequence of the answer's n and the gold's m words: [0, 1].
    w 0.3 beside an exact check, 1 for summaries. `unit="character"` suits text without spaces, and typing errors.
    >>> fuzzy_match(None, ["the cat sat", "a cat"], ["the cat sat"] * 2)
    [1.0, 0.4]"""
    units = list if unit == "character" else _WORD.findall
    words, scores = units(_final(text, marked=False).casefold()), []
    for gold in (units(gold.casefold()) for gold in _golds(reference if answer is None else answer)):
        masks, full = {}, (1 << len(gold)) - 1
        for i, word in enumerate(gold):
            masks[word] = masks.get(word, 0) | 1 << i
        row = full  # its zero bits count the LCS: one addition a word (Hyyrö 2004)
        for mask in (masks[word] for word in words if word in masks):
            row = ((row + (row & mask)) | (row & ~mask)) & full
        scores.append(2 * (len(gold) - row.bit_count()) / max(1, len(words) + len(gold)))
    return max(scores, default=None)


_EXCLAIMED = re.compile(  # "It is 5!"; but factorials in \boxed{5!}, $5!$, <answer>5!</answer>, 5! + 1 and 5! (120)
    r"(<answer>\s*[$\d.,]+ ?!+(?=\s*</))"
    r"|(?<=\d) ?[!！]+(?![!！]| ?[-+*/^=×·] ?[\d(\\]| ?\\(?:times|cdot|frac)|[*_]*\s*(?:[}$]|\(=? ?\d|\\[)\]t]))"
)
_FACTORIAL = re.compile(r"\d{1,9}(?= ?!)")


@reward
def numeric_correctness(text, answer, prompt=None, *, rel_tol=1e-6, abs_tol=0.0):
    """1 if |x − g| ≤ max(rel_tol·|g|, abs_tol) for the final answer x and the gold g, else 0: {0, 1}, w 1.
    Units are not compared, a percent sign does not scale; 3,5 is 3.5, 1,234 is 1234, 5! is 120, and no answer where the
    prompt has it. Set `abs_tol` where g can be 0. Any one of a list of golds pays. A working, 9 * 2 = 18, is no number:
    math_equivalence reads it.
    >>> numeric_correctness(None, ["<answer>$1,234.0</answer>", "3.14"], [1234, "3.14159"])
    [1.0, 0.0]"""
    wanted, asked = ({*_FACTORIAL.findall(given)} for given in (str(answer), completion_text(prompt, ())))
    readings = _readings(text if wanted else _EXCLAIMED.sub(lambda m: m[1] or ".", text))
    copied = (asked - wanted) & {*_FACTORIAL.findall(readings[0])}
    golds = [gold for gold in map(_number, map(marked_gold, _golds(answer))) if gold is not None]
    number = next((number for number in map(_number, readings) if number is not None), math.nan)
    right = not copied and any(abs(number - gold) <= max(rel_tol * abs(gold), abs_tol) for gold in golds)
    return right if golds else None


@reward(grades=True)
def math_equivalence(text, answer, prompt=None):
    r"""1 if the marked final answer (`\boxed`, `####`, tag, phrase) means the same as the gold, else 0: {0, 1}, w 1.
    Two different final answers, a cut-off box and answers inside the thinking part pay nothing.
    >>> math_equivalence(None, [r"so \boxed{\frac{1}{2}}", r"\boxed{41} or \boxed{42}"], ["0.5", "42"])
    [1.0, 0.0]"""
    return sibling("math_grader").math_score(text, _golds(answer), completion_text(prompt, ()))


@reward(grades=True)
def gsm8k(text, answer, prompt=None):
    r"""1 if the marked final answer equals the number after `####` in the gold solution, else 0: {0, 1}, w 1.
    >>> gsm8k(None, ["#### 18", "She has 18 eggs."], ["9 * 2 = 18\n#### 18"] * 2)
    [1.0, 0.0]"""
    golds = [gold for gold in map(marked_gold, _golds(answer)) if _number(gold) is not None]
    return sibling("math_grader").math_score(text, golds, completion_text(prompt, ()))


_CHOICE = re.compile(
    r"(?is)[\W_]*(?:(?:among|of) (?:the|these|all)\b[^,.\n]{0,40},\s*)?"
    r"(?:(?:the|la|el|die|(?-i:a(?= [(*]*[A-J]\b(?!.*\ba [(*]*[A-J]\b)))|l(?=['’]))\b[\W_]*)?"
    r"(?:(?:option|choice|answer|letter|opción|antwort|réponse|respuesta)\b[\W_]*|选项|選項|選択肢)?"
    r"([a-z])(?:[\W_]*|(?!(?<=i)\s*,)\s*[).:;,、*\n].*"  # not: I, personally, ...
    r"|(?-i:(?<=[A-HJ-Z])(?!\W*(?:no|wrong|incorrect|false|too|ruled|eliminated|not (?:correct|right|true))\b))"
    r"(?:\s+\([^()]*\)[\W_]*"  # B (Paris), B - Paris; not: B (wrong), nor B - Paris, C - Rome
    r"|[ \t]+[-–—]\s+(?!(?-i:[A-J])\b)(?:(?!\b[A-J]\s+[-–—])[^\n])*))"
)
_ONE = r"\(?[A-J]\b\)?"
_LETTERS = (
    rf"(?:(?i:option|choice|answer|letter)s?\s+)?{_ONE}"
    rf"(?:(?:\s?(?:[,/&]|\b(?:and|or|nor)\b)){{1,2}}\s?{_ONE}){{0,9}}"
)
_WRONG = (
    r"(?i:(?:(?:is|are|['’]s|(?:can|must) be|ist|sind|est|es)(?: \w+ly| all| both)?"
    r" (?:wrong|incorrect[ae]?|false|falsch|fausse?|ruled out|eliminated)"
    r"|(?:(?:is|are|can|does|do)(?: not|n['’]t)|cannot|ist nicht|n['’]est pas|no es)(?: be)?(?: (?:the|die|la))?"
    r" (?:correct[ae]?|right|true|best|answer|fit|richtige?|bonne))\b|是?(?:错|不正?[确对]))"
)
_REJECTED = re.compile(  # after a letter, or a list that it begins: a denial, but no text such as "is not true of dogs"
    rf"[\W_]{{0,9}}(?:(?:[,/&]|\b(?:and|or|nor)\b)\W{{0,4}}(?!(?i:option|choice)){_LETTERS}\W{{0,4}})?"
    rf"(?i:no\b\W{{0,4}})?(?i:(?P<it>this|that|it|which)\b(?: (?:one|option|choice|answer)\b)?)?\s?{_WRONG}"
    r"(?! (?!(?:answer|option|choice|one|as|because|since|so|and|but|either|here)\b)\w)"
)
_OTHERS_REJECTED = re.compile(rf"\b(?i:not|rather than|instead of)\s+{_LETTERS}|(?<!\w){_LETTERS}\s*{_WRONG}")
_OPTION_TEXT = re.compile(  # D) Both A and B; A is true, B is false; not: A) B, C or D; A) Paris or B; A. It may be B
    r"([A-J])(?:\)|\.|(?<!A):)[*_]*[ \t]+(?!(?:(?!\b[A-J]\b).)*\b\1\b)(?!\W*[A-J](?:\W+(?i:or\W+)?[A-J])*\W*\Z)"
    r"(?!(?:(?!\b[A-J]\b).)*?(?:[,;/&|]|\b(?i:or|and|not|but|oder|und|ou|et|o|y)\b)[\s(*]*[A-J]\b)"
    r"(?!.*\b(?i:also|too|equally|as well|may|might|maybe|could|perhaps|possibly|likely|alternatively)\b)"
    r"(?:(?![.!?]\s|\b[A-J](?:\)|[.:]\s)).)+"
)


def _letter(answer: str, marked: bool) -> str | None:
    """The choice letter of an answer, alone or before its text; None if it is denied, or another one is stated.
    After a mark, "It is false" is the option's text."""
    answer = re.sub(r"\\(?:text|textbf|mathrm|mathbf|boxed)\b", " ", answer[:2000])
    for reading in (answer, without_words(answer)):
        if match := _CHOICE.fullmatch(reading):
            rest = reading[match.end(1) :]
            rejected = (denial := _REJECTED.match(rest)) and not (marked and denial["it"])
            if rejected or not _states_another(match[1], rest):
                return None if rejected else match[1].upper()
    return None


def _states_another(letter: str, rest: str) -> bool:
    """Whether the text after a choice's letter states another choice; an option's text may name some."""
    rest = re.sub(r"\b(?i:option|choice|answer|letter)s?\s+(?=\(?[A-J]\b)", "", _OTHERS_REJECTED.sub("", rest))
    return not _OPTION_TEXT.fullmatch(letter + rest) and second_letter(letter, rest)


@reward
def multiple_choice(text, answer):
    """1 if the final answer is the gold letter ("B", "(b)", or an index: 0 is A), else 0: {0, 1}, w 1.
    The letter stands alone, before the option's text or before a reason: "B) Paris", "B because ...". It may be
    repeated. A denied letter, "(A) is wrong", and two different ones pay nothing; any one of a list of golds does.
    >>> multiple_choice(None, ["The answer is (B).", "A) Paris B) Rome"], ["B", 1])
    [1.0, 0.0]"""
    golds = {_gold_letter(gold) for gold in accepted(answer)} - {None}
    parts = _found(text)
    letters = {_letter(narrow(part), bool(parts)) for part in parts or [_final(text)]}
    letter = (letters.pop() if len(letters) == 1 else None) or _readings(text)[0].strip("()*. ")
    return letter in golds if golds else None


def _gold_letter(gold) -> str | None:
    """The letter for an index, "(b)", "Answer: B" or "B. Vitamin C"; a label "1" stays; None for "A, C"."""
    text = marked_gold(narrow(str(gold)))
    named = re.match(r"\W*([A-Za-z]|\d(?!\w))(?=\W|$)", text)
    several = named and _states_another(named[1], text[named.end() :])
    return chr(65 + gold) if type(gold) is int and 0 <= gold < 26 else None if several else named and named[1].upper()


def _squad_words(text: str) -> list[str]:
    """The words that SQuAD compares: lower case, then without punctuation, then without a, an and the."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(?:a|an|the)\b", " ", kept).split()


def _squad_golds(answer, answers) -> list[list[str]] | None:
    """Words of each gold: of a text, a list, or SQuAD's {"text": [...]}, where [] means no answer; None if unusable."""
    given = answers if answer is None else answer
    if isinstance(given, dict):
        texts = given.get("text")
        if not isinstance(texts, list | tuple):
            return None
        return [words for text in texts if (words := _squad_words(str(text)))] or [[]]
    return [_squad_words(gold) for gold in _golds(given)] or None


def _squad_answers(text: str) -> list[list[str]]:
    """Words of the final answer, and of it without a reason: "yes, because ..."."""
    final = _final(text)
    return [*map(_squad_words, (final, re.split(rf"(?i)\W{{1,3}}(?:{BECAUSE})\b", final, maxsplit=1)[0] or final))]


def _squad_f1(words: list[str], gold: list[str]) -> float:
    """F1 of two bags of words; if one is empty, 1 if both are, else 0."""
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold)) if words and gold else float(words == gold)


@reward(one_of=("answer", "answers"))
def squad_exact_match(text, answer=None, answers=None):
    """1 if the final answer has a gold's words in its order, as SQuAD normalises: {0, 1}, w 1.

    SQuAD's `compute_exact` (Rajpurkar 2016, arXiv 1606.05250; evaluate-v2.0.py): lower case, without punctuation, the
    articles a, an, the, extra spaces, and a reason after the answer, which is the marked one, else the visible text. A
    gold is a text, a list, or SQuAD's column `answers`, {"text": [...]}; there no text means that "" is right.

    >>> squad_exact_match(None, ["<answer>The Eiffel Tower.</answer>", "eiffel"], ["Eiffel tower"] * 2)
    [1.0, 0.0]
    """
    golds = _squad_golds(answer, answers)
    return None if golds is None else any(words in golds for words in _squad_answers(text))


@reward(one_of=("answer", "answers"))
def squad_f1(text, answer=None, answers=None):
    """2·common / (n + m) of the answer's n and the gold's m words, as SQuAD normalises; the best gold's: [0, 1], w 1.

    SQuAD's `compute_f1` (Rajpurkar 2016, arXiv 1606.05250; evaluate-v2.0.py), words as in squad_exact_match. Beside an
    exact check where short answers are wanted: the F1 of a long text with the answer in it is low, not 0.

    >>> squad_f1(None, ["<answer>The Eiffel Tower.</answer>", "the tower in Paris"], ["Eiffel tower"] * 2)
    [1.0, 0.4]
    """
    golds = _squad_golds(answer, answers)
    return None if golds is None else max(_squad_f1(words, gold) for words in _squad_answers(text) for gold in golds)


# ---- programs
_TESTS = ("tests", "test_cases", "test", "test_list")  # the column's names in common data sets


def _verdict(code: str, tests, **settings):
    """Run tests, a list or its JSON, in the sandbox; None, with a warning, if they cannot be used."""
    sandbox = sibling("sandbox")
    sandbox.check_limits(**{name: value for name, value in settings.items() if name.endswith(("_s", "_mb"))})
    try:
        tests = sandbox.loaded_tests(tests)
        if isinstance(tests, list | tuple) and tests and isinstance(tests[0], list | tuple):
            settings["entry_point"] = settings.get("entry_point") or "solution"
        verdict = sandbox.run_code(code, tests, **settings)
    except (ValueError, RecursionError) as error:  # sandbox.BadTests is a ValueError
        return warnings.warn(f"got unusable tests, so code_execution does not apply: {error}", stacklevel=2)
    return verdict if verdict.usable else None


@reward(one_of=_TESTS, threads=min(8, os.cpu_count() or 1))
def code_execution(
    text,
    tests=None,
    test_cases=None,
    test=None,
    test_list=None,
    entry_point=None,
    setup=None,
    prompt=None,
    *,
    mode="all",
    settings=None,
):
    r"""Tests that the answer's program passes: `mode="all"` pays 1 or 0, "fraction" passed / total; [0, 1], w 1.
    program_of in scripts/sandbox.py finds the program; run_code has `settings` ({"timeout_s": 3.0}) and forms of tests.
    "fraction" is a denser signal, and pays programs that hard-code the easy cases.
    >>> code_execution(None, ["```python\ndef f(x): return x + 1\n```"], [["assert f(1) == 2", "assert f(2) == 3"]])
    [1.0]"""
    if not (tests := tests or test_cases or test or test_list):
        return None
    setup = setup or ""
    code = sibling("sandbox").program_of(text, tests, entry_point, setup, prompt)
    verdict = _verdict(code, tests, entry_point=entry_point, setup=setup, **(settings or {}))
    return verdict and {"fraction": verdict.fraction, "all": float(verdict.all_passed)}[mode]


@reward
def code_block_format(text, *, language="python"):
    r"""1 if the visible text has exactly one closed, non-empty fenced block, with that label, else 0: {0, 1}, w 0.1.
    >>> code_block_format(None, ["```python\nx = 1\n```", "x = 1"])
    [1.0, 0.0]"""
    blocks = [(label, bool(content.strip())) for label, content in _blocks(visible(text))]
    return blocks == [(language.lower(), True)]


@reward
def no_syntax_error(text, *, max_characters=20_000):
    """1 if the last Python block (without any fence, the text) parses and does something, else 0: {0, 1}, w 0.1.
    Never executes. Expressions that call nothing and `pass` do nothing, so that prose does not pay.
    >>> no_syntax_error(None, ["x = [1, 2]", "x = [1, 2", "hello"])
    [1.0, 0.0, 0.0]"""
    try:
        body = parse_python(_code(text)).body if len(text) <= max_characters else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: nested too deeply for the parser
        return 0.0
    idle = ast.Expr | ast.Pass | ast.Return
    return any(isinstance(getattr(s, "value", None), ast.Call) or not isinstance(s, idle) for s in body)


# ------------------------------------------------------------ format (src/programs/reward_functions_library/format.py)


# ---- format
@reward
def format_reward(text):
    """1 where the completion is exactly one non-empty `<answer>…</answer>` and nothing else, else 0: {0, 1}, w 0.2.
    >>> format_reward(None, ["<answer>46</answer>", "It is <answer>46</answer>", "<answer></answer>"])
    [1.0, 0.0, 0.0]"""
    content = re.fullmatch(r"<answer>([^<>]*)</answer>", text.strip())
    return bool(content and VISIBLE.search(content[1]))


@reward
def soft_xml_format(text, *, tags=("reasoning", "answer")):
    """1 if the text is the non-empty tags in order with only white space around them, else 0: {0, 1}, w 0.1.
    >>> soft_xml_format(None, ["<reasoning>1+1</reasoning> <answer>2</answer>", "<answer>2</answer>"])
    [1.0, 0.0]"""
    pieces = [piece.strip() for piece in _layout(text, tags)]
    return len(pieces) == 2 * len(tags) + 1 and not any(pieces[::2]) and all(map(VISIBLE.search, pieces[1::2]))


@reward
def incremental_format(text, *, tags=("reasoning", "answer")):
    """k / n − 0.001·(characters after the last mark), at least 0; the first k of n marks stand once and in order.
    [0, 1], w 0.1, for a model that seldom meets the whole format. Marks are the tags' openings and closings.
    >>> incremental_format(None, ["<reasoning>1+1</reasoning>", "<answer>2</answer>"])
    [0.5, 0.0]"""
    *pieces, rest = _layout(text, tags)
    trailing = len(rest.strip()) if len(pieces) == 2 * len(tags) else 0
    return max(0.0, len(pieces) / (2 * len(tags)) - 0.001 * trailing)


@reward
def think_format(text, *, prefilled=False):
    """1 if the text is `<think>…</think>` and an answer, both non-empty, else 0: {0, 1}, w 0.1.
    `prefilled`: the chat template has opened `<think>` already.
    >>> think_format(None, ["<think>1+1</think>2", "2"])
    [1.0, 0.0]"""
    pieces = [piece.strip() for piece in _layout("<think>" * prefilled + text, ["think"])]
    return len(pieces) == 3 and not pieces[0] and all(map(VISIBLE.search, pieces[1:]))


@reward
def json_schema(text, schema, *, max_characters=20_000):
    """1 if the text, or its only fenced block, is JSON that the JSON Schema accepts, else 0: {0, 1}, w 0.2 to 1.
    A thinking part before it is left out. The schema is a dict or JSON text, as a column or an option; an invalid one
    gives None. Needs jsonschema.
    >>> json_schema(None, ['{"a": 1}', '{"a": "x"}'], [{"properties": {"a": {"type": "integer"}}}] * 2)
    [1.0, 0.0]"""
    try:
        validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
        value = _json(text, max_characters)
        return value is not None and validator.is_valid(value)
    except RecursionError:  # a schema that refers to itself, and text nested deeply
        return 0.0
    except Exception as error:  # whatever a library makes of any schema
        return None if schema is None else warnings.warn(f"got an unusable schema: {error!r:.200}", stacklevel=2)


# ---- style
@reward
def repetition_penalty(text, completion_ids=None, *, ngram_size=3, max_penalty=-1.0, unit="words"):
    """(1 − distinct / all n-grams)·max_penalty, over lower-case words or tokens: [max_penalty, 0], w 0.1 to 1.

    By words it is open-r1's. `unit="tokens"` counts `completion_ids`, so it suits any language: appendix C.2 of
    Demystifying Long Chain-of-Thought Reasoning (Yeo 2025, arXiv 2502.03373), TRL's `get_repetition_penalty_reward`.

    >>> repetition_penalty(None, ["a b c d", "no no no no no"])
    [0.0, -0.6666666666666667]
    """
    return (1 - _distinct(_units(text.lower(), completion_ids, unit), ngram_size)) * max_penalty + 0.0


@reward
def no_repetition(text, *, ngram_size=3, threshold=0.7):
    """min(1, u / threshold), u = distinct / all n-grams of words: [0, 1], w 0.1. Characters without spaces; empty: 0.
    >>> no_repetition(None, ["the cat sat on the mat", "no no no no no"], threshold=1.0)
    [1.0, 0.3333333333333333]"""
    words = text.lower().split()
    units, size = (words, ngram_size) if len(text) <= 20 * len(words) else (text.lower(), 4 * ngram_size)
    return min(1.0, _distinct(units, size) / threshold) if words else 0.0


# ---- length, in words, or unit="characters" or "tokens"
@reward
def ideal_length(text, completion_ids=None, *, ideal=100, unit="words"):
    """max(0, 1 − |length − ideal| / ideal): [0, 1], w 0.1.
    >>> ideal_length(None, ["a b c", "a b c d"], ideal=4)
    [0.75, 1.0]"""
    return max(0.0, 1 - abs(_length(text, completion_ids, unit) - ideal) / ideal)


@reward
def max_length_penalty(text, completion_ids=None, *, maximum=500, unit="words"):
    """−min(1, max(0, length − maximum) / maximum): [−1, 0], w 0.1 to 0.5.
    >>> max_length_penalty(None, ["a b c d", "a b c d e f"], maximum=4)
    [0.0, -0.5]"""
    return 0.0 - min(1.0, max(0, _length(text, completion_ids, unit) - maximum) / maximum)


@reward
def soft_overlong_punishment(text, completion_ids=None, *, max_length=20_480, cache=4_096):
    """DAPO eq. 13: 0 to L = max_length − cache, then (L − length) / cache, −1 past max_length: [−1, 0], w 1.
    Counts tokens of `completion_ids`, words without them; max_length is the generation limit.
    >>> soft_overlong_punishment(None, ["", ""], completion_ids=[[1] * 90, [1] * 101], max_length=100, cache=20)
    [-0.5, -1.0]"""
    length = _length(text, completion_ids, "words" if completion_ids is None else "tokens")
    return -1.0 if length > max_length else min(0.0, (max_length - cache - length) / max(cache, 1))


@reward(grades=True)
def cosine_scaled(
    text,
    answer,
    completion_ids=None,
    *,
    max_length=1000,
    correct=(0.5, 1.0),
    wrong=(-1.0, -0.5),
    exceeded=None,
    unit="characters",
):
    r"""e + (s − e)·(1 + cos(π·min(1, length / max_length))) / 2, from s if empty to e: [−1, 1], w 1.

    (s, e) = (1, 0.5) if math_equivalence holds, else (−1, −0.5). In place of correctness: short right answers earn
    most, long wrong ones lose least, which keeps exploration up, and lengthens them. open-r1's; the paper's cosine
    reward (Yeo 2025, arXiv 2502.03373) has `unit="tokens"`, those of `completion_ids`, max_length at the generation
    limit, and `exceeded=-1.0` for completions that reach it, right or wrong. `correct` and `wrong` are (low, high);
    with other values the range is [min(exceeded, wrong[0]), correct[1]].

    >>> cosine_scaled(None, [r"\boxed{2}", r"\boxed{3}"], ["2", "2"], max_length=9)
    [0.5, -0.5]
    """
    score, length = math_equivalence.core(text, answer), len(_units(text, completion_ids, unit))
    if score is None or (exceeded is not None and length >= max_length):
        return score if score is None else exceeded
    end, start = correct if score else wrong[::-1]
    share = (1 + math.cos(math.pi * min(1.0, length / max_length))) / 2
    return start * share + end * (1 - share)


# ---------------------------------------------- reward models (src/programs/reward_functions_library/reward_models.py)

_LOCK = threading.RLock()


# ---- models that score
@dataclass(eq=False)
class RewardModel:
    """Logit 0 of a Hugging Face sequence classifier on prompt + completion, in its chat template if it has one: ℝ.
    w: the inverse of its spread on your data. Loaded at the first call; overlong text keeps its end; NaN gives None.
    >>> reward_model.configure(model="my/reward-model", batch_size=4)([], [])
    []"""

    model: str | None = None
    device: str = "auto"
    batch_size: int = 8
    max_length: int = 4096
    name: str = "reward_model"
    configure = replace  # a variant with other settings

    def __post_init__(self):
        self.__name__, self._state = self.name, None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_state": None}  # pickles leave out what was loaded

    def __call__(self, prompts, completions, **kwargs) -> list[float | None]:
        scores, prompts = [], prompts or [None] * len(completions)
        with _LOCK:
            tokenizer, model = self._state = self._state or (self._load() if completions else (None, None))
            texts = [self._text(tokenizer, p, completion_text(c)) for p, c in zip(prompts, completions, strict=True)]
            for i in range(0, len(texts), self.batch_size):
                form = {"padding": True, "truncation": True, "return_tensors": "pt"}
                form["add_special_tokens"] = not tokenizer.chat_template  # a template writes its own
                batch = tokenizer(texts[i : i + self.batch_size], **form)
                scores += model(**batch.to(model.device)).logits[:, 0].float().tolist()
        return [score if math.isfinite(score) else None for score in scores]

    def _load(self):
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if not self.model:
            raise ValueError('got no model; expected a name or folder; try reward_model.configure(model="...")')
        sides = {"truncation_side": "left", "padding_side": "right", "model_max_length": self.max_length}
        tokenizer = AutoTokenizer.from_pretrained(self.model, **sides)
        rank = os.environ.get("LOCAL_RANK") if torch.cuda.is_available() else None  # of a process with its own GPU
        device = f"cuda:{rank}" if rank and self.device == "auto" else self.device
        options = {"device_map": device, "trust_remote_code": False, "output_loading_info": True}
        model, report = AutoModelForSequenceClassification.from_pretrained(self.model, **options)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"got {self.model}, which lacks {missing[0]}; expected a reward model with a trained head")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model.config.pad_token_id = tokenizer.pad_token_id  # it scores the last token that is not padding
        return tokenizer, model.eval().requires_grad_(False)

    def _text(self, tokenizer, prompt, text: str) -> str:
        turns = [{"role": "user", "content": prompt or ""}] if isinstance(prompt, str | None) else list(prompt)
        turns.append({"role": "assistant", "content": text})
        whole = tokenizer.chat_template and tokenizer.apply_chat_template(turns, tokenize=False)
        return (whole or completion_text(turns, ())).encode("utf-8", "replace").decode()


reward_model = RewardModel()


# -------------------------------------------------------- combined (src/programs/reward_functions_library/combined.py)


# ---- combined


class Combined:
    """One reward from parts r_i with weights w_i; parts that are None are left out. None if all are; async if one is.
    sum: Σ w_i·r_i · product: Π max(r_i, 0)^w_i · gated: w_0·r_0, plus Σ_{i>0} w_i·r_i only where r_0 ≥ 1. A part
    that is None adds nothing to a sum: combine parts that apply to the same rows.
    >>> both = combine([exact_match, max_length_penalty.configure(maximum=1)], [1, 0.5], mode="sum")
    >>> both(None, ["a", "a b"], answer=["a", "a"])
    [1.0, -0.5]"""

    def __init__(self, functions, weights=None, mode="sum", name="combined"):
        self.functions, self.weights, self.mode = list(functions), list(weights or [1.0] * len(functions)), mode
        unfit = not self.functions or len(self.weights) != len(self.functions)
        if mode not in ("sum", "product", "gated") or unfit or (mode == "product" and min(self.weights) < 0):
            raise ValueError(
                f"{name}: got {mode=}, {weights=}; expected sum, gated or product (no weight < 0), a weight each"
            )
        if not all(map(_number_between(), self.weights)):
            raise ValueError(f"{name}: got {weights=}; expected finite numbers, one for each function")
        parameters = [p for f in self.functions for p in inspect.signature(f).parameters.values()]
        columns = {p.name: p.default is p.empty for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        self.__name__, self.__signature__ = name, _signature(columns)
        self.needs_group = any(getattr(f, "needs_group", False) for f in self.functions)
        if any(map(inspect.iscoroutinefunction, [c for f in self.functions for c in (f, f.__call__)])):
            self.__call__ = self._awaited  # tells trainers that it is async; calls still go to the class's __call__

    def __call__(self, prompts, completions, **columns) -> list[float | None]:
        if "__call__" in vars(self):
            return self._awaited(prompts, completions, **columns)
        return self._total([f(prompts=prompts, completions=completions, **columns) for f in self.functions])

    async def _awaited(self, prompts, completions, **columns) -> list[float | None]:
        parts = [f(prompts=prompts, completions=completions, **columns) for f in self.functions]
        waiting = iter(await asyncio.gather(*filter(inspect.isawaitable, parts)))
        return self._total([next(waiting) if inspect.isawaitable(part) else part for part in parts])

    def _total(self, parts: list) -> list[float | None]:
        rows, totals = list(zip(*parts, strict=True)), []
        rows = [[None if r is None or not math.isfinite(r) else float(r) for r in row] for row in rows]
        weights = self.current_weights(rows)
        for row in rows:
            given = [(w, r) for w, r in zip(weights, row, strict=True) if r is not None]
            if not given or (self.mode == "gated" and row[0] is None):
                totals.append(None)
            elif self.mode == "product":
                totals.append(math.prod(max(r, 0.0) ** w for w, r in given))
            else:
                totals.append(sum(w * r for w, r in (given[:1] if self.mode == "gated" and row[0] < 1 else given)))
        return totals

    def current_weights(self, rows: list) -> list[float]:
        """Weights for a call, given its rows of parts; AdaptiveReward overrides it."""
        return self.weights


class AdaptiveReward(Combined):
    """combine() with weights that follow success, w_i = a_i + (b_i − a_i)·s from start a to end b: s is a running mean
    of the share of rows where the first function has full marks. state_dict keeps s for a resumed run.
    >>> fading = AdaptiveReward([exact_match, format_reward], [1.0, 0.5], [1.0, 0.0], decay=0.5)
    >>> [fading(None, ["<answer>a</answer>"], answer=["a"])[0] for _ in range(3)]
    [1.5, 1.25, 1.125]"""

    def __init__(self, functions, start, end, decay=0.9, mode="sum", name="adaptive_reward"):
        super().__init__(functions, start, mode, name)
        self.end = Combined(functions, end, mode, name).weights  # with the same checks
        if not _number_between(0, 1, below=True)(decay):
            raise ValueError(f"{name}: got {decay=}; expected a number from 0 to below 1; try decay=0.9")
        self.decay, self.success = decay, 0.0

    def current_weights(self, rows: list) -> list[float]:
        weights = [a + (b - a) * self.success for a, b in zip(self.weights, self.end, strict=True)]
        known = [row[0] >= 1 for row in rows if row[0] is not None]
        self.success += (1 - self.decay) * (sum(known) / len(known) - self.success) if known else 0
        return weights

    def state_dict(self) -> dict:
        return {"success": self.success}

    def load_state_dict(self, state: dict) -> None:
        self.success = float(state["success"])


combine = Combined


# ---- presets
class Preset(list):
    """Reward functions with their `weights`."""

    def __init__(self, *weighted):
        super().__init__(function for function, _ in weighted)
        self.weights = [weight for _, weight in weighted]


MATH_REASONING_REWARDS = Preset((math_equivalence, 1.0), (incremental_format, 0.1), (no_repetition, 0.05))
CODE_GENERATION_REWARDS = Preset((code_execution, 1.0), (code_block_format, 0.1), (no_syntax_error, 0.1))
SUMMARIZATION_REWARDS = Preset((fuzzy_match, 1.0), (ideal_length, 0.1), (no_repetition, 0.1))
QA_REWARDS = Preset((exact_match, 1.0), (fuzzy_match, 0.3), (max_length_penalty, 0.1))
