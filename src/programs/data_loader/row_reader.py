"""Rows read, checked and counted."""

import contextlib
import hashlib
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parts.data.nested_rows import with_chats
from parts.data.question_parts import is_media, plain_name
from parts.foundation.messages import RowFlaw, UserError, need, say, suggest
from programs.data_loader.bad_rows import HEAD, BadRow, BadRows, flaw_of
from programs.data_loader.choices import first_number
from programs.data_loader.form_names import CUSTOM, convert, form_of, kind_of, known_names, new_names
from programs.data_loader.forms import FileFacts, marks_answer
from programs.data_loader.json_values import Record
from programs.data_loader.messages import ANSWER_KEYS, PROMPT_KEYS
from programs.data_loader.reading import Settings, distinct_names, expand, reading_settings, records_of

FEW_PROMPTS = 20


def at_path(row: dict, source: str, raw: dict[str, str]):
    """The value of a column, or at a dotted path in one; None where there is none. `raw`: {known name: own name}."""
    head, *path = [source] if source in row or source in raw else source.split(".")
    value = row
    for key in [raw.get(head, head), *path]:
        if isinstance(value, list) and key.isdecimal():
            value = dict(enumerate(value)).get(int(key))
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def raw_names(row: dict) -> dict[str, str]:
    """{known name: the row's own name}, as messages say known names."""
    return {known: name for name, known in new_names(tuple(row)).items()}


def remapped(row: dict, settings: Settings) -> dict:
    """A row after --drop and --map, its columns under known names; the source of a mapping may be a dotted path.

    Where a cell holds messages as JSON text, the row has the messages.
    """
    raw = raw_names(row)
    drop = {*settings.drop, *(raw.get(name, name) for name in settings.drop)}
    row = {name: value for name, value in row.items() if name not in drop}
    mapped = {name: at_path(row, source, raw) for name, source in settings.mapping.items()}
    if name := next((name for name, value in mapped.items() if value is None), ""):
        source = settings.mapping[name]
        advice = f"--map {name}=COLUMN{suggest(source, list(row)).replace('; try', ', perhaps')}"
        raise BadRow(name, f"the columns {', '.join(row)[:200]}", f"the column {source!r} of --map", advice)
    for source in settings.mapping.values():
        row.pop(raw.get(source, source), None)
    paths = [source.split(".")[0] for source in settings.mapping.values()]
    if clash := [name for name in mapped if row.get(name) is not None and name not in paths]:
        raise BadRow(clash[0], f"a column of that name beside --map {clash[0]}", "one of the two", f"--drop {clash[0]}")
    return known_names(with_chats({**mapped, **{name: value for name, value in row.items() if name not in mapped}}))


def check_mapping(rows: list[dict], settings: Settings, file: str) -> None:
    """Raise UserError for a column of --map that none of the rows has: once, not for each row."""
    rows = [{name: value for name, value in row.items() if name not in settings.drop} for row in rows]
    columns = [*dict.fromkeys(itertools.chain.from_iterable(rows))]
    for name, source in settings.mapping.items():
        known = any(source in row or at_path(row, source, raw_names(row)) is not None for row in rows)
        near = suggest(source, columns).replace("; try ", f"; try --map {name}=") or f"; try --map {name}=COLUMN"
        got = f"{file}: got --map {name}={source}, and no row has {source!r}"
        need(known or not rows, f"{got}; expected one of the columns {', '.join(columns)[:500]}{near}")


class RowReader:
    """Iterates over the good rows of all inputs, normalised, in order; what it leaves out it counts and reports.

    `counts` adds up at any time: read = kept + rejected + deduplicated. `on_reject` gets each bad row.
    """

    def __init__(self, sources, settings: Settings, on_reject: Callable[[dict], None]):
        self.files, self.settings, self.on_reject = expand(sources), settings, on_reject
        self.names, self.current = distinct_names(self.files), ""
        self.counts = {"read": 0, "kept": 0, "rejected": 0, "deduplicated": 0}
        self.kinds, self.reasons, self.seen, self.notes = Counter(), [], set(), Counter()
        self.facts, self.unread = FileFacts(), Counter()  # of the current file; columns by their rows
        self.untaken: Counter[tuple[str, str]] = Counter()  # (column, field) of what may be an answer, by their rows
        self.texts: dict[str, set] = {"prompt": set()}  # digests, while there are but a few prompts

    @property
    def kind(self) -> str:
        """The kind of all rows so far, or `mixed`."""
        return "mixed" if len(self.kinds) > 1 else next(iter(self.kinds), "prompts")

    @property
    def why(self) -> str:
        """Why each input was taken for what it was taken for."""
        return "; ".join(self.reasons)

    def __iter__(self) -> Iterator[dict]:
        for file in self.files:
            yield from self.rows_of(file)
            if self.counts["kept"] == self.settings.limit:
                return

    def rows_of(self, file: str) -> Iterator[dict]:
        """The good rows of one input."""
        records, name = iter(records_of(file, self.settings)), self.names[file]
        self.current = name
        form, records = self.detect(file, records)
        before = self.counts["read"]
        for record in records:
            self.counts["read"] += 1
            try:
                row = self.read(record, form)
            except RowFlaw as error:
                self.counts["rejected"] += 1
                where = {"file": "stdin" if file == "-" else file, "line": record.line}
                self.on_reject({**where, **error.parts, "row": record.text if record.row is None else record.row})
                continue
            row.setdefault("source", name)
            row.setdefault("id", f"{name}:{record.line}")
            if self.settings.dedup and self.repeats(row):
                self.counts["deduplicated"] += 1
                continue
            self.counts["kept"] += 1
            self.watch_prompts(row)
            yield row
            if self.counts["kept"] == self.settings.limit:
                return
        if self.counts["read"] == before and len(self.files) > 1:  # of a single one, need_rows says it
            say(f"warning: {'stdin' if file == '-' else file} holds no row")

    def watch_prompts(self, row: dict) -> None:
        """Count distinct prompts, and distinct texts in unused columns that have the name of a prompt."""
        if len(self.texts["prompt"]) > FEW_PROMPTS:
            return
        for name in ("prompt", *PROMPT_KEYS):
            if name == "prompt" or isinstance(row.get(name), str):
                self.texts.setdefault(name, set()).add(digest(row[name]))

    def collapse(self) -> str:
        """What to say where all prompts are a few texts and an unused column has many; "" elsewhere."""
        prompts = len(self.texts["prompt"])
        others = {name: len(texts) for name, texts in self.texts.items() if len(texts) >= max(5, 3 * prompts)}
        if prompts > FEW_PROMPTS or not others:
            return ""
        name = max(others, key=others.get)
        got = f"got {prompts} distinct prompts in {self.counts['kept']} rows, and {others[name]} distinct {name}"
        return f"{got}; expected prompts that differ; try --map prompt={name}, with --drop for a column in its way"

    def need_rows(self, rejected: list[dict] = ()) -> None:
        """Raise UserError if no row at all could be used; of those that were rejected it shows the first."""
        if self.counts["kept"]:
            return
        inputs, bad = " ".join(self.files[:5]) + " …" * (len(self.files) > 5), self.counts["rejected"]
        counts = f"{self.counts['read']} read" + (f", {bad} bad" if bad else "")
        first = ""
        if rejected:
            first = f"; the first bad one: {rejected[0]['file']}:{rejected[0]['line']}: {flaw_of(rejected[0])}"
        raise UserError(f"got no usable row from {inputs} ({counts}); expected at least one{first}")

    def say_notes(self) -> None:
        """Say which columns look like a part of the question but are in no prompt, and what rows were read for."""
        for name, count in self.unread.items():
            got = f"got the column {name}, which looks like a part of the question and is in no prompt"
            use = (
                ""
                if is_media(name)
                else f"--map {shlex.quote(f'background={name}')} to put it before the question, or "
            )
            say(f"warning: {got} ({count} of {self.counts['read']} rows); try {use}--drop {shlex.quote(name)}")
        if self.untaken:
            columns = ", ".join(name for name, _ in self.untaken)
            fields = {field: name for name, field in reversed(self.untaken)}  # the first column of each
            flags = " ".join(shlex.quote(f"{field}={name}") for field, name in fields.items())
            got = f"got {max(self.untaken.values())} of {self.counts['read']} rows without answer, tests or completion"
            drop = f"--drop {shlex.join(name for name, _ in self.untaken)} where they hold none"
            say(f"warning: {got}, beside the columns {columns}; try --map {flags}, or {drop}")
        for text, count in self.notes.items():
            if count:
                say(f"note: {count} {text}")

    def read(self, record: Record, form: str) -> dict:
        """One record normalised."""
        if record.flaw:
            raise record.flaw
        settings = self.settings
        row = remapped(record.row, settings)
        own = form_of(row)
        if settings.kind == "auto":
            form = self.agreed(form, own, row)
        shape = convert(row, form, self.facts)
        row = shape.out
        self.unread.update(shape.unread)
        self.untaken.update(shape.untaken.items())
        self.notes.update(shape.notes)
        packed = isinstance(row.get("private_test_cases"), str)
        self.notes["rows have pickled private_test_cases, which are never opened: they get the public tests"] += packed
        if settings.system_prompt:
            if row["prompt"][0]["role"] in ("system", "developer"):
                self.notes["rows kept their own system prompt"] += row["prompt"][0]["content"] != settings.system_prompt
            else:
                row["prompt"] = [{"role": "system", "content": settings.system_prompt}, *row["prompt"]]
        return row

    def agreed(self, form: str, own: str | None, row: dict) -> str:
        """The form by which a row of an input of this form is read; BadRow where it is quite another one."""
        if own in ("ours", "verl"):
            return own
        if own is None:  # the conversion says what is missing
            return "prompts" if form in ("ours", "verl") else form
        if (
            own == form
            or (own == "prompts" and form not in ("ours", "verl"))
            or (own, form) in (("math", "prompts"), ("math", "worked"))
        ):
            return form  # a row that only asks lacks what this form needs, and the conversion says what
        got = f"a row of {own}, with the columns {', '.join(row)[:200]}"
        raise BadRow("row", got, f"{form.replace('worked', 'math')}, as the other rows", "a file for each kind")

    def detect(self, file: str, records: Iterator[Record]) -> tuple[str, Iterator[Record]]:
        """(form, all records): what most of the first rows are, and why; a given kind is taken as it is."""
        settings, label = self.settings, "stdin" if file == "-" else file
        head = list(itertools.islice(records, HEAD))
        if settings.on_bad == "fail" or len(head) < HEAD:  # else a later row may have the column
            check_mapping([record.row for record in head if record.row is not None], settings, label)
        forms, kinds, fields, marked, numbers = Counter(), Counter(), {}, 0, set()
        for record in head:
            with contextlib.suppress(RowFlaw):
                row = remapped(record.row, settings) if record.row is not None else None
                form = form_of(row) if row is not None else None
                if form:
                    forms[form] += 1
                    first = next((row[name] for name in ANSWER_KEYS if row.get(name) is not None), None)
                    marked += form == "math" and marks_answer(first)
                    fields.setdefault(form, [name for name in row if row[name] is not None])
                    if form in ("ours", "verl"):
                        kinds[kind_of(convert(row, form).out)] += 1
                    if form == "choices" or settings.kind == "choices":
                        numbers.add(first_number(row))
        records = itertools.chain(head, records)
        self.facts = FileFacts(
            mapped=frozenset(settings.mapping),
            sources=frozenset(plain_name(source.partition(".")[0]) for source in settings.mapping.values()),
            first_number=min(numbers - {None}, default=None),
        )
        if settings.kind != "auto":
            kind = CUSTOM[settings.kind][1] if settings.kind in CUSTOM else settings.kind
            self.kinds[kind] += 1
            self.reasons.append(f"{label}: {settings.kind}, as asked for")
            return "worked" if kind == "math" and 2 * marked > len(head) else settings.kind, records
        if not forms:
            self.kinds["prompts"] += 1
            self.reasons.append(f"{label}: prompts, as no row has the fields of another kind")
            return "prompts", records
        form = max(forms, key=lambda form: (forms[form], form != "prompts"))  # of equals the one with answers
        count = forms[form]
        kind = CUSTOM[form][1] if form in CUSTOM else form
        if form in ("ours", "verl"):
            self.kinds.update(kinds.keys() or ["prompts"])
            kind = f"{' and '.join(kinds) or 'prompts'}, in the form of {form}"
        else:
            self.kinds[kind] += 1
        sign = f"fields {', '.join(fields[form][:8])}" + (f", registered as {form}" if form in CUSTOM else "")
        worked = form == "math" and 2 * marked > count
        cut = (
            "; answer is the final one, the text around it is in solution (--kind prompts leaves columns as they were)"
        )
        self.reasons.append(
            f"{label}: {kind}, as {count} of the first {len(head)} rows have the {sign}{cut if worked else ''}"
        )
        return "worked" if worked else form, records

    def repeats(self, row: dict) -> bool:
        """Whether a row with the same prompt, answer, tests and completions came before."""
        parts = [row.get(name) for name in ("prompt", "answer", "tests", "completion", "chosen", "rejected")]
        mark = digest(parts)
        if mark in self.seen:
            return True
        self.seen.add(mark)
        return False


def digest(value) -> bytes:
    """16 bytes that stand for a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


@dataclass
class Loaded:
    """What load_rows returns: rows of the schema, what they were taken for and why, and what was left out."""

    rows: list[dict]
    kind: str
    why: str
    rejected: list[dict]
    counts: dict[str, int]


def load_rows(sources, kind: str = "auto", **reading) -> Loaded:
    """Read all rows of files, folders, globs, hub ids or generators into the schema.

    Args:
        sources: one input or a list: a path, a folder, a glob, `-` for stdin, `owner/name[:config][@split]`,
            `reasoning_gym:NAME?size=…&seed=…`.
        kind: one of KINDS, a registered format, or "auto": what most of the first 100 rows are, decided for each file.
        mapping: field of the schema -> column that holds it; the column may be a dotted path.
        system_prompt: put before prompts that have none.
        on_bad: "fail" raises BadRows after everything is read; "skip" leaves bad rows out and lists them in `rejected`.
        limit: stop after this many good rows.
        max_bytes: what a compressed or parquet file may unpack to.
        text_separator: what stands between two prompts of a .txt file (default: a line each).
        drop: columns to leave out.
        dedup: leave out rows whose prompt, answer, tests and completions came before.
        input_format: read every file as jsonl, json, txt, csv, tsv or parquet, whatever its name.
        encoding: what texts are decoded by (default: UTF-8, or what a CSV, TSV or TXT file shows).
        delimiter: what stands between the columns of CSV and TSV files (default: what the file shows).

    Raises:
        BadRows: rows do not fit, and on_bad is "fail".
        UserError: an input cannot be read, an argument cannot be used, or there is no usable row.
    """
    settings = reading_settings(kind, reading)
    rejected = []
    reader = RowReader(sources, settings, rejected.append)
    rows = list(reader)
    if rejected and settings.on_bad == "fail":
        raise BadRows(rejected, len(rejected))
    reader.need_rows(rejected)
    reader.say_notes()
    return Loaded(rows, reader.kind, reader.why, rejected, reader.counts)
