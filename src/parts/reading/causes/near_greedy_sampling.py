"""Near-greedy sampling: completions of a prompt hardly differ, so neither do their scores."""

import itertools
import math

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.causes.too_hard import pass_rate
from parts.reading.logged_run import EARLY, LoggedRun, first_part
from parts.reading.sample_texts import Text
from parts.reading.trends import forecast

# setting: (bound, whether a value below it is near greedy, what is off)
SAMPLING_BOUNDS = {"temperature": (0.3, True), "top_p": (0.5, True), "top_k": (4, True), "min_p": (0.5, False)}


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
    """Completions of the same prompt at the same early step, four and more."""
    train = [t for t in texts if t.kind == "train"]
    first = sorted({t.step for t in train})[:2]
    ordered = sorted((t for t in train if t.step in first), key=lambda t: (t.step, t.prompt))
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda t: (t.step, t.prompt))]
    return [group for group in groups if len(group) >= 4]


def alike_at_pass_rate(run: LoggedRun) -> Fact | None:
    """Groups of 0/1 scores that are alike from the start at a middling pass rate: as copies of one completion are."""
    alike, rate, spreads = run.early("zero_std"), pass_rate(run), run.early("score_std")
    if len(alike) < 3 or not rate or not 0.1 < rate[1] < 0.9 or not spreads:
        return None
    expected, share = forecast(rate[1], int(run.number("group_size") or 8)), sum(alike) / len(alike)
    _, part = first_part(run)
    binary = len(run.parts()) > 1 or all(
        abs(spread - math.sqrt(max(0.0, mean * (1 - mean)))) < 0.1 for spread, mean in zip(spreads, part, strict=False)
    )
    if share < 0.8 or share < expected + 0.25 or not binary:
        return None
    text = (
        f"{share:.0%} of the groups score all alike at a pass rate of {rate[1]:.2g}, where chance gives {expected:.0%}"
    )
    return fact(run, "zero_std", text, min(run.steps()))


def find_near_greedy_sampling(run: LoggedRun) -> Evidence | None:
    """Settings say so; without them, identical completions of a prompt, or an entropy of nearly 0, from the start."""
    facts, groups = sharp_settings(run), groups_of_one_prompt(run.texts)
    alike = [group for group in groups if len({t.completion for t in group}) == 1]
    entropy = run.early("entropy", 3)
    same = (
        shown(alike[0], f"all {len(alike[0])} completions of a prompt are identical at step {alike[0][0].step}")
        if alike
        else None
    )
    if facts:
        return Evidence(CERTAIN + 0.05, facts + ([same] if same else []))
    if run.number("temperature") is not None and run.number("temperature") >= 0.5:
        return None
    rate = pass_rate(run, steps=3)
    able = rate is not None and rate[2] > 0.8  # a model that is right is sure of it
    if entropy and not able and max(entropy) < 0.02 and min(run.series["entropy"]) <= EARLY:
        said = fact(run, "entropy", f"{run.name('entropy')} of the first steps is {max(entropy):.2g} nats a token", 1)
        return Evidence(LIKELY + 0.2, [said] + ([same] if same else []))
    if same and len(alike) == len(groups) and groups[0][0].step <= EARLY:
        return Evidence(LIKELY, [same])
    share = alike_at_pass_rate(run) if not groups else None
    return Evidence(LIKELY + 0.25, [share]) if share else None


NEAR_GREEDY_SAMPLING = Cause(
    "near_greedy_sampling",
    "sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores",
    find_near_greedy_sampling,
    f"{STILL} entropy_fell sampler_gap kl_high clipped no_group_variance nothing_moves too_hard too_easy "
    "too_sparse critic_useless sampler_mismatch updates_too_large part_bought",
    "{temperature} 1.0, top-p 1, top-k and min-p off, also for models whose card advises less for use",
    "python scripts/diagnose.py RUN --settings FILE --samples FILE",
    "definition: equal scores in a group give advantage 0; limits 0.3, 0.5, 4: our heuristic",
)
