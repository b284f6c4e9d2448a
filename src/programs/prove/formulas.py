"""Published losses and advantages as float64 loops over tokens and rows, to compare functions with."""

import math
import statistics
from dataclasses import dataclass

from parts.foundation.processes import torch
from parts.learning.oracles import CISPO_PAPER, CISPO_TRL, policy_token, value_token

TOKEN_WEIGHT, ROW_WEIGHT = " times old / rollout of each token", " times old / rollout of each sequence"
WEIGHTS = (TOKEN_WEIGHT, ROW_WEIGHT, "")  # corrections for the sampler; none where its log-probs only filter
FULL_KL = ("KL(policy || reference) of the vocabulary", "KL(reference || policy) of the vocabulary")
IN_ADVANTAGE = "k1 in the advantage"
WRONG_AXIS = "mean over columns of means over sequences"  # right for [T, B], a fault for [B, T]
DEVIATION_EPS = (0.0, 1e-6, 1e-5, 1e-4)  # what implementations add to a standard deviation


@dataclass(frozen=True)
class Formula:
    """A published formula."""

    kind: str  # a key of KINDS
    source: str
    words: str  # which the name of a function that computes it contains
    aggregations: str = ""  # how the published aggregation begins, "" if any will do


KINDS = {  # inputs that every formula of a kind needs
    "loss": {"logprobs", "advantages"},
    "kl": {"logprobs", "ref_logprobs"},
    "value": {"values", "returns"},
    "gae": {"values", "token_rewards"},
    "advantage": {"scores"},
    "mean": {"mask"},
}
FORMULAS = {  # if a function's name has the words of two, the first is meant
    "gspo": Formula("loss", "arXiv 2507.18071, eq. 5", "gspo", "mean over sequences of token means"),
    "cispo": Formula("loss", "arXiv 2506.13585, eq. 4", "cispo"),
    "sapo": Formula("loss", "arXiv 2511.20347", "sapo"),
    "gmpo": Formula("loss", "arXiv 2507.20673, eq. 3", "gmpo", "mean over sequences of token means"),
    "dapo": Formula("loss", "arXiv 2503.14476, eq. 8", "dapo", "sum over tokens / their number"),
    "dr_grpo": Formula("loss", "arXiv 2503.20783, section 3.2", "dr grpo", "token sum"),
    "grpo": Formula("loss", "arXiv 2402.03300, eq. 3", "grpo"),
    "ppo": Formula("loss", "Schulman 2017, eq. 7", "ppo"),
    "reinforce": Formula("loss", "Williams 1992", "reinforce"),
    **{name: Formula("kl", f"Schulman 2020, {name}", name) for name in ("k1", "k2", "k3", "kl")},
    "value_loss": Formula("value", "Schulman 2017, eq. 9, with clipped values", "value"),
    "critic_loss": Formula("value", "Schulman 2017, eq. 9, with clipped values", "critic"),
    "dr_grpo_advantage": Formula("advantage", "arXiv 2503.20783, section 3.2", "dr grpo"),
    "grpo_advantage": Formula("advantage", "arXiv 2402.03300, section 4.1.2", "grpo"),
    "rloo": Formula("advantage", "arXiv 2402.14740", "rloo"),
    "reinforce_pp": Formula("gae", "arXiv 2501.03262", "reinforce pp"),  # GAE with lambda 1 and values of 0
    "gae": Formula("gae", "Schulman 2016, eq. 16", "gae"),
    "masked_mean": Formula("mean", "sum of masked entries / their number", "masked mean"),
}


def kl_token(name: str, c: dict, i: int, t: int):
    """KL of token [i, t]: an estimate, times the ratio if the old policy sampled it, or the sum over the vocabulary."""
    logp, ref = c["logprobs"][i, t], c["ref_logprobs"][i, t]
    logp, ref = (ref, logp) if c.get("turned") else (logp, ref)
    if name in FULL_KL:
        p, q = (logp, ref) if name == FULL_KL[0] else (ref, logp)
        return (p.exp() * (p - q)).sum()
    d = logp - ref
    k3 = (-d).exp() - 1 + (-d if c.get("flipped") else d)
    value = {"k1": d, "k2": d * d / 2, "k3": k3, "|k1|": abs(d)}[name.split()[0]]
    return value * (logp - c["old_logprobs"][i, t]).exp() if "ratio" in name else value


def ways_of(formula: str, takes: set[str], full: bool) -> list[str]:
    """The published ways of writing a formula, for a function that takes these inputs.

    Args:
        full: whether log-probs are of the whole vocabulary.
    """
    kind = FORMULAS[formula].kind
    if kind == "kl":
        names = [*FULL_KL] if full else ["k1", "k2", "k3", "|k1|"] if formula == "kl" else [formula]
        return names + [f"{name} times the ratio" for name in names if "old_logprobs" in takes]
    if kind == "value":
        clips = [""] if "old_values" not in takes else ["clipped "] if "value_clip" in takes else ["clipped ", ""]
        return [f"{clip}{error}" for clip in clips for error in ("half squared error", "squared error")]
    names = {"gspo": ["gspo", "gspo of each token"], "cispo": ["cispo", CISPO_PAPER, CISPO_TRL]}.get(formula, [formula])
    terms = ("k3", "k1", "k2", "k3 times the ratio", IN_ADVANTAGE) if "ref_logprobs" in takes else ()
    with_kl = [f"{name} with {kl}" for name in names for kl in terms]
    names = with_kl if {"ref_logprobs", "beta"} <= takes else with_kl + names
    return [f"{name}{how}" for name in names for how in WEIGHTS] if "rollout_logprobs" in takes else names


def token_losses(way: str, kind: str, c: dict):
    """Losses [B, T] in one way of writing the formula, 0 outside the mask."""
    weighing = next((how for how in WEIGHTS if how and way.endswith(how)), "")
    losses, (name, _, kl) = [], way.removesuffix(weighing).partition(" with ")
    if kl == IN_ADVANTAGE:
        penalty = c["beta"] * (c["logprobs"] - c["ref_logprobs"]).detach()
        kl, c = "", c | {"advantages": c["advantages"] - penalty}
    for i, mask in enumerate(c["mask"]):
        row, places = [c["mask"].new_zeros(())] * len(mask), mask.nonzero().flatten().tolist()
        for t in places:
            if kind == "loss":
                over = {"": [], TOKEN_WEIGHT: [t]}.get(weighing, places)
                weight = math.exp(sum(float(c["old_logprobs"][i, k] - c["rollout_logprobs"][i, k]) for k in over))
                row[t] = policy_token(name, c, i, t, places) * weight
                row[t] = row[t] + (c["beta"] * kl_token(kl, c, i, t) if kl else 0)
            else:
                row[t] = {"kl": kl_token, "value": value_token}[kind](way, c, i, t) if kind != "mean" else c["x"][i, t]
        losses.append(torch.stack(row))
    return torch.stack(losses)


def aggregated(losses, c: dict, dims: int) -> dict:
    """{aggregation: result} of losses [B, T], for results with `dims` dimensions: 2, 1 or 0."""
    sums, counts, n = losses.sum(1), c["mask"].sum(1), c["length"]
    means = sums / counts.clamp(min=1)
    if dims:
        by_row = {"token mean of each row": means, "token sum of each row": sums, "token sum / N": sums / n}
        return {"each token": losses} if dims == 2 else by_row
    results = {"sum over tokens / their number": sums.sum() / counts.sum(), "sum over tokens": sums.sum()}
    for rows, words in ((len(counts), ""), (int((counts > 0).sum()), ", empty rows left out")):
        results[f"mean over sequences of token means{words}"] = means.sum() / rows
        results[f"token sum, mean over sequences{words}"] = sums.sum() / rows
        results[f"token sum / N, mean over sequences{words}"] = sums.sum() / rows / n
        results[f"token sum / width, mean over sequences{words}"] = sums.sum() / rows / losses.shape[1]
    columns = losses.sum(0) / c["mask"].sum(0).clamp(min=1)
    return results | {"token sum / N": sums.sum() / n, WRONG_AXIS: columns.mean()}


def group_advantages(formula: str, c: dict) -> dict:
    """{way: advantages [n]} of the scores [n], by the ids of their groups."""
    scores, ids, mean = c["scores"].flatten().tolist(), c["groups"], statistics.fmean
    groups = {name: [x for x, other in zip(scores, ids, strict=True) if other == name] for name in ids}
    pairs = [(x, groups[name]) for x, name in zip(scores, ids, strict=True)]
    if formula == "dr_grpo_advantage":
        return {"R - mean": [x - mean(group) for x, group in pairs]}
    if formula == "rloo":
        return {"R - mean of the others": [x - (sum(group) - x) / (len(group) - 1) for x, group in pairs]}
    ways = {}
    for eps in dict.fromkeys((c["std_eps"], *DEVIATION_EPS, *(x for x in c["numbers"] if 0 < x < 0.01))):
        for name, deviation in (("unbiased", statistics.stdev), ("population", statistics.pstdev)):
            for whole, of in (([], ""), (scores, " of the batch")):
                ways[f"{name} deviation{of}, eps {eps:g}"] = [
                    (x - mean(group)) / (deviation(whole or group) + eps) for x, group in pairs
                ]
    return ways
