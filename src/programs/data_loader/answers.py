"""Read reference answers: bare ones, those that a worked solution marks, and lists of accepted ones."""

import json
import re

from parts.data.answer_marks import boxes_in, hash_mark, is_matrix, is_program, stated_gold
from parts.data.question_parts import is_empty
from parts.data.stated_answers import visible
from programs.data_loader.bad_rows import BadRow, Names, opened, shown
from programs.data_loader.tests_of_programs import ASSERTS, METHOD, read_tests

MONEY = re.compile(r"-?\$?-?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
SPAN = {"text", "answer_start", "answer_end", "tokens"}  # keys of an answer in a passage in SQuAD and NarrativeQA


def gold_of(text: str) -> str | None:
    r"""The final answer in a worked solution: after a final `####`, else in the last \boxed{…}, else in the last line.

    >>> gold_of("It is 1000 + 3.\n#### 1,003")
    '1003'
    """
    text = visible(text)
    answer, inner = None, text
    while inner is not None:
        if mark := hash_mark(inner):
            inner = answer = (stated_gold(mark[1]) or mark[1]).strip("* ")
        else:
            boxes = boxes_in(inner)
            if boxes is None:  # a box is cut off, which matters only if it is the last
                boxes = boxes_in(inner[max(inner.rfind("\\boxed"), 0) :])
            inner = boxes[-1] if boxes else None
            answer = answer if inner is None else inner.strip()
    answer = stated_gold(text) if answer is None else answer
    return answer.replace(",", "").replace("$", "") if answer and MONEY.fullmatch(answer) else answer


def as_answer(value, name: str) -> str | list[str]:
    """An answer as text, or a list of accepted answers; numbers and truth values are written as in JSON."""
    if isinstance(value, dict) and value:
        accepted = accepted_answers(value)
        if accepted is None:
            inner = next((key for key in value if isinstance(value[key], str | int | float)), "KEY")
            expected = "text, a number, or a list of accepted answers"
            raise BadRow(name, f"an object with {', '.join(value)}", expected, f"--map answer={name}.{inner}")
        value = accepted
    if isinstance(value, list) and all(isinstance(item, dict) and "text" in {*item} <= SPAN for item in value):
        value = [item["text"] for item in value]  # SQuAD's own files
    if is_matrix(value):
        return json.dumps(value)
    if isinstance(value, list) and value and all(isinstance(item, str | int | float | None) for item in value):
        value = list(dict.fromkeys(as_answer(item, name) for item in value if not is_empty(item))) or ""
        if len(value) > 1:
            return value
        value = "".join(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text, a number, or a list of accepted answers")
    if not value.strip():
        raise BadRow(name, "an empty answer", "text or a number")
    return value


def accepted_answers(value: dict):
    """The accepted answers in TriviaQA's {value, aliases}, SQuAD's {text}, {"target": [...]}; None for other objects.

    DROP's spans are read only if there is one, as several are parts of one answer.
    """
    if "value" in value and isinstance(value.get("aliases"), list):
        return [value["value"], *value["aliases"]]
    if isinstance(value.get("text"), list) and set(value) <= SPAN:
        return value["text"]
    if set(value) == {"spans", "types"} and isinstance(value["spans"], list) and len({*map(str, value["spans"])}) == 1:
        return value["spans"][:1]
    if len(value) == 1 and set(value) <= set(Names.GOLD):
        return next(iter(value.values()))
    return None


def ground_truth(value, name: str, row: dict) -> dict:
    """Fields for a ground truth: `tests`, or `answer` with one or several answers; other objects stay `ground_truth`.

    JSON text is decoded if it holds tests or texts; a list of numbers may be mathematics and stays text.
    """
    whole, text = opened(value), isinstance(value, str)
    if isinstance(whole, dict) and (whole or name == "verification_info"):
        if isinstance(whole.get("test_code"), str):  # Skywork's
            called = METHOD.sub(r"\1", str(whole.get("entry_point") or ""))
            fields = {"entry_point": called, "setup": whole.get("import_prefix")}
            return {"tests": read_tests(whole["test_code"], name, {}), **{k: v for k, v in fields.items() if v}}
        if source := next((whole[key] for key in ("functional", "assert_case") if whole.get(key)), None):
            return {"tests": read_tests(source, name, row)}  # Code-R1's and verl's prime_code
        is_paired = {"inputs", "outputs"} <= set(whole) or {"input", "output"} <= set(whole)
        if is_paired or whole.get("test_cases") is not None:
            return {"tests": read_tests(whole, name, row)}
        accepted = accepted_answers(whole)
        if accepted is None and name == "verification_info":  # beside the data of its verifier
            accepted = whole.get("ground_truth", whole.get("answer"))
        return {"ground_truth": value} if accepted in (None, []) else {"answer": as_answer(accepted, name)}
    if isinstance(whole, list) and whole:
        cases = all(isinstance(item, dict) and "input" in item for item in whole)
        pairs = row.get("entry_point") and all(isinstance(item, list) and len(item) == 2 for item in whole)
        if cases or pairs or all(isinstance(item, str) and ASSERTS.search(item) for item in whole):
            return {"tests": read_tests(whole, name, row)}
        if not text or all(isinstance(item, str) for item in whole):
            return {"answer": as_answer(whole, name)}
    return {"answer": as_answer(value, name)}


def is_short(value) -> bool:
    """Whether a value may be a bare answer: a number, a list, or up to 5 words."""
    text = value.strip() if isinstance(value, str) else ""
    return isinstance(value, int | float | list) or ("\n" not in text and 0 < len(text.split()) < 6)


def names_value(value) -> bool:
    """Whether a `solution` is a bare answer, as in TRL's data for rewards: a number, a formula or a word."""
    if not isinstance(value, str) or not is_short(value) or "boxed" in value or is_program(value):
        return False
    return len(re.findall(r"(?<!\\)\b[^\W\d_]{2,}", value)) < 2


def marks_answer(value) -> bool:
    """Whether a text is a worked solution that marks its final answer, even if cut off."""
    return isinstance(value, str) and ("\\boxed" in value or gold_of(value) is not None)
