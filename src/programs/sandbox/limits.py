"""Exceptions and limits of the sandbox."""

import math
import sys

LINUX = sys.platform == "linux"
UNUSABLE = "unusable tests: "  # before the detail of a verdict of run_many
MAX_FRAME = 256 << 20  # bytes of code and test data on their way to a process
MAX_REPORT = 4 << 20  # bytes of what a judge says of all tests
SMALL_RESULT = 64 << 10  # bytes of a result that the caller reads itself, in a fraction of a second whatever they say
START_S = 60  # seconds a process may take to start
MAX_DEPTH = 100  # nesting of a value
JUDGE_MB = 512  # MiB that a judge may add, at least
ENTRY_BYTES = 16 << 10  # what a file or folder in the scratch folder counts at least: 4,096 of them fill it
SCRATCH, SCRATCH_BYTES = "/.scratch", 64 << 20  # no /tmp: Python's own files may lie beneath that
FIRST_UID, UIDS = 62_000, 2_000  # users that own no files; neighbouring jobs never share one
NAMESPACES = {"mount": 0x20000, "ipc": 0x08000000, "network": 0x40000000, "pid": 0x20000000}
LAYERS = ("user", *NAMESPACES, "landlock", "seccomp")
PRELOAD = (
    "bisect cmath collections copy dataclasses datetime decimal enum fractions functools heapq io itertools json math "
    "numbers operator random re statistics string threading time traceback typing"
).split()  # what programs often import; every further MB costs each fork some 60 us


class SandboxError(RuntimeError):
    """The sandbox cannot run here, or not as strictly as asked."""


class BadTests(ValueError):
    """The tests given to run_code cannot be used: the caller's error, never the program's."""


def check_limits(**limits: float | None) -> None:
    """Raise ValueError for a limit that is given and not a finite number above 0."""
    for name, value in limits.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"got {name} {value}; expected a finite number above 0; try leaving it out")


class ServerGone(SandboxError):
    """The fork server was killed from outside: no word on the program."""


class Died(Exception):
    """The other process ended or broke the protocol."""
