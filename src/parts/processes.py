"""The processes of a torchrun launch: device, sums and gathered rows, the signal to stop."""

import os
import signal
import sys
import threading

from parts.messages import need, say
from parts.settings import BaseConfig


def world() -> tuple[int, int]:
    """(rank, number of processes) of a torchrun launch; (0, 1) otherwise."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def sum_over_processes(tensor):
    """Sum a tensor over all processes in place and return it."""
    if world()[1] > 1:
        import torch.distributed as dist

        dist.all_reduce(tensor)
    return tensor


def of_first_process(tensor):
    """The first process's tensor, in every process: decisions that rounding can turn are taken once."""
    rank, size = world()
    if size == 1:
        return tensor
    return sum_over_processes(tensor.clone() if rank == 0 else tensor.new_zeros(tensor.shape))


def gather_rows(mine: list, error: Exception | None = None) -> list:
    """Merge every process's rows rank::world into the order of the batch; an error of one is raised by all."""
    size = world()[1]
    if size == 1:
        if error:
            raise error
        return mine
    import torch.distributed as dist

    parts = [None] * size
    dist.all_gather_object(parts, (mine, error))
    for _, failure in parts:
        if failure:
            raise failure
    merged = [None] * sum(len(rows) for rows, _ in parts)
    for i, (rows, _) in enumerate(parts):
        merged[i::size] = rows
    return merged


def device_name(config: BaseConfig) -> str:
    """The device that --device names; auto is a CUDA GPU, else the CPU."""
    import torch

    name = config.device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    able = here.get(name.split(":")[0] if name.startswith("cuda:") else name, False)
    need(able, f"got --device {name}; expected auto, cpu, cuda[:N] or mps, on a machine that has it; try --device cpu")
    return name


def start_processes(config: BaseConfig):
    """Return this process's device; join the process group of a torchrun launch."""
    import torch
    import torch.distributed as dist

    name = device_name(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if name == "cuda":
            name = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(name)
        dist.init_process_group("cpu:gloo,cuda:nccl" if name.startswith("cuda") else "gloo")
    return torch.device(name)


def leave_processes() -> None:
    """Leave the process group, if there is one."""
    if "torch" in sys.modules and world()[1] > 1:  # --help must not import torch
        import torch.distributed as dist

        dist.destroy_process_group()


class StopRequest:
    """Remembers the first SIGTERM or SIGINT so that the step under way can finish; a second one ends at once."""

    def __init__(self):
        self.signum, self.earlier = 0, {}
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            self.earlier = {n: signal.signal(n, self.handle) for n in (signal.SIGTERM, signal.SIGINT)}

    def restore(self) -> None:
        """Put the earlier handlers back."""
        for signum, handler in self.earlier.items():
            signal.signal(signum, handler)

    def handle(self, signum, frame) -> None:
        """Signal handler."""
        if self.signum:
            raise KeyboardInterrupt
        self.signum = signum
        say("stopping after this step; once more to stop at once")

    def agreed(self) -> int:
        """The signal that any process got, 0 for none."""
        return max(gather_rows([self.signum]))
