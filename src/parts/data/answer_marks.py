"""Final answers that worked solutions mark by a last line `#### 42`."""

import ast
import re

HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")  # a letter, or a number with its unit
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?[\d.,/: ]*\d[\d.,/]*\s?[%°$€£]?\.?")
FLOW = (ast.For, ast.While, ast.If, ast.With)
STATEMENTS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, *FLOW)


def is_heading(text: str, mark: re.Match) -> bool:
    """Whether `####` opens a heading or a comment: a title, a long line, or words with text below them."""
    if mark[0][0] != "#":
        return False
    line, _, below = text[mark.start() + 4 :].partition("\n")
    line = line.strip(" \t*_")
    is_title = HEADING.fullmatch(line) or line.endswith((":", "#")) or len(line) > 80
    return bool(is_title) or (below.strip() != "" and not VALUE.fullmatch(line))


def marked_gold(text: str) -> str:
    """Return the text after the last `####` that is not a heading, or the whole text."""
    answers = [mark[1] for mark in HASH.finditer(text) if not is_heading(text, mark)]
    return (answers[-1] if answers else text).strip()


def hash_mark(text: str) -> re.Match | None:
    """The last `####` of a worked solution, its answer in group 1; None where it is a heading, or in code.

    An answer is short. Words stand at the end, where "The answer is: …" may repeat them; a number may have text below.

    >>> hash_mark("2 + 2 = 4\\n#### 4")[1], hash_mark("#### Step 1\\nAdd them: 4.")
    ('4', None)
    """
    marks = list(HASH.finditer(text))
    if not marks:
        return None
    mark = marks[-1]
    answer, before, below = mark[1].strip(), text[: mark.start()], text[mark.end() :].strip()
    if answer and re.fullmatch(rf"(?i)the (final )?answer is:? *{re.escape(answer)}\.?", below):
        text, below = text[: mark.end()], ""
    if before.count("```") % 2 or is_heading(text, mark):
        return None
    is_number = NUMBER.fullmatch(answer) is not None
    if below:  # only a number has text below it, and several are numbered headings
        return mark if is_number and len(marks) == 1 and answer[-1] != "." and not is_program(text) else None
    words = len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))
    most = 0 if before.rpartition("\n")[2].strip() else 5  # a mark inside a line is a number's
    return mark if is_number or not answer or (words <= most and not is_program(before)) else None


def is_program(text: str) -> bool:
    """Whether a text is Python source that does something."""
    try:
        return any(isinstance(node, STATEMENTS) for node in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
