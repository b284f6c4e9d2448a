"""One step of training."""

import math

from parts.foundation.processes import gather_rows, sum_over_processes
from parts.learning.aggregation import token_weights
from parts.learning.gradient_sums import summing_gradients
from parts.learning.kl import kl_estimate
from parts.learning.losses import policy_loss
from parts.learning.optimizer import (
    apply_gradients,
    count_bad_update,
    default_learning_rate,
    set_learning_rates,
    switch_checkpointing,
)
from parts.networks.batches import micro_batches, trimmed
from parts.networks.forward import all_logits, known_logits, lost_mass, predicting_states, shared_length
from parts.networks.models import Models, autocast
from programs.on_policy_distillation.experience import by_teacher, pieces_of
from programs.on_policy_distillation.objective import COMPARED, LOOKED_AT, divergence, gap_figures, overlap, with_rest
from programs.on_policy_distillation.settings import OBJECTIVES, Config
from programs.on_policy_distillation.teachers import widened


def student_learning_rate(config: Config, parameters: int) -> float:
    """The learning rate, by model size where the setting is 0."""
    return config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))


def make_optimizer(config: Config, models: Models):
    """AdamW over the student's trained weights."""
    import torch

    params = [p for p in models.policy.parameters() if p.requires_grad]
    lr = student_learning_rate(config, sum(p.numel() for p in models.policy.parameters()))
    group = {"params": params, "lr": lr, "initial_lr": lr}
    betas = (0.9, config.adam_beta2)
    return torch.optim.AdamW([group], betas=betas, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)


MEANS = (
    "policy/loss",
    "kl/teacher",
    "policy/entropy",
    "policy/teacher_entropy",
    "policy/overlap",
    "policy/clip_frac",
    "kl/approx",
    "policy/lost_mass",
)


def accumulate_gradients(config: Config, models, batch: dict, rows, scaler):
    """Add the gradients of the loss of one minibatch, micro-batch by micro-batch, and sum them over all processes.

    Every weight of a token is that of the whole minibatch, so neither micro-batches nor processes change the gradient.
    Below the output layer the backward pass runs once a micro-batch, through it once a piece of `logits_chunk`.

    Returns:
        (sums, ratio_max): sums over the minibatch of the figures of MEANS; all but the loss are means over the tokens
        that the student sampled, NaN where the teacher does not give them.
    """
    import torch

    index = torch.as_tensor(rows, device=models.device)
    tokens = batch["loss_mask"][index].sum().clamp(min=1)  # over all processes
    own = (batch["loss_mask"][index] * ~batch["offpolicy"][index]).sum().clamp(min=1)
    scale = scaler.scale(torch.ones((), device=models.device))
    sums, ratio_max = torch.zeros(len(MEANS), device=models.device), torch.zeros((), device=models.device)
    pieces = [
        (teacher, piece_rows)
        for teacher, mine in by_teacher(models, batch, rows)
        for piece_rows in micro_batches(batch, mine, config.micro_batch_tokens, shared_length(models.networks))
    ]
    for teacher, piece_rows in summing_gradients([models.policy], pieces):
        piece, _ = trimmed(batch, piece_rows)
        mask = piece["loss_mask"].bool()
        flat = {name: x[mask] for name, x in piece.items()}  # [N] or [N, k] each
        flat["weights"] = token_weights(piece["loss_mask"], config, tokens, len(rows))[mask]
        with autocast(config, models.device):
            states = predicting_states(models.policy, piece)[mask]  # [N, H]
        leaf = states.detach().requires_grad_()
        read = "teacher_logprobs" not in piece and not is_nll_only(config)
        teacher_states = teacher.states(piece)[mask] if read else None
        for part in pieces_of(config, models.policy, len(leaf)):
            known = {name: x[part] for name, x in flat.items()}
            dist = teacher.logprobs(teacher_states[part]) if read else None  # [n, V]
            loss, seen, ratio = token_gradients(config, models.policy, leaf[part], known, dist, scale)
            sums[0] += loss
            sums[1:] += torch.where(known["offpolicy"][:, None], 0.0, seen).sum(0) / own
            ratio_max = torch.maximum(ratio_max, ratio)
        states.backward(leaf.grad)
    return sums, ratio_max


def token_gradients(config: Config, policy, hidden, known: dict, dist, scale):
    """Run the output layer on n states, and the backward pass down to them, times `scale`.

    Args:
        hidden: [n, H], slices of a leaf.
        known: of the n tokens, what the batch has; `weights` are those of the loss.
        dist: the teacher's log-probs [n, W], None where the batch has what is needed of the teacher.

    Returns:
        (weighted loss, figures [n, 7] of MEANS after the loss, largest ratio).
    """
    import torch

    logits = widened(all_logits(policy, hidden)) / config.temperature  # [n, rows]
    lost = lost_mass(policy, logits.detach())
    logits = known_logits(policy, logits)  # [n, V]
    shared = logits if dist is None else logits[:, : dist.shape[1]]
    student, weights = torch.log_softmax(shared.detach(), -1), known["weights"]
    by_nll = known["offpolicy"] * (config.offpolicy_loss == "nll")
    loss, heads, gradients = weights.new_zeros(()), [], []
    if config.objective != "policy_gradient" and config.kl_coef and not by_nll.all():
        head, value, gradient = divergence_head(config, shared, student, known, dist)
        share = config.kl_coef * weights * ~by_nll
        loss, heads, gradients = (value * share).sum(), [head], [gradient.mul_((share * scale)[:, None])]
    if config.entropy_coef:  # d H / d logits = -p (log p + H)
        p, log_p = student.exp(), student
        entropy = -(p * log_p).sum(-1, keepdim=True)
        heads.append(shared)
        gradients.append(p * (log_p + entropy) * (config.entropy_coef * weights * scale)[:, None])
    clipped = kl = ratio = weights * 0
    if "advantages" in known or "old_logprobs" in known or by_nll.any():
        logprobs = logits.gather(-1, known["input_ids"][:, None]).squeeze(-1) - logits.logsumexp(-1)
        old = torch.where(known["offpolicy"], logprobs.detach(), known.get("old_logprobs", logprobs.detach()))
        advantages = known.get("advantages", weights * 0)
        bounds = (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
        per_token, ratio, clipped = policy_loss(logprobs, old, advantages, *bounds)
        per_token = torch.where(by_nll, -logprobs, per_token * known.get("corrections", 1.0))
        ratio = ratio.detach()
        kl = ratio - 1 - ratio.log()  # k3 of KL(old || new) on samples of the old policy
        part = (per_token * weights).sum()
        loss = loss + part.detach()
        heads.append(part)
        gradients.append(scale)
    torch.autograd.backward(heads, gradients)
    seen = teacher_view(config, student, known, dist)
    return loss, torch.cat([seen, torch.stack([clipped, kl, lost], -1)], -1), ratio.max()


def divergence_head(config: Config, logits, student, known: dict, dist):
    """What the divergence is taken of, its values [n], and its gradient with respect to that.

    Over the whole vocabulary these are the logits; with `kl_top_k` they are the log-probs of the chosen tokens and of
    the rest, whose softmax is themselves.
    """
    beta, k = OBJECTIVES[config.objective], config.kl_top_k
    beta = config.beta if beta is None else beta
    if dist is not None and not 0 < k < dist.shape[1]:
        return logits, *divergence(student, dist, beta)
    if dist is None:
        ids, teacher = known["teacher_ids"], known["teacher_top"]
    else:
        ids = (dist if config.top_k_of == "teacher" else student).topk(k).indices
        teacher = dist.gather(-1, ids)
    head = with_rest(logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True))  # [n, k + 1]
    return head, *divergence(head.detach(), with_rest(teacher), beta)


def teacher_view(config: Config, student, known: dict, dist):
    """Per token: reverse KL, entropy of student and of teacher, overlap, [n, 4]; NaN where the teacher does not tell.

    Without the teacher's distribution, the reverse KL is estimated on the sampled token (k1).
    """
    import torch

    if dist is not None:
        return gap_figures(student, dist, LOOKED_AT)
    nothing = student[:, 0] * math.nan
    if "teacher_logprobs" not in known:
        return torch.stack([nothing, -(student.exp() * student).sum(-1), nothing, nothing], -1)
    logprobs = student.gather(-1, known["input_ids"][:, None]).squeeze(-1)
    kl = kl_estimate(logprobs, known["teacher_logprobs"], "k1")
    shared = nothing
    if "teacher_ids" in known:
        ids = known["teacher_ids"][:, :COMPARED]
        shared = overlap(ids, student.topk(ids.shape[1]).indices)
    entropy = known.get("teacher_entropy", nothing)
    return torch.stack([kl, -(student.exp() * student).sum(-1), entropy, shared], -1)


def is_nll_only(config: Config) -> bool:
    """Whether the teacher has nothing to say: all completions are the data's, and train by log-likelihood."""
    return config.offpolicy_frac == 1 and config.offpolicy_loss == "nll"


def update(config: Config, models, optimizer, scaler, batch: dict, step: int, health: dict) -> dict:
    """Run the epochs and minibatches of one step and return its metrics."""
    import numpy as np
    import torch

    switch_checkpointing(models, config.gradient_checkpointing)
    set_learning_rates(config, optimizer, step)
    applied, ratio_max, skipped = [], 0.0, 0
    for epoch in range(config.ppo_epochs):
        order = np.random.default_rng([config.seed, 2, step, epoch]).permutation(config.batch_size)
        for rows in order.reshape(config.minibatches, -1):
            sums, peak = accumulate_gradients(config, models, batch, rows, scaler)
            sums, norms = sum_over_processes(sums), apply_gradients(config, optimizer, scaler)
            finite = bool(torch.isfinite(norms).all())
            count_bad_update(config, step, health, finite)
            skipped += not finite
            if finite:
                applied.append(torch.cat([sums.cpu(), norms]))
                ratio_max = max(ratio_max, peak.item())
    switch_checkpointing(models, False)
    ratio_max = max(gather_rows([ratio_max]))
    means = torch.stack(applied).mean(0).tolist() if applied else []
    metrics = dict(zip((*MEANS, "optim/grad_norm"), means, strict=False))
    if applied and "old_logprobs" in batch:
        metrics["policy/ratio_max"] = ratio_max
    elif "advantages" not in batch:
        metrics = {name: value for name, value in metrics.items() if name not in ("policy/clip_frac", "kl/approx")}
    metrics = {name: value for name, value in metrics.items() if not math.isnan(value)}
    metrics |= {"optim/updates": len(applied), "optim/skipped_updates": skipped}
    return metrics | {"optim/lr": optimizer.param_groups[0]["lr"]}
