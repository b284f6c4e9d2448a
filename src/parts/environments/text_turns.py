"""Plain-text conversations: a stand-in for tokenizer and chat template when no local model samples."""


class TextTurns:
    """Stands in for a tokenizer and a TurnBridge: every text is one token, and no template is needed."""

    eos_token_id, pad_token_id, end_ids, settings = 0, 0, (0,), None

    def __init__(self):
        self.tokenizer, self.texts, self.begun = self, [""], {}

    def encode(self, text: str) -> list[int]:
        """[a new token for a text]."""
        self.texts.append(text)
        return [len(self.texts) - 1]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """The joined texts of tokens."""
        return "".join(self.texts[i] for i in ids)

    def render(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """[the token of a prompt]; `begun` keeps its list of messages, to which `play` appends later ones."""
        ids = self.encode("\n".join(message["content"] for message in messages))
        self.begun[ids[0]] = messages
        return ids

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        """[the token of the messages between two answers]."""
        return self.encode("\n".join(reply["content"] for reply in replies))

    def ends(self, ids: list[int]) -> bool:
        """Whether an answer was not cut off: always true here."""
        return True
