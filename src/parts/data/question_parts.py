"""Detect columns that look like part of the question but are not in the prompt."""

import contextlib
import functools
import json
import re

from parts.data.data_files import PROMPT_TEXTS

SHORT_NOTES = ("narrative", "puzzle", "premises", "clues")  # some files hold a name or a count in these columns
# texts that a question is about, in the order in which they precede it
READ_FIRST = (
    *("pre_text", "context", "contexts", "ctx", "passage", "passages", "article", "body", "story", "background"),
    *("document", "documents", "doc", "docs", "paragraph", "paragraphs", "premise", "hypothesis", "support"),
    *("dialogue", "dialog", "schema", "table", "tables", "scenario", "excerpt", *SHORT_NOTES, "post_text"),
)
# either part of the question or notes about it
DOUBTFUL = (
    *("hint", "hints", "fact", "facts", "evidence", "evidences", "history", "sentence1", "sentence2", "sent1", "sent2"),
    *("starter_code", "abstract", "essay", "knowledge", "situation", "transcript", "vignette", "email", "snippet"),
    *("constraints", "input_format", "output_format", "input_description", "output_description", "search_results"),
    *("statement", "statements", "claim", "conclusion", "theory", "tools", "functions", "responses_create_params"),
    *("source_text", "reference_text", "full_text", "kontext", "textabschnitt", "contexte", "contexto", "passaggio"),
    *("上下文", "背景", "文章", "材料", "原文", "段落"),
)
MEDIA = {"image", "picture", "figure", "img", "photo", "video", "audio", "diagram", "screenshot", "frame"}
MEDIA_ENDS = {"url", "uri", "link", "path", "file", "byte", "base", "data", "list", "caption", "description"}
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # in JSON Schema
JSON_SCHEMA_KEYS = {"$schema", "$ref", "anyOf", "oneOf", "allOf"}
NOTE_WORDS = {*"supporting gold answer output response correct solution is has num truth expected".split()}
SYSTEM = re.compile(r"system|sys(tem)?_?(prompt|message|msg|instructions?)")
TOOLS = ("tools", "functions")
TOOL_NAME = re.compile(r"""(["'])name\1: ?(["'])([^"']+)\2""")
SQL = re.compile(r"\s*SELECT\b(?s:.*)\bFROM\b")
CHOICE_KEYS = (
    *("choices", "options", "answer_choices", "answer_options", "endings", "choice", "candidates", "alternatives"),
    *("mc1_targets", "answers", "distractors", "incorrect_answers", "answer_option_list"),
)
NUMBER_KEYS = ("label", "gold_label", "correct", "correct_option", "answer_idx", "answer_index", "cop")
# one choice per column: A, optionB, option_1, opa, sol2, ending0, mc_answer4, "Incorrect Answer 3"
ONE_CHOICE = re.compile(
    r"((?i:op(?=[A-Da-d])|opt(?:ion)?|choice|(?:mc_?)?answer|ans|sol|ending|candidate|alternative|distractor"
    r"|(?:incorrect|wrong)_?answer)_?)([A-Ja-j]|\d\d?)|([A-Ja-j])"
)
WRONG = re.compile(r"(?i)distractor|incorrect|wrong")  # columns of wrong choices


def plain_name(name: str) -> str:
    """A column's name in snake case: `Correct Answer` becomes `correct_answer`."""
    return re.sub(r"[\s-]+", "_", name.strip()).lower()


@functools.lru_cache(4096)
def names_part(name: str) -> bool:
    """Whether a column's name says that it holds a part of the question."""
    if plain_name(name) in (*READ_FIRST, *DOUBTFUL, *PROMPT_TEXTS) or is_system(name):
        return True
    words = words_in(name)
    is_part = is_media(name) or (len(words) > 1 and head_of(name) in (*READ_FIRST, *DOUBTFUL))
    return is_part and not NOTE_WORDS & {*words}


def is_system(name: str) -> bool:
    """Whether a column's name says that it holds a system prompt."""
    return SYSTEM.fullmatch(plain_name(name)) is not None


def head_of(name: str) -> str:
    """The head noun of a column's name: "passage" in `flores_passage` and `passage_text`; "" in a name of digits."""
    stems = [word.removesuffix("s") for word in words_in(name)] or [""]
    return stems[-2] if len(stems) > 1 and stems[-1] in ("text", "content") else stems[-1]


def words_in(name: str) -> list[str]:
    """The words of a column's name in snake or camel case, in lower case."""
    return re.findall(r"[^\W\d_]+", plain_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)))


def is_media(name: str) -> bool:
    """Whether a column's name says that it holds images, video or sound, or their location."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return bool(MEDIA & {*stems}) and stems[-1] in MEDIA | MEDIA_ENDS


@functools.lru_cache(4096)
def choice_families(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Groups of columns that may hold one choice each, such as A, B, C."""
    families = {}
    for name in names:
        if match := ONE_CHOICE.fullmatch(re.sub(r"[\s-]+", "_", name)):
            prefix, mark = match[1] or str(match[3].isupper()), match[2] or match[3]
            place = int(mark) if mark.isdigit() else ord(mark.lower()) - ord("a")
            families.setdefault(prefix.lower(), {})[place] = name
    complete = []
    for prefix, family in families.items():
        least = 4 if prefix == "false" else 1 if WRONG.match(prefix) else 2  # `a` and `b` alone are often two numbers
        if min(family) < 2 and len(family) >= least and max(family) - min(family) + 1 == len(family):
            complete.append(tuple(family[place] for place in sorted(family)))
    return complete


def choice_columns(row: dict) -> tuple[str, ...]:
    """The column or columns that hold the choices of a question; () if there are none."""
    listed = [name for name in CHOICE_KEYS if isinstance(row.get(name), str | list | dict)]
    for name in listed:
        value = row[name].strip() if isinstance(row[name], str) else row[name]
        several = isinstance(value, list) and len(value) > 1 and row.get("answer") is None
        numbered = any(row.get(number) is not None for number in NUMBER_KEYS)
        is_one = name == "choice" and isinstance(value, str)
        are_accepted = name == "answers" and not (several and numbered)  # ReClor's are choices
        if value not in ("", "[]", "{}", [], {}) and not is_one and not are_accepted:
            return (name,)
    for family in choice_families(tuple(row)):
        given = tuple(name for name in family if not is_empty(row[name]))
        if len(given) > 1 or (given and WRONG.match(given[0])):
            return given if given == family[: len(given)] else family
    return ()


def is_empty(value) -> bool:
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def texts_in(value) -> list[str]:
    """Every text and number in a nested value, without the roles of chat messages."""
    if isinstance(value, dict | list):
        inner = value if isinstance(value, list) else [item for key, item in value.items() if key != "role"]
        return [text for item in inner for text in texts_in(item)]
    return [] if value is None or isinstance(value, bool) else [value if isinstance(value, str) else repr(value)[:100]]


def squeezed(text: str) -> str:
    """A text with one blank between its words."""
    return " ".join(text.split())


def is_json_schema(name: str, value) -> bool:
    """Whether a `schema` column holds a JSON Schema, which a reward checks against, and not tables of a database."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value) if isinstance(value, str) and head_of(name) == "schema" else value
    if not isinstance(value, dict) or head_of(name) != "schema":
        return False
    properties = value.get("properties")
    has_types = isinstance(properties, dict) and all(isinstance(one, dict | bool) for one in properties.values())
    return has_types or str(value.get("type")) in JSON_TYPES or bool(value.keys() & JSON_SCHEMA_KEYS)


def unread_parts(row: dict, prompt) -> list[str]:
    """Columns that look like part of the question but whose text is not in the prompt (a text or messages)."""
    choices = choice_columns(row)
    names = [name for name in dict.fromkeys([*filter(names_part, row), *choices]) if not is_empty(row[name])]
    names = [name for name in names if row[name] != prompt and not is_json_schema(name, row[name])]
    if not names:
        return []
    whole = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    asked, parts, unread = squeezed(whole), [squeezed(part) for part in whole.split("\n\n")], []
    has_letters = all(re.search(rf"\b{letter}\s?[).:、．]", asked, re.IGNORECASE) for letter in "AB")  # choices A, B
    for name in names:
        inside = [squeezed(text) for text in texts_in(row[name])]
        if name in TOOLS:  # a chat template may write them in another form
            inside = [match[3] for match in TOOL_NAME.finditer(str(row[name]))]
        is_note = isinstance(row[name], int | float) and name not in choices
        is_note = is_note or (name == "query" and SQL.match(str(row[name])) is not None)  # Spider's gold
        is_whole = name in PROMPT_TEXTS and len(inside) == 1 and all(part in inside[0] for part in parts)  # Alpaca's
        is_there = all(text in asked for text in inside) and (name not in choices or has_letters)
        if not is_note and not is_whole and not is_there:
            unread.append(name)
    return unread
