"""The caller's side of the fork server: start it, ask it for processes, learn how they ended."""

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

from programs.sandbox.messages import LAYERS, Died, SandboxError, ServerGone, receive_frame, send_frame


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
