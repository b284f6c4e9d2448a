"""Settings of the trainer."""

from dataclasses import dataclass

from parts.data.pass_band import check_band
from parts.environments.play_setup import TURN_SETTINGS, check_idle, check_room
from parts.foundation.messages import need
from parts.foundation.settings import in_order, parse_settings, setting
from parts.learning.advantages import ADVANTAGES
from parts.learning.aggregation import AGGREGATIONS
from parts.learning.losses import LOSSES
from parts.learning.own_functions import NamesOrFiles, enter_own
from parts.learning.trainer_settings import PolicySettings

TURN_BASELINES = ("grpo", "mean", "rloo")  # estimators that can compare turn by turn


@in_order(advantage="group_size")
@dataclass
class Config(PolicySettings):
    """All settings and their defaults: those of PolicySettings and these; each is a flag and a key of --config."""

    # algorithm: choices
    advantage: str = setting(
        None,
        "advantage estimator, or your own, FILE.py:function of scores, groups …",
        lambda: NamesOrFiles(ADVANTAGES),
    )
    loss: str = setting(
        None, "policy loss, or your own, FILE.py:function of logprobs, old_logprobs …", lambda: NamesOrFiles(LOSSES)
    )
    aggregation: str = setting(None, "how token losses become one number", lambda: list(AGGREGATIONS))

    def __post_init__(self):
        super().__post_init__()
        enter_own(self)


def check_environment(config: Config) -> None:
    """Raise UserError for settings that contradict an environment, or do nothing without one."""
    c = config
    check_band(c, c.group_size)
    check_idle(c, bool(c.environment), (*TURN_SETTINGS, "turn_baseline"))
    by_turn = c.turn_baseline == "turn" and c.advantage not in TURN_BASELINES
    known = f"expected one of {', '.join(TURN_BASELINES)}"
    need(not by_turn, f"got --turn_baseline turn with advantage {c.advantage}; {known}; try --algorithm rloo")
    check_room(c, c.max_prompt_tokens)


def parse_config(argv: list[str], config_class=Config, description: str = __doc__):
    """Return the settings of a command line: defaults, then --config, then flags; a later one wins."""
    return parse_settings(argv, config_class, description)
