"""Correct and hostile programs, and calling a code reward on them in a separate process."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.foundation.file_text import file_text

# Programs for the test `assert f(2) == 4`. A hostile one passes only if its attack succeeds: @MARK@ is a file that it
# must not touch, @PORT@ a server that it must not reach, @NAME@ the name of a process that it leaves behind.
ATTACKS = file_text("files/attacks.txt")
ATTACK_TRIAL = file_text("files/attack_trial.py")
TEST_OF_ATTACKS = "assert f(2) == 4"
PARENT = "import subprocess, sys; sys.exit(max(0, subprocess.run(sys.argv[1:]).returncode))"  # a program may kill it


def attack_programs() -> list[tuple[str, str, str]]:
    """("right" or "hostile", name, code) of each program."""
    parts = re.split(r"^# (right|hostile): (.*)\n", ATTACKS, flags=re.MULTILINE)[1:]
    return [(kind, name, code.strip()) for kind, name, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]


def called_on_programs(path: str, name: str, row: dict, programs: list[str], seconds: float) -> dict:
    """A reward's {"scores", "harm", "isolated"} for programs as answers to a row, or {"ended" or "raised": why}."""
    trial = [sys.executable, "-c", ATTACK_TRIAL, json.dumps([path, name, row, programs])]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # open to all users: only a sandbox keeps programs out
        about = {"env": os.environ | {"TRIAL_SECRET": "told"}, "cwd": folder, "start_new_session": True, "text": True}
        about |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", PARENT, *trial], **about) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return {"ended": f"the reward did not return in {seconds:g} s"}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode > 0:
        return {"raised": (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]}
    if not out.strip():
        return {"ended": "a program ended the process that called the reward"}
    return json.loads(out.splitlines()[-1])
