"""The judge: calls the program, which runs in a separate process, and compares its results."""

import ast
import builtins
import contextlib
import importlib
import inspect
import itertools
import marshal
import operator
import os
import socket
import sys
import time
import types

from programs.sandbox.instances import Instances, classes_in
from programs.sandbox.limits import Died
from programs.sandbox.tests_in_python import (
    STANDARD,
    CountAsserts,
    FromProgram,
    Identity,
    argument_sets,
    calls_in,
    caught_names,
    defined_names,
    iterated_names,
    judging_names,
    names_in,
    used_as_classes,
    wraps_a_call,
)
from programs.sandbox.values import (
    INVALID,
    MUTABLE,
    compare,
    containers,
    decode,
    encode,
    error_text,
    receive_frame,
    rejoined,
    send_frame,
)

ENDS = (StopIteration, StopAsyncIteration)


class Ended(BaseException):
    """The program ended or hung: no test can go on. Not an Exception, so that tests do not catch it."""


class ProgramError(Exception):
    """The program raised an exception of its own making."""


class Unsafe(Exception):
    """A test asks the program for the verdict."""


def awaited(coroutine):
    """What a coroutine comes to."""
    import asyncio

    return asyncio.run(coroutine)


def converted(kind: type):
    """A method that asks for a plain version of a program's object and holds it to its type."""

    def convert(self):
        value = self._judge.ask(kind.__name__, self._target)
        if type(value) is not kind:
            raise TypeError(f"got {type(value).__name__}; expected {kind.__name__}")
        return value

    return convert


def as_instance(value):
    """An object of the program as an instance, on which operators work; plain data as it is."""
    if isinstance(value, RemoteObject):
        value.__dict__["_is_instance"] = True
    return value


def forwarded(name: str):
    """A method for an operator between instances only: from plain data it could learn what a test expects."""

    def operate(self, *others):
        if not all(isinstance(item, RemoteObject) and item._is_instance for item in (self, *others)):
            self._judge.unfit += self._is_instance
            raise TypeError(f"{name} of an object of the program works with another one only; try comparing plain data")
        return as_instance(self._judge.ask("operator", self._target, (name, *others)))

    return operate


def prepare(place, name: str, *about) -> None:
    """Call what pytest calls before tests, a function of a module's names or a method, with as much as it takes."""
    setup = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
    if setup:
        setup(*about[: len(inspect.signature(setup).parameters)])


class RemoteObject:
    """A function, class or object of the program, seen from the judge; results that are plain data come as such.

    `==` never asks it. A test that calls methods of an object does: what they return is the program's word. So are
    `in`, `+` and the like, which work only on instances: what the tests make by a class and use as an object.
    """

    def __init__(self, judge, target):
        self.__dict__.update(_judge=judge, _target=target, _is_instance=False)

    def __call__(self, *args, **kwargs):
        value = self._judge.ask("call", self._target, args, kwargs)
        return as_instance(value) if self._target in self._judge.classes else value

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__wrapped__"):
            raise AttributeError(name)
        return self._judge.ask("attribute", self._target, (name,))

    def __iter__(self):
        return iter(self._judge.ask("list", self._target))

    def __next__(self):
        found = self._judge.ask("next", self._target)  # a list of one, empty at the end
        if type(found) is not list or len(found) != 1:
            raise StopIteration
        return found[0]

    def __enter__(self):
        return self._judge.ask("enter", self._target)

    def __exit__(self, *error):
        self._judge.ask("exit", self._target)  # without the error, which only the tests may catch

    def __getitem__(self, key):
        return self._judge.ask("item", self._target, (key,))

    def __eq__(self, other):
        self._judge.unfit += isinstance(other, RemoteObject)
        raise Unsafe("compares an object of the program, which could decide that by itself; try comparing plain data")

    __hash__ = object.__hash__
    __doc__ = property(lambda self: self._judge.ask("attribute", self._target, ("__doc__",)))

    def __lt__(self, other):
        if not isinstance(other, RemoteObject):
            return NotImplemented
        self._judge.unfit += self._is_instance or other._is_instance
        raise Unsafe("orders objects of the program, which could decide that by itself; try comparing plain data")

    __gt__ = __le__ = __ge__ = __lt__

    def __contains__(self, item):
        if not self._is_instance:  # the program could return this where a list is expected
            return any(found is item or found == item for found in self)
        self._judge.trusted = False
        return bool(self._judge.ask("contains", self._target, (item,)))

    def __instancecheck__(self, value):
        self._judge.trusted = False
        return bool(self._judge.ask("isinstance", self._target, (value,)))

    def __setattr__(self, name, value):
        self._judge.ask("set", self._target, (name, value))

    def __setitem__(self, key, value):
        self._judge.ask("put", self._target, (key, value))

    def __delitem__(self, key):
        self._judge.ask("delete", self._target, (key,))

    def __len__(self):
        try:  # list() asks for it, and takes TypeError for an answer
            return operator.index(self._judge.ask("len", self._target))
        except Exception as error:
            raise TypeError(str(error)) from None

    def __repr__(self):
        return self._judge.ask("repr", self._target)

    __str__, __bool__, __int__, __float__ = map(converted, (str, bool, int, float))
    __add__, __sub__, __mul__ = map(forwarded, ("__add__", "__sub__", "__mul__"))
    __truediv__, __floordiv__, __mod__ = map(forwarded, ("__truediv__", "__floordiv__", "__mod__"))
    __matmul__, __and__, __or__, __xor__ = map(forwarded, ("__matmul__", "__and__", "__or__", "__xor__"))
    __neg__, __invert__, __abs__ = map(forwarded, ("__neg__", "__invert__", "__abs__"))


class RemoteCoroutine(RemoteObject):
    """A coroutine of the program, which runs to its end there as soon as it is awaited here."""

    def __await__(self):
        return self._judge.ask("await", self._target)
        yield  # which makes this a generator

    def send(self, value):
        """What `asyncio.run` and tasks call: the result, as a coroutine gives it."""
        raise StopIteration(self._judge.ask("await", self._target))

    def __next__(self):
        return self.send(None)

    def throw(self, *error):
        """A coroutine that is cancelled before it began."""
        raise error[-1] if isinstance(error[-1], BaseException) else error[0]

    def close(self):
        """Nothing is left to close."""


def may_be_raised(kind) -> bool:
    """Whether it is an exception, and none that would end a loop of the tests as if it were done."""
    return isinstance(kind, type) and issubclass(kind, Exception) and kind not in ENDS


def is_closed(function: types.FunctionType) -> bool:
    """Whether a function of the tests, a lambda say, reads no name of theirs: it can run in the program's process."""
    codes = [function.__code__]
    for code in codes:  # grows
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {name for code in codes for name in code.co_names} & function.__globals__.keys()
    return not (own or function.__closure__ or function.__kwdefaults__)


class Judge:
    """Runs tests; calls go to the program's own process, and what comes back is compared here.

    Attributes:
        unfit: how often the tests did what only the program could judge: compared two objects of it, say.
        classes: names whose results the tests use as objects.
        errors: the exceptions of the program that the tests expect, as classes of this process.
        lent: lists and the like that are attributes in the program, {(object, name): (copy, how it was)}.
        trusted: False where the program's constants or functions judge a result.
        ended: why no test could go on.
    """

    def __init__(self, program: socket.socket, job: dict):
        self.program, self.job = program, job
        self.passed = self.total = 0
        self.results, self.ended, self.unfit, self.trusted = [], "", 0, True
        self.classes, self.errors, self.lent = set(), {}, {}
        self.instances, self.shareable = Instances(0, self.number_of, self.refer), dict

    def record(self, line: int, passed: bool, detail: str = "") -> None:
        """Count one test."""
        self.passed += passed
        self.total += 1
        if len(self.results) < 1000:
            self.results.append({"test": line, "passed": passed, "detail": detail[:500]})
        if self.job["stops"] and not passed:
            raise Ended("a test failed")

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
        self.give_back()
        self.instances.classes = self.shareable()
        message = {"op": op, "target": target, "objects": True, "args": [encode(item, self.instances) for item in args]}
        message["kwargs"] = {name: encode(item, self.instances) for name, item in (kwargs or {}).items()}
        known = containers([*args, *(kwargs or {}).values()])
        first = {id(item): place for place, item in reversed([*enumerate(known)])}
        message["same"] = [first[id(item)] for item in known]
        message["classes"], message["states"] = list(self.instances.classes), self.instances.states()
        answer = self.exchange(message)
        if "error" in answer:
            self.raise_same(answer)
        self.learn(answer.get("states"), message["states"].keys())
        value, changed = decode(answer.get("value"), self.instances), decode(answer.get("args"), self.instances)
        if known and isinstance(changed, list):
            *_, value = rejoined([*changed, value], answer.get("same"), known)
        if op == "attribute" and isinstance(value, MUTABLE):
            self.lent[target, *args] = value, encode(value, self.instances)
        return value

    def learn(self, states, sent) -> None:
        """Take over the states of objects in an answer."""
        try:
            self.instances.learn(states or {}, sent)
        except (AttributeError, KeyError, TypeError, ValueError):
            self.end(INVALID)

    def give_back(self) -> None:
        """Set attributes of objects anew whose lists, dicts and the like the tests have changed since they got them."""
        lent, self.lent = self.lent, {}
        changed = [key for key, (value, before) in lent.items() if encode(value, self.instances) != before]
        for target, name in changed:
            self.ask("set", target, (name, lent.pop((target, name))[0]))
        self.lent = lent

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

    def refer(self, number: int, kind: str) -> RemoteObject:
        """An object that stays with the program."""
        return (RemoteCoroutine if kind == "coroutine" else RemoteObject)(self, number)

    def number_of(self, value) -> int:
        """The number of an object that stays with the program; other arguments that are no data are refused."""
        if isinstance(value, RemoteObject):  # a name of the program, or a number
            return value._target if isinstance(value._target, int) else self.ask("get", value._target)._target
        if isinstance(value, types.FunctionType) and is_closed(value):
            return self.ask("function", None, (marshal.dumps(value.__code__), value.__defaults__))._target
        self.unfit += 1
        what = "function that reads names of the tests" if callable(value) else type(value).__name__
        raise Unsafe(f"passes a {what} to the program; only plain data and other functions can be sent")

    def expect(self, bases, names: set) -> None:
        """Make exceptions for those names that the program says are ones, each of its nearest built-in base."""
        for name in names & bases.keys() if isinstance(bases, dict) else ():
            kinds = (getattr(builtins, str(base), None) for base in bases[name])
            kind = next(filter(may_be_raised, kinds), Exception)
            self.errors[name] = type(name, (kind,), {"__init__": Exception.__init__, "__module__": "tests"})

    def raise_same(self, answer: dict):
        """Raise what the program raised: an exception that the tests expect, else the nearest built-in one."""
        names = dict.fromkeys(map(str, answer["error"])) if isinstance(answer["error"], list) else {}
        message, known = str(answer.get("message"))[:500], decode(answer.get("known"), self.instances)
        args, state = known if isinstance(known, list) and len(known) == 2 else ([message], {})
        expected = tuple(self.errors[name] for name in names if name in self.errors)
        found = [type(expected[0].__name__, expected, {"__str__": lambda self: message})] if expected else []
        for name in () if expected else names:
            kind = getattr(builtins, name, None)
            if kind in ENDS:
                break
            if may_be_raised(kind) and kind is not Exception:
                found.append(kind)
        for kind, given in itertools.product(found, (args, [message])):
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
        namespace = {"__name__": "tests", "__Exception__": Exception}
        namespace.update(__check__=self.check, __require__=self.require, __fail__=self.fail)
        namespace.update(issubclass=self.is_subclass, __is__=self.is_same)
        trees = [imports.visit(ast.parse(source, "tests.py")) for source in self.job["cases"]]
        whole = ast.Module([statement for tree in trees for statement in tree.body], [])
        loaded, setup = self.load(), ast.parse(self.job["setup"], "setup.py")
        names = loaded["names"] if isinstance(loaded.get("names"), dict) else {}
        every, known = ast.Module([*setup.body, *whole.body], []), defined_names(setup) | namespace.keys()
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
            code = compile(Identity().visit(CountAsserts().visit(tree)), "tests.py", "exec", dont_inherit=True)
            self.attempt(lambda code=code: exec(code, namespace))
        self.run_functions(namespace, whole)
        defined = {name for name, kind in names.items() if not str(kind).startswith("module ")}
        if not defined & (names_in(whole) | ({entry, "Solution"} if entry else set())):
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
                self.fail(0, error)

    def offer(self, names: dict, namespace: dict, tests: ast.AST) -> None:
        """Put the program's names that the tests use into their namespace, but not for what judges a result."""
        entry, used = self.job["entry_point"], names_in(tests)
        functions = {name for name, kind in names.items() if kind == "callable"} & used - namespace.keys()
        program = functions | ({entry, "candidate"} if entry else set())
        judging = judging_names(tests, (functions | STANDARD.keys() & used) - namespace.keys(), program)
        for name in judging - {entry}:  # isclose(f(1), 2): what judges a result must not be the program's
            if name in STANDARD:
                namespace[name] = getattr(importlib.import_module(STANDARD[name]), name)
        wrapping = {name for name in functions - STANDARD.keys() - {entry} if wraps_a_call(tests, name, program)}
        self.trusted &= not wrapping - vars(builtins).keys()
        tested = functions & vars(builtins).keys()
        if entry or functions - vars(builtins).keys() - STANDARD.keys():
            tested = set()  # the tests are about another function
        elif len(tested) > 1:
            self.trusted = False  # which of them judge the others is a guess
            tested = (tested - iterated_names(tests)) or tested
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
            instance = [case()] if case else []
            prepare(instance[0] if case else {}, "setup_method", test)
            found = test(*instance, **arguments)
            return awaited(found) if inspect.iscoroutine(found) else found

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
