"""Too hard: hardly any completion is right, so no group has anything to prefer."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.causes.answer_form import unpaid_with_gold
from parts.reading.logged_run import EARLY, LoggedRun, first_part, is_constant
from parts.reading.paired_tests import wilson_interval
from parts.reading.trends import forecast


def pass_rate(run: LoggedRun) -> tuple[str, float, float, float] | None:
    """(part, share that passes in the first steps, its 95 % interval), of a part whose means lie between 0 and 1."""
    name, means = first_part(run)
    early = means[:EARLY]
    full = max([*means, 1.0])
    if not early or min(means) < 0 or full > 1:
        return None
    count = int(run.number("batch") or 32) * len(early)
    rate = sum(early) / len(early)
    return name, rate, *wilson_interval(rate * count, count)


def find_too_hard(run: LoggedRun) -> Evidence | None:
    """The pass rate's interval lies below 3 %, and groups of that rate are nearly all alike."""
    rate = pass_rate(run)
    if not rate or rate[3] > 0.03 or run.last("score") > rate[1] + 0.1:
        return None
    group = int(run.number("group_size") or 8)
    text = f"{rate[0]} passes {rate[1]:.2%} of the first completions (95 %: {rate[2]:.2%} to {rate[3]:.2%})"
    text += f"; {forecast(rate[1], group):.0%} of groups of {group} are then all alike"
    facts = [fact(run, f"part:{rate[0]}" if run.parts() else "score", text, min(run.steps()))]
    if rate[1] == 0 and is_constant(run):
        facts[0] = Fact(text.partition(";")[0], facts[0].figure, facts[0].step)
    known = [t for t in run.texts if t.gold and t.score is not None]
    with_gold, _, chance = unpaid_with_gold(run.texts)
    if len(known) >= 8 and len(with_gold) <= max(1, 2 * chance):
        facts.append(
            shown(
                known, f"{len(known) - len(with_gold)} of {len(known)} logged completions do not hold the gold answer"
            )
        )
        return Evidence(CERTAIN + 0.01, facts)
    return Evidence(LIKELY, facts)


TOO_HARD = Cause(
    "too_hard",
    "the prompts are too hard for this model: no completion is right, so nothing can be reinforced",
    find_too_hard,
    f"{STILL} entropy_rose length_rose no_group_variance nothing_moves critic_useless too_sparse",
    "easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "Wilson's interval; groups alike with p^G + (1 - p)^G",
)
