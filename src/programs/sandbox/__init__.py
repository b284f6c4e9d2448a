#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Run untrusted programs against tests: the code a model wrote never decides its own verdict.

    caller ── requests ── fork server ── fork ──> program   (model code; gets arguments and stdin, nothing else)
        └───── job ──────────────────── fork ──> judge     (test code; calls the program, compares by itself)

| process | role | receives | answers |
|---|---|---|---|
| caller | the trainer: `run_code`, `run_many` | | |
| fork server | warm, clean, single-threaded | spawn, kill, exit | on a pipe, how each process ended |
| program | model code under all layers | a module to load, then operations; or a script | values or exceptions |
| judge | the tests under the same layers | one job: program, tests, limits | the outcome of each test |

A program costs a fork instead of an interpreter start. Its results are plain data: JSON with tags, no pickle. Its
objects stay in its process; the tests hold proxies that ask it about them. Containers, and objects of classes that the
tests define too, are shared: after a call, each side has the other's changes. Expected values are never in the
program's process. Calls whose results are below 64 KiB need no judge: the caller compares them with the same code.

Layers, each used if the kernel offers it; `sandbox_report()` tries them on a process and names them:
another user (as root) · network, pid, mount and ipc namespaces with a read-only root of Python's own files · Landlock ·
seccomp (x86-64: a list of what is allowed; no sockets, no new processes, no signals to others) · rlimits · an empty
environment · a private scratch folder · capped output · wall clock, the whole process tree killed.

What keeps a program in is 840 lines in five sections: `messages` (before `kernel`), `kernel`, `confinement`, `server`
and `process`. They know nothing of tests. What follows, from `values` on, judges programs and finds them in answers.

Deliberately left out: languages other than Python; programs that start processes (`subprocess`, `multiprocessing`) or
use the network (both are refused); tests in the program's own process, where it could forge the verdict; bubblewrap,
because namespaces do the same in a sixth of the time.

    python scripts/sandbox.py --report
    python scripts/sandbox.py --code program.py --tests tests.py --entry_point solve
"""

ROOMS = (
    "messages",
    "kernel",
    "confinement",
    "server",
    "process",
    "isolation",
    "values",
    "comparison",
    "tests_in_python",
    "remote_objects",
    "judge",
    "program",
    "forms_of_tests",
    "answers",
    "run_code",
    "command",
)
