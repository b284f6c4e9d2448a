"""Render messages so that their text never becomes control tokens, for versions of transformers that do not ensure it.

Newer versions take `apply_chat_template(…, sanitize_control_tokens=True)`; 5.10, which verl 0.9.1 needs, passes that
argument to the template, which ignores it. This room gives the same token ids: it marks control tokens in messages and
tools, renders the template, and encodes marked text by the tokenizer's model alone, without added tokens.
"""

import inspect
import re

OPENS, CLOSES = "\U000f0000", "\U000f0001"  # private-use characters around control tokens in messages


def sanitizes(tokenizer) -> bool:
    """Whether a tokenizer's `apply_chat_template` can keep control tokens out of messages by itself."""
    return "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters


def control_tokens(tokenizer, template: str) -> list[str]:
    """Tokens that messages must not produce, longest first: special ones, and added ones that the template writes."""
    added = tokenizer.added_tokens_decoder.values()
    written = {t.content for t in added if t.special or (t.content in template and not t.content.isspace())}
    return sorted(written, key=len, reverse=True)


def sanitized_ids(tokenizer, messages: list[dict], tools: list[dict] | None, **given) -> list[int]:
    """Token ids of a conversation; control tokens in its messages and tools are encoded as plain letters.

    Raises:
        ValueError: the tokenizer encodes the letters as the control token nevertheless.
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
    # text, marked token, text, …; a marked token is None for a lone mark, whose partner the template has cut off
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
    """Token ids of text within a conversation, encoded after a newline, as SentencePiece adds a space at a start."""

    def encoded(text: str) -> list[int]:
        return letter_ids(tokenizer, text) if as_letters else tokenizer.encode(text, add_special_tokens=False)

    newline = tokenizer.encode("\n", add_special_tokens=False)
    ids = encoded("\n" + piece)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encoded(piece)


def letter_ids(tokenizer, text: str) -> list[int]:
    """Token ids of text by the tokenizer's model alone, without recognising added tokens."""
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
    return [token.id for word in words for token in backend.model.tokenize(word)]
