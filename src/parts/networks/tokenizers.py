"""Tokenizers, loaded and saved as they were."""

from pathlib import Path

from parts.data.chat import give_template
from parts.data.rows import is_hub_id
from parts.foundation.messages import UserError, need
from parts.foundation.settings import BaseConfig
from parts.networks.adapters import tokenizer_of

LOADABLE = "expected a checkpoint folder, or a hub id that this machine has or can reach"


def remember_padding(tokenizer):
    """Note the padding and truncation that a tokenizer's files ask for, as every call of it writes over them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    tokenizer.files_ask_for = (backend.padding, backend.truncation) if backend else (None, None)
    return tokenizer


def open_tokenizer(config: BaseConfig, **options):
    """The model's tokenizer with --chat_template; a model that is neither a folder nor a hub id is refused here."""
    from transformers import AutoTokenizer

    found = Path(config.model).is_dir() or is_hub_id(config.model)
    need(found, f"got model {config.model!r}, which is not a folder; expected a checkpoint folder or a hub id")
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(config.model), **options)
    except (OSError, ValueError) as error:
        raise UserError(f"got model {config.model!r}, whose tokenizer does not load: {error}; {LOADABLE}") from error
    give_template(tokenizer, config.chat_template)
    return tokenizer


def load_tokenizer(config: BaseConfig):
    """The tokenizer of a model that is trained or sampled here, to be saved as it was."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # a critic that takes a policy's weights but not its head is meant
    logging.disable_progress_bar()
    return remember_padding(open_tokenizer(config))


def save_tokenizer(tokenizer, folder: Path) -> None:
    """Save a tokenizer of `remember_padding` as it was loaded, whatever it has been called with since."""
    backend, (padding, truncation) = getattr(tokenizer, "backend_tokenizer", None), tokenizer.files_ask_for
    if backend:
        backend.enable_padding(**padding) if padding else backend.no_padding()
        backend.enable_truncation(**truncation) if truncation else backend.no_truncation()
    tokenizer.save_pretrained(folder)
