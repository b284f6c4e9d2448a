#!/usr/bin/env python3
"""Peak extra memory of log-prob + entropy + backward at a large vocabulary, chunked against all logits at once.

    python benchmarks/logprob_memory.py            # 4 x 1,024 tokens, vocabulary 151,936, hidden size 896; needs 16 GiB

Each side runs in a process of its own; the figure is the growth of its peak resident memory over what it held before
the computation (hidden states and output layer). Prints a JSON object.
"""

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

TRAINER = Path(__file__).resolve().parent.parent / "scripts" / "ppo_train.py"


def measure(args) -> dict:
    """Run one side in this process."""
    import torch

    spec = importlib.util.spec_from_file_location("ppo_train", TRAINER)
    sys.modules["ppo_train"] = trainer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trainer)
    torch.manual_seed(0)
    hidden = torch.randn(args.tokens, args.hidden, requires_grad=True)
    weight = torch.randn(args.vocabulary, args.hidden).mul_(args.hidden**-0.5).requires_grad_()
    targets = torch.randint(args.vocabulary, (args.tokens,))
    torch.nn.functional.linear(hidden[:8], weight).sum().backward()  # library buffers and .grad exist from here on
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    chunk = args.tokens if args.side == "plain" else max(1, trainer.Config().logits_chunk // args.vocabulary)
    logprobs, _ = trainer.logprobs_and_entropy(lambda h: h @ weight.T, hidden, targets, 1.0, chunk)
    logprobs.mean().backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"extra_mib": round((peak - before) / 1024), "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    """Measure both sides in their own processes and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--side", choices=["plain", "chunked"], help="measure one side in this process")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args)))
        return
    flags = [f"--{name}={getattr(args, name)}" for name in ("tokens", "vocabulary", "hidden")]
    result = {}
    for side in ("plain", "chunked"):
        done = subprocess.run([sys.executable, __file__, *flags, "--side", side], stdout=subprocess.PIPE, check=True)
        result[side] = json.loads(done.stdout)
    result["chunked/plain"] = round(result["chunked"]["extra_mib"] / result["plain"]["extra_mib"], 3)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
