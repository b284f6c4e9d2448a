"""Settings that do nothing: named at the start, and only where they do nothing."""

import pytest
import torch
from conftest import EVAL_DATA, TINY_LM, load_script
from safetensors.torch import load_file

from parts.learning.idle_settings import idle_settings
from parts.learning.presets import PRESETS


def notes(capsys, name: str, *flags: str) -> list[str]:
    """The lines of a dry run about settings without effect."""
    assert load_script(name).main([*flags, "--dry_run"]) == 0
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


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """weights(*flags) -> the policy after two steps of 16 completions whose scores differ."""
    folder = tmp_path_factory.mktemp("weights")
    (folder / "pay.py").write_text("def pay(prompt, completion):\n    return sum(map(ord, completion)) % 7 / 7\n")
    script = load_script("ppo_train")

    def run(*flags: str) -> torch.Tensor:
        out = folder / f"run{len(list(folder.iterdir()))}"
        sizes = "--steps=2 --batch_size=16 --max_new_tokens=6 --plot_every=0 --save_every=0 --precision=fp32".split()
        data = [f"--data={EVAL_DATA}", f"--reward={folder / 'pay.py'}:pay", f"--output_dir={out}"]
        assert script.main([*sizes, "--device=cpu", *data, *flags]) == 0
        return torch.cat([x.flatten() for x in load_file(out / "final" / "model.safetensors").values()])

    return run


VALUES = {  # two values that differ where they act, with the preset and the updates per rollout
    "clip_eps_high": ("grpo", "0.0001", "0.5"),
    "clip_eps_low": ("grpo", "0.0001", "0.5"),
    "loss": ("grpo", "clip", "cispo"),
    "sapo_tau_pos": ("sapo", "0.2", "20"),
    "kl_cov_coef": ("kl_cov", "0.5", "50"),
    "value_clip": ("ppo", "0.0001", "5"),
}


@pytest.mark.long
@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize("name", VALUES)
def test_two_values_give_other_weights_or_the_line_is_there(name, minibatches, weights, capsys):
    preset, *values = VALUES[name]
    more = {"kl_cov": ["--cov_frac=0.5"], "sapo": ["--lr=0.01"], "ppo": ["--ppo_epochs=1"]}.get(preset, [])
    more += [f"--algorithm={preset}", f"--minibatches={minibatches}"]
    found = [weights(*more, f"--{name}={value}") for value in values]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ") and name in line]
    assert bool(told) == (minibatches == 1)
    difference = (found[0] - found[1]).abs().max().item()
    assert difference < 1e-6 if told else difference > 1e-6
