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


class Verdicts:
    """diagnose.py's verdicts on a run. A certain cause is said once: where it is found twice running, or ends the run.

    A young run may look by chance as if it had one.
    """

    def __init__(self, folder: Path):
        self.folder, self.cause, self.said = folder, "", ""  # the last cause found, and the last one said

    def is_broken(self, step: int) -> bool:
        """Whether the run is broken after this step; False where diagnose.py cannot tell."""
        command = [sys.executable, str(DIAGNOSE), str(self.folder), "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            judged = json.loads(done.stdout)["runs"][0]
        except (subprocess.TimeoutExpired, OSError, ValueError, LookupError):
            return False
        cause = next((cause for cause in judged.get("causes", ()) if cause["certainty"] == "certain"), {"cause": ""})
        name, again = cause["cause"], cause["cause"] == self.cause
        broken, self.cause = bool(name) and judged["verdict"] == "broken", name
        if name and name != self.said and (again or broken):
            evidence = cause["evidence"][0]["text"]
            say(f"step {step}: {judged['verdict']}, {name}: {cause['says']} ({evidence}). To change: {cause['change']}")
            self.said = name
        return broken
