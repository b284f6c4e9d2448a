"""Pay for JSON that a schema accepts, alone or as one fenced block."""

import json
import re

import jsonschema
from final_answer import visible
from referencing import Registry

MAX_CHARACTERS = 20_000  # longer texts score 0
EXACT = []  # properties whose value is the row's, in columns of these names
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KIND = jsonschema.validators.validator_for(SCHEMA, jsonschema.Draft202012Validator)
VALIDATOR = KIND(SCHEMA, registry=Registry())  # fetches nothing; "format" is a remark, as the specification has it
FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL | re.IGNORECASE)


def json_value(text: str):
    """The value of the visible text, or of the one fenced block that it is; ValueError for anything else."""
    text = visible(text).strip()
    if len(text) > MAX_CHARACTERS:
        raise ValueError("too long")
    block = FENCED.fullmatch(text)
    return json.loads(block[1] if block else text, parse_constant=int)  # int refuses NaN and Infinity


def alike(value, gold) -> bool:
    """Whether a value is the row's, for which text may stand, as in CSV: "34" for 34."""
    if isinstance(gold, str) and not isinstance(value, str):
        return json.dumps(value) == gold.strip()
    return value == gold and isinstance(value, bool) == isinstance(gold, bool)  # True == 1


def score(text: str, row: dict) -> float | None:
    """1 for JSON that the schema accepts, with the values of EXACT, else 0; None for a row without those."""
    golds = {key: row.get(key) for key in EXACT}
    if None in golds.values():
        return None
    try:
        value = json_value(text)
        given = value if isinstance(value, dict) else {}
        right = all(alike(given.get(key), gold) for key, gold in golds.items())
        return float(right and VALIDATOR.is_valid(value))
    except (ValueError, RecursionError):
        return 0.0
