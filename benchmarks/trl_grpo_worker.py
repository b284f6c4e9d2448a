#!/usr/bin/env python3
"""Train the embedded model with TRL's GRPOTrainer and print one JSON line; run by grpo_vs_trl.py."""

import argparse
import importlib.util
import json
import os
import resource
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent


def rewards(given: str) -> tuple[list, list[float]]:
    """(functions, weights): FILE:NAME, or the two functions with which our trainer trains the embedded model."""
    path, _, name = given.rpartition(":")
    spec = importlib.util.spec_from_file_location("rewards", path or ROOT / "examples/reward_functions_library.py")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    if name:
        return [getattr(library, name)], [1.0]
    return [library.correctness_reward, library.format_reward], [1.0, 0.2]


def main() -> None:
    """Run one training and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "data", "eval_data", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("steps", 20), ("batch_size", 128), ("group_size", 8), ("seed", 0), ("max_new_tokens", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--eval_every", type=int, default=0, help="0: never, for clean memory and speed")
    parser.add_argument("--reward", default="", help="FILE:NAME; empty: the embedded task's two")
    args = parser.parse_args()
    functions, weights = rewards(args.reward)

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, ProgressCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    gpu = torch.cuda.is_available()
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    train, held_out = ([json.loads(x) for x in Path(p).read_text().splitlines()] for p in (args.data, args.eval_data))

    @torch.no_grad()
    def accuracy(model) -> float:
        chats = [row["prompt"] for row in held_out]
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        enc = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        out = model.generate(
            **enc.to(model.device),
            do_sample=False,
            max_new_tokens=args.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(out[:, enc["input_ids"].shape[1] :], skip_special_tokens=True)
        return sum(t == f"<answer>{r['answer']}</answer>" for t, r in zip(texts, held_out, strict=True)) / len(texts)

    class Clock(TrainerCallback):
        """Seconds of training at the end of each step, and accuracy, the evaluation itself not counted."""

        def __init__(self):
            self.spent, self.last, self.marks = 0.0, time.perf_counter(), []

        def on_step_end(self, arguments, state, control, **kwargs):
            self.spent += time.perf_counter() - self.last
            step = len(self.marks) + 1
            right = accuracy(policy) if args.eval_every and step % args.eval_every == 0 else None
            self.marks.append((step, self.spent, right))
            self.last = time.perf_counter()

    config = GRPOConfig(
        output_dir=args.output_dir,
        max_steps=args.steps,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        seed=args.seed,
        per_device_train_batch_size=args.batch_size,
        num_generations=args.group_size,
        max_completion_length=args.max_new_tokens,
        beta=0.0,
        loss_type="dapo",
        reward_weights=weights,
        adam_epsilon=1e-8,
        use_cpu=not gpu,
        bf16=gpu,  # as ours computes there
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=functions,
        args=config,
        train_dataset=Dataset.from_list(train),
        processing_class=tokenizer,
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    clock = Clock()
    trainer.add_callback(clock)
    clock.last = time.perf_counter()
    trainer.train()
    peak = (
        torch.cuda.max_memory_allocated() / 2**20 if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )
    print(json.dumps({"marks": clock.marks, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
