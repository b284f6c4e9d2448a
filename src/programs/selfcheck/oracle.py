"""The trainer's figures, computed independently from the plain networks and published formulas."""

from parts.foundation.processes import torch
from parts.learning.oracles import CISPO_TRL, policy_token, value_token
from programs.selfcheck.trainer import Definition, Trainer, responses, sampled_places, take_gradients


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


# {what is clipped: loss}: a token's ratio, a sequence's (GSPO-token, arXiv 2507.18071, eq. 13), or a constant weight
CLIPS = {"token": "ppo", "sequence": "gspo of each token", "weight": "cispo", "weight_5": CISPO_TRL, "": "reinforce"}


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
    return take_gradients(s.models)[:1]


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
    return take_gradients(s.models)[1:]
