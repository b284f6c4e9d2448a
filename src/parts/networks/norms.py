"""Run layers in faster forms while sampling: RMS norms in one kernel on a GPU, linear layers in oneDNN on a CPU."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator

from parts.foundation.messages import say
from parts.foundation.processes import torch

LARGE = 2**18  # weights; in smaller layers a call costs more than it saves
EXACT = 1e-6  # largest relative difference to transformers' norm in float32 that the order of sums explains


def plain_norm(module, x, eps: float):
    """x [..., H] / RMS(x) * weight [H]; like transformers, below float32 it rounds before multiplying by the weight."""
    if x.dtype == module.weight.dtype == torch.float32:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, eps)
    return module.weight * torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps).to(x.dtype)


def shifted_norm(module, x, eps: float):
    """x [..., H] / RMS(x) * (1 + weight [H]), computed in float32, as in Gemma."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], 1 + module.weight.float(), eps).type_as(x)


def norm_like(module) -> Callable | None:
    """`plain_norm` or `shifted_norm` for a module, whichever gives its output on test numbers; None if neither does."""
    eps, weight = getattr(module, "variance_epsilon", getattr(module, "eps", None)), getattr(module, "weight", None)
    alone = len(inspect.signature(type(module).forward).parameters) == 2  # self and x; gated norms have more
    if not alone or weight is None or not isinstance(eps, float):
        return None
    tried = copy.deepcopy(module).float()
    x, weights = (torch.linspace(-9, n, n * len(weight), device=weight.device).sin().view(n, -1) for n in (4, 1))
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        tried.weight.copy_(weights[0])
        expected = tried(x)
        for norm in (plain_norm, shifted_norm):
            if (norm(tried, x, eps) - expected).norm() <= EXACT * expected.norm():
                return functools.partial(norm, module, eps=eps)
    return None


def one_kernel_norms(policy, device) -> list[tuple]:
    """(module, its one-kernel form) for each RMS norm that has one; [] on a CPU, which has no such kernel.

    Transformers launches six or more kernels per norm and token.
    """
    modules = [module for module in policy.modules() if type(module).__name__.endswith("RMSNorm")]
    pairs = [(module, norm_like(module)) for module in modules if device.type == "cuda"]
    for name in sorted({type(module).__name__ for module, norm in pairs if not norm}):
        say(f"note: {name} runs in transformers' form while sampling: torch has no kernel for this norm")
    return [(module, norm) for module, norm in pairs if norm]


def onednn_linears(policy, device) -> list[tuple]:
    """(module, its form in oneDNN) for each large float32 linear layer on a CPU; its results differ by rounding.

    Torch multiplies float32 matrices with MKL, which is slow for few rows on some machines: on an AMD EPYC, 16 rows
    took 1.4 to 9 times as long as in oneDNN.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return []
    plain = [m for m in policy.modules() if type(m) is torch.nn.Linear and "forward" not in vars(m)]
    layers = [m for m in plain if type(m.weight) is torch.nn.Parameter and m.weight.numel() >= LARGE]

    def form(layer):
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, "none", [], "")

    return [(layer, form(layer)) for layer in layers if layer.weight.dtype == torch.float32]


@contextlib.contextmanager
def replaced(forms: list[tuple]) -> Iterator[None]:
    """Context in which modules run their faster forms."""
    try:
        for module, form in forms:
            module.forward = form
        yield
    finally:
        for module, _ in forms:
            vars(module).pop("forward", None)
