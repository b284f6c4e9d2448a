"""Parity of scripts/ppo_train.py with the installed verl: every estimator, loss, aggregation, KL form, correction.

Values and gradients agree to 1e-10 in fp64, except where verl itself adds 1e-8 to a count (masked means, whitening,
seq-mean-token-mean, geo_mean): 1e-7 there.
"""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import load_script
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos as core
from verl.trainer.ppo import rollout_corr_helper as correction
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.reward_manager.dapo import DAPORewardManager

EXACT, LOOSE = 1e-10, 1e-7  # the latter where verl adds 1e-8
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 3, 3])  # of 3, 4, 1 and 2: a single one among them
LENGTHS = [5, 1, 8, 3, 8, 2, 6, 4, 7, 5]
WIDTH = 8
ALONE = 1 / (torch.tensor(1.0) + 1e-6).item()  # verl's GRPO gives a group of one the mean 0 and, in fp32, deviation 1


def close(got, expected, tolerance=EXACT):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def normal(seed: int, *shape, scale: float = 1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def ragged():
    """Responses padded on the right, [10, 8]."""
    return (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]).long()


def interleaved():
    """The same with tool output in the middle of the longer ones."""
    mask = ragged()
    mask[[2, 4, 8], 2:4] = 0
    return mask


masks = pytest.mark.parametrize("mask", [ragged(), interleaved()], ids=["ragged", "interleaved"])


def score_rewards(scores, mask):
    """Token-level rewards: the score on the last token of the mask, as verl has it."""
    last = (torch.arange(WIDTH) * mask).argmax(1)
    return torch.zeros(mask.shape, dtype=torch.float64).scatter(1, last[:, None], scores[:, None])


SCORES = normal(0, 10)
EQUAL = torch.where(GROUPS == 1, 0.1, torch.where(GROUPS == 3, 0.0, SCORES))  # a group of one score, one without any
scores_given = pytest.mark.parametrize("scores", [SCORES, EQUAL], ids=["real", "equal"])


def verl_advantages(name, scores, mask, **extra):
    """Advantages [B, T] of verl's registered estimator."""
    known = {"token_level_rewards": score_rewards(scores, mask), "response_mask": mask, "index": GROUPS.numpy()}
    known |= {"config": SimpleNamespace(gamma=0.9)}
    return core.get_adv_estimator_fn(name)(**known | extra)[0]


def our_advantages(ppo, name, scores, mask, **settings):
    """Advantages [B, T] of ours, a completion alone in its group treated as verl does."""
    config = ppo.Config(algorithm="grpo", gamma=0.9, **settings)
    known = {"scores": scores, "groups": GROUPS, "mask": mask, "rewards": score_rewards(scores, mask)}
    got = ppo.ADVANTAGES[name](config=config, alone=ALONE if name == "grpo" else 1.0, **known)
    return got if got.dim() == 2 else got[:, None] * mask


ESTIMATORS = [*((name, name, EXACT) for name in ("grpo", "rloo", "opo")), ("gpg_verl", "gpg", EXACT)]
ESTIMATORS += [(f"reinforce_pp{x}", f"reinforce_plus_plus{x}", LOOSE) for x in ("", "_baseline")]


@masks
@scores_given
@pytest.mark.parametrize(("ours", "verl", "tolerance"), ESTIMATORS)
def test_advantages(ppo, ours, verl, tolerance, scores, mask):
    got = our_advantages(ppo, ours, scores, mask)
    assert got.abs().max() > 0.1
    close(got, verl_advantages(verl, scores, mask), tolerance)


@pytest.mark.parametrize("size", [8, 16])
def test_equal_scores_have_advantages_in_verl_unless_they_add_up_exactly(size):
    launcher, estimator = load_script("verl_train"), core.get_adv_estimator_fn("grpo")
    index, mask = np.array(["one prompt"] * size, dtype=object), torch.ones(size, 3)

    def largest(value):
        rewards = torch.tensor([0.0, 0.0, value]).repeat(size, 1)  # float32, as verl has them
        return estimator(token_level_rewards=rewards, response_mask=mask, index=index)[0].abs().max()

    for score in (0.1, 0.3, 0.7, 1.2, 1.3):
        assert largest(score) > 0.005, "verl's mean of equal scores is exact now: exact_in_means has no use any more"
        assert largest(launcher.exact_in_means(score, size)) == 0
    assert all(largest(exact) == 0 for exact in (0.0, 0.25, 0.5, 1.0))


@masks
def test_dr_grpo_advantages(ppo, mask):
    got = our_advantages(ppo, "mean", SCORES, mask)
    close(got, verl_advantages("grpo", SCORES, mask, norm_adv_by_std_in_grpo=False))


@pytest.mark.parametrize(
    ("ours", "verl", "tolerance"), [("grpo", "grpo_vectorized", 1e-6), ("rloo", "rloo_vectorized", EXACT)]
)
def test_advantages_of_the_vectorized_forms(ppo, ours, verl, tolerance):
    """Without the single completion, whose advantage is 0 in verl's vectorized RLOO. Its GRPO computes in fp32."""
    several = GROUPS != 2
    got = our_advantages(ppo, ours, SCORES, ragged())
    close(got[several], verl_advantages(verl, SCORES, ragged())[several], tolerance)


@masks
def test_remax_advantages(ppo, mask):
    rewards, baselines = normal(1, 10, WIDTH) * mask, normal(2, 10)
    theirs, _ = core.compute_remax_outcome_advantage(rewards, baselines, mask)
    close(ppo.remax_advantages(rewards=rewards, baselines=baselines, mask=mask), theirs * mask)


@masks
def test_reinforce_pp_carries_rewards_through_the_mask(ppo, mask):
    """Dense rewards, such as KL, not only a score at the end."""
    rewards, config = normal(1, 10, WIDTH) * mask, ppo.Config(algorithm="reinforce_pp", gamma=0.9)
    theirs, returns = core.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, SimpleNamespace(gamma=0.9))
    close(ppo.discounted_returns(rewards, mask, 0.9), returns)
    close(ppo.reinforce_pp_advantages(rewards=rewards, mask=mask, config=config), theirs, LOOSE)


@pytest.mark.parametrize("weights", [None, [2.0, 0.5, -1.0]])
def test_gdpo_advantages(ppo, weights):
    mask, parts = ragged(), normal(3, 10, 3).float()
    parts[:, 1] = (parts[:, 1] > 0).float()
    batch = {"prompts": torch.zeros(10, 2), "attention_mask": torch.cat([torch.ones(10, 2), mask], 1).long()}
    settings = {"gdpo_reward_keys": ["a", "b", "c"], "gdpo_reward_weights": weights}
    given = {"batch": batch, "non_tensor_batch": {name: parts[:, i].numpy() for i, name in enumerate("abc")}}
    groups = GROUPS.numpy()
    theirs, _ = core.compute_gdpo_outcome_advantage(torch.zeros(10, WIDTH), mask, groups, config=settings, **given)
    known = {"parts": parts, "groups": GROUPS, "mask": mask, "weights": weights, "alone": ALONE}
    close(ppo.gdpo_advantages(config=ppo.Config(algorithm="gdpo"), **known), theirs, 1e-5)  # verl's scores are fp32


@masks
def test_gae(ppo, mask):
    rewards, values = normal(4, 10, WIDTH) * mask, normal(5, 10, WIDTH)
    theirs, returns = core.compute_gae_advantage_return(rewards, values, mask, 0.97, 0.9)
    advantages, our_returns = ppo.gae(rewards, values, mask, 0.97, 0.9)
    close(our_returns * mask, returns * mask)
    close(ppo.masked_whiten(advantages, mask), theirs * mask, LOOSE)


def verl_config(scale=None, rollout_correction=None, **settings):
    names = {"clip_eps_low": "clip_ratio_low", "clip_eps_high": "clip_ratio_high", "dual_clip": "clip_ratio_c"}
    names |= {"sapo_tau_pos": "tau_pos", "sapo_tau_neg": "tau_neg"}
    actor = {names[key]: value for key, value in settings.items() if key in names and value}
    names = {"cov_low": "clip_cov_lb", "cov_high": "clip_cov_ub", "kl_cov_coef": "ppo_kl_coef"}
    policy = {names[key]: value for key, value in settings.items() if key in names}
    if "cov_frac" in settings:
        policy |= {"clip_cov_ratio": settings["cov_frac"], "kl_cov_ratio": settings["cov_frac"]}
    if rollout_correction:
        policy["rollout_correction"] = rollout_correction
    actor |= {"policy_loss": PolicyLossConfig(**policy)}
    actor |= {"global_batch_info": {"loss_scale_factor": scale}}
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **actor)


AGGREGATIONS = {
    "token_mean": ("token-mean", None, EXACT),
    "seq_mean_token_mean": ("seq-mean-token-mean", None, LOOSE),
    "seq_mean_token_sum": ("seq-mean-token-sum", None, EXACT),
    "seq_mean_token_sum_norm": ("seq-mean-token-sum-norm", 12, EXACT),
    "fixed_length": ("seq-mean-token-sum-norm", 77, EXACT),
}
LOSSES = {  # ours: (verl's name, settings, the aggregation of verl's where it has one only)
    "clip": ("vanilla", {"clip_eps_low": 0.2, "clip_eps_high": 0.28, "dual_clip": 1.6}, None),
    "reinforce": ("gpg", {}, None),
    "gspo": ("gspo", {"clip_eps_low": 0.03, "clip_eps_high": 0.04}, None),
    "cispo": ("cispo", {"clip_eps_low": 0.3, "clip_eps_high": 0.2}, None),
    "sapo": ("sapo", {"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05}, "seq_mean_token_mean"),
    "gmpo": ("geo_mean", {"clip_eps_low": 0.2, "clip_eps_high": 0.3}, "seq_mean_token_mean"),
    "dppo_tv": ("dppo_tv", {"clip_eps_low": 0.1, "clip_eps_high": 0.15, "dual_clip": 1.5}, None),
    "dppo_kl": ("dppo_kl", {"clip_eps_low": 0.02, "clip_eps_high": 0.03, "dual_clip": 1.5}, None),
    "clip_cov": ("clip_cov", {"cov_frac": 0.2, "cov_low": 0.01, "cov_high": 1.5}, None),
    "kl_cov": ("kl_cov", {"cov_frac": 0.2, "kl_cov_coef": 0.7}, None),
}


def case(spread: float = 0.4):
    """Log-probs, old ones, and advantages of one sign per row, some of them 0; all [10, 8]."""
    old = -normal(6, 10, WIDTH).abs() - 0.05
    logprobs = (old + normal(7, 10, WIDTH, scale=spread)).clamp(max=-0.01)
    advantages = (normal(8, 10, 1) * (GROUPS != 2)[:, None]).expand(10, WIDTH)
    return logprobs, old, advantages


def value_and_gradient(loss_of, logprobs):
    leaf = logprobs.clone().requires_grad_()
    loss = loss_of(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def weights_of(ppo, mask, config):
    """Weights of one minibatch's tokens; the division of integers would give fp32."""
    return ppo.token_weights(mask.double(), config, mask.sum(), len(mask))


def our_loss(ppo, config, piece, mask):
    """The loss of one minibatch as a function of its log-probs."""

    def loss_of(logprobs):
        per_token, _ = ppo.policy_terms(config, piece, logprobs)
        return (per_token * weights_of(ppo, mask, config)).sum()

    return loss_of


def piece_of(mask, old, advantages, rollout=None):
    piece = {"loss_mask": mask, "old_logprobs": old, "advantages": advantages * mask}
    return piece | {"rollout_logprobs": old if rollout is None else rollout}


PAIRS = [(name, fixed or "token_mean") for name, (_, _, fixed) in LOSSES.items()]
PAIRS += [("clip", how) for how in AGGREGATIONS if how != "token_mean"] + [("gspo", "seq_mean_token_sum_norm")]


def same_as_verl(ppo, config, verl_name, piece, logprobs, tolerance, mode, verl_settings, **known):
    """Hold a loss and its gradient against verl's."""
    mask, loss = piece["loss_mask"], core.get_policy_loss_fn(verl_name)
    given = (piece["advantages"], mask)
    theirs = value_and_gradient(
        lambda x: loss(piece["old_logprobs"], x, *given, loss_agg_mode=mode, config=verl_settings, **known)[0], logprobs
    )
    for got, expected in zip(value_and_gradient(our_loss(ppo, config, piece, mask), logprobs), theirs, strict=True):
        assert expected.abs().max() > 1e-4
        close(got, expected, tolerance)


@masks
@pytest.mark.parametrize(("name", "aggregation"), PAIRS)
def test_losses_in_value_and_gradient(ppo, monkeypatch, name, aggregation, mask):
    verl_name, settings, _ = LOSSES[name]
    mode, scale, tolerance = AGGREGATIONS[aggregation]
    settings = {"clip_eps_low": 0.2, "clip_eps_high": 0.2} | settings
    norm = {"norm_length": scale} if aggregation == "fixed_length" else {"max_new_tokens": 12}
    config = ppo.Config(algorithm="grpo", loss=name, aggregation=aggregation, **settings, **norm)
    logprobs, old, advantages = case()
    piece = piece_of(mask, old, advantages)
    if name in ("clip_cov", "kl_cov"):
        draw = torch.rand(mask.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        piece["chosen"] = ppo.covariance_choice(logprobs, old, piece["advantages"], mask, draw, config)
        assert 2 < piece["chosen"].sum() < mask.sum() / 2
        tokens = eligible_draws(ppo, config, logprobs, old, piece["advantages"], mask, draw)
        monkeypatch.setattr(torch, "randperm", lambda n: tokens.argsort()[:n])  # verl draws as we do
    elif name not in ("reinforce", "sapo"):
        clipped = ppo.policy_terms(config, piece, logprobs)[1]["policy/clip_frac"][mask.bool()]
        assert 0.05 < clipped.mean() < 0.95, "where nothing is clipped, parity says little"
    same_as_verl(ppo, config, verl_name, piece, logprobs, tolerance, mode, verl_config(scale, **settings))


def eligible_draws(ppo, config, logprobs, old, advantages, mask, draw):
    """Draws of the tokens among which verl's clip_cov chooses, in its order; the covariance by numpy."""
    where = mask.bool().numpy()
    a, lp = advantages.numpy(), logprobs.numpy()
    cov = (a - a[where].mean()) * (lp - lp[where].mean())
    ratio = np.exp(lp - old.numpy())
    clipped = ((ratio > 1.2) & (a > 0)) | ((ratio < 0.8) & (a < 0))
    return draw[torch.as_tensor(where & ~clipped & (cov > config.cov_low) & (cov < config.cov_high))]


@pytest.mark.parametrize("name", ["clip", "gspo", "sapo", "dppo_kl"])
def test_extreme_log_ratios_are_bounded_as_in_verl(ppo, name):
    verl_name, settings, _ = LOSSES[name]
    old, mask, advantages = torch.full((10, WIDTH), -45.0, dtype=torch.float64), ragged(), case()[2]
    config = ppo.Config(algorithm="grpo", loss=name, aggregation="seq_mean_token_mean", **settings)
    known = {"loss_agg_mode": "seq-mean-token-mean", "config": verl_config(**settings)}
    for logprobs in (old - 40, old + 40):
        got = our_loss(ppo, config, piece_of(mask, old, advantages), mask)(logprobs)
        close(got, core.get_policy_loss_fn(verl_name)(old, logprobs, advantages * mask, mask, **known)[0], LOOSE)


def test_a_completion_that_is_masked_whole_counts_in_our_mean_and_not_in_verls(ppo):
    mode, _, _ = AGGREGATIONS["seq_mean_token_mean"]
    loss, mask = normal(10, 10, WIDTH), ragged()
    mask[[1, 4, 5]] = 0
    got = (loss * weights_of(ppo, mask, ppo.Config(algorithm="grpo", aggregation="seq_mean_token_mean"))).sum()
    close(got, core.agg_loss(loss, mask, mode) * 7 / 10, LOOSE)
    close(got, core.agg_loss(loss, mask, mode, global_batch_size=10), LOOSE)  # what verl's trainer hands over


@pytest.mark.parametrize(("ours", "names"), [("k1", ["kl", "k1"]), ("k2", ["mse", "k2"]), ("k3", ["low_var_kl", "k3"])])
def test_kl_forms_in_value_and_gradient(ppo, ours, names):
    logprobs, reference, _ = case(0.8)
    weights = normal(11, 10, WIDTH)
    got = value_and_gradient(lambda x: (weights * ppo.kl_loss(x, reference, reference, ours)).sum(), logprobs)
    for name in names:
        form = functools.partial(core.kl_penalty, ref_logprob=reference, kl_penalty=name)
        theirs = value_and_gradient(lambda x, form=form: (weights * form(x)).sum(), logprobs)
        for a, b in zip(got, theirs, strict=True):
            close(a, b)


def test_kl_in_the_reward(ppo):
    mask = ragged()
    logprobs, reference, _ = case()
    kl = ppo.kl_estimate(logprobs, reference, "k1") * mask
    got = ppo.shape_rewards(SCORES, kl, mask, 0.3)
    close(got, core.compute_rewards(score_rewards(SCORES, mask), logprobs, reference, 0.3) * mask)


def test_adaptive_kl_coefficient(ppo):
    for kl in (0.1, 3.0, 6.2, 100.0):
        theirs = core.AdaptiveKLController(0.2, 6.0, 10_000)
        theirs.update(kl, 256)
        assert ppo.next_kl_coef(0.2, kl, 6.0, 10_000, 256) == pytest.approx(theirs.value, abs=1e-15)


def far_sampler(old):
    return old + normal(12, 10, WIDTH, scale=0.5)


@masks
@pytest.mark.parametrize(
    ("how", "level", "threshold"),
    [("tis", "token", 2.0), ("icepop", "token", "0.5_2.0"), ("seq_mask", "sequence", "0.5_2.0")],
)
def test_mismatch_weights(ppo, how, level, threshold, mask):
    _, old, _ = case()
    rollout = far_sampler(old)
    got = ppo.mismatch_weights(old, rollout, mask, how, 0.5, 2.0)
    close(got * mask, correction.compute_rollout_correction_weights(old - rollout, mask, level, threshold)[0])
    raw = (old - rollout).exp()
    assert (got != raw)[mask.bool()].any() and (got > 0)[mask.bool()].any()


def test_the_sequence_mask_keeps_what_verls_rejection_keeps(ppo):
    mask = ragged()
    _, old, _ = case()
    rollout = far_sampler(old)
    kept, _ = correction.compute_rollout_rejection_mask(old - rollout, mask, "seq_sum_k1", "0.5_2.0")
    got = ppo.mismatch_weights(old, rollout, mask, "seq_mask", 0.5, 2.0)
    assert torch.equal((got > 0) & mask.bool(), kept.bool())
    assert 0 < kept[:, 0].sum() < 10


@pytest.mark.parametrize("how", ["tis", "icepop"])
@pytest.mark.parametrize("name", ["clip", "reinforce", "gspo", "dppo_kl"])
def test_corrected_losses_in_value_and_gradient(ppo, name, how):
    verl_name, settings, _ = LOSSES[name]
    config = ppo.Config(algorithm="grpo", loss=name, mismatch=how, aggregation="seq_mean_token_mean", **settings)
    logprobs, old, advantages = case()
    mask, rollout = ragged(), far_sampler(old)
    threshold = {"tis": 2.0, "icepop": "0.5_2.0"}[how]
    weights, _ = correction.compute_rollout_correction_weights(old - rollout, mask, "token", threshold)
    known = {"mode": "seq-mean-token-mean", "verl_settings": verl_config(**settings), "rollout_is_weights": weights}
    same_as_verl(ppo, config, verl_name, piece_of(mask, old, advantages, rollout), logprobs, LOOSE, **known)


def test_one_update_with_tis_is_verls_bypass_mode_with_reinforce(ppo):
    mask = ragged()
    logprobs, rollout, advantages = case()
    piece = piece_of(mask, None, advantages, rollout)
    del piece["old_logprobs"]  # a single optimizer step: the old policy is the current one
    config = ppo.Config(algorithm="grpo", loss="reinforce", mismatch="tis", aggregation="token_mean")
    bypass = {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 2.0}
    given = (piece["advantages"], mask, "token-mean", verl_config(rollout_correction=bypass))
    theirs = value_and_gradient(lambda x: core.compute_policy_loss_bypass_mode(rollout, x, *given)[0], logprobs)
    for got, expected in zip(value_and_gradient(our_loss(ppo, config, piece, mask), logprobs), theirs, strict=True):
        close(got, expected)


def test_mismatch_metrics(ppo):
    mask = ragged()
    logprobs, old, advantages = case()
    piece = piece_of(mask, old, advantages, far_sampler(old))
    config = ppo.Config(algorithm="grpo", mismatch="tis")
    measured = ppo.policy_terms(config, piece, logprobs)[1]
    weight, kl, cut = (measured[f"mismatch/{name}"] for name in ("weight_mean", "kl", "cut_frac"))
    theirs = correction.compute_offpolicy_metrics(old, piece["rollout_logprobs"], mask)
    assert ppo.masked_mean(kl, mask).item() == pytest.approx(theirs["k3_kl"], rel=1e-7)
    raw = (old - piece["rollout_logprobs"]).exp()
    _, known = correction.compute_rollout_correction_weights(raw.log(), mask, "token", 2.0)
    assert ppo.masked_mean(cut, mask).item() == pytest.approx(known["rollout_is_ratio_fraction_high"], rel=1e-7)
    assert ppo.masked_mean(weight.clamp(max=2.0), mask).item() == pytest.approx(known["rollout_is_mean"], rel=1e-7)


def test_soft_overlong_punishment(ppo):
    """Through verl's DAPO reward manager, for completions of every length."""
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "text", eos_token="<eos>")
    buffer = SimpleNamespace(enable=True, len=5, penalty_factor=1.0, log=False)
    manager = DAPORewardManager(tokenizer, 0, lambda **_: 0.0, max_resp_len=20, overlong_buffer_cfg=buffer)
    lengths = torch.arange(1, 21)
    tensors = {"prompts": torch.ones(20, 1).long(), "responses": torch.ones(20, 20).long()}
    response_mask = (torch.arange(20) < lengths[:, None]).long()
    tensors["attention_mask"] = torch.cat([tensors["prompts"], response_mask], 1)
    rows = {"reward_model": [{"ground_truth": ""}] * 20, "data_source": ["any"] * 20}
    data = DataProto.from_dict(tensors, non_tensors={k: np.array(v, dtype=object) for k, v in rows.items()})
    theirs = manager(data).sum(1).tolist()
    assert [-ppo.overlong_penalty(n, 20, 0.25) for n in range(1, 21)] == pytest.approx(theirs, abs=1e-7)
    assert theirs[-1] == -1 and theirs[14] == 0 > theirs[15]


def test_verls_plus_forms_have_the_gradient_of_k2(ppo):
    """`k3+` has k3's value and k2's gradient; ours for an exact gradient are k2 and k3_ratio."""
    logprobs, reference, _ = case(0.8)
    value, gradient = value_and_gradient(lambda x: core.kl_penalty(x, reference, "k3+").sum(), logprobs)
    close(value, ppo.kl_estimate(logprobs, reference, "k3").sum())
    k2 = value_and_gradient(lambda x: ppo.kl_loss(x, logprobs, reference, "k2").sum(), logprobs)[1]
    close(gradient, k2)
