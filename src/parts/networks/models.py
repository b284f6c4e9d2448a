"""The networks of a run: their precision, the frozen reference, prompts that they can read."""

import contextlib
from dataclasses import dataclass

from parts.data.chat import warn_of_turn_end
from parts.foundation.messages import UserError, need, say, say_once
from parts.foundation.processes import torch
from parts.foundation.settings import BaseConfig
from parts.networks.adapters import merge_command

REFERENCE = "reference"  # peft's name for the frozen copy of the initial adapter


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


def precision_on(precision: str, device) -> str:
    """Resolve a precision for a device: auto is bf16 on CUDA GPUs that support it, else fp32."""
    if precision != "auto":
        return precision
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if able else "fp32"


def leave_out_cudnn_attention() -> None:
    """Disable cuDNN's attention, which plans for 23 to 37 ms at each new length, so at each sampled token."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def warn_of_slow_precision(precision: str, device) -> None:
    """Warn of a precision that a CPU emulates: bf16 products without AVX-512 take 4 to 80 times as long as fp32."""
    if device.type == "cpu" and precision != "fp32" and torch.backends.mkldnn.is_available():
        if not getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")():
            got = f"got precision {precision} on a CPU without instructions for it"
            say_once(f"warning: {got}; expect steps many times slower than in fp32; try fp32")


def settle_precision(config: BaseConfig, device) -> None:
    """Resolve `auto` in config.precision, allow or forbid TF32, and on a GPU report both.

    Below fp32, the layers that stay float32 (the output layer) may use TF32, which is still finer than bf16.
    """
    asked, config.precision = config.precision, precision_on(config.precision, device)
    exact = config.precision == "fp32"
    leave_out_cudnn_attention()
    warn_of_slow_precision(config.precision, device)
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


def unwrapped(model):
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


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


def check_tokens(models: Models, rows: list[dict]) -> None:
    """Raise UserError if a prompt has a token without an embedding."""
    known = unwrapped(models.policy).get_input_embeddings().weight.shape[0]
    largest = max((max(row["prompt_ids"], default=0) for row in rows), default=0)
    got = f"got a prompt with token {largest}, and a model that embeds {known}: one was added to the tokenizer alone"
    need(largest < known, f"{got}; try model.resize_token_embeddings(len(tokenizer)), and save both")


def check_context(config: BaseConfig, models: Models, rows: list[dict]) -> None:
    """Raise UserError if prompt and completion exceed the model's positions, or if a token has no embedding."""
    check_tokens(models, rows)
    if config.chat or not all(isinstance(row.get("prompt", ""), str) for row in rows):
        warn_of_turn_end(models.tokenizer, models.eos_ids)
    longest = max(len(row["prompt_ids"]) for row in rows)
    got = f"got a prompt of {longest} and completions of {config.max_new_tokens} tokens"
    for network in map(unwrapped, filter(None, models.networks)):
        limit = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        expected = f"expected at most {limit} together, all that {network.name_or_path} reads"
        fits = not limit or longest + config.max_new_tokens <= limit
        need(fits, f"{got}; {expected}; try a lower --max_new_tokens or --max_prompt_tokens")
