#!/usr/bin/env python3
"""Measure what sharing prompts and skipping pads saves in experience and update.

    python benchmarks/shared_prompts.py                          # all cases
    python benchmarks/shared_prompts.py --only embedded          # cases whose name has one of these words
    python benchmarks/shared_prompts.py --lengths                # tokens only, for lengths like those of school maths

Each case takes one batch of samples and repeats the part of a step after the rollout, with `--share_prompts` true and
false in turns. Prints a JSON line per case: each side's median CPU seconds and peak bytes of torch's CPU allocator, the
median of the pairwise ratios, and tokens: rows x columns of the plain micro-batches, those that are not pads, and those
that are run if prompts are shared.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time

from memory_estimates import MIB, allocated_peak
from vllm_rollouts import ROOT

EMBEDDED = str(ROOT / "assets" / "tiny_lm")
SHAPE = {"vocab_size": 4096, "hidden_size": 448, "intermediate_size": 1184, "num_hidden_layers": 8}
SHAPE |= {"num_attention_heads": 7, "num_key_value_heads": 7, "max_position_embeddings": 2048, "eos_token_id": 2}
GRPO = {"algorithm": "grpo", "kl_coef": 0.0, "aggregation": "token_mean", "group_size": 8}
SHORT = {"batch_size": 128, "max_new_tokens": 32}
# name of a case: settings; prompts and completions of the random model's cases have these lengths at most
CASES = {
    "random, 128 + 128 tokens": GRPO | {"batch_size": 16, "max_prompt_tokens": 128, "max_new_tokens": 128},
    "random, 128 + 128 tokens, recomputed": GRPO
    | {"batch_size": 16, "max_prompt_tokens": 128, "max_new_tokens": 128, "gradient_checkpointing": True},
    "random, up to 128 + 128 tokens": GRPO | {"batch_size": 16, "max_prompt_tokens": 128, "max_new_tokens": 128},
    "random, 64 + 448 tokens": GRPO | {"batch_size": 16, "max_prompt_tokens": 64, "max_new_tokens": 448},
    "embedded, grpo": GRPO | SHORT,
    "embedded, ppo": {"algorithm": "ppo"} | SHORT,
    "embedded, distillation": SHORT,
    "embedded, distillation, groups of 8": SHORT | {"group_size": 8},
}


def save_random_model(folder: str) -> None:
    """A random Llama of 21M parameters with the embedded tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True)).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)


def random_samples(name: str, config) -> list[dict]:
    """Samples of random tokens, of full length, or of at least half of it if the case's name has `up to`."""
    import numpy as np

    draws, samples, size = np.random.default_rng(0), [], config.group_size

    def text(longest: int) -> list[int]:
        shortest = longest // 2 if "up to" in name else longest
        return draws.integers(6, 4000, draws.integers(shortest, longest + 1)).tolist()

    for group in range(config.batch_size // size):
        prompt = text(config.max_prompt_tokens)
        for _ in range(size):
            sample = {"prompt_ids": prompt, "response_ids": text(config.max_new_tokens), "finished": True}
            sample |= {"group": group, "score": float(draws.normal()), "rewards": {"r": 1.0}}
            samples.append(sample | {"rollout_logprobs": [-8.0] * len(sample["response_ids"])})
    return samples


def embedded_samples(kind: str, config, models) -> list[dict]:
    """Samples of the embedded model for its own task."""
    from parts.data.prompts import load_splits
    from parts.running.checkpoints import TrainState
    from parts.sampling.sampling import HFEngine
    from programs.on_policy_distillation.step import rollout_batch
    from programs.ppo_train.models import load_reward
    from programs.ppo_train.rollout import Sampler

    rows, engine = load_splits(config, models.tokenizer)[0], HFEngine(config, models)
    if kind == "distillation":
        return rollout_batch(config, models, engine, load_reward(config), rows, 0, 0, {})[0]
    return Sampler(config, models, engine, load_reward(config), rows, TrainState()).rollout(0, {})[0]


def side_of(name: str, folder: str, share: bool) -> tuple:
    """(Config, models, function that makes samples, function that runs a step after the rollout) of one side."""
    import torch

    given = CASES[name] | {"share_prompts": share, "precision": "fp32", "lr": 1e-6}
    kind = "distillation" if "distillation" in name else "ppo"
    if kind == "distillation":
        from programs.on_policy_distillation import models, settings
        from programs.on_policy_distillation import step as of_step

        config = settings.Config(model=EMBEDDED, teacher=EMBEDDED, **given)
    else:
        from programs.ppo_train import models, settings
        from programs.ppo_train import step as of_step

        config = settings.Config(model=EMBEDDED if "embedded" in name else folder, **given)
    loaded = models.load_models(config, torch.device("cpu"))
    optimizer, scaler = models.make_optimizer(config, loaded), torch.amp.GradScaler("cpu", enabled=False)

    def make() -> list[dict]:
        return embedded_samples(kind, config, loaded) if "embedded" in name else random_samples(name, config)

    def step(samples: list[dict]) -> None:
        batch = of_step.make_experience(config, loaded, samples, config.kl_coef)
        of_step.update(config, loaded, optimizer, scaler, batch, 1)

    return config, loaded, make, step


def tokens_of(config, models, samples: list[dict], shared: float) -> dict[str, int]:
    """Token counts of a batch's plain micro-batches, and the tokens that are run if prompts are shared."""
    from parts.networks.batches import collate, layout_of, micro_batches, trimmed

    batch, found = collate(samples, models.pad_id, models.device), {"plain": 0, "without pads": 0, "run": 0}
    for longest in (0, shared):
        for rows in micro_batches(batch, range(len(samples)), config.micro_batch_tokens, longest):
            piece, _ = trimmed(batch, rows)
            layout = layout_of(piece, longest) if longest else None
            if not longest:
                found["plain"] += piece["input_ids"].numel()
                found["without pads"] += int(piece["attention_mask"].sum())
            else:
                found["run"] += len(layout.ids) if layout else piece["input_ids"].numel()
    return found


def tokens_of_lengths() -> None:
    """Print the tokens of batches whose lengths are drawn like those of GSM8K with a chat template, in groups of 8.

    Prompts have 60 to 260 tokens, 105 on average, completions 40 to 512, 190 on average: both log-normal.
    """
    import types

    import numpy as np
    import torch

    draws, models = np.random.default_rng(0), types.SimpleNamespace(pad_id=0, device=torch.device("cpu"))
    for rows, size, budget in ((128, 8, 8192), (1024, 8, 8192), (1024, 8, 32768), (1024, 1, 8192)):
        samples = []
        for _ in range(rows // size):
            prompt = draws.integers(6, 4000, int(np.clip(draws.lognormal(4.6, 0.3), 60, 260))).tolist()
            for _ in range(size):
                ids = draws.integers(6, 4000, int(np.clip(draws.lognormal(5.15, 0.45), 40, 512))).tolist()
                samples.append({"prompt_ids": prompt, "response_ids": ids, "rollout_logprobs": [0.0] * len(ids)})
        found = tokens_of(types.SimpleNamespace(micro_batch_tokens=budget), models, samples, float("inf"))
        mean = {kind: round(sum(len(s[f"{kind}_ids"]) for s in samples) / rows) for kind in ("prompt", "response")}
        pads = round(1 - found["without pads"] / found["plain"], 3)
        case = {"rows": rows, "group": size, "micro_batch_tokens": budget, "mean": mean}
        print(json.dumps(case | {"tokens": found, "pads": pads, "run": round(found["run"] / found["plain"], 3)}))


def measure(name: str, folder: str, pairs: int, memory: bool) -> dict:
    """Take the two sides of a case in turns."""
    from parts.networks.forward import shared_length

    sides = {"on": side_of(name, folder, True), "off": side_of(name, folder, False)}
    config, models, make, _ = sides["off"]
    samples, seconds, peaks = make(), {"on": [], "off": []}, {}
    for turn in range(pairs + 1):  # the first is not counted
        for which, (_, _, _, step) in sides.items():
            begin = time.process_time()
            step(samples)
            if turn:
                seconds[which].append(time.process_time() - begin)
    if memory:
        peaks = {
            f"{which}_mib": round(allocated_peak(lambda s=s: s[3](samples)) / MIB, 1) for which, s in sides.items()
        }
    ratios = [on / off for on, off in zip(seconds["on"], seconds["off"], strict=True)]
    return {
        "case": name,
        "ratio": round(statistics.median(ratios), 3),
        **{f"{which}_seconds": round(statistics.median(found), 3) for which, found in seconds.items()},
        **peaks,
        "tokens": tokens_of(config, models, samples, shared_length(sides["on"][1].networks)),
    }


def main() -> None:
    """Measure the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", default=[], help="cases of these names, or with one of these words in their name"
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no_memory", action="store_true", help="leave out the peaks, one further run a side")
    parser.add_argument("--lengths", action="store_true", help="count the tokens of made-up lengths, and stop")
    args = parser.parse_args()
    if args.lengths:
        tokens_of_lengths()
        return
    import torch

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(folder)
        for name in CASES:
            if not args.only or set(args.only) & {name, *name.replace(",", "").split()}:
                print(json.dumps(measure(name, folder, args.pairs, not args.no_memory)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
