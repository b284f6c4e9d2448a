"""Edits at places of a text, each with its line of the table."""

import json
import re
from dataclasses import dataclass, field, replace

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError
from parts.foundation.user_scripts import Argument, PythonSource
from programs.migrate.tables import numbers

BY_HAND = file_text("by_hand.json")  # what no signature shows, by rule; some hold for versions from first to before
RULES = json.loads(BY_HAND)
UNSURE = " (set in a branch)"  # stands behind the name of such a setting where its source is asked for


@dataclass(frozen=True)
class Change:
    """One line of the table: what becomes of a setting, its name today and its text there."""

    name: str
    text: str | None  # None where the setting goes; "" where the name is all, as of a class
    since: str  # the version that changed it
    why: str
    otherwise: str = "TypeError"  # what today's package would do without the change
    source: str = ""  # file and line of the old package, where no signature shows it

    @property
    def setting(self) -> str:
        """What the new file says."""
        return "" if self.text is None else f"{self.name}={self.text}" if self.text else self.name


def by_hand(name: str, text: str, rule: str) -> Change:
    """A line of the table by a rule of by_hand.json."""
    return Change(name, text, *(RULES[rule][key] for key in ("since", "why", "otherwise", "source")))


def reason(rule: str) -> str:
    return RULES[rule]["why"]


def chosen(text: str) -> str:
    """`A if True else B` as A."""
    match = re.fullmatch(r"(.*) if (True|False) else (.*)", text)
    return match[1 if match[2] == "True" else 3] if match else text


def rules_of(package: str, version: str) -> list[tuple[str, dict]]:
    """The rules with a setting or a note that hold for a version of a package."""
    rules = [(rule, entry) for rule, entry in RULES.items() if entry.get("package", "trl") == package]
    at = numbers(version)
    return [(r, e) for r, e in rules if "before" in e and numbers(e.get("first", "0")) <= at < numbers(e["before"])]


@dataclass(frozen=True)
class Edit:
    """`text` in the place of [start, end) of a file; an insertion where both are the same."""

    start: int
    end: int
    text: str
    change: Change | None = None  # None belongs to the edit before it

    def is_inside(self, start: int, end: int) -> bool:
        """Whether it is a part of a text; what stands at either end of it is none."""
        return start <= self.start < end and start < self.end <= end and (self.start, self.end) != (start, end)


@dataclass
class Report:
    """What a migration changes, cannot express, and cannot see."""

    edits: list[Edit] = field(default_factory=list)
    impossible: list[dict] = field(default_factory=list)  # line, setting, why, nearest
    notes: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)  # of the notes: where the run is the same

    def edit(self, start: int, end: int, text: str, change: Change | None = None) -> None:
        edit = Edit(start, end, text, change)
        if start == end or edit not in self.edits:  # two configs may share a dictionary
            self.edits.append(edit)

    def drop_inner(self) -> None:
        """Leave out edits inside a text that goes."""
        cuts = {(e.start, e.end) for e in self.edits if not e.text and e.start < e.end}
        self.edits = [e for e in self.edits if not any(e.is_inside(*cut) for cut in cuts)]

    def refuse(self, line, setting: str, why: str, nearest: str) -> None:
        entry = {"line": line, "setting": setting, "why": why, "nearest": nearest}
        if entry not in self.impossible:
            self.impossible.append(entry)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def note_rule(self, entry: dict) -> None:
        self.note(entry["why"])
        if "same_if" in entry and entry["same_if"] not in self.conditions:
            self.conditions.append(entry["same_if"])

    def rows(self, place) -> list[dict]:
        """The table, in the order of the file; `place` gives the line of an offset."""
        ordered = sorted((e for e in self.edits if e.change), key=lambda e: e.start)
        names = ("setting", "since", "why", "otherwise", "source")
        return [{"line": place(e.start)} | {name: getattr(e.change, name) for name in names} for e in ordered]


def edited(text: str, edits: list[Edit]) -> str:
    """The text with the edits; those at one place follow one another, and only cuts may overlap.

    Raises:
        UserError: a text would stand in the place of another one's part.
    """
    parts, at, before = [], 0, ""
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at and (edit.text or before):
            got = f"got two changes of {text[edit.start : at].strip()!r}; expected one, so nothing was written"
            raise UserError(f"{got}; try one of them by hand, then migrate.py again")
        parts += [text[at : edit.start], edit.text]
        at, before = max(at, edit.end), edit.text
    return "".join(parts) + text[at:]


def edited_source(source: PythonSource, edits: list[Edit]) -> str:
    """A script or notebook with the edits; outputs and metadata of a notebook stay."""
    if not source.notebook:
        return edited(source.text, edits)
    for cell, start, end in zip(source.cells, source.starts, source.starts[1:], strict=False):
        inside = [Edit(e.start - start, e.end - start, e.text) for e in edits if start <= e.start < end]
        if inside:
            cell["source"] = edited(source.text[start : end - 1], inside).splitlines(keepends=True)
    indent = re.match(r"\{\s*\n( *)", source.raw)
    ending = "\n" if source.raw.endswith("\n") else ""
    return json.dumps(source.notebook, ensure_ascii=False, indent=len(indent[1]) if indent else None) + ending


def edit_arguments(source: PythonSource, given: list[Argument], plan: dict[str, Change], report: Report) -> None:
    """Rename, replace or cut the arguments that a plan names, wherever they stand."""
    last = {argument.name: source.code(argument.value) for argument in given}
    for argument in [argument for argument in given if argument.name in plan]:
        change, name, own = plan[argument.name], argument.name, source.code(argument.value)
        place, text = (argument.start, argument.end), argument.form.format(name=change.name, text=change.text)
        if change.text is None:
            place = place if argument.is_statement else removal(source.text, argument)
            text = "pass" * argument.is_statement
        elif change.text in (last[name], name + UNSURE):  # the name alone, as another edit may be inside the value
            start = source.text.rindex(name, argument.start, source.start(argument.value))
            place, text, change = (start, start + len(name)), change.name, replace(change, text=own)
        report.edit(*place, text, change)


def removal(text: str, argument: Argument) -> tuple[int, int]:
    """What to cut with an argument: its comma, and its line where it stands alone on it."""
    start, end = argument.start, argument.end
    after = re.compile(r"\s*,").match(text, end)
    if not after:  # the last one: the comma before it goes
        before = re.search(r",\s*$", text[:start])
        return (before.start(), end) if before else (start, end)
    line = text.rfind("\n", 0, start) + 1
    rest = re.compile(r"[ \t]*(#[^\n]*)?\n").match(text, after.end())
    if not text[line:start].strip() and rest:
        return line, rest.end()
    return start, re.compile(r"[ \t]*").match(text, after.end()).end()


def add_arguments(source: PythonSource, call, added: list[Change], removed: set[int], report: Report) -> None:
    """Put new arguments before the first one by keyword that is not removed, in the form of the call."""
    start, end = source.span(call)
    kept = [k for k in call.keywords if source.start(k) not in removed]
    place = source.start(kept[0]) if kept else source.span(call.args[-1])[1] if call.args else end - 1
    line = source.text.rfind("\n", 0, place) + 1
    indent = re.match(r"[ \t]*", source.text[line:])[0]
    length = place - line + sum(len(change.setting) for change in added)
    is_long = length > 110 and "\n" not in source.text[start:end]
    break_ = f"\n{indent}    " if is_long else f"\n{indent}" if kept and not source.text[line:place].strip() else " "
    for number, change in enumerate(added):
        text = change.setting
        if kept:
            text = break_ * (is_long and not number) + f"{text},{break_}"
        elif call.args or number:
            text = f",{break_}{text}"
        report.edit(place, place, text, change)


def edit_call(source: PythonSource, call, plan: dict[str, Change], report: Report) -> None:
    """Edit the arguments that a call has, and add the others of a plan."""
    given = source.arguments(call)[0] + source.changes(call)
    edit_arguments(source, given, plan, report)
    names = {argument.name for argument in given}
    added = [change for name, change in plan.items() if name not in names and change.text is not None]
    removed = {x.start for x in given if x.name in plan and plan[x.name].text is None}
    if added:
        add_arguments(source, call, added, removed, report)
