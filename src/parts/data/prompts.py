"""Load training and held-out prompts as token ids."""

import contextlib
from collections.abc import Iterator

from parts.data.chat import as_turns, chat_ids, check_template, joined_text, template_settings
from parts.data.held_out import hold_out, mark_trained
from parts.data.rows import placed_rows, prompt_of
from parts.foundation.bundle import has_sibling, held_out_source, sibling
from parts.foundation.messages import UserError, need, say, say_once
from parts.foundation.processes import np
from parts.foundation.settings import BaseConfig

RESERVED = ("prompt", "prompts", "completions", "completion_ids")  # reward arguments that come from the run, not data


def encode_text(tokenizer, text: str) -> list[int]:
    """Token ids of a text to be continued, without an added end token or a duplicate of its own BOS or prefix."""
    ids = list(tokenizer(text).input_ids)
    if ids and (ids[0] in ids[1:4] or ids[-1] == tokenizer.eos_token_id):  # perhaps a duplicate, or an added end
        bare = list(tokenizer(text, add_special_tokens=False).input_ids)
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id != (bare or [None])[-1]:
            ids.pop()
        for n in (1, 2, 3):
            if ids[n : n + len(bare)] == bare and bare[:n] == ids[:n]:
                return ids[n:]
    return ids


def encode_prompt(tokenizer, prompt, **template) -> list[int]:
    """Token ids of a prompt up to where the model writes; messages are rendered by the chat template, if any."""
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt)
    if tokenizer.chat_template:
        return chat_ids(tokenizer, prompt, **template)
    return encode_text(tokenizer, joined_text(prompt))


@contextlib.contextmanager
def refusals_told(where: str = "") -> Iterator[None]:
    """Raise what a chat template raises, such as "system role not supported", as a UserError."""
    try:
        yield
    except Exception as error:  # templates may raise anything
        raise UserError(
            f"{where}got a prompt that the chat template refuses ({error}); expected roles that it knows; try the "
            "system message's text at the start of the user's, or --chat_template FILE"
        ) from error


def checked_ids(tokenizer, prompt, where: str, **template) -> list[int]:
    """`encode_prompt`, with UserError if the template refuses the prompt or it has no tokens."""
    with refusals_told(f"{where}: "):
        ids = encode_prompt(tokenizer, prompt, **template)
    need(ids, f"{where}: got a prompt without tokens; expected at least one")
    return ids


def prompt_row(row: dict, column: str, where: str) -> dict:
    """A row of data as {"prompt", "columns"}; UserError if it has no prompt in that column."""
    reserved = {*RESERVED, column}
    columns = {name: value for name, value in row.items() if name not in reserved}
    return {"prompt": prompt_of(row, column, where), "columns": columns}


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> dict[str, int]:
    """Warn of odd prompts and answers, and of unread columns, whose counts it returns; `asked`: (row, prompt) pairs.

    This bundle's data_loader.py does it; without that file beside the script, a note says so.
    """
    try:
        checks = sibling("data_loader").warn_unread if has_sibling("data_loader") else None
    except Exception:  # an older copy, or an edited one
        checks = None
    if checks:
        return checks(source, asked)
    say_once(
        "note: the data's questions and answers are not checked, as this version's data_loader.py is not beside this "
        "script; try `python scripts/data_loader.py FILE --validate` in the bundle"
    )
    return {}


def read_prompts(source: str, column: str) -> list[tuple[str, dict]]:
    """(place, row) of each row; chats without a column `prompt` are read as data_loader.py reads them."""
    rows, chats = placed_rows(source), {"messages", "conversations", "conversation"}
    are_chats = rows and not any("prompt" in row or chats.isdisjoint(row) for _, row in rows)
    if not are_chats or column != "prompt" or not has_sibling("data_loader"):
        return rows
    loader = sibling("data_loader")
    try:
        read = loader.load_rows(source).rows
    except loader.UserError as error:
        raise UserError(f"data_loader.py: {error}") from None
    last = "; the last answer of a chat is the column completion" if any("completion" in row for row in read) else ""
    say(f"note: {source}: read by data_loader.py{last}")
    return [(f"{source}, row {row['id']}", row) for row in read]


def load_prompts(config: BaseConfig, tokenizer, source: str) -> list[dict]:
    """Rows {"prompt", "prompt_ids", "columns", "place"} of a source; prompts that are too long are only counted."""
    rows = read_prompts(source, config.prompt_column)
    need(rows, f"got data {source!r} without rows; expected at least one")
    kept, template = [], template_settings(config)
    for place, row in rows:
        known = prompt_row(row, config.prompt_column, place)
        ids = checked_ids(tokenizer, as_turns(known["prompt"], config.chat), place, **template)
        if len(ids) <= config.max_prompt_tokens:
            kept.append(known | {"prompt_ids": ids, "place": place})
    too_long = f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {config.max_prompt_tokens} tokens"
    need(kept, f"{source}: got {too_long}; expected some that fit; try a higher --max_prompt_tokens")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    check_template(config, tokenizer, source, [row["prompt"] for row in kept])
    warn_unread(source, [(row, row[config.prompt_column]) for _, row in rows])
    return kept


def load_splits(config: BaseConfig, tokenizer, check=mark_trained) -> tuple[list[dict], list[dict]]:
    """(training rows, held-out rows for evaluations); `check(config, rows, held_out)` compares the two."""
    rows, held_out = load_prompts(config, tokenizer, config.data), []
    if config.hold_out:
        rows, held_out = hold_out(config, rows)
    elif source := held_out_source(config):
        held_out = load_prompts(config, tokenizer, source)
    evaluated = evaluated_rows(config, held_out)
    check(config, rows, evaluated)
    return rows, evaluated


def evaluated_rows(config: BaseConfig, rows: list) -> list:
    """Draw `eval_rows` held-out rows (0: all), in their order; every run draws the same ones, so that runs compare."""
    if not 0 < config.eval_rows < len(rows):
        return rows
    say(f"held-out: {config.eval_rows} of {len(rows)} rows, the same in every evaluation; --eval_rows 0 takes all")
    picked = np.random.default_rng(0).permutation(len(rows))[: config.eval_rows]
    return [rows[i] for i in sorted(picked.tolist())]
