"""The two contracts of a new reward, its self-test and its command line."""

import json
import sys

from contract import GOLD, completion_text, rows_of, verl_row
from short_answer import CASES, score  # of the task that was asked for


def reward_name(prompts, completions, gold_column, **columns) -> list[float | None]:
    """Score a batch by TRL's contract; None where the reward does not apply. Range: [0, 1]."""
    rows = rows_of(prompts, len(completions), {"gold_column": gold_column, **columns})
    return [score(completion_text(c), row) for c, row in zip(completions, rows, strict=True)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """Score a completion by verl's contract, which knows no None: the score is 0, and `applies` too."""
    value = score(completion_text(solution_str), verl_row(ground_truth, extra_info))
    return {"score": 0.0 if value is None else value, "applies": float(value is not None)}


def by_trl(text: str, row: dict) -> float | None:
    """The score of a case by TRL's contract."""
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    return reward_name(prompts=[row.get("prompt")], completions=[text], **columns)[0]


def by_verl(text: str, row: dict) -> float | None:
    """The score of a case by verl's contract."""
    extra = {name: value for name, value in row.items() if name != GOLD} | {"ground_truth_field": f"{GOLD}:json"}
    got = compute_score("self-test", text, json.dumps(row.get(GOLD)), extra)
    return got["score"] if got["applies"] else None


CONTRACTS = [by_trl, by_verl]


def wrong_cases() -> int:
    """Score every case by every contract; print what is wrong and return how many are."""
    wrong = 0
    for contract in CONTRACTS:
        for text, row, expected in CASES:
            got = contract(text, row)
            if got != expected and (None in (got, expected) or abs(got - expected) > 1e-9):
                wrong += 1
                print(f"WRONG {contract.__name__}: got {got}; expected {expected} for {text!r} of {row}")
    print(f"{len(CONTRACTS) * len(CASES)} scores, {wrong} wrong")
    return wrong


def self_test() -> int:
    """How many cases are scored wrong."""
    return wrong_cases()


if __name__ == "__main__":
    if sys.argv[1:] != ["--test"]:
        sys.exit(__doc__)
    sys.exit(1 if self_test() else 0)
