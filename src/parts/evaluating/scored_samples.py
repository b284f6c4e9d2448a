"""Scored samples of any evaluation, in JSON, JSONL, CSV or parquet, and the figures stated beside them."""

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from parts.data.rows import read_rows
from parts.foundation.messages import UserError

SCORED_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".eval")  # the last is Inspect's: JSON files in a zip
COLUMNS = {  # names of columns, the best first
    "key": (r"(doc|task|question|problem|example|sample|item)_?(id|idx|index)", "id|idx|index|uu?id", "key|name|item"),
    "prompt": ("(origin_)?prompt", "question|problem|instruction|query", "(user_)?input"),
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
    "model": ("model(_?(name|id))?", "policy|checkpoint|system|arm"),
}
SCORE = (
    r"(is_)?(correct|right|solved)|correctness|acc(uracy)?|(exact_)?match|em|pass(ed)?|success|score|verified"
    r"|(.+\.)?(scores?|metrics)\.\w+(\.value)?|(base|plus)_status"
)
VERDICTS = {
    **dict.fromkeys(("true", "yes", "pass", "passed", "correct", "right", "c"), 1.0),
    "p": 0.5,  # Inspect's letters: correct, partly, incorrect, no answer
    **dict.fromkeys(("false", "no", "fail", "failed", "incorrect", "wrong", "timeout", "i", "n"), 0.0),
}
CUT_REASONS = ("length", "max_tokens", "max_length", "true")  # how servers name the token limit


def flat(row: dict, place: str = "") -> dict:
    """A row without nesting, its dotted names in lower case with underscores."""
    columns = {}
    for name, x in row.items():
        full = place + re.sub("[ -]", "_", str(name).lower())
        columns |= flat(x, f"{full}.") if isinstance(x, dict) and x else {full: x}
    return {name: x for name, x in columns.items() if name}  # pandas's index has none


def columns_of(row: dict) -> dict[str, str]:
    """{role: column, or ""} of a flat row: of the columns without a role the least nested, of these the best name."""
    columns = {}
    for role, patterns in COLUMNS.items():
        last = {name: name.rpartition(".")[2] for name in row if name not in columns.values()}
        ranks = [
            (n.count("."), i, n) for n, end in last.items() for i, x in enumerate(patterns) if re.fullmatch(x, end)
        ]
        columns[role] = min(ranks, default=(0, 0, ""))[2]
    if not columns["completion"] and columns["gold"].endswith("solution"):  # EvalPlus's programs
        columns |= {"completion": columns["gold"], "gold": ""}
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
            cells = [listed(row[name]) for row in rows]
            if name in declared and any(len(cell) > 1 for cell in cells):
                continue  # lm-eval's parts of a score, such as (gold, prediction)
            try:
                columns[name.removesuffix(".value")] = [[*map(score_of, cell)] for cell in cells]
            except (ValueError, TypeError):
                continue
    if {"base_status", "plus_status"} <= columns.keys():  # EvalPlus: its further tests count beside the first ones
        pairs = zip(columns["base_status"], columns["plus_status"], strict=True)
        columns["plus_status"] = [[x and y for x, y in zip(*pair, strict=True)] for pair in pairs]
    return {name: cells for name, cells in columns.items() if any(x is not None for cell in cells for x in cell)}


def text_of(value) -> str:
    """A completion as text: of messages the last one's."""
    while isinstance(value, list | dict) and value:
        value = value[-1] if isinstance(value, list) else value.get("content", value.get("text", value.get("prompt")))
    return value if isinstance(value, str) else "" if value in (None, [], {}) else str(value)


def listed(value) -> list:
    return value if isinstance(value, list) else [value]


def tables_in(value) -> Iterator[list[dict]]:
    """The tables of scored samples in a JSON value, as flat rows, also {id: sample, or samples}; none of training."""
    if isinstance(value, dict):
        for x in value.values():
            yield from tables_in(x)
        value = [{"id": key} | row for key, x in value.items() for row in listed(x) if isinstance(row, dict)]
        value = value if len(value) > 1 and all(columns_of(flat(row))["completion"] for row in value) else []
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        rows = [*map(flat, value)]
        if score_columns(rows) and "step" not in rows[0]:
            yield rows


def keys_of(rows: list[dict], column: str, asked: list[str]) -> list[str]:
    """What tells flat rows apart: a column of ids, else their prompts, else their places.

    Ids that stand for several prompts only number samples; prompts name rows if all occur equally often, or repeatedly.
    """
    ids, counts = [str(row.get(column)) for row in rows], {*Counter(asked).values()}
    if column and len({*zip(ids, asked, strict=True)}) == len({*ids}) > 1:
        return ids
    names_rows = len({*asked}) > 1 and (len(counts) == 1 or min(counts) > 1)
    return asked if names_rows else [*map(str, range(len(rows)))]


def unnamed_key(rows: list[dict], columns: dict[str, str], scores: dict) -> str:
    """Of flat rows with neither ids nor prompts the column that may name them: its values all occur equally often."""
    if columns["key"] or columns["prompt"]:
        return ""
    counts = {
        name: Counter(str(row.get(name)) for row in rows) for name in rows[0].keys() - {*scores, columns["model"]}
    }
    repeated = {name: len(x) for name, x in counts.items() if len(x) > 1 and min(x.values()) == max(x.values()) > 1}
    return max(sorted(repeated), key=repeated.get, default="")


class OtherResults:
    """One model's samples in a file, {task: {key: samples}}, and the figures that it and other files state, by file.

    `model` is its name in a file that has several, else "".
    """

    def __init__(self, file: Path, rows: list[dict], stated: dict, model: str = ""):
        lm_eval = re.fullmatch(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?", file.stem)
        self.file, self.task, self.stated = file, lm_eval[1] if lm_eval else "samples", {file: stated}
        self.model, self.name = model, f"{file}, {model}" if model else str(file)
        columns, scores, keyed = columns_of(rows[0]), score_columns(rows), {}
        asked = [text_of(row.get(columns["prompt"])) for row in rows]
        for i, key in enumerate(keys_of(rows, columns["key"], asked)):
            about = {"task": self.task, "key": key, "prompt": asked[i], "gold": rows[i].get(columns["gold"])}
            for sample in samples_of(rows[i], columns, {name: cells[i] for name, cells in scores.items()}):
                keyed.setdefault(key, []).append(about | sample)
        self.samples, self.siblings, self.unnamed_key = {self.task: keyed}, 1, unnamed_key(rows, columns, scores)
        self.metrics = list(dict.fromkeys(m for samples in keyed.values() for x in samples for m in x["metrics"]))


def samples_of(row: dict, columns: dict[str, str], scores: dict[str, list]) -> Iterator[dict]:
    """The samples of a flat row: as many as it has scores."""
    texts, finish, count = row.get(columns["completion"]), row.get(columns["finish"]), max(map(len, scores.values()))
    way = f",{row['filter'].replace('-', '_')}" if isinstance(row.get("filter"), str) else ""  # lm-eval's
    are_texts = count > 1 and isinstance(texts, list) and len(texts) == count
    for n in range(count):
        metrics = {f"{m}{way}": cell[n] if n < len(cell) else None for m, cell in scores.items()}
        cut = "length" if str(finish).lower() in CUT_REASONS else finish
        yield {"metrics": metrics, "completion": text_of(texts[n] if are_texts else texts), "finish": cut}


def by_model(rows: list[dict]) -> dict[str, list[dict]]:
    """{model: its flat rows} of a table of 2 to 20 models, else {"": all rows}."""
    column, models = columns_of(rows[0])["model"], {}
    for row in rows:
        models.setdefault(str(row.get(column)), []).append(row)
    return models if column and 2 <= len(models) <= 20 else {"": rows}


def read_table(file: Path) -> tuple[list[OtherResults], dict]:
    """(A file's scored samples of each model, its flat figures); UserError if it cannot be read."""
    try:
        if file.suffix == ".eval":
            with zipfile.ZipFile(file) as parts:
                value = [json.loads(parts.read(name)) for name in parts.namelist() if name.startswith("samples/")]
        else:
            value = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else read_rows(str(file))
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise UserError(f"got {file}, which cannot be read ({error}); expected JSON in UTF-8") from None
    figures = flat(value) if isinstance(value, dict) else {}
    rows = max(tables_in(value), key=len, default=[])
    return [OtherResults(file, own, figures, model) for model, own in by_model(rows).items()] if rows else [], figures


def other_evaluations(path: Path) -> tuple[list[OtherResults], list[str]]:
    """(Scored samples of a file, or of a folder and its subfolders, with the figures beside; what is unreadable).

    UserError if `path` itself is a table that cannot be read.
    """
    results, figures, unreadable = [], {}, []
    files = [*path.glob("*"), *path.glob("*/*"), *path.glob("results/*/*")]  # the last: OpenCompass's
    if path.is_file():
        files = [path, *(x for x in path.parent.glob("*.json") if path.stem in x.stem)]
    for file in sorted({x for x in files if x.suffix in SCORED_FILES}):
        try:
            of_models, figures_of_file = read_table(file)
        except UserError as error:
            if file == path:
                raise
            unreadable.append(str(error))
            continue
        if not of_models:
            figures[file] = figures_of_file
        elif file == path or not path.is_file():
            results += of_models
    for one in results:
        one.siblings = sum(x.file.parent == one.file.parent for x in results)
        one.stated |= {file: x for file, x in figures.items() if file.parent == one.file.parent}
    return results, unreadable


def pair_faults(one, other, task: str) -> list[str]:
    """What is wrong where rows of two results have the same id: other gold answers, or other prompts."""
    a, b = ({key: row[0] for key, row in x.samples[task].items()} for x in (one, other))
    common, faults = [key for key in a if key in b], []
    pairs = {key: [(x.get("gold"), x.get("prompt")) for x in (a[key], b[key])] for key in common}
    golds = [key for key, ((x, _), (y, _)) in pairs.items() if None not in (x, y) and str(x).strip() != str(y).strip()]
    asked = [key for key, ((_, x), (_, y)) in pairs.items() if x != y]
    are_others = {str(x) for (_, x), _ in pairs.values()} & {str(y) for _, (_, y) in pairs.values()}  # and no template
    apart = ": the rows are not paired"
    if golds:
        key, same = golds[0], [key for key in golds if key not in asked and a[key].get("prompt")]
        text = f"{len(golds)} of {len(common)} common rows have different golds in {other.name}"
        faults.append(f"{text}, such as {key!r}: {pairs[key][0][0]!r} and {pairs[key][1][0]!r}{'' if same else apart}")
    if asked and are_others:
        text = f"{len(asked)} of {len(common)} common ids have different prompts in {other.name}"
        faults.append(f"{text}, such as {asked[0]!r}{apart}")
    return faults
