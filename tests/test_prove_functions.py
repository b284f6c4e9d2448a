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


def loss(name: str, end: str = TOKEN) -> str:
    """A clipped loss of a name, with an aggregation."""
    return LOSS.format(name=name, end=end)


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
}
BROKEN = {  # {name: (code, words of what is found)}
    "no mask": (loss("ppo_loss", "loss.mean()"), "all places, padding included"),
    "no mask at all": (
        "def ppo_loss(logp, old_logp, advantages, mask, eps=0.2):\n    r = (logp - old_logp).exp()\n"
        "    return torch.maximum(-advantages * r, -advantages * r.clamp(1 - eps, 1 + eps)).mean()\n",
        "without the mask",
    ),
    "padded mean": (loss("grpo_loss", "torch.where(keep, loss, 0.0).mean(1).mean()"), "padding included"),
    "sign": (loss("ppo_loss", "-" + TOKEN), "sign flipped"),
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
    "kl upside down": (KL.replace("d.exp() - d - 1", "(-d).exp() + d - 1"), "none of the published forms"),
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
    "value clip": (VALUE.replace("torch.maximum", "torch.minimum"), "none of the published"),
    "gspo of token ratios": (
        GSPO.replace(
            "(d.sum(1) / keep.sum(1).clamp(min=1)).exp()", "(d.exp() * keep).sum(1) / keep.sum(1).clamp(min=1)"
        ),
        "none of the published",
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


@pytest.mark.parametrize(("flags", "code"), [(["--as", "mine=gspo"], 1), (["--as", "grpo"], 0), (["--as", "x"], 2)])
def test_a_formula_can_be_named(tmp_path, capsys, flags, code):
    file = write(tmp_path, loss("mine"))
    assert run(capsys, file, *flags)[0] == code
    assert run(capsys, file)[0] == 2 and run(capsys, tmp_path, "--as", "mine=ppo")[0] == 0


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


def test_a_function_without_a_signature_is_not_recognised(tmp_path, capsys):
    compiled = "@torch.jit.script\ndef ppo_loss(logp: torch.Tensor, mask: torch.Tensor):\n    return logp * mask\n"
    code, report, _ = run(capsys, write(tmp_path, compiled + SOUND["masked mean"]))
    assert code == 0 and "ppo_loss (" in report["not_measured"][0] and "cannot be read" in report["not_measured"][0]


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
    """CISPO's paper has no lower bound; SAPO's temperatures are 1.0 and 1.05 unless --set says others."""
    file = write(tmp_path, INSIDE)
    code, report, _ = run(capsys, file, "--set", "high=0.3,tau_pos=2,tau_neg=2")
    assert code == 0 and not report["findings"]
    ways = [about["written_as"] for name, about in report["figures"].items() if "cispo" in name]
    assert ways == ["cispo without a lower bound, sum over tokens / their number"]
    assert run(capsys, file)[0] == 1
    for wrong in ("tau=2", "high=wide", "high"):
        code, _, error = run(capsys, file, "--set", wrong)
        assert code == 2 and "expected NAME=NUMBER" in error
