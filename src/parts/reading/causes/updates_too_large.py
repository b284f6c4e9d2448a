"""Updates too large: rate, passes or minibatches move the policy further than its samples reach."""

import itertools

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact
from parts.reading.logged_run import LoggedRun, collapse, gained, held_out_gain

LARGE = (  # series of one step's update, value that is too much, words
    ("kl_step", 0.1, "KL of one step's update"),
    ("clip_frac", 0.3, "clipped share of tokens"),
)


def large_steps(run: LoggedRun) -> list[Fact]:
    """Figures of an update that are too large in three steps and a tenth of the run, or in most of its first steps."""
    facts = []
    for name, limit, words in LARGE:
        points = sorted(run.series.get(name, {}).items())
        high = [step for step, value in points if abs(value) > limit]
        most = max(points, key=lambda point: abs(point[1]), default=(0, 0.0))
        if (len(high) >= 3 and len(high) >= 0.1 * len(points)) or (high and abs(most[1]) > 10 * limit):
            text = f"{words} above {limit} in {len(high)} of {len(points)} steps, up to {most[1]:.3g}"
            facts.append(fact(run, name, text, high[0]))
    kl = sorted(run.series.get("kl", {}).items())
    for i, ((_, before), (step, after)) in enumerate(itertools.pairwise(kl if kl and abs(kl[0][1]) < 0.05 else [])):
        stays = min(value for _, value in kl[i + 1 : i + 5]) > 0.5  # else the figure only scatters
        if stays and after - before > 0.5 and after > 2 * max(value for _, value in kl[: i + 1]):
            text = f"KL to the reference went from {before:.3g} to {after:.3g} nats a token in one step"
            return [*facts, fact(run, "kl", text, step)]
    return facts


def find_updates_too_large(run: LoggedRun) -> Evidence | None:
    """The update's own figures moved first, or the score was lost within the first steps."""
    facts, lost = large_steps(run), collapse(run)
    scores = run.values("score")
    # the first updates took all: what so many completions would not score by chance
    rest = scores[1:]
    count = (run.number("batch") or 32) * len(rest)
    held_out, gain = run.values("held_out"), held_out_gain(run)
    many = len(rest) > 1 and scores[0] * count > 20
    many = many or (gain is not None and gain[2] < 0 and held_out[-1] <= 0.02 * held_out[0])
    at_once = many and rest != [] and max(rest) <= 0.02 * scores[0] and min(scores) >= 0
    ruined = bool(lost) or at_once
    if gained(run) and not ruined and run.trend("score") > 0:
        return None  # large, and it learns
    rate, passes = run.values("lr"), (run.number("epochs") or 1) * (run.number("minibatches") or 1)
    if passes >= 16:
        facts.append(Fact(f"a rollout is used for {passes:g} updates", "updates"))
    if ruined:
        step = lost[2] if lost else sorted(run.series["score"])[1]
        begin, end = (lost[0], lost[1]) if lost else (scores[0], scores[-1])
        said = fact(
            run, "score", f"the score fell from {begin:.3g} to {end:.3g}; half of it was lost by step {step}", step
        )
    if facts:
        if rate:
            facts.append(fact(run, "lr", f"the learning rate is {max(rate):.3g}"))
        strength = CERTAIN + 0.04 if ruined or len(facts) > 2 else LIKELY + 0.2
        moved = min(f.step for f in [*facts, said] if f.step is not None) if ruined else None
        return Evidence(strength, facts, since=moved)
    if ruined:
        return Evidence(CERTAIN + 0.01 if at_once else LIKELY + 0.1, [said], since=step)
    return None


UPDATES_TOO_LARGE = Cause(
    "updates_too_large",
    "updates are too large: the policy is pushed to where its samples do not reach",
    find_updates_too_large,
    f"{STILL} {LOST} sampler_gap part_dies part_bought critic_useless no_group_variance constant_reward "
    "nothing_moves limit_too_short too_hard sampler_mismatch stale_weights too_sparse",
    "lower {lr} by 3 to 10 times, or fewer updates a rollout ({reuse}); go on from a checkpoint before",
    "",
    "Spinning Up's PPO ends an update at KL 0.015; limits 0.1 nats, 0.3 of tokens, 0.5 nats in a step: our heuristic",
    breaks=True,
)
