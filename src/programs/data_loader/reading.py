"""Files, globs, the hub, and the settings of reading."""

import codecs
import glob
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parts.data.rows import SUFFIXES, file_records, hub_rows, is_hub_id
from parts.foundation.messages import RowFlaw, UserError, need, suggest
from programs.data_loader.form_names import check_kind

FILE_FORMS = {**SUFFIXES, ".txt": "txt"}


def expand(sources, form: str | None = None) -> list[str]:
    """The files behind paths, folders and globs, in order; hub ids and `-` stay as they are. A form fits any name."""
    files = []
    for source in map(str, [sources] if isinstance(sources, str | Path) else sources):
        path = Path(source)
        gym = f"got {source}; expected a file; try writing it: json.dump of each row of reasoning_gym.create_dataset(…)"
        need(not source.startswith("reasoning_gym:"), gym)
        if path.is_dir() or (any(mark in source for mark in "*?[") and not path.exists()):
            inside = sorted(map(str, path.rglob("*")) if path.is_dir() else glob.glob(source, recursive=True))
            hidden = len(path.parts) if path.is_dir() else len(Path(source).parts)
            inside = [file for file in inside if format_of(file) and Path(file).is_file()]
            inside = [file for file in inside if not any(p.startswith(".") for p in Path(file).parts[hidden:])]
            need(inside, f"got {source} without a data file; expected names such as x.jsonl or x.csv.gz")
            files += inside
            continue
        expected = f"a name that ends in {', '.join(FILE_FORMS)}, also with .gz"
        known = form or source == "-" or not path.exists() or format_of(source)
        need(known, f"got {source}; expected {expected}; try renaming it, or --input_format")
        there = source == "-" or path.exists() or (is_hub_id(source) and not format_of(source))
        need(there, f"got {source}, which is no file, folder or glob; expected one, or a hub id: openai/gsm8k:main")
        files.append(source)
    need(files, "got no input; expected files, folders, globs, hub ids or `-`")
    return files


def format_of(name: str) -> str | None:
    """The format that a file's name tells, `.gz` aside."""
    path = Path(name.lower())
    return FILE_FORMS.get(Path(path.stem).suffix if path.suffix == ".gz" else path.suffix)


def distinct_names(files: list[str]) -> dict[str, str]:
    """What rows of each input have as `source`, unless they say it themselves: its stem, or its path."""
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
    input_format: str | None = None
    dedup: bool = False
    encoding: str | None = None
    delimiter: str | None = None

    def __post_init__(self):
        check_kind(self.kind)
        self.mapping, self.drop = dict(self.mapping or {}), tuple(self.drop)
        for field_name, source in self.mapping.items():
            need(field_name and source, f"got the mapping {field_name!r}={source!r}; expected field=source")
        need(self.on_bad in ("fail", "skip"), f"got on_bad {self.on_bad!r}; expected fail or skip")
        need(self.limit is None or self.limit > 0, f"got limit {self.limit}; expected 1 or more")
        self.delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter, self.delimiter)
        wrong = f"got delimiter {self.delimiter!r}; expected one character, such as ';', or tab"
        need(self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter not in '"\r\n'), wrong)
        try:
            if self.encoding and codecs.lookup(self.encoding).name == "utf-8":
                self.encoding = None  # a byte order mark is taken off
        except LookupError as error:
            raise UserError(f"got encoding: {error}; expected a name that Python knows, such as cp1252") from None
        formats = sorted({*FILE_FORMS.values()})
        known = self.input_format in (None, *formats)
        need(known, f"got input_format {self.input_format!r}; expected one of {', '.join(formats)}")


def reading_settings(kind: str, reading: dict) -> Settings:
    """The settings that keyword arguments of load_rows mean."""
    known = [name for name in Settings.__dataclass_fields__ if name != "kind"]
    for name in reading:
        need(name in known, f"got the argument {name}; expected one of {', '.join(known)}{suggest(name, known)}")
    return Settings(kind, **reading)


def records_of(source: str, settings: Settings) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line or number, row or its flaw) of one input; an empty cell of a table is absent."""
    if source != "-" and not Path(source).exists():
        yield from enumerate(hub_rows(source), start=1)
        return
    form, known = settings.input_format or format_of(source), [c.partition(".")[0] for c in settings.mapping.values()]
    more = (settings.encoding, settings.delimiter, settings.input_format is not None, known)
    for number, row in file_records(source, form, *more):
        if form in ("csv", "tsv") and isinstance(row, dict):
            row = {column: cell or None for column, cell in row.items()}
        yield number, row
