"""1 for the right number after ####, as in GSM8K; a second ####, or text after it, pays 0."""

import re
from decimal import Decimal

FINAL = re.compile(r"####\s*\$?(-?(?a:\d{1,3}(,\d{3})+|\d+)(?a:\.\d+)?)\.?(\s*<(eos|pad|end_of_turn|[/|｜][^>]+)>)*\s*")


def final_number(text: str) -> Decimal | None:
    """The number after the only #### of a text, with nothing but end tokens after it, else None: 1,200 is 1200."""
    match = FINAL.fullmatch(text[text.find("####") :]) if text.count("####") == 1 else None
    return Decimal(match[1].replace(",", "")) if match else None


def score(text: str, solution) -> float | None:
    """1 where the final number is that of the worked solution, or of a bare number, else 0; None where it has none."""
    gold = final_number("####" + str(solution).rpartition("####")[2])
    return None if gold is None else float(final_number(text) == gold)


def reward_name(completions, gold_column, **kwargs) -> list:
    """TRL's form: a score for each completion, a text or chat messages."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [score(text, solution) for text, solution in zip(texts, gold_column, strict=True)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """verl's form, which has no None: 0."""
    return score(solution_str, ground_truth) or 0.0
