"""Rollouts with an environment: conversations of several turns in the place of completions."""

import dataclasses
import time
from dataclasses import dataclass

from parts.chat import template_settings
from parts.conversations import Conversation, PlayLimits
from parts.environments import EnvironmentKind, Environments, load_environments
from parts.messages import need, say
from parts.models import Models, unwrapped
from parts.play import play
from parts.reward_calls import call_limits
from parts.reward_texts import visible_text
from parts.rewards import Reward
from parts.rollouts import count_seconds, shared_out
from parts.tool_calls import call_format
from parts.turn_bridge import TurnBridge, turn_bridge
from programs.ppo_train.settings import Config

OF_ENVIRONMENT = "environment"  # its score among the rewards of a sample


@dataclass
class Stage:
    """What conversations are played with: environments, the tokens between turns, the form of tool calls, limits."""

    environments: Environments
    bridge: TurnBridge
    form: str | dict
    limits: PlayLimits


def pays(kind: EnvironmentKind) -> bool:
    """Whether an environment says what a conversation is worth."""
    return kind.scores or hasattr(kind.make(), "turn_reward")


def load_with_reward(config: Config, tokenizer) -> tuple[Environments, Reward]:
    """The environments, and the reward functions beside them, if any; UserError where nothing pays."""
    environments = load_environments(config.environment)
    reward = Reward(config.reward, call_limits(config))
    need(
        OF_ENVIRONMENT not in reward.functions,
        f"got a reward function {OF_ENVIRONMENT!r}, the name of the environment's own score; try another name",
    )
    for kind in environments.kinds.values():
        need(
            config.reward or pays(kind),
            f"environment {kind.name}: got no get_reward and no --reward; expected one of them; try def "
            "get_reward(self) -> float",
        )
    tools = any(kind.tools for kind in environments.kinds.values())
    need(tools or not config.tool_format, f"got tool_format {config.tool_format} for an environment without tools")
    need(
        tokenizer.chat_template,
        f"got --environment, but the tokenizer of {config.model!r} has no chat template; expected one; try "
        "--chat_template FILE, or an instruct model",
    )
    return environments, reward


def check_environment_rows(environments: Environments, rows: list[dict]) -> None:
    """Raise UserError for a row that `reset` does not take; rows with the same columns are tried once."""
    tried = set()
    for row in rows:
        key = (environments.kind_of(row["columns"]).name, *row["columns"])
        if key not in tried:
            environments.check_row(row["prompt"], row["columns"])
            tried.add(key)


def make_stage(config: Config, tokenizer, end_ids: list[int], environments: Environments) -> Stage:
    """What is needed to play; UserError for a chat template that cannot be continued, or shows no form of calls."""
    tools = any(kind.tools for kind in environments.kinds.values())
    limits = PlayLimits(
        turns=config.max_turns,
        tokens=config.conversation_tokens,
        answer_tokens=config.max_new_tokens,
        seconds=config.tool_timeout,
        characters=config.tool_characters,
    )
    bridge = turn_bridge(tokenizer, end_ids, environments, template_settings(config))
    return Stage(environments, bridge, call_format(tokenizer, config.tool_format) if tools else "", limits)


def staged_rows(config: Config, stage: Stage, rows: list[dict], source: str) -> list[dict]:
    """Rows whose prompts are rendered with the tools of their environment; those that are then too long are left out.

    What `reset` adds to a prompt is not known before a conversation begins, and not in it.
    """
    kept = []
    for row in rows:
        prompt, tools = row["prompt"], stage.environments.kind_of(row["columns"]).tools
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        ids = stage.bridge.render(turns, tools)
        kept += [row | {"prompt_ids": ids}] if len(ids) <= config.max_prompt_tokens else []
    too_long = (
        f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {config.max_prompt_tokens} tokens with tools"
    )
    need(kept or not rows, f"{source}: got {too_long}; expected some that fit; try a higher --max_prompt_tokens")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    return kept


def check_positions(config: Config, models: Models) -> None:
    """Raise UserError if a conversation can be longer than the model's positions."""
    limit = getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None)
    need(
        not limit or config.conversation_tokens <= limit,
        f"got conversations of up to {config.conversation_tokens} tokens; expected at most the model's {limit}; try "
        f"--max_conversation_tokens {limit}, or a lower --max_turns or --max_new_tokens",
    )


def converse(
    stage: Stage, config: Config, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Play and score one conversation per row; every process gets the whole batch.

    Args:
        noise: uniform draws [rows, max_turns x max_new_tokens], those of a turn after those of the turn before; None
            decodes greedily.
    """
    width = config.max_new_tokens

    def conversations(mine: list[dict], draws) -> list[dict]:
        def answer(prompts: list[list[int]], numbers: list[int], turn: int) -> list:
            own = None if draws is None else draws[numbers, turn * width : (turn + 1) * width]
            return engine.generate(prompts, own)

        start = time.perf_counter()
        talks = play(mine, stage.environments, stage.bridge, answer, stage.limits, stage.form)
        sampled, parts = time.perf_counter(), {}
        if reward.functions:
            begun = [message_counts(row) for row in mine]
            seen = [{**row, "prompt": t.messages[:n]} for row, t, n in zip(mine, talks, begun, strict=True)]
            said = [t.messages[n:] for t, n in zip(talks, begun, strict=True)]
            parts = reward(seen, said, [t.response_ids for t in talks])[1]
        count_seconds(timer, start, sampled)
        scored = any(kind.scores for kind in stage.environments.kinds.values())
        own = {OF_ENVIRONMENT: [talk.score for talk in talks]}
        parts = own | parts if scored else parts | own  # the first says what a held-out row's full marks are
        weights = {name: 1.0 if name == OF_ENVIRONMENT else reward.weights[name] for name in parts}
        values = [{name: column[i] for name, column in parts.items()} for i in range(len(mine))]
        found = zip(mine, talks, values, strict=True)
        return [conversation_sample(models, row, talk, of_row, weights) for row, talk, of_row in found]

    return shared_out(conversations, rows, noise)


def message_counts(row: dict) -> int:
    """How many messages a row's prompt is."""
    return 1 if isinstance(row["prompt"], str) else len(row["prompt"])


def conversation_sample(models: Models, row: dict, talk: Conversation, values: dict, weights: dict) -> dict:
    """A conversation as a sample: the whole response, a mask of what was sampled, and its score."""
    answers = [talk.response_ids[start:end] for start, end in talk.spans]
    said = [visible_text(models.tokenizer, ids, models.eos_ids) for ids in answers]
    return {
        "prompt": row["prompt"],
        "prompt_ids": talk.prompt_ids,
        "completion": "\n".join(said),  # what was sampled
        "response_ids": talk.response_ids,
        "response_mask": talk.response_mask,
        "rollout_logprobs": talk.rollout_logprobs,
        "answer_lengths": list(map(len, answers)),
        "finished": all(ids[-1] in models.eos_ids for ids in answers),
        "rewards": values,
        "weights": weights,
        "score": sum(weights[name] * value for name, value in values.items() if value is not None),
        "ended_by": talk.ended_by,
        "turn_ends": [end for _, end in talk.spans],
        "turn_rewards": talk.turn_rewards,
        "messages": talk.messages,
        "pieces": pieces(models, talk),
        "talk": dataclasses.replace(talk, kind=None, environment=None),  # for metrics; processes exchange samples
    }


def pieces(models: Models, talk: Conversation) -> list[dict]:
    """The text after the prompt, in pieces that were sampled and pieces that were not."""
    found, end_before = [], 0
    for start, end in talk.spans:
        for sampled, ids in ((False, talk.response_ids[end_before:start]), (True, talk.response_ids[start:end])):
            found += [{"sampled": sampled, "text": models.tokenizer.decode(ids)}] if ids else []
        end_before = end
    return found
