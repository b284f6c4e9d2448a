"""Questions with choices: find the choices of a row, and which one is right."""

import contextlib
import random
import re
import shlex
import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from parts.data.answer_marks import marked_gold
from parts.data.question_parts import ONE_CHOICE, WRONG, choice_columns, is_empty, words_in
from programs.data_loader.bad_rows import BadRow, opened, shown

LETTERS = string.ascii_uppercase
SCALAR = str | int | float
RIGHT_KEYS = ("correct_answer", "best_answer", "answer", "correct")  # columns beside those of wrong answers
RIGHT_WORDS = {"answer", "ans", "correct", "right", "gold", "key", "truth"}
PICK_WORDS = RIGHT_WORDS | {
    *"option choice label letter index idx number num value true the is ground expected final reference".split()
}
COUNT_FROM_0 = ("answer_idx", "answer_index", "correct_option", "label")  # as an index does
PICK_KEYS = ("cop", "label", "labels", "target")  # columns without these words that may say which choice is right
LABEL = re.compile(r"[A-Za-z]|\d\d?")
LABEL_END = re.compile(r"([A-Ja-j]|\d\d?)$")
CHOICE_TEXTS = ("text", "texts", "content", "option", "choice", "choices", "options", "answer", "value")
LABEL_KEYS = ("label", "key", "letter", "id", "identifier", "option")
LETTERED = re.compile(r"(?is)(?<![a-z])a(?![a-z]).*(?<![a-z])b(?![a-z])")
LETTER_ALONE = "rows have a letter as answer, but no choices in the prompt"  # noted if half of the rows are so


@dataclass
class Choices:
    """The choices of a row, and how it names the right one."""

    columns: tuple[str, ...]
    texts: list[str]
    labels: list[str] = field(default_factory=list)  # the row's names of the choices
    right: int | None = None  # index of the right choice, if the columns themselves say it
    first: int | None = None  # number of the first choice in published data of this form; None: unknown

    @property
    def are_lettered(self) -> bool:
        """Whether the choices have no labels but A, B, C, … in order."""
        return [label.upper() for label in self.labels] in ([], list(LETTERS[: len(self.labels)]))


def choices_of(row: dict) -> Choices | None:
    """The choices of a row; None if no column looks like choices, BadRow if they have no known form."""
    columns = choice_columns(row)
    if not columns:
        return None
    if WRONG.match(columns[0]):
        choices = from_wrong(row, columns)
    elif len(columns) == 1:
        choices = from_value(columns[0], row[columns[0]])
    else:
        choices = from_columns(row, columns)
    if choices is None or not 1 < len(choices.texts) <= len(LETTERS) or "" in choices.texts:
        expected = "2 to 26 choices: a list of texts, {text, label} or {A: text}"
        got = ", ".join(f"{name} {shown(row[name])}" for name in columns)
        raise BadRow(columns[0], got, expected, f"--drop {shlex.join(columns)} if these are not choices")
    return choices


def from_columns(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """Choices with a column each, named by a letter (a label) or a number (from which numbers count)."""
    if any(not isinstance(row[name], SCALAR) for name in columns):
        return None
    marks = [LABEL_END.search(name)[1] for name in columns]
    texts, stem = [str(row[name]).strip() for name in columns], columns[0][: -len(marks[0])].lower()
    if marks[0].isdigit():  # PIQA's and COPA's `label` counts from 0, though their columns count from 1
        from_zero = stem in ("sol", "choice") and row.get("label") is not None
        return Choices(columns, texts, first=0 if from_zero else int(marks[0]))
    return Choices(columns, texts, [mark.upper() for mark in marks], first={"op": 0, "answer": 1}.get(stem))


def from_wrong(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """The right answer and the wrong ones, shuffled by a seed made of their texts."""
    right = next((name for name in RIGHT_KEYS if isinstance(row.get(name), SCALAR)), None)
    wrong = row[columns[0]] if isinstance(row[columns[0]], list) else [row[name] for name in columns]
    texts = [row.get(right), *wrong]
    if right is None or not all(isinstance(text, SCALAR) for text in texts):
        return None
    texts, order = [str(text).strip() for text in texts], list(range(len(texts)))
    random.Random("\n".join(texts)).shuffle(order)
    return Choices((*columns, right), [texts[index] for index in order], right=order.index(0))


def from_value(name: str, value) -> Choices | None:
    """Choices in one column: a list, objects, ARC's {"text", "label"}, MedQA's {"A": text}, or one of these as text."""
    value = opened(value)
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 1 for item in value):
        value = [item[0] for item in value]  # TAL-SCQ5K's
    if isinstance(value, list) and all(isinstance(item, dict) and len(item) == 1 for item in value):
        pairs = {key: text for item in value for key, text in item.items()}  # NeMo Gym's [{"A": …}, {"B": …}]
        value = pairs if len(pairs) == len(value) else value
    labels = []
    if isinstance(value, dict):
        listed = next((key for key in CHOICE_TEXTS if isinstance(value.get(key), list)), None)
        if "labels" in value:  # truth values, as TruthfulQA has them
            return None
        if listed:
            labels, value = value.get("label") or [], value[listed]
        else:
            value = {key: item for key, item in value.items() if not is_empty(item)}
            if not all(LABEL.fullmatch(key) or ONE_CHOICE.fullmatch(key) for key in value):
                return None
            labels = [key if LABEL.fullmatch(key) else LABEL_END.search(key)[1] for key in value]
            value = list(value.values())
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        text = next((key for key in CHOICE_TEXTS if key in value[0]), None)
        label = next((key for key in LABEL_KEYS if key in value[0] and key != text), None)
        labels = [item.get(label) for item in value] if label else []
        value = [item.get(text) for item in value]
    while isinstance(value, list) and not labels and value and is_empty(value[-1]):
        value = value[:-1]
    plain = isinstance(value, list) and all(isinstance(text, SCALAR) for text in value)
    if not plain or not isinstance(labels, list) or len(labels) not in (0, len(value)):
        return None
    texts, labels = [str(text).strip() for text in value], [str(label).strip() for label in labels]
    return Choices((name,), texts, labels, first=0 if name in ("choices", "choice", "endings", "answers") else None)


def picked(row: dict, choices: Choices, first: int | None, as_texts: frozenset[str]) -> tuple[str, str, list[str]]:
    """(Letter of the right choice, the column that names it, notes on other columns and numbers); BadRow if unclear.

    `first`: number of the first choice in this file, if known; `as_texts`: columns whose numbers are choices' texts.
    """
    if choices.right is not None:
        return LETTERS[choices.right], choices.columns[0], []
    cells, start = cells_of(row, choices), choices.first if first is None else first
    places = {name: possible_places(name, value, choices, start, as_texts) for name, value in cells.items()}
    named = [name for name, value in cells.items() if named_place(value, choices) is not None]
    name = next((name for name in [*named, *cells] if places[name] != []), None)
    if name is None or places[name] is None:
        refuse_pick(row, choices, name or next(iter(cells), None), first, as_texts)
    value, options, others = cells[name], places[name], [places[other] or [] for other in cells if other != name]
    agreed = [place for place in options if any(place in other for other in others)]
    if len(options) > 1 and not agreed and first is None and isinstance(value, str):
        raise BadRow(name, f"{shown(value)}, the text of one choice and the number of another", "a letter")
    agreed = agreed if len(agreed) == 1 else []  # two ways to read both columns decide nothing
    place = (agreed or options)[0]
    notes = []
    for other in cells:
        unread = places[other] == [] and as_number(cells[other], choices) is not None  # a number past the last choice
        if unread or place not in (places[other] or [place]):
            notes.append(f"rows name another choice in {other}; {name} is taken")
    number = as_number(value, choices)
    is_open = number is not None and name not in named and first is None and 0 < number < len(choices.texts)
    if is_open and not agreed and len(choices.columns) == 1 and place == number - (start or 0):
        notes.append(f"rows name the right choice by a number in {name}; it was read as counting from 0")
    return LETTERS[place], name, notes


def possible_places(name: str, value, choices: Choices, start: int | None, as_texts) -> list[int] | None:
    """Indices of the choices that a cell may name, the likeliest first; None if its number may count from 0 or 1."""
    if (place := named_place(value, choices)) is not None:
        return [place]
    number, same = as_number(value, choices), places_of(value, choices.texts)
    same = same if len(same) == 1 else []
    if number is None or name in as_texts:
        return same
    if start is None and name not in COUNT_FROM_0:
        return None
    place = number - (start or 0)
    return list(dict.fromkeys([*([place] if place in range(len(choices.texts)) else []), *same]))


def refuse_pick(row: dict, choices: Choices, name: str | None, first: int | None, as_texts) -> None:
    """Raise BadRow for a row that does not say which choice is right; `name`: the column that should."""
    count = len(choices.texts)
    names = f"one of the labels {', '.join(choices.labels)}" if choices.labels else ""
    names = names or f"a letter from A to {LETTERS[count - 1]}, or a choice's text"
    drop = f"--drop {shlex.join(choices.columns)}"
    if name is None:
        filled = ", ".join(name for name in row if not is_empty(row[name]))
        advice = f"--map answer=COLUMN, --kind prompts for questions without answers, or {drop}"
        raise BadRow("answer", f"the columns {filled[:200]}", f"the right choice: {names}", advice)
    if (
        choices.first is None
        and first is None
        and as_number(row[name], choices) is not None
        and name not in COUNT_FROM_0
    ):
        got = f"{row[name]}; no row shows whether numbers count from 0 or from 1"
        raise BadRow(name, got, names, f"--map answer_index={name} if they count from 0, or letters")
    counts = not choices.labels and name not in as_texts
    numbers = f"a number from {first or 0} to {count - 1 + (first or 0)}, " if counts else ""
    advice = f"--on_bad skip if several are right, or {drop}"
    raise BadRow(name, shown(row[name]), f"the right choice: {numbers}{names}", advice)


def cells_of(row: dict, choices: Choices) -> dict:
    """{column: value} of columns that may say which choice is right; a list of one is unpacked."""
    others = [name for name in row if {*words_in(name)} & RIGHT_WORDS and {*words_in(name)} <= PICK_WORDS]
    names = [name for name in dict.fromkeys([*others, *PICK_KEYS]) if name not in choices.columns]
    cells = {name: row[name] for name in names if not is_empty(row.get(name))}
    return {name: cell[0] if isinstance(cell, list) and len(cell) == 1 else cell for name, cell in cells.items()}


def places_of(value, texts: list[str]) -> list[int]:
    """Indices of a value's text in a list; case is ignored if there is no exact match."""
    word = str(value).strip()
    exact = [place for place, text in enumerate(texts) if text == word]
    return exact or [place for place, text in enumerate(texts) if text.lower() == word.lower()]


def named_place(value, choices: Choices) -> int | None:
    """Index of the choice that a value names by label, text or letter, not by number; None without one."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    texts = choices.texts
    columns = choices.columns if len(choices.columns) == len(texts) else ()
    texts_too = [] if as_number(value, choices) is not None else [texts]
    for names in ([*columns], choices.labels, *texts_too):
        if len(places := places_of(value, names)) == 1:
            return places[0]
    letter = r"(?i)(?:option |choice |answer )?[(\[]?([a-z])[\])]?[.:]?(?:[)\s]\s*(.+))?"
    match = re.fullmatch(letter, marked_gold(str(value)), re.DOTALL)  # "The answer is (B)"
    place = LETTERS.index(match[1].upper()) if match and match[1].isascii() else len(texts)
    return place if place < len(texts) and choices.are_lettered and match[2] in (None, texts[place]) else None


def as_number(value, choices: Choices) -> int | None:
    """The number of a choice in a cell; None if it holds none, or if the choices have labels other than letters."""
    word = str(value).strip()
    whole = isinstance(value, int | str) and word.isascii() and word.isdigit() and len(word) < 3
    return int(word) if whole and choices.are_lettered else None


def shown_numbers(row: dict) -> Iterator[tuple[str, int | None]]:
    """(Column, number of the first choice, 0 or 1; None if its numbers are choices' texts) for columns that show it."""
    with contextlib.suppress(BadRow):
        choices = choices_of(row)
        cells = cells_of(row, choices) if choices and choices.right is None else {}
        if any(named_place(value, choices) is not None for value in cells.values()):
            return
        for name, value in cells.items():
            number, same = as_number(value, choices), places_of(value, choices.texts)
            if same and (number or 0) > len(choices.texts):
                yield name, None
            elif not same and number in (0, len(choices.texts)):
                yield name, min(number, 1)


def with_choices(question: str, texts: list[str]) -> str:
    """The question followed by its choices with letters, unless it has them already."""
    marks = [re.match(rf"(?i)\(?{letter}[).:]\s*", text) for letter, text in zip(LETTERS, texts, strict=False)]
    bare = [text[mark.end() :] for text, mark in zip(texts, marks, strict=True)] if all(marks) else texts
    lettered = list(zip(LETTERS, bare, strict=False))
    if all(re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question) for letter, text in lettered):
        return question
    upper = all(marks) and all(mark[0].isupper() for mark in marks)
    lines = texts if upper else [f"{letter}. {text}" for letter, text in lettered]
    return "\n".join([question.rstrip(), "", *lines])
