"""Entries of a text file by name and mark, such as a glossary."""


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
