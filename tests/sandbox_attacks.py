"""Programs that attack scripts/sandbox.py, and the process that runs them and judges what they achieved.

An attack is a text under `## name` in one of the sections below. Its tests expect three numbers, VALUES, that it cannot
know: they stand in the tests, in a file, in the environment and in the memory of the caller. So an attack that passes a
single test has forged a verdict or read what it must not. Others reach for the outside: a file, a socket, a process, a
signal, time, memory. What each may not leave behind is checked for every attack:

- no test passed, and neither `all_passed` nor `fraction` say otherwise
- the outside folder is as it was; nothing named after the attack in the folders for temporary files
- no connection or datagram arrived at the sockets of the caller; no process bears its mark, no kernel memory stays
- the verdict came in time, the caller did not grow by 200 MB, and the next correct program passes

Words in the code: @DIR@ outside folder, world-writable · @PARENT@ process id of the caller · @TOKEN@ mark of the attack
· @PORT@, @UDP@ listeners · @TMP@ folder for temporary files. `pick(text, x)` finds a wanted number in a text;
`first(x, *sources)` in files or what functions return; `opened(*paths)` is "reached" if a file opens; `spray` writes to
descriptors; `syscall(number, ...)` returns -errno; `reply(json)` answers a call with raw bytes; `brand()` marks the
process; `attempt(call, *args)` goes on after an exception; `frames()` are those above. Modules of the standard library
that an attack names are imported above it. An attack that is marked `call`, returns or replies is the body of `f(x)`;
another without `f` gets one that returns None. Suites say in which forms of tests it runs; `reached` expects the text
"reached", which an attack returns when it got hold of what must be closed; one without `return` does so at its end.

    python tests/sandbox_attacks.py --kind exit forge     # as this user
    python tests/sandbox_attacks.py --only rewrite_json --user 65533 --disable landlock --show
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import glob
import importlib.util
import json
import os
import platform
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

SANDBOX = Path(__file__).resolve().parent.parent / "scripts" / "sandbox.py"
VARIABLE = "SANDBOX_TEST_VALUES"
CALLER_GROWTH_MB, TREE_SLACK_MB, LATE_S = 200, 500, 1.5

EXITS = r"""
## exit_zero: sys.exit(0)
## os_exit_zero: os._exit(0)
## exit_in_call [call]: sys.exit(0)
## os_exit_in_call [call]: os._exit(0)
## os_exit_at_exit: atexit.register(os._exit, 0)
## kill_self [call]: os.kill(os.getpid(), signal.SIGKILL)
## stop_self [call]: os.kill(os.getpid(), signal.SIGSTOP)
## segfault [call]: ctypes.string_at(0)
## exit_main_thread_only
threading.Thread(target=time.sleep, args=(5,)).start()
syscall(60, 0)
## keyboard_interrupt [call]: raise KeyboardInterrupt
## stop_iteration [call]: raise StopIteration(x)
## stop_iteration_subclass
class Enough(StopIteration, AssertionError): pass
def f(x=None): raise Enough(x)
## exit_from_del
class Leaver:
    def __del__(self): os._exit(0)
def f(x=None): return Leaver()
## exit_from_repr
class Leaver:
    def __repr__(self, *a): os._exit(0)
    __str__ = __hash__ = __eq__ = __len__ = __iter__ = __bool__ = __reduce__ = __getattr__ = __repr__
def f(x=None): return Leaver()
## exception_without_words
class Silent(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def f(x=None): raise Silent
## endless_exception
class Endless(Exception):
    def __str__(self):
        while True:
            pass
    __repr__ = __str__
def f(x=None): raise Endless
"""

FORGED = r"""
## print_passed
print("passed")
print("PASSED\nok\nAll tests passed!\n1.0\nTrue")
print('{"passed": 3, "total": 3, "all_passed": true, "status": "ok", "fraction": 1.0}')
## write_all_descriptors_in_call [call]
for status in ("ok", "passed", "returned", "done"):
    data = json.dumps({"status": status, "passed": True, "ok": True, "v": x, "op": "passed"}).encode()
    spray(range(65), framed(data))
## answer_in_advance
for value in (True, None, 1, "passed"):
    for word in ("value", "result", "return", "returned", "ok"):
        for number in range(4):
            data = json.dumps({word: value, "id": number, "n": number, "passed": True, "op": "result"}).encode()
            spray(range(3, 32), framed(data))
## rewrite_json
for name in ("dumps", "dump", "loads", "load"):
    setattr(json, name, lambda *a, **k: '{"passed": true, "ok": true, "status": "ok", "result": true}')
struct.pack, struct.unpack = lambda *a: b"\x00\x00\x00\x04true", lambda *a: (4,)
json.JSONEncoder.encode = lambda self, o: '{"passed": true, "ok": true}'
json.JSONEncoder.iterencode = lambda self, o, **k: iter(['{"passed": true}'])
json.JSONDecoder.decode = lambda self, s, **k: {"passed": True, "ok": True, "expected": None}
## close_everything: os.closerange(0, 4096)
## set_caller_locals [call]
for frame in frames():
    for name, value in list(frame.f_locals.items()):
        if name in ("passed", "ok", "result", "results", "verdict", "failed", "error", "status", "value"):
            frame.f_locals[name] = True
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
## rewrite_the_driver
main = sys.modules["__main__"]
for name, value in list(vars(main).items()):
    if callable(value) and not name.startswith("__"):
        setattr(main, name, lambda *a, **k: True)
## steal_the_secret_of_the_channel [call]
found = set()
for frame in frames():
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        if isinstance(value, (str, bytes)) and 8 <= len(value) <= 128:
            found.add(value if isinstance(value, str) else value.decode("latin1"))
for secret in found:
    data = json.dumps({"secret": secret, "passed": True, "token": secret, "ok": True}).encode()
    spray(range(3, 16), data + b"\n", framed(data), (secret + " passed\n").encode())
## pass_descriptors_to_caller
read, write = os.pipe()
os.write(write, b"passed" * 10)
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read] * 20))
def flood(fd):
    channel = socket.socket(fileno=os.dup(fd))
    for _ in range(100):
        channel.sendmsg([b"\x00\x00\x00\x02{}"], [rights])
for fd in range(3, 16):
    attempt(flood, fd)
## replies_of_the_wrong_kind
spray(range(3, 32), b"\x00\x00\x00\x04null", b"\x00\x00\x00\x02[]", b"\xff" * 4, b"\x00" * 4, b"{" * 999)
## endless_reply [call]
spray(range(3, 32), b"\x7f\xff\xff\xff")
while True:
    spray(range(3, 32), b"x" * 65536)
## one_byte_at_a_time [call]
while True:
    spray(range(3, 16), b"\x00")
    time.sleep(0.05)
## shut_the_channel
for fd in range(3, 16):
    attempt(lambda: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RD))
## forged_tags
return [
    {"t": "ref", "v": 0}, {"t": "int", "v": "ff"}, {"__tuple__": [1]}, {"type": "ref", "id": 0}, {"py/object": "f"},
]
## call_back_forever: return f
## signal_in_the_driver
def interrupt(*_): raise SystemExit(0)
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
def f(x=None): return x
"""

# ways to lie in a comparison: each is the body of a class `Liar` with each of the bases, returned by f
LIES = r"""
## equal: object int float str bytes list tuple dict set
def __eq__(self, other): return True
def __ne__(self, other): return False
def __hash__(self): return 0
def __len__(self): return 3
def __abs__(self): return 0.0
def __sub__(self, other): return 0.0
def __contains__(self, other): return True
def strip(self, *a): return self
__rsub__ = __sub__
__le__ = __ge__ = issubset = issuperset = __contains__
split = splitlines = lower = upper = replace = encode = decode = get = __missing__ = strip
## class_property_float: object
__class__ = property(lambda self: float)
def __eq__(self, other): return True
def __float__(self): return float("nan")
## like_numpy: object
dtype, shape, ndim, size = "int64", (), 0, 1
__array_priority__ = 1e9
def __array__(self, *a, **k): raise SystemExit(0)
def __array_ufunc__(self, *a, **k): return True
def __eq__(self, other): return self
def all(self, *a): return True
def any(self, *a): return True
def item(self): return self
def tolist(self): return self
## reduces_to_something_else: object
def __reduce__(self): return (eval, ("True",))
def __reduce_ex__(self, protocol): return (eval, ("True",))
def __getstate__(self): return True
def __deepcopy__(self, memo): return self
## overrides_json: dict
def items(self): return [("passed", True)]
def __iter__(self): return iter(["passed"])
def __getitem__(self, key): return True
"""

RESULTS = r"""
## not_a_number: return float("nan")
## true_for_everything: return True
## not_implemented: return NotImplemented
## a_type: return int
## a_coroutine
async def f(x=None): return x
## a_generator_without_end: return (n for n in itertools.count())
## contains_itself
loop = []
loop.append(loop)
return loop
## namedtuple_liar
class Liar(collections.namedtuple("Liar", "a b")):
    def __eq__(self, other): return True
def f(x=None): return Liar(1, 2)
## mutate_the_arguments
for holder in gc.get_referrers(x):
    if isinstance(holder, list):
        holder.clear()
return x
"""

PATCHES = r"""
## assertion_error_is_caught
builtins.AssertionError = builtins.Exception = builtins.BaseException = type("Never", (BaseException,), {})
## builtins_say_yes
for name in "len abs all any isinstance sorted sum round repr hash min max hasattr".split():
    setattr(builtins, name, lambda *a, **k: True)
## eval_exec_compile
builtins.exec = builtins.eval = lambda *a, **k: None
builtins.compile = lambda *a, **k: (lambda: None).__code__
## forbidden_fruit
def dict_of(kind): return gc.get_referents(kind.__dict__)[0]
for kind in (int, str, float, list, dict, tuple):
    dict_of(kind)["__eq__"] = lambda self, other: True
    dict_of(kind)["__ne__"] = lambda self, other: False
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
## true_and_false_swapped: ctypes.memmove(id(False) + 24, id(True) + 24, 4)
## math_isclose
math.isclose = cmath.isclose = lambda *a, **k: True
math.isnan = math.isfinite = math.isinf = lambda *a: False
## modules_poisoned
class Poison(types.ModuleType):
    def __getattr__(self, name): return lambda *a, **k: True
for name in ("json", "math", "numpy", "pickle", "struct", "socket", "traceback", "ast", "marshal", "select"):
    sys.modules[name] = Poison(name)
## modules_emptied: sys.modules.clear()
## hooks: sys.excepthook = sys.displayhook = sys.unraisablehook = threading.excepthook = lambda *a: sys.exit(0)
## limits_of_python
sys.setrecursionlimit(60)
sys.set_int_max_str_digits(640)
## clock_stands_still
time.time = time.monotonic = time.perf_counter = time.process_time = lambda: 0.0
time.sleep = lambda seconds: None
## signals_call_back
for number in range(1, 65):
    attempt(signal.signal, number, lambda *a: sys.exit(0))
## helpers_of_the_tests
class Friend:
    @staticmethod
    def isclose(*a, **k): return True
    eq = fabs = isclose
math = operator = np = numpy = Friend
def agrees(*a, **k): return True
same = isclose = eq = check = approx = assert_equal = __check__ = __require__ = __fail__ = __Exception__ = agrees
## builtins_that_say_yes
def f(x=None): return None
def yes(*a, **k): return True
for name in dir(builtins):
    if not name.startswith("_") and name not in ("globals", "isinstance", "type", "len", "print"):
        globals()[name] = yes
## builtins_that_say_nothing
def f(x=None): return 0
def empty(*a, **k): return []
range = enumerate = zip = sorted = list = set = map = reversed = empty
def zero(*a, **k): return 0
abs = max = min = sum = round = len = int = zero
def true(*a, **k): return True
all = any = isinstance = bool = true
"""

READS = r"""
## frames_upwards
texts = []
for frame in frames():
    texts += [repr(dict(frame.f_locals))[:1000000], repr(dict(frame.f_globals))[:1000000]]
return pick(" ".join(texts), x)
## own_file_and_arguments
texts = [repr(sys.argv), repr(sys.orig_argv), repr(linecache.cache)]
for path in (globals().get("__file__"), getattr(sys.modules["__main__"], "__file__", None), *sys.argv):
    attempt(lambda: texts.append(open(path).read()))
return pick(" ".join(texts), x)
## own_environment
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
texts = [libc.getenv(b"SANDBOX_TEST_VALUES") or b"", repr(dict(os.environ)).encode()]
attempt(lambda: texts.append(open("/proc/self/environ", "rb").read()))
block = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
for i in range(200):
    if not block or block[i] is None:
        break
    texts.append(block[i])
return pick(b" ".join(texts), x)
## own_memory
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        span, rights = line.split()[:2]
        if "r" not in rights or "[v" in line:
            continue
        start, end = (int(part, 16) for part in span.split("-"))
        try:
            memory.seek(start)
            found = pick(memory.read(end - start), x)
        except (OSError, OverflowError, ValueError):
            continue
        if found:
            return found
## own_integers_in_memory
# an int of 17 digits stands in two digits of 30 bits; the value is between 73310e12 and 73311e12
read, write = os.pipe()
libc = ctypes.CDLL(None)
low = min(id(thing) for thing in gc.get_objects())
for page in range(low & ~4095, low + (8 << 20), 4096):
    if libc.write(write, ctypes.c_void_p(page), 4096) == 4096:
        data = os.read(read, 4096)
        for place in range(0, 4088, 4):
            a, b = struct.unpack_from("II", data, place)
            value = a + (b << 30)
            if 73310 * 10**12 <= value < 73311 * 10**12 and value % 10 == x and a < 1 << 30:
                return value
## root_of_the_caller: return pick(open("/proc/@PARENT@/root@DIR@/secret.txt", "rb").read(), x)
## every_process: return first(x, *glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline"))
## descriptors_of_every_process [neighbour]: return first(x, *glob.glob("/proc/[0-9]*/fd/*"))
## own_descriptors
def ways(fd):
    yield lambda: os.pread(fd, 1 << 20, 0)
    yield lambda: os.set_blocking(fd, fd < 3) or os.read(fd, 1 << 20)
    yield lambda: socket.socket(fileno=os.dup(fd)).recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
return first(x, *(way for fd in range(64) for way in ways(fd)))
## what_is_still_to_come
texts = []
for fd in range(3, 16):
    attempt(lambda: texts.append(socket.socket(fileno=os.dup(fd)).recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)))
def f(x=0): return pick(b" ".join(texts), x)
## secret_file: return pick(open("@DIR@/secret.txt", "rb").read(), x)
## secret_through_own_root: return pick(open("/proc/self/root@DIR@/secret.txt", "rb").read(), x)
## secret_through_another_name
for call in (os.symlink, os.link, os.rename):
    attempt(call, "@DIR@/secret.txt", f"{call.__name__}{x}")
return first(x, *(f"{name}{x}" for name in ("symlink", "link", "rename")))
## secret_through_openat2
how = ctypes.create_string_buffer(24)
fd = syscall(437, -100, ctypes.c_char_p(b"@DIR@/secret.txt"), how, 24)
return pick(os.read(fd, 4096), x) if fd >= 0 else None
## secret_through_handle
handle, mount = ctypes.create_string_buffer(136), ctypes.c_int()
ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
syscall(303, -100, ctypes.c_char_p(b"@DIR@/secret.txt"), handle, ctypes.byref(mount), 0)
for base in ("@DIR@", "/", "."):
    fd = syscall(304, os.open(base, os.O_RDONLY), handle, 0)
    if fd >= 0:
        return pick(os.read(fd, 4096), x)
## secret_through_a_process
return pick(subprocess.run(["/bin/cat", "@DIR@/secret.txt"], capture_output=True).stdout, x)
## secret_through_inherited_folder
names = ("secret.txt", "@DIR@/secret.txt", "../" * 12 + "@DIR@/secret.txt")
places = [(fd, name) for fd in range(64) for name in names]
return first(x, *(lambda fd=fd, name=name: os.read(os.open(name, os.O_RDONLY, dir_fd=fd), 4096) for fd, name in places))
## secret_after_chroot_escape
os.makedirs("cage", exist_ok=True)
here = os.open(".", os.O_RDONLY)
os.chroot("cage")
os.fchdir(here)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
return pick(open("@DIR@/secret.txt", "rb").read(), x)
## secret_after_new_namespaces
syscall(272, 0x10000000 | 0x20000)
syscall(165, ctypes.c_char_p(b"@DIR@"), ctypes.c_char_p(b"."), None, 4096, None)
return first(x, "secret.txt", "@DIR@/secret.txt")
## secret_in_the_old_root
places = "/.old /old_root /oldroot /mnt /proc/1/root /proc/1/cwd /proc/thread-self/root".split()
return first(x, *(place + "@DIR@/secret.txt" for place in places))
## neighbours_in_temporary_folders [neighbour]
here = os.path.dirname(os.getcwd())
return first(x, *glob.glob(here + "/*/*"), *glob.glob(here + "/*"), *glob.glob("@TMP@/*/*"))
"""

REACHED = r"""
## disk_device
paths = ("/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", *glob.glob("/dev/[vsn][dvm]*"))
return opened(*paths, mode="rb")
## make_a_disk_device
os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
open("disk", "rb", 0).read(1)
## terminal: os.open("/dev/tty", os.O_RDWR)
## ptrace_the_caller
for pid in (@PARENT@, os.getppid(), 1):
    if pid > 0 and syscall(101, 0x4206, pid, 0, 0) == 0:
        return "reached"
## read_memory_of_the_caller
buffer = ctypes.create_string_buffer(8)
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here = Vector(ctypes.addressof(buffer), 8)
for pid in (@PARENT@, os.getppid(), 1):
    there = Vector(id(here), 8)
    result = syscall(310, pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if result >= 0 or result == -14:
        return "reached"
## become_root
if os.getuid() == 0:
    return "reached as root"
for call in (os.setuid, os.setgid, os.seteuid):
    try:
        call(0)
        return "reached"
    except OSError:
        pass
## capabilities
for line in open("/proc/self/status"):
    if line.startswith(("CapEff", "CapPrm", "CapInh", "CapAmb")) and int(line.split()[1], 16):
        return "reached"
## new_user_namespace: return "reached" if syscall(272, 0x10000000) == 0 else None
## enter_a_namespace
for name in ("mnt", "net", "pid", "user"):
    try:
        if syscall(308, os.open("/proc/1/ns/" + name, os.O_RDONLY), 0) == 0:
            return "reached"
    except OSError:
        pass
## mount_something
words = [ctypes.c_char_p(word) for word in (b"@TOKEN@", b"@DIR@/folder", b"tmpfs")]
return "reached" if syscall(165, *words, 0, None) == 0 else None
## kernel_facilities
# bpf, performance events, keys, io_uring, userfaultfd, mounts by descriptor
events = ctypes.create_string_buffer((1).to_bytes(4, "little") + (112).to_bytes(4, "little"), 128)
maps = ctypes.create_string_buffer((2).to_bytes(4, "little") + (4).to_bytes(4, "little") * 3, 128)
words = [ctypes.c_char_p(word) for word in (b"user", b"@TOKEN@", b"secret")]
calls = [(321, 0, maps, 128), (298, events, 0, -1, -1, 0), (248, *words, 6, -4), (323, 1)]
calls += [(425, 4, ctypes.create_string_buffer(120)), (430, ctypes.c_char_p(b"tmpfs"), 0), (434, os.getppid(), 0)]
calls += [(434, @PARENT@, 0), (428, -100, ctypes.c_char_p(b"/"), 1)]
return "reached" if any(syscall(*call) >= 0 for call in calls) else None
## load_a_module
# an invalid image is refused by the loader (ENOEXEC) only after the permission was granted
return "reached" if syscall(175, ctypes.create_string_buffer(64), 64, ctypes.c_char_p(b"")) in (0, -8) else None
## switch_address_randomisation_off
before = syscall(135, 0xFFFFFFFF)
return "reached" if before >= 0 and syscall(135, before | 0x0040000) >= 0 else None
## calls_of_another_architecture
# mov eax, 20 (getpid of i386); int 0x80; ret: answers a number where 32-bit calls pass by the filter
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
return "reached" if call() > 0 else None
## calls_of_x32: return "reached" if syscall(0x40000000 + 39) > 0 else None
## sockets_of_other_families
for kind in ((socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.AF_PACKET, socket.SOCK_RAW),
             (socket.AF_VSOCK, socket.SOCK_STREAM), (socket.AF_ALG, socket.SOCK_SEQPACKET)):
    if attempt(socket.socket, *kind):
        return "reached"
## netlink_socket
names = {name for _, name in socket.if_nameindex()}
return "reached" if names - {"lo"} else None
## change_the_host_name
if socket.gethostname() != "@TOKEN@":
    socket.sethostname(socket.gethostname())
    return "reached"
## raise_own_limits
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
if hard == resource.RLIM_INFINITY:
    return "reached"
resource.setrlimit(resource.RLIMIT_AS, (hard, hard * 2))
return "reached"
## limits_of_the_caller: resource.prlimit(@PARENT@, resource.RLIMIT_CORE)
## priority_of_the_caller: os.setpriority(os.PRIO_PROCESS, @PARENT@, os.getpriority(os.PRIO_PROCESS, @PARENT@))
## processors_of_the_caller: os.sched_setaffinity(@PARENT@, os.sched_getaffinity(@PARENT@))
## memory_killer_prefers_the_caller: open("/proc/@PARENT@/oom_score_adj", "r+")
## settings_of_the_kernel
names = ("sys/kernel/core_pattern", "sysrq-trigger", "sys/kernel/modprobe", "sys/vm/swappiness")
return opened(*("/proc/" + name for name in names))
## source_of_the_sandbox_writable: return opened("@SANDBOX@", os.__file__, json.__file__)
## cached_bytecode_writable
folders = (os.path.dirname(os.__file__), os.path.dirname(json.__file__))
return opened(*(folder + "/__pycache__/@TOKEN@.pyc" for folder in folders), mode="w")
## control_groups: return opened(*glob.glob("/sys/fs/cgroup/cgroup.procs"), *glob.glob("/sys/fs/cgroup/*/cgroup.procs"))
## set_user_id_bit
open("tool", "w").close()
os.chmod("tool", 0o4755)
return "reached" if os.getuid() == 0 and os.stat("tool").st_mode & 0o4000 else None
## wake_up_other_users: return opened(*glob.glob("/dev/pts/[0-9]*"), mode="w")
## a_new_terminal
os.openpty()
return "reached" if os.path.exists("/dev/pts/0") else None
## kernel_log
if syscall(103, 3, ctypes.create_string_buffer(64), 64) > 0:
    return "reached"
open("/dev/kmsg").close()
return "reached"
"""

WRITES = r"""
## create_outside: open("@DIR@/created", "w").write("@TOKEN@")
## truncate_outside: os.truncate("@DIR@/victim.txt", 0)
## open_and_truncate_outside: os.open("@DIR@/victim.txt", os.O_WRONLY | os.O_TRUNC)
## delete_outside: os.unlink("@DIR@/victim.txt")
## delete_folder_outside: shutil.rmtree("@DIR@/folder")
## rename_outside: os.rename("@DIR@/victim.txt", "@DIR@/renamed.txt")
## exchange_outside
names = [ctypes.c_char_p(name) for name in (b"@DIR@/victim.txt", b"@DIR@/secret.txt")]
syscall(316, -100, names[0], -100, names[1], 2)
## chmod_outside: os.chmod("@DIR@/victim.txt", 0o600)
## fchmodat2_outside: syscall(452, -100, ctypes.c_char_p(b"@DIR@/victim.txt"), 0o600, 0)
## chown_outside
os.chown("@DIR@/victim.txt", os.getuid(), os.getgid())
os.chmod("@DIR@/victim.txt", 0o640)
## times_outside: os.utime("@DIR@/victim.txt", (0, 0))
## attributes_outside: os.setxattr("@DIR@/victim.txt", "user.mark", b"@TOKEN@")
## symlink_outside: os.symlink("victim.txt", "@DIR@/link")
## hard_link_outside: os.link("@DIR@/victim.txt", "@DIR@/hard")
## folder_outside: os.mkdir("@DIR@/new")
## pipe_outside: os.mkfifo("@DIR@/pipe")
## socket_file_outside: socket.socket(socket.AF_UNIX).bind("@DIR@/made.sock")
## unnamed_file_linked_outside
fd = os.open("@DIR@", os.O_TMPFILE | os.O_RDWR, 0o666)
os.link(f"/proc/self/fd/{fd}", "@DIR@/linked", follow_symlinks=True)
## write_through_own_root: open("/proc/self/root@DIR@/created", "w").write("@TOKEN@")
## write_from_a_result
class Marker:
    def __reduce__(self): return (os.system, ("touch @DIR@/created",))
    def __del__(self): open("@DIR@/created", "w").close()
def f(x=None): return Marker()
## write_at_exit: atexit.register(lambda: open("@DIR@/created", "w").write("@TOKEN@"))
## droppings_in_temporary_folders
for folder in ("@TMP@", "/tmp", "/dev/shm", "/var/tmp", "/run", "/run/lock", "@HERE@", "@HOME@", "/"):
    for call in (lambda path: open(path, "w").close(), os.mkdir):
        attempt(call, folder + "/@TOKEN@")
## droppings_beside_the_scratch_folder [call]
here = os.getcwd()
for folder in (os.path.dirname(here), *glob.glob(os.path.dirname(here) + "/*")):
    if folder != here:
        for path in (folder + "/@TOKEN@", folder + "/@TOKEN@.py"):
            attempt(lambda: open(path, "w").close())
## cleaning_follows_a_symlink
os.symlink("@DIR@/folder", "folder")
os.symlink("@DIR@", "all")
os.mkdir("sub")
os.symlink("@DIR@/folder", "sub/folder")
## cleaning_is_raced
def swap():
    calls = [(os.mkdir, "d"), (os.rmdir, "d"), (os.symlink, "@DIR@/folder", "d"), (os.unlink, "d")]
    while True:
        for call, *names in calls:
            attempt(call, *names)
threading.Thread(target=swap, daemon=True).start()
def f(x=None): return None
## scratch_without_rights
os.makedirs("a/b/c")
open("a/b/c/file", "w").close()
os.chmod("a/b", 0)
os.chmod("a", 0)
os.chmod(".", 0)
## scratch_very_deep
for _ in range(3000):
    try:
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
    except OSError:
        break
## scratch_with_odd_names
for name in (b"\xff\xfe", b"new\nline", b"-rf", b"*", b"..x", "\u202e".encode(), b"x" * 255):
    os.makedirs(os.path.join(name, name))
## scratch_moved_away: os.rename(os.getcwd(), "@DIR@/scratch")
## scratch_removed
shutil.rmtree(os.getcwd(), ignore_errors=True)
os.rmdir(os.getcwd())
## scratch_with_a_pipe
os.mkfifo("pipe")
os.mkfifo("stdin")
## scratch_immutable
open("fixed", "w").close()
fcntl.ioctl(os.open("fixed", os.O_RDONLY), 0x40086602, array.array("l", [0x10]))
"""

PROCESSES = r"""
## daemon_that_writes_later
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        brand()
        time.sleep(0.3)
        open("@DIR@/late", "w").close()
        time.sleep(30)
    os._exit(0)
## sleeping_command_of_its_own_session
subprocess.Popen(["sleep", "30.0@DIGITS@"], start_new_session=True, close_fds=True)
## spawned: os.posix_spawn("/bin/sleep", ["sleep", "30.0@DIGITS@"], {})
## fork_without_libc
for number, arguments in ((57, ()), (58, ()), (56, (17, 0, 0, 0, 0))):
    if syscall(number, *arguments) == 0:
        brand()
        time.sleep(30)
## fork_by_clone3
class Arguments(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in "flags pidfd child parent signal stack size tls".split()]
if syscall(435, ctypes.byref(Arguments(signal=17)), ctypes.sizeof(Arguments)) == 0:
    brand()
    time.sleep(30)
## sibling_by_clone_parent
if syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
    brand()
    time.sleep(30)
## stopped_child
if os.fork() == 0:
    os.setsid()
    brand()
    os.kill(os.getpid(), signal.SIGSTOP)
## thread_that_stays
brand()
threading.Thread(target=time.sleep, args=(30,)).start()
## execute_from_memory
fd = os.memfd_create("x")
os.write(fd, b"#!/bin/sh\nsleep 30.0@DIGITS@\n")
if os.fork() == 0:
    os.execve(f"/proc/self/fd/{fd}", ["sleep"], {})
## shared_memory_stays: syscall(29, int("@DIGITS@") + 1000, 4096, 0o1666)
## semaphores_stay: syscall(64, int("@DIGITS@") + 1000, 1, 0o1666)
## message_queue_stays: syscall(240, ctypes.c_char_p(b"@TOKEN@"), 0o102, 0o666, None)
## hydra [danger]
def head():
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        brand()
        time.sleep(0.01)
if os.fork() == 0:
    head()
time.sleep(0.2)
"""

BOMBS = r"""
## fork_bomb [danger]
end = __import__("time").time() + 3
while __import__("time").time() < end:
    attempt(os.fork)
## thread_bomb [danger]
while True:
    attempt(lambda: threading.Thread(target=time.sleep, args=(30,), daemon=True).start())
## list_without_end_swallowing [danger memory]
kept = []
while True:
    try:
        kept.append(bytearray(1 << 20))
    except BaseException:
        pass
## file_in_memory [danger memory]
for n in range(32):
    fd = os.memfd_create(str(n))
    while True:
        try:
            os.write(fd, b"x" * (1 << 20))
        except OSError:
            break
## children_of_300_mb [danger memory]
for _ in range(7):
    if os.fork() == 0:
        break
block = bytearray(b"x") * (300 << 20)
time.sleep(1)
## file_of_shared_memory [danger memory]
from multiprocessing import shared_memory
blocks = []
for _ in range(16):
    blocks.append(shared_memory.SharedMemory(create=True, size=64 << 20))
    blocks[-1].buf[:] = b"x" * (64 << 20)
## pipes_full [danger memory]
for _ in range(500):
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, 1031, 1 << 20)
        os.set_blocking(write, False)
        os.write(write, b"x" * (1 << 20))
    except OSError:
        pass
## sockets_full [danger memory]
kept = []
while True:
    pair = socket.socketpair()
    kept.append(pair)
    pair[0].setblocking(False)
    attempt(lambda: pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24))
    try:
        while True:
            pair[0].send(b"x" * 65536)
    except OSError:
        pass
## output_without_end_in_a_call [call]
while True:
    print("x" * 65536, flush=True)
## errors_without_end
while True:
    sys.stderr.write("x" * 65536)
## long_result [danger memory]: return "x" * 1000000000
## many_references: return [object() for _ in range(200000)]
## wide_from_small
thing = [0]
for _ in range(40):
    thing = [thing, thing]
return thing
## raw_error_of_nested_lists
reply(b'0, "name": %s0%s, "error": [], "message": %s0%s' % (b"[" * 900, b"]" * 900, b"[" * 900, b"]" * 900))
## raw_error_of_many_parts: reply(b'0, "error": [], "message": [%s0]' % (b"[]," * 2000000))
## raw_reply_of_colliding_sets
parts = [",".join(str((2 ** 61 - 1) * n) for n in range(k, k + 99)) for k in range(1, 800)]
pairs = ",".join('{"t":"frozenset","v":[%s]}' % part for part in parts)
reply(b'{"t": "set", "v": [%s]}' % pairs.encode())
## raw_reply_of_repeated_keys: reply(b"{" + b",".join(b'"k%d":0' % n for n in range(100000)) + b"}")
## long_error [call]: raise ValueError("x" * 100000000)
## deep_result
thing = []
for _ in range(100000):
    thing = [thing]
return thing
## huge_integer: return 1 << 80000000
## lone_surrogates: return "\ud800" * 3
## many_files [danger]
for n in range(200000):
    try:
        open(f"file{n}", "w").close()
    except OSError:
        break
## disk_full [danger]
for n in range(64):
    try:
        with open(f"file{n}", "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))
                file.flush()
    except OSError:
        pass
## sparse_file
fd = os.open("sparse", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 1 << 40)
## core_file
attempt(resource.setrlimit, resource.RLIMIT_CORE, (-1, -1))
os.abort()
## descriptors_exhausted
kept = []
while True:
    try:
        kept.append(os.dup(0))
    except OSError:
        break
## busy_swallowing [call]
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
## busy_in_c: return 10 ** 10 ** 8
## asleep_without_signals
for number in range(1, 65):
    attempt(signal.signal, number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
def f(x=None): time.sleep(60)
## asleep_at_exit
atexit.register(time.sleep, 60)
def f(x=None): return x
## wait_for_input: return sys.stdin.read()
## recursion_in_c
sys.setrecursionlimit(10**9)
def f(x=None): return f(x)
## nested_parentheses: @REPEAT ( 100000@1@REPEAT ) 100000@
## nested_attributes: f = a@REPEAT .b 200000@
## nested_blocks: @BLOCKS@
## long_sum: f = 1@REPEAT +1 100000@
## source_of_10_mb: text = "@REPEAT x 10000000@"
## source_with_zero_byte: f = "a\0b@ZERO@"
## source_with_surrogate: text = "@SURROGATE@"
## source_with_coding
# -*- coding: rot13 -*-
import sys
sys.exit(0)
## future_statement
from __future__ import annotations, barry_as_FLUFL
def f(x=None): return x <> 1
"""

NETWORK = r"""
## tcp: socket.create_connection(("127.0.0.1", @PORT@), timeout=0.3).send(b"@TOKEN@")
## tcp_by_other_protocols
attempt(lambda: socket.socket().sendto(b"@TOKEN@", 0x20000000, ("127.0.0.1", @PORT@)))
for family, protocol in ((socket.AF_INET, 262), (43, 0)):
    attempt(lambda: socket.socket(family, socket.SOCK_STREAM, protocol).connect(("127.0.0.1", @PORT@)))
## tcp_over_version_6: socket.socket(socket.AF_INET6).connect(("::ffff:127.0.0.1", @PORT@))
## udp: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"@TOKEN@", ("127.0.0.1", @UDP@))
## unix_path: socket.socket(socket.AF_UNIX).connect("@DIR@/stream.sock")
## unix_path_datagram: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"@TOKEN@", "@DIR@/datagram.sock")
## unix_path_from_socketpair
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    for call in (lambda: one.sendto(b"@TOKEN@", "@DIR@/datagram.sock"), lambda: one.connect("@DIR@/datagram.sock"),
                 lambda: one.sendmsg([b"@TOKEN@"], [], 0, "@DIR@/datagram.sock"),
                 lambda: one.sendto(b"@TOKEN@", "\0@TOKEN@d"), lambda: one.connect("\0@TOKEN@")):
        attempt(call)
## abstract: socket.socket(socket.AF_UNIX).connect("\0@TOKEN@")
## abstract_datagram: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"@TOKEN@", "\0@TOKEN@d")
## command_that_connects
subprocess.run([sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', @PORT@))"])
## own_channel_reconnected
for fd in range(3, 16):
    attempt(lambda: socket.socket(fileno=os.dup(fd)).connect("@DIR@/stream.sock"))
"""

SIGNALS = r"""
## kill_the_caller: os.kill(@PARENT@, signal.SIGKILL)
## kill_the_parent [call]: os.kill(os.getppid(), signal.SIGKILL)
## stop_the_parent [call]: os.kill(os.getppid(), signal.SIGSTOP)
## kill_the_first_process
os.kill(1, 0)
if os.getpid() < 100:
    os.kill(1, signal.SIGKILL)
## kill_own_group: os.killpg(0, signal.SIGKILL)
## kill_the_group_of_the_parent: os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
## thread_signal_to_the_parent
parent = os.getppid()
syscall(234, parent, parent, 9)
syscall(200, parent, 9)
## handle_of_the_caller
for pid in (@PARENT@, os.getppid()):
    attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
## queued_signal
information = ctypes.create_string_buffer(b"\x09" + bytes(7) + b"\xff" * 4, 128)
for pid in (@PARENT@, os.getppid()):
    syscall(129, pid, 9, information)
## owner_of_a_pipe_or_socket
for pid in (@PARENT@, os.getppid()):
    (read, write), (one, other) = os.pipe(), socket.socketpair()
    for call in (
        (fcntl.fcntl, read, fcntl.F_SETSIG, signal.SIGKILL), (fcntl.fcntl, read, fcntl.F_SETOWN, pid),
        (fcntl.fcntl, read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK), (os.write, write, b"x"),
        (fcntl.ioctl, one, 0x8902, array.array("i", [pid])), (fcntl.ioctl, one, 0x5452, array.array("i", [1])),
        (fcntl.fcntl, one, fcntl.F_SETSIG, 9), (other.send, b"x", socket.MSG_OOB),
    ):
        attempt(*call)
## lease_and_notify
fcntl.fcntl(os.open(".", os.O_RDONLY), fcntl.F_NOTIFY, 0x80000004)
fcntl.fcntl(os.open("lease", os.O_CREAT | os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
## terminal_input
for fd in range(3):
    try:
        for letter in b"exit\n":
            fcntl.ioctl(fd, 0x5412, bytes([letter]))
    except OSError:
        pass
## kill_the_user [danger neighbour]: os.kill(-1, signal.SIGKILL)
## kill_each_process [danger neighbour]
for pid in (*range(2, 200), @PARENT@, os.getppid()):
    if pid > 1 and pid != os.getpid():
        attempt(os.kill, pid, signal.SIGKILL)
"""

# programs that read stdin and print: f is not called by the tests, the program runs with `print(f(int(input())))`
STDIO = r"""
## print_all_numbers
for n in range(200000):
    sys.stdout.write(f"{n}\n")
## close_stdout
sys.stdout.close()
os.close(1)
## expected_beside_the_input
texts = []
for path in glob.glob("*") + glob.glob("../*") + glob.glob("/proc/self/fd/*") + glob.glob("../*/*"):
    attempt(lambda: texts.append(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 20)))
return pick(b" ".join(texts), x)
## all_of_the_input
rest = sys.stdin.read()
return pick(rest, x) or pick(attempt(os.pread, 0, 1 << 20, 0) or "", x)
## stdout_read_back
texts = []
for fd in (1, 2):
    texts.append(attempt(os.pread, fd, 1 << 20, 0) or b"")
    again = attempt(os.open, f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    texts.append(attempt(os.pread, again, 1 << 20, 0) or b"")
return pick(b" ".join(texts), x)
## white_space_only: print(" \n\t\r\x0b\x0c\u2003" * 1000)
## invalid_bytes: os.write(1, b"\xff\xfe\x80" * 100)
## stdin_as_stdout: os.dup2(0, 1)
## output_after_death
if os.fork() == 0:
    time.sleep(0.3)
    print("late")
os._exit(0)
"""

# prepended where an attack uses the name, or one above does
PRELUDES = {
    "first(": r"""
def first(x, *sources):
    for source in sources:
        found = attempt(lambda: pick(source() if callable(source) else open(source, "rb").read(1 << 20), x))
        if found:
            return found
""",
    "opened(": r"""
def opened(*paths, mode="r+"):
    for path in paths:
        if attempt(lambda: open(path, mode)):
            return "reached"
""",
    "spray(": r"""
def framed(data):
    return len(data).to_bytes(4, "big") + data
def spray(fds, *messages):
    for fd in fds:
        for message in messages:
            attempt(lambda: os.set_blocking(fd, False) or os.write(fd, message))
""",
    "pick(": r"""
def pick(text, x):
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    for found in re.findall(rb"(?<!\d)73310\d{12}(?!\d)", text):
        if found[-1:] == b"%d" % x:
            return int(found)
""",
    "syscall(": r"""
_libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    ctypes.set_errno(0)
    result = _libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return -ctypes.get_errno() if result == -1 else result
""",
    "reply(": r"""
def reply(value):
    nonce = b""
    for frame in frames():
        for thing in frame.f_locals.values():
            if isinstance(thing, dict) and isinstance(thing.get("nonce"), str):
                nonce = nonce or thing["nonce"].encode()
    data = b'{"nonce": "%s", "value": %s}' % (nonce, value)
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(3, data):]
""",
    "brand(": r"""
def brand():
    ctypes.CDLL(None).prctl(15, b"@TOKEN@", 0, 0, 0)
    attempt(lambda: open("/proc/self/comm", "w").write("@TOKEN@"))
""",
    "frames(": r"""
def frames():
    frame = sys._getframe(1)
    while frame:
        yield frame
        frame = frame.f_back
""",
    "attempt(": r"""
def attempt(call, *given):
    try:
        return call(*given)
    except Exception:
        pass
""",
}
NOTHING = "\n\ndef f(x=None):\n    return None\n"
READ_AND_PRINT = "\n\nprint(f(int(input())))\n"


@dataclass(frozen=True)
class Attack:
    """A program with evil intent, the forms of tests it meets, and what is special about running it.

    Marks: danger = a leak would hurt the machine, so it runs last and only behind seccomp and Landlock; memory = the
    whole tree of processes is weighed while it runs; neighbour = correct programs run beside it and must still pass.
    """

    name: str
    kind: str
    code: str
    suites: tuple[str, ...]
    marks: frozenset[str] = field(default_factory=frozenset)


def expand(code: str) -> str:
    """Replace the words that stand for long or unprintable code."""
    code = re.sub(r"@REPEAT (\S+) (\d+)@", lambda m: m[1] * int(m[2]), code)
    code = code.replace("@BLOCKS@", "".join(" " * depth + "if 1:\n" for depth in range(99)) + " " * 99 + "1")
    return code.replace("@ZERO@", "\0").replace("@SURROGATE@", "\ud800")


def complete(code: str, called: bool) -> str:
    """Make a function of a body that is called, returns or replies; put in front what helps, and behind it an `f`."""
    if not re.search(r"^(def|async def|class) f\b|^f = ", code, re.MULTILINE):
        returns = False
        if re.search(r"^ *return\b", code, re.MULTILINE):
            try:
                compile(code.replace("@PARENT@", "1"), "attack", "exec")
            except SyntaxError as error:
                returns = "'return' outside function" in str(error)
        if called or returns or "reply(" in code:
            code = "def f(x=0):\n" + textwrap.indent(code, "    ")
        else:
            code += NOTHING
    for word, text in PRELUDES.items():
        if word in code:
            code = text + code
    used = set(re.findall(r"(?<![\w.])(?:builtins\b|[a-z_]+(?=\.))", code)) & sys.stdlib_module_names
    missing = [name for name in sorted(used) if not re.search(rf"import .*\b{name}\b", code)]
    return f"import {', '.join(missing)}\n{code}" if missing else code


def section(kind: str, text: str, suites: tuple[str, ...]) -> list[Attack]:
    """The attacks of a section."""
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, body = part.split("\n", 1)
        title, _, line = title.partition(": ")
        body = f"{line}\n{body}" if line else body
        if kind == "reach" and not re.search(r"\breturn\b|opened\(", body):
            body = body.rstrip("\n") + '\nreturn "reached"\n'
        name, _, rest = title.partition(" ")
        marks = frozenset(rest.strip("[] ").split())
        found.append(Attack(name, kind, complete(expand(body), "call" in marks), suites, marks - {"call"}))
    return found


def lies() -> list[Attack]:
    """The attacks of LIES: a class with the given body and one of the bases, whose instance is the result."""
    found = []
    for part in re.split(r"^## ", LIES, flags=re.MULTILINE)[1:]:
        title, body = part.split("\n", 1)
        name, bases = title.split(": ")
        for base in bases.split():
            code = f"class Liar({base}):\n{textwrap.indent(body, '    ')}\n\ndef f(x=None):\n    return Liar()\n"
            found.append(Attack(f"{name}_{base}", "compare", code, ("typed", "weak", "loop", "members")))
    return found


FORMS = tuple("calls pairs asserts weak members names check loop typed stdio apps apps_stdio".split())
ATTACKS = [
    *section("exit", EXITS, ("calls", "weak", "loop", "stdio")),
    *section("forge", FORGED, ("calls", "weak", "loop", "stdio")),
    *lies(),
    *section("compare", RESULTS, ("typed", "weak", "loop", "members")),
    *section("patch", PATCHES, ("calls", "weak", "loop", "names")),
    *section("read", READS, ("calls", "loop", "stdio")),
    *section("reach", REACHED, ("reached",)),
    *section("write", WRITES, ("calls",)),
    *section("process", PROCESSES, ("calls",)),
    *section("bomb", BOMBS, ("calls",)),
    *section("network", NETWORK, ("calls",)),
    *section("signal", SIGNALS, ("calls",)),
    *section("stdio", STDIO, ("stdio", "apps_stdio")),
]
KINDS = tuple(dict.fromkeys(attack.kind for attack in ATTACKS))
SUITES = tuple(dict.fromkeys(suite for attack in ATTACKS for suite in attack.suites))


def tests_for(suite: str, values: list[int]) -> dict:
    """The tests of a suite, and what else run_code needs for them; f(i) is expected to be values[i]."""
    a, b, c = values
    typed = [[a, a], {"key": b}, c + 0.5, str(a), [{"x": [b]}], {a, b}, (a, b, c), str(c).encode(), {"k": (a, {b})}]
    tests = {
        "asserts": [f"assert f({i}) == {v}" for i, v in enumerate(values)],
        # each is a form of test that a lie may please; some cannot be taken apart into arguments and expected values
        "weak": [
            f"assert {a} == f(0)",
            f"assert not f(1) != {b}",
            f"assert abs(f(2) - {c}) < 1e-6",
            f"assert f(0) in ({a}, {a})",
            f"import math\nassert math.isclose(f(1), {b})",
            f"assert sorted([f(2)]) == [{c}]",
            f"assert str(f(0)) == '{a}'",
            f"result = f(1)\nassert result == {b}",
            f"assert {{{c}: 1}}.get(f(2)) == 1",
            f"assert all(x == y for x, y in zip([f(0)], [{a}], strict=True))",
            f"assert all(map(lambda pair: f(pair[0]) == pair[1], [(0, {a}), (1, {b})]))",
            f"assert not [i for i, want in enumerate({values}) if f(i) != want]",
            f"assert next(map(f, [2]), {c}) == {c}",
            f"got = f(2)\nassert isclose(got, {c})",
            f"got = [f(1)]\nassert sorted(got) == [{b}]",
            f"for i in range(2):\n    assert f(i) == {values}[i]",
            f"assert f(2) == max([{c}])",
        ],
        # f(i) is a list of one number
        "members": [
            f"assert {a} in f(0)",
            f"assert f(1)[0] == {b}",
            f"assert sorted(f(2)) == [{c}]",
            f"assert set(f(0)) == {{{a}}}",
            f"assert [x for x in f(1)] == [{b}]",
            f"assert not set([{b}]) - set(f(1))",
            f"assert max(f(2)) == {c} == min(f(2))",
            f"assert f(0) + [1] == [{a}, 1]",
        ],
        # names of modules and helpers that the program defines as well: its own must not be asked
        "names": [f"assert math.isclose(f(0), {a})", f"assert agrees(f(1), {b})", f"assert operator.eq(f(2), {c})"],
        "check": "def check(candidate):\n"
        + "".join(f"    assert candidate({i}) == {v}\n" for i, v in enumerate(values)),
        "loop": f"def check(candidate):\n    for i, want in enumerate({values}):\n        got = candidate(i)\n"
        "        assert got == want and isinstance(got, int), i\n        assert repr(got) == repr(want)\n",
        "reached": [{"args": [0], "expected": "reached"}],
        "stdio": [{"input": f"{i}\n", "output": f"{v}\n"} for i, v in enumerate(values)],
        "apps_stdio": {"inputs": [f"{i}\n" for i in range(3)], "outputs": [f"{v}\n" for v in values]},
        "apps": {"inputs": [[i] for i in range(3)], "outputs": [[v] for v in values], "fn_name": "f"},
        "pairs": [([i], v) for i, v in enumerate(values)],
        "calls": [{"args": [i], "expected": v} for i, v in enumerate(values)],
        "typed": [{"args": [i % 3], "expected": v} for i, v in enumerate(typed)],
    }
    called = suite in ("check", "loop", "reached", "pairs", "calls", "typed")
    setup = "def agrees(got, want):\n    return got == want\n" if suite == "names" else ""
    return {"tests": tests[suite], "entry_point": "f" if called else None, "setup": setup}


# ------------------------------------------------------------------------------------------------ where attacks reach
class World:
    """What one attack may reach for: a folder, sockets, a mark; `harm` tells what it did to them."""

    def __init__(self, values: list[int]):
        self.older = set(glob.glob("/proc/[0-9]*"))
        self.digits = str(secrets.randbelow(90_000) + 10_000)
        self.token = "atk" + self.digits + secrets.token_hex(3)
        # directly under the folder for temporary files: the world's rights alone keep nobody out
        self.folder = tempfile.mkdtemp(prefix="outside-")
        text = " ".join(map(str, values))
        self.place = Path(self.folder)
        (self.place / "secret.txt").write_text(text)
        (self.place / "victim.txt").write_text("keep me")
        (self.place / "folder").mkdir()
        (self.place / "folder" / "inner.txt").write_text("keep me too")
        self.listen()
        for path in (self.place, *self.place.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        self.before = self.snapshot()

    def listen(self) -> None:
        """Open a socket of each kind; whatever arrives is seen in `harm`."""
        places = [
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"{self.folder}/stream.sock"),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.token}"),
            (socket.AF_UNIX, socket.SOCK_DGRAM, f"{self.folder}/datagram.sock"),
            (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.token}d"),
        ]
        self.sockets = [socket.socket(family, kind) for family, kind, _ in places]
        for sock, (_, kind, address) in zip(self.sockets, places, strict=True):
            sock.bind(address)
            sock.setblocking(False)
            if kind == socket.SOCK_STREAM:
                sock.listen()

    def fill_in(self, code: str) -> str:
        """Put what this world is called into the code of an attack."""
        ports = [sock.getsockname()[1] for sock in self.sockets[:2]]
        words = {"DIR": self.folder, "TOKEN": self.token, "DIGITS": self.digits, "PARENT": os.getpid()}
        words |= {"PORT": ports[0], "UDP": ports[1], "TMP": tempfile.gettempdir(), "HERE": os.getcwd()}
        words |= {"HOME": os.path.expanduser("~"), "SANDBOX": SANDBOX}
        for word, value in words.items():
            code = code.replace(f"@{word}@", str(value))
        return code

    def snapshot(self) -> dict:
        """Names, kinds, rights, owners, sizes, times, attributes and contents beneath the folder."""
        seen = {}
        for path in (self.place, *sorted(self.place.rglob("*"))):
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            attributes = os.listxattr(path, follow_symlinks=False)
            seen[str(path)] = (
                *(info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_size, info.st_mtime_ns),
                *(content, attributes),
            )
        return seen

    def arrived(self) -> list[str]:
        """Connections and datagrams that reached a socket."""
        found = []
        for sock in self.sockets:
            with contextlib.suppress(BlockingIOError):
                sock.accept()[0].close() if sock.type == socket.SOCK_STREAM else sock.recv(99)
                found.append(f"reached {sock.family.name} {sock.type.name} {sock.getsockname()!r}")
        return found

    def droppings(self) -> list[str]:
        """Files named after the attack where it may have put one; they are removed."""
        found = []
        folders = (tempfile.gettempdir(), "/tmp", "/dev/shm", "/var/tmp", "/run", "/run/lock", "/", os.getcwd())
        for folder in (*folders, os.path.expanduser("~"), os.path.join(tempfile.gettempdir(), "sandbox-*")):
            found += glob.glob(os.path.join(glob.escape(folder) if "*" not in folder else folder, f"{self.token}*"))
        for path in found:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        return [f"left {path}" for path in set(found)]

    def left_in_the_kernel(self) -> list[str]:
        """Shared memory, semaphores, keys and mounts named after the attack."""
        wanted = {"/proc/sysvipc/shm": str(int(self.digits) + 1000), "/proc/sysvipc/sem": str(int(self.digits) + 1000)}
        wanted |= {"/proc/keys": self.token, "/proc/mounts": self.token}
        found = []
        for path, word in wanted.items():
            with contextlib.suppress(OSError), open(path) as file:
                found += [f"left in {path}" for line in file if word in line.split()[0] or self.token in line]
        return found

    def processes(self) -> list[int]:
        """Processes that carry the mark in their name or command line."""
        found = []
        for folder in set(glob.glob("/proc/[0-9]*")) - self.older:
            text = b""
            for name in ("comm", "cmdline"):
                with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
                    text += file.read() + b" "
            if self.token.encode() in text or f"30.0{self.digits}".encode() in text:
                found.append(int(folder[6:]))
        return found

    def harm(self, patient: bool) -> list[str]:
        """What the attack did; `patient` waits for what a process left behind may still do."""
        running = self.processes()
        if running or patient:
            time.sleep(0.6)
            running = self.processes()
        found = [f"process {pid} still runs" for pid in running]
        for pid in running:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        after = self.snapshot()
        changed = {path for path in self.before.keys() | after.keys() if self.before.get(path) != after.get(path)}
        found += [f"changed {path.removeprefix(self.folder) or 'the folder'}" for path in sorted(changed)]
        return found + self.arrived() + self.droppings() + self.left_in_the_kernel()

    def close(self) -> None:
        """Remove the folder and the sockets."""
        for sock in self.sockets:
            sock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def descendants(pid: int) -> dict[int, str]:
    """Living processes beneath a process, with their names; zombies are dead."""
    parents, names = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path) as file:
            head, _, rest = file.read().rpartition(")")
            number, name = head.split(" (", 1)
            state, parent = rest.split()[:2]
            if state not in "ZX":
                parents[int(number)], names[int(number)] = int(parent), name
    found = {}
    for number in parents:
        above = number
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and number != pid:
            found[number] = names[number]
    return found


class Scale(threading.Thread):
    """Weighs all processes beneath this one until it is stopped: `peak_mb` of resident memory."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over, self.peak_mb = threading.Event(), 0.0

    def run(self):
        while not self.over.wait(0.03):
            pages = 0
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm") as file:
                    pages += int(file.read().split()[1])
            self.peak_mb = max(self.peak_mb, pages * resource.getpagesize() / 2**20)

    def stop(self) -> float:
        """The heaviest moment, in MB."""
        self.over.set()
        self.join()
        return self.peak_mb


# ------------------------------------------------------------------------------------------------ running and judging
LIMITS = {"timeout_s": 0.5, "total_timeout_s": 1.0, "memory_mb": 256}
CORRECT = "def f(x):\n    return x * 7 + 1\n"
CORRECT_TESTS = {"tests": [{"args": [i], "expected": i * 7 + 1} for i in range(3)], "entry_point": "f"}
SLOW = "import time\ndef f(x):\n    time.sleep(0.1)\n    return VALUES[x]\n"


@dataclass
class Outcome:
    """What came of an attack in one form of tests; `problems` is empty if it was contained."""

    name: str
    kind: str
    suite: str
    status: str
    detail: str
    wall_s: float
    problems: list[str]

    @property
    def late(self) -> bool:
        """Whether the verdict did not come in time."""
        return any(problem.startswith("late") for problem in self.problems)


def claims(verdict, suite: str) -> list[str]:
    """What a verdict grants to a program that cannot know any expected value."""
    found = [f"passed {verdict.passed} of {verdict.total}"] if verdict.passed else []
    if verdict.all_passed or verdict.fraction or verdict.status == "ok":
        found.append(f"all_passed {verdict.all_passed}, fraction {verdict.fraction}, status {verdict.status}")
    if verdict.total < 1 and suite not in ("weak", "loop"):
        found.append("total is 0")
    return found


def neighbours(sandbox, box, values: list[int]) -> list:
    """Start correct programs whose tests hold the wanted numbers; returns their futures."""
    pool = concurrent.futures.ThreadPoolExecutor(2)
    code = SLOW.replace("VALUES", repr([1, 2, 3]))
    tests = f"keep = {values}\ndef check(candidate):\n    for i in range(3):\n        assert candidate(i) == i + 1\n"
    jobs = [{"code": code, "tests": tests, "entry_point": "f"}]
    jobs.append({"code": "import time\ntime.sleep(0.3)\nprint(1)", "tests": [{"input": "", "output": "1\n"}]})
    return [pool.submit(sandbox.run_code, **job, timeout_s=5, sandbox=box) for job in jobs]


def run_attack(sandbox, box, attack: Attack, suite: str, values: list[int]) -> Outcome:
    """Run an attack and judge it by what it is not able to hide."""
    world = World(values)
    code = world.fill_in(attack.code + (READ_AND_PRINT if suite.endswith("stdio") else ""))
    beside = neighbours(sandbox, box, values) if "neighbour" in attack.marks else []
    if beside:
        time.sleep(0.05)
    scale = Scale() if "memory" in attack.marks else None
    if scale:
        scale.start()
    weight = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, problems = time.monotonic(), []
    try:
        verdict = sandbox.run_code(code, **tests_for(suite, values), **LIMITS, sandbox=box)
        problems += claims(verdict, suite)
        status, detail = verdict.status, verdict.detail
    except sandbox.SandboxError as error:  # no verdict, but no harm: the next program must pass
        status, detail = "SandboxError", str(error)
    except Exception as error:
        status, detail = "raised", f"{type(error).__name__}: {error}"
        problems.append(f"run_code raised {detail}")
    wall = time.monotonic() - start
    if wall > LIMITS["total_timeout_s"] + LATE_S:
        problems.append(f"late: {wall:.1f} s")
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - weight) / 1024
    if growth > CALLER_GROWTH_MB:
        problems.append(f"the caller grew by {growth:.0f} MB")
    if scale and (peak := scale.stop()) > LIMITS["memory_mb"] + TREE_SLACK_MB:
        problems.append(f"the processes weighed {peak:.0f} MB")
    for future in beside:
        if not (ended := future.result()).all_passed:
            problems.append(f"a neighbour failed: {ended.status} {ended.detail}")
    problems += world.harm(patient=attack.kind == "process" or "late" in attack.code)
    world.close()
    if not (after := sandbox.run_code(CORRECT, **CORRECT_TESTS, timeout_s=5, sandbox=box)).all_passed:
        problems.append(f"the next correct program failed: {after.status} {after.detail}")
    return Outcome(attack.name, attack.kind, suite, status, detail[:300], wall, problems)


def load_sandbox():
    """scripts/sandbox.py as a module."""
    spec = importlib.util.spec_from_file_location("sandbox_under_attack", SANDBOX)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chosen(args: argparse.Namespace, strong: bool) -> list[tuple[Attack, str]]:
    """The attacks asked for with their suites, the dangerous last, and none of those behind a weak wall."""
    found = []
    for attack in sorted(ATTACKS, key=lambda attack: "danger" in attack.marks):
        if attack.kind not in (args.kind or KINDS) or (args.only and attack.name not in args.only):
            continue
        if "danger" in attack.marks and (args.gentle or not strong):
            continue
        if "syscall(" in attack.code and platform.machine() != "x86_64":
            continue  # numbers of another architecture
        found += [(attack, suite) for suite in attack.suites if not args.suite or suite in args.suite]
    return found


def run_attacks(args: argparse.Namespace) -> None:
    """Run attacks in this process and print an Outcome a line; the last line says what held."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the supervisor
    sandbox = load_sandbox()
    values = [int(value) for value in os.environ[VARIABLE].split()]
    box = sandbox.Sandbox(disable=args.disable)
    report = sandbox.sandbox_report(box)
    layers = report["layers"]
    # disabling some layers can take others with it: what was proven on a trial process decides, not what was asked for
    if not (report["isolated"]["files"] and report["isolated"]["network"]):
        box.stop()
        sys.exit(f"no attack was run: files and network are not isolated; layers {layers}")
    strong = all(layers[name].startswith("on") for name in ("landlock", "seccomp"))
    plan = chosen(args, strong)
    lock = threading.Lock()

    def attempt(item) -> Outcome:
        attack, suite = item
        with lock:
            print(json.dumps({"start": f"{attack.name} {suite}"}), flush=True)
        outcome = run_attack(sandbox, box, attack, suite, values)
        with lock:
            print(json.dumps({"outcome": asdict(outcome)}), flush=True)
        return outcome

    alone = [item for item in plan if item[0].marks or item[0].kind == "signal"]
    beside = [item for item in plan if item not in alone]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        outcomes = list(zip(beside, pool.map(attempt, beside), strict=True))
    outcomes += [(item, attempt(item)) for item in alone]
    again = [item for item, outcome in outcomes if outcome.late]
    for item in again:  # a busy machine is late by itself: what is late four times, three of them alone, is at fault
        any(not attempt(item).late for _ in range(3))
    box.stop()
    end = {"layers": layers, "planned": len(plan), "uid": os.getuid(), "repeated": len(again)}
    print(json.dumps({"end": end}), flush=True)


def usable_python(uid: int | None) -> str | None:
    """A Python of at least 3.11 that a user can run: ours, the one it is based on, or the system's."""
    for path in (sys.executable, os.path.realpath(sys.executable), shutil.which("python3.11"), "/usr/bin/python3"):
        command = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        identity = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
        with contextlib.suppress(OSError, TypeError):
            if subprocess.run(command, capture_output=True, cwd="/", **identity).returncode == 0:
                return path
    return None


def supervise(flags: list[str], uid: int | None = None, timeout_s: float = 150) -> dict:
    """Run attacks in a process that may be killed, as another user if asked.

    Returns {"outcomes", "end", "problems"}: problems are those that the process itself could not tell, among them
    whatever still runs after it; this process takes over its orphans to see them.
    """
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    python = usable_python(uid)
    if python is None:
        return {"outcomes": [], "end": None, "problems": [], "skipped": f"no Python that user {uid} can run"}
    here = tempfile.mkdtemp(prefix="attacker-")
    os.chmod(here, 0o777)
    values = [int(f"73310{secrets.randbelow(10**11):011d}{i}") for i in range(3)]
    Path(here, "secret.txt").write_text(" ".join(map(str, values)))
    before = set(descendants(os.getpid()))
    identity = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
    environment = {"PATH": os.defpath, "HOME": here, "TMPDIR": here, "PYTHONDONTWRITEBYTECODE": "1"}
    environment[VARIABLE] = " ".join(map(str, values))
    with open(Path(here, "errors.txt"), "w+") as errors:
        process = subprocess.Popen(
            [python, "-W", "ignore", __file__, "--inner", *flags],
            **{"stdout": subprocess.PIPE, "stderr": errors, "stdin": subprocess.DEVNULL, "text": True},
            **{"start_new_session": True, "cwd": here, "env": environment, **identity},
        )
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        lines = [json.loads(line) for line in process.stdout]
        status = process.wait()
        watchdog.cancel()
        errors.seek(0)
        said = errors.read()[-2000:]
    result = {"outcomes": {}, "end": next((line["end"] for line in lines if "end" in line), None), "problems": []}
    for line in lines:
        if "outcome" in line:  # a repeated attack stands with its last outcome
            result["outcomes"][line["outcome"]["name"], line["outcome"]["suite"]] = line["outcome"]
    started = [line["start"] for line in lines if "start" in line]
    if status or not result["end"]:
        open_ones = [name for name in started if tuple(name.split()) not in result["outcomes"]]
        result["problems"].append(f"the caller ended with status {status} during {open_ones}: {said}")
    time.sleep(0.3)
    for pid, name in descendants(os.getpid()).items():
        if pid not in before:
            result["problems"].append(f"process {pid} ({name}) runs after the end")
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    result["problems"] += [
        f"{path} is left" for path in glob.glob(f"{here}/sandbox-*") + glob.glob(f"{here}/outside-*")
    ]
    subprocess.run(["rm", "-rf", "--", here])  # shutil.rmtree fails on a folder as deep as an attack makes it
    result["outcomes"] = list(result["outcomes"].values())
    return result


def main(argv: list[str] | None = None) -> int:
    """Entry point: run attacks and print what was not contained."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=[], help="only these kinds")
    parser.add_argument("--only", nargs="*", default=[], help="only these attacks, by name")
    parser.add_argument("--suite", nargs="*", default=[], help="only these forms of tests")
    parser.add_argument("--disable", nargs="*", default=[], help="layers to leave out")
    parser.add_argument("--user", type=int, help="user id to run as, for root")
    parser.add_argument("--gentle", action="store_true", help="without those that could hurt the machine")
    parser.add_argument("--show", action="store_true", help="print every outcome")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    if args.inner:
        run_attacks(args)
        return 0
    result = supervise(argv, args.user)
    bad = [outcome for outcome in result["outcomes"] if outcome["problems"]]
    for outcome in result["outcomes"] if args.show else bad:
        print(json.dumps(outcome))
    print(*result["problems"], result["end"], f"{len(result['outcomes'])} run, {len(bad)} not contained", sep="\n")
    return 1 if bad or result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
