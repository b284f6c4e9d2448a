"""Facts from a model's files: shape, number of weights, end tokens, and the template for our token ids."""

import contextlib
import json
import math
import re
import struct
from pathlib import Path

from parts.data.chat import template_text
from parts.data.rows import hub_is_reached
from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import need, say
from parts.networks.tokenizers import ending_ids
from programs.verl_train.settings import Config


def count_parameters(config: Config) -> float | None:
    """Number of weights: from the headers of safetensors files, or from a size in the model's name."""
    total = 0
    for path in Path(config.model).glob("*.safetensors") if Path(config.model).is_dir() else ():
        header = safetensors_header(path)
        total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(config.model).name.upper())
    return total or (float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] if size else None)


def model_shape(config: Config) -> dict:
    """config.json of a model folder, or of the hub's copy on this machine; empty where there is none."""
    folder = Path(config.model)
    if not folder.is_dir():
        with contextlib.suppress(ImportError, ValueError):
            from huggingface_hub import try_to_load_from_cache

            file = try_to_load_from_cache(config.model, "config.json")
            folder = Path(file).parent if isinstance(file, str) else folder
    with contextlib.suppress(OSError, ValueError):
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return shape | (shape.get("text_config") or {})
    return {}


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
