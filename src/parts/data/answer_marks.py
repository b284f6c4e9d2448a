r"""Final answers that worked solutions mark: a last line `#### 42`, or \boxed{42}."""

import ast
import re

BOXED = re.compile(r"\\f?boxed\s*(\{|(?=[^\s{]))")
HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?[\d.,/: ]*\d[\d.,/]*\s?[%°$€£]?\.?")
STATEMENTS = (
    ast.FunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Assign,
)


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


def hash_mark(text: str) -> re.Match | None:
    """The last `####` of a text, its answer in group 1, or None where that is a heading or a comment.

    An answer is short. Words stand at the end, where "The answer is: …" may repeat them; a number may have text below.

    >>> hash_mark("2 + 2 = 4\\n#### 4")[1], hash_mark("#### Step 1\\nAdd them: 4.")
    ('4', None)
    """
    marks = list(HASH.finditer(text))
    if not marks:
        return None
    mark = marks[-1]
    answer, rest = mark[1].strip(), text[mark.end() :].strip()
    repeats = (
        answer and "\n" not in rest and re.fullmatch(rf"(?i)the (final )?answer is:? *{re.escape(answer)}\.?", rest)
    )
    if text[: mark.start()].count("```") % 2:
        return None
    if rest and not repeats:  # only a number has text below it, and several are numbered headings
        is_number = len(marks) == 1 and NUMBER.fullmatch(answer) and not answer.endswith(".")
        return mark if is_number and not is_program(text) else None
    if NUMBER.fullmatch(answer) or not answer:
        return mark
    words = len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))
    most = 0 if text[: mark.start()].rpartition("\n")[2].strip() else 5  # a mark inside a line is a number's
    is_title = HEADING.fullmatch(answer) or answer.endswith((":", "#"))
    if words > most or len(answer) > 120 or is_title or is_program(text[: mark.start()]):
        return None
    return mark


def is_program(text: str) -> bool:
    """Whether a text is Python source that does something."""
    try:
        return any(isinstance(node, STATEMENTS) for node in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
