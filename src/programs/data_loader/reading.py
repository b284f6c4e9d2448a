"""Files, globs, hub and settings of reading."""

import codecs
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parts.data.data_files import open_data
from parts.data.rows import hub_rows, is_hub_id
from parts.foundation.messages import UserError, need, suggest
from programs.data_loader.bad_rows import DEFAULT_MAX_BYTES, PACKED, SUFFIXES
from programs.data_loader.form_names import check_kind
from programs.data_loader.json_values import Record
from programs.data_loader.records import (
    checked,
    csv_rows,
    generated_rows,
    json_lines,
    json_values,
    parquet_rows,
    text_rows,
    unfolded_rows,
)


def expand(sources, max_files: int = 100_000) -> list[str]:
    """The files behind paths, folders and globs, in order; hub ids, generators and `-` stay as they are."""
    found = []
    for source in [sources] if isinstance(sources, str | Path) else list(sources):
        path, source = Path(source), str(source)
        if source == "-" or source.startswith("reasoning_gym:"):
            found.append(source)
        elif path.is_dir():
            files = (
                file
                for file in sorted(path.rglob("*"))
                if not any(p.startswith(".") for p in file.parts[len(path.parts) :])
            )
            files = list(itertools.islice((str(f) for f in files if f.is_file() and format_of(str(f))), max_files))
            need(files, f"got the folder {source} without a data file; expected names such as x.jsonl or x.csv.gz")
            found += files
        elif path.exists():
            known = format_of(source)
            expected = f"a name that ends in {', '.join(SUFFIXES)}, also with .gz or .zst"
            need(known, f"got {source}; expected {expected}; try renaming it, or --input_format")
            found.append(source)
        elif any(mark in source for mark in "*?["):
            import glob

            files = [file for file in sorted(glob.glob(source, recursive=True)) if format_of(file)]
            need(files, f"got {source}, which matches no data file; expected at least one")
            found += files
        else:
            hub = is_hub_id(source) and not format_of(source)
            need(
                hub,
                f"got {source}, which is no file, folder or glob; expected one, or a hub id such as openai/gsm8k:main",
            )
            found.append(source)
    need(found, "got no input; expected files, folders, globs, hub ids or `-`")
    return found


def format_of(name: str) -> str | None:
    """The format that a file's name tells, `.gz` and `.zst` aside."""
    path = Path(name.lower())
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in PACKED else path.suffix)


def name_of(source: str) -> str:
    """What rows of this input have as `source`, unless they say it themselves."""
    if source == "-":
        return "stdin"
    if source.startswith("reasoning_gym:"):
        return source.partition("?")[0]
    if not Path(source).exists():
        return source
    path = Path(source)
    return Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem


def distinct_names(files: list[str]) -> dict[str, str]:
    """The name of each input; files of one name also carry the folders in which they differ."""
    names = {file: name_of(file) for file in files}
    for name, count in Counter(names.values()).items():
        alike = [file for file in names if names[file] == name]
        if count > 1 and all(Path(file).is_file() for file in alike):
            inside = {file: os.path.abspath(file) for file in alike}
            top = os.path.commonpath([os.path.dirname(path) for path in inside.values()])
            inside = {file: Path(path).relative_to(top) for file, path in inside.items()}
            short = Counter(path.parent / name for path in inside.values())
            # a.jsonl and a.csv in one folder differ only by what follows the stem
            names |= {f: str(p.parent / name if short[p.parent / name] == 1 else p) for f, p in inside.items()}
    return names


@dataclass
class Settings:
    """How rows are read: the keyword arguments of load_rows."""

    kind: str = "auto"
    mapping: dict = field(default_factory=dict)
    drop: tuple = ()
    system_prompt: str | None = None
    on_bad: str = "fail"
    limit: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    text_separator: str | None = None
    input_format: str | None = None
    dedup: bool = False
    encoding: str | None = None
    delimiter: str | None = None

    def __post_init__(self):
        check_kind(self.kind)
        self.mapping = dict(self.mapping or {})
        for field_name, source in self.mapping.items():
            need(field_name and source, f"got the mapping {field_name!r}={source!r}; expected field=source")
        need(self.on_bad in ("fail", "skip"), f"got on_bad {self.on_bad!r}; expected fail or skip")
        need(self.limit is None or self.limit > 0, f"got limit {self.limit}; expected 1 or more")
        need(self.max_bytes > 0, f"got max_bytes {self.max_bytes}; expected 1 or more")
        self.delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter, self.delimiter)
        wrong = f"got delimiter {self.delimiter!r}; expected one character, such as ';', or tab"
        need(self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter not in '"\r\n'), wrong)
        try:
            "".encode(self.encoding or "utf-8")
            if self.encoding and codecs.lookup(self.encoding).name == "utf-8":
                self.encoding = "utf-8-sig"
        except LookupError as error:
            raise UserError(f"got encoding: {error}; expected a name that Python knows, such as cp1252") from None
        formats = sorted(set(SUFFIXES.values()))
        known = self.input_format in (None, *formats)
        need(known, f"got input_format {self.input_format!r}; expected one of {', '.join(formats)}")


def reading_settings(kind: str, reading: dict) -> Settings:
    """The settings that keyword arguments of load_rows mean."""
    known = [name for name in Settings.__dataclass_fields__ if name != "kind"]
    wrong = [name for name in reading if name not in known]
    near = suggest(wrong[0], known) if wrong else ""
    need(not wrong, f"got the argument {wrong[:1]}; expected one of {', '.join(known)}{near}")
    return Settings(kind, **{**reading, "drop": tuple(reading.get("drop", ()))})


def records_of(source: str, settings: Settings) -> Iterator[Record]:
    """The rows of one input as they stand there."""
    if source.startswith("reasoning_gym:"):
        return generated_rows(source)
    if source != "-" and not Path(source).exists():
        return (checked(number, row) for number, row in enumerate(hub_rows(source), start=1))
    form = settings.input_format or format_of(source)
    if form == "parquet":
        need(source != "-", "got parquet on stdin; expected a file, as parquet is not read in one go")
        return parquet_rows(source, settings.max_bytes)
    return file_rows(source, form, settings)


def file_rows(source: str, form: str | None, settings: Settings) -> Iterator[Record]:
    """The rows of a file that is read as bytes, or of stdin."""
    name = "stdin" if source == "-" else source
    stream, form = open_data(source, form, settings.max_bytes, settings.encoding, settings.input_format is not None)
    with contextlib.closing(stream):
        if form in ("csv", "tsv"):
            yield from csv_rows(stream, name, "," if form == "csv" else "\t", settings.delimiter)
        elif form == "txt":
            yield from text_rows(stream, settings.text_separator)
        else:
            records = json_values(stream) if form == "json" else json_lines(stream)
            known = tuple(column.partition(".")[0] for column in settings.mapping.values())
            yield from unfolded_rows(records, name, known)
