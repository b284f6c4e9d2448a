"""Columns of public data sets: prompts, tests, answers and media, in rows of each schema written by hand."""

import base64
import json
import pickle
import re
import zlib

import pytest
from conftest import load_script, read_lines, run_script, write_lines

loader, sandbox, verl = load_script("data_loader"), load_script("sandbox"), load_script("verl_train")

ADD = "def add(a, b):\n    return a + b\n"
QUESTION = [{"role": "user", "content": "Add two numbers."}]
ON_STDIN = {"input": "1 2\n", "output": "3\n"}


def command(*arguments):
    """The command, finished."""
    return run_script("data_loader", *map(str, arguments))


def in_verl(truth, **more) -> dict:
    """A row in verl's form."""
    model, extra = {"style": "rule", "ground_truth": truth}, {"index": 7, "split": "test"}
    return {
        "data_source": "x",
        "prompt": QUESTION,
        "ability": "any",
        "reward_model": model,
        "extra_info": extra,
        **more,
    }


# ------------------------------------------------------------------------------------------------ tests of programs


def judge(row: dict, program: str):
    """The verdict on a program by a normalised row."""
    return sandbox.run_code(program, row["tests"], entry_point=row.get("entry_point"), setup=row.get("setup", ""))


PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps([ON_STDIN])))).decode()
LIVE = {
    "question_content": "Add two numbers.",
    "question_id": "1",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": PACKED,
    "metadata": json.dumps({"func_name": "add"}),
}
CALL = {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}


def test_the_further_tests_of_mbpp_plus_count():
    plus = "for n in [1]:\n    assert add(n, 2) == 3"
    row = loader.normalise({"prompt": "Add.", "test_list": ["assert add(2, 0) == 2"], "test": plus})
    right, wrong = (judge(row, program) for program in (ADD, ADD.replace("+", "-")))
    assert right.all_passed and wrong.passed == 1 and not wrong.all_passed


def test_private_tests_that_are_pickled_stay_closed_and_it_is_said(tmp_path):
    path = write_lines(tmp_path / "live.jsonl", [LIVE])
    (row,) = loader.load_rows(path).rows
    assert row["private_test_cases"] == PACKED and row["tests"] == [{"function": "add", "args": [1, 2], "expected": 3}]
    assert "1 rows have pickled private_test_cases" in command(path, "--validate").stderr
    both = {**LIVE, "private_test_cases": json.dumps([{"input": "5\n6", "output": "11", "testtype": "functional"}])}
    assert [test["expected"] for test in loader.normalise(both)["tests"]] == [3, 11]


def test_few_prompts_beside_many_unused_texts_fail_validation(tmp_path):
    rows = [{"prompt": "Solve the problem.", "problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(12)]
    done = command(write_lines(tmp_path / "same.jsonl", rows), "--validate")
    assert done.returncode == 1 and "1 distinct prompts in 12 rows, and 12 distinct problem" in done.stderr
    done = command(tmp_path / "same.jsonl", "--validate", "--drop", "prompt", "--map", "prompt=problem")
    assert done.returncode == 0, done.stderr  # the advice works


# ------------------------------------------------------------------------------------------------ gold answers

SYSTEM, PAIR = {"role": "system", "content": "Be brief."}, ("chosen", "rejected")
TURNS = [{"role": "user", "content": "4+0?"}, {"role": "assistant", "content": "4"}]


def test_short_texts_after_the_thinking_part_are_no_marks(tmp_path):
    texts = ["Yes, it is.", "No.", "That depends on more than the question says."]
    rows = [{"question": f"{text}?", "answer": f"<think>Hm.</think> {text}"} for text in texts]
    assert [row["answer"] for row in loader.load_rows(write_lines(tmp_path / "rows.jsonl", rows)).rows] == texts


@pytest.mark.parametrize("name", ["system", "system_message", "sys_prompt", "systemPrompt", "System Instruction"])
def test_a_column_for_the_system_prompt_begins_the_prompt(name):
    row = loader.normalise({"question": "Q?", "answer": "4", "system": " ", name: "Be brief."})
    assert row["prompt"] == [SYSTEM, {"role": "user", "content": "Q?"}] and "system" not in row.keys() - {name}
    pair = {key: [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": key}] for key in PAIR}
    assert loader.normalise({**pair, name: "Be brief."})["prompt"] == row["prompt"]


@pytest.mark.parametrize("name", ["answer_context", "ground_truth_passage", "test_document"])
def test_notes_on_the_answer_are_no_passage(name):
    assert loader.normalise({"question": "Who?", name: "Ann.", "answer": "Ann"})["prompt"][0]["content"] == "Who?"


SPLIT = {  # where the split stands: rows of files
    "set": {"all.jsonl": [{"question": "1+1?", "answer": "2", "set": name} for name in ("train", "Test")]},
    "split": {"all.jsonl": [in_verl("3"), in_verl("4", extra_info={"index": 8, "split": "train"})]},
    "file name": {f"{name}.jsonl": [{"question": f"{name}?", "answer": "2"}] for name in ("train", "test")},
}


@pytest.mark.parametrize("column", SPLIT)
def test_rows_of_several_splits_in_one_output_are_said(column, tmp_path):
    for name, rows in SPLIT[column].items():
        write_lines(tmp_path / "in" / name, rows)
    done = command(tmp_path / "in", "--out", tmp_path / "out.jsonl")
    assert re.findall("rows of several splits go into one output, by (.*): 1 .*, 1 ", done.stderr) == [column]


def test_words_that_also_name_splits_are_none(tmp_path):
    rows = [{"question": f"Which is a {word}?", "topic": word, "answer": "2", "2019": 3} for word in ("train", "test")]
    write_lines(tmp_path / "all.jsonl", rows)
    done = command(tmp_path / "all.jsonl", "--out", tmp_path / "out.jsonl")
    assert done.returncode == 0 and "splits" not in done.stderr


@pytest.mark.parametrize("rows", [[["1?", "1"], ["2?", ""]], [["1?", ""], ["2?", ""]]], ids=["one", "all"])
def test_a_row_without_answer_among_others_is_counted(rows, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,answer\n" + "".join(f"{','.join(row)}\n" for row in rows), encoding="utf-8")
    loader.load_rows(path)
    note = "note: 1 of 2 rows have no answer, tests or completion\n"
    assert capsys.readouterr().err == (note if rows[0][1] else ""), "a file of prompts alone is silent"


def test_a_letter_as_answer_is_noted_where_half_of_the_rows_are_so(tmp_path, capsys):
    rows = [{"question": "Which letter follows A?", "answer": "B"}, *({"question": f"{n}?", "answer": n} for n in "12")]
    loader.load_rows(write_lines(tmp_path / "rows.jsonl", rows))
    assert capsys.readouterr().err == ""


def test_a_prompt_with_other_answers_in_other_rows_is_said(tmp_path):
    rows = [{"question": "1+1?", "answer": "2"}, {"question": "1+1?", "answer": "3"}, {"question": "2?", "answer": "2"}]
    done = command(write_lines(tmp_path / "rows.jsonl", rows), "--validate")
    assert "warning: 1 prompts have another answer in another row" in done.stderr


@pytest.mark.parametrize("beside", [{"response": "A."}, {"chosen": "A.", "rejected": "B."}])
@pytest.mark.parametrize(("numbers", "letters"), [([0, 1], "AB"), ([2, 1], "BA")])
def test_the_answer_beside_lettered_choices_is_a_letter_in_rows_of_any_kind(beside, numbers, letters, tmp_path):
    rows = [{"question": "Which?", "options": ["x", "y"], "answer": number, **beside} for number in numbers]
    read = loader.load_rows(write_lines(tmp_path / "rows.jsonl", rows)).rows
    assert [row["answer"] for row in read] == [*letters] and "A. x\nB. y" in read[0]["prompt"][0]["content"]


def test_numbers_that_no_index_can_be_are_texts_of_choices(tmp_path):
    rows = [{"question": "2+2?", "choices": ["3", "4"], "answer": 4}, {"question": "1+0?", "choices": ["0", "1"]}]
    rows += [{"question": "1+1?", "choices": ["1", "2"], "answer": answer} for answer in (1, "2")]
    rows[1]["answer"] = 1
    answers = [row["answer"] for row in loader.load_rows(write_lines(tmp_path / "rows.jsonl", rows)).rows]
    assert answers == ["B", "B", "A", "B"]


def test_one_column_of_texts_does_not_make_texts_of_an_index(tmp_path):
    rows = [{"question": "30?", "choices": ["10", "20", "30", "40"], "answer": "30", "answer_idx": 2}]
    rows.append({"question": "20 km?", "choices": ["10 km", "20 km", "30 km"], "answer": "20", "answer_idx": 1})
    answers = [row["answer"] for row in loader.load_rows(write_lines(tmp_path / "rows.jsonl", rows)).rows]
    assert answers == ["C", "B"]


STDIN = {
    "push(1)\npop()": "Play push(n) and pop().",
    "a(b)": "Is a(b) balanced?",
    "max(1,2)\n": "Evaluate it.",
    "add(1, 2)": "Add.",
}


@pytest.mark.parametrize("text", STDIN)
def test_text_on_stdin_may_look_like_a_call(text):
    tests = [{"input": text, "output": "3"}, {"input": "3\n", "output": "3"}]
    for kept in (tests, tests[:1]):
        assert loader.normalise({"problem": STDIN[text], "tests": kept})["tests"] == kept


def test_a_prompt_in_words_is_no_setup_of_its_tests():
    row = loader.normalise({"prompt": "add", "test": "assert add(1, 2) == 3", "entry_point": "add"})
    assert "setup" not in row and judge(row, ADD).all_passed


@pytest.mark.parametrize("truth", [{"target": 98, "numbers": [1, 2]}, '{ "target": 98, "numbers": [1, 2]}'])
def test_an_object_as_ground_truth_stays_what_it_is(truth):
    row = loader.normalise(in_verl(truth))
    assert row["ground_truth"] == truth and "answer" not in row and "tests" not in row
    assert "answer" not in loader.normalise({"question": "Q?", "ground_truth": {"target": 98, "numbers": [1, 2]}})


@pytest.mark.parametrize("name", ["verification_info", "ground_truth"])
def test_an_object_as_text_without_an_answer_stays_what_it_is(name):
    truth = '{"target": 98, "numbers": [1, 2]}' if name == "ground_truth" else '{"judging_instructions": "Be strict."}'
    row = loader.normalise({"prompt": "Q?", name: truth})
    assert row[name] == truth and "answer" not in row


@pytest.mark.parametrize(("name", "other"), [("reward_model", "extra_info"), ("extra_info", "reward_model")])
def test_a_text_under_a_name_of_verls_is_refused(name, other, tmp_path):
    row = loader.normalise({"prompt": "Q?", "answer": "1", name: "text", other: {"index": 1}})
    with pytest.raises(loader.UserError, match=rf"got the column {name} 'text'.*try --map old_{name}={name}"):
        loader.write_rows([row], tmp_path / "v.jsonl", "verl")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_verl_without_ground_truth_is_said_with_the_columns_that_could_be_it(tmp_path, suffix):
    rows = [{"prompt": "Q?", "reply": "4", "n": 1}, {"prompt": "R?", "reply": "5", "answer": "5"}]
    path = write_lines(tmp_path / "d.jsonl", rows)
    done = command(path, "--for", "verl", "--json", "--out", tmp_path / f"v.{suffix}")
    assert done.returncode == 0 and "1 of 2 rows have no ground truth" in done.stderr
    assert json.loads(done.stdout)["outputs"][0]["without_ground_truth"] == 1
    done = command(path, "--for", "verl", "--drop", "answer", "--map", "answer=reply", "--out", tmp_path / "w.jsonl")
    assert done.returncode == 0 and "ground truth" not in done.stderr  # the advice works
    assert [row["reward_model"]["ground_truth"] for row in read_back(tmp_path / "w.jsonl")] == ["4", "5"]


# ------------------------------------------------------------------------------------------------ verl's own rows

TOOLS = {"calc": {"create_kwargs": {"ground_truth": "72"}}}
OWN = {
    "data_source": "openai/gsm8k",
    "agent_name": "tool_agent",
    "prompt": QUESTION,
    "ability": "arithmetic",
    "reward_model": {"style": "model", "ground_truth": "72", "weight": 2},
    "extra_info": {
        **{"split": "test", "index": 17, "need_tools_kwargs": True, "tools_kwargs": TOOLS, "answer": "#### 72"},
        "interaction_kwargs": {"query": "Q?"},
    },
}
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


# ------------------------------------------------------------------------------------------------ media


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


# ------------------------------------------------------------------------------------------------ forms of rows

USER = {"role": "user", "content": "Q?"}


def test_an_empty_system_message_and_empty_keys_are_left_out():
    """As nvidia/Nemotron-Post-Training-Dataset-v1 has them; Llama's chat template refuses an empty list of calls."""
    roles = (("system", ""), ("user", "Q?"), ("assistant", "A."), ("user", "R?"), ("assistant", "B."))
    turns = [{"role": role, "content": text, "tool_calls": []} for role, text in roles]
    row = loader.normalise({"messages": turns})
    assert [*row["prompt"], *row["completion"]] == [{"role": role, "content": text} for role, text in roles[1:]]
    row = loader.normalise({"chosen": turns, "rejected": [*turns[:-1], {"role": "assistant", "content": "C."}]})
    assert row["prompt"][0]["role"] == "user" and row["chosen"] == [{"role": "assistant", "content": "B."}]


@pytest.mark.parametrize("mark", ["### Output:\n", "\n\n## Response: ", "Answer: "])
def test_a_prompt_that_ends_with_its_completion_is_refused(mark):
    row = {"instruction": "Add.", "output": "1 + 2", "prompt": f"### Instruction:\nAdd.\n\n{mark}1 + 2\n"}
    with pytest.raises(loader.BadRow, match=r"^prompt: .*ends with the completion.*--drop prompt"):
        loader.normalise(row)
    repeated = {**row, "prompt": "Correct this sentence, or repeat it:\n1 + 2"}
    assert loader.normalise(repeated)["completion"] == "1 + 2"


def test_pairs_under_other_names_are_refused_with_the_flags_that_read_them(tmp_path):
    better, worse = {"role": "assistant", "content": "A."}, {"role": "assistant", "content": "B."}
    rows = [{"messages": [USER], "chosen_response": better, "rejected_response": worse}]
    rows += [{"input": "Q?", "preferred_output": [better], "non_preferred_output": [worse]}]
    for number, row in enumerate(rows):
        path = write_lines(tmp_path / f"{number}.jsonl", [row])
        with pytest.raises(loader.UserError, match="a response to compare with") as error:
            loader.load_rows(path)
        fields = dict(item.split("=") for item in str(error.value).rpartition("--map ")[2].split())
        pair = loader.load_rows(path, mapping=fields).rows[0]
        assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ([USER], [better], [worse])
    assert loader.normalise({"Prompt": "Q?", "Chosen": "A.", "Rejected": "B."})["rejected"] == "B."


@pytest.mark.parametrize("asks", ["human", "user", "input"])
def test_objects_with_a_turn_and_its_reply_are_conversations(asks):
    replies = "output" if asks == "input" else "assistant"
    turns = [{asks: "4+0?", replies: "4"}, {replies: "8", asks: "And doubled?"}]
    row = loader.normalise({"conversation": turns})
    assert row["prompt"] == [*TURNS, {"role": "user", "content": "And doubled?"}]
    assert row["completion"] == [{"role": "assistant", "content": "8"}]
    for wrong in ({asks: "4+0?"}, {**turns[0], "label": 1}, {"human": "a", "user": "b", replies: "c"}):
        with pytest.raises(loader.BadRow, match=r"^conversation\[1\]: got the keys"):
            loader.normalise({"conversation": [turns[0], wrong]})


def test_messages_inside_a_list_are_refused_with_the_flag_that_reads_them(tmp_path):
    path = write_lines(tmp_path / "bfcl.jsonl", [{"id": "1", "question": [[USER]], "answer": "4"}])
    with pytest.raises(loader.UserError, match=r"a list inside a list.*--map question=question\.0"):
        loader.load_rows(path)
    (row,) = loader.load_rows(path, mapping={"question": "question.0"}).rows
    assert (row["prompt"], row["answer"]) == ([USER], "4")


def test_rows_of_math_and_code_are_refused_with_the_kind_that_reads_both(tmp_path):
    infos = [{"ground_truth": "4"}, {"ground_truth": "5"}, {"language": "python", "test_cases": [ON_STDIN]}]
    path = write_lines(tmp_path / "d.jsonl", [{"prompt": f"{n}?", "verification_info": i} for n, i in enumerate(infos)])
    with pytest.raises(loader.UserError, match=r"got a row of code.*or --kind math"):
        loader.load_rows(path)
    rows = loader.load_rows(path, "math").rows
    assert [row.get("answer") for row in rows] == ["4", "5", None] and rows[2]["tests"]


def test_an_object_as_prompt_is_refused_with_the_flag_for_its_field():
    with pytest.raises(loader.BadRow, match=r"try --map prompt=question\.FIELD"):
        loader.normalise({"question": {"text": "Q?", "tokens": ["Q", "?"]}, "answer": "A"})


def test_a_prompt_that_repeats_the_first_turn_does_not_hide_the_conversation():
    turns = [USER, {"role": "assistant", "content": "A."}, {"role": "user", "content": "R?"}]
    row = loader.normalise({"prompt": "Q?", "messages": [*turns, {"role": "assistant", "content": "B."}]})
    assert row["prompt"] == turns and row["completion"] == [{"role": "assistant", "content": "B."}]
    other = loader.normalise({"prompt": "Another?", "messages": turns})
    assert other["prompt"][0]["content"] == "Another?" and other["messages"] == turns
