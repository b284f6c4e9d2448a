"""Edits of a text by offset, and the table row that explains each."""

import json
import re
from dataclasses import dataclass, field, replace

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError
from parts.foundation.user_scripts import Argument, PythonSource
from programs.migrate.tables import numbers

# {rule: a change that no signature shows}, of runs from version `first` to below `before`, where it came unless `since`
# says otherwise; of TRL and transformers, and of verl
BY_HAND = file_text("by_hand.json")
BY_HAND_VERL = file_text("by_hand_verl.json")
OF_PACKAGE = {"trl": json.loads(BY_HAND), "verl": json.loads(BY_HAND_VERL)}
RULES = {r: {"since": e.get("before")} | e for rules in OF_PACKAGE.values() for r, e in rules.items()}
DEFAULT = "its default then"  # why a setting is written that the script does not give, or gives in a branch alone
UNSURE = " (set in a branch)"  # NAME + UNSURE stands for the source of a setting whose value depends on a branch


@dataclass(frozen=True)
class Change:
    """One row of the table: the name and value of a setting today, and why they changed."""

    name: str
    text: str | None  # source of the value; None removes the setting; "": a name without a value, such as a class
    since: str  # the version that changed it
    why: str
    otherwise: str = "TypeError"  # what today's package would do without the change
    source: str = ""  # file and line of the old package, where no signature shows it

    @property
    def setting(self) -> str:
        """NAME=VALUE or NAME, as the new file has it; "" for a removed setting."""
        return "" if self.text is None else f"{self.name}={self.text}" if self.text else self.name


def by_hand(name: str, text: str, rule: str) -> Change:
    """A change whose version and reasons come from a rule of by_hand.json."""
    return Change(name, text, *(RULES[rule][key] for key in ("since", "why", "otherwise", "source")))


def chosen(text: str) -> str:
    """Reduce `A if True else B` to A, and `A if False else B` to B; other text stays."""
    match = re.fullmatch(r"(.*) if (True|False) else (.*)", text)
    return match[1 if match[2] == "True" else 3] if match else text


def rules_of(package: str, version: str) -> list[tuple[str, dict]]:
    """The rules that apply to a version of a package; rules without `before` are used by name only."""
    rules, at = [(rule, RULES[rule]) for rule in OF_PACKAGE[package]], numbers(version)
    return [(r, e) for r, e in rules if "before" in e and numbers(e.get("first", "0")) <= at < numbers(e["before"])]


@dataclass(frozen=True)
class Edit:
    """Replace [start, end) of a file by `text`; start == end inserts it."""

    start: int
    end: int
    text: str
    change: Change | None = None  # None: the edit has no row in the table

    def is_inside(self, start: int, end: int) -> bool:
        """Whether the edit lies within [start, end); an insertion at either end does not, nor does the whole span."""
        return start <= self.start < end and start < self.end <= end and (self.start, self.end) != (start, end)


@dataclass
class Report:
    """What a migration changes, cannot express, and cannot see."""

    edits: list[Edit] = field(default_factory=list)
    impossible: list[dict] = field(default_factory=list)  # line, setting, why, nearest
    notes: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)  # the run is the same only if these hold

    def edit(self, start: int, end: int, text: str, change: Change | None = None) -> None:
        edit = Edit(start, end, text, change)
        if start == end or edit not in self.edits:  # two configs that share a dictionary edit it twice
            self.edits.append(edit)

    def insert(self, at: int, text: str, change: Change | None = None) -> None:
        """Insert a text once, also if two trainers ask for it."""
        if not any((e.start, e.text) == (at, text) for e in self.edits):
            self.edit(at, at, text, change)

    def drop_inner(self) -> None:
        """Drop edits inside text that another edit deletes."""
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
        """The rows of the table in file order; `place(offset)` names the line."""
        ordered = sorted((e for e in self.edits if e.change), key=lambda e: e.start)
        names = ("setting", "since", "why", "otherwise", "source")
        return [{"line": place(e.start)} | {name: getattr(e.change, name) for name in names} for e in ordered]


def edited(text: str, edits: list[Edit]) -> str:
    """Apply edits to a text; insertions at one offset keep their order.

    Raises:
        UserError: two edits overlap, and one of them is not a deletion.
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
    """Apply edits to a script or notebook; a notebook keeps its outputs and metadata."""
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
    """Rename, replace or remove the given arguments that the plan names, in calls and assignments."""
    last = {argument.name: source.code(argument.value) for argument in given}
    for argument in [x for x in given if x.name in plan and plan[x.name].why != DEFAULT]:
        change, name, value = plan[argument.name], argument.name, source.code(argument.value)
        place, text = (argument.start, argument.end), argument.form.format(name=change.name, text=change.text)
        if change.text is None:
            place = place if argument.is_statement else removal(source.text, argument)
            text = "pass" * argument.is_statement
        elif change.text in (last[name], name + UNSURE):  # only the name: another edit may be inside the value
            start = source.text.rindex(name, argument.start, source.start(argument.value))
            place, text, change = (start, start + len(name)), change.name, replace(change, text=value)
        report.edit(*place, text, change)


def removal(text: str, argument: Argument) -> tuple[int, int]:
    """The span to delete for an argument: with its comma, and with its line if it is alone there."""
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
    """Insert arguments before the first keyword argument that stays, one per line if the call is laid out so."""
    start, end = source.span(call)
    kept = [k for k in call.keywords if source.start(k) not in removed]
    place = source.start(kept[0]) if kept else source.span(call.args[-1])[1] if call.args else end - 1
    line = source.text.rfind("\n", 0, place) + 1
    indent = re.match(r"[ \t]*", source.text[line:])[0]
    length = len(source.text[line:].partition("\n")[0]) + sum(len(change.setting) + 2 for change in added)
    is_long = length > 110 and "\n" not in source.text[start:end]
    break_ = f"\n{indent}    " if is_long else f"\n{indent}" if kept and not source.text[line:place].strip() else " "
    for number, change in enumerate(added):
        text = change.setting
        if kept:
            text = break_ * (is_long and not number) + f"{text},{break_}"
        elif call.args or number:
            text = f",{break_}{text}"
        start = place - (is_long and not number and kept[:1] == call.keywords[:1] and source.text[place - 1] == " ")
        report.edit(start, place, text, change)


def edit_call(source: PythonSource, call, plan: dict[str, Change], report: Report) -> None:
    """Edit the arguments that a call gives, and add the plan's others."""
    given = source.arguments(call)[0] + source.changes(call)
    edit_arguments(source, given, plan, report)
    names = {argument.name for argument in given}
    added = [x for name, x in plan.items() if x.text is not None and (name not in names or x.why == DEFAULT)]
    removed = {x.start for x in given if x.name in plan and plan[x.name].text is None}
    if added:
        add_arguments(source, call, added, removed, report)
