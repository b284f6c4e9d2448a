"""What a run is given: prompts, teachers, an optional reward; and all checks of it."""

from dataclasses import dataclass

from parts.data.prompts import load_splits
from parts.networks.models import check_context, load_tokenizer
from parts.rewards.rewards import Reward
from programs.on_policy_distillation.models import load_reward
from programs.on_policy_distillation.settings import Config, check_config
from programs.on_policy_distillation.teachers import check_teachers, teacher_specs


@dataclass
class Inputs:
    """What a run is given beside its settings."""

    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    reward: Reward


def load_inputs(config: Config) -> Inputs:
    """Read prompts and rewards, and check them."""
    reward, tokenizer = load_reward(config), load_tokenizer(config)
    inputs = Inputs(tokenizer, *load_splits(config, tokenizer), reward)
    validate(config, inputs=inputs)
    return inputs


def validate(config: Config, processes: int = 1, inputs: Inputs | None = None, models=None) -> None:
    """Raise UserError for what cannot work: of the settings alone, then of the inputs, then of inputs with models."""
    if models:
        check_context(config, models, inputs.rows + inputs.held_out)
    elif inputs:
        for row in (inputs.rows + inputs.held_out)[:: max(1, len(inputs.rows))]:
            inputs.reward.check_columns(row)
        check_teachers(config, inputs.tokenizer, inputs.rows, inputs.held_out)
    else:
        check_config(config, processes)  # ranges, choices, the objective, the batch; says what is idle
        teacher_specs(config)
