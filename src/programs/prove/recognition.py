"""Which formula a function is, and which input each of its parameters is, by their names; nothing is guessed."""

import inspect
import re
from dataclasses import dataclass, field

from programs.prove.formulas import FORMULAS

LOGP = r"(log_?probs?|logps?|lp)"
ROLES = {  # input -> names of parameters
    "old_logprobs": rf"(old|behaviou?r|rollout|sampling|mu)_(\w+_)?{LOGP}|{LOGP}_(old|mu|rollout|behaviou?r)",
    "ref_logprobs": rf"(ref|reference)_(\w+_)?{LOGP}|{LOGP}_(ref|reference)",
    "logprobs": rf"((new|cur|current|policy|pi|actor|per_token)_)*{LOGP}(_new|_theta)?",
    "advantages": r"adv(antage)?s?",
    "mask": r"(response_|completion_|action_|loss_|token_|eos_|valid_)?masks?",
    "scores": r"scores?|rewards?",
    "token_rewards": r"token_(level_)?(rewards?|scores?)|per_token_rewards?",
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
    "tau_pos": r"(sapo_)?tau_pos(itive)?",
    "tau_neg": r"(sapo_)?tau_neg(ative)?",
}
# what a name means in a formula of another kind
OTHERWISE = {"advantage": {"clip": "std_eps"}, "gae": {"scores": "token_rewards"}, "value": {"clip": "value_clip"}}
LOSSES = ("gspo", "cispo", "sapo", "gmpo", "dapo", "dr_grpo", "grpo", "ppo", "reinforce")  # the first that a name has
ADVANTAGES = {"dr_grpo": "dr_grpo_advantage", "grpo": "grpo_advantage", "rloo": "rloo", "gae": "gae"}
CLIPPED = {"clip", "clipped", "surrogate", "policy", "actor", "loss", "objective", "compute", "get", "per", "token"}
NEEDED = {  # inputs of a kind of formula, one of each line
    "loss": ("logprobs", "advantages"),
    "kl": ("logprobs", "ref_logprobs"),
    "value": ("values", "returns"),
    "advantage": ("scores token_rewards",),
    "gae": ("values", "token_rewards"),
    "mean": ("mask",),
}


@dataclass
class Candidate:
    """A public function of a file: its formula and how it is written, why it is not checked, what is wrong with it."""

    name: str
    where: str
    formula: str = ""
    why: str = ""
    written_as: str = ""
    findings: list = field(default_factory=list)
    roles: dict = field(default_factory=dict)  # {parameter: input}
    left: tuple = ()  # parameters of unknown names, which keep their defaults

    def find(self, finding: str) -> None:
        """Add a finding against it."""
        self.findings.append(f"{self.where}: {finding}")


def formula_of(name: str, roles: set[str]) -> str:
    """The formula of a name and its inputs; "" where they do not say it."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    has, is_loss = {*words.split("_")}, {"logprobs", "advantages"} <= roles
    if {"values", "returns"} <= roles and has & {"value", "critic", "vf"}:
        return "value_loss"
    if {"logprobs", "ref_logprobs"} <= roles and "advantages" not in roles:
        return next((k for k in ("k1", "k2", "k3", "kl") if k in has), "")
    if {"masked", "mean"} <= has and "mask" in roles:
        return "masked_mean"
    known = next((f for f in (LOSSES if is_loss else ADVANTAGES) if {*f.split("_")} <= has), "")
    if known or not is_loss:
        return ADVANTAGES.get(known, "") if not is_loss else known
    bounded = roles & {"clip", "low", "high"} and "old_logprobs" in roles
    return "ppo" if bounded and has <= CLIPPED and has & {"clip", "clipped", "policy"} else ""


def recognised(name: str, function, where: str, formula: str = "") -> Candidate:
    """What a function is, by its name, or the formula that the user names."""
    own = inspect.signature(function).parameters.values()
    own = [p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    roles = {p.name: next((r for r, x in ROLES.items() if re.fullmatch(x, p.name.lower())), "") for p in own}
    found = Candidate(name, where, formula or formula_of(name, {*roles.values()}))
    if not found.formula:
        found.why = "its name and inputs name no formula that is known here"
        return found
    kind = FORMULAS[found.formula].kind
    known = {name: OTHERWISE.get(kind, {}).get(role, role) for name, role in roles.items() if role}
    if kind == "mean":
        known |= {p.name: "x" for p in own[:2] if known.get(p.name) != "mask"}
    unknown = [p.name for p in own if p.name not in known and p.default is p.empty]
    needed = (*NEEDED[kind], *(["old_logprobs"] if kind == "loss" and found.formula != "reinforce" else []))
    missing = [names for names in needed if not {*names.split()} & {*known.values()}]
    found.roles, found.left = known, tuple(p.name for p in own if p.name not in known and p.default is not p.empty)
    if unknown:
        found.why = f"it needs {', '.join(unknown)}, whose meaning its name does not say"
    elif missing:
        found.why = f"it has no {' and no '.join(missing)} of a known name"
    return found
