"""Columns that look like a part of the question: texts to read before it, options, images, a second text."""

import contextlib
import functools
import json
import re
import shlex
from collections import Counter

from parts.data.nested_rows import holds_answer, is_dialogue
from parts.foundation.messages import say

# texts that a question is asked about, in the order in which they stand before it
READ_FIRST = (
    *("pre_text", "context", "contexts", "ctx", "passage", "passages", "article", "body", "story", "background"),
    *("document", "documents", "doc", "docs", "paragraph", "paragraphs", "premise", "hypothesis", "support"),
    *("dialogue", "dialog", "schema", "table", "tables", "scenario", "excerpt", "post_text"),
)
# perhaps a part of the question, perhaps a note about it
DOUBTFUL = (
    *("hint", "hints", "fact", "facts", "evidence", "evidences", "history", "sentence1", "sentence2", "sent1", "sent2"),
    *("starter_code", "abstract", "essay", "knowledge", "situation", "transcript", "vignette", "email", "snippet"),
    *("constraints", "input_format", "output_format", "input_description", "output_description", "search_results"),
    *("source_text", "reference_text", "full_text", "kontext", "textabschnitt", "contexte", "contexto", "passaggio"),
    *("上下文", "背景", "文章", "材料", "原文", "段落"),
)
SECOND_TEXTS = ("prompt", "question", "problem", "query", "instruction", "text", "input", "description")
MEDIA = {"image", "picture", "figure", "img", "photo", "video", "audio", "diagram", "screenshot", "frame"}
MEDIA_ENDS = {"url", "uri", "link", "path", "file", "byte", "base", "data", "list", "caption", "description"}
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # of JSON Schema
NOTE_WORDS = {"supporting", "gold", "answer", "output", "response", "correct", "solution", "is", "has", "num"}
CHOICE_KEYS = (
    *("choices", "options", "answer_choices", "answer_options", "endings", "choice", "candidates", "alternatives"),
    *("mc1_targets", "answers", "distractors", "incorrect_answers"),
)
NUMBER_KEYS = ("label", "gold_label", "correct", "correct_option", "answer_idx", "answer_index", "cop")
# one choice a column: A, optionB, option_1, opa, sol2, ending0, mc_answer4, "Incorrect Answer 3"
ONE_CHOICE = re.compile(
    r"((?i:op(?=[A-Da-d])|opt(?:ion)?|choice|(?:mc_?)?answer|ans|sol|ending|candidate|alternative|distractor"
    r"|(?:incorrect|wrong)_?answer)_?)([A-Ja-j]|\d\d?)|([A-Ja-j])"
)
WRONG = re.compile(r"(?i)distractor|incorrect|wrong")  # columns of choices without the right one


def plain_name(name: str) -> str:
    """A column's name in lower case, with _ between its words: `Correct Answer` is `correct_answer`."""
    return re.sub(r"[\s-]+", "_", name.strip()).lower()


@functools.lru_cache(4096)
def names_part(name: str) -> bool:
    """Whether a column's name says that it holds a part of the question."""
    if plain_name(name) in (*READ_FIRST, *DOUBTFUL, *SECOND_TEXTS):
        return True
    words = words_in(name)
    if not words or NOTE_WORDS & {*words}:
        return False
    if is_media(name):
        return True
    return len(words) > 1 and head_of(name) in {*READ_FIRST, *DOUBTFUL}


def head_of(name: str) -> str:
    """What a column's name says that it holds: passage for `flores_passage` and `passage_text`."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return stems[-2] if len(stems) > 1 and stems[-1] in ("text", "content") else stems[-1]


def words_in(name: str) -> list[str]:
    """The words of a column's name, which may be in camel case."""
    return re.findall(r"[^\W\d_]+", plain_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)))


def is_media(name: str) -> bool:
    """Whether a column's name says that it holds images, sound, or where they lie."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return bool(MEDIA & {*stems}) and stems[-1] in MEDIA | MEDIA_ENDS


@functools.lru_cache(4096)
def choice_names(names: tuple[str, ...]) -> tuple[list[str], list[tuple[str, ...]]]:
    """(columns that may hold all choices, groups of columns that hold one each: A, B or 0, 1 or 1, 2) of a row."""
    families = {}
    for name in names:
        if match := ONE_CHOICE.fullmatch(re.sub(r"[\s-]+", "_", name)):
            prefix, mark = match[1] or str(match[3].isupper()), match[2] or match[3]
            place = int(mark) if mark.isdigit() else ord(mark.lower()) - ord("a")
            families.setdefault(prefix.lower(), {})[place] = name
    complete = []
    for prefix, family in families.items():
        least = 4 if prefix == "false" else 1 if WRONG.match(prefix) else 2  # `a` and `b` alone are rather two numbers
        if min(family) < 2 and len(family) >= least and max(family) - min(family) + 1 == len(family):
            complete.append(tuple(family[place] for place in sorted(family)))
    return [name for name in CHOICE_KEYS if name in names], complete


def choice_columns(row: dict) -> tuple[str, ...]:
    """The columns with the choices of a question, one or several; () where none looks like it."""
    keys, families = choice_names(tuple(row))
    for name in keys:
        value = row[name]
        if is_empty(value) or not isinstance(value, str | list | dict):
            continue
        if isinstance(value, str) and (name == "choice" or value.strip() in ("[]", "{}")):
            continue
        if name == "answers":  # ReClor's; elsewhere accepted answers
            several = isinstance(value, list) and len(value) > 1 and row.get("answer") is None
            if not several or not any(row.get(number) is not None for number in NUMBER_KEYS):
                continue
        return (name,)
    for family in families:
        given = tuple(name for name in family if not is_empty(row[name]))
        if len(given) > 1 or (given and WRONG.match(given[0])):
            return given if given == family[: len(given)] else family
    return ()


def is_empty(value) -> bool:
    """Whether a cell holds nothing: null, blanks, an empty list or object."""
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def texts_in(value) -> list[str]:
    """Every text and number in a value, however deep; of a chat message its content."""
    if isinstance(value, dict | list):
        inner = value if isinstance(value, list) else [item for key, item in value.items() if key != "role"]
        return [text for item in inner for text in texts_in(item)]
    return [] if value is None or isinstance(value, bool) else [value if isinstance(value, str) else repr(value)[:100]]


def squeezed(text: str) -> str:
    """A text with one blank between its words."""
    return " ".join(text.split())


def is_json_schema(name: str, value) -> bool:
    """Whether a column named as a schema holds a JSON Schema, by which a reward checks, and no tables of a database."""
    if head_of(name) != "schema":
        return False
    with contextlib.suppress(ValueError):
        value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        return False
    properties, kind = value.get("properties"), value.get("type")
    if isinstance(properties, dict) and all(isinstance(one, dict | bool) for one in properties.values()):
        return True
    marks = value.keys() & {"$schema", "$ref", "anyOf", "oneOf", "allOf"}
    return bool(marks) or (isinstance(kind, str) and kind in JSON_TYPES)


def unread_parts(row: dict, prompt) -> list[str]:
    """Columns that look like a part of the question but are not in the prompt, a text or messages."""
    choices = choice_columns(row)
    names = [name for name in dict.fromkeys([*filter(names_part, row), *choices]) if not is_empty(row[name])]
    names = [name for name in names if row[name] != prompt and not is_json_schema(name, row[name])]
    if not names:
        return []
    whole = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    asked, parts, unread = squeezed(whole), [squeezed(part) for part in whole.split("\n\n")], []
    has_letters = all(re.search(rf"\b{letter}\s?[).:、．]", asked, re.IGNORECASE) for letter in "AB")  # of choices
    for name in names:
        inside = [squeezed(text) for text in texts_in(row[name])]
        is_note = isinstance(row[name], int | float) and name not in choices
        is_whole = name in SECOND_TEXTS and len(inside) == 1 and all(part in inside[0] for part in parts)  # Alpaca's
        is_there = all(text in asked for text in inside) and (name not in choices or has_letters)
        if not is_note and not is_whole and not is_there:
            unread.append(name)
    return unread


def odd_answers(name: str, values: list) -> list[str]:
    """A line for each kind of answer in a column that a reward may misread.

    >>> odd_answers("answer", ["3,5", "4,25", "12"])
    ["2 of 3 values of answer look like '3,5': graders take the comma for a separator; write 3.5 if it is a decimal"]
    """
    texts = [str(value) for value in values if isinstance(value, str | float) and not isinstance(value, bool)]
    given = [text.strip() for text in texts if text.strip() and text != "nan"]
    empty = [text for text in texts if not text.strip()]
    padded = [text for text in texts if text.strip() and text != text.strip() and "\n" not in text]
    commas = [text for text in given if re.fullmatch(r"[-+]?\d+,\d{1,2}", text)]
    whole = [text for text in given if re.fullmatch(r"[-+]?\d+\.0", text)]
    of, lines = f"of {len(values)} values of {name}", []
    if empty:
        contained = "which every text contains: a reward that looks for it pays every completion"
        lines.append(f"{len(empty)} {of} are empty, {contained}; fill them in, or leave these rows out")
    if padded:
        shown = padded[0][:20] if padded[0][:1] == " " else padded[0][-20:]
        lines.append(
            f"{len(padded)} {of} have blanks around them, like {shown!r}: a reward that compares texts must strip them"
        )
    if commas and 2 * len(commas) >= len(given):
        point = f"write {commas[0].replace(',', '.')} if it is a decimal"
        lines.append(f"{len(commas)} {of} look like {commas[0]!r}: graders take the comma for a separator; {point}")
    if whole and len(whole) == len(given):
        got = f"every {name} is a whole number with a decimal, like {whole[0]!r}"
        unpaid = f"a reward that compares texts does not pay {whole[0][:-2]!r}"
        lines.append(f"{got}: {unpaid}; store whole numbers, in pandas with .astype('Int64')")
    return lines


def warn_odd_answers(source: str, rows: list[dict]) -> None:
    """Warn of what `odd_answers` finds in the columns that rewards compare with."""
    for name in ("answer", "ground_truth"):
        for line in odd_answers(name, [row[name] for row in rows if name in row]):
            say(f"warning: {source}: {line}")


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> Counter:
    """Warn of columns that look like a part of the question but are in no prompt, and of prompts with their answer."""
    counts, total, ends = Counter(), len(asked), 0
    warn_odd_answers(source, [row for row, _ in asked])
    for row, prompt in asked:
        prepared = isinstance(row.get("prompt"), list) and {"source", "id"} <= row.keys()  # by data_loader.py
        counts.update([] if prepared else unread_parts(row, prompt))
        ends += isinstance(prompt, list) and prompt[-1]["role"] == "assistant"
    answered = sum(holds_answer(prompt) or is_dialogue(prompt) for _, prompt in asked)
    if ends:
        got = f"{ends} of {total} prompts end with an assistant turn, which the model continues"
        say(f"warning: {source}: {got}; if it is the answer, move it to a column of its own")
    if answered:
        got = f"got {answered} of {total} prompts that are whole dialogues, answers included"
        say(f"warning: {source}: {got}; expected messages; try a file in which `messages` lists the turns")
    if counts:
        names = ", ".join(f"{name} (in {count} of {total} rows)" for name, count in counts.items())
        got = f"got columns that look like a part of the question but are in no prompt: {names}"
        drop = f"with `--drop {shlex.join(counts)}` for columns that do not belong to it"
        say(f"warning: {source}: {got}; try `python scripts/data_loader.py {source} --out FILE.jsonl`, {drop}")
    return counts
