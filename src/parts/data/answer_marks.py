"""Final answers that worked solutions mark by a last line `#### 42`, or state there."""

import ast
import json
import numbers
import re

from parts.data.stated_answers import has_mark, marks, without_words
from parts.foundation.python_source import parse_python

HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")  # a letter, or a number with its unit
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?[\d.,/: ]*\d[\d.,/]*\s?[%°$€£]?\.?")
# a sentence ends where another one follows; not after initials and short words: J. K. Rowling, St. Louis
SENTENCE_END = re.compile(
    r"(?<=[\d$)}\]%*])\.[*_]*\s+(?=[A-Z])|(?:(?<=\w{3})|(?<=\A\w))\.[*_]*\s+(?=[A-Z]['\w]*(?: [\w']+){2})|[。！？]"
)
NO_STATEMENT = re.compile(r"(?i)#|(?:i|ich|je|elijo|escojo)\b")  # marks that state no gold
# before a mark: what may open its clause, and what makes a condition of it, or a string in a program
LEAD = re.compile(
    r"(?i)\W*+(?:(?:so|thus|hence|therefore|then|finally|and|the|my|our|final|correct|right|best|die|la|[^\x00-\x7f]++)\W*+)*+"
)
NO_CLAUSE = re.compile(r"""(?i)\b(?:if|whether|unless|when)\b|"|\(f?'""")
NO_PROSE = re.compile(r"(?i)[?&.(]\s*\Z|\A(?:\t|  )|\band\b")  # before `answer =`: of a URL, code or SQL
ARGUMENT = r"(?:\d|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})"
# after \boxed: a brace, a word, or one command with its arguments, as \frac12 and \text{B}, if no formula follows
BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-z])\s*"
    rf"(?:\{{|([\w-]+|\\(?!left|begin)[A-Za-z]++(?:\[\w+\])?{ARGUMENT}{{0,2}}+(?!\s*(?:\\[A-Za-z]|[\d{{])))|)"
)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
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
    """Return the text after the last `####` that is not a heading, or what the last line states, or the whole text."""
    text = text.rpartition("</think>")[2]
    answers = [mark[1] for mark in HASH.finditer(text) if not is_heading(text, mark)]
    return (answers[-1] if answers else stated_gold(text) or text).strip()


def stated_gold(text: str) -> str | None:
    """What a last line such as "Answer: 12" or "So the answer is 12." states, where it is short; a last `<answer>`.

    None where a box is cut off; the last one where a line states several.
    """
    tagged = text.rstrip().removesuffix("</answer>")
    if "<answer>" in tagged and tagged != text.rstrip():
        return tagged.rpartition("<answer>")[2].strip()
    *above, line = text.strip().split("\n")
    line = re.sub(r"(?i)\b(?:solution|result)(?= is\b|\W{0,3}:)", "answer", line)
    found = [mark for mark in [*marks(line)][:-4:-1] if "=" not in mark[0] or is_prose(line, mark, "\n".join(above))]
    said = next(filter(None, (statement(line, mark) for mark in found)), None)
    boxes = None if said is None or boxes_in(text) is None else boxes_in(said)
    return None if boxes is None else [said, *boxes][-1]


def is_prose(line: str, mark: re.Match, above: str) -> bool:
    """Whether `answer =` states one: at the start of a line, and in no program, SQL or URL."""
    before, after = line[: mark.start()], line[mark.end() :].rstrip()
    in_code = NO_PROSE.search(before) or after[:1] == "=" or after[-1:] == ";"
    return bool(LEAD.fullmatch(before)) and not in_code and not is_program(above)


def statement(line: str, mark: re.Match) -> str | None:
    """What follows a mark of an answer in its sentence; None where that is long, no answer, or has a further mark.

    Words are an answer only where the mark opens a clause ("So the answer is Paris"), numbers and formulas anywhere.
    """
    said = without_words(SENTENCE_END.split(line[mark.end() : mark.end() + 300], maxsplit=1)[0]).strip("*_ .")
    clause = re.split(r"[.!?,;:]\s", line[: mark.start()])[-1]
    if NO_STATEMENT.match(mark[0]) or NO_CLAUSE.search(clause) or said.count('"') % 2:
        return None
    words = 0 if VALUE.fullmatch(said) else count_words(said)
    is_short = len(said) <= 100 and words < (6 if LEAD.fullmatch(clause) else 1)
    return said if is_short and re.search(r"\w", said) and not has_mark(said) else None


def count_words(answer: str) -> int:
    """Number of words in an answer, not counting single letters, numbers and LaTeX commands."""
    return len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))


def boxes_in(text: str) -> list[str] | None:
    """Contents of the outermost boxes; None if one is not closed."""
    found, at = [], 0
    while m := BOX.search(text, at):
        depth, at = 1, m.end()
        if not m[0].endswith("{"):
            found.append(m[1] or "")
            continue
        for brace in BRACE.finditer(text, at):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if not depth:
                break
        if depth:
            return None
        found.append(text[at : brace.start()])
        at = brace.end()
    return found


def accepted(gold) -> list:
    """The answers that a gold accepts: itself, or the items of a list, of lists inside it too.

    >>> accepted([["NYC", "New York"], ["LA"]]), accepted([[1, 2], [3, 4]]), accepted([[1], [2]])
    (['NYC', 'New York', 'LA'], ['[[1, 2], [3, 4]]'], ['[[1], [2]]'])
    """
    if not isinstance(gold, list | tuple):
        return [gold]
    if is_matrix(gold):
        return [json.dumps(gold, default=str)]
    one_answer = [is_matrix(item) or (is_matrix([item]) and len(item) > 1) for item in gold]
    vectors = [json.dumps(item, default=str) if one else item for item, one in zip(gold, one_answer, strict=True)]
    return [one for item in vectors for one in (item if isinstance(item, list) else [item])]


def is_matrix(value) -> bool:
    """Whether a value is rows of numbers, all of one length; lists of texts are each annotator's."""
    rows = value if isinstance(value, list) and all(isinstance(row, list) for row in value) else []
    plain = all(isinstance(cell, numbers.Number) for row in rows for cell in row)
    return plain and bool(rows) and {*map(len, rows)} == {max(1, len(rows[0]))}


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
    most = 0 if before.rpartition("\n")[2].strip() else 5  # a mark inside a line is a number's
    return mark if is_number or not answer or (count_words(answer) <= most and not is_program(before)) else None


def is_program(text: str) -> bool:
    """Whether a text is Python source that does something."""
    try:
        return any(isinstance(node, STATEMENTS) for node in parse_python(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
