"""A conversation with an environment: its record, and calls of the environment's methods."""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from parts.environments.environments import EnvironmentFault, EnvironmentKind, environment_fault
from parts.environments.tool_runs import Outcome, OutOfTime, run_jobs
from parts.rewards.rewards import finite_number
from parts.rewards.user_code import text_of_turns


@dataclass
class PlayLimits:
    """Limits of conversations: turns, tokens, and what a tool may take."""

    turns: int = 8  # answers that are sampled
    tokens: int = 4096  # of a whole conversation, the first prompt included
    answer_tokens: int = 512  # a turn begins only where an answer of this length still fits
    seconds: float = 30.0  # for the tool calls of an answer together, or for a reply
    characters: int = 8000  # of a tool's result; the rest is cut
    side_by_side: int = 256  # conversations whose tools run at once


@dataclass
class Conversation:
    """One conversation, as it was sampled. Lists over response tokens have one entry for each of `response_ids`."""

    number: int  # of the row in its batch
    prompt: object  # of the data
    kind: EnvironmentKind
    environment: object
    messages: list[dict] = field(default_factory=list)  # the prompt's too
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)  # all after the prompt: answers, and what is between them
    response_mask: list[int] = field(default_factory=list)  # 1 = sampled
    rollout_logprobs: list[float] = field(default_factory=list)  # 0.0 where nothing was sampled
    spans: list[tuple[int, int]] = field(default_factory=list)  # of the answers in response_ids
    turn_rewards: list[float] = field(default_factory=list)  # for each answer; they add up to the score
    score: float | None = None  # get_reward, else the sum of the turns' rewards; None where there is neither
    calls: int = 0  # of tools, those that cannot be read included
    failures: int = 0  # calls that ended in an error
    seconds: float = 0.0  # in tools and replies
    ended_by: str = ""  # answer, reply, turns or tokens; the last two are limits
    finished: bool = False  # the last answer ended by itself
    form: str | dict = ""  # of tool calls
    place: str = ""  # where its row stands, where that is not the batch

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return self.prompt_ids + self.response_ids

    @property
    def row(self) -> str:
        """How messages name it."""
        return f"{self.place or f'row {self.number} of the batch'}, prompt {text_of_turns(self.prompt)[:100]!r}"

    @property
    def label(self) -> str:
        """How messages name it with its environment."""
        return f"environment {self.kind.name}, {self.row}"


def call_hooks(method: str, calls: list[tuple[Conversation, dict]], limits: PlayLimits) -> list:
    """Call a method of each environment, in order and in this thread as TRL does; async ones side by side.

    Raises:
        EnvironmentFault: it raised.
    """
    outcomes, waiting = [], {}
    for i, (conversation, arguments) in enumerate(calls):
        bound = functools.partial(getattr(conversation.environment, method), **arguments)
        outcomes.append(Outcome())
        if inspect.iscoroutinefunction(bound.func):
            waiting[i] = [bound]
            continue
        try:
            outcomes[i].value = bound()
        except (Exception, SystemExit) as error:
            raise environment_fault(conversation.kind, method, conversation.row, error) from error
    for i, results in zip(waiting, run_jobs([*waiting.values()], limits.seconds, limits.side_by_side), strict=True):
        outcomes[i] = results[0]
    return [checked(method, c, outcome) for (c, _), outcome in zip(calls, outcomes, strict=True)]


def checked(method: str, conversation: Conversation, outcome: Outcome):
    """What an environment's own method returned; raise EnvironmentFault if it raised, or took too long."""
    if isinstance(outcome.error, OutOfTime):
        raise EnvironmentFault(f"{conversation.label}: {method} gave {outcome.error}")
    if outcome.error is not None:
        raise environment_fault(conversation.kind, method, conversation.row, outcome.error) from outcome.error
    return outcome.value


def checked_text(method: str, conversation: Conversation, value) -> str | None:
    """A string or None that an environment returned."""
    if value is None or isinstance(value, str):
        return value and encodable(value)
    got = f"{method} returned a {type(value).__name__}"
    raise EnvironmentFault(f"{conversation.label}: {got}; expected a string or None")


def checked_number(name: str, conversation: Conversation, value) -> float:
    """A finite number that an environment gave."""
    number = finite_number(value)
    if number is None:
        raise EnvironmentFault(f"{conversation.label}: got {name} {value!r:.200}; expected a finite number")
    return number


def tool_text(tool: Callable, arguments: dict, limit: int):
    """What a tool returns, as text cut to a limit; awaitable where that is. The arguments stay as they are."""
    value = tool(**copy.deepcopy(arguments))
    return awaited_text(value, limit) if inspect.isawaitable(value) else cut(str(value), limit)


async def awaited_text(value, limit: int) -> str:
    """`tool_text` of an async tool."""
    return cut(str(await value), limit)


def cut(text: str, limit: int) -> str:
    """A text that tokenizers take, or its beginning and a note of how long it was."""
    shown = encodable(text[:limit])
    return shown if len(text) <= limit else f"{shown}\n[cut: the first {limit} of {len(text)} characters]"


def encodable(text: str) -> str:
    """A text with `?` for each half of a surrogate pair, which no tokenizer takes."""
    return text.encode(errors="replace").decode()


def error_text(error: BaseException, limit: int) -> str:
    """An error as TRL tells it to the model."""
    try:
        said = str(error) or type(error).__name__
    except Exception:  # of a class whose __str__ raises
        said = type(error).__name__
    return cut(str({"error": said}), limit)


def missing_tool(name: str, /, **arguments) -> None:
    """Raise what TRL does for a tool that is not there."""
    raise ValueError(f"Tool {name} not found.")


def tool_job(conversation: Conversation, limits: PlayLimits) -> list[Callable]:
    """The tool calls of the last answer, to be made in order."""
    calls = []
    for function in [call["function"] for call in conversation.messages[-1].get("tool_calls", ())]:
        name = function["name"]
        known = name in conversation.kind.tool_names
        tool = getattr(conversation.environment, name) if known else functools.partial(missing_tool, name)
        calls.append(functools.partial(tool_text, tool, function["arguments"], limits.characters))
    return calls


def tool_messages(conversation: Conversation, outcomes: list[Outcome], limits: PlayLimits) -> list[dict]:
    """The results of the last answer's tool calls as messages."""
    messages = []
    for call, outcome in zip(conversation.messages[-1]["tool_calls"], outcomes, strict=True):
        failed = outcome.error is not None
        conversation.calls, conversation.failures = conversation.calls + 1, conversation.failures + failed
        content = error_text(outcome.error, limits.characters) if failed else outcome.value
        message = {"role": "tool", "name": call["function"]["name"][:64], "content": content}
        messages.append({**message, "tool_call_id": call["id"]} if "id" in call else message)
    return messages
