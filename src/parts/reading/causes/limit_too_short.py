"""The limit is below what an answer needs: completions are cut from the first step on."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import LoggedRun, is_solved
from parts.reading.sample_texts import holds


def find_limit_too_short(run: LoggedRun) -> Evidence | None:
    """A fifth and more of the completions are cut from the first steps on, and those that are cut are hardly paid."""
    cut, name = run.early("truncated", 3), "truncated"
    if not cut:
        cut, name = run.early("limit", 3), "limit"
    if not cut or min(cut[0], sum(cut) / len(cut)) < 0.2 or min(run.series[name]) > 10 or run.last(name) < 0.1:
        return None
    if name == "limit" and is_solved(run):
        return None
    ended = [t for t in run.texts if t.finished is False and t.score is not None]
    whole = [t for t in run.texts if t.finished is True and t.score is not None]
    facts = [
        fact(run, name, f"{sum(cut) / len(cut):.0%} are cut by the limit in the first steps", min(run.series[name]))
    ]
    limit = run.number("max_length")
    if limit:
        facts.append(Fact(f"the limit is {limit:g} tokens", "max_length"))
    scores = run.values("score")
    if (
        ended
        and whole
        and sum(t.score for t in ended) / len(ended) >= 0.7 * sum(t.score for t in whole) / len(whole) > 0
    ):
        return None  # being cut costs nothing: the limit is not what holds the score
    if not ended and scores and scores[0] + cut[0] - 1 > 0.5 * min(scores[0], cut[0]):
        return None  # some are cut and paid
    if ended:
        without = [t for t in ended if not t.gold or not holds(t.completion, t.gold)]
        text = f"{len(ended)} logged completions stop at the limit, {len(without)} without their answer"
        facts.append(shown(without or ended, text))
    return Evidence(CERTAIN if sum(cut) / len(cut) >= 0.5 or ended else LIKELY + 0.15, facts)


LIMIT_TOO_SHORT = Cause(
    "limit_too_short",
    "the length limit is below what an answer needs: completions are cut from the first step on",
    find_limit_too_short,
    f"{STILL} truncated length_fell answer_form gold_mismatch too_hard too_sparse constant_reward nothing_moves "
    "no_group_variance part_bought critic_useless",
    "raise {length} to what whole answers need, or ask for shorter ones",
    "",
    "TRL completions/clipped_ratio; trl#5697; limit of a fifth: our heuristic",
)
