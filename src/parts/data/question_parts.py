"""Detect columns that look like part of the question but are not in the prompt, and odd answers and prompts."""

import builtins
import contextlib
import functools
import json
import keyword
import re
import reprlib
import shlex
from collections import Counter
from collections.abc import Sequence

from parts.data.answer_marks import accepted, marked_gold
from parts.data.nested_rows import DIALOGUE, holds_answer
from parts.data.stated_answers import with_point
from parts.foundation.bundle import in_bundle
from parts.foundation.messages import say

SHORT_NOTES = ("narrative", "puzzle", "premises", "clues")  # some files hold a name or a count in these columns
# texts that a question is about, in the order in which they precede it
READ_FIRST = (
    *("pre_text", "context", "contexts", "ctx", "passage", "passages", "article", "body", "story", "background"),
    *("document", "documents", "doc", "docs", "para", "paragraph", "paragraphs", "premise", "hypothesis", "support"),
    *("dialogue", "dialog", "schema", "table", "tables", "scenario", "excerpt", *SHORT_NOTES, "post_text"),
)
# either part of the question or notes about it
DOUBTFUL = (
    "hint hints fact facts evidence evidences history sentence1 sentence2 sent1 sent2 starter_code abstract essay "
    "knowledge situation transcript vignette email snippet constraints input_format output_format input_description "
    "output_description search_results statement statements claim conclusion theory tools functions "
    "responses_create_params prev_messages previous_messages previous_turns past_turns context_turns source_text "
    "reference_text full_text kontext textabschnitt contexte contexto passaggio 上下文 背景 文章 材料 原文 段落"
).split()
SECOND_TEXTS = ("prompt", "question", "problem", "query", "instruction", "text", "input", "description")
MEDIA = {"image", "picture", "figure", "img", "photo", "video", "audio", "diagram", "screenshot", "frame"}
MEDIA_ENDS = {"url", "uri", "link", "path", "file", "byte", "base", "data", "list", "caption", "description"}
PLACE = r"<(?:\|?(?:start_of_)?(?:image|video|audio)(?:[_ ]?(?:\d+|pad|placeholder))?\|?|\|vision_(?:start|end)\|)>"
BRACKETED = r"\[(?:image|IMG)\]"  # after a word it may be a blank to fill in, so it counts at the start of a prompt
MARKS = re.compile(rf"{PLACE}|(?<!\w){BRACKETED}")
PLACED = re.compile(rf"\A\s*(?:{PLACE}|{BRACKETED})|{PLACE}(?=\s*$)", re.MULTILINE)  # at the start or a line's end
HTML_TAGS = ("<image>", "<video>", "<audio>")
# before a placeholder: a word or an option, as in "the <image>" and "A) <image>"
NO_PLACE = re.compile(r"(?i)(?:\b(?:with|the|an?)|(?:\A|\n)\s*(?:\(?\w[.):]|[*-])|\b[A-J]\))\s*\Z")
HTML = re.compile(
    r"(?i)</(video|audio|image)>|\b(html5?|elements?|(?<![>`] )tags?)\b"
    r"|</?(!doctype|html|head|body|div|span|p|a|[uo]l|li|h[1-6]|table|br|img|source|track|svg|script|style)\b"
)
TRUTH = "TRUE|FALSE|WAHR|FALSCH|VRAI|FAUX|VERDADERO|VERDADEIRO|VERO|FALSO|WAAR|ONWAAR|ИСТИНА|ЛОЖЬ"  # spreadsheets'
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # in JSON Schema
SCHEMA_KEYS = {"$schema", "$ref", "anyOf", "oneOf", "allOf"}
NOTE_WORDS = {*"supporting gold answer output response correct solution is has num truth expected".split()}
SYSTEM = re.compile(r"system|sys(tem)?_?(prompt|message|msg|instructions?)")
TOOLS = ("tools", "functions")
TOOL_NAME = re.compile(r"""(["'])name\1: ?(["'])([^"']+)\2""")
TEST_NAMES = ("tests", "test_list", "unit_tests", "test")
CALL_NAME = re.compile(r"(?<![.\w])([A-Za-z_]\w*)\(")
BOUND = re.compile(r"\b(?:def|class|import|as|for)\s+(\w+)|\b(\w+)\s*=(?!=)")  # names that tests define
UNNAMED = "do not name the function that their tests call, so right programs fail; try adding its name, or the tests"
SQL = re.compile(r"\s*SELECT\b(?s:.*)\bFROM\b")
SINGLE = "[A-J]|true|True|false|False"  # letters of choices, truth values
CHOICE_KEYS = (
    "choices options answer_choices answer_options endings choice candidates alternatives mc1_targets answers "
    "distractors incorrect_answers"
).split()
NUMBER_KEYS = ("label", "gold_label", "correct", "correct_option", "answer_idx", "answer_index", "cop")
# one choice per column: A, optionB, option_1, opa, sol2, ending0, mc_answer4, "Incorrect Answer 3"
ONE_CHOICE = re.compile(
    r"((?i:op(?=[A-Da-d])|opt(?:ion)?|choice|(?:mc_?)?answer|ans|sol|ending|candidate|alternative|distractor"
    r"|(?:incorrect|wrong)_?answer)_?)([A-Ja-j]|\d\d?)|([A-Ja-j])"
)
WRONG = re.compile(r"(?i)distractor|incorrect|wrong")  # columns of wrong choices
MISSING = (
    r"\s*(#(N/A|REF!|DIV/0!|NAME\?|VALUE!|NUM!|NULL!)|#{3,}|N/?A|n/a|[Nn]a[Nn]|null|NULL|None|\\N|-+|\?+"
    r"|proof|not ?found|No answer provided)\s*"
)
MISSING_TEXT = re.compile(MISSING, re.IGNORECASE)
TRACES = {"trajectory", "rollout", "attempt", "attempts", "critique", "judge", "generation"}  # what a model did
REPLIES = ("assistant", "gpt", "bot", "model")
LOST_BACKSLASH = re.compile(r"[\x08\f][a-z]|\t(?:ext|imes|heta|frac)\b|\r(?:ight|angle|ho)\b")
# how spreadsheets rewrite fractions and ratios (as dates, in eight languages) and long numbers (with exponents)
SPREADSHEET = (
    r"(?i:\d\d?([-/]|\. ?)(janv?|ene|gen|fe[bv]|févr|mars?|m[rä][rzt]|a[bpv]r|ma[giy]|mei|jui?[ln]|giu|lug|aug|ago|août"
    r"|sept?|set|o[ckt]t|out|nov|d[eé][cz]|dic)\.?)|\d{4}-\d\d-\d\d[ T]00:00:00|-?\d([.,]\d+)?E\+\d\d"
)
GROUPED_MONEY = r"(?i)[-+]?([€$£¥₹] ?[1-9]\d?\d?\.\d{3}|[1-9]\d?\d?\.\d{3} ?([€£¥₹]|eur(os?)?|usd|dollars?))"
BLANK = r"(?:[^\S\n]|[\u200b-\u200f\u2060\ufeff])"  # also zero-width ones
WHOLE = r"\s*[-+]?\d+\.0\s*"
ODD_ANSWERS = {  # pattern of answers that a reward may misread -> message, with an example in place of {}
    r"\s*": "are empty, which every text contains: a reward may pay all of them; fill them in, or drop the rows",
    MISSING: "look like {}, a missing value or a spreadsheet's error; fill them in, or drop the rows",
    WHOLE: "look like {}: a reward that compares texts pays no integer; in pandas: .astype('Int64')",
    rf"(?!\s*\Z)({BLANK}.*|.*{BLANK})": "have blanks around them, like {}, which a reward may compare; strip them",
    GROUPED_MONEY: "look like {}: graders take the point for a decimal point; write 1200 if it groups thousands",
    SPREADSHEET: "look like {}, as spreadsheets rewrite fractions and long numbers; export the column as text",
    rf"(?s).*(?:{LOST_BACKSLASH.pattern}).*": "have lost backslashes, like {}: in JSON, \\frac is written \\\\frac",
    r"""(?s)b(["']).*\1""": "are bytes as Python prints them, like {}, which pay no answer; decode them",
    r"""=".*"|'-?[\d.,/]+""": "have a spreadsheet's mark of text, like {}, which is no part of the answer; delete it",
    r"[^\d]*(?![0-9０-９])\d.*": "have digits that some graders take for text, like {}; write 0 to 9",
    TRUTH: "are truth values, {}, which pay no Yes and No; write the words that prompts ask for",
    r"""(?s)\s*\[\s*(["']).*\1\s*\]\s*|(\{.*: ?)?array\(\[["'].*""": "are lists as text, like {}; write lists",
}

ODD_PROMPTS = {  # pattern of prompts that are not as their author wrote them -> message
    r'(?s)\A\s*\[\s*".*"\s*\]\s*\Z': "are lists as JSON text; try data_loader.py --map prompt=COLUMN.0",
    r"!\[[^\]]*\]\([^)\s]+\)": "have a Markdown image, which a text model cannot see",
    LOST_BACKSLASH.pattern: "have lost backslashes: in JSON, \\frac is written \\\\frac",
    "Ã[\xa1-\xbf]|â€.": "look like UTF-8 read as cp1252, such as Ã¶ for ö",
    rf"\A{MISSING}\Z": "are a missing value, such as nan or None; fill them in, or drop the rows",
    r"\n\n(?i:nan|none|null|<?no ?input>?)\Z": "end in a missing value, such as nan or <noinput>; empty that column",
    r"(?is)\A(?!.*(?:html|xml|escap|</)).*&(?:[lg]t|amp|quot|nbsp|#\d+);": "have HTML entities, such as &lt; for <",
    r"\bN_00\b|\bnumber0\b": "have placeholders for numbers, such as N_00",
}


def plain_name(name: str) -> str:
    """A column's name in snake case: `Correct Answer` becomes `correct_answer`."""
    return re.sub(r"[\s-]+", "_", name.strip()).lower()


@functools.lru_cache(4096)
def names_part(name: str) -> bool:
    """Whether a column's name says that it holds a part of the question."""
    if plain_name(name) in (*READ_FIRST, *DOUBTFUL, *SECOND_TEXTS) or is_system(name):
        return True
    words = words_in(name)
    if not words or NOTE_WORDS & {*words}:
        return False
    return is_media(name) or (len(words) > 1 and head_of(name) in {*READ_FIRST, *DOUBTFUL})


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
def choice_names(names: tuple[str, ...]) -> tuple[list[str], list[tuple[str, ...]]]:
    """(columns that may hold all choices, groups of columns that hold one choice each, such as A, B, C) of a row."""
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
    listed = [name for name in names if re.fullmatch(r"(?i)\w+_(?:option|choice)s?_list", name)]
    return [*(name for name in CHOICE_KEYS if name in names), *listed], complete


def choice_columns(row: dict) -> tuple[str, ...]:
    """The column or columns that hold the choices of a question; () if there are none."""
    keys, families = choice_names(tuple(row))
    for name in keys:
        value = row[name]
        if is_empty(value) or not isinstance(value, str | list | dict):
            continue
        if isinstance(value, str) and (name == "choice" or value.strip() in ("[]", "{}")):
            continue
        if name == "answers":  # choices in ReClor; in other data sets the accepted answers
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
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def texts_in(value) -> list[str]:
    """Every text and number in a nested value, without the roles of chat messages."""
    if isinstance(value, dict | list):
        inner = value if isinstance(value, list) else [item for key, item in value.items() if key != "role"]
        return [text for item in inner for text in texts_in(item)]
    return [] if value is None or isinstance(value, bool) else [value if isinstance(value, str) else repr(value)[:100]]


def placeholder_in(text: str) -> str | None:
    """The first placeholder of an image, video or sound in a prompt; None if there is none.

    `<image>`, `<video>` and `<audio>` may also be HTML tags: in a text with HTML they count only at the start.
    """
    for place in PLACED.finditer(text):
        may_be_tag = place.start() and place[0] in HTML_TAGS
        if not may_be_tag or not (HTML.search(text) or NO_PLACE.search(text[: place.start()])):
            return place[0].strip()
    return None


def squeezed(text: str) -> str:
    """A text with one blank between its words."""
    return " ".join(text.split())


def is_json_schema(name: str, value) -> bool:
    """Whether a `schema` column holds a JSON Schema, which a reward checks against, and not tables of a database."""
    with contextlib.suppress(ValueError):
        value = json.loads(value) if isinstance(value, str) else value
    if head_of(name) != "schema" or not isinstance(value, dict):
        return False
    properties = value.get("properties")
    typed = isinstance(properties, dict) and all(isinstance(one, dict | bool) for one in properties.values())
    return typed or str(value.get("type")) in JSON_TYPES or bool(SCHEMA_KEYS & value.keys())


def are_earlier_turns(value, prompt) -> bool:
    """Whether a column holds messages that a prompt of one turn may continue, and not that prompt with a reply."""
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    turns = [(item.get("role", item.get("from")), str(item.get("content", item.get("value")))) for item in items]
    messages = [("user", prompt)] if isinstance(prompt, str) else [(turn["role"], turn["content"]) for turn in prompt]
    if len(turns) < 2 or turns[-1][0] not in REPLIES or any(role in REPLIES for role, _ in (turns[0], *messages)):
        return False
    asked, parts = squeezed(messages[-1][1]), [squeezed(part) for part in messages[-1][1].split("\n\n")]
    texts = [squeezed(text) for role, text in turns if role in ("user", "human")]
    return not any(text in asked or any(part and part in text for part in parts) for text in texts)


def whole_text(prompt) -> str:
    """The text of a prompt: itself, or the texts of its messages."""
    return prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)


def unread_parts(row: dict, prompt) -> list[str]:
    """Columns that look like part of the question but whose text is not in the prompt (a text or messages)."""
    choices = choice_columns(row)
    turns = [name for name in row if not (NOTE_WORDS | TRACES) & {*words_in(name)}]
    turns = [name for name in turns if are_earlier_turns(row[name], prompt)]
    names = [name for name in dict.fromkeys([*filter(names_part, row), *choices, *turns]) if not is_empty(row[name])]
    names = [name for name in names if row[name] != prompt and not is_json_schema(name, row[name])]
    names = [n for n in names if n != "evidences" or not re.match(r"\s*\[\s*\[[^\[\]]*\]", str(row[n]))]  # gold triples
    if not names:
        return []
    whole = whole_text(prompt)
    asked, parts, unread = squeezed(whole), [squeezed(part) for part in whole.split("\n\n")], []
    has_letters = all(re.search(rf"\b{letter}\s?[).:、．]", asked, re.IGNORECASE) for letter in "AB")  # choices A, B
    for name in names:
        inside = [squeezed(text) for text in texts_in(row[name])]
        if name in TOOLS:  # a chat template may write them in another form
            inside = [match[3] for match in TOOL_NAME.finditer(str(row[name]))]
        is_note = isinstance(row[name], int | float) and name not in choices
        is_note = is_note or (name in READ_FIRST and MISSING_TEXT.fullmatch(str(row[name])) is not None)
        is_note = is_note or (name == "query" and SQL.match(str(row[name])) is not None)  # Spider's gold
        is_whole = name in SECOND_TEXTS and len(inside) == 1 and all(part in inside[0] for part in parts)  # Alpaca's
        is_there = all(text in asked for text in inside) and (name not in choices or has_letters)
        if not is_note and not is_whole and not is_there:
            unread.append(name)
    return unread


def unnamed_function(row: dict, asked: str) -> str:
    """A message if the tests of a row call functions and its prompt, `asked`, has none of their names, else ""."""
    tests = next((row[name] for name in TEST_NAMES if not is_empty(row.get(name))), "")
    parts = tests if isinstance(tests, list) else [tests]
    cases = [part for part in parts if isinstance(part, dict)]
    source = "\n".join(part for part in parts if isinstance(part, str)).replace("from solution import", "")
    given = [case.get("fn_name") or case.get("function") for case in cases] or [tests and row.get("entry_point")]
    called = CALL_NAME.findall(source) if "assert" in source else []
    names = {str(name).split(".")[-1] for name in given if name} or {*called}
    names -= {*dir(builtins), *keyword.kwlist, "candidate", *(name for pair in BOUND.findall(source) for name in pair)}
    if not names:
        return ""
    known = re.findall(r"\w+", f"{asked} {row.get('setup')} {row.get('test_setup_code')}")
    return UNNAMED if names.isdisjoint(known) else ""


def odd_answers(name: str, values: list, prompts: Sequence = ()) -> list[str]:
    """One message for each kind of answer that a reward may misread; truth values may stay if most prompts name them.

    >>> odd_answers("gold", ["3,5", "4,25", "12"])
    ["2 of 3 values of gold look like '3,5': graders take commas for separators; write a decimal point, and no groups"]
    """
    texts = [str(v).upper() if v is True or v is False else str(v) for v in values if isinstance(v, str | float | bool)]
    odd = {line: [text for text in texts if re.fullmatch(pattern, text)] for pattern, line in ODD_ANSWERS.items()}
    formulas = [text for text in texts if not re.fullmatch(r"\s*([-+]?\d+|NaN)?\s*", text)]
    if any(re.fullmatch(r"\s*[-+]?\d*\.\d*[1-9]\d*\s*", text) for text in texts):  # not a column of integers
        odd[ODD_ANSWERS[WHOLE]] = []
    if odd[ODD_ANSWERS[TRUTH]]:
        asking = sum(re.search(rf"(?i)\b({TRUTH})\b", str(prompt)) is not None for prompt in prompts)
        if 2 * asking > len(prompts):
            odd[ODD_ANSWERS[TRUTH]] = []
    commas = [t for t in formulas if with_point(t) != t and re.fullmatch(r"[-+\d.]*,[\d.,]+(\s?[^\d\s,;]{1,9})?", t)]
    if 2 * len(commas) >= len(formulas) and 20 * len(commas) >= len(texts):
        odd["look like {}: graders take commas for separators; write a decimal point, and no groups"] = commas
    wordy = (text for text in texts if len(text.split()) > 20 and "boxed" not in text)
    unmarked = [text for text in wordy if marked_gold(text) == text.strip()]
    odd["have over 20 words and no marked answer, like {}: no short answer equals them"] = unmarked
    if name != "ground_truth":  # an environment's own
        objects = [value for value in values if isinstance(value, dict) and "text" not in value]
        odd["are objects, like {}, which equal no answer; try data_loader.py, which reads some"] = objects
    several, number = [], re.compile(rf"[-+]?\d[\d.,]*|{SINGLE}")
    for value in (value for value in values if isinstance(value, list)):
        items = [item.replace(",", "") for item in map(str, accepted(value)) if number.fullmatch(item)]
        if len({round(float(i), 2) if re.fullmatch(r"\D?\d+(\.\d*)?", i) else i.lower() for i in items}) > 1:
            several.append(items[:3])
    line = "list several numbers, letters or truth values, like {}, any of which pays; write one text if all are needed"
    odd[line] = several
    findings = ((line.format(reprlib.repr(items[0])), len(items)) for line, items in odd.items() if items)
    return [f"{count} of {len(values)} values of {name} {line}" for line, count in findings]


def odd_prompt(row: dict, prompt) -> list[str]:
    """What is odd about a row's prompt, a text or messages, said of many prompts."""
    message = {"role": "", "content": prompt} if isinstance(prompt, str) else prompt[-1]
    last = str(message["content"])
    is_dialogue = DIALOGUE.match(last) and not last.rstrip().endswith("<think>")
    flaws = (
        (placeholder_in(last), "have an image placeholder, but no image; try data_loader.py with --on_bad skip"),
        (
            message["role"] and holds_answer(f"{last} …"),
            "open an assistant's turn themselves, and a chat template writes another",
        ),
        (message["role"] == "assistant", "end with an answer, which the model continues; try data_loader.py"),
        (holds_answer(last) or is_dialogue, "are dialogues with answers as one text; try a list `messages`"),
        (unnamed_function(row, whole_text(prompt)), UNNAMED),
        *((re.search(pattern, last), line) for pattern, line in ODD_PROMPTS.items()),
    )
    return [line for flaw, line in flaws if flaw]


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> Counter:
    """Warn of odd answers and prompts, and of unread columns, whose counts it returns; `asked`: (row, prompt) pairs."""
    counts, flaws, total = Counter(), Counter(), len(asked)
    for name in ("answer", "final_answer", "expected_answer", "ground_truth"):
        for line in odd_answers(name, [row[name] for row, _ in asked if name in row], [prompt for _, prompt in asked]):
            say(f"warning: {source}: {line}")
    for row, prompt in asked:
        flaws.update(odd_prompt(row, prompt))
        prepared = isinstance(row.get("prompt"), list) and {"source", "id"} <= row.keys()  # by data_loader.py
        counts.update([] if prepared else unread_parts(row, prompt))
    for message, count in flaws.items():
        say(f"warning: {source}: {count} of {total} prompts {message}")
    if counts:
        names = ", ".join(f"{name} (in {count} of {total} rows)" for name, count in counts.items())
        got = f"got columns that look like a part of the question but are in no prompt: {names}"
        command = f"python {in_bundle('scripts/data_loader.py')} {source} --out FILE.jsonl"
        say(f"warning: {source}: {got}; try `{command}`, or --drop {shlex.join(counts)} with it to leave them out")
    return counts
