"""Further checks of a function that computes its formula: other inputs, other results, repeated calls."""

import contextlib
import inspect
import math
import re

from programs.prove.formulas import FORMULAS, WRONG_AXIS
from programs.prove.function_calls import BY_TOKEN, SHAPES_OF_ONE, Tried, near
from programs.prove.function_faults import PADDED, ROUNDING, Fit, references
from programs.prove.recognition import ROLES, Candidate

AFTER = (0.9, -0.7, 1.6, -1.2, 0.5)  # value after the last step of each row
CALLS = 8  # repeated calls with the same inputs
FAR = 8.0  # a log-ratio to the sampler that every truncation or filter acts on
ROWS_FIRST = r"[\[(]\s*(B|N|bs|batch\w*)\s*,\s*(T|S|L|seq\w*|time)\b|batch[ _-]first"
ONE_MORE = r"T\s*\+\s*1|one more value"


def look_at_calls(candidate: Candidate, tried: Tried, fit: Fit) -> bool:
    """Whether repeated calls give the same result; a finding if not."""
    weights = tried.weights(fit.given, fit.result)
    try:
        later = [tried(fit.given) for _ in range(CALLS)]
    except Exception as error:
        candidate.find(f"a later call with the same inputs raises {type(error).__name__}: {str(error)[:120]}")
        return False
    if fit.result.isfinite().all() and any(near(x, fit.result.double(), weights) > ROUNDING for x in later):
        candidate.find("the same inputs give another value in a later call")
        return False
    return True


def look_at_way(candidate: Candidate, tried: Tried, fit: Fit, words: str) -> None:
    """Add a finding if the function aggregates unlike its formula, over padding, or over the wrong axis."""
    wanted, how = FORMULAS[candidate.formula].aggregations, fit.way.partition(", ")[2]
    if fit.given.get("by_time"):
        candidate.axis = tried.kind != "gae"
        if re.search(ROWS_FIRST, words, re.IGNORECASE):
            candidate.find("its source says [B, T], and it fits [T, B] alone: it goes over the wrong axis")
    if how.startswith(WRONG_AXIS):
        candidate.find("it averages over the wrong axis, over rows before tokens; expected the tokens of each row")
    elif PADDED in how and candidate.formula != "dr_grpo":
        candidate.find("it divides by all places, padding included; expected the masked tokens alone")
    elif wanted and not how.startswith(("each token", "token mean of each row", wanted)):
        candidate.find(f"it aggregates by {how}; expected {wanted} for {candidate.formula}")


def look_beneath(candidate: Candidate, tried: Tried, c: dict) -> None:
    """Note whether nan beneath the mask reaches the value or gradient; add a finding if it raises."""
    import torch

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
    import torch

    c, none = fit.given, torch.zeros_like(fit.given["mask"])
    for name in [x for x in (*tried.roles, *candidate.left) if re.fullmatch(ROLES["entropy"], x)]:
        with contextlib.suppress(Exception):  # an optional parameter may want another form
            low, high = (tried(c | {"set": {name: x}}).sum() for x in (none, none + 1))
            if c["sign"] * (high - low) > ROUNDING:
                candidate.find(f"a larger {name} raises the loss; expected an entropy bonus to lower it")


def look_at_bootstrap(candidate: Candidate, tried: Tried, fit: Fit, words: str) -> None:
    """Add a finding if the value after the last step is ignored or misused, or if `done` does not cut it off."""
    import torch

    roles = {role: name for name, role in tried.roles.items()}
    name = "the last of its values" if fit.given.get("bootstrap") else roles.get("after") or roles.get("next_values")
    c = fit.given | ({} if fit.given.get("going") else {"mask": torch.ones_like(fit.given["mask"])})
    n = len(c["mask"])

    def fits(after, ends=None) -> bool:
        """Whether some form of inputs gives the formula; `ends`: flags that the last step ends the episode."""
        expected = c | {"after": after * (1 if ends is None else 0)}
        tries = c | {"after": after} | (ends or {})
        for shape in SHAPES_OF_ONE:
            for values in tried.handed(tries | {"shape": shape}):
                with contextlib.suppress(Exception):
                    result = tried.read(tries, values)
                    wanted = references(candidate.formula, tried, expected, result.shape)[fit.way][0]
                    if near(result, wanted, tried.weights(c, result)) <= ROUNDING:
                        return True
        return False

    rows, zeros = torch.tensor(AFTER, dtype=torch.float64)[:n], torch.zeros(n, dtype=torch.float64)
    if not name:
        candidate.written_as += ", nothing after the last step"
        if re.search(ONE_MORE, words):
            c = c | {"bootstrap": True}
            with contextlib.suppress(Exception):
                if not near(*(tried(c | {"after": x}).double() for x in (rows, zeros)), tried.weights(c, fit.result)):
                    candidate.find("its source names T + 1 values, of which the last is never read")
        return
    afters = [after for after in (rows, zeros + AFTER[0]) if fits(after)]
    if not afters:
        with_it, without = (tried(c | {"after": x}) for x in (rows, zeros))
        ignored = not near(with_it, without.double(), tried.weights(c, without))
        about = "changes nothing" if ignored else "is not what the last step is bootstrapped with"
        candidate.find(f"{name} {about}; expected gamma * {name} after the last reward")
        return
    ends = {}
    if "after_done" in tried.takes:
        ends["after_done"] = zeros + 1
    if ("dones" in tried.takes or c.get("going")) and not c.get("begins"):
        ends["dones"] = c["dones"][:n].clone()
        ends["dones"][:, -1] = 1
    if ends and not fits(afters[0], ends):
        candidate.find(f"an end after the last step does not cut {name}; expected a factor 1 - done")


def look_at_returns(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if the returns beside a function's advantages are not advantage + value."""
    c = fit.given
    tried(c)
    others = [x.double() for x in tried.others if getattr(x, "shape", None) == fit.result.shape]
    if not others:
        return
    weights, values = tried.weights(c, fit.result), c["values"][: len(c["mask"])]

    def gae(way: str = "not whitened", **changed):
        return references("gae", tried, c | changed, fit.result.shape)[way][0]

    sums = [gae() + values, gae(gae_lambda=1.0) + values]  # at lambda = 1 returns are discounted rewards
    known = [*sums, gae(), gae(gae_lambda=0.0), values, c["token_rewards"][: len(values)]]
    if any(near(x, y, weights) <= ROUNDING for x in others for y in sums):
        return
    unknown = [x for x in others if all(near(x, y, weights) > ROUNDING for y in known)]
    if any(near(x, gae(fit.way) + values, weights) <= ROUNDING for x in unknown):
        candidate.find("returns are computed after whitening; expected them of the plain advantages")
    elif unknown:
        candidate.find("the returns beside its advantages are not advantage + value")
