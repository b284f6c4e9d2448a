"""scripts/data_loader.py: every reader, format, bad row, target and loader, held to expectations written by hand."""

import codecs
import gzip
import json
import os
import re
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import pytest
from conftest import ROOT, TINY_LM, load_script, read_lines, script_command, script_env, write_lines
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

FILES = ROOT / "tests" / "data" / "loader"
loader = load_script("data_loader")


def user(text, role="user") -> dict:
    """A message."""
    return {"role": role, "content": text}


def assistant(text) -> dict:
    return user(text, "assistant")


def test_wrong_use_exits_2(tmp_path, monkeypatch, capsys):
    """Each is refused before anything is written."""
    monkeypatch.chdir(tmp_path)
    data, to_file = str(FILES / "gsm8k.jsonl"), ["--out", "x.jsonl"]
    for flags, words in (
        ([str(FILES / "bad_suffix.xyz"), "--validate"], "try unpacking or renaming it"),
        ([data, "--kind", "maths", "--validate"], "math"),
        ([data, "--out", "x.docx"], "jsonl"),
        ([data, *to_file, "--limit", "0"], "limit"),
        ([data, *to_file, "--data_source", "a"], "expected --for verl"),
        ([data, *to_file, "--split", "1.0"], "try --split 0.1"),
        ([data, *to_file, "--seed", "1"], "got --seed without --split"),
        ([data, *to_file, "--system_prompt", "no_such.txt"], "no_such.txt"),
    ):
        assert loader.main(flags) == 2 and words in capsys.readouterr().err, flags
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [["in.jsonl", "--out", "./in.jsonl"], ["in.eval.jsonl", "--out", "in.jsonl"]])
def test_no_output_replaces_an_input(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / flags[0]
    write_lines(path, [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)])
    before = path.read_bytes()
    assert loader.main([*flags, "--split", "0.5"]) == 2
    assert f"would replace the input {flags[0]}" in capsys.readouterr().err
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def add_up(counts: dict) -> bool:
    """Whether every row read is accounted for."""
    return counts["read"] == counts["kept"] + counts["rejected"] + counts["deduplicated"]


COLOUR, RIVER = [user("Name a colour.")], [user("Name a river.")]

# file: kind detected, rows, what rows hold once normalised; rows of all other forms: tests/data/row_cases.jsonl
EXTRA = {"meta": {"tags": ["a", None, 1.5], "deep": {"x": []}}, "n": 9007199254740993, "small": 1e-05, "flag": True}
TEXTS = {"prompt": [user('two\nlines, and "quotes"')], "answer": "NA", "note": "2024-01-01"}
GOOD = {
    "lines.txt": ("prompts", 3, {0: {"prompt": [user("First prompt")]}}),
    "comma.csv": (None, 2, {0: TEXTS, 1: {"prompt": [user("null")], "answer": "007"}}),
    "line_separators.jsonl": ("prompts", 2, {0: {"prompt": [user("a\u2028b\u2029c\x85d")]}}),
    "extra_columns.jsonl": ("prompts", 1, {0: {**EXTRA, "answer_type": "text"}}),
    "folder": ("prompts", 4, {0: {"prompt": [user("a1")]}, 2: {"prompt": [user("b2")]}}),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_file(name):
    kind, count, rows = GOOD[name]
    loaded = loader.load_rows(FILES / name)
    assert loaded.counts == {"read": count, "kept": count, "rejected": 0, "deduplicated": 0}
    assert len(loaded.rows) == count and kind in (None, loaded.kind) and loaded.why
    for index, expected in rows.items():
        held = {key: loaded.rows[index][key] for key in expected}
        assert json.dumps(held, sort_keys=True) == json.dumps(expected, sort_keys=True)  # with the same types


def test_a_column_of_map_that_no_row_has_is_said_in_one_line(tmp_path):
    path = write_lines(tmp_path / "in.jsonl", [{"questions": f"{i}?", "n": 1} for i in range(15)])
    with pytest.raises(loader.BadRows, match=r"prompt: got the columns questions, n; expected .*'question'") as raised:
        loader.load_rows(path, mapping={"prompt": "question"})
    assert "--map prompt=COLUMN, perhaps questions" in str(raised.value) and str(raised.value).count("\n") == 1


LINES = b'{"prompt": "caf\xc3\xa9"}\n{"prompt": "Name a river."}\n'


def parquet(rows: list) -> bytes:
    """A parquet file of the rows."""
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


BINARIES = {
    "utf16le.jsonl": lambda: codecs.BOM_UTF16_LE + LINES.decode().encode("utf-16-le"),
    "utf16.csv": lambda: "prompt\r\ncafé\r\nName a river.\r\n".encode("utf-16"),
    "utf8_bom_crlf.jsonl": lambda: codecs.BOM_UTF8 + LINES.replace(b"\n", b"\r\n"),
    "members.jsonl.gz": lambda: gzip.compress(LINES[:20]) + gzip.compress(LINES[20:]),
    "array.json.gz": lambda: gzip.compress(json.dumps([json.loads(x) for x in LINES.splitlines()]).encode()),
    "rows.parquet": lambda: parquet([{"prompt": "café"}, {"prompt": "Name a river."}]),
    "not_packed.jsonl.gz": lambda: LINES,  # what is packed is told from the bytes, as names are often wrong
    "packed.jsonl": lambda: gzip.compress(LINES),
}


@pytest.mark.parametrize("name", BINARIES)
def test_encodings_and_compressed_files(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BINARIES[name]())
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ResourceWarning)
        loaded = loader.load_rows(path)
    assert [row["prompt"] for row in loaded.rows] == [[user("café")], RIVER] and not left_open


BROKEN = {
    "cut.jsonl.gz": (gzip.compress(LINES * 50)[:-12], r"(?i)gz|compress|end"),
    "cut.parquet": (b"PAR1" + b"\0" * 40, r"(?i)parquet"),
    "text.parquet": (LINES, r"(?i)parquet"),
    "deep.jsonl": (b'{"prompt": "x", "m": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", r"(?i)deep|nest"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_an_error_of_the_user(tmp_path, name):
    data, words = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(loader.UserError, match=words) as raised:
        loader.load_rows(path)
    assert name in str(raised.value)


# file: good rows, then of each bad row (line, field or None where any will do, words of the report)
BAD = {
    "bad_json.jsonl": (2, [(3, None, "(?i)json")]),
    "bad_two_objects_on_a_line.jsonl": (1, [(2, None, "(?i)json|one object")]),
    "bad_not_objects.jsonl": (2, [(n, None, "object") for n in (2, 3, 4, 5)]),
    "bad_duplicate_key.jsonl": (1, [(2, "prompt", "(?i)twice|duplicate")]),
    "bad_nan.jsonl": (1, [(2, None, "nan"), (3, None, "inf")]),
    "bad_huge_integer.jsonl": (1, [(2, None, "(?i)digits|integer")]),
    "bad_lone_surrogate.jsonl": (1, [(2, "prompt", "Unicode")]),
    "bad_prompt_missing.jsonl": (2, [(3, "prompt", "text_of_prompt")]),
    "bad_role_unknown.jsonl": (1, [(2, None, "(?s)robot.*user")]),
    "bad_role_user_twice.jsonl": (1, [(2, None, "user")]),
    "bad_mixed_schemas.jsonl": (2, [(3, None, "(?s)prompt_response.*instruction.*math")]),
    "bad_gsm8k_no_marker.jsonl": (2, [(3, "answer", "####")]),
    "bad_apps_lengths.jsonl": (1, [(2, "input_output", "2.*1|1.*2")]),
    "bad_preference_same.jsonl": (1, [(2, None, "same|equal|differ")]),
    "bad_choice.jsonl": (1, [(2, "answer", "4.*0 to 1.*A to B"), (3, "answer", "True")]),
    "bad_ragged.csv": (2, [(3, None, "3"), (4, None, "1")]),
}
# file: words of the error; nothing in them can be used, or not without guessing
UNREADABLE = {"bad_scalar.json": "5|number|int", "bad_trailing_text.json": "(?i)and more"}
UNREADABLE |= {"bad_cut_array.json": "(?i)json", "bad_unknown_fields.jsonl": "(?s)foo.*map"}
UNREADABLE |= {"bad_header_twice.csv": "(?i)prompt.*twice"}
EMPTY = ("bad_empty.jsonl", "bad_only_blank_lines.jsonl", "bad_header_only.csv")
UNREADABLE |= {name: rf"(?s)no usable row.*{name} \(0 read\)" for name in EMPTY}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_rejected_with_line_and_field(name):
    kept, expected = BAD[name]
    loaded = loader.load_rows(FILES / name, on_bad="skip")
    assert len(loaded.rows) == kept
    bad = len(expected)
    assert loaded.counts == {"read": kept + bad, "kept": kept, "rejected": bad, "deduplicated": 0}
    for bad, (line, field, words) in zip(loaded.rejected, expected, strict=True):
        assert {"file", "line", "field", "got", "expected", "try", "row"} <= set(bad)
        assert Path(bad["file"]).name == name
        assert line is None or bad["line"] == line
        assert field is None or re.match(rf"{field}\b", bad["field"] or ""), bad
        assert re.search(words, " | ".join(str(bad[key]) for key in ("field", "got", "expected", "try"))), bad
        assert bad["expected"] and bad["try"]
        json.dumps(bad, allow_nan=False).encode("ascii")
    with pytest.raises(loader.BadRows, match=rf"{re.escape(name)}:{loaded.rejected[0]['line']}: ") as raised:
        loader.load_rows(FILES / name)
    str(raised.value).encode("utf-8")


def test_every_other_file_is_read_whole_and_a_bad_one_is_not():
    for path in sorted(
        {*FILES.iterdir()} - {FILES / name for name in {"custom_columns.jsonl", *GOOD, *BAD, *UNREADABLE}}
    ):
        try:
            rejected = loader.load_rows(path, on_bad="skip").rejected
        except loader.UserError as error:
            rejected = [error]
        assert bool(rejected) == path.name.startswith("bad_"), (path.name, rejected)


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_file(name):
    with pytest.raises(loader.UserError, match=UNREADABLE[name]) as raised:
        loader.load_rows(FILES / name)
    assert name in str(raised.value)


ROUND = ("gsm8k", "answer_numbers", "short_solutions", "arc", "aqua", "openai_tools", "openai_parts")


def without_none(row: dict) -> dict:
    """The row without columns that hold nothing: a table has no other way to leave a cell out."""
    return {key: value for key, value in row.items() if value is not None}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_every_good_file_is_written_and_comes_back_or_parquet_cannot_hold_it(tmp_path, suffix):
    refused = []
    for name in [*({*GOOD} - {"folder"}), *(f"{name}.jsonl" for name in ROUND)]:
        rows = loader.load_rows(FILES / name).rows
        path = tmp_path / (Path(name).stem + suffix)
        try:
            loader.write_rows(rows, path)
        except loader.UserError as error:
            refused.append(name)
            assert "parquet would change" in str(error)
            continue
        back = loader.load_rows(path, kind="auto").rows
        assert [without_none(row) for row in back] == [without_none(row) for row in rows], name
    assert len(refused) <= (3 if suffix == ".parquet" else 0), refused


@pytest.mark.parametrize("target", ["trl", "verl"])
def test_dates_stay_text_in_parquet(tmp_path, target):
    datasets = pytest.importorskip("datasets")
    loader.write_rows(loader.load_rows(FILES / "dates.jsonl").rows, tmp_path / "d.parquet", target=target)
    row = datasets.load_dataset("parquet", data_files=str(tmp_path / "d.parquet"), cache_dir=str(tmp_path))["train"][0]
    assert row["prompt"] == [user("2024-01-01")]
    assert (row["answer"] if target == "trl" else row["reward_model"]["ground_truth"]) == "2024-12-31"


@pytest.mark.parametrize(
    ("name", "columns"),
    [("alpaca.json", {"prompt", "completion"}), ("preferences.jsonl", {"prompt", "chosen", "rejected"})],
)
def test_rows_for_other_trainers_of_trl_have_their_columns_as_messages(tmp_path, name, columns):
    loader.write_rows(loader.load_rows(FILES / name).rows, tmp_path / "t.jsonl", target="trl")
    (row, _) = read_lines(tmp_path / "t.jsonl")
    assert {*row} - {"source", "id"} == columns
    assert all([message["role"] for message in row[x]] == ["assistant"] for x in columns - {"prompt"})


def test_a_column_that_trl_takes_for_itself_is_refused(tmp_path):
    rows = [loader.normalise({"prompt": "a", "completions": "b"}, "prompts")]
    with pytest.raises(loader.UserError, match="completions"):
        loader.write_rows(rows, tmp_path / "t.jsonl", target="trl")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def command(capsys):
    """Run the command in this process: its JSON and what it says on stderr."""

    def run(*flags) -> tuple[dict, str]:
        capsys.readouterr()
        code = loader.main([*map(str, flags), "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out), said.err

    return run


def test_command_writes_counts_and_reports(command, tmp_path):
    out = tmp_path / "out.jsonl"
    report, said = command(FILES / "duplicates.jsonl", FILES / "bad_empty.jsonl", "--out", out, "--dedup")
    assert re.search(r"warning: .*bad_empty\.jsonl has no rows\n", said)
    assert {"kind", "why", "counts", "outputs", "errors", "stats"} <= set(report) and report["errors"] == []
    assert report["counts"] == {"read": 4, "kept": 2, "rejected": 0, "deduplicated": 2}
    assert [row["prompt"] for row in read_lines(out)] == [COLOUR, RIVER]
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("fault", ["bad rows", "full disk"])
def test_what_fails_writes_nothing_and_leaves_the_old_file(tmp_path, monkeypatch, capsys, fault):
    out, name = tmp_path / "out.jsonl", "bad_thirty.jsonl" if fault == "bad rows" else "gsm8k.jsonl"
    out.write_text("old\n")

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert loader.main([str(FILES / name), "--out", str(out), "--json"]) == 2
    said = capsys.readouterr()
    assert out.read_text() == "old\n" and [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    if fault == "bad rows":
        assert "bad_thirty.jsonl:2" in said.err and json.loads(said.out)["counts"]["rejected"] == 30
        assert "… and 10 more; --on_bad skip with --out FILE lists all in FILE.rejected.jsonl" in said.err


def test_on_bad_skip_writes_the_good_and_a_file_of_the_rejected(command, tmp_path):
    out = tmp_path / "out.jsonl"
    counts = command(FILES / "bad_json.jsonl", "--out", out, "--on_bad", "skip")[0]["counts"]
    assert (counts["read"], counts["kept"], counts["rejected"]) == (3, 2, 1) and add_up(counts)
    assert [row["prompt"] for row in read_lines(out)] == [COLOUR, RIVER]
    (rejected,) = read_lines(tmp_path / "out.rejected.jsonl")
    assert rejected["line"] == 3 and rejected["file"].endswith("bad_json.jsonl")
    assert rejected["row"].rstrip() == '{"prompt": "cut' and rejected["expected"] and rejected["try"]


def test_split_keeps_rows_of_one_prompt_together(command, tmp_path):
    """Alike but for case, white space, Unicode form or system prompt is one prompt; the order of the data stays."""
    rows = [{"prompt": f"Question {i}", "answer": str(i)} for i in range(30)]
    rows += [{"prompt": text, "answer": "again"} for text in ("question  3", "QUESTION 4\n", "\uff31uestion 5")]
    rows += [{"prompt": [user("Be brief.", "system"), user("Question 6")], "answer": "again"}] * 4
    path, out = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"

    def split(*flags) -> tuple[list, list, dict]:
        report, _ = command(path, "--out", out, "--split", *flags)
        return read_lines(out), read_lines(tmp_path / "out.eval.jsonl"), report

    def asked(rows: list) -> set[str]:
        texts = (row["prompt"][-1]["content"] for row in rows)
        return {" ".join(text.replace("\uff31", "Q").lower().split()) for text in texts}

    splits = [split("0.3", "--seed", seed) for seed in (0, 1, 1)]
    for train, held, report in splits:
        assert len(held) == 11 and len(train) == 26 and not asked(train) & asked(held)
        assert [out["prompts"] for out in report["outputs"]] == [len(asked(train)), len(asked(held))]
    assert splits[0][1] != splits[1][1] == splits[2][1] and len(split("eval=11", "--shuffle", 3)[1]) == 11


def test_a_split_says_which_held_out_questions_swap_the_numbers_of_training_ones(command, tmp_path):
    rows = [{"prompt": f"{a}+{b}=?", "answer": str(a + b)} for a, b in ((3, 41), (41, 3), (7, 22), (22, 7))]
    path = write_lines(tmp_path / "in.jsonl", rows)
    _, said = command(path, "--out", tmp_path / "out.jsonl", "--split", "1")
    assert "warning: 1 rows are held out; 1 of them swap the numbers of a training question (a+b, b+a)" in said


def test_map_and_stdin(tmp_path):
    out, data = tmp_path / "out.jsonl", (FILES / "custom_columns.jsonl").read_text()
    command = script_command("data_loader", "-", "--map", "prompt=q", "--map", "answer=gold", "--out", out)
    done = subprocess.run(command, input=data, env=script_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [row["answer"] for row in read_lines(out)] == ["42", "2"]
    assert read_lines(out)[0]["prompt"] == [user("6*7?")]


def test_inspect_shows_lengths_and_rows_that_stand_in_two_files(tmp_path, capsys):
    # through the template n letters are <|user|>, n tokens, <|end|> and <|assistant|>; the percentiles are lengths
    # that occur: the 10th, 19th and 20th of 20
    train = write_lines(tmp_path / "train.jsonl", [{"prompt": "x" * n} for n in range(1, 19)])
    test = write_lines(tmp_path / "test.jsonl", [{"prompt": "x" * n} for n in (2, 2)])
    assert loader.main([train, test, "--inspect", "--tokenizer", str(TINY_LM), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    assert stats["lengths"]["prompt_tokens"] == {"p50": 11, "p95": 20, "max": 21}
    assert stats["lengths"]["prompt_chars"] == {"p50": 8, "p95": 17, "max": 18}
    assert list(stats["overlap"].values()) == [1] and stats["duplicates"] == 2 and stats["rows"] == 20
    assert stats["fields"]["prompt"]["rows"] == 20 and stats["examples"]


def prompt_ids(tokenizer, messages: list) -> list[int]:
    """Token ids of a prompt, by the template's text written out by hand."""
    text = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages) + "<|assistant|>"
    return tokenizer(text, add_special_tokens=False).input_ids


def test_batches_are_padded_left_through_the_template(tokenizer):
    batch, *rest = loader.create_dataloader("auto", FILES / "openai.jsonl", tokenizer, batch_size=2)
    assert rest == []
    long = prompt_ids(tokenizer, [user("Be kind.", "system"), user("Hi"), assistant("Hello!"), user("Bye")])
    short = prompt_ids(tokenizer, [user("2+2?")])
    padding = len(long) - len(short)
    assert padding > 0 and batch["input_ids"].tolist() == [long, [tokenizer.pad_token_id] * padding + short]
    assert batch["attention_mask"].tolist() == [[1] * len(long), [0] * padding + [1] * len(short)]
    assert batch["completion"] == [[assistant("See you.")], [assistant("4")]]


def test_tools_reach_the_template_also_as_json_text():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets" / "tiny_tools_lm")
    tools = [{"type": "function", "function": {"name": "area", "parameters": {"type": "object", "properties": {}}}}]
    row = {"prompt": [user("2?")]}
    texts = [tokenizer.decode(loader.prompt_ids(tokenizer, row | more)) for more in ({}, {"tools": json.dumps(tools)})]
    assert ["area" in text for text in texts] == [False, True]


def test_the_order_is_the_files_or_shuffled_anew_in_each_epoch_by_the_seed(tokenizer):
    def orders(**options) -> list[list[str]]:
        """The answers of two epochs of the file of 20 numbers."""
        made = loader.create_dataloader("auto", FILES / "numbers.jsonl", tokenizer, batch_size=8, **options)
        return [[answer for batch in made for answer in batch["answer"]] for _ in range(2)]

    in_order = [str(2 * i) for i in range(20)]
    assert orders() == [in_order, in_order]
    first, second = orders(shuffle_seed=1)
    assert first != second and sorted(first) == sorted(second) == sorted(in_order)
    assert orders(shuffle_seed=1) == [first, second] != orders(shuffle_seed=2)


def test_a_decompression_bomb_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "MAX_BYTES", 1_000_000)
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as f:
        f.write(b'{"prompt": "')
        for _ in range(64):
            f.write(b"a" * 2**20)
        f.write(b'"}\n')
    tracemalloc.start()
    try:
        with pytest.raises(loader.UserError, match="unpacked bytes"):
            loader.load_rows(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6


EVENTS, WATCHED = [], ("open", "exec", "compile", "os.system", "os.exec", "subprocess.Popen", "pickle.find_class")


def audit(event: str, arguments: tuple):
    """Note what the process opens and runs, while EVENTS is watched."""
    if EVENTS and event in (*WATCHED, "socket.connect", "os.listdir", "os.scandir"):
        EVENTS.append((event, str(arguments[:1])))


def test_paths_and_code_in_data_are_never_touched(tmp_path):
    bait = tmp_path / "bait.txt"
    bait.write_text("secret")
    code = f"__import__('pathlib').Path({str(tmp_path / 'ran')!r}).write_text('x')\nassert True"
    rows = [
        {"prompt": str(bait), "file": str(bait), "image": f"file://{bait}", "tests": [code], "setup": code},
        {"prompt": "{{ ''.__class__ }} {% set x = 1 %}", "file": str(bait), "image": "", "tests": [code], "setup": ""},
    ]
    sources = [write_lines(tmp_path / "in.jsonl", rows), tmp_path / "in.parquet"]
    sources[1].write_bytes(parquet(rows))
    for source in sources:  # once for what is imported on the way
        loader.load_rows(source)
    sys.addaudithook(audit)
    EVENTS.append(("start", ""))
    try:
        for source in sources:
            loaded = loader.load_rows(source)
            loader.write_rows(loaded.rows, tmp_path / "out.jsonl", target="trl")
        noted = EVENTS[1:]
    finally:
        EVENTS.clear()
    assert [row["prompt"][0]["content"] for row in loaded.rows] == [row["prompt"] for row in rows]
    assert not (tmp_path / "ran").exists()
    assert not [note for note in noted if "bait" in note[1]]
    # compile: tests are parsed, to see that they are Python
    assert {event for event, _ in noted} <= {"open", "os.listdir", "os.scandir", "compile"}, noted


def test_hub_ids_go_through_datasets_without_remote_code(monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.Dataset.from_list([{"question": "6*7?", "answer": "x\n#### 42"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = loader.load_rows("openai/gsm8k:main@test").rows
    assert rows[0]["answer"] == "42"
    ((args, kwargs),) = calls
    assert {"openai/gsm8k", "main", "test"} <= {*args, *map(str, kwargs.values())}
    assert not kwargs.get("trust_remote_code")


@pytest.mark.parametrize("function", ["f(1)", "", "Solution().f", 5])
def test_a_call_of_what_is_no_name_is_refused_as_the_sandbox_refuses_it(function):
    tests = [{"function": function, "args": [1], "expected": 2}]
    with pytest.raises(loader.BadRow):
        loader.normalise({"prompt": "Write f.", "tests": tests})
    with pytest.raises(load_script("sandbox").BadTests):
        load_script("sandbox").read_tests(tests, None)


@pytest.mark.parametrize("values", [[{"a": 1}, {"b": 2}], [2**53 + 1, 0.5], [{}, {}], ["text", 1]])
def test_parquet_never_changes_mixed_columns_in_silence(tmp_path, values):
    rows = [loader.normalise({"prompt": "x", "meta": value}, "prompts") for value in values]
    with pytest.raises(loader.UserError, match="got meta with values that parquet would change"):
        loader.write_rows(rows, tmp_path / "rows.parquet")


SUFFIXES = [".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet", ".jsonl.gz"]
PIECES = b'{"prompt": |"x"|}|\n|[|]|,|NaN|\\ud800|\xff|\x00|\r|"|1e999|{"messages": [|\xef\xbb\xbf|\xff\xfe'.split(b"|")
PIECES += [b"prompt,answer\n", b'{"role": "user", "content": "x"}', b"9" * 4400]


@settings(max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(
    suffix=st.sampled_from(SUFFIXES),
    data=st.binary(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
)
@example(suffix=".jsonl", data=b"")
@example(suffix=".jsonl", data=b'{"prompt": "x"}\n' * 3 + b'{"prompt": {"a": [[[[]]]]}}')
def test_arbitrary_bytes_raise_only_the_declared_errors(tmp_path, suffix, data):
    path = tmp_path / f"data{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    for on_bad in ("skip", "fail"):
        try:
            loaded = loader.load_rows(path, on_bad=on_bad)
        except loader.UserError as error:
            str(error).encode("utf-8")
        else:
            assert add_up(loaded.counts) and len(loaded.rows) == loaded.counts["kept"]
            json.dumps([loaded.rows, loaded.rejected], allow_nan=False)
