"""Errors that a user can fix, each with an exit code; messages on stderr; the layout of --help."""

import argparse
import difflib
import errno
import functools
import os
import re
import shutil
import sys


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns without one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


class RewardError(UserError):
    """A reward function raised or returned something that is not a score."""

    code = 3


class DivergedError(UserError):
    """Too many updates in a row were not finite."""

    code = 4


class MemoryShortage(UserError):
    """Memory ran out. `before_update`: the step had not changed any weight yet."""

    def __init__(self, message: str, before_update: bool = False):
        super().__init__(message)
        self.before_update = before_update


class RowFlaw(UserError):
    """A row that cannot be used: its field, what it held, what was expected, and how to fix it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


FULL = re.compile(r"No space left|os error (28|122)\b|unexpected pos \d+|PytorchStreamWriter failed writing")
SHORT = re.compile(r"out of memory|not enough memory|(can't|cannot) allocate memory|_ALLOC_FAILED", re.IGNORECASE)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a full disk or quota, by errno or a library's message."""
    while error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error or one of its causes, up to a UserError, says that CPU or GPU memory ran out."""
    while error and not isinstance(error, UserError):
        if isinstance(error, MemoryError) or SHORT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def memory_shortage(phase: str, error: BaseException, advice: str, before_update: bool = False) -> MemoryShortage:
    """The MemoryShortage for an error of `is_out_of_memory`."""
    reason = str(error).partition("\n")[0][:200] or type(error).__name__
    message = f"got an out-of-memory error {phase} ({reason}); expected enough memory; try {advice}"
    return MemoryShortage(message, before_update)


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, in the first process of a torchrun launch only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@functools.cache
def say_once(text: str) -> None:
    """`say` a text, but only the first time."""
    say(text)


def tell(*words, end: str = "\n") -> None:
    """Print a result on stdout; escape characters that its encoding lacks, print nothing once its reader closed it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    words = [str(word).encode(encoding, "backslashreplace").decode(encoding) for word in words]
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str], cutoff: float = 0.6) -> str:
    """'; try NAME' for the name most similar to a word; "" if none is similar."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, 1, cutoff))
