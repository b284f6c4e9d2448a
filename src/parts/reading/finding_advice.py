"""Findings and notes: cause, remedy, source."""

from parts.foundation.file_text import file_text

ADVICE_TEXT = file_text("finding_advice.txt")
IF_CUT = "if completions are cut"  # advice that ends so is left out where the log shows that none are


def marked_texts(text: str) -> dict[str, dict[str, list[str]]]:
    """Entries of a text file: {name: {mark: texts}}, "" without a mark; under "#" the heading above the entry.

    A name begins a line, its texts are indented by two with their mark (+, !, - or =), their further lines by four.
    """
    entries, heading, entry, texts = {}, "", {}, []
    for line in text.splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif not line.startswith(" "):
            entry = entries[line] = {"#": [heading]}
        elif line.startswith("    "):
            texts[-1] += f" {line.strip()}"
        else:
            mark = line[2] if line[2] in "+!-=" else ""
            texts = entry.setdefault(mark, [])
            texts.append(line[2:].removeprefix(f"{mark} "))
    return entries


# finding: (likely cause, what to change, source)
ADVICE = {name: (entry[""][0], entry["-"], entry["="][0]) for name, entry in marked_texts(ADVICE_TEXT).items()}
NOTES = {name for name, entry in marked_texts(ADVICE_TEXT).items() if entry["#"] == ["notes"]}
