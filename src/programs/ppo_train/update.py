"""One step of training: epochs, minibatches, micro-batches, gradients."""

from parts.foundation.processes import gather_rows, of_first_process, sum_over_processes
from parts.learning.aggregation import token_weights
from parts.learning.gradient_sums import summing_gradients
from parts.learning.kl import kl_estimate, kl_loss
from parts.learning.losses import LOSSES, covariance_choice, likelihood_ratio, mismatch_weights, value_loss
from parts.learning.optimizer import (
    apply_gradients,
    count_bad_update,
    learning_rates,
    set_learning_rates,
    switch_checkpointing,
)
from parts.networks.batches import micro_batches, own_rows, trimmed
from parts.networks.forward import predicting_states, shared_length, token_logprobs, token_values
from parts.networks.models import Models, autocast, widest_float
from programs.ppo_train.experience import contributing
from programs.ppo_train.metrics import update_metrics
from programs.ppo_train.settings import Config


def make_optimizer(config: Config, models: Models):
    """AdamW with one group for the policy and one for the critic, if there is one."""
    import torch

    networks = [models.policy] + [models.critic] * bool(models.critic)
    groups = [[p for p in network.parameters() if p.requires_grad] for network in networks]
    size = sum(p.numel() for p in models.policy.parameters())
    rates = learning_rates(config, size)
    return torch.optim.AdamW(
        [{"params": params, "lr": lr, "initial_lr": lr} for params, lr in zip(groups, rates, strict=False)],
        betas=(0.9, config.adam_beta2),
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def accumulate_gradients(config: Config, models: Models, batch: dict, rows, scaler, train_policy: bool = True):
    """Add the gradients of the loss of one minibatch, micro-batch by micro-batch, and sum them over all processes.

    Every weight of a token is that of the whole minibatch, so neither micro-batches nor processes change the gradient.
    Rows that contribute nothing are left out of the networks; they count in the weights.

    Returns:
        (sums, ratio_max): sums over the minibatch of the loss, and means over its trained tokens of clip fraction,
        entropy, KL(old || new), value loss, w = trainer/sampler, KL(sampler || trainer), share of w that was cut, and
        KL(policy || reference) per token and per completion.
    """
    import torch

    whole = batch["loss_mask"][torch.as_tensor(rows, device=models.device)]
    tokens, sequences = whole.sum().clamp(min=1), len(rows)  # over all processes
    active = set(contributing(config, batch))
    rows = [int(row) for row in rows if int(row) in active]
    trained = batch["loss_mask"][torch.as_tensor(rows, dtype=torch.long, device=models.device)].sum().clamp(min=1)
    sums, ratio_max = torch.zeros(10, device=models.device), torch.zeros((), device=models.device)
    if config.loss in ("clip_cov", "kl_cov") and train_policy:
        batch = batch | {"chosen": chosen_tokens(config, models, batch, rows)}
    trained_networks = [models.policy] * train_policy + [models.critic] * bool(models.critic)
    pieces = micro_batches(batch, own_rows(batch, rows), config.micro_batch_tokens, shared_length(models.networks))
    for piece_rows in summing_gradients(trained_networks, pieces):
        piece, _ = trimmed(batch, piece_rows)
        mask, loss, hidden = piece["loss_mask"], 0.0, None
        with autocast(config, models.device), torch.set_grad_enabled(train_policy):  # warm-up keeps no graph
            if train_policy or not models.critic.backbone:
                hidden = predicting_states(models.policy, piece)
        if train_policy:
            loss, figures, peak = policy_share(config, models, piece, hidden, (tokens, sequences, trained))
            sums, ratio_max = sums + figures, torch.maximum(ratio_max, peak)
            if not models.critic or models.critic.backbone:
                scaler.scale(loss).backward()  # frees this graph before the critic's is built
                loss = 0.0
        if models.critic:
            with autocast(config, models.device):
                if models.critic.backbone:
                    hidden = predicting_states(models.critic.backbone, piece)
            values = token_values(models.critic, hidden)
            error = (value_loss(values, piece["values"], piece["returns"], config.value_clip) * mask).sum() / tokens
            sums[4] += error.detach()
            scaler.scale(loss + config.vf_coef * error).backward()
    return sums, ratio_max


def policy_share(config: Config, models: Models, piece: dict, hidden, whole: tuple):
    """A micro-batch's share of the policy's loss.

    Args:
        hidden: [B, T, H], the states that predict each token.
        whole: tokens, sequences, and tokens of contributing rows of the whole minibatch.

    Returns:
        (loss with its graph, the sums of `accumulate_gradients`, largest ratio).
    """
    import torch

    tokens, sequences, trained = whole
    mask, sums = piece["loss_mask"], torch.zeros(10, device=models.device)
    weights = token_weights(mask, config, tokens, sequences)
    logprobs, entropy = token_logprobs(config, models.policy, hidden, piece, bool(config.entropy_coef))
    per_token, seen = policy_terms(config, piece, logprobs)
    ratio = likelihood_ratio(logprobs.detach(), piece.get("old_logprobs", logprobs.detach()))
    kl = ratio - 1 - ratio.log()  # k3 of KL(old || new) on samples of the old policy
    sums[0] = (per_token.detach() * weights).sum()
    means = torch.stack([seen["clipped"], entropy.detach(), kl, kl * 0, *seen["mismatch"], seen["kl_ref"]])
    sums[1:9] = (means * mask).sum((1, 2)) / trained
    sums[9] = (seen["kl_ref"] * mask).sum() / sequences
    loss = ((per_token - config.entropy_coef * entropy) * weights).sum()
    return loss, sums, (ratio * mask).max()


def policy_terms(config: Config, piece: dict, logprobs):
    """Loss per token [B, T] of policy, KL and mismatch correction, and what it saw on the way.

    The correction weighs the policy loss only, not the KL, as in TRL.
    """
    old = piece.get("old_logprobs", logprobs.detach())
    mask, sampled = piece["loss_mask"], piece["rollout_logprobs"]
    known = {name: piece[name] for name in ("advantages", "chosen") if name in piece}
    loss, clipped = LOSSES[config.loss](logprobs=logprobs, old_logprobs=old, mask=mask, config=config, **known)
    how = {"auto": "tis" if config.rollout_engine == "vllm" else "none"}.get(config.mismatch, config.mismatch)
    w = likelihood_ratio(old, sampled)
    weights = mismatch_weights(old, sampled, mask, how, config.mismatch_low, config.mismatch_high)
    if how != "none":
        loss = loss * weights
    kl_ref = mask * 0.0
    if "ref_logprobs" in piece and config.kl_in == "loss":
        kl_ref = kl_estimate(logprobs.detach(), piece["ref_logprobs"], config.kl_estimator[:2])
        loss = loss + config.kl_coef * kl_loss(logprobs, old, piece["ref_logprobs"], config.kl_estimator)
    cut = (weights < w).float() if how == "tis" else (weights == 0).float()
    return loss, {"clipped": clipped, "mismatch": [w, w - 1 - w.log(), cut], "kl_ref": kl_ref}


def chosen_tokens(config: Config, models: Models, batch: dict, rows: list[int]):
    """`covariance_choice` of one minibatch, [B, T] over the batch; it needs all of its log-probs first."""
    import torch

    logprobs, mask = torch.zeros_like(batch["advantages"]), torch.zeros_like(batch["loss_mask"])
    shared = shared_length(models.networks)
    for piece_rows in micro_batches(batch, own_rows(batch, rows), config.micro_batch_tokens, shared):
        piece, columns = trimmed(batch, piece_rows)
        with torch.no_grad(), autocast(config, models.device):
            hidden = predicting_states(models.policy, piece)
            logprobs[piece_rows, columns] = token_logprobs(config, models.policy, hidden, piece)[0]
    sum_over_processes(logprobs)
    mask[rows] = batch["loss_mask"][rows]
    old, draw = batch.get("old_logprobs", logprobs), batch.get("draw", torch.zeros_like(logprobs))
    return of_first_process(covariance_choice(logprobs, old, batch["advantages"], mask, draw, config))


def update(config: Config, models: Models, optimizer, scaler, batch: dict, step: int, health: dict) -> dict:
    """Run the epochs and minibatches of one step and return its metrics."""
    import numpy as np
    import torch

    switch_checkpointing(models, config.gradient_checkpointing)
    train_policy = step >= config.critic_warmup_steps
    set_learning_rates(config, optimizer, step)
    if config.loss == "clip_cov":
        draw = np.random.default_rng([config.seed, 4, step]).random(batch["advantages"].shape)
        batch = batch | {"draw": torch.as_tensor(draw).to(widest_float(models.device)).to(models.device)}
    active = set(contributing(config, batch))
    applied, ratio_max, skipped, stopped = [], 0.0, 0, False
    for epoch in range(config.ppo_epochs):
        order = np.random.default_rng([config.seed, 2, step, epoch]).permutation(config.batch_size)
        for rows in order.reshape(config.minibatches, -1):
            if active.isdisjoint(rows.tolist()):
                continue
            sums, peak = accumulate_gradients(config, models, batch, rows, scaler, train_policy)
            sums = sum_over_processes(sums)
            stopped = stopped or bool(config.target_kl and sums[3] > config.target_kl)
            if stopped:
                optimizer.zero_grad()
                break
            norms = apply_gradients(config, optimizer, scaler)
            finite = bool(torch.isfinite(norms).all())
            count_bad_update(config, step, health, finite)
            skipped += not finite
            if finite:
                applied.append(torch.cat([sums.cpu(), norms]))
                ratio_max = max(ratio_max, peak.item())
        if stopped:
            break
    switch_checkpointing(models, False)
    metrics = update_metrics(config, applied, max(gather_rows([ratio_max])), train_policy)
    metrics |= {"optim/updates": len(applied), "optim/skipped_updates": skipped}
    return metrics | {"optim/lr": optimizer.param_groups[0]["lr"]}
