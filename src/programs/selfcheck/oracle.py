"""The same figures, computed independently."""

from programs.selfcheck.trainer import (
    Definition,
    Trainer,
    columns_after_prompts,
    response_columns,
    sampled_places,
    take_gradients,
)


def own_autocast(s: Trainer):
    """The mixed precision of the trainer."""
    import torch

    return torch.autocast(s.device.type, dtype=torch.bfloat16, enabled=s.precision == "bf16")


def own_ids(s: Trainer, sample: dict):
    """Ids [1, T] of one sequence alone, without padding."""
    import torch

    return torch.tensor([sample["prompt_ids"] + sample["response_ids"]], device=s.device)


def own_dists(s: Trainer, network, sample: dict, width: int | None = None):
    """Log-probs [n, V] over the vocabulary where a network predicts a sample's n sampled tokens."""
    import torch

    ids, n = own_ids(s, sample), len(sample["response_ids"])
    with own_autocast(s):
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]  # [T, V]
    width = width or getattr(network, "known_tokens", None)  # rows beyond the tokenizer are no tokens
    logits = logits[-n - 1 : -1, :width][sampled_places(sample)]  # entry t - 1 predicts t
    return torch.log_softmax(logits.float() / s.config.temperature, dim=-1)


def own_forward(s: Trainer, sample: dict):
    """(log-probs, entropies), both [n], of a sample's n sampled tokens."""
    dist, n = own_dists(s, s.models.policy, sample), len(sample["response_ids"])
    targets = own_ids(s, sample)[0, -n:][sampled_places(sample)]
    return dist.gather(-1, targets[:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)


def own_logprobs(s: Trainer, samples: list[dict] | None = None):
    """Log-probs of all sampled tokens of the samples (the probes, unless given), [tokens]."""
    import torch

    with torch.no_grad():
        return torch.cat([own_forward(s, sample)[0] for sample in (samples or s.probes)])


def own_values(s: Trainer, sample: dict):
    """Values [n] of the text before each of the n tokens after a prompt; None without a critic."""
    n = len(sample["response_ids"])
    with own_autocast(s):
        values = s.values_after(own_ids(s, sample))
    return None if values is None else values[-n - 1 : -1]


def own_policy_gradients(s: Trainer, batch: dict, definition: Definition) -> list:
    """Gradients of the policy loss by its definition, with the batch's advantages as constants."""
    at = response_columns(batch, s.probes)
    for i, sample in enumerate(s.probes):
        logprobs, entropy = own_forward(s, sample)
        ratio = (logprobs - logprobs.detach()).exp()
        loss = own_divergence(s, sample, definition) - definition.entropy_coef * entropy.sum()
        if "advantages" in batch:
            loss = loss - (batch["advantages"][i, at[i]].detach() * ratio).sum()
        (loss / own_divisor(definition, len(at[i]), at)).backward()
    return take_gradients(s.models)[:1]


def own_divergence(s: Trainer, sample: dict, definition: Definition):
    """Sum over the sampled tokens of kl_coef * divergence from the teacher, where there is one."""
    import torch

    if definition.teacher is None:
        return 0.0
    student = own_dists(s, s.models.policy, sample, definition.width)
    with torch.no_grad():
        teacher = own_dists(s, definition.teacher, sample, definition.width)
    width, beta = min(student.shape[-1], teacher.shape[-1]), definition.beta  # one of them may have rows of padding
    student, teacher = (torch.log_softmax(x[:, :width], dim=-1) for x in (student, teacher))
    mixture = (1 - beta) * student.exp() + beta * teacher.exp()
    forward = (teacher.exp() * (teacher - (student if beta == 0 else mixture.log()))).sum()
    reverse = (student.exp() * (student - (teacher if beta == 1 else mixture.log()))).sum()
    parts = {0.0: forward, 1.0: reverse}.get(beta, beta * forward + (1 - beta) * reverse)
    return definition.kl_coef * parts


def own_divisor(definition: Definition, length: int, sequences: list) -> float:
    """What the sum of a sequence's token losses is divided by, for its length and all sequences of the minibatch."""
    if definition.aggregation == "token_mean":
        return sum(map(len, sequences))
    per_sequence = {"seq_mean_token_mean": length, "seq_mean_token_sum": 1}
    return len(sequences) * per_sequence.get(definition.aggregation, definition.constant)


def own_value_gradients(s: Trainer, batch: dict, value_clip: float, vf_coef: float) -> list:
    """Gradients of vf_coef * mean of 1/2 max((V - R)^2, (V_old + clip(V - V_old) - R)^2), of the critic alone.

    V is of the plain critic; mask, old values and returns are the batch's.
    """
    import torch

    total = batch["response_mask"].sum()
    for i, columns in enumerate(columns_after_prompts(batch, s.probes)):
        old, returns, mask = (batch[name][i, columns] for name in ("values", "returns", "response_mask"))
        values = own_values(s, s.probes[i])
        loss = (values - returns) ** 2
        if value_clip:
            near = torch.minimum(torch.maximum(values, old - value_clip), old + value_clip)
            loss = torch.maximum(loss, (near - returns) ** 2)
        (vf_coef * 0.5 * (loss * mask).sum() / total).backward()
    return take_gradients(s.models)[1:]


def own_gae(rewards, values, mask, gamma: float, gae_lambda: float):
    """Advantages [B, T] by the sum A_t = sum_l (gamma lambda)^l delta_{t + l} over a row's sampled tokens alone."""
    advantages = values * 0
    for i, columns in enumerate(row.nonzero().flatten().tolist() for row in mask):
        r, v = ([x[i, c].item() for c in columns] for x in (rewards, values))
        v.append(0.0)  # nothing comes after the last token
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
        for t, column in enumerate(columns):
            advantages[i, column] = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(r) - t))
    return advantages


def own_mask(batch: dict, samples: list[dict]):
    """What `response_mask` [B, T] has to be."""
    import torch

    mask = torch.zeros_like(batch["attention_mask"])
    for i, columns in enumerate(response_columns(batch, samples)):
        mask[i, columns] = 1
    return mask
