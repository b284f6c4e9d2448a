"""A cause: the evidence that it needs, what it explains, and what to change."""

from collections.abc import Callable
from dataclasses import dataclass, field

from parts.reading.logged_run import Fact, LoggedRun

CERTAIN, LIKELY = 0.9, 0.6  # strengths of evidence; below LIKELY a cause is named only beside another
# signs of a run that learns nothing, and of one that loses what it had
STILL = "flat_score constant_scores equal_groups held_out_flat"
LOST = "score_fell clipped kl_high entropy_fell entropy_rose length_fell length_rose truncated"
# causes that follow if nothing can be learned, and if something else is learned
FLAT = (
    f"{STILL} constant_reward nothing_moves no_group_variance too_sparse too_hard kl_holds_policy critic_useless "
    "part_bought"
)
FALSE = f"{FLAT} {LOST} updates_too_large memorised_prompts reward_ignores_answer too_easy"
TRY_REWARD = "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA"
TRY_MODEL = f"{TRY_REWARD} --model MODEL"


@dataclass(frozen=True)
class Evidence:
    """What speaks for a cause, and how strongly; `since` is the step from which the run is broken."""

    strength: float
    facts: list[Fact] = field(default_factory=list)
    since: int | None = None


@dataclass(frozen=True)
class Cause:
    """A root cause. `explains` has the names of signs, and of causes that follow from this one."""

    name: str
    says: str
    test: Callable[[LoggedRun], Evidence | None]
    explains: str
    change: str
    source: str
    decide_with: str = ""
    breaks: bool = False  # a run with it is broken, not only without a gain

    def evidence(self, run: LoggedRun) -> Evidence | None:
        """What --rescore saw of it, or else what its test sees."""
        if self.name in run.trials:
            return Evidence(CERTAIN + 0.09, [Fact(run.trials[self.name], "rescore")], since=1 if self.breaks else None)
        return self.test(run)


def cause(**more) -> Callable:
    """Make a Cause of a function that looks for its evidence; the function's name and docstring are the cause's."""
    return lambda test: Cause(test.__name__, (test.__doc__[0].lower() + test.__doc__[1:]).rstrip("."), test, **more)


def shown(texts, text: str) -> Fact:
    """A fact about samples, of which the first three are named."""
    return Fact(text, "samples", texts[0].step if texts else None, tuple(t.id for t in texts[:3]))
