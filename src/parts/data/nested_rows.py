"""Rows inside other JSON: an object that holds a list of them, columns instead of rows, messages as text in a cell."""

import json
import re

from parts.data.data_files import ASKS, WEAK
from parts.foundation.messages import RowFlaw, UserError, need, say

ANSWERED = {"answer", "solution", "completion", "response", "output", "chosen"}
NESTED = {"paragraphs", "qas", "qa_pairs", "questions"}
LISTS = {
    *("data", "rows", "examples", "samples", "items", "records", "instances", "entries", "tasks", "problems"),
    *("prompts", "dataset", "train", "test", "validation", "valid", "dev", "eval", *NESTED),
}
CONTEXT = ("text", "context", "passage", "article", "story", "paragraph", "document", "table", "background", "body")
CHAT = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(role|from|content|value)\1\s*:""")
# what begins a turn in dialogues that are one text: HH-RLHF, Guanaco and Alpaca, ChatML, Llama 3, Llama 2, Glaive
TURNS = (
    r"(?:\A|\n\n)(Human|Assistant): ?",
    r"### ?(Human|User|Assistant|System|Instruction|Input|Response): ?",
    r"<\|im_start\|>(\w+)\n",
    r"<\|start_header_id\|>(\w+)<\|end_header_id\|>",
    r"(\[/?INST\])",
    r"(?:\A|\n)(USER|ASSISTANT|FUNCTION RESPONSE|SYSTEM): ",
)
TURN_ENDS = re.compile(r"</?s>|<\|(im_end|eot_id|endoftext|begin_of_text)\|>")
SPEAKERS = {
    **dict.fromkeys(("human", "user", "instruction", "input", "[inst]"), "user"),
    **dict.fromkeys(("assistant", "response", "[/inst]"), "assistant"),
    **{"system": "system", "tool": "tool", "function response": "tool"},
}
CHAT_COLUMNS = (*sorted(ASKS), "rejected", "response", "output", "text", "input", "history")


def rows_in(value: dict, name: str, alone: bool, known=()) -> list | None:
    """The rows of an object that holds them; None where it is a row itself.

    Args:
        value: a JSON object.
        name: what messages call its file.
        alone: it is all that its file holds.
        known: columns that make it a row, beside the usual ones.

    Raises:
        UserError: it holds rows, but not plainly which.
    """
    table = rows_of_columns(value, name, known) if alone else None
    asks = value.keys() & {*ASKS, *known}
    lists = [value[key] for key in LISTS & value.keys() if isinstance(value[key], list) and value[key]]
    is_head = alone and not value.keys() & {*ANSWERED, *known} and any(is_row(items[0]) for items in lists)
    if table is not None or (asks and not is_head):  # a prompt above a list of rows is not plainly one
        return table
    shared = {key: value[key] for key in CONTEXT if isinstance(value.get(key), str)}
    nested = {key: item for key, item in value.items() if isinstance(item, list | dict) and item}
    rows = {key: items for key, items in nested.items() if holds_rows(key, items, value, alone)}
    objects = {key: item for key, item in value.items() if isinstance(item, dict) and (key in LISTS or len(value) == 1)}
    tables = [rows_in(item, name, True, known) for item in objects.values()] if alone else []
    if len(tables) == 1 and tables[0]:
        return tables[0]
    if alone and nested and not any(tables) and all(map(is_row, value.values())):
        rows = {"": [*value.values()]}  # by index, as pandas' orient="index"
    keys = ["rows"] if "rows" in rows and "row" in rows["rows"][0] else [*rows]
    if len(keys) == 1 and not asks:
        unused = [key for key in value if key not in keys and key not in shared] if keys[0] else []
        if alone and unused:
            say(f"{name}: read the rows of {keys[0]!r}; not used: {', '.join(unused)[:200]}")
        return [row for number, item in enumerate(rows[keys[0]], 1) for row in unfolded(item, name, number, shared)]
    if alone and not value.keys() & (WEAK - {"description"}):
        keys = keys or [key for key in nested if key in LISTS]
    if not keys:
        return None
    part = f"json.load(open({name!r}))[{keys[0]!r}]"
    if isinstance(value[keys[0]], list) and isinstance(value[keys[0]][0], str):
        part = f"[{{'prompt': text}} for text in {part}]"
    code = f"import json; json.dump({part}, open('rows.json', 'w'))"
    got = f"{name}: got one object that holds {' and '.join(map(repr, keys[:5]))}, and not plainly one list of rows"
    raise UserError(f'{got}; expected JSONL, or one list of objects; try taking one out: python -c "{code}"')


def is_row(item) -> bool:
    """Whether an item has a field that asks, or holds others that may."""
    return isinstance(item, dict) and bool(item.keys() & (ASKS | NESTED))


def holds_rows(name: str, items, value: dict, alone: bool) -> bool:
    """Whether a list in an object is one of rows: by the fields of its first item, and of the list's name."""
    if not isinstance(items, list) or not isinstance(items[0], dict):
        return False
    if is_row(items[0]) or (name == "rows" and isinstance(items[0].get("row"), dict)):
        return alone or name in LISTS
    # the examples of a programming task are no rows, though those of a task of BIG-bench are
    cases = {"input", "output"} <= items[0].keys() and name in ("examples", "samples") and value.keys() & WEAK
    return alone and name in LISTS and not cases


def unfolded(item, name: str, number: int, shared: dict) -> list:
    """The rows that an item of a list stands for, each with what they share."""
    if not isinstance(item, dict):
        return [item]
    if isinstance(item.get("row"), dict) and "row_idx" in item:  # as the viewer of the hub gives them
        cut = ", ".join(map(str, item.get("truncated_cells") or ()))
        got = f"{name}: got row {number}, of which the hub's viewer has cut {cut}"
        need(not cut, f"{got}; expected whole cells; try the data set's name, OWNER/NAME, or its parquet files")
        return [item["row"]]
    rows = rows_in(item, name, alone=False)
    return [{**shared, **row} if isinstance(row, dict) else row for row in ([item] if rows is None else rows)]


def rows_of_columns(value: dict, name: str, known) -> list[dict] | None:
    """The rows of an object whose values are columns: lists, or objects by index, or pandas' orient="split"."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list) and data and isinstance(data[0], list):
        fits = all(isinstance(row, list) and len(row) == len(columns) for row in data)
        need(fits, f"{name}: got a row of another length than `columns`; expected {len(columns)} cells; try JSONL")
        return [dict(zip(map(str, columns), row, strict=True)) for row in data]
    asking = [value[key] for key in value.keys() & {*ASKS, *WEAK, *known}]
    if asking and all(isinstance(item, dict) and item and all(map(str.isdigit, item)) for item in value.values()):
        places = [*max(value.values(), key=len)]
        return [{key: column.get(place) for key, column in value.items()} for place in places]
    lists = len(value) > 1 and all(isinstance(item, list) for item in value.values())
    if not asking or not lists or not all(map(is_column, asking)):
        return None
    sizes = {key: len(column) for key, column in value.items()}
    listed = ", ".join(f"{key}: {size}" for key, size in sizes.items())[:200]
    got = f"{name}: got columns of unequal length ({listed})"
    need(len({*sizes.values()}) == 1, f"{got}; expected one value for each row; try JSONL, one object a line")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def is_column(items: list) -> bool:
    """Whether a list holds prompts, texts or messages, not the messages of one."""
    texts = all(isinstance(item, str) and item.strip() for item in items)
    return bool(items) and (texts or all(isinstance(item, list) and item for item in items))


def with_chats(row: dict) -> dict:
    """The row with messages instead of their JSON text, as cells of a spreadsheet hold them; other texts stay.

    Raises:
        RowFlaw: a text is such JSON but broken, or the same as Python prints it.
    """
    chats = {}
    for name in CHAT_COLUMNS:
        text = row.get(name)
        start = CHAT.match(text) if isinstance(text, str) else None
        if not start or not text.rstrip().endswith(("]", "}")):
            continue
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError) as error:
            if str(error).startswith("Extra data"):
                continue  # a text that begins with messages
            got = f"chat messages as Python prints them, {text[:40]!r}" if start[1] == "'" else f"broken JSON ({error})"
            advice = "json.dumps for the column, or pandas' to_json(FILE, orient='records', lines=True) for all"
            raise RowFlaw(name, got, "a list of messages, or its JSON text", advice) from None
        messages = [messages] if isinstance(messages, dict) else messages
        if all(
            isinstance(m, dict) and ({"role", "content"} <= m.keys() or {"from", "value"} <= m.keys()) for m in messages
        ):
            chats[name] = messages
    return {**row, **chats} if chats else row


def turns_in(text: str) -> list[dict] | None:
    """The messages of a dialogue that is one text, `### Human: … ### Assistant: …` or the like; None for other texts.

    The last one is empty where the text ends with a speaker's mark.
    """
    for mark in TURNS:
        above, *pieces = re.split(mark, text)
        roles = [SPEAKERS.get(speaker.lower()) for speaker in pieces[::2]]
        preface = TURN_ENDS.sub("", above).strip()
        if "assistant" not in roles or None in roles or roles[0] == "assistant":
            continue
        if preface and not preface.startswith("Below is an instruction"):  # Alpaca's
            continue
        turns = []
        for role, said in zip(roles, pieces[1::2], strict=True):
            content = TURN_ENDS.sub("", said).strip()
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n\n{content}"
            else:
                turns.append({"role": role, "content": content})
        if preface:
            turns[0]["content"] = f"{preface}\n\n{turns[0]['content']}"
        return turns
    return None
