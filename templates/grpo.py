"""GRPO on one page: copy it, read it from top to bottom, make it yours.

    python grpo.py --model M --data train.jsonl --eval_data test.jsonl --reward my.py:reward --out out

    A    = (score - mean of its prompt's group) / (standard deviation of the group + 1e-6), for each of its tokens
    loss = mean over completions of their token mean of max(-A ratio, -A clip(ratio, 1 - low, 1 + high))
Shao 2024 (arXiv 2402.03300). Comments name what Dr. GRPO, RLOO and DAPO have there.
Left out, and in scripts/ppo_train.py: reference KL, resume, LoRA, several GPUs, vLLM, presets, more and async rewards.
"""

import inspect
import json
import math
import os
import runpy
import signal
import sys
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch: idle threads leave their core to other programs

import torch
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed
from transformers.utils import find_adapter_config_file


@dataclass
class Config:  # all settings; each is a flag
    model: str  # folder or hub id
    data: str  # JSONL: `prompt`, a string or chat messages, and any columns
    reward: str  # FILE.py:f, f(prompt, completion, answer) -> float with columns by name, or TRL's batch form
    eval_data: str = ""  # held-out JSONL: accuracy, the share of scores of 1 and above, before and after
    allow_overlap: bool = False  # evaluate even if every held-out prompt is also trained on
    out: str = "out"  # folder for model, metrics, samples, result.json (with eval_data); an earlier run moves to out.1
    chat: bool = True  # a string prompt is a user's turn where the tokenizer has a chat template; off: --no_chat
    steps: int = 60  # each is one rollout and one update
    minutes: float = math.inf  # time for all, saving and evaluation included; Ctrl-C or SIGTERM ends it early
    seed: int = 0
    prompts: int = 16  # a step
    group_size: int = 8  # completions of each prompt
    epochs: int = 1  # passes over each batch; the clip acts from the second update on
    minibatches: int = 1  # optimizer steps in each pass
    micro_batch: int = 16  # rows in one pass, which has 1024 tokens at most or one row: lower it if memory runs out
    max_prompt_tokens: int = 1024  # longer prompts are left out
    max_new_tokens: int = 256
    temperature: float = 1.0  # all log-probs are of logits divided by it
    clip_eps_low: float = 0.2  # GSPO: 3e-4
    clip_eps_high: float = 0.2  # DAPO: 0.28; GSPO: 4e-4
    lr: float = 0.0  # 0: 2e-4 below 50M parameters, else 1e-6


# Numbers out of these, counts below 1 and other numbers below 0 are refused.
RANGES = {"temperature": (1e-3, 1e3), "lr": (0, 1), "seed": (0, 2**32 - 1)}


def check_settings(config):
    """Exit for a setting that is out of range."""
    for name, value in vars(config).items():
        least, most = RANGES.get(name, (int(type(value) is int), math.inf))
        if type(value) in (int, float) and not least <= value <= most:
            sys.exit(f"error: got --{name} {value}; expected {least} or more" + f", at most {most}" * (most < math.inf))


def encode(config, tokenizer, prompt):
    """Token ids of a prompt; the model continues them in a new turn, or in the assistant turn that ends the prompt."""
    if isinstance(prompt, str) and config.chat and tokenizer.chat_template:
        added = [x.content for x in tokenizer.added_tokens_decoder.values() if x.special] if {*"<["} & {*prompt} else []
        prompt = prompt if any(x in prompt for x in added) else [{"role": "user", "content": prompt}]  # or templated
    if not isinstance(prompt, str) and not tokenizer.chat_template:  # of a base model
        prompt = "\n".join(turn["content"] for turn in prompt) + "\n" * (prompt[-1]["role"] != "assistant")
    if isinstance(prompt, str):
        ids, bare = (tokenizer.encode(prompt, add_special_tokens=x) for x in (True, False))
        ids = ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] != bare[-1:] else ids  # some append it
        return ids[1:] if ids[:2] == [tokenizer.bos_token_id] * 2 else ids
    for call in [call["function"] for turn in prompt for call in turn.get("tool_calls") or ()]:
        if isinstance(call["arguments"], str):  # OpenAI's form: a template would encode it again
            call["arguments"] = json.loads(call["arguments"])
    goes_on = prompt[-1]["role"] == "assistant"
    turn = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
    text = tokenizer.apply_chat_template(prompt, tokenize=False, **turn)
    text = text.replace("<think>\n\n</think>\n\n<think>", "<think>")  # Qwen3 puts an empty thought before one begun
    if goes_on and not text.endswith(prompt[-1]["content"]):
        raise ValueError(f"the chat template ends the prompt with {text[-40:]!r}, not with its last turn unchanged")
    return tokenizer.encode(text, add_special_tokens=False)


def load_rows(config, tokenizer, file):
    """Rows {"prompt_ids", "columns", "where"} of a JSONL file."""
    rows, number = [], 0
    try:
        for number, line in [(n, x) for n, x in enumerate(Path(file).read_bytes().splitlines(), 1) if x.strip()]:
            columns, here = json.loads(line), f"{file}:{number}"
            rows.append({"prompt_ids": encode(config, tokenizer, columns["prompt"]), "columns": columns, "where": here})
    except Exception as error:
        sys.exit(f"error: {file}:{number}: {type(error).__name__}: {error}; expected an object with a prompt")
    fit = [row for row in rows if 0 < len(row["prompt_ids"]) <= config.max_prompt_tokens]
    if len(fit) < len(rows):
        print(f"note: {file}: left out {len(rows) - len(fit)} of {len(rows)} prompts, empty or long", file=sys.stderr)
    if not tokenizer.chat_template and any(not isinstance(row["columns"]["prompt"], str) for row in fit):
        print("warning: chat prompts, but the tokenizer has no chat template: messages are joined by newlines")
    return fit or sys.exit(f"error: {file}: got no prompt of 1 to {config.max_prompt_tokens} tokens")


def check_fits(config, policy, rows):
    """Exit for prompts that the model has too few positions for, or a token that it has no embedding of."""
    longest, largest = (max(map(size, (row["prompt_ids"] for row in rows))) for size in (len, max))
    whole, known = longest + config.max_new_tokens, policy.get_input_embeddings().weight.shape[0]
    positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None) or whole
    if whole > positions:
        got = f"got prompts of {longest} and completions of {config.max_new_tokens} tokens; expected {positions} in all"
        sys.exit(f"error: {got}; try a lower --max_new_tokens or --max_prompt_tokens")
    if largest >= known:
        sys.exit(f"error: got a prompt with token {largest}, and a model that embeds {known}; try another tokenizer")


def count_trained(config, rows, held_out):
    """Count held-out prompts that also train, whatever their case, spacing or system prompt; exit if all do."""

    def asked(row):
        prompt = row["columns"]["prompt"]
        said = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt if m["role"] != "system"]
        return "".join(unicodedata.normalize("NFKC", str(said)).casefold().split())

    trained = {asked(row) for row in rows}
    count, told = sum(asked(row) in trained for row in held_out), "evaluation prompts also occur in training"
    if count and count == len(held_out) and not config.allow_overlap:
        sys.exit(f"error: all {count} {told}; expected others; try another --eval_data, or --allow_overlap")
    if count:
        print(f"warning: {count} of {len(held_out)} {told}; the accuracy is inflated", file=sys.stderr)
    return {"eval/trained_rows": count} if count else {}


def load_reward(spec):
    """reward(rows, completions) -> scores, from FILE.py:function, of one sample or, as in TRL, of a batch."""
    file, _, name = spec.rpartition(":")
    sys.path.insert(0, str(Path(file).resolve().parent))  # where it imports from
    try:
        function = runpy.run_path(file)[name]
        named = inspect.signature(function).parameters
    except (Exception, SystemExit) as error:
        sys.exit(f"error: got reward {spec!r}: {type(error).__name__}: {error}; expected FILE.py:function")
    takes_all = any(p.kind is p.VAR_KEYWORD for p in named.values())

    def call(rows, columns):
        try:
            result = function(**{k: v for k, v in columns.items() if k in named or takes_all})
            scores = [x if x is None else float(x) for x in (result if "completions" in named else [result])]
            if len(scores) == len(rows) and all(x is None or abs(x) < 1e30 for x in scores):
                return scores
            raise ValueError(f"got {result}; expected a finite number or None for each completion")
        except (Exception, SystemExit) as error:
            line = f", line {error.__traceback__.tb_next.tb_lineno}" if error.__traceback__.tb_next else ""
            sys.exit(f"error: reward {spec}{line}, on {rows[0]['where']}: {type(error).__name__}: {error}")

    def reward(rows, texts):
        rows = json.loads(json.dumps(rows))  # its own: it may change what it gets
        if "completions" not in named:
            return [call([r], r["columns"] | {"completion": t})[0] for r, t in zip(rows, texts, strict=True)]
        columns = {k: [r["columns"].get(k) for r in rows] for r in rows for k in r["columns"]}
        prompts = columns.pop("prompt")
        chats = [[{"role": "assistant", "content": text}] for text in texts]  # TRL's completions of chat messages
        said = [x if isinstance(p, str) else chat for p, x, chat in zip(prompts, texts, chats, strict=True)]
        return call(rows, columns | {"prompts": prompts, "completions": said})

    return reward


# Per-token tensors are [B, T] over prompt and response; x[b, t] is about token t; masks are 1 = keep.
def group_advantages(scores, group_size: int):
    """(R - mean) / (std + 1e-6) within each group of neighbours, [B]; NaN: the reward does not apply."""
    if group_size < 2:
        sys.exit("error: got --group_size 1, where every advantage is 0; expected 2 or more")
    groups = scores.view(-1, group_size)
    difference = groups - groups.nan_to_num(-math.inf).amax(dim=1, keepdim=True)  # or eight 1.2 differ by rounding
    difference = difference - difference.nanmean(dim=1, keepdim=True)
    # Dr. GRPO: return difference.flatten(). RLOO: return (difference * count / (count - 1)).flatten()
    count = (~groups.isnan()).sum(dim=1, keepdim=True)
    std = (difference.square().nansum(dim=1, keepdim=True) / (count - 1)).sqrt()
    return (difference / (std + 1e-6)).flatten()


def policy_loss(logprobs, old_logprobs, advantages, clip_eps_low: float, clip_eps_high: float):
    """(loss, ratio, clipped), all [B, T]; clipped is 1 where the clip changed the loss."""
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return torch.maximum(plain, bounded), ratio, (bounded > plain).float()


def load_whole(source, trained=True):
    """(network in float32, tokenizer); exits for what is no causal model, or cannot train or be sampled here."""
    if find_adapter_config_file(source):  # save_pretrained would leave the base's updates out
        what = f"got LoRA adapter {source!r}; expected a whole model"
        sys.exit(f"error: {what}; try `python scripts/merge_adapter.py {source} --output merged`, then that")
    try:
        network, report = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError) as error:  # no model, or an encoder-decoder
        reason = str(error).partition("\n")[0]
        sys.exit(f"error: got model {source!r}: {reason}; expected a causal language model")
    if trained and "past_key_values" not in inspect.signature(network.forward).parameters:  # Mamba, RWKV
        sys.exit(f"error: got model {source!r} without a key-value cache; expected one; try a trainer in scripts/")
    missing = network.state_dict().keys() & report["missing_keys"]  # transformers fills these at random
    if missing:
        sys.exit(f"error: got model {source!r} without {len(missing)} tensors, such as {min(missing)}; expected all")
    if trained and getattr(network, "hf_quantizer", None):
        sys.exit(f"error: got model {source!r}, which is quantised and does not train; expected 16 or 32 bits")
    return network, AutoTokenizer.from_pretrained(source)


def load_models(config):
    """Policy and tokenizer, always in eval mode: without dropout, an unchanged policy has ratio 1."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")  # Apple's: untested
    torch.backends.cuda.enable_cudnn_sdp(False)  # its plans, one for each new shape, take 30 ms
    policy, tokenizer = load_whole(config.model)
    policy.to(device).eval()
    policy.base_model.register_forward_hook(lambda *_: torch.set_autocast_enabled(device.type, False))  # fp32 head
    ends = policy.generation_config.eos_token_id
    ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}  # chat models name several
    return SimpleNamespace(policy=policy, tokenizer=tokenizer, device=device, eos_ids=sorted(ends), pad_id=0)  # masked


def bf16_autocast(x):
    """Autocast to bf16 where the tensor's GPU has it."""
    bf16 = x.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(x.device.type, torch.bfloat16, enabled=bf16)


def run(network, input_ids, attention_mask, **kwargs):
    """The network's output, in bf16 where the GPU has it; positions count real tokens, so pads shift nothing."""
    positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
    with bf16_autocast(input_ids):
        return network(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, **kwargs)


def token_logprobs(config, network, batch):
    """Log-prob of each response token and entropy of its distribution, [B, T], 0 outside the response."""
    ids, mask = batch["input_ids"], batch["response_mask"]
    start = int(mask.any(dim=0).int().argmax())  # token t is predicted at t - 1
    logits = run(network, ids, batch["attention_mask"], logits_to_keep=ids.shape[1] - start + 1).logits[:, :-1]
    dist = torch.distributions.Categorical(logits=logits.float() / config.temperature, validate_args=False)
    return tuple(pad(x, (start, 0)) * mask for x in (dist.log_prob(ids[:, start:]), dist.entropy().detach()))


@torch.no_grad()
def generate(config, models, prompts, greedy=False):
    """One completion per prompt, as a batch: prompts end, and completions start, in one column."""
    width, ends = max(map(len, prompts)), torch.tensor(models.eos_ids, device=models.device)
    ids = torch.tensor([[models.pad_id] * (width - len(p)) + p for p in prompts], device=models.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=models.device)
    new, live, logprobs, cache = ids, torch.ones_like(ids[:, :1]), ids * 0.0, None
    with bf16_autocast(ids):  # around the loop, it keeps the weights in bf16
        while ids.shape[1] < width + config.max_new_tokens and ((ids.is_cuda and ids.shape[1] % 8) or live.any()):
            out = run(models.policy, new, mask, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, dist = out.past_key_values, torch.log_softmax(out.logits[:, -1].float() / config.temperature, dim=-1)
            new = dist.argmax(-1, keepdim=True) if greedy else torch.multinomial(dist.exp(), 1)  # [B, 1]
            ids, mask = torch.cat([ids, new], 1), torch.cat([mask, live], 1)  # what follows an end token is masked
            logprobs = torch.cat([logprobs, dist.gather(1, new) * live], 1)
            live = live * ~torch.isin(new, ends)
    response = mask * (torch.arange(mask.shape[1], device=mask.device) >= width)  # an end token that was sampled counts
    return {"input_ids": ids, "attention_mask": mask, "response_mask": response, "rollout_logprobs": logprobs}


def rollout(config, models, reward, rows, greedy=False):
    """Complete and score rows: (the batch, samples as text, metrics)."""
    started = time.monotonic()
    batch = generate(config, models, [row["prompt_ids"] for row in rows], greedy)
    found = [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], batch["response_mask"].bool(), strict=True)]
    ended = [ids[-1] in models.eos_ids for ids in found]
    texts = [models.tokenizer.decode(ids[: len(ids) - end]) for ids, end in zip(found, ended, strict=True)]
    count, sampled = len(rows), time.monotonic()
    scores = reward(rows, texts)
    samples = [r["columns"] | {"completion": t, "score": s} for r, t, s in zip(rows, texts, scores, strict=True)]
    batch["scores"] = scores = torch.tensor([math.nan if s is None else s for s in scores], device=models.device)
    known = scores[~scores.isnan()]  # NaN: the reward does not apply, the sample has no gradient
    metrics = {"reward/mean": known.mean().item(), "reward/std": known.std(unbiased=False).item()}
    metrics |= {"rollout/length_mean": sum(map(len, found)) / count, "rollout/truncated_frac": 1 - sum(ended) / count}
    return batch, samples, metrics | {"time/rollout": sampled - started, "time/reward": time.monotonic() - sampled}


@torch.no_grad()
def make_experience(config, models, batch):
    """Add old log-probs and advantages, [B, T]; stops where sampler and trainer differ."""
    if batch["scores"].isnan().all():
        sys.exit("error: the reward gave None for all completions of a step; expected numbers for some")
    parts = torch.arange(len(mask := batch["response_mask"])).split(min(config.micro_batch, 1024 // mask.shape[1] or 1))
    old = [token_logprobs(config, models.policy, {k: x[rows] for k, x in batch.items()})[0] for rows in parts]
    gap = (torch.cat(old) - batch["rollout_logprobs"]).abs()
    gap, limit = (gap.sum() / mask.sum(), 0.1) if mask.is_cuda else (gap.max(), 1e-3)  # bf16 is coarse
    if not gap <= limit:
        sys.exit(f"error: sampler and trainer differ by {gap:.2g} nats; expected {limit}; is the cache right?")
    advantages = group_advantages(batch["scores"], config.group_size).nan_to_num()[:, None] * mask
    return batch | {"old_logprobs": torch.cat(old), "advantages": advantages}


def accumulate_gradients(config, models, batch, rows):
    """Add the gradients of a minibatch, the same for any micro_batch; returns loss, clip share, entropy, KL."""
    sums, tokens = 0.0, batch["response_mask"][rows].sum()
    for part in rows.split(min(config.micro_batch, 1024 // batch["input_ids"].shape[1] or 1)):
        piece = {name: x[part] for name, x in batch.items()}
        mask, old, advantages = (piece[name] for name in ("response_mask", "old_logprobs", "advantages"))
        weight = mask / (len(rows) * mask.sum(1, keepdim=True))
        # DAPO: weight = mask / tokens. Dr. GRPO: weight = mask / (len(rows) * config.max_new_tokens)
        logprobs, entropy = token_logprobs(config, models.policy, piece)
        loss, ratio, clipped = policy_loss(logprobs, old, advantages, config.clip_eps_low, config.clip_eps_high)
        (loss * weight).sum().backward()
        seen = torch.stack([clipped, entropy, ratio - 1 - ratio.log()]) * mask / tokens
        sums += torch.stack([loss * weight, *seen]).detach().sum((1, 2))
    return sums


def update(config, models, optimizer, batch, step):
    """The optimizer steps for a batch; returns their mean metrics."""
    seen = []
    for _ in range(config.epochs):
        for rows in torch.randperm(len(batch["scores"])).chunk(config.minibatches):
            sums = accumulate_gradients(config, models, batch, rows)
            norm = torch.nn.utils.clip_grad_norm_(models.policy.parameters(), 1.0)
            seen.append(torch.stack([*sums, norm]))
            if not seen[-1].isfinite().all():
                sys.exit(f"error: step {step}: got a loss or gradient that is not finite; try a lower --lr")
            optimizer.step()
            optimizer.zero_grad()
    names = ("policy/loss", "policy/clip_frac", "policy/entropy", "kl/approx", "optim/grad_norm")
    return dict(zip(names, torch.stack(seen).mean(0).tolist(), strict=True))


def train(config):
    """The whole run; whatever ends it, the policy is saved."""
    started, out = time.monotonic(), Path(config.out).resolve()
    check_settings(config)
    if (out.exists() and not (out / "settings.json").is_file()) or Path(config.model).resolve().is_relative_to(out):
        sys.exit(f"error: got out {config.out!r}, not an earlier run, or the model's folder; expected a new one")
    set_seed(config.seed)
    reward, models = load_reward(config.reward), load_models(config)
    rows = load_rows(config, models.tokenizer, config.data)
    held_out = load_rows(config, models.tokenizer, config.eval_data) if config.eval_data else []
    check_fits(config, models.policy, rows + held_out)
    trained = count_trained(config, rows, held_out)
    order = torch.cat([torch.randperm(len(rows)) for _ in range(1 + config.steps * config.prompts // len(rows))])
    lr = config.lr or (2e-4 if models.policy.num_parameters() < 50e6 else 1e-6)
    optimizer = torch.optim.AdamW(models.policy.parameters(), lr=lr, weight_decay=0.0)
    if out.exists():  # an earlier run is kept
        out.rename(next(p for n in range(1, 10**6) if not (p := Path(f"{out}.{n}")).exists()))
    out.mkdir(parents=True)
    (out / "settings.json").write_text(json.dumps(vars(config), indent=1))

    def log(step, metrics, samples=()):
        for name, entries in (("metrics", [metrics]), ("samples", samples)):
            with (out / f"{name}.jsonl").open("a", encoding="utf-8") as f:
                f.writelines(json.dumps(entry | {"step": step}, ensure_ascii=False) + "\n" for entry in entries)
        shown = {k: round(x, 3) for k, x in metrics.items() if k in ("reward/mean", "eval/accuracy")}
        print(f"step {step}: {shown}", flush=True)

    def evaluate(step):
        parts = [held_out[i : i + 128] for i in range(0, len(held_out), 128)]
        right = [(s["score"] or 0) >= 1 for x in parts for s in rollout(config, models, reward, x, greedy=True)[1]]
        log(step, {"eval/accuracy": sum(right) / len(right), "eval/rows": len(right)} | trained)
        return sum(right) / len(right)

    before = evaluate(0) if held_out else None
    reserve = 2 * (time.monotonic() - started)  # for saving and the last evaluation
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    try:
        for step, picked in enumerate(order.split(config.prompts)[: config.steps], start=1):
            clock = time.monotonic()
            group = [rows[i] for i in picked for _ in range(config.group_size)]
            batch, samples, metrics = rollout(config, models, reward, group)
            metrics |= update(config, models, optimizer, make_experience(config, models, batch), step)
            took, groups = time.monotonic() - clock, batch["scores"].view(-1, config.group_size)
            flat = groups.nan_to_num(-math.inf).amax(1) <= groups.nan_to_num(math.inf).amin(1)
            metrics |= {"time/step": took, "reward/zero_std_frac": flat.float().mean().item()}
            log(step, metrics, samples[: config.group_size])
            if time.monotonic() + 2 * took + reserve > started + 60 * config.minutes:
                break
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        models.policy.to(AutoConfig.from_pretrained(config.model).dtype or torch.float32).save_pretrained(out)
        models.tokenizer.save_pretrained(out)
        for file in out.iterdir():  # safetensors are written for their owner only
            file.chmod(file.stat().st_mode | out.stat().st_mode & 0o666)
    means = [row["reward/mean"] for row in map(json.loads, (out / "metrics.jsonl").open()) if "reward/mean" in row]
    if len(means) > 2 and max(means[-2:]) < means[0] - 0.9 * abs(means[0]):
        print(f"warning: the reward fell from {means[0]:.3f} to {means[-1]:.3f}; try a lower --lr")
    if held_out:
        (out / "result.json").write_text(json.dumps({"before": before, "after": evaluate(step)}))


if __name__ == "__main__":
    config, unknown = HfArgumentParser(Config, usage=__doc__).parse_args_into_dataclasses(return_remaining_strings=True)
    if unknown:
        trl = "learning_rate is --lr, max_completion_length --max_new_tokens, output_dir --out, "
        trl += "num_generations --group_size, batch_size prompts x group_size"
        sys.exit(f"error: got {unknown[0]}; expected a setting of --help; TRL's {trl}")
    try:
        train(config)
    except OSError as error:  # a model, data or folder that is not there, or a full disk
        sys.exit(f"error: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(f"error: {str(error)[:100]}; expected enough memory; try a lower --micro_batch or --max_new_tokens")
