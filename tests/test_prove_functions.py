"""scripts/prove.py on functions: nothing is said against sound ones, and each broken one is named."""

import re
import textwrap

import pytest
from test_prove import run

# sound functions, each under its name
CODE = """
# ppo
def ppo_loss(logp, old_logp, advantages, mask, eps_low=0.2, eps_high=0.2):
    keep = mask.bool()
    d = torch.where(keep, logp, 0.0) - torch.where(keep, old_logp, 0.0)
    a = torch.where(keep, advantages, 0.0)
    ratio = d.exp()
    loss = torch.where(keep, torch.maximum(-a * ratio, -a * ratio.clamp(1 - eps_low, 1 + eps_high)), 0.0)
    means = loss.sum(1) / keep.sum(1).clamp(min=1)
    return loss.sum() / keep.sum()

# clipped
def ppo_loss(logp, old_logp, advantages, mask, eps=0.2):
    ratio = (logp - old_logp).exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - eps, 1 + eps))
    return (loss * mask).sum() / mask.sum()

# gspo
def gspo_loss(logps, old_logps, advantages, completion_mask, epsilon=3e-4):
    keep = completion_mask.bool()
    d = torch.where(keep, logps, 0.0) - torch.where(keep, old_logps, 0.0)
    ratio = (d.sum(1) / keep.sum(1).clamp(min=1)).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - epsilon, 1 + epsilon))
    return (loss * keep.any(1)).sum() / len(loss)

# grpo with KL
def grpo_loss(per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask, beta, epsilon):
    keep = completion_mask.bool()
    logp, old, ref = (torch.where(keep, x, 0.0) for x in (per_token_logps, old_per_token_logps, ref_per_token_logps))
    ratio = (logp - old).exp()
    a = advantages[:, None] if advantages.dim() == 1 else torch.where(keep, advantages, 0.0)
    kl = (ref - logp).exp() - ref + logp - 1
    loss = -torch.min(a * ratio, a * ratio.clamp(1 - epsilon, 1 + epsilon)) + beta * kl
    return ((loss * keep).sum(1) / keep.sum(1).clamp(min=1)).mean()

# cispo
def cispo_loss(logp, old_logp, advantages, mask, clip_low, clip_high):
    keep = mask.bool()
    logp, old, a = (torch.where(keep, x, 0.0) for x in (logp, old_logp, advantages))
    weight = (logp - old).exp().clamp(1 - clip_low, 1 + clip_high).detach()
    return -(weight * a * logp).sum() / keep.sum()

# reinforce
def reinforce_loss(logp, advantages, mask):
    keep = mask.bool()
    return -(torch.where(keep, logp, 0.0) * torch.where(keep, advantages, 0.0)).sum() / keep.sum()

# value
def value_loss(values, old_values, returns, mask, clip=0.2):
    keep = mask.bool()
    v, o, r = (torch.where(keep, x, 0.0) for x in (values, old_values, returns))
    near = o + (v - o).clamp(-clip, clip)
    loss = torch.maximum((v - r) ** 2, (near - r) ** 2) / 2
    return loss.sum() / keep.sum()

# kl
def kl_penalty(log_probs, ref_log_probs):
    d = ref_log_probs - log_probs
    return (d.exp() - d - 1)

# kl of the vocabulary
def kl_loss(log_probs, ref_log_probs):
    return (log_probs.exp() * (log_probs - ref_log_probs)).sum(-1)

# kl in the advantage
def reinforce_loss(logp, ref_logp, advantages, mask, kl_coef=0.1):
    shaped = (advantages - kl_coef * (logp - ref_logp)).detach()
    return -(logp * shaped * mask).sum() / mask.sum()

# masked mean
def masked_mean(x, mask):
    return torch.where(mask.bool(), x, 0.0).sum() / mask.sum()

# gae
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

# gae of one row
def gae(rewards, values, gamma, lam):  # lists; values have one more
    out, last = [], 0.0
    for t in reversed(range(len(rewards))):
        last = float(rewards[t]) + gamma * values[t + 1] - values[t] + gamma * lam * last
        out.insert(0, last)
    return out

# gae by its inputs
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

# grpo advantage
def grpo_advantages(scores, group_ids, eps=1e-6):
    out = torch.zeros_like(scores)
    for g in group_ids.unique():
        x = scores[group_ids == g]
        out[group_ids == g] = (x - x.mean()) / (x.std() + eps)
    return out

# grpo advantage of neighbours
def grpo_advantage(rewards, num_generations):
    x = rewards.view(-1, num_generations)
    return ((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True, correction=0) + 1e-4)).flatten()

# rloo
def rloo_advantages(rewards):  # [P, N]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)

# one group a call
import statistics

def grpo_advantages(rewards):
    return [(r - statistics.mean(rewards)) / (statistics.pstdev(rewards) + 1e-4) for r in rewards]

# as verl
def compute_grpo_outcome_advantage(token_level_rewards, response_mask, index, epsilon=1e-6):
    scores = (token_level_rewards * 1).nan_to_num(0.0).sum(-1)
    out = scores.clone()
    for g in set(index.tolist()):
        x = scores[index == g]
        out[index == g] = (x - x.mean()) / (x.std() + epsilon)
    return out[:, None] * response_mask, out[:, None] * response_mask

# reinforce_plus_plus_advantages
def reinforce_plus_plus_advantages(token_level_rewards, response_mask, gamma):
    out, now = torch.zeros_like(token_level_rewards), 0.0
    for t in reversed(range(out.shape[1])):
        now = (token_level_rewards[:, t] + gamma * now) * response_mask[:, t] + now * (1 - response_mask[:, t])
        out[:, t] = now
    inside = out[response_mask > 0]
    return (out - inside.mean()) / (inside.std() + 1e-8) * response_mask, out

# a class
class GRPOLoss(torch.nn.Module):
    def __init__(self, eps=0.2, scale=1.0):
        super().__init__()
        self.eps, self.scale = eps, scale

    def forward(self, logps, old_logps, advantages, mask):
        ratio, a = torch.where(mask > 0, logps - old_logps, 0.0).exp(), advantages[:, None]
        loss = -torch.min(a * ratio, a * ratio.clamp(1 - self.eps, 1 + self.eps)) * mask
        return (loss.sum(1) / mask.sum(1).clamp(min=1)).mean()

# a dictionary of inputs
def dapo_loss(batch, low=0.2, high=0.28):
    ratio, a, mask = (batch["logprobs"] - batch["old_logprobs"]).exp(), batch["advantages"], batch.get("mask", None)
    loss = torch.max(-a * ratio, -a * ratio.clamp(1 - low, 1 + high))
    return (loss * mask).sum() / mask.sum()

"""
# name of a sound function | the one that it is made of | what is replaced => by what | ...
SOUND_EDITS = """
by token | ppo | ppo_loss => ppo_clip_loss | loss.sum() / keep.sum() => loss
grpo | ppo | ppo_loss => grpo_loss | loss.sum() / keep.sum() => means.sum() / len(loss)
dr_grpo | ppo | ppo_loss => dr_grpo_loss | / keep.sum() => / loss.numel()
grpo of [T, B] | clipped | ppo => grpo \
| (loss * mask).sum() / mask.sum() => ((loss * mask).sum(0) / mask.sum(0).clamp(min=1)).mean()
objective | ppo | ppo_loss => ppo_objective | return => return -
a paper's bounds inside | clipped | ppo_loss => dapo_loss | , eps=0.2 => | 1 - eps, 1 + eps => 1 - 0.2, 1 + 0.28
ratio | clipped | logp, old_logp => ratio | ratio = (logp - old_logp).exp() => pass
log_ratio and A | clipped | logp, old_logp, advantages => log_ratio, A \
| (logp - old_logp) => log_ratio | -advantages => -A
names of pi | grpo with KL | ref_per_token_logps => pi_ref_logprobs \
| old_per_token_logps => pi_old_logprobs | per_token_logps => pi_theta_logprobs
settings of a dataclass | gspo | epsilon=3e-4 => config: Settings \
| - epsilon, 1 + epsilon => - config.low, 1 + config.high \
| def => from dataclasses import dataclass\\n\\n@dataclass\\nclass Settings:\\n    low: float = 3e-4\\n    high: \
float = 4e-4\\n    dual_clip: float = 3.0\\n    sequence: bool = False\\n\\ndef
a bound against overflow | ppo | d.exp() => d.clamp(-5, 5).exp()
a compiled loss | ppo | def => @torch.compile\\ndef
an entropy term | clipped | mask, eps=0.2 => entropy, mask, eps=0.2, entropy_coef=0.01 \
| + eps)) => + eps)) - entropy_coef * entropy
whitened over the mask | clipped \
| ratio = => a = advantages[mask > 0]; advantages = (advantages - a.mean()) / (a.std() + 1e-8); ratio =
weights of the sampler | clipped | old_logp, advantages => old_logp, rollout_logp, advantages \
| eps=0.2 => eps=0.2, cap=2.0 | ratio = => weight = (old_logp - rollout_logp).exp().clamp(max=cap); ratio = \
| return => return {"clipped": 0.0}, | loss * mask => loss * weight * mask
cispo of TRL | cispo | clip_low, clip_high => high | 1 - clip_low, 1 + clip_high => max=high
gae, whitened after its returns | gae \
| return out, => return torch.where(keep, (out - out[keep].mean()) / (out[keep].std() + 1e-8), 0.0),
gae of [T, B], with a mask | gae | [:, t] => [t] | values.shape[1] => len(values) | values[:, 0] => values[0]
grpo advantage, deviation of the batch | grpo advantage | x.std() => scores.std()
"""
# name of a broken function | ... | words of what is found
BROKEN_EDITS = """
no mask | ppo | loss.sum() / keep.sum() => loss.mean() | all places, padding included
no mask at all | clipped | (loss * mask).sum() / mask.sum() => loss.mean() | without the mask
sign, with a mask left at None | ppo | return => return - | mask, eps_low => mask, loss_mask=None, eps_low \
| sign flipped
clip side | ppo | torch.maximum => torch.minimum | bound on the wrong side
no clip | ppo | ratio.clamp(1 - eps_low, 1 + eps_high) => ratio | without a bound
one bound | ppo | 1 - eps_low, 1 + eps_high => max=1 + eps_high | without its lower bound
bounds exchanged | clipped | ppo => dapo | eps=0.2 => low=0.2, high=0.3 | - eps, 1 + eps => - high, 1 + low \
| two bounds exchanged
ratio | ppo | d.exp() => (-d).exp() | upside down
detached | ppo | d.exp() => d.exp().detach() | gradient is not
a tight bound on the ratio | ppo | d.exp() => d.clamp(-2, 2).exp() | none of the published
aggregation | ppo | ppo_loss => dapo_loss | loss.sum() / keep.sum() => means.mean() | aggregates by mean over sequences
in place | ppo | torch.where(keep, advantages, 0.0) => advantages.sub_(advantages.mean()) \
| changes its caller's advantages
no upper bound of a row | gspo | .clamp(1 - epsilon, 1 + epsilon) => .clamp(min=1 - epsilon) | without its upper bound
an empty row counts | gspo | * keep.any(1) => | but for an empty row
cispo with gradient | cispo | .detach() => | gradient is not
one bound twice | clipped | ppo => dapo | eps=0.2 => low=0.2, high=0.3 | 1 + eps => 1 + low | 1 - eps => 1 - low \
| its lower bound on both sides
twice | kl | d.exp() - d - 1 => 2 * (d.exp() - d - 1) | twice the formula
no lambda | gae | gamma * lam * last => gamma * last | with lambda 1
undiscounted | reinforce_plus_plus_advantages | gamma * now => now | with gamma 1
empty row | ppo | ppo => grpo | .clamp(min=1) => | loss.sum() / keep.sum() => means.mean() | row, which makes it nan
kl dropped | grpo with KL | beta * kl => 0 * kl | without the KL term
kl subtracted | grpo with KL | + beta * kl => - beta * kl | KL term subtracted
a loss's kl upside down | grpo with KL | (ref - logp).exp() - ref + logp => (logp - ref).exp() - logp + ref \
| policy and reference exchanged in its KL
kl upside down | kl | d.exp() - d - 1 => (-d).exp() + d - 1 | policy and reference exchanged in its KL
k3's sign | kl | d.exp() - d - 1 => d.exp() + d - 1 | the sign of k3's linear term flipped
kl in the advantage, with its gradient | kl in the advantage | .detach() => | gradient is not
value clip | value | torch.maximum => torch.minimum | the smaller of its two errors
no eps | grpo advantage | + eps => | equal scores get nan
batch mean | grpo advantage | x = scores[group_ids == g] => x = scores | = (x - => = (scores[group_ids == g] - \
| batch as one group
neighbours | grpo advantage of neighbours | num_generations): => group_ids): | -1, num_generations => -1, 4 \
| neighbours as groups
the baseline has its own | rloo \
| (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1) => rewards.mean(1, keepdim=True) \
| it computes dr_grpo_advantage
gamma and lambda | gae | gamma * following => lam * following | gamma and lambda exchanged
gae over padding | gae | torch.where(keep[:, t], values[:, t], following) => values[:, t] \
| values, rewards = torch.where(keep, values, 0.0), torch.where(keep, rewards, 0.0) => pass | none of the published
returns of rewards | gae | out + values => out + rewards | are not advantage + value
whitened returns | gae | return out, out + values => out = torch.where(keep, (out - out[keep].mean()) / \
out[keep].std(), 0.0); return out, out + values | are not advantage + value
gae whitened over the padding | gae, whitened after its returns | out[keep] => out | whitened over the padding too
sampler never read | weights of the sampler | * weight => | rollout_logp changes nothing
sampler upside down | weights of the sampler | old_logp - rollout_logp => rollout_logp - old_logp | upside down
wrong axis | grpo of [T, B] | advantages * => advantages[:, None] * | over the wrong axis
entropy added | an entropy term | - entropy_coef => + entropy_coef | a larger entropy raises the loss
whitened over the padding | whitened over the mask | advantages[mask > 0] => advantages \
| none of the published
a dataclass, detached | settings of a dataclass | .exp() => .exp().detach() | gradient is not
another value later | grpo advantage | def => calls = [0]\\ndef \
| return out => calls[0] += 1; return out if calls[0] < 4 else -out | another value in a later call
"""


def parts(text: str, marker: str) -> dict[str, str]:
    """{what follows a marker on its line: the text up to the next}."""
    pieces = re.split(rf"^{marker}(.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def edited(code: str, edits: list[str]) -> str:
    """Code with edits `old => new`, each of which must have something to replace."""
    for old, arrow, new in (edit.partition(" =>") for edit in edits):
        assert arrow and old.strip() in code, f"{old}: {code}"
        code = code.replace(old.strip(), new.strip().replace("\\n", "\n"))
    return code


SOUND, BROKEN = parts(CODE, "# (?=[a-z])"), {}  # BROKEN: {name: (code, words of what is found)}
for name, base, *edits in (line.split(" | ") for line in SOUND_EDITS.strip().splitlines()):
    SOUND[name] = edited(SOUND[base], edits)
MAKER = "def _made(eps):\n{}    return ppo_loss\n\nppo_loss = _made(0.2)\n"
SOUND["made by a function"] = MAKER.format(textwrap.indent(SOUND["clipped"], "    "))
for name, base, *edits, words in (line.split(" | ") for line in BROKEN_EDITS.strip().splitlines()):
    BROKEN[name] = edited(SOUND[base], edits), words


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
MINE = SOUND["ppo"].replace("ppo_loss", "mine")


@pytest.mark.parametrize(("flags", "code"), [(["--as", "mine=gspo"], 1), (["--as", "grpo"], 0), (["--as", "x"], 2)])
def test_a_formula_can_be_named(tmp_path, capsys, flags, code):
    file = write(tmp_path, MINE)
    assert run(capsys, file, *flags)[0] == code
    assert run(capsys, file)[0] == 2 and run(capsys, tmp_path, "--as", "mine=ppo")[0] == 0
    write(tmp_path, f"scale = float(2)\n{MADE}{MINE}")  # what is no function has no formula
    assert run(capsys, file, *flags)[0] == code


MULTIPLIED = "def masked_mean(x, mask):\n    return (x * mask).sum() / mask.sum()\n"
IN_GRADIENT = """def reinforce_loss(logp, advantages, mask):
    return -torch.where(mask > 0, logp * torch.where(mask > 0, advantages, logp), 0.0).sum() / mask.sum()
"""


@pytest.mark.parametrize(("text", "part"), [(MULTIPLIED, "value"), (IN_GRADIENT, "gradient")])
def test_nan_beneath_the_mask_is_a_note_and_a_finding_where_it_raises(tmp_path, capsys, text, part):
    code, report, err = run(capsys, write(tmp_path, text))
    (figures,) = report["figures"].values()
    assert (code, report["findings"], figures["nan_beneath_mask_reaches"]) == (0, [], part)
    assert f"Note: nan beneath the mask gets into the {part} of " in err and "changes nothing in 0" in err
    raising = text.replace("):\n", "):\n    assert sum((mask, *locals().values())).isfinite().all()\n")
    code, report, _ = run(capsys, write(tmp_path / "..", raising))
    assert code == 1 and "with nan beneath the mask it raises AssertionError" in report["findings"][0]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("advantages, values, returns, mask", "it needs values, returns, which no input of ppo is called"),
        ("advantages, mask, eps, clip", "it takes eps and clip, which could be the same input"),
    ],
)
def test_a_sum_of_losses_is_not_judged(tmp_path, capsys, parameters, said):
    both = SOUND["ppo"].replace("advantages, mask", parameters)
    code, report, _ = run(capsys, write(tmp_path, both + SOUND["masked mean"] + MADE))
    (missed,) = report["not_measured"]
    assert code == 0 and said in missed


UNCHECKED = {  # beside a sound masked mean
    "class PolicyLoss:\n    def __call__(self, logprobs, batch):\n        return -logprobs.mean()\n": False,
    "def rloo_baseline(rewards, group_size):\n    return rewards * 0\n": True,
    "def rloo_loss(logprobs, rewards, mask):\n    return -(logprobs * rewards[:, None] * mask).sum()\n": False,
    "def compute_advantages(rewards, table):\n    return rewards - table\n": False,
    "def gae(rewards, values, dones, gamma, lam):\n    return rewards - values\n": False,
    "def critic_loss(values, targets_of_td):\n    return (values - targets_of_td).mean()\n": False,
    "def plot_policy_loss(history):\n    return None\n": True,
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
    report = run(capsys, write(tmp_path, SOUND["masked mean"] + other), "--as", "penalty=k1")[1]
    assert not report["proved"] and "penalty (it needs table" in report["sentences"][0]


def test_a_file_of_a_folder_that_does_not_import_is_not_measured(tmp_path, capsys):
    """Alone it is bad input; dot-folders and installed packages are not entered."""
    write(tmp_path, SOUND["kl"])
    absent = "import no_such_module\n" + SOUND["kl"]
    broken = {"absent.py": absent, "syntax.py": "def kl_loss(:\n"}
    for name in [*broken, ".venv/x.py", "env/lib/site-packages/x.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(broken.get(name, absent))
    code, report, _ = run(capsys, tmp_path)
    syntax, absent = sorted(report["not_measured"], reverse=True)
    assert code == 0 and "absent.py: importing it raises ModuleNotFoundError" in absent and "syntax.py: " in syntax
    assert [run(capsys, tmp_path / name)[0] for name in broken] == [2, 2]
    (tmp_path / "env" / "src").mkdir()
    write(tmp_path / "env" / "src", SOUND["kl"])
    assert run(capsys, tmp_path / "env")[0] == 0, "a folder with files in subfolders alone"


INSIDE = """
def cispo_loss(logp, old_logp, advantages, mask):
    weight = (logp - old_logp).exp().clamp(max=1.3).detach()
    return -(torch.where(mask > 0, weight * advantages * logp, 0)).sum() / mask.sum()

def sapo_loss(logp, old_logp, advantages, mask):
    ratio = torch.where(mask > 0, logp - old_logp, 0).exp()
    gate = torch.sigmoid(2.0 * (ratio - 1)) * 4 / 2.0
    return -(torch.where(mask > 0, gate * advantages, 0)).sum() / mask.sum()

def of_row(logp, old_logp, advantages, mask, low=3e-4, high=4e-4):
    s = (torch.where(mask > 0, logp - old_logp, 0).sum(1) / mask.sum(1).clamp(min=1)).exp()
    return torch.maximum(-advantages * s, -advantages * s.clamp(1 - low, 1 + high)) * mask.any(1)

def gspo_loss(logp, old_logp, advantages, mask):
    return of_row(logp, old_logp, advantages, mask).sum() / mask.any(1).sum()
"""


def test_numbers_that_a_function_has_inside(tmp_path, capsys):
    """CISPO's paper has no lower bound; the report says which numbers were found in the source, or in what it calls."""
    code, report, _ = run(capsys, write(tmp_path, INSIDE))
    assert code == 0 and not report["findings"]
    ways = {name.split(" ")[0]: about["written_as"] for name, about in report["figures"].items()}
    assert ways["cispo_loss"].startswith("cispo without a lower bound, sum over tokens / their number, with ")
    assert " high 0.3 inside" in ways["cispo_loss"] and ways["sapo_loss"].endswith("tau_pos 2 and tau_neg 2 inside")
    assert ways["gspo_loss"].endswith("with low 0.0003 and high 0.0004 inside")


HUBER = """
def value_loss(values, returns, mask):
    error = torch.nn.functional.smooth_l1_loss(values, returns, reduction="none")
    return (error * mask).sum() / mask.sum()
"""
UNKNOWN = {
    "a Huber loss": HUBER,
    "a clip around the return": edited(
        SOUND["value"], ["o + (v - o).clamp(-clip, clip) => torch.clamp(v, min=r - clip).minimum(o + clip)"]
    ),
    "bounds that are not in its source": "def bounds():\n    return float('0.85'), float('1.3')\n"
    + edited(SOUND["clipped"], ["ppo => grpo", ", eps=0.2 =>", "1 - eps, 1 + eps => *bounds()"]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_generic_name_in_an_unknown_form_is_not_judged(tmp_path, capsys, name):
    code, report, _ = run(capsys, write(tmp_path, UNKNOWN[name]))
    assert (code, report["proved"], report["findings"]) == (0, False, [])
