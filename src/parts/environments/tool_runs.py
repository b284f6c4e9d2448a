"""Run the calls of many conversations concurrently, each with a time limit; none can end the run.

A job is a list of calls that are made in order, such as the tool calls of one answer. Each job runs in its own daemon
thread, which ends with it. Async results are awaited in the event loop of async rewards. A job that is out of time is
abandoned: its thread gets an exception, which stops a Python loop at once and a call into C (`time.sleep`, a socket)
when that returns. A daemon thread never keeps the process from exiting. Threads share one interpreter: long
computations and code that a model wrote belong into a separate process.
"""

import asyncio
import contextlib
import ctypes
import inspect
import math
import sys
import threading
import time
import traceback
from dataclasses import dataclass

from parts.foundation.messages import UserError
from parts.rewards.rewards import reward_loop, within

SHORT_INTERVAL = 1e-4  # seconds after which threads switch; Python's 5 ms would add up over 256 busy loops
POLL = 0.02  # seconds between checks for jobs that are out of time
LOOP_PATIENCE = 30.0  # seconds within which an event loop that is not blocked responds even on a busy machine
SIDE_BY_SIDE = 256  # jobs that run at once


@dataclass
class Outcome:
    """The result of a call: its value, or the error that it raised, and the seconds that it took."""

    value: object = None
    error: BaseException | None = None
    seconds: float = 0.0


class OutOfTime(Exception):
    """A call did not return within its limit."""


class LeftBehind(SystemExit):
    """Raised in the thread of a job that is out of time; a SystemExit ends a thread silently."""


class Job(threading.Thread):
    """A thread that waits for its gate, makes calls in order and records their outcomes."""

    def __init__(self, calls: list, seconds: float):
        super().__init__(name="environment", daemon=True)
        self.calls, self.seconds, self.begun, self.outcomes = calls, seconds, math.inf, []
        self.loop, self.awaits = reward_loop().loop, False  # not in run(), which may be stopped at any instruction
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        with contextlib.suppress(LeftBehind):
            self.gate.acquire()
            self.begun = time.monotonic()
            for call in self.calls:
                start, value, problem = time.monotonic(), None, None
                try:
                    value = self.awaited(call(), self.begun + self.seconds - start)
                except LeftBehind:
                    raise
                except BaseException as error:  # SystemExit and KeyboardInterrupt too: a tool does not end the run
                    problem = error
                self.outcomes.append(Outcome(value, problem, time.monotonic() - start))

    def awaited(self, value, seconds: float):
        """A value, or the result of an awaitable in the event loop."""
        if not inspect.isawaitable(value):
            return value
        self.awaits, late = True, OutOfTime(f"no answer in {self.seconds:g} s")
        return asyncio.run_coroutine_threadsafe(within(value, seconds, late), self.loop).result()

    def over(self) -> bool:
        """Whether its time is up; the time of a job starts when it starts to run."""
        return time.monotonic() >= self.begun + self.seconds


def with_missing(calls: list, outcomes: list[Outcome], seconds: float) -> list[Outcome]:
    """The outcomes of a job, with OutOfTime for the call that was running when time was up and all later ones."""
    made = outcomes[: len(calls)]
    late = OutOfTime(f"no answer in {seconds:g} s")
    spent = max(0.0, seconds - sum(outcome.seconds for outcome in made))
    missing = [Outcome(error=late, seconds=spent)] if len(made) < len(calls) else []
    rest = len(calls) - len(made) - len(missing)
    return [*made, *missing, *(Outcome(error=OutOfTime("not called: no time was left")) for _ in range(rest))]


def check_loop() -> None:
    """Raise UserError if the event loop is blocked, with the line that blocks it."""
    loop = reward_loop()
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop.loop).result(LOOP_PATIENCE)
    except TimeoutError:
        stack = traceback.extract_stack(sys._current_frames().get(loop.thread.ident))
        outside = [f for f in stack if "asyncio" not in f.filename and "threading" not in f.filename] or stack
        where = f"{outside[-1].filename}:{outside[-1].lineno}"
        raise UserError(
            f"the event loop of async methods is blocked at {where}; expected `await` wherever something takes time; "
            "try a plain `def`, which runs in a thread of its own"
        ) from None


def run_jobs(jobs: list[list], seconds: float) -> list[list[Outcome]]:
    """Run jobs concurrently, at most SIDE_BY_SIDE at once, and return the outcomes of their calls.

    Args:
        jobs: lists of functions without arguments; those of a job run in order.
        seconds: limit for each job, from its start.

    Raises:
        UserError: an async function blocks the event loop.
    """
    groups = [jobs[start : start + SIDE_BY_SIDE] for start in range(0, len(jobs), SIDE_BY_SIDE)]
    return [outcomes for group in groups for outcomes in run_together(group, seconds)]


def run_together(jobs: list[list], seconds: float) -> list[list[Outcome]]:
    """`run_jobs` for jobs that all run at once."""
    threads, interval = [Job(calls, seconds) for calls in jobs], sys.getswitchinterval()
    late = {}
    try:
        for thread in threads:
            thread.start()
        sys.setswitchinterval(SHORT_INTERVAL)
        for thread in threads:
            thread.gate.release()  # once all have started, as starting a thread waits for busy ones
        while waiting := [thread for thread in threads if thread.is_alive() and thread not in late]:
            for thread in filter(Job.over, waiting):
                late[thread] = [*thread.outcomes]
                # raises LeftBehind in it as soon as it executes Python code again
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(LeftBehind))
            waiting[0].join(POLL)
        if any(thread.awaits for thread in late):
            check_loop()
    finally:
        sys.setswitchinterval(interval)
    return [with_missing(thread.calls, late.get(thread, thread.outcomes), seconds) for thread in threads]
