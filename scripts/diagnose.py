#!/usr/bin/env python3
# Built from src/programs/diagnose/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib", "numpy>=1.26", "pyarrow"]
# ///
"""Read the log of an RL run and say what is wrong with it: what was seen, likely cause, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json in the place of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    others                        lines of name=value, or a CSV file such as wandb's export; --columns for other names

A *finding* asks for a change, a *note* does not. Trends compare the medians of the first and the last quarter of the
steps (3 to 20 of them). They count only beyond what chance gives noise of the same scatter and persistence, also where
the best stretch of many was chosen: each such finding comes in at most 1 % of simulated logs of flat noise
(benchmarks/false_alarms.py). Once the task is solved (held-out accuracy or correctness at 0.95 and above) low entropy
and equal scores are no faults, and a critic without use is a note.

A run without a finding is "too short to judge" below 10 steps, and "not judged" if its reward or length has no name
that is known here, or if its mean reward stays at one level and the log lacks its spread. Neither is "healthy".

Thresholds come from the source that a finding names; where none exists it says "our heuristic" and why.

    groups that teach nothing, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: trackers' own files (wandb, tensorboard), crashes and out-of-memory errors, which
references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it
    python scripts/diagnose.py out/checkpoint-500/trainer_state.json runs/other --plot curves.png

Exit codes: 0 healthy, 1 findings, 2 unreadable input, 3 too short or not judged; of several the gravest: 2, 1, 3, 0.
"""

# Contents
#        77-102  messages             Errors that a user can mend, each with its exit code, and what is said on stderr
#       105-236  dialect              One setting under several names: ours, those of the pages, and TRL's. A program …
#       239-259  settings             Settings: a dataclass whose fields are flags and YAML keys, and the checks that …
#       262-285  pictures             Pictures of a run: curves.png, and what samples.jsonl has of each sampled token
#       288-523  metric names         Names of metrics and settings in three kinds of logs
#       526-775  finding advice       Findings and notes: cause, remedy, source
#       778-874  trends               Trends of a series
#      877-1023  logged run           A run as its log shows it
#     1026-1132  sample dumps         Samples that other trainers leave beside their logs: verl's dumps of rollouts, …
#     1135-1194  plain logs           Logs of no framework: CSV files, lines of name=value, and the columns that …
#     1197-1284  run settings         What the checks want to know of a run's settings: ours, those of a page, verl's
#     1287-1623  log reading          Reading the logs: ours, TRL's, verl's
#     1626-1772  reward findings      Checks of the reward: equal scores, groups without signal, held-out prompts, …
#     1775-1843  completion findings  Checks of completions: cut off, repeated; of conversations: limits, tools
#     1846-2033  update findings      Checks of the updates: ratio, sampler, KL, critic, gradients, learning rate, …
#     2036-2227  findings             All checks of a run, and its verdict
#     2230-2288  report and plot      The report and the plot
#     2291-2356  command              The command line

import argparse
import ast
import csv
import difflib
import io
import itertools
import json
import math
import os
import re
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def tell(*words: str, end: str = "\n") -> None:
    """Print a result on stdout; where its reader has gone, as `| head` has, this and what follows is told to nobody."""
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str]) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, n=1))


# --------------------------------------------------------------------------- dialect (src/parts/foundation/dialect.py)

# Names of one meaning and one unit. A program takes the ones that it does not have for the one that it has.
SYNONYMS = [
    line.split()
    for line in """
model model_name_or_path model_name
data dataset dataset_name train_data train_dataset
eval_data eval_dataset
reward reward_funcs
output_dir out output
lr learning_rate
lr_schedule lr_scheduler_type
steps max_steps total_training_steps
group_size num_generations n
max_prompt_tokens max_prompt_length
max_new_tokens max_completion_length max_response_length
kl_coef beta
clip_eps_low epsilon
clip_eps_high epsilon_high
dual_clip delta
ppo_epochs num_iterations epochs
epochs num_train_epochs
mask_truncated mask_truncated_completions
adam_eps adam_epsilon
lora_rank lora_r
micro_batch micro_batch_size
save_every save_steps
eval_every eval_steps
keep_checkpoints save_total_limit
vllm_memory vllm_gpu_memory_utilization gpu_memory_utilization
rollout_engine engine
base base_model
""".strip().splitlines()
]
TRL_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
# Names that a program with all the settings of the second column does not have: how what it has follows from them.
RELATIONS = (
    ("epochs", "ppo_epochs", "passes over a batch are --ppo_epochs; passes over the data follow from --steps"),
    ("epochs", "num_iterations", "passes over a rollout are --num_iterations, over the data --num_train_epochs"),
    ("num_train_epochs", "steps batch_size", "steps = num_train_epochs x rows x completions per prompt / batch_size"),
    ("num_train_epochs", "steps prompts", "steps = num_train_epochs x rows / prompts"),
    ("warmup_ratio", "warmup_steps", "warmup_steps = warmup_ratio x steps"),
    ("prompts", "batch_size group_size", "batch_size = prompts x group_size"),
    ("train_batch_size", "batch_size group_size", "batch_size = verl's train_batch_size x group_size"),
    ("generation_batch_size", "batch_size minibatches", "batch_size is the same"),
    ("steps_per_generation", "minibatches", "minibatches = steps_per_generation / gradient_accumulation_steps"),
    ("micro_batch", "micro_batch_tokens", "micro_batch_tokens = micro_batch x tokens of a row"),
    ("micro_batch_size", "micro_batch_tokens", "micro_batch_tokens = micro_batch_size x tokens of a row"),
    ("use_vllm", "rollout_engine", "try --rollout_engine vllm"),
    ("use_vllm", "engine", "try --engine vllm"),
    ("rollout_engine", "use_vllm", "try --use_vllm colocate"),
    ("shown_samples", "bootstrap fewshot", "try scripts/report.py FOLDER, whose page shows the samples"),
    ("bf16", "precision", "try --precision bf16"),
    ("fp16", "precision", "try --precision fp16"),
    ("algorithm", "loss_type", "try --loss_type, --scale_rewards and --importance_sampling_level"),
    ("loss_type", "loss aggregation", "loss_type grpo is --aggregation seq_mean_token_mean, dapo is token_mean"),
    ("scale_rewards", "algorithm advantage", "scale_rewards group is --advantage grpo, none is --advantage mean"),
    ("importance_sampling_level", "algorithm loss", "importance_sampling_level sequence is --loss gspo"),
)


def flag_name(word: str) -> str:
    """Return the name in `--name` or `--name=value`, with `_`; "" if the word is not a flag."""
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def flag_values(words: list[str]) -> dict[str, str]:
    """The value that each flag of a command line has last."""
    follows = [*words, "--"][1:]
    pairs = [
        (word, after if "=" not in word else word.partition("=")[2]) for word, after in zip(words, follows, strict=True)
    ]
    return {flag_name(word): "" if value.startswith("--") else value for word, value in pairs if flag_name(word)}


def relation(name: str, names, values: dict[str, str]) -> str:
    """How a program's settings follow from one that it does not have, "" where that is not known."""
    if name in names:
        return ""
    world, number = int(os.environ.get("WORLD_SIZE", 1)), values.get(name, "")
    if name in TRL_BATCH and "lr" in names and {"batch_size", "prompts"} & {*names}:
        sizes = [values.get(n) or usual for n, usual in zip(TRL_BATCH, ("8", "1"), strict=True)]
        whole = int(sizes[0]) * int(sizes[1]) * world if all(map(str.isdigit, sizes)) else "N"
        text = f"batch_size {whole} = {TRL_BATCH[0]} {sizes[0]} x {TRL_BATCH[1]} {sizes[1]} x processes {world}"
        return f"{text}; try --batch_size {whole}" if "batch_size" in names else f"{text} = prompts x group_size"
    if name == "batch_size" and {*TRL_BATCH} <= {*names}:
        share = int(number) // world if number.isdigit() else 0
        passes = 8 if share % 8 == 0 else 1
        text = f"batch_size {number} = {TRL_BATCH[0]} {share // passes} x {TRL_BATCH[1]} {passes} x processes {world}"
        return f"{text}; try --{TRL_BATCH[0]} {share // passes} --{TRL_BATCH[1]} {passes}"
    if name == "batch_size" and {"prompts", "group_size"} <= {*names}:
        return "batch_size = prompts x group_size; try --prompts and --group_size"
    fits = (text for other, needed, text in RELATIONS if other == name and {*needed.split()} <= {*names})
    return next(fits, "")


def own_name(name: str, names) -> str:
    """What a program with these settings calls one; "" where it has none of that meaning and unit."""
    if name in names or relation(name, names, {}):
        return name if name in names else ""
    return next((own for group in SYNONYMS if name in group for own in group if own in names), "")


def in_own_words(words: list[str], names, elsewhere=()) -> list[str]:
    """A command line in a program's own names; one setting by two names needs one value.

    TRL's `epsilon` alone bounds both sides, our `clip_eps_low` one; `elsewhere`: names that a settings file gives.

    Raises:
        UserError: two names of one setting have different values.
    """
    found, first, values = [], {}, flag_values(words)
    for word in words:
        given = flag_name(word)
        own = own_name(given, names) if given else ""
        if own and given in values:
            before = first.setdefault(own, given)
            both = f"got --{before} {values[before]} and --{given} {values[given]}, two names of one setting"
            need(same_value(values[before], values[given]), f"{both}; expected one of them; try --{own}")
        found.append(f"--{own}{word[2 + len(given) :]}" if own and own != given else word)
    if "epsilon" in values and first.get("clip_eps_low") and not {"clip_eps_high", *elsewhere} & first.keys():
        found.append(f"--clip_eps_high={values['epsilon']}")
    return found


def same_value(one: str, other: str) -> bool:
    """Whether two texts say the same, as `1e-5` and `0.00001` do."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """The names of a parser's flags, with `_`."""
    return [flag_name(flag) for action in parser._actions for flag in action.option_strings if flag_name(flag)]


def parse_flags(parser: argparse.ArgumentParser, argv: list[str] | None, elsewhere=()) -> argparse.Namespace:
    """Parse a command line, whose flags may have other programs' names; an unknown one is told the nearest known."""
    argv, names = sys.argv[1:] if argv is None else argv, flags_of(parser)
    try:
        known, unknown = parser.parse_known_args(in_own_words(argv, names, elsewhere))
    except UserError as error:
        parser.error(str(error))
    if unknown:
        name = unknown[0].split("=")[0]
        follows = relation(flag_name(name), names, flag_values(argv))
        near = f"; {follows}" if follows else suggest(name, [f"--{name}" for name in names])
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# ---------------------------------------------------------------------------- pictures (src/parts/running/pictures.py)


def draw_panels(panels: list[tuple[str, dict[str, list]]], title: str):
    """A figure of panels (title, {name: points}) over one step axis."""
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(panels)))
    shape = max(1, math.ceil(len(panels) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, panels, strict=False):
        for key, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(title)
    figure.supxlabel("step")
    return figure


# -------------------------------------------------------------------- metric names (src/parts/reading/metric_names.py)

# what each framework's log calls the quantities below; of several names for one in a row, the first here counts
OURS = {
    "reward/mean": "score",
    "reward/std": "score_std",
    "reward/zero_std_frac": "zero_std",
    "kl/ref": "kl",
    "kl/approx": "kl_step",
    "policy/loss": "loss",
    "policy/clip_frac": "clip_frac",
    "policy/entropy": "entropy",
    "policy/ratio_max": "ratio_max",
    "value/loss": "value_loss",
    "value/explained_variance": "explained_variance",
    "rollout/length_mean": "length",
    "rollout/truncated_frac": "truncated",
    "rollout/logprob_gap_max": "gap_max",
    "rollout/turns_mean": "turns",
    "rollout/limit_frac": "limit",
    "tool/calls_mean": "tool_calls",
    "tool/failure_frac": "tool_failures",
    "tool/seconds": "tool_seconds",
    "mismatch/kl": "mismatch_kl",
    "mismatch/weight_mean": "weight_mean",
    "optim/lr": "lr",
    "optim/grad_norm": "grad_norm",
    "optim/critic_grad_norm": "critic_grad_norm",
    "optim/updates": "updates",
    "optim/skipped_updates": "skipped",
    "time/rollout": "time_rollout",
    "time/reward": "time_reward",
    "time/step": "time_step",
    "memory/gpu_peak_gib": "gpu_memory",
    "memory/process_gib": "memory",
    "eval/accuracy": "held_out",
}
TRL = {
    "reward": "score",
    "reward_std": "score_std",
    "frac_reward_zero_std": "zero_std",
    "kl": "kl",
    "loss": "loss",
    "clip_ratio/region_mean": "clip_frac",
    "cispo_clip_ratio": "clip_frac",
    "entropy": "entropy",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "truncated",
    "tools/call_frequency": "tool_calls",
    "tools/failure_frequency": "tool_failures",
    "sampling/sampling_logp_difference/mean": "gap_mean",
    "sampling/sampling_logp_difference/max": "gap_max",
    "sampling/importance_sampling_ratio/mean": "weight_mean",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "step_time": "time_step",
    "eval_reward": "held_out",
}
VERL = {
    "critic/score/mean": "score",
    "critic/rewards/mean": "score",
    "critic/score/max": "score_max",
    "critic/score/min": "score_min",
    "critic/advantages/max": "advantage_max",
    "critic/advantages/min": "advantage_min",
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",
    "actor/ppo_kl": "kl_step",
    "actor/pg_loss": "loss",
    "actor/pg_clipfrac": "clip_frac",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "explained_variance",
    "response_length/mean": "length",
    "response_length/max": "length_max",
    "response_length/clip_ratio": "truncated",
    "rollout_corr/k3_kl": "mismatch_kl",
    "rollout_corr/rollout_is_mean": "weight_mean",
    "rollout_corr/rollout_is_std": "weight_std",
    "rollout_corr/rollout_is_eff_sample_size": "weight_ess",
    "training/rollout_actor_probs_pearson_corr": "probs_correlation",
    "actor/lr": "lr",
    "actor/grad_norm": "grad_norm",
    "critic/grad_norm": "critic_grad_norm",
    "timing_s/gen": "time_rollout",
    "timing_s/reward": "time_reward",
    "timing_s/step": "time_step",
    "perf/max_memory_allocated_gb": "gpu_memory",
}
EARLIER = {  # and elsewhere: what TRL's trainers, and OpenRLHF, called them in the last two years
    # GRPO until 0.16, PPO until 1.12, online DPO; sums over a completion's tokens are no figures of a token
    "completion_length": "length",
    "clip_ratio": "clip_frac",
    "objective/scores": "score",
    "objective/kl": "kl_sum",
    "objective/entropy": "entropy_sum",
    "policy/approxkl_avg": "kl_step",
    "policy/clipfrac_avg": "clip_frac",
    "policy/entropy_avg": "entropy",
    "loss/policy_avg": "loss",
    "loss/value_avg": "value_loss",
    "val/ratio": "ratio_mean",
    "lr": "lr",
    "eval_objective/scores": "held_out",
    # OpenRLHF, as it names them to trackers
    "response_length": "length",
    "policy_loss": "loss",
    "critic_loss": "value_loss",
    "ppo_kl": "kl_step",
    "ppo_clip_ratio": "clip_frac",
    "entropy_loss": "entropy",
    "actor_lr": "lr",
}
NAMES = {"ours": OURS, "trl": TRL | EARLIER, "verl": VERL | {"critic/kl": "kl"}}  # the last one until 0.3
PARTS = {
    "ours": r"reward/(?!mean$|std$|zero_std_frac$)(.+)",
    "trl": r"rewards/(?!chosen|rejected|margins|accuracies)(.+?)(?:/mean)?(?<!/std)",
    "verl": r"gdpo/(.+)/mean",
}
HELD_OUT = {
    "ours": r"eval/accuracy",
    "trl": r"eval_reward|(?:eval_)?eval_.+_pass1",
    "verl": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+",
}

# the settings that a remedy names, by who trains; a page has most of those of ppo_train.py, grpo_train.py of TRL's
ACTOR = "actor_rollout_ref.actor"
PPO_SETTINGS = {
    "lr": "--lr",
    "group": "--group_size",
    "temperature": "--temperature",
    "length": "--max_new_tokens",
    "kl": "--kl_coef",
    "entropy": "--entropy_coef",
    "clip_high": "--clip_eps_high",
    "reuse": "--ppo_epochs and --minibatches",
    "target": "--target_kl 0.02 (ends an update early)",
    "critic_lr": "--critic_lr",
    "critic_warmup": "--critic_warmup_steps 10",
    "critic_updates": "--minibatches 4, with a lower --lr, as the policy gets them too",
    "value_clip": "--value_clip 0",
    "critic_free": "--algorithm grpo or rloo",
    "grad_clip": "--max_grad_norm",
    "overlong": "--missing_eos_penalty, or DAPO's soft penalty with --overlong_share 0.2",
    "filter": "--dynamic_sampling true",
    "mismatch": "--mismatch tis",
    "precision": "--precision bf16 (or fp32)",
    "batch": "--batch_size",
    "turns": "--max_turns or --max_conversation_tokens",
    "tool_form": "--tool_format",
    "tool_time": "--tool_timeout",
}
PAGE_SETTINGS = PPO_SETTINGS | {
    "entropy": "entropy bonus (the page has none: subtract it from the loss)",
    "reuse": "--epochs and --minibatches",
    "target": "--epochs 1",
    "critic_free": "templates/grpo.py",
    "grad_clip": "the bound of clip_grad_norm_",
    "overlong": "a score of 0 for completions that were cut",
    "filter": "a training file without the prompts that all or none solve",
    "mismatch": "scripts/ppo_train.py --mismatch tis",
    "precision": "weights in float32, as the page has them",
    "batch": "number of completions of a step",
    "turns": "--max_turns or --max_tokens",
    "tool_form": "what the page takes for a call",
    "tool_time": "a time limit in the tool",
}
TRL_SETTINGS = {
    "lr": "learning_rate",
    "group": "num_generations",
    "temperature": "temperature",
    "length": "max_completion_length",
    "kl": "beta",
    "entropy": "entropy_coef",
    "clip_high": "epsilon_high",
    "reuse": "num_iterations and steps_per_generation",
    "target": "num_iterations=1",
    "critic_lr": "the critic's learning rate",
    "critic_warmup": "a critic warm-up",
    "critic_updates": "smaller minibatches",
    "value_clip": "no clip of values",
    "critic_free": "no critic, as GRPO and RLOO",
    "grad_clip": "max_grad_norm",
    "overlong": "trl.rewards.get_soft_overlong_punishment as a further reward, or mask_truncated_completions=True",
    "filter": "a data set without the prompts that all or none solve (TRL has no dynamic sampling)",
    "mismatch": "vllm_importance_sampling_correction=True",
    "precision": "bf16=True with weights in float32, in place of fp16=True",
    "batch": "gradient_accumulation_steps",
    "turns": "max_tool_calling_iterations or max_completion_length",
    "tool_form": "a tokenizer with a response schema",
    "tool_time": "a time limit in the tool (TRL sets none)",
}
GRPO_SETTINGS = {word: f"--{name}" if name.isidentifier() else name for word, name in TRL_SETTINGS.items()} | {
    "reuse": "--num_iterations and --steps_per_generation",
    "target": "--num_iterations 1",
    "overlong": "the library's soft_overlong_punishment as a further --reward, or --mask_truncated_completions",
    "filter": "a training file without the prompts that all or none solve (TRL has no dynamic sampling)",
    "mismatch": "--trainer_args vllm_importance_sampling_correction=true",
    "precision": "--precision bf16 (or fp32)",
    "turns": "--max_turns or --max_conversation_tokens",
    "tool_form": "--tool_format",
    "tool_time": "--tool_timeout",
}
VERL_SETTINGS = {
    "lr": f"{ACTOR}.optim.lr",
    "group": "actor_rollout_ref.rollout.n",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "length": "data.max_response_length",
    "kl": f"{ACTOR}.kl_loss_coef (use_kl_loss=True), or algorithm.kl_ctrl.kl_coef (use_kl_in_reward=True)",
    "entropy": f"{ACTOR}.entropy_coeff",
    "clip_high": f"{ACTOR}.clip_ratio_high",
    "reuse": f"{ACTOR}.ppo_epochs, or a larger {ACTOR}.ppo_mini_batch_size",
    "target": f"{ACTOR}.ppo_epochs=1",
    "critic_lr": "critic.optim.lr",
    "critic_warmup": "trainer.critic_warmup=10",
    "critic_updates": "critic.ppo_mini_batch_size a quarter of the batch, or a larger critic.ppo_epochs",
    "value_clip": "critic.cliprange_value=1000 (as good as off)",
    "critic_free": "algorithm.adv_estimator=grpo or rloo",
    "grad_clip": f"{ACTOR}.grad_clip",
    "overlong": "reward.reward_manager.name=dapo with its overlong_buffer_cfg",
    "filter": "algorithm.filter_groups.enable=True",
    "mismatch": "algorithm.rollout_correction.rollout_is=token",
    "precision": f"{ACTOR}.fsdp_config.dtype=bfloat16 with model_dtype=fp32",
    "batch": "data.train_batch_size",
    "turns": "actor_rollout_ref.rollout.multi_turn.max_assistant_turns or data.max_response_length",
    "tool_form": "actor_rollout_ref.rollout.multi_turn.format",
    "tool_time": "a time limit in the tool",
}
SETTINGS = {
    "ppo_train": PPO_SETTINGS,
    "one_page": PAGE_SETTINGS,
    "grpo_train": GRPO_SETTINGS,
    "trl": TRL_SETTINGS,
    "verl": VERL_SETTINGS,
}


# ---------------------------------------------------------------- finding advice (src/parts/reading/finding_advice.py)

ADVICE_TEXT = """\
# findings
not-finite: an update too large, a log-prob of -inf (a token the policy cannot sample), or fp16 overflow
  - lower {lr}
  - {precision}
  - keep {grad_clip} at 1
  - go on from a checkpoint before this step
  = definition; unsloth#3006, verl#2505
constant-reward: the function pays every completion the same (a placeholder, answers not extracted, a wrong column, a
    number compared with a text, an exception turned into a constant), or the model is never, or always, right; the
    log cannot tell which, the first three steps do
  - read the function {reward}, and completions beside their scores (samples.jsonl)
  - score gold answers without a model: scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA; where they
    have no full marks the function is at fault: mend it
  - where they have, the same with --model MODEL says how often the model is right; near 0: easier prompts, partial
    credit, or a warm start (scripts/warm_start.py); near 1: harder prompts
  - raise {length} if completions are cut
  - then begin anew from the first model, no resume; a loss near 0 stays normal, a gradient of 0 does not
  = definition: equal scores give advantage 0; open-r1#255, verl#3024, trl#5697
no-signal: most groups score all alike, so their advantages are 0 and only the rest of the batch teaches
  - prompts that the model solves sometimes
  - raise {group}
  - {filter}
  - a finer reward (partial credit)
  = forecast: binomial; DAPO (Yu 2025), section 3.2; limit 0.8, our heuristic: under a fifth of the batch teaches
group-size-1: an advantage relative to the group has nothing to compare one completion with: it is 0, or the raw score
  - raise {group} to 8 or more
  - or use an estimator without groups (PPO with a critic, ReMax, REINFORCE++)
  = definition; prime-rl docs/training.md advises at least 8
cold-sampling: sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores
  - raise {temperature} to 1.0, also for models whose card advises less for use
  = definition (entropy of the sampling distribution); limits 0.2 and 0.01 nats: our heuristic: nearly every token has
    one choice
truncation: completions hit the length limit before their end token: the score judges the limit, not the answer
  - raise {length}
  - shorten what the prompt asks for
  - {overlong}
  = TRL completions/clipped_ratio; trl#5697; limit 0.2: our heuristic: one score in five is about the limit
paid-unfinished: the reward finds the answer and pays whatever stands behind it, so nothing teaches the model to stop,
    and a larger limit makes longer texts
  - read the ends of paid completions
  - pay only where nothing follows the answer
  - {overlong}
  = counting: with scores up to 1, at least mean + share cut - 1 are both; limits 0.2 and half of either: our
    heuristic: then the two go together
no-tool-calls: the environment has tools and the model calls none: it does not know them, writes calls in a form that
    is not read, or has no need of them; what it never does cannot be paid
  - read what it writes: pieces in samples.jsonl
  - an instruct model that was trained on tools, or one that was shown calls (SFT)
  - {tool_form}, where it writes calls in another form
  - say in the prompt that there are tools, and when to call them
  = definition: an answer that is never sampled gets no gradient
tool-failures: most calls come to an error: they cannot be read, name no tool, have wrong arguments, or the tool
    raises or gives no answer in time
  - read the errors: messages of the role tool in samples.jsonl
  - {tool_form}, where none can be read
  - arguments with plain types, each described in the docstring
  - {tool_time}, where they say that there was no answer
  = our heuristic: every second call
turn-limit: conversations do not come to their end: too few turns or tokens, an environment that never ends one, or a
    model that goes on calling
  - raise {turns}
  - an environment that ends with the task (a reply of None)
  - pay what ends early
  = our heuristic: most returns are of conversations that were broken off
length-collapse: short completions pay as well as long ones, or an update destroyed the policy
  - read completions: is the answer still there?
  - a reward for the answer, not for brevity; check length penalties
  - lower {lr}
  - raise {kl}
  = our heuristic: half the starting length, and the held-out figure did not gain by it
length-runaway: length itself pays (a reward that grows with it, or a loss averaged per completion, which hardly
    punishes long wrong answers), or the end token is forgotten
  - look for a reward that grows with length
  - {overlong}
  - aggregate the loss over tokens (DAPO) or by a constant (Dr. GRPO)
  = Dr. GRPO (Liu 2025), section 3.1, on the length bias; limit 1.5: our heuristic: half as long again without a
    held-out gain
repetition: completions repeat themselves: degenerate text that the reward does not punish, or pays by length
  - add a repetition penalty to the reward
  - lower {lr}
  - raise {kl}
  - read the samples
  = our heuristic: over half of the 6-character pieces of a completion are repeats; prose stays below a third
entropy-collapse: the policy became nearly deterministic before the task was solved, so samples no longer differ
  - raise {clip_high} to 0.28 (no effect with one update per rollout)
  - lower {lr}
  - a small {entropy} (0.001)
  - prompts that are not yet settled
  = verl docs/algo/entropy.md: reward is about -a exp(entropy) + b, so a fall must buy score; limit a fifth: our
    heuristic: an e-fold and more
entropy-explosion: the policy drifts toward noise: entropy bonus too strong, updates too large, or tokens that the
    trainer thinks impossible
  - lower {entropy}
  - lower {lr}
  - raise {kl}
  - check sampler and trainer agree (sampler-mismatch)
  = verl docs/algo/entropy.md (sudden rise); limits 2 and 0.2 nats: our heuristic: doubled without a gain in score
reference-differs: the reference is not the initial policy: another checkpoint, adapters that are not off, dropout, or
    precision
  - load the reference from the same weights
  - compare both models' log-probs of one text
  = by construction: KL of a policy to itself is 0; limit 0.01 nats: our heuristic: bf16 rounding stays below it
kl-runaway: the policy leaves the reference faster than the score explains: over-optimised reward or updates too large
  - raise {kl}
  - lower {lr}
  - end at the checkpoint with the best held-out score
  = Gao 2022, scaling laws for reward over-optimisation; limit 0.3 nats a token: our heuristic: the circulating 0.5
    has no source either
ratio-first-update: with one update per rollout old and new policy are the same weights, so the ratio is 1: old
    log-probs come from elsewhere (sampler, other temperature, dropout, padding, precision)
  - run scripts/selfcheck.py
  - compute old log-probs with the trainer's own forward pass, dropout off
  = by construction; verl#2996, verl#6280 (micro-batch sizes that differ)
sampler-mismatch: sampler and trainer give the same tokens different probabilities: temperature or top-p applied on
    one side, stale weights, chat template, or precision
  - top-p 1 and top-k off
  - the same {temperature} on both sides
  - check that weights reach the sampler after every step
  - {mismatch}
  - the same precision on both sides
  = NeMo-RL docs/guides/grpo.md and adding-new-models.md (error factor 1.05, KL 0.001 to 0.01); verl
    docs/algo/rollout_corr.md (weights)
stale-sampler: the sampler keeps old weights, wholly or in part, while the trainer moves away from them: it trains on
    what the policy no longer says, and nothing that is learnt shows
  - compare the weights of both after a copy: --check_sync of our trainers names the tensors that differ
  - another version of vLLM, or the policy itself as sampler for some steps, to see whether the score moves
  = allenai/open-instruct#1473; five times the start, and 0.001 nats at least: our heuristic: kernels differ less
critic-useless: the critic predicts returns no better than a constant, and below 0 worse, so that advantages are
    noisier than without it: too few updates for each rollout, too little warm-up, a learning rate that is too low
    (stays near 0) or too high (far below 0), a value clip that is small beside the scores, or returns that depend on
    nothing it sees (prompts equally hard, answers wrong by chance)
  - more updates of the critic for each rollout: {critic_updates}
  - {critic_warmup}
  - change {critic_lr} (near 0: three times higher; far below 0: three to ten times lower)
  - where scores are well above 1: {value_clip}, or scores scaled to at most 1
  - a larger {batch}; prompts that are not all equally hard
  - or a method without a critic: {critic_free}
  = definition of explained variance: a constant has 0, and below 0 the error varies more than the returns; NeMo-RL
    docs/guides/ppo.md; benchmarks/README.md, the demo's critic; limit 0.03: our heuristic: it takes 1.5 % off the
    scatter of the returns
gradient-spikes: single batches with far larger gradients: rare tokens with extreme ratios, very long completions, few
    scores that differ
  - keep {grad_clip} at 1 or lower it
  - lower {lr}
  - a larger {batch}
  - look at the completions of these steps
  = our heuristic: ten times the median of the 20 steps before, and above 1, the usual clip
lr-high: updates too large: the policy was pushed to where its samples no longer score
  - lower {lr} by 3 to 10 times
  - fewer updates per rollout: {reuse}
  - {target}
  - go back to a checkpoint
  = Spinning Up's PPO ends an update at KL 0.015; limits 0.1 nats and a clip fraction of 0.3: our heuristic: several
    times beyond it
score-collapse: the policy lost what it could do: updates too large, a reward that changed, or a mismatch that grew
  - lower {lr}
  - raise {kl}
  - go back to the best checkpoint
  - look at which figure moved first with --plot
  = our heuristic: below half of the best stretch of the run
lr-low: scores differ, yet the policy hardly moves: learning rate too low, or weights in bf16, which swallow updates
    smaller than 1/256 of a weight
  - raise {lr} by 3 to 10 times (LoRA: about 10 times that of full training)
  - keep trained weights in float32
  = TRL lora_without_regret.md; limits 1e-4 nats and 1 % of entropy: our heuristic: no change visible in samples
lr-zero: the learning rate is 0: a schedule that has ended, or too few total steps for its warm-up
  - set {lr}
  - check the schedule's total number of steps
  = definition
held-out-trains: the run learns these prompts by heart: what their held-out figure gains says nothing about others
  - hold prompts out: python scripts/data_loader.py FILE --split 0.1 --out train.jsonl
  - then begin anew from the first model with --data train.jsonl --eval_data train.eval.jsonl
  = definition of a held-out set
reward-hacking: the policy earns score without getting better at the task
  - read high-scoring completions
  - lower the weight of the part that rises, or make it pay only beside a right answer
  - raise {kl}
  - keep the checkpoint with the best held-out figure
  = Gao 2022, scaling laws for reward over-optimisation; definition
format-only: the format is learnt and full; the answers are not getting better
  - lower the format's weight, or pay it only beside a right answer
  - easier prompts or a stronger start, so that right answers occur
  - {group} larger, so that they occur in a group
  = open-r1#255, trl#3452; limits 0.9 and 10 steps: our heuristic: what can still be gained there is noise
memory-grows: something keeps what each step made: a metric with its graph, a reward function or an environment that
    remembers every completion, a cache without a bound
  - keep metrics as numbers (.item() or .detach())
  - look for lists and dicts that your reward function or environment only adds to
  - until it is found, stop and go on from a checkpoint: a new process starts low
  = our heuristic: a tenth, in six even stretches; what settles gains most at first
# notes
flat-reward: the score neither rises nor falls beyond its noise; the log cannot tell whether the policy learns nothing,
    or learns what this score does not show
  - read completions beside their scores of the first and the last steps
  - scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL says how often prompts are solved;
    near 0 or 1 nothing can be learnt from them
  - then raise {lr} by 3 to 10 times, or the batch, and compare held-out figures before and after
  = no trend by the test of this page
slow-tools: a step waits for tools: those of a batch run side by side, so it takes at least as long as a conversation
    waits on average
  - {tool_time}
  - a cheaper tool, or one whose work is done by other processes
  = our heuristic: three tenths of the time, as of rewards
loss-is-no-measure: at ratio 1 the surrogate's value is minus the mean advantage, about 0, while its gradient is not;
    a KL term lets it rise
  - nothing: watch reward, held-out score, length and entropy
  = trl#2703, trl#3452
slow-reward: scoring takes a large share of the step
  - make the reward async or cheaper, or run it in several processes
  = our heuristic: three tenths of the time
solved: the task is learnt
  - harder prompts, or stop here
  = definition
short-run: too few steps for trends, so nothing is said about them
  - look again after 10 steps or more
  = our heuristic: medians of fewer than 3 steps a side
partial-log: lines could not be read
  - look at the lines named
  = definition
"""
IF_CUT = "if completions are cut"  # advice that ends so is left out where the log shows that none are


def marked_texts(text: str) -> dict[str, dict[str, list[str]]]:
    """Entries of a text file: {name: {mark: texts}}; under "#" the heading above an entry, under "" its first text.

    A line begins `name: text`, further texts are indented by two with a mark (+, !, - or =), their next lines by four.
    """
    entries, heading, entry, texts = {}, "", {}, []
    for line in text.splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line.startswith("    "):
            texts[-1] += f" {line.strip()}"
        elif line.startswith("  "):
            texts = entry.setdefault(line[2], [])
            texts.append(line[4:])
        else:
            name, _, text = line.partition(": ")
            texts = [text]
            entry = entries[name] = {"#": [heading], "": texts}
    return entries


# finding: (likely cause, what to change, source)
ADVICE = {name: (entry[""][0], entry["-"], entry["="][0]) for name, entry in marked_texts(ADVICE_TEXT).items()}
NOTES = {name for name, entry in marked_texts(ADVICE_TEXT).items() if entry["#"] == ["notes"]}


# -------------------------------------------------------------------------------- trends (src/parts/reading/trends.py)

TREND_STEPS = 10  # fewer: no trend is judged
ALARM = 0.006  # of flat series show a trend by chance; benchmarks/false_alarms.py counts them


def window(count: int) -> int:
    """Steps in the first and in the last stretch of a run."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch."""
    k = window(len(values))
    return statistics.median(values[:k]), statistics.median(values[-k:])


def persistence(values: list[float]) -> float:
    """Lag-1 autocorrelation of the noise, between 0 and 0.5, from the changes between steps: a trend does not count."""
    changes = [b - a for a, b in itertools.pairwise(values)]
    mean = statistics.fmean(changes)
    changes = [change - mean for change in changes]
    square = sum(change * change for change in changes)
    if square <= 1e-18 * max(map(abs, values)) ** 2 * len(values):  # a straight line
        return 0.0
    # of AR(1) noise the changes have the lag-1 autocorrelation (rho - 1) / 2
    return min(0.5, max(0.0, 1 + 2 * sum(a * b for a, b in itertools.pairwise(changes)) / square))


def noise(values: list[float]) -> float:
    """Scatter of a step, so that the median of k steps has the standard error 1.25 noise / sqrt k.

    Median and upper quartile of the distances of neighbours give it, which a trend only makes larger: the median times
    1.4826 / sqrt 2, the quartile times 0.8693 / sqrt 2, whichever is more, as a coarse score often has the distance 0.
    Noise that persists has sqrt(1 + rho) / (1 - rho) times the scatter of independent noise with these distances.
    """
    distances = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    quartile = distances[3 * (len(distances) - 1) // 4]
    rho = persistence(values)
    return max(1.4826 * statistics.median(distances), 0.8693 * quartile) / math.sqrt(2) * math.sqrt(1 + rho) / (1 - rho)


def standard_error(values: list[float]) -> float:
    """Standard error of the difference between the medians of the first and the last stretch."""
    return 1.25 * noise(values) * math.sqrt(2 / window(len(values)))


def errors_of_chance(count: int, choices: float = 1) -> float:
    """Standard errors that chance exceeds in a share ALARM of flat series, for the best of several `choices`.

    It is Student's t, by Hill's first terms, with `count` degrees of freedom, as the scatter is estimated too.
    """
    z = statistics.NormalDist().inv_cdf(1 - ALARM / 2 / choices)
    return z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)


def trend(values: list[float]) -> int:
    """1 where the last stretch lies above the first, -1 below, 0 where chance explains it or below 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    chance = errors_of_chance(len(values)) * standard_error(values)
    return 0 if abs(last - first) <= max(chance, 1e-9) else 1 if last > first else -1


def is_flat(values: list[float], slack: float = 0.02) -> bool:
    """Whether 20 steps or more show no rise: neither a trend nor more than `slack` between the medians."""
    first, last = ends(values) if values else (0.0, 0.0)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= slack


def onset(found: dict[int, float]) -> int:
    """The first step at which a series with a trend is half way; the last step of one without."""
    steps = sorted(found)
    values = [found[step] for step in steps]
    way = trend(values)
    if not way:
        return steps[-1]
    middle = sum(ends(values)) / 2
    return next(step for step, value in zip(steps, values, strict=True) if way * (value - middle) >= 0)


def forecast(p: float, group: int) -> float:
    """Expected share of groups whose 0/1 rewards are all equal, at pass rate p."""
    return p**group + (1 - p) ** group


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the form."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def repeats(text: str) -> float:
    """Share of the 6-character pieces of a text's first 1,000 characters that occurred before; 0 below 30."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0


# ------------------------------------------------------------------------ logged run (src/parts/reading/logged_run.py)

SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half


@dataclass
class Finding:
    """One verdict; `metric` is the name in the log, `step` and `value` where it shows."""

    id: str
    severity: str
    metric: str
    step: int
    value: float
    saw: str
    cause: str
    change: list[str]
    source: str


@dataclass
class LoggedRun:
    """What a log holds: `series` under common names, `rows` as they stand in it.

    `settings` are what the checks want to know of `config`, the run's own settings.
    """

    path: str
    format: str
    trainer: str
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    broken: list[tuple[str, int, float]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        found = self.series.get(name, {})
        return [found[step] for step in sorted(found)]

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if name != "held_out"]
        return sorted({step for name in names for step in self.series[name]})

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def find(self, id: str, name: str, saw: str, step: int | None = None, note: bool = False) -> Finding:
        """A finding about a series; without a step, where it is half way from its start to its end, or the last one."""
        found = self.series.get(name) or {0: 0.0}
        step = onset(found) if step is None else step
        cause, change, source = ADVICE[id]
        words = SETTINGS[self.trainer] | {"reward": first_part(self)[0] if self.parts() else "NAME"}
        severity = "note" if note or id in NOTES else "finding"
        metric, value = self.names.get(name, name), found.get(step, 0.0)
        return Finding(id, severity, metric, step, value, saw, cause, [c.format(**words) for c in change], source)


class UnreadableError(Exception):
    """The input is no log that can be judged."""


def late(run: LoggedRun, name: str) -> float:
    """Median of the last stretch of a series."""
    return ends(run.values(name))[1]


def span(run: LoggedRun, name: str) -> str:
    """The last stretch as text: steps 31-40."""
    steps = sorted(run.series[name])
    return f"steps {steps[-min(len(steps), window(len(steps)))]}-{steps[-1]}"


def first_part(run: LoggedRun) -> tuple[str, list[float]]:
    """Name and means of the reward that stands for correctness: named so, else the first; the score without parts."""
    parts = run.parts()
    for name in parts:
        if re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE) and not is_format(name):
            return name, parts[name]
    others = [(name, values) for name, values in parts.items() if not is_format(name)]
    return others[0] if others else ("score", run.values("score"))


def is_constant(run: LoggedRun) -> bool:
    """Whether every completion scored the same in four steps of five; without spreads, whether every mean is 0."""
    if run.series.get("score_std"):
        alike = [value <= 1e-6 for value in run.values("score_std")]
    elif run.series.get("score_max") and run.series.get("score_min"):
        pairs = zip(run.values("score_max"), run.values("score_min"), strict=False)
        alike = [high - low <= 1e-6 for high, low in pairs]
    else:
        scores, others = run.values("score"), ("grad_norm", "zero_std", "score_max", "score_min")
        return len(scores) >= TREND_STEPS and not any(scores) and not any(any(run.values(name)) for name in others)
    return len(alike) >= 3 and sum(alike) >= 0.8 * len(alike)


def is_solved(run: LoggedRun) -> bool:
    """Whether the task was learnt in this run: held-out figure or correctness at 0.95, after having been below."""
    held_out = run.values("held_out")
    if held_out and max(held_out) <= 1:
        return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
    _, part = first_part(run)
    return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    held_out = run.values("held_out")
    if len(held_out) >= 2:
        return held_out[-1] - held_out[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
    return trend(first_part(run)[1]) > 0


def rises_late(run: LoggedRun) -> bool:
    """Whether the score rises over the second half of the run."""
    scores = run.values("score")
    return trend(scores[len(scores) // 2 :]) > 0


def collapse(run: LoggedRun) -> tuple[float, float, int] | None:
    """(best stretch, last stretch, step at which half was lost) where the score fell by more than half, else None."""
    scores = run.values("score")
    if len(scores) < TREND_STEPS:
        return None
    last, floor = ends(scores)[1], min(0, *scores)
    width = min(window(len(scores)), max(5, window(len(scores)) // 2))
    stretches = [statistics.median(scores[i : i + width]) for i in range(len(scores) - width + 1)]
    best, steps, choices = max(stretches), width, len(stretches) / 2  # half, as only a fall counts
    if max(scores[width:]) - floor < (scores[0] - floor) / 2:  # the first updates destroyed the policy for good
        best, steps, choices = scores[0], 1, 1
    error = 1.25 * noise(scores) * math.sqrt(1 / steps + 1 / window(len(scores)))
    chance = errors_of_chance(len(scores), choices) * error
    spread = ends(run.values("score_std"))[0] if run.values("score_std") else 0.0
    if best - last <= max(0.5 * (best - floor), spread / 2, chance, 1e-6):
        return None
    found = sorted(run.series["score"].items())
    if len(scores) < 2 * TREND_STEPS and last > 0.1 * best:
        return None
    top = max(found, key=lambda pair: pair[1])[0]
    return best, last, next((step for step, v in found if step > top and v < (best + last) / 2), found[-1][0])


# -------------------------------------------------------------------- sample dumps (src/parts/reading/sample_dumps.py)

HELD_OUT_FOLDER = re.compile(r"val|eval|held|test", re.IGNORECASE)
VERL_KEYS = ("input", "output", "score", "step")  # of every line of a dump; the rest is what its reward returned
TRL_KEYS = ("step", "prompt", "completion", "advantage")  # the rest are reward functions, and what these have logged


def is_number(value) -> bool:
    """Whether a value of a dump is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def verl_row(row: dict, kind: str) -> dict:
    """A line of verl's dump under the names of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    found = {"step": row["step"], "kind": kind, "prompt": row["input"], "completion": row["output"]}
    found |= {"score": row["score"], "rewards": {key: value for key, value in parts.items() if is_number(value)}}
    found |= {key: value for key, value in parts.items() if not is_number(value) and key not in found}
    return found | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_files(folder: Path, config: dict) -> list[tuple[Path, str]]:
    """(STEP.jsonl, kind) of the dumps that the settings name, or else of the folders beside the log."""
    named = {"train": config.get("trainer.rollout_data_dir"), "eval": config.get("trainer.validation_data_dir")}
    folders = [(Path(path), kind) for kind, path in named.items() if path and Path(path).is_dir()]
    if not folders:
        others = sorted(path for path in folder.iterdir() if path.is_dir())
        folders = [(path, "eval" if HELD_OUT_FOLDER.search(path.name) else "train") for path in others]
    found = [(path, kind) for folder, kind in folders for path in folder.glob("*.jsonl") if path.stem.isdecimal()]
    return sorted(found, key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0])))


def verl_samples(folder: Path, config: dict) -> tuple[list[dict], list[str]]:
    """What trainer.rollout_data_dir and trainer.validation_data_dir hold; rows and remarks."""
    rows, bad = [], 0
    for path, kind in verl_files(folder, config):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                row = json.loads(line)
                rows.append(verl_row(row, kind))
            except (ValueError, RecursionError, KeyError, AttributeError):
                bad += bool(line.strip())
    return rows, [f"verl's dumps of samples: {bad} lines are no samples; left out"] if bad else []


def turns_of(completion) -> tuple[str, list]:
    """The text that the model wrote, and the messages where there are several; a plain text has none."""
    if not isinstance(completion, list):
        return completion, []
    said = [m.get("content") for m in completion if isinstance(m, dict) and m.get("role", "assistant") == "assistant"]
    text = "\n".join(content if isinstance(content, str) else json.dumps(content) for content in said if content)
    return text, completion if len(completion) > 1 or any(m.get("tool_calls") for m in completion) else []


def trl_row(row: dict, weights: dict[str, float] | None) -> dict:
    """A row of TRL's table under the names of samples.jsonl; its score is None where the weights are not known."""
    text, turns = turns_of(row.get("completion"))
    parts = {key: value for key, value in row.items() if key not in TRL_KEYS}
    rewards = {key: value for key, value in parts.items() if value is None or is_number(value)}
    applies = {key: x for key, x in rewards.items() if x is not None and math.isfinite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    found = {"step": row["step"], "kind": "train", "prompt": row["prompt"], "completion": text, "score": score}
    found |= {"rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        found["messages"] = [*prompt, *turns]
    return found | {key: value for key, value in parts.items() if key not in rewards and key not in found}


def reward_weights(history: list[dict]) -> dict[str, float] | None:
    """The weights with which TRL's log sums the rewards to `reward`; None where its means do not tell them."""
    names = [re.fullmatch(r"rewards/(.+)/mean", key) for key in dict.fromkeys(key for row in history for key in row)]
    means = [match[0] for match in names if match]
    rows = [row for row in history if all(is_number(row.get(key)) and math.isfinite(row[key]) for key in means)]
    rows = [row for row in rows if is_number(row.get("reward"))] if means else []
    found = [1.0] * len(means)
    if len(rows) > len(means) and any(abs(row["reward"] - sum(map(row.get, means))) > 1e-4 for row in rows):
        import numpy as np

        table = np.array([[row[key] for key in means] for row in rows])
        found, _, rank, _ = np.linalg.lstsq(table, np.array([row["reward"] for row in rows]), rcond=1e-6)
        found = [] if rank < len(means) else [float(f"{weight:.4g}") for weight in found]
    sums = [sum(w * row[key] for w, key in zip(found, means, strict=True)) for row in rows] if found else []
    fits = sums and all(abs(total - row["reward"]) < 1e-3 for total, row in zip(sums, rows, strict=True))
    return dict(zip((match[1] for match in names if match), found, strict=True)) if fits else None


def trl_samples(folder: Path, history: list[dict]) -> tuple[list[dict], list[str]]:
    """What TRL's log_completions=True leaves in the folder completions/; rows and remarks."""
    files = sorted((folder / "completions").glob("completions_*.parquet"))
    if not files:
        return [], []
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return [], ["completions/ could not be read without pyarrow; try pip install pyarrow"]
    rows, bad, weights = [], [], reward_weights(history)
    for path in files:
        try:
            rows += [trl_row(row, weights) for row in parquet.read_table(path).to_pylist()]
        except (pyarrow.ArrowException, OSError, KeyError, TypeError) as error:
            bad.append(f"{path.name} ({type(error).__name__})")
    remarks = [f"completions/ has files that could not be read: {', '.join(bad[:3])}; left out"] if bad else []
    if rows and weights is None and any(len(row["rewards"]) > 1 for row in rows):
        remarks.append("TRL's log does not tell the weights of the rewards: its samples have no score")
    return rows, remarks


# ------------------------------------------------------------------------ plain logs (src/parts/reading/plain_logs.py)

# what --columns calls a figure, and TRL's name for it, under which it is read
FIGURES = {
    "step": "step",
    "reward": "reward",
    "reward_std": "reward_std",
    "accuracy": "eval_reward",
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "zero_std": "frac_reward_zero_std",
    "kl": "kl",
    "entropy": "entropy",
    "loss": "loss",
    "clip_frac": "clip_ratio/region_mean",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
}
NAMED_COLUMNS = "named columns"
PAIR = re.compile(r"([A-Za-z_][\w/.@-]*)['\"]?\s*[=:]\s*(?=[-+.\d]|nan|inf)([-+\w.]+)", re.IGNORECASE)


def plain_rows(text: str) -> list[dict]:
    """The rows of a CSV file (wandb's export is one) or of lines with two or more name=value; [] of other texts."""
    text = text.lstrip("\ufeff\n")
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    if separator in header and header[0] not in "{[" and not PAIR.search(header):
        rows = list(csv.DictReader(io.StringIO(text), delimiter=separator))
        if any(re.fullmatch(r"[-+]?[.\d]+(e[-+]?\d+)?", str(cell)) for row in rows[:9] for cell in row.values()):
            return [{short_name(name): cell for name, cell in row.items() if name} for row in rows]
    pairs = [dict(PAIR.findall(line)) for line in text.splitlines()]
    return [{short_name(name): value for name, value in row.items()} for row in pairs if len(row) > 1]


def short_name(name: str) -> str:
    """A column's name without the run before it, as wandb writes it: "run - train/reward", whose step is "Step"."""
    name = name.strip().rpartition(" - ")[2]
    return "step" if name.lower() in ("step", "steps", "iter", "iteration", "global_step", "_step") else name


def renamed(rows: list[dict], columns: dict[str, str], path) -> list[dict]:
    """Rows with the columns that were named under TRL's names, in place of what the log has under these."""
    names = {str(name) for row in rows for name in row}
    if not rows:
        raise UnreadableError(f"got {path} without a column; expected JSONL, CSV, or lines of name=value")
    for figure, column in columns.items():
        column = short_name(column)
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            raise UnreadableError(
                f"got --columns {figure}={column}, which {path} does not have; expected one of its columns: "
                f"{', '.join(sorted(names)[:20])}" + (f"; try {figure}={near[0]}" if near else "")
            )
    sources = {FIGURES[figure]: short_name(column) for figure, column in columns.items()}
    kept = [{name: value for name, value in row.items() if name not in sources} for row in rows]
    return [
        old | {name: row[column] for name, column in sources.items() if column in row}
        for old, row in zip(kept, rows, strict=True)
    ]


# -------------------------------------------------------------------- run settings (src/parts/reading/run_settings.py)

# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")


def flat_config(config: dict, prefix: str = "") -> dict:
    """Nested settings by their dotted names."""
    flat = {}
    for key, value in config.items():
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def printed_config(text: str) -> dict:
    """verl's settings by dotted names, which it prints at the start over many lines with Ray's prefix; {} without."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    start = re.search(r"\{'actor_rollout_ref': ", plain)
    lines = []
    for line in plain[start.start() :].split("\n", 5000)[:5000] if start else []:
        line = re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line)
        if line[:1] not in " {" and line != "":  # another process in between
            continue
        lines.append(line)
        if line.endswith("}}"):
            try:
                return flat_config(ast.literal_eval("\n".join(lines)))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    return {}


def verl_settings(flat: dict) -> dict:
    """What the checks want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, estimator = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.adv_estimator")
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    warmup = flat.get("trainer.critic_warmup")
    settings = {
        "group_size": flat.get("actor_rollout_ref.rollout.n"),
        "temperature": flat.get("actor_rollout_ref.rollout.temperature"),
        "max_length": flat.get("data.max_response_length"),
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": estimator in ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized"),
    }
    return settings | ({"critic_warmup": warmup} if warmup else {})


def our_settings(config: dict) -> tuple[str, dict]:
    """(trainer, what the checks want to know) of a config.json; `trainer` is "" where it does not say."""
    settings = {"temperature": config.get("temperature"), "fp16": config.get("precision") == "fp16"}
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        settings |= {"group_size": config["num_generations"], "max_length": config.get("max_completion_length")}
        return "grpo_train", settings | {"updates": 1 if one else None, "grouped": True}
    if "ppo_epochs" not in config:
        return "", {}
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", settings | {
        "group_size": config.get("group_size"),
        "max_length": config.get("max_new_tokens"),
        "updates": config["ppo_epochs"] * config.get("minibatches", 1),
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "critic_warmup": config.get("critic_warmup_steps", 0),
        "value_clip": config.get("value_clip", 0),
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def page_settings(given: dict) -> dict:
    """What the checks want to know of a one-page trainer's settings.json."""
    return {
        "group_size": given.get("group_size"),
        "max_length": given.get("max_new_tokens"),
        "temperature": given.get("temperature"),
        "grouped": "group_size" in given,
        "updates": math.prod(given.get(name) or 1 for name in REPEATS),
        "critic_warmup": given.get("critic_warmup_steps", 0),
        "value_clip": given.get("value_clip", 0),
    }


# ---------------------------------------------------------------------- log reading (src/parts/reading/log_reading.py)

# what of its settings TRL's trainer_state.json has
TRL_STATE = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps")


def need_log(condition, message: str) -> None:
    """Raise UnreadableError unless the condition holds."""
    if not condition:
        raise UnreadableError(message)


def as_number(value) -> float | None:
    """A float from a JSON or console value; None where it is none. numpy's `np.float64(1.5)` is read too."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        value = re.sub(r"^np\.\w+\((.*)\)$", r"\1", value.strip())
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number."""
    number = as_number(value)
    return number is not None and math.isfinite(number)


def step_of(row: dict) -> int:
    """The step of a log entry; 0 where it says none."""
    return int(float(as_number(row.get("step")))) if is_finite(row.get("step")) else 0


def read_text(path: Path) -> str:
    """The text of a log; a binary or empty file is refused."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"got {path} ({error.strerror}); expected a log file or a run folder") from None
    need_log(data.strip(), f"got {path}, which is empty; expected a log with at least one step")
    text = data.decode("utf-8", errors="replace")
    odd = text.count("\0") + text.count("\ufffd")
    need_log(
        odd * 50 < len(text), f"got {path}, which is binary; expected text: metrics.jsonl, trainer_state.json, a log"
    )
    return text


def rows_of_json(text: str) -> tuple[list[dict], list[int], int]:
    """Objects of a JSONL text, numbers of the lines that hold none, and how many lines are not empty."""
    rows, bad, count = [], [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        count += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
    return rows, bad, count


def console_dicts(text: str) -> list[dict]:
    """The flat dicts that transformers' Trainer prints, {'loss': …}, wherever they stand in a line."""
    found = []
    for match in re.findall(r"\{'[^{}\n]*\}", text):
        try:
            row = ast.literal_eval(re.sub(r"(?<=: )(-?inf|nan)(?=[,}])", r"'\1'", match))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(row, dict) and ({*NAMES["trl"]} & {*row} or any(str(k).startswith("eval_") for k in row)):
            found.append(row)
    return found


def console_steps(text: str) -> list[dict]:
    """The lines of verl's console logger: step:N - key:value - key:value."""
    rows = []
    for step, line in re.findall(r"\bstep:(\d+) - (.+)", re.sub(r"\x1b\[[0-9;]*m", "", text)):
        pairs = [part.rpartition(":") for part in line.strip().split(" - ")]
        rows.append({"step": int(step), **{key: value for key, _, value in pairs if key}})
    return rows


def common_name(key: str, dialect: str) -> str | None:
    """The common name of a framework's metric; trackers call TRL's train/NAME and eval/NAME."""
    names = NAMES[dialect]
    key = re.sub("^eval/", "eval_", key.removeprefix("train/")) if dialect == "trl" else key
    if key in names:
        return names[key]
    if re.fullmatch(HELD_OUT[dialect], key):
        return "held_out"
    part = re.fullmatch(PARTS[dialect], key)
    return f"part:{part[1]}" if part else None


def fill_series(run: LoggedRun, rows: list[dict], dialect: str) -> LoggedRun:
    """Put log rows into a run's series; a later value of a step wins, as a resumed run repeats steps."""
    run.rows = rows
    held_out: dict[int, list[float]] = {}
    places = {name: place for place, name in enumerate(NAMES[dialect])}
    keys = {key: common_name(str(key), dialect) for row in rows for key in row}
    ordered = sorted(keys, key=lambda key: places.get(str(key).removeprefix("train/"), len(places)))
    for row in rows:
        step, taken = step_of(row), set()
        for key in ordered:
            name, value = keys[key], as_number(row.get(key))
            if name is None or value is None or (name in taken and name != "held_out"):
                continue
            taken.add(name)
            if not math.isfinite(value):
                run.broken.append((str(key), step, value))
                continue
            run.names.setdefault(name, str(key))
            if name == "held_out" and dialect == "verl":  # one key per data source: their mean
                held_out.setdefault(step, []).append(value)
                value = statistics.fmean(held_out[step])
            run.series.setdefault(name, {})[step] = value
        held_out.pop(step, None)
    return run


def drop_padded(run: LoggedRun) -> LoggedRun:
    """Leave out verl's clip_ratio where the limit was not reached: its V1 trainer pads to the longest of the batch."""
    longest = run.series.get("length_max", {})
    limit = run.settings.get("max_length")
    if not limit and longest:  # a length that half the steps reach and none exceeds is taken for the limit
        top = max(longest.values())
        limit = top if sum(value == top for value in longest.values()) * 2 >= max(len(longest), 4) else math.inf
    for step, value in longest.items():
        if limit and value < limit and step in run.series.get("truncated", {}):
            run.series["truncated"][step] = 0.0
    return run


def numbered(rows: list[dict]) -> list[dict]:
    """Give rows without a step the count of training entries so far."""
    step = 0
    for row in rows:
        is_training = any(common_name(str(key), "trl") not in (None, "held_out") for key in row)
        given = step_of(row) or step_of({"step": row.get("train/global_step")})
        step = given or (step + 1 if is_training else step)
        row["step"] = step
    return rows


def parse(path: Path, text: str, columns: dict[str, str]) -> LoggedRun:
    """Read any of the formats, or what stands in the named columns."""
    (rows, bad, count), history, config = rows_of_json(text), [], {}
    try:
        state = json.loads(text) if text.lstrip()[:1] == "{" else {}
        history = [row for row in state.get("log_history") or [] if isinstance(row, dict)]
        config = {key: state[key] for key in TRL_STATE if state.get(key) is not None}
    except (ValueError, RecursionError, AttributeError, TypeError):
        pass
    if columns:
        return parse_columns(path, history or rows or console_steps(text) or plain_rows(text), columns)
    if history:
        return fill_series(LoggedRun(str(path), "trainer_state.json", "trl", config=config), numbered(history), "trl")
    if rows and len(rows) * 2 >= count:
        run = parse_rows(path, rows)
        if bad:
            torn = bad == [count] or (len(bad) == 1 and not text.endswith("\n"))
            flaw = "the last line is torn" if torn else f"{len(bad)} of {count} lines are no JSON"
            run.remarks.append(f"{flaw} (line {bad[0]}); left out")
        return run
    rows = console_steps(text)
    if rows:
        config = printed_config(text)
        run = LoggedRun(str(path), "verl console", "verl", settings=verl_settings(config), config=config)
        return drop_padded(fill_series(run, rows, "verl"))
    rows = console_dicts(text)
    if rows:
        run = LoggedRun(str(path), "TRL console", "trl")
        run.remarks.append("the console shows no steps: they are counted entries")
        return fill_series(run, numbered(rows), "trl")
    rows = plain_rows(text)
    need_log(
        rows,
        f"got {path}, in none of the formats; expected metrics.jsonl, trainer_state.json, TRL's or verl's console "
        "output, verl's file log, a CSV file, or lines of name=value; try the run's folder",
    )
    return parse_rows(path, rows)


def parse_columns(path: Path, rows: list[dict], columns: dict[str, str]) -> LoggedRun:
    """A run of rows whose figures have the names that --columns gives; findings name these."""
    rows = renamed([row | row["data"] if isinstance(row.get("data"), dict) else row for row in rows], columns, path)
    run = fill_series(LoggedRun(str(path), NAMED_COLUMNS, "trl"), numbered(rows), "trl")
    given = {FIGURES[figure]: column for figure, column in columns.items()}
    run.names = {name: given.get(key, key) for name, key in run.names.items()}
    return run


def parse_rows(path: Path, rows: list[dict]) -> LoggedRun:
    """A run from JSONL rows: verl's file logger, our metrics.jsonl, or TRL entries."""
    if all(isinstance(row.get("data"), dict) for row in rows):
        flat = [{**row["data"], "step": row.get("step")} for row in rows]
        return drop_padded(fill_series(LoggedRun(str(path), "verl file log", "verl"), flat, "verl"))
    keys = {key for row in rows for key in row}
    if keys & set(OURS):
        trainer = "grpo_train" if "time/step" in keys else "ppo_train"
        trainer = trainer if "optim/lr" in keys else "one_page"  # whose rates never change
        if "kl/teacher" in keys:  # a distillation's loss is a divergence, of which the remarks on PPO's do not hold
            rows = [
                {key: value for key, value in row.items() if key != "policy/loss" or not is_finite(value)}
                for row in rows
            ]
        if trainer == "one_page":
            rows = [without_policy(row) if is_critic_only(row) else row for row in rows]
        return fill_series(LoggedRun(str(path), "metrics.jsonl", trainer), rows, "ours")
    if len(keys & {*NAMES["verl"]}) >= max(1, len(keys & {*NAMES["trl"]})):
        return drop_padded(fill_series(LoggedRun(str(path), "verl log entries", "verl"), rows, "verl"))
    return fill_series(LoggedRun(str(path), "TRL log entries", "trl"), numbered(rows), "trl")


def is_critic_only(row: dict) -> bool:
    """Whether a page's step trained the critic only: the policy's gradient is 0 then."""
    return "value/loss" in row and row.get("optim/grad_norm") == 0


def without_policy(row: dict) -> dict:
    """A row without what it says of the policy's update."""
    return {k: v for k, v in row.items() if not k.startswith("policy/") and k not in ("kl/approx", "optim/grad_norm")}


def log_of_folder(folder: Path) -> Path:
    """The log inside a run's folder."""
    for name in ("metrics.jsonl", "trainer_state.json"):
        if (folder / name).exists():
            return folder / name
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda p: p.stat().st_mtime)
    others = sorted([*folder.glob("*.jsonl"), *folder.glob("*.log")])
    need_log(
        states or len(others) == 1,
        f"got {folder} with {', '.join(p.name for p in others[:5]) or 'no log'}; expected metrics.jsonl, "
        "trainer_state.json, checkpoint-*/trainer_state.json or one .jsonl or .log; try the file itself",
    )
    return states[-1] if states else others[0]


def starts_of(path: Path) -> list[Path]:
    """The logs of all starts of a run that verl resumed, metrics.jsonl, metrics.2.jsonl …; empty ones are left out."""
    if path.name != "metrics.jsonl":
        return [path]
    numbers = [re.fullmatch(r"metrics\.(\d+)\.jsonl", other.name) for other in path.parent.glob("metrics.*.jsonl")]
    found = sorted(int(number[1]) for number in numbers if number)
    starts = [path, *(path.with_name(f"metrics.{n}.jsonl") for n in found)]
    return [start for start in starts if start.stat().st_size] or [path]


def samples_beside(path: Path, run: LoggedRun) -> list[dict]:
    """The rows of samples.jsonl, read line by line, as it may be large; what cannot be read is remarked."""
    other, rows, bad, names = path.with_name("samples.jsonl"), [], [], {}
    if not other.is_file():
        return []
    with other.open("rb") as file:
        for number, line in enumerate(file, start=1):
            found, _, filled = rows_of_json(line.decode("utf-8", errors="replace").rstrip("\n"))
            rows += [{names.setdefault(key, key): value for key, value in row.items()} for row in found]
            bad += [number] if filled and not found else []
    if bad and rows:
        run.remarks.append(f"samples.jsonl beside it: {len(bad)} lines are no JSON (line {bad[0]}); left out")
    elif bad or not rows:
        run.remarks.append("samples.jsonl beside it could not be read")
    return rows


def beside(path: Path, name: str, run: LoggedRun) -> list[dict]:
    """The object of a file beside the log; what cannot be read is remarked."""
    other = path.with_name(name)
    if not other.exists():
        return []
    try:
        return [dict(json.loads(read_text(other)))]
    except (UnreadableError, ValueError, TypeError, RecursionError):
        run.remarks.append(f"{name} beside it could not be read")
        return []


def add_dumps(run: LoggedRun, path: Path) -> None:
    """Give a run of TRL or verl the settings and samples that lie beside its log."""
    folder, console = path.parent, path.with_name("verl.log")
    if run.trainer == "trl":
        folder = folder.parent if re.fullmatch(r"checkpoint-\d+", folder.name) else folder
        run.samples, remarks = trl_samples(folder, run.rows)
    else:
        if not run.config and console.is_file() and console != path:  # verl_train.py's, beside verl's file log
            run.config = printed_config(console.read_text(encoding="utf-8", errors="replace"))
            run.settings = verl_settings(run.config)
        run.samples, remarks = verl_samples(folder, run.config)
    run.remarks += remarks


def load_run(source: str, group_size: int = 0, columns: dict[str, str] | None = None) -> LoggedRun:
    """Read a run from a file or folder, with its settings (config.json, of a page settings.json) and samples.jsonl.

    Args:
        source: the file or folder.
        group_size: completions per prompt, where the log does not say.
        columns: names in this log of figures of FIGURES.
    """
    path, later = Path(source), []
    if path.is_dir():
        path, *later = starts_of(log_of_folder(path))
    run = parse(path, "\n".join(map(read_text, [path, *later])), columns or {})
    if later:
        run.remarks.append(f"{1 + len(later)} starts, to {later[-1].name}: steps run again count as run last")
    if run.format == "metrics.jsonl":
        run.samples = samples_beside(path, run)
        for config in beside(path, "config.json", run):
            trainer, run.settings = our_settings(config)
            run.trainer, run.config = trainer or run.trainer, config
        for given in beside(path, "settings.json", run) if run.trainer == "one_page" else []:
            run.settings, run.config = page_settings(given), given
    if run.trainer in ("trl", "verl"):
        add_dumps(run, path)
    if group_size:
        run.settings["group_size"] = group_size
    seen = len(run.steps())
    need_log(
        seen or run.broken,
        f"got {path} ({run.format}) without a training metric that is known; expected a step of training, with "
        f"names such as {', '.join(list(NAMES[dialect_of(run)])[:3])}; try diagnose.py --columns reward=NAME",
    )
    return run


def dialect_of(run: LoggedRun) -> str:
    """Whose metric names a run's log has."""
    return run.trainer if run.trainer in ("trl", "verl") else "ours"


# -------------------------------------------------------------- reward findings (src/parts/reading/reward_findings.py)

RARELY = 0.01  # share of completions below which a length limit explains nothing
DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def check_held_out(run: LoggedRun):
    """Held-out prompts that also train, as the run counted them or by the names of its files."""
    counts = [row for row in run.rows if as_number(row.get("eval/trained_rows"))]
    files = [(run.config.get(a), run.config.get(b)) for a, b in DATA_FILES]
    if counts:
        of = as_number(counts[0].get("eval/rows"))
        saw = f"{counts[0]['eval/trained_rows']:.0f}" + (f" of {of:.0f}" if of else "")
        saw += " evaluation prompts also occur in training; the accuracy is inflated"
        yield run.find("held-out-trains", "held_out", saw, step_of(counts[0]))
    elif run.values("held_out") and any(train and train == held_out for train, held_out in files):
        yield run.find("held-out-trains", "held_out", "the training file is the evaluation file too")


def check_sampling(run: LoggedRun):
    """A group of one; nearly greedy sampling, by the setting or by the entropy of the first steps."""
    words, entropy = SETTINGS[run.trainer], run.values("entropy")
    if run.settings.get("group_size") == 1 and run.settings.get("grouped"):
        yield run.find("group-size-1", "score", f"{words['group']} is 1 with an advantage that compares within groups")
    temperature = run.settings.get("temperature")
    if temperature is not None and temperature < 0.2:
        yield run.find("cold-sampling", "entropy", f"{words['temperature']} is {temperature}")
    elif temperature is None and entropy and ends(entropy)[0] < 0.01:
        saw = f"entropy of the first steps is {ends(entropy)[0]:.3g} nats a token"
        yield run.find("cold-sampling", "entropy", saw, min(run.series["entropy"]))


def check_constant(run: LoggedRun):
    """Every completion scores the same."""
    if not is_constant(run) or is_solved(run) or collapse(run):
        return
    saw = f"all completions of nearly every step scored the same, {late(run, 'score'):.4g} in {span(run, 'score')}"
    cut, gradients = run.values("truncated"), run.values("grad_norm")
    if cut and late(run, "truncated") > 0.2:
        saw += f"; {late(run, 'truncated'):.0%} of them were cut by the length limit"
    if cut and not any(cut):
        saw += "; none was cut"
    if gradients and not any(gradients):
        saw += (
            f". So advantages and gradients are 0 at each step: loss and learning rate{highest_rate(run)} are no cause"
        )
    finding = run.find("constant-reward", "score_std" if "score_std" in run.series else "score", saw)
    if cut and max(statistics.mean(cut), late(run, "truncated")) < RARELY:
        finding.change = [advice for advice in finding.change if not advice.endswith(IF_CUT)]
    yield finding


def highest_rate(run: LoggedRun) -> str:
    """The highest learning rate in brackets, where the log has one above 0."""
    highest = max(run.values("lr"), default=0)
    by_size = 0.0 in (run.config.get("lr"), run.config.get("learning_rate"))
    return (
        f" (it was up to {highest:.3g}{'; the 0 in the settings means by size' if by_size else ''})" if highest else ""
    )


def check_signal(run: LoggedRun):
    """Groups without spread, against the binomial forecast."""
    if is_constant(run):
        return
    if "zero_std" in run.series:
        name, share = "zero_std", late(run, "zero_std")
        saw = f"{share:.0%} of the groups in {span(run, 'zero_std')} score all alike"
    else:
        pairs = list(zip(run.values("advantage_max"), run.values("advantage_min"), strict=False))[-20:]
        name, share = "advantage_max", sum(high == low for high, low in pairs) / max(1, len(pairs))
        saw = f"in {share:.0%} of the last {len(pairs)} steps no completion had an advantage"
    if share < 0.8 or len(run.values(name)) < 3:
        return
    part, means = first_part(run)
    p, group = (ends(means)[1] if means else -1), run.settings.get("group_size")
    if group and 0 <= p <= 1:
        expected = forecast(p, group)
        saw += f"; p^G + (1-p)^G gives {expected:.0%} at pass rate {p:.3g} ({part}, taken as 0 or 1)"
        saw += f" and groups of {group}"
        enough = next((2**i for i in range(1, 9) if 2**i > group and forecast(p, 2**i) < 0.5), None)
        if share > expected + 0.15:
            saw += ": more than chance, so prompts are always or never solved, or samples hardly differ"
        elif enough:
            saw += f"; groups of {enough} would bring it to {forecast(p, enough):.0%}"
    yield run.find("solved" if is_solved(run) else "no-signal", name, saw)


def check_movement(run: LoggedRun):
    """Scores differ and nothing changes; or the score alone does not."""
    scores = run.values("score")
    if is_constant(run) and not run.series.keys() & {"score_std", "score_max"}:
        yield from check_constant(run)
    if len(scores) < 2 * TREND_STEPS or trend(scores) or is_solved(run) or is_constant(run):
        return
    if run.series.get("zero_std") and late(run, "zero_std") >= 0.8:
        return
    name, still = "", False
    if run.series.get("kl"):
        name, still = "kl", abs(late(run, "kl")) < 1e-4
    elif run.series.get("kl_step") and (run.settings.get("updates") or 1) > 1:  # else 0 by construction
        name, still = "kl_step", abs(statistics.median(run.values("kl_step"))) < 1e-7
    elif run.series.get("entropy"):
        first, last = ends(run.values("entropy"))
        name, still = "entropy", abs(last - first) < 0.01 * abs(first)
    saw = f"the score is flat over {len(scores)} steps"
    if still:
        yield run.find("lr-low", name, f"{saw} and {run.names[name]} is {late(run, name):.3g}")
    elif not run.values("held_out") and ends(scores)[1] < SOLVED:
        first, last = ends(scores)
        yield run.find("flat-reward", "score", f"{saw}, {first:.3g} at the start and {last:.3g} at the end")


def check_hacking(run: LoggedRun):
    """Score up, the task not."""
    if trend(run.values("score")) <= 0:
        return
    first, last = ends(run.values("score"))
    held_out, (name, part) = run.values("held_out"), first_part(run)
    saw = f"the score rose from {first:.3g} to {last:.3g}"
    if len(held_out) >= 2:
        peak = max(held_out)
        if not gained(run) and peak < SOLVED:
            saw += f", the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g} (best {peak:.3g})"
            best_step = max(run.series["held_out"], key=run.series["held_out"].get)
            yield run.find("reward-hacking", "held_out", saw, best_step)
        return
    rising = [other for other, values in run.parts().items() if other != name and trend(values) > 0]
    falls, stands = trend(part) < 0, is_flat(part) and not all(map(is_format, rising))
    if rising and ends(part)[0] < SOLVED and (falls or stands):
        saw += f" by {', '.join(rising)}, while {name} went from {ends(part)[0]:.3g} to {ends(part)[1]:.3g}"
        yield run.find("reward-hacking", f"part:{name}", saw)


def check_format(run: LoggedRun):
    """The format is full, the answers stand still."""
    name, part = first_part(run)
    if not is_flat(part) or ends(part)[1] >= 0.9 or gained(run):
        return
    for other, values in run.parts().items():
        if other == name or not is_format(other) or not values:
            continue
        top = max(max(values), 1.0 if max(values) > 0.5 else 0.05)  # parts may be logged with their weight
        if ends(values)[1] >= 0.9 * top:
            saw = f"{other} is at {ends(values)[1]:.3g} in {span(run, f'part:{other}')}"
            yield run.find("format-only", f"part:{other}", f"{saw}, {name} stands at {ends(part)[1]:.3g}")
            return


# ------------------------------------------------------ completion findings (src/parts/reading/completion_findings.py)

TEXTS = 8  # completions of a step that are looked at for repetition: as many as the trainers log


def mean_of_the_last(run: LoggedRun) -> tuple[str, float]:
    """Name and late mean of the score for correctness, which is a share where scores end at 1; 0 where they do not."""
    part, means = first_part(run)
    highest = [as_number(row.get("score")) or 0.0 for row in run.samples] + run.values("score_max") + means
    return part, ends(means)[1] if means and max(highest) <= 1 else 0.0


def check_truncation(run: LoggedRun):
    """Completions that the length limit cuts, and those that are paid all the same."""
    cut = run.values("truncated")
    if len(cut) < 3 or ends(cut)[1] < 0.2:
        return
    (first, last), (part, mean) = ends(cut), mean_of_the_last(run)
    saw = f"{last:.0%} of the completions in {span(run, 'truncated')} hit the length limit ({first:.0%} at the start)"
    if mean + last - 1 > 0.5 * min(mean, last):
        saw += f"; {part} is {mean:.3g} there, so at least {mean + last - 1:.0%} were cut and paid"
        yield run.find("paid-unfinished", "truncated", saw)
    else:
        yield run.find("truncation", "truncated", saw)


def check_conversations(run: LoggedRun):
    """Tools that are not called or mostly fail, and conversations that a limit ends."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        yield run.find("no-tool-calls", "tool_calls", f"not one tool call in {len(calls)} steps")
    if len(failures) >= 3 and late(run, "tool_failures") >= 0.5 and (not calls or late(run, "tool_calls") > 0):
        saw = f"{late(run, 'tool_failures'):.0%} of the tool calls in {span(run, 'tool_failures')} came to an error"
        yield run.find("tool-failures", "tool_failures", saw)
    if len(run.values("limit")) >= 3 and late(run, "limit") >= 0.5:
        saw = f"{late(run, 'limit'):.0%} of the conversations in {span(run, 'limit')} were ended by a limit"
        if run.values("turns"):
            saw += f", after {late(run, 'turns'):.3g} answers"
        yield run.find("turn-limit", "limit", saw, note=is_solved(run))


def check_waiting(run: LoggedRun):
    """Tools or rewards that take much of a step."""
    medians = {name: statistics.median(run.values(f"time_{name}") or [0]) for name in ("step", "reward", "rollout")}
    tools, scoring, step = run.values("tool_seconds"), run.values("time_reward"), medians["step"]
    if len(tools) >= 3 and step and statistics.median(tools) > 0.3 * step:
        saw = f"a conversation waits {statistics.median(tools):.3g} s for its tools, in a step of {step:.3g} s"
        yield run.find("slow-tools", "tool_seconds", saw)
    whole = step or medians["reward"] + medians["rollout"]
    if len(scoring) >= 3 and whole and medians["reward"] > 0.3 * whole:
        saw = f"rewards take {medians['reward']:.3g} s of {whole:.3g} s"
        yield run.find("slow-reward", "time_reward", saw)


def check_repetition(run: LoggedRun):
    """Completions that repeat themselves, by samples.jsonl."""
    by_step: dict[int, list[str]] = {}
    for row in run.samples:
        text = row.get("completion")
        if row.get("kind", "train") == "train" and isinstance(text, str):
            by_step.setdefault(step_of(row), []).append(text)
    shares = {step: statistics.median(map(repeats, by_step[step][:TEXTS])) for step in sorted(by_step)}
    if shares and shares[max(shares)] > 0.5:
        run.series["repeats"], last = shares, max(shares)
        run.names["repeats"] = "samples.jsonl"
        saw = f"half of the completions of step {last} consist to {shares[last]:.0%} or more of repeated pieces"
        yield run.find("repetition", "repeats", saw)


# -------------------------------------------------------------- update findings (src/parts/reading/update_findings.py)

CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0
STRETCHES, STEPS_EACH = 6, 5  # of what is left of a run without its first tenth, in which memory still settles
GROWN, UNEVEN = 0.1, 1 / 3  # of the first stretch's memory; of the growth, which is 0.2 each where it is even
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)


def check_finite(run: LoggedRun):
    """NaN, infinities, and updates left out for them."""
    watched, dialect = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score"), dialect_of(run)
    bad = [entry for entry in run.broken if common_name(entry[0], dialect) in watched]
    if bad:
        metric, step, value = bad[0]
        saw = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        run.names["broken"] = metric
        yield run.find("not-finite", "broken", saw, step)
    skipped = run.series.get("skipped", {})
    steps = [step for step, value in sorted(skipped.items()) if value]
    allowed = 0.2 * len(skipped) if run.settings.get("fp16") else 0  # fp16's loss scale settles that way
    if steps and len(steps) > allowed and not bad:
        saw = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        yield run.find("not-finite", "skipped", saw, steps[0], note=len(steps) < 0.01 * len(skipped))


def check_ratio(run: LoggedRun):
    """The ratio of a rollout's only update."""
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in sorted(run.series.get(name, {}).items()):
            if updates.get(step, constant) == 1 and value > limit:
                saw = f"{run.names[name]} is {value:.4g} at step {step}, which has one update per rollout"
                yield run.find("ratio-first-update", name, saw, step)
                return


def check_mismatch(run: LoggedRun):
    """Sampler and trainer disagree on the probability of sampled tokens."""
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        values = run.values(name)
        if values and not low <= statistics.median(values) <= high:
            first = next(step for step, value in sorted(run.series[name].items()) if not low <= value <= high)
            saw = text.format(statistics.median(values)) + f"; median of all steps, first at step {first}"
            yield run.find("sampler-mismatch", name, saw, first)
            return


def check_stale_sampler(run: LoggedRun):
    """The sampler's distance from the trainer grows while the score stands still: weights that do not arrive."""
    scores = run.values("score")
    if len(scores) < TREND_STEPS or trend(scores) > 0 or gained(run) or is_solved(run):
        return
    for name in ("mismatch_kl", "gap_mean"):
        values = [abs(value) for value in run.values(name)]
        first, last = ends(values) if values else (0.0, 0.0)
        if trend(values) > 0 and last > max(1e-3, 5 * first):
            saw = f"{run.names[name]} grew from {first:.2g} to {last:.2g} nats a token while the score did not rise"
            yield run.find("stale-sampler", name, saw)
            return


def check_kl(run: LoggedRun):
    """KL to the reference: 0 at step 1, and slow after that."""
    values, first = run.values("kl"), min(run.series["kl"])
    one_update = run.settings.get("updates") == 1 or dialect_of(run) == "ours" or run.format == "trainer_state.json"
    if first <= 1 and abs(values[0]) > 0.01 and one_update:
        saw = f"KL to the reference is {values[0]:.3g} nats a token at step {first}, before any update"
        yield run.find("reference-differs", "kl", saw, first)
    last = ends(values)[1]
    risen = trend(values) > 0 or (values[0] <= 0.01 and last > 1 and not collapse(run))  # that came at once
    if len(values) >= TREND_STEPS and last > 0.3 and risen and not (gained(run) and rises_late(run)):
        saw = f"KL to the reference is {last:.3g} nats a token in {span(run, 'kl')}, and correctness does not follow"
        yield run.find("kl-runaway", "kl", saw)


def check_critic(run: LoggedRun):
    """A critic that explains nothing after its warm-up, while scores differ; a note once the task is solved."""
    variances = run.series["explained_variance"]
    warmup = max(CRITIC_STEPS, int(as_number(run.settings.get("critic_warmup")) or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    if len(variances) < TREND_STEPS or len(steps) < CRITIC_STEPS or is_constant(run) or hardly_varies(run):
        return
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle = statistics.median(values)  # single steps scatter by hundredths: of few of them, each counts
    if middle > 0 and (middle if len(values) >= TREND_STEPS else max(values)) > 0.03:
        return
    saw = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    lowest = min(variances, key=variances.get)
    if variances[lowest] < min(-0.1, 2 * middle):
        saw += f"; {variances[lowest]:.3g} at step {lowest}"
    clip, scores = as_number(run.settings.get("value_clip")), run.values("score")
    if clip and scores and max(map(abs, scores)) > 10 * clip:
        saw += f"; a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
    if is_solved(run):
        saw += "; the task was solved all the same"
    yield run.find("critic-useless", "explained_variance", saw, steps[-1], note=is_solved(run))


def hardly_varies(run: LoggedRun) -> bool:
    """Whether scores hardly differ any more, so that nothing is left to explain: beside the start, or their size."""
    spread = run.values("score_std")
    if not spread:
        return False
    first, last = ends(spread)
    return last < 0.25 * first or last < 0.05 * abs(late(run, "score") if run.values("score") else 0.0)


def check_gradients(run: LoggedRun):
    """Gradients far above those of the steps before."""
    norms, spikes = sorted(run.series["grad_norm"].items()), []
    for i in range(5, len(norms)):
        before = statistics.median(value for _, value in norms[max(0, i - 20) : i])
        if norms[i][1] > 1 and norms[i][1] > 10 * before > 0.01:
            spikes.append((norms[i][1], norms[i][0], before))
    if spikes:
        value, step, before = max(spikes, key=lambda spike: spike[0])
        saw = f"{len(spikes)} spikes; the largest {value:.3g} at step {step} after a median of {before:.3g}"
        rare = len(spikes) < 0.02 * len(norms) and not collapse(run)
        yield run.find("gradient-spikes", "grad_norm", saw, step, note=rare)


def check_rate(run: LoggedRun):
    """Learning rate too high, too low, or 0."""
    rates = run.values("lr")
    if len(rates) >= 3 and max(rates[: len(rates) // 2 + 2]) == 0:
        yield run.find("lr-zero", "lr", "the learning rate is 0 in the first half of the run")
        return
    limits = (("kl_step", 0.1, "KL of one step's update"), ("clip_frac", 0.3, "clipped share of tokens"))
    too_high = False
    for name, limit, words in limits:
        values = run.series.get(name, {})
        high = [step for step, value in sorted(values.items()) if value > limit]
        if not too_high and len(high) >= 3 and len(high) >= 0.1 * len(values):
            too_high, step = True, max(high, key=values.get)
            saw = (
                f"{words} above {limit} in {len(high)} of {len(values)} steps, up to {values[step]:.3g} at step {step}"
            )
            yield run.find("lr-high", name, saw, step)
    lost = collapse(run)
    if not lost:
        return
    best, last, step = lost
    kl = run.series.get("kl", {})
    before = max((s for s in kl if s < step), default=None)
    if before is not None and kl.get(step, 0) - kl[before] > 0.5 and not too_high:
        saw = f"KL to the reference went from {kl[before]:.3g} to {kl[step]:.3g} nats a token in one step"
        yield run.find("lr-high", "kl", saw, step)
    saw = f"the score fell from {best:.3g} to {last:.3g}; half of it was lost by step {step}"
    yield run.find("score-collapse", "score", saw, step)


def even_growth(values: list[float]) -> tuple[float, float] | None:
    """Medians of the first and of the last stretch where each of six lies above the one before, none by most of it.

    What settles gains most at first: of a logarithm's growth 0.37 lies between the first two stretches. None where
    memory does not grow so, or by less than a tenth, or the log is short.
    """
    values = values[len(values) // 10 :]
    size = len(values) // STRETCHES
    if size < STEPS_EACH:
        return None
    middles = [statistics.median(values[i * size : (i + 1) * size]) for i in range(STRETCHES)]
    gains = [after - before for before, after in itertools.pairwise(middles)]
    grown = middles[-1] - middles[0]
    even = min(gains) > 0 and max(gains) <= UNEVEN * grown and grown > GROWN * middles[0]
    return (middles[0], middles[-1]) if even else None


def check_memory(run: LoggedRun):
    """Memory that grows step by step although completions do not: of a GPU, or of the process."""
    if any(trend(run.values(name)) > 0 for name in ("length", "length_max", "turns")):
        return
    for name in ("gpu_memory", "memory"):
        growth = even_growth(run.values(name))
        if growth:
            saw = f"{run.names[name]} rose evenly from {growth[0]:.3g} to {growth[1]:.3g} GiB, completions did not grow"
            yield run.find("memory-grows", name, saw, max(run.series[name]))
            return


# ---------------------------------------------------------------------------- findings (src/parts/reading/findings.py)

TOO_SHORT, NOT_JUDGED = "too short to judge", "not judged"
LENGTHS = "mean length went from {:.4g} to {:.4g} tokens without a gain in correctness"
ENTROPIES = "entropy went from {:.3g} to {:.3g} nats a token "


def may_be_sharp(run: LoggedRun) -> bool:
    """Whether low entropy is no fault: the task is solved, the score rises, or a teacher is sharp."""
    taught = any("kl/teacher" in row for row in run.rows)
    return is_solved(run) or taught or trend(run.values("score")) > 0 or rises_late(run)


def gained_and_kept(run: LoggedRun) -> bool:
    """Whether correctness rose and the score did not collapse."""
    return gained(run) and not collapse(run)


MOVES = (  # finding, series, share of the first stretch beyond which the last lies, least distance, excuse, words
    ("length-runaway", "length", 1.5, 0.0, gained, LENGTHS),
    ("length-collapse", "length", 0.5, 0.0, gained, LENGTHS),
    ("entropy-collapse", "entropy", 0.2, 0.01, may_be_sharp, ENTROPIES + "and the score does not rise"),
    ("entropy-explosion", "entropy", 2.0, 0.2, gained_and_kept, ENTROPIES + "without a gain in correctness"),
)


def check_moves(run: LoggedRun, series: str):
    """Length or entropy that moves far, without what excuses it."""
    values = run.values(series)
    way = trend(values)
    for id, name, share, least, excuse, words in MOVES:
        if name != series or way != (1 if share > 1 else -1):
            continue
        first, last = ends(values)
        if way * (last - share * first) > 0 and way * (last - first) > least and not excuse(run):
            yield run.find(id, name, words.format(first, last))


def check_length(run: LoggedRun):
    """Truncation, runaway and collapse of the completions."""
    yield from check_truncation(run)
    yield from check_moves(run, "length")


def check_entropy(run: LoggedRun):
    """Entropy that falls without buying score, or explodes."""
    yield from check_moves(run, "entropy")


def check_remarks(run: LoggedRun):
    """Notes: loss, solved, short, torn."""
    losses = run.values("loss")
    if len(losses) >= 3 and (trend(losses) > 0 or (abs(statistics.median(losses)) < 1e-3 and not is_constant(run))):
        saw = "the loss went from {:.3g} to {:.3g}: this is no fault".format(*ends(losses))
        yield run.find("loss-is-no-measure", "loss", saw)
    if is_solved(run) and not (run.series.get("zero_std") and late(run, "zero_std") >= 0.8):
        held_out, (part, means) = run.values("held_out"), first_part(run)
        saw = f"held-out {held_out[-1]:.3g}" if held_out else f"{part} at {ends(means)[1]:.3g}"
        yield run.find("solved", "held_out" if held_out else "score", saw)
    if len(run.steps()) < TREND_STEPS:
        yield run.find("short-run", "score", f"{len(run.steps())} steps: trends were not judged")
    for remark in run.remarks:
        if "line" in remark:
            yield run.find("partial-log", "score", remark)


# (check, one of these series is needed), in the order of the report
CHECKS = (
    (check_held_out, ()),
    (check_finite, ()),
    (check_ratio, ("ratio_max", "clip_frac")),
    (
        check_mismatch,
        ("gap_mean", "gap_max", "mismatch_kl", "weight_mean", "weight_ess", "weight_std", "probs_correlation"),
    ),
    (check_stale_sampler, ("mismatch_kl", "gap_mean", "gap_max")),
    (check_sampling, ()),
    (check_constant, ("score_std", "score_max")),
    (check_signal, ("zero_std", "advantage_max")),  # above what follows from it
    (check_rate, ("score",)),
    (check_length, ("length", "truncated")),
    (check_conversations, ()),
    (check_waiting, ()),
    (check_repetition, ()),
    (check_entropy, ("entropy",)),
    (check_kl, ("kl",)),
    (check_critic, ("explained_variance",)),
    (check_gradients, ("grad_norm",)),
    (check_movement, ("score",)),
    (check_hacking, ("held_out", "score")),
    (check_format, ("score",)),
    (check_memory, ("gpu_memory", "memory")),
    (check_remarks, ()),
)


def diagnose(run: LoggedRun) -> tuple[list[Finding], list[str]]:
    """Findings of a run, findings before notes, and the names of the checks for which the log has no figures."""
    findings, left_out = [], []
    for check, needs in CHECKS:
        if needs and not any(run.series.get(name) for name in needs):
            left_out.append(check.__name__.removeprefix("check_"))
        else:
            findings += check(run)
    lost = collapse(run) is not None  # after which scores are equal
    return sorted(findings, key=lambda f: (f.severity == "note", lost and f.id == "no-signal")), left_out


# what a run is judged by: its figure for --columns, the series that hold it, and names that may be it in other logs
MEASURES = {
    "reward": ("reward", ("score",), r"reward|score|return"),
    "completion length": ("length", ("length",), r"length|_len\b|tokens"),
    "accuracy": ("accuracy", ("held_out", "part:"), r"\bacc\b|accuracy|correct\b|correctness|solve|pass@|pass_rate"),
    "KL": ("kl", ("kl", "kl_step"), r"(?:\b|_)kl(?:\b|_)"),
}
SPREAD = "spread of the reward"
SPREAD_SERIES = ({"score_std"}, {"zero_std"}, {"score_max", "score_min"}, {"advantage_max", "advantage_min"})
SPREADS = {"ours": "reward/std", "trl": "reward_std", "verl": "critic/score/max and critic/score/min"}


def unknown_keys(run: LoggedRun) -> list[str]:
    """Names in the log of figures that have no known name."""
    keys = dict.fromkeys(str(key) for row in run.rows for key, value in row.items() if is_finite(value))
    dialect = dialect_of(run)
    return [key for key in keys if common_name(key, dialect) is None and not re.match("eval|val|time|step", key)]


def names_like(run: LoggedRun, measure: str) -> list[str]:
    """Names in the log that a measure may have there."""
    return [key for key in unknown_keys(run) if re.search(MEASURES[measure][2], key, re.IGNORECASE)]


def level_of_all_steps(run: LoggedRun) -> float | None:
    """The mean reward of four steps in five, where it is one number and the log has nothing of the scores' spread."""
    scores = [f"{score:.6g}" for score in run.values("score")]
    known = any(spread <= run.series.keys() for spread in SPREAD_SERIES)
    if len(scores) < TREND_STEPS or known or is_constant(run):
        return None
    level = statistics.mode(scores)
    return float(level) if scores.count(level) >= 0.8 * len(scores) else None


def unread_measures(run: LoggedRun) -> dict[str, str]:
    """What could not be judged, each with what the log has or lacks for it."""
    unread, keys = {}, dict.fromkeys(str(key) for row in run.rows for key in row)
    for measure, (_, series, _) in MEASURES.items():
        if any(name.startswith(series) for name in run.series) or (measure == "reward" and "kl/teacher" in keys):
            continue
        near = names_like(run, measure) if dialect_of(run) != "ours" else []
        if run.format == NAMED_COLUMNS:  # whose user has said what the log has
            if measure == "reward":
                unread[measure] = "reward (no column is named for it)"
        elif near or measure in ("reward", "completion length"):
            names = near or unknown_keys(run) or list(keys)
            unread[measure] = f"{measure} (the log has {', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
    level = level_of_all_steps(run)
    if level is not None:
        saw = f"the mean reward is {level:.4g} at nearly every step, as if all completions scored the same"
        unread[SPREAD] = f"needs {SPREADS[dialect_of(run)]} ({saw})"
    return unread


def remedies(run: LoggedRun) -> list[str]:
    """How a run that is not judged could be, as far as its log goes."""
    unread, pairs, advice = unread_measures(run), [], []
    for measure, (figure, series, _) in MEASURES.items():
        names = [run.names[name] for name in series if name in run.names] or names_like(run, measure)
        if names or measure == "reward":
            pairs.append(f"{figure}={names[0] if names else 'NAME'}")
    spreads = [key for key in unknown_keys(run) if re.search("std|stdev|variance", key, re.IGNORECASE)]
    if SPREAD in unread and spreads:
        pairs.append(f"reward_std={spreads[0]}")
    elif SPREAD in unread:
        advice = ["logging the standard deviation of a step's scores; scripts/reward_preflight.py scores gold answers"]
    if spreads or unread.keys() - {SPREAD}:
        advice.insert(0, f"--columns {' '.join(pairs)}; what the log does not have is then left out")
    return advice


def judgement(run: LoggedRun, findings: list[Finding], left_out: list[str]) -> dict:
    """A run's verdict as plain data; a log with a part that cannot be read is never healthy."""
    steps = run.steps() or [step for _, step, _ in run.broken]
    unread = unread_measures(run)
    if any(f.severity == "finding" for f in findings):
        verdict = "findings"
    elif any(f.id == "short-run" for f in findings):
        verdict = TOO_SHORT
    else:
        verdict = f"{NOT_JUDGED}: {'; '.join(unread.values())}" if unread else "healthy"
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer, "steps": [min(steps), max(steps)]}
    facts |= {"verdict": verdict, "findings": [asdict(f) for f in findings]}
    return facts | {"not_judged": [*unread, *left_out]}


# ---------------------------------------------------------- report and plot (src/programs/diagnose/report_and_plot.py)


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
    first, last = data["steps"]
    count = sum(f["severity"] == "finding" for f in data["findings"])
    verdict = f"{count} finding{'s' * (count > 1)}" if count else data["verdict"]
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {verdict}")
    if data["verdict"].startswith(NOT_JUDGED):
        for remedy in remedies(run):
            tell(f"  try {remedy}")
    for f in data["findings"]:
        tell(f"\n  {f['severity'].upper()} {f['id']}  ({f['metric']}, step {f['step']}, {f['value']:.4g})")
        tell(f"    saw     {f['saw']}\n    cause   {f['cause']}")
        for i, change in enumerate(f["change"]):
            tell(f"    {'change ' if i == 0 else '       '} {change}")
        tell(f"    source  {f['source']}")
    if data["not_judged"]:
        tell(f"\n  the log has no figures for {', '.join(data['not_judged'])}")


MARK = {"rotation": 90, "ha": "right", "va": "center", "color": "tab:red", "fontsize": 8}
PANELS = [
    ("score and held-out", ["score", "held_out"]),
    ("groups without signal, truncated, clipped (share)", ["zero_std", "truncated", "clip_frac"]),
    ("completion length (tokens)", ["length"]),
    ("entropy (nats a token)", ["entropy"]),
    ("KL: to the reference, of a step, to the sampler", ["kl", "kl_step", "mismatch_kl"]),
    ("gradient norm", ["grad_norm", "critic_grad_norm"]),
    ("explained variance", ["explained_variance"]),
    ("ratio and importance weights", ["ratio_max", "weight_mean", "weight_ess"]),
]


def draw(runs: list[LoggedRun], reports: list[dict], target: Path) -> None:
    """Draw what the checks looked at; findings of a single run are marked at their step."""
    panels = []
    for title, names in PANELS:
        lines = {}
        for run in runs:
            suffix = f" · {Path(run.path).parent.name or run.path}" if len(runs) > 1 else ""
            lines |= {run.names.get(n, n) + suffix: sorted(run.series[n].items()) for n in names if run.series.get(n)}
        if lines:
            panels.append((title, lines))
    titles = []
    for report in reports:
        ids = [finding["id"] for finding in report["findings"] if finding["severity"] == "finding"]
        titles.append(f"{report['path']}: {', '.join(ids) or report['verdict'].partition(':')[0]}")
    figure = draw_panels(panels, "\n".join(titles))
    for axis, (_, lines) in zip(figure.axes, panels, strict=False):
        for finding in reports[0]["findings"] if len(runs) == 1 else []:
            if finding["severity"] == "finding" and finding["metric"] in lines:
                axis.axvline(finding["step"], color="tab:red", linestyle="--", linewidth=1)
                axis.text(finding["step"], 0.5, finding["id"], transform=axis.get_xaxis_transform(), **MARK)
    try:
        figure.savefig(target, dpi=100)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"got --plot {target} ({error}); expected a name such as curves.png") from None


# -------------------------------------------------------------------------- command (src/programs/diagnose/command.py)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_OR_FILE", help="run folder or log, see above; several are read in turn"
    )
    parser.add_argument("--json", action="store_true", help="verdicts as JSON (default: text)")
    parser.add_argument(
        "--plot", metavar="FILE.png", type=Path, help="draw the curves, findings marked (default: none)"
    )
    parser.add_argument("--overwrite", action="store_true", help="let --plot replace a file (default: refuse)")
    text = "completions per prompt, for the forecast, where the log does not say (default: 0, from the run's settings)"
    parser.add_argument("--group_size", "--group-size", type=int, default=0, metavar="G", help=text)
    text = f"names in this log of the figures that are looked at: {', '.join(FIGURES)} (default: known names)"
    parser.add_argument("--columns", nargs="+", metavar="FIGURE=NAME", default=[], help=text)
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """The pairs of --columns, checked."""
    columns = {}
    for pair in pairs:
        figure, _, name = pair.partition("=")
        known = figure in FIGURES and name
        need_log(known, f"got --columns {pair}; expected FIGURE=NAME with a figure of {', '.join(FIGURES)}")
        columns[figure] = name
    return columns


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    args = parse_flags(command_line(), argv)
    runs, reports, failed = [], [], []
    for source in args.runs:
        try:
            run = load_run(source, args.group_size, named_columns(args.columns))
            reports.append(judgement(run, *diagnose(run)))
            runs.append(run)
        except UnreadableError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    try:
        if args.plot and runs:
            free = args.overwrite or not args.plot.exists()
            need_log(free, f"got --plot {args.plot}, which exists; expected a new name; try --overwrite")
            draw(runs, reports, args.plot)
    except UnreadableError as error:
        failed.append({"path": str(args.plot), "verdict": "unreadable", "error": str(error)})
        print(f"error: {error}", file=sys.stderr)
    verdicts = {report["verdict"] for report in reports}
    code = 2 if failed else 1 if "findings" in verdicts else 0 if verdicts <= {"healthy"} else 3
    if args.json:
        tell(json.dumps({"runs": reports + failed, "exit_code": code}, indent=1))
    else:
        for i, (run, data) in enumerate(zip(runs, reports, strict=True)):
            tell("\n" * (i > 0), end="")
            print_verdict(run, data)
    return code


if __name__ == "__main__":
    sys.exit(main())
