"""Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, what to say where it fails."""

import importlib.util
from pathlib import Path

from parts.foundation.messages import UserError, is_out_of_memory, memory_shortage, need
from parts.foundation.processes import torch, transformers
from parts.foundation.settings import BaseConfig
from parts.networks.adapters import add_lora, base_of, load_pretrained
from parts.networks.models import compute_dtype, unwrapped
from parts.networks.whole_models import LOADABLE

# attention kinds of transformers; auto leaves the choice to it: sdpa if the architecture supports it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


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
    expected = "expected one that is installed and that the architecture has"
    got = f"got --attn_implementation {kind} with model {source!r}: {why}"
    return UserError(f"{got}; {expected}; try --attn_implementation auto{package}")


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
    why = str(error).partition("Model type should be one of")[0]  # hundreds follow
    return UserError(f"{got} does not load: {' '.join(why.split())}; {LOADABLE}")


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
    packed = getattr(model, "hf_quantizer", None) and not (frozen or config.load_in_4bit)
    got = f"got model {source!r}, whose weights are quantised; expected 16 or 32 bits, or adapters that stay apart"
    apart = config.lora_rank and not getattr(config, "merge_lora", False)
    need(apart or not packed, f"{got}; try the model that it was made from, or --lora_rank 16 without --merge_lora")
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


def load_policy(config: BaseConfig, device, saved: Path | None):
    """The network to be trained, from the checkpoint folder `saved` if given, else from config.model."""
    policy = load_network(transformers.AutoModelForCausalLM, str(saved or config.model), config, device)
    return add_lora(policy, config) if config.lora_rank else policy


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
