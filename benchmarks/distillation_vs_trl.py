#!/usr/bin/env python3
"""Our on-policy distillation beside TRL's DistillationTrainer: same student, teacher, data, batch, lengths, samples.

    python assets/make_tiny_lm.py --teacher runs/teacher
    python benchmarks/distillation_vs_trl.py --teacher runs/teacher --pairs 5

Full-vocabulary reverse KL on both sides (TRL: beta 1), float32, one optimizer step per batch, constant learning rate.
Runs alternate, each in a process of its own. Prints a JSON object: per figure the median of each side and the median of
the ratios, pair by pair. CPU seconds beside wall-clock ones tell what a busy machine hides. Memory is the peak of the
process up to the end of training; accuracy is greedy, by one function for both, after the same number of samples.
"""

import argparse
import contextlib
import importlib.util
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

from ppo_vs_trl import medians_of

ROOT = Path(__file__).resolve().parent.parent
STUDENT, DATA = ROOT / "assets" / "tiny_lm", ROOT / "assets" / "data"
NEW_TOKENS, LEARNING_RATE = 32, 1e-3
OURS: list = []  # further flags of our side


def read(name: str) -> list[dict]:
    """Rows of a file of the embedded data."""
    return [json.loads(line) for line in (DATA / f"arithmetic_{name}.jsonl").read_text().splitlines()]


def accuracy(folder: str) -> float:
    """Share of held-out sums that a saved model answers rightly, greedily."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(STUDENT, padding_side="left")
    model, rows = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), read("eval")
    settings = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
    batch = tokenizer.apply_chat_template([row["prompt"] for row in rows], **settings)
    with torch.no_grad():
        ids = model.generate(**batch, do_sample=False, max_new_tokens=24, pad_token_id=tokenizer.pad_token_id)
    texts = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(t == f"<answer>{r['answer']}</answer>" for t, r in zip(texts, rows, strict=True)) / len(rows)


def train_ours(args, folder: str, mark) -> str:
    """Run scripts/on_policy_distillation.py in this process; returns the folder of the student."""
    spec = importlib.util.spec_from_file_location("ours", ROOT / "scripts" / "on_policy_distillation.py")
    sys.modules["ours"] = ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    ours.EMBEDDED_EVAL = ""  # nothing is evaluated while the clock runs
    logged = ours.RunLog.metrics
    ours.RunLog.metrics = lambda self, step, metrics: (logged(self, step, metrics), mark())
    flags = ["--teacher", args.teacher, "--steps", args.steps, "--batch_size", args.batch_size, "--seed", args.seed]
    flags += ["--max_new_tokens", NEW_TOKENS, "--lr", LEARNING_RATE, "--output_dir", f"{folder}/run", "--device", "cpu"]
    flags += ["--save_every", "0", "--plot_every", "0", "--sample_every", "0", "--micro_batch_tokens", "2048", *OURS]
    if ours.main([str(flag) for flag in flags]):
        sys.exit("our side failed")
    return f"{folder}/run/final"


def train_trl(args, folder: str, mark) -> str:
    """Run trl.DistillationTrainer; returns the folder of the student."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, ProgressCallback, TrainerCallback
    from trl import DistillationConfig, DistillationTrainer

    class Clock(TrainerCallback):
        """Marks the end of each step."""

        def on_step_end(self, arguments, state, control, **kwargs):
            mark()

    config = DistillationConfig(
        output_dir=folder,
        max_steps=args.steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        seed=args.seed,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=1,
        max_completion_length=NEW_TOKENS,
        beta=1.0,
        temperature=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        weight_decay=0.0,
        max_grad_norm=1.0,
        adam_epsilon=1e-8,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (STUDENT, args.teacher)]
    trainer = DistillationTrainer(
        model=models[0],
        teacher_model=models[1],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in read("train")]),
        processing_class=AutoTokenizer.from_pretrained(STUDENT, padding_side="left"),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(Clock())
    trainer.train()
    models[0].save_pretrained(f"{folder}/final")
    return f"{folder}/final"


def measure(args) -> dict:
    """Train one side in this process."""
    marks = []

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        student = (train_ours if args.side == "ours" else train_trl)(args, folder, mark)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        right = accuracy(student)
    wall, cpu = ([b[i] - a[i] for a, b in itertools.pairwise(marks[1:])] for i in (0, 1))  # the first steps warm up
    result = {"seconds_per_step": statistics.median(wall), "cpu_seconds_per_step": statistics.median(cpu)}
    return result | {"peak_mib": peak, "accuracy": right}


def main() -> None:
    """Alternate the two sides and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="folder that assets/make_tiny_lm.py --teacher has made")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=["ours", "trl"], help="measure one side in this process")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args)))
        return
    quiet = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    rows = []
    for pair in range(args.pairs):
        sides = []
        for side in ("ours", "trl"):
            command = [sys.executable, __file__, "--side", side, "--teacher", args.teacher, "--seed", str(pair)]
            command += ["--steps", str(args.steps), "--batch_size", str(args.batch_size)]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet})
            if done.returncode:
                sys.exit(done.stderr)
            sides.append(json.loads(done.stdout.strip().splitlines()[-1]))
        rows.append({name: [side[name] for side in sides] for name in sides[0]})
        print(json.dumps({"pair": pair, **rows[-1]}), file=sys.stderr, flush=True)
    result = {"settings": vars(args)}
    print(json.dumps(result | medians_of(rows), indent=1))


if __name__ == "__main__":
    main()
