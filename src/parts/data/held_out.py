"""Held-out prompts: split them off, and count or refuse those that also occur in training."""

import hashlib
import json
import re
import unicodedata
from collections import Counter

from parts.foundation.bundle import in_bundle
from parts.foundation.messages import need, say

OPERAND, WORDS = r"(\d++(?:\.\d++)?+)", r"plus|minus|times|by"
PAIR = re.compile(  # a sum or product of exactly two numbers, in a text of `asked_words`
    rf"(?<![\d.+*×·/^-])(?<!plus)(?<!minus)(?<!times)(?<!by){OPERAND}([+*×·]|plus|times){OPERAND}"
    rf"(?!(?:[-+*×·/^]|{WORDS})\d)"
)


def asked_words(prompt) -> str:
    """Normalised text of a prompt: without case, white space, Unicode variants and system messages."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = [message for message in messages if message["role"] not in ("system", "developer")] or messages
    texts = [unicodedata.normalize("NFKC", str(message["content"])).casefold() for message in asked]
    return "\n".join("".join(text.split()) for text in texts)


def task_of(row: dict, with_columns: bool) -> tuple[str, str]:
    """Key that identifies a row's task: its prompt, and its columns where an environment makes tasks from them."""
    columns = json.dumps(row["columns"], sort_keys=True, default=str) if with_columns else ""
    return asked_words(row["prompt"]), columns


def mirrored(asked: str) -> str:
    """The question with the two numbers of its sum or product swapped; "" unless it has exactly one such pair.

    >>> mirrored("whatis3+41?")
    'whatis41+3?'
    """
    return PAIR.sub(r"\3\2\1", asked) if len(PAIR.findall(asked)) == 1 else ""


def of_swapped(held_out: list[str], trained: set[str]) -> str:
    """A note on how many held-out questions swap the numbers of a training question; "" if none do."""
    count = sum(mirrored(asked) in trained for asked in held_out)
    return f"; {count} of them swap the numbers of a training question (a+b, b+a)" if count else ""


def drawn_tasks(tasks: list, count: int, seed: str = "") -> set:
    """Draw from the rows' tasks some with at most `count` rows together, by a hash of task and seed in any order."""
    sizes, drawn, rows = Counter(tasks), set(), 0
    for task in sorted(sizes, key=lambda task: hashlib.sha256(f"{seed}{task!r}".encode()).digest()):
        if rows + sizes[task] <= count:
            drawn.add(task)
            rows += sizes[task]
    return drawn


def hold_out(config, rows: list[dict]) -> tuple[list[dict], list[dict]]:
    """(training rows, at most `config.hold_out` rows for evaluation); rows of one task stay together."""
    got, fewer = f"got --hold_out {config.hold_out}", f"try --hold_out {len(rows) // 10 or 1}, or more rows"
    need(config.hold_out > 0, f"{got}; expected more than 0; {fewer}")
    need(not config.eval_data, f"{got} beside --eval_data {config.eval_data}; expected only one of them")
    none_left = f"{got} with {len(rows)} rows in {config.data}, which leaves none for training; expected fewer"
    need(config.hold_out < len(rows), f"{none_left}; {fewer}")
    tasks = [task_of(row, bool(getattr(config, "environment", ""))) for row in rows]
    drawn = drawn_tasks(tasks, config.hold_out)
    larger = "expected several prompts and a larger number, as all rows of a prompt stay together"
    need(drawn, f"{got} with {len(rows)} rows of {len({*tasks})} prompts in {config.data}; {larger}")
    parts = [[row for row, task in zip(rows, tasks, strict=True) if (task in drawn) == side] for side in (False, True)]
    also = of_swapped([task[0] for task in tasks if task in drawn], {asked for asked, _ in {*tasks} - drawn})
    say(f"held out: {len(parts[1])} of {len(rows)} rows of {config.data}, the same ones for every seed{also}")
    return parts[0], parts[1]


def split_command(data: str) -> str:
    """The command that holds out a tenth of a file."""
    return f"`python {in_bundle('scripts/data_loader.py')} {data} --split 0.1 --out part.jsonl`"


def mark_trained(config, rows: list[dict], held_out: list[dict]) -> None:
    """Set `trains` in held-out rows that also train, and warn; UserError if all do, unless --allow_overlap is given."""
    with_columns = bool(getattr(config, "environment", ""))
    trained = {task_of(row, with_columns) for row in rows}
    for row in held_out:
        row["trains"] = task_of(row, with_columns) in trained
    count, total = sum(row["trains"] for row in held_out), len(held_out)
    got = f"got --eval_data {config.eval_data}, whose {total} evaluation prompts all occur in --data {config.data} too"
    expected = "expected prompts that are not trained on, or the accuracy says nothing about learning"
    split = f"{split_command(config.data)}, which writes part.eval.jsonl too"
    advice = f"{expected}; try {split}, or --allow_overlap to measure memorization"
    need(not count or count < total or config.allow_overlap, f"{got}; {advice}")
    if count:
        say(f"warning: {count} of {total} evaluation prompts also occur in training; the accuracy is inflated")


def overlap_metric(rows: list[dict]) -> dict[str, int]:
    """{"eval/trained_rows": count} of evaluated rows that also train; {} if there are none."""
    count = sum(row.get("trains", False) for row in rows)
    return {"eval/trained_rows": count} if count else {}
