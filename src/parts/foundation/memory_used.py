"""The memory that a step has used, as metrics: what a run log has beside its seconds."""

import os
from pathlib import Path

from parts.foundation.processes import gather_rows

STATM = Path("/proc/self/statm")  # sizes in pages; the second one is the resident set


def forget_peak() -> None:
    """Let the GPU's peak count from now on."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def memory_metrics() -> dict[str, float]:
    """What the fullest process has in memory now, and its GPU's peak since `forget_peak`; what is not known is absent.

    Every process must call it.
    """
    import torch

    found = {}
    if STATM.exists():
        pages = int(STATM.read_text().split()[1])
        found["memory/process_gib"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**30
    if torch.cuda.is_initialized():
        found["memory/gpu_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    of_all = gather_rows([found])
    return {name: max(one[name] for one in of_all) for name in found}
