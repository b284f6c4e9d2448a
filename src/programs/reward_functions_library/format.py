"""Layouts, style, repetition and length."""

import json
import math
import re
import warnings

from parts.data.nested_rows import VISIBLE
from programs.reward_functions_library.contract import _validator, reward
from programs.reward_functions_library.correctness import math_equivalence
from programs.reward_functions_library.text_parts import (
    _distinct,
    _json,
    _layout,
    _length,
    _units,
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
