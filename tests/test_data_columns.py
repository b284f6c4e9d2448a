"""Columns of public data sets: prompts, tests, answers and media, in rows of each schema written by hand."""

import json
import re

import pytest
from conftest import load_script, read_lines, write_lines

loader = load_script("data_loader")

QUESTION = [{"role": "user", "content": "Add two numbers."}]
VERL_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")


@pytest.fixture
def command(capsys):
    """Run the command in this process: its exit code, stdout and stderr."""

    def run(*arguments) -> tuple[int, str, str]:
        capsys.readouterr()
        return loader.main([*map(str, arguments)]), *capsys.readouterr()

    return run


def in_verl(truth, **more) -> dict:
    """A row in verl's form."""
    model, extra = {"style": "rule", "ground_truth": truth}, {"index": 7, "split": "test"}
    return {**dict(zip(VERL_COLUMNS, ("x", QUESTION, "any", model, extra), strict=True)), **more}


def test_few_prompts_beside_many_unused_texts_fail_validation(command, tmp_path):
    rows = [{"prompt": "Solve the problem.", "problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(12)]
    code, _, said = command(write_lines(tmp_path / "same.jsonl", rows), "--validate")
    assert code == 1 and "1 distinct prompts in 12 rows, and 12 distinct problem" in said
    advised = command(tmp_path / "same.jsonl", "--validate", "--drop", "prompt", "--map", "prompt=problem")
    assert advised[0] == 0, advised  # the advice works


SPLIT = {  # where the split stands: rows of files
    "set": {"all.jsonl": [{"question": "1+1?", "answer": "2", "set": name} for name in ("train", "Test")]},
    "split": {"all.jsonl": [in_verl("3"), in_verl("4", extra_info={"index": 8, "split": "train"})]},
    "words of other columns": {
        "all.jsonl": [{"question": f"{name}?", "topic": name, "answer": "2", "2019": 3} for name in ("train", "test")]
    },
    "file name": {f"{name}.jsonl": [{"question": f"{name}?", "answer": "2"}] for name in ("train", "test")},
}


@pytest.mark.parametrize("column", SPLIT)
def test_rows_of_several_splits_in_one_output_are_said(column, command, tmp_path):
    for name, rows in SPLIT[column].items():
        write_lines(tmp_path / "in" / name, rows)
    _, _, said = command(tmp_path / "in", "--out", tmp_path / "out.jsonl")
    found = re.findall("rows of several splits go into one output, by (.*): 1 .*, 1 ", said)
    assert found == ([] if column == "words of other columns" else [column])


def test_a_prompt_with_other_answers_in_other_rows_is_said(command, tmp_path):
    rows = [{"question": "1+1?", "answer": "2"}, {"question": "1+1?", "answer": "3"}, {"question": "2?", "answer": "2"}]
    _, _, said = command(write_lines(tmp_path / "rows.jsonl", rows), "--validate")
    assert "warning: 1 prompts have another answer in another row" in said


@pytest.mark.parametrize(("name", "other"), [("reward_model", "extra_info"), ("extra_info", "reward_model")])
def test_a_text_under_a_name_of_verls_is_refused(name, other, tmp_path):
    row = loader.normalise({"prompt": "Q?", "answer": "1", name: "text", other: {"index": 1}})
    with pytest.raises(loader.UserError, match=rf"got the column {name} 'text'.*try --map old_{name}={name}"):
        loader.write_rows([row], tmp_path / "v.jsonl", "verl")


def test_verl_without_ground_truth_is_said_with_the_columns_that_could_be_it(command, tmp_path):
    rows = [{"prompt": "Q?", "reply": "4", "n": 1}, {"prompt": "R?", "reply": "5", "answer": "5"}]
    path = write_lines(tmp_path / "d.jsonl", rows)
    code, out, said = command(path, "--for", "verl", "--json", "--out", tmp_path / "v.parquet")
    assert code == 0 and "1 of 2 rows have no ground truth" in said
    assert json.loads(out)["outputs"][0]["without_ground_truth"] == 1
    advice = ("--drop", "answer", "--map", "answer=reply")
    code, _, said = command(path, "--for", "verl", *advice, "--out", tmp_path / "w.jsonl")
    assert code == 0 and "ground truth" not in said  # the advice works
    written = read_lines(tmp_path / "w.jsonl")
    assert [row["reward_model"]["ground_truth"] for row in written] == ["4", "5"]
    assert [row["extra_info"]["index"] for row in written] == [0, 1]


TOOLS = {"calc": {"create_kwargs": {"ground_truth": "72"}}}
INFO = {"split": "test", "index": 17, "need_tools_kwargs": True, "tools_kwargs": TOOLS, "answer": "#### 72"}
OWN = {"data_source": "openai/gsm8k", "agent_name": "tool_agent", "prompt": QUESTION, "ability": "arithmetic"}
OWN |= {"reward_model": {"style": "model", "ground_truth": "72", "weight": 2}}
OWN |= {"extra_info": INFO | {"interaction_kwargs": {"query": "Q?"}}}
VERL = {
    "tools": OWN,
    "no index": {**OWN, "extra_info": {"note": "x"}},
    "no extra_info": {name: value for name, value in OWN.items() if name != "extra_info"},
    "own columns": {**OWN, "answer": "a long solution", "uid": "u", "raw": [1, 2]},
    "countdown": in_verl({"target": 98, "numbers": [1, 2]}),
    "JSON list": in_verl('["a", "b"]'),
    "a number": in_verl(42),
}


def read_back(path):
    """Rows of a file, read without the code under test."""
    if path.suffix == ".jsonl":
        return read_lines(path)
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", VERL)
def test_verls_rows_are_written_for_verl_as_they_were(tmp_path, name, suffix):
    path = tmp_path / f"v.{suffix}"
    rows = loader.load_rows(write_lines(tmp_path / "in.jsonl", [VERL[name]])).rows
    loader.write_rows(rows, path, "verl")
    assert read_back(path) == [VERL[name]]


def test_a_changed_answer_of_verls_row_is_written(tmp_path):
    row = {**loader.normalise(OWN), "answer": "73"}
    loader.write_rows([row], tmp_path / "v.jsonl", "verl", data_source="mine")
    (written,) = read_back(tmp_path / "v.jsonl")
    assert written == {**OWN, "data_source": "mine", "reward_model": {**OWN["reward_model"], "ground_truth": "73"}}


def test_objects_that_verl_reads_never_become_json_text(tmp_path):
    other = {**OWN, "extra_info": {**OWN["extra_info"], "tools_kwargs": {"search": {"create_kwargs": {"k": 3}}}}}
    loader.write_rows([loader.normalise(row) for row in (OWN, other)], tmp_path / "v.parquet", "verl")
    first, second = (row["extra_info"]["tools_kwargs"] for row in read_back(tmp_path / "v.parquet"))
    assert first == {**TOOLS, "search": None} and second["search"] == {"create_kwargs": {"k": 3}}
    mixed = [loader.normalise(in_verl(truth)) for truth in ("42", {"target": 1, "numbers": [2]})]
    with pytest.raises(loader.UserError, match=r"reward_model.*\.jsonl"):
        loader.write_rows(mixed, tmp_path / "m.parquet", "verl")


def test_plain_rows_put_keys_where_verl_reads_them(tmp_path):
    outside = {"agent_name": "tool_agent", "__rollout_n__": 4}
    plain = {"prompt": "Q?", "answer": "3", **outside, "tools_kwargs": TOOLS, "source": "s", "id": "1"}
    row = loader.normalise(plain)
    loader.write_rows([row], tmp_path / "v.jsonl", "verl")
    (written,) = read_back(tmp_path / "v.jsonl")
    assert outside.items() <= written.items() and written["extra_info"]["tools_kwargs"] == TOOLS
    own = loader.normalise({"prompt": "Q?", "answer": "3", "extra_info": {"index": 9, "tools_kwargs": TOOLS}})
    loader.write_rows([own], tmp_path / "e.jsonl", "verl")
    (written,) = read_back(tmp_path / "e.jsonl")
    assert written["extra_info"] == {"index": 9, "split": "train", "tools_kwargs": TOOLS}
    assert written["reward_model"]["ground_truth"] == "3"


@pytest.mark.parametrize(("column", "words"), [("image", "text only: images"), ("hash", "expected text, numbers")])
def test_bytes_in_a_column_are_refused_until_it_is_dropped(column, words, tmp_path):
    import pyarrow
    from pyarrow import parquet

    cell = {"bytes": b"\x89PNG", "path": None} if column == "image" else b"\x89"
    rows = [{"question": "How many?", "answer": "7", column: cell}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    with pytest.raises(loader.UserError, match=f"{column}: got bytes.*{words}.*--drop {column}"):
        loader.load_rows(tmp_path / "d.parquet")
    (row,) = loader.load_rows(tmp_path / "d.parquet", drop=[column]).rows
    assert row["answer"] == "7" and column not in row
