"""Chat templates: their settings, strings as user turns, and what passes a template by."""

import json
from pathlib import Path

from parts.bundle import EMBEDDED_DATA, EMBEDDED_EVAL, EMBEDDED_MODEL
from parts.messages import need, say


def template_settings(config) -> dict:
    """--chat_template_kwargs as a dict."""
    try:
        found = json.loads(config.chat_template_kwargs or "{}")
    except ValueError:
        found = None
    kept = {"tokenize", "return_dict", "add_generation_prompt", "continue_final_message", "chat_template"}
    need(
        isinstance(found, dict) and not kept & {*found},
        f"got chat_template_kwargs {config.chat_template_kwargs!r}; expected a JSON object of the template's own "
        """settings; try '{"enable_thinking": false}'""",
    )
    return found


def template_text(file: str) -> str:
    """The chat template in a file."""
    need(Path(file).is_file(), f"got chat_template {file!r}, which is no file; expected one with a Jinja template")
    return Path(file).read_text(encoding="utf-8")


def give_template(tokenizer, file: str) -> None:
    """Put the chat template of a file into a tokenizer; nothing for an empty name."""
    if file:
        tokenizer.chat_template = template_text(file)


def as_turns(prompt, chat: bool):
    """The prompt as it is sent: with --chat, a string is a user's turn."""
    return [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt


def strings_past_template(config, tokenizer, prompts: list) -> int:
    """How many prompts are strings that bypass the model's chat template."""
    if config.chat or not tokenizer.chat_template:
        return 0
    return sum(isinstance(prompt, str) for prompt in prompts)


def check_template(config, tokenizer, source: str, prompts: list) -> None:
    """Say how many string prompts bypass the chat template; raise UserError where --chat finds none."""
    has = f"got --chat, but the tokenizer of {config.model!r} has no chat template; expected one"
    need(tokenizer.chat_template or not config.chat, f"{has}; try --chat_template FILE, or an instruct model")
    strings = strings_past_template(config, tokenizer, prompts)
    ours = source in (EMBEDDED_DATA, EMBEDDED_EVAL) and config.model == EMBEDDED_MODEL
    if strings and not ours:
        say(
            f"warning: {source}: {strings} of {len(prompts)} prompts are strings, which bypass the chat template of "
            f"{config.model}: right for a base model, but an instruct model rarely answers, and rewards stay near 0; "
            "try --chat"
        )
