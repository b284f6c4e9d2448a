"""Reference answers, and ground truths that may be answers or tests."""

import json
import re

from parts.data.answer_marks import hash_mark
from programs.data_loader.bad_rows import BadRow, shown
from programs.data_loader.code_tests import METHOD, as_tests, from_json, python_object, read_tests
from programs.data_loader.messages import GOLD_KEYS

ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
BOXED = re.compile(r"\\f?boxed\s*(\{|(?=[^\s{]))")
BARE_MARK = re.compile(r"####[^\n#\\]*|\$?\\boxed\{[^{}]*\}\$?")  # an answer in its mark and nothing else
LEAD = re.compile(r"(?i)\**(the )?(final )?(answer|solution|result)\**( is:?|:)")
MONEY = re.compile(r"-?\$?-?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
SPAN = {"text", "answer_start", "answer_end"}  # an answer in a passage, as SQuAD has it


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{…} holds, braces inside matched; None without a complete one.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    found = list(BOXED.finditer(text))
    match = found[-1] if found else None  # an earlier one is no answer where the last is cut off
    if match is None or not match[1]:
        return text[match.end()] if match else None  # \boxed 5
    depth, escaped = 1, False
    for at in range(match.end(), len(text)):
        depth += 0 if escaped else {"{": 1, "}": -1}.get(text[at], 0)
        escaped = text[at] == "\\" and not escaped
        if depth == 0:
            return text[match.end() : at].strip()
    return None


def gold_of(text: str) -> str | None:
    r"""The final answer in a worked solution: after a final `####`, else in the last \boxed{…}; None without either.

    >>> gold_of("It is 1000 + 3.\n#### 1,003")
    '1003'
    """
    found = None
    while True:
        if mark := hash_mark(text):
            text = LEAD.sub("", mark[1].strip()).strip("* ")
            if MONEY.fullmatch(text):
                text = text.replace(",", "").replace("$", "")
        else:
            inner = last_boxed(text) if "boxed" in text else None
            if inner is None:
                return found
            text = inner
        found = text


def as_answer(value, name: str) -> str | list[str]:
    """An answer as text, or a list of accepted ones; a number or truth value is written as JSON writes it."""
    if isinstance(value, dict):
        accepted = accepted_answers(value)
        if accepted is None:
            inner = next((key for key in value if isinstance(value[key], str | int | float)), "KEY")
            expected = "text, a number, or a list of accepted answers"
            raise BadRow(name, f"an object with {', '.join(value)}", expected, f"--map answer={name}.{inner}")
        value = accepted
    if isinstance(value, list) and all(isinstance(item, dict) and "text" in {*item} <= SPAN for item in value):
        value = [item["text"] for item in value]  # SQuAD's own files
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        texts = [as_answer(item, name) for item in value if not isinstance(item, str) or item.strip()]
        value = list(dict.fromkeys(texts)) or ""
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
    """The accepted answers of TriviaQA's {value, aliases}, SQuAD's {text}, {"target": [...]}; None for others.

    DROP's several spans are parts of one answer, so that only a single one is read.
    """
    if "value" in value and isinstance(value.get("aliases"), list):
        return [value["value"], *value["aliases"]]
    if isinstance(value.get("text"), list) and set(value) <= SPAN:
        return value["text"]
    if set(value) == {"spans", "types"} and len({str(span) for span in value["spans"] or ()}) == 1:
        return value["spans"][:1]
    if len(value) == 1 and set(value) <= set(GOLD_KEYS):
        return next(iter(value.values()))
    return None


def ground_truth(value, name: str, row: dict) -> dict:
    """The fields of a ground truth: tests, an answer, or accepted answers; an object of another kind stays one.

    JSON text is decoded where it holds tests or texts; a list of numbers may be mathematics and stays text.
    """
    whole, text = value, isinstance(value, str)
    if text and value.lstrip()[:1] in ("[", "{"):
        try:
            whole = from_json(value, name)
        except BadRow:
            whole = python_object(value)
    if isinstance(whole, dict) and whole:
        if isinstance(whole.get("test_code"), str):  # Skywork's
            called = METHOD.sub(r"\1", str(whole.get("entry_point") or ""))
            fields = {"entry_point": called, "setup": whole.get("import_prefix")}
            return {"tests": as_tests(whole["test_code"], name), **{k: v for k, v in fields.items() if v}}
        if source := next((whole[key] for key in ("functional", "assert_case") if whole.get(key)), None):
            return {"tests": read_tests(source, name, row)}  # Code-R1's and verl's prime_code
        if {"inputs", "outputs"} <= set(whole) or {"input", "output"} <= set(whole) or "test_cases" in whole:
            return {"tests": read_tests(whole, name, row)}
        accepted = accepted_answers(whole)
        return {"ground_truth": value} if accepted in (None, []) else {"answer": as_answer(accepted, name)}
    if isinstance(whole, list) and whole:
        cases = all(isinstance(item, dict) and "input" in item for item in whole)
        pairs = row.get("entry_point") and all(isinstance(item, list) and len(item) == 2 for item in whole)
        if cases or pairs or all(isinstance(item, str) and ASSERTS.search(item) for item in whole):
            return {"tests": read_tests(whole, name, row)}
        if not text or all(isinstance(item, str) for item in whole):
            return {"answer": as_answer(whole, name)}
    return {"answer": as_answer(value, name)}
