"""Too hard: no completion is right, so no group has anything to prefer."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, fact, shown
from parts.reading.logged_run import EARLY, LoggedRun, first_part
from parts.reading.paired_tests import wilson_interval
from parts.reading.sample_texts import holds


def pass_rate(run: LoggedRun, steps: int = EARLY) -> tuple[str, float, float, float] | None:
    """(part, share that passes in the first steps, its 95 % interval), of a part whose means lie between 0 and 1."""
    name, means = first_part(run)
    early = means[:steps]
    if not early or min(means) < 0 or max(means) > 1:
        return None
    count, rate = int(run.number("batch") or 32) * len(early), sum(early) / len(early)
    return name, rate, *wilson_interval(rate * count, count)


def find_too_hard(run: LoggedRun) -> Evidence | None:
    """Next to none of the run's completions passes, and those that are logged do not hold their gold answer."""
    rate = pass_rate(run, steps=10**9)
    if not rate or rate[1] > 0.002 or rate[3] > 0.03:
        return None
    text = f"{rate[0]} passes {rate[1]:.2%} of all completions (95 %: {rate[2]:.2%} to {rate[3]:.2%})"
    facts = [fact(run, f"part:{rate[0]}" if run.parts() else "score", text, min(run.steps()))]
    known = [t for t in run.texts if t.gold and t.score is not None]
    without = [t for t in known if not holds(t.completion, t.gold)]
    if len(known) >= 8 and len(without) >= 0.9 * len(known):
        facts.append(shown(without, f"{len(without)} of {len(known)} logged completions do not hold the gold answer"))
        return Evidence(CERTAIN + 0.01, facts)
    return Evidence(LIKELY if not known else LIKELY - 0.2, facts)


TOO_HARD = Cause(
    "too_hard",
    "the prompts are too hard for this model: no completion is right, so nothing can be reinforced",
    find_too_hard,
    f"{STILL} no_group_variance nothing_moves critic_useless too_sparse kl_holds_policy constant_reward part_bought",
    "easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "Wilson's interval; groups alike with p^G + (1 - p)^G",
)
