"""Read evaluation.py's results.json, and compare two of them row by row."""

import hashlib
import json
import re
from pathlib import Path

from parts.evaluating.paired_tests import Values, compare_values, other_scale, verdict_of
from parts.foundation.messages import UserError, need, say

# settings that change what a model is asked, or how it answers
ASKING = (
    *("fewshot", "fewshot_data", "chat_template", "chat_template_kwargs", "system_prompt", "n", "temperature", "top_p"),
    *("max_new_tokens", "stop", "max_length", "max_turns", "tool_format", "precision"),
)
OTHER_SCALE = "the two sides have scores on different scales, such as shares and percent, or 0 to 1 and -1 to 1"
REPEATED = re.compile(r"[0-9a-f]{16}\.\d+")  # the key of a row that repeats an earlier one


def count_repeated(keys: list[str]) -> int:
    return sum(REPEATED.fullmatch(key) is not None for key in keys)


def unique_keys(rows: list) -> list[str]:
    """A short hash of each row, by which two runs find their common rows; repeated rows get a number."""
    counts, keys = {}, []
    for text in (json.dumps(row, sort_keys=True, default=str) for row in rows):
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        counts[key] = counts.get(key, 0) + 1
        keys.append(key if counts[key] == 1 else f"{key}.{counts[key]}")
    return keys


def read_report(path: str) -> dict:
    """Read a results.json, or the one in a folder."""
    file = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        compared = [(task["keys"], task["values"]) for task in report["tasks"].values()]
        need(
            compared and report["model"]["name"], f"got {path!r} without tasks; expected results.json of evaluation.py"
        )
        return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"got {path!r} ({type(error).__name__}: {error}); expected results.json of evaluation.py"
        ) from None


def compare_reports(before: dict, after: dict, samples: int, seed: int) -> dict:
    """{task: {metric: paired test}} for all metrics that two runs share, on their common rows; bootstrap `samples`."""
    one, two = (run.get("settings") or {} for run in (before, after))
    differing = [name for name in ASKING if name in one and name in two and one[name] != two[name]]
    if differing:
        values = (f"{name} {one[name]!r:.40} and {two[name]!r:.40}" for name in differing)
        say(f"warning: got runs with {', '.join(values)}; expected the same settings, or these may be what differs")
    results, common = {}, [name for name in before["tasks"] if name in after["tasks"]]
    need(common, f"got runs of {list(before['tasks'])} and of {list(after['tasks'])}; expected a task that both have")
    for task in common:
        a, b = before["tasks"][task], after["tasks"][task]
        place = {key: i for i, key in enumerate(b["keys"])}
        pairs = [(i, place[key]) for i, key in enumerate(a["keys"]) if key in place and not REPEATED.fullmatch(key)]
        need(pairs, f"got two runs of {task} without a common row; expected the same data")
        alone = len({*a["keys"]} ^ {*b["keys"]})
        if alone:
            say(f"warning: {task}: {alone} rows are in only one of the runs and left out")
        if again := count_repeated(a["keys"]):
            say(f"warning: {task}: {again} rows repeat another one, are not independent of it, and are left out")
        for name in [name for name in a["values"] if name in b["values"]]:
            one, two = (pick_values(run["values"][name], [p[side] for p in pairs]) for side, run in enumerate((a, b)))
            if lacking := unpaired_scores([*zip(one.top, two.top, strict=True)]):
                say(f"warning: {task} {name}: {lacking}")
            if test := compare_values(one, two, samples, seed):
                scores = ([x for x in values.top if x is not None] for values in (one, two))
                doubts = dict.fromkeys([*a.get("doubts", ()), *b.get("doubts", ())])
                is_count = one.bottom or one.higher_is_better is None
                doubts |= {OTHER_SCALE: None} if not is_count and other_scale(*scores) else {}
                words = verdict_of(f"{task} {name}", test, one.higher_is_better, doubts)
                results.setdefault(task, {})[name] = {**test, "verdict": words}
    return results


def unpaired_scores(pairs: list[tuple]) -> str:
    """How many rows have a score on one side only, as a clause; "" if none."""
    lacking = [(x is None) - (y is None) for x, y in pairs]
    text = f"{lacking.count(1)} rows have no score before, {lacking.count(-1)} none after"
    return f"{text}: they are left out, and do not count as wrong" if any(lacking) else ""


def pick_values(values: dict, rows: list[int]) -> Values:
    """The values of some rows in a results.json."""
    picked = {name: values[name] and [values[name][i] for i in rows] for name in ("top", "bottom")}
    return Values(**{**values, **picked})
