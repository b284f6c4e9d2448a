"""Rows and a model's files as verl reads them."""

import contextlib
import json
import math
import os
import re
import struct
from pathlib import Path

from parts.data.chat import template_text
from parts.data.rows import hub_is_reached, parquet_records, prompt_of
from parts.data.verl_layout import OWN_INFO, ground_truth_of, info_key
from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import need, say
from parts.networks.tokenizers import ending_ids
from programs.verl_train.settings import Config

FOREIGN = {"data_source", "prompt", "reward_model"}  # the columns that tell a row in verl's form


def verl_rows(
    rows: list[dict], prompt_column: str, split="train", source="data", conversations=False, places=()
) -> tuple[list[dict], list[str]]:
    """Rows in verl's five columns, and the names of the columns that reward functions get.

    `source` is for rows without one; verl groups its validation metrics by it. `conversations` begin with a user's turn
    and note which columns their row lacks. Messages name a row by its entry in `places`. A column that is not text,
    numbers or booleans throughout is JSON text, and named in `json_columns`. Rows that others wrote in verl's form stay
    as they are, with agent_name, tools_kwargs, ….
    """
    foreign = False
    if rows and FOREIGN <= set(rows[0]) and isinstance(rows[0]["reward_model"], dict):
        foreign = all(not (row.get("extra_info") or {}).get("ground_truth_field") for row in rows)
        as_given, rows = rows, [{prompt_column: row["prompt"], **row_columns(row)} for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row if name != prompt_column))
    texts = {name for name in names if not is_plain([row.get(name) for row in rows])}
    written = []
    for index, row in enumerate(rows):
        where = places[index] if places else f"row {index + 1}"
        prompt = prompt_of(row, prompt_column, where)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        need(
            messages[-1]["role"] != "assistant",
            f"{where}: got a prompt that ends in an assistant's turn, after which verl begins another; expected a "
            "user's; try ppo_train.py or grpo_train.py, which continue it",
        )
        odd = sorted({key for message in messages for key in message} - {"role", "content"})
        need(not odd, f"{where}: got messages with {', '.join(odd)}; expected only role and content in verl's parquet")
        made = as_given[index] if foreign else parquet_row(row, index, (split, source), names, texts)
        written.append({**made, "prompt": messages, "extra_info": {**(made.get("extra_info") or {})}})
        if conversations:
            written[-1]["extra_info"]["absent_columns"] = [name for name in names if name not in row]
        elif isinstance(prompt, str):
            written[-1]["extra_info"]["prompt_is_text"] = True
    return written, [name for name in names if name not in ("prompt", "prompts", "completions", "completion_ids")]


def is_plain(values: list) -> bool:
    """Whether parquet holds a column as it is: text, booleans, 64-bit integers or numbers throughout, or nothing."""
    kinds = {type(value) for value in values if value is not None}
    return kinds in ({str}, {bool}, {float}) or (kinds == {int} and all(abs(v or 0) < 2**63 for v in values))


def parquet_row(row: dict, index: int, origin: tuple[str, str], names: list[str], texts: set[str]) -> dict:
    """One row without its prompt; a column that only other rows have is null."""
    gold, field, truth = ground_truth_of(row)
    extra, coded = {"index": index, "split": origin[0], "ground_truth_field": field}, []
    for name in names:
        value = None if name == gold else row.get(name)
        key = info_key(name)
        if name in texts and value is not None:
            coded.append(key)
            value = json.dumps(value, ensure_ascii=False)
        extra[key] = value
    return {
        "data_source": row.get("source") if isinstance(row.get("source"), str) and row["source"] else origin[1],
        "ability": "code" if "tests" in row else "math" if "answer" in row else "chat",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {**extra, "json_columns": coded},
    }


def row_columns(row: dict) -> dict:
    """The columns of a row in verl's schema, as they were before; a foreign row's answer is its ground truth."""
    extra, truth = row.get("extra_info") or {}, (row.get("reward_model") or {}).get("ground_truth")
    coded = extra.get("json_columns")
    coded = set() if coded is None else {*coded}  # an array where pandas read the row
    columns = {
        name.removeprefix("column:"): json.loads(value) if name in coded and value is not None else value
        for name, value in extra.items()
        if name not in OWN_INFO
    }
    name, _, form = str(extra.get("ground_truth_field") or "").partition(":")
    if name and name != "none":
        columns[name] = json.loads(truth) if form == "json" else truth
    elif not name:  # not written here or by data_loader.py
        columns = {"source": row.get("data_source"), "answer": truth, "ground_truth": truth, **columns}
    absent = {*(extra.get("absent_columns") or ())}
    return {name: value for name, value in columns.items() if name not in absent}


def write_parquet_file(rows: list[dict], path: Path) -> None:
    """Write rows in verl's schema; the file appears whole or not at all."""
    import pyarrow
    import pyarrow.parquet

    names, temporary = dict.fromkeys(name for row in rows for name in row), path.with_suffix(".tmp")
    table = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    pyarrow.parquet.write_table(table, temporary)
    os.replace(temporary, path)


def parquet_rows(path: Path) -> list[dict]:
    return [row for _, row in parquet_records(str(path))]


def count_parameters(config: Config) -> float | None:
    """Number of weights: from the headers of safetensors files, or from a size in the model's name."""
    total = 0
    for path in Path(config.model).glob("*.safetensors"):
        header = safetensors_header(path)
        total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(config.model).name.upper())
    return total or (float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] if size else None)


def safetensors_header(path: Path) -> dict:
    with path.open("rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def end_ids_of(path: str, tokenizer) -> list[int]:
    """The tokens that end an answer: those of a model's generation config, and the tokenizer's own."""
    from transformers import GenerationConfig

    ends = None
    with contextlib.suppress(OSError, ValueError):
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    return ending_ids(ends, tokenizer)


def longest_context(path: str) -> int | None:
    """The positions that a model has; None where its configuration names none, or is not here."""
    from transformers import PreTrainedConfig

    with contextlib.suppress(OSError, ValueError):
        shape, _ = PreTrainedConfig.get_config_dict(path)  # also of a class that transformers does not have
        return (shape | (shape.get("text_config") or {})).get("max_position_embeddings")


def parquet_length(path: str) -> int:
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(path).num_rows


def own_template(model: str) -> bool:
    """Whether a model brings a chat template; a hub id is taken to."""
    folder = Path(model)
    if not folder.is_dir() or (folder / "chat_template.jinja").exists():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and bool(json.loads(settings.read_text(encoding="utf-8")).get("chat_template"))


def plain_text_template(model: str) -> str:
    """A template that writes text as it is, after the start token that the tokenizer puts before plain text."""
    start = ""
    with contextlib.suppress(OSError, ValueError):
        from transformers import AutoTokenizer

        if not Path(model).is_dir():
            hub_is_reached()  # or its client would try again for a minute
        tokenizer = AutoTokenizer.from_pretrained(model)
        start = "{{ bos_token }}" if tokenizer("x").input_ids[0] == tokenizer.bos_token_id is not None else ""
    return start + "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def chat_template(model: str, rows: list[dict], chat: bool = False, file: str = "") -> str | None:
    """The chat template that gives verl our token ids: that of --chat_template, or where prompts are plain text."""
    is_text = {row["extra_info"].get("prompt_is_text", False) for row in rows}
    need(chat or len(is_text) == 1, "got both text prompts and chat messages; expected one kind with verl")
    has_template = file or own_template(model)
    has = f"got --chat, but {model!r} has no chat template; expected one; try --chat_template FILE"
    need(has_template or not chat, has)
    if is_text == {True} and not chat:
        if has_template and model != EMBEDDED_MODEL:
            say(
                f"warning: {len(rows)} prompts are strings, which bypass the chat template of {model}: right for a "
                "base model, but an instruct model rarely answers, and rewards stay near 0; try --chat"
            )
        return plain_text_template(model)
    if file or has_template:
        return template_text(file) if file else None
    say("warning: chat prompts, but the tokenizer has no chat template: messages are joined by newlines")
    return "{% for message in messages %}{{ message['content'] }}{{ '\\n' }}{% endfor %}"
