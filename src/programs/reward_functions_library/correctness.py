"""Right answers, and programs that pass tests."""

import ast
import math
import os
import re
import string
import warnings
from collections import Counter

from parts.data.answer_marks import accepted, marked_gold
from parts.data.stated_answers import BECAUSE, narrow, second_letter, visible, without_words
from parts.foundation.bundle import sibling
from parts.foundation.python_source import parse_python
from programs.reward_functions_library.contract import completion_text, reward
from programs.reward_functions_library.text_parts import (
    _QUOTED,
    _WORD,
    _blocks,
    _code,
    _final,
    _found,
    _golds,
    _number,
    _readings,
    _sections,
    _tight,
)


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
