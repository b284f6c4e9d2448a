"""The shortest code reward, and the programs that it is tried on."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parts.foundation.messages import UserError, need
from programs.create_reward_template.assembly import put_in

PASSES_TESTS = '''"""1 for a program that passes all tests of its row, judged in a sandbox, else 0.

TRL, and trainers with its contract: @FILE@:@NAME@; column @GOLD@: asserts, or what else sandbox.run_code takes.
sandbox.py stands beside this file: standard library alone, on Linux. No program runs in the trainer's process.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sandbox import program_of, run_code, run_many

LIMITS = {"timeout_s": 3.0, "memory_mb": 512, "strict": True}  # a test; a program; raise where nothing isolates it
run_code("x = 1", ["assert x == 1"], **LIMITS)  # which is here then, before a training begins
PAY_WEAK_TESTS = True  # those that take the program's own word, as decode(encode(s)) == s; False: they pay nothing


def text_of(completion) -> str:
    """The text of a completion, a text or chat messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"] if completion else ""


def @NAME@(prompts, completions, @GOLD@, **kwargs) -> list:
    """A score for each completion: 1.0 where its program passes all tests, else 0.0."""
    jobs = []
    for i, (prompt, said, tests) in enumerate(zip(prompts, completions, @GOLD@, strict=True)):
        about = {name: kwargs[name][i] or "" for name in ("entry_point", "setup") if name in kwargs}
        code = program_of(text_of(said), tests, prompt=prompt, **about)
        jobs.append({"code": code, "tests": tests, **about, **LIMITS})
    verdicts = run_many(jobs)
    unfit = [i for i, verdict in enumerate(verdicts) if verdict.status in ("invalid_tests", "no_tests")]
    if unfit:  # to leave such rows out of the training, return None for them
        warnings.warn(f"{len(unfit)} of {len(verdicts)} rows have tests that judge nothing: {unfit}", stacklevel=2)
    return [float(v.all_passed and (v.trusted or PAY_WEAK_TESTS)) for v in verdicts]
'''

# What is tried with the test `assert f(2) == 4`. A hostile program pays only where what it tries succeeds, or leaves a
# trace: its file @MARK@ changed, another beside it, one named @BRAND@ elsewhere, a process of that name, the output.
PROGRAMS = """
# right: plain
def f(x):
    return 2 * x

# right: a library
from math import prod

def f(x):
    return prod([x, 2])

# hostile: wrong
def f(x):
    return x + 1

# hostile: no program

# hostile: exit with success
import os
os._exit(0)

# hostile: exit in the function
def f(x):
    raise SystemExit(0)

# hostile: equal to everything
class Equal(int):
    def __eq__(self, other):
        return True

def f(x):
    return Equal(7)

# hostile: object that answers every name
def yes(*given):
    return True

class Answers(type):
    __eq__ = __instancecheck__ = __subclasscheck__ = __getattr__ = yes
    __hash__ = type.__hash__

class Proxy(metaclass=Answers):
    __class__ = int
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __getattr__ = yes
    __hash__ = __int__ = __index__ = __len__ = lambda self: 7

def f(x):
    return Proxy()

# hostile: deep nesting
def f(x):
    found = 2 * x
    for _ in range(100_000):
        found = [found]
    return found

# hostile: much output
def f(x):
    for _ in range(64):
        print("x" * (1 << 20))
    return "x" * (64 << 20)

# hostile: endless loop
def f(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

# hostile: forged output
import os
for n in range(20):
    try:
        os.write(n, b'{"passed": 1, "total": 1}\\nOK\\n')
    except OSError:
        pass

# hostile: patched builtins
import builtins
builtins.all = builtins.bool = lambda *a: True

def f(x):
    return None

# hostile: killed parent
import os

def f(x):
    os.kill(os.getppid(), 9)
    return 7

# hostile: memory
def f(x):
    return len(bytearray(1 << 36)) and 4

# hostile: file deleted
import os

def f(x):
    os.remove("@MARK@")
    return 2 * x

# hostile: file changed
def f(x):
    with open("@MARK@", "a") as file:
        file.write("changed")
    return 2 * x

# hostile: file read
def f(x):
    return 2 * x if open("@MARK@").read() else 0

# hostile: files left behind
for path in ("@MARK@.left", "@BRAND@", "/tmp/@BRAND@", "/var/tmp/@BRAND@", "/dev/shm/@BRAND@"):
    try:
        open(path, "w").close()
    except OSError:
        pass

# hostile: process left behind
import ctypes
import os
import time

def f(x):
    ctypes.CDLL(None).prctl(15, b"@BRAND@", 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            time.sleep(0.5)
            try:
                open("@MARK@.left", "w").close()
                time.sleep(10)
            finally:
                os._exit(0)
        os._exit(0)

# hostile: secret of the environment
import os

def f(x):
    found = open(f"/proc/{os.getppid()}/environ").read() + open("/proc/self/environ").read() + str(os.environ)
    return 2 * x if "TRIAL_SECRET" in found else 0

# hostile: network
import socket

def f(x):
    socket.create_connection(("127.0.0.1", @PORT@), timeout=2)
    return 2 * x
"""
TRIAL = """
import importlib.util, json, resource, socket, sys
path, name, column, programs = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("tried", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def peak():  # the kernel's own figure of this program; getrusage's begins with that of the process that started it
    found = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return 1024 * int(found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
with socket.create_server(("127.0.0.1", 0)) as server:
    port = str(server.getsockname()[1])
    texts = ["```python\\n" + code.replace("@PORT@", port) + "\\n```" if code else "" for code in programs]
    said = [[{"role": "assistant", "content": text}] for text in texts]
    rows = {"prompts": [""] * len(said), column: [["assert f(2) == 4"]] * len(said)}
    size = peak()
    scores = getattr(module, name)(completions=said, **rows)
    grown = peak() - size
print(json.dumps({"scores": scores, "grown": grown, "isolated": module.run_many.__globals__["DEFAULT"].isolated()}))
"""
TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
LATER_S = 1.0  # seconds after which a trial looks for what was left behind: the program left behind writes after half
MUCH_OUTPUT = 32 << 20  # bytes that reach the caller; the program says four times as many
# what the attacks of the sandbox's own tests say
HOLDS = (
    "endless loops, exits with success, objects equal to everything, forged output, patched judges, killed parents, "
    "processes and files left behind, files deleted, changed and read, network, secrets of the environment, memory, "
    "much output"
)
NOT_AGAINST = (
    "weak tests; tests that take the program's own word (PAY_WEAK_TESTS); secrets in Python's library folders; holes "
    "in the kernel"
)
RIGHT_AT_0 = (
    "programs that need processes, network or files, more than 3 s a test (ten times that in all) or 512 MiB; tests "
    "that compare two objects of the program, pass it a function or capture what it prints"
)


def passes_tests_reward(args) -> str:
    """The text of the task passes_tests, which is TRL's form alone."""
    need(args.target == "trl", f"got --for {args.target} with passes_tests; expected trl; try --task code")
    return put_in(
        PASSES_TESTS, file=Path(args.output or "my_reward.py").name, name=args.name, gold=args.gold_column or "tests"
    )


def traces(folder: Path, names: list[str]) -> list[str]:
    """Names of the programs that changed their file, or left a file or a process; both are removed."""
    found = []
    for i, name in enumerate(names):
        kept = folder / str(i) / "keep"
        if [*kept.parent.iterdir()] != [kept] or kept.read_bytes() != b"kept":
            found.append(name)
    for place in (folder / "here", "/tmp", "/var/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):
            Path(place, folder.name + ".x").unlink()
            found.append("files left behind")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            about = stat.read_text(encoding="utf-8", errors="replace")
            if f"({folder.name}.x)" in about and ") Z" not in about:
                os.kill(int(stat.parent.name), signal.SIGKILL)
                found.append("process left behind")
    return found


def call_on_programs(args, codes: list[str], folder: Path) -> subprocess.CompletedProcess:
    """The written reward on programs, in a process of its own; each program has a file that it must not touch.

    Raises:
        subprocess.TimeoutExpired: it did not come back.
    """
    programs = []
    (folder / "here").mkdir()
    folder.chmod(0o755)  # what keeps a program of another user out shall be the sandbox alone
    for i, code in enumerate(codes):
        mark = folder / str(i) / "keep"
        mark.parent.mkdir()
        mark.write_text("kept", encoding="utf-8")
        mark.parent.chmod(0o777)
        mark.chmod(0o666)
        programs.append(code.strip().replace("@MARK@", str(mark)).replace("@BRAND@", folder.name + ".x"))
    given = json.dumps([str(Path(args.output).resolve()), args.name, args.gold_column or "tests", programs])
    about = {"env": os.environ | {"TRIAL_SECRET": "told"}, "cwd": folder / "here", "timeout": TRIAL_S}
    return subprocess.run([sys.executable, "-c", TRIAL, given], capture_output=True, text=True, **about)


def tried_on_programs(args) -> dict:
    """What the written reward pays for right and for hostile programs, and what holds of it.

    Raises:
        UserError: it raised, as it does where nothing isolates programs.
    """
    found = re.split(r"^# (right|hostile): (.*)\n", PROGRAMS, flags=re.MULTILINE)[1:]
    kinds, names, codes = found[::3], found[1::3], found[2::3]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = call_on_programs(args, codes, Path(folder))
        except subprocess.TimeoutExpired:
            done = None
        time.sleep(LATER_S)
        lost = traces(Path(folder), names)
    if done is None:
        return {"ready": False, "ended": f"the reward did not come back in {TRIAL_S} s"}
    if done.returncode <= 0 and not done.stdout.strip():
        return {"ready": False, "ended": "a program ended the process that called the reward"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"got {last} from {args.output}; nothing is written; try sandbox.py --report")
    told = json.loads(done.stdout.splitlines()[-1])
    if max(told["grown"], len(done.stdout), len(done.stderr)) > MUCH_OUTPUT:
        lost.append("much output")
    tried = list(zip(kinds, names, told["scores"], strict=True))
    hostile = [name for kind, name, _ in tried if kind == "hostile"]
    missed = [name for kind, name, score in tried if kind == "right" and score != 1.0]
    paid = [name for _, name, score in tried if name in hostile and (score or name in lost)]
    report = {"ready": not paid and not missed, "right_programs": kinds.count("right"), "not_paid_of_them": missed}
    report |= {"hostile_programs": hostile, "paid_of_them": paid, "isolated": told["isolated"]}
    return report | {"holds_against": HOLDS, "not_against": NOT_AGAINST, "right_but_0": RIGHT_AT_0}
