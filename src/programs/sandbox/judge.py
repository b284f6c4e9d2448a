"""The judge of Python tests."""

import ast
import builtins
import contextlib
import importlib
import importlib.util
import inspect
import os
import socket
import sys
import time
import types

from programs.sandbox.errors import Died
from programs.sandbox.judge_objects import (
    STANDARD,
    CountAsserts,
    Ended,
    FromProgram,
    ProgramError,
    RemoteCoroutine,
    RemoteObject,
    Unsafe,
    awaited,
    iterated_names,
    judging_names,
    looks_at_output,
    names_in,
    wraps_a_call,
)
from programs.sandbox.values import (
    compare,
    decode,
    encode,
    error_text,
    read_message,
    receive_exactly,
    receive_frame,
    send_frame,
)


def load_program(code: str, namespace: dict) -> None:
    """Run a program as a module; an example of its use that reads stdin or exits takes back nothing it has defined."""
    with contextlib.suppress(EOFError, SystemExit):
        exec(compile(code, "program.py", "exec", dont_inherit=True), namespace)


class Judge:
    """Runs test code; calls to the program go to its own process, and what comes back is compared here."""

    def __init__(self, program: socket.socket, job: dict):
        self.program, self.job = program, job
        self.passed = self.total = 0
        self.results, self.ended, self.unfit, self.trusted = [], "", False, True

    def record(self, line: int, passed: bool, detail: str = "") -> None:
        """Count one test."""
        self.passed += passed
        self.total += 1
        if len(self.results) < 1000:
            self.results.append({"test": line, "passed": passed, "detail": detail[:500]})

    def check(self, line: int, value) -> None:
        """Count an assert."""
        self.record(line, bool(value), "" if value else "the assertion is false")

    def require(self, line: int, value) -> None:
        """Count an assert that holds; raise for one that does not."""
        if not value:
            raise AssertionError
        self.record(line, True)

    def fail(self, line: int, error: BaseException) -> None:
        """Count a test that raised."""
        self.record(line, False, f"{type(error).__name__}: {error}")

    def exchange(self, message: dict) -> dict:
        """Send a request under a fresh secret and return the answer that carries it."""
        if self.ended:
            raise Ended(self.ended)
        nonce = os.urandom(12).hex()
        try:
            self.program.settimeout(self.job["timeout_s"])
            send_frame(self.program, {"nonce": nonce, **message})
            answer = receive_frame(self.program, time.monotonic() + self.job["timeout_s"], self.job["result_bytes"])
            if answer.get("nonce") != nonce:
                raise Died("the process sent no valid message")
        except TimeoutError:
            self.ended = "timeout"
        except (Died, OSError) as error:
            self.ended = str(error)
        if self.ended:
            raise Ended(self.ended)
        if "error" in answer:
            self.raise_same(answer)
        return answer

    def ask(self, op: str, target, args=(), kwargs=None):
        """Have the program's process perform an operation; changed lists, dicts and sets are changed here too."""
        message = {"op": op, "target": target, "objects": True, "args": [encode(item, self.number_of) for item in args]}
        message["kwargs"] = {name: encode(item, self.number_of) for name, item in (kwargs or {}).items()}
        answer = self.exchange(message)
        for item, data in zip(args, answer.get("args", ()), strict=False):
            if isinstance(item, list | dict | set):
                new = decode(data, self.refer)
                if type(new) is type(item) and new != item:
                    item.clear()
                    (item.extend if isinstance(item, list) else item.update)(new)
        return decode(answer.get("value"), self.refer)

    def refer(self, number: int, kind: str) -> RemoteObject:
        """An object that stays with the program."""
        return (RemoteCoroutine if kind == "coroutine" else RemoteObject)(self, number)

    def number_of(self, value) -> int:
        """The number of an object that stays with the program; other arguments that are no data are refused."""
        if isinstance(value, RemoteObject):
            return value._target
        self.unfit = True
        raise Unsafe(f"passes a {type(value).__name__} to the program; only plain data can be sent")

    @staticmethod
    def raise_same(answer: dict):
        """Raise what the program raised, as the nearest built-in exception."""
        for name in answer["error"] if isinstance(answer["error"], list) else []:
            kind = getattr(builtins, str(name), None)
            if kind in (StopIteration, StopAsyncIteration):  # would end a loop of the tests as if it were done
                break
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
                try:
                    error = kind(str(answer.get("message"))[:500])
                except TypeError:  # UnicodeDecodeError, say, takes more than a text
                    continue
                raise error
        raise ProgramError(error_text(answer))

    def run(self) -> None:
        """Load the program, then run the tests, each piece of source by itself."""
        entry = self.job["entry_point"]
        namespace = {"__name__": "tests", "__Exception__": Exception}
        namespace.update(__check__=self.check, __require__=self.require, __fail__=self.fail)
        imports = FromProgram()
        trees = [imports.visit(ast.parse(source, "tests.py")) for source in self.job["tests"]]
        if self.job["isolate"]:
            self.unfit = looks_at_output(trees)
            exec(compile(self.job["setup"], "setup.py", "exec", dont_inherit=True), namespace)
            names = self.exchange({"mode": "module", "code": self.job["code"]}).get("names", {})
            self.offer(names, namespace, trees)
            defined = {name for name, kind in names.items() if not str(kind).startswith("module ")}
        else:
            exec(compile(self.job["setup"], "setup.py", "exec", dont_inherit=True), namespace)
            before = dict(namespace)
            load_program(self.job["code"], namespace)
            defined = {name for name, value in namespace.items() if before.get(name) is not value}
        if entry:
            candidate = RemoteObject(self, entry) if self.job["isolate"] else namespace[entry]
            namespace.update({entry: candidate, "candidate": candidate})
        for tree in trees:
            code = compile(CountAsserts().visit(tree), "tests.py", "exec", dont_inherit=True)
            self.attempt(lambda code=code: exec(code, namespace))
        self.run_functions(namespace, trees)
        if not defined & (names_in(*trees) | ({entry, "Solution"} if entry else set())):
            self.passed = 0
            for result in self.results:
                result.update(passed=False, detail=result["detail"] or "the tests use nothing that the program defines")

    def attempt(self, action) -> None:
        """Run a piece of the tests; an exception counts as a test that fails."""
        try:
            action()
        except Exception as error:
            self.fail(0, error)

    def offer(self, names: dict, namespace: dict, trees: list) -> None:
        """Put the program's names that the tests use into their namespace, but not for what judges a result."""
        entry, used = self.job["entry_point"], names_in(*trees)
        functions = {name for name, kind in names.items() if kind == "callable"} & used - namespace.keys()
        program = functions | ({entry, "candidate"} if entry else set())
        judging = judging_names(trees, (functions | STANDARD.keys() & used) - namespace.keys(), program)
        for name in judging - {entry}:  # isclose(f(1), 2): what judges a result must not be the program's
            if name in STANDARD:
                namespace[name] = getattr(importlib.import_module(STANDARD[name]), name)
        wrapping = {name for name in functions - STANDARD.keys() - {entry} if wraps_a_call(trees, name, program)}
        self.trusted &= not wrapping - vars(builtins).keys()
        tested = functions & vars(builtins).keys()
        if entry or functions - vars(builtins).keys() - STANDARD.keys():
            tested = set()  # the tests are about another function
        elif len(tested) > 1:
            self.trusted = False  # which of them judge the others is a guess
            tested = (tested - iterated_names(trees)) or tested
            tested = (tested - judging_names(trees, tested, tested)) or tested
        bases = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        dotted = {node.id for node in bases if isinstance(node, ast.Name)}
        for name in used - namespace.keys() - (vars(builtins).keys() - tested):
            kind = str(names.get(name))
            module = kind[7:] if kind.startswith("module ") else {"np": "numpy"}.get(name, name)
            known = module.partition(".")[0] in {*sys.stdlib_module_names, "numpy"}
            if known and (name in dotted or kind.startswith("module ")):  # the real one, not what the program made
                with contextlib.suppress(ImportError):
                    namespace[name] = importlib.import_module(module)
            elif name not in names or kind.startswith("module "):
                continue
            elif kind == "value":
                self.trusted = False  # the program's own word for what is right
                namespace[name] = self.ask("get", name)
            else:
                namespace[name] = RemoteObject(self, name)

    def run_functions(self, namespace: dict, trees: list) -> None:
        """Call `check(candidate)` unless the tests do, each `test…()`, and the methods of each unittest.TestCase."""
        calls = (node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
        called = {function.id for function in calls if isinstance(function, ast.Name)}
        if "check" in namespace and "check" not in called and self.job["entry_point"]:
            self.attempt(lambda: namespace["check"](namespace["candidate"]))
        for name, value in list(namespace.items()):
            if isinstance(value, RemoteObject):
                continue
            if name.startswith("test") and isinstance(value, types.FunctionType) and name not in called:
                self.attempt(value if not inspect.iscoroutinefunction(value) else lambda test=value: awaited(test()))
            elif isinstance(value, type) and value.__module__ == "tests" and hasattr(value, "defaultTestResult"):
                self.run_case(value)

    def run_case(self, case: type) -> None:
        """Run a unittest.TestCase; each of its methods is one test."""
        import unittest

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        bad = [text.strip().splitlines()[-1] for _, text in result.failures + result.errors]
        for i in range(result.testsRun):
            self.record(0, i >= len(bad), bad[i] if i < len(bad) else "")


def judge_result(channel: socket.socket, job: dict) -> None:
    """Compare one large result, which follows the job unread, with the value that is expected."""
    data = receive_exactly(channel, job["size"], None)
    try:
        detail = compare(read_message(data, job["nonce"]), decode(job["expected"]), job["mode"])
        send_frame(channel, {"detail": detail[:1000]})
    except MemoryError:
        send_frame(channel, {"end": "output limit: a result is too large"})
    except Died as error:
        send_frame(channel, {"end": str(error)})


def run_judge(channel: socket.socket, program: socket.socket | None = None) -> None:
    """Run the tests of one program and tell the caller what came of them."""
    sys.set_int_max_str_digits(0)  # tests may hold numbers of any length; this process is ended in time anyway
    job = receive_frame(channel)
    if "size" in job:
        judge_result(channel, job)
        os._exit(0)
    judge = Judge(program, job)
    problem = ""
    try:
        judge.run()
    except Ended:
        pass
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"[:500]
    answer = {"passed": judge.passed, "total": judge.total, "results": judge.results, "unfit": judge.unfit}
    answer["trusted"] = judge.trusted
    send_frame(channel, {**answer, "ended": judge.ended, "problem": problem})
    os._exit(0)
