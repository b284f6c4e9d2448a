"""The cells of assets/notebook_template.ipynb; tools/make_notebook.py turns this file into the notebook.

`# %% NAME` begins a code cell, `# %% [markdown] NAME` one of text, and a word in brackets after NAME is a tag. NAME is
the cell's id. What stands above the first cell stays here.
"""
# ruff: noqa: E402

# %% [markdown] intro
# # Try an idea for GRPO
#
# A new reward, advantage or loss against plain GRPO: same prompts, same random numbers, several seeds, and a
# verdict that says whether the difference is larger than the noise. Write yours under **Your idea here** and run
# all cells. As it stands it takes one to two minutes on a CPU, with the embedded 0.4M-parameter model, which adds
# two numbers but forgets carries and answer tags. On a GPU change two lines: `MODEL` and `PRECISION`.
#
# [Data](#Data-and-model) · [Your idea here](#Your-idea-here) · [The loop](#The-loop) · [Verdict](#Verdict) ·
# [Next step](#Next-step)

# %% setup
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

BUNDLE = ""  # folder of the clone that holds scripts/; "" looks in this folder and in those above it
REPOSITORY_URL = ""  # on Colab, where there is no clone yet: the address for `git clone`


def find_bundle():
    """The folder that holds scripts/ppo_train.py, None where there is none."""
    here = Path.cwd()
    folders = [here / BUNDLE, *here.parents, here / "rl-training-code"]
    return next((str(f.resolve()) for f in folders if (f / "scripts" / "ppo_train.py").is_file()), None)


if not find_bundle() and REPOSITORY_URL:
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", REPOSITORY_URL, "rl-training-code"], check=True)
bundle = find_bundle()
if not bundle:
    raise FileNotFoundError(
        f"got no scripts/ppo_train.py in {Path.cwd() / BUNDLE} or above; expected a clone of the bundle; "
        "try BUNDLE = its folder, or REPOSITORY_URL = its address"
    )
try:
    found = importlib.metadata.version("transformers")
except importlib.metadata.PackageNotFoundError:
    found = "0.0"
if tuple(map(int, found.split(".")[:2])) < (5, 23):  # Colab brings torch, numpy and matplotlib, and its own of these
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "transformers>=5.23,<6"], check=True)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore", message="IProgress not found")
spec = importlib.util.spec_from_file_location("ppo_train", f"{bundle}/scripts/ppo_train.py")
ppo = sys.modules["ppo_train"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ppo)  # the pieces that a reader need not see: engine, log-probs, data, rewards
LIBRARY = f"{bundle}/examples/reward_functions_library.py"

# %% settings [parameters]
MODEL = ppo.EMBEDDED_MODEL  # folder or hub id; on a GPU "Qwen/Qwen2.5-0.5B-Instruct", say
PRECISION = "auto"  # bf16 where the CUDA GPU can, else fp32; or one of the two
DATA = ppo.EMBEDDED_DATA  # prompts: JSONL, JSON, CSV or parquet file, or a hub id
EVAL_DATA = ""  # held-out prompts; without it, the embedded ones, or a tenth of your DATA
PROMPT_COLUMN = "prompt"  # column with the prompt, a string or chat messages
CHAT = False  # True: string prompts become a user's turn of the chat template
REWARDS = [f"{LIBRARY}:numeric_correctness", f"{LIBRARY}:format_reward*0.2"]  # FILE.py:function[*weight]
SEEDS = [0, 1, 2]  # both arms run once with each
STEPS = 15
PROMPTS = 16  # prompts a step
GROUP_SIZE = 8  # completions of each prompt, which are compared with each other
MINIBATCHES = 4  # optimizer steps a rollout; with 1 the ratio is always 1 and no clip acts
MAX_NEW_TOKENS = 32  # longest completion
LR = 0.0  # 0: 2e-4 below 50M parameters, else 1e-6
EVAL_PROMPTS = 256  # held-out prompts at most
OUTPUT = "runs/notebook"  # folder for the script of the last cell

# %% [markdown] data-text
# ## Data and model
# What the model is given, and what it does with it before any training. Where it is never right, GRPO has nothing to
# reinforce: the cell below prints the warm start that comes first (`scripts/warm_start.py`).

# %% data
import copy
import dataclasses
import math
import statistics
import time

import numpy as np
import torch

if PRECISION not in ("auto", "fp32", "bf16"):
    raise ValueError(f"got PRECISION {PRECISION!r}; expected 'auto', 'fp32' or 'bf16'; try ppo_train.py for fp16")


def settings_now():
    """The settings above under the trainer's names, and the number of held-out prompts."""
    return {
        **{"algorithm": "grpo", "model": MODEL, "data": DATA, "eval_data": EVAL_DATA, "precision": PRECISION},
        **{"steps": STEPS, "batch_size": PROMPTS * GROUP_SIZE, "group_size": GROUP_SIZE, "minibatches": MINIBATCHES},
        **{"max_new_tokens": MAX_NEW_TOKENS, "lr": LR, "prompt_column": PROMPT_COLUMN, "chat": CHAT},
    }, EVAL_PROMPTS


def check_settings():
    """Raise ValueError if the settings have changed since this cell ran, of which model, prompts and config are."""
    if settings_now() != LOADED:
        raise ValueError("got settings that have changed since **Data and model** ran; try running that cell again")


LOADED = settings_now()
SETTINGS = {**LOADED[0]}
if MODEL == ppo.EMBEDDED_MODEL:
    torch.set_num_threads(1)  # too small to gain by a second one, which costs a multiple on a busy machine
config = ppo.Config(**SETTINGS)
ppo.check_config(config)
device = ppo.start_processes(config)
ppo.settle_precision(config, device)
tokenizer = ppo.load_tokenizer(config)
rows, held_out = ppo.load_splits(config, tokenizer)
if not held_out:
    SETTINGS["hold_out"] = max(1, len(rows) // 10)
    config = ppo.Config(**SETTINGS)
    rows, held_out = ppo.hold_out(config, rows)
held_out = held_out[:EVAL_PROMPTS]
start = ppo.load_models(dataclasses.replace(config, kl_coef=1.0), device)  # the untrained policy, and the reference
ppo.check_context(config, start, rows + held_out)

parameters = sum(p.numel() for p in start.policy.parameters())
gib = parameters * (4 + 16 + (4 if config.precision == "fp32" else 2)) / 2**30  # start; trained; reference
print(f"{parameters:,} parameters on {device}: {gib:.2f} GiB for weights, gradients, Adam and reference")
print(f"{len(rows)} prompts, {len(held_out)} held out")
for row in rows[:3]:
    print(f"  {row['prompt']}  {row['columns']}")
print("the first one as the model reads it:", repr(tokenizer.decode(rows[0]["prompt_ids"])))

# %% reward
# The rewards on completions of the untrained model. Where all of a group score the same, GRPO learns nothing.
check_settings()
judge = ppo.Reward(REWARDS)
judge.check_columns(rows[0])
engine = ppo.HFEngine(config, start)
tried = [row for row in rows[:8] for _ in range(GROUP_SIZE)]
draws = np.random.default_rng(0).random((len(tried), MAX_NEW_TOKENS))
ids = [ids for ids, _ in engine.generate([row["prompt_ids"] for row in tried], draws)]
texts = [ppo.visible_text(tokenizer, row, start.eos_ids) for row in ids]
scores, parts = judge(tried, texts, ids)
for i in range(min(8, len(tried))):
    values = ", ".join(f"{name} {'-' if of[i] is None else of[i]}" for name, of in parts.items())
    print(f"{scores[i]:6.2f}  {texts[i][:60]!r:40} {values}")
equal = [len(set(scores[i : i + GROUP_SIZE])) == 1 for i in range(0, len(scores), GROUP_SIZE)]
print(f"mean score {statistics.fmean(scores):.3f}; groups that all score the same: {sum(equal)} of {len(equal)}")
if all(equal):
    print(
        "WARNING: no group teaches anything; try easier prompts, a graded reward, a larger GROUP_SIZE, or a warm start:"
    )
if not any(value is not None and value >= 1 for value in next(iter(parts.values()))):  # GRPO has nothing to reinforce
    flags = f"--self --min_rounds 1 --model {MODEL} --data {DATA} --max_new_tokens {MAX_NEW_TOKENS}"
    rewards = " ".join(f"--reward '{spec}'" for spec in REWARDS)
    flags += f" --prompt_column {PROMPT_COLUMN}" + " --chat" * CHAT
    held = f" --eval_data {EVAL_DATA}" if EVAL_DATA else f" --hold_out {config.hold_out}" * (config.hold_out > 0)
    print(f"python {bundle}/scripts/warm_start.py {flags}{held} {rewards} --output_dir {OUTPUT}_warm")
    print(f"# then MODEL = '{OUTPUT}_warm/final'; with worked solutions leave --self out: references/warm_start.md")

# %% [markdown] idea-text
# ## Your idea here
# Three examples; `IDEA` says which one runs. A value is a function, or a setting of `scripts/ppo_train.py` such as
# `{"clip_eps_high": 0.28}`. What `IDEA` leaves out is as in the baseline, GRPO (Shao 2024). An advantage or a loss is
# called with those arguments that it names, here as by `ppo_train.py --advantage FILE.py:function` and `--loss`.
#
# | key | its function takes | and returns |
# |---|---|---|
# | `reward`: a list of them | `prompts`, `completions` and every column of the data | a number for each completion |
# | `advantage` | `scores`, `groups` (equal = same prompt) [B], `rewards`, `mask` [B, T] | advantages, [B] or [B, T] |
# | `loss` | `logprobs`, `old_logprobs`, `advantages`, `mask`, all [B, T] | loss, and 1 where it was bounded, [B, T] |
#
# The last two may take `config`, too; of what a loss returns, the second may be left out.


# %% idea
def brief(prompts, completions, **_):
    """A reward: 0 for an empty completion, -0.1 at 10 characters."""
    return [-len(c if isinstance(c, str) else c[-1]["content"]) / 100 for c in completions]


def centered(scores, groups):
    """An advantage: the score minus its group's mean, not divided by the group's spread (Dr. GRPO)."""
    return scores - ppo.group_stats(scores, groups)[0]


def asymmetric(logprobs, old_logprobs, advantages):
    """A loss: the clipped surrogate with more room upwards (DAPO's clip-higher)."""
    loss, _, clipped = ppo.policy_loss(logprobs, old_logprobs, advantages, 0.2, 0.28, 0.0)
    return loss, clipped


BASELINE = {}
IDEA = {"advantage": centered}  # or {"loss": asymmetric}, or {"reward": [*REWARDS, brief]}

# %% [markdown] loop-text
# ## The loop
# All of GRPO: sample, score, advantages, loss, step. Per-token tensors are [B, T] over prompt and completion, and
# masks are 1 = keep. Both arms see the same prompts in the same order, and the same random numbers draw their tokens.

# %% loop
ACTS_ON = {
    *("reward", "advantage", "loss", "advantage_std", "advantage_eps", "clip_eps_low", "clip_eps_high", "dual_clip"),
    *("sapo_tau_pos", "sapo_tau_neg", "aggregation", "norm_length", "kl_coef", "kl_estimator"),
    *("temperature", "lr", "weight_decay", "max_grad_norm"),
}  # what the loop below reads


def rewards_of(items):
    """The rewards of a list of FILE.py:function[*weight] and of functions."""
    reward = ppo.Reward([item for item in items if isinstance(item, str)])
    for function in filter(callable, items):
        key = function.__name__ + "_of_idea" * (function.__name__ in reward.functions)
        reward.functions[key], reward.weights[key] = function, 1.0
    return reward


def make_arm(name, settings, seed):
    """The config and the rewards of an arm; functions take their place in the trainer's tables under its name."""
    unknown = set(settings) - ACTS_ON
    if unknown:
        raise ValueError(f"got {sorted(unknown)}; expected keys that this loop reads: {', '.join(sorted(ACTS_ON))}")
    chosen = {key: value for key, value in settings.items() if key != "reward"}
    own = {kind: chosen[kind] for kind in ("advantage", "loss") if callable(chosen.get(kind))}
    for kind, function in own.items():  # called with those arguments that it names; its result is checked
        function, chosen[kind] = ppo.OwnFunction(kind, name, function), name
        known = ppo.ADVANTAGES if kind == "advantage" else ppo.LOSSES
        known[name] = function if kind == "advantage" else ppo.PolicyLoss(function, trains_zero_advantage=True)
    c = ppo.Config(**SETTINGS | chosen | {"seed": seed})
    ppo.check_config(c)
    return c, rewards_of(settings.get("reward", REWARDS))


def logprobs_of(c, network, piece):
    """Log-prob of each completion token, [B, T]."""
    with ppo.autocast(c, device):
        return ppo.token_logprobs(c, network, ppo.predicting_states(network, piece), piece)[0]


def frozen_logprobs(c, network, batch):
    """The same without gradient, in pieces that fit in memory."""
    found = torch.zeros(batch["input_ids"].shape, device=device)
    with torch.no_grad():
        for index in ppo.micro_batches(batch, range(len(found)), c.micro_batch_tokens):
            piece, columns = ppo.trimmed(batch, index)
            found[index, columns] = logprobs_of(c, network, piece)
    return found


def train_arm(name, settings, seed):
    """Train a fresh copy of the model; return metrics by step, and metrics and samples of the held-out prompts."""
    c, reward = make_arm(name, settings, seed)
    torch.manual_seed(seed)  # for ideas that draw
    models = dataclasses.replace(start, policy=copy.deepcopy(start.policy))
    engine, optimizer = ppo.HFEngine(c, models), ppo.make_optimizer(c, models)
    groups = torch.arange(PROMPTS * GROUP_SIZE, device=device) // GROUP_SIZE  # [B]
    history = []
    for step in range(STEPS):
        # sample GROUP_SIZE completions of each prompt
        picked = ppo.batch_rows(rows, c, step * PROMPTS, PROMPTS)
        prompts = [row for row in picked for _ in range(GROUP_SIZE)]
        noise = np.random.default_rng([seed, 3, step]).random((len(prompts), MAX_NEW_TOKENS))
        sampled = engine.generate([row["prompt_ids"] for row in prompts], noise)
        texts = [ppo.visible_text(tokenizer, ids, models.eos_ids) for ids, _ in sampled]

        # score
        scores, _ = reward(prompts, texts, [ids for ids, _ in sampled])
        judged = judge(prompts, texts, [ids for ids, _ in sampled])[0] if "reward" in settings else scores

        # advantages: each completion against the others of its prompt
        samples = [
            {"prompt_ids": row["prompt_ids"], "response_ids": ids, "rollout_logprobs": logprobs}
            for row, (ids, logprobs) in zip(prompts, sampled, strict=True)
        ]
        batch = ppo.collate(samples, models.pad_id, device)
        mask = batch["response_mask"]
        r = torch.tensor(scores, device=device)
        paid = r[:, None] * mask * (mask.cumsum(1) == mask.sum(1, keepdim=True))  # [B, T], at the last token
        known = {"scores": r, "groups": groups, "rewards": paid, "mask": mask}
        advantages = ppo.ADVANTAGES[c.advantage](**known, config=c)
        batch["advantages"] = (advantages if advantages.dim() == 2 else advantages[:, None]) * mask
        batch["old_logprobs"] = frozen_logprobs(c, models.policy, batch)
        batch["ref_logprobs"] = frozen_logprobs(c, models.reference, batch)

        # loss and step, once for each minibatch
        clip_frac = []
        order = np.random.default_rng([seed, 2, step, 0]).permutation(len(prompts))
        for part in order.reshape(MINIBATCHES, -1):
            tokens = mask[part].sum()
            for index in ppo.micro_batches(batch, part, c.micro_batch_tokens):
                piece, _ = ppo.trimmed(batch, index)
                known = {key: piece[key] for key in ("old_logprobs", "advantages")}
                known |= {"logprobs": logprobs_of(c, models.policy, piece), "mask": piece["response_mask"]}
                loss, clipped = ppo.LOSSES[c.loss](**known, config=c)
                trained = known["logprobs"], known["old_logprobs"]
                kl = ppo.kl_loss(*trained, piece["ref_logprobs"], c.kl_estimator)
                weights = ppo.token_weights(known["mask"], c, tokens, len(part))  # [B, T], sum to the mean
                ((loss + c.kl_coef * kl) * weights).sum().backward()
                clip_frac.append(ppo.masked_mean(clipped, known["mask"]).item())
            torch.nn.utils.clip_grad_norm_(models.policy.parameters(), c.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()

        gap = ppo.kl_estimate(batch["old_logprobs"], batch["ref_logprobs"], "k3")
        history.append(
            {
                "reward": statistics.fmean(judged),
                "own reward": statistics.fmean(scores),
                "KL": ppo.masked_mean(gap, mask).item(),
                "length": mask.sum(1).float().mean().item(),
                "clipped": statistics.fmean(clip_frac),
            }
        )
    return history, *ppo.evaluate(c, models, engine, judge, held_out)


# %% run
check_settings()
judge = ppo.Reward(REWARDS)  # the baseline's rewards measure both arms, whatever the idea rewards
ARMS = {"baseline": BASELINE, "idea": IDEA}
for name, settings in ARMS.items():
    make_arm(name, settings, SEEDS[0])  # a wrong setting fails before the baseline trains
before, samples_before = ppo.evaluate(config, start, ppo.HFEngine(config, start), judge, held_out)
print(f"before: held-out score {before['eval/score']:.3f}, accuracy {before['eval/accuracy']:.3f}")
results, began = {}, time.time()
for seed in SEEDS:
    for name, settings in ARMS.items():
        results[name, seed] = train_arm(name, settings, seed)
        (history, after, _), done = results[name, seed], len(results)
        left = (time.time() - began) * (len(ARMS) * len(SEEDS) - done) / done
        print(
            f"{name:8} seed {seed}: held-out score {after['eval/score']:.3f}, accuracy {after['eval/accuracy']:.3f}, "
            f"{history[-1]['length']:.1f} tokens at the last step; {left:.0f} s to go"
        )

# %% plots
import io

import matplotlib.pyplot as plt
from IPython.display import Image, display

panels = ["reward", "KL", "length", "clipped"]
labels = ["the baseline's reward", "KL to the start, nats a token", "length, tokens", "share of tokens clipped"]
figure, axes = plt.subplots(1, len(panels), figsize=(15, 3.4), layout="constrained")
for axis, panel, label in zip(axes, panels, labels, strict=True):
    for name, color in zip(ARMS, ("tab:gray", "tab:blue"), strict=True):
        curves = np.array([[row[panel] for row in results[name, seed][0]] for seed in SEEDS])  # [seeds, steps]
        at = range(1, STEPS + 1)
        axis.fill_between(at, curves.min(0), curves.max(0), color=color, alpha=0.15, linewidth=0)
        axis.plot(at, curves.T, color=color, alpha=0.35, linewidth=0.8)
        axis.plot(at, curves.mean(0), color=color, linewidth=2.2, label=name)
    axis.set(title=label, xlabel="step")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)
axes[0].legend(frameon=False)
figure.suptitle(f"thick: mean of {len(SEEDS)} seeds; thin: each seed; shade: from least to largest", fontsize=10)
picture = io.BytesIO()
figure.savefig(picture, format="png", dpi=100)
plt.close(figure)
display(Image(picture.getvalue()))  # inline, whatever matplotlib's backend is

# %% samples
# Held-out prompts, greedy: the untrained model, then both arms with the first seed.
for i in range(min(6, len(held_out))):
    prompt = held_out[i]["prompt"]
    print(repr((prompt if isinstance(prompt, str) else prompt[-1]["content"])[-300:]))
    shown = {"before": samples_before[i], **{name: results[name, SEEDS[0]][2][i] for name in ARMS}}
    for name, sample in shown.items():
        print(f"    {name:8} {sample['score']:6.2f}  {sample['completion'][:300]!r}")

# %% [markdown] verdict-text
# ## Verdict
# The difference between the arms, seed by seed: two runs with one seed share prompts and random numbers, so their
# difference has less noise than either. The first figure decides; the others are looked at as well, and every further
# look makes it likelier to find a difference by chance. An idea about length has its answer in two of them, what it
# costs in score and what it saves in tokens; leave `format_reward`, which pays for tags, out of its `REWARDS`. All
# seeds start from one model: other models, data or lengths of training may answer otherwise.

# %% verdict
T95 = dict(enumerate([12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228], start=1))  # Student's t


def verdict(figure, baseline, idea, more="better", less="worse"):
    """Say whether the paired differences over seeds exceed their noise."""
    d = np.array(idea) - np.array(baseline)
    n, mean = len(d), d.mean()
    print(f"{figure}: baseline {np.mean(baseline):.3f}, idea {np.mean(idea):.3f}")
    print(f"    idea - baseline by seed: {', '.join(f'{x:+.3f}' for x in d)}")
    if not d.any():
        return "NO EFFECT: equal for every seed. Does the idea act at all? (clipped, lengths and KL above)"
    if n < 2:
        return "UNKNOWN: one seed says nothing about noise; try SEEDS = [0, 1, 2]"
    half = T95.get(n - 1, 2.228) * d.std(ddof=1) / math.sqrt(n)
    print(f"    mean {mean:+.3f}, 95 % interval {mean - half:+.3f} to {mean + half:+.3f}")
    if abs(mean) <= half:
        needed = math.ceil((2.8 * d.std(ddof=1) / mean) ** 2) if mean else math.inf  # 80 % power, two-sided 5 %
        return f"WITHIN THE NOISE: no difference shown; one of this size would take about {max(needed + 2, 6)} seeds"
    side = more if mean > 0 else less
    if n < 6 and side == "worse":  # no reason to go on with it, however few the seeds
        return f"LOSS: worse than the noise of these {n} seeds explains (95 % interval below 0); do not adopt it"
    if n < 6:
        chance = f"with {n} seeds, chance alone gives all differences one sign {2 ** (1 - n):.0%} of the time"
        return f"HINT: {side} than the noise of these seeds explains, but {chance}; six or more seeds would tell"
    return f"DIFFERENCE: {side}, beyond the noise between seeds"


def by_arm(figure):
    """figure(history, held-out metrics) of every seed, of the baseline and of the idea."""
    return [[figure(*results[name, seed][:2]) for seed in SEEDS] for name in ARMS]


held_out_scores = by_arm(lambda history, after: after["eval/score"])
speed = by_arm(lambda history, after: statistics.fmean(row["reward"] for row in history))
lengths = by_arm(lambda history, after: after["eval/length_mean"])
print("=>", verdict("held-out score after training, greedy", *held_out_scores))
print("=>", verdict("the baseline's reward while training, mean of all steps", *speed))
print("=>", verdict("length of the held-out completions, tokens", *lengths, "longer", "shorter"))
added = [item for item in ARMS["idea"].get("reward", []) if item not in REWARDS]
if added:  # what the idea pays for, beside the baseline's rewards: does training for it raise it?
    paid = rewards_of(added)
    by_idea = [
        [
            statistics.fmean(paid(held_out, [s["completion"] for s in done], [s["response_ids"] for s in done])[0])
            for done in (results[name, seed][2] for seed in SEEDS)
        ]
        for name in ARMS
    ]
    print("=>", verdict("the idea's own reward on the held-out completions", *by_idea, "higher", "lower"))
accuracies = by_arm(lambda history, after: after["eval/accuracy"])
if min(map(min, accuracies)) >= 0.98:
    print("CEILING: both arms solve the task, so the first figure cannot tell them apart; try fewer STEPS, harder DATA")

# %% [markdown] next-text
# ## Next step
# The same idea at full length: one GPU or several, checkpoints, resume, logs. With the flags printed here the script
# repeats what an arm did with the first seed; then change `--steps` and whatever else you like. The last line makes
# `report.html` of both runs, to open in a browser: what came of them, curves, samples side by side, settings.

# %% next
import re
import shlex

from IPython import get_ipython

if {"baseline": BASELINE, "idea": IDEA} != ARMS:
    raise ValueError("got an IDEA or BASELINE that has not run; try the cell that trains the arms again")
cells = get_ipython().user_ns["In"]
source = [cell for cell in cells if re.search(r"^IDEA = ", cell, re.MULTILINE)][-1]  # the idea as it last ran
folder = Path(OUTPUT)
folder.mkdir(parents=True, exist_ok=True)
program = f'''"""An idea from a notebook: a reward file, and ppo_train.py with its advantage and loss."""

import importlib.util
import math
import sys

import numpy as np
import torch

ppo = sys.modules.get("ppo_train")
if ppo is None:
    spec = importlib.util.spec_from_file_location("ppo_train", {bundle + "/scripts/ppo_train.py"!r})
    ppo = sys.modules["ppo_train"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ppo)
LIBRARY, REWARDS = {LIBRARY!r}, {REWARDS!r}

{source}

if __name__ == "__main__":
    if callable(IDEA.get("advantage")):
        ppo.ADVANTAGES["idea"] = ppo.OwnFunction("advantage", "idea", IDEA["advantage"])
    if callable(IDEA.get("loss")):  # False is faster, and right where rows of advantage 0 have no gradient
        own = ppo.OwnFunction("loss", "idea", IDEA["loss"])
        ppo.LOSSES["idea"] = ppo.PolicyLoss(own, trains_zero_advantage=True)
    sys.exit(ppo.main())
'''
(folder / "idea.py").write_text(program, encoding="utf-8")


def command(name, settings):
    """The command line that repeats an arm's run with the first seed."""
    own = callable(settings.get("advantage")) or callable(settings.get("loss"))
    words = ["python", str(folder / "idea.py") if own else f"{bundle}/scripts/ppo_train.py"]
    chosen = {k: name if callable(v) else v for k, v in settings.items() if k != "reward"}
    for key, value in (SETTINGS | chosen | {"seed": SEEDS[0], "output_dir": str(folder / name)}).items():
        words += [f"--{key}", str(value)] if value != "" else []
    for item in settings.get("reward", REWARDS):
        words += ["--reward", f"{folder / 'idea.py'}:{item.__name__}" if callable(item) else item]
    return shlex.join(words)


for name, settings in ARMS.items():
    print(f"# {name}\n{command(name, settings)}")
page = ["--output", str(folder / "report.html")]
print("# both on one page")
print(shlex.join(["python", f"{bundle}/scripts/report.py", *(str(folder / name) for name in ARMS), *page]))
