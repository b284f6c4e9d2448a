#!/usr/bin/env python3
# Built from src/programs/sandbox/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
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

# Contents
#       105-116  python source    Parses Python source in a process with threads
#       119-129  messages         Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#       132-158  stated answers   Find where a text states its final answer, by marks and phrases in 20 languages, …
#       161-184  extracts         Extract from a Python file what some of its names need
#       187-242  messages         What all processes share: names of the layers, exceptions, and the messages they …
#       245-437  kernel           The kernel's layers: a seccomp filter, Landlock rules, a root of its own
#       440-517  confinement      Put a forked process under all layers, before any foreign code runs in it
#       520-891  server           The fork server: forks a process for each job, under all layers, and reports how it …
#      894-1029  process          The caller's side of the fork server: start it, ask it for processes, learn how …
#     1032-1069  isolation        What the sandbox keeps programs from on this machine: the report, and the refusal …
#     1072-1332  values           Values sent between the processes: plain data as JSON with tags, and objects that …
#     1335-1418  comparison       Compare results with expected values, and shorten both for verdicts
#     1421-1694  tests in python  Read tests in Python: which names are the program's, and what counts as a test
#     1697-1837  remote objects   Functions, classes and objects of the program, as the tests hold them
#     1840-2201  judge            The judge: calls the program, which runs in a separate process, and compares its …
#     2204-2342  program          The program's process: runs model code as a script, or as a module whose functions …
#     2345-2542  forms of tests   Read the tests of a program and sort them into one of three forms
#     2545-2802  answers          Find the program in a model's answer
#     2805-3177  run code         Run programs against their tests, and give verdicts: what callers use
#     3180-3231  command          The command line

import argparse
import ast
import atexit
import builtins
import collections
import contextlib
import ctypes
import datetime
import decimal
import enum
import errno
import fcntl
import fractions
import gc
import importlib
import importlib.util
import inspect
import itertools
import json
import marshal
import math
import operator
import os
import re
import reprlib
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import symtable
import sys
import tempfile
import textwrap
import threading
import time
import types
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

# --------------------------------------------------------------- python source (src/parts/foundation/python_source.py)


def parse_python(source: str, name: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """`ast.parse`, repeated on SystemError: CPython 3.11 counts the depth of all threads together, so that another
    thread can make it fail on valid source. A lock would hang in a process that is forked while it is held."""
    for _ in range(100):
        try:
            return ast.parse(source, name, mode)
        except SystemError:
            continue
    return ast.parse(source, name, mode)


# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


def tell(*words, end: str = "\n") -> None:
    """Print a result on stdout; escape characters that its encoding lacks, print nothing once its reader closed it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    words = [str(word).encode(encoding, "backslashreplace").decode(encoding) for word in words]
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ------------------------------------------------------------------- stated answers (src/parts/data/stated_answers.py)

_END_TOKEN = re.compile(
    r"(?:<[|｜](?!user|assistant|system)[\w▁]{1,40}[|｜]>|</s>|<(?:eos|pad|end_of_turn)>|\[(?:EOS|PAD)\])\Z"
)


def visible(text: str) -> str:
    """The text after `</think>`; "" if thinking has not ended."""
    text = text.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def without_end_tokens(text: str) -> str:
    """The text without the special tokens at its end; a text with <s> may be HTML that is struck out.

    >>> without_end_tokens("#### 42<|im_end|>\\n<|endoftext|>"), without_end_tokens("<s>42</s>")
    ('#### 42', '<s>42</s>')
    """
    if re.search("<s[ >]", text):
        return text
    kept, end = len(text), len(text.rstrip())
    while token := _END_TOKEN.search(text, max(0, end - 50), end):
        kept = end = token.start()
        while end and text[end - 1].isspace():
            end -= 1
    return text[:kept]


# ---------------------------------------------------------------------------- extracts (src/parts/rewards/extracts.py)

IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound_names(statement: ast.AST) -> set[str]:
    """The names that a top-level statement binds in its module; of a module, those that it binds anywhere."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def read_names(*nodes: ast.AST) -> set[str]:
    """All names that occur in pieces of source."""
    return {leaf.id for node in nodes for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}


# ------------------------------------------------------------------------- messages (src/programs/sandbox/messages.py)

LINUX = sys.platform == "linux"
MAX_FRAME = 256 << 20  # bytes of code and test data on their way to a process
SCRATCH = "/.scratch"  # no /tmp: Python's own files may lie beneath that
NAMESPACES = {"mount": 0x20000, "ipc": 0x08000000, "network": 0x40000000, "pid": 0x20000000}
LAYERS = ("user", *NAMESPACES, "landlock", "seccomp")
INVALID = "the process sent no valid message"


class SandboxError(RuntimeError):
    """The sandbox cannot run here, or not as strictly as asked."""


class ServerGone(SandboxError):
    """The fork server was killed from outside: no word on the program."""


class Died(Exception):
    """The other process ended or broke the protocol."""


def send_frame(channel: socket.socket, message: dict, fds=()) -> None:
    """Send a JSON message after its length, and open files with the first byte."""
    data = json.dumps(message).encode()
    data = struct.pack("!I", len(data)) + data
    sent = socket.send_fds(channel, [data], fds) if fds else 0
    channel.sendall(data[sent:])


def receive_exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    """Receive size bytes; raise Died at the end of the stream and TimeoutError at the deadline."""
    parts = []
    while size:
        if deadline is not None:
            channel.settimeout(max(deadline - time.monotonic(), 1e-4))
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise Died("the process ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive_frame(channel: socket.socket, deadline: float | None = None, limit: int = MAX_FRAME) -> dict:
    """Receive one message; raise Died unless it is a JSON object of at most `limit` bytes."""
    (size,) = struct.unpack("!I", receive_exactly(channel, 4, deadline))
    if size > limit:
        raise Died("output limit: a result is too large")
    try:
        message = json.loads(receive_exactly(channel, size, deadline))
    except (ValueError, RecursionError):
        raise Died(INVALID) from None
    if not isinstance(message, dict):
        raise Died(INVALID)
    return message


# ----------------------------------------------------------------------------- kernel (src/programs/sandbox/kernel.py)

LIBC = ctypes.CDLL(None, use_errno=True)


def libc_call(function: str, *arguments) -> int:
    """Call a function of libc; raise OSError where it returns -1."""
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = getattr(LIBC, function)(*arguments)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), function)
    return result


def kernel_call(number: int, *arguments) -> int:
    return libc_call("syscall", number, *arguments)


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38


def prctl(option: int, value: int, extra=0) -> None:
    """Set an attribute of this process."""
    libc_call("prctl", option, value, extra, 0, 0)


def give_up_privileges() -> None:
    """Keep no capability, gain none by exec, stay closed to other processes, and die with the parent."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    libc_call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


# Numbers of linux/arch/x86/entry/syscalls/syscall_64.tbl with their names. What is not here answers EPERM.
ALLOWED_CALLS = (
    *range(0, 8),  # read write open close stat fstat lstat poll
    *range(8, 16),  # lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
    *range(17, 27),  # pread64 pwrite64 readv writev access pipe select sched_yield mremap msync
    28,  # madvise
    *range(32, 41),  # dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile
    *(45, 48, 53, 60, 61, 63),  # recvfrom shutdown socketpair exit wait4 uname
    *range(73, 86),  # flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat
    *(87, 89),  # unlink readlink
    *range(95, 101),  # umask gettimeofday getrlimit getrusage sysinfo times
    *(102, 104, 107, 108, 110, 111, 127),  # getuid getgid geteuid getegid getppid getpgrp rt_sigpending
    *(128, 130, 131, 137, 138, 158),  # rt_sigtimedwait rt_sigsuspend sigaltstack statfs fstatfs arch_prctl
    *(186, 201, 202, 204, 213, 217),  # gettid time futex sched_getaffinity epoll_create getdents64
    *(218, 219, 221),  # set_tid_address restart_syscall fadvise64
    *range(228, 234),  # clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl
    *(257, 258, 262, 263, 264, 267, 269),  # openat mkdirat newfstatat unlinkat renameat readlinkat faccessat
    *(270, 271, 273, 274, 281),  # pselect6 ppoll set_robust_list get_robust_list epoll_pwait
    *range(283, 288),  # timerfd_create eventfd fallocate timerfd_settime timerfd_gettime
    *(290, 291, 292, 293, 295, 296, 309, 318),  # eventfd2 epoll_create1 dup3 pipe2 preadv pwritev getcpu getrandom
    *(324, 326, 332, 334, 436, 439, 441),  # membarrier copy_file_range statx rseq close_range faccessat2 epoll_pwait2
)
# calls allowed for some values of one argument: number -> (argument, values); None stands for the process's own id
LIMITED_CALLS = {
    16: (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # ioctl: is it a terminal, its size, FIONREAD, FIONBIO …
    62: (0, (None,)),  # kill
    72: (1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),  # fcntl, without F_SETOWN and F_SETSIG, which signal others
    157: (0, (15, 16)),  # prctl: name of the thread
    234: (0, (None,)),  # tgkill
    302: (0, (0,)),  # prlimit64
}
SENDTO, CLONE, CLONE3, CLONE_THREAD = 44, 56, 435, 0x10000
# chmod and utime in all forms: nothing happens, and the program is told it did, since shutil.copy needs that
PRETENDED_CALLS = (90, 91, 132, 235, 261, 268, 280, 452)


def seccomp_program(own_id: int) -> bytes:
    """The filter as classic BPF, for the process with this id.

    Each instruction is (code, jump if true, jump if false, value); the data are nr at 0, arch at 4 and the low half of
    argument i at 16 + 8 i.
    """
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
    code = [(load, 0, 0, 4), (equal, 1, 0, 0xC000003E), (answer, 0, 0, kill), (load, 0, 0, 0)]
    code += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, kill)]  # x32 calls
    code += [(equal, 0, 1, CLONE3), (answer, 0, 0, 0x00050000 | errno.ENOSYS)]  # libc then falls back to clone
    for number in PRETENDED_CALLS:
        code += [(equal, 0, 1, number), (answer, 0, 0, 0x00050000)]
    for number in range(188, 200):  # extended attributes: none here, as shutil.copy2 understands it
        code += [(equal, 0, 1, number), (answer, 0, 0, 0x00050000 | errno.ENOTSUP)]
    for number in ALLOWED_CALLS:
        code += [(equal, 0, 1, number), (answer, 0, 0, allow)]
    for number, (argument, values) in LIMITED_CALLS.items():
        code += [(equal, 0, 2 * len(values) + 2, number), (load, 0, 0, 16 + 8 * argument)]
        for value in values:
            code += [(equal, 0, 1, own_id if value is None else value), (answer, 0, 0, allow)]
        code += [(answer, 0, 0, refuse)]
    # no address: only to the other end of a socketpair
    code += [(equal, 0, 6, SENDTO), (load, 0, 0, 48), (equal, 0, 3, 0), (load, 0, 0, 52), (equal, 0, 1, 0)]
    code += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    # threads only: CLONE_THREAD without any new namespace
    code += [(equal, 0, 4, CLONE), (load, 0, 0, 16), (any_bit, 2, 0, 0x7E020000), (any_bit, 0, 1, CLONE_THREAD)]
    code += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


SOME_ID = 0x7EADBEE5  # stands in a filter made in advance for the id of the process that will enter it


def enter_seccomp(template: bytes) -> None:
    """Restrict this process to the calls above for good."""
    program = template.replace(struct.pack("I", SOME_ID), struct.pack("I", os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header, len(header)))


LANDLOCK_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # rights that a rule on a single file may hold
LANDLOCK_READ = 1 << 2 | 1 << 3
# in the scratch folder: write, read, list, remove and make files and folders, rename, truncate; no links or devices
LANDLOCK_SCRATCH = 1 << 1 | LANDLOCK_READ | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14


def landlock_abi() -> int:
    """Version of Landlock in this kernel, 0 where there is none."""
    try:
        return kernel_call(444, None, 0, 1)
    except OSError:
        return 0


def landlock_rules(abi: int, readable: list[int], scratch: str) -> int:
    """Make a ruleset: read beneath the folders open as `readable`, write beneath scratch, no TCP, no signals to others.

    Several processes may use it: their folders beneath scratch are each for one user only.
    """
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    rules = struct.pack("QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    rules = rules[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = kernel_call(444, ctypes.create_string_buffer(rules, len(rules)), len(rules), 0)
    places = [(fd, LANDLOCK_READ) for fd in readable]
    for fd, rights in [*places, (os.open(scratch, os.O_PATH), LANDLOCK_SCRATCH)]:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights = (rights | 1 << 1) & LANDLOCK_FILE  # /dev/null is also written to
        rule = struct.pack("=Qi", rights & handled, fd)
        kernel_call(445, ruleset, 1, ctypes.create_string_buffer(rule, len(rule)), 0)
    return ruleset


def readable_paths(packages: list[str]) -> list[str]:
    """Files that Python needs while it runs; a program may read these and nothing else."""
    python = [sys.base_prefix + "/lib", sys.base_exec_prefix + "/lib", *packages]
    python += [path for path in sys.path if path.startswith("/")]
    system = ["/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"]
    system += ["/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
    return [path for path in dict.fromkeys(os.path.normpath(p) for p in [*python, *system]) if os.path.exists(path)]


def bind(source: str, target: str) -> None:
    """Show a file or folder at another place, with what is mounted inside it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    libc_call("mount", os.fsencode(source), os.fsencode(target), None, 0x5000, None)


def new_root(paths: list[str]) -> None:
    """Replace this namespace's root by one that holds the given paths, read-only, and an empty scratch folder."""
    root = next(path for path in ("/sys", "/mnt", "/proc") if os.path.isdir(path))
    libc_call("mount", None, b"/", None, 0x44000, None)  # private: nothing of this shows outside
    libc_call("mount", b"tmpfs", root.encode(), b"tmpfs", 6, b"size=1m,mode=755")
    there = []

    def covered(path):
        return any(path == other or path.startswith(other + "/") for other in there)

    for path in sorted(paths, key=len):
        real = os.path.realpath(path)
        if not covered(real):
            bind(real, root + real)
            there.append(real)
        if not covered(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(real, root + path)
            there.append(path)
    for folder in (SCRATCH, "/.old"):
        os.makedirs(root + folder)
    libc_call("mount", b"tmpfs", (root + SCRATCH).encode(), b"tmpfs", 6, b"size=1m,mode=711")
    libc_call("pivot_root", root.encode(), root.encode() + b"/.old")
    os.chdir("/")
    libc_call("umount2", b"/.old", 2)
    os.rmdir("/.old")
    read_only, writable = (struct.pack("QQQQ", *flags, 0, 0) for flags in ((1 | 2, 0), (0, 1)))  # RDONLY, NOSUID
    kernel_call(442, -100, b"/", 0x8000, ctypes.create_string_buffer(read_only, 32), 32)  # 0x8000: and all beneath
    kernel_call(442, -100, SCRATCH.encode(), 0, ctypes.create_string_buffer(writable, 32), 32)


# ------------------------------------------------------------------- confinement (src/programs/sandbox/confinement.py)


def confine(server, message: dict, uid: int | None, scratch: str, files: int) -> None:
    """Put every layer around this process, in the order in which each still allows the next; keep the first files."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(scratch)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o077)
    if LINUX:
        give_up_privileges()
    memory = server.address_space() + int(message["memory_mb"] * 2**20)
    set_limits(memory, message["cpu_s"], message["file_bytes"], uid is not None)
    if server.on("landlock"):
        rules = server.rules if uid is not None else landlock_rules(server.abi, server.places, scratch)
        kernel_call(446, rules, 0)
    os.closerange(files, 1 << 20)
    if server.on("seccomp"):
        enter_seccomp(server.filter)


def set_limits(memory: int, cpu_s: int, file_bytes: int, own_user: bool) -> None:
    """Limit this process's address space in bytes, its processor time, and the size of each file it writes."""
    limits = [(resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_FSIZE, file_bytes)]
    limits += [(resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0)]
    if own_user:  # else it counts what the caller runs, too
        limits.append((resource.RLIMIT_NPROC, 64))
    for limit, value in limits:
        with contextlib.suppress(ValueError, OSError):  # not on this system, or already lower
            resource.setrlimit(limit, (value, value))


def run_child(server, message: dict, fds: list[int], uid: int | None, scratch: str) -> None:
    """Main function of a forked process: arrange its files, confine it, run its role.

    It keeps stdin, stdout and stderr as 0, 1, 2 and its sockets from 3 on.
    """
    signal.set_wakeup_fd(-1)
    null = os.open("/dev/null", os.O_RDWR)
    channel, *streams, _, extra = [*fds, -1][:6]
    kept = [fd if fd >= 0 else null for fd in streams] + [fd for fd in (channel, extra) if fd >= 0]
    for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 512) for fd in kept]):  # above what is overwritten
        os.dup2(fd, place)
    channels = [socket.socket(fileno=place) for place in range(3, len(kept))]
    run = {**server.roles, "trial": try_out}[message["role"]]
    confine(server, message, uid, scratch, len(kept))
    del server
    run(*channels)


def try_out(channel: socket.socket) -> None:
    """Report what this confined process can still do."""

    def can(action) -> bool:
        try:
            action()
            return True
        except (OSError, ImportError):
            return False

    def start_process():
        if os.fork() == 0:
            os._exit(0)

    udp = (socket.AF_INET, socket.SOCK_DGRAM)
    if not can(lambda: importlib.import_module("colorsys")):  # not loaded before
        send_frame(channel, {"error": "Python's own files could not be read"})
    elif not can(lambda: open("trial", "w").write("x")):
        send_frame(channel, {"error": "the scratch folder could not be written to"})
    else:
        network = can(lambda: socket.socket(*udp).sendto(b"", ("127.0.0.1", 9)))
        files, processes = can(lambda: open("/etc/passwd")), can(start_process)
        send_frame(channel, {"network": network, "files": files, "processes": processes})


# ----------------------------------------------------------------------------- server (src/programs/sandbox/server.py)

ENTRY_BYTES = 16 << 10  # what a file or folder in the scratch folder counts at least: 4,096 of them fill it
SCRATCH_BYTES = 64 << 20
FIRST_UID, UIDS = 62_000, 2_000  # users that own no files; neighbouring jobs never share one
PRELOAD = (
    "bisect cmath collections copy dataclasses datetime decimal enum fractions functools heapq io itertools json math "
    "numbers operator random re statistics string threading time traceback typing"
).split()  # what programs often import; every further MB costs each fork some 60 us


@dataclass
class Job:
    """A running process: its number, where its end is reported, its folder, its user, why the server ended it."""

    number: int
    status: int
    scratch: str
    uid: int | None
    problem: str = ""


class Server:
    """The warm process that forks programs and judges; it never sees code, tests or expected values."""

    def __init__(self, control: socket.socket, config: dict, roles: dict):
        self.control, self.config, self.roles, self.jobs, self.free, self.count = control, config, roles, {}, [], 0
        self.folder, self.statm, self.removers = None, -1, set()
        self.layers = dict.fromkeys(config["disable"], "off: disabled by the caller")
        self.readable = readable_paths(config["packages"])

    def on(self, layer: str) -> bool:
        """Whether a layer is in force."""
        return self.layers[layer] == "on"

    def attempt(self, layer: str, action) -> None:
        """Put a layer in force, or note why it is not."""
        try:
            action()
            self.layers[layer] = "on"
        except (OSError, AttributeError, StopIteration) as error:
            self.layers[layer] = f"off: {error}"

    def start(self) -> None:
        """Enter the namespaces, try the other layers on a process, and report."""
        self.namespaces()
        if self.on("mount"):
            self.base = SCRATCH
        else:
            self.base = self.folder = tempfile.mkdtemp(prefix="sandbox-", dir=self.config["folder"])
            os.chmod(self.base, 0o711)
        self.abi = landlock_abi() if LINUX else 0
        machine = os.uname().machine
        known = LINUX and machine == "x86_64" and sys.maxsize > 2**32
        self.layers.setdefault("landlock", "on" if self.abi else "off: this kernel has none")
        self.layers.setdefault("seccomp", "on" if known else f"off: not written for {sys.platform} {machine}")
        self.layers.setdefault("user", "on" if os.getuid() == 0 else "off: only root can change its user")
        paths = [path for path in self.readable if LINUX and os.path.exists(path)]
        self.places = [fcntl.fcntl(os.open(path, os.O_PATH), fcntl.F_DUPFD, 200) for path in paths]  # out of dup2's way
        self.rules = landlock_rules(self.abi, self.places, self.base) if self.on("landlock") else -1
        self.filter = seccomp_program(SOME_ID)
        for layer in ("user", "landlock", "seccomp"):  # a layer that does not hold on a trial is left out
            if self.on(layer) and "error" in (trial := self.trial()):
                self.layers[layer] = f"off: {trial['error']}"
        send_frame(self.control, {"layers": self.layers, "abi": self.abi, "proof": self.trial()})

    def namespaces(self) -> None:
        """Enter new namespaces, as root or through a user namespace; go on as the first process of the new pid one."""
        if LINUX:
            prctl(PR_SET_SUBREAPER, 1)
        wanted = [name for name in NAMESPACES if name not in self.layers]
        uid, gid = os.getuid(), os.getgid()
        if LINUX and wanted and uid:
            with contextlib.suppress(OSError):
                libc_call("unshare", 0x10000000)
                for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                    with open(f"/proc/self/{name}", "w") as file:
                        file.write(text)
        for name in wanted:
            self.attempt(name, lambda name=name: libc_call("unshare", NAMESPACES[name]))
        if self.on("pid"):
            self.become_first()
        with contextlib.suppress(OSError):  # the new root has no /proc
            self.statm = fcntl.fcntl(os.open("/proc/self/statm", os.O_RDONLY), fcntl.F_DUPFD, 200)  # out of dup2's way
        if self.on("mount"):
            self.attempt("mount", lambda: new_root(self.readable))

    def become_first(self) -> None:
        """Fork into the new pid namespace; the parent only waits, and dies with its caller."""
        child = os.fork()
        if child:
            self.control.close()
            os.waitpid(child, 0)
            os._exit(0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def address_space(self) -> int:
        """Bytes of this process's address space, which a fork begins with."""
        try:
            return int(os.pread(self.statm, 100, 0).split()[0]) * resource.getpagesize()
        except (OSError, IndexError):
            return 96 << 20

    def trial(self) -> dict:
        """What a confined process can still do: connect, read a foreign file, start a process, import a module."""
        ours, theirs = socket.socketpair()
        status, end = os.pipe()
        limits = {"memory_mb": 256, "cpu_s": 5, "file_bytes": 4096}
        self.spawn({"id": -1, "role": "trial", **limits}, [theirs.detach(), -1, -1, -1, end])
        try:
            return receive_frame(ours, time.monotonic() + 10)
        except (Died, OSError) as error:
            return {"error": str(error)}
        finally:
            ours.close()
            self.reap(block=True)
            os.close(status)

    def loop(self) -> None:
        """Serve until the caller is gone: spawn and kill what is asked for, report what has ended."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        pause = None
        while True:
            ready, _, _ = select.select([self.control, woken], [], [], pause)
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self.reap()
            if self.control in ready:
                message, fds = self.receive()
                if message is None:
                    return
                if message["op"] == "spawn" and len(fds) >= 5:  # fewer: too many open files; the caller sees its end
                    self.spawn(message, fds)
                elif message["op"] == "kill":
                    self.kill(message["id"])
                elif message["op"] == "exit":
                    return
            pause = self.weigh_folders()

    def end(self) -> None:
        """Kill what still runs and leave no folder behind."""
        for job in list(self.jobs.values()):
            self.kill(job.number)
        self.reap(block=True)
        for pid in self.removers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self.folder:
            with contextlib.suppress(OSError):
                remove_tree(self.folder)

    def receive(self):
        """One request and the open files that came with it; (None, []) when the caller is gone."""
        head, fds, _, _ = socket.recv_fds(self.control, 4, 16)
        try:
            head += receive_exactly(self.control, 4 - len(head), None) if head else b""
            return json.loads(receive_exactly(self.control, struct.unpack("!I", head)[0], None)), fds
        except (Died, struct.error):
            return None, []

    def spawn(self, message: dict, fds: list[int]) -> None:
        """Fork a process; fds: its socket, stdin, stdout, stderr, the pipe its end is reported on, perhaps a socket."""
        self.count += 1
        uid = FIRST_UID + self.count % UIDS if self.layers.get("user") == "on" else None
        try:
            scratch = self.make_scratch(uid)
            pid = os.fork()
        except OSError as error:  # no process or no space: the caller sees the pipe end
            os.write(fds[4], json.dumps({"error": str(error)}).encode())
            pid = None
        if pid == 0:
            try:
                run_child(self, message, fds, uid, scratch)
            finally:
                os._exit(70)
        if pid:
            self.jobs[pid] = Job(message["id"], os.dup(fds[4]), scratch, uid)
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def make_scratch(self, uid: int | None) -> str:
        """Give out a private folder: a small file system of its own where mounting is possible, used again if empty."""
        if self.free:
            path = self.free.pop()
        else:
            path = f"{self.base}/{self.count}"
            os.mkdir(path, 0o700)
            if self.on("mount"):
                options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_BYTES // ENTRY_BYTES},mode=700"
                libc_call("mount", b"tmpfs", path.encode(), b"tmpfs", 6, options.encode())
        if os.getuid() == 0:
            os.chown(path, uid or 0, uid or 0)
        return path

    def free_scratch(self, path: str) -> None:
        """Take a folder back; one that was written to is thrown away."""
        if not os.listdir(path):
            self.free.append(path)
            return
        if self.on("mount"):
            libc_call("umount2", path.encode(), 2)
            os.rmdir(path)
            return
        try:  # by a process of its own: what was left may take seconds, and programs wait for this one
            remover = os.fork()
        except OSError:
            remove_tree(path)
            return
        if remover:
            self.removers.add(remover)
            return
        try:
            signal.set_wakeup_fd(-1)
            os.closerange(0, 1 << 20)  # with the pipes on which others' ends are awaited
            os.nice(10)
            remove_tree(path)
        finally:
            os._exit(0)

    def weigh_folders(self) -> float | None:
        """End jobs whose folder holds too much; return the seconds to the next look, None where there is no need.

        A file system of its own has its size; without one the files that have a name are counted.
        """
        if self.on("mount") or not self.jobs:
            return None
        started = time.monotonic()
        for job in list(self.jobs.values()):
            if not job.problem and weight(job.scratch) > SCRATCH_BYTES:
                most = f"{SCRATCH_BYTES >> 20} MiB, or {SCRATCH_BYTES // ENTRY_BYTES} files and folders,"
                job.problem = f"output limit: more than {most} in its folder"
                self.kill(job.number)
        return max(0.03, 10 * (time.monotonic() - started))

    def kill(self, number: int) -> None:
        """Kill a job's process and its group."""
        for pid in [pid for pid, job in self.jobs.items() if job.number == number]:
            for function in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    function(pid, signal.SIGKILL)

    def reap(self, block: bool = False) -> None:
        """Collect what has ended, remove what it left, and report it."""
        while self.jobs or not block:
            try:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.removers.discard(pid)
            if pid not in self.jobs:
                continue
            job = self.jobs.pop(pid)
            if not self.on("seccomp"):
                self.sweep(pid, job)
            with contextlib.suppress(OSError):
                self.free_scratch(job.scratch)
            report = {"status": os.waitstatus_to_exitcode(status), "problem": job.problem}
            with contextlib.suppress(OSError):  # the caller may be gone
                os.write(job.status, json.dumps(report).encode())
            os.close(job.status)

    def sweep(self, pid: int, job: Job) -> None:
        """Kill what a job may have left running where it could start processes: its group, its user, its orphans."""
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        if job.uid is not None:
            killer = os.fork()
            if killer == 0:
                with contextlib.suppress(OSError):
                    os.setresuid(job.uid, job.uid, job.uid)
                    os.kill(-1, signal.SIGKILL)
                os._exit(0)
            os.waitpid(killer, 0)
        for _ in range(100):
            strangers = {*children_of(os.getpid())} - {*self.jobs} - self.removers
            if not strangers:
                return
            for child in strangers:
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)


def weight(folder: str) -> int:
    """Bytes on disk beneath a folder, ENTRY_BYTES for each entry at least; stops above SCRATCH_BYTES."""
    total, folders = 0, [folder]
    while folders and total <= SCRATCH_BYTES:
        try:
            total += weight_of_entries(folders.pop(), folders, SCRATCH_BYTES - total)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone since
        except OSError:  # too deep for a path, or closed to this user: nothing that may stay out of sight
            return SCRATCH_BYTES + 1
    return total


def weight_of_entries(folder: str, folders: list[str], room: int) -> int:
    """Bytes of a folder's own entries, up to the first above `room`; folders among them are added to the list."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            total += max(entry.stat(follow_symlinks=False).st_blocks * 512, ENTRY_BYTES)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            if total > room:
                break
    return total


def remove_tree(path: str) -> None:
    """Remove a folder of any depth and permissions: what is two levels down is moved up first."""
    moved = 0
    os.chmod(path, 0o700)
    while entries := list(os.scandir(path)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                    os.rename(inner.path, f"{path}/{moved}-moved")
                    moved += 1
                else:
                    os.unlink(inner.path)
            os.rmdir(entry.path)
    os.rmdir(path)


def children_of(pid: int) -> list[int]:
    """Children of a process, orphans it took over included; empty where /proc does not tell."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []


def serve(fd: int, roles: dict) -> None:
    """Run the fork server on an open socket: the main function of `--server`.

    Args:
        roles: what a forked process may run, by the name of its role; the function gets the process's sockets.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    control = socket.socket(fileno=fd)
    config = receive_frame(control)
    sys.path[:] = [path for path in sys.path if path.startswith(sys.base_prefix)] + config["packages"]
    for module in PRELOAD:
        importlib.import_module(module)
    os.environ.clear()
    os.environ.update(LANG="C.UTF-8", OPENBLAS_NUM_THREADS="1", HOME=".", TMPDIR=".")  # each starts in its scratch
    # the streams that programs will have; the files behind 0 and 1 are put in place for each
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.argv[:] = ["program.py"]
    builtins.exit = builtins.quit = sys.exit
    server = Server(control, config, roles)
    server.start()
    gc.collect()
    gc.freeze()
    try:
        server.loop()
    finally:
        server.end()


# --------------------------------------------------------------------------- process (src/programs/sandbox/process.py)


class Process:
    """A forked process from the caller's side: its socket, and the pipe on which its end is reported."""

    def __init__(self, sandbox, job: int, channel: socket.socket | None, status: int):
        self.sandbox, self.job, self.channel, self.status, self.report = sandbox, job, channel, status, None

    def wait(self, deadline: float) -> dict | None:
        """Wait until it has ended and return {"status", "problem"}; None at the deadline."""
        if self.report:
            return self.report
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            return None
        report = os.read(self.status, 4096)
        if not report:
            raise ServerGone("the fork server is gone")
        self.report = json.loads(report)
        return self.report

    def close(self) -> dict | None:
        """Kill it if it still runs, and wait until nothing of it is left."""
        if self.channel:
            self.channel.close()
        if self.status < 0:
            return None
        with contextlib.suppress(OSError):
            self.sandbox.send({"op": "kill", "id": self.job})
        try:
            return self.wait(time.monotonic() + 5)
        finally:
            os.close(self.status)
            self.status = -1


class Sandbox:
    """A fork server and what it takes to use it; threads may share one.

    Args:
        disable: names of layers (see LAYERS) to leave out, for tests and measurements.
    """

    def __init__(self, disable=()):
        unknown = set(disable) - set(LAYERS)
        if unknown:
            raise ValueError(f"got layers {sorted(unknown)}; expected some of {', '.join(LAYERS)}")
        self.disable, self.lock, self.count, self.server = list(disable), threading.Lock(), 0, None

    def start(self) -> None:
        """Start the server; it ends when this process does."""
        if __name__ == "__main__" and sys.argv[1:2] == ["--server"]:  # else each server would start the next
            raise SandboxError("got run_code called where this file starts; expected it below `if __name__ ==`")
        packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair()
        self.null = os.open(os.devnull, os.O_RDWR)
        command = [sys.executable, "-s", "-P", "-S", os.path.abspath(__file__), "--server", str(theirs.fileno())]
        environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}  # sets print alike in every run
        self.server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        send_frame(self.control, {"disable": self.disable, "packages": packages, "folder": tempfile.gettempdir()})
        try:
            self.report = receive_frame(self.control, time.monotonic() + 60)
        except (Died, TimeoutError, OSError) as error:
            self.stop()
            raise SandboxError(f"the fork server did not start: {error}") from error
        self.control.settimeout(None)
        atexit.register(self.stop)

    def stop(self) -> None:
        """End the server and everything it runs."""
        server, self.server = self.server, None
        if server is None or self.owner != os.getpid():
            return
        atexit.unregister(self.stop)
        with contextlib.suppress(OSError):
            send_frame(self.control, {"op": "exit"})  # a forked child of this process may keep the socket open
        self.control.close()
        os.close(self.null)
        try:
            server.wait(600)  # a busy machine takes minutes to remove the folders that programs have left
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def ready(self) -> None:
        """Start the server if it does not run, or runs for the process this one was forked from."""
        with self.lock:
            if self.server is not None and self.owner == os.getpid() and self.server.poll() is not None:
                self.stop()
            if self.server is None or self.owner != os.getpid():
                self.start()

    def isolated(self) -> dict:
        """What a confined process was found to be kept from: {"network": bool, "files": bool, "processes": bool}."""
        self.ready()
        return {name: self.report["proof"].get(name) is False for name in ("network", "files", "processes")}

    def send(self, message: dict, fds=()) -> None:
        with self.lock:
            send_frame(self.control, message, fds)

    def spawn(self, role: str, limits: dict, streams=(None, None, None), channel=None, extra=None) -> Process:
        """Have the server fork a process; without a channel, the process gets one whose other end is returned."""
        ours = None
        if channel is None:
            ours, channel = socket.socketpair()
        status, report = os.pipe()
        files = [channel.fileno(), *(self.null if s is None else s.fileno() for s in streams), report]
        with self.lock:
            self.count += 1
            job = self.count
        try:
            self.send({"op": "spawn", "id": job, "role": role, **limits}, files + ([extra.fileno()] if extra else []))
        except OSError as error:
            os.close(status)
            raise ServerGone(f"the fork server is gone: {error}") from error
        finally:
            os.close(report)
            channel.close()
            if extra:
                extra.close()
        return Process(self, job, ours, status)


def shared_sandbox() -> Sandbox:
    """The sandbox of a process; a lock that a thread holds at a fork is not locked in the child."""
    sandbox = Sandbox()
    os.register_at_fork(after_in_child=lambda: setattr(sandbox, "lock", threading.Lock()))
    return sandbox


DEFAULT = shared_sandbox()


# ----------------------------------------------------------------------- isolation (src/programs/sandbox/isolation.py)

WARNED = set()


def sandbox_report(sandbox: Sandbox | None = None) -> dict:
    """Which layers are in force, why others are not, and what a confined process was found to be kept from."""
    sandbox = sandbox or DEFAULT
    isolated = sandbox.isolated()
    layers = dict(sandbox.report["layers"])
    if layers["landlock"] == "on":
        layers["landlock"] = f"on (version {sandbox.report['abi']})"
    always = ("rlimits", "environment", "scratch", "output cap", "process tree", "wall clock")
    return {"isolated": isolated, "layers": {**layers, **dict.fromkeys(always, "on")}}


def check_isolation(sandbox: Sandbox, strict: bool) -> None:
    """Warn once of what programs are not kept from; if strict, refuse to run without network and file isolation."""
    missing = [name for name, kept in sandbox.isolated().items() if not kept]
    if not missing:
        return
    exposed = os.getuid() == 0 and "files" in missing and sandbox.report["layers"]["user"] != "on"
    off = ", ".join(f"{name} ({why})" for name, why in sandbox.report["layers"].items() if why != "on")
    problem = f"sandbox: got no protection of: {', '.join(missing)}; layers missing here: {off}"
    if strict and set(missing) & {"network", "files"}:
        raise SandboxError(
            f"{problem}; expected network and file isolation (strict); try Linux with Landlock and seccomp"
        )
    if exposed and "user" not in sandbox.disable:
        raise SandboxError(f"{problem}; expected isolation, or another user, for model code; try an ordinary user")
    if problem not in WARNED:
        WARNED.add(problem)
        warnings.warn(problem, RuntimeWarning, stacklevel=3)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1


# ----------------------------------------------------------------------------- values (src/programs/sandbox/values.py)

MAX_DEPTH = 100  # nesting of a value


def zone(moment) -> list:
    """The time zone of a date or time as its last argument, none where it has none."""
    return [] if moment.tzinfo is None else [datetime.timezone(moment.utcoffset() or datetime.timedelta(0))]


PLAIN_TYPES = {  # further types that travel, each with what gives the arguments that make them
    complex: lambda x: (x.real, x.imag),
    fractions.Fraction: lambda x: (x.numerator, x.denominator),
    decimal.Decimal: lambda x: (str(x),),
    datetime.date: lambda x: (x.year, x.month, x.day),
    datetime.datetime: lambda x: (x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond, *zone(x)),
    datetime.time: lambda x: (x.hour, x.minute, x.second, x.microsecond, *zone(x)),
    datetime.timezone: lambda x: (x.utcoffset(None),),
    datetime.timedelta: lambda x: (x.days, x.seconds, x.microseconds),
    range: lambda x: (x.start, x.stop, x.step),
}
# views of a dict keep their order and equal sets
VIEWS = {type({}.keys()): "keys", type({}.items()): "items", type({}.values()): "values"}
ALIKE = {  # types that equal another one in Python, and travel as that
    **dict.fromkeys((collections.UserDict, collections.ChainMap, types.MappingProxyType), dict),
    **{collections.UserList: list, collections.UserString: str, memoryview: bytes, bytearray: bytes},
}
MUTABLE = (list, dict, set, collections.deque)
CONTAINERS = (list, tuple, set, frozenset, collections.deque)
MAKERS = {
    **{kind.__name__: lambda items, kind=kind: kind(*items) for kind in PLAIN_TYPES},
    "Fraction": lambda items: fractions.Fraction(*map(operator.index, items)),  # of "1e999999999" it would never end
    **{kind.__name__: kind for kind in (*CONTAINERS, dict)},
    "keys": lambda items: dict.fromkeys(items).keys(),
    "items": lambda items: dict(items).items(),
    "values": lambda items: dict(enumerate(items)).values(),
    **{"Counter": lambda items: collections.Counter(dict(items)), "OrderedDict": collections.OrderedDict},
    "bytes": bytes.fromhex,
    "int": lambda digits: int(digits, 16),
}


def encode(value, shared=None, depth: int = 0):
    """Turn a value into JSON with tags; `shared` encodes what both sides share and what is not plain data.

    Subclasses lose their class, such as an IntEnum; a Counter, an OrderedDict and a namedtuple keep it for a judge.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    return (shared and shared.tagged(value)) or encode_content(value, shared, depth)


def encode_content(value, shared, depth: int = 0):
    """Encode a value by its content; values in it may be shared."""
    if value is None or isinstance(value, bool):
        return value
    if type(value) in ALIKE:
        value = ALIKE[type(value)](value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else {"t": "int", "v": format(int(value), "x")}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return {"t": "bytes", "v": bytes(value).hex()}
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        if not shared or value.dtype.kind not in "biufc":
            return encode(value.tolist(), shared, depth + 1)
        return {"t": "ndarray", "v": [str(value.dtype), encode(value.tolist())]}  # == in tests is then numpy's

    def each(items):
        return [encode(item, shared, depth + 1) for item in items]

    kind = next((kind.__name__ for kind in CONTAINERS if isinstance(value, kind)), "")
    if isinstance(value, dict):
        kept = shared and type(value) in (collections.Counter, collections.OrderedDict)
        return {"t": type(value).__name__ if kept else "dict", "v": [each(pair) for pair in value.items()]}
    if type(value) in VIEWS:
        kind = VIEWS[type(value)]
        return {"t": kind, "v": [each(pair) for pair in value] if kind == "items" else each(value)}
    if shared and kind == "tuple" and isinstance(getattr(value, "_fields", None), tuple):
        return {"t": "namedtuple", "v": each((value._fields, *value))}
    if type(value) in PLAIN_TYPES:
        return {"t": type(value).__name__, "v": each(PLAIN_TYPES[type(value)](value))}
    if kind:
        return each(value) if kind == "list" else {"t": kind, "v": each(value)}
    if shared is None:
        raise TypeError(f"{type(value).__name__} is not plain data")
    return shared.reference(value)


def decode(data, shared=None, depth: int = 0):
    """The value that encode() was given, of exact built-in types; raises Died on anything else."""
    if depth > MAX_DEPTH:
        raise Died("a result is nested too deeply")
    if data is None or isinstance(data, bool | int | float | str):
        return data
    try:
        if isinstance(data, list):
            return [decode(item, shared, depth + 1) for item in data]
        tag, content = data["t"], data["v"]
        if shared and tag in ("shared", "member", "ref", "own_hash", "coroutine", "function"):
            return shared.untagged(tag, content)
        if shared and tag == "ndarray" and re.fullmatch(r"bool|(?:u?int|float|complex)\d{1,3}", content[0]):
            return importlib.import_module("numpy").array(decode(content[1]), content[0])[()]  # a scalar without shape
        if not isinstance(content, str):
            content = [decode(item, shared, depth + 1) for item in content]
        if shared and tag == "namedtuple":
            return collections.namedtuple("Row", content[0])(*content[1:])
        return MAKERS[tag](content)
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, ImportError):
        raise Died(INVALID) from None


class SharedObjects:
    """One side's list of what both share: lists, dicts, sets, deques, and objects of classes that both sides define.

    Both sides know an object by its number: the judge gives even numbers, the program odd ones. A message mentions
    objects by number and has the state of each once. So cycles, long chains and identity survive, and no method of the
    other side runs here. A container is shared until the next message; one that an attribute of the program's object
    holds is shared until the attribute is read again. Other values that are not plain data stay on their side.

    Attributes:
        reference: function of a value that stays here; returns the JSON that stands for it.
        resolve: function of the tag and content of such JSON from the other side; returns what stands for it here.
        classes: {name: class} of this side's classes whose names the other side has too.
        lent: {(object, attribute): numbers of the shared objects that the attribute held when it was read}.
        kept: numbers of lent objects, and of all that they held after the last message.
        known: {number: the state that both sides last knew}.
    """

    def __init__(self, first: int, reference, resolve):
        self.next, self.reference, self.resolve, self.classes = first, reference, resolve, {}
        self.objects, self.numbers, self.known, self.lent, self.kept = {}, {}, {}, {}, set()
        self.mentioned, self.passing = [], []

    def number(self, value) -> int:
        """The number of an object, a new one for a new object."""
        if id(value) not in self.numbers:
            self.enter(self.next, value)
            self.next += 2
        return self.numbers[id(value)]

    def enter(self, number: int, value) -> None:
        """Share an object under a number."""
        self.objects[number], self.numbers[id(value)] = value, number
        if isinstance(value, MUTABLE):
            self.passing.append(number)

    def forget(self) -> None:
        """Before a message, stop sharing the containers of the last one, except lent ones."""
        for number in {*self.passing} - self.kept:
            del self.numbers[id(self.objects.pop(number))]
            self.known.pop(number, None)
        self.passing, self.mentioned = [*{*self.passing} & self.kept], []

    def tagged(self, value) -> dict | None:
        """The JSON of a shared object or a member of an Enum; None for another value."""
        kind = type(value)
        of_both = self.classes.get(kind.__name__) is kind
        if of_both and isinstance(value, enum.Enum):
            return {"t": "member", "v": [kind.__name__, value.name]}
        if not of_both and not isinstance(value, MUTABLE):
            return None
        self.mentioned.append(self.number(value))
        return {"t": "shared", "v": self.number(value)}

    def untagged(self, tag: str, content):
        """The value of `tagged` JSON, or the stand-in for a reference."""
        if tag == "member":
            return self.classes[content[0]][content[1]]
        return self.objects[content] if tag == "shared" else self.resolve(tag, content)

    def state(self, number: int) -> list:
        """[class, attributes] of an object, [None, items] of a container; mentions what is in it."""
        value = self.objects[number]
        if isinstance(value, MUTABLE):
            return [None, encode_content(value, self)]
        return [type(value).__name__, {name: encode(item, self) for name, item in vars(value).items()}]

    def reached(self) -> dict:
        """{number: state} of all mentioned objects and of those in them."""
        states = {}
        for number in self.mentioned:  # grows meanwhile
            if number not in states:
                states[number] = self.state(number)
        return states

    def keep_lent(self) -> dict:
        """{number: state} of lent objects and of all that they hold now, which stays shared."""
        self.mentioned = [number for numbers in self.lent.values() for number in numbers]
        states = self.reached()
        self.kept = {*states}
        return states

    def states(self) -> dict:
        """{number: state} for a message: what it mentions, and lent objects that have changed."""
        states = self.reached()
        states |= {number: state for number, state in self.keep_lent().items() if state != self.known.get(number)}
        self.known.update(states)
        return states

    def learn(self, states: dict, sent) -> None:
        """Take over the states in a message; raise Died for an object of this side that is neither `sent` nor lent."""
        states = {int(number): state for number, state in states.items()}
        for number, (name, content) in states.items():
            ours = number % 2 == self.next % 2
            if ours and number not in sent and number not in self.kept:
                raise Died(INVALID)
            if number not in self.objects:
                self.enter(number, object.__new__(self.classes[name]) if name else empty(content))
        # objects before containers, as sets hash them
        for number, (name, content) in sorted(states.items(), key=lambda item: not item[1][0]):
            value = self.objects[number]
            if bool(name) is isinstance(value, MUTABLE):
                raise Died(INVALID)
            if name:
                items = {k: decode(item, self) for k, item in content.items() if is_plain(type(value), k)}
                value = vars(value)
            else:
                items = decode(content, self)
            value.clear()
            (value.update if hasattr(value, "update") else value.extend)(items)
        self.known.update(states)
        self.keep_lent()

    def lend(self, target, name: str, value) -> None:
        """Keep sharing what an attribute holds."""
        self.mentioned = []
        encode(value, self)
        self.lent[target, name] = self.mentioned
        self.known.update(self.keep_lent())


def empty(content) -> list | dict | set:
    """An empty container of the kind that a state describes."""
    value = [] if isinstance(content, list) else MAKERS[content["t"]]([])
    if not isinstance(value, MUTABLE):
        raise Died(INVALID)
    return value


def is_plain(kind: type, name: str) -> bool:
    """Whether an attribute of this name would replace no method or property of the class."""
    try:
        encode(inspect.getattr_static(kind, name, None))
        return True
    except (TypeError, ValueError):
        return False


def classes_in(namespace: dict, module: str) -> dict:
    """{name: class} of the module's own classes whose objects consist of their attributes alone."""
    kinds = {name: kind for name, kind in namespace.items() if isinstance(kind, type) and kind.__module__ == module}
    return {
        name: kind
        for name, kind in kinds.items()
        if kind.__name__ == name
        and (issubclass(kind, enum.Enum) or (kind.__new__ is object.__new__ and kind.__dictoffset__))
    }


# --------------------------------------------------------------------- comparison (src/programs/sandbox/comparison.py)


class Brief(reprlib.Repr):
    """The beginning of a value's text, without the digits of large integers."""

    def repr_int(self, value, level):
        """An integer, or the number of its bits."""
        return repr(value) if value.bit_length() <= 256 else f"<integer of {value.bit_length()} bits>"


def brief(value) -> str:
    """The beginning of plain data's text, for messages."""
    short = Brief()
    short.maxlevel, short.maxstring, short.maxother = 3, 80, 80
    return short.repr(value)


def same(expected, actual) -> bool:
    """Compare plain data strictly: True is not 1; a float may differ by 1e-6 of itself; a tuple equals a list.

    Data from JSON has string keys only, so a dict with other keys is compared by their text.
    """
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        if isinstance(expected, float) and math.isfinite(expected):
            return math.isfinite(actual) and math.isclose(expected, actual, rel_tol=1e-6, abs_tol=1e-9)
        return expected == actual or (expected != expected and actual != actual)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        if all(isinstance(key, str) for key in expected) and not any(isinstance(key, str) for key in actual):
            actual = {str(key): item for key, item in actual.items()}
        return expected.keys() == actual.keys() and all(same(item, actual[key]) for key, item in expected.items())
    if VIEWS.get(type(actual)) in ("keys", "items"):
        return actual == expected  # as sets
    return type(expected) is type(actual) and expected == actual


def same_token(expected: str, actual: str) -> bool:
    """Compare two words of output: equal, or close where the expected one is written as a decimal; 2.0 equals 2."""
    if expected == actual:
        return True
    if len(expected) > 40 or len(actual) > 40 or not set(".eE") & set(expected + actual):
        return False
    try:
        if re.fullmatch("-?(?:0|[1-9][0-9]*)", expected):
            return decimal.Decimal(actual) == int(expected)
        return bool(set(".eE") & set(expected)) and same(float(expected), float(actual))
    except (ValueError, ArithmeticError):
        return False


def same_output(expected: str, actual: str) -> bool:
    """Compare printed text line by line; ignore white space at the ends of lines and empty lines around the text."""
    actual, start = actual.strip(), 0
    for words in map(str.split, expected.strip().split("\n")):  # reads no more output than is expected
        end = actual.find("\n", start)
        end = len(actual) if end < 0 else end
        printed = actual[start:end].split(maxsplit=len(words))
        if len(words) != len(printed) or not all(map(same_token, words, printed)):
            return False
        start = end + 1
    return start > len(actual)


def error_text(answer: dict) -> str:
    """What a program raised, in one line."""
    parts = (answer.get(part) for part in ("name", "message"))
    return ": ".join(part[:500] if isinstance(part, str) else "…" for part in parts)[:500]


def compare(answer: dict, expected, mode: str) -> str:
    """Return "" if the program's answer is the expected value; mode is same, == or wrapped (perhaps in a list)."""
    if "error" in answer:
        return error_text(answer)
    actual = decode(answer.get("value"))
    try:
        equal = actual == expected if mode == "==" else same(expected, actual)
        equal = equal or (mode == "wrapped" and same(expected[0], actual))
        return "" if equal else f"returned {brief(actual)}, expected {brief(expected)}"
    except (RecursionError, ArithmeticError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


# ----------------------------------------------------------- tests in python (src/programs/sandbox/tests_in_python.py)

PROGRAM_FILES = {"solution", "main", "__main__", "answer", "program", "submission", "your_module", "my_module"}
RUNNERS = {"unittest.main", "pytest.main", "doctest.testmod", "sys.exit", "exit", "quit"}
# full names of what acts on a process or folder; the program's are not those of the tests
SURROUNDINGS = re.compile(
    r"unittest\.mock\.patch|tempfile\.|shutil\.|pathlib\.Path|os\.(?:environ|getenv|putenv|chdir|mkdir|makedirs|listdir"
    r"|remove|unlink|path\.(?:exists|is|getsize))|inspect\.|open$"
)
SORTERS = {"sorted", "sort", "min", "max", "nlargest", "nsmallest", "insort", "heapify", "heappush", "heappop"}
RAISES = ("raises", "assertRaises", "assertRaisesRegex")


class FromProgram(ast.NodeTransformer):
    """Have tests take from the program what they import from its file, whose name they have to guess."""

    def __init__(self):
        self.files = set()  # names under which the program's file is known

    def visit_Module(self, node):
        """Tests as they run as a script, `if __name__ == "__main__"` included, but for what runs them or exits."""
        inside = []
        for top in node.body:
            is_guard = isinstance(top, ast.If) and "__name__" in read_names(top.test)
            inside += top.body if is_guard else [top]
        node.body = [part for part in inside if ast.unparse(part).partition("(")[0] not in RUNNERS]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node):
        """@pytest.mark.skip def test(): …  ->  pass"""
        self.generic_visit(node)
        marks = {ast.unparse(mark).partition("(")[0].rpartition(".")[2] for mark in node.decorator_list}
        return ast.copy_location(ast.Pass(), node) if marks & {"skip", "xfail"} else node

    def visit_ImportFrom(self, node):
        """from solution import f, g as h  ->  h = g"""
        if node.module not in PROGRAM_FILES:
            return node
        named = [(alias.asname, alias.name) for alias in node.names if alias.asname]
        new = [ast.Assign([ast.Name(name, ast.Store())], ast.Name(of, ast.Load())) for name, of in named]
        return [ast.fix_missing_locations(ast.copy_location(part, node)) for part in new or [ast.Pass()]]

    def visit_Import(self, node):
        """import solution  ->  pass"""
        files = [alias for alias in node.names if alias.name in PROGRAM_FILES]
        self.files |= {alias.asname or alias.name for alias in files}
        node.names = [alias for alias in node.names if alias not in files]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def visit_Attribute(self, node):
        """solution.f  ->  f"""
        self.generic_visit(node)
        if not isinstance(node.value, ast.Name) or node.value.id not in self.files:
            return node
        return ast.copy_location(ast.Name(node.attr, node.ctx), node)


class ForJudge(ast.NodeTransformer):
    """Make each assert a counted test that does not end the others, and have the judge tell identity, type and order.

    Inside `try` and `with` an assert keeps its meaning, since what is around it may expect an exception.
    """

    def __init__(self):
        self.guarded = 0

    @staticmethod
    def call(node, name: str, *args) -> ast.Expr:
        """A call of one of the judge's functions with the line of a test."""
        return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(node.lineno), *args], []))

    @staticmethod
    def asked(node, name: str, *args, keywords=()) -> ast.Call:
        """A call of one of the judge's functions, to replace an expression."""
        new = ast.Call(ast.Name(name, ast.Load()), [*args], [*keywords])
        return ast.fix_missing_locations(ast.copy_location(new, node))

    def counted(self, node, statements: list) -> ast.AST:
        """Statements that count as a test when they end: try: ...  except Exception as e: __fail__(line, e)"""
        if self.guarded:
            new = ast.If(ast.Constant(True), statements, [])
        else:
            fail = self.call(node, "__fail__", ast.Name("__e__", ast.Load()))
            handler = ast.ExceptHandler(ast.Name("__Exception__", ast.Load()), "__e__", [fail])
            new = ast.Try(statements, [handler], [], [])
        return ast.fix_missing_locations(ast.copy_location(new, node))

    def visit_Expr(self, node):
        """A call of a function named assert…, such as numpy.testing.assert_allclose, counts as an assert."""
        self.generic_visit(node)
        function = getattr(node.value, "func", None)
        name = getattr(function, "attr", getattr(function, "id", ""))
        # unittest counts its own
        is_of_self = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
        if not name.startswith("assert") or is_of_self:
            return node
        return self.counted(node, [node, self.call(node, "__check__", ast.Constant(True))])

    def visit_With(self, node):
        """`with pytest.raises(...)` counts as an assert."""
        calls = [getattr(item.context_expr, "func", None) for item in node.items]
        new = self.visit_guard(node)
        if not any(getattr(call, "attr", getattr(call, "id", "")) in RAISES for call in calls):
            return new
        return self.counted(node, [new, self.call(node, "__check__", ast.Constant(True))])

    def visit_guard(self, node):
        self.guarded += 1
        node.body = [self.visit(statement) for statement in node.body]
        self.guarded -= 1
        for part in ("items", "handlers", "orelse", "finalbody"):
            if hasattr(node, part):
                setattr(node, part, [self.visit(n) for n in getattr(node, part)])
        return node

    visit_TryStar = visit_AsyncWith = visit_guard

    def visit_Try(self, node):
        """`try: f(0); assert False` counts where an exception that it names comes in its place."""
        expects = any(map(always_fails, [*node.body, *node.orelse]))
        silent = [h for h in node.handlers if not any(isinstance(part, ast.Assert) for part in ast.walk(h))]
        new = self.visit_guard(node)
        for handler in silent if expects else ():
            if handler.type and not read_names(handler.type) & {"AssertionError", "Exception", "BaseException"}:
                handler.body.insert(0, self.call(node, "__check__", ast.Constant(True)))
        return ast.fix_missing_locations(new)

    def visit_Assert(self, node):
        """assert x  ->  try: __check__(line, x)  except Exception as e: __fail__(line, e)"""
        self.generic_visit(node)
        return self.counted(node, [self.call(node, "__require__" if self.guarded else "__check__", node.test)])

    def visit_Compare(self, node):
        """a is b  ->  __is__(a, b)"""
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        new = self.asked(node, "__is__", node.left, *node.comparators)
        return new if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), new), node)

    def visit_Call(self, node):
        """type(a)  ->  __type__(a);  sorted(a)  ->  __sort__(sorted, a)"""
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if getattr(node.func, "id", "") == "type" and len(node.args) == 1:
            return self.asked(node, "__type__", *node.args)
        return self.asked(node, "__sort__", node.func, *node.args, keywords=node.keywords) if name in SORTERS else node

    def visit_Attribute(self, node):
        """a.__class__  ->  __type__(a)"""
        self.generic_visit(node)
        read = node.attr == "__class__" and isinstance(node.ctx, ast.Load)
        return self.asked(node, "__type__", node.value) if read else node


def count_of_asserts(tests: ast.Module, entry_point: str | None) -> int:
    """How many asserts there are, without `assert False` and functions that nothing calls; changes the tests."""
    used = read_names(tests) | ({"check"} if entry_point else set())
    functions = [part for part in tests.body if isinstance(part, ast.FunctionDef)]
    unused = [part for part in functions if not part.name.startswith("test") and part.name not in used]
    tests.body = [part for part in tests.body if part not in unused]
    hopeless = sum(isinstance(node, ast.Assert) and always_fails(node) for node in ast.walk(tests))
    counted = [call for call in calls_in(ForJudge().visit(tests)) if call.func.id in ("__check__", "__require__")]
    return len(counted) - hopeless


def always_fails(statement: ast.stmt) -> bool:
    """Whether it is `assert False`, `raise AssertionError(...)` or `pytest.fail(...)`."""
    if isinstance(statement, ast.Expr):
        return getattr(getattr(statement.value, "func", None), "attr", "") == "fail"
    if isinstance(statement, ast.Raise):
        return getattr(getattr(statement.exc, "func", statement.exc), "id", "") == "AssertionError"
    return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant) and not statement.test.value


# functions that tests often use without importing them, since the program does
STANDARD = {
    name: module
    for module in ("math", "collections", "copy", "itertools", "functools", "operator", "statistics", "json")
    for name in importlib.import_module(module).__dict__
    if not name.startswith("_")
}


def unjudged(tests: ast.AST) -> str:
    """What tests do as if they shared a process with the program, such as reading `os.environ`; "" for nothing."""
    names = [part for part in ast.walk(tests) if isinstance(part, ast.Name | ast.Attribute)]
    full = {"open": "open"}  # {name: what it stands for}: {"path": "os.path"} of `from os import path`
    for part in (part for part in ast.walk(tests) if isinstance(part, ast.Import | ast.ImportFrom)):
        for alias in part.names:
            head, dot, _ = (alias.asname or alias.name).partition(".")
            full[head] = head if dot else f"{part.module}.{alias.name}" if hasattr(part, "module") else alias.name
    parts = (text.partition(".") for text in {*map(ast.unparse, names)})
    used = {full[head] + dot + rest for head, dot, rest in parts if head in full}  # os.path.exists of `path.exists(x)`
    stored = {ast.unparse(name) for name in names if isinstance(name.ctx, ast.Store)}
    outside = {name for name in used if SURROUNDINGS.match(name)} | stored & {"sys.stdin"}
    if any(getattr(name, "attr", "") == "getvalue" for name in names):
        outside |= (used | stored) & {"contextlib.redirect_stdout", "contextlib.redirect_stderr", "sys.stdout"}
    draws = {name for name in used if re.match(r"(?:numpy\.)?random\.", name)} - {"numpy.random"}
    if all(name.endswith("seed") for name in draws):  # a seed that is not for the tests' own draws
        outside |= draws
    name = min(outside, default="")
    return name and f"the tests use {name}, but the program runs in a process of its own; try arguments and results"


def caught_names(tests: ast.AST) -> set:
    """The names that may be those of expected exceptions: in `except`, `raises(…)`, `assertRaises(…)`, `isinstance`."""
    kinds = [part.type for part in ast.walk(tests) if isinstance(part, ast.ExceptHandler) and part.type]
    for call in (part for part in ast.walk(tests) if isinstance(part, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        kinds += call.args[:1] if name in RAISES else call.args[1:2] if name == "isinstance" else []
    return read_names(*kinds)


def used_as_classes(tests: ast.AST) -> set:
    """The capitalized names whose results tests use as objects: `V(1).x`, `V(1) < V(2)`, `v = V(1)` and `v[0] = 1`."""
    makers, parts = {}, list(ast.walk(tests))

    def maker(node: ast.AST) -> str:
        node = node.left if isinstance(node, ast.BinOp) else node
        name = getattr(getattr(node, "func", None), "id", "")
        return name if name[:1].isupper() else makers.get(ast.unparse(node), "")

    for part in (part for part in parts if isinstance(part, ast.Assign)):
        for target in part.targets:
            pairs = zip(getattr(target, "elts", [target]), getattr(part.value, "elts", [part.value]), strict=False)
            makers.update({ast.unparse(name): maker(value) for name, value in pairs})
    compared = [part for part in parts if isinstance(part, ast.Compare)]
    names = {maker(part.left) for part in compared if maker(part.left) == maker(part.comparators[0])}
    changed = [p for p in parts if isinstance(p, ast.Subscript) and not isinstance(p.ctx, ast.Load)]
    changed += [part for part in parts if isinstance(part, ast.Attribute)]
    return (names | {maker(part.value) for part in changed}) - {""}


def argument_sets(test) -> list[dict]:
    """The arguments of each run of a test, by its marks `pytest.mark.parametrize`."""
    sets = [{}]
    for mark in (mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"):
        given = dict(zip(("argnames", "argvalues"), mark.args, strict=False)) | mark.kwargs
        names, rows = given["argnames"], []
        alone = isinstance(names, str) and "," not in names  # then a row is the value itself
        names = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
        for row in given["argvalues"]:
            rows.append(row.values if type(row).__name__ == "ParameterSet" else [row] if alone else row)
        sets = [{**known, **dict(zip(names, row, strict=True))} for known in sets for row in rows]
    return sets


def calls_in(*nodes: ast.AST) -> list[ast.Call]:
    """The calls of functions by their names."""
    parts = (part for node in nodes for part in ast.walk(node))
    return [part for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]


def judging_names(tests: ast.AST, wanted: set, program: set) -> set:
    """Those of the wanted names by which the tests judge what the program's other functions return.

    Such a function is called with the result of another one, or with a variable of the tests where these call another
    one at all, or stands on the other side of a comparison.
    """
    judging, called = set(), program & read_names(tests)
    bound = {part.arg for part in ast.walk(tests) if isinstance(part, ast.arg)} - {"candidate"}
    bound |= {part.id for part in ast.walk(tests) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for call in calls_in(tests):
        name, inside = call.func.id, read_names(*call.args, *(item.value for item in call.keywords))
        others = program - {name}
        if name in wanted and (inside & others or (inside & bound and called & others)):
            judging.add(name)
    for node in (part for part in ast.walk(tests) if isinstance(part, ast.Compare)):
        sides = [node.left, *node.comparators]
        for side in sides:
            beside = read_names(*(other for other in sides if other is not side)) & program
            judging.update(call.func.id for call in calls_in(side) if beside - {call.func.id})
    return judging & wanted


# ------------------------------------------------------------- remote objects (src/programs/sandbox/remote_objects.py)

DECIDES = "which could forge the result; try comparing plain data"
# special attributes that the program answers; Python itself looks up many others
DESCRIPTIONS = ("__name__", "__qualname__", "__wrapped__", "__annotations__", "__code__", "__defaults__")


class Unsafe(Exception):
    """A test asks the program for the verdict."""


def asked(operation: str):
    """A method that asks the program to perform an operation."""
    return lambda self, *args: self._judge.ask(operation, self._target, args)


def described(name: str) -> property:
    """A property that asks the program; Python would otherwise answer it itself."""
    return property(lambda self: self._judge.ask("getattr", self._target, (name,)))


def converted(kind: type):
    """A method that asks for the plain version of a program's object and checks its type."""

    def convert(self):
        value = self._judge.ask(kind.__name__, self._target)
        if type(value) is not kind:
            raise TypeError(f"got {type(value).__name__}; expected {kind.__name__}")
        return value

    return convert


def as_instance(value):
    """An object of the program as an instance, on which operators work; plain data as it is."""
    if isinstance(value, RemoteObject):
        object.__setattr__(value, "_is_instance", True)
    return value


def forwarded(name: str):
    """A method for an operator between instances only: plain data could tell the program what a test expects."""

    def operate(self, *others):
        if not all(isinstance(item, RemoteObject) and item._is_instance for item in (self, *others)):
            self._judge.unfit += self._is_instance
            raise TypeError(f"{name} of an object of the program works only with another one; try comparing plain data")
        return as_instance(self._judge.ask(name, self._target, others))

    return operate


def ordered(name: str):
    """A method for `<` and the like; the program answers only within `sorted`, `min` and other built-in sorters."""

    def compare(self, other):
        if not isinstance(other, RemoteObject):
            return NotImplemented
        if self._judge.sorting:
            self._judge.trusted = False
            return bool(self._judge.ask(name, self._target, (other,)))
        self._judge.unfit += self._is_instance or other._is_instance
        raise Unsafe(f"orders objects of the program, {DECIDES}")

    return compare


class RemoteObject:
    """The judge's proxy of a function, class or object of the program; results that are plain data arrive as such.

    `==` never asks the program. Method calls, `in`, `+` and the like do: there the tests trust the program's answer.
    Operators work only on instances, the objects that the tests make from a class.
    """

    __slots__ = ("_has_own_hash", "_is_instance", "_judge", "_target")  # any other attribute is the program's

    def __init__(self, judge, target, has_own_hash=False):
        for name, value in zip(RemoteObject.__slots__, (has_own_hash, False, judge, target), strict=True):
            object.__setattr__(self, name, value)

    def __call__(self, *args, **kwargs):
        value = self._judge.ask("call", self._target, args, kwargs)
        return as_instance(value) if self._target in self._judge.classes else value

    def __getattr__(self, name):
        if name.startswith("__") and name not in DESCRIPTIONS:
            raise AttributeError(name)
        return self._judge.ask("getattr", self._target, (name,))

    def __iter__(self):
        return iter(self._judge.ask("items", self._target))

    def __next__(self):
        items = self._judge.ask("next", self._target)  # a list of one, empty at the end
        if type(items) is not list or len(items) != 1:
            raise StopIteration
        return items[0]

    def __exit__(self, *error):
        self._judge.ask("exit", self._target)  # without the error, which only the tests may catch

    def __eq__(self, other):
        self._judge.unfit += isinstance(other, RemoteObject)
        raise Unsafe(f"compares an object of the program, {DECIDES}")

    def __hash__(self):
        if self._has_own_hash and not self._judge.reading:
            self._judge.unfit += 1
            raise Unsafe(f"hashes an object of the program, {DECIDES}")
        return hash(("program", self._target))

    __lt__, __gt__, __le__, __ge__ = map(ordered, ("__lt__", "__gt__", "__le__", "__ge__"))
    __doc__, __dict__ = map(described, ("__doc__", "__dict__"))

    def __contains__(self, item):
        if not self._is_instance:  # the program could return this where a list is expected
            return any(one is item or one == item for one in self)
        self._judge.trusted = False
        return bool(self._judge.ask("contains", self._target, (item,)))

    def __mro_entries__(self, bases):
        self._judge.unfit += 1
        raise Unsafe("derives from a class of the program; try calling that class instead")

    def __instancecheck__(self, value):
        self._judge.trusted = False
        return bool(self._judge.ask("has_instance", self._target, (value,)))

    def __len__(self):
        try:  # list() asks for it, and takes TypeError for an answer
            return operator.index(self._judge.ask("len", self._target))
        except Exception as error:
            raise TypeError(str(error)) from None

    __enter__, __getitem__, __setitem__, __delitem__ = map(asked, ("enter", "getitem", "setitem", "delitem"))
    __setattr__, __repr__, __dir__ = map(asked, ("setattr", "repr", "dir"))
    __str__, __bool__, __int__, __float__ = map(converted, (str, bool, int, float))
    __add__, __sub__, __mul__ = map(forwarded, ("__add__", "__sub__", "__mul__"))
    __truediv__, __floordiv__, __mod__ = map(forwarded, ("__truediv__", "__floordiv__", "__mod__"))
    __matmul__, __and__, __or__, __xor__ = map(forwarded, ("__matmul__", "__and__", "__or__", "__xor__"))
    __neg__, __invert__, __abs__ = map(forwarded, ("__neg__", "__invert__", "__abs__"))


# ------------------------------------------------------------------------------- judge (src/programs/sandbox/judge.py)

ENDS = (StopIteration, StopAsyncIteration)


class Ended(BaseException):
    """The program ended or hung: no test can go on. Not an Exception, so that tests do not catch it."""


class ProgramError(Exception):
    """The program raised an exception of its own making."""


def awaited(coroutine):
    """What a coroutine comes to."""
    import asyncio

    return asyncio.run(coroutine)


def prepare(place, name: str, *about) -> None:
    """Call what pytest calls before tests, a function of a module's names or a method, with as much as it takes."""
    setup = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
    if setup:
        setup(*about[: len(inspect.signature(setup).parameters)])


def may_be_raised(kind) -> bool:
    """Whether it is an exception, and none that would end a loop of the tests as if it were done."""
    return isinstance(kind, type) and issubclass(kind, Exception) and kind not in ENDS


def is_closed(function: types.FunctionType) -> bool:
    """Whether a function of the tests, a lambda say, reads no name of theirs: it can run in the program's process."""
    codes = [function.__code__]
    for code in codes:  # grows
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    read = {name for code in codes for name in code.co_names} & function.__globals__.keys()
    return not (read or function.__closure__ or function.__kwdefaults__)


class Judge:
    """Runs tests; calls go to the program's own process, and what comes back is compared here.

    Attributes:
        unfit: how often the tests did what only the program could judge: compared two objects of it, say.
        classes: names whose results the tests use as objects.
        errors: the exceptions of the program that the tests expect, as classes of this process.
        sorting: whether `sorted` or the like is running.
        reading: whether an answer is being read.
        trusted: False where the program's constants or functions judge a result.
        ended: why no test could go on.
    """

    def __init__(self, program: socket.socket, job: dict):
        self.program, self.job = program, job
        self.passed = self.total = 0
        self.results, self.ended, self.unfit, self.trusted = [], "", 0, True
        self.classes, self.errors, self.sorting, self.reading = set(), {}, False, False
        self.shared, self.shareable = SharedObjects(0, self.reference, self.resolve), dict

    def record(self, line: int, passed: bool, detail: str = "") -> None:
        self.passed += passed
        self.total += 1
        if len(self.results) < 1000:
            self.results.append({"test": line, "passed": passed, "detail": detail[:500]})
        if self.job["stops"] and not passed:
            raise Ended("a test failed")

    def check(self, line: int, value) -> None:
        self.record(line, bool(value), "" if value else "the assertion is false")

    def require(self, line: int, value) -> None:
        """Count an assert that holds; raise for one that does not."""
        if not value:
            raise AssertionError
        self.record(line, True)

    def fail(self, line: int, error: BaseException) -> None:
        self.record(line, False, f"{type(error).__name__}: {error}")

    def end(self, why: str):
        """No test can go on."""
        self.ended = self.ended or why
        raise Ended(why)

    def exchange(self, message: dict) -> dict:
        """Send a request under a fresh secret and return the answer that carries it."""
        if self.ended:
            self.end(self.ended)
        nonce = os.urandom(12).hex()
        try:
            self.program.settimeout(self.job["timeout_s"])
            send_frame(self.program, {"nonce": nonce, **message})
            deadline = min(time.monotonic() + self.job["timeout_s"], self.job["deadline"])
            answer = receive_frame(self.program, deadline, self.job["result_bytes"])
        except TimeoutError:
            self.end("timeout")
        except (Died, OSError) as error:
            self.end(str(error))
        if answer.get("nonce") != nonce:
            self.end(INVALID)
        return answer

    def load(self) -> dict:
        """Run the program as a module; returns the kinds of its names."""
        answer = self.exchange({"mode": "module", "code": self.job["code"]})
        if "error" in answer:
            self.end(error_text(answer))
        return answer

    def ask(self, op: str, target, args=(), kwargs=None):
        """Have the program's process perform an operation; what it changes in arguments is changed here too."""
        self.shared.forget()
        self.shared.classes = self.shareable()
        message = {"op": op, "target": target, "objects": True, "args": [encode(item, self.shared) for item in args]}
        message["kwargs"] = {name: encode(item, self.shared) for name, item in (kwargs or {}).items()}
        message["classes"], message["states"] = list(self.shared.classes), self.shared.states()
        answer = self.exchange(message)
        if "error" in answer:
            self.raise_same(answer)
        self.reading = True
        try:
            self.shared.learn(answer.get("states") or {}, message["states"])
            value = decode(answer.get("value"), self.shared)
        except (AttributeError, KeyError, TypeError, ValueError):
            self.end(INVALID)
        finally:
            self.reading = False
        if op == "getattr":
            self.shared.lend(target, *args, value)
        return value

    def is_same(self, one, other) -> bool:
        """`is` in the tests; of two objects of the program, the program alone knows it."""
        if one is not other and isinstance(one, RemoteObject) and isinstance(other, RemoteObject):
            return one == other  # which raises
        return one is other

    def is_subclass(self, kind, base) -> bool:
        """`issubclass` in the tests; for the program's classes, the program answers."""
        if not isinstance(kind, RemoteObject):
            return issubclass(kind, base)
        self.trusted = False
        return bool(self.ask("issubclass", kind._target, (base,)))

    def type_of(self, value):
        """`type(x)` and `x.__class__` in the tests; the program answers for its own objects."""
        return self.ask("type", value._target) if isinstance(value, RemoteObject) else type(value)

    def sort(self, function, *args, **kwargs):
        """`sorted(x)` and the like in the tests; meanwhile the program may order its own objects."""
        before, self.sorting = self.sorting, isinstance(function, types.BuiltinFunctionType)
        try:
            return function(*args, **kwargs)
        finally:
            self.sorting = before

    def resolve(self, tag: str, number):
        """What stands here for an object that stays in the program: a proxy, or a coroutine to await."""
        return self.result_of(number) if tag == "coroutine" else RemoteObject(self, int(number), tag == "own_hash")

    async def result_of(self, coroutine: int):
        """Await a coroutine of the program, which runs it to its end there."""
        return self.ask("await", coroutine)

    def reference(self, value) -> dict:
        """The JSON of an argument that is not plain data: an object of the program, or a function that can be sent."""
        if isinstance(value, RemoteObject):
            return {"t": "ref", "v": value._target}
        if isinstance(value, types.FunctionType) and is_closed(value):
            code = marshal.dumps(value.__code__).hex()
            return {"t": "function", "v": [code, encode(value.__defaults__, self.shared)]}
        self.unfit += 1
        kind = "function that reads names of the tests" if callable(value) else type(value).__name__
        raise Unsafe(f"passes a {kind} to the program; only plain data and other functions can be sent")

    def expect(self, bases, names: set) -> None:
        """Make exceptions for those names that the program says are ones, each of its nearest built-in base."""
        for name in names & bases.keys() if isinstance(bases, dict) else ():
            kinds = (getattr(builtins, str(base), None) for base in bases[name])
            kind = next(filter(may_be_raised, kinds), Exception)
            self.errors[name] = type(name, (kind,), {"__init__": Exception.__init__, "__module__": "tests"})

    def raise_same(self, answer: dict):
        """Raise what the program raised: an exception that the tests expect, else the nearest built-in one."""
        names = dict.fromkeys(map(str, answer["error"])) if isinstance(answer["error"], list) else {}
        message, known = str(answer.get("message"))[:500], decode(answer.get("known"), self.shared)
        args, state = known if isinstance(known, list) and len(known) == 2 else ([message], {})
        expected = tuple(self.errors[name] for name in names if name in self.errors)
        kinds = [type(expected[0].__name__, expected, {"__str__": lambda self: message})] if expected else []
        for name in () if expected else names:
            kind = getattr(builtins, name, None)
            if kind in ENDS:
                break
            if may_be_raised(kind) and kind is not Exception:
                kinds.append(kind)
        for kind, given in itertools.product(kinds, (args, [message])):
            error = None
            with contextlib.suppress(TypeError, ValueError):  # UnicodeDecodeError, say, takes more than a text
                error = kind(*given)
                error.__dict__.update(state)
            if error is not None and str(error) == message:
                raise error
        raise ProgramError(error_text(answer))

    def run_calls(self) -> None:
        """Call the program's functions and compare each result with the value that is expected."""
        self.load()
        for number, (name, args, kwargs, expected, mode) in enumerate(self.job["cases"]):
            call = {"op": "call", "target": name, "args": args, "kwargs": kwargs, "objects": False}
            call["asserted"] = mode == "=="
            detail = compare(self.exchange(call), decode(expected), mode)
            self.record(number, not detail, detail)

    def run_source(self) -> None:
        """Load the program, then run the tests, each piece of source by itself."""
        entry, imports = self.job["entry_point"], FromProgram()
        namespace = {"__name__": "tests", "__Exception__": Exception, "issubclass": self.is_subclass}
        namespace |= {"__check__": self.check, "__require__": self.require, "__fail__": self.fail}
        namespace |= {"__is__": self.is_same, "__type__": self.type_of, "__sort__": self.sort}
        trees = [imports.visit(ast.parse(source, "tests.py")) for source in self.job["cases"]]
        whole = ast.Module([statement for tree in trees for statement in tree.body], [])
        loaded, setup = self.load(), ast.parse(self.job["setup"], "setup.py")
        names = loaded["names"] if isinstance(loaded.get("names"), dict) else {}
        every, known = ast.Module([*setup.body, *whole.body], []), bound_names(setup) | namespace.keys()
        self.expect(loaded.get("errors"), caught_names(whole) & names.keys() - vars(builtins).keys() - known)
        self.classes = used_as_classes(every)
        self.offer({name: kind for name, kind in names.items() if name not in known}, namespace, every)
        theirs = loaded.get("classes") or ()
        self.shareable = lambda: {n: kind for n, kind in classes_in(namespace, "tests").items() if n in theirs}
        exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
        namespace.update({k: v for k, v in self.errors.items() if isinstance(namespace.get(k), RemoteObject)})
        if entry:
            candidate = RemoteObject(self, entry)
            namespace.update({entry: candidate, "candidate": candidate})
        for tree in trees:
            code = compile(ForJudge().visit(tree), "tests.py", "exec", dont_inherit=True)
            self.attempt(lambda code=code: exec(code, namespace))
        self.run_functions(namespace, whole)
        defined = {name for name, kind in names.items() if not str(kind).startswith("module ")}
        if not defined & (read_names(whole) | ({entry, "Solution"} if entry else set())):
            self.passed = 0
            for result in self.results:
                result.update(passed=False, detail=result["detail"] or "the tests use nothing that the program defines")

    def attempt(self, action) -> None:
        """Run a piece of the tests; an exception counts as a test that fails."""
        try:
            action()
        except Ended:
            raise
        except BaseException as error:  # those of pytest are no Exception
            if type(error).__name__ != "Skipped":
                is_missing = isinstance(error, ModuleNotFoundError) and error.name  # which the program's have not
                self.unfit += bool(is_missing)
                self.fail(0, error)

    def offer(self, names: dict, namespace: dict, tests: ast.AST) -> None:
        """Put the program's names that the tests use into their namespace, but not for what judges a result."""
        entry, used = self.job["entry_point"], read_names(tests)
        functions = {name for name, kind in names.items() if kind == "callable"} & used - namespace.keys()
        program = functions | ({entry, "candidate"} if entry else set())
        judging = judging_names(tests, (functions | STANDARD.keys() & used) - namespace.keys(), program)
        for name in judging - {entry}:  # isclose(f(1), 2): what judges a result must not be the program's
            if name in STANDARD:
                namespace[name] = getattr(importlib.import_module(STANDARD[name]), name)
        of_program = functions - STANDARD.keys() - {entry} - vars(builtins).keys()
        for call in (call for call in calls_in(tests) if call.func.id in of_program):  # same(f(1), 2), not ours
            self.trusted &= not {inner.func.id for inner in calls_in(call)} & program - {call.func.id}
        tested = functions & vars(builtins).keys()
        if entry or functions - vars(builtins).keys() - STANDARD.keys():
            tested = set()  # the tests are about another function
        elif len(tested) > 1:
            self.trusted = False  # which of them judge the others is a guess
            loops = [part.iter for part in ast.walk(tests) if hasattr(part, "iter")]
            tested = (tested - read_names(*loops)) or tested  # what decides how often something is tested
            tested = (tested - judging_names(tests, tested, tested)) or tested
        bases = (node.value for node in ast.walk(tests) if isinstance(node, ast.Attribute))
        dotted = {node.id for node in bases if isinstance(node, ast.Name)}
        for name in used - namespace.keys() - (vars(builtins).keys() - tested):
            kind = str(names.get(name))
            module = kind[7:] if kind.startswith("module ") else {"np": "numpy"}.get(name, name)
            known = module.partition(".")[0] in {*sys.stdlib_module_names, "numpy"}
            if known and (name in dotted or kind.startswith("module ")):  # the real one, not what the program made
                with contextlib.suppress(ImportError):
                    namespace[name] = importlib.import_module(module)
            elif name not in names or kind.startswith("module "):
                continue
            elif kind == "value":
                self.trusted = False  # the program's own word for what is right
                namespace[name] = self.ask("get", name)
            else:
                namespace[name] = RemoteObject(self, name)

    def run_functions(self, namespace: dict, tests: ast.AST) -> None:
        """Call `check(candidate)` unless the tests do, each `test…()`, and the methods of each unittest.TestCase."""
        prepare(namespace, "setup_module")
        called = {call.func.id for call in calls_in(tests)}
        if "check" in namespace and "check" not in called and self.job["entry_point"]:
            self.attempt(lambda: namespace["check"](namespace["candidate"]))
        for name, value in list(namespace.items()):
            if isinstance(value, RemoteObject):
                continue
            if name.startswith("test") and isinstance(value, types.FunctionType) and name not in called:
                prepare(namespace, "setup_function", value)
                self.run_test(value)
            elif isinstance(value, type) and value.__module__ == "tests" and hasattr(value, "defaultTestResult"):
                self.run_case(value)
            elif isinstance(value, type) and name.startswith("Test") and value.__module__ == "tests":
                prepare(value, "setup_class")
                for method in (name for name in dir(value) if name.startswith("test")):
                    self.run_test(getattr(value, method), value)

    def run_test(self, test, case: type | None = None) -> None:
        """Call a test, a method on an object of its own, with each set of its arguments."""

        def run(arguments: dict):
            parameters = [*inspect.signature(test).parameters.values()][bool(case) :]
            missing = {p.name for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL} - {*arguments}
            if missing:
                self.unfit += 1
                raise Unsafe(f"needs {', '.join(sorted(missing))}; try a value in place of a fixture")
            instance = [case()] if case else []
            prepare(instance[0] if case else {}, "setup_method", test)
            value = test(*instance, **arguments)
            return awaited(value) if inspect.iscoroutine(value) else value

        for arguments in argument_sets(test):
            self.attempt(lambda arguments=arguments: run(arguments))

    def run_case(self, case: type) -> None:
        """Run a unittest.TestCase; each of its methods is one test."""
        import unittest

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        bad = [text.strip().splitlines()[-1] for _, text in result.failures + result.errors]
        for i in range(max(result.testsRun, len(bad))):  # setUpClass may fail before any test
            self.record(0, i >= len(bad), bad[i] if i < len(bad) else "")

    def outcome(self, catch=BaseException) -> dict:
        """Run the tests and say how they went; exceptions of a kind end them."""
        try:
            {"calls": self.run_calls, "python": self.run_source}[self.job["kind"]]()
        except Ended:
            pass
        except catch as error:
            self.ended = str(error) if isinstance(error, Died) else f"{type(error).__name__}: {error}"[:500]
        parts = ("passed", "total", "results", "trusted", "ended")
        unfit = 0 < self.unfit >= self.total - self.passed  # else a test failed that any program can be held to
        return {**{name: getattr(self, name) for name in parts}, "unfit": unfit}


def run_judge(channel: socket.socket, program: socket.socket) -> None:
    """Run the tests of one program and tell the caller the outcome."""
    sys.set_int_max_str_digits(0)  # tests may hold numbers of any length; this process is ended in time anyway
    with contextlib.suppress(Died, OSError):  # the first request finds that out
        receive_frame(program)  # it has started
    send_frame(channel, {"started": True})
    send_frame(channel, Judge(program, receive_frame(channel)).outcome())
    os._exit(0)


# --------------------------------------------------------------------------- program (src/programs/sandbox/program.py)


def fresh_namespace(name: str) -> dict:
    """The names of an empty module, for the program."""
    sys.modules[name] = module = types.ModuleType(name)
    return vars(module)


def run_program(channel: socket.socket) -> None:
    """Run model code: once as a script, or as a module whose functions are then called from outside."""
    sys.set_int_max_str_digits(0)  # the program may print numbers of any length; it is ended in time anyway
    send_frame(channel, {"started": True})
    job = receive_frame(channel)
    if job["mode"] == "stdin":
        channel.close()
        run_as_script(job["code"])
    else:
        answer_calls(channel, job)


def run_as_script(code: str) -> None:
    """Run a program as `python program.py` does, and end with its exit status."""
    status = 1
    try:
        exec(compile(code, "program.py", "exec", dont_inherit=True), fresh_namespace("__main__"))
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}"[:1000])
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def answer_calls(channel: socket.socket, job: dict) -> None:
    """Run a program as a module, then perform what the judge asks for until it is gone."""
    namespace = fresh_namespace("program")

    def reference(value) -> dict:
        tag = "ref" if type(value).__hash__ is object.__hash__ else "own_hash"
        return {"t": "coroutine" if isinstance(value, types.CoroutineType) else tag, "v": shared.number(value)}

    def resolve(tag: str, content):
        if tag == "ref":
            return find(content, namespace, shared.objects)
        code, defaults = content
        return types.FunctionType(marshal.loads(bytes.fromhex(code)), {}, None, decode(defaults, shared))

    shared = SharedObjects(1, reference, resolve)

    def load(job: dict) -> dict:
        with contextlib.suppress(EOFError, SystemExit):  # an example of its use that reads stdin or exits
            exec(compile(job["code"], "program.py", "exec", dont_inherit=True), namespace)
        kinds, errors = {}, {}
        for name, value in list(namespace.items()):
            module = isinstance(value, types.ModuleType)
            kinds[name] = f"module {value.__name__}" if module else "callable" if callable(value) else "value"
            if isinstance(value, type) and issubclass(value, Exception):
                errors[name] = [base.__name__ for base in value.__mro__[1:]]
        return {"names": kinds, "errors": errors, "classes": list(classes_in(namespace, "program"))}

    def perform(call: dict) -> dict:
        shared.forget()
        known, sent = classes_in(namespace, "program"), call.get("states", {})
        shared.classes = {name: known[name] for name in call.get("classes", ()) if name in known}
        shared.learn(sent, [*map(int, sent)])
        args = [decode(item, shared) for item in call["args"]]
        kwargs = {name: decode(item, shared) for name, item in call["kwargs"].items()}
        name, target = call["op"], find(call["target"], namespace, shared.objects)
        operation = OPERATIONS.get(name) or getattr(operator, name, None) or getattr(builtins, name)
        value = operation(target, *args, **kwargs)
        if call.get("asserted") and is_ambiguous(value):
            raise ValueError("the truth value of an array with more than one element is ambiguous")
        if not call["objects"]:
            return {"value": encode(value)}
        shared.mentioned, known = [*map(int, sent)], {**shared.known}
        answer = {"value": encode(value, shared)}
        answer["states"] = {n: state for n, state in shared.states().items() if state != known.get(n)}
        if call["op"] == "getattr":
            shared.lend(call["target"], *args, value)
        return answer

    action = load
    while True:
        try:
            answer = action(job)
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = {"error": kinds, "name": type(error).__name__, "message": str(error)[:500]}
            with contextlib.suppress(TypeError, ValueError):
                answer["known"] = encode([list(error.args), vars(error)])
        send_frame(channel, {"nonce": job["nonce"], **answer})
        try:
            action, job = perform, receive_frame(channel)
        except (Died, OSError):
            os._exit(0)


def is_ambiguous(value) -> bool:
    """Whether `value == list` has no truth value in Python: an array, or a list or tuple with one."""
    if isinstance(value, list | tuple):
        return any(map(is_ambiguous, value))
    return type(value).__module__ == "numpy" and getattr(value, "size", 1) != 1


def find(target, namespace: dict, objects: dict):
    """The object of a call: one with a number, a global name, or a method of the program's class Solution."""
    if isinstance(target, int):
        return objects[target]
    if target in namespace:
        return namespace[target]
    if "Solution" in namespace and hasattr(namespace["Solution"], target):
        return getattr(namespace["Solution"](), target)
    raise NameError(f"the program defines no {target!r}")


def next_of(iterator) -> list:
    """The next item in a list, which is empty at the end."""
    try:
        return [next(iterator)]
    except StopIteration:
        return []


OPERATIONS = {  # which the judge may ask for, besides functions of `operator` and built-in ones
    "get": lambda value: value,
    "items": lambda value: [item for item, _ in zip(value, range(100_000), strict=False)],
    "next": next_of,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
    "await": awaited,
    "has_instance": lambda value, other: isinstance(other, value),
}

ROLES = {"program": run_program, "judge": run_judge}  # what a forked process may run, under all layers


# ------------------------------------------------------------- forms of tests (src/programs/sandbox/forms_of_tests.py)

MAX_PARSED = 100_000  # characters of a source that the caller parses, in some tenths of a second
BROKEN = (SyntaxError, ValueError, RecursionError, MemoryError)  # what parsing a source may raise
READS_STDIN = re.compile(r"\binput\(|\bstdin\b|\bopen\(0")


class BadTests(ValueError):
    """The tests given to run_code cannot be used: the caller's error, never the program's."""


def parsed(source: str) -> ast.Module:
    """The syntax tree of a model's source; raises one of BROKEN."""
    if len(source) > MAX_PARSED:
        raise ValueError("too long")
    warnings.filterwarnings("ignore", module=r"^model_program$")  # of invalid escapes
    return parse_python(source, "model_program.py")


def long_text(value) -> str:
    """The text of stdin or stdout: lines from a list; a number may have any length."""
    if isinstance(value, list):
        return "\n".join(map(long_text, value))
    return str(decimal.Decimal(value) if isinstance(value, int) and value.bit_length() > 13_000 else value)


def loaded_tests(tests):
    """Tests that are JSON text as data; others as they are."""
    if not isinstance(tests, str) or tests.lstrip()[:1] not in ("[", "{"):
        return tests
    try:
        return loaded(tests)
    except (ValueError, RecursionError):
        return tests


def loaded(text: str):
    """The data of JSON text; an integer of it may have any length, which int() reads up to 4,300 digits only."""
    return json.loads(text, parse_int=lambda digits: int(decimal.Decimal(digits)))


@dataclass
class Plan:
    """Tests in one of three forms."""

    kind: str  # stdin, calls or python
    cases: list  # (input, output), (function, args, kwargs, expected, mode of compare), or pieces of source
    least: int  # how many tests there are at least, where they end early
    unfit: str = ""  # what in them cannot be judged


def read_tests(tests, entry_point: str | None, code: str = "") -> Plan:
    """Sort the tests into one of the three forms, or raise BadTests, and nothing else."""
    try:
        return sort_tests(tests, entry_point, code)
    except BadTests:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise BadTests(f"got tests that cannot be read: {type(error).__name__}: {error}") from None


def sort_tests(tests, entry_point: str | None, code: str) -> Plan:
    tests = loaded_tests(tests)
    if isinstance(tests, dict):
        tests = pair_up(tests)
        entry_point = tests.pop() or entry_point
    if isinstance(tests, str):
        tests = [tests] if tests.strip() else []
    if not isinstance(tests, list | tuple):
        raise BadTests(f"got tests {brief(tests)}; expected Python source, a list, or inputs and outputs")
    if all(isinstance(test, str) for test in tests):
        return read_source(list(tests), entry_point)
    if all(isinstance(test, dict) and "input" in test and "output" in test for test in tests):
        if not any(is_call(test, entry_point) for test in tests):
            return Plan("stdin", [(long_text(test["input"]), long_text(test["output"])) for test in tests], len(tests))
        tests = [call_of_input(test) for test in tests]
    pairs = [test for test in tests if isinstance(test, list | tuple) and len(test) == 2]
    if not entry_point and len(pairs) == len(tests):
        entry_point = main_function(code)
        are_texts = all(isinstance(text, str) for pair in pairs for text in pair)
        if are_texts and (READS_STDIN.search(code) or not entry_point):  # a script; else a function of a text
            return Plan("stdin", [(given, output) for given, output in pairs], len(tests))
        entry_point = entry_point or "function"  # which fails: there is none
    return Plan("calls", [read_call(number, test, entry_point) for number, test in enumerate(tests)], len(tests))


def main_function(code: str) -> str | None:
    """The last function of a program, or of its Solution, that no other one uses, besides tests and main."""
    try:
        statements = parsed(code).body
    except BROKEN:
        return None
    for part in [part for part in statements if getattr(part, "name", "") == "Solution"]:
        statements += getattr(part, "body", [])
    functions = [part for part in statements if isinstance(part, ast.FunctionDef) and not part.name.startswith("__")]
    functions = [part for part in functions if not re.match(r"test|_?main$", part.name)] or functions
    used = set()
    for function in functions:
        used |= {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(function)} - {function.name}
    names = [function.name for function in functions]
    return ([name for name in names if name not in used] or names or [None])[-1]


def is_call(test: dict, entry_point: str | None) -> bool:
    """Whether a test calls a function, with arguments: data as input do, and text where LiveCodeBench says so."""
    functional = test.get("testtype") == "functional"
    return "args" in test or functional or bool(entry_point and not isinstance(test.get("input", ""), str))


def call_of_input(test: dict) -> dict:
    """A test of {"input", "output"} as one of a call."""
    given, output = test["input"], test["output"]
    if isinstance(given, str):  # a line of JSON for each argument
        return {"args": [*map(loaded, given.split("\n"))], "expected": loaded(output)}
    called = {"args": [], "kwargs": given} if isinstance(given, dict) else {"args": given}
    return {"args": [given], **(called if isinstance(given, list | dict) else {}), "expected": output}


def read_source(tests: list[str], entry_point: str | None) -> Plan:
    """Python tests; where all are asserts of calls with literals, as those calls."""
    statements, imports = [], FromProgram()
    for number, source in enumerate(tests):
        try:
            statements += imports.visit(parse_python(source)).body
        except BROKEN as error:
            if "integer string conversion" in str(error):  # a long number: the judge can read it
                return Plan("python", tests, 1)
            raise BadTests(f"test {number}: got {source[:80]!r}: {error}; expected Python source") from None
    lifted = [lift_assert(statement) for statement in statements if not isinstance(statement, ast.Pass)]
    names = {case[0] for case in lifted if case}
    built_in = {name for name in names if hasattr(builtins, name)} - {entry_point}
    if all(lifted) and not (built_in and (entry_point or names - built_in)):  # else the judge decides whose each is
        return Plan("calls", lifted, len(lifted))
    whole = ast.Module(statements, [])
    unfit = unjudged(whole)
    return Plan("python", tests, count_of_asserts(whole, entry_point), unfit)


def separate_plans(plan: Plan) -> list[Plan]:
    """A plan for each test, or the plan itself where its tests are more than asserts and imports."""
    if plan.kind != "python":
        return [Plan(plan.kind, [case], 1) for case in plan.cases]
    try:
        tree = parse_python("\n".join(plan.cases))
        asserts = [ast.unparse(statement) for statement in tree.body if isinstance(statement, ast.Assert)]
        imports = [ast.unparse(statement) for statement in tree.body if isinstance(statement, IMPORTS)]
    except BROKEN:
        return [plan]
    named = any(isinstance(node, ast.NamedExpr) for node in ast.walk(tree))
    if named or len(asserts) + len(imports) < len(tree.body):
        return [plan]
    return [Plan("python", [*imports, statement], 1) for statement in asserts]


def lift_assert(statement: ast.stmt) -> tuple | None:
    """Turn `assert f(literals) == literal` into a call with its result; None for anything else."""
    try:
        call, (operator,), (expected,) = statement.test.left, statement.test.ops, statement.test.comparators
        if not isinstance(operator, ast.Eq):
            return None
        args = [encode(ast.literal_eval(item)) for item in call.args]
        kwargs = {item.arg: encode(ast.literal_eval(item.value)) for item in call.keywords}
        return call.func.id, args, kwargs, encode(ast.literal_eval(expected)), "=="
    except (AttributeError, TypeError, ValueError, RecursionError, MemoryError):
        return None


def pair_up(tests: dict) -> list:
    """The form of APPS and CodeContests, {"inputs", "outputs", "fn_name"}, as a list of tests and the name."""
    inputs, outputs = (tests.get(f"{side}s", tests.get(side)) for side in ("input", "output"))
    name = tests.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise BadTests(f"got tests with the keys {sorted(tests)}; expected inputs and outputs, lists of one length")
    if name:
        return [*({"args": a, "expected": b, "apps": True} for a, b in zip(inputs, outputs, strict=True)), name]
    return [*({"input": a, "output": b} for a, b in zip(inputs, outputs, strict=True)), None]


def read_call(number: int, test, entry_point: str | None) -> tuple:
    """One test of the form of a call, as (function, args, kwargs, expected)."""
    if isinstance(test, list | tuple) and len(test) == 2:
        test = {"args": test[0] if isinstance(test[0], list | tuple) else [test[0]], "expected": test[1]}
    if not isinstance(test, dict) or "expected" not in test:
        form = '{"args", "expected"}, (args, expected), {"input", "output"}'
        raise BadTests(f"test {number}: got {brief(test)}; expected {form} or Python source, the same for all tests")
    name = test.get("function") or entry_point
    if not isinstance(name, str) or not name.isidentifier():
        raise BadTests(f"test {number}: got no function to call ({brief(name)}); try entry_point or a key 'function'")
    args, kwargs = test.get("args", []), test.get("kwargs") or {}
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise BadTests(f"test {number}: got args {brief(args)} and kwargs {brief(kwargs)}; expected a list and a dict")
    wrapped = test.get("apps") and isinstance(test["expected"], list) and len(test["expected"]) == 1
    mode = "wrapped" if wrapped else "same"  # APPS puts each result in a list, LiveCodeBench does not
    try:
        kwargs = {key: encode(item) for key, item in kwargs.items()}
        return name, [encode(item) for item in args], kwargs, encode(test["expected"]), mode
    except (TypeError, ValueError) as error:
        raise BadTests(f"test {number}: {error}; expected arguments and results of plain data") from None


# --------------------------------------------------------------------------- answers (src/programs/sandbox/answers.py)

FENCE = re.compile(r"([ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]*+)?+)(.*?)(?<![`~])(`{3,}+|~{3,}+)[ \t]*([^`~]*)")
PYTHON = re.compile(r"(?i)\{?\.?(?:i?python|py)[\d.]*\b(?!-)")
CODE_LINE = re.compile(r"(?m)^(?:@|def |async def |class |import |from [\w.]+ import |\w+ = )")
MARK = re.compile(r"(?m)^\[(?:(BEGIN|PYTHON)|DONE|/PYTHON)\][ \t]*$")  # fences of MBPP and Code Llama
FUTURE = re.compile(r"(?m)^from __future__ import .*$")
LEETCODE = """
from typing import Any, Callable, Dict, Iterable, Iterator, List, Literal, Optional, Sequence, Set, Tuple, Union
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from itertools import accumulate, chain, combinations, groupby, pairwise, permutations, product, zip_longest
from bisect import bisect, bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from math import ceil, comb, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
"""  # what its methods of Solution may use without an import


@dataclass
class Part:
    """A fenced block of an answer with its label, or, with the label None, the text between two.

    Attributes:
        defined, imported, needed: as source_names says.
    """

    label: str | None
    text: str
    closed: bool = False

    def __post_init__(self):
        self.is_python = bool(PYTHON.match(self.label or ""))
        self.is_fenced = self.is_python or self.label == ""
        if self.label is None and not is_valid(self.text):
            start = CODE_LINE.search(self.text)
            self.text = self.text[start.start() :] if start else ""
        if not self.closed:  # cut off, or followed by words
            self.text = valid_beginning(self.text)
        elif not is_valid(self.text) and is_valid(dedented := textwrap.dedent(self.text)) and CODE_LINE.match(dedented):
            self.text = dedented
        self.defined, self.imported, self.needed = source_names(self.text)


def is_valid(source: str) -> bool:
    try:
        return bool(parsed(source))
    except BROKEN:
        return False


def valid_beginning(source: str, least: int = 0) -> str:
    """The lines of a source before those that are no Python, but `least` lines at least; all of it if none are."""
    lines = source.split("\n")
    for _ in range(10):
        try:
            parsed("\n".join(lines))
            return "\n".join(lines)
        except SyntaxError as error:
            lines = lines[: max((error.lineno or 1) - 1, 0)]
        except BROKEN:
            break
        if not any(map(str.strip, lines[least:])):
            break
    return source


def source_names(source: str) -> tuple[set, set, set]:
    """The names that a source defines at its top level or as methods of Solution, imports there, and needs besides."""
    try:
        table = symtable.symtable(source if parsed(source) else "", "model_program.py", "exec")
    except BROKEN:
        return set(), set(), set()
    needed, tables, symbols = set(), [table], table.get_symbols()
    defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
    imported = {symbol.get_name() for symbol in symbols if symbol.is_imported()}
    while tables:
        inner = tables.pop()
        tables += inner.get_children()
        symbols = [symbol for symbol in inner.get_symbols() if symbol.is_referenced()]
        needed |= {symbol.get_name() for symbol in symbols if symbol.is_global() or inner is table}
        if inner.get_name() == "Solution":
            defined |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_assigned()}
    return defined, imported, needed - defined - imported - vars(builtins).keys()


def parts_of(text: str) -> list[Part]:
    """The fenced blocks of a text and what stands between them, in order.

    A bare fence may close a block as far as it is not indented further than the block, as one in a docstring is; a
    fence labelled as Python opens one wherever it stands.
    """
    parts, lines, label, mark, indent = [], [], None, "", 0
    for line in text.split("\n"):
        fence = FENCE.fullmatch(line.rstrip())
        margin, before, ticks, info = fence.groups() if fence else ("", "", "", "")
        near = fence and (label is None or before or len(margin) <= indent + 3)
        opens = near and (PYTHON.match(info) or (label is None and not before))
        closes = near and label is not None and not info and ticks.startswith(mark) and not set(before) & set("'\"#")
        if not (opens or closes):
            lines.append(re.sub(rf"^[ \t]{{0,{indent}}}", "", line))
            continue
        if before.strip():
            lines.append(margin[indent:] + before)
        parts.append(Part(label, "\n".join(lines), bool(closes)))
        lines, label, mark, indent = [], None, "", 0
        if opens:
            label, mark, indent = info.strip().lower(), ticks, len(margin)
    return [part for part in [*parts, Part(label, "\n".join(lines))] if part.text.strip()]


def tested_names(tests, entry_point: str | None) -> set[str]:
    """The names of the program that its tests use; none where they run it as a script."""
    if isinstance(tests, dict):
        return {tests["fn_name"]} if tests.get("fn_name") else set()
    tests = [tests] if isinstance(tests, str) else tests or []
    if any(isinstance(test, dict) for test in tests):
        return {
            name for test in tests if (name := test.get("function") or (is_call(test, entry_point) and entry_point))
        }
    if entry_point:
        return {entry_point.rpartition(".")[2]}
    if not all(isinstance(test, str) for test in tests):
        return set()
    try:
        source = ast.unparse(FromProgram().visit(parse_python("\n".join(tests))))
    except BROKEN:
        return set()
    return source_names(source)[2]


def definitions(source: str, needed: set, allowed: set | None = None) -> list[str]:
    """The statements of a source that define needed names, and what these need in turn; star imports in any case.

    `needed` loses the names defined here and gains what these need; statements but imports define `allowed` ones only.
    """
    try:
        statements = parsed(source).body
    except BROKEN:
        return []
    waiting, kept = [], {}
    for place, statement in enumerate(statements):
        if isinstance(statement, ast.Expr):
            continue
        imports, text = isinstance(statement, IMPORTS), ast.unparse(statement)
        if imports and (statement.names[0].name == "*" or getattr(statement, "module", "") == "__future__"):
            kept[place] = text
            continue
        defined, imported, more = source_names(text)
        waiting.append((place, text, imported | (defined if allowed is None else defined & allowed), more))
    while chosen := [item for item in waiting if item[2] & needed]:
        for place, text, _, more in chosen:
            kept[place] = text
            needed |= more
        for _, _, defined, _ in chosen:
            needed -= defined
        waiting = [item for item in waiting if item[0] not in kept]
    return [kept[place] for place in sorted(kept)]


def other_classes(source: str, tested: set) -> set[str]:
    """The classes of a source that are not under test: tests may pass objects of them to the program."""
    with contextlib.suppress(*BROKEN):
        classes = [part for part in parsed(source).body if isinstance(part, ast.ClassDef)]
        return {part.name for part in classes if not tested & source_names(ast.unparse(part))[0]}
    return set()


def stub_of(source: str, name: str) -> str:
    """A source up to the end of a function without body that it ends with; "" where there is none."""
    if not re.search(rf"(?m)^(?:async )?def {re.escape(name)}\b", source):
        return ""
    try:
        function = parsed(source).body[-1]
    except BROKEN:
        return "" if is_valid(source) else source  # `def f(x):` and nothing else
    if getattr(function, "name", "") != name:
        return ""
    body, lines = function.body, source.split("\n")
    last = body[-1]
    if last.lineno > function.lineno and (isinstance(last, ast.Pass | ast.Raise) or ast.unparse(last) == "..."):
        body, lines[last.lineno - 1 :] = body[:-1], [""]
    docstring = (isinstance(getattr(s, "value", None), ast.Constant) or isinstance(s, IMPORTS) for s in body)
    return "\n".join(lines) if all(docstring) else ""


def continued(stub: str, body: str) -> str:
    """Join a function's head and the answer that continues it; "" if the result is not Python."""
    for rest in (body, textwrap.indent(body, "    ")):
        indented = rest.lstrip("\n")[:1] in (" ", "\t") or not stub.endswith("\n")
        program = valid_beginning(stub + rest, least=stub.count("\n"))
        if indented and is_valid(program):
            return program
    return ""


def main_part(parts: list[Part], tested: set) -> Part | None:
    """The last part that defines what is tested, blocks first; of scripts, one that reads stdin, say."""
    for pool in ([part for part in parts if part.is_fenced], parts if tested else []):
        ranks = [len(part.defined & tested) for part in pool]
        if not tested:
            ranks = [(bool(READS_STDIN.search(p.text)), p.is_python, "print" in p.text) for p in pool]
        best = max(ranks, default=0)
        if best:
            return pool[len(pool) - 1 - ranks[::-1].index(best)]
    return None


def text_of_prompt(prompt) -> str:
    """The text of a prompt: a string, or the contents of chat messages."""
    messages = prompt if isinstance(prompt, list) else [{"content": prompt}]
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def program_of(text: str, tests=None, entry_point: str | None = None, setup: str = "", prompt="") -> str:
    """Return the program in an answer: the one rule of the rewards and the evaluation of this bundle.

    It is the last block that defines what the tests use, else the last block of Python, else the last without label,
    else the text. Definitions that it needs come from the other blocks; the imports and helpers of the prompt's code
    and of `setup` belong to it too. An answer that is only the body of the prompt's function goes on with that.
    Thinking is left out; a fence that is missing, stray or labelled otherwise costs nothing.

    Args:
        tests, entry_point: as in run_code.
        setup: imports and helpers that the prompt, text or messages, shows. Of other definitions only those whose names
            are in the prompt are taken, where that is known: a reference solution stays out of the program's reach.

    >>> program_of("```python\\ndef f(x):\\n    return x\\n```\\n```python\\nprint(f(2))\\n```", "assert f(1) == 1")
    'def f(x):\\n    return x'
    """
    text, shown = visible(without_end_tokens((text or "").replace("\r\n", "\n"))), text_of_prompt(prompt)
    text = MARK.sub(lambda mark: "```python" if mark[1] else "```", text)
    if not text.strip():
        return ""
    tested, parts = tested_names(loaded_tests(tests), entry_point), parts_of(text)
    best = main_part(parts, tested)
    sources = [setup or "", *(part.text + "\n" for part in parts_of(shown) if part.defined & tested)]
    if best is None or (tested and not best.defined & tested):
        fenced = [part.text for part in parts if part.is_fenced]
        stubs = filter(None, (stub_of(source, name) for source in [setup or "", shown, *sources] for name in tested))
        body = fenced[-1] if fenced else text
        if program := next(filter(None, (continued(stub, body) for stub in stubs)), ""):
            return program
    if best is None:
        named = [part for part in parts if part.is_python] or [part for part in parts if part.label == ""]
        if not named:
            return "" if any(part.label is not None for part in parts) else text
        best = named[-1]
    needed = (best.needed | tested | other_classes(setup or "", tested)) - best.defined - best.imported
    helpers = [piece for part in parts if part is not best for piece in definitions(part.text, needed)]
    needed -= tested
    sources += [LEETCODE] if "Solution" in best.defined else []
    allowed = {*re.findall(r"\w+", shown)} if shown else None
    pieces = [*(piece for source in sources for piece in definitions(source, needed, allowed)), *helpers]
    program = "\n\n".join([*pieces, best.text])
    future = dict.fromkeys(FUTURE.findall(program)) if pieces else {}
    return "\n".join([*future, FUTURE.sub("", program)]) if future else program


# ------------------------------------------------------------------------- run code (src/programs/sandbox/run_code.py)

MAX_REPORT = 4 << 20  # bytes of what a judge says of all tests
SMALL_RESULT = 64 << 10  # bytes of a result that the caller reads itself, in a fraction of a second whatever they say
MOST_TIMEOUTS = 10  # of tests that are each alone: a program that hangs in all of many must not hold up the caller
START_S = 60  # seconds a process may take to start
JUDGE_MB = 512  # MiB that a judge may add, at least
NO_ANSWER = {"passed": 0, "total": 0, "results": [], "unfit": False, "trusted": True, "ended": ""}


@dataclass
class Verdict:
    """What the tests say of a program.

    Attributes:
        passed, total: numbers of tests.
        status: ok, failed, timeout, memory, output_limit, error or syntax_error: why it is not ok;
            no_tests: the tests assert nothing; invalid_tests: they share surroundings with the program (see
            `unjudged`), or fail only where they need a fixture or a missing module, compare objects of the program,
            combine one with plain data, or pass it functions that read other names.
        trusted: False where the tests used the program's constants or functions to judge results: it could then forge
            the verdict.
        results: for each test (the first 1,000) its `test` (number or line), `passed` and `detail`.
        detail: the first thing that went wrong.
        wall_s: seconds it took.
    """

    passed: int = 0
    total: int = 0
    status: str = "failed"
    trusted: bool = True
    results: list = field(default_factory=list)
    detail: str = ""
    wall_s: float = 0.0

    @property
    def all_passed(self) -> bool:
        return self.total > 0 and self.passed == self.total and self.status == "ok"

    @property
    def usable(self) -> bool:
        """Whether the tests can judge a program; else a reward does not apply."""
        return self.status not in ("no_tests", "invalid_tests")

    @property
    def fraction(self) -> float:
        """Share of the tests that passed, 0 without tests."""
        return self.passed / self.total if self.total else 0.0


def run_code(
    code: str,
    tests,
    *,
    entry_point: str | None = None,
    setup: str = "",
    timeout_s: float = 3.0,
    total_timeout_s: float | None = None,
    memory_mb: int = 512,
    output_mb: int = 8,
    strict: bool = False,
    stop_at_first_failure: bool = False,
    each_alone: bool = False,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """Run a program against tests and return the verdict; whatever the program does, this returns in time.

    In time: within total_timeout_s and the moments it takes to end the processes. Where a result is above 64 KiB,
    all calls are made once more, with a judge, in as much time again.

    Args:
        code: Python source, not trusted.
        tests: one of
            Python source or a list of it: asserts (each counts as a test), `def check(candidate)` as in HumanEval,
            `def test_…()`, unittest.TestCase; the program's names can be used in it;
            a list of {"args": […], "kwargs": {…}, "expected": value, "function": name} or of pairs (args, expected),
            which without an entry_point call the last function that no other function of the program uses;
            a list of {"input": text on stdin, "output": text on stdout}, or of pairs of such texts without an
            entry_point; each is a run of the program as a script, or
            with an entry_point and other data than text, or "testtype": "functional" (LiveCodeBench), a call;
            {"inputs": […], "outputs": […], "fn_name": name or absent} as in APPS.
        entry_point: the function under test; also found as a method of a class `Solution`.
        setup: trusted source that the tests see and the program does not: imports, helpers, classes, objects that it
            makes by the program's classes.
        timeout_s: seconds a test may take; a timeout ends the run and the tests left count as failed.
        total_timeout_s: seconds all tests may take together, from when a process has started (default: timeout_s for
            each, but at least for four and at most for ten).
        memory_mb: MiB of address space the program may add to those its process begins with (RLIMIT_AS, on Linux): the
            heap, imported modules, mapped files, 8 MiB for the stack of each thread. Not counted: up to 64 MiB of files
            in its folder, and what it prints.
        output_mb: MiB that one result may have as JSON, that one run may print, and that one file may have. More is an
            `output_limit`.
        strict: raise SandboxError unless programs are kept from network and files.
        stop_at_first_failure: run no test after one that failed; those left count as failed.
        each_alone: each call, run as a script or assert gets a new process and limits of its own, total_timeout_s too,
            so that a timeout or exit fails that test only; none is run after ten timeouts. Other Python tests share
            names and so one process.
        sandbox: a Sandbox of your own instead of the shared one.

    Raises:
        BadTests: the tests cannot be used.
        ValueError: a limit is not a finite number above 0.
        SandboxError: no sandbox here, or not as strict as asked.

    >>> run_code("def double(x):\\n    return 2 * x", "assert double(4) == 8", entry_point="double").all_passed
    True
    """
    started = time.monotonic()
    check_limits(timeout_s=timeout_s, total_timeout_s=total_timeout_s, memory_mb=memory_mb, output_mb=output_mb)
    if (entry_point or "").startswith("Solution"):  # LeetCode's `Solution().twoSum`
        entry_point = entry_point.rpartition(".")[2]
    code = code or ""
    plan = read_tests(tests, entry_point, code)
    if plan.unfit:
        return Verdict(total=plan.least, status="invalid_tests", detail=plan.unfit)
    if not plan.cases or not code.strip():
        status, detail = ("error", "the program is empty") if plan.cases else ("no_tests", "there are no tests")
        return Verdict(total=len(plan.cases), status=status, detail=detail)
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "result_bytes": output_mb << 20}
    limits["stops"] = stop_at_first_failure
    run = {"stdin": run_stdin_tests, "calls": run_calls, "python": run_judged}[plan.kind]
    plans, verdicts = separate_plans(plan) if each_alone else [plan], []
    for part in plans:
        limits["total_s"] = total_timeout_s or timeout_s * min(max(part.least, 4), 10)
        verdicts.append(on_a_server(sandbox or DEFAULT, strict, limits, run, code, part, entry_point, setup))
        timeouts = sum(verdict.status == "timeout" for verdict in verdicts)
        if timeouts == MOST_TIMEOUTS or (stop_at_first_failure and not verdicts[-1].all_passed):
            break
    verdict = verdicts[0] if len(plans) == 1 else united(verdicts, len(plans))
    verdict.wall_s = time.monotonic() - started
    return verdict


def united(verdicts: list[Verdict], total: int) -> Verdict:
    """One verdict of those on single tests; those not run have failed. If a usable one has failed, it is usable."""
    failed = [verdict for verdict in verdicts if not verdict.all_passed]
    first = max(failed or verdicts, key=lambda verdict: verdict.usable)
    results = [result | {"test": i} for i, verdict in enumerate(verdicts[:1000]) for result in verdict.results[:1]]
    trusted = all(verdict.trusted for verdict in verdicts)
    return Verdict(len(verdicts) - len(failed), total, first.status, trusted, results, first.detail)


def program_output(
    code: str,
    stdin: str = "",
    *,
    timeout_s: float = 3.0,
    memory_mb: int = 512,
    sandbox: Sandbox | None = None,
) -> tuple[str, str]:
    """Run a program as a script and return what it printed and what went wrong ("" for nothing).

    For tools that show a model what its program says; to judge a program, use run_code. Arguments as of run_code.

    >>> program_output("print(6 * 7)")
    ('42\\n', '')
    """
    check_limits(timeout_s=timeout_s, memory_mb=memory_mb)
    limits = {"timeout_s": timeout_s, "total_s": 2 * timeout_s, "memory_mb": memory_mb, "result_bytes": 1 << 20}
    return on_a_server(sandbox or DEFAULT, False, limits, script_output, code, stdin)


def check_limits(**limits: float | None) -> None:
    """Raise ValueError for a limit that is given and not a finite number above 0."""
    for name, value in limits.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"got {name} {value}; expected a finite number above 0; try leaving it out")


def on_a_server(sandbox: Sandbox, strict: bool, limits: dict, run, *given):
    """What `run` returns; once more by a new fork server where the one that there is goes away meanwhile."""
    for again in (False, True):
        check_isolation(sandbox, strict)
        server = sandbox.server
        try:
            return run(sandbox, {**limits, "deadline": time.monotonic() + limits["total_s"]}, *given)
        except ServerGone:  # the program is not to blame
            if again:
                raise
            with sandbox.lock:
                if sandbox.server is server:
                    sandbox.stop()


def run_stdin_tests(sandbox: Sandbox, limits: dict, code: str, plan: Plan, *_) -> Verdict:
    """Run the program once for each (input, expected output); a timeout ends the run."""
    results = []
    for number, (given, expected) in enumerate(plan.cases):
        printed, detail = "", timeout_text(limits)
        if time.monotonic() < limits["deadline"]:
            printed, detail = script_output(sandbox, limits, code, given)
        if not detail and not same_output(expected, printed):
            detail = f"printed {printed[:200]!r}, expected {expected[:200]!r}"
        results.append({"test": number, "passed": not detail, "detail": detail})
        if detail.startswith("timeout") or (detail and limits["stops"]):
            break
    passed = sum(result["passed"] for result in results)
    return conclude(NO_ANSWER | {"passed": passed, "total": len(plan.cases), "results": results}, {}, plan, limits)


def process_limits(limits: dict) -> dict:
    """The part of the limits that the server sets."""
    cpu_s = math.ceil(limits["total_s"]) + 1
    return {"memory_mb": limits["memory_mb"], "cpu_s": cpu_s, "file_bytes": limits["result_bytes"]}


def await_start(process: Process, limits: dict) -> None:
    """Wait until a process has started: the limits count from then on."""
    began = time.monotonic()
    try:
        with contextlib.suppress(Died, ConnectionError):  # it has ended, which is reported elsewhere
            receive_frame(process.channel, began + START_S)
    except TimeoutError:
        raise SandboxError(f"no process started within {START_S} s") from None
    limits["deadline"] += time.monotonic() - began


def script_output(sandbox: Sandbox, limits: dict, code: str, given: str) -> tuple[str, str]:
    """Run the program as a script; return what it printed and what went wrong, "" for nothing."""
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(anonymous_file()) for _ in range(3))
        stdin.write(given.encode("utf-8", "surrogateescape"))
        stdin.seek(0)
        process = sandbox.spawn("program", process_limits(limits), (stdin, stdout, stderr))
        stack.callback(process.close)
        await_start(process, limits)
        deadline = min(time.monotonic() + limits["timeout_s"], limits["deadline"])
        with contextlib.suppress(OSError):
            process.channel.settimeout(limits["timeout_s"])
            send_frame(process.channel, {"mode": "stdin", "code": code})
        report = process.wait(deadline)
        said, printed = read_back(stderr, 2000), read_back(stdout, limits["result_bytes"])
        size = os.fstat(stdout.fileno()).st_size
    if report is None:
        return printed, timeout_text(limits)
    if report.get("error"):
        raise SandboxError(f"no process could be started: {report['error']}")
    if report.get("problem"):
        return printed, report["problem"]
    if size >= limits["result_bytes"]:
        return printed, f"output limit: more than {limits['result_bytes'] >> 20} MiB printed"
    if report["status"]:
        return printed, said[:500] if report["status"] > 0 and said else end_of(report)
    return printed, ""


def anonymous_file():
    """A file without a name, in memory where there is such a thing."""
    return open(os.memfd_create("sandbox"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def read_back(file, size: int) -> str:
    """The beginning of what a process wrote."""
    file.seek(0)
    return file.read(size).decode("utf-8", "surrogateescape")


def run_calls(sandbox: Sandbox, limits: dict, code: str, plan: Plan, *names) -> Verdict:
    """Call the program's functions and compare small results here, which takes half the time of a run with a judge."""
    process = sandbox.spawn("program", process_limits(limits))
    try:
        await_start(process, limits)
        small = {**limits, "result_bytes": min(SMALL_RESULT, limits["result_bytes"])}
        answer = Judge(process.channel, job_of(code, plan, small, *names)).outcome(Exception)
    finally:
        process.close()
    if answer["ended"].startswith("output limit"):
        return run_judged(sandbox, {**limits, "deadline": time.monotonic() + limits["total_s"]}, code, plan, *names)
    return conclude(answer, process.report or {}, plan, limits)


def run_judged(sandbox: Sandbox, limits: dict, code: str, plan: Plan, *names) -> Verdict:
    """Have a judge run the tests; it calls the program, in a process of its own, by a socket between the two."""
    program_side, judge_side = socket.socketpair()
    judge_limits = {**limits, "memory_mb": max(limits["memory_mb"], JUDGE_MB)}
    with contextlib.ExitStack() as stack:
        process = sandbox.spawn("program", process_limits(limits), channel=program_side)
        stack.callback(process.close)
        judge = sandbox.spawn("judge", process_limits(judge_limits), extra=judge_side)
        stack.callback(judge.close)
        await_start(judge, limits)
        try:
            judge.channel.settimeout(limits["total_s"])
            send_frame(judge.channel, job_of(code, plan, limits, *names))
            answer = receive_frame(judge.channel, limits["deadline"], MAX_REPORT)
        except (TimeoutError, Died, OSError) as error:
            end = "timeout" if isinstance(error, TimeoutError) else "the process of the tests ended"
            answer = NO_ANSWER | {"results": [], "ended": end}
    return conclude(answer, process.report or {}, plan, limits)


def job_of(code: str, plan: Plan, limits: dict, entry_point: str | None, setup: str) -> dict:
    """What a judge is told."""
    server_limits = {name: limits[name] for name in ("timeout_s", "result_bytes", "deadline", "stops")}
    return {
        "code": code,
        "kind": plan.kind,
        "cases": plan.cases,
        "entry_point": entry_point,
        "setup": setup,
        **server_limits,
    }


def conclude(answer: dict, report: dict, plan: Plan, limits: dict) -> Verdict:
    """Make a verdict of what a judge says and how the program's process ended; tests that were not run have failed."""
    results, total, end = answer["results"], answer["total"], answer["ended"]
    if end:
        words = {"timeout": timeout_text(limits), "the process ended": end_of(report)}
        end = report.get("problem") or words.get(end, end)
        results.append({"test": len(results), "passed": False, "detail": end})
        total = max(total + 1, plan.least)
    elif limits["stops"]:
        total = max(total, plan.least)
    is_cut = end or (limits["stops"] and answer["passed"] < total)
    if is_cut and total > plan.least:  # a loop: how many tests would follow is unknown, and exiting must not pay
        answer["passed"] = 0
    detail = end or next((result["detail"] for result in results if not result["passed"]), "")
    status = "ok" if answer["passed"] == total else status_of(detail)
    if answer["unfit"] and status != "ok" and not end:
        status = "invalid_tests"
    if not total and plan.least:  # `for x in f(): assert x` of a program that returns nothing
        total, status, detail = plan.least, "failed", "no assert of the tests was reached"
    elif not total:
        status, detail = "no_tests", "the tests assert nothing"
    return Verdict(answer["passed"], total, status, answer["trusted"], results[:1000], detail)


def end_of(report: dict) -> str:
    """How a process ended, in words."""
    status = report.get("status", 0)
    if status == -signal.SIGXCPU:
        return "timeout: processor time"
    return f"the process ended by signal {-status}" if status < 0 else f"the process ended with status {status}"


def timeout_text(limits: dict) -> str:
    """Which of the two limits was reached."""
    if time.monotonic() >= limits["deadline"]:
        return f"timeout: all tests together took more than {limits['total_s']} s"
    return f"timeout: more than {limits['timeout_s']} s"


def status_of(detail: str) -> str:
    """The status that the first failure's text stands for."""
    signs = {"timeout": "timeout", "MemoryError": "memory", "output limit": "output_limit", "the process": "error"}
    signs.update(dict.fromkeys(("SyntaxError", "IndentationError", "TabError"), "syntax_error"))
    return next((status for sign, status in signs.items() if detail.startswith(sign)), "failed")


def run_many(jobs: list[dict], workers: int | None = None) -> list[Verdict]:
    """Run several programs side by side; each job holds the arguments of run_code. Workers: default one per core.

    Tests that cannot be used give the status invalid_tests and one warning for all: the other jobs go on.
    """
    from concurrent.futures import ThreadPoolExecutor

    unusable = {}

    def run(number: int, job: dict) -> Verdict:
        try:
            return run_code(**job)
        except BadTests as error:
            unusable[number] = error
            return Verdict(status="invalid_tests", detail=f"unusable tests: {error}")

    with ThreadPoolExecutor(workers or available_cores()) as pool:
        verdicts = list(pool.map(run, itertools.count(), jobs))
    if unusable:
        first, bad = min(unusable), len(unusable)
        problem = f"got {bad} of {len(verdicts)} jobs with tests that cannot be used, the first of them job {first}"
        warnings.warn(f"{problem}: {unusable[first]}", RuntimeWarning, stacklevel=2)
    return verdicts


# --------------------------------------------------------------------------- command (src/programs/sandbox/command.py)


def command_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Run an untrusted Python program against tests. Its verdict is JSON on stdout; exit 0 if all tests "
        "pass, 1 if not, 2 for bad input, 3 where the sandbox cannot run.",
        epilog="example: sandbox.py --code program.py --tests tests.py --entry_point solve",
        allow_abbrev=False,
    )
    parser.add_argument("--report", action="store_true", help="print the layers of isolation that this machine offers")
    parser.add_argument("--code", help="file with the program")
    parser.add_argument("--tests", help="its tests: Python source, or .json in one of the forms of run_code")
    parser.add_argument("--entry_point", help="function under test")
    parser.add_argument("--timeout_s", type=float, default=3.0, help="seconds a test may take (default: 3)")
    parser.add_argument("--memory_mb", type=int, default=512, help="MiB of memory a program may add (default: 512)")
    parser.add_argument("--output_mb", type=int, default=8, help="MiB of a result, or printed by a run (default: 8)")
    parser.add_argument("--strict", action="store_true", help="refuse to run without network and file isolation")
    return parser


def run_command(args: argparse.Namespace) -> int:
    """Print the report, or the verdict of the program; return the exit code."""
    if args.report:
        tell(json.dumps(sandbox_report(), indent=2))
        return 0
    if not args.code or not args.tests:
        raise BadTests("got neither --report nor a program with tests; expected --code FILE --tests FILE")
    code, tests = (Path(path).read_text(encoding="utf-8") for path in (args.code, args.tests))
    tests = json.loads(tests) if args.tests.endswith(".json") else tests
    limits = {name: getattr(args, name) for name in ("timeout_s", "memory_mb", "output_mb", "strict")}
    verdict = run_code(code, tests, entry_point=args.entry_point, **limits)
    tell(json.dumps({"all_passed": verdict.all_passed, **asdict(verdict)}))
    return int(not verdict.all_passed)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    argv = ["--" + arg[2:].replace("-", "_") if arg.startswith("--") and "=" not in arg else arg for arg in argv]
    try:
        return run_command(command_flags().parse_args(argv))
    except (BadTests, SandboxError, OSError, ValueError) as error:
        problem = f"got {error.filename}: {error.strerror}; expected a file" if isinstance(error, OSError) else error
        print(f"error: {problem}", file=sys.stderr)
        return 3 if isinstance(error, SandboxError) else 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["--server"]:
        serve(int(sys.argv[2]), ROLES)
    else:
        sys.exit(main())
