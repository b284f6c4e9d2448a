"""What a run is given: prompts, rewards, environments; and all checks of it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from parts.data.pass_band import check_band
from parts.data.prompts import load_splits
from parts.environments.play_setup import (
    TURN_SETTINGS,
    PlaySetup,
    check_environment_rows,
    check_fits,
    check_idle,
    check_room,
    load_with_reward,
    make_play_setup,
    playable_rows,
)
from parts.foundation.bundle import specs_for
from parts.foundation.messages import need
from parts.learning.advantages import ADVANTAGES, estimator
from parts.learning.losses import check_loss
from parts.learning.presets import check_config
from parts.networks.models import Models, check_context, load_tokenizer, unwrapped
from parts.rewards.rewards import Reward, call_limits
from parts.sampling.rollouts import collect
from programs.ppo_train.environment_rollout import converse
from programs.ppo_train.settings import Config


@dataclass
class Inputs:
    """What a run is given beside its settings."""

    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    reward: Reward
    environments: object = None  # with --environment
    setup: PlaySetup | None = None  # what conversations are played with, once the model's end tokens are known

    @property
    def sample(self) -> Callable:
        """What samples and scores: completions, or conversations with the environment."""
        return functools.partial(converse, self.setup) if self.setup else collect

    def prepare_play(self, config: Config, end_ids: list[int]) -> None:
        """With an environment, leave out prompts that no conversation can begin with."""
        if self.environments:
            self.setup = make_play_setup(config, self.tokenizer, end_ids, self.environments)
            self.rows = playable_rows(config, self.setup, self.rows, config.data)
            self.held_out = playable_rows(config, self.setup, self.held_out, "held-out prompts")


def load_reward(config: Config) -> Reward:
    """The configured reward functions, by default those of the embedded task with its data."""
    return Reward(specs_for(config.data, config.reward), call_limits(config))


def load_inputs(config: Config) -> Inputs:
    """Read prompts, rewards and environments, and check them."""
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    environments, reward = load_with_reward(config, tokenizer) if config.environment else (None, load_reward(config))
    inputs = Inputs(tokenizer, rows, held_out, reward, environments)
    validate(config, inputs=inputs)
    return inputs


def validate(config: Config, processes: int = 1, inputs: Inputs | None = None, models: Models | None = None) -> None:
    """Raise UserError for what cannot work: of the settings alone, then of the inputs, then of inputs with models."""
    if models:
        if inputs.environments:
            limit = getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None)
            check_fits(config, limit)
        else:
            check_context(config, models, inputs.rows + inputs.held_out)
    elif inputs:
        rows = inputs.rows + inputs.held_out
        for row in rows[:: max(1, len(inputs.rows))]:
            inputs.reward.check_columns(row)
        if inputs.environments:
            check_environment_rows(inputs.environments, rows)
    else:
        check_config(config, processes)  # ranges, choices, the algorithm's contradictions, the batch; says what is idle
        check_loss(config)
        check_band(config, config.group_size)
        check_idle(config, bool(config.environment), (*TURN_SETTINGS, "turn_baseline"))
        check_turn_baseline(config)
        check_room(config, config.max_prompt_tokens)


def check_turn_baseline(config: Config) -> None:
    """Raise UserError unless the estimator can compare turn by turn, where it has to."""
    by_turn = [name for name, entry in ADVANTAGES.items() if getattr(entry, "by_turn", False)]
    need(
        config.turn_baseline == "conversation" or estimator(config).by_turn,
        f"got --turn_baseline turn with advantage {config.advantage}; expected one of {', '.join(by_turn)}; "
        "try --algorithm rloo",
    )
