"""Find rows inside other JSON: an object with a list of rows, columns instead of rows, messages as JSON text."""

import json
import re

from parts.data.data_files import ASKS, WEAK
from parts.foundation.messages import RowFlaw, UserError, need, say

ANSWERED = {"answer", "solution", "completion", "response", "output", "chosen"}
LISTS = set(
    "data rows examples samples items records instances entries tasks problems prompts dataset train test validation "
    "valid dev eval questions paragraphs qas".split()
)
CONTEXT = {"text", "context", "passage", "article", "story", "paragraphs", "document", "table", "background", "body"}
CHAT = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(role|from|content|value)\1\s*:""")
# the start of a turn in one-text dialogues: HH-RLHF, Guanaco and Alpaca, ChatML, Gemma, Phi, DeepSeek, Llama 3 and 2
SPEAKER = re.compile(
    r"(?:\A|\n\n)(Human|Assistant): ?|### ?(Human|User|Assistant|System|Instruction|Input|Response): ?"
    r"|<(?:\|im_start\||start_of_turn)>(\w+)\n|(?:(?<![^\n>])<\||<｜)(?i:(user|assistant|system))[|｜]>"
    r"|<\|start_header_id\|>(\w+)<\|end_header_id\|>|(\[/?INST\])|(?:\A|\n)(USER|ASSISTANT): "
)
DIALOGUE = re.compile(r"\s*(user|human)\s*:.+?\s(assistant|ai)\s*:\s*\S", re.IGNORECASE | re.DOTALL)
TURN_ENDS = re.compile(r"</?s>|<\|(im_end|eot_id|endoftext|begin_of_text|end)\|>|<(bos|end_of_turn)>|<｜[^｜]*｜>")
# the end of an answer that is only begun
BEGUN = re.compile(r"(<think>|\blet(['’]s| me| us)\b[^.:\n]{0,40} step by step[.:]?)\s*\Z", re.IGNORECASE)
ANSWERERS = ("assistant", "model", "response", "[/inst]")
VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # a visible character
TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
CHAT_COLUMNS = (*sorted(ASKS), "rejected", "response", "output", "text", "input", "history")


def rows_in(value: dict, name: str, known=()) -> list | None:
    """The rows inside a file's only object; None if the object is itself a row, UserError if that is unclear.

    `known` has further column names that mark a row.
    """
    if (table := rows_of_columns(value, name, known)) is not None:
        return table
    names, table = value.get("columns"), value.get("data")
    is_split = value.keys() <= {"columns", "index", "data"} and isinstance(table, list) and table
    # to_json(orient="split") of pandas
    if is_split and all(isinstance(row, list) and len(row) == len(names) for row in (names, *table)):
        return [dict(zip(map(str, names), row, strict=True)) for row in table]
    only = next(iter(value.values())) if len(value) == 1 else None
    if isinstance(only, dict) and only:
        return rows_in(only, name, known)
    lists = {key: item for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)}
    keyed = [item for item in value.values() if isinstance(item, dict) and item.keys() & {*ASKS, *known}]
    if len(keyed) == len(value) > 1 and not value.keys() & {*ASKS, *WEAK, *ANSWERED, *LISTS}:
        say(f"{name}: read the values of its one object as rows; not used: its keys, {', '.join(value)[:100]}")
        return keyed
    holders = {key: item for key, item in lists.items() if key in LISTS or is_row(item[0])}
    asks, rows = value.keys() & {*ASKS, *known}, any(is_row(holders[key][0]) for key in LISTS & holders.keys())
    if not holders or (asks and (value.keys() & {*ANSWERED, *known} or not rows)):
        return None
    key, items = next(iter(holders.items()))
    cases = {"input", "output"} <= items[0].keys() and value.keys() & WEAK  # test cases of one programming task
    if len(holders) == 1 and not asks and not cases and not value.keys() & CONTEXT:
        if unused := [other for other in value if other != key]:
            say(f"{name}: read the rows of {key!r}; not used: {', '.join(unused)[:200]}")
        if cut := sum(bool(item.get("truncated_cells")) for item in items):
            say(f"warning: {name}: the hub's viewer cut off texts in {cut} rows; try the data set's hub id instead")
        return [item["row"] if {"row_idx", "row"} <= item.keys() else item for item in items]  # the hub's viewer
    got = f"{name}: got one object that holds {' and '.join(map(repr, holders))}; it is not clear which list is meant"
    raise UserError(f"{got}; expected JSONL, or one list of objects; try a file with that list alone")


def is_row(item: dict) -> bool:
    """Whether an object has a prompt column, or one that holds questions."""
    return bool(item.keys() & {*ASKS, "questions", "paragraphs", "qas"})


def rows_of_columns(value: dict, name: str, known) -> list[dict] | None:
    """The rows of an object whose values are columns: lists, or {index: value} as pandas' to_json writes; else None."""
    asking = [value[key] for key in value.keys() & {*ASKS, *WEAK, *known}]
    if asking and all(isinstance(item, dict) and item and all(map(str.isdigit, item)) for item in value.values()):
        places = [*max(value.values(), key=len)]
        return [{key: column.get(place) for key, column in value.items()} for place in places]
    lists = len(value) > 1 and all(isinstance(item, list) for item in value.values())
    if not asking or not lists or not all(asking):
        return None
    for items in asking:  # one prompt for each row, as texts or lists of messages, not the messages of one prompt
        texts = all(isinstance(x, str) and x.strip() for x in items)
        if not texts and not all(isinstance(x, list) and x for x in items):
            return None
    sizes = {key: len(column) for key, column in value.items()}
    listed = ", ".join(f"{key}: {size}" for key, size in sizes.items())[:200]
    got = f"{name}: got columns of unequal length ({listed})"
    need(len({*sizes.values()}) == 1, f"{got}; expected one value for each row; try JSONL, one object a line")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def with_chats(row: dict) -> dict:
    """The row with chat messages parsed where a cell has their JSON text; other texts stay.

    RowFlaw if such JSON is broken, or is Python's repr.
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
                continue  # messages followed by other text
            got = f"chat messages as Python prints them, {text[:40]!r}" if start[1] == "'" else f"broken JSON ({error})"
            advice = "json.dumps for the column, or pandas' to_json(FILE, orient='records', lines=True) for all"
            raise RowFlaw(name, got, "a list of messages, or its JSON text", advice) from None
        messages = [messages] if isinstance(messages, dict) else messages
        pairs = ({"role", "content"}, {"from", "value"})
        if all(isinstance(m, dict) and any(pair <= m.keys() for pair in pairs) for m in messages):
            chats[name] = messages
    return {**row, **chats} if chats else row


def holds_answer(text) -> bool:
    """Whether a value is a dialogue in one text that ends with an answer, such as `### Human: … ### Assistant: …`."""
    lower = text.lower() if isinstance(text, str) else ""
    marks = list(SPEAKER.finditer(text)) if any(word in lower for word in ANSWERERS) else []
    if len(marks) < 2 or BEGUN.search(text[-200:]):
        return False
    first, last = (next(filter(None, mark.groups())).lower() for mark in (marks[0], marks[-1]))
    preface = TURN_ENDS.sub("", text[: marks[0].start()]).strip()
    begins = first not in ANSWERERS and (not preface or preface.startswith("Below is an instruction"))  # Alpaca's
    return begins and last in ANSWERERS and TURN_ENDS.sub("", text[marks[-1].end() :]).strip() != ""


def turns_in(text: str) -> list[dict] | None:
    """The messages of an HH-RLHF dialogue, `\\n\\nHuman: … \\n\\nAssistant: …`; None for other texts."""
    above, *pieces = TURN.split(text)
    if above.strip() or "Assistant" not in pieces[::2] or pieces[0] == "Assistant":
        return None
    turns = []
    for speaker, content in zip(pieces[::2], pieces[1::2], strict=True):
        role = "user" if speaker == "Human" else "assistant"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n\n{content.strip()}"
        else:
            turns.append({"role": role, "content": content.strip()})
    return turns
