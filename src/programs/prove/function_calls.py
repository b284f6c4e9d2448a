"""Inputs for functions of losses and advantages, by role; calling a function with them, and its gradient."""

import math

from programs.prove.formulas import FORMULAS
from programs.prove.recognition import Candidate

MASK = (  # ragged rows, pads on either side, a hole, an empty row
    (0, 1, 1, 1, 1, 1, 1),
    (0, 0, 1, 0, 1, 1, 0),
    (1, 1, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, 0),
    (1, 1, 1, 1, 0, 0, 0),
)
SCORES, ROW_ADVANTAGES = (0.3, 1.0, 0.9, 0.0, 0.1, 2.0, 0.6, 0.4), (1.3, -0.8, 0.6, 2.0, -1.7)
BY_TOKEN = ("logprobs", "old_logprobs", "ref_logprobs", "values", "old_values", "returns", "token_rewards", "x")
NUMBERS = {
    **{"low": 0.1, "high": 0.3, "clip": 0.2, "value_clip": 0.2, "std_eps": 1e-3, "beta": 0.7, "gamma": 0.9, "sign": 1},
    **{"gae_lambda": 0.8, "length": 11.0, "tau_pos": 1.0, "tau_neg": 1.05, "group_size": 4, "dual_clip": 2.0},
}
LEAVES = {"value": "values", "mean": "x"}  # what a gradient is taken of, log-probs elsewhere


def inputs(kind: str, takes: set[str], given: dict[str, float]) -> dict:
    """Inputs by role, in float64, random beneath the mask too; `given` numbers stand for those of NUMBERS."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = MASK if kind != "advantage" else [MASK[i] for i in (0, 1, 2, 4)] * 2
    mask = torch.tensor(rows, dtype=torch.float64)
    mask = mask if "mask" in takes else torch.ones_like(mask)
    c = {name: torch.randn(mask.shape, generator=generator, dtype=torch.float64) for name in BY_TOKEN}
    c["logprobs"] = -c["logprobs"].abs() - 0.1
    for name, size in (("old_logprobs", 0.5), ("ref_logprobs", 0.3)):
        c[name] = c["logprobs"] + size * c[name]
    c["old_values"] = c["values"] + 0.4 * c["old_values"]
    c |= NUMBERS | {"mask": mask, "scores": torch.tensor(SCORES, dtype=torch.float64), "all": c["x"], "groups": [0] * 5}
    c |= {"low": 0.2, "high": 0.2} if not takes & {"low", "high"} else {}
    c |= {"dual_clip": 0.0, "gamma": 1.0, "gae_lambda": 1.0} | {name: c[name] for name in NUMBERS if name in takes}
    c |= given
    if kind == "advantage":
        c["groups"] = [i % 2 if "groups" in takes else i // 4 for i in range(len(SCORES))]
        c["token_rewards"] = torch.zeros_like(mask)
        c["token_rewards"][range(len(mask)), [row.nonzero().max().item() for row in mask]] = c["scores"]
    return c


def input_forms(formula: str, kind: str, takes: set[str], c: dict) -> list[dict]:
    """The forms that a function may want its inputs in; the formula is the same for all."""
    import torch

    if kind == "advantage":
        ids = [{"ids": torch.tensor(c["groups"])}, {"ids": c["groups"]}]
        return ids if takes & {"groups", "group_size", "token_rewards"} else [{"scores": c["scores"].view(2, 4)}]
    if kind == "gae" and "mask" in takes:
        whole = (c["mask"].cumsum(1) > 0) & (c["mask"].flip(1).cumsum(1).flip(1) > 0)
        return [{}, {"mask": whole.double(), "note": ", for masks without holes alone"}]
    if kind != "loss":
        return [{}]
    rows = torch.tensor(ROW_ADVANTAGES, dtype=torch.float64)
    same = rows[:, None].expand_as(c["mask"])
    forms = [{"advantages": x, "all": same} for x in (same, rows, rows[:, None])]
    return forms if formula in ("gspo", "gmpo") else [{"advantages": c["x"]}, *forms]


class Tried:
    """A function that is called with inputs by role."""

    def __init__(self, function, candidate: Candidate):
        self.function, self.roles, self.takes = function, candidate.roles, {*candidate.roles.values()}
        self.kind = FORMULAS[candidate.formula].kind
        self.leaf = LEAVES.get(self.kind, "logprobs")

    def __call__(self, c: dict):
        """The first tensor that it returns; what it raises for each type of mask goes up."""
        import torch

        for dtype in (torch.float64, torch.bool):
            values = c | {"mask": c["mask"].to(dtype), "groups": c.get("ids")}
            try:
                result = self.function(**{name: values[role] for name, role in self.roles.items()})
                break
            except Exception:
                if dtype == torch.bool or "mask" not in self.takes:
                    raise
        result = next(iter(result.values())) if isinstance(result, dict) else result
        result = torch.as_tensor(result[0] if isinstance(result, tuple) else result)
        return result.reshape(()) if result.numel() == 1 else result

    def with_gradient(self, c: dict):
        """(Result, gradient of its weighted sum or None), with the weights of `weights`."""
        import torch

        c = c | {self.leaf: c[self.leaf].clone().requires_grad_(True)}
        result = self(c)
        if not result.requires_grad:
            return result, None
        weights = self.weights(c, result)
        total = (torch.where(weights != 0, result, torch.zeros_like(result)) * weights).sum()
        return result.detach(), torch.autograd.grad(total, c[self.leaf], allow_unused=True)[0]

    def weights(self, c: dict, result):
        """Weights of a result's entries, 0 for those of which a formula says nothing: padding, empty rows."""
        import torch

        mask, ones = c["mask"], torch.ones_like(result, dtype=torch.float64)
        if result.shape == mask.shape:
            return mask * (1 + torch.arange(mask.numel(), dtype=mask.dtype).view(mask.shape) % 5)
        return (mask.sum(1) > 0) * ones if result.dim() == 1 and len(result) == len(mask) else ones


def near(a, b, weights) -> float:
    """The largest difference where weights are not 0, relative to b's size: 0 within rounding, infinite for nan."""
    import torch

    gap = torch.where(weights != 0, (a.double() - b).abs(), torch.zeros_like(b)).max().item()
    size = torch.where(weights != 0, b.abs(), torch.zeros_like(b)).max().item()
    gap = math.inf if math.isnan(gap) else gap / max(1.0, size)
    return 0.0 if gap <= (1e-12 if a.dtype == torch.float64 else 3e-5) else gap
