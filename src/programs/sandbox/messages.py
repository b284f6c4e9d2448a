"""What all processes share: names of the layers, exceptions, and the messages they send each other."""

import json
import socket
import struct
import sys
import time

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
