"""Settings that do nothing: named at the start, and only where they do nothing."""

import pytest
from conftest import EVAL_DATA, FEW, TINY_LM, load_script

from parts.learning.idle_settings import idle_settings
from parts.learning.presets import PRESETS


def notes(capsys, name: str, *flags: str) -> list[str]:
    """The lines of a dry run about settings without effect."""
    data = [] if any(flag.startswith("--data=") for flag in flags) else FEW
    assert load_script(name).main([*data, *flags, "--dry_run"]) == 0
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]


DISTILLATION = "on_policy_distillation"
CASES = {
    "clip with one update": ("ppo_train", "--algorithm=grpo --clip_eps_high=0.28", "clip_eps_high", "--minibatches"),
    "a preset's clip": ("ppo_train", "--algorithm=dapo --minibatches=1", "clip_eps_high 0.28", "--minibatches"),
    "a loss of ratios": ("ppo_train", "--algorithm=grpo --loss=gspo", "loss gspo", "--minibatches"),
    "KL without weight": ("ppo_train", "--algorithm=dr_grpo --kl_estimator=k2", "kl_estimator k2", "--kl_coef"),
    "horizon without target": ("ppo_train", "--kl_horizon=50", "kl_horizon 50", "--kl_target"),
    "LoRA's scale": ("ppo_train", "--lora_alpha=8", "lora_alpha 8.0", "--lora_rank"),
    "bounds of no correction": ("ppo_train", "--mismatch_low=0.4", "mismatch_low 0.4", "--mismatch"),
    "nothing held out": ("ppo_train", f"--data={EVAL_DATA} --eval_every=5", "eval_every 5", "--eval_data"),
    "TRL's clip": ("grpo_train", "--epsilon_high=0.28", "epsilon_high 0.28", "--num_iterations"),
    "steps beside stages": ("grpo_train", "--stages=format:3 --steps=2", "steps 2", "other --stages"),
    "TRL's dropout": ("grpo_train", "--lora_dropout=0.1", "lora_dropout 0.1", "--lora_rank"),
    "a divergence's clip": (DISTILLATION, f"--teacher={TINY_LM} --clip_eps_low=0.3", "clip_eps_low", "--objective"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_setting_without_effect_is_named_with_what_makes_it_act(case, capsys):
    name, flags, setting, remedy = CASES[case]
    [line] = notes(capsys, name, *flags.split())
    assert line.startswith(f"note: {setting}") and f"try {remedy}" in line


@pytest.mark.parametrize(
    "flags",
    [
        "--algorithm=grpo",
        "--algorithm=grpo --clip_eps_high=0.28 --minibatches=4",
        "--clip_eps_high=0.28",
        "--algorithm=dr_grpo --kl_estimator=k2 --kl_coef=0.1",
        "--lora_rank=4 --lora_alpha=8",
        "--eval_every=5",
        "--mismatch_low=0.4 --mismatch=icepop",
    ],
)
def test_a_setting_that_acts_is_not_named(flags, capsys):
    assert notes(capsys, "ppo_train", *flags.split()) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_preset_is_named_for_acts(preset):
    config = load_script("ppo_train").Config(algorithm=preset)
    assert idle_settings(config, config.ppo_epochs * config.minibatches, PRESETS[preset]) == []
