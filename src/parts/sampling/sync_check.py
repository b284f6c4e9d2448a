"""Check that a sampler has the policy's weights: checksums of each tensor, log-probs of the same tokens."""

from collections.abc import Iterable

from parts.foundation.messages import UserError, say
from parts.foundation.processes import torch
from parts.foundation.settings import BaseConfig
from parts.networks.batches import collate
from parts.networks.forward import lm_logits, logprobs_and_entropy, predicting_states
from parts.networks.models import Models, autocast


class StaleSamplerError(UserError):
    """The sampler does not have the policy's weights."""

    code = 5


def checksums(x, dtype):
    """Sum and sum of squares of a tensor's elements as `dtype` has them, [2] in float64.

    Neither depends on the elements' order, and both add up over tensors that a sampler keeps as one.
    """
    total = torch.zeros(2, dtype=torch.float64, device=x.device)
    for piece in x.detach().flatten().split(2**24):  # a float64 copy of a vocabulary's weights would be gigabytes
        piece = piece.to(dtype).double()
        total += torch.stack([piece.sum(), piece.square().sum()])
    return total


def same_checksums(a, b, count: int) -> bool:
    """Whether two checksums of `count` elements agree up to the rounding of float64 sums; NaN does not."""
    largest = max(a[1].item(), b[1].item())
    sums = abs(a[0] - b[0]).item() <= 1e-12 * (count * largest) ** 0.5  # at least 1e-12 sum |x|
    return sums and abs(a[1] - b[1]).item() <= 1e-12 * largest


def held_by(layer, name: str, dtype):
    """A parameter as a layer of vLLM computes with it; None where it is rounded or packed beyond recognition.

    On a CPU vLLM packs the matrices of linear layers away, or keeps a packed copy beside the output layer's; what such
    a layer makes of one-hot inputs is exact.
    """
    x = layer._parameters[name]
    packed = name == "weight" and hasattr(layer, "cpu_linear")
    if packed and not x.numel():
        width = layer.input_size_per_partition
    elif packed and type(layer).__name__ == "ParallelLMHead":
        width = x.shape[1]
    else:
        return x if x.dtype == dtype and x.numel() else None
    rows = torch.eye(width, dtype=dtype).split(256)
    return torch.cat([layer.cpu_linear(part, x, None) for part in rows])  # [in, out]: the matrix, transposed


def name_in_sampler(name: str, names: Iterable[str], packed: dict[str, list[str]]) -> str | None:
    """What vLLM calls the tensor that it keeps a tensor of the policy in, such as qkv_proj for q_proj."""
    if name in names:
        return name
    module, _, leaf = name.rpartition(".")
    parent, _, part = module.rpartition(".")
    fused = [f"{parent}.{whole}.{leaf}" for whole, parts in packed.items() if part in parts]
    return next((fused_name for fused_name in fused if fused_name in names), None)


def compare_weights(named: Iterable[tuple], sampler) -> tuple[list[str], list[str]]:
    """(tensors of a vLLM model that differ after a copy of `named`, or got none; those that cannot be compared)."""
    layers = {
        f"{prefix}.{name}".lstrip("."): (layer, name)
        for prefix, layer in sampler.named_modules()
        for name in layer._parameters
        if layer._parameters[name] is not None
    }
    plain = (torch.float32, torch.bfloat16, torch.float16)
    dtype = next(x.dtype for x in sampler.parameters() if x.dtype in plain)  # a rounded model keeps some as they are
    expected, lost = {}, []
    for name, x in named:
        target = name_in_sampler(name, layers, getattr(sampler, "packed_modules_mapping", {}))
        if target is None:
            lost.append(name)
            continue
        sums = checksums(x, dtype)
        count, total = expected.get(target, (0, torch.zeros_like(sums)))
        expected[target] = count + x.numel(), total + sums
    wrong = []
    for name, (layer, leaf) in layers.items():
        x = held_by(layer, leaf, dtype)
        if x is None or name not in expected:
            lost.append(name)
            continue
        count, total = expected[name]
        if not same_checksums(checksums(x, dtype).to(total.device), total, count):
            wrong.append(name)
    return wrong, lost


class SyncCheck:
    """When a sampler is compared with the policy: at the first two steps and every so many (0: never)."""

    def __init__(self, every: int, advice: str):
        self.every, self.advice, self.checked, self.partly = every, advice, None, False

    def due(self, step: int) -> bool:
        """Whether to compare the copy after `step` updates; each step's first copy only."""
        first = self.checked is None or step == 1
        if not self.every or step == self.checked or not (first or step % self.every == 0):
            return False
        self.checked = step
        return True

    def compare(self, step: int, named: Iterable[tuple], sampler) -> None:
        """Raise StaleSamplerError unless vLLM's network has the tensors that were copied, (name, tensor) each."""
        wrong, lost = compare_weights(named, sampler)
        if wrong:
            names = ", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else "")
            raise StaleSamplerError(
                f"step {step}: got a sampler with other weights than the policy's after the copy, {len(wrong)} "
                f"tensors: {names}; expected equal checksums; try {self.advice}"
            )
        if lost and not self.partly:
            say(f"note: vLLM keeps {len(lost)} tensors in its own form, such as {lost[0]}; log-probs check them")
            self.partly = True

    def judge(self, step: int, gap: float, exact: bool) -> None:
        """Raise StaleSamplerError where log-probs differ too much in the mean; `exact`: both compute in float32."""
        most = 0.01 if exact else 0.5
        if not gap <= most:
            raise StaleSamplerError(
                f"step {step}: got a sampler whose log-probs differ by {gap:.3g} in the mean from the policy's; "
                f"expected at most {most:g} at this precision if weights and temperature agree; try {self.advice}, "
                "or --check_sync 0 if the sampler is meant to be another"
            )


def logprob_gap(config: BaseConfig, models: Models, prompts: list[list[int]], outputs: list[tuple]) -> float:
    """Mean |difference| of the sampler's log-probs of the tokens that it sampled and the policy's own."""
    samples = [
        {"prompt_ids": prompt, "response_ids": ids, "rollout_logprobs": logprobs}
        for prompt, (ids, logprobs) in zip(prompts, outputs, strict=True)
    ]
    batch = collate(samples, models.pad_id, models.device)
    mask = batch["response_mask"].bool()
    with torch.no_grad(), autocast(config, models.device):
        hidden = predicting_states(models.policy, batch)[mask]
        ids = batch["input_ids"][mask]
        logprobs, _ = logprobs_and_entropy(lambda h: lm_logits(models.policy, h), hidden, ids, config.temperature, 64)
    return (logprobs - batch["rollout_logprobs"][mask]).abs().mean().item()
