"""Parity of the PPO numerics with independent oracles: numpy, plain Python loops, torch, TRL, and enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.learning.advantages import gae, shape_rewards
from parts.learning.losses import kl_estimate, next_kl_coef, policy_loss, value_loss
from parts.learning.optimizer import lr_factor
from parts.networks.batches import explained_variance, masked_mean, masked_whiten
from parts.networks.forward import logprobs_and_entropy
from parts.sampling.sampling import inverse_cdf

EXACT = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}
both_precisions = pytest.mark.parametrize("dtype", EXACT, ids=["fp64", "fp32"])
quick = settings(max_examples=40, deadline=None, derandomize=True)


def close(got, expected, dtype=torch.float64):
    """Assert equality to 1e-10 in fp64 and 1e-5 in fp32."""
    expected = torch.as_tensor(expected, dtype=dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, **EXACT[dtype])


def random_tensors(seed: int, *shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def random_mask(seed: int, shape):
    """A mask with holes in it; at least one token per row."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[:, shape[1] // 2] = True
    return mask.long()


# ------------------------------------------------------------------------------------------------ log-probs, entropy


def head_case(seed, dtype, rows=11, hidden=6, vocab=13):
    states, weight = random_tensors(seed, (rows, hidden), (vocab, hidden), dtype=dtype)
    targets = torch.arange(rows) * 5 % vocab
    return states.requires_grad_(), weight.requires_grad_(), targets


def head_gradients(dtype, chunk, entropy_grad, temperature=0.7):
    """Values, and gradients of a loss with random weights on log-probs and entropies."""
    states, weight, targets = head_case(0, dtype)
    u, v = random_tensors(1, len(states), len(states), dtype=dtype)
    logprobs, entropy = logprobs_and_entropy(lambda h: h @ weight.T, states, targets, temperature, chunk, entropy_grad)
    ((u * logprobs).sum() + (v * entropy).sum()).backward()
    return logprobs.detach(), entropy.detach(), states.grad, weight.grad


def head_oracle(dtype, entropy_grad, temperature=0.7):
    """The same by torch.distributions, from all logits at once."""
    states, weight, targets = head_case(0, dtype)
    u, v = random_tensors(1, len(states), len(states), dtype=dtype)
    distribution = torch.distributions.Categorical(logits=states @ weight.T / temperature)
    logprobs, entropy = distribution.log_prob(targets), distribution.entropy()
    ((u * logprobs).sum() + (v * (entropy if entropy_grad else entropy.detach())).sum()).backward()
    return logprobs.detach(), entropy.detach(), states.grad, weight.grad


@both_precisions
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
def test_logprobs_and_entropy_match_categorical_in_value_and_gradient(dtype, chunk, entropy_grad):
    got = head_gradients(dtype, chunk, entropy_grad)
    for mine, theirs in zip(got, head_oracle(dtype, entropy_grad), strict=True):
        close(mine, theirs, dtype)


def test_gradients_of_a_tied_head_add_up_over_chunks():
    """The embedding gets gradient through the hidden states and through the head, chunk by chunk."""
    (table,) = random_tensors(5, (9, 4))
    ids, targets = torch.tensor([1, 8, 3, 3, 0, 7, 2]), torch.tensor([8, 3, 3, 0, 7, 2, 1])
    mine, oracle = (table.clone().requires_grad_() for _ in range(2))
    logprobs, entropy = logprobs_and_entropy(lambda h: h @ mine.T, torch.tanh(mine[ids]), targets, 0.9, 3, True)
    (logprobs - 0.1 * entropy).sum().backward()
    distribution = torch.distributions.Categorical(logits=torch.tanh(oracle[ids]) @ oracle.T / 0.9)
    (distribution.log_prob(targets) - 0.1 * distribution.entropy()).sum().backward()
    close(mine.grad, oracle.grad)


def test_bf16_logits_are_widened_before_the_softmax():
    states, weight, targets = head_case(2, torch.bfloat16, vocab=300)
    logprobs, entropy = logprobs_and_entropy(lambda h: h @ weight.T, states, targets, 0.7, 4)
    wide = torch.distributions.Categorical(logits=(states @ weight.T).detach().double() / 0.7)
    close(logprobs.detach(), wide.log_prob(targets), torch.float32)
    close(entropy, wide.entropy(), torch.float32)


@pytest.mark.parametrize("grad", [False, True])
def test_no_more_than_a_chunk_of_logits_exists(grad):
    states, weight, targets = head_case(4, torch.float64, rows=50)
    seen = []

    def logits_fn(h):
        seen.append(len(h))
        return h @ weight.T

    with torch.set_grad_enabled(grad):
        logprobs, _ = logprobs_and_entropy(logits_fn, states, targets, 1.0, 8)
        if grad:
            logprobs.sum().backward()
    assert max(seen) == 8
    assert sum(seen) == 50 * (2 if grad else 1), "pieces are computed again in the backward pass, nowhere else"


# ------------------------------------------------------------------------------------------------ masked statistics


@both_precisions
def test_masked_mean(dtype):
    (x,), mask = random_tensors(0, (5, 9), dtype=dtype), random_mask(0, (5, 9))
    close(masked_mean(x, mask), x.double().numpy()[mask.numpy() == 1].mean(), dtype)


def test_masked_mean_of_nothing_is_zero():
    assert masked_mean(torch.ones(2, 3), torch.zeros(2, 3)).item() == 0.0


@both_precisions
@pytest.mark.parametrize("shift_mean", [True, False])
def test_masked_whiten(dtype, shift_mean):
    (x,), mask = random_tensors(1, (6, 7), dtype=dtype), random_mask(1, (6, 7))
    x = x * 3 + 5
    inside = x.double().numpy()[mask.numpy() == 1]
    expected = np.zeros((6, 7))
    scaled = (inside - inside.mean()) / np.sqrt(inside.var(ddof=1) + 1e-8)
    expected[mask.numpy() == 1] = scaled if shift_mean else scaled + inside.mean()
    close(masked_whiten(x, mask, shift_mean), expected, dtype)


@quick
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 100), shift=st.floats(-50, 50))
def test_whitening_ignores_scale_shift_and_masked_entries(seed, scale, shift):
    (x, junk), mask = random_tensors(seed, (4, 6), (4, 6)), random_mask(seed, (4, 6))
    white = masked_whiten(x, mask)
    again = masked_whiten((x * scale + shift) * mask + 1e3 * junk * (1 - mask), mask)
    torch.testing.assert_close(again, white, rtol=1e-5, atol=1e-5)
    assert (white[mask == 0] == 0).all()


@pytest.mark.parametrize("x", [[[2.0, 5.0]], [[3.0, 3.0]]])
def test_whitening_one_token_or_equal_tokens_stays_finite(x):
    mask = torch.tensor([[1, 1 if x[0][0] == x[0][1] else 0]])
    assert masked_whiten(torch.tensor(x), mask).tolist() == [[0.0, 0.0]]


# ------------------------------------------------------------------------------------------------ KL


@both_precisions
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimate_in_value_and_gradient(dtype, estimator):
    p, q = (x.requires_grad_() for x in random_tensors(0, (3, 4), (3, 4), dtype=dtype))
    got = kl_estimate(p, q, estimator)
    d = p.detach().double().numpy() - q.detach().double().numpy()
    close(got, {"k1": d, "k2": 0.5 * d * d, "k3": 1 / np.exp(d) - 1 + d}[estimator], dtype)
    got.sum().backward()
    slope = {"k1": np.ones_like(d), "k2": d, "k3": 1 - np.exp(-d)}[estimator]
    close(p.grad, slope, dtype)
    close(q.grad, -slope, dtype)


# ------------------------------------------------------------------------------------------------ rewards, GAE


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


@both_precisions
@quick
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), lam=st.floats(0, 1), data=st.data())
def test_gae_equals_the_double_sum_for_any_mask(dtype, seed, gamma, lam, data):
    rewards, values = random_tensors(seed, (3, 8), (3, 8), dtype=dtype)
    mask = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=3, max_size=3))
    )
    for got, expected in zip(
        gae(rewards, values, mask, gamma, lam), gae_oracle(rewards, values, mask, gamma, lam), strict=True
    ):
        close(got, expected, dtype)


# ------------------------------------------------------------------------------------------------ policy loss


def policy_loss_oracle(logprob, old, advantage, low, high, dual):
    """One token, with Python floats: (loss, ratio, clipped, d loss / d logprob)."""
    log_ratio = logprob - old
    ratio = math.exp(min(max(log_ratio, -20.0), 20.0))
    slope = ratio if -20.0 < log_ratio < 20.0 else 0.0
    limited = min(max(ratio, 1 - low), 1 + high)
    surrogate = min(advantage * ratio, advantage * limited)
    clipped = advantage * limited < advantage * ratio
    gradient = -advantage * slope if not clipped else 0.0
    if dual and advantage < 0 and surrogate < dual * advantage:
        surrogate, gradient, clipped = dual * advantage, 0.0, True
    return -surrogate, ratio, float(clipped), gradient


def check_policy_loss(logprobs, old, advantages, low, high, dual, dtype):
    logprobs = torch.tensor(logprobs, dtype=dtype, requires_grad=True)
    old, advantages = (torch.tensor(x, dtype=dtype) for x in (old, advantages))
    loss, ratio, clipped = policy_loss(logprobs, old, advantages, low, high, dual)
    loss.sum().backward()
    cases = zip(logprobs.tolist(), old.tolist(), advantages.tolist(), strict=True)
    expected = [policy_loss_oracle(*case, low, high, dual) for case in cases]
    for got, column in zip((loss, ratio, clipped, logprobs.grad), zip(*expected, strict=True), strict=True):
        close(got.to(dtype), column, dtype)


@both_precisions
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.5, 0.1)])
@pytest.mark.parametrize("dual", [0.0, 3.0])
def test_policy_loss_with_clip_asymmetric_clip_and_dual_clip(dtype, low, high, dual):
    ratios = [0.3, 0.45, 0.6, 0.79, 0.81, 1.0, 1.05, 1.15, 1.19, 1.21, 1.27, 1.29, 2.9, 3.1, 8.0]
    grid = [(math.log(r), a) for r in ratios for a in (1.5, -0.7, 0.0)]
    log_ratios, advantages = (list(column) for column in zip(*grid, strict=True))
    old = [-1.0 - 0.1 * i for i in range(len(grid))]
    logprobs = [d + o for d, o in zip(log_ratios, old, strict=True)]
    check_policy_loss(logprobs, old, advantages, low, high, dual, dtype)


@pytest.mark.parametrize("dual", [0.0, 3.0])
def test_policy_loss_bounds_the_log_ratio(dual):
    check_policy_loss(
        [-1.0, -50.0, -1.0, -50.0],
        [-50.0, -1.0, -50.0, -1.0],
        [1.0, 1.0, -1.0, -1.0],
        0.2,
        0.2,
        dual,
        torch.float64,
    )


# ------------------------------------------------------------------------------------------------ value loss


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
    if dtype == torch.float64:  # where both branches are equal, autograd splits the gradient between equal slopes
        loss.sum().backward()
        close(values.grad, slopes)


# ------------------------------------------------------------------------------------------------ small formulas


def test_explained_variance():
    (values, noise), mask = random_tensors(9, (5, 8), (5, 8)), random_mask(9, (5, 8))
    returns = 2 * values + 0.3 * noise + 4
    keep = mask.numpy() == 1
    r, v = returns.numpy()[keep], values.numpy()[keep]
    assert explained_variance(values, returns, mask) == pytest.approx(1 - np.var(r - v) / np.var(r), abs=1e-10)


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


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_lr_factor_at_the_edges(schedule):
    assert lr_factor(0, 10, 0, schedule) == 1.0
    assert lr_factor(2, 3, 3, schedule) == 1.0
    assert all(0 < lr_factor(step, 10, 2, schedule) <= 1 for step in range(10))


def test_next_kl_coef():
    assert next_kl_coef(0.1, 6.6, 6.0, 10_000, 500) == pytest.approx(0.1 * (1 + 0.1 * 0.05))
    assert next_kl_coef(0.1, 5.4, 6.0, 10_000, 500) == pytest.approx(0.1 * (1 - 0.1 * 0.05))
    assert next_kl_coef(0.1, 60.0, 6.0, 10_000, 500) == pytest.approx(0.1 * 1.01)  # the error is bounded by 0.2
    assert next_kl_coef(0.1, -3.0, 6.0, 10_000, 500) == pytest.approx(0.1 * 0.99)
    assert next_kl_coef(0.1, 6.0, 6.0, 10_000, 500) == pytest.approx(0.1)


# ------------------------------------------------------------------------------------------------ sampling


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


# ------------------------------------------------------------------------------------------------ the whole gradient

VOCAB = 3
SEQUENCES = list(itertools.product(range(VOCAB), repeat=2))


class TwoTokenPolicy:
    """All sequences of two tokens from a tabular policy, so that every expectation is a finite sum."""

    def __init__(self, seed: int):
        first, second = random_tensors(seed, VOCAB, (VOCAB, VOCAB))
        self.first, self.second = first.requires_grad_(), second.requires_grad_()

    def logprobs(self):
        """[9, 2]: one row per sequence."""
        a, b = torch.log_softmax(self.first, -1), torch.log_softmax(self.second, -1)
        return torch.stack([torch.stack([a[x], b[x, y]]) for x, y in SEQUENCES])

    def gradient(self, scalar):
        return torch.cat([g.flatten() for g in torch.autograd.grad(scalar, [self.first, self.second])])


def ppo_gradient(policy, scores, values, reference, kl_coef):
    """Gradient of the PPO loss at ratio 1, each sequence weighted by its probability."""
    logprobs = policy.logprobs()
    old, mask = logprobs.detach(), torch.ones(len(SEQUENCES), 2)
    kl = kl_estimate(old, reference, "k1")
    rewards = shape_rewards(scores, kl, mask, kl_coef)
    advantages, _ = gae(rewards, values, mask, 1.0, 1.0)
    loss, ratio, _ = policy_loss(logprobs, old, advantages, 0.2, 0.2, 3.0)
    assert (ratio == 1).all()
    return policy.gradient((old.sum(1).exp() * loss.sum(1)).sum())


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_ppo_gradient_is_the_exact_gradient_of_the_expected_reward(with_values, kl_coef):
    """-grad of E[score] - kl_coef KL(policy || reference); values, as functions of the prefix, change nothing."""
    policy, reference = TwoTokenPolicy(0), TwoTokenPolicy(1).logprobs().detach()
    scores, prefix_values = random_tensors(2, len(SEQUENCES), VOCAB + 1)
    values = torch.zeros(len(SEQUENCES), 2, dtype=torch.float64)
    if with_values:
        values = torch.stack([torch.stack([prefix_values[VOCAB], prefix_values[x]]) for x, _ in SEQUENCES])
    got = ppo_gradient(policy, scores, values, reference, kl_coef)
    logprobs = policy.logprobs().sum(1)
    p = logprobs.exp()
    objective = (p * scores).sum() - kl_coef * (p * (logprobs - reference.sum(1))).sum()
    close(got, -policy.gradient(objective))
