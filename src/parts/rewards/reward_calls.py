"""Calling rewards: one event loop for async ones, with limits and retries."""

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from dataclasses import dataclass

from parts.rewards.reward_forms import PerSample
from parts.rewards.user_code import REWARD_STATE


@dataclass
class CallLimits:
    """Limits on calls of async rewards: seconds for one (0: none), how many at once, and further tries."""

    timeout: float = 600.0
    concurrency: int = 32
    retries: int = 2


def call_limits(config) -> CallLimits:
    """The limits that a run's settings name."""
    return CallLimits(config.reward_timeout, config.reward_concurrency, config.reward_retries)


class CallFailed(Exception):
    """A call raised its __cause__; `number` is its place among the calls of a batch."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


# lost connections as httpx, openai and anthropic, aiohttp, requests and urllib call them
LOST = {"TransportError", "APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "URLError"}


def is_passing(error: BaseException) -> bool:
    """Whether another try may help: a lost connection, a time limit, or an HTTP status 408, 425, 429 or 5xx."""
    holders = (error, getattr(error, "response", None))
    for status in (getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code")):
        if isinstance(status, int):
            return status in (408, 425, 429) or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & LOST)


class RewardLoop:
    """One event loop in a thread of its own, so that what an async reward keeps, such as a client, stays usable."""

    def __init__(self):
        self.loop, self.slots = asyncio.new_event_loop(), {}
        self.thread = threading.Thread(target=self.serve, name="rewards", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Run the loop for ever; SystemExit, which a task lets through, does not end it."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def gather(self, jobs: list[tuple], limits: CallLimits) -> list:
        """Await jobs (number, call, the awaitable that it returned) together and return their results in order."""
        future = self.start(jobs, limits)
        try:
            return future.result()
        finally:
            future.cancel()  # where a signal ended the wait

    def start(self, jobs: list[tuple], limits: CallLimits):
        """The future of `gather`."""
        return asyncio.run_coroutine_threadsafe(self.gathered(jobs, limits), self.loop)

    async def gathered(self, jobs: list[tuple], limits: CallLimits) -> list:
        """`gather`, within the loop; where one fails, the others are cancelled."""
        tasks = [asyncio.ensure_future(self.answer(*job, limits)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            close_unstarted([first for _, _, first in jobs])

    async def answer(self, number: int, call, first, limits: CallLimits):
        """The result of one job; a try that fails in passing is followed by another call."""
        for attempt in range(1 + limits.retries):
            async with self.slots.setdefault(limits.concurrency, asyncio.Semaphore(limits.concurrency)):
                try:
                    with REWARD_STATE.swapped():
                        return await within(call() if attempt else first, limits.timeout)
                except asyncio.CancelledError as error:
                    if asyncio.current_task().cancelling():  # by `gathered`
                        raise
                    raise CallFailed(number) from RuntimeError(f"was cancelled from within: {error}")
                except BaseException as error:  # SystemExit would end the loop
                    if attempt == limits.retries or not is_passing(error):
                        raise CallFailed(number) from error
                await asyncio.sleep(min(30.0, 0.5 * 2**attempt))


async def within(awaitable, seconds: float):
    """The result of an awaitable, or TimeoutError after a time (0: never)."""
    try:
        async with asyncio.timeout(seconds or None) as clock:
            return await awaitable
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise TimeoutError(f"no answer in {seconds:g} s; try a higher --reward_timeout") from error


def close_unstarted(results: list) -> None:
    """Close the coroutines among results that nobody will await."""
    for result in results:
        if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()


LOOPS, LOOPS_LOCK = {}, threading.Lock()


def reward_loop() -> RewardLoop:
    """The loop of this process; a forked one has its own."""
    with LOOPS_LOCK:
        if os.getpid() not in LOOPS:
            LOOPS[os.getpid()] = RewardLoop()
        return LOOPS[os.getpid()]


def answers(calls: list, limits: CallLimits) -> list:
    """Make calls and return their results; those that give an awaitable run together in the reward loop.

    Raises:
        CallFailed: a call raised; the others are cancelled.
    """
    results = []
    with REWARD_STATE.swapped():
        for number, call in enumerate(calls):
            try:
                results.append(call())
            except (Exception, SystemExit) as error:
                close_unstarted(results)
                raise CallFailed(number) from error
        jobs = [(i, calls[i], result) for i, result in enumerate(results) if inspect.isawaitable(result)]
        awaited = reward_loop().gather(jobs, limits) if jobs else []
    for (number, _, _), result in zip(jobs, awaited, strict=True):
        results[number] = result
    return results


def reward_calls(function, arguments: dict) -> list:
    """The calls that score a batch, still to be made: one for each completion of a PerSample, else one in all."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        arguments = {p.name: arguments[p.name] for p in parameters if p.name in arguments}
    if isinstance(function, PerSample):
        return function.calls(**arguments)
    return [functools.partial(function, **arguments)]


def scored_batch(function, arguments: dict, limits: CallLimits):
    """What one reward function returns for a batch, awaited."""
    results = answers(reward_calls(function, arguments), limits)
    return results if isinstance(function, PerSample) else results[0]
