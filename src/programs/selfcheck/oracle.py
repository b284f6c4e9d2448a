"""The same figures, computed independently."""

import contextlib

from programs.selfcheck.subject import Subject
from programs.selfcheck.trainer_side import take_gradients


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
