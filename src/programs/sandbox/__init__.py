#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Run untrusted programs against tests: the code a model wrote never decides its own verdict.

    caller ── socket ── fork server ── fork ──> program   (model code; gets arguments and stdin, nothing else)
        └──── socket ───────────────── fork ──> judge     (test code; calls the program, compares by itself)

A program's results are plain data (JSON with tags; no pickle, no objects of the program). A judge compares them; it has
the same confinement and time limits as a program. Results below 64 KiB are compared by the caller itself, with the same
code. Expected values are never in the program's process. The fork server is warm, clean and single-threaded, so a
program costs a fork instead of an interpreter start.

Layers, each used if the kernel offers it; `sandbox_report()` tries them on a process and names them:
another user (as root) · network, pid, mount and ipc namespaces with a read-only root of Python's own files · Landlock ·
seccomp (x86-64: a list of what is allowed; no sockets, no new processes, no signals to others) · rlimits · an empty
environment · a private scratch folder · capped output · wall clock, the whole process tree killed.

Deliberately left out: languages other than Python; programs that start processes (`subprocess`, `multiprocessing`) or
use the network (both are refused); tests in the program's own process, where it could forge the verdict; bubblewrap,
because namespaces do the same in a sixth of the time.

    python scripts/sandbox.py --report
    python scripts/sandbox.py --code program.py --tests tests.py --entry_point solve
"""

ROOMS = (
    "limits",
    "values",
    "instances",
    "kernel",
    "tests_in_python",
    "judge",
    "child",
    "server",
    "process",
    "forms_of_tests",
    "answers",
    "run_code",
    "command",
)
