#!/usr/bin/env python3
# Built from src/programs/diagnose.py by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow", "pyyaml"]
# ///
"""Read what an RL run left and name the root cause first: evidence, what it explains, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json in the place of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    others                        lines of name=value, CSV (wandb's export), pasted tables; --columns for other names

The verdict is learned, did not learn, broken (since a step), too short or unreadable. At most two causes are named,
and what they explain stands under them, without advice of its own; with two, a command tells them apart. Settings,
samples and the reward's source are read where they lie beside the log, or where a flag names them. No code of a run is
executed, except by --rescore, in the sandbox. What was read, and what more would decide, stands at the end.

Trends compare the medians of the first and the last quarter of the steps (3 to 20 of them). They count only beyond what
chance gives noise of the same scatter and persistence, also where the best stretch of many was chosen: each cause comes
in at most 1 % of simulated logs of flat noise (benchmarks/false_alarms.py). Thresholds come from the source that a
cause names; where none exists it says "our heuristic". benchmarks/README.md has how often the cause is right.

    groups that teach nothing, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: curves (scripts/report.py draws them), trackers' own files (wandb, tensorboard), crashes and
out-of-memory errors, which references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py runs/first --reward my_rewards.py:correct --data train.jsonl
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it
    python scripts/diagnose.py out/checkpoint-500/trainer_state.json runs/other

Exit codes: 0 learned, 1 a cause, broken or did not learn, 2 unreadable, 3 too short; of several runs 2, then 1, then 3.
"""

# Contents
#        90-115  messages      Errors that a user can mend, each with its exit code, and what is said on stderr
#       118-121  bundle        Where this bundle and its embedded model, data and rewards lie
#       124-256  dialect       One setting under several names: ours, those of the pages, and TRL's. A program …
#       259-287  settings      Settings: a dataclass whose fields are flags and YAML keys, and the checks that all …
#       290-364  extracts      The part of a Python file that some of its names need, as a file of its own
#       367-389  paired tests  Intervals, paired tests, pass@k
#       392-609  dialects      What our trainers, TRL, verl and others call metrics and settings
#       612-713  trends        Trends of a series
#       716-885  logged run    A run as its log, settings and samples show it: the facts that causes are told by
#      888-1078  run settings  Settings of a run under common names: ours, TRL's, verl's, EasyR1's, ms-swift's; YAML, …
#     1081-1278  sample texts  Samples as causes read them: text, score, gold, and what a completion states and is …
#     1281-1441  sample files  Files of samples: samples.jsonl, TRL's tables of completions, verl's dumps of …
#     1444-1752  log reading   Reading a log of any dialect in one pass: ours, TRL's, verl's, CSV, lines of name=value
#     1755-1925  run folder    A run from its folder: the log, and the settings, samples, data and rewards that lie …
#     1928-2067  rescoring     --rescore: the reward on logged samples, on gold, on nonsense, twice, alone and in …
#     2070-2137  cause         A cause: the evidence that it needs, what it explains, and what to change
#     2140-2204  signs         Signs: what figures show without saying why; a cause explains them, and none has …
#     2207-2396  machinery     Machinery at fault: overflow, restarts, a sampler unlike the trainer, stale weights, …
#     2399-2613  groups        Groups that teach nothing: near-greedy, cut, too hard, too easy, too sparse, without …
#     2616-2887  rewards       Rewards at fault: another form, another gold, constant, inverted, blind to the answer, …
#     2890-3101  updates       Updates at fault: too large, none that moves anything, held by the KL, or led by a …
#     3104-3363  outcomes      What was learnt in place of the task: a part bought or lost, prompts by heart, another …
#     3366-3479  ranking       Which cause explains a run best, and the run's verdict
#     3482-3585  diagnose      Read what an RL run left and name the root cause first: evidence, what it explains, …

import argparse
import ast
import bisect
import contextlib
import csv
import difflib
import itertools
import json
import math
import mmap
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
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


def suggest(word: str, names: list[str], cutoff: float = 0.6) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, 1, cutoff))


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)


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
    ("dual_clip", "trainer_args", "try --trainer_args delta=VALUE"),
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


def parse_flags(
    parser: argparse.ArgumentParser, argv: list[str] | None, elsewhere=(), removed: dict[str, str] | None = None
) -> argparse.Namespace:
    """Parse a command line, whose flags may have other programs' names; an unknown one is told the nearest known.

    Args:
        removed: {flag of earlier versions, with `_`: what to use instead}.
    """
    argv, removed, names = sys.argv[1:] if argv is None else argv, removed or {}, flags_of(parser)
    try:
        known, unknown = parser.parse_known_args(in_own_words(argv, names, elsewhere))
    except UserError as error:
        parser.error(str(error))
    if unknown:
        name = unknown[0].split("=")[0]
        if flag_name(name) in removed:
            parser.error(f"got {name}, which was removed; try {removed[flag_name(name)]}")
        follows = relation(flag_name(name), names, flag_values(argv))
        near = f"; {follows}" if follows else suggest(flag_name(name), names, 0.7).replace("; try ", "; try --")
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# ---------------------------------------------------------------------------- extracts (src/parts/rewards/extracts.py)

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds in its module."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def read_names(node: ast.AST) -> set[str]:
    """All names that occur in a statement."""
    return {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}


def statements_of(source: str) -> list[tuple[ast.stmt, str]]:
    """The top-level statements of Python source with their text, the comments above them included."""
    lines, pieces = source.splitlines(), []
    for statement in ast.parse(source).body:
        decorators = [node.lineno for node in getattr(statement, "decorator_list", [])]
        first = min([statement.lineno, *decorators]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        pieces.append((statement, "\n".join(lines[first : statement.end_lineno]) + "\n"))
    return pieces


def needed(pieces: list[tuple[ast.stmt, str]], names: list[str]) -> set[int]:
    """The places of the statements that bind the names, and of those that these use."""
    wanted, seen, kept = [*names], set(), set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for place, (statement, _) in enumerate(pieces):
            if place not in kept and name in bound_names(statement):
                kept.add(place)
                wanted += read_names(statement)
    return kept


def joined(pieces: list[tuple[ast.stmt, str]]) -> str:
    """The text of statements, with two blank lines around definitions."""
    text, was_block = "", False
    for statement, lines in pieces:
        block = isinstance(statement, DEFINITIONS)
        text += ("\n\n" if text and (block or was_block) else "") + lines
        was_block = block
    return text


def extract(source: str, names: list[str]) -> str:
    """Python source with the top-level statements that bind the names, and those that these use, in their order.

    Statements that bind nothing are left out, such as calls and what stands below `if __name__ == "__main__":`.
    """
    pieces = statements_of(source)
    kept, chosen = needed(pieces, names), []
    for place, (statement, lines) in enumerate(pieces):
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if place in kept or future or docstring:
            chosen.append((statement, lines + "\n" * docstring))
    return joined(chosen)


# -------------------------------------------------------------------- paired tests (src/parts/reading/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927), also for 0 and n successes."""
    z, p = Z95, successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def share_gain(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float, float]:
    """Gain between two (share, count) of independent samples, and its 95 % interval (Newcombe 1998, method 10)."""
    (low_a, high_a), (low_b, high_b) = (wilson_interval(p * n, n) for p, n in (before, after))
    gain = after[0] - before[0]
    return (
        gain,
        gain - math.hypot(after[0] - low_b, high_a - before[0]),
        gain + math.hypot(high_b - after[0], before[0] - low_a),
    )


# ---------------------------------------------------------------------------- dialects (src/parts/reading/dialects.py)

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
    "optim/updates": "updates",
    "optim/skipped_updates": "skipped",
    "time/step": "time_step",
    "memory/gpu_peak_gib": "gpu_memory",
    "memory/process_gib": "memory",
    "eval/accuracy": "held_out",
    "eval/rows": "held_out_rows",
    "kl/coef": "kl_weight",
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
    "timing_s/step": "time_step",
    "perf/max_memory_allocated_gb": "gpu_memory",
}
EARLIER = {  # and elsewhere: what TRL's trainers, and OpenRLHF, called them in the last two years
    # GRPO until 0.16, PPO until 1.12, online DPO; sums over a completion's tokens are no figures of a token
    "completion_length": "length",
    "clip_ratio": "clip_frac",
    "objective/scores": "score",
    "policy/approxkl_avg": "kl_step",
    "policy/clipfrac_avg": "clip_frac",
    "policy/entropy_avg": "entropy",
    "loss/policy_avg": "loss",
    "loss/value_avg": "value_loss",
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
HELD_OUT_PARTS = {
    "ours": r"eval/(?!accuracy|rows|score$|length)(.+)",
    "trl": r"eval_rewards/(.+?)(?:/mean)?(?<!/std)",
    "verl": r"(?!)",
}
HELD_OUT = {
    "ours": r"eval/accuracy",
    "trl": r"eval_reward|(?:eval_)?eval_.+_pass1",
    "verl": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+",
}

# common name of a setting: ours, TRL's, and the ends of dotted names that mean it elsewhere (verl's, EasyR1's, …)
SETTINGS = {
    "temperature": ("temperature", "temperature"),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "do_sample": ("rollout.do_sample",),
    "group_size": ("group_size", "num_generations", "rollout.n", "n_samples_per_prompt", "num_sample_generations"),
    "max_length": (
        *("max_new_tokens", "max_completion_length", "max_response_length"),
        *("response_length", "generate_max_len", "max_tokens"),
    ),
    "lr": ("lr", "learning_rate", "actor.optim.lr", "actor_learning_rate"),
    "kl": ("kl_coef", "beta", "actor.kl_loss_coef", "kl_ctrl.kl_coef", "init_kl_coef"),
    "warmup": ("warmup_steps", "actor.optim.lr_warmup_steps", "lr_warmup_steps"),
    "steps": ("steps", "max_steps", "total_training_steps"),
    "epochs": ("ppo_epochs", "num_iterations", "actor.ppo_epochs", "num_ppo_epochs", "epochs"),
    "minibatches": ("minibatches", "num_mini_batches"),
    "precision": ("precision", "fsdp_config.model_dtype", "torch_dtype", "dtype", "bnb_dtype"),
    "data": ("data", "data.train_files", "dataset", "train_dataset", "prompt_data"),
    "eval_data": ("eval_data", "data.val_files", "val_dataset", "eval_dataset"),
    "reward": ("reward", "reward_funcs", "custom_reward_function.path", "reward.reward_function"),
    "grad_clip": ("max_grad_norm", "max_grad_norm", "grad_clip", "clip_grad"),
    "repetition_penalty": ("repetition_penalty",),
    "critic_lr": ("critic_lr", "critic.optim.lr"),
    "batch": ("batch_size", "train_batch_size", "rollout_batch_size", "rollout.batch_size"),
}
ACTOR = "actor_rollout_ref.actor"
ADVISED = ("lr", "group_size", "temperature", "max_length", "kl", "grad_clip")  # settings that a remedy names

# what else a remedy names, by who trains
NO_FILTER = "a training file without the prompts that all or none solve"
OUR_WORDS = {name: f"--{SETTINGS[name][0]}" for name in ADVISED} | {
    "reuse": "--ppo_epochs and --minibatches",
    "critic_lr": "--critic_lr",
    "critic_warmup": "--critic_warmup_steps 10",
    "critic_updates": "--minibatches 4, with a lower --lr, as the policy gets them too",
    "value_clip": "--value_clip 0",
    "critic_free": "--algorithm grpo or rloo",
    "filter": "--dynamic_sampling true",
    "mismatch": "--mismatch tis",
    "precision": "--precision bf16 (or fp32)",
    "tool_form": "--tool_format",
}
CRITIC = ("critic_lr", "critic_warmup", "critic_updates", "value_clip", "critic_free")  # which TRL's trainers lack
TRL_WORDS = {
    **{name: SETTINGS[name][1] for name in ADVISED},
    **dict.fromkeys(CRITIC, "the critic's settings"),
    "reuse": "num_iterations and steps_per_generation",
    "filter": f"{NO_FILTER} (TRL has no dynamic sampling)",
    "mismatch": "vllm_importance_sampling_correction=True",
    "precision": "bf16=True with weights in float32, in place of fp16=True",
    "tool_form": "a tokenizer with a response schema",
}
WORDS = {
    "ppo_train": OUR_WORDS,
    "one_page": OUR_WORDS
    | {
        "reuse": "--epochs and --minibatches",
        "critic_free": "templates/grpo.py",
        "grad_clip": "the bound of clip_grad_norm_",
        "filter": NO_FILTER,
        "mismatch": "scripts/ppo_train.py --mismatch tis",
        "precision": "weights in float32, as the page has them",
        "tool_form": "what the page takes for a call",
    },
    "grpo_train": TRL_WORDS
    | {name: f"--{SETTINGS[name][1]}" for name in ADVISED}
    | {
        "reuse": "--num_iterations and --steps_per_generation",
        "mismatch": "--trainer_args vllm_importance_sampling_correction=true",
        "precision": "--precision bf16 (or fp32)",
        "tool_form": "--tool_format",
    },
    "trl": TRL_WORDS,
    "verl": {
        "lr": f"{ACTOR}.optim.lr",
        "group_size": "actor_rollout_ref.rollout.n",
        "temperature": "actor_rollout_ref.rollout.temperature",
        "max_length": "data.max_response_length",
        "kl": f"{ACTOR}.kl_loss_coef (use_kl_loss=True), or algorithm.kl_ctrl.kl_coef (use_kl_in_reward=True)",
        "reuse": f"{ACTOR}.ppo_epochs, or a larger {ACTOR}.ppo_mini_batch_size",
        "critic_lr": "critic.optim.lr",
        "critic_warmup": "trainer.critic_warmup=10",
        "critic_updates": "critic.ppo_mini_batch_size a quarter of the batch, or a larger critic.ppo_epochs",
        "value_clip": "critic.cliprange_value=1000 (as good as off)",
        "critic_free": "algorithm.adv_estimator=grpo or rloo",
        "grad_clip": f"{ACTOR}.grad_clip",
        "filter": "algorithm.filter_groups.enable=True",
        "mismatch": "algorithm.rollout_correction.rollout_is=token",
        "precision": f"{ACTOR}.fsdp_config.dtype=bfloat16 with model_dtype=fp32",
        "tool_form": "actor_rollout_ref.rollout.multi_turn.format",
    },
}


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


def is_flat(values: list[float]) -> bool:
    """Whether 20 steps or more show no rise: neither a trend nor more than 0.02 between the medians."""
    first, last = ends(values) if values else (0.0, 0.0)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= 0.02


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


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


def repeats(text: str) -> float:
    """Share of the 6-character pieces of a text's first 1,000 characters that occurred before; 0 below 30."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0


# ------------------------------------------------------------------------ logged run (src/parts/reading/logged_run.py)

SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half
EARLY = 5  # steps in which a policy is nearly the one that it was at the start


@dataclass
class LoggedRun:
    """What a run left: every figure of its log as {step: value}, `columns` by its name there, `series` by common name.

    `settings` are `config`, the run's own settings, under common names; `reward_source` is the code of its rewards.
    """

    path: str
    format: str
    trainer: str
    columns: dict[str, dict[int, float]] = field(default_factory=dict)
    bad: list[tuple[str, int, float]] = field(default_factory=list)  # (name, step, value) of what is not finite
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of the series in this log
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    settings_file: str = ""
    reward_source: str = ""
    texts: list = field(default_factory=list)  # the samples as causes read them
    trials: dict[str, str] = field(default_factory=dict)  # what --rescore saw, by the cause that it shows
    golds: dict[str, str] = field(default_factory=dict)  # gold answers of the training data by prompt, in its order

    @property
    def dialect(self) -> str:
        """Whose metric names the log has."""
        return self.trainer if self.trainer in ("trl", "verl") else "ours"

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a series, by step."""
        return sorted(self.series.get(name, {}).items())

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        return [value for _, value in self.points(name)]

    def first(self, name: str) -> float:
        """Median of the first stretch of a series; NaN without one."""
        return ends(self.values(name))[0] if self.series.get(name) else math.nan

    def last(self, name: str) -> float:
        """Median of the last stretch of a series; NaN without one."""
        return ends(self.values(name))[1] if self.series.get(name) else math.nan

    def trend(self, name: str) -> int:
        """1 where a series rises beyond chance, -1 where it falls, else 0."""
        return trend(self.values(name))

    def early(self, name: str, steps: int = EARLY) -> list[float]:
        """The values of a series at its first steps."""
        return self.values(name)[:steps]

    def name(self, series: str) -> str:
        """A series' name in this log."""
        return self.names.get(series, series)

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if not name.startswith("held_out")]
        return sorted({step for name in names for step in self.series[name]})

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def part_spread(self) -> float:
        """The largest spread of a part over a batch, as TRL logs it beside that within groups; 0 without one."""
        names = [key for key in self.columns if re.fullmatch(r"(train/)?rewards/.+/std", key)]
        return max((value for name in names for value in self.columns[name].values()), default=0.0)

    def number(self, setting: str) -> float | None:
        """A setting as a number; None where it is not known or no number."""
        value = self.settings.get(setting)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def first_part(run: LoggedRun) -> tuple[str, list[float]]:
    """Name and means of the reward that stands for correctness: named so, else the first; the score without parts."""
    parts = run.parts()
    named = next(filter(names_correctness, parts), None)
    if named:
        return named, parts[named]
    others = [(name, values) for name, values in parts.items() if not is_format(name)]
    return others[0] if others else ("score", run.values("score"))


def first_series(run: LoggedRun) -> str:
    """The series of that reward."""
    return f"part:{first_part(run)[0]}" if run.parts() else "score"


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
    means = [score for score, same in zip(run.values("score"), alike, strict=False) if same]
    differ = bool(means) and max(means) - min(means) > 1e-6  # TRL's spread is one within groups
    return len(alike) >= 3 and sum(alike) >= 0.8 * len(alike) and not differ and not run.part_spread()


def is_solved(run: LoggedRun) -> bool:
    """Whether the task was learnt in this run: held-out figure or correctness at 0.95, after having been below."""
    held_out = run.values("held_out")
    if held_out and max(held_out) <= 1:
        return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
    _, part = first_part(run)
    return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED


def held_out_gain(run: LoggedRun) -> tuple[float, float, float] | None:
    """Gain of the held-out figure from the first to the last evaluation with its 95 % interval; None without two.

    Of shares of `eval/rows` answers it is that of independent samples, which is wide for the same rows twice; without
    the number of rows 64 are taken.
    """
    points = run.points("held_out")
    if len(points) < 2:
        return None
    (_, before), (_, after) = points[0], points[-1]
    gain, rows = after - before, run.series.get("held_out_rows", {})
    if not 0 <= min(before, after) <= max(before, after) <= 1:
        scatter = max(GAIN, *(abs(b - a) for (_, a), (_, b) in itertools.pairwise(points[1:])), 0.0)
        return gain, gain - 2 * scatter, gain + 2 * scatter
    count = rows.get(points[-1][0]) or rows.get(points[0][0]) or 64
    return share_gain((before, count), (after, count))


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    gain, held_out = held_out_gain(run), run.values("held_out")
    if gain:
        return gain[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
    return trend(first_part(run)[1]) > 0


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
    points = run.points("score")
    if len(scores) < 2 * TREND_STEPS and last > 0.1 * best:
        return None
    top = max(points, key=lambda pair: pair[1])[0]
    return best, last, next((step for step, v in points if step > top and v < (best + last) / 2), points[-1][0])


# -------------------------------------------------------------------- run settings (src/parts/reading/run_settings.py)

GROUPED = ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized", "dapo", "dr_grpo", "gspo", "cispo", "opo")
CONFIG_CALL = re.compile(r"(?:Config|Arguments|Args|Trainer|Params)$")
# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")
NO_SETTINGS = ("trainer_state", "summary", "results", "result", "versions", "label", "requirements")
MOST_BYTES = 2_000_000  # of a file of settings


def flat_config(config: dict, prefix: str = "") -> dict:
    """Nested settings by their dotted names."""
    flat = {}
    for key, value in config.items():
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def number_or_text(text):
    """A word of a command or a YAML value as a number, truth value or text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None, "none": None}.get(text.strip().lower(), text.strip("'\""))


def printed_config(lines: list[str]) -> dict:
    """verl's settings by dotted names, printed over many lines with Ray's prefix; {} where they are not whole."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    plain[0] = plain[0][plain[0].find("{'actor_rollout_ref': ") :]
    plain = [re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line) for line in plain]
    try:  # without the lines of another process in between
        return flat_config(ast.literal_eval("".join(line for line in plain if line[:1] in " {")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}


def shell_settings(text: str) -> dict:
    """`--flag value`, `--flag=value` and `a.b=1` of a command or shell script; its variables stand for their values."""
    variables = dict(re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s$`]+)\s*$", text, re.MULTILINE))
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), text.replace("\\\n", " "))
    words, flat = [], {}
    for line in text.splitlines():
        try:
            words += shlex.split(line, comments=True)
        except ValueError:
            words += line.split()
    for i, word in enumerate(words):
        after = words[i + 1] if i + 1 < len(words) else "--"
        if match := re.fullmatch(r"(?:--|\+{0,2})([A-Za-z_][\w.-]*)=(.*)", word, re.DOTALL):
            flat[match[1].replace("-", "_")] = number_or_text(match[2])
        elif re.fullmatch(r"--[A-Za-z][\w.-]*", word):
            flat[word[2:].replace("-", "_")] = True if after.startswith("--") else number_or_text(after)
    return flat


def script_settings(text: str) -> dict:
    """Literal arguments of a training script's configurations and trainers, which is parsed and never run."""
    tree, flat, constants = ast.parse(text), {}, {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    for call in ast.walk(tree):
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        for keyword in call.keywords if CONFIG_CALL.search(name) and not name.endswith("LoraConfig") else []:
            value = constants.get(getattr(keyword.value, "id", ""), keyword.value)
            try:
                flat[keyword.arg] = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError):
                flat[keyword.arg] = ast.unparse(value)
    return flat_config({key: value for key, value in flat.items() if key})


def read_settings(path: Path) -> dict:
    """The settings in a file by dotted names; {} of a file that has none."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < MOST_BYTES else ""
        if path.suffix == ".py":
            return script_settings(text)
        if path.suffix not in (".yaml", ".yml", ".json"):
            return shell_settings(text)
        loaded = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, SyntaxError, RecursionError, yaml.YAMLError):
        return {}
    if isinstance(loaded, list):  # hydra's overrides
        return shell_settings("\n".join(map(str, loaded)))
    return {k: number_or_text(v) for k, v in flat_config(loaded).items()} if isinstance(loaded, dict) else {}


def common_settings(flat: dict) -> dict:
    """What the causes want to know of settings by their dotted names."""
    settings, extra = {}, flat.get("trainer_args") or []
    flat = flat | shell_settings(" ".join(map(str, extra))) if isinstance(extra, list) else flat
    for name, endings in SETTINGS.items():
        aside = ("val_kwargs", ".ref.") if name == "critic_lr" else ("val_kwargs", ".ref.", "critic")
        for ending in endings:
            keys = [key for key in flat if key == ending or ("." in key and key.endswith(f".{ending}"))]
            keys = [key for key in keys if flat[key] is not None and not any(word in key for word in aside)]
            value = flat[min(keys, key=len)] if keys else None
            if keys and name not in settings and (name in ("data", "reward") or not isinstance(value, list)):
                settings[name] = value
    if "learning_rate" in flat and "beta" not in flat and "num_generations" in flat:
        settings["kl"] = 0.0  # TRL's default
    return settings


def verl_settings(flat: dict) -> dict:
    """What the causes want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, estimator = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.adv_estimator")
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    known = common_settings(flat)
    if flat.get(f"{ACTOR}.use_kl_loss") is False and flat.get("algorithm.use_kl_in_reward") is False:
        known["kl"] = 0.0
    elif flat.get("algorithm.use_kl_in_reward") and not flat.get(f"{ACTOR}.use_kl_loss"):
        known["kl"] = flat.get("algorithm.kl_ctrl.kl_coef", known.get("kl"))
    return known | {
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": estimator in GROUPED,
        "critic_warmup": flat.get("trainer.critic_warmup") or 0,
    }


def our_settings(config: dict, is_page: bool = False) -> tuple[str, dict]:
    """(trainer, what the causes want to know) of a config.json or a page's settings.json; "" where it does not say."""
    known = common_settings(config) | {"fp16": config.get("precision") == "fp16"}
    if not known.get("lr"):  # 0 stands for a default by size
        known.pop("lr", None)
    known |= {"critic_warmup": config.get("critic_warmup_steps", 0), "value_clip": config.get("value_clip", 0)}
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        return "grpo_train", known | {"updates": 1 if one else None, "grouped": True}
    if is_page or "ppo_epochs" in config:
        known["updates"] = math.prod(config.get(name) or 1 for name in REPEATS)
    if is_page:
        return "one_page", known | {"grouped": "group_size" in config}
    if "ppo_epochs" not in config:
        return "", known
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", known | {
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def settings_beside(folder: Path) -> tuple[Path, dict] | None:
    """The file of settings in a run's folder, and what it has; the one with most that is known."""
    found = []
    for pattern in ("*.json", "*.yaml", "*.yml", ".hydra/*.yaml", "*.py", "*.sh", "*.txt", "command*"):
        for path in sorted(folder.glob(pattern)):
            flat = read_settings(path) if path.is_file() and path.stem not in NO_SETTINGS else {}
            found.append((len(common_settings(flat)), path, flat))
    best = max(found, key=lambda entry: entry[0], default=(0, folder, {}))
    return (best[1], best[2]) if best[0] >= 3 else None


def add_settings(run: LoggedRun, folder: Path | None, given: str) -> None:
    """Give a run what --settings names, or else what lies beside a log whose settings are not known yet."""
    path, flat = Path(given), {}
    if given:
        need(path.exists(), f"got --settings {given}, which does not exist; expected a file")
        flat = read_settings(path)
        need(
            common_settings(flat),
            f"got --settings {given} without a setting that is known; expected YAML, JSON, a shell script or a Python "
            "script with names such as temperature, learning_rate, num_generations",
        )
    elif folder and not (run.settings.get("lr") or run.config.get("lr") is not None):
        path, flat = next(filter(None, map(settings_beside, (folder, folder.parent))), (path, flat))
    if flat:
        is_verl = any(key.startswith(("actor_rollout_ref.", "data.")) for key in flat)
        known = verl_settings(flat) if is_verl else common_settings(flat)
        run.settings |= {name: value for name, value in known.items() if value is not None}
        run.config = flat | run.config
        run.settings_file = path.name
        if run.trainer == "trl" and "num_generations" in flat:
            run.settings.setdefault("grouped", True)


# -------------------------------------------------------------------- sample texts (src/parts/reading/sample_texts.py)

GOLD_NAMES = (
    *("gold", "answer", "ground truth", "ground_truth", "solution", "target", "label", "reference_answer"),
    *("final_answer", "reference", "expected", "gts", "response", "output"),
)
# how completions mark an answer: the mark's name, or its tag in group 1, and the answer in the last group
MARKED = re.compile(
    r"<(\w+)>([^<>]*)</\1>|\\(boxed)\s*\{((?:[^{}]|\{[^{}]*\})*)\}|(####)\s*([^\n]*)"
    r"|(?i:\b(answer(?: is|[:=]))\s*)([^\n]*)"
)
IN_SOURCE = re.compile(r"<\\?/?(\w+)>|(boxed)|(####)|(?i:\b(answer(?: is|:)))")  # what a reward's source has of it
COMPLETIONS = {"completions", "completion", "solution_str", "response", "responses"}  # what rewards call them
MARK_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.")
NUMBER = re.compile(r"(?<![\w.])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w])")


@dataclass(frozen=True)
class Text:
    """One logged completion; `right` is None where the gold answer is not known."""

    id: str
    step: int
    kind: str
    prompt: str
    completion: str
    score: float | None
    gold: str | None = None
    right: bool | None = None
    finished: bool | None = None
    parts: dict = field(default_factory=dict)
    unscored: bool = False  # every reward gave None


def plain_text(value) -> str:
    """A text, or the last message's content of messages."""
    if isinstance(value, list) and value:
        last = value[-1]
        value = last.get("content") if isinstance(last, dict) else last
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def simplest(answer: str) -> str:
    """An answer without marks, signs of money, separators of thousands and a final point."""
    answer = answer.strip().strip("$ *`").rstrip(".").replace("−", "-")
    bare = re.sub(r"[,\s$]", "", answer)
    if re.fullmatch(r"-?\d+(\.\d+)?", bare):
        return f"{float(bare):.10g}" if "." in bare else str(int(bare)) if len(bare) < 400 else bare
    return answer.casefold()


def gold_of(row: dict) -> str | None:
    """The gold answer of a row, by its columns' names; worked solutions give what they mark."""
    columns = {str(key).casefold(): value for key, value in row.items()}
    columns |= {str(key).casefold(): value for key, value in (row.get("columns") or {}).items()}
    if isinstance(columns.get("reward_model"), dict):
        columns |= columns["reward_model"]
    for name in GOLD_NAMES:
        value = columns.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).strip():
            marked = marked_answers(str(value))
            gold = simplest(marked[-1][1] if marked else str(value))
            numbers = NUMBER.findall(gold)
            # a number with its unit is the number
            return simplest(numbers[0]) if len(numbers) == 1 and len(gold.split()) <= 3 else gold
    return None


def marked_answers(text: str) -> list[tuple[str, str]]:
    """(mark, answer) of every marked answer of a text; a tag's mark is its name."""
    found = [[part for part in groups if part] for groups in MARKED.findall(text)]
    return [(parts[0].casefold(), parts[1].strip()) for parts in found if len(parts) == 2]


def stated_answer(text: str, numeric: bool) -> str:
    """The answer that a completion states last: marked, else the last number or the last line."""
    marked = [answer for mark, answer in marked_answers(text) if mark not in ("think", "reasoning")]
    last = marked[-1] if marked else text.strip().rpartition("\n")[2]
    numbers = NUMBER.findall(last if marked else text) if numeric else []
    return simplest(numbers[-1] if numbers else last)


def holds(text: str, gold: str) -> bool:
    """Whether a gold answer stands anywhere in a text, as a word or number of its own."""
    if re.fullmatch(r"-?\d[\d.]*", gold):
        return any(simplest(number) == gold for number in NUMBER.findall(text)) or gold in {
            simplest(part) for part in re.findall(r"-?\d+", text)
        }
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text.casefold()) is not None


def sample_texts(samples: list[dict], golds: dict[str, str]) -> list[Text]:
    """The samples that have a completion, in the order of the log; `golds` are those of the data by prompt."""
    texts = []
    for i, row in enumerate(samples):
        if not isinstance(row.get("completion"), (str, list)):
            continue
        completion, prompt = plain_text(row["completion"]), plain_text(row.get("prompt"))
        gold = gold_of({k: v for k, v in row.items() if k not in ("prompt", "completion")}) or golds.get(prompt)
        right = None if gold is None else stated_answer(completion, bool(NUMBER.fullmatch(gold))) == gold
        score, rewards = row.get("score"), row.get("rewards")
        score = float(score) if is_real(score) else None
        parts = {k: float(v) for k, v in rewards.items() if is_real(v)} if isinstance(rewards, dict) else {}
        step = int(row["step"]) if is_real(row.get("step")) else 0
        finished = row.get("finished") if isinstance(row.get("finished"), bool) else None
        kind = str(row.get("kind", "train"))
        none = isinstance(rewards, dict) and bool(rewards) and all(v is None for v in rewards.values())
        texts.append(Text(f"{step}.{i}", step, kind, prompt, completion, score, gold, right, finished, parts, none))
    return texts


def grouped(texts: list[Text], key: Callable) -> list[list[Text]]:
    """Texts of the same key, in the order of the log."""
    groups: dict = {}
    for text in texts:
        groups.setdefault(key(text), []).append(text)
    return list(groups.values())


def is_real(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def source_marks(source: str) -> set[str]:
    """The marks that a reward's source, or a prompt, names."""
    return {part.casefold() for groups in IN_SOURCE.findall(source) for part in groups if part}


def asked_marks(texts: list[Text]) -> set[str]:
    """The marks that most prompts ask for."""
    counts = Counter(mark for text in texts for mark in source_marks(text.prompt))
    return {mark for mark, count in counts.items() if count * 2 > len(texts)}


def correct_pay(text: Text) -> float | None:
    """What the part that stands for correctness paid; the score where there is one part or none."""
    if len(text.parts) < 2:
        return text.score
    named = [value for name, value in text.parts.items() if names_correctness(name)]
    return named[0] if named else next(iter(text.parts.values()))


FEATURES = {  # what a reward may pay in place of the answer: how much of it a completion has
    "length": len,
    "tags": lambda text: len(re.findall(r"</?\w+>", text)),
    "digits": lambda text: sum(map(str.isdigit, text)),
    "repetition": repeats,
    "answers tried": lambda text: len(marked_answers(text)),
    "text after the answer": lambda text: len(re.split(r"</answer>|\\boxed\{[^{}]*\}|####\s*\S+", text)[-1].strip()),
}


def payment_by_feature(texts: list[Text]) -> dict[str, float]:
    """Pearson's correlation of score and each feature among completions that are equally right; 0 without a spread."""
    scored = [t for t in texts if t.score is not None]

    def within(values: list[float]) -> list[float]:
        """Values less the mean of those that are equally right."""
        by_class = {right: [v for v, t in zip(values, scored, strict=True) if t.right is right] for right in classes}
        return [v - statistics.fmean(by_class[t.right]) for v, t in zip(values, scored, strict=True)]

    classes, paid = {t.right for t in scored}, {}
    scores = within([t.score for t in scored])
    for name, measure in FEATURES.items():
        amounts = within([float(measure(t.completion)) for t in scored])
        varied = len(scored) > 2 and max(amounts) > min(amounts) and max(scores) > min(scores)
        paid[name] = statistics.correlation(amounts, scores) if varied else 0.0
    return paid


def early_texts(texts: list[Text]) -> list[Text]:
    """The samples of the run's first third, before the policy has drifted, where these are 24 and more; else all."""
    steps = sorted({t.step for t in texts})
    early = [t for t in texts if t.step <= steps[len(steps) // 3]] if steps else []
    return early if len(early) >= 24 else texts


def scores_by_answer(texts: list[Text]) -> tuple[list[float], list[float]]:
    """What the part for correctness paid right completions, and wrong ones, where the gold answer is known."""
    paid = [(t.right, correct_pay(t)) for t in texts if t.right is not None]
    return tuple([pay for right, pay in paid if right is kind and pay is not None] for kind in (True, False))


def right_gain(texts: list[Text]) -> tuple[float, float, float] | None:
    """Gain of the share of right completions with its 95 % interval: held out, else of the first and last third."""
    held_out = [t for t in texts if t.kind == "eval" and t.right is not None]
    known = (
        held_out
        if len({t.step for t in held_out}) > 1
        else [t for t in texts if t.kind == "train" and t.right is not None]
    )
    steps = sorted({t.step for t in known})
    third = 1 if known is held_out else max(1, len(steps) // 3)
    shares = [[t.right for t in known if t.step in part] for part in (steps[:third], steps[-third:])]
    if len(steps) < 2 or min(map(len, shares)) < 8:
        return None
    return share_gain(*((sum(share) / len(share), len(share)) for share in shares))


# -------------------------------------------------------------------- sample files (src/parts/reading/sample_files.py)

HELD_OUT_FOLDER = re.compile(r"val|eval|held|test", re.IGNORECASE)
VERL_KEYS = ("input", "output", "score", "step")  # of every line of a dump; the rest is what its reward returned
TRL_KEYS = ("step", "prompt", "completion", "advantage")  # the rest are reward functions, and what these have logged
SAMPLE_NAMES = {  # of samples.jsonl: what others call it
    "completion": ("completion", "completions", "response", "output", "generation", "generated_text", "text"),
    "prompt": ("prompt", "prompts", "question", "input", "problem", "query"),
    "score": ("score", "reward", "rewards", "total_reward", "return"),
    "step": ("step", "global_step", "train_step"),
}


def json_lines(path: Path) -> tuple[list[dict], list[int]]:
    """The objects of a JSONL file, and the numbers of its lines that are none."""
    rows, bad = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line.decode("utf-8", errors="replace")) if line.strip() else None
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                rows.append({sys.intern(key): value for key, value in row.items()})
            elif line.strip():
                bad.append(number)
    return rows, bad


def samples_beside(path: Path, run: LoggedRun) -> list[dict]:
    """The rows of samples.jsonl beside a log; what cannot be read is remarked."""
    other = path.with_name("samples.jsonl")
    rows, bad = json_lines(other) if other.is_file() else ([], [])
    if bad and rows:
        run.remarks.append(f"samples.jsonl beside it: {len(bad)} lines are no JSON (line {bad[0]}); left out")
    elif other.is_file() and not rows:
        run.remarks.append("samples.jsonl beside it could not be read")
    return rows


def verl_row(row: dict, kind: str) -> dict:
    """A line of verl's dump under the names of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    rewards = {key: value for key, value in parts.items() if type(value) in (int, float)}
    sample = {"step": row["step"], "kind": kind, "prompt": row["input"], "completion": row["output"]}
    sample |= {"score": row["score"], "rewards": rewards}
    sample |= {key: value for key, value in parts.items() if key not in rewards and key not in sample}
    return sample | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows of the dumps STEP.jsonl in the folders that settings name, or else in those beside the log."""
    named = (("trainer.rollout_data_dir", "train"), ("trainer.validation_data_dir", "eval"))
    places = [(run.config.get(key), kind) for key, kind in named]
    folders = [(Path(place), kind) for place, kind in places if place and Path(place).is_dir()]
    if not folders:
        others = sorted(path for path in folder.iterdir() if path.is_dir())
        folders = [(path, "eval" if HELD_OUT_FOLDER.search(path.name) else "train") for path in others]
    files = [(path, kind) for place, kind in folders for path in place.glob("*.jsonl") if path.stem.isdecimal()]
    samples, bad = [], 0
    for path, kind in sorted(files, key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0]))):
        rows, torn = json_lines(path)
        whole = [row for row in rows if {*VERL_KEYS} <= row.keys()]
        samples += [verl_row(row, kind) for row in whole]
        bad += len(torn) + len(rows) - len(whole)
    if bad:
        run.remarks.append(f"verl's dumps of samples: {bad} lines are no samples; left out")
    return samples


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
    rewards = {key: value for key, value in parts.items() if value is None or type(value) in (int, float)}
    applies = {key: x for key, x in rewards.items() if x is not None and math.isfinite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    sample = {"step": row["step"], "kind": "train", "prompt": row["prompt"], "completion": text, "score": score}
    sample |= {"rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        sample["messages"] = [*prompt, *turns]
    return sample | {key: value for key, value in parts.items() if key not in rewards and key not in sample}


def reward_weights(run: LoggedRun) -> dict[str, float] | None:
    """The settings' weights of TRL's rewards, else 1 each; None where the log's means do not sum to its score so."""
    means = {m[1]: key for key in run.columns if (m := re.fullmatch(r"rewards/(.+)/mean", key))}
    given = run.config.get("reward_weights")
    weights = given if isinstance(given, list) and len(given) == len(means) else [1.0] * len(means)
    totals = run.columns.get("reward", {})
    for step in totals if means else ():
        parts = [run.columns[key].get(step, math.nan) for key in means.values()]
        total = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        if abs(total - totals[step]) > 1e-3 * max(1.0, abs(totals[step])):
            return None
    return dict(zip(means, weights, strict=True)) if means and totals else None


def trl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows that TRL's log_completions=True leaves in the folder completions/."""
    files = sorted((folder / "completions").glob("completions_*.parquet"))
    if not files:
        return []
    import pyarrow
    from pyarrow import parquet

    rows, bad, weights = [], [], reward_weights(run)
    for path in files:
        try:
            rows += [trl_row(row, weights) for row in parquet.read_table(path).to_pylist()]
        except (pyarrow.ArrowException, OSError, KeyError, TypeError) as error:
            bad.append(f"{path.name} ({type(error).__name__})")
    if bad:
        run.remarks.append(f"completions/ has files that could not be read: {', '.join(bad[:3])}; left out")
    if rows and weights is None and any(len(row["rewards"]) > 1 for row in rows):
        run.remarks.append(
            "the settings do not tell the weights of the rewards: samples have no score; try --settings FILE"
        )
    return rows


def rows_of_samples(path: Path) -> list[dict]:
    """The rows of a JSONL, JSON, CSV or parquet file, under the names of samples.jsonl; UserError without rows."""
    rows, problem = [], "which has no rows"
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = parquet.read_table(path).to_pylist()
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                rows = [{key: number_or_text(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
        elif path.read_bytes()[:1] == b"[":
            rows = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        else:
            rows, bad = json_lines(path)
            problem, rows = (f"whose line {bad[0]} is no JSON", []) if bad else (problem, rows)
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"got {path}, {problem}; expected JSONL, JSON, CSV or parquet with rows")
    return [verl_row(row, "train") if {*VERL_KEYS} <= row.keys() else renamed_row(row) for row in rows]


def renamed_row(row: dict) -> dict:
    """A row of anyone's samples under the names of samples.jsonl, as far as it has them."""
    known = {name: next((key for key in names if key in row), None) for name, names in SAMPLE_NAMES.items()}
    taken = {name: row[key] for name, key in known.items() if key is not None}
    if isinstance(taken.get("score"), dict):
        taken["rewards"] = taken.pop("score")
    return {k: v for k, v in row.items() if k not in known.values()} | taken


# ---------------------------------------------------------------------- log reading (src/parts/reading/log_reading.py)

TRL_STATE = re.compile(rb'"(max_steps|num_train_epochs|train_batch_size|logging_steps|eval_steps)": ([\d.]+)')
KEPT = ("step", "length", "truncated", "zero_std", "kl", "entropy", "loss", "clip_frac", "lr", "grad_norm")
# what --columns calls a figure, and its common name
FIGURES = {"reward": "score", "reward_std": "score_std", "accuracy": "held_out"} | {name: name for name in KEPT}
STEP_NAMES = ("step", "steps", "iter", "iteration", "global_step", "_step")
COLOUR, NUMPY = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"\bnp\.\w+\(|\)")
PAIR = re.compile(r"([A-Za-z_][\w/.@-]*)['\"]?\s*[=:]\s*(?=[-+.\d]|nan|inf)([-+\w.]+)", re.IGNORECASE)
ODD = re.compile(r"(?<=: )(-?inf|nan|None|True|False)(?=[,}])")  # what is no JSON in a printed dict
CELL = re.compile(r"[-+]?[.\d]+(e[-+]?\d+)?")
MOST_STEPS, FIRST_STEPS = 5000, 100  # of a figure that are kept at least, and of those that no thinning touches


def as_number(value) -> float | None:
    """A float from a JSON or console value; None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number."""
    number = as_number(value)
    return number is not None and math.isfinite(number)


def short_name(name: str) -> str:
    """A column's name without the run before it, as wandb writes it: "run - train/reward", whose step is "Step"."""
    name = name.strip().rpartition(" - ")[2]
    return "step" if name.lower() in STEP_NAMES else name


def common_name(key: str, dialect: str) -> str | None:
    """The common name of a framework's metric; trackers call TRL's train/NAME and eval/NAME."""
    names = NAMES[dialect]
    key = re.sub("^eval/", "eval_", key.removeprefix("train/")) if dialect == "trl" else key
    if key in names:
        return names[key]
    if re.fullmatch(HELD_OUT[dialect], key):
        return "held_out"
    for prefix, pattern in (("part", PARTS[dialect]), ("held_out_part", HELD_OUT_PARTS[dialect])):
        if match := re.fullmatch(pattern, key):
            return f"{prefix}:{match[1]}"
    return None


class Table:
    """The figures of a log's rows, as {name: {step: value}}: of a step that comes again the later value.

    Of a figure with more than 2 x MOST_STEPS steps every second one behind the first is dropped, so memory stays flat.
    """

    def __init__(self, columns: dict[str, str]):
        self.columns, self.bad, self.restarts = {}, [], []
        self.rows = self.nested = self.step = self.before = 0
        step_name = columns.get("step", "step")
        self.step_names = (step_name, short_name(step_name), "train/global_step", "global_step/max_steps")
        self.trains = {short_name(column): True for column in columns.values()}  # whether a name is of training

    def add(self, row: dict) -> None:
        """Take in a row; one without a step is the next one if it is of training."""
        if isinstance(row.get("data"), dict):  # verl's file logger
            row, self.nested = {"step": row.get("step"), **row["data"]}, self.nested + 1
        self.rows += 1
        step = self.step = self.step_of(row)
        if len(row) > 2:
            if 0 < step < self.before:
                self.restarts.append(step)
            self.before = step
        for key, value in policy_only(row).items():
            if type(value) is not float:
                value = as_number(value)
                if value is None:
                    continue
            if not math.isfinite(value):
                self.bad.append((key, step, value))
                continue
            points = self.columns.get(key)
            if points is None:
                points = self.columns[key] = {}
            points[step] = value
            if len(points) > 2 * MOST_STEPS:
                kept = list(points.items())
                self.columns[key] = dict(kept[:FIRST_STEPS] + kept[FIRST_STEPS::2])

    def step_of(self, row: dict) -> int:
        """The step that a row names, or that of its place."""
        for name in self.step_names:
            value = row.get(name)
            number = as_number(value.partition("/")[0] if isinstance(value, str) else value)  # ms-swift's "5/150"
            if number is not None and math.isfinite(number):
                return int(number)
        for key in row.keys() - self.trains.keys():
            self.trains[key] = not (common_name(key, "trl") or "held_out").startswith("held_out")
        return self.step + any(map(self.trains.get, row))


def policy_only(row: dict) -> dict:
    """A row without the loss of a distillation, which is a divergence, and without a page's updates of its critic."""
    if "kl/teacher" in row and is_finite(row.get("policy/loss")):
        row = {key: value for key, value in row.items() if key != "policy/loss"}
    if row.get("optim/grad_norm") == 0 and "value/loss" in row and "optim/lr" not in row:
        aside = ("kl/approx", "optim/grad_norm")
        row = {key: value for key, value in row.items() if not key.startswith("policy/") and key not in aside}
    return row


class Reader:
    """Takes the lines of a log and keeps what each dialect has in them."""

    def __init__(self, columns: dict[str, str]):
        self.json, self.console, self.plain = (Table(columns) for _ in range(3))
        self.number = self.lines = self.bad = self.first_bad = 0  # lines, not empty ones, those not JSON, their first
        self.printed, self.config = [], {}  # verl's settings, over many lines

    def take(self, line: str) -> None:
        """Take in a line."""
        self.number += 1
        if not line.strip():
            return
        self.lines += 1
        if line.lstrip()[0] == "{":
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                return self.json.add(row)
        self.bad += 1
        self.first_bad = self.first_bad or self.number
        self.take_config(line)
        if "step:" in line and (match := re.search(r"\bstep:(\d+) - (.+)", COLOUR.sub("", line))):
            pairs = [part.rpartition(":") for part in NUMPY.sub("", match[2]).strip().split(" - ")]
            return self.console.add({"step": match[1], **{key: value for key, _, value in pairs if key}})
        for row in console_dicts(line) if "{'" in line else ():
            self.console.add(row)
        if not self.console.rows:
            pairs = {short_name(name): value for name, value in PAIR.findall(line)}
            if len(pairs) > 1:
                self.plain.add(pairs)

    def take_config(self, line: str) -> None:
        """Keep a line of the settings that verl prints, and read them once they are whole."""
        begun = self.printed or "{'actor_rollout_ref': " in line
        if begun and not self.config and len(self.printed) < MOST_STEPS:
            self.printed.append(line)
            self.config = printed_config(self.printed) if line.rstrip().endswith("}}") else {}

    def run(self, path: Path, columns: dict[str, str], whole: bool) -> LoggedRun:
        """The run in the kind of line that says most; `whole`: the last line is complete."""
        text = self.console if self.console.rows else self.plain
        table = self.json if self.json.rows * 2 >= self.lines or not text.rows else text
        need(
            table.rows,
            f"got {path}, in none of the formats; expected metrics.jsonl, trainer_state.json, TRL's or verl's console "
            "output, verl's file log, a CSV file, or lines of name=value; try the run's folder",
        )
        run = run_of_rows(path, table, columns, "console" if table is self.console else "log entries")
        if table is self.json and self.bad:
            torn = self.bad == 1 and (self.first_bad == self.lines or not whole)
            flaw = "the last line is torn" if torn else f"{self.bad} of {self.lines} lines are no JSON"
            run.remarks.append(f"{flaw} (line {self.first_bad}); left out")
        if run.trainer == "verl":
            run.config, run.settings = self.config, run.settings | verl_settings(self.config)
        elif table is self.console:
            run.remarks.append("the console shows no steps: they are counted entries")
        return run


def console_dicts(line: str) -> Iterator[dict]:
    """The flat dicts that transformers' Trainer prints, {'loss': …}, wherever they stand in a line."""
    for text in re.findall(r"\{'[^{}\n]*\}", line):
        if ODD.search(text):
            text = ODD.sub(r'"\1"', text)
        try:
            row = json.loads(text.replace("'", '"'))
        except (ValueError, RecursionError):
            continue
        if NAMES["trl"].keys() & row.keys() or any(key.startswith("eval_") for key in row):
            yield row


def state_rows(text: mmap.mmap) -> Iterator[dict]:
    """The entries of a trainer_state.json's log_history, which are flat objects, one at a time."""
    for match in re.finditer(rb"\{[^{}]*\}", text):
        with contextlib.suppress(ValueError):
            row = json.loads(match[0])
            if "step" in row:
                yield row


def csv_separator(head: str) -> str:
    """What separates the cells of a CSV file (wandb's export is one) or of a pasted table; "" for other text."""
    header, _, rest = head.lstrip("\ufeff\n ").partition("\n")
    separator = max((",", ";", "\t", "|", "  "), key=header.strip().count)
    rows = [line.strip().split(separator) for line in rest.splitlines()[:9] if line.strip()]
    other = separator not in header or header[0] in "{[" or PAIR.search(header)
    return separator if not other and any(CELL.fullmatch(cell.strip(' "')) for row in rows for cell in row) else ""


def head_of(path: Path) -> str:
    """The start of a log; a binary or empty file is refused."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise UserError(f"got {path} ({error.strerror}); expected a log file or a run folder") from None
    need(head.strip(), f"got {path}, which is empty; expected a log with at least one step")
    text = head.decode("utf-8", errors="replace")
    odd = text.count("\0") + text.count("\ufffd")
    need(odd * 50 < len(text), f"got {path}, which is binary; expected metrics.jsonl, trainer_state.json, a log")
    return text


def read_log(paths: list[Path], columns: dict[str, str]) -> LoggedRun:
    """Read the logs of a run's starts, one after the other; `columns` are names of FIGURES in them."""
    head, path = head_of(paths[0]), paths[0]
    table, separator = Table(columns), csv_separator(head)
    if head.lstrip().startswith("{") and '"log_history"' in head:
        return read_state(path, table, columns)
    if separator:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = (re.sub(" {2,}", "\t", line.strip()) for line in file) if separator == "  " else file
            for row in csv.DictReader(lines, delimiter=separator.replace("  ", "\t")):
                table.add({short_name(name): cell for name, cell in row.items() if name})
        return run_of_rows(path, table, columns)
    reader, line = Reader(columns), "\n"
    for start in paths:
        with start.open(encoding="utf-8", errors="replace") as file:  # a progress bar's "\r" ends a line too
            for line in file:
                reader.take(line)
    return reader.run(path, columns, line.endswith("\n"))


def read_state(path: Path, table: Table, columns: dict[str, str]) -> LoggedRun:
    """Read a trainer_state.json, whole or torn."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for row in state_rows(text):
            table.add(row)
        config = {name.decode(): float(value) for name, value in TRL_STATE.findall(text)}
    need(
        table.rows,
        f"got {path} without an entry in log_history; expected one with a step; try the run's console output",
    )
    run = run_of(path, "trainer_state.json", "trl", table, columns)
    run.config = config
    return run


def run_of_rows(path: Path, table: Table, columns: dict[str, str], kind: str = "log entries") -> LoggedRun:
    """A run from rows: our metrics.jsonl, verl's or TRL's entries, or others' with named columns."""
    keys = table.columns.keys() | {key for key, _, _ in table.bad}
    verl = table.nested or len(keys & NAMES["verl"].keys()) >= max(1, len(keys & NAMES["trl"].keys()))
    if columns or not (verl or keys & OURS.keys()):
        return run_of(path, "named columns" if columns else kind, "trl", table, columns)
    if table.nested or not keys & OURS.keys():
        return run_of(path, f"verl {kind}", "verl", table, columns)
    trainer = "grpo_train" if "time/step" in keys else "ppo_train"
    trainer = trainer if "optim/lr" in keys else "one_page"  # whose rates never change
    return run_of(path, "metrics.jsonl", trainer, table, columns)


def run_of(path: Path | str, kind: str, trainer: str, table: Table, columns: dict[str, str]) -> LoggedRun:
    """A run with a table's figures under common names; those of --columns come before the log's own names."""
    run = LoggedRun(str(path), kind, trainer, table.columns, table.bad)
    run.settings["restarts"] = sorted({*table.restarts})
    if any(len(points) > MOST_STEPS for points in table.columns.values()):
        run.remarks.append(f"the log is long: of its {table.rows} entries every so many are judged, the first all")
    given = {figure: short_name(column) for figure, column in columns.items()}
    for figure, column in given.items():
        near = difflib.get_close_matches(column, run.columns, n=1)
        need(
            column in run.columns,
            f"got --columns {figure}={column}, which {path} does not have; expected one of its columns: "
            f"{', '.join(sorted(run.columns)[:20])}" + (f"; try {figure}={near[0]}" if near else ""),
        )
    names = {column: FIGURES[figure] for figure, column in given.items() if figure != "step"}
    places = {name: place for place, name in enumerate(NAMES[run.dialect])}
    held_out: dict[int, list[float]] = {}
    for key in sorted(run.columns, key=lambda key: places.get(key.removeprefix("train/"), len(places))):
        name = names.get(key) or common_name(key, run.dialect)
        if key not in names and name in names.values():
            continue
        if name == "held_out" and run.dialect == "verl":  # one key per data source: their mean
            for step, value in run.columns[key].items():
                held_out.setdefault(step, []).append(value)
            run.names.setdefault(name, key)
        elif name and run.columns[key]:  # of several names for one the first counts
            run.names.setdefault(name, key)
            run.series[name] = run.columns[key] | run.series.get(name, {})
    if held_out:
        run.series["held_out"] = {step: sum(values) / len(values) for step, values in held_out.items()}
    return run


def drop_padded(run: LoggedRun) -> None:
    """Leave out verl's clip_ratio where the limit was not reached: its V1 trainer pads to the longest of the batch."""
    longest = run.series.get("length_max", {})
    limit = run.settings.get("max_length")
    if not limit and longest:  # a length that half the steps reach and none exceeds is taken for the limit
        top = max(longest.values())
        limit = top if sum(value == top for value in longest.values()) * 2 >= max(len(longest), 4) else math.inf
    for step, value in longest.items():
        if limit and value < limit and step in run.series.get("truncated", {}):
            run.series["truncated"][step] = 0.0


# ------------------------------------------------------------------------ run folder (src/parts/reading/run_folder.py)

# series that training of any kind has, without one that only RL has
OTHER_TRAINING = {"loss", "lr", "grad_norm", "entropy", "memory", "gpu_memory", "time_step"}


def log_of_folder(folder: Path) -> Path:
    """The log inside a run's folder."""
    for name in ("metrics.jsonl", "trainer_state.json"):
        if (folder / name).exists():
            return folder / name
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda p: p.stat().st_mtime)
    others = sorted([*folder.glob("*.jsonl"), *folder.glob("*.log")])
    runs = sorted({p.parent for name in ("metrics.jsonl", "trainer_state.json") for p in folder.glob(f"*/{name}")})
    need(
        states or others or not runs,
        f"got {folder}, which holds {len(runs)} runs; expected one; try diagnose.py {' '.join(map(str, runs[:3]))}",
    )
    need(
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
    later = sorted(int(number[1]) for number in numbers if number)
    starts = [path, *(path.with_name(f"metrics.{n}.jsonl") for n in later)]
    return [start for start in starts if start.stat().st_size] or [path]


def json_beside(folder: Path, name: str, remarks: list[str] | None = None) -> dict:
    """A JSON object in a run's folder; {} where there is none, with a remark where it cannot be read."""
    try:
        return dict(json.loads((folder / name).read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, TypeError, RecursionError):
        if remarks is not None and (folder / name).exists():
            remarks.append(f"{name} beside it could not be read")
        return {}


def add_own_settings(run: LoggedRun, path: Path) -> None:
    """Give a run the settings that its trainer wrote beside its log."""
    console = path.with_name("verl.log")
    if run.trainer == "verl" and not run.config and console.is_file():  # verl_train.py's, beside verl's file log
        reader = Reader({})
        for line in console.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            reader.take_config(line)
        run.config, run.settings = reader.config, run.settings | verl_settings(reader.config)
    if run.format != "metrics.jsonl":
        return
    is_page = run.trainer == "one_page" and path.with_name("settings.json").exists()
    run.config = json_beside(path.parent, "settings.json" if is_page else "config.json", run.remarks)
    if run.config:
        trainer, known = our_settings(run.config, is_page)
        run.trainer, run.settings = trainer or run.trainer, run.settings | known


def add_samples(run: LoggedRun, path: Path, folder: Path, given: str) -> None:
    """Give a run its samples: those that are named, or those beside its log."""
    if given:
        run.samples = rows_of_samples(Path(given))
    elif run.trainer in ("trl", "verl"):
        run.samples = (trl_samples if run.trainer == "trl" else verl_samples)(folder, run)
    run.samples = run.samples or samples_beside(path, run)


def load_run(
    source: str,
    columns: dict[str, str] | None = None,
    settings: str = "",
    samples: str = "",
    data: str = "",
    reward: str = "",
    group_size: int = 0,
) -> LoggedRun:
    """Read a run from a file or folder, with its settings and samples; `settings`, `samples`, … name other files.

    Raises UserError if it is no log of RL, or a named file is not of its kind.
    """
    path, later = Path(source), []
    if path.is_dir():
        path, *later = starts_of(log_of_folder(path))
    run = read_log([path, *later], columns or {})
    if later:
        run.remarks.append(f"{1 + len(later)} starts, to {later[-1].name}: steps run again count as run last")
    add_own_settings(run, path)
    folder = path.parent.parent if re.fullmatch(r"checkpoint-\d+", path.parent.name) else path.parent
    add_settings(run, folder if Path(source).is_dir() else None, settings)
    if group_size:
        run.settings["group_size"] = group_size
    if run.trainer == "verl":
        drop_padded(run)
    known = ", ".join(run.columns)
    need(
        run.bad or (run.steps() and not OTHER_TRAINING.issuperset(run.series)),
        f"got {path} ({run.format}) with {known[:200] or 'no figures'} and none that only RL has: it may be a log of "
        f"another kind of training, such as SFT; expected names such as {', '.join(list(NAMES[run.dialect])[:3])}; try "
        "diagnose.py --columns reward=NAME where a column is the score",
    )
    for flag, file in (("data", data), ("reward", reward.rpartition(":")[0] or reward)):
        need(not file or Path(file).is_file(), f"got --{flag} {file}, which does not exist; expected a file")
    add_samples(run, path, folder, samples)
    add_texts(run, data, folder)
    need(
        run.texts or not samples,
        f"got --samples {samples} with {', '.join(map(str, [*(run.samples or [{}])[0]][:8]))}; expected prompt, "
        "completion and score; try other names for its columns",
    )
    run.reward_source = source_of_reward(reward, run, folder)
    return run


def add_texts(run: LoggedRun, data: str, folder: Path) -> None:
    """Give a run its samples as causes read them, with gold answers of its data and of data files beside the log."""
    rows = data_rows(data or str(run.settings.get("data") or ""), folder)
    others = data_rows(str(run.settings.get("eval_data") or ""), folder)
    if run.samples and not rows:
        beside = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.jsonl"))]
        named = [path for path in beside if re.search("train|data|eval|test", path.stem)][:6]
        rows = [row for path in named if "train" in path.stem for row in data_rows(str(path), folder)]
        others = [row for path in named if "train" not in path.stem for row in data_rows(str(path), folder)]
    golds = [{prompt: gold for prompt, row in part if (gold := gold_of(row)) is not None} for part in (others, rows)]
    run.golds, run.settings["rows"] = golds[1], len({prompt for prompt, _ in rows})
    run.texts = sample_texts(run.samples, golds[0] | golds[1])


def file_near(name: str, folder: Path) -> Path | None:
    """A file that settings name: where they say, or in the run's folder or the one above it."""
    paths = [Path(name), folder / name, folder / Path(name).name, folder.parent / Path(name).name] if name else []
    return next((path for path in paths if path.is_file()), None)


def data_rows(data: str, folder: Path) -> list[tuple[str, dict]]:
    """(prompt, row) of a data file; none where it cannot be read."""
    path = file_near(data, folder)
    rows = rows_of_samples(path) if path and path.suffix in (".jsonl", ".json", ".csv", ".parquet") else []
    return [(prompt, row) for row in rows if (prompt := plain_text(row.get("prompt")))]


def source_of_reward(spec: str, run: LoggedRun, folder: Path) -> str:
    """The code of the reward for correctness: of files that settings name, or of scripts beside the log."""
    named = spec or run.settings.get("reward") or []
    specs = [item for item in ([named] if isinstance(named, str) else named) if isinstance(item, str)]
    pairs = [item.partition("*")[0].rpartition(":")[::2] for item in specs]
    for file, name in sorted(pairs, key=lambda pair: not names_correctness(pair[1])):
        if (path := file_near(file, folder)) and path.suffix == ".py":
            return function_of(path, name)
    scripts = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.py"))[:20]]
    return next(filter(None, (function_of(path, " ".join(specs)) for path in scripts)), "")


def function_of(path: Path, words: str) -> str:
    """The code of a file's reward for correctness, named in some words or found by what it takes, and what it uses."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text)
        nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        named = [node.name for node in nodes if node.name in re.findall(r"\w+", words)]
        takes = [node.name for node in nodes if {argument.arg for argument in node.args.args} & COMPLETIONS]
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        chosen = named or [name for name in takes if name not in called]
        chosen.sort(key=lambda name: not names_correctness(name))
        return extract(text, chosen[:1]) if chosen else ""
    except (OSError, SyntaxError, ValueError, KeyError):
        return ""


# -------------------------------------------------------------------------- rescoring (src/parts/reading/rescoring.py)

TRIAL = '''\
def trial():
    """Call the reward named on standard input's first line as the JSON after it says; print its scores."""
    import inspect
    import json
    import sys

    given = json.load(sys.stdin)
    function, rows = globals()[given["function"]], given["rows"]
    names = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())

    def scores(rows):
        if "completions" in names:
            columns = {key: [row["columns"].get(key) for row in rows] for row in rows for key in row["columns"]}
            columns |= {"prompts": [row["prompt"] for row in rows], "completions": [row["completion"] for row in rows]}
            return function(**{key: value for key, value in columns.items() if takes_any or key in names})
        values = []
        for row in rows:
            gold = row["columns"].get("ground_truth", row["gold"])
            whole = row["columns"] | {"prompt": row["prompt"], "completion": row["text"], "solution_str": row["text"]}
            whole |= {"ground_truth": gold, "data_source": "", "extra_info": row["columns"]}
            value = function(**{key: value for key, value in whole.items() if takes_any or key in names})
            values.append(value["score"] if isinstance(value, dict) else value)
        return values

    calls = [rows, rows] if given["how"] == "twice" else [[row] for row in rows] if given["how"] == "alone" else [rows]
    found = [list(scores(call)) for call in calls]
    values = found[-1] if given["how"] != "alone" else [value for call in found for value in call]
    print("=" + " ".join("-" if value is None else f"{float(value):.4g}" for value in values) + "=")


trial()
'''
SANDBOX = BUNDLE / "scripts" / "sandbox.py"
TRIED = 12  # samples of a trial; the sandbox shows some 200 characters of what is printed
NONSENSE = "zxqv nothing of this kind"
NOT_COLUMNS = (
    *("step", "kind", "prompt", "completion", "score", "rewards", "finished", "advantage", "columns", "messages"),
    *("token_lengths", "logprobs", "advantages", "ended_by", "turn_rewards", "pieces"),
)


def reward_file(spec: str, run: LoggedRun, folder: Path) -> tuple[Path, str]:
    """File and function of the reward: as given, or the first one of the run's settings."""
    named = run.settings.get("reward") or []
    spec = spec or next(iter([named] if isinstance(named, str) else named), "")
    file, _, name = spec.partition("*")[0].rpartition(":")
    path = file_near(file, folder)
    need(path and name, f"got --rescore with the reward {spec!r}; expected its file; try --reward FILE.py:function")
    names = {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}
    known = ", ".join(sorted(names)) or "none"
    need(name in names, f"got --reward {spec}; expected a function of {path}: {known}")
    return path, name


def with_text(row: dict, text: str) -> dict:
    """A row whose completion is another text."""
    chat = isinstance(row["prompt"], list)
    return row | {"text": text, "completion": [{"role": "assistant", "content": text}] if chat else text}


def trial_rows(run: LoggedRun, columns: dict[str, dict]) -> list[dict]:
    """Logged samples of distinct prompts and texts, with their columns, as the trial wants them."""
    samples = [sample for sample in run.samples if isinstance(sample.get("completion"), (str, list))]
    rows = {}
    for text, sample in zip(run.texts, samples, strict=True):
        logged = {k: v for k, v in sample.items() if k not in NOT_COLUMNS} | (sample.get("columns") or {})
        row = {"prompt": sample.get("prompt"), "gold": text.gold, "columns": columns.get(text.prompt, {}) | logged}
        rows.setdefault((text.prompt, text.completion), with_text(row, text.completion))
    return list(rows.values())[:TRIED]


def sandbox_scores(code: str, trials: list[dict]) -> list[list[float | None]]:
    """The scores that each trial prints, run by scripts/sandbox.py."""
    need(SANDBOX.is_file(), f"got --rescore without {SANDBOX}, which confines the reward; expected it there")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        tests = [{"input": json.dumps(trial), "output": "?"} for trial in trials]
        file.write(json.dumps({"completion": code, "tests": tests}) + "\n")
        file.flush()
        command = [sys.executable, str(SANDBOX), "--data", file.name, "--timeout_s", "20", "--memory_mb", "2048"]
        done = subprocess.run(command, capture_output=True, text=True)
    try:
        results = json.loads(done.stdout)["results"]
    except (ValueError, KeyError):
        raise UserError(f"got --rescore, and the sandbox did not run: {done.stderr.strip()[-300:]}") from None
    scores = []
    for result in results:
        match = re.search(r"=([-\d.e+ naif]*)=", result["detail"])
        need(match, f"got --rescore, and the reward failed in the sandbox: {result['detail'][-300:]}")
        scores.append([None if word == "-" else float(word) for word in match[1].split()])
    return scores


def rescore(run: LoggedRun, spec: str, data: str) -> None:
    """Put what the trials say into `run.trials`; `spec` is FILE.py:function, or "" for that of the run's settings.

    Raises UserError without a reward or samples, or where the reward fails.
    """
    folder = Path(run.path).parent
    path, name = reward_file(spec, run, folder)
    rows = trial_rows(run, dict(data_rows(data or str(run.settings.get("data") or ""), folder)))
    need(rows, "got --rescore and no samples; expected samples.jsonl beside the log, or --samples FILE")
    code = path.read_text(encoding="utf-8").partition('if __name__ == "__main__"')[0] + TRIAL
    golds = [row for row in rows if row["gold"] is not None]
    trials = {how: {"how": how, "rows": rows} for how in ("logged", "twice", "alone")}
    trials["reversed"] = {"how": "logged", "rows": rows[::-1]}
    trials["nonsense"] = {"how": "logged", "rows": [with_text(row, NONSENSE) for row in rows]}
    for i, form in enumerate(MARK_FORMS if golds else ()):
        trials[f"gold {i}"] = {"how": "logged", "rows": [with_text(row, form.format(row["gold"])) for row in golds]}
    scores = sandbox_scores(code, [trial | {"function": name} for trial in trials.values()])
    run.reward_source = run.reward_source or path.read_text(encoding="utf-8")
    run.trials = conclusions(dict(zip(trials, scores, strict=True)))


def conclusions(scores: dict[str, list]) -> dict[str, str]:
    """{cause: what was seen}."""
    logged = scores["logged"]
    if logged != scores["twice"]:
        return {"noisy_reward": "the same samples scored differently when scored twice"}
    if logged != scores["alone"]:
        return {"gold_mismatch": "samples score differently alone and in a batch"}
    if logged != scores["reversed"][::-1]:
        return {"gold_mismatch": "samples score differently in another order of the batch"}
    forms = [values for how, values in scores.items() if how.startswith("gold")]
    paid = [[x for x in values if x is not None] for values in zip(*forms, strict=True)]
    gold = [max(values) for values in paid if values]  # in the form that pays most
    nonsense = [x for x in scores["nonsense"] if x is not None]
    everything = {*gold, *nonsense, *(x for x in logged if x is not None)}
    if not gold or not nonsense:
        return {}
    if len(everything) == 1:
        return {"constant_reward": f"gold answers, nonsense and logged samples all score {gold[0]:.4g}"}
    if max(gold) < min(nonsense):
        return {"inverted_reward": f"gold answers score at most {max(gold):.4g}, nonsense {min(nonsense):.4g}"}
    if abs(sum(gold) / len(gold) - sum(nonsense) / len(nonsense)) < 1e-9:
        return {"reward_ignores_answer": f"gold answers and nonsense both score {gold[0]:.4g} in the mean"}
    return {}


# --------------------------------------------------------------------------- cause (src/parts/reading/causes/cause.py)

CERTAIN, LIKELY = 0.9, 0.6  # strengths of evidence; below LIKELY a cause is named only beside another
# signs of a run that learns nothing, and of one that loses what it had
STILL = "flat_score constant_scores equal_groups zero_gradient held_out_flat critic_explains_little"
LOST = "score_fell clipped kl_high entropy_fell entropy_rose length_fell length_rose truncated repetition"
# causes that follow if nothing can be learned, and if something else is learned
FLAT = (
    f"{STILL} constant_reward nothing_moves no_group_variance too_sparse too_hard kl_holds_policy critic_useless "
    "part_bought"
)
FALSE = f"{FLAT} {LOST} updates_too_large memorised_prompts reward_ignores_answer too_easy"
TRY_REWARD = "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA"
TRY_MODEL = f"{TRY_REWARD} --model MODEL"


@dataclass(frozen=True)
class Fact:
    """One piece of evidence: what was seen, in which figure, at which step, in which samples."""

    text: str
    figure: str = ""
    step: int | None = None
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What speaks for a cause, and how strongly; `since` is the step from which the run is broken."""

    strength: float
    facts: list[Fact] = field(default_factory=list)
    since: int | None = None


@dataclass(frozen=True)
class Cause:
    """A root cause. `explains` has the names of signs, and of causes that follow from this one."""

    name: str
    says: str
    test: Callable[[LoggedRun], Evidence | None]
    explains: str
    change: str
    source: str
    decide_with: str = ""
    breaks: bool = False  # a run with it is broken, not only without a gain

    def evidence(self, run: LoggedRun) -> Evidence | None:
        """What --rescore saw of it, or else what its test sees."""
        if self.name in run.trials:
            return Evidence(CERTAIN + 0.09, [Fact(run.trials[self.name], "rescore")], since=1 if self.breaks else None)
        return self.test(run)


def cause(says: str, **more) -> Callable:
    """Make a Cause of a function that looks for its evidence; the function's name is the cause's."""
    return lambda test: Cause(test.__name__, says, test, **more)


def fact(run: LoggedRun, series: str, text: str, step: int | None = None) -> Fact:
    """A fact about a series under its name in the log; without a step, its last one."""
    return Fact(text, run.name(series), max(run.series.get(series, {}), default=None) if step is None else step)


def shown(texts, text: str) -> Fact:
    """A fact about samples, of which the first three are named."""
    return Fact(text, "samples", texts[0].step if texts else None, tuple(t.id for t in texts[:3]))


# --------------------------------------------------------------------------- signs (src/parts/reading/causes/signs.py)

# sign, series, share of the first stretch beyond which the last lies, least distance
MOVES = (
    ("length_rose", "length", 1.5, 0.0),
    ("length_fell", "length", 0.5, 0.0),
    ("entropy_fell", "entropy", 0.2, 0.01),
    ("entropy_rose", "entropy", 2.0, 0.2),
)
LEVELS = (  # sign, series, what its last stretch lies above, words
    ("equal_groups", "zero_std", 0.8 - 1e-9, "{:.0%} of the groups score all alike"),
    ("truncated", "truncated", 0.2 - 1e-9, "{:.0%} of the completions are cut"),
    ("kl_high", "kl", 0.3, "{name} is {:.3g} nats a token"),
    ("clipped", "clip_frac", 0.3, "{:.0%} of the tokens are clipped"),
    ("sampler_gap", "gap_mean", 0.049, "{name} is {:.3g}"),
    ("sampler_gap", "mismatch_kl", 0.01, "{name} is {:.3g}"),
)


def moves(run: LoggedRun) -> Iterator[tuple[str, Fact]]:
    """Length or entropy that moves far."""
    sharp = is_solved(run) or "kl/teacher" in run.columns
    for name, series, share, least in MOVES:
        values, way = run.values(series), 1 if share > 1 else -1
        if trend(values) != way or gained(run) or (name == "entropy_fell" and sharp):
            continue
        first, last = ends(values)
        if way * (last - share * first) > 0 and way * (last - first) > least:
            yield name, fact(run, series, f"{run.name(series)} went from {first:.4g} to {last:.4g}")


def levels(run: LoggedRun) -> Iterator[tuple[str, Fact]]:
    """Figures that lie where they should not."""
    for name, series, limit, words in LEVELS:
        late = run.last(series)
        fine = is_solved(run) if name == "equal_groups" else name == "kl_high" and gained(run)
        if late > limit and not fine:
            yield name, fact(run, series, words.format(late, name=run.name(series)))
    if run.last("explained_variance") < 0.03 and len(run.steps()) >= TREND_STEPS:
        text = f"the critic explains {run.last('explained_variance'):.2g} of the returns' variance"
        yield "critic_explains_little", fact(run, "explained_variance", text)
    if len(run.values("grad_norm")) >= 3 and run.last("grad_norm") == 0:
        yield "zero_gradient", fact(run, "grad_norm", f"{run.name('grad_norm')} is 0")


def signs(run: LoggedRun) -> dict[str, Fact]:
    """Every sign of a run, in the order of the table above."""
    seen, scores, lost = {}, run.values("score"), collapse(run)
    if is_constant(run):
        seen["constant_scores"] = fact(
            run, "score", f"all completions of nearly every step scored {run.last('score'):.4g}"
        )
    elif lost:
        seen["score_fell"] = fact(run, "score", f"the score fell from {lost[0]:.3g} to {lost[1]:.3g}", lost[2])
    elif is_flat(scores) and not is_solved(run):
        seen["flat_score"] = fact(run, "score", f"the score is flat over {len(scores)} steps")
    held_out = run.values("held_out")
    if len(held_out) >= 2 and not gained(run) and not is_solved(run):
        text = f"the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g}"
        seen["held_out_flat"] = fact(run, "held_out", text)
    seen |= dict(levels(run)) | dict(moves(run))
    last = [t for t in run.texts if t.kind == "train" and t.step == max(t.step for t in run.texts)]
    if last and statistics.median(repeats(t.completion) for t in last) > 0.5:
        seen["repetition"] = Fact("half of the last completions repeat themselves", "samples", last[0].step)
    return seen


# ------------------------------------------------------------------- machinery (src/parts/reading/causes/machinery.py)

WATCHED = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)
LEAST_GROWTH = {"mismatch_kl": 1e-3, "gap_mean": 1e-3, "gap_max": 0.05}  # least distance, in nats, that counts


@cause(
    "numbers overflow: an update too large, a log-prob of -inf, or fp16",
    explains=f"{FLAT} {LOST} updates_too_large",
    change="{precision}; keep {grad_clip} at 1; lower {lr}; continue from a checkpoint before this step",
    source="definition; unsloth#3006, verl#2505",
    breaks=True,
)
def overflow(run: LoggedRun) -> Evidence | None:
    """The first value that is not finite; skipped updates, in fp16 only where a fifth of the steps has them."""
    names = {key for dialect in NAMES.values() for key, name in dialect.items() if name in WATCHED}
    bad = [entry for entry in run.bad if entry[0].removeprefix("train/") in names]
    if bad:
        metric, step, value = bad[0]
        text = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        return Evidence(CERTAIN + 0.09, [Fact(text, metric, step)], step)
    large = next((step for step, value in run.points("score") if abs(value) > 1e15), None)
    if large is not None:
        text = f"{run.name('score')} is {run.series['score'][large]:.3g}; squares of such scores overflow in float32"
        return Evidence(CERTAIN + 0.08, [fact(run, "score", text, large)], large)
    skipped = run.points("skipped")
    steps = [step for step, value in skipped if value]
    allowed = 0.2 if run.settings.get("fp16") else 0.01  # fp16's loss scale settles that way
    if steps and len(steps) > allowed * len(skipped):
        text = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        return Evidence(CERTAIN + 0.07, [fact(run, "skipped", text, steps[0])], steps[0])
    return None


def jumps_at(run: LoggedRun, series: dict[str, list], step: int, least: float) -> list[Fact]:
    """Figures whose steps from a step on lie beyond those before it, and nearer to the run's start."""
    facts = []
    for name, points in series.items():
        place = bisect.bisect_left(points, (step, -math.inf))
        before, after = (
            [value for _, value in part] for part in (points[max(0, place - 6) : place], points[place:][:3])
        )
        if len(before) < 4 or len(after) < 2:
            continue
        a, b, start = (statistics.median(values) for values in (before, after, [v for _, v in points[:3]]))
        scatter = max(noise(before), 0.05 * abs(a), 1e-6)
        if min(abs(b - a), abs(start - a)) > least * scatter and (b - a) / (start - a) >= 0.6:
            text = f"{run.name(name)} goes from {a:.3g} back to {b:.3g}, where the run began"
            facts.append(fact(run, name, text, step))
    return facts


def schedules_anew(run: LoggedRun) -> list[int]:
    """Steps at which the learning rate's schedule restarts."""
    rates = run.points("lr")
    pairs = ((rates[i], rates[i - 1][1], rates[i - 2][1]) for i in range(3, len(rates)))
    return [step for (step, rate), last, before in pairs if before > last and rate > 1.5 * last]


@cause(
    "the run jumps at a restart: weights, optimizer, schedule, data order or settings are not those before it",
    explains=f"{STILL} {LOST} updates_too_large part_dies critic_useless stale_weights part_bought memorised_prompts",
    change="resume from the run's own newest checkpoint with its optimizer and the same settings (--resume)",
    source="an exact resume gives the figures of an uninterrupted run; six times the scatter: our heuristic",
    breaks=True,
)
def jump_at_restart(run: LoggedRun) -> Evidence | None:
    """Figures jump where the log shows a restart; without one, two of them go back to the run's start in one step."""
    anew, series = schedules_anew(run), {name: run.points(name) for name in ("entropy", "score", "length")}
    restarts = {*anew, *run.settings.get("restarts", ())}
    for step in sorted({*restarts, *run.steps()[5:-2]}):
        facts = jumps_at(run, series, step, 1.5 if step in restarts else 6)
        if step in restarts and (facts or step in anew):  # a restarted schedule is itself a jump
            said = Fact(f"the log shows a restart at step {step}", "step", step)
            return Evidence(CERTAIN + 0.06 if facts else LIKELY + 0.1, [said, *facts], since=step)
        if step not in restarts and len(facts) > 1 and facts[0].figure == run.name("entropy"):
            return Evidence(CERTAIN + 0.06, facts, since=step)
    return None


@cause(
    "sampler and trainer give the same tokens different probabilities",
    explains=f"{LOST} sampler_gap flat_score held_out_flat critic_explains_little updates_too_large critic_useless "
    "stale_weights part_dies nothing_moves",
    change="the same {temperature}, top-p 1 and top-k off on both sides, old log-probs by the trainer's own forward "
    "pass (dropout off), weights copied after every step; {mismatch} corrects what is left",
    decide_with="python scripts/selfcheck.py scripts/ppo_train.py",
    source="NeMo-RL docs/guides/grpo.md (1.05, 0.01); verl docs/algo/rollout_corr.md; verl#2996, verl#6280",
    breaks=True,
)
def sampler_mismatch(run: LoggedRun) -> Evidence | None:
    """A distance beyond its limit in most steps, or a ratio other than 1 in a rollout's only update."""
    penalty = run.number("repetition_penalty")
    if penalty is not None and penalty != 1:
        text = f"the sampler has a repetition penalty of {penalty:g}, the trainer has none"
        return Evidence(CERTAIN + 0.04, [Fact(text, "repetition_penalty")], since=1)
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        points, values = run.points(name), run.values(name)
        middle = statistics.median(values) if values else low
        # where it begins within the limits, weights go stale
        if values and not low <= middle <= high and not low <= statistics.median(values[:2]) <= high:
            first = next(step for step, value in points if not low <= value <= high)
            text = f"{text.format(middle)}; median of all steps"
            return Evidence(CERTAIN + 0.03, [fact(run, name, text, first)], since=first)
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in run.points(name):
            if updates.get(step, constant) == 1 and value > limit:
                text = f"{run.name(name)} is {value:.4g} at step {step}, which has one update per rollout"
                return Evidence(CERTAIN + 0.03, [fact(run, name, text, step)], since=step)
    return None


@cause(
    "the sampler keeps old weights, wholly or in part, while the trainer moves away from them",
    explains=f"{FLAT} {LOST} sampler_gap sampler_mismatch updates_too_large",
    change="copy all weights to the sampler after every step; --check_sync of our trainers names the tensors that "
    "differ",
    decide_with="--check_sync 1 for ten steps",
    source="allenai/open-instruct#1473; five times the start: our heuristic, kernels differ less",
    breaks=True,
)
def stale_weights(run: LoggedRun) -> Evidence | None:
    """Sampler and trainer agree at the first step, and their distance grows to five times that and more."""
    for name, least in LEAST_GROWTH.items():
        values = [abs(value) for value in run.values(name)]
        if len(values) < 4:
            continue
        middle, first = statistics.median(values[2:]), values[0]
        synced = 0 < first < 0.01 * least and middle > least  # one engine: they agree to rounding at the first step
        drifts = trend(values) > 0 and ends(values)[1] > max(least, 5 * ends(values)[0]) and run.trend("score") <= 0
        if synced or drifts:
            step = next(step for step, value in run.points(name) if abs(value) > least)
            text = f"{run.name(name)} grew from {first:.2g} to {max(middle, ends(values)[1]):.2g} nats a token"
            return Evidence(CERTAIN + 0.05, [fact(run, name, text, step)], since=step)
    return None


@cause(
    "the model does not use its tools: it calls none, or most calls end in an error",
    explains=f"{STILL} too_hard too_sparse nothing_moves",
    change="read the calls and errors in samples.jsonl; an instruct model that was trained on tools; {tool_form}",
    source="definition: what is never sampled gets no gradient; every second call: our heuristic",
)
def conversation_fails(run: LoggedRun) -> Evidence | None:
    """No tool call at all where there are tools, or every second call in error."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        return Evidence(CERTAIN, [fact(run, "tool_calls", f"not one tool call in {len(calls)} steps")])
    if len(failures) >= 3 and run.last("tool_failures") >= 0.5 and (not calls or run.last("tool_calls") > 0):
        text = f"{run.last('tool_failures'):.0%} of the tool calls come to an error"
        return Evidence(CERTAIN, [fact(run, "tool_failures", text)])
    return None


@cause(
    "memory grows without end: something keeps what each step made",
    explains="",
    change="keep metrics as numbers (.item()), and look for lists and dicts that a reward or environment only adds to",
    source="a tenth, in six even stretches: our heuristic; what settles gains most at first",
)
def memory_grows(run: LoggedRun) -> Evidence | None:
    """Memory rises over six equal stretches after the first tenth, while completions do not get longer."""
    if any(run.trend(name) > 0 for name in ("length", "length_max", "turns")):
        return None
    for name in ("gpu_memory", "memory"):
        values = run.values(name)[len(run.values(name)) // 10 :]
        size = len(values) // 6
        middles = [statistics.median(values[i * size : (i + 1) * size]) for i in range(6)] if size >= 5 else []
        gains = [after - before for before, after in itertools.pairwise(middles)]
        # of a logarithm's growth, which settles, 0.37 lies between the first two stretches
        if gains and min(gains) > 0 and max(gains) <= sum(gains) / 3 and sum(gains) > 0.1 * middles[0]:
            text = f"{run.name(name)} rose evenly from {middles[0]:.3g} to {middles[-1]:.3g} GiB"
            return Evidence(CERTAIN, [fact(run, name, text)])
    return None


MACHINERY_CAUSES = (overflow, jump_at_restart, sampler_mismatch, stale_weights, conversation_fails, memory_grows)


# ------------------------------------------------------------------------- groups (src/parts/reading/causes/groups.py)

# setting: (bound, whether a value below it is near greedy)
SAMPLING_BOUNDS = {"temperature": (0.3, True), "top_p": (0.5, True), "top_k": (4, True), "min_p": (0.5, False)}


def pass_rate(run: LoggedRun, steps: int = EARLY) -> tuple[str, float, float, float] | None:
    """(part, share that passes in the first steps, its 95 % interval), of a part whose means lie between 0 and 1."""
    name, means = first_part(run)
    early = means[:steps]
    if not early or min(means) < 0 or max(means) > 1:
        return None
    count, rate = int(run.number("batch") or 32) * len(early), sum(early) / len(early)
    return name, rate, *wilson_interval(rate * count, count)


def sharp_settings(run: LoggedRun) -> list[Fact]:
    """Settings that leave nearly every token one choice."""
    facts = []
    for name, (bound, below) in SAMPLING_BOUNDS.items():
        value = run.number(name)
        off = value is None or (name == "top_k" and value <= 0)
        if not off and (value < bound if below else value > bound):
            facts.append(Fact(f"{name} is {value:g}", name))
    if run.settings.get("do_sample") is False:
        facts.append(Fact("do_sample is false", "do_sample"))
    return facts


def groups_of_one_prompt(texts: list[Text]) -> list[list[Text]]:
    """Completions of the same training prompt at the same step."""
    return grouped([t for t in texts if t.kind == "train"], lambda t: (t.step, t.prompt))


def alike_at_pass_rate(run: LoggedRun, alike: list[float]) -> str:
    """Evidence that groups score alike from the start, far more often than a middling pass rate explains; else ""."""
    rate, group, share = pass_rate(run), int(run.number("group_size") or 8), sum(alike) / max(1, len(alike))
    if len(alike) < 3 or not rate or not 0.1 < rate[1] < 0.9 or share < max(0.8, forecast(rate[1], group) + 0.25):
        return ""
    text = f"{share:.0%} of the groups score all alike at a pass rate of {rate[1]:.2g}"
    return f"{text}, where chance gives {forecast(rate[1], group):.0%}"


@cause(
    "sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores",
    explains=f"{FLAT} entropy_fell sampler_gap kl_high clipped too_easy sampler_mismatch updates_too_large",
    change="{temperature} 1.0, top-p 1, top-k and min-p off, also for models whose card advises less for use",
    decide_with="python scripts/diagnose.py RUN --settings FILE --samples FILE",
    source="definition: equal scores in a group give advantage 0; limits 0.3, 0.5, 4: our heuristic",
)
def near_greedy_sampling(run: LoggedRun) -> Evidence | None:
    """Settings say so; without them, identical completions of a prompt, or an entropy of nearly 0, from the start."""
    facts, groups = sharp_settings(run), groups_of_one_prompt(run.texts)
    first = sorted({group[0].step for group in groups})[:2]
    groups = [group for group in groups if group[0].step in first and len(group) >= 4]
    alike = [group for group in groups if len({t.completion for t in group}) == 1]
    same = [
        shown(group, f"all {len(group)} completions of a prompt are identical at step {group[0].step}")
        for group in alike[:1]
    ]
    if facts:
        return Evidence(CERTAIN + 0.05, facts + same)
    if run.number("temperature") is not None and run.number("temperature") >= 0.5:
        return None
    rate, entropy = pass_rate(run, steps=3), run.early("entropy", 3)
    able = rate is not None and rate[2] > 0.8  # a model that is right is sure of it
    if entropy and not able and max(entropy) < 0.02 and min(run.series["entropy"]) <= EARLY:
        text = f"{run.name('entropy')} of the first steps is {max(entropy):.2g} nats a token"
        return Evidence(LIKELY + 0.2, [fact(run, "entropy", text, 1), *same])
    if same and len(alike) == len(groups) and groups[0][0].step <= EARLY:
        return Evidence(LIKELY, same)
    spreads, means = run.early("score_std"), first_part(run)[1]
    # 0/1 scores; those that depend on the prompt alone are another cause
    binary = all(abs(std - math.sqrt(max(0.0, m * (1 - m)))) < 0.1 for std, m in zip(spreads, means, strict=False))
    copies = alike_at_pass_rate(run, run.early("zero_std")) if not groups and spreads else ""
    if copies and (binary or len(run.parts()) > 1):
        return Evidence(LIKELY + 0.25, [fact(run, "zero_std", copies, min(run.steps()))])
    return None


@cause(
    "the length limit is too short for an answer: completions are cut from the first step on",
    explains=f"{STILL} truncated length_fell answer_form gold_mismatch too_hard too_sparse constant_reward part_bought "
    "no_group_variance critic_useless",
    change="raise {max_length} to what whole answers need, or ask for shorter ones",
    source="TRL completions/clipped_ratio; trl#5697; limit of a fifth: our heuristic",
)
def limit_too_short(run: LoggedRun) -> Evidence | None:
    """A fifth and more of the completions are cut from the first steps on, and those that are cut are hardly paid."""
    name = "truncated" if run.series.get("truncated") else "limit"
    cut, scores = run.early(name, 3), run.values("score")
    share = sum(cut) / len(cut) if cut else 0.0
    if not cut or min(cut[0], share) < 0.2 or min(run.series[name]) > 10 or run.last(name) < 0.1:
        return None
    if name == "limit" and is_solved(run):
        return None
    ended, whole = ([t for t in run.texts if t.finished is kind and t.score is not None] for kind in (False, True))
    facts = [fact(run, name, f"{share:.0%} are cut by the limit in the first steps", min(run.series[name]))]
    limit = run.number("max_length")
    if limit:
        facts.append(Fact(f"the limit is {limit:g} tokens", "max_length"))
    if ended and whole:
        paid, usual = (sum(t.score for t in texts) / len(texts) for texts in (ended, whole))
        if paid >= 0.7 * usual > 0:
            return None  # being cut costs nothing: the limit is not what holds the score
    if not ended and scores and scores[0] + cut[0] - 1 > 0.5 * min(scores[0], cut[0]):
        return None  # some are cut and paid
    if ended:
        without = [t for t in ended if not t.gold or not holds(t.completion, t.gold)]
        text = f"{len(ended)} logged completions stop at the limit, {len(without)} without their answer"
        facts.append(shown(without or ended, text))
    return Evidence(CERTAIN if share >= 0.5 or ended else LIKELY + 0.15, facts)


@cause(
    "the prompts are too hard for this model: no completion is right, so nothing can be reinforced",
    explains=FLAT,
    change="easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    decide_with=TRY_MODEL,
    source="Wilson's interval; groups alike with p^G + (1 - p)^G",
)
def too_hard(run: LoggedRun) -> Evidence | None:
    """Next to none of the run's completions passes, and those that are logged do not hold their gold answer."""
    rate = pass_rate(run, steps=10**9)
    if not rate or rate[1] > 0.002 or rate[3] > 0.03:
        return None
    text = f"{rate[0]} passes {rate[1]:.2%} of all completions (95 %: {rate[2]:.2%} to {rate[3]:.2%})"
    facts = [fact(run, first_series(run), text, min(run.steps()))]
    known = [t for t in run.texts if t.gold and t.score is not None]
    without = [t for t in known if not holds(t.completion, t.gold)]
    if len(known) >= 8 and len(without) >= 0.9 * len(known):
        facts.append(shown(without, f"{len(without)} of {len(known)} logged completions do not hold the gold answer"))
        return Evidence(CERTAIN + 0.01, facts)
    return Evidence(LIKELY if not known else LIKELY - 0.2, facts)


@cause(
    "the prompts are too easy: nearly every completion is right from the start, so groups score alike",
    explains=f"{FLAT} entropy_fell kl_high memorised_prompts",
    change="harder prompts, or stop: these have nothing left to teach",
    decide_with=TRY_MODEL,
    source="Wilson's interval of the pass rate",
)
def too_easy(run: LoggedRun) -> Evidence | None:
    """Held out 95 % and sampled 80 % are right at the start, or sampled 95 % without a held-out figure."""
    rate, held_out = pass_rate(run, steps=3), run.early("held_out", 1)
    least = 0.8 if held_out and SOLVED <= held_out[0] <= 1 else SOLVED
    if not rate or rate[1] < least or (held_out and held_out[0] < 0.9):
        return None
    right, wrong = scores_by_answer(run.texts)
    if len(wrong) > 0.4 * len([*right, *wrong]):
        return None  # paid though wrong: the reward is at fault
    facts = [fact(run, first_series(run), f"{rate[0]} is {rate[1]:.3g} in the first steps", min(run.steps()))]
    if held_out:
        text = f"held out it is {held_out[0]:.3g} at the start"
        facts.append(fact(run, "held_out", text, min(run.series["held_out"])))
    return Evidence(CERTAIN + 0.02 if len(right) >= 4 else LIKELY + 0.1, facts)


@cause(
    "right answers are too rare for the group: most groups have none, so most of a batch teaches nothing",
    explains=FLAT,
    change="raise {group_size}; {filter}; prompts that the model solves now and then, or partial credit",
    decide_with=TRY_MODEL,
    source="p^G + (1 - p)^G; DAPO (Yu 2025), section 3.2",
)
def too_sparse(run: LoggedRun) -> Evidence | None:
    """A pass rate between 0 and 12 %, most groups without a right answer, as its forecast says, and no gain."""
    rate, group, alike = pass_rate(run, steps=20), int(run.number("group_size") or 8), run.early("zero_std", 20)
    if not rate or not 0.002 < rate[1] < 0.12 or group == 1 or not (alike or run.number("group_size")):
        return None
    expected = forecast(rate[1], group)
    share = sum(alike) / len(alike) if alike else expected
    if share < 0.6 or share < expected - 0.15 or (gained(run) and run.trend("score") > 0):
        return None
    enough = next((2**i for i in range(1, 10) if forecast(rate[1], 2**i) < 0.5), 512)
    text = f"pass rate {rate[1]:.2%}: {expected:.0%} of groups of {group} are all alike by forecast"
    text += f", {share:.0%} were; groups of {enough} would bring it to {forecast(rate[1], enough):.0%}"
    sure = CERTAIN if alike and run.number("group_size") else LIKELY + 0.1
    return Evidence(sure, [fact(run, "zero_std" if alike else "score", text, min(run.steps()))])


@cause(
    "groups have no variance: prompts are always or never solved, or the score depends on what their completions share",
    explains=f"{FLAT} reward_ignores_answer",
    change="score what differs between completions of one prompt; {filter}; {group_size} 8 or more",
    decide_with=TRY_MODEL,
    source="definition of a group's advantage; p^G + (1 - p)^G",
)
def no_group_variance(run: LoggedRun) -> Evidence | None:
    """Groups score alike from the start, far more often than the pass rate forecasts, while prompts differ."""
    alike, rate, group = run.early("zero_std"), pass_rate(run), run.number("group_size")
    if group == 1 and run.settings.get("grouped"):
        return Evidence(CERTAIN, [fact(run, "score", "the group has 1 completion: nothing to compare it with", 1)])
    groups = groups_of_one_prompt([t for t in run.texts if t.score is not None])
    several = [group for group in groups if len({t.completion for t in group}) > 2]
    spreads = [max(t.score for t in group) - min(t.score for t in group) for group in several]
    means = {round(group[0].score, 6) for group in several}
    if len(several) >= 5 and max(spreads) <= 1e-6 and len(means) > 2:
        text = f"different completions of one prompt score alike, in all {len(several)} logged groups"
        return Evidence(CERTAIN + 0.06, [shown(several[0], text)])
    equal = alike or [a == b for a, b in zip(run.early("advantage_max"), run.early("advantage_min"), strict=False)]
    share = sum(equal) / len(equal) if equal else 0.0
    if is_constant(run) or is_solved(run) or share < 0.8 or len(equal) < (1 if run.part_spread() else 3):
        return None
    scores, text = run.early("score"), alike_at_pass_rate(run, equal)
    between = run.first("score_std") if min(run.early("score_std"), default=0) > 1e-6 else run.part_spread()
    between = between or max(scores, default=0.0) - min(scores, default=0.0)
    if not text and (rate or between <= 1e-6):
        return None
    text = text or f"{share:.0%} of the groups score all alike while scores differ by {between:.3g} between prompts"
    return Evidence(CERTAIN + 0.02, [fact(run, "zero_std" if alike else "advantage_max", text, min(run.steps()))])


GROUP_CAUSES = (near_greedy_sampling, limit_too_short, too_hard, too_easy, too_sparse, no_group_variance)


# ----------------------------------------------------------------------- rewards (src/parts/reading/causes/rewards.py)

READS_GOLD = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truths?|labels?|expected|references?)\b *[,)=]")
OTHER_ROW = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truth|labels?)\[(\d+|-1|::-1)\]")


def unpaid_with_gold(texts: list[Text]) -> list[Text]:
    """Completions that hold their gold answer and are not paid for it, where they are most of those that hold it.

    [] where others hold the gold of another row as often, or where a quarter of those with their gold is paid.
    """
    known = [t for t in early_texts(texts) if t.gold and correct_pay(t) is not None]
    pays = [correct_pay(t) for t in known]
    lowest = min(pays, default=0.0)
    if lowest > 1e-9 and max(pays) - lowest <= 1e-9:
        return []  # all are paid
    holders = [t for t in known if holds(t.completion, t.gold)]
    unpaid = [t for t in holders if correct_pay(t) <= lowest + 1e-9]
    golds = [t.gold for t in known]
    pairs = zip(known, golds[len(golds) // 2 :] + golds[: len(golds) // 2], strict=True)
    chance = sum(holds(t.completion, gold) for t, gold in pairs if gold != t.gold)
    return unpaid if len(unpaid) >= max(3, 3 * chance, 0.75 * len(holders)) else []


def marks_with_gold(texts: list[Text]) -> set[str]:
    """Marks in which completions hold their gold answer."""
    return {mark for t in texts for mark, answer in marked_answers(t.completion) if holds(answer, t.gold)}


def never_paid(run: LoggedRun) -> Fact | None:
    """By the log alone: no completion was ever paid for its answer, mostly because its form or gold is not read."""
    name, means = first_part(run)
    spreads = run.series.get("score_std") or run.series.get("zero_std")
    if run.texts or run.reward_source or len(means) < 3 or max(map(abs, means)) > 0.01 or not spreads:
        return None
    return fact(run, first_series(run), f"{name} pays next to nothing at any step, and the log does not show why")


@cause(
    "the reward expects another answer format, so right answers score nothing",
    explains=FALSE,
    change="ask for the reward's format in the prompt, or have the reward read the format of the completions",
    decide_with=TRY_REWARD,
    source="counting, against gold answers of other rows; open-r1#255, verl#2150",
)
def answer_form(run: LoggedRun) -> Evidence | None:
    """Gold stands in unpaid completions, in no mark that the reward's source names; or it reads no mark asked for."""
    reads, asks, unpaid = source_marks(run.reward_source), asked_marks(run.texts), unpaid_with_gold(run.texts)
    other = [Fact(f"prompts ask for {', '.join(sorted(asks))}, the reward reads {', '.join(sorted(reads))}", "reward")]
    other = other if reads and asks and not reads & asks else []
    if never := never_paid(run):
        return Evidence(LIKELY + 0.06, [never])
    if not unpaid:
        return Evidence(LIKELY, other) if other and run.values("score") and max(run.early("score")) <= 0.05 else None
    used = marks_with_gold(unpaid)
    if used & reads:
        return None  # it stands where the reward looks: the comparison is at fault
    where = f", marked by {', '.join(sorted(used)) or 'nothing'}; the reward reads {', '.join(sorted(reads))}"
    text = f"{len(unpaid)} unpaid completions hold the gold answer{where if reads else ''}"
    return Evidence(CERTAIN + 0.05 if reads else LIKELY + 0.1, [shown(unpaid, text), *other])


def shifted_gold(run: LoggedRun) -> Fact | None:
    """Completions state the gold of the row some places on in the data, the same number of places each time."""
    prompts, golds = list(run.golds), list(run.golds.values())
    places, votes = {prompt: i for i, prompt in enumerate(prompts)}, Counter()
    train = list({(t.prompt, t.completion): t for t in run.texts if t.prompt in places}.values())
    for t in train:
        answer, place = stated_answer(t.completion, bool(NUMBER.fullmatch(golds[places[t.prompt]]))), places[t.prompt]
        votes.update(k for k in range(-60, 61) if golds[(place + k) % len(golds)] == answer)
    (best, count), *others = [*votes.most_common(2), (0, 0)] if votes else [(0, 0)]
    if not best or len(golds) < 20 or count < max(4, 2 * others[0][1], 3 * votes[0], 0.2 * len(train)):
        return None
    return shown(train, f"{count} of {len(train)} completions state the gold answer of the row {best:+d} places away")


def unlike_held_out(run: LoggedRun) -> Fact | None:
    """Held-out completions are paid from the start, training ones hardly, by the same reward."""
    name, means = first_part(run)
    held_out = run.early(f"held_out_part:{name}", 1) or run.early("held_out", 1)
    if not held_out or not means or not 0 < held_out[0] <= 1 or not 0 <= means[0] <= 1:
        return None
    count = int(run.number("batch") or 32)
    if wilson_interval(means[0] * count, count)[1] > 0.35 * wilson_interval(held_out[0] * 64, 64)[0]:
        return None
    text = f"at the start {name} pays {means[0]:.3g} in training and {held_out[0]:.3g} on held-out prompts"
    return fact(run, first_series(run), text, 1)


@cause(
    "answers are compared with the wrong gold: a number with a text, another row's gold, a wrong column",
    explains=f"{FALSE} noisy_reward other_eval_task inverted_reward",
    change="compare texts with texts (str() on both sides) and print prompt, gold and extracted answer of ten rows",
    decide_with=TRY_REWARD,
    source="counting; held-out and training rewards are one function, so their pay at the start agrees",
)
def gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Gold stands unpaid where the reward looks; or it is that of another row; or held-out pays and training not."""
    shift, other = shifted_gold(run), OTHER_ROW.search(run.reward_source)
    train = [t for t in run.texts if t.kind == "train"]
    golds, prompts = {t.gold for t in train if t.gold}, {t.prompt for t in train if t.gold}
    if shift:
        return Evidence(CERTAIN + 0.08, [shift])
    if other:
        text = f"the reward compares with {other[0]}, which is not the completion's row"
        return Evidence(CERTAIN + 0.08, [Fact(text, "reward")])
    if len(prompts) >= 8 and len(golds) == 1:
        return Evidence(CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {min(golds)!r}")])
    unpaid, unlike = unpaid_with_gold(run.texts), unlike_held_out(run)
    if not unpaid:
        never = never_paid(run)
        return Evidence(LIKELY + 0.2, [unlike]) if unlike else Evidence(LIKELY + 0.05, [never]) if never else None
    reads = source_marks(run.reward_source)
    seen = bool(marks_with_gold(unpaid) & reads)
    text = f"{len(unpaid)} unpaid completions hold the gold answer{' where the reward looks' if seen else ''}"
    return Evidence(CERTAIN + 0.05 if seen else LIKELY, [shown(unpaid, text)]) if seen or not reads else None


def placeholder(source: str) -> str:
    """Why a reward's source may pay always the same: it never reads completions, or an exception becomes a score."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & COMPLETIONS
        inside = list(ast.walk(function))
        # len(completions), and `for _ in completions`, do not look at any
        calls = [node for node in inside if isinstance(node, ast.Call) and ast.unparse(node.func) == "len"]
        loops = [n for n in inside if isinstance(n, ast.comprehension) and ast.unparse(n.target) == "_"]
        unread = [argument for call in calls for argument in call.args] + [loop.iter for loop in loops]
        reads = [node for node in inside if isinstance(node, ast.Name) and node.id in given and node not in unread]
        if given and not reads:
            return f"{function.name} never reads its {min(given)}"
    caught = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    if any(not isinstance(node.body[-1], ast.Raise) for node in caught):
        return "the reward turns an exception into a score"
    return ""


@cause(
    "every completion gets the same score: a placeholder reward, or an exception turned into a score",
    explains=f"{FALSE} part_dies answer_form gold_mismatch",
    change="have {reward} read the completion, and let an exception end the run; score gold answers before training: "
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA",
    decide_with=TRY_REWARD,
    source="definition: equal scores give advantage 0; verl#3024",
)
def constant_reward(run: LoggedRun) -> Evidence | None:
    """No spread of scores, or of the part for correctness, at any step, for right and wrong completions alike."""
    name, means = first_part(run)
    if len(run.texts) >= 8 and all(t.unscored for t in run.texts):
        text = f"the reward gave None for all {len(run.texts)} logged completions: a `return` may be missing"
        return Evidence(CERTAIN + 0.09, [shown(run.texts, text)])
    seen = means + run.values(f"held_out_part:{name}")
    part = len(run.parts()) > 1 and len(seen) >= 3 and max(seen) - min(seen) < 1e-9
    few = 0 < len(run.values("score")) < 3 and run.series.get("score_std") and max(run.values("score_std")) <= 1e-6
    # a few zeros may be wrong answers; a spread within groups of 0 is none between prompts
    few = few and not run.part_spread() and (run.last("score") or placeholder(run.reward_source))
    solved = is_solved(run) and not (is_constant(run) and max(run.early("score_std", 3), default=1) <= 1e-6)
    if not (is_constant(run) or few or part) or solved:
        return None
    why, level = placeholder(run.reward_source), means[-1] if part else run.last("score")
    right, wrong = scores_by_answer(early_texts(run.texts))
    series = f"part:{name}" if part else "score_std" if run.series.get("score_std") else "score"
    facts = [fact(run, series, f"{name if part else 'every completion'} scored {level:.4g} at every step")]
    if why:
        return Evidence(CERTAIN + 0.07 if right or "exception" not in why else CERTAIN, [*facts, Fact(why, "reward")])
    if right and wrong and not part:
        examples = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(examples, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
    # neither "always wrong" nor, where wrong ones are among them, "always right"
    sure = abs(level) > 1e-9 and (abs(level - 1) > 1e-9 or (wrong and not part))
    always_wrong = abs(level) <= 1e-9 and not right and wrong
    # not one of many completions fails
    perfect = abs(level - 1) <= 1e-9 and len(run.values("score")) * (run.number("batch") or 32) >= 256
    return Evidence(
        CERTAIN + 0.05 if sure else LIKELY - 0.15 if always_wrong else LIKELY + 0.02 + 0.12 * perfect, facts
    )


def separation(right: list[float], wrong: list[float]) -> tuple[float, float, str]:
    """Difference of the mean scores of right and wrong completions, its standard error, and both in words."""
    means = statistics.fmean(right), statistics.fmean(wrong)
    least = max(statistics.pvariance([*right, *wrong]) * 0.25, 1e-18)  # no class is taken for free of scatter
    errors = [max(statistics.variance(x) if len(x) > 1 else 0.0, least) / len(x) for x in (right, wrong)]
    text = f"{len(right)} right completions score {means[0]:.3g}, {len(wrong)} wrong ones {means[1]:.3g}"
    return means[0] - means[1], math.sqrt(sum(errors)), text


def best_paid_wrong(texts: list[Text]) -> list[Text]:
    """Wrong completions, the best paid first."""
    return sorted((t for t in texts if t.right is False and t.score is not None), key=lambda t: -t.score)


@cause(
    "the reward is inverted: wrong answers score higher than right ones",
    explains=f"{FALSE} limit_too_short part_dies gold_mismatch answer_form",
    change="flip the sign of {reward}, then restart from the initial model",
    decide_with=TRY_REWARD,
    source="scores of right and wrong completions, Welch's t",
    breaks=True,
)
def inverted_reward(run: LoggedRun) -> Evidence | None:
    """Right completions score less than wrong ones, beyond chance."""
    right, wrong = scores_by_answer(early_texts(run.texts))
    gain = held_out_gain(run)
    if len(right) >= 3 and len(wrong) >= 3:
        difference, error, text = separation(right, wrong)
        examples = best_paid_wrong(run.texts)[:2] + [t for t in run.texts if t.right][:1]
        apart = min(len(right), len(wrong)) >= 5 and max(right) < min(wrong)  # none right is paid as much as any wrong
        inverted = apart or difference < -4 * error
        return Evidence(CERTAIN + 0.06, [shown(examples, text)], since=1) if inverted else None
    if not right and gain and gain[2] < 0 and run.trend("score") > 0:
        text = f"the score rose and the held-out figure fell by {-gain[0]:.3g}"
        return Evidence(LIKELY, [fact(run, "held_out", text)], since=1)
    return None


@cause(
    "the reward ignores the answer: right and wrong completions score alike",
    explains=f"{STILL} {LOST} limit_too_short critic_useless too_easy memorised_prompts updates_too_large",
    change="pay for the right answer; form, length or style at most beside a right one",
    decide_with=TRY_REWARD,
    source="difference of mean scores with its interval, below half of what scores span",
    breaks=True,
)
def reward_ignores_answer(run: LoggedRun) -> Evidence | None:
    """Scores differ, and the difference between right and wrong completions is none; or all parts judge the form."""
    parts = run.parts()
    body = re.sub(r"(?s)\bdef \w+\(.*?\)( ->[^:]*)?:", "", run.reward_source)
    if parts and all(map(is_format, parts)) and not READS_GOLD.search(body):
        text = f"no part of the reward judges the answer: {', '.join(parts)}"
        return Evidence(LIKELY + 0.25, [fact(run, f"part:{next(iter(parts))}", text)], since=1)
    right, wrong = scores_by_answer(early_texts(run.texts))
    reach = max([*right, *wrong], default=0.0) - min([*right, *wrong], default=0.0)
    if len(right) < 6 or len(wrong) < 6 or is_constant(run) or reach <= 1e-9:
        return None
    difference, error, text = separation(right, wrong)
    only_right = difference > 4 * error and max(wrong) - min([*right, *wrong]) <= 1e-9
    if only_right or difference + 2 * error > 0.5 * reach or difference < -4 * error:
        return None
    paid = payment_by_feature(run.texts)
    name = max(paid, key=lambda key: abs(paid[key]))
    text += f"; the score goes with {name} (r = {paid[name]:.2f})" if abs(paid[name]) > 0.5 else ""
    return Evidence(CERTAIN + 0.03, [shown(best_paid_wrong(run.texts), text)], since=1)


@cause(
    "the reward is noise: the same completion of the same prompt gets different scores",
    explains=f"{FALSE} limit_too_short inverted_reward answer_form gold_mismatch",
    change="make {reward} deterministic: no random draw, a judge at temperature 0, no state kept between calls",
    decide_with=TRY_REWARD,
    source="definition: a reward is a function of prompt and completion",
)
def noisy_reward(run: LoggedRun) -> Evidence | None:
    """Pairs of one text and one prompt, of one step where there are some, whose scores differ."""
    scored = [t for t in run.texts if t.score is not None]
    groups = grouped(scored, lambda t: (t.step, t.kind, t.prompt, t.completion, t.gold))
    if sum(len(group) for group in groups if len(group) > 1) < 6:
        groups = grouped(scored, lambda t: (t.kind, t.prompt, t.completion, t.gold))
    groups = [sorted(group, key=lambda t: t.score) for group in groups if len(group) > 1]
    differing = [group for group in groups if group[-1].score - group[0].score > 1e-6]
    if len(differing) < 2 or len(differing) < 0.1 * len(groups):
        return None
    widest = max(differing, key=lambda group: group[-1].score - group[0].score)
    text = f"{len(differing)} of {len(groups)} repeated completions scored differently"
    text += f", one {widest[0].score:.3g} and {widest[-1].score:.3g}"
    return Evidence(CERTAIN + 0.07, [shown([widest[0], widest[-1]], text)])


REWARD_CAUSES = (answer_form, gold_mismatch, constant_reward, inverted_reward, noisy_reward, reward_ignores_answer)


# ----------------------------------------------------------------------- updates (src/parts/reading/causes/updates.py)

LARGE = (  # series of one step's update, value that is too much, words
    ("kl_step", 0.1, "KL of one step's update"),
    ("clip_frac", 0.3, "clipped share of tokens"),
)
SLOW = 20  # steps after which a usual rate has moved the policy by more than 1e-4 nats a token
HEAVY = 0.3  # weight of the KL beside scores of about 1; 0 to 0.1 is in use
CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0


def large_steps(run: LoggedRun) -> list[Fact]:
    """Figures of an update that are too large in three steps and a tenth of the run, or in most of its first steps."""
    facts, kl = [], run.points("kl")
    for name, limit, words in LARGE:
        points = run.points(name)
        high = [step for step, value in points if abs(value) > limit]
        most = max((value for _, value in points), key=abs, default=0.0)
        if (len(high) >= 3 and len(high) >= 0.1 * len(points)) or (high and abs(most) > 10 * limit):
            text = f"{words} above {limit} in {len(high)} of {len(points)} steps, up to {most:.3g}"
            facts.append(fact(run, name, text, high[0]))
    highest = -math.inf
    for i, ((_, before), (step, after)) in enumerate(itertools.pairwise(kl if kl and abs(kl[0][1]) < 0.05 else [])):
        highest = max(highest, before)
        stays = min(value for _, value in kl[i + 1 : i + 5]) > 0.5  # else the figure only scatters
        if stays and after - before > 0.5 and after > 2 * highest:
            text = f"KL to the reference went from {before:.3g} to {after:.3g} nats a token in one step"
            return [*facts, fact(run, "kl", text, step)]
    return facts


def lost_at_once(run: LoggedRun) -> bool:
    """Whether the first updates took all: what so many completions would not score by chance, or held out."""
    scores, held_out, gain = run.values("score"), run.values("held_out"), held_out_gain(run)
    many = len(scores) > 2 and scores[0] * (run.number("batch") or 32) * (len(scores) - 1) > 20
    many = many or (gain is not None and gain[2] < 0 and held_out[-1] <= 0.02 * held_out[0])
    return many and len(scores) > 1 and max(scores[1:]) <= 0.02 * scores[0] and min(scores) >= 0


@cause(
    "updates are too large: the policy leaves the region that its samples cover",
    explains=f"{FLAT} {LOST} sampler_gap part_dies limit_too_short sampler_mismatch stale_weights",
    change="lower {lr} by 3 to 10 times, or fewer updates a rollout ({reuse}); continue from an earlier checkpoint",
    source="Spinning Up's PPO ends an update at KL 0.015; limits 0.1 nats, 0.3 of tokens, 0.5 nats in a step: our "
    "heuristic",
    breaks=True,
)
def updates_too_large(run: LoggedRun) -> Evidence | None:
    """The update's own figures moved first, or the score was lost within the first steps."""
    facts, lost, at_once = large_steps(run), collapse(run), lost_at_once(run)
    if gained(run) and not lost and not at_once and run.trend("score") > 0:
        return None  # large, and it learns
    passes = (run.number("epochs") or 1) * (run.number("minibatches") or 1)
    if passes >= 16:
        facts.append(Fact(f"a rollout is used for {passes:g} updates", "updates"))
    if facts and run.values("lr"):
        facts.append(fact(run, "lr", f"the learning rate is {max(run.values('lr')):.3g}"))
    if not lost and not at_once:
        return Evidence(CERTAIN + 0.04 if len(facts) > 2 else LIKELY + 0.2, facts) if facts else None
    points = run.points("score")
    begin, end, step = lost or (points[0][1], points[-1][1], points[1][0])
    text = f"the score fell from {begin:.3g} to {end:.3g}; half of it was lost by step {step}"
    if facts:
        return Evidence(CERTAIN + 0.04, facts, min(step, *(f.step for f in facts if f.step is not None)))
    return Evidence(CERTAIN + 0.01 if at_once else LIKELY + 0.1, [fact(run, "score", text, step)], step)


def rate_fact(run: LoggedRun) -> Fact | None:
    """A learning rate of 0, a warm-up as long as the run, a rate far below any in use, a clip that leaves nothing."""
    rates, steps, warmup = run.values("lr"), max(run.steps(), default=0), run.number("warmup") or 0
    highest = max(rates, default=run.number("lr"))
    rises = len(rates) >= 10 and all(b > a for a, b in itertools.pairwise(rates))
    rounded = "bf" in str(run.settings.get("precision", "")) and not run.config.get("bf16")
    if len(rates) >= 2 and max(rates[: len(rates) // 2 + 2]) == 0:
        return fact(run, "lr", "the learning rate is 0 in the first half of the run", min(run.series["lr"]))
    if warmup > 1 and warmup >= max(steps, run.number("steps") or 0):
        return Fact(f"the warm-up takes {warmup:g} steps, the run {steps}", "warmup")
    if rises and highest < 1e-6:
        return fact(run, "lr", f"the learning rate still rises at the last step and is {highest:.3g} there")
    if 0 < (run.number("grad_clip") or 1) < 1e-6:
        return Fact(f"gradients are clipped to {run.number('grad_clip'):g}", "max_grad_norm")
    if highest is not None and highest < 2e-8:
        return fact(run, "lr", f"the highest learning rate is {highest:.3g}")
    if rounded and run.trainer != "ppo_train" and highest is not None and highest <= 5e-6:
        return Fact(f"weights are kept in bfloat16 and the learning rate is {highest:.3g}", "dtype")
    return None


def still_figures(run: LoggedRun, start: int) -> list[Fact]:
    """Figures that show that the policy is where it began, though scores differ."""
    kl, moved, entropy = (
        [value for step, value in run.points(name) if step > start] for name in ("kl", "kl_step", "entropy")
    )
    alike, spread, scores = run.series.get("zero_std", {}), run.series.get("score_std", {}), run.values("score")
    varied = max(scores, default=0.0) - min(scores, default=0.0)
    # if several steps are logged as one, the norm is the last one's, so most groups must differ
    differ = {step for step in run.steps() if alike.get(step, float(spread.get(step, varied) <= 1e-6)) < 0.7}
    norms = [value for step, value in run.points("grad_norm") if step > start and step in differ]
    slow, several = len(entropy) >= SLOW, (run.settings.get("updates") or 1) > 1
    first, last = ends(entropy) if slow else (0.0, math.inf)
    seen = (
        ("kl", len(kl) >= 3 and max(map(abs, kl[1:])) < (1e-4 if len(kl) >= SLOW else 1e-7), "stays at 0"),
        ("grad_norm", len(norms) >= 2 and max(norms) < 1e-9, "is 0 although scores differ"),
        ("kl_step", not kl and several and moved and max(map(abs, moved)) < 1e-7, "stays at 0"),
        ("entropy", not kl and abs(last - first) < 0.01 * abs(first), f"stays at {last:.3g}"),
    )
    return [fact(run, name, f"{run.name(name)} {words}") for name, holds, words in seen if holds]


@cause(
    "nothing moves: scores differ, and the policy stays where it began",
    explains=f"{STILL} critic_useless kl_holds_policy too_sparse part_bought",
    change="raise {lr} (LoRA: about ten times that of full training), a warm-up far shorter than the run, trained "
    "weights in float32, and something left to train: not all frozen, masked or filtered",
    source="definition; TRL lora_without_regret.md; a bf16 weight swallows updates below 1/256 of it",
)
def nothing_moves(run: LoggedRun) -> Evidence | None:
    """The rate cannot move anything, or scores differ and KL, gradient or held-out figure stand still."""
    critic = run.number("critic_warmup") or 0
    if max(run.steps(), default=0) <= critic:
        return None  # only the critic has been trained so far
    if is_constant(run) or (gained(run) and run.trend("score") > 0):
        return None
    start = int(critic + max(run.number("warmup") or 0, 0))  # until then the policy is not meant to move
    rate, still, held_out, same = rate_fact(run), still_figures(run, start), run.values("held_out"), None
    if len(held_out) >= 3 and max(held_out) == min(held_out) and 0.02 < held_out[0] < 0.98:
        same = fact(run, "held_out", f"the held-out figure is {held_out[0]:.4g} at all {len(held_out)} evaluations")
    facts = [item for item in (rate, *still, same) if item]
    if not facts:
        return None
    decisive = any(f.figure == run.name("grad_norm") for f in still)
    rounded = rate is not None and rate.figure == "dtype"
    if (rate and not rounded) or decisive or (same and (still or rounded)) or len(still) > 1:
        return Evidence(CERTAIN + 0.03, facts)
    return Evidence(LIKELY + (0.25 if same or run.series.get("kl") else 0.0), facts)


@cause(
    "the KL term holds the policy where it began: moving costs more than the reward pays",
    explains="flat_score held_out_flat critic_explains_little entropy_rose score_fell clipped "
    "nothing_moves critic_useless updates_too_large too_sparse",
    change="lower {kl} to 0.01 or 0",
    source="the optimum under a KL of weight b is the start's policy times exp(reward / b); limit 0.3: our heuristic",
)
def kl_holds_policy(run: LoggedRun) -> Evidence | None:
    """A heavy weight, a KL that stays small, and no gain although the rate is not small."""
    weight = run.number("kl")
    if weight is None:
        weight = max(run.values("kl_weight"), default=0.0)
    scale = max(abs(run.first("score_std")) if run.series.get("score_std") else 1.0, 0.05)
    if run.config.get("teacher") or weight < HEAVY * min(1.0, 2 * scale) or is_constant(run):
        return None  # in a distillation the KL is the goal
    if (gained(run) and run.trend("score") > 0) or run.last("kl") > 0.3:
        return None
    facts = [Fact(f"the KL's weight is {weight:g}, scores differ by {scale:.2g}", run.name("kl_weight"))]
    if run.series.get("kl"):
        facts.append(fact(run, "kl", f"{run.name('kl')} stays at {run.last('kl'):.3g} nats a token"))
    return Evidence(CERTAIN + 0.02 if weight >= 1 else LIKELY + 0.2, facts)


def hardly_varies(run: LoggedRun) -> bool:
    """Whether scores hardly differ any more, so that nothing is left to explain: beside the start, or their size."""
    if not run.series.get("score_std"):
        return False
    first, last = ends(run.values("score_std"))
    return last < 0.25 * first or last < 0.05 * abs(run.last("score") if run.series.get("score") else 0.0)


@cause(
    "the critic predicts returns no better than a constant, so advantages are as noisy as without it",
    explains=f"critic_explains_little flat_score {LOST} updates_too_large nothing_moves part_bought",
    change="{critic_updates}; {critic_warmup}; another {critic_lr}; where scores are well above 1 {value_clip}; or a "
    "method without a critic: {critic_free}",
    source="definition of explained variance; benchmarks/README.md, the demo's critic; limit 0.03: our heuristic",
)
def critic_useless(run: LoggedRun) -> Evidence | None:
    """Explained variance that is 0 at every step, or, beyond chance, at most 0.03 in the second half of a run.

    Near 0 in a run that learns it is no fault: a short run ends before a critic is of use.
    """
    variances = run.series.get("explained_variance", {})
    warmup = max(CRITIC_STEPS, int(run.number("critic_warmup") or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    rate, lr = run.number("critic_lr"), run.number("lr") or max(run.values("lr"), default=0.0)
    if variances and rate and (rate < 1e-3 * lr or rate > 0.05):
        said = Fact(f"the critic's learning rate is {rate:g}, the policy's {lr:g}", "critic_lr")
        text = f"explained variance {run.last('explained_variance'):.3g}"
        return Evidence(CERTAIN + 0.05, [said, fact(run, "explained_variance", text)])
    if len(steps) < CRITIC_STEPS or is_constant(run):
        return None
    if max(abs(variances[step]) for step in steps) < 1e-5:
        text = f"explained variance is 0 at all steps from {steps[0]} on: the critic does not learn"
        return Evidence(CERTAIN + 0.03, [fact(run, "explained_variance", text)])
    if len(variances) < TREND_STEPS or hardly_varies(run) or is_solved(run):
        return None
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle = statistics.median(values)
    error = 1.25 * noise(values) / math.sqrt(len(values))
    learns = middle > -0.1 and (gained(run) or run.trend("score") > 0)
    if learns or (middle > 0 and middle + 2 * error > 0.03):
        return None
    text = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    facts = [fact(run, "explained_variance", text, steps[-1])]
    clip, scores = run.number("value_clip"), run.values("score")
    if clip and scores and max(map(abs, scores)) > 10 * clip:
        text = f"a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
        facts.append(Fact(text, "value_clip"))
    return Evidence(CERTAIN, facts)


UPDATE_CAUSES = (updates_too_large, nothing_moves, kl_holds_policy, critic_useless)


# --------------------------------------------------------------------- outcomes (src/parts/reading/causes/outcomes.py)

LESS = {"length": "brevity", "answers tried": "fewer answers"}  # what it is called where less of a feature pays
DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def falls(values: list[float]) -> bool:
    """Whether a series falls, or does in its second half: it may have risen first."""
    return trend(values) < 0 or trend(values[len(values) // 2 :]) < 0


def ends_text(name: str, values: list[float]) -> str:
    """Where a part began and ended."""
    return "{} went from {:.3g} to {:.3g}".format(name, *ends(values))


def rising_parts(run: LoggedRun) -> list[str]:
    """Parts that rise, or are full by their form, while the one for correctness falls or stands."""
    name, part = first_part(run)
    constant = bool(part) and max(part) - min(part) < 1e-9  # nothing was bought at its cost
    if not part or constant or ends(part)[0] >= SOLVED or not (falls(part) or is_flat(part)):
        return []
    others = {other: values for other, values in run.parts().items() if other != name and values}
    full = [key for key, values in others.items() if is_format(key) and ends(values)[1] >= 0.9 * max(1.0, *values)]
    return [other for other, values in others.items() if trend(values) > 0] or full


def paid_feature(run: LoggedRun) -> Fact | None:
    """A feature that the score goes with and that moved to where it pays, with the best paid completions."""
    scored, train = [t for t in run.texts if t.score is not None], [t for t in run.texts if t.kind == "train"]
    steps = sorted({t.step for t in train})
    if len(scored) < 16 or len(steps) < 2:
        return None
    paid, third = payment_by_feature(scored), max(1, len(steps) // 3)
    for name in sorted(paid, key=lambda key: -abs(paid[key])):
        parts = ([t for t in train if t.step in part] for part in ({*steps[:third]}, {*steps[-third:]}))
        first, last = (statistics.fmean(FEATURES[name](t.completion) for t in part) for part in parts)
        moved = (last - first) * (1 if paid[name] > 0 else -1)
        if abs(paid[name]) >= 0.5 and moved > 0.1 * max(abs(first), abs(last), 0.1):
            words = name if paid[name] > 0 else LESS.get(name, f"less {name}")
            text = f"among equally right completions the score goes with {words} (r = {paid[name]:.2f}): {name} is "
            return shown(sorted(scored, key=lambda t: -t.score), f"{text}{first:.3g}, then {last:.3g}")
    return None


def paid_unfinished(run: LoggedRun) -> Fact | None:
    """Completions that are cut and paid all the same: by counting, at least mean + share cut - 1."""
    cut, (name, means) = run.values("truncated"), first_part(run)
    highest = [t.score or 0.0 for t in run.texts] + run.values("score_max") + means
    if len(cut) < 3 or not means or max(highest) > 1:
        return None
    last, mean = ends(cut)[1], ends(means)[1]
    if last < 0.2 or mean + last - 1 <= 0.5 * min(mean, last):
        return None
    text = f"{last:.0%} are cut at the end and {name} is {mean:.3g}"
    return fact(run, "truncated", f"{text}, so at least {mean + last - 1:.0%} are cut and paid")


@cause(
    "the policy buys one part of the reward at the cost of the answer",
    explains=f"{FLAT} {LOST} limit_too_short memorised_prompts updates_too_large",
    change="pay that part only beside a right answer, or not at all; continue from the checkpoint with the best "
    "held-out figure",
    decide_with=TRY_REWARD,
    source="Gao 2022, scaling laws for reward over-optimisation; limit r = 0.5: our heuristic",
    breaks=True,
)
def part_bought(run: LoggedRun) -> Evidence | None:
    """Something else rises or pays, and correctness, by gold answers or held out, does not rise."""
    (name, part), parts, held_out = first_part(run), run.parts(), held_out_gain(run)
    truth = right_gain(run.texts) or held_out
    better = truth is not None and truth[0] > GAIN and truth[1] > -GAIN
    worse = (truth is not None and truth[2] < 0) or (len(parts) > 1 and falls(part))
    rising, feature, unfinished = rising_parts(run), paid_feature(run), paid_unfinished(run)
    scores, points = run.values("score"), run.values("held_out")
    few, rose = len(run.steps()) < TREND_STEPS, run.trend("score") > 0
    if few:  # no trend is judged: the held-out figure must have fallen beyond its interval
        rose = held_out is not None and held_out[2] < -GAIN and len(points) > 2 and scores[:1] < scores[-1:]
    if (few and not rose) or (better and not worse and not unfinished):
        return None
    facts = []
    for other in rising[:2]:
        step = onset(run.series[f"part:{other}"])
        facts.append(fact(run, f"part:{other}", ends_text(other, parts[other]), step))
    facts += [fact(run, first_series(run), ends_text(name, part))] if rising else []
    facts += [unfinished] if unfinished else []
    if feature and not (truth is None and trend(part) > 0):
        facts.append(feature)
    stalled = held_out is not None and held_out[0] <= 0.02 and 0 < max(points) < SOLVED and rose
    if stalled:
        begin, end = (scores[0], scores[-1]) if few else ends(scores)
        text = f"the score rose from {begin:.3g} to {end:.3g}"
        text += f", the held-out figure went from {points[0]:.3g} to {points[-1]:.3g}"
        facts.append(fact(run, "held_out", text))
    sure = (rising and (run.trend("score") > 0 or worse)) or (feature and (worse or stalled)) or unfinished
    if not facts or not (sure or stalled):
        return None
    step = onset(run.series["score"]) if run.series.get("score") else None
    return Evidence(CERTAIN + 0.02 if sure else LIKELY, facts, since=step)


def dying_turn(run: LoggedRun) -> Evidence | None:
    """Rewards of a later turn that were paid early and are not any more, in logged conversations."""
    rows = [
        (row.get("step", 0), row["turn_rewards"]) for row in run.samples if isinstance(row.get("turn_rewards"), list)
    ]
    steps = sorted({step for step, _ in rows})
    for turn in range(1, 4) if len(steps) > 1 else []:
        paid = [(step, values[turn]) for step, values in rows if len(values) > turn and values[turn] is not None]
        half = steps[len(steps) // 2 - 1]
        early, late = ([value for step, value in paid if (step > half) is is_late] for is_late in (False, True))
        if min(len(early), len(late)) >= 6 and statistics.fmean(late) < 0.2 * statistics.fmean(early):
            text = f"turn {turn + 1} paid {statistics.fmean(early):.3g} in the first half"
            text += f" and {statistics.fmean(late):.3g} in the second"
            return Evidence(LIKELY + 0.2, [shown([], text)], since=steps[len(steps) // 2])
    return None


@cause(
    "one part of the reward, or one turn, dies while the whole rises",
    explains="length_fell length_rose entropy_fell held_out_flat entropy_rose part_bought updates_too_large kl_high",
    change="a weight that makes the part worth keeping, or for turns a baseline of their own (--turn_baseline turn)",
    source="each part's own curve; references/environments.md, second attempts",
    breaks=True,
)
def part_dies(run: LoggedRun) -> Evidence | None:
    """A part that was paid falls to a fifth of it and stays there, while the score does not fall."""
    correct, parts = first_part(run)[0], run.parts()
    if run.trend("score") < 0:
        return None
    others = {} if run.trend(f"part:{correct}") < 0 else parts
    for name, values in others.items():
        if len(values) < 6 or name == correct:
            continue
        first, last = ends(values)
        if first > 0.05 and last < 0.2 * first and trend(values) <= 0 and max(values[-3:]) < 0.5 * first:
            step = onset(run.series[f"part:{name}"])
            text = f"{ends_text(name, values)} while {ends_text('the score', run.values('score'))}"
            return Evidence(CERTAIN + 0.05, [fact(run, f"part:{name}", text, step)], since=step)
    return dying_turn(run)


@cause(
    "the policy memorises a few prompts: the training score rises, the held-out figure does not",
    explains=f"{FLAT} entropy_fell kl_high length_fell length_rose too_easy other_eval_task updates_too_large",
    change="more distinct prompts, each seen a few times at most; keep the checkpoint with the best held-out figure",
    decide_with="python scripts/evaluation.py on the start and the end, on other prompts of the task",
    source="definition of a held-out set; gain held out below half of the gain in training",
    breaks=True,
)
def memorised_prompts(run: LoggedRun) -> Evidence | None:
    """The training score for correctness rose far above the held-out figure, on few distinct prompts."""
    gain, (name, part), held_out = held_out_gain(run), first_part(run), run.values("held_out")
    if not gain or len(part) < 6 or max(part) > 1:
        return None
    first, last = ends(part)
    rose = last - first
    alike = first <= held_out[0] + 0.15 or min(run.series["held_out"]) > 3  # at the start, where that was measured
    held_back = alike and gain[0] <= 0.5 * rose and last >= held_out[-1] + 0.15
    if rose < 0.1 or trend(part) < 0 or not held_back:
        return None
    train = [t for t in run.texts if t.kind == "train"]
    right, wrong = scores_by_answer(train)
    if len(right) > 8 and len(wrong) > 8 and sum(wrong) / len(wrong) > 0.5 * sum(right) / len(right):
        return None  # wrong completions are paid too: the reward is at fault
    text = f"{name} rose from {first:.3g} to {last:.3g} in training"
    facts = [fact(run, "held_out", f"{text}, held out from {held_out[0]:.3g} to {held_out[-1]:.3g}")]
    drawn = {(t.step, t.prompt) for t in train}  # a step's repeats of a prompt are one draw
    distinct, rows = len({prompt for _, prompt in drawn}), run.settings.get("rows")
    if rows and rows <= 128:
        facts.append(Fact(f"the training data have {rows} distinct prompts", "data"))
    elif len(drawn) >= 3 and distinct <= 0.7 * len(drawn):
        facts.append(shown(train, f"{len(drawn)} logged draws are of {distinct} distinct prompts"))
    points = run.points(first_series(run))
    ahead = next((step for step, value in points if value > first + max(rose / 2, GAIN)), points[-1][0])
    return Evidence(CERTAIN + 0.04 if len(facts) > 1 else LIKELY, facts, since=ahead)


def common_words(prompts: list[str]) -> set[str]:
    """Words and signs that a third of the prompts have; numbers are 0."""
    words = [re.findall(r"[A-Za-z]+|\d+|[^\w\s]", prompt.lower()) for prompt in prompts]
    sets = [{re.sub(r"\d+", "0", word) for word in one} for one in words]
    return {word for word in set().union(*sets) if sum(word in words for words in sets) * 3 >= len(sets)}


def unlike_training(run: LoggedRun) -> Fact | None:
    """A 0/1 score of training prompts that is far from that of held-out ones, from the start and to the end."""
    (name, part), held_out, spread = first_part(run), run.values("held_out"), run.early("score_std", 1)
    if len(held_out) < 2 or len(part) < TREND_STEPS or len(run.parts()) > 1 or not spread:
        return None
    if min(part) < 0 or max(part) > 1 or abs(spread[0] - math.sqrt(part[0] * (1 - part[0]))) > 0.05:
        return None  # not 0/1: the held-out share of full marks is another figure
    count = int(run.number("batch") or 32)
    if max(held_out) > 0.05 or wilson_interval(part[0] * count, count)[0] < 0.2 or trend(part) < 0:
        return None
    text = f"{name} goes from {part[0]:.3g} to {ends(part)[1]:.3g} in training"
    return fact(run, "held_out", f"{text} and stays at {max(held_out):.3g} held out")


@cause(
    "the held-out prompts do not measure the task: they are of another task, or also train",
    explains="held_out_flat memorised_prompts part_bought gold_mismatch",
    change="hold out prompts of the training task: python scripts/data_loader.py FILE --split 0.1 --out train.jsonl",
    source="definition of a held-out set",
)
def other_eval_task(run: LoggedRun) -> Evidence | None:
    """Held-out prompts also train, or what most of them have in common is not what training prompts have."""
    trained = {step: value for step, value in run.columns.get("eval/trained_rows", {}).items() if value}
    same = any(a and a == b for a, b in ((run.config.get(x), run.config.get(y)) for x, y in DATA_FILES))
    if trained or (same and run.values("held_out")):
        text = "the training file is the evaluation file too"
        if trained:
            step, count = next(iter(trained.items()))
            of = run.columns.get("eval/rows", {}).get(step)
            text = f"{count:.0f}{f' of {of:.0f}' if of else ''} evaluation prompts also occur in training"
        return Evidence(CERTAIN + 0.05, [fact(run, "held_out", f"{text}; the accuracy is inflated")])
    unlike = unlike_training(run)
    if unlike:
        return Evidence(CERTAIN + 0.02, [unlike])
    train, held_out = (sorted({t.prompt for t in run.texts if t.kind == kind}) for kind in ("train", "eval"))
    name, part = first_part(run)
    alike = run.values(f"held_out_part:{name}")  # the same reward on held-out prompts
    follows = len(alike) > 1 and len(part) > 1 and alike[-1] - alike[0] > 0.5 * (ends(part)[1] - part[0]) > 0.02
    if len(train) < 2 or len(held_out) < 4 or gained(run) or follows:
        return None
    a, b = common_words(train), common_words(held_out)
    if len(a & b) > 0.5 * min(len(a), len(b)) and not (b - a and a - b and len(a & b) < 0.75 * max(len(a), len(b))):
        return None
    words = [" ".join(sorted(x)[:6]) or "-" for x in (a - b, b - a)]
    examples = [next(t for t in run.texts if t.kind == kind) for kind in ("train", "eval")]
    said = shown(examples, f"training prompts have {words[0]}, held-out ones {words[1]}")
    sure = run.trend("score") > 0 and len(train) > 3
    return Evidence(CERTAIN + 0.04 if sure else LIKELY + 0.1, [said])


@cause(
    "every completion gets the same partial credit and none gets full marks, so nothing tells completions apart",
    explains=f"{FLAT} too_easy too_hard entropy_fell",
    change="show the form that earns full marks in the prompt, or warm start on it; a part that every completion earns "
    "teaches nothing more",
    decide_with=TRY_MODEL,
    source="definition of a group's advantage; measured on Qwen2.5-Coder-0.5B (benchmarks/README.md)",
)
def partial_credit_stalls(run: LoggedRun) -> Evidence | None:
    """Scores rose to a level below full marks, where groups score alike; no held-out text has full marks."""
    scores, alike, held_out = run.values("score"), run.values("zero_std"), run.values("held_out")
    if len(scores) < TREND_STEPS or len(run.parts()) > 1 or not alike or not held_out or max(held_out) > 0.02:
        return None
    level, last = scores[-1], min(3, len(scores))
    settled = max(scores[-last:]) - min(scores[-last:]) <= 0.05 and min(alike[-last:]) >= 0.7
    if not settled or not 0.1 <= level <= 0.95 or level < scores[0] + 0.1 or alike[0] >= 0.9:
        return None
    text = f"the score rose from {scores[0]:.3g} to {level:.3g} and stays there"
    text += f"; {alike[-1]:.0%} of the groups score all alike; full marks held out: {max(held_out):.3g}"
    paid = [t for t in run.texts if t.kind == "train" and t.score and abs(t.score - level) <= 0.05]
    facts = [fact(run, "score", text), *([shown(paid, f"logged completions with {level:.3g}")] if paid else [])]
    return Evidence(CERTAIN + 0.03, facts)


OUTCOME_CAUSES = (part_bought, part_dies, memorised_prompts, other_eval_task, partial_credit_stalls)


# ----------------------------------------------------------------------- ranking (src/parts/reading/causes/ranking.py)

CAUSES = (*MACHINERY_CAUSES, *GROUP_CAUSES, *REWARD_CAUSES, *UPDATE_CAUSES, *OUTCOME_CAUSES)
SAMPLES = "samples.jsonl, log_completions=True, trainer.rollout_data_dir"
LEARNED, NOT_LEARNED, BROKEN, TOO_SHORT = "learned", "did not learn", "broken", "too short"


def ranked_causes(run: LoggedRun, seen: dict[str, Fact]) -> list[tuple[Cause, Evidence]]:
    """At most two causes: those that no other one explains, the surest first, then those that explain most."""
    found = [(cause, evidence) for cause in CAUSES if (evidence := cause.evidence(run))]
    found = [(cause, evidence) for cause, evidence in found if evidence.strength >= LIKELY - 0.2]

    def weight(pair: tuple[Cause, Evidence]) -> tuple:
        cause, evidence = pair
        explained = sum(sign in seen for sign in cause.explains.split())
        return evidence.strength >= CERTAIN, evidence.strength + 0.01 * explained

    found.sort(key=weight, reverse=True)
    places = {cause.name: (-evidence.strength, place) for place, (cause, evidence) in enumerate(found)}

    def is_explained(cause: Cause, evidence: Evidence) -> bool:
        """Whether another cause, of two that explain each other the stronger, explains this one."""
        others = [other for other, stronger in found if stronger.strength >= evidence.strength - 0.3]
        others = [other for other in others if cause.name in other.explains.split()]
        own = cause.explains.split()
        return any(other.name not in own or places[other.name] < places[cause.name] for other in others)

    roots = [pair for pair in found if not is_explained(*pair)]
    if not roots or roots[0][1].strength < LIKELY:
        return []
    first = roots[0][1].strength
    second = [pair for pair in roots[1:] if pair[1].strength >= (CERTAIN if first >= CERTAIN else first - 0.25)]
    return [roots[0], *second[:1]]


def judged_run(run: LoggedRun, causes: list[tuple[Cause, Evidence]], seen: dict[str, Fact]) -> tuple[str, int | None]:
    """The verdict, and the step since which a run is broken."""
    gain = held_out_gain(run)
    sure = [(cause, evidence) for cause, evidence in causes if evidence.strength >= CERTAIN]
    broken = [(cause, evidence) for cause, evidence in sure if cause.breaks]
    lost = seen.get("score_fell")
    if broken or lost:
        steps = [evidence.since for _, evidence in broken if evidence.since is not None] + ([lost.step] if lost else [])
        return BROKEN, min(steps, default=min(run.steps(), default=1))
    if gain and gain[2] < 0 and gain[0] < -GAIN:
        return BROKEN, min((step for step in run.series["held_out"] if step), default=None)
    works = gain[1] > 0 if gain else trend(first_part(run)[1]) > 0
    if works and gained(run) and not any(cause.name != "critic_useless" for cause, _ in sure):
        return LEARNED, None
    hopeless = [cause for cause, _ in sure if cause.name not in ("critic_useless", "memory_grows")]
    if hopeless or (is_flat(run.values("score")) and not (gain and gain[2] > 2 * GAIN)):
        return NOT_LEARNED, None
    if gain and gain[2] < GAIN and len(run.steps()) >= 2 * TREND_STEPS:
        return NOT_LEARNED, None
    return TOO_SHORT, None


def what_was_read(run: LoggedRun) -> tuple[list[str], list[str]]:
    """What the run left, and what more would decide."""
    texts, source = run.texts, run.settings_file or "beside the log"
    read = (  # whether it is there, what it is called then, what would give it
        (run.steps(), f"{run.format}, {len(run.steps())} steps", ""),
        (run.series.get("score"), "", "the score under a known name: --columns reward=NAME"),
        (run.config or run.settings_file, f"settings ({source})", "settings: --settings FILE"),
        (texts, f"{len(texts)} samples", f"samples with scores ({SAMPLES})"),
        (not texts or any(t.score is not None for t in texts), "", "scores of the samples, logged beside them"),
        (
            not texts or any(t.gold for t in texts),
            "gold answers" * bool(texts),
            "gold answers of the samples: --data FILE",
        ),
        (run.reward_source, "the reward's source", "the reward's source: --reward FILE.py:function"),
        (len(run.values("held_out")) > 1, "a held-out figure", "two held-out evaluations"),
        (run.series.keys() & {"score_std", "zero_std", "score_max"}, "", "the spread of scores of a step"),
    )
    return [name for there, name, _ in read if there and name], [name for there, _, name in read if name and not there]


def diagnose(run: LoggedRun) -> dict:
    """A run's verdict, causes and what they rest on, as plain data."""
    seen = signs(run)
    causes = ranked_causes(run, seen)
    verdict, since = judged_run(run, causes, seen)
    words = WORDS[run.trainer] | {"reward": first_part(run)[0] if run.parts() else "NAME"}
    had, lacked = what_was_read(run)
    steps = run.steps() or [step for _, step, _ in run.bad]
    explained = {name for cause, _ in causes for name in cause.explains.split()}
    return {
        "path": run.path,
        "format": run.format,
        "trainer": run.trainer,
        "steps": [min(steps), max(steps)],
        "verdict": verdict,
        "since_step": since,
        "causes": [
            {
                "cause": cause.name,
                "certainty": "certain" if evidence.strength >= CERTAIN else "likely",
                "says": cause.says,
                "evidence": [asdict(fact) | {"samples": list(fact.samples)} for fact in evidence.facts],
                "explains": [seen[sign].text for sign in seen if sign in cause.explains.split()],
                "decide_with": cause.decide_with.replace("RUN", run.path).format(**words) or None
                if len(causes) > 1 or evidence.strength < CERTAIN
                else None,
                "change": cause.change.format(**words),
                "source": cause.source,
            }
            for cause, evidence in causes
        ],
        "unexplained": [fact.text for sign, fact in seen.items() if sign not in explained],
        "had": had,
        "lacked": lacked,
        "remarks": run.remarks,
    }


# --------------------------------------------------------------------------------- diagnose (src/programs/diagnose.py)

SHOWN_TEXT = 160  # characters of a sample that is shown
REMOVED = {
    "plot": "scripts/report.py, which draws all curves with the evidence marked",
    "overwrite": "scripts/report.py",
}


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    text = "run folder or log, see above; several are read in turn"
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_FILE", help=text)
    parser.add_argument("--json", action="store_true", help="verdicts as JSON on standard output (default: text)")
    text = "completions per prompt, where the log does not say (default: 0, from the run's settings)"
    parser.add_argument("--group_size", "--group-size", type=int, default=0, metavar="G", help=text)
    text = f"names in this log of the figures that are looked at: {', '.join(FIGURES)} (default: known names)"
    parser.add_argument("--columns", nargs="+", metavar="FIGURE=NAME", default=[], help=text)
    for name, text in (
        ("settings", "settings that lie elsewhere: YAML, JSON, a shell or a Python script, which is not run"),
        ("samples", "samples that lie elsewhere: JSONL, CSV or parquet with prompt, completion, score"),
        ("data", "training data, for gold answers by prompt: JSONL, JSON, CSV or parquet"),
        ("reward", "FILE.py:function of the reward, to read, and for --rescore to run"),
    ):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"{text} (default: beside the log)")
    text = "run the reward in the sandbox on logged samples, gold and nonsense (default: run no code)"
    parser.add_argument("--rescore", action="store_true", help=text)
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """The pairs of --columns, checked."""
    columns = dict(pair.partition("=")[::2] for pair in pairs)
    for figure, name in columns.items():
        known = figure in FIGURES and name
        need(known, f"got --columns {figure}={name}; expected FIGURE=NAME with a figure of {', '.join(FIGURES)}")
    return columns


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
    first, last = data["steps"]
    since = f" since step {data['since_step']}" if data["since_step"] is not None else ""
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {data['verdict']}{since}")
    texts = {text.id: text for text in run.texts}
    for cause in data["causes"]:
        tell(f"\n  {cause['certainty'].upper()} {cause['cause']}: {cause['says']}")
        for item in cause["evidence"]:
            place = f"  ({item['figure']}{'' if item['step'] is None else ', step {step}'.format(**item)})"
            tell(f"    saw       {item['text']}{place if item['figure'] else ''}")
            for id in item["samples"]:
                text = texts[id]
                score = "" if text.score is None else f"{text.score:.3g}"
                tell(f"              {id} score {score} gold {text.gold}: {text.completion[-SHOWN_TEXT:]!r}")
        for text in cause["explains"]:
            tell(f"    explains  {text}")
        tell(f"    change    {cause['change']}")
        if cause["decide_with"]:
            tell(f"    to decide {cause['decide_with']}")
        tell(f"    source    {cause['source']}")
    for text in data["unexplained"] if data["verdict"] != "learned" else []:
        tell(f"  seen: {text}")
    for text in data["remarks"]:
        tell(f"  note: {text}")
    tell(f"\n  had: {', '.join(data['had'])}")
    if data["lacked"]:
        tell(f"  would decide more: {'; '.join(data['lacked'])}")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    reports, failed = [], []
    try:
        args = parse_flags(command_line(), [word for word in words if word != "-"], removed=REMOVED)  # `--json -`
        columns = named_columns(args.columns)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    for source in args.runs:
        try:
            run = load_run(source, columns, args.settings, args.samples, args.data, args.reward, args.group_size)
            if args.rescore:
                rescore(run, args.reward, args.data)
            reports.append(diagnose(run))
            if not args.json:
                tell("\n" * (len(reports) > 1), end="")
                print_verdict(run, reports[-1])
        except UserError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    ill = any(report["causes"] or report["verdict"] not in (LEARNED, TOO_SHORT) for report in reports)
    code = 2 if failed else 1 if ill else 3 if any(report["verdict"] == TOO_SHORT for report in reports) else 0
    if args.json:
        everything = reports + failed
        alone = everything[0] if len(everything) == 1 else {}  # the fields of a single run stand at the top too
        tell(json.dumps({**alone, "runs": everything, "exit_code": code}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
