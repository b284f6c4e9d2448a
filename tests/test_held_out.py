"""Held-out evaluations: which rows they take, the interval of the accuracy."""

import json
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from conftest import EVAL_DATA, ROOT, TINY_LM, load_module, load_script

from parts.data.held_out import asked_words, hold_out, mark_trained, mirrored, overlap_metric, task_of
from parts.data.prompts import evaluated_rows
from parts.foundation.messages import UserError


def config(count: int, seed: int = 0):
    return SimpleNamespace(eval_rows=count, seed=seed)


def test_an_evaluation_takes_so_many_rows_the_same_ones_in_every_run(capsys):
    rows = [{"prompt": str(i)} for i in range(600)]
    picked = evaluated_rows(config(100), rows)
    assert "100 of 600 rows" in capsys.readouterr().err
    numbers = [int(row["prompt"]) for row in picked]
    assert len({*numbers}) == 100 and numbers == sorted(numbers), "each once, in the order of the file"
    assert numbers[-1] > 400 and numbers[50] > 150, "from the whole file"
    assert evaluated_rows(config(100, seed=7), rows) == picked, "runs of other seeds compare"
    capsys.readouterr()
    assert evaluated_rows(config(0), rows) is rows and evaluated_rows(config(600), rows) is rows
    assert not capsys.readouterr().err


def test_the_trainers_read_no_more_held_out_rows_than_asked(tmp_path):
    script, few = load_script("ppo_train"), tmp_path / "few.jsonl"
    few.write_text("".join(EVAL_DATA.read_text().splitlines(keepends=True)[:8]))
    parse, tokenizer = script.parse_config, script.load_tokenizer(script.parse_config([]))

    def sizes(*flags: str) -> list[int]:
        config = parse([f"--data={few}", f"--eval_data={few}", "--allow_overlap", *flags])
        return list(map(len, script.load_splits(config, tokenizer)))

    verl = load_script("verl_train")
    for split, count in (("train", 8), ("test", 3)):
        assert len(verl.job_rows(verl.parse_config(["--eval_rows=3"]), None, str(few), split)[0]) == count
    assert parse([]).eval_rows == 512 and sizes("--eval_rows=3") == [8, 3] and sizes("--eval_rows=0") == [8, 8]


def test_the_accuracy_comes_with_its_interval():
    """81 of 263 (Newcombe 1998, table I): by the first reward, of which None counts as wrong."""
    from parts.evaluating.paired_tests import accuracy_figures

    scores = [*[1.0] * 80, 1.5, *[0.99] * 181, None]
    figures = accuracy_figures([{"rewards": {"first": score, "second": 1.0}} for score in scores])
    expected = {"eval/accuracy": 81 / 263, "eval/accuracy_low": 0.2553, "eval/accuracy_high": 0.3662}
    assert figures == pytest.approx(expected, abs=5e-5)


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def test_turns_are_told_from_one_text():
    """Case, blanks, forms of Unicode and system prompts are left out: see test_data_loader.py, of --split."""
    assert asked_words([*user("1"), {"role": "assistant", "content": "2"}]) != asked_words(user("12"))


TRAINED = [user(f"{n}+1=") for n in range(20)]
TRAINERS = ("ppo_train", "grpo_train", "on_policy_distillation", "verl_train")


@pytest.fixture
def files(tmp_path):
    """Flags of 20 training prompts and of an evaluation file with the given ones."""

    def write(held_out: list) -> list[str]:
        for name, prompts in (("train", TRAINED), ("eval", held_out)):
            rows = [json.dumps({"prompt": prompt, "answer": "1"}) for prompt in prompts]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        return [f"--data={tmp_path / 'train.jsonl'}", f"--eval_data={tmp_path / 'eval.jsonl'}"]

    return write


def dry(name: str, tmp_path, *flags: str) -> int:
    more = {"verl_train": ["--print", "--batch_size=8"], "on_policy_distillation": [f"--teacher={TINY_LM}"]}
    reward = [] if name == "on_policy_distillation" else [f"--reward={tmp_path / 'pay.py'}:pay"]
    (tmp_path / "pay.py").write_text("def pay(prompt, completion, answer):\n    return 1.0\n")
    flags = [*more.get(name, ["--dry_run"]), *reward, f"--output_dir={tmp_path / 'run'}", *flags]
    flags += ["--dry_run"] * (name == "on_policy_distillation")
    return load_script(name).main(flags)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_refuses_held_out_prompts_that_all_train(name, files, tmp_path, capsys):
    flags = files(TRAINED[::-1])
    assert dry(name, tmp_path, *flags) == 2
    told = capsys.readouterr().err
    assert "20 evaluation prompts all occur" in told and "data_loader.py" in told and "--split 0.1" in told
    if name == "ppo_train":
        assert dry(name, tmp_path, *flags, "--allow_overlap") == 0
        assert "20 of 20 evaluation prompts also occur" in capsys.readouterr().err
        assert dry(name, tmp_path, *files([user("3 + 1 ="), user("30+1="), user("31+1=")])) == 0
        assert "1 of 3 evaluation prompts also occur in training; the accuracy is inflated" in capsys.readouterr().err


@pytest.mark.parametrize(("environment", "count"), [("", 2), ("game.py:Game", 1)])
def test_an_environments_columns_tell_its_tasks_apart(environment, count):
    rows = [{"prompt": "Guess.", "columns": {"secret": n}} for n in (1, 2)]
    held_out = [{"prompt": "Guess.", "columns": {"secret": n}} for n in (2, 3)]
    mark_trained(SimpleNamespace(environment=environment, data="a", eval_data="b", allow_overlap=True), rows, held_out)
    assert overlap_metric(held_out) == {"eval/trained_rows": count} and overlap_metric(rows) == {}


@pytest.mark.parametrize("page", ["ppo", "multi_turn"])  # the others' function has the same text
def test_a_page_counts_held_out_prompts_that_train(page, capsys):
    page = load_module(ROOT / "templates" / f"{page}.py", f"{page}_overlap")
    rows, held_out = ([{"columns": {"prompt": x}} for x in part] for part in (["1+1=", "2+1="], ["2 + 1=", "3+1="]))
    asked, own = SimpleNamespace(allow_overlap=True), SimpleNamespace(allow_overlap=False)
    assert page.count_trained(own, rows, held_out) == {"eval/trained_rows": 1}
    assert "1 of 2 evaluation prompts also occur in training" in capsys.readouterr().err
    assert page.count_trained(own, rows, held_out[1:]) == {} == page.count_trained(own, rows, [])
    with pytest.raises(SystemExit, match="--allow_overlap"):
        page.count_trained(own, rows, rows)
    assert page.count_trained(asked, rows, rows) == {"eval/trained_rows": 2}


def split(count: int, rows: list[dict], **settings) -> list[list[int]]:
    """The numbers of the rows that train, and of those held out."""
    numbered = [{"columns": {}, "number": number} | row for number, row in enumerate(rows)]
    settings = {"hold_out": count, "eval_data": "", "data": "rows.jsonl"} | settings
    return [[row["number"] for row in part] for part in hold_out(SimpleNamespace(**settings), numbered)]


def test_so_many_rows_are_held_out_whole_prompts_the_same_in_any_order(capsys):
    prompts = [f"Row {n // 2}?" if n % 2 else f"row{n // 2} ?" for n in range(60)]  # two rows each, spelled apart
    rows = [{"prompt": text} for text in prompts]
    trained, held_out = split(20, rows)
    assert len(held_out) == 20 and sorted(trained + held_out) == list(range(60)), "every row once"
    assert trained == sorted(trained) and held_out == sorted(held_out), "in the order of the file"
    assert {n // 2 for n in trained}.isdisjoint(n // 2 for n in held_out)
    assert "held out: 20 of 60 rows of rows.jsonl" in capsys.readouterr().err
    assert sorted(59 - n for n in split(20, rows[::-1])[1]) == held_out, "by what is asked, not by place"
    assert {*split(10, rows)[1]} < {*held_out}
    assert len(split(21, rows)[1]) == 20, "a prompt of two rows has no half"


def test_mirrored_questions_are_counted(capsys):
    pairs = [(a, b) for a in range(1, 8) for b in range(1, 8)]
    _, held_out = split(20, [{"prompt": f"What is {a} + {b}?"} for a, b in pairs])
    apart = [n for n in held_out if pairs.index(pairs[n][::-1]) not in held_out]  # enumerated
    assert apart and f"; {len(apart)} of them swap the numbers of a training question" in capsys.readouterr().err
    split(20, [{"prompt": f"What is {a} - {b}?"} for a, b in pairs])
    assert "round" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("What is 3 + 41?", "What is 41 + 3?"),
        ("2.5 * 4.", "4 * 2.5."),
        ("12 plus 3", "3 plus 12"),
        *((text, "") for text in ("7 - 3", "1 + 2 + 3", "2 * 3 + 4", "2 times 3 plus 4", "1 + 2.5 * 3", "3 + x")),
        *((text, "") for text in ("-3 + 4", "1+1=2, 2+3=")),
    ],
)
def test_a_sum_or_product_of_two_numbers_is_turned_round(asked, other):
    assert mirrored(asked_words(asked)) == asked_words(other)


@pytest.mark.parametrize(
    ("count", "settings", "prompts", "says"),
    [
        (4, {}, "abcd", ["got --hold_out 4 with 4 rows in rows.jsonl", "none for training", "try --hold_out 1"]),
        (2, {"eval_data": "b.jsonl"}, "abcd", ["got --hold_out 2 beside --eval_data b.jsonl"]),
        (2, {}, "aaaa", ["4 rows of 1 prompts", "rows of a prompt stay together"]),
    ],
)
def test_a_split_that_cannot_be_is_refused(count, settings, prompts, says):
    with pytest.raises(UserError) as refusal:
        split(count, [{"prompt": text} for text in prompts], **settings)
    assert all(text in str(refusal.value) for text in says), refusal.value


@pytest.mark.parametrize("name", TRAINERS)
def test_the_trainers_hold_rows_out(name, files, tmp_path, capsys):
    data, _ = files([user("30+1=")])
    assert dry(name, tmp_path, data, "--hold_out=5") == 0
    told = capsys.readouterr()
    assert "held out: 5 of 20 rows" in told.err
    if name == "verl_train":
        sizes = [pq.read_metadata(tmp_path / "run" / "job" / f"{x}.parquet").num_rows for x in ("train", "val")]
        assert sizes == [15, 5] and "trainer.val_before_train=True" in told.out
    else:
        assert '"held_out_prompts": 5' in told.out and '"prompts": 15' in told.out


def test_held_out_rows_replace_those_of_the_embedded_task(capsys):
    script = load_script("ppo_train")
    config = script.parse_config(["--hold_out=100", "--eval_every=5"])
    trained, held_out = script.load_splits(config, script.load_tokenizer(config))
    assert len(held_out) == 100 and {task_of(x, False) for x in trained}.isdisjoint(task_of(x, False) for x in held_out)
    assert not script.idle_settings(config, 4)
