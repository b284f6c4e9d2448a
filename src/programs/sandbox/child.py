"""Inside a forked process."""

import atexit
import builtins
import contextlib
import fcntl
import importlib
import inspect
import marshal
import operator
import os
import resource
import signal
import socket
import struct
import sys
import threading
import types

from programs.sandbox.judge import awaited, run_judge
from programs.sandbox.kernel import (
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    enter_seccomp,
    kernel_call,
    landlock_rules,
    prctl,
)
from programs.sandbox.messages import LINUX, Died, receive_frame, send_frame
from programs.sandbox.values import SharedObjects, classes_in, decode, encode


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
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_DUMPABLE, 0)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        if uid is None:  # else they went with the user
            kernel_call(126, struct.pack("Ii", 0x20080522, 0), bytes(24))  # capset: none left
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
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, OSError):
            pass  # not on this system, or already lower


def run_child(server, message: dict, fds: list[int], uid: int | None, scratch: str) -> None:
    """Main function of a forked process: arrange its files, confine it, do its part.

    It keeps stdin, stdout and stderr as 0, 1, 2 and its sockets from 3 on.
    """
    signal.set_wakeup_fd(-1)
    null = os.open("/dev/null", os.O_RDWR)
    channel, *streams, _, extra = [*fds, -1][:6]
    kept = [fd if fd >= 0 else null for fd in streams] + [fd for fd in (channel, extra) if fd >= 0]
    for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 512) for fd in kept]):  # above what is overwritten
        os.dup2(fd, place)
    channels = [socket.socket(fileno=place) for place in range(3, len(kept))]
    confine(server, message, uid, scratch, len(kept))
    del server
    {"trial": try_out, "program": run_program, "judge": run_judge}[message["role"]](*channels)


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


def parameters_of(function) -> list[tuple]:
    """(name, kind, {"default": value} or {}) of each parameter of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, int(p.kind), {} if p.default is p.empty else {"default": p.default}) for p in parameters]


OPERATIONS = {  # which the judge may ask for, besides functions of `operator` and built-in ones
    "get": lambda value: value,
    "items": lambda value: [item for item, _ in zip(value, range(100_000), strict=False)],
    "next": next_of,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
    "await": awaited,
    "has_instance": lambda value, other: isinstance(other, value),
    "signature": parameters_of,
}
