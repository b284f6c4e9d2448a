"""Rewards at fault: another form, another gold, constant, inverted, blind to the answer, or noise."""

import ast
import math
import re
import statistics
from collections import Counter

from parts.reading.causes.cause import (
    CERTAIN,
    FALSE,
    LIKELY,
    LOST,
    STILL,
    TRY_REWARD,
    Evidence,
    Fact,
    cause,
    fact,
    shown,
)
from parts.reading.logged_run import LoggedRun, first_part, first_series, held_out_gain, is_constant, is_solved
from parts.reading.paired_tests import wilson_interval
from parts.reading.sample_texts import (
    COMPLETIONS,
    NUMBER,
    Text,
    asked_marks,
    correct_pay,
    early_texts,
    grouped,
    holds,
    marked_answers,
    payment_by_feature,
    scores_by_answer,
    source_marks,
    stated_answer,
)
from parts.reading.trends import is_format

READS_GOLD = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truths?|labels?|expected|references?)\b *[,)=]")
OTHER_ROW = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truth|labels?)\[(\d+|-1|::-1)\]")


def unpaid_with_gold(texts: list[Text]) -> list[Text]:
    """Completions that hold their gold answer and are not paid for it, where they are most of those that hold it.

    [] where others hold the gold of another row as often, or where a quarter of those with their gold is paid.
    """
    known = [t for t in early_texts(texts) if t.gold and correct_pay(t) is not None]
    pays = [correct_pay(t) for t in known]
    lowest = min(pays, default=0.0)
    if lowest > 1e-9 and max(pays) - lowest <= 1e-9:
        return []  # all are paid
    holders = [t for t in known if holds(t.completion, t.gold)]
    unpaid = [t for t in holders if correct_pay(t) <= lowest + 1e-9]
    golds = [t.gold for t in known]
    pairs = zip(known, golds[len(golds) // 2 :] + golds[: len(golds) // 2], strict=True)
    chance = sum(holds(t.completion, gold) for t, gold in pairs if gold != t.gold)
    return unpaid if len(unpaid) >= max(3, 3 * chance, 0.75 * len(holders)) else []


def marks_with_gold(texts: list[Text]) -> set[str]:
    """Marks in which completions hold their gold answer."""
    return {mark for t in texts for mark, answer in marked_answers(t.completion) if holds(answer, t.gold)}


def never_paid(run: LoggedRun) -> Fact | None:
    """By the log alone: no completion was ever paid for its answer, mostly because its form or gold is not read."""
    name, means = first_part(run)
    spreads = run.series.get("score_std") or run.series.get("zero_std")
    if run.texts or run.reward_source or len(means) < 3 or max(map(abs, means)) > 0.01 or not spreads:
        return None
    return fact(run, first_series(run), f"{name} pays next to nothing at any step, and the log does not show why")


@cause(
    "the reward expects another answer format, so right answers score nothing",
    explains=FALSE,
    change="ask for the reward's format in the prompt, or have the reward read the format of the completions",
    decide_with=TRY_REWARD,
    source="counting, against gold answers of other rows; open-r1#255, verl#2150",
)
def answer_form(run: LoggedRun) -> Evidence | None:
    """Gold stands in unpaid completions, in no mark that the reward's source names; or it reads no mark asked for."""
    reads, asks, unpaid = source_marks(run.reward_source), asked_marks(run.texts), unpaid_with_gold(run.texts)
    other = [Fact(f"prompts ask for {', '.join(sorted(asks))}, the reward reads {', '.join(sorted(reads))}", "reward")]
    other = other if reads and asks and not reads & asks else []
    if never := never_paid(run):
        return Evidence(LIKELY + 0.06, [never])
    if not unpaid:
        return Evidence(LIKELY, other) if other and run.values("score") and max(run.early("score")) <= 0.05 else None
    used = marks_with_gold(unpaid)
    if used & reads:
        return None  # it stands where the reward looks: the comparison is at fault
    where = f", marked by {', '.join(sorted(used)) or 'nothing'}; the reward reads {', '.join(sorted(reads))}"
    text = f"{len(unpaid)} unpaid completions hold the gold answer{where if reads else ''}"
    return Evidence(CERTAIN + 0.05 if reads else LIKELY + 0.1, [shown(unpaid, text), *other])


def shifted_gold(run: LoggedRun) -> Fact | None:
    """Completions state the gold of the row some places on in the data, the same number of places each time."""
    prompts, golds = list(run.golds), list(run.golds.values())
    places, votes = {prompt: i for i, prompt in enumerate(prompts)}, Counter()
    train = list({(t.prompt, t.completion): t for t in run.texts if t.prompt in places}.values())
    for t in train:
        answer, place = stated_answer(t.completion, bool(NUMBER.fullmatch(golds[places[t.prompt]]))), places[t.prompt]
        votes.update(k for k in range(-60, 61) if golds[(place + k) % len(golds)] == answer)
    (best, count), *others = [*votes.most_common(2), (0, 0)] if votes else [(0, 0)]
    if not best or len(golds) < 20 or count < max(4, 2 * others[0][1], 3 * votes[0], 0.2 * len(train)):
        return None
    return shown(train, f"{count} of {len(train)} completions state the gold answer of the row {best:+d} places away")


def unlike_held_out(run: LoggedRun) -> Fact | None:
    """Held-out completions are paid from the start, training ones hardly, by the same reward."""
    name, means = first_part(run)
    held_out = run.early(f"held_out_part:{name}", 1) or run.early("held_out", 1)
    if not held_out or not means or not 0 < held_out[0] <= 1 or not 0 <= means[0] <= 1:
        return None
    count = int(run.number("batch") or 32)
    if wilson_interval(means[0] * count, count)[1] > 0.35 * wilson_interval(held_out[0] * 64, 64)[0]:
        return None
    text = f"at the start {name} pays {means[0]:.3g} in training and {held_out[0]:.3g} on held-out prompts"
    return fact(run, first_series(run), text, 1)


@cause(
    "answers are compared with the wrong gold: a number with a text, another row's gold, a wrong column",
    explains=f"{FALSE} noisy_reward other_eval_task inverted_reward",
    change="compare texts with texts (str() on both sides) and print prompt, gold and extracted answer of ten rows",
    decide_with=TRY_REWARD,
    source="counting; held-out and training rewards are one function, so their pay at the start agrees",
)
def gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Gold stands unpaid where the reward looks; or it is that of another row; or held-out pays and training not."""
    shift, other = shifted_gold(run), OTHER_ROW.search(run.reward_source)
    train = [t for t in run.texts if t.kind == "train"]
    golds, prompts = {t.gold for t in train if t.gold}, {t.prompt for t in train if t.gold}
    if shift:
        return Evidence(CERTAIN + 0.08, [shift])
    if other:
        text = f"the reward compares with {other[0]}, which is not the completion's row"
        return Evidence(CERTAIN + 0.08, [Fact(text, "reward")])
    if len(prompts) >= 8 and len(golds) == 1:
        return Evidence(CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {min(golds)!r}")])
    unpaid, unlike = unpaid_with_gold(run.texts), unlike_held_out(run)
    if not unpaid:
        never = never_paid(run)
        return Evidence(LIKELY + 0.2, [unlike]) if unlike else Evidence(LIKELY + 0.05, [never]) if never else None
    reads = source_marks(run.reward_source)
    seen = bool(marks_with_gold(unpaid) & reads)
    text = f"{len(unpaid)} unpaid completions hold the gold answer{' where the reward looks' if seen else ''}"
    return Evidence(CERTAIN + 0.05 if seen else LIKELY, [shown(unpaid, text)]) if seen or not reads else None


def placeholder(source: str) -> str:
    """Why a reward's source may pay always the same: it never reads completions, or an exception becomes a score."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & COMPLETIONS
        inside = list(ast.walk(function))
        # len(completions), and `for _ in completions`, do not look at any
        calls = [node for node in inside if isinstance(node, ast.Call) and ast.unparse(node.func) == "len"]
        loops = [n for n in inside if isinstance(n, ast.comprehension) and ast.unparse(n.target) == "_"]
        unread = [argument for call in calls for argument in call.args] + [loop.iter for loop in loops]
        reads = [node for node in inside if isinstance(node, ast.Name) and node.id in given and node not in unread]
        if given and not reads:
            return f"{function.name} never reads its {min(given)}"
    caught = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    if any(not isinstance(node.body[-1], ast.Raise) for node in caught):
        return "the reward turns an exception into a score"
    return ""


@cause(
    "every completion gets the same score: a placeholder reward, or an exception turned into a score",
    explains=f"{FALSE} part_dies answer_form gold_mismatch",
    change="have {reward} read the completion, and let an exception end the run; score gold answers before training: "
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA",
    decide_with=TRY_REWARD,
    source="definition: equal scores give advantage 0; verl#3024",
)
def constant_reward(run: LoggedRun) -> Evidence | None:
    """No spread of scores, or of the part for correctness, at any step, for right and wrong completions alike."""
    name, means = first_part(run)
    if len(run.texts) >= 8 and all(t.unscored for t in run.texts):
        text = f"the reward gave None for all {len(run.texts)} logged completions: a `return` may be missing"
        return Evidence(CERTAIN + 0.09, [shown(run.texts, text)])
    seen = means + run.values(f"held_out_part:{name}")
    part = len(run.parts()) > 1 and len(seen) >= 3 and max(seen) - min(seen) < 1e-9
    few = 0 < len(run.values("score")) < 3 and run.series.get("score_std") and max(run.values("score_std")) <= 1e-6
    # a few zeros may be wrong answers; a spread within groups of 0 is none between prompts
    few = few and not run.part_spread() and (run.last("score") or placeholder(run.reward_source))
    solved = is_solved(run) and not (is_constant(run) and max(run.early("score_std", 3), default=1) <= 1e-6)
    if not (is_constant(run) or few or part) or solved:
        return None
    why, level = placeholder(run.reward_source), means[-1] if part else run.last("score")
    right, wrong = scores_by_answer(early_texts(run.texts))
    series = f"part:{name}" if part else "score_std" if run.series.get("score_std") else "score"
    facts = [fact(run, series, f"{name if part else 'every completion'} scored {level:.4g} at every step")]
    if why:
        return Evidence(CERTAIN + 0.07 if right or "exception" not in why else CERTAIN, [*facts, Fact(why, "reward")])
    if right and wrong and not part:
        examples = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(examples, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
    # neither "always wrong" nor, where wrong ones are among them, "always right"
    sure = abs(level) > 1e-9 and (abs(level - 1) > 1e-9 or (wrong and not part))
    always_wrong = abs(level) <= 1e-9 and not right and wrong
    # not one of many completions fails
    perfect = abs(level - 1) <= 1e-9 and len(run.values("score")) * (run.number("batch") or 32) >= 256
    return Evidence(
        CERTAIN + 0.05 if sure else LIKELY - 0.15 if always_wrong else LIKELY + 0.02 + 0.12 * perfect, facts
    )


def separation(right: list[float], wrong: list[float]) -> tuple[float, float, str]:
    """Difference of the mean scores of right and wrong completions, its standard error, and both in words."""
    means = statistics.fmean(right), statistics.fmean(wrong)
    least = max(statistics.pvariance([*right, *wrong]) * 0.25, 1e-18)  # no class is taken for free of scatter
    errors = [max(statistics.variance(x) if len(x) > 1 else 0.0, least) / len(x) for x in (right, wrong)]
    text = f"{len(right)} right completions score {means[0]:.3g}, {len(wrong)} wrong ones {means[1]:.3g}"
    return means[0] - means[1], math.sqrt(sum(errors)), text


def best_paid_wrong(texts: list[Text]) -> list[Text]:
    """Wrong completions, the best paid first."""
    return sorted((t for t in texts if t.right is False and t.score is not None), key=lambda t: -t.score)


@cause(
    "the reward is inverted: wrong answers score higher than right ones",
    explains=f"{FALSE} limit_too_short part_dies gold_mismatch answer_form",
    change="flip the sign of {reward}, then restart from the initial model",
    decide_with=TRY_REWARD,
    source="scores of right and wrong completions, Welch's t",
    breaks=True,
)
def inverted_reward(run: LoggedRun) -> Evidence | None:
    """Right completions score less than wrong ones, beyond chance."""
    right, wrong = scores_by_answer(early_texts(run.texts))
    gain = held_out_gain(run)
    if len(right) >= 3 and len(wrong) >= 3:
        difference, error, text = separation(right, wrong)
        examples = best_paid_wrong(run.texts)[:2] + [t for t in run.texts if t.right][:1]
        apart = min(len(right), len(wrong)) >= 5 and max(right) < min(wrong)  # none right is paid as much as any wrong
        inverted = apart or difference < -4 * error
        return Evidence(CERTAIN + 0.06, [shown(examples, text)], since=1) if inverted else None
    if not right and gain and gain[2] < 0 and run.trend("score") > 0:
        text = f"the score rose and the held-out figure fell by {-gain[0]:.3g}"
        return Evidence(LIKELY, [fact(run, "held_out", text)], since=1)
    return None


@cause(
    "the reward ignores the answer: right and wrong completions score alike",
    explains=f"{STILL} {LOST} limit_too_short critic_useless too_easy memorised_prompts updates_too_large",
    change="pay for the right answer; form, length or style at most beside a right one",
    decide_with=TRY_REWARD,
    source="difference of mean scores with its interval, below half of what scores span",
    breaks=True,
)
def reward_ignores_answer(run: LoggedRun) -> Evidence | None:
    """Scores differ, and the difference between right and wrong completions is none; or all parts judge the form."""
    parts = run.parts()
    body = re.sub(r"(?s)\bdef \w+\(.*?\)( ->[^:]*)?:", "", run.reward_source)
    if parts and all(map(is_format, parts)) and not READS_GOLD.search(body):
        text = f"no part of the reward judges the answer: {', '.join(parts)}"
        return Evidence(LIKELY + 0.25, [fact(run, f"part:{next(iter(parts))}", text)], since=1)
    right, wrong = scores_by_answer(early_texts(run.texts))
    reach = max([*right, *wrong], default=0.0) - min([*right, *wrong], default=0.0)
    if len(right) < 6 or len(wrong) < 6 or is_constant(run) or reach <= 1e-9:
        return None
    difference, error, text = separation(right, wrong)
    only_right = difference > 4 * error and max(wrong) - min([*right, *wrong]) <= 1e-9
    if only_right or difference + 2 * error > 0.5 * reach or difference < -4 * error:
        return None
    paid = payment_by_feature(run.texts)
    name = max(paid, key=lambda key: abs(paid[key]))
    text += f"; the score goes with {name} (r = {paid[name]:.2f})" if abs(paid[name]) > 0.5 else ""
    return Evidence(CERTAIN + 0.03, [shown(best_paid_wrong(run.texts), text)], since=1)


@cause(
    "the reward is noise: the same completion of the same prompt gets different scores",
    explains=f"{FALSE} limit_too_short inverted_reward answer_form gold_mismatch",
    change="make {reward} deterministic: no random draw, a judge at temperature 0, no state kept between calls",
    decide_with=TRY_REWARD,
    source="definition: a reward is a function of prompt and completion",
)
def noisy_reward(run: LoggedRun) -> Evidence | None:
    """Pairs of one text and one prompt, of one step where there are some, whose scores differ."""
    scored = [t for t in run.texts if t.score is not None]
    groups = grouped(scored, lambda t: (t.step, t.kind, t.prompt, t.completion, t.gold))
    if sum(len(group) for group in groups if len(group) > 1) < 6:
        groups = grouped(scored, lambda t: (t.kind, t.prompt, t.completion, t.gold))
    groups = [sorted(group, key=lambda t: t.score) for group in groups if len(group) > 1]
    differing = [group for group in groups if group[-1].score - group[0].score > 1e-6]
    if len(differing) < 2 or len(differing) < 0.1 * len(groups):
        return None
    widest = max(differing, key=lambda group: group[-1].score - group[0].score)
    text = f"{len(differing)} of {len(groups)} repeated completions scored differently"
    text += f", one {widest[0].score:.3g} and {widest[-1].score:.3g}"
    return Evidence(CERTAIN + 0.07, [shown([widest[0], widest[-1]], text)])


REWARD_CAUSES = (answer_form, gold_mismatch, constant_reward, inverted_reward, noisy_reward, reward_ignores_answer)
