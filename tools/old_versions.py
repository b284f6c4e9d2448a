#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Measure the first step of a GRPO script under the TRL of this Python: loss, gradient, sampling, sizes.

The script runs unchanged, in a folder with a small model `tiny` and `prompts.jsonl`. Completions are computed from the
prompt instead of sampled, so that two versions train on the same batch. Their lengths differ, but all are as long as
allowed if prompts begin with w9 (with_kl.py). The policy is moved after the trainer is built, so that the KL is not 0.

    python tools/old_versions.py --set_up 0.14 --folder /tmp/old_trl       # an environment of its own
    /tmp/old_trl/0.14/bin/python tools/old_versions.py --run tests/files/old_trl/plain.py --prompts 8
"""

import argparse
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ENVIRONMENTS = {
    "0.14": "trl==0.14.0 transformers==4.48.3 accelerate==1.3.0 datasets==3.2.0 numpy<2.3",
    "0.17": "trl==0.17.0 transformers==4.51.3 accelerate==1.6.0 datasets==3.5.1 numpy<2.3",
    "0.21": "trl==0.21.0 transformers==4.55.4 accelerate==1.10.1 datasets==4.0.0",
    "0.26": "trl==0.26.2 transformers==4.57.6 accelerate==1.12.0 datasets==4.4.2",
    "1.0": "trl==1.0.0 transformers==5.5.4 accelerate==1.13.0 requests",
    "1.8": "trl==1.8.0 transformers==5.12.1 accelerate==1.14.0 requests",
}
WORDS = ["<pad>", "<eos>", *(f"w{number}" for number in range(30))]
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")


def set_up(number: str, folder: Path):
    """Make an environment with an old TRL and torch for the CPU."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / number)], check=True)
    pip = [str(folder / number / "bin" / "pip"), "install", "-q"]
    subprocess.run([*pip, "torch==2.13.0+cpu"], check=True)
    subprocess.run([*pip, *ENVIRONMENTS[number].split()], check=True)


def wave(parameter, shift: int):
    """Numbers in a parameter's shape that are the same in every version of torch."""
    import torch

    numbers = [math.sin(1.7 * index + shift) for index in range(parameter.numel())]
    return torch.tensor(numbers, dtype=torch.float32).view_as(parameter)


def make_folder(prompts: int, first_word: str):
    """Write the model, its tokenizer and the prompts into the working folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=1, pad_token_id=0, eos_token_id=1, bos_token_id=1)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(0.5 * wave(parameter, index) + (parameter.dim() == 1))
    model.save_pretrained("tiny")
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained("tiny")
    rows = [{"prompt": f"{first_word} w{10 + number} w{20 - number}"} for number in range(prompts)]
    Path("prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class Step:
    """Records what a trainer's first step does."""

    def __init__(self):
        self.result, self.counts = {}, Counter()

    def generate(self, model, input_ids, generation_config, **kwargs):
        """Computed completions in the place of sampled ones."""
        import torch

        config = model._prepare_generation_config(generation_config)
        config = config[0] if isinstance(config, tuple) else config
        self.result["sampling"] = {name: getattr(config, name) for name in SAMPLING}
        longest = config.max_new_tokens
        rows = input_ids.repeat_interleave(config.num_return_sequences or 1, dim=0)
        completions = torch.zeros(len(rows), min(longest, 8), dtype=rows.dtype)
        for row, prompt in zip(completions, rows.tolist(), strict=True):
            draw = self.counts[tuple(prompt)]
            self.counts[tuple(prompt)] += 1
            full = WORDS[next(token for token in prompt if token)] == "w9"
            length = len(row) if full else 2 + (draw + prompt[-1]) % (len(row) - 2)
            row[:length] = torch.tensor([2 + (7 * draw + 3 * index + prompt[-1]) % 10 for index in range(length)])
            if not full:
                row[length - 1] = 1
        return torch.cat([rows, completions], dim=1)

    def watch(self, trainer):
        """Move the policy, and note the gradient before the optimizer's step."""
        import torch
        from transformers import TrainerCallback

        step = self

        class Gradient(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
                step.result["gradient"] = {
                    name: [float(p.grad.norm()), float((p.grad * wave(p, 0)).sum())]
                    for name, p in model.named_parameters()
                }
                step.result["optimizer"] = {name: optimizer.param_groups[0][name] for name in ("lr", "weight_decay")}

        with torch.no_grad():
            for index, parameter in enumerate(trainer.model.parameters()):
                parameter.add_(0.1 * wave(parameter, 50 + index))
        trainer.model.generate = lambda *args, **kwargs: self.generate(trainer.model, *args, **kwargs)
        trainer.add_callback(Gradient())


def measured(script: str, prompts: int) -> dict:
    """Run a script and return the figures of its first step."""
    import trl

    step, build, train = Step(), trl.GRPOTrainer.__init__, trl.GRPOTrainer.train

    def built(trainer, *args, **kwargs):
        build(trainer, *args, **kwargs)
        step.watch(trainer)

    def trained(trainer, *args, **kwargs):
        step.result["loss"] = train(trainer, *args, **kwargs).training_loss

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_folder(prompts, "w9" if "with_kl" in script else "w8")
        trl.GRPOTrainer.__init__, trl.GRPOTrainer.train = built, trained
        runpy.run_path(script, run_name="__main__")
    sizes = {"prompts": len(step.counts), "completions": sum(step.counts.values())}
    return {"trl": trl.__version__, **step.result, **sizes}


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--set_up", choices=ENVIRONMENTS, help="the version of TRL to make an environment for")
    parser.add_argument("--folder", type=Path, help="where its environment goes")
    parser.add_argument("--run", type=Path, help="a script with GRPOTrainer")
    parser.add_argument("--prompts", type=int, default=2, help="rows of prompts.jsonl: those of one step")
    args = parser.parse_args()
    if args.set_up:
        set_up(args.set_up, args.folder)
    if args.run:
        print(json.dumps(measured(str(args.run.resolve()), args.prompts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
