"""Messages between the processes: a length, then JSON; open files travel with the first byte."""

import json
import socket
import struct
import time

from programs.sandbox.limits import MAX_FRAME, Died

INVALID = "the process sent no valid message"


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
