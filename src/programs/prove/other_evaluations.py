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
from parts.reading.run_settings import flat_config
from programs.prove.exact_figures import share_figures

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
    r"|(.+\.)?(scores?|metrics)\.\w+"
)
VERDICTS = {
    **dict.fromkeys(("true", "yes", "pass", "passed", "correct", "right"), 1.0),
    **dict.fromkeys(("false", "no", "fail", "failed", "incorrect", "wrong", "timeout"), 0.0),
}
LIMITS = ("length", "max_tokens", "max_length", "true")  # how servers name the token limit
AROUND = r"(mean|average|avg|overall|total)_|_(mean|rate|percent|pct)"  # around a metric's name
SAME = ["accuracy", "acc", "score", "pass", "pass@1"]  # what the first metric may be called too
COUNT = r"n|total|count|(n|num|total)_(samples|examples|rows|questions|problems|scores)"


def flat(row: dict) -> dict:
    """A row without nesting, its dotted names in lower case with underscores."""
    return {re.sub("[ -]", "_", name.lower()): x for name, x in flat_config(row).items()}


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


def score_columns(rows: list[dict]) -> dict[str, list[list]]:
    """{metric: a list of scores for each row} of flat rows; lm-eval declares its metrics."""
    columns, declared = {}, rows[0].get("metrics") or ()
    for name in rows[0]:
        if (name in declared or re.fullmatch(SCORE, name)) and all(name in row for row in rows):
            cells = [row[name] if isinstance(row[name], list) else [row[name]] for row in rows]
            try:
                columns[name] = [[*map(score_of, cell)] for cell in cells]
            except (ValueError, TypeError):
                continue
    return {name: cells for name, cells in columns.items() if any(x is not None for cell in cells for x in cell)}


def text_of(value) -> str:
    """A completion as text: of messages the last one's."""
    while isinstance(value, list | dict) and value:
        value = value[-1] if isinstance(value, list) else value.get("content", value.get("text"))
    return value if isinstance(value, str) else "" if value in (None, [], {}) else str(value)


def tables_in(value) -> Iterator[list[dict]]:
    """The lists of scored samples in a JSON value, as flat rows; rows with a step are training's."""
    for x in value.values() if isinstance(value, dict) else ():
        yield from tables_in(x)
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        rows = [*map(flat, value)]
        if score_columns(rows) and "step" not in rows[0]:
            yield rows


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
            for sample in samples_of(row, columns, {name: cells[i] for name, cells in scores.items()}):
                keyed.setdefault(key, []).append(about | sample)
        self.samples, self.siblings = {self.task: keyed}, 1
        self.metrics = list(dict.fromkeys(m for samples in keyed.values() for x in samples for m in x["metrics"]))


def samples_of(row: dict, columns: dict[str, str], scores: dict[str, list]) -> Iterator[dict]:
    """The samples of a flat row: as many as it has scores."""
    texts, finish, count = row.get(columns["completion"]), row.get(columns["finish"]), max(map(len, scores.values()))
    way = f",{row['filter'].replace('-', '_')}" if isinstance(row.get("filter"), str) else ""  # lm-eval's
    are_texts = count > 1 and isinstance(texts, list) and len(texts) == count
    for n in range(count):
        metrics = {f"{m}{way}": cell[n] if n < len(cell) else None for m, cell in scores.items()}
        cut = "length" if str(finish).lower() in LIMITS else finish
        yield {"metrics": metrics, "completion": text_of(texts[n] if are_texts else texts), "finish": cut}


def read_table(file: Path) -> OtherResults | dict:
    """A file's scored samples or, if it has none, its flat figures; UserError if it cannot be read."""
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else read_rows(str(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"got {file}, which cannot be read ({error}); expected JSON in UTF-8") from None
    figures = flat(value) if isinstance(value, dict) else {}
    rows = max(tables_in(value), key=len, default=[])
    return OtherResults(file, rows, figures) if rows else figures


def other_evaluations(path: Path) -> tuple[list[OtherResults], list[str]]:
    """(Scored samples of a file, or of a folder and its subfolders, with the figures beside; what is unreadable).

    UserError if `path` itself is a table that cannot be read.
    """
    results, figures, unreadable = [], {}, []
    files = [*path.glob("*"), *path.glob("*/*")]
    if path.is_file():
        files = [path, *(x for x in path.parent.glob("*.json") if path.stem in x.stem)]
    for file in sorted({x for x in files if x.suffix in TABLES}):
        try:
            read = read_table(file)
        except UserError as error:
            if file == path:
                raise
            unreadable.append(str(error))
            continue
        if isinstance(read, dict):
            figures[file] = read
        elif file == path or not path.is_file():
            results.append(read)
    for one in results:
        one.siblings = sum(x.file.parent == one.file.parent for x in results)
        one.stated |= {file: x for file, x in figures.items() if file.parent == one.file.parent}
    return results, unreadable


def stated_value(results: OtherResults, metric: str) -> tuple[Path, str, float] | None:
    """(File, dotted name, figure) that states a metric: the least nested one; None without one or with several."""
    own, places = results.file.stem.lower(), {}
    names = {metric, metric.rpartition(".")[2], *(SAME if metric == results.metrics[0] else [])}
    for file, figures in results.stated.items():
        for name, x in figures.items():
            place, last = f"{file.stem.lower()}.{name}", name.rpartition(".")[2].removeprefix(f"{own}_")
            is_own = file == results.file or results.siblings < 2 or own in place
            if results.task != "samples":  # lm-eval has one file of figures for all tasks
                is_own = f".{results.task.lower()}." in place
            is_count = isinstance(x, int) and x > 1 and last in ("correct", "right", "passed", "solved")
            if is_own and is_number(x) and not is_count and re.sub(AROUND, "", last) in names:
                places.setdefault(name.count("."), []).append((file, name, x))
    best = places[min(places)] if places else []
    return best[0] if len({x for _, _, x in best}) == 1 else None


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def is_stated(given: float, counted: float) -> bool:
    """Whether a figure, as it is or in percent, is the counted one, rounded to its digits, at least two of a share."""
    for scale, fewest in ((1, 2), (100, 0)):
        digits = max(fewest, len(f"{given:.12g}".partition(".")[2]))
        if abs(given - scale * counted) <= 0.51 * 10.0**-digits:
            return True
    return False


def recount_other(results: OtherResults, proof) -> dict:
    """{(task, metric): recounted figures} of one file; findings where what is stated for it differs."""
    rows, recounted = results.samples[results.task], {}
    usual, _ = Counter(map(len, rows.values())).most_common(1)[0]
    if more := [key for key, samples in rows.items() if len(samples) > usual]:
        ids = f"{len(more)} of {len(rows)} ids, such as {more[0]!r}, have more than {usual} samples"
        proof.find(f"{results.file}: {ids}, as the others have: they count twice")
    for metric in results.metrics:
        scores = {key: [x["metrics"].get(metric) for x in samples] for key, samples in rows.items()}
        scores = {key: [x for x in values if x is not None] for key, values in scores.items()}
        if odd := sum(not math.isfinite(x) for values in scores.values() for x in values):
            proof.find(f"{results.file}, {metric}: {odd} scores are nan or infinite")
            continue
        by_key = {key: Fraction(sum(map(Fraction, x)), len(x)) for key, x in scores.items() if x}
        if not by_key:
            continue
        figures = recounted[results.task, metric] = share_figures(by_key)
        count = sum(metric in x["metrics"] for samples in rows.values() for x in samples)
        compare_stated(results, metric, figures, (len(rows), len(by_key), count, usual), proof)
    return recounted


def compare_stated(results: OtherResults, metric: str, figures: dict, counts: tuple, proof) -> None:
    """Add findings where the stated value of a metric, or a number of rows beside it, is not that of the samples."""
    stated = stated_value(results, metric)
    if stated is None:
        proof.not_measured.append(f"{results.file}, {metric}: no file states a single figure for it")
        return
    file, name, given = stated
    says, parent = f"{results.file}, {metric}: {file.name} says", name.rpartition(".")[0]
    if not is_stated(given, figures["value"]):
        proof.find(f"{says} {name} {given:g}; the samples give {figures['value']:g} on {figures['n']} rows")
    beside = {n.removeprefix(f"{parent}."): x for n, x in results.stated[file].items() if n.startswith(parent)}
    beside["n_samples"] = results.stated[file].get(f"n_samples.{results.task.lower()}.effective")  # lm-eval's
    for n, x in beside.items():
        if re.fullmatch(COUNT, n) and is_number(x) and x not in counts:
            proof.find(f"{says} {n} {x}; there are samples of {counts[0]} rows")


def check_pairs(one, other, task: str, proof) -> bool:
    """Whether a task's rows of the same id are the same in two results; findings where golds or prompts differ."""
    a, b = ({key: row[0] for key, row in x.samples[task].items()} for x in (one, other))
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
