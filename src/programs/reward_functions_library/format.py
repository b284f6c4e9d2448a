"""Layouts, style, repetition and length."""

import json
import math
import re
import unicodedata
import warnings
from collections import Counter

from parts.data.nested_rows import VISIBLE
from programs.reward_functions_library.contract import _SCRIPTS, _validator, completion_text, reward
from programs.reward_functions_library.correctness import math_equivalence
from programs.reward_functions_library.text_parts import (
    _EQUATION,
    _MARKUP,
    _SENTENCE,
    _WORD,
    _distinct,
    _json,
    _layout,
    _length,
    _sections,
    _total,
)


# ---- format
@reward
def format_reward(text):
    """1 where the completion is exactly one non-empty `<answer>…</answer>` and nothing else, else 0: {0, 1}, w 0.2.
    >>> format_reward(None, ["<answer>46</answer>", "It is <answer>46</answer>", "<answer></answer>"])
    [1.0, 0.0, 0.0]"""
    content = re.fullmatch(r"<answer>([^<>]*)</answer>", text.strip())
    return bool(content and VISIBLE.search(content[1]))


@reward
def strict_xml_format(text, *, tags=("reasoning", "answer")):
    r"""1 if the text is `<tag>\\n…\\n</tag>\\n` for each tag in order and nothing else, else 0: {0, 1}, w 0.1.
    >>> strict_xml_format(None, ["<reasoning>\n1+1\n</reasoning>\n<answer>\n2\n</answer>", "<answer>2</answer>"])
    [1.0, 0.0]"""
    pieces = _layout(text if text.endswith("\n") else text + "\n", tags)
    contents = all(VISIBLE.search(piece) and piece[0] == piece[-1] == "\n" for piece in pieces[1::2])
    return len(pieces) == 2 * len(tags) + 1 and contents and pieces[::2] == ["", *["\n"] * len(tags)]


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
def tag_count(text, *, tags=("think", "answer")):
    """Share of the tags' opening and closing marks that stand exactly once, in any order: [0, 1], w 0.1, early on.
    >>> tag_count(None, ["<think>1+1</think><answer>2", ""])
    [0.75, 0.0]"""
    return sum(text.count(mark) == 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")) / (2 * len(tags))


@reward
def json_format(text):
    """1 if the text, or the one fenced block that it is, is a JSON object or array, else 0: {0, 1}, w 0.1 to 0.3.
    A thinking part before it is left out. `{}` pays; json_schema asks for content.
    >>> json_format(None, ['{"a": [1]}', "a: 1", "3"])
    [1.0, 0.0, 0.0]"""
    return isinstance(_json(text), dict | list)


@reward
def json_schema(text, schema, *, max_characters=20_000):
    """1 if the text is JSON, as in json_format, that the JSON Schema accepts, else 0: {0, 1}, w 0.2 to 1.
    A dict or JSON text, as a column or an option; an invalid schema gives None. Needs jsonschema.
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
_CONNECTORS = set("therefore thus hence because since so then first second third next finally however moreover".split())
_FUNCTION_WORDS = set(
    "a an the this that these those it its he she they we you i his her their our my is are was were be been has have "
    "had do does did can will would should must of in on at by to for from with as per and or but if not no each all "
    "both than into which who what when where how there here out up more most some any one us them him me let".split()
)


@reward
def reasoning_quality(text, prompt, *, target=4):
    """min(1, steps / target) for the steps of the reasoning: {0, 1/target, …, 1}, w 0.05, beside correctness.
    A step is a sentence of 4 to 60 words, mostly new to prompt and earlier steps, that reads as English (15 to 75 %
    function words) or holds equations `a + b * c = d`, all true. Connectors do not count; over two spoil a sentence.
    Repetitive text scores 0. It measures form: fluent nonsense passes, and other languages need equations.
    >>> text = "Tom picks 3 apples from each of the 4 trees. That is 3 * 4 = 12 apples in his basket."
    >>> reasoning_quality(None, [text, "Therefore thus because. First, second, next, finally."])
    [0.5, 0.0]"""
    text = "\n".join(_sections(text, "reasoning") + _sections(text, "think")) or text
    sentences = [(s, _WORD.findall(s.lower())) for s in _SENTENCE.split(text[:20_000])]
    known = [{*_WORD.findall(s.lower())} for s in _SENTENCE.split(completion_text(prompt, ())[-20_000:])][:200]
    steps, repeated = 0, _distinct([w for _, words in sentences for w in words if w not in _CONNECTORS], 3) < 0.7
    for sentence, spoken in sentences[: 0 if repeated else 400]:
        words = [w for w in spoken if w not in _CONNECTORS]
        content, equations = {*words} - _FUNCTION_WORDS, _EQUATION.findall(_MARKUP.sub("", sentence))
        share = sum(w in _FUNCTION_WORDS for w in words) / max(1, len(words))
        stale = len(content) < 2 or any(len(content & old) > 0.6 * len(content) for old in known)
        sides = [[*map(_total, equation.split("="))] for equation in equations]
        true = all(abs(value - result) <= 0.01 * abs(result) for *values, result in sides for value in values)
        sound = true if equations else 0.15 <= share <= 0.75
        if 4 <= len(words) <= 60 and len(spoken) - len(words) <= 2 and sound and not stale:
            steps, known = steps + 1, [*known, content]
    return min(1.0, steps / target)


@reward
def repetition_penalty(text, *, ngram_size=3, max_penalty=-1.0):
    """(1 − distinct / all n-grams)·max_penalty, over lower-case words (open-r1): [max_penalty, 0], w 0.1 to 1.
    >>> repetition_penalty(None, ["a b c d", "no no no no no"])
    [0.0, -0.6666666666666667]"""
    return (1 - _distinct(text.lower().split(), ngram_size)) * max_penalty + 0.0


@reward
def token_repetition(text, completion_ids, *, ngram_size=3, max_penalty=-1.0):
    """(1 − distinct / all n-grams)·max_penalty, over tokens: [max_penalty, 0], w 0.1 to 1.

    Appendix C.2 of Demystifying Long Chain-of-Thought Reasoning (Yeo 2025, arXiv 2502.03373), as in TRL's
    `get_repetition_penalty_reward`: of the tokens in `completion_ids`, so for any language; repetition_penalty counts
    words, as open-r1 does. 0 for fewer than ngram_size tokens.

    >>> token_repetition(None, ["", ""], completion_ids=[[1, 2, 3, 4], [5, 5, 5, 5, 5]], ngram_size=2)
    [0.0, -0.75]
    """
    return (1 - _distinct(list(completion_ids or ()), ngram_size)) * max_penalty + 0.0


@reward
def no_repetition(text, *, ngram_size=3, threshold=0.7):
    """min(1, u / threshold), u = distinct / all n-grams of words: [0, 1], w 0.1. Characters without spaces; empty: 0.
    >>> no_repetition(None, ["the cat sat on the mat", "no no no no no"], threshold=1.0)
    [1.0, 0.3333333333333333]"""
    words = text.lower().split()
    units, size = (words, ngram_size) if len(text) <= 20 * len(words) else (text.lower(), 4 * ngram_size)
    return min(1.0, _distinct(units, size) / threshold) if words else 0.0


def _scripts(text: str) -> Counter:
    """{script: number of letters}; scripts that are not in the table count as OTHER."""
    names = {c: unicodedata.name(c, "") for c in {*text} if c.isalpha()}
    scripts = {c: next((s for s in _SCRIPTS if s in name), "OTHER") for c, name in names.items()}
    return Counter(scripts[c] for c in text if c in scripts)


@reward
def language_consistency(text, prompt, language=None):
    """Share of letters in the script of `language` ("en", "zh", …), else in the prompt's main script: [0, 1], w 0.1.
    Scripts tell Chinese from English, not German from English; text without letters scores 1, empty text 0.
    >>> language_consistency(["Hallo?"] * 2, ["gut", "gut 好好好"])
    [1.0, 0.5]"""
    counts, main = _scripts(text), (_scripts(completion_text(prompt, ())) or _scripts(text)).most_common(1)
    wanted = [s for s, codes in _SCRIPTS.items() if language in codes.split()] if language else [s for s, _ in main]
    share = sum(counts[s] for s in wanted) / counts.total() if counts else float(bool(text.strip()))
    return None if language and not wanted else share


# ---- length, in words, or unit="characters" or "tokens"
@reward
def ideal_length(text, completion_ids=None, *, ideal=100, unit="words"):
    """max(0, 1 − |length − ideal| / ideal): [0, 1], w 0.1.
    >>> ideal_length(None, ["a b c", "a b c d"], ideal=4)
    [0.75, 1.0]"""
    return max(0.0, 1 - abs(_length(text, completion_ids, unit) - ideal) / ideal)


@reward
def min_length(text, completion_ids=None, *, minimum=50, unit="words"):
    """min(1, length / minimum): [0, 1], w 0.1. Padding pays, so pair it with no_repetition.
    >>> min_length(None, ["a b c", "a b c d e"], minimum=4)
    [0.75, 1.0]"""
    return min(1.0, _length(text, completion_ids, unit) / minimum)


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
def cosine_scaled(text, answer, *, max_length=1000, correct=(0.5, 1.0), wrong=(-1.0, -0.5)):
    r"""e + (s − e)·(1 + cos(π·min(1, characters / max_length))) / 2, from s if empty to e (open-r1): [−1, 1], w 1.
    (s, e) = (1, 0.5) if math_equivalence holds, else (−1, −0.5). In place of correctness: short right answers earn
    most, long wrong ones lose least, which keeps exploration up, and lengthens them. `correct` and `wrong` are (low,
    high), and then the range: [wrong[0], correct[1]]. token_cosine_scaled counts tokens.
    >>> cosine_scaled(None, [r"\boxed{2}", r"\boxed{3}"], ["2", "2"], max_length=9)
    [0.5, -0.5]"""
    score = math_equivalence.core(text, answer)
    return None if score is None else _cosine(len(text), max_length, *(correct[::-1] if score else wrong))


def _cosine(length: float, limit: float, start: float, end: float) -> float:
    """Half a cosine from `start` at length 0 to `end` at the limit and above."""
    share = (1 + math.cos(math.pi * min(1.0, length / limit))) / 2
    return start * share + end * (1 - share)


@reward(grades=True)
def token_cosine_scaled(
    text, answer, completion_ids, *, max_length=1024, correct=(0.5, 1.0), wrong=(-1.0, -0.5), exceeded=-1.0
):
    r"""cosine_scaled over the tokens of `completion_ids`, and `exceeded` from max_length on: [−1, 1], w 1.

    The cosine reward of Demystifying Long Chain-of-Thought Reasoning (Yeo 2025, arXiv 2502.03373):
    η_min + (η_max − η_min)·(1 + cos(π·length / max_length)) / 2, and r_e where the length reaches max_length. Set that
    to the generation limit; a completion that is cut off then earns `exceeded`, right or wrong. With other options
    the range is [min(exceeded, wrong[0]), correct[1]].

    >>> ids = [[7] * 512, [7] * 512, [7] * 1024]
    >>> token_cosine_scaled(None, [r"\boxed{2}", r"\boxed{3}", r"\boxed{2}"], ["2"] * 3, completion_ids=ids)
    [0.75, -0.75, -1.0]
    """
    score = math_equivalence.core(text, answer)
    if score is None or len(completion_ids or ()) >= max_length:
        return score if score is None else exceeded
    return _cosine(len(completion_ids or ()), max_length, *(correct[::-1] if score else wrong))


def _kimi_scores(graded: list, prompts) -> list[float | None]:
    """Length rewards of (score, length) pairs; rows with one prompt form a group; without prompts, all rows do."""
    prompts = [None] * len(graded) if prompts is None else prompts
    keys = [json.dumps(prompt, sort_keys=True, default=repr) for prompt in prompts]
    lengths, scores = {}, []
    for key, (_, length) in zip(keys, graded, strict=True):
        lengths.setdefault(key, []).append(length)
    for key, (score, length) in zip(keys, graded, strict=True):
        low, high = min(lengths[key]), max(lengths[key])
        shaped = 0.5 - (length - low) / (high - low) if high > low else 0.0
        scores.append(None if score is None else shaped if score else min(0.0, shaped))
    return scores


@reward(grades=True, across=_kimi_scores)
def kimi_length(text, answer, completion_ids=None, *, unit="characters"):
    r"""λ = 0.5 − (length − min) / (max − min) over the completions of a prompt; wrong: min(0, λ): [−0.5, 0.5], w 0.2.

    The length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3; open-r1's `len_reward`): among the samples of a
    prompt short right ones gain, long ones lose, short wrong ones gain nothing; 0 where all have one length. Right is
    what math_equivalence says. Beside a correctness reward; the paper starts without it, and switches it on later. It
    needs the whole group in one call: a process or worker that scores completions one by one gets 0 for each.

    >>> kimi_length(None, [r"\boxed{2}", r"so \boxed{2}", r"thus, \boxed{2}", r"\boxed{3}"], ["2"] * 4)
    [0.5, 0.0, -0.5, 0.0]
    """
    return math_equivalence.core(text, answer), _length(text, completion_ids, unit)
