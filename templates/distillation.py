#!/usr/bin/env python3
"""On-policy distillation on one page: copy it, read it from top to bottom, make it yours.

    python distillation.py --model STUDENT --teacher TEACHER --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --out out

    loss = mean over the student's own tokens of KL(student || teacher) = sum_v p_v (log p_v - log q_v)
The student samples, the teacher says what it would have said at each place, over the whole vocabulary (Agarwal 2024,
arXiv 2306.13649; Lu 2025, Thinking Machines). Both need one tokenizer. The reward is only measured.

Data: JSONL with `prompt`, a string or chat messages, and any columns. The reward gets those that it names, as in
`def reward(prompt, completion, answer) -> float`, or TRL's `def reward(prompts, completions, **columns) -> list`.
--out gets metrics.jsonl, samples.jsonl, and the model for `from_pretrained`. CPU, CUDA, Apple's GPU (untested).
Left out, and in scripts/on_policy_distillation.py: resume, LoRA, several GPUs, vLLM, forward KL and JSD, several
teachers, teachers behind a server, data of the teacher, rewards in the loss, schedules.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import math
import signal
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


@dataclasses.dataclass
class Config:
    """All settings; each is a flag."""

    model: str  # folder or hub id
    teacher: str  # folder or hub id, with the same tokenizer
    data: str  # JSONL
    reward: str  # FILE.py:function
    eval_data: str = ""  # held-out JSONL: accuracy before and after, the share of scores of 1 and above
    out: str = "out"  # a new folder
    chat: bool = True  # string prompts are a user's turn if the tokenizer has a chat template; --no-chat: they are text
    steps: int = 60  # each one rollout and one update
    minutes: float = 0.0  # end in this time, with everything saved; 0: no limit
    seed: int = 0
    batch_size: int = 128  # completions a step, one a prompt
    micro_batch: int = 32  # rows in one forward and backward pass: lower it when memory runs out
    chunk: int = 512  # tokens whose distributions over the vocabulary are compared at once
    max_prompt_tokens: int = 1024  # longer prompts are left out
    max_new_tokens: int = 256
    temperature: float = 1.0  # logits of student and teacher are divided by it
    lr: float = 0.0  # 0: 1e-3 below 50M parameters, else 1e-5
    max_grad_norm: float = 1.0


def parse_config(argv=None) -> Config:
    """The settings of a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for f in dataclasses.fields(Config):
        kind = {"action": argparse.BooleanOptionalAction} if f.type is bool else {"type": f.type}
        parser.add_argument(f"--{f.name}", required=f.default is dataclasses.MISSING, default=f.default, **kind)
    return Config(**vars(parser.parse_args(argv)))


def load_rows(config, tokenizer, file):
    """Rows {"prompt_ids", "columns", "where"} of a JSONL file."""
    rows = []
    for number, line in ((n, x) for n, x in enumerate(Path(file).read_bytes().splitlines(), start=1) if x.strip()):
        try:
            columns = json.loads(line)
            prompt = columns["prompt"]
            if isinstance(prompt, str) and not (config.chat and tokenizer.chat_template):
                ids = tokenizer(prompt).input_ids
            else:
                turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
                ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
            assert prompt and ids, "the prompt is empty"
        except Exception as error:  # no JSON, no prompt, roles that the template refuses, ...
            expected = "expected an object with a prompt, a string or chat messages"
            sys.exit(f"error: {file}:{number}: got {line[:80]!r} ({type(error).__name__}: {error}); {expected}")
        if len(ids) <= config.max_prompt_tokens:
            rows.append({"prompt_ids": list(ids), "columns": columns, "where": f"{file}:{number}"})
    print(f"{file}: {len(rows)} prompts of at most {config.max_prompt_tokens} tokens")
    return rows or sys.exit(f"error: {file}: got no prompt of at most {config.max_prompt_tokens} tokens")


def load_reward(spec):
    """reward(rows, completions) -> scores, from FILE.py:function, of one sample or, as in TRL, of a batch."""
    file, _, name = spec.rpartition(":")
    sys.path.insert(0, str(Path(file).absolute().parent))
    function = getattr(importlib.import_module(Path(file).stem), name)
    names, takes_all = inspect.signature(function).parameters, bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS)
    by_sample = "prompt" in names or "completion" in names

    def reward(rows, texts):
        calls, scores = [row["columns"] | {"completion": text} for row, text in zip(rows, texts, strict=True)], []
        if not by_sample:  # lists, and messages where the prompt is messages
            columns = {k: [c.get(k) for c in calls] for k in rows[0]["columns"]}
            prompts = columns.pop("prompt")
            turns = [[{"role": "assistant", "content": text}] for text in texts]
            mixed = [x if isinstance(p, str) else t for x, t, p in zip(texts, turns, prompts, strict=True)]
            calls = [columns | {"prompts": prompts, "completions": mixed}]
        try:
            for row, given in zip(rows, calls, strict=False):  # noqa: B007  named below
                result = function(**{k: v for k, v in given.items() if k in names or takes_all})
                scores += [float(result)] if by_sample else [float(x) for x in result]
                assert all(map(math.isfinite, scores)), f"got {scores[-1]}"
            assert len(scores) == len(rows), f"got {len(scores)} scores for {len(rows)} completions"
        except Exception as error:
            code = function.__code__
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
            place = (
                f"{file}:{[code.co_firstlineno, *lines][-1]}, on {row['where']}{'' if by_sample else ' and later rows'}"
            )
            sys.exit(f"error: {place}: reward {name}: {type(error).__name__}: {error}; expected a finite number")
        return scores

    return reward


# Numerics. Per-token tensors are [B, T] over prompt and response; x[b, t] is about token t; masks are 1 = keep.
def reverse_kl(student, teacher, temperature: float):
    """(KL(student || teacher), the student's entropy), both [N], of logits [N, V]; a teacher may have more padding."""
    width = min(student.shape[-1], teacher.shape[-1])
    p, q = (torch.log_softmax(x[:, :width].float() / temperature, dim=-1) for x in (student, teacher))
    return (p.exp() * (p - q)).sum(-1), -(p.exp() * p).sum(-1)


def load_models(config):
    """Student (`policy`), teacher and tokenizer, in eval mode for good: without dropout."""
    m = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(config.model))
    m.device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

    def load(source):
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(m.device).eval()

    m.policy, m.teacher = load(config.model), load(config.teacher).requires_grad_(False)
    if AutoTokenizer.from_pretrained(config.teacher).get_vocab() != m.tokenizer.get_vocab():
        sys.exit(f"error: got teacher {config.teacher!r} with another tokenizer; expected the student's")
    ends = m.policy.generation_config.eos_token_id  # chat models may name several
    m.eos_ids = sorted({*(ends if isinstance(ends, list) else [ends]), m.tokenizer.eos_token_id} - {None})
    m.pad_id = m.eos_ids[0] if m.tokenizer.pad_token_id is None else m.tokenizer.pad_token_id
    return m


def run(network, input_ids, attention_mask, **kwargs):
    """The network's output, in bf16 where the GPU has it; positions count real tokens, so pads shift nothing."""
    bf16 = input_ids.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
    with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=bf16):
        return network(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, **kwargs)


def predicting_logits(model, batch):
    """Logits that predict the response tokens, [N, V]; token t is predicted at t - 1."""
    mask = batch["response_mask"].bool()
    start = int(mask.any(dim=0).int().argmax())
    kept = mask.shape[1] - start + 1  # those of the prompt are never computed
    return run(model, batch["input_ids"], batch["attention_mask"], logits_to_keep=kept).logits[:, :-1][mask[:, start:]]


@torch.no_grad()
def generate(config, models, prompts, greedy=False):
    """One completion per prompt, as a batch: prompts end, and completions start, in one column."""
    width = max(map(len, prompts))
    ids = torch.tensor([[models.pad_id] * (width - len(p)) + p for p in prompts], device=models.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=models.device)
    ended, response, logprobs = mask[:, :1] < 0, mask * 0, mask * 0.0
    new, cache, ends = ids, None, torch.tensor(models.eos_ids, device=models.device)
    for _ in range(config.max_new_tokens):
        out = run(models.policy, new, mask, past_key_values=cache, use_cache=True, logits_to_keep=1)
        dist, cache = torch.log_softmax(out.logits[:, -1].float() / config.temperature, dim=-1), out.past_key_values
        new = dist.argmax(-1, keepdim=True) if greedy else torch.multinomial(dist.exp(), 1)  # [B, 1]
        new = new.masked_fill(ended, models.pad_id)
        live = (~ended).long()
        ids, mask, response = torch.cat([ids, new], 1), torch.cat([mask, live], 1), torch.cat([response, live], 1)
        logprobs = torch.cat([logprobs, dist.gather(1, new) * live], 1)
        ended = ended | torch.isin(new, ends)  # the end token itself is part of the completion, and trained
        if ended.all():
            break
    return {"input_ids": ids, "attention_mask": mask, "response_mask": response, "rollout_logprobs": logprobs}


def rollout(config, models, reward, rows, greedy=False):
    """A batch of completions with scores [B], and their samples as text."""
    batch = generate(config, models, [row["prompt_ids"] for row in rows], greedy)
    samples = []
    for row, ids, mask in zip(rows, batch["input_ids"], batch["response_mask"].bool(), strict=True):
        ids = ids[mask].tolist()
        finished = ids[-1] in models.eos_ids
        text = models.tokenizer.decode(ids[:-1] if finished else ids)  # other special tokens stay visible
        samples.append({"prompt": row["columns"]["prompt"], "completion": text, "finished": finished})
    scores = reward(rows, [s["completion"] for s in samples])
    batch["scores"] = torch.tensor(scores, dtype=torch.float32, device=models.device)
    return batch, [s | {"score": score} for s, score in zip(samples, scores, strict=True)]


def accumulate_gradients(config, models, batch):
    """Add the gradients of a batch; a token weighs the same in every micro-batch. Returns metrics."""
    tokens, sums = batch["response_mask"].sum(), torch.zeros(2, device=models.device)
    for rows in torch.arange(len(batch["scores"]), device=models.device).split(config.micro_batch):
        piece = {name: x[rows] for name, x in batch.items()}
        student = predicting_logits(models.policy, piece)
        check_sampler(config, student, piece)
        with torch.no_grad():
            teacher = predicting_logits(models.teacher, piece)
        loss = 0.0
        for s, t in zip(student.split(config.chunk), teacher.split(config.chunk), strict=True):
            kl, entropy = checkpoint(reverse_kl, s, t, config.temperature, use_reentrant=False)  # computed once more
            loss = loss + kl.sum() / tokens
            sums += torch.stack([kl.detach().sum(), entropy.detach().sum()]) / tokens
        loss.backward()
    return sums


@torch.no_grad()
def check_sampler(config, logits, piece):
    """Stop where sampler and trainer give one token different log-probs."""
    mask = piece["response_mask"].bool()
    dist = torch.log_softmax(logits.float() / config.temperature, dim=-1)
    gap = (dist.gather(1, piece["input_ids"][mask][:, None]).squeeze(1) - piece["rollout_logprobs"][mask]).abs()
    gap, limit = (gap.mean(), 0.1) if mask.is_cuda else (gap.max(), 1e-3)  # bf16 is coarse
    if not gap <= limit:
        sys.exit(f"error: sampler and trainer differ by {gap:.2g} nats a token; expected {limit}; is the cache right?")


def update(config, models, optimizer, batch, step):
    """One optimizer step; returns metrics."""
    sums = accumulate_gradients(config, models, batch)
    norm = torch.nn.utils.clip_grad_norm_(models.policy.parameters(), config.max_grad_norm)
    if not torch.stack([*sums, norm]).isfinite().all():
        sys.exit(f"error: step {step}: got a loss or gradient that is not finite; try a lower --lr")
    optimizer.step()
    optimizer.zero_grad()
    kl, entropy = sums.tolist()
    return {"policy/loss": kl, "kl/teacher": kl, "policy/entropy": entropy, "optim/grad_norm": norm.item()}


def measure(batch, samples):
    """Metrics of a rollout."""
    return {
        "reward/mean": batch["scores"].mean().item(),
        "rollout/length_mean": batch["response_mask"].sum(1).float().mean().item(),
        "rollout/truncated_frac": sum(not s["finished"] for s in samples) / len(samples),
    }


def log(config, name, entry):
    """Append a line to a file of --out."""
    with (Path(config.out) / name).open("a", encoding="utf-8") as f:
        f.write(json.dumps(entry, ensure_ascii=False) + "\n")


def evaluate(config, models, reward, rows, step):
    """Greedy held-out accuracy."""
    starts = range(0, len(rows), config.batch_size)
    parts = [rollout(config, models, reward, rows[i : i + config.batch_size], greedy=True)[1] for i in starts]
    right = [s["score"] >= 1 for part in parts for s in part]
    if right:
        log(config, "metrics.jsonl", {"step": step, "eval/accuracy": sum(right) / len(right)})
        print(f"step {step}: held-out accuracy {sum(right) / len(right):.3f}", flush=True)


def save(config, models):
    """The policy in the dtype it came in, the tokenizer as it was; readable by whom the umask says."""
    dtype = getattr(AutoConfig.from_pretrained(config.model), "dtype", None) or torch.float32
    models.policy.to(dtype).save_pretrained(config.out)
    AutoTokenizer.from_pretrained(config.model).save_pretrained(config.out)
    for file in Path(config.out).iterdir():  # safetensors are written for their owner only
        file.chmod(file.stat().st_mode | Path(config.out).stat().st_mode & 0o666)


def train(config):
    """The whole run; whatever ends it, the weights are saved."""
    started, longest, signals = time.monotonic(), 0.0, []
    if (Path(config.out) / "metrics.jsonl").exists():
        sys.exit(f"error: got out {config.out!r}, which holds a run; expected a new folder")
    torch.manual_seed(config.seed)
    reward, models = load_reward(config.reward), load_models(config)
    rows = load_rows(config, models.tokenizer, config.data)
    held_out = load_rows(config, models.tokenizer, config.eval_data) if config.eval_data else []
    stream = (rows[i] for _ in iter(int, 1) for i in torch.randperm(len(rows)).tolist())  # pass after pass, reshuffled
    small = sum(p.numel() for p in models.policy.parameters()) < 50e6
    lr = config.lr or (1e-3 if small else 1e-5)
    optimizer = torch.optim.AdamW(models.policy.parameters(), lr=lr, weight_decay=0.0)
    Path(config.out).mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # ends after the step; a second one ends at once
        signal.signal(number, lambda n, _: (signals.append(n), signal.signal(n, signal.SIG_DFL)))
    evaluate(config, models, reward, held_out, 0)
    reserve = 2 * (time.monotonic() - started)  # for saving and the last evaluation
    try:
        for step in range(1, config.steps + 1):
            clock = time.monotonic()
            batch, samples = rollout(config, models, reward, [next(stream) for _ in range(config.batch_size)])
            sampled = time.monotonic() - clock
            metrics = measure(batch, samples) | update(config, models, optimizer, batch, step)
            longest = max(longest, time.monotonic() - clock)
            times = {"time/rollout": sampled, "time/update": time.monotonic() - clock - sampled}
            log(config, "metrics.jsonl", {"step": step} | metrics | times)
            log(config, "samples.jsonl", {"step": step, "kind": "train"} | samples[0])
            print(f"step {step}: reward {metrics['reward/mean']:.3f}", flush=True)
            if signals or time.monotonic() + longest + reserve > started + 60 * (config.minutes or math.inf):
                break
    finally:
        save(config, models)
    evaluate(config, models, reward, held_out, step)
    return 128 + signals[0] if signals else 0


if __name__ == "__main__":
    sys.exit(train(parse_config()))
