"""Shots, templates, encoding."""

from parts.data.chat import chat_text, joined_text
from parts.data.prompts import encode_text
from parts.foundation.messages import UserError
from parts.rewards.user_code import user_text
from programs.evaluation.settings import Config
from programs.evaluation.tasks import Task


def add_shots(task: Task, question, shots: list[tuple], config: Config, chat: bool):
    """The prompt with system prompt and worked examples: chat messages with a template, text without."""
    system = config.system_prompt
    as_text = [(user_text(q) if isinstance(q, list) else q, answer) for q, answer in shots]
    if not chat:
        if isinstance(question, list):  # the form that trainers give to a chat without a template
            question = joined_text(question)
        worked = "".join(f"{q} {answer}\n\n" for q, answer in as_text)
        return (f"{system}\n\n" if system else "") + worked + question
    messages = [dict(m) for m in question] if isinstance(question, list) else [{"role": "user", "content": question}]
    has_system = messages[0]["role"] == "system"
    head = [messages.pop(0)] if has_system else [{"role": "system", "content": system}] if system else []
    if config.fewshot_as_turns:
        for q, answer in as_text:
            head += [{"role": "user", "content": q}, {"role": "assistant", "content": answer}]
    elif shots:
        messages[0]["content"] = "".join(f"{q} {answer}\n\n" for q, answer in as_text) + messages[0]["content"]
    return head + messages


def render(tokenizer, prompt, **template) -> str:
    """The text of chat messages by the chat template, up to where the model writes; text as it is."""
    if isinstance(prompt, str):
        return prompt
    try:
        return chat_text(tokenizer, prompt, **template)
    except Exception as error:  # a template raises what it likes, such as "system role not supported"
        raise UserError(f"got a prompt that the template refuses ({error}); try --chat_template off") from error


def encode_rendered(tokenizer, prompt, **template) -> list[int]:
    """Token ids of a prompt; the template of chat messages brings its own special tokens."""
    text = render(tokenizer, prompt, **template)
    return encode_text(tokenizer, text) if isinstance(prompt, str) else tokenizer.encode(text, add_special_tokens=False)


def encode_pair(tokenizer, prompt, choice: str, **template) -> tuple[list[int], list[int]]:
    """(context, continuation) ids; spaces between them belong to the continuation, as tokenizers have them."""
    text = render(tokenizer, prompt, **template)
    choice = choice if isinstance(prompt, list) else f" {choice}"
    context = text.rstrip()
    if isinstance(prompt, list):
        whole, before = (tokenizer.encode(part, add_special_tokens=False) for part in (text + choice, context))
    else:
        whole, before = encode_text(tokenizer, text + choice), encode_text(tokenizer, context)
    return before, whole[len(before) :]
