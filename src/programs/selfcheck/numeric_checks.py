"""Checks of critic, advantages, log-probs, padding and gradients against figures computed from plain networks."""

import dataclasses
import itertools
import math
import statistics

from parts.foundation.processes import torch
from parts.learning.oracles import CISPO_TRL, own_gae, policy_token, value_token
from programs.selfcheck.trainer import Definition, Trainer, agree, apart, check, largest, responses, sampled_places

# {what is clipped: loss}: a token's ratio, a sequence's (GSPO-token, arXiv 2507.18071, eq. 13), or a constant weight
CLIPS = {"token": "ppo", "sequence": "gspo of each token", "weight": "cispo", "weight_5": CISPO_TRL, "": "reinforce"}
GAMMA, LAMBDA, KL = 0.9, 0.8, 0.3
BOUNDS, MOVES = (0.05, 0.3), (-0.5, -0.1, 0.1, 0.5, 2.0)  # clip_eps_low and _high; log-ratios, 0.1 within one bound
ALL_ROWS = 2**30  # rows per pass that hold any batch
ROUNDING = 1e-4  # nats; log-probs over 150,000 tokens in fp32 differ by 3e-5 between two passes
# response masks with holes in two rows and pads on either side
RESPONSES = (
    (0, 0, 1, 1, 1, 1, 1, 1, 1),
    (0, 0, 0, 1, 0, 0, 1, 1, 0),
    (0, 0, 1, 1, 1, 0, 0, 0, 0),
    (0, 0, 1, 0, 1, 1, 0, 1, 1),
)


def own_ids(s: Trainer, sample: dict):
    """Ids [1, T] of one sequence, without padding."""
    return torch.tensor([sample["prompt_ids"] + sample["response_ids"]], device=s.device)


def own_autocast(s: Trainer):
    return torch.autocast(s.device.type, dtype=torch.bfloat16, enabled=s.precision == "bf16")


def own_dists(s: Trainer, network, sample: dict, width: int | None = None):
    """Log-probs [n, V] over the vocabulary by which a network predicts a sample's n sampled tokens."""
    ids, places = own_ids(s, sample), torch.tensor(sampled_places(sample)).bool()
    with own_autocast(s):
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]  # [T, V]
    width = width or getattr(network, "known_tokens", None)  # leave out logits of padded rows
    logits = logits[-len(places) - 1 : -1, :width][places]  # entry t - 1 predicts t
    return torch.log_softmax(logits.float() / s.config.temperature, dim=-1)


def own_forward(s: Trainer, sample: dict):
    """(Log-probs, entropies), both [n], of a sample's n sampled tokens."""
    dist, places = own_dists(s, s.models.policy, sample), sampled_places(sample)
    targets = own_ids(s, sample)[0, -len(places) :][dist.new_tensor(places).bool()]
    return dist.gather(-1, targets[:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)


def own_logprobs(s: Trainer, samples: list[dict] | None = None):
    """Log-probs of all sampled tokens of the samples (the probes, unless given), [tokens]."""
    with torch.no_grad():
        return torch.cat([own_forward(s, sample)[0] for sample in (samples or s.probes)])


def own_values(s: Trainer, sample: dict):
    """Values [n] of the text before each of the n tokens after a prompt; None without a critic."""
    with own_autocast(s):
        values = s.values_after(own_ids(s, sample))
    return None if values is None else values[-len(sample["response_ids"]) - 1 : -1]


def own_surrogate(s: Trainer, logprobs, old_logprobs, advantages, clip: str):
    """The policy loss of a completion, summed over its tokens, with one of CLIPS."""
    c = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}
    c = {name: x[None] for name, x in c.items()} | {"dual_clip": getattr(s.config, "dual_clip", 0.0)}
    c |= {"low": s.config.clip_eps_low, "high": 5.0 if clip == "weight_5" else s.config.clip_eps_high}
    return sum(policy_token(CLIPS[clip], c, 0, t, range(len(logprobs))) for t in range(len(logprobs)))


def own_policy_gradients(s: Trainer, batch: dict, definition: Definition, clip: str) -> list:
    """Gradients of the policy loss by its definition, with the batch's advantages as constants.

    `clip`: one of CLIPS; "" takes the current log-probs as the old ones.
    """
    mask = responses(batch, s.probes)
    for i, sample in enumerate(s.probes):
        logprobs, entropy = own_forward(s, sample)
        loss = own_divergence(s, sample, definition) - definition.entropy_coef * entropy.sum()
        if "advantages" in batch:
            advantages = batch["advantages"][i, mask[i]].detach()
            old = batch["old_logprobs"][i, mask[i]].detach() if clip else logprobs.detach()
            loss = loss + own_surrogate(s, logprobs, old, advantages, clip)
        divisors = {"token_mean": mask.sum(), "seq_mean_token_mean": len(mask) * mask[i].sum()}
        divisors["seq_mean_token_sum"] = len(mask)
        (loss / divisors.get(definition.aggregation, len(mask) * definition.constant)).backward()
    return s.take_gradients()[:1]


def own_divergence(s: Trainer, sample: dict, definition: Definition):
    """Sum over the sampled tokens of kl_coef * divergence from the teacher; 0 without one."""
    if definition.teacher is None:
        return 0.0
    student = own_dists(s, s.models.policy, sample, definition.width)
    with torch.no_grad():
        teacher = own_dists(s, definition.teacher, sample, definition.width)
    width, beta = min(student.shape[-1], teacher.shape[-1]), definition.beta  # either may have padded rows
    student, teacher = (torch.log_softmax(x[:, :width], dim=-1) for x in (student, teacher))
    mixture = (1 - beta) * student.exp() + beta * teacher.exp()
    forward = (teacher.exp() * (teacher - (student if beta == 0 else mixture.log()))).sum()
    reverse = (student.exp() * (student - (teacher if beta == 1 else mixture.log()))).sum()
    parts = {0.0: forward, 1.0: reverse}.get(beta, beta * forward + (1 - beta) * reverse)
    return definition.kl_coef * parts


def own_value_gradients(s: Trainer, batch: dict, value_clip: float, vf_coef: float) -> list:
    """Gradients of the critic for vf_coef * mean of 1/2 max((V - R)^2, (V_old + clip(V - V_old) - R)^2).

    V comes from the plain critic; mask, old values and returns from the batch.
    """
    way, count = "clipped half squared error" if value_clip else "half squared error", batch["response_mask"].sum()
    for i, columns in enumerate(responses(batch, s.probes, whole=True)):
        old, returns, mask = (batch[name][i, columns][None] for name in ("values", "returns", "response_mask"))
        c = {"values": own_values(s, s.probes[i])[None], "old_values": old, "returns": returns}
        loss = sum(value_token(way, c | {"value_clip": value_clip}, 0, t) for t in mask[0].nonzero().flatten())
        (vf_coef * loss / count).backward()
    return s.take_gradients()[1:]


@check(moved=False)
def gae_formula(s: Trainer):
    """The trainer's gae gives the paper's sum over ragged rows with pads and holes.

    Try: A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, where t + 1 is the next sampled
        token: carry V and A past tokens outside the mask, begin with 0 after the last, and give advantages + values as
        returns.
    """
    if not hasattr(s.module, "gae"):
        return None, "no critic: no gae"
    mask = torch.tensor(RESPONSES)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(mask.shape, generator=generator) * mask for _ in range(2))
    advantages, returns = s.module.gae(rewards, values, mask, GAMMA, LAMBDA)
    expected, at = own_gae(rewards, values, mask, GAMMA, LAMBDA), mask.bool()
    gaps = [(a - b)[at].abs().max().item() for a, b in ((advantages, expected), (returns, expected + values))]
    text = f"advantages {gaps[0]:.1e} and returns {gaps[1]:.1e} from the formula, gamma {GAMMA}, lambda {LAMBDA}"
    return largest(gaps) <= 1e-4, f"{text}, {int(at.sum())} tokens, {len(mask)} rows, holes in two"


@check()
def experience_formula(s: Trainer):
    """A critic's returns and advantages are those of the scores, the KL to the reference, and the batch's values.

    Try: rewards = -kl_coef * (old_logprobs - ref_logprobs) on sampled tokens, plus the score at the last of them;
        returns of gae's plain advantages; whiten these over the sampled tokens alone.
    """
    names = {"ref_logprobs", "values", "advantages", "returns"}
    settings = all(hasattr(s.config, name) for name in ("gamma", "gae_lambda", "kl_coef"))
    if hasattr(s.config, "advantage") or not hasattr(s.module, "gae") or not settings:
        return None, "no critic, or an estimator with settings of its own"
    batch = s.experience(models=s.with_reference, gamma=GAMMA, gae_lambda=LAMBDA, kl_coef=KL)
    if not names <= {*batch}:
        return None, f"no {', '.join(sorted(names - {*batch}))} in the batch"
    mask, batch = responses(batch, s.probes), {name: batch[name].detach().double() for name in names}
    rewards = batch["values"] * 0
    rewards[mask] = -KL * (s.response_logprobs(s.probes).double() - batch["ref_logprobs"][mask])
    for row, places, probe in zip(rewards, mask, s.probes, strict=True):
        row[places.nonzero()[-1]] += probe["score"]
    gaps, values = [], batch["values"]
    for gae_lambda in (LAMBDA, 1.0):  # at lambda 1: Monte Carlo
        plain = own_gae(rewards, values, mask, GAMMA, gae_lambda)[mask]
        ways = (plain, *((plain - plain.mean()) / plain.std(correction=i) for i in (0, 1)))
        got = ((batch["returns"] - values)[mask] - plain, *[batch["advantages"][mask] - x for x in ways])
        first, *others = (largest([x.abs().max().item()]) for x in got)
        gaps.append((max(first, min(others)), first, min(others)))
    gap, *parts = min(gaps)
    return gap <= 1e-3, "returns {:.1e} and advantages {:.1e} from the formula, kl_coef {}".format(*parts, KL)


@check()
def value_loss_gradient(s: Trainer):
    """The critic's gradient is that of the definition, even where the clip acts and in a response with a hole.

    Try: train the critic by vf_coef * the mean over all tokens of the mask of 1/2 max((V - R)^2, (V_old + clip(V -
        V_old, -value_clip, value_clip) - R)^2), V of the text before each token.
    """
    with torch.no_grad():
        if own_values(s, s.probes[0]) is None:
            return None, "no critic"
    coefficient, clip = s.config.vf_coef or 0.5, getattr(s.config, "value_clip", 0.0)
    batch = with_values(s, clip or 0.2)
    got = s.gradients(batch, vf_coef=coefficient)[1:]
    gap, ratio = apart(got, own_value_gradients(s, batch, clip, coefficient))
    text = f"trainer's and defined gradient of the critic {gap:.1e} apart, {ratio:.4g} times as long"
    return gap <= s.limits[1], text


def with_values(s: Trainer, clip: float) -> dict:
    """The trainer's batch with a hole in a response, and old values and returns on both sides of the clip."""
    batch = {name: x.clone() for name, x in s.settled().items()}
    places = responses(batch, s.probes, whole=True)
    hole = places[0].nonzero()[1].item()
    for name in {"response_mask", "loss_mask"} & {*batch}:
        batch[name][0, hole] = 0
    with torch.no_grad():
        values = torch.cat([own_values(s, probe) for probe in s.probes])
    moves, errors = (-3.0, -0.5, 0.5, 3.0), (1.5, -1.5, 0.3, -0.3, 2.5)  # times the clip; the max is never near a tie
    for name, steps, sign in (("values", moves, -1), ("returns", errors, 1)):
        repeated = torch.tensor(steps, device=values.device).repeat(len(values))[: len(values)]
        batch[name][places] = (values + sign * clip * repeated).to(batch[name])
    return batch


@check(moved=False)
def group_advantages(s: Trainer):
    """A group's advantages are its scores minus their mean, scaled as in some paper, and 0 if all scores are equal.

    Try: subtract from each score the mean of its own group, whose completions are neighbours in the batch; divide by
        nothing, or by the standard deviation or the mean of the group.
    """
    groups, reason = s.group_of(s.probes)
    if not groups:
        return None, reason
    equal = [sample | {"score": 1.0, "rewards": {"probe": 1.0}} for sample in s.probes]
    usual, flat = (
        [row[places][0].item() for row, places in zip(batch["advantages"], responses(batch, s.probes), strict=True)]
        for batch in (s.experience(), s.experience(equal))
    )
    scores, factors = [sample["score"] for sample in s.probes], []  # by which centred scores are multiplied
    for group in {*groups}:
        members = [i for i, g in enumerate(groups) if g == group]
        deviation, mean = (f([scores[i] for i in members]) for f in (statistics.pstdev, statistics.fmean))
        scales = [usual[i] / (scores[i] - mean) for i in members]
        factors += [(x, x * deviation, x * mean) for x in scales]
    alike = min(largest(x) / min(x) - 1 if min(x) > 0 else math.inf for x in zip(*factors, strict=True))
    text, none = ", ".join(f"{x:.3g}" for x, *_ in factors), largest(map(abs, flat))
    return alike <= 1e-2 and none <= 1e-3, f"centred scores times {text}; of equal scores {none:.1e}"


@check()
def reference_is_initial(s: Trainer):
    """The reference gives the untouched policy's log-probs, while the policy has moved.

    Try: load the reference from --model and freeze it; with LoRA use the base with its adapters off.
    """
    if s.models.reference is None:
        return None, "no reference: kl_coef is 0, or there is none"
    batch = s.experience()
    passed, text = agree(batch["ref_logprobs"][responses(batch, s.probes)], s.initial, s.limits[0])
    return passed, f"reference and untouched policy {text}; the policy moved by {s.moved:.2g}"


@check()
def first_update_ratio(s: Trainer):
    """At the first optimizer step of an update the old policy is the current one, not the reference.

    Try: compute old_logprobs with the policy itself, before the first optimizer step, dropout off, same temperature.
    """
    with_reference, peaks = s.with_reference, []
    for models in [with_reference] if s.models.reference is not None else [with_reference, s.models]:
        batch = s.experience(s.probes, models)
        if "old_logprobs" not in batch:
            return None, "the divergence from a teacher has no old policy"
        old = batch["old_logprobs"][responses(batch, s.probes)]
        peaks.append((s.response_logprobs(s.probes) - old).abs().max().item())
        inputs = s.first_loss({name: x.detach() for name, x in batch.items()}, models)
        if inputs == ():
            return False, "update() never called the policy loss"
        if inputs:
            peaks.append((inputs[0] - inputs[1]).abs().max().item())
    peak = largest(peaks)
    text = f"largest |log ratio| {peak:.1e}; policy and reference are {s.moved:.2g} nats apart"
    return peak <= max(s.limits[0] / 10, ROUNDING), text


@check()
def sampler_agreement(s: Trainer):
    """The sampler's log-probs are the trainer's, and no token follows an end token.

    Try: divide the sampler's logits by the same temperature, without top-p or top-k, and copy weights before sampling;
        end a completion at each of eos_ids.
    """
    samples, batch = s.generated([row["prompt_ids"] for row in s.rows])
    mask = responses(batch, samples)
    ours = s.response_logprobs(samples, batch | {"response_mask": mask.long()})
    passed, text = agree(batch["rollout_logprobs"][mask], ours, s.limits[0])
    late = sum(bool({*sample["response_ids"][:-1]} & {*s.models.eos_ids}) for sample in samples)
    text = f"sampler and trainer {text}, temperature {s.config.temperature:g}, {len(ours)} tokens"
    return passed and not late, text + f"; {late} completions go on after an end token" * bool(late)


@check()
def logprob_shift(s: Trainer):
    """The trainer's log-prob of token t is that of the plain model.

    Try: take the log-prob of token t from the logits at t - 1, divided by the temperature.
    """
    expected = own_logprobs(s) if s.moved else s.initial
    passed, text = agree(s.response_logprobs(s.probes), expected, s.limits[0])
    return passed, f"trainer and model {text}, {len(expected)} tokens"


@check()
def padding(s: Trainer):
    """Neither the side nor the amount of padding changes log-probs.

    Try: pad prompts on the left, mask the pads, and count positions over real tokens only.
    """
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
    pieces = [x["old_logprobs"].detach()[responses(x, s.probes)] for x in pieces if "old_logprobs" in x]
    if pieces:
        results["in micro-batches"] = agree(*pieces, s.limits[0])
    bad = [f"{name} log-probs are {text}" for name, (passed, text) in results.items() if not passed]
    return not bad, "; ".join(bad) or f"log-probs {results['with more pads'][1]}"


def prompts_of(s: Trainer) -> list[list[int]]:
    return [probe["prompt_ids"] for probe in s.probes]


@check()
def accumulation(s: Trainer):
    """Gradients depend neither on the micro-batches nor on the pieces in which the output layer sees tokens.

    Try: divide every micro-batch by the tokens and completions of the whole minibatch, not by its own; give every piece
        of chunked log-probs its own rows and targets, and add up the gradients of all pieces.
    """
    batch = s.settled()
    gap, _ = apart(*(s.gradients(batch, **s.per_pass(rows)) for rows in (1, ALL_ROWS)))
    return gap <= s.limits[1], f"1 and {len(s.probes)} rows per micro-batch: gradients {gap:.1e} apart"


@check()
def update_steps(s: Trainer):
    """Each optimizer step of `update` gets the gradient of its own minibatch alone.

    Try: optimizer.zero_grad() after each step, and a step for every minibatch of every epoch.
    """
    if not hasattr(s.module, "update"):
        return None, "no update()"
    steps = s.steps_of_update()
    if len(steps) < 2:
        return False, f"{len(steps)} optimizer steps in two updates"
    gap = largest(apart(step, steps[0])[0] for step in steps[1:])
    return gap <= s.limits[1], f"{len(steps)} steps on one batch, weights unchanged: gradients {gap:.1e} apart"


@check()
def advantages_detached(s: Trainer):
    """The experience carries no gradient, and the policy gradient is that of the definition.

    Try: compute the experience under torch.no_grad() and give the policy loss constant advantages; a loss that
        deliberately differs from those of the papers fails here too.
    """
    graphs = {name for name, x in s.experience().items() if x.requires_grad}
    if graphs:
        return False, f"gradients flow through {', '.join(sorted(graphs))}"
    if not s.definitions()[0]:
        return None, s.definitions()[1]
    worst, ratio, definition, _ = nearest(s, s.settled(), s.definitions()[0])
    text = f"trainer's and defined policy gradient {worst:.1e} apart, {ratio:.4g} times as long"
    return worst <= s.limits[1], text + (f" ({definition.name})" if definition.name else "")


def nearest(s: Trainer, batch: dict, definitions: list, clips=("",)) -> tuple:
    """(Relative difference, ratio of norms, definition, clip) of the definition nearest to the trainer's gradient."""
    gradients = s.gradients(batch, **({"vf_coef": 0.0} if hasattr(s.config, "vf_coef") else {}))[:1]
    comparisons = []
    for clip, d in itertools.product(clips, definitions):
        comparisons.append((*apart(gradients, own_policy_gradients(s, batch, d, clip)), d, clip))
        if comparisons[-1][0] <= s.limits[1]:
            break
    return min(comparisons, key=lambda comparison: comparison[0])


@check()
def policy_clip(s: Trainer):
    """Off the old policy, the policy gradient is that of the clipped loss.

    Try: max(-A ratio, -A clip(ratio, 1 - clip_eps_low, 1 + clip_eps_high)), ratio = exp(logprobs - old_logprobs); a
        loss that deliberately differs fails here too: leave it out by --leave_out policy_clip.
    """
    definitions, reason = s.definitions()
    clips, reason = s.clips() if definitions else ([], reason)
    batch = s.settled()
    if not clips or not {"advantages", "old_logprobs"} <= {*batch}:
        return None, reason or "no advantages or old log-probs"
    worst, _, definition, _ = nearest(s, batch, definitions)
    if worst > s.limits[1]:
        return None, "without a clip the gradient is none of the definitions' either"
    usual, s.config = s.config, dataclasses.replace(s.config, clip_eps_low=BOUNDS[0], clip_eps_high=BOUNDS[1])
    try:
        worst, ratio, _, clip = nearest(s, off_policy(s, batch), [definition], clips)
    finally:
        s.config = usual
    text = f"trainer's and defined policy gradient {worst:.1e} apart, {ratio:.4g} times as long"
    return worst <= s.limits[1], f"{text}: clip of the {clip}, clip_eps {BOUNDS}, old log-probs {MOVES} away"


def off_policy(s: Trainer, batch: dict) -> dict:
    """The batch with old log-probs on all sides of the clip, and advantages of both signs."""
    places, generator = responses(batch, s.probes), torch.Generator().manual_seed(0)
    batch = batch | {name: batch[name].clone() for name in ("advantages", "old_logprobs")}
    count = int(places.sum())
    moves = torch.tensor(MOVES)[torch.randint(len(MOVES), (count,), generator=generator)]
    signs = torch.randint(2, (count,), generator=generator) * 2.0 - 1
    batch["old_logprobs"][places] -= moves.to(batch["old_logprobs"])
    batch["advantages"][places] = (signs * (0.5 + torch.rand(count, generator=generator))).to(batch["advantages"])
    return batch


@check()
def prompt_gradient(s: Trainer):
    """Neither prompt nor pad tokens enter the loss.

    Try: let response_mask be 1 on sampled tokens only, and multiply every per-token loss by it.
    """
    batch = s.settled()
    samples, laid_out = s.generated(prompts_of(s))
    wrong, count = int((laid_out["response_mask"] != responses(laid_out, samples)).sum()), laid_out["input_ids"].numel()
    mask, real = responses(batch, s.probes), batch["attention_mask"].bool()
    per_token = {name for name, x in batch.items() if x.is_floating_point() and x.shape == mask.shape}
    spoilt = {name: x + 3.0 * ~mask if name in per_token else x for name, x in batch.items()}
    spoilt["input_ids"] = batch["input_ids"].where(real, batch["input_ids"].new_tensor(s.probes[0]["prompt_ids"][-1]))
    gap, _ = apart(s.gradients(spoilt), s.gradients(batch))
    text = f"response_mask wrong at {wrong} of {count} tokens; gradients {gap:.1e} apart with spoilt prompts and pads"
    return not wrong and gap <= s.limits[1], text


NUMERIC_CHECKS = (
    gae_formula,
    experience_formula,
    value_loss_gradient,
    group_advantages,
    reference_is_initial,
    first_update_ratio,
    sampler_agreement,
    logprob_shift,
    padding,
    accumulation,
    update_steps,
    advantages_detached,
    policy_clip,
    prompt_gradient,
)
