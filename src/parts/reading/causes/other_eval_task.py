"""The held-out prompts are of another task, or also train."""

import math
import re

from parts.reading.cause import CERTAIN, LIKELY, Cause, Evidence, Fact, fact, shown
from parts.reading.log_reading import as_number
from parts.reading.logged_run import LoggedRun, first_part, gained
from parts.reading.paired_tests import wilson_interval
from parts.reading.trends import TREND_STEPS, ends, trend

DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def prompt_words(prompt: str) -> set[str]:
    """A prompt's words, numbers as 0, and its signs."""
    return {re.sub(r"\d+", "0", word.lower()) for word in re.findall(r"[A-Za-z]+|\d+|[^\w\s]", prompt)}


def common_words(prompts: list[str]) -> set[str]:
    """Words that a third of the prompts have."""
    sets = [prompt_words(prompt) for prompt in prompts]
    return {word for word in set().union(*sets) if sum(word in words for words in sets) * 3 >= len(sets)}


def unlike_training(run: LoggedRun) -> Fact | None:
    """A 0/1 score of training prompts that is far from that of held-out ones, from the start and to the end."""
    (name, part), held_out, spread = first_part(run), run.values("held_out"), run.early("score_std", 1)
    if len(held_out) < 2 or len(part) < TREND_STEPS or len(run.parts()) > 1 or not spread:
        return None
    if min(part) < 0 or max(part) > 1 or abs(spread[0] - math.sqrt(part[0] * (1 - part[0]))) > 0.05:
        return None  # not 0/1: the held-out share of full marks is another figure
    count = int(run.number("batch") or 32)
    if max(held_out) > 0.05 or wilson_interval(part[0] * count, count)[0] < 0.2 or trend(part) < 0:
        return None
    text = (
        f"{name} goes from {part[0]:.3g} to {ends(part)[1]:.3g} in training and stays at {max(held_out):.3g} held out"
    )
    return fact(run, "held_out", text)


def find_other_eval_task(run: LoggedRun) -> Evidence | None:
    """Held-out prompts also train, or what most of them have in common is not what training prompts have."""
    counts = [row for row in run.rows if as_number(row.get("eval/trained_rows"))]
    same = any(a and a == b for a, b in ((run.config.get(x), run.config.get(y)) for x, y in DATA_FILES))
    if counts or (same and run.values("held_out")):
        text = "the training file is the evaluation file too"
        if counts:
            of = as_number(counts[0].get("eval/rows"))
            text = f"{counts[0]['eval/trained_rows']:.0f}" + (f" of {of:.0f}" if of else "")
            text += " evaluation prompts also occur in training"
        return Evidence(CERTAIN + 0.05, [fact(run, "held_out", f"{text}; the accuracy is inflated")])
    train = sorted({t.prompt for t in run.texts if t.kind == "train"})
    held_out = sorted({t.prompt for t in run.texts if t.kind == "eval"})
    unlike = unlike_training(run)
    if unlike:
        return Evidence(CERTAIN + 0.02, [unlike])
    if len(train) < 2 or len(held_out) < 4 or gained(run):
        return None
    a, b = common_words(train), common_words(held_out)
    if len(a & b) > 0.5 * min(len(a), len(b)) and not (b - a and a - b and len(a & b) < 0.75 * max(len(a), len(b))):
        return None
    words = [" ".join(sorted(x)[:6]) or "-" for x in (a - b, b - a)]
    text = f"training prompts have {words[0]}, held-out ones {words[1]}"
    examples = [next(t for t in run.texts if t.kind == kind) for kind in ("train", "eval")]
    rose = run.trend("score") > 0
    return Evidence(CERTAIN + 0.04 if rose else LIKELY + 0.1, [shown(examples, text)])


OTHER_EVAL_TASK = Cause(
    "other_eval_task",
    "the held-out prompts are no measure: they are of another task, or also train",
    find_other_eval_task,
    "held_out_flat memorised_prompts part_bought gold_mismatch",
    "hold out prompts of the training task: python scripts/data_loader.py FILE --split 0.1 --out train.jsonl",
    "",
    "definition of a held-out set",
)
