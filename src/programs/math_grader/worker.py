"""The worker process that asks math-verify, with limits on its processor time, which no busy machine uses up."""

import contextlib
import contextvars
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

_LIMIT_S = 0.4  # processor time for a comparison in the worker
_ITEM_S = 0.95  # processor time for all comparisons of an item
_LOST_S = 12.0  # on the clock: a worker that is silent for so long sleeps, and is replaced
_START_S = 60.0  # on the clock, for a worker to start
_LEFT: contextvars.ContextVar = contextvars.ContextVar("left", default=None)  # [seconds left for an item's comparisons]


@contextlib.contextmanager
def one_item():
    """Limit all comparisons inside to `_ITEM_S` seconds of the worker together; when nested, the outer limit holds."""
    token = _LEFT.set(_LEFT.get() or [_ITEM_S])
    try:
        yield
    finally:
        _LEFT.reset(token)


class MathWorker:
    """math-verify in a process that can be killed: one comparison at a time, from any thread, no signals."""

    def __init__(self):
        self.reset()
        if hasattr(os, "register_at_fork"):  # else a lock held by a thread at the fork stays locked in the child
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget the worker, which after a fork belongs to the parent."""
        self.lock, self.process, self.absent, self.patience_s = threading.Lock(), None, False, _START_S

    def ensure(self) -> None:
        """Start the worker unless one runs; does not wait for it."""
        if self.process is None and not self.absent:
            with self.lock:
                if self.process is None:
                    self.start()

    def start(self) -> None:
        self.ready, self.absent = False, os.name != "posix" or not importlib.util.find_spec("math_verify")
        if not self.absent:
            self.process = subprocess.Popen(
                [sys.executable, "-P", os.path.abspath(__file__), "--math-worker"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask(self, groups: list) -> bool | None:
        """Whether each group's answers match its golds; None if a gold cannot be parsed, False if time runs out."""
        left = _LEFT.get() or [_ITEM_S]
        self.ensure()
        with self.lock:
            if left[0] < _LIMIT_S:
                return False
            if self.process and self.process.poll() is not None:
                self.stop()
                self.start()
            if self.process and not self.ready:
                self.ready = self.answer(self.patience_s) == b"ready\n"
                self.absent = not self.ready
            if self.absent:
                self.stop()
                warnings.warn("math-verify is missing or slow: integrals, sums, … are compared as text", stacklevel=2)
                return False
            verdict, seconds = self.exchange(groups)
            left[0] -= seconds
            return verdict

    def exchange(self, groups: list) -> tuple[bool | None, float]:
        """(Verdict, seconds that it took) of the worker, which is ready; a silent one is replaced."""
        try:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.write(json.dumps(groups).encode() + b"\n")
                return tuple(json.loads(self.answer(_LOST_S)))
        except BaseException:  # an interrupt: the pending answer must not reach the next question
            self.stop()
            raise
        self.stop()
        self.start()
        warnings.warn(f"the math worker died or was silent for {_LOST_S:g} s: an answer counts as wrong", stacklevel=2)
        return False, _ITEM_S

    def answer(self, seconds: float) -> bytes:
        """The worker's next line, or b"" after `seconds`."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if waiting.select(seconds) else b""

    def stop(self) -> None:
        """Kill the worker and its children."""
        if self.process:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
        self.process = None


_WORKER = MathWorker()


def start_worker(patience_s: float = _START_S) -> None:
    """Start the worker unless it runs; does not wait for it.

    Args:
        patience_s: seconds that the first item that needs the worker may wait for it.
    """
    _WORKER.patience_s = patience_s
    _WORKER.ensure()


def _judge(groups) -> bool | None:
    """`ask`, by math-verify; runs in the worker only."""
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text):
        text = re.sub(rf"(?<![\\A-Za-z])({_NAMES})(?![A-Za-z])", r"\\\1", text).translate(_LATEX)
        return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)

    for answers, golds in groups:
        answers, golds = [[read(text) for text in texts] for texts in (answers, golds)]
        if not all(golds):
            return None
        for gold in golds:
            equal = [i for i, answer in enumerate(answers) if answer and verify(gold, answer, timeout_seconds=None)]
            if not equal:
                return False
            del answers[equal[0]]
    return True


# first uses of the parser and sympy cost up to a second; later comparisons take milliseconds
_WARM = [
    (r"\int x dx+\ln{4}", r"2\ln{2}+\frac{x^2}{2}"),
    (r"\int_0^1 x dx", r"\frac12"),
    ("|x|+1", "1+|x|"),
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    (r"\prod_{k=1}^{n} k", "n!"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\lim_{x\to 0} \frac{\sin x}{x}", "1"),
    (r"x^2 < 4", r"-2 < x < 2"),
    (r"\lfloor n/2 \rfloor", r"\lfloor \frac{n}{2} \rfloor"),
    ("n!+1", "1+n!"),
    (r"\sqrt{x^2+1}", r"(x^2+1)^{1/2}"),
]


def _math_worker() -> None:
    """Serve `ask` on stdin and stdout by a forked child, which is replaced if a comparison takes too long."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    for a, b in _WARM:
        _judge([[[a], [b]]])
    print("ready", file=out, flush=True)
    while True:
        child = os.fork()  # warmed up already, so that replacing it takes no time
        if not child:
            _serve(out)
            os._exit(0)
        if not os.waitpid(child, 0)[1]:
            return
        print(json.dumps([False, _LIMIT_S]), file=out, flush=True)


def _serve(out) -> None:
    """Answer comparisons; a timer's signal ends this process if one takes too long."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, _LIMIT_S)
        reply, started = False, time.process_time()
        with contextlib.suppress(Exception):
            reply = _judge(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([reply, time.process_time() - started]), file=out, flush=True)
