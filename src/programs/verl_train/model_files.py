"""What the files of a model tell: its shape, its number of weights, the tokens that end an answer."""

import contextlib
import json
import math
import re
import struct
from pathlib import Path

from parts.foundation.messages import need
from programs.verl_train.settings import Config


def count_parameters(config: Config) -> float | None:
    """Number of weights: as given, from the headers of safetensors files, or from a size in the model's name."""
    units = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
    if config.parameters:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", config.parameters.upper())
        need(match, f"got parameters {config.parameters!r}; expected a number such as 7B or 500M")
        return float(match[1]) * units[match[2]]
    total = 0
    for path in Path(config.model).glob("*.safetensors") if Path(config.model).is_dir() else ():
        header = safetensors_header(path)
        total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(config.model).name.upper())
    return total or (float(size[1]) * units[size[2]] if size else None)


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
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def parquet_length(path: str) -> int:
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(path).num_rows
