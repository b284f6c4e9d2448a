"""Compute the tokens between turns from the chat template, so that sampled ids are never re-encoded.

A conversation consists of the first prompt's tokens and, in turn, the sampled tokens and those that the template writes
after them: the end of the assistant's turn if the answer was cut off, the environment's messages, and the start of the
next answer. The latter come from rendering a short stand-in conversation:

    rendered = [user: Question] [assistant: …] <end> [the environment's messages] [assistant:
                                                    ^ the tokens from here on

To find `<end>`, two conversations with different messages are rendered: their common prefix reaches up to the messages'
text. No text in a message becomes a control token: if a tool returns `<|im_end|>`, that is encoded as letters, not as
the end of a turn.

A template may rewrite earlier turns: drop thoughts, move the tools, or end a turn differently once others follow. Then
turn 2 does not continue turn 1, and training differs from serving. `check` therefore plays three turns and compares
each with the rendering of the whole conversation.
"""

import inspect
import re
import threading

from parts.data.chat import as_object, chat_text, with_arguments
from parts.environments.environments import Environments
from parts.foundation.messages import UserError, need, say

PROBE_TURNS = 3
KNOWN_RENDERINGS = 1000
OPENS, CLOSES = "\U000f0000", "\U000f0001"  # private-use characters around control tokens in messages


class TurnBridge:
    """Renders prompts and the tokens between turns.

    Args:
        tokenizer: one with a chat template.
        end_ids: tokens that end an answer.
        settings: the template's own settings, such as {"enable_thinking": False}.
        chat_template: replaces the tokenizer's template.
    """

    def __init__(self, tokenizer, end_ids: list[int], settings: dict | None = None, chat_template: str | None = None):
        need(
            tokenizer.chat_template or chat_template,
            "got a tokenizer without chat template; expected one; try --chat_template FILE",
        )
        self.tokenizer, self.end_ids, self.settings = tokenizer, {*end_ids}, {**(settings or {})}
        self.chat_template, self.rendered = chat_template, {}
        self.lock = threading.Lock()  # a tokenizer's backend fails if two threads use it at once
        # whether the installed transformers keeps control tokens out of messages by itself; 5.10, verl's, does not
        parameters = inspect.signature(tokenizer.apply_chat_template).parameters
        self.sanitizes = "sanitize_control_tokens" in parameters
        if chat_template:
            self.settings["chat_template"] = chat_template

    def render(self, messages: list[dict], tools: list[dict], guarded: bool = True) -> list[int]:
        """Token ids of messages and the start of the assistant's next answer.

        Args:
            guarded: encode control tokens in messages as letters.
        """
        messages = with_arguments(as_object, messages)
        if messages[-1]["role"] == "assistant":  # a turn that the data's prompt starts and the model continues
            return self.render(messages[:-1], tools, guarded) + self.begun_answer(messages, tools)
        given = {"tools": tools or None, "add_generation_prompt": True, **self.settings}  # some templates render [] too
        if not guarded:
            return list(self.tokenizer.apply_chat_template(messages, return_dict=True, **given)["input_ids"])
        key = (id(tools), repr(messages))  # a group's conversations start alike and often get equal messages
        with self.lock:
            if key not in self.rendered:
                if len(self.rendered) >= KNOWN_RENDERINGS:
                    self.rendered.clear()
                try:
                    ids = self.guarded(messages, given)
                except ValueError:
                    ids = self.guarded(self.parted(messages), given)
                self.rendered[key] = tools, ids  # keeps the tools alive, so that no other object gets their id
            return [*self.rendered[key][1]]

    def begun_answer(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """Token ids of the unfinished assistant turn that ends messages, without the turn's header."""
        given = {"tools": tools or None, **self.settings}
        before, whole = (chat_text(self.tokenizer, part, **given) for part in (messages[:-1], messages))
        if not whole.startswith(before):
            raise ValueError(f"it begins the assistant turn that ends the prompt in another way: {whole[-80:]!r}")
        return list(self.tokenizer(whole.removeprefix(before), add_special_tokens=False).input_ids)

    def guarded(self, messages: list[dict], given: dict) -> list[int]:
        """Token ids of messages, with control tokens in them encoded as letters."""
        if not self.sanitizes:
            return sanitized_ids(self.tokenizer, messages, **given)
        given = {**given, "sanitize_control_tokens": True, "return_dict": True}
        return list(self.tokenizer.apply_chat_template(messages, **given)["input_ids"])

    def parted(self, value):
        """Messages with a space inside control tokens (`< /s>`), for tokenizers that always recognise them."""
        if isinstance(value, dict):
            return {key: self.parted(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.parted(item) for item in value]
        for token in self.tokenizer.added_tokens_encoder if isinstance(value, str) else ():
            value = value.replace(token, f"{token[0]} {token[1:]}") if token.strip() else value
        return value

    def ends(self, ids: list[int]) -> bool:
        """Whether an answer ends with an end token, and was not cut off."""
        return bool(ids) and ids[-1] in self.end_ids

    def seam(
        self, before: list[dict], answer: dict, replies: list[dict], tools: list[dict], guarded: bool = True
    ) -> list[int]:
        """Token ids of the rendering up to the token that ends the answer; [] if the template writes none."""
        begins = len(self.render(before, tools, guarded))
        others = [[{**reply, "content": text} for reply in replies] for text in "01"]
        one, two = (self.render([*before, answer, *other], tools, guarded) for other in others)
        shared = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        places = [i for i in range(begins, shared) if one[i] in self.end_ids]
        return one[: places[-1] + 1] if places else []

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        """The tokens after an answer, up to the start of the next one.

        Args:
            last_id: the answer's last token; unless it ends the turn, the turn's end token comes first.
            replies: the environment's messages, of role tool or user.
            tools: the schemas with which the prompt was rendered.
        """
        before, answer, replies = stand_in(replies)
        seam = self.seam(before, answer, replies, tools)
        whole = self.render([*before, answer, *replies], tools)
        roles = ", ".join(dict.fromkeys(reply["role"] for reply in replies))
        need(
            seam and whole[: len(seam)] == seam,
            f"the chat template has no place where an answer ends and messages of the role {roles} follow; try "
            "another template",
        )
        return whole[len(seam) - (last_id != seam[-1]) :]

    def check(self, tools: list[dict], talks: bool) -> str:
        """The template's problem with conversations that have these tools or replies; "" if there is none."""
        for kind in [kind for kind, wanted in (("tool", tools), ("user", talks)) if wanted]:
            try:
                problems = [self.probe(kind, tools, place) for place in self.thought_places()]
            except Exception as error:  # templates may raise anything
                return f"it refuses such a conversation ({type(error).__name__}: {error})"
            if all(problems):
                return problems[0]
        return ""

    def thought_places(self) -> list[str]:
        """Fields of an answer in which the template may expect thoughts; [""] if it has none."""
        template = self.chat_template or self.tokenizer.get_chat_template()
        if "</think>" in template:
            return ["content", "reasoning_content"]
        if "<|channel>thought" in template and self.settings.get("enable_thinking"):  # Gemma 4
            return ["reasoning_content"]
        return ["thinking"] if "message.thinking" in template else [""]  # gpt-oss

    def probe(self, kind: str, tools: list[dict], place: str) -> str:
        """Play three turns and compare each with the rendering of the whole; returns the problem or ""."""
        messages = [{"role": "user", "content": "Question"}]
        ids, decode = self.render(messages, tools), self.tokenizer.decode
        if kind == "tool" and tools[0]["function"]["name"] not in decode(ids):
            return "it does not show the tools to the model"
        for turn in range(PROBE_TURNS):
            thought, thinks = probe_thought(decode(ids), turn, place)
            answer, replies, visible = probe_turn(kind, turn, thought, tools)
            seam = self.seam(messages, answer, replies, tools, guarded=False)  # thoughts need their control tokens
            whole = self.render([*messages, answer, *replies], tools, guarded=False)
            if whole[: len(ids)] != ids:
                return f"it rewrites earlier turns: {difference(decode, ids, whole)}"
            if not seam:
                ends = ", ".join(repr(decode([i])) for i in sorted(self.end_ids))
                return f"it ends the assistant's turn with none of the tokens that end an answer ({ends})"
            said, after = decode(whole[len(ids) : len(seam)]), decode(whole[len(seam) :])
            for part in (thinks, visible):
                if "".join(part.split()) not in "".join(said.split()):
                    return f"of an answer it keeps {said!r}, without {part!r}"
            if replies[0]["content"] not in after:
                return f"it does not show messages of the role {kind}"
            bridge = self.between(whole[len(seam) - 1], replies, tools)
            if whole[len(seam) :] != bridge:
                where = difference(decode, bridge, whole[len(seam) :])
                return f"what it writes between turns depends on their number: {where}"
            messages, ids = [*messages, answer, *replies], whole
        return ""


def sanitized_ids(tokenizer, messages: list[dict], tools: list[dict] | None, **given) -> list[int]:
    """Token ids of a conversation; control tokens in its messages and tools are encoded as plain letters.

    The same ids as by `apply_chat_template(…, sanitize_control_tokens=True)` of a newer transformers: control tokens
    are marked, the template renders them, and the tokenizer's model alone encodes them, without added tokens.

    Raises:
        ValueError: the tokenizer encodes the letters as the control token nevertheless.
    """
    template = tokenizer.get_chat_template(given.get("chat_template"), tools)
    added = tokenizer.added_tokens_decoder.values()  # special ones, and those that the template writes
    control = {t.content for t in added if t.special or (t.content in template and not t.content.isspace())}
    tokens = "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)"

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


def stand_in(replies: list[dict]) -> tuple[list[dict], dict, list[dict]]:
    """A short conversation that replies can follow: (messages, the answer before the replies, replies)."""
    before, answer = [{"role": "user", "content": "Question"}], {"role": "assistant", "content": "Answer"}
    if replies[0]["role"] == "tool":
        names = [(reply.get("tool_call_id") or f"call{i:05}", reply["name"]) for i, reply in enumerate(replies)]
        answer["content"], answer["tool_calls"] = "", [stand_in_call(*name) for name in names[:1]]
        replies = [{**reply, "tool_call_id": i} for reply, (i, _) in zip(replies, names, strict=True)]
    return before, answer, replies


def stand_in_call(identity: str, name: str) -> dict:
    """A tool call without arguments; Mistral's templates need an id of nine characters."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": {}}}


def probe_thought(prompt: str, turn: int, place: str) -> tuple[dict, str]:
    """(field of an answer with a thought, the part of it that the model must sample)."""
    said, begun = f"Thought {turn}", prompt.rstrip().endswith("<think>")
    if not place or prompt.rstrip().endswith("</think>"):  # it is told not to think
        return {}, ""
    if place == "content":
        return {"content": f"<think>\n{said}\n</think>\n\n"}, f"{'' if begun else '<think>'}{said}</think>"
    return {place: said}, said


def probe_turn(kind: str, turn: int, thought: dict, tools: list[dict]) -> tuple[dict, list[dict], str]:
    """(an answer, the replies to it, the text of the answer that must appear in the rendering)."""
    answer = {"role": "assistant", "content": "", **thought}
    if kind == "user":
        visible = f"Answer {turn}"
        answer["content"] += visible
        return answer, [{"role": "user", "content": f"Reply {turn}"}], visible
    call = stand_in_call(f"probe{turn:04}", tools[0]["function"]["name"])
    reply = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": f"Result {turn}"}
    return {**answer, "tool_calls": [call]}, [reply], call["function"]["name"]


def difference(decode, one: list[int], two: list[int]) -> str:
    """Where two renderings diverge, as text."""
    part = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"{decode(one[part : part + 12])!r} becomes {decode(two[part : part + 12])!r}"


def training_template(tokenizer) -> str | None:
    """TRL's variant of a tokenizer's chat template that keeps earlier turns; None if TRL is missing or has none."""
    try:
        from trl.chat_template_utils import get_training_chat_template

        return get_training_chat_template(tokenizer)
    except (ImportError, ValueError):
        return None
    except Exception as error:  # TRL's checks render conversations that a template may refuse
        say(f"note: TRL has no training template for this tokenizer ({error})")
        return None


def turn_bridge(tokenizer, end_ids: list[int], environments: Environments, settings: dict | None = None) -> TurnBridge:
    """The bridge for a model's template, or for TRL's variant of it that keeps earlier turns.

    Raises:
        UserError: the template cannot be continued, and TRL has no variant that can.
    """

    def problem(bridge: TurnBridge) -> str:
        kinds = environments.kinds.values()
        return next(filter(None, (bridge.check(kind.tools, kind.talks) for kind in kinds)), "")

    bridge = TurnBridge(tokenizer, end_ids, settings)
    fault = problem(bridge)
    if not fault:
        return bridge
    other = training_template(tokenizer)
    if other:
        bridge = TurnBridge(tokenizer, end_ids, settings, other)
        if not problem(bridge):
            say(
                f"note: the chat template cannot be continued turn by turn: {fault}; sampling and training with "
                "TRL's form of it, which keeps earlier turns: serve the model with that one too"
            )
            return bridge
    raise UserError(
        f"the chat template cannot be continued turn by turn: {fault}; expected one whose rendering of a conversation "
        'begins with that of its earlier turns; try --chat_template FILE, --chat_template_kwargs {"enable_thinking": '
        "true or false}, or another model"
    )
