"""The held-out prompts are of another task, or also train."""

import re

from parts.reading.cause import CERTAIN, LIKELY, Cause, Evidence, fact, shown
from parts.reading.logged_run import LoggedRun, gained

DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def prompt_words(prompt: str) -> set[str]:
    """A prompt's words, numbers as 0, and its signs."""
    return {re.sub(r"\d+", "0", word.lower()) for word in re.findall(r"[A-Za-z]+|\d+|[^\w\s]", prompt)}


def common_words(prompts: list[str]) -> set[str]:
    """Words that a third of the prompts have."""
    sets = [prompt_words(prompt) for prompt in prompts]
    return {word for word in set().union(*sets) if sum(word in words for words in sets) * 3 >= len(sets)}


def find_other_eval_task(run: LoggedRun) -> Evidence | None:
    """Held-out prompts also train, or what most of them have in common is not what training prompts have."""
    counts = run.values("held_out_trained")
    same = any(a and a == b for a, b in ((run.config.get(x), run.config.get(y)) for x, y in DATA_FILES))
    if (counts and counts[0]) or (same and run.values("held_out")):
        text = (
            f"{counts[0]:.0f} evaluation prompts also occur in training"
            if counts
            else "the training file is the evaluation file too"
        )
        return Evidence(CERTAIN + 0.05, [fact(run, "held_out", f"{text}; the accuracy is inflated")])
    train = sorted({t.prompt for t in run.texts if t.kind == "train"})
    held_out = sorted({t.prompt for t in run.texts if t.kind == "eval"})
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
