"""A reward that runs programs, on hostile ones: what is paid, read, changed, left behind or ended."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.file_text import file_text
from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs
from programs.prove.proof import Proof

ATTACK_TRIAL = file_text("files/attack_trial.py")
TESTS = ("tests", "test_list", "test_cases", "test", "unit_tests", "asserts", "ground_truth", "answer")
LOADING_S, PROGRAM_S = 120.0, 15.0  # an import may load torch; a score may take this long
HARMFUL = ("file deleted", "file changed", "files left behind", "process left behind", "network")  # right, but for that


def attacked_row(row: dict, names: set[str]) -> dict | None:
    """A row whose tests, in their own form, are the attacks'; None where no column has tests that a reward takes."""
    truth = row["columns"].get("reward_model")
    if isinstance(truth, dict) and (inner := attacked_row({"columns": truth}, {*truth})):
        return row | {"columns": row["columns"] | {"reward_model": inner["columns"]}}
    for name in TESTS:
        value, test = row["columns"].get(name), TEST_OF_ATTACKS
        if name not in names or "assert " not in json.dumps(value, default=str):
            continue
        with contextlib.suppress(ValueError, TypeError):
            test = json.dumps([test]) if isinstance(json.loads(value), list) else test
        if "def check(" in str(value):
            test = f"def check(candidate):\n    {test.replace('f(', 'candidate(')}"
        changed = {name: test if isinstance(value, str) else [test]}
        changed |= {n: v for n, v in (("entry_point", "f"), ("setup", "")) if n in row["columns"]}
        return row | {"columns": row["columns"] | changed}
    return None


class Trial:
    """The process that calls the reward; one that ends or hangs is started again for the programs that are left."""

    def __init__(self, spec: str, row: dict, folder: str):
        self.given = {"prove": str(BUNDLE / "scripts" / "prove.py"), "row": row}
        self.given["reward"] = str(Path(spec).resolve())  # FILE.py:function, called in another folder
        self.folder = folder

    def outcomes(self, programs: list[tuple[int, str]], seconds: float):
        """Yield (number, what the process says of it); it is {"ended": why} where no answer came."""
        end = time.monotonic() + seconds
        while programs and time.monotonic() < end:
            command = [sys.executable, "-c", ATTACK_TRIAL, json.dumps(self.given | {"programs": programs})]
            about = {"cwd": self.folder, "env": os.environ | {"TRIAL_SECRET": "told"}, "start_new_session": True}
            about |= {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            guard = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"  # a parent to be killed
            with subprocess.Popen([sys.executable, "-c", guard, *command], **about) as process:
                loaded = next_line(process, LOADING_S)
                while loaded and programs and (line := next_line(process, PROGRAM_S)):
                    yield programs[0][0], line
                    programs = programs[1:]
                hangs = process.poll() is None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if programs:
                how = f"no score came in {PROGRAM_S:g} s" if hangs else "the process that calls the reward ended"
                yield programs[0][0], {"ended": how}
                programs = programs[1:]


def next_line(process, seconds: float) -> dict:
    """The next JSON line of a process; {} where it ends, or says nothing for so long."""
    end, text = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            if not selector.select(0.1):
                continue
            byte = os.read(process.stdout.fileno(), 1)
            if not byte:
                time.sleep(0.2)  # until its end can be seen
                return {}
            text += byte
            if byte == b"\n":
                with contextlib.suppress(ValueError):
                    line = json.loads(text)
                    if isinstance(line, dict) and "number" in line:
                        return line
                text = b""
    return {}


def prove_against_attacks(proof: Proof, spec: str, rows: list[dict], names: set[str], seconds: float) -> None:
    """Try a reward on right and hostile programs, if its rows have tests that it takes."""
    row = next(filter(None, (attacked_row(row, names) for row in rows)), None)
    if row is None:
        return
    programs, found = attack_programs(), {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # what keeps a program of another user out shall be the sandbox alone
        numbered = [(i, code) for i, (_, _, code) in enumerate(programs)]
        for number, outcome in Trial(spec, row, folder).outcomes(numbered, seconds):
            found[programs[number][1]] = outcome
            if programs[number][0] == "right" and "ended" in outcome:
                break
    judge_attacks(proof, programs, found)


def judge_attacks(proof: Proof, programs: list[tuple], found: dict) -> None:
    """Say what got through."""
    scores = {name: outcome.get("score") or 0.0 for name, outcome in found.items()}
    right = [scores.get(name, 0.0) for kind, name, _ in programs if kind == "right"]
    if min(right) <= scores.get("wrong", 0.0):
        proof.skip("How it stands attacks", "a right and a wrong program with the test f(2) == 4 get the same score")
        return
    through = {}
    for kind, name, _ in programs:
        outcome = found.get(name)
        if kind == "right" or outcome is None:
            continue
        problems = [*outcome.get("harm", ()), *filter(None, (outcome.get("ended"), outcome.get("raised")))]
        if name not in HARMFUL and scores[name] > scores["wrong"]:
            problems.append(f"it is paid {scores[name]:g}")
        if problems:
            through[name] = "; ".join(problems)
    tried = [name for kind, name, _ in programs if kind == "hostile" and name in found]
    proof.figures["attacks"] = {"tried": tried, "got_through": through}
    for name, problem in through.items():
        proof.find(f"attack {name}: {problem}")
    left = sum(kind == "hostile" for kind, *_ in programs) - len(tried)
    proof.say(
        f"{len(tried) - len(through)} of {len(tried)} hostile programs were contained on this machine (uid "
        f"{os.getuid()}), each called through this very reward, beside {len(right)} right ones that are paid; got "
        f"through: {', '.join(through) or 'none'}{f'; {left} were not tried in the time' if left else ''}."
    )
