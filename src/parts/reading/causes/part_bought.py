"""One part is bought at the cost of the answer: length, tags, digits, brevity, repetition, tries, text after it."""

import statistics

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import SOLVED, LoggedRun, first_part, gained, held_out_gain, is_solved
from parts.reading.sample_texts import FEATURES, Text, payment_by_feature
from parts.reading.trends import ends, is_flat, is_format, onset, trend

WORDS = {  # feature: what it is called where more of it pays, and where less does
    "length": ("length", "brevity"),
    "answers tried": ("an answer tried several times", "fewer answers"),
}


def rising_parts(run: LoggedRun) -> tuple[list[str], str]:
    """Parts that rise while the one for correctness does not, and that one's name."""
    name, part = first_part(run)
    rising = [other for other, values in run.parts().items() if other != name and trend(values) > 0]
    full = [
        other
        for other, values in run.parts().items()
        if other != name and is_format(other) and values and ends(values)[1] >= 0.9 * max(1.0, *values)
    ]
    falls, stands = trend(part) < 0, is_flat(part)
    if ends(part)[0] >= SOLVED if part else True:
        return [], name
    return (rising or full) if falls or (stands and not gained(run)) else [], name


def halves(texts: list[Text]) -> tuple[list[Text], list[Text]]:
    """Training completions of the first and of the last logged steps."""
    train = [t for t in texts if t.kind == "train"] or texts
    steps = sorted({t.step for t in train})
    third = max(1, len(steps) // 3)
    return [t for t in train if t.step in steps[:third]], [t for t in train if t.step in steps[-third:]]


def paid_feature(run: LoggedRun) -> tuple[str, float, list[Text]] | None:
    """(feature, correlation, best paid completions) that the score goes with among equally right completions."""
    scored = [t for t in run.texts if t.score is not None]
    if len(scored) < 12:
        return None
    paid = payment_by_feature(run.texts)
    early, late = halves(run.texts)
    for name in sorted(paid, key=lambda key: -abs(paid[key])):
        measure = FEATURES[name]
        first, last = (statistics.fmean(measure(t.completion) for t in part) for part in (early, late))
        moved = (last - first) * (1 if paid[name] > 0 else -1)
        if abs(paid[name]) >= 0.5 and moved > 0.1 * max(abs(first), abs(last), 0.1):
            words = WORDS.get(name, (name, f"less {name}"))[paid[name] < 0]
            return f"{words} (mean {first:.3g}, then {last:.3g})", paid[name], sorted(scored, key=lambda t: -t.score)
    return None


def paid_unfinished(run: LoggedRun) -> Fact | None:
    """Completions that are cut and paid all the same: by counting, at least mean + share cut - 1."""
    cut, (name, means) = run.values("truncated"), first_part(run)
    highest = [t.score or 0.0 for t in run.texts] + run.values("score_max") + means
    if len(cut) < 3 or not means or max(highest) > 1:
        return None
    last, mean = ends(cut)[1], ends(means)[1]
    if last < 0.2 or mean + last - 1 <= 0.5 * min(mean, last):
        return None
    return fact(
        run,
        "truncated",
        f"{last:.0%} are cut at the end and {name} is {mean:.3g}, so at least {mean + last - 1:.0%} are cut and paid",
    )


def right_share(texts: list[Text]) -> float | None:
    """Share of right completions; None where the gold answer is not known of eight."""
    known = [t.right for t in texts if t.right is not None]
    return sum(known) / len(known) if len(known) >= 8 else None


def find_part_bought(run: LoggedRun) -> Evidence | None:
    """The score rises or is paid by something else, and correctness or the held-out figure does not rise."""
    rising, name = rising_parts(run)
    feature, unfinished = paid_feature(run), paid_unfinished(run)
    gain, shares = held_out_gain(run), [right_share(part) for part in halves(run.texts)]
    better = None not in shares and shares[1] > shares[0] + 0.1
    rose = run.trend("score") > 0
    facts, step = [], onset(run.series["score"]) if run.series.get("score") else None
    if rising:
        first, last = ends(first_part(run)[1])
        for other in rising[:2]:
            begin, end = ends(run.parts()[other])
            facts.append(
                fact(
                    run,
                    f"part:{other}",
                    f"{other} went from {begin:.3g} to {end:.3g}",
                    onset(run.series[f"part:{other}"]),
                )
            )
        facts.append(fact(run, f"part:{name}", f"{name} went from {first:.3g} to {last:.3g}"))
    if unfinished:
        facts.append(unfinished)
    if feature and not (better and gained(run)):
        facts.append(
            shown(feature[2], f"among equally right completions the score goes with {feature[0]}, r = {feature[1]:.2f}")
        )
    stalled = gain is not None and gain[0] <= 0.02 and not is_solved(run) and max(run.values("held_out")) < SOLVED
    if rose and stalled:
        held_out, scores = run.values("held_out"), (run.first("score"), run.last("score"))
        text = f"the score rose from {scores[0]:.3g} to {scores[1]:.3g}"
        facts.append(fact(run, "held_out", f"{text}, the held-out figure from {held_out[0]:.3g} to {held_out[-1]:.3g}"))
    if (
        not facts
        or (better and not rising and not unfinished)
        or (gained(run) and not rising and not unfinished and not feature)
    ):
        return None
    flat = None not in shares and shares[1] <= shares[0] + 0.05
    sure = (rising and (rose or trend(first_part(run)[1]) < 0)) or (feature and (flat or stalled)) or unfinished
    if not rising and not unfinished and not feature and not run.trend("length"):
        return Evidence(LIKELY, facts, since=step)
    return Evidence(CERTAIN + 0.01 if sure else LIKELY + 0.1, facts, since=step)


PART_BOUGHT = Cause(
    "part_bought",
    "the policy buys one part of the reward at the cost of the answer",
    find_part_bought,
    f"{STILL} {LOST} limit_too_short part_dies no_group_variance critic_useless too_sparse "
    "memorised_prompts updates_too_large",
    "pay that part only beside a right answer, or not at all; go on from the checkpoint with the best held-out figure",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "Gao 2022, scaling laws for reward over-optimisation; limit r = 0.5: our heuristic",
    breaks=True,
)
