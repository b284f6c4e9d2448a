"""A noisy reward: the same completion of the same prompt is paid differently."""

import itertools

from parts.reading.cause import CERTAIN, LOST, Cause, Evidence, Fact, shown
from parts.reading.logged_run import LoggedRun


def find_noisy_reward(run: LoggedRun) -> Evidence | None:
    """Pairs of one text, one prompt and one step whose scores differ."""
    if run.trials.get("twice"):
        return Evidence(CERTAIN + 0.08, [Fact(run.trials["twice"], "rescore")])
    scored = [t for t in run.texts if t.score is not None]
    for key in (
        lambda t: (t.step, t.kind, t.prompt, t.completion, t.gold or ""),
        lambda t: (0, t.kind, t.prompt, t.completion, t.gold or ""),
    ):
        ordered = sorted(scored, key=key)
        groups = [list(group) for _, group in itertools.groupby(ordered, key=key)]
        groups = [group for group in groups if len(group) > 1]
        differing = [group for group in groups if max(t.score for t in group) - min(t.score for t in group) > 1e-6]
        if sum(map(len, groups)) >= 6:
            break
    if len(differing) < 2 or len(differing) < 0.1 * len(groups):
        return None
    widest = max(differing, key=lambda group: max(t.score for t in group) - min(t.score for t in group))
    ends = [min(widest, key=lambda t: t.score), max(widest, key=lambda t: t.score)]
    text = f"{len(differing)} of {len(groups)} repeated completions scored differently"
    text += f", one {ends[0].score:.3g} and {ends[1].score:.3g}"
    return Evidence(CERTAIN + 0.07, [shown(ends, text)])


NOISY_REWARD = Cause(
    "noisy_reward",
    "the reward is noise: the same completion of the same prompt gets other scores",
    find_noisy_reward,
    f"{LOST} flat_score held_out_flat critic_explains_little reward_ignores_answer nothing_moves kl_holds_policy "
    "critic_useless inverted_reward too_sparse updates_too_large part_bought too_hard constant_reward "
    "answer_form gold_mismatch limit_too_short memorised_prompts no_group_variance",
    "make {reward} deterministic: no random draw, a judge at temperature 0, no state kept between calls",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "definition: a reward is a function of prompt and completion",
)
