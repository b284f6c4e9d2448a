"""Chat templates: their settings, rendering messages, and prompts that bypass a template or are already rendered."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_EVAL, EMBEDDED_MODEL
from parts.foundation.messages import need, say, say_once


def template_settings(config) -> dict:
    """--chat_template_kwargs as a dict."""
    try:
        settings = json.loads(config.chat_template_kwargs or "{}")
    except ValueError:
        settings = None
    kept = {"tokenize", "return_dict", "add_generation_prompt", "continue_final_message", "chat_template"}
    got = f"got chat_template_kwargs {config.chat_template_kwargs!r}"
    expected = """expected a JSON object of the template's own settings; try '{"enable_thinking": false}'"""
    need(isinstance(settings, dict) and not kept & {*settings}, f"{got}; {expected}")
    return settings


def template_text(file: str) -> str:
    need(Path(file).is_file(), f"got chat_template {file!r}, which is not a file; expected a Jinja template")
    return Path(file).read_text(encoding="utf-8")


def give_template(tokenizer, file: str) -> None:
    """Set a tokenizer's chat template from a file; "" changes nothing."""
    if file:
        tokenizer.chat_template = template_text(file)


def as_turns(prompt, chat: bool):
    """The prompt as messages: with --chat, a string becomes a user turn; other prompts stay as they are."""
    return [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt


def as_object(arguments):
    """A tool call's arguments as an object, if they are one or its JSON text; else unchanged."""
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def as_json(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def recast(form: Callable, call):
    """Convert the arguments of one or more tool calls by `form`: `as_object` or `as_json`."""
    if isinstance(call, dict):
        return {key: form(value) if key == "arguments" else recast(form, value) for key, value in call.items()}
    return [recast(form, one) for one in call] if isinstance(call, list) else call


def with_arguments(form: Callable, messages: list[dict]) -> list[dict]:
    """Messages with tool arguments converted by `form`, without empty lists of calls (Llama reads them as a call)."""
    kept = [m if m.get("tool_calls", True) else {key: m[key] for key in m if key != "tool_calls"} for m in messages]
    return [m | {"tool_calls": recast(form, m["tool_calls"])} if "tool_calls" in m else m for m in kept]


def write_chat(tokenizer, messages: list[dict], **given) -> str:
    """Render messages by `apply_chat_template`, with tool arguments as objects or JSON text, whichever it needs.

    Most templates encode objects as JSON and would encode OpenAI's JSON text twice. DeepSeek's need text, and templates
    that print their input would write objects as Python does. ValueError if arguments are not a JSON object.
    """
    objects = with_arguments(as_object, messages)
    calls = [call.get("function", call) for message in objects for call in message.get("tool_calls") or ()]
    arguments, given["tokenize"] = [call["arguments"] for call in calls if call.get("arguments")], False
    for odd in (value for value in arguments if not isinstance(value, dict)):
        raise ValueError(f"the arguments of a tool call are {str(odd)[:80]!r}, not a JSON object")
    try:
        text = tokenizer.apply_chat_template(objects, **given)
        if not any(str(value) in text for value in arguments):
            return text
    except TypeError:
        if not arguments:
            raise
    return tokenizer.apply_chat_template(with_arguments(as_json, messages), **given)


def chat_text(tokenizer, messages: list[dict], **template) -> str:
    """Render a prompt up to where the model writes: in a new turn, or at the end of a last assistant turn.

    ValueError if the template changes the text of that assistant turn, or if the turn calls a tool.
    """
    text = messages[-1]["content"]
    if messages[-1]["role"] != "assistant":
        return write_chat(tokenizer, messages, add_generation_prompt=True, **template)
    if messages[-1].get("tool_calls"):
        raise ValueError("it ends in a tool call without its result")
    if not text.strip():  # an empty assistant turn only marks where the answer goes
        return write_chat(tokenizer, messages[:-1], add_generation_prompt=True, **template) + text
    try:
        whole = write_chat(tokenizer, messages, continue_final_message=True, **template)
    except ValueError:  # the rendering does not contain the turn's text
        whole = ""
    kept = next((part for part in (text, text.rstrip(), text.strip()) if whole.endswith(part)), None)
    if kept is None:
        raise ValueError(f"it does not keep the assistant's turn that ends the prompt, {text[-80:]!r}")
    begun = whole.removesuffix(kept)
    if text.lstrip().startswith("<think>"):  # Qwen3's template adds an empty thought to a turn without a closed one
        begun = re.sub(r"<think>\s*</think>\s*$", "", begun)
    return begun + text


def chat_ids(tokenizer, messages: list[dict], **template) -> list[int]:
    """Token ids of `chat_text`."""
    if messages[-1]["role"] == "assistant" or any(message.get("tool_calls") for message in messages):
        return list(tokenizer(chat_text(tokenizer, messages, **template), add_special_tokens=False).input_ids)
    given = {"add_generation_prompt": True, "return_dict": True, **template}
    return list(tokenizer.apply_chat_template(with_arguments(as_object, messages), **given)["input_ids"])


class TemplateForm:
    """The text that a chat template writes around a user's message; it identifies strings that are already rendered.

    A control token inside a text is not enough: people ask about `<|im_end|>`.
    """

    def __init__(self, tokenizer):
        try:
            text = write_chat(tokenizer, [{"role": "user", "content": "Question"}], add_generation_prompt=True)
        except Exception:  # templates may raise anything
            text = ""
        before, _, after = text.rpartition("Question")
        added = {token.content for token in tokenizer.added_tokens_decoder.values()} - {"<think>", "</think>"}
        self.tokens = tuple(token for token in added if token in text and token.strip())
        self.opening = tuple(token for token in self.tokens if token in before)
        # a closing as short as "Answer" also occurs in plain prompts
        self.closing = after.strip() if len(after.strip()) > len("Answer") else ""

    def holds(self, prompt) -> bool:
        """Whether a prompt is a string that begins or ends like the template's text."""
        if not isinstance(prompt, str):
            return False
        text = prompt.strip()
        if text.startswith(self.opening):
            return True
        return self.closing != "" and (text.endswith(self.closing) if self.opening else self.closing in text)


def strings_past_template(config, tokenizer, prompts: list) -> int:
    """Number of string prompts that bypass the model's chat template and are not already rendered."""
    if config.chat or not tokenizer.chat_template:
        return 0
    form = TemplateForm(tokenizer)
    return sum(isinstance(prompt, str) and not form.holds(prompt) for prompt in prompts)


def unread_messages(tokenizer, prompts: list, settings: dict) -> Iterator[dict]:
    """Yield system and user messages that the template leaves out; checks one prompt of each sequence of roles."""
    kinds = {tuple(message["role"] for message in prompt): prompt for prompt in prompts if not isinstance(prompt, str)}
    for messages in kinds.values() if tokenizer.chat_template else ():
        asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        text = write_chat(tokenizer, asked, add_generation_prompt=True, **settings) if asked else ""
        for i, message in enumerate(asked):
            longer = [*asked[:i], message | {"content": f"{message['content']} x"}, *asked[i + 1 :]]
            if message["role"] in ("system", "user"):
                with_more = write_chat(tokenizer, longer, add_generation_prompt=True, **settings)
                yield from [message] if with_more == text else ()


def warn_of_turn_end(tokenizer, ends: list[int]) -> None:
    """Warn if the chat template ends an answer with control tokens of which none ends a completion."""
    turns, closing = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}], ""
    with contextlib.suppress(Exception):  # no template, or one that raises something
        closing = write_chat(tokenizer, turns).rpartition("Answer")[2]
    control = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = [i for i in tokenizer(closing, add_special_tokens=False).input_ids if i in control]
    if ids and not {*ids} & {*ends}:
        got = f"the chat template ends an answer with {tokenizer.decode(ids[:1])!r}, no end token of the model"
        fix = f"a copy of the model with eos_token_id {sorted({*ends, ids[0]})} in generation_config.json"
        say_once(f"warning: {got}, so completions may go on past their turn; try {fix}")


def check_template(config, tokenizer, source: str, prompts: list) -> None:
    """Warn of string prompts that bypass the template; UserError if --chat finds no template, or rendered prompts."""
    if config.chat:
        has = f"got --chat, but the tokenizer of {config.model!r} has no chat template; expected one"
        need(tokenizer.chat_template, f"{has}; try --chat_template FILE, or an instruct model")
        form = TemplateForm(tokenizer)
        wrapped = [prompt for prompt in prompts if form.holds(prompt)]
        got = f"{len(wrapped)} of {len(prompts)} prompts already have the form of the chat template"
        got = f"{source}: got --chat, but {got}, such as {wrapped[:1]!r:.100}"
        need(not wrapped, f"{got}; expected plain text; try without --chat")
        tokens = [token for p in prompts if isinstance(p, str) for token in form.tokens if token in p]
        count = sum(isinstance(p, str) and any(token in p for token in form.tokens) for p in prompts)
        if tokens:
            got = f"{source}: {count} of {len(prompts)} prompts have control tokens such as {tokens[0]!r}"
            say(f"warning: {got}; the tokenizer encodes them as control tokens, not as text")
    if not tokenizer.chat_template and any(not isinstance(prompt, str) for prompt in prompts):
        say(f"warning: {source}: messages are joined by newlines, as {config.model} has no chat template")
    settings, template = template_settings(config), f"{source}: the chat template of {config.model}"
    if unread := [name for name in settings if name not in str(tokenizer.chat_template)]:
        say(f"warning: {template} does not read {', '.join(unread)}")
    for message in unread_messages(tokenizer, prompts, settings):
        say_once(f"warning: {template} leaves out {message['role']} messages; try --chat_template FILE")
    if "strftime_now" in str(tokenizer.chat_template) and "date_string" not in settings:
        fix = "--chat_template FILE, or a date_string in --chat_template_kwargs if it reads that"
        say(f"note: {template} may write today's date, so another day gives other prompts; try {fix}")
    strings = strings_past_template(config, tokenizer, prompts)
    ours = source in (EMBEDDED_DATA, EMBEDDED_EVAL) and config.model == EMBEDDED_MODEL
    if strings and not ours:
        got = f"{strings} of {len(prompts)} prompts are strings, which bypass the chat template of {config.model}"
        why = "right for a base model, but an instruct model rarely answers, and rewards stay near 0"
        say(f"warning: {source}: {got}: {why}; try --chat")


def joined_text(messages: list[dict]) -> str:
    """Chat messages as text, for a tokenizer without a chat template: contents joined by newlines."""
    end = "" if messages[-1]["role"] == "assistant" else "\n"
    return "\n".join(message["content"] for message in messages) + end
