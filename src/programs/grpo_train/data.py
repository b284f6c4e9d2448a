"""Prompts as a data set."""

from parts.data.prompts import load_prompts
from parts.foundation.messages import need
from parts.networks.models import open_tokenizer
from programs.grpo_train.settings import Config

TRL_EXTRAS = ("trainer_state", "log_extra", "log_metric")  # what TRL gives a reward beside the columns


def load_task(config: Config, tokenizer, source: str) -> list[dict]:
    """Rows of `load_prompts`, without the columns that TRL gives a reward itself."""
    rows = load_prompts(config, tokenizer, source)
    for row in rows:
        for name in TRL_EXTRAS:
            row["columns"].pop(name, None)
    return rows


def left_tokenizer(config: Config):
    """The model's tokenizer, padding on the left."""
    tokenizer = open_tokenizer(config, padding_side="left", truncation_side="left")
    need(tokenizer.eos_token_id is not None, f"got model {config.model!r} without an end token; expected eos_token")
    return tokenizer
