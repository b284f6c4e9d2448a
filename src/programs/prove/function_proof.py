"""Functions of losses and advantages: value and gradient against the formula, in the form of inputs that they take."""

import ast
import contextlib
import inspect
import math
import re
import sys
import traceback
import warnings
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.rewards.reward_forms import import_file
from programs.prove.formulas import FORMULAS, WRONG_AXIS
from programs.prove.function_calls import NOTES, NUMBERS, Tried, input_forms, inputs, whitened_forms
from programs.prove.function_checks import (
    look_at_bootstrap,
    look_at_calls,
    look_at_entropy,
    look_at_equal_scores,
    look_at_returns,
    look_at_sampler,
    look_at_way,
    look_beneath,
)
from programs.prove.function_faults import PADDED, ROUNDING, Fit, compared, named_fault, references
from programs.prove.proof import Proof, parsed
from programs.prove.recognition import Candidate, recognised

SETTABLE = [name for name in NUMBERS if name not in ("sign", "group_size")]
UNTRIED = "without holes|as 1 - done"  # masks that are not tried with a hole
UNBOUNDED = "its bounds on old / rollout not reached"
RARE = {*"by_time inside off interleaved going full dual_inside white set".split()}  # of these only exact fits count


def nearest_fit(candidate: Candidate, tried: Tried, c: dict, forms: list[dict]) -> Fit | None:
    """The fit of the first form in which a function is its formula, else of the nearest; None where none can be read.

    `candidate.why` gets the problem of the form that got furthest.
    """
    nearest, problems, file = [], [], Path(candidate.where.partition(" (")[2].rpartition(", line")[0]).name
    for form in forms:
        try:
            result, gradient = tried.with_gradient(c | form)
            found = references(candidate.formula, tried, c | form, result.shape)
            weights = tried.weights(c | form, result)
            gaps = {way: compared(result, gradient, *pair, weights) for way, pair in found.items()}
            odd = (PADDED, WRONG_AXIS)
            ranks = [
                (*(x * (x > ROUNDING) for x in gap), any(x in way for x in odd), *gap, way) for way, gap in gaps.items()
            ]
            exact = any(rank[:2] == (0.0, 0.0) for rank in ranks)
            if exact or not RARE & {*form}:
                nearest += [(rank, c | form, result, tried.changed) for rank in ranks]
            if any(rank[:3] == (0.0, 0.0, False) for rank in ranks):
                break
            problems.append((math.inf, f"it could not be read: it returns a tensor {[*result.shape]}"))
        except Exception as error:  # a form that it does not take, or the function itself
            lines = [x.lineno or 0 for x in traceback.extract_tb(error.__traceback__) if Path(x.filename).name == file]
            text = f"it could not be called: {type(error).__name__}: {str(error)[:160]}"
            problems.append((max(lines, default=0), text))
    if not nearest:
        candidate.why = max(problems, key=lambda x: x[0], default=(0, "no form of its inputs is known"))[1]
        return None
    (value, gradient, *_, way), given, result, changed = min(nearest, key=lambda x: x[0])
    return Fit(value, gradient, way, given, result, changed)


def judge(candidate: Candidate, function, numbers: dict[str, float], words: str) -> None:
    """Compare a function with its formula, in the form of inputs that it takes; `words` are its source's comments."""
    tried = Tried(function, candidate)
    c = inputs(tried.kind, tried.takes, numbers)
    c["sign"] = -1 if re.search("objective|surrogate(?!.*loss)", candidate.name.lower()) else 1  # which is maximised
    forms = input_forms(candidate.formula, tried.kind, tried.takes, c)
    fit = nearest_fit(candidate, tried, c, forms)
    if fit and fit.changed:
        candidate.find(f"it changes its caller's {', '.join(fit.changed)} in place")
    if fit and not fit.exact:
        fit = explained_fit(candidate, tried, c, forms, fit)
    if not fit:
        return
    candidate.written_as = written_as(candidate, tried, fit)
    if not fit.exact or not look_at_calls(candidate, tried, fit):
        return
    look_at_way(candidate, tried, fit, words)
    if "mask" in tried.takes and not fit.given.get("going"):
        look_beneath(candidate, tried, fit.given)
    if tried.kind == "advantage":
        look_at_equal_scores(candidate, tried, fit.given)
    if tried.kind == "gae":
        look_at_bootstrap(candidate, tried, fit, words)
        look_at_returns(candidate, tried, fit)
    if tried.kind == "loss":
        look_at_entropy(candidate, tried, fit)
    if "rollout_logprobs" in tried.takes:
        look_at_sampler(candidate, tried, fit)


def explained_fit(candidate: Candidate, tried: Tried, c: dict, forms: list[dict], fit: Fit) -> Fit | None:
    """The fit of a function that is not its formula at once: a finding, another form, or a reason not to judge it."""
    if not look_at_calls(candidate, tried, fit):
        return fit
    fault, known = named_fault(candidate, tried, fit.given, fit)
    if known:
        candidate.find(fault)
        return fit
    if other := whitened_fit(candidate, tried, c, forms):
        return other
    if "mask" in tried.takes and exact_fit(candidate, tried, c, whitened_forms(tried.kind, c, forms, padded=True)):
        candidate.find("it whitens its advantages over the padding too; expected over the masked tokens alone")
        return fit
    switches = [{"set": {name: not value}} for name, value in candidate.switches.items()]
    if other := exact_fit(candidate, tried, c, [form | switch for switch in switches for form in forms]):
        ((name, value),) = other.given["set"].items()
        fault = f"at its default {name}={not value} {fault}; with {name}={value} it is one"
    if candidate.generic:
        candidate.unknown_form = True
        candidate.why = fault.replace("it is none of the published forms", "it is not one of the forms known here")
        return None
    candidate.find(fault)
    return fit


def exact_fit(candidate: Candidate, tried: Tried, c: dict, forms: list[dict]) -> Fit | None:
    """The fit of the first form in which a function is its formula, None if there is none."""
    fit = nearest_fit(candidate, tried, c, forms)
    candidate.why = ""
    return fit if fit and fit.exact else None


def whitened_fit(candidate: Candidate, tried: Tried, c: dict, forms: list[dict]) -> Fit | None:
    """The fit of a loss that whitens its advantages.

    One that takes advantages [B, T] has to whiten them: its [B, 1] would say nothing about the padding.
    """
    shape = c["mask"].shape
    wide = [form for form in forms if getattr(form.get("advantages"), "shape", ()) == shape]
    if "mask" in tried.takes and wide:
        with contextlib.suppress(Exception):  # it takes no [B, T]
            tried(c | wide[0])
            # [B] beside [B, T] is another input, which it widens; beside [T, B] it is the same one
            forms = [x for x in forms if x["advantages"].shape in (shape, () if "by_time" in x else shape[:1])]
    return exact_fit(candidate, tried, c, whitened_forms(tried.kind, c, forms))


def written_as(candidate: Candidate, tried: Tried, fit: Fit) -> str:
    """The way and the form in which a function is its formula."""
    notes = [NOTES[x] for x in NOTES if x in fit.given and (x != "dones" or x in tried.takes)]
    if "entropy" in tried.takes:
        notes.append("its entropy term apart")
    if tried.others and "part" not in fit.given and tried.kind != "gae":
        notes.append("the first of what it returns")
    if candidate.left:
        notes.append(f"with the default of {first([*candidate.left], 4)}")
    return ", ".join([fit.way, *notes, *([UNBOUNDED] if "rollout_logprobs" in tried.takes else [])])


def is_own(file: Path, folder: Path) -> bool:
    """Whether a file of a folder lies in no dot-folder and no installed package."""
    return not any(name.startswith(".") or name == "site-packages" for name in file.relative_to(folder).parts[:-1])


def public(body: list[ast.stmt]) -> dict[str, int]:
    """{public function, Class.method, or name that a call or lambda is assigned to: its line}."""
    lines = {}
    for node in body:
        names = [node.name] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.ClassDef):
            names = [f"{node.name}.{x.name}" for x in node.body if isinstance(x, ast.FunctionDef)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Lambda):
            names = [x.id for x in node.targets if isinstance(x, ast.Name)]
        lines |= {name: node.lineno for name in names if not re.search(r"(^|\.)_(?!_call__)", name)}
    return lines


def callable_of(module, name: str):
    """A function, or a method with the parameters of its class's object, which each call makes; None of a value."""
    owner, _, method = name.partition(".")
    thing = getattr(module, owner, None)
    found = getattr(thing, method, None) if method else thing
    if not method or not inspect.isfunction(found) or isinstance(vars(thing).get(method), staticmethod):
        return found if callable(found) else None
    making, own = ([*inspect.signature(x).parameters.values()][1:] for x in (thing.__init__, found))
    names = {x.name for x in making} - {x.name for x in own}

    def called(**given):
        made = thing(**{x: given.pop(x) for x in names & {*given}})
        return getattr(made, method)(**given)

    every = [*(x for x in making if x.name in names), *own]
    called.__signature__ = inspect.Signature([x.replace(kind=x.KEYWORD_ONLY) for x in every if x.kind not in (2, 4)])
    return called


def functions_of(path: Path) -> tuple[dict[Path, dict[str, int]], dict[Path, str]]:
    """({file: `public` of it}, {file of a folder that cannot be read: why}), parsed and not run."""
    found, failed = {}, {}
    for file in [x for x in sorted(path.rglob("*.py")) if is_own(x, path)] if path.is_dir() else [path]:
        try:
            found[file] = public(parsed(file))
        except UserError as error:
            if not path.is_dir():
                raise
            failed[file] = str(error)
    return found, failed


def named_formulas(given: str, names: list[str]) -> dict[str, str]:
    """{function: formula} of --as: `my_loss=grpo,…`, or formulas of the functions in their order."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    expected = f"expected NAME=FORMULA,… or a formula for each of {', '.join(names)}; formulas: {', '.join(FORMULAS)}"
    plain = [name for name in names if "." not in name] or names
    if len(words) == len(plain) and "=" not in given:
        words = [f"{name}={word}" for name, word in zip(plain, words, strict=True)]
    pairs = dict(word.partition("=")[::2] for word in words)
    need({*pairs} <= {*names} and {*pairs.values()} <= {*FORMULAS}, f"got --as {given}; {expected}")
    return pairs


def named_numbers(given: str) -> dict[str, float]:
    """The numbers of --set, by role."""
    numbers = {}
    for name, _, value in (pair.partition("=") for pair in given.split(",") if pair):
        got = f"got --set {given}; expected NAME=NUMBER with one of {', '.join(SETTABLE)}"
        need(name in SETTABLE and re.fullmatch(r"inf|[\d.]+(e-?\d+)?", value), got)
        numbers[name] = float(value)
    return numbers


def prove_functions(path: Path, only: str, given: str, numbers: str) -> Proof:
    """Compare the functions of a file or folder, or a single one, with their formulas."""
    import numpy as np

    proof, known, unknown = Proof("functions", f"{path}:{only}" if only else str(path)), [], []
    functions, failed = functions_of(path)
    every = [(file, name, line) for file, found in functions.items() for name, line in found.items()]
    places = [place for place in every if not only or only in (place[1], place[1].partition(".")[0])]
    need(places, f"got {path} without {only or 'a public function'}; expected functions of losses or advantages")
    numbers = named_numbers(numbers)
    found = []
    for file, name, line in places:
        if file in failed:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                function = callable_of(import_file("functions", str(file), str(file)), name)
        except UserError as error:
            need(path.is_dir(), str(error))
            failed[file] = " ".join(f"importing it raises {error.__cause__!r}".split())
            continue
        found += [(file, name, line, function)] if function else []
    formulas = named_formulas(given, [name for _, name, *_ in found])
    for file, name, line, function in found:
        x = recognised(name, function, f"{name} ({file}, line {line})", formulas.get(name, ""))
        if not x.why:
            with warnings.catch_warnings(), np.errstate(all="ignore"):  # of forms that it does not take
                warnings.simplefilter("ignore")
                judge(x, function, numbers, words_at(file, line))
        (unknown if x.why else known).append(x)
        proof.findings += x.findings
        if not x.why:
            about = {"formula": x.formula, "source": FORMULAS[x.formula].source, "written_as": x.written_as}
            about |= {"left_at_default": [*x.left], "agrees": not x.findings, "nan_beneath_mask_reaches": x.leak}
            proof.figures[x.where] = about
    proof.not_measured += [f"{x.where}: {x.why}" for x in unknown] + [f"{file}: {why}" for file, why in failed.items()]
    accepted = f"expected losses or advantages of known names; try --as NAME=FORMULA, one of {', '.join(FORMULAS)}"
    accepted += ", or for a reward --data FILE"
    if unknown and all(x.formula for x in unknown):
        accepted = "expected a published form with inputs of known names: logprobs, old_logprobs, advantages, mask, …"
    odd = [x.name for x in unknown if x.unknown_form]
    need(known or odd, f"got {proof.thing} with {first(proof.not_measured, 3) or 'no function'}; {accepted}")
    if known:
        describe(proof, known)
    if odd:
        proof.is_open = True
        proof.say(f"Computed, but none of the forms known here: {first(odd)}.")
    if missed := [*(x.name for x in unknown if not x.unknown_form), *map(str, failed)]:
        proof.say(f"Not recognised or not imported, so not checked: {first(missed)}.")
    return proof


def words_at(file: Path, line: int) -> str:
    """The comments and docstring of what is defined at a line of a file."""
    text = file.read_text(encoding="utf-8")
    node = next(x for x in ast.walk(ast.parse(text)) if getattr(x, "lineno", 0) == line)
    return "\n".join(re.findall(r'#.*|"""[\s\S]*?"""', ast.get_source_segment(text, node) or ""))


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
    if turned := [x.name for x in right if x.axis]:
        words = f"{first(turned)} fit{'s' * (len(turned) == 1)} only if inputs are [T, B]"
        proof.sentences[-1] += f" {words}; for [B, T] the mean goes over the wrong axis."
    masked = [x for x in right if "mask" in x.roles.values() and not re.search(UNTRIED, x.written_as)]
    tried = "ragged rows, pads on either side, a hole and an empty row change nothing"
    if masked:
        clean = sum(not x.leak for x in masked)
        proof.say(f"{len(masked)} of these take a mask: {tried}; nan beneath it changes nothing in {clean}.")
    if leaks := [f"the {x.leak} of {x.name}" for x in known if x.leak]:
        advice = "torch.where(mask, x, 0) before arithmetic keeps it out"
        proof.say(f"Note: nan beneath the mask gets into {first(leaks)}; {advice}.")
