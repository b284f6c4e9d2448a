"""Run programs against their tests, and give verdicts: what callers use."""

import contextlib
import itertools
import math
import os
import signal
import socket
import tempfile
import time
import warnings
from dataclasses import dataclass, field

from programs.sandbox.comparison import same_output
from programs.sandbox.forms_of_tests import BadTests, Plan, read_tests, separate_plans
from programs.sandbox.isolation import available_cores, check_isolation
from programs.sandbox.judge import Judge
from programs.sandbox.messages import Died, SandboxError, ServerGone, receive_frame, send_frame
from programs.sandbox.process import DEFAULT, Process, Sandbox

MAX_REPORT = 4 << 20  # bytes of what a judge says of all tests
SMALL_RESULT = 64 << 10  # bytes of a result that the caller reads itself, in a fraction of a second whatever they say
MOST_TIMEOUTS = 10  # of tests that are each alone: a program that hangs in all of many must not hold up the caller
START_S = 60  # seconds a process may take to start
JUDGE_MB = 512  # MiB that a judge may add, at least
NO_ANSWER = {"passed": 0, "total": 0, "results": [], "unfit": False, "trusted": True, "ended": ""}


@dataclass
class Verdict:
    """What the tests say of a program.

    Attributes:
        passed, total: numbers of tests.
        status: ok, failed, timeout, memory, output_limit, error or syntax_error: why it is not ok;
            no_tests: the tests assert nothing; invalid_tests: they share surroundings with the program (see
            `unjudged`), or fail only where they need a fixture or a missing module, compare objects of the program,
            combine one with plain data, or pass it functions that read other names.
        trusted: False where the tests used the program's constants or functions to judge results: it could then forge
            the verdict.
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
        return self.total > 0 and self.passed == self.total and self.status == "ok"

    @property
    def usable(self) -> bool:
        """Whether the tests can judge a program; else a reward does not apply."""
        return self.status not in ("no_tests", "invalid_tests")

    @property
    def fraction(self) -> float:
        """Share of the tests that passed, 0 without tests."""
        return self.passed / self.total if self.total else 0.0


def run_code(
    code: str,
    tests,
    *,
    entry_point: str | None = None,
    setup: str = "",
    timeout_s: float = 3.0,
    total_timeout_s: float | None = None,
    memory_mb: int = 512,
    output_mb: int = 8,
    strict: bool = False,
    stop_at_first_failure: bool = False,
    each_alone: bool = False,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """Run a program against tests and return the verdict; whatever the program does, this returns in time.

    In time: within total_timeout_s and the moments it takes to end the processes. Where a result is above 64 KiB,
    all calls are made once more, with a judge, in as much time again.

    Args:
        code: Python source, not trusted.
        tests: one of
            Python source or a list of it: asserts (each counts as a test), `def check(candidate)` as in HumanEval,
            `def test_…()`, unittest.TestCase; the program's names can be used in it;
            a list of {"args": […], "kwargs": {…}, "expected": value, "function": name} or of pairs (args, expected),
            which without an entry_point call the last function that no other function of the program uses;
            a list of {"input": text on stdin, "output": text on stdout}, or of pairs of such texts without an
            entry_point; each is a run of the program as a script, or
            with an entry_point and other data than text, or "testtype": "functional" (LiveCodeBench), a call;
            {"inputs": […], "outputs": […], "fn_name": name or absent} as in APPS.
        entry_point: the function under test; also found as a method of a class `Solution`.
        setup: trusted source that the tests see and the program does not: imports, helpers, classes, objects that it
            makes by the program's classes.
        timeout_s: seconds a test may take; a timeout ends the run and the tests left count as failed.
        total_timeout_s: seconds all tests may take together, from when a process has started (default: timeout_s for
            each, but at least for four and at most for ten).
        memory_mb: MiB of address space the program may add to those its process begins with (RLIMIT_AS, on Linux): the
            heap, imported modules, mapped files, 8 MiB for the stack of each thread. Not counted: up to 64 MiB of files
            in its folder, and what it prints.
        output_mb: MiB that one result may have as JSON, that one run may print, and that one file may have. More is an
            `output_limit`.
        strict: raise SandboxError unless programs are kept from network and files.
        stop_at_first_failure: run no test after one that failed; those left count as failed.
        each_alone: each call, run as a script or assert gets a new process and limits of its own, total_timeout_s too,
            so that a timeout or exit fails that test only; none is run after ten timeouts. Other Python tests share
            names and so one process.
        sandbox: a Sandbox of your own instead of the shared one.

    Raises:
        BadTests: the tests cannot be used.
        ValueError: a limit is not a finite number above 0.
        SandboxError: no sandbox here, or not as strict as asked.

    >>> run_code("def double(x):\\n    return 2 * x", "assert double(4) == 8", entry_point="double").all_passed
    True
    """
    started = time.monotonic()
    check_limits(timeout_s=timeout_s, total_timeout_s=total_timeout_s, memory_mb=memory_mb, output_mb=output_mb)
    if (entry_point or "").startswith("Solution"):  # LeetCode's `Solution().twoSum`
        entry_point = entry_point.rpartition(".")[2]
    code = code or ""
    plan = read_tests(tests, entry_point, code)
    if plan.unfit:
        return Verdict(total=plan.least, status="invalid_tests", detail=plan.unfit)
    if not plan.cases or not code.strip():
        status, detail = ("error", "the program is empty") if plan.cases else ("no_tests", "there are no tests")
        return Verdict(total=len(plan.cases), status=status, detail=detail)
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "result_bytes": output_mb << 20}
    limits["stops"] = stop_at_first_failure
    run = {"stdin": run_stdin_tests, "calls": run_calls, "python": run_judged}[plan.kind]
    plans, verdicts = separate_plans(plan) if each_alone else [plan], []
    for part in plans:
        limits["total_s"] = total_timeout_s or timeout_s * min(max(part.least, 4), 10)
        verdicts.append(on_a_server(sandbox or DEFAULT, strict, limits, run, code, part, entry_point, setup))
        timeouts = sum(verdict.status == "timeout" for verdict in verdicts)
        if timeouts == MOST_TIMEOUTS or (stop_at_first_failure and not verdicts[-1].all_passed):
            break
    verdict = verdicts[0] if len(plans) == 1 else united(verdicts, len(plans))
    verdict.wall_s = time.monotonic() - started
    return verdict


def united(verdicts: list[Verdict], total: int) -> Verdict:
    """One verdict of those on single tests; those not run have failed. If a usable one has failed, it is usable."""
    failed = [verdict for verdict in verdicts if not verdict.all_passed]
    first = max(failed or verdicts, key=lambda verdict: verdict.usable)
    results = [result | {"test": i} for i, verdict in enumerate(verdicts[:1000]) for result in verdict.results[:1]]
    trusted = all(verdict.trusted for verdict in verdicts)
    return Verdict(len(verdicts) - len(failed), total, first.status, trusted, results, first.detail)


def program_output(
    code: str,
    stdin: str = "",
    *,
    timeout_s: float = 3.0,
    memory_mb: int = 512,
    sandbox: Sandbox | None = None,
) -> tuple[str, str]:
    """Run a program as a script and return what it printed and what went wrong ("" for nothing).

    For tools that show a model what its program says; to judge a program, use run_code. Arguments as of run_code.

    >>> program_output("print(6 * 7)")
    ('42\\n', '')
    """
    check_limits(timeout_s=timeout_s, memory_mb=memory_mb)
    limits = {"timeout_s": timeout_s, "total_s": 2 * timeout_s, "memory_mb": memory_mb, "result_bytes": 1 << 20}
    return on_a_server(sandbox or DEFAULT, False, limits, script_output, code, stdin)


def check_limits(**limits: float | None) -> None:
    """Raise ValueError for a limit that is given and not a finite number above 0."""
    for name, value in limits.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"got {name} {value}; expected a finite number above 0; try leaving it out")


def on_a_server(sandbox: Sandbox, strict: bool, limits: dict, run, *given):
    """What `run` returns; once more by a new fork server where the one that there is goes away meanwhile."""
    for again in (False, True):
        check_isolation(sandbox, strict)
        server = sandbox.server
        try:
            return run(sandbox, {**limits, "deadline": time.monotonic() + limits["total_s"]}, *given)
        except ServerGone:  # the program is not to blame
            if again:
                raise
            with sandbox.lock:
                if sandbox.server is server:
                    sandbox.stop()


def run_stdin_tests(sandbox: Sandbox, limits: dict, code: str, plan: Plan, *_) -> Verdict:
    """Run the program once for each (input, expected output); a timeout ends the run."""
    results = []
    for number, (given, expected) in enumerate(plan.cases):
        printed, detail = "", timeout_text(limits)
        if time.monotonic() < limits["deadline"]:
            printed, detail = script_output(sandbox, limits, code, given)
        if not detail and not same_output(expected, printed):
            detail = f"printed {printed[:200]!r}, expected {expected[:200]!r}"
        results.append({"test": number, "passed": not detail, "detail": detail})
        if detail.startswith("timeout") or (detail and limits["stops"]):
            break
    passed = sum(result["passed"] for result in results)
    return conclude(NO_ANSWER | {"passed": passed, "total": len(plan.cases), "results": results}, {}, plan, limits)


def process_limits(limits: dict) -> dict:
    """The part of the limits that the server sets."""
    cpu_s = math.ceil(limits["total_s"]) + 1
    return {"memory_mb": limits["memory_mb"], "cpu_s": cpu_s, "file_bytes": limits["result_bytes"]}


def await_start(process: Process, limits: dict) -> None:
    """Wait until a process has started: the limits count from then on."""
    began = time.monotonic()
    try:
        with contextlib.suppress(Died, ConnectionError):  # it has ended, which is reported elsewhere
            receive_frame(process.channel, began + START_S)
    except TimeoutError:
        raise SandboxError(f"no process started within {START_S} s") from None
    limits["deadline"] += time.monotonic() - began


def script_output(sandbox: Sandbox, limits: dict, code: str, given: str) -> tuple[str, str]:
    """Run the program as a script; return what it printed and what went wrong, "" for nothing."""
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(anonymous_file()) for _ in range(3))
        stdin.write(given.encode("utf-8", "surrogateescape"))
        stdin.seek(0)
        process = sandbox.spawn("program", process_limits(limits), (stdin, stdout, stderr))
        stack.callback(process.close)
        await_start(process, limits)
        deadline = min(time.monotonic() + limits["timeout_s"], limits["deadline"])
        with contextlib.suppress(OSError):
            process.channel.settimeout(limits["timeout_s"])
            send_frame(process.channel, {"mode": "stdin", "code": code})
        report = process.wait(deadline)
        said, printed = read_back(stderr, 2000), read_back(stdout, limits["result_bytes"])
        size = os.fstat(stdout.fileno()).st_size
    if report is None:
        return printed, timeout_text(limits)
    if report.get("error"):
        raise SandboxError(f"no process could be started: {report['error']}")
    if report.get("problem"):
        return printed, report["problem"]
    if size >= limits["result_bytes"]:
        return printed, f"output limit: more than {limits['result_bytes'] >> 20} MiB printed"
    if report["status"]:
        return printed, said[:500] if report["status"] > 0 and said else end_of(report)
    return printed, ""


def anonymous_file():
    """A file without a name, in memory where there is such a thing."""
    return open(os.memfd_create("sandbox"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def read_back(file, size: int) -> str:
    """The beginning of what a process wrote."""
    file.seek(0)
    return file.read(size).decode("utf-8", "surrogateescape")


def run_calls(sandbox: Sandbox, limits: dict, code: str, plan: Plan, *names) -> Verdict:
    """Call the program's functions and compare small results here, which takes half the time of a run with a judge."""
    process = sandbox.spawn("program", process_limits(limits))
    try:
        await_start(process, limits)
        small = {**limits, "result_bytes": min(SMALL_RESULT, limits["result_bytes"])}
        answer = Judge(process.channel, job_of(code, plan, small, *names)).outcome(Exception)
    finally:
        process.close()
    if answer["ended"].startswith("output limit"):
        return run_judged(sandbox, {**limits, "deadline": time.monotonic() + limits["total_s"]}, code, plan, *names)
    return conclude(answer, process.report or {}, plan, limits)


def run_judged(sandbox: Sandbox, limits: dict, code: str, plan: Plan, *names) -> Verdict:
    """Have a judge run the tests; it calls the program, in a process of its own, by a socket between the two."""
    program_side, judge_side = socket.socketpair()
    judge_limits = {**limits, "memory_mb": max(limits["memory_mb"], JUDGE_MB)}
    with contextlib.ExitStack() as stack:
        process = sandbox.spawn("program", process_limits(limits), channel=program_side)
        stack.callback(process.close)
        judge = sandbox.spawn("judge", process_limits(judge_limits), extra=judge_side)
        stack.callback(judge.close)
        await_start(judge, limits)
        try:
            judge.channel.settimeout(limits["total_s"])
            send_frame(judge.channel, job_of(code, plan, limits, *names))
            answer = receive_frame(judge.channel, limits["deadline"], MAX_REPORT)
        except (TimeoutError, Died, OSError) as error:
            end = "timeout" if isinstance(error, TimeoutError) else "the process of the tests ended"
            answer = NO_ANSWER | {"results": [], "ended": end}
    return conclude(answer, process.report or {}, plan, limits)


def job_of(code: str, plan: Plan, limits: dict, entry_point: str | None, setup: str) -> dict:
    """What a judge is told."""
    server_limits = {name: limits[name] for name in ("timeout_s", "result_bytes", "deadline", "stops")}
    return {
        "code": code,
        "kind": plan.kind,
        "cases": plan.cases,
        "entry_point": entry_point,
        "setup": setup,
        **server_limits,
    }


def conclude(answer: dict, report: dict, plan: Plan, limits: dict) -> Verdict:
    """Make a verdict of what a judge says and how the program's process ended; tests that were not run have failed."""
    results, total, end = answer["results"], answer["total"], answer["ended"]
    if end:
        words = {"timeout": timeout_text(limits), "the process ended": end_of(report)}
        end = report.get("problem") or words.get(end, end)
        results.append({"test": len(results), "passed": False, "detail": end})
        total = max(total + 1, plan.least)
    elif limits["stops"]:
        total = max(total, plan.least)
    is_cut = end or (limits["stops"] and answer["passed"] < total)
    if is_cut and total > plan.least:  # a loop: how many tests would follow is unknown, and exiting must not pay
        answer["passed"] = 0
    detail = end or next((result["detail"] for result in results if not result["passed"]), "")
    status = "ok" if answer["passed"] == total else status_of(detail)
    if answer["unfit"] and status != "ok" and not end:
        status = "invalid_tests"
    if not total and plan.least:  # `for x in f(): assert x` of a program that returns nothing
        total, status, detail = plan.least, "failed", "no assert of the tests was reached"
    elif not total:
        status, detail = "no_tests", "the tests assert nothing"
    return Verdict(answer["passed"], total, status, answer["trusted"], results[:1000], detail)


def end_of(report: dict) -> str:
    """How a process ended, in words."""
    status = report.get("status", 0)
    if status == -signal.SIGXCPU:
        return "timeout: processor time"
    return f"the process ended by signal {-status}" if status < 0 else f"the process ended with status {status}"


def timeout_text(limits: dict) -> str:
    """Which of the two limits was reached."""
    if time.monotonic() >= limits["deadline"]:
        return f"timeout: all tests together took more than {limits['total_s']} s"
    return f"timeout: more than {limits['timeout_s']} s"


def status_of(detail: str) -> str:
    """The status that the first failure's text stands for."""
    signs = {"timeout": "timeout", "MemoryError": "memory", "output limit": "output_limit", "the process": "error"}
    signs.update(dict.fromkeys(("SyntaxError", "IndentationError", "TabError"), "syntax_error"))
    return next((status for sign, status in signs.items() if detail.startswith(sign)), "failed")


def run_many(jobs: list[dict], workers: int | None = None) -> list[Verdict]:
    """Run several programs side by side; each job holds the arguments of run_code. Workers: default one per core.

    Tests that cannot be used give the status invalid_tests and one warning for all: the other jobs go on.
    """
    from concurrent.futures import ThreadPoolExecutor

    unusable = {}

    def run(number: int, job: dict) -> Verdict:
        try:
            return run_code(**job)
        except BadTests as error:
            unusable[number] = error
            return Verdict(status="invalid_tests", detail=f"unusable tests: {error}")

    with ThreadPoolExecutor(workers or available_cores()) as pool:
        verdicts = list(pool.map(run, itertools.count(), jobs))
    if unusable:
        first, bad = min(unusable), len(unusable)
        problem = f"got {bad} of {len(verdicts)} jobs with tests that cannot be used, the first of them job {first}"
        warnings.warn(f"{problem}: {unusable[first]}", RuntimeWarning, stacklevel=2)
    return verdicts
