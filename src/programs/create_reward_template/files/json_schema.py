"""Pay for JSON that a schema accepts, alone or as one fenced block."""

import json
import re

import jsonschema
from final_answer import visible
from referencing import Registry

EXTRA_TEXT = False  # True: of a text with more than the JSON, its last fenced block counts
MAX_CHARACTERS = 20_000  # longer texts score 0
EXACT = []  # properties whose value is the row's, in columns of these names
PARTIAL = False  # True: else half the share of properties that hold
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KIND = jsonschema.validators.validator_for(SCHEMA, jsonschema.Draft202012Validator)
VALIDATOR = KIND(SCHEMA, registry=Registry())  # fetches nothing; "format" is a remark, as the specification has it
FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL | re.IGNORECASE)


def json_value(text: str):
    """The value of the visible text, or of the one fenced block that it is; ValueError for anything else."""
    text = visible(text).strip()
    if len(text) > MAX_CHARACTERS:
        raise ValueError("too long")
    found = FENCED.fullmatch(text)
    if EXTRA_TEXT and not found:
        found = ([*FENCED.finditer(text)] or [None])[-1]
    return json.loads(found[1] if found else text, parse_constant=int)  # int refuses NaN and Infinity


def unequal(value, golds: dict) -> set[str]:
    """The properties without the row's value, for which text may stand, as in CSV: "34" for 34."""
    given, different = value if isinstance(value, dict) else {}, set()
    for key, gold in golds.items():
        said = given.get(key)
        as_text = isinstance(gold, str) and not isinstance(said, str)
        alike = said == gold and isinstance(said, bool) == isinstance(gold, bool)  # True == 1
        if not (json.dumps(said) == gold.strip() if as_text else alike):
            different.add(key)
    return different


def score(text: str, row: dict) -> float | None:
    """1 for JSON that the schema accepts, with the values of EXACT; else 0, or part of it; None without those."""
    golds = {key: row.get(key) for key in EXACT}
    if None in golds.values():
        return None
    try:
        value = json_value(text)
        wrong = unequal(value, golds)
        if not wrong and VALIDATOR.is_valid(value):
            return 1.0
        if not PARTIAL:
            return 0.0
        given, keys = value if isinstance(value, dict) else {}, SCHEMA["properties"]
        wrong |= {next(iter(error.absolute_path), None) for error in VALIDATOR.iter_errors(value)}
        return 0.5 * sum(key in given and key not in wrong for key in keys) / len(keys)
    except (ValueError, RecursionError):
        return 0.0
