"""Tokenizers: loading and saving, the tokens that end a completion, the rows that belong to tokens."""

from pathlib import Path

from parts.data.chat import give_template
from parts.data.rows import is_hub_id
from parts.foundation.messages import UserError, need
from parts.foundation.processes import transformers
from parts.foundation.settings import BaseConfig
from parts.networks.adapters import tokenizer_of
from parts.networks.models import unwrapped
from parts.networks.whole_models import LOADABLE


def read_tokenizer(source: str, base: str = "", **options):
    """A model's tokenizer; UserError if it does not load, or if transformers finds none and builds an empty one."""
    known = Path(source).is_dir() or is_hub_id(source)
    need(known, f"got model {source!r}, which is not a folder, nor a hub id; {LOADABLE}")
    folder, files = Path(tokenizer_of(source, base)), ("tokenizer.json", "tokenizer.model", "vocab.json")
    bare = folder.is_dir() and not any((folder / file).exists() for file in files)
    missing = "a tokenizer: try copying tokenizer.json and tokenizer_config.json from the model that it was made of"
    missing = missing if (folder / "config.json").exists() else "a config.json: try a folder of save_pretrained"
    without = f"got model {source!r}, a folder without {missing}"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, **options)
    except Exception as error:  # of a broken tokenizer.json: KeyError, or tokenizers' own
        why = f"got model {source!r}, whose tokenizer does not load: {' '.join(str(error).split())}; {LOADABLE}"
        raise UserError(without if bare else why) from error
    added = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    need(not bare or tokenizer.get_vocab().keys() - added, without)
    return tokenizer


def open_tokenizer(config: BaseConfig, **options):
    """The tokenizer of config.model, with --chat_template set."""
    tokenizer = read_tokenizer(config.model, **options)
    give_template(tokenizer, config.chat_template)
    return tokenizer


def load_tokenizer(config: BaseConfig):
    """The tokenizer of a model that is trained or sampled; it remembers its loaded state for `save_tokenizer`."""
    transformers.logging.set_verbosity_error()  # a critic takes a policy's weights without its head on purpose
    transformers.logging.disable_progress_bar()
    tokenizer = open_tokenizer(config)
    backend = getattr(tokenizer, "backend_tokenizer", None)  # each call overwrites its padding and truncation
    tokenizer.files_ask_for = (backend.padding, backend.truncation) if backend else (None, None)
    return tokenizer


def save_tokenizer(tokenizer, folder: Path) -> None:
    """Save a tokenizer of `load_tokenizer` with the padding and truncation that it was loaded with."""
    backend, (padding, truncation) = getattr(tokenizer, "backend_tokenizer", None), tokenizer.files_ask_for
    if backend:
        backend.enable_padding(**padding) if padding else backend.no_padding()
        backend.enable_truncation(**truncation) if truncation else backend.no_truncation()
    tokenizer.save_pretrained(folder)


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """Sorted ids of the tokens that end an answer: a model's eos_token_id (one or a list) and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def end_and_pad_ids(config: BaseConfig, policy, tokenizer) -> tuple[list[int], int]:
    """(ids of tokens that end a completion, pad id). Masks never depend on the pad."""
    rows = range(unwrapped(policy).get_input_embeddings().weight.shape[0])  # an id beyond them has no embedding
    given = ending_ids(unwrapped(policy).generation_config.eos_token_id, tokenizer)
    ends = [i for i in given if i in rows]
    wrong = f", whose end tokens {given} have no embedding" if given else " without an end token"
    expected = f"expected an id below {len(rows)}; try setting eos_token_id in its generation_config.json"
    need(ends, f"got model {config.model!r}{wrong}; {expected}")
    return ends, tokenizer.pad_token_id if tokenizer.pad_token_id in rows else ends[0]


def token_count(tokenizer, eos_ids: list[int]) -> int:
    """Number of embedding rows that belong to tokens; rows beyond only round up the size and must not be sampled."""
    return 1 + max(*tokenizer.get_vocab().values(), *eos_ids)
