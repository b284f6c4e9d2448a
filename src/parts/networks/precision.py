"""Precision: what auto stands for, TF32, the dtype of matrix products."""

from parts.foundation.messages import say
from parts.foundation.settings import BaseConfig


def precision_on(precision: str, device) -> str:
    """The precision that a setting stands for on a device; auto is bf16 where a CUDA GPU has it, else fp32."""
    if precision != "auto":
        return precision
    import torch

    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if able else "fp32"


def settle_precision(config: BaseConfig, device) -> None:
    """Replace `auto` in config, choose TF32 or not, and on a GPU say both.

    Below fp32, what stays float32 (the output layer) may use TF32: it is still finer than bf16. In fp32 nothing does.
    """
    import torch

    asked, config.precision = config.precision, precision_on(config.precision, device)
    exact = config.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    if device.type != "cpu":
        how = "without TF32; --precision bf16 is faster" if exact else "may use TF32"
        note = " (auto)" if asked == "auto" else ""
        say(f"device {device}, precision {config.precision}{note}; float32 matrix products {how}")


def widest_float(device):
    """float64, but float32 on Apple's GPUs, which have no wider type."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def compute_dtype(config: BaseConfig, device):
    """The dtype of matrix products and of frozen weights."""
    import torch

    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return names[precision_on(config.precision, device)]


def autocast(config: BaseConfig, device):
    """Context in which the networks run; nothing in fp32."""
    import torch

    dtype = compute_dtype(config, device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)
