"""Recognise functions: their inputs, and by names alone the formula and the inputs' roles; nothing is guessed."""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from dataclasses import dataclass, field

from programs.prove.formulas import FORMULAS, KINDS

LOGP = r"(log_?probs?|log_?ps?|log_?pis?|lp)"
VALUES = r"(values?|v|vpreds?|vs|value_preds?)"
SAMPLER = r"(behav\w+|rollout|generation|sampling|sampler|vllm|inference|mu)"
OLD = rf"(old|prev|{SAMPLER})"
NEW, POLICY = "(new|curr?|current)", "(policy|pi|theta|actor)"
REFERENCE = "(ref|reference|base|sft|initial)"
ROLES = {  # input -> names of parameters
    "old_logprobs": rf"(\w+_)?{OLD}_?(\w+_)?{LOGP}|{LOGP}_{OLD}",
    "ref_logprobs": rf"(\w+_)?{REFERENCE}_?(\w+_)?{LOGP}|{LOGP}_{REFERENCE}",
    "log_ratio": r"log_?(importance_?)?(ratios?|weights?)|negative_approx_kl",
    "ratio": r"(importance_|policy_|prob_)?ratios?",
    "logprobs": rf"({NEW}_?|({POLICY}|action|trainer|learner|per_token)_?)*{LOGP}(_({NEW}|{POLICY}))?",
    "advantages": r"adv(antage)?s?|a(_hat)?",
    "mask": r"(response_|completion_|action_|attention_|loss_|token_|eos_|valid_)?masks?",
    "token_rewards": r"token_(level_)?(rewards?|scores?)|per_token_rewards?",
    "scores": r"(\w+_)?(scores?|rewards?)",
    "old_values": rf"(old_|prev_){VALUES}|{VALUES}_old",
    "values": rf"(new_)?{VALUES}",
    "returns": r"returns?|value_targets?|targets?",
    "groups": r"groups?|group_(ids?|idx|index)|index|uids?|prompt_ids?|prompt_idx",
    "group_size": r"group_size|num_generations|((num|n)_)?samples(_per_prompt)?|(rloo_)?k|n|g",
    "low": r"(clip_|eps_|epsilon_|ratio_|cliprange_)*(low|lower|lo|(?<=_)min)(_eps|_clip)?",
    "high": r"(clip_|eps_|epsilon_|ratio_|cliprange_)*(high|higher|upper|hi|(?<=_)max)(_eps|_clip)?",
    "value_clip": r"value_clip(_eps|_range)?|vf_clip|clip_?range_?(value|vf)|clip_range_vf",
    "clip": r"(eps|epsilon|clip)(_clip)?|clip_(eps|epsilon|range|ratio|param|coef)|cliprange",
    "std_eps": r"(std|adv|advantage)_(eps|epsilon)",
    "dual_clip": r"dual_clip|clip_ratio_c",
    "beta": r"beta(_kl)?|kl_(coef|coeff|beta|weight|lambda)",
    "gamma": r"gamma|discount",
    "entropy": r"(token_)?entropy|entropies",
    "entropy_weight": r"(entropy|ent)_(coef|coeff|weight|beta)",
    "gae_lambda": r"lam|lambda_?|gae_lam(bda)?|lmbda|lambd",
    "length": r"max_(len|length|tokens|new_tokens|completion_length|response_length)|norm_length|constant",
    "tau_pos": r"(sapo_)?(tau_pos|tau_positive)",
    "tau_neg": r"(sapo_)?(tau_neg|tau_negative)",
}
# {role that two parameters have: (pattern for the name of one of them, the role it gets instead)}
BESIDE = {
    "old_logprobs": (rf"{SAMPLER}.*|.*_{SAMPLER}", "rollout_logprobs"),
    "values": (r"(old_)?values?", "old_values"),
}
# {kind of formula: {role by name: the role meant there}}
OTHERWISE = {"advantage": {"clip": "std_eps"}, "gae": {"scores": "token_rewards"}, "value": {"clip": "value_clip"}}
SEVERAL = ("x",)  # roles that several parameters may have
ASIDE = ("entropy", "entropy_weight")  # roles in a further term, which has a check of its own
SHAPED = {"scores", "token_rewards", "values"}  # with these a loss or KL is more than its formula
RATIOS = {"log_ratio", "ratio"}  # of policy and old policy: of a KL, it would be unclear which is on top
FOREIGN = {"loss": {*SHAPED, "returns"}, "kl": {*SHAPED, *RATIOS, "advantages"}, "advantage": {"logprobs"}}
SMALLEST_CLIP = 1e-4  # a smaller default is an epsilon against division by 0, not a clip
CLIPPED = {*"clip clipped surrogate policy actor loss losses objective compute get per token forward call".split()}
GENERIC = {"kl", "value_loss", "critic_loss"}  # names that say what is computed, not by which formula
EMPTY, KEYWORD = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass
class Candidate:
    """A public function of a file: its formula and findings, or why it is not checked."""

    name: str
    where: str
    formula: str = ""
    why: str = ""
    written_as: str = ""
    findings: list = field(default_factory=list)
    leak: str = ""  # what nan beneath the mask reaches: "value" or "gradient"
    roles: dict = field(default_factory=dict)  # {parameter: role}
    left: tuple = ()  # parameters without a role, which keep their defaults
    generic: bool = False  # its name says what it computes, not by which formula
    unknown_form: bool = False  # it was called, and fits no form known here

    def find(self, finding: str) -> None:
        self.findings.append(f"{self.where}: {finding}")

    @property
    def claims(self) -> bool:
        """Whether its name says the loss of an algorithm; or loss or advantage, and it takes what one is made of."""
        name, made_of = self.name.lower(), {"logprobs", *RATIOS, "scores", "token_rewards", "returns"}
        made_of |= {"advantages"} if "loss" in name else set()
        made_of |= {"values"} if re.search("value|critic", name) else set()
        if re.search(r"\b(plot|log|print|show|save|format|report|get|register)_|_(metrics|stats|hist\w*)$", name):
            return False
        takes = made_of & {*self.roles.values()} and re.search("loss|objective|advantage|gae", name)
        return bool(takes or re.search("(ppo|grpo|gspo|dapo|cispo|rloo|policy|actor)_?loss", name))


def role_of(name: str) -> str:
    """The role of a parameter's name, or ""."""
    return next((role for role, pattern in ROLES.items() if re.fullmatch(pattern, name.lower())), "")


def inputs_of(roles: dict[str, str], kind: str) -> dict[str, str]:
    """{parameter: role} in a kind of formula, without parameters that have none there."""
    known = {name: role for name, role in roles.items() if role and role not in FOREIGN.get(kind, ())}
    return {name: OTHERWISE.get(kind, {}).get(role, role) for name, role in known.items()}


def missing(formula: str, roles: dict[str, str]) -> set[str]:
    """Roles that a formula needs and a function lacks."""
    kind, without = FORMULAS[formula].kind, {"values"} if formula == "reinforce_pp" else set()
    takes, ratio = {*inputs_of(roles, kind).values()}, kind == "loss" and formula != "reinforce"
    if "token_rewards" in takes:  # a row's last token reward is its score
        takes.add("scores")
    if ratio and RATIOS & takes:
        takes |= {"logprobs", "old_logprobs"}
    return (KINDS[kind] | ({"old_logprobs"} if ratio else set())) - without - takes


def formula_of(name: str, roles: dict[str, str]) -> tuple[str, bool]:
    """(Formula that a function's name and parameters say, or ""; whether the name is generic)."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)  # GRPOLoss
    has = {*re.findall(r"[a-z\d]+", re.sub("_?plus_?plus", "_pp", name.lower()))}
    for formula, about in FORMULAS.items():
        # an advantage of another formula; the clipped loss of REINFORCE++
        is_other = "pp" in has if formula == "reinforce" else "baseline" in has and about.kind in ("advantage", "gae")
        if not is_other and {*about.words.split()} <= has and not missing(formula, roles):
            return formula, formula in GENERIC
    if "gae_lambda" in roles.values() and not missing("gae", roles):
        return "gae", True
    clipped = has <= CLIPPED and has & {"clip", "clipped", "policy"} and {*roles.values()} & {"clip", "low", "high"}
    return "ppo" if clipped and not missing("ppo", roles) else "", True


def once(known: dict[str, str], parameters: list[inspect.Parameter]) -> dict[str, str]:
    """Drop optional parameters from `known`: second ones of a role, clips too small to be one, entropy terms."""
    kept = {}
    for p in sorted(parameters, key=lambda p: p.default is not p.empty):
        role, number = known.get(p.name), p.default if isinstance(p.default, float) else 0.0
        small = role in ("clip", "value_clip") and 0 < number < SMALLEST_CLIP
        small |= role in RATIOS and number > 0  # a clip of that name
        second = p.default is not p.empty and role in kept.values() and role not in SEVERAL
        if role and not small and not second and (role not in ASIDE or p.default is p.empty):
            kept[p.name] = role
    return kept


def recognised(name: str, function, where: str, formula: str) -> Candidate:
    """The candidate for a function: its formula, by name or (if not "") as the user says, and its parameters' roles."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:  # torch.jit.script leaves none
        return Candidate(name, where, why=f"its parameters cannot be read ({error})")
    parameters = [p for p in parameters if p.kind not in SPREAD]
    roles = {p.name: role_of(p.name) for p in parameters}
    for role, (pattern, other) in BESIDE.items():
        if [*roles.values()].count(role) == 2:
            roles |= {x: other for x in roles if roles[x] == role and re.fullmatch(pattern, x.lower())}
    formula, generic = (formula, False) if formula else formula_of(name, roles)
    candidate = Candidate(name, where, formula, roles=roles, generic=generic)
    if not candidate.formula:
        unknown = ", ".join(p.name for p in parameters if not roles[p.name] and p.default is EMPTY)
        candidate.why = "its name and inputs name no formula that is known here"
        candidate.why += f" (inputs of no known name: {unknown})" if unknown else ""
        return candidate
    kind = FORMULAS[candidate.formula].kind
    known = inputs_of(roles, kind)
    if kind == "mean":
        known |= {p.name: "x" for p in parameters[:2] if known.get(p.name) != "mask"}
    known = once(known, parameters)
    unknown = [p.name for p in parameters if p.name not in known and p.default is p.empty]
    single = [role for role in known.values() if role not in SEVERAL]
    twice = [x for x, role in known.items() if single.count(role) > 1]
    left = [p.name for p in parameters if p.name not in known and p.default is not p.empty]
    candidate.roles, candidate.left = known, tuple(left)
    if twice:
        candidate.why = f"it takes {' and '.join(twice)}, which could be the same input"
    elif unknown:
        candidate.why = f"it needs {', '.join(unknown)}, which no input of {candidate.formula} is called"
    elif lacking := missing(candidate.formula, roles):
        candidate.why = f"it has no {' and no '.join(sorted(lacking))} of a known name"
    return candidate


class Fields(dict):
    """A batch or settings, whose entries are also attributes, before a dictionary's own such as `values`."""

    def __getattribute__(self, name: str):
        return self[name] if name in self else super().__getattribute__(name)


def fields_of(p: inspect.Parameter, code) -> dict:
    """{entry or attribute that a function reads of a batch or settings: its default, or EMPTY}; {} of an input."""
    kind = type(p.default) if p.default is not EMPTY else code.__globals__.get(p.annotation, p.annotation)
    is_dataclass, fields = dataclasses.is_dataclass(kind), {}
    if not is_dataclass and (role_of(p.name) or p.default not in (EMPTY, None)):
        return {}
    source = textwrap.dedent(inspect.getsource(code))
    if p.default is None and re.search(rf"\bif (not )?{p.name}\b(?![.\[])|\b{p.name} or\b", source):
        return {}  # it has a way without them
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name(p.name), "get"), [ast.Constant(str(key)), *rest]):
                fields[key] = rest[0].value if rest and isinstance(rest[0], ast.Constant) else None
            case ast.Subscript(ast.Name(p.name), ast.Constant(str(key))):
                fields[key] = EMPTY
            case ast.Attribute(ast.Name(p.name), key) if key != "get":
                fields.setdefault(key, EMPTY if p.default is EMPTY or role_of(key) else None)
    if is_dataclass:
        made = kind if p.default is EMPTY else p.default
        return {key: getattr(made, key, EMPTY) for key in fields or inspect.signature(kind).parameters}
    return fields if any(map(role_of, fields)) else {}


def unfolded(function, code):
    """A function that takes the fields of its batches and settings as parameters; `code`: where it reads them."""
    code = inspect.unwrap(code)
    try:
        taken = [p for p in inspect.signature(function).parameters.values() if p.kind not in SPREAD]
        held = {p.name: fields_of(p, code) for p in taken}
    except (OSError, TypeError, ValueError, SyntaxError, AttributeError):  # no signature or no source
        return function
    defaults = {p.name: p.default for p in taken if not held[p.name]}
    for fields in held.values():
        defaults |= fields

    def called(**given):
        batches = {
            name: Fields({x: given.get(x, default) for x, default in fields.items()})
            for name, fields in held.items()
            if fields
        }
        return function(**batches, **{x: value for x, value in given.items() if x in held})

    called.__signature__ = inspect.Signature([inspect.Parameter(x, KEYWORD, default=y) for x, y in defaults.items()])
    return called


def callable_of(module, name: str):
    """A module's function, or a method as a function that also takes its class's parameters; None if not callable."""
    owner, _, method = name.partition(".")
    thing = getattr(module, owner, None)
    function = getattr(thing, method, None) if method else thing
    if not method or not inspect.isfunction(function) or isinstance(vars(thing).get(method), staticmethod):
        return unfolded(function, function) if callable(function) else None
    make, of_method = unfolded(thing, thing.__init__), unfolded(functools.partial(function, None), function)
    try:
        of_init, of_call = (inspect.signature(x).parameters for x in (make, of_method))
    except (TypeError, ValueError):
        return function

    def called(**given):
        instance = make(**{x: given.pop(x) for x in of_init.keys() - of_call.keys() & {*given}})
        return unfolded(functools.partial(function, instance), function)(**given)

    parameters = [p.replace(kind=KEYWORD) for p in {**of_init, **of_call}.values() if p.kind not in SPREAD]
    called.__signature__ = inspect.Signature(parameters)
    return called
