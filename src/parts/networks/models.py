"""Load and save networks: precision, LoRA adapters, tokenizers, 4-bit weights, references, generation settings."""

import contextlib
import importlib
import importlib.util
import json
import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path

from parts.data.chat import give_template
from parts.data.rows import hub_is_reached, is_hub_id
from parts.foundation.bundle import in_bundle
from parts.foundation.messages import UserError, is_out_of_memory, memory_shortage, need, say
from parts.foundation.processes import torch, transformers
from parts.foundation.settings import BaseConfig
from parts.networks.whole_models import check_model_folder, load_whole

RENAMED = ".*is_gradient_checkpointing.*deprecated.*"  # a warning that peft causes by using the old name
REFERENCE = "reference"  # peft's name for the frozen copy of the initial adapter
LOADABLE = "expected a checkpoint folder, or a hub id that this machine has or can reach"
# attention kinds of transformers; auto leaves the choice to it: sdpa if the architecture supports it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


def precision_on(precision: str, device) -> str:
    """Resolve a precision for a device: auto is bf16 on CUDA GPUs that support it, else fp32."""
    if precision != "auto":
        return precision
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if able else "fp32"


def leave_out_cudnn_attention() -> None:
    """Disable cuDNN's attention, which plans for 23 to 37 ms at each new length, so at each sampled token."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def settle_precision(config: BaseConfig, device) -> None:
    """Resolve `auto` in config.precision, allow or forbid TF32, and on a GPU report both.

    Below fp32, the layers that stay float32 (the output layer) may use TF32, which is still finer than bf16.
    """
    asked, config.precision = config.precision, precision_on(config.precision, device)
    exact = config.precision == "fp32"
    leave_out_cudnn_attention()
    torch.set_float32_matmul_precision("highest" if exact else "high")
    if device.type != "cpu":
        faster = precision_on("auto", device).replace("fp32", "fp16")
        how = f"without TF32; --precision {faster} is faster" if exact else "may use TF32"
        note = " (auto)" if asked == "auto" else ""
        say(f"device {device}, precision {config.precision}{note}; float32 matrix products {how}")


def widest_float(device):
    """float64, but float32 on Apple's GPUs, which have no wider type."""
    return torch.float32 if device.type == "mps" else torch.float64


def compute_dtype(config: BaseConfig, device):
    """The dtype of matrix products and of frozen weights."""
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return names[precision_on(config.precision, device)]


def autocast(config: BaseConfig, device):
    """Context in which the networks run; without effect in fp32."""
    dtype = compute_dtype(config, device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def config_file(source: str) -> str | None:
    """Path of adapter_config.json of a folder or hub id; None if there is none, as for a plain model."""
    if Path(source).is_dir():
        file = Path(source) / "adapter_config.json"
        return str(file) if file.is_file() else None
    if not is_hub_id(source):
        return None
    hub_is_reached()  # sets the client offline if need be, which would otherwise retry for a minute
    with contextlib.suppress(OSError):  # no such repository: loading it tells
        return transformers.utils.find_adapter_config_file(source)
    return None


def merge_command(source: str, *flags: str) -> str:
    """The shell command that merges an adapter into its base."""
    words = [source, *flags, "--output", Path(source).name + "-merged"]
    return f"`python {in_bundle('scripts/merge_adapter.py')} {shlex.join(words)}`"


def refuse_adapter(source: str, flag: str, why: str) -> None:
    """Raise UserError if a model is an adapter; `why` says that `flag` needs a whole model."""
    adapter = f"got {flag} {source!r}, a LoRA adapter, {why}; expected a whole model; try {merge_command(source)}"
    need(not config_file(source), adapter)


def adapter_settings(source: str) -> dict | None:
    """Contents of a LoRA adapter's adapter_config.json; None for a plain model, UserError for other adapters."""
    file = config_file(source)
    if not file:
        check_model_folder(source)
        return None
    got = f"got the adapter {source!r}"
    try:
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
        task, kind = settings.get("task_type"), settings.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{got}, whose adapter_config.json is broken: {error}; expected peft's") from None
    need(task in (None, "CAUSAL_LM"), f"{got} of task type {task}; expected CAUSAL_LM")
    need(kind == "LORA", f"{got} of type {kind}; expected LORA; try merging it with the library that trained it")
    if Path(source).is_dir():
        whole = [x.name for form in ("model*.safetensors", "pytorch_model*.bin") for x in Path(source).glob(form)]
        both = f"{got} beside the weights of a whole model ({', '.join(whole[:2])}); expected one of them"
        need(not whole, f"{both}; try moving the files adapter_* to a folder of their own")
        weights = any((Path(source) / f"adapter_model.{end}").exists() for end in ("safetensors", "bin"))
        need(weights, f"{got} without adapter_model.safetensors; expected its weights beside adapter_config.json")
    return settings


def base_of(source: str, base: str = "") -> str:
    """The base model of an adapter: `base` if given, else the one it names. A plain model is its own base."""
    settings = adapter_settings(source)
    if not settings:
        return source
    base = base or settings.get("base_model_name_or_path") or ""
    is_here = Path(base).is_dir() if base else False
    need(
        is_here or is_hub_id(base),
        f"got the adapter {source!r}, whose base {base!r} is not there; expected a folder, as seen from here, or a hub "
        f"id; try {merge_command(source, '--base', 'FOLDER')}, or correcting adapter_config.json",
    )
    chain = f"got the adapter {source!r}, whose base {base!r} is an adapter itself; expected a whole model"
    need(not config_file(base), f"{chain}; try {merge_command(base)}, and that folder as base")
    return str(Path(base).resolve()) if is_here else base


def tokenizer_of(source: str, base: str = "") -> str:
    """Where a model's tokenizer is: in the adapter's own folder if it has one, else in its base's."""
    if not adapter_settings(source):
        return source
    files = ("tokenizer_config.json", "tokenizer.json")
    quiet = {f"_raise_exceptions_for_{problem}": False for problem in ("missing_entries", "connection_errors")}
    has_tokenizer = any(transformers.utils.cached_file(source, name, **quiet) for name in files)
    return source if has_tokenizer else base_of(source, base)


def settle_model(config: BaseConfig) -> None:
    """Make config.model an absolute path, and take rank and alpha from an adapter, whose training continues."""
    if Path(config.model).is_dir():
        config.model = str(Path(config.model).resolve())  # saved adapters name their base by it
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
    """{layer: rows} for embedding and output layers among an adapter's saved tensors."""
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
    """Resize a base's embeddings to the rows that an adapter has saved for added tokens; UserError if it lacks them."""
    from peft.utils import load_peft_weights

    known = base.get_input_embeddings().weight.shape[0]
    rows = saved_rows(base, load_peft_weights(source, device="cpu"))
    size = max(rows.values(), default=known)
    tied = base.get_input_embeddings().weight is base.get_output_embeddings().weight
    beyond = set()
    if tokenizer_of(source) == source:
        tokens = transformers.AutoTokenizer.from_pretrained(source).get_vocab()
        beyond = {token for token, i in tokens.items() if i >= size}
    if beyond:  # ignore those that the base's own tokenizer has too
        beyond -= transformers.AutoTokenizer.from_pretrained(base.name_or_path).get_vocab().keys()
    need(
        not beyond and (size <= known or tied or len(rows) == 2),
        f"got the adapter {source!r}, whose tokenizer has tokens beyond the {known} rows of its base, as "
        f"{sorted(beyond)[:3] or f'row {known}'}, and which has not saved their embeddings; expected both layers; try "
        "to save it again with save_pretrained(..., save_embedding_layers=True), or to train with modules_to_save",
    )
    if size != known:
        base.resize_token_embeddings(size, mean_resizing=False)  # no initial values needed: the rows are loaded next


def with_adapter(base, source: str, trainable: bool = False, dropout: float = 0.0):
    """Load an adapter onto a base, in eval mode; UserError if they do not fit."""
    from peft import PeftConfig, PeftModel
    from safetensors import SafetensorError

    settings = PeftConfig.from_pretrained(source)
    settings.base_model_name_or_path = base.name_or_path
    settings.lora_dropout = dropout
    try:
        fit_embeddings(base, source)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=RENAMED)
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            model = PeftModel.from_pretrained(base, source, config=settings, is_trainable=trainable)
        unknown = model.load_adapter(source, "default", is_trainable=trainable).unexpected_keys
        if unread := [key for key in unknown if "lora_" in key]:  # peft saves some embeddings twice
            raise ValueError(f"it has no place for {len(unread)} tensors, such as {unread[0]}")
    except (RuntimeError, ValueError, UserWarning, SafetensorError) as error:
        first = str(error).strip().splitlines()[-1].strip()
        got = f"got the adapter {source!r}, which does not load on its base {base.name_or_path!r}: {first}"
        advice = f"expected the model that it was trained on; try {merge_command(source, '--base', 'MODEL')}"
        raise UserError(f"{got}; {advice}") from None
    return model.eval()


def load_pretrained(auto_class, source: str, base: str = "", trainable: bool = False, **options):
    """Load a network by `auto_class`; for an adapter, its causal base (or `base`) with the adapter on top."""
    start = base_of(source, base)
    if start == source:
        return load_whole(auto_class.from_pretrained, source, **options)
    base = load_whole(transformers.AutoModelForCausalLM.from_pretrained, start, **options)
    return with_adapter(base, source, trainable)


def merged(model):
    """Merge a network's adapter into its weights; a plain network is returned as it is."""
    if not hasattr(model, "merge_and_unload"):
        return model
    untie(model)
    plain = model.merge_and_unload()
    note_untied(plain)
    return plain


def untie(model) -> None:
    """Give the output layer its own weights if it shares them with the embeddings and LoRA changes either layer."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = [model.get_base_model().get_input_embeddings(), model.get_base_model().get_output_embeddings()]
    tuned = [isinstance(layer, BaseTunerLayer) for layer in ends]
    first, last = (layer.get_base_layer() if t else layer for layer, t in zip(ends, tuned, strict=True))
    if any(tuned) and first.weight is last.weight:
        last.weight = torch.nn.Parameter(last.weight.detach().clone())


def note_untied(model) -> None:
    """Set tie_word_embeddings to false if the output layer has its own weights, so that other programs load them."""
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        model.config.tie_word_embeddings = False


def save_network(model, folder: Path) -> None:
    """Save a plain network, or only the trained adapter of one under LoRA."""
    model.save_pretrained(folder, **({"selected_adapters": ["default"]} if hasattr(model, "peft_config") else {}))


def keep_as_reference(policy, source: str) -> None:
    """Add a frozen copy of the initial adapter `source` to the policy."""
    try:
        policy.load_adapter(source, REFERENCE, is_trainable=False)
    except ValueError as error:  # peft allows only one adapter with biases
        got = f"got the adapter {source!r} and KL to it, a frozen copy of which peft refuses: {error}"
        raise UserError(f"{got}; expected LoRA alone; try --kl_coef 0, or {merge_command(source)}") from None
    policy.eval()


@contextlib.contextmanager
def as_reference(policy):
    """Context in which a policy under LoRA acts as its reference: with its initial adapter, or as the base."""
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


@dataclass
class Models:
    """The networks of a run and what they share."""

    policy: object
    critic: object  # None unless advantages are GAE's
    reference: object  # None without KL; under LoRA the policy itself, used in `as_reference`
    tokenizer: object
    eos_ids: list[int]
    pad_id: int
    device: object

    @property
    def networks(self) -> list:
        """[policy, critic's backbone, reference]; None for those that the run does not have."""
        return [self.policy, self.critic and self.critic.backbone, self.reference]


def disable_dropout(model) -> None:
    """Set all dropout probabilities to 0, so that an unchanged policy has ratio 1."""
    for module in model.modules():
        if type(module).__name__.startswith("Dropout"):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def nf4_config(compute):
    """Config for 4-bit weights as in QLoRA (Dettmers 2023), with matrix products in dtype `compute`; CUDA or CPU."""
    got = "got 4-bit weights without bitsandbytes, which reads them"
    need(importlib.util.find_spec("bitsandbytes"), f"{got}; try `pip install bitsandbytes`, or weights of 16 bits")
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": compute}
    return transformers.BitsAndBytesConfig(load_in_4bit=True, **kind)


def keep_differentiable(model) -> None:
    """Keep bitsandbytes from repacking 4-bit weights for CPU inference, which would block gradients."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def attention_choice(config: BaseConfig) -> dict:
    """Arguments that --attn_implementation adds to from_pretrained and from_config."""
    kind = config.attn_implementation
    return {} if kind == "auto" else {"attn_implementation": kind}


def refuse_attention(config: BaseConfig, source: str, why: object) -> UserError:
    """The error for an attention that is not installed, or that the architecture or device does not support."""
    kind = config.attn_implementation
    package = ", or `pip install kernels`, with which transformers fetches it for a GPU" * kind.startswith("flash")
    return UserError(
        f"got --attn_implementation {kind} with model {source!r}: {why}; expected one that is installed and that the "
        f"architecture has; try --attn_implementation auto{package}"
    )


def load_error(config: BaseConfig, source: str, error: Exception) -> UserError:
    """The UserError for a model that does not load."""
    if isinstance(error, UserError):
        return error
    if is_out_of_memory(error):
        return memory_shortage(f"while {source!r} was loaded", error, "a smaller model, or a machine with more memory")
    if config.attn_implementation != "auto" and "attention" in str(error).lower():
        return refuse_attention(config, source, error)
    base = base_of(source, getattr(config, "base_model", ""))
    got = f"got model {source!r}, which" if base == source else f"got the adapter {source!r}, whose base {base!r}"
    return UserError(f"{got} does not load: {' '.join(str(error).split())}; {LOADABLE}")


def shaped_network(config: BaseConfig, source: str):
    """A causal network on the meta device, with shapes but no weights; UserError if transformers cannot build it."""
    try:
        shape = transformers.AutoConfig.from_pretrained(base_of(source), trust_remote_code=False)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(shape, **attention_choice(config))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise load_error(config, source, error) from error


def load_network(auto_class, source: str, config: BaseConfig, device, frozen: bool = False):
    """Load a network without dropout, in eval mode; weights are fp32, or the compute dtype under LoRA or if frozen."""
    extra = attention_choice(config)
    if config.attn_implementation == "flex_attention" and device.type == "cpu" and not frozen:
        raise refuse_attention(config, source, "it has no backward pass on a CPU")
    if config.load_in_4bit:
        extra |= {"quantization_config": nf4_config(compute_dtype(config, device)), "device_map": {"": device}}
    try:
        dtype = compute_dtype(config, device) if config.lora_rank else torch.float32
        model = load_pretrained(auto_class, source, trainable=not frozen, dtype=dtype, **extra)
    except Exception as error:  # OSError, ValueError, SafetensorError, …
        raise load_error(config, source, error) from error
    disable_dropout(model)
    keep_differentiable(model)
    if frozen:  # embeddings and norms stay fp32, like a policy's under autocast, so that both agree exactly
        kept = {id(p) for m in (model.get_input_embeddings(), model.get_output_embeddings()) for p in m.parameters()}
        for p in model.parameters():  # packed 4-bit weights are integers and stay as they are
            if p.dim() > 1 and p.is_floating_point() and id(p) not in kept:
                p.data = p.data.to(compute_dtype(config, device))
    model = model if config.load_in_4bit else model.to(device)  # 4-bit weights are placed while loading
    if frozen or not hasattr(model, "peft_config"):  # else peft has set requires_grad
        model.requires_grad_(not frozen and not config.lora_rank)
    return model.eval()


def add_sparsely(policy, device) -> None:
    """Let tied embeddings on a CPU add rows to the output layer's gradient, instead of two more matrices of its size.

    Not for networks in DistributedDataParallel, which would expect a sparse sum.
    """
    first, last = policy.get_input_embeddings(), policy.get_output_embeddings()
    weight = first.weight
    if device.type != "cpu" or getattr(last, "weight", None) is not weight or not weight.requires_grad:
        return
    first.sparse = True

    def densify(weight) -> None:  # if only the embeddings have a gradient, as without a token loss
        weight.grad = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad

    weight.register_post_accumulate_grad_hook(densify)


def add_lora(model, config: BaseConfig):
    """Wrap a network in new LoRA adapters on all linear layers that support them, unless it has adapters already."""
    from peft import LoraConfig, get_peft_model

    if hasattr(model, "peft_config"):
        return model
    modules = {name: type(module).__name__ for name, module in model.named_modules()}
    broken = [name for name, kind in modules.items() if kind == "Llama4Router"]  # returns a pair
    broken += [name for name in modules if name.endswith(("mamba.out_proj", "mixer.out_proj"))]  # kernels read weights
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        target_modules="all-linear",
        exclude_modules=broken or None,
        fan_in_fan_out="Conv1D" in modules.values(),  # GPT-2 stores weights transposed
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=RENAMED)
        adapted = get_peft_model(model, lora).eval()
    bare = [p for name, p in adapted.named_parameters() if re.search(r"\.experts\.\w+$", name)]
    share = sum(p.numel() for p in bare) / sum(p.numel() for p in adapted.parameters())
    if share >= 0.01:
        say(f"note: LoRA does not adapt the experts of {type(model).__name__}, {share:.0%} of its weights")
    return adapted


def load_policy(config: BaseConfig, device, saved: Path | None):
    """The network to be trained, from the checkpoint folder `saved` if given, else from config.model."""
    policy = load_network(transformers.AutoModelForCausalLM, str(saved or config.model), config, device)
    return add_lora(policy, config) if config.lora_rank else policy


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


def generation_settings(source: str):
    """A model's generation settings, from generation_config.json or else from config.json."""
    try:
        return transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # no such file
        return transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(source))


def sample_plainly(model, eos_ids: list[int], pad_id: int) -> None:
    """Let `generate` draw from the model's own distribution, without the checkpoint's serving settings.

    Penalties, banned tokens or a minimum length would change samples but not the log-probs that are trained.
    """
    plain = transformers.GenerationConfig(eos_token_id=eos_ids or None, pad_token_id=pad_id)
    unwrapped(model).generation_config = plain


def unwrapped(model):
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_tokens(models: Models, rows: list[dict]) -> None:
    """Raise UserError if a prompt has a token without an embedding."""
    known = unwrapped(models.policy).get_input_embeddings().weight.shape[0]
    largest = max((max(row["prompt_ids"], default=0) for row in rows), default=0)
    got = f"got a prompt with token {largest}, and a model that embeds {known}: one was added to the tokenizer alone"
    need(largest < known, f"{got}; try model.resize_token_embeddings(len(tokenizer)), and save both")


def check_context(config: BaseConfig, models: Models, rows: list[dict]) -> None:
    """Raise UserError if prompt and completion exceed the model's positions, or if a token has no embedding."""
    check_tokens(models, rows)
    longest = max(len(row["prompt_ids"]) for row in rows)
    got = f"got a prompt of {longest} and completions of {config.max_new_tokens} tokens"
    for network in map(unwrapped, filter(None, models.networks)):
        limit = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        expected = f"expected at most {limit} together, all that {network.name_or_path} reads"
        fits = not limit or longest + config.max_new_tokens <= limit
        need(fits, f"{got}; {expected}; try a lower --max_new_tokens or --max_prompt_tokens")
