"""Names in the pinned TRL: configs with their defaults, arguments of trainers, names in modules."""

import functools
import json

from parts.foundation.file_text import file_text

TRL_NAMES = file_text("trl_names.json")


@functools.cache
def trl_today(kind: str) -> dict:
    """The table `defaults` by config, `trainers` or `modules`."""
    return json.loads(TRL_NAMES)[kind]


def trl_defaults(config: str) -> dict:
    """{setting: default} of a TRL config, including the settings of transformers' TrainingArguments."""
    return trl_today("defaults")["TrainingArguments"] | trl_today("defaults").get(config, {})
