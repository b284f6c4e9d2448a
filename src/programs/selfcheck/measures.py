"""How figures are taken and compared."""

import contextlib
import math

from programs.selfcheck.subject import networks


def rest(models) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(models):
        network.zero_grad(set_to_none=True)
        network.eval()


def take_gradients(models, scale: float = 1.0) -> list:
    """One vector per network with up to 4,096 entries of each gradient, evenly spaced; clears the gradients."""
    import torch

    vectors = []
    for network in networks(models):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append((g.flatten()[:: max(1, g.numel() // 4096)] / scale).float().cpu())
        vectors.append(torch.cat(parts))
    rest(models)
    return vectors


class Seen(BaseException):
    """Ends an update once its first loss has been seen."""


@contextlib.contextmanager
def watching(trainer, stop: bool = False):
    """Yield a list that gets (logprobs, old_logprobs, advantages) of every call of the loss; `stop` ends the first."""
    calls = []

    def watched(*args, **kwargs):
        names = ("logprobs", "old_logprobs", "advantages")
        calls.append(tuple(kwargs[n] for n in names) if "logprobs" in kwargs else args[:3])
        if stop:
            raise Seen
        return original(*args, **kwargs)

    original = trainer.swap_loss(watched)
    watched.__dict__.update(vars(original))  # what an entry of a table says of itself
    try:
        with contextlib.suppress(Seen):
            yield calls
    finally:
        trainer.swap_loss(original)


def agree(a, b, limit: float) -> tuple[bool, str]:
    """Whether two vectors differ by at most `limit` on average and ten times that anywhere; and the text of it."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def relative(gradients: list, expected: list) -> float:
    """The largest relative difference |a - b| / |b| over the networks."""
    pairs = zip(gradients, expected, strict=True)
    return largest(((a - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in pairs)


def length_ratio(gradients: list, expected: list) -> float:
    """How many times as long the first network's gradient is as it has to be."""
    return (gradients[0].norm() / expected[0].norm().clamp(min=1e-12)).item()


def largest(values) -> float:
    """The maximum, where one that is not a number counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)
