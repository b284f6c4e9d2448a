"""From samples to a training batch: old and reference log-probs, values, advantages."""

from parts.foundation.processes import of_first_process, sum_over_processes
from parts.learning.advantages import ADVANTAGES, gae
from parts.learning.kl import kl_estimate
from parts.learning.losses import LOSSES
from parts.learning.shaping import move_to_turns, reward_parts, shape_rewards, shaped_score
from parts.networks.batches import collate, masked_whiten, micro_batches, own_rows, trimmed
from parts.networks.forward import predicting_states, shared_length, token_logprobs, token_values
from parts.networks.models import Models, as_reference, autocast
from programs.ppo_train.settings import Config

READS_REWARDS = ("gae", "reinforce_pp", "remax")  # token by token; the other estimators compare whole returns


def make_experience(config: Config, models: Models, samples: list[dict], kl_coef: float) -> dict:
    """Turn samples into a training batch of [B, T] tensors: old and reference log-probs, values, advantages, returns.

    With a single optimizer step per batch the old policy is the current one, so `old_logprobs` is left to the update.
    Without a reference or critic, rows that will train nothing are not run through the policy.
    """
    import torch

    batch, critic = collate(samples, models.pad_id, models.device), models.critic
    kept = [(s["finished"] or not config.mask_truncated) and not s.get("filler") for s in samples]
    keep = torch.tensor(kept, device=models.device)
    batch["loss_mask"] = batch["response_mask"] * keep[:, None]
    names = ["values"] * bool(critic) + ["ref_logprobs"] * bool(models.reference)
    kl_first = bool(models.reference) and config.kl_in == "reward"  # else the update measures it on its way
    names += ["old_logprobs"] * (config.ppo_epochs * config.minibatches > 1 or kl_first)
    early = not critic and not models.reference  # then the advantages depend on no network
    if early:
        batch |= agreed_advantages(config, batch, samples, kl_coef)
    rows = contributing(config, batch) if early else list(range(len(samples)))
    made = {name: torch.zeros(batch["input_ids"].shape, device=models.device) for name in names}
    mine, shared = own_rows(batch, rows if made else []), shared_length(models.networks)
    for piece_rows in micro_batches(batch, mine, config.micro_batch_tokens, shared):
        piece, columns = trimmed(batch, piece_rows)
        for name, x in frozen_outputs(config, models, piece, made).items():
            made[name][piece_rows, columns] = x
    batch |= {name: sum_over_processes(x) for name, x in made.items()}
    if "old_logprobs" in made and len(rows) < len(samples):  # so that they show no gap to the sampler
        absent = torch.ones(len(samples), dtype=torch.bool, device=models.device)
        absent[rows] = False
        batch["old_logprobs"][absent] = batch["rollout_logprobs"][absent]
    return batch if early else batch | agreed_advantages(config, batch, samples, kl_coef)


def frozen_outputs(config: Config, models: Models, piece: dict, names) -> dict:
    """Those of values, old_logprobs and ref_logprobs that are asked for, [B, T], without gradient."""
    import torch

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


def contributing(config: Config, batch: dict) -> list[int]:
    """Rows that can change a gradient: all tokens of the others are masked, or have advantage 0 and no other loss.

    Every process finds the same, as the advantages are the first process's.
    """
    rows = batch["loss_mask"].any(1)
    others = "values" in batch or config.entropy_coef or ("ref_logprobs" in batch and config.kl_in == "loss")
    if not others and not LOSSES[config.loss].trains_zero_advantage:
        rows &= (batch["advantages"] * batch["loss_mask"] != 0).any(1)
    return rows.nonzero().flatten().tolist()


def agreed_advantages(config: Config, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """`advantages_of` as the first process has it: sums on a GPU have no fixed order, and 0 may differ from 1.5e-8."""
    return {name: of_first_process(x) for name, x in advantages_of(config, batch, samples, kl_coef).items()}


def answer_numbers(samples: list[dict], response_mask):
    """Which answer of its conversation a sampled token belongs to, from 1 on, [B, T]; 0 for all other tokens."""
    import torch

    first = response_mask.shape[1] - max(len(s["response_ids"]) for s in samples)  # column in which responses begin
    numbers = torch.ones_like(response_mask)
    for row, sample in enumerate(samples):
        for end in sample.get("turn_ends", ())[:-1]:
            numbers[row, first + end :] += 1
    return numbers * response_mask


def advantages_by_turn(config: Config, known: dict, numbers):
    """Advantages [B, T] of each answer among the conversations of its group that have an answer of this number.

    Args:
        known: what the estimator takes, tensors with B rows.
        numbers: of `answer_numbers`, [B, T].
    """
    import torch

    advantages = torch.zeros(numbers.shape, device=numbers.device)
    for number in range(1, int(numbers.max()) + 1):
        reached = (numbers == number).any(1)
        found = ADVANTAGES[config.advantage](config=config, **{name: x[reached] for name, x in known.items()})
        advantages[reached] += found[:, None] * (numbers[reached] == number)
    return advantages


def advantages_of(config: Config, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """KL to the reference, rewards after shaping, advantages, and returns with a critic, all [B, T]."""
    import torch

    response, mask = batch["response_mask"], batch["loss_mask"]

    def column(values):
        return torch.tensor(values, dtype=torch.float32, device=response.device)

    kl = torch.zeros(response.shape, device=response.device)
    if "ref_logprobs" in batch and "old_logprobs" in batch:
        kl = kl_estimate(batch["old_logprobs"], batch["ref_logprobs"], config.kl_estimator[:2]) * response
    in_reward = kl_coef if config.kl_in == "reward" else 0.0
    rewards = shape_rewards(column([shaped_score(config, s) for s in samples]), kl, response, in_reward)
    if config.advantage in READS_REWARDS:
        move_to_turns(rewards, samples)
    if config.whiten_rewards:
        rewards = masked_whiten(rewards, response, shift_mean=False)
    if config.advantage == "gae":
        advantages, returns = gae(rewards, batch["values"], response, config.gamma, config.gae_lambda)
        if config.whiten_advantages:
            advantages = masked_whiten(advantages, response)
        return {"kl": kl, "rewards": rewards, "advantages": advantages, "returns": returns}
    known = {"rewards": rewards, "mask": response if config.advantage == "opo" else mask, "scores": rewards.sum(1)}
    known["groups"] = torch.tensor([s["group"] for s in samples], device=response.device)
    if config.advantage == "remax":
        known["baselines"] = column([s["baseline"] for s in samples])
    if config.advantage == "gdpo":
        known["parts"] = column([reward_parts(config, s) for s in samples])
        known["weights"] = [*samples[0]["weights"].values(), 1.0]
    # a completion to which no reward applies neither learns nor takes part in its group's baseline
    scored = column([any(v is not None for v in s["rewards"].values()) or not s["rewards"] for s in samples]).bool()
    part = {name: x if name == "weights" else x[scored] for name, x in known.items()}
    advantages = torch.zeros_like(rewards)
    if scored.any():
        if config.turn_baseline == "turn":
            found = advantages_by_turn(config, part, answer_numbers(samples, response)[scored])
        else:
            found = ADVANTAGES[config.advantage](config=config, **part)
        advantages[scored] = (found if found.dim() == 2 else found[:, None]) * mask[scored]
    return {"kl": kl, "rewards": rewards, "advantages": advantages}
