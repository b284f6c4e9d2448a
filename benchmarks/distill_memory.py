#!/usr/bin/env python3
"""Peak extra memory of a full-vocabulary reverse KL with its gradient at a large vocabulary, in pieces and at once.

    python benchmarks/distill_memory.py        # 1,024 tokens, vocabulary 151,936, hidden sizes 64 and 128; 6 GiB

`pieces` and `whole` are scripts/on_policy_distillation.py with its default --logits_chunk and with one that holds all
tokens; `plain` is the definition by autograd on the logits of both models. Each side runs in a process of its own; the
figure is the growth of its peak resident memory over what it held before (states, output layers and their gradients).
Prints a JSON object.
"""

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

TRAINER = Path(__file__).resolve().parent.parent / "scripts" / "on_policy_distillation.py"


def measure(args) -> dict:
    """Run one side in this process."""
    import torch

    spec = importlib.util.spec_from_file_location("trainer", TRAINER)
    sys.modules["trainer"] = trainer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trainer)
    torch.manual_seed(0)
    n, v = args.tokens, args.vocabulary
    student, teacher = torch.randn(n, args.hidden, requires_grad=True), torch.randn(n, args.teacher_hidden)
    w = torch.randn(v, args.hidden).mul_(args.hidden**-0.5).requires_grad_()
    w_teacher = torch.randn(v, args.teacher_hidden).mul_(args.teacher_hidden**-0.5)
    torch.nn.functional.linear(student[:8], w).sum().backward()  # library buffers and .grad exist from here on
    w.grad, student.grad = torch.zeros_like(w), torch.zeros_like(student)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if args.side == "plain":
        dist = torch.log_softmax(teacher @ w_teacher.T, -1)
        loss = torch.nn.functional.kl_div(dist, torch.log_softmax(student @ w.T, -1), reduction="none", log_target=True)
        loss = loss.sum() / n
        loss.backward()
        loss = loss.detach()
    else:
        trainer.all_logits, config = (lambda weight, h: h @ weight.T), trainer.Config()
        chunk = n if args.side == "whole" else max(1, config.logits_chunk // v)
        loss, scale = 0.0, torch.ones(())
        for part in (slice(at, at + chunk) for at in range(0, n, chunk)):
            known = {"weights": torch.full((len(student[part]),), 1 / n)}
            dist = torch.log_softmax(teacher[part] @ w_teacher.T, -1)
            loss = loss + trainer.token_gradients(config, w, student[part], known, dist, scale)[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    extra = {"extra_mib": round((peak - before) / 1024), "seconds": round(time.perf_counter() - start, 1)}
    return extra | {"loss": round(float(loss), 5), "gradient": round(w.grad.norm().item(), 6)}


def main() -> None:
    """Measure the sides in their own processes and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--teacher_hidden", type=int, default=128)
    parser.add_argument("--side", choices=["plain", "whole", "pieces"], help="measure one side in this process")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args)))
        return
    flags = [f"--{name}={getattr(args, name)}" for name in ("tokens", "vocabulary", "hidden", "teacher_hidden")]
    result = {}
    for side in ("plain", "whole", "pieces"):
        done = subprocess.run([sys.executable, __file__, *flags, "--side", side], stdout=subprocess.PIPE, check=True)
        result[side] = json.loads(done.stdout)
    result["pieces/plain"] = round(result["pieces"]["extra_mib"] / result["plain"]["extra_mib"], 3)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
