"""Settings that do nothing: named at the start, and only where they do nothing."""

import pytest
from conftest import FEW, load_script

from parts.learning.idle_settings import idle_settings
from parts.learning.presets import PRESETS, check_config
from programs.on_policy_distillation import settings as distillation
from programs.ppo_train.settings import Config, parse_config


def notes(capsys) -> list[str]:
    """What was said about settings without effect."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]


def checked(flags: str) -> None:
    """Parse and check these flags of ppo_train.py, or of the distillation where a teacher is among them."""
    if "--teacher" in flags:
        distillation.check_config(distillation.parse_config(flags.split()))
    else:
        check_config(parse_config(flags.split()))


CASES = {
    "clip with one update": ("--algorithm=grpo --clip_eps_high=0.28", "clip_eps_high 0.28", "--minibatches"),
    "a preset's clip": ("--algorithm=dapo --minibatches=1", "clip_eps_high 0.28", "--minibatches"),
    "a loss of ratios": ("--algorithm=grpo --loss=gspo", "loss gspo", "--minibatches"),
    "KL without weight": ("--algorithm=dr_grpo --kl_estimator=k2", "kl_estimator k2", "--kl_coef"),
    "LoRA's scale": ("--lora_alpha=8", "lora_alpha 8.0", "--lora_rank"),
    "bounds of no correction": ("--mismatch_low=0.4", "mismatch_low 0.4", "--mismatch"),
    "nothing held out": ("--data=train.jsonl --eval_every=5", "eval_every 5", "--eval_data"),
    "a divergence's clip": ("--teacher=x --clip_eps_low=0.3", "clip_eps_low 0.3", "--objective"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_setting_without_effect_is_named_with_what_makes_it_act(case, capsys):
    flags, setting, remedy = CASES[case]
    checked(flags)
    [line] = notes(capsys)
    assert line.startswith(f"note: {setting}") and f"try {remedy}" in line


def test_settings_of_trl_are_named(capsys):
    flags = "--epsilon_high=0.28 --lora_alpha=8"
    assert load_script("grpo_train").main([*FEW, *flags.split(), "--dry_run"]) == 0
    found = {line.partition(":")[2].partition(":")[0].strip() for line in notes(capsys)}
    assert found == {"epsilon_high 0.28", "lora_alpha 8.0"}


def test_a_setting_that_acts_is_not_named(capsys):
    checked("--algorithm=grpo --clip_eps_high=0.28 --minibatches=4 --kl_estimator=k2 --kl_coef=0.1 --eval_every=5")
    checked("--lora_rank=4 --lora_alpha=8 --mismatch_low=0.4 --mismatch=icepop")
    assert notes(capsys) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_preset_is_named_for_acts(preset):
    config = Config(algorithm=preset)
    assert idle_settings(config, config.ppo_epochs * config.minibatches, PRESETS[preset]) == []
