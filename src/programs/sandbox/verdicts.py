"""Verdicts."""

import math
import signal
import time
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """What the tests say of a program.

    Attributes:
        passed, total: numbers of tests.
        status: ok, failed, timeout, memory, output_limit, error, syntax_error or no_tests: why it is not ok;
            invalid_tests: the tests compare two objects of the program, pass functions to it, or look at what it
            prints (see isolate_tests).
        trusted: False where the tests ran beside the program, or used its constants or functions to judge results:
            it could then forge the verdict.
        results: for each test (the first 1,000) its `test` (number or line), `passed` and `detail`.
        detail: the first thing that went wrong.
        wall_s: seconds it took.
    """

    passed: int = 0
    total: int = 0
    status: str = "failed"
    trusted: bool = True
    results: list = field(default_factory=list)
    detail: str = ""
    wall_s: float = 0.0

    @property
    def all_passed(self) -> bool:
        """Whether there were tests and all passed."""
        return self.total > 0 and self.passed == self.total and self.status == "ok"

    @property
    def fraction(self) -> float:
        """Share of the tests that passed, 0 without tests."""
        return self.passed / self.total if self.total else 0.0


@dataclass
class Plan:
    """Tests: stdin (input, output), calls (function, args, kwargs, expected, mode of compare) or python (source)."""

    kind: str
    cases: list


def process_limits(limits: dict) -> dict:
    """The part of the limits that the server sets."""
    cpu_s = math.ceil(limits["total_s"]) + 1
    return {"memory_mb": limits["memory_mb"], "cpu_s": cpu_s, "file_bytes": limits["result_bytes"]}


def conclude(results: list[dict], total: int) -> Verdict:
    """Make a verdict of the results of the tests that were run; those that were not count as failed."""
    bad = next((result for result in results if not result["passed"]), None)
    passed = sum(result["passed"] for result in results)
    detail = bad["detail"] if bad else "" if len(results) == total else "not all tests were run"
    return Verdict(passed, total, status_of(detail) if passed < total else "ok", True, results[:1000], detail)


def status_of(detail: str) -> str:
    """The status that the first failure's text stands for."""
    signs = {"timeout": "timeout", "MemoryError": "memory", "output limit": "output_limit", "the process": "error"}
    signs.update(dict.fromkeys(("SyntaxError", "IndentationError", "TabError"), "syntax_error"))
    return next((status for sign, status in signs.items() if detail.startswith(sign)), "failed")


def end_of(report: dict | None) -> str:
    """How a process ended, in words."""
    status = (report or {}).get("status", 0)
    if status == -signal.SIGXCPU:
        return "timeout: processor time"
    return f"the process ended by signal {-status}" if status < 0 else f"the process ended with status {status}"


def timeout_text(limits: dict) -> str:
    """Which of the two limits was reached."""
    if time.monotonic() >= limits["deadline"]:
        return f"timeout: all tests together took more than {limits['total_s']} s"
    return f"timeout: more than {limits['timeout_s']} s"
