"""Settings of the trainer."""

from dataclasses import dataclass

from parts.foundation.settings import in_order, parse_settings, setting
from parts.learning.advantages import ADVANTAGES
from parts.learning.losses import AGGREGATIONS, LOSSES
from parts.learning.own_functions import NamesOrFiles, enter_own
from parts.learning.trainer_settings import PolicySettings


@in_order(advantage="group_size")
@dataclass
class Config(PolicySettings):
    """All settings and their defaults: those of PolicySettings and these; each is a flag and a key of --config."""

    # algorithm: choices
    advantage: str = setting(
        None, "advantage estimator, or your own, FILE.py:function of scores, groups …", lambda: NamesOrFiles(ADVANTAGES)
    )
    loss: str = setting(
        None, "policy loss, or your own, FILE.py:function of logprobs, old_logprobs …", lambda: NamesOrFiles(LOSSES)
    )
    aggregation: str = setting(None, "how token losses become one number", lambda: list(AGGREGATIONS))

    def __post_init__(self):
        super().__post_init__()
        enter_own(self)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)
