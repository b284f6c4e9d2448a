"""Held-out prompts never train: compared by their text, and but for case, white space, Unicode form, system prompt."""

import json

from parts.data.held_out import asked_words
from parts.foundation.messages import need


def check_leaks(rows: list[dict], held_out: list[dict], source: str) -> None:
    """Raise UserError where a prompt that would train is held out too.

    Args:
        source: where `rows` come from, for the message.
    """
    exact = {json.dumps(row["prompt"]) for row in held_out}
    alike = {asked_words(row["prompt"]) for row in held_out}
    leaks = [(i, row["prompt"]) for i, row in enumerate(rows, 1) if asked_words(row["prompt"]) in alike]
    if not leaks:
        return
    same = sum(json.dumps(prompt) in exact for _, prompt in leaks)
    number, prompt = leaks[0]
    need(
        False,
        f"{source}: got {len(leaks)} of {len(rows)} prompts that are held out too, {same} of them letter for letter "
        f"and {len(leaks) - same} but for case, white space, Unicode form or system prompt; the first is {number}"
        f": {json.dumps(prompt, ensure_ascii=False)[:120]}; expected none, or the pass rate says nothing; try to take "
        "them out of one of the files, or `python scripts/data_loader.py FILE --split 0.1 --out train.jsonl`",
    )
