"""Divergences between student and teacher."""

import math


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
    import torch

    if beta == 0:
        t = teacher.exp()
        return (t * (teacher - student)).sum(-1), student.exp() - t
    s = student.exp()
    if beta == 1:
        f = student - teacher
        value = mean = (s * f).sum(-1)
    else:
        mixture = torch.logaddexp(student + math.log1p(-beta), teacher + math.log(beta))
        f = (student - mixture).mul_(1 - beta)
        mean = (s * f).sum(-1)
        value = mean + beta * (teacher.exp() * (teacher - mixture)).sum(-1)
    return value, f.sub_(mean[:, None]).mul_(s)


def with_rest(logprobs):
    """Append to log-probs [n, k] of distinct tokens the log-prob of all others together: [n, k + 1]."""
    import torch

    total = torch.logsumexp(logprobs, -1, keepdim=True).clamp(max=-1e-7)  # rounding may reach 1
    return torch.cat([logprobs, torch.log(-torch.expm1(total))], -1)


COMPARED = 8  # most likely tokens of each model in the metric `overlap`
LOOKED_AT = 256  # about how many tokens of a piece it is taken of while training: to find the likeliest is slow


def overlap(ids, others):
    """Share of ids [n, k] that also stand in others [n, k], each without repetition."""
    return (ids[:, :, None] == others[:, None, :]).any(-1).float().mean(-1)


def gap_figures(student, teacher, looked_at: int = 0):
    """Per token: reverse KL, entropy of student and of teacher, overlap of their likeliest tokens: [n, 4].

    Args:
        student, teacher: log-probs [n, V].
        looked_at: of about how many of the tokens, evenly spread, the overlap is taken, 0: of all. That of the others
            is 0, and theirs is raised so that its mean over all n is their mean.
    """
    import torch

    s, t = student.exp(), teacher.exp()
    kl = (s * (student - teacher)).sum(-1)
    every = max(1, len(kl) // looked_at) if looked_at else 1
    shares = overlap(*(x[::every].topk(min(COMPARED, x.shape[-1])).indices for x in (student, teacher)))
    shared = torch.zeros_like(kl)
    shared[::every] = shares * (len(kl) / max(1, len(shares)))
    return torch.stack([kl, -(s * student).sum(-1), -(t * teacher).sum(-1), shared], -1)
