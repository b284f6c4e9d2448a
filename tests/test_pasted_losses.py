"""templates/losses.py: against loops in plain Python and the parts, with empty rows and nan beneath the mask."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, load_module

from parts.learning import losses as parts
from parts.learning.oracles import policy_token

page = load_module(ROOT / "templates" / "losses.py", "pasted_losses")
MASK = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
CLIPPED = {"clip": (0.2, 0.28), "gspo": (3e-2, 4e-2), "cispo": (0.5, 0.3), "gmpo": (0.2, 0.3)}


def drawn(seed: int = 0):
    """logprobs, old_logprobs and advantages in float64; the ratios lie around both bounds."""
    generator = torch.Generator().manual_seed(seed)
    old = -2 * torch.rand(4, 4, generator=generator, dtype=torch.float64) - 0.1
    new = old + 0.5 * torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return new, old, torch.tensor([1.3, -0.7, 0.4, -1.1], dtype=torch.float64)


def by_loop(name: str, new, old, advantages, low=0.0, high=0.0, dual=0.0):
    """The papers' formulas, token by token; 0 outside the mask."""
    c = {"logprobs": new, "old_logprobs": old, "advantages": advantages[:, None].expand(4, 4)}
    c |= {"low": low, "high": high, "dual_clip": dual, "tau_pos": 1.0, "tau_neg": 1.05}
    losses = torch.zeros(4, 4, dtype=torch.float64)
    for b, mask in enumerate(MASK):
        kept = mask.nonzero().flatten().tolist()
        for t in kept:
            losses[b, t] = policy_token("ppo" if name == "clip" else name, c, b, t, kept)
    return losses


@pytest.mark.parametrize("name", ["clip", "gspo", "cispo", "sapo", "gmpo", "reinforce"])
def test_each_policy_loss_is_its_formula(name):
    new, old, advantages = drawn()
    bounds = dict(zip(("clip_eps_low", "clip_eps_high"), CLIPPED.get(name, ()), strict=False))
    got = getattr(page, name)(new, old, advantages, MASK, **bounds)
    expected = by_loop(name, new, old, advantages, *CLIPPED.get(name, ()))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    for shape in (advantages[:, None], advantages[:, None].expand(4, 4)):
        assert torch.equal(getattr(page, name)(new, old, shape, MASK.bool(), **bounds), got)
    if name == "clip":
        got = page.clip(new, old, advantages, MASK, *CLIPPED["clip"], dual_clip=1.25)
        torch.testing.assert_close(got, by_loop("clip", new, old, advantages, *CLIPPED["clip"], dual=1.25))
        plain, shares = by_loop("clip", new, old, advantages, 9, 9), []
        for bounded, dual in ((expected, None), (got, 1.25)):
            shares.append((bounded - plain).abs().gt(1e-9).sum().item() / MASK.sum().item())
            found = page.clip_fraction(new, old, advantages, MASK, *CLIPPED["clip"], dual)
            assert found.item() == pytest.approx(shares[-1])
        assert 0 < shares[0] < shares[1]


def slopes(function, x, step: float = 1e-6):
    """Central differences of a function of [B, T] to a number."""
    found = torch.zeros_like(x)
    for b, t in torch.cartesian_prod(*(torch.arange(n) for n in x.shape)).tolist():
        moved = torch.zeros_like(x)
        moved[b, t] = step
        found[b, t] = (function(x + moved) - function(x - moved)) / (2 * step)
    return found


@pytest.mark.parametrize("name", ["clip", "sapo", "gmpo", "reinforce"])
def test_gradients_are_those_of_the_formula(name):
    new, old, advantages = drawn()
    bounds = CLIPPED.get(name, ())
    leaf = new.clone().requires_grad_()
    getattr(page, name)(leaf, old, advantages, MASK, *bounds).sum().backward()
    torch.testing.assert_close(
        leaf.grad, slopes(lambda x: by_loop(name, x, old, advantages, *bounds).sum(), new), rtol=1e-7, atol=1e-8
    )


def test_the_gradients_of_gspo_and_cispo_are_those_of_their_papers():
    new, old, advantages = drawn()
    leaf = new.clone().requires_grad_()
    page.paper_loss("gspo", leaf, old, advantages, MASK, clip_eps_low=0.03, clip_eps_high=0.04).backward()
    whole = slopes(lambda x: page.aggregate(by_loop("gspo", x, old, advantages, 0.03, 0.04), MASK), new)
    # GSPO, eq. 5: mean over the 3 rows; the loop's rows hold their loss once a token, so weigh by 1 / tokens
    per_row = slopes(
        lambda x: (by_loop("gspo", x, old, advantages, 0.03, 0.04) / MASK.sum(1, keepdim=True).clamp(min=1)).sum() / 3,
        new,
    )
    torch.testing.assert_close(leaf.grad, per_row, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(whole, per_row)
    leaf = new.clone().requires_grad_()
    page.cispo(leaf, old, advantages, MASK, 0.5, 0.3).sum().backward()
    weight = (new - old).exp().clamp(0.5, 1.3)  # constant in the gradient
    torch.testing.assert_close(leaf.grad, -weight * advantages[:, None] * MASK, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", page.PAPERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
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


def test_unknown_names_are_refused():
    new, old, advantages = drawn()
    for call, said in (
        (lambda: page.paper_loss("dpo", new, old, advantages, MASK), "got 'dpo'; expected one of ppo"),
        (lambda: page.paper_loss("dr_grpo", new, old, advantages, MASK), "without norm_length"),
        (lambda: page.kl(new, old, MASK, "k4"), "expected k1, k2 or k3"),
        (lambda: page.aggregate(new, MASK, "mean"), "expected token_mean"),
        (lambda: page.aggregate(new, MASK, "seq_mean_token_mean", "keep"), "expected out or count"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
