#!/usr/bin/env python3
"""PPO with a critic on one page: copy it, read it from top to bottom, make it yours.

    python ppo.py --model M --data train.jsonl --eval_data test.jsonl --reward my.py:reward --out out

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1},   R_t = A_t + V_t        (GAE)
    r_t     = -kl_coef log(pi_old / pi_ref), plus the score on the last token
    policy  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), at most -A dual_clip where A < 0
    value   = 1/2 max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2)
Schulman 2016 (arXiv 1506.02438) and 2017 (1707.06347), Ye 2020 (1912.09729); A is whitened over the batch.

Data: JSONL with `prompt`, a string or chat messages, and any columns. The reward gets those that it names, as in
`def reward(prompt, completion, answer) -> float`, or TRL's `def reward(prompts, completions, **columns) -> list`.
--out gets metrics.jsonl, samples.jsonl, and the model for `from_pretrained`. CPU, CUDA, Apple's GPU (untested).
Left out, and in scripts/ppo_train.py: resume, LoRA, several GPUs, vLLM, presets, several or async rewards, schedules.
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
    batch_size: int = 128  # completions a step, one a prompt
    micro_batch: int = 32  # rows in one forward and backward pass: lower it when memory runs out
    max_prompt_tokens: int = 1024  # longer prompts are left out
    max_new_tokens: int = 256
    temperature: float = 1.0  # all log-probs are of logits divided by it
    epochs: int = 2  # passes over each batch
    minibatches: int = 1  # optimizer steps a pass
    critic_warmup_steps: int = 0  # first steps, which train the critic only
    kl_coef: float = 0.01  # 0: no reference is loaded
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    dual_clip: float = 3.0  # 0: none
    value_clip: float = 0.2  # 0: none
    vf_coef: float = 0.5
    lr: float = 0.0  # 0: 2e-4 below 50M parameters, else 1e-6
    critic_lr: float = 0.0  # 0: 1e-3 below 50M parameters, else 1e-5
    max_grad_norm: float = 1.0  # policy and critic each


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


def gae(rewards, values, response_mask, gamma: float, gae_lambda: float):
    """(advantages, returns), all [B, T]; V and A are carried through tokens outside the mask."""
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    start = int(response_mask.any(dim=0).int().argmax())  # no column before it has a response token
    for t in reversed(range(start, values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        keep = response_mask[:, t].bool()
        next_value = torch.where(keep, values[:, t], next_value)
        next_advantage = torch.where(keep, advantage, next_advantage)
        advantages[:, t] = torch.where(keep, advantage, torch.zeros_like(advantage))
    return advantages, (advantages + values) * response_mask


def policy_loss(logprobs, old_logprobs, advantages, clip_eps_low: float, clip_eps_high: float, dual_clip: float):
    """(loss, ratio, clipped), all [B, T]; clipped is 1 where the clip changed the loss."""
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = torch.maximum(plain, bounded)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, ratio, (bounded > plain).float()


def value_loss(values, old_values, returns, value_clip: float):
    """Clipped squared error per token, times 1/2; all [B, T]."""
    loss = (values - returns) ** 2
    if value_clip:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, (near - returns) ** 2)
    return 0.5 * loss


def load_models(config):
    """Policy, critic, reference and tokenizer; eval mode for good: without dropout an unchanged policy's ratio is 1."""
    m = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(config.model), reference=None)
    m.device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

    def load():
        return AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32).to(m.device).eval()

    m.policy, m.critic = load(), load()
    head = torch.nn.Linear(m.critic.config.get_text_config().hidden_size, 1, device=m.device)
    torch.nn.init.zeros_(head.weight)  # the critic is the same network with a head for one number, 0 at first
    torch.nn.init.zeros_(head.bias)
    m.critic.set_output_embeddings(head)
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


def token_values(critic, batch):
    """Value of the text before each token, [B, T]."""
    return pad(run(critic, batch["input_ids"], batch["attention_mask"]).logits[:, :-1, 0].float(), (1, 0))


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
    """Add old and reference log-probs, values, advantages and returns, all [B, T]."""
    mask, scores = batch["response_mask"], batch["scores"]
    outputs = []
    for rows in torch.arange(len(mask), device=mask.device).split(config.micro_batch):
        piece = {name: x[rows] for name, x in batch.items()}
        old = token_logprobs(config, models.policy, piece)[0]
        ref = token_logprobs(config, models.reference, piece)[0] if config.kl_coef else old
        outputs.append(torch.stack([old, ref, token_values(models.critic, piece) * piece["response_mask"]]))
    old, ref, values = torch.cat(outputs, dim=1)  # [B, T] each
    last = (torch.arange(mask.shape[1], device=mask.device) * mask).argmax(dim=1, keepdim=True)
    rewards = (-config.kl_coef * (old - ref) * mask).scatter_add(1, last, scores[:, None])
    advantages, returns = gae(rewards, values, mask, config.gamma, config.gae_lambda)
    var, mean = torch.var_mean(advantages[mask.bool()])
    advantages = (advantages - mean) * (var + 1e-8).rsqrt() * mask
    made = {"old_logprobs": old, "ref_logprobs": ref, "values": values, "advantages": advantages, "returns": returns}
    return batch | made


def accumulate_gradients(config, models, batch, rows, train_policy=True):
    """Add the gradients of one minibatch; a token weighs the same in every micro-batch. Returns metrics."""
    tokens, sums = batch["response_mask"][rows].sum(), torch.zeros(5, device=models.device)
    for part in rows.split(config.micro_batch):
        piece = {name: x[part] for name, x in batch.items()}
        weight = piece["response_mask"] / tokens
        error = value_loss(token_values(models.critic, piece), piece["values"], piece["returns"], config.value_clip)
        loss = config.vf_coef * (error * weight).sum()
        seen = [error, error * 0, error * 0, error * 0, error * 0]
        if train_policy:
            logprobs, entropy = token_logprobs(config, models.policy, piece)
            bounds = (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
            per_token, ratio, clipped = policy_loss(logprobs, piece["old_logprobs"], piece["advantages"], *bounds)
            loss = loss + (per_token * weight).sum()
            seen[1:] = per_token, clipped, entropy, ratio - 1 - ratio.log()  # k3 of KL(old || new)
        sums += (torch.stack(seen).detach() * weight).sum((1, 2))
        loss.backward()
    return sums


def update(config, models, optimizer, batch, step):
    """Epochs and minibatches of one step; returns metrics."""
    seen, count = [], len(batch["scores"])
    for _ in range(config.epochs):
        for rows in torch.randperm(count).to(models.device).chunk(config.minibatches):
            sums = accumulate_gradients(config, models, batch, rows, step > config.critic_warmup_steps)
            clip = torch.nn.utils.clip_grad_norm_
            norms = [clip(group["params"], config.max_grad_norm) for group in optimizer.param_groups]
            seen.append(torch.stack([*sums, *norms]))
            if not seen[-1].isfinite().all():
                sys.exit(f"error: step {step}: got a loss or gradient that is not finite; try a lower --lr")
            optimizer.step()
            optimizer.zero_grad()
    names = ("value/loss", "policy/loss", "policy/clip_frac", "policy/entropy", "kl/approx", "optim/grad_norm")
    return dict(zip((*names, "optim/critic_grad_norm"), torch.stack(seen).mean(0).tolist(), strict=True))


def measure(batch, samples):
    """Metrics of a rollout; stops where sampler and trainer give one token different log-probs."""
    mask, scores, error = batch["response_mask"], batch["scores"], batch["returns"] - batch["values"]
    gap = (batch["old_logprobs"] - batch["rollout_logprobs"]).abs() * mask
    gap, limit = (masked_mean(gap, mask), 0.1) if mask.is_cuda else (gap.max(), 1e-3)  # bf16 is coarse
    if not gap <= limit:
        sys.exit(f"error: sampler and trainer differ by {gap:.2g} nats a token; expected {limit}; is the cache right?")
    r, e = (x[mask.bool()].var(unbiased=False) for x in (batch["returns"], error))
    return {
        "reward/mean": scores.mean().item(),
        "reward/std": scores.std(unbiased=False).item(),
        "kl/ref": masked_mean(batch["old_logprobs"] - batch["ref_logprobs"], mask).item(),
        "value/explained_variance": (1 - e / r).item() if r > 1e-12 else 0.0,
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
    rates = config.lr or (2e-4 if small else 1e-6), config.critic_lr or (1e-3 if small else 1e-5)
    networks = zip((models.policy, models.critic), rates, strict=True)
    optimizer = torch.optim.AdamW([{"params": [*n.parameters()], "lr": lr} for n, lr in networks], weight_decay=0.0)
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
            batch = make_experience(config, models, batch)
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
