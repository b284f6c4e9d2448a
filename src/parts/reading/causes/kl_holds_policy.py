"""KL holds the policy: its weight keeps the policy where it began, whatever the reward pays."""

from parts.reading.cause import CERTAIN, LIKELY, Cause, Evidence, Fact, fact
from parts.reading.logged_run import LoggedRun, gained, is_constant

HEAVY = 0.3  # weight of the KL beside scores of about 1; 0 to 0.1 is in use


def find_kl_holds_policy(run: LoggedRun) -> Evidence | None:
    """A heavy weight, a KL that stays small, and no gain although the rate is not small."""
    if run.config.get("teacher"):
        return None  # distillation: the KL is the goal
    weight = run.number("kl")
    if weight is None and run.series.get("kl_weight"):
        weight = max(run.values("kl_weight"))
    scale = max([abs(run.first("score_std")) if run.series.get("score_std") else 1.0, 0.05])
    if weight is None or weight < HEAVY * min(1.0, 2 * scale) or is_constant(run):
        return None
    if gained(run) and run.trend("score") > 0:
        return None
    kl = run.last("kl")
    if run.series.get("kl") and kl > 0.3:
        return None
    facts = [Fact(f"the KL's weight is {weight:g}, scores differ by {scale:.2g}", run.name("kl_weight"))]
    if run.series.get("kl"):
        facts.append(fact(run, "kl", f"{run.name('kl')} stays at {kl:.3g} nats a token"))
    return Evidence(CERTAIN + 0.02 if weight >= 1 else LIKELY + 0.2, facts)


KL_HOLDS_POLICY = Cause(
    "kl_holds_policy",
    "the KL term holds the policy where it began: moving costs more than the reward pays",
    find_kl_holds_policy,
    "flat_score held_out_flat critic_explains_little entropy_rose gradient_spike score_fell clipped "
    "nothing_moves critic_useless updates_too_large too_sparse",
    "lower {kl} to 0.01 or 0",
    "",
    "the optimum under a KL of weight b is the start's policy times exp(reward / b); limit 0.3: our heuristic",
)
