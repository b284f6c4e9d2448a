"""Held-out prompts that also train: prompts compared by what they ask, counted, refused where all do."""

import json
import unicodedata

from parts.foundation.messages import need, say


def asked_words(prompt) -> str:
    """What a prompt asks: alike for prompts that differ in case, white space, Unicode form or system prompt only."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = [message for message in messages if message["role"] not in ("system", "developer")] or messages
    texts = [unicodedata.normalize("NFKC", str(message["content"])).casefold() for message in asked]
    return "\n".join("".join(text.split()) for text in texts)


def task_of(row: dict, with_columns: bool) -> tuple[str, str]:
    """What tells a row's task from others; an environment makes different tasks of one prompt by its columns."""
    columns = json.dumps(row["columns"], sort_keys=True, default=str) if with_columns else ""
    return asked_words(row["prompt"]), columns


def mark_trained(config, rows: list[dict], held_out: list[dict]) -> None:
    """Set `trains` in each held-out row and say how many do; UserError where all do, without --allow_overlap."""
    with_columns = bool(getattr(config, "environment", ""))
    trained = {task_of(row, with_columns) for row in rows}
    for row in held_out:
        row["trains"] = task_of(row, with_columns) in trained
    count, total = sum(row["trains"] for row in held_out), len(held_out)
    need(
        not count or count < total or config.allow_overlap,
        f"got --eval_data {config.eval_data}, whose {total} evaluation prompts all occur in --data {config.data} too; "
        "expected prompts that do not train, or the accuracy says nothing about learning; try `python "
        f"scripts/data_loader.py {config.data} --split 0.1 --out train.jsonl`, which writes train.eval.jsonl too, or "
        "--allow_overlap to measure memorization",
    )
    if count:
        say(f"warning: {count} of {total} evaluation prompts also occur in training; the accuracy is inflated")


def overlap_metric(rows: list[dict]) -> dict[str, int]:
    """eval/trained_rows of evaluated rows, where there are any."""
    count = sum(row.get("trains", False) for row in rows)
    return {"eval/trained_rows": count} if count else {}
