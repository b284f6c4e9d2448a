"""What diagnose.py says of a run that is under way, and at its end."""

import json
import subprocess
import sys
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import need, say

DIAGNOSE = BUNDLE / "scripts" / "diagnose.py"
LIMIT_S = 60


def check_stop_when(stop_when: str) -> None:
    """Raise UserError for --stop_when broken without the script that judges."""
    got = f"got --stop_when broken without {DIAGNOSE}; expected it there"
    need(stop_when != "broken" or DIAGNOSE.is_file(), f"{got}; try --stop_when never")


def is_broken(folder: Path, step: int, last: str) -> tuple[bool, str]:
    """Whether a run is broken, and the line about its cause; it is said once, where it is certain and not `last`."""
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
        return False, last
    line = f"{cause['cause']}: {cause['says']} ({cause['evidence'][0]['text']}); try {cause['change']}"
    if line.partition(" (")[0] != last.partition(" (")[0]:
        say(f"step {step}: {judged['verdict']}, {line}")
    return judged["verdict"] == "broken", line
