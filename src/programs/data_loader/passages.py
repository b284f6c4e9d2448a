"""Texts that a question is about: passages, documents, tables."""

from parts.data.question_parts import READ_FIRST, head_of, is_empty, names_part, squeezed, texts_in
from programs.data_loader.bad_rows import BadRow, shown

LONG_NAMES = ("context", "passage", "article", "document", "story", "paragraph", "schema", "table")
TEXT_KEYS = ("text", "contexts", "sentences", "paragraphs", "passages", "paragraph_text", "passage_text", "content")


def passages_before(row: dict, question: str, names: list[str], mapped: frozenset[str]) -> dict[str, str]:
    """{column: text} of what goes before a question; a column that the question quotes already does not.

    Raises:
        BadRow: a column that --map names as a passage cannot be read as one.
    """
    found, asked = {}, squeezed(question)
    filled = [name for name in names if not is_empty(row[name])]
    passages = [name for name in READ_FIRST if name in filled]
    if "hint" in filled and "lecture" in row:  # ScienceQA's
        passages.append("hint")
    longer = [name for name in filled if names_part(name) and head_of(name) in LONG_NAMES]
    if not passages and len(longer) == 1:  # such as flores_passage; of several, some may be there to mislead
        passages = longer
    for name in passages:
        text = passage(row[name], name)
        if text is None and name in mapped:
            expected = "text, texts, a table, or {title, text} with any of these"
            raise BadRow(name, shown(row[name]), expected, f"--map {name}=COLUMN.FIELD, or --drop COLUMN")
        if text and text.strip() and not all(squeezed(part) in asked for part in texts_in(row[name])):
            found[name] = text
    return found


def passage(value, name: str) -> str | None:
    """The text of a passage, a list of them, documents with titles, or a table; None where that is not plain."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return document(value)
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(item, list) for item in value):
        if all(len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list) for pair in value):
            return joined([document({"title": title, "sentences": texts}) for title, texts in value])  # HotpotQA's file
        return table(value)
    if name.startswith("table") and all(isinstance(item, dict) for item in value):
        header = list(dict.fromkeys(key for item in value for key in item))
        return table([header, *([item.get(key, "") for key in header] for item in value)])
    return joined([item if isinstance(item, str) else document(item) for item in value])


def document(value) -> str | None:
    """The text of an object: a title and a text, lists of both (HotpotQA), texts (PubMedQA), or header and rows."""
    if not isinstance(value, dict) or "role" in value:  # a chat is no passage
        return None
    rows = value.get("rows")
    if isinstance(value.get("header"), list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows):
        return table([value["header"], *rows])
    text = next((value[key] for key in TEXT_KEYS if not is_empty(value.get(key))), None)
    title = value.get("title", "")
    if isinstance(title, list) and isinstance(text, list) and len(title) == len(text):
        return joined([document({"title": head, "sentences": body}) for head, body in zip(title, text, strict=True)])
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        glue = " " if "sentences" in value else "\n\n"
        text = glue.join(part.strip() for part in text if part.strip())
    if not isinstance(text, str) or not isinstance(title, str):
        return None
    return f"{title}\n{text}" if title.strip() else text


def joined(texts: list[str | None]) -> str | None:
    """Texts with a blank line between them; None if one of them is none."""
    return None if None in texts else "\n\n".join(text for text in texts if text.strip())


def table(rows: list[list]) -> str | None:
    """Rows of cells as lines."""
    if not all(cell is None or isinstance(cell, str | int | float) for row in rows for cell in row):
        return None
    return "\n".join(" | ".join("" if cell is None else str(cell) for cell in row) for row in rows)
