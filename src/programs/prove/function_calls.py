"""Make inputs by role for functions of losses and advantages; call a function with them; take its gradient."""

import contextlib
import copy
import dataclasses
import itertools
import math
import re

from parts.foundation.processes import torch
from programs.prove.formulas import FORMULAS
from programs.prove.recognition import RATIOS, SMALLEST_CLIP, Candidate

MASK = (  # ragged rows, pads on either side, a hole, an empty row
    (0, 1, 1, 1, 1, 1, 1),
    (0, 0, 1, 0, 1, 1, 0),
    (1, 1, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, 0),
    (1, 1, 1, 1, 0, 0, 0),
)
SCORES, ROW_ADVANTAGES = (0.3, 1.0, 0.9, 0.0, 0.1, 2.0, 0.6, 0.4), (1.3, -0.8, 0.6, 2.0, -1.7)
# {place: log-ratio} where no clip bounds the loss, yet below 5, from where implementations cap log-ratios
LARGE = {(0, 1): -3.0, (0, 2): -4.5, (4, 0): 3.0, (4, 1): 4.5}
# the same for rows whose mean ratio a bound cuts: above with a positive advantage, below with a negative one
CUT = {(2, 0): 0.2, (2, 1): 0.9, (1, 2): -0.2, (1, 4): -0.9, (1, 5): -0.1}
BY_TOKEN = tuple(
    "logprobs old_logprobs ref_logprobs values old_values returns token_rewards x rollout_logprobs".split()
)
AFTER = (0.9, -0.7, 1.6, -1.2, 0.5)  # value after the last step of each row, for functions that take it
NUMBERS = {
    **{"low": 0.1, "high": 0.3, "clip": 0.2, "value_clip": 0.2, "std_eps": 1e-3, "beta": 0.7, "gamma": 0.9, "sign": 1},
    **{"gae_lambda": 0.8, "length": 11.0, "tau_pos": 1.0, "tau_neg": 1.05, "group_size": 4, "dual_clip": 2.0},
}
INSIDE = {"loss": ("low", "high", "beta"), "value": ("value_clip",), "gae": ("gamma", "gae_lambda")}  # by kind
MOST_INSIDE = 24  # ways to assign a function's own numbers to roles
BY_WEIGHTS = ("loss", "kl", "value")  # kinds that may have further terms with weights
LEAVES = {"value": "values", "mean": "x"}  # input that the gradient is taken for, by kind; else log-probs
NOTES = {  # what the report says about a form of inputs
    **{"whole": "for masks without holes alone", "by_time": "for [T, B], not [B, T]", "squeezed": "for one row a call"},
    **{"bootstrap": "for values with one more", "part": "the second of what it returns"},
    "full": "for log-probs of the whole vocabulary",
    "interleaved": "for samples in the order p1 p2 … p1 p2 …",
    "white": "with the advantages whitened inside",
    "one_group": "for one group a call: a batch of groups would count as one",
    "off": "with its further terms at weight 0",
    "dual_inside": "with a dual clip of 3 inside",
}


def inputs(kind: str, takes: set[str], numbers: list[float]) -> dict:
    """Inputs by role in float64, random beneath the mask too; `numbers` are those in the function's source."""
    generator = torch.Generator().manual_seed(0)
    rows = MASK if kind != "advantage" else [MASK[i] for i in (0, 1, 2, 4)] * 2
    mask = torch.tensor(rows, dtype=torch.float64)
    mask = mask if "mask" in takes else torch.ones_like(mask)
    c = {name: torch.randn(mask.shape, generator=generator, dtype=torch.float64) for name in BY_TOKEN}
    c["logprobs"] = -c["logprobs"].abs() - 0.1
    for name, size in (("old_logprobs", 0.5), ("ref_logprobs", 0.3)):
        c[name] = c["logprobs"] + size * c[name]
    for place, size in (LARGE | CUT).items() if kind == "loss" else ():
        c["old_logprobs"][place] = c["logprobs"][place] - size
        if place in LARGE:
            c["x"][place] = -math.copysign(1 + c["x"][place].abs(), size)
    c["values"] *= kind != "gae" or "values" in takes
    c["rollout_logprobs"] = c["old_logprobs"] + 0.03 * c["rollout_logprobs"]  # no bound is near these ratios
    c["old_values"] = c["values"] + 0.4 * c["old_values"]
    for i, (move, error) in enumerate(itertools.product((-0.5, 0.1, 0.5), (-0.9, 0.9)) if kind == "value" else (), 1):
        c["old_values"][0, i], c["returns"][0, i] = c["values"][0, i] - move, c["values"][0, i] - error
    c |= NUMBERS | {"mask": mask, "scores": torch.tensor(SCORES, dtype=torch.float64), "all": c["x"], "groups": [0] * 5}
    zeros = torch.zeros_like(mask)
    c |= {"after": zeros[:, 0], "entropy": zeros, "entropy_weight": 0.1}
    c |= {"low": 0.2, "high": 0.2} if not takes & {"low", "high"} else {}
    c |= {"dual_clip": 0.0, "gamma": 1.0, "gae_lambda": 1.0} | {name: c[name] for name in NUMBERS if name in takes}
    c |= {"numbers": numbers} | ({"beta": 1.0} if kind == "kl" else {})
    if kind == "advantage":
        c["groups"] = [i % 2 if "groups" in takes else i // 4 for i in range(len(SCORES))]
        c["token_rewards"] = torch.zeros_like(mask)
        c["token_rewards"][range(len(mask)), [row.nonzero().max().item() for row in mask]] = c["scores"]
    return c


def values_inside(role: str, numbers: list[float]) -> list[float]:
    """Numbers of a function's source as values of a role; bounds may be written as 1 - low and 1 + high."""
    ways = {"low": lambda x: (x, 1 - x), "high": lambda x: (x, x - 1)}.get(role, lambda x: (x,))
    values = {round(y, 12) for x in numbers for y in ways(x) if y > SMALLEST_CLIP}
    return sorted(y for y in values if y <= 0.5 or (role == "high" and y > 1) or role not in ("low", "high"))


def inside_forms(formula: str, kind: str, takes: set[str], numbers: list[float]) -> list[dict]:
    """Forms for numbers that a function has inside instead of taking them."""
    roles = ("tau_pos", "tau_neg") if formula == "sapo" else INSIDE.get(kind, ())
    bounded = takes & {"low", "high", "clip"} or formula == "reinforce"
    roles = [x for x in roles if x not in takes and not (bounded and x in ("low", "high"))]
    roles = [x for x in roles if {"beta": "ref_logprobs", "gae_lambda": "values"}.get(x) in (None, *takes)]
    ways = itertools.product(*(values_inside(role, numbers) or [NUMBERS[role]] for role in roles))
    forms = [dict(zip(roles, way, strict=True)) | {"inside": roles} for way in ways if roles]
    forms.sort(key=lambda form: form.get("low") != form.get("high"))
    lengths = values_inside("length", numbers) if kind == "loss" and "length" not in takes else []
    return forms[:MOST_INSIDE] + [{"length": x, "inside": ["length"]} for x in lengths if x > 1]


def input_forms(formula: str, kind: str, takes: set[str], c: dict) -> list[dict]:
    """Forms that a function may want its inputs in: changes to `c` that leave the formula the same."""
    if kind == "advantage":
        ids = [{"ids": torch.tensor(c["groups"])}, {"ids": c["groups"]}]
        group = {"scores": c["scores"][:4], "mask": c["mask"][:4], "groups": [0] * 4, "one_group": True}
        if "group_size" in takes and "groups" not in takes:
            ids.append({"groups": [i % 2 for i in range(len(SCORES))], "interleaved": True})
        return ids if takes & {"groups", "group_size", "token_rewards"} else [{"scores": c["scores"].view(2, 4)}, group]
    forms = [{}]
    if kind == "gae":
        whole = (c["mask"].cumsum(1) > 0) & (c["mask"].flip(1).cumsum(1).flip(1) > 0)
        row = {name: c[name][:1] for name in ("token_rewards", "values", "mask")} | {"squeezed": True}
        ways = [{}, {"mask": whole.double(), "whole": True}]
        if "mask" not in takes:
            ways = [{}, row]
            ways += [x | {"bootstrap": True, "after": torch.tensor(AFTER, dtype=torch.float64)} for x in ways]
        forms = [part | way for part in ({}, {"part": 1}) for way in ways]
    elif kind == "loss":
        rows = torch.tensor(ROW_ADVANTAGES, dtype=torch.float64)
        same = rows[:, None].expand_as(c["mask"])
        forms = [{"advantages": x, "all": same} for x in (same, rows, rows[:, None])]
        forms = forms if formula in ("gspo", "gmpo") else [{"advantages": c["x"]}, *forms]
    # for [T, B], advantages equal along a row would hide a mean over the wrong axis
    wide = [x for x in forms if kind != "loss" or x["advantages"] is c["x"] or x["advantages"].dim() == 1]
    forms += [x | {"by_time": True} for x in wide if not x.get("squeezed")]
    more = [*inside_forms(formula, kind, takes, c["numbers"]), *([{"off": True}] if kind in BY_WEIGHTS else [])]
    if kind == "loss" and "dual_clip" not in takes:
        more.append({"dual_clip": 3.0, "dual_inside": True})
    forms += [form | other for other in more for form in forms]
    if formula == "kl":
        scale = torch.linspace(-1, 1, 5, dtype=torch.float64)
        names = ("logprobs", "ref_logprobs")
        forms.append({n: (c[n][..., None] * scale).log_softmax(-1) for n in names} | {"full": True})
    return forms + (whitened_forms(c, forms) if kind == "loss" else [])


def whitened_forms(c: dict, forms: list[dict]) -> list[dict]:
    """Forms of a loss that whitens its advantages; others would not show whether it leaves out padding."""
    whitened = []
    for form, correction in itertools.product(forms, (1, 0)):
        given = form["advantages"]
        if given.shape in (c["mask"].shape, () if "by_time" in form else c["mask"].shape[:1]):
            inside = given[c["mask"].bool()] if given.shape == c["mask"].shape else given
            white = (given - inside.mean()) / inside.std(correction=correction)
            whitened.append(form | {"all": white.reshape(len(white), -1).expand_as(c["mask"]), "white": True})
    return whitened


class Tried:
    """A function of losses or advantages, called with inputs by role."""

    def __init__(self, function, candidate: Candidate):
        self.function, self.roles, self.takes = function, candidate.roles, {*candidate.roles.values()}
        self.kind = FORMULAS[candidate.formula].kind
        self.leaf = LEAVES.get(self.kind, "logprobs")
        self.terms = [x for x in candidate.left if re.search("(coef|coeff|weight)$", x.lower())]
        self.changed, self.others = [], None

    def __call__(self, c: dict):
        """Call the function with each type of inputs until one works; returns its tensor, rows first, or raises."""
        *ways, last = self.handed(c)
        for values in ways:
            with contextlib.suppress(Exception):
                return self.read(c, values)
        return self.read(c, last)

    def handed(self, c: dict) -> list[dict]:
        """Inputs by role as tensors, with a boolean mask, and where no gradient is taken also as arrays and lists."""
        given = c | {"groups": c.get("ids", c["groups"])}
        if RATIOS & self.takes:
            steps = c["logprobs"] - c["old_logprobs"]
            given |= {"log_ratio": steps, "ratio": steps.exp()}
        tensors = {role: given[role] for role in self.takes}
        for role, x in tensors.items():
            if getattr(x, "shape", None) == c["mask"].shape:
                if c.get("bootstrap") and role == "values":
                    x = torch.cat([x, c["after"][: len(x), None]], 1)
                tensors[role] = x[0] if c.get("squeezed") else x.T if c.get("by_time") else x
        kinds = ("numpy", "tolist") if self.kind in ("gae", "advantage") else ()
        others = [{n: getattr(x, kind)() if torch.is_tensor(x) else x for n, x in tensors.items()} for kind in kinds]
        return [tensors, *others, tensors | ({"mask": tensors["mask"].bool()} if "mask" in tensors else {})]

    def read(self, c: dict, given: dict):
        """Call the function with inputs by role; returns one tensor and keeps what else it returns in `others`."""
        copies = {role: x.clone() if torch.is_tensor(x) else copy.deepcopy(x) for role, x in given.items()}
        settings = dict.fromkeys(self.terms if c.get("off") else (), 0.0) | c.get("set", {})
        result = self.function(**({name: copies[role] for name, role in self.roles.items()} | settings))
        changed = set()
        for role, x in given.items():
            keep = given.get("mask", x) != 0
            if torch.is_tensor(x) and ((x != copies[role]) & (keep if keep.shape == x.shape else x == x)).any():
                changed.add(role)
        self.changed = [name for name, role in self.roles.items() if role in changed]
        if dataclasses.is_dataclass(result) or hasattr(result, "_asdict"):
            result = {name: getattr(result, name) for name in result.__annotations__}
        if isinstance(result, dict):
            word = {"loss": "loss", "value": "loss", "kl": "kl"}.get(self.kind, "adv")
            names = [x for x in (word, f"{word}antages") if x in result]
            names = names or [x for x in result if word in str(x).lower()] or [*result]
            result = (result[names[0]], *(x for name, x in result.items() if re.search("return|target", str(name))))
        others = [x for x in result if not isinstance(x, dict)] if isinstance(result, tuple) else [result]
        result = self.turned(others.pop(c.get("part", 0)), c)
        with contextlib.suppress(Exception):  # they may be anything
            others = [self.turned(x, c) for x in others]
        self.others = others
        return result.reshape(()) if result.numel() == 1 else result

    def turned(self, result, c: dict):
        """A result with its rows first."""
        result = torch.as_tensor(result)
        return result[None] if c.get("squeezed") else result.T if c.get("by_time") and result.dim() == 2 else result

    def with_gradient(self, c: dict):
        """(Result, gradient of its sum weighted by `weights`, or None if it carries no gradient)."""
        c = c | {self.leaf: c[self.leaf].clone().requires_grad_(True)}
        result = self(c)
        if not result.requires_grad:
            return result, None
        weights = self.weights(c, result)
        total = (torch.where(weights != 0, result, torch.zeros_like(result)) * weights).sum()
        return result.detach(), torch.autograd.grad(total, c[self.leaf], allow_unused=True)[0]

    def weights(self, c: dict, result):
        """Weights of a result's entries: 0 for padding and empty rows, which no formula defines."""
        mask, ones = c["mask"], torch.ones_like(result, dtype=torch.float64)
        if result.shape == mask.shape:
            return mask * (1 + torch.arange(mask.numel(), dtype=mask.dtype).view(mask.shape) % 5)
        return (mask.sum(1) > 0) * ones if result.dim() == 1 and len(result) == len(mask) else ones


def near(a, b, weights) -> float:
    """The largest difference where weights are not 0, relative to b's largest entry; 0 within rounding, inf for nan."""
    gap = torch.where(weights != 0, (a.double() - b).abs(), torch.zeros_like(b)).max().item()
    size = torch.where(weights != 0, b.abs(), torch.zeros_like(b)).max().item()
    gap = math.inf if math.isnan(gap) else gap / max(1.0, size)
    return 0.0 if gap <= (1e-12 if a.dtype == torch.float64 else 3e-5) else gap
