"""Too easy: nearly every completion is right from the start."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, fact
from parts.reading.causes.too_hard import pass_rate
from parts.reading.logged_run import SOLVED, LoggedRun, is_constant
from parts.reading.sample_texts import shares_by_answer


def find_too_easy(run: LoggedRun) -> Evidence | None:
    """The pass rate's interval lies above 90 % from the first steps on, and wrong completions are not paid."""
    rate, held_out = pass_rate(run), run.early("held_out", 1)
    if not rate or rate[1] < SOLVED or rate[2] < 0.9:
        return None
    right, wrong = shares_by_answer(run.texts)
    if len(wrong) > 0.2 * len([*right, *wrong]) and wrong:
        return None  # paid though wrong: the reward is at fault
    facts = [
        fact(
            run,
            f"part:{rate[0]}" if run.parts() else "score",
            f"{rate[0]} is {rate[1]:.3g} in the first steps",
            min(run.steps()),
        )
    ]
    if held_out:
        facts.append(fact(run, "held_out", f"held out it is {held_out[0]:.3g} at the start", 0))
    sure = len(right) >= 8 or (held_out and held_out[0] >= 0.9) or not is_constant(run)
    return Evidence(CERTAIN if sure else LIKELY, facts)


TOO_EASY = Cause(
    "too_easy",
    "the prompts are too easy: nearly every completion is right from the start, so groups score alike",
    find_too_easy,
    f"{STILL} entropy_fell kl_high no_group_variance nothing_moves critic_useless constant_reward",
    "harder prompts; or stop here, as there is nothing left to learn from these",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "Wilson's interval of the pass rate",
)
