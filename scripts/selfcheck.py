#!/usr/bin/env python3
# Built from src/programs/selfcheck/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.5,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""Check a PPO trainer on your own model, tokenizer, data and reward, in seconds, before a long run.

TRAINER.py is scripts/ppo_train.py or your adapted copy; it is loaded by path and its own functions are called on a few
short sequences. What they return is compared with computations made here from the published formulas and the plain
`model(input_ids, attention_mask).logits`:

    log-prob     log softmax(logits[t - 1] / temperature)[token t]
    gradient     d/dtheta  1/N sum over response tokens of -A_t ratio_t - entropy_coef H_t,  A constant, ratio = 1

Policy and critic get a little noise (in memory), so that the policy differs from its reference and the value head from
zero: on the untouched model many faults give the right numbers. Nothing is trained and nothing is written to disk.

Deliberately left out: whether the settings learn anything, several processes, and code that only a longer run reaches
(checkpoints, schedules). Batch, prompts and completions are cut to a few short ones; other settings stay yours.

    python scripts/selfcheck.py scripts/ppo_train.py                                  # CPU, the embedded model, seconds
    python scripts/selfcheck.py my_ppo.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl \\
        --reward my_rewards.py:correct --precision bf16 --gradient_checkpointing      # the flags of the run, one GPU
    CUDA_VISIBLE_DEVICES=0 python scripts/selfcheck.py my_ppo.py --config run.yaml --json   # before a torchrun launch

Exit codes: 0 every check passes, 1 one fails, 2 bad input.
"""

import argparse
import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import json
import math
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# ------------------------------------------------------------------------------------ messages (src/parts/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------- trainer (src/programs/selfcheck/trainer.py)

NEEDED = (
    "UserError",
    "parse_config",
    "check_config",
    "start_processes",
    "check_context",
    "autocast",
    "load_tokenizer",
    "load_splits",
    "load_reward",
    "load_models",
    "batch_rows",
    "HFEngine",
    "collect",
    "collate",
    "make_experience",
    "make_optimizer",
    "update",
    "accumulate_gradients",
    "policy_loss",
    "switch_checkpointing",
    "predicting_states",
    "token_logprobs",
)


def load_trainer(file: str):
    """Load a trainer script by path; raise UserError where it cannot be loaded or lacks a function of NEEDED."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is no Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    spec = importlib.util.spec_from_file_location("checked_trainer", path)
    sys.modules["checked_trainer"] = trainer = importlib.util.module_from_spec(spec)  # dataclasses look here
    try:
        spec.loader.exec_module(trainer)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"got trainer {file!r}: importing it raises {type(error).__name__}: {error}; expected a module that runs "
            "nothing at import; try `if __name__ == '__main__': main()` at its end"
        ) from error
    lacking = [name for name in NEEDED if not callable(getattr(trainer, name, None))]
    need(
        not lacking,
        f"got trainer {file!r} without {', '.join(lacking)}; expected the functions of ppo_train.py under their names; "
        "try adapting a copy of it",
    )
    return trainer


# ------------------------------------------------------------------------- subject (src/programs/selfcheck/subject.py)

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens per completion
PROBES = 4  # fixed sequences for log-probs and gradients
PROBE_TOKENS = 64  # tokens of their prompts

# mean difference of log-probs in nats (ten times as much for a single token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15), "fp16": (0.02, 0.05)}


@dataclass
class Subject:
    """A trainer with what it loaded from the user's settings, and the sequences on which it is checked."""

    trainer: object
    config: object  # the user's, with a small batch
    models: object  # as a run would have them
    with_reference: object  # the same networks and a reference, also where kl_coef is 0
    engine: object
    reward: object
    rows: list  # SAMPLED of the user's prompts
    probes: list  # PROBES samples as `collect` returns them
    initial: object = None  # log-probs of the probes' responses under the untouched policy, [tokens]
    moved: float = 0.0  # nats per token between the policy and the untouched one

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS.get(self.config.precision, LIMITS["bf16"])


def networks(s: Subject) -> list:
    """The policy, and the critic where there is one."""
    return [s.models.policy] + [s.models.critic] * (s.models.critic is not None)


# --------------------------------------------------------------- trainer side (src/programs/selfcheck/trainer_side.py)


def trainer_logprobs(s: Subject, samples: list[dict], config=None, batch: dict | None = None):
    """(log-probs, entropy, batch), the first two [B, T], by the trainer in one padded batch."""
    import torch

    batch = batch or s.trainer.collate(samples, s.models.pad_id, s.models.device)
    with torch.no_grad(), s.trainer.autocast(s.config, s.models.device):
        hidden = s.trainer.predicting_states(s.models.policy, batch)
        logprobs, entropy = s.trainer.token_logprobs(config or s.config, s.models.policy, hidden, batch)
    return logprobs, entropy, batch


def experience(s: Subject, models=None, **settings) -> dict:
    """The trainer's batch made of the probes."""
    config = dataclasses.replace(s.config, **settings)
    return s.trainer.make_experience(config, models or s.models, s.probes, config.kl_coef or 0.05)


def settled(s: Subject) -> dict:
    """The trainer's batch without a graph and with current log-probs throughout: one fault shows in one check."""
    batch = {name: x.detach() for name, x in experience(s).items()}
    current = trainer_logprobs(s, s.probes)[0]
    return batch | {name: current for name in ("old_logprobs", "ref_logprobs") if name in batch}


def new_scaler(s: Subject):
    """The gradient scaler of an fp16 run; one that does nothing otherwise."""
    import torch

    enabled = s.config.precision == "fp16"
    return torch.amp.GradScaler(s.models.device.type, init_scale=2.0**12, enabled=enabled)


def trainer_gradients(s: Subject, batch: dict, **settings) -> list:
    """Gradients by the trainer's accumulate_gradients, in the mode in which it trains."""
    config, scaler = dataclasses.replace(s.config, **settings), new_scaler(s)
    s.trainer.switch_checkpointing(s.models, s.config.gradient_checkpointing)
    try:
        s.trainer.accumulate_gradients(config, s.models, batch, list(range(len(s.probes))), scaler)
        return take_gradients(s, scaler.get_scale())
    finally:
        rest(s)


def rest(s: Subject) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(s):
        network.zero_grad(set_to_none=True)
        network.eval()


def take_gradients(s: Subject, scale: float) -> list:
    """One vector per network with up to 4,096 entries of each gradient, evenly spaced; clears the gradients."""
    import torch

    vectors = []
    for network in networks(s):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append((g.flatten()[:: max(1, g.numel() // 4096)] / scale).float().cpu())
        vectors.append(torch.cat(parts))
    rest(s)
    return vectors


class Seen(BaseException):
    """Ends an update once its first loss has been seen."""


@contextlib.contextmanager
def watching(s: Subject, stop: bool = False):
    """Yield a list that gets (logprobs, old_logprobs, advantages) of every call of the loss; `stop` ends the first.

    The loss is `policy_loss`, or the entry of LOSSES that the settings name where it is another.
    """
    table, name = vars(s.trainer), "policy_loss"
    if getattr(s.config, "loss", "clip") not in ("clip", "clip_cov"):
        table, name = s.trainer.LOSSES, s.config.loss
    original, calls = table[name], []

    def watched(*args, **kwargs):
        names = ("logprobs", "old_logprobs", "advantages")
        calls.append(tuple(kwargs[n] for n in names) if kwargs else args[:3])
        if stop:
            raise Seen
        return original(*args, **kwargs)

    watched.__dict__.update(vars(original))  # what the entry says of itself
    table[name] = watched
    try:
        with contextlib.suppress(Seen):
            yield calls
    finally:
        table[name] = original


def agree(a, b, limit: float) -> tuple[bool, str]:
    """Whether two vectors differ by at most `limit` on average and ten times that anywhere; and the text of it."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def relative(gradients: list, expected: list) -> float:
    """The largest relative difference |a - b| / |b| over the networks."""
    pairs = zip(gradients, expected, strict=True)
    return largest(((a - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in pairs)


def largest(values) -> float:
    """The maximum, where one that is not a number counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)


# --------------------------------------------------------------------------- oracle (src/programs/selfcheck/oracle.py)


def own_autocast(s: Subject):
    """The mixed precision that `--precision` names."""
    import torch

    if s.config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(s.models.device.type, dtype={"bf16": torch.bfloat16}.get(s.config.precision, torch.float16))


def own_forward(s: Subject, sample: dict):
    """(log-probs, entropies), both [n], of a sample's n response tokens: one sequence alone, without padding."""
    import torch

    n = len(sample["response_ids"])
    ids = torch.tensor([sample["prompt_ids"] + sample["response_ids"]], device=s.models.device)  # [1, T]
    with own_autocast(s):
        logits = s.models.policy(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]  # [T, V]
    dist = torch.log_softmax(logits[-n - 1 : -1].float() / s.config.temperature, dim=-1)  # entry t - 1 predicts t
    return dist.gather(-1, ids[0, -n:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)


def own_logprobs(s: Subject, samples: list[dict] | None = None):
    """Log-probs of all response tokens of the samples (the probes, unless given), [tokens]."""
    import torch

    with torch.no_grad():
        return torch.cat([own_forward(s, sample)[0] for sample in (samples or s.probes)])


def own_policy_gradients(s: Subject, batch: dict) -> list:
    """Gradients of the policy loss by its definition, with the batch's advantages as constants."""
    scale = 2.0**12 if s.config.precision == "fp16" else 1.0
    at = response_columns(batch, s.probes)
    for i, sample in enumerate(s.probes):
        logprobs, entropy = own_forward(s, sample)
        ratio = (logprobs - logprobs.detach()).exp()
        loss = own_divergence(s, sample) - s.config.entropy_coef * entropy.sum()
        if "advantages" in batch:
            loss = loss - (batch["advantages"][i, at[i]].detach() * ratio).sum()
        (loss / own_divisor(s, len(at[i]), sum(map(len, at))) * scale).backward()
    return take_gradients(s, scale)[:1]


def own_divergence(s: Subject, sample: dict):
    """Sum over the response of kl_coef * divergence from the teacher, where the trainer distils by one."""
    import torch

    objective = getattr(s.config, "objective", "policy_gradient")
    if objective == "policy_gradient" or s.config.kl_top_k or not hasattr(s.models.teachers[0], "model"):
        return 0.0
    n, dists = len(sample["response_ids"]), []
    ids = torch.tensor([sample["prompt_ids"] + sample["response_ids"]], device=s.models.device)
    width = s.models.teachers[0].width
    for network in (s.models.policy, s.models.teachers[0].model):
        with own_autocast(s):
            logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -n - 1 : -1, :width]
        dists.append(torch.log_softmax(logits.float() / s.config.temperature, dim=-1))
    student, teacher = dists[0], dists[1].detach()
    beta = {"reverse_kl": 1.0, "forward_kl": 0.0}.get(objective, s.config.beta)
    mixture = (1 - beta) * student.exp() + beta * teacher.exp()
    forward = (teacher.exp() * (teacher - (student if beta == 0 else mixture.log()))).sum()
    reverse = (student.exp() * (student - (teacher if beta == 1 else mixture.log()))).sum()
    parts = {0.0: forward, 1.0: reverse}.get(beta, beta * forward + (1 - beta) * reverse)
    return s.config.kl_coef * parts


def own_divisor(s: Subject, length: int, tokens: int) -> float:
    """What the sum of a sequence's token losses is divided by, for its length and all the tokens of the minibatch."""
    how, sequences = getattr(s.config, "aggregation", "token_mean"), len(s.probes)
    per_sequence = {"seq_mean_token_mean": length, "seq_mean_token_sum": 1}
    per_sequence |= {"seq_mean_token_sum_norm": s.config.max_new_tokens}
    if how == "token_mean":
        return tokens
    return sequences * per_sequence.get(how, getattr(s.config, "norm_length", 1))


def response_columns(batch: dict, samples: list[dict]) -> list:
    """The columns of each sample's response: its last real tokens, wherever the trainer puts its padding."""
    pairs = zip(batch["attention_mask"], samples, strict=True)
    return [mask.nonzero().squeeze(-1)[-len(sample["response_ids"]) :] for mask, sample in pairs]


def at_responses(x, batch: dict, samples: list[dict]):
    """The entries of x [B, T] at the response tokens, [tokens]."""
    import torch

    return torch.cat([x[i, columns] for i, columns in enumerate(response_columns(batch, samples))])


def own_mask(batch: dict, samples: list[dict]):
    """What `response_mask` [B, T] has to be."""
    import torch

    mask = torch.zeros_like(batch["attention_mask"])
    for i, columns in enumerate(response_columns(batch, samples)):
        mask[i, columns] = 1
    return mask


# ------------------------------------------------------------------------- prepare (src/programs/selfcheck/prepare.py)


def prepare(trainer, config) -> Subject:
    """Load everything through the trainer, as its `train` does, and cut the work to a few short sequences."""
    trainer.check_config(config)
    device = trainer.start_processes(config)
    if hasattr(trainer, "settle_precision"):  # copies of older trainers have no `auto`
        trainer.settle_precision(config, device)
    reward = trainer.load_reward(config)
    rows, held_out = trainer.load_splits(config, trainer.load_tokenizer(config))
    small = {"batch_size": SAMPLED, "minibatches": 1, "ppo_epochs": 2, "rollout_batch_size": 0}
    small["max_new_tokens"] = min(config.max_new_tokens, NEW_TOKENS)
    small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
    small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
    small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
    few = dataclasses.replace(config, **small)
    with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=config.kl_coef or 0.05), device)
    trainer.check_context(config, with_reference, rows + held_out)
    models = with_reference
    if not config.kl_coef:
        models = copy.copy(with_reference)
        models.reference = None
    engine = getattr(trainer, "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine")(few, models)
    drawn = trainer.batch_rows(rows, few, 0, 8 * SAMPLED)
    picked = sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: 4 * SAMPLED : 4]  # from the shorter half
    subject = Subject(trainer, few, models, with_reference, engine, reward, picked, make_probes(picked))
    subject.config = dataclasses.replace(few, batch_size=len(subject.probes))
    subject.initial = own_logprobs(subject)
    return subject


def make_probes(rows: list[dict]) -> list[dict]:
    """Samples with prompts of growing and responses of shrinking length, all different, cut from real prompts."""
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        score = 1.6 + 1.5 * (-1) ** i + 0.1 * i  # no two alike in a group, none below 0
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Subject) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    import torch

    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.models.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    s.engine.sync()


# --------------------------------------------------------------------------- checks (src/programs/selfcheck/checks.py)

CHECKS = {}  # name -> (function, what to do when it fails, whether it needs the moved policy)


def check(advice: str, moved: bool = True):
    """Register `check(subject) -> (passed or None for not applicable, what was measured)` under its own name."""

    def register(function):
        CHECKS[function.__name__] = (function, advice, moved)
        return function

    return register


ANSWER = "Yes"  # text of the assistant turns rendered here


@check(
    "make pad, end tokens and tokenizer those of this checkpoint; where a turn ends with another token, add that to "
    "eos_token_id in the model's generation config",
    moved=False,
)
def special_tokens(s: Subject):
    """End tokens are known and end a turn of the template; all ids are rows of the embedding; one BOS at most."""
    tokenizer, ends, pad = s.models.tokenizer, s.models.eos_ids, s.models.pad_id
    eos, bos, closing = tokenizer.eos_token_id, tokenizer.bos_token_id, turn_end(tokenizer)
    rows = s.models.policy.get_input_embeddings().weight.shape[0]
    prompts = [list(row["prompt_ids"]) for row in s.rows]
    faults = {
        "no end token": not ends,
        f"the tokenizer's end token {eos} is not among them": eos is not None and eos not in ends,
        "an end token has no embedding": not all(0 <= i < rows for i in ends),
        f"pad {pad} has no embedding": not 0 <= pad < rows,
        "tokens without an embedding": len(tokenizer) > rows,
        "prompt tokens without an embedding": max(map(max, prompts)) >= rows,
        "prompts begin with two BOS tokens": bos is not None and any(ids[:2] == [bos, bos] for ids in prompts),
        f"the template ends a turn with {closing}, no end token": closing and not set(closing) & set(ends),
    }
    names = ", ".join(f"{i} {tokenizer.convert_ids_to_tokens(i)!r}" for i in ends)
    text = f"end {names}; pad {pad}{' is an end token too' * (pad in ends)}; {len(tokenizer)} tokens, embedding {rows}"
    found = [fault for fault, wrong in faults.items() if wrong]
    return not found, "; ".join([text, *found])


def turn_end(tokenizer) -> list[int]:
    """The special tokens with which the chat template closes an assistant turn."""
    if not tokenizer.chat_template:
        return []
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    text = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(ANSWER)[2]
    special = set(tokenizer.all_special_ids)
    return [i for i in tokenizer(text, add_special_tokens=False).input_ids if i in special]


@check(
    "encode chat prompts with add_generation_prompt=True, and let the template's generation prompt be what it writes "
    "before an assistant's text (no space at its end)",
    moved=False,
)
def template_ends_at_generation(s: Subject):
    """The ids of a prompt are those of prompt + answer up to where the answer starts."""
    tokenizer = s.models.tokenizer
    chats = [row for row in s.rows if sent_as_chat(s, row)]
    if not tokenizer.chat_template:
        return None, "no chat template"
    if not chats:
        return None, "plain prompts, which bypass the chat template: an instruct model needs --chat, or chat messages"
    settings = json.loads(getattr(s.config, "chat_template_kwargs", "") or "{}")
    for row in chats:
        turns = [*sent_as_chat(s, row), {"role": "assistant", "content": ANSWER}]
        whole = tokenizer.apply_chat_template(turns, return_dict=True, **settings)["input_ids"]
        if not starts_answer(tokenizer, list(row["prompt_ids"]), list(whole)):
            ends = tokenizer.decode(row["prompt_ids"])[-30:]
            return False, f"prompt ends {ends!r}, with an answer it is {tokenizer.decode(whole)[-60:]!r}"
    ends = tokenizer.decode(chats[0]["prompt_ids"])[-30:]
    return True, f"{len(chats)} prompts end where an assistant turn starts: {ends!r}"


def sent_as_chat(s: Subject, row: dict) -> list[dict]:
    """The messages that a prompt is sent as, without an answer yet; none for plain text."""
    if isinstance(row["prompt"], str):
        return [{"role": "user", "content": row["prompt"]}] if getattr(s.config, "chat", False) else []
    return row["prompt"] if row["prompt"][-1]["role"] != "assistant" else []


def starts_answer(tokenizer, ids: list[int], whole: list[int]) -> bool:
    """Whether `whole` is `ids` followed by ANSWER; an empty thinking part may stand on either side."""
    tail = tokenizer.decode(whole[len(ids) :])
    if whole[: len(ids)] != ids:
        prompt, text = tokenizer.decode(ids), tokenizer.decode(whole)
        head = re.sub(r"<think>\s*(</think>\s*)?$", "", prompt)  # opened by the generation prompt of reasoning models
        if head == prompt or not text.startswith(head):
            return False
        tail = text[len(head) :]
    return re.sub(r"^\s*<think>\s*</think>", "", tail).lstrip().startswith(ANSWER)


@check("mend the reward function named here: one finite number or None per completion", moved=False)
def reward_answers(s: Subject):
    """The reward functions answer for samples of the untouched policy."""
    samples = sampled(s)
    texts, ids = ([sample[key] for sample in samples] for key in ("completion", "response_ids"))
    scores, parts = s.reward(s.rows, texts, ids)
    finite = len(scores) == len(samples) and all(math.isfinite(score) for score in scores)
    text = f"{len(scores)} scores, mean {statistics.fmean(scores):.3g}, std {statistics.pstdev(scores):.3g}"
    for name, values in parts.items():
        known = [value for value in values if value is not None]
        text += f"; {name} {statistics.fmean(known):.3g}" if known else f"; {name} not applicable"
    if len(set(scores)) == 1:
        longest = f"at most {s.config.max_new_tokens} tokens long here"
        text += f" (warning: all equal, nothing to learn from these; they are {longest}, as {texts[0][:40]!r})"
    return finite, text


def sampled(s: Subject) -> list[dict]:
    """Completions by the trainer's sampler, unscored."""
    import numpy as np

    def no_reward(rows, completions, completion_ids):
        return [0.0] * len(rows), {"none": [0.0] * len(rows)}

    noise = np.random.default_rng(0).random((len(s.rows), s.config.max_new_tokens))
    return s.trainer.collect(s.config, s.models, s.engine, no_reward, s.rows, noise, {})


@check("set weight and bias of the value head to 0: values of a random head are noise in every advantage", moved=False)
def value_head_zero(s: Subject):
    """A new critic values everything at 0."""
    batch = experience(s)
    if not hasattr(s.models.critic, "head") or "values" not in batch:
        return None, "no critic with a value head"
    peak = at_responses(batch["values"], batch, s.probes).abs().max().item()
    return peak == 0, f"largest value before training {peak:.2g}"


@check("load the reference from --model and freeze it; with LoRA use the base with its adapters off")
def reference_is_initial(s: Subject):
    """The reference gives the untouched policy's log-probs, while the policy has moved."""
    if s.models.reference is None:
        return None, "kl_coef is 0"
    batch = experience(s)
    passed, text = agree(at_responses(batch["ref_logprobs"], batch, s.probes), s.initial, s.limits[0])
    return passed, f"reference and untouched policy {text}; the policy moved by {s.moved:.2g}"


@check("compute old_logprobs with the policy itself, before the first optimizer step, dropout off, same temperature")
def first_update_ratio(s: Subject):
    """At the first optimizer step of an update the old policy is the current one, not the reference."""
    variants = [s.with_reference] if s.models.reference is not None else [s.with_reference, s.models]
    peaks = []
    for models in variants:
        config = dataclasses.replace(s.config, kl_coef=s.config.kl_coef or 0.05)
        batch = {name: x.detach() for name, x in experience(s, models).items()}
        optimizer, health = s.trainer.make_optimizer(config, models), {"step": 0, "bad": 0, "kl_coef": config.kl_coef}
        with watching(s, stop=True) as calls:
            step = getattr(config, "critic_warmup_steps", 0)
            s.trainer.update(config, models, optimizer, new_scaler(s), batch, step, health)
        rest(s)
        if not calls:
            return False, "update() never called the policy loss"
        logprobs, old_logprobs, _ = calls[0]
        peaks.append((logprobs - old_logprobs).abs().max().item())
    peak = largest(peaks)
    text = f"largest |log ratio| {peak:.1e}; policy and reference are {s.moved:.2g} nats apart"
    return peak <= s.limits[0] / 10, text


@check("divide the sampler's logits by the same temperature, without top-p or top-k, and copy weights before sampling")
def sampler_agreement(s: Subject):
    """Log-probs as the sampler saw them are the trainer's."""
    samples = sampled(s)
    logprobs, _, batch = trainer_logprobs(s, samples)
    seen = [x for sample in samples for x in sample["rollout_logprobs"]]
    ours = at_responses(logprobs, batch, samples)
    passed, text = agree(ours.new_tensor(seen), ours, s.limits[0])
    return passed, f"sampler and trainer {text}, temperature {s.config.temperature:g}, {len(seen)} tokens"


@check("take the log-prob of token t from the logits at t - 1, divided by the temperature")
def logprob_shift(s: Subject):
    """The trainer's log-prob of token t is that of the plain model."""
    logprobs, _, batch = trainer_logprobs(s, s.probes)
    own = own_logprobs(s)
    passed, text = agree(at_responses(logprobs, batch, s.probes), own, s.limits[0])
    return passed, f"trainer and model {text}, {len(own)} tokens"


@check("pad prompts on the left, mask the pads, and count positions over real tokens only")
def padding(s: Subject):
    """Neither the side nor the amount of padding changes log-probs or greedy completions."""
    import torch

    batch = s.trainer.collate(s.probes, s.models.pad_id, s.models.device)
    for mask in batch["attention_mask"]:
        real = mask.nonzero().squeeze(-1)
        if real[-1] - real[0] + 1 != len(real):
            return False, "pads stand between a prompt and its response"
    names, fill = ("input_ids", "attention_mask", "response_mask"), {"input_ids": s.models.pad_id}
    wide = {name: torch.nn.functional.pad(batch[name], (5, 3), value=fill.get(name, 0)) for name in names}
    alone = torch.cat([response_logprobs(s, [probe]) for probe in s.probes])
    by_row, at_once = (experience(s, micro_batch_tokens=n) for n in (1, 2**30))  # these trim their padding
    by_row, at_once = (at_responses(x["old_logprobs"].detach(), x, s.probes) for x in (by_row, at_once))
    results = {
        "in a batch": agree(response_logprobs(s, s.probes), alone, s.limits[0]),
        "with more pads": agree(response_logprobs(s, s.probes, wide), alone, s.limits[0]),
        "in micro-batches": agree(by_row, at_once, s.limits[0]),
    }
    bad = [f"{name} log-probs are {text}" for name, (passed, text) in results.items() if not passed]
    differing = greedy_differences(s)
    if differing:
        bad.append(f"{differing} of {PROBES} greedy completions change in a batch")
    text = f"log-probs {results['with more pads'][1]}; greedy completions the same alone and in a batch"
    return not bad, "; ".join(bad) or text


def response_logprobs(s: Subject, samples: list[dict], batch: dict | None = None):
    """The trainer's log-probs of the response tokens, [tokens]."""
    logprobs, _, batch = trainer_logprobs(s, samples, batch=batch)
    return at_responses(logprobs, batch, samples)


def greedy_differences(s: Subject) -> int:
    """How many greedy completions differ between a batch and alone, near-ties aside."""
    engine = s.trainer.HFEngine(s.config, s.models)
    prompts, count = [probe["prompt_ids"] for probe in s.probes], 0
    for prompt, (together, _) in zip(prompts, engine.generate(prompts, None), strict=True):
        alone = engine.generate([prompt], None)[0][0]
        same = 0
        while same < min(len(alone), len(together)) and alone[same] == together[same]:
            same += 1
        if same == max(len(alone), len(together)):
            continue
        pair = [{"prompt_ids": prompt, "response_ids": ids[: same + 1]} for ids in (alone, together)]
        a, b = (own_logprobs(s, [sample])[-1].item() for sample in pair)
        count += abs(a - b) > 10 * s.limits[0] or len(pair[0]["response_ids"]) != len(pair[1]["response_ids"])
    return count


@check("divide every micro-batch by the tokens and completions of the whole minibatch, not by its own")
def accumulation(s: Subject):
    """Gradients do not depend on the micro-batches."""
    batch = settled(s)
    whole = trainer_gradients(s, batch, micro_batch_tokens=2**30)
    two_rows = 2 * batch["input_ids"].shape[1]
    worst = largest(relative(trainer_gradients(s, batch, micro_batch_tokens=n), whole) for n in (1, two_rows))
    return worst <= s.limits[1], f"1, 2 and {len(s.probes)} rows per micro-batch: gradients {worst:.1e} apart"


@check("let every piece of the chunked log-probs see its own rows and targets, and the gradient of all of them")
def chunking(s: Subject):
    """Log-probs, entropies and gradients in small pieces are those in one piece."""
    if not hasattr(s.config, "logits_chunk"):
        return None, "the trainer has no logits_chunk"
    vocabulary = s.models.policy.get_input_embeddings().weight.shape[0]
    batch, many = settled(s), 2**40
    whole = trainer_logprobs(s, s.probes, dataclasses.replace(s.config, logits_chunk=many))
    gradients = trainer_gradients(s, batch, logits_chunk=many, entropy_coef=0.01)
    passed, gaps, text = True, [], ""
    for size in (1, 5 * vocabulary):
        parts = trainer_logprobs(s, s.probes, dataclasses.replace(s.config, logits_chunk=size))
        for a, b in zip(parts[:2], whole[:2], strict=True):
            close, text = agree(at_responses(a, batch, s.probes), at_responses(b, batch, s.probes), s.limits[0])
            passed = passed and close
        gaps.append(relative(trainer_gradients(s, batch, logits_chunk=size, entropy_coef=0.01), gradients))
    return passed and largest(gaps) <= s.limits[1], f"entropy {text}; gradients {largest(gaps):.1e} apart"


@check("compute the experience under torch.no_grad() and give the policy loss advantages that are constants")
def advantages_detached(s: Subject):
    """Nothing of the experience carries a gradient, and the policy gradient is that of the definition."""
    graphs = {name for name, x in experience(s).items() if x.requires_grad}
    batch = settled(s)
    with watching(s) as calls:
        without_critic = {"vf_coef": 0.0} if hasattr(s.config, "vf_coef") else {}
        gradients = trainer_gradients(s, batch, **without_critic)[:1]
    for _, old, advantages in calls:
        given = {"old_logprobs given to the loss": old, "advantages given to the loss": advantages}
        graphs |= {name for name, x in given.items() if x.requires_grad}
    if graphs:
        return False, f"gradients flow through {', '.join(sorted(graphs))}"
    if getattr(s.config, "loss", "clip") == "clip_cov":
        return None, "Clip-Cov leaves out tokens of its choice"
    if getattr(s.config, "kl_top_k", 0):
        return None, "the divergence is of chosen tokens"
    expected = own_policy_gradients(s, batch)
    worst, size = relative(gradients, expected), (gradients[0].norm() / expected[0].norm().clamp(min=1e-12)).item()
    return worst <= s.limits[1], f"trainer's and defined policy gradient {worst:.1e} apart, {size:.4g} times as long"


@check("let response_mask be 1 on sampled tokens only, and multiply every per-token loss by it")
def prompt_gradient(s: Subject):
    """Neither prompt nor pad tokens enter the loss."""
    batch = settled(s)
    mask = own_mask(batch, s.probes)
    wrong = int((batch["response_mask"] != mask).sum())
    real = batch["attention_mask"].bool()
    spoilt = {name: x + 3.0 * (1 - mask) if x.is_floating_point() else x for name, x in batch.items()}
    spoilt["input_ids"] = batch["input_ids"].where(real, batch["input_ids"].new_tensor(s.probes[0]["prompt_ids"][-1]))
    worst = relative(trainer_gradients(s, spoilt), trainer_gradients(s, batch))
    text = f"response_mask wrong at {wrong} of {mask.numel()} tokens; "
    return not wrong and worst <= s.limits[1], text + f"gradients {worst:.1e} apart with spoilt prompts and pads"


def run_checks(s: Subject) -> list[dict]:
    """Run every check; one that raises fails with the text of its exception."""
    results = []
    for name, (function, advice, moved) in CHECKS.items():
        try:
            if moved and not s.moved:
                move(s)
            passed, text = function(s)
        except Exception as error:
            rest(s)
            passed, text = False, f"{type(error).__name__}: {error}"
        status = {None: "n/a", True: "pass", False: "FAIL"}[passed if passed is None else bool(passed)]
        row = {"name": name, "status": status, "measured": " ".join(text.split())[:400]}
        results.append(row | {"try": advice if status == "FAIL" else ""})
    return results


# --------------------------------------------------------------------------------- run (src/programs/selfcheck/run.py)


def selfcheck(file: str, flags: list[str]) -> list[dict]:
    """Load a trainer with its flags and run the checks; what keeps them from starting is a UserError."""
    trainer = load_trainer(file)
    config = trainer.parse_config(flags)
    try:
        subject = prepare(trainer, config)
    except trainer.UserError as error:
        raise UserError(str(error)) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {error}") from error
    return run_checks(subject)


def print_table(results: list[dict], seconds: float) -> None:
    """One line per check, then the count of each status."""
    for row in results:
        advice = f" | try: {row['try']}" if row["try"] else ""
        print(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
    counts = {status: sum(row["status"] == status for row in results) for status in ("pass", "FAIL", "n/a")}
    print(", ".join(f"{n} {status}" for status, n in counts.items()), f"in {seconds:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] TRAINER.py [the trainer's flags] [--json]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options, flags = parser.parse_known_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        print(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print_table(results, seconds)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
