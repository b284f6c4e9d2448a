"""Program exit: errors that a user can fix become a message and an exit code."""

import logging
import os
import sys
import traceback

from parts.foundation.messages import UserError, is_disk_full, is_out_of_memory, memory_shortage, say, say_once
from parts.foundation.processes import LOCKS, end_at_once, leave_processes, use_huge_pages, wait_passively, world


def quiet_environment(vllm: bool = False) -> None:
    """Set up libraries: no noise in our output, no spinning idle threads, huge pages, no fragmented GPU memory.

    Variables that the user has set stay.

    Args:
        vllm: vLLM samples in this process; its memory pool does not work with expandable segments.
    """
    wait_passively()
    use_huge_pages()
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
    if not vllm and not any(name in os.environ for name in names):
        os.environ[names[0]] = "expandable_segments:True"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a missing 4-bit inference kernel on CPUs


def exit_code(
    run,
    mend: str = "fix it and try --resume",
    stopped: str = "stopped at once; if a checkpoint was saved, --resume continues from it",
) -> int:
    """Call run() and return its exit code, or that of the error that ended it.

    Args:
        mend: advice after an OSError, such as a full disk.
        stopped: message after Ctrl-C.
    """
    try:
        code = run()
    except BaseException as error:
        code = code_of(error, mend, stopped)
        if world()[1] > 1:  # other processes may wait for this one in a sum, and leaving NCCL would wait for them
            end_at_once(code)
        return code
    finally:
        say_once.cache_clear()  # a notebook's process outlives the run
        while LOCKS:
            LOCKS.pop().close()
    leave_processes()
    return code


def code_of(error: BaseException, mend: str, stopped: str) -> int:
    """Print the error that ended a run and return its exit code; a single process re-raises unknown errors."""
    if isinstance(error, KeyboardInterrupt):
        say(stopped)
        if __name__ == "__main__":  # threads and pools of a reward may never end
            end_at_once(130)
        return 130
    code = 2
    if isinstance(error, UserError):
        text, code = error, error.code
    elif isinstance(error, Exception) and is_out_of_memory(error):
        text = memory_shortage("in this program", error, "a smaller model or batch, or a machine with more")
    elif is_disk_full(error):
        got = f"no space left on the disk ({str(error).partition(chr(10))[0]})"
        text = f"got {got}; expected to read and write files; {mend}"
    elif isinstance(error, OSError):
        text = f"got {error}; expected to read and write files; {mend}"
    elif world()[1] == 1:
        raise error
    else:
        traceback.print_exception(error)
        return 1
    print(f"error: {text}", file=sys.stderr, flush=True)
    return code
