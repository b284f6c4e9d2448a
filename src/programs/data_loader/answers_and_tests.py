"""Reference answers and tests, and the columns that may hold them."""

import json
import re

from parts.data.answer_marks import hash_mark
from parts.data.question_parts import is_empty, words_in
from programs.data_loader.bad_rows import BadRow, shown
from programs.data_loader.json_values import JsonDecoder, as_plain
from programs.data_loader.messages import GOLD_KEYS
from programs.data_loader.test_checks import check_python, check_test

BOXED = re.compile(r"\\f?boxed\s*(\{|(?=[^\s{]))")
BARE_MARK = re.compile(r"####[^\n#\\]*|\$?\\boxed\{[^{}]*\}\$?")  # an answer in its mark and nothing else
LEAD = re.compile(r"(?i)\**(the )?(final )?(answer|solution|result)\**( is:?|:)")
MONEY = re.compile(r"-?\$?-?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
SPAN = {"text", "answer_start", "answer_end"}  # an answer in a passage, as SQuAD has it
# words of columns that hold what a model should write, and the field of the schema that takes them
TARGET_WORDS = {
    **dict.fromkeys(("answer", "solution", "gold", "truth", "target", "label", "result", "reference", "ref"), "answer"),
    **dict.fromkeys(("expected", "correct", "attempt"), "answer"),
    **dict.fromkeys(("test", "assert", "assertion", "check"), "tests"),
    **dict.fromkeys(("response", "output", "completion", "reply"), "completion"),
    **dict.fromkeys(("chosen", "better", "win", "winner", "preferred", "accepted", "positive"), "chosen"),
    **dict.fromkeys(("rejected", "worse", "lose", "loser", "dispreferred", "negative"), "rejected"),
}
NOTE_STARTS = ("sample", "example", "num", "n", "is", "has")  # of columns about answers
TARGET_ENDS = {"text", "value", "number", "string", "code", "case", "list", "letter", "key", "index", "a", "b"}


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


def as_tests(value, name: str):
    """Tests in a form that scripts/sandbox.py takes; JSON text is decoded. An empty set would pass any program."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = tests_from_json(value, name)
    if isinstance(value, dict) and {"input", "output"} <= set(value):
        single = not isinstance(value["input"], list)
        others = {key: item for key, item in value.items() if key not in ("input", "output")}  # fn_name among them
        value = [value] if single else {**others, "inputs": value["input"], "outputs": value["output"]}
    if isinstance(value, dict):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            got = f"the keys {', '.join(value) or 'none'}"
            if isinstance(inputs, list) and isinstance(outputs, list):
                got = f"{len(inputs)} inputs and {len(outputs)} outputs"
            raise BadRow(name, got, "inputs and outputs, lists of one length")
        count = len(inputs)
    elif isinstance(value, str):
        check_python(value, name)
        count = len(value.strip())
    elif isinstance(value, list):
        count = len(value)
        for number, test in enumerate(value):
            check_test(test, f"{name}[{number}]")
        if len({isinstance(test, str) for test in value}) > 1:
            raise BadRow(name, "Python source and cases in one list", "tests of one form")
    else:
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "Python source, a list, or inputs and outputs")
    if not count:
        raise BadRow(name, "no tests", "at least one, as none at all pass every program")
    return value


def tests_from_json(text: str, name: str, expected: str = "tests as JSON text, or Python source"):
    """Decode tests given as JSON text; JSON that is cut off must not pass for Python source."""
    decoder, text = JsonDecoder(), text.strip()
    try:
        value, end = decoder.decode(text)
        if decoder.flaws or end != len(text):
            raise decoder.flaws[0] if decoder.flaws else BadRow(name, f"{shown(text[end:])} after JSON", "JSON")
    except BadRow as error:
        raise BadRow(name, error.parts["got"], expected) from None
    return as_plain(value, name, any_size=True)


def target_fields(row: dict) -> dict[str, str]:
    """{column: field of the schema} for columns that look like what a model should write: answers, tests, responses."""
    fields = {}
    for name, value in row.items():
        stems = [word.removesuffix("s") for word in words_in(name)]
        known = [
            TARGET_WORDS[stem] for stem in stems if stem in TARGET_WORDS and (stem != "label" or "text" not in row)
        ]
        is_cell = not is_empty(value) and not isinstance(value, bool | dict)
        if known and is_cell and stems[-1] in TARGET_WORDS.keys() | TARGET_ENDS and stems[0] not in NOTE_STARTS:
            fields[name] = known[0]
    return fields
