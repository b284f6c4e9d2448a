"""Prompts as a data set."""

from parts.data.chat import as_turns, check_template, template_settings
from parts.data.prompts import RESERVED, checked_ids
from parts.data.question_parts import warn_unread
from parts.data.rows import check_prompt, read_rows
from parts.foundation.messages import need, say, suggest
from parts.networks.models import open_tokenizer
from programs.grpo_train.settings import Config, trainer_fields

TRL_EXTRAS = ("trainer_state", "log_extra", "log_metric")  # what TRL gives a reward beside the columns


def trl_template_settings(config: Config) -> dict:
    """Settings of the chat template, from --chat_template_kwargs or TRL's field of that name in --trainer_args."""
    ours, theirs = template_settings(config), trainer_fields(config.trainer_args).get("chat_template_kwargs") or {}
    need(not (ours and theirs), "got chat_template_kwargs in --trainer_args too; expected it once; try it as a flag")
    return ours or theirs


def load_task(config: Config, tokenizer, source: str) -> list[dict]:
    """Return rows {"prompt", "prompt_ids", "columns"}; over-long prompts are left out and counted on stderr."""
    rows, column = read_rows(source), config.prompt_column
    need(rows, f"got data {source!r} without rows; expected at least one")
    reserved = {*RESERVED, *TRL_EXTRAS, column}
    template, kept = trl_template_settings(config), []
    for number, row in enumerate(rows, start=1):
        where = f"{source}, row {number}"
        near = (
            suggest(column, list(row)).replace("try", "try --prompt_column")
            or "; try --prompt_column NAME, or data_loader.py"
        )
        need(column in row, f"{where}: got columns {', '.join(map(str, row))}; expected {column!r}{near}")
        given = row[column]
        check_prompt(given, where)
        prompt = as_turns(given, config.chat)
        kinds = "a string and chat messages" if isinstance(prompt, str) else "chat messages and a string"
        first = as_turns(kept[0]["prompt"], config.chat) if kept else prompt
        alike = isinstance(first, str) == isinstance(prompt, str)
        need(alike, f"{where}: got prompts of two kinds, {kinds}; expected one kind, as TRL templates all alike")
        need(
            isinstance(prompt, str) or tokenizer.chat_template,
            f"{where}: got chat messages, but the tokenizer of {config.model!r} has no chat template; expected one; "
            "try the model's -Instruct or -it variant, or prompts that are plain strings",
        )
        ids = checked_ids(tokenizer, prompt, where, **template)
        if len(ids) <= config.max_prompt_length:
            columns = {name: value for name, value in row.items() if name not in reserved}
            kept.append({"prompt": given, "prompt_ids": ids, "columns": columns})
    too_long = f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {config.max_prompt_length} tokens"
    need(kept, f"{source}: got {too_long}; expected some that fit; try a higher --max_prompt_length")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    check_template(config, tokenizer, source, [row["prompt"] for row in kept])
    warn_unread(source, [(row, row[column]) for row in rows])
    return kept


def left_tokenizer(config: Config):
    """The model's tokenizer, padding on the left."""
    tokenizer = open_tokenizer(config, padding_side="left", truncation_side="left")
    need(tokenizer.eos_token_id is not None, f"got model {config.model!r} without an end token; expected eos_token")
    return tokenizer
