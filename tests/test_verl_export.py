"""A job as files that stand alone, by --export: what is in them, that they mean the same, and what is refused."""

import ast
import re
import shutil

import numpy as np
import pandas
import pytest
from conftest import ROOT, TINY_LM, load_module, load_script, write_lines
from verl_scripts import rows_of, words_of

verl = load_script("verl_train")
RUN = (ROOT / "evals" / "files" / "trl_run.py").read_text(encoding="utf-8")
ROWS = [{"prompt": [{"role": "user", "content": f"{i} + 1"}], "answer": f"#### {i + 1}"} for i in range(40)]
PER_SAMPLE = """
import json as j


def near(prompt, completion, answer, meta):
    "Half for the prompt's first word, a half for the answer and its unit."
    return 0.5 * (prompt.split()[0] in completion) + 0.5 * (f"{answer['value']} {meta['unit']}" in completion)
"""


def loaded(file):
    """The reward of a file, as verl loads it: by its path."""
    return load_module(file, f"exported_{abs(hash(str(file)))}").compute_score


@pytest.fixture
def untried(monkeypatch):
    """No trial of the reward in a process of its own, which takes a second."""
    monkeypatch.setattr(verl, "try_job", lambda *_, **__: ([], {}))


def exported_run(folder, *flags, text=RUN, code=0) -> str:
    """port.md of the export of a TRL run whose file lies in a folder, beside its data."""
    (folder / "trl_run.py").write_text(text)
    write_lines(folder / "word_problems.jsonl", ROWS)
    argv = [f"--from_trl={folder}/trl_run.py", "--hardware=8x80GB", f"--export={folder}/port", *flags]
    assert verl.main(argv) == code
    return (folder / "port" / "port.md").read_text()


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The TRL run of the evaluations, exported, and moved to another place without what it came from."""
    folder = tmp_path_factory.mktemp("export")
    exported_run(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["port", "trl_run.py", "word_problems.jsonl"]
    moved = folder.parent / f"{folder.name} moved"
    shutil.move(folder / "port", moved)
    shutil.rmtree(folder)
    return moved


def test_the_folder_holds_what_it_needs_and_nothing_of_here(port):
    names = ["port.md", "run.sh", "train.parquet", "verl_reward.py"]
    assert sorted(p.name for p in port.iterdir() if p.name != "run") == names
    texts = [(port / name).read_text() for name in ("port.md", "run.sh", "verl_reward.py")]
    assert not [t for t in texts if str(ROOT) in t or "/tmp" in t or "verl_hooks" in t or "import trl" in t]


def test_the_command_is_that_of_print_without_its_hooks(port, tmp_path):
    words, _ = words_of(port / "run.sh", tmp_path / "bin", "trainer.total_training_steps=3")
    assert words[:3] == ["-u", "-m", "verl.trainer.main_ppo"] and words[-1] == "trainer.total_training_steps=3"
    given = dict(word.lstrip("+").split("=", 1) for word in words[3:-1])
    expected = {
        "data.train_files": f"{port}/train.parquet",
        "data.val_files": f"{port}/train.parquet",
        "data.train_batch_size": "32",
        "trainer.save_freq": "200",  # TRL's 500 of 200 steps
        "reward.custom_reward_function.path": f"{port}/verl_reward.py",
        "actor_rollout_ref.actor.kl_loss_type": "'k3+'",
        "actor_rollout_ref.actor.clip_ratio_high": "0.28",
        "actor_rollout_ref.rollout.temperature": "0.9",
        "trainer.default_local_dir": f"{port}/run/checkpoints",
        "trainer.total_training_steps": "200",
        "actor_rollout_ref.model.use_remove_padding": "False",
    }
    assert {key: given[key] for key in expected} == expected
    assert int(given["ray_kwargs.ray_init.num_cpus"]) >= 27
    assert not [key for key in given if "reward_manager" in key or "sampler" in key or "reward_kwargs" in key]


def test_scores_are_those_of_the_weighted_sum(port):
    """As TRL adds them: 1.0 * correct + 0.2 * brief, where None adds nothing."""
    score = loaded(port / "verl_reward.py")
    row = rows_of(port / "train.parquet")[4]
    truth = row["reward_model"]["ground_truth"]
    texts = {"so #### 5": 1.2, "#### 4": 0.2, "": 0.0, "#### 5" + " " * 294: 1.1, "x" * 500: 0.0}
    got = {t: score("d", t, truth, row["extra_info"])["score"] for t in texts}
    assert got == pytest.approx(texts, abs=1e-6)
    assert score("d", "so #### 5", "5", {}) == {"correct": 1.0, "brief": 1.0, "score": got["so #### 5"]}
    for value in got.values():  # a group of 8 equal ones is added up without rounding
        assert all(float(np.float32(count) * np.float32(value)) == count * value for count in range(1, 9))


def test_run_sh_names_the_settings_of_trl_and_port_md_what_was_checked(port):
    command, page = (port / "run.sh").read_text(), (port / "port.md").read_text()
    for line in (
        "  actor_rollout_ref.actor.clip_ratio_high=0.28  # clip_eps_high: 0.28 (TRL: epsilon_high)\n",
        "  # kl_estimator: k3_ratio (TRL: beta, use_bias_correction_kl)\n",
        "  # dual_clip: 0.0 (TRL: delta, by default)\n",
        "  # data (TRL: train_dataset)\n",
    ):
        assert line in command, line
    assert "\n- lr_scheduler_type linear" in page
    assert "\n- Every key of `run.sh` is one that verl 0.9.1's configuration has, or takes with +.\n" in page
    assert re.search(r"\n- The reward was tried: 400 completions of 40 rows .* \(0, 0.2, 1.2 seen\)", page)


LORA = "peft_config=LoraConfig(r=8, lora_alpha=32, {more}),\n        train_dataset"
SCRIPTS = {  # what is replaced in the run of the evaluations, what has no equal
    "lora": [("train_dataset", LORA.format(more="target_modules='all-linear', lora_dropout=0.1")), ["lora_dropout"]],
    "some layers": [("train_dataset", LORA.format(more="target_modules=['q_proj', 'v_proj'], bias='none'")), []],
    "no KL": [("beta=0.02", "beta=0.0, use_bias_correction_kl=False, min_p=0.2"), ["min_p"]],
    "vLLM": [('loss_type="dapo"', "use_vllm=True, vllm_gpu_memory_utilization=0.4, save_total_limit=2"), []],
    "tools": [("train_dataset", "tools=[brief], callbacks=[],\n        train_dataset"), ["tools", "callbacks"]],
    "several updates": [("epsilon=0.2", "epsilon=0.2, delta=3.0, num_iterations=2, steps_per_generation=4"), []],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_setting_of_the_script_is_in_run_sh_or_port_md(name, tmp_path, untried):
    (old, new), lost = SCRIPTS[name]
    text = RUN.replace(old, new, 1)
    page = exported_run(tmp_path, text="from peft import LoraConfig\n" + text)
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    calls = [call for call in calls if getattr(call.func, "id", "") in ("GRPOConfig", "GRPOTrainer", "LoraConfig")]
    given = {keyword.arg for call in calls for keyword in call.keywords} - {"args", "peft_config"}
    named = ", ".join(re.findall(r"\(TRL: (.*)\)", (tmp_path / "port" / "run.sh").read_text())).split(", ")
    of_run = {setting.rpartition(".")[2] for setting in named}
    none = re.findall(r"^- (?:\w+\()?(\w+)[= ].*: has no equivalent here", page, re.MULTILINE)
    beside = re.findall(r"`(?:\w+\.)?(\w+)`", page.partition("nothing with these values: ")[2].partition("\n")[0])
    assert sorted(none) == sorted(lost) and not {*none, *beside} & of_run
    assert not {*beside} & {"target_modules", "vllm_gpu_memory_utilization", "save_total_limit"}
    assert given <= of_run | {*none, *beside}, given - of_run - {*none, *beside}


def test_a_setting_of_a_flag_is_not_said_to_be_of_trl_and_held_out_prompts_that_train_are_counted(tmp_path, untried):
    """The file has 40 rows made by `.map` and lr 2e-6; the port other rows and another lr, both by flags."""
    text = RUN.replace("train_dataset=load_dataset(", "train_dataset=made(")
    text = text.replace("REWARDS = [", "made = lambda *a, **k: None\nREWARDS = [")
    write_lines(tmp_path / "mine.jsonl", ROWS)
    write_lines(tmp_path / "eval.jsonl", [*ROWS[:3], {**ROWS[0], "prompt": [{"role": "user", "content": "new"}]}])
    flags = [f"--data={tmp_path}/mine.jsonl", f"--eval_data={tmp_path}/eval.jsonl", "--lr=1e-5"]
    page = exported_run(tmp_path, *flags, text=text)
    assert "\n- 3 of 4 evaluation prompts also occur in training: the accuracy that verl logs is inflated.\n" in page
    command = (tmp_path / "port" / "run.sh").read_text()
    assert "optim.lr=1e-05  # lr: 1e-05\n" in command and 'train.parquet"  # data\n' in command
    assert str(tmp_path) not in command


def exported(tmp_path, reward, rows, *flags):
    """An export of settings, without TRL."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "r.py").write_text(reward)
    write_lines(tmp_path / "d.jsonl", rows)
    argv = [f"--data={tmp_path}/d.jsonl", f"--reward={tmp_path}/r.py:near*2", "--algorithm=grpo", "--batch_size=128"]
    return verl.main([*argv, f"--model={TINY_LM}", f"--export={tmp_path}/out", *flags])


TEXT_ROWS = [{"prompt": f"{i} apples", "answer": {"value": i}, "meta": {"unit": "kg"}, "more": [i]} for i in range(8)]


def test_text_prompts_columns_and_a_reward_for_one_sample(tmp_path, untried):
    assert exported(tmp_path, PER_SAMPLE, TEXT_ROWS) == 0
    assert not (tmp_path / "out" / "port.md").exists()
    score = loaded(tmp_path / "out" / "verl_reward.py")
    row = rows_of(tmp_path / "out" / "train.parquet")[3]
    words, _ = words_of(tmp_path / "out" / "run.sh", tmp_path / "bin")
    assert f"data.train_files=[{tmp_path}/out/train.parquet,{tmp_path}/out/train.parquet]" in words  # 8 rows of 16
    by_pandas = pandas.read_parquet(tmp_path / "out" / "train.parquet").iloc[3]  # lists are arrays there
    for text, expected in (("3 apples, 3 kg", 2.0), ("4 kg of 3", 1.0), ("none", 0.0)):
        for found in (row, by_pandas):
            assert score("d", text, found["reward_model"]["ground_truth"], found["extra_info"])["score"] == expected
    assert verl.row_columns(by_pandas) == verl.row_columns(row)


def test_a_reward_that_raises_for_some_rows_stands_in_port_md(tmp_path, capsys):
    """verl drops such rows in silence, so the ones that were scored must not hide it."""
    raising = RUN.replace("    lengths = [", "    1 / ('9' not in kwargs['answer'][0])\n    lengths = [")
    page, errors = exported_run(tmp_path, text=raising, code=3), capsys.readouterr().err
    assert "ZeroDivisionError" in errors and "the files are written; try fixing it" in errors
    assert re.search(r"^- in a trial the reward raised .*ZeroDivisionError", page, re.MULTILINE)
    assert re.search(r"^- The reward was tried: \d+ completions of 36 rows", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("reward", "flags", "message"),
    [
        (PER_SAMPLE, "--missing_eos_penalty=1", "missing_eos_penalty 1"),
        (PER_SAMPLE, "--nodes=2", "nodes 2"),
        (PER_SAMPLE.replace("def near", "async def near"), "", "plain functions"),
        (PER_SAMPLE, "--algorithm=maxrl", "advantage maxrl"),
        (PER_SAMPLE, "--print", "expected one of"),
        (PER_SAMPLE, "--reward={}/r.py:near*3", "plain functions"),  # of two weights
        ("from beside import UNIT\n" + PER_SAMPLE, "", "which imports beside.py"),
        ("WEIGHTS = {'kg': 1}\n" + PER_SAMPLE.replace("meta['unit']", "list(WEIGHTS)[0]"), "", "the names WEIGHTS"),
    ],
)
def test_what_does_not_stand_alone_is_refused(tmp_path, capsys, reward, flags, message):
    (tmp_path / "beside.py").write_text("UNIT = 'kg'\n")
    assert exported(tmp_path, reward, TEXT_ROWS, *flags.format(tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert message in error and "expected" in error and not (tmp_path / "out").exists()


def test_a_folder_with_files_of_these_names_is_left_alone(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.sh").write_text("mine")
    assert exported(tmp_path, PER_SAMPLE, TEXT_ROWS) == 2
    assert "which has run.sh" in capsys.readouterr().err and (tmp_path / "out" / "run.sh").read_text() == "mine"


def test_a_key_that_verl_does_not_have_is_refused(tmp_path, capsys, untried):
    assert exported(tmp_path, PER_SAMPLE, TEXT_ROWS, "--override=data.train_fles=x.parquet") == 2
    error = capsys.readouterr().err
    assert "data.train_fles=x.parquet" in error and "try data.train_files" in error and not (tmp_path / "out").exists()
    assert exported(tmp_path, PER_SAMPLE, TEXT_ROWS, "--override=+data.new=1") == 0
