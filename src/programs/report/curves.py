"""The curves of all runs as plain data: metrics of all logs under one name, in groups, with their meaning."""

import math
import re

from parts.foundation.file_text import file_text
from parts.reading.dialects import OURS
from parts.reading.log_reading import common_name
from parts.reading.logged_run import LoggedRun
from programs.report.sources import Source

GLOSSARY = file_text("../../../references/metrics.md")
LOOK_FIRST = "Look first"
# what to look at first, as references/metrics.md has it
FIRST = (
    "eval/accuracy eval/reverse_kl eval/score reward/mean rollout/truncated_frac value/explained_variance "
    "policy/entropy kl/ref kl/teacher"
).split()
OTHER = "Other metrics of the log"
POINTS = 2000  # of a curve; longer ones keep the lowest and the highest value of each stretch
PLACES = ("output_dir", "out", "resume", "report_to")  # where a run lies: no setting of it
LOGGED = ("save_every", "eval_every", "sample_every", "keep_checkpoints", "logging_steps")
HIDDEN = ("step", "epoch", "eval/rows", "training/global_step")


def our_name(key: str, dialect: str) -> str:
    """What metrics.jsonl calls a metric of another trainer's log; the key itself where it has no such name."""
    if dialect == "ours":
        return key
    common = common_name(key, dialect)
    if common == "held_out":
        return "eval/score" if dialect == "trl" else key
    if common and common.startswith("part:"):
        return f"reward/{common[5:]}"
    return next((ours for ours, name in OURS.items() if name == common), key) if common else key


def read_glossary(text: str) -> dict[str, dict]:
    """{metric: {group, meaning, healthy, warning}} of the tables in references/metrics.md."""
    entries = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        group = section.partition("\n")[0]
        for key, cells in re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, re.MULTILINE):
            meaning, healthy, warning = (re.sub(r"[`*]", "", cell).removesuffix("–") for cell in cells.split(" | ")[:3])
            entries[key] = {"group": group, "meaning": meaning, "healthy": healthy, "warning": warning}
    return entries


def explained(key: str, glossary: dict[str, dict]) -> dict:
    """Group and meaning of a metric."""
    if key in glossary:
        return glossary[key]
    for prefix in ("reward", "eval"):
        if re.match(rf"{prefix}/(?!\w+/)", key):
            return glossary[f"{prefix}/<function>"]
    if key.startswith("val-"):
        return {"group": "Held-out evaluation", "meaning": "held-out figure of verl, by data source"}
    return {"group": "Time" if re.match(r"timing_|time/|perf/", key) else OTHER, "meaning": ""}


def series_of(run: LoggedRun) -> dict[str, dict]:
    """{name: {"as": its name in the log, "points": {step: value}, "bad": steps where it is not finite}}."""
    series = {}
    for key in [*run.columns, *dict.fromkeys(key for key, _, _ in run.bad if key not in run.columns)]:
        name = our_name(key, run.dialect)
        bad = [step for other, step, _ in run.bad if other == key]
        if key not in HIDDEN:  # two of a log's metrics may have one common name
            series[key if name in series else name] = {"as": key, "points": run.columns.get(key, {}), "bad": bad}
    return series


def thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most POINTS points: of each stretch the lowest and the highest, in their order."""
    if len(points) <= POINTS:
        return points
    size, kept = math.ceil(2 * len(points) / POINTS), []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def curves_of(sources: list[Source]) -> dict:
    """What the page's script draws: runs, and metrics with their series."""
    glossary, runs, metrics = read_glossary(GLOSSARY), [], {}
    for i, source in enumerate(sources):
        marks = [
            {"id": cause["cause"], "step": item["step"], "metric": our_name(item["figure"], source.run.dialect)}
            for cause in source.verdict["causes"]
            for item in cause["evidence"]
            if item["step"] is not None
        ]
        runs.append({"name": source.name, "findings": marks})
        for name, entry in series_of(source.run).items():
            points = thinned(sorted(entry["points"].items()))
            metric = metrics.setdefault(name, {"name": name, **explained(name, glossary), "series": []})
            drawn = {"run": i, "as": entry["as"], "bad": sorted(entry["bad"]), "of": len(entry["points"])}
            metric["series"].append(drawn | {"x": [p[0] for p in points], "y": [float(f"{p[1]:.6g}") for p in points]})
    order = [LOOK_FIRST, *dict.fromkeys(entry["group"] for entry in glossary.values()), OTHER]
    held_out = [source.run.names["held_out"] for source in sources if "held_out" in source.run.names]  # verl's own name
    places = {name: i for i, name in enumerate(dict.fromkeys([*held_out, *FIRST, *glossary]))}
    for name, metric in metrics.items():
        metric["group"] = LOOK_FIRST if name in (*held_out, *FIRST) else metric["group"]
    ordered = sorted(metrics.values(), key=lambda m: (order.index(m["group"]), places.get(m["name"], 999), m["name"]))
    return {"runs": runs, "metrics": ordered, "groups": [g for g in order if any(m["group"] == g for m in ordered)]}
