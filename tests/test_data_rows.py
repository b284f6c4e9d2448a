"""Rows of public and of users' schemas: tests/data/row_cases.jsonl has a `row` a line, and what must become of it.

| key | what holds |
|---|---|
| `asked`, `answer`, `completion`, `fields` | the last message of the prompt; the fields of these names (null: none) |
| `rows`, `options` | a file instead of a `row`, loaded with these arguments: see `test_a_file_is_read` |
| `refused` | the row is bad, with a message of this pattern |
| `note` | a file of it gives one line on stderr that has these words (empty: none) |
| `unread` | the column is named as a part of the question that no prompt holds |
| `unreadable_choices` | the row is bad, and the columns that its message advises to drop are in the way |
| `program` | its tests pay this program, and not one that subtracts where this adds |
| `never_pays` | its tests pay not even `program` (by default PROGRAM): this field is bad, with `words` |
"""

import re
import shlex

import pytest
from conftest import ROOT, load_script, read_lines, write_lines

from parts.data.question_parts import warn_unread

loader, sandbox = load_script("data_loader"), load_script("sandbox")
PROGRAM = "def twice(x):\n    return 2 * x\n"


def cases(*keys: str) -> list:
    """The cases with one of some keys, as parameters of a test."""
    chosen = (case for case in read_lines(ROOT / "tests" / "data" / "row_cases.jsonl") if {*keys} & case.keys())
    return [pytest.param(case, id=case["name"]) for case in chosen]


@pytest.mark.parametrize("case", cases("asked", "answer", "completion", "fields"))
def test_a_row_is_read(case):
    row = loader.normalise(case["row"])
    expected = {name: case[name] for name in ("answer", "completion") if name in case} | case.get("fields", {})
    assert {name: row.get(name) for name in expected} == expected
    assert row["prompt"][-1]["content"] == case.get("asked", row["prompt"][-1]["content"])


@pytest.mark.parametrize("case", cases("rows"))
def test_a_file_is_read(case, tmp_path, capsys):
    """`failed`: pattern of the error; `said`: words on stderr (empty: none); `answers`, `asks`: one for each row."""
    path = write_lines(tmp_path / "rows.jsonl", case["rows"])
    if "failed" in case:
        with pytest.raises(loader.UserError, match=case["failed"]):
            loader.load_rows(path)
        return
    rows, said = loader.load_rows(path, **case.get("options", {})).rows, capsys.readouterr().err
    assert [row.get("answer") for row in rows] == case.get("answers", [row.get("answer") for row in rows])
    asked = [row["prompt"][-1]["content"] for row in rows]
    assert asked == case.get("asks", asked)
    assert case.get("said", said) in said and (said == "" or case.get("said") != "")


@pytest.mark.parametrize("case", cases("refused"))
def test_what_cannot_be_read_is_refused_with_the_reason(case, capsys):
    with pytest.raises(loader.BadRow, match=case["refused"]):
        loader.normalise(case["row"])
    if case["name"].startswith("a dialogue"):  # which the trainers would take
        warn_unread("x.jsonl", [(case["row"], case["row"]["text"])])
        assert "1 of 1 prompts are dialogues with answers" in capsys.readouterr().err


@pytest.mark.parametrize("case", cases("note"))
def test_what_is_not_read_is_noted_and_what_agrees_is_not(case, tmp_path, capsys):
    path = write_lines(tmp_path / "rows.jsonl", [case["row"]])
    rows = loader.load_rows(path).rows
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines) == 1 and case["note"] in f"{lines[0]}\n") if case["note"] else not lines
    if not case["note"]:
        assert loader.main([path, "--out", str(tmp_path / "out.jsonl")]) == 0
        assert not re.search("warning|note", capsys.readouterr().err)
        assert rows[0]["answer"] == case["answer"]


@pytest.mark.parametrize("case", cases("unread"))
def test_a_part_of_the_question_that_no_prompt_holds_is_named(case, tmp_path, capsys):
    path, column = write_lines(tmp_path / "rows.jsonl", [case["row"]]), case["unread"]
    loader.load_rows(path)
    warning = capsys.readouterr().err
    assert f"got the column {column}" in warning and f"--drop {shlex.quote(column)}" in warning
    loader.load_rows(path, drop=[column])
    loader.load_rows(path, mapping={"another_name": column})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("case", cases("unreadable_choices"))
def test_choices_that_cannot_be_read_make_a_bad_row(case):
    row = case["row"]
    with pytest.raises(loader.BadRow) as error:
        loader.normalise(row)
    dropped = error.value.parts["try"].partition("--drop ")[2].replace(",", "").split()
    names = [column for column in dropped if column in row]
    assert names, error.value
    kept = loader.normalise({key: value for key, value in row.items() if key not in names})
    assert kept["prompt"][-1]["content"] == row["question"]  # the advice works


def judge(row: dict, program: str):
    """The sandbox's verdict on a program by the tests of a row, raw or normalised; None for tests that it refuses."""
    tests = next(row[name] for name in ("tests", "test", "test_list", "input_output") if name in row)
    settings = {"entry_point": row.get("entry_point") or None, "setup": row.get("setup", "")}
    try:
        return sandbox.run_code(program, tests, **settings)
    except sandbox.BadTests:
        return None


@pytest.mark.parametrize("case", cases("never_pays"))
def test_tests_that_a_right_program_cannot_pass_are_a_bad_row(case, tmp_path):
    verdict = judge(case["row"], case.get("program", PROGRAM))
    assert verdict is None or not verdict.all_passed  # the sandbox itself says that the row is of no use
    good = {"prompt": "Double x.", "tests": "assert twice(2) == 4", "entry_point": "twice"}
    path = write_lines(tmp_path / "tasks.jsonl", [good, good, case["row"]])
    with pytest.raises(loader.BadRows, match=rf"tasks\.jsonl:3: {case['never_pays']}: "):
        loader.load_rows(path)
    (bad,) = loader.load_rows(path, on_bad="skip").rejected
    assert re.search(case["words"], bad["got"] + bad["expected"]), bad
    with pytest.raises(loader.BadRow):
        loader.normalise(case["row"])  # also where no other row tells the kind


@pytest.mark.parametrize("case", [case for case in cases("program") if "never_pays" not in case.values[0]])
def test_tests_that_a_right_program_passes_are_kept(case):
    row, right = loader.normalise(case["row"]), case["program"]
    verdict, wrong = judge(row, right), right.replace("+", "-")
    assert verdict.all_passed and verdict.total and (wrong == right or not judge(row, wrong).passed)
    assert loader.normalise({**row, "source": "s", "id": "1"})["tests"] == row["tests"]  # read again, the same
