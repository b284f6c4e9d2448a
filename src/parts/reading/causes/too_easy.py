"""Too easy: nearly every completion is right from the start."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, fact
from parts.reading.causes.too_hard import pass_rate
from parts.reading.logged_run import SOLVED, LoggedRun
from parts.reading.sample_texts import scores_by_answer


def find_too_easy(run: LoggedRun) -> Evidence | None:
    """Held out 95 % and sampled 80 % are right at the start, or sampled 95 % without a held-out figure."""
    rate, held_out = pass_rate(run, steps=3), run.early("held_out", 1)
    least = 0.8 if held_out and SOLVED <= held_out[0] <= 1 else SOLVED
    if not rate or rate[1] < least or (held_out and held_out[0] < 0.9):
        return None
    right, wrong = scores_by_answer(run.texts)
    if len(wrong) > 0.4 * len([*right, *wrong]):
        return None  # paid though wrong: the reward is at fault
    text = f"{rate[0]} is {rate[1]:.3g} in the first steps"
    facts = [fact(run, f"part:{rate[0]}" if run.parts() else "score", text, min(run.steps()))]
    if held_out:
        facts.append(
            fact(run, "held_out", f"held out it is {held_out[0]:.3g} at the start", min(run.series["held_out"]))
        )
    return Evidence(CERTAIN + 0.02 if len(right) >= 4 else LIKELY + 0.1, facts)


TOO_EASY = Cause(
    "too_easy",
    "the prompts are too easy: nearly every completion is right from the start, so groups score alike",
    find_too_easy,
    f"{STILL} entropy_fell kl_high no_group_variance nothing_moves critic_useless constant_reward memorised_prompts",
    "harder prompts; or stop here, as there is nothing left to learn from these",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "Wilson's interval of the pass rate",
)
