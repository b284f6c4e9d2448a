#!/usr/bin/env python3
# Built from src/programs/reward_preflight/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyarrow", "datasets", "transformers>=5.23,<6", "torch>=2.6", "numpy", "peft", "jsonschema", "referencing",
# ]
# ///
"""Check a reward function on real rows before a run: does it pay what it should, and only that?

A reward is FILE.py:function[*weight], or a function or preset of the library; several are summed with their weights,
as in the trainers. It is called in a separate process, with a time limit per call, on

    gold       the reference completion of each row, in the format that scores best. Full marks are expected: 95 % of
               the highest documented score, else of gold's best, at least 1
    probes     completions that must not be paid: empty, cut before the answer, the prompt, lists of answers, keywords,
               …; share = (score - floor) / (gold of the row - floor), floor = 0, or the lowest score if gold is <= 0
    contract   the same batch twice, reversed and one by one; gold in another order in a new process; rows without a
               reference; lengths, NaN, exceptions, time limit, changed inputs

--profile says what the reward pays for. With `answer`, the default, the above holds; with `format`, wrong answers in
the right form may be paid; with `judge`, gold needs no full marks and scores may vary. Probes are cut at 4 characters
per token of --max_new_tokens, the run's limit; without it, at 40,000.

`--model M` samples completions from a model, as the run will (16 for each of 32 prompts). It reports how often they
pass (full marks, 1, from the first reward), the prompts by pass rate, and the share of groups of --group_size with both
right and wrong answers. The verdict is *RL now, warm start, easier prompts* or *harder prompts*.

Deliberately left out: environments (prove.py plays them) and, except with --model, a model and a tokenizer
(`completion_ids` has one id per 4 characters). 64 rows take about 1,500 completions.

    python scripts/reward_preflight.py --list
    python scripts/reward_preflight.py --reward my_rewards.py:correct --reward "my_rewards.py:format*0.2" \\
        --data train.jsonl --max_new_tokens 256 --json
    python scripts/reward_preflight.py --model Qwen/Qwen2.5-0.5B-Instruct --chat --reward my_rewards.py:correct \\
        --data train.jsonl --max_new_tokens 512

Exit codes: 0 ready (or listed; --model: RL now), 1 not ready, 2 bad input.
"""

# Contents
#       135-146  python source    Parses Python source in a process with threads
#       149-242  messages         Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#       245-283  bundle           Paths of this bundle and of its embedded model, data and rewards; loading its other …
#       286-482  dialect          Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       485-516  settings         Settings: dataclasses whose fields are flags and YAML keys, and the checks that all …
#       519-843  processes        The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#       846-864  exit codes       Program exit: errors that a user can fix become a message and an exit code
#      867-1104  data files       Open data files as text: decompress, decode, refuse files without data; parse CSV …
#     1107-1204  nested rows      Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1207-1472  rows             Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1475-1584  stated answers   Find where a text states its final answer, by marks and phrases in 20 languages, …
#     1587-1724  answer marks     Extract the final answer of a worked solution: marked by `#### 42`, `\boxed` or …
#     1727-1937  chat             Chat templates: their settings, rendering messages, and prompts that bypass a …
#     1940-2044  prompts          Load training and held-out prompts as token ids
#     2047-2123  pass rates       Pass rates of prompts: pass@k, groups with signal, and advice: RL, a warm start, or …
#     2126-2341  user code        What users' rewards get: texts, copies of the columns, and their own state of the …
#     2344-2455  schema examples  Example values that a JSON Schema accepts, for tests of rewards
#     2458-2695  reward forms     The forms that a reward function may have, and loading rewards from files
#     2698-3013  rewards          The reward of a run, a weighted sum of functions; async ones run in one event loop, …
#     3016-3063  whole models     Refuse what transformers would make a model of by guessing: missing weights, other …
#     3066-3207  adapters         LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     3210-3310  models           The networks of a run: their precision, the frozen reference, prompts that they can …
#     3313-3370  tokenizers       Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     3373-3456  loading          Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, what …
#     3459-3467  batches          Batches: masked statistics, padding, micro-batches, and packed layouts that hold a …
#     3470-3724  key cache        The key-value cache while sampling: it grows in blocks, holds shared prompts once, …
#     3727-3863  forward          The forward pass: attention that runs a shared prompt once, backbone, logits, …
#     3866-3986  faster layers    Faster forms of layers while sampling: LoRA folded into weights, norms in one …
#     3989-4199  cache probe      Probe what a model's cache and attention can do, before sampling and training rely …
#     4202-4284  room steps       One more token per row, with fixed shapes and addresses within the cache, as a CUDA …
#     4287-4468  sampling         Sampling with the policy itself: a KV cache, rows that leave the batch when they end
#     4471-4513  rollouts         Sample and score a batch's rows over all processes
#     4516-4660  rows and gold    Rows of the data, and their reference completions (gold)
#     4663-4839  probes           Completions that must not be paid
#     4842-5029  reward process   The reward's own process, with a time limit: a hang or crash costs one call, and …
#     5032-5122  scoring          Grading completions
#     5125-5473  preflight        The checks of a reward and the verdict
#     5476-5532  report           Printed reports and --list
#     5535-5617  model preflight  --model: how often a model's samples pass, and whether RL, a warm start or other …
#     5620-5729  command          The command line

import argparse
import ast
import asyncio
import builtins
import codecs
import contextlib
import copy
import csv
import ctypes
import datetime
import difflib
import faulthandler
import functools
import gc
import gzip
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import logging
import math
import os
import pickle
import random
import re
import resource
import shlex
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

# --------------------------------------------------------------- python source (src/parts/foundation/python_source.py)


def parse_python(source: str, name: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """`ast.parse`, repeated on SystemError: CPython 3.11 counts the depth of all threads together, so that another
    thread can make it fail on valid source. A lock would hang in a process that is forked while it is held."""
    for _ in range(100):
        try:
            return ast.parse(source, name, mode)
        except SystemError:
            continue
    return ast.parse(source, name, mode)


# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns without one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


class RewardError(UserError):
    """A reward function raised or returned something that is not a score."""

    code = 3


class DivergedError(UserError):
    """Too many updates in a row were not finite."""

    code = 4


class MemoryShortage(UserError):
    """Memory ran out. `before_update`: the step had not changed any weight yet."""

    def __init__(self, message: str, before_update: bool = False):
        super().__init__(message)
        self.before_update = before_update


class RowFlaw(UserError):
    """A row that cannot be used: its field, what it held, what was expected, and how to fix it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


SHORT = re.compile(r"out of memory|not enough memory|(can't|cannot) allocate memory|_ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error or one of its causes, up to a UserError, says that CPU or GPU memory ran out."""
    while error and not isinstance(error, UserError):
        if isinstance(error, MemoryError) or SHORT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def memory_shortage(phase: str, error: BaseException, advice: str, before_update: bool = False) -> MemoryShortage:
    """The MemoryShortage for an error of `is_out_of_memory`."""
    reason = str(error).partition("\n")[0][:200] or type(error).__name__
    message = f"got an out-of-memory error {phase} ({reason}); expected enough memory; try {advice}"
    return MemoryShortage(message, before_update)


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, in the first process of a torchrun launch only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@functools.cache
def say_once(text: str) -> None:
    """`say` a text, but only the first time."""
    say(text)


def tell(*words, end: str = "\n") -> None:
    """Print a result on stdout; escape characters that its encoding lacks, print nothing once its reader closed it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    words = [str(word).encode(encoding, "backslashreplace").decode(encoding) for word in words]
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str], cutoff: float = 0.6) -> str:
    """'; try NAME' for the name most similar to a word; "" if none is similar."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, 1, cutoff))


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")
EMBEDDED_DATA = str(BUNDLE / "assets" / "data" / "arithmetic_train.jsonl")
EMBEDDED_EVAL = str(BUNDLE / "assets" / "data" / "arithmetic_eval.jsonl")
EMBEDDED_REWARDS = str(BUNDLE / "examples" / "reward_functions_library.py")


def in_bundle(path: str) -> str:
    """How a command names a file of this bundle: as it is, if that works from here, else by its whole path."""
    return path if Path(path).is_file() or not (BUNDLE / path).is_file() else shlex.quote(str(BUNDLE / path))


def sibling_path(name: str) -> Path | None:
    """The script NAME.py beside this file or in the bundle's scripts; None if there is none."""
    places = [folder / f"{name}.py" for folder in (HERE.parent, BUNDLE / "scripts")]
    return next((place for place in places if place.is_file()), None)


def has_sibling(name: str) -> bool:
    """Whether `sibling` finds this bundle's script; beside a copy may be a file of that name by somebody else."""
    path = sibling_path(name)
    return bool(path) and f"# Built from src/programs/{name}" in path.read_text(encoding="utf-8", errors="ignore")[:200]


@functools.cache
def sibling(name: str):
    """Load the script of `sibling_path` when it is first needed."""
    path = sibling_path(name)
    need(path, f"got no {name}.py in {HERE.parent}; expected it; try copying the bundle's scripts/{name}.py there")
    if str(path) in sys.modules:
        return sys.modules[str(path)]
    spec = importlib.util.spec_from_file_location(str(path), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # only now, as other threads and copies of this file must not see half of it; the first one counts
    return sys.modules.setdefault(str(path), module)


# --------------------------------------------------------------------------- dialect (src/parts/foundation/dialect.py)

# Each line has names of the same meaning and unit. A program maps those that it does not have to the one that it has.
SYNONYMS = [
    line.split()
    for line in """
model model_name_or_path model_name pretrain
data dataset dataset_name train_data train_dataset prompt_data
eval_data eval_dataset
reward reward_funcs
output_dir out output save_path
prompt_column input_key
lr learning_rate actor_learning_rate
critic_lr critic_learning_rate
lr_schedule lr_scheduler_type
steps max_steps total_training_steps
group_size num_generations n n_samples_per_prompt
max_prompt_tokens max_prompt_length prompt_max_len
max_new_tokens max_completion_length max_response_length response_length generate_max_len
kl_coef beta
gae_lambda lambd lam
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
teacher teacher_model teacher_model_name_or_path
""".strip().splitlines()
]
SAMPLED_WHOLE = "the loss takes log-probs of the whole distribution, so tokens are sampled from it; try --temperature"
TRL_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
# (names that a program does not have, settings that it must have, how these follow from the name or replace it)
RELATIONS = (
    ("epochs", "ppo_epochs", "passes over a batch are --ppo_epochs; passes over the data follow from --steps"),
    ("epochs", "num_iterations", "passes over a rollout are --num_iterations, over the data --num_train_epochs"),
    ("num_train_epochs", "steps batch_size", "steps = num_train_epochs x rows x completions per prompt / batch_size"),
    ("num_train_epochs", "steps prompts", "steps = num_train_epochs x rows / prompts"),
    ("top_p top_k min_p repetition_penalty", "temperature steps lr", f"unsupported: {SAMPLED_WHOLE}"),
    ("eps_clip cliprange", "clip_eps_low clip_eps_high", "try --clip_eps_low and --clip_eps_high, one for each side"),
    ("set", "as minutes", "numbers are read from the source: write a loss's own ones in its file, or as parameters"),
    ("advantage_estimator adv_estimator", "algorithm", "OpenRLHF's gae is --algorithm ppo, group_norm is grpo"),
    (
        "remote_rm_url reward_pretrain reward_model_path reward_model",
        "reward",
        "rewards are functions, which may call a model; try --reward FILE.py:function",
    ),
    ("ref_model ref_pretrain", "kl_coef algorithm", "the reference is the initial --model; try --kl_coef above 0"),
    ("system_prompt", "prompt_column steps", "prompts are sent unchanged; try a system message in each prompt"),
    ("warmup_ratio", "warmup_steps", "warmup_steps = warmup_ratio x steps"),
    ("prompts", "batch_size group_size", "batch_size = prompts x group_size"),
    ("train_batch_size", "batch_size group_size", "batch_size = verl's train_batch_size x group_size"),
    ("generation_batch_size", "batch_size minibatches", "batch_size is the same"),
    ("steps_per_generation", "minibatches", "minibatches = steps_per_generation / gradient_accumulation_steps"),
    ("micro_batch micro_batch_size", "micro_batch_tokens", "micro_batch_tokens = rows of a pass x tokens of a row"),
    ("tools", "environment max_turns", "try --environment FILE.py:Class, with the functions as its methods"),
    ("keep_between", "dynamic_sampling", "try --dynamic_sampling, which replaces groups of equal score"),
    ("keep_between", "trainer_args", "try scripts/ppo_train.py --algorithm grpo --dynamic_sampling"),
    ("generation_batch_size", "steps_per_generation", "try --steps_per_generation, forward passes per rollout"),
    ("python torch vllm verl user extra from_env", "style", "try editing the Dockerfile: `pip freeze` shows versions"),
    ("megatron flash_attn", "style", "try --style verl, whose image has it"),
    ("parameters", "hardware", "try --lr"),
    ("plot", "inspect", "try --inspect, which prints percentiles of the lengths"),
    ("run_script", "hardware", "try --data rows.jsonl, after `DATASET.to_json('rows.jsonl')` in the script"),
    ("teacher_column", "teacher steps", "try one run per teacher, each from the final/ of the previous run"),
    ("input_format delimiter", "map drop", "try a file name with the format's suffix, and commas between columns"),
    ("force overwrite", "map drop", "--out replaces a file without asking"),
    ("score completion_column", "gold_column allow", "try evaluation.py --task reward:FUNCTION --completion_column C"),
    (
        "environment max_turns tool_timeout policy",
        "gold_column allow",
        "removed; try prove.py ENV.py:Class --data FILE",
    ),
    ("samples_per_prompt pass_low pass_high", "gold_column allow", "removed; fixed: 16 samples, rates of 0.1 to 0.9"),
    ("gold_column gold_template tool_timeout full_score allow", "max_turns", "prove.py reads a column gold, paid 1"),
    ("submit slurm", "hardware", "try --print, and `ray job submit --working-dir OUTPUT_DIR/job -- bash run.sh`"),
    ("gpu_memory", "hardware", "removed: the page verl_training.md has the memory of each part; try leaving it out"),
    ("backend tensor_parallel", "hardware", "try --override model_engine=megatron, or nothing for FSDP 2"),
    ("columns", "gold_column signature", "try --gold_column NAME; for several --signature 'NAME(completions, A, B)'"),
    ("prompt_column answer_column gold_column", "fewshot", "try data_loader.py, --map prompt=COLUMN answer=COLUMN"),
    ("rule", "schema signature", "removed; try --task qa, and edit its `score`"),
    ("weights", "schema signature", "removed; try --from FILE.py:REWARDS*WEIGHTS, where WEIGHTS is a list of the file"),
    (
        "min_coverage min_entropy min_format min_prompts min_steps max_per_prompt pass_high",
        "min_rounds completion_column",
        "removed: a constant of the script; try --pass_low, --min_rounds or --max_draws",
    ),
    ("top_k_of", "kl_top_k", "removed: --kl_top_k takes the teacher's likeliest tokens"),
    ("advantage advantage_std advantage_eps", "reward_coef", "removed: it is the score minus its group's mean"),
    ("lora_dropout", "trainer_args", "removed: adapters have no dropout; try leaving it out"),
    ("shuffle_dataset", "trainer_args", "removed: each pass has a new order; try leaving it out"),
    ("top_entropy_quantile", "trainer_args", "try --trainer_args top_entropy_quantile=0.2"),
    ("stages", "trainer_args", "removed; try one run for each, with --model RUN/final, or a reward as AdaptiveReward"),
    ("answer_column gold_column", "reward seed", "a reward names its columns: def reward(prompt, completion, COLUMN)"),
    ("lora_rank lora_r lora_alpha", "minutes out", "try --change lora, then r= and lora_alpha= in FILE"),
    ("resume threads rollout_engine save_every", "minutes out", "try ppo_train.py or on_policy_distillation.py"),
    ("resume_from_checkpoint", "resume", "try --resume, for the newest checkpoint of --output_dir"),
    ("use_peft lora_target_modules", "lora_rank", "adapters are on all linear layers; try --lora_rank 16"),
    ("push_to_hub hub_model_id", "output_dir", "try `hf upload NAME OUTPUT_DIR/final` after the run"),
    ("score_while_sampling", "reward_concurrency", "rewards are called after sampling; try `async def` for slow ones"),
    ("reuse_prefill", "rollout_engine share_prompts", "hf always reads equal prompts once; try leaving it out"),
    ("seeds", "seed reward", "try one run for each seed, then scripts/report.py RUN …"),
    ("sample_tokens", "sample_every", "samples.jsonl has no figures of single tokens"),
    ("samples_file log_completions", "seed steps", "the output folder has samples.jsonl"),
    ("use_vllm vllm_mode", "rollout_engine", "try --rollout_engine vllm"),
    ("use_vllm", "engine", "try --engine vllm"),
    ("rollout_engine vllm_mode", "use_vllm", "try --use_vllm colocate or server"),
    ("shown_samples", "bootstrap fewshot", "try scripts/report.py FOLDER, whose page shows the samples"),
    ("bf16 fp16 torch_dtype", "precision", "try --precision bf16, fp16 or fp32"),
    ("algorithm", "loss_type", "try --loss_type, --scale_rewards and --importance_sampling_level"),
    ("loss_type", "loss aggregation", "loss_type grpo is --aggregation seq_mean_token_mean, dapo is token_mean"),
    ("dual_clip delta multi_objective_aggregation", "trainer_args", "try --trainer_args with TRL's name: delta=VALUE"),
    ("scale_rewards", "algorithm advantage", "scale_rewards group is --advantage grpo, none is --advantage mean"),
    ("importance_sampling_level", "algorithm loss", "importance_sampling_level sequence is --loss gspo"),
)


def flag_name(word: str) -> str:
    """The name in `--name` or `--name=value`, with `_` for `-`; "" if the word is not a flag."""
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def flag_values(words: list[str]) -> dict[str, str]:
    """{flag: its last value} of a command line; "" for a flag without a value."""
    follows = [*words, "--"][1:]
    pairs = [
        (word, after if "=" not in word else word.partition("=")[2]) for word, after in zip(words, follows, strict=True)
    ]
    return {flag_name(word): "" if value.startswith("--") else value for word, value in pairs if flag_name(word)}


def relation(name: str, names, values: dict[str, str]) -> str:
    """How a program's settings `names` follow from one that it lacks; "" if unknown. `values`: the command line's."""
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
    fits = (text for others, needed, text in RELATIONS if name in others.split() and {*needed.split()} <= {*names})
    return next(fits, "")


def own_name(name: str, names) -> str:
    """A program's own name for a setting, given its setting names; "" if it has none of the same meaning and unit."""
    if name in names or relation(name, names, {}):
        return name if name in names else ""
    return next((alias for group in SYNONYMS if name in group for alias in group if alias in names), "")


def in_own_words(words: list[str], names, elsewhere=()) -> list[str]:
    """Translate a command line to a program's own names, spelled with `_`.

    TRL's `epsilon` alone bounds both sides, our `clip_eps_low` only one: `clip_eps_high` is added then, unless it is
    among `elsewhere`, the names that a settings file gives.

    Raises:
        UserError: two names of one setting have different values.
    """
    translated, first, values = [], {}, flag_values(words)
    for word in words:
        given = flag_name(word)
        own_key = own_name(given, names) if given else ""
        if own_key and given in values:
            before = first.setdefault(own_key, given)
            both = f"got --{before} {values[before]} and --{given} {values[given]}, two names of one setting"
            need(same_value(values[before], values[given]), f"{both}; expected one of them; try --{own_key}")
        translated.append(f"--{own_key}{word[2 + len(given) :]}" if own_key else word)
    if "epsilon" in values and first.get("clip_eps_low") and not {"clip_eps_high", *elsewhere} & first.keys():
        translated.append(f"--clip_eps_high={values['epsilon']}")
    return translated


def same_value(one: str, other: str) -> bool:
    """Whether two texts are equal as texts or numbers, as `1e-5` and `0.00001` are."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


class BaseConfig:
    """Base of every program's Config. It has defaults for fields that parts read and some programs lack."""

    given = frozenset()  # names of the settings on the command line or in its YAML file
    decode_graphs = True  # a setting of programs that sample in every step
    attn_implementation = "auto"  # a setting of programs that train or evaluate
    share_prompts = False  # of those that train without a library's trainer
    eval_rows = hold_out = 0  # of those that evaluate while training
    threads = "auto"  # of those that compute on a CPU


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    return [flag_name(flag) for action in parser._actions for flag in action.option_strings if flag_name(flag)]


def parse_flags(parser: argparse.ArgumentParser, argv: list[str] | None, elsewhere=()) -> argparse.Namespace:
    """Parse a command line whose flags may be synonyms; `elsewhere` has the settings file's names."""
    argv, names = sys.argv[1:] if argv is None else argv, flags_of(parser)
    try:
        known, unknown = parser.parse_known_args(in_own_words(argv, names, elsewhere))
    except UserError as error:
        parser.error(str(error))
    if unknown:
        name = flag_name(unknown[0])
        follows = relation(name, names, flag_values(argv))
        near = f"; {follows}" if follows else suggest(name, names, 0.7).replace("; try ", "; try --")
        listed = "--help" if parser.add_help else "--list"  # of a page's settings
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of {listed}{near}")
    return known


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)

GRACE_S = 5.0  # seconds for cleanup after a KeyboardInterrupt, before the process is ended by force
WAIT = datetime.timedelta(minutes=30)  # longest wait of a process for the others, whose rollouts may take longer
CGROUPS = Path("/sys/fs/cgroup")
SLOWER = 3.0  # ratio of a step's time to the fastest one's from which other programs may have taken the cores
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # from glibc's malloc.h
GAIN = 1.3  # one thread must be this many times as fast as all threads to be chosen


def lazy_module(name: str):
    """A stand-in for a module that imports it at first use, so that --help answers at once."""

    class LazyModule:
        """Passes every attribute access on to the module; `__getattr__` would take five times as long."""

        def __getattribute__(self, attribute: str):
            module = sys.modules.get(name)
            if module is None or getattr(module.__spec__, "_initializing", False):  # perhaps in another thread
                module = importlib.import_module(name)
            return getattr(module, attribute)

    return LazyModule()


torch, np, transformers = map(lazy_module, ("torch", "numpy", "transformers"))


def world() -> tuple[int, int]:
    """(rank, number of processes) of a torchrun launch; (0, 1) otherwise."""
    if "torch" not in sys.modules:  # without torch there is no group, and --help must not import it
        return 0, 1
    dist = torch.distributed
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def dealt(sizes: list[int], kinds: list, processes: int, slack: float = 0.05) -> list[list[int]]:
    """Divide rows among processes so that the sums of their sizes are similar; the result is the same on each process.

    Rows of one kind form a bundle. Bundles go to the process with the least so far, largest first. As long as a process
    has more than (1 + slack) times its fair share, its largest bundle of several rows is halved and all is dealt anew.
    """
    bundles = {}
    for row, kind in enumerate(kinds):
        bundles.setdefault(kind, []).append(row)
    bundles = list(bundles.values())
    fair = max(math.ceil(sum(sizes) / processes), *sizes, 0)
    while True:
        bundles.sort(key=lambda rows: (-sum(sizes[row] for row in rows), rows))
        shares, loads = [[] for _ in range(processes)], [0] * processes
        for rows in bundles:
            least = loads.index(min(loads))
            shares[least].append(rows)
            loads[least] += sum(sizes[row] for row in rows)
        heaviest = loads.index(max(loads))
        largest = next((rows for rows in shares[heaviest] if len(rows) > 1), None)
        if largest is None or loads[heaviest] <= (1 + slack) * fair:
            return [sorted(row for rows in share for row in rows) for share in shares]
        bundles.remove(largest)
        by_size = sorted(largest, key=lambda row: (-sizes[row], row))
        bundles += [sorted(by_size[::2]), sorted(by_size[1::2])]


def gather_rows(local: list, error: BaseException | None = None, shares: list[list[int]] | None = None) -> list:
    """Gather all processes' rows in the order of the batch; an error in one process is raised in all.

    Args:
        shares: which rows of the batch each process has; None: rank::world.
    """
    size = world()[1]
    if size == 1:
        if error:
            raise error
        return local
    parts = [None] * size
    torch.distributed.all_gather_object(parts, (local, error))
    for _, failure in parts:
        if failure:
            raise failure
    merged = [None] * sum(len(rows) for rows, _ in parts)
    for i, (rows, _) in enumerate(parts):
        for place, row in zip(shares[i] if shares else range(i, len(merged), size), rows, strict=True):
            merged[place] = row
    return merged


@contextlib.contextmanager
def raised_in_all() -> Iterator[None]:
    """Context that raises an error of one process in all processes; every process must enter it."""
    failure, (rank, size) = None, world()
    try:
        yield
    except (Exception, StopRequested) as error:
        kind = MemoryError if is_out_of_memory(error) else UserError
        whole = size == 1 or isinstance(error, UserError | StopRequested)
        failure = error if whole else kind(f"process {rank}: {type(error).__name__}: {error}")
        if not whole:
            traceback.print_exception(error)
    gather_rows([], failure)


def device_name(config: BaseConfig) -> str:
    """The device that --device names; auto is cuda if available, else cpu."""
    name = config.device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    able = here.get(name.split(":")[0] if name.startswith("cuda:") else name, False)
    need(able, f"got --device {name}; expected auto, cpu, cuda[:N] or mps, on a machine that has it; try --device cpu")
    return name


def start_processes(config: BaseConfig):
    """Join the process group of a torchrun launch, choose the CPU threads, and return this process's device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))  # processes on this machine
    need(
        local_size == 1 or not config.device.startswith("cuda:"),
        f"got --device {config.device} for {local_size} processes on a machine; expected a GPU for each; try --device "
        "cuda, and to choose GPUs CUDA_VISIBLE_DEVICES=0,1 before torchrun",
    )
    name = device_name(config)
    if size > 1 and not torch.distributed.is_initialized():
        if name == "cuda":
            gpus = torch.cuda.device_count()
            need(
                int(os.environ["LOCAL_RANK"]) < gpus,
                f"got {local_size} processes and {gpus} GPUs on a machine; expected a GPU for each; try torchrun "
                f"--nproc_per_node {gpus}",
            )
            name = f"cuda:{os.environ['LOCAL_RANK']}"
        # imported before the group exists: its default arguments would keep a group, and its threads, alive to the end
        importlib.import_module("torch.distributed.nn.functional")
        backend = "cpu:gloo,cuda:nccl" if name.startswith("cuda") else "gloo"
        torch.distributed.init_process_group(backend, timeout=WAIT)
    device = torch.device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # new streams and graphs use it
    THREADS.begin(config, device)
    return device


def group_folders(groups: Path, listing: str, controller: str) -> list[Path]:
    """Folders of this process's cgroups, inner ones first; `listing` is the text of /proc/self/cgroup."""
    folders = []
    for line in listing.splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds or controller in kinds.split(","):
            inner = groups / kinds / path.lstrip("/")
            folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(groups / kinds)]
    return folders


def cpu_limit(proc: Path = Path("/proc"), groups: Path = CGROUPS) -> int:
    """Number of CPUs that this process may use, by its affinity and its cgroups' quotas."""
    limit = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    listing = proc / "self" / "cgroup"
    for folder in group_folders(groups, listing.read_text(), "cpu") if listing.exists() else []:
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # cgroups version 2, version 1
            if all((folder / name).exists() for name in names):
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if quota not in ("max", "-1"):
                    limit = min(limit, math.ceil(int(quota) / int(period)))
    return max(limit, 1)


def wait_passively() -> None:
    """Let idle OpenMP threads sleep after some microseconds; call it before torch loads.

    By default they spin for milliseconds, so that three runs on two cores mostly wait for each other.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def use_huge_pages() -> None:
    """Let torch allocate large tensors in huge pages on Linux; call it before torch loads.

    Each large tensor gets fresh pages, which cost a fifth of an update's time on a real model if they have 4 KiB.
    malloc raises its thresholds to these values by itself, but not for aligned memory, as huge pages need.
    """
    if sys.platform != "linux" or "THP_MEM_ALLOC_ENABLE" in os.environ:
        return
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, 2**25)
        mallopt(M_TRIM_THRESHOLD, 2**26)


class CpuThreads:
    """Chooses the number of CPU threads: all that the process may use, or one while other programs need the cores.

    With OMP_NUM_THREADS or --threads N nothing is measured. The choice changes results by rounding at most.
    """

    def __init__(self):
        self.most, self.fastest, self.looked = 0, None, 0.0

    def begin(self, config: BaseConfig, device) -> None:
        """Make the first choice for a run on a device."""
        auto = config.threads == "auto"
        need(
            auto or (config.threads.isdecimal() and int(config.threads) > 0),
            f"got --threads {config.threads}; expected auto or a number from 1 on; try --threads auto",
        )
        self.most = 0
        if not auto:
            torch.set_num_threads(int(config.threads))
        elif "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(min(torch.get_num_threads(), cpu_limit()))
            if device.type == "cpu" and torch.get_num_threads() > 1:
                self.most, self.fastest = torch.get_num_threads(), None
                self.choose()

    def after(self, seconds: float) -> None:
        """Measure again after a step that was much slower than the fastest, and every minute while on one thread."""
        if not self.most:
            return
        fewer = torch.get_num_threads() < self.most and time.perf_counter() - self.looked > 60
        if (self.fastest and seconds > SLOWER * self.fastest) or fewer:
            self.fastest = None
            self.choose()
        else:
            self.fastest = min(seconds, self.fastest or seconds)

    def choose(self) -> None:
        """Time a few matrix products with one thread and with all, and keep the faster number."""
        before = torch.get_num_threads()
        x, y, spent = torch.ones(256, 256), torch.ones(256, 512), {1: 0.0, self.most: 0.0}
        for number in (*spent, *spent, *spent):
            torch.set_num_threads(number)
            torch.mm(x, y)  # wakes the threads
            begin = time.perf_counter()
            for _ in range(20):
                torch.relu(torch.mm(x, y)).sum()
            spent[number] += time.perf_counter() - begin
        number = 1 if spent[1] * GAIN < spent[self.most] else self.most
        torch.set_num_threads(number)
        self.looked = time.perf_counter()
        if number != before:
            reason = "other programs use the cores" if number == 1 else "the cores are free again"
            say(f"{number} of {self.most} CPU threads from now on: {reason}; OMP_NUM_THREADS=N sets them")


THREADS = CpuThreads()


def end_at_once(code: int) -> None:
    """Kill the processes that multiprocessing has started and exit, without waiting for anything."""
    for child in sys.modules["multiprocessing"].active_children() if "multiprocessing" in sys.modules else ():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


class StopRequested(BaseException):
    """A signal asked to stop, and the current step has not changed the run yet."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum


class StopRequest:
    """Lets the current step finish after SIGTERM or SIGINT; a second signal stops the run at once.

    The second signal raises KeyboardInterrupt; if a reward swallows that, the process exits after GRACE_S. torchrun
    kills soon after SIGTERM, so under it the step is abandoned before its update if an earlier step can be saved.
    """

    current = None  # the instance whose handlers are installed

    def __init__(self):
        self.signum, self.earlier, self.end = 0, {}, None
        self.can_save, self.leaving = False, False  # a step can be saved; the current block may be abandoned
        if threading.current_thread() is threading.main_thread():  # only this thread receives signals
            self.earlier = {n: signal.signal(n, self.handle) for n in (signal.SIGTERM, signal.SIGINT)}
            StopRequest.current = self

    def restore(self) -> None:
        StopRequest.current = None
        if self.end:
            self.end.cancel()
        for signum, handler in self.earlier.items():
            signal.signal(signum, handler)

    def handle(self, signum, frame) -> None:
        if self.signum:
            if not self.end:
                self.end = threading.Timer(GRACE_S, end_at_once, [130])
                self.end.daemon = True
                self.end.start()
            raise KeyboardInterrupt
        self.signum = signum
        if self.leaving:
            say("stopping before the update of this step; repeat the signal to stop at once")
            raise StopRequested(signum)
        say("stopping after this step; repeat the signal to stop at once")

    def agreed(self) -> int:
        """The highest signal number that any process got, 0 for none; every process must call it."""
        return max(gather_rows([self.signum]))

    def leaves_steps(self) -> bool:
        """Whether a step may be abandoned before its update: under torchrun, if an earlier one can be saved."""
        return self.can_save and "TORCHELASTIC_RUN_ID" in os.environ


@contextlib.contextmanager
def leaving_early() -> Iterator[None]:
    """Context for code that does not change the run: a signal may end it by StopRequested, in this process only."""
    stop = StopRequest.current
    if not stop or not stop.leaves_steps() or threading.current_thread() is not threading.main_thread():
        yield
        return
    stop.leaving = True
    try:
        if stop.signum:
            raise StopRequested(stop.signum)
        yield
    finally:
        stop.leaving = False


# --------------------------------------------------------------------- exit codes (src/parts/foundation/exit_codes.py)


def quiet_environment(vllm: bool = False) -> None:
    """Set up libraries: no noise in our output, no spinning idle threads, huge pages, no fragmented GPU memory.

    Variables that the user has set stay.

    Args:
        vllm: vLLM samples in this process; its memory pool does not work with expandable segments.
    """
    wait_passively()
    use_huge_pages()
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
    if not vllm and not any(name in os.environ for name in names):
        os.environ[names[0]] = "expandable_segments:True"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a missing 4-bit inference kernel on CPUs


# --------------------------------------------------------------------------- data files (src/parts/data/data_files.py)

HEAD_BYTES = 1 << 18  # bytes at the start of a file that identify its format
MAX_BYTES = 8 << 30  # largest unpacked size of a gzip or parquet file
EXPORT = "unpacking it, or exporting its rows as JSONL or CSV UTF-8"
# PDF, zstd, zip and Excel, old Office, Arrow, pickle, bzip2, xz, 7z, RAR; other binary files have zero bytes
BINARY = re.compile(
    rb"%PDF-|\x28\xb5\x2f\xfd|PK\x03\x04|\xd0\xcf\x11\xe0|ARROW1|\x80[\x02-\x05]|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!"
)
POINTERS = {
    rb"version https://(git-lfs|hawser)\.github\.com/spec/": ("a Git LFS pointer", "`git lfs pull` in its folder"),
    rb"[./]*(\.git|annex)/[\w./-]*objects/\S*\s*\Z": ("a git-annex pointer", "`git annex get` in its folder"),
}
PAGE = re.compile(rb"\s*<(!doctype html|html|\?xml|head|body|error)\b[^\n]*>\s*(\n|\Z)", re.IGNORECASE)
REPLY = re.compile(
    rb"\s*([1-5]\d\d:? |entry |repository |page )?(not found|forbidden|unauthorized)\s*\Z", re.IGNORECASE
)
# prompt columns: ASKS always holds prompts; WEAK does in some files and annotates the rows in others
ASKS = set("prompt question problem query instruction messages conversations conversation chosen completion".split())
WEAK = {"text", "input", "description"}
ANSWER_BELOW = re.compile(r"(?i)(q|question|user|human) ?\d*[:.].*\n\s*(a|answer|assistant|ai) ?\d*[:.]")
NUMBERING = re.compile(r"\A\s*(\d+[.:)]|[^\w\s])\t")  # of a line in a list
OTHER_ENCODING = "data_loader.py --encoding NAME, such as cp1252 or gb18030, if the whole file is in it"
OTHER_BYTES = re.compile("[\udc80-\udcff]")  # how surrogateescape decodes bytes that are invalid in the encoding
SEPARATORS = (",", ";", "\t", "|")
LONGEST_CELL = 256 << 20  # characters
# column names that do not occur as data
HEADER_NAMES = {*ASKS, *WEAK, "answer", "response", "output", "solution", "rejected", "choices", "id"}


class Unpacked(gzip.GzipFile):
    """A gzip file; UserError if it is damaged or unpacks to more than MAX_BYTES."""

    def read(self, size=-1) -> bytes:
        try:
            data = super().read(HEAD_BYTES if size < 0 else size)  # callers that want all read until it is empty
        except Exception as error:  # zlib, gzip and the system raise different types
            got = f"{self.name}: got compressed bytes that cannot be read ({error})"
            raise UserError(f"{got}; expected an intact file") from None
        got = f"{self.name}: got more than {MAX_BYTES} unpacked bytes"
        need(self.tell() <= MAX_BYTES, f"{got}; expected at most that many; try unpacking it first if you trust it")
        return data

    def close(self) -> None:
        """Close the packed file too, which gzip leaves open."""
        packed = self.fileobj
        super().close()
        if packed:
            packed.close()


def open_text(source: str, form: str | None, encoding: str | None = None) -> tuple:
    """Open a file, or stdin (`-`), as text without a byte order mark; returns (stream, form).

    The first bytes show whether it is gzip, as names are often wrong. Text is UTF-8, or UTF-16 with a byte order mark,
    unless `encoding` is given. Invalid bytes become lone surrogates (see `flaw_of_bytes`). A form of None is detected.
    UserError if the file holds no rows: an HTML page, a pickle, a Git LFS pointer.
    """
    name = "stdin" if source == "-" else source
    with contextlib.ExitStack() as opened:
        try:
            raw = io.BufferedReader(sys.stdin.buffer, HEAD_BYTES) if source == "-" else open(source, "rb", HEAD_BYTES)
            head = opened.enter_context(raw).peek(HEAD_BYTES)
        except OSError as error:
            raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
        if head[:2] == b"\x1f\x8b":
            raw = io.BufferedReader(Unpacked(name, "rb", fileobj=raw), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
        wide = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and head[2:4] != b"\0\0"
        is_given, encoding = bool(encoding), encoding or ("utf-16" if wide else "utf-8-sig")
        text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
        refuse_no_data(text.encode() if is_given or wide else head.removeprefix(codecs.BOM_UTF8), name, form)
        form = form_of_text(text, name, form)
        opened.pop_all()
    newline = "" if form in ("csv", "tsv") else "\n"
    return io.TextIOWrapper(raw, encoding, "surrogateescape", newline=newline), form


def flaw_of_bytes(text: str) -> str | None:
    """Describe the first invalid byte in a text of `open_text`; None if there is none."""
    other = OTHER_BYTES.search(text)
    return other and f"byte {ord(other[0]) - 0xDC00:#04x}, which is not UTF-8"


def form_of_text(head: str, name: str, form: str | None) -> str:
    """The form of a text: as given, or detected if it is None or `jsonl`; UserError if the text contradicts it."""
    text = head.lstrip()
    if form is None:
        form = "jsonl" if text.startswith(("{", "[")) else "txt"
    elif form in ("txt", "csv", "tsv") and holds_json(text):
        got = f"{name}: got JSON in a file that is read as {form}"
        raise UserError(f"{got}; expected text; try renaming it to end in .json")
    if form == "txt":
        lines = [line for line in text.splitlines()[:50] if line.strip() and not line.startswith("#")]
        names = re.split(r"[,;\t]", "".join(lines[:1]).strip().lower())
        is_header = len(names) > 1 and {*names} & (ASKS | WEAK) and all(map(str.isidentifier, names))
        widths = {NUMBERING.sub("", line).strip().count("\t") for line in lines} if lines[1:] else set()
        got = f"{name}: got {lines[:2]!r:.80} in a file with one prompt per line; expected prompts"
        need(not is_header, f"{got}; try renaming it to end in .csv")
        need(len(widths) != 1 or widths == {0}, f"{got}; try a first line of column names, and renaming it to .tsv")
        need(not ANSWER_BELOW.match(text), f"{got}; try JSONL with `question` and `answer`")
    return "json" if form == "jsonl" and not begins_lines(text) else form


def begins_lines(text: str) -> bool:
    """Whether a JSON text has one value per line (the first perhaps broken), rather than one array or object."""
    first, _, rest = text.partition("\n")
    if not rest.strip() or first.startswith("["):
        return bool(rest.strip()) and first.rstrip().endswith("]")
    return first.strip() != "{"


def holds_json(text: str) -> bool:
    """Whether a text's first line, or all of it, is a JSON object or array."""
    if not text.startswith(("{", "[")):
        return False
    for part in (text.partition("\n")[0], text):
        with contextlib.suppress(ValueError, RecursionError):
            return isinstance(json.loads(part), dict | list)
    return len(text) >= HEAD_BYTES  # a first line longer than that


def refuse_no_data(head: bytes, name: str, form: str | None) -> None:
    """Raise UserError if the first bytes show a kind of file that holds no rows."""
    kind, advice = None, "looking at the file, then downloading it again"
    if head.startswith(b"PAR1"):
        kind, advice = "a parquet file", "a name that ends in .parquet"
        if form == "parquet":
            return
    elif BINARY.match(head) or b"\0" in head[:1024]:
        kind = "a binary file (a workbook, PDF, archive, pickle or the like), or UTF-16 without its mark"
        advice = f"{EXPORT}, or --encoding utf-16-le"
    elif pointer := next((pair for start, pair in POINTERS.items() if re.match(start, head)), None):
        kind, advice = pointer
    elif PAGE.match(head):
        kind = "an HTML or XML page"
    elif REPLY.match(head):
        kind = f"a server's error message, {head[:80].decode('utf-8', 'replace').strip()!r}"
    need(kind is None, f"{name}: got {kind}; expected rows of data as {form or 'text'}; try {advice}")


def table_rows(text: str, name: str, delimiter: str) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from a CSV text, all cells as text; `delimiter` is the expected separator."""
    csv.field_size_limit(LONGEST_CELL)
    used = separator_of(text, delimiter, name)
    if used != delimiter:
        say(f"{name}: the columns are separated by {used!r}")
    records = first_records(text, used)
    header, *spaced = [len(cells) > 1 and all(cell[:1] == " " for cell in cells[1:]) for cells in records] or [False]
    unquoted = records != first_records(text, used, skipinitialspace=True)
    padded = header or (spaced != [] and all(spaced) and unquoted and "completion" not in records[0])
    if padded and not header:
        say(f"{name}: read without the blank that follows each {used!r} of its rows")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=used, strict=True, skipinitialspace=padded)
    try:
        header = next((cells for cells in reader if any(cells)), [])
    except csv.Error as error:
        raise UserError(f"{name}:1: got a header that is not valid CSV ({error}); expected column names") from None
    yield from body(reader, column_names(header, f"{name}:{reader.line_num}"), used)


def column_names(header: list[str], where: str) -> list[str]:
    """Column names from a header, stripped, without trailing empty ones; warns of a first row that may be data."""
    names = filled([cell.strip() for cell in header])
    flaw = flaw_of_bytes("".join(names))
    need(not flaw, f"{where}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    mark = ",".join(names)
    got = f"{where}: got Excel's mark {mark!r}"
    need(mark[:4] != "sep=", f"{got}; expected the names of columns; try deleting the line")
    check_distinct(names, where)
    text = next((cell for cell in names if len(cell) > 60 or cell[-1:] in tuple(".?!:。？！")), None)
    if text and not HEADER_NAMES & {cell.casefold() for cell in names}:
        say(f"warning: {where}: got the column name {text[:60]!r}; if it is data, put a line of column names above it")
    return names


def check_distinct(names: list[str], where: str) -> None:
    twice = [column for column, count in Counter(names).items() if count > 1]
    need(not twice, f"{where}: got the column {twice[:1]} twice; expected each name once; try renaming one")


def body(reader, names: list[str], delimiter: str) -> Iterator[tuple[int, dict | RowFlaw]]:
    while True:
        start = reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            advice = 'writing a quote inside a cell as ""'
            yield start + 1, RowFlaw("row", f"invalid CSV ({error})", "RFC 4180 quoting", advice)
            if reader.line_num == start:
                return
            continue
        if not any(cell.strip() for cell in cells):
            continue
        cells = cells[: len(names)] + filled(cells[len(names) :])
        lines = "\t".join(cells).split("\n")
        if flaw := flaw_of_bytes("".join(cells)):
            yield start + 1, RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
        elif len(cells) != len(names):
            expected = f"{len(names)} as in the header {', '.join(names)[:60]}"
            advice = f"quoting fields that hold {delimiter!r}, or a header alone in the first line"
            yield start + 1, RowFlaw("row", f"{len(cells)} fields", expected, advice)
        elif len(names) > 1 and [cell.strip("\ufeff \t") for cell in cells] == names:
            yield start + 1, RowFlaw("row", "the header again", "a row", "deleting the line, where files were joined")
        elif delimiter == "\t" and len(lines) > 1 < len(cells) and {x.count("\t") for x in lines} == {len(cells) - 1}:
            got = f"a quote that is closed in another row, {cells!r:.80}"
            yield start + 1, RowFlaw("row", got, "quotes within a row", 'a file with commas, or "" for each quote')
        else:
            yield start + 1, dict(zip(names, cells, strict=True))


def filled(cells: list[str]) -> list[str]:
    """The cells without trailing empty ones."""
    size = next((size for size in range(len(cells), 0, -1) if cells[size - 1].strip()), 0)
    return cells[:size]


def first_records(text: str, delimiter: str, **form) -> list[list[str]]:
    """The non-empty ones of the first 50 records, up to the first that is not valid CSV."""
    reader, records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, **form), []
    with contextlib.suppress(csv.Error):
        records += (cells for cells in itertools.islice(reader, 50) if any(cells))
    return records


def separator_of(text: str, delimiter: str, name: str) -> str:
    """The separator that splits the header, and preferably no row into more cells; UserError if several do."""
    parted = {}
    for separator in dict.fromkeys((delimiter, *SEPARATORS)):
        widths = [len(filled(cells)) for cells in first_records(text, separator)]
        if widths and widths[0] > 1:
            parted[separator] = max(widths) == widths[0]
    likely = [separator for separator, steady in parted.items() if steady] or [*parted] or [delimiter]
    got = f"{name}: got columns that may be separated by {' or '.join(map(repr, likely))}"
    need(delimiter in likely or len(likely) == 1, f"{got}; expected one of them; try exporting it with commas")
    return delimiter if delimiter in likely else likely[0]


# ------------------------------------------------------------------------- nested rows (src/parts/data/nested_rows.py)

ANSWERED = {"answer", "solution", "completion", "response", "output", "chosen"}
LISTS = set(
    "data rows examples samples items records instances entries tasks problems prompts dataset train test validation "
    "valid dev eval questions paragraphs qas".split()
)
CONTEXT = {"text", "context", "passage", "article", "story", "paragraphs", "document", "table", "background", "body"}
CHAT = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(role|from|content|value)\1\s*:""")
VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # a visible character
CHAT_COLUMNS = (*sorted(ASKS), "rejected", "response", "output", "text", "input", "history")


def rows_in(value: dict, name: str, known=()) -> list | None:
    """The rows inside a file's only object; None if the object is itself a row, UserError if that is unclear.

    `known` has further column names that mark a row.
    """
    if (table := rows_of_columns(value, name, known)) is not None:
        return table
    names, table = value.get("columns"), value.get("data")
    is_split = value.keys() <= {"columns", "index", "data"} and isinstance(table, list) and table
    # to_json(orient="split") of pandas
    if is_split and all(isinstance(row, list) and len(row) == len(names) for row in (names, *table)):
        return [dict(zip(map(str, names), row, strict=True)) for row in table]
    only = next(iter(value.values())) if len(value) == 1 else None
    if isinstance(only, dict) and only:
        return rows_in(only, name, known)
    lists = {key: item for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)}
    keyed = [item for item in value.values() if isinstance(item, dict) and item.keys() & {*ASKS, *known}]
    if len(keyed) == len(value) > 1 and not value.keys() & {*ASKS, *WEAK, *ANSWERED, *LISTS}:
        say(f"{name}: read the values of its one object as rows; not used: its keys, {', '.join(value)[:100]}")
        return keyed
    holders = {key: item for key, item in lists.items() if key in LISTS or is_row(item[0])}
    asks, rows = value.keys() & {*ASKS, *known}, any(is_row(holders[key][0]) for key in LISTS & holders.keys())
    if not holders or (asks and (value.keys() & {*ANSWERED, *known} or not rows)):
        return None
    key, items = next(iter(holders.items()))
    cases = {"input", "output"} <= items[0].keys() and value.keys() & WEAK  # test cases of one programming task
    if len(holders) == 1 and not asks and not cases and not value.keys() & CONTEXT:
        if unused := [other for other in value if other != key]:
            say(f"{name}: read the rows of {key!r}; not used: {', '.join(unused)[:200]}")
        if cut := sum(bool(item.get("truncated_cells")) for item in items):
            say(f"warning: {name}: the hub's viewer cut off texts in {cut} rows; try the data set's hub id instead")
        return [item["row"] if {"row_idx", "row"} <= item.keys() else item for item in items]  # the hub's viewer
    got = f"{name}: got one object that holds {' and '.join(map(repr, holders))}; it is not clear which list is meant"
    raise UserError(f"{got}; expected JSONL, or one list of objects; try a file with that list alone")


def is_row(item: dict) -> bool:
    """Whether an object has a prompt column, or one that holds questions."""
    return bool(item.keys() & {*ASKS, "questions", "paragraphs", "qas"})


def rows_of_columns(value: dict, name: str, known) -> list[dict] | None:
    """The rows of an object whose values are columns: lists, or {index: value} as pandas' to_json writes; else None."""
    asking = [value[key] for key in value.keys() & {*ASKS, *WEAK, *known}]
    if asking and all(isinstance(item, dict) and item and all(map(str.isdigit, item)) for item in value.values()):
        places = [*max(value.values(), key=len)]
        return [{key: column.get(place) for key, column in value.items()} for place in places]
    lists = len(value) > 1 and all(isinstance(item, list) for item in value.values())
    if not asking or not lists or not all(asking):
        return None
    for items in asking:  # one prompt for each row, as texts or lists of messages, not the messages of one prompt
        texts = all(isinstance(x, str) and x.strip() for x in items)
        if not texts and not all(isinstance(x, list) and x for x in items):
            return None
    sizes = {key: len(column) for key, column in value.items()}
    listed = ", ".join(f"{key}: {size}" for key, size in sizes.items())[:200]
    got = f"{name}: got columns of unequal length ({listed})"
    need(len({*sizes.values()}) == 1, f"{got}; expected one value for each row; try JSONL, one object a line")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def with_chats(row: dict) -> dict:
    """The row with chat messages parsed where a cell has their JSON text; other texts stay.

    RowFlaw if such JSON is broken, or is Python's repr.
    """
    chats = {}
    for name in CHAT_COLUMNS:
        text = row.get(name)
        start = CHAT.match(text) if isinstance(text, str) else None
        if not start or not text.rstrip().endswith(("]", "}")):
            continue
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError) as error:
            if str(error).startswith("Extra data"):
                continue  # messages followed by other text
            got = f"chat messages as Python prints them, {text[:40]!r}" if start[1] == "'" else f"broken JSON ({error})"
            advice = "json.dumps for the column, or pandas' to_json(FILE, orient='records', lines=True) for all"
            raise RowFlaw(name, got, "a list of messages, or its JSON text", advice) from None
        messages = [messages] if isinstance(messages, dict) else messages
        pairs = ({"role", "content"}, {"from", "value"})
        if all(isinstance(m, dict) and any(pair <= m.keys() for pair in pairs) for m in messages):
            chats[name] = messages
    return {**row, **chats} if chats else row


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
MISNAMED = {  # role in other spellings or ShareGPT's -> our role
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
}
JSON_SPACE = re.compile(r"[ \t\n\r]*")


def unique(pairs: list[tuple]) -> dict:
    """Build a JSON object; RowFlaw for a duplicate key, of which Python would keep the last."""
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise RowFlaw(twice, "the key twice in one object", "each key once", "deleting one of them")
    return row


def plain_json(text: str):
    """Parse JSON text; RowFlaw if it is invalid or an object has a key twice."""
    if flaw := flaw_of_bytes(text):
        raise RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise RowFlaw("row", "nesting too deep", "fewer levels", "storing the inner part as JSON text") from None
    except ValueError as error:
        at = getattr(error, "pos", 0)
        got = f"invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        advice = ["json.dumps for each row, as this is Python's notation"] if re.match(r"\s*\[?\{\s*'", text) else []
        raise RowFlaw("row", got, "one JSON object", *advice) from None


def as_row(value) -> dict:
    """A JSON value if it is an object; RowFlaw for others, with special advice for bare messages."""
    if isinstance(value, dict):
        return value
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
    advice = ['{"messages": […]} for each row, with the answer in its own field'] if is_chat else []
    raise RowFlaw("row", f"{type(value).__name__} {value!r:.60}", "a JSON object with named fields", *advice)


def json_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from JSONL. Blank lines count but are skipped."""
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                yield number, as_row(plain_json(line))
            except RowFlaw as flaw:
                flaw.parts["row"] = line.rstrip("\r\n")
                yield number, flaw


def json_records(text: str, name: str, known) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (number, row or its flaw) from a JSON file: an array, an object that holds the rows, or several objects."""
    decoder, values, at = json.JSONDecoder(object_pairs_hook=unique), [], JSON_SPACE.match(text).end()
    flaw = flaw_of_bytes(text)
    need(not flaw, f"{name}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            at = JSON_SPACE.match(text, at).end()
    except RecursionError:
        raise UserError(f"{name}: got JSON with too many levels of nesting; expected rows; try JSONL") from None
    except RowFlaw as flaw:
        raise UserError(f"{name}: {flaw}") from None
    except ValueError as error:
        got = f"{name}: got invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        raise UserError(f"{got}; expected an array of objects; try fixing it, or JSONL") from None
    if len(values) == 1:
        inner = rows_in(values[0], name, known) if isinstance(values[0], dict) else values[0]
        values = inner if isinstance(inner, list) else values
    for number, value in enumerate(values, start=1):
        try:
            yield number, as_row(value)
        except RowFlaw as flaw:
            yield number, flaw


def parquet_records(source: str) -> Iterator[tuple[int, dict]]:
    """Yield (number, row) from a parquet file, read 1000 rows at a time."""
    import pyarrow.parquet

    try:
        with open(source, "rb") as raw:
            refuse_no_data(raw.peek(), source, "parquet")
            file = pyarrow.parquet.ParquetFile(raw)
            check_distinct(file.schema_arrow.names, source)
            size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            need(size <= MAX_BYTES, f"{source}: got {size} unpacked bytes; expected {MAX_BYTES} at most; try parts")
            yield from enumerate(map(without_nulls, arrow_rows(file.iter_batches(1000))), start=1)
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise UserError(f"{source}: got unreadable parquet ({str(error)[:200]}); expected an intact file") from None


def arrow_rows(tables: Iterable) -> Iterator[dict]:
    """Rows of Arrow tables; numbers of 32 bits as they were written, 0.1 instead of 0.10000000149011612."""
    for table in tables:
        columns = [cells.cast("string").cast("double") if cells.type == "float" else cells for cells in table.columns]
        yield from type(table).from_arrays(columns, names=table.schema.names).to_pylist()


def without_nulls(row: dict) -> dict:
    """The row without null keys in messages and tools, as Arrow adds the keys of other rows' objects."""
    lists = {name: row[name] for name in (*CHAT_COLUMNS, "tools") if isinstance(row.get(name), list)}
    turns = {"role", "from"}  # other objects may mean their nulls
    chats = [k for k, v in lists.items() if k == "tools" or all(isinstance(x, dict) and turns & x.keys() for x in v)]
    return row | {name: bare(row[name]) for name in chats}


def bare(value):
    """A value without null keys, which parquet adds for keys of other rows."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list) else value


def prompt_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line, row or its flaw) from a text with one prompt per line; blank lines are skipped."""
    for number, line in enumerate(stream, start=1):
        if flaw := flaw_of_bytes(line):
            yield number, RowFlaw("prompt", flaw, "UTF-8 text", OTHER_ENCODING)
        elif line.strip():
            yield number, {"prompt": line.strip("\r\n")}


def file_records(source: str, form: str | None, encoding=None, known=()) -> Iterator[tuple[int, dict | RowFlaw]]:
    """Yield (line or number, row or its flaw) from a file, stdin (`-`) or, if it is neither, the hub.

    Args:
        form: jsonl, json, csv, tsv, txt or parquet; None: detected from the text.
        encoding: of the text; None: detected.
        known: further column names that mark an object as a row.
    """
    name = "stdin" if source == "-" else source
    if source != "-" and not Path(source).exists():
        yield from enumerate(hub_rows(source), start=1)
        return
    if form == "parquet":
        need(source != "-", "got parquet on stdin; expected a file, as reading parquet needs random access")
        yield from parquet_records(source)
        return
    asked = form
    stream, form = open_text(source, form, encoding)
    try:
        with stream:
            if form in ("csv", "tsv"):
                yield from table_rows(stream.read(), name, "," if form == "csv" else "\t")
            elif form == "txt":
                yield from prompt_lines(stream)
            elif form == "json":
                begun = list(itertools.islice(stream, 2))  # detects JSONL whose first line exceeds the head
                if asked != "json" and begins_lines("".join(begun)):
                    yield from json_lines(itertools.chain(begun, stream))
                else:
                    yield from json_records("".join(begun) + stream.read(), name, known)
            else:
                yield from json_lines(stream)
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{name}: got bytes that cannot be read ({error}); expected an intact file") from None


def is_hub_id(source: str) -> bool:
    """Whether a name could be `owner/name` or `name` on the hub, as it is no local path."""
    name, form = re.split("[:@]", source)[0], r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b"  # as the hub's own client has it
    if Path(source).exists() or source.count("/") > 1 or re.search(r"--|\.\.", name):
        return False
    return bool(re.fullmatch(form, name, re.ASCII))


def hub_rows(source: str) -> Iterator[dict]:
    """Rows of a hub data set `owner/name[:config][@split]` (split train by default); its code is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    offline = not hub_is_reached()
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or offline
    try:
        data = datasets.load_dataset(name, subset or None, split=split or "train")
        rows = map(data.features.decode_example, arrow_rows(data.with_format("arrow").iter(1000)))
        yield from map(without_nulls, rows)
    except Exception as error:  # every layer below raises its own types
        why = "and the hub cannot be reached" if offline else "and the hub says"
        raise UserError(f"got data {source!r}: no such file, {why}: {str(error)[:300]}") from None


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client is set offline, as it would retry for minutes."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
            return True  # an HTTP error is an answer; and the hub's client may know a proxy's certificate
        hub.HF_HUB_OFFLINE = True
        return False
    return True


def placed_rows(source: str) -> list[tuple[str, dict]]:
    """(place, row) of each row that `read_rows` reads; a place is `FILE:LINE`, or `SOURCE, row N` without lines."""
    form, is_file, placed = SUFFIXES.get(Path(source).suffix.lower()), Path(source).is_file(), []
    got = f"got data {source!r}"
    known = is_file or (is_hub_id(source) and not form)
    need(known, f"{got}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id")
    names = ", ".join(SUFFIXES)
    need(form or not is_file, f"{got}; expected a name ending in {names}; try data_loader.py for others")
    for number, row in file_records(source, form):
        place = f"{source}:{number}" if form in ("jsonl", "csv", "tsv") else f"{source}, row {number}"
        need(not isinstance(row, RowFlaw), f"{place}: {row}")
        try:
            placed.append((place, with_chats(row)))
        except RowFlaw as flaw:
            raise UserError(f"{place}: {flaw}") from None
    return placed


def prompt_of(row: dict, column: str, where: str):
    """The prompt in a row's column; UserError if the column is missing, or its cell is empty or not a prompt."""
    near = suggest(column, list(row)).replace("; try ", "; try --prompt_column ")
    chats = {"messages", "conversations", "conversation"} & row.keys()  # their last turn may be the answer
    name = next((name for name in ("question", "problem", "instruction", "query") if name in row), "NAME")
    advice = "; try data_loader.py" if chats else near or f"; try --prompt_column {name}, or data_loader.py"
    need(column in row, f"{where}: got columns {', '.join(map(str, row))}; expected {column!r}{advice}")
    got = f"{where}: got an empty cell in the column {column!r}; expected a prompt"
    need(row[column] not in (None, ""), f"{got}; try filling it in, or leaving out the row")
    check_prompt(row[column], where)
    return row[column]


def check_unicode(text: str, where: str = "") -> None:
    """Raise UserError if the text has half a surrogate pair, which tokenizers refuse and UTF-8 cannot encode."""
    half = re.search("[\ud800-\udfff]", text)
    got = half and f"got {text[max(0, half.start() - 20) : half.end() + 20]!r} with half a surrogate pair"
    need(not half, f"{where}{got}; expected Unicode text; try cutting the source between characters")


def check_prompt(prompt, where: str) -> None:
    """Raise UserError unless the prompt is a non-empty string or a list of chat messages."""
    is_text = isinstance(prompt, str) and VISIBLE.search(prompt)
    try:
        as_text = is_text and with_chats({"prompt": prompt})["prompt"] is not prompt
    except RowFlaw:
        as_text = True
    advice = "try a column named `prompt`, or data_loader.py with --map prompt=COLUMN"
    need(not as_text, f"{where}: got chat messages as text, {str(prompt)[:40]!r}; expected a list of them; {advice}")
    messages = prompt if isinstance(prompt, list) else []
    texts = [m.get(key) for m in messages if isinstance(m, dict) for key in ("role", "content")]
    is_chat = messages and len(texts) == 2 * len(messages) and all(isinstance(text, str) for text in texts)
    expected = 'expected a non-empty string or a list of {"role": …, "content": …} messages; try data_loader.py'
    need(is_text or is_chat, f"{where}: got prompt {str(prompt)[:80]!r}; {expected}")
    for text in texts[1::2] or [prompt]:
        check_unicode(text, f"{where}: ")
    for role in texts[::2]:
        known = MISNAMED.get(role.strip().lower(), role)
        need(role == known, f"{where}: got the role {role!r}; expected {known!r}; try data_loader.py")


# ------------------------------------------------------------------- stated answers (src/parts/data/stated_answers.py)

_TO = (  # ... for x = 3, (in cm), in simplest form, rounded to two places
    r"(?:to|for|of|auf|für|zu|à|a (?:la|esta)|de (?:la|cette)|du|para)\b[^\n.:：=]{0,80}?|\(in [\w /^]{1,20}\)"
    r"|,? ?(?:in (?:its )?(?:simplest|lowest|simplified|reduced|exact) (?:form|terms)|rounded to [\w -]{1,30}),?"
)
_IS = (
    r"(?:\b(?:is|are|equals|(?:must|should|will|would) be|ist|lautet|beträgt|wäre|est|sera|serait|es|será|sería|é)\b"
    r"|\b(?:turns out to be|comes (?:out )?to|è|это|adalah|là|jest|ni|равен|হল|هو|هي)\b|হলো"
    r"|(?<=\bans)\.|(?<=ответ )[—–]|(?<=odpowiedź )to\b|[:：=]|\n)"
)
_CORRECT = "correct[ea]?|cor(?:re|ret)ta|cert[ao]|giusta|yang (?:benar|tepat)|đúng|chính xác|الصحيحة"
_OPTION = (
    r"(?:(?<![^\n*])(?:(?:my |the )?(?:selected|chosen|final) (?=\w+[*_]{0,3}:))?"
    r"|\b(?:correct|right|best|the|my|die|richtige|la|bonne|mejor)[*_ ]{1,3})"
)
_ANSWERS = {  # keyword (lower case; a text without it is not searched) -> pattern of the noun before an answer
    **{word: rf"\b{word}" for word in "antwort lösung richtig réponse respuesta solución resposta risposta".split()},
    **{word: rf"\b{word}" for word in "ответ antwoord odpowiedź cevap jibu vastaus उत्तर উত্তর సమాధానం".split()},
    **{word: rf"\b{word}" for word in ("la solution", "đáp án", "câu trả lời", "الجواب", "الإجابة")},
    **{word: _OPTION + word for word in ("option", "choice", "opción", "alternativa")},
    "ans": r"(?:\b|(?<=(?<![^\n])__))ans(?:wer)?",  # __Answer:__
    "jawaban": r"\bjawaban(?:nya)?",
}
_MARKS = {
    **{
        word: rf"{noun}(?=__|\W|$)[*_ ]*(?:{_TO}|choice|option|finale?|{_CORRECT}|exacte?)?[*_ ]*{_IS}[\s:：*_]*"
        for word, noun in _ANSWERS.items()
    },
    **{word: rf"\bi(?:'d| would|'ll| will)? {word}\b[\s:*_]*" for word in ("choose", "pick", "select", "go with")},
    **{word: rf"\b{word}\b[\s:*_]*" for word in ("ich wähle", "je choisis", "elijo", "escojo")},
    **{
        word: rf"{word}(?:应该|應該|应|應)?(?:是|为|為|选|選|คือ|[ *]{{0,3}}[:：=])[\s:：*_]*"
        for word in ("答案", "正确选项", "正確選項", "คำตอบ")
    },
    **{
        word: r"(?:(?<![^\s，。；：,.;:、*#])|(?<=[故应應该当當我题題])|(?<=因此|所以))"
        rf"(?:应|應)?{word}[择擇]?(?:是|为|為)?[:：]?(?=[\s（(*]{{0,3}}[A-ZＡ-Ｚ](?![A-Za-z]))[\s:：*_]*"
        for word in ("选", "選")
    },
    **{
        word: rf"(?<!\w){word}(?:[は은]|[ *]{{0,3}}[:：=])[、\s:：*_]*"
        for word in ("答え", "正解", "解答", "答", "정답", "답")
    },
    "svar": r"\bsvar(?:(?:et)? (?:är|er)\b|[ *]{0,3}[:：])[\s:：*_]*",
    "####": r"(?<!#)####(?!#)[ \t*_]*",
}
BECAUSE = r"because|since|due to|weil|parce qu\w+|puisque|porque|ya que"
_IS_RIGHT = (
    r"(?:is|ist|est|es)[ *]{1,3}(?:(?:the|my|die|la|el)\s)?(?:only\s|most\s)?"
    r"(?:correct[eao]?|right|best|richtige?|bonne|juste|answer|option|choice|antwort|réponse|respuesta)\b"
)
_BEHIND = re.compile(  # after an answer: a reason, a claim that it is right, a remark in brackets, a copula
    rf"(?i:[\s,;:.!*_(–—-]{{1,6}}(?:{BECAUSE}|{_IS_RIGHT})\b"
    r"|\s?[,;(]\s?(?:which|where|so|as|see|da|denn|siehe|car|voir|pues|véase)\b)"
    r"|(?is:(?<=\Ayes)(?!.*\bno\b)|(?<=\Ano)(?!.*\byes\b))(?:[,;:!]|\.(?= [A-Z]))\s"  # Yes, both are American
    r"|\*\*, (?:the|an?)\b(?![^.\n]*(?:\*\*| (?:is|are|or) ))"  # the capital of France; not: the other is **Rome**
    r"|(?<=[\dA-Z*)]) {1,3}(?:car|da|denn)\b|[\s,，;；.。(（]{0,4}(?:因为|因為|由于|なぜなら)"
    r"|\s{0,3}(?:(?:是|为)?正确|が(?:正解|正しい))|(?<=[A-ZＡ-Ｚ])\s{0,3}(?:项|項|选项|選項|選択肢)"
    r"|(?:です|である|となります|になります|だ|입니다|이다|이에요|예요)(?=[。．.!！、\s]|$)"
    r"|\s{0,3}[(（](?i:see|as|from|by|using|siehe|voir|véase|见|如上)[^\d()（）]{2,60}[)）][.。]?$"
)
_EXPLANATION = re.compile(
    r"\n[\s#*_]{0,9}((?i:explanation|reason(?:ing)?|rationale|justification|here['’]s why|why|erklärung|begründung"
    r"|explication|explicación|解析|解释|解説|理由))\b"
)
_RECONSIDERED = re.compile(  # in an explanation: another answer may be right
    r"(?i)\b(?:wait[,.!…]|(?:not |un)sure\b|also (?:be )?(?:correct|right)\b|auch (?:richtig|korrekt)\b"
    r"|aussi (?:correcte?|juste)\b|también (?:es )?correct[ao]\b)|也是?(?:对|正确)"
)
_SO = r"\b(?i:so|thus|hence|therefore)\b[\s,*_]{0,9}(?:(?i:option|choice|answer)[\s*_]{1,5})?"
_SO_LETTER = r"[*_(]{0,5}[A-J][*_)]{0,5}"
_SO_ENDS = rf"(?:\s(?i:{_IS_RIGHT})(?![^.\n]{{0,80}}\b[A-HJ]\b|.{{0,80}}\b(?:also|too)\b)|\.?[*_]{{0,5}}\s*\Z)"
WEAK_MARK = re.compile(  # marks where there are no others
    r"\b(?i:answers(?: (?:to|for)\b[^.,\n]{0,60}?)?(?: are\b|[*_ ]{0,3}:))[\s:*_]*"
    rf"|{_SO}(?={_SO_LETTER}(?:{_SO_ENDS}|(?:[.!;][*_]{{0,5}}\s+|\n\s*){_SO}{_SO_LETTER}{_SO_ENDS}))"  # So A. So B.
)
_BEFORE = re.compile(
    r"(?i)[\s,]*(?:(?:it(?:['’]s| is)|so|hence|thus|therefore|clearly|indeed|es ist|also|c['’]est|donc|alors|es)\b"
    r"[\s,:]*|(?:所以|因此)[，,]?)+"
)


@functools.lru_cache(256)
def _any_of(words: tuple[str, ...]) -> re.Pattern:
    return re.compile("(?i)" + ("|".join(_MARKS[word] for word in words) or "(?!)"))


def marks(text: str) -> Iterator[re.Match]:
    """Find what precedes an answer: `####`, "the answer is", 答案是; else "answers are", "so" of "so B is right"."""
    lower = text.lower()
    strong = _any_of(tuple(word for word in _MARKS if word in lower)).finditer(text)
    first = next(strong, None)
    return itertools.chain([first], strong) if first else WEAK_MARK.finditer(text)


def has_mark(text: str) -> bool:
    """Whether a text states an answer by a mark or phrase."""
    return next(marks(text), None) is not None


def without_words(answer: str) -> str:
    """Trim words around an answer: "so B", "B because …", "42 (see above)", "B is correct", 42です, an explanation."""
    heads = [*_EXPLANATION.finditer(answer)]
    repeated = any(head[1] == heads[0][1] for head in heads[1:])  # each option is explained
    if heads and not repeated and not _RECONSIDERED.search(answer):
        answer = answer[: heads[0].start()] or answer
    start, end = _BEFORE.match(answer), _BEHIND.search(answer)
    short = answer[start.end() if start else 0 : end.start() if end else None]
    return short if short.strip(" \t\n*_") else answer


# ----------------------------------------------------------------------- answer marks (src/parts/data/answer_marks.py)

HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")  # a letter, or a number with a unit
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?[\d.,/: ]*\d[\d.,/]*\s?[%°$€£]?\.?")
# a sentence ends where another one follows; not after initials and short words: J. K. Rowling, St. Louis
SENTENCE_END = re.compile(
    r"(?<=[\d$)}\]%*])\.[*_]*\s+(?=[A-Z])|(?:(?<=\w{3})|(?<=\A\w))\.[*_]*\s+(?=[A-Z]['\w]*(?: [\w']+){2})|[。！？]"
)
NO_STATEMENT = re.compile(r"(?i)#|(?:i|ich|je|elijo|escojo)\b")  # marks that a gold answer does not use ("I choose")
# before a mark: LEAD may open its clause; NO_CLAUSE makes it a condition, or a string in a program
LEAD = re.compile(
    r"(?i)\W*+(?:(?:so|thus|hence|therefore|then|finally|and|the|my|our|final|correct|right|best|die|la|[^\x00-\x7f]++)\W*+)*+"
)
NO_CLAUSE = re.compile(r"""(?i)\b(?:if|whether|unless|when)\b|"|\(f?'""")
NO_PROSE = re.compile(r"(?i)[?&.(]\s*\Z|\A(?:\t|  )|\band\b")  # before `answer =` in a URL, code or SQL
ARGUMENT = r"(?:\d|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})"
# \boxed followed by a brace, a word, or one command with its arguments (\frac12, \text{B}) that no formula follows
BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-z])\s*"
    rf"(?:\{{|([\w-]+|\\(?!left|begin)[A-Za-z]++(?:\[\w+\])?{ARGUMENT}{{0,2}}+(?!\s*(?:\\[A-Za-z]|[\d{{])))|)"
)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
FLOW = (ast.For, ast.While, ast.If, ast.With)
STATEMENTS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, *FLOW)


def is_heading(text: str, mark: re.Match) -> bool:
    """Whether `####` starts a heading or comment: a usual title, a line over 80 characters, or words above text."""
    if mark[0][0] != "#":
        return False
    line, _, below = text[mark.start() + 4 :].partition("\n")
    line = line.strip(" \t*_")
    is_title = HEADING.fullmatch(line) or line.endswith((":", "#")) or len(line) > 80
    return bool(is_title) or (below.strip() != "" and not VALUE.fullmatch(line))


def stated_gold(text: str) -> str | None:
    """The short answer that the last line states ("Answer: 12", "So the answer is 12."), or that ends in `</answer>`.

    Of several in the line, the last counts. None if there is none, or if a box in the text is not closed.
    """
    tagged = text.rstrip().removesuffix("</answer>")
    if "<answer>" in tagged and tagged != text.rstrip():
        return tagged.rpartition("<answer>")[2].strip()
    *above, line = text.strip().split("\n")
    line = re.sub(r"(?i)\b(?:solution|result)(?= is\b|\W{0,3}:)", "answer", line)
    latest = [mark for mark in [*marks(line)][:-4:-1] if "=" not in mark[0] or is_prose(line, mark, "\n".join(above))]
    answer = next(filter(None, (statement(line, mark) for mark in latest)), None)
    boxes = None if answer is None or boxes_in(text) is None else boxes_in(answer)
    return None if boxes is None else [answer, *boxes][-1]


def is_prose(line: str, mark: re.Match, above: str) -> bool:
    """Whether `answer =` is prose: at the start of a line, and not in a program, SQL or a URL."""
    before, after = line[: mark.start()], line[mark.end() :].rstrip()
    in_code = NO_PROSE.search(before) or after[:1] == "=" or after[-1:] == ";"
    return bool(LEAD.fullmatch(before)) and not in_code and not is_program(above)


def statement(line: str, mark: re.Match) -> str | None:
    """The answer that follows a mark in its sentence; None if it is too long, no answer, or has another mark.

    Words count only if the mark opens a clause ("So the answer is Paris"); numbers and formulas count anywhere.
    """
    answer = without_words(SENTENCE_END.split(line[mark.end() : mark.end() + 300], maxsplit=1)[0]).strip("*_ .")
    clause = re.split(r"[.!?,;:]\s", line[: mark.start()])[-1]
    if NO_STATEMENT.match(mark[0]) or NO_CLAUSE.search(clause) or answer.count('"') % 2:
        return None
    words = 0 if VALUE.fullmatch(answer) else count_words(answer)
    is_short = len(answer) <= 100 and words < (6 if LEAD.fullmatch(clause) else 1)
    return answer if is_short and re.search(r"\w", answer) and not has_mark(answer) else None


def count_words(answer: str) -> int:
    """Number of words in an answer, not counting single letters, numbers and LaTeX commands."""
    return len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))


def boxes_in(text: str) -> list[str] | None:
    """Contents of the outermost `\\boxed` and `\\fbox`; None if one is not closed."""
    contents, at = [], 0
    while m := BOX.search(text, at):
        depth, at = 1, m.end()
        if not m[0].endswith("{"):
            contents.append(m[1] or "")
            continue
        for brace in BRACE.finditer(text, at):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if not depth:
                break
        if depth:
            return None
        contents.append(text[at : brace.start()])
        at = brace.end()
    return contents


def hash_mark(text: str) -> re.Match | None:
    """The last `####` of a worked solution, with its answer in group 1; None if it is a heading or in code.

    Only a number may have text below it. Words must be few and end the text, or be repeated by "The answer is: …".

    >>> hash_mark("2 + 2 = 4\\n#### 4")[1], hash_mark("#### Step 1\\nAdd them: 4.")
    ('4', None)
    """
    marks = list(HASH.finditer(text))
    if not marks:
        return None
    mark = marks[-1]
    answer, before, below = mark[1].strip(), text[: mark.start()], text[mark.end() :].strip()
    if answer and below and re.fullmatch(rf"(?i)the (final )?answer is:? *{re.escape(answer)}\.?", below):
        text, below = text[: mark.end()], ""
    if before.count("```") % 2 or is_heading(text, mark):
        return None
    is_number = NUMBER.fullmatch(answer) is not None
    if below:  # only a number has text below it, and several are numbered headings
        return mark if is_number and len(marks) == 1 and answer[-1] != "." and not is_program(text) else None
    most = 0 if before.rpartition("\n")[2].strip() else 5  # a mark inside a line is a number's
    return mark if is_number or not answer or (count_words(answer) <= most and not is_program(before)) else None


@functools.lru_cache(32)
def parsed(source: str) -> ast.Module | None:
    """The syntax tree of Python source, or None if it does not parse."""
    with warnings.catch_warnings(), contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        warnings.simplefilter("ignore")  # about invalid escapes
        return parse_python(source)
    return None


def is_program(text: str) -> bool:
    """Whether a text is Python source with statements beyond expressions."""
    return any(isinstance(node, STATEMENTS) for node in getattr(parsed(text), "body", ()))


# --------------------------------------------------------------------------------------- chat (src/parts/data/chat.py)


def template_settings(config) -> dict:
    """--chat_template_kwargs as a dict."""
    try:
        settings = json.loads(config.chat_template_kwargs or "{}")
    except ValueError:
        settings = None
    kept = {"tokenize", "return_dict", "add_generation_prompt", "continue_final_message", "chat_template"}
    got = f"got chat_template_kwargs {config.chat_template_kwargs!r}"
    expected = """expected a JSON object of the template's own settings; try '{"enable_thinking": false}'"""
    need(isinstance(settings, dict) and not kept & {*settings}, f"{got}; {expected}")
    return settings


def template_text(file: str) -> str:
    need(Path(file).is_file(), f"got chat_template {file!r}, which is not a file; expected a Jinja template")
    return Path(file).read_text(encoding="utf-8")


def give_template(tokenizer, file: str) -> None:
    """Set a tokenizer's chat template from a file; "" changes nothing."""
    if file:
        tokenizer.chat_template = template_text(file)


def as_turns(prompt, chat: bool):
    """The prompt as messages: with --chat, a string becomes a user turn; other prompts stay as they are."""
    return [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt


def as_object(arguments):
    """A tool call's arguments as an object, if they are one or its JSON text; else unchanged."""
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def as_json(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def recast(form: Callable, call):
    """Convert the arguments of one or more tool calls by `form`: `as_object` or `as_json`."""
    if isinstance(call, dict):
        return {key: form(value) if key == "arguments" else recast(form, value) for key, value in call.items()}
    return [recast(form, one) for one in call] if isinstance(call, list) else call


def with_arguments(form: Callable, messages: list[dict]) -> list[dict]:
    """Messages with tool arguments converted by `form`, without empty lists of calls (Llama reads them as a call)."""
    kept = [m if m.get("tool_calls", True) else {key: m[key] for key in m if key != "tool_calls"} for m in messages]
    return [m | {"tool_calls": recast(form, m["tool_calls"])} if "tool_calls" in m else m for m in kept]


def write_chat(tokenizer, messages: list[dict], **given) -> str:
    """Render messages by `apply_chat_template`, with tool arguments as objects or JSON text, whichever it needs.

    Most templates encode objects as JSON and would encode OpenAI's JSON text twice. DeepSeek's need text, and templates
    that print their input would write objects as Python does. ValueError if arguments are not a JSON object.
    """
    objects = with_arguments(as_object, messages)
    calls = [call.get("function", call) for message in objects for call in message.get("tool_calls") or ()]
    arguments, given["tokenize"] = [call["arguments"] for call in calls if call.get("arguments")], False
    for odd in (value for value in arguments if not isinstance(value, dict)):
        raise ValueError(f"the arguments of a tool call are {str(odd)[:80]!r}, not a JSON object")
    try:
        text = tokenizer.apply_chat_template(objects, **given)
        if not any(str(value) in text for value in arguments):
            return text
    except TypeError:
        if not arguments:
            raise
    return tokenizer.apply_chat_template(with_arguments(as_json, messages), **given)


def chat_text(tokenizer, messages: list[dict], **template) -> str:
    """Render a prompt up to where the model writes: in a new turn, or at the end of a last assistant turn.

    ValueError if the template changes the text of that assistant turn, or if the turn calls a tool.
    """
    text = messages[-1]["content"]
    if messages[-1]["role"] != "assistant":
        return write_chat(tokenizer, messages, add_generation_prompt=True, **template)
    if messages[-1].get("tool_calls"):
        raise ValueError("it ends in a tool call without its result")
    if not text.strip():  # an empty assistant turn only marks where the answer goes
        return write_chat(tokenizer, messages[:-1], add_generation_prompt=True, **template) + text
    try:
        whole = write_chat(tokenizer, messages, continue_final_message=True, **template)
    except ValueError:  # the rendering does not contain the turn's text
        whole = ""
    kept = next((part for part in (text, text.rstrip(), text.strip()) if whole.endswith(part)), None)
    if kept is None:
        raise ValueError(f"it does not keep the assistant's turn that ends the prompt, {text[-80:]!r}")
    begun = whole.removesuffix(kept)
    if text.lstrip().startswith("<think>"):  # Qwen3's template adds an empty thought to a turn without a closed one
        begun = re.sub(r"<think>\s*</think>\s*$", "", begun)
    return begun + text


def chat_ids(tokenizer, messages: list[dict], **template) -> list[int]:
    """Token ids of `chat_text`."""
    if messages[-1]["role"] == "assistant" or any(message.get("tool_calls") for message in messages):
        return list(tokenizer(chat_text(tokenizer, messages, **template), add_special_tokens=False).input_ids)
    given = {"add_generation_prompt": True, "return_dict": True, **template}
    return list(tokenizer.apply_chat_template(with_arguments(as_object, messages), **given)["input_ids"])


class TemplateForm:
    """The text that a chat template writes around a user's message; it identifies strings that are already rendered.

    A control token inside a text is not enough: people ask about `<|im_end|>`.
    """

    def __init__(self, tokenizer):
        try:
            text = write_chat(tokenizer, [{"role": "user", "content": "Question"}], add_generation_prompt=True)
        except Exception:  # templates may raise anything
            text = ""
        before, _, after = text.rpartition("Question")
        added = {token.content for token in tokenizer.added_tokens_decoder.values()} - {"<think>", "</think>"}
        self.tokens = tuple(token for token in added if token in text and token.strip())
        self.opening = tuple(token for token in self.tokens if token in before)
        # a closing as short as "Answer" also occurs in plain prompts
        self.closing = after.strip() if len(after.strip()) > len("Answer") else ""

    def holds(self, prompt) -> bool:
        """Whether a prompt is a string that begins or ends like the template's text."""
        if not isinstance(prompt, str):
            return False
        text = prompt.strip()
        if text.startswith(self.opening):
            return True
        return self.closing != "" and (text.endswith(self.closing) if self.opening else self.closing in text)


def strings_past_template(config, tokenizer, prompts: list) -> int:
    """Number of string prompts that bypass the model's chat template and are not already rendered."""
    if config.chat or not tokenizer.chat_template:
        return 0
    form = TemplateForm(tokenizer)
    return sum(isinstance(prompt, str) and not form.holds(prompt) for prompt in prompts)


def unread_messages(tokenizer, prompts: list, settings: dict) -> Iterator[dict]:
    """Yield system and user messages that the template leaves out; checks one prompt of each sequence of roles."""
    kinds = {tuple(message["role"] for message in prompt): prompt for prompt in prompts if not isinstance(prompt, str)}
    for messages in kinds.values() if tokenizer.chat_template else ():
        asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        text = write_chat(tokenizer, asked, add_generation_prompt=True, **settings) if asked else ""
        for i, message in enumerate(asked):
            longer = [*asked[:i], message | {"content": f"{message['content']} x"}, *asked[i + 1 :]]
            if message["role"] in ("system", "user"):
                with_more = write_chat(tokenizer, longer, add_generation_prompt=True, **settings)
                yield from [message] if with_more == text else ()


def warn_of_turn_end(tokenizer, ends: list[int]) -> None:
    """Warn if the chat template ends an answer with control tokens of which none ends a completion."""
    turns, closing = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}], ""
    with contextlib.suppress(Exception):  # no template, or one that raises something
        closing = write_chat(tokenizer, turns).rpartition("Answer")[2]
    control = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = [i for i in tokenizer(closing, add_special_tokens=False).input_ids if i in control]
    if ids and not {*ids} & {*ends}:
        got = f"the chat template ends an answer with {tokenizer.decode(ids[:1])!r}, no end token of the model"
        fix = f"a copy of the model with eos_token_id {sorted({*ends, ids[0]})} in generation_config.json"
        say_once(f"warning: {got}, so completions may go on past their turn; try {fix}")


def check_template(config, tokenizer, source: str, prompts: list) -> None:
    """Warn of string prompts that bypass the template; UserError if --chat finds no template, or rendered prompts."""
    if config.chat:
        has = f"got --chat, but the tokenizer of {config.model!r} has no chat template; expected one"
        need(tokenizer.chat_template, f"{has}; try --chat_template FILE, or an instruct model")
        form = TemplateForm(tokenizer)
        wrapped = [prompt for prompt in prompts if form.holds(prompt)]
        got = f"{len(wrapped)} of {len(prompts)} prompts already have the form of the chat template"
        got = f"{source}: got --chat, but {got}, such as {wrapped[:1]!r:.100}"
        need(not wrapped, f"{got}; expected plain text; try without --chat")
        tokens = [token for p in prompts if isinstance(p, str) for token in form.tokens if token in p]
        count = sum(isinstance(p, str) and any(token in p for token in form.tokens) for p in prompts)
        if tokens:
            got = f"{source}: {count} of {len(prompts)} prompts have control tokens such as {tokens[0]!r}"
            say(f"warning: {got}; the tokenizer encodes them as control tokens, not as text")
    if not tokenizer.chat_template and any(not isinstance(prompt, str) for prompt in prompts):
        say(f"warning: {source}: messages are joined by newlines, as {config.model} has no chat template")
    settings, template = template_settings(config), f"{source}: the chat template of {config.model}"
    if unread := [name for name in settings if name not in str(tokenizer.chat_template)]:
        say(f"warning: {template} does not read {', '.join(unread)}")
    for message in unread_messages(tokenizer, prompts, settings):
        say_once(f"warning: {template} leaves out {message['role']} messages; try --chat_template FILE")
    if "strftime_now" in str(tokenizer.chat_template) and "date_string" not in settings:
        fix = "--chat_template FILE, or a date_string in --chat_template_kwargs if it reads that"
        say(f"note: {template} may write today's date, so another day gives other prompts; try {fix}")
    strings = strings_past_template(config, tokenizer, prompts)
    ours = source in (EMBEDDED_DATA, EMBEDDED_EVAL) and config.model == EMBEDDED_MODEL
    if strings and not ours:
        got = f"{strings} of {len(prompts)} prompts are strings, which bypass the chat template of {config.model}"
        why = "right for a base model, but an instruct model rarely answers, and rewards stay near 0"
        say(f"warning: {source}: {got}: {why}; try --chat")


def joined_text(messages: list[dict]) -> str:
    """Chat messages as text, for a tokenizer without a chat template: contents joined by newlines."""
    end = "" if messages[-1]["role"] == "assistant" else "\n"
    return "\n".join(message["content"] for message in messages) + end


# --------------------------------------------------------------------------------- prompts (src/parts/data/prompts.py)

RESERVED = ("prompt", "prompts", "completions", "completion_ids")  # reward arguments that come from the run, not data


def encode_text(tokenizer, text: str) -> list[int]:
    """Token ids of a text to be continued, without an added end token or a duplicate of its own BOS or prefix."""
    ids = list(tokenizer(text).input_ids)
    if ids and (ids[0] in ids[1:4] or ids[-1] == tokenizer.eos_token_id):  # perhaps a duplicate, or an added end
        bare = list(tokenizer(text, add_special_tokens=False).input_ids)
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id != (bare or [None])[-1]:
            ids.pop()
        for n in (1, 2, 3):
            if ids[n : n + len(bare)] == bare and bare[:n] == ids[:n]:
                return ids[n:]
    return ids


def encode_prompt(tokenizer, prompt, **template) -> list[int]:
    """Token ids of a prompt up to where the model writes; messages are rendered by the chat template, if any."""
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt)
    if tokenizer.chat_template:
        return chat_ids(tokenizer, prompt, **template)
    return encode_text(tokenizer, joined_text(prompt))


@contextlib.contextmanager
def refusals_told(where: str = "") -> Iterator[None]:
    """Raise what a chat template raises, such as "system role not supported", as a UserError."""
    try:
        yield
    except Exception as error:  # templates may raise anything
        raise UserError(
            f"{where}got a prompt that the chat template refuses ({error}); expected roles that it knows; try the "
            "system message's text at the start of the user's, or --chat_template FILE"
        ) from error


def checked_ids(tokenizer, prompt, where: str, **template) -> list[int]:
    """`encode_prompt`, with UserError if the template refuses the prompt or it has no tokens."""
    with refusals_told(f"{where}: "):
        ids = encode_prompt(tokenizer, prompt, **template)
    need(ids, f"{where}: got a prompt without tokens; expected at least one")
    return ids


def prompt_row(row: dict, column: str, where: str) -> dict:
    """A row of data as {"prompt", "columns"}; UserError if it has no prompt in that column."""
    reserved = {*RESERVED, column}
    columns = {name: value for name, value in row.items() if name not in reserved}
    return {"prompt": prompt_of(row, column, where), "columns": columns}


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> dict[str, int]:
    """Warn of odd prompts and answers, and of unread columns, whose counts it returns; `asked`: (row, prompt) pairs.

    This bundle's data_loader.py does it; without that file beside the script, a note says so.
    """
    try:
        checks = sibling("data_loader").warn_unread if has_sibling("data_loader") else None
    except Exception:  # an older copy, or an edited one
        checks = None
    if checks:
        return checks(source, asked)
    say_once(
        "note: the data's questions and answers are not checked, as this version's data_loader.py is not beside this "
        "script; try `python scripts/data_loader.py FILE --validate` in the bundle"
    )
    return {}


def read_prompts(source: str, column: str) -> list[tuple[str, dict]]:
    """(place, row) of each row; chats without a column `prompt` are read as data_loader.py reads them."""
    rows, chats = placed_rows(source), {"messages", "conversations", "conversation"}
    are_chats = rows and not any("prompt" in row or chats.isdisjoint(row) for _, row in rows)
    if not are_chats or column != "prompt" or not has_sibling("data_loader"):
        return rows
    loader = sibling("data_loader")
    try:
        read = loader.load_rows(source).rows
    except loader.UserError as error:
        raise UserError(f"data_loader.py: {error}") from None
    last = "; the last answer of a chat is the column completion" if any("completion" in row for row in read) else ""
    say(f"note: {source}: read by data_loader.py{last}")
    return [(f"{source}, row {row['id']}", row) for row in read]


def load_prompts(config: BaseConfig, tokenizer, source: str) -> list[dict]:
    """Rows {"prompt", "prompt_ids", "columns", "place"} of a source; prompts that are too long are only counted."""
    rows = read_prompts(source, config.prompt_column)
    need(rows, f"got data {source!r} without rows; expected at least one")
    kept, template = [], template_settings(config)
    for place, row in rows:
        known = prompt_row(row, config.prompt_column, place)
        ids = checked_ids(tokenizer, as_turns(known["prompt"], config.chat), place, **template)
        if len(ids) <= config.max_prompt_tokens:
            kept.append(known | {"prompt_ids": ids, "place": place})
    too_long = f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {config.max_prompt_tokens} tokens"
    need(kept, f"{source}: got {too_long}; expected some that fit; try a higher --max_prompt_tokens")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    check_template(config, tokenizer, source, [row["prompt"] for row in kept])
    warn_unread(source, [(row, row[config.prompt_column]) for _, row in rows])
    return kept


# --------------------------------------------------------------------------- pass rates (src/parts/data/pass_rates.py)

BINS = ((0.0, 0.1), (0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.9), (0.9, 1.0))  # 0 and 1 are counted apart
LEAST_SIGNAL = 0.2  # least share of groups with signal at which RL is worth its samples; our heuristic
MEND = {
    "RL now": "enough groups have both right and wrong answers",
    "warm start": "RL has nothing to reinforce: show the model solutions first (scripts/warm_start.py)",
    "easier prompts": "most prompts are never solved: begin with those that sometimes are, or with a warm start",
    "harder prompts": "nearly all prompts are solved: there is little left to learn from them",
}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples passes, if c of n did: 1 - C(n - c, k) / C(n, k) (Chen 2021, eq. 1).

    >>> pass_at_k(5, 2, 3), pass_at_k(4, 0, 2), pass_at_k(3, 1, 3)
    (0.9, 0.0, 1.0)
    """
    need(0 <= c <= n, f"got {c} passes of {n} samples; expected 0 to {n}")
    need(1 <= k <= n, f"got pass@{k} of {n} samples; expected k of 1 to n; try --n {max(k, 1)}")
    return float((math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k))


def group_signal(n: int, c: int, group: int) -> float:
    """Probability that a prompt's group of `group` samples has both passes and failures, if c of n samples passed.

    Unbiased for n >= group; else 1 - p^G - (1 - p)^G with p = c / n, which is too low on average.

    >>> group_signal(4, 2, 2), group_signal(2, 1, 3), group_signal(8, 8, 4)
    (0.6666666666666667, 0.75, 0.0)
    """
    if n >= group:
        return 1 - (math.comb(c, group) + math.comb(n - c, group)) / math.comb(n, group)
    p = c / n
    return 1 - p**group - (1 - p) ** group


def histogram(rates: list[float]) -> dict[str, int]:
    """Number of prompts by pass rate; rates 0 and 1 are separate, as their groups have no signal."""
    counts = {"0": sum(p == 0 for p in rates)}
    for low, high in BINS:
        counts[f"{low:g} to {high:g}"] = sum(low <= p < high and p > 0 for p in rates)
    return counts | {"1": sum(p == 1 for p in rates)}


def what_fits(rate: float, signal: float, within: float, low: float, high: float) -> str:
    """The key of MEND for a mean pass rate, the share of groups with signal, and that of prompts within the bounds."""
    if rate > high:
        return "harder prompts"
    if rate >= low and signal >= LEAST_SIGNAL:
        return "RL now"
    return "easier prompts" if within >= 0.1 else "warm start"


def describe_pass_rates(counts: list[tuple[int, int]], group: int, low: float, high: float) -> dict:
    """Statistics and advice for a run with groups of `group`, from (samples, passes) of each prompt.

    RL learns from prompts with a pass rate from `low` to `high`.
    """
    rates, fewest = [c / n for n, c in counts], min(n for n, _ in counts)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= fewest]
    signal = statistics.fmean(group_signal(n, c, group) for n, c in counts)
    within = statistics.fmean(low <= p <= high for p in rates)
    rate = statistics.fmean(rates)
    fits = what_fits(rate, signal, within, low, high)
    return {
        "prompts": len(counts),
        "samples": sum(n for n, _ in counts),
        "pass_rate": rate,
        "pass_at_k": {str(k): statistics.fmean(pass_at_k(n, c, k) for n, c in counts) for k in ks},
        "prompts_by_pass_rate": histogram(rates),
        "prompts_within_bounds": within,
        "group_size": group,
        "groups_with_signal": signal,
        "fits": fits,
        "why": MEND[fits],
    }


# -------------------------------------------------------------------------- user code (src/parts/rewards/user_code.py)


def visible_text(tokenizer, ids: list[int], eos_ids) -> str:
    """The text of sampled ids without trailing end tokens and pads.

    Other special tokens stay, so that rewards see a policy that writes `<|user|>` into its answer.
    """
    ends, length = {*eos_ids, tokenizer.eos_token_id, tokenizer.pad_token_id}, len(ids)
    while length and ids[length - 1] in ends:
        length -= 1
    return tokenizer.decode(ids[:length], skip_special_tokens=False)


def text_of_turns(completion) -> str:
    """The text of a completion or prompt; contents of messages are joined by newlines."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def user_text(prompt) -> str:
    """What the model was asked: a string prompt, or the last message's content."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def text_of_answers(completion) -> str:
    """The text of a completion; of a conversation only the assistant's messages."""
    if isinstance(completion, str):
        return completion
    return text_of_turns([message for message in completion if message.get("role", "assistant") == "assistant"])


def own_copy(value):
    """Copy what a reward could change of a column or prompt: lists, dicts, sets and arrays, but no environments."""
    if type(value) is list:
        return [item if isinstance(item, str | int | float) else own_copy(item) for item in value]
    if type(value) is dict:
        return {key: own_copy(item) for key, item in value.items()}
    return value.copy() if type(value) is set or hasattr(type(value), "tolist") else value


# how files of libraries begin, and what is no file
LIBRARY = re.escape(sysconfig.get_path("stdlib")) + r"|<|.*[/\\](site|dist)-packages[/\\]"


def user_place(error: BaseException) -> str:
    """' at FILE:LINE' where a user's code raised: the innermost frame outside libraries and the caller; else ""."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    below = [(f.f_code.co_filename, line) for f, line in frames if f.f_globals is not frames[0][0].f_globals]
    places = [f" at {file}:{line}" for file, line in below if not re.match(LIBRARY, file)]
    return places[-1] if places else ""


# what TRL hands over besides the lists over the samples
TRL_EXTRAS = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}


def is_per_sample(function) -> bool:
    """Whether a reward takes one sample, as its parameters are called `prompt` or `completion`, not the plural."""
    return not {"prompt", "completion"}.isdisjoint(inspect.signature(function).parameters)


def reward_arguments(rows: list[dict], completions: list, completion_ids: list[list[int]]) -> dict:
    """Keyword arguments of a reward function in TRL's shapes; a column that a row lacks is None there.

    Completions are texts, or the messages of conversations. All values are copies, so that a reward that changes them
    affects no other.
    """
    columns = {name: None for row in rows for name in row["columns"]}
    return {
        "prompts": [own_copy(row["prompt"]) for row in rows],
        "completions": [
            [{"role": "assistant", "content": completion}]
            if isinstance(completion, str) and not isinstance(prompt, str)
            else own_copy(completion)
            for prompt, completion in zip([row["prompt"] for row in rows], completions, strict=True)
        ],
        "completion_ids": [[*ids] for ids in completion_ids],
        **{name: [own_copy(row["columns"].get(name)) for row in rows] for name in columns},
    }


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """Send what a user's code prints to stderr, as stdout is for results; works as a decorator too."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


PATCHABLE = (builtins, io, json, math, os, os.path, random, shutil, time)


def put_folder(folder: str) -> None:
    """Change to a folder if it still exists."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


def put_environment(variables: dict) -> None:
    """Set the environment to exactly these variables."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def umask() -> int:
    """The process's umask, which only setting it returns."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def put_handlers(previous: dict) -> None:
    """Restore signal handlers, which only the main thread can do."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in previous.items():
            signal.signal(number, handler)


def put_attributes(modules: dict) -> None:
    """Undo changes of modules' attributes; new attributes stay."""
    for module, names in modules.items():
        for name, value in names.items():
            if vars(module).get(name, names) is not value:
                setattr(module, name, value)


def states_of_process() -> dict:
    """{state of the process: (function that reads it, function that sets it, initial value for some libraries)}."""
    states = {
        "folder": (lambda: os.getcwd() if os.path.exists(".") else "", put_folder),
        "environment": (os.environ.copy, put_environment),
        "path": (sys.path.copy, lambda path: sys.path.__setitem__(slice(None), path)),
        "arguments": (sys.argv.copy, lambda given: setattr(sys, "argv", given)),
        "stdout": (lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
        "stderr": (lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
        "warnings": (warnings.filters.copy, lambda filters: warnings.filters.__setitem__(slice(None), filters)),
        "logging": (lambda: logging.root.manager.disable, logging.disable),
        "timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "umask": (umask, os.umask),
        "handlers": (lambda: {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}, put_handlers),
        "collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "attributes": (lambda: {module: dict(vars(module)) for module in PATCHABLE}, put_attributes),
    }
    if numpy := sys.modules.get("numpy"):
        states["numpy's errors"] = numpy.geterr, lambda how: numpy.seterr(**how)
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_default_dtype"):  # fully imported
        states["determinism"] = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0
        states["anomalies"] = torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
        states["dtype"] = torch.get_default_dtype, torch.set_default_dtype, torch.float32
        states["threads"] = torch.get_num_threads, torch.set_num_threads
    return states


def states_of_thread() -> dict:
    """As `states_of_process`, for states that each thread has."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "set_default_dtype"):
        return {}
    put_device = lambda device: torch.set_default_device(None if device.type == "cpu" else device)  # noqa: E731
    return {
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, True),
        "device": (torch.get_default_device, put_device, torch.device("cpu")),
    }


class OwnState:
    """The process state that rewards changed: `swapped` restores it for them, and the trainer's state afterwards."""

    def __init__(self):
        self.changed, self.ours, self.inside, self.lock = {}, {}, 0, threading.RLock()

    def enter(self, states: dict) -> dict:
        """Set the states that rewards changed earlier; returns the trainer's."""
        ours = {name: take() for name, (take, *_) in states.items()}
        for name, (_, put, *_) in states.items():
            if name in self.changed and name != "handlers":  # signals always go to the trainer
                put(self.changed[name])
        return ours

    def leave(self, states: dict, ours: dict) -> None:
        """Keep the states that rewards changed, and restore the trainer's."""
        for name, (take, put, *fresh) in states.items():
            now = take()
            before = ours.get(name, fresh[0] if fresh else now)  # a library imported meanwhile has no `ours`
            if now == before:
                self.changed.pop(name, None)
                continue
            self.changed[name] = now
            put(before)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Run rewards in their own state; threads may do so at the same time and share it."""
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.ours = self.enter(states_of_process())
                if sys.stdout is self.ours["stdout"]:
                    sys.stdout = sys.stderr  # as in `prints_aside`
            of_thread = self.enter(states_of_thread())
        try:
            yield
        finally:
            with self.lock:
                self.leave(states_of_thread(), of_thread)
                self.inside -= 1
                if not self.inside:
                    if sys.stdout is sys.stderr:
                        sys.stdout = self.ours["stdout"]
                    self.leave(states_of_process(), self.ours)


REWARD_STATE = OwnState()


# -------------------------------------------------------------- schema examples (src/parts/rewards/schema_examples.py)


def checker_of(schema):
    """A validator of a JSON Schema that fetches nothing; an invalid schema raises jsonschema's SchemaError."""
    import jsonschema
    from referencing import Registry

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


def example_of(schema):
    """A value that a JSON Schema (or its text) accepts, with as many properties as it allows; None if none is found.

    Deliberately left out: texts for `pattern`, and conditions by `if`.
    """
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        checker = checker_of(schema)
        return next((value for value in examples(schema, schema, 0) if checker.is_valid(value)), None)
    except Exception:  # libraries raise many kinds for odd schemas
        return None


def examples(schema, root, depth: int):
    """At most a few dozen candidates for a part of a schema."""
    if not isinstance(schema, dict):
        return ["text"] if schema else []
    if "$ref" in schema:
        return examples(target_of(schema["$ref"], root) | without(schema, "$ref"), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            choices = (examples(merged([without(schema, word), one]), root, depth) for one in schema[word])
            return list(itertools.islice(itertools.chain.from_iterable(choices), 24))
    if "allOf" in schema:
        return examples(merged([without(schema, "allOf"), *schema["allOf"]]), root, depth)
    given = [schema["const"]] if "const" in schema else schema.get("enum") or schema.get("examples")
    return list(given) if given else values_of(schema, root, depth)


def without(schema: dict, word: str) -> dict:
    """A schema without one of its keywords."""
    return {name: value for name, value in schema.items() if name != word}


def target_of(reference: str, root) -> dict:
    """The part of the root schema that a reference `#/a/b` means."""
    for word in reference.removeprefix("#").split("/")[1:]:
        root = root[int(word) if isinstance(root, list) else word.replace("~1", "/").replace("~0", "~")]
    return root


def merged(schemas: list) -> dict:
    """One schema for several that all hold: objects and `required` are merged; of other keywords the last counts."""
    whole = {}
    for schema in schemas:
        for name, value in (schema if isinstance(schema, dict) else {}).items():
            old = whole.get(name)
            whole[name] = old | value if isinstance(old, dict) else old + value if name == "required" and old else value
    return whole


def values_of(schema: dict, root, depth: int) -> list:
    """Candidates for a schema without alternatives, by its type."""
    kind = schema.get("type") or ("object" if "properties" in schema else "array" if "items" in schema else "string")
    kind = next((k for k in kind if k != "null"), "null") if isinstance(kind, list) else kind
    low, high = schema.get("minLength", 0), schema.get("maxLength", 10**4)
    if kind == "object":
        return objects(schema, root, depth)
    if kind == "array":
        return arrays(schema, root, depth)
    if kind in ("integer", "number"):
        step = schema.get("multipleOf", 1)
        ends = [schema[w] for w in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if w in schema]
        candidates = [end + shift for end in ends for shift in (0, step, -step, 0.5, -0.5)]
        candidates += [(ends[0] + ends[-1]) / 2, *(-(-end // step) * step for end in ends)] if ends else []
        return [int(x) if x == int(x) else x for x in [step, 0, *candidates]]
    if kind != "string":
        return [True, False] if kind == "boolean" else [None]
    return [("text " * (low // 5 + 1)).strip().ljust(low, "x")[:high]]


def objects(schema: dict, root, depth: int) -> list:
    """Two candidates for an object: with all properties, each with its first fitting value, and with required ones."""
    required, properties = schema.get("required", []), schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    more = [f"key{i}" for i in range(schema.get("minProperties", 0) - len({*required, *properties}))]
    names = [
        name for name in [*properties, *required, *more] if depth < 4 or name not in properties or name in required
    ]
    fitting = {name: first_fitting(properties.get(name, rest), root, depth) for name in names}
    value = {name: values[0] for name, values in fitting.items() if values}
    return [value, {name: value[name] for name in required if name in value}]


def first_fitting(schema, root, depth: int) -> list:
    """[the first candidate that a part of a schema accepts], or []."""
    checker = checker_of(root).evolve(schema=schema)
    return [value for value in examples(schema, root, depth + 1) if checker.is_valid(value)][:1]


def arrays(schema: dict, root, depth: int) -> list:
    """Candidates for an array with as few items as allowed, but at least one if possible."""
    fixed = [value for one in schema.get("prefixItems", []) for value in first_fitting(one, root, depth)]
    items = schema.get("items", True)
    count = min(max(schema.get("minItems", 1), 1 if depth < 4 else 0), schema.get("maxItems", 10**4)) - len(fixed)
    if not schema.get("uniqueItems") and count > 0:
        return [fixed + first_fitting(items, root, depth) * count]
    choices = examples(items, root, depth + 1)
    return [fixed + (choices + [f"text {i}" for i in range(count)])[: max(0, count)], fixed]


# -------------------------------------------------------------------- reward forms (src/parts/rewards/reward_forms.py)

REWARD_FORMS = (
    "def reward(prompt, completion, answer) -> float, or def reward(prompts, completions, answer, **kwargs) -> list"
)

REMOVED = {  # names that the reward library had: what to use
    "strict_xml_format": "soft_xml_format",
    "tag_count": "incremental_format",
    "json_format": 'json_schema.configure(schema={"type": ["object", "array"]})',
    "reasoning_quality": "no_repetition",
    "token_repetition": 'repetition_penalty.configure(unit="tokens")',
    "token_cosine_scaled": 'cosine_scaled.configure(unit="tokens", max_length=1024, exceeded=-1.0)',
    "min_length": "ideal_length",
    "language_consistency": "a function of your own",
    "kimi_length": "cosine_scaled",
    "llm_judge": "create_reward_template.py --task llm_judge",
}


def is_installed(name: str, folder: Path) -> bool:
    """Whether Python has a module of this name itself or in a folder other than `folder`."""
    places = [place for place in sys.path if Path(place or ".").resolve() != folder]
    is_standard = name in sys.builtin_module_names or name in sys.stdlib_module_names
    return is_standard or importlib.machinery.PathFinder.find_spec(name, places) is not None


def make_way(folder: Path) -> None:
    """Unload modules of other folders, libraries aside, that would hide files of this folder from its imports."""
    for file in folder.glob("*.py"):
        loaded = getattr(sys.modules.get(file.stem), "__file__", None)
        is_library = file.stem in sys.stdlib_module_names or re.search("(site|dist)-packages", str(loaded))
        if loaded and not is_library and file.stem != "__main__" and Path(loaded).resolve() != file:
            del sys.modules[file.stem]


def forget_shadows(folder: Path, names: set[str]) -> None:
    """Unload a folder's modules that are named like libraries, so that later imports get the library."""
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).resolve().parent == folder and is_installed(name, folder):
            del sys.modules[name]


def importable_name(file: Path) -> str:
    """The module name of a file: its stem, so that other processes can import it, or a unique name if that is taken."""
    loaded = getattr(sys.modules.get(file.stem), "__file__", None)
    is_loaded = loaded and Path(loaded).resolve() == file
    is_free = file.stem not in sys.modules and not is_installed(file.stem, file.parent) and "." not in file.stem
    unique = f"{file.stem}_{abs(hash(str(file)))}"
    return file.stem if is_loaded or (is_free and unique not in sys.modules) else unique


SEEN = {}  # {folder: {Python file in it: hash of its bytes}}, as of the last import from the folder


def forget_edited(folder: Path) -> None:
    """Unload a folder's modules if a file in it has changed since the last import, as between cells of a notebook."""
    files = {}
    for file in folder.glob("*.py"):
        with contextlib.suppress(OSError):
            files[file] = hash(file.read_bytes())
    if SEEN.get(folder, files) != files:
        places = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in sys.modules.items()}
        for name in [n for n, place in places.items() if Path(str(place)).parent == folder and n != "__main__"]:
            del sys.modules[name]
    SEEN[folder] = files


def import_file(kind: str, spec: str, file: str):
    """Import a user's file by its path, once unless it is edited; `kind` and `spec` name it in error messages.

    Other processes can import it by its name, as `multiprocessing` does. If a reward changes the process, such as its
    working folder, only rewards see the change.
    """
    path = Path(file).resolve()
    with REWARD_STATE.swapped() if kind == "reward" else prints_aside():
        forget_edited(path.parent)
        name, earlier = importable_name(path), {*sys.modules}
        if name in sys.modules:
            return sys.modules[name]
        make_way(path.parent)
        before, sys.argv = (sys.argv, sys.path[:]), [str(path)]
        sys.path.insert(0, str(path.parent))  # it may import its neighbours
        module_spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(module_spec)
        try:
            module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            problem = f"importing {file} raises {type(error).__name__}: {error}{user_place(error)}"
            of_library = REMOVED if "reward_functions_library" in str(error) else {}
            tried = "".join(f"; try {new}" for old, new in of_library.items() if f"'{old}'" in str(error))
            raise UserError(f"got {kind} {spec!r}: {problem}; expected a file that imports{tried}") from error
        finally:
            forget_shadows(path.parent, {*sys.modules} - earlier - {name})
            if kind != "reward":
                sys.argv, sys.path[:] = before
    sys.path.append(str(path.parent))
    return module


def is_weight(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def list_weights(spec: str, members: dict, functions: list, named: str) -> list[float]:
    """Weights of a list of functions: its attribute `weights`, or the file's list that the spec names, `named`.

    Raises:
        UserError: there are no weights, or not one for each function.
    """
    lists = {n: [*v] for n, v in members.items() if isinstance(v, list | tuple) and v and all(map(is_weight, v))}
    preset, many = getattr(functions, "weights", None), f"got reward {spec!r}: {len(functions)} functions"
    if named:
        got = f"got reward {spec!r}: a list with weights of its own, {preset}"
        need(preset is None, f"{got}; expected no others")
        expected = f"one of {', '.join(lists)}" if lists else "such a list in the file"
        got = f"got reward {spec!r}: no list of numbers {named!r}"
        need(named in lists, f"{got}; expected {expected}{suggest(named, lists)}")
        preset = lists[named]
    elif preset is None and len(functions) > 1:
        fits = [name for name, values in lists.items() if len(values) == len(functions)]
        advice = fits[0] if fits else f"WEIGHTS, after WEIGHTS = {[1.0] * len(functions)} in the file"
        target = spec.partition("*")[0]
        raise UserError(f"{many} without weights; expected one for each; try {target}*{advice}")
    weights = [1.0] if preset is None else preset
    need(len(weights) == len(functions), f"{many} with {len(weights)} weights; expected one for each")
    return weights


def is_reward(member, names: tuple[str, ...] = ("completions",)) -> bool:
    """Whether a member of a library is a function or callable object with one of the parameters `names`."""
    try:
        return not inspect.isclass(member) and bool({*names} & {*inspect.signature(member).parameters})
    except (TypeError, ValueError):
        return False


def is_preset(member) -> bool:
    """Whether a member of a library is a list of functions with weights."""
    return isinstance(member, list) and hasattr(member, "weights")


def library_rewards(file: str) -> dict:
    """{name: function or preset} of a reward library."""
    need(Path(file).is_file(), f"got library {file!r}, not a file; expected a Python file; try FILE.py:function")
    members = vars(import_file("library", file, file))
    return {n: m for n, m in members.items() if not n.startswith("_") and (is_reward(m) or is_preset(m))}


def spec_parts(spec: str) -> tuple[str, str, str]:
    """(file, name, weight) of `FILE.py:name[*weight]`, as text."""
    target, _, weight = spec.partition("*")
    file, _, name = target.rpartition(":")
    return file, name, weight


def instead_of(name: str, known: list[str]) -> str:
    """What to try for a name that does not exist."""
    return f"; try {REMOVED[name]}" if name in REMOVED and "cosine_scaled" in known else suggest(name, known)


def full_spec(spec: str) -> str:
    """`FILE.py:name[*weight]` for a spec; a bare name always means the library's."""
    name = spec.partition("*")[0]
    if ":" in name:
        return spec
    expected = "expected FILE.py:function[*weight], or a name of `reward_preflight.py --list`"
    need(name.isidentifier(), f"got reward {spec!r}; {expected}")
    if name not in (names := library_rewards(EMBEDDED_REWARDS)):
        raise UserError(f"got reward {spec!r}; {expected}{instead_of(name, [*names])}")
    return f"{EMBEDDED_REWARDS}:{spec}"


def find_reward(spec: str):
    """(The function or list of functions that a spec names, the members of its file)."""
    file, name, _ = spec_parts(full_spec(spec))
    need(file and Path(file).is_file(), f"got reward {spec!r}: no file {file!r}; expected FILE.py:function[*weight]")
    module = import_file("reward", spec, file)
    members = vars(module)
    reward = getattr(module, name, None)
    if isinstance(reward, list) and reward and all(map(callable, reward)):
        return reward, members
    defined = {n: m for n, m in members.items() if getattr(m, "__module__", "") == module.__name__}
    known = [n for n, m in defined.items() if callable(m) and n == getattr(m, "__name__", n) and not n.startswith("_")]
    rewards = [n for n in known if is_reward(defined[n], ("completion", "completions"))]
    known = rewards or known  # a library has other functions too
    got = f"got reward {spec!r}: {file} has no function {name!r}"
    need(callable(reward), f"{got}; expected one of {', '.join(known)}{instead_of(name, known)}")
    need(not inspect.isclass(reward), f"got {spec}, a class; expected a function or an instance; try reward = {name}()")
    return reward, members


def weight_of(spec: str) -> float:
    """The number after the star of a spec, or 1."""
    text = spec_parts(spec)[2]
    try:
        weight = float(text or 1.0)
    except ValueError:
        expected = "expected FILE.py:function[*weight], or FILE.py:REWARDS*WEIGHTS with two lists of the file"
        raise UserError(f"got reward {spec!r}: {text!r} is not a number; {expected}") from None
    need(math.isfinite(weight), f"got reward {spec!r}: weight {weight}; expected a finite number")
    return weight


def refuse_other_forms(spec: str, function) -> None:
    """Raise UserError for verl's form, `compute_score(solution_str, …)`, and for one with names of both of ours."""
    try:
        names = {*inspect.signature(function).parameters}
    except ValueError:  # a builtin
        return
    got = f"got reward {spec!r}, which has verl's form; expected {REWARD_FORMS}"
    target = spec.partition("*")[0]
    port = f"python {in_bundle('scripts/create_reward_template.py')} --from {target} --output my_reward.py"
    need(not {"solution_str", "ground_truth"} <= names, f"{got}; try {port}")
    both = [name for name in ("prompt", "completion", "prompts", "completions") if name in names]
    mixed = is_per_sample(function) and {"prompts", "completions"} & names
    got = f"got reward {getattr(function, '__name__', type(function).__name__)} with {' and '.join(both)}"
    need(not mixed, f"{got}, names of both forms; expected one of them: {REWARD_FORMS}")


def load_rewards(spec: str) -> list[tuple]:
    """Load `FILE.py:name[*weight]` and return (function, weight) pairs.

    The name is a function, a preset (a list of functions with an attribute `weights`), or a list of functions whose
    weights are a list of numbers in the file, `FILE.py:REWARDS*REWARD_WEIGHTS`.
    """
    reward, members = find_reward(spec)
    for function in reward if isinstance(reward, list) else [reward]:
        refuse_other_forms(spec, function)
    if not isinstance(reward, list):
        return [(reward, weight_of(spec))]
    text = spec_parts(spec)[2]
    named = text if text.isidentifier() else ""
    factor = 1.0 if named else weight_of(spec)
    return [(f, factor * w) for f, w in zip(reward, list_weights(spec, members, reward, named), strict=True)]


# ------------------------------------------------------------------------------ rewards (src/parts/rewards/rewards.py)


@dataclass
class CallLimits:
    """Limits on calls of async rewards: seconds per call (0: none), calls at once, and retries."""

    timeout: float = 600.0
    concurrency: int = 32
    retries: int = 2


class CallFailed(Exception):
    """A call of a reward raised `__cause__`; `number` is its index among the calls of a batch."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


# what httpx, openai and anthropic, aiohttp, requests and urllib call a lost connection
LOST = {"TransportError", "APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "URLError"}


def is_passing(error: BaseException) -> bool:
    """Whether a retry may help: after a lost connection, a time limit, or HTTP status 408, 425, 429 or 5xx."""
    holders = (error, getattr(error, "response", None))
    for status in (getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code")):
        if isinstance(status, int):
            return status in (408, 425, 429) or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & LOST)


class RewardLoop:
    """One event loop in its own thread for all batches, so that an async reward can keep objects such as a client."""

    def __init__(self):
        self.loop, self.slots = asyncio.new_event_loop(), {}
        self.thread = threading.Thread(target=self.serve, name="rewards", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Run the loop for ever, even if a task raises SystemExit."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def gather(self, jobs: list[tuple], limits: CallLimits) -> list:
        """Await jobs (number, call, its first awaitable) together and return their results in order."""
        future = asyncio.run_coroutine_threadsafe(self.gathered(jobs, limits), self.loop)
        try:
            return future.result()
        finally:
            future.cancel()  # a signal may have ended the wait

    async def gathered(self, jobs: list[tuple], limits: CallLimits) -> list:
        """Await the jobs inside the loop; if one fails, the others are cancelled."""
        tasks = [asyncio.ensure_future(self.answer(*job, limits)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            close_unstarted([first for _, _, first in jobs])

    async def answer(self, number: int, call, first, limits: CallLimits):
        """The result of one job; after an error that may pass, the call is made again."""
        for attempt in range(1 + limits.retries):
            async with self.slots.setdefault(limits.concurrency, asyncio.Semaphore(limits.concurrency)):
                try:
                    with REWARD_STATE.swapped():
                        late = TimeoutError(f"no answer in {limits.timeout:g} s; try a higher --reward_timeout")
                        return await within(call() if attempt else first, limits.timeout or None, late)
                except asyncio.CancelledError as error:
                    if asyncio.current_task().cancelling():  # by `gathered`
                        raise
                    raise CallFailed(number) from RuntimeError(f"was cancelled from within: {error}")
                except BaseException as error:  # SystemExit would end the loop
                    if attempt == limits.retries or not is_passing(error):
                        raise CallFailed(number) from error
                await asyncio.sleep(min(30.0, 0.5 * 2**attempt))


async def within(awaitable, seconds: float | None, late: Exception):
    """The result of an awaitable; raises `late` after so many seconds, None: never."""
    try:
        async with asyncio.timeout(seconds) as clock:
            return await awaitable
    except TimeoutError:
        if not clock.expired():
            raise  # raised by the awaitable itself
        raise late from None


def close_unstarted(results: list) -> None:
    """Close coroutines among the results that were never started, which would warn otherwise."""
    for result in results:
        if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()


LOOPS, LOOPS_LOCK = {}, threading.Lock()


def reward_loop() -> RewardLoop:
    """The reward loop of this process; a forked process gets its own."""
    with LOOPS_LOCK:
        if os.getpid() not in LOOPS:
            LOOPS[os.getpid()] = RewardLoop()
        return LOOPS[os.getpid()]


def answers(calls: list, limits: CallLimits) -> list:
    """Make calls and return their results; awaitables run together in the reward loop.

    Raises:
        CallFailed: a call raised; the others are cancelled.
    """
    results = []
    with REWARD_STATE.swapped():
        for number, call in enumerate(calls):
            try:
                results.append(call())
            except (Exception, SystemExit) as error:
                close_unstarted(results)
                raise CallFailed(number) from error
        jobs = [(i, calls[i], result) for i, result in enumerate(results) if inspect.isawaitable(result)]
        awaited = reward_loop().gather(jobs, limits) if jobs else []
    for (number, _, _), result in zip(jobs, awaited, strict=True):
        results[number] = result
    return results


def one_by_one(prompts: list, completions: list, **columns) -> list[dict]:
    """The arguments of each sample: its values under the columns' names, `prompt`, and `completion`, always text."""
    whole = {name: columns.pop(name) for name in TRL_EXTRAS if name in columns}
    samples = []
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        values = {name: column[i] for name, column in columns.items()}
        samples.append(values | whole | {"prompt": prompt, "completion": text_of_answers(completion)})
    return samples


def reward_calls(function, arguments: dict) -> list:
    """The calls that score a batch, as functions without arguments: one, or one per completion if it takes samples."""
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = one_by_one(**arguments) if is_per_sample(function) else [arguments]
    if not takes_any:
        given = [{p.name: one[p.name] for p in parameters if p.name in one} for one in given]
    return [functools.partial(function, **one) for one in given]


def scored_batch(function, arguments: dict, limits: CallLimits):
    """Call one reward function on a batch and return its result, awaited."""
    results = answers(reward_calls(function, arguments), limits)
    return results if is_per_sample(function) else results[0]


def read_scores(result, count: int) -> tuple[list[float | None], dict, str]:
    """(Scores, {index: entry that is neither finite nor None}, what the result is if not a list of `count`, or "")."""
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple):
        return [], {}, f"a {type(values).__name__}"
    scores = [finite_number(value) for value in values]
    bad = {i: values[i] for i, score in enumerate(scores) if score is None and values[i] is not None}
    return scores, bad, "" if len(values) == count else f"{len(values)} values"


def sample_place(name: str, rows: list[dict], completions: list, index: int) -> str:
    """A reward and one of the samples that it scored, for messages."""
    where = rows[index].get("place") or f"row {index + 1} of the batch"
    return f"reward {name}, {where}, completion {text_of_turns(completions[index])[:200]!r}"


def checked_scores(name: str, result, rows: list[dict], completions: list) -> list[float | None]:
    """Turn a reward function's result into floats and None, or raise RewardError."""
    scores, bad, problem = read_scores(result, len(completions))
    if problem:
        one = "; or name its parameters prompt and completion" if problem in ("a float", "a int", "a bool") else ""
        expected = f"expected a list of {len(completions)}, one per completion{one}"
        raise RewardError(f"reward {name}: got {problem}; {expected}")
    for i, value in bad.items():
        got = f"{sample_place(name, rows, completions, i)}: got {value!r:.200}"
        raise RewardError(f"{got}; expected a finite number or None")
    return scores


def finite_number(value) -> float | None:
    """What a user's code returned as a number, also an array or tensor of one; None for anything else."""
    with contextlib.suppress(AttributeError, RuntimeError, TypeError, ValueError):  # of several numbers
        value = value.item() if hasattr(value, "item") else value
    is_finite = isinstance(value, int | float) and abs(value) < sys.float_info.max
    return float(value) if is_finite else None


# keys of other metrics under reward/ and eval/
TAKEN = {"mean", "std", "zero_std_frac", "accuracy", "accuracy_low", "accuracy_high", "score", "length_mean", "rows"}


def check_columns(functions: dict, row: dict, others: tuple[str, ...] = ()) -> None:
    """Raise UserError if a reward function requires an argument that is neither in the data nor among `others`.

    Note an optional argument that no column fills if a column has nearly its name.
    """
    given = {*reward_arguments([row], [""], [[]]), "prompt", "completion", *others}
    for name, function in functions.items():
        taken = inspect.signature(function).parameters
        reads_completions = bool({"completion", "completions", "completion_ids"} & {*taken})
        for p in taken.values():
            if p.name in given or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            if p.default is p.empty:
                got = f"got reward {name} with the arguments {', '.join(taken)}: no column {p.name!r}, no completions"
                need(reads_completions, f"{got}; expected {REWARD_FORMS}")
                known = ", ".join(["prompt", *row["columns"]])
                near = suggest(p.name, [c for c in row["columns"] if c not in taken])
                near = f"{near}, or" if near else "; try"
                mend = f"data_loader.py --map {p.name}=COLUMN"
                mend = "ppo_train.py --environment FILE.py:Class" if p.name == "environments" else mend
                raise UserError(
                    f"reward {name} takes {p.name!r}; got data with the columns {known}; "
                    f"expected that column too (the prompt is `prompt`){near} {mend}, or a reward for this data"
                )
            near = difflib.get_close_matches(p.name, [c for c in row["columns"] if c not in taken], n=1, cutoff=0.75)
            if near:
                text = f"reward {name}: no column is called {p.name!r}, so it is always {p.default!r}"
                say_once(f"{text}; did you mean the column {near[0]!r}?")


def blamed_row(name: str, function, call: int, error: BaseException, rows, completions, alone, limits) -> RewardError:
    """The error of a reward that raised on a batch, with the row: for one that takes samples that of the call, else the
    first row that raises when scored alone.

    Args:
        call: index of the call that raised.
        alone: function from a row's index to its arguments as a batch of one.
    """

    def raised(error: BaseException) -> str:
        hint = ""
        first = alone(0)["completions"][0]
        if not isinstance(first, str) and len(first) == 1 and isinstance(error, TypeError | AttributeError | KeyError):
            hint = '; prompts are chat messages, so each completion is [{"role": "assistant", "content": text}]'
        return f"raised {type(error).__name__}: {error}{user_place(error)}{hint}"

    if is_per_sample(function):
        return RewardError(f"{sample_place(name, rows, completions, call)}: {raised(error)}")
    if is_passing(error):  # the connection is to blame, not a row
        return RewardError(f"reward {name}: {raised(error)} on a batch of {len(completions)}")
    for row in range(len(completions)):
        try:
            scored_batch(function, alone(row), limits)
        except CallFailed as failed:
            return RewardError(f"{sample_place(name, rows, completions, row)}: {raised(failed.__cause__)}")
    return RewardError(f"reward {name}: {raised(error)} on a batch, though on no single row of it")


def raw_results(
    functions: dict, rows: list[dict], completions: list, completion_ids: list[list[int]], limits: CallLimits, **more
) -> dict[str, list]:
    """{function: its raw result}; async functions run together. All functions also get the arguments `more`."""

    def arguments(chosen: slice) -> dict:
        return reward_arguments(rows[chosen], completions[chosen], completion_ids[chosen]) | more

    def alone(row: int) -> dict:
        return arguments(slice(row, row + 1))

    calls = {name: reward_calls(function, arguments(slice(None))) for name, function in functions.items()}
    owners = [(name, i) for name in calls for i in range(len(calls[name]))]
    try:
        returned = iter(answers([call for name in calls for call in calls[name]], limits))
    except CallFailed as failed:
        (name, i), cause = owners[failed.number], failed.__cause__
        raise blamed_row(name, functions[name], i, cause, rows, completions, alone, limits) from cause
    results = {name: [next(returned) for _ in calls[name]] for name in calls}
    return {n: r if is_per_sample(functions[n]) else r[0] for n, r in results.items()}


class Reward:
    """The weighted sum of reward functions, `(prompts, completions, **columns) -> list` as in TRL, or of one sample.

    Functions may be async. They get `completion_ids`, every column of the data, and completions as strings, or as
    [{"role": "assistant", "content": text}] if the prompt is chat messages. None means *not applicable*. A function
    with the parameters `prompt` and `completion` is called for each sample.
    """

    def __init__(self, specs: list[str], limits: CallLimits | None = None):
        self.functions, self.weights, self.silent, self.limits = {}, {}, False, limits or CallLimits()
        self.others = ()  # arguments that functions get beside columns
        for function, weight in [pair for spec in specs for pair in load_rewards(spec)]:
            name = getattr(function, "__name__", type(function).__name__)
            while name in {*self.functions, *TAKEN}:
                name += "_2"
            self.functions[name], self.weights[name] = function, weight

    def check_columns(self, row: dict) -> None:
        """Raise UserError if a function requires an argument that the data does not have."""
        check_columns(self.functions, row, self.others)

    def __call__(self, rows: list[dict], completions: list[str], completion_ids: list[list[int]]):
        """Return (scores [n], {function: list of n floats or None}) for n completions."""
        if not rows:  # more processes than held-out prompts
            return [], {}
        results = raw_results(self.functions, rows, completions, completion_ids, self.limits)
        parts = {name: checked_scores(name, results[name], rows, completions) for name in self.functions}
        scores = [
            sum(self.weights[name] * values[i] for name, values in parts.items() if values[i] is not None)
            for i in range(len(rows))
        ]
        if all(value is None for values in parts.values() for value in values) and not self.silent:
            self.silent = True
            say("warning: no reward function applies to any row of a batch (all None), so it gives no gradient")
        return scores, parts


# ------------------------------------------------------------------- whole models (src/parts/networks/whole_models.py)

LOADABLE = "expected a checkpoint folder, or a hub id that this machine has or can reach"
# where the folder of a run, or of the hub's cache, has its models, the best first
MODELS_OF_RUN = "final policy step-*/policy checkpoint-* checkpoints/*/policy checkpoints/*-* snapshots/*".split()


def settings_of_model(folder: Path) -> dict:
    """The contents of a folder's config.json; {} without a readable one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    return {}


def check_pointers(source: str) -> None:
    """Raise UserError for a folder with Git LFS's pointers in place of files, as `git clone` leaves without git-lfs."""
    files = [file for name in ("*model*.safetensors", "tokenizer.json") for file in Path(source).glob(name)]
    small = [file for file in files if file.is_file() and file.stat().st_size < 1000]
    pointers = [file.name for file in small if file.read_bytes().startswith(b"version https://git-lfs")]
    got = f"got model {source!r}, whose {', '.join(pointers[:1])} is a pointer of Git LFS; expected the file itself"
    need(not pointers, f"{got}; try `git lfs install` and `git lfs pull` in that folder")


def check_model_folder(source: str) -> None:
    """Raise UserError for a folder that holds its models further down, or whose architecture is code of its own."""
    got, settings = f"got model {source!r}", settings_of_model(Path(source))
    kind = settings.get("model_type")
    known = not settings.get("auto_map") or kind in transformers.CONFIG_MAPPING
    need(known, f"{got}, whose architecture {kind!r} is code in its folder, which is never run; try another model")
    for form in () if kind else MODELS_OF_RUN:
        for model in sorted(Path(source).glob(form), key=lambda x: (len(str(x)), x), reverse=True):
            is_model = (model / "adapter_config.json").is_file() or "model_type" in settings_of_model(model)
            need(not is_model, f"{got}, a folder of models; expected one of them; try {model}")


def load_whole(load, source: str, **options):
    """Call `load`, such as AutoModelForCausalLM.from_pretrained; UserError if weights were not in the files.

    transformers fills them with random numbers. What tied layers share need not be in the files.
    """
    model, report = load(source, **{"trust_remote_code": False} | options, output_loading_info=True)
    weights = model.state_dict()
    missing, unread = sorted(weights.keys() & report["missing_keys"]), sorted(report["unexpected_keys"])
    got = f"got model {source!r}, in whose files {len(missing)} of {len(weights)} tensors are missing"
    others = f"; the files have {len(unread)} others, such as {unread[0]}" if unread else ""
    advice = "saving the whole language model again, with its head (or tie_word_embeddings) and outside any wrapper"
    need(not missing, f"{got}, such as {', '.join(missing[:1])}{others}; expected all of them; try {advice}")
    return model


# --------------------------------------------------------------------------- adapters (src/parts/networks/adapters.py)

RENAMED = ".*is_gradient_checkpointing.*deprecated.*"  # a warning that peft causes by using the old name


def config_file(source: str) -> str | None:
    """Path of adapter_config.json of a folder or hub id; None if there is none, as for a plain model."""
    if Path(source).is_dir():
        file = Path(source) / "adapter_config.json"
        return str(file) if file.is_file() else None
    if not is_hub_id(source):
        return None
    hub_is_reached()  # sets the client offline if need be, which would otherwise retry for a minute
    with contextlib.suppress(OSError):  # no such repository: loading it tells
        return transformers.utils.find_adapter_config_file(source)
    return None


def merge_command(source: str, *flags: str) -> str:
    """The shell command that merges an adapter into its base."""
    words = [source, *flags, "--output", Path(source).name + "-merged"]
    return f"`python {in_bundle('scripts/merge_adapter.py')} {shlex.join(words)}`"


def adapter_settings(source: str) -> dict | None:
    """Contents of a LoRA adapter's adapter_config.json; None for a plain model, UserError for other adapters."""
    check_pointers(source)
    file = config_file(source)
    if not file:
        check_model_folder(source)
        return None
    got = f"got the adapter {source!r}"
    try:
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
        task, kind = settings.get("task_type"), settings.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{got}, whose adapter_config.json is broken: {error}; expected peft's") from None
    need(task in (None, "CAUSAL_LM"), f"{got} of task type {task}; expected CAUSAL_LM")
    need(kind == "LORA", f"{got} of type {kind}; expected LORA; try merging it with the library that trained it")
    if Path(source).is_dir():
        whole = [x.name for form in ("model*.safetensors", "pytorch_model*.bin") for x in Path(source).glob(form)]
        both = f"{got} beside the weights of a whole model ({', '.join(whole[:2])}); expected one of them"
        need(not whole, f"{both}; try moving the files adapter_* to a folder of their own")
        weights = any((Path(source) / f"adapter_model.{end}").exists() for end in ("safetensors", "bin"))
        need(weights, f"{got} without adapter_model.safetensors; expected its weights beside adapter_config.json")
    return settings


def base_of(source: str, base: str = "") -> str:
    """The base model of an adapter: `base` if given, else the one it names. A plain model is its own base."""
    settings = adapter_settings(source)
    if not settings:
        return source
    base = base or settings.get("base_model_name_or_path") or ""
    is_here = Path(base).is_dir() if base else False
    lost = f"got the adapter {source!r}, whose base {base!r} is not there"
    advice = f"{merge_command(source, '--base', 'FOLDER')}, or correcting adapter_config.json"
    need(is_here or is_hub_id(base), f"{lost}; expected a folder, as seen from here, or a hub id; try {advice}")
    chain = f"got the adapter {source!r}, whose base {base!r} is an adapter itself; expected a whole model"
    need(not config_file(base), f"{chain}; try {merge_command(base)}, and that folder as base")
    return str(Path(base).resolve()) if is_here else base


def tokenizer_of(source: str, base: str = "") -> str:
    """Where a model's tokenizer is: in the adapter's own folder if it has one, else in its base's."""
    if not adapter_settings(source):
        return source
    files = ("tokenizer_config.json", "tokenizer.json")
    quiet = {f"_raise_exceptions_for_{problem}": False for problem in ("missing_entries", "connection_errors")}
    has_tokenizer = any(transformers.utils.cached_file(source, name, **quiet) for name in files)
    return source if has_tokenizer else base_of(source, base)


def saved_rows(base, weights: dict) -> dict:
    """{layer: rows} for embedding and output layers among an adapter's saved tensors."""
    ends, rows = (base.get_input_embeddings(), base.get_output_embeddings()), {}
    layers = [name for name, module in base.named_modules() if any(module is end for end in ends)]
    for key, x in weights.items():
        name, _, part = key.removeprefix("base_model.model.").rpartition(".")
        layer = next((layer for layer in layers if f"{name}.".startswith(f"{layer}.")), None)
        if layer and part == "weight" and not name.endswith(("lora_A", "lora_magnitude_vector")):
            rows[layer] = x.shape[0]
        elif layer and part == "lora_embedding_A":
            rows[layer] = x.shape[1]
    return rows


def fit_embeddings(base, source: str) -> None:
    """Resize a base's embeddings to the rows that an adapter has saved for added tokens; UserError if it lacks them."""
    from peft.utils import load_peft_weights

    known = base.get_input_embeddings().weight.shape[0]
    rows = saved_rows(base, load_peft_weights(source, device="cpu"))
    size = max(rows.values(), default=known)
    tied = base.get_input_embeddings().weight is base.get_output_embeddings().weight
    beyond = set()
    if tokenizer_of(source) == source:
        tokens = transformers.AutoTokenizer.from_pretrained(source).get_vocab()
        beyond = {token for token, i in tokens.items() if i >= size}
    if beyond:  # ignore those that the base's own tokenizer has too
        beyond -= transformers.AutoTokenizer.from_pretrained(base.name_or_path).get_vocab().keys()
    which = sorted(beyond)[:3] or f"row {known}"
    got = f"got the adapter {source!r}, whose tokenizer has tokens beyond the {known} rows of its base, as {which}"
    got += ", and which has not saved their embeddings; expected both layers"
    advice = "saving it again with save_pretrained(..., save_embedding_layers=True), or training with modules_to_save"
    need(not beyond and (size <= known or tied or len(rows) == 2), f"{got}; try {advice}")
    if size != known:
        base.resize_token_embeddings(size, mean_resizing=False)  # no initial values needed: the rows are loaded next


def with_adapter(base, source: str, trainable: bool = False):
    """Load an adapter onto a base, in eval mode; UserError if they do not fit."""
    from peft import PeftConfig, PeftModel
    from safetensors import SafetensorError

    settings = PeftConfig.from_pretrained(source)
    settings.base_model_name_or_path = base.name_or_path
    settings.lora_dropout = 0.0
    try:
        fit_embeddings(base, source)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=RENAMED)
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            model = PeftModel.from_pretrained(base, source, config=settings, is_trainable=trainable)
        unknown = model.load_adapter(source, "default", is_trainable=trainable).unexpected_keys
        if unread := [key for key in unknown if "lora_" in key]:  # peft saves some embeddings twice
            raise ValueError(f"it has no place for {len(unread)} tensors, such as {unread[0]}")
    except (RuntimeError, ValueError, UserWarning, SafetensorError) as error:
        first = str(error).strip().splitlines()[-1].strip()
        got = f"got the adapter {source!r}, which does not load on its base {base.name_or_path!r}: {first}"
        advice = f"expected the model that it was trained on; try {merge_command(source, '--base', 'MODEL')}"
        raise UserError(f"{got}; {advice}") from None
    return model.eval()


def load_pretrained(auto_class, source: str, base: str = "", trainable: bool = False, **options):
    """Load a network by `auto_class`; for an adapter, its causal base (or `base`) with the adapter on top."""
    start = base_of(source, base)
    if start == source:
        return load_whole(auto_class.from_pretrained, source, **options)
    base = load_whole(transformers.AutoModelForCausalLM.from_pretrained, start, **options)
    return with_adapter(base, source, trainable)


# ------------------------------------------------------------------------------- models (src/parts/networks/models.py)


@dataclass
class Models:
    """The networks of a run and what they share."""

    policy: object
    critic: object  # None unless advantages are GAE's
    reference: object  # None without KL; under LoRA the policy itself, used in `as_reference`
    tokenizer: object
    eos_ids: list[int]
    pad_id: int
    device: object

    @property
    def networks(self) -> list:
        """[policy, critic's backbone, reference]; None for those that the run does not have."""
        return [self.policy, self.critic and self.critic.backbone, self.reference]


def precision_on(precision: str, device) -> str:
    """Resolve a precision for a device: auto is bf16 on CUDA GPUs that support it, else fp32."""
    if precision != "auto":
        return precision
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if able else "fp32"


def leave_out_cudnn_attention() -> None:
    """Disable cuDNN's attention, which plans for 23 to 37 ms at each new length, so at each sampled token."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def warn_of_slow_precision(precision: str, device) -> None:
    """Warn of a precision that a CPU emulates: bf16 products without AVX-512 take 4 to 80 times as long as fp32."""
    if device.type == "cpu" and precision != "fp32" and torch.backends.mkldnn.is_available():
        if not getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")():
            got = f"got precision {precision} on a CPU without instructions for it"
            say_once(f"warning: {got}; expect steps many times slower than in fp32; try fp32")


def settle_precision(config: BaseConfig, device) -> None:
    """Resolve `auto` in config.precision, allow or forbid TF32, and on a GPU report both.

    Below fp32, the layers that stay float32 (the output layer) may use TF32, which is still finer than bf16.
    """
    asked, config.precision = config.precision, precision_on(config.precision, device)
    exact = config.precision == "fp32"
    leave_out_cudnn_attention()
    warn_of_slow_precision(config.precision, device)
    torch.set_float32_matmul_precision("highest" if exact else "high")
    if device.type != "cpu":
        faster = precision_on("auto", device).replace("fp32", "fp16")
        how = f"without TF32; --precision {faster} is faster" if exact else "may use TF32"
        note = " (auto)" if asked == "auto" else ""
        say(f"device {device}, precision {config.precision}{note}; float32 matrix products {how}")


def widest_float(device):
    """float64, but float32 on Apple's GPUs, which have no wider type."""
    return torch.float32 if device.type == "mps" else torch.float64


def compute_dtype(config: BaseConfig, device):
    """The dtype of matrix products and of frozen weights."""
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return names[precision_on(config.precision, device)]


def autocast(config: BaseConfig, device):
    """Context in which the networks run; without effect in fp32."""
    dtype = compute_dtype(config, device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def unwrapped(model):
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_tokens(models: Models, rows: list[dict]) -> None:
    """Raise UserError if a prompt has a token without an embedding."""
    known = unwrapped(models.policy).get_input_embeddings().weight.shape[0]
    largest = max((max(row["prompt_ids"], default=0) for row in rows), default=0)
    got = f"got a prompt with token {largest}, and a model that embeds {known}: one was added to the tokenizer alone"
    need(largest < known, f"{got}; try model.resize_token_embeddings(len(tokenizer)), and save both")


def check_context(config: BaseConfig, models: Models, rows: list[dict]) -> None:
    """Raise UserError if prompt and completion exceed the model's positions, or if a token has no embedding."""
    check_tokens(models, rows)
    if config.chat or not all(isinstance(row.get("prompt", ""), str) for row in rows):
        warn_of_turn_end(models.tokenizer, models.eos_ids)
    longest = max(len(row["prompt_ids"]) for row in rows)
    got = f"got a prompt of {longest} and completions of {config.max_new_tokens} tokens"
    for network in map(unwrapped, filter(None, models.networks)):
        limit = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        expected = f"expected at most {limit} together, all that {network.name_or_path} reads"
        fits = not limit or longest + config.max_new_tokens <= limit
        need(fits, f"{got}; {expected}; try a lower --max_new_tokens or --max_prompt_tokens")


# ----------------------------------------------------------------------- tokenizers (src/parts/networks/tokenizers.py)


def read_tokenizer(source: str, base: str = "", **options):
    """A model's tokenizer; UserError if it does not load, or if transformers finds none and builds an empty one."""
    known = Path(source).is_dir() or is_hub_id(source)
    need(known, f"got model {source!r}, which is not a folder, nor a hub id; {LOADABLE}")
    folder, files = Path(tokenizer_of(source, base)), ("tokenizer.json", "tokenizer.model", "vocab.json")
    bare = folder.is_dir() and not any((folder / file).exists() for file in files)
    missing = "a tokenizer: try copying tokenizer.json and tokenizer_config.json from the model that it was made of"
    missing = missing if (folder / "config.json").exists() else "a config.json: try a folder of save_pretrained"
    without = f"got model {source!r}, a folder without {missing}"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, **options)
    except Exception as error:  # of a broken tokenizer.json: KeyError, or tokenizers' own
        why = f"got model {source!r}, whose tokenizer does not load: {' '.join(str(error).split())}; {LOADABLE}"
        raise UserError(without if bare else why) from error
    added = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    need(not bare or tokenizer.get_vocab().keys() - added, without)
    return tokenizer


def open_tokenizer(config: BaseConfig, **options):
    """The tokenizer of config.model, with --chat_template set."""
    tokenizer = read_tokenizer(config.model, **options)
    give_template(tokenizer, config.chat_template)
    return tokenizer


def load_tokenizer(config: BaseConfig):
    """The tokenizer of a model that is trained or sampled; it remembers its loaded state for `save_tokenizer`."""
    transformers.logging.set_verbosity_error()  # a critic takes a policy's weights without its head on purpose
    transformers.logging.disable_progress_bar()
    tokenizer = open_tokenizer(config)
    backend = getattr(tokenizer, "backend_tokenizer", None)  # each call overwrites its padding and truncation
    tokenizer.files_ask_for = (backend.padding, backend.truncation) if backend else (None, None)
    return tokenizer


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """Sorted ids of the tokens that end an answer: a model's eos_token_id (one or a list) and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def end_and_pad_ids(config: BaseConfig, policy, tokenizer) -> tuple[list[int], int]:
    """(ids of tokens that end a completion, pad id). Masks never depend on the pad."""
    rows = range(unwrapped(policy).get_input_embeddings().weight.shape[0])  # an id beyond them has no embedding
    given = ending_ids(unwrapped(policy).generation_config.eos_token_id, tokenizer)
    ends = [i for i in given if i in rows]
    wrong = f", whose end tokens {given} have no embedding" if given else " without an end token"
    expected = f"expected an id below {len(rows)}; try setting eos_token_id in its generation_config.json"
    need(ends, f"got model {config.model!r}{wrong}; {expected}")
    return ends, tokenizer.pad_token_id if tokenizer.pad_token_id in rows else ends[0]


def token_count(tokenizer, eos_ids: list[int]) -> int:
    """Number of embedding rows that belong to tokens; rows beyond only round up the size and must not be sampled."""
    return 1 + max(*tokenizer.get_vocab().values(), *eos_ids)


# ----------------------------------------------------------------------------- loading (src/parts/networks/loading.py)


def disable_dropout(model) -> None:
    """Set all dropout probabilities to 0, so that an unchanged policy has ratio 1."""
    for module in model.modules():
        if type(module).__name__.startswith("Dropout"):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def nf4_config(compute):
    """Config for 4-bit weights as in QLoRA (Dettmers 2023), with matrix products in dtype `compute`; CUDA or CPU."""
    got = "got 4-bit weights without bitsandbytes, which reads them"
    need(importlib.util.find_spec("bitsandbytes"), f"{got}; try `pip install bitsandbytes`, or weights of 16 bits")
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": compute}
    return transformers.BitsAndBytesConfig(load_in_4bit=True, **kind)


def keep_differentiable(model) -> None:
    """Keep bitsandbytes from repacking 4-bit weights for CPU inference, which would block gradients."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def attention_choice(config: BaseConfig) -> dict:
    """Arguments that --attn_implementation adds to from_pretrained and from_config."""
    kind = config.attn_implementation
    return {} if kind == "auto" else {"attn_implementation": kind}


def refuse_attention(config: BaseConfig, source: str, why: object) -> UserError:
    """The error for an attention that is not installed, or that the architecture or device does not support."""
    kind = config.attn_implementation
    package = ", or `pip install kernels`, with which transformers fetches it for a GPU" * kind.startswith("flash")
    expected = "expected one that is installed and that the architecture has"
    got = f"got --attn_implementation {kind} with model {source!r}: {why}"
    return UserError(f"{got}; {expected}; try --attn_implementation auto{package}")


def load_error(config: BaseConfig, source: str, error: Exception) -> UserError:
    """The UserError for a model that does not load."""
    if isinstance(error, UserError):
        return error
    if is_out_of_memory(error):
        return memory_shortage(f"while {source!r} was loaded", error, "a smaller model, or a machine with more memory")
    if config.attn_implementation != "auto" and "attention" in str(error).lower():
        return refuse_attention(config, source, error)
    base = base_of(source, getattr(config, "base_model", ""))
    got = f"got model {source!r}, which" if base == source else f"got the adapter {source!r}, whose base {base!r}"
    why = str(error).partition("Model type should be one of")[0]  # hundreds follow
    return UserError(f"{got} does not load: {' '.join(why.split())}; {LOADABLE}")


def load_network(auto_class, source: str, config: BaseConfig, device, frozen: bool = False):
    """Load a network without dropout, in eval mode; weights are fp32, or the compute dtype under LoRA or if frozen."""
    extra = attention_choice(config)
    if config.attn_implementation == "flex_attention" and device.type == "cpu" and not frozen:
        raise refuse_attention(config, source, "it has no backward pass on a CPU")
    if config.load_in_4bit:
        extra |= {"quantization_config": nf4_config(compute_dtype(config, device)), "device_map": {"": device}}
    try:
        dtype = compute_dtype(config, device) if config.lora_rank else torch.float32
        model = load_pretrained(auto_class, source, trainable=not frozen, dtype=dtype, **extra)
    except Exception as error:  # OSError, ValueError, SafetensorError, …
        raise load_error(config, source, error) from error
    packed = getattr(model, "hf_quantizer", None) and not (frozen or config.load_in_4bit)
    got = f"got model {source!r}, whose weights are quantised; expected 16 or 32 bits, or adapters that stay apart"
    apart = config.lora_rank and not getattr(config, "merge_lora", False)
    need(apart or not packed, f"{got}; try the model that it was made from, or --lora_rank 16 without --merge_lora")
    disable_dropout(model)
    keep_differentiable(model)
    if frozen:  # embeddings and norms stay fp32, like a policy's under autocast, so that both agree exactly
        kept = {id(p) for m in (model.get_input_embeddings(), model.get_output_embeddings()) for p in m.parameters()}
        for p in model.parameters():  # packed 4-bit weights are integers and stay as they are
            if p.dim() > 1 and p.is_floating_point() and id(p) not in kept:
                p.data = p.data.to(compute_dtype(config, device))
    model = model if config.load_in_4bit else model.to(device)  # 4-bit weights are placed while loading
    if frozen or not hasattr(model, "peft_config"):  # else peft has set requires_grad
        model.requires_grad_(not frozen and not config.lora_rank)
    return model.eval()


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Pad sequences on the left; returns (input_ids, attention_mask), both [B, T]."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


# ------------------------------------------------------------------------- key cache (src/parts/networks/key_cache.py)

BLOCK = 64  # columns by which a cache grows
# bytes per layer that grouping must save, as it costs a dozen operations instead of one
WORTH_ON_CPU, WORTH_ON_GPU = 2**20, 2**27  # CPU: measured; GPU: estimated from 4 us per operation and 3 TB/s


@functools.cache
def roomy_layer():
    """A subclass of transformers' DynamicLayer that copies its contents every BLOCK tokens, not at every token."""

    class RoomyLayer(transformers.cache_utils.DynamicLayer):
        """`keys` and `values` [B, heads, T, D] are views of the first T columns of `rooms` [B, heads, T or more, D].

        With `column`, a tensor [1], the next token is written to that column and attention reads the whole rooms.
        """

        column = None

        def __init__(self, keys, values, rooms=None):
            super().__init__()
            keys, values = as_read(keys), as_read(values)
            self.lazy_initialization(keys, values)
            self.keys, self.values, self.rooms = keys, values, rooms

        def update(self, key_states, value_states, *args, **kwargs):
            """Append keys and values [B, heads, t, D] of new tokens; return those of all tokens."""
            if self.column is not None:
                for room, new in zip(self.rooms, (key_states, value_states), strict=True):
                    room.index_copy_(2, self.column, new.to(room.dtype))
                return self.rooms
            start = self.keys.shape[2]
            end = start + key_states.shape[2]
            self.make_room(end)
            for room, new in zip(self.rooms, (key_states, value_states), strict=True):
                room[:, :, start:end] = new
            self.end_at(end)
            return self.keys, self.values

        def make_room(self, end: int) -> None:
            """Grow the rooms to at least `end` columns."""
            if self.rooms is None or end > self.rooms[0].shape[2]:
                self.rooms = None
                self.keys, values = roomy(self.keys, end), self.values
                self.values = None  # frees the old tensor before the next room is made
                self.rooms = self.keys, roomy(values, end)

        def end_at(self, end: int) -> None:
            """Set keys and values to the rooms' first `end` columns."""
            self.keys, self.values = (room[:, :, :end] for room in self.rooms)
            self.column = None

        def reorder_cache(self, beam_idx):
            self.keys, self.values, self.rooms = self.keys[beam_idx], self.values[beam_idx], None

        batch_select_indices = reorder_cache

    return RoomyLayer


def as_read(x):
    """Keys or values in the dtype in which attention reads them.

    Under autocast, rotary embeddings return float32, and attention would round all of them again at each token.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def roomy(x, needed: int):
    """A copy of x [B, heads, T, D] with `needed` + BLOCK columns, zeros after the first T."""
    room = x.new_zeros(*x.shape[:2], needed + BLOCK, x.shape[3])
    room[:, :, : x.shape[2]] = x
    return room


def give_room(cache) -> None:
    """Replace the cache's DynamicLayers by roomy ones, except subclasses and layers with other contents."""
    for i, layer in enumerate(cache.layers if isinstance(cache, transformers.Cache) else ()):
        if type(layer) is transformers.cache_utils.DynamicLayer and layer.is_initialized and layer.keys.dim() == 4:
            cache.layers[i] = roomy_layer()(layer.keys, layer.values)


def has_plain_layers(cache, config) -> bool:
    """Whether all layers of a cache are roomy and the model has no sliding window: each token sees all before it."""
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if window or getattr(config, "window_size", None) or not isinstance(cache, transformers.DynamicCache):
        return False
    return all(type(layer) is roomy_layer() for layer in cache.layers)


@dataclass
class Part:
    """Rows that left a batch together."""

    numbers: list[int]  # their conversations
    layers: list[tuple]  # (keys, values) of each layer, [B, heads, T, D]
    mask: object  # [B, T], 1 = of the text


@dataclass
class KeptTexts:
    """Texts with cached keys and values, by the numbers of their conversations."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def take(self, order: list[int], mask, cache, places, rows, lengths) -> None:
        """Keep rows of the batch that is being sampled, without tokens fed after their end.

        Args:
            order: numbers of the conversations in the initial batch of B rows.
            mask: [B, T], 1 on the tokens that the initial batch had.
            places: [b] cache rows to keep; None keeps all without a copy.
            rows: [B'] index of each cache row in the initial batch.
            lengths: [B] tokens that each initial row has sampled; the last one was not fed.
        """
        numbers = rows if places is None else rows[places]
        pairs = pairs_of(cache)
        pairs = pairs if places is None else [(keys[places], values[places]) for keys, values in pairs]
        columns = torch.arange(cache.get_seq_length(), device=mask.device)
        before = torch.nn.functional.pad(mask[numbers], (0, len(columns) - mask.shape[1]), value=1)
        of_text = before * (columns < mask.shape[1] + lengths[numbers, None] - 1)
        self.parts.append(Part([order[i] for i in numbers.tolist()], pairs, of_text))

    def begins(self, texts: dict[int, list[int]]) -> bool:
        """Whether each text {conversation: ids} extends the kept text of its conversation."""
        known = ((self.ids.get(number), ids) for number, ids in texts.items())
        return all(old is not None and len(ids) > len(old) and ids[: len(old)] == old for old, ids in known)

    def cache_of(self, numbers: list[int], last: bool = True) -> tuple[list[int], object, object]:
        """(numbers in the order of rows, cache, mask [B, T]) of some conversations, aligned at the last column.

        `last`: this is the last use of the kept texts, so they are freed layer by layer.
        """
        wanted, width = {*numbers}, max(len(self.ids[number]) for number in numbers)
        order, masks, places = [], [], []  # places: of each part, its rows [b, 1] and columns [b, at most T]
        for part in self.parts:
            rows = [i for i, number in enumerate(part.numbers) if number in wanted]
            order += [part.numbers[i] for i in rows]
            index = torch.tensor(rows, device=part.mask.device, dtype=torch.long)
            mask, columns = part.mask[index].sort(dim=1, stable=True)
            masks.append(torch.nn.functional.pad(mask, (width, 0))[:, -width:])
            places.append((index[:, None], columns[:, -width:]))
        cache = transformers.DynamicCache()
        for layer in range(len(self.parts[0].layers)):
            pairs = [part.layers[layer] for part in self.parts]
            rooms = tuple(gathered([pair[which] for pair in pairs], places, width) for which in (0, 1))
            cache.layers.append(roomy_layer()(*(room[:, :, :width] for room in rooms), rooms))
            for part in self.parts if last else ():
                part.layers[layer] = None  # only one layer at a time is in memory twice
        return order, cache, torch.cat(masks)


def pairs_of(cache) -> list[tuple]:
    """(keys, values) of each layer of a cache with plain layers."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def gathered(tensors: list, places: list[tuple], width: int):
    """Copy (rows, columns) of tensors [., heads, T, D] to a room [B, heads, width + BLOCK, D]; all end at `width`."""
    first = tensors[0]
    room = first.new_zeros(sum(len(rows) for rows, _ in places), first.shape[1], width + BLOCK, first.shape[3])
    start = 0
    for x, (rows, columns) in zip(tensors, places, strict=True):
        picked = x.transpose(1, 2)[rows, columns].transpose(1, 2)
        room[start : start + len(rows), :, width - columns.shape[1] : width] = picked
        start += len(rows)
    return room


def select_rows(cache, rows) -> None:
    """Keep these rows of a cache, in this order; caches with recurrent states support `reorder_cache` only."""
    overridden = type(cache).batch_select_indices is not transformers.Cache.batch_select_indices
    (cache.batch_select_indices if overridden else cache.reorder_cache)(rows)
    if groups := getattr(cache, "groups", None):
        cache.groups = groups.of_rows(rows)


def wide_product(x, y):
    """x @ y for [n, heads, ., .], accumulated in float32 like fused attention: in bf16 a score of 60 is off by 0.1."""
    x = x.to(y.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if x.is_cuda and x.dtype != torch.float32:
            with contextlib.suppress(NotImplementedError):  # avoids float32 copies of keys on devices that support it
                return torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out_dtype=torch.float32).unflatten(0, x.shape[:2])
        return x.float() @ y.float()


class Groups:
    """Prompts shared by B rows: `which` [B] is each row's; a layer's keys, values [n, heads, P, D]; mask [n, P]."""

    def __init__(self, which, pairs: list[tuple], mask):
        self.which, self.pairs, self.mask = which, pairs, mask
        pads = torch.zeros(mask.shape, device=mask.device).masked_fill_(mask == 0, -math.inf)
        self.added = None if bool(mask.all()) else pads[:, None, None]  # to scores [n, heads, rows, P]
        sizes = which.bincount(minlength=len(mask))
        order = which.argsort(stable=True)
        group = which[order]
        place = torch.arange(len(which), device=which.device) - (sizes.cumsum(0) - sizes)[group]
        self.rows = which.new_zeros(len(mask), int(sizes.max()))  # [n, most rows of a prompt]; row 0 fills the rest
        self.rows[group, place] = order
        self.back = torch.empty_like(which)
        self.back[order] = group * self.rows.shape[1] + place

    def of_rows(self, chosen) -> "Groups":
        """The groups of the chosen rows, without prompts that none of them has."""
        kept, which = torch.unique(self.which[chosen], return_inverse=True)
        if len(kept) == len(self.mask):
            return Groups(which, self.pairs, self.mask)
        return Groups(which, [(keys[kept], values[kept]) for keys, values in self.pairs], self.mask[kept])

    def by_prompt(self, x):
        """Regroup x [B, heads, r, X] by prompt: [n, heads, rows of a prompt x r, X]."""
        return x[self.rows].transpose(1, 2).flatten(2, 3)

    def by_row(self, x, r: int):
        """The inverse of `by_prompt`: [B, heads, r, X]."""
        return x.unflatten(2, (-1, r)).transpose(1, 2).flatten(0, 1)[self.back]

    def attend(self, layer: int, query, key, value, scaling: float | None):
        """Attention [B, 1, H, D] of one token per row, query [B, H, 1, D], over its prompt and the row's own tokens.

        key and value [B, heads, T, D] are those of the rows' own tokens; H is a multiple of heads.
        """
        keys, values = self.pairs[layer]
        (heads, fresh), width = key.shape[1:3], keys.shape[2]
        r = query.shape[1] // heads
        query = query.unflatten(1, (heads, r)).squeeze(3)  # [B, heads, r, D]
        scores = query.new_empty(len(keys), heads, self.rows.shape[1] * r, width + fresh, dtype=torch.float32)
        scores[..., :width] = wide_product(self.by_prompt(query), keys.transpose(2, 3))
        scores[..., width:] = self.by_prompt(wide_product(query, key.transpose(2, 3)))
        scores *= scaling or query.shape[-1] ** -0.5
        if self.added is not None:
            scores[..., :width] += self.added
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        seen = self.by_row(weights[..., :width] @ values, r) + self.by_row(weights[..., width:], r) @ value
        return seen.flatten(1, 2)[:, None]


def group_rows(cache, mask, which):
    """A cache for B rows in which row i begins with text `which[i]` of a plain cache; each text is held once."""
    grouped = transformers.DynamicCache()
    grouped.groups = Groups(which, pairs_of(cache), mask)
    for keys, values in grouped.groups.pairs:
        none = (x.new_empty(len(which), x.shape[1], 0, x.shape[3]) for x in (keys, values))
        grouped.layers.append(roomy_layer()(*none))
    return grouped


def worth_grouping(cache, rows: int) -> bool:
    """Whether holding a cache's texts once for `rows` rows saves time as well as memory."""
    keys, values = pairs_of(cache)[0]
    saved = (keys[0].nbytes + values[0].nbytes) * (rows - len(keys))
    return saved > (WORTH_ON_CPU if keys.device.type == "cpu" else WORTH_ON_GPU)


# ----------------------------------------------------------------------------- forward (src/parts/networks/forward.py)

SHARED_PROMPTS = "shared_prompts"  # name under which `shared_attention` is registered in transformers


def length_that_shares(model) -> float:
    """`shared_length` of one network: how far all of its layers look back, inf if without limit."""
    config = unwrapped(model).config.get_text_config()
    if config._attn_implementation != SHARED_PROMPTS:
        return 0
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    if not getattr(config, "use_sliding_window", True):
        windows[0] = None
    return min((window for window in windows if window), default=math.inf)


def tempered(logits, temperature: float):
    """Logits in float32 or wider, divided by the temperature."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return logits if temperature == 1 else logits / temperature


@functools.cache  # called for every sampled token
def takes(network_class, argument: str) -> bool:
    """Whether a network's forward has an argument of this name."""
    return argument in inspect.signature(network_class.forward).parameters


def below_the_head(model):
    """The network below the output layer; Llama 4's attribute differs from its `base_model_prefix`."""
    network = unwrapped(model)
    return getattr(network, "model", network) if network.base_model is network else network.base_model


def backbone(model, input_ids, attention_mask, **kwargs):
    """Run the network below the output layer; positions count real tokens only, so padding does not shift them."""
    network = below_the_head(model)
    width = input_ids.shape[1]
    if takes(type(network), "position_ids"):
        kwargs["position_ids"] = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -width:]
    if takes(type(network), "cache_params"):  # Mamba applies the mask to the new tokens only
        attention_mask = attention_mask[:, -width:]
    return network(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


def cached_states(model, input_ids, attention_mask, cache):
    """(hidden states [B, t, H] of new tokens that follow those in the cache, or begin one if it is None; the cache)."""
    name = "cache_params" if takes(type(below_the_head(model)), "cache_params") else "past_key_values"
    out = backbone(model, input_ids, attention_mask, **{name: cache}, use_cache=True)
    keys_and_values = getattr(out, name, None)
    if cache is None:
        give_room(keys_and_values)
    return out.last_hidden_state, keys_and_values


def masks_itself(model) -> bool:
    """Whether the attention takes a finished 4D mask, which transformers passes on as it is."""
    return unwrapped(model).config._attn_implementation in ("sdpa", SHARED_PROMPTS)


def next_states(model, token, mask, cache, padded: bool):
    """States [B, H] of one more token [B] per row, with a plain cache or one of `group_rows`.

    mask [B, T] is 1 on all tokens of the texts, including the new ones. `padded` says whether it may contain a 0: to
    look would make the host wait for the device.
    """
    network = below_the_head(model)
    prepared, extra = mask[:, None, None].bool() if masks_itself(model) else mask, {}
    if groups := getattr(cache, "groups", None):
        prepared, padded, extra = mask.new_zeros(1, 1, 1, 1), True, {"layout": groups}  # 4D: no mask is built
    out = network(
        input_ids=token[:, None],
        attention_mask=prepared if padded else None,
        position_ids=mask.sum(dim=1, keepdim=True) - 1,
        past_key_values=cache,
        use_cache=True,
        **extra,
    )
    return out.last_hidden_state[:, -1]


def plain_states(model, input_ids, attention_mask):
    """Hidden states [B, T, H] of whole texts without a cache, as in training."""
    return backbone(model, input_ids, attention_mask, use_cache=False).last_hidden_state


def lm_logits(model, hidden):
    """Logits [..., V] of hidden states [..., H], for the tokenizer's tokens only (see `settle_logits`)."""
    return known_logits(model, all_logits(model, hidden))


def known_logits(model, logits):
    """Cut logits [..., rows] to those [..., V] of the tokenizer's tokens, as `settle_logits` has counted them."""
    known = getattr(unwrapped(model), "known_tokens", None)
    return logits if known is None else logits[..., :known]


def all_logits(model, hidden):
    """Logits [..., rows] of all rows of the output layer, for hidden states [..., H], in its weights' precision."""
    model = unwrapped(model)
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    with torch.autocast(hidden.device.type, enabled=False):
        logits = head(hidden.to(head.weight.dtype))
    for name, power in (("logit_scale", 1), ("logits_scaling", -1), ("lm_head_multiplier", 1)):
        if (scale := getattr(config, name, None) or 1.0) != 1:  # a product with 1 would copy all logits
            logits = logits * scale**power
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def settle_logits(config: BaseConfig, models: Models) -> None:
    """Let policy and reference ignore output rows beyond the tokenizer's tokens.

    UserError if the policy's logits are not its output layer applied to its backbone's states, as this part assumes.
    """
    ids = torch.tensor([[models.pad_id, 0, 1, 2]], device=models.device)
    name = type(unwrapped(models.policy)).__name__
    try:
        with torch.no_grad(), autocast(config, models.device):
            expected = models.policy(input_ids=ids).logits.float()
            logits = all_logits(models.policy, plain_states(models.policy, ids, torch.ones_like(ids))).float()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # for example, Mamba with 4-bit weights
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"got {name} with these settings, which does not read four tokens: {error}; expected a plain decoder; "
            "try weights of 16 bits, or another architecture"
        ) from error
    finite = expected.isfinite().all()
    got = f"got {name}, whose logits are not finite; expected finite ones"
    need(finite, f"{got}; try another checkpoint, or bf16 in place of fp16")
    got = f"got {name}, whose logits are not output layer x hidden state; expected a plain decoder (logit scale and "
    equal = torch.allclose(logits, expected, rtol=2e-2, atol=2e-2 * expected.std().item())
    need(equal, f"{got}soft-capping are known); try another architecture, or adapt all_logits()")
    count = token_count(models.tokenizer, models.eos_ids)
    for network in filter(None, (models.policy, models.reference)):
        unwrapped(network).known_tokens = count if count < logits.shape[-1] else None


# ----------------------------------------------------------------- faster layers (src/parts/networks/faster_layers.py)

SHARE = 6  # a copy of the weights may take 1/6 of the GPU's memory: 13 GiB of 80, enough for a 7B model
LARGE = 2**18  # weights; in smaller layers a call costs more than it saves
EXACT = 1e-6  # largest relative difference to transformers' norm in float32 that the order of sums explains


def copy_fits(size: float, device) -> bool:
    """Whether a copy of weights of `size` bytes fits; False on a CPU, where arithmetic and not kernels takes the time.

    The limit depends on the GPU's total memory, not on free memory, so that a resumed run decides alike.
    """
    device = torch.device(device)
    return device.type == "cuda" and size <= torch.cuda.mem_get_info(device)[1] / SHARE


def foldable_layers(policy, device) -> list:
    """The linear layers into whose weights LoRA can be folded; [] if copies of these weights do not fit."""
    if device.type != "cuda" or not hasattr(policy, "peft_config"):
        return []
    from peft.tuners.lora import Linear, LoraLayer

    adapted = [m for m in policy.modules() if isinstance(m, LoraLayer) and "default" in m.lora_A]
    layers = [m for m in adapted if type(m) is Linear and "default" not in m.lora_variant]
    shared = policy.get_base_model().get_input_embeddings().weight  # a tied output layer has the same weight
    layers = [m for m in layers if not m.lora_bias.get("default") and m.get_base_layer().weight is not shared]
    size, slow = sum(m.get_base_layer().weight.nbytes for m in layers), "LoRA runs beside its base while sampling"
    if not copy_fits(size, device):
        say(f"note: {slow}: a copy of the weights ({size / 2**30:.1f} GiB) does not fit")
        return []
    if len(layers) < len(adapted):
        say(f"note: {slow} in {len(adapted) - len(layers)} of {len(adapted)} layers: 4-bit, DoRA, biased or tied ones")
    return layers


@contextlib.contextmanager
def folded(layers: list) -> Iterator[None]:
    """Context in which each layer runs W + B A as one weight, in W's dtype; on exit W is the original tensor again."""
    kept = []
    try:
        with torch.no_grad():
            for layer in layers if layers and not layers[0].merged else ():
                weight = layer.get_base_layer().weight
                kept.append((layer, weight, weight.data))
                weight.data = (weight.float() + layer.get_delta_weight("default").float()).to(weight.dtype)
                layer.merged_adapters.append("default")
        yield
    finally:
        for layer, weight, data in kept:
            weight.data = data
            layer.merged_adapters.clear()


def plain_norm(module, x, eps: float):
    """x [..., H] / RMS(x) * weight [H]; like transformers, below float32 it rounds before multiplying by the weight."""
    if x.dtype == module.weight.dtype == torch.float32:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, eps)
    return module.weight * torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps).to(x.dtype)


def shifted_norm(module, x, eps: float):
    """x [..., H] / RMS(x) * (1 + weight [H]), computed in float32, as in Gemma."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], 1 + module.weight.float(), eps).type_as(x)


def norm_like(module) -> Callable | None:
    """`plain_norm` or `shifted_norm` for a module, whichever gives its output on test numbers; None if neither does."""
    eps, weight = getattr(module, "variance_epsilon", getattr(module, "eps", None)), getattr(module, "weight", None)
    alone = len(inspect.signature(type(module).forward).parameters) == 2  # self and x; gated norms have more
    if not alone or weight is None or not isinstance(eps, float):
        return None
    tried = copy.deepcopy(module).float()
    x, weights = (torch.linspace(-9, n, n * len(weight), device=weight.device).sin().view(n, -1) for n in (4, 1))
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        tried.weight.copy_(weights[0])
        expected = tried(x)
        for norm in (plain_norm, shifted_norm):
            if (norm(tried, x, eps) - expected).norm() <= EXACT * expected.norm():
                return functools.partial(norm, module, eps=eps)
    return None


def one_kernel_norms(policy, device) -> list[tuple]:
    """(module, its one-kernel form) for each RMS norm that has one; [] on a CPU, which has no such kernel.

    Transformers launches six or more kernels per norm and token.
    """
    modules = [module for module in policy.modules() if type(module).__name__.endswith("RMSNorm")]
    pairs = [(module, norm_like(module)) for module in modules if device.type == "cuda"]
    for name in sorted({type(module).__name__ for module, norm in pairs if not norm}):
        say(f"note: {name} runs in transformers' form while sampling: torch has no kernel for this norm")
    return [(module, norm) for module, norm in pairs if norm]


def onednn_linears(policy, device) -> list[tuple]:
    """(module, its form in oneDNN) for each large float32 linear layer on a CPU; its results differ by rounding.

    Torch multiplies float32 matrices with MKL, which is slow for few rows on some machines: on an AMD EPYC, 16 rows
    took 1.4 to 9 times as long as in oneDNN.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return []
    plain = [m for m in policy.modules() if type(m) is torch.nn.Linear and "forward" not in vars(m)]
    layers = [m for m in plain if type(m.weight) is torch.nn.Parameter and m.weight.numel() >= LARGE]

    def form(layer):
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, "none", [], "")

    return [(layer, form(layer)) for layer in layers if layer.weight.dtype == torch.float32]


@contextlib.contextmanager
def replaced(forms: list[tuple]) -> Iterator[None]:
    """Context in which modules run their faster forms."""
    try:
        for module, form in forms:
            module.forward = form
        yield
    finally:
        for module, _ in forms:
            vars(module).pop("forward", None)


# --------------------------------------------------------------------- cache probe (src/parts/networks/cache_probe.py)


@dataclass(frozen=True)
class Decoding:
    """What a model's cache can do, as probed."""

    pads: bool  # it handles left padding, so that prompts of several lengths form one batch
    leaving: bool  # finished rows can be dropped from it
    groups: bool = False  # it can hold a prompt once for all rows that begin with it
    plain: bool = False  # texts can be continued by several tokens, and take our own masks and positions


def probe_texts(vocabulary: int, padded: bool = True) -> list[list[int]]:
    """Two texts of token ids: of 12 and 6 tokens if `padded`, else of 12 each."""
    first, second = ([(step * i + step) % vocabulary for i in range(12)] for step in (37, 53))
    return [first, second[:6] if padded else second]


def relative_gap(states, expected) -> float:
    """Mean over states [..., H] of |state - expected| / |expected|; NaN in a state counts as infinite.

    NaN in `expected` counts as a gap of 0, because the cache did not cause it. Sampling refuses such a network later.
    """
    gaps = (states.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1).clamp(min=1e-12)
    return float(gaps.nan_to_num(nan=math.inf).where(~expected.isnan().any(dim=-1), 0.0).mean())


def states_alone(network, texts: list[list[int]], device) -> list:
    """Hidden states [T, H] of each text by itself, without pads and without a cache."""
    whole = [torch.tensor([text], device=device) for text in texts]
    return [plain_states(network, ids, torch.ones_like(ids))[0] for ids in whole]


def decoding_gap(models: Models, vocabulary: int, decoding: Decoding) -> float:
    """Mean relative gap between states of tokens fed one by one to the policy with a cache and of whole texts."""
    texts, new, gaps, device = probe_texts(vocabulary, decoding.pads), 4, [], models.device
    expected = states_alone(models.policy, texts, device)
    ids, mask = left_pad([text[: 1 - new] for text in texts], models.pad_id, device)
    rows, cache = [0, 1], None
    for t in range(new):
        states, cache = cached_states(models.policy, ids, mask, cache)
        gaps += [relative_gap(states[i, -1], expected[row][t - new]) for i, row in enumerate(rows)]
        if decoding.leaving and t == 0:
            rows, mask = [1], mask[1:]
            select_rows(cache, torch.tensor(rows, device=device))
        ids = torch.tensor([[texts[row][t + 1 - new]] for row in rows], device=device)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return sum(gaps) / len(gaps)


def holds(gap, limit: float) -> bool:
    """Whether `gap()` is below the limit; False if it fails because the cache lacks an operation."""
    try:
        return gap() < limit
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):  # not a fault of the cache
            raise
        return False


def turns_gap(models: Models, config) -> float:
    """Mean relative gap between texts read in turns, with pads in between, and whole texts; inf for other caches.

    `config` is the policy's text config.
    """
    texts, gaps, policy, device = probe_texts(config.vocab_size), [], models.policy, models.device
    expected = states_alone(models.policy, texts, device)

    def compare(states, order, places) -> None:
        gaps.extend(relative_gap(states[i], expected[row][places[row] - 1]) for i, row in enumerate(order))

    ids, mask = left_pad([texts[0][:5], texts[1][:2]], models.pad_id, device)
    cache = cached_states(policy, ids, mask, None)[1]
    if not has_plain_layers(cache, config):
        return math.inf
    token = torch.tensor([texts[0][5], texts[1][2]], device=device)
    grown = torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
    compare(next_states(policy, token, grown, cache, True), (0, 1), (6, 3))
    rows, lengths = torch.arange(2, device=device), torch.tensor([2, 2], device=device)
    kept = KeptTexts({0: texts[0][:6], 1: texts[1][:3]})
    for leaving in (rows[1:], rows[:1]):
        kept.take([0, 1], mask, cache, leaving, rows, lengths)
    order, cache, mask = kept.cache_of([0, 1])
    new, new_mask = left_pad([(texts[0][6:9], texts[1][3:4])[row] for row in order], models.pad_id, device)
    mask = torch.cat([mask, new_mask], dim=1)
    compare(cached_states(policy, new, mask, cache)[0][:, -1], order, (9, 4))
    token = torch.tensor([(texts[0][9], texts[1][4])[row] for row in order], device=device)
    mask = torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
    compare(next_states(policy, token, mask, cache, True), order, (10, 5))
    ids = torch.tensor([texts[0][:6]], device=device)  # without pads
    cache = cached_states(policy, ids[:, :5], torch.ones_like(ids[:, :5]), None)[1]
    compare(next_states(policy, ids[:, 5], torch.ones_like(ids), cache, False), (0,), (6,))
    return sum(gaps) / len(gaps)


def groups_gap(config: BaseConfig, models: Models, vocabulary: int) -> float:
    """Largest relative gap of a state if each prompt is held once for its rows, one of which leaves."""
    policy, device, gaps = models.policy, models.device, []
    prompts, which = probe_texts(vocabulary), torch.tensor([1, 0, 1, 1], device=device)
    new = torch.arange(1, 9, device=device).view(2, 4) % vocabulary
    texts = [prompts[n] + new[:, row].tolist() for row, n in enumerate(which)]
    ids, mask = left_pad(prompts, models.pad_id, device)
    with autocast(config, device):
        expected = states_alone(models.policy, texts, device)
        cache = group_rows(cached_states(policy, ids, mask, None)[1], mask, which)
    mask, rows = mask[which], torch.arange(4, device=device)
    for t in range(2):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        with autocast(config, device):
            states = next_states(policy, new[t, rows], mask, cache, padded=True)
        gaps += [relative_gap(state, expected[row][t - 2]) for state, row in zip(states, rows, strict=True)]
        if t == 0:
            rows, mask = rows[1:], mask[1:]
            select_rows(cache, rows)
    return max(gaps)


def gap_limits(config: BaseConfig, device) -> tuple[float, float]:
    """(limit of the mean gap, limit of the worst gap) that rounding can explain.

    Faults of caches and pads give a mean of 0.3 or more. The worst gap only has to show that each token sees what it
    should, as old and new log-probs are computed in the same way. Two bf16 passes of Gemma 3 270M differ by 0.047 (each
    by 0.03 to 0.04 from float32), of Qwen2.5 0.5B by 0.013. A visible pad, a hidden token or a position off by one
    moves the worst state by 0.26 or more.
    """
    return (0.01, 1e-4) if compute_dtype(config, device).itemsize > 2 else (0.2, 0.12)


@contextlib.contextmanager
def first_layers(config: BaseConfig, network, device):
    """Context in which a float32 network runs its first layers only: enough to have every kind of layer.

    They show what a cache can do, in a twelfth of the time for Qwen2.5 0.5B. All layers run in bf16, as each adds its
    rounding, and in a network whose layers read the keys of others.
    """
    below, text = below_the_head(network), unwrapped(network).config.get_text_config()
    layers, types = getattr(below, "layers", ()), vars(text).get("layer_types")
    kinds = [(types and types[i], *map(type, layer.modules())) for i, layer in enumerate(layers)]
    count = max(2, *(kinds.index(kind) + 1 for kind in kinds)) if kinds else 0
    alike = not getattr(text, "num_kv_shared_layers", 0) and len(kinds) == text.num_hidden_layers
    if not alike or count >= len(kinds) or compute_dtype(config, device).itemsize <= 2:
        yield
        return
    try:
        below.layers, text.num_hidden_layers = layers[:count], count
        if types:
            text.layer_types = types[:count]
        yield
    finally:
        below.layers, text.num_hidden_layers = layers, len(layers)
        if types:
            text.layer_types = types


def check_pads(config: BaseConfig, models: Models, network, name: str) -> None:
    """Raise UserError if left padding changes a network's states, as in some networks without attention."""
    texts = probe_texts(unwrapped(network).get_input_embeddings().weight.shape[0])
    ids, mask = left_pad(texts, models.pad_id, models.device)
    with torch.no_grad(), autocast(config, models.device), first_layers(config, network, models.device):
        padded, [expected] = plain_states(network, ids, mask), states_alone(network, texts[1:], models.device)
    gap = relative_gap(padded[1, -len(texts[1]) :], expected)
    kind, fits = type(unwrapped(network)).__name__, gap < gap_limits(config, models.device)[0]
    got = f"got {name} {kind}, whose states move by {gap:.0%} when a text is padded on the left"
    need(fits, f"{got}; expected a network that ignores masked tokens; try another architecture")


def load_sampler(config: BaseConfig, tokenizer, device, name: str) -> Models:
    """Load a frozen network that only samples, and probe it like a trained one."""
    policy = load_network(transformers.AutoModelForCausalLM, config.model, config, device, frozen=True)
    ends, pad = end_and_pad_ids(config, policy, tokenizer)
    models = Models(policy, None, None, tokenizer, ends, pad, device)
    settle_logits(config, models)
    check_pads(config, models, policy, name)
    return models


def decoding_of_policy(config: BaseConfig, models: Models) -> Decoding:
    """Probe the policy's cache; UserError if no way of sampling with it agrees with the model as trained."""
    policy, device = models.policy, models.device
    text, name = unwrapped(policy).config.get_text_config(), type(unwrapped(policy)).__name__
    size = unwrapped(policy).get_input_embeddings().weight.shape[0]
    (limit, worst), can_group = gap_limits(config, device), False
    candidates = (Decoding(pads, leaving) for pads in (True, False) for leaving in (True, False))  # most capable first
    with torch.no_grad(), autocast(config, device), first_layers(config, policy, device):
        gap = functools.partial(decoding_gap, models, size)
        measured = next((able for able in candidates if holds(functools.partial(gap, able), limit)), None)
        if measured and measured.pads and measured.leaving:
            plain = holds(lambda: turns_gap(models, text), limit)
            can_group = plain and length_that_shares(policy) == math.inf
            groups = can_group and holds(lambda: groups_gap(config, models, size), worst)
            measured = replace(measured, plain=plain, groups=groups)
    need(
        measured,
        f"got {name}, whose states differ between a whole text and one token at a time with a cache; expected equal "
        "states; try vLLM (--rollout_engine vllm, in evaluation.py --engine vllm), or another architecture",
    )
    again = ", and reads the whole conversation again at each turn" if getattr(config, "environment", "") else ""
    notes = (
        (measured.pads, "the cache of {} cannot handle padding; only prompts of equal length are sampled together"),
        (measured.leaving, "the cache of {} cannot drop rows; a batch is sampled until its last completion ends"),
        (measured.plain, "{} builds masks for each token" + again),
        (
            measured.groups or not can_group,
            "the cache of {} cannot share a prompt among completions: its states would change",
        ),
    )
    for can, note in notes:
        if not can:
            say(f"note: {note.format(name)}")
    return measured


# ----------------------------------------------------------------------- room steps (src/parts/sampling/room_steps.py)


@functools.cache
def side_stream():
    """A stream beside the current one, the same for all graphs: cuBLAS keeps 32 MiB for each that it has seen."""
    return torch.cuda.Stream()


class RoomSteps:
    """`next_states` over whole rooms, recorded once for each room on a GPU and replayed for each token.

    The host then makes one call in place of one for every kernel. Columns that hold nothing yet are masked.
    """

    def __init__(self, policy):
        self.policy, self.cache, self.graph, self.columns = policy, None, None, 0

    def step(self, token, mask, cache):
        """States [B, H] of one more token [B] for each row; mask [B, T] is 1 on tokens, the new ones included."""
        self.prepare(token, mask, cache)
        if token.is_cuda and not self.graph:
            self.record()
        if self.graph:
            self.graph.replay()
        else:
            self.states = self.run()
        return self.states

    def waits(self, token, mask, cache) -> bool:
        """Whether the host waits for the GPU within a step, which no graph can hold."""
        self.prepare(token, mask, cache)
        self.run()  # loads kernels, which may wait
        try:
            with warnings.catch_warnings(action="ignore"):  # that this mode is a prototype
                torch.cuda.set_sync_debug_mode("error")
            self.run()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return True
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return False

    def prepare(self, token, mask, cache) -> None:
        """Put a step's token and mask where the kernels read them, in a larger room if the last one is full."""
        self.columns = mask.shape[1]
        if self.cache is None or self.columns > self.mask.shape[1]:
            self.leave(self.columns - 1)
            self.enter(token, mask, cache)
        self.token.copy_(token)
        self.mask[:, : self.columns] = mask
        self.column.fill_(self.columns - 1)

    def enter(self, token, mask, cache) -> None:
        """Make room for a column more, and what a step reads beside the cache."""
        self.cache, self.token, self.column = cache, torch.empty_like(token), torch.empty_like(token[:1])
        for layer in cache.layers:
            layer.make_room(self.columns)
            layer.column = self.column
        self.mask = mask.new_zeros(len(mask), cache.layers[0].rooms[0].shape[2])

    def run(self):
        """The step itself; it writes the same column however often it runs."""
        return next_states(self.policy, self.token, self.mask, self.cache, padded=True)

    def record(self) -> None:
        """Record a step; one before it lets kernels make their plans and workspaces."""
        side = side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # rewards may run in another thread
            self.states = self.run()

    def leave(self, columns: int | None = None) -> None:
        """Let the cache end after its last column again, as other parts read it."""
        for layer in self.cache.layers if self.cache else ():
            layer.end_at(self.columns if columns is None else columns)
        self.cache = self.graph = None


# --------------------------------------------------------------------------- sampling (src/parts/sampling/sampling.py)

DRAWN_AT_ONCE = 2**24  # probabilities in float64; three tensors of them exist at a time
DRAWN_ON_CPU = 2**21  # tensors above 32 MiB get fresh memory for each token, which costs more than the draw


def inverse_cdf(log_probs, uniform):
    """Draw one index per row of log_probs [B, V] with uniform [B] in [0, 1)."""
    cdf = log_probs.to(widest_float(log_probs.device)).exp().cumsum(-1)
    margin = max(1e-12, 4 * torch.finfo(cdf.dtype).eps)
    point = uniform[:, None].to(cdf) * cdf[:, -1:] * (1 - margin)  # below the total in spite of rounding
    return torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp(max=cdf.shape[1] - 1)  # a row of NaN


def steps_between_looks(device) -> int:
    """How many tokens are sampled between looks at which rows have ended: for each one a device is waited for."""
    return 1 if device.type == "cpu" else 8


class HFEngine:
    """Samples with the policy itself, batched, with a cache; rows that are finished leave the batch if it lets them."""

    def __init__(self, config: BaseConfig, models: Models):
        self.config, self.models = config, models
        self.decoding = decoding_of_policy(config, models)
        self.layers = foldable_layers(models.policy, models.device)
        self.forms = one_kernel_norms(models.policy, models.device)
        if compute_dtype(config, models.device) == torch.float32:
            self.forms += onednn_linears(models.policy, models.device)
        self.graphs = config.decode_graphs and models.device.type == "cuda" and self.can_record()
        self.end_ids = torch.tensor(models.eos_ids, dtype=torch.long, device=models.device)

    def can_record(self) -> bool:
        """Whether the step of a token fits into a CUDA graph; a note says why not."""
        policy, device = self.models.policy, self.models.device
        why = "its attention or its cache builds masks for each token"
        if self.decoding.plain and masks_itself(policy):
            with self.ready():
                token = torch.zeros(2, dtype=torch.long, device=device)
                mask = torch.ones(2, 2, dtype=torch.long, device=device)
                cache = cached_states(policy, token[:, None], mask[:, :1], None)[1]
                if not RoomSteps(policy).waits(token, mask, cache):
                    return True
            why = "the host waits for the GPU in each layer, as with experts"
        say(f"note: {type(unwrapped(policy)).__name__} samples without CUDA graphs: {why}; vLLM samples faster")
        return False

    def sync(self, step: int = 0) -> None:
        """The sampler is the policy: there are no weights to copy."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Context in which layers run as for sampling: adapters folded, weights cast once, others in faster forms."""
        with contextlib.ExitStack() as changed, torch.no_grad(), autocast(self.config, self.models.device):
            if self.layers:
                changed.enter_context(folded(self.layers))
            if self.forms:
                changed.enter_context(replaced(self.forms))
            yield

    def generate(self, prompts: list[list[int]], noise) -> list[tuple[list[int], list[float]]]:
        """Sample one completion per prompt.

        Args:
            prompts: token ids, any lengths.
            noise: uniform draws [len(prompts), max_new_tokens] in [0, 1), so that a row's completion does not depend on
                the rest of its batch; None decodes greedily.

        Returns:
            (token ids with the end token if there is one, their log-probs) per prompt.
        """
        outputs = [None] * len(prompts)
        with self.ready():
            for rows in self.batches(list(map(len, prompts))):
                batch, draws = [prompts[i] for i in rows], None if noise is None else noise[rows]
                texts = self.read(batch, self.decoding.groups and not self.graphs)
                sampled = self.sample(*texts, draws)
                for i, output in zip(rows, sampled, strict=True):
                    outputs[i] = output
        return outputs

    def batches(self, lengths: list[int]) -> list[list[int]]:
        """Indices of prompts that are sampled together: of similar length, or of one if the cache takes no pads."""
        size = self.config.rollout_batch_size or max(1, self.config.batch_size // world()[1])
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        groups = [order]
        if not self.decoding.pads:
            groups = [list(group) for _, group in itertools.groupby(order, key=lambda i: lengths[i])]
        return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

    def read(self, prompts: list[list[int]], groups: bool = False) -> tuple:
        """(states [B, H] after the prompts, mask [B, T], cache); equal ones are read, with `groups` held once."""
        once = prompts
        if self.decoding.leaving:
            once = list(map(list, dict.fromkeys(map(tuple, prompts))))
        states, mask, cache = self.read_on(once)
        if len(once) < len(prompts):
            place = {tuple(ids): i for i, ids in enumerate(once)}
            index = torch.tensor([place[tuple(ids)] for ids in prompts], device=self.models.device)
            if groups and worth_grouping(cache, len(prompts)):
                cache = group_rows(cache, mask, index)
            else:
                select_rows(cache, index)
            states, mask = states[index], mask[index]
        return states, mask, cache

    def read_on(self, new: list[list[int]], mask=None, cache=None) -> tuple:
        """(states [B, H] after new tokens of each row, mask [B, T] of all, cache), after those of a cache."""
        models = self.models
        ids, new_mask = left_pad(new, models.pad_id, models.device)
        mask = new_mask if mask is None else torch.cat([mask, new_mask], dim=1)
        with torch.no_grad(), autocast(self.config, models.device):
            states, cache = cached_states(models.policy, ids, mask, cache)
        return states[:, -1], mask, cache

    def draw(self, log_probs, uniform):
        """One token per row of log_probs [B, V]: by uniform [B] in [0, 1), or the most likely one for None."""
        if uniform is None:
            return log_probs.argmax(-1)
        at_once = DRAWN_ON_CPU if log_probs.device.type == "cpu" else DRAWN_AT_ONCE
        rows = max(1, at_once // log_probs.shape[1])
        pieces = zip(log_probs.split(rows), uniform.split(rows), strict=True)
        return torch.cat([inverse_cdf(*piece) for piece in pieces])

    def ends(self, tokens, rows, t: int):
        """Which rows [n] of tokens [B, T] end with the token at t."""
        return torch.isin(tokens[rows, t], self.end_ids)

    def sample(self, states, mask, cache, noise, leave=None) -> list[tuple[list[int], list[float]]]:
        """Completions of the texts that a cache holds, as `generate` returns them; states [B, H] are of their ends.

        `leave` is called as KeptTexts.take is, before rows leave the batch and at the end.
        """
        models, limit, device = self.models, self.config.max_new_tokens, self.models.device
        n, width = mask.shape
        tokens = torch.zeros(n, limit, dtype=torch.long, device=device)
        logprobs = torch.zeros(n, limit, device=device)
        lengths = torch.full((n,), limit, device=device)
        noise = None if noise is None else torch.as_tensor(noise).to(widest_float(device)).to(device)
        rows = torch.arange(n, device=device)  # which sequence each row of the shrinking batch is
        running, padded = torch.ones_like(rows, dtype=torch.bool), not bool(mask.all())
        mask, every = torch.cat([mask, mask.new_ones(n, limit)], dim=1), steps_between_looks(device)
        steps = RoomSteps(models.policy) if self.graphs else None
        with torch.no_grad(), autocast(self.config, device):
            for t in range(limit):
                logits = tempered(lm_logits(models.policy, states), self.config.temperature)
                dist = torch.log_softmax(logits, dim=-1)  # [rows, V]
                token = self.draw(dist, None if noise is None else noise[rows, t])  # [rows]
                tokens[rows, t], logprobs[rows, t] = token, dist.gather(-1, token[:, None]).squeeze(-1)
                ending = running & self.ends(tokens, rows, t)
                lengths[rows] = torch.where(ending, t + 1, lengths[rows])
                running &= ~ending
                alive = int(running.sum()) if t % every == every - 1 else len(rows)
                if not alive or t + 1 == limit:
                    break
                if self.decoding.leaving and alive <= 0.75 * len(rows):  # it copies the cache: not for every row
                    keep = running.nonzero().squeeze(-1)
                    if steps:
                        steps.leave()
                    if leave:
                        leave(cache, (~running).nonzero().squeeze(-1), rows, lengths)
                    select_rows(cache, keep)
                    rows, running, token, mask = rows[keep], running[keep], token[keep], mask[keep]
                seen = mask[:, : width + t + 1]
                if steps:
                    states = steps.step(token, seen, cache)
                else:
                    states, cache = self.step(token, seen, cache, padded)
        if steps:
            steps.leave()
        if leave:
            leave(cache, None, rows, lengths)
        if not torch.isfinite(logprobs).all():
            raise DivergedError("got log-probs that are not finite while sampling; expected finite; try a lower --lr")
        return [(x[:n], p[:n]) for x, p, n in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)]

    def step(self, token, mask, cache, padded: bool) -> tuple:
        """(states [B, H] after one more token [B] for each row, cache)."""
        if self.decoding.plain:
            return next_states(self.models.policy, token, mask, cache, padded), cache
        states, cache = cached_states(self.models.policy, token[:, None], mask, cache)
        return states[:, -1], cache


# --------------------------------------------------------------------------- rollouts (src/parts/sampling/rollouts.py)


def collect(
    config: BaseConfig, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Sample and score one completion per row; every process gets the whole batch."""

    def complete(local_rows: list[dict], draws) -> list[dict]:
        start = time.perf_counter()
        outputs = engine.generate([row["prompt_ids"] for row in local_rows], draws)
        sampled = time.perf_counter()
        texts = [visible_text(models.tokenizer, ids, models.eos_ids) for ids, _ in outputs]
        scores, parts = reward(local_rows, texts, [ids for ids, _ in outputs])
        count_seconds(timer, start, sampled)
        samples = []
        for i, (row, (ids, logprobs)) in enumerate(zip(local_rows, outputs, strict=True)):
            sample = {name: row[name] for name in ("prompt", "prompt_ids", "columns")} | {"completion": texts[i]}
            sample |= {"response_ids": ids, "rollout_logprobs": logprobs, "finished": ids[-1] in models.eos_ids}
            sample |= {"score": scores[i], "weights": getattr(reward, "weights", {})}
            samples.append(sample | {"rewards": {name: values[i] for name, values in parts.items()}})
        return samples

    return shared_out(complete, rows, noise)


def count_seconds(timer: dict, start: float, sampled: float) -> None:
    """Add the time from a rollout's start to `sampled`, and that of its rewards from then on."""
    for phase, seconds in (("rollout", sampled - start), ("reward", time.perf_counter() - sampled)):
        timer[phase] = timer.get(phase, 0.0) + seconds


def shared_out(make: Callable, rows: list[dict], noise) -> list[dict]:
    """What `make` returns for rows and their noise, shared out over the processes; every one gets the whole batch.

    Each process takes as many rows, as it is not known how long completions become; those of a prompt stay together.
    """
    rank, size = world()
    shares = dealt([1] * len(rows), [str(row["prompt"]) for row in rows], size, slack=0)  # prompts are read once
    local = shares[rank]
    with raised_in_all(), leaving_early():
        samples = make([rows[i] for i in local], None if noise is None else noise[local])
    return gather_rows(samples, shares=shares)


# ------------------------------------------------------ rows and gold (src/programs/reward_preflight/rows_and_gold.py)

SOLUTIONS = ("solution", "completion", "response", "canonical_solution", "code")  # columns with a whole completion
ANSWERS = ("answer", "final_answer", "label", "target", "ground_truth")  # columns with a final answer
SHORT_ANSWER = 40  # characters
CODE_COLUMNS = {"canonical_solution", "entry_point", "test", "tests", "test_list", "test_cases"}
TEMPLATES = (
    "{answer}",
    "\\boxed{{answer}}",
    "#### {answer}",
    "<answer>{answer}</answer>",
    "The answer is {answer}.",
    "Answer: {answer}",
    "ANSWER: {answer}",
    "Final answer: {answer}",
    '{"answer": "{answer}"}',
    "<think>\n{reasoning}\n</think>\n\\boxed{{answer}}",
    "<think>\n{reasoning}\n</think>\n{answer}",
    "<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>",
    "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n",
)
MARKED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>([^<]*)</answer>")


def text_of(value) -> str | None:
    """A text, number, list's first string or messages' joined contents as text; None for anything else."""
    if isinstance(value, list) and value and all(isinstance(m, dict) for m in value):
        return "".join(str(message.get("content") or "") for message in value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def marked_answer(text: str) -> tuple[str, str] | None:
    """(Answer, text before it) at the last `####`, `\\boxed{}` or `<answer>` of a solution, or None."""
    hashed = hash_mark(text)
    matches = [*MARKED.finditer(text), *([hashed] if hashed and hashed[1].strip() else [])]
    if not matches:
        return None
    last = max(matches, key=re.Match.start)
    return next(part for part in last.groups() if part is not None).strip(), text[: last.start()].strip()


def answer_columns(args) -> tuple[str, ...]:
    return (args.answer_column,) if args.answer_column else ANSWERS


def make_row(raw: dict, where: str, number: int, args) -> dict:
    """A row for reward_arguments, with the final answer and the reasoning before it if columns hold them."""
    for flag, name in (("prompt_column", args.prompt_column), ("answer_column", args.answer_column)):
        got = f"{where}: got columns {', '.join(raw) or 'none'}"
        need(name is None or name in raw, f"{got}; expected {name!r}; try --{flag} NAME")
    prompt = raw[args.prompt_column]
    check_prompt(prompt, where)
    reserved = {"prompt", "prompts", "completions", "completion_ids", args.prompt_column}
    columns = {name: value for name, value in raw.items() if name not in reserved}
    row = {"number": number, "place": where, "prompt": prompt, "columns": columns}
    row |= {"answer": None, "reasoning": "", "gold": ""}
    answers = answer_columns(args)
    for name in dict.fromkeys([*answers, args.gold_column, *SOLUTIONS]):
        text = text_of(columns.get(name))
        marked = marked_answer(text or "")
        # a solution of one short line, as TRL's rows have it, is an answer
        is_short = name == "solution" and text and len(text) <= SHORT_ANSWER and "\n" not in text and not is_code(row)
        if text and text.strip() and (marked or is_short or name in answers):
            row["answer"], row["reasoning"] = marked or (stated_gold(text) or text.strip(), "")
            break
    return row


def load_rows(args, count: int) -> list[dict]:
    """Read --data and draw `count` rows of it with --seed."""
    raw = read_prompts(args.data, args.prompt_column)
    need(raw, f"got data {args.data!r} without rows; expected at least one")
    rows = [make_row(row, place, i, args) for i, (place, row) in enumerate(raw, 1)]
    warn_unread(args.data, [(row, row[args.prompt_column]) for _, row in raw])
    return pick(rows, count, args.seed)


def pick(rows: list[dict], count: int, seed: int) -> list[dict]:
    """Draw `count` rows with a seed and keep their order; all rows for 0."""
    if not 0 < count < len(rows):
        return rows
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def is_object_or_array(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def fill(template: str, values: dict) -> str:
    """Fill the places `{name}` of a template for which there is a value, as JSON where the template is JSON.

    Braces of LaTeX commands stay.
    """
    template = re.sub(r"(\\[A-Za-z]+)\{(\w+)\}", r"\1{{\2}}", template)
    is_json = is_object_or_array(re.sub(r"\{\w+\}", "0", template))

    def written(match):
        value, before = values.get(match[1]), re.sub(r"\\.", "", template[: match.start()])
        if value is None or not is_json:
            return match[0] if value is None else str(value)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return json.dumps(text, ensure_ascii=False)[1:-1] if before.count('"') % 2 else text

    return re.sub(r"\{(\w+)\}", written, template)


def gold_variants(row: dict, args) -> dict[str, str]:
    """{variant: reference completion} of a row, the preferred variant first."""
    columns, variants = row["columns"], {}
    values = {**columns, "prompt": user_text(row["prompt"]), "answer": row["answer"]}
    values["reasoning"] = row["reasoning"] or "The result follows step by step from what is given."
    if args.gold_template:
        template = re.sub(r"\\n(?![A-Za-z])", "\n", args.gold_template)
        wanted = [name for name in re.findall(r"\{(\w+)\}", template) if values.get(name) is None]
        return {} if wanted else {"--gold_template": fill(template, values)}
    for name in [args.gold_column] if args.gold_column else SOLUTIONS:
        text = text_of(columns.get(name))
        if not text or not text.strip():
            continue
        variants[f"column {name}"] = text
        if is_code(row) and "```" not in text:
            variants[f"column {name} in a code block"] = f"```python\n{text}\n```"
            whole = f"{values['prompt']}{text}"
            variants[f"prompt + column {name} in a code block"] = f"```python\n{whole}\n```"
    for name in () if args.gold_column else answer_columns(args):
        text = text_of(columns.get(name))
        if text and marked_answer(text):
            variants[f"column {name}"] = text
    if columns.get("schema") and not args.gold_column:
        example = example_of(columns["schema"])
        variants |= {"an example of the column schema": json.dumps(example)} if example is not None else {}
    if row["answer"] and not args.gold_column:
        variants |= {template: fill(template, values) for template in TEMPLATES}
    return variants


def is_code(row: dict) -> bool:
    return bool(CODE_COLUMNS & set(row["columns"]))


# -------------------------------------------------------------------- probes (src/programs/reward_preflight/probes.py)

LONGEST = 40_000  # characters of a probe where the run sets no limit

PROBES = {}  # name -> (share of gold's score it may get, function)


def listed(table: dict, allowed: float):
    """Decorate a function so that a table has it under its name; the report quotes its docstring."""

    def register(function):
        table[function.__name__] = (allowed, function)
        return function

    return register


probe = functools.partial(listed, PROBES)  # decorates `probe(row) -> completions`


def answer_span(row: dict) -> tuple[int, int] | None:
    """The span of the last whole-word occurrence of the answer in the gold completion, or None."""
    if not row["answer"]:
        return None
    matches = list(re.finditer(rf"(?<!\w){re.escape(row['answer'])}(?!\w)", row["gold"]))
    return matches[-1].span() if matches else None


def in_place(row: dict, text: str) -> str:
    """The gold completion with `text` in place of its final answer; `text` alone if the answer is not found."""
    span = answer_span(row)
    return row["gold"][: span[0]] + text + row["gold"][span[1] :] if span else text


@probe(0.05)
def empty(row: dict) -> list[str]:
    """Nothing at all."""
    return [""]


@probe(0.05)
def whitespace(row: dict) -> list[str]:
    """White space only."""
    return [" ", "\n\n\t \n"]


@probe(0.05)
def unicode_junk(row: dict) -> list[str]:
    """Characters of many scripts, controls and symbols without an answer."""
    return ["\u202e\ufffd\u0000\u200b\U0001f9ee\u066a\ufdfd\U0001d54f s\u0301\u0937" * 20, "\ufeff{[(<$\\`'\"" * 40]


@probe(0.1)
def prompt_echo(row: dict) -> list[str]:
    """The prompt again; in answer marks its last line, with choices the one before them, and its formulas."""
    text = user_text(row["prompt"])
    lines = [line for line in text.splitlines() if line.strip()]
    if re.fullmatch(r"\(?[A-Za-z]\)?", row["answer"] or ""):  # the last of the choices is a guess
        lines = [line for line in lines if not re.match(r"\s*\(?[A-Za-z][).:]", line)]
    task = (lines or [""])[-1].strip().rstrip(" =?:.")
    formulas = [a or b for a, b in re.findall(r"\$([^$\n]{3,99})\$|\\\((.{3,99}?)\\\)", text)]
    formulas = [formula for formula in formulas if re.search(r"[+*/^]|\\[a-z]", formula)]  # Simplify $2x+3x$
    sums = re.findall(r"(?<![\w.])\d+(?:\s*[-+*^]\s*\d+)+(?![\w.])", text)  # What is 3 + 4?
    sums = [f"<answer>{x}</answer>" for x in sums[:2] if x.replace(" ", "") != str(row["answer"]).replace(" ", "")]
    boxed = [f"\\boxed{{{formula}}}" for formula in formulas[:3]]
    return [text, f"<answer>{task}</answer>", f"\\boxed{{{task}}}", f"#### {task}", *boxed, *sums]


@probe(0.25)
def truncated(row: dict) -> list[str]:
    """Gold cut off before its final answer (code and prose: after a quarter and a half)."""
    gold, span = row["gold"], answer_span(row)
    cuts = [span[0], 3 * span[0] // 4, span[0] // 2] if span else [len(gold) // 2, len(gold) // 4]
    return [gold[:cut] for cut in cuts if gold[:cut].strip()]


@probe(0.25)
def answer_listing(row: dict) -> list[str]:
    """Many candidate answers at once, the right one in the middle."""
    right, wrong = row["answer"], row["wrong"]
    if not right:
        return []
    several = [*wrong[: len(wrong) // 2], right, *wrong[len(wrong) // 2 :]]
    texts = [", ".join(several), " or ".join([wrong[0], right, wrong[-1]])]
    if number_of(right) is not None:
        texts.append(" ".join([*map(str, range(50)), right, *map(str, range(50, 100))]))
    if re.fullmatch(r"\(?[A-Ja-j]\)?", right):
        texts += ["A, B, C, D, E, F, G, H, I, J", "(A) (B) (C) (D) (E)"]
    repeated = "\n".join(in_place(row, text) for text in several)
    # the prompt as answer: paid by graders that evaluate `3 + 4` or search for the answer anywhere
    return [*texts, *(in_place(row, text) for text in texts), repeated, in_place(row, user_text(row["prompt"]))]


PROFILES = {  # share of gold's score that a probe may get, where a profile differs from the default
    "answer": {},
    "format": {
        **dict.fromkeys(("prompt_echo", "answer_listing", "keyword_stuffing", "wrong_answer", "very_long"), 1.0),
        "truncated": 0.75,
    },
    "judge": {"truncated": 0.75, "wrong_answer": 0.75, "answer_listing": 0.5, "keyword_stuffing": 0.5},
}
CONNECTORS = "first, second, then, next, because, since, therefore, thus, hence, however, so, finally, in conclusion"
TAGS = "<think></think> <reasoning></reasoning> <answer></answer> \\boxed{} #### ```python\n``` {} [1] (Smith, 2020)"


@probe(0.25)
def keyword_stuffing(row: dict) -> list[str]:
    """Format tags and connector words without content."""
    steps = " ".join(f"Step {i}: {word}." for i, word in enumerate(CONNECTORS.split(", "), 1))
    framed = f"<think>\n{steps}\n</think>\n<answer>\n{CONNECTORS}\n</answer>"
    return [CONNECTORS, TAGS, framed, f"{steps} The final answer is {TAGS}", f"{CONNECTORS}, " * 20]


@probe(0.5)
def wrong_answer(row: dict) -> list[str]:
    """Gold of a row with another answer, and another answer in this gold."""
    other = [row["other_gold"]] if row["other_gold"] else []
    return other + ([in_place(row, row["wrong"][0])] if answer_span(row) else [])


@probe(1.0)
def repeated_gold(row: dict) -> list[str]:
    """Gold twenty times over."""
    return ["\n".join([row["gold"]] * 20)]


@probe(0.25)
def very_long(row: dict) -> list[str]:
    """As much text without an answer as the run allows: its limit, else 40,000 characters (two rows)."""
    size = row["limit"] or LONGEST
    digits = max(1, size - len(in_place(row, ""))) if row["limit"] else size
    brackets = "(" * (size // 2) + ")" * (size // 2)
    word = "a" * (size - 1) + "!"  # which expressions such as (\w+\s?)*$ search for hours
    return ["a " * (size // 2), word, brackets, in_place(row, "9" * digits), "\\frac{" * (size // 6)]


def number_of(text: str) -> float | None:
    """The value of a text that is one number, with or without thousands separators."""
    with contextlib.suppress(ValueError):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same number or the same text."""
    numbers = number_of(a), number_of(b)
    if None in numbers:
        return a.strip().lower() == b.strip().lower()
    return numbers[0] == numbers[1]


def distractors(answer: str, others: list[str], rng: random.Random) -> list[str]:
    """At least two wrong answers: up to 8 of other rows, else near numbers, letters or words."""
    wrong = sorted({other for other in others if not same_answer(other, answer)})
    wrong = rng.sample(wrong, min(len(wrong), 8))
    number = number_of(answer)
    if number is None:
        invented = [word for word in ("B", "C", "A", "no", "unknown") if word.lower() != answer.lower()]
    else:
        invented = [f"{number + step:.15g}" for step in (1, -1, 10, 7)]
    return wrong if len(wrong) >= 2 else [*wrong, *invented][:4]


def prepare_probes(rows: list[dict], everything: list[dict], seed: int, limit: int | None) -> None:
    """Set `wrong` (answers), `other_gold` (of a row with another answer) and `limit` (characters) in each row."""
    rng = random.Random(seed)
    answers = [row["answer"] for row in everything if row["answer"]]

    def same_task(a: dict, b: dict) -> bool:
        has_answers = a["answer"] and b["answer"]
        return same_answer(a["answer"], b["answer"]) if has_answers else a["gold"] == b["gold"]

    for i, row in enumerate(rows):
        row["limit"] = limit
        row["wrong"] = distractors(row["answer"], answers, rng) if row["answer"] else []
        others = (other["gold"] for other in rows[i + 1 :] + rows[:i] if other["gold"] and not same_task(other, row))
        row["other_gold"] = next(others, "")


# ---------------------------------------------------- reward process (src/programs/reward_preflight/reward_process.py)

LOAD_LIMIT_S = 300.0  # an import may load torch or a judge


def declared_range(function) -> str:
    """The first `[low, high]` or `{low, …, high}` in a docstring above its examples, after `Range:` if it is there."""
    doc = (inspect.getdoc(function) or "").partition(">>>")[0]
    ranges = re.findall(r"[\[{][^][{}\n]*,[^][{}\n]*[]}]", doc[max(0, doc.find("Range:")) :])
    return next((text for text in ranges if any(end is not None for end in bounds(text))), "")


def bounds(text: str) -> tuple[float | None, float | None]:
    """The ends of a range such as `[-1, 0]` or `{0, 1}`; None for an end that is no number."""
    items = re.sub(r"[][{} ]", "", text.replace("\u2212", "-")).split(",")
    return number_of(items[0]), number_of(items[-1])


def describe(name: str, function, weight: float) -> dict:
    """What the checks need to know about a function: name, weight, range, group score, open parameters."""
    variadic = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    about = {"name": name, "weight": weight, "range": declared_range(function)}
    about["needs_group"] = bool(getattr(function, "needs_group", False))
    # a function of one sample only gets the columns that it names
    return about | {"takes_any": is_per_sample(function) or variadic}


def own_frame(frames: list[tuple], files: list[str]) -> str:
    """The first frame (file, line, function) in one of the user's files, else the first of all, as text."""
    paths = {Path(file).resolve() for file in files}
    file, line, name = next((f for f in frames if Path(f[0]).resolve() in paths), (frames or [("", 0, "")])[0])
    return f"{file}:{line}, in {name}" if file else ""


def raised_at(error: BaseException) -> list[tuple]:
    """The frames (file, line, function) of an exception, innermost first."""
    return [(f.filename, f.lineno, f.name) for f in reversed(traceback.extract_tb(error.__traceback__))]


def call_once(function, arguments: dict, files: list[str], limits: CallLimits) -> dict:
    """Call a function with the arguments that it takes; returns scores or failure, seconds, and `changed` inputs."""
    parameters = inspect.signature(function).parameters
    before, count, reply = pickle.dumps(arguments), len(arguments["completions"]), {}
    given = arguments | {name: value for name, value in TRL_EXTRAS.items() if name in parameters}
    started = time.perf_counter()
    try:
        result = scored_batch(function, given, limits)
        reply["seconds"] = time.perf_counter() - started
        scores, bad, problem = read_scores(result, count)
        reply |= {"values": scores, "bad": {i: f"returned {value!r}"[:200] for i, value in bad.items()}}
        if problem:
            of_what = f"completion{'s' if count != 1 else ''}"
            reply = {"seconds": reply["seconds"], "malformed": f"returned {problem} for {count} {of_what}"}
    except BaseException as caught:  # SystemExit ends a training run too
        error = caught.__cause__ if isinstance(caught, CallFailed) else caught
        reply |= {"seconds": time.perf_counter() - started, "where": own_frame(raised_at(error), files)}
        reply["raised"] = f"raised {type(error).__name__}: {error}"[:300]
    return reply | {"changed": pickle.dumps(arguments) != before}


def load_functions(specs: list[str], row: dict) -> tuple:
    """(Descriptions of the functions that the specs and their presets name, function that answers a call)."""
    files, reward = [spec_parts(spec)[0] for spec in specs], Reward(specs)
    check_columns(reward.functions, row, tuple(TRL_EXTRAS))

    def answer(name: str, arguments: dict) -> dict:
        return call_once(reward.functions[name], arguments, files, reward.limits)

    return [describe(name, function, reward.weights[name]) for name, function in reward.functions.items()], answer


def serve(fd: int) -> None:
    """Answer calls as an OwnProcess, which --serve starts, until the parent hangs up; `fd`: the connection to it.

    The first message describes the functions, or says why they cannot be loaded.
    """
    os.set_inheritable(fd, False)
    sys.dont_write_bytecode = True  # no __pycache__ beside the user's file
    connection = Connection(fd)
    trace, specs, row = connection.recv()
    try:
        description, answer = load_functions(specs, row)
    except UserError as error:
        connection.send(str(error))
        return
    except Exception as error:
        connection.send(f"got {subject_of(specs)}, which fails to load: {type(error).__name__}: {error}")
        return
    connection.send(description)
    while True:
        try:
            name, arguments, limit_s = connection.recv()
        except EOFError:
            return
        # a C thread ends the process even if a regular expression holds the interpreter
        faulthandler.dump_traceback_later(limit_s, exit=True, file=trace)
        reply = answer(name, arguments)
        faulthandler.cancel_dump_traceback_later()
        connection.send(reply)


def subject_of(specs: list[str]) -> str:
    return f"reward {', '.join(specs)}"


class OwnProcess:
    """A process that runs the rewards, for rows with these columns, started anew after a hang or crash."""

    def __init__(self, specs: list[str], rows: list[dict], timeout_s: float):
        columns = {name: value for row in rows for name, value in row["columns"].items()}
        self.specs, self.row, self.timeout_s = specs, {"prompt": rows[0]["prompt"], "columns": columns}, timeout_s
        self.files = [spec_parts(spec)[0] for spec in specs]
        self.process, self.trace = None, tempfile.TemporaryFile()
        self.about = self.start()

    def start(self):
        """Start the process and return its description of what it loaded; UserError if loading fails."""
        self.connection, theirs = Pipe()
        inherited = [theirs.fileno(), self.trace.fileno()]
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(inherited[0])]
        # prints go to stderr; a session of its own lets `end` kill its children too
        keep = {"stdin": subprocess.DEVNULL, "stdout": 2, "pass_fds": inherited, "start_new_session": True}
        self.process = subprocess.Popen(command, **keep)
        theirs.close()
        self.connection.send((inherited[1], self.specs, self.row))
        answer = self.receive(LOAD_LIMIT_S)
        if answer is None:
            answer = f"got {subject_of(self.specs)}, whose import {self.end()}; expected an import that returns"
        if isinstance(answer, str):
            self.__exit__()
            raise UserError(answer)
        return answer

    def receive(self, limit_s: float):
        """The next message, or None if the process is gone or the limit has passed."""
        end = time.monotonic() + limit_s
        try:
            while not self.connection.poll(0.05):
                gone = self.process.poll() is not None and not self.connection.poll(0)
                if gone or time.monotonic() > end:
                    return None
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None

    def call(self, name: str, arguments: dict) -> dict:
        """One call; {"hung": why} past the time limit, {"died": why} if the process ended."""
        if self.process is None:
            self.start()
        started, limit_s = time.perf_counter(), self.timeout_s
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # receive() notices it
            self.connection.send((name, arguments, limit_s))
        reply = self.receive(limit_s + 5)
        if reply is not None:
            return reply
        seconds, how = time.perf_counter() - started, self.end()
        if seconds < limit_s:
            return {"died": how, "seconds": seconds}
        self.trace.seek(0)  # faulthandler's frames, innermost first
        frames = re.findall(r'File "(.*?)", line (\d+) in (.*)', self.trace.read().decode(errors="replace"))
        self.trace.seek(0)
        self.trace.truncate()
        return {"hung": f"took more than {limit_s:g} s", "where": own_frame(frames, self.files), "seconds": seconds}

    def memory(self) -> int:
        """Bytes of memory that the process holds; 0 where the system does not say."""
        with contextlib.suppress(OSError, AttributeError):
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        return 0

    def end(self) -> str:
        """End the process and its children, and say how it ended."""
        if self.process is None:
            return ""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)  # if it waits for a call, it sees the closed connection and exits
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code, self.process = self.process.wait(), None
        return f"ended the process with exit code {code}" if code >= 0 else f"died of signal {-code}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.trace.close()


# ------------------------------------------------------------------ scoring (src/programs/reward_preflight/scoring.py)

KINDS = ("raised", "hung", "died", "malformed", "not_finite")  # how a call fails
GIVE_UP = 3  # hung calls or dead processes after which a function is not called again
BATCH = 64  # completions per call
TOKEN_CHARACTERS = 4  # characters that stand for a token


@dataclass
class Graded:
    """A completion with its scores by function; `problems` says why a score is missing."""

    row: dict
    text: str
    parts: dict[str, float | None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # only if it was scored alone


def as_batch(piece: list[Graded]) -> dict:
    """The arguments with which a trainer calls a reward."""
    texts = [graded.text for graded in piece]
    ids = [list(range(1, 1 + math.ceil(len(text) / TOKEN_CHARACTERS))) for text in texts]
    return reward_arguments([graded.row for graded in piece], texts, ids)


class Grader:
    """Scores completions with every function, in batches; a batch that fails is scored one completion at a time.

    `on_problem(kind, message, graded)` is called for each problem.
    """

    def __init__(self, process: OwnProcess, weights: dict[str, float], on_problem):
        self.process, self.weights, self.on_problem = process, weights, on_problem
        self.tallies = {name: Counter() for name in self.weights}  # completions, None scores and problems by kind
        self.singly = set()  # functions that took too long for a batch

    def grade(self, pairs: list[tuple], alone: bool = False) -> list[Graded]:
        results = [Graded(row, text) for row, text in pairs]
        for name in self.weights:
            size = 1 if alone or name in self.singly else BATCH
            for start in range(0, len(results), size):
                self.score(name, results[start : start + size])
        return results

    def score(self, name: str, piece: list[Graded]) -> None:
        """Fill in one function's scores of a batch; if the batch fails, score its completions one by one."""
        tally = self.tallies[name]
        if tally["hung"] + tally["died"] >= GIVE_UP:
            for graded in piece:
                graded.problems[name] = f"not called after {GIVE_UP} calls that hung or died"
            return
        reply = self.process.call(name, as_batch(piece))
        if reply.get("changed"):
            self.count("changed", name, "changes its inputs", piece[0])
        if "values" in reply:
            self.keep(name, piece, reply)
            return
        kind = next(kind for kind in KINDS if kind in reply)
        if len(piece) == 1:
            tally["completions"] += 1
            piece[0].problems[name] = reply[kind]
            self.count(kind, name, f"{reply[kind]} ({reply['where']})" if reply.get("where") else reply[kind], piece[0])
            return
        for graded in piece:
            self.score(name, [graded])
        if not any(name in graded.problems for graded in piece):
            message = f"{reply[kind]} on a batch of {len(piece)}, but on none of its completions alone"
            self.count("latency" if kind == "hung" else "batch", name, message, piece[0])
            self.singly |= {name} if kind == "hung" else set()

    def count(self, kind: str, name: str, message: str, graded: Graded) -> None:
        self.tallies[name][kind] += 1
        self.on_problem(kind, f"{name} {message}", graded)

    def keep(self, name: str, piece: list[Graded], reply: dict) -> None:
        self.tallies[name] += Counter(completions=len(piece), none=reply["values"].count(None) - len(reply["bad"]))
        for i, (graded, value) in enumerate(zip(piece, reply["values"], strict=True)):
            graded.parts[name] = value
            if len(piece) == 1:
                graded.seconds[name] = reply["seconds"]
            if i in reply["bad"]:
                graded.problems[name] = reply["bad"][i]
                self.count("not_finite", name, reply["bad"][i], graded)

    def total(self, graded: Graded) -> float | None:
        """The weighted sum of a completion's scores; None if no function applies or one failed."""
        parts = {name: value for name, value in graded.parts.items() if value is not None}
        if graded.problems or not parts:
            return None
        return sum(self.weights[name] * value for name, value in parts.items())


# -------------------------------------------------------------- preflight (src/programs/reward_preflight/preflight.py)

FULL_SHARE = 0.95  # share of the highest score that counts as full marks, as a part may shape the length
MIN_RECALL = 0.95  # share of gold that must have full marks
TRIAL_ROWS = 8  # rows on which the gold formats compete
PROBE_ROWS = 32  # rows from which probes are made
LEAK = 2 << 20  # bytes by which the process grows each time that the same batch is scored again
CHECKED = 56  # completions of a row that the checks score
PAYING_ROWS = 0.05  # share of rows that may be paid more than allowed; up to it each is a warning
SLOW_S = 1.0  # seconds for a completion above which there is a warning
ADVICE = {
    "raised": "give such a completion the lowest score; raise only for wrong columns",
    "hung": "run the work in a process that can be killed; --timeout_s allows more time",
    "died": "never exit the process; run native or untrusted code in another one",
    "malformed": "return a list with one entry per completion",
    "not_finite": "return a finite number, or None where the function does not apply",
    "changed": "copy a list before changing it: other functions get the same lists",
    "memory": "keep nothing, or a bounded number of entries, from one call to the next",
    "state": "keep nothing from one call to the next",
    "batch": "score each completion by itself: batches differ with the number of processes and the order of the data",
    "not_deterministic": "keep nothing from earlier calls; seed random choices; give a judge temperature 0 and a cache",
    "signature": "add **kwargs",
    "unscored": "None means not applicable, and such an answer has no gradient: give wrong answers 0",
    "latency": "bound the work per completion, or make it async; --timeout_s allows more time",
    "sign": "the sign of the score, and the row whose reference it reads",
    "long_gold": "a larger --max_new_tokens, or shorter references",
    "chat": "--chat in the preflight and the run, or chat messages; a base model needs neither",
}
WARNINGS = {"signature", "latency", "none", "long_gold", "chat"}  # findings that never fail


class Preflight:
    """Runs the checks of a reward one after another; `report` is what --json prints."""

    def __init__(self, args, rows: list[dict], process: OwnProcess):
        self.args, self.rows, self.functions = args, rows, process.about
        self.findings, self.counts = [], Counter()  # three of each check are kept, the others counted
        known = {"reward": args.reward, "data": args.data, "rows": len(rows), "seed": args.seed, "gold": None}
        self.report = {"profile": args.profile} | known
        weights = {function["name"]: function["weight"] for function in self.functions}
        self.grader = Grader(process, weights, self.find)
        self.best = {}  # {function: its `best_score`}
        self.upside_down = False  # whether a form of gold is paid less than wrong answers in that form
        self.whole = {function["name"] for function in self.functions if function["needs_group"]}  # score groups

    def find(
        self, check: str, message: str, graded: Graded | None = None, failed: bool = True, advice: str = ""
    ) -> None:
        """Add a finding, with what was `graded` as evidence; a failure, or else a warning."""
        self.counts[check] += 1
        advice = advice or ADVICE.get(check, "")
        if graded and graded.row["gold"] is None:
            message += f", row {graded.row['number']}, which has no reference"
        if graded and len(graded.text) > LONGEST // 2 and not self.args.limit_characters:
            advice += "; or --max_new_tokens N, if completions of the run are shorter"
        varies = self.args.profile == "judge" and check in ("not_deterministic", "batch", "state")
        failed = failed and not varies and check not in WARNINGS
        entry = {"severity": "fail" if failed else "warning", "check": check, "message": message, "try": advice}
        if self.counts[check] <= 3:
            self.findings.append(entry | (self.evidence(graded) if graded else {}))

    def evidence(self, graded: Graded) -> dict:
        text = graded.text if len(graded.text) <= 100 else graded.text[:100] + "…"
        score = self.grader.total(graded)
        return {"row": graded.row["number"], "completion": repr(text)[1:-1], "score": score}

    def run(self) -> dict:
        """All checks; returns the report with the verdict."""
        self.fit()
        golds = self.gold()
        self.look_at_gold(golds)
        self.probes(golds)
        self.contract(golds)
        self.describe(golds)
        findings = sorted(self.findings, key=lambda finding: finding["severity"] != "fail")
        more = {check: count - 3 for check, count in self.counts.items() if count > 3}
        ready = all(finding["severity"] != "fail" for finding in findings)
        return self.report | {"findings": findings, "more_findings": more, "ready": ready}

    def fit(self) -> None:
        """Leave out rows whose checks would take longer than --budget_s, by the time of a second small batch."""
        if not (budget := self.args.budget_s):
            return
        batch = reward_arguments(self.rows[:1] * TRIAL_ROWS, ["?"] * TRIAL_ROWS, [[1]] * TRIAL_ROWS)
        calls = [self.grader.process.call(function["name"], batch) for _ in "12" for function in self.functions]
        seconds = sum(call.get("seconds", 0.0) for call in calls[len(self.functions) :]) / TRIAL_ROWS
        if seconds * CHECKED * len(self.rows) > budget:
            slow, count = f"a completion takes {seconds:.1f} s", int(budget / seconds / CHECKED)
            expected = f"{budget / CHECKED:.1g} s, as the checks of a row score {CHECKED}; try a larger --budget_s"
            need(count, f"got {', '.join(self.args.reward)}: {slow}; expected {expected}, or an async function")
            self.find("latency", f"{slow}: only {count} of {len(self.rows)} rows are checked")
            self.rows = self.rows[:count]

    # ---- gold

    def full(self, graded: Graded) -> float:
        """The total of full marks from functions that apply: of each the highest documented score, else its `best`."""
        if self.args.full_score is not None:
            return self.args.full_score
        tops = 0.0
        for function in self.functions:
            name, (low, high) = function["name"], bounds(function["range"])
            ends = (low or 0.0, self.best.get(name, 1.0) if high is None else high)
            applies = graded.parts.get(name) is not None or name in graded.problems
            # scores that compare a group's completions are left out: a single completion cannot reach them
            tops += max(function["weight"] * end for end in ends) if applies and name not in self.whole else 0.0
        return tops

    def is_full(self, graded: Graded) -> bool:
        total, full = self.grader.total(graded), self.full(graded)
        return total is not None and total >= full * (FULL_SHARE if full > 0 else 1.0) - 1e-6

    def figures(self, results: list[Graded]) -> dict:
        """Share of full marks among rows to which some function applies, mean score, and share of None."""
        totals = [total for graded in results if (total := self.grader.total(graded)) is not None]
        applicable = len(totals) + sum(bool(graded.problems) for graded in results)
        full = sum(map(self.is_full, results)) / max(1, applicable)
        return {"full_marks": full, "mean": statistics.fmean(totals or [0.0]), "none": 1 - applicable / len(results)}

    def gold(self) -> list[Graded]:
        """Score the reference completions, in the format that scores best on the first rows."""
        pairs = [(row, variants) for row in self.rows if (variants := gold_variants(row, self.args))]
        need(
            pairs,
            f"{self.args.data}: got columns {', '.join(self.rows[0]['columns']) or 'none'}, which give no reference "
            f"completion; expected those of --gold_template or {', '.join((*SOLUTIONS, *answer_columns(self.args)))}; "
            "try --answer_column, --gold_column or --gold_template",
        )
        forms = {}
        for row, variants in pairs:
            for name, text in variants.items():
                forms.setdefault(name, []).append((row, text))
        merits = {name: self.figures(self.trial(of_form)) for name, of_form in forms.items()} if len(forms) > 1 else {}
        order = sorted(forms, key=lambda name: [-merits[name][x] for x in ("full_marks", "mean")] if merits else [])
        for row, variants in pairs:
            row["gold"] = next(variants[name] for name in order if name in variants)
        results = self.grader.grade([(row, row["gold"]) for row, _ in pairs], alone=True)
        self.best = {function["name"]: self.best_score(results, function["name"]) for function in self.functions}
        self.report["gold"] = {"variant": order[0], **self.figures(results), "full_score": max(map(self.full, results))}
        self.report["gold"] |= {"rows": len(pairs), "rows_without_gold": len(self.rows) - len(pairs)}
        return results

    def best_score(self, golds: list[Graded], name: str) -> float:
        """Gold's highest score, at least 1; its lowest if a column with few values, such as a weight, explains all."""
        paid = [(g.row["columns"], part) for g in golds if (part := g.parts.get(name) or 0.0) >= 1]
        scores = [part for _, part in paid] or [1.0]
        columns = {x for columns, _ in paid for x in columns} - {*SOLUTIONS, *answer_columns(self.args)}
        for column in columns - {self.args.gold_column}:
            pairs = {(str(columns.get(column)), round(part, 9)) for columns, part in paid}
            if len(pairs) == len({value for value, _ in pairs}) <= len(paid) / 2:
                return min(scores)
        return max(scores)

    def trial(self, pairs: list[tuple]) -> list[Graded]:
        """Score gold in one variant on the first rows, in a batch with the next rows' gold as wrong answers."""
        few = pairs[:TRIAL_ROWS]
        wrong = [(row, text) for (row, _), (_, text) in zip(few, few[1:] + few[:1], strict=True)]
        results = self.grader.grade([*few, *wrong])
        results, others = results[: len(few)], map(self.grader.total, results[len(few) :])
        scores = zip(map(self.grader.total, results), others, strict=True)
        self.upside_down |= all(None not in pair and pair[0] < pair[1] for pair in scores)
        return results

    def look_at_gold(self, results: list[Graded]) -> None:
        """Add findings about gold: recall, None, texts longer than the run's limit."""
        gold, scores = self.report["gold"], [(graded, self.grader.total(graded)) for graded in results]
        failed = gold["full_marks"] < MIN_RECALL and self.args.profile != "judge"
        if failed:
            text = f"{gold['full_marks']:.1%} of {gold['rows']} gold completions have full marks"
            text += ", which eval/accuracy counts" if gold["full_score"] == 1 else ""
            advice = "--gold_template 'Answer: {answer}', as the reward reads it, or --gold_column; check its columns"
            best = max(score or 0.0 for _, score in scores)
            if not gold["full_marks"] and best > 0:
                advice += f"; --full_score {best:g} if that is the highest score intended"
            self.find("gold", text, advice=advice)
        for graded in [g for g, score in scores if score is not None and not self.is_full(g)][:2]:
            parts = ", ".join(f"{name} {value}" for name, value in graded.parts.items())
            text = f"gold scores {self.grader.total(graded):g} of {self.full(graded):g} ({parts})"
            self.find("gold", text, graded, failed, "look at this row's reference")
        if failed and not gold["full_marks"] and self.upside_down:
            self.find("sign", "in one form of the answer, every gold one is paid less than that of another row")
        if 0 < gold["none"] < 1:
            message = f"{gold['none']:.1%} of the gold completions get None: trainers count that as 0 or skip it"
            self.find("none", message, advice="leave out rows whose reference cannot be used")
        limit = self.args.limit_characters
        longer = [graded for graded in results if limit and len(graded.text) > limit]
        if longer:
            share = f"{len(longer)} of {len(results)} gold completions"
            self.find("long_gold", f"{share} are longer than {limit:,} characters, the run's limit", longer[0])

    # ---- probes

    def probes(self, golds: list[Graded]) -> None:
        """Score the completions that must not pay, made from rows with full marks first."""
        limit = self.args.limit_characters
        prepare_probes([graded.row for graded in golds], self.rows, self.args.seed, limit)
        ranked_rows = [g.row for g in sorted(golds, key=lambda graded: not self.is_full(graded))[:PROBE_ROWS]]
        tables = {}
        for name, (_, function) in PROBES.items():
            long = name == "very_long"
            probes = [(row, function(row)) for row in ranked_rows[: 2 if long else None]]
            pairs = [(row, text) for row, texts in probes for text in dict.fromkeys(text[:limit] for text in texts)]
            tables[name] = self.grader.grade([(row, text) for row, text in pairs if text != row["gold"]], alone=long)
        gold, own_totals = self.report["gold"]["mean"], {g.row["number"]: self.grader.total(g) for g in golds}
        paid = {
            name: [(score, graded) for graded in results if (score := self.grader.total(graded)) is not None]
            for name, results in tables.items()
        }
        lowest = min((score for pairs in paid.values() for score, _ in pairs), default=0.0)
        if gold - min(0.0, lowest) < 1e-9:
            self.find("probes", "gold scores no more than the worst completion", advice="see the findings about gold")
        tried = [g for results in tables.values() for g in results if own_totals[g.row["number"]] is not None]
        unscored = [g for g in tried if not g.problems and self.grader.total(g) is None]
        if 2 * len(unscored) > sum(not g.problems for g in tried):
            message = f"{len(unscored)} of {len(tried)} completions that must not pay get None, where gold has a score"
            self.find("unscored", message, unscored[0])
        self.report["probes"] = []
        for name, results in tables.items():
            usual = PROFILES[self.args.profile].get(name, PROBES[name][0])
            line = {"name": name, "what": PROBES[name][1].__doc__, "allowed": self.args.allow.get(name, usual)}
            advice = "make the function refuse it"
            if self.args.profile == "answer" and PROFILES["format"].get(name) == 1.0:
                advice += ", or --profile format if the reward pays for the form alone"
            line["completions"] = len(results)
            self.report["probes"].append(self.payment(line, paid[name], lowest, own_totals, advice))
        slowest = max((seconds for g in tables["very_long"] for seconds in g.seconds.values()), default=0.0)
        if slowest > SLOW_S:
            size = max(len(graded.text) for graded in tables["very_long"])
            message = "" if limit else "; if completions of the run are shorter, try --max_new_tokens N"
            self.find("latency", f"a completion of {size:,} characters takes {slowest:.1f} s{message}")

    def payment(self, line: dict, paid: list, lowest: float, gold_of_row: dict, advice: str) -> dict:
        """Complete a probe's line of the report; add findings for rows that are paid too large a share of gold's score.

        Args:
            line: the name, description and allowed share.
            paid: (score, graded) pairs.
            lowest: the lowest score seen; it counts as nothing if gold is not above 0.
            gold_of_row: {row's number: what its own gold is paid}, instead of gold's mean if above nothing.
        """
        gold, allowed, summary = self.report["gold"]["mean"], line["allowed"], line["what"]
        floor = 0.0 if gold > 1e-9 else min(0.0, gold, lowest)
        if not paid or gold - floor < 1e-9:
            return line | {"share": None, "worst": None, "paying_rows": 0, "status": "n/a"}
        shares = []
        for score, graded in paid:
            top = gold_of_row.get(graded.row["number"])
            top = top if top is not None and top - floor > 1e-9 else gold
            shares.append(((score - floor) / (top - floor), graded))
        shares.sort(key=lambda pair: pair[0])
        of_rows = {graded.row["number"]: (share, graded) for share, graded in shares}  # each row's best comes last
        paying = sorted((pair for pair in of_rows.values() if pair[0] > allowed + 1e-6), key=lambda pair: -pair[0])
        line |= {"share": statistics.fmean(share for share, _ in shares), "worst": shares[-1][0]}
        failed = bool(paying) and (line["share"] > allowed + 1e-6 or len(paying) > PAYING_ROWS * len(of_rows))
        for share, graded in paying[:3]:
            text = f"pays {share:.0%} of gold's score ({allowed:.0%} allowed) for: {summary[0].lower()}{summary[1:-1]}"
            allow = f"--allow {line['name']}={math.ceil(100 * share) / 100:g}"
            self.find(line["name"], text, graded, failed, f"{advice}, or {allow} if that is intended")
        return line | {"paying_rows": len(paying), "status": "FAIL" if failed else "warning" if paying else "pass"}

    # ---- contract, functions

    def contract(self, golds: list[Graded]) -> None:
        """Score one batch of right and wrong texts twice, reversed and one by one: scores must not change.

        An empty completion precedes each text, as it must not get what an earlier one left behind.
        """
        pairs = []
        for i, g in enumerate(golds[:PROBE_ROWS]):  # every second text is wrong
            wrong = in_place(g.row, g.row["wrong"][0]) if g.row["wrong"] else g.row["other_gold"]
            pairs += [(g.row, ""), (g.row, g.text if i % 2 else wrong)]
        graded, held = [], []  # bytes after each batch
        for order in (pairs, pairs, pairs[::-1]):
            graded.append(self.grader.grade(order))
            held.append(self.grader.process.memory())
        first, again, reverse = graded[0], graded[1], graded[2][::-1]
        kept = min(after - before for before, after in itertools.pairwise(held)) if all(held) else 0
        if kept >= LEAK:
            each = f"{kept / len(pairs) / 1024:,.0f} KiB of each completion"
            self.find("memory", f"keeps {each}, even of one that it scores again")
        result = {"deterministic": self.agree(first, again, "not_deterministic", "on the same batch")}
        if result["deterministic"]:
            result["order_independent"] = self.agree(first, reverse, "batch", "in reversed order")
            alone = self.grader.grade(pairs, alone=True)
            result["batch_independent"] = self.agree(first, alone, "batch", "when scored alone")
            result["state_independent"] = self.in_a_new_process(golds)
        self.without_gold()
        result["inputs_unchanged"] = not any(tally["changed"] for tally in self.grader.tallies.values())
        closed = [function["name"] for function in self.functions if not function["takes_any"]]
        for name in closed:
            self.find("signature", f"{name} has no **kwargs: TRL passes every column, which raises a TypeError")
        self.report["contract"] = result | {"takes_any_column": not closed}
        strings = sum(isinstance(row["prompt"], str) for row in self.rows)
        self.report["string_prompts"] = strings
        embedded = Path(EMBEDDED_DATA).parent  # plain text for the embedded model
        if strings and not self.args.chat and Path(self.args.data).resolve().parent != embedded:
            message = f"{strings} of {len(self.rows)} prompts are strings, which bypass a model's chat template"
            self.find("chat", f"{message}: an instruct model rarely answers them, and rewards stay near 0")

    def in_a_new_process(self, golds: list[Graded]) -> bool:
        """Whether gold, with another variant in each row, scores the same in a new process in reversed order."""
        variants = [[*gold_variants(graded.row, self.args).values()] for graded in golds]
        count = max(TRIAL_ROWS, *map(len, variants))
        texts = [texts[i % len(texts)] for i, texts in enumerate(variants[:count])]
        pairs = [(graded.row, text) for graded, text in zip(golds, texts, strict=False)]
        rest = golds[count : 2 * count]  # a text that is wrong for one row and right for the next
        pairs += [(graded.row, graded.text) for graded in rest]
        pairs += [(graded.row, following.text) for graded, following in itertools.pairwise(rest)]
        first = self.grader.grade(pairs, alone=True)
        self.grader.process.end()  # the next call starts another
        other = self.grader.grade(pairs[::-1], alone=True)[::-1]
        return self.agree(first, other, "state", "in a new process, in reversed order")

    def without_gold(self) -> None:
        """Score a text for the rows without a reference, which a run has too; failures become findings."""
        rows = [row for row in self.rows if not row["gold"]][:PROBE_ROWS]
        for row in rows:
            row["gold"] = None
        self.grader.grade([(row, "<answer>0</answer>") for row in rows], alone=True)

    def agree(self, a: list[Graded], b: list[Graded], check: str, how: str) -> bool:
        """Whether two gradings of the same completions agree; differences become findings."""
        same = True
        for x, y in zip(a, b, strict=True):
            names = (x.parts.keys() & y.parts.keys()) - x.problems.keys() - y.problems.keys()
            for name in names - (self.whole if check == "batch" else set()):  # group scores depend on the batch
                u, v = x.parts[name], y.parts[name]
                if u != v and (u is None or v is None or abs(u - v) > 1e-6):
                    same = False
                    self.find(check, f"{name} scores {u}, then {v} {how}", x)
        return same

    def describe(self, golds: list[Graded]) -> None:
        lines = []
        for function in self.functions:
            name, tally = function["name"], self.grader.tallies[function["name"]]
            values = [g.parts[name] for g in golds if g.parts.get(name) is not None]
            seconds = sorted(g.seconds[name] for g in golds if name in g.seconds)
            line = {key: function[key] for key in ("name", "weight", "range")}
            line |= {"gold_mean": statistics.fmean(values) if values else None}
            line |= {key: tally[key] for key in ("completions", *KINDS)}
            line |= {"none_rate": tally["none"] / max(1, tally["completions"])}
            for percent in (50, 99):  # nearest rank
                place = max(0, math.ceil(percent / 100 * len(seconds)) - 1)
                line[f"p{percent}_ms"] = round(1e3 * seconds[place], 3) if seconds else None
            lines.append(line)
            if seconds and line["p99_ms"] > 1e3 * SLOW_S:
                self.find("latency", f"{name} takes {line['p99_ms'] / 1e3:.1f} s a completion (p99)")
        self.report["functions"] = lines


# -------------------------------------------------------------------- report (src/programs/reward_preflight/report.py)

TABLES = {  # {table of a report: its columns}
    "probes": ("name", "completions", "share", "worst", "allowed", "paying_rows", "status", "what"),
    "functions": ("name", "weight", "range", "gold_mean", "none_rate", *KINDS, "p50_ms", "p99_ms"),
}


def aligned(lines: list[list]) -> str:
    """Lines of cells as a text table without trailing blanks; None is shown as -."""
    shown = [["-" if c is None else f"{c:.4g}" if isinstance(c, float) else str(c) for c in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rows = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in shown]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def print_report(report: dict) -> None:
    """Print what was checked, the tables, the findings and the verdict."""
    gold = report["gold"]
    tell(f"reward   {', '.join(report['reward'])}")
    tell(f"data     {report['data']}, {report['rows']} rows, seed {report['seed']}")
    tell(f"profile  {report['profile']}")
    marks = f"{gold['full_marks']:.1%} full marks ({gold['full_score']:g})"
    tell(f"gold     {marks}, mean {gold['mean']:.4g}, none {gold['none']:.1%}, as {gold['variant']!r}")
    for name, columns in TABLES.items():
        heads = [column.replace("_", " ") for column in columns]
        tell(f"\n{aligned([heads, *([line[column] for column in columns] for line in report[name])])}")
    for x in report["findings"]:
        shown = f" | row {x['row']}, score {x['score']}: '{x['completion']}'" if "row" in x else ""
        tell(f"{x['severity']:<7}  {x['check']}: {x['message']}{shown} | try: {x['try']}")
    for check, count in report["more_findings"].items():
        tell(f"         and {count} more of {check}")
    tell("verdict  ready" if report["ready"] else "verdict  not ready", f"in {report['seconds']:.1f} s")


def print_json(value) -> None:
    tell(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def list_library(args) -> int:
    """--list: print functions with range and summary, and presets with their parts; aliases are left out."""
    members, functions, presets = library_rewards(args.list), [], []
    first = {id(member): name for name, member in reversed(members.items())}
    for name, member in members.items():
        if is_preset(member):
            parts = {f.__name__: weight for f, weight in zip(member, member.weights, strict=True)}
            presets.append({"name": name, "parts": parts})
        elif first[id(member)] == name:
            summary = (inspect.getdoc(member) or "").partition("\n")[0]
            functions.append({"name": name, "range": declared_range(member), "summary": summary})
    if args.json:
        print_json({"functions": functions, "presets": presets})
        return 0
    lines = [list(line.values()) for line in functions]
    lines += [[p["name"], "preset", " + ".join(f"{w:g} {n}" for n, w in p["parts"].items())] for p in presets]
    tell(aligned(lines) if lines else "no reward functions")
    return 0


# -------------------------------------------------- model preflight (src/programs/reward_preflight/model_preflight.py)

SAMPLES = 16  # completions of a prompt
PASS_RATES = (0.1, 0.9)  # mean pass rates between which RL has enough to reinforce and to learn


class ModelSettings(BaseConfig):
    """The command line's settings, and the further settings of a run that the parts read."""

    device, rollout_engine, rollout_batch_size = "auto", "hf", 64
    lora_rank, load_in_4bit = 0, False

    def __init__(self, args):
        vars(self).update(vars(args))


def model_samples(config: ModelSettings, reward: Reward, most: int) -> list[dict]:
    """Sample and score SAMPLES completions for each of at most `most` prompts, grouped by prompt."""
    import numpy as np

    device = start_processes(config)
    settle_precision(config, device)
    tokenizer = load_tokenizer(config)
    rows = pick(load_prompts(config, tokenizer, config.data), most, config.seed)
    reward.check_columns(rows[0])
    models = load_sampler(config, tokenizer, device, "model")
    check_context(config, models, rows)
    asked = [row for row in rows for _ in range(SAMPLES)]
    noise = np.random.default_rng([config.seed, 7]).random((len(asked), config.max_new_tokens))
    return collect(config, models, HFEngine(config, models), reward, asked, noise, {})


def pass_report(args, samples: list[dict]) -> dict:
    """Figures of samples grouped by prompt; one passes if the first reward gives full marks, as in eval/accuracy."""
    full, count = 1.0 if args.full_score is None else args.full_score, SAMPLES
    first = next(iter(samples[0]["rewards"]))
    passed = [one["rewards"][first] is not None and one["rewards"][first] >= full for one in samples]
    counts = [(count, sum(passed[start : start + count])) for start in range(0, len(samples), count)]
    scores = Counter(round(one["score"], 4) for one in samples)
    spread = [len({one["score"] for one in samples[i : i + count]}) > 1 for i in range(0, len(samples), count)]
    return {
        "model": args.model,
        "reward": args.reward,
        "data": args.data,
        "seed": args.seed,
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens,
        **describe_pass_rates(counts, args.group_size, *PASS_RATES),
        "prompts_with_different_scores": sum(spread) / len(spread),
        "ends": sum(one["finished"] for one in samples) / len(samples),
        "scores": {f"{score:g}": n for score, n in scores.most_common(8)},
        "examples": [{key: one[key] for key in ("prompt", "completion", "score")} for one in samples[:: 8 * count][:4]],
    }


def print_pass_report(report: dict) -> None:
    tell(f"model    {report['model']}, temperature {report['temperature']:g}, seed {report['seed']}")
    tell(f"data     {report['data']}, {report['prompts']} prompts, {report['samples']} samples")
    shares = "  ".join(f"pass@{k} {value:.3f}" for k, value in report["pass_at_k"].items())
    tell(f"passed   {shares}; {report['ends']:.3f} end within {report['max_new_tokens']} tokens")
    tell("prompts  by pass rate   " + "  ".join(f"{name}: {n}" for name, n in report["prompts_by_pass_rate"].items()))
    tell(
        f"groups   of {report['group_size']}: {report['groups_with_signal']:.3f} have both right and wrong answers; "
        f"{report['prompts_with_different_scores']:.3f} of the prompts have samples with different scores"
    )
    for example in report["examples"][:3]:
        prompt = user_text(example["prompt"])
        tell(f"         {prompt[-60:]!r} -> {example['completion'][-80:]!r}, score {example['score']:g}")
    tell(f"verdict  {report['fits']}: {report['why']} ({report['seconds']:.1f} s)")


def model_preflight(args) -> int:
    """--model: sample, score and print the verdict; returns the exit code."""
    started = time.perf_counter()
    quiet_environment()
    args.max_new_tokens = args.max_new_tokens or 256
    samples = model_samples(ModelSettings(args), Reward(args.reward), args.limit or 32)
    report = pass_report(args, samples)
    if report["prompts"] * SAMPLES < 200:
        say(f"note: {report['samples']} samples are few; to tell a pass rate of 1 % from 0 takes a few hundred")
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else print_pass_report)(report)
    return 0 if report["fits"] == "RL now" else 1


# ------------------------------------------------------------------ command (src/programs/reward_preflight/command.py)

BOTH, CALLED, SAMPLED = ("reward", "model"), ("reward",), ("model",)
PRECISIONS = ["auto", "fp32", "bf16", "fp16"]
FLAGS = {  # name: (help, placeholder, default or its type, bounds or choices, modes in which it has an effect)
    "group_size": ("completions per prompt in the run", "G", 8, (2, 1e6), SAMPLED),
    "max_new_tokens": ("longest completion of the run; cuts probes, at 4 characters a token", "N", int, (1, 1e7), BOTH),
    "prompt_column": ("column with the prompt", "NAME", "prompt", None, BOTH),
    "gold_column": ("column with the reference completion", "NAME", str, None, CALLED),
    "answer_column": ("column with the final answer, tried in the usual formats", "NAME", str, None, CALLED),
    "gold_template": ("reference completion, such as 'Answer: {answer}'; {NAME}: a column", "TEXT", str, None, CALLED),
    "full_score": ("score of full marks (default: by documented ranges, else gold's best)", "SCORE", float, None, BOTH),
    "profile": ("pays for the answer, the form, or a judge's grades", None, "answer", [*PROFILES], CALLED),
    "limit": ("rows drawn from the data (default: 64, with --model 32)", "N", int, (1, 1e9), BOTH),
    "timeout_s": ("longest time for one call of a reward", "S", 30.0, (0.01, 1e6), CALLED),
    "budget_s": ("time for all checks; a slow reward gets fewer rows", "S", float, (1, 1e6), CALLED),
    "temperature": ("temperature of --model's samples, as in the run", "T", 1.0, (1e-3, 1e3), SAMPLED),
    "precision": (
        "precision of --model, as in the run; auto: bf16 if the GPU supports it",
        None,
        "auto",
        PRECISIONS,
        SAMPLED,
    ),
    "max_prompt_tokens": ("--model leaves out longer prompts", "N", 512, (1, 1e7), SAMPLED),
    "chat_template": ("FILE with a chat template to use instead of --model's", "FILE", "", None, SAMPLED),
    "chat_template_kwargs": ('JSON for --model\'s template, as {"enable_thinking": false}', "JSON", "", None, SAMPLED),
    "seed": ("seed of the rows drawn", "N", 0, None, BOTH),
}


def share_of(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in PROBES or number_of(value) is None:
        names = f"NAME one of {', '.join(PROBES)}{'' if name in PROBES else suggest(name, [*PROBES])}"
        raise argparse.ArgumentTypeError(f"got {text!r}; expected NAME=SHARE such as empty=0.4, {names}")
    return name, float(value)


def make_parser() -> argparse.ArgumentParser:
    usage = "%(prog)s [--flag value ...]    (--help has all flags)"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=Help, allow_abbrev=False)

    def flag(name: str, help: str, metavar: str | None = None, **options) -> None:
        default = options.get("default")
        help += f" (default: {default})" if default else ""
        parser.add_argument(f"--{name}", help=help, metavar=metavar, **options)

    flag("list", "list a library's functions and presets", "FILE.py", nargs="?", const=EMBEDDED_REWARDS)
    flag("reward", "check a reward: FILE.py:function[*weight] or a name, repeatable", "FN", action="append")
    flag("model", "sample a model, folder or hub id: how often it passes, and whether RL fits", "MODEL")
    flag("data", "rows: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]", "FILE")
    for name, (about, metavar, default, limits, _) in FLAGS.items():
        kind = {"type": default} if isinstance(default, type) else {"type": type(default), "default": default}
        flag(name, about, metavar, **kind, choices=limits if isinstance(limits, list) else None)
    allow = "share of gold's score that a probe may get, NAME=SHARE, repeatable"
    flag("allow", allow, "NAME=SHARE", type=share_of, action="append")
    parser.add_argument("--chat", action="store_true", help="the run has --chat: string prompts become user messages")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # for OwnProcess
    return parser


def check_arguments(args) -> None:
    """Raise UserError for arguments that do not fit together; resolve names of rewards, and --max_new_tokens."""
    names = [name for name in ("list", *BOTH) if getattr(args, name)]
    modes = [name for name in names if not (name == "reward" and args.model)]
    given = " and ".join(f"--{name}" for name in modes)
    expected = "expected one of --list, --reward, --model"
    need(len(modes) == 1, f"got {given or 'no mode'}; {expected}")
    need(args.reward or not args.model, "got --model without --reward; expected a reward that scores its samples")
    need(args.list or args.data, f"got {given} without --data; expected rows; try --data FILE.jsonl")
    defaults, mode = make_parser().parse_args([]), modes[0]
    for name, (*_, limits, fits) in (FLAGS | {"chat": (None, BOTH)}).items():
        value = getattr(args, name)
        if isinstance(limits, tuple) and value is not None:
            low, high = limits
            need(low <= value <= high, f"got {name} {value}; expected {low:g} to {high:g}; try --{name} {low:g}")
        idle = mode in BOTH and mode not in fits and value != getattr(defaults, name)
        need(not idle, f"got --{name} with --{mode}, where it has no effect; expected it with --{' or --'.join(fits)}")
    args.reward = [full_spec(spec) for spec in args.reward or []]
    args.allow = dict(args.allow or [])
    args.limit_characters = TOKEN_CHARACTERS * args.max_new_tokens if args.max_new_tokens else None


def preflight(args) -> int:
    """--reward: run all checks on rows drawn from the data; returns the exit code."""
    started, rows = time.perf_counter(), load_rows(args, args.limit or 64)
    with OwnProcess(args.reward, rows, args.timeout_s) as process:
        report = Preflight(args, rows, process).run()
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else print_report)(report)
    return 0 if report["ready"] else 1


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(make_parser(), argv)
    if args.serve is not None:
        serve(args.serve)
        return 0
    try:
        check_arguments(args)
        return (model_preflight if args.model else list_library if args.list else preflight)(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code


if __name__ == "__main__":
    sys.exit(main())
