"""What a trainer must offer to be checked: names, signatures, shapes; `--contract` prints it."""

import re

from parts.foundation.file_text import file_text

CONTRACT = file_text("contract.txt")
ENTRY = re.compile(r"^  (\w+)(?:\(.*?\))?(?: -> .*)?\n      (?:where Config has (no )?(\w+): )?", re.MULTILINE)
PARTS = re.split(r"\nA script: .*\n|\n  With --environment, too:\n", CONTRACT)
PAGE = ENTRY.findall(PARTS[0])  # (name, "no " or "", field of Config or "")
SCRIPT, SCRIPT_TALKS = ([(name, "", "") for name in text.split()] for text in PARTS[1:])
INSTEAD = {"response_logits": "token_logprobs"}  # {name: another that will do}


def lacking(module, needed: list[tuple], fields=()) -> list[str]:
    """Names of the contract that a trainer lacks, given the fields of its Config."""
    asked = [name for name, no, field in needed if not field or (field in fields) != bool(no)]
    return [name for name in asked if not {name, INSTEAD.get(name)} & vars(module).keys()]


def lacking_fields(fields) -> list[str]:
    """Fields that the Config of a one-page trainer lacks."""
    names = ["model", "data", "temperature", "max_new_tokens", "micro_batch"]
    names += ["reward"] * ("environment" not in fields) + ["vf_coef"] * ("gae_lambda" in fields)
    return [f"Config.{name}" for name in names if name not in fields]
