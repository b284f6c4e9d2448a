"""Chat messages, passages that a question is about, and media, which are refused."""

import itertools
import re

from parts.data.nested_rows import VISIBLE, holds_answer, turns_in
from parts.data.question_parts import (
    MARKS,
    MEDIA,
    MISSING_TEXT,
    READ_FIRST,
    SHORT_NOTES,
    head_of,
    is_empty,
    is_media,
    names_part,
    squeezed,
    texts_in,
    words_in,
)
from programs.data_loader.bad_rows import BadRow, opened, shown

ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response"), "tool"),
}
SIDES = {"human": "user", "user": "user", "input": "user", "assistant": "assistant", "output": "assistant"}
TEXT_PARTS = ("text", "input_text", "output_text")
ENDINGS = "png|jpe?g|gif|webp|bmp|tiff?|svg|mp[34]|wav|flac|ogg|webm|mov|avi|mkv"
PLACES = re.compile(rf"(?i)data:|https?://|[^\n]+\.({ENDINGS})\Z|[\w+/=]{{60}}")  # a URL, a file, base64
# {role: roles that it may follow; None: the beginning}
MAY_FOLLOW = {
    "system": (None,),
    "developer": (None, "system"),
    "user": (None, "system", "developer", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
LONG_NAMES = ("context", "passage", "article", "document", "story", "paragraph", "schema", "table")
STATES = re.compile(r"\w\s*[=+]\s*\w|[^\W\d_]{2}[.!?][\"'”]?(\s|\Z)|[。！？]")  # a sentence or an equation
# a URL, or the name of a file in at most four words
LOCATION = re.compile(r"(?i)https?://\S+|([\w./\\-]+ ){0,3}[\w./\\-]+\.(pdf|docx?|txt|html?|md|csv|json|xlsx?)")
MAY_SOLVE = {"code", "test", "target"}  # words of columns that may hold the solution, as DS-1000's code_context does
TEXT_KEYS = ("text", "contexts", "sentences", "paragraphs", "passages", "paragraph_text", "passage_text", "content")
ANSWER_MARK = re.compile(r"(?i)\b(?:output|response|answer|assistant|solution|completion)\W*[:>\n]\W*\Z")


def read_messages(value, name: str) -> list[dict]:
    """Messages of OpenAI's or ShareGPT's form as {"role", "content", …}, without an empty system message."""
    if not isinstance(value, list) or not value:
        raise BadRow(name, shown(value), "a non-empty list of messages")
    if len(value) == 1 and isinstance(value[0], list) and isinstance(next(iter(value[0]), None), dict):  # BFCL's
        raise BadRow(name, "a list inside a list", "a list of messages", f"--map {name}={name}.0")
    first = int(len(value) > 1 and is_empty_turn(value[0], "system"))
    messages = []
    for number, raw in enumerate(value[first:], start=first):
        known = {role: raw[key] for key, role in SIDES.items() if isinstance(raw, dict) and key in raw}
        is_pair = [*known] == ["user", "assistant"] and len(raw) == 2  # a user's turn and its reply in one object
        turns = [{"role": role, "content": text} for role, text in known.items()] if is_pair else [raw]
        messages += [read_message(turn, f"{name}[{number}]") for turn in turns]
    return messages


def read_message(raw, name: str) -> dict:
    """One chat message as {"role", "content"} and its further keys that are not empty (tool_calls, name, …)."""
    if not isinstance(raw, dict):
        raise BadRow(name, shown(raw), 'a message such as {"role": "user", "content": "…"}')
    speaker, text = ("role", "content") if "role" in raw else ("from", "value")
    role = raw.get(speaker)
    known = ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    if known is None:
        got = f"role {shown(role)}" if speaker in raw else f"the keys {', '.join(raw) or 'none'}"
        raise BadRow(name, got, f"one of {', '.join(sorted(ROLES))}", "renaming the role")
    content, calls = raw.get(text), raw.get("tool_calls") or raw.get("function_call")
    content = join_parts(content, name) if isinstance(content, list) else content
    content = "" if content is None and calls else content
    if not isinstance(content, str):
        raise BadRow(name, f"{text} {shown(content)}", "text, or a list of text parts")
    if not VISIBLE.search(content) and not calls and known != "tool":
        raise BadRow(name, f"empty content of role {known}", "text")
    if column := media_column(raw, content) if len(raw) > 2 else None:
        raise BadRow(f"{name}.{column}", shown(raw[column]), "text only", "leaving out rows with media")
    more = {key: item for key, item in raw.items() if key not in (speaker, text) and item not in (None, [], {})}
    if clash := {"role", "content"} & set(more):
        raise BadRow(name, f"{', '.join(sorted(clash))} beside from and value", "one form of message")
    return {"role": known, "content": content, **more}


def join_parts(parts: list, name: str) -> str:
    """The text of content parts, joined without separators, as chat templates do.

    Parts are OpenAI's {"type": "text", "text"} or LLaMA-Factory's {"type": "text", "value"}.
    """
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else part
        texts.append(part.get("text", part.get("value")) if isinstance(part, dict) and kind in TEXT_PARTS else None)
        if not isinstance(texts[-1], str):
            advice = "`tool_calls` and messages of the role tool for calls, or leaving out rows with media"
            raise BadRow(name, f"a content part {shown(kind)}", "text parts only", advice)
    return "".join(texts)


def is_empty_turn(turn, role: str) -> bool:
    """Whether a raw message has a role and no content."""
    by_role = isinstance(turn, dict) and ROLES.get(str(turn.get("role", turn.get("from")))) == role
    return by_role and all(is_empty(item) for key, item in turn.items() if key not in ("role", "from"))


def without_placeholder(value):
    """Raw messages without an empty last assistant turn, which stands for the completion."""
    return value[:-1] if isinstance(value, list) and value[1:] and is_empty_turn(value[-1], "assistant") else value


def check_order(messages: list[dict], name: str, before: str | None = None) -> None:
    """Raise BadRow if a role cannot follow the one before it in chat templates; `before`: role before the first."""
    for number, message in enumerate(messages):
        role = message["role"]
        if before not in MAY_FOLLOW[role]:
            after = f"after {before}" if before else "at the beginning"
            wanted = [other for other, roles in MAY_FOLLOW.items() if before in roles]
            raise BadRow(f"{name}[{number}]", f"role {role} {after}", " or ".join(wanted), "reordering the turns")
        before = role


def as_prompt(value, name: str, system=None) -> list[dict]:
    """A prompt, text or messages, as messages that end with user or tool."""
    if isinstance(value, str):
        if not VISIBLE.search(value):
            raise BadRow(name, "an empty prompt", "text")
        if holds_answer(value):
            raise BadRow(name, "a dialogue as one text, answers included", "a list of turns in `messages`")
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, list) and value:
        messages = read_messages(without_placeholder(value), name)
    else:
        advice = [f"--map prompt={name}.FIELD"] if isinstance(value, dict) and value else []
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or a list of messages", *advice)
    if system is not None:
        if not isinstance(system, str):
            raise BadRow("system", shown(system), "text")
        if system.strip() and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": system}, *messages]
    check_order(messages, name)
    if messages[-1]["role"] not in ("user", "tool"):
        advice = "renaming the field to `messages`, or moving the last turn to `completion`"
        more = "; to have the model continue that turn, give the file to the trainer as it is"
        raise BadRow(name, f"last role {messages[-1]['role']}", "a prompt that ends with user or tool", advice + more)
    return messages


def as_reply(value, name: str, prompt: list[dict]) -> str | list[dict]:
    """A completion: text, or messages that continue the prompt; if they repeat the prompt, it is cut off."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(name, "an empty text", "a completion")
        return value
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or messages")
    messages = read_messages(value, name)
    if len(messages) > len(prompt) and messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    check_order(messages, name, prompt[-1]["role"])
    if messages[-1]["role"] != "assistant":
        raise BadRow(name, f"last role {messages[-1]['role']}", "assistant as the last role")
    return messages


def check_completion(row: dict, asked: str, completion: str | list[dict]) -> None:
    """Raise BadRow for a completion with a truth value for good or bad, as KTO has, or that the prompt contains."""
    kto = [name for name in ("label", "kto_tag") if str(row.get(name)).lower() in ("true", "false", "1", "0")]
    wrong = [name for name in ("correct", "is_correct") if str(row.get(name)).lower() == "false"]
    for name in kto or wrong:
        expected = "right completions only, or pairs of chosen and rejected"
        advice = "TRL's KTOTrainer, which reads such rows as they are" if kto else "--on_bad skip"
        advice += f", or --drop {name} to take all as right"
        raise BadRow(name, f"{row[name]} beside a completion", expected, advice)
    if ends_with(asked, completion if isinstance(completion, str) else completion[-1]["content"]):
        advice = "--drop prompt if other columns hold the question, or cutting it off"
        raise BadRow("prompt", f"{shown(asked[-60:])}, which ends with the completion", "the question alone", advice)


def ends_with(asked: str, reply: str) -> bool:
    """Whether a prompt ends with a reply, after a word such as `Answer:`."""
    before = asked.rstrip().removesuffix(reply.strip())
    return reply.strip() != "" and before != asked.rstrip() and ANSWER_MARK.search(before) is not None


def media_column(row: dict, text: str = "") -> str | None:
    """The first column with an image, video or audio: an object, a path, a URL, base64, or a list of these; or None.

    If the text has a placeholder such as `<image>`, any value in a column of such a name counts.
    """
    placed = MARKS.search(text) is not None
    for name, value in row.items():
        stem = (words_in(name) or [""])[0].removesuffix("s")  # not a column about another thing's picture
        named = (stem in MEDIA | {"decoded"} and is_media(name)) or name in ("multi_modal_data", "pixel_values")
        items = [item for item in (value if isinstance(value, list) else [value]) if item not in (None, "", [], {})]
        if named and value and any(placed or isinstance(x, dict | list) or PLACES.match(str(x)) for x in items):
            return name
    return None


def passages_before(row: dict, question: str, names: list[str], mapped: frozenset[str]) -> dict[str, str]:
    """{column: text} of passages to put before a question that does not quote them; BadRow for an unreadable one."""
    texts, asked = {}, squeezed(question)
    filled = [name for name in names if not is_empty(row[name])]
    passages = [name for name in READ_FIRST if name in filled]
    if "hint" in filled and "lecture" in row:  # ScienceQA's
        passages.append("hint")
    longer = [name for name in filled if names_part(name) and head_of(name) in LONG_NAMES]
    if not passages and len(longer) == 1 and not MAY_SOLVE & {*words_in(longer[0])}:
        passages = longer  # such as flores_passage; several might include distractors
    for name in passages:
        text, cell = passage(row[name]), opened(row[name])
        if name.startswith("table") and isinstance(row[name], list) and all(isinstance(x, dict) for x in row[name]):
            header = [*dict.fromkeys(key for item in row[name] for key in item)]
            text = table([header, *([item.get(key, "") for key in header] for item in row[name])])
        if isinstance(row[name], str) and isinstance(cell, list) and "json" not in question.lower():  # 2Wiki's
            documents = passage(cell) if any(isinstance(part, dict) or is_titled(part) for part in cell) else None
            text = documents if documents and all(part.strip() in documents for part in texts_in(cell)) else text
        if name not in mapped and (not text or MISSING_TEXT.fullmatch(text) or LOCATION.fullmatch(text.strip())):
            continue
        if text is None:
            expected = "text, texts, a table, or {title, text} with any of these"
            raise BadRow(name, shown(row[name]), expected, f"--map {name}=COLUMN.FIELD, or --drop COLUMN")
        words = {*re.findall(r"[^\W\d_]+", text.lower())} - {"the", "a", "an", name, name.removesuffix("s")}
        if name in SHORT_NOTES and name not in mapped and len(words) < 3 and not STATES.search(text):
            continue  # a puzzle's name or a drawn grid
        if text.strip() and not all(squeezed(part) in asked for part in texts_in(row[name])):
            texts[name] = text
    return texts


def passage(value) -> str | None:
    """The text of a passage, a list of passages, titled documents or a table; None for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return document(value)
    if not isinstance(value, list) or not value:
        return None
    if all(map(is_titled, value)):  # HotpotQA's file
        value = [{"title": title, "sentences": texts} for title, texts in value]
    if isinstance(value[0], list):
        return table(value)
    texts = [*map(passage, value)]
    return None if None in texts else "\n\n".join(text for text in texts if text.strip())


def is_titled(pair) -> bool:
    """Whether a value is [title, sentences]."""
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list)


def document(value: dict) -> str | None:
    """The text of an object with title and text, lists of these (HotpotQA), texts (PubMedQA), or header and rows."""
    header, rows = value.get("header", value.get("columns")), value.get("rows", value.get("data"))
    if isinstance(header, list) and isinstance(rows, list):
        return table([header, *rows])
    key = next((key for key in TEXT_KEYS if not is_empty(value.get(key))), "")
    title, text = value.get("title", ""), value.get(key)
    if "role" in value or not key:  # a chat is no passage
        return None
    if isinstance(title, list) and isinstance(text, list) and len(title) == len(text):
        return passage([{"title": head, "sentences": body} for head, body in zip(title, text, strict=True)])
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = (" " if key == "sentences" else "\n\n").join(part.strip() for part in text if part.strip())
    if not isinstance(text, str) or not isinstance(title, str):
        return None
    return f"{title}\n{text}" if title.strip() else text


def table(rows: list) -> str | None:
    """Rows of cells as lines with | between cells; None if a cell is not plain."""
    cells = [cell for row in rows if isinstance(row, list) for cell in row]
    if not all(isinstance(row, list) for row in rows) or not all(
        isinstance(c, str | int | float | None) for c in cells
    ):
        return None
    return "\n".join(" | ".join("" if cell is None else str(cell) for cell in row) for row in rows)


def split_prompt(chosen, rejected) -> tuple:
    """(Prompt, chosen, rejected) messages of two dialogues that begin alike, as messages or HH-RLHF's text."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        texts, (chosen, rejected) = (chosen, rejected), map(turns_in, (chosen, rejected))
        if not chosen or not rejected:
            expected = "a field `prompt` beside it, or turns `\\n\\nHuman: …\\n\\nAssistant: …`"
            raise BadRow("chosen", shown(texts[0]), expected, "--map prompt=COLUMN")
    chosen, rejected = read_messages(chosen, "chosen"), read_messages(rejected, "rejected")
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    same = min(same, len(chosen) - 1, len(rejected) - 1)
    while same and chosen[same - 1]["role"] not in ("user", "tool"):
        same -= 1
    if not same:
        advice = "leaving out the row, or --map prompt=COLUMN where a column has the prompt"
        raise BadRow("chosen", "no prompt", "a field `prompt`, or dialogues that begin alike", advice)
    return chosen[:same], chosen[same:], rejected[same:]
