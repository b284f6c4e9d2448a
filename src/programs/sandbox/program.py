"""The program's process: runs model code as a script, or as a module whose functions the judge calls."""

import atexit
import builtins
import contextlib
import marshal
import operator
import os
import socket
import sys
import threading
import types

from programs.sandbox.judge import awaited, run_judge
from programs.sandbox.messages import Died, receive_frame, send_frame
from programs.sandbox.values import SharedObjects, classes_in, decode, encode


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
