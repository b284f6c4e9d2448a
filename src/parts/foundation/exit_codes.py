"""How a program ends: errors that a user can mend become a message and an exit code."""

import logging
import os
import sys
import traceback

from parts.foundation.messages import UserError, is_disk_full, say
from parts.foundation.processes import end_at_once, in_group, leave_processes, wait_passively


def quiet_environment() -> None:
    """Keep libraries from writing among our lines and from holding idle cores, unless the user has said otherwise."""
    wait_passively()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # misses a kernel for inference with 4 bits on a CPU


def exit_code(
    run,
    mend: str = "mend it and try --resume",
    stopped: str = "stopped at once; the newest checkpoint is intact, go on with --resume",
) -> int:
    """Call run() and return its exit code, or that of the error which ended it.

    Args:
        mend: what to try after a full disk, say.
        stopped: what is left after Ctrl-C.
    """
    try:
        code = run()
    except BaseException as error:
        code = code_of(error, mend, stopped)
        if in_group():  # others may wait for this process in a sum, and NCCL's goodbye would wait for them
            end_at_once(code)
        return code
    leave_processes()
    return code


def code_of(error: BaseException, mend: str, stopped: str) -> int:
    """Print what ended a run and return the exit code; of a process alone, raise what no message is known for."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    if isinstance(error, KeyboardInterrupt):
        say(stopped)
        if __name__ == "__main__":  # threads and pools of a reward may never end
            end_at_once(130)
        return 130
    is_full = is_disk_full(error)
    if is_full or isinstance(error, OSError):
        got = f"no space left on the disk ({str(error).partition(chr(10))[0]})" if is_full else error
        print(f"error: got {got}; expected to read and write files; {mend}", file=sys.stderr)
        return 2
    if not in_group():
        raise error
    traceback.print_exception(error)
    return 1
