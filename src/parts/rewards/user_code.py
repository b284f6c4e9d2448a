"""What a reward gets: texts, copies of the columns, and a process state of its own."""

import builtins
import contextlib
import gc
import io
import json
import locale
import logging
import math
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator


def visible_text(tokenizer, ids: list[int], eos_ids) -> str:
    """The text of sampled ids without the end tokens and pads at their end.

    Special tokens before that stay visible: a policy that writes `<|user|>` into its answer has to be seen doing so.
    """
    ends, length = {*eos_ids, tokenizer.eos_token_id, tokenizer.pad_token_id}, len(ids)
    while length and ids[length - 1] in ends:
        length -= 1
    return tokenizer.decode(ids[:length], skip_special_tokens=False)


def text_of_turns(completion) -> str:
    """The text of a completion or prompt, a string or messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def user_text(prompt) -> str:
    """What the model was asked: a string prompt, or the last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def text_of_answers(completion) -> str:
    """The text of a completion; of a conversation what the model said, without tools' results and replies."""
    if isinstance(completion, str):
        return completion
    return text_of_turns([message for message in completion if message.get("role", "assistant") == "assistant"])


def trial_texts(gold: str) -> list[str]:
    """Completions that rewards of all kinds tell apart."""
    right = [gold, f"#### {gold}", f"so it is \\boxed{{{gold}}}", f"<answer>{gold}</answer>", f"first\n{gold}"]
    return [*right, f"The answer is {gold}.", f"{gold} or not", "41", "", "nothing"]


def own_copy(value):
    """A copy of a column's value or of a prompt, as far as a reward could change it; other values as they are."""
    if isinstance(value, list):
        return [item if isinstance(item, str | int | float) else own_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()}
    return value.copy() if isinstance(value, set) or hasattr(value, "tolist") else value


def reward_arguments(rows: list[dict], completions: list, completion_ids: list[list[int]]) -> dict:
    """Keyword arguments of a reward function in TRL's shapes; a column absent from a row is None there.

    Completions are texts, or the messages of conversations, which stay as they are. Each completion has its own copies,
    so that a reward which changes them changes nothing for others.
    """
    columns = {name: None for row in rows for name in row["columns"]}
    return {
        "prompts": [own_copy(row["prompt"]) for row in rows],
        "completions": [
            [{"role": "assistant", "content": said}]
            if isinstance(said, str) and not isinstance(prompt, str)
            else own_copy(said)
            for prompt, said in zip([row["prompt"] for row in rows], completions, strict=True)
        ],
        "completion_ids": [[*ids] for ids in completion_ids],
        **{name: [own_copy(row["columns"].get(name)) for row in rows] for name in columns},
    }


PATCHABLE = (builtins, io, json, math, os, os.path, random, shutil, time)


def put_folder(folder: str) -> None:
    """Go to a folder, where it is still there."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


def put_environment(variables: dict) -> None:
    """Give the environment these variables and no others."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def stream_of(name: str) -> tuple:
    """sys.stdout or sys.stderr, and whether it is closed."""
    stream = getattr(sys, name)
    return stream, getattr(stream, "closed", False)


def put_stream(name: str, stream, closed: bool) -> None:
    """Have sys.stdout or sys.stderr back, also where it was closed meanwhile."""
    if getattr(stream, "closed", False) and not closed:
        stream = open({"stdout": 1, "stderr": 2}[name], "w", buffering=1, encoding="utf-8", closefd=False)
    setattr(sys, name, stream)


def put_filters(filters: list) -> None:
    """Have the warnings filtered so."""
    warnings.filters[:] = filters
    getattr(warnings, "_filters_mutated", bool)()


def umask() -> int:
    """The mode bits that new files do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def handlers() -> dict:
    """The handlers of the signals by which a run is stopped."""
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def put_handlers(found: dict) -> None:
    """Have these handlers again; only the main thread can change them."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in found.items():
            signal.signal(number, handler)


def put_attributes(modules: dict) -> None:
    """Undo what was patched in these modules; names that are new there stay."""
    for module, names in modules.items():
        now = vars(module)
        for name, value in names.items():
            if now.get(name, names) is not value:
                setattr(module, name, value)


def states_of_process() -> dict:
    """{name: (how to take it, how to put it back, and of some libraries what it is at first)} of what there is once."""
    found = {
        "folder": (lambda: os.getcwd() if os.path.exists(".") else "", put_folder),
        "environment": (os.environ.copy, put_environment),
        "path": (sys.path.copy, lambda path: sys.path.__setitem__(slice(None), path)),
        "arguments": (sys.argv.copy, lambda given: setattr(sys, "argv", given)),
        "stdout": (lambda: stream_of("stdout"), lambda found: put_stream("stdout", *found)),
        "stderr": (lambda: stream_of("stderr"), lambda found: put_stream("stderr", *found)),
        "warnings": (warnings.filters.copy, put_filters),
        "logging": (lambda: logging.root.manager.disable, logging.disable),
        "timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
        "umask": (umask, os.umask),
        "collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "handlers": (handlers, put_handlers),
        "attributes": (lambda: {module: dict(vars(module)) for module in PATCHABLE}, put_attributes),
    }
    if numpy := sys.modules.get("numpy"):
        found["numpy's errors"] = numpy.geterr, lambda how: numpy.seterr(**how)
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_default_dtype"):  # not half imported
        modes = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
        put = lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])  # noqa: E731
        found["determinism"] = lambda: [mode() for mode in modes], put, [False, False]
        found["dtype"] = torch.get_default_dtype, torch.set_default_dtype, torch.float32
        found["anomalies"] = torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
        found["threads"] = torch.get_num_threads, torch.set_num_threads
    return found


def states_of_thread() -> dict:
    """The same of what a thread has."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "set_default_dtype"):
        return {}
    put_device = lambda device: torch.set_default_device(None if device.type == "cpu" else device)  # noqa: E731
    return {
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, True),
        "device": (torch.get_default_device, put_device, torch.device("cpu")),
    }


class OwnState:
    """The state of the process as rewards have left it; `swapped` gives it to them and takes it away again."""

    def __init__(self):
        self.changed, self.ours, self.inside, self.lock = {}, {}, 0, threading.RLock()

    def enter(self, states: dict) -> dict:
        """Put what rewards have changed; returns the trainer's state."""
        ours = {name: take() for name, (take, *_) in states.items()}
        for name, (_, put, *_) in states.items():
            if name in self.changed and name != "handlers":  # signals go to the trainer always
                put(self.changed[name])
        return ours

    def leave(self, states: dict, ours: dict) -> None:
        """Note what rewards have changed, and put the trainer's state back."""
        for name, (take, put, *fresh) in states.items():
            now = take()
            before = ours.get(name, fresh[0] if fresh else now)  # libraries may have been imported meanwhile
            if now == before:
                self.changed.pop(name, None)
                continue
            self.changed[name] = now
            put(before)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Run rewards in their own state; several threads may at a time."""
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.ours = self.enter(states_of_process())
            mine = self.enter(states_of_thread())
        try:
            yield
        finally:
            with self.lock:
                self.leave(states_of_thread(), mine)
                self.inside -= 1
                if not self.inside:
                    self.leave(states_of_process(), self.ours)


REWARD_STATE = OwnState()
