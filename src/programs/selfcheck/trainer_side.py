"""Figures as the trainer has them."""

from programs.selfcheck.oracle import at_responses
from programs.selfcheck.subject import Subject


def experience(s: Subject, models=None, **settings) -> dict:
    """The trainer's batch made of the probes."""
    return s.trainer.experience(s.probes, models, **settings)


def settled(s: Subject) -> dict:
    """The trainer's batch without a graph and with current log-probs throughout: one fault shows in one check."""
    batch = {name: x.detach() for name, x in experience(s).items()}
    current = s.trainer.logprobs(s.trainer.collate(s.probes))[0]
    return batch | {name: current for name in s.trainer.settled_logprobs if name in batch}


def response_logprobs(s: Subject, samples: list[dict], batch: dict | None = None):
    """The trainer's log-probs of the sampled tokens, [tokens]."""
    batch = batch or s.trainer.collate(samples)
    return at_responses(s.trainer.logprobs(batch)[0], batch, samples)
