"""Functions of losses and advantages: value and gradient by the formula, and nan under the mask."""

import ast
import contextlib
import math
import re
import sys
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.learning.oracles import own_gae
from parts.rewards.reward_forms import import_file
from programs.prove.formulas import FORMULAS, aggregated, group_advantages, token_losses, ways_of
from programs.prove.function_calls import BY_TOKEN, NUMBERS, Tried, input_forms, inputs, near
from programs.prove.proof import Proof
from programs.prove.recognition import Candidate, recognised

FAULTS = {  # what is changed in the inputs of the formula, and the sign of its result
    "the formula with its sign flipped": lambda c: {"sign": -c["sign"]},
    "the formula without the mask": lambda c: {"mask": c["mask"] * 0 + 1},
    "the formula with its bound on the wrong side": lambda c: {"all": -c["all"], "sign": -c["sign"]},
    "the formula without a bound": lambda c: {"low": math.inf, "high": math.inf, "value_clip": math.inf},
    "the formula with its two bounds exchanged": lambda c: {"low": c["high"], "high": c["low"]},
    "the formula with the ratio upside down": lambda c: {"logprobs": c["old_logprobs"], "old_logprobs": c["logprobs"]},
    "the formula without the old log-probs, the ratio always 1": lambda c: {"old_logprobs": c["logprobs"].detach()},
    "the formula without the KL term": lambda c: {"beta": 0.0},
    "the formula over the whole batch as one group": lambda c: {"groups": [0] * len(c["groups"])},
    "the formula over neighbours as groups": lambda c: {"groups": [i // 4 for i in range(len(c["groups"]))]},
    "the formula with gamma and lambda exchanged": lambda c: {"gamma": c["gae_lambda"], "gae_lambda": c["gamma"]},
}
SETTABLE = [name for name in NUMBERS if name not in ("sign", "group_size")]
ROUNDING = 1e-6  # relative, of value and gradient in float64: implementations add 1e-8 here and there
PADDED = " / width"  # an aggregation that divides by all places, padding included: Dr. GRPO's alone


def references(formula: str, tried: Tried, c: dict, shape) -> dict:
    """{way of writing the formula: (result of this shape, the leaf that a gradient is taken of or None)}."""
    import torch

    if tried.kind in ("advantage", "gae"):
        names = ("token_rewards", "values", "mask", "gamma", "gae_lambda")
        made = {} if tried.kind == "gae" else group_advantages(formula, c)
        found = {way: torch.tensor(x, dtype=torch.float64) for way, x in made.items()}
        found = {way: x[:, None] * c["mask"] if shape == c["mask"].shape else x for way, x in found.items()}
        if tried.kind == "gae":
            plain = own_gae(*(c[name] for name in names))
            inside, found = plain[c["mask"].bool()], {"not whitened": plain}
            for i, how in enumerate(("population deviation", "unbiased deviation")):
                found[f"whitened, {how}"] = (plain - inside.mean()) / inside.std(correction=i)
        return {way: (c["sign"] * x.reshape(shape), None) for way, x in found.items() if x.numel() == math.prod(shape)}
    leaf = c[tried.leaf].detach().clone().requires_grad_(True)
    c, found = c | {tried.leaf: leaf, "advantages": c["all"]}, {}
    for way in ways_of(formula, tried.takes):
        for how, value in aggregated(token_losses(way, tried.kind, c), c, len(shape)).items():
            found[f"{way}, {how}"] = (c["sign"] * value, leaf)
    return {way: pair for way, pair in found.items() if pair[0].shape == shape}


def judge(candidate: Candidate, function, numbers: dict[str, float]) -> None:
    """Compare a function with its formula, in the form of inputs that it takes."""
    tried, nearest = Tried(function, candidate), []
    c = inputs(tried.kind, tried.takes, numbers)
    c["sign"] = -1 if "objective" in candidate.name else 1  # which is maximised
    for form in input_forms(candidate.formula, tried.kind, tried.takes, c):
        try:
            result, gradient = tried.with_gradient(c | form)
            found = references(candidate.formula, tried, c | form, result.shape)
            weights = tried.weights(c, result)
            gaps = {way: compared(result, gradient, *pair, weights) for way, pair in found.items()}
            ranks = [(*(x * (x > ROUNDING) for x in gap), PADDED in way, *gap, way) for way, gap in gaps.items()]
            nearest += [(rank, c | form, result) for rank in ranks]
            problem = f"it could not be read: it returns a tensor {[*result.shape]}"
        except Exception as error:  # a form that it does not take, or the function itself
            problem = f"it could not be called: {type(error).__name__}: {str(error)[:160]}"
        candidate.why = candidate.why or problem
    if not nearest:
        return
    (value, gradient, *_, way), given, result = min(nearest, key=lambda x: x[0])
    candidate.why, candidate.written_as = "", way + given.get("note", "")
    if value or gradient:
        candidate.find(named_fault(candidate.formula, tried, given, result, value, gradient, way))
        return
    look_at_way(candidate, way)
    if "mask" in tried.takes:
        look_beneath(candidate, tried, given)
    if tried.kind == "advantage":
        equal = tried(given | {"scores": given["scores"] * 0, "token_rewards": given["token_rewards"] * 0}).flatten()
        if not bool((equal.abs() <= ROUNDING).all()):
            candidate.find(f"groups of equal scores get {equal[0].item():g}; expected 0")


def compared(result, gradient, reference, leaf, weights) -> tuple[float, float]:
    """(Difference of value, of gradient), relative; the second is 0 where there is none to take."""
    import torch

    value = near(result, reference.detach(), weights)
    if leaf is None or value > ROUNDING:
        return value, 0.0
    (own,) = torch.autograd.grad((reference * weights).sum(), leaf, retain_graph=True)
    got = torch.zeros_like(own) if gradient is None else gradient
    return value, near(got, own, torch.ones_like(own))


def named_fault(formula: str, tried: Tried, c: dict, result, value: float, gradient: float, way: str) -> str:
    """What a function computes instead of its formula."""
    import torch

    weights, about = tried.weights(c, result), f"{formula} ({FORMULAS[formula].source})"
    if not value:
        return f"its value is that of {about}, {way}, its gradient is not (relative difference {gradient:.2g})"
    if not torch.where(weights != 0, result, torch.zeros_like(result)).isfinite().all():
        return f"it returns nan or infinity on ragged rows, a hole and an empty row; {about} is finite there"
    for text, change in FAULTS.items():
        others = references(formula, tried, c | change(c), result.shape).values()
        if any(near(result, other.detach(), weights) <= ROUNDING for other, _ in others):
            return f"it computes {text}; expected {about}"
    return f"it is none of the published forms of {about}: the nearest, {way}, differs by {value:.2g} (relative)"


def look_at_way(candidate: Candidate, way: str) -> None:
    """Add a finding about an aggregation that is another formula's."""
    wanted, how = FORMULAS[candidate.formula].aggregations, way.partition(", ")[2]
    if PADDED in how and candidate.formula != "dr_grpo":
        candidate.find("it divides by all places, padding included; expected the masked tokens alone")
    elif wanted and not how.startswith(("each token", "token mean of each row", wanted)):
        candidate.find(f"it aggregates by {how}; expected {wanted} for {candidate.formula}")


def look_beneath(candidate: Candidate, tried: Tried, c: dict) -> None:
    """Note where nan beneath the mask gets into; add a finding where it raises."""
    import torch

    hidden, nan = c["mask"] == 0, c["mask"] * math.nan
    names = {*BY_TOKEN, "advantages"} - {"token_rewards"}  # which no network computes
    spoilt = {n: torch.where(hidden, nan, c[n]) for n in names if getattr(c.get(n), "shape", None) == hidden.shape}
    usual, gradient = tried.with_gradient(c)
    try:
        result, other = tried.with_gradient(c | spoilt)
    except Exception as error:
        candidate.find(f"with nan beneath the mask it raises {type(error).__name__}: {str(error)[:120]}")
        return
    in_value = near(result, usual.double(), tried.weights(c, result)) > ROUNDING
    if in_value or (gradient is not None and near(other, gradient.double(), nan.isnan()) > ROUNDING):
        candidate.leak = "value" if in_value else "gradient"


def is_own(file: Path, folder: Path) -> bool:
    """Whether a file of a folder lies in no dot-folder and no installed package."""
    return not any(name.startswith(".") or name == "site-packages" for name in file.relative_to(folder).parts[:-1])


def functions_of(path: Path) -> tuple[dict[Path, list[ast.FunctionDef]], dict[Path, str]]:
    """({file: its public functions}, {file of a folder that cannot be read: why}), parsed and not run."""
    found, failed = {}, {}
    for file in [x for x in sorted(path.rglob("*.py")) if is_own(x, path)] if path.is_dir() else [path]:
        try:
            nodes = ast.parse(file.read_text(encoding="utf-8")).body
        except (OSError, ValueError, SyntaxError) as error:
            need(path.is_dir(), f"got {file}, which cannot be read ({error}); expected Python in UTF-8")
            failed[file] = f"it cannot be read ({error})"
        else:
            found[file] = [n for n in nodes if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    return found, failed


def named_formulas(given: str, names: list[str]) -> dict[str, str]:
    """{function: formula} of --as: `my_loss=grpo,…`, or formulas of the functions in their order."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    expected = f"expected NAME=FORMULA,… or a formula for each of {', '.join(names)}; formulas: {', '.join(FORMULAS)}"
    if len(words) == len(names) and "=" not in given:
        words = [f"{name}={word}" for name, word in zip(names, words, strict=True)]
    pairs = dict(word.partition("=")[::2] for word in words)
    need({*pairs} <= {*names} and {*pairs.values()} <= {*FORMULAS}, f"got --as {given}; {expected}")
    return pairs


def named_numbers(given: str) -> dict[str, float]:
    """The numbers of --set, by role."""
    numbers = {}
    for name, _, value in (pair.partition("=") for pair in given.split(",") if pair):
        got = f"got --set {given}: {name}={value}; expected NAME=NUMBER with one of {', '.join(SETTABLE)}"
        need(name in SETTABLE and re.fullmatch(r"inf|[\d.]+(e-?\d+)?", value), got)
        numbers[name] = float(value)
    return numbers


def prove_functions(path: Path, only: str, given: str, numbers: str) -> Proof:
    """Compare the functions of a file or folder, or a single one, with their formulas."""
    proof, known, unknown = Proof("functions", f"{path}:{only}" if only else str(path)), [], []
    functions, failed = functions_of(path)
    nodes = [(f, n) for f, found in functions.items() for n in found if n.name == (only or n.name)]
    need(nodes, f"got {path} without {only or 'a public function'}; expected functions of losses or advantages")
    numbers = named_numbers(numbers)
    formulas = named_formulas(given, [node.name for _, node in nodes])
    for file, node in nodes:
        if file in failed:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                function = getattr(import_file("functions", str(file), str(file)), node.name, None)
        except UserError as error:
            need(path.is_dir(), str(error))
            failed[file] = " ".join(f"importing it raises {error.__cause__!r}".split())
            continue
        where = f"{node.name} ({file}, line {node.lineno})"
        x = recognised(node.name, function, where, formulas.get(node.name, ""))
        if not x.why:
            judge(x, function, numbers)
        (unknown if x.why else known).append(x)
        proof.findings += x.findings
        if not x.why:
            about = {"formula": x.formula, "source": FORMULAS[x.formula].source, "written_as": x.written_as}
            about |= {"left_at_default": [*x.left], "agrees": not x.findings, "nan_beneath_mask_reaches": x.leak}
            proof.figures[x.where] = about
    proof.not_measured += [f"{x.where}: {x.why}" for x in unknown] + [f"{file}: {why}" for file, why in failed.items()]
    accepted = f"expected losses or advantages of known names; try --as NAME=FORMULA, one of {', '.join(FORMULAS)}"
    need(known, f"got {proof.thing} with {first(proof.not_measured, 3)}; {accepted}")
    describe(proof, known)
    if proof.not_measured:
        missed = first([*(x.name for x in unknown), *map(str, failed)])
        proof.say(f"Not recognised or not imported, so not checked: {missed}.")
    return proof


def first(names: list[str], most: int = 12) -> str:
    """The first names, and how many more."""
    return ", ".join(names if len(names) <= most else [*names[:most], f"{len(names) - most} more"])


def describe(proof: Proof, known: list[Candidate]) -> None:
    """Add the sentences of what was recognised and how it agrees."""
    right = [x for x in known if not x.findings]
    names = first([f"{x.name} as {x.formula}" for x in known])
    proof.say(f"{len(known)} functions of {proof.thing} were recognised: {names}.")
    ways = f" ({first([f'{x.name}: {x.written_as}' for x in right], 8)})" if right else ""
    proof.say(
        f"{len(right)} of {len(known)} have the value and gradient of their published formula, by prove.py's own "
        f"float64 loops over single tokens, within 1e-6 (3e-5 in float32){ways}."
    )
    masked = [x for x in right if "mask" in x.roles.values() and "without holes" not in x.written_as]
    tried = "ragged rows, pads on either side, a hole and an empty row change nothing"
    if masked:
        clean = sum(not x.leak for x in masked)
        proof.say(f"{len(masked)} of these take a mask: {tried}; nan beneath it changes nothing in {clean}.")
    if leaks := [f"the {x.leak} of {x.name}" for x in known if x.leak]:
        advice = "torch.where(mask, x, 0) before arithmetic keeps it out"
        proof.say(f"Note: nan beneath the mask gets into {first(leaks)}; {advice}.")
