"""One setting by several names: understood where they mean the same; else the relation is told."""

import json

import pytest
from conftest import load_script, run_script

from parts.foundation.dialect import in_own_words, own_name


def parse(program, words):
    script = load_script(program)
    return script.parse_config(words.split())


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("ppo_train", "--learning_rate 3e-4 --num-generations=4", {"lr": 3e-4, "group_size": 4}),
        ("ppo_train", "--output_dir a --beta 0.5 --reward_funcs r.py:f", {"kl_coef": 0.5, "reward": ["r.py:f"]}),
        ("ppo_train", "--out a --algorithm grpo --max_steps 7 --save_steps 3", {"steps": 7, "save_every": 3}),
        ("ppo_train", "--epsilon 0.3", {"clip_eps_low": 0.3, "clip_eps_high": 0.3}),  # TRL's bounds both sides
        ("ppo_train", "--epsilon 0.3 --epsilon_high 0.4", {"clip_eps_low": 0.3, "clip_eps_high": 0.4}),
        ("grpo_train", "--lr 3e-4 --group_size 4 --kl_coef 0.5", {"learning_rate": 3e-4, "beta": 0.5}),
        ("grpo_train", "--max_new_tokens 9 --output o --max_steps 5", {"max_completion_length": 9, "steps": 5}),
        ("on_policy_distillation", "--beta 0.2 --kl_coef 2", {"beta": 0.2, "kl_coef": 2}),
        ("warm_start", "--learning_rate 3e-4 --num_train_epochs 3", {"lr": 3e-4, "epochs": 3}),
        ("evaluation", "--group_size 4 --max_completion_length 9 --out o", {"n": 4, "max_new_tokens": 9}),
        ("verl_train", "--learning_rate 3e-4 --num_generations 4 --print", {"lr": 3e-4, "group_size": 4}),
    ],
)  # fmt: skip
def test_the_other_name_is_understood(program, words, expected):
    config = parse(program, words)
    assert {name: getattr(config, name) for name in expected} == expected


def test_keys_of_a_settings_file_too(tmp_path):
    (tmp_path / "a.yaml").write_text("learning_rate: 1e-4\nepsilon_high: 0.28\nnum_generations: 4\n")
    config = parse("ppo_train", f"--config {tmp_path}/a.yaml --lr 3e-4 --epsilon 0.1")
    found = (config.lr, config.clip_eps_low, config.clip_eps_high, config.group_size)
    assert found == (3e-4, 0.1, 0.28, 4)  # the flag wins; what the file gives stays
    (tmp_path / "a.yaml").write_text("batch_size: 128\n")
    with pytest.raises(load_script("grpo_train").UserError, match="try --per_device_train_batch_size 16"):
        parse("grpo_train", f"--config {tmp_path}/a.yaml")


@pytest.mark.parametrize(
    ("program", "words", "told"),
    [
        ("ppo_train", "--lr 1 --learning_rate 2", "got --lr 1 and --learning_rate 2, two names of one setting"),
        ("grpo_train", "--group-size=4 --num_generations 8", "got --group_size 4 and --num_generations 8"),
        ("ppo_train", "--per_device_train_batch_size 16 --gradient_accumulation_steps 8", "; try --batch_size 128"),
        ("grpo_train", "--batch_size 64", "try --per_device_train_batch_size 8 --gradient_accumulation_steps 8"),
        ("ppo_train", "--prompts 16", "batch_size = prompts x group_size"),
        ("ppo_train", "--max_steps 8", "whose steps are ppo_epochs 2 x minibatches 1 of them each; try --steps 4"),
        ("ppo_train", "--algorithm cispo --epsilon_high 5", "--clip_eps_high: epsilon_high = 1 + clip_eps_high"),
        ("ppo_train", "--num_train_epochs 3", "steps = num_train_epochs x rows"),
        ("ppo_train", "--answer_column gold", "a reward names its columns: def reward(prompt, completion, COLUMN)"),
        ("evaluation", "--prompt_column Frage", "try data_loader.py, --map prompt=COLUMN answer=COLUMN"),
        ("ppo_train", "--top_p 0.9", "unsupported: the loss takes log-probs of the whole distribution"),
        ("ppo_train", "--adv_estimator gae", "OpenRLHF's gae is --algorithm ppo, group_norm is grpo"),
        ("verl_train", "--slurm", "try --print, and `ray job submit"),
        ("verl_train", "--gpu_memory 80", "removed: the page verl_training.md"),
    ],
)  # fmt: skip
def test_another_unit_or_two_values_are_told(program, words, told, capsys):
    script = load_script(program)
    with pytest.raises((SystemExit, script.UserError)) as caught:
        parse(program, words)
    assert told in str(caught.value) + capsys.readouterr().err


def test_words_are_renamed_and_no_others():
    words = "file --lr 1e-5 --learning_rate=0.00001 --data --learning-rate 1e-5 --unknown 1"
    expected = "file --lr 1e-5 --lr=0.00001 --data --lr 1e-5 --unknown 1"
    assert in_own_words(words.split(), ["lr", "data"]) == expected.split()
    assert own_name("beta", ["beta", "kl_coef"]) == "beta" and own_name("samples", ["n"]) == ""


@pytest.mark.long  # a page imports torch
def test_a_page_by_new_trainer_and_its_own_words(tmp_path, capsys):
    new = load_script("new_trainer")
    words = "--learning_rate 0.003 --num_generations 4 --beta 0.02 --epsilon 0.3"
    assert new.main(["grpo", f"{tmp_path}/mine.py", *words.split()]) == 0
    page = (tmp_path / "mine.py").read_text()
    for line in ("lr: float = 0.003", "group_size: int = 4", "clip_eps_low: float = 0.3", "clip_eps_high: float = 0.3"):
        assert f"    {line}" in page
    assert json.loads(capsys.readouterr().out)["changes"] == ["kl"]
    assert new.main(["ppo", f"{tmp_path}/b.py", "--max_steps", "16"]) == 2
    assert "epochs 2 x minibatches 4 of them each; try --steps 2" in capsys.readouterr().err
    done = run_script(tmp_path / "mine.py", *"--model a --data b --reward c --learning_rate 1".split())
    assert done.returncode == 1 and "got --learning_rate" in done.stderr and "learning_rate is --lr" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("flag", "hint"), [("--bogus", ""), ("--batchsize", "; try --batch_size")])
def test_only_a_near_flag_is_suggested(flag, hint, capsys):
    with pytest.raises(SystemExit):
        parse("ppo_train", flag)
    assert capsys.readouterr().err.endswith(f"got unknown argument '{flag}'; expected a flag of --help{hint}\n")
