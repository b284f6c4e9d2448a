"""Findings and notes: cause, remedy, source."""

from parts.foundation.file_text import file_text

ADVICE_TEXT = file_text("finding_advice.txt")
IF_CUT = "if completions are cut"  # advice that ends so is left out where the log shows that none are


def marked_texts(text: str) -> dict[str, dict[str, list[str]]]:
    """Entries of a text file: {name: {mark: texts}}; under "#" the heading above an entry, under "" its first text.

    A line begins `name: text`, further texts are indented by two with a mark (+, !, - or =), their next lines by four.
    """
    entries, heading, entry, texts = {}, "", {}, []
    for line in text.splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line.startswith("    "):
            texts[-1] += f" {line.strip()}"
        elif line.startswith("  "):
            texts = entry.setdefault(line[2], [])
            texts.append(line[4:])
        else:
            name, _, text = line.partition(": ")
            texts = [text]
            entry = entries[name] = {"#": [heading], "": texts}
    return entries


# finding: (likely cause, what to change, source)
ADVICE = {name: (entry[""][0], entry["-"], entry["="][0]) for name, entry in marked_texts(ADVICE_TEXT).items()}
NOTES = {name for name, entry in marked_texts(ADVICE_TEXT).items() if entry["#"] == ["notes"]}
