"""The process of the preflight's user code without a process: to start Python is most of what such a check costs."""

import contextlib
import io
import pickle
import subprocess
import sys
import types
from pathlib import Path

from conftest import load_module

from programs.reward_preflight import command
from programs.reward_preflight.command import main
from programs.reward_preflight.reward_process import OwnProcess, load_functions


class ProcessHere(OwnProcess):
    """Calls in this process, on copies as a pipe makes them; a new one imports the user's files anew."""

    def start(self):
        files = {Path(file).resolve() for file in self.files}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).resolve() in files and not name.startswith("script_"):  # which tests have loaded
                del sys.modules[name]
        about, self.answer = load_functions(self.specs, self.row)
        return about

    def call(self, name, arguments, limit_s=0.0):
        return pickle.loads(pickle.dumps(self.answer(name, pickle.loads(pickle.dumps(arguments)))))


def try_here(monkeypatch, template) -> None:
    """Written rewards are tried without processes: their own tests, and the preflight on --data."""

    def run(words, **more):
        path = Path(words[1])
        if path.name != "reward_preflight.py" and words[2:] != ["--test"]:
            return subprocess.run(words, **more)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            if path.name == "reward_preflight.py":
                code = main(words[2:])
            else:
                code = int(load_module(path, "written_and_tested").self_test() > 0)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(command, "OwnProcess", ProcessHere)
    monkeypatch.setattr(template, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "run": run}))
