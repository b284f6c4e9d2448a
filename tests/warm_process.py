"""A process that has torch and transformers loaded, and forks one child for each command line of a script.

What a script's process costs is the loading of libraries, 4 s of CPU for transformers and 11 s with TRL, not the work
of a test. A child is a process of its own as any other: its arguments, folder, environment, output, signals, exit
handlers and exit code; only the libraries are there already. What reads the environment while they load, and a
script's first start, is tested with fresh processes (`fresh=True`, and tests/test_copies.py).
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import threading
import traceback
import types
from pathlib import Path
from unittest import mock

LIBRARIES = ["yaml", "matplotlib.pyplot", "torch", "torch._dynamo"]  # the last by the first optimizer
LIBRARIES += [f"transformers.models.auto.{name}_auto" for name in ("modeling", "tokenization")]
LIBRARIES.append("transformers.models.llama.modeling_llama")  # the embedded model's
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
DIAGNOSE = SCRIPTS / "diagnose.py"
re._MAXCACHE = 10_000  # the patterns of all scripts
OF_TRL = ("datasets", "trl.trainer.grpo_trainer")
# before such a script's first
BESIDES = dict.fromkeys(("grpo_train", "basic_grpo_training", "migrate", "old_versions", "pantry"), OF_TRL)


class WarmProcess:
    """The side of a test: starts the process when it is first needed."""

    def __init__(self):
        self.lock = threading.Lock()
        self.process = None
        self.child = None  # the id of the process that runs

    def run(self, request: dict) -> int:
        """Exit code of one command line, negative for a signal; TimeoutError once its time is over."""
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                command = [sys.executable, __file__]
                self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            here = request["cwd"] or os.getcwd()  # not where this process began: that folder may be gone
            self.process.stdin.write(json.dumps(request | {"cwd": here}) + "\n")
            self.process.stdin.flush()
            self.child = json.loads(self.process.stdout.readline())
            stop = threading.Timer(request["timeout"], os.kill, (self.child, 9))
            stop.start()
            code = json.loads(self.process.stdout.readline())
            self.child = None
            if not stop.is_alive():
                raise TimeoutError(f"{request['command']} ran past {request['timeout']} s")
            stop.cancel()
            return code


def load_libraries(script: str) -> None:
    """Import what most scripts load, without what libraries say at their import."""
    names = [*LIBRARIES, *BESIDES.get(Path(script).stem, ())]
    errors, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(silent)
    conversions = importlib.import_module("transformers.conversion_mapping")
    conversions.get_checkpoint_conversion_mapping("llama")  # a thousand patterns, compiled by the first model loaded


class EmptyPicture:
    """In place of matplotlib's Figure: leaves an empty file, as to draw takes as long as a run of a few steps."""

    def __init__(self, **_):
        self.suptitle = self.supxlabel = mock.Mock()

    def subplots(self, rows: int, columns: int, **_):
        return sys.modules["numpy"].full((rows, columns), mock.Mock(), dtype=object)

    def savefig(self, path, **_) -> None:
        Path(path).touch()


def compiled(path: str, known: dict):
    """The code of a script, compiled once for each version of the file; so are the patterns of the built ones."""
    stamp = os.stat(path)
    key = (path, stamp.st_mtime_ns, stamp.st_size)
    if key not in known:
        known[key] = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        if Path(path).parent == SCRIPTS:  # it does nothing at import
            runpy.run_path(path, run_name="patterns")
    return known[key]


def diagnosing(run, diagnose):
    """`subprocess.run` that calls diagnose.py's `main` here: to start Python anew is a fifth of a run of one step."""

    def judged(command, **more):
        if list(command[1:2]) != [str(DIAGNOSE)]:
            return run(command, **more)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = diagnose(command[2:])
        return subprocess.CompletedProcess(command, code, out.getvalue())

    return judged


def become(request: dict, code, diagnose) -> None:
    """Run a script in this process as `python SCRIPT FLAGS` would, or a text as `python -c TEXT`."""
    for number, path in enumerate((os.devnull, request["out"], request["err"])):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["env"])
    if "DRAW" not in os.environ:
        sys.modules["matplotlib.figure"].Figure = EmptyPicture
    subprocess.run = diagnosing(subprocess.run, diagnose)
    if "umask" in request:
        os.umask(request["umask"])
    if request["cwd"]:
        os.chdir(request["cwd"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=__builtins__)
    path, *rest = request["command"]
    if path == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv, sys.path[0], module.__file__ = request["command"], os.path.dirname(path), path
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def exit_code(request: dict, code, diagnose) -> int:
    """What the interpreter makes of a script's end."""
    try:
        become(request, code, diagnose)
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def child(request: dict, code, diagnose) -> None:
    """A forked child from its start to its end; never returns."""
    status = exit_code(request, code, diagnose)
    threading._shutdown()  # waits for threads that are no daemons, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    os._exit(status & 255)


def main() -> None:
    """One command line after the other: the child's process id as soon as it runs, its exit code at its end."""
    answers, known = os.fdopen(os.dup(1), "w"), {}
    os.dup2(2, 1)  # what a library says while it loads is no answer
    diagnose = runpy.run_path(str(DIAGNOSE), run_name="diagnose")["main"]
    for line in sys.stdin:
        request = json.loads(line)
        load_libraries(request["command"][0])
        code = None if request["command"][0] == "-c" else compiled(request["command"][0], known)
        gc.freeze()  # a child's collections neither walk nor copy what the libraries made
        pid = os.fork()
        if pid == 0:
            answers.buffer.raw.close()
            child(request, code, diagnose)
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
