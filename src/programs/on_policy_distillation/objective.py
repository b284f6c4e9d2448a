"""Divergences between student and teacher, loss and gradient of a piece of tokens, and the advantages."""

import math

from parts.foundation.processes import torch
from parts.learning.advantages import discounted_returns, mean_advantages
from parts.learning.losses import kl_estimate, policy_loss
from parts.networks.forward import all_logits, known_logits, lost_mass, tempered
from parts.rewards.rewards import is_scored
from programs.on_policy_distillation.settings import OBJECTIVES, Config


def divergence(student, teacher, beta: float):
    """Generalised Jensen-Shannon divergence of two distributions, and its gradient (Agarwal 2024, eq. 1).

    With M = (1 - beta) S + beta T it is beta KL(T || M) + (1 - beta) KL(S || M); its limits divided by beta and
    1 - beta are taken at the ends: KL(T || S) at 0, KL(S || T) at 1.

    Args:
        student, teacher: log-probs [n, V], normalised.
        beta: 0 to 1.

    Returns:
        (divergence [n], gradient [n, V] with respect to the student's logits). With f = d value / d S, the gradient is
        S (f - E_S[f]): f = log S/T for the reverse KL, -T/S for the forward, (1 - beta) log S/M between.
    """
    if beta == 0:
        t = teacher.exp()
        return (teacher - student).mul_(t).sum(-1), student.exp().sub_(t)
    s = student.exp()
    if beta == 1:
        f = student - teacher
        value = mean = (s * f).sum(-1)
    else:
        mixture = torch.logaddexp(student + math.log1p(-beta), teacher + math.log(beta))
        f = (student - mixture).mul_(1 - beta)
        mean = (s * f).sum(-1)
        value = mean + beta * (teacher - mixture).mul_(teacher.exp()).sum(-1)
    return value, f.sub_(mean[:, None]).mul_(s)


def chosen_and_rest(logits, ids):
    """Log-probs [n, k + 1] of distinct tokens ids [n, k], and of all others together, of logits [n, V].

    The others are summed themselves: 1 - the sum of the chosen rounds to 0 where a model is sure.
    """
    rest = logits.scatter(-1, ids, -math.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, ids), rest], -1) - logits.logsumexp(-1, keepdim=True)


COMPARED = 8  # most likely tokens of each model in the metric `overlap`
LOOKED_AT = 256  # about how many tokens of a piece it is taken of while training: to find the likeliest is slow


def overlap(ids, others):
    """Share of ids [n, k] that also stand in others [n, k], each without repetition."""
    return (ids[:, :, None] == others[:, None, :]).any(-1).float().mean(-1)


def entropies(logprobs):
    """Entropy [n] of each row of log-probs [n, V]."""
    return -logprobs.exp().mul_(logprobs).sum(-1)  # in place: another [n, V] tensor costs as much as the sum


def gap_figures(student, teacher, looked_at: int = 0):
    """Per token: reverse KL, entropy of student and of teacher, overlap of their likeliest tokens: [n, 4].

    Args:
        student, teacher: log-probs [n, V].
        looked_at: of about how many of the tokens, evenly spread, the overlap is taken, 0: of all. That of the others
            is 0, and theirs is raised so that its mean over all n is their mean.
    """
    kl = (student - teacher).mul_(student.exp()).sum(-1)
    every = max(1, len(kl) // looked_at) if looked_at else 1
    shares = overlap(*(x[::every].topk(min(COMPARED, x.shape[-1])).indices for x in (student, teacher)))
    shared = torch.zeros_like(kl)
    shared[::every] = shares * (len(kl) / max(1, len(shares)))
    return torch.stack([kl, entropies(student), entropies(teacher), shared], -1)


# the columns that `token_gradients` returns: those of `teacher_view`, and of the update itself
TOKEN_FIGURES = (
    "kl/teacher",
    "policy/entropy",
    "policy/teacher_entropy",
    "policy/overlap",
    "policy/clip_frac",
    "kl/approx",
    "policy/lost_mass",
)


def token_gradients(config: Config, policy, hidden, known: dict, dist, scale):
    """Run the output layer on n states, and the backward pass down to them, times `scale`.

    Args:
        hidden: [n, H], slices of a leaf.
        known: of the n tokens, what the batch has; `weights` are those of the loss.
        dist: the teacher's log-probs [n, W], None where the batch has what is needed of the teacher.

    Returns:
        (weighted loss, [n, 7] of TOKEN_FIGURES, largest ratio).
    """
    logits = tempered(all_logits(policy, hidden), config.temperature)  # [n, rows]
    lost = lost_mass(policy, logits.detach())
    logits = known_logits(policy, logits)  # [n, V]
    shared = logits if dist is None else logits[:, : dist.shape[1]]
    student, weights = torch.log_softmax(shared.detach(), -1), known["weights"]
    loss, heads, gradients = weights.new_zeros(()), [], []
    if config.objective != "policy_gradient" and config.kl_coef:
        head, value, gradient = divergence_head(config, shared, student, known, dist)
        share = config.kl_coef * weights
        loss, heads, gradients = (value * share).sum(), [head], [gradient.mul_((share * scale)[:, None])]
    if config.entropy_coef:  # d H / d logits = -p (log p + H)
        share = (config.entropy_coef * weights * scale)[:, None]
        heads.append(shared)
        gradients.append((student + entropies(student)[:, None]).mul_(student.exp()).mul_(share))
    clipped = kl = ratio = weights * 0
    if "advantages" in known or "old_logprobs" in known:
        logprobs = logits.gather(-1, known["input_ids"][:, None]).squeeze(-1) - logits.logsumexp(-1)
        old, advantages = known.get("old_logprobs", logprobs.detach()), known.get("advantages", weights * 0)
        bounds = (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
        per_token, ratio, clipped = policy_loss(logprobs, old, advantages, *bounds)
        per_token, ratio = per_token * known.get("corrections", 1.0), ratio.detach()
        kl = ratio - 1 - ratio.log()  # k3 of KL(old || new) on samples of the old policy
        part = (per_token * weights).sum()
        loss = loss + part.detach()
        heads.append(part)
        gradients.append(scale)
    torch.autograd.backward(heads, gradients)
    seen = teacher_view(student, known, dist)
    return loss, torch.cat([seen, torch.stack([clipped, kl, lost], -1)], -1), ratio.max()


def divergence_head(config: Config, logits, student, known: dict, dist):
    """What the divergence is taken of, its values [n], and its gradient with respect to that.

    Over the whole vocabulary these are the logits; with `kl_top_k` they are the log-probs of the chosen tokens and of
    the rest, whose softmax is themselves.
    """
    beta, k = OBJECTIVES[config.objective], config.kl_top_k
    beta = config.beta if beta is None else beta
    if dist is not None and not 0 < k < dist.shape[1]:
        return logits, *divergence(student, dist, beta)
    if dist is None:
        ids, top = known["teacher_ids"], known["teacher_top"]
        total = torch.logsumexp(top, -1, keepdim=True).clamp(max=-1e-7)  # rounding may reach 1
        teacher = torch.cat([top, torch.log(-torch.expm1(total))], -1)  # with all other tokens together: [n, k + 1]
    else:
        ids = dist.topk(k).indices
        teacher = chosen_and_rest(dist, ids)
    head = chosen_and_rest(logits, ids)
    return head, *divergence(head.detach(), teacher, beta)


def teacher_view(student, known: dict, dist):
    """Per token: reverse KL, entropy of student and of teacher, overlap, [n, 4]; NaN where the teacher does not tell.

    Without the teacher's distribution, the reverse KL is estimated on the sampled token (k1).
    """
    if dist is not None:
        return gap_figures(student, dist, LOOKED_AT)
    nothing = student[:, 0] * math.nan
    if "teacher_logprobs" not in known:
        return torch.stack([nothing, entropies(student), nothing, nothing], -1)
    logprobs = student.gather(-1, known["input_ids"][:, None]).squeeze(-1)
    kl = kl_estimate(logprobs, known["teacher_logprobs"], "k1")
    shared = nothing
    if "teacher_ids" in known:
        ids = known["teacher_ids"][:, :COMPARED]
        shared = overlap(ids, student.topk(ids.shape[1]).indices)
    entropy = known.get("teacher_entropy", nothing)
    return torch.stack([kl, entropies(student), entropy, shared], -1)


def distillation_advantages(config: Config, batch: dict, samples: list[dict], kl_coef: float):
    """Advantages [B, T] of teacher and rewards."""
    mask = batch["loss_mask"]
    advantages = torch.zeros(mask.shape, device=mask.device)
    if config.objective == "policy_gradient":
        seen = batch.get("old_logprobs", batch["rollout_logprobs"])  # with one update a step they are the same
        gap = kl_estimate(seen, batch["teacher_logprobs"], "k1") * mask
        advantages = -kl_coef * discounted_returns(gap, mask, config.discount)
    if config.reward_coef:
        scores = torch.tensor([s["score"] for s in samples], device=mask.device)
        groups = torch.tensor([s["group"] for s in samples], device=mask.device)
        scored = torch.tensor(list(map(is_scored, samples)), device=mask.device)
        if scored.any():
            values = mean_advantages(scores=scores[scored], groups=groups[scored], config=config)
            advantages[scored] += config.reward_coef * values[:, None] * mask[scored]
    return advantages
