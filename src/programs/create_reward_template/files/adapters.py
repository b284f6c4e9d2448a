"""The two contracts of a new reward, and their self-tests."""

import json

from contract import GOLD, completion_text, finished, rows_of, verl_row
from short_answer import CASES, score  # of the task that was asked for


def reward_name(prompts, completions, gold_column, **columns) -> list[float | None]:
    """Score a batch by TRL's contract; None where the reward does not apply. Range: [0, 1]."""
    rows = rows_of(prompts, len(completions), {"gold_column": gold_column, **columns})
    return [score(completion_text(c), row) for c, row in zip(completions, rows, strict=True)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """Score a completion by verl's contract, which knows no None: the score is 0, and `applies` too."""
    value = score(solution_str, verl_row(ground_truth, extra_info))
    return {"score": 0.0 if value is None else value, "applies": float(value is not None)}


def trl_results() -> list[tuple]:
    """(contract, case, score, expected score) of every case, as text and as chat messages."""
    results = []
    columns = {name: [row.get(name) for _, row, _ in CASES] for _, row, _ in CASES for name in row}
    prompts = columns.pop("prompt", [None] * len(CASES))
    texts = [text for text, _, _ in CASES]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    for contract, completions in (("TRL", texts), ("TRL, chat", messages)):
        scores = finished(reward_name(prompts, completions, **columns))
        results += [(contract, case, got, case[2]) for case, got in zip(CASES, scores, strict=True)]
    return results


def verl_results() -> list[tuple]:
    """The same by verl's contract."""
    results = []
    for case in CASES:
        text, row, expected = case
        extra = {name: value for name, value in row.items() if name != GOLD} | {"ground_truth_field": f"{GOLD}:json"}
        got = finished(compute_score("self-test", text, json.dumps(row.get(GOLD)), extra))
        results.append(("verl", case, got["score"] if got["applies"] else None, expected))
    return results
