"""Read rows from files, globs and the hub; convert, check and count them."""

import codecs
import contextlib
import glob
import hashlib
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parts.data.nested_rows import with_chats
from parts.data.question_parts import TOOLS, is_media, is_system, plain_name
from parts.data.rows import SUFFIXES, file_records, is_hub_id
from parts.foundation.messages import RowFlaw, UserError, need, say, suggest
from programs.data_loader.answers import marks_answer
from programs.data_loader.bad_rows import HEAD, BadRow, BadRows, Names, as_plain, flaw_of, opened, shown
from programs.data_loader.choices import LETTER_ALONE, shown_numbers
from programs.data_loader.form_names import check_kind, convert, form_of, kind_of, known_names, new_names
from programs.data_loader.forms import FileFacts

FILE_FORMS = {**SUFFIXES, ".txt": "txt"}
# data in forms that are not read; what `datasets` writes beside its data
UNREAD = re.compile(r"\.(arrow|feather|xlsx?|ods|zst|zip|bz2|xz|7z|tar|tgz|pkl|pickle|db|sqlite3?|orc|avro)$")
CARDS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
GOLD_FIELDS = ("answer", "tests", "completion", "chosen", "rejected")


def expand(sources) -> list[str]:
    """The files behind paths, folders and globs, in order; hub ids and `-` stay as they are."""
    files = []
    for source in map(str, [sources] if isinstance(sources, str | Path) else sources):
        path, known = Path(source), format_of(source)
        if path.is_dir() or (any(mark in source for mark in "*?[") and not path.exists()):
            inside = sorted(map(str, path.rglob("*")) if path.is_dir() else glob.glob(source, recursive=True))
            inside = [x for x in inside if not any(p.startswith(".") for p in Path(x).parts[len(path.parts) :])]
            files += readable(source, inside)
            continue
        exists = source == "-" or path.exists() or (is_hub_id(source) and not known)
        need(exists, f"got {source}, which is not a file, folder or glob; expected one, or a hub id: openai/gsm8k:main")
        expected = f"a name that ends in {', '.join(FILE_FORMS)}, also with .gz"
        need(known or not path.exists(), f"got {source}; expected {expected}; try unpacking or renaming it")
        files.append(source)
    need(files, "got no input; expected files, folders, globs, hub ids or `-` for stdin")
    return files


def readable(source: str, inside: list[str]) -> list[str]:
    """The data files of a folder or glob; a note names those in other forms, UserError if one is a part of the data."""
    stems = {file: str(Path(file).with_name(Path(file).name.partition(".")[0])) for file in inside}
    files = [x for x in inside if format_of(x) and Path(x).is_file() and Path(x).name not in CARDS]
    unread = [x for x in inside if UNREAD.search(x.lower())]
    names = ", ".join(Path(x).name for x in unread[:5])
    advice = f"; try exporting {names}, as by datasets.load_from_disk(…).to_json(FILE)" if unread else ""
    need(files, f"got {source} without a data file; expected names such as x.jsonl or x.csv.gz{advice}")
    read = {stems[file] for file in files}
    series = {re.sub(r"\d+", "0", stem) for stem in read}
    parts = [x for x in unread if stems[x] not in read and re.sub(r"\d+", "0", stems[x]) in series]
    expected = "all parts of one set in forms that are read"
    need(not parts, f"got {parts[:1]} beside {files[0]}; expected {expected}; try unpacking it, or naming the files")
    if unread:
        say(f"warning: {source}: left out {names}; if they hold rows, export them as JSONL")
    return files


def format_of(name: str) -> str | None:
    """The format that a file's ending names, `.gz` aside, or None."""
    path = Path(name.lower())
    return FILE_FORMS.get(Path(path.stem).suffix if path.suffix == ".gz" else path.suffix)


def distinct_names(files: list[str]) -> dict[str, str]:
    """{input: default `source` of its rows}: its stem, or its path if several inputs have that stem."""
    names = {}
    for file in files:
        path = Path(file)
        stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
        names[file] = "stdin" if file == "-" else stem if path.exists() else file
    counts = Counter(names.values())
    return {file: name if counts[name] == 1 else file for file, name in names.items()}


@dataclass
class Settings:
    """How rows are read: the keyword arguments of load_rows."""

    kind: str = "auto"
    mapping: dict = field(default_factory=dict)
    drop: tuple = ()
    system_prompt: str | None = None
    on_bad: str = "fail"
    limit: int | None = None
    dedup: bool = False
    encoding: str | None = None

    def __post_init__(self):
        check_kind(self.kind)
        self.mapping, self.drop = dict(self.mapping or {}), tuple(self.drop)
        for field_name, source in self.mapping.items():
            need(field_name and source, f"got the mapping {field_name!r}={source!r}; expected field=source")
        need(self.on_bad in ("fail", "skip"), f"got on_bad {self.on_bad!r}; expected fail or skip")
        need(self.limit is None or self.limit > 0, f"got limit {self.limit}; expected 1 or more")
        try:
            if self.encoding and codecs.lookup(self.encoding).name == "utf-8":
                self.encoding = None  # the default, which drops a byte order mark
        except LookupError as error:
            raise UserError(f"got encoding: {error}; expected a name that Python knows, such as cp1252") from None


def at_path(row: dict, source: str, raw: dict[str, str]):
    """The value of a column or at a dotted path inside it, or None. `raw`: {known name: the row's own name}."""
    head, *path = [source] if source in row or source in raw else source.split(".")
    value = row
    for key in [raw.get(head, head), *path]:
        value = opened(value)
        if isinstance(value, list) and key.isdecimal():
            value = dict(enumerate(value)).get(int(key))
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def remapped(row: dict, settings: Settings) -> dict:
    """A row as JSON types after --drop and --map, with known column names, and messages decoded from JSON text."""
    raw = {known: name for name, known in new_names(tuple(row)).items()}  # users see known names in messages
    mapping = settings.mapping
    drop = {*settings.drop, *(raw.get(name, name) for name in settings.drop)}
    row = as_plain({name: value for name, value in row.items() if name not in drop})
    mapped = {name: at_path(row, source, raw) for name, source in mapping.items()}
    if name := next((name for name, value in mapped.items() if value is None), ""):
        hint = suggest(mapping[name], list(row)).replace("; try", ", perhaps")
        got, expected = f"the columns {', '.join(row)[:200]}", f"the column {mapping[name]!r} of --map"
        raise BadRow(name, got, expected, f"--map {name}=COLUMN{hint}")
    for source in mapping.values():
        row.pop(raw.get(source, source), None)
    paths = [source.split(".")[0] for source in mapping.values()]
    if name := next((name for name in mapped if row.get(name) is not None and name not in paths), ""):
        raise BadRow(name, f"a column of that name beside --map {name}", "only one of them", f"--drop {name}")
    return known_names(with_chats({**mapped, **{name: value for name, value in row.items() if name not in mapped}}))


class RowReader:
    """Iterates over the good rows of all inputs, converted, in order; lists the bad ones in `rejected`.

    At any time, `counts` has read = kept + rejected + deduplicated.
    """

    def __init__(self, sources, settings: Settings):
        self.files, self.settings, self.rows, self.rejected = expand(sources), settings, [], []
        self.names, self.current = distinct_names(self.files), ""
        self.counts = {"read": 0, "kept": 0, "rejected": 0, "deduplicated": 0}
        self.kinds, self.why, self.seen, self.notes = Counter(), "", set(), Counter()
        self.facts, self.unread = FileFacts(), Counter()  # of the current file; {column of a question: rows}
        self.no_answer, self.untaken = 0, Counter()  # rows without an answer; {column that they have: rows}

    @property
    def kind(self) -> str:
        """The kind of all rows so far, or `mixed`."""
        return "mixed" if len(self.kinds) > 1 else next(iter(self.kinds), "prompts")

    def __iter__(self) -> Iterator[dict]:
        return itertools.islice(itertools.chain.from_iterable(map(self.rows_of, self.files)), self.settings.limit)

    def rows_of(self, file: str) -> Iterator[dict]:
        name, before = self.names[file], self.counts["read"]
        label = "stdin" if file == "-" else file
        known = [column.partition(".")[0] for column in self.settings.mapping.values()]
        records = file_records(file, format_of(file), self.settings.encoding, known)
        if format_of(file) in ("csv", "tsv"):  # an empty cell is absent
            records = ((n, {k: v or None for k, v in x.items()} if isinstance(x, dict) else x) for n, x in records)
        form, records = self.detect(label, records)
        for number, record in records:
            self.counts["read"] += 1
            self.current = name
            try:
                row = self.read(record, form)
            except RowFlaw as error:
                self.counts["rejected"] += 1
                try:
                    json.dumps(record, allow_nan=False)
                except (TypeError, ValueError, RecursionError):
                    record = shown(record)
                self.rejected.append({"file": label, "line": number, "row": record, **error.parts})
                continue
            row.setdefault("source", name)
            row.setdefault("id", f"{name}:{number}")
            if self.settings.dedup:
                mark = digest([row.get(name) for name in ("prompt", *GOLD_FIELDS)])
                if mark in self.seen:
                    self.counts["deduplicated"] += 1
                    continue
                self.seen.add(mark)
            self.counts["kept"] += 1
            yield row
        if self.counts["read"] == before:
            say(f"warning: {label} has no rows")

    def read(self, record: dict | RowFlaw, form: str) -> dict:
        if isinstance(record, RowFlaw):
            raise record
        settings = self.settings
        row = remapped(record, settings)
        if settings.kind == "auto":
            form = self.agreed(form, form_of(row), row)
        shape = convert(row, form, self.facts)
        row = shape.out
        self.unread.update(shape.unread)
        self.no_answer += shape.untaken is not None
        self.untaken.update(shape.untaken or ())
        self.notes.update(shape.notes)
        if settings.system_prompt:
            if row["prompt"][0]["role"] in ("system", "developer"):
                self.notes["rows kept their own system prompt"] += row["prompt"][0]["content"] != settings.system_prompt
            else:
                row["prompt"] = [{"role": "system", "content": settings.system_prompt}, *row["prompt"]]
        return row

    def agreed(self, form: str, row_form: str | None, row: dict) -> str:
        """The form to read a row by, from the forms of its file and of its fields; BadRow if these contradict."""
        if row_form in ("ours", "verl"):
            return row_form
        if row_form is None:  # the conversion says what is missing
            return "prompts" if form in ("ours", "verl") else form
        only_asks = row_form == "prompts" and form not in ("ours", "verl")
        if row_form == form or only_asks or (row_form, form) == ("math", "prompts"):
            return form  # if the row lacks what the form needs, the conversion says what
        got = f"a row of {row_form}, with the columns {', '.join(row)[:200]}"
        is_both = "verification_info" in row and {row_form, form} == {"math", "code"}
        advice = "one file per kind" + ", or --kind math, which reads answers and tests in verification_info" * is_both
        raise BadRow("row", got, f"{form}, like the other rows", advice)

    def detect(self, label: str, records: Iterator) -> tuple[str, Iterator]:
        """(Form of a file, all its records): the given kind, or the form of most of the first rows; notes why."""
        settings, head = self.settings, list(itertools.islice(records, HEAD))
        forms, kinds, fields, numbers, marked = Counter(), Counter(), {}, set(), 0
        for row in (row for _, row in head if isinstance(row, dict)):
            with contextlib.suppress(RowFlaw):
                row = remapped(row, settings)
                if not (form := form_of(row)):
                    continue
                forms[form] += 1
                fields.setdefault(form, [name for name in row if row[name] is not None])
                first = next((row[name] for name in Names.ANSWER if row.get(name) is not None), None)
                marked += form == "math" and marks_answer(opened(first))
                numbers.update(shown_numbers(row))
                if form in ("ours", "verl"):
                    kinds[kind_of(convert(row, form, FileFacts()).out)] += 1
        sources = frozenset(plain_name(source.partition(".")[0]) for source in settings.mapping.values())
        texts = frozenset(name for name, start in numbers if start is None)
        start = min((start for name, start in numbers if name not in texts), default=None)
        form, why = settings.kind, "as asked for"
        if form == "auto":  # in a tie, a form with answers wins
            form = max(forms, key=lambda form: (forms[form], form != "prompts"), default="prompts")
            names = ", ".join(fields.get(form, [])[:8])
            why = f"as {forms[form]} of the first {len(head)} rows have the fields {names}"
            why = why if forms else "as no row has the fields of another kind"
        worked = form == "math" and 2 * marked > (forms[form] if settings.kind == "auto" else len(head))
        self.facts = FileFacts(frozenset(settings.mapping), sources, start, texts, worked)
        self.kinds.update((kinds or ["prompts"]) if form in ("ours", "verl") else [form])
        self.why += f"{'; ' if self.why else ''}{label}: {form}, {why}"
        return form, itertools.chain(head, records)

    def error(self) -> UserError | None:
        """The error for bad rows that are not skipped, or for inputs without a usable row, with the first bad one."""
        if self.rejected and self.settings.on_bad == "fail":
            return BadRows(self.rejected)
        if self.counts["kept"]:
            return None
        inputs, bad = " ".join(self.files[:5]) + (" …" if len(self.files) > 5 else ""), len(self.rejected)
        counts = f"{self.counts['read']} read" + (f", {bad} bad" if bad else "")
        got = f"got no usable row from {inputs} ({counts}); expected at least one"
        first = self.rejected[0] if bad else None
        return UserError(f"{got}; the first bad one: {first['file']}:{first['line']}: {flaw_of(first)}" if bad else got)

    def say_notes(self) -> None:
        """Warn about columns that seem to belong to the question but are in no prompt; print the notes on rows."""
        read = self.counts["read"]
        for name, count in self.unread.items():
            moved = f"--map {shlex.quote(f'background={name}')}, which puts text or documents before the question, or "
            before = "" if is_media(name) or is_system(name) else moved
            before += "an environment that has these tools, or " if name in TOOLS else ""
            got = f"got the column {name}, which looks like a part of the question but is in no prompt"
            say(f"warning: {got} ({count} of {read} rows); try {before}--drop {shlex.quote(name)}")
        if self.untaken or 0 < self.no_answer < read or (self.no_answer and "math" in self.kinds):
            columns = ", ".join(self.untaken)[:200]
            advice = (
                f"; --map answer=COLUMN (or COLUMN.FIELD) or tests=COLUMN takes one of the columns {columns}"
                if columns
                else ""
            )
            say(f"note: {self.no_answer} of {read} rows have no answer, tests or completion{advice}")
        for text, count in self.notes.items():
            if count and (text != LETTER_ALONE or 2 * count >= self.counts["kept"]):
                say(f"note: {count} {text}")


def digest(value) -> bytes:
    """A hash of a JSON value, 16 bytes."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def load_rows(sources, kind: str = "auto", **reading) -> RowReader:
    """Read all rows of files, folders, globs or hub ids into the schema: `rows`, `kind`, `why`, `rejected`, `counts`.

    Args:
        sources: one input or a list: a path, a folder, a glob, `-` for stdin, `owner/name[:config][@split]`.
        kind: one of KINDS, or "auto": the kind of most of the first 100 rows of each file.
        **reading: fields of Settings, as the flags in FLAGS; `mapping` is {field of the schema: column or dotted path},
            `system_prompt` a text, and on_bad="skip" lists bad rows in `rejected`.

    Raises:
        BadRows: rows do not fit, and on_bad is "fail".
        UserError: an input cannot be read, an argument cannot be used, or there is no usable row.
    """
    reader = RowReader(sources, Settings(kind, **reading))
    reader.rows = list(reader)
    if error := reader.error():
        raise error
    reader.say_notes()
    return reader
