"""The updates of a step: learning rates, gradients over the processes, clipping, metrics of an update."""

import functools
import math
from collections.abc import Callable, Iterator

from parts.foundation.messages import DivergedError
from parts.foundation.processes import gather_rows, np, sum_over_processes, torch, world
from parts.foundation.settings import BaseConfig
from parts.networks.forward import recomputing_layers
from parts.networks.models import Models


def default_learning_rate(role: str, parameters: float, lora: bool) -> float:
    """The learning rate where none is given, by role and size: the one rule of all trainers.

    Below 50M parameters a model moves too slowly at the rates of large ones: on the embedded one (0.4M), RL takes 2e-4
    and distillation 1e-3. `trl_policy` is the policy under TRL's schedule, which falls to 0, with ten times as much
    for LoRA (Schulman 2025, "LoRA Without Regret").
    """
    full, adapters, small, small_adapters = {
        "policy": (1e-6, 1e-5, 2e-4, 2e-4),
        "critic": (1e-5, 1e-5, 1e-3, 1e-3),
        "student": (1e-5, 1e-4, 1e-3, 1e-3),
        "trl_policy": (1e-6, 1e-5, 5e-4, 5e-3),
    }[role]
    if parameters < 50e6:
        return small_adapters if lora else small
    return adapters if lora else full


def learning_rates(config: BaseConfig, parameters: int) -> tuple[float, float]:
    """The policy's and the critic's learning rate, by model size where the setting is 0."""
    lora = bool(config.lora_rank)
    critic_lr = config.critic_lr or default_learning_rate("critic", parameters, lora)
    return config.lr or default_learning_rate("policy", parameters, lora), critic_lr


def lr_factor(step: int, total: int, warmup: int, schedule: str) -> float:
    """Multiplier of the learning rates at a 0-based step: linear warm-up, then constant, linear or cosine decay."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[schedule]


def recomputed(layer, forward, *args):
    """What a layer's forward returns, in eval mode: Falcon's takes dropout from the config. Backward runs it again."""

    def run(*args):
        layer.training = False
        try:
            return forward(*args)
        finally:
            layer.training = True

    return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False)


def switch_checkpointing(models: Models, on: bool) -> None:
    """Put the layers that recompute into train mode, or back; all else stays in eval mode, free of dropout."""
    for network in filter(None, (models.policy, models.critic and models.critic.backbone)):
        for layer in recomputing_layers(network):
            layer.training, layer._gradient_checkpointing_func = on, functools.partial(recomputed, layer)


def adamw(config: BaseConfig, networks: list[tuple]):
    """AdamW with a group for the trained weights of each (network, learning rate): the policy's, then the critic's."""
    trained = ([p for p in network.parameters() if p.requires_grad] for network, _ in networks)
    groups = [{"params": p, "lr": lr, "initial_lr": lr} for p, (_, lr) in zip(trained, networks, strict=True)]
    betas = (0.9, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)


def apply_gradients(config: BaseConfig, optimizer, scaler):
    """Clip gradients, and step unless one is not finite. Returns the norms, one per network."""
    scaler.unscale_(optimizer)
    clip = torch.nn.utils.clip_grad_norm_
    norms = torch.stack([clip(group["params"], config.max_grad_norm).cpu() for group in optimizer.param_groups])
    if torch.isfinite(norms).all():
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norms


class Statistics:
    """What an update measures, by name: over its micro-batches and processes, by "sum", "mean" or "max"."""

    def __init__(self, reductions: dict[str, str], device):
        self.maxima = {name for name, reduction in reductions.items() if reduction == "max"}
        self.values = {name: torch.zeros((), device=device) for name in reductions}

    def add(self, figures: dict) -> None:
        """Take in a micro-batch's share of each figure, a scalar tensor."""
        for name, value in figures.items():
            before = self.values[name]
            self.values[name] = torch.maximum(before, value) if name in self.maxima else before + value

    def add_means(self, figures: dict, mask, count) -> None:
        """Take in figures per token [B, T]: their sums where `mask` is 1, over the `count` of the whole minibatch."""
        sums = (torch.stack([*figures.values()]) * mask).sum((1, 2)) / count
        self.add(dict(zip(figures, sums, strict=True)))

    def sum_over_processes(self) -> None:
        """Sum what is summed; each process keeps its own maxima, which `updates_metrics` compares."""
        names = [name for name in self.values if name not in self.maxima]
        sums = sum_over_processes(torch.stack([self.values[name] for name in names])).cpu()
        self.values |= zip(names, sums, strict=True)


def run_updates(
    config: BaseConfig, optimizer, scaler, step: int, bad: int, accumulate: Callable, active=None
) -> tuple[dict, int]:
    """Run a step's epochs and minibatches; returns metrics of the applied updates, and the number of bad ones in a row.

    `accumulate` adds the gradients of rows, and returns their Statistics. Minibatches without `active` rows (None: all)
    are skipped. DivergedError is raised after `max_bad_updates` in a row, `bad` of them before this step.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * lr_factor(step, config.steps, config.warmup_steps, config.lr_schedule)
    applied, updates, target_kl = [], 0, getattr(config, "target_kl", 0.0)
    for epoch in range(config.ppo_epochs):
        order = np.random.default_rng([config.seed, 2, step, epoch]).permutation(config.batch_size)
        for rows in order.reshape(config.minibatches, -1):
            if active is not None and active.isdisjoint(rows.tolist()):
                continue
            statistics = accumulate(rows)
            statistics.sum_over_processes()
            if target_kl and statistics.values.get("kl/approx", 0.0) > target_kl:
                optimizer.zero_grad()
                return updates_metrics(optimizer, applied, updates), bad
            norms, updates = apply_gradients(config, optimizer, scaler), updates + 1
            if torch.isfinite(norms).all():
                statistics.values |= zip(("optim/grad_norm", "optim/critic_grad_norm"), norms, strict=False)
                applied.append(statistics)
                bad = 0
                continue
            bad += 1
            if bad >= config.max_bad_updates:
                raise DivergedError(
                    f"step {step + 1}: got {bad} non-finite gradients in a row; expected finite ones; "
                    "try a lower --lr, or --precision bf16 in place of fp16"
                )
    return updates_metrics(optimizer, applied, updates), bad


def updates_metrics(optimizer, applied: list[Statistics], updates: int) -> dict:
    """Means over a step's applied updates, maxima over these and all processes, and their numbers."""
    metrics, maxima = {}, applied[0].maxima if applied else ()
    largest = gather_rows([{name: max(s.values[name].item() for s in applied) for name in maxima}])
    if applied:
        names = [name for name in applied[0].values if name not in maxima]
        means = torch.stack([torch.stack([s.values[name] for name in names]) for s in applied]).mean(0)
        metrics = dict(zip(names, means.tolist(), strict=True))
        metrics |= {name: max(one[name] for one in largest) for name in maxima}
    metrics |= {"optim/updates": len(applied), "optim/skipped_updates": updates - len(applied)}
    return metrics | {"optim/lr": optimizer.param_groups[0]["lr"]}


BUCKET_BYTES = 25 * 2**20  # gradients that are summed at once: the default of torch's DistributedDataParallel


def sum_gradients(networks: list) -> None:
    """Sum the gradients of networks over the processes; a parameter that no process has reached keeps none."""
    if world()[1] == 1:
        return
    params = [p for network in networks for p in network.parameters() if p.requires_grad]
    reached = torch.tensor([float(p.grad is not None) for p in params], device=params[0].device)
    reached = sum_over_processes(reached).tolist()
    # AdamW leaves out what has no gradient; at a gradient of 0 it would count a step
    for bucket in in_buckets([p for p, anywhere in zip(params, reached, strict=True) if anywhere]):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = sum_over_processes(torch.cat([grad.reshape(-1) for grad in grads]))
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view_as(p)


def in_buckets(params: list) -> Iterator[list]:
    """Parameters in runs of one dtype and device, of BUCKET_BYTES at most where it is not a single one."""
    bucket, size = [], 0
    for p in params:
        more = p.numel() * p.element_size()
        if bucket and (size + more > BUCKET_BYTES or (p.dtype, p.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket, size = [], 0
        bucket, size = [*bucket, p], size + more
    if bucket:
        yield bucket
