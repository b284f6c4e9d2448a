"""Prompts that may train, and their solutions as token ids with the end token."""

import dataclasses
import json
import re
from types import SimpleNamespace

from parts.data.chat import as_turns, check_template, template_settings, write_chat
from parts.data.held_out import asked_words, split_command
from parts.data.prompts import encode_text, load_splits
from parts.foundation.bundle import specs_for
from parts.foundation.messages import need, say
from parts.networks.adapters import base_of
from parts.networks.loading import generation_settings
from parts.networks.tokenizers import ending_ids, load_tokenizer
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.text_servers import is_server
from parts.rewards.user_code import visible_text
from programs.warm_start.settings import Config


def check_leaks(rows: list[dict], held_out: list[dict], source: str) -> None:
    """Raise UserError where a prompt of `source` is held out too, but for case, white space or system prompt."""
    alike = {asked_words(row["prompt"]) for row in held_out}
    leaks = [row["prompt"] for row in rows if asked_words(row["prompt"]) in alike]
    first = json.dumps(leaks[:1], ensure_ascii=False)[:120]
    got = f"{source}: got {len(leaks)} of {len(rows)} prompts that are held out too, such as {first}"
    need(not leaks, f"{got}; expected none; try {split_command('FILE')}")


def without_solutions(rows: list[dict]) -> list[dict]:
    """Rows as RL will have them: a reward must not find the solution in the column `completion`."""
    return [row | {"columns": {k: v for k, v in row["columns"].items() if k != "completion"}} for row in rows]


def solution_text(config: Config, row: dict) -> str:
    """The solution that the data have for a prompt: a string, or one assistant message."""
    value = row["columns"].get(config.completion_column)
    got = f"{config.data}, prompt {json.dumps(row['prompt'])[:80]}: got {config.completion_column} {str(value)[:60]!r}"
    expected = "expected a solution, a string or one assistant message"
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        more = [key for key, held in value[0].items() if key not in ("role", "content") and held]
        need(not more, f"{got} with {', '.join(more)}; {expected}; try writing all that it says into its content")
        value = value[0].get("content") if value[0].get("role") == "assistant" else None
    remedy = "--completion_column NAME, data_loader.py, --self or --teacher"
    need(isinstance(value, str) and value.strip(), f"{got}; {expected}; try {remedy}")
    return value


def continued_ids(config: Config, tokenizer, row: dict, text: str) -> list[int]:
    """What stands after the prompt's ids where prompt and text are rendered together; nothing if those change."""
    sent, prompt_ids = as_turns(row["prompt"], config.chat), row["prompt_ids"]
    try:
        if isinstance(sent, str):
            whole = encode_text(tokenizer, sent + text)
        elif tokenizer.chat_template:
            before, begun = (sent[:-1], sent[-1]["content"]) if sent[-1]["role"] == "assistant" else (sent, "")
            answered = [*before, {"role": "assistant", "content": begun + text}]
            whole = write_chat(tokenizer, answered, **template_settings(config))
            whole = tokenizer(whole, add_special_tokens=False).input_ids
        else:
            return []
    except Exception:  # a template raises what it likes; the text alone is encoded then
        return []
    whole = list(whole)
    return whole[len(prompt_ids) :] if whole[: len(prompt_ids)] == prompt_ids else []


def without_opened_tag(tokenizer, row: dict, text: str) -> str:
    """The solution less a tag at its beginning, such as <think>, that the prompt opens at its end already."""
    opened = re.search(r"(<\w+>)(\s*)$", tokenizer.decode(row["prompt_ids"]))
    if opened and text.lstrip().startswith(opened[1]):
        return text.lstrip().removeprefix(opened[1]).removeprefix(opened[2])
    return text


def solution_ids(config: Config, models, row: dict, text: str) -> list[int]:
    """Token ids of a solution with one end token, as the policy would sample them after the row's prompt_ids.

    Where the chat template renders prompt and answer so that the prompt's ids stay, its ids are taken up to the first
    end token, if they read as the text; else the text's own.
    """
    tokenizer, ends = models.tokenizer, models.eos_ids
    text = without_opened_tag(tokenizer, row, text)
    behind = continued_ids(config, tokenizer, row, text)
    at = next((i for i, token in enumerate(behind) if token in ends), len(behind))
    end = behind[at] if at < len(behind) else tokenizer.eos_token_id
    end = end if end in ends else ends[0]
    if behind and visible_text(tokenizer, behind[:at], []) == text:
        return [*behind[:at], end]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    while ids and ids[-1] in ends:  # the text may hold its end token already
        ids = ids[:-1]
    got = f"got solution {text[:80]!r}, which is empty or has an end token inside"
    need(ids and not {*ids} & {*ends}, f"{got}; expected one at its end at most; try removing it from the text")
    return [*ids, end]


def given_solutions(config: Config, tokenizer, reward: Reward, rows: list[dict]) -> list[dict]:
    """The data's own solutions that end within max_new_tokens and pass the reward, each once; no weights are loaded."""
    ends = ending_ids(generation_settings(base_of(config.model)).eos_token_id, tokenizer)
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    models, bare = SimpleNamespace(tokenizer=tokenizer, eos_ids=ends), without_solutions(rows)
    solutions, long = {}, 0
    for i, row in enumerate(rows):
        text = solution_text(config, row)
        ids = solution_ids(config, models, row, text)
        long += len(ids) > config.max_new_tokens
        if len(ids) <= config.max_new_tokens:
            one = {"row": i, "text": text, "ids": ids, "prompt": row["prompt"]}
            solutions.setdefault((json.dumps(row["prompt"]), text), one)
    kept = [*solutions.values()]
    texts = [visible_text(tokenizer, one["ids"], ends) for one in kept]
    _, parts = reward([bare[one["row"]] for one in kept], texts, [one["ids"] for one in kept])
    first = next(iter(parts.values()), [])
    passing = [one for one, score in zip(kept, first, strict=True) if score is not None and score >= config.pass_score]
    repeated, failing = len(rows) - long - len(kept), len(kept) - len(passing)
    if long or repeated or failing:
        say(
            f"{config.data}: left out {failing} of {len(rows)} solutions as the reward does not pass them, {long} over "
            f"{config.max_new_tokens} tokens, {repeated} duplicates"
        )
    example = f"; the first that fails is {texts[0][-80:]!r}" if texts else "; try a higher --max_new_tokens"
    got = f"{config.data}: got no solution of {len(rows)} that ends within {config.max_new_tokens} tokens and passes"
    need(passing, f"{got} the first reward{example}; expected solutions in the form that the reward pays")
    return passing


def load_prompts_and_reward(config: Config) -> tuple:
    """(tokenizer, reward, rows, held-out rows), checked: columns and leaks."""
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer, check=lambda _, *rows: check_leaks(*rows, config.data))
    reward = Reward(specs_for(config.data, config.reward), call_limits(config))
    got = "got no --eval_data or --hold_out; expected held-out prompts, which show when RL can begin"
    need(held_out, f"{got}; try {split_command('FILE')}, which writes part.eval.jsonl too")
    if config.teacher and not is_server(config.teacher):
        of_teacher = dataclasses.replace(config, model=config.teacher, chat_template="")
        prompts = [row["prompt"] for row in rows]
        check_template(of_teacher, load_tokenizer(of_teacher), f"--teacher {config.teacher}", prompts)
    for row in without_solutions((rows + held_out)[:: max(1, len(rows))]):
        reward.check_columns(row)
    return tokenizer, reward, rows, held_out
