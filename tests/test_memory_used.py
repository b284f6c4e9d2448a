"""The memory that a step has used: what is read, of which process, and when a GPU's peak begins anew."""

import torch

from parts.foundation import processes
from parts.foundation.processes import forget_peak, memory_metrics


def test_resident_memory_grows_by_what_is_kept():
    """In one of three tries: a machine that runs short takes other pages away meanwhile."""
    tries = []
    for _ in range(3):
        before = memory_metrics()["memory/process_gib"]
        kept = bytearray(b"x") * (256 * 2**20)
        tries.append(memory_metrics()["memory/process_gib"] - before)
        del kept
    assert any(0.24 < grown < 0.27 for grown in tries), tries


def test_the_fullest_process_counts(monkeypatch):
    other = {"memory/process_gib": 1e6, "memory/gpu_peak_gib": 1.0}
    monkeypatch.setattr(processes, "gather_rows", lambda mine: [*mine, other])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**30)
    assert memory_metrics() == {"memory/process_gib": 1e6, "memory/gpu_peak_gib": 3.0}


def test_nothing_is_said_where_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "STATM", tmp_path / "no_such_file")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert memory_metrics() == {}
    forget_peak()  # and a GPU that nothing uses is not touched


def test_peak_begins_anew(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: calls.append(1))
    forget_peak()
    assert calls == [1]
