"""Checks of critic, returns and advantages."""

from programs.selfcheck.oracle import own_gae, own_value_gradients, own_values
from programs.selfcheck.trainer import (
    Trainer,
    at_responses,
    check,
    columns_after_prompts,
    largest,
    length_ratio,
    relative,
    response_columns,
)

GAMMA, LAMBDA = 0.9, 0.8
# holes in two rows, pads on either side
RESPONSES = (
    (0, 0, 1, 1, 1, 1, 1, 1, 1),
    (0, 0, 0, 1, 0, 0, 1, 1, 0),
    (0, 0, 1, 1, 1, 0, 0, 0, 0),
    (0, 0, 1, 0, 1, 1, 0, 1, 1),
)


@check("set weight and bias of the value head to 0: values of a random head are noise in every advantage", moved=False)
def value_head_zero(s: Trainer):
    """A new critic values everything at 0."""
    batch = s.experience()
    if "values" not in batch or not has_critic(s):
        return None, "no critic with a value head"
    peak = at_responses(batch["values"], batch, s.probes).abs().max().item()
    return peak == 0, f"largest value before training {peak:.2g}"


def has_critic(s: Trainer) -> bool:
    """Whether a network values texts."""
    import torch

    with torch.no_grad():
        return own_values(s, s.probes[0]) is not None


@check(
    "A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, where t + 1 is the next sampled token: "
    "carry V and A past tokens outside the mask, begin with 0 after the last, and give advantages + values as returns",
    moved=False,
)
def gae_formula(s: Trainer):
    """The trainer's gae gives the sum of the paper, over ragged rows with pads and holes."""
    import torch

    if not hasattr(s.module, "gae"):
        return None, "no critic: no gae"
    mask = torch.tensor(RESPONSES)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(mask.shape, generator=generator) * mask for _ in range(2))
    advantages, returns = s.module.gae(rewards, values, mask, GAMMA, LAMBDA)
    own, at = own_gae(rewards, values, mask, GAMMA, LAMBDA), mask.bool()
    gaps = [(a - b)[at].abs().max().item() for a, b in ((advantages, own), (returns, own + values))]
    text = f"advantages {gaps[0]:.1e} and returns {gaps[1]:.1e} from the formula, gamma {GAMMA}, lambda {LAMBDA}"
    return largest(gaps) <= 1e-4, f"{text}, {int(at.sum())} tokens, {len(mask)} rows, holes in two"


@check(
    "train the critic by vf_coef * the mean over all tokens of the mask of 1/2 max((V - R)^2, (V_old + clip(V - V_old, "
    "-value_clip, value_clip) - R)^2), V of the text before each token"
)
def value_loss_gradient(s: Trainer):
    """The critic's gradient is that of the definition, also where the clip bites and in a response with a hole."""
    if not has_critic(s):
        return None, "no critic"
    config = s.config
    coefficient, clip = config.vf_coef or 0.5, getattr(config, "value_clip", 0.0)
    gaps, ratios = [], []
    batch = with_values(s, clip or 0.2)
    for bound in {clip, 0.0} if clip else {0.0, 0.2} if hasattr(config, "value_clip") else {0.0}:
        settings = {"vf_coef": coefficient} | ({"value_clip": bound} if hasattr(config, "value_clip") else {})
        got = s.gradients(batch, **settings)[1:]
        expected = own_value_gradients(s, batch, bound, coefficient)
        gaps.append(relative(got, expected))
        ratios.append(length_ratio(got, expected))
    text = f"trainer's and defined gradient of the critic {largest(gaps):.1e} apart, "
    return largest(gaps) <= s.limits[1], text + f"{' and '.join(f'{x:.4g}' for x in ratios)} times as long"


def with_values(s: Trainer, clip: float) -> dict:
    """The trainer's batch with a hole, and old values and returns on either side of the clip."""
    import torch

    batch, count = {name: x.clone() for name, x in s.settled().items()}, 0
    hole = response_columns(batch, s.probes)[0][1]
    for name in {"response_mask", "loss_mask"} & {*batch}:
        batch[name][0, hole] = 0
    moves, errors = (-3.0, -0.5, 0.5, 3.0), (1.5, -1.5, 0.3, -0.3, 2.5)  # in clips; no two terms are near each other
    for i, columns in enumerate(columns_after_prompts(batch, s.probes)):
        with torch.no_grad():
            values = own_values(s, s.probes[i])
        for value, column in zip(values, columns, strict=True):
            batch["values"][i, column] = value - clip * moves[count % 4]
            batch["returns"][i, column] = value + clip * errors[count % 5]
            count += 1
    return batch


@check("subtract from each score the mean of its own group, whose completions are neighbours in the batch", moved=False)
def group_advantages(s: Trainer):
    """The advantages of a group sum to 0, and are 0 where all its scores are equal."""
    groups, reason = s.group_of(s.probes)
    if not groups:
        return None, reason
    batch = s.experience()
    firsts = first_advantages(s, batch)
    sums = {group: sum(x for g, x in zip(groups, firsts, strict=True) if g == group) for group in groups}
    equal = [sample | {"score": 1.0, "rewards": {"probe": 1.0}} for sample in s.probes]
    flat = first_advantages(s, s.experience(equal))
    peak, none = largest(map(abs, sums.values())), largest(map(abs, flat))
    text = f"largest sum of a group {peak:.1e} of {largest(map(abs, firsts)):.3g}; of equal scores {none:.1e}"
    return peak <= 1e-4 * max(1.0, largest(map(abs, firsts))) and none <= 1e-3, text


def first_advantages(s: Trainer, batch: dict) -> list[float]:
    """The advantage of each completion, at its first token."""
    columns = response_columns(batch, s.probes)
    return [batch["advantages"][i, at[0]].item() for i, at in enumerate(columns)]
