"""The environment's own process: conversations with scripted policies, played as in a run but for the tokens."""

import copy
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import re
import tempfile
from multiprocessing.connection import Connection
from types import SimpleNamespace

from parts.data.chat import give_template, template_settings
from parts.environments.conversations import Conversation, PlayLimits
from parts.environments.environments import Environments
from parts.environments.play import play
from parts.environments.play_setup import PlaySetup, check_environment_rows, load_scored, score_talks, score_weights
from parts.environments.tool_calls import call_format
from parts.environments.turn_bridge import turn_bridge
from parts.foundation.messages import UserError, need, suggest
from parts.networks.models import tokenizer_of
from parts.rewards.reward_forms import import_file
from programs.reward_preflight.policies import answer_text
from programs.reward_preflight.reward_process import (
    RewardProcess,
    file_of,
    load_functions,
    own_frame,
    raised_at,
    serve_calls,
)


class Refused(UserError):
    """The flags name something that cannot be used, such as a policy that raises."""


class TextTurns:
    """Stands in for a tokenizer and the tokens between turns: every text is one token, and no template is needed."""

    eos_token_id, pad_token_id, end_ids, settings = 0, 0, (0,), None

    def __init__(self):
        self.tokenizer, self.texts, self.begun = self, [""], {}

    def encode(self, text: str) -> list[int]:
        """The token of a text."""
        self.texts.append(text)
        return [len(self.texts) - 1]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """The texts of tokens."""
        return "".join(self.texts[i] for i in ids)

    def render(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """The token of a prompt; `begun` keeps the list of messages, to which `play` adds those that follow."""
        ids = self.encode("\n".join(message["content"] for message in messages))
        self.begun[ids[0]] = messages
        return ids

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        """The token of what an environment says."""
        return self.encode("\n".join(reply["content"] for reply in replies))

    def ends(self, ids: list[int]) -> bool:
        """Whether an answer ended by itself: all that are written here do."""
        return True


class EnvironmentProcess(RewardProcess):
    """The process in which an environment runs. `functions` says of what kind each row is, and what kinds there are."""

    kind = "environment"

    def __init__(self, args, rows: list[dict]):
        self.label, self.files = f"environment {args.environment}", [file_of(args.environment)]
        self.files += [file_of(spec) for spec in (*args.reward, args.policy) if spec]
        names = ("environment", "reward", "policy", "tokenizer", "chat_template", "chat_template_kwargs", "tool_format")
        names += ("max_turns", "tool_timeout", "tool_characters")
        names += ("reward_timeout", "reward_concurrency", "reward_retries")
        self.loaded = {name: getattr(args, name) for name in names}
        self.loaded["rows"] = [{"prompt": row["prompt"], "columns": row["columns"]} for row in rows]
        self.timeout_s, self.process, self.trace = args.timeout_s + args.tool_timeout, None, tempfile.TemporaryFile()
        self.functions = self.start()

    def play(self, jobs: list[dict], reuse: bool = False, limit_s: float = 0.0) -> dict:
        """Play conversations {"row": place, "script": answers or None for --policy} in one batch."""
        return self.ask("reuse" if reuse else "play", {"jobs": jobs}, limit_s)

    def ask(self, name: str, arguments: dict, limit_s: float = 0.0) -> dict:
        """`call`; UserError where the flags name what cannot be used."""
        reply = self.call(name, arguments, limit_s)
        need("refused" not in reply, reply.get("refused", ""))
        return reply


def load_environment_process(given: dict) -> tuple:
    """`load` of serve_calls for an environment."""
    config, rows = SimpleNamespace(**given), given["rows"]
    environments, reward = load_scored(config)
    check_environment_rows(environments, rows)
    for row in rows[:1]:
        reward.check_columns(row)
    limits = PlayLimits(config.max_turns, 10**15, 1, config.tool_timeout, config.tool_characters)
    policy = load_policy(config.policy) if config.policy else None
    files = [file_of(spec) for spec in (config.environment, *config.reward)]

    def answer(name: str, arguments: dict) -> dict:
        try:
            if name == "template":
                return {"tool_format": template_form(config, environments)}
            jobs = arguments["jobs"]
            kinds, batches = environments, [jobs]
            if name == "reuse":
                kinds, batches = same_objects(environments), [[job] for job in jobs]
            setup = PlaySetup(kinds, TextTurns(), "hermes", limits)
            return {
                "outcomes": [outcome for batch in batches for outcome in played(setup, rows, batch, policy, reward)]
            }
        except Refused as error:
            return {"refused": str(error)}
        except UserError as error:  # the environment's or a reward's fault, told with file and line
            return {"fault": str(error)}
        except BaseException as error:  # SystemExit of a reset ends a run too
            where = own_frame(raised_at(error), files)
            return {"fault": f"raised {type(error).__name__}: {error} ({where})"[:500]}

    kinds = environments.kinds.items()
    about = {name: {"name": k.name, "tools": k.tools, "talks": k.talks} for name, k in kinds}
    of_rows = [about[None if None in about else row["columns"]["environment"]] for row in rows]
    return {"kinds": list(about.values()), "of_rows": of_rows}, answer


def template_form(config, environments: Environments) -> str:
    """How a model writes tool calls; UserError where its chat template cannot be continued turn by turn."""
    from transformers import AutoTokenizer

    if not importlib.util.find_spec("jinja2"):  # comes with torch, but not with transformers
        raise Refused("got --tokenizer without jinja2; expected it for chat templates; try `pip install jinja2`")
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(config.tokenizer))
    except (OSError, ValueError) as error:
        raise Refused(f"got tokenizer {config.tokenizer!r}, which does not load: {error}; try a folder") from error
    give_template(tokenizer, config.chat_template)
    turn_bridge(tokenizer, [tokenizer.eos_token_id], environments, template_settings(config))
    tools = any(kind.tools for kind in environments.kinds.values())
    form = call_format(tokenizer, config.tool_format) if tools else "none"
    return form if isinstance(form, str) else "response template"


def load_policy(spec: str):
    """The function of --policy FILE.py:function."""
    file, _, name = spec.rpartition(":")
    need(file and os.path.isfile(file), f"got policy {spec!r}: no file {file!r}; expected FILE.py:function")
    members = vars(import_file("policy", spec, file))
    near = suggest(name, [n for n, member in members.items() if callable(member)])
    need(callable(members.get(name)), f"got policy {spec!r}: {file} has no function {name!r}; expected one{near}")
    return members[name]


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
    """What --policy says."""
    tools = setup.environments.kind_of(row["columns"]).tools
    given = copy.deepcopy((messages, tools, {"prompt": row["prompt"], **row["columns"]}))
    try:
        return answer_text(policy(*given), "--policy")
    except UserError as error:
        raise Refused(str(error)) from None
    except Exception as error:
        place = raised_at(error)[0]
        fault = f"raised {type(error).__name__}: {error} at {place[0]}:{place[1]}"
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
    loads = {"rewards": load_functions, "environment": lambda **given: load_environment_process(given)}
    serve_calls(connection, trace, subject, lambda: loads[kind](**loaded))
