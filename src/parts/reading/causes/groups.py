"""Groups that teach nothing: near-greedy, cut, too hard, too easy, too sparse, without variance."""

import statistics
from dataclasses import replace

from parts.evaluating.paired_tests import wilson_interval
from parts.reading.causes.cause import CERTAIN, FLAT, LIKELY, STILL, TRY_MODEL, Evidence, cause, shown
from parts.reading.logged_run import EARLY, SOLVED, Fact, LoggedRun, forecast
from parts.reading.sample_texts import Text, early_texts, grouped, scores_by_answer

SAME_LOG = LIKELY + 0.15  # for causes that a log cannot tell apart: copies, or prompts always or never solved
# limits below which sampling is nearly greedy (min_p: above 0.5); a top_k of 0 or less is off
LEAST = {"temperature": 0.3, "top_p": 0.5, "top_k": 4, "min_p": 0, "do_sample": True}


def pass_rate(run: LoggedRun, steps: int = EARLY) -> tuple[float, float, float] | None:
    """(pass rate in the first steps, low, high) with its 95 % interval; None unless the reward is from 0 to 1."""
    means = run.answer_part()[1]
    if not means or min(means) < 0 or max(means) > 1:
        return None
    early = means[:steps]
    count, rate = run.batch(len(early)), sum(early) / len(early)
    return rate, *wilson_interval(rate * count, count)


def paid_though_cut(mean: float, cut: float) -> bool:
    """Whether mean score and truncated share add up to so much that many truncated completions must have been paid."""
    return mean + cut - 1 > 0.5 * min(mean, cut)


def groups_of_one_prompt(texts: list[Text]) -> list[list[Text]]:
    """Completions of the same training prompt at the same step."""
    return grouped([t for t in texts if t.kind == "train"], lambda t: (t.step, t.prompt))


def alike_at_pass_rate(run: LoggedRun, alike: list[float]) -> str:
    """A text if groups score alike from the start far more often than their middling pass rate explains; else ""."""
    rate = pass_rate(run, len(alike)) if len(alike) >= 3 else None
    if not rate or not 0.1 < rate[0] < 0.9:
        return ""
    share, count = sum(alike) / len(alike), run.batch(len(alike)) // int(run.number("group_size") or 8)
    expected = forecast(rate[0], int(run.number("group_size") or 8))
    text = f"{share:.0%} of the groups score all alike at pass rate {rate[0]:.2g}, where chance gives {expected:.0%}"
    # prompts with other pass rates than the mean are alike more often
    sure = wilson_interval(share * count, count)[0] >= 0.7
    return text if sure and share >= max(0.8, expected + 0.25) else ""


def unit(shares: list[float]) -> int:
    """The smallest n up to 1024 with which every share is a whole number of n-ths; 0 if there is none."""
    return next((n for n in range(1, 1025) if all(abs(n * x - round(n * x)) < 1e-3 for x in shares)), 0)


def alike_by_chance(run: LoggedRun) -> str:
    """A text if groups score alike only as often as 0/1 scores that ignore the prompt would; else ""."""
    steps = run.series.get("score", {}).keys() & run.series.get("zero_std", {}).keys()
    scores, alike = ([run.series[name][step] for step in steps] for name in ("score", "zero_std"))
    rate, batch, groups = statistics.fmean(scores or [0.0]), unit(scores), unit(alike)  # completions, groups a step
    if not 0.3 < rate < 0.7 or not 0 < groups < batch or batch % groups:
        return ""
    size, count, share = batch // groups, groups * len(alike), statistics.fmean(alike)
    low, high = wilson_interval(share * count, count)
    varied = (forecast(rate - 0.25, size) + forecast(rate + 0.25, size)) / 2  # if half of the prompts are easier
    if low > forecast(rate, size) or high >= varied:
        return ""
    return f"{share:.0%} of groups of {size} score all alike, {forecast(rate, size):.0%} would by chance"


@cause(
    explains=FLAT.replace("no_group_variance ", "")
    + " entropy_fell kl_high clipped too_easy sampler_mismatch updates_too_large",
    change="{temperature} 1.0, top-p 1, top-k and min-p off, even if the model card recommends other values",
    source="equal scores in a group give advantage 0; limits 0.3, 0.5, 4: our heuristic",
    decide_with="python scripts/diagnose.py RUN --settings FILE --samples FILE",
)
def near_greedy_sampling(run: LoggedRun) -> Evidence | None:
    """Sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores."""
    facts, copies_fact = [], []
    if run.learns() and min(run.early("zero_std"), default=0.0) < 0.5:
        return None
    for name, least in LEAST.items():
        value = run.settings.get(name)
        off = not isinstance(value, (int, float)) or (name == "top_k" and value <= 0)
        if not off and (value < least or (name == "min_p" and value > 0.5)):
            facts.append(Fact(f"{name} is {value:g}", name))
    groups = groups_of_one_prompt(run.texts)
    first = sorted({group[0].step for group in groups})[:2]
    groups = [group for group in groups if group[0].step in first and len(group) >= 4]
    alike = [group for group in groups if {t.completion for t in group} == {group[0].completion} != {""}]
    if alike:  # empty completions do not count: the model ends at once
        text = f"all {len(alike[0])} completions of a prompt are identical at step {alike[0][0].step}"
        copies_fact = [shown(alike[0], text)]
    if facts:
        return Evidence(CERTAIN + 0.05, facts + copies_fact)
    if (run.number("temperature") or 0) >= 0.5:
        return None
    rate, entropy = pass_rate(run, steps=3), run.early("entropy", 3)
    able = rate is not None and rate[1] > 0.8  # a model that is mostly right has a low entropy anyway
    if entropy and not able and max(entropy) < 0.02 and min(run.series["entropy"]) <= EARLY:
        text = f"{run.name('entropy')} of the first steps is {max(entropy):.2g} nats a token"
        return Evidence(LIKELY + 0.2, [run.fact("entropy", text, 1), *copies_fact])
    if copies_fact and len(alike) == len(groups) and groups[0][0].step <= EARLY:
        return Evidence(LIKELY + 0.2, copies_fact)
    copies = "" if groups or run.is_constant() else alike_at_pass_rate(run, run.early("zero_std", 20))
    return Evidence(SAME_LOG, [run.fact("zero_std", copies, min(run.steps()))]) if copies else None


def goes_on(text: Text) -> bool:
    """Whether the first line is an answer, and more lines follow it."""
    line, _, rest = text.completion.strip().partition("\n")
    return len(line) <= len(text.gold) + 60 and bool(rest.strip()) and replace(text, completion=line).has_gold()


@cause(
    explains=f"{STILL} truncated limit_too_short answer_form gold_mismatch too_hard too_sparse constant_reward "
    "part_bought no_group_variance critic_useless",
    change="score the answer's own line in the reward, or teach the model to end: scripts/warm_start.py",
    source="counting; trl#976; four fifths, and a line of 60 characters beside the answer: our heuristic",
)
def never_ends(run: LoggedRun) -> Evidence | None:
    """The model does not end after its answer: completions go on until the limit cuts them."""
    texts = [t for t in early_texts(run.texts) if t.finished is not None and t.gold and t.pay is not None]
    cut = [t for t in texts if not t.finished]
    holders = [t for t in cut if t.has_gold()]
    on = [t for t in holders if goes_on(t)]
    if len(on) < max(4, 0.8 * len(holders)) or len(cut) < 0.8 * len(texts) or sum(t.pay > 0 for t in on) > len(on) / 4:
        return None
    text = f"{len(on)} logged completions give the right answer in their first line and go on until they are cut"
    return Evidence(CERTAIN + 0.06, [shown(on, text)])


@cause(
    explains=f"{STILL} truncated length_fell answer_form gold_mismatch too_hard too_sparse constant_reward part_bought "
    "no_group_variance critic_useless",
    change="raise {max_length} to what whole answers need, or ask for shorter ones; if none ends, check its EOS",
    source="TRL completions/clipped_ratio; trl#5697; limit of a fifth: our heuristic",
)
def limit_too_short(run: LoggedRun) -> Evidence | None:
    """The length limit is too short for an answer: completions are cut from the first step on."""
    name = "truncated" if run.series.get("truncated") else "limit"
    cut, more, scores, limit = run.early(name, 3), run.early(name, 20), run.values("score"), run.number("max_length")
    if not cut or cut[0] < 0.2 or min(run.series[name]) > 10 or run.ends(name)[1] < 0.1:
        return None
    share = sum(cut) / len(cut)
    stays = min(share, sum(more) / len(more))  # small batches need more steps to be sure
    sure = wilson_interval(share * run.batch(len(cut)), run.batch(len(cut)))[0] >= 0.2
    if not sure and (stays < 0.2 or wilson_interval(stays * run.batch(len(more)), run.batch(len(more)))[0] < 0.15):
        return None
    ended, whole = ([t for t in run.texts if t.finished is kind and t.score is not None] for kind in (False, True))
    if ended and whole:
        paid, usual = (sum(t.score for t in texts) / len(texts) for texts in (ended, whole))
        unharmed = paid >= 0.7 * usual > 0  # truncation costs no score, so the limit is not at fault
    else:
        pairs = [(scores[0], cut[0]), (run.ends("score")[1], run.ends(name)[1])] if scores and not ended else []
        unharmed = any(paid_though_cut(*pair) for pair in pairs)
    never = len(more) >= 10 and min(run.values(name)) > 0.98  # no completion ever ends
    mends = run.trend(name) < 0 < run.trend("score")
    if mends or (unharmed and not never) or (share < 0.5 and run.learns()) or (name == "limit" and run.is_solved()):
        return None
    text = f"{share:.0%} are cut in the first steps by the limit{f' of {limit:g} tokens' if limit else ''}"
    facts = [run.fact(name, text, min(run.series[name]))]
    if ended:
        without = [t for t in ended if not t.has_gold()]
        text = f"{len(ended)} logged completions stop at the limit, {len(without)} without their answer"
        facts.append(shown(without or ended, text))
    return Evidence(CERTAIN if share >= 0.5 or ended else LIKELY + 0.15, facts)


@cause(
    explains=FLAT,
    change="easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    source="Wilson's interval; groups alike with p^G + (1 - p)^G",
    decide_with=TRY_MODEL,
)
def too_hard(run: LoggedRun) -> Evidence | None:
    """The prompts are too hard for this model: no completion is right, so nothing can be reinforced."""
    rate = pass_rate(run, steps=10**9)
    if not rate or rate[0] > 0.002 or rate[2] > 0.03:
        return None
    text = "{} passes {:.2%} of all completions (95 %: {:.2%} to {:.2%})".format(run.answer_part()[0], *rate)
    facts = [run.fact(run.answer_series(), text, min(run.steps()))]
    known = [t for t in run.texts if t.gold and t.score is not None]
    without = [t for t in known if not t.has_gold()]
    if len(known) >= 8 and len(without) >= 0.9 * len(known):
        text = f"{len(without)} of {len(known)} logged completions do not hold the gold answer"
        return Evidence(CERTAIN + 0.01, [*facts, shown(without, text)])
    return Evidence(LIKELY - 0.2 if known else LIKELY, facts)


@cause(
    explains=f"{FLAT} entropy_fell kl_high memorised_prompts",
    change="harder prompts, or stop: these have nothing left to teach",
    source="Wilson's interval of the pass rate",
    decide_with=TRY_MODEL,
)
def too_easy(run: LoggedRun) -> Evidence | None:
    """The prompts are too easy: nearly every completion is right from the start, so groups score alike."""
    rate, held_out, (right, wrong) = pass_rate(run, steps=3), run.early("held_out", 1), scores_by_answer(run.texts)
    least = 0.8 if held_out and SOLVED <= held_out[0] <= 1 else SOLVED
    paid_though_wrong = len(wrong) > 0.4 * len([*right, *wrong])  # then the reward is at fault
    if not rate or rate[0] < least or (held_out and held_out[0] < 0.9) or paid_though_wrong:
        return None
    beside = f", {held_out[0]:.3g} held out" if held_out else ""
    text = f"{run.answer_part()[0]} is {rate[0]:.3g} in the first steps{beside}"
    fact = run.fact(run.answer_series(), text, min(run.steps()))
    return Evidence(CERTAIN + 0.02 if len(right) >= 4 else LIKELY + 0.1, [fact])


@cause(
    explains=FLAT,
    change="raise {group_size}; keep prompts that the model solves now and then (dynamic sampling), or partial credit",
    source="p^G + (1 - p)^G; DAPO (Yu 2025), section 3.2",
    decide_with=TRY_MODEL,
)
def too_sparse(run: LoggedRun) -> Evidence | None:
    """Right answers are too rare for the group: most groups have none, so most of a batch teaches nothing."""
    rate, size, alike = pass_rate(run, steps=20), run.number("group_size"), run.early("zero_std", 20)
    group = int(size or 8)
    if not rate or not 0.002 < rate[0] < 0.12 or group == 1 or not (alike or size):
        return None
    expected = forecast(rate[0], group)
    share = sum(alike) / len(alike) if alike else expected
    if share < 0.6 or share < expected - 0.15 or run.learns():
        return None
    enough = next((2**i for i in range(1, 10) if forecast(rate[0], 2**i) < 0.5), 512)
    text = f"pass rate {rate[0]:.2%}: {expected:.0%} of groups of {group} are all alike by forecast"
    text += f", {share:.0%} were"
    if enough > group:
        text += f"; groups of {enough} would bring it to {forecast(rate[0], enough):.0%}"
    fact = run.fact("zero_std" if alike else "score", text, min(run.steps()))
    return Evidence(CERTAIN if alike and size else LIKELY + 0.1, [fact])


@cause(
    explains=f"{FLAT} reward_ignores_answer too_easy too_hard entropy_fell memorised_prompts",
    change="score what differs within a group; middling prompts; {group_size} 8 or more; show the form of full marks",
    source="definition of a group's advantage; p^G + (1 - p)^G",
    decide_with=TRY_MODEL,
)
def no_group_variance(run: LoggedRun) -> Evidence | None:
    """Groups have no variance: prompts are always or never solved, or the score depends on the prompt alone."""
    if run.number("group_size") == 1 and run.settings.get("grouped"):
        return Evidence(CERTAIN, [run.fact("score", "the group has 1 completion: nothing to compare it with", 1)])
    groups = groups_of_one_prompt([t for t in run.texts if t.score is not None])
    several = [group for group in groups if len({t.completion for t in group}) > 2]
    spreads = [max(t.score for t in group) - min(t.score for t in group) for group in several]
    if len(several) >= 5 and max(spreads) <= 1e-6 and len({round(group[0].score, 6) for group in several}) > 2:
        text = f"different completions of one prompt score alike, in all {len(several)} logged groups"
        return Evidence(CERTAIN + 0.06, [shown(several[0], text)])
    equal, scores, spreads = run.early("zero_std", 20), run.early("score"), run.part_spreads()
    share, greedy = sum(equal) / max(1, len(equal)), near_greedy_sampling.test(run)
    if run.is_constant() or run.is_solved() or share < 0.8 or len(equal) < (1 if any(spreads) else 3):
        return None
    if greedy and greedy.strength > SAME_LOG:
        return None
    text, between = alike_at_pass_rate(run, equal), max(spreads, default=0.0)
    between = between or max(scores, default=0.0) - min(scores, default=0.0)
    if not text and (pass_rate(run) or between <= 1e-6):
        return None
    text = text or f"{share:.0%} of the groups score all alike while scores differ by {between:.3g} between prompts"
    return Evidence(CERTAIN + 0.02 if not greedy else SAME_LOG, [run.fact("zero_std", text, min(run.steps()))])


GROUP_CAUSES = (near_greedy_sampling, never_ends, limit_too_short, too_hard, too_easy, too_sparse, no_group_variance)
