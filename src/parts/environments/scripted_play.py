"""Scripted conversations: plain texts in place of tokenizer, chat template and sampler."""

from parts.environments.conversations import PlayLimits, PlaySetup
from parts.environments.environments import Environments


class TextTurns:
    """Stands in for a tokenizer and a TurnBridge: every text is one token, and no template is needed."""

    eos_token_id, pad_token_id, end_ids, settings = 0, 0, (0,), None

    def __init__(self):
        self.tokenizer, self.texts, self.begun = self, [""], {}

    def encode(self, text: str) -> list[int]:
        self.texts.append(text)
        return [len(self.texts) - 1]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(self.texts[i] for i in ids)

    def render(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """[the token of a prompt]; `begun` keeps its list of messages, to which `play` appends later ones."""
        ids = self.encode("\n".join(message["content"] for message in messages))
        self.begun[ids[0]] = messages
        return ids

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        return self.encode("\n".join(reply["content"] for reply in replies))

    def ends(self, ids: list[int]) -> bool:
        return True


class ScriptedPlayer:
    """Gives the answers of each row's script, in place of a sampler."""

    def __init__(self, environments: Environments, rows: list[dict], scripts: list[list[str]], limits: PlayLimits):
        self.rows, self.scripts, self.turns, self.texts = rows, scripts, [0] * len(rows), TextTurns()
        self.setup = PlaySetup(environments, self.texts, "hermes", limits)
        self.late = str({"error": f"no answer in {limits.seconds:g} s"})  # what a tool that hangs returns

    def say(self, number: int, messages: list[dict] = ()) -> list[int]:
        """Token ids of a conversation's next answer, with the end token 0; `messages`: those so far."""
        script, turn, row = self.scripts[number], self.turns[number], self.rows[number]
        self.turns[number] += 1
        further = script[-1] if self.setup.environments.kind_of(row["columns"]).talks else ""
        answer = script[turn] if turn < len(script) else further
        if any(message["content"] == self.late for message in messages if message["role"] == "tool"):
            answer = ""  # no more calls: each would wait for the time limit again
        return [*self.texts.encode(answer), 0]

    def sample(self, prompts: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        begun = [self.texts.begun[ids[0]] for ids in prompts]
        return [(self.say(number, messages), [0.0, 0.0]) for number, messages in zip(numbers, begun, strict=True)]

    def continued(self, prompts: list[list[int]]) -> list[list[int]]:
        """The next answer to each prompt [ids]; conversations begin in the order of the rows."""
        begun = list(self.texts.begun)
        return [self.say(begun.index(ids[0])) for ids in prompts]
