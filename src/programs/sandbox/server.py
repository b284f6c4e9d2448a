"""The fork server: forks a process for each job, under all layers, and reports how it ended."""

import builtins
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from dataclasses import dataclass

from programs.sandbox.confinement import run_child
from programs.sandbox.kernel import (
    PR_SET_PDEATHSIG,
    PR_SET_SUBREAPER,
    SOME_ID,
    landlock_abi,
    landlock_rules,
    libc_call,
    new_root,
    prctl,
    readable_paths,
    seccomp_program,
)
from programs.sandbox.messages import LINUX, NAMESPACES, SCRATCH, Died, receive_exactly, receive_frame, send_frame

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
