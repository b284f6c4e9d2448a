"""parts/running/fit.py: the memory of the machine, and what --dry_run shows of the settings."""

import json

import pytest
from conftest import FEW, FEW_TRAIN, load_script

from parts.running import fit

GIB = 2**30
EIGHT = {"memory.max": str(8 * GIB), "memory.current": str(3 * GIB)}


def machine(folder, free: int, files: dict[str, str], listing: str):
    """A /proc and a /sys/fs/cgroup with these GiB free of 64 and these files; what main_memory says of them, in GiB."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {free * 2**20} kB\n")
    (folder / "proc" / "self" / "cgroup").write_text(listing)
    for name, text in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(text)
    return {key: value / GIB for key, value in fit.main_memory(folder / "proc", folder / "groups").items()}


@pytest.mark.parametrize(
    ("files", "listing", "free", "total"),
    [
        ({}, "0::/", 40, 64),
        ({"memory.max": "max\n", "memory.current": str(GIB)}, "0::/", 40, 64),
        ({**EIGHT, "memory.stat": f"inactive_file {2 * GIB}\n"}, "0::/", 7, 8),  # cached files can be given back
        ({"a/memory.max": str(8 * GIB), "a/memory.current": "0", "a/b/x": ""}, "0::/a/b", 8, 8),  # of a parent
        (
            {"memory/job/memory.limit_in_bytes": str(4 * GIB), "memory/job/memory.usage_in_bytes": str(GIB)},
            "4:memory:/job\n1:cpu:/",
            3,
            4,
        ),
        ({"memory.max": str(2 * GIB), "memory.current": str(3 * GIB)}, "0::/", 0, 2),
    ],
)
def test_free_memory_heeds_the_limit_of_the_cgroup(files, listing, free, total, tmp_path):
    assert machine(tmp_path, 40, files, listing) == {"free": free, "total": total}
    assert fit.main_memory(tmp_path / "no_such") == {}, "a system that says nothing gives nothing"


@pytest.mark.parametrize(("free", "warned"), [(64 * GIB, False), (2**20, True)])
def test_a_dry_run_shows_the_batch_and_what_was_set_and_warns_where_memory_is_short(
    free, warned, tmp_path, capsys, monkeypatch
):
    ppo = load_script("ppo_train")
    monkeypatch.setattr(ppo, "main_memory", lambda: {"free": free, "total": 64 * GIB})
    flags = ["--dry_run", *FEW, f"--output_dir={tmp_path / 'run'}", "--device=cpu", "--seed=3", "--steps=10"]
    assert ppo.main([*flags, "--algorithm=grpo", "--batch_size=16", "--minibatches=2"]) == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert list(shown)[:3] == ["batch", "memory_estimate", "memory_of_the_machine"] and list(shown)[-1] == "settings"
    rows = len(FEW_TRAIN.read_text().splitlines())
    expected = {"prompts": rows, "completions": 160, "passes_over_the_data": pytest.approx(20 / rows, abs=0.01)}
    expected |= {"completions_per_optimizer_step": 8, "optimizer_steps": 20}
    assert {name: shown["batch"][name] for name in expected} == expected
    assert shown["memory_of_the_machine"] == {"device": "cpu", "free (GiB)": round(free / GIB, 3), "total (GiB)": 64.0}
    changed = shown["settings"]
    assert (changed["algorithm"], changed["seed"]) == ("grpo", 3) and changed["lr"] > 0 and "gamma" not in changed
    assert warned or not {"micro_batch_tokens", "logits_chunk", "rollout_batch_size"} & {*changed}
    assert ("even with the smallest batches; expected at most the 0.00098 GiB that cpu has free" in err) is warned
    assert list(tmp_path.iterdir()) == []
