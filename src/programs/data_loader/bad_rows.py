"""Names of columns, errors about bad rows, and the values that a row may hold."""

import ast
import contextlib
import datetime
import decimal
import json
import math
import re

from parts.data.question_parts import SECOND_TEXTS, is_media
from parts.data.rows import unique
from parts.foundation.messages import RowFlaw, UserError

KINDS = ("prompts", "conversations", "prompt_response", "preferences", "math", "choices", "code")
TARGETS = ("ours", "trl", "verl")
MAX_DEPTH = 100  # levels of JSON; deeper values break later readers, Python's own encoder among them
STRING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)  # of Python
HEAD = 100  # first rows of a file, which decide its form
TEXT_ONLY = "text only: images, video and audio are not read"


class Names:
    """Names of columns by what they hold, in order of preference."""

    PROMPT = (
        *(*SECOND_TEXTS, "question_content", "problem_description", "problem_statement", "instruct_prompt"),
        *("complete_prompt", "inputs"),
    )
    CHOICE_PROMPT = (*PROMPT, "question_stem", "stem", "goal", "ctx", "startphrase", "sent1", "sentence")
    CHAT = ("messages", "conversations", "conversation")
    RESPONSE = ("completion", "response", "output", "target", "targets", "answer")
    GOLD = (
        "answer final_answer expected_answer correct_answer reference_answer gold_answer short_answer exact_answer "
        "numeric_answer numerical_answer answer_number answer_value accepted_answers golden_answer golden_answers "
        "ground_truth ground_truths golden gold expected_output ideal ref_answer gt_answer final_ans "
        "ground_truth_answer target targets expected answers answers_spans final_decision label verification_info"
    ).split()
    ANSWER = (*GOLD, "solution")
    TESTS = (
        "tests test_list test_cases unit_tests unit_test test_code official_tests input_output public_test_cases "
        "private_test_cases public_tests private_tests generated_tests hidden_unit_tests test"
    ).split()
    # columns of a row that is a single message, as in OpenAssistant
    MESSAGES_ALONE = (("parent_id", "role"), ("role", "content"), ("from", "value"))
    # one of several responses: \1 and the rest of the name are the same in each of them
    COMPARED = re.compile(
        r"(response|ref|reply|completion|output|summary|conversation)_?[a-z0-9]\Z"
        r"|chosen|rejected|accepted|non_preferred|preferred|better|worse"
    )


class BadRow(RowFlaw):
    """A row that does not fit."""


class BadRows(UserError):
    """Rows that do not fit; the message shows 20 of `rejected`."""

    def __init__(self, rejected: list[dict]):
        self.rejected, count = rejected, len(rejected)
        lines: dict[tuple, list] = {}  # rows with the same flaw are one line
        for item in rejected[:20]:
            lines.setdefault((item["file"], flaw_of(item)), []).append(item["line"])
        shown_rows = []
        for (file, flaw), (first, *others) in lines.items():
            also = f" (also in line{'s' if others[1:] else ''} {', '.join(map(str, others))})" if others else ""
            shown_rows.append(f"{file}:{first}: {flaw}{also}")
        if count > 20:
            everything = "--on_bad skip with --out FILE lists all in FILE.rejected.jsonl"
            shown_rows.append(f"… and {count - 20} more; {everything}")
        rows = "row" if count == 1 else "rows"
        head = f"got {count} bad {rows}; expected none; try fixing them, or --on_bad skip to omit them"
        super().__init__("\n".join([head, *shown_rows]))


def flaw_of(item: dict) -> str:
    return f"{item['field']}: got {item['got']}; expected {item['expected']}; try {item['try']}"


def shown(value) -> str:
    """A value as text for messages: at most 80 characters, printable whatever it holds."""
    text = repr(value)[:1000]
    return (text if len(text) <= 80 else text[:79] + "…").encode("utf-8", "backslashreplace").decode()


def plain_text(text: str) -> bool:
    """Whether UTF-8 can hold the text: it has no lone surrogate."""
    return re.search("[\ud800-\udfff]", text) is None


def as_plain(value, name: str = "row", depth: int = 0, any_size: bool = False):
    """Return a value as JSON types, with dates and decimals as text; BadRow names the field of other types.

    Integers may have 64 bits, as pyarrow changes or refuses longer ones; in tests (`any_size`) any number.
    """
    if isinstance(value, str):
        if not plain_text(value):
            raise BadRow(name, f"{shown(value)}, which is not Unicode text", "UTF-8", "correcting the encoding")
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not any_size and not -(2**63) <= value < 2**63:
            raise BadRow(name, "an integer of more than 64 bits", "one that pyarrow can hold", "writing it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow(name, value, "a finite number", "null, or leaving the field out")
        return value
    if depth > MAX_DEPTH:
        raise BadRow(name, "nesting too deep", f"at most {MAX_DEPTH} levels", "storing the inner part as JSON text")
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str) or not plain_text(key)]:
            raise BadRow(name, f"the key {shown(wrong[0])}", "text as keys")
        if depth == 0 and name == "row":
            return {key: as_plain(item, key, 1, key in Names.TESTS) for key, item in value.items()}
        return {key: as_plain(item, name, depth + 1, any_size) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item, name, depth + 1, any_size) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    expected = TEXT_ONLY if is_media(name) else "text, numbers, lists and objects"
    raise BadRow(name, type(value).__name__, expected, f"--drop {name} if the text does not need it")


def decoded(text: str, name: str, expected: str = "tests as JSON text, or Python source"):
    """The value of a cell's JSON text or Python literal; BadRow for other text, RowFlaw for a repeated key."""
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        try:
            is_joined = re.search(r"''\s*''", STRING.sub("''", text))  # ['a' 'b'], as numpy prints lists
            value = ast.literal_eval("" if is_joined else text.strip())
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            raise BadRow(name, shown(text), expected) from None
    return as_plain(value, name, any_size=True)


def opened(value):
    """The list or object that a cell holds as JSON text or a Python literal; other values stay as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(RowFlaw):
            return decoded(value, "value")
    return value
