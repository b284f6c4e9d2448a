"""Functions of losses and advantages: compare value and gradient with the formula, in the form of inputs they take."""

import ast
import contextlib
import re
import sys
import warnings
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.foundation.processes import np, torch
from parts.rewards.extracts import bound_names
from parts.rewards.reward_forms import import_file
from programs.prove.formulas import FORMULAS, WRONG_AXIS
from programs.prove.function_calls import NOTES, Tried, input_forms, inputs
from programs.prove.function_checks import (
    PADDED,
    ROUNDING,
    Fit,
    compared,
    look_at_calls,
    look_at_entropy,
    look_at_equal_scores,
    look_at_returns,
    look_at_sampler,
    look_at_way,
    look_beneath,
    named_fault,
    references,
)
from programs.prove.proof import Proof, parsed
from programs.prove.recognition import Candidate, callable_of, recognised

UNBOUNDED = "its bounds on old / rollout not reached"
# forms that count if they fit
RARE = {*"by_time inside off interleaved full dual_inside white".split()}


def nearest_fit(candidate: Candidate, tried: Tried, c: dict, forms: list[dict]) -> Fit | None:
    """The fit in the first form in which a function is its formula, else in the nearest; None if no form works."""
    nearest, problems = [], []
    for form in forms:
        try:
            result, gradient = tried.with_gradient(c | form)
            formulas = references(candidate.formula, tried, c | form, result.shape)
            weights, ranks = tried.weights(c | form, result), []
            for way, pair in formulas.items():
                gaps = compared(result, gradient, *pair, weights)
                ranks.append((*(x * (x > ROUNDING) for x in gaps), PADDED in way or WRONG_AXIS in way, *gaps, way))
            exact = any(rank[:2] == (0.0, 0.0) for rank in ranks)
            if exact or not RARE & {*form}:
                nearest += [(rank, c | form, result, tried.changed) for rank in ranks]
            if any(rank[:3] == (0.0, 0.0, False) for rank in ranks):
                break
            problems.insert(0, f"it could not be read: it returns a tensor {[*result.shape]}")
        except Exception as error:  # the function does not take this form, or is broken
            problems.append(f"it could not be called: {type(error).__name__}: {str(error)[:160]}")
    if not nearest:
        candidate.why = problems[0]
        return None
    (value, gradient, *_, way), given, result, changed = min(nearest, key=lambda x: x[0])
    return Fit(value, gradient, way, given, result, changed)


def judge(candidate: Candidate, function, numbers: list[float], words: str) -> None:
    """Compare a function, whose source has these numbers and comments, with its formula; note findings."""
    tried = Tried(function, candidate)
    c = inputs(tried.kind, tried.takes, numbers)
    c["sign"] = -1 if re.search("objective|surrogate(?!.*loss)", candidate.name.lower()) else 1  # these are maximised
    forms = input_forms(candidate.formula, tried.kind, tried.takes, c)
    fit = nearest_fit(candidate, tried, c, forms)
    if fit and fit.changed:
        candidate.find(f"it changes its caller's {', '.join(fit.changed)} in place")
    if fit and not fit.exact:
        fit = note_fault(candidate, tried, fit, forms)
    if not fit:
        return
    candidate.written_as = written_as(candidate, tried, fit)
    if not fit.exact or not look_at_calls(candidate, tried, fit):
        return
    look_at_way(candidate, fit, words)
    if "mask" in tried.takes:
        look_beneath(candidate, tried, fit.given)
    if tried.kind == "advantage":
        look_at_equal_scores(candidate, tried, fit.given)
    if tried.kind == "gae":
        look_at_returns(candidate, tried, fit)
    if tried.kind == "loss":
        look_at_entropy(candidate, tried, fit)
    if "rollout_logprobs" in tried.takes:
        look_at_sampler(candidate, tried, fit)


def note_fault(candidate: Candidate, tried: Tried, fit: Fit, forms: list[dict]) -> Fit | None:
    """Add the finding about a function that is not its formula; or return None, as not enough is known for one.

    That is so where the name is generic, or where numbers are not parameters: they may come from another place.
    """
    if not look_at_calls(candidate, tried, fit):
        return fit
    fault, is_known = named_fault(candidate, tried, fit.given, fit)
    has_numbers_inside = any(form.get("inside", ["length"]) != ["length"] for form in forms)
    if not is_known and (candidate.generic or has_numbers_inside):
        candidate.unknown_form = True
        candidate.why = fault.replace("it is none of the published forms", "it is not one of the forms known here")
        return None
    candidate.find(fault)
    return fit


def written_as(candidate: Candidate, tried: Tried, fit: Fit) -> str:
    """The way of the formula and the form of inputs that a function fits, for the report."""
    notes = [NOTES[x] for x in NOTES if x in fit.given]
    if roles := fit.given.get("inside"):
        notes.append(f"with {' and '.join(f'{role} {fit.given[role]:g}' for role in roles)} inside")
    if "entropy" in tried.takes:
        notes.append("its entropy term apart")
    if tried.others and "part" not in fit.given and tried.kind != "gae":
        notes.append("the first of what it returns")
    if candidate.left:
        notes.append(f"with the default of {first([*candidate.left], 4)}")
    return ", ".join([fit.way, *notes, *([UNBOUNDED] if "rollout_logprobs" in tried.takes else [])])


def public(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """{public function, Class.method, or name that a call or lambda is assigned to: its statement or class}."""
    nodes = {}
    for node in body:
        names = [node.name] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.ClassDef):
            names = [f"{node.name}.{x.name}" for x in node.body if isinstance(x, ast.FunctionDef)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Lambda):
            names = [x.id for x in node.targets if isinstance(x, ast.Name)]
        nodes |= {name: node for name in names if not re.search(r"(^|\.)_(?!_call__)", name)}
    return nodes


def functions_of(path: Path) -> tuple[dict[Path, dict[str, ast.stmt]], dict[Path, str]]:
    """({file: its `public` names}, {file of a folder that cannot be parsed: why}); nothing is run.

    Dot-folders and site-packages are left out.
    """
    functions, failed = {}, {}
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for file in files:
        if any(name.startswith(".") or name == "site-packages" for name in file.relative_to(path).parts[:-1]):
            continue
        try:
            functions[file] = public(parsed(file))
        except UserError as error:
            if not path.is_dir():
                raise
            failed[file] = str(error)
    return functions, failed


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


def prove_functions(path: Path, only: str, given: str) -> Proof:
    """Compare the functions of a file or folder, or a single one, with their formulas."""
    proof, known, unknown = Proof("functions", f"{path}:{only}" if only else str(path)), [], []
    functions, failed = functions_of(path)
    every = [(file, name, node) for file, nodes in functions.items() for name, node in nodes.items()]
    places = [place for place in every if not only or only in (place[1], place[1].partition(".")[0])]
    need(places, f"got {path} without {only or 'a public function'}; expected functions of losses or advantages")
    callables = []
    for file, name, node in places:
        if file in failed:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                function = callable_of(import_file("functions", str(file), str(file)), name)
        except UserError as error:
            need(path.is_dir(), str(error))
            failed[file] = " ".join(f"importing it raises {error.__cause__!r}".split())
            continue
        callables += [(file, name, node, function)] if function else []
    formulas = named_formulas(given, [name for _, name, *_ in callables])
    for file, name, node, function in callables:
        x = recognised(name, function, f"{name} ({file}, line {node.lineno})", formulas.get(name, ""))
        if not x.why:
            eager = torch.compiler.set_stance("force_eager")  # compiling one function takes a minute
            with eager, warnings.catch_warnings(), np.errstate(all="ignore"):  # from forms that it does not take
                warnings.simplefilter("ignore")
                text = ast.get_source_segment(file.read_text(encoding="utf-8"), node)
                judge(x, function, numbers_in(node, file), "\n".join(re.findall(r'#.*|"""[\s\S]*?"""', text)))
        (unknown if x.why else known).append(x)
        proof.findings += x.findings
        if not x.why:
            about = {"formula": x.formula, "source": FORMULAS[x.formula].source, "written_as": x.written_as}
            about |= {"left_at_default": [*x.left], "agrees": not x.findings, "nan_beneath_mask_reaches": x.leak}
            proof.figures[x.where] = about
    proof.not_measured += [f"{x.where}: {x.why}" for x in unknown] + [f"{file}: {why}" for file, why in failed.items()]
    accepted = "expected losses or advantages with inputs such as logprobs and mask; try --as NAME=FORMULA, one of "
    accepted += f"{', '.join(FORMULAS)}; for a reward or environment FILE.py:NAME --data FILE; for a trainer "
    accepted += "selfcheck.py --contract"
    unfitting = [x.name for x in unknown if x.unknown_form]
    need(known or unfitting, f"got {proof.thing} with {first(proof.not_measured, 3) or 'no function'}; {accepted}")
    lacking = [x for x in unknown if not x.unknown_form and (x.name in formulas or x.claims)]
    proof.is_open = bool(unfitting or lacking)
    if lacking:
        names = first([f"{x.name} ({x.why})" for x in lacking], 4)
        way = "try --as NAME=FORMULA for a published one"
        proof.say(f"Not checked, so this is proved in part at most: {names}; {way}.")
    if known:
        describe(proof, known)
    if unfitting:
        proof.say(f"Computed, but by none of the known formulas: {first(unfitting)}.")
    if missed := [*(x.name for x in unknown if not x.unknown_form and x not in lacking), *map(str, failed)]:
        proof.say(f"Not recognised or not imported, so not checked: {first(missed)}.")
    return proof


def numbers_in(node: ast.stmt, file: Path) -> list[float]:
    """Numbers in a definition of a file, and in those of the file's variables and functions that it names."""
    nodes = [*ast.walk(node)]
    names = {x.id for x in nodes if isinstance(x, ast.Name)}
    for x in parsed(file):
        if names & bound_names(x):
            nodes += ast.walk(x)
    return sorted({float(x.value) for x in nodes if isinstance(x, ast.Constant) and type(x.value) in (int, float)})


def first(names: list[str], most: int = 12) -> str:
    """The first names as text, and how many more there are."""
    return ", ".join(names if len(names) <= most else [*names[:most], f"{len(names) - most} more"])


def describe(proof: Proof, known: list[Candidate]) -> None:
    """Add the sentences on which functions were recognised and how many agree with their formulas."""
    agreeing = [x for x in known if not x.findings]
    names = first([f"{x.name} as {x.formula}" for x in known])
    proof.say(f"Recognised in {proof.thing}: {names}.")
    ways = f" ({first([f'{x.name}: {x.written_as}' for x in agreeing], 8)})" if agreeing else ""
    proof.say(
        f"{len(agreeing)} of {len(known)} have the value and gradient of their published formula, by prove.py's own "
        f"float64 loops over single tokens, within 1e-6 (3e-5 in float32){ways}."
    )
    masked = [x for x in agreeing if "mask" in x.roles.values() and "without holes" not in x.written_as]
    tried = "ragged rows, pads on either side, a hole and an empty row change nothing"
    if masked:
        clean = sum(not x.leak for x in masked)
        proof.say(f"{len(masked)} of these take a mask: {tried}; nan beneath it changes nothing in {clean}.")
    if leaks := [f"the {x.leak} of {x.name}" for x in known if x.leak]:
        advice = "torch.where(mask, x, 0) before arithmetic keeps it out"
        proof.say(f"Note: nan beneath the mask gets into {first(leaks)}; {advice}.")
