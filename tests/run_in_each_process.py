"""Several trainings in the processes of one torchrun launch: run_in_each_process.py RUNS.json, for test_processes.py.

RUNS.json is a list of {"script", "flags", "disturb"}. Process 1 alone adds `disturb` to GRPO advantages, as a sum on a
GPU may come out in another order there.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from conftest import load_script


def disturb(trainer, amount: float):
    """Shift GRPO's advantages; returns the table as it was."""
    plain = dict(trainer.ADVANTAGES)
    trainer.ADVANTAGES["grpo"] = lambda **known: plain["grpo"](**known) + amount
    return plain


def main() -> None:
    """Run them all; the process group of the first is kept for the others."""
    for run in json.loads(Path(sys.argv[1]).read_text()):
        trainer = load_script(run["script"])
        leave, trainer.leave_processes = trainer.leave_processes, lambda: None
        plain = disturb(trainer, run["disturb"] * int(os.environ["RANK"]))
        code = trainer.main(run["flags"])
        trainer.ADVANTAGES.update(plain)
        trainer.leave_processes = leave
        assert code == 0, (run, code)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
