"""Evaluations of other programs: scored samples in JSON, JSONL, CSV or parquet, and the figures stated for them."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from parts.data.rows import read_rows
from parts.foundation.messages import UserError
from programs.prove.exact_figures import interval_level, paired_ps, share_interval

TABLES = (".json", ".jsonl", ".csv", ".tsv", ".parquet")
COLUMNS = {  # names of columns, the best first
    "key": (r"(doc|task|question|problem|example|sample|item)_?(id|idx|index)", "id|idx|index|uu?id", "key|name"),
    "prompt": ("prompt", "question|problem|instruction|query", "(user_)?input"),
    "gold": (
        "golds?|gold_answer|targets?|references?|expected(_answer|_output)?|ground_truth|gt|correct_answer",
        "label|solution|answer|final_answer",
    ),
    "completion": (
        "completions?|(model_|full_)?(response|output)s?|generations?|generated_text|model_answer|resps|raw_output",
        "predictions?|preds?|code|text",
        "answer|solution",
    ),
    "finish": ("(finish|stop)(_reason)?|truncated",),
}
SCORE = (
    r"(is_)?(correct|right|solved)|correctness|acc(uracy)?|(exact_)?match|em|pass(ed)?|success|score|verified"
    r"|(.+\.)?(scores?|metrics)\.\w+(\.value)?|(base|plus)_status"
)
VERDICTS = {
    **dict.fromkeys(("true", "yes", "pass", "passed", "correct", "right", "c"), 1.0),
    **dict.fromkeys(("false", "no", "fail", "failed", "incorrect", "wrong", "i", "timeout"), 0.0),
}
LIMITS = ("length", "max_tokens", "max_length", "true")  # how servers name the token limit
PARTS = r"(mean|average|avg|overall|total)_|_(mean|rate|percent|pct)|[_ ]?\(?%\)?|\.value$"  # around a metric's name
SAME = r"accuracy|acc|score|pass|pass@1"  # what the only metric may be called too
COUNT = r"n|total|count|(n|num|total)_(samples|examples|rows|questions|problems|scores)"
RIGHT = r"((n|num)_)?(correct|right|passed|solved)"
PAIRED_P = r"(.+\.)?(p|p_?value|(mcnemar|exact|paired)(_p(_?value)?)?|p_mcnemar)"
INTERVAL = r"(.+_)?(ci|wilson|interval)(_?95)?([._](low|lower|high|upper|min|max))?"


def flat(value: dict, prefix: str = "", into: int = 0) -> dict:
    """Nested dictionaries as one, with dotted names in lower case; also those in lists of at most `into`."""
    items = {}
    for name, x in value.items():
        name = prefix + re.sub(r"[ -]", "_", str(name).lower())
        if isinstance(x, list) and 0 < len(x) <= into and all(isinstance(one, dict) for one in x):
            x = dict(enumerate(x))
        items |= flat(x, f"{name}.", into) if isinstance(x, dict) else {name: x}
    return items


def columns_of(row: dict) -> dict[str, str]:
    """{role: column, or ""} of a flat row: of the columns without a role the least nested, of these the best name."""
    columns = {}
    for role, patterns in COLUMNS.items():
        last = {name: name.rpartition(".")[2] for name in row if name not in columns.values()}
        ranks = [
            (n.count("."), i, n) for n, end in last.items() for i, x in enumerate(patterns) if re.fullmatch(x, end)
        ]
        columns[role] = min(ranks, default=(0, 0, ""))[2]
    return columns


def score_of(value) -> float | None:
    """A score as a number, None for an empty cell; ValueError or TypeError for other values."""
    if value is None or value == "":
        return None
    return float(VERDICTS.get(value.lower(), value) if isinstance(value, str) else value)


def score_columns(rows: list[dict]) -> dict[str, list]:
    """{metric: scores} of flat rows; several samples of a row have a list. lm-eval declares its metrics."""
    columns, declared = {}, rows[0].get("metrics") or ()
    for name in rows[0]:
        if (name in declared or re.fullmatch(SCORE, name)) and all(name in row for row in rows):
            values = [row[name] for row in rows]
            try:
                columns[name] = [[*map(score_of, x)] if isinstance(x, list) else score_of(x) for x in values]
            except (ValueError, TypeError):
                continue
    return {name: values for name, values in columns.items() if any(x not in (None, []) for x in values)}


def text_of(value) -> str:
    """A completion as text: of messages the last one's."""
    while isinstance(value, list | dict) and value:
        value = value[-1] if isinstance(value, list) else value.get("content", value.get("text"))
    return value if isinstance(value, str) else "" if value in (None, [], {}) else str(value)


def tables_in(value, path: str = "") -> Iterator[tuple[str, list[dict]]]:
    """(Dotted place, flat rows) of the lists of scored samples in a JSON value, and of objects of samples by names."""
    is_named = isinstance(value, dict)
    if is_named:
        for name, x in value.items():
            yield from tables_in(x, f"{path}{re.sub('[ -]', '_', str(name).lower())}.")
        if len({type(x) for x in value.values()}) == 1:  # objects, or lists of objects
            lists = [(name, x if isinstance(x, list) else [x]) for name, x in value.items()]
            value = [one | {"key": name} if isinstance(one, dict) else one for name, x in lists for one in x]
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        rows = [*map(flat, value)]
        columns, scores = columns_of(rows[0]), score_columns(rows)
        has_texts = columns["completion"] and not re.fullmatch(COLUMNS["completion"][-1], columns["completion"])
        if (scores and (columns["completion"] or columns["gold"] or not is_named)) or (has_texts and columns["gold"]):
            yield path, rows


class OtherResults:
    """The samples in one file, {task: {key: samples}}, and the figures that it and other files state, by file."""

    def __init__(self, file: Path, rows: list[dict], stated: dict):
        lm_eval = re.fullmatch(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?", file.stem)
        self.file, self.task, self.stated = file, lm_eval[1] if lm_eval else "samples", {file: stated}
        columns, scores, keyed = columns_of(rows[0]), score_columns(rows), {}
        asked = [text_of(row.get(columns["prompt"])) for row in rows]
        are_keys = not columns["key"] and len({*asked}) == len(rows)  # prompts, where there are no ids
        for i, row in enumerate(rows):
            key = str(row.get(columns["key"]) if columns["key"] else asked[i] if are_keys else i)
            about = {"task": self.task, "key": key, "prompt": asked[i], "gold": row.get(columns["gold"])}
            for sample in samples_of(row, columns, {name: values[i] for name, values in scores.items()}):
                keyed.setdefault(key, []).append(about | sample)
        self.samples, self.siblings = {self.task: keyed}, 1
        cells = [cell if isinstance(cell, list) else [cell] for values in scores.values() for cell in values]
        self.not_finite = sum(x is not None and not math.isfinite(x) for cell in cells for x in cell)
        self.metrics = list(dict.fromkeys(m for samples in keyed.values() for x in samples for m in x["metrics"]))


def samples_of(row: dict, columns: dict[str, str], scores: dict) -> Iterator[dict]:
    """The samples of a flat row: one, or as many as its scores are lists of."""
    count = max([len(x) for x in scores.values() if isinstance(x, list)], default=0)
    texts, finish = row.get(columns["completion"]), row.get(columns["finish"])
    way = f",{re.sub('[ -]', '_', row['filter'])}" if isinstance(row.get("filter"), str) else ""  # lm-eval's
    for n in range(count or 1):
        text = texts[n] if count and isinstance(texts, list) and len(texts) == count else texts
        cells = {m: (x[n] if n < len(x) else None) if isinstance(x, list) else x for m, x in scores.items()}
        metrics = {f"{m}{way}": None if x is None or not math.isfinite(x) else x for m, x in cells.items()}
        cut = str(finish).lower() in LIMITS
        yield {"metrics": metrics, "completion": text_of(text), "finish": "length" if cut else finish}


def read_table(file: Path) -> OtherResults | dict:
    """A file's scored samples or, if it has none, its flat figures; UserError if it cannot be read."""
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else read_rows(str(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"got {file}, which cannot be read ({error}); expected JSON in UTF-8") from None
    figures = flat(value, into=8) if isinstance(value, dict) else {}
    for name, x in figures.items():
        figures[name] = float(x.rstrip("% ")) if isinstance(x, str) and re.fullmatch(r"\d+(\.\d+)? ?%", x) else x
    tables = [*tables_in(value)]
    if not tables:
        return figures
    path, rows = max(tables, key=lambda table: len(table[1]))
    return OtherResults(file, rows, {k: x for k, x in figures.items() if not f"{k}.".startswith(path)} if path else {})


def other_evaluations(path: Path) -> tuple[list[OtherResults], dict[Path, dict], list[str]]:
    """(Scored samples of a file, or of files in a folder and its subfolders; figures by JSON file; what is unreadable).

    UserError if `path` itself is a table that cannot be read.
    """
    results, figures, wrong = [], {}, []
    files = [*path.glob("*"), *([] if [*path.glob("*.py")] else path.glob("*/*"))]  # code may have data below it
    if path.suffix in TABLES and path.is_file():
        files = [path, *(x for x in path.parent.glob("*.json") if x != path and path.stem in x.stem)]
    for file in sorted((x for x in files if x.suffix in TABLES), key=lambda x: (x != path, x)):
        try:
            read = read_table(file)
        except UserError as error:
            if file == path:
                raise
            wrong.append(str(error))
            continue
        if isinstance(read, dict):
            figures[file] = read
        elif file == path or not path.is_file():
            results.append(read)
    results = [one for one in results if one.metrics] or results  # predictions may lie beside those that are scored
    for one in results:
        one.siblings = sum(x.file.parent == one.file.parent for x in results)
        one.stated |= {file: x for file, x in figures.items() if file.parent == one.file.parent}
    return results, figures, wrong


def stated_value(results: OtherResults, metric: str) -> tuple[Path, str, float] | None:
    """(File, dotted name, figure) that states a metric: the least nested one; None without one or with several."""
    names = [re.escape(metric), re.escape(metric.removesuffix(".value").rpartition(".")[2])]
    known, own = "|".join(names + [SAME] * (metric == results.metrics[0])), results.file.stem.lower()
    found = []
    for file, figures in results.stated.items():
        for name, x in figures.items():
            place = f"{file.stem.lower()}.{name}"
            is_own = file == results.file or results.siblings < 2 or own in place
            if results.task != "samples":  # lm-eval has one file of figures for all tasks
                is_own = f".{results.task.lower()}." in place
            last = re.sub(PARTS, "", name.removesuffix(".value").rpartition(".")[2].removeprefix(f"{own}_"))
            is_count = isinstance(x, int) and x > 1 and re.fullmatch(RIGHT, last)
            if is_own and re.fullmatch(known, last) and is_number(x) and not is_count:
                found.append((name.count("."), file, name, x))
    best = [x[1:] for x in found if x[0] == min(found)[0]]
    return best[0] if len({x[2] for x in best}) == 1 else None


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def rounding(name: str, x: float, is_percent: bool) -> float:
    """Half a unit of a stated share's last digit; a share of one digit is not taken for a rounded one."""
    digits = len(repr(float(x)).partition(".")[2].rstrip("0")) if "e" not in repr(float(x)) else 12
    return min(0.005, 0.51 * 10.0 ** -(digits + 2 * is_percent))


def recount_other(results: OtherResults, proof) -> dict:
    """{(task, metric): recounted figures} of one file; findings where what is stated for it differs."""
    rows, recounted = results.samples[results.task], {}
    usual, _ = Counter(map(len, rows.values())).most_common(1)[0]
    if more := [key for key, samples in rows.items() if len(samples) > usual]:
        ids = f"{len(more)} of {len(rows)} ids, such as {more[0]!r}, have more than {usual} samples"
        proof.find(f"{results.file}: {ids}, the usual number; a mean over samples counts them twice")
    if results.not_finite:
        proof.find(f"{results.file}: {results.not_finite} scores are nan or infinite; they were left out")
    for metric in results.metrics:
        scores = {key: [x["metrics"].get(metric) for x in samples] for key, samples in rows.items()}
        scores = {key: [x for x in values if x is not None] for key, values in scores.items()}
        by_key = {key: Fraction(sum(map(Fraction, x)), len(x)) for key, x in scores.items() if x}
        if not by_key:
            continue
        figures = {"value": float(sum(by_key.values()) / len(by_key)), "n": len(by_key), "ci95": None}
        if {*by_key.values()} <= {0, 1}:
            figures["ci95"] = share_interval(int(sum(by_key.values())), len(by_key))
        recounted[results.task, metric] = figures | {"values": by_key, "is_count": False}
        count = sum(metric in x["metrics"] for samples in rows.values() for x in samples)
        compare_stated(results, metric, figures, (len(rows), len(by_key), count, usual), proof)
    return recounted


def compare_stated(results: OtherResults, metric: str, figures: dict, counts: tuple, proof) -> None:
    """Add findings where a metric's stated value, interval or number of rows does not follow from the samples."""
    stated, counted = stated_value(results, metric), figures["value"]
    if stated is None:
        proof.not_measured.append(f"{results.file}, {metric}: no file states a single figure for it")
        return
    file, name, given = stated
    is_percent = counted <= 1 and (given > 1 or bool(re.search("percent|pct|%", name)))
    share, step = given / (100 if is_percent else 1), rounding(name, given, is_percent)
    says, parent = f"{results.file}, {metric}: {file.name} says", name.removesuffix(".value").rpartition(".")[0]
    if not abs(share - counted) <= step * max(1.0, counted):
        proof.find(f"{says} {name} {given:g}; the samples give {counted:g} on {figures['n']} rows")
    beside = {n.removeprefix(f"{parent}."): x for n, x in results.stated[file].items() if n.startswith(parent)}
    beside |= {"n_samples": results.stated[file].get(f"n_samples.{results.task.lower()}.effective")}
    right = round(counted * figures["n"])
    for n, x in beside.items():
        if re.fullmatch(COUNT, n) and is_number(x) and x not in counts:
            proof.find(f"{says} {n} {x}; there are samples of {counts[0]} rows")
        if re.fullmatch(RIGHT, n) and isinstance(x, int) and x > 1 and x != right and figures["ci95"]:
            proof.find(f"{says} {n} {x}; the samples give {right}")
    ends = [x if isinstance(x, list) else [x] for n, x in beside.items() if re.fullmatch(INTERVAL, n)]
    numbers = [x for pair in ends for x in pair]
    if len(numbers) == 2 and all(map(is_number, numbers)) and figures["ci95"]:
        low, high = sorted(x / (100 if is_percent else 1) for x in numbers)
        step = max(rounding(name, x, is_percent) for x in numbers)
        level = interval_level(low, high, right, figures["n"], step)
        if not low <= counted <= high:
            proof.find(f"{says} the interval {numbers}, which does not contain the value")
        elif level not in (0, 95) and step < 0.001:  # two digits may be those of another level by chance
            proof.find(f"{says} the interval {numbers}, which is a {level} % interval")
        elif level != 95:
            proof.not_measured.append(f"{results.file}, {metric}: the interval {numbers} is not known to be of 95 %")


def check_pairs(one: OtherResults, other: OtherResults, proof) -> bool:
    """Whether rows of the same id are the same rows in two files; findings where their golds or prompts differ."""
    a, b = ({key: row[0] for key, row in x.samples[x.task].items()} for x in (one, other))
    common = [key for key in a if key in b]
    golds = [key for key in common if str(a[key].get("gold")) != str(b[key].get("gold"))]
    asked = [key for key in common if a[key].get("prompt") != b[key].get("prompt")]
    texts_of = [{str(sample.get("prompt")) for sample in samples.values()} for samples in (a, b)]
    are_others = texts_of[0] & texts_of[1]  # and not those of another template
    if golds:
        key, text = golds[0], f"{len(golds)} of {len(common)} common rows have different golds in {other.file}"
        proof.find(f"{text}, such as {key!r}: {a[key].get('gold')!r} and {b[key].get('gold')!r}")
    if asked and are_others:
        text = f"{len(asked)} of {len(common)} common ids have different prompts in {other.file}"
        proof.find(f"{text}, such as {asked[0]!r}: the rows are not paired")
    return bool(common)


def compare_p(figures: dict[Path, dict], test: dict | None, proof) -> None:
    """Add a finding where a stated p of a paired test does not follow from the pairs; `test`: better, worse and p."""
    for file, values in figures.items():
        for name, x in values.items():
            if not is_number(x) or not re.fullmatch(PAIRED_P, name):
                continue
            words = [name, *(text for text in values.values() if isinstance(text, str))]
            if not re.search("mcnemar|paired|exact", " ".join(words).lower()):
                proof.not_measured.append(f"{file}: the test of {name} {x} is not named")
            elif test is None:
                proof.find(f"{file} says {name} {x:g}; the files have no common rows, so no paired test is possible")
            elif not any(abs(x - p) <= max(0.02 * p, 1e-4) for p in paired_ps(test["better"], test["worse"])):
                counts = f"{test['better']} rows better and {test['worse']} worse"
                proof.find(f"{file} says {name} {x:g}; {counts} give {test['p']:.3g} by the exact test")
