"""Which formula a function is, and which input each of its parameters is, by their names; nothing is guessed."""

import inspect
import re
from dataclasses import dataclass, field

from programs.prove.formulas import FORMULAS, KINDS

LOGP = r"(log_?probs?|logps?|lp)"
ROLES = {  # input -> names of parameters
    "old_logprobs": rf"(old|behav\w+|rollout|sampling|mu)_(\w+_)?{LOGP}|{LOGP}_(old|mu|rollout|behav\w+)",
    "ref_logprobs": rf"(ref|reference)_(\w+_)?{LOGP}|{LOGP}_(ref|reference)",
    "logprobs": rf"((new|cur|current|policy|pi|actor|per_token)_)*{LOGP}(_new|_theta)?",
    "advantages": r"adv(antage)?s?",
    "mask": r"(response_|completion_|action_|loss_|token_|eos_|valid_)?masks?",
    "token_rewards": r"token_(level_)?(rewards?|scores?)|per_token_rewards?",
    "scores": r"scores?|rewards?",
    "old_values": r"(old_|prev_)(values?|v)|values?_old|v_old",
    "values": r"(new_)?(values?|v|vpreds?|vs|value_preds?)",
    "returns": r"returns?|value_targets?|targets?",
    "groups": r"groups?|group_(ids?|idx|index)|index|uids?|prompt_ids?|prompt_idx",
    "group_size": r"group_size|num_generations|num_samples|n_samples|samples_per_prompt|n|k|g",
    "low": r"(clip_|eps_|epsilon_|ratio_)*(low|lower|lo)(_eps|_clip)?",
    "high": r"(clip_|eps_|epsilon_|ratio_)*(high|higher|upper|hi)(_eps|_clip)?",
    "value_clip": r"value_clip(_eps|_range)?|vf_clip|clip_?range_?(value|vf)|clip_range_vf",
    "clip": r"eps|epsilon|clip|clip_(eps|epsilon|range|ratio|param)|cliprange",
    "std_eps": r"(std|adv|advantage)_(eps|epsilon)",
    "dual_clip": r"dual_clip|clip_ratio_c",
    "beta": r"beta|kl_(coef|coeff|beta|weight|lambda)",
    "gamma": r"gamma|discount",
    "gae_lambda": r"lam|lambda_?|gae_lambda|lmbda|lambd",
    "length": r"max_(len|length|tokens|new_tokens|completion_length|response_length)|norm_length|constant",
    "tau_pos": r"(sapo_)?(tau_pos|tau_positive)",
    "tau_neg": r"(sapo_)?(tau_neg|tau_negative)",
}
# what a name means in a formula of another kind
OTHERWISE = {"advantage": {"clip": "std_eps"}, "gae": {"scores": "token_rewards"}, "value": {"clip": "value_clip"}}
CLIPPED = {"clip", "clipped", "surrogate", "policy", "actor", "loss", "objective", "compute", "get", "per", "token"}


@dataclass
class Candidate:
    """A public function of a file: its formula and how it is written, why it is not checked, what is wrong with it."""

    name: str
    where: str
    formula: str = ""
    why: str = ""
    written_as: str = ""
    findings: list = field(default_factory=list)
    leak: str = ""  # where nan beneath the mask gets into: "value" or "gradient"
    roles: dict = field(default_factory=dict)  # {parameter: input}
    left: tuple = ()  # parameters of unknown names, which keep their defaults

    def find(self, finding: str) -> None:
        """Add a finding against it."""
        self.findings.append(f"{self.where}: {finding}")


def inputs_of(roles: dict[str, str], kind: str) -> dict[str, str]:
    """{parameter: input} of known names, as a kind of formula means them."""
    return {name: OTHERWISE.get(kind, {}).get(role, role) for name, role in roles.items() if role}


def missing(formula: str, roles: dict[str, str]) -> set[str]:
    """Inputs that a formula needs and a function does not take."""
    kind = FORMULAS[formula].kind
    takes, ratio = {*inputs_of(roles, kind).values()}, kind == "loss" and formula != "reinforce"
    if "token_rewards" in takes:  # of which the last one of a row is its score
        takes.add("scores")
    return (KINDS[kind] | ({"old_logprobs"} if ratio else set())) - takes


def formula_of(name: str, roles: dict[str, str]) -> str:
    """The formula of a name and its inputs; "" where they do not say it."""
    has = {*re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")}
    for formula, about in FORMULAS.items():
        if {*about.words.split()} <= has and not missing(formula, roles):
            if about.kind != "kl" or "advantages" not in roles.values():
                return formula
    clipped = has <= CLIPPED and has & {"clip", "clipped", "policy"} and {*roles.values()} & {"clip", "low", "high"}
    return "ppo" if clipped and not missing("ppo", roles) else ""


def recognised(name: str, function, where: str, formula: str = "") -> Candidate:
    """What a function is, by its name, or the formula that the user names."""
    try:
        own = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:  # torch.jit.script leaves none
        return Candidate(name, where, why=f"its parameters cannot be read ({error})")
    own = [p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    roles = {p.name: next((r for r, x in ROLES.items() if re.fullmatch(x, p.name.lower())), "") for p in own}
    found = Candidate(name, where, formula or formula_of(name, roles))
    if not found.formula:
        found.why = "its name and inputs name no formula that is known here"
        return found
    kind = FORMULAS[found.formula].kind
    known = inputs_of(roles, kind)
    if kind == "mean":
        known |= {p.name: "x" for p in own[:2] if known.get(p.name) != "mask"}
    unknown = [p.name for p in own if p.name not in known and p.default is p.empty]
    found.roles, found.left = known, tuple(p.name for p in own if p.name not in known and p.default is not p.empty)
    if unknown:
        found.why = f"it needs {', '.join(unknown)}, whose meaning its name does not say"
    elif lacking := missing(found.formula, roles):
        found.why = f"it has no {' and no '.join(sorted(lacking))} of a known name"
    return found
