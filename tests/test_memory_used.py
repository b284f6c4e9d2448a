"""The memory that a step has used: what is read, of which process, and when a GPU's peak begins anew."""

import os
from pathlib import Path

import torch

from parts.foundation import processes
from parts.foundation.processes import memory_metrics


def test_resident_memory_is_that_of_statm(monkeypatch, tmp_path):
    """The second number of /proc/self/statm counts resident pages. A written file holds still, a process does not."""
    assert processes.STATM == Path("/proc/self/statm")
    monkeypatch.setattr(processes, "STATM", tmp_path / "statm")
    (tmp_path / "statm").write_text(f"900000 {2 * 2**30 // os.sysconf('SC_PAGE_SIZE')} 1700 700 0 400000 0\n")
    assert memory_metrics()["memory/process_gib"] == 2.0


def test_the_fullest_process_counts(monkeypatch):
    other = {"memory/process_gib": 1e6, "memory/gpu_peak_gib": 1.0}
    monkeypatch.setattr(processes, "gather_rows", lambda mine: [*mine, other])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**30)
    assert memory_metrics() == {"memory/process_gib": 1e6, "memory/gpu_peak_gib": 3.0}
