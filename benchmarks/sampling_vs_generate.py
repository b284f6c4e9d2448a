#!/usr/bin/env python3
"""Sampling with our engine beside `generate` of transformers: a random model of 50M parameters, in one run, in turns.

    python benchmarks/sampling_vs_generate.py --rows 64 --tokens 256
    python benchmarks/sampling_vs_generate.py --group_size 8 --prompt_tokens 128 --tokens 128 --sides widened ours

Prints a JSON object: of each side the median of its CPU seconds (seconds by the clock where it runs on
a GPU), and of its ratio to the first side round by round. Sides:
`ours`, `widened` (ours with a copy of a group's prompt for each row), `generate` (its own growing cache), `static` (the
same with cache_implementation="static").
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time

from vllm_rollouts import ROOT, SHAPE, save_model

sys.path.insert(0, str(ROOT / "src"))


def make_sides(folder: str, rows: int, tokens: int, length: int, group_size: int) -> dict:
    """What samples `tokens` tokens for each of `rows` rows, by name; each call returns how many it has made.

    Each group of rows has a prompt of `length` tokens of its own.
    """
    import numpy as np
    import torch

    from parts.sampling.sampling import HFEngine
    from programs.ppo_train.models import load_models
    from programs.ppo_train.settings import Config

    sizes = {"max_prompt_tokens": length, "max_new_tokens": tokens, "precision": "fp32", "batch_size": rows}
    config = Config(model=folder, algorithm="grpo", kl_coef=0.0, group_size=1, **sizes)
    models = load_models(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"), None)
    end = SHAPE["vocab_size"] - 1  # hardly a row ends early
    models.eos_ids, engine = [end], HFEngine(config, models)
    widened = HFEngine(config, models)
    widened.decoding = dataclasses.replace(widened.decoding, groups=False)
    numbers = [i // group_size for i in range(rows)]
    prompts = [[5 + i, *[5 + i % 50] * (length - 1)] for i in numbers]  # no two groups alike
    noise, ids = np.random.default_rng(0).random((rows, tokens)), torch.tensor(prompts, device=models.device)
    drawn = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": tokens}
    drawn |= {"eos_token_id": end, "pad_token_id": 0}

    def generate(**given) -> int:
        made = models.policy.generate(ids, attention_mask=torch.ones_like(ids), **drawn, **given)[:, ids.shape[1] :]
        return int((made != 0).sum())

    return {
        "generate": generate,
        "ours": lambda: sum(len(made) for made, _ in engine.generate(prompts, noise)),
        "widened": lambda: sum(len(made) for made, _ in widened.generate(prompts, noise)),
        "static": lambda: generate(cache_implementation="static", disable_compile=True),
    }


def main() -> None:
    """Take the sides in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt_tokens", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=1)
    sides = ["generate", "ours", "static", "widened"]
    parser.add_argument("--sides", nargs="+", default=sides[:2], choices=sides)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    seconds: dict[str, list[float]] = {}
    gpu = torch.cuda.is_available()
    clock = time.perf_counter if gpu else time.process_time  # both sides hand tokens back, so the GPU has ended too
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        sides = make_sides(folder, args.rows, args.tokens, args.prompt_tokens, args.group_size)
        for _ in range(args.rounds):
            for name in args.sides:
                start = clock()
                made = sides[name]()
                seconds.setdefault(name, []).append((clock() - start) * args.rows * args.tokens / made)
                print(f"  {name}: {made} tokens, {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    medians = {name: round(statistics.median(spent), 2) for name, spent in seconds.items()}
    first = args.sides[0]
    ratios = {
        f"{name}/{first}": round(statistics.median(a / b for a, b in zip(spent, seconds[first], strict=True)), 3)
        for name, spent in seconds.items()
        if name != first
    }
    print(json.dumps({"settings": vars(args), ("seconds" if gpu else "cpu_seconds"): medians, **ratios}, indent=1))


if __name__ == "__main__":
    main()
