#!/usr/bin/env python3
"""GRPO with tools, ppo_train.py beside TRL's own loop: same model, environment, data, batch and lengths, alternating.

    python benchmarks/tools_vs_trl.py --pairs 5

Prints a JSON object: per figure the median of each side and the median of the ratios, pair by pair. Seconds of a step
are the processor's, which other work on the machine changes little: those of a long run less those of a short one. The
model and the environment are those of `make demo-tools`, from a start that calls: the demo's model after some steps,
made first. TRL gets the same class by `environment_factory`, and a response template for Hermes' form of calls. No KL,
no evaluation, one update a batch on both sides; TRL's rounds of tools are one fewer than our turns.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ppo_vs_trl import ROOT, environment, medians_of

BATCH, GROUP, TURNS, ANSWER, WHOLE = 128, 8, 3, 32, 256


def demo_flags() -> list[str]:
    """The flags of `make demo-tools`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    return shlex.split(re.search(r"^DEMO_TOOLS := (.*)$", makefile, re.MULTILINE)[1])


def measured(command: list[str], threads: int) -> tuple[str, float, float]:
    """(stdout, peak MiB, CPU seconds) of a command."""
    measure = "import resource,subprocess,sys;p=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE,text=True);"
    measure += "u=resource.getrusage(resource.RUSAGE_CHILDREN);print(p.stdout);"
    measure += "print(u.ru_maxrss/1024,u.ru_utime+u.ru_stime);sys.exit(p.returncode)"
    given = {"cwd": ROOT, "env": environment(threads), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", measure, *command], **given)
    if done.returncode:
        sys.exit(done.stderr)
    *text, figures = done.stdout.rstrip().splitlines()
    return "\n".join(text), *map(float, figures.split())


def run_ours(model: str, steps: int, seed: int, threads: int) -> dict:
    """{"cpu", "peak_mib", "turns": mean of each step} of a run."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [*demo_flags(), "--model", model, "--kl_coef", "0", "--steps", str(steps), "--seed", str(seed)]
        flags += ["--batch_size", str(BATCH), "--group_size", str(GROUP), "--micro_batch_tokens", "32768"]
        flags += [f"--{name}=0" for name in ("eval_every", "save_every", "plot_every", "sample_every")]
        flags += ["--eval_data", f"{folder}/one.jsonl"]  # evaluated before and after the steps
        rows = (ROOT / "assets/data/products_eval.jsonl").read_text().splitlines()
        Path(folder, "one.jsonl").write_text(rows[0] + "\n")
        command = [sys.executable, "scripts/ppo_train.py", *flags, "--output_dir", f"{folder}/run"]
        _, peak, cpu = measured(command, threads)
        found = map(json.loads, Path(folder, "run", "metrics.jsonl").read_text().splitlines())
        turns = [row["rollout/turns_mean"] for row in found if "rollout/turns_mean" in row]
    return {"cpu": cpu, "peak_mib": peak, "turns": turns}


def run_trl(model: str, steps: int, seed: int, threads: int) -> dict:
    """The same of TRL."""
    flags = ["--worker", "--model", model, "--steps", str(steps), "--seed", str(seed)]
    text, peak, cpu = measured([sys.executable, str(Path(__file__).resolve()), *flags], threads)
    return {"cpu": cpu, "peak_mib": peak, "turns": json.loads(text.strip().splitlines()[-1])}


def worker(model: str, steps: int, seed: int) -> None:
    """Train with TRL and print the turns of each step."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, ProgressCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    sys.path.insert(0, str(ROOT / "examples"))
    from environments import Calculator

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.response_template = hermes(qwen3_template, tokenizer)
    rows = [json.loads(x) for x in (ROOT / "assets/data/products_train.jsonl").read_text().splitlines()]
    turns = []

    class Turns(TrainerCallback):
        """Notes the mean number of answers in a conversation."""

        def on_log(self, arguments, state, control, logs=None, **kwargs):
            turns.extend([1 + logs["tools/call_frequency"]] if "tools/call_frequency" in logs else [])

    sizes = {"max_steps": steps, "per_device_train_batch_size": BATCH, "num_generations": GROUP, "seed": seed}
    quiet = {"report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    cpu = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
    rates = {"learning_rate": 2e-4, "lr_scheduler_type": "constant", "beta": 0.0, "loss_type": "grpo"}
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_completion_length=WHOLE - 64,
            max_tool_calling_iterations=TURNS - 1,
            **{**sizes, **quiet, **cpu, **rates},
        )
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        given = {"model": policy, "reward_funcs": [], "args": config, "train_dataset": Dataset.from_list(rows)}
        trainer = GRPOTrainer(**given, processing_class=tokenizer, environment_factory=Calculator)
        trainer.generation_config.max_new_tokens = ANSWER  # of an answer, as ours
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        trainer.add_callback(Turns())
        trainer.train()
    print(json.dumps(turns))


def hermes(template: dict, tokenizer) -> dict:
    """A response template for Hermes' calls in this tokenizer's turns, from that of a model family with such calls."""
    return json.loads(json.dumps(template).replace("<|im_end|>", tokenizer.eos_token))


def main() -> None:
    """Alternate the two sides and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    for name in ("worker", "model", "seed"):  # of the worker that this script starts
        parser.add_argument(
            f"--{name}", help=argparse.SUPPRESS, **({"action": "store_true"} if name == "worker" else {})
        )
    args = parser.parse_args()
    if args.worker:
        return worker(args.model, args.steps, int(args.seed))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        flags = [*demo_flags(), "--steps", "12", "--eval_every", "0", "--output_dir", f"{folder}/start"]
        measured([sys.executable, "scripts/ppo_train.py", *flags], args.threads)
        model = f"{folder}/start/final"
        for pair in range(args.pairs):
            sides = []
            for run in (run_ours, run_trl):
                short, long = (run(model, n, pair, args.threads) for n in (2, 2 + args.steps))
                cpu = (long["cpu"] - short["cpu"]) / args.steps
                sides.append({"cpu_seconds_per_step": cpu, "peak_mib": long["peak_mib"]})
                sides[-1]["turns"] = statistics.mean(long["turns"])
            row = {name: [side[name] for side in sides] for name in sides[0]}
            print(json.dumps({"pair": pair, **row}), file=sys.stderr, flush=True)
            rows.append(row)
    result = {"settings": {"pairs": args.pairs, "steps": args.steps, "threads": args.threads}}
    print(json.dumps(result | medians_of(rows), indent=1))


if __name__ == "__main__":
    main()
