"""The checks."""

import dataclasses
import json
import math
import re
import statistics

from programs.selfcheck.oracle import at_responses, own_logprobs, own_mask, own_policy_gradients
from programs.selfcheck.prepare import move
from programs.selfcheck.subject import PROBES, Subject
from programs.selfcheck.trainer_side import (
    agree,
    experience,
    largest,
    new_scaler,
    relative,
    rest,
    settled,
    trainer_gradients,
    trainer_logprobs,
    watching,
)

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
