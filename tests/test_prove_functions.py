"""scripts/prove.py on functions: nothing is said against sound ones, and each broken one is named."""

import textwrap

import pytest
from test_prove import run

LOSS = """
def {name}(logp, old_logp, advantages, mask, eps_low=0.2, eps_high=0.2):
    keep = mask.bool()
    d = torch.where(keep, logp, 0.0) - torch.where(keep, old_logp, 0.0)
    a = torch.where(keep, advantages, 0.0)
    ratio = d.exp()
    loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - eps_low, 1 + eps_high))
    return {end}
"""
TOKEN = "torch.where(keep, loss, 0.0).sum() / keep.sum()"
SEQUENCE = "(torch.where(keep, loss, 0.0).sum(1) / keep.sum(1).clamp(min=1)).sum() / {}"
GRPO_ADVANTAGE = """
def grpo_advantages(scores, group_ids, eps=1e-6):
    out = torch.zeros_like(scores)
    for g in group_ids.unique():
        x = scores[group_ids == g]
        out[group_ids == g] = (x - x.mean()) / (x.std() + eps)
    return out
"""
GAE = """
def compute_gae(rewards, values, mask, gamma, lam):
    keep, out = mask.bool(), torch.zeros_like(values)
    values, rewards = torch.where(keep, values, 0.0), torch.where(keep, rewards, 0.0)
    following = last = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        now = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * last
        last = torch.where(keep[:, t], now, last)
        following = torch.where(keep[:, t], values[:, t], following)
        out[:, t] = torch.where(keep[:, t], now, 0.0)
    return out, out + values
"""
VALUE = """
def value_loss(values, old_values, returns, mask, clip=0.2):
    keep = mask.bool()
    v, o, r = (torch.where(keep, x, 0.0) for x in (values, old_values, returns))
    near = o + (v - o).clamp(-clip, clip)
    loss = torch.maximum((v - r) ** 2, (near - r) ** 2) / 2
    return loss.sum() / keep.sum()
"""
KL = """
def kl_penalty(log_probs, ref_log_probs):
    d = ref_log_probs - log_probs
    return d.exp() - d - 1
"""
GSPO = """
def gspo_loss(logps, old_logps, advantages, completion_mask, epsilon=3e-4):
    keep = completion_mask.bool()
    d = torch.where(keep, logps, 0.0) - torch.where(keep, old_logps, 0.0)
    ratio = (d.sum(1) / keep.sum(1).clamp(min=1)).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - epsilon, 1 + epsilon))
    return (loss * keep.any(1)).sum() / len(loss)
"""
WITH_KL = """
def grpo_loss(per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask, beta, epsilon):
    keep = completion_mask.bool()
    logp, old, ref = (torch.where(keep, x, 0.0) for x in (per_token_logps, old_per_token_logps, ref_per_token_logps))
    ratio = (logp - old).exp()
    a = advantages[:, None] if advantages.dim() == 1 else torch.where(keep, advantages, 0.0)
    kl = (ref - logp).exp() - ref + logp - 1
    loss = -torch.min(a * ratio, a * ratio.clamp(1 - epsilon, 1 + epsilon)) + beta * kl
    return ((loss * keep).sum(1) / keep.sum(1).clamp(min=1)).mean()
"""
CISPO = """
def cispo_loss(logp, old_logp, advantages, mask, clip_low, clip_high):
    keep = mask.bool()
    logp, old, a = (torch.where(keep, x, 0.0) for x in (logp, old_logp, advantages))
    weight = (logp - old).exp().clamp(1 - clip_low, 1 + clip_high).detach()
    return -(weight * a * logp).sum() / keep.sum()
"""
PLAIN = """
def reinforce_loss(logp, advantages, mask):
    keep = mask.bool()
    return -(torch.where(keep, logp, 0.0) * torch.where(keep, advantages, 0.0)).sum() / keep.sum()
"""
GAE_OF_COLUMNS = """
def compute_gae(rewards, values, gamma, lam):
    out, last, following = torch.zeros_like(rewards), torch.zeros_like(rewards[0]), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        last = out[t] = rewards[t] + gamma * following - values[t] + gamma * lam * last
        following = values[t]
    return out
"""
CLASS = """
class GRPOLoss(torch.nn.Module):
    def __init__(self, eps=0.2, scale=1.0):
        super().__init__()
        self.eps, self.scale = eps, scale

    def forward(self, logps, old_logps, advantages, mask):
        ratio, a = torch.where(mask > 0, logps - old_logps, 0.0).exp(), advantages[:, None]
        loss = -torch.min(a * ratio, a * ratio.clamp(1 - self.eps, 1 + self.eps)) * mask
        return (loss.sum(1) / mask.sum(1).clamp(min=1)).mean()
"""
NAMES_OF_VERL = """
def compute_value_loss(vpreds, returns, values, response_mask, cliprange_value):
    near = torch.max(torch.min(vpreds, values + cliprange_value), values - cliprange_value)
    return (torch.max((vpreds - returns) ** 2, (near - returns) ** 2) * response_mask).sum() / response_mask.sum() / 2
"""
SAMPLED = """
def ppo_loss(logp, old_logp, rollout_logp, advantages, mask, eps=0.2, cap=2.0):
    ratio, weight = (logp - old_logp).exp(), (old_logp - rollout_logp).exp().clamp(max=cap)
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - eps, 1 + eps)) * weight
    return {"clipped": 0.0}, (loss * mask).sum() / mask.sum()
"""
DONES = """
def gae(rewards, values, dones, next_value, next_done, gamma, lam):  # [T, B]; dones before a step
    out, last = torch.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        ended, after = (dones[t + 1], values[t + 1]) if t + 1 < len(rewards) else (next_done, next_value)
        last = out[t] = rewards[t] - values[t] + gamma * (1 - ended) * (after + lam * last)
    return out
"""
NEXT_VALUES = """
def compute_gae(rewards, values, next_values, dones, gamma=0.99, lam=0.95):  # [B, T]
    going, last, out = 1.0 - dones, 0.0, torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_values[:, t] * going[:, t] - values[:, t]
        last = out[:, t] = delta + gamma * lam * going[:, t] * last
    return out
"""


def loss(name: str, end: str = TOKEN) -> str:
    """A clipped loss of a name, with an aggregation."""
    return LOSS.format(name=name, end=end)


BOOTSTRAP = """
def gae(rewards, values, dones, next_value, gamma, lam):  # [T, B]; dones after a step
    out, last = torch.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(rewards) else next_value
        last = out[t] = rewards[t] - values[t] + gamma * (1 - dones[t]) * (after + lam * last)
    return out, out + values
"""
ONE_MORE = """
def gae(rewards, values, gamma, lam):  # rewards [B, T], values [B, T + 1]
    out, last = torch.zeros_like(rewards), 0
    for t in reversed(range(rewards.shape[1])):
        last = out[:, t] = rewards[:, t] + gamma * values[:, t + 1] - values[:, t] + gamma * lam * last
    return out
"""
GOING = """
def gae(rewards, values, masks, next_value, gamma, lam):  # lists of [B]; masks = 1 - done
    values, last, out = [*values, next_value], 0, []
    for t in reversed(range(len(rewards))):
        last = rewards[t] - values[t] + gamma * masks[t] * (values[t + 1] + lam * last)
        out.insert(0, last)
    return torch.stack(out)
"""
WHITENED = GAE.replace(
    "    return out, out + values",
    "    white = torch.where(keep, (out - out[keep].mean()) / (out[keep].std() + 1e-8), 0.0)\n"
    "    return white, out + values",
)
BY_COLUMN = """
def grpo_loss(logp, old_logp, advantages, mask, eps=0.2):
    ratio = torch.where(mask > 0, logp - old_logp, 0.0).exp()
    loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - eps, 1 + eps))
    return (torch.where(mask > 0, loss, 0.0).sum(0) / mask.sum(0).clamp(min=1)).mean()
"""
ENTROPY = """
def ppo_loss(logp, old_logp, advantages, entropy, mask, eps=0.2, entropy_coef=0.01):
    ratio = (logp - old_logp).exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - eps, 1 + eps)) - entropy_coef * entropy
    return (loss * mask).sum() / mask.sum()
"""
WHITENS = """
def ppo_loss(logp, old_logp, advantages, clip_coef=0.2, norm_adv=True):
    if norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (logp - old_logp).exp()
    return torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
"""
WHITENED_INSIDE = """
def ppo_loss(logp, old_logp, advantages, mask, eps=0.2):
    inside = {}
    a, ratio = (advantages - inside.mean()) / (inside.std() + 1e-8), (logp - old_logp).exp()
    loss = torch.max(-a * ratio, -a * ratio.clamp(1 - eps, 1 + eps))
    return (loss * mask).sum() / mask.sum()
"""
INTERLEAVED = """
def rloo_advantages(rewards, k):
    r = rewards.reshape(k, -1)
    return (r - (r.sum(0) - r) / (k - 1)).flatten()
"""
OF_SETTINGS = """
from dataclasses import dataclass


@dataclass
class Settings:
    eps_low: float = 3e-4
    eps_high: float = 4e-4


""" + GSPO.replace("epsilon=3e-4", "config: Settings").replace(
    "1 - epsilon, 1 + epsilon", "1 - config.eps_low, 1 + config.eps_high"
)
OF_OTHER_SETTINGS = (
    OF_SETTINGS.replace("config: Settings", "config: Settings = Settings(eps_low=0.1, sequence=True)")
    .replace(
        "    eps_high: float = 4e-4\n",
        "    eps_high: float = 4e-4\n    dual_clip: float = 3.0\n    sequence: bool = False\n",
    )
    .replace("    return", "    assert config.sequence\n    return")
)
OF_A_BATCH = """
def dapo_loss(batch, low=0.2, high=0.28):
    ratio, a, mask = (batch["logprobs"] - batch["old_logprobs"]).exp(), batch["advantages"], batch.get("mask", None)
    loss = torch.max(-a * ratio, -a * ratio.clamp(1 - low, 1 + high))
    return (loss * mask).sum() / mask.sum()
"""
OF_NAMES = """
class Maker:
    def get_advantages_and_returns(self, values, rewards, action_mask, gamma: float, lambd: float):
        last, rows = 0, []
        values, rewards = values * action_mask, rewards * action_mask
        for t in reversed(range(rewards.size(1))):
            after = values[:, t + 1] if t < rewards.size(1) - 1 else 0.0
            last = rewards[:, t] + gamma * after - values[:, t] + gamma * lambd * last
            rows.append(last)
        advantages = torch.stack(rows[::-1], dim=1)
        return advantages, advantages + values
"""
SCRIPTED = """
@torch.jit.script
def ppo_loss(logp, old_logp, advantages, mask, eps: float = 0.2):
    ratio = torch.exp(logp - old_logp)
    loss = -torch.min(ratio * advantages, torch.clamp(ratio, 1.0 - eps, 1.0 + eps) * advantages)
    return (loss * mask).sum() / mask.sum()
"""
KL_IN_ADVANTAGE = """
def reinforce_loss(logp, ref_logp, advantages, mask, kl_coef=0.1):
    shaped = (advantages - kl_coef * (logp - ref_logp)).detach()
    return -(logp * shaped * mask).sum() / mask.sum()
"""
NUMBERS_INSIDE = """
LOW, WEIGHT = 0.1, 0.02


def ppo_loss(logp, old_logp, advantages, mask):
    ratio = (logp - old_logp).exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - LOW, 1.3))
    return (loss * mask).sum() / mask.sum()


def grpo_loss(logp, old_logp, ref_logp, advantages, mask):
    ratio, kl = (logp - old_logp).exp(), (ref_logp - logp).exp() - (ref_logp - logp) - 1
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)) + WEIGHT * kl
    return ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def critic_loss(values, old_values, returns, mask):
    near = torch.max(torch.min(values, old_values + 0.2), old_values - 0.2)
    return (torch.max((values - returns) ** 2, (near - returns) ** 2) * mask).sum() / mask.sum()
"""
ACROSS = """
def gae(rewards, values, dones, next_value, gamma, lam):  # lists of one episode
    out, last = [], 0.0
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(rewards) else next_value
        last = rewards[t] + gamma * after * (1 - dones[t]) - values[t] + gamma * lam * last
        out.insert(0, last)
    return out
"""
CALLED_TWICE = "calls = [0]\n" + GRPO_ADVANTAGE.replace(
    "    return out", "    calls[0] += 1\n    return out if calls[0] < 4 else -out"
)


SOUND = {
    "ppo": loss("ppo_loss"),
    "dapo": loss("dapo_loss"),
    "by token": loss("ppo_clip_loss", "torch.where(keep, loss, 0.0)"),
    "grpo": loss("grpo_loss", SEQUENCE.format("len(loss)")),
    "grpo without empty rows": loss("grpo_policy_loss", SEQUENCE.format("keep.any(1).sum()")),
    "dr_grpo": loss("dr_grpo_loss", "torch.where(keep, loss, 0.0).sum() / loss.numel()"),
    "gspo": GSPO,
    "grpo with KL": WITH_KL,
    "cispo": CISPO,
    "reinforce": PLAIN,
    "value": VALUE,
    "kl": KL,
    "gae": GAE,
    "gae without holes": GAE.replace("torch.where(keep[:, t], values[:, t], following)", "values[:, t]"),
    "grpo advantage": GRPO_ADVANTAGE,
    "objective": loss("ppo_objective", "-" + TOKEN),
    "grpo advantage of neighbours": """
def grpo_advantage(rewards, num_generations):
    x = rewards.view(-1, num_generations)
    return ((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True, correction=0) + 1e-4)).flatten()
""",
    "rloo": """
def rloo_advantages(rewards):  # [P, N]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
""",
    "lists": """
def dr_grpo_advantages(rewards, groups):
    mean = {}
    for g in set(groups.tolist()):
        mine = [r for r, other in zip(rewards.tolist(), groups.tolist()) if other == g]
        mean[g] = sum(mine) / len(mine)
    return [r - mean[g] for r, g in zip(rewards.tolist(), groups.tolist())]
""",
    "as verl": """
def compute_grpo_outcome_advantage(token_level_rewards, response_mask, index, epsilon=1e-6):
    scores = (token_level_rewards * 1).nan_to_num(0.0).sum(-1)
    out = scores.clone()
    for g in set(index.tolist()):
        x = scores[index == g]
        out[index == g] = (x - x.mean()) / (x.std() + epsilon)
    return out[:, None] * response_mask, out[:, None] * response_mask
""",
    "masked mean": """
def masked_mean(x, mask):
    return torch.where(mask.bool(), x, 0.0).sum() / mask.sum()
""",
    "metrics first": loss("ppo_loss", '{"clip_frac": (ratio > 1.2).double().mean(), "loss": ' + TOKEN + "}"),
    "names of NeMo": loss("ppo_loss").replace("old_logp", "prev_logprobs").replace("eps_", "ratio_clip_"),
    "gae of columns": GAE_OF_COLUMNS,
    "gae, returns first": GAE.replace("return out, out + values", "return out + values, out"),
    "gae of one episode": """
def gae(rewards, values, gamma, lam):  # lists; values have one more
    out, last = [], 0.0
    for t in reversed(range(len(rewards))):
        last = float(rewards[t]) + gamma * values[t + 1] - values[t] + gamma * lam * last
        out.insert(0, last)
    return out
""",
    "one group a call": """
import statistics


def grpo_advantages(rewards):
    return [(r - statistics.mean(rewards)) / (statistics.pstdev(rewards) + 1e-4) for r in rewards]
""",
    "verl's names of values": NAMES_OF_VERL,
    "weights of the sampler": SAMPLED,
    "a filter of the sampler": SAMPLED.replace("* weight", "* (weight < cap)"),
    "gae with dones": DONES,
    "gae with next values": NEXT_VALUES,
    "gae with dones after a step": DONES.replace("dones[t + 1]", "dones[t]").replace("(next_done,", "(dones[t],"),
    "a dataclass of results": "from dataclasses import dataclass\n\n\n@dataclass\nclass Out:\n    kl: float\n"
    "    loss: float\n" + loss("ppo_loss", f"Out(0.0, {TOKEN})"),
    "a paper's bounds inside": loss("dapo_loss")
    .replace(", eps_low=0.2, eps_high=0.2", "")
    .replace("eps_low, 1", "0.2, 1")
    .replace("eps_high", "0.28"),
    "cispo of TRL": CISPO.replace("clip_low, clip_high", "epsilon_high").replace(
        "1 - clip_low, 1 + clip_high", "max=epsilon_high"
    ),
    "a further term": loss("ppo_loss", TOKEN + " + ent_coef * logp.mean()").replace("mask,", "mask, ent_coef=0.01,"),
    "kl with its weight": KL.replace("ref_log_probs)", "ref_log_probs, beta)").replace("return ", "return beta * (")
    + ")",
    "an eps of a division": loss("ppo_loss", TOKEN + " / (1 + small_eps)")
    .replace("small_eps", "eps")
    .replace("mask, eps_low=0.2, eps_high=0.2", "mask, eps=1e-8, clip_eps=0.2")
    .replace("eps_low, 1 + eps_high", "clip_eps, 1 + clip_eps"),
    "gae with a bootstrap": BOOTSTRAP,
    "gae with one more value": ONE_MORE,
    "gae with masks of 1 - done": GOING,
    "gae, whitened after its returns": WHITENED,
    "grpo of [T, B]": BY_COLUMN,
    "an entropy term": ENTROPY,
    "an optional entropy": ENTROPY.replace("entropy, mask", "mask, entropy=None").replace(
        "- entropy_coef * entropy", "- (0.0 if entropy is None else entropy_coef * entropy.mean())"
    ),
    "gae with a column of bootstraps": ONE_MORE.replace("values, gamma", "values, bootstrap_value, gamma")
    .replace("values [B, T + 1]", "bootstrap_value [B, 1]")
    .replace("    out, last", "    values = torch.cat([values, bootstrap_value], 1)\n    out, last"),
    "gae with its errors": GAE_OF_COLUMNS.replace("return out", "return out, errors").replace(
        "    for t", "    errors = rewards - values + gamma * torch.cat([values[1:], values[:1] * 0])\n    for t"
    ),
    "gae with not_done": GOING.replace("masks", "not_done"),
    "whitened advantages": WHITENS,
    "whitened over the mask": WHITENED_INSIDE.format("advantages[mask > 0]"),
    "whitened rows": WHITENED_INSIDE.format("advantages").replace("a * ratio", "a[:, None] * ratio"),
    "a bound against overflow": loss("ppo_loss").replace("d.exp()", "d.clamp(-5, 5).exp()"),
    "rloo of rounds": INTERLEAVED,
    "kl, verl's abs": "def kl_penalty(logprob, ref_logprob):\n    return (logprob - ref_logprob).abs()\n",
    "kl of the vocabulary": "def kl_loss(log_probs, ref_log_probs):\n"
    "    return (log_probs.exp() * (log_probs - ref_log_probs)).sum(-1)\n",
    "a class": CLASS,
    "settings of a dataclass": OF_SETTINGS,
    "settings of their own as the default": OF_OTHER_SETTINGS,
    "a correction for the sampler that is off": SAMPLED.replace("rollout_logp, advantages", "advantages")
    .replace("cap=2.0", "cap=2.0, rollout_logp=None, correct=False")
    .replace("(old_logp - rollout_logp)", "(old_logp - (rollout_logp if correct else old_logp))"),
    "a dictionary of inputs": OF_A_BATCH,
    "a namespace of inputs": OF_A_BATCH.replace('["', ".").replace('"]', "").replace('.get("mask", None)', ".mask"),
    "gae by its inputs": OF_NAMES,
    "a compiled loss": "@torch.compile" + loss("ppo_loss"),
    "a scripted loss": SCRIPTED,
    "names of trainer and engine": loss("ppo_loss")
    .replace("old_logp", "inference_lps")
    .replace("(logp", "(trainer_logp")
    .replace("keep, logp", "keep, trainer_logp")
    .replace("inference_lps", "inference_logps"),
    "rloo, TRL's names": INTERLEAVED.replace("rewards, k)", "rlhf_reward, rloo_k)")
    .replace("rewards.", "rlhf_reward.")
    .replace("(k,", "(rloo_k,")
    .replace("(k -", "(rloo_k -"),
    "grpo advantage, deviation of the batch": GRPO_ADVANTAGE.replace("x.std()", "scores.std()"),
    "kl in the advantage": KL_IN_ADVANTAGE,
    "numbers inside": NUMBERS_INSIDE,
    "made by a function": "def _made(eps):\n" + textwrap.indent(loss("ppo_loss"), "    ") + "    return ppo_loss\n\n\n"
    "ppo_loss = _made(0.2)\n",
}
BROKEN = {  # {name: (code, words of what is found)}
    "no mask": (loss("ppo_loss", "loss.mean()"), "all places, padding included"),
    "no mask at all": (
        "def ppo_loss(logp, old_logp, advantages, mask, eps=0.2):\n    r = (logp - old_logp).exp()\n"
        "    return torch.maximum(-advantages * r, -advantages * r.clamp(1 - eps, 1 + eps)).mean()\n",
        "without the mask",
    ),
    "sign": (loss("ppo_loss", "-" + TOKEN), "sign flipped"),
    "sign, with a mask left at None": (
        loss("ppo_loss", "-" + TOKEN).replace("mask, eps_low=0.2", "mask, loss_mask=None, eps_low=0.2"),
        "sign flipped",
    ),
    "next values left out": (NEXT_VALUES.replace("* next_values[:, t]", "* 0"), "none of the published"),
    "clip side": (loss("ppo_loss").replace("torch.maximum", "torch.minimum"), "bound on the wrong side"),
    "no clip": (loss("ppo_loss").replace("ratio.clamp(1 - eps_low, 1 + eps_high)", "ratio"), "without a bound"),
    "bounds exchanged": (
        loss("dapo_loss").replace("1 - eps_low, 1 + eps_high", "1 - eps_high, 1 + eps_low"),
        "two bounds exchanged",
    ),
    "ratio": (loss("ppo_loss").replace("d.exp()", "(-d).exp()"), "upside down"),
    "detached": (loss("ppo_loss").replace("d.exp()", "d.exp().detach()"), "gradient is not"),
    "aggregation": (loss("dapo_loss", SEQUENCE.format("len(loss)")), "aggregates by mean over sequences"),
    "empty row": (loss("grpo_loss", "(torch.where(keep, loss, 0.0).sum(1) / keep.sum(1)).mean()"), "empty row"),
    "cispo with gradient": (CISPO.replace(".detach()", ""), "gradient is not"),
    "kl dropped": (WITH_KL.replace("beta * kl", "0 * kl"), "without the KL term"),
    "kl upside down": (
        KL.replace("d.exp() - d - 1", "(-d).exp() + d - 1"),
        "policy and reference exchanged in its KL",
    ),
    "batch mean": (
        "def grpo_advantages(scores, groups):\n    return (scores - scores.mean()) / (scores.std() + 1e-6)\n",
        "whole batch as one group",
    ),
    "neighbours": (
        "def grpo_advantages(scores, group_ids):\n    x = scores.view(-1, 4)\n"
        "    return ((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)).flatten()\n",
        "neighbours as groups",
    ),
    "no eps": (GRPO_ADVANTAGE.replace(" + eps", ""), "equal scores get nan"),
    "gamma and lambda": (GAE.replace("gamma * following", "lam * following"), "gamma and lambda exchanged"),
    "gae over padding": (
        GAE.replace("torch.where(keep[:, t], values[:, t], following)", "values[:, t]").replace(
            "values, rewards = torch.where(keep, values, 0.0), torch.where(keep, rewards, 0.0)", "pass"
        ),
        "none of the published",
    ),
    "value clip": (VALUE.replace("torch.maximum", "torch.minimum"), "the smaller of its two errors"),
    "gspo of token ratios": (
        GSPO.replace(
            "(d.sum(1) / keep.sum(1).clamp(min=1)).exp()", "(d.exp() * keep).sum(1) / keep.sum(1).clamp(min=1)"
        ),
        "none of the published",
    ),
    "sampler upside down": (SAMPLED.replace("(old_logp - rollout_logp)", "(rollout_logp - old_logp)"), "upside down"),
    "ratio to the sampler": (SAMPLED.replace("logp - old_logp).exp()", "logp - rollout_logp).exp()", 1), "none of the"),
    "dones that end nothing": (DONES.replace("(1 - ended) * ", ""), "across an episode's end"),
    "an empty row counts": (GSPO.replace(" * keep.any(1)", ""), "but for an empty row"),
    "no bootstrap": (BOOTSTRAP.replace("else next_value", "else 0"), "next_value changes nothing"),
    "bootstrap subtracted": (BOOTSTRAP.replace("else next_value", "else -next_value"), "is not what the last step"),
    "a last end that cuts nothing": (
        BOOTSTRAP.replace("(1 - dones[t])", "(1 - dones[t] * (t + 1 < len(rewards)))"),
        "does not cut next_value",
    ),
    "a next_done that cuts nothing": (
        DONES.replace("(next_done, next_value)", "(0.0, next_value)"),
        "does not cut next_value",
    ),
    "one more value, never read": (
        ONE_MORE.replace("values[:, t + 1]", "(values[:, t + 1] if t + 1 < rewards.shape[1] else 0)"),
        "names T + 1 values, of which the last is never read",
    ),
    "whitened returns": (WHITENED.replace("out + values", "white + values"), "computed after whitening"),
    "returns of rewards": (GAE.replace("out + values", "out + rewards"), "are not advantage + value"),
    "wrong axis": (BY_COLUMN.replace("advantages *", "advantages[:, None] *"), "over the wrong axis"),
    "wrong axis of [B, T]": (BY_COLUMN.replace("eps=0.2):", "eps=0.2):  # all [B, T]"), "its source says [B, T]"),
    "entropy added": (ENTROPY.replace("- entropy_coef", "+ entropy_coef"), "a larger entropy raises the loss"),
    "kl subtracted": (WITH_KL.replace("+ beta * kl", "- beta * kl"), "KL term subtracted"),
    "one bound": (loss("ppo_loss").replace("1 - eps_low, 1 + eps_high", "max=1 + eps_high"), "without its lower bound"),
    "the baseline has its own": (
        "def rloo_advantages(rewards, k):\n    r = rewards.view(-1, k)\n"
        "    return (r - r.mean(1, keepdim=True)).flatten()\n",
        "it computes dr_grpo_advantage",
    ),
    "a tight bound on the ratio": (
        loss("ppo_loss").replace("d.exp()", "d.clamp(-2, 2).exp()"),
        "none of the published",
    ),
    "whitened over the padding": (WHITENED_INSIDE.format("advantages"), "whitens its advantages over the padding too"),
    "right with a switch alone": (
        loss("ppo_loss", TOKEN + " * (1 if right else 0.37)").replace("mask,", "mask, right=False,"),
        "at its default right=False it is none of the published forms",
    ),
    "wrong by default": (WHITENS.replace(" + 1e-8)", " + 3)"), "with norm_adv=False it is one"),
    "k3's sign": (KL.replace("d.exp() - d - 1", "d.exp() + d - 1"), "the sign of k3's linear term flipped"),
    "values exchanged": (
        VALUE.replace("o + (v - o).clamp", "v + (o - v).clamp"),
        "values and old values exchanged inside its clip",
    ),
    "another value later": (CALLED_TWICE, "another value in a later call"),
    "sampler never read": (SAMPLED.replace("* weight", ""), "rollout_logp changes nothing"),
    "a dictionary, clip side": (OF_A_BATCH.replace("torch.max", "torch.min"), "bound on the wrong side"),
    "a dataclass, detached": (OF_SETTINGS.replace(".exp()", ".exp().detach()"), "gradient is not"),
    "scripted, sign": (SCRIPTED.replace("-torch.min", "torch.min"), "sign flipped"),
    "kl in the advantage, with its gradient": (KL_IN_ADVANTAGE.replace(".detach()", ""), "gradient is not"),
    "a loss's kl upside down": (
        WITH_KL.replace("(ref - logp).exp() - ref + logp", "(logp - ref).exp() - logp + ref"),
        "policy and reference exchanged in its KL",
    ),
    "gae across an end": (ACROSS, "sum over deltas across an episode's end"),
    "gae with the value after an end": (
        ACROSS.replace("* (1 - dones[t]) - ", "- ").replace("* lam * last", "* lam * (1 - dones[t]) * last"),
        "the value after an episode's end",
    ),
    "gae whitened over the padding": (
        WHITENED.replace("out[keep].mean()", "out.mean()").replace("out[keep].std()", "out.std()"),
        "whitened over the padding too",
    ),
    "in place": (
        loss("ppo_loss").replace("a = torch.where(keep, advantages, 0.0)", "a = advantages.sub_(advantages.mean())"),
        "changes its caller's advantages in place",
    ),
}


def write(folder, code: str):
    """A file with this code."""
    file = folder / "functions.py"
    file.write_text("import torch\n\n" + textwrap.dedent(code))
    return file


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_against_a_sound_function(tmp_path, capsys, name):
    code, report, _ = run(capsys, write(tmp_path, SOUND[name]))
    assert (code, report["findings"], report["not_measured"]) == (0, [], []), report


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_function_is_named(tmp_path, capsys, name):
    text, finding = BROKEN[name]
    code, report, err = run(capsys, write(tmp_path, text))
    assert code == 1 and finding in report["findings"][0] and "functions.py, line" in report["findings"][0], report
    assert len(report["sentences"]) <= 5 and "against it:" in err


MADE = """
import functools


class Meter(Exception):
    @functools.cached_property
    def kl_loss(self):
        return 1
"""


@pytest.mark.parametrize(("flags", "code"), [(["--as", "mine=gspo"], 1), (["--as", "grpo"], 0), (["--as", "x"], 2)])
def test_a_formula_can_be_named(tmp_path, capsys, flags, code):
    file = write(tmp_path, loss("mine"))
    assert run(capsys, file, *flags)[0] == code
    assert run(capsys, file)[0] == 2 and run(capsys, tmp_path, "--as", "mine=ppo")[0] == 0
    write(tmp_path, f"scale = float(2)\n{MADE}{loss('mine')}")  # what is no function has no formula
    assert run(capsys, file, *flags)[0] == code


MULTIPLIED = "def masked_mean(x, mask):\n    return (x * mask).sum() / mask.sum()\n"
IN_GRADIENT = PLAIN.replace("torch.where(keep, logp, 0.0) * torch.where(keep, advantages, 0.0)", "{}")
IN_GRADIENT = IN_GRADIENT.format("torch.where(keep, logp * torch.where(keep, advantages, logp), 0.0)")
RAISING = MULTIPLIED.replace("    return", "    assert x.isfinite().all()\n    return")


@pytest.mark.parametrize(("text", "part"), [(MULTIPLIED, "value"), (IN_GRADIENT, "gradient")])
def test_nan_beneath_the_mask_is_a_note(tmp_path, capsys, text, part):
    code, report, err = run(capsys, write(tmp_path, text))
    (figures,) = report["figures"].values()
    assert (code, report["findings"], figures["nan_beneath_mask_reaches"]) == (0, [], part)
    assert f"Note: nan beneath the mask gets into the {part} of " in err and "changes nothing in 0" in err


def test_nan_beneath_the_mask_that_raises_is_a_finding(tmp_path, capsys):
    code, report, _ = run(capsys, write(tmp_path, RAISING))
    assert code == 1 and "with nan beneath the mask it raises AssertionError" in report["findings"][0]


def test_a_sum_of_losses_and_a_value_are_not_judged(tmp_path, capsys):
    both = loss("ppo_loss").replace("advantages, mask", "advantages, values, returns, mask")
    code, report, _ = run(capsys, write(tmp_path, both + SOUND["masked mean"] + MADE))
    (missed,) = report["not_measured"]
    assert code == 0 and "it needs values, returns, which no input of ppo is called" in missed
    both = loss("ppo_loss").replace("mask, eps_low=0.2", "mask, eps, clip, eps_low=0.2")
    (tmp_path / "both").mkdir()
    code, report, _ = run(capsys, write(tmp_path / "both", both + SOUND["masked mean"]))
    assert code == 0 and "it takes eps and clip, which could be the same input" in report["not_measured"][0]


UNCHECKED = {  # beside a sound masked mean
    "class PolicyLoss:\n    def __call__(self, logprobs, batch):\n        return -logprobs.mean()\n": False,
    "def compute_advantages(rewards, table):\n    return rewards - table\n": False,
    "def normalize_advantages(advantages, mask, size):\n    return advantages * mask\n": True,  # a helper
    "def aggregate_loss(losses, mask, mode):\n    return losses * mask\n": True,
}


@pytest.mark.parametrize("source", UNCHECKED)
def test_a_loss_that_cannot_be_checked_leaves_a_file_unproved(tmp_path, capsys, source):
    code, report, _ = run(capsys, write(tmp_path, SOUND["masked mean"] + "\n\n" + source))
    assert code == 0 and report["proved"] == UNCHECKED[source]
    assert report["sentences"][0].startswith("Not checked") != report["proved"]


def test_a_function_that_as_names_and_that_cannot_be_checked_leaves_a_file_unproved(tmp_path, capsys):
    other = "\n\ndef penalty(logprob, ref_logprob, table):\n    return logprob - ref_logprob\n"
    file = write(tmp_path, SOUND["masked mean"] + other)
    assert run(capsys, file)[1]["proved"]
    report = run(capsys, file, "--as", "penalty=k1")[1]
    assert not report["proved"] and "penalty (it needs table" in report["sentences"][0]


def test_a_file_of_a_folder_that_does_not_import_is_not_measured(tmp_path, capsys):
    """Alone it is bad input; dot-folders and installed packages are not entered."""
    write(tmp_path, SOUND["kl"])
    broken = {"absent.py": "import no_such_module\n" + KL, "syntax.py": "def kl_loss(:\n"}
    for name in [*broken, ".venv/x.py", "env/lib/site-packages/x.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(broken.get(name, "import no_such_module\n" + KL))
    code, report, _ = run(capsys, tmp_path)
    syntax, absent = sorted(report["not_measured"], reverse=True)
    assert code == 0 and "absent.py: importing it raises ModuleNotFoundError" in absent and "syntax.py: " in syntax
    assert [run(capsys, tmp_path / name)[0] for name in broken] == [2, 2]


INSIDE = """import torch


def cispo_loss(logp, old_logp, advantages, mask):
    weight = (logp - old_logp).exp().clamp(max=1.3).detach()
    return -(torch.where(mask > 0, weight * advantages * logp, 0)).sum() / mask.sum()


def sapo_loss(logp, old_logp, advantages, mask):
    ratio = torch.where(mask > 0, logp - old_logp, 0).exp()
    gate = torch.sigmoid(2.0 * (ratio - 1)) * 4 / 2.0
    return -(torch.where(mask > 0, gate * advantages, 0)).sum() / mask.sum()
"""


def test_numbers_that_a_function_has_inside(tmp_path, capsys):
    """CISPO's paper has no lower bound; the report says which numbers were found in the source."""
    code, report, _ = run(capsys, write(tmp_path, INSIDE))
    assert code == 0 and not report["findings"]
    ways = {name.split(" ")[0]: about["written_as"] for name, about in report["figures"].items()}
    assert ways["cispo_loss"].startswith("cispo without a lower bound, sum over tokens / their number, with ")
    assert " high 0.3 inside" in ways["cispo_loss"] and ways["sapo_loss"].endswith("tau_pos 2 and tau_neg 2 inside")


def test_a_generic_name_in_an_unknown_form_is_not_judged(tmp_path, capsys):
    """A value loss may be a Huber loss: nothing is said against it; the sentences say what was not looked at."""
    huber = """
def value_loss(values, returns, mask):
    error = torch.nn.functional.smooth_l1_loss(values, returns, reduction="none")
    return (error * mask).sum() / mask.sum()
"""
    code, report, _ = run(capsys, write(tmp_path, huber + SOUND["masked mean"]))
    assert code == 0 and "it is not one of the forms known here of value_loss" in report["not_measured"][0]
    assert not report["proved"] and "Computed, but none of the forms known here: value_loss." in report["sentences"]
    code, report, _ = run(capsys, write(tmp_path, huber))
    assert (code, report["proved"], report["findings"]) == (0, False, [])
    near = VALUE.replace("o + (v - o).clamp(-clip, clip)", "torch.clamp(v, min=r - clip).minimum(o + clip)")
    assert not run(capsys, write(tmp_path, near))[1]["proved"], "a clip around the return"
    elsewhere = (
        loss("grpo_loss").replace("eps_low=0.2, eps_high=0.2", "").replace("1 - eps_low, 1 + eps_high", "*bounds()")
    )
    elsewhere += "\n\ndef bounds():\n    return 0.85, 1.3\n"
    code, report, _ = run(capsys, write(tmp_path, elsewhere))
    assert (code, report["proved"]) == (0, False), "bounds that are not in its source"
    tmp_path = tmp_path / "b"
    tmp_path.mkdir()
    code, report, _ = run(capsys, write(tmp_path, BY_COLUMN))
    assert code == 0 and "only if inputs are [T, B]; for [B, T]" in report["sentences"][1]
