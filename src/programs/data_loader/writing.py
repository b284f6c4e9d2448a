"""Write rows for each target, and choose held-out rows."""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from parts.data.rows import bare
from parts.data.verl_layout import VERL_COLUMNS, ground_truth_of, info_key
from parts.foundation.messages import need, say
from programs.data_loader.answers import ground_truth
from programs.data_loader.bad_rows import TARGETS
from programs.data_loader.form_names import kind_of

# arguments that TRL itself passes to reward functions
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
VERL_OUTSIDE = ("agent_name", "__rollout_n__")  # columns that verl reads beside its five
DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?Z?")
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # str.splitlines would split there
MESSAGE_FIELDS = ("prompt", "completion", "chosen", "rejected")
VERL_OBJECTS = ("reward_model", "tools_kwargs", "interaction_kwargs")  # never JSON text
LOOSE = (*MESSAGE_FIELDS, *VERL_OBJECTS)  # objects here may differ in keys, as readers take null for absent


def trl_row(row: dict) -> dict:
    """A row as TRL's trainers read it, with completions as messages, like the prompt."""
    clash = [name for name in TRL_ARGUMENTS if name in row]
    advice = f"try --map old_{clash[0]}={clash[0]}" if clash else ""
    need(not clash, f"got the column {clash[:1]}, a name that TRL itself passes to rewards; expected another; {advice}")
    texts = [name for name in ("completion", "chosen", "rejected") if isinstance(row.get(name), str)]
    return {**row, **{name: [{"role": "assistant", "content": row[name]}] for name in texts}}


def verl_row(row: dict, index: int, split: str, data_source: str = "") -> dict:
    """A row as verl's RLHFDataset reads it, with all that verl has no column for in extra_info.

    A row with `extra_info` or `reward_model` is in verl's form already and keeps its keys in place.
    """
    kind = kind_of(row)
    head = {"data_source": data_source or row.get("source") or "data", "prompt": row["prompt"]}
    head["ability"] = kind if kind in ("math", "code") else "chat"
    if isinstance(row.get("extra_info"), dict) or isinstance(row.get("reward_model"), dict):
        return head | own_verl_columns(row, index, split)
    gold, field, truth = ground_truth_of(row)
    outside = {name: row[name] for name in VERL_OUTSIDE if name in row}
    extra = {info_key(name): value for name, value in row.items() if name not in ("prompt", gold, *outside)}
    extra = {"index": index, "split": split, "ground_truth_field": field, **extra}
    return {**head, "reward_model": {"style": "rule", "ground_truth": truth}, **outside, "extra_info": extra}


def own_verl_columns(row: dict, index: int, split: str) -> dict:
    """The original columns of a row in verl's form, with its present answer or tests as ground truth."""
    for name in ("reward_model", "extra_info"):
        got = f"got the column {name} {str(row.get(name))[:60]!r}, a name of verl's"
        need(isinstance(row.get(name), dict | None), f"{got}; expected an object; try --map old_{name}={name}")
    extra, model = row.get("extra_info"), row.get("reward_model") or {"style": "rule"}
    truth = model.get("ground_truth")
    held = ground_truth(truth, "reward_model.ground_truth", row) if truth not in (None, "") else {}
    if "ground_truth" not in held and any(row.get(name) != held.get(name) for name in ("tests", "answer")):
        model = {**model, "ground_truth": ground_truth_of(row)[2]}
    if "reward_model" not in row:
        extra = {"index": index, "split": split, **(extra or {})}
    derived = re.fullmatch(r".*:\d+", row.get("id", "")) or row.get("id") == str((extra or {}).get("index"))
    left = {"prompt", "source", "tests", "answer", *held, *(["id"] if derived else []), *VERL_COLUMNS} - {"ability"}
    others = {name.removeprefix("column:"): value for name, value in row.items() if name not in left}
    return {"reward_model": model, **({} if extra is None else {"extra_info": extra}), **others}


def write_rows(rows: Iterable[dict], path, target: str = "ours", *, split: str = "train", data_source: str = "") -> int:
    """Write normalised rows to a .jsonl or .parquet file and return their number; the file appears whole or not at all.

    Args:
        target: "ours", "trl" or "verl"; load_rows reads each of them back.
        split: verl's extra_info.split.
        data_source: verl's data_source of all rows; "" takes each row's source.

    Raises:
        UserError: the path, the target or a column cannot be used.
    """
    rows, path = list(rows), Path(path)
    check_out(path, target)
    with new_file(path) as temporary:
        fill_file(rows, temporary, path.suffix, target, split, data_source)
    return len(rows)


def check_out(path: Path, target: str) -> None:
    """Raise UserError unless the target is known and the path can be written to."""
    need(target in TARGETS, f"got the target {target!r}; expected one of {', '.join(TARGETS)}")
    need(path.suffix in (".jsonl", ".parquet"), f"got the output {path}; expected a name ending in .jsonl or .parquet")
    need(path.parent.is_dir(), f"got the output {path}; expected a folder that exists; try mkdir -p {path.parent}")
    need(not path.is_dir(), f"got the output {path}, a folder; expected the name of a file")


def fill_file(rows: list[dict], path: Path, suffix: str, target: str, split: str, data_source: str) -> int:
    """Write rows to a file in the target's form; returns how many of verl's rows have no ground truth."""
    if target == "verl":
        rows = [verl_row(row, index, split, data_source) for index, row in enumerate(rows)]
    elif target == "trl":
        rows = [trl_row(row) for row in rows]
    if suffix == ".parquet":
        write_parquet(rows, path, target)
    else:
        with open(path, "w", encoding="utf-8", newline="\n") as f:
            f.writelines(ENCODER.encode(row).translate(LINE_ENDS) + "\n" for row in rows)
        if target != "ours":
            warn_of_dates(rows)
    models = [row.get("reward_model") or {} for row in rows] if target == "verl" else []
    lacking = sum(model.get("ground_truth") in (None, "") and model.get("style") != "model" for model in models)
    if lacking:
        got = f'{lacking} of {len(rows)} rows have no ground truth: without answer and tests verl gets ""'
        say(f"warning: {got}; try --map answer=COLUMN")
    return lacking


def warn_of_dates(rows: list[dict]) -> None:
    """Warn about text columns that hold only dates, which pyarrow's JSON reader turns into datetimes."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        objects = [row[name] for name in ("extra_info", "reward_model") if isinstance(row.get(name), dict)]
        for name, value in itertools.chain(*(cells.items() for cells in [row, *objects])):
            if isinstance(value, str):
                texts.setdefault(name, []).append(value)
    if names := ", ".join(name for name, values in texts.items() if all(map(DATE_LIKE.fullmatch, values))):
        say(f"warning: datasets will read {names} as dates, as every value looks like one; try a .parquet output")


def write_parquet(rows: list[dict], path: Path, target: str) -> None:
    """Write rows as parquet, with verl's `extra_info` as an object of columns.

    If parquet would change a column of `extra_info` (objects with different keys, numbers beside text), it becomes JSON
    text and is listed in `json_columns`, where rewards look. UserError if another column would change.
    """
    import pyarrow
    import pyarrow.parquet

    inner = [row.get("extra_info") or {} for row in rows] if target == "verl" else []
    outer = [{name: row[name] for name in row if not (inner and name == "extra_info")} for row in rows]
    columns, parts, coded = columns_of(outer), columns_of(inner), []
    for name, column in columns.items():
        got = f"got {name} with values that parquet would change"
        need(column is not None, f"{got}; expected values of one type; try a .jsonl output")
    for name in [name for name, column in parts.items() if column is None]:
        need(name not in VERL_OBJECTS, f"got {name} that parquet would change; try a .jsonl output")
        coded.append(name)
        texts = [None if row.get(name) is None else ENCODER.encode(row[name]) for row in inner]
        parts[name] = pyarrow.array(texts, pyarrow.string())
    if coded:
        marks = [[*coded, *(row.get("json_columns") or ())] for row in inner]
        parts["json_columns"] = pyarrow.array(marks, pyarrow.list_(pyarrow.string()))
    if parts:
        columns["extra_info"] = pyarrow.StructArray.from_arrays(list(parts.values()), list(parts))
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def columns_of(rows: list[dict]) -> dict:
    """{column: pyarrow array, or None if parquet would change its values}."""
    import pyarrow

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            array = pyarrow.array(values)
            back = array.to_pylist()
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
            array = back = None
        same = back == values or (name in LOOSE and bare(back) == bare(values))
        fits = same and "struct<>" not in str(array.type)  # parquet has no object without fields
        if fits and pyarrow.types.is_null(array.type):
            array = pyarrow.nulls(len(values), pyarrow.string())
        columns[name] = array if fits else None
    return columns


@contextlib.contextmanager
def new_file(path: Path):
    """A temporary file beside `path` that replaces it if the block succeeds and is deleted if not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def split_size(text: str, count: int) -> tuple[str, int]:
    """(Name, rows) of --split NAME=N or NAME=SHARE; the name may be left out and is then eval."""
    name, _, size = text.rpartition("=") if "=" in text else ("eval", "", text)
    try:
        number = int(size) if size.isdigit() else round(float(size) * count)
    except (ValueError, OverflowError):
        number = 0
    good = re.fullmatch(r"\w+", name) and name != "rejected" and 0 < number < count
    expected = f"expected NAME=N with N from 1 to {count - 1}, or a share, or one of these alone; try --split 0.1"
    need(good, f"got --split {text} of {count} rows; {expected}")
    return name, number
