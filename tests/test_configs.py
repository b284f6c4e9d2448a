"""The annotated settings in assets/ load into their trainers, which read every key and refuse what is wrong."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import ASSETS, ROOT, TINY_LM, load_script

FILES = {"ppo_train": "training_config.yaml", "grpo_train": "trl_grpo_config.yaml"}
FILES |= {"on_policy_distillation": "distillation_config.yaml", "verl_train": "verl_config.yaml"}
KEY = re.compile(r"^(?:# )?([a-z_0-9]+):(?: |$)", re.MULTILINE)

trainers = pytest.mark.parametrize("name", FILES)
complete = pytest.mark.parametrize("name", [name for name in FILES if name != "verl_train"])


def parse(name: str, *argv):
    """The settings of a trainer's command line, as its main() reads them."""
    script, argv = load_script(name), list(map(str, argv))
    if name == "verl_train":
        return script.parse_config(script.hardware_flags(argv) + argv)
    return script.parse_config(argv)


def fields(name: str) -> list[str]:
    """Settings of a trainer."""
    return [f.name for f in dataclasses.fields(load_script(name).Config)]


def text(name: str) -> str:
    """A trainer's annotated settings."""
    return (ASSETS / FILES[name]).read_text(encoding="utf-8")


@complete
def test_file_names_every_setting_once(name):
    assert sorted(KEY.findall(text(name))) == sorted(fields(name))


@complete
def test_values_are_the_defaults_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse(name, "--config", ASSETS / FILES[name]) == load_script(name).Config()


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "gsm8k").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_settings_of_an_example_are_read(file):
    reward = f"{ROOT / 'examples' / 'reward_functions_library.py'}:math_equivalence"
    name = "verl_train" if file.stem.startswith("verl") else "ppo_train"
    config = parse(name, "--config", file, "--model", TINY_LM, "--data", "train.jsonl", "--reward", reward)
    assert config.steps == yaml.safe_load(file.read_text(encoding="utf-8"))["steps"]


def test_verl_file_names_settings_and_all_that_only_verl_has():
    keys = KEY.findall(text("verl_train"))
    assert len(set(keys)) == len(keys) and set(keys) <= set(fields("verl_train"))
    beside = {"from_trl", "trl_processes", "export"}  # in the place of such a file
    assert set(fields("verl_train")) - set(fields("ppo_train")) - beside <= set(keys)
    assert {"hardware", "verl_rollout", "offload", "override", "ship"} <= set(keys)


def test_verl_reads_the_file_of_ppo_train_too(tmp_path):
    path = ASSETS / FILES["ppo_train"]
    ours, verls = parse("ppo_train", "--config", path), parse("verl_train", "--config", path)
    left_out = {"output_dir", "precision"}  # verl_train.py puts in what auto stands for at once
    assert all(getattr(verls, n) == getattr(ours, n) for n in set(fields("ppo_train")) - left_out)


@trainers
def test_commented_lines_are_settings_too(name):
    """Every `# key: value` becomes valid by taking its mark away."""
    commented = re.findall(r"^# ([a-z_0-9]+: .*?|[a-z_0-9]+:)(?: +#.*)?\n((?:#   - .*\n)*)", text(name), re.MULTILINE)
    assert len(commented) > 3
    for line, items in commented:
        ((key, value),) = yaml.safe_load(line + "\n" + items.replace("# ", "", -1)).items()
        values = value if isinstance(value, list) else [value]
        assert values != [None], line
        script = load_script(name)
        parser = script.build_parser(script.Config, "")
        words = [f"--{key}={'true' if item is True else item}" for item in values]
        assert getattr(parser.parse_args(words), key) is not None


@pytest.fixture
def load(tmp_path, capsys):
    """Write a settings file and load it: returns the config, or (exit code, what was said)."""

    def write_and_load(content: str, *flags, name: str = "ppo_train"):
        path = tmp_path / "mine.yaml"
        path.write_text(content)
        script = load_script(name)
        try:
            return parse(name, "--config", path, *flags)
        except script.UserError as error:
            return error.code, str(error)
        except SystemExit as stop:
            return stop.code, capsys.readouterr().err

    return write_and_load


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("steps: 4.5\n", r"mine\.yaml: got steps '4\.5'; expected a whole number$"),
        ("gradient_checkpointing: perhaps\n", "got gradient_checkpointing 'perhaps'; expected true or false$"),
        ("learning_rate: fast\n", r"mine\.yaml: got learning_rate 'fast'; expected a number$"),  # as it is written
        ("steps: [1, 2]\n", r"mine\.yaml: got a list of values for 'steps'"),
        ("steps: 1\nseed: 1\nsteps: 2\n", r"mine\.yaml: got the key 'steps' twice"),
        ("precision: fp64\n", r"mine\.yaml: got precision 'fp64'; expected one of auto, fp32, bf16, fp16$"),
        ("torch_dtype: x\ntemprature: 1\n", "unknown keys 'torch_dtype', 'temprature'.*--precision.*; try temp"),
        ("steps:\n", "got no value for 'steps'"),
        ("- steps\n", "without 'key: value' lines"),
    ],
)
def test_wrong_yaml_is_refused(load, content, says):
    code, said = load(content)
    assert code == 2 and re.search(says, said) and "\n" not in said


def test_flags_win_and_lists_repeat(load):
    config = load("steps: 3\nseed: 4\nchat: on\nreport_to: [wandb, trackio]\n", "--steps", "5")
    assert (config.steps, config.seed, config.chat, config.report_to) == (5, 4, True, ["wandb", "trackio"])
    assert load("report_to: [wandb]\n", "--report_to", "trackio").report_to == ["trackio"]
    assert load("chat: on\n", "--chat=false").chat is False and load("chat: off\n", "--chat").chat is True
    for name in ("ppo_train", "grpo_train", "on_policy_distillation", "warm_start"):
        saved = load_script(name).Config()
        assert load(json.dumps(dataclasses.asdict(saved)), name=name) == saved  # config.json of a run
    home = load("model: ~/m\nreport_to: none\nreward: [~/r.py:f, '~x']\n")
    assert (home.model, home.report_to) == (str(Path.home() / "m"), [])
    assert home.reward == [f"{Path.home()}/r.py:f", "~x"]
    assert load("seed: 1\n", "--stop", "none", name="evaluation").stop == ["none"]
    for flags, value in ((["--gradient_checkpointing"], "true"), (["--gradient_checkpointing", "false"], "false")):
        assert load("steps: 3\n", *flags, name="grpo_train").gradient_checkpointing == value
    assert load("lr: 5e-6\n").lr == 5e-6 == load("learning_rate: 5e-6\n", name="grpo_train").learning_rate
