"""A reward that ignores the answer: right and wrong completions are paid alike, though scores differ."""

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.causes.inverted_reward import separation
from parts.reading.logged_run import LoggedRun, is_constant
from parts.reading.sample_texts import early_texts, payment_by_feature, scores_by_answer
from parts.reading.trends import is_format


def find_reward_ignores_answer(run: LoggedRun) -> Evidence | None:
    """Scores differ, and the difference between right and wrong completions is none; or all parts judge the form."""
    if run.trials.get("indifferent"):
        return Evidence(CERTAIN + 0.06, [Fact(run.trials["indifferent"], "rescore")], since=1)
    parts = run.parts()
    if parts and all(map(is_format, parts)):
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
    examples = sorted((t for t in run.texts if t.right is False and t.score is not None), key=lambda t: -t.score)
    return Evidence(CERTAIN + 0.03, [shown(examples, text)], since=1)


REWARD_IGNORES_ANSWER = Cause(
    "reward_ignores_answer",
    "the reward does not look at the answer: right and wrong completions are paid alike",
    find_reward_ignores_answer,
    f"{STILL} {LOST} limit_too_short critic_useless too_easy memorised_prompts updates_too_large",
    "pay for the right answer; form, length or style at most beside a right one",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "difference of mean scores with its interval, below half of what scores span",
    breaks=True,
)
