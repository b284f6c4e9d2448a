"""How a program ends: errors that a user can mend become a message and an exit code."""

import logging
import os
import sys

from parts.foundation.messages import UserError, is_disk_full, is_out_of_memory, memory_shortage, say
from parts.foundation.processes import end_at_once, leave_processes


def quiet_environment(vllm: bool = False) -> None:
    """Keep libraries from writing among our lines, and GPU memory from fragmenting, unless the user has said otherwise.

    Args:
        vllm: samples in this process; its memory pool does not work with segments that grow.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
    if not vllm and not any(name in os.environ for name in names):
        os.environ[names[0]] = "expandable_segments:True"
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
        return run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    except Exception as error:
        if is_out_of_memory(error):
            advice = "a smaller model or batch, or a machine with more"
            print(f"error: {memory_shortage('in this program', error, advice)}", file=sys.stderr, flush=True)
            return 2
        is_full = is_disk_full(error)
        if not is_full and not isinstance(error, OSError):
            raise
        got = f"no space left on the disk ({str(error).partition(chr(10))[0]})" if is_full else error
        print(f"error: got {got}; expected to read and write files; {mend}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say(stopped)
        if __name__ == "__main__":  # threads and pools of a reward may never end
            end_at_once(130)
        return 130
    finally:
        leave_processes()
