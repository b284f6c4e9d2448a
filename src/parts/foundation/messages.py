"""Errors that a user can fix, each with its exit code, messages on stderr, and the form of --help."""

import argparse
import difflib
import errno
import os
import re
import shutil
import sys


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns where there is none."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


class RewardError(UserError):
    """A reward function raised or returned something that is not a score."""

    code = 3


class DivergedError(UserError):
    """Too many updates in a row were not finite."""

    code = 4


class MemoryShortage(UserError):
    """Memory ran out. `before_update` is true where the step had not changed a weight yet."""

    def __init__(self, message: str, before_update: bool = False):
        super().__init__(message)
        self.before_update = before_update


class RowFlaw(UserError):
    """A row that cannot be used; says which field, what it held, what was expected, and how to mend it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


FULL = re.compile(r"No space left|os error (28|122)\b|unexpected pos \d+|PytorchStreamWriter failed writing")


SHORT = re.compile(r"out of memory|not enough memory|(can't|cannot) allocate memory|_ALLOC_FAILED", re.IGNORECASE)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is of a full disk or quota; torch has words of its own."""
    while error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that the memory of a machine or a GPU ran out; no UserError does."""
    while error and not isinstance(error, UserError):
        if isinstance(error, MemoryError) or SHORT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def memory_shortage(phase: str, error: BaseException, advice: str, before_update: bool = False) -> MemoryShortage:
    """What the user is told of an error of `is_out_of_memory`."""
    said = str(error).partition("\n")[0][:200] or type(error).__name__
    message = f"got an out-of-memory error {phase} ({said}); expected enough memory; try {advice}"
    return MemoryShortage(message, before_update)


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def tell(*words: str, end: str = "\n") -> None:
    """Print a result on stdout; where its reader has gone, as `| head` has, this and what follows is told to nobody."""
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str], cutoff: float = 0.6) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, 1, cutoff))
