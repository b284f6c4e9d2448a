"""benchmarks/all.py: every benchmark is in it, the committed figures are the page's, what they print is read."""

import json
import re
import time
from types import SimpleNamespace

import pytest
from conftest import ROOT, load_module, load_script

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    """benchmarks/all.py as a module."""
    return load_module(FOLDER / "all.py", "all_benchmarks")


def test_every_script_is_registered_and_listed(benchmarks, capsys, monkeypatch):
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"all"} - benchmarks.PARTS
    assert scripts == {one.script for one in benchmarks.BENCHMARKS.values()}
    monkeypatch.setattr(benchmarks, "run", lambda *args: pytest.fail("it ran"))
    assert benchmarks.main(["--list", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert set(re.findall(r"^(\w+) \(", shown, re.MULTILINE)) == set(benchmarks.BENCHMARKS)
    assert "ppo_vs_trl (GPU where there is one): no environment for it; try --trl112 PYTHON" in shown


def test_committed_figures_are_those_of_the_page(benchmarks):
    page = (FOLDER / "README.md").read_text(encoding="utf-8").replace(",", "")
    written = {float(text) for text in re.findall(r"\d+\.?\d*", page)}
    committed = benchmarks.committed_figures()
    assert set(committed) <= set(benchmarks.BENCHMARKS)
    assert not {(name, key): x for name, each in committed.items() for key, x in each.items() if x not in written}


def test_what_a_benchmark_prints_is_read(benchmarks):
    read = benchmarks.figures_of
    assert read('{"settings": {"pairs": 1},\n "cpu": {"ours": 2.0}, "isolated": true}') == {"cpu ours": 2.0}
    lines = 'note\n{"case": "ppo one", "share": 0.9}\n{"cases": 2, "shares": [0.9, 1]}\n'
    assert read(lines) == {"ppo one share": 0.9, "cases": 2, "shares 0": 0.9, "shares 1": 1}
    table = "| arm | seed | first |\n|---|---|---|\n| before | | 0.5 |\n| turn | 1 | 1,024 |\n\n| seed | s |\n| 0 | – |"
    assert read(table) == {"before first": 0.5, "turn 1 first": 1024.0}


def test_a_run_goes_on_past_what_cannot_run(benchmarks, tmp_path, monkeypatch):
    """One that is measured for real, one without its environment, one that fails, one that is too long for --quick."""
    make = benchmarks.Benchmark
    real = make("math_graders", quick="--graders ours", needs=("math_verify",))
    here = {"math_graders": real, "old": make("ppo_vs_trl", python="trl112"), "long": make("growth", quick=None)}
    here["broken"] = make("logprob_memory", quick="--side plain --tokens none")
    here["absent"] = make("growth", needs=("no_such_package",))
    monkeypatch.setattr(benchmarks, "BENCHMARKS", here)
    assert benchmarks.main(["--quick", "--output", str(tmp_path)]) == 1, "one of them failed"
    found = json.loads((tmp_path / "figures.json").read_text())["benchmarks"]
    assert found["math_graders"]["figures"]["ours agreement %"] == 100.0
    assert "try --trl112 PYTHON" in found["old"]["why"] and found["long"]["why"] == "left out by --quick"
    assert "exit code 2; see broken.log" in found["broken"]["why"] and "no_such_package" in found["absent"]["why"]
    assert "invalid int value" in (tmp_path / "broken.log").read_text()
    page = (tmp_path / "figures.md").read_text()
    assert "| math_graders | ours agreement % | 100 | 100 | 1.00 |" in page
    assert "| broken | not measured: exit code 2" in page


def test_what_is_out_of_time_ends_with_its_children_and_keeps_its_figures(benchmarks, tmp_path, monkeypatch):
    endless = "echo '{\"seconds\": 3}'; sleep 60 & wait"
    monkeypatch.setattr(benchmarks, "command_of", lambda *_: ["sh", "-c", endless])
    args = SimpleNamespace(quick=False, output=tmp_path)
    start = time.monotonic()
    found = benchmarks.run("endless", benchmarks.Benchmark("endless"), args, limit=1)
    assert found["figures"] == {"seconds": 3} and "not done within 1 s" in found["why"]
    assert time.monotonic() - start < 50, "the child held the pipe"
    benchmarks.write_report(args, {"endless": found}, {})
    assert "| endless | measured in part: not done" in (tmp_path / "figures.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize("case", ["ppo llama sdpa fp32 one", "distillation llama sdpa fp32", "trl llama sdpa fp32 one"])
def test_predicted_memory_is_what_the_allocator_hands_out(case, monkeypatch):
    ppo, estimates = load_script("ppo_train"), load_module(FOLDER / "memory_estimates.py", "memory_estimates")
    monkeypatch.setattr(ppo, "contributing", ppo.contributing)  # the measurement replaces it
    monkeypatch.setitem(estimates.SIZES, "num_hidden_layers", 2)
    assert 0.95 < estimates.measure(case)["share"] < 1.05
