"""Rewards, data and samples that were named."""

import json
import random

from parts.data.question_parts import warn_unread
from parts.data.rows import read_rows
from parts.foundation.messages import need
from parts.rewards.user_code import user_text
from programs.reward_preflight.rows_and_gold import make_row, text_of


def pick(rows: list[dict], count: int, seed: int) -> list[dict]:
    """`count` rows drawn with a seed, in their order; all for 0."""
    if not 0 < count < len(rows):
        return rows
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def load_data(args) -> list[dict]:
    """Every row of --data, checked."""
    raw = read_rows(args.data)
    need(raw, f"got data {args.data!r} without rows; expected at least one")
    rows = [make_row(row, f"{args.data}, row {i}", i, args) for i, row in enumerate(raw, 1)]
    warn_unread(args.data, [(row, row[args.prompt_column]) for row in raw])
    return rows


def load_samples(args, rows: list[dict]) -> list[tuple[dict, str]]:
    """(row, completion) of every sample; a sample names its row by `prompt` or by `index`, the row's number from 0."""
    known = {json.dumps(prompt): row for row in rows for prompt in (row["prompt"], user_text(row["prompt"]))}
    pairs = []
    for number, raw in enumerate(read_rows(args.samples) if args.samples else [], 1):
        where, index = f"{args.samples}, row {number}", raw.get("index")
        in_range = isinstance(index, int) and 0 <= index < len(rows)
        row = known.get(json.dumps(raw["prompt"])) if "prompt" in raw else rows[index] if in_range else None
        got = f"prompt {str(raw['prompt'])[:60]!r}" if "prompt" in raw else f"index {index!r} and no prompt"
        need(row, f"{where}: got {got}; expected a prompt of {args.data}, or its index below {len(rows)}")
        texts = [text_of(text) for text in raw.get("completions") or [raw.get("completion")]]
        need(None not in texts, f"{where}: got no text in `completion` or `completions`; expected a string or messages")
        pairs += [(row, text) for text in texts]
    need(pairs or not args.samples, f"got samples {args.samples!r} without rows; expected at least one")
    return pairs
