"""Layouts."""

import json
import re
import warnings

from programs.reward_functions_library.contract import reward
from programs.reward_functions_library.options import _validator
from programs.reward_functions_library.text_parts import _json, _layout


# ---- format
@reward
def format_reward(text):
    """1 where the completion is exactly one non-empty `<answer>…</answer>` and nothing else, else 0: {0, 1}, w 0.2.
    >>> format_reward(None, ["<answer>46</answer>", "It is <answer>46</answer>", "<answer></answer>"])
    [1.0, 0.0, 0.0]"""
    return bool(re.fullmatch(r"<answer>\s*[^<>\s][^<>]*</answer>", text.strip()))


@reward
def strict_xml_format(text, *, tags=("reasoning", "answer")):
    r"""1 if the text is `<tag>\\n…\\n</tag>\\n` for each tag in order and nothing else, else 0: {0, 1}, w 0.1.
    >>> strict_xml_format(None, ["<reasoning>\n1+1\n</reasoning>\n<answer>\n2\n</answer>", "<answer>2</answer>"])
    [1.0, 0.0]"""
    pieces = _layout(text if text.endswith("\n") else text + "\n", tags)
    contents = all(piece.strip() and piece[0] == piece[-1] == "\n" for piece in pieces[1::2])
    return len(pieces) == 2 * len(tags) + 1 and contents and pieces[::2] == ["", *["\n"] * len(tags)]


@reward
def soft_xml_format(text, *, tags=("reasoning", "answer")):
    """1 if the text is the non-empty tags in order with only white space around them, else 0: {0, 1}, w 0.1.
    >>> soft_xml_format(None, ["<reasoning>1+1</reasoning> <answer>2</answer>", "<answer>2</answer>"])
    [1.0, 0.0]"""
    pieces = [piece.strip() for piece in _layout(text, tags)]
    return len(pieces) == 2 * len(tags) + 1 and not any(pieces[::2]) and all(pieces[1::2])


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
    return len(pieces) == 3 and not pieces[0] and all(pieces[1:])


@reward
def open_r1_format(text):
    r"""1 where the text is `<think>\n…\n</think>\n<answer>\n…\n</answer>`, else 0: {0, 1}, w 0.1.

    open-r1's `format_reward` (src/open_r1/rewards.py), its pattern `^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$`
    with DOTALL and MULTILINE, in linear time. As there, lines may follow the last one, and the parts may be empty or
    hold further tags: soft_xml_format with tags=("think", "answer") is stricter.

    >>> open_r1_format(None, ["<think>\n1+1\n</think>\n<answer>\n2\n</answer>", "<think>1+1</think><answer>2</answer>"])
    [1.0, 0.0]
    """
    opened, between, closing = "<think>\n", "\n</think>\n<answer>\n", "\n</answer>"
    at = text.find(between, len(opened)) if text.startswith(opened) else -1
    at = -1 if at < 0 else text.find(closing, at + len(between))
    while at >= 0 and text[at + len(closing) :][:1] not in ("", "\n"):
        at = text.find(closing, at + 1)
    return at >= 0


_STEP = re.compile(r"Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,")


@reward
def reasoning_steps(text, *, target=3):
    r"""min(1, n / target) for n marks of steps: [0, 1], w 0.05.

    open-r1's `reasoning_steps_reward` (src/open_r1/rewards.py). Marks are "Step 1:", a number and a full stop at the
    very start, a line that begins with - or *, and "First,", "Second,", "Next,", "Finally,". Words alone earn it, so
    that a list of them is paid in full: reasoning_quality asks for content, and both belong beside correctness.

    >>> reasoning_steps(None, ["Step 1: add.\nStep 2: halve.", "First, add.\n- 2\n* 3", "It is 3."])
    [0.6666666666666666, 1.0, 0.0]
    """
    return min(1.0, len(_STEP.findall(text)) / target)


@reward
def tag_count(text, *, tags=("think", "answer")):
    """Share of the tags' opening and closing marks that stand exactly once, in any order: [0, 1], w 0.1, early on.
    >>> tag_count(None, ["<think>1+1</think><answer>2", ""])
    [0.75, 0.0]"""
    return sum(text.count(mark) == 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")) / (2 * len(tags))


@reward
def json_format(text):
    """1 if the text, or the one fenced block that it is, is a JSON object or array, else 0: {0, 1}, w 0.1 to 0.3.
    `{}` pays; json_schema asks for content.
    >>> json_format(None, ['{"a": [1]}', "a: 1", "3"])
    [1.0, 0.0, 0.0]"""
    return isinstance(_json(text), dict | list)


@reward
def json_schema(text, schema, *, max_characters=20_000):
    """1 if the text is JSON, as in json_format, that the JSON Schema accepts, else 0: {0, 1}, w 0.2 to 1.
    A dict or JSON text, as a column or an option; an invalid schema is not applicable. Needs jsonschema.
    >>> json_schema(None, ['{"a": 1}', '{"a": "x"}'], [{"properties": {"a": {"type": "integer"}}}] * 2)
    [1.0, 0.0]"""
    try:
        validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
        value = _json(text) if len(text) <= max_characters else None
        return value is not None and validator.is_valid(value)
    except RecursionError:  # a schema that refers to itself, and text nested deeply
        return 0.0
    except Exception as error:  # whatever a library makes of any schema
        return None if schema is None else warnings.warn(f"got an unusable schema: {error!r:.200}", stacklevel=2)
