"""Gold that is not the row's: a number against a text, another row's gold, a wrong column, a score of the batch."""

from collections import Counter

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.causes.answer_form import marks_used, unpaid_with_gold
from parts.reading.logged_run import LoggedRun, first_part
from parts.reading.paired_tests import wilson_interval
from parts.reading.sample_texts import source_marks


def unlike_held_out(run: LoggedRun) -> Fact | None:
    """Held-out completions are paid from the start, training ones hardly, by the same reward."""
    name, means = first_part(run)
    held_out = run.early(f"held_out_part:{name}", 1) or run.early("held_out", 1)
    early = means[:3]
    if not held_out or not early or not 0 < held_out[0] <= 1 or min(early) < 0:
        return None
    count = int(run.number("batch") or 32) * len(early)
    low, _ = wilson_interval(held_out[0] * 64, 64)
    _, high = wilson_interval(min(1.0, sum(early) / len(early)) * count, count)
    if high > 0.35 * low:
        return None
    return fact(
        run,
        f"part:{name}" if run.parts() else "score",
        f"{name} pays {sum(early) / len(early):.3g} in training and {held_out[0]:.3g} on held-out prompts at the start",
        1,
    )


def find_gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Gold stands unpaid where the reward looks; or all rows have one gold; or held-out pays and training does not."""
    trial = run.trials.get("alone")
    if trial:
        return Evidence(CERTAIN + 0.08, [Fact(trial, "rescore")])
    train = [t for t in run.texts if t.kind == "train"]
    golds = Counter(t.gold for t in train if t.gold)
    prompts = {t.prompt for t in train if t.gold}
    if len(prompts) >= 6 and len(golds) == 1:
        return Evidence(
            CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {next(iter(golds))!r}")]
        )
    with_gold, paid, chance = unpaid_with_gold(run.texts)
    reads, used = source_marks(run.reward_source), marks_used(with_gold)
    if len(with_gold) >= 3 and len(with_gold) > 3 * chance and len(paid) <= 0.25 * len(with_gold):
        if not reads or used & reads:
            text = f"{len(with_gold)} unpaid completions hold the gold answer where the reward looks"
            return Evidence(CERTAIN + 0.03 if used & reads else LIKELY, [shown(with_gold, text)])
        return None
    unlike = unlike_held_out(run)
    return Evidence(LIKELY + 0.2, [unlike]) if unlike else None


GOLD_MISMATCH = Cause(
    "gold_mismatch",
    "answers are compared with what is not their gold: a number with a text, another row's gold, a wrong column",
    find_gold_mismatch,
    f"{STILL} score_fell length_fell length_rose constant_reward too_hard too_sparse nothing_moves "
    "no_group_variance critic_useless reward_ignores_answer part_bought other_eval_task noisy_reward",
    "compare texts with texts (str() on both sides) and print prompt, gold and extracted answer of ten rows",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "counting; held-out and training rewards are one function, so their pay at the start agrees",
)
