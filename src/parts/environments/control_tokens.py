"""Render messages so that nothing in them becomes a control token, where transformers does not ensure it.

Newer ones take `apply_chat_template(…, sanitize_control_tokens=True)`; 5.10, which verl 0.9.1 wants, hands the word on
to the template and does nothing. What is done here is the same, to the token: control tokens in messages and tools are
marked, the template is rendered, and what is marked is encoded by the tokenizer's model alone, without added tokens.
"""

import inspect
import re

OPENS, CLOSES = "\U000f0000", "\U000f0001"  # of private use: around control tokens in messages


def sanitizes(tokenizer) -> bool:
    """Whether a tokenizer's own `apply_chat_template` keeps control tokens out of messages."""
    return "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters


def control_tokens(tokenizer, template: str) -> list[str]:
    """Tokens that messages may not write, the longest first: special ones, and added ones that the template writes."""
    added = tokenizer.added_tokens_decoder.values()
    written = {t.content for t in added if t.special or (t.content in template and not t.content.isspace())}
    return sorted(written, key=len, reverse=True)


def sanitized_ids(tokenizer, messages: list[dict], tools: list[dict] | None, **given) -> list[int]:
    """Token ids of a conversation; what looks like a control token in it is encoded as the letters it is written with.

    Raises:
        ValueError: the tokenizer reads a control token in any text.
    """
    template = tokenizer.get_chat_template(given.get("chat_template"), tools)
    tokens = "|".join(map(re.escape, control_tokens(tokenizer, template))) or "(?!)"

    def marked(value):
        if isinstance(value, str):
            return re.sub(tokens, rf"{OPENS}\g<0>{CLOSES}", value.replace(OPENS, "").replace(CLOSES, ""))
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list | tuple) else value

    text = tokenizer.apply_chat_template(marked(messages), tools=marked(tools), tokenize=False, **given)
    # text, a marked token, text, …; None stands for a lone mark, whose fellow the template has cut away
    first, *rest = re.split(f"{OPENS}({tokens}){CLOSES}|[{OPENS}{CLOSES}]", text)
    ids = tokenizer.encode(first, add_special_tokens=False)
    for i, piece in enumerate(rest):
        as_letters = i % 2 == 0
        encoded = piece_ids(tokenizer, piece, as_letters) if piece else []
        if as_letters and piece and tokenizer.convert_tokens_to_ids(piece) in encoded:
            raise ValueError(f"got {piece!r} in a message, which the tokenizer reads as a token in any text")
        ids += encoded
    return ids


def piece_ids(tokenizer, piece: str, as_letters: bool) -> list[int]:
    """Token ids of text within a conversation: after a newline, as SentencePiece puts a space before a beginning."""

    def encoded(text: str) -> list[int]:
        return letter_ids(tokenizer, text) if as_letters else tokenizer.encode(text, add_special_tokens=False)

    newline = tokenizer.encode("\n", add_special_tokens=False)
    ids = encoded("\n" + piece)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encoded(piece)


def letter_ids(tokenizer, text: str) -> list[int]:
    """Token ids of text by the tokenizer's model alone: no added token is looked for."""
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
    return [token.id for word in words for token in backend.model.tokenize(word)]
