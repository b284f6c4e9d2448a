"""CPU threads: the limits of a container, what the user has set, and a second look when steps become slow."""

import ctypes
import os
import types

import pytest
import torch

from parts.foundation import processes
from parts.foundation.processes import CpuThreads, cpu_limit, use_huge_pages, wait_passively
from parts.foundation.settings import BaseConfig

CPU = torch.device("cpu")


@pytest.fixture
def threads(monkeypatch):
    """A CpuThreads of a machine with four CPUs, on which torch uses all of them; the numbers that it sets."""
    numbers = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(processes, "cpu_limit", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen = CpuThreads()
    chosen.numbers, chosen.looks = numbers, []
    monkeypatch.setattr(chosen, "choose", lambda: chosen.looks.append(1))
    return chosen


def config(value: str) -> BaseConfig:
    made = BaseConfig()
    made.threads = value
    return made


@pytest.mark.parametrize(
    ("listing", "files", "limit"),
    [
        ("0::/pod/job\n", {"pod/cpu.max": "150000 100000\n", "pod/job/cpu.max": "max 100000\n"}, 2),
        ("3:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "9"}, 8),
        ("3:cpu,cpuacct:/job\n", {"cpu,cpuacct/cpu.cfs_quota_us": "300", "cpu,cpuacct/cpu.cfs_period_us": "100"}, 3),
        ("4:memory:/job\n", {"memory/job/cpu.max": "1 1"}, 8),
    ],
)
def test_a_container_may_have_fewer_cpus_than_its_machine(tmp_path, monkeypatch, listing, files, limit):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(listing)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path, tmp_path) == limit


def test_auto_looks_at_the_start_and_after_a_step_that_is_several_times_slower(threads):
    threads.begin(config("auto"), CPU)
    for seconds in (1.0, 2.5, 0.9, 2.6):
        threads.after(seconds)
    assert len(threads.looks) == 1
    threads.after(2.8)
    assert len(threads.looks) == 2
    threads.after(2.8)  # the slow step is the new measure
    assert len(threads.looks) == 2


def test_what_the_user_has_set_stays(threads, monkeypatch):
    threads.begin(config("3"), CPU)
    assert threads.numbers == [4, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads.begin(config("auto"), CPU)
    threads.after(1.0)
    threads.after(9.0)
    assert threads.numbers == [4, 3] and not threads.looks


@pytest.mark.parametrize("slow", [1, 4])
def test_the_faster_number_is_kept_and_a_change_is_said(threads, monkeypatch, capsys, slow):
    clock = [0.0]
    monkeypatch.setattr(processes.time, "perf_counter", lambda: clock[0])

    def product(x, y):
        clock[0] += 5.0 if threads.numbers[-1] == slow else 1.0
        return torch.ones(1)

    monkeypatch.setattr(torch, "mm", product)
    threads.begin(config("auto"), CPU)
    CpuThreads.choose(threads)
    assert threads.numbers[-1] == 5 - slow
    assert ("1 of 4 CPU threads" in capsys.readouterr().err) == (slow == 4)


@pytest.mark.parametrize("set_by_user", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", ""])
def test_idle_threads_leave_their_core_unless_the_user_says_how_they_wait(monkeypatch, set_by_user):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "5") if name == set_by_user else monkeypatch.delenv(name, raising=False)
    wait_passively()
    assert os.environ.get("GOMP_SPINCOUNT") == {"": "1000", "GOMP_SPINCOUNT": "5"}.get(set_by_user)
    os.environ.pop("GOMP_SPINCOUNT", None)


@pytest.mark.parametrize("set_by_user", ["0", "1", None])
def test_large_tensors_get_huge_pages_unless_the_user_has_chosen(monkeypatch, set_by_user):
    called = []
    monkeypatch.setattr(processes.sys, "platform", "linux")
    libc = types.SimpleNamespace(mallopt=lambda *values: called.append(values))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", set_by_user or "")
    if not set_by_user:
        del os.environ["THP_MEM_ALLOC_ENABLE"]
    use_huge_pages()
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == (set_by_user or "1")
    assert called == ([] if set_by_user else [(-3, 2**25), (-1, 2**26)])  # glibc's malloc.h
