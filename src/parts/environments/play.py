"""Playing conversations of a policy with environments: all that are open are sampled in one batch each turn.

    reset -> [ sample -> tools or reply -> the tokens between ] x turns -> get_reward

A conversation ends with an answer that calls no tool where the environment does not reply, with a reply of None, or at
a limit. At the last turn that is allowed an answer is still replied to, so that the environment has seen it, but its
tool calls are not made, as in TRL. No environment serves two conversations.
"""

import copy
import functools
from collections.abc import Callable

from parts.environments.conversations import (
    Conversation,
    PlayLimits,
    call_hooks,
    checked,
    checked_number,
    checked_text,
    tool_job,
    tool_messages,
)
from parts.environments.environments import Environments
from parts.environments.tool_calls import read_answer
from parts.environments.tool_runs import run_jobs
from parts.environments.turn_bridge import TurnBridge
from parts.foundation.messages import UserError, need
from parts.rewards.user_code import visible_text


def begin(rows: list[dict], environments: Environments, bridge: TurnBridge, limits: PlayLimits) -> list[Conversation]:
    """Make and reset an environment for each row {"prompt", "columns"}; what reset returns is put after the prompt."""
    talks, calls = [], []
    for number, row in enumerate(rows):
        prompt = row.get("prompt") or ""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else copy.deepcopy(prompt)
        kind = environments.kind_of(row["columns"])
        talk = Conversation(number, prompt, kind, kind.make(), messages, place=row.get("place", ""))
        given = environments.reset_arguments(messages, row["columns"])
        talks.append(talk)
        calls.append((talk, copy.deepcopy(given)))  # rows are shared by the conversations of a group
    for talk, value in zip(talks, call_hooks("reset", calls, limits), strict=True):
        said = checked_text("reset", talk, value)
        if said is not None:
            at = -2 if talk.messages[-1]["role"] == "assistant" else -1  # before what the model goes on with
            talk.messages[at] = {**talk.messages[at], "content": talk.messages[at]["content"] + said}
        try:
            talk.prompt_ids = bridge.render(talk.messages, talk.kind.tools)
        except Exception as error:  # a template raises what it likes, such as "system role not supported"
            what = f"{talk.row}: got a prompt that the template refuses ({error}); try other roles"
            raise UserError(f"environment {talk.kind.name}, {what}") from error
        length = len(talk.prompt_ids)
        need(
            length + limits.answer_tokens <= limits.tokens,
            f"environment {talk.kind.name}, {talk.row}: got a prompt of {length} tokens with what reset puts after it; "
            f"expected at most {limits.tokens - limits.answer_tokens}, so that an answer of {limits.answer_tokens} "
            f"fits; try --max_conversation_tokens {length + limits.answer_tokens}, or a shorter text from reset",
        )
    return talks


def hear(talk: Conversation, ids: list[int], logprobs: list[float], bridge: TurnBridge) -> tuple[str, str]:
    """Append a sampled answer; return its text and what is wrong with its tool calls."""
    before = talk.ids
    talk.spans.append((len(talk.response_ids), len(talk.response_ids) + len(ids)))
    talk.response_ids += ids
    talk.response_mask += [1] * len(ids)
    talk.rollout_logprobs += logprobs
    talk.finished = bridge.ends(ids)
    text = visible_text(bridge.tokenizer, ids, bridge.end_ids)
    message, problem = {"role": "assistant", "content": text}, ""
    if talk.kind.tools:
        message, problem = read_answer(bridge.tokenizer, talk.form, before, ids, text, talk.kind.tools)
    talk.messages.append(message)
    return text, problem


def answer_all(talks: list[Conversation], heard: list[tuple[str, str]], last: bool, limits: PlayLimits) -> list:
    """What the environments say to the answers just heard: messages, or [] where a conversation has ended."""
    said, jobs = [[] for _ in talks], {}
    for i, (talk, (text, problem)) in enumerate(zip(talks, heard, strict=True)):
        if problem:
            talk.calls, talk.failures = talk.calls + 1, talk.failures + 1
            said[i] = [{"role": "tool", "name": "unknown", "content": str({"error": problem})}]
        elif talk.messages[-1].get("tool_calls"):
            jobs |= {} if last else {i: tool_job(talk, limits)}
            talk.ended_by = "turns" if last else ""
        elif talk.kind.talks:
            jobs[i] = [functools.partial(talk.environment.reply, text)]
        else:
            talk.ended_by = "answer"
    found = run_jobs([*jobs.values()], limits.seconds, limits.side_by_side)
    for i, outcomes in zip(jobs, found, strict=True):
        talk = talks[i]
        talk.seconds += sum(outcome.seconds for outcome in outcomes)
        if talk.messages[-1].get("tool_calls"):
            said[i] = tool_messages(talk, outcomes, limits)
            continue
        reply = checked_text("reply", talk, checked("reply", talk, outcomes[0]))
        said[i] = [] if reply is None else [{"role": "user", "content": reply}]
        talk.ended_by = "reply" if reply is None else ""
    for talk in talks:
        take_turn_reward(talk)
    return said


def take_turn_reward(talk: Conversation) -> None:
    """Note what an environment's `turn_reward` says for the answer just heard, and set it to 0."""
    value = getattr(talk.environment, "turn_reward", 0.0)
    talk.turn_rewards.append(checked_number("turn_reward", talk, value))
    if value:
        talk.environment.turn_reward = 0.0


def go_on(talk: Conversation, messages: list[dict], last: bool, bridge: TurnBridge, limits: PlayLimits) -> None:
    """Append an environment's messages and the tokens up to the next answer, or end the conversation at a limit."""
    if talk.ended_by or not messages:
        return
    if last:
        talk.ended_by = "turns"
        return
    start, end = talk.spans[-1]
    between = bridge.between(talk.response_ids[-1] if end > start else None, messages, talk.kind.tools)
    if len(talk.ids) + len(between) + limits.answer_tokens > limits.tokens:
        talk.ended_by = "tokens"
        return
    talk.messages += messages
    talk.response_ids += between
    talk.response_mask += [0] * len(between)
    talk.rollout_logprobs += [0.0] * len(between)


def take_turn(talks: list[Conversation], sampled: list, last: bool, bridge: TurnBridge, limits: PlayLimits) -> None:
    """Hear an answer (ids, logprobs) of each conversation, let the environments answer, and go on or end."""
    heard = [hear(talk, [*ids], [*logprobs], bridge) for talk, (ids, logprobs) in zip(talks, sampled, strict=True)]
    for talk, messages in zip(talks, answer_all(talks, heard, last, limits), strict=True):
        go_on(talk, messages, last, bridge, limits)


def score_all(talks: list[Conversation], limits: PlayLimits) -> None:
    """Ask the environments for the returns; what the turns' rewards leave of one belongs to the last answer."""
    scoring = [talk for talk in talks if talk.kind.scores]
    values = call_hooks("get_reward", [(talk, {}) for talk in scoring], limits)
    for talk, value in zip(scoring, values, strict=True):
        talk.score = None if value is None else checked_number("get_reward", talk, value)
    for talk in talks:
        if not talk.kind.scores and hasattr(talk.environment, "turn_reward"):
            talk.score = sum(talk.turn_rewards)
        if talk.score is not None:
            talk.turn_rewards[-1] += talk.score - sum(talk.turn_rewards)


def play(
    rows: list[dict],
    environments: Environments,
    bridge: TurnBridge,
    sample: Callable,
    limits: PlayLimits,
    form: str | dict = "",
) -> list[Conversation]:
    """Play a conversation for each row.

    Args:
        rows: {"prompt": string or messages, "columns": {…}}; a string is a user's turn.
        sample: `(prompts, numbers, turn) -> [(ids, logprobs), …]`: an answer for each of the prompts, token ids;
            `numbers` says of which rows they are, and `turn` counts from 0, for noise that depends on nothing else.
            Ids hold the end token if the answer ended by itself.
        form: how the model writes tool calls, of `call_format`.

    Raises:
        EnvironmentFault: reset, reply or get_reward raised, returned nonsense or, where async or reply, took too long.
    """
    talks = begin(rows, environments, bridge, limits)
    for talk in talks:
        talk.form = form
    for turn in range(limits.turns):
        now, last = [talk for talk in talks if not talk.ended_by], turn == limits.turns - 1
        if not now:
            break
        sampled = sample([talk.ids for talk in now], [talk.number for talk in now], turn)
        take_turn(now, sampled, last, bridge, limits)
    score_all(talks, limits)
    return talks


def play_metrics(talks: list[Conversation]) -> dict[str, float]:
    """Means over conversations, for the log of a run."""
    n, calls = len(talks), sum(talk.calls for talk in talks)
    return {
        "rollout/turns_mean": sum(len(talk.spans) for talk in talks) / n,
        "rollout/limit_frac": sum(talk.ended_by in ("turns", "tokens") for talk in talks) / n,
        "tool/calls_mean": calls / n,
        "tool/failure_frac": sum(talk.failures for talk in talks) / max(1, calls),
        "tool/seconds": sum(talk.seconds for talk in talks) / n,
    }
