"""The environment's own process: scripted policies play conversations as in a run, with texts in place of tokens."""

import dataclasses
import hashlib
import json
import os
import re
from multiprocessing.connection import Connection
from types import SimpleNamespace

from parts.environments.conversations import Conversation, PlayLimits, play
from parts.environments.environments import Environments
from parts.environments.play_setup import check_environment_rows, load_scored, score_talks, score_weights
from parts.environments.scripted_play import ScriptedPlayer
from parts.foundation.messages import UserError
from parts.rewards.reward_forms import spec_parts
from programs.reward_preflight.reward_process import OwnProcess, load_functions, own_frame, raised_at, serve_calls

PLAY = "play"  # the call that plays conversations
# defaults of a run's settings that the parts read
RUN = {"tool_format": "", "reward_timeout": 600.0, "reward_concurrency": 32, "reward_retries": 2}


def environment_process(args, rows: list[dict]) -> OwnProcess:
    """Start the process of an environment; its `about` describes the environment of each row."""
    loaded = {name: getattr(args, name) for name in ("environment", "reward", "max_turns", "tool_timeout")}
    loaded["rows"] = [{"prompt": row["prompt"], "columns": row["columns"]} for row in rows]
    files = [spec_parts(spec)[0] for spec in (args.environment, *args.reward)]
    limit_s = args.timeout_s + args.tool_timeout
    return OwnProcess("environment", f"environment {args.environment}", loaded, files, limit_s)


def play_in(process: OwnProcess, arguments: dict, reuse: bool = False) -> dict:
    """Play conversations {"jobs": [{"row": index, "script": answers}, …]} in one batch.

    `reuse`: one object per kind of environment plays one conversation after the other, as with TRL.
    """
    limit_s = process.timeout_s * max(1, len(arguments["jobs"]) / 4)
    return process.call("reuse" if reuse else PLAY, arguments, limit_s)


def load_environment_process(**given) -> tuple:
    """(Description of each row's environment, function that answers calls of `play_in`)."""
    config, rows = SimpleNamespace(**given, **RUN), given["rows"]
    environments, reward = load_scored(config)
    check_environment_rows(environments, rows)
    for row in rows[:1]:
        reward.check_columns(row)
    limits = PlayLimits(config.max_turns, 10**15, 1, config.tool_timeout, 8000)
    files = [spec_parts(spec)[0] for spec in (config.environment, *config.reward)]

    def answer(name: str, arguments: dict) -> dict:
        jobs, kinds = arguments["jobs"], environments
        batches = [jobs]
        try:
            if name == "reuse":
                kinds, batches = same_objects(environments), [[job] for job in jobs]
            outcomes = [one for batch in batches for one in played(kinds, rows, batch, reward, limits)]
            reply = {"values": [outcome["return"] for outcome in outcomes], "bad": {}, "outcomes": outcomes}
            return reply | {"seconds": sum(outcome["seconds"] for outcome in outcomes)}
        except UserError as error:  # names the file and line in the environment or a reward
            return {"raised": str(error)}
        except BaseException as error:  # SystemExit of a reset ends a run too
            where = own_frame(raised_at(error), files)
            return {"raised": f"raised {type(error).__name__}: {error} ({where})"[:500]}

    about = {n: {"name": k.name, "tools": k.tools, "talks": k.talks} for n, k in environments.kinds.items()}
    return [about[None if None in about else row["columns"]["environment"]] for row in rows], answer


def same_objects(environments: Environments) -> Environments:
    """The environments with a single object per kind, which serves all conversations, as with TRL."""

    def kept(kind):
        environment = kind.make()
        return dataclasses.replace(kind, make=lambda: environment)

    return Environments({name: kept(kind) for name, kind in environments.kinds.items()})


def played(kinds: Environments, rows: list[dict], jobs: list[dict], reward, limits: PlayLimits) -> list[dict]:
    """Play conversations together and return their outcomes."""
    chosen = [rows[job["row"]] for job in jobs]
    player = ScriptedPlayer(kinds, chosen, [job["script"] for job in jobs], limits)
    conversations = play(chosen, player.setup, player.sample)
    scores = score_talks(player.setup, chosen, conversations, reward)
    weights = score_weights(reward, scores[0]) if scores else {}
    return [outcome_of(c, values, weights, player.late) for c, values in zip(conversations, scores, strict=True)]


def outcome_of(conversation: Conversation, scores: dict, weights: dict, late: str) -> dict:
    """The figures of a conversation; `said` is a hash of all its messages."""
    tool_results = [message for message in conversation.messages if message["role"] == "tool"]
    text = json.dumps(conversation.messages, sort_keys=True, default=str)
    names = ("calls", "failures", "ended_by", "seconds", "turn_rewards")
    return {name: getattr(conversation, name) for name in names} | {
        "return": sum(weights[name] * value for name, value in scores.items() if value is not None),
        "turns": len(conversation.spans),
        "errors": [m["content"][:200] for m in tool_results if re.match(r"\{['\"]error['\"]: ", m["content"])],
        "hung": [message["name"] for message in tool_results if message["content"] == late],
        "said": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    }


def serve(fd: int) -> None:
    """Run as an OwnProcess, which --serve starts, until its parent hangs up; `fd`: the connection to it."""
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    kind, trace, subject, loaded = connection.recv()
    load = {"rewards": load_functions, "environment": load_environment_process}[kind]
    serve_calls(connection, trace, subject, lambda: load(**loaded))
