"""Loading of networks: LoRA, 4-bit, dropout off, frozen copies; generation settings."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.foundation.settings import BaseConfig
from parts.networks.adapters import base_of, load_pretrained
from parts.networks.precision import compute_dtype
from parts.networks.tokenizers import LOADABLE

# what transformers offers for training and sampling; auto is its own choice, sdpa where the architecture has it
ATTENTION_KINDS = (
    "auto",
    "eager",
    "sdpa",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "flex_attention",
)


@dataclass
class Models:
    """The networks of a run and what they share."""

    policy: object
    critic: object  # None unless the advantages are GAE's
    reference: object  # None without KL; the policy itself under LoRA, used with its adapters off
    tokenizer: object
    eos_ids: list[int]
    pad_id: int
    device: object

    @property
    def networks(self) -> list:
        """All networks whose states are asked for: policy, critic, reference; None where there is none."""
        return [self.policy, self.critic and self.critic.backbone, self.reference]


def disable_dropout(model) -> None:
    """Set every dropout probability of the modules to 0, so that the ratio of an unchanged policy is 1."""
    for module in model.modules():
        if type(module).__name__.startswith("Dropout"):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def nf4_config(compute):
    """4-bit weights as in QLoRA (Dettmers 2023), with matrix products in dtype `compute`; for CUDA and the CPU."""
    need(
        importlib.util.find_spec("bitsandbytes"),
        "got 4-bit weights; expected bitsandbytes; try `pip install bitsandbytes`, or weights of 16 bits",
    )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def keep_differentiable(model) -> None:
    """Keep bitsandbytes from repacking 4-bit weights for inference on a CPU: no gradient flows through those."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def attention_choice(config: BaseConfig) -> dict:
    """What --attn_implementation adds to the arguments of from_pretrained and from_config."""
    kind = config.attn_implementation
    return {} if kind == "auto" else {"attn_implementation": kind}


def refuse_attention(config: BaseConfig, source: str, why: object) -> UserError:
    """The error for an attention that is not installed, or that an architecture or a device does not have."""
    kind = config.attn_implementation
    package = ", or `pip install kernels`, with which transformers fetches it for a GPU" * kind.startswith("flash")
    return UserError(
        f"got --attn_implementation {kind} with model {source!r}: {why}; expected one that is installed and that the "
        f"architecture has; try --attn_implementation auto{package}"
    )


def load_error(config: BaseConfig, source: str, error: Exception) -> UserError:
    """What is told of a model that does not load."""
    if isinstance(error, UserError):
        return error
    if config.attn_implementation != "auto" and "attention" in str(error).lower():
        return refuse_attention(config, source, error)
    return UserError(f"got model {source!r}, which does not load: {error}; {LOADABLE}")


def shaped_network(config: BaseConfig, source: str):
    """A causal network without weights, for its shape; UserError where transformers cannot make it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        shape = AutoConfig.from_pretrained(base_of(source))
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(shape, **attention_choice(config))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise load_error(config, source, error) from error


def load_network(auto_class, source: str, config: BaseConfig, device, frozen: bool = False):
    """Load a network without dropout, in eval mode: fp32 weights, but the compute dtype under LoRA or when frozen."""
    import torch

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
    if frozen:  # embeddings and norms stay fp32, as they are in a policy under autocast: both then agree exactly
        kept = {id(p) for m in (model.get_input_embeddings(), model.get_output_embeddings()) for p in m.parameters()}
        for p in model.parameters():  # packed 4-bit weights are integers, and stay
            if p.dim() > 1 and p.is_floating_point() and id(p) not in kept:
                p.data = p.data.to(compute_dtype(config, device))
    model = model if config.load_in_4bit else model.to(device)  # 4-bit weights are placed while loading
    if frozen or not hasattr(model, "peft_config"):  # else peft has chosen what is trained
        model.requires_grad_(not frozen and not config.lora_rank)
    return model.eval()


def without_adapters(model) -> list[str]:
    """Names of linear layers that adapters would break: routers return pairs, Mamba's kernels read out_proj itself."""
    routers = [name for name, module in model.named_modules() if type(module).__name__ == "Llama4Router"]
    return routers + [name for name, _ in model.named_modules() if name.endswith(("mamba.out_proj", "mixer.out_proj"))]


def add_lora(model, config: BaseConfig):
    """Wrap a frozen network in new LoRA adapters on all linear layers that bear them; one that has some is kept."""
    from peft import LoraConfig, get_peft_model

    if hasattr(model, "peft_config"):
        return model
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        target_modules="all-linear",
        exclude_modules=without_adapters(model) or None,
        fan_in_fan_out=any(type(m).__name__ == "Conv1D" for m in model.modules()),  # GPT-2 stores weights transposed
    )
    return get_peft_model(model, lora).eval()


def load_policy(config: BaseConfig, device, saved: Path | None):
    """The network that is trained, from the folder `saved` of a checkpoint where there is one."""
    from transformers import AutoModelForCausalLM

    policy = load_network(AutoModelForCausalLM, str(saved or config.model), config, device)
    return add_lora(policy, config) if config.lora_rank else policy


def end_and_pad_ids(config: BaseConfig, policy, tokenizer) -> tuple[list[int], int]:
    """The tokens that end a completion, and one to pad with; masks never depend on the pad."""
    ends = unwrapped(policy).generation_config.eos_token_id
    ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    pad_id = next(i for i in (tokenizer.pad_token_id, *sorted(ends)) if i is not None)
    return sorted(ends), pad_id


def generation_settings(source: str):
    """The generation settings that come with a model: generation_config.json, else those in its config.json."""
    from transformers import AutoConfig, GenerationConfig

    try:
        return GenerationConfig.from_pretrained(source)
    except OSError:  # no such file
        return GenerationConfig.from_model_config(AutoConfig.from_pretrained(source))


def sample_plainly(model, eos_ids: list[int], pad_id: int) -> None:
    """Let `generate` draw from the model's own distribution, whatever settings its checkpoint has for serving.

    A penalty, a ban or a least length there would be sampled with, and not be in the log-probs that are trained.
    """
    from transformers import GenerationConfig

    unwrapped(model).generation_config = GenerationConfig(eos_token_id=eos_ids or None, pad_token_id=pad_id)


def unwrapped(model):
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_context(config: BaseConfig, models: Models, rows: list[dict]) -> None:
    """Raise UserError if the longest prompt and completion do not fit the model's positions."""
    limit = getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None)
    longest = max(len(row["prompt_ids"]) for row in rows)
    need(
        not limit or longest + config.max_new_tokens <= limit,
        f"got a prompt of {longest} and completions of {config.max_new_tokens} tokens; expected at most {limit} "
        "together; try a lower --max_new_tokens or --max_prompt_tokens",
    )
