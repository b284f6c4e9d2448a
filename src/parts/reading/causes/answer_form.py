"""The answer's form: completions state the right answer where the reward does not look."""

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, shown
from parts.reading.logged_run import LoggedRun
from parts.reading.sample_texts import Text, asked_marks, correct_pay, early_texts, holds, marked_answers, source_marks


def unpaid_with_gold(texts: list[Text]) -> list[Text]:
    """Completions that hold their gold answer and are not paid for it, where they are most of those that hold it.

    [] where others hold the gold of another row as often, or where a quarter of those with their gold is paid.
    """
    known = [t for t in early_texts(texts) if t.gold and correct_pay(t) is not None]
    pays = [correct_pay(t) for t in known]
    lowest = min(pays, default=0.0)
    if lowest > 1e-9 and max(pays) - lowest <= 1e-9:
        return []  # all are paid
    holders = [t for t in known if holds(t.completion, t.gold)]
    unpaid = [t for t in holders if correct_pay(t) <= lowest + 1e-9]
    golds = [t.gold for t in known]
    pairs = zip(known, golds[len(golds) // 2 :] + golds[: len(golds) // 2], strict=True)
    chance = sum(holds(t.completion, gold) for t, gold in pairs if gold != t.gold)
    return unpaid if len(unpaid) >= max(3, 3 * chance, 0.75 * len(holders)) else []


def marks_with_gold(texts: list[Text]) -> set[str]:
    """Marks in which completions hold their gold answer."""
    return {mark for t in texts for mark, answer in marked_answers(t.completion) if holds(answer, t.gold)}


def find_answer_form(run: LoggedRun) -> Evidence | None:
    """Gold stands in unpaid completions, in no mark that the reward's source names; or it reads no mark asked for."""
    reads, asks, unpaid = source_marks(run.reward_source), asked_marks(run.texts), unpaid_with_gold(run.texts)
    other = [Fact(f"prompts ask for {', '.join(sorted(asks))}, the reward reads {', '.join(sorted(reads))}", "reward")]
    other = other if reads and asks and not reads & asks else []
    if not unpaid:
        return Evidence(LIKELY, other) if other and run.values("score") and max(run.early("score")) <= 0.05 else None
    used = marks_with_gold(unpaid)
    if used & reads:
        return None  # it stands where the reward looks: the comparison is at fault
    where = f", marked by {', '.join(sorted(used)) or 'nothing'}; the reward reads {', '.join(sorted(reads))}"
    text = f"{len(unpaid)} unpaid completions hold the gold answer{where if reads else ''}"
    return Evidence(CERTAIN + 0.05 if reads else LIKELY + 0.1, [shown(unpaid, text), *other])


ANSWER_FORM = Cause(
    "answer_form",
    "the answer's form is not the one that the reward reads: right answers are not paid",
    find_answer_form,
    f"{STILL} {LOST} constant_reward too_hard too_sparse nothing_moves no_group_variance critic_useless part_bought "
    "reward_ignores_answer memorised_prompts updates_too_large",
    "ask in the prompt for the form that the reward reads, or have the reward read the form that completions have",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "counting, against gold answers of other rows; open-r1#255, verl#2150",
)
