"""Tokens that Clip-Cov and KL-Cov treat separately, chosen from a whole minibatch."""

from parts.foundation.processes import np, of_first_process, sum_over_processes, torch
from parts.learning.losses import covariance_choice
from parts.networks.forward import pieces_of_batch, predicting_states, token_logprobs
from parts.networks.models import Models, autocast, widest_float
from programs.ppo_train.settings import Config


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
