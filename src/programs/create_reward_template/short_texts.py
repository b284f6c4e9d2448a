"""Text of the shortest files, which a command tries in place of a self-test inside them."""

FINAL_NUMBER = '''"""1 for the right number behind ####, as in GSM8K; a second ####, or text behind it, pays nothing.

@NOTES@
"""

import re
from decimal import Decimal

FINAL = re.compile(r"####\\s*\\$?(-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\\.[0-9]+)?)\\.?\\s*")


def final_number(text: str) -> Decimal | None:
    """The number after the only #### of a text, with nothing behind it, else None: 1,200 is 1200."""
    found = FINAL.fullmatch(text[text.find("####") :]) if text.count("####") == 1 else None
    return Decimal(found[1].replace(",", "")) if found else None


def score(text: str, solution) -> float | None:
    """1 where the final number is that of the worked solution, or of a bare number, else 0; None where it has none."""
    gold = final_number("####" + str(solution).rpartition("####")[2])
    return None if gold is None else float(final_number(text) == gold)
'''

FINAL_NUMBER_TRL = '''

def @NAME@(completions, @GOLD@, **kwargs) -> list:
    """TRL's form: a score for each completion, a text or chat messages."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [score(text, solution) for text, solution in zip(texts, @GOLD@, strict=True)]
'''

FINAL_NUMBER_VERL = '''

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """verl's form, which has no None: 0."""
    return score(solution_str, ground_truth) or 0.0
'''

INLINE_HEAD = '''"""@FUNCTION@ of @FILE@, copied here, for verl.

verl: reward.custom_reward_function.path=@OUTPUT@ reward.custom_reward_function.name=compute_score
    ground_truth is @GOLD@
"""

'''

INLINE_BATCH = '''

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """@FUNCTION@ for one completion; 0 for None, which verl has not."""
    completion = @COMPLETION@
    return float(@FUNCTION@(@PROMPTS@completions=[completion], @GOLD@=[ground_truth])[0] or 0.0)
'''

INLINE_ONE = '''

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """@FUNCTION@ for one completion; 0 for None, which verl has not."""
    return float(@FUNCTION@(@PROMPTS@completion=solution_str, @GOLD@=ground_truth) or 0.0)
'''
