"""What a reward may do to the process that trains: nothing that stays; how its file is imported; how a run is ended."""

import builtins
import gc
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from conftest import ROOT

from parts.foundation.messages import UserError
from parts.rewards.reward_forms import make_way
from parts.rewards.rewards import Reward
from parts.rewards.user_code import REWARD_STATE

ROWS = [{"prompt": "a", "columns": {"answer": ["b"], "tests": {"x": [1]}}}] * 2
GIVEN = ROWS, ["b", "c"], [[1], [2]]

HARM = {  # what of the process: (its state, code that changes it)
    "folder": (os.getcwd, "os.chdir('/')"),
    "environment": (lambda: os.environ.get("OF_A_REWARD"), "os.environ['OF_A_REWARD'] = 'x'"),
    "arguments": (lambda: sys.argv[:], "sys.argv = ['x']"),
    "stdout": (lambda: sys.stdout, "sys.stdout = open(os.devnull, 'w')"),
    "SIGTERM": (lambda: signal.getsignal(signal.SIGTERM), "signal.signal(signal.SIGTERM, signal.SIG_IGN)"),
    "warnings": (lambda: warnings.filters[:], "warnings.simplefilter('error')"),
    "logging": (lambda: logging.root.manager.disable, "logging.disable(logging.CRITICAL)"),
    "timeout": (socket.getdefaulttimeout, "socket.setdefaulttimeout(0.1)"),
    "umask": (lambda: [os.umask(0o22), os.umask(0o22)][0], "os.umask(0o777)"),
    "collection": (gc.isenabled, "gc.disable()"),
    "numpy": (np.geterr, "np.seterr(all='raise')"),
    "dtype": (torch.get_default_dtype, "torch.set_default_dtype(torch.float64)"),
    "gradients": (torch.is_grad_enabled, "torch.set_grad_enabled(False)"),
    "device": (torch.get_default_device, "torch.set_default_device('meta')"),
    "determinism": (torch.get_deterministic_debug_mode, "torch.use_deterministic_algorithms(True, warn_only=True)"),
    "anomalies": (torch.is_anomaly_enabled, "torch.autograd.set_detect_anomaly(True)"),
    "rmtree": (lambda: shutil.rmtree, "shutil.rmtree = None"),
    "sleep": (lambda: time.sleep, "time.sleep = None"),
    "open": (lambda: builtins.open, "builtins.open = None"),
    "dumps": (lambda: json.dumps, "json.dumps = None"),
}
ALONE = ("open", "device", "umask")  # after these the others would fail
IMPORTS = "import builtins, gc, json, logging, os, shutil, signal, socket, sys, time, warnings, torch\n"
IMPORTS += "import numpy as np\n"


def loaded(folder: Path, source: str, name: str = "own_reward") -> Reward:
    """The reward `f` of a file with this source."""
    (folder / f"{name}.py").write_text(source)
    return Reward([f"{folder / name}.py:f"])


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch):
    """Rewards that begin with the process as it is."""
    monkeypatch.setattr(REWARD_STATE, "changed", {})


@pytest.mark.parametrize("where", ["import", "call", "async"])
@pytest.mark.parametrize("names", [[name for name in HARM if name not in ALONE], *([name] for name in ALONE)])
def test_what_a_reward_changes_of_the_process_is_its_own(names, where, tmp_path):
    if where == "async":  # only the main thread may set the handlers of signals; the loop's thread has its own of two
        names = [name for name in names if name not in ("SIGTERM", "gradients", "device")]
    harm = [HARM[name][1] for name in names]
    body, kind = ["pass"] if where == "import" else harm, "async def" if where == "async" else "def"
    lines = [IMPORTS, *(harm if where == "import" else []), f"{kind} f(completion):", *(f"    {x}" for x in body)]

    def changed() -> list[str]:
        return [name for name in names if HARM[name][0]() != before[name]]

    before = {name: HARM[name][0]() for name in names}
    reward = loaded(tmp_path, "\n".join([*lines, "    return 1.0\n"]), f"of_{where}")
    assert not changed()
    for _ in range(2):
        assert reward(*GIVEN)[0] == [1.0, 1.0] and not changed()


def test_a_reward_keeps_what_it_has_changed(tmp_path):
    (tmp_path / "gold.txt").write_text("3")
    code = f"import os, torch\nos.chdir({str(tmp_path)!r})\ntorch.set_grad_enabled(False)\n"
    code += "def f(completion):\n    return float(open('gold.txt').read()) + torch.is_grad_enabled()\n"
    reward = loaded(tmp_path, code)
    assert reward(*GIVEN)[0] == [3.0, 3.0] == reward(*GIVEN)[0] and torch.is_grad_enabled()


def test_prints_of_a_reward_are_no_results(tmp_path, capsys):
    code = "print('import')\ndef f(completion):\n    print('call')\n    return 1.0\n"
    assert loaded(tmp_path, code)(*GIVEN)[0] == [1.0, 1.0]
    print("result")
    said = capsys.readouterr()
    assert said.out == "result\n" and said.err.split() == ["import", "call", "call"]


def test_an_exit_at_import_is_an_error_that_names_the_file(tmp_path):
    code = "import sys\nsys.exit('no key')\ndef f(completion):\n    return 1.0\n"
    with pytest.raises(UserError, match=r"importing .*own_reward.py raises SystemExit: no key"):
        loaded(tmp_path, code)


def test_arguments_of_the_trainer_are_none_of_the_rewards(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ppo_train.py", "--model", "m"])
    code = "import argparse\nargs = argparse.ArgumentParser().parse_args()\ndef f(completion):\n    return 1.0\n"
    assert loaded(tmp_path, code)(*GIVEN)[0] == [1.0, 1.0] and sys.argv[1:] == ["--model", "m"]


def test_the_file_beside_a_reward_comes_before_the_bundles_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    for folder, value in (("a", 3.0), ("b", 4.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sandbox.py").write_text(f"VALUE = {value}\n")
        code = "import sandbox\ndef f(completion):\n    import sandbox as later\n    return sandbox.VALUE\n"
        assert loaded(tmp_path / folder, code)(*GIVEN)[0] == [value, value]
    sys.modules.pop("sandbox", None)


def test_a_file_beside_a_reward_does_not_stand_for_a_library_of_the_trainer(tmp_path):
    (tmp_path / "wave.py").write_text("NAME = 'mine'\n")  # of the standard library, not loaded before
    sys.modules.pop("wave", None)
    reward = loaded(tmp_path, "import wave\ndef f(completion):\n    return float(wave.NAME == 'mine')\n")
    assert reward(*GIVEN)[0] == [1.0, 1.0]
    import wave

    assert hasattr(wave, "open")


SPAWNS = """
import multiprocessing

def work(text):
    return float(len(text))

def f(completions, **kwargs):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map_async(work, completions).get(60)
"""
CALL = """
import sys
from parts.rewards.rewards import Reward
if __name__ == "__main__":
    print(Reward(sys.argv[1:])([{"prompt": "", "columns": {}}] * 2, ["a", "bc"], [[1], [2]])[0])
"""


@pytest.mark.long
def test_spawned_processes_find_the_functions_of_a_reward_file(tmp_path):
    (tmp_path / "run.py").write_text(CALL)
    (tmp_path / "own.py").write_text(SPAWNS)
    paths, command = os.environ | {"PYTHONPATH": str(ROOT / "src")}, [sys.executable, "run.py", "own.py:f"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=paths, timeout=200)
    assert done.stdout == "[1.0, 2.0]\n", done.stderr


STUBBORN = """
import sys, time
from parts.foundation import processes
processes.GRACE_S = 0.2
stop = processes.StopRequest()
print("ready", flush=True)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_run_whose_reward_swallows_it(number):
    heard = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731  also under nohup
    paths = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", STUBBORN]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, env=paths, preexec_fn=heard)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert "stopping after this step" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) in (130, -signal.SIGINT)  # the latter between two tries
    finally:
        process.kill()
        process.communicate()


SPOILS = """
def f(prompts, completions, answer, tests, completion_ids, **kwargs):
    rows = [*zip(answer, tests, prompts, completion_ids, completions)]
    scores = [float(len(a) + len(t["x"]) + len(p) + len(i)) for a, t, p, i, _ in rows]
    for a, t, p, i, c in rows:
        for value in (a, t["x"], p, i):
            value.append({})
        c[0]["content"] = ""
    return scores
"""
READS = """
def g(completions, answer):
    return [len(a) + len(c[0]['content']) for a, c in zip(answer, completions)]
"""


def test_a_reward_that_changes_its_columns_spoils_no_other_completion(tmp_path):
    row = {"prompt": [{"role": "user", "content": "q"}], "columns": {"answer": ["b"], "tests": {"x": [1]}}}
    (tmp_path / "other.py").write_text(READS)
    (tmp_path / "own.py").write_text(SPOILS)
    reward = Reward([f"{tmp_path}/own.py:f", f"{tmp_path}/other.py:g"])
    for _ in range(2):
        _, parts = reward([row] * 3, ["x"] * 3, [[1]] * 3)
        assert parts == {"f": [4.0] * 3, "g": [2.0] * 3}
    assert row["columns"] == {"answer": ["b"], "tests": {"x": [1]}} and len(row["prompt"]) == 1


def test_a_loaded_library_stays_though_a_file_beside_the_reward_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "plots.py").write_text("")
    for place in ("site-packages", "dist-packages"):
        library = ModuleType("plots")
        library.__file__ = f"/usr/lib/{place}/plots.py"
        monkeypatch.setitem(sys.modules, "plots", library)
        make_way(tmp_path)
        assert sys.modules["plots"] is library
