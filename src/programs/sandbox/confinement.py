"""Put a forked process under all layers, before any foreign code runs in it."""

import contextlib
import fcntl
import importlib
import os
import resource
import signal
import socket

from programs.sandbox.kernel import enter_seccomp, give_up_privileges, kernel_call, landlock_rules
from programs.sandbox.messages import LINUX, send_frame


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
