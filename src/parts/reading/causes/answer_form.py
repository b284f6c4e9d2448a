"""The answer's form: completions state the right answer where the reward does not look."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, shown
from parts.reading.logged_run import LoggedRun
from parts.reading.sample_texts import MARKS, Text, asked_marks, holds, marked_answers, simplest, source_marks


def unpaid_with_gold(texts: list[Text]) -> tuple[list[Text], list[Text], float]:
    """Early completions that hold their gold answer and are unpaid, those that hold it and are paid, hits by chance."""
    known = [t for t in texts if t.gold and correct_pay(t) is not None]
    lowest = min(map(correct_pay, known), default=0.0)
    unpaid = [t for t in known if correct_pay(t) <= lowest + 1e-9]
    with_gold = [t for t in unpaid if holds(t.completion, t.gold)]
    paid = [t for t in known if correct_pay(t) > lowest + 1e-9 and holds(t.completion, t.gold)]
    golds = [t.gold for t in unpaid]
    others = golds[1:] + golds[:1]  # gold answers of other rows, for chance
    chance = sum(holds(t.completion, g) for t, g in zip(unpaid, others, strict=True) if g != t.gold)
    return with_gold, paid, chance


def correct_pay(text: Text) -> float | None:
    """What the part that stands for correctness paid; the score where there is one part or none."""
    if len(text.parts) > 1:
        named = [
            v for k, v in text.parts.items() if any(w in k.lower() for w in ("corr", "acc", "answer", "exact", "math"))
        ]
        return named[0] if named else next(iter(text.parts.values()))
    return text.score


def marks_used(texts: list[Text]) -> set[str]:
    """Marks in which completions hold their gold answer."""
    return {
        mark
        for t in texts
        for mark in MARKS
        if any(
            simplest(answer) == t.gold or holds(answer, t.gold) for answer in marked_answers(t.completion, mark)[-1:]
        )
    }


def find_answer_form(run: LoggedRun) -> Evidence | None:
    """Gold stands in unpaid completions, in no mark that the reward's source names."""
    reads, asks = source_marks(run.reward_source), asked_marks(run.texts)
    facts = []
    if reads and asks and not reads & asks:
        facts.append(
            Fact(f"prompts ask for {', '.join(sorted(asks))}, the reward reads {', '.join(sorted(reads))}", "reward")
        )
    with_gold, paid, chance = unpaid_with_gold(run.texts)
    if len(with_gold) < 3 or len(with_gold) <= 3 * chance or len(paid) > 0.25 * len(with_gold):
        scores = run.early("score")
        return Evidence(LIKELY, facts) if facts and scores and max(scores) <= 0.05 else None
    used = marks_used(with_gold)
    text = f"{len(with_gold)} unpaid completions hold the gold answer"
    if reads and used & reads:
        return None  # it stands where the reward looks: the comparison is at fault
    where = f", in {', '.join(sorted(used)) or 'no mark'}; the reward reads {', '.join(sorted(reads))}" if reads else ""
    return Evidence(CERTAIN + 0.04 if reads else LIKELY + 0.1, [*facts, shown(with_gold, text + where)])


ANSWER_FORM = Cause(
    "answer_form",
    "the answer's form is not the one that the reward reads: right answers are not paid",
    find_answer_form,
    f"{STILL} length_rose length_fell constant_reward too_hard too_sparse nothing_moves no_group_variance "
    "critic_useless part_bought reward_ignores_answer gold_mismatch limit_too_short memorised_prompts",
    "ask in the prompt for the form that the reward reads, or have the reward read the form that completions have",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "counting, against gold answers of other rows; open-r1#255, verl#2150",
)
