"""The precision in which networks run: the device's own choice, TF32, dtypes, autocast."""

from parts.foundation.messages import say
from parts.foundation.processes import torch
from parts.foundation.settings import BaseConfig


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
