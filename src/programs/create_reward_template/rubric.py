"""Rules of a rubric as code."""

import json
import keyword
import re

from parts.foundation.messages import UserError, need, suggest
from programs.create_reward_template.assembly import Words, assembled, listing, quoted
from programs.create_reward_template.recipes import RESERVED

CHECKS = {  # kind -> the call of its check, with its argument as code
    "equals": "equals(text, row.get({}))",
    "contains": "contains(text, row.get({}))",
    "number": "number(text, row.get({}))",
    "matches": "bool(re.search({}, text[:MAX_CHARACTERS]))",
    "lacks": "not re.search({}, text[:MAX_CHARACTERS])",
    "words": "{} <= len(text.split()) <= {}",
    "json": "json_object({})",
}


def read_rule(text: str, examples: list[dict]) -> dict:
    """Read KIND[:ARGUMENT][*WEIGHT] into the source of its check, and what holds and what does not."""
    form = "expected KIND[:ARGUMENT][*WEIGHT]"
    match = re.fullmatch(r"(?s)(\w+)(?::(.*?))?(?:\*([\d.]+))?", text)
    need(match, f"got --rule {text!r}; {form} such as equals:answer*1.0")
    kind, argument, weight = match[1], match[2] or "", match[3] or "1"
    need(kind in CHECKS, f"got --rule {text!r}; {form} with one of {', '.join(CHECKS)}{suggest(kind, [*CHECKS])}")
    need(re.fullmatch(r"\d*\.?\d+|\d+\.", weight) and float(weight) > 0, f"got --rule {text!r}; expected a weight > 0")
    rule = {"kind": kind, "name": text.rpartition("*")[0] if match[3] else text, "weight": float(weight)}
    rule |= {"column": None, "row": {}, "call": CHECKS[kind].format(quoted(argument), "")}
    if kind in ("equals", "contains", "number"):
        check_column(argument, f"--rule {text!r}")
        right, wrong = ("42", "41") if kind == "number" else ("blue", "red")
        good, bad = ("It is blue.", "It is red.") if kind == "contains" else (right, wrong)
        return rule | {"column": argument, "row": {argument: right}, "good": good, "bad": bad}
    if kind == "words":
        low, _, high = argument.partition("-")
        sizes = low.isdecimal() and high.isdecimal() and int(low) <= int(high)
        need(sizes, f"got --rule {text!r}; expected words:LOW-HIGH such as words:1-200")
        call = CHECKS[kind].format(int(low), int(high))
        return rule | {"call": call, "good": Words("a " * int(low)), "bad": Words("a " * (int(high) + 1))}
    if kind == "json":
        keys = [key.strip() for key in argument.split(",") if key.strip()]
        good = json.dumps(dict.fromkeys(keys or ["a"], 1))
        call = CHECKS[kind].format(", ".join(["text", *map(quoted, keys)]))
        return rule | {"call": call, "good": good, "bad": "[1]"}
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


def custom_parts(args, rubric: list[dict]) -> dict[str, str]:
    """The constants of the reward, the cases of its checks among them."""
    lines = []
    for rule in rubric:
        line = f"    ({quoted(rule['name'])}, {rule['weight']}, lambda text, row: {rule['call']}),"
        lines.append(line + "  # noqa: E501" * (len(line) > 120))
    gated = args.combine == "gated" and len(rubric) > 1
    about = "(what it asks, its weight, the check: True, False, or None where it does not apply)"
    constants = {"RUBRIC": f"[  # {about}\n" + "\n".join(lines) + "\n]"}
    constants["GATED"] = f"{gated}  # True: 0 unless the first check holds"
    weights = [rule["weight"] for rule in rubric]
    first = weights[0] / sum(weights)
    totals = [([True] * len(rubric), 1.0), ([True] + [False] * (len(rubric) - 1), first), ([False] * len(rubric), 0.0)]
    if len(rubric) > 1:
        rest = len(rubric) - 1
        totals += [([False] + [True] * rest, 0.0 if gated else 1 - first), ([True] + [None] * rest, 1.0)]
        totals += [([None] + [True] * rest, None if gated else 1.0)]
    checked = [(i, rule[key], rule["row"], key == "good") for i, rule in enumerate(rubric) for key in ("good", "bad")]
    constants["TOTALS"] = listing("", "(which checks hold, the score)", totals).removeprefix(" = ").rstrip()
    about = "(number of the check, completion, columns of the row, does it hold)"
    constants["CHECKED"] = listing("", about, checked).removeprefix(" = ").rstrip()
    return constants


def custom_cases(texts: tuple[str, ...], constants: dict[str, str], rubric: list[dict]) -> list[tuple]:
    """The texts of all checks with their scores by the rubric as it is now, so that the test tells when it changes."""
    row, names = {}, {}
    for rule in rubric:
        row |= rule["row"]
    exec(compile(assembled("", [*texts], ["score"], constants), "rubric", "exec"), names)
    completions = dict.fromkeys(rule[key] for rule in rubric for key in ("good", "bad"))
    return [(text, row, names["score"](text, row)) for text in completions]


def check_column(name: str, where: str) -> None:
    """Raise UserError unless a name can be a column, and an argument of a function."""
    fine = name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED
    need(fine, f"got {where} with the column {name!r}; expected a Python name that trainers do not use themselves")
