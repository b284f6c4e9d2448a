#!/usr/bin/env python3
"""Measure how seconds and memory of a GRPO step grow with batch, length, group, vocabulary and processes.

    python benchmarks/growth.py                                  # all axes; some minutes on two cores
    python benchmarks/growth.py --axes length --json             # one of them, as JSON
    python benchmarks/growth.py --axes processes --values 1 2 4  # other values

Each point is one step of ppo_train.py's own code on a random Llama, with one size of BASE changed, in separate
processes (started by torchrun if there are several). Prompts are random tokens, completions never end early, scores are
random, and there is no KL. Sampling and update are measured separately: wall-clock seconds, processor seconds of all
processes together, and the memory growth of the fullest process: resident memory on a CPU (Linux), torch's allocations
on a GPU. A small step goes first, so that everything is loaded.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": True}
BASE = {"batch": 64, "length": 64, "group": 8, "vocabulary": 1000, "processes": 1, "prompt": 64}
AXES = {
    "batch": [64, 256, 1024],
    "length": [64, 256, 1024],
    "group": [2, 8, 32],
    "vocabulary": [1000, 16_000, 150_000],
    "processes": [1, 2],
}
FIGURES = ("sampling_s", "sampling_cpu_s", "sampling_mib", "update_s", "update_cpu_s", "update_mib")


class Meter:
    """Measures the time and memory of a piece of work in this process."""

    def __init__(self, device):
        import torch

        self.cuda = torch.cuda if device.type == "cuda" else None
        self.before = self.peak(reset=True)
        self.start = time.perf_counter(), time.process_time()

    def peak(self, reset: bool = False) -> float:
        """Most MiB held since the last reset."""
        if self.cuda:
            if reset:
                self.cuda.reset_peak_memory_stats()
            return self.cuda.max_memory_allocated() / 2**20
        if reset:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    def read(self, name: str) -> dict:
        """Seconds, seconds of the processor, MiB since the start."""
        if self.cuda:
            self.cuda.synchronize()
        seconds, cpu = (
            now - then for now, then in zip((time.perf_counter(), time.process_time()), self.start, strict=True)
        )
        return {f"{name}_s": seconds, f"{name}_cpu_s": cpu, f"{name}_mib": self.peak() - self.before}


def save_model(folder: str, vocabulary: int) -> None:
    """Save a random Llama with the given vocabulary size and the embedded model's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = transformers.LlamaConfig(**SHAPE, vocab_size=vocabulary, eos_token_id=2)
    transformers.AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(ROOT / "assets" / "tiny_lm").save_pretrained(folder)


def step(config, models, optimizer, size: dict) -> dict:
    """Take one step of these sizes; returns its time and memory in this process."""
    import numpy as np
    import torch

    from parts.sampling.rollouts import shared_out
    from parts.sampling.sampling import HFEngine
    from programs.ppo_train.step import make_experience, update

    draw, engine = np.random.default_rng(0), HFEngine(config, models)
    prompts = draw.integers(3, 200, (size["batch"] // size["group"], size["prompt"])).tolist()
    rows = [{"prompt": str(ids), "prompt_ids": ids} for ids in prompts for _ in range(size["group"])]
    scores, noise = draw.random(size["batch"]), draw.random((size["batch"], size["length"]))

    def sample(mine: list[dict], draws) -> list[dict]:
        found = engine.generate([row["prompt_ids"] for row in mine], draws)
        sampled = [{"response_ids": ids, "rollout_logprobs": logprobs} for ids, logprobs in found]
        return [row | one | {"finished": True} for row, one in zip(mine, sampled, strict=True)]

    meter = Meter(models.device)
    samples = shared_out(sample, rows, noise)
    taken = meter.read("sampling")
    for i, sample in enumerate(samples):
        sample |= {"score": float(scores[i]), "rewards": {"r": float(scores[i])}, "group": i // size["group"]}
    meter, scaler = Meter(models.device), torch.amp.GradScaler(models.device.type, enabled=False)
    update(config, models, optimizer, scaler, make_experience(config, models, samples, 0.0), 0)
    return taken | meter.read("update")


def worker(folder: str, size: dict, device: str) -> None:
    """Measure one point, or this process's part of it; the first process prints it."""
    import torch

    from parts.foundation.processes import gather_rows, leave_processes, start_processes, world
    from parts.networks.models import settle_precision
    from programs.ppo_train.models import load_models, make_optimizer
    from programs.ppo_train.settings import Config

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    counts = {"batch_size": size["batch"], "group_size": size["group"], "max_new_tokens": size["length"]}
    config = Config(model=folder, device=device, algorithm="grpo", kl_coef=0.0, lr=1e-4, **counts)
    where = start_processes(config)
    settle_precision(config, where)
    models = load_models(config, where, None)
    models.eos_ids = [size["vocabulary"]]  # no token is this one
    optimizer = make_optimizer(config, models)
    small = {"batch": size["group"] * size["processes"], "length": 2}
    before = config.batch_size, config.max_new_tokens
    config.batch_size, config.max_new_tokens = small["batch"], small["length"]
    step(config, models, optimizer, size | small)
    config.batch_size, config.max_new_tokens = before
    parts = gather_rows([step(config, models, optimizer, size)])
    if world()[0] == 0:
        joined = {name: (sum if "cpu" in name else max)(part[name] for part in parts) for name in parts[0]}
        print(json.dumps({name: round(value, 2) for name, value in joined.items()}))
    leave_processes()


def measure(size: dict, args) -> dict:
    """Measure one point in new processes."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        save_model(folder, size["vocabulary"])
        command = [sys.executable]
        if size["processes"] > 1:
            free.bind(("127.0.0.1", 0))
            port = f"--master_port={free.getsockname()[1]}"
            free.close()
            command += ["-m", "torch.distributed.run", f"--nproc_per_node={size['processes']}", port]
        command += [__file__, "--worker", json.dumps(size), "--folder", folder, "--device", args.device]
        env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{size}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure every point, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", default=[*AXES], choices=[*AXES])
    parser.add_argument("--values", nargs="+", type=int, help="of the one axis that is given")
    parser.add_argument("--base", type=json.loads, default={}, help='JSON, other sizes of BASE: {"batch": 256}')
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.folder, args.worker, args.device)
    if args.values and len(args.axes) != 1:
        parser.error("got --values for several axes; expected one; try --axes batch")
    rows, known = [], {}
    for axis in args.axes:
        for value in args.values or AXES[axis]:
            size = BASE | args.base | {axis: value}
            key = json.dumps(size)
            known[key] = known.get(key) or measure(size, args)
            rows.append({"axis": axis, "value": value, **known[key]})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if args.json:
        return print(json.dumps({"base": BASE | args.base, "load": os.getloadavg()[0], "points": rows}))
    print("| what | value | " + " | ".join(name.replace("_", " ") for name in FIGURES) + " |\n" + "|---" * 8 + "|")
    for row in rows:
        print("| " + " | ".join(str(row[name]) for name in ("axis", "value", *FIGURES)) + " |")


if __name__ == "__main__":
    main()
