"""Tell a row's form by the names of its fields, and convert it."""

import functools
import re

from parts.data.nested_rows import with_chats
from parts.data.question_parts import CHOICE_KEYS, READ_FIRST, choice_columns, plain_name
from parts.foundation.messages import need, suggest
from programs.data_loader.answers import marks_answer, names_value
from programs.data_loader.bad_rows import KINDS, BadRow, Names, as_plain, opened, shown
from programs.data_loader.forms import FORMS, FileFacts, Shape

TEST_SOURCE = re.compile(r"^(def (check\(|test)|assert\b|class \w+\(.*TestCase)", re.MULTILINE)


def form_of(row: dict) -> str | None:
    """A row's form by its fields: a kind, `ours`, `verl`, or None."""
    names = tuple(name for name in present(row) if name != "target" or not is_countdown(row))
    form = form_of_fields(names, isinstance(row.get("prompt"), list))
    if form in (None, "prompts", "math") and choice_columns(row) and {*names} & {*Names.CHOICE_PROMPT}:
        return "choices"
    about = opened(row.get("verification_info"))  # PrimeIntellect's: tests, or an answer
    if form == "math" and isinstance(about, dict) and about.get("test_cases") is not None:
        return "code"
    if form == "prompts" and repeats_prompt(row):
        return "conversations"  # UltraChat's
    if form == "prompts":
        if any(marks_answer(row.get(name)) for name in ("answer", "solution")) or names_value(row.get("solution")):
            return "math"
        if isinstance(row.get("test"), str) and TEST_SOURCE.search(row["test"]):
            return "code"  # HumanEval's without entry_point
    return form


def is_countdown(row: dict) -> bool:
    """Whether `target` belongs to the Countdown task: an expression of `nums`, or of `numbers`, must reach it."""
    if row.get("nums") is not None:
        return True
    asked = str(next((row[name] for name in Names.PROMPT if row.get(name) is not None), ""))
    named = re.search(rf"(?<![\d.]){re.escape(str(row['target']))}(?!\.?\d)", asked)
    return row.get("numbers") is not None and named is not None


def present(row: dict) -> tuple[str, ...]:
    return tuple(name for name, value in row.items() if value is not None)


def repeats_prompt(row: dict) -> bool:
    """Whether the prompt only repeats the first user turn of a conversation in another column."""
    turns = next((row[name] for name in Names.CHAT if isinstance(row.get(name), list)), [])
    asked = [x for x in turns if isinstance(x, dict) and x.get("role", x.get("from")) in ("user", "human")]
    texts = [turn.get("content", turn.get("value")) for turn in asked[:1]]
    return isinstance(row.get("prompt"), str) and row["prompt"] in texts


@functools.lru_cache(4096)
def form_of_fields(names: tuple, prompt_is_chat: bool) -> str | None:
    """The first form that fits these names, from the most special to the most general."""
    has = set(names)
    if prompt_is_chat and {"prompt", "source", "id"} <= has:
        return "ours"
    if {"prompt", "data_source", "reward_model"} <= has:
        return "verl"
    if {"chosen", "rejected"} <= has:
        return "preferences"
    asks = has & set(Names.PROMPT)
    if asks and (has & set(Names.TESTS[:-1]) or {"test", "entry_point"} <= has):
        return "code"
    if has & set(Names.CHAT) and "prompt" not in has:
        return "conversations"
    if asks and has & {"completion", "response", "output"}:
        return "prompt_response"
    golds = has & set(Names.GOLD) - ({"label"} if asks == {"text"} else set())  # a text's label is a class
    if asks and golds - ({"answer"} if not has & {"question", "problem"} else set()):  # a solution may be a program
        return "math"
    return "prompts" if asks else None


def kind_of(row: dict) -> str:
    marks = (("tests", "code"), ("chosen", "preferences"), ("completion", "prompt_response"), ("answer", "math"))
    return next((kind for name, kind in marks if name in row), "prompts")


def normalise(row: dict, kind: str = "auto") -> dict:
    """Return a raw row converted to the schema, or raise BadRow; the row itself is not changed."""
    check_kind(kind)
    if not isinstance(row, dict):
        raise BadRow("row", f"{type(row).__name__} {shown(row)}", "an object with named fields")
    row = known_names(with_chats(as_plain(row)))
    return convert(row, form_of(row) or "prompts" if kind == "auto" else kind, FileFacts()).out


def known_names(row: dict) -> dict:
    """A row with known column names, such as `question` for `Question`; OpenBookQA's question object is unpacked."""
    question = row.get("question")
    if isinstance(question, dict) and isinstance(question.get("stem"), str):
        row = {**{name: value for name, value in row.items() if name != "question"}, **question}
        row["question"] = row.pop("stem")
    new = new_names(tuple(row))
    return {new.get(name, name): value for name, value in row.items()} if new else row


@functools.lru_cache(4096)
def new_names(names: tuple[str, ...]) -> dict[str, str]:
    """{name: known name that differs in case, blanks or dashes only}; {} for rows of this script and of verl."""
    if {"prompt", "source", "id"} <= {*names} or {"data_source", "reward_model"} <= {*names}:
        return {}
    known = {*Names.PROMPT[:5], *Names.ANSWER, *READ_FIRST, *CHOICE_KEYS, *Names.RESPONSE}
    known |= {"correct", "answer_key", "chosen", "rejected"}
    plain_names = {plain_name(name): name for name in reversed(names)}
    return {name: plain for plain, name in plain_names.items() if plain in known and plain not in names}


def convert(row: dict, form: str, facts: FileFacts) -> Shape:
    """Convert a row of a known form; `out` of the result is the row in the schema."""
    if form in KINDS:  # files of this script and of verl may be given with any kind
        by_fields = form_of_fields(present(row), True)
        form = by_fields if by_fields in ("ours", "verl") and isinstance(row.get("prompt"), list) else form
    shape = Shape(dict(row), facts)
    FORMS[form](shape)
    shape.finish()
    return shape


def check_kind(kind: str) -> None:
    known = ["auto", *KINDS]
    need(kind in known, f"got kind {kind!r}; expected one of {', '.join(known)}{suggest(str(kind), known)}")
