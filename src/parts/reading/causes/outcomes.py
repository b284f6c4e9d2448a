"""Wrong outcomes: one reward part bought or lost, memorised prompts, a held-out set of another task."""

import math
import re
import statistics
from collections import Counter

from parts.evaluating.paired_tests import share_gain, wilson_interval
from parts.reading.causes.cause import CERTAIN, FLAT, LIKELY, LOST, TRY_REWARD, Evidence, cause, shown
from parts.reading.causes.groups import paid_though_cut
from parts.reading.causes.rewards import best_paid_wrong
from parts.reading.logged_run import GAIN, SOLVED, TREND_STEPS, Fact, LoggedRun, ends, is_flat, is_format, trend
from parts.reading.sample_texts import FEATURES, Text, payment_by_feature, right_gain, scores_by_answer, some_of


def falls(run: LoggedRun, values: list[float]) -> bool:
    """Whether a series falls, loses most of its gain in the second half, or is a share that surely halved."""
    half, size = values[len(values) // 2 :], max(1, len(values) // 3)
    if trend(values) < 0 or (trend(half) < 0 and 2 * ends(half)[1] < ends(values)[0] + ends(half)[0]):
        return True
    shares = [(statistics.fmean(part), run.batch(size)) for part in (values[:size], values[-size:])]
    return 0 <= min(values) <= max(values) <= 1 and 2 * shares[1][0] < shares[0][0] and share_gain(*shares)[2] < 0


def ends_text(name: str, values: list[float]) -> str:
    return "{} went from {:.3g} to {:.3g}".format(name, *ends(values))


def rise_beside(run: LoggedRun) -> tuple[float, float]:
    """(rise of the score, what of it neither right answers nor the format explain), with weights of 1."""
    name, (first, last) = run.answer_part()[0], run.ends("score")
    rise = last - first if run.parts() else math.nan
    parts = [ends(values) for part, values in run.parts().items() if values and (part == name or is_format(part))]
    return rise, rise - sum(max(0.0, last - first) for first, last in parts)


def past_its_best(run: LoggedRun) -> bool:
    """Whether the held-out share fell from its best while the score rose, mostly beside right answers and format."""
    rise, beside = rise_beside(run)
    return rise > 0 and beside > 0.6 * rise and run.held_out_peak() is not None


def rising_parts(run: LoggedRun) -> list[str]:
    """Parts that rise, else format parts at their maximum, while correctness varies but falls or stays flat.

    In a few steps these are format parts that gain 0.3 or more.
    """
    name, part = run.answer_part()
    worse = falls(run, part) if part else False
    others = {other: values for other, values in run.parts().items() if other != name and values}
    if len(run.steps()) < TREND_STEPS:
        return [x for x, values in others.items() if worse and is_format(x) and values[-1] - values[0] >= 0.3]
    idle = worse or is_flat(part) or past_its_best(run)
    if not part or max(part) - min(part) < 1e-9 or ends(part)[0] >= SOLVED or not idle:
        return []
    full = [key for key, values in others.items() if is_format(key) and ends(values)[1] >= 0.9 * max(1.0, *values)]
    return [other for other, values in others.items() if trend(values) > 0] or full


def answers_explain(early: list[Text], late: list[Text]) -> bool:
    """Whether right answers, at what they were worth early, explain half of the rise in score; True without one."""
    right, wrong = ([t.score for t in early if bool(t.right) is kind] for kind in (True, False))
    worth = statistics.fmean(right) - statistics.fmean(wrong) if right and wrong else 0.0
    more = statistics.fmean(bool(t.right) for t in late) - len(right) / len(early)
    return worth * more >= (statistics.fmean(t.score for t in late) - statistics.fmean(t.score for t in early)) / 2


def paid_feature(run: LoggedRun) -> tuple[Fact | None, bool]:
    """(fact on a feature that goes with the score and moved to where it pays, whether it brought most of the rise).

    It did if it grew beyond what nine of ten right completions had early, while right answers explain less than half.
    """
    scored, moves = [t for t in run.texts if t.score is not None], []
    train = some_of([t for t in scored if t.kind == "train"])
    steps = sorted({t.step for t in train})
    if len(scored) < 16 or len(steps) < 2:
        return None, False
    paid, third = payment_by_feature(scored), max(1, len(steps) // 3)
    early, late = ([t for t in train if t.step in part] for part in (steps[:third], steps[-third:]))
    right = [t.completion for t in early if t.right]
    earned = len(right) < 8 or answers_explain(early, late)  # with fewer, what they need is not known
    for name in sorted(paid, key=lambda key: -abs(paid[key])):
        measure, r = FEATURES[name], paid[name]
        first, last = (statistics.fmean(measure(t.completion) for t in texts) for texts in (early, late))
        if abs(r) < 0.5 or math.copysign(1, r) * (last - first) <= 0.1 * max(abs(first), abs(last), 0.1):
            continue
        text = f"among equally right completions the score goes with {'less ' if r < 0 else ''}{name} "
        text += f"(r = {r:.2f}): {name} is {first:.3g}, then {last:.3g}"
        needed = sorted(map(measure, right))[9 * (len(right) - 1) // 10] if right else math.inf
        moves.append((r > 0 and last > 1.2 * needed and not earned, text))
    if not moves:
        return None, False
    bought, text = max(moves, key=lambda move: move[0])
    return shown(sorted(scored, key=lambda t: -t.score), text), bought


def paid_unfinished(run: LoggedRun) -> Fact | None:
    """A fact if truncated completions are paid: their share is at least mean score + truncated share - 1."""
    cut, (name, means) = run.values("truncated"), run.answer_part()
    highest = [t.score or 0.0 for t in run.texts] + run.values("score_max") + means
    held_out = run.values(f"held_out_part:{name}")  # a bought part pays on held-out prompts too
    (first, last), mean, (rise, beside) = ends(cut), ends(means)[1], rise_beside(run)
    if len(cut) < 3 or not means or (held_out and held_out[-1] < held_out[0] - GAIN) or last < max(0.2, first + 0.1):
        return None
    text = f"{last:.0%} are cut at the end"
    if rise > 0 and beside > 0.6 * rise:
        return run.fact("truncated", f"{text}; right answers and form explain {rise - beside:.2g} of the rise in score")
    text = f"{text} and {name} is {mean:.3g}, so at least {mean + last - 1:.0%} are cut and paid"
    return run.fact("truncated", text) if max(highest) <= 1 and paid_though_cut(mean, last) else None


@cause(
    explains=f"{FLAT} {LOST} limit_too_short memorised_prompts updates_too_large",
    change="pay the right answer, and form or length at most beside one; continue from the best checkpoint held out",
    source="Gao 2022, scaling laws for reward over-optimisation; limit r = 0.5: our heuristic",
    decide_with=TRY_REWARD,
    breaks=True,
)
def part_bought(run: LoggedRun) -> Evidence | None:
    """The policy buys one part of the reward at the cost of the answer."""
    (name, part), parts, held_out = run.answer_part(), run.parts(), run.held_out_gain()
    answers = right_gain(run.texts)
    truth = answers or held_out
    better = truth is not None and truth[0] > GAIN and truth[1] > -GAIN
    worse = (truth is not None and truth[2] < 0) or (len(parts) > 1 and falls(run, part)) or past_its_best(run)
    rising, (feature, bought), unfinished = rising_parts(run), paid_feature(run), paid_unfinished(run)
    scores, points = run.values("score"), run.values("held_out")
    few, rose, lower = len(run.steps()) < TREND_STEPS, run.trend("score") > 0, False
    first, last = run.ends("length")
    hollow = rising and run.trend("length") < 0 and last < 0.3 * first and ends(part)[1] < 0.2  # only the form is left
    hollow = hollow and not (truth and truth[0] > 0.1)
    if few:  # too short for a trend: the held-out metric must have fallen beyond its interval
        lower = held_out is not None and held_out[2] < -GAIN and len(points) > 2
        rose = bool(rising) or (lower and scores[:1] < scores[-1:])
    elif rose and run.trend("length") > 0 and last > 1.5 * first:  # its length grows with the score
        lower = run.held_out_peak() is not None
    judged = better and "/acc/" in run.name("held_out")  # verl's accuracy does not depend on the score
    if (few and not rose) or (better and not (worse or hollow or bought or lower) and (judged or not unfinished)):
        return None
    facts = [run.fact(f"part:{x}", ends_text(x, parts[x]), run.onset(f"part:{x}")) for x in rising[:2]]
    facts += [run.fact(run.answer_series(), ends_text(name, part))] if rising else []
    facts += [run.fact("length", f"{run.name('length')} went from {first:.3g} to {last:.3g}")] if hollow else []
    if lower and rose and not rising:
        text = f"{ends_text('the score', scores)}, the held-out figure from {points[0]:.3g} to {points[-1]:.3g}"
        facts.append(run.fact("held_out", text))
    facts += [unfinished] if unfinished else []
    facts += [feature] if bought or (feature and not (truth is None and trend(part) > 0)) else []
    lost = rose and answers is not None and answers[2] < 0
    if lost and not facts:
        text = "the score rose from {:.3g} to {:.3g}, the share of right logged completions fell by {:.2g}"
        facts.append(shown(best_paid_wrong(run.texts), text.format(*ends(scores), -answers[0])))
    sure = lost or hollow or bought or (rising and worse) or (feature and (worse or rising))
    sure = sure or (unfinished and not better and trend(part) <= 0)
    # answers got neither better nor worse; they may still follow while the other part rises
    settled = [x for x in rising if trend(parts[x][len(parts[x]) // 2 :]) <= 0]
    beside = unfinished or (rose and (lower or settled or (feature and truth is not None and truth[0] <= 0)))
    if not facts or not (sure or beside):
        return None
    since = run.onset("score") if scores else None
    return Evidence(CERTAIN + 0.02 if sure else LIKELY + 0.2, facts, since)


def dying_turn(run: LoggedRun) -> Evidence | None:
    """Evidence that a later turn's rewards vanish in the second half of logged conversations."""
    rows = [(row.get("step", 0), row["turn_rewards"]) for row in run.samples if row.get("turn_rewards")]
    steps = sorted({step for step, _ in rows})
    for turn in range(1, 4) if len(steps) > 1 else ():
        paid = [(step, values[turn]) for step, values in rows if len(values) > turn and values[turn] is not None]
        half = steps[len(steps) // 2]
        early, late = ([value for step, value in paid if (step >= half) is is_late] for is_late in (False, True))
        if min(len(early), len(late)) >= 6 and statistics.fmean(late) < 0.2 * statistics.fmean(early):
            before, after = statistics.fmean(early), statistics.fmean(late)
            text = f"turn {turn + 1} paid {before:.3g} in the first half and {after:.3g} in the second"
            return Evidence(LIKELY + 0.2, [shown([], text)], since=half)
    return None


@cause(
    explains="length_fell length_rose entropy_fell held_out_flat entropy_rose part_bought updates_too_large kl_high",
    change="weigh the part so that it is worth keeping; for turns, a baseline for each (--turn_baseline turn)",
    source="each part's own curve; references/environments.md, second attempts",
    breaks=True,
)
def part_dies(run: LoggedRun) -> Evidence | None:
    """One part of the reward, or one turn, dies while the whole rises."""
    correct, whole = run.answer_part()[0], run.values("score")
    if run.trend("score") < 0 or (whole and ends(whole)[1] < 0.5 * statistics.fmean(whole[:2])):
        return None
    for name, values in {} if run.trend(f"part:{correct}") < 0 else run.parts().items():
        if len(values) < 6:
            continue
        first, last = ends(values)
        first = max(first, statistics.fmean(values[:2]))  # it may die within the first steps
        died = first > 0.05 and last < 0.2 * first and max(values[-3:]) < 0.5 * first
        is_penalty = re.search("penal|punish", name, re.IGNORECASE)  # whose size some logs show: its fall is good
        if died and name != correct and trend(values) <= 0 and not is_penalty:
            step = run.onset(f"part:{name}")
            text = f"{name} went from {first:.3g} to {last:.3g} while {ends_text('the score', whole)}"
            return Evidence(CERTAIN + 0.05, [run.fact(f"part:{name}", text, step)], since=step)
    return dying_turn(run)


@cause(
    explains=f"{FLAT} entropy_fell kl_high length_fell length_rose too_easy other_eval_task updates_too_large",
    change="more distinct prompts, each seen a few times; keep the checkpoint with the best held-out figure",
    source="definition of a held-out set; gain held out below half of the gain in training",
    decide_with="python scripts/evaluation.py on the start and the end, on other prompts of the task",
    breaks=True,
)
def memorised_prompts(run: LoggedRun) -> Evidence | None:
    """The policy memorises a few prompts: the training score rises, the held-out figure does not."""
    gain, (name, part), held_out = run.held_out_gain(), run.answer_part(), run.values("held_out")
    train = [t for t in run.texts if t.kind == "train"]
    right, wrong = scores_by_answer(train)
    paid_though_wrong = min(len(right), len(wrong)) > 8 and statistics.fmean(wrong) > 0.5 * statistics.fmean(right)
    if not gain or len(part) < 6 or min(part) < 0 or max(part) > 1 or paid_though_wrong:
        return None
    if trend(part) < 0 or (trend(part) == 0 and gain[2] >= 0):  # no rise beyond chance, unless held-out surely fell
        return None
    (first, last), rose = ends(part), ends(part)[1] - ends(part)[0]
    start, rows = statistics.fmean(part[:2]), run.settings.get("rows")
    few = bool(rows) and rows <= 16  # which each step sees several times: their pass rate differs from the held-out one
    alike = few or start <= held_out[0] + 0.15 or min(run.series["held_out"]) > 3  # if both were measured at the start
    held_out_rose = gain[0] if few else gain[2]  # else its upper limit
    if rose < 0.1 or not alike or held_out_rose > 0.5 * rose or last < held_out[-1] + 0.15:
        return None
    text = f"{name} rose from {first:.3g} to {last:.3g} in training"
    facts = [run.fact("held_out", f"{text}, held out from {held_out[0]:.3g} to {held_out[-1]:.3g}")]
    drawn = {(t.step, t.prompt) for t in train}  # a prompt's completions at one step are one draw
    distinct = len({prompt for _, prompt in drawn})
    if rows and rows <= 128:
        facts.append(Fact(f"the training data have {rows} distinct prompts", "data"))
    elif len(drawn) >= 3 and distinct <= 0.7 * len(drawn):
        facts.append(shown(train, f"{len(drawn)} logged draws are of {distinct} distinct prompts"))
    points = run.points(run.answer_series())
    ahead = next((step for step, value in points if value > first + max(rose / 2, GAIN)), points[-1][0])
    alone = len(run.parts()) < 2 or run.values(f"held_out_part:{name}")  # training and held-out metrics are comparable
    same = bool(alone) and abs(start - held_out[0]) <= 0.15
    return Evidence(CERTAIN + 0.04 if len(facts) > 1 else LIKELY + 0.1 * same, facts, since=ahead)


def telling_words(prompts: list[str], others: list[str]) -> list[str]:
    """Words and signs (numbers as 0) that the other prompts lack, although one common task would make them likely."""
    one, two = (
        [{*re.findall(r"[a-z]+|\d|[^\w\s]", re.sub(r"\d+", "0", prompt.lower()))} for prompt in texts]
        for texts in (prompts, others)
    )
    counts = Counter(word for words in one for word in words if not any(word in other for other in two))
    chance = {  # probability that no other prompt has a word, by Laplace's rule of succession
        word: math.prod((len(one) - count + 1 + i) / (len(one) + 2 + i) for i in range(len(two)))
        for word, count in counts.items()
    }
    return sorted((word for word in chance if chance[word] < 0.01), key=chance.get)


def unlike_training(run: LoggedRun) -> Fact | None:
    """A fact if a 0/1 score is well above 0 in training but near 0 held out, from start to end."""
    (name, part), held_out, spread = run.answer_part(), run.values("held_out"), run.early("score_std", 1)
    alike = run.values(f"held_out_part:{name}")  # the same reward on held-out prompts
    held_out = alike or held_out
    if len(held_out) < 2 or len(part) < TREND_STEPS or min(part) < 0 or max(part) > 1:
        return None
    binary = spread and len(run.parts()) < 2 and abs(spread[0] - math.sqrt(part[0] * (1 - part[0]))) <= 0.05
    if not alike and not binary:
        return None  # the held-out share of full marks is not comparable
    if max(held_out) > 0.05 or wilson_interval(part[0] * run.batch(), run.batch())[0] < 0.2 or trend(part) < 0:
        return None
    text = f"{name} goes from {part[0]:.3g} to {ends(part)[1]:.3g} in training"
    return run.fact("held_out", f"{text} and stays at {max(held_out):.3g} held out")


@cause(
    explains="held_out_flat memorised_prompts part_bought gold_mismatch",
    change="hold out prompts of the task: python scripts/data_loader.py FILE --split 0.1 --out part.jsonl",
    source="definition of a held-out set",
)
def other_eval_task(run: LoggedRun) -> Evidence | None:
    """The held-out prompts do not measure the task: they are of another task, or are also trained on."""
    rows = run.columns.get("eval/rows", {})
    trained = run.columns.get("eval/trained_rows", {})
    trained = {step: count for step, count in trained.items() if count > 0.05 * rows.get(step, 0)}
    same = run.settings.get("data") and run.settings.get("data") == run.settings.get("eval_data")
    if trained or (same and run.values("held_out")):
        text = "the training file is the evaluation file too"
        if trained:
            step, count = next(iter(trained.items()))
            of = f" of {rows[step]:.0f}" if step in rows else ""
            text = f"{count:.0f}{of} evaluation prompts also occur in training"
        return Evidence(CERTAIN + 0.05, [run.fact("held_out", f"{text}; the accuracy is inflated")])
    unlike = unlike_training(run)
    train, held_out = (sorted({t.prompt for t in run.texts if t.kind == kind}) for kind in ("train", "eval"))
    name, part = run.answer_part()
    alike = run.values(f"held_out_part:{name}")  # the same reward on held-out prompts
    follows = len(alike) > 1 and len(part) > 1 and alike[-1] - alike[0] > 0.5 * (ends(part)[1] - part[0]) > 0.02
    few = len(train) < 2 or len(held_out) < 4 or run.gained() or follows
    words = ([], []) if few else (telling_words(train, held_out), telling_words(held_out, train))
    if not all(words):
        return Evidence(CERTAIN + 0.02, [unlike]) if unlike else None
    examples = [next(t for t in run.texts if t.kind == kind) for kind in ("train", "eval")]
    fact = shown(examples, "training prompts have {}, held-out ones {}".format(*(" ".join(x[:6]) for x in words)))
    sure = unlike or (run.trend("score") > 0 and len(train) > 3)
    return Evidence(CERTAIN + 0.04 if sure else LIKELY + 0.1, [*filter(None, [unlike]), fact])


OUTCOME_CAUSES = (part_bought, part_dies, memorised_prompts, other_eval_task)
