"""The environment's own process: conversations with scripted policies, played as in a run but for the tokens."""

import copy
import dataclasses
import hashlib
import json
import os
import re
from multiprocessing.connection import Connection
from types import SimpleNamespace

from parts.environments.conversations import Conversation, PlayLimits
from parts.environments.environments import Environments
from parts.environments.play import play
from parts.environments.play_setup import PlaySetup, check_environment_rows, load_scored, score_talks, score_weights
from parts.foundation.messages import UserError, need
from parts.rewards.reward_forms import import_file
from programs.reward_preflight.policies import answer_text
from programs.reward_preflight.reward_process import (
    OwnProcess,
    file_of,
    load_functions,
    own_frame,
    raised_at,
    serve_calls,
)

# settings of a run that the parts read, at their defaults
RUN = {"tool_format": "", "reward_timeout": 600.0, "reward_concurrency": 32, "reward_retries": 2}


class Refused(UserError):
    """--policy cannot be used, such as one that raises."""


class TextTurns:
    """Stands in for a tokenizer and the tokens between turns: every text is one token, and no template is needed."""

    eos_token_id, pad_token_id, end_ids, settings = 0, 0, (0,), None

    def __init__(self):
        self.tokenizer, self.texts, self.begun = self, [""], {}

    def encode(self, text: str) -> list[int]:
        self.texts.append(text)
        return [len(self.texts) - 1]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(self.texts[i] for i in ids)

    def render(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """The token of a prompt; `begun` keeps the list of messages, to which `play` adds those that follow."""
        ids = self.encode("\n".join(message["content"] for message in messages))
        self.begun[ids[0]] = messages
        return ids

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        return self.encode("\n".join(reply["content"] for reply in replies))

    def ends(self, ids: list[int]) -> bool:
        """Whether an answer ended by itself: all that are written here do."""
        return True


def environment_process(args, rows: list[dict]) -> OwnProcess:
    """The process of an environment; `about` says of what kind each row is."""
    names = ("environment", "reward", "policy", "max_turns", "tool_timeout")
    loaded = {name: getattr(args, name) for name in names}
    loaded["rows"] = [{"prompt": row["prompt"], "columns": row["columns"]} for row in rows]
    files = [file_of(spec) for spec in (args.environment, *args.reward, args.policy) if spec]
    limit_s = args.timeout_s + args.tool_timeout
    return OwnProcess("environment", f"environment {args.environment}", loaded, files, limit_s)


def play_in(process: OwnProcess, jobs: list[dict], reuse: bool = False) -> dict:
    """Play conversations {"row": place, "script": answers or None for --policy} in one batch.

    `reuse`: one object plays the conversations of its kind one after the other, as with TRL.
    """
    reply = process.call("reuse" if reuse else "play", {"jobs": jobs}, process.timeout_s * max(1, len(jobs) / 4))
    need("refused" not in reply, reply.get("refused", ""))
    return reply


def load_environment_process(**given) -> tuple:
    """(what kind each row is of, function that answers a call) for an environment."""
    config, rows = SimpleNamespace(**given, **RUN), given["rows"]
    environments, reward = load_scored(config)
    check_environment_rows(environments, rows)
    for row in rows[:1]:
        reward.check_columns(row)
    limits = PlayLimits(config.max_turns, 10**15, 1, config.tool_timeout, 8000)
    policy = load_policy(config.policy) if config.policy else None
    files = [file_of(spec) for spec in (config.environment, *config.reward)]

    def answer(name: str, arguments: dict) -> dict:
        jobs, kinds = arguments["jobs"], environments
        batches = [jobs]
        try:
            if name == "reuse":
                kinds, batches = same_objects(environments), [[job] for job in jobs]
            setup = PlaySetup(kinds, TextTurns(), "hermes", limits)
            return {"outcomes": [one for batch in batches for one in played(setup, rows, batch, policy, reward)]}
        except Refused as error:
            return {"refused": str(error)}
        except UserError as error:  # the environment's or a reward's fault, told with file and line
            return {"fault": str(error)}
        except BaseException as error:  # SystemExit of a reset ends a run too
            where = own_frame(raised_at(error), files)
            return {"fault": f"raised {type(error).__name__}: {error} ({where})"[:500]}

    about = {n: {"name": k.name, "tools": k.tools, "talks": k.talks} for n, k in environments.kinds.items()}
    return [about[None if None in about else row["columns"]["environment"]] for row in rows], answer


def load_policy(spec: str):
    file, _, name = spec.rpartition(":")
    need(file and os.path.isfile(file), f"got policy {spec!r}: no file {file!r}; expected FILE.py:function")
    policy = getattr(import_file("policy", spec, file), name, None)
    need(callable(policy), f"got policy {spec!r}: {file} has no function {name!r}; expected one")
    return policy


def same_objects(environments: Environments) -> Environments:
    """Environments of which each kind is one object, that serves one conversation after another as with TRL."""

    def kept(kind):
        environment = kind.make()
        return dataclasses.replace(kind, make=lambda: environment)

    return Environments({name: kept(kind) for name, kind in environments.kinds.items()})


def played(setup: PlaySetup, rows: list[dict], jobs: list[dict], policy, reward) -> list[dict]:
    """Play conversations and return their outcomes."""
    chosen, texts = [rows[job["row"]] for job in jobs], setup.bridge
    late = str({"error": f"no answer in {setup.limits.seconds:g} s"})  # the result of a tool that hangs

    def say_next(prompts: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        answers = []
        for ids, number in zip(prompts, numbers, strict=True):
            messages, script = texts.begun[ids[0]], jobs[number]["script"]
            if any(message["content"] == late for message in messages if message["role"] == "tool"):
                said = ""  # a tool that hangs costs its time limit once
            elif script is None:
                said = policy_answer(policy, messages, setup, chosen[number])
            else:
                over = script[-1] if setup.environments.kind_of(chosen[number]["columns"]).talks else ""
                said = script[turn] if turn < len(script) else over
            answers.append(([*texts.encode(said), 0], [0.0, 0.0]))
        return answers

    conversations = play(chosen, setup.environments, texts, say_next, setup.limits, setup.form)
    scores = score_talks(setup, chosen, conversations, reward)
    weights = score_weights(reward, scores[0]) if scores else {}
    return [outcome_of(c, values, weights, late) for c, values in zip(conversations, scores, strict=True)]


def policy_answer(policy, messages: list[dict], setup: PlaySetup, row: dict) -> str:
    tools = setup.environments.kind_of(row["columns"]).tools
    given = copy.deepcopy((messages, tools, {"prompt": row["prompt"], **row["columns"]}))
    try:
        return answer_text(policy(*given), "--policy")
    except UserError as error:
        raise Refused(str(error)) from None
    except Exception as error:
        file, line, _ = raised_at(error)[0]
        fault = f"raised {type(error).__name__}: {error} at {file}:{line}"
        raise Refused(f"--policy {fault}; expected an answer to {str(messages[-1])[:200]}") from error


def outcome_of(conversation: Conversation, scores: dict, weights: dict, late: str) -> dict:
    """The figures of a conversation; `said` is the same where all messages are."""
    tool_results = [message for message in conversation.messages if message["role"] == "tool"]
    text = json.dumps(conversation.messages, sort_keys=True, default=str)
    return {
        "return": sum(weights[name] * value for name, value in scores.items() if value is not None),
        "turns": len(conversation.spans),
        "calls": conversation.calls,
        "failures": conversation.failures,
        "ended_by": conversation.ended_by,
        "seconds": conversation.seconds,
        "turn_rewards": conversation.turn_rewards,
        "errors": [m["content"][:200] for m in tool_results if re.match(r"\{['\"]error['\"]: ", m["content"])],
        "hung": [message["name"] for message in tool_results if message["content"] == late],
        "said": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    }


def serve(fd: int) -> None:
    """What the process does that --serve starts."""
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    kind, trace, subject, loaded = connection.recv()
    load = {"rewards": load_functions, "environment": load_environment_process}[kind]
    serve_calls(connection, trace, subject, lambda: load(**loaded))
