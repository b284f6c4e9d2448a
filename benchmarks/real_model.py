#!/usr/bin/env python3
"""Our trainers, sampler and evaluation beside their peers on a real model: same rows, lengths and numbers, in turns.

    python benchmarks/real_model.py --what grpo sampling --pairs 3
    python benchmarks/real_model.py --what evaluation --lm_eval_python V/bin/python --pairs 3
    python benchmarks/real_model.py --what ppo --trl_python W/bin/python --pairs 3        # W: see ppo_vs_trl.py

    grpo          a step of 32 completions of 24 tokens, groups of 8: ppo_train.py beside TRL's GRPOTrainer
    ppo           a step of 16 completions of 24 tokens, two epochs, a separate critic, half of the layers (all of them
                  need more than 24 GiB in TRL): beside TRL 1.12's PPOTrainer
    ppo_shared    the same with a value head on the policy, which TRL does not have
    distillation  a step of 16 completions of 24 tokens from a student of half the layers: beside DistillationTrainer
    sampling      32 completions of 64 tokens in groups of 8: our engine beside transformers' `generate`
    sampling_graphs   the same on a GPU with CUDA graphs, which `sampling` leaves out
    evaluation    24 problems, greedy, at most 64 tokens: evaluation.py beside lm-evaluation-harness

--completions and --tokens change the sizes of `grpo` and of sampling. On the CPU both sides compute in fp32. On a GPU
`grpo` and sampling compute in bf16 over fp32 weights, and GiB are those of the GPU. The GRPO reward differs within
every group (a share of characters), so that neither side leaves out a group. Each side is a process of its own; its CPU
seconds and its peak memory are the process's, its seconds per step those of the clock. Prints one table; a ratio is the
median over the pairs.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from real_learning import write_task

ROOT = Path(__file__).resolve().parent.parent
REWARD = '''
def vowels(completions, **kwargs):
    """The share of vowels in the text: hardly two completions have the same."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [sum(x in "aeiou" for x in text) / max(len(text), 1) for text in texts]
'''


def grpo(side: str, args, folder: Path) -> dict:
    """A run of --steps steps; seconds per step without the first one."""
    data = ["--model", str(args.model), "--data", str(folder / "train.jsonl")]
    flags = ["--steps", str(args.steps), "--batch_size", str(args.completions), "--group_size", "8"]
    flags += ["--max_new_tokens", str(args.tokens or 24), "--lr", "1e-6", "--seed", str(args.seed)]
    if side == "peer":
        command = [sys.executable, str(ROOT / "benchmarks/trl_grpo_worker.py"), *data, *flags]
        command += ["--reward", f"{folder / 'vowels.py'}:vowels", "--eval_data", str(folder / "eval.jsonl")]
        found = json.loads(output_of([*command, "--output_dir", str(folder / "trl")]))
        seconds = statistics.median(b[1] - a[1] for a, b in itertools.pairwise(found["marks"]))
        return {"seconds": seconds} | ({"gib": found["peak_mib"] / 1024} if on_gpu() else {})
    own = ["--algorithm", "grpo", "--kl_coef", "0", "--aggregation", "token_mean"]
    return own_figures([*data, *flags, *own], folder)


def ppo(side: str, args, folder: Path) -> dict:
    """A run of --steps steps on half of the layers; seconds per step without the first one."""
    flags = ["--model", str(half_of(args.model, folder)), "--data", str(folder / "train.jsonl"), "--lr", "1e-6"]
    flags += ["--steps", str(args.steps), "--batch_size", "16", "--ppo_epochs", "2", "--minibatches", "1"]
    flags += ["--max_new_tokens", "24", "--kl_coef", "0.01", "--vf_coef", "0.5", "--seed", str(args.seed)]
    if side == "peer":
        command = [args.trl_python, str(ROOT / "benchmarks/trl_ppo_worker.py"), *flags, "--reward", "vowels"]
        command += ["--eval_data", str(folder / "eval.jsonl"), "--output_dir", str(folder / "trl")]
        ends = [mark[1] for mark in json.loads(output_of(command))["marks"]]
        return {"seconds": statistics.median(b - a for a, b in itertools.pairwise(ends))}
    critic = "shared" if args.what == ["ppo_shared"] else "separate"
    return own_figures([*flags, "--critic", critic, "--missing_eos_penalty", "1"], folder)


def on_gpu() -> bool:
    """Whether there is a CUDA device."""
    import torch

    return torch.cuda.is_available()


def own_figures(flags: list[str], folder: Path) -> dict:
    """Seconds per step of ppo_train.py, without the first one, saving and evaluation; GiB where it ran on a GPU."""
    flags = [*flags, "--reward", f"{folder / 'vowels.py'}:vowels", "--output_dir", str(folder / "ours")]
    flags += ["--eval_every", "0", "--save_every", "0", "--plot_every", "0", "--sample_every", "0"]
    output_of([sys.executable, str(ROOT / "scripts/ppo_train.py"), *flags])
    lines = [json.loads(line) for line in (folder / "ours/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "time/update" in line]
    spent = (line["time/rollout"] + line["time/reward"] + line["time/update"] for line in steps[1:])
    peaks = [line["memory/gpu_peak_gib"] for line in steps if "memory/gpu_peak_gib" in line]
    return {"seconds": statistics.median(spent)} | ({"gib": max(peaks)} if peaks else {})


def half_of(model: Path, folder: Path) -> Path:
    """A folder with the first half of the model's layers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    half = folder / "half"
    if not half.exists():
        whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        layers = whole.config.num_hidden_layers // 2
        whole.model.layers, whole.config.num_hidden_layers = whole.model.layers[:layers], layers
        if getattr(whole.config, "layer_types", None):
            whole.config.layer_types = whole.config.layer_types[:layers]
        whole.save_pretrained(half)
        AutoTokenizer.from_pretrained(model).save_pretrained(half)
    return half


def output_of(command: list[str]) -> str:
    """The last line that a command prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def sampling(side: str, args, folder: Path) -> dict:
    """Seconds for all completions, groups of eight with a prompt of 96 tokens each; the end token is ignored."""
    import numpy as np
    import torch

    sys.path.insert(0, str(ROOT / "src"))
    from parts.networks.models import autocast, settle_precision
    from parts.sampling.sampling import HFEngine
    from programs.ppo_train.models import load_models
    from programs.ppo_train.settings import Config

    rows, new, device = args.completions, args.tokens or 64, "cuda" if on_gpu() else "cpu"
    sizes = {"max_prompt_tokens": 128, "max_new_tokens": new, "batch_size": rows, "kl_coef": 0.0}
    sizes |= {"precision": "bf16" if on_gpu() else "fp32", "decode_graphs": args.what == ["sampling_graphs"]}
    config = Config(model=str(args.model), algorithm="grpo", **sizes)
    settle_precision(config, torch.device(device))
    models = load_models(config, torch.device(device), None)
    end = models.policy.config.vocab_size - 1
    models.eos_ids = [end]
    prompts = [[1000 + i // 8, *[2000 + i // 8] * 95] for i in range(rows)]
    engine, noise = HFEngine(config, models), np.random.default_rng(args.seed).random((rows, new))
    drawn = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}

    def sample() -> int:
        if side == "ours":
            return sum(len(ids) for ids, _ in engine.generate(prompts, noise))
        torch.manual_seed(args.seed)
        ids = torch.tensor(prompts, device=device)
        drawn.update(attention_mask=torch.ones_like(ids), max_new_tokens=new, eos_token_id=end, pad_token_id=0)
        with autocast(config, models.device):
            made = models.policy.generate(ids, **drawn)[:, ids.shape[1] :]
        return sum(map(len, made.tolist()))  # waits for the GPU

    for _ in range(2 if on_gpu() else 1):  # the first on a GPU warms up
        start = time.perf_counter()
        tokens = sample()
        seconds = (time.perf_counter() - start) * rows * new / tokens
    return {"seconds": seconds} | ({"gib": torch.cuda.max_memory_allocated() / 2**30} if on_gpu() else {})


def distillation(side: str, args, folder: Path) -> dict:
    """Seconds per step, without the first, of distilling into the first half of the model's layers."""
    import distillation_vs_trl as peers

    student = half_of(args.model, folder)
    peers.STUDENT, peers.NEW_TOKENS, peers.LEARNING_RATE = student, 24, 1e-6
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    peers.read, marks = lambda name: rows, []
    peers.OURS = ["--model", student, "--data", folder / "train.jsonl"]
    given = argparse.Namespace(teacher=str(args.model), steps=args.steps, batch_size=16, seed=args.seed)
    train = peers.train_ours if side == "ours" else peers.train_trl
    train(given, str(folder / side), lambda: marks.append(time.perf_counter()))
    return {"seconds": statistics.median(b - a for a, b in itertools.pairwise(marks))}


def evaluation(side: str, args, folder: Path) -> dict:
    """Seconds from the first prompt to the last score; both sides batch four rows."""
    import evaluation_vs_lm_eval as peers

    for name, count in (("shots", 3), ("problems", 24)):
        lines = (folder / "train.jsonl").read_text().splitlines()[:count]
        rows = [json.loads(line) for line in lines]
        texts = [{"question": row["prompt"][-1]["content"], "answer": f"#### {row['answer']}"} for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    if not (folder / "model").exists():
        (folder / "model").symlink_to(args.model)
    start = time.perf_counter()
    _, texts, scores = (peers.ours if side == "ours" else peers.theirs)(folder, 0, 4, 64)
    return {"seconds": time.perf_counter() - start, "texts": texts, "scores": scores}


WHAT = {
    "grpo": grpo,
    "ppo": ppo,
    "ppo_shared": ppo,
    "distillation": distillation,
    "sampling": sampling,
    "sampling_graphs": sampling,
    "evaluation": evaluation,
}


def worker(args) -> None:
    """One side once, in this process; figures as JSON on the last line."""
    result = WHAT[args.what[0]](args.side, args, args.folder)
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    result["cpu"] = sum(usage.ru_utime + usage.ru_stime for usage in (own, children))
    result.setdefault("gib", max(own.ru_maxrss, children.ru_maxrss) / 2**20)
    print(json.dumps(result))


def side_of(args, what: str, side: str, seed: int, folder: Path) -> dict:
    """The figures of a side, from a process of its own."""
    python = args.lm_eval_python if (what, side) == ("evaluation", "peer") else sys.executable
    command = [python, __file__, "--what", what, "--side", side, "--folder", str(folder), "--seed", str(seed)]
    command += ["--model", str(args.model), "--steps", str(args.steps)]
    command += ["--completions", str(args.completions), "--tokens", str(args.tokens)]
    command += ["--trl_python", args.trl_python] if args.trl_python else []
    env = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Alternate the sides of each comparison and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = Path(os.environ.get("REAL_MODELS", ROOT / "../real_models"))
    parser.add_argument("--model", type=Path, default=models / "qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--what", nargs="+", choices=[*WHAT], default=["grpo", "distillation", "sampling"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--completions", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=0, help="of each completion (0: as above)")
    parser.add_argument("--lm_eval_python", help="interpreter of an environment with lm-eval, for evaluation")
    parser.add_argument("--trl_python", help="interpreter of an environment with trl 1.12.0, for ppo")
    for name in ("side", "folder", "seed"):
        kind = {"folder": Path, "seed": int}.get(name, str)
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.model = args.model.resolve()
    if not (args.model / "config.json").exists():
        sys.exit(f"got no model in {args.model}; expected a transformers folder; try --model FOLDER")
    if args.side:
        return worker(args)
    if "evaluation" in args.what and not args.lm_eval_python:
        sys.exit("evaluation needs --lm_eval_python V/bin/python, an environment with lm-eval and transformers")
    if {"ppo", "ppo_shared"} & {*args.what} and not args.trl_python:
        sys.exit("ppo needs --trl_python V/bin/python, an environment with trl 1.12.0")
    print(
        "| what | seconds, ours | peer | ratio | GiB, ours | peer | ratio | CPU seconds, ratio |\n" + "|---" * 8 + "|"
    )
    for what in args.what:
        pairs = []
        for seed in range(args.pairs):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                write_task(folder, "words", chat=True, held_out=8)
                (folder / "vowels.py").write_text(REWARD)
                pairs.append([side_of(args, what, side, seed, folder) for side in ("ours", "peer")])
            print(json.dumps({"what": what, "pair": seed, "sides": pairs[-1]}), file=sys.stderr, flush=True)
        cells = [what]
        for key in ("seconds", "gib"):
            ours, peer = ([pair[i][key] for pair in pairs] for i in (0, 1))
            ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True))
            cells += [f"{statistics.median(ours):.1f}", f"{statistics.median(peer):.1f}", f"{ratio:.2f}"]
        cells.append(f"{statistics.median(pair[0]['cpu'] / pair[1]['cpu'] for pair in pairs):.2f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
