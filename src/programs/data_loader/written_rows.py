"""Rows that this script wrote before, or that verl reads."""

from parts.data.verl_layout import OWN_INFO, VERL_COLUMNS
from programs.data_loader.answers import as_answer, ground_truth
from programs.data_loader.bad_rows import BadRow, shown
from programs.data_loader.code_tests import from_json
from programs.data_loader.forms import Shape
from programs.data_loader.messages import as_prompt

STORED = "JSON text, as json_columns says"


def as_ours(shape: Shape) -> None:
    """A row that this script wrote, for itself or for TRL: checked, and otherwise as it is."""
    row, out, shape.is_ours = shape.row, shape.out, True
    row.update(decoded(row, shape.used))
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    shape.used.add("prompt")


def as_verl(shape: Shape) -> None:
    """A row of verl's five columns; one that this script wrote comes back as it was."""
    row = shape.row
    extra = row.get("extra_info")
    gold = row["reward_model"].get("ground_truth") if isinstance(row["reward_model"], dict) else None
    field = extra.get("ground_truth_field") if isinstance(extra, dict) else None
    if not isinstance(field, str):
        foreign_verl(shape)
        return
    inner = {key: value for key, value in extra.items() if key not in OWN_INFO and value is not None}
    inner.update(decoded(extra, set()))
    inner = {key.removeprefix("column:"): value for key, value in inner.items()}
    name, _, form = field.partition(":")
    if name not in ("answer", "tests", "none"):
        raise BadRow("extra_info.ground_truth_field", shown(field), "answer, tests or none")
    if name != "none":
        inner[name] = from_json(gold, "reward_model.ground_truth", STORED) if form == "json" else gold
    others = {key: value for key, value in row.items() if key not in VERL_COLUMNS}  # agent_name, say
    shape.row = {**others, "prompt": row["prompt"], **inner}
    shape.used.clear()
    as_ours(shape)


def foreign_verl(shape: Shape) -> None:
    """A row that verl reads and this script did not write: its columns stay as they are, for --for verl."""
    row, out, model = shape.row, shape.out, shape.row["reward_model"]
    gold = model.get("ground_truth") if isinstance(model, dict) else None
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    out["source"] = as_answer(row["data_source"], "data_source")
    shape.used |= {"prompt", "data_source"}
    if gold is None and not (isinstance(model, dict) and model.get("style") == "model"):
        raise BadRow("reward_model", shown(model), 'an object such as {"ground_truth": "42"}')
    if gold not in (None, ""):
        out.update(ground_truth(gold, "reward_model.ground_truth", row))
    extra = row.get("extra_info")
    if isinstance(extra, dict):
        coded = decoded({**row, **extra}, set())
        row.update({name: value for name, value in coded.items() if name in row})
        extra = row["extra_info"] = {**extra, **{name: value for name, value in coded.items() if name in extra}}
        extra.pop("json_columns", None)
        if isinstance(extra.get("index"), int | str) and row.get("id") is None:
            out["id"] = str(extra["index"])
    for name in ("answer", "tests", "ground_truth", "source"):
        if name in out and row.get(name) is not None:  # a column of the row's own beside verl's
            out[f"column:{name}"] = row[name]
            shape.used.add(name)


def decoded(row: dict, used: set) -> dict:
    """Columns that a parquet file holds as JSON text, as `json_columns` says."""
    names = row.get("json_columns")
    if not isinstance(names, list):
        return {}
    used.add("json_columns")
    return {
        name: from_json(row[name], name, STORED)
        for name in names
        if isinstance(name, str) and row.get(name) is not None
    }
