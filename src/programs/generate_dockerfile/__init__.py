#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Write a Dockerfile for RL post-training whose versions are known to fit together, and refuse the others.

    base      this bundle's scripts, on a CUDA image or on the CPU
    trl       GRPO with TRL and vLLM
    verl      verl with vLLM or SGLang: on the image that verl recommends, or from CUDA up (--verl_base cuda)
    nanochat  nanochat at one commit, by uv and its lock file, as that project does it

The tables below are data, each row with its date and source: image tags, what torch's wheels are built for, and the
versions that fit together by the packages' own metadata. Settings choose a row, the first that has them all; where none
does, nothing is written and the nearest row is named. Beside the Dockerfile stands its .dockerignore; existing files
stay as they are unless --force is given.

In the image: pinned packages in layers ordered by how often they change, cache mounts, an ordinary user, a health check
that imports torch, a volume for HF_HOME, labels, no secrets. Tokens are passed when a container starts.

Deliberately left out: images for arm64, ROCm and Ascend; pins of what the pinned packages pull in (--from_env has them,
from an installed environment). Versions were resolved for Linux x86-64; the tables say what was never built.

    python scripts/generate_dockerfile.py --cuda cpu --print_build
    python scripts/generate_dockerfile.py --style trl --vllm 0.30.0 --compose --devcontainer --output docker/Dockerfile
    python scripts/generate_dockerfile.py --style verl --verl_base cuda --sglang --extra liger-kernel==0.8.2 --output -

Exit codes: 0 written (or listed), 2 bad input, or a combination outside the table.
"""

ROOMS = (
    "tables",
    "flags",
    "stacks",
    "choice",
    "pins",
    "dockerfile",
    "outputs",
    "command",
)
