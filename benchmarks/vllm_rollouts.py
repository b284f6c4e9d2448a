#!/usr/bin/env python3
"""Tokens per second of our two sampling engines on a random model of 50M parameters, and the cost of a copy of weights.

Run in the environment of the tests of vLLM, without anything else on the machine:

    .venv-vllm/bin/python benchmarks/vllm_rollouts.py --rows 64 --tokens 256
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
SHAPE = {"vocab_size": 16_384, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12}
SHAPE |= {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024}


def save_model(folder: str) -> None:
    """A random Llama with the embedded model's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SHAPE, eos_token_id=2))
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(ROOT / "assets" / "tiny_lm").save_pretrained(folder)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")


def measure(rows: int, tokens: int, repeats: int) -> None:
    """Print the figures of both engines, taken in turns."""
    import numpy as np
    import torch

    from parts.sampling.sampling import HFEngine
    from parts.sampling.sampling_vllm import VllmEngine
    from programs.ppo_train.models import load_models
    from programs.ppo_train.settings import Config

    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        sizes = {"max_prompt_tokens": 32, "max_new_tokens": tokens, "precision": "fp32"}
        config = Config(model=folder, algorithm="grpo", kl_coef=0.0, rollout_engine="vllm", **sizes)
        models = load_models(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"), None)
        models.eos_ids = [SHAPE["vocab_size"] - 1]  # so that hardly a row ends early
        engines = {"hf": HFEngine(config, models), "vllm": VllmEngine(config, models)}
        vllm = engines["vllm"]
        together = vllm.llm.generate
        prompts = [[5 + i % 50] * 16 for i in range(rows)]
        noise = np.random.default_rng(0).random((rows, tokens))
        seconds: dict[str, list[float]] = {}

        def seed_each(requests, params, **given):
            each = [params.clone() for _ in requests]
            for i, one in enumerate(each):
                one.seed = i
            return together(requests, each, **given)

        for _ in range(repeats):
            for name in ("hf", "vllm", "vllm, a seed each"):
                vllm.llm.generate = seed_each if name.endswith("each") else together
                start = time.perf_counter()
                made = engines[name.partition(",")[0]].generate(prompts, noise)
                spent = time.perf_counter() - start
                print(f"  {name}: {spent:.1f} s", flush=True)
                seconds.setdefault(name, []).append(spent / sum(len(ids) for ids, _ in made))
            vllm.llm.generate = together
            for name, call in (("copy", lambda: vllm.sync(7)), ("check", lambda: vllm.check(7))):
                start = time.perf_counter()
                call()
                seconds.setdefault(name, []).append(time.perf_counter() - start)
        middle = {name: statistics.median(spent) for name, spent in seconds.items()}
        found = {f"{name} s": round(middle.pop(name), 2) for name in ("copy", "check")}
        print(json.dumps({f"{name} tokens/s": round(1 / each) for name, each in middle.items()} | found))


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    measure(**vars(parser.parse_args()))
