"""A critic that explains nothing after its warm-up, while scores differ."""

import math
import statistics

from parts.reading.cause import CERTAIN, LOST, Cause, Evidence, Fact, fact
from parts.reading.logged_run import LoggedRun, gained, is_constant, is_solved
from parts.reading.trends import TREND_STEPS, ends, noise

CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0


def hardly_varies(run: LoggedRun) -> bool:
    """Whether scores hardly differ any more, so that nothing is left to explain: beside the start, or their size."""
    spread = run.values("score_std")
    if not spread:
        return False
    first, last = ends(spread)
    return last < 0.25 * first or last < 0.05 * abs(run.last("score") if run.series.get("score") else 0.0)


def find_critic_useless(run: LoggedRun) -> Evidence | None:
    """Explained variance that is 0 at every step, or, beyond chance, at most 0.03 in the second half of a run.

    Near 0 in a run that learns it is no fault: a short run ends before a critic is of use.
    """
    variances = run.series.get("explained_variance", {})
    warmup = max(CRITIC_STEPS, int(run.number("critic_warmup") or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    rate, lr = run.number("critic_lr"), run.number("lr") or max(run.values("lr"), default=0.0)
    if variances and rate and (rate < 1e-3 * lr or rate > 0.05):
        said = Fact(f"the critic's learning rate is {rate:g}, the policy's {lr:g}", "critic_lr")
        text = f"explained variance {run.last('explained_variance'):.3g}"
        return Evidence(CERTAIN + 0.05, [said, fact(run, "explained_variance", text)])
    if len(steps) >= CRITIC_STEPS and not is_constant(run) and max(abs(variances[step]) for step in steps) < 1e-5:
        text = f"explained variance is 0 at all steps from {steps[0]} on: the critic does not learn"
        return Evidence(CERTAIN + 0.03, [fact(run, "explained_variance", text)])
    short = len(variances) < TREND_STEPS or len(steps) < CRITIC_STEPS
    if short or is_constant(run) or hardly_varies(run) or is_solved(run):
        return None
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle = statistics.median(values)
    error = 1.25 * noise(values) / math.sqrt(len(values))
    learns = middle > -0.1 and (gained(run) or run.trend("score") > 0)
    if learns or (middle > 0 and middle + 2 * error > 0.03):
        return None
    text = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    facts = [fact(run, "explained_variance", text, steps[-1])]
    clip, scores = run.number("value_clip"), run.values("score")
    if clip and scores and max(map(abs, scores)) > 10 * clip:
        text = f"a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
        facts.append(Fact(text, "value_clip"))
    return Evidence(CERTAIN, facts)


CRITIC_USELESS = Cause(
    "critic_useless",
    "the critic predicts returns no better than a constant, so advantages are as noisy as without it",
    find_critic_useless,
    f"critic_explains_little flat_score {LOST} updates_too_large nothing_moves part_bought",
    "{critic_updates}; {critic_warmup}; another {critic_lr}; where scores are well above 1 {value_clip}; or a method "
    "without a critic: {critic_free}",
    "",
    "definition of explained variance; benchmarks/README.md, the demo's critic; limit 0.03: our heuristic",
)
