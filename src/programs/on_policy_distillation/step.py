"""One step, in the order of the data: rollout, the teacher's scores, update."""

import math
import statistics
import time

from parts.foundation.processes import LONG_STEP, np, room_for, stop_before_update, sum_over_processes, torch
from parts.learning.advantages import equal_groups
from parts.learning.losses import likelihood_ratio, mismatch_mode, mismatch_weights, token_weights
from parts.learning.optimizer import Statistics, run_updates, sum_gradients, switch_checkpointing
from parts.networks.batches import collate, masked_mean
from parts.networks.forward import pieces_of_batch, predicting_states, token_logprobs
from parts.networks.models import autocast
from parts.running.checkpoints import TrainState
from parts.running.progress import note_advantages, rollout_metrics, sampling_advice, update_advice
from parts.sampling.rollouts import batch_rows, collect
from programs.on_policy_distillation.models import ask_server, pieces_of, server_tensors, teacher_figures
from programs.on_policy_distillation.objective import COMPARED, TOKEN_FIGURES, distillation_advantages, token_gradients
from programs.on_policy_distillation.settings import Config

STATISTICS = {"policy/loss": "sum", "policy/ratio_max": "max"} | dict.fromkeys(TOKEN_FIGURES, "mean")


def train_step(config: Config, models, engine, reward, rows: list[dict], optimizer, scaler, state: TrainState):
    """Do one step; returns its metrics, its samples, and the fields of the state after it."""
    timer = {}
    engine.sync(state.step)
    with room_for("while sampling", sampling_advice(config), before_update=True):
        samples, prompts = rollout_batch(config, models, engine, reward, rows, state.step, state.prompts, timer)
    begin = time.perf_counter()
    with room_for("in the update", update_advice(config)):
        batch = make_experience(config, models, samples, config.kl_coef)
        note_advantages(samples, batch)
        metrics = batch_metrics(config, batch, samples, timer)
        stop_before_update()
        measured, bad = update(config, models, optimizer, scaler, batch, state.step, state.bad)
    timer["update"] = time.perf_counter() - begin
    metrics |= measured | {f"time/{phase}": seconds for phase, seconds in timer.items()}
    return metrics, samples, {"prompts": prompts, "bad": bad}


def rollout_batch(config: Config, models, engine, reward, rows: list, step: int, start: int, timer: dict):
    """(samples of a step, from prompt `start` of the stream on; the stream's next position)."""
    picked = batch_rows(rows, config, start, config.batch_size // config.group_size)
    prompts = [row for row in picked for _ in range(config.group_size)]
    noise = np.random.default_rng([config.seed, 3, step]).random((config.batch_size, config.max_new_tokens))
    samples = collect(config, models, engine, reward, prompts, noise, timer)
    samples = [sample | {"group": i // config.group_size} for i, sample in enumerate(samples)]
    begin = time.perf_counter()
    ask_server(models, samples)
    timer["teacher"] = time.perf_counter() - begin
    return samples, start + len(picked)


def batch_metrics(config: Config, batch: dict, samples: list[dict], timer: dict) -> dict:
    """Metrics of a rollout: rewards, lengths, speed, and how far sampler and trainer disagree."""
    metrics = rollout_metrics(samples, [len(s["response_ids"]) for s in samples], timer)
    if samples[0]["rewards"] and config.group_size > 1:
        metrics["reward/zero_std_frac"] = statistics.fmean(equal_groups(samples, config.group_size))
    if "old_logprobs" in batch:
        mask = batch["loss_mask"]
        gap = (batch["old_logprobs"] - batch["rollout_logprobs"]) * mask
        w = likelihood_ratio(gap, 0)
        metrics["rollout/logprob_gap_max"] = gap.abs().max().item()
        metrics["mismatch/weight_mean"] = masked_mean(w, mask).item()
        metrics["mismatch/kl"] = masked_mean(w - 1 - w.log(), mask).item()
        if "corrections" in batch:
            cut = batch["corrections"] < w if mismatch_mode(config) == "tis" else batch["corrections"] == 0
            metrics["mismatch/cut_frac"] = masked_mean(cut.float(), mask).item()
    return metrics


def make_experience(config: Config, models, samples: list[dict], kl_coef: float) -> dict:
    """Turn samples into a training batch of [B, T] tensors; what a server said of k tokens is [B, T, k].

    The advantages are constants: of the teacher for policy_gradient, of the rewards with `reward_coef`.
    """
    batch = collate(samples, models.pad_id, models.device)
    known = batch["input_ids"] < getattr(models.teacher, "width", 2**62)  # the student may sample a row of padding
    batch["loss_mask"] = batch["response_mask"] * known
    batch |= server_tensors(samples, batch)
    sampled, made = config.objective == "policy_gradient", []
    weighed = (sampled or config.reward_coef) and mismatch_mode(config) != "none"
    if config.ppo_epochs * config.minibatches > 1 or weighed:
        made.append("old_logprobs")
    if sampled and "teacher_logprobs" not in batch:
        made += ["teacher_logprobs", "teacher_entropy"]
    if made:
        batch |= frozen_passes(config, models, batch, made)
    if sampled or config.reward_coef:
        batch["advantages"] = distillation_advantages(config, batch, samples, kl_coef)
    if weighed:
        mask, bounds = batch["loss_mask"], (config.mismatch_low, config.mismatch_high)
        old, sampler = batch["old_logprobs"], batch["rollout_logprobs"]
        batch["corrections"] = mismatch_weights(old, sampler, mask, mismatch_mode(config), *bounds)
    return batch


def frozen_passes(config: Config, models, batch: dict, names: list[str]) -> dict:
    """Those of old_logprobs, teacher_logprobs and teacher_entropy that are asked for, [B, T], without gradient.

    With the teacher's figures come the ids of its likeliest tokens, `teacher_ids` [B, T, COMPARED].
    """
    shape, teacher = batch["input_ids"].shape, models.teacher
    made = {name: torch.zeros(shape, device=models.device) for name in names}
    if "teacher_logprobs" in made:
        count = min(COMPARED, teacher.width)
        made["teacher_ids"] = torch.zeros(*shape, count, dtype=torch.long, device=models.device)
    LONG_STEP.begin("log-probs: completion", shape[0])
    for piece_rows, columns, piece in pieces_of_batch(config, models, batch, range(shape[0])):
        if "old_logprobs" in made:
            with torch.no_grad(), autocast(config, models.device):
                hidden = predicting_states(models.policy, piece)
                made["old_logprobs"][piece_rows, columns] = token_logprobs(config, models.policy, hidden, piece)[0]
        if "teacher_logprobs" in made:
            mask = piece["loss_mask"].bool()
            figures = teacher_figures(config, teacher, teacher.states(piece)[mask], piece["input_ids"][mask])
            for name, flat in figures.items():
                part = made[name].new_zeros(*mask.shape, *flat.shape[1:])
                part[mask] = flat
                made[name][piece_rows, columns] = part
        LONG_STEP.advance_rows(len(piece["input_ids"]))
    return {name: sum_over_processes(x) for name, x in made.items()}


def update(config: Config, models, optimizer, scaler, batch: dict, step: int, bad: int = 0) -> tuple[dict, int]:
    """Train on the batch; returns metrics, and non-finite updates in a row, `bad` of them before this step."""
    switch_checkpointing(models, config.gradient_checkpointing)

    def accumulate(rows) -> Statistics:
        return accumulate_gradients(config, models, batch, rows, scaler)

    metrics, bad = run_updates(config, optimizer, scaler, step, bad, accumulate)
    switch_checkpointing(models, False)
    unmeasured = set() if "old_logprobs" in batch else {"policy/ratio_max"}
    if "old_logprobs" not in batch and "advantages" not in batch:
        unmeasured |= {"policy/clip_frac", "kl/approx"}
    return {k: v for k, v in metrics.items() if k not in unmeasured and not math.isnan(v)}, bad


def accumulate_gradients(config: Config, models, batch: dict, rows, scaler) -> Statistics:
    """Add the gradients of the loss of one minibatch, micro-batch by micro-batch, and sum them over all processes.

    Every weight of a token is that of the whole minibatch, so neither micro-batches nor processes change the gradient.
    Below the output layer the backward pass runs once a micro-batch, through it once a piece of `logits_chunk`. Means
    are NaN where the teacher does not give them.
    """
    index = torch.as_tensor(rows, device=models.device)
    tokens = batch["loss_mask"][index].sum().clamp(min=1)  # over all processes
    scale = scaler.scale(torch.ones((), device=models.device))
    statistics = Statistics(STATISTICS, models.device)
    teacher = models.teacher
    for _, _, piece in pieces_of_batch(config, models, batch, rows):
        mask = piece["loss_mask"].bool()
        flat = {name: x[mask] for name, x in piece.items()}  # [N] or [N, k] each
        flat["weights"] = token_weights(piece["loss_mask"], config, tokens, len(rows))[mask]
        with autocast(config, models.device):
            states = predicting_states(models.policy, piece)[mask]  # [N, H]
        leaf = states.detach().requires_grad_()
        read = "teacher_logprobs" not in piece
        teacher_states = teacher.states(piece)[mask] if read else None
        for part in pieces_of(config, models.policy, len(leaf)):
            known = {name: x[part] for name, x in flat.items()}
            dist = teacher.logprobs(teacher_states[part]) if read else None  # [n, V]
            loss, figures, ratio = token_gradients(config, models.policy, leaf[part], known, dist, scale)
            statistics.add(dict(zip(TOKEN_FIGURES, figures.sum(0) / tokens, strict=True)))
            statistics.add({"policy/loss": loss, "policy/ratio_max": ratio})
        states.backward(leaf.grad)
        LONG_STEP.advance_rows(len(piece["input_ids"]))
    sum_gradients([models.policy])
    return statistics
