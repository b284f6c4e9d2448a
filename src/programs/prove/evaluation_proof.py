"""An evaluation: recount metrics from the samples, recompute intervals and p from their formulas, show two rows."""

import json
from fractions import Fraction
from pathlib import Path

from parts.evaluating.evaluation_results import OTHER_SCALE, REPEATED, read_report, unpaired_scores
from parts.evaluating.paired_tests import ends_of, other_scale
from parts.evaluating.scored_samples import OtherResults, pair_faults
from parts.foundation.messages import UserError
from programs.prove.exact_figures import difference_interval, exact_p, mean_test, pass_at, share_figures
from programs.prove.graded_again import grade_other, regrade
from programs.prove.other_evaluations import compare_stated_p, recount_other, stated_value
from programs.prove.proof import Proof, shown

MAIN_METRICS = ("verified", "passed", "score", "acc")  # the first of these stands in the sentences
TOLERANCE = 1e-9  # relative for numbers above 1, else absolute


class Results:
    """One model's results.json, and the samples.jsonl beside it: {task: {row's key: samples}}."""

    def __init__(self, file: Path):
        report = read_report(str(file))
        self.file, self.tasks, self.settings, self.samples = file, report["tasks"], report.get("settings") or {}, {}
        self.model, self.name, self.doubts = "", str(file), {}
        try:
            lines = (file.parent / "samples.jsonl").read_text(encoding="utf-8").splitlines()
            for sample in map(json.loads, filter(str.strip, lines)):
                self.samples.setdefault(sample["task"], {}).setdefault(sample["key"], []).append(sample)
        except (OSError, ValueError, KeyError, TypeError) as error:
            got = f"got {file} whose samples.jsonl cannot be read ({error!r})"
            raise UserError(f"{got}; expected it beside, as evaluation.py writes it") from None


def results_files(path: Path) -> list[Path]:
    """A path's results.json of evaluation.py, or those of before/ and after/ in it; [] if there is none."""
    if path.is_file():
        return [path] if path.name == "results.json" and is_ours(path) else []
    one, pair = path / "results.json", [path / name / "results.json" for name in ("before", "after")]
    return [one] if is_ours(one) else [file for file in pair if is_ours(file)]


def is_ours(file: Path) -> bool:
    """Whether a results.json has tasks, or samples.jsonl beside it; other programs use that name, too."""
    if not file.is_file():
        return False
    return (file.parent / "samples.jsonl").is_file() or '"tasks"' in file.read_text(encoding="utf-8", errors="replace")


def column_of(metric: str, sample: dict) -> str:
    """The sample score behind a metric: for pass@k `passed`, `verified`, or a conversation's `accuracy`."""
    passes = next((name for name in ("passed", "verified") if name in sample["metrics"]), "accuracy")
    return passes if metric.startswith("pass@") else metric


def row_value(samples: list[dict], metric: str) -> Fraction | str | None:
    """A row's value: the mean over its samples, or pass@k; None if it does not apply, "" if samples lack the score."""
    column, (_, at, k) = column_of(metric, samples[0]), metric.partition("@")
    if any(column not in sample["metrics"] for sample in samples) or (at and not k.isdecimal()):
        return ""
    scores = [Fraction(x) for sample in samples if (x := sample["metrics"][column]) is not None]
    if not scores or not at:
        return sum(scores) / len(scores) if scores else None
    return pass_at(scores, int(k)) if len(scores) >= int(k) else None


def differs(stated, counted) -> bool:
    """Whether a stated number is not the counted one; nan always differs."""
    if stated is None or counted is None:
        return stated is not counted
    return not abs(stated - counted) <= TOLERANCE * max(1.0, abs(counted))


def recount_metric(metric: str, result: dict, rows: dict[str, list[dict]], find) -> dict | None:
    """Recount a metric from the samples, None if they lack it; `find` is told where results.json differs."""
    by_key = {key: row_value(rows[key], metric) for key in result["keys"] if key in rows}
    values, stated, stored = [*by_key.values()], result["metrics"][metric], result["values"][metric]
    if "" in values or stored["bottom"] is not None or stored["exp"]:  # no mean over rows, such as a perplexity
        return None
    figures = share_figures(by_key, stored["higher_is_better"])
    tops, n, interval = stored["top"], figures["n"], figures["ci95"] if figures["interval"] == "Wilson" else None
    wrong = sum(differs(*pair) for pair in zip(tops, values, strict=False)) + abs(len(tops) - len(values))
    if wrong:
        find(f"{metric}: {wrong} of {len(tops)} stored values are not those of samples")
    if differs(stated["value"], figures["value"]):
        find(f"{metric}: results.json says {stated['value']}, its samples give {figures['value']} on {n} rows")
    if stated["n"] != n or stated["of"] != len(result["keys"]):
        find(f"{metric}: results.json says {stated['n']} of {stated['of']} rows, samples are {n}")
    given = stated["ci95"] or [None, None]
    if interval and any(differs(x, y) for x, y in zip(given, interval, strict=True)):
        find(f"{metric}: results.json has the interval {given}, Wilson's formula gives {interval}")
    return figures


def recount(results: Results, proof: Proof) -> dict:
    """{(task, metric): recounted figures} of one model; findings about missing and repeated samples."""
    recounted = {}
    for task, result in results.tasks.items():
        rows = results.samples.get(task, {})
        keys, twice = {*result["keys"]}, sum(len({s["sample"] for s in row}) != len(row) for row in rows.values())
        counts = {"have no sample": len(keys - rows.keys()), "of samples are not counted": len(rows.keys() - keys)}
        for text, count in (counts | {"have a sample twice": twice}).items():
            if count:
                proof.find(f"{results.name}, {task}: {count} rows {text}")

        def find(text: str, task=task) -> None:
            proof.find(f"{results.name}, {task} {text}")

        for metric in result["metrics"]:
            figures = recount_metric(metric, result, rows, find)
            if figures is None:
                proof.not_measured.append(f"{results.name}, {task} {metric}: it is no mean of scores in the samples")
            else:
                recounted[task, metric] = figures
    return recounted


def prove_evaluation(path: Path, all_results: list, unreadable: list[str], seconds: float) -> Proof:
    """Recount the results of evaluation.py or of others, of one model or of two that were compared.

    Args:
        unreadable: findings about files that could not be read.
        seconds: time for computing scores again.
    """
    proof, models = Proof("evaluation", str(path), findings=unreadable), {}
    is_other, share = isinstance(all_results[0], OtherResults), seconds / len(all_results)
    recount_it, grade_it = (recount_other, grade_other) if is_other else (recount, regrade)
    try:
        recounts = [recount_it(results, proof) for results in all_results]
        differences = len(proof.findings)
        again = [grade_it(proof, results, share) for results in all_results]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if is_other:
            raise
        got = f"got {path} with tasks that cannot be read ({error!r})"
        raise UserError(f"{got}; expected results.json and samples.jsonl as evaluation.py writes them") from None
    said = "results.json"
    if is_other:
        said = f"{sum(stated_value(x, m) is not None for x in all_results for m in x.metrics)} stated figures"
    describe_results(proof, all_results, recounts, f"{differences} differences from {said} were found", again)
    for results, recounted in zip(all_results, recounts, strict=True):
        of_folders = len(all_results) > 2 and not results.model
        model = results.file.parent if of_folders else results.model or results.file
        models.setdefault(model, []).append((results, recounted))
    if len(models) == 2 and all(recounts):
        one, other = models.values()
        pairs = [(a, b, task) for a, _ in one for b, _ in other for task in a.samples if task in b.samples]
        proof.findings += [fault for pair in pairs for fault in pair_faults(*pair)]
        if any(a.samples[task].keys() & b.samples[task].keys() for a, b, task in pairs):
            sides = [{k: x for _, figures in side for k, x in figures.items()} for side in (one, other)]
            compare(proof, None if is_other else path / "comparison.json", sides)
            test = proof.figures["compared"].get(" ".join(main_metric(sides[0])), {})
            if is_other and len(all_results) == 2 and test.get("test") == "exact McNemar":
                compare_stated_p(all_results, test, proof)
        else:
            proof.skip("The difference of the two models", "they have no common rows")
    return proof


def describe_results(proof: Proof, all_results: list, recounts: list[dict], differences: str, again: list[str]) -> None:
    """Add the sentences on all results, with what was recounted for them and computed `again`."""
    rows = [row for results in all_results for of_task in results.samples.values() for row in of_task.values()]
    total, samples = sum(map(len, recounts)), [sample for row in rows for sample in row]
    if not all(recounts):
        proof.is_open = True
        proof.skip("Whether the metrics follow from the samples", "none is a mean of scores in samples.jsonl")
        return
    counted = f"{total} metrics were recounted from the scores of {len(samples)} stored samples in {proof.thing}"
    proof.say("; ".join([counted, differences, *dict.fromkeys(filter(None, again))]) + ".")
    clauses = []
    for results, recounted in zip(all_results, recounts, strict=True):
        main = main_metric(recounted)
        figures = recounted[main]
        interval = f" (95 % {figures['interval']} interval {shown(figures['ci95'])})" if figures["ci95"] else ""
        clauses.append(f"{results.name}: {' '.join(main)} {shown(figures['value'])}{interval} on {figures['n']} rows")
    proof.say(f"{'; '.join(clauses)}.")
    proof.figures["metrics"] = {
        results.name: {" ".join(k): {n: v[n] for n in ("value", "n", "ci95", "interval")} for k, v in recounted.items()}
        for results, recounted in zip(all_results, recounts, strict=True)
    }
    for figure, doubt in {figure: x for results in all_results for figure, x in results.doubts.items()}.items():
        proof.is_open = True
        proof.skip(figure, doubt)
    describe_unfinished(proof, samples, main_metric(recounts[0]))
    describe_rows(proof, all_results[-1], main_metric(recounts[-1]))


def main_metric(recounted: dict) -> tuple[str, str]:
    """The (task, metric) that the sentences quote."""
    return min(recounted, key=lambda pair: pair[1] not in MAIN_METRICS)


def describe_unfinished(proof: Proof, samples: list[dict], main: tuple[str, str]) -> None:
    """Report how many texts were cut off at the token limit; it is a finding if some have full marks."""
    finished = [x for x in samples if x["task"] == main[0] and x.get("finish")]
    pairs = [(x["finish"] == "length", x["metrics"].get(column_of(main[1], x)) or 0) for x in finished]
    cut, full = sum(is_cut for is_cut, _ in pairs), pairs.count((True, 1)) * all(x <= 1 for _, x in pairs)
    proof.figures |= {"unfinished_texts": cut, "unfinished_texts_with_full_marks": full}
    if not finished:  # the task scores given texts
        return
    text = f"{cut} of {len(finished)} texts were cut off at the token limit; {full} of these have full marks"
    proof.say(f"{text}.")
    if full:
        proof.find(f"{text}: unfinished texts count as right; try a larger --max_new_tokens")


def describe_rows(proof: Proof, results: Results, main: tuple[str, str]) -> None:
    """Quote two rows to read: the highest score and the lowest."""
    rows = [row[0] for row in results.samples[main[0]].values()]
    name = column_of(main[1], rows[0])
    rows = sorted(rows, key=lambda sample: -(sample["metrics"].get(name) or 0))
    picked = [rows[0], rows[-1]] if len(rows) > 1 else rows
    proof.figures["rows"] = [
        {key: sample.get(key) for key in ("prompt", "completion", "gold", "finish", "metrics")} for sample in picked
    ]
    pairs = [(x.get("completion") or x.get("extracted"), x["metrics"].get(name)) for x in picked]
    if any(text for text, _ in pairs):
        proof.say(f"Two of its rows: {'; '.join(f'{str(text)[-80:]!r} scores {score}' for text, score in pairs)}.")


def compare(proof: Proof, file: Path | None, recounts: list[dict]) -> None:
    """Recompute the paired tests of two models on their common rows, also those in a `file`."""
    stated = json.loads(file.read_text(encoding="utf-8"))["tasks"] if file and file.is_file() else {}
    proof.figures["compared"], main = {}, " ".join(main_metric(recounts[0]))
    for task, metric in [pair for pair in recounts[0] if pair in recounts[1]]:
        before, after = (recounted[task, metric]["values"] for recounted in recounts)
        both = [(x, after[key]) for key, x in before.items() if key in after and not REPEATED.fullmatch(key)]
        pairs = [pair for pair in both if None not in pair]
        if recounts[0][task, metric]["higher_is_better"] is None or len(pairs) < 2:
            continue
        if other_scale(*zip(*pairs, strict=True)):
            proof.is_open = True
            proof.skip(f"The difference of {task} {metric}", OTHER_SCALE)
            continue
        if f"{task} {metric}" == main and (lacking := unpaired_scores(both)):
            proof.say(f"{main}: {lacking}.")
        figures = paired_difference(pairs)
        proof.figures["compared"][f"{task} {metric}"] = figures
        test = stated.get(task, {}).get(metric)
        same = [*figures] if figures["test"] == "exact McNemar" else ("difference", "rows")
        for name, value in ((name, figures[name]) for name in same if test and name != "test"):
            given, recomputed = (x if isinstance(x, list) else [x] for x in (test[name], value))
            if any(differs(x, y) for x, y in zip(given, recomputed, strict=True)):
                proof.find(f"{file}, {task} {metric}: {name} is {test[name]}, recomputed {value}")
    if x := proof.figures["compared"].get(main):
        one, other = ({*recounted[main_metric(recounts[0])]["values"]} for recounted in recounts)
        interval = "t" if x["test"] == "paired t" else "Bonett-Price"
        test = f", {x['test']} p = {x['p']:.2g}, 95 % {interval} interval {shown(x['ci95'])}" if x["ci95"] else ""
        up, down = ends_of(recounts[0][main_metric(recounts[0])]["higher_is_better"])
        counts = f"{x['better']} rows {up}, {x['worse']} {down} of {x['rows']}"
        counts += f" common ones ({len(one ^ other)} are in only one of the two)" if one ^ other else ""
        proof.say(f"The difference of {main} is {x['difference']:+.3f}: {counts}{test}, recomputed.")


def paired_difference(pairs: list[tuple]) -> dict:
    """The test of a difference on common rows: exact McNemar for 0 and 1, a sign test for one size, else a paired t."""
    changes, n = [round(b - a, 12) for a, b in pairs], len(pairs)  # 0.1 + 0.2 is 0.3
    up, down = sum(x > 0 for x in changes), sum(x < 0 for x in changes)
    figures = {"difference": float(sum(b - a for a, b in pairs) / n), "rows": n, "better": up, "worse": down}
    if {x for pair in pairs for x in pair} <= {0, 1}:
        return figures | {"test": "exact McNemar", "p": exact_p(up, down), "ci95": difference_interval(up, down, n)}
    if len(sizes := {*map(abs, changes)} - {0}) == 1:
        size = float(sizes.pop())
        ends = [size * end for end in difference_interval(up, down, n)]
        return figures | {"test": "exact sign", "p": exact_p(up, down), "ci95": ends}
    tested = mean_test(changes)
    return figures | {"test": "paired t", "p": tested["p"], "ci95": tested["ci95"]}
