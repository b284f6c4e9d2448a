"""Several runs in the processes of one torchrun launch: run_in_each_process.py RUNS.json, for test_processes.py.

RUNS.json is a list of {"script", "flags", "disturb"}. Process 1 alone adds `disturb` to GRPO advantages, as a sum on a
GPU may come out in another order there.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist
from conftest import load_script


def disturb(trainer, amount: float):
    """Shift GRPO's advantages; returns the table as it was."""
    plain = dict(trainer.ADVANTAGES)
    trainer.ADVANTAGES["grpo"] = lambda **known: plain["grpo"](**known) + amount
    return plain


def gloo_threads() -> list[str]:
    """Names of this process's threads that serve a process group; they can abort a process that exits beside them."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            names.append(path.read_text().strip())
    return [name for name in names if "gloo" in name]


def main() -> None:
    """Run them all; the process group of the first is kept for the others, and nothing keeps it after that."""
    for run in json.loads(Path(sys.argv[1]).read_text()):
        trainer = load_script(run["script"])
        leave, trainer.leave_processes = trainer.leave_processes, lambda: None
        plain = disturb(trainer, run["disturb"] * int(os.environ["RANK"])) if run["disturb"] else {}
        code = trainer.main(run["flags"])
        getattr(trainer, "ADVANTAGES", {}).update(plain)
        trainer.leave_processes = leave
        assert code == 0, (run, code)
    assert gloo_threads(), "expected those of the group; has gloo renamed them?"
    dist.destroy_process_group()
    until = time.monotonic() + 60  # a thread that was joined may be listed a moment longer
    while gloo_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not gloo_threads(), gloo_threads()


if __name__ == "__main__":
    main()
