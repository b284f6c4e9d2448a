"""Inside a forked process."""

import atexit
import contextlib
import fcntl
import importlib
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

from programs.sandbox.instances import Instances, classes_in
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
from programs.sandbox.limits import LINUX, Died
from programs.sandbox.values import containers, decode, encode, receive_frame, rejoined, send_frame


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
    memory = server.address_space() + (message["memory_mb"] << 20)
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
        except OSError:
            return False

    def start_process():
        if os.fork() == 0:
            os._exit(0)

    try:
        importlib.import_module("colorsys")  # not loaded before
    except ImportError:
        send_frame(channel, {"error": "Python's own files could not be read"})
        return
    if not can(lambda: open("trial", "w").write("x")):
        send_frame(channel, {"error": "the scratch folder could not be written to"})
        return
    send_frame(
        channel,
        {
            "network": can(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9))),
            "files": can(lambda: open("/etc/passwd")),
            "processes": can(start_process),
        },
    )


def fresh_module(name: str) -> types.ModuleType:
    """An empty module under this name, as the program's namespace."""
    sys.modules[name] = module = types.ModuleType(name)
    return module


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
        exec(compile(code, "program.py", "exec", dont_inherit=True), fresh_module("__main__").__dict__)
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
    namespace, kept = fresh_module("program").__dict__, []

    def keep(value) -> int:
        kept.append(value)
        return len(kept) - 1

    instances = Instances(1, keep, lambda number, _: kept[number])

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
        known, names, sent = classes_in(namespace, "program"), call.get("classes", ()), call.get("states", {})
        instances.classes = {name: known[name] for name in names if name in known}
        instances.learn(sent, [int(number) for number in sent])
        given = [decode(item, instances) for item in (*call["args"], *call["kwargs"].values())]
        before = containers(given)
        given = rejoined(given, call.get("same"), before)
        args, kwargs = given[: len(call["args"])], dict(zip(call["kwargs"], given[len(call["args"]) :], strict=True))
        value = operate(call["op"], find(call["target"], namespace, kept), args, kwargs)
        if call.get("asserted") and is_ambiguous(value):
            raise ValueError("the truth value of an array with more than one element is ambiguous")
        instances.mentioned = [instances.objects[int(number)] for number in sent]
        answer = {"value": encode(value, instances if call["objects"] else None)}
        if call["objects"] and before:
            places = {id(item): place for place, item in enumerate(before)}
            answer["args"] = [encode(item, instances) for item in given]
            answer["same"] = [places.get(id(item), -1) for item in containers([*given, value])]
        return {**answer, "states": instances.states()}

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


def find(target, namespace: dict, kept: list):
    """The object a call is about: one kept from before, a global name, or a method of the program's class Solution."""
    if target is None or isinstance(target, int):
        return None if target is None else kept[target]
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


def operate(operation: str, value, args: list, kwargs: dict):
    """Perform one operation of the judge on a value."""
    operations = {
        "call": lambda: value(*args, **kwargs),
        "attribute": lambda: getattr(value, *args),
        "list": lambda: [item for item, _ in zip(value, range(100_000), strict=False)],
        "get": lambda: value,
        "next": lambda: next_of(value),
        "enter": lambda: type(value).__enter__(value),
        "exit": lambda: type(value).__exit__(value, None, None, None),
        "await": lambda: awaited(value),
        "item": lambda: value[args[0]],
        "contains": lambda: args[0] in value,
        "isinstance": lambda: isinstance(args[0], value),
        "issubclass": lambda: issubclass(value, *args),
        "operator": lambda: getattr(operator, args[0])(value, *args[1:]),
        "set": lambda: setattr(value, *args),
        "function": lambda: types.FunctionType(marshal.loads(args[0]), {}, None, tuple(args[1] or ())),
        "put": lambda: value.__setitem__(*args),
        "delete": lambda: value.__delitem__(*args),
        **{kind.__name__: lambda kind=kind: kind(value) for kind in (len, str, repr, bool, int, float)},
    }
    return operations[operation]()
