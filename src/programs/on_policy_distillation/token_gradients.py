"""Loss and gradient of a piece of tokens, through the output layer, and what is measured of them."""

import math

from parts.learning.losses import kl_estimate, policy_loss
from parts.networks.forward import all_logits, known_logits, lost_mass
from programs.on_policy_distillation.objective import COMPARED, LOOKED_AT, divergence, gap_figures, overlap, with_rest
from programs.on_policy_distillation.settings import OBJECTIVES, Config
from programs.on_policy_distillation.teachers import widened

# the columns that `token_gradients` returns: those of `teacher_view`, and of the update itself
TOKEN_FIGURES = (
    *("kl/teacher", "policy/entropy", "policy/teacher_entropy", "policy/overlap"),
    *("policy/clip_frac", "kl/approx", "policy/lost_mass"),
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
    import torch

    logits = widened(all_logits(policy, hidden)) / config.temperature  # [n, rows]
    lost = lost_mass(policy, logits.detach())
    logits = known_logits(policy, logits)  # [n, V]
    shared = logits if dist is None else logits[:, : dist.shape[1]]
    student, weights = torch.log_softmax(shared.detach(), -1), known["weights"]
    by_nll = known["offpolicy"] if config.offpolicy_loss == "nll" else torch.zeros_like(known["offpolicy"])
    loss, heads, gradients = weights.new_zeros(()), [], []
    if config.objective != "policy_gradient" and config.kl_coef and not by_nll.all():
        head, value, gradient = divergence_head(config, shared, student, known, dist)
        share = config.kl_coef * weights * ~by_nll
        loss, heads, gradients = (value * share).sum(), [head], [gradient.mul_((share * scale)[:, None])]
    if config.entropy_coef:  # d H / d logits = -p (log p + H)
        p, log_p = student.exp(), student
        entropy = -(p * log_p).sum(-1, keepdim=True)
        heads.append(shared)
        gradients.append(p * (log_p + entropy) * (config.entropy_coef * weights * scale)[:, None])
    clipped = kl = ratio = weights * 0
    if "advantages" in known or "old_logprobs" in known or by_nll.any():
        logprobs = logits.gather(-1, known["input_ids"][:, None]).squeeze(-1) - logits.logsumexp(-1)
        old = torch.where(known["offpolicy"], logprobs.detach(), known.get("old_logprobs", logprobs.detach()))
        advantages = known.get("advantages", weights * 0)
        bounds = (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
        per_token, ratio, clipped = policy_loss(logprobs, old, advantages, *bounds)
        per_token = torch.where(by_nll, -logprobs, per_token * known.get("corrections", 1.0))
        ratio = ratio.detach()
        kl = ratio - 1 - ratio.log()  # k3 of KL(old || new) on samples of the old policy
        part = (per_token * weights).sum()
        loss = loss + part.detach()
        heads.append(part)
        gradients.append(scale)
    torch.autograd.backward(heads, gradients)
    seen = teacher_view(config, student, known, dist)
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
        ids, teacher = known["teacher_ids"], known["teacher_top"]
    else:
        ids = (dist if config.top_k_of == "teacher" else student).topk(k).indices
        teacher = dist.gather(-1, ids)
    head = with_rest(logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True))  # [n, k + 1]
    return head, *divergence(head.detach(), with_rest(teacher), beta)


def teacher_view(config: Config, student, known: dict, dist):
    """Per token: reverse KL, entropy of student and of teacher, overlap, [n, 4]; NaN where the teacher does not tell.

    Without the teacher's distribution, the reverse KL is estimated on the sampled token (k1).
    """
    import torch

    if dist is not None:
        return gap_figures(student, dist, LOOKED_AT)
    nothing = student[:, 0] * math.nan
    if "teacher_logprobs" not in known:
        return torch.stack([nothing, -(student.exp() * student).sum(-1), nothing, nothing], -1)
    logprobs = student.gather(-1, known["input_ids"][:, None]).squeeze(-1)
    kl = kl_estimate(logprobs, known["teacher_logprobs"], "k1")
    shared = nothing
    if "teacher_ids" in known:
        ids = known["teacher_ids"][:, :COMPARED]
        shared = overlap(ids, student.topk(ids.shape[1]).indices)
    entropy = known.get("teacher_entropy", nothing)
    return torch.stack([kl, -(student.exp() * student).sum(-1), entropy, shared], -1)
