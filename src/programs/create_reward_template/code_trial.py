"""The programs that the shortest code reward is tried on."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError
from parts.rewards.attacks import attack_programs

TRIAL = file_text("files/trial.py")
TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
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
    "programs that need processes, network or files, more than {timeout_s:g} s a {per} or {memory_mb} MiB; tests that "
    "compare two objects of the program, pass it a function that reads other names, or capture what it prints"
)


def tried_on_programs(args) -> dict:
    """What the written reward pays for right and for hostile programs, and what holds of it.

    Raises:
        UserError: it raised, as it does where nothing isolates programs.
    """
    kinds, names, codes = map(list, zip(*attack_programs(), strict=True))
    given = json.dumps([str(args.output.resolve()), args.name, args.gold_column or "tests", codes])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # what keeps a program of another user out shall be the sandbox alone
        about = {"env": os.environ | {"TRIAL_SECRET": "told"}, "cwd": folder, "timeout": TRIAL_S}
        try:
            done = subprocess.run([sys.executable, "-c", TRIAL, given], capture_output=True, text=True, **about)
        except subprocess.TimeoutExpired:
            return {"ready": False, "ended": f"the reward did not come back in {TRIAL_S} s"}
    if done.returncode <= 0 and not done.stdout.strip():
        return {"ready": False, "ended": "a program ended the process that called the reward"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"got {last} from {args.output}; nothing is written; try sandbox.py --report")
    told = json.loads(done.stdout.splitlines()[-1])
    tried = list(zip(kinds, names, told["scores"], strict=True))
    hostile = [name for kind, name, _ in tried if kind == "hostile"]
    missed = [name for kind, name, score in tried if kind == "right" and score != 1.0]
    paid = [name for kind, name, score in tried if kind == "hostile" and score]
    report = {"ready": not paid and not missed, "right_programs": kinds.count("right"), "not_paid_of_them": missed}
    report |= {"hostile_programs": hostile, "paid_of_them": paid, "isolated": told["isolated"]}
    return report | {"holds_against": HOLDS, "not_against": NOT_AGAINST, "right_but_0": RIGHT_AT_0.format(**vars(args))}
