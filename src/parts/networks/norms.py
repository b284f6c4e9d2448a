"""Run RMS norms as one kernel while sampling: transformers uses six or more for each, at every token."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator

from parts.foundation.messages import say
from parts.foundation.processes import torch

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
    """(module, its one-kernel form) for each RMS norm of a network that has one; [] on a CPU, which has no kernel."""
    modules = [module for module in policy.modules() if type(module).__name__.endswith("RMSNorm")]
    pairs = [(module, norm_like(module)) for module in modules if device.type == "cuda"]
    for name in sorted({type(module).__name__ for module, norm in pairs if not norm}):
        say(f"note: {name} runs in transformers' form while sampling: torch has no kernel for this norm")
    return [(module, norm) for module, norm in pairs if norm]


@contextlib.contextmanager
def replaced(norms: list[tuple]) -> Iterator[None]:
    """Context in which the modules run their one-kernel forms."""
    try:
        for module, norm in norms:
            module.forward = norm
        yield
    finally:
        for module, _ in norms:
            vars(module).pop("forward", None)
