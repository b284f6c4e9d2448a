"""Run the calls of many conversations side by side: each has a time limit, and none can end the run.

A job is a list of calls that are made in order, such as the tool calls of one answer; jobs run side by side, each in a
daemon thread of its own, which ends with the job. What is async is awaited in one event loop, that of async rewards.
A job that is out of time is left behind: its thread is told to end, which stops a loop written in Python at once and a
call into C (`time.sleep`, a socket) as soon as that returns; a daemon thread never keeps the process from exiting.
Threads share one interpreter: what computes for long, or runs what a model wrote, belongs into a process of its own.
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
from parts.rewards.rewards import reward_loop

SHORT_INTERVAL = 1e-4  # seconds after which a loop written in Python gives way; Python's 5 ms add up over 256 of them
POLL = 0.02  # seconds between two looks at who is out of time
LOOP_PATIENCE = 30.0  # seconds in which an event loop that nothing blocks answers even on a busy machine


@dataclass
class Outcome:
    """What a call came to: a value, or the error that it raised; `seconds` is the time that it took."""

    value: object = None
    error: BaseException | None = None
    seconds: float = 0.0


class OutOfTime(Exception):
    """A call gave no answer within its limit."""


class LeftBehind(SystemExit):
    """Raised in the thread of a job that is out of time; threads end by SystemExit without a word."""


async def limited(awaitable, seconds: float, limit: float):
    """The result of an awaitable, or OutOfTime after the seconds that are left of a limit."""
    try:
        async with asyncio.timeout(seconds) as clock:
            return await awaitable
    except TimeoutError:
        if not clock.expired():
            raise  # the function's own
        raise OutOfTime(f"no answer in {limit:g} s") from None


class Job(threading.Thread):
    """A thread that makes calls in order, as soon as it is let go, and notes what each came to."""

    def __init__(self, calls: list, seconds: float):
        super().__init__(name="environment", daemon=True)
        self.calls, self.seconds, self.begun, self.outcomes = calls, seconds, math.inf, []
        self.loop, self.awaits = reward_loop().loop, False  # made here: a job may be ended at any instruction
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        """Make the calls."""
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
        """A value, or what it comes to in the event loop where it is awaitable."""
        if not inspect.isawaitable(value):
            return value
        self.awaits = True
        try:
            return asyncio.run_coroutine_threadsafe(limited(value, seconds, self.seconds), self.loop).result()
        finally:
            self.awaits = False

    def over(self) -> bool:
        """Whether its time is up; a job that has not come to its turn yet has all of it."""
        return time.monotonic() >= self.begun + self.seconds


def leave_behind(thread: threading.Thread) -> None:
    """Raise LeftBehind in a thread as soon as it executes Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(LeftBehind))


def with_missing(calls: list, outcomes: list[Outcome], seconds: float) -> list[Outcome]:
    """The outcomes of a job; the call that ran when time was up, and those after it, have OutOfTime."""
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


def run_jobs(jobs: list[list], seconds: float, side_by_side: int = 256) -> list[list[Outcome]]:
    """Run jobs side by side and return the outcomes of their calls.

    Args:
        jobs: lists of functions without arguments; those of a job run in order.
        seconds: limit for each job, from its begin; all begin at once as long as there are no more than `side_by_side`.

    Raises:
        UserError: an async function blocks the event loop.
    """
    results = []
    for start in range(0, len(jobs), side_by_side):
        results += run_together(jobs[start : start + side_by_side], seconds)
    return results


def run_together(jobs: list[list], seconds: float) -> list[list[Outcome]]:
    """`run_jobs` for jobs that all run at once."""
    threads, interval = [Job(calls, seconds) for calls in jobs], sys.getswitchinterval()
    late, awaited = {}, False
    try:
        for thread in threads:
            thread.start()
        sys.setswitchinterval(SHORT_INTERVAL)
        for thread in threads:
            thread.gate.release()  # not before all have started: a start would wait for those that never give way
        while waiting := [thread for thread in threads if thread.is_alive() and thread not in late]:
            for thread in filter(Job.over, waiting):
                late[thread], awaited = [*thread.outcomes], awaited or thread.awaits
                leave_behind(thread)
            waiting[0].join(POLL)
        if awaited:
            check_loop()
    finally:
        sys.setswitchinterval(interval)
    return [with_missing(thread.calls, late.get(thread, thread.outcomes), seconds) for thread in threads]
