"""Run scripts/ppo_train.py in a process group over gloo, so that two processes can share one GPU; NCCL refuses that."""

import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from conftest import load_script

if __name__ == "__main__":
    dist.init_process_group("gloo")
    sys.exit(load_script("ppo_train").main(sys.argv[1:]))
