"""Gold that is not the row's: a number against a text, another row's gold, a wrong column, a score of the batch."""

import re
from collections import Counter

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.causes.answer_form import marks_with_gold, unpaid_with_gold
from parts.reading.logged_run import LoggedRun, first_part
from parts.reading.paired_tests import wilson_interval
from parts.reading.sample_texts import NUMBER, source_marks, stated_answer

OTHER_ROW = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truth|labels?)\[(\d+|-1|::-1)\]")


def shifted_gold(run: LoggedRun) -> Fact | None:
    """Completions state the gold of the row some places on in the data, the same number of places each time."""
    prompts, golds = list(run.golds), list(run.golds.values())
    places, votes = {prompt: i for i, prompt in enumerate(prompts)}, Counter()
    train = {(t.prompt, t.completion): t for t in run.texts if t.prompt in places}.values()
    for t in train:
        answer, place = stated_answer(t.completion, bool(NUMBER.fullmatch(golds[places[t.prompt]]))), places[t.prompt]
        votes.update(k for k in range(-60, 61) if golds[(place + k) % len(golds)] == answer)
    (best, count), *others = [*votes.most_common(2), (0, 0)] if votes else [(0, 0)]
    if not best or len(golds) < 20 or count < max(4, 2 * others[0][1], 3 * votes[0], 0.2 * len(train)):
        return None
    return shown(
        list(train), f"{count} of {len(train)} completions state the gold answer of the row {best:+d} places away"
    )


def unlike_held_out(run: LoggedRun) -> Fact | None:
    """Held-out completions are paid from the start, training ones hardly, by the same reward."""
    name, means = first_part(run)
    held_out, early = (
        run.early(f"held_out_part:{name}", 1) or run.early("held_out", 1),
        means[:1],
    )  # later a policy may be lost
    if not held_out or not early or not 0 < held_out[0] <= 1 or min(early) < 0 or max(early) > 1:
        return None
    count, rate = int(run.number("batch") or 32) * len(early), sum(early) / len(early)
    if wilson_interval(rate * count, count)[1] > 0.35 * wilson_interval(held_out[0] * 64, 64)[0]:
        return None
    text = f"at the start {name} pays {rate:.3g} in training and {held_out[0]:.3g} on held-out prompts"
    return fact(run, f"part:{name}" if run.parts() else "score", text, 1)


def find_gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Gold stands unpaid where the reward looks; or it is that of another row; or held-out pays and training not."""
    if run.trials.get("alone"):
        return Evidence(CERTAIN + 0.09, [Fact(run.trials["alone"], "rescore")])
    shift, other = shifted_gold(run), OTHER_ROW.search(run.reward_source)
    train = [t for t in run.texts if t.kind == "train"]
    golds, prompts = {t.gold for t in train if t.gold}, {t.prompt for t in train if t.gold}
    if shift:
        return Evidence(CERTAIN + 0.08, [shift])
    if other:
        text = f"the reward compares with {other[0]}, which is not the completion's row"
        return Evidence(CERTAIN + 0.08, [Fact(text, "reward")])
    if len(prompts) >= 8 and len(golds) == 1:
        return Evidence(CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {min(golds)!r}")])
    unpaid, unlike = unpaid_with_gold(run.texts), unlike_held_out(run)
    if unpaid:
        reads, used = source_marks(run.reward_source), marks_with_gold(unpaid)
        text = (
            f"{len(unpaid)} unpaid completions hold the gold answer{' where the reward looks' if used & reads else ''}"
        )
        sure = CERTAIN + 0.05 if used & reads else LIKELY
        return Evidence(sure, [shown(unpaid, text)]) if used & reads or not reads else None
    return Evidence(LIKELY + 0.2, [unlike]) if unlike else None


GOLD_MISMATCH = Cause(
    "gold_mismatch",
    "answers are compared with what is not their gold: a number with a text, another row's gold, a wrong column",
    find_gold_mismatch,
    f"{STILL} {LOST} constant_reward too_hard too_sparse nothing_moves no_group_variance critic_useless noisy_reward "
    "reward_ignores_answer part_bought other_eval_task inverted_reward memorised_prompts updates_too_large answer_form",
    "compare texts with texts (str() on both sides) and print prompt, gold and extracted answer of ten rows",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "counting; held-out and training rewards are one function, so their pay at the start agrees",
)
