"""The layout of rows for verl: the ground truth in reward_model, all other columns in extra_info."""

import json

VERL_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
# of extra_info, beside columns
OWN_INFO = ("index", "split", "ground_truth_field", "json_columns", "prompt_is_text", "absent_columns")


def ground_truth_of(row: dict) -> tuple[str | None, str, str]:
    """(The column that holds it, extra_info.ground_truth_field, its text): the tests, else the answer, else none."""
    gold = next((name for name in ("tests", "answer") if row.get(name) is not None), None)
    truth = "" if gold is None else row[gold]
    if isinstance(truth, str):
        return gold, gold or "none", truth
    return gold, f"{gold}:json", json.dumps(truth, ensure_ascii=False)


def info_key(name: str) -> str:
    """A column's name in extra_info, which has names of its own."""
    return f"column:{name}" if name in OWN_INFO or name.startswith("column:") else name
