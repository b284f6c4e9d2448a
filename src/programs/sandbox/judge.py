"""The judge: calls the program, which runs in a separate process, and compares its results."""

import ast
import builtins
import contextlib
import importlib
import inspect
import itertools
import marshal
import os
import socket
import sys
import time
import types

from parts.rewards.extracts import bound_names, read_names
from programs.sandbox.comparison import compare, error_text
from programs.sandbox.messages import INVALID, Died, receive_frame, send_frame
from programs.sandbox.remote_objects import RemoteObject, Unsafe
from programs.sandbox.tests_in_python import (
    STANDARD,
    ForJudge,
    FromProgram,
    argument_sets,
    calls_in,
    caught_names,
    judging_names,
    used_as_classes,
)
from programs.sandbox.values import SharedObjects, classes_in, decode, encode

ENDS = (StopIteration, StopAsyncIteration)


class Ended(BaseException):
    """The program ended or hung: no test can go on. Not an Exception, so that tests do not catch it."""


class ProgramError(Exception):
    """The program raised an exception of its own making."""


def awaited(coroutine):
    """What a coroutine comes to."""
    import asyncio

    return asyncio.run(coroutine)


def prepare(place, name: str, *about) -> None:
    """Call what pytest calls before tests, a function of a module's names or a method, with as much as it takes."""
    setup = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
    if setup:
        setup(*about[: len(inspect.signature(setup).parameters)])


def may_be_raised(kind) -> bool:
    """Whether it is an exception, and none that would end a loop of the tests as if it were done."""
    return isinstance(kind, type) and issubclass(kind, Exception) and kind not in ENDS


def is_closed(function: types.FunctionType) -> bool:
    """Whether a function of the tests, a lambda say, reads no name of theirs: it can run in the program's process."""
    codes = [function.__code__]
    for code in codes:  # grows
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    read = {name for code in codes for name in code.co_names} & function.__globals__.keys()
    return not (read or function.__closure__ or function.__kwdefaults__)


class Judge:
    """Runs tests; calls go to the program's own process, and what comes back is compared here.

    Attributes:
        unfit: how often the tests did what only the program could judge: compared two objects of it, say.
        classes: names whose results the tests use as objects.
        errors: the exceptions of the program that the tests expect, as classes of this process.
        sorting: whether `sorted` or the like is running.
        reading: whether an answer is being read.
        trusted: False where the program's constants or functions judge a result.
        ended: why no test could go on.
    """

    def __init__(self, program: socket.socket, job: dict):
        self.program, self.job = program, job
        self.passed = self.total = 0
        self.results, self.ended, self.unfit, self.trusted = [], "", 0, True
        self.classes, self.errors, self.sorting, self.reading = set(), {}, False, False
        self.shared, self.shareable = SharedObjects(0, self.reference, self.resolve), dict

    def record(self, line: int, passed: bool, detail: str = "") -> None:
        self.passed += passed
        self.total += 1
        if len(self.results) < 1000:
            self.results.append({"test": line, "passed": passed, "detail": detail[:500]})
        if self.job["stops"] and not passed:
            raise Ended("a test failed")

    def check(self, line: int, value) -> None:
        self.record(line, bool(value), "" if value else "the assertion is false")

    def require(self, line: int, value) -> None:
        """Count an assert that holds; raise for one that does not."""
        if not value:
            raise AssertionError
        self.record(line, True)

    def fail(self, line: int, error: BaseException) -> None:
        self.record(line, False, f"{type(error).__name__}: {error}")

    def end(self, why: str):
        """No test can go on."""
        self.ended = self.ended or why
        raise Ended(why)

    def exchange(self, message: dict) -> dict:
        """Send a request under a fresh secret and return the answer that carries it."""
        if self.ended:
            self.end(self.ended)
        nonce = os.urandom(12).hex()
        try:
            self.program.settimeout(self.job["timeout_s"])
            send_frame(self.program, {"nonce": nonce, **message})
            deadline = min(time.monotonic() + self.job["timeout_s"], self.job["deadline"])
            answer = receive_frame(self.program, deadline, self.job["result_bytes"])
        except TimeoutError:
            self.end("timeout")
        except (Died, OSError) as error:
            self.end(str(error))
        if answer.get("nonce") != nonce:
            self.end(INVALID)
        return answer

    def load(self) -> dict:
        """Run the program as a module; returns the kinds of its names."""
        answer = self.exchange({"mode": "module", "code": self.job["code"]})
        if "error" in answer:
            self.end(error_text(answer))
        return answer

    def ask(self, op: str, target, args=(), kwargs=None):
        """Have the program's process perform an operation; what it changes in arguments is changed here too."""
        self.shared.forget()
        self.shared.classes = self.shareable()
        message = {"op": op, "target": target, "objects": True, "args": [encode(item, self.shared) for item in args]}
        message["kwargs"] = {name: encode(item, self.shared) for name, item in (kwargs or {}).items()}
        message["classes"], message["states"] = list(self.shared.classes), self.shared.states()
        answer = self.exchange(message)
        if "error" in answer:
            self.raise_same(answer)
        self.reading = True
        try:
            self.shared.learn(answer.get("states") or {}, message["states"])
            value = decode(answer.get("value"), self.shared)
        except (AttributeError, KeyError, TypeError, ValueError):
            self.end(INVALID)
        finally:
            self.reading = False
        if op == "getattr":
            self.shared.lend(target, *args, value)
        return value

    def is_same(self, one, other) -> bool:
        """`is` in the tests; of two objects of the program, the program alone knows it."""
        if one is not other and isinstance(one, RemoteObject) and isinstance(other, RemoteObject):
            return one == other  # which raises
        return one is other

    def is_subclass(self, kind, base) -> bool:
        """`issubclass` in the tests; for the program's classes, the program answers."""
        if not isinstance(kind, RemoteObject):
            return issubclass(kind, base)
        self.trusted = False
        return bool(self.ask("issubclass", kind._target, (base,)))

    def type_of(self, value):
        """`type(x)` and `x.__class__` in the tests; the program answers for its own objects."""
        return self.ask("type", value._target) if isinstance(value, RemoteObject) else type(value)

    def sort(self, function, *args, **kwargs):
        """`sorted(x)` and the like in the tests; meanwhile the program may order its own objects."""
        before, self.sorting = self.sorting, isinstance(function, types.BuiltinFunctionType)
        try:
            return function(*args, **kwargs)
        finally:
            self.sorting = before

    def resolve(self, tag: str, number):
        """What stands here for an object that stays in the program: a proxy, or a coroutine to await."""
        return self.result_of(number) if tag == "coroutine" else RemoteObject(self, int(number), tag == "own_hash")

    async def result_of(self, coroutine: int):
        """Await a coroutine of the program, which runs it to its end there."""
        return self.ask("await", coroutine)

    def reference(self, value) -> dict:
        """The JSON of an argument that is not plain data: an object of the program, or a function that can be sent."""
        if isinstance(value, RemoteObject):
            return {"t": "ref", "v": value._target}
        if isinstance(value, types.FunctionType) and is_closed(value):
            code = marshal.dumps(value.__code__).hex()
            return {"t": "function", "v": [code, encode(value.__defaults__, self.shared)]}
        self.unfit += 1
        kind = "function that reads names of the tests" if callable(value) else type(value).__name__
        raise Unsafe(f"passes a {kind} to the program; only plain data and other functions can be sent")

    def expect(self, bases, names: set) -> None:
        """Make exceptions for those names that the program says are ones, each of its nearest built-in base."""
        for name in names & bases.keys() if isinstance(bases, dict) else ():
            kinds = (getattr(builtins, str(base), None) for base in bases[name])
            kind = next(filter(may_be_raised, kinds), Exception)
            self.errors[name] = type(name, (kind,), {"__init__": Exception.__init__, "__module__": "tests"})

    def raise_same(self, answer: dict):
        """Raise what the program raised: an exception that the tests expect, else the nearest built-in one."""
        names = dict.fromkeys(map(str, answer["error"])) if isinstance(answer["error"], list) else {}
        message, known = str(answer.get("message"))[:500], decode(answer.get("known"), self.shared)
        args, state = known if isinstance(known, list) and len(known) == 2 else ([message], {})
        expected = tuple(self.errors[name] for name in names if name in self.errors)
        kinds = [type(expected[0].__name__, expected, {"__str__": lambda self: message})] if expected else []
        for name in () if expected else names:
            kind = getattr(builtins, name, None)
            if kind in ENDS:
                break
            if may_be_raised(kind) and kind is not Exception:
                kinds.append(kind)
        for kind, given in itertools.product(kinds, (args, [message])):
            error = None
            with contextlib.suppress(TypeError, ValueError):  # UnicodeDecodeError, say, takes more than a text
                error = kind(*given)
                error.__dict__.update(state)
            if error is not None and str(error) == message:
                raise error
        raise ProgramError(error_text(answer))

    def run_calls(self) -> None:
        """Call the program's functions and compare each result with the value that is expected."""
        self.load()
        for number, (name, args, kwargs, expected, mode) in enumerate(self.job["cases"]):
            call = {"op": "call", "target": name, "args": args, "kwargs": kwargs, "objects": False}
            call["asserted"] = mode == "=="
            detail = compare(self.exchange(call), decode(expected), mode)
            self.record(number, not detail, detail)

    def run_source(self) -> None:
        """Load the program, then run the tests, each piece of source by itself."""
        entry, imports = self.job["entry_point"], FromProgram()
        namespace = {"__name__": "tests", "__Exception__": Exception, "issubclass": self.is_subclass}
        namespace |= {"__check__": self.check, "__require__": self.require, "__fail__": self.fail}
        namespace |= {"__is__": self.is_same, "__type__": self.type_of, "__sort__": self.sort}
        trees = [imports.visit(ast.parse(source, "tests.py")) for source in self.job["cases"]]
        whole = ast.Module([statement for tree in trees for statement in tree.body], [])
        loaded, setup = self.load(), ast.parse(self.job["setup"], "setup.py")
        names = loaded["names"] if isinstance(loaded.get("names"), dict) else {}
        every, known = ast.Module([*setup.body, *whole.body], []), bound_names(setup) | namespace.keys()
        self.expect(loaded.get("errors"), caught_names(whole) & names.keys() - vars(builtins).keys() - known)
        self.classes = used_as_classes(every)
        self.offer({name: kind for name, kind in names.items() if name not in known}, namespace, every)
        theirs = loaded.get("classes") or ()
        self.shareable = lambda: {n: kind for n, kind in classes_in(namespace, "tests").items() if n in theirs}
        exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
        namespace.update({k: v for k, v in self.errors.items() if isinstance(namespace.get(k), RemoteObject)})
        if entry:
            candidate = RemoteObject(self, entry)
            namespace.update({entry: candidate, "candidate": candidate})
        for tree in trees:
            code = compile(ForJudge().visit(tree), "tests.py", "exec", dont_inherit=True)
            self.attempt(lambda code=code: exec(code, namespace))
        self.run_functions(namespace, whole)
        defined = {name for name, kind in names.items() if not str(kind).startswith("module ")}
        if not defined & (read_names(whole) | ({entry, "Solution"} if entry else set())):
            self.passed = 0
            for result in self.results:
                result.update(passed=False, detail=result["detail"] or "the tests use nothing that the program defines")

    def attempt(self, action) -> None:
        """Run a piece of the tests; an exception counts as a test that fails."""
        try:
            action()
        except Ended:
            raise
        except BaseException as error:  # those of pytest are no Exception
            if type(error).__name__ != "Skipped":
                is_missing = isinstance(error, ModuleNotFoundError) and error.name  # which the program's have not
                self.unfit += bool(is_missing)
                self.fail(0, error)

    def offer(self, names: dict, namespace: dict, tests: ast.AST) -> None:
        """Put the program's names that the tests use into their namespace, but not for what judges a result."""
        entry, used = self.job["entry_point"], read_names(tests)
        functions = {name for name, kind in names.items() if kind == "callable"} & used - namespace.keys()
        program = functions | ({entry, "candidate"} if entry else set())
        judging = judging_names(tests, (functions | STANDARD.keys() & used) - namespace.keys(), program)
        for name in judging - {entry}:  # isclose(f(1), 2): what judges a result must not be the program's
            if name in STANDARD:
                namespace[name] = getattr(importlib.import_module(STANDARD[name]), name)
        of_program = functions - STANDARD.keys() - {entry} - vars(builtins).keys()
        for call in (call for call in calls_in(tests) if call.func.id in of_program):  # same(f(1), 2), not ours
            self.trusted &= not {inner.func.id for inner in calls_in(call)} & program - {call.func.id}
        tested = functions & vars(builtins).keys()
        if entry or functions - vars(builtins).keys() - STANDARD.keys():
            tested = set()  # the tests are about another function
        elif len(tested) > 1:
            self.trusted = False  # which of them judge the others is a guess
            loops = [part.iter for part in ast.walk(tests) if hasattr(part, "iter")]
            tested = (tested - read_names(*loops)) or tested  # what decides how often something is tested
            tested = (tested - judging_names(tests, tested, tested)) or tested
        bases = (node.value for node in ast.walk(tests) if isinstance(node, ast.Attribute))
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

    def run_functions(self, namespace: dict, tests: ast.AST) -> None:
        """Call `check(candidate)` unless the tests do, each `test…()`, and the methods of each unittest.TestCase."""
        prepare(namespace, "setup_module")
        called = {call.func.id for call in calls_in(tests)}
        if "check" in namespace and "check" not in called and self.job["entry_point"]:
            self.attempt(lambda: namespace["check"](namespace["candidate"]))
        for name, value in list(namespace.items()):
            if isinstance(value, RemoteObject):
                continue
            if name.startswith("test") and isinstance(value, types.FunctionType) and name not in called:
                prepare(namespace, "setup_function", value)
                self.run_test(value)
            elif isinstance(value, type) and value.__module__ == "tests" and hasattr(value, "defaultTestResult"):
                self.run_case(value)
            elif isinstance(value, type) and name.startswith("Test") and value.__module__ == "tests":
                prepare(value, "setup_class")
                for method in (name for name in dir(value) if name.startswith("test")):
                    self.run_test(getattr(value, method), value)

    def run_test(self, test, case: type | None = None) -> None:
        """Call a test, a method on an object of its own, with each set of its arguments."""

        def run(arguments: dict):
            parameters = [*inspect.signature(test).parameters.values()][bool(case) :]
            missing = {p.name for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL} - {*arguments}
            if missing:
                self.unfit += 1
                raise Unsafe(f"needs {', '.join(sorted(missing))}; try a value in place of a fixture")
            instance = [case()] if case else []
            prepare(instance[0] if case else {}, "setup_method", test)
            value = test(*instance, **arguments)
            return awaited(value) if inspect.iscoroutine(value) else value

        for arguments in argument_sets(test):
            self.attempt(lambda arguments=arguments: run(arguments))

    def run_case(self, case: type) -> None:
        """Run a unittest.TestCase; each of its methods is one test."""
        import unittest

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        bad = [text.strip().splitlines()[-1] for _, text in result.failures + result.errors]
        for i in range(max(result.testsRun, len(bad))):  # setUpClass may fail before any test
            self.record(0, i >= len(bad), bad[i] if i < len(bad) else "")

    def outcome(self, catch=BaseException) -> dict:
        """Run the tests and say how they went; exceptions of a kind end them."""
        try:
            {"calls": self.run_calls, "python": self.run_source}[self.job["kind"]]()
        except Ended:
            pass
        except catch as error:
            self.ended = str(error) if isinstance(error, Died) else f"{type(error).__name__}: {error}"[:500]
        parts = ("passed", "total", "results", "trusted", "ended")
        unfit = 0 < self.unfit >= self.total - self.passed  # else a test failed that any program can be held to
        return {**{name: getattr(self, name) for name in parts}, "unfit": unfit}


def run_judge(channel: socket.socket, program: socket.socket) -> None:
    """Run the tests of one program and tell the caller the outcome."""
    sys.set_int_max_str_digits(0)  # tests may hold numbers of any length; this process is ended in time anyway
    with contextlib.suppress(Died, OSError):  # the first request finds that out
        receive_frame(program)  # it has started
    send_frame(channel, {"started": True})
    send_frame(channel, Judge(program, receive_frame(channel)).outcome())
    os._exit(0)
