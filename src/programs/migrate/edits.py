"""Edits of a text at its places, each with the line of the table that says why."""

import json
from dataclasses import asdict, dataclass, field

from parts.foundation.file_text import file_text

BY_HAND = file_text("by_hand.json")  # what no signature shows: {rule: since, why, otherwise, source}


@dataclass(frozen=True)
class Row:
    """One line of the table of changes."""

    setting: str  # what the new file says
    since: str  # the version that changed it
    why: str
    otherwise: str = ""  # what today's package would do without the change
    source: str = ""  # file and line of the old package, where no signature shows it


def by_hand(setting: str, rule: str, **values) -> Row:
    """The line of the table for a rule of by_hand.json, with values in the place of its {names}."""
    return Row(setting, **{name: text.format(**values) for name, text in json.loads(BY_HAND)[rule].items()})


@dataclass(frozen=True)
class Edit:
    """`text` in the place of [start, end) of a file; an insertion where both are the same."""

    start: int
    end: int
    text: str
    row: Row | None = None  # None belongs to the edit before it


@dataclass
class Report:
    """What a migration changes, cannot express, and cannot see."""

    edits: list[Edit] = field(default_factory=list)
    impossible: list[dict] = field(default_factory=list)  # line, setting, why, nearest
    notes: list[str] = field(default_factory=list)

    def edit(self, start: int, end: int, text: str, row: Row | None = None) -> None:
        edit = Edit(start, end, text, row)
        if start == end or edit not in self.edits:  # two configs may share a dictionary
            self.edits.append(edit)

    def refuse(self, line, setting: str, why: str, nearest: str) -> None:
        entry = {"line": line, "setting": setting, "why": why, "nearest": nearest}
        if entry not in self.impossible:
            self.impossible.append(entry)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def rows(self, place) -> list[dict]:
        """The table, in the order of the file; `place` gives the line of an offset."""
        ordered = sorted((e for e in self.edits if e.row), key=lambda e: e.start)
        return [{"line": place(e.start), **asdict(e.row)} for e in ordered]


def edited(text: str, edits: list[Edit]) -> str:
    """The text with the edits; those at one place follow one another."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        parts += [text[at : edit.start], edit.text]
        at = max(at, edit.end)
    return "".join(parts) + text[at:]
