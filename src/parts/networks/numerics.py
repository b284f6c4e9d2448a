"""Means under a mask, whitening, and log-probs with entropy in chunks of the vocabulary."""


def masked_mean(x, mask):
    """Mean of x where mask is 1; both [B, T]; 0 for an empty mask."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(x, mask, shift_mean: bool = True):
    """Scale x [B, T] to unit variance over the masked tokens, and to mean 0 unless `shift_mean` is false.

    The variance is the unbiased one and is smoothed by 1e-8, as in verl's `masked_whiten`. Unmasked entries become 0.
    """
    mean = masked_mean(x, mask)
    var = masked_mean((x - mean) ** 2, mask)
    var = var * mask.sum() / (mask.sum() - 1).clamp(min=1)  # Bessel
    white = (x - mean) * (var + 1e-8).rsqrt()
    return (white if shift_mean else white + mean) * mask


def logprobs_and_entropy(logits_fn, hidden, targets, temperature: float, chunk: int, entropy_grad: bool = False):
    """Log-prob of each target and entropy of its distribution, without holding all logits at once.

    Args:
        logits_fn: maps hidden states [n, H] to logits [n, V].
        hidden: [N, H], the states that predict the targets.
        targets: [N] token ids.
        temperature: logits are divided by it.
        chunk: rows of `hidden` per piece; pieces are recomputed in the backward pass when there are several.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        (logprobs [N], entropy [N]), in float32 or wider.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    def piece(h, t):
        logits = logits_fn(h)
        logits = (logits.float() if logits.dtype.itemsize < 4 else logits) / temperature  # [n, V]
        log_z = torch.logsumexp(logits, dim=-1)
        logprobs = logits.gather(-1, t[:, None]).squeeze(-1) - log_z
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
            z = logits if entropy_grad else logits.detach()
            entropy = log_z - (torch.softmax(z, dim=-1) * z).sum(-1)  # H = log Z - E[logit]
        return logprobs, entropy

    if len(hidden) <= chunk:
        return piece(hidden, targets)
    pieces = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    if torch.is_grad_enabled():
        parts = [checkpoint(piece, h, t, use_reentrant=False) for h, t in pieces]
    else:
        parts = [piece(h, t) for h, t in pieces]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


def explained_variance(values, returns, mask) -> float:
    """1 - Var[returns - values] / Var[returns] over the masked tokens; 0 when the returns do not vary."""
    r, error = returns[mask.bool()], (returns - values)[mask.bool()]
    var = r.var(unbiased=False)
    return (1 - error.var(unbiased=False) / var).item() if var > 1e-12 else 0.0
