"""One part is bought at the cost of the answer: length, tags, digits, brevity, repetition, tries, text after it."""

import statistics

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import GAIN, SOLVED, LoggedRun, first_part, held_out_gain
from parts.reading.sample_texts import FEATURES, Text, payment_by_feature, right_gain
from parts.reading.trends import TREND_STEPS, ends, is_flat, is_format, onset, trend

LESS = {"length": "brevity", "answers tried": "fewer answers"}  # what it is called where less of a feature pays


def rising_parts(run: LoggedRun) -> list[str]:
    """Parts that rise, or are full by their form, while the one for correctness falls or stands."""
    name, part = first_part(run)
    constant = bool(part) and max(part) - min(part) < 1e-9  # nothing was bought at its cost
    if not part or constant or ends(part)[0] >= SOLVED or len(run.parts()) < 2:
        return []
    others = {other: values for other, values in run.parts().items() if other != name and values}
    rising = [other for other, values in others.items() if trend(values) > 0]
    full = [
        other for other, values in others.items() if is_format(other) and ends(values)[1] >= 0.9 * max(1.0, *values)
    ]
    if trend(part) < 0 or trend(part[len(part) // 2 :]) < 0:  # it may have risen first
        return rising or full
    return (rising or full) if is_flat(part) else []


def paid_feature(run: LoggedRun) -> tuple[str, list[Text]] | None:
    """(what was seen, best paid completions) of a feature that the score goes with and that moved to where it pays."""
    scored, train = [t for t in run.texts if t.score is not None], [t for t in run.texts if t.kind == "train"]
    steps = sorted({t.step for t in train})
    if len(scored) < 16 or len(steps) < 2:
        return None
    paid, third = payment_by_feature(scored), max(1, len(steps) // 3)
    for name in sorted(paid, key=lambda key: -abs(paid[key])):
        parts = ([t for t in train if t.step in part] for part in (steps[:third], steps[-third:]))
        first, last = (statistics.fmean(FEATURES[name](t.completion) for t in part) for part in parts)
        moved = (last - first) * (1 if paid[name] > 0 else -1)
        if abs(paid[name]) >= 0.5 and moved > 0.1 * max(abs(first), abs(last), 0.1):
            words = name if paid[name] > 0 else LESS.get(name, f"less {name}")
            text = f"among equally right completions the score goes with {words} (r = {paid[name]:.2f})"
            return f"{text}: {name} is {first:.3g}, then {last:.3g}", sorted(scored, key=lambda t: -t.score)
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
    text = f"{last:.0%} are cut at the end and {name} is {mean:.3g}"
    return fact(run, "truncated", f"{text}, so at least {mean + last - 1:.0%} are cut and paid")


def find_part_bought(run: LoggedRun) -> Evidence | None:
    """Something else rises or pays, and correctness, by gold answers or held out, does not rise."""
    (name, part), held_out = first_part(run), held_out_gain(run)
    truth = right_gain(run.texts) or held_out
    better = truth is not None and truth[0] > GAIN and truth[1] > -GAIN
    lost = trend(part) < 0 or trend(part[len(part) // 2 :]) < 0
    worse = (truth is not None and truth[2] < 0) or (len(run.parts()) > 1 and lost)
    rising, feature, unfinished = rising_parts(run), paid_feature(run), paid_unfinished(run)
    facts = [
        fact(run, f"part:{other}", ends_text(run, other), onset(run.series[f"part:{other}"])) for other in rising[:2]
    ]
    facts += [fact(run, f"part:{name}", ends_text(run, name))] if rising else []
    facts += [unfinished] if unfinished else []
    if better and not worse and not unfinished:
        return None
    if feature and not (truth is None and trend(part) > 0):
        facts.append(shown(feature[1], feature[0]))
    rose = run.trend("score") > 0
    stalled = held_out is not None and held_out[0] <= 0.02 and 0 < max(run.values("held_out")) < SOLVED
    if rose and stalled:
        scores, points = (run.first("score"), run.last("score")), run.values("held_out")
        text = f"the score rose from {scores[0]:.3g} to {scores[1]:.3g}"
        facts.append(
            fact(run, "held_out", f"{text}, the held-out figure went from {points[0]:.3g} to {points[-1]:.3g}")
        )
    step = onset(run.series["score"]) if run.series.get("score") else None
    if not facts or len(run.steps()) < TREND_STEPS:
        return None
    sure = (rising and (rose or worse)) or (feature and (worse or (stalled and rose))) or unfinished
    return Evidence(CERTAIN + 0.02 if sure else LIKELY, facts, since=step) if sure or (rose and stalled) else None


def ends_text(run: LoggedRun, part: str) -> str:
    """Where a part began and ended."""
    begin, end = ends(run.parts()[part]) if part in run.parts() else ends(run.values("score"))
    return f"{part} went from {begin:.3g} to {end:.3g}"


PART_BOUGHT = Cause(
    "part_bought",
    "the policy buys one part of the reward at the cost of the answer",
    find_part_bought,
    f"{STILL} {LOST} limit_too_short no_group_variance critic_useless too_sparse memorised_prompts "
    "updates_too_large kl_holds_policy",
    "pay that part only beside a right answer, or not at all; go on from the checkpoint with the best held-out figure",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "Gao 2022, scaling laws for reward over-optimisation; limit r = 0.5: our heuristic",
    breaks=True,
)
