"""scripts/prove.py on evaluations of other programs: sound ones pass, and each planted fault is named."""

import csv
import itertools
import json
import math
import zipfile

import pytest
from conftest import write_lines
from test_prove import run

from parts.evaluating.evaluation_results import compare_reports
from parts.foundation.messages import UserError
from programs.evaluation.others import reports_to_compare

QUESTIONS = [(f"Ann has {i} pens and buys {3 * i}. How many has she?", 4 * i) for i in range(11, 31)]  # 20


def row(i: int, **changes) -> dict:
    """A sample that is right if its number is even."""
    question, gold = QUESTIONS[i]
    said = f"The answer is {gold if i % 2 == 0 else gold + 1}."
    return {"id": i, "question": question, "gold": str(gold), "response": said, "correct": i % 2 == 0} | changes


def report(folder, edit=None, **figures):
    """One JSON file of rows with their figures, of which `edit` changes the rows by number."""
    rows = [row(i, **(edit or {}).get(i, {})) for i in range(20)]
    figures = {"accuracy": 0.5, "total": 20, "num_correct": 10} | figures
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps({"summary": figures, "results": rows}))
    return folder / "report.json"


def lm_eval(folder, doc_ids=range(12), **stated):
    """A folder of lm-evaluation-harness with two filters, which disagree on the first document."""
    lines = []
    for way in ("strict-match", "flexible-extract"):
        for i in doc_ids:
            score = float(i % 2 == 0 or (i == 1 and way != "strict-match"))
            doc = {"doc_id": i, "doc": {"question": QUESTIONS[i][0]}, "target": f"#### {QUESTIONS[i][1]}"}
            doc |= {"filter": way}
            said = f"#### {QUESTIONS[i][1] + int(score == 0)}"
            lines.append(doc | {"resps": [[said]], "filtered_resps": [said], "metrics": ["exact_match"]})
            lines[-1]["exact_match"] = score
    write_lines(folder / "samples_gsm8k_2026-02-03T04-05-06.7.jsonl", lines)
    results = {"alias": "gsm8k", "exact_match,strict-match": 0.5, "exact_match,flexible-extract": 7 / 12} | stated
    counts = {"gsm8k": {"original": 1319, "effective": 12}}
    text = json.dumps({"results": {"gsm8k": results}, "n-samples": counts, "n-shot": {"gsm8k": 5}})
    (folder / "results_2026-02-03T04-05-06.7.json").write_text(text)
    return folder


def table(folder):
    """A CSV file with verdicts as words, and a summary in percent."""
    rows = [{"Question": q, "Correct answer": g, "Exact match": str(i % 2 == 0)} for i, (q, g) in enumerate(QUESTIONS)]
    rows = [{"Task ID": f"t{i}", **one} for i, one in enumerate(rows)]
    with (folder / "out.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "summary.json").write_text('{"exact_match_percent": 50.0}')
    return folder


def several(folder, acc: float = 50.0):
    """JSONL with lists of scores of a row, and metrics in percent beside it."""
    said = [{"idx": i, "question": q, "gt": str(g)} for i, (q, g) in enumerate(QUESTIONS)]
    said = [one | {"code": [f"\\boxed{{{one['gt']}}}", "?"], "score": [True, False]} for one in said]
    write_lines(folder / "test_seed0.jsonl", said)
    (folder / "test_seed0_metrics.json").write_text(json.dumps({"num_samples": 20, "num_scores": 40, "acc": acc}))
    return folder / "test_seed0.jsonl"


def two(folder, change=lambda rows: rows, **stated):
    """Samples of two models on the same rows: 5 are better, none worse; exact p 0.0625."""
    before = [row(i) for i in range(20)]
    better = [{"correct": True, "response": f"It is {one['gold']}."} for one in before]
    after = [one | (better[i] if one["id"] % 4 == 1 else {}) for i, one in enumerate(before)]
    write_lines(folder / "base.jsonl", before)
    write_lines(folder / "tuned.jsonl", change(after))
    figures = {"base": {"accuracy": 0.5}, "tuned": {"accuracy": 0.75}} | stated
    (folder / "comparison.json").write_text(json.dumps(figures))
    return folder


def passes(folder, stated: float):
    """Four samples a row, two of them right."""
    rows = [{"id": i, "prompt": q, "passed": [1, 0, 1, 0]} for i, (q, _) in enumerate(QUESTIONS)]
    (folder / "p.json").write_text(json.dumps({"pass@1": 0.5, "pass@2": stated, "rows": rows}))
    return folder / "p.json"


def turned(rows: list[dict]) -> list[dict]:
    """The same rows under each other's ids."""
    return [one | {"id": (one["id"] + 7) % 20} for one in rows]


def evalplus(folder, right=lambda i: i % 2 == 0):
    """EvalPlus's file: its further tests (plus) also fail 8, and pass 1, whose first tests fail."""
    rows = {}
    for i in range(20):
        statuses = {"base_status": right(i), "plus_status": (right(i) and i != 8) or i == 1}
        statuses = {name: "pass" if x else "fail" for name, x in statuses.items()}
        rows[f"HumanEval/{i}"] = [{"task_id": f"HumanEval/{i}", "solution": f"def f{i}(): pass", **statuses}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m_eval_results.json").write_text(json.dumps({"date": "2026-01-02", "hash": "a", "eval": rows}))
    return folder


def inspect_rows(right, finish: str = "stop") -> list[dict]:
    samples = []
    for i, (question, gold) in enumerate(QUESTIONS):
        said = f"The answer is {gold if right(i) else gold + 1}"
        output = {"choices": [{"stop_reason": finish, "message": {"content": said}}], "completion": said}
        scores = {"match": {"value": "C" if right(i) else "I", "answer": said[-3:]}}
        samples.append({"id": i + 1, "epoch": 1, "input": question, "target": str(gold), "output": output})
        samples[-1] |= {"scores": scores}
    return samples


def inspect_json(folder, right=lambda i: i % 2 == 0, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    log = {"version": 2, "eval": {"task": "gsm8k", "model": "m"}, "samples": inspect_rows(right, **changes)}
    (folder / "log.json").write_text(json.dumps(log))
    return folder / "log.json"


def inspect_eval(folder, right=lambda i: i % 2 == 0):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "log.eval", "w") as log:
        log.writestr("header.json", "{}")
        for row in inspect_rows(right):
            log.writestr(f"samples/{row['id']}_epoch_1.json", json.dumps(row))
    return folder / "log.eval"


def lighteval(folder, right=lambda i: i % 2 == 0):
    """A parquet file of details."""
    import pandas

    docs = [{"id": str(i), "query": question} for i, (question, _) in enumerate(QUESTIONS)]
    said = [{"text": [f"The answer is {gold}"]} for _, gold in QUESTIONS]
    metric = [{"extractive_match": float(right(i))} for i in range(20)]
    folder.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame({"doc": docs, "metric": metric, "model_response": said}).to_parquet(folder / "details.parquet")
    return folder / "details.parquet"


def pandas_table(folder, right=lambda i: i % 2 == 0):
    """CSV with an unnamed index, and each question twice, numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "out.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "prompt", "generated_text", "is_correct", "sample_idx"])
        rows = [[f"said {g}", right(i), n] for i, (_, g) in enumerate(QUESTIONS) for n in range(2)]
        writer.writerows([i, QUESTIONS[i // 2][0], *cells] for i, cells in enumerate(rows))
    return folder / "out.csv"


SOUND = {
    "EvalPlus": (evalplus, "samples base_status 0.500 (95 % Wilson interval 0.299 to 0.701) on 20 rows"),
    "Inspect's zip": (inspect_eval, "math_grader.py scores 20 of 20"),
    "pandas": (pandas_table, "samples is_correct 0.500 (95 % Wilson interval 0.299 to 0.701) on 20 rows"),
    "lm-eval": (lm_eval, "gsm8k exact_match,strict_match 0.500 (95 % Wilson interval 0.254 to 0.746) on 12 rows"),
    "nested": (report, "samples correct 0.500 (95 % Wilson interval 0.299 to 0.701) on 20 rows"),
    "CSV": (table, "samples exact_match 0.500"),
    "lists": (several, "samples score 0.500 on 20 rows"),
    "0 to 10": (
        lambda f: report(f, {i: {"correct": 7} for i in range(20)}, accuracy=7.0, num_correct=None),
        "7.000 on",
    ),
    "two": (two, "5 rows better, 0 worse of 20, exact McNemar p = 0.062"),
    # b = 5, c = 0: chi-squared 5, p 0.0253
    "chi-squared": (lambda f: two(f, difference=0.25, p_value=0.0253), "exact McNemar p = 0.062"),
    "part": (lambda f: two(f, lambda rows: rows[:15], tuned={}), "of 15 common ones (5 are in only one of the two)"),
    "Wald": (lambda f: report(f, stderr=0.1147, ci95=[0.281, 0.719]), "0.299 to 0.701"),  # s / sqrt(20)
    "truncated": (lambda f: report(f, {i: {"truncated": i == 1} for i in range(20)}), "1 of 20 texts were cut off"),
    # c of 4 right in each of 20 rows: pass@2 is 1 - C(4 - c, 2) / 6
    "pass@2": (lambda f: passes(f, 5 / 6), "samples passed 0.500"),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_evaluation_is_recounted(tmp_path, capsys, name):
    make, words = SOUND[name]
    code, proof, err = run(capsys, make(tmp_path))
    assert (code, proof["findings"]) == (0, []) and words in err, (proof["findings"], err)
    assert len(proof["sentences"]) <= 5


FAULTS = {
    "lm-eval, cut": (lambda f: lm_eval(f, range(9)), "n_samples 12; there are samples of 9 rows"),
    "lm-eval, value": (lambda f: lm_eval(f, **{"exact_match,strict-match": 0.75}), "0.75; the samples give 0.5"),
    "another file's accuracy": (lambda f: report(f, accuracy=0.62), "summary.accuracy 0.62; the samples give 0.5"),
    "ids": (lambda f: report(f, {3: row(4)}, accuracy=None, num_correct=None), "more than 1 samples"),
    "nan": (lambda f: report(f, {3: {"correct": math.nan}}, accuracy=None, num_correct=None), "1 scores are nan"),
    "unfinished": (
        lambda f: report(f, {2: {"finish_reason": "length"}, 0: {"finish_reason": "stop"}}),
        "count as right",
    ),
    "count": (lambda f: report(f, num_correct=12), "num_correct 12; the samples give 10"),
    "interval": (
        lambda f: report(f, ci95=[0.48, 0.52]),
        "says ci95 [0.48, 0.52]; the samples give a standard error of 0.11",
    ),
    "error": (
        lambda f: lm_eval(f, **{"exact_match_stderr,strict-match": 0.01}),
        "_stderr,strict_match 0.01; the samples",
    ),
    "pass@2": (lambda f: passes(f, 0.9), "says pass@2 0.9; the samples give 0.833333 on 20 rows"),
    "p": (lambda f: two(f, mcnemar_p=0.0005), "says mcnemar_p 0.0005; exact McNemar gives 0.062"),
    "models": (lambda f: two(f, accuracy={"base": 0.5, "tuned": 0.8}, tuned={}), "accuracy.tuned 0.8; the samples"),
    "another text": (
        lambda f: report(f, {4: {"response": "The answer is 5."}}),
        "has correct 1, but lacks its gold 60",
    ),
    "swapped": (lambda f: two(f, base={"accuracy": 0.75}), "base.accuracy 0.75; the samples give 0.5"),
    "golds": (
        lambda f: two(f, lambda rows: [{**rows[0], "gold": "7"}, *rows[1:]]),
        "1 of 20 common rows have different golds",
    ),
    "pairs": (lambda f: two(f, turned), "common ids have different prompts"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(tmp_path, capsys, name):
    make, finding = FAULTS[name]
    code, proof, _ = run(capsys, make(tmp_path))
    assert code == 1 and any(finding in text for text in proof["findings"]), proof["findings"]


def test_what_no_file_states_is_said(tmp_path, capsys):
    write_lines(tmp_path / "out.jsonl", [row(i) for i in range(20)])
    code, proof, _ = run(capsys, tmp_path / "out.jsonl")
    assert code == 0 and "no file states a single figure" in proof["not_measured"][0]


def test_a_folder_of_functions_or_of_runs_is_no_evaluation(tmp_path, capsys):
    report(tmp_path / "code")
    (tmp_path / "code" / "mine.py").write_text("def grpo_advantages(rewards):\n    return rewards\n")
    assert run(capsys, tmp_path / "code")[1].get("kind") != "evaluation"
    report(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "one" / "config.json").write_text('{"output_dir": "one", "model": "m", "data": "d"}')
    assert "none of these" in run(capsys, tmp_path / "runs")[2]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '{"accuracy": 0.5}', "none of these"),
        ("a.csv", "id,correct\n", "none of these"),
        ("a.jsonl", '{"step": 1, "prompt": "1+1=", "completion": "2", "score": 1.0}\n', "none of these"),
        ("a.jsonl", '{"id": 1, "correct": true}\n{"id": 2, "corr\n', "a.jsonl:2"),
    ],
)
def test_a_file_without_samples_is_told_what_is_accepted(tmp_path, capsys, name, text, words):
    (tmp_path / name).write_text(text)
    code, proof, err = run(capsys, tmp_path / name)
    assert (code, proof, len(err.splitlines())) == (2, {}, 1) and words in err and "expected" in err, err


@pytest.mark.parametrize("make", [evalplus, inspect_json, inspect_eval, lighteval, pandas_table])
def test_results_of_other_programs_are_compared(tmp_path, make):
    """5 rows are better, none is worse: exact p 0.0625."""
    paths = [make(tmp_path / "a"), make(tmp_path / "b", lambda i: i % 2 == 0 or i % 4 == 1)]
    reports = reports_to_compare([str(path) for path in paths])
    found = next(iter(compare_reports(*reports, 50, 0)["samples"].values()))
    assert (found["better"], found["worse"], found["rows"], found["p"]) == (5, 0, 20, 0.0625)
    if make is evalplus:
        plus = compare_reports(*reports, 50, 0)["samples"]["plus_status"]
        assert (plus["before"], plus["after"], plus["better"]) == (0.45, 0.7, 5)  # 1 passes the further tests alone


def test_other_rows_under_the_same_ids_are_not_compared(tmp_path):
    two(tmp_path, turned)
    with pytest.raises(UserError, match="the rows are not paired; expected the same rows"):
        reports_to_compare([str(tmp_path / "base.jsonl"), str(tmp_path / "tuned.jsonl")])


def test_scores_that_cannot_be_compared_are_told(tmp_path):
    write_lines(tmp_path / "a.jsonl", [row(i) for i in range(20)])
    write_lines(tmp_path / "b.jsonl", [{"id": i, "em": 1} for i in range(20)])
    with pytest.raises(UserError, match=r"a\.jsonl with correct and .*b\.jsonl with em; expected a metric"):
        reports_to_compare([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    write_lines(tmp_path / "b.jsonl", [row(i, correct=math.nan if i == 3 else 1.0) for i in range(20)])
    with pytest.raises(UserError, match="correct nan or infinite in row 3"):
        reports_to_compare([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])


def test_completions_without_scores_are_told_how_to_score_them(tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"question": q, "gt": str(g), "response": f"{g}"} for q, g in QUESTIONS])
    with pytest.raises(UserError, match=r"without scores of single rows.*--completion_column COLUMN"):
        reports_to_compare([str(tmp_path / "a.jsonl")] * 2)


def test_rows_without_ids_and_prompts_and_several_tables_of_a_file_are_refused(tmp_path):
    rows = [{"gold": str(gold), "correct": i % 2} for i, (_, gold) in enumerate(QUESTIONS)]
    file = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match="columns gold, correct; expected ids or prompts; try numbering"):
        reports_to_compare([str(file)] * 2)
    value = {name: [row(i, correct=int(i < k)) for i in range(20)] for name, k in (("old", 8), ("new", 10))}
    (file := tmp_path / "a.json").write_text(json.dumps(value))
    shared = write_lines(tmp_path / "b.jsonl", [{"instruction": "Add."} | one for one in rows])
    with pytest.raises(UserError, match="1 prompts in 20 rows without ids"):
        reports_to_compare([str(shared)] * 2)
    with pytest.raises(UserError, match=r"several tables of id, question, .* in a column model, subject or item_id"):
        reports_to_compare([str(file)])


def test_other_golds_of_the_same_prompts_are_told(tmp_path, capsys):
    asked = [{"prompt": q, "gold": str(g), "correct": 1} for q, g in QUESTIONS]
    others = [one | {"gold": f"{one['gold']}.0"} for one in asked]
    files = [write_lines(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", asked), ("b", others))]
    assert len(reports_to_compare(list(map(str, files)))) == 2
    assert "20 of 20 common rows have different golds" in capsys.readouterr().err


def test_samples_of_repeated_prompts_are_one_row(tmp_path):
    """One question is there twice, so that its prompt has 8 samples, others have 4."""
    rows = [{"question": q, "correct": n % 2} for q, _ in [*QUESTIONS, QUESTIONS[0]] for n in range(4)]
    file = str(write_lines(tmp_path / "a.jsonl", rows))
    assert len(reports_to_compare([file, file])[0]["tasks"]["samples"]["keys"]) == 20


def draws(file, shares: dict[str, list], key: str = "item", model: str = "model"):
    """One table of several models, each with 4 draws of every item, of which a share passed."""
    every = itertools.product(range(4), shares.items(), range(4))
    rows = [{key: f"i{i}", model: name, "draw": n, "passed": int(n < 4 * of[i])} for i, (name, of), n in every]
    return str(write_lines(file, rows))


SHARES = {"old": [0.25, 0.5, 0.0, 0.25], "new": [0.5, 0.75, 0.0, 0.75]}
T3 = 3.182446305284263  # quantile of 97.5 % of Student's t with 3 degrees of freedom, from a table


@pytest.mark.parametrize("model", ["model", "checkpoint"])
def test_models_in_one_table_are_told_apart_and_draws_of_an_item_are_one_row(tmp_path, capsys, model):
    """The differences 0.25, 0.25, 0, 0.5 have the mean 0.25 and the standard error sqrt(0.125 / 12)."""
    file, half = draws(tmp_path / "a.jsonl", SHARES, model=model), T3 * math.sqrt(0.125 / 12)
    code, proof, err = run(capsys, file)
    assert code == 0 and "a.jsonl, old: samples passed 0.250" in err and "a.jsonl, new: samples passed 0.500" in err
    figures = proof["figures"]["compared"]["samples passed"]
    assert figures["ci95"] == pytest.approx([0.25 - half, 0.25 + half]) and figures["test"] == "paired t"
    t = 0.25 / math.sqrt(0.125 / 12)  # two-sided p with 3 degrees of freedom, in closed form
    inside = 2 / math.pi * (math.atan(t / math.sqrt(3)) + t / math.sqrt(3) / (1 + t * t / 3))
    assert figures["p"] == pytest.approx(1 - inside) and (figures["rows"], figures["better"]) == (4, 3)
    found = compare_reports(*reports_to_compare([file]), 50, 0)["samples"]["passed"]
    assert (found["test"], found["rows"], found["difference"]) == ("paired permutation", 4, 0.25)


def test_one_table_that_is_not_of_two_models_is_told(tmp_path):
    three = draws(tmp_path / "a.jsonl", SHARES | {"third": [0] * 4})
    one = draws(tmp_path / "b.jsonl", {"old": SHARES["old"]})
    for paths in ([three], [one], [three, one]):
        with pytest.raises(UserError, match="expected two models: one in each of two paths, or both in one file"):
            reports_to_compare(paths)


def compared(tmp_path, before: list[dict], after: list[dict]) -> dict:
    """The comparison of two files of rows."""
    paths = [write_lines(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", before), ("b", after))]
    (metrics,) = compare_reports(*reports_to_compare([*map(str, paths)]), 2000, 0).values()
    return next(iter(metrics.values()))


def rows_of(columns, right: int, items: int = 20, times: int = 5) -> list[dict]:
    """`times` rows of each item with these columns, of which the first `right` items are right."""
    return [columns(i, n) | {"correct": int(i < right)} for i in range(items) for n in range(times)]


# forms of 100 rows of which 10 of 20 items get better and none worse: exact p 2 / 2^10, not the 2 / 2^50 of 50 rows
DEPENDENT = {
    "an id for each draw": lambda i, n: {"id": f"u{i}-{n}", "prompt": f"What is {i}?"},
    "task_id beside sample_id": lambda i, n: {"task_id": f"HumanEval/{i}", "sample_id": n},
    "paraphrases with one gold": lambda i, n: {"question_id": i, "prompt": f"Paraphrase {n} of {i}", "gold": str(i)},
    "more draws than items": lambda i, n: {"id": f"{i}-{n}", "problem": f"q{i // 5}", "answer": str(i // 5)},
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_of_one_item_are_one_value(tmp_path, name):
    figures = compared(tmp_path, *(rows_of(DEPENDENT[name], right) for right in (5, 15)))
    more = name == "more draws than items"  # 4 items, of which 1 and then 3 are right
    assert (figures["rows"], figures["better"]) == ((4, 2) if more else (20, 10))
    assert figures["p"] == (0.5 if more else 2 / 2**10)


# what cannot be known takes the place of a verdict
UNKNOWN = {
    "problem": (lambda i, n: {"id": f"{i}-{n}", "problem_name": f"p{i}"}, "if column 'problem_name' names the items"),
    "few prompts": (lambda i, n: {"id": f"{i}-{n}", "prompt": f"p{i % 4}"}, "if column 'prompt' names the items"),
    "variants": (lambda i, n: {"id": i, "variant": "abcde"[n]}, "the mean over column 'variant' (a, b, c, d, e)"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_doubt_takes_the_place_of_the_verdict(tmp_path, capsys, name):
    columns, words = UNKNOWN[name]
    verdict = compared(tmp_path, *(rows_of(columns, right) for right in (8, 18)))["verdict"]
    assert words in verdict.partition("No verdict: ")[2] and "gain" not in verdict
    _, proof, err = run(capsys, tmp_path / "a.jsonl")
    assert words in err and not proof["proved"]


SIZES = {"algebra": 30, "law": 10, "biology": 20}


def test_ids_that_begin_anew_in_each_subject_are_rows_of_their_own(tmp_path):
    """30 of 60 are right; then 42, of which 6 of law and 6 of biology are new: exact p 2 / 2^12."""
    places = [(subject, i) for subject, size in SIZES.items() for i in range(size)]
    before, after = (
        [{"subject": s, "index": i, "correct": int(s == "algebra" or i < k)} for s, i in places] for k in (0, 6)
    )
    figures = compared(tmp_path, before, after)
    assert (figures["rows"], figures["before"], figures["after"], figures["p"]) == (60, 0.5, 0.7, 2 / 2**12)


def test_columns_that_may_name_models_or_items(tmp_path):
    """Arms that answer the same rows are models; a column of unknown name, 4 draws each, may name the items."""
    rows = [{"id": i, "arm": arm, "correct": int(i < k)} for arm, k in (("base", 8), ("new", 10)) for i in range(20)]
    reports = reports_to_compare([str(write_lines(tmp_path / "a.jsonl", rows))])
    assert [x["model"]["name"] for x in reports] == ["base", "new"]
    assert compare_reports(*reports, 50, 0)["samples"]["correct"]["better"] == 2
    which = [[{"id": i, "which": f"t{i // 4}", "correct": int(i < k)} for i in range(40)] for k in (10, 30)]
    assert "if column 'which' names the items" in compared(tmp_path, *which)["verdict"]


def test_programs_in_a_column_solution_are_completions(tmp_path):
    rows = [[{"task_id": i, "solution": f"f{k}({i})", "passed": int(i < k)} for i in range(20)] for k in (8, 10)]
    assert compared(tmp_path, *rows)["better"] == 2


@pytest.mark.parametrize("lacking", [{"correct": None}, {"error": "timeout"}])
def test_a_missing_score_is_told_and_does_not_count_as_wrong(tmp_path, capsys, lacking):
    rows = [{"id": i, "prompt": f"q{i}", "correct": int(i < 10)} for i in range(20)]
    failed = [x if x["id"] < 16 else {"id": x["id"], "prompt": x["prompt"]} | lacking for x in rows]
    figures = compared(tmp_path, failed, rows)
    assert (figures["rows"], figures["before"], figures["after"]) == (16, 0.625, 0.625)
    told = "samples correct: 4 rows have no score before, 0 none after"
    assert told in capsys.readouterr().err and told in run(capsys, tmp_path)[2]


@pytest.mark.parametrize("pair", [((0, 1), (0, 100)), ((-1, 1), (0, 1))])
def test_other_scales_are_told(tmp_path, capsys, pair):
    rows = [[{"id": i, "prompt": f"q{i}", "score": scale[i < 10]} for i in range(20)] for scale in pair]
    assert "No verdict: the two sides have scores on different scales" in compared(tmp_path, *rows)["verdict"]
    assert not run(capsys, tmp_path)[1]["proved"]


LOW, HIGH = ("wer", "latency_s"), ("harmlessness", "error_free")


@pytest.mark.parametrize("metric", [*LOW, *HIGH, "refusal"])
def test_names_of_metrics_say_what_should_be_low(tmp_path, capsys, metric):
    rows = [[{"id": i, "prompt": f"q{i}", f"scores.{metric}": k + i / 100} for i in range(20)] for k in (0.1, 0.3)]
    change = "A real loss." if metric in LOW else "A real gain." if metric in HIGH else "A real change."
    assert change in compared(tmp_path, *rows)["verdict"]
    assert metric not in LOW or "20 rows higher, 0 lower" in run(capsys, tmp_path)[2]


def test_lm_eval_says_what_should_be_low_and_that_a_perplexity_is_no_mean(tmp_path, capsys):
    for name, k in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        same = {"metrics": ["distance", "perplexity"], "perplexity": -k}
        rows = [same | {"doc_id": i, "distance": k + i / 9} for i in range(20)]
        write_lines(tmp_path / name / "samples_t_2026-02-03T04-05-06.7.jsonl", rows)
        stated = {"results": {"t": {"perplexity,none": math.exp(k)}}, "higher_is_better": {"t": {"distance": False}}}
        (tmp_path / name / "results_2026-02-03T04-05-06.7.json").write_text(json.dumps(stated))
    found = compare_reports(*reports_to_compare([str(tmp_path / "a"), str(tmp_path / "b")]), 50, 0)["t"]
    assert [*found] == ["distance"] and "A real loss." in found["distance"]["verdict"]
    assert run(capsys, tmp_path / "a")[1]["findings"] == []


def test_the_same_path_twice_and_repeated_ids_are_told(tmp_path, capsys):
    write_lines(tmp_path / "a.jsonl", [row(i % 20) for i in range(21)])
    reports_to_compare([str(tmp_path / "a.jsonl")] * 2)
    told = capsys.readouterr().err
    assert "the same path twice" in told and "1 of 20 ids, such as '0', have more than 1 samples" in told


# tables whose rows are independent: 5 of 60 rows get better, none worse, exact p 2 / 2^5
INDEPENDENT = {
    "ids that are said to name the items": lambda i: {"item_id": i, "prompt": f"p{i % 4}"},
    "a question twice": lambda i: {"id": i, "question": f"q{max(i, 1)}"},
    "a premise beside few questions": lambda i: {"id": i, "question": f"q{i % 2}", "target": str(i % 3)},
    "a category": lambda i: {"id": i, "prompt": f"p{i}", "language": f"l{i % 6}"},
    "a name of categories": lambda i: {"name": f"n{i % 5}", "question": f"q{i}", "answer": str(i)},
    "numbers that begin anew": lambda i: {"idx": i % 31, "question": f"q{i}", "answer": str(i)},
    "a group": lambda i: {"id": i, "prompt": f"p{i}", "group": "AB"[i % 2]},
    "system prompts": lambda i: {"id": i, "prompt": f"p{i}", "system": f"You are {i % 4}"},
    "agents of items": lambda i: {"task_id": i, "agent": "ab"[i % 2]},
    "the source of a text": lambda i: {"id": i, "prompt": f"p{i}", "doc": {"model": "ab"[i % 2]}},
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_columns_of_independent_rows_leave_a_verdict(tmp_path, name):
    rows = [[INDEPENDENT[name](i) | {"correct": int(i < k)} for i in range(60)] for k in (20, 25)]
    figures = compared(tmp_path, *rows)
    assert (figures["rows"], figures["p"], "No verdict" in figures["verdict"]) == (60, 2 / 2**5, False)


@pytest.mark.parametrize("pair", [([0] * 20, [0, 90] * 10), ([0.1] * 20, [0.2] * 19 + [11])])
def test_one_scale_is_told_from_two(tmp_path, pair):
    rows = [[{"id": i, "prompt": f"q{i}", "score": x} for i, x in enumerate(scores)] for scores in pair]
    assert "A real gain." in compared(tmp_path, *rows)["verdict"]


def test_float_noise_is_no_difference(tmp_path, capsys):
    rows = [[{"id": i, "prompt": f"q{i}", "score": x + i % 2} for i in range(20)] for x in (0.3, 0.1 + 0.2)]
    assert compared(tmp_path, *rows)["p"] == 1
    assert run(capsys, tmp_path)[1]["figures"]["compared"]["samples score"]["better"] == 0


def test_a_figure_of_both_models_is_stated_for_neither(tmp_path, capsys):
    rows = [{"id": i, "model": x, "correct": int(i < k)} for x, k in (("a", 5), ("gpt-4", 9)) for i in range(20)]
    (file := tmp_path / "t.json").write_text(json.dumps({"accuracy": 0.35, "GPT-4": {"acc": 0.5}, "samples": rows}))
    (finding,) = run(capsys, file)[1]["findings"]
    assert "says gpt_4.acc 0.5; the samples give 0.45" in finding
