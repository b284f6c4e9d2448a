"""Checks of log-probs, padding and the policy's gradient."""

from programs.selfcheck.oracle import own_logprobs, own_mask, own_policy_gradients
from programs.selfcheck.trainer import (
    ALL_ROWS,
    PROBES,
    Trainer,
    agree,
    at_responses,
    check,
    largest,
    length_ratio,
    relative,
)


@check("load the reference from --model and freeze it; with LoRA use the base with its adapters off")
def reference_is_initial(s: Trainer):
    """The reference gives the untouched policy's log-probs, while the policy has moved."""
    if s.models.reference is None:
        return None, "no reference: kl_coef is 0, or there is none"
    batch = s.experience()
    passed, text = agree(at_responses(batch["ref_logprobs"], batch, s.probes), s.initial, s.limits[0])
    return passed, f"reference and untouched policy {text}; the policy moved by {s.moved:.2g}"


@check("compute old_logprobs with the policy itself, before the first optimizer step, dropout off, same temperature")
def first_update_ratio(s: Trainer):
    """What an update begins with as the old policy is the current one, not the reference."""
    with_reference, peaks = s.with_reference, []
    for models in [with_reference] if s.models.reference is not None else [with_reference, s.models]:
        batch = s.experience(s.probes, models)
        if "old_logprobs" not in batch:
            return None, "the divergence from a teacher has no old policy"
        old = at_responses(batch["old_logprobs"], batch, s.probes)
        peaks.append((s.response_logprobs(s.probes) - old).abs().max().item())
    peak = largest(peaks)
    text = f"largest |log ratio| {peak:.1e}; policy and reference are {s.moved:.2g} nats apart"
    return peak <= s.limits[0] / 10, text


@check("divide the sampler's logits by the same temperature, without top-p or top-k, and copy weights before sampling")
def sampler_agreement(s: Trainer):
    """Log-probs as the sampler saw them are the trainer's."""
    samples, batch = s.sampled()
    ours = s.response_logprobs(samples, batch | {"response_mask": own_mask(batch, samples)})
    passed, text = agree(at_responses(batch["rollout_logprobs"], batch, samples), ours, s.limits[0])
    return passed, f"sampler and trainer {text}, temperature {s.config.temperature:g}, {len(ours)} tokens"


@check("take the log-prob of token t from the logits at t - 1, divided by the temperature")
def logprob_shift(s: Trainer):
    """The trainer's log-prob of token t is that of the plain model."""
    own = own_logprobs(s) if s.moved else s.initial
    passed, text = agree(s.response_logprobs(s.probes), own, s.limits[0])
    return passed, f"trainer and model {text}, {len(own)} tokens"


@check("pad prompts on the left, mask the pads, and count positions over real tokens only")
def padding(s: Trainer):
    """Neither the side nor the amount of padding changes log-probs or greedy completions."""
    import torch

    for mask in s.generated(prompts_of(s))[1]["attention_mask"]:
        real = mask.nonzero().squeeze(-1)
        if real[-1] - real[0] + 1 != len(real):
            return False, "pads stand between a prompt and its response"
    batch = s.collate(s.probes)
    names, fill = ("input_ids", "attention_mask", "response_mask"), {"input_ids": s.models.pad_id}
    wide = {name: torch.nn.functional.pad(batch[name], (5, 3), value=fill.get(name, 0)) for name in names}
    alone = torch.cat([s.response_logprobs([probe]) for probe in s.probes])
    results = {
        "in a batch": agree(s.response_logprobs(s.probes), alone, s.limits[0]),
        "with more pads": agree(s.response_logprobs(s.probes, wide), alone, s.limits[0]),
    }
    pieces = [s.experience(**s.per_pass(n)) for n in (1, ALL_ROWS)]  # scripts trim the padding of these
    pieces = [at_responses(x["old_logprobs"].detach(), x, s.probes) for x in pieces if "old_logprobs" in x]
    if pieces:
        results["in micro-batches"] = agree(*pieces, s.limits[0])
    bad = [f"{name} log-probs are {text}" for name, (passed, text) in results.items() if not passed]
    differing = greedy_differences(s)
    if differing:
        bad.append(f"{differing} of {PROBES} greedy completions change in a batch")
    text = f"log-probs {results['with more pads'][1]}; greedy completions the same alone and in a batch"
    return not bad, "; ".join(bad) or text


def prompts_of(s: Trainer) -> list[list[int]]:
    """The prompts of the probes."""
    return [probe["prompt_ids"] for probe in s.probes]


def greedy_differences(s: Trainer) -> int:
    """How many greedy completions differ between a batch and alone, near-ties aside."""
    prompts, count = prompts_of(s), 0
    for prompt, together in zip(prompts, s.generated(prompts, greedy=True)[0], strict=True):
        (alone,) = s.generated([prompt], greedy=True)[0]
        one, two = together["response_ids"], alone["response_ids"]
        same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
        if one == two:
            continue
        tops = [own_logprobs(s, [{"prompt_ids": prompt, "response_ids": x[: same + 1]}])[-1].item() for x in (one, two)]
        count += same == min(len(one), len(two)) or abs(tops[0] - tops[1]) > 10 * s.limits[0]
    return count


@check(
    "divide every micro-batch by the tokens and completions of the whole minibatch, not by its own; let every piece of "
    "chunked log-probs see its own rows and targets, and the gradient of all of them"
)
def accumulation(s: Trainer):
    """Gradients depend neither on the micro-batches nor on the pieces in which the output layer sees tokens."""
    batch = s.settled()
    gap = relative(*(s.gradients(batch, **s.per_pass(rows)) for rows in (1, ALL_ROWS)))
    return gap <= s.limits[1], f"1 and {len(s.probes)} rows per micro-batch: gradients {gap:.1e} apart"


@check(
    "compute the experience under torch.no_grad() and give the policy loss advantages that are constants; a loss that "
    "is meant to be another than those of the papers fails here too"
)
def advantages_detached(s: Trainer):
    """Nothing of the experience carries a gradient, and the policy gradient is that of the definition."""
    graphs = {name for name, x in s.experience().items() if x.requires_grad}
    if graphs:
        return False, f"gradients flow through {', '.join(sorted(graphs))}"
    batch = s.settled()
    gradients = s.gradients(batch, **s.without_critic())[:1]
    definitions, reason = s.definitions()
    if not definitions:
        return None, reason
    comparisons = []  # (relative difference, ratio of the lengths, name of the definition)
    for d in definitions:
        expected = own_policy_gradients(s, batch, d)
        comparisons.append((relative(gradients, expected), length_ratio(gradients, expected), d.name))
        if comparisons[-1][0] <= s.limits[1]:
            break
    worst, ratio, name = min(comparisons)
    text = f"trainer's and defined policy gradient {worst:.1e} apart, {ratio:.4g} times as long"
    return worst <= s.limits[1], text + f" ({name})" * bool(name)


@check("let response_mask be 1 on sampled tokens only, and multiply every per-token loss by it")
def prompt_gradient(s: Trainer):
    """Neither prompt nor pad tokens enter the loss."""
    batch = s.settled()
    samples, laid_out = s.generated(prompts_of(s))
    right = own_mask(laid_out, samples)
    wrong, count = int((laid_out["response_mask"] != right).sum()), right.numel()
    mask, real = own_mask(batch, s.probes), batch["attention_mask"].bool()
    spoilt = {name: x + 3.0 * (1 - mask) if per_token(x, mask) else x for name, x in batch.items()}
    spoilt["input_ids"] = batch["input_ids"].where(real, batch["input_ids"].new_tensor(s.probes[0]["prompt_ids"][-1]))
    worst = relative(s.gradients(spoilt), s.gradients(batch))
    text = f"response_mask wrong at {wrong} of {count} tokens; "
    return not wrong and worst <= s.limits[1], text + f"gradients {worst:.1e} apart with spoilt prompts and pads"


def per_token(x, mask) -> bool:
    """Whether x holds a number for each token."""
    return x.is_floating_point() and x.shape == mask.shape
