"""The KL to the reference, policy and value losses, and how losses per token become one number."""

import math
from dataclasses import dataclass

from parts.foundation.processes import torch
from parts.foundation.settings import BaseConfig
from parts.networks.batches import masked_mean


def kl_estimate(logprobs, ref_logprobs, estimator: str):
    """Per-token estimate of KL(policy || reference) from the policy's own samples, any shape (Schulman 2020)."""
    d = logprobs - ref_logprobs
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    return (-d).clamp(-20, 20).exp() + d - 1  # k3, bounded like the ratio


def kl_loss(logprobs, old_logprobs, ref_logprobs, estimator: str):
    """Per-token KL(policy || reference) as a term of the loss, [B, T].

    k3_ratio is k3 times the ratio: its gradient is the exact one of the reverse KL, whoever sampled (arXiv 2510.01555,
    and DeepSeek-V3.2, arXiv 2512.02556). k2's is exact on-policy, k3's is that of the forward KL, k1's is zero.
    """
    if estimator == "k3_ratio":
        return (logprobs - old_logprobs).clamp(-20, 20).exp() * kl_estimate(logprobs, ref_logprobs, "k3")
    return kl_estimate(logprobs, ref_logprobs, estimator)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, completions: int) -> float:
    """Proportional controller of Ziegler 2019, eq. 4; kl and target in nats per completion."""
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * completions / horizon)


@dataclass(frozen=True)
class PolicyLoss:
    """An entry of LOSSES: the loss, whether rows whose advantages are all 0 take part in its gradient, and whether it
    reads `chosen`, the tokens of `covariance_choice`.

    The loss takes by keyword what it needs of logprobs, old_logprobs, advantages, mask, chosen, all [B, T], and config,
    and returns (loss, clipped), both [B, T]: the loss per token, and 1 where a bound changed it.

    Rows take part where a term stands outside the advantage, or where tokens are chosen among those of the whole
    minibatch.
    """

    per_token: object  # the function
    trains_zero_advantage: bool
    chooses_tokens: bool = False

    def __call__(self, **known):
        """(loss, clipped), both [B, T]."""
        return self.per_token(**known)


def likelihood_ratio(logprobs, old_logprobs):
    """exp(logprobs - old_logprobs), any shape; the log-ratio is bounded to +-20."""
    return (logprobs - old_logprobs).clamp(-20, 20).exp()


def sequence_mean(x, mask):
    """Mean of x [B, T] over each row's masked tokens, [B, 1]; 0 for an empty row."""
    return (x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def policy_loss(logprobs, old_logprobs, advantages, clip_eps_low: float, clip_eps_high: float, dual_clip: float):
    """Clipped surrogate per token (Schulman 2017, eq. 7) with dual clip (Ye 2020, eq. 5); all [B, T].

    Returns:
        (loss, ratio, clipped), where clipped is 1 where a clip changed the loss. The log-ratio is bounded to +-20.
    """
    ratio = likelihood_ratio(logprobs, old_logprobs)
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = torch.maximum(plain, bounded)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, ratio, (loss != plain).float()


def value_loss(values, old_values, returns, value_clip: float):
    """Clipped squared error per token, times 1/2; all [B, T]."""
    loss = (values - returns) ** 2
    if value_clip:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, (near - returns) ** 2)
    return 0.5 * loss


def clip_loss(logprobs, old_logprobs, advantages, config, **_):
    """PPO's clipped surrogate; see `policy_loss`."""
    bounds = (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
    loss, _, clipped = policy_loss(logprobs, old_logprobs, advantages, *bounds)
    return loss, clipped


def reinforce_loss(logprobs, advantages, **_):
    """-A log pi, without ratio: REINFORCE (Williams 1992), GPG's loss (arXiv 2504.02546, eq. 5)."""
    return -advantages * logprobs, logprobs.detach() * 0


def gspo_loss(logprobs, old_logprobs, advantages, mask, config, **_):
    """The clipped surrogate with one ratio a sequence, s = exp(mean log-ratio): GSPO-token (arXiv 2507.18071, eq. 13).

    The value is the sequence's, the gradient flows through each token's own log-prob.
    """
    s = sequence_mean(logprobs - old_logprobs, mask).detach() + logprobs - logprobs.detach()
    s = s.clamp(max=10).exp()  # [B, T]
    plain, bounded = -advantages * s, -advantages * s.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)
    return torch.maximum(plain, bounded), (bounded > plain).float()


def cispo_loss(logprobs, old_logprobs, advantages, config, **_):
    """-sg(clip(ratio, 1 - low, 1 + high)) A log pi: CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4-5).

    Bounds as in the paper and in verl. TRL's cap c without lower bound is low = 1, high = c - 1.
    """
    ratio = likelihood_ratio(logprobs, old_logprobs).detach()
    bounded = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)
    return -bounded * advantages * logprobs, (ratio != bounded).float()


def sapo_loss(logprobs, old_logprobs, advantages, config, **_):
    """-(4 / tau) sigmoid(tau (ratio - 1)) A, tau by the sign of A: SAPO (arXiv 2511.20347)."""
    tau = torch.where(advantages > 0, *map(advantages.new_tensor, (config.sapo_tau_pos, config.sapo_tau_neg)))
    gate = torch.sigmoid(tau * (likelihood_ratio(logprobs, old_logprobs) - 1)) * 4 / tau
    return -gate * advantages, logprobs.detach() * 0


def gmpo_loss(logprobs, old_logprobs, advantages, mask, config, **_):
    """-A times the geometric mean of the clipped ratios of a sequence: GMPO (arXiv 2507.20673, eq. 3-4).

    The bounds are of the log-ratio, [-low, high], and act on the side that the sign of A names. A is the mean over the
    sequence. Each token carries its sequence's loss, so seq_mean_token_mean gives the mean over sequences.
    """
    sign, d = torch.sign(advantages), logprobs - old_logprobs
    bounded = d.clamp(-config.clip_eps_low, config.clip_eps_high)
    d_min = sign * torch.minimum(sign * d, sign * bounded)
    loss = -sequence_mean(advantages, mask) * sequence_mean(d_min, mask).exp()  # [B, 1]
    return loss.expand_as(d), ((d_min != d) & (sign != 0) & mask.bool()).float()


def dppo_loss(logprobs, old_logprobs, advantages, config, valid_up, valid_down):
    """-sg(min(ratio, cap)) A log pi where the update may go on in A's direction, else 0; cap = dual_clip (0: none)."""
    ratio = likelihood_ratio(logprobs, old_logprobs).detach()
    weight = ratio.clamp(max=config.dual_clip or math.inf) * torch.where(advantages > 0, valid_up, valid_down)
    return -weight * advantages * logprobs, (weight != ratio).float()


def dppo_tv_loss(logprobs, old_logprobs, advantages, config, **_):
    """DPPO with binary total variation |p - p_old| (arXiv 2602.04879), bounded in the direction of A."""
    gap = (logprobs.exp() - old_logprobs.exp()).detach()
    bounds = gap <= config.clip_eps_high, gap >= -config.clip_eps_low
    return dppo_loss(logprobs, old_logprobs, advantages, config, *bounds)


def dppo_kl_loss(logprobs, old_logprobs, advantages, config, **_):
    """DPPO with the binary KL(p_old || p) of "this token or another" (arXiv 2602.04879)."""
    p, q, d = logprobs.exp().detach(), old_logprobs.exp(), (old_logprobs - logprobs).detach()
    kl = q * d + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
    bounds = (kl <= config.clip_eps_high) | (p <= q), (kl <= config.clip_eps_low) | (p >= q)
    return dppo_loss(logprobs, old_logprobs, advantages, config, *bounds)


def clip_cov_loss(logprobs, old_logprobs, advantages, chosen, config, **_):
    """The clipped surrogate without the chosen tokens: Clip-Cov (Cui 2025, arXiv 2505.22617, eq. 10-11)."""
    loss, _, _ = policy_loss(logprobs, old_logprobs, advantages, config.clip_eps_low, config.clip_eps_high, 0.0)
    return loss * (1 - chosen), chosen


def kl_cov_loss(logprobs, old_logprobs, advantages, chosen, config, **_):
    """-A ratio, plus kl_cov_coef |log-ratio| on the chosen tokens: KL-Cov (Cui 2025, arXiv 2505.22617, eq. 12-13)."""
    ratio, distance = likelihood_ratio(logprobs, old_logprobs), (logprobs - old_logprobs).abs()
    return -advantages * ratio + config.kl_cov_coef * distance * chosen, chosen


LOSSES = {
    "clip": PolicyLoss(clip_loss, trains_zero_advantage=False),
    "reinforce": PolicyLoss(reinforce_loss, trains_zero_advantage=False),
    "gspo": PolicyLoss(gspo_loss, trains_zero_advantage=False),
    "cispo": PolicyLoss(cispo_loss, trains_zero_advantage=False),
    "sapo": PolicyLoss(sapo_loss, trains_zero_advantage=False),
    "gmpo": PolicyLoss(gmpo_loss, trains_zero_advantage=False),
    "dppo_tv": PolicyLoss(dppo_tv_loss, trains_zero_advantage=False),
    "dppo_kl": PolicyLoss(dppo_kl_loss, trains_zero_advantage=False),
    "clip_cov": PolicyLoss(clip_cov_loss, trains_zero_advantage=True, chooses_tokens=True),  # looks at every token
    "kl_cov": PolicyLoss(kl_cov_loss, trains_zero_advantage=True, chooses_tokens=True),
}


def covariance_choice(logprobs, old_logprobs, advantages, mask, draw, config):
    """The tokens that Clip-Cov or KL-Cov treats, [B, T] of 0 and 1: a share cov_frac, at least one where there is one.

    cov = (A - mean A)(log pi - mean log pi) over the masked tokens of the whole minibatch. KL-Cov takes the largest;
    Clip-Cov takes those with the least `draw` (uniform, [B, T]) among the unclipped with cov_low < cov < cov_high.
    """
    cov = (advantages - masked_mean(advantages, mask)) * (logprobs - masked_mean(logprobs, mask))
    eligible, order = mask.bool(), -cov
    if config.loss == "clip_cov":
        bounds = (config.clip_eps_low, config.clip_eps_high, 0.0)
        clipped = policy_loss(logprobs, old_logprobs, advantages, *bounds)[2].bool()
        eligible, order = eligible & ~clipped & (cov > config.cov_low) & (cov < config.cov_high), draw
    count = min(max(int(config.cov_frac * mask.sum()), 1), int(eligible.sum()))
    best = order.masked_fill(~eligible, math.inf).flatten().topk(count, largest=False).indices
    return torch.zeros_like(cov).flatten().index_fill(0, best, 1.0).view_as(cov)


def mismatch_mode(config: BaseConfig) -> str:
    """The correction for a sampler that is not the trainer; "none" for none."""
    auto = "tis" if config.rollout_engine == "vllm" else "none"
    return auto if config.mismatch == "auto" else config.mismatch


def mismatch_weights(old_logprobs, rollout_logprobs, mask, how: str, low: float, high: float):
    """Weights [B, T] that correct for a sampler that is not the trainer's old policy, from w = exp(old - rollout).

    tis: w, at most `high` (Yao 2025). icepop: w, 0 outside [low, high] (Ring-1T, arXiv 2510.18855). seq_mask: the
    product of a sequence's w for each of its tokens, 0 outside the bounds (TRL's sequence_mask). none: 1.
    """
    d = (old_logprobs - rollout_logprobs) * mask
    w = (d.sum(1, keepdim=True).expand_as(d) if how == "seq_mask" else d).clamp(-20, 20).exp()
    if how == "none":
        return torch.ones_like(w)
    return w.clamp(max=high) if how == "tis" else w * ((w >= low) & (w <= high))


AGGREGATIONS = {
    "token_mean": "sum over all tokens / their number: DAPO",
    "seq_mean_token_mean": "mean over completions of their token mean: GRPO",
    "seq_mean_token_sum": "mean over completions of their token sum",
    "seq_mean_token_sum_norm": "mean over completions of token sum / max_new_tokens: Dr. GRPO",
    "fixed_length": "mean over completions of token sum / norm_length",
}


def token_weights(mask, config, tokens, sequences):
    """Weights [B, T] of token losses, so that their weighted sum over all pieces is the minibatch's loss.

    Args:
        mask: [B, T], a piece of the minibatch.
        config: `aggregation`, `max_new_tokens` and `norm_length` are read.
        tokens: masked tokens of the whole minibatch.
        sequences: rows of the whole minibatch.
    """
    if config.aggregation == "token_mean":
        return mask / tokens
    if config.aggregation == "seq_mean_token_mean":
        return mask / (sequences * mask.sum(1, keepdim=True).clamp(min=1))
    divisors = {"seq_mean_token_sum": 1, "seq_mean_token_sum_norm": config.max_new_tokens}
    return mask / (sequences * divisors.get(config.aggregation, config.norm_length))


def policy_terms(config: BaseConfig, piece: dict, logprobs):
    """Loss per token [B, T] of policy, KL and mismatch correction, and what it measures on the way, by metric, [B, T].

    The correction weighs the policy loss only, not the KL, as in TRL.
    """
    old = piece.get("old_logprobs", logprobs.detach())
    mask, sampled = piece["loss_mask"], piece["rollout_logprobs"]
    known = {name: piece[name] for name in ("advantages", "chosen") if name in piece}
    loss, clipped = LOSSES[config.loss](logprobs=logprobs, old_logprobs=old, mask=mask, config=config, **known)
    how, w = mismatch_mode(config), likelihood_ratio(old, sampled)
    weights = mismatch_weights(old, sampled, mask, how, config.mismatch_low, config.mismatch_high)
    if how != "none":
        loss = loss * weights
    cut = (weights < w).float() if how == "tis" else (weights == 0).float()
    ratio = likelihood_ratio(logprobs.detach(), old)
    measured = {"policy/clip_frac": clipped, "policy/ratio_max": ratio}
    measured["kl/approx"] = ratio - 1 - ratio.log()  # k3 of KL(old || new) on samples of the old policy
    measured |= {"mismatch/weight_mean": w, "mismatch/kl": w - 1 - w.log(), "mismatch/cut_frac": cut}
    if "ref_logprobs" in piece and config.kl_in == "loss":
        measured["kl/ref"] = kl_estimate(logprobs.detach(), piece["ref_logprobs"], config.kl_estimator[:2])
        loss = loss + config.kl_coef * kl_loss(logprobs, old, piece["ref_logprobs"], config.kl_estimator)
    return loss, measured


def contributing(config: BaseConfig, batch: dict) -> list[int]:
    """Rows that can change a gradient; the others are not run through the networks, which saves their passes.

    All tokens of those are masked, or have advantage 0 and no other loss. Every process gets the same rows, as the
    advantages are the first process's.
    """
    rows = batch["loss_mask"].any(1)
    others = "values" in batch or config.entropy_coef or ("ref_logprobs" in batch and config.kl_in == "loss")
    if not others and not LOSSES[config.loss].trains_zero_advantage:
        rows &= (batch["advantages"] * batch["loss_mask"] != 0).any(1)
    return rows.nonzero().flatten().tolist()
