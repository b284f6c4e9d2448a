#!/usr/bin/env python3
"""GRPO on one page: copy it, read it from top to bottom, make it yours.

    python grpo.py --model M --data train.jsonl --eval_data test.jsonl --reward my.py:reward --out out

    A    = (score - mean of its prompt's group) / (standard deviation of the group + eps), for each of its tokens
    loss = mean over completions of their token mean of max(-A ratio, -A clip(ratio, 1 - low, 1 + high)) + kl_coef k3
    k3   = exp(log pi_ref - log pi) - (log pi_ref - log pi) - 1
Shao 2024 (arXiv 2402.03300). Comments at the lines name what Dr. GRPO, RLOO, DAPO and GSPO have there.

Data: JSONL with `prompt`, a string or chat messages, and any columns. The reward gets those that it names, as in
`def reward(prompt, completion, answer) -> float`, or TRL's `def reward(prompts, completions, **columns) -> list`.
--out gets metrics.jsonl, samples.jsonl, and the model for `from_pretrained`. CPU, CUDA, Apple's GPU (untested).
Left out, and in scripts/ppo_train.py: resume, LoRA, several GPUs, vLLM, other presets, several or async rewards.
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
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


@dataclasses.dataclass
class Config:
    """All settings; each is a flag."""

    model: str  # folder or hub id
    data: str  # JSONL
    reward: str  # FILE.py:function
    eval_data: str = ""  # held-out JSONL: accuracy before and after, the share of scores of 1 and above
    out: str = "out"  # a new folder
    chat: bool = True  # string prompts are a user's turn if the tokenizer has a chat template; --no-chat: they are text
    steps: int = 60  # each one rollout and one update
    minutes: float = 0.0  # end in this time, with everything saved; 0: no limit
    seed: int = 0
    batch_size: int = 128  # completions a step, group_size for each prompt
    group_size: int = 8
    micro_batch: int = 32  # rows in one forward and backward pass: lower it when memory runs out
    max_prompt_tokens: int = 1024  # longer prompts are left out
    max_new_tokens: int = 256
    temperature: float = 1.0  # all log-probs are of logits divided by it
    epochs: int = 1  # passes over each batch
    minibatches: int = 1  # optimizer steps a pass
    kl_coef: float = 0.04  # 0: no reference is loaded (Dr. GRPO, DAPO)
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2  # DAPO: 0.28. GSPO: 3e-4 below and 4e-4 above
    lr: float = 0.0  # 0: 2e-4 below 50M parameters, else 1e-6
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
def masked_mean(x, mask):
    """Mean of x where mask is 1; both [B, T]; 0 for an empty mask."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def group_advantages(scores, group_size: int):
    """(R - mean) / (std + 1e-6) within each group of neighbours, [B]; 0 where all scores are equal."""
    groups = scores.view(-1, group_size)
    difference = groups - groups.mean(dim=1, keepdim=True)
    # Dr. GRPO: return difference.flatten(). RLOO: return (difference * group_size / (group_size - 1)).flatten()
    return (difference / (groups.std(dim=1, keepdim=True) + 1e-6)).flatten()


def policy_loss(logprobs, old_logprobs, advantages, clip_eps_low: float, clip_eps_high: float, dual_clip: float):
    """(loss, ratio, clipped), all [B, T]; clipped is 1 where the clip changed the loss."""
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = torch.maximum(plain, bounded)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, ratio, (bounded > plain).float()


def kl_estimate(logprobs, ref_logprobs, estimator: str):
    """Per-token estimate of KL(policy || reference) from the policy's own samples, any shape (Schulman 2020)."""
    d = logprobs - ref_logprobs
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    return (-d).clamp(-20, 20).exp() + d - 1  # k3, bounded like the ratio


def load_models(config):
    """Policy, reference and tokenizer; eval mode for good: without dropout an unchanged policy's ratio is 1."""
    m = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(config.model), reference=None)
    m.device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

    def load():
        return AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32).to(m.device).eval()

    m.policy = load()
    if config.kl_coef:
        m.reference = load().requires_grad_(False)
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


def token_logprobs(config, model, batch):
    """Log-prob of each response token and entropy of its distribution, [B, T], 0 outside the response."""
    ids, mask = batch["input_ids"], batch["response_mask"]
    start = int(mask.any(dim=0).int().argmax())  # token t is predicted at t - 1
    logits = run(model, ids, batch["attention_mask"], logits_to_keep=ids.shape[1] - start + 1).logits
    logits = logits[:, :-1].float() / config.temperature  # [B, T - start, V]
    logprobs = logits.gather(-1, ids[:, start:, None]).squeeze(-1) - logits.logsumexp(-1)
    with torch.no_grad():
        entropy = torch.distributions.Categorical(logits=logits, validate_args=False).entropy()
    return tuple(pad(x, (start, 0)) * mask for x in (logprobs, entropy))


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


@torch.no_grad()
def make_experience(config, models, batch):
    """Add old and reference log-probs and advantages, all [B, T]."""
    mask, outputs = batch["response_mask"], []
    for rows in torch.arange(len(mask), device=mask.device).split(config.micro_batch):
        piece = {name: x[rows] for name, x in batch.items()}
        old = token_logprobs(config, models.policy, piece)[0]
        ref = token_logprobs(config, models.reference, piece)[0] if config.kl_coef else old
        outputs.append(torch.stack([old, ref]))
    old, ref = torch.cat(outputs, dim=1)  # [B, T] each
    advantages = group_advantages(batch["scores"], config.group_size)[:, None] * mask
    return batch | {"old_logprobs": old, "ref_logprobs": ref, "advantages": advantages}


def accumulate_gradients(config, models, batch, rows):
    """Add the gradients of one minibatch; a token weighs the same in every micro-batch. Returns metrics."""
    sums = torch.zeros(4, device=models.device)
    for part in rows.split(config.micro_batch):
        piece = {name: x[part] for name, x in batch.items()}
        mask, old = piece["response_mask"], piece["old_logprobs"]
        weight = mask / (len(rows) * mask.sum(1, keepdim=True).clamp(min=1))
        # DAPO: weight = mask / batch["response_mask"][rows].sum(). Dr. GRPO: mask / (len(rows) * config.max_new_tokens)
        logprobs, entropy = token_logprobs(config, models.policy, piece)
        # GSPO: d = ((logprobs - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        #       loss, ratio, clipped = policy_loss(d.detach() + logprobs - logprobs.detach(), d * 0, ...)
        bounds = (config.clip_eps_low, config.clip_eps_high, 0.0)
        per_token, ratio, clipped = policy_loss(logprobs, old, piece["advantages"], *bounds)
        per_token = per_token + config.kl_coef * kl_estimate(logprobs, piece["ref_logprobs"], "k3")
        (per_token * weight).sum().backward()
        seen = torch.stack([per_token, clipped, entropy, ratio - 1 - ratio.log()])  # k3 of KL(old || new)
        sums += (seen.detach() * weight).sum((1, 2))
    return sums


def update(config, models, optimizer, batch, step):
    """Epochs and minibatches of one step; returns metrics."""
    seen, count = [], len(batch["scores"])
    for _ in range(config.epochs):
        for rows in torch.randperm(count).to(models.device).chunk(config.minibatches):
            sums = accumulate_gradients(config, models, batch, rows)
            clip = torch.nn.utils.clip_grad_norm_
            norms = [clip(group["params"], config.max_grad_norm) for group in optimizer.param_groups]
            seen.append(torch.stack([*sums, *norms]))
            if not seen[-1].isfinite().all():
                sys.exit(f"error: step {step}: got a loss or gradient that is not finite; try a lower --lr")
            optimizer.step()
            optimizer.zero_grad()
    names = ("policy/loss", "policy/clip_frac", "policy/entropy", "kl/approx", "optim/grad_norm")
    return dict(zip(names, torch.stack(seen).mean(0).tolist(), strict=True))


def measure(batch, samples, group_size):
    """Metrics of a rollout; stops where sampler and trainer give one token different log-probs."""
    mask, scores = batch["response_mask"], batch["scores"]
    gap = (batch["old_logprobs"] - batch["rollout_logprobs"]).abs() * mask
    gap, limit = (masked_mean(gap, mask), 0.1) if mask.is_cuda else (gap.max(), 1e-3)  # bf16 is coarse
    if not gap <= limit:
        sys.exit(f"error: sampler and trainer differ by {gap:.2g} nats a token; expected {limit}; is the cache right?")
    return {
        "reward/mean": scores.mean().item(),
        "reward/std": scores.std(unbiased=False).item(),
        "kl/ref": masked_mean(batch["old_logprobs"] - batch["ref_logprobs"], mask).item(),
        "reward/zero_std_frac": (scores.view(-1, group_size).std(1) == 0).float().mean().item(),
        "rollout/length_mean": mask.sum(1).float().mean().item(),
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
    lr = config.lr or (2e-4 if small else 1e-6)
    optimizer = torch.optim.AdamW(models.policy.parameters(), lr=lr, weight_decay=0.0)
    Path(config.out).mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # ends after the step; a second one ends at once
        signal.signal(number, lambda n, _: (signals.append(n), signal.signal(n, signal.SIG_DFL)))
    evaluate(config, models, reward, held_out, 0)
    reserve = 2 * (time.monotonic() - started)  # for saving and the last evaluation
    try:
        for step in range(1, config.steps + 1):
            clock = time.monotonic()
            picked = [next(stream) for _ in range(config.batch_size // config.group_size)]
            picked = [row for row in picked for _ in range(config.group_size)]
            batch, samples = rollout(config, models, reward, picked)
            sampled = time.monotonic() - clock
            batch = make_experience(config, models, batch)
            metrics = measure(batch, samples, config.group_size) | update(config, models, optimizer, batch, step)
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
