"""A reward of verl's contract by TRL's."""

import inspect
import json

from contract import GOLD, completion_text, rows_of
from loading import HERE, load_file

SOURCE = load_file(HERE / "mine.py")  # keep it there
DATA_SOURCE = "data"  # for rows without a column data_source or source


def given_by_verl(text: str, row: dict) -> dict:
    """What verl would give to compute_score."""
    extra, gold = row.get("extra_info"), row.get(GOLD)
    if not isinstance(extra, dict):
        extra = {name: value for name, value in row.items() if name != GOLD}
    if GOLD == "reward_model":  # a row in verl's form, taken as it is
        gold = gold["ground_truth"]
    elif not isinstance(gold, str):  # as data_loader.py writes it
        gold = json.dumps(gold)
    name = row.get("data_source") or row.get("source") or DATA_SOURCE
    return {"data_source": name, "solution_str": text, "ground_truth": gold, "extra_info": extra}


def taken(given: dict) -> dict:
    """What source_name takes of these."""
    parameters = inspect.signature(SOURCE.source_name).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}


def value_of(result) -> float | None:
    """The score in what a reward returns: a number, a dict with `score`, or a tuple that begins with it."""
    result = result["score"] if isinstance(result, dict) else result
    result = result[0] if isinstance(result, tuple | list) else result
    return None if result is None else float(result)


def reward_name(prompts, completions, gold_column, **columns) -> list[float | None]:
    """source_name of SOURCE by TRL's contract."""
    rows = rows_of(prompts, len(completions), {"gold_column": gold_column, **columns})
    pairs = zip(map(completion_text, completions), rows, strict=True)
    results = [SOURCE.source_name(**taken(given_by_verl(text, row))) for text, row in pairs]
    return [value_of(result) for result in results]
