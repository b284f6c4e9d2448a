"""Groups that teach nothing: near-greedy, cut, too hard, too easy, too sparse, without variance."""

import math

from parts.reading.causes.cause import CERTAIN, FLAT, LIKELY, STILL, TRY_MODEL, Evidence, Fact, cause, fact, shown
from parts.reading.logged_run import EARLY, SOLVED, LoggedRun, first_part, first_series, gained, is_constant, is_solved
from parts.reading.paired_tests import wilson_interval
from parts.reading.sample_texts import Text, grouped, holds, scores_by_answer
from parts.reading.trends import forecast

# setting: (bound, whether a value below it is near greedy)
SAMPLING_BOUNDS = {"temperature": (0.3, True), "top_p": (0.5, True), "top_k": (4, True), "min_p": (0.5, False)}


def pass_rate(run: LoggedRun, steps: int = EARLY) -> tuple[str, float, float, float] | None:
    """(part, share that passes in the first steps, its 95 % interval), of a part whose means lie between 0 and 1."""
    name, means = first_part(run)
    early = means[:steps]
    if not early or min(means) < 0 or max(means) > 1:
        return None
    count, rate = int(run.number("batch") or 32) * len(early), sum(early) / len(early)
    return name, rate, *wilson_interval(rate * count, count)


def sharp_settings(run: LoggedRun) -> list[Fact]:
    """Settings that leave nearly every token one choice."""
    facts = []
    for name, (bound, below) in SAMPLING_BOUNDS.items():
        value = run.number(name)
        off = value is None or (name == "top_k" and value <= 0)
        if not off and (value < bound if below else value > bound):
            facts.append(Fact(f"{name} is {value:g}", name))
    if run.settings.get("do_sample") is False:
        facts.append(Fact("do_sample is false", "do_sample"))
    return facts


def groups_of_one_prompt(texts: list[Text]) -> list[list[Text]]:
    """Completions of the same training prompt at the same step."""
    return grouped([t for t in texts if t.kind == "train"], lambda t: (t.step, t.prompt))


def alike_at_pass_rate(run: LoggedRun, alike: list[float]) -> str:
    """Evidence that groups score alike from the start, far more often than a middling pass rate explains; else ""."""
    rate, group, share = pass_rate(run), int(run.number("group_size") or 8), sum(alike) / max(1, len(alike))
    if len(alike) < 3 or not rate or not 0.1 < rate[1] < 0.9 or share < max(0.8, forecast(rate[1], group) + 0.25):
        return ""
    text = f"{share:.0%} of the groups score all alike at a pass rate of {rate[1]:.2g}"
    return f"{text}, where chance gives {forecast(rate[1], group):.0%}"


@cause(
    "sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores",
    explains=f"{FLAT} entropy_fell sampler_gap kl_high clipped too_easy sampler_mismatch updates_too_large",
    change="{temperature} 1.0, top-p 1, top-k and min-p off, also for models whose card advises less for use",
    decide_with="python scripts/diagnose.py RUN --settings FILE --samples FILE",
    source="definition: equal scores in a group give advantage 0; limits 0.3, 0.5, 4: our heuristic",
)
def near_greedy_sampling(run: LoggedRun) -> Evidence | None:
    """Settings say so; without them, identical completions of a prompt, or an entropy of nearly 0, from the start."""
    facts, groups = sharp_settings(run), groups_of_one_prompt(run.texts)
    first = sorted({group[0].step for group in groups})[:2]
    groups = [group for group in groups if group[0].step in first and len(group) >= 4]
    alike = [group for group in groups if len({t.completion for t in group}) == 1]
    same = [
        shown(group, f"all {len(group)} completions of a prompt are identical at step {group[0].step}")
        for group in alike[:1]
    ]
    if facts:
        return Evidence(CERTAIN + 0.05, facts + same)
    if run.number("temperature") is not None and run.number("temperature") >= 0.5:
        return None
    rate, entropy = pass_rate(run, steps=3), run.early("entropy", 3)
    able = rate is not None and rate[2] > 0.8  # a model that is right is sure of it
    if entropy and not able and max(entropy) < 0.02 and min(run.series["entropy"]) <= EARLY:
        text = f"{run.name('entropy')} of the first steps is {max(entropy):.2g} nats a token"
        return Evidence(LIKELY + 0.2, [fact(run, "entropy", text, 1), *same])
    if same and len(alike) == len(groups) and groups[0][0].step <= EARLY:
        return Evidence(LIKELY, same)
    spreads, means = run.early("score_std"), first_part(run)[1]
    # 0/1 scores; those that depend on the prompt alone are another cause
    binary = all(abs(std - math.sqrt(max(0.0, m * (1 - m)))) < 0.1 for std, m in zip(spreads, means, strict=False))
    copies = alike_at_pass_rate(run, run.early("zero_std")) if not groups and spreads else ""
    if copies and (binary or len(run.parts()) > 1):
        return Evidence(LIKELY + 0.25, [fact(run, "zero_std", copies, min(run.steps()))])
    return None


@cause(
    "the length limit is too short for an answer: completions are cut from the first step on",
    explains=f"{STILL} truncated length_fell answer_form gold_mismatch too_hard too_sparse constant_reward part_bought "
    "no_group_variance critic_useless",
    change="raise {max_length} to what whole answers need, or ask for shorter ones",
    source="TRL completions/clipped_ratio; trl#5697; limit of a fifth: our heuristic",
)
def limit_too_short(run: LoggedRun) -> Evidence | None:
    """A fifth and more of the completions are cut from the first steps on, and those that are cut are hardly paid."""
    name = "truncated" if run.series.get("truncated") else "limit"
    cut, scores = run.early(name, 3), run.values("score")
    share = sum(cut) / len(cut) if cut else 0.0
    if not cut or min(cut[0], share) < 0.2 or min(run.series[name]) > 10 or run.last(name) < 0.1:
        return None
    if name == "limit" and is_solved(run):
        return None
    ended, whole = ([t for t in run.texts if t.finished is kind and t.score is not None] for kind in (False, True))
    facts = [fact(run, name, f"{share:.0%} are cut by the limit in the first steps", min(run.series[name]))]
    limit = run.number("max_length")
    if limit:
        facts.append(Fact(f"the limit is {limit:g} tokens", "max_length"))
    if ended and whole:
        paid, usual = (sum(t.score for t in texts) / len(texts) for texts in (ended, whole))
        if paid >= 0.7 * usual > 0:
            return None  # being cut costs nothing: the limit is not what holds the score
    if not ended and scores and scores[0] + cut[0] - 1 > 0.5 * min(scores[0], cut[0]):
        return None  # some are cut and paid
    if ended:
        without = [t for t in ended if not t.gold or not holds(t.completion, t.gold)]
        text = f"{len(ended)} logged completions stop at the limit, {len(without)} without their answer"
        facts.append(shown(without or ended, text))
    return Evidence(CERTAIN if share >= 0.5 or ended else LIKELY + 0.15, facts)


@cause(
    "the prompts are too hard for this model: no completion is right, so nothing can be reinforced",
    explains=FLAT,
    change="easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    decide_with=TRY_MODEL,
    source="Wilson's interval; groups alike with p^G + (1 - p)^G",
)
def too_hard(run: LoggedRun) -> Evidence | None:
    """Next to none of the run's completions passes, and those that are logged do not hold their gold answer."""
    rate = pass_rate(run, steps=10**9)
    if not rate or rate[1] > 0.002 or rate[3] > 0.03:
        return None
    text = f"{rate[0]} passes {rate[1]:.2%} of all completions (95 %: {rate[2]:.2%} to {rate[3]:.2%})"
    facts = [fact(run, first_series(run), text, min(run.steps()))]
    known = [t for t in run.texts if t.gold and t.score is not None]
    without = [t for t in known if not holds(t.completion, t.gold)]
    if len(known) >= 8 and len(without) >= 0.9 * len(known):
        facts.append(shown(without, f"{len(without)} of {len(known)} logged completions do not hold the gold answer"))
        return Evidence(CERTAIN + 0.01, facts)
    return Evidence(LIKELY if not known else LIKELY - 0.2, facts)


@cause(
    "the prompts are too easy: nearly every completion is right from the start, so groups score alike",
    explains=f"{FLAT} entropy_fell kl_high memorised_prompts",
    change="harder prompts, or stop: these have nothing left to teach",
    decide_with=TRY_MODEL,
    source="Wilson's interval of the pass rate",
)
def too_easy(run: LoggedRun) -> Evidence | None:
    """Held out 95 % and sampled 80 % are right at the start, or sampled 95 % without a held-out figure."""
    rate, held_out = pass_rate(run, steps=3), run.early("held_out", 1)
    least = 0.8 if held_out and SOLVED <= held_out[0] <= 1 else SOLVED
    if not rate or rate[1] < least or (held_out and held_out[0] < 0.9):
        return None
    right, wrong = scores_by_answer(run.texts)
    if len(wrong) > 0.4 * len([*right, *wrong]):
        return None  # paid though wrong: the reward is at fault
    facts = [fact(run, first_series(run), f"{rate[0]} is {rate[1]:.3g} in the first steps", min(run.steps()))]
    if held_out:
        text = f"held out it is {held_out[0]:.3g} at the start"
        facts.append(fact(run, "held_out", text, min(run.series["held_out"])))
    return Evidence(CERTAIN + 0.02 if len(right) >= 4 else LIKELY + 0.1, facts)


@cause(
    "right answers are too rare for the group: most groups have none, so most of a batch teaches nothing",
    explains=FLAT,
    change="raise {group_size}; {filter}; prompts that the model solves now and then, or partial credit",
    decide_with=TRY_MODEL,
    source="p^G + (1 - p)^G; DAPO (Yu 2025), section 3.2",
)
def too_sparse(run: LoggedRun) -> Evidence | None:
    """A pass rate between 0 and 12 %, most groups without a right answer, as its forecast says, and no gain."""
    rate, group, alike = pass_rate(run, steps=20), int(run.number("group_size") or 8), run.early("zero_std", 20)
    if not rate or not 0.002 < rate[1] < 0.12 or group == 1 or not (alike or run.number("group_size")):
        return None
    expected = forecast(rate[1], group)
    share = sum(alike) / len(alike) if alike else expected
    if share < 0.6 or share < expected - 0.15 or (gained(run) and run.trend("score") > 0):
        return None
    enough = next((2**i for i in range(1, 10) if forecast(rate[1], 2**i) < 0.5), 512)
    text = f"pass rate {rate[1]:.2%}: {expected:.0%} of groups of {group} are all alike by forecast"
    text += f", {share:.0%} were; groups of {enough} would bring it to {forecast(rate[1], enough):.0%}"
    sure = CERTAIN if alike and run.number("group_size") else LIKELY + 0.1
    return Evidence(sure, [fact(run, "zero_std" if alike else "score", text, min(run.steps()))])


@cause(
    "groups have no variance: prompts are always or never solved, or the score depends on what their completions share",
    explains=f"{FLAT} reward_ignores_answer",
    change="score what differs between completions of one prompt; {filter}; {group_size} 8 or more",
    decide_with=TRY_MODEL,
    source="definition of a group's advantage; p^G + (1 - p)^G",
)
def no_group_variance(run: LoggedRun) -> Evidence | None:
    """Groups score alike from the start, far more often than the pass rate forecasts, while prompts differ."""
    alike, rate, group = run.early("zero_std"), pass_rate(run), run.number("group_size")
    if group == 1 and run.settings.get("grouped"):
        return Evidence(CERTAIN, [fact(run, "score", "the group has 1 completion: nothing to compare it with", 1)])
    groups = groups_of_one_prompt([t for t in run.texts if t.score is not None])
    several = [group for group in groups if len({t.completion for t in group}) > 2]
    spreads = [max(t.score for t in group) - min(t.score for t in group) for group in several]
    means = {round(group[0].score, 6) for group in several}
    if len(several) >= 5 and max(spreads) <= 1e-6 and len(means) > 2:
        text = f"different completions of one prompt score alike, in all {len(several)} logged groups"
        return Evidence(CERTAIN + 0.06, [shown(several[0], text)])
    equal = alike or [a == b for a, b in zip(run.early("advantage_max"), run.early("advantage_min"), strict=False)]
    share = sum(equal) / len(equal) if equal else 0.0
    if is_constant(run) or is_solved(run) or share < 0.8 or len(equal) < (1 if run.part_spread() else 3):
        return None
    scores, text = run.early("score"), alike_at_pass_rate(run, equal)
    between = run.first("score_std") if min(run.early("score_std"), default=0) > 1e-6 else run.part_spread()
    between = between or max(scores, default=0.0) - min(scores, default=0.0)
    if not text and (rate or between <= 1e-6):
        return None
    text = text or f"{share:.0%} of the groups score all alike while scores differ by {between:.3g} between prompts"
    return Evidence(CERTAIN + 0.02, [fact(run, "zero_std" if alike else "advantage_max", text, min(run.steps()))])


GROUP_CAUSES = (near_greedy_sampling, limit_too_short, too_hard, too_easy, too_sparse, no_group_variance)
