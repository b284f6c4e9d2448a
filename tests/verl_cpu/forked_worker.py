"""Start Ray's workers by fork from one process that has imported torch and the like: 1 s of CPU each instead of 8.

    python forked_worker.py --serve SOCKET   # imports once, says "ready", forks on demand, ends with its standard input
    ray_kwargs.ray_init.runtime_env.py_executable='python -I -S .../forked_worker.py SOCKET'

Ray starts the second command in place of `python default_worker.py ...`; it hands its arguments, environment, folder
and output to the server, whose fork becomes the worker, and waits. Where no server answers it runs Python itself.
"""

import json
import os
import runpy
import signal
import socket
import sys

# what verl imports, but not Ray: its core reads the environment once, when it is loaded, and each worker has its own
IMPORTED = (
    "torch torch._dynamo torch.distributed.fsdp torch.distributed.checkpoint tensordict torchdata.stateful_dataloader "
    "transformers.models.llama.modeling_llama accelerate peft datasets pandas fastapi hydra pydantic aiohttp uvicorn "
    "cachetools msgspec zmq psutil requests"
)


def become_worker(connection):
    """Take over what the client sent, in a new process, and run the worker's script."""
    os.setsid()  # Ray kills a worker's whole process group at the end
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    order = json.loads(message)
    for target, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = order["arguments"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    sys.path[1:1] = [part for part in os.environ.get("PYTHONPATH", "").split(":") if part and part not in sys.path]
    runpy.run_path(sys.argv[0], run_name="__main__")


def serve(path):
    """Import, then fork for every connection until standard input closes."""
    for name in IMPORTED.split():
        __import__(name)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: the kernel buries them
    print("ready", flush=True)
    import select

    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            return become_worker(connection)
        connection.close()


def ask(path, arguments):
    """Have the server fork a worker with these arguments, and wait for its end."""
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(path)
    except OSError:
        os.execv(sys.executable, [sys.executable, *arguments])
    order = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    socket.send_fds(client, [json.dumps(order).encode()], [1, 2])
    client.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        ask(sys.argv[1], sys.argv[2:])
