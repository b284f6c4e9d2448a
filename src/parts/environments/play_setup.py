"""Set up and score conversations, for all programs that take --environment.

A program's config must have `environment`, `reward`, `model`, `max_turns`, `conversation_tokens`, `max_new_tokens`,
`max_prompt_tokens`, `tool_timeout`, `tool_characters` and `tool_format`.
"""

from parts.data.chat import template_settings
from parts.environments.conversations import Conversation, PlayLimits, PlaySetup
from parts.environments.environments import EnvironmentKind, Environments, load_environments
from parts.environments.tool_calls import call_format
from parts.environments.turn_bridge import turn_bridge
from parts.foundation.messages import UserError, need, say
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.user_code import prints_aside

OF_ENVIRONMENT = "environment"  # name of the environment's own score among a sample's rewards
OBJECTS = "environments"  # reward functions' argument, as in TRL: the object of each conversation
TURN_SETTINGS = ("max_turns", "max_conversation_tokens", "tool_timeout", "tool_characters", "tool_format")


def check_idle(config, converses: bool, names: tuple[str, ...] = TURN_SETTINGS) -> None:
    """Raise UserError for conversation settings that were changed although the run has no conversations."""
    usual = type(config)()
    for name in names:
        idle = not converses and getattr(config, name) != getattr(usual, name)
        got = f"got {name} {getattr(config, name)} without an environment"
        need(not idle, f"{got}; expected one beside it; try --environment FILE.py:Class")


def check_room(config, prompt_tokens: int) -> None:
    """Raise UserError if a conversation has no room for a prompt and an answer."""
    shortest = prompt_tokens + config.max_new_tokens
    need(
        config.conversation_tokens >= shortest,
        f"got max_conversation_tokens {config.max_conversation_tokens}; expected room for a prompt and an answer, "
        f"{prompt_tokens} + {config.max_new_tokens} tokens; try --max_conversation_tokens {2 * shortest}",
    )


def check_fits(config, limit: int | None, bound: str = "max_new_tokens") -> None:
    """Raise UserError if a conversation can exceed the model's `limit` of positions (None: no limit).

    Args:
        bound: name of the setting that limits an answer, for the message.
    """
    need(
        not limit or config.conversation_tokens <= limit,
        f"got conversations of up to {config.conversation_tokens} tokens; expected at most the model's {limit}; try "
        f"--max_conversation_tokens {limit}, or a lower --max_turns or --{bound}",
    )


@prints_aside()
def pays(kind: EnvironmentKind) -> bool:
    """Whether an environment scores conversations, by get_reward or turn_reward."""
    return kind.scores or hasattr(kind.make(), "turn_reward")


def check_chat_template(config, tokenizer) -> None:
    got = f"got --environment, but the tokenizer of {config.model!r} has no chat template"
    need(tokenizer.chat_template, f"{got}; expected one; try --chat_template FILE, or an instruct model")


def load_scored(config) -> tuple[Environments, Reward]:
    """(environments, reward functions beside them); UserError if an environment's conversations would get no score."""
    environments = load_environments(config.environment)
    reward = Reward(config.reward, call_limits(config))
    reward.others = (OBJECTS,)
    check_environments(config, environments, reward.functions)
    return environments, reward


def check_environments(config, environments: Environments, functions) -> None:
    """Raise UserError if conversations would get no score, or if tool_format is set without tools.

    Args:
        functions: names of the reward functions beside the environments.
    """
    got = f"got a reward function {OF_ENVIRONMENT!r}, the name of the environment's own score"
    need(OF_ENVIRONMENT not in functions, f"{got}; try another name")
    advice = "try def get_reward(self) -> float, or turn_reward = 0.0 in the class"
    for kind in environments.kinds.values():
        got = f"environment {kind.name}: got no get_reward and no --reward"
        need(functions or pays(kind), f"{got}; expected one of them; {advice}")
    tools = any(kind.tools for kind in environments.kinds.values())
    need(tools or not config.tool_format, f"got tool_format {config.tool_format} for an environment without tools")


def check_environment_rows(environments: Environments, rows: list[dict]) -> None:
    """Raise UserError for a row that `reset` does not accept; rows with the same columns are checked once."""
    tried = set()
    for row in rows:
        key = (environments.kind_of(row["columns"]).name, *row["columns"])
        if key not in tried:
            environments.check_row(row["prompt"], row["columns"])
            tried.add(key)


def make_play_setup(config, tokenizer, end_ids: list[int], environments: Environments) -> PlaySetup:
    """Build the PlaySetup; UserError for a chat template that cannot be continued or shows no form of tool calls."""
    tools = any(kind.tools for kind in environments.kinds.values())
    limits = PlayLimits(
        turns=config.max_turns,
        tokens=config.conversation_tokens,
        answer_tokens=config.max_new_tokens,
        seconds=config.tool_timeout,
        characters=config.tool_characters,
    )
    bridge = turn_bridge(tokenizer, end_ids, environments, template_settings(config))
    return PlaySetup(environments, bridge, call_format(tokenizer, config.tool_format) if tools else "", limits)


def playable_rows(
    config, setup: PlaySetup, rows: list[dict], source: str, limit: str = "max_prompt_tokens"
) -> list[dict]:
    """Render the rows' prompts with their environment's tools as `prompt_ids`; drop rows that are then too long.

    Text that `reset` appends is not included, as it is unknown before a conversation begins.

    Args:
        limit: name of the setting that limits a prompt.
    """
    kept, most = [], getattr(config, limit)
    for row in rows:
        prompt, tools = row["prompt"], setup.environments.kind_of(row["columns"]).tools
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            ids = setup.bridge.render(turns, tools)
        except ValueError as error:
            got = f"{source}: got prompt {str(prompt)[-80:]!r}"
            raise UserError(f"{got}, which the template refuses: {error}") from error
        kept += [row | {"prompt_ids": ids}] if len(ids) <= most else []
    too_long = f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {most} tokens with tools"
    need(kept or not rows, f"{source}: got {too_long}; expected some that fit; try a higher --{limit}")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    return kept


def score_talks(setup: PlaySetup, rows: list[dict], conversations: list[Conversation], reward: Reward) -> list[dict]:
    """Scores of conversations, one dict per row: the environment's own and each reward function's, by name.

    The first entry decides whether a held-out row has full marks; it is the environment's if it has get_reward.
    """
    parts = {}
    if reward.functions:
        seen, said = as_rewards_see(rows, conversations)
        parts = reward(seen, said, [t.response_ids for t in conversations])[1]
    scored = any(kind.scores for kind in setup.environments.kinds.values())
    environment_score = {OF_ENVIRONMENT: [c.score for c in conversations]}
    parts = environment_score | parts if scored else parts | environment_score
    return [{name: column[i] for name, column in parts.items()} for i in range(len(rows))]


def as_rewards_see(rows: list[dict], conversations: list[Conversation]) -> tuple[list[dict], list[list[dict]]]:
    """(rows with their environment and the prompt that `reset` completed, messages that followed), for rewards."""
    begun, seen = [1 if isinstance(row["prompt"], str) else len(row["prompt"]) for row in rows], []
    for row, t, n in zip(rows, conversations, begun, strict=True):
        seen.append({**row, "prompt": t.messages[:n], "columns": {**row["columns"], OBJECTS: t.environment}})
    return seen, [t.messages[n:] for t, n in zip(conversations, begun, strict=True)]


def score_weights(reward: Reward, names) -> dict[str, float]:
    """The weight of each score in a conversation's return."""
    return {name: 1.0 if name == OF_ENVIRONMENT else reward.weights[name] for name in names}


def pieces(tokenizer, conversation: Conversation) -> list[dict]:
    """The text after the prompt, split into sampled and other pieces: {"sampled", "text"} each."""
    parts, end_before, all_ids = [], 0, conversation.response_ids
    for start, end in conversation.spans:
        for sampled, ids in ((False, all_ids[end_before:start]), (True, all_ids[start:end])):
            parts += [{"sampled": sampled, "text": tokenizer.decode(ids)}] if ids else []
        end_before = end
    return parts
