"""The chat template that gives verl our token ids."""

import contextlib
import json
from pathlib import Path

from parts.data.chat import template_text
from parts.data.rows import hub_is_reached
from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import need, say


def own_template(model: str) -> bool:
    """Whether a model brings a chat template; a hub id is taken to."""
    folder = Path(model)
    if not folder.is_dir() or (folder / "chat_template.jinja").exists():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and bool(json.loads(settings.read_text(encoding="utf-8")).get("chat_template"))


def plain_text_template(model: str) -> str:
    """A template that writes text as it is, after the start token that the tokenizer puts before plain text."""
    start = ""
    with contextlib.suppress(OSError, ValueError):
        from transformers import AutoTokenizer

        if not Path(model).is_dir():
            hub_is_reached()  # or its client would try again for a minute
        tokenizer = AutoTokenizer.from_pretrained(model)
        start = "{{ bos_token }}" if tokenizer("x").input_ids[0] == tokenizer.bos_token_id is not None else ""
    return start + "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def chat_template(model: str, rows: list[dict], chat: bool = False, file: str = "") -> str | None:
    """The chat template that gives verl our token ids: that of --chat_template, or where prompts are plain text."""
    is_text = {row["extra_info"].get("prompt_is_text", False) for row in rows}
    need(chat or len(is_text) == 1, "got prompts of both kinds, text and chat messages; expected one kind with verl")
    has_template = file or own_template(model)
    has = f"got --chat, but {model!r} has no chat template; expected one; try --chat_template FILE"
    need(has_template or not chat, has)
    if is_text == {True} and not chat:
        if has_template and model != EMBEDDED_MODEL:
            say(
                f"warning: {len(rows)} prompts are strings, which bypass the chat template of {model}: right for a "
                "base model, but an instruct model rarely answers, and rewards stay near 0; try --chat"
            )
        return plain_text_template(model)
    if file:
        return template_text(file)
    if has_template:
        return None
    say("warning: chat prompts, but the tokenizer has no chat template: messages are joined by newlines")
    return "{% for message in messages %}{{ message['content'] }}{{ '\\n' }}{% endfor %}"
