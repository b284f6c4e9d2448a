"""What is checked: a trainer, the sequences on which it is checked, and how figures are compared."""

import contextlib
import functools
import math
from dataclasses import dataclass

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens per completion
PROBES = 4  # fixed sequences for log-probs and gradients
PROBE_TOKENS = 64  # tokens of their prompts
ALL_ROWS = 2**30  # rows in one pass

# mean difference of log-probs in nats (ten times as much for a single token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15), "fp16": (0.02, 0.05)}


@dataclass(frozen=True)
class Definition:
    """A loss as papers write it: what the trainer's gradient is compared with."""

    name: str  # where there are several
    aggregation: str = "token_mean"
    constant: float = 1.0  # by which some aggregations divide the sum of a sequence
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # weight of the divergence from the teacher
    beta: float = 1.0  # which one: 1 reverse KL, 0 forward KL, between them Jensen-Shannon
    teacher: object = None
    width: int | None = None  # logits that count


@dataclass
class Subject:
    """A trainer (ScriptsTrainer or OnePage) that has loaded everything, and what it is checked on."""

    trainer: object
    probes: list  # PROBES samples as `sampled` returns them
    initial: object = None  # log-probs of the probes' responses under the untouched policy, [tokens]
    moved: float = 0.0  # nats per token between the policy and the untouched one

    @property
    def models(self):
        """The networks as a run would have them."""
        return self.trainer.models

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS.get(self.trainer.precision, LIMITS["bf16"])

    def experience(self, **settings) -> dict:
        """The trainer's batch made of the probes."""
        return self.trainer.experience(self.probes, **settings)

    def settled(self) -> dict:
        """The trainer's batch without a graph and with current log-probs throughout: one fault fails one check."""
        batch = {name: x.detach() for name, x in self.experience().items()}
        current = self.trainer.logprobs(self.trainer.collate(self.probes))[0]
        return batch | {name: current for name in self.trainer.settled_logprobs if name in batch}

    def response_logprobs(self, samples: list[dict], batch: dict | None = None):
        """The trainer's log-probs of the sampled tokens, [tokens]."""
        batch = batch or self.trainer.collate(samples)
        return at_responses(self.trainer.logprobs(batch)[0], batch, samples)


def check(advice: str, moved: bool = True, plays: bool = False):
    """Mark `function(subject) -> (passed or None for not applicable, measurement)` as a check.

    Args:
        advice: what to do when it fails.
        moved: whether the policy has to be off its start.
        plays: whether it needs conversations with an environment.
    """

    def mark(function):
        @functools.wraps(function)
        def run(s: Subject):
            silent = s.trainer.silent() if plays else ""
            return (None, silent) if silent else function(s)

        run.advice, run.moved = advice, moved
        return run

    return mark


def networks(models) -> list:
    return [x for x in (models.policy, getattr(models, "critic", None)) if x is not None]


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


def sampled_places(sample: dict) -> list[int]:
    """Which of the tokens after the prompt the policy sampled: all, unless `response_mask` says otherwise."""
    return [i for i, yes in enumerate(sample.get("response_mask", [1] * len(sample["response_ids"]))) if yes]


def columns_after_prompts(batch: dict, samples: list[dict]) -> list:
    """The columns of each sample's tokens after the prompt: its last real ones, wherever the trainer pads."""
    pairs = zip(batch["attention_mask"], samples, strict=True)
    return [mask.nonzero().squeeze(-1)[-len(sample["response_ids"]) :] for mask, sample in pairs]


def response_columns(batch: dict, samples: list[dict]) -> list:
    """The columns of each sample's sampled tokens."""
    return [c[sampled_places(x)] for c, x in zip(columns_after_prompts(batch, samples), samples, strict=True)]


def at_responses(x, batch: dict, samples: list[dict]):
    """The entries of x [B, T] at the sampled tokens, [tokens]."""
    import torch

    return torch.cat([x[i, columns] for i, columns in enumerate(response_columns(batch, samples))])
