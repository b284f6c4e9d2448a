#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Write a Dockerfile for RL post-training whose versions are known to fit together, and refuse the others.

    base      this bundle's scripts, on a CUDA image or on the CPU
    trl       GRPO with TRL and vLLM
    verl      verl with vLLM, or with SGLang (--sglang), on the images that verl recommends

Versions come from one table with the date and source of each row (--list prints it). A CUDA version without a row is
refused. A .dockerignore is written beside the Dockerfile; existing files are overwritten only with --force.

In the image: pinned packages in layers ordered by how often they change, cache mounts, an ordinary user, a health check
that imports torch, a volume for HF_HOME, labels, no secrets. Tokens are passed when a container starts.

Deliberately left out: images for arm64, ROCm and Ascend; flash-attn and Megatron-LM outside verl's image, because they
compile for hours; further packages, and versions that are not in the table: edit the written file.

    python scripts/generate_dockerfile.py --cuda cpu
    python scripts/generate_dockerfile.py --style trl --compose --devcontainer --output docker/Dockerfile
    python scripts/generate_dockerfile.py --style verl --sglang --output -

Exit codes: 0 written (or listed), 2 bad input, or a combination outside the table.
"""

ROOMS = ("command",)
