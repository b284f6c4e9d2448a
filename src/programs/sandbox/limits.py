"""Limits on what crosses from a program, and the layers around it."""

import sys

LINUX = sys.platform == "linux"
MAX_NUMBER = 1 << 16  # bits of a number in a Fraction, range or date, whose constructors take quadratic time
MAX_KEY = 1 << 20  # bits of an integer that is a key or in a set
MAX_COLLISIONS = 1 << 22  # comparisons of words that keys with one hash may cost
UNUSABLE = "unusable tests: "  # before the detail of a verdict of run_many
MAX_FRAME = 256 << 20  # bytes of code and test data on their way to a process
MAX_REPORT = 1 << 20  # bytes of one message of the judge
MAX_ANSWER = 64 << 20  # bytes of one answer of a service
MAX_DEPTH = 100  # nesting of a value
SMALL_RESULT = 64 << 10  # bytes of a result that the caller reads itself, in milliseconds whatever they say
JUDGE_MB, JUDGE_S = 512, 1.0  # MiB that a judge may add and seconds it may take for a large result, at least
ENTRY_BYTES = 16 << 10  # what a file or folder in the scratch folder counts at least: 4,096 of them fill it
SCRATCH, SCRATCH_BYTES = "/.scratch", 64 << 20  # no /tmp: Python's own files may lie beneath that
FIRST_UID, UIDS = 62_000, 2_000  # users that own no files; neighbouring jobs never share one
NAMESPACES = {"mount": 0x20000, "ipc": 0x08000000, "network": 0x40000000, "pid": 0x20000000}
LAYERS = ("user", *NAMESPACES, "landlock", "seccomp")
PRELOAD = (
    "bisect cmath collections copy dataclasses datetime decimal enum fractions functools heapq io itertools json math "
    "numbers operator random re statistics string threading time traceback typing"
).split()  # what programs often import; every further MB costs each fork some 60 us
