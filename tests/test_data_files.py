"""Files that are not one row a line, no data, or not UTF-8: the loader and the trainers read them alike or say why."""

import csv
import io
import json
import zipfile
from pathlib import Path

import pyarrow.parquet
import pytest
from conftest import load_script

from parts.data.rows import prompt_of, read_rows
from parts.foundation.messages import UserError

ROWS = [{"prompt": "2+2?", "answer": "4"}, {"prompt": "3+3?", "answer": "6"}]
PAIRS = [("2+2?", "4"), ("3+3?", "6")]


@pytest.fixture(scope="module")
def loader():
    """scripts/data_loader.py as a module."""
    return load_script("data_loader")


@pytest.fixture(params=["loader", "trainers"])
def pairs_of(request, loader):
    """A reader: file -> (text of the prompt, answer) of each row."""

    def read(path) -> list[tuple]:
        if request.param == "trainers":
            return [(prompt_of(row, "prompt", "d"), row.get("answer")) for row in read_rows(str(path))]
        try:
            rows = loader.load_rows(path).rows
        except loader.UserError as error:
            raise UserError(str(error)) from None
        return [(row["prompt"][-1]["content"], row.get("answer")) for row in rows]

    return read


NESTED = {
    "description.json": {"description": "Sums.", "data": ROWS},
    "one_split.json": {"train": ROWS},
    "two_levels_down.json": {"result": {"data": ROWS}},
    "columns.json": {"prompt": ["2+2?", "3+3?"], "answer": ["4", "6"]},
    "pandas.json": {"prompt": {"0": "2+2?", "1": "3+3?"}, "answer": {"0": "4", "1": "6"}},
    "pandas_table.json": {"schema": {"fields": [{"name": "prompt"}]}, "data": ROWS},
    "pandas_split.json": {"columns": ["prompt", "answer"], "index": [0, 1], "data": [[*row.values()] for row in ROWS]},
    "pandas_index.json": {"0": ROWS[0], "1": ROWS[1]},
    "viewer.json": {"features": [], "rows": [{"row_idx": i, "row": row} for i, row in enumerate(ROWS)]},
    "array.jsonl": ROWS,
}

TABLES = {
    "decimal commas": 'prompt;answer;share\n2+2?;4;0,5\n"3+3?";6;1,5\n',
    "bars": "prompt|answer\n2+2?|4\n3+3?|6\n",
    "empty columns": "prompt,answer,,\n2+2?,4,,\n3+3?,6\n",
    "empty rows": "\n\nprompt;answer;;\n;;;\n2+2?;4;;\n\n3+3?;6;;\n;;;\n",
    "blanks before quotes": '"prompt", "answer"\n"2+2?", "4"\n"3+3?", "6"\n',
    "old line ends": "prompt,answer\r2+2?,4\r3+3?,6\r",
}
READ = {  # what: (file, text)
    **{f"{name}, {indent}": (name, json.dumps(NESTED[name], indent=indent)) for name in NESTED for indent in (None, 1)},
    "JSON lines in a JSON file": ("lines.json", "\n".join(map(json.dumps, ROWS))),
    **{name: ("table.csv", text) for name, text in TABLES.items()},
}


@pytest.mark.parametrize("what", READ)
def test_other_json_and_tables_as_spreadsheets_write_them_are_read(pairs_of, tmp_path, what):
    path = tmp_path / READ[what][0]
    path.write_bytes(READ[what][1].encode())
    assert pairs_of(path) == PAIRS


def test_lists_of_a_row_are_no_rows(loader, tmp_path):
    """A programming task with its examples, one a line, and a question with a list beside it."""
    path = tmp_path / "tasks.jsonl"
    task = {"description": "Print a+b.", "examples": [{"input": "1 2", "output": "3"}]}
    path.write_text((json.dumps(task) + "\n") * 2)
    assert [row["prompt"][0]["content"] for row in loader.load_rows(path).rows] == ["Print a+b."] * 2
    path = tmp_path / "asked.json"
    path.write_text(json.dumps({"q": "2+2?", "data": [{"prompt": "other"}]}))
    assert loader.load_rows(path, mapping={"prompt": "q"}).rows[0]["prompt"][0]["content"] == "2+2?"


REFUSED = {  # what: (file, value of JSON, text or bytes; words of the message)
    **{
        f"JSON, {words}": ("set.json", value, words)
        for value, words in (
            ({"prompt": ["2+2?", "3+3?"], "answer": ["4"]}, "prompt: 2, answer: 1"),
            ({"columns": ["prompt", "answer"], "data": [["2+2?"]]}, "columns columns, data"),
            ({"inputs": ROWS[0], "output": ROWS[1]}, "columns inputs, output|inputs: got dict"),
            ({"train": {"prompt": ["2+2?"]}, "test": {"prompt": ["3+3?"]}}, "columns train, test"),
            ({"text": "Ann is 5.", "items": ROWS}, "not clear which list is"),
            ({"instruction": "Answer.", "data": ROWS}, "holds 'data'"),
            ({"train": ROWS, "test": ROWS[:1]}, "'train' and 'test'"),
            ({"description": "Add.", "examples": [{"input": "1 2", "output": "3"}]}, "'examples'"),
        )
    },
    "two separators": ("set.csv", "prompt;a|answer\nx;y|1\nz;w|2\n", r"';' or '\|'.*with commas"),
    "Excel's mark": ("set.csv", "sep=;\nprompt;answer\n2+2?;4\n", "Excel's mark .*deleting the line"),
    "Python's notation": ("set.jsonl", "\n".join(map(repr, ROWS)), r"set\.jsonl:1: .*Python's notation"),
    "joined": ("set.csv", "prompt,answer\n2+2?,4\n\ufeffprompt,answer\n3+3?,6\n", r"set\.csv:3: row: got the header"),
    "no quoting": ("set.csv", 'prompt\tanswer\n2+2?\t4\n"3+3\t6\n4+4"\t8\n', r"csv:3: row: got .*closed in another"),
    **{  # UTF-8 that was cut or mixed is never guessed to be something else
        f"UTF-8, {what}": ("set.csv", data, rf"set\.csv:{line}: .*not UTF-8.*--encoding")
        for what, data, line in (
            ("cut in the middle", "prompt,answer\nété,1\nthé à 5,2\n".encode().replace(b"\xc3\xa0", b"\xc3"), 3),
            ("mixed", "prompt,answer\nété à côté,1\n".encode() + b"th\xe9,2\n\xe2ge,3\n", 3),
            ("the header", b"prompt,r\xe9ponse\nok,1\n", 1),
        )
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_files_that_are_broken_or_unclear_are_refused(pairs_of, tmp_path, what):
    name, content, words = REFUSED[what]
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=words):
        pairs_of(tmp_path / name)


PAGE = "<!DOCTYPE html>\n<html>\n<head><title>502</title></head>\n<body>Bad gateway</body>\n</html>\n"
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n"

WORKBOOK = io.BytesIO()
with zipfile.ZipFile(WORKBOOK, "w") as archive:
    archive.writestr("xl/workbook.xml", "x")

NO_DATA = {
    "lfs": (LFS, "Git LFS pointer.*git lfs pull"),
    "annex": ("/annex/objects/SHA256E-s123--9f86d081.jsonl\n", "git-annex.*git annex get"),
    "page": (PAGE, "HTML or XML page"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a binary file"),
    "utf-16": (json.dumps(ROWS[0]).encode("utf-16-le"), "--encoding utf-16-le"),
    "workbook": (WORKBOOK.getvalue(), "a workbook.*CSV UTF-8"),
    "text error": ("Entry not found", "error message"),
}


@pytest.mark.parametrize("name", NO_DATA)
def test_what_is_no_data_is_refused_by_what_it_is(pairs_of, tmp_path, name):
    data, words = NO_DATA[name]
    for suffix in (".jsonl", ".csv"):
        path = tmp_path / f"set{suffix}"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        with pytest.raises(UserError, match=f"(?s){words}"):
            pairs_of(path)


def test_prompts_about_such_things_stay_prompts(loader, tmp_path):
    path = tmp_path / "prompts.txt"
    for lines in (
        ["<html> is which kind of tag?", "<body> holds what?", "<b>Bold</b> or <i>italic</i>?"],
        ["<!DOCTYPE html><html><body>x</body></html> What is wrong here?", "Name a prime."],
        ['{"a": 1} is JSON of what?', "[hint] What is 2+2?"],
        ["ORC armies march 3 miles a day.", "404: what does it mean?"],
        ["version https://example.org means what?"],
    ):
        path.write_text("\n".join(lines))
        assert [row["prompt"][0]["content"] for row in loader.load_rows(path).rows] == lines


@pytest.mark.parametrize("suffix", ["txt", "csv"])
def test_json_in_a_text_or_table_is_refused(loader, tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.raises(loader.UserError, match=r"got JSON .* renaming"):
        loader.load_rows(path)
    assert len(loader.load_rows(path.rename(tmp_path / "rows.json")).rows) == 2


TURN = [{"role": "user", "content": "2+2?"}]
CALLS = [{"name": "add", "arguments": {"a": 2}}, {"name": "half", "arguments": {"of": 8}}]  # no key in common
SHARED_GPT = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]


def write_cell(path: Path, column: str, cell: str) -> Path:
    """A file of one row with one cell of text."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as f:
            csv.writer(f).writerows([[column, "note"], [cell, "x"]])
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{column: cell, "note": "x"}]), path)
    else:
        path.write_text(json.dumps({column: cell, "note": "x"}))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(("column", "messages"), [("prompt", TURN), ("conversations", SHARED_GPT)])
def test_messages_as_json_text_are_messages(loader, tmp_path, suffix, column, messages):
    path = write_cell(tmp_path / f"rows{suffix}", column, json.dumps(messages))
    assert read_rows(str(path))[0][column] == messages
    assert loader.load_rows(path).rows[0]["prompt"] == TURN


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    "text", ["[2+2]=?", "[1, 2] is what?", f"{json.dumps(TURN)} What is [this]?", '[{"a": 1}]', "[]"]
)
def test_a_text_that_begins_with_a_bracket_stays_text(pairs_of, tmp_path, suffix, text):
    assert pairs_of(write_cell(tmp_path / f"rows{suffix}", "prompt", text)) == [(text, None)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    ("text", "words"), [(str(TURN), "as Python prints them.*json.dumps"), (json.dumps(TURN)[:-4] + "]", "broken JSON")]
)
def test_messages_in_broken_json_are_refused(pairs_of, tmp_path, suffix, text, words):
    with pytest.raises(UserError, match=rf"(?s)rows\.\w+.*prompt: got .*{words}"):
        pairs_of(write_cell(tmp_path / f"rows{suffix}", "prompt", text))


def test_keys_that_parquet_adds_to_calls_and_tools_are_left_out(loader, tmp_path):
    replies = [{"role": "tool", "content": "4"}, {"role": "assistant", "content": "4"}]
    rows = [{"tools": [{"function": call}]} for call in CALLS]
    for row in rows:
        row["messages"] = [*TURN, {"role": "assistant", "tool_calls": row["tools"]}, *replies]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "calls.parquet")
    for read in (loader.load_rows(tmp_path / "calls.parquet").rows, read_rows(str(tmp_path / "calls.parquet"))):
        calls = [row.get("messages", row.get("prompt"))[1]["tool_calls"][0]["function"] for row in read]
        assert calls == CALLS and [row["tools"][0]["function"] for row in read] == CALLS
    rows = [{"prompt": "As JSON", "output": [{"x": 1, "y": y}]} for y in (None, 2)]  # no messages: nulls stay
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert read_rows(str(tmp_path / "rows.parquet")) == rows
    floats = pyarrow.table({"prompt": ["?"], "answer": pyarrow.array([0.1], pyarrow.float32())})  # 0.10000000149011612
    pyarrow.parquet.write_table(floats, tmp_path / "rows.parquet")
    assert read_rows(str(tmp_path / "rows.parquet")) == [{"prompt": "?", "answer": 0.1}]


def test_an_empty_cell_is_no_answer_and_no_usable_row_is_an_error_though_bad_ones_are_skipped(loader, tmp_path):
    path, out = tmp_path / "table.csv", tmp_path / "out.jsonl"
    path.write_text("prompt,answer\n1?,1\n2?,\n")
    assert [row.get("answer") for row in loader.load_rows(path).rows] == ["1", None]
    path.write_text("prompt,answer\n,1\n")
    assert loader.main([str(path), "--on_bad", "skip", "--out", str(out)]) == 2 and not out.exists()


PARTS_OF_CELLS = {  # what looks like a separator, a torn row, a header or a blank before a quote
    "prompt\na;b;c\nd;e;f": [("a;b;c", None), ("d;e;f", None)],
    "prompt\nIs it 2; or 3?\n4; or 5?": [("Is it 2; or 3?", None), ("4; or 5?", None)],
    'prompt,answer\n"a|b",1\n"c|d",1': [("a|b", "1"), ("c|d", "1")],
    'prompt\tanswer\n"2+2?"\t4\n"3\n+3?"\t6\n': [("2+2?", "4"), ("3\n+3?", "6")],
    "prompt\nSpell this word\nprompt\n": [("Spell this word", None), ("prompt", None)],
    "prompt,answer\n2+2?, 4\n3+3?,6\n": [("2+2?", " 4"), ("3+3?", "6")],
    '"prompt","answer"\n"2+2?"," 4"\n"3+3?"," 6"\n': [("2+2?", " 4"), ("3+3?", " 6")],
}


@pytest.mark.parametrize("text", PARTS_OF_CELLS)
def test_what_is_part_of_a_cell_is_read(pairs_of, tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    assert pairs_of(tmp_path / "table.csv") == PARTS_OF_CELLS[text]


def test_a_first_row_that_may_be_data_is_named_even_if_flags_take_it_for_names(loader, tmp_path, capsys):
    (tmp_path / "set.csv").write_text("What is 2+2?,4\nWhat is 3+3?,6\n")
    loader.load_rows(tmp_path / "set.csv", mapping={"prompt": "What is 2+2?", "answer": "4"})
    assert "set.csv:1: got the column name 'What is 2+2?'; if it is data, put a line of" in capsys.readouterr().err


def test_a_folder_loses_no_data_and_reads_no_card(loader, tmp_path, capsys):
    files = {name: tmp_path / name for name in ("rows-0.jsonl", "rows-0.zip", "notes.pkl", "rows-1.arrow")}
    files["rows-0.jsonl"].write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"description": "Sums.", "features": {}}))
    files["notes.pkl"].touch()
    files["rows-0.zip"].touch()  # a copy of the rows that are read
    for source in (tmp_path, f"{tmp_path}/*"):
        assert len(loader.load_rows(source).rows) == 2
        assert f"warning: {source}: left out notes.pkl, rows-0.zip; if they hold rows" in capsys.readouterr().err
    files["rows-1.arrow"].touch()
    with pytest.raises(loader.UserError, match=r"rows-1\.arrow.* beside .*rows-0\.jsonl"):
        loader.load_rows(tmp_path)
    files["rows-0.jsonl"].unlink()
    with pytest.raises(loader.UserError, match=r"without a data file.*rows-1\.arrow.*load_from_disk"):
        loader.load_rows(tmp_path)


@pytest.mark.parametrize("note", ["", "x" * 2**18], ids=["short", "longer than the head of a file"])
def test_a_broken_line_of_jsonl_is_one_bad_row(loader, tmp_path, note):
    path = tmp_path / "set.jsonl"
    lines = [json.dumps(row | {"note": note}) for row in ROWS]
    path.write_text("\n".join([*lines, '{"prompt": "cut"'] if note else ['{"prompt": "cut"', *lines]))
    loaded = loader.load_rows(path, on_bad="skip")
    assert ([row["answer"] for row in loaded.rows], len(loaded.rejected)) == (["4", "6"], 1)
    with pytest.raises(UserError, match=rf"set\.jsonl:{3 if note else 1}: "):
        read_rows(str(path))


def test_the_encoding_is_a_flag(loader, tmp_path):
    path = tmp_path / "set.csv"
    path.write_bytes("prompt,answer\ncafé;x,1\n".encode("cp1252"))
    assert loader.load_rows(path, encoding="cp1252").rows[0]["prompt"][0]["content"] == "café;x"
    for encoding, words in (("cp125x", "unknown encoding"), ("ascii", "not UTF-8")):
        with pytest.raises(loader.UserError, match=words):
            loader.load_rows(path, encoding=encoding)


def test_rows_of_the_hub_keep_their_objects_and_numbers(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("parts.data.rows.hub_is_reached", lambda: True)
    types = {"prompt": datasets.Json(), "answer": datasets.Value("float32")}
    rows = datasets.Dataset.from_dict({"prompt": [{"a": 1}], "answer": [0.1]}, datasets.Features(types))
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **more: rows)
    assert read_rows("nobody/nothing") == [{"prompt": {"a": 1}, "answer": 0.1}]


def test_a_name_that_is_no_file_says_that_the_hub_cannot_be_reached(pairs_of, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(UserError, match=r"nobody/nothing.*no such file, and the hub cannot be reached"):
        pairs_of("nobody/nothing")


def test_a_table_named_txt_is_refused(loader, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("question,answer\n2+2?,4\n")
    with pytest.raises(loader.UserError, match=r"renaming it to end in \.csv"):
        loader.load_rows(path)
    for text, words in {"2+2?\t4\n3+3?\t6\n": r"to \.tsv", "Q: 2+2?\nA: 4\n\nQ: 3+3?\nA: 6\n": "`question`"}.items():
        path.write_text(f"#separator:tab\n{text}" if "\t" in text else text)
        with pytest.raises(loader.UserError, match=f"one prompt per line.*{words}"):
            loader.load_rows(path)
    for text in ("1.\tName a prime\n2.\tName a city", "Q: 2+2?\nQ: What is A: 4?", "Name a prime, please\nquestion"):
        path.write_text(text)
        assert len(loader.load_rows(path).rows) == 2


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [], "b": 1}, "got columns messages, b; expected 'prompt'; try data_loader.py"),
        ({"question": "2+2?"}, "got columns question; expected 'prompt'; try --prompt_column question, or data_loader"),
        ({"prompt": None}, "got an empty cell in the column 'prompt'; expected a prompt; try filling it"),
        ({"prompt": "\u200b"}, "got prompt '\\u200b'; expected a non-empty string"),
    ],
)
def test_a_missing_column_and_an_empty_cell_are_told_apart(row, words):
    with pytest.raises(UserError) as raised:
        prompt_of(row, "prompt", "d.csv, row 3")
    assert str(raised.value).startswith(f"d.csv, row 3: {words}")
