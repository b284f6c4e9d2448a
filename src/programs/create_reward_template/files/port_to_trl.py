"""A reward of verl's contract by TRL's."""

import asyncio
import inspect
import json

from contract import GOLD, completion_text, finished, rows_of
from port import CASES, source

DATA_SOURCE = "data"  # for rows without a column data_source or source


def arguments_of(text: str, row: dict) -> dict:
    """What verl would give to compute_score."""
    extra, gold = row.get("extra_info"), row.get(GOLD)
    if not isinstance(extra, dict):
        extra = {name: value for name, value in row.items() if name != GOLD}
    if GOLD == "reward_model":  # a row in verl's form, taken as it is
        gold = gold["ground_truth"]
    elif not isinstance(gold, str):  # as data_loader.py writes it
        gold = json.dumps(gold)
    name = row.get("data_source") or row.get("source") or DATA_SOURCE
    given = {"data_source": name, "solution_str": text, "ground_truth": gold, "extra_info": extra}
    parameters = inspect.signature(source()).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {p.name: given[p.name] for p in parameters if p.name in given}


def value_of(result) -> float | None:
    """The score in what a compute_score returns: a number, a dict with `score`, or a tuple that begins with it."""
    result = result["score"] if isinstance(result, dict) else result
    result = result[0] if isinstance(result, tuple | list) else result
    return None if result is None else float(result)


async def reward_name(prompts, completions, gold_column, **columns) -> list[float | None]:
    """source_name of SOURCE by TRL's contract."""
    rows = rows_of(prompts, len(completions), {"gold_column": gold_column, **columns})
    results = [source()(**arguments_of(completion_text(c), row)) for c, row in zip(completions, rows, strict=True)]
    results = await asyncio.gather(*results)
    return [value_of(result) for result in results]


def trl_results() -> list[tuple]:
    """(contract, case, score, expected score) of every case."""
    results = []
    columns = {name: [row.get(name) for _, row, _ in CASES] for _, row, _ in CASES for name in row}
    prompts = columns.pop("prompt", [None] * len(CASES))
    scores = finished(reward_name(prompts, [text for text, _, _ in CASES], **columns))
    for case, got in zip(CASES, scores, strict=True):
        text, row, expected = case
        if expected == "the original's":
            expected = value_of(finished(source()(**arguments_of(text, row))))
        results.append(("TRL", case, got, expected))
    return results
