"""The interface between trainers and checks, and comparing figures."""

import contextlib
import copy
import dataclasses
import math

from parts.foundation.processes import torch

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens of a completion
PROBES = 4  # fixed sequences for log-probs and gradients

# tolerances: mean difference of log-probs in nats (ten times that for a token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15)}


@dataclasses.dataclass(frozen=True)
class Definition:
    """A published loss, with whose gradient the trainer's is compared."""

    name: str  # "" for the only one
    aggregation: str = "token_mean"
    constant: float = 1.0  # divides a sequence's sum in some aggregations
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # weight of the divergence from the teacher
    beta: float = 1.0  # kind of divergence: 1 reverse KL, 0 forward KL, between them Jensen-Shannon
    teacher: object = None
    width: int | None = None  # size of the vocabulary that both models share


class LossReached(BaseException):
    """Ends an update at its first loss."""


class Trainer:
    """A module with the functions of the contract, which a subclass calls:

    missing() -> names; parse(flags)
    load() sets config, device, precision, models, with_reference, rows
    play(record, rows) -> (batch, scores) of conversations with a record's environments and answers, of pages alone
    generated(prompts) -> (samples, batch); collate(samples) -> batch
    logprobs(batch, **settings) -> (log-probs, entropy), [B, T] each, without gradient
    experience(samples, models, **settings) -> batch, by default of the probes; accumulate(config, batch) adds gradients
    per_pass(rows): settings for so many rows in a pass, with only a few of their tokens at the output layer at once
    definitions() -> (published losses, of which the trainer's must be one; or why there is none)
    clips() -> (the clips of `own_surrogate` that its policy loss may have; or why there are none)
    start_update(batch, models, step) calls the trainer's `update` on the batch; `step` replaces the optimizer's
    group_of(samples) -> (the group of each; or why a group's advantages need not sum to 0)
    values_after(ids) -> the plain critic's values [T] of the text up to each token of ids [1, T]; None without one
    """

    takes_holes = False  # whether responses may contain tokens that were not sampled

    def __init__(self, module):
        self.module = module
        self.config = self.models = self.with_reference = self.engine = None
        self.probes = []  # samples for log-probs and gradients
        self.initial = None  # log-probs of the probes' responses under the untouched policy, [tokens]
        self.moved = 0.0  # nats per token between the policy and the untouched one

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS[self.precision]

    @property
    def plays(self) -> bool:
        """Whether the trainer plays conversations with an environment."""
        return bool(getattr(self.config, "environment", ""))

    def settle_models(self, kl_coef: float) -> None:
        """Set `models` to those that were loaded with a reference, without it if nothing weighs its KL."""
        self.models = copy.copy(self.with_reference)
        self.models.reference = self.models.reference if kl_coef else None

    def sample(self, prompt: list[int], ids: list[int], logprobs: list[float]) -> dict:
        """A completion."""
        sample = {"prompt_ids": [*prompt], "response_ids": ids, "rollout_logprobs": logprobs}
        return sample | {"finished": ids[-1] in self.models.eos_ids, "score": 0.0}

    def gradients(self, batch: dict, **settings) -> list:
        """Gradients of a batch by the trainer's own function, one vector per network."""
        self.accumulate(dataclasses.replace(self.config, **settings), batch)
        return self.take_gradients()

    def take_gradients(self) -> list:
        """`gradients_of` the networks, which are then cleared."""
        vectors = gradients_of(self.models)
        rest(self.models)
        return vectors

    def first_loss(self, batch: dict, models) -> tuple | None:
        """(Log-probs, old log-probs), [n, T], of `update`'s first call of the policy loss; () if it makes none.

        None if the trainer has no functions of these names.
        """
        if not hasattr(self.module, "update"):
            return None
        table = getattr(self.module, "LOSSES", getattr(self.module.update, "__globals__", {}))  # a template's globals
        name = getattr(self.config, "loss", "policy_loss")
        if name not in table:
            return None
        loss, inputs = table[name], []

        def watched(logprobs, old_logprobs, *args, **kwargs):
            inputs.extend((logprobs, old_logprobs))
            raise LossReached

        watched.__dict__.update(getattr(loss, "__dict__", {}))  # attributes that the table's users read
        table[name] = watched
        try:
            with contextlib.suppress(LossReached):
                self.start_update(batch, models, lambda: None)
        finally:
            table[name] = loss
            rest(models)
        return tuple(inputs)

    def steps_of_update(self) -> list[list]:
        """Gradients at each optimizer step of two calls of `update`; they are neither clipped nor applied."""

        def norm(parameters, *_, **__):
            return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

        steps, clip = [], torch.nn.utils.clip_grad_norm_
        torch.nn.utils.clip_grad_norm_ = norm
        try:
            for _ in range(2):
                self.start_update(self.settled(), self.models, lambda: steps.append(gradients_of(self.models)))
        finally:
            torch.nn.utils.clip_grad_norm_ = clip
            rest(self.models)
        return steps

    def settled(self) -> dict:
        """The trainer's batch, detached, with current log-probs in all columns, so that one fault fails one check."""
        batch = {name: x.detach() for name, x in self.experience().items()}
        current = self.logprobs(self.collate(self.probes))[0]
        names = {"old_logprobs", "ref_logprobs", "rollout_logprobs"} & {*batch}
        return batch | dict.fromkeys(names, current)

    def response_logprobs(self, samples: list[dict], batch: dict | None = None):
        """The trainer's log-probs of the sampled tokens, [tokens]."""
        batch = batch or self.collate(samples)
        return self.logprobs(batch)[0][responses(batch, samples)]


def check(moved: bool = True, plays: bool = False):
    """Mark `function(trainer) -> (passed, or None if not applicable; measurement)` as a check.

    "Try: …" at the end of its docstring is the advice if it fails.

    Args:
        moved: whether the policy must differ from its start.
        plays: whether it needs a page that plays conversations.
    """

    def mark(function):
        function.advice = " ".join(function.__doc__.partition("Try: ")[2].split()).rstrip(".")
        function.moved, function.plays = moved, plays
        return function

    return mark


def networks(models) -> list:
    return [x for x in (models.policy, getattr(models, "critic", None)) if x is not None]


def rest(models) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(models):
        network.zero_grad()
        network.eval()


def gradients_of(models) -> list:
    """One vector per network: at most 8,191 evenly spaced entries of each parameter's gradient."""
    vectors = []
    for network in networks(models):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append(g.flatten()[:: max(1, g.numel() // 4096)].float().cpu())
        vectors.append(torch.cat(parts))
    return vectors


def agree(a, b, limit: float) -> tuple[bool, str]:
    """(Whether two vectors differ by at most `limit` on average and ten times that anywhere, both as text)."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def apart(gradients: list, expected: list) -> tuple[float, float]:
    """(Largest relative difference |a - b| / |b| of two lists of vectors, ratio of the first pair's norms)."""
    pairs = [(a, b, b.norm().clamp(min=1e-12)) for a, b in zip(gradients, expected, strict=True)]
    ratio = (pairs[0][0].norm() / pairs[0][2]).item()
    return largest(((a - b).norm() / norm).item() for a, b, norm in pairs), ratio


def largest(values) -> float:
    """The maximum; nan counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)


def sampled_places(sample: dict) -> list[int]:
    """1 for each token after the prompt that the policy sampled: all, unless the sample has a `response_mask`."""
    return sample.get("response_mask", [1] * len(sample["response_ids"]))


def responses(batch: dict, samples: list[dict], whole: bool = False):
    """True [B, T] at sampled tokens, or (`whole`) at all after the prompts, wherever the pads are."""
    mask = torch.zeros_like(batch["attention_mask"])
    for row, real, sample in zip(mask, batch["attention_mask"], samples, strict=True):
        places = [1] * len(sample["response_ids"]) if whole else sampled_places(sample)
        row[real.nonzero().squeeze(-1)[-len(places) :]] = torch.tensor(places, device=row.device)
    return mask.bool()
