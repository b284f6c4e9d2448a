#!/usr/bin/env python3
"""The trainers' estimates of an update's memory beside what torch's CPU allocator hands out, on random models.

    python benchmarks/memory_estimates.py                     # all cases, one core, below 4 GiB each
    python benchmarks/memory_estimates.py --only gpt2 eager   # cases whose name has one of these words

Each case runs in a process of its own: it builds a random model, gives every trained weight a gradient, as after the
first micro-batch, and records every allocation of one more micro-batch through the trainer's own code
(`accumulate_gradients`, or TRL's forward with its fused head) with torch.profiler. `measured` is
the most that lived at once beside weights, gradients and optimizer, `predicted` is `backward_peak` of the same case;
`share` is predicted / measured. `step` is what clipping and AdamW's second step take beside what they hold, `rss` the
growth of the process's peak resident memory. Prints one JSON line per case, then the range of the shares.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
SIZES = {"vocab_size": 16_000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048, "pad_token_id": 0}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 64}),
    "gpt2": ("GPT2Config", {"n_embd": 512, "n_layer": 4, "n_head": 8, "n_inner": 1536, "num_key_value_heads": None}),
    "gemma2": ("Gemma2Config", {"head_dim": 64}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 64}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2}),
}
FAMILIES["qwen3_moe"][1]["moe_intermediate_size"] = 512
# name of a case: trainer, family, attention, precision, and: recompute, lora, one (a row of 1,024 tokens, not 4 of 512)
CASES = [
    "ppo llama sdpa fp32",
    "ppo llama sdpa fp32 recompute",
    "ppo llama sdpa bf16",
    "ppo llama sdpa bf16 recompute",
    "ppo llama sdpa bf16 lora",
    "ppo llama sdpa fp32 one",
    "ppo llama eager fp32",
    "ppo llama eager bf16",
    "ppo qwen3 sdpa fp32",
    "ppo gpt2 sdpa fp32",
    "ppo gpt2 sdpa bf16",
    "ppo gpt2 eager fp32",
    "ppo gpt2 sdpa fp32 recompute",
    "ppo gemma2 eager fp32",
    "ppo gemma2 eager bf16 recompute",
    "ppo gemma3 sdpa bf16",
    "ppo gemma3 sdpa bf16 recompute",
    "ppo qwen3_moe sdpa fp32",
    "distillation llama sdpa fp32",
    "distillation llama sdpa bf16 recompute",
    "trl llama sdpa fp32",
    "trl llama sdpa bf16",
    "trl gpt2 sdpa fp32",
]
SCRIPTS = {"ppo": "ppo_train", "distillation": "on_policy_distillation", "trl": "grpo_train"}


def load_trainer(name: str):
    """The script of a trainer as a module."""
    sys.path.insert(0, str(ROOT / "tests"))
    from conftest import load_script

    return load_script(SCRIPTS[name])


def random_model(family: str, attention: str, words: set[str]):
    """A random model as the trainers load it, in the dtype of its case."""
    import torch
    import transformers

    torch.manual_seed(0)
    config_class, extra = FAMILIES[family]
    config = getattr(transformers, config_class)(**{**SIZES, **extra}, attn_implementation=attention)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.0
    return model.to(torch.bfloat16) if {"lora", "bf16"} <= words else model


def with_adapters(model, rank: int):
    """LoRA on all linear layers, as `add_lora` of the trainers."""
    from peft import LoraConfig, get_peft_model

    transposed = any(type(m).__name__ == "Conv1D" for m in model.modules())
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", fan_in_fan_out=transposed)
    return get_peft_model(model.requires_grad_(False), lora)


def random_batch(rows: int, length: int) -> dict:
    """A training batch of random tokens; the second half of each row is its completion, some rows are shorter."""
    import torch

    ids = torch.randint(3, SIZES["vocab_size"], (rows, length))
    mask = torch.ones_like(ids)
    mask[1:, length - 5 :] = 0
    response = mask.clone()
    response[:, 0] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "response_mask": response, "loss_mask": response}
    zeros = torch.zeros(rows, length)
    batch |= {"rollout_logprobs": zeros - 1, "old_logprobs": zeros - 1, "advantages": zeros + 1}
    return batch


def micro_batch(trainer, case: list[str], config, model, batch: dict):
    """A function that runs forward and backward of the batch, as the trainer does, and the head's buffers."""
    import torch

    models = types.SimpleNamespace(policy=model, critic=None, reference=None, device=torch.device("cpu"))
    models.networks = [model, None, None]  # policy, critic, reference
    scaler, rows = torch.amp.GradScaler(enabled=False), list(range(len(batch["input_ids"])))
    if case[0] == "ppo":
        trainer.contributing = lambda config, batch: rows
        return lambda: trainer.accumulate_gradients(config, models, batch, rows, scaler)
    if case[0] == "distillation":
        teacher = object.__new__(trainer.LocalTeacher)
        teacher.config, teacher.width = config, SIZES["vocab_size"]
        teacher.model = random_model(case[1], case[2], set()).requires_grad_(False)
        models.teacher, models.pad_id = teacher, 0
        return lambda: trainer.accumulate_gradients(config, models, batch, rows, scaler)
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    labels = batch["input_ids"].masked_fill(batch["response_mask"] == 0, -100)

    def forward_and_backward():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in case):
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            loss = model(**inputs, labels=labels, fused_lm_head=True).log_probs.sum()
        loss.backward()

    return forward_and_backward


def allocated_peak(function) -> int:
    """Most bytes of torch's CPU allocator that were alive at once in a call, beside those alive before it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def measure(name: str) -> dict:
    """Predict and measure one case in this process."""
    import torch

    torch.set_num_threads(1)
    case, words = name.split(), set(name.split())
    trainer, rank = load_trainer(case[0]), 8 if "lora" in words else 0
    rows, length = (1, 1024) if "one" in words else (4, 512)
    model = random_model(case[1], case[2], words)
    shape = trainer.decoder_shape(model.config.to_dict())
    model = with_adapters(model, rank).eval() if rank else model.eval()
    if "recompute" in words:
        base = model.get_base_model() if rank else model
        base.activation_checkpointing_enable({"use_reentrant": False})
        model.train()
    settings = {"algorithm": "grpo"} if case[0] == "ppo" else {"objective": "reverse_kl"}
    settings |= {"precision": case[3], "lora_rank": rank, "logits_chunk": 2**22}
    config = types.SimpleNamespace(temperature=1.0) if case[0] == "trl" else trainer.Config(**settings)
    compute = 4 if case[3] == "fp32" else 2
    run = trainer.PassShape(
        rows=rows,
        length=length,
        compute=compute,
        stream=compute if rank else 4,
        attention=case[2],
        checkpointing="recompute" in words,
        lora_rank=rank,
    )
    step = micro_batch(trainer, case, config, model, random_batch(rows, length))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
    for p in trained:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = allocated_peak(step)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if case[0] == "trl":
        head = trainer.trl_head(shape, run, fused=False)
    else:  # in pieces of --logits_chunk, as in memory_of_trainer
        buffers = trainer.POLICY_BUFFERS if case[0] == "ppo" else trainer.STUDENT_BUFFERS
        logits = min(max(config.logits_chunk, shape.vocab), run.tokens * shape.vocab)
        head = trainer.head_bytes(shape, run, logits, buffers)
    predicted = trainer.backward_peak(shape, run, head)
    clip = torch.nn.utils.clip_grad_norm_
    apply = allocated_peak(lambda: (clip(trained, 1.0), optimizer.step()))
    figures = {"predicted": predicted, "measured": measured, "rss": grown * 1024, "step": apply}
    kept = sum(p.numel() * (16 if p.requires_grad else p.itemsize) for p in model.parameters())
    return {
        "case": name,
        "share": round(predicted / measured, 3),
        **{f"{key}_mib": round(value / MIB, 1) for key, value in figures.items()},
        "whole": round((predicted + kept) / (measured + kept), 3),
    }


def main() -> None:
    """Run every case in a process of its own and print the range of predicted / measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has one of these words")
    parser.add_argument("--case", help="measure this one in this process")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    shares = []
    for case in CASES:
        if args.only and not set(args.only) & set(case.split()):
            continue
        command = [sys.executable, __file__, "--case", case]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, env=env, check=True)
        found = json.loads(done.stdout.decode().splitlines()[-1])
        shares.append(found["share"])
        print(json.dumps(found), flush=True)
    print(json.dumps({"cases": len(shares), "predicted/measured": [min(shares), max(shares)]}))


if __name__ == "__main__":
    main()
