"""Estimators and losses of a user's file: the same run as by the known ones, what they are given, and bad ones."""

import json

import pytest
import torch
from conftest import FEW, ROOT, TINY_LM, load_script
from safetensors.torch import load_file

from parts.foundation.messages import UserError
from parts.learning.advantages import ADVANTAGES
from parts.learning.losses import LOSSES, PolicyLoss
from parts.learning.own_functions import KNOWN, OwnFunction, own_function
from parts.learning.presets import GROUPED, check_config, is_own
from programs.ppo_train.settings import Config, parse_config

REWARD = f"{ROOT / 'examples' / 'reward_functions_library.py'}:correctness_reward"
IDEA = '''
import torch

def centred(scores, groups):
    """R - mean_g, as the estimator `mean`."""
    return scores - torch.stack([scores[groups == g].mean() for g in groups])

def clipped(logprobs, old_logprobs, advantages, config):
    """The loss `clip` without its dual bound."""
    ratio = (logprobs - old_logprobs).exp()
    bound = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)
    loss = torch.maximum(-advantages * ratio, -advantages * bound)
    return loss, loss != -advantages * ratio

def plain(logprobs, advantages, **others):
    assert sorted(others) == ["config", "mask", "old_logprobs"]
    return -advantages * logprobs

def zeroes(mask, **others):
    rewards, old = others.get("rewards"), others.get("old_logprobs")
    result = rewards + 1 if old is None else others["logprobs"] * 2
    for x in (mask, rewards if old is None else old):
        x.zero_()
    return result

tokens = lambda scores, mask: scores[:, None] * mask
raises = lambda scores: scores["gold"]
wide = lambda scores: torch.zeros(3, 4, 5)
bad = lambda scores: scores / 0
graph = lambda scores: scores * torch.ones(1, requires_grad=True)
infinite = lambda logprobs: logprobs / 0
lost = lambda logprobs: logprobs.detach()
placed = lambda scores, /: scores
needs = lambda scores, values: scores
number = lambda scores: 1.0
'''
SIZES = [*FEW, *"--steps=2 --batch_size=16 --max_new_tokens=8 --plot_every=0 --eval_every=0 --save_every=0".split()]


@pytest.fixture
def idea(tmp_path, monkeypatch, ppo):
    """A folder with idea.py; what it entered into the tables, of src/ and of the built script, goes with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "idea.py").write_text(IDEA)
    yield tmp_path
    for table in (ADVANTAGES, LOSSES, ppo.ADVANTAGES, ppo.LOSSES):
        for name in [name for name in table if is_own(name)]:
            del table[name]
    for names in (GROUPED, ppo.GROUPED):
        names.difference_update([name for name in names if is_own(name)])


def given(length=5) -> dict:
    """What the trainer hands over, for four completions in two groups."""
    shape, torch_rng = (4, length), torch.Generator().manual_seed(0)
    logprobs = -torch.rand(shape, generator=torch_rng)
    known = {"scores": torch.tensor([1.0, 0.0, 1.0, 1.0]), "groups": torch.tensor([0, 0, 1, 1])}
    known |= {"rewards": torch.zeros(shape), "mask": torch.ones(shape), "old_logprobs": logprobs - 0.1}
    return known | {"logprobs": logprobs.requires_grad_(), "advantages": torch.ones(shape), "config": Config()}


def of(kind: str, name: str) -> OwnFunction:
    return own_function(kind, f"idea.py:{name}")


def called(kind: str, name: str):
    return of(kind, name)(**{key: value for key, value in given().items() if key in KNOWN[kind]})


@pytest.mark.long
def test_a_run_by_own_functions_is_that_of_the_known_ones(idea, ppo):
    """With several updates a batch, so that the clip acts, and is counted."""
    flags = ["--algorithm=dr_grpo", "--minibatches=2", "--ppo_epochs=2", "--dual_clip=0", "--group_size=4", *SIZES]
    flags += ["--max_new_tokens=24", "--batch_size=32", "--lr=1e-3"]
    runs = {"known": [], "own": ["--advantage=idea.py:centred", "--loss=idea.py:clipped"]}
    lines = {}
    for name, more in runs.items():
        assert ppo.main([*flags, *more, f"--output_dir={idea / name}"]) == 0
        lines[name] = [json.loads(line) for line in (idea / name / "metrics.jsonl").read_text().splitlines()]
    # shares of tokens differ, as the clip leaves rows of advantage 0 out, and an own loss may need them
    keys = ("policy/loss", "optim/grad_norm", "reward/mean", "rollout/length_mean")
    for known, own in zip(lines["known"], lines["own"], strict=True):
        assert [own.get(k, 0) for k in keys] == pytest.approx([known.get(k, 0) for k in keys], rel=1e-4, abs=1e-7)
    assert lines["own"][-1]["policy/clip_frac"] > 0 and lines["own"][-1]["optim/grad_norm"] > 0
    folders = (TINY_LM, idea / "known/final", idea / "own/final")
    start, known, own = (load_file(folder / "model.safetensors") for folder in folders)
    moved = max((known[name] - start[name]).abs().max() for name in start)
    assert moved > 1e-3 and all(torch.allclose(known[name], own[name], atol=1e-3 * moved) for name in start)
    config = json.loads((idea / "own" / "config.json").read_text())
    assert (config["advantage"], config["loss"]) == ("idea.py:centred", "idea.py:clipped")


def test_what_they_are_given_and_give(idea):
    assert called("advantage", "centred").tolist() == [0.5, -0.5, 0.0, 0.0]
    assert called("advantage", "tokens").shape == (4, 5)
    loss, clipped = called("loss", "clipped")
    ratio = torch.tensor(0.1).exp()  # above no bound of 1 + 0.2
    assert torch.allclose(loss, -ratio) and clipped.sum() == 0 and not clipped.requires_grad
    loss, clipped = called("loss", "plain")
    assert loss.requires_grad and clipped.shape == loss.shape and not clipped.any()
    assert called("loss", "infinite")[0].isinf().all(), "the trainer leaves such updates out, and counts them"


@pytest.mark.parametrize("kind", KNOWN)
def test_what_one_changes_in_place_stays_as_it_was(idea, kind):
    """The trainer weighs the result by the mask, and measures the ratio, after the call."""
    known = {key: value for key, value in given().items() if key in KNOWN[kind]}
    known |= {"rewards": torch.ones(4, 5)} if kind == "advantage" else {}
    before = {key: value.clone() for key, value in known.items() if key != "config"}
    of(kind, "zeroes")(**known)
    assert all(torch.equal(known[key], value) for key, value in before.items())


def test_they_are_entered_by_their_spec(idea):
    config = Config(algorithm="grpo", advantage="idea.py:centred", loss="idea.py:plain", clip_eps_high=0.5)
    check_config(config)  # the clip's bounds may be what an own loss reads
    assert isinstance(LOSSES["idea.py:plain"], PolicyLoss) and LOSSES["idea.py:plain"].trains_zero_advantage
    assert "idea.py:centred" in GROUPED and ADVANTAGES["idea.py:centred"].names == ["scores", "groups"]
    with pytest.raises(UserError, match=r"got advantage .* with group_size 1"):
        check_config(Config(advantage="idea.py:centred", group_size=1))
    Config(advantage="idea.py:tokens")
    assert "idea.py:tokens" not in GROUPED
    assert parse_config(["--advantage", "idea.py:tokens", "--algorithm", "rloo"]).advantage == "idea.py:tokens"


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("advantage", "raises", r"raises IndexError: .*\(idea.py, line 27\)"),
        ("advantage", "wide", r"got a tensor \[3, 4, 5\] from advantage idea.py:wide; expected \[4\] or \[4, 5\]"),
        ("advantage", "bad", "got NaN or infinite advantages from idea.py:bad"),
        ("advantage", "graph", "got advantages with a gradient from idea.py:graph"),
        ("advantage", "needs", "which needs values; expected parameters among scores, groups, rewards, mask, config"),
        ("advantage", "placed", "idea.py:placed', which takes scores by position; try it without the /"),
        ("advantage", "none", "idea.py has no function 'none'"),
        ("advantage", "number", "got float from advantage idea.py:number; expected a tensor"),
        ("loss", "centred", "which needs scores, groups; expected parameters among logprobs, old_logprobs"),
        ("loss", "lost", "got a loss without a gradient from idea.py:lost"),
    ],
)
def test_a_bad_one_is_named(idea, kind, name, said):
    with pytest.raises(UserError, match=said):
        called(kind, name)


def test_bad_flags_end_before_anything_is_written_and_what_raises_ends_the_run(idea, ppo, capsys):
    for value, said in (("none.py:f", "no file 'none.py'"), ("idea.py:none", "no function 'none'")):
        assert ppo.main(["--loss", value, "--output_dir", str(idea / "run")]) == 2
        assert said in capsys.readouterr().err and not (idea / "run").exists()
    with pytest.raises(SystemExit):
        ppo.main(["--advantage", "nonsense", "--output_dir", str(idea / "run")])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err
    assert ppo.main(["--advantage=idea.py:raises", *SIZES, f"--output_dir={idea / 'run'}"]) == 2
    assert "raises IndexError" in capsys.readouterr().err


def test_verl_takes_them_along(idea, monkeypatch, capsys):
    verl = load_script("verl_train")
    monkeypatch.setattr(verl, "GROUPED", set(verl.GROUPED))
    flags, job = [*FEW, f"--reward={REWARD}", "--algorithm=grpo", "--output_dir=out", "--print"], idea / "out" / "job"
    assert verl.main([*flags, "--advantage=idea.py:centred", "--loss=idea.py:clipped"]) == 0
    printed = capsys.readouterr().out
    assert "algorithm.adv_estimator=own_ours" in printed and "policy_loss.loss_mode=own_ours" in printed
    for kind in KNOWN:
        assert (job / f"own_{kind}" / "idea.py").read_text() == (idea / "idea.py").read_text()
    assert "own_loss/idea.py:clipped" in (job / "job.json").read_text()
    assert verl.main(flags) == 0  # nothing of them is left
    assert "own_ours" not in capsys.readouterr().out and not [*job.glob("*own_*")]
