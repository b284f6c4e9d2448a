"""PPO with a critic on one page: copy it, read it from top to bottom, make it yours.

    python ppo.py --model M --data train.jsonl --eval_data test.jsonl --reward my.py:reward --out out

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1},   R_t = A_t + V_t        (GAE)
    r_t     = -kl_coef log(pi_old / pi_ref), plus the score on the last token
    policy  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), at most -A dual_clip where A < 0
    value   = 1/2 max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2)
Schulman 2016 (arXiv 1506.02438) and 2017 (1707.06347), Ye 2020 (1912.09729); A is whitened over the batch.
Left out, and in scripts/ppo_train.py: resume, LoRA, several GPUs, vLLM, presets, schedules, more and async rewards.
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
    model: str  # folder or hub id
    data: str  # JSONL: `prompt`, a string or chat messages, and any columns
    reward: str  # FILE.py:f, f(prompt, completion, answer) -> float with columns by name, or TRL's batch form
    eval_data: str = ""  # held-out JSONL: accuracy, the share of scores of 1 and above, before and after
    allow_overlap: bool = False  # evaluate even if every held-out prompt is also trained on
    out: str = "out"  # folder for model, metrics, samples, result.json (with eval_data); an earlier run moves to out.1
    chat: bool = True  # a string prompt is a user's turn where the tokenizer has a chat template; off: --no_chat
    steps: int = 30  # each is one rollout and one update
    minutes: float = math.inf  # time for all, saving and evaluation included; Ctrl-C or SIGTERM ends it early
    seed: int = 0
    batch_size: int = 128  # completions a step, one for each prompt
    epochs: int = 2  # passes over each batch
    minibatches: int = 4  # optimizer steps in each pass
    micro_batch: int = 32  # rows in one pass, which has 1024 tokens at most or one row: lower it if memory runs out
    max_prompt_tokens: int = 1024  # longer prompts are left out
    max_new_tokens: int = 256
    temperature: float = 1.0  # all log-probs are of logits divided by it
    critic_warmup_steps: int = 5  # first steps, at most a quarter of all, which train the critic only
    kl_coef: float = 0.01  # 0: no reference is loaded
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    dual_clip: float = 3.0  # 0: none
    value_clip: float = 0.2  # 0: none
    vf_coef: float = 0.5
    lr: float = 0.0  # 0: 5e-5 below 50M parameters, else 1e-6
    critic_lr: float = 0.0  # 0: 1e-3 below 50M parameters, else 1e-5


# Numbers out of these, counts below 1 and other numbers below 0 are refused.
RANGES = {"temperature": (1e-3, 1e3), "seed": (0, 2**32 - 1), "critic_warmup_steps": (0, math.inf)}
RANGES |= dict.fromkeys(("lr", "critic_lr", "gamma", "gae_lambda"), (0, 1))


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
def gae(rewards, values, response_mask, gamma: float, gae_lambda: float):
    """(advantages, returns), all [B, T]; V_{t+1} and A_{t+1} are carried through tokens outside the mask."""
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
    """(loss, ratio, clipped), all [B, T]; clipped is 1 where a clip changed the loss."""
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = torch.maximum(plain, bounded)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, ratio, (loss != plain).float()


def value_loss(values, old_values, returns, value_clip: float):
    """Clipped squared error per token, times 1/2; all [B, T]."""
    loss = (values - returns) ** 2
    if value_clip:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, (near - returns) ** 2)
    return 0.5 * loss


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
    """Policy, critic, reference, tokenizer, always in eval mode: without dropout, an unchanged policy has ratio 1."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")  # Apple's: untested
    torch.backends.cuda.enable_cudnn_sdp(False)  # its plans, one for each new shape, take 30 ms
    policy, tokenizer = load_whole(config.model)
    policy.to(device).eval()
    policy.base_model.register_forward_hook(lambda *_: torch.set_autocast_enabled(device.type, False))  # fp32 head
    reference = copy.deepcopy(policy) if config.kl_coef else None
    m = SimpleNamespace(policy=policy, critic=copy.deepcopy(policy), reference=reference, device=device, pad_id=0)
    head = torch.nn.Linear(policy.get_output_embeddings().in_features, 1, device=device)
    head.load_state_dict({name: torch.zeros_like(x) for name, x in head.state_dict().items()})
    m.critic.set_output_embeddings(head)  # the critic is the same network, with one number in place of the logits
    m.tokenizer, ends = tokenizer, policy.generation_config.eos_token_id
    m.eos_ids = sorted({*(ends if isinstance(ends, list) else [ends]), m.tokenizer.eos_token_id} - {None})
    return m


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


def token_values(critic, batch):
    """Value of the text before each token, [B, T]."""
    return pad(run(critic, batch["input_ids"], batch["attention_mask"]).logits[:, :-1, 0].float(), (1, 0))


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
    """Add old and reference log-probs, values, advantages, returns, [B, T]; stops where sampler and trainer differ."""
    if not (known := ~batch["scores"].isnan()).any():
        sys.exit("error: the reward gave None for all completions of a step; expected numbers for some")
    batch = {name: x[known] for name, x in batch.items()}
    mask, scores, outputs = batch["response_mask"], batch["scores"], []
    for rows in torch.arange(len(scores)).split(min(config.micro_batch, 1024 // mask.shape[1] or 1)):
        piece = {name: x[rows] for name, x in batch.items()}
        old = token_logprobs(config, models.policy, piece)[0]
        ref = token_logprobs(config, models.reference, piece)[0] if config.kl_coef else old
        outputs.append(torch.stack([old, ref, token_values(models.critic, piece) * piece["response_mask"]]))
    old, ref, values = torch.cat(outputs, dim=1)  # [B, T] each
    gap = (old - batch["rollout_logprobs"]).abs()
    gap, limit = (gap.sum() / mask.sum(), 0.1) if mask.is_cuda else (gap.max(), 1e-3)  # bf16 is coarse
    if not gap <= limit:
        sys.exit(f"error: sampler and trainer differ by {gap:.2g} nats; expected {limit}; is the cache right?")
    last = (torch.arange(mask.shape[1], device=mask.device) * mask).argmax(dim=1, keepdim=True)
    rewards = (-config.kl_coef * (old - ref) * mask).scatter_add(1, last, scores[:, None])
    advantages, returns = gae(rewards, values, mask, config.gamma, config.gae_lambda)
    var, mean = torch.var_mean(advantages[mask.bool()])
    advantages = (advantages - mean) * (var + 1e-8).rsqrt() * mask
    made = {"old_logprobs": old, "ref_logprobs": ref, "values": values, "advantages": advantages, "returns": returns}
    return batch | made


def accumulate_gradients(config, models, batch, rows, train_policy=True):
    """Add the gradients of a minibatch, the same for any micro_batch; returns mean loss, clip share, entropy, KL."""
    sums, bounds = 0.0, (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
    for part in rows.split(min(config.micro_batch, 1024 // batch["input_ids"].shape[1] or 1)):
        piece = {name: x[part] for name, x in batch.items()}
        weight = piece["response_mask"] / batch["response_mask"][rows].sum()
        error = value_loss(token_values(models.critic, piece), piece["values"], piece["returns"], config.value_clip)
        logprobs, entropy = token_logprobs(config, models.policy, piece)
        loss, ratio, clipped = policy_loss(logprobs, piece["old_logprobs"], piece["advantages"], *bounds)
        ((loss * train_policy + error * config.vf_coef) * weight).sum().backward()
        seen = torch.stack([error, loss, clipped, entropy, ratio - 1 - ratio.log()])  # the last is k3 of KL(old || new)
        sums += (seen.detach() * weight).sum((1, 2))
    return sums


def update(config, models, optimizer, batch, step):
    """The optimizer steps for a batch; returns their mean metrics, and the critic's explained variance."""
    seen, policy_learns = [], step > min(config.critic_warmup_steps, config.steps // 4)
    for _ in range(config.epochs):
        for rows in torch.randperm(len(batch["scores"])).chunk(config.minibatches):
            sums = accumulate_gradients(config, models, batch, rows, policy_learns)
            norms = [torch.nn.utils.clip_grad_norm_(group["params"], 1.0) for group in optimizer.param_groups]
            seen.append(torch.stack([*sums, *norms]))
            if not seen[-1].isfinite().all():
                sys.exit(f"error: step {step}: got a loss or gradient that is not finite; try a lower --lr")
            optimizer.step()
            optimizer.zero_grad()
    names = ("value/loss", "policy/loss", "policy/clip_frac", "policy/entropy", "kl/approx", "optim/grad_norm")
    metrics = dict(zip((*names, "optim/critic_grad_norm"), torch.stack(seen).mean(0).tolist(), strict=True))
    mask, error = batch["response_mask"].bool(), batch["returns"] - batch["values"]
    unexplained, spread = (x[mask].var(unbiased=False).item() for x in (error, batch["returns"]))
    metrics["value/explained_variance"] = 1 - unexplained / spread if spread else 0.0
    return metrics | {"kl/ref": (batch["old_logprobs"] - batch["ref_logprobs"])[mask].mean().item()}


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
    order = torch.cat([torch.randperm(len(rows)) for _ in range(1 + config.steps * config.batch_size // len(rows))])
    small = models.policy.num_parameters() < 50e6
    rates = config.lr or (5e-5 if small else 1e-6), config.critic_lr or (1e-3 if small else 1e-5)
    networks = zip((models.policy, models.critic), rates, strict=True)
    optimizer = torch.optim.AdamW([{"params": [*n.parameters()], "lr": lr} for n, lr in networks], weight_decay=0.0)
    if out.exists():  # an earlier run is kept
        out.rename(next(p for n in range(1, 10**6) if not (p := Path(f"{out}.{n}")).exists()))
    out.mkdir(parents=True)
    (out / "settings.json").write_text(json.dumps(vars(config), indent=1))

    def log(step, metrics, samples=()):
        for name, entries in (("metrics", [metrics]), ("samples", samples)):
            with (out / f"{name}.jsonl").open("a", encoding="utf-8") as f:
                f.writelines(json.dumps(entry | {"step": step}, ensure_ascii=False) + "\n" for entry in entries)
        shown = {k: round(x, 3) for k, x in metrics.items() if k.startswith(("reward/", "value/", "eval/"))}
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
        for step, picked in enumerate(order.split(config.batch_size)[: config.steps], start=1):
            clock = time.monotonic()
            batch, samples, metrics = rollout(config, models, reward, [rows[i] for i in picked])
            metrics |= update(config, models, optimizer, make_experience(config, models, batch), step)
            took = time.monotonic() - clock
            log(step, metrics | {"time/step": took}, samples[:4])
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
        trl = "learning_rate is --lr, max_completion_length --max_new_tokens, output_dir --out, beta --kl_coef"
        sys.exit(f"error: got {unknown[0]}; expected a setting of --help; TRL's {trl}")
    try:
        train(config)
    except OSError as error:  # a model, data or folder that is not there, or a full disk
        sys.exit(f"error: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(f"error: {str(error)[:100]}; expected enough memory; try a lower --micro_batch or --max_new_tokens")
