"""Rows written for each target."""

import contextlib
import itertools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from parts.data.verl_layout import OWN_INFO, VERL_COLUMNS, ground_truth_of, info_key
from parts.foundation.messages import UserError, need, say
from programs.data_loader.bad_rows import CHUNK, TARGETS
from programs.data_loader.form_names import kind_of
from programs.data_loader.published_tests import ground_truth

# names that TRL's trainers give to reward functions themselves
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
VERL_OUTSIDE = ("agent_name", "__rollout_n__")  # what verl reads beside its five columns
VERL_OBJECTS = ("reward_model", ("extra", "tools_kwargs"), ("extra", "interaction_kwargs"))  # never JSON text
NO_GOLD = {*OWN_INFO, *VERL_COLUMNS, "source", "id", "agent_name", "need_tools_kwargs", "style"}
DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?Z?")
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # str.splitlines cuts there


def json_line(row: dict) -> str:
    """A row as one line of JSON, on any reader's idea of lines."""
    text = ENCODER.encode(row)
    if not text.isascii() and any(mark in text for mark in "\x85\u2028\u2029"):
        text = text.translate(LINE_ENDS)
    return text + "\n"


def trl_row(row: dict) -> dict:
    """A row as TRL's trainers read it: completions are messages like the prompt; `text_fields` names those of text."""
    clash = [name for name in TRL_ARGUMENTS if name in row]
    advice = f"try --map old_{clash[0]}={clash[0]}" if clash else ""
    need(not clash, f"got the column {clash[:1]}, a name that TRL gives to rewards itself; expected another; {advice}")
    texts = [name for name in ("completion", "chosen", "rejected") if isinstance(row.get(name), str)]
    if not texts:
        return row
    turned = {name: [{"role": "assistant", "content": row[name]}] for name in texts}
    return {**row, **turned, "text_fields": texts}


def verl_row(row: dict, index: int, split: str, data_source: str = "") -> dict:
    """A row as verl's RLHFDataset reads it; all that verl has no column for goes into extra_info.

    `data_source` is the row's own source where none is named; extra_info keeps that one in any case. A row with an
    `extra_info` or `reward_model` of its own is in verl's form already, and keeps each key where verl reads it.
    """
    if isinstance(row.get("extra_info"), dict) or isinstance(row.get("reward_model"), dict):
        return own_verl_row(row, index, split, data_source)
    (gold, field, truth), kind = ground_truth_of(row), kind_of(row)
    extra = {"index": index, "split": split, "ground_truth_field": field}
    outside = {name: row[name] for name in VERL_OUTSIDE if name in row}
    for name, value in row.items():
        if name not in ("prompt", gold, *outside):
            extra[info_key(name)] = value
    return {
        "data_source": data_source or row.get("source") or "data",
        "prompt": row["prompt"],
        "ability": kind if kind in ("math", "code") else "chat",
        "reward_model": {"style": "rule", "ground_truth": truth},
        **outside,
        "extra_info": extra,
    }


def own_verl_row(row: dict, index: int, split: str, data_source: str) -> dict:
    """A row in verl's form as it was before reading, with the prompt, and the answer or tests, that it has now."""
    extra, kind = row.get("extra_info"), kind_of(row)
    model = row.get("reward_model") or {"style": "rule"}
    truth = model.get("ground_truth")
    held = ground_truth(truth, "reward_model.ground_truth", row) if truth not in (None, "") else {}
    if "ground_truth" not in held and any(row.get(name) != held.get(name) for name in ("tests", "answer")):
        truth = row.get("tests", row.get("answer", ""))
        model = {**model, "ground_truth": truth if isinstance(truth, str) else ENCODER.encode(truth)}
    if "reward_model" not in row:
        extra = {"index": index, "split": split, **(extra or {})}
    derived = re.fullmatch(r".*:\d+", row.get("id", "")) or row.get("id") == str((extra or {}).get("index"))
    left = {"prompt", "source", "tests", "answer", *held, *(["id"] if derived else []), *VERL_COLUMNS}
    return {
        "data_source": data_source or row.get("source") or "data",
        "prompt": row["prompt"],
        "ability": row.get("ability", kind if kind in ("math", "code") else "chat"),
        "reward_model": model,
        **({} if extra is None else {"extra_info": extra}),
        **{name.removeprefix("column:"): value for name, value in row.items() if name not in left},
    }


def target_rows(rows: Iterable[dict], target: str, split: str, data_source: str = "") -> Iterator[dict]:
    """Rows in the shape of the target."""
    for index, row in enumerate(rows):
        if target == "verl":
            row = verl_row(row, index, split, data_source)
        yield trl_row(row) if target == "trl" else row


def write_rows(rows: Iterable[dict], path, target: str = "ours", *, split: str = "train", data_source: str = "") -> int:
    """Write normalised rows to a .jsonl or .parquet file and return their number; the file appears whole or not at all.

    Args:
        target: "ours", "trl" or "verl"; load_rows reads each of them back as it was.
        split: what verl's extra_info.split says.
        data_source: verl's data_source of all rows; "" is each row's source.

    Raises:
        UserError: the path, the target or a column cannot be used.
    """
    rows, path = list(rows), Path(path)
    check_out(path, target)
    with new_file(path) as temporary:
        return fill_file(lambda: iter(rows), temporary, path.suffix, (target, split, data_source))[0]


def check_out(path: Path, target: str) -> None:
    """Raise UserError unless something can be written there."""
    need(target in TARGETS, f"got the target {target!r}; expected one of {', '.join(TARGETS)}")
    need(path.suffix in (".jsonl", ".parquet"), f"got the output {path}; expected a name in .jsonl or .parquet")
    need(path.parent.is_dir(), f"got the output {path}; expected a folder that exists; try mkdir -p {path.parent}")
    need(not path.is_dir(), f"got the output {path}, a folder; expected the name of a file")


def fill_file(make_rows: Callable[[], Iterator[dict]], path: Path, suffix: str, shape: tuple[str, str, str]) -> tuple:
    """Write the rows that make_rows gives to a file, shaped as target_rows shapes them; parquet asks for them twice.

    Returns their number, and how many of verl's have no ground truth.
    """
    target, lacking = shape[0], Counter()
    if suffix == ".parquet":
        count = write_parquet(lambda: target_rows(make_rows(), *shape), path, target, lacking)
        return count, tell_lacking(lacking, count)
    count, dates = 0, {}
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for row in target_rows(make_rows(), *shape):
            f.write(json_line(row))
            count += 1
            if target != "ours":
                watch_dates(row, dates)
            watch_truth(row, target, lacking)
    if dated := [name for name, all_dates in dates.items() if all_dates]:
        what = f"datasets reads {', '.join(dated)} of a .jsonl as dates, as each value looks like one"
        say(f"warning: {what}; try a .parquet output")
    return count, tell_lacking(lacking, count)


def watch_truth(row: dict, target: str, lacking: Counter) -> None:
    """Count a row of verl's without ground truth, under "", and the columns in which it could be."""
    model = row.get("reward_model") or {}
    if target != "verl" or model.get("ground_truth") not in (None, "") or model.get("style") == "model":
        return
    columns = {**row, **(row.get("extra_info") or {})}
    lacking.update(
        ["", *(n for n, v in columns.items() if n not in NO_GOLD and isinstance(v, str | int | float | list))]
    )


def tell_lacking(lacking: Counter, count: int) -> int:
    """Say how many rows have no ground truth; returns that number."""
    if rows := lacking.pop("", 0):
        columns = ", ".join(lacking) or "none"
        got = f'{rows} of {count} rows have no ground truth (neither answer nor tests), and verl gets "" there'
        say(f"warning: {got}; columns that could hold it: {columns[:200]}; try --map answer=COLUMN")
    return rows


def watch_dates(row: dict, dates: dict) -> None:
    """Note which text columns hold nothing but dates so far: pyarrow's JSON reader turns those into datetimes."""
    inner = {**(row.get("extra_info") or {}), "ground_truth": row.get("reward_model", {}).get("ground_truth")}
    for name, value in {**row, **(inner if "reward_model" in row else {})}.items():
        if isinstance(value, str) and dates.get(name, True):
            dates[name] = bool(DATE_LIKE.fullmatch(value))


@contextlib.contextmanager
def new_file(path: Path):
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UserError(f"got the output {path}: {error.strerror}; expected a folder to write to") from None
    os.close(handle)
    try:
        yield Path(temporary)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's file is for its owner only
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def chunks(rows: Iterator[dict], size: int = CHUNK) -> Iterator[list[dict]]:
    """Lists of so many rows."""
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def write_parquet(make_rows: Callable[[], Iterator[dict]], path: Path, target: str, lacking: Counter) -> int:
    """Write parquet in two passes: one finds the types of all columns, one writes.

    A column whose values parquet would change (objects of different keys, numbers beside text) is stored as JSON text,
    and its name in `json_columns`; load_rows decodes it.
    """
    import pyarrow
    import pyarrow.parquet

    plan = ColumnPlan(target)
    for chunk in chunks(make_rows()):
        for row in chunk:
            watch_truth(row, target, lacking)
        plan.look([flat(row, target) for row in chunk])
    plan.conclude()
    count = 0
    schema = plan.schema()
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for chunk in chunks(make_rows()):
            rows = [nested(plan.encode(flat(row, target)), target) for row in chunk]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def flat(row: dict, target: str) -> dict:
    """A target row with verl's extra_info spread out, so that its fields are planned as columns."""
    if target != "verl":
        return row
    spread_out = {("extra", name): value for name, value in (row.get("extra_info") or {}).items()}
    return {**{name: value for name, value in row.items() if name != "extra_info"}, **spread_out}


def nested(row: dict, target: str) -> dict:
    """The opposite of flat."""
    if target != "verl":
        return row
    outer = {name: value for name, value in row.items() if not isinstance(name, tuple)}
    inner = {name[1]: value for name, value in row.items() if isinstance(name, tuple)}
    return {**outer, **({"extra_info": inner} if inner else {})}


MESSAGE_FIELDS = ("prompt", "completion", "chosen", "rejected")
LOOSE = (*MESSAGE_FIELDS, *VERL_OBJECTS)  # objects may differ in their keys: readers take null for absent


class ColumnPlan:
    """The parquet type of each column, and which ones have to be JSON text to come back as they were."""

    def __init__(self, target: str):
        self.target = target
        self.types: dict = {}  # column -> types seen; None: JSON text
        self.as_json: list = []

    def look(self, rows: list[dict]) -> None:
        """Take in a chunk of rows."""
        import pyarrow

        for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
            values = [row.get(name) for row in rows]
            try:
                column = pyarrow.array(values)
                back = column.to_pylist()
                same = back == values or (name in LOOSE and bare(back) == bare(values))
            except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
                same = False
            seen = self.types.setdefault(name, [])
            if not same:
                self.types[name] = None
            elif seen is not None and "struct<>" in str(column.type):  # parquet has no object without fields
                self.types[name] = None
            elif seen is not None and column.type not in seen:
                seen.append(column.type)

    def conclude(self) -> None:
        """Merge the types of all chunks; fixed columns must not become text."""
        import pyarrow

        for name, types in self.types.items():
            if types is None:
                merged = None
            else:
                merged = self.merge(types, loose=name in LOOSE)
            if merged is None or pyarrow.types.is_null(merged):
                fixed = name in ("prompt", *VERL_OBJECTS) or (self.target == "trl" and name in MESSAGE_FIELDS)
                shown_name = f"extra_info.{name[1]}" if isinstance(name, tuple) else name
                got = f"got {shown_name} with values that parquet would change; expected values alike"
                need(not fixed or merged is not None, f"{got}; try an output in .jsonl")
                self.as_json.append(name)
                merged = pyarrow.string()
            self.types[name] = merged

    def merge(self, types: list, loose: bool):
        """One type for all, or None; objects may differ in their keys only where absent ones are told from null."""
        import pyarrow

        kinds = [kind for kind in types if not pyarrow.types.is_null(kind)] or types
        strict = any("struct" in str(kind) for kind in kinds) and not loose
        if strict and len(kinds) > 1:
            return None
        try:
            schemas = [pyarrow.schema([("x", kind)]) for kind in kinds]
            return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
        except (pyarrow.ArrowException, ValueError, TypeError):
            return None

    def encode(self, row: dict) -> dict:
        """A row with JSON text where the plan says so."""
        names = [name for name in self.as_json if row.get(name) is not None]
        if not names:
            return row
        marks = ("extra", "json_columns") if self.target == "verl" else "json_columns"
        plain = [name[1] if isinstance(name, tuple) else name for name in names]
        return {**row, **{name: ENCODER.encode(row[name]) for name in names}, marks: plain}

    def schema(self):
        """The parquet schema."""
        import pyarrow

        listed = pyarrow.list_(pyarrow.string())
        if self.target != "verl":
            columns = {**self.types, **({"json_columns": listed} if self.as_json else {})}
            return pyarrow.schema(list(columns.items()))
        outer = [(name, kind) for name, kind in self.types.items() if not isinstance(name, tuple)]
        inner = [(name[1], kind) for name, kind in self.types.items() if isinstance(name, tuple)]
        inner += [("json_columns", listed)] if self.as_json else []
        return pyarrow.schema([*outer, *([("extra_info", pyarrow.struct(inner))] if inner else [])])


def bare(value):
    """A value as parquet gives it back, without the keys that only other rows have."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list) else value
