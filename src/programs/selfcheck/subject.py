"""What is checked: a trainer, and the sequences on which it is checked."""

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


def networks(models) -> list:
    """The policy, and the critic where there is one."""
    critic = getattr(models, "critic", None)
    return [models.policy] + [critic] * (critic is not None)
