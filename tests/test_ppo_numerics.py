"""Parity of the PPO numerics with independent oracles: numpy, plain Python loops, torch, TRL, and enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.learning.advantages import gae, shape_rewards
from parts.learning.losses import next_kl_coef, value_loss
from parts.learning.optimizer import lr_factor
from parts.networks.batches import explained_variance, masked_mean, masked_whiten
from parts.networks.forward import logprobs_and_entropy
from parts.sampling.sampling import inverse_cdf

EXACT = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}
both_precisions = pytest.mark.parametrize("dtype", EXACT, ids=["fp64", "fp32"])
quick = settings(max_examples=25, deadline=None, derandomize=True)


def close(got, expected, dtype=torch.float64):
    """Assert equality to 1e-10 in fp64 and 1e-5 in fp32."""
    expected = torch.as_tensor(expected, dtype=dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, **EXACT[dtype])


def random_tensors(seed: int, *shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def head_case(seed, dtype, rows=11, hidden=6, vocab=13):
    states, weight = random_tensors(seed, (rows, hidden), (vocab, hidden), dtype=dtype)
    targets = torch.arange(rows) * 5 % vocab
    return states.requires_grad_(), weight.requires_grad_(), targets


def head_gradients(dtype, run):
    """Values, and gradients of a loss with random weights on the log-probs and entropies that `run` makes."""
    states, weight, targets = head_case(0, dtype)
    u, v = random_tensors(1, len(states), len(states), dtype=dtype)
    logprobs, entropy = run(states, weight, targets)
    ((u * logprobs).sum() + (v * entropy).sum()).backward()
    return logprobs.detach(), entropy.detach(), states.grad, weight.grad


@both_precisions
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_logprobs_and_entropy_match_categorical_in_value_and_gradient(dtype, chunk, entropy_grad):
    def ours(states, weight, targets):
        return logprobs_and_entropy(lambda h: h @ weight.T, states, targets, 0.7, chunk, entropy_grad)

    def theirs(states, weight, targets):
        distribution = torch.distributions.Categorical(logits=states @ weight.T / 0.7)
        entropy = distribution.entropy()
        return distribution.log_prob(targets), entropy if entropy_grad else entropy.detach()

    for got, expected in zip(head_gradients(dtype, ours), head_gradients(dtype, theirs), strict=True):
        close(got, expected, dtype)


def test_bf16_logits_are_widened_before_the_softmax():
    states, weight, targets = head_case(2, torch.bfloat16, vocab=300)
    logprobs, entropy = logprobs_and_entropy(lambda h: h @ weight.T, states, targets, 0.7, 4)
    wide = torch.distributions.Categorical(logits=(states @ weight.T).detach().double() / 0.7)
    close(logprobs.detach(), wide.log_prob(targets), torch.float32)
    close(entropy, wide.entropy(), torch.float32)


def test_no_more_than_a_chunk_of_logits_exists():
    states, weight, targets = head_case(4, torch.float64, rows=50)
    seen = []

    def logits_fn(h):
        seen.append(len(h))
        return h @ weight.T

    logprobs, _ = logprobs_and_entropy(logits_fn, states, targets, 1.0, 8)
    logprobs.sum().backward()
    assert max(seen) == 8
    assert sum(seen) == 2 * 50, "pieces are computed again in the backward pass, nowhere else"


def test_masked_mean():
    assert masked_mean(torch.tensor([[1.0, 2.0, 90.0], [6.0, 90.0, 90.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])) == 3
    assert masked_mean(torch.ones(2, 3), torch.zeros(2, 3)) == 0


@both_precisions
@pytest.mark.parametrize("shift_mean", [True, False])
def test_masked_whiten(dtype, shift_mean):
    x, draw = random_tensors(1, (6, 7), (6, 7), dtype=dtype)
    x, mask = x * 3 + 5, (draw < 0.3).long()
    inside = x.double().numpy()[mask.numpy() == 1]
    expected = np.zeros((6, 7))
    scaled = (inside - inside.mean()) / np.sqrt(inside.var(ddof=1) + 1e-8)
    expected[mask.numpy() == 1] = scaled if shift_mean else scaled + inside.mean()
    close(masked_whiten(x, mask, shift_mean), expected, dtype)


@pytest.mark.parametrize("x", [[[2.0, 5.0]], [[3.0, 3.0]]])
def test_whitening_one_token_or_equal_tokens_stays_finite(x):
    mask = torch.tensor([[1, 1 if x[0][0] == x[0][1] else 0]])
    assert masked_whiten(torch.tensor(x), mask).tolist() == [[0.0, 0.0]]


def test_shape_rewards_by_hand():
    mask = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 1, 0, 1], [1, 0, 0, 0, 0]])
    kl = torch.tensor([[9.0, 1, 2, 9, 9], [9, 9, -3, 9, 4], [0.5, 9, 9, 9, 9]], dtype=torch.float64)
    got = shape_rewards(torch.tensor([10.0, 20.0, 30.0]), kl, mask, 0.1)
    close(got, [[0, -0.1, 10 - 0.2, 0, 0], [0, 0, 0.3, 0, 20 - 0.4], [30 - 0.05, 0, 0, 0, 0]])


def gae_oracle(rewards, values, mask, gamma, lam):
    """A_i = sum over j >= i of (gamma lambda)^(j-i) delta_j along the masked tokens of each row: a plain double sum."""
    advantages, returns = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for b in range(len(rewards)):
        where = [t for t in range(rewards.shape[1]) if mask[b][t]]
        r, v = [float(rewards[b][t]) for t in where], [float(values[b][t]) for t in where] + [0.0]
        delta = [r[i] + gamma * v[i + 1] - v[i] for i in range(len(where))]
        for i, t in enumerate(where):
            advantages[b, t] = sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(where)))
            returns[b, t] = advantages[b, t] + v[i]
    return advantages, returns


@quick
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_equals_the_double_sum_for_any_mask(seed, gamma, lam):
    rewards, values = random_tensors(seed, (3, 8), (3, 8))
    mask = (torch.rand(3, 8, generator=torch.Generator().manual_seed(seed)) < gamma).long()  # full and empty ones too
    expected = gae_oracle(rewards, values, mask, gamma, lam)
    for got, wanted in zip(gae(rewards, values, mask, gamma, lam), expected, strict=True):
        close(got, wanted)


@both_precisions
@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_value_loss(dtype, clip):
    values, old, returns = random_tensors(7, (4, 6), (4, 6), (4, 6), dtype=dtype)
    values = (old + 0.3 * values).requires_grad_()
    loss = value_loss(values, old, returns, clip)
    expected, slopes = np.zeros((4, 6)), np.zeros((4, 6))
    for b, t in itertools.product(range(4), range(6)):
        v, o, r = (x[b, t].item() for x in (values, old, returns))
        near = min(max(v, o - clip), o + clip)
        if clip and (near - r) ** 2 > (v - r) ** 2:
            expected[b, t], slopes[b, t] = 0.5 * (near - r) ** 2, (v - r) * (abs(v - o) <= clip)
        else:
            expected[b, t], slopes[b, t] = 0.5 * (v - r) ** 2, v - r
    close(loss, expected, dtype)
    close(value_loss(old, old, returns, clip), value_loss(old, old, returns, 0.0), dtype)  # a rollout's first update
    if dtype == torch.float64:  # where both branches are equal, autograd splits the gradient between equal slopes
        loss.sum().backward()
        close(values.grad, slopes)


def test_explained_variance_of_perfect_constant_and_useless_values():
    returns, mask = torch.tensor([[1.0, 2.0, 3.0, 50.0]]), torch.tensor([[1, 1, 1, 0]])
    assert explained_variance(returns + 7, returns, mask) == pytest.approx(1.0)  # an offset is not variance
    assert explained_variance(torch.zeros(1, 4), returns, mask) == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("cosine", [0.25, 0.5, 0.75, 1, *(0.5 + 0.5 * math.cos(math.pi * k / 8) for k in range(8))]),
    ],
)
def test_lr_factor_with_four_steps_of_warmup_and_eight_after(schedule, expected):
    assert [lr_factor(step, 12, 4, schedule) for step in range(12)] == pytest.approx(expected)


def test_next_kl_coef():
    # the relative error is 0.1, or bounded by 0.2
    for kl, factor in ((6.6, 1.005), (5.4, 0.995), (60.0, 1.01), (-3.0, 0.99), (6.0, 1.0)):
        assert next_kl_coef(0.1, kl, 6.0, 10_000, 500) == pytest.approx(0.1 * factor)


def test_inverse_cdf_draws_each_token_as_often_as_its_probability():
    p = torch.tensor([0.05, 0.0, 0.4, 0.25, 0.3, 0.0])
    count = 100_000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count  # an even grid: frequencies to 1 / count
    drawn = inverse_cdf(p.log().expand(count, -1), uniform)
    frequency = torch.bincount(drawn, minlength=6) / count
    torch.testing.assert_close(frequency, p, rtol=0, atol=2e-5)


@quick
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 0.1, 1.0, 7.0]), min_size=2, max_size=8).filter(any),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53, 0.5])),
)
def test_inverse_cdf_never_draws_a_token_of_probability_zero(weights, uniform):
    log_probs = torch.log_softmax(torch.tensor([weights]).log(), -1)
    drawn = inverse_cdf(log_probs, torch.tensor([uniform], dtype=torch.float64)).item()
    assert weights[drawn] > 0
