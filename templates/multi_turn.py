"""GRPO on conversations with an environment, on one page: copy it, read it from top to bottom, make it yours.

    python multi_turn.py --model M --data train.jsonl --eval_data test.jsonl --environment my.py:Game --out out

Game is a class, as of TRL's environment_factory, with `reply` in place of tools. Each conversation has its own object:
    reset(**row) -> str | None    gets the columns that it names; the text it returns is appended to the prompt
    reply(text) -> str | None     the user's words after an answer; None ends the conversation
    get_reward() -> float | None  the return, called at the end; None: it does not apply
Sampled ids are never re-encoded, and only they are trained; the chat template's text stands between the answers.
Left out, and in scripts/ppo_train.py: tools, rewards of turns, async environments, resume, LoRA, several GPUs, vLLM.
"""

import copy
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
    model: str  # folder or hub id, with a chat template
    data: str  # JSONL: `prompt`, a string or chat messages, and any columns
    environment: str  # FILE.py:Class
    eval_data: str = ""  # held-out JSONL: accuracy, the share of returns of 1 and above, before and after
    allow_overlap: bool = False  # evaluate even if every held-out prompt is also trained on
    out: str = "out"  # folder for model, metrics, samples, result.json (with eval_data); an earlier run moves to out.1
    steps: int = 60  # each is one rollout and one update
    minutes: float = math.inf  # time for all, saving and evaluation included; Ctrl-C or SIGTERM ends it early
    seed: int = 0
    prompts: int = 16  # a step
    group_size: int = 8  # conversations from each prompt
    epochs: int = 1  # passes over each batch; the clip acts from the second update on
    minibatches: int = 1  # optimizer steps in each pass
    micro_batch: int = 16  # rows in one pass, which has 1024 tokens at most or one row: lower it if memory runs out
    max_turns: int = 4  # answers in a conversation
    max_new_tokens: int = 256  # of an answer
    max_tokens: int = 2048  # of a conversation: it ends where another answer may not fit; longer prompts are left out
    temperature: float = 1.0  # all log-probs are of logits divided by it
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2  # DAPO: 0.28
    lr: float = 0.0  # 0: 2e-4 below 50M parameters, else 1e-6


# Numbers out of these, counts below 1 and other numbers below 0 are refused.
RANGES = {"temperature": (1e-3, 1e3), "lr": (0, 1), "seed": (0, 2**32 - 1)}


def check_settings(config):
    """Exit for a setting that is out of range."""
    for name, value in vars(config).items():
        least, most = RANGES.get(name, (int(type(value) is int), math.inf))
        if type(value) in (int, float) and not least <= value <= most:
            sys.exit(f"error: got --{name} {value}; expected {least} or more" + f", at most {most}" * (most < math.inf))


def load_rows(config, tokenizer, file):
    """Rows {"messages", "prompt_ids", "columns", "where"} of a JSONL file."""
    rows, number, longest = [], 0, config.max_tokens - config.max_new_tokens
    try:
        for number, line in [(n, x) for n, x in enumerate(Path(file).read_bytes().splitlines(), 1) if x.strip()]:
            prompt = (columns := json.loads(line))["prompt"]
            turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            if turns[-1]["role"] == "assistant":
                raise ValueError("the prompt ends in an assistant's turn, which scripts/ continue; expected a user's")
            for call in [call["function"] for turn in turns for call in turn.get("tool_calls") or ()]:
                if isinstance(call["arguments"], str):  # OpenAI's form: a template would encode it again
                    call["arguments"] = json.loads(call["arguments"])
            row = {"messages": turns, "prompt_ids": render(tokenizer, turns), "where": f"{file}:{number}"}
            rows.append(row | {"columns": columns})
    except Exception as error:
        sys.exit(f"error: {file}:{number}: {type(error).__name__}: {error}; expected an object with a prompt")
    fit = [row for row in rows if len(row["prompt_ids"]) <= longest]
    if len(fit) < len(rows):
        print(f"note: {file}: left out {len(rows) - len(fit)} of {len(rows)} prompts, too long", file=sys.stderr)
    return fit or sys.exit(f"error: {file}: got no prompt of up to {longest} tokens")


def count_trained(config, rows, held_out):
    """Count held-out rows that also train, whatever their case or spacing; exit if all do."""

    def asked(row):
        return "".join(unicodedata.normalize("NFKC", str(row["columns"])).casefold().split())

    trained = {asked(row) for row in rows}
    count, told = sum(asked(row) in trained for row in held_out), "evaluation prompts also occur in training"
    if count and count == len(held_out) and not config.allow_overlap:
        sys.exit(f"error: all {count} {told}; expected others; try another --eval_data, or --allow_overlap")
    if count:
        print(f"warning: {count} of {len(held_out)} {told}; the accuracy is inflated", file=sys.stderr)
    return {"eval/trained_rows": count} if count else {}


def load_environment(spec):
    """The class of FILE.py:Class."""
    file, _, name = spec.rpartition(":")
    sys.path.append(str(Path(file).resolve().parent))  # where it imports from
    try:
        made = runpy.run_path(file)[name]()
        methods = [method for method in dir(made) if method[0] != "_" and callable(getattr(made, method))]
        if methods != ["get_reward", "reply", "reset"]:
            raise ValueError(f"got methods {methods}; expected get_reward, reply and reset (tools: --change tools)")
    except Exception as error:
        sys.exit(f"error: got environment {spec!r}: {type(error).__name__}: {error}; expected FILE.py:Class")
    return type(made)


def ask(config, talk, method, *text, **columns):
    """Call a method of the environment; exit if it raises, or returns what its contract does not allow."""
    try:
        value = getattr(talk.environment, method)(*text, **columns)
        if value is not None and not (abs(value) < 1e30 if method == "get_reward" else isinstance(value, str)):
            raise ValueError(f"{method} returned {value!r}; expected a string or None, of get_reward a finite number")
        return float(value) if method == "get_reward" and value is not None else value
    except Exception as error:
        line = f", line {error.__traceback__.tb_next.tb_lineno}" if error.__traceback__.tb_next else ""
        sys.exit(f"error: {config.environment}{line}, on {talk.row['where']}: {type(error).__name__}: {error}")


def render(tokenizer, messages, safe=True):
    """Token ids up to the next answer; safe: what looks like a control token in a message is plain text."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, sanitize_control_tokens=safe).input_ids


def between(models, last_id, said):
    """The tokens from an answer's last one to the next answer: what the template writes after "0" and "1" alike."""
    chats = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": x}, *said] for x in "01"]
    one, two = (render(models.tokenizer, chat) for chat in chats)
    same = next((n for n, (a, b) in enumerate(zip(one[::-1], two[::-1], strict=False)) if a != b), len(one))
    if one[-same] not in models.eos_ids:
        raise ValueError("it ends an answer with none of the model's end tokens")
    return one[len(one) - same + (one[-same] == last_id) :]  # an answer that was cut off gets its end


def check_template(models):
    """Exit unless the template only appends: a chat built turn by turn must equal its rendering of the whole chat."""
    tokenizer, chat = models.tokenizer, [{"role": "user", "content": "Question"}]
    try:
        thought = "<think>\nThought\n</think>\n\n" * ("</think>" in tokenizer.get_chat_template())
        text = tokenizer.decode(render(tokenizer, chat))
        for turn in "123":
            answer, said = f"{thought}Answer {turn}", [{"role": "user", "content": f"Reply {turn}"}]
            chat += [{"role": "assistant", "content": answer}, *said]
            text = text.removesuffix("<think>\n") + answer + tokenizer.decode(between(models, None, said))
        whole = tokenizer.decode(render(tokenizer, chat, safe=False))
        if "".join(whole.split()) != "".join(text.split()):
            raise ValueError(f"it writes {whole!r} in place of {text!r}")
    except Exception as error:  # templates raise what they like
        sys.exit(f"error: chat template: {error}; expected one that only appends, as TRL's get_training_chat_template")


# Per-token tensors are [B, T] over prompt and response; x[b, t] is about token t; masks are 1 = keep.
def group_advantages(scores, group_size: int):
    """(R - mean) / (std + 1e-6) within each group of neighbours, [B]; NaN: the reward does not apply."""
    if group_size < 2:
        sys.exit("error: got --group_size 1, where every advantage is 0; expected 2 or more")
    groups = scores.view(-1, group_size)
    difference = groups - groups.nan_to_num(-math.inf).amax(dim=1, keepdim=True)  # or eight 1.2 differ by rounding
    difference = difference - difference.nanmean(dim=1, keepdim=True)
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


def play(config, models, make, rows, greedy=False):
    """A conversation for each row; all open ones are sampled as one batch. Tokens are (id, 1, sampled, log-prob)."""
    talks = [SimpleNamespace(row=row, environment=make(), messages=copy.deepcopy(row["messages"])) for row in rows]
    for talk in talks:
        named = inspect.signature(talk.environment.reset).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in named.values())
        row = {k: v for k, v in (talk.row["columns"] | {"prompt": talk.messages}).items() if k in named or takes_all}
        said = ask(config, talk, "reset", **copy.deepcopy(row))
        talk.messages[-1]["content"] += said or ""
        talk.tokens = [(i, 1, 0, 0.0) for i in render(models.tokenizer, talk.messages)]
        talk.start, talk.goes_on = len(talk.tokens), True
    for turn in range(1, config.max_turns + 1):
        now = [talk for talk in talks if talk.goes_on]
        batch = generate(config, models, [[i for i, *_ in talk.tokens] for talk in now], greedy) if now else {}
        for row, talk in enumerate(now):
            sampled = batch["response_mask"][row].bool()
            ids, logprobs = (batch[name][row, sampled].tolist() for name in ("input_ids", "rollout_logprobs"))
            talk.turns, talk.ended = turn, ids[-1] in models.eos_ids
            text = models.tokenizer.decode(ids[: len(ids) - talk.ended])
            reply = ask(config, talk, "reply", text)
            said = [{"role": "user", "content": reply}] * (reply is not None and turn < config.max_turns)
            added = between(models, ids[-1], said) if said else []
            talk.tokens += [(i, 1, 1, x) for i, x in zip(ids, logprobs, strict=True)]
            talk.goes_on = 0 < len(added) <= config.max_tokens - config.max_new_tokens - len(talk.tokens)
            talk.tokens += [(i, 1, 0, 0.0) for i in added] * talk.goes_on
            talk.messages += [{"role": "assistant", "content": text}] + said * talk.goes_on
    return talks


def rollout(config, models, make, rows, greedy=False):
    """Play and score conversations: (the batch, as `generate` returns it, samples as text, metrics)."""
    started = time.monotonic()
    talks = play(config, models, make, rows, greedy)
    scores = [ask(config, talk, "get_reward") for talk in talks]
    samples = [t.row["columns"] | {"messages": t.messages, "score": s} for t, s in zip(talks, scores, strict=True)]
    left, right = max(talk.start for talk in talks), max(len(talk.tokens) - talk.start for talk in talks)
    padded = [pad(torch.tensor(t.tokens).T, (left - t.start, right + t.start - len(t.tokens))) for t in talks]
    ids, real, sampled, logprobs = torch.stack(padded, dim=1).to(models.device)  # [B, T] each; prompts end in a column
    batch = {"input_ids": ids.long(), "attention_mask": real.long(), "response_mask": sampled.long()}
    scores = torch.tensor([math.nan if s is None else s for s in scores], device=models.device)
    batch, known = batch | {"rollout_logprobs": logprobs, "scores": scores}, scores[~scores.isnan()]
    metrics = {"reward/mean": known.mean().item(), "reward/std": known.std(unbiased=False).item()}
    metrics["rollout/length_mean"] = batch["response_mask"].sum().item() / len(talks)  # sampled tokens
    turns, cut = sum(talk.turns for talk in talks), sum(not talk.ended for talk in talks)
    metrics |= {"rollout/turns_mean": turns / len(talks), "rollout/truncated_frac": cut / len(talks)}
    return batch, samples, metrics | {"time/rollout": time.monotonic() - started}


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
    make, models = load_environment(config.environment), load_models(config)
    check_template(models)
    positions = getattr(models.policy.config.get_text_config(), "max_position_embeddings", None)
    config.max_tokens = min(config.max_tokens, positions or config.max_tokens)
    rows = load_rows(config, models.tokenizer, config.data)
    held_out = load_rows(config, models.tokenizer, config.eval_data) if config.eval_data else []
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
        shown = {k: round(x, 3) for k, x in metrics.items() if k in ("reward/mean", "rollout/turns_mean", "eval/score")}
        print(f"step {step}: {shown}", flush=True)

    def evaluate(step):
        parts = [held_out[i : i + 128] for i in range(0, len(held_out), 128)]
        scores = [s["score"] or 0.0 for x in parts for s in rollout(config, models, make, x, greedy=True)[1]]
        accuracy, mean = sum(s >= 1 for s in scores) / len(scores), sum(scores) / len(scores)
        log(step, {"eval/accuracy": accuracy, "eval/score": mean} | trained)
        return mean

    before = evaluate(0) if held_out else None
    reserve = 2 * (time.monotonic() - started)  # for saving and the last evaluation
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    try:
        for step, picked in enumerate(order.split(config.prompts)[: config.steps], start=1):
            clock = time.monotonic()
            group = [rows[i] for i in picked for _ in range(config.group_size)]
            batch, samples, metrics = rollout(config, models, make, group)
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
