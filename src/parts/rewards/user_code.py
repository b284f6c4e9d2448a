"""What users' rewards get: texts, copies of the columns, and their own state of the process."""

import builtins
import contextlib
import gc
import inspect
import io
import json
import logging
import math
import os
import random
import re
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Iterator


def visible_text(tokenizer, ids: list[int], eos_ids) -> str:
    """The text of sampled ids without trailing end tokens and pads.

    Other special tokens stay, so that rewards see a policy that writes `<|user|>` into its answer.
    """
    ends, length = {*eos_ids, tokenizer.eos_token_id, tokenizer.pad_token_id}, len(ids)
    while length and ids[length - 1] in ends:
        length -= 1
    return tokenizer.decode(ids[:length], skip_special_tokens=False)


def text_of_turns(completion) -> str:
    """The text of a completion or prompt; contents of messages are joined by newlines."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def user_text(prompt) -> str:
    """What the model was asked: a string prompt, or the last message's content."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def text_of_answers(completion) -> str:
    """The text of a completion; of a conversation only the assistant's messages."""
    if isinstance(completion, str):
        return completion
    return text_of_turns([message for message in completion if message.get("role", "assistant") == "assistant"])


def trial_texts(gold: str) -> list[str]:
    """Right and wrong completions in many formats, to compare two versions of a reward on."""
    right = [gold, f"#### {gold}", f"so it is \\boxed{{{gold}}}", f"<answer>{gold}</answer>", f"first\n{gold}"]
    return [*right, f"The answer is {gold}.", f"{gold} or not", "41", "", "nothing"]


def own_copy(value):
    """Copy what a reward could change of a column or prompt: lists, dicts, sets and arrays, but no environments."""
    if type(value) is list:
        return [item if isinstance(item, str | int | float) else own_copy(item) for item in value]
    if type(value) is dict:
        return {key: own_copy(item) for key, item in value.items()}
    return value.copy() if type(value) is set or hasattr(type(value), "tolist") else value


# how files of libraries begin, and what is no file
LIBRARY = re.escape(sysconfig.get_path("stdlib")) + r"|<|.*[/\\](site|dist)-packages[/\\]"


def user_place(error: BaseException) -> str:
    """' at FILE:LINE' where a user's code raised: the innermost frame outside libraries and the caller; else ""."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    below = [(f.f_code.co_filename, line) for f, line in frames if f.f_globals is not frames[0][0].f_globals]
    places = [f" at {file}:{line}" for file, line in below if not re.match(LIBRARY, file)]
    return places[-1] if places else ""


# what TRL hands over besides the lists over the samples
TRL_EXTRAS = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}


def is_per_sample(function) -> bool:
    """Whether a reward takes one sample, as its parameters are called `prompt` or `completion`, not the plural."""
    return not {"prompt", "completion"}.isdisjoint(inspect.signature(function).parameters)


def reward_arguments(rows: list[dict], completions: list, completion_ids: list[list[int]]) -> dict:
    """Keyword arguments of a reward function in TRL's shapes; a column that a row lacks is None there.

    Completions are texts, or the messages of conversations. All values are copies, so that a reward that changes them
    affects no other.
    """
    columns = {name: None for row in rows for name in row["columns"]}
    return {
        "prompts": [own_copy(row["prompt"]) for row in rows],
        "completions": [
            [{"role": "assistant", "content": completion}]
            if isinstance(completion, str) and not isinstance(prompt, str)
            else own_copy(completion)
            for prompt, completion in zip([row["prompt"] for row in rows], completions, strict=True)
        ],
        "completion_ids": [[*ids] for ids in completion_ids],
        **{name: [own_copy(row["columns"].get(name)) for row in rows] for name in columns},
    }


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """Send what a user's code prints to stderr, as stdout is for results; works as a decorator too."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


PATCHABLE = (builtins, io, json, math, os, os.path, random, shutil, time)


def put_folder(folder: str) -> None:
    """Change to a folder if it still exists."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


def put_environment(variables: dict) -> None:
    """Set the environment to exactly these variables."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def umask() -> int:
    """The process's umask, which only setting it returns."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def put_handlers(previous: dict) -> None:
    """Restore signal handlers, which only the main thread can do."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in previous.items():
            signal.signal(number, handler)


def put_attributes(modules: dict) -> None:
    """Undo changes of modules' attributes; new attributes stay."""
    for module, names in modules.items():
        for name, value in names.items():
            if vars(module).get(name, names) is not value:
                setattr(module, name, value)


def states_of_process() -> dict:
    """{state of the process: (function that reads it, function that sets it, initial value for some libraries)}."""
    states = {
        "folder": (lambda: os.getcwd() if os.path.exists(".") else "", put_folder),
        "environment": (os.environ.copy, put_environment),
        "path": (sys.path.copy, lambda path: sys.path.__setitem__(slice(None), path)),
        "arguments": (sys.argv.copy, lambda given: setattr(sys, "argv", given)),
        "stdout": (lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
        "stderr": (lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
        "warnings": (warnings.filters.copy, lambda filters: warnings.filters.__setitem__(slice(None), filters)),
        "logging": (lambda: logging.root.manager.disable, logging.disable),
        "timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "umask": (umask, os.umask),
        "handlers": (lambda: {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}, put_handlers),
        "collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "attributes": (lambda: {module: dict(vars(module)) for module in PATCHABLE}, put_attributes),
    }
    if numpy := sys.modules.get("numpy"):
        states["numpy's errors"] = numpy.geterr, lambda how: numpy.seterr(**how)
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_default_dtype"):  # fully imported
        states["determinism"] = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0
        states["anomalies"] = torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
        states["dtype"] = torch.get_default_dtype, torch.set_default_dtype, torch.float32
        states["threads"] = torch.get_num_threads, torch.set_num_threads
    return states


def states_of_thread() -> dict:
    """As `states_of_process`, for states that each thread has."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "set_default_dtype"):
        return {}
    put_device = lambda device: torch.set_default_device(None if device.type == "cpu" else device)  # noqa: E731
    return {
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, True),
        "device": (torch.get_default_device, put_device, torch.device("cpu")),
    }


class OwnState:
    """The process state that rewards changed: `swapped` restores it for them, and the trainer's state afterwards."""

    def __init__(self):
        self.changed, self.ours, self.inside, self.lock = {}, {}, 0, threading.RLock()

    def enter(self, states: dict) -> dict:
        """Set the states that rewards changed earlier; returns the trainer's."""
        ours = {name: take() for name, (take, *_) in states.items()}
        for name, (_, put, *_) in states.items():
            if name in self.changed and name != "handlers":  # signals always go to the trainer
                put(self.changed[name])
        return ours

    def leave(self, states: dict, ours: dict) -> None:
        """Keep the states that rewards changed, and restore the trainer's."""
        for name, (take, put, *fresh) in states.items():
            now = take()
            before = ours.get(name, fresh[0] if fresh else now)  # a library imported meanwhile has no `ours`
            if now == before:
                self.changed.pop(name, None)
                continue
            self.changed[name] = now
            put(before)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Run rewards in their own state; threads may do so at the same time and share it."""
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.ours = self.enter(states_of_process())
                if sys.stdout is self.ours["stdout"]:
                    sys.stdout = sys.stderr  # as in `prints_aside`
            of_thread = self.enter(states_of_thread())
        try:
            yield
        finally:
            with self.lock:
                self.leave(states_of_thread(), of_thread)
                self.inside -= 1
                if not self.inside:
                    if sys.stdout is sys.stderr:
                        sys.stdout = self.ours["stdout"]
                    self.leave(states_of_process(), self.ours)


REWARD_STATE = OwnState()
