"""Causes: the evidence that they need, the signs that they explain, and the change that they advise."""

from collections.abc import Callable
from dataclasses import dataclass, field

from parts.reading.logged_run import Fact, LoggedRun

CERTAIN, LIKELY = 0.9, 0.6  # strengths of evidence; below LIKELY a cause is reported only beside another
# signs of a run that learns nothing (STILL), and of one that loses what it has learned (LOST)
STILL = "flat_score constant_scores equal_groups held_out_flat"
LOST = "score_fell clipped kl_high entropy_fell entropy_rose length_fell length_rose truncated"
# consequences if nothing can be learned (FLAT), and if something wrong is learned (FALSE)
FLAT = (
    f"{STILL} constant_reward nothing_moves no_group_variance too_sparse too_hard kl_holds_policy critic_useless "
    "part_bought"
)
FALSE = f"{FLAT} {LOST} updates_too_large memorised_prompts reward_ignores_answer too_easy"
TRY_REWARD = "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA"
TRY_MODEL = f"{TRY_REWARD} --model MODEL"


@dataclass(frozen=True)
class Evidence:
    """Facts that support a cause, and how strongly; `since` is the step from which on the run is broken."""

    strength: float
    facts: list[Fact] = field(default_factory=list)
    since: int | None = None


@dataclass(frozen=True)
class Cause:
    """A root cause. `explains` names the signs and other causes that follow from it."""

    name: str
    says: str
    test: Callable[[LoggedRun], Evidence | None]
    explains: str
    change: str
    source: str
    decide_with: str = ""
    breaks: bool = False  # it breaks a run, rather than only preventing a gain

    def evidence(self, run: LoggedRun) -> Evidence | None:
        """The evidence from --rescore if there is any, else that of its test."""
        if self.name in run.trials:
            return Evidence(CERTAIN + 0.09, [Fact(run.trials[self.name], "rescore")], since=1 if self.breaks else None)
        return self.test(run)


def cause(**more) -> Callable:
    """Decorator: make a Cause from its test, whose name and docstring become the cause's name and description."""
    return lambda test: Cause(test.__name__, (test.__doc__[0].lower() + test.__doc__[1:]).rstrip("."), test, **more)


def shown(texts, text: str) -> Fact:
    """A fact about samples; it names the first three."""
    return Fact(text, "samples", texts[0].step if texts else None, tuple(t.id for t in texts[:3]))
