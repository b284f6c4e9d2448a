"""Formulas as loops over single tokens, independent of the numerics, for checks to compare with."""

import math

CISPO_PAPER = "cispo without a lower bound"  # MiniMax-M1, section 3.1
CISPO_TRL = "cispo of ratios up to high"  # of TRL, as ScaleRL has it


def clamp(x, low: float, high: float):
    """x clipped to two bounds; no gradient beyond them."""
    return x * 0 + low if x < low else x * 0 + high if x > high else x


def policy_token(name: str, c: dict, i: int, t: int, places: list[int]):
    """The loss of token t of row i, a scalar; `places` are the row's masked tokens."""
    logp, a, steps = c["logprobs"][i, t], c["advantages"][i, t], c["logprobs"][i] - c["old_logprobs"][i]
    d, steps = steps[t], [steps[k] for k in places]
    if name == "reinforce":
        return -a * logp
    if name == "gmpo":
        bounded = [clamp(x, -c["low"], c["high"]) for x in steps]
        least = [min(x, y) if a > 0 else max(x, y) for x, y in zip(steps, bounded, strict=True)]
        return -a * (sum(least) / len(places)).exp()
    if name.startswith("gspo"):
        d = sum(steps) / len(places)
        d = d if name == "gspo" else d.detach() + logp - logp.detach()
    ratio = d.exp()
    bounds = {CISPO_PAPER: (-math.inf, 1 + c["high"]), CISPO_TRL: (-math.inf, c["high"])}
    bounded = clamp(ratio, *bounds.get(name, (1 - c["low"], 1 + c["high"])))
    if name.startswith("cispo"):
        return -bounded.detach() * a * logp
    if name == "sapo":
        tau = c["tau_pos"] if a > 0 else c["tau_neg"]
        return -a * 4 / tau / (1 + (-tau * (ratio - 1)).exp())
    loss = max(-a * ratio, -a * bounded)
    return min(loss, -a * c["dual_clip"]) if c["dual_clip"] and a < 0 else loss


def value_token(name: str, c: dict, i: int, t: int):
    """The squared error of a value, clipped or not, halved or not."""
    v, old, goal = c["values"][i, t], c["old_values"][i, t], c["returns"][i, t]
    loss = (v - goal) ** 2
    if "clipped" in name:
        larger = min if c.get("least") else max
        v, old = (old, v) if c.get("exchanged") else (v, old)
        loss = larger(loss, (old + clamp(v - old, -c["value_clip"], c["value_clip"]) - goal) ** 2)
    return loss / 2 if "half" in name else loss


def own_gae(rewards, values, mask, gamma: float, gae_lambda: float, after=None):
    """Advantages [B, T] by the sum A_t = sum_l (gamma lambda)^l delta_{t + l} over a row's sampled tokens alone.

    `after` [B] has the value of what follows a row's last token; nothing does by default.
    """
    advantages = values * 0
    for i, columns in enumerate(row.nonzero().flatten().tolist() for row in mask):
        r, v = ([x[i, c].item() for c in columns] for x in (rewards, values))
        v.append(0.0 if after is None else float(after[i]))
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
        for t, column in enumerate(columns):
            advantages[i, column] = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(r) - t))
    return advantages
