"""The reward's own process, with a time limit: a hang or crash costs one call, and the next call starts anew."""

import contextlib
import faulthandler
import inspect
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from parts.foundation.messages import UserError
from parts.rewards.reward_forms import spec_parts
from parts.rewards.rewards import CallFailed, CallLimits, Reward, check_columns, read_scores, scored_batch
from parts.rewards.user_code import TRL_EXTRAS, is_per_sample
from programs.reward_preflight.probes import number_of

LOAD_LIMIT_S = 300.0  # an import may load torch or a judge


def declared_range(function) -> str:
    """The first `[low, high]` or `{low, …, high}` in a docstring above its examples, after `Range:` if it is there."""
    doc = (inspect.getdoc(function) or "").partition(">>>")[0]
    ranges = re.findall(r"[\[{][^][{}\n]*,[^][{}\n]*[]}]", doc[max(0, doc.find("Range:")) :])
    return next((text for text in ranges if any(end is not None for end in bounds(text))), "")


def bounds(text: str) -> tuple[float | None, float | None]:
    """The ends of a range such as `[-1, 0]` or `{0, 1}`; None for an end that is no number."""
    items = re.sub(r"[][{} ]", "", text.replace("\u2212", "-")).split(",")
    return number_of(items[0]), number_of(items[-1])


def describe(name: str, function, weight: float) -> dict:
    """What the checks need to know about a function: name, weight, range, group score, open parameters."""
    variadic = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    about = {"name": name, "weight": weight, "range": declared_range(function)}
    about["needs_group"] = bool(getattr(function, "needs_group", False))
    # a function of one sample only gets the columns that it names
    return about | {"takes_any": is_per_sample(function) or variadic}


def own_frame(frames: list[tuple], files: list[str]) -> str:
    """The first frame (file, line, function) in one of the user's files, else the first of all, as text."""
    paths = {Path(file).resolve() for file in files}
    file, line, name = next((f for f in frames if Path(f[0]).resolve() in paths), (frames or [("", 0, "")])[0])
    return f"{file}:{line}, in {name}" if file else ""


def raised_at(error: BaseException) -> list[tuple]:
    """The frames (file, line, function) of an exception, innermost first."""
    return [(f.filename, f.lineno, f.name) for f in reversed(traceback.extract_tb(error.__traceback__))]


def call_once(function, arguments: dict, files: list[str], limits: CallLimits) -> dict:
    """Call a function with the arguments that it takes; returns scores or failure, seconds, and `changed` inputs."""
    parameters = inspect.signature(function).parameters
    before, count, reply = pickle.dumps(arguments), len(arguments["completions"]), {}
    given = arguments | {name: value for name, value in TRL_EXTRAS.items() if name in parameters}
    started = time.perf_counter()
    try:
        result = scored_batch(function, given, limits)
        reply["seconds"] = time.perf_counter() - started
        scores, bad, problem = read_scores(result, count)
        reply |= {"values": scores, "bad": {i: f"returned {value!r}"[:200] for i, value in bad.items()}}
        if problem:
            of_what = f"completion{'s' if count != 1 else ''}"
            reply = {"seconds": reply["seconds"], "malformed": f"returned {problem} for {count} {of_what}"}
    except BaseException as caught:  # SystemExit ends a training run too
        error = caught.__cause__ if isinstance(caught, CallFailed) else caught
        reply |= {"seconds": time.perf_counter() - started, "where": own_frame(raised_at(error), files)}
        reply["raised"] = f"raised {type(error).__name__}: {error}"[:300]
    return reply | {"changed": pickle.dumps(arguments) != before}


def load_functions(specs: list[str], row: dict) -> tuple:
    """(Descriptions of the functions that the specs and their presets name, function that answers a call)."""
    files, reward = [spec_parts(spec)[0] for spec in specs], Reward(specs)
    check_columns(reward.functions, row, tuple(TRL_EXTRAS))

    def answer(name: str, arguments: dict) -> dict:
        return call_once(reward.functions[name], arguments, files, reward.limits)

    return [describe(name, function, reward.weights[name]) for name, function in reward.functions.items()], answer


def serve(fd: int) -> None:
    """Answer calls as an OwnProcess, which --serve starts, until the parent hangs up; `fd`: the connection to it.

    The first message describes the functions, or says why they cannot be loaded.
    """
    os.set_inheritable(fd, False)
    sys.dont_write_bytecode = True  # no __pycache__ beside the user's file
    connection = Connection(fd)
    trace, specs, row = connection.recv()
    try:
        description, answer = load_functions(specs, row)
    except UserError as error:
        connection.send(str(error))
        return
    except Exception as error:
        connection.send(f"got {subject_of(specs)}, which fails to load: {type(error).__name__}: {error}")
        return
    connection.send(description)
    while True:
        try:
            name, arguments, limit_s = connection.recv()
        except EOFError:
            return
        # a C thread ends the process even if a regular expression holds the interpreter
        faulthandler.dump_traceback_later(limit_s, exit=True, file=trace)
        reply = answer(name, arguments)
        faulthandler.cancel_dump_traceback_later()
        connection.send(reply)


def subject_of(specs: list[str]) -> str:
    return f"reward {', '.join(specs)}"


class OwnProcess:
    """A process that runs the rewards, for rows with these columns, started anew after a hang or crash."""

    def __init__(self, specs: list[str], rows: list[dict], timeout_s: float):
        columns = {name: value for row in rows for name, value in row["columns"].items()}
        self.specs, self.row, self.timeout_s = specs, {"prompt": rows[0]["prompt"], "columns": columns}, timeout_s
        self.files = [spec_parts(spec)[0] for spec in specs]
        self.process, self.trace = None, tempfile.TemporaryFile()
        self.about = self.start()

    def start(self):
        """Start the process and return its description of what it loaded; UserError if loading fails."""
        self.connection, theirs = Pipe()
        inherited = [theirs.fileno(), self.trace.fileno()]
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(inherited[0])]
        # prints go to stderr; a session of its own lets `end` kill its children too
        keep = {"stdin": subprocess.DEVNULL, "stdout": 2, "pass_fds": inherited, "start_new_session": True}
        self.process = subprocess.Popen(command, **keep)
        theirs.close()
        self.connection.send((inherited[1], self.specs, self.row))
        answer = self.receive(LOAD_LIMIT_S)
        if answer is None:
            answer = f"got {subject_of(self.specs)}, whose import {self.end()}; expected an import that returns"
        if isinstance(answer, str):
            self.__exit__()
            raise UserError(answer)
        return answer

    def receive(self, limit_s: float):
        """The next message, or None if the process is gone or the limit has passed."""
        end = time.monotonic() + limit_s
        try:
            while not self.connection.poll(0.05):
                gone = self.process.poll() is not None and not self.connection.poll(0)
                if gone or time.monotonic() > end:
                    return None
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None

    def call(self, name: str, arguments: dict) -> dict:
        """One call; {"hung": why} past the time limit, {"died": why} if the process ended."""
        if self.process is None:
            self.start()
        started, limit_s = time.perf_counter(), self.timeout_s
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # receive() notices it
            self.connection.send((name, arguments, limit_s))
        reply = self.receive(limit_s + 5)
        if reply is not None:
            return reply
        seconds, how = time.perf_counter() - started, self.end()
        if seconds < limit_s:
            return {"died": how, "seconds": seconds}
        self.trace.seek(0)  # faulthandler's frames, innermost first
        frames = re.findall(r'File "(.*?)", line (\d+) in (.*)', self.trace.read().decode(errors="replace"))
        self.trace.seek(0)
        self.trace.truncate()
        return {"hung": f"took more than {limit_s:g} s", "where": own_frame(frames, self.files), "seconds": seconds}

    def memory(self) -> int:
        """Bytes of memory that the process holds; 0 where the system does not say."""
        with contextlib.suppress(OSError, AttributeError):
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        return 0

    def end(self) -> str:
        """End the process and its children, and say how it ended."""
        if self.process is None:
            return ""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)  # if it waits for a call, it sees the closed connection and exits
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code, self.process = self.process.wait(), None
        return f"ended the process with exit code {code}" if code >= 0 else f"died of signal {-code}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.trace.close()
