"""An inverted reward: wrong answers are paid more than right ones."""

import math
import statistics

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import LoggedRun, held_out_gain
from parts.reading.sample_texts import early_texts, scores_by_answer


def separation(right: list[float], wrong: list[float]) -> tuple[float, float, str]:
    """Difference of the mean scores of right and wrong completions, its standard error, and both in words."""
    means = statistics.fmean(right), statistics.fmean(wrong)
    least = max(statistics.pvariance([*right, *wrong]) * 0.25, 1e-18)  # no class is taken for free of scatter
    errors = [max(statistics.variance(x) if len(x) > 1 else 0.0, least) / len(x) for x in (right, wrong)]
    text = f"{len(right)} right completions score {means[0]:.3g}, {len(wrong)} wrong ones {means[1]:.3g}"
    return means[0] - means[1], math.sqrt(sum(errors)), text


def find_inverted_reward(run: LoggedRun) -> Evidence | None:
    """Right completions score less than wrong ones, beyond chance."""
    if run.trials.get("inverted"):
        return Evidence(CERTAIN + 0.09, [Fact(run.trials["inverted"], "rescore")])
    right, wrong = scores_by_answer(early_texts(run.texts))
    gain = held_out_gain(run)
    if len(right) >= 3 and len(wrong) >= 3:
        difference, error, text = separation(right, wrong)
        best_paid = sorted((t for t in run.texts if t.right is False and t.score is not None), key=lambda t: -t.score)
        examples = best_paid[:2] + [t for t in run.texts if t.right][:1]
        return Evidence(CERTAIN + 0.06, [shown(examples, text)], since=1) if difference < -4 * error else None
    if not right and gain and gain[2] < 0 and run.trend("score") > 0:
        text = f"the score rose and the held-out figure fell by {-gain[0]:.3g}"
        return Evidence(LIKELY, [fact(run, "held_out", text)], since=1)
    return None


INVERTED_REWARD = Cause(
    "inverted_reward",
    "the reward is inverted: it pays wrong answers more than right ones",
    find_inverted_reward,
    f"{STILL} {LOST} updates_too_large part_bought part_dies reward_ignores_answer critic_useless limit_too_short "
    "too_easy memorised_prompts gold_mismatch answer_form too_hard no_group_variance near_greedy too_sparse",
    "turn the sign of {reward}, then begin anew from the first model",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "scores of right and wrong completions, Welch's t",
    breaks=True,
)
