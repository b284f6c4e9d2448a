"""Figures as the trainer has them."""

import contextlib
import dataclasses
import math

from programs.selfcheck.subject import Subject, networks


def trainer_logprobs(s: Subject, samples: list[dict], config=None, batch: dict | None = None):
    """(log-probs, entropy, batch), the first two [B, T], by the trainer in one padded batch."""
    import torch

    batch = batch or s.trainer.collate(samples, s.models.pad_id, s.models.device)
    with torch.no_grad(), s.trainer.autocast(s.config, s.models.device):
        hidden = s.trainer.predicting_states(s.models.policy, batch)
        logprobs, entropy = s.trainer.token_logprobs(config or s.config, s.models.policy, hidden, batch)
    return logprobs, entropy, batch


def experience(s: Subject, models=None, **settings) -> dict:
    """The trainer's batch made of the probes."""
    config = dataclasses.replace(s.config, **settings)
    return s.trainer.make_experience(config, models or s.models, s.probes, config.kl_coef or 0.05)


def settled(s: Subject) -> dict:
    """The trainer's batch without a graph and with current log-probs throughout: one fault shows in one check."""
    batch = {name: x.detach() for name, x in experience(s).items()}
    current = trainer_logprobs(s, s.probes)[0]
    return batch | {name: current for name in ("old_logprobs", "ref_logprobs") if name in batch}


def new_scaler(s: Subject):
    """The gradient scaler of an fp16 run; one that does nothing otherwise."""
    import torch

    enabled = s.config.precision == "fp16"
    return torch.amp.GradScaler(s.models.device.type, init_scale=2.0**12, enabled=enabled)


def trainer_gradients(s: Subject, batch: dict, **settings) -> list:
    """Gradients by the trainer's accumulate_gradients, in the mode in which it trains."""
    config, scaler = dataclasses.replace(s.config, **settings), new_scaler(s)
    s.trainer.switch_checkpointing(s.models, s.config.gradient_checkpointing)
    try:
        s.trainer.accumulate_gradients(config, s.models, batch, list(range(len(s.probes))), scaler)
        return take_gradients(s, scaler.get_scale())
    finally:
        rest(s)


def rest(s: Subject) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(s):
        network.zero_grad(set_to_none=True)
        network.eval()


def take_gradients(s: Subject, scale: float) -> list:
    """One vector per network with up to 4,096 entries of each gradient, evenly spaced; clears the gradients."""
    import torch

    vectors = []
    for network in networks(s):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append((g.flatten()[:: max(1, g.numel() // 4096)] / scale).float().cpu())
        vectors.append(torch.cat(parts))
    rest(s)
    return vectors


class Seen(BaseException):
    """Ends an update once its first loss has been seen."""


@contextlib.contextmanager
def watching(s: Subject, stop: bool = False):
    """Yield a list that gets (logprobs, old_logprobs, advantages) of every call of the loss; `stop` ends the first.

    The loss is `policy_loss`, or the entry of LOSSES that the settings name where it is another.
    """
    table, name = vars(s.trainer), "policy_loss"
    if getattr(s.config, "loss", "clip") not in ("clip", "clip_cov"):
        table, name = s.trainer.LOSSES, s.config.loss
    original, calls = table[name], []

    def watched(*args, **kwargs):
        names = ("logprobs", "old_logprobs", "advantages")
        calls.append(tuple(kwargs[n] for n in names) if kwargs else args[:3])
        if stop:
            raise Seen
        return original(*args, **kwargs)

    watched.__dict__.update(vars(original))  # what the entry says of itself
    table[name] = watched
    try:
        with contextlib.suppress(Seen):
            yield calls
    finally:
        table[name] = original


def agree(a, b, limit: float) -> tuple[bool, str]:
    """Whether two vectors differ by at most `limit` on average and ten times that anywhere; and the text of it."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def relative(gradients: list, expected: list) -> float:
    """The largest relative difference |a - b| / |b| over the networks."""
    pairs = zip(gradients, expected, strict=True)
    return largest(((a - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in pairs)


def largest(values) -> float:
    """The maximum, where one that is not a number counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)
