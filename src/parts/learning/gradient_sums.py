"""Gradients summed over the processes: in buckets, while the last backward pass still goes on."""

import contextlib
from collections.abc import Iterator

from parts.foundation.processes import begin_sum, sum_over_processes, world
from parts.networks.models import unwrapped

BUCKET_BYTES = 25 * 2**20  # gradients that are summed at once: the default of torch's DistributedDataParallel


class GradientSums:
    """The sum of one minibatch's gradients over all processes.

    Every process sums the same buckets in the same order, each when its own gradients and those of all earlier buckets
    are there, and the rest in `finish`: so no process waits for one that has no rows, or does not reach a parameter.
    """

    def __init__(self, params: list, late: set[int]):
        """
        Args:
            params: what is trained, in the order in which a backward pass is likely to reach it.
            late: ids of those that a backward pass may add to more than once; they are summed at the end.
        """
        early = list(in_buckets([p for p in params if id(p) not in late]))
        self.params, self.buckets = params, early + list(in_buckets([p for p in params if id(p) in late]))
        self.missing = [{id(p) for p in bucket} for bucket in early]
        self.reached, self.waits = set(), []  # ids of parameters with a gradient here; one wait per sum under way

    @contextlib.contextmanager
    def in_last_pass(self) -> Iterator[None]:
        """Sum each bucket as soon as the backward passes inside have made its gradients."""
        place = {key: i for i, missing in enumerate(self.missing) for key in missing}

        def arrived(p) -> None:
            if place[id(p)] < len(self.waits):
                raise RuntimeError(
                    "got a second gradient in the last backward pass; expected one of what is not `late`"
                )
            self.missing[place[id(p)]].discard(id(p))
            while len(self.waits) < len(self.missing) and not self.missing[len(self.waits)]:
                self.begin_next()

        params = [p for p in self.params if id(p) in place]
        hooks = [p.register_post_accumulate_grad_hook(arrived) for p in params]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def begin_next(self) -> None:
        """Begin to sum the next bucket; the gradients become views of the sum."""
        import torch

        bucket = self.buckets[len(self.waits)]
        self.reached |= {id(p) for p in bucket if p.grad is not None}
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = grads[0].reshape(-1) if len(grads) == 1 else torch.cat([grad.reshape(-1) for grad in grads])
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view_as(p)
        self.waits.append(begin_sum(flat))

    def finish(self) -> None:
        """Sum what is left and wait for all of it; a parameter that no process has reached keeps no gradient."""
        import torch

        while len(self.waits) < len(self.buckets):
            self.begin_next()
        for wait in self.waits:
            wait()
        reached = torch.tensor([float(id(p) in self.reached) for p in self.params], device=self.params[0].device)
        for p, anywhere in zip(self.params, sum_over_processes(reached).tolist(), strict=True):
            if not anywhere:  # AdamW leaves out what has no gradient; at a gradient of 0 it would count a step
                p.grad = None


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


def summing_gradients(networks: list, pieces: list) -> Iterator:
    """Yield micro-batches; when all have been through their backward pass, the gradients are sums over the processes.

    Args:
        networks: those that are trained, in the order in which they go through their backward pass.
        pieces: this process's micro-batches, if it has any; the number may differ between processes.
    """
    if world()[1] == 1:
        yield from pieces
        return
    params = [p for network in networks for p in reversed(list(network.parameters())) if p.requires_grad]
    models = [unwrapped(network) for network in networks]
    heads = [model.get_output_embeddings() for model in models if hasattr(model, "get_output_embeddings")]
    late = {id(p) for head in heads if head is not None for p in head.parameters()}  # may run in pieces of the batch
    sums = GradientSums(params, late)
    yield from pieces[:-1]
    with sums.in_last_pass():
        yield from pieces[-1:]
    sums.finish()
