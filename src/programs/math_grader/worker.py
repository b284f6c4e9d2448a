"""The worker that asks math-verify, within its time."""

import contextlib
import contextvars
import importlib
import importlib.util
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import warnings

from programs.math_grader.vocabulary import _LATEX, _NAMES

# Percent: 50% = 0.5 = 1/2, and 50% = 50 above 1 (a sign left out). Units: a missing one is fine, a different one wrong.
# Rounding: a decimal of 4 or more significant digits stands for an endless value (1/3, pi) that it rounds correctly.
_LIMIT_S = 0.25  # a comparison in the worker, after its start-up
_LOST_S = 0.6  # after this a worker that keeps silent is lost, and replaced
_ITEM_S = 0.95  # all comparisons of an item, and its wait for a worker that is starting
_START_S = 60.0  # the longest wait for a worker where no item's limit holds


class _Item:
    """The time that is left to one item for its comparisons, and its wait for a worker that is starting."""

    def __init__(self):
        self.left = _ITEM_S

    @contextlib.contextmanager
    def spend(self):
        """Take the time of what stands inside; the wait for other threads is not the item's."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.left -= time.monotonic() - start


_ITEM: contextvars.ContextVar = contextvars.ContextVar("item", default=None)  # None: no limit but the comparison's


@contextlib.contextmanager
def one_item():
    """Bound the time of all comparisons inside, by `_ITEM_S` seconds; inside another one, that one's limit holds."""
    token = _ITEM.set(_ITEM.get() or _Item())
    try:
        yield
    finally:
        _ITEM.reset(token)


class WorkerStarting(Exception):
    """An item's time was over before the worker had started."""


class MathWorker:
    """math-verify in a process that can be killed: one comparison at a time, from any thread, no signals."""

    def __init__(self):
        self.reset()
        if hasattr(os, "register_at_fork"):  # a lock that a thread holds at the fork would stay locked in the child
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget the process, which belongs to another one after a fork."""
        self.lock, self.process, self.pid = threading.Lock(), None, 0
        self.absent, self.told, self.patience_s, self.ready = False, set(), 0.0, threading.Event()

    def start(self) -> None:
        """Start the process beside the caller; `ready` is set when it has imported sympy, or cannot."""
        self.absent = self.absent or not (os.name == "posix" and importlib.util.find_spec("math_verify"))
        self.pid, self.ready = os.getpid(), threading.Event()
        if self.absent:
            self.ready.set()
            return
        self.process = subprocess.Popen(
            [sys.executable, "-P", os.path.abspath(__file__), "--math-worker"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self.greet, args=(self.process, self.ready), daemon=True).start()

    def greet(self, process, ready) -> None:
        """Wait for the first line of a process."""
        with contextlib.suppress(OSError, ValueError):
            if process.stdout.readline() != b"ready\n" and self.process is process:
                self.absent = True
        ready.set()

    def ensure(self) -> None:
        """Start the process where none runs; another thread that does so or asks is not waited for."""
        if (self.process is None and not self.absent) or self.pid != os.getpid():
            if self.lock.acquire(blocking=False):
                try:
                    if self.process is None or self.pid != os.getpid():
                        self.start()
                finally:
                    self.lock.release()

    def wait(self, item: _Item | None) -> bool:
        """Wait for the start, an item for as long as it may; whether the process can be asked."""
        if item and not self.patience_s:
            with item.spend():
                started = self.ready.wait(max(0.0, item.left))
        else:
            started = self.ready.wait(self.patience_s if item else _START_S)
        if item and not started:
            raise WorkerStarting
        self.absent = self.absent or not started
        return not self.absent

    def tell(self, message: str) -> None:
        """Warn of something, once."""
        if message not in self.told:
            self.told.add(message)
            warnings.warn(message, stacklevel=2)

    def ask(self, groups: list) -> bool | None:
        """Match the answers of each group with its golds; None if a gold cannot be parsed, False if time runs out.

        Raises WorkerStarting where an item's time is over before the process has started.
        """
        item = _ITEM.get()
        self.ensure()
        if not self.wait(item):
            self.tell("math-verify is missing: integrals, sums, … are compared as text")
            return False
        if item and item.left < _LOST_S:
            return False
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.stop()
                self.start()
        self.wait(item)
        with self.lock, item.spend() if item else contextlib.nullcontext():
            return self.exchange(groups)

    def exchange(self, groups: list) -> bool | None:
        """Ask the process, which is ready; one that keeps silent is replaced."""
        if self.process is None or not self.ready.is_set():  # another thread has just lost it
            return False
        try:
            with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as waiting:
                self.process.stdin.write(json.dumps(groups).encode() + b"\n")
                waiting.register(self.process.stdout, selectors.EVENT_READ)
                if waiting.select(_LOST_S):  # the worker keeps the limit; this is for one that is lost
                    return json.loads(self.process.stdout.readline())
        except BaseException:  # an interrupt: the answer still to come is not the next question's
            self.stop()
            raise
        self.stop()
        self.start()
        return False

    def stop(self) -> None:
        """Kill the process and what it forked."""
        if self.process and self.pid == os.getpid():
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout) if self.ready.is_set() else ():  # nobody reads it
                pipe.close()
        self.process = None


_WORKER = MathWorker()


def start_worker(patience_s: float = 0.0) -> None:
    """Start the worker beside the caller, if it does not run.

    Args:
        patience_s: seconds for which an item may wait for the start; without them one second, and then its score is
            None. A batch of n items may wait n seconds and still spend no more than one on an item.
    """
    _WORKER.patience_s = max(_WORKER.patience_s, patience_s)
    _WORKER.ensure()


def _judge(groups) -> bool | None:
    """Match answers with golds by math-verify; runs in the worker only."""
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text):
        text = re.sub(rf"(?<![\\A-Za-z])({_NAMES})(?![A-Za-z])", r"\\\1", text).translate(_LATEX)
        return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)

    for answers, golds in groups:
        answers, golds = [[read(text) for text in texts] for texts in (answers, golds)]
        if not all(golds):
            return None
        for gold in golds:
            found = [i for i, answer in enumerate(answers) if answer and verify(gold, answer, timeout_seconds=None)]
            if not found:
                return False
            del answers[found[0]]
    return True


# what parser and sympy do for the first time costs up to a second; a comparison then takes milliseconds
_WARM = [
    (r"\int x dx+\ln{4}", r"2\ln{2}+\frac{x^2}{2}"),
    (r"\int_0^1 x dx", r"\frac12"),
    ("|x|+1", "1+|x|"),
    (r"\sum_{k=1}^{3} k", "6"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\lim_{x\to 0} \frac{\sin x}{x}", "1"),
    (r"x^2 < 4", r"-2 < x < 2"),
    (r"\lfloor 2.5 \rfloor", "2"),
    ("n!+1", "1+n!"),
    (r"\sqrt{x^2+1}", r"(x^2+1)^{1/2}"),
]


def _math_worker() -> None:
    """Serve `ask` on stdin and stdout, by a child that is replaced when a comparison takes too long."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    for a, b in _WARM:
        _judge([[[a], [b]]])
    print("ready", file=out, flush=True)
    while True:
        child = os.fork()  # as warm as this process, and at once in place of one that took too long
        if not child:
            _serve(out)
            os._exit(0)
        if not os.waitpid(child, 0)[1]:
            return
        print("false", file=out, flush=True)


def _serve(out) -> None:
    """Answer comparisons; the kernel ends this process when one takes too long."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, 0.7 * _LIMIT_S)
        reply = False
        with contextlib.suppress(Exception):
            reply = _judge(json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=out, flush=True)
