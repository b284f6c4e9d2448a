"""Rules of a rubric as code."""

import json
import keyword
import math
import re

from parts.foundation.messages import UserError, need, suggest
from programs.create_reward_template.assembly import Words, listing, put_in, quoted
from programs.create_reward_template.check_texts import CHECKS
from programs.create_reward_template.new_reward_texts import CUSTOM, FINAL, GATED, VISIBLE
from programs.create_reward_template.recipes import RESERVED


def read_rule(text: str, examples: list[dict]) -> dict:
    """Read KIND[:ARGUMENT][*WEIGHT] into the source of its check, and what holds and what does not."""
    form = "expected KIND[:ARGUMENT][*WEIGHT]"
    match = re.fullmatch(r"(?s)(\w+)(?::(.*?))?(?:\*([\d.]+))?", text)
    need(match, f"got --rule {text!r}; {form} such as equals:answer*1.0")
    kind, argument, weight = match[1], match[2] or "", match[3] or "1"
    need(kind in CHECKS, f"got --rule {text!r}; {form} with one of {', '.join(CHECKS)}{suggest(kind, [*CHECKS])}")
    need(re.fullmatch(r"\d*\.?\d+|\d+\.", weight) and float(weight) > 0, f"got --rule {text!r}; expected a weight > 0")
    rule = {"kind": kind, "name": text.rpartition("*")[0] if match[3] else text, "weight": float(weight)}
    rule |= {"column": None, "row": {}, "words": {"a": quoted(argument)}}
    if kind in ("equals", "contains", "number"):
        check_column(argument, f"--rule {text!r}")
        right, wrong = ("42", "41") if kind == "number" else ("blue", "red")
        good, bad = ("It is blue.", "It is red.") if kind == "contains" else (right, wrong)
        return rule | {"column": argument, "row": {argument: right}, "good": good, "bad": bad}
    if kind == "words":
        low, _, high = argument.partition("-")
        sizes = low.isdecimal() and high.isdecimal() and int(low) <= int(high)
        need(sizes, f"got --rule {text!r}; expected words:LOW-HIGH such as words:1-200")
        words = {"a": str(int(low)), "b": str(int(high))}
        return rule | {"words": words, "good": Words("a " * int(low)), "bad": Words("a " * (int(high) + 1))}
    if kind == "json":
        keys = [key.strip() for key in argument.split(",") if key.strip()]
        good = json.dumps(dict.fromkeys(keys or ["a"], 1))
        return rule | {"words": {"a": "".join(f", {quoted(key)}" for key in keys)}, "good": good, "bad": "[1]"}
    return rule | pattern_texts(kind, argument, text, examples)


def pattern_texts(kind: str, pattern: str, rule: str, examples: list[dict]) -> dict:
    """A text that a rule of a regular expression accepts, and one that it does not."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise UserError(f"got --rule {rule!r}: {error}; expected a regular expression") from None
    need(pattern, f"got --rule {rule!r}; expected {kind}:REGEX")
    plain = re.sub(r"\\[bBAZ]|[\^$()?]|(\\)", "", re.sub(r"\\[nst]|[.\[(]\S*?[*+)\]]", " ", pattern))
    common = ["The answer is 42.", "<answer>42</answer>", "```python\nprint(1)\n```", "Yes!", "\\boxed{42}", "a, b", ""]
    texts = [*(example["completion"] for example in examples), plain, *common]
    found = next((text for text in texts if search(text)), None)
    unmatched = next((text for text in [*common, "-"] if not search(text)), None)
    row = '\'{"completion": "…"}\''
    need(found is not None, f"got --rule {rule!r}; expected a text for its self-test too; try --example {row}")
    need(unmatched is not None, f"got --rule {rule!r}, which every text meets; expected one that some do not")
    return {"good": found, "bad": unmatched} if kind == "matches" else {"good": unmatched, "bad": found}


def custom_parts(args, rubric: list[dict]) -> tuple[str, str, str]:
    """(settings, core, cases of the checks) of a rubric."""
    kinds, lines = [rule["kind"] for rule in rubric], []
    for rule in rubric:
        call = put_in(CHECKS[rule["kind"]][1], **rule["words"])
        lines += [f"    ({quoted(rule['name'])}, {rule['weight']}, lambda text, row: {call}),"]
    long = "  # noqa: E501"
    lines = [line + long * (len(line) > 120) for line in lines]
    gated = args.combine == "gated" and len(rubric) > 1
    words = {"gated": GATED if gated else "", "gate": ", 0 unless the first one holds" * gated}
    functions = "".join(CHECKS[kind][0] for kind in CHECKS if kind in kinds)
    text_parts = FINAL if {"equals", "number"} & {*kinds} else VISIBLE if {"contains", "json"} & {*kinds} else ""
    about = "(what it asks, its weight, the check: True, False, or None where it does not apply)"
    rubric_text = f"\n\nRUBRIC = [  # {about}\n" + "\n".join(lines) + "\n]\n"
    core = text_parts + functions + rubric_text + put_in(CUSTOM, **words)
    weights = [rule["weight"] for rule in rubric]
    first = weights[0] / sum(weights)
    totals = [([True] * len(rubric), 1.0), ([True] + [False] * (len(rubric) - 1), first), ([False] * len(rubric), 0.0)]
    if len(rubric) > 1:
        rest = len(rubric) - 1
        totals += [([False] + [True] * rest, 0.0 if gated else 1 - first), ([True] + [None] * rest, 1.0)]
        totals += [([None] + [True] * rest, None if gated else 1.0)]
    checked = [(i, rule[key], rule["row"], key == "good") for i, rule in enumerate(rubric) for key in ("good", "bad")]
    checks = listing("TOTALS", "(which checks hold, the score)", totals)
    checks += listing("CHECKED", "(number of the check, completion, columns of the row, does it hold)", checked)[1:]
    limited = {"matches", "lacks"} & {*kinds}
    settings = "MAX_CHARACTERS = 20_000  # that a pattern sees: some patterns take long on long text\n" * bool(limited)
    return settings, core, checks


def custom_cases(source: str, rubric: list[dict]) -> list[tuple]:
    """The texts of all checks with their scores by the rubric as it is now, so that the test tells when it changes."""
    row, names = {}, {"json": json, "math": math, "re": re}
    for rule in rubric:
        row |= rule["row"]
    exec(compile(source, "rubric", "exec"), names)
    texts = dict.fromkeys(rule[key] for rule in rubric for key in ("good", "bad"))
    return [(text, row, names["score"](text, row)) for text in texts]


def check_column(name: str, where: str) -> None:
    """Raise UserError unless a name can be a column, and an argument of a function."""
    fine = name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED
    need(fine, f"got {where} with the column {name!r}; expected a Python name that trainers do not use themselves")
