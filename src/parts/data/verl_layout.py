"""verl's row layout: the ground truth in reward_model, all other columns in extra_info."""

import json

VERL_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
# keys in extra_info that are not columns of the data
OWN_INFO = ("index", "split", "ground_truth_field", "json_columns", "prompt_is_text", "absent_columns")


def ground_truth_of(row: dict) -> tuple[str | None, str, str]:
    """(column, extra_info.ground_truth_field, text) of a row's ground truth: its tests, else its answer, else none."""
    gold = next((name for name in ("tests", "answer") if row.get(name) is not None), None)
    truth = "" if gold is None else row[gold]
    if isinstance(truth, str):
        return gold, gold or "none", truth
    return gold, f"{gold}:json", json.dumps(truth, ensure_ascii=False)


def info_key(name: str) -> str:
    """A column's key in extra_info: prefixed with `column:` where it would clash with OWN_INFO."""
    return f"column:{name}" if name in OWN_INFO or name.startswith("column:") else name
