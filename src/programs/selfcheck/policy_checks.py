"""Checks of log-probs, padding and the policy's gradient."""

from programs.selfcheck.oracle import own_logprobs, own_mask, own_policy_gradients
from programs.selfcheck.subject import (
    ALL_ROWS,
    PROBES,
    Subject,
    agree,
    at_responses,
    check,
    largest,
    length_ratio,
    relative,
    rest,
    watching,
)


@check("load the reference from --model and freeze it; with LoRA use the base with its adapters off")
def reference_is_initial(s: Subject):
    """The reference gives the untouched policy's log-probs, while the policy has moved."""
    if s.models.reference is None:
        return None, "no reference: kl_coef is 0, or there is none"
    batch = s.experience()
    passed, text = agree(at_responses(batch["ref_logprobs"], batch, s.probes), s.initial, s.limits[0])
    return passed, f"reference and untouched policy {text}; the policy moved by {s.moved:.2g}"


@check("compute old_logprobs with the policy itself, before the first optimizer step, dropout off, same temperature")
def first_update_ratio(s: Subject):
    """At the first optimizer step of an update the old policy is the current one, not the reference."""
    if not s.trainer.has_policy_loss:
        return None, "the divergence from a teacher has no old policy"
    with_reference, peaks = s.trainer.with_reference, []
    for models in [with_reference] if s.models.reference is not None else [with_reference, s.models]:
        with watching(s.trainer, stop=True) as calls:
            s.trainer.starts_update(s.probes, models)
        rest(s.models)
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
    samples, batch = s.trainer.sampled()
    ours = s.response_logprobs(samples, batch | {"response_mask": own_mask(batch, samples)})
    passed, text = agree(at_responses(batch["rollout_logprobs"], batch, samples), ours, s.limits[0])
    return passed, f"sampler and trainer {text}, temperature {s.trainer.config.temperature:g}, {len(ours)} tokens"


@check("take the log-prob of token t from the logits at t - 1, divided by the temperature")
def logprob_shift(s: Subject):
    """The trainer's log-prob of token t is that of the plain model."""
    own = own_logprobs(s) if s.moved else s.initial
    passed, text = agree(s.response_logprobs(s.probes), own, s.limits[0])
    return passed, f"trainer and model {text}, {len(own)} tokens"


@check("pad prompts on the left, mask the pads, and count positions over real tokens only")
def padding(s: Subject):
    """Neither the side nor the amount of padding changes log-probs or greedy completions."""
    import torch

    for mask in s.trainer.laid_out(s.probes)[1]["attention_mask"]:
        real = mask.nonzero().squeeze(-1)
        if real[-1] - real[0] + 1 != len(real):
            return False, "pads stand between a prompt and its response"
    batch = s.trainer.collate(s.probes)
    names, fill = ("input_ids", "attention_mask", "response_mask"), {"input_ids": s.models.pad_id}
    wide = {name: torch.nn.functional.pad(batch[name], (5, 3), value=fill.get(name, 0)) for name in names}
    alone = torch.cat([s.response_logprobs([probe]) for probe in s.probes])
    results = {
        "in a batch": agree(s.response_logprobs(s.probes), alone, s.limits[0]),
        "with more pads": agree(s.response_logprobs(s.probes, wide), alone, s.limits[0]),
    }
    pieces = [s.experience(**s.trainer.per_pass(n)) for n in (1, ALL_ROWS)]  # scripts trim the padding of these
    pieces = [at_responses(x["old_logprobs"].detach(), x, s.probes) for x in pieces if "old_logprobs" in x]
    if pieces:
        results["in micro-batches"] = agree(*pieces, s.limits[0])
    bad = [f"{name} log-probs are {text}" for name, (passed, text) in results.items() if not passed]
    differing = greedy_differences(s)
    if differing:
        bad.append(f"{differing} of {PROBES} greedy completions change in a batch")
    text = f"log-probs {results['with more pads'][1]}; greedy completions the same alone and in a batch"
    return not bad, "; ".join(bad) or text


def greedy_differences(s: Subject) -> int:
    """How many greedy completions differ between a batch and alone, near-ties aside."""
    prompts, count = [probe["prompt_ids"] for probe in s.probes], 0
    for prompt, together in zip(prompts, s.trainer.greedy(prompts), strict=True):
        alone = s.trainer.greedy([prompt])[0]
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
    batch = s.settled()
    width = batch["input_ids"].shape[1]
    one, two, whole = (s.trainer.gradients(batch, PROBES, **s.trainer.per_pass(n, width)) for n in (1, 2, ALL_ROWS))
    worst = largest(relative(parts, whole) for parts in (one, two))
    return worst <= s.limits[1], f"1, 2 and {len(s.probes)} rows per micro-batch: gradients {worst:.1e} apart"


@check("let every piece of the chunked log-probs see its own rows and targets, and the gradient of all of them")
def chunking(s: Subject):
    """Log-probs, entropies and gradients in small pieces are those in one piece."""
    all_at_once = s.trainer.chunked(ALL_ROWS)
    if not all_at_once:
        return None, "the output layer sees all tokens of a pass at once"
    batch, probes = s.settled(), s.trainer.collate(s.probes)
    whole, gradients = s.trainer.logprobs(probes, **all_at_once), s.trainer.gradients(batch, PROBES, **all_at_once)
    passed, gaps, text = True, [], ""
    for size in (1, 5):
        settings = s.trainer.chunked(size)
        for a, b in zip(s.trainer.logprobs(probes, **settings), whole, strict=True):
            close, text = agree(at_responses(a, batch, s.probes), at_responses(b, batch, s.probes), s.limits[0])
            passed = passed and close
        gaps.append(relative(s.trainer.gradients(batch, PROBES, **settings), gradients))
    return passed and largest(gaps) <= s.limits[1], f"entropy {text}; gradients {largest(gaps):.1e} apart"


@check(
    "compute the experience under torch.no_grad() and give the policy loss advantages that are constants; a loss that "
    "is meant to be another than those of the papers fails here too"
)
def advantages_detached(s: Subject):
    """Nothing of the experience carries a gradient, and the policy gradient is that of the definition."""
    graphs = {name for name, x in s.experience().items() if x.requires_grad}
    batch = s.settled()
    with watching(s.trainer) as calls:
        gradients = s.trainer.gradients(batch, PROBES, **s.trainer.without_critic())[:1]
    for _, old, advantages in calls:
        given = {"old_logprobs given to the loss": old, "advantages given to the loss": advantages}
        graphs |= {name for name, x in given.items() if x.requires_grad}
    if graphs:
        return False, f"gradients flow through {', '.join(sorted(graphs))}"
    definitions, reason = s.trainer.definitions()
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
def prompt_gradient(s: Subject):
    """Neither prompt nor pad tokens enter the loss."""
    batch = s.settled()
    samples, laid_out = s.trainer.laid_out(s.probes)
    right = own_mask(laid_out, samples)
    wrong, count = int((laid_out["response_mask"] != right).sum()), right.numel()
    mask, real = own_mask(batch, s.probes), batch["attention_mask"].bool()
    spoilt = {name: x + 3.0 * (1 - mask) if per_token(x, mask) else x for name, x in batch.items()}
    spoilt["input_ids"] = batch["input_ids"].where(real, batch["input_ids"].new_tensor(s.probes[0]["prompt_ids"][-1]))
    worst = relative(s.trainer.gradients(spoilt, PROBES), s.trainer.gradients(batch, PROBES))
    text = f"response_mask wrong at {wrong} of {count} tokens; "
    return not wrong and worst <= s.limits[1], text + f"gradients {worst:.1e} apart with spoilt prompts and pads"


def per_token(x, mask) -> bool:
    """Whether x holds a number for each token."""
    return x.is_floating_point() and x.shape == mask.shape
