"""Rows with completions of their own, and which teacher a row goes to."""

from parts.foundation.messages import need, suggest
from programs.on_policy_distillation.settings import Config


def data_completion(config: Config, row: dict) -> str:
    """The completion that the data have for a prompt: a string, or one assistant message."""
    value = row["columns"].get(config.completion_column)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    need(
        isinstance(value, str) and value,
        f"{config.data}, prompt {str(row['prompt'])[:60]!r}: got {config.completion_column} {str(value)[:60]!r}; "
        "expected a string or one assistant message; try --completion_column NAME",
    )
    return value


def data_sample(config: Config, models, row: dict) -> dict:
    """A row of the data as if the student had written its completion; the end token is part of it."""
    text, end = data_completion(config, row), models.tokenizer.eos_token_id
    end = end if end in models.eos_ids else models.eos_ids[0]
    ids = [*models.tokenizer(text, add_special_tokens=False).input_ids, end]
    finished, ids = len(ids) <= config.max_new_tokens, ids[: config.max_new_tokens]
    sample = {"prompt": row["prompt"], "prompt_ids": row["prompt_ids"], "completion": text, "response_ids": ids}
    sample |= {"rollout_logprobs": [0.0] * len(ids), "finished": finished, "rewards": {}, "score": 0.0}
    return sample | {"group": -1, "weights": {}, "offpolicy": True}


def check_rows(config: Config, rows: list[dict], held_out: list[dict], names: list[str]) -> None:
    """Raise UserError for rows without a teacher, or without a completion where those of the data are used."""
    for row in rows + held_out:
        teacher_of(config, row, names)
    for row in rows if config.offpolicy_frac else []:
        data_completion(config, row)


def teacher_of(config: Config, row: dict, names: list[str]) -> int:
    """Index of the teacher of a row."""
    if not config.teacher_column:
        return 0
    value = str(row["columns"].get(config.teacher_column))
    need(
        value in names,
        f"prompt {str(row['prompt'])[:60]!r}: got {config.teacher_column} {value!r}; expected one of "
        f"{', '.join(names)}{suggest(value, names)}",
    )
    return names.index(value)
