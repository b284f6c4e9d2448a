"""What is checked: networks, prompts, settings."""

from dataclasses import dataclass

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens per completion
PROBES = 4  # fixed sequences for log-probs and gradients
PROBE_TOKENS = 64  # tokens of their prompts

# mean difference of log-probs in nats (ten times as much for a single token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15), "fp16": (0.02, 0.05)}


@dataclass
class Subject:
    """A trainer with what it loaded from the user's settings, and the sequences on which it is checked."""

    trainer: object
    config: object  # the user's, with a small batch
    models: object  # as a run would have them
    with_reference: object  # the same networks and a reference, also where kl_coef is 0
    engine: object
    reward: object
    rows: list  # SAMPLED of the user's prompts
    probes: list  # PROBES samples as `collect` returns them
    initial: object = None  # log-probs of the probes' responses under the untouched policy, [tokens]
    moved: float = 0.0  # nats per token between the policy and the untouched one

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS.get(self.config.precision, LIMITS["bf16"])


def networks(s: Subject) -> list:
    """The policy, and the critic where there is one."""
    return [s.models.policy] + [s.models.critic] * (s.models.critic is not None)
