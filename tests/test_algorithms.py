"""The algorithms without a critic: estimators, losses, aggregations, KL, correction, dynamic sampling, presets.

Oracles: the installed TRL's own code, plain numpy, and enumeration over a tiny vocabulary. Parity with verl is in
tests/with_verl/test_verl_parity.py, which runs in verl's environment.
"""

import copy
import dataclasses
import itertools
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY_LM, patch_rooms, side_by_side

from parts.foundation.messages import RewardError, UserError
from parts.learning.advantages import (
    ADVANTAGES,
    advantages_of,
    discounted_returns,
    equal_groups,
    length_penalty,
    overlong_penalty,
    reward_parts,
    shape_rewards,
    shaped_score,
)
from parts.learning.losses import (
    AGGREGATIONS,
    LOSSES,
    contributing,
    covariance_choice,
    gspo_loss,
    kl_estimate,
    kl_loss,
    mismatch_weights,
    policy_loss,
    policy_terms,
    token_weights,
)
from parts.learning.presets import PRESETS, check_config
from parts.networks.batches import collate
from parts.networks.forward import backbone, line_states, predicting_states, token_logprobs
from parts.running.checkpoints import TrainState
from parts.running.progress import rollout_metrics
from parts.sampling.rollouts import batch_rows
from programs.ppo_train.models import load_models, make_optimizer
from programs.ppo_train.rollout import Sampler, evaluate, sample_metrics
from programs.ppo_train.settings import Config, parse_config
from programs.ppo_train.step import accumulate_gradients, make_experience, update

CPU = torch.device("cpu")
EXACT = 1e-10
OUR_LOSSES = {  # bounds that some tokens reach
    "clip": {"clip_eps_low": 0.2, "clip_eps_high": 0.28, "dual_clip": 1.6},
    "reinforce": {},
    "gspo": {"clip_eps_low": 0.03, "clip_eps_high": 0.04},
    "cispo": {"clip_eps_low": 0.3, "clip_eps_high": 0.2},
    "sapo": {"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.5},
    "gmpo": {"clip_eps_low": 0.2, "clip_eps_high": 0.3},
    "dppo_tv": {"clip_eps_low": 0.1, "clip_eps_high": 0.15, "dual_clip": 1.5},
    "dppo_kl": {"clip_eps_low": 0.02, "clip_eps_high": 0.03, "dual_clip": 1.5},
    "clip_cov": {"cov_frac": 0.2, "cov_low": 0.01, "cov_high": 1.5},
    "kl_cov": {"cov_frac": 0.2, "kl_cov_coef": 0.7},
}
OUR_AGGREGATIONS = "token_mean seq_mean_token_mean seq_mean_token_sum seq_mean_token_sum_norm fixed_length".split()
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 3, 3])  # of 3, 4, 1 and 2
LENGTHS = [5, 1, 8, 3, 8, 2, 6, 4, 7, 5]


def close(got, expected, tolerance=EXACT):
    expected = expected if isinstance(expected, torch.Tensor) else torch.as_tensor(np.asarray(expected))
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def normal(seed: int, *shape, scale: float = 1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def ragged(lengths=LENGTHS):
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).double()


def make_config(**settings):
    """A Config of GRPO's preset without KL, and with what the aggregation needs."""
    extra = {"norm_length": 77} if settings.get("aggregation") == "fixed_length" else {}
    return Config(**{"algorithm": "grpo", "kl_coef": 0.0, "max_new_tokens": 12, **extra, **settings})


def value_and_gradient(loss_of, logprobs):
    leaf = logprobs.clone().requires_grad_()
    loss = loss_of(leaf)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def minibatch_loss(config, piece, logprobs):
    """The loss of a minibatch that is one piece, as accumulate_gradients makes it."""
    mask = piece["loss_mask"]
    return (policy_terms(config, piece, logprobs)[0] * token_weights(mask, config, mask.sum(), len(mask))).sum()


# ------------------------------------------------------------------------------------------------ numpy oracles
SCORES = normal(0, 10)
EQUAL = torch.where(GROUPS == 1, 0.1, torch.where(GROUPS == 3, 0.0, SCORES))  # 0.1 four times: their mean rounds
POSITIVE = (SCORES > 0).double()
all_scores = pytest.mark.parametrize("scores", [SCORES, EQUAL, POSITIVE], ids=["real", "equal", "0/1"])


def whiten(x, mask):
    """numpy: mean 0 and variance 1 (n - 1) over the masked tokens, 0 elsewhere."""
    x, where = np.asarray(x), np.asarray(mask) == 1
    return np.where(where, (x - x[where].mean()) / np.sqrt(x[where].var(ddof=1) + 1e-8), 0)


def group_oracle(name, scores, mask, alone, ddof=1):
    """Advantages [B, T] of a group estimator, group by group."""
    scores, lengths, out = scores.numpy(), mask.sum(1).numpy(), np.zeros(len(scores))
    unequal = sum(int((GROUPS == g).sum()) for g in range(4) if len(set(scores[GROUPS.numpy() == g])) > 1)
    for g in range(4):
        rows = GROUPS.numpy() == g
        r, n = scores[rows], rows.sum()
        centred = r - r.mean() if len(set(r)) > 1 else 0 * r
        if n == 1:
            out[rows] = 0 if name == "maxrl" else alone * r
        elif name == "grpo":
            out[rows] = centred / (r.std(ddof=ddof) + 1e-6)
        elif name in ("mean", "reinforce_pp_baseline", "gpg", "gpg_verl"):
            out[rows] = centred
        elif name == "rloo":
            out[rows] = [r[i] - np.delete(r, i).mean() for i in range(n)] if centred.any() else 0
        elif name == "opo":
            out[rows] = r - (lengths[rows] * r).sum() / lengths[rows].sum() if centred.any() else 0
        elif name == "maxrl":
            out[rows] = centred / (r.mean() + 1e-6)
    if name in ("gpg", "gpg_verl"):
        out *= len(scores) / max(1, unequal if name == "gpg" else np.count_nonzero(scores))
    tokens = out[:, None] * mask.numpy()
    return whiten(tokens, mask) if name == "reinforce_pp_baseline" else tokens


def row_oracle(name, lp, old, a, c, chosen):
    """Of one row's response, numpy, from the papers' equations.

    Loss per token, its Jacobian d loss[s] / d lp[t], and the tokens whose loss a bound changes.
    """
    d, n = lp - old, len(lp)
    r = np.exp(np.clip(d, -20, 20))
    low, high = c.clip_eps_low, c.clip_eps_high
    if name in ("clip", "clip_cov"):
        plain, bounded = -a * r, -a * np.clip(r, 1 - low, 1 + high)
        loss, slope = np.maximum(plain, bounded), np.where(bounded > plain, 0, -a * r)
        dual = (a < 0) & (loss > -a * c.dual_clip) if c.dual_clip and name == "clip" else np.zeros(n, bool)
        loss, slope = np.where(dual, -a * c.dual_clip, loss), np.where(dual, 0, slope)
        keep = 1 - chosen if name == "clip_cov" else 1
        return loss * keep, np.diag(slope * keep), chosen if name == "clip_cov" else dual | (bounded > plain)
    if name == "reinforce":
        return -a * lp, np.diag(-a), np.zeros(n)
    if name == "gspo":
        s = np.exp(d.mean())
        plain, bounded = -a * s, -a * np.clip(s, 1 - low, 1 + high)
        return np.maximum(plain, bounded), np.diag(np.where(bounded > plain, 0, plain)), bounded > plain
    if name == "cispo":
        w = np.clip(r, 1 - low, 1 + high)
        return -w * a * lp, np.diag(-w * a), w != r
    if name == "sapo":
        tau = np.where(a > 0, c.sapo_tau_pos, c.sapo_tau_neg)
        gate = 1 / (1 + np.exp(-tau * (r - 1)))
        return -4 / tau * gate * a, np.diag(-4 * gate * (1 - gate) * r * a), np.zeros(n)
    if name == "gmpo":
        bounded = np.minimum(d, high) if a.mean() > 0 else np.maximum(d, -low) if a.mean() < 0 else 0 * d
        s = np.exp(bounded.mean())
        slopes = np.tile(np.where(bounded == d, -a.mean() * s / n, 0), (n, 1))
        return np.full(n, -a.mean() * s), slopes, (bounded != d) & (a.mean() != 0)
    if name in ("dppo_tv", "dppo_kl"):
        p, q = np.exp(lp), np.exp(old)
        kl = q * np.log(q / p) + (1 - q) * np.log((1 - q + 1e-8) / (1 - p + 1e-8))
        far = np.abs(p - q) if name == "dppo_tv" else kl
        stop = ((a > 0) & (p > q) & (far > high)) | ((a <= 0) & (p < q) & (far > low))
        w = np.where(stop, 0, np.minimum(r, c.dual_clip))
        return -w * a * lp, np.diag(-w * a), w != r
    assert name == "kl_cov"
    return -a * r + c.kl_cov_coef * np.abs(d) * chosen, np.diag(-a * r + c.kl_cov_coef * np.sign(d) * chosen), chosen


def weight_oracle(how, lengths, config):
    """Weight of each row's tokens in the minibatch's loss."""
    n = len(lengths)
    return {
        "token_mean": [1 / sum(lengths)] * n,
        "seq_mean_token_mean": [1 / (n * max(length, 1)) for length in lengths],
        "seq_mean_token_sum": [1 / n] * n,
        "seq_mean_token_sum_norm": [1 / (n * config.max_new_tokens)] * n,
        "fixed_length": [1 / (n * config.norm_length)] * n if config.norm_length else None,
    }[how]


def covariance_oracle(config, logprobs, old, advantages, mask, draw):
    """The tokens that Clip-Cov and KL-Cov treat, one by one."""
    where = mask.numpy() == 1
    a, lp, count = advantages.numpy(), logprobs.numpy(), max(1, int(config.cov_frac * where.sum()))
    cov = (a - a[where].mean()) * (lp - lp[where].mean())
    if config.loss == "kl_cov":
        order = sorted(zip(*np.nonzero(where), strict=True), key=lambda at: -cov[at])
    else:
        r = np.exp(lp - old.numpy())
        clipped = ((a > 0) & (r > 1 + config.clip_eps_high)) | ((a < 0) & (r < 1 - config.clip_eps_low))
        able = where & ~clipped & (cov > config.cov_low) & (cov < config.cov_high)
        order = sorted(zip(*np.nonzero(able), strict=True), key=lambda at: draw.numpy()[at])
    chosen = np.zeros_like(a)
    for at in order[:count]:
        chosen[at] = 1
    return chosen


def minibatch_oracle(config, logprobs, old, advantages, mask, chosen):
    """Value and gradient of the minibatch's loss by the oracles above, and the tokens that a bound changes."""
    weights, value = weight_oracle(config.aggregation, mask.sum(1).int().tolist(), config), 0.0
    gradient, clipped = np.zeros(mask.shape), np.zeros(mask.shape)
    for row, weight in enumerate(weights):
        where = mask[row].numpy() == 1
        if where.any():
            x = [t[row].numpy()[where] for t in (logprobs, old, advantages)]
            loss, jacobian, clipped[row][where] = row_oracle(config.loss, *x, config, np.asarray(chosen)[row][where])
            value += weight * loss.sum()
            gradient[row][where] = weight * jacobian.sum(0)
    return value, gradient, clipped


def case(spread: float = 0.4, lengths=LENGTHS):
    """Log-probs, old ones, advantages of one value a row (one of them 0), mask; all [10, 8]."""
    mask = ragged(lengths)
    old = -normal(6, *mask.shape).abs() - 0.05
    logprobs = (old + normal(7, *mask.shape, scale=spread)).clamp(max=-0.01)
    advantages = normal(8, len(mask), 1) * (torch.arange(len(mask)) != 7)[:, None] * mask
    return logprobs, old, advantages, mask


# ------------------------------------------------------------------------------------------------ advantages
@all_scores
@pytest.mark.parametrize("alone", [0.0, 1.0])
@pytest.mark.parametrize("name", ["grpo", "mean", "rloo", "opo", "gpg", "gpg_verl", "maxrl", "reinforce_pp_baseline"])
def test_group_estimators_equal_numpy(name, scores, alone):
    scores, mask = scores.abs() if name == "maxrl" else scores, ragged()
    got = ADVANTAGES[name](scores=scores, groups=GROUPS, mask=mask, config=make_config(), alone=alone)
    got = got if got.dim() == 2 else got[:, None] * mask
    close(got, group_oracle(name, scores, mask, alone), 1e-7 if name.startswith("gpg") else EXACT)  # alpha is fp32
    if name == "grpo":
        got = ADVANTAGES["grpo"](scores=scores, groups=GROUPS, config=make_config(advantage_std="biased"), alone=alone)
        close(got[:, None] * mask, group_oracle(name, scores, mask, alone, ddof=0))


@pytest.mark.parametrize("name", ["grpo", "mean", "rloo", "opo", "gpg", "maxrl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_give_exactly_zero(name, dtype):
    """Rounding of the mean, over an epsilon, would otherwise train on noise, and cost a pass through the network."""
    for value in (0.1, 1 / 3, 0.7, 1.2):
        scores, mask = torch.full((7,), value, dtype=dtype), ragged([1, 2, 3, 4, 5, 6, 7])
        got = ADVANTAGES[name](scores=scores, groups=torch.zeros(7).long(), mask=mask, config=make_config())
        assert (got == 0).all()


def test_returns_of_reinforce_pp_and_remax():
    rewards = torch.tensor([[0.0, 1.0, -1.0, 4.0], [2.0, 3.0, 0.0, 0.0]]).double()
    mask = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]).double()  # a hole: it is passed over
    returns = np.array([[0.5, 0, 1, 4], [3.5, 3, 0, 0]])
    close(discounted_returns(rewards * mask, mask, 0.5), returns)
    config = make_config(advantage="reinforce_pp", gamma=0.5)
    close(ADVANTAGES["reinforce_pp"](rewards=rewards * mask, mask=mask, config=config), whiten(returns, mask))
    # nan: no reward applies to the second's greedy completion
    for baseline, second in ((-2.0, [7, 5, 0, 0]), (float("nan"), [0, 0, 0, 0])):
        known = {"mask": mask, "baselines": torch.tensor([1.0, baseline]).double()}
        close(ADVANTAGES["remax"](rewards=rewards * mask, **known), [[2, 0, 2, 3], second])


def test_maxrl_refuses_negative_scores():
    with pytest.raises(RewardError, match="got a score of -"):
        ADVANTAGES["maxrl"](scores=SCORES, groups=GROUPS)


# ------------------------------------------------------------------------------------------------ from samples
def made_samples(scores, lengths, parts=None, finished=None, group_size=4, baselines=None):
    """Samples with these scores; `parts` is {reward: values or None}."""
    parts = parts or {"only": scores}
    samples = []
    for i, length in enumerate(lengths):
        ids = {"prompt_ids": [5] * (1 + i % 3), "response_ids": [7 + (i + t) % 50 for t in range(length)]}
        known = {"rollout_logprobs": [-1.0] * length, "finished": True if finished is None else finished[i]}
        known |= {"rewards": {name: values[i] for name, values in parts.items()}, "score": scores[i]}
        known |= {"weights": dict.fromkeys(parts, 1.0), "baseline": baselines[i] if baselines else 0.0}
        samples.append(ids | known | {"group": i // group_size})
    return samples


def experience_of(config, samples, kl=None):
    """advantages_of on samples alone, no network; `kl` is old minus reference log-probs."""
    batch = collate(samples, 0, CPU)
    keep = torch.tensor([s["finished"] or not config.mask_truncated for s in samples])
    batch["loss_mask"] = batch["response_mask"] * keep[:, None]
    if kl is not None:
        batch["old_logprobs"] = torch.full(batch["response_mask"].shape, -1.5)
        batch["ref_logprobs"] = batch["old_logprobs"] - kl
    return batch, advantages_of(config, batch, samples, config.kl_coef)


def per_row(tokens, mask):
    """The one value of each row's tokens."""
    values = [row[keep.bool()] for row, keep in zip(tokens, mask, strict=True)]
    assert all((v == v[0]).all() for v in values)
    assert (tokens[mask == 0] == 0).all()
    return torch.stack([v[0] for v in values])


def test_a_completion_to_which_no_reward_applies_neither_learns_nor_counts():
    scores, lengths = [1.0, 0.0, 0.0, 5.0, 0.0, 3.0, 0.0, 0.0], [3, 1, 4, 2, 2, 2, 5, 1]
    parts = {"a": [1.0, None, 0.0, 5.0, None, 3.0, None, None]}  # group 1 has one left: no baseline
    for name, expected in (("mean", [-1, 0, -2, 3]), ("rloo", [-1.5, 0, -3, 4.5])):
        batch, made = experience_of(make_config(advantage=name), made_samples(scores, lengths, parts))
        close(per_row(made["advantages"], batch["response_mask"]), torch.tensor([*expected, 0, 0, 0, 0]).float(), 1e-6)


def test_gae_passes_over_a_completion_to_which_no_reward_applies():
    """By hand: V = 0.5, gamma 1, lambda 0.95; the deltas of the first row are 0 and 1 - 0.5."""
    samples = made_samples([1.0, 0.0], [2, 3], {"a": [1.0, None]}, group_size=1)
    batch = collate(samples, 0, CPU)
    batch |= {"values": 0.5 * batch["response_mask"], "loss_mask": batch["response_mask"]}
    made = advantages_of(Config(algorithm="ppo", whiten_advantages=False), batch, samples, 0.0)
    close(made["advantages"][:, -3:], torch.tensor([[0.475, 0.5, 0.0], [0.0, 0.0, 0.0]]))
    close(made["returns"][:, -3:], torch.tensor([[0.975, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    made = advantages_of(Config(algorithm="ppo", whiten_advantages=False, whiten_rewards=True), batch, samples, 0.0)
    close(made["returns"][0, -2], 0.5 + 0.5**0.5, 1e-6)  # scaled to variance 1, not moved


@pytest.mark.parametrize("name", ["ppo", "grpo", "gpg", "gdpo", "reinforce_pp"])
def test_a_completion_to_which_no_reward_applies_changes_no_gradient(models_of, name):
    """The gradients of policy and critic are those of the batch without it, KL and entropy bonus included."""
    size = 1 if name in ("ppo", "reinforce_pp") else 4
    settings = {"kl_coef": 0.0 if name == "gdpo" else 0.1, "entropy_coef": 0.02, "aggregation": "token_mean"}
    config = Config(algorithm=name, group_size=size, ppo_epochs=2, max_new_tokens=16, **settings)
    models = models_of(config, double=False)
    if models.critic:
        torch.nn.init.normal_(models.critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    scores, missing = [0.0, 0.0, 1.0, 0.5, 0.0, 3.0, 0.0, 1.0], (1, 6)
    parts = {"a": [None if i in missing else score for i, score in enumerate(scores)]}
    samples = made_samples(scores, RESPONSES, parts, group_size=size)
    found = []
    for some in (samples, [s for i, s in enumerate(samples) if i not in missing]):
        batch = make_experience(config, models, some, config.kl_coef)
        policy, sums, _ = gradient_of(config, models, batch, range(len(some)))
        critic = [p.grad.flatten() for p in models.critic.parameters()] if models.critic else []
        found.append((torch.cat([policy, *critic]), sums))
        assert policy.norm() > 1e-4
        for p in models.critic.parameters() if models.critic else ():
            p.grad = None
    assert relative(found[0][0], found[1][0]) < 1e-5
    close(found[0][1], found[1][1], 1e-5)


def test_means_of_scores_are_of_the_completions_that_have_one():
    samples = made_samples([1.0, 0.0, 0.0, 2.0], [2] * 4, {"a": [1.0, None, 0.0, 2.0]})
    metrics = rollout_metrics(samples, [2] * 4, {"rollout": 1.0})
    assert metrics["reward/mean"] == 1.0 and metrics["reward/std"] == pytest.approx((2 / 3) ** 0.5)
    figures = evaluate(make_config(), None, None, None, [{"columns": {}}] * 4, lambda *_: samples)[0]
    assert figures["eval/score"] == figures["eval/a"] == 1.0 and figures["eval/accuracy"] == 0.5
    nothing = made_samples([0.0] * 2, [2] * 2, {"a": [None, None]})
    assert not {"reward/mean", "reward/std"} & {*rollout_metrics(nothing, [2] * 2, {"rollout": 1.0})}


@pytest.mark.parametrize(("advantage", "baseline"), [("mean", 1.0), ("opo", 1.1)])  # opo's by length: (2 + 9) / 10
def test_masked_completions_count_in_the_baseline_and_train_nothing(advantage, baseline):
    scores, finished = [1.0, 0.0, 0.0, 3.0], [True, False, True, False]
    config = make_config(advantage=advantage, mask_truncated=True)
    batch, made = experience_of(config, made_samples(scores, [2, 3, 2, 3], finished=finished))
    close(made["advantages"].sum(1), 2 * torch.tensor([1 - baseline, 0, -baseline, 0]), 1e-6)
    assert batch["loss_mask"].sum(1).tolist() == [2, 0, 2, 0]
    assert contributing(config, batch | made) == ([2] if advantage == "mean" else [0, 2]), "one is at the mean"


def test_gae_is_whitened_over_the_tokens_that_train():
    config = Config(algorithm="ppo", mask_truncated=True)
    samples = made_samples([1.0, 0.0, 0.0, 3.0], [2, 3, 2, 3], finished=[True, False, True, True])
    batch = collate(samples, 0, CPU)
    batch["values"] = normal(3, *batch["response_mask"].shape).float() * batch["response_mask"]
    batch["loss_mask"] = batch["response_mask"] * torch.tensor([[1], [0], [1], [1]])
    made = advantages_of(config, batch, samples, 0.0)
    trained = made["advantages"][batch["loss_mask"].bool()].numpy()
    assert trained.mean() == pytest.approx(0, abs=1e-6) and trained.var(ddof=1) == pytest.approx(1, rel=1e-5)
    assert (made["advantages"][1] == 0).all()


def test_penalties_for_length():
    """By hand: no end token costs 0.5, and the last 20 % of 10 tokens cost up to 1."""
    assert [overlong_penalty(n, 20, 0.25) for n in (1, 14, 15, 16, 19, 20)] == [0, 0, 0, 0.2, 0.8, 1]
    assert [overlong_penalty(n, 20, 0.0) for n in (1, 20)] == [0, 0]
    assert [overlong_penalty(n, 4, 1.0) for n in (0, 1, 4)] == [0, 0.25, 1]
    config = make_config(max_new_tokens=10, overlong_share=0.2, missing_eos_penalty=0.5, advantage="mean")
    samples = made_samples([1.0] * 4, [3, 9, 10, 8], finished=[True, True, False, False])
    assert length_penalty(config, samples[0] | {"answer_lengths": [3, 9, 2]}) == pytest.approx(0.5)  # of the longest
    assert [shaped_score(config, s) for s in samples] == pytest.approx([1, 0.5, -0.5, 0.5])
    batch, made = experience_of(config, samples)
    close(per_row(made["advantages"], batch["response_mask"]), torch.tensor([0.625, 0.125, -0.875, 0.125]), 1e-6)


def test_gdpo_normalises_each_reward_where_it_applies_and_takes_the_penalty_for_length_as_one_more():
    """A None takes no part in its reward's group; each has its weight; the sum is whitened over tokens."""
    config, nan = make_config(advantage="gdpo", max_new_tokens=10, overlong_share=0.2), float("nan")
    columns = {"a": [1.0, 2.0, nan, 4.0, 0.0, 1.0, 3.0, nan], "b": [4.0, 1.0, 0.0, 1.0, nan, nan, nan, 2.0]}
    parts = {name: [None if x != x else x for x in column] for name, column in columns.items()}
    samples = made_samples([1.0] * 8, [2, 10, 2, 2, 5, 1, 3, 9], parts)
    for sample in samples:
        sample["weights"] = {"a": 3.0, "b": -0.5}
    assert reward_parts(config, samples[1]) == [2.0, 1.0, -1.0]
    total = np.zeros(8)
    for weight, x in ((3.0, columns["a"]), (-0.5, columns["b"]), (1.0, [0, -1, 0, 0, 0, 0, 0, -0.5])):
        for group in (range(4), range(4, 8)):
            rows = [i for i in group if not np.isnan(x[i])]
            own = np.array(x, dtype=float)[rows]
            if len(rows) > 1:
                total[rows] += weight * (own - own.mean()) / (own.std(ddof=1) + 1e-6)
    batch, made = experience_of(config, samples)
    mask = batch["response_mask"].numpy()
    close(made["advantages"], whiten(total[:, None] * mask, mask), 1e-5)


def test_kl_in_the_reward_is_summed_into_the_score():
    """Group methods see the score minus kl_coef times the completion's KL, ReMax the KL to come at each token."""
    scores, lengths, kl = [1.0, 0.0, 0.0, 0.0], [1, 2, 3, 4], 0.25
    config = make_config(advantage="mean", kl_coef=0.2, kl_in="reward", kl_estimator="k1")
    batch, made = experience_of(config, made_samples(scores, lengths), kl)
    totals = torch.tensor(scores) - 0.2 * kl * torch.tensor(lengths)
    close(per_row(made["advantages"], batch["response_mask"]), totals - totals.mean(), 1e-6)
    close(made["kl"].sum(1), kl * torch.tensor(lengths), 1e-6)
    samples = made_samples(scores, lengths, group_size=1, baselines=[0.5, 0.0, 0.0, 0.0])
    _, made = experience_of(dataclasses.replace(config, advantage="remax", group_size=1), samples, kl)
    close(made["advantages"][0, -4:], torch.tensor([0.45, 0, 0, 0]), 1e-6)
    close(made["advantages"][3, -4:], -0.05 * torch.tensor([4.0, 3, 2, 1]), 1e-6)


def test_kl_in_the_loss_stays_out_of_the_scores():
    config = make_config(advantage="mean", kl_coef=0.2, kl_in="loss", kl_estimator="k3_ratio")
    batch, made = experience_of(config, made_samples([1.0, 0.0, 0.0, 0.0], [1, 2, 3, 4]), 0.25)
    close(per_row(made["advantages"], batch["response_mask"]), torch.tensor([0.75, -0.25, -0.25, -0.25]), 1e-6)
    close(made["kl"].sum(1), (np.exp(-0.25) + 0.25 - 1) * np.arange(1.0, 5), 1e-5)  # logged as k3


# ------------------------------------------------------------------------------------------------ losses
PAIRS = list(itertools.product(OUR_LOSSES, OUR_AGGREGATIONS))
EACH = [*zip(OUR_LOSSES, OUR_AGGREGATIONS * 2, strict=True)]  # every loss once, every aggregation twice


@pytest.mark.parametrize(("name", "aggregation"), PAIRS)
@pytest.mark.parametrize("lengths", [LENGTHS, [5, 0, 8, 3, 0, 2, 6, 4, 7, 0]], ids=["ragged", "masked rows"])
def test_losses_and_aggregations_equal_numpy_in_value_and_gradient(name, aggregation, lengths):
    config = make_config(loss=name, aggregation=aggregation, **OUR_LOSSES[name])
    logprobs, old, advantages, mask = case(lengths=lengths)
    draw = torch.rand(mask.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    chosen = covariance_oracle(config, logprobs, old, advantages, mask, draw)
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": old, "advantages": advantages}
    piece["chosen"] = torch.as_tensor(chosen)
    got = value_and_gradient(lambda x: minibatch_loss(config, piece, x), logprobs)
    *expected, clipped = minibatch_oracle(config, logprobs, old, advantages, mask, chosen)
    for mine, theirs in zip(got, expected, strict=True):
        assert np.abs(theirs).max() > 1e-4
        close(mine, theirs)
    assert clipped.any() == (name not in ("reinforce", "sapo"))
    known = {"logprobs": logprobs, "old_logprobs": old, "advantages": advantages, "chosen": piece["chosen"]}
    close(LOSSES[name](**known, mask=mask, config=config)[1] * mask, clipped)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_the_tokens_that_covariance_chooses(name, share):
    config = make_config(loss=name, **{**OUR_LOSSES[name], "cov_frac": share})
    logprobs, old, advantages, mask = case()
    logprobs, old, advantages = (torch.where(mask == 1, x, 50.0) for x in (logprobs, old, advantages))  # never read
    draw = torch.rand(mask.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    got = covariance_choice(logprobs, old, advantages, mask, draw, config)
    expected = covariance_oracle(config, logprobs, old, advantages, mask, draw)
    assert expected.sum() == 1 if share == 0.0 else expected.sum() >= 2
    close(got, expected)
    assert (got * (1 - mask)).sum() == 0
    config.cov_low, config.cov_high = 90.0, 91.0
    assert name == "kl_cov" or covariance_choice(logprobs, old, advantages, mask, draw, config).sum() == 0


def test_gspo_has_the_sequences_value_and_each_tokens_own_gradient():
    """GSPO-token: the loss of one token moves that token's log-prob, by the sequence's ratio."""
    logprobs, old, advantages, mask = case(spread=0.01)
    config = make_config(loss="gspo", **OUR_LOSSES["gspo"])
    known = {"old_logprobs": old, "advantages": advantages, "mask": mask, "config": config}
    _, gradient = value_and_gradient(lambda x: gspo_loss(logprobs=x, **known)[0][2, 3], logprobs)
    expected = torch.zeros(mask.shape, dtype=torch.float64)
    expected[2, 3] = -advantages[2, 3] * (logprobs - old)[2].mean().exp()
    close(gradient, expected)


@pytest.mark.parametrize("name", [name for name in OUR_LOSSES if name != "clip_cov"])
def test_the_first_update_of_every_loss_is_that_of_reinforce(name):
    """At ratio 1 the gradient is -A grad log pi, weighted; a sequence-level loss spreads it evenly over the tokens."""
    assert sorted(LOSSES) == sorted(OUR_LOSSES) and list(AGGREGATIONS) == OUR_AGGREGATIONS, "one has no oracle here"
    logprobs, _, advantages, mask = case()
    piece = {"loss_mask": mask, "rollout_logprobs": logprobs, "advantages": advantages, "chosen": mask}
    settings = {"clip_eps_low": 0.2, "clip_eps_high": 0.2, "dual_clip": 20.0 if name == "dppo_kl" else 0.0}
    for aggregation in ("seq_mean_token_mean",) if name == "gmpo" else OUR_AGGREGATIONS:
        config = make_config(loss=name, aggregation=aggregation, **settings)
        _, gradient = value_and_gradient(lambda x, c=config: minibatch_loss(c, piece, x), logprobs)
        close(gradient, -advantages * np.array(weight_oracle(aggregation, LENGTHS, config))[:, None] * mask)


@pytest.mark.parametrize("gap", [-40.0, 40.0])
@pytest.mark.parametrize("name", [name for name in OUR_LOSSES if name not in ("clip_cov", "kl_cov", "gmpo")])
def test_extreme_ratios_stay_finite(name, gap):
    old, mask = torch.full((2, 3), -45.0), torch.ones(2, 3)
    config = make_config(loss=name, clip_eps_low=0.2, clip_eps_high=0.2)
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": old}
    piece["advantages"] = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    for x in value_and_gradient(lambda lp: minibatch_loss(config, piece, lp), old + gap):
        assert torch.isfinite(x).all()
    if name == "clip":  # the log-ratio is bounded to 20
        got = policy_loss(old + gap, old, piece["advantages"], 0.2, 0.2, 0.0)[1]
        close(got, np.full((2, 3), np.exp(np.sign(gap) * 20)), 1e-6)
    if name == "gspo":  # its mean to 10, from above
        known = {"old_logprobs": old, "advantages": piece["advantages"], "mask": mask, "config": config}
        assert gspo_loss(logprobs=old + gap, **known)[0].max() == pytest.approx(np.exp(10) if gap > 0 else 0.8)


# ------------------------------------------------------------------------------------------------ TRL
@pytest.fixture(scope="module")
def trl_trainers(tmp_path_factory):
    """Real trainers of the installed TRL on the embedded model, which take log-probs and completions that we set."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    def make(trainer_class, config_class, **settings):
        folder = str(tmp_path_factory.mktemp("trl"))
        args = config_class(
            output_dir=folder, per_device_train_batch_size=8, num_generations=4, max_completion_length=12, bf16=False,
            report_to=[], use_cpu=True, **settings,
        )  # fmt: skip
        data = Dataset.from_list([{"prompt": "1+1="}] * 8)
        functions = [lambda completions, **_: [0.0] * len(completions) for _ in range(2)]
        trainer = trainer_class(str(TINY_LM), functions, args=args, train_dataset=data)
        trainer.model.train()
        return trainer

    grpo, rloo = make(trl.GRPOTrainer, trl.GRPOConfig, beta=0.0), make(trl.RLOOTrainer, trl.RLOOConfig, beta=0.0)
    return {"grpo": grpo, "rloo": rloo, "gmpo": make(GMPOTrainer, GMPOConfig, beta=0.0)}


TRL_LENGTHS = [5, 1, 8, 3, 8, 2, 6, 4]


def trl_case(dtype=torch.float64):
    logprobs, old, advantages, mask = case(lengths=TRL_LENGTHS)
    return [x.to(dtype) for x in (logprobs, old, advantages, mask)]


def trl_loss(monkeypatch, trainer, inputs, logprobs, **settings):
    """TRL's own _compute_loss on log-probs that we set; settings of the trainer by name, `args.NAME` of its config."""
    for name, value in settings.items():
        owner = trainer.args if name.startswith("args_") else trainer
        monkeypatch.setattr(owner, name.removeprefix("args_"), value, raising=False)
    monkeypatch.setattr(trainer, "current_gradient_accumulation_steps", 1, raising=False)

    def forward(*_, **__):
        return forward.logprobs, torch.zeros_like(forward.logprobs), None

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", forward)

    def loss_of(leaf):
        forward.logprobs = leaf
        return trainer._compute_loss(trainer.model, inputs)

    return value_and_gradient(loss_of, logprobs)


def trl_inputs(mask, advantages, old=None, **extra):
    ids = torch.zeros(mask.shape).long()
    inputs = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids}
    inputs |= {"completion_mask": mask, "advantages": advantages, "num_items_in_batch": mask.sum()}
    return inputs | extra | ({} if old is None else {"old_per_token_logps": old})


SEQUENCE, TAUS = {"importance_sampling_level": "sequence"}, {"pos": 1.0, "neg": 1.5}
TRL_LOSSES = {  # loss_type: our loss and aggregation, settings of TRL's, settings of ours
    "grpo": ("clip", "seq_mean_token_mean", {}, {}),
    "bnpo": ("clip", "token_mean", {}, {}),
    "dapo": ("clip", "token_mean", {}, {}),
    "dr_grpo": ("clip", "seq_mean_token_sum_norm", {}, {}),
    "delta": ("clip", "token_mean", {"loss_type": "dapo", "args_delta": 1.6}, {"dual_clip": 1.6}),
    "gspo": ("gspo", "seq_mean_token_mean", {"loss_type": "grpo", **SEQUENCE}, {}),
    "luspo": ("gspo", "seq_mean_token_sum", SEQUENCE, {}),
    "cispo": ("cispo", "token_mean", {"epsilon_high": 1.3}, {"clip_eps_low": 1.0, "clip_eps_high": 0.3}),
    "sapo": ("sapo", "seq_mean_token_mean", {f"args_sapo_temperature_{k}": v for k, v in TAUS.items()}, {}),
}

# not k3_ratio with a sequence's ratio: by that TRL weighs the KL then, we by the token's
TRL_CASES = [(name, *how) for name in TRL_LOSSES for how in ((False, None), (True, "k3"), (False, "k3_ratio"))]
TRL_CASES = [case for case in TRL_CASES if case[0] not in ("gspo", "luspo") or case[2] != "k3_ratio"]


@pytest.mark.long
@pytest.mark.parametrize(("name", "corrected", "kl"), TRL_CASES)
def test_losses_equal_trl_in_value_and_gradient(monkeypatch, trl_trainers, name, corrected, kl):
    """Every loss type of TRL's GRPOTrainer but vespo, with and without KL, and with its correction for vLLM."""
    loss, aggregation, settings, own = TRL_LOSSES[name]
    logprobs, old, advantages, mask = trl_case()
    low, high = (0.03, 0.04) if loss == "gspo" else (0.2, 0.28)
    theirs = {"loss_type": name, "epsilon_low": low, "epsilon_high": high, "args_delta": None} | settings
    theirs = {"importance_sampling_level": "token", "max_completion_length": 12} | theirs
    extra, ours = {}, {"clip_eps_low": low, "clip_eps_high": high, "sapo_tau_neg": 1.5, "mismatch": "none"}
    ours |= own
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": old, "advantages": advantages}
    if kl:
        piece["ref_logprobs"] = extra["ref_per_token_logps"] = old + normal(12, *mask.shape, scale=0.5)
        ours |= {"kl_coef": 0.3, "kl_in": "loss", "kl_estimator": kl}
        theirs |= {"beta": 0.3, "args_use_bias_correction_kl": kl == "k3_ratio"}
    if corrected:
        piece["rollout_logprobs"] = old + normal(13, *mask.shape, scale=0.15 if loss == "gspo" else 0.5)
        ours |= {"mismatch": "seq_mask" if loss == "gspo" else "tis"}  # a sequence's ratio has a sequence's weight
        theirs |= {"use_vllm": True, "vllm_importance_sampling_correction": True}
        gap = (old - piece["rollout_logprobs"]) * mask
        product = gap.sum(1, keepdim=True).exp()
        weights = product * ((product >= 0.5) & (product <= 2.0)) if loss == "gspo" else gap.exp().clamp(max=2.0)
        extra["importance_sampling_ratio"] = weights
    rows = advantages[:, 0]
    expected = trl_loss(monkeypatch, trl_trainers["grpo"], trl_inputs(mask, rows, old, **extra), logprobs, **theirs)
    config = make_config(loss=loss, aggregation=aggregation, **ours)
    got = value_and_gradient(lambda x: minibatch_loss(config, piece, x), logprobs)
    for a, b in zip(got, expected, strict=True):
        assert b.abs().max() > 1e-4
        close(a, b)


@pytest.mark.long
def test_gmpo_equals_trls(monkeypatch, trl_trainers):
    logprobs, old, advantages, mask = trl_case()
    advantages[3] = 0
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": old, "advantages": advantages}
    piece["ref_logprobs"] = old + normal(12, *mask.shape, scale=0.5)
    inputs = trl_inputs(mask, advantages[:, 0], old, ref_per_token_logps=piece["ref_logprobs"])
    theirs = {"epsilon_low": 0.2, "epsilon_high": 0.3, "beta": 0.3}
    expected = trl_loss(monkeypatch, trl_trainers["gmpo"], inputs, logprobs, **theirs)
    ours = {"clip_eps_low": 0.2, "clip_eps_high": 0.3, "kl_coef": 0.3, "kl_in": "loss", "kl_estimator": "k3"}
    config = make_config(loss="gmpo", aggregation="seq_mean_token_mean", **ours)
    got = value_and_gradient(lambda x: minibatch_loss(config, piece, x), logprobs)
    for a, b in zip(got, expected, strict=True):
        close(a, b)


@pytest.mark.long
def test_the_first_update_of_rloo_has_trls_gradient(monkeypatch, trl_trainers):
    """TRL's ratio is the sequence's, ours the token's: at ratio 1 the gradient is the same, the sum over tokens."""
    logprobs, _, advantages, mask = trl_case()
    inputs = trl_inputs(mask, advantages[:, 0], old_logps=(logprobs * mask).sum(1))
    _, expected = trl_loss(monkeypatch, trl_trainers["rloo"], inputs, logprobs)
    config = Config(algorithm="rloo")
    assert (config.loss, config.aggregation) == ("clip", "seq_mean_token_sum")
    piece = {"loss_mask": mask, "rollout_logprobs": logprobs, "advantages": advantages}
    _, got = value_and_gradient(lambda x: minibatch_loss(config, piece, x), logprobs)
    close(got, expected)


def trl_experience(monkeypatch, trainer, parts, lengths, logprobs=None, sampled=None, finished=None, **settings):
    """TRL's own _generate_and_score_completions on completions, rewards and log-probs that we set."""
    for name, value in settings.items():
        monkeypatch.setattr(trainer, name, value, raising=False)
    columns = torch.tensor([[float("nan") if v is None else v for v in values] for values in parts.values()]).T
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *_: columns.clone())
    names = list(parts)
    for name, value in (("reward_funcs", [None] * len(names)), ("reward_func_names", names)):
        monkeypatch.setattr(trainer, name, value)
    monkeypatch.setattr(trainer, "reward_weights", torch.ones(len(names)))
    end = trainer._tokenizer.eos_token_id
    done = [True] * len(lengths) if finished is None else finished
    ids = [[9] * (n - 1) + [end if f else 9] for n, f in zip(lengths, done, strict=True)]
    texts, prompts = ["x"] * len(ids), [[5]] * len(ids)
    given = None if sampled is None else [row[:n].tolist() for row, n in zip(sampled, lengths, strict=True)]
    if type(trainer).__name__ == "RLOOTrainer":
        outputs = (prompts, ids, texts)
    else:
        outputs = (prompts, ids, None, texts, given, {}, None, [])
    monkeypatch.setattr(trainer, "_generate", lambda _: outputs)
    calls = iter(logprobs or [torch.zeros(len(ids), max(lengths))] * 9)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (next(calls), None, None))
    return trainer._generate_and_score_completions([{"prompt": "1+1="}] * len(ids))


NONE_PARTS = {"a": [1.0, 0.3, None, 0.7, None, 2.0, -1.0, 0.5], "b": [0.0, None, None, 1.0, None, 1.0, 0.5, None]}
PLAIN_PARTS = {"a": [1.0, 0.0, 0.0, 1.0, 0.25, 0.25, 0.25, 0.25], "b": [0.5, 0.1, 0.0, 0.9, 0.3, 0.3, 0.3, 0.3]}
given_parts = pytest.mark.parametrize("parts", [PLAIN_PARTS, NONE_PARTS], ids=["plain", "None"])


def summed(parts):
    return [sum(v[i] for v in parts.values() if v[i] is not None) for i in range(8)]


@pytest.mark.long
@given_parts
@pytest.mark.parametrize(("advantage", "scale"), [("grpo", "group"), ("mean", "none")])
def test_group_advantages_equal_trls(monkeypatch, trl_trainers, parts, advantage, scale):
    theirs = trl_experience(monkeypatch, trl_trainers["grpo"], parts, TRL_LENGTHS, scale_rewards=scale)
    config = make_config(advantage=advantage, advantage_eps=1e-4)
    batch, made = experience_of(config, made_samples(summed(parts), TRL_LENGTHS, parts))
    assert made["advantages"].abs().max() > 0.1
    close(per_row(made["advantages"], batch["response_mask"]), theirs["advantages"], 1e-5)


@pytest.mark.long
@given_parts
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_rloo_advantages_equal_trls(monkeypatch, trl_trainers, parts, kl_coef):
    """With k1 summed into the reward, as in TRL."""
    trainer, kl = trl_trainers["rloo"], 0.25
    old = torch.full((8, 8), -1.5)
    networks = [old, old - kl]
    theirs = trl_experience(monkeypatch, trainer, parts, TRL_LENGTHS, networks, beta=kl_coef, ref_model=trainer.model)
    config = make_config(advantage="rloo", kl_coef=kl_coef, kl_in="reward", kl_estimator="k1")
    batch, made = experience_of(config, made_samples(summed(parts), TRL_LENGTHS, parts), kl if kl_coef else None)
    close(per_row(made["advantages"], batch["response_mask"]), theirs["advantages"], 1e-5)


@pytest.mark.long
@given_parts
def test_gdpo_advantages_are_trls_but_for_the_batch_normalisation(monkeypatch, trl_trainers, parts):
    """TRL normalises over completions, we (and verl) over tokens: one scale and one shift apart."""
    how = {"multi_objective_aggregation": "normalize_then_sum"}
    theirs = trl_experience(monkeypatch, trl_trainers["grpo"], parts, TRL_LENGTHS, **how)["advantages"]
    config = make_config(advantage="gdpo", advantage_eps=1e-4)
    batch, made = experience_of(config, made_samples(summed(parts), TRL_LENGTHS, parts))
    scored = torch.tensor([any(v[i] is not None for v in parts.values()) for i in range(8)])
    ours = per_row(made["advantages"], batch["response_mask"])
    assert not ours[~scored].any() and not theirs[~scored].any()
    x, y = (a[scored].double() - a[scored].double().mean() for a in (theirs, ours))
    slope = (x * y).sum() / (x * x).sum()
    assert 0.8 < slope < 1.2
    close(y, slope * x, 1e-5)


@pytest.mark.long
def test_masked_truncated_completions_equal_trls(monkeypatch, trl_trainers):
    finished = [True, False, True, True, False, True, True, False]
    kept = {"finished": finished, "mask_truncated_completions": True}
    theirs = trl_experience(monkeypatch, trl_trainers["grpo"], PLAIN_PARTS, TRL_LENGTHS, scale_rewards="none", **kept)
    config = make_config(advantage="mean", mask_truncated=True, aggregation="seq_mean_token_mean")
    batch, made = experience_of(config, made_samples(summed(PLAIN_PARTS), TRL_LENGTHS, PLAIN_PARTS, finished))
    mask = batch["loss_mask"][:, -8:]
    assert torch.equal(mask, theirs["completion_mask"].to(mask))
    close(made["advantages"][:, -8:], theirs["advantages"][:, None] * mask, 1e-5)
    logprobs, old, _, _ = trl_case(torch.float32)
    inputs = trl_inputs(mask, theirs["advantages"], old)
    expected = trl_loss(monkeypatch, trl_trainers["grpo"], inputs, logprobs, loss_type="grpo")
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": old}
    piece["advantages"] = made["advantages"][:, -8:]
    got = value_and_gradient(lambda x: minibatch_loss(config, piece, x), logprobs)
    for a, b in zip(got, expected, strict=True):
        close(a, b, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        ("tis", "token_truncate", None, 1.3),
        ("icepop", "token_mask", 0.6, 1.3),
        ("seq_mask", "sequence_mask", None, 0.9),
        ("seq_mask", "sequence_mask", 0.6, 3.0),
    ],
)
def test_mismatch_weights_equal_trls(monkeypatch, trl_trainers, ours, theirs, low, high):
    """TRL's own correction for vLLM; without its lower bound it is mismatch_low 0."""
    _, old, _, mask = trl_case(torch.float32)
    sampled = old + normal(13, *mask.shape, scale=0.5).float()
    settings = {"vllm_importance_sampling_mode": theirs, "vllm_importance_sampling_clip_min": low}
    settings |= {"use_vllm": True, "vllm_importance_sampling_correction": True}
    settings |= {"vllm_importance_sampling_clip_max": high}
    settings |= {"logprobs": [old], "sampled": sampled}
    made = trl_experience(monkeypatch, trl_trainers["grpo"], PLAIN_PARTS, TRL_LENGTHS, **settings)
    got = mismatch_weights(old, sampled, mask, ours, low or 0.0, high)
    expected = made["importance_sampling_ratio"] * mask
    where = mask.bool()
    assert (expected[where] == 0).any() or ours == "tis"
    assert (expected[where] > 0).any()
    close(got * mask, expected, 1e-5)


# ------------------------------------------------------------------------------------------------ mismatch
@pytest.mark.parametrize("how", ["none", "tis", "icepop", "seq_mask"])
def test_what_is_logged_of_the_mismatch(how):
    """Weight before any bound, k3 of KL(sampler || trainer), the share that was cut, and the update's own KL."""
    logprobs, old, advantages, mask = case()
    rollout = old + normal(13, *mask.shape, scale=0.5)
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": rollout, "advantages": advantages}
    measured = policy_terms(make_config(mismatch=how), piece, logprobs)[1]
    w, ratio = (old - rollout).exp(), (logprobs - old).exp()
    product = torch.where(mask == 1, w, 1.0).prod(1, keepdim=True).expand_as(w)
    cut = {"none": w < 0, "tis": w > 2, "icepop": (w < 0.5) | (w > 2), "seq_mask": (product < 0.5) | (product > 2)}
    expected = {"mismatch/weight_mean": w, "mismatch/kl": w - 1 - w.log(), "mismatch/cut_frac": cut[how]}
    expected |= {"kl/approx": ratio - 1 - ratio.log(), "policy/ratio_max": ratio}
    for key, values in expected.items():
        close(measured[key] * mask, values * mask)


def test_the_correction_weighs_the_policy_loss_and_not_the_kl():
    """Of itself it acts with another engine only."""
    logprobs, old, advantages, mask = case()
    piece = {"loss_mask": mask, "old_logprobs": old, "rollout_logprobs": old - 0.1, "advantages": advantages}
    with_kl, kl = piece | {"ref_logprobs": old - 0.3}, 0.5 * (logprobs - old + 0.3) ** 2 / 2

    def losses(part, **settings):
        return policy_terms(make_config(kl_in="loss", kl_estimator="k2", **settings), part, logprobs)[0]

    plain = losses(piece)
    close(losses(piece, rollout_engine="vllm"), plain * np.exp(0.1))
    close(losses(with_kl, kl_coef=0.5), plain + kl)
    close(losses(with_kl, kl_coef=0.5, mismatch="icepop"), plain * np.exp(0.1) + kl)


# ------------------------------------------------------------------------------------------------ enumeration: KL
def distributions(seed=0, vocab=5):
    """Logits of a policy, of another one that sampled, and of a reference."""
    return [normal(seed + i, vocab) for i in range(3)]


def expected_gradient(policy, sampler, reference, estimator):
    """Expectation over the sampler's tokens of the gradient of `kl_loss`, by enumeration."""
    logits = policy.clone().requires_grad_()
    lp, old, ref = (torch.log_softmax(x, -1) for x in (logits, sampler, reference))
    (old.exp() * kl_loss(lp, old, ref, estimator)).sum().backward()
    return logits.grad


def test_kl_of_a_token_by_hand():
    """Of log-probs 0.5 above and 1 below the reference, and 30 below, where k3 is bounded."""
    policy, reference = torch.tensor([-1.0, -3.0, -40.0]), torch.tensor([-1.5, -2.0, -10.0])
    close(kl_estimate(policy, reference, "k1"), [0.5, -1, -30])
    close(kl_estimate(policy, reference, "k2"), [0.125, 0.5, 450])
    close(kl_estimate(policy, reference, "k3"), [np.exp(-0.5) - 0.5, np.e - 2, np.exp(20) - 31], 1e-6)


def kl_gradient(policy, reference, forward=False):
    logits = policy.clone().requires_grad_()
    p, q = torch.log_softmax(logits, -1), torch.log_softmax(reference, -1)
    kl = (q.exp() * (q - p)).sum() if forward else (p.exp() * (p - q)).sum()
    return torch.autograd.grad(kl, logits)[0]


def test_gradient_of_each_kl_form_in_the_loss():
    policy, sampler, reference = distributions()
    reverse, forward = kl_gradient(policy, reference), kl_gradient(policy, reference, forward=True)
    assert min(reverse.abs().max(), forward.abs().max(), (reverse - forward).abs().max()) > 0.05
    close(expected_gradient(policy, policy, reference, "k1"), torch.zeros(5))
    close(expected_gradient(policy, policy, reference, "k2"), reverse)
    close(expected_gradient(policy, policy, reference, "k3"), forward)
    close(expected_gradient(policy, policy, reference, "k3_ratio"), reverse)
    close(expected_gradient(policy, sampler, reference, "k3_ratio"), reverse)  # whoever sampled
    away = -kl_gradient(policy, sampler, forward=True)  # k1 on an older policy's tokens: away from that policy
    close(expected_gradient(policy, sampler, reference, "k1"), away)
    for other in ("k2", "k3"):
        assert (expected_gradient(policy, sampler, reference, other) - reverse).abs().max() > 0.02
    policy, sampler, reference = (torch.log_softmax(x, -1) for x in (policy, sampler, reference))
    kl = (policy.exp() * (policy - reference)).sum()
    close((sampler.exp() * kl_loss(policy, sampler, reference, "k3_ratio")).sum(), kl)


def test_gradient_of_each_kl_form_in_the_reward():
    """k1: reverse KL. k3: reverse minus forward KL. k2: neither."""
    policy, _, reference = distributions()
    reverse, forward = kl_gradient(policy, reference), kl_gradient(policy, reference, forward=True)

    def in_reward(estimator):
        logits = policy.clone().requires_grad_()
        lp, ref = torch.log_softmax(logits, -1), torch.log_softmax(reference, -1)
        penalty = kl_estimate(lp, ref, estimator).detach()
        return torch.autograd.grad((lp.detach().exp() * penalty * lp).sum(), logits)[0]

    close(in_reward("k1"), reverse)
    close(in_reward("k3"), reverse - forward)
    k2 = in_reward("k2")
    assert min((k2 - x).abs().max() for x in (reverse, forward, reverse - forward)) > 0.02


# ------------------------------------------------------------------------------------------------ enumeration: reward
class TinyPolicy:
    """Up to two tokens of three, 0 ends the text: seven completions, each with a score; logits are a table."""

    def __init__(self, seed=0):
        self.logits = normal(seed, 3, 3, scale=0.7).requires_grad_()
        self.texts = [(0,), *((a, b) for a in (1, 2) for b in (0, 1, 2))]
        self.mask = ragged([len(text) for text in self.texts])
        self.reference = torch.log_softmax(normal(seed + 1, 3, 3), -1)
        self.scores = torch.tensor([0.3, 1.0, -0.5, 2.0, 0.1, 0.7, -1.0]).double()
        self.values = normal(seed + 2, 3)[torch.tensor([[0, text[0]] for text in self.texts])]  # of each prefix

    def logprobs(self, table=None):
        """[7, 2]"""
        table = torch.log_softmax(self.logits, -1) if table is None else table
        rows = [[table[0, t[0]], table[t[0], t[1]] if len(t) > 1 else table[0, 0] * 0] for t in self.texts]
        return torch.stack([torch.stack(row) for row in rows])

    def exact(self, scores=None, kl_coef=0.0, states_fixed=False):
        """Gradient of the expected score, minus kl_coef times that of KL(policy || reference)."""
        lp, ref = self.logprobs(), self.logprobs(self.reference)
        kl = ((lp - ref) * self.mask).sum(1)
        scores = self.scores if scores is None else scores
        value = (lp.sum(1).exp() * (scores - kl_coef * kl)).sum()
        if states_fixed:  # the KL of each state's distribution, the states as they came
            table = torch.log_softmax(self.logits, -1)
            each = (table.exp() * (table - self.reference)).sum(1)
            visits = torch.cat([torch.ones(1), table[0, 1:].exp().detach()])
            value = (lp.sum(1).exp() * scores).sum() - kl_coef * (visits * each).sum()
        return torch.autograd.grad(value, self.logits)[0]

    def estimate(self, config, count, scores=None, kl_coef=0.0, advantages_of=None):
        """Expectation of the update's gradient, over all tuples of `count` completions, by enumeration."""
        scores = self.scores if scores is None else scores
        lp, ref = self.logprobs(), self.logprobs(self.reference)
        old, total = lp.detach(), 0.0
        greedy = self.scores[old.sum(1).argmax()]
        for rows in map(list, itertools.product(range(7), repeat=count)):
            mask, groups = self.mask[rows], torch.zeros(count).long()
            kl = kl_estimate(old[rows], ref[rows], config.kl_estimator[:2]) * mask
            rewards = shape_rewards(scores[rows], kl, mask, kl_coef if config.kl_in == "reward" else 0.0)
            known = {"rewards": rewards, "scores": rewards.sum(1), "groups": groups, "mask": mask}
            known |= {"response_mask": mask, "values": self.values[rows]}
            known |= {"baselines": greedy.expand(count), "parts": scores[rows][:, None]}
            a = (advantages_of or ADVANTAGES[config.advantage])(config=config, **known)
            piece = {"loss_mask": mask, "old_logprobs": old[rows], "rollout_logprobs": old[rows]}
            piece["advantages"] = (a if a.dim() == 2 else a[:, None]) * mask
            if kl_coef and config.kl_in == "loss":
                piece["ref_logprobs"] = ref[rows].detach()
            total = total + old[rows].sum().exp() * minibatch_loss(config, piece, lp[rows])
        return -torch.autograd.grad(total, self.logits)[0]


def apart(a, b):
    """Angle-like distance of two gradients after the best scaling, 0 to 1."""
    a, b = a.flatten(), b.flatten()
    return 1 - ((a @ b) / (a.norm() * b.norm())).item()


@pytest.mark.parametrize(
    ("advantage", "loss", "count", "scale"),
    [
        *(("rloo", loss, 2, 1.0) for loss in ("clip", "cispo", "sapo")),
        *(("mean", "clip", 3, 2 / 3), ("gpg", "reinforce", 2, 1 / 2)),
    ],
)
def test_unbiased_group_estimators_have_the_exact_gradient_of_the_expected_score(advantage, loss, count, scale):
    """RLOO's is exact; R - mean is exact times (n - 1) / n; so is GPG's with one prompt, where its alpha is 1."""
    policy = TinyPolicy()
    config = make_config(loss=loss, advantage=advantage, aggregation="seq_mean_token_sum", dual_clip=0.0)
    close(policy.estimate(config, count), scale * policy.exact())


def test_remax_and_plain_returns_are_unbiased():
    policy = TinyPolicy()
    config = make_config(advantage="remax", group_size=1, aggregation="seq_mean_token_sum")
    for count in (1, 2):
        close(policy.estimate(config, count), policy.exact())
    plain = lambda rewards, mask, **_: discounted_returns(rewards, mask, 1.0)  # noqa: E731
    close(policy.estimate(config, 1, advantages_of=plain), policy.exact())


@pytest.mark.parametrize("advantage", ["rloo", "remax"])
def test_kl_in_the_reward_has_the_exact_gradient_of_the_kl_of_completions(advantage):
    policy = TinyPolicy()
    config = make_config(
        advantage=advantage, aggregation="seq_mean_token_sum", kl_coef=0.4, kl_in="reward", kl_estimator="k1",
        group_size=4 if advantage == "rloo" else 1,
    )  # fmt: skip
    close(policy.estimate(config, 2, kl_coef=0.4), policy.exact(kl_coef=0.4))


@pytest.mark.parametrize("estimator", ["k2", "k3_ratio"])
def test_kl_in_the_loss_has_the_gradient_of_each_states_kl(estimator):
    """It leaves out that a token changes the states that follow, where the KL in the reward does not."""
    policy = TinyPolicy()
    settings = {"kl_coef": 0.4, "kl_in": "loss", "kl_estimator": estimator, "aggregation": "seq_mean_token_sum"}
    got = policy.estimate(make_config(advantage="rloo", **settings), 2, kl_coef=0.4)
    close(got, policy.exact(kl_coef=0.4, states_fixed=True))
    assert (got - policy.exact(kl_coef=0.4)).abs().max() > 1e-3


def test_maxrl_is_the_gradient_of_a_truncated_log_likelihood():
    """With scores 0 and 1 and pass rate p: sum over k < n of (1 - p)^(k - 1), times that of p (arXiv 2602.02710)."""
    policy, count = TinyPolicy(), 3
    scores = (policy.scores > 0.5).double()
    config = make_config(advantage="maxrl", aggregation="seq_mean_token_sum")
    p = (policy.logprobs().sum(1).exp() * scores).sum().item()
    factor = sum((1 - p) ** (k - 1) for k in range(1, count))
    close(policy.estimate(config, count, scores), factor * policy.exact(scores), 1e-5)


@pytest.mark.parametrize(
    "advantage", ["grpo", "opo", "gpg_verl", "gdpo", "reinforce_pp_baseline", "reinforce_pp", "maxrl"]
)
def test_these_estimators_are_biased(advantage):
    """Their expected direction is not that of the expected score: a standard deviation, length or batch comes in."""
    policy = TinyPolicy()
    policy.scores = policy.scores.clamp(min=0)  # two scores are 0, the others differ
    config = make_config(advantage=advantage, aggregation="seq_mean_token_sum")
    got = policy.estimate(config, 3 if advantage in ("grpo", "gdpo") else 2)
    assert apart(got, policy.exact()) > 1e-4 and got.abs().max() > 1e-2


def test_aggregation_and_bias():
    """A constant divisor scales the exact gradient, one that depends on the length turns it."""
    policy = TinyPolicy()
    for aggregation, scale in (("seq_mean_token_sum_norm", 1 / 12), ("fixed_length", 1 / 77)):
        config = make_config(advantage="rloo", aggregation=aggregation)
        close(policy.estimate(config, 2), scale * policy.exact())
    for aggregation in ("token_mean", "seq_mean_token_mean"):
        config = make_config(advantage="rloo", aggregation=aggregation)
        assert apart(policy.estimate(config, 2), policy.exact()) > 1e-4


# ------------------------------------------------------------------------------------------------ networks
PROMPTS = ["1+1=", "34+71=", "What is 12+5? Be brief.", "7", "Add 19 and 23, then say it.", "90+9=", "2", "8+88="]
RESPONSES = [3, 9, 1, 14, 6, 2, 11, 5]


@pytest.fixture
def models_of(saved):
    """Load the networks that a config asks for; in fp64, so that sums in another order agree closely."""

    def load(config, double=True):
        torch.manual_seed(0)
        models = load_models(dataclasses.replace(config, model=saved("llama")), CPU)
        for network in (models.policy, models.reference):
            if double and network is not None:
                network.double()
        return models

    return load


def random_batch(models, kl=False, zero_rows=(2, 5), masked_rows=(6,)):
    """A batch as in a later minibatch: ratios around 1, a sampler slightly off, some rows without advantage."""
    rng = np.random.default_rng(0)
    samples = []
    for text, length in zip(PROMPTS, RESPONSES, strict=True):
        sample = {"prompt_ids": models.tokenizer.encode(text), "response_ids": rng.integers(6, 262, length).tolist()}
        sample["response_mask"] = [int(t % 4 != 2 or t == length - 1) for t in range(length)]  # others are a tool's
        samples.append(sample | {"rollout_logprobs": [0.0] * length, "finished": True})
    batch = collate(samples, models.pad_id, CPU)
    mask = batch["loss_mask"] = batch["response_mask"].double()
    mask[list(masked_rows)] = 0
    with torch.no_grad():
        hidden = predicting_states(models.policy, batch)
        logprobs, _ = token_logprobs(Config(), models.policy, hidden, batch)
    noise = [normal(20 + i, *mask.shape, scale=0.2) * batch["response_mask"] for i in range(3)]
    batch["old_logprobs"] = logprobs + noise[0]
    batch["rollout_logprobs"] = batch["old_logprobs"] + noise[1]
    keep = torch.tensor([i not in zero_rows for i in range(8)])
    batch["advantages"] = normal(23, 8, 1) * keep[:, None] * mask
    batch["draw"] = torch.rand(mask.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    if kl:
        batch["ref_logprobs"] = logprobs + noise[2]
    return batch


SCALER = torch.amp.GradScaler("cpu", enabled=False)


def gradient_of(config, models, batch, rows=range(8)):
    """Gradient of the policy, flattened, and the sums of accumulate_gradients."""
    models.policy.zero_grad()
    statistics = accumulate_gradients(config, models, batch, np.asarray(rows), SCALER).values
    peak = statistics.pop("policy/ratio_max")
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in models.policy.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    models.policy.zero_grad()
    return flat, torch.stack([*statistics.values()]), peak


def oracle_gradient(config, models, batch, rows):
    """Value and gradient of the minibatch from Hugging Face's logits, row by row, without padding or our numerics."""
    logprobs, live = torch.zeros(batch["loss_mask"].shape, dtype=torch.float64), {}
    for row in rows:
        where, real = batch["response_mask"][row].bool(), batch["attention_mask"][row].bool()
        ids, at = batch["input_ids"][row][real], where[real].nonzero()[:, 0]
        logits = models.policy(input_ids=ids[None]).logits[0, at - 1]
        live[row] = torch.log_softmax(logits, -1).gather(1, ids[at, None])[:, 0]
        logprobs[row, where] = live[row].detach()
    x = [logprobs[rows], batch["old_logprobs"][rows], batch["advantages"][rows], batch["loss_mask"][rows]]
    chosen = np.zeros(x[0].shape)
    if config.loss in ("clip_cov", "kl_cov"):
        chosen = covariance_oracle(config, *x, batch["draw"][rows])
    value, slopes, _ = minibatch_oracle(config, *x, chosen)
    surrogate = 0.0
    for i, row in enumerate(rows):
        where = batch["response_mask"][row].bool()
        surrogate = surrogate + (torch.as_tensor(slopes)[i, where] * live[row]).sum()
    models.policy.zero_grad()
    surrogate.backward()
    flat = torch.cat([p.grad.flatten() for p in models.policy.parameters()])
    models.policy.zero_grad()
    return value, flat


def relative(a, b) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize(("name", "aggregation"), EACH)
def test_gradients_of_networks_equal_the_oracle_whatever_the_pieces(models_of, name, aggregation):
    """Loss and gradient: by oracle, in micro-batches of any size, in any order of rows, with any padding."""
    config = make_config(loss=name, aggregation=aggregation, **OUR_LOSSES[name], micro_batch_tokens=10**6)
    models = models_of(config)
    batch, rows = random_batch(models), [0, 1, 2, 3, 4, 6, 7]
    whole, sums, peak = gradient_of(config, models, batch, rows)
    value, expected = oracle_gradient(config, models, batch, rows)
    assert expected.norm() > 1e-4
    assert relative(whole, expected) < 1e-6  # token weights are fp32
    assert sums[0].item() == pytest.approx(value, rel=1e-5, abs=1e-7)

    padded = {k: torch.nn.functional.pad(x, (3, 2)) for k, x in batch.items()}
    for tokens, data, order in ((1, batch, rows), (70, padded, rows[::-1])):
        changed = dataclasses.replace(config, micro_batch_tokens=tokens)
        got, got_sums, got_peak = gradient_of(changed, models, data, order)
        assert relative(got, whole) < 1e-6
        close(got_sums, sums, 1e-5)
        close(got_peak, peak, 1e-6)


def test_kl_and_entropy_and_correction_do_not_depend_on_the_pieces(models_of):
    settings = {"kl_coef": 0.2, "kl_in": "loss", "kl_estimator": "k3_ratio", "entropy_coef": 0.03}
    config = make_config(loss="gspo", **settings, mismatch="seq_mask", micro_batch_tokens=10**6)
    models = models_of(dataclasses.replace(config, kl_coef=0.0))
    batch = random_batch(models, kl=True)
    whole, sums, _ = gradient_of(config, models, batch)
    got, got_sums, _ = gradient_of(dataclasses.replace(config, micro_batch_tokens=70), models, batch)
    assert relative(got, whole) < 1e-6
    close(got_sums, sums, 1e-5)
    without, _, _ = gradient_of(dataclasses.replace(config, kl_coef=0.0), models, batch)
    assert relative(without, whole) > 1e-3


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_the_entropy_bonus_is_weighted_like_the_loss(models_of, aggregation):
    """Oracle: entropies of Hugging Face's logits, row by row; no row has an advantage."""
    config = make_config(aggregation=aggregation, entropy_coef=0.1)
    models = models_of(config)
    batch = random_batch(models, zero_rows=range(8))
    got, _, _ = gradient_of(config, models, batch)
    lengths = batch["loss_mask"].sum(1).int().tolist()
    bonus = 0.0
    for row, weight in enumerate(weight_oracle(aggregation, lengths, config)):
        if lengths[row]:
            real = batch["attention_mask"][row].bool()
            ids, at = batch["input_ids"][row][real], batch["response_mask"][row][real].nonzero()[:, 0]
            logits = models.policy(input_ids=ids[None]).logits[0, at - 1]
            bonus = bonus + weight * torch.distributions.Categorical(logits=logits).entropy().sum()
    (-0.1 * bonus).backward()
    expected = torch.cat([p.grad.flatten() for p in models.policy.parameters()])
    assert relative(got, expected) < 1e-6


# ------------------------------------------------------------------------------------------------ rows without effect
@pytest.fixture
def forwards(monkeypatch):
    """Rows that each network's passes have seen: a list of counts."""
    seen, plain, in_a_line = [], backbone, line_states

    def counted(model, input_ids, *args, **kwargs):
        seen.append(len(input_ids))
        return plain(model, input_ids, *args, **kwargs)

    def counted_in_a_line(model, layout):
        seen.append(len(layout.predicting))
        return in_a_line(model, layout)

    patch_rooms(monkeypatch, "backbone", counted)
    patch_rooms(monkeypatch, "line_states", counted_in_a_line)
    return seen


@pytest.mark.parametrize("name", OUR_LOSSES)
def test_rows_that_contribute_nothing_cost_no_pass(models_of, forwards, monkeypatch, name):
    """Rows 2 and 5 have advantage 0, row 6 is masked; without them the gradient is the same, bit by bit but sums."""
    config = make_config(loss=name, aggregation="token_mean", **OUR_LOSSES[name])
    models = models_of(config)
    batch = random_batch(models)
    forwards.clear()
    got, sums, _ = gradient_of(config, models, batch)
    assert sum(forwards) == (2 * 7 if name in ("clip_cov", "kl_cov") else 5)
    patch_rooms(monkeypatch, "contributing", lambda config, batch: list(range(8)))
    everything, all_sums, _ = gradient_of(config, models, batch)
    assert relative(got, everything) < 1e-9
    assert sums[0].item() == pytest.approx(all_sums[0].item(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("kl_in", "rows"), [("loss", 7), ("reward", 5)])
def test_rows_without_advantage_run_where_another_loss_needs_them(models_of, forwards, kl_in, rows):
    """All but the masked one."""
    config = make_config(kl_coef=0.1, kl_in=kl_in, kl_estimator="k1")
    models = models_of(dataclasses.replace(config, kl_coef=0.0))
    batch = random_batch(models, kl=True)
    forwards.clear()
    gradient_of(config, models, batch)
    assert sum(forwards) == rows


def updated(config, models, batch, step=0):
    """Metrics of one update, and how often a row went through the network."""
    optimizer = make_optimizer(config, models)
    return update(config, models, optimizer, SCALER, batch, step)[0]


def test_a_batch_without_signal_costs_no_pass_and_changes_no_weight(models_of, forwards):
    config = make_config(batch_size=8, group_size=4, minibatches=2)
    models = models_of(config, double=False)
    before = copy.deepcopy(models.policy.state_dict())
    samples = made_samples([0.7] * 8, RESPONSES, {"a": [0.7] * 8})
    forwards.clear()  # load_models makes one pass, to check the output layer
    batch = make_experience(config, models, samples, 0.0)
    metrics = updated(config, models, batch)
    assert not forwards and metrics["optim/updates"] == 0
    assert all(torch.equal(before[name], x) for name, x in models.policy.state_dict().items())


@pytest.mark.parametrize(("minibatches", "passes"), [(1, 4), (2, 8)])
def test_experience_runs_rows_with_signal_only(models_of, forwards, minibatches, passes):
    """Old log-probs are needed from the second optimizer step on; a group of one score needs none."""
    config = make_config(batch_size=8, group_size=4, minibatches=minibatches, lr=1e-9)
    models = models_of(config, double=False)
    samples = made_samples([0.7] * 4 + [0.0, 1.0, 2.0, 4.0], RESPONSES)
    forwards.clear()
    batch = make_experience(config, models, samples, 0.0)
    assert ("old_logprobs" in batch) == (minibatches > 1)
    if minibatches > 1:  # rows that did not run show no gap to the sampler
        close(batch["old_logprobs"][:4], batch["rollout_logprobs"][:4])
        assert sample_metrics(config, batch, samples, {"rollout": 1.0})["rollout/logprob_gap_max"] > 0
    updated(config, models, batch)
    assert sum(forwards) == passes


# ------------------------------------------------------------------------------------------------ processes
@pytest.mark.parametrize(("name", "aggregation"), [EACH[0], EACH[2], EACH[4], EACH[8]])
def test_processes_do_not_change_the_gradient(models_of, monkeypatch, name, aggregation):
    config = make_config(loss=name, aggregation=aggregation, **OUR_LOSSES[name], micro_batch_tokens=70)
    models = models_of(config)
    batch = random_batch(models)
    whole, sums, peak = gradient_of(config, models, batch)
    copies = [dataclasses.replace(models, policy=copy.deepcopy(models.policy)) for _ in range(2)]
    parts = side_by_side(monkeypatch, lambda rank: gradient_of(config, copies[rank], batch))
    assert relative(parts[0][0], whole) < 1e-6
    assert torch.equal(parts[0][0], parts[1][0]), "the sum over both processes, in both"
    close(parts[0][1] + parts[1][1], sums, 1e-5)
    close(torch.maximum(parts[0][2], parts[1][2]), peak, 1e-6)


@pytest.mark.parametrize("loss", ["clip", "kl_cov"])
def test_an_update_with_fewer_rows_than_processes(models_of, monkeypatch, loss):
    """A process whose share of a minibatch is empty still takes part in every sum."""
    config = make_config(loss=loss, batch_size=8, group_size=2, minibatches=4, lr=1e-3, aggregation="token_mean")
    models = models_of(config)
    batch = random_batch(models, zero_rows=(0, 2, 4, 5, 7), masked_rows=(6,))
    copies = [dataclasses.replace(models, policy=copy.deepcopy(models.policy)) for _ in range(3)]
    expected = updated(config, copies[2], batch)
    metrics = side_by_side(monkeypatch, lambda rank: updated(config, copies[rank], batch))
    assert expected["optim/updates"] >= (1 if loss == "clip" else 4)
    for rank in range(2):
        assert metrics[rank] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        for mine, theirs in zip(copies[rank].policy.parameters(), copies[2].policy.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)


# ------------------------------------------------------------------------------------------------ rollout
class FakeEngine:
    """Completions that depend on prompt and noise alone: the prompt's id, some token, and an end token or not."""

    def sync(self, step):
        pass

    def __init__(self):
        self.calls = []

    def generate(self, prompts, noise):
        self.calls.append((prompts, noise))
        if noise is None:
            return [([p[0], 99, 2], [-0.5] * 3) for p in prompts]
        return [([p[0], 20 + int(x[0] * 50), 2], [-1.0] * 3) for p, x in zip(prompts, noise, strict=True)]


class FakeReward:
    """Prompts below 100 score the same for all completions, others by their token; greedy ones score 50."""

    weights = {"a": 1.0}  # noqa: RUF012
    functions = {"a": None}  # noqa: RUF012

    def __call__(self, rows, completions, completion_ids):
        scores = [50.0 if i[1] == 99 else 0.5 if i[0] < 100 else float(i[1]) for i in completion_ids]
        return scores, {"a": scores}


def fake_rollout(config, prompt_ids, step=0, start=0, **state):
    """The engine, (batch, all that was sampled, the stream's next position), and the sampler."""
    tokenizer = SimpleNamespace(decode=lambda ids, **_: str(ids), eos_token_id=2, pad_token_id=0)
    models = SimpleNamespace(tokenizer=tokenizer, eos_ids=[2], pad_id=0, device=CPU)
    rows = [{"prompt": str(i), "prompt_ids": [i], "columns": {}} for i in prompt_ids]
    engine = FakeEngine()
    sampler = Sampler(config, models, engine, FakeReward(), rows, TrainState(prompts=start, **state))
    return engine, (*sampler.rollout(step, {}), sampler.position), sampler


class FewScores(FakeReward):
    """Applies to all completions of some calls, to none of the others."""

    def __init__(self, applies):
        self.applies = iter(applies)

    def __call__(self, rows, completions, completion_ids):
        applies = next(self.applies)
        return [float(applies)] * len(rows), {"a": [1.0 if applies else None] * len(rows)}


def test_three_rollouts_in_a_row_without_a_score_end_the_run():
    config = Config(batch_size=4, group_size=2, max_new_tokens=4, steps=9)
    _, _, sampler = fake_rollout(config, [*range(10, 30)])
    sampler.reward = FewScores([False, False, True, False, False, False])
    for step in range(5):
        sampler.rollout(step, {})
    with pytest.raises(RewardError, match="reward a: got None for every completion of 3 rollouts in a row"):
        sampler.rollout(5, {})


def dynamic_config(**settings):
    defaults = {"batch_size": 16, "group_size": 4, "dynamic_sampling": True, "max_refills": 3, "max_new_tokens": 4}
    return Config(**{"algorithm": "dapo", "overlong_share": 0.0, **defaults, **settings})


def prompts_of(samples, size=4):
    groups = [samples[i : i + size] for i in range(0, len(samples), size)]
    assert all(len({s["prompt_ids"][0] for s in g}) == 1 for g in groups), "a group has one prompt"
    return [g[0]["prompt_ids"][0] for g in groups]


def test_groups_of_equal_score_are_replaced_by_new_prompts():
    """Half of the prompts teach nothing; the stream goes on behind the last prompt taken, round by round."""
    config, prompt_ids = dynamic_config(), [*range(10, 30), *range(100, 120)]
    engine, (batch, drawn, position), _ = fake_rollout(config, prompt_ids)
    rows = [{"id": i} for i in prompt_ids]
    stream = [row["id"] for row in batch_rows(rows, config, 0, position)]
    assert prompts_of(drawn) == stream
    useful = [i for i in stream if i >= 100]
    assert len(engine.calls) > 1 and len(batch) == 16
    assert prompts_of(batch) == useful[:4] and len(useful) == 4, "no prompt is taken that is not needed"
    assert [s["group"] for s in batch] == [i // 4 for i in range(16)]
    counts = [len(prompts) // 4 for prompts, _ in engine.calls]
    missing = 4
    for count, taken in zip(counts, np.cumsum([0, *counts])[:-1], strict=True):
        assert count == missing, "a round samples as many prompts as are missing"
        missing -= sum(i >= 100 for i in stream[taken : taken + count])


@pytest.mark.parametrize("cap", [0, 1, 3])
def test_rounds_are_capped_and_such_groups_then_fill_the_batch(cap):
    """Each round draws other noise, the first that of a run without dynamic sampling."""
    engine, (batch, drawn, position), _ = fake_rollout(dynamic_config(max_refills=cap), [10, 11, 12])
    plain, *_ = fake_rollout(dynamic_config(dynamic_sampling=False), [10, 11, 12])
    assert np.array_equal(plain.calls[0][1], engine.calls[0][1])
    assert len({noise.tobytes() for _, noise in engine.calls}) == 1 + cap
    assert len(engine.calls) == 1 + cap and len(drawn) == 16 * (1 + cap) and position == 4 * (1 + cap)
    assert len(batch) == 16 and {s["score"] for s in batch} == {0.5}
    assert [s["group"] for s in batch] == [i // 4 for i in range(16)]


def test_a_group_is_of_equal_score_by_each_reward_where_these_are_compared_each():
    parts = {"a": [1.0, 0.0, 1.0, 0.0], "b": [0.0, 1.0, 0.0, 1.0]}
    group = made_samples([1.0] * 4, [2] * 4, parts)
    alike = made_samples([1.0] * 4, [2] * 4, {"a": [1.0] * 4, "b": [None] * 4})
    assert equal_groups(group + alike, 4) == [True, True]
    assert equal_groups(group + alike, 4, each_reward=True) == [False, True]
    batch, made = experience_of(make_config(advantage="gdpo"), group)
    assert (made["advantages"][batch["response_mask"] == 1] == 0).all(), "here the two rewards cancel"


def groups_to_sample(config, missing, kept):
    return Sampler(config, None, None, None, [], TrainState(kept=kept)).groups_to_sample(missing)


def test_a_round_samples_as_many_groups_as_the_recent_share_asks_for():
    """n p - sqrt(n p (1 - p)) >= missing: by trying n = 1, 2, …"""

    def enough(missing: int, p: float) -> int:
        return next(n for n in range(1, 999) if n * p - (n * p * (1 - p)) ** 0.5 >= missing - 1e-9)

    config = dynamic_config(max_oversampling=20.0)
    for missing, kept, sampled in ((4, 5.0, 10.0), (16, 3.0, 9.0), (1, 9.0, 10.0), (8, 7.0, 7.0)):
        assert groups_to_sample(config, missing, [kept, sampled]) == enough(missing, kept / sampled)
    capped = dynamic_config(max_oversampling=1.5)
    assert groups_to_sample(capped, 4, [1.0, 10.0]) == 6 and groups_to_sample(capped, 4, [0.0, 10.0]) == 6
    assert groups_to_sample(capped, 1, [1.0, 10.0]) == 1 and groups_to_sample(capped, 4, [0.0, 0.0]) == 4
    assert groups_to_sample(dynamic_config(), 4, [1.0, 10.0]) == 4, "not unless asked for"


def test_what_a_larger_round_samples_too_much_is_counted_and_not_used():
    """Half of the prompts teach nothing; with 8 groups for 4 places, one round is enough."""
    prompt_ids = [*range(10, 30), *range(100, 120)]
    plain, (expected, few, _), _ = fake_rollout(dynamic_config(), prompt_ids)
    config = dynamic_config(max_oversampling=3.0)
    engine, (batch, drawn, position), sampler = fake_rollout(config, prompt_ids, kept=[0.9, 3.0])
    assert len(engine.calls) == 1 < len(plain.calls) and len(drawn) == 48 and position == 12
    assert prompts_of(batch) == prompts_of(expected) and not any(s["filler"] for s in batch), "the first that differ"
    assert np.array_equal(engine.calls[0][1][:16], plain.calls[0][1]), "the noise of a round without"
    differing = sum(i >= 100 for i in prompts_of(drawn))
    metrics = sample_metrics(config, collate(batch[:4], 0, CPU), drawn, {"rollout": 1.0})
    assert metrics["rollout/unused"] == 4 * (differing - 4) > 0 and metrics["rollout/rounds"] == 1
    assert metrics["reward/zero_std_frac"] == pytest.approx(1 - differing / 12), "of all that was sampled"
    metrics = sample_metrics(config, collate(batch[:4], 0, CPU), few, {"rollout": 1.0})
    assert metrics["rollout/unused"] == 0 and metrics["rollout/rounds"] == len(plain.calls)
    assert sampler.state()["kept"] == pytest.approx([0.9 * 0.9 + differing, 0.9 * 3.0 + 12])


def test_remax_has_the_greedy_completion_of_each_prompt_as_baseline():
    config = Config(algorithm="remax", batch_size=4, group_size=2, max_new_tokens=4)
    engine, (batch, drawn, _), _ = fake_rollout(config, [100, 101, 102])
    assert [noise is None for _, noise in engine.calls] == [False, True]
    assert [len(prompts) for prompts, _ in engine.calls] == [4, 2]
    assert [p[0] for p in engine.calls[1][0]] == prompts_of(batch, 2)
    assert len(drawn) == 4 and {s["baseline"] for s in batch} == {50.0}
    overlong = dataclasses.replace(config, overlong_share=1.0)  # 3 of 4 tokens: 0.75 is taken from each
    _, (batch, _, _), _ = fake_rollout(overlong, [100, 101, 102])
    assert {s["baseline"] for s in batch} == {49.25}


# ------------------------------------------------------------------------------------------------ settings, presets
COMMON = """
advantage=grpo loss=clip aggregation=token_mean group_size=8 ppo_epochs=1 minibatches=1 dynamic_sampling=no
kl_coef=0 kl_in=loss kl_estimator=k3 missing_eos_penalty=0 overlong_share=0 dual_clip=0 clip_eps_low=0.2
clip_eps_high=0.2 sapo_tau_pos=1 sapo_tau_neg=1.05 cov_frac=2e-4 cov_low=1 cov_high=5 kl_cov_coef=1
"""
KL = "kl_in=reward kl_estimator=k1 kl_coef="
BY_HAND = {  # from the papers: what each preset has instead
    "ppo": f"advantage=gae group_size=1 ppo_epochs=2 dual_clip=3 {KL}0.01",
    "grpo": "aggregation=seq_mean_token_mean",
    "dr_grpo": "advantage=mean aggregation=seq_mean_token_sum_norm",
    "dapo": "clip_eps_high=0.28 dynamic_sampling=yes overlong_share=0.2 minibatches=4",
    "rloo": f"advantage=rloo aggregation=seq_mean_token_sum {KL}0.05",
    "reinforce_pp": f"advantage=reinforce_pp group_size=1 {KL}0.01",
    "reinforce_pp_baseline": "advantage=reinforce_pp_baseline kl_estimator=k2 kl_coef=0.001",
    "remax": f"advantage=remax group_size=1 aggregation=seq_mean_token_sum {KL}0.01",
    "opo": "advantage=opo",
    "gpg": "advantage=gpg loss=reinforce",
    "maxrl": "advantage=maxrl",
    "gdpo": "advantage=gdpo",
    "gspo": "loss=gspo clip_eps_low=3e-4 clip_eps_high=4e-4 aggregation=seq_mean_token_mean minibatches=4",
    "cispo": "loss=cispo clip_eps_low=1 clip_eps_high=4 minibatches=4",
    "sapo": "loss=sapo aggregation=seq_mean_token_mean minibatches=4",
    "gmpo": "loss=gmpo clip_eps_low=0.4 clip_eps_high=0.4 aggregation=seq_mean_token_mean minibatches=4",
    "dppo_tv": "loss=dppo_tv clip_eps_low=0.15 clip_eps_high=0.15 dual_clip=20 minibatches=4",
    "dppo_kl": "loss=dppo_kl clip_eps_low=0.05 clip_eps_high=0.05 dual_clip=20 minibatches=4",
    "clip_cov": "loss=clip_cov minibatches=4",
    "kl_cov": "loss=kl_cov minibatches=4",
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_by_hand_fill_every_setting_and_pass_the_checks(name):
    config = Config(algorithm=name)
    assert None not in dataclasses.asdict(config).values()
    check_config(config)
    check_config(config, world=2)
    assert config.batch_size == 128
    assert parse_config([f"--algorithm={name}"]) == config
    by_hand = [f"--{setting}" for setting in f"{COMMON} {BY_HAND[name]}".split()]
    assert parse_config([f"--algorithm={name}", *by_hand]) == config


def test_a_setting_of_a_preset_can_be_overridden_by_config_flags_and_yaml(tmp_path):
    assert Config(algorithm="dapo", clip_eps_high=0.5, dynamic_sampling=False).clip_eps_high == 0.5
    flags = parse_config(["--algorithm=dapo", "--clip-eps-high=0.5", "--dynamic_sampling=no"])
    assert (flags.clip_eps_high, flags.dynamic_sampling, flags.overlong_share) == (0.5, False, 0.2)
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: gspo\nclip_eps_low: 0.01\nkl_coef: 0.3\n")
    config = parse_config(["--config", str(file), "--kl_coef=0"])
    assert (config.loss, config.clip_eps_low, config.clip_eps_high, config.kl_coef) == ("gspo", 0.01, 4e-4, 0.0)
    config = parse_config(["--config", str(file), "--algorithm=cispo"])
    assert (config.loss, config.clip_eps_low, config.clip_eps_high) == ("cispo", 0.01, 4.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group_size": 1}, "group_size 1; expected several completions"),
        ({"algorithm": "remax", "dynamic_sampling": True}, "--dynamic_sampling with remax"),
        ({"adam_beta2": 1.0}, "below 1"),
        ({"kl_coef": 0.0, "kl_target": 6.0}, "--kl_target with kl_coef 0"),
        ({"kl_coef": 0.05, "kl_target": 6.0}, "KL in the loss; expected it in the reward"),
        ({"algorithm": "rloo", "kl_target": 6.0, "kl_horizon": 128}, "kl_horizon 128 with batch_size 128"),
        ({"algorithm": "rloo", "kl_estimator": "k3_ratio"}, "k3_ratio in the reward"),
        ({"algorithm": "gdpo", "kl_coef": 0.1, "kl_in": "reward"}, "gdpo with the KL in the reward"),
        ({"algorithm": "maxrl", "overlong_share": 0.2}, "maxrl with a penalty or KL"),
        ({"overlong_share": 1.5}, "overlong_share 1.5; expected 0 to 1"),
        ({"dual_clip": 0.5}, "dual_clip 0.5; expected 0 (off) or more than 1"),
        ({"seed": 2**32}, "seed 4294967296; expected less than 2^32"),
        ({"algorithm": "kl_cov", "cov_frac": 1.5}, "expected cov_frac <= 1"),
        ({"algorithm": "clip_cov", "cov_low": 6.0}, "expected cov_frac <= 1 and cov_low <= cov_high"),
        ({"mismatch_high": 0.9}, "exclude 1"),
        ({"aggregation": "fixed_length"}, "try --norm_length 1024"),
        ({"norm_length": 100}, "norm_length 100 with aggregation seq_mean_token_mean; expected aggregation fixed"),
        ({"sapo_tau_pos": 2.0}, "sapo_tau_pos 2.0 with loss clip; expected loss sapo"),
        ({"batch_size": 120, "group_size": 8, "minibatches": 7}, "multiple of 56; try --batch_size 168"),
        ({"algorithm": "dapo", "max_oversampling": 0.5}, "got max_oversampling 0.5; expected 1 or more"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(UserError) as refused:
        check_config(Config(**{"algorithm": "grpo", **settings}))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"steps": 3, "critic_warmup_steps": 3}, "warning: got critic_warmup_steps 3 with steps 3"),
        ({"algorithm": "grpo", "kl_coef": 0.04, "kl_estimator": "k1"}, "no gradient"),
    ],
)
def test_settings_that_train_nothing_are_warned_of(settings, warning, capsys):
    check_config(Config(steps=4, critic_warmup_steps=3))
    assert not capsys.readouterr().err
    check_config(Config(**settings))
    assert warning in capsys.readouterr().err


def test_the_document_has_every_name_and_names_tests_that_exist():
    text = (ROOT / "references" / "rl_algorithms.md").read_text(encoding="utf-8")
    parts = dict(zip(*[iter(re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:])] * 2, strict=True))
    tables = {"Parts and presets": PRESETS, "Advantages": ADVANTAGES, "Losses": LOSSES, "Aggregations": AGGREGATIONS}
    tables |= {"KL to the reference": ["k1", "k2", "k3", "k3_ratio"]}
    tables |= {"Sampler and trainer that disagree": ["auto", "none", "tis", "icepop", "seq_mask"]}
    for title, names in tables.items():
        cells = re.findall(r"^\| (`.*?) \|", parts[title], re.MULTILINE)
        listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
        assert sorted(set(listed) - {"advantage", "loss", "aggregation", "mismatch"}) == sorted(names), title
    files = [ROOT / "tests" / "test_algorithms.py", ROOT / "tests" / "with_verl" / "test_verl_parity.py"]
    tests = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    for name in re.findall(r"`(test_\w+\*?)`", parts["Compared with"]):
        assert any(test == name or (name[-1] == "*" and test.startswith(name[:-1])) for test in tests), name


# ------------------------------------------------------------------------------------------------ steps of every preset
STEP_SCORES = [0.0, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("name", "kl_coef"), [*((name, None) for name in PRESETS), ("ppo", 0.0), ("rloo", 0.0)])
def test_a_step_of_every_preset(models_of, name, kl_coef):
    """The networks that are loaded, the weights that change, and the metrics that are logged."""
    size = 1 if name in ("ppo", "remax", "reinforce_pp") else 4
    settings = {} if kl_coef is None else {"kl_coef": kl_coef}
    config = Config(algorithm=name, batch_size=8, group_size=size, max_new_tokens=16, lr=1e-3, **settings)
    check_config(config)
    models = models_of(config, double=False)
    assert (models.critic is None) == (name != "ppo") and (models.reference is None) == (config.kl_coef == 0)

    samples = made_samples(STEP_SCORES, RESPONSES, group_size=size, baselines=[0.2] * 8)
    before = copy.deepcopy(models.policy.state_dict())
    batch = make_experience(config, models, samples, config.kl_coef)
    metrics = sample_metrics(config, batch, samples, {"rollout": 1.0}) | updated(config, models, batch)
    found = {"value/loss": name == "ppo", "kl/ref": config.kl_coef > 0, "reward/zero_std_frac": size > 1}
    assert {key: key in metrics for key in found} == found and metrics["reward/only"] == np.mean(STEP_SCORES)
    assert all(np.isfinite(x) for x in metrics.values())
    assert metrics["optim/updates"] == config.ppo_epochs * config.minibatches
    assert any(not torch.equal(before[key], x) for key, x in models.policy.state_dict().items())
