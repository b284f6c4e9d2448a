"""The programs that the shortest code reward is tried on."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError

# What is tried with the test `assert f(2) == 4`. A hostile program pays only where what it tries succeeds, or leaves a
# trace: its file @MARK@ changed, another beside it, one named @BRAND@ elsewhere, a process of that name, the output.
PROGRAMS = file_text("files/programs.txt")
TRIAL = file_text("files/trial.py")
TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
LATER_S = 1.0  # seconds after which a trial looks for what was left behind: the program left behind writes after half
MUCH_OUTPUT = 32 << 20  # bytes that reach the caller; the program says four times as many
# what the attacks of the sandbox's own tests say
HOLDS = (
    "endless loops, exits with success, objects equal to everything, forged output, patched judges, killed parents, "
    "processes and files left behind, files deleted, changed and read, network, secrets of the environment, memory, "
    "much output"
)
NOT_AGAINST = (
    "weak tests; tests that take the program's own word (PAY_WEAK_TESTS); secrets in Python's library folders; holes "
    "in the kernel"
)
RIGHT_AT_0 = (
    "programs that need processes, network or files, more than 3 s a test (ten times that in all) or 512 MiB; tests "
    "that compare two objects of the program, pass it a function or capture what it prints"
)


def traces(folder: Path, names: list[str]) -> list[str]:
    """Names of the programs that changed their file, or left a file or a process; both are removed."""
    found = []
    for i, name in enumerate(names):
        kept = folder / str(i) / "keep"
        if [*kept.parent.iterdir()] != [kept] or kept.read_bytes() != b"kept":
            found.append(name)
    for place in (folder / "here", "/tmp", "/var/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):
            Path(place, folder.name + ".x").unlink()
            found.append("files left behind")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            about = stat.read_text(encoding="utf-8", errors="replace")
            if f"({folder.name}.x)" in about and ") Z" not in about:
                os.kill(int(stat.parent.name), signal.SIGKILL)
                found.append("process left behind")
    return found


def call_on_programs(args, codes: list[str], folder: Path) -> subprocess.CompletedProcess:
    """The written reward on programs, in a process of its own; each program has a file that it must not touch.

    Raises:
        subprocess.TimeoutExpired: it did not come back.
    """
    programs = []
    (folder / "here").mkdir()
    folder.chmod(0o755)  # what keeps a program of another user out shall be the sandbox alone
    for i, code in enumerate(codes):
        mark = folder / str(i) / "keep"
        mark.parent.mkdir()
        mark.write_text("kept", encoding="utf-8")
        mark.parent.chmod(0o777)
        mark.chmod(0o666)
        programs.append(code.strip().replace("@MARK@", str(mark)).replace("@BRAND@", folder.name + ".x"))
    given = json.dumps([str(args.output.resolve()), args.name, args.gold_column or "tests", programs])
    about = {"env": os.environ | {"TRIAL_SECRET": "told"}, "cwd": folder / "here", "timeout": TRIAL_S}
    return subprocess.run([sys.executable, "-c", TRIAL, given], capture_output=True, text=True, **about)


def tried_on_programs(args) -> dict:
    """What the written reward pays for right and for hostile programs, and what holds of it.

    Raises:
        UserError: it raised, as it does where nothing isolates programs.
    """
    found = re.split(r"^# (right|hostile): (.*)\n", PROGRAMS, flags=re.MULTILINE)[1:]
    kinds, names, codes = found[::3], found[1::3], found[2::3]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = call_on_programs(args, codes, Path(folder))
        except subprocess.TimeoutExpired:
            done = None
        time.sleep(LATER_S)
        lost = traces(Path(folder), names)
    if done is None:
        return {"ready": False, "ended": f"the reward did not come back in {TRIAL_S} s"}
    if done.returncode <= 0 and not done.stdout.strip():
        return {"ready": False, "ended": "a program ended the process that called the reward"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"got {last} from {args.output}; nothing is written; try sandbox.py --report")
    told = json.loads(done.stdout.splitlines()[-1])
    if max(told["grown"], len(done.stdout), len(done.stderr)) > MUCH_OUTPUT:
        lost.append("much output")
    tried = list(zip(kinds, names, told["scores"], strict=True))
    hostile = [name for kind, name, _ in tried if kind == "hostile"]
    missed = [name for kind, name, score in tried if kind == "right" and score != 1.0]
    paid = [name for _, name, score in tried if name in hostile and (score or name in lost)]
    report = {"ready": not paid and not missed, "right_programs": kinds.count("right"), "not_paid_of_them": missed}
    report |= {"hostile_programs": hostile, "paid_of_them": paid, "isolated": told["isolated"]}
    return report | {"holds_against": HOLDS, "not_against": NOT_AGAINST, "right_but_0": RIGHT_AT_0}
