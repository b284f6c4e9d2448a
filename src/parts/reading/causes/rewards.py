"""Faulty rewards: another answer format, wrong gold answers, constant, inverted, blind to the answer, or noisy."""

import ast
import math
import re
import statistics
from collections import Counter

from parts.reading.causes.cause import CERTAIN, FALSE, LIKELY, LOST, STILL, TRY_REWARD, Evidence, cause, shown
from parts.reading.causes.groups import alike_by_chance, pass_rate
from parts.reading.logged_run import EARLY, TREND_STEPS, Fact, LoggedRun, is_format, trend
from parts.reading.sample_texts import (
    COMPLETIONS,
    Text,
    early_texts,
    grouped,
    holds,
    marked_answers,
    payment_by_feature,
    scores_by_answer,
    some_of,
    source_marks,
    stated_answer,
)

READS_GOLD = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truths?|labels?|expected|references?)\b *[,)=]")
OTHER_ROW = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truth|labels?)\[(\d+|-1|::-1)\]")


def unpaid_with_gold(texts: list[Text]) -> list[Text]:
    """Completions that contain their gold answer but are not paid, if most of those that contain it are not.

    [] if about as many contain another row's gold answer, or if a quarter of those with their gold answer is paid.
    """
    known = [t for t in early_texts(texts) if t.gold and t.pay is not None]
    lowest = min((t.pay for t in known), default=0.0)  # the pay of a wrong answer
    if lowest > 1e-9 and max(t.pay for t in known) - lowest <= 1e-9:
        return []  # all are paid
    holders = [t for t in known if t.has_gold()]
    unpaid = [t for t in holders if t.pay <= lowest + 1e-9]
    golds = [t.gold for t in known]
    pairs = zip(known, golds[len(golds) // 2 :] + golds[: len(golds) // 2], strict=True)
    others = [t.has_gold(gold) for t, gold in pairs if gold != t.gold]
    chance = len(known) * sum(others) / max(1, len(others))
    return unpaid if len(unpaid) >= max(chance + 3 * math.sqrt(chance) + 3, 0.75 * len(holders)) else []


def marks_with_gold(texts: list[Text]) -> set[str]:
    """Answer marks in which completions have their gold answer."""
    return {mark for t in texts for mark, answer in marked_answers(t.completion) if holds(answer, t.gold)}


def hardly_paid(run: LoggedRun) -> dict[str, Evidence]:
    """{cause: evidence} if the log alone shows that answers are hardly ever paid.

    If a format part is paid, or an answer now and then, the form is right: suspect the gold answers.
    """
    (name, means), rate = run.answer_part(), pass_rate(run, steps=10**9)
    spreads = run.series.keys() & {"score_std", "zero_std", "score_max"}
    formed = [(part, late) for part in filter(is_format, run.parts()) if (late := run.ends(f"part:{part}")[1]) >= 0.8]
    never = len(means) >= 3 and max(map(abs, means)) <= 0.01 and spreads
    rare = formed and rate and 0 < rate[0] < rate[2] <= 0.03 and trend(means) <= 0
    if run.texts or run.reward_source or not (rare or never):
        return {}
    paid = f"{rate[0]:.2%} of all completions" if rare else "next to nothing at any step"
    facts = [run.fact(run.answer_series(), f"{name} pays {paid}, and the log does not show why")]
    form = [run.fact(f"part:{part}", f"{part} is {late:.3g}, so the form is right") for part, late in formed[:1]]
    gold = {"gold_mismatch": Evidence(LIKELY + (0.12 if rare else 0.05), facts + form)}
    return gold if rare else gold | {"answer_form": Evidence(LIKELY + (0.04 if form else 0.06), facts)}


def unpaid_answers(run: LoggedRun) -> dict[str, Evidence]:
    """{cause: evidence} if right answers are not paid: the reward reads another form, or compares them wrongly."""
    unpaid, reads = unpaid_with_gold(run.texts), source_marks(run.reward_source)
    counts = Counter(mark for text in run.texts for mark in source_marks(text.prompt))
    asks, read = {mark for mark, count in counts.items() if count * 2 > len(run.texts)}, ", ".join(sorted(reads))
    text = f"prompts ask for {', '.join(sorted(asks))}, the reward reads {read}"
    other = [Fact(text, run.reward_file)] if reads and asks and not reads & asks else []
    if not unpaid and other and max(run.early("score"), default=1.0) <= 0.05:
        return {"answer_form": Evidence(LIKELY, other)}
    if not unpaid:
        return hardly_paid(run)
    used, text = marks_with_gold(unpaid), f"{len(unpaid)} unpaid completions hold the gold answer"
    if used & reads:
        return {"gold_mismatch": Evidence(CERTAIN + 0.05, [shown(unpaid, f"{text} where the reward looks")])}
    if reads:
        where = f", marked by {', '.join(sorted(used)) or 'nothing'}; the reward reads {read}"
        return {"answer_form": Evidence(CERTAIN + 0.05, [shown(unpaid, text + where), *other])}
    fact = shown(unpaid, text)
    return {"answer_form": Evidence(LIKELY + 0.1, [fact]), "gold_mismatch": Evidence(LIKELY, [fact])}


@cause(
    explains=FALSE,
    change="ask for the reward's format in the prompt, or have the reward read that of the completions",
    source="counting, against gold answers of other rows; open-r1#255, verl#2150",
    decide_with=TRY_REWARD,
)
def answer_form(run: LoggedRun) -> Evidence | None:
    """The reward expects another answer format, so right answers score nothing."""
    return unpaid_answers(run).get("answer_form")


def shifted_gold(run: LoggedRun) -> Fact | None:
    """A fact if completions state the gold answers of rows at a constant offset in the data."""
    places, golds, votes = {prompt: i for i, prompt in enumerate(run.golds)}, list(run.golds.values()), Counter()
    reach = min(60, (len(golds) - 1) // 2)  # largest offset; no row is reached in both directions
    train = list({(t.prompt, t.completion): t for t in run.texts if t.prompt in places}.values())
    for t in train if len(golds) >= 20 else ():
        place = places[t.prompt]
        answer = stated_answer(t.completion, golds[place])
        votes.update(k for k in range(-reach, reach + 1) if golds[(place + k) % len(golds)] == answer)
    (best, count), (_, second) = (votes.most_common(2) + [(0, 0)] * 2)[:2]
    if not best or count < max(4, 2 * second, 3 * votes[0], 0.2 * len(train)):
        return None
    return shown(train, f"{count} of {len(train)} completions state the gold answer of the row {best:+d} places away")


@cause(
    explains=f"{FALSE} noisy_reward other_eval_task inverted_reward",
    change="compare texts with texts (str() on both sides); print prompt, gold and extracted answer of ten rows",
    source="counting, against gold answers of other rows",
    decide_with=TRY_REWARD,
)
def gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Answers are compared with the wrong gold: a number with a text, another row's gold, a wrong column."""
    shift, other = shifted_gold(run), OTHER_ROW.search(run.reward_source)
    train = [t for t in run.texts if t.kind == "train" and t.gold]
    golds, prompts = {t.gold for t in train}, {t.prompt for t in train}
    if shift:
        return Evidence(CERTAIN + 0.08, [shift])
    if other:
        text = f"the reward compares with {other[0]}, which is not the completion's row"
        return Evidence(CERTAIN + 0.08, [Fact(text, run.reward_file)])
    if len(prompts) >= 8 and len(golds) == 1:
        return Evidence(CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {min(golds)!r}")])
    return unpaid_answers(run).get("gold_mismatch")


def is_read(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function reads a parameter, and not only counts it."""
    inside = [*ast.walk(function)]
    idle = [node.iter for node in inside if isinstance(node, ast.comprehension) and ast.unparse(node.target) == "_"]
    idle += [x for node in inside if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" for x in node.args]
    counted = {leaf for node in idle for leaf in ast.walk(node)}
    return any(isinstance(node, ast.Name) and node.id == name and node not in counted for node in inside)


def placeholder(source: str) -> str:
    """Why a reward's source may give constant scores: it ignores completions or turns exceptions into scores; or ""."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & COMPLETIONS
        if given and not any(is_read(function, name) for name in given):
            return f"{function.name} never reads its {min(given)}"
    caught = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    if any(not isinstance(node.body[-1], ast.Raise) for node in caught):
        return "the reward turns an exception into a score"
    return ""


@cause(
    explains=f"{FALSE} part_dies answer_form gold_mismatch",
    change="have {reward} read the completion and let exceptions end the run; run scripts/reward_preflight.py",
    source="definition: equal scores give advantage 0; verl#3024",
    decide_with=TRY_REWARD,
)
def constant_reward(run: LoggedRun) -> Evidence | None:
    """Every completion gets the same score: a placeholder reward, or an exception turned into a score."""
    (name, means), scores, spreads = run.answer_part(), run.values("score"), run.spreads()
    if len(run.texts) >= 8 and all(t.unscored for t in run.texts):
        text = f"the reward gave None for all {len(run.texts)} logged completions: a `return` may be missing"
        return Evidence(CERTAIN + 0.09, [shown(run.texts, text)])
    seen, why, constant = means + run.values(f"held_out_part:{name}"), placeholder(run.reward_source), run.is_constant()
    part = len(run.parts()) > 1 and len(seen) >= 3 and max(seen) - min(seen) < 1e-9
    # in few steps, zeros may be wrong answers; TRL's score_std of 0 does not exclude differences between prompts
    few = 0 < len(scores) < 3 and max(spreads, default=1) <= 1e-6 and not any(run.part_spreads())
    few = few and (run.ends("score")[1] or why)
    solved = run.is_solved() and not (constant and max(spreads[:3], default=1) <= 1e-6)
    if not (constant or few or part) or solved:
        return None
    level, (right, wrong) = means[-1] if part else run.ends("score")[1], scores_by_answer(early_texts(run.texts))
    series = f"part:{name}" if part else "score_std" if "score_std" in run.series else "score"
    facts = [run.fact(series, f"{name if part else 'every completion'} scored {level:.4g} at every step")]
    if why:
        facts.append(Fact(why, run.reward_file))
        return Evidence(CERTAIN + 0.07 if right or "exception" not in why else CERTAIN, facts)
    if right and wrong and not part:
        examples = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(examples, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
    zero, full = min(abs(level), abs(level + 1)) <= 1e-9, abs(level - 1) <= 1e-9  # usual scores of wrong, right answers
    # it cannot be that all answers were wrong, or all right
    if not zero and (not full or (wrong and not part)):
        return Evidence(CERTAIN + 0.05, facts)
    if zero and wrong and not right:  # all wrong
        return Evidence(LIKELY - 0.15, facts)
    return Evidence(LIKELY + (0.14 if full and run.batch(len(scores)) >= 256 else 0.02), facts)


def separation(right: list[float], wrong: list[float]) -> tuple[float, float, str]:
    """(difference of the mean scores of right and wrong completions, its standard error, text)."""
    means = statistics.fmean(right), statistics.fmean(wrong)
    least = max(statistics.pvariance([*right, *wrong]) * 0.25, 1e-18)  # assume some scatter in each class
    errors = [max(statistics.variance(x) if len(x) > 1 else 0.0, least) / len(x) for x in (right, wrong)]
    text = f"{len(right)} right completions score {means[0]:.3g}, {len(wrong)} wrong ones {means[1]:.3g}"
    return means[0] - means[1], math.sqrt(sum(errors)), text


def best_paid_wrong(texts: list[Text]) -> list[Text]:
    return sorted((t for t in texts if t.right is False and t.score is not None), key=lambda t: -t.score)


def better_when_vague(run: LoggedRun) -> Fact | None:
    """A fact if a single score rises while completions get shorter and more random; right answers get more certain."""
    names, cut = ("score", "length", "entropy"), statistics.median(run.early("truncated", 3) or [0.0])
    if len(run.parts()) > 1 or cut > 0.1 or not all(map(run.values, names)):  # if cut, it may learn to end
        return None
    (begin, score), (first, last), (low, high) = (
        (statistics.median(run.early(name, 3)), run.ends(name)[1]) for name in names
    )
    along = min(run.correlation("score", "entropy"), -run.correlation("score", "length"))
    if score <= begin or last > 0.85 * first or high < 1.3 * low or along < 0.5:
        return None
    text = f"the score rises while {run.name('length')} goes from {first:.3g} to {last:.3g}"
    return run.fact("entropy", f"{text} and {run.name('entropy')} from {low:.3g} to {high:.3g}")


@cause(
    explains=f"{FALSE} limit_too_short part_dies gold_mismatch answer_form",
    change="flip the sign of {reward}, then restart from the initial model",
    source="scores of right and wrong completions, Welch's t",
    decide_with=TRY_REWARD,
    breaks=True,
)
def inverted_reward(run: LoggedRun) -> Evidence | None:
    """The reward is inverted: wrong answers score higher than right ones."""
    right, wrong = scores_by_answer(early_texts(run.texts))
    if min(len(right), len(wrong)) < 3:
        vague = None if right or wrong else better_when_vague(run)
        return Evidence(LIKELY + 0.1, [vague]) if vague else None
    difference, error, text = separation(right, wrong)
    examples = best_paid_wrong(run.texts)[:2] + [t for t in run.texts if t.right][:1]
    lowest = sum(pay <= min(right) + 1e-9 for pay in right)
    # all of the lowest paid are right: the probability that they are by chance
    chance = math.comb(len(right), lowest) / math.comb(len(right) + len(wrong), lowest)
    apart = lowest >= 5 and min(right) < min(wrong) - 1e-9 and chance < 0.01
    inverted = difference < 0 and (apart or difference < -4 * error)
    return Evidence(CERTAIN + 0.06, [shown(examples, text)], since=1) if inverted else None


@cause(
    explains=f"{STILL} {LOST} limit_too_short critic_useless too_easy memorised_prompts updates_too_large part_bought",
    change="pay for the right answer; form, length or style at most beside a right one",
    source="difference of mean scores with its interval, below half of what scores span",
    decide_with=TRY_REWARD,
    breaks=True,
)
def reward_ignores_answer(run: LoggedRun) -> Evidence | None:
    """The reward ignores the answer: right and wrong completions score alike."""
    parts, scores = run.parts(), [pay for pays in scores_by_answer(run.texts) for pay in pays]
    body = re.sub(r"(?s)\bdef \w+\(.*?\)( ->[^:]*)?:", "", run.reward_source)
    if parts and all(map(is_format, parts)) and not READS_GOLD.search(body):
        text = f"no part of the reward judges the answer: {', '.join(parts)}"
        return Evidence(LIKELY + 0.25, [run.fact(f"part:{next(iter(parts))}", text)], since=1)
    lowest, highest = min(scores, default=0.0), max(scores, default=0.0)
    formed = [t for t in some_of(run.texts) if marked_answers(t.completion)]
    # where there are enough: of the first ones, and in an answer's form, as a reward may pay nothing without it
    choices = [scores_by_answer(texts) for texts in (early_texts(formed), formed, early_texts(run.texts))]
    right, wrong = next((pays for pays in choices if min(map(len, pays)) >= 6), ([], []))
    if not right or highest - lowest <= 1e-9 or run.is_constant():
        return None
    difference, error, text = separation(right, wrong)
    scatter = math.sqrt((statistics.pvariance(right) + statistics.pvariance(wrong)) / 2)  # among equally right ones
    only_right = difference > 4 * error and (max(wrong) - lowest <= 1e-9 or difference > scatter)
    if only_right or difference + 2 * error > 0.5 * (highest - lowest) or difference < -4 * error:
        return None
    paid = payment_by_feature(run.texts)
    name = max(paid, key=lambda key: abs(paid[key]))
    text += f"; the score goes with {name} (r = {paid[name]:.2f})" if abs(paid[name]) > 0.5 else ""
    return Evidence(CERTAIN + 0.03, [shown(best_paid_wrong(run.texts), text)], since=1)


def pays_chance(run: LoggedRun) -> Fact | None:
    """A fact if groups differ but the score stays flat: although the policy moves, or whatever the prompt."""
    scores, spread, alike = run.values("score"), run.values("score_std"), run.values("zero_std")
    half, gain = len(scores) // 2, run.held_out_gain()
    rises = run.trend("score") > 0 or (gain and gain[1] > 0)
    if half < EARLY or not spread or statistics.fmean(alike or [0.0]) > 0.3 or rises or run.collapse():
        return None
    early, late = statistics.fmean(scores[:half]), statistics.fmean(scores[half:])
    if run.is_constant() or late - early > max(0.02, 0.1 * statistics.median(spread)):
        return None
    text, (first, last) = f"the score stays flat, {early:.3g} and {late:.3g} in its halves", run.ends("kl")
    if half >= TREND_STEPS and last >= max(0.05, 2 * first) and run.correlation("kl") >= 0.5:
        return run.fact("kl", f"{text}, while {run.name('kl')} goes from {first:.3g} to {last:.3g}")
    if share := alike_by_chance(run):
        return run.fact("zero_std", f"{text}, and {share} whatever the prompt")
    return None


@cause(
    explains=f"{FALSE} limit_too_short inverted_reward answer_form gold_mismatch",
    change="make {reward} deterministic: no random draw, a judge at temperature 0, no state between calls",
    source="definition: a reward is a function of prompt and completion",
    decide_with=TRY_REWARD,
)
def noisy_reward(run: LoggedRun) -> Evidence | None:
    """The reward is noise: the same completion of the same prompt gets different scores."""
    scored, groups = [t for t in run.texts if t.score is not None], []
    for same_step in (True, False):  # of one step where there are some
        if sum(map(len, groups)) < 6:
            groups = grouped(scored, lambda t, s=same_step: (s and t.step, t.kind, t.prompt, t.completion, t.gold))
            groups = [sorted(group, key=lambda t: t.score) for group in groups if len(group) > 1]
    differing = [group for group in groups if group[-1].score - group[0].score > 1e-6]
    if not scored and (idle := pays_chance(run)):
        return Evidence(LIKELY + 0.05, [idle])
    if len(differing) < 2:
        return None
    chance = statistics.fmean(statistics.variance(t.score for t in group) for group in groups)
    if chance < 0.1 * statistics.pvariance(t.score for t in scored):  # a judge's scatter, which averages out
        return None
    low, *_, high = max(differing, key=lambda group: group[-1].score - group[0].score)
    text = f"{len(differing)} of {len(groups)} repeated completions scored differently"
    return Evidence(CERTAIN + 0.07, [shown([low, high], f"{text}, one {low.score:.3g} and {high.score:.3g}")])


REWARD_CAUSES = (answer_form, gold_mismatch, constant_reward, inverted_reward, noisy_reward, reward_ignores_answer)
