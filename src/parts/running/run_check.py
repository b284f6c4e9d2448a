"""diagnose.py's verdict on a run, while it trains and at its end."""

import json
import subprocess
import sys
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import need, say

DIAGNOSE = BUNDLE / "scripts" / "diagnose.py"
LIMIT_S = 60
BROKEN = 999  # stands beside the numbers of signals: --stop_when broken ended the run


def check_stop_when(stop_when: str) -> None:
    """Raise UserError for --stop_when broken without the script that judges."""
    got = f"got --stop_when broken without {DIAGNOSE}; expected it there"
    need(stop_when != "broken" or DIAGNOSE.is_file(), f"{got}; try --stop_when never")


def say_stopped(signum: int, step: int) -> int:
    """Say what ended a run that is saved, a signal or --stop_when broken; returns the exit code, 128 + n or 1."""
    if signum == BROKEN:
        say(f"stopped after step {step}, because diagnose.py calls the run broken; continue with --resume")
        return 1
    say(f"stopped by signal {signum} after step {step}; continue with --resume")
    return 128 + signum


def is_broken(folder: Path, step: int, last: str) -> tuple[bool, str]:
    """(whether a run is broken, its certain cause, plus " said" once reported); `last` is the last call's cause."""
    if not DIAGNOSE.is_file():
        return False, last
    command = [sys.executable, str(DIAGNOSE), str(folder), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        judged = json.loads(done.stdout)["runs"][0]
    except (subprocess.TimeoutExpired, OSError, ValueError, LookupError):
        return False, last
    cause = next((cause for cause in judged.get("causes", ()) if cause["certainty"] == "certain"), None)
    if not cause:
        return False, last if last.endswith(" said") else ""
    name, broken = cause["cause"], judged["verdict"] == "broken"
    before, _, said = last.partition(" ")
    if name != before and not broken:
        return broken, name  # a young run may look so by chance: it is said where it is found again
    if name != before or not said:
        evidence = cause["evidence"][0]["text"]
        say(f"step {step}: {judged['verdict']}, {name}: {cause['says']} ({evidence}). To change: {cause['change']}")
    return broken, f"{name} said"
