"""Scored samples of other programs, in JSON, JSONL, CSV or parquet, and the figures stated beside them.

A file has one table: a row for each scored sample, or for each prompt with a list of scores. Nested columns get dotted
names. COLUMNS and SCORE say by which names a column is found; what tells the rows apart is decided by `keys_of`.
"""

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from parts.data.rows import read_rows
from parts.foundation.messages import UserError, need

SCORED_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".eval")  # the last is Inspect's: JSON files in a zip
ID = "(id|idx|index|uu?id)"
OF_ITEM = rf"(doc|task|question|problem|example|item)_?{ID}"
COLUMNS = {  # names of columns, the best first
    "key": ("item_?id", OF_ITEM, ID, f"sample_?{ID}", "key|name|item"),
    "prompt": ("((full|origin)_)?prompt", "question|problem|instruction|query", "(user_)?input"),
    "gold": (
        "golds?|gold_answer|targets?|references?|expected(_answer|_output)?|ground_truth|gt|correct_answer",
        "label|solution|answer|final_answer",
    ),
    "completion": (
        "completions?|(model_|full_)?(response|output)s?|generations?|generated_text|model_answer|resps|raw_output",
        "predictions?|preds?|code|text",
        "answer|solution",
    ),
    "finish": ("(finish|stop)(_reason)?", "(is_|was_)?truncated"),
    "model": (
        r"model(_?(name|id|path|name_or_path))?",
        "policy|checkpoint|system|arm|condition|llm|agent|generator|method",
    ),
    "part": ("subject", "data_?set(_name)?|benchmark|subset|category|task(_name)?|data_?source|config"),
}
DRAW = (
    "(sample|draw|seed|epoch|run|trial|rep(eat|lica|etition)?|attempt|rollout|generation|n|k|worker|judge|rater|grader"
    "|annotator|turn|template|lang(uage)?)(_?(id|idx|index|no))?"
)
GROUP = "(conversation|dialog|dialogue|thread|cluster|problem|question)(_?(id|name))?"
LOWER = (
    r"(?<![a-z])((wer|cer|ter|ppl|r?mse|mae|ece|brier(_score)?|perplexity|loss|errors?|latency|costs?)(?![a-z])"
    "|toxic|hallucin|harm(?!less|on))"
)
HIGHER = r"(?<![a-z])(acc|correct|right|pass|f1|precision|recall|auc|free)"  # error_free, num_correct
NEITHER = r"(?<![a-z])(length|len|tokens|words|turns|count|num|seconds|time|refus[a-z]+)(?![a-z])"
SCORE = (
    r"(is_)?(correct|right|solved)|correctness|acc(uracy)?|(exact_)?match|em|pass(ed)?|success|score|verified"
    r"|(.+\.)?(scores?|metrics?)\.\w+(\.value)?|(base|plus)_status"
)
VERDICTS = {
    **dict.fromkeys(("true", "yes", "pass", "passed", "correct", "right", "c", "y", "t"), 1.0),
    "p": 0.5,  # Inspect's letters: correct, partly, incorrect, no answer
    **dict.fromkeys(("false", "no", "fail", "failed", "incorrect", "wrong", "timeout", "i", "n", "f"), 0.0),
}
CUT_REASONS = ("length", "max_tokens", "max_length", "max_new_tokens", "true")  # how servers name the token limit


def column_name(name) -> str:
    """A name in lower case with underscores."""
    return re.sub("[ -]", "_", str(name).lower())


def flat(row: dict, place: str = "") -> dict:
    """A row without nesting, with dotted names."""
    columns = {}
    for name, x in row.items():
        full = place + column_name(name)
        columns |= flat(x, f"{full}.") if isinstance(x, dict) and x else {full: x}
    return {name: x for name, x in columns.items() if name}  # pandas's index has none


def columns_of(row: dict) -> dict[str, str]:
    """{role: column, or ""} of a flat row: of the columns without a role the least nested, of these the best name."""
    columns = {}
    for role, patterns in COLUMNS.items():
        ranks = [
            (name.count("."), rank, name)
            for name in row.keys() - {*columns.values()}
            for rank, pattern in enumerate(patterns)
            if re.fullmatch(pattern, name.rpartition(".")[2])
        ]
        columns[role] = min(ranks, default=(0, 0, ""))[2]
    if not columns["completion"] and columns["gold"].endswith("solution"):  # programs
        columns |= {"completion": columns["gold"], "gold": ""}
    return columns


def scores_in(row: dict, name: str) -> list[float | None] | None:
    """A row's scores of a column, None for empty cells; None if it lacks the column or has a text such as "error"."""
    try:
        cells = [VERDICTS.get(x.lower(), x) if isinstance(x, str) else x for x in listed(row[name])]
        return [None if x in (None, "") else float(x) for x in cells] or [None]
    except (KeyError, ValueError, TypeError):
        return None


def score_columns(rows: list[dict]) -> dict[str, list[list]]:
    """{metric: a list of scores for each row} of flat rows, most of which must have them; lm-eval declares metrics."""
    columns, declared = {}, rows[0].get("metrics") or ()
    for name in dict.fromkeys(name for row in rows for name in row if name in declared or re.fullmatch(SCORE, name)):
        cells = [scores_in(row, name) for row in rows]
        parts = name in declared and ("perplexity" in name or any(len(listed(row.get(name))) > 1 for row in rows))
        if not parts and 2 * cells.count(None) < len(rows):  # lm-eval's parts: (gold, prediction), a log-likelihood
            columns[name.removesuffix(".value")] = [cell or [None] for cell in cells]
    return {name: cells for name, cells in columns.items() if any(x is not None for cell in cells for x in cell)}


def text_of(value) -> str:
    """A completion as text: of messages the last one's."""
    while isinstance(value, list | dict) and value:
        value = value[-1] if isinstance(value, list) else value.get("content", value.get("text", value.get("prompt")))
    return value if isinstance(value, str) else "" if value in (None, [], {}) else str(value)


def listed(value) -> list:
    return value if isinstance(value, list) else [value]


def named_samples(value: dict) -> list[dict]:
    """Rows of {id: sample}, or of EvalPlus's {id: samples}, whose further tests (plus) count beside the first ones."""
    rows = [{"id": name} | x for name, part in value.items() for x in listed(part) if isinstance(x, dict)]
    if rows and all("base_status" in row for row in rows):
        failed = {"plus_status": "fail"}
        return [row | (failed if row["base_status"] != "pass" and row.get("plus_status") else {}) for row in rows]
    are_samples = len(rows) > 1 and all(isinstance(part, dict) for part in value.values())
    return rows if are_samples and all(columns_of(flat(row))["completion"] for row in rows) else []


def tables_in(value) -> Iterator[list[dict]]:
    """The tables of scored samples in a JSON value, as flat rows; none of training."""
    if isinstance(value, dict):
        for x in value.values():
            yield from tables_in(x)
        value = named_samples(value)
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        rows = [*map(flat, value)]
        if score_columns(rows) and "step" not in rows[0]:
            yield rows


def have_same_rows(tables: list[list[dict]]) -> bool:
    """Whether the flat rows of tables are of the same items, by their prompts or ids."""
    columns = columns_of(tables[0][0])
    for name in filter(None, (columns["prompt"], columns["key"])):
        first, *others = ({str(row.get(name)) for row in rows} for rows in tables)
        if len(first) ** 2 >= len(tables[0]):  # few are instructions that several rows share
            return all(2 * len(x & first) > len(x | first) for x in others)
    return False


def fits(finer: list[str], coarser: list[str]) -> bool:
    """Whether each value of a column has one value of another."""
    return len({*zip(finer, coarser, strict=True)}) == len({*finer})


def keys_of(rows: list[dict], columns: dict[str, str], asked: list[str]) -> list[str]:
    """What tells flat rows apart: their ids, or their prompts where ids number draws or begin anew.

    Ids that begin anew in each subject get its name. A prompt tells rows apart if it has one gold answer, unless it may
    be an instruction that many rows share: there are few prompts, and all have the same gold.
    """
    ids, parts, golds = ([str(row.get(columns[name])) for row in rows] for name in ("key", "part", "gold"))
    if columns["part"] and not fits(ids, parts):
        ids = [f"{part}, {key}" for part, key in zip(parts, ids, strict=True)]
    kind, number, prompts = columns["key"].rpartition(".")[2], len({*ids}), len({*asked})
    tells = prompts > 1 and fits(asked, golds) and (len({*golds}) > 1 or prompts**2 >= len(rows))
    if not columns["key"]:
        got = f"got {prompts} prompts in {len(rows)} rows without ids, which do not tell the rows apart"
        need(len(rows) == 1 or (prompts > 1 and fits(asked, golds)), f"{got}; try numbering the rows as item_id")
        return asked
    numbers_draws = number > 1.2 * prompts
    begins_anew = not re.fullmatch(OF_ITEM, kind) and not (fits(ids, golds) and number**2 >= len(rows))
    return asked if tells and kind != "item_id" and (numbers_draws or begins_anew) else ids


def doubts_of(rows: list[dict], columns: dict[str, str], scores: dict, keys: list[str]) -> dict[str, str]:
    """{what cannot be known of flat rows: the column that would tell it}.

    A column that is coarser than the keys may name the items: one of prompts with one gold each, one of groups by its
    name, one with the same number of rows for many values. One that all keys cross may name models.
    """
    groups, doubts = {}, {}
    ids, parts, golds = ([str(row.get(columns[name])) for row in rows] for name in ("key", "part", "gold"))
    others = {*scores, "filter", *(name for role, name in columns.items() if role not in ("prompt", "key"))}
    if columns["part"] and not fits(ids, parts):  # ids that begin anew in each part
        others.add(columns["key"])
    for name in sorted(rows[0].keys() - others):
        values = [str(row.get(name)) for row in rows]
        number, counts = len({*values}), Counter(values).values()
        if not 1 < number < len(rows) or re.fullmatch(DRAW, name.rpartition(".")[2]):
            continue
        is_crossed = number <= 20 and len({*zip(keys, values, strict=True)}) == number * len({*keys})
        if name == columns["prompt"]:
            may_be_items = fits(values, golds)
        else:
            is_even = len({*counts}) == 1 and number >= max(counts)
            may_be_items = is_even or re.fullmatch(GROUP, name.rpartition(".")[2])
        if may_be_items and fits(keys, values) and number < 0.8 * len({*keys}):
            groups[name] = number
        elif is_crossed and not re.fullmatch(ID, name):
            means = f"a row's value is the mean over column {name!r} ({', '.join(dict.fromkeys(values))}); if it names"
            doubts["Whether the rows are of one model"] = f"{means} models, rename it to model, else to sample"
    name = max(groups, key=groups.get, default="")
    if name and not re.fullmatch(OF_ITEM, columns["key"].rpartition(".")[2]):
        text = f"rows of one item are dependent; if column {name!r} names the items, rename it to item_id"
        text += "; if each row is an item of its own, number the rows in a column item_id"
        doubts["Whether the rows are independent"] = text
    return doubts


class OtherResults:
    """One model's samples in a file, {task: {key: samples}}, and the figures that it and other files state, by file.

    `model` is its name in a file that has several, else "".
    """

    def __init__(self, file: Path, rows: list[dict], stated: dict, model: str = ""):
        lm_eval = re.fullmatch(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?", file.stem)
        self.file, self.task, self.stated = file, lm_eval[1] if lm_eval else "samples", {file: stated}
        self.model, self.name = model, f"{file}, {model}" if model else str(file)
        head = {name: x for row in reversed(rows) for name, x in row.items()}
        columns, scores, keyed = columns_of(head), score_columns(rows), {}
        got = f"got {file} with columns {', '.join([*head][:9])}"
        need(columns["key"] or columns["prompt"], f"{got}; expected ids or prompts; try numbering its rows as item_id")
        asked = [text_of(row.get(columns["prompt"])) for row in rows]
        keys = keys_of(rows, columns, asked)
        for i, key in enumerate(keys):
            about = {"task": self.task, "key": key, "prompt": asked[i], "gold": rows[i].get(columns["gold"])}
            for sample in samples_of(rows[i], columns, {name: cells[i] for name, cells in scores.items()}):
                keyed.setdefault(key, []).append(about | sample)
        self.samples, self.siblings, self.doubts = {self.task: keyed}, 1, doubts_of(rows, columns, scores, keys)
        self.usual = Counter(map(len, keyed.values())).most_common(1)[0][0]
        more = [key for key, samples in keyed.items() if len(samples) > self.usual]
        ids = f"{len(more)} of {len(keyed)} ids, such as {str(more[:1])[1:-1]}, have more than {self.usual} samples"
        self.repeated = f"{self.name}: {ids}, as the others have: they count twice" if more else ""
        self.metrics = list(dict.fromkeys(m for samples in keyed.values() for x in samples for m in x["metrics"]))

    def higher_is_better(self, metric: str) -> bool | None:
        """Whether higher values of a metric are better: as lm-eval's file says or, without one, by its name."""
        name = metric.partition(",")[0]
        said = {x.get(f"higher_is_better.{column_name(self.task)}.{name}") for x in self.stated.values()} - {None}
        if said or re.search(HIGHER, name):
            return said != {False}
        return None if re.search(NEITHER, name) else not re.search(LOWER, name)


def samples_of(row: dict, columns: dict[str, str], scores: dict[str, list]) -> Iterator[dict]:
    """The samples of a flat row: as many as it has scores."""
    texts, finish, count = row.get(columns["completion"]), row.get(columns["finish"]), max(map(len, scores.values()))
    way = f",{row['filter'].replace('-', '_')}" if isinstance(row.get("filter"), str) else ""  # lm-eval's
    are_texts = count > 1 and isinstance(texts, list) and len(texts) == count
    for n in range(count):
        metrics = {f"{m}{way}": cell[n] if n < len(cell) else None for m, cell in scores.items()}
        cut = "length" if str(finish).lower() in CUT_REASONS else "stop" if finish is False else finish
        yield {"metrics": metrics, "completion": text_of(texts[n] if are_texts else texts), "finish": cut}


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
    *others, rows = [[], *sorted(tables_in(value), key=len)]
    got = f"got {file} with several tables of {', '.join([*rows[0]][:4]) if rows else ''}"
    is_one = not any(other and other[0].keys() == rows[0].keys() for other in others)
    need(
        is_one,
        f"{got}; expected one; try one list of rows, with the tables' names in a column model, subject or item_id",
    )
    column, models = columns_of(rows[0])["model"] if rows else "", {}
    for row in rows:
        models.setdefault(str(row.get(column)), []).append(row)
    is_model = "." not in column and re.match("model", column)  # other words may be of the items
    are_few = 2 <= len(models) <= max(20, len(rows) // 2 if is_model else 0)
    if not column or not are_few or not (is_model or have_same_rows([*models.values()])):
        models = {"": rows} if rows else {}
    return [OtherResults(file, table, figures, model) for model, table in models.items()], figures


def other_evaluations(path: Path) -> tuple[list[OtherResults], list[str]]:
    """(Scored samples of a file, or of a folder and its subfolders, with the figures beside; what is unreadable).

    UserError if `path` itself is a table that cannot be read.
    """
    results, figures, unreadable = [], {}, []
    files = [*path.glob("*"), *path.glob("*/*")]
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
