"""Losses of RL post-training as plain functions: paste what you need into a trainer of your own. Needs torch alone.

    per_token = clip(logprobs, old_logprobs, advantages, mask, clip_eps_high=0.28)       # [B, T]
    loss = aggregate(per_token, mask, "token_mean")                                      # a number: DAPO's
    loss = loss + 0.04 * aggregate(kl(logprobs, ref_logprobs, mask, "k3"), mask, "token_mean")
    loss = paper_loss("gspo", logprobs, old_logprobs, advantages, mask)                  # both, as a paper has them

logprobs, old_logprobs, ref_logprobs and mask are [B, T], and x[b, t] is about token t; a mask is 1 or True = keep;
advantages are [B], [B, 1] or [B, T]. Per-token results are 0 outside the mask. Whatever lies there, nan or inf too, is
replaced before any arithmetic, so it reaches neither a loss nor a gradient. (A nan in the logits does: it passes
through log_softmax's own backward pass.) A log-ratio is bounded only where exp would overflow; verl and this bundle
use log_ratio_bound=20. Only logprobs and values get a gradient.
Left out here but in scripts/ppo_train.py: Clip-Cov and KL-Cov, whose choice of tokens needs the whole minibatch, the
correction for a sampler that is not the trainer, advantages.
"""

import math

import torch


def keep(x, mask):
    """x [B, T], [B, 1] or [B] as [B, T], 0 outside the mask."""
    x = x[:, None] if x.dim() == 1 else x
    return torch.where(mask.bool(), x, torch.zeros((), dtype=x.dtype, device=x.device))


def log_ratio(logprobs, old_logprobs, mask, bound=None):
    """log(pi / pi_old) per token, [B, T]; bound: largest absolute value."""
    d = keep(logprobs, mask) - keep(old_logprobs, mask).detach()
    return d.clamp(-bound, bound) if bound else d


def exp(x):
    """exp(x), at most about 1e38 in float32: inf would make a gradient of 0 nan."""
    return x.clamp(max=math.log(torch.finfo(x.dtype).max) - 1).exp()


def row_mean(x, mask):
    """Mean of x [B, T] over each row's tokens, [B, 1]; 0 for an empty row."""
    return keep(x, mask).sum(1, keepdim=True) / mask.bool().sum(1, keepdim=True).clamp(min=1)


# ------------------------------------------------------------------------------------------------ policy losses, [B, T]


def clip(
    logprobs,
    old_logprobs,
    advantages,
    mask,
    clip_eps_low: float = 0.2,
    clip_eps_high: float = 0.2,
    dual_clip: float | None = None,
    log_ratio_bound: float | None = None,
):
    """max(-A ratio, -A clip(ratio, 1 - low, 1 + high)): PPO (Schulman 2017, eq. 7), GRPO, Dr. GRPO, DAPO.

    dual_clip (Ye 2020, eq. 5) bounds the loss by -A dual_clip where A < 0.
    """
    advantages = keep(advantages, mask)
    ratio = exp(log_ratio(logprobs, old_logprobs, mask, log_ratio_bound))
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high))
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return keep(loss, mask)


def gspo(
    logprobs,
    old_logprobs,
    advantages,
    mask,
    clip_eps_low: float = 3e-4,
    clip_eps_high: float = 4e-4,
    log_ratio_bound: float | None = None,
):
    """`clip` with one ratio a row, s = exp(mean log-ratio): GSPO-token (arXiv 2507.18071, eq. 13).

    With one advantage a row and `seq_mean_token_mean`, value and gradient are GSPO's own (eq. 5).
    """
    mean = row_mean(log_ratio(logprobs, old_logprobs, mask), mask).detach()  # [B, 1]
    mean = mean.clamp(-log_ratio_bound, log_ratio_bound) if log_ratio_bound else mean
    logprobs = keep(logprobs, mask)
    whole = mean + logprobs - logprobs.detach()  # its value is the row's, its gradient each token's
    return clip(whole, torch.zeros_like(whole), advantages, mask, clip_eps_low, clip_eps_high)


def cispo(
    logprobs,
    old_logprobs,
    advantages,
    mask,
    clip_eps_low: float = 1.0,
    clip_eps_high: float = 4.0,
    log_ratio_bound: float | None = None,
):
    """-sg(clip(ratio, 1 - low, 1 + high)) A log pi: CISPO (arXiv 2506.13585, eq. 4-5).

    clip_eps_low=1 is no lower bound, as in the paper; TRL's cap is 1 + clip_eps_high.
    """
    ratio = exp(log_ratio(logprobs, old_logprobs, mask, log_ratio_bound)).detach()
    weight = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return -weight * keep(advantages, mask) * keep(logprobs, mask)


def sapo(
    logprobs,
    old_logprobs,
    advantages,
    mask,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    log_ratio_bound: float | None = None,
):
    """-(4 / tau) sigmoid(tau (ratio - 1)) A, tau by the sign of A: SAPO (arXiv 2511.20347)."""
    advantages = keep(advantages, mask)
    ratio = exp(log_ratio(logprobs, old_logprobs, mask, log_ratio_bound))
    tau = torch.where(advantages > 0, *map(advantages.new_tensor, (tau_pos, tau_neg)))
    return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages


def gmpo(logprobs, old_logprobs, advantages, mask, clip_eps_low: float = 0.4, clip_eps_high: float = 0.4):
    """-A times the geometric mean of a row's clipped ratios: GMPO (arXiv 2507.20673, eq. 3-4).

    The bounds are of the log-ratio, [-low, high], on the side that the sign of A names; A is the row's mean. Each token
    has its row's loss: use `seq_mean_token_mean`.
    """
    d, advantages = log_ratio(logprobs, old_logprobs, mask), keep(advantages, mask)
    sign = advantages.sign()
    d = sign * torch.minimum(sign * d, sign * d.clamp(-clip_eps_low, clip_eps_high))
    return keep(-row_mean(advantages, mask) * exp(row_mean(d, mask)), mask)


def reinforce(logprobs, old_logprobs, advantages, mask):
    """-A log pi, without a ratio: REINFORCE (Williams 1992), GPG (arXiv 2504.02546, eq. 5)."""
    return -keep(advantages, mask) * keep(logprobs, mask)


# ------------------------------------------------------------------------------------------------ other terms, [B, T]


def kl(logprobs, ref_logprobs, mask, estimator: str = "k3", old_logprobs=None, log_ratio_bound: float | None = None):
    """Estimate of KL(pi || reference) per token from the policy's own samples (Schulman 2020): k1, k2 or k3.

    k1 is for a reward: as a loss its gradient is 0 in expectation. k2's gradient is that of the reverse KL, k3's that
    of the forward KL. With old_logprobs the estimate is times the ratio (arXiv 2510.01555, 2512.02556; TRL's
    use_bias_correction_kl): k3's gradient is then that of the reverse KL, whoever sampled.
    """
    d = log_ratio(logprobs, ref_logprobs, mask, log_ratio_bound)
    if estimator not in ("k1", "k2", "k3"):
        raise ValueError(f"got estimator {estimator!r}; expected k1, k2 or k3")
    estimate = {"k1": lambda: d, "k2": lambda: d**2 / 2, "k3": lambda: exp(-d) + d - 1}[estimator]()
    if old_logprobs is not None:
        estimate = estimate * exp(log_ratio(logprobs, old_logprobs, mask, log_ratio_bound))
    return estimate


def value_loss(values, old_values, returns, mask, value_clip: float | None = None):
    """Squared error times 1/2, the larger of plain and clipped around the old values (PPO's code); no clip: None."""
    values, old_values, returns = keep(values, mask), keep(old_values, mask).detach(), keep(returns, mask)
    loss = (values - returns) ** 2
    if value_clip:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, (near - returns) ** 2)
    return 0.5 * loss


@torch.no_grad()
def clip_fraction(
    logprobs,
    old_logprobs,
    advantages,
    mask,
    clip_eps_low: float = 0.2,
    clip_eps_high: float = 0.2,
    dual_clip: float | None = None,
    log_ratio_bound: float | None = None,
):
    """Share of the tokens where the bounds of `clip` changed the loss, a number to log."""
    given = logprobs, old_logprobs, advantages, mask
    unclipped = clip(*given, math.inf, math.inf, None, log_ratio_bound)
    changed = clip(*given, clip_eps_low, clip_eps_high, dual_clip, log_ratio_bound) != unclipped
    return changed.sum() / mask.bool().sum().clamp(min=1)


# ------------------------------------------------------------------------------------------------ one number


def aggregate(
    loss,
    mask,
    how: str = "token_mean",
    empty_rows: str = "out",
    norm_length: int | None = None,
    tokens: int | None = None,
    rows: int | None = None,
):
    """One number of a loss per token [B, T]; 0, with gradient 0, where no token is kept.

    Args:
        loss: [B, T].
        mask: [B, T].
        how: token_mean: over all tokens (DAPO). seq_mean_token_mean: mean over rows of their token mean (GRPO).
            seq_mean_token_sum: mean over rows of their token sum. seq_mean_token_sum_norm: that / norm_length
            (Dr. GRPO).
        empty_rows: what a mean over rows does with rows without a token: "out" (verl), or "count", as rows of loss 0
            (TRL).
        norm_length: a constant, as Dr. GRPO's largest number of new tokens.
        tokens: of the whole minibatch, if this is a part of it: then the parts' results add up to the whole's.
        rows: of the whole minibatch, likewise, counted as empty_rows says.
    """
    mask, loss = mask.bool(), keep(loss, mask)
    if how == "token_mean":
        return loss.sum() / max(int(mask.sum()) if tokens is None else tokens, 1)
    if empty_rows not in ("out", "count"):
        raise ValueError(f"got empty_rows {empty_rows!r}; expected out or count")
    if how == "seq_mean_token_sum_norm" and not norm_length:
        raise ValueError("got seq_mean_token_sum_norm without norm_length; try the largest number of new tokens")
    per_row = loss.sum(1)  # [B]
    if how == "seq_mean_token_mean":
        per_row = row_mean(loss, mask)[:, 0]
    elif how == "seq_mean_token_sum_norm":
        per_row = per_row / norm_length
    elif how != "seq_mean_token_sum":
        names = "token_mean, seq_mean_token_mean, seq_mean_token_sum or seq_mean_token_sum_norm"
        raise ValueError(f"got how {how!r}; expected {names}")
    if rows is None:
        rows = int(mask.any(1).sum()) if empty_rows == "out" else len(mask)
    return per_row.sum() / max(rows, 1)


PAPERS = {  # name: (policy loss, its settings, aggregation)
    "ppo": (clip, {}, "token_mean"),
    "ppo_dual_clip": (clip, {"dual_clip": 3.0}, "token_mean"),
    "grpo": (clip, {}, "seq_mean_token_mean"),
    "dr_grpo": (clip, {}, "seq_mean_token_sum_norm"),
    "dapo": (clip, {"clip_eps_high": 0.28}, "token_mean"),
    "gspo": (gspo, {}, "seq_mean_token_mean"),
    "cispo": (cispo, {}, "token_mean"),
    "sapo": (sapo, {}, "seq_mean_token_mean"),
    "gmpo": (gmpo, {}, "seq_mean_token_mean"),
    "gpg": (reinforce, {}, "token_mean"),
}


def paper_loss(
    name: str,
    logprobs,
    old_logprobs,
    advantages,
    mask,
    empty_rows="out",
    norm_length=None,
    tokens=None,
    rows=None,
    **other,
):
    """The policy loss of a paper, one number; `other` settings are those of its function, as clip_eps_high."""
    if name not in PAPERS:
        raise ValueError(f"got {name!r}; expected one of {', '.join(PAPERS)}")
    function, settings, how = PAPERS[name]
    loss = function(logprobs, old_logprobs, advantages, mask, **settings | other)
    return aggregate(loss, mask, how, empty_rows, norm_length, tokens, rows)
