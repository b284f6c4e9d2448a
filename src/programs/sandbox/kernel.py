"""The kernel's layers: a seccomp filter, Landlock rules, a root of its own."""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys

from programs.sandbox.messages import SCRATCH

LIBC = ctypes.CDLL(None, use_errno=True)


def libc_call(function: str, *arguments) -> int:
    """Call a function of libc; raise OSError where it returns -1."""
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = getattr(LIBC, function)(*arguments)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), function)
    return result


def kernel_call(number: int, *arguments) -> int:
    return libc_call("syscall", number, *arguments)


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38


def prctl(option: int, value: int, extra=0) -> None:
    """Set an attribute of this process."""
    libc_call("prctl", option, value, extra, 0, 0)


def give_up_privileges() -> None:
    """Keep no capability, gain none by exec, stay closed to other processes, and die with the parent."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    libc_call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


# Numbers of linux/arch/x86/entry/syscalls/syscall_64.tbl with their names. What is not here answers EPERM.
ALLOWED_CALLS = (
    *range(0, 8),  # read write open close stat fstat lstat poll
    *range(8, 16),  # lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
    *range(17, 27),  # pread64 pwrite64 readv writev access pipe select sched_yield mremap msync
    28,  # madvise
    *range(32, 41),  # dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile
    *(45, 48, 53, 60, 61, 63),  # recvfrom shutdown socketpair exit wait4 uname
    *range(73, 86),  # flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat
    *(87, 89),  # unlink readlink
    *range(95, 101),  # umask gettimeofday getrlimit getrusage sysinfo times
    *(102, 104, 107, 108, 110, 111, 127),  # getuid getgid geteuid getegid getppid getpgrp rt_sigpending
    *(128, 130, 131, 137, 138, 158),  # rt_sigtimedwait rt_sigsuspend sigaltstack statfs fstatfs arch_prctl
    *(186, 201, 202, 204, 213, 217),  # gettid time futex sched_getaffinity epoll_create getdents64
    *(218, 219, 221),  # set_tid_address restart_syscall fadvise64
    *range(228, 234),  # clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl
    *(257, 258, 262, 263, 264, 267, 269),  # openat mkdirat newfstatat unlinkat renameat readlinkat faccessat
    *(270, 271, 273, 274, 281),  # pselect6 ppoll set_robust_list get_robust_list epoll_pwait
    *range(283, 288),  # timerfd_create eventfd fallocate timerfd_settime timerfd_gettime
    *(290, 291, 292, 293, 295, 296, 309, 318),  # eventfd2 epoll_create1 dup3 pipe2 preadv pwritev getcpu getrandom
    *(324, 326, 332, 334, 436, 439, 441),  # membarrier copy_file_range statx rseq close_range faccessat2 epoll_pwait2
)
# calls allowed for some values of one argument: number -> (argument, values); None stands for the process's own id
LIMITED_CALLS = {
    16: (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # ioctl: is it a terminal, its size, FIONREAD, FIONBIO …
    62: (0, (None,)),  # kill
    72: (1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),  # fcntl, without F_SETOWN and F_SETSIG, which signal others
    157: (0, (15, 16)),  # prctl: name of the thread
    234: (0, (None,)),  # tgkill
    302: (0, (0,)),  # prlimit64
}
SENDTO, CLONE, CLONE3, CLONE_THREAD = 44, 56, 435, 0x10000
# chmod and utime in all forms: nothing happens, and the program is told it did, since shutil.copy needs that
PRETENDED_CALLS = (90, 91, 132, 235, 261, 268, 280, 452)


def seccomp_program(own_id: int) -> bytes:
    """The filter as classic BPF, for the process with this id.

    Each instruction is (code, jump if true, jump if false, value); the data are nr at 0, arch at 4 and the low half of
    argument i at 16 + 8 i.
    """
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
    code = [(load, 0, 0, 4), (equal, 1, 0, 0xC000003E), (answer, 0, 0, kill), (load, 0, 0, 0)]
    code += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, kill)]  # x32 calls
    code += [(equal, 0, 1, CLONE3), (answer, 0, 0, 0x00050000 | errno.ENOSYS)]  # libc then falls back to clone
    for number in PRETENDED_CALLS:
        code += [(equal, 0, 1, number), (answer, 0, 0, 0x00050000)]
    for number in range(188, 200):  # extended attributes: none here, as shutil.copy2 understands it
        code += [(equal, 0, 1, number), (answer, 0, 0, 0x00050000 | errno.ENOTSUP)]
    for number in ALLOWED_CALLS:
        code += [(equal, 0, 1, number), (answer, 0, 0, allow)]
    for number, (argument, values) in LIMITED_CALLS.items():
        code += [(equal, 0, 2 * len(values) + 2, number), (load, 0, 0, 16 + 8 * argument)]
        for value in values:
            code += [(equal, 0, 1, own_id if value is None else value), (answer, 0, 0, allow)]
        code += [(answer, 0, 0, refuse)]
    # no address: only to the other end of a socketpair
    code += [(equal, 0, 6, SENDTO), (load, 0, 0, 48), (equal, 0, 3, 0), (load, 0, 0, 52), (equal, 0, 1, 0)]
    code += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    # threads only: CLONE_THREAD without any new namespace
    code += [(equal, 0, 4, CLONE), (load, 0, 0, 16), (any_bit, 2, 0, 0x7E020000), (any_bit, 0, 1, CLONE_THREAD)]
    code += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


SOME_ID = 0x7EADBEE5  # stands in a filter made in advance for the id of the process that will enter it


def enter_seccomp(template: bytes) -> None:
    """Restrict this process to the calls above for good."""
    program = template.replace(struct.pack("I", SOME_ID), struct.pack("I", os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header, len(header)))


LANDLOCK_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # rights that a rule on a single file may hold
LANDLOCK_READ = 1 << 2 | 1 << 3
# in the scratch folder: write, read, list, remove and make files and folders, rename, truncate; no links or devices
LANDLOCK_SCRATCH = 1 << 1 | LANDLOCK_READ | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14


def landlock_abi() -> int:
    """Version of Landlock in this kernel, 0 where there is none."""
    try:
        return kernel_call(444, None, 0, 1)
    except OSError:
        return 0


def landlock_rules(abi: int, readable: list[int], scratch: str) -> int:
    """Make a ruleset: read beneath the folders open as `readable`, write beneath scratch, no TCP, no signals to others.

    Several processes may use it: their folders beneath scratch are each for one user only.
    """
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    rules = struct.pack("QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    rules = rules[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = kernel_call(444, ctypes.create_string_buffer(rules, len(rules)), len(rules), 0)
    places = [(fd, LANDLOCK_READ) for fd in readable]
    for fd, rights in [*places, (os.open(scratch, os.O_PATH), LANDLOCK_SCRATCH)]:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights = (rights | 1 << 1) & LANDLOCK_FILE  # /dev/null is also written to
        rule = struct.pack("=Qi", rights & handled, fd)
        kernel_call(445, ruleset, 1, ctypes.create_string_buffer(rule, len(rule)), 0)
    return ruleset


def readable_paths(packages: list[str]) -> list[str]:
    """Files that Python needs while it runs; a program may read these and nothing else."""
    python = [sys.base_prefix + "/lib", sys.base_exec_prefix + "/lib", *packages]
    python += [path for path in sys.path if path.startswith("/")]
    system = ["/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"]
    system += ["/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
    return [path for path in dict.fromkeys(os.path.normpath(p) for p in [*python, *system]) if os.path.exists(path)]


def bind(source: str, target: str) -> None:
    """Show a file or folder at another place, with what is mounted inside it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    libc_call("mount", os.fsencode(source), os.fsencode(target), None, 0x5000, None)


def new_root(paths: list[str]) -> None:
    """Replace this namespace's root by one that holds the given paths, read-only, and an empty scratch folder."""
    root = next(path for path in ("/sys", "/mnt", "/proc") if os.path.isdir(path))
    libc_call("mount", None, b"/", None, 0x44000, None)  # private: nothing of this shows outside
    libc_call("mount", b"tmpfs", root.encode(), b"tmpfs", 6, b"size=1m,mode=755")
    there = []

    def covered(path):
        return any(path == other or path.startswith(other + "/") for other in there)

    for path in sorted(paths, key=len):
        real = os.path.realpath(path)
        if not covered(real):
            bind(real, root + real)
            there.append(real)
        if not covered(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(real, root + path)
            there.append(path)
    for folder in (SCRATCH, "/.old"):
        os.makedirs(root + folder)
    libc_call("mount", b"tmpfs", (root + SCRATCH).encode(), b"tmpfs", 6, b"size=1m,mode=711")
    libc_call("pivot_root", root.encode(), root.encode() + b"/.old")
    os.chdir("/")
    libc_call("umount2", b"/.old", 2)
    os.rmdir("/.old")
    read_only, writable = (struct.pack("QQQQ", *flags, 0, 0) for flags in ((1 | 2, 0), (0, 1)))  # RDONLY, NOSUID
    kernel_call(442, -100, b"/", 0x8000, ctypes.create_string_buffer(read_only, 32), 32)  # 0x8000: and all beneath
    kernel_call(442, -100, SCRATCH.encode(), 0, ctypes.create_string_buffer(writable, 32), 32)
