"""templates/losses.py: the trainers' own losses, which test_algorithms.py compares with the papers' formulas."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, load_module

from parts.learning import losses as parts
from programs.ppo_train.settings import Config

page = load_module(ROOT / "templates" / "losses.py", "pasted_losses")
MASK = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]])


def drawn(seed: int = 0):
    """Log-probs, old ones and advantages in float64; the ratios lie around both bounds."""
    generator = torch.Generator().manual_seed(seed)
    old = -2 * torch.rand(4, 4, generator=generator, dtype=torch.float64) - 0.1
    new = old + 0.5 * torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return new, old, torch.tensor([1.3, -0.7, 0.4, -1.1], dtype=torch.float64)


CLIPPED = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
POLICY_LOSSES = {  # name: settings, those of the trainers beside them
    "clip": (CLIPPED, {"dual_clip": 0.0}),
    "clip, dual": (CLIPPED | {"dual_clip": 1.25}, {}),
    "gspo": ({"clip_eps_low": 0.03, "clip_eps_high": 0.04}, {}),
    "cispo": ({"clip_eps_low": 0.5, "clip_eps_high": 0.3}, {}),
    "sapo": ({}, {}),
    "gmpo": (CLIPPED, {}),
    "reinforce": ({}, {}),
}


@pytest.mark.parametrize("case", POLICY_LOSSES)
def test_each_policy_loss_and_its_gradient_are_the_trainers(case):
    (given, more), name = POLICY_LOSSES[case], case.partition(",")[0]
    new, old, advantages = drawn()
    wide, leaves = advantages[:, None].expand(4, 4), [new.clone().requires_grad_() for _ in range(2)]
    config = Config(algorithm="grpo", loss=name, **given, **more)
    expected, changed = parts.LOSSES[name](
        logprobs=leaves[0], old_logprobs=old, advantages=wide * MASK, mask=MASK, config=config
    )
    got = getattr(page, name)(leaves[1], old, advantages, MASK, **given)
    torch.testing.assert_close(got, expected * MASK, rtol=1e-12, atol=0)
    for loss in (got, expected * MASK):
        loss.sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-10, atol=1e-12)
    assert torch.equal(getattr(page, name)(new, old, wide, MASK.bool(), **given), got)
    if name == "clip":
        found = page.clip_fraction(new, old, advantages, MASK, **given)
        assert found.item() == pytest.approx((changed * MASK).sum().item() / MASK.sum().item()) and 0 < found < 1


@pytest.mark.parametrize("name", page.PAPERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_lies_beneath_the_mask_reaches_neither_loss_nor_gradient(name, bad):
    new, old, advantages = drawn()
    wide, hidden, found = advantages[:, None].expand(4, 4), ~MASK.bool(), []
    for given in ((new, old, wide), tuple(x.masked_fill(hidden, bad) for x in (new, old, wide))):
        leaf = given[0].clone().requires_grad_()
        loss = page.paper_loss(name, leaf, *given[1:], MASK, norm_length=4)
        loss.backward()
        found.append((loss.detach(), leaf.grad))
    (loss, grad), (bad_loss, bad_grad) = found
    assert torch.equal(loss, bad_loss) and torch.equal(grad, bad_grad) and grad[hidden].eq(0).all() and grad.any()


def test_kl_and_value_terms_are_their_formulas_with_nan_beneath_the_mask():
    new, ref, _ = drawn()
    d, hidden = new - ref, ~MASK.bool()
    dirty = [x.masked_fill(hidden, math.nan) for x in (new, ref)]
    formulas = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}
    for name, expected in formulas.items():
        torch.testing.assert_close(page.kl(*dirty, MASK, name), torch.where(hidden, 0, expected), rtol=1e-12, atol=0)
    old = ref + 0.1
    got = page.kl(*dirty, MASK, "k3", old_logprobs=old)
    expected = parts.kl_loss(new, old, ref, "k3_ratio")
    torch.testing.assert_close(got, torch.where(hidden, 0, expected), rtol=1e-12, atol=0)
    # values 1, 3; old 0, 3; returns 2, 1; clip 0.5: near 0.5, 3 -> max(1, 2.25) / 2, max(4, 4) / 2
    values, old, returns = (torch.tensor([[*x, math.nan]]) for x in ([1.0, 3.0], [0.0, 3.0], [2.0, 1.0]))
    mask = torch.tensor([[1, 1, 0]])
    assert page.value_loss(values, old, returns, mask, 0.5).tolist() == [[1.125, 2.0, 0.0]]
    assert page.value_loss(values, old, returns, mask).tolist() == [[0.5, 2.0, 0.0]]


def test_a_ratio_is_bounded_only_where_asked_and_never_makes_nan():
    old = torch.zeros(1, 3)
    new = torch.tensor([[25.0, 200.0, -200.0]])
    ones = torch.ones(1, 3)
    assert page.clip(new, old, -ones, ones)[0, 0].item() == pytest.approx(math.exp(25), rel=1e-6)
    assert page.clip(new, old, -ones, ones, log_ratio_bound=20.0)[0, 0].item() == pytest.approx(math.exp(20), rel=1e-6)
    for name in ("ppo", "ppo_dual_clip", "gspo", "cispo", "sapo"):
        for advantages in (ones, -ones, 0 * ones):
            leaf = new.clone().requires_grad_()
            loss = page.paper_loss(name, leaf, old, advantages, ones)
            loss.backward()
            assert loss.isfinite() and leaf.grad.isfinite().all(), name


def test_a_mean_over_rows_leaves_empty_ones_out_or_counts_them():
    loss = torch.arange(16.0).view(4, 4)  # kept: 1 + 2 + 3, 4, none, 12 + 13 + 15
    expected = {"token_mean": 50 / 7, "seq_mean_token_mean": (2 + 4 + 40 / 3) / 3, "seq_mean_token_sum": 50 / 3}
    for how, value in expected.items():
        assert page.aggregate(loss, MASK, how).item() == pytest.approx(value, rel=1e-6), how
    counted = page.aggregate(loss, MASK, "seq_mean_token_mean", empty_rows="count")
    assert counted.item() == pytest.approx((2 + 4 + 40 / 3) / 4, rel=1e-6)
    norm = page.aggregate(loss, MASK, "seq_mean_token_sum_norm", "count", norm_length=10)
    assert norm.item() == pytest.approx(50 / 40, rel=1e-6)
    leaf = loss.clone().requires_grad_()
    nothing = page.aggregate(leaf * math.nan, 0 * MASK, "seq_mean_token_mean")
    nothing.backward()
    assert nothing.item() == 0


@pytest.mark.parametrize("how", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
def test_parts_of_a_minibatch_add_up_and_counting_is_what_the_trainers_do(how):
    loss = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    given = {"how": how, "norm_length": 6}
    whole = page.aggregate(loss, MASK, **given)
    pieces = [page.aggregate(loss[x], MASK[x], tokens=7, rows=3, **given) for x in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(sum(pieces), whole)
    config = SimpleNamespace(aggregation=how, max_new_tokens=6, norm_length=0)
    counted = page.aggregate(loss, MASK, empty_rows="count", **given)
    torch.testing.assert_close(counted, (loss * parts.token_weights(MASK, config, 7, 4)).sum())
