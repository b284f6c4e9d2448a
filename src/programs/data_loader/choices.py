"""Questions with choices."""

import contextlib
import random
import re
import shlex
import string
from dataclasses import dataclass, field

from parts.data.question_parts import CHOICE_KEYS, ONE_CHOICE, WRONG, choice_columns, is_empty, words_in
from programs.data_loader.bad_rows import BadRow, json_or_literal, shown
from programs.data_loader.messages import PICK_KEYS

LETTERS = string.ascii_uppercase
SCALAR = str | int | float
RIGHT_KEYS = ("correct_answer", "best_answer", "answer", "correct")  # beside columns of wrong answers
RIGHT_WORDS = {"answer", "ans", "correct", "right", "gold", "key", "truth"}
PICK_WORDS = {*RIGHT_WORDS, "option", "choice", "label", "letter", "index", "idx", "number", "num", "true", "the", "is"}
LABEL = re.compile(r"[A-Za-z]|\d\d?")
LABEL_END = re.compile(r"([A-Ja-j]|\d\d?)$")


@dataclass
class Choices:
    """The choices of a row, and how it names the right one."""

    columns: tuple[str, ...]
    texts: list[str]
    labels: list[str] = field(default_factory=list)  # as the row names the choices
    right: int | None = None  # where the choices themselves say it
    first: int | None = None  # what numbers count from in published data of this form; None: unknown


def choices_of(row: dict) -> Choices | None:
    """The choices of a row; None where no column looks like it.

    Raises:
        BadRow: columns look like choices, but are in no form that is known.
    """
    columns = choice_columns(row)
    if not columns:
        return None
    name, value = columns[0], row[columns[0]]
    if WRONG.match(name):
        choices = from_wrong(row, columns)
    elif name in CHOICE_KEYS:
        choices = from_value(name, listed_in(value) if isinstance(value, str) else value)
    else:
        choices = from_columns(row, columns)
    if choices is None or not 1 < len(choices.texts) <= len(LETTERS) or "" in choices.texts:
        expected = "2 to 26 choices: a list of texts, {text, label}, {A: text}, or `A. … B. …`"
        got = shown(value) if len(columns) == 1 else ", ".join(f"{name} {shown(row[name])}" for name in columns)
        raise BadRow(name, got, expected, f"--drop {shlex.join(columns)} where these are no choices")
    return choices


def from_columns(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """Choices that have a column each: a letter is a label; a number counts as the columns do."""
    if any(not isinstance(row[name], SCALAR) for name in columns):
        return None
    marks = [LABEL_END.search(name)[1] for name in columns]
    texts, stem = [str(row[name]).strip() for name in columns], columns[0][: -len(marks[0])].lower()
    if marks[0].isdigit():  # PIQA's and COPA's `label` counts from 0, whatever the columns' names
        from_zero = stem in ("sol", "choice") and row.get("label") is not None
        return Choices(columns, texts, first=0 if from_zero else int(marks[0]))
    return Choices(columns, texts, [mark.upper() for mark in marks], first={"op": 0, "answer": 1}.get(stem))


def from_wrong(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """The right answer and wrong ones, in an order that their texts decide."""
    right = next((name for name in RIGHT_KEYS if isinstance(row.get(name), SCALAR)), None)
    wrong = row[columns[0]] if isinstance(row[columns[0]], list) else [row[name] for name in columns]
    texts = [row.get(right), *wrong]
    if right is None or not all(isinstance(text, SCALAR) for text in texts):
        return None
    return shuffled(Choices((*columns, right), [str(text).strip() for text in texts], right=0))


def shuffled(choices: Choices) -> Choices:
    """The same choices in an order that depends on nothing but their texts, so that the first is not always right."""
    order = list(range(len(choices.texts)))
    random.Random("\n".join(choices.texts)).shuffle(order)
    texts = [choices.texts[index] for index in order]
    return Choices(choices.columns, texts, right=order.index(choices.right))


def from_value(name: str, value) -> Choices | None:
    """Choices in one column: a list, objects, ARC's {"text", "label"}, MedQA's {"A": text}."""
    labels = []
    if isinstance(value, dict):
        listed = next(
            (key for key in ("text", "texts", "choices", "options") if isinstance(value.get(key), list)), None
        )
        given = {key: item for key, item in value.items() if not is_empty(item)}
        if listed:
            labels, value = value.get("label") or [], value[listed]
        elif all(LABEL.fullmatch(key) for key in given):
            labels, value = list(given), list(given.values())
        elif all(ONE_CHOICE.fullmatch(key) for key in given):
            labels, value = [LABEL_END.search(key)[1] for key in given], list(given.values())
        else:
            return None
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        text = next(
            (key for key in ("text", "content", "option", "choice", "answer", "value") if key in value[0]), None
        )
        label = next((key for key in ("label", "key", "letter", "id", "identifier", "option") if key in value[0]), None)
        if text is None or any(text not in item for item in value):
            return None
        labels = [item.get(label) for item in value] if label and label != text else []
        value = [item[text] for item in value]
    while isinstance(value, list) and not labels and value and is_empty(value[-1]):
        value = value[:-1]
    plain = isinstance(value, list) and all(isinstance(text, SCALAR) for text in value)
    if not plain or not isinstance(labels, list) or len(labels) not in (0, len(value)):
        return None
    texts, labels = [str(text).strip() for text in value], [str(label).strip() for label in labels]
    return Choices((name,), texts, labels, first=0 if name in ("choices", "choice", "endings", "answers") else None)


def listed_in(text: str):
    """Choices in one text, JSON or as Python prints it; else the text."""
    with contextlib.suppress(ValueError):
        return json_or_literal(text) if text.lstrip()[:1] in ("[", "{") else text
    return text


def right_choice(row: dict, choices: Choices, first: int | None) -> tuple[str, int, bool]:
    """(column, place, whether the row leaves open that its number counts from elsewhere) of the right choice.

    `first` is what numbers of choices count from in this file, None where no row shows it.

    Raises:
        BadRow: no column says which choice is right, or none in a way that can be read.
    """
    if choices.right is not None:
        return choices.columns[0], choices.right, False
    picks = picks_of(row, choices)
    for name, value in picks:
        if (place := named_place(value, choices)) is not None:
            return name, place, False
    count, texts = len(choices.texts), choices.texts
    for name, value in picks:
        number, same = as_number(value, choices), places_of(str(value).strip(), texts)
        start = first_place(name, choices) if first is None else first
        if number is not None and start is None:
            got, expected = f"{number}, counted from 0 or from 1, which no row shows", letters_or_texts(choices)
            raise BadRow(name, got, expected, f"--map answer_index={name} where they count from 0, or letters")
        place = number - start if number is not None else -1
        if same and place in range(count) and same != [place] and first is None and isinstance(value, str):
            raise BadRow(name, f"{shown(value)}, the text of one choice and the number of another", "a letter")
        if place in range(count):
            return name, place, first is None and 0 < number < count
        if len(same) == 1:
            return name, same[0], False
    numbers = "" if choices.labels else f"a number from {first or 0} to {count - 1 + (first or 0)}, "
    expected, drop = numbers + letters_or_texts(choices), f"--drop {shlex.join(choices.columns)}"
    if picks:
        letters = re.findall(r"[A-Za-z0-9]", str(picks[0][1]))
        several = 1 < len(letters) == len(re.findall(r"\w+", str(picks[0][1]).strip())) or isinstance(picks[0][1], list)
        got = f"{shown(picks[0][1])}, several choices" if several else shown(picks[0][1])
        raise BadRow(picks[0][0], got, expected, f"{'--on_bad skip' if several else 'mending the row'}, or {drop}")
    if empty := next((name for name in PICK_KEYS if name in row and name not in choices.columns), None):
        raise BadRow(empty, "an empty cell", expected, f"leaving out the row, or --kind prompts --drop {empty}")
    names = ", ".join(name for name in row if not is_empty(row[name]))
    advice = f"--map answer=COLUMN, --kind prompts for questions without answers, or {drop}"
    raise BadRow("answer", f"the columns {names[:200]}", f"the right choice: {expected}", advice)


def letters_or_texts(choices: Choices) -> str:
    """How the right choice may be named, as messages say it."""
    labels = f"one of the labels {', '.join(choices.labels)}" if choices.labels else ""
    return labels or f"a letter from A to {LETTERS[len(choices.texts) - 1]}, or a choice's text"


def first_place(name: str, choices: Choices) -> int | None:
    """What numbers count from where no row shows it: by the choices' columns, or as an index counts."""
    indices = ("answer_idx", "answer_index", "correct_option", "label")
    return 0 if choices.first is None and name in indices else choices.first


def picks_of(row: dict, choices: Choices) -> list[tuple[str, object]]:
    """(column, value) of what may say which choice is right; a list of one counts as what it holds."""
    others = (name for name in row if {*words_in(name)} & RIGHT_WORDS and {*words_in(name)} <= PICK_WORDS)
    names = [name for name in dict.fromkeys((*PICK_KEYS, *others)) if name not in choices.columns]
    values = [(name, row[name]) for name in names if not is_empty(row.get(name))]
    return [(name, value[0] if isinstance(value, list) and len(value) == 1 else value) for name, value in values]


def places_of(word: str, texts: list[str]) -> list[int]:
    """Where a text stands in a list; in another case where it does not stand there as it is."""
    exact = [place for place, text in enumerate(texts) if text == word]
    return exact or [place for place, text in enumerate(texts) if text.lower() == word.lower()]


def named_place(value, choices: Choices) -> int | None:
    """The place of the choice that a value names by its label, text or letter, or by truth values; numbers aside."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    word, texts, labels = str(value).strip(), choices.texts, choices.labels
    columns = choices.columns if len(choices.columns) == len(texts) else ()
    texts_too = [] if as_number(value, choices) is not None else [texts]
    for names in ([*columns], labels, *texts_too):
        if len(places := places_of(word, names)) == 1:
            return places[0]
    match = re.fullmatch(r"(?i:option |choice |answer )?[(\[]?([a-zA-Z])[\])]?[.:]?(?:[)\s]\s*(.+))?", word, re.DOTALL)
    place = LETTERS.index(match[1].upper()) if match else len(texts)
    fits = place < len(texts) and (not labels or is_letters(labels)) and match[2] in (None, texts[place])
    return place if fits else None


def is_letters(labels: list[str]) -> bool:
    """Whether labels are A, B, C, … in order."""
    return [label.upper() for label in labels] == list(LETTERS[: len(labels)])


def as_number(value, choices: Choices) -> int | None:
    """The number of a choice that a cell holds; None where choices have numbers as labels."""
    word = str(value).strip()
    whole = isinstance(value, int | str) and word.isascii() and word.isdigit() and len(word) < 3
    return int(word) if whole and (not choices.labels or is_letters(choices.labels)) else None


def first_number(row: dict) -> int | None:
    """What a row shows of how its file counts choices: 0 or 1, or None where its number may be either."""
    try:
        choices = choices_of(row)
    except BadRow:
        return None
    picks = [value for _, value in picks_of(row, choices)] if choices and choices.right is None else []
    if any(named_place(value, choices) is not None for value in picks):
        return None
    numbers = [as_number(value, choices) for value in picks if not places_of(str(value).strip(), choices.texts)]
    return 0 if 0 in numbers else 1 if choices and len(choices.texts) in numbers else None


def with_choices(question: str, texts: list[str]) -> str:
    """The question and its choices, each with its letter; a question that has them already, as it is."""
    pairs = list(zip(LETTERS, texts, strict=False))
    marks = [re.match(rf"(?i)\(?{letter}[).:]\s*", text) for letter, text in pairs]
    bare = [text[mark.end() :] for text, mark in zip(texts, marks, strict=True)] if all(marks) else texts
    if all(
        re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question)
        for letter, text in zip(LETTERS, bare, strict=False)
    ):
        return question
    upper = all(marks) and all(mark[0].isupper() for mark in marks)
    lines = texts if upper else [f"{letter}. {text}" for letter, text in zip(LETTERS, bare, strict=False)]
    return "\n".join([question.rstrip(), "", *lines])
