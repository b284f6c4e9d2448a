"""LoRA adapters: what their folders say, and loading them onto the base that they were trained on."""

import contextlib
import json
import shlex
import warnings
from pathlib import Path

from parts.data.rows import hub_is_reached, is_hub_id
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need
from parts.foundation.settings import BaseConfig

REFERENCE = "reference"  # name of the frozen copy of the adapter that a run started with


def config_file(source: str) -> str | None:
    """adapter_config.json of a folder or hub id; None where there is none, as in a plain model."""
    if Path(source).is_dir():
        file = Path(source) / "adapter_config.json"
        return str(file) if file.is_file() else None
    if not is_hub_id(source):
        return None
    from transformers.utils import find_adapter_config_file

    hub_is_reached()  # or its client would try again for a minute
    return find_adapter_config_file(source)


def merge_command(source: str, *flags: str) -> str:
    """The command that merges an adapter into its base."""
    script = BUNDLE / "scripts" / "merge_adapter.py"
    words = ["python", str(script if script.is_file() else "scripts/merge_adapter.py"), source, *flags]
    return f"`{shlex.join([*words, '--output', Path(source).name + '-merged'])}`"


def refuse_adapter(source: str, flag: str, why: str) -> None:
    """Raise UserError where a model is an adapter and a whole one is needed."""
    adapter = f"got {flag} {source!r}, a LoRA adapter, {why}; expected a whole model; try {merge_command(source)}"
    need(not config_file(source), adapter)


def adapter_settings(source: str) -> dict | None:
    """adapter_config.json of a LoRA adapter; None of a plain model, UserError for other kinds of adapters."""
    file = config_file(source)
    if not file:
        return None
    got = f"got the adapter {source!r}"
    try:
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
        task, kind = settings.get("task_type"), settings.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{got}, whose adapter_config.json is broken: {error}; expected peft's") from None
    need(task in (None, "CAUSAL_LM"), f"{got} of task type {task}; expected CAUSAL_LM")
    need(kind == "LORA", f"{got} of type {kind}; expected LORA; try to merge it with the library that trained it")
    if Path(source).is_dir():
        whole = [x.name for form in ("model*.safetensors", "pytorch_model*.bin") for x in Path(source).glob(form)]
        both = f"{got} beside the weights of a whole model ({', '.join(whole[:2])}); expected one of them"
        need(not whole, f"{both}; try to move the files adapter_* to a folder of their own")
    return settings


def base_of(source: str, base: str = "") -> str:
    """The base that an adapter names, or the `base` given for it; a plain model is its own."""
    settings = adapter_settings(source)
    if not settings:
        return source
    base = base or settings.get("base_model_name_or_path") or ""
    is_here = Path(base).is_dir() if base else False
    need(
        is_here or is_hub_id(base),
        f"got the adapter {source!r}, whose base {base!r} is not there; expected a folder, as seen from here, or a hub "
        f"id; try {merge_command(source, '--base', 'FOLDER')}, or to mend adapter_config.json",
    )
    chain = f"got the adapter {source!r}, whose base {base!r} is an adapter itself; expected a whole model"
    need(not config_file(base), f"{chain}; try {merge_command(base)}, and that folder as base")
    return str(Path(base).resolve()) if is_here else base


def tokenizer_of(source: str, base: str = "") -> str:
    """Where the tokenizer of a model lies: in an adapter's own folder, or else in that of its base."""
    if not adapter_settings(source):
        return source
    from transformers.utils import cached_file

    files = ("tokenizer_config.json", "tokenizer.json")
    quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    own = any(cached_file(source, name, **quiet) for name in files)
    return source if own else base_of(source, base)


def settle_model(config: BaseConfig) -> None:
    """Make the model's path a full one, and take rank and alpha from an adapter: it is trained on."""
    if Path(config.model).is_dir():
        config.model = str(Path(config.model).resolve())  # adapters name their base: it is found from any folder
    settings = adapter_settings(config.model)
    for name, key in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")) if settings else ():
        given, of_adapter = getattr(config, name), settings[key]
        need(
            given in (0, of_adapter),
            f"got --{name} {given:g} with the adapter {config.model!r} of {name} {of_adapter:g}; expected the same, as "
            f"it is trained on; try --{name} {of_adapter:g}, or for a new adapter merge this one: "
            f"{merge_command(config.model)}",
        )
        setattr(config, name, type(given)(of_adapter))


def saved_rows(base, weights: dict) -> dict:
    """{layer: rows} of the embedding and output layers that are among an adapter's tensors."""
    ends, rows = (base.get_input_embeddings(), base.get_output_embeddings()), {}
    layers = [name for name, module in base.named_modules() if any(module is end for end in ends)]
    for key, x in weights.items():
        name, _, part = key.removeprefix("base_model.model.").rpartition(".")
        layer = next((layer for layer in layers if f"{name}.".startswith(f"{layer}.")), None)
        if layer and part == "weight" and not name.endswith(("lora_A", "lora_magnitude_vector")):
            rows[layer] = x.shape[0]
        elif layer and part == "lora_embedding_A":
            rows[layer] = x.shape[1]
    return rows


def fit_embeddings(base, source: str) -> None:
    """Give a base the rows that an adapter has saved for added tokens; UserError where it has not saved them."""
    from peft.utils import load_peft_weights
    from transformers import AutoTokenizer

    known = base.get_input_embeddings().weight.shape[0]
    rows = saved_rows(base, load_peft_weights(source, device="cpu"))
    size = max(rows.values(), default=known)
    tied = base.get_input_embeddings().weight is base.get_output_embeddings().weight
    beyond = set()
    if tokenizer_of(source) == source:
        beyond = {token for token, i in AutoTokenizer.from_pretrained(source).get_vocab().items() if i >= size}
    if beyond:  # a plain model may have a few, too
        beyond -= AutoTokenizer.from_pretrained(base.name_or_path).get_vocab().keys()
    need(
        not beyond and (size <= known or tied or len(rows) == 2),
        f"got the adapter {source!r}, whose tokenizer has tokens beyond the {known} rows of its base, as "
        f"{sorted(beyond)[:3] or f'row {known}'}, and which has not saved their embeddings; expected both layers; try "
        "to save it again with save_pretrained(..., save_embedding_layers=True), or to train with modules_to_save",
    )
    if size != known:
        base.resize_token_embeddings(size, mean_resizing=False)  # the rows are loaded


def with_adapter(base, source: str, trainable: bool = False, dropout: float = 0.0):
    """A base with an adapter on top, in eval mode; UserError where they do not fit."""
    from peft import PeftConfig, PeftModel

    fit_embeddings(base, source)
    settings = PeftConfig.from_pretrained(source)
    settings.base_model_name_or_path = base.name_or_path
    settings.lora_dropout = dropout
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            model = PeftModel.from_pretrained(base, source, config=settings, is_trainable=trainable)
    except (RuntimeError, ValueError, UserWarning) as error:
        first = str(error).strip().splitlines()[-1].strip()
        got = f"got the adapter {source!r}, which does not fit its base {base.name_or_path!r}: {first}"
        advice = f"expected the model that it was trained on; try {merge_command(source, '--base', 'MODEL')}"
        raise UserError(f"{got}; {advice}") from None
    return model.eval()


def load_pretrained(auto_class, source: str, base: str = "", trainable: bool = False, **options):
    """A network by transformers; of an adapter, its base (a causal one, as it was trained on) with the adapter on top.

    Args:
        base: the adapter's, where it is not the one that it names.
        options: of `from_pretrained`.
    """
    from transformers import AutoModelForCausalLM

    found = base_of(source, base)
    if found == source:
        return auto_class.from_pretrained(source, **options)
    return with_adapter(AutoModelForCausalLM.from_pretrained(found, **options), source, trainable)


def merged(model):
    """The network with its adapter merged into the weights; a plain one as it is."""
    if not hasattr(model, "merge_and_unload"):
        return model
    untie(model)
    plain = model.merge_and_unload()
    note_untied(plain)
    return plain


def untie(model) -> None:
    """Weights of its own for the output layer where input and output share theirs and LoRA changes one of them."""
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = [model.get_base_model().get_input_embeddings(), model.get_base_model().get_output_embeddings()]
    tuned = [isinstance(layer, BaseTunerLayer) for layer in ends]
    first, last = (layer.get_base_layer() if t else layer for layer, t in zip(ends, tuned, strict=True))
    if any(tuned) and first.weight is last.weight:
        last.weight = torch.nn.Parameter(last.weight.detach().clone())


def note_untied(model) -> None:
    """Let config.json say so where the output layer has weights of its own, or other programs would not read them."""
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        model.config.tie_word_embeddings = False


def save_network(model, folder: Path) -> None:
    """Save a plain network, or of one under LoRA the adapter that is trained."""
    model.save_pretrained(folder, **({"selected_adapters": ["default"]} if hasattr(model, "peft_config") else {}))


def keep_as_reference(policy, source: str) -> None:
    """Add a frozen copy of the adapter that the run started with."""
    try:
        policy.load_adapter(source, REFERENCE, is_trainable=False)
    except ValueError as error:  # biases: peft holds one adapter with these
        got = f"got the adapter {source!r} and KL to it, a frozen copy of which peft refuses: {error}"
        raise UserError(f"{got}; expected LoRA alone; try --kl_coef 0, or {merge_command(source)}") from None
    policy.eval()


@contextlib.contextmanager
def as_reference(policy):
    """While it lasts, a policy under LoRA is its reference: the adapter that it started with, or the base."""
    if not hasattr(policy, "peft_config"):
        yield
    elif REFERENCE not in policy.peft_config:
        with policy.disable_adapter():
            yield
    else:
        policy.set_adapter(REFERENCE, inference_mode=True)
        try:
            yield
        finally:
            policy.set_adapter("default")
