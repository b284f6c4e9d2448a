"""Warn of answers and prompts that a model or a reward would read otherwise than their author meant."""

import re
import reprlib
import shlex
from collections import Counter
from collections.abc import Sequence

from parts.data.answer_marks import accepted, marked_gold
from parts.data.nested_rows import holds_answer, is_dialogue
from parts.data.question_parts import unread_parts
from parts.data.stated_answers import with_point
from parts.foundation.bundle import in_bundle
from parts.foundation.messages import say

PLACE = r"<(?:\|?(?:start_of_)?(?:image|video|audio)(?:[_ ]?(?:\d+|pad|placeholder))?\|?|\|vision_(?:start|end)\|)>"
BRACKETED = r"\[(?:image|IMG)\]"  # after a word it may be a blank to fill in, so it counts at the start of a prompt
MARKS = re.compile(rf"{PLACE}|(?<!\w){BRACKETED}")
PLACED = re.compile(rf"\A\s*(?:{PLACE}|{BRACKETED})|{PLACE}(?=\s*$)", re.MULTILINE)  # at the start or a line's end
HTML_TAGS = ("<image>", "<video>", "<audio>")
# text on the line before a placeholder: LABELS, such as `Image A:`, confirm it; NO_PLACE makes it a word or an option
LABELS = re.compile(
    r"(?i)\s*(?:(?=.*[^\W\d_]{2})(?:[\w#]+ ?){1,3}:|(?:image|picture|photo|figure|video|clip|audio|sound)\b ?\w?)?\s*"
)
NO_PLACE = re.compile(r"(?i)(?:\b(?:with|the|an?)|\A\s*\(?\w[.):]|\A\s*[*-]|\b[A-J]\))\s*\Z")
HTML = re.compile(
    r"(?i)</(video|audio|image)>|\b(html5?|elements?|(?<![>`] )tags?)\b"
    r"|</?(!doctype|html|head|body|div|span|p|a|[uo]l|li|h[1-6]|table|br|img|source|track|svg|script|style)\b"
)
TRUTH = "TRUE|FALSE|WAHR|FALSCH|VRAI|FAUX|VERDADERO|VERDADEIRO|VERO|FALSO|WAAR|ONWAAR|ИСТИНА|ЛОЖЬ"  # spreadsheets'
SINGLE = "[A-J]|true|True|false|False"  # letters of choices, truth values
MISSING = (
    r"\s*(#(N/A|REF!|DIV/0!|NAME\?|VALUE!|NUM!|NULL!)|#{3,}|N/?A|n/a|[Nn]a[Nn]|null|NULL|None|\\N|-+|\?+"
    r"|proof|not ?found|No answer provided)\s*"
)
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
    LOST_BACKSLASH.pattern: "have lost backslashes: in JSON, \\frac is written \\\\frac",
    "Ã[\xa1-\xbf]|â€.": "look like UTF-8 read as cp1252, such as Ã¶ for ö",
    rf"\A{MISSING}\Z": "are a missing value, such as nan or None; fill them in, or drop the rows",
    r"\n\n(?i:nan|none|null|<?no ?input>?)\Z": "end in a missing value, such as nan or <noinput>; empty that column",
    r"(?is)\A(?!.*(?:html|xml|escap|</)).*&(?:[lg]t|amp|quot|nbsp|#\d+);": "have HTML entities, such as &lt; for <",
    r"\bN_00\b|\bnumber0\b": "have placeholders for numbers, such as N_00",
}


def placeholder_in(text: str) -> str | None:
    """The first placeholder of an image, video or sound in a prompt; None if there is none.

    `<image>`, `<video>` and `<audio>` may also be HTML tags: in a text with HTML they count only at the start.
    """
    is_html = HTML.search(text) is not None
    for place in PLACED.finditer(text):
        before = re.sub("|".join(HTML_TAGS), "", text[: place.start()].rpartition("\n")[2])
        ends = not text[place.end() :].strip()
        is_place = LABELS.fullmatch(before) or (ends and not NO_PLACE.search(before))
        if not place.start() or place[0] not in HTML_TAGS or (is_place and not is_html):
            return place[0].strip()
    return None


def odd_answers(name: str, values: list, prompts: Sequence = ()) -> list[str]:
    """One message for each kind of answer that a reward may misread; truth values may stay if most prompts name them.

    >>> odd_answers("gold", ["3,5", "4,25", "12"])
    ["2 of 3 values of gold look like '3,5': graders take commas for separators; write a decimal point, and no groups"]
    """
    texts = [str(v).upper() if isinstance(v, bool) else str(v) for v in values if isinstance(v, str | float | bool)]
    odd = {line: [text for text in texts if re.fullmatch(pattern, text)] for pattern, line in ODD_ANSWERS.items()}
    if any(re.fullmatch(r"\s*[-+]?\d*\.\d*[1-9]\d*\s*", text) for text in texts):  # not a column of integers
        del odd[ODD_ANSWERS[WHOLE]]
    if 2 * sum(re.search(rf"(?i)\b({TRUTH})\b", str(prompt)) is not None for prompt in prompts) > len(prompts):
        del odd[ODD_ANSWERS[TRUTH]]
    formulas = [text for text in texts if not re.fullmatch(r"\s*([-+]?\d+|NaN)?\s*", text)]
    commas = [t for t in formulas if with_point(t) != t and re.fullmatch(r"[-+\d.]*,[\d.,]+(\s?[^\d\s,;]{1,9})?", t)]
    if 2 * len(commas) >= len(formulas) and 20 * len(commas) >= len(texts):
        odd["look like {}: graders take commas for separators; write a decimal point, and no groups"] = commas
    wordy = (text for text in texts if len(text.split()) > 20 and "boxed" not in text)
    unmarked = [text for text in wordy if marked_gold(text) == text.strip()]
    odd["have over 20 words and no marked answer, like {}: no short answer equals them"] = unmarked
    if name != "ground_truth":  # an environment's own
        objects = [value for value in values if isinstance(value, dict) and "text" not in value]
        odd["are objects, like {}, which equal no answer; try data_loader.py, which reads some"] = objects
    lists = map(distinct_values, (value for value in values if isinstance(value, list)))
    line = "list several numbers, letters or truth values, like {}, any of which pays; write one text if all are needed"
    odd[line] = [items for items in lists if len(items) > 1]
    findings = ((line.format(reprlib.repr(items[0])), len(items)) for line, items in odd.items() if items)
    return [f"{count} of {len(values)} values of {name} {line}" for line, count in findings]


def distinct_values(gold: list) -> list[str]:
    """The numbers, letters and truth values among accepted answers, each value once."""
    texts = {}
    for text in map(str, accepted(gold)):
        if re.fullmatch(rf"[-+]?\d[\d.,]*|{SINGLE}", text):
            plain = text.replace(",", "")
            is_number = not re.match(rf"{SINGLE}|.*\..*\.", plain)  # nor a date
            texts.setdefault(round(float(plain), 2) if is_number else plain.lower(), text)
    return [*texts.values()]


def warn_odd_answers(source: str, rows: list[dict], prompts: Sequence) -> None:
    """Print the messages of `odd_answers` for the columns that rewards compare with."""
    for name in ("answer", "final_answer", "expected_answer", "ground_truth"):
        for line in odd_answers(name, [row[name] for row in rows if name in row], prompts):
            say(f"warning: {source}: {line}")


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> Counter:
    """Warn of odd answers and prompts, and of unread columns, whose counts it returns; `asked`: (row, prompt) pairs."""
    counts, total = Counter(), len(asked)
    prompts = [prompt for _, prompt in asked]
    warn_odd_answers(source, [row for row, _ in asked], prompts)
    for row, prompt in asked:
        prepared = isinstance(row.get("prompt"), list) and {"source", "id"} <= row.keys()  # by data_loader.py
        counts.update([] if prepared else unread_parts(row, prompt))
    last = [prompt[-1] for prompt in prompts if not isinstance(prompt, str)]
    texts = [prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts]
    likely = [text for text in texts if any(word in text for word in ("image", "IMG", "video", "audio", "vision"))]
    flaws = (
        (map(placeholder_in, likely), "have an image placeholder, but no image; try data_loader.py with --on_bad skip"),
        ((holds_answer(f"{m['content']} …") for m in last), "open an assistant's turn themselves; try the question"),
        ((m["role"] == "assistant" for m in last), "end with an answer, which the model continues; try data_loader.py"),
        ((holds_answer(p) or is_dialogue(p) for p in prompts), "are dialogues with answers; try a list `messages`"),
        *((map(re.compile(pattern).search, texts), line) for pattern, line in ODD_PROMPTS.items()),
    )
    for flags, message in flaws:
        if count := sum(map(bool, flags)):
            say(f"warning: {source}: {count} of {total} prompts {message}")
    if counts:
        names = ", ".join(f"{name} (in {count} of {total} rows)" for name, count in counts.items())
        got = f"got columns that look like a part of the question but are in no prompt: {names}"
        command = f"python {in_bundle('scripts/data_loader.py')} {source} --out FILE.jsonl"
        say(f"warning: {source}: {got}; try `{command}`, or --drop {shlex.join(counts)} with it to leave them out")
    return counts
