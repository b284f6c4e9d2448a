"""How every new reward and port reads completions and rows, in TRL's form and in verl's."""

import json
import re

GOLD = "gold_column"  # the column of the gold answer; verl calls it ground_truth
# what a text that was decoded with its special tokens ends with
END_TOKEN = re.compile(
    r"(?:<[|｜](?!user|assistant|system)[\w▁]{1,40}[|｜]>|</s>|<(?:eos|pad|end_of_turn)>|\[(?:EOS|PAD)\])\Z"
)


def without_end_tokens(text: str) -> str:
    """The text without the special tokens at its end; a text with <s> may be HTML that is struck out."""
    if re.search("<s[ >]", text):
        return text
    kept, end = len(text), len(text.rstrip())
    while token := END_TOKEN.search(text, max(0, end - 50), end):
        kept = end = token.start()
        while end and text[end - 1].isspace():
            end -= 1
    return text[:kept]


def completion_text(completion, left_out=("tool", "user", "system")) -> str:
    """The text of a string, of chat messages without those roles, or of None; without its end tokens."""
    text = completion or ""
    if not isinstance(text, str):
        contents = [message.get("content") or "" for message in text if message.get("role") not in left_out]
        text = "".join(c if isinstance(c, str) else "".join(part.get("text") or "" for part in c) for c in contents)
    return without_end_tokens(text)


def rows_of(prompts, count: int, columns: dict) -> list[dict]:
    """One dict a completion, with its prompt and its value of each column."""
    lists = {name: column for name, column in columns.items() if hasattr(column, "__len__")}  # not trainer_state
    lists["prompt"] = [None] * count if prompts is None else prompts
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def verl_row(ground_truth, extra_info) -> dict:
    """The columns of a row: ground_truth is GOLD, or what extra_info says it is; values kept as JSON are decoded."""
    extra = dict(extra_info or {})
    packed = [] if extra.get("json_columns") is None else list(extra["json_columns"])
    row = {name: json.loads(v) if name in packed and isinstance(v, str) else v for name, v in extra.items()}
    row = {name.removeprefix("column:"): value for name, value in row.items()}
    field, _, form = str(extra.get("ground_truth_field") or GOLD).partition(":")
    row[field] = json.loads(ground_truth) if form == "json" else ground_truth
    if row.get("prompt") is None:
        row["prompt"] = row.get("raw_prompt")  # from the reward manager of verl_train.py
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}  # numpy
