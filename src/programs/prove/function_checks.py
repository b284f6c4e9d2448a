"""Compare a function with every published way of its formula, name its fault, and check what else it must do."""

import contextlib
import inspect
import math
import re
from dataclasses import dataclass

from parts.foundation.processes import torch
from parts.learning.oracles import own_gae
from programs.prove.formulas import FORMULAS, WRONG_AXIS, aggregated, group_advantages, token_losses, ways_of
from programs.prove.function_calls import BY_TOKEN, Tried, input_forms, near
from programs.prove.recognition import GENERIC, ROLES, Candidate, missing

CALLS = 8  # repeated calls with the same inputs
FAR = 8.0  # a log-ratio to the sampler that every truncation or filter acts on
ROWS_FIRST = r"[\[(]\s*(B|N|bs|batch\w*)\s*,\s*(T|S|L|seq\w*|time)\b|batch[ _-]first"
FAULTS = {  # {what a faulty function computes: the changes to the formula's inputs that give it}
    "the formula with its sign flipped": lambda c: {"sign": -c["sign"]},
    "the formula without the mask": lambda c: {"mask": c["mask"] * 0 + 1},
    "the formula with its bound on the wrong side": lambda c: {"all": -c["all"], "sign": -c["sign"]},
    "the formula with the smaller of its two errors": lambda c: {"least": True},
    "the formula with values and old values exchanged inside its clip": lambda c: {"exchanged": True},
    "the formula with policy and reference exchanged in its KL": lambda c: {"turned": True},
    "the formula with the sign of k3's linear term flipped": lambda c: {"flipped": True},
    "the formula without a bound": lambda c: {"low": math.inf, "high": math.inf, "value_clip": math.inf},
    "the formula without its lower bound": lambda c: {"low": math.inf},
    "the formula without its upper bound": lambda c: {"high": math.inf},
    "the formula with its two bounds exchanged": lambda c: {"low": c["high"], "high": c["low"]},
    "the formula with old / rollout upside down": lambda c: {
        "rollout_logprobs": 2 * c["old_logprobs"] - c["rollout_logprobs"]
    },
    "the formula with the ratio upside down": lambda c: {"logprobs": c["old_logprobs"], "old_logprobs": c["logprobs"]},
    "the formula without the old log-probs, the ratio always 1": lambda c: {"old_logprobs": c["logprobs"].detach()},
    "the formula without the KL term": lambda c: {"beta": 0.0},
    "the formula with its KL term subtracted": lambda c: {"beta": -c["beta"]},
    "the formula over the whole batch as one group": lambda c: {"groups": [0] * len(c["groups"])},
    "the formula over neighbours as groups": lambda c: {"groups": [i // 4 for i in range(len(c["groups"]))]},
    "twice the formula": lambda c: {"sign": 2 * c["sign"]},
    "half the formula": lambda c: {"sign": c["sign"] / 2},
    "the formula with its lower bound on both sides": lambda c: {"high": c["low"]},
    "the formula with its upper bound on both sides": lambda c: {"low": c["high"]},
    "the formula with lambda 1": lambda c: {"gae_lambda": 1.0},
    "the formula with gamma 1": lambda c: {"gamma": 1.0},
    "the formula with gamma and lambda exchanged": lambda c: {"gamma": c["gae_lambda"], "gae_lambda": c["gamma"]},
    "the formula whitened over the padding too": lambda c: {"padded": True},
}
ROUNDING = 1e-6  # relative tolerance of value and gradient in float64, as implementations add 1e-8 in places
PADDED = " / width"  # marks aggregations that divide by all places, padding included; right for Dr. GRPO only


@dataclass(frozen=True)
class Fit:
    """A function's result compared with the nearest way of its formula."""

    value: float  # relative difference, 0 within rounding
    gradient: float  # the same of the gradient
    way: str
    given: dict  # the inputs by role
    result: object
    changed: list  # parameters that the function changed in place

    @property
    def exact(self) -> bool:
        """Whether value and gradient are the formula's."""
        return not self.value and not self.gradient


def references(formula: str, tried: Tried, c: dict, shape) -> dict:
    """{way: (the formula's result, the tensor to take its gradient for, or None)}, of the ways with this shape."""
    if tried.kind in ("advantage", "gae"):
        names = ("token_rewards", "values", "mask", "gamma", "gae_lambda")
        results = {} if tried.kind == "gae" else group_advantages(formula, c)
        results = {way: torch.tensor(x, dtype=torch.float64) for way, x in results.items()}
        results = {way: x[:, None] * c["mask"] if shape == c["mask"].shape else x for way, x in results.items()}
        if tried.kind == "gae":
            plain = own_gae(*(c[name] for name in names), c["after"])
            inside, results = plain if c.get("padded") else plain[c["mask"].bool()], {"not whitened": plain}
            for i, how in enumerate(("population deviation", "unbiased deviation")):
                results[f"whitened, {how}"] = (plain - inside.mean()) / inside.std(correction=i)
        fitting = {way: x for way, x in results.items() if x.numel() == math.prod(shape)}
        return {way: (c["sign"] * x.reshape(shape), None) for way, x in fitting.items()}
    leaf = c[tried.leaf].detach().clone().requires_grad_(True)
    c, results = c | {tried.leaf: leaf, "advantages": c["all"]}, {}
    for way in ways_of(formula, tried.takes, c["logprobs"].dim() == 3):
        for how, value in aggregated(token_losses(way, tried.kind, c), c, len(shape)).items():
            if how != WRONG_AXIS or not c.get("by_time"):  # for [T, B] that axis is the right one
                results[f"{way}, {how}"] = (c["sign"] * value, leaf)
    return {way: pair for way, pair in results.items() if pair[0].shape == shape}


def compared(result, gradient, reference, leaf, weights) -> tuple[float, float]:
    """Relative differences of (value, gradient); the latter is 0 if the value differs or there is no gradient."""
    value = near(result, reference.detach(), weights)
    if leaf is None or value > ROUNDING:
        return value, 0.0
    (expected,) = torch.autograd.grad((reference * weights).sum(), leaf, retain_graph=True)
    got = torch.zeros_like(expected) if gradient is None else gradient
    return value, near(got, expected, torch.ones_like(expected))


def right_without_empty_rows(formula: str, tried: Tried, c: dict) -> bool:
    """Whether a function computes its formula once rows without tokens are left out, in some form of inputs."""
    full = c["mask"].sum(1) > 0
    for form in input_forms(formula, tried.kind, tried.takes, c):
        filled = {name: x[full] if getattr(x, "shape", ())[:1] == full.shape else x for name, x in (c | form).items()}
        with contextlib.suppress(Exception):
            result, gradient = tried.with_gradient(filled)
            pairs = references(formula, tried, filled, result.shape).values()
            if any(compared(result, gradient, *pair, tried.weights(filled, result)) == (0, 0) for pair in pairs):
                return True
    return False


def named_fault(candidate: Candidate, tried: Tried, c: dict, fit: Fit) -> tuple[str, bool]:
    """(What a function computes instead of its formula, in words; whether that was recognised)."""
    formula, result = candidate.formula, fit.result
    weights, about = tried.weights(c, result), f"{formula} ({FORMULAS[formula].source})"
    if not fit.value:
        return f"its value is that of {about}, {fit.way}, its gradient is not (relative gap {fit.gradient:.2g})", True
    is_finite = torch.where(weights != 0, result, torch.zeros_like(result)).isfinite().all()
    if right_without_empty_rows(formula, tried, c):
        effect = "changes its value" if is_finite else "makes it nan"
        return f"it is {about}, but for an empty row, which {effect}", True
    if not is_finite:
        return f"it returns nan or infinity on ragged rows, a hole and an empty row; {about} is finite there", True

    def way_of(other: str, changed: dict) -> str | None:
        results = references(other, tried, changed, result.shape).items()
        return next((way for way, (x, _) in results if near(result, x.detach(), weights) <= ROUNDING), None)

    for text, change in FAULTS.items():
        if way_of(formula, c | change(c)):
            is_weight = candidate.generic and candidate.left and text.split()[0] in ("twice", "half")  # a default
            return f"it computes {text}; expected {about}", not is_weight
    for other, its in sorted(FORMULAS.items(), key=lambda pair: pair[0] != "ppo"):  # others share ppo's token loss
        if its.kind == tried.kind and other != formula and not missing(other, tried.roles) and other not in GENERIC:
            if way := way_of(other, c):
                return f"it computes {other} ({its.source}), {way}; expected {about}", True
    left = f"; left at their defaults: {', '.join(candidate.left)}" if candidate.left else ""
    gap = f"the nearest, {fit.way}, differs by {fit.value:.2g} (relative){left}"
    return f"it is none of the published forms of {about}: {gap}", False


def look_at_calls(candidate: Candidate, tried: Tried, fit: Fit) -> bool:
    """Whether repeated calls give the same result; a finding if not."""
    try:
        later = [tried(fit.given) for _ in range(CALLS)]
    except Exception as error:
        candidate.find(f"a later call with the same inputs raises {type(error).__name__}: {str(error)[:120]}")
        return False
    weights = tried.weights(fit.given, fit.result)
    if fit.result.isfinite().all() and any(near(x, fit.result.double(), weights) > ROUNDING for x in later):
        candidate.find("the same inputs give another value in a later call")
        return False
    return True


def look_at_way(candidate: Candidate, fit: Fit, words: str) -> None:
    """Add a finding if the function aggregates unlike its formula, over padding, or over the wrong axis."""
    wanted, how = FORMULAS[candidate.formula].aggregations, fit.way.partition(", ")[2]
    if fit.given.get("by_time") and re.search(ROWS_FIRST, words, re.IGNORECASE):
        candidate.find("its source says [B, T], and it fits [T, B] alone: it goes over the wrong axis")
    elif how.startswith(WRONG_AXIS):
        candidate.find("it averages over the wrong axis, over rows before tokens; expected the tokens of each row")
    elif PADDED in how and candidate.formula != "dr_grpo":
        candidate.find("it divides by all places, padding included; expected the masked tokens alone")
    elif wanted and not how.startswith(("each token", "token mean of each row", wanted)):
        candidate.find(f"it aggregates by {how}; expected {wanted} for {candidate.formula}")


def look_beneath(candidate: Candidate, tried: Tried, c: dict) -> None:
    """Note whether nan beneath the mask reaches the value or gradient; add a finding if it raises."""
    hidden, spoilt = c["mask"] == 0, {}
    for name in {*BY_TOKEN, "advantages"} - {"token_rewards"}:  # rewards come from no network, so have no nan
        x = c.get(name)
        if getattr(x, "shape", ())[:2] == hidden.shape:
            places = hidden.view(*hidden.shape, *[1] * (x.dim() - 2))
            spoilt[name] = torch.where(places, x * math.nan, x)
    usual, gradient = tried.with_gradient(c)
    try:
        result, other = tried.with_gradient(c | spoilt)
    except Exception as error:
        candidate.find(f"with nan beneath the mask it raises {type(error).__name__}: {str(error)[:120]}")
        return
    in_value = near(result, usual.double(), tried.weights(c, result)) > ROUNDING
    if in_value or (gradient is not None and near(other, gradient.double(), torch.ones_like(gradient)) > ROUNDING):
        candidate.leak = "value" if in_value else "gradient"


def look_at_equal_scores(candidate: Candidate, tried: Tried, c: dict) -> None:
    """Add a finding if a group of equal scores gets advantages."""
    equal = tried(c | {"scores": c["scores"] * 0, "token_rewards": c["token_rewards"] * 0}).flatten()
    if not bool((equal.abs() <= ROUNDING).all()):
        candidate.find(f"groups of equal scores get {equal[0].item():g}; expected 0")


def look_at_sampler(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if the sampler's log-probs never matter, even so far off that a filter would drop the tokens."""
    c = fit.given
    far = c["old_logprobs"] + FAR * (-1) ** c["mask"].cumsum(1)
    with contextlib.suppress(Exception):  # a function that raises has read them
        result = tried(c | {"rollout_logprobs": far})
        if " times old / rollout" not in fit.way and not near(result, fit.result.double(), tried.weights(c, result)):
            name = next(x for x, role in tried.roles.items() if role == "rollout_logprobs")
            if inspect.signature(tried.function).parameters[name].default is not inspect.Parameter.empty:
                return  # a setting may switch it on
            candidate.find(f"{name} changes nothing, however far it is from the old log-probs")


def look_at_entropy(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if a larger entropy makes the loss larger."""
    c, none = fit.given, torch.zeros_like(fit.given["mask"])
    for name in [x for x in (*tried.roles, *candidate.left) if re.fullmatch(ROLES["entropy"], x)]:
        with contextlib.suppress(Exception):  # an optional parameter may want another form
            low, high = (tried(c | {"set": {name: x}}).sum() for x in (none, none + 1))
            if c["sign"] * (high - low) > ROUNDING:
                candidate.find(f"a larger {name} raises the loss; expected an entropy bonus to lower it")


def look_at_returns(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if the returns beside a function's advantages are not advantage + value."""
    c = fit.given
    tried(c)
    others = [x.double() for x in tried.others if getattr(x, "shape", None) == fit.result.shape]
    if not others:
        return
    weights, values = tried.weights(c, fit.result), c["values"][: len(c["mask"])]

    def gae(**changed):
        return references("gae", tried, c | changed, fit.result.shape)["not whitened"][0]

    sums = [gae() + values, gae(gae_lambda=1.0) + values]  # at lambda = 1 returns are discounted rewards
    known = [*sums, gae(), gae(gae_lambda=0.0), values, c["token_rewards"][: len(values)]]
    is_sum = any(near(x, y, weights) <= ROUNDING for x in others for y in sums)
    if not is_sum and any(all(near(x, y, weights) > ROUNDING for y in known) for x in others):
        candidate.find("the returns beside its advantages are not advantage + value, of the plain advantages")
