"""One step: rollout, experience, update, in the order of the data."""

import time

from parts.foundation.processes import (
    np,
    of_first_process,
    room_for,
    stop_before_update,
    sum_over_processes,
    torch,
)
from parts.learning.advantages import agreed_advantages
from parts.learning.losses import (
    LOSSES,
    contributing,
    covariance_choice,
    next_kl_coef,
    policy_terms,
    token_weights,
    value_loss,
)
from parts.learning.optimizer import Statistics, run_updates, sum_gradients, switch_checkpointing
from parts.networks.batches import collate
from parts.networks.forward import pieces_of_batch, predicting_states, token_logprobs, token_values
from parts.networks.models import Models, as_reference, autocast, widest_float
from parts.rewards.rewards import is_scored
from parts.running.checkpoints import TrainState
from parts.running.progress import sampling_advice, update_advice
from programs.ppo_train.rollout import Sampler, sample_metrics
from programs.ppo_train.settings import Config

POLICY_STATISTICS = {  # what an update measures of the policy, and its reduction
    "policy/loss": "sum",
    "policy/clip_frac": "mean",
    "policy/entropy": "mean",
    "policy/ratio_max": "max",
    "kl/approx": "mean",
    "mismatch/weight_mean": "mean",
    "mismatch/kl": "mean",
    "mismatch/cut_frac": "mean",
}
KL_STATISTICS = {"kl/ref": "mean", "kl/ref_completion": "sum"}


def train_step(config: Config, models: Models, sampler: Sampler, optimizer, scaler, state: TrainState):
    """Do one step; returns its metrics, its samples, and the fields of the state after it."""
    timer = {}
    with room_for("while sampling", sampling_advice(config), before_update=True):
        samples, drawn = sampler.rollout(state.step, timer)  # processes share the prompts, each gets the whole batch
    begin = time.perf_counter()
    with room_for("in the update", update_advice(config)):
        batch = make_experience(config, models, samples, state.kl_coef)
        metrics = sample_metrics(config, batch, drawn, timer)
        stop_before_update()
        measured, bad = update(config, models, optimizer, scaler, batch, state.step, state.bad)
    metrics |= measured
    timer["update"] = time.perf_counter() - begin
    metrics |= {f"time/{phase}": seconds for phase, seconds in timer.items()}
    after = sampler.state() | {"bad": bad, "kl_coef": state.kl_coef}
    if models.reference:
        metrics["kl/coef"] = state.kl_coef
    if models.reference and config.kl_target:
        kl, count = metrics["kl/ref_completion"], config.batch_size
        after["kl_coef"] = next_kl_coef(state.kl_coef, kl, config.kl_target, config.kl_horizon, count)
    return metrics, samples, after


def make_experience(config: Config, models: Models, samples: list[dict], kl_coef: float) -> dict:
    """Turn samples into a training batch of [B, T] tensors: old and reference log-probs, values, advantages, returns.

    With a single optimizer step per batch the old policy is the current one, so `old_logprobs` is left to the update.
    """
    batch = collate(samples, models.pad_id, models.device)
    kept = [(s["finished"] or not config.mask_truncated) and not s.get("filler") and is_scored(s) for s in samples]
    batch["loss_mask"] = batch["response_mask"] * torch.tensor(kept, device=models.device)[:, None]
    names = [name for name, network in (("values", models.critic), ("ref_logprobs", models.reference)) if network]
    kl_first = models.reference and config.kl_in == "reward"  # else the update measures it on its way
    if config.ppo_epochs * config.minibatches > 1 or kl_first:
        names.append("old_logprobs")
    rows = list(range(len(samples)))
    advantages_need_networks = models.critic or models.reference
    if not advantages_need_networks:
        batch |= agreed_advantages(config, batch, samples, kl_coef)
        rows = contributing(config, batch)
    made = {name: torch.zeros(batch["input_ids"].shape, device=models.device) for name in names}
    for piece_rows, columns, piece in pieces_of_batch(config, models, batch, rows if made else []):
        for name, x in frozen_outputs(config, models, piece, made).items():
            made[name][piece_rows, columns] = x
    batch |= {name: sum_over_processes(x) for name, x in made.items()}
    if "old_logprobs" in made:
        others = [row for row in range(len(samples)) if row not in rows]  # not run: they show no gap to the sampler
        batch["old_logprobs"][others] = batch["rollout_logprobs"][others]
    return batch | agreed_advantages(config, batch, samples, kl_coef) if advantages_need_networks else batch


def frozen_outputs(config: Config, models: Models, piece: dict, names) -> dict:
    """Those of values, old_logprobs and ref_logprobs that are asked for, [B, T], without gradient."""
    critic, made = models.critic, {}
    with torch.no_grad(), autocast(config, models.device):
        hidden = None
        if "old_logprobs" in names or (critic and not critic.backbone):
            hidden = predicting_states(models.policy, piece)
        if "old_logprobs" in names:
            made["old_logprobs"] = token_logprobs(config, models.policy, hidden, piece)[0]
        if critic:
            hidden = predicting_states(critic.backbone, piece) if critic.backbone else hidden
            made["values"] = token_values(critic, hidden) * piece["response_mask"]
        if models.reference:
            with as_reference(models.policy):
                hidden = predicting_states(models.reference, piece)
                made["ref_logprobs"] = token_logprobs(config, models.reference, hidden, piece)[0]
    return made


def update(config: Config, models: Models, optimizer, scaler, batch: dict, step: int, bad: int = 0) -> tuple[dict, int]:
    """Train on the batch; returns metrics, and non-finite updates in a row, `bad` of them before this step."""
    train_policy = step >= config.critic_warmup_steps
    if LOSSES[config.loss].chooses_tokens:
        batch = batch | {"draw": draws(config, models, batch, step)}
    switch_checkpointing(models, config.gradient_checkpointing)

    def accumulate(rows) -> Statistics:
        return accumulate_gradients(config, models, batch, rows, scaler, train_policy)

    result = run_updates(config, optimizer, scaler, step, bad, accumulate, set(contributing(config, batch)))
    switch_checkpointing(models, False)
    return result


def accumulate_gradients(
    config: Config, models: Models, batch: dict, rows, scaler, train_policy: bool = True
) -> Statistics:
    """Add the gradients of the loss of one minibatch, micro-batch by micro-batch, and sum them over all processes.

    Every weight of a token is that of the whole minibatch, so neither micro-batches nor processes change the gradient.
    Rows that are not `contributing` count in the weights only.
    """
    whole = batch["loss_mask"][torch.as_tensor(rows, device=models.device)]
    tokens, sequences = whole.sum().clamp(min=1), len(rows)  # over all processes
    active = set(contributing(config, batch))
    rows = [int(row) for row in rows if int(row) in active]
    trained = batch["loss_mask"][torch.as_tensor(rows, dtype=torch.long, device=models.device)].sum().clamp(min=1)
    statistics = Statistics(declared(config, models, train_policy), models.device)
    if LOSSES[config.loss].chooses_tokens and train_policy:
        batch = batch | {"chosen": chosen_tokens(config, models, batch, rows)}
    networks = [network for network, on in ((models.policy, train_policy), (models.critic, models.critic)) if on]
    for _, _, piece in pieces_of_batch(config, models, batch, rows):
        mask, loss, hidden = piece["loss_mask"], 0.0, None
        with autocast(config, models.device), torch.set_grad_enabled(train_policy):  # warm-up keeps no graph
            if train_policy or not models.critic.backbone:
                hidden = predicting_states(models.policy, piece)
        if train_policy:
            loss = policy_share(config, models, piece, hidden, (tokens, sequences, trained, len(rows)), statistics)
            if not models.critic or models.critic.backbone:
                scaler.scale(loss).backward()  # frees this graph before the critic's is built
                loss = 0.0
        if models.critic:
            with autocast(config, models.device):
                if models.critic.backbone:
                    hidden = predicting_states(models.critic.backbone, piece)
            values = token_values(models.critic, hidden)
            error = (value_loss(values, piece["values"], piece["returns"], config.value_clip) * mask).sum() / tokens
            statistics.add({"value/loss": error.detach()})
            scaler.scale(loss + config.vf_coef * error).backward()
    sum_gradients(networks)
    return statistics


def draws(config: Config, models: Models, batch: dict, step: int):
    """A uniform number for each token of a step's batch, [B, T], by which tokens may be chosen."""
    numbers = np.random.default_rng([config.seed, 4, step]).random(batch["advantages"].shape)
    return torch.as_tensor(numbers).to(widest_float(models.device)).to(models.device)


def chosen_tokens(config: Config, models: Models, batch: dict, rows: list[int]):
    """`covariance_choice` of one minibatch, [B, T] over the batch; it needs all of its log-probs first."""
    logprobs, mask = torch.zeros_like(batch["advantages"]), torch.zeros_like(batch["loss_mask"])
    for piece_rows, columns, piece in pieces_of_batch(config, models, batch, rows):
        with torch.no_grad(), autocast(config, models.device):
            hidden = predicting_states(models.policy, piece)
            logprobs[piece_rows, columns] = token_logprobs(config, models.policy, hidden, piece)[0]
    sum_over_processes(logprobs)
    mask[rows] = batch["loss_mask"][rows]
    old, draw = batch.get("old_logprobs", logprobs), batch.get("draw", torch.zeros_like(logprobs))
    return of_first_process(covariance_choice(logprobs, old, batch["advantages"], mask, draw, config))


def declared(config: Config, models: Models, train_policy: bool) -> dict[str, str]:
    """The statistics of an update and their reductions; `kl/ref` where it was not measured before the update."""
    single = config.ppo_epochs * config.minibatches == 1
    measures_kl = train_policy and models.reference and config.kl_in == "loss" and single
    names = (POLICY_STATISTICS if train_policy else {}) | (KL_STATISTICS if measures_kl else {})
    return names | ({"value/loss": "sum"} if models.critic else {})


def policy_share(config: Config, models: Models, piece: dict, hidden, whole: tuple, statistics: Statistics):
    """A micro-batch's share of the policy's loss, with its graph, of the states [B, T, H] that predict each token.

    `whole` are tokens and sequences of the whole minibatch, and those of its contributing rows.
    """
    tokens, sequences, trained, contributing_rows = whole
    mask = piece["loss_mask"]
    weights = token_weights(mask, config, tokens, sequences)
    logprobs, entropy = token_logprobs(config, models.policy, hidden, piece, bool(config.entropy_coef))
    per_token, measured = policy_terms(config, piece, logprobs)
    statistics.add({"policy/loss": (per_token.detach() * weights).sum()})
    statistics.add({"policy/ratio_max": (measured.pop("policy/ratio_max") * mask).max()})
    kl = measured.pop("kl/ref", None)
    if "kl/ref" in statistics.values and kl is not None:
        measured["kl/ref"] = kl
        statistics.add({"kl/ref_completion": (kl * mask).sum() / contributing_rows})
    statistics.add_means(measured | {"policy/entropy": entropy.detach()}, mask, trained)
    return ((per_token - config.entropy_coef * entropy) * weights).sum()
