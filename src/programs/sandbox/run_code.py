"""The caller's side."""

import contextlib
import os
import socket
import tempfile
import time
import warnings

from programs.sandbox.endpoint import run_at_endpoint
from programs.sandbox.errors import BadTests, Died, SandboxError, ServerGone
from programs.sandbox.limits import JUDGE_MB, JUDGE_S, MAX_REPORT, SMALL_RESULT, UNUSABLE
from programs.sandbox.process import DEFAULT, Sandbox, available_cores, check_isolation
from programs.sandbox.python_tests import read_tests
from programs.sandbox.values import (
    compare,
    decode,
    error_text,
    read_message,
    receive_data,
    receive_frame,
    same_output,
    send_frame,
)
from programs.sandbox.verdicts import Plan, Verdict, conclude, end_of, process_limits, status_of, timeout_text


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
    isolate_tests: bool = True,
    endpoint: str | None = None,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """Run a program against tests and return the verdict; whatever the program does, this returns in time.

    In time: within total_timeout_s, the moments it takes to end the processes, and where the last result is above
    64 KiB once more timeout_s (at least 1 s) to read it.

    Args:
        code: Python source, not trusted.
        tests: one of
            Python source or a list of it: asserts (each counts as a test), `def check(candidate)` as in HumanEval,
            `def test_…()`, unittest.TestCase; the program's names can be used in it;
            a list of {"args": […], "kwargs": {…}, "expected": value, "function": name} or of pairs (args, expected);
            a list of {"input": text on stdin, "output": text on stdout}; each is a run of the program as a script;
            {"inputs": […], "outputs": […], "fn_name": name or absent} as in APPS and LiveCodeBench.
        entry_point: the function under test; also found as a method of a class `Solution`.
        setup: trusted source that the tests see and the program does not: imports, helper functions.
        timeout_s: seconds a test may take; a timeout ends the run and the tests left count as failed.
        total_timeout_s: seconds all tests may take together (default: timeout_s for each, but at least for four
            and at most for ten).
        memory_mb: MiB of address space the program may add to those its process begins with (RLIMIT_AS, on Linux): the
            heap, imported modules, mapped files, 8 MiB for the stack of each thread. Not counted: up to 64 MiB of files
            in its folder, and what it prints.
        output_mb: MiB that one result may have as JSON, that one run may print, and that one file may have. More is an
            `output_limit`.
        strict: raise SandboxError unless programs are kept from network and files.
        isolate_tests: False runs Python tests in the program's process, for tests that compare instances of the
            program's classes; `trusted` is then False, as the program can forge the verdict.
        endpoint: URL of a SandboxFusion service that runs the program instead of this machine.
        sandbox: a Sandbox of your own instead of the shared one.

    Raises:
        BadTests: the tests cannot be used.
        SandboxError: no sandbox here, or not as strict as asked.

    >>> run_code("def double(x):\\n    return 2 * x", "assert double(4) == 8", entry_point="double").all_passed
    True
    """
    started = time.monotonic()
    plan = read_tests(tests, entry_point, isolate_tests and not setup)
    code = code or ""
    if not plan.cases or not code.strip():
        status, detail = ("error", "the program is empty") if plan.cases else ("no_tests", "there are no tests")
        return Verdict(total=len(plan.cases), status=status, detail=detail)
    total_s = total_timeout_s or timeout_s * min(max(len(plan.cases), 4), 10)
    limits = {"timeout_s": timeout_s, "total_s": total_s, "memory_mb": memory_mb, "result_bytes": output_mb << 20}
    if endpoint:
        verdict = run_at_endpoint(endpoint, code, plan, limits)
    else:
        sandbox = sandbox or DEFAULT
        judged = (code, plan, limits, entry_point, setup, isolate_tests)
        verdict = on_a_server(sandbox, strict, lambda: run_plan(sandbox, *judged))
    verdict.wall_s = time.monotonic() - started
    return verdict


def program_output(
    code: str,
    stdin: str = "",
    *,
    timeout_s: float = 3.0,
    memory_mb: int = 512,
    output_mb: int = 1,
    strict: bool = False,
    sandbox: Sandbox | None = None,
) -> tuple[str, str]:
    """Run a program as a script and return what it printed and what went wrong ("" for nothing).

    For tools that show a model what its program says; to judge a program, use run_code. Arguments as of run_code.

    >>> program_output("print(6 * 7)")
    ('42\\n', '')
    """
    sandbox = sandbox or DEFAULT
    limits = {"timeout_s": timeout_s, "total_s": 2 * timeout_s, "memory_mb": memory_mb, "result_bytes": output_mb << 20}

    def run():
        return script_output(sandbox, code, stdin, {**limits, "deadline": time.monotonic() + 2 * timeout_s})

    return on_a_server(sandbox, strict, run)


def on_a_server(sandbox: Sandbox, strict: bool, run):
    """What `run()` returns; once more by a new fork server where the one that there is goes away meanwhile."""
    check_isolation(sandbox, strict)
    server = sandbox.server
    try:
        return run()
    except ServerGone:  # the program is not to blame
        with sandbox.lock:
            if sandbox.server is server:
                sandbox.stop()
        check_isolation(sandbox, strict)
        return run()


def run_plan(sandbox: Sandbox, code: str, plan: Plan, limits: dict, entry_point, setup: str, isolate: bool) -> Verdict:
    """Run the tests in the form they have."""
    limits["deadline"] = time.monotonic() + limits["total_s"]
    if plan.kind == "python":
        return run_python_tests(sandbox, code, plan, limits, entry_point, setup, isolate)
    run = run_stdin_tests if plan.kind == "stdin" else run_calls
    return conclude(run(sandbox, code, plan.cases, limits), len(plan.cases))


def run_stdin_tests(sandbox: Sandbox, code: str, cases: list, limits: dict) -> list[dict]:
    """Run the program once for each (input, expected output); a timeout ends the run."""
    results = []
    for number, (given, expected) in enumerate(cases):
        if time.monotonic() >= limits["deadline"]:
            return [*results, {"test": number, "passed": False, "detail": timeout_text(limits)}]
        detail = run_script(sandbox, code, given, expected, limits)
        results.append({"test": number, "passed": not detail, "detail": detail})
        if detail.startswith("timeout"):
            return results
    return results


def run_script(sandbox: Sandbox, code: str, given: str, expected: str, limits: dict) -> str:
    """Run the program as a script; return "" if it prints what is expected, else what is wrong."""
    printed, problem = script_output(sandbox, code, given, limits)
    if problem:
        return problem
    return "" if same_output(expected, printed) else f"printed {printed[:200]!r}, expected {expected[:200]!r}"


def script_output(sandbox: Sandbox, code: str, given: str, limits: dict) -> tuple[str, str]:
    """Run the program as a script; return what it printed and what went wrong, "" for nothing."""
    deadline = min(time.monotonic() + limits["timeout_s"], limits["deadline"])
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(anonymous_file()) for _ in range(3))
        stdin.write(given.encode("utf-8", "surrogateescape"))
        stdin.seek(0)
        process = sandbox.spawn("program", process_limits(limits), (stdin, stdout, stderr))
        stack.callback(process.close)
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
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("sandbox"), "w+b")
    return tempfile.TemporaryFile()


def read_back(file, size: int) -> str:
    """The beginning of what a process wrote."""
    file.seek(0)
    return file.read(size).decode("utf-8", "surrogateescape")


def run_calls(sandbox: Sandbox, code: str, cases: list, limits: dict) -> list[dict]:
    """Load the program once and call its functions; the expected values stay here. What ends it ends the run."""
    process = sandbox.spawn("program", process_limits(limits))
    secrets = [os.urandom(12).hex() for _ in range(len(cases) + 1)]
    results, end = [], ""

    def answer() -> bytes:
        deadline = min(time.monotonic() + limits["timeout_s"], limits["deadline"])
        return receive_data(process.channel, deadline, limits["result_bytes"])

    try:
        calls = [
            {"nonce": secret, "op": "call", "target": name, "args": args, "kwargs": kwargs, "objects": False}
            for secret, (name, args, kwargs, *_) in zip(secrets[1:], cases, strict=True)
        ]
        process.channel.settimeout(limits["timeout_s"])
        send_frame(process.channel, {"mode": "calls", "nonce": secrets[0], "code": code, "calls": calls})
        loaded = answer()
        loaded = read_message(loaded if len(loaded) <= SMALL_RESULT else b"", secrets[0])
        if "error" in loaded:
            return [{"test": 0, "passed": False, "detail": error_text(loaded)}]
        for number, (secret, (*_, expected, mode)) in enumerate(zip(secrets[1:], cases, strict=True)):
            data = answer()
            if len(data) <= SMALL_RESULT:
                detail = compare(read_message(data, secret), decode(expected), mode)
            else:
                detail = have_judged(sandbox, data, {"nonce": secret, "expected": expected, "mode": mode}, limits)
            results.append({"test": number, "passed": not detail, "detail": detail})
    except TimeoutError:
        end = timeout_text(limits)
    except (Died, OSError) as error:
        end = str(error)
    finally:
        report = process.close()
    if end:
        detail = why_it_ended(end, report, limits)
        results.append({"test": len(results), "passed": False, "detail": detail})
    return results


def have_judged(sandbox: Sandbox, data: bytes, job: dict, limits: dict) -> str:
    """Have a judge read and compare one large result; return "" if it is the expected value."""
    own = {**limits, "memory_mb": max(limits["memory_mb"], JUDGE_MB)}
    seconds = max(limits["timeout_s"], JUDGE_S)
    judge, deadline = sandbox.spawn("judge", process_limits(own)), time.monotonic() + seconds
    try:
        judge.channel.settimeout(seconds)
        send_frame(judge.channel, {**job, "size": len(data)})
        judge.channel.sendall(data)
        answer = receive_frame(judge.channel, deadline, MAX_REPORT)
    except TimeoutError:
        raise Died(f"output limit: a result took more than {seconds} s to read") from None
    finally:
        judge.close()
    if "end" in answer:
        raise Died(answer["end"])
    return answer["detail"]


@contextlib.contextmanager
def judged_program(sandbox: Sandbox, limits: dict, isolate: bool = True):
    """A process for the program (None unless isolate) and one for the judge, which hold the ends of one socket."""
    program_side, judge_side = socket.socketpair()
    process = sandbox.spawn("program", process_limits(limits), channel=program_side) if isolate else None
    judge = None
    try:
        own = limits if not isolate else {**limits, "memory_mb": max(limits["memory_mb"], JUDGE_MB)}
        judge = sandbox.spawn("judge", process_limits(own), extra=judge_side)
        yield process, judge
    finally:
        for one in (judge, process):
            if one:
                one.close()


def why_it_ended(end: str, report: dict | None, limits: dict) -> str:
    """The words of the judge for the end of a run, made precise by how the program's process ended."""
    if (report or {}).get("problem"):
        return report["problem"]
    if end == "timeout":
        return timeout_text(limits)
    return end_of(report) if end == "the process ended" else end


def run_python_tests(
    sandbox: Sandbox, code: str, plan: Plan, limits: dict, entry_point: str | None, setup: str, isolate: bool
) -> Verdict:
    """Have a judge run the test source; it calls the program, which is in a process of its own."""
    job = {"code": code, "tests": plan.cases, "entry_point": entry_point, "setup": setup, "isolate": isolate}
    job.update({name: limits[name] for name in ("timeout_s", "result_bytes")})
    end, answer = "", {"passed": 0, "total": 0, "results": []}
    with judged_program(sandbox, limits, isolate) as (process, judge):
        try:
            judge.channel.settimeout(limits["total_s"])
            send_frame(judge.channel, job)
            answer = receive_frame(judge.channel, limits["deadline"], 4 * MAX_REPORT)
            end = answer["ended"] or answer["problem"]
        except TimeoutError:
            end = "timeout"
        except (Died, OSError):
            end = "the process of the tests ended"
    if end:
        end = why_it_ended(end, process.report if process else None, limits)
        answer["results"].append({"test": 0, "passed": False, "detail": end})
    total = max(answer["total"] + bool(end), 1)
    verdict = conclude(answer["results"], total)
    verdict.passed, verdict.total, verdict.trusted = answer["passed"], answer["total"] + bool(end), isolate
    verdict.trusted = isolate and answer.get("trusted", True)
    if not verdict.total:
        verdict.status, verdict.detail = "no_tests", "the tests assert nothing"
    elif end:
        verdict.status, verdict.detail = status_of(end), end
    elif verdict.passed == verdict.total:
        verdict.status = "ok"
    elif answer["unfit"]:
        verdict.status = "invalid_tests"
    return verdict


def run_many(jobs: list[dict], workers: int | None = None) -> list[Verdict]:
    """Run several programs side by side; each job holds the arguments of run_code. Workers: default one per core.

    Tests that cannot be used give the status invalid_tests and one warning for all: the other jobs go on.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers or available_cores()) as pool:
        verdicts = list(pool.map(run_job, jobs))
    bad = [number for number, verdict in enumerate(verdicts) if verdict.detail.startswith(UNUSABLE)]
    if bad:
        what = f"got {len(bad)} of {len(jobs)} jobs with tests that cannot be used, the first of them job {bad[0]}"
        warnings.warn(f"{what}: {verdicts[bad[0]].detail.removeprefix(UNUSABLE)}", RuntimeWarning, stacklevel=2)
    return verdicts


def run_job(job: dict) -> Verdict:
    """Run one job; tests that cannot be used are a verdict, too."""
    try:
        return run_code(**job)
    except BadTests as error:
        return Verdict(status="invalid_tests", detail=f"{UNUSABLE}{error}")
