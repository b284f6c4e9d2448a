#!/usr/bin/env python3
# Built from src/programs/warm_start/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "trl>=1.16,<1.17", "transformers>=5.23,<6", "torch>=2.6", "datasets", "accelerate", "peft", "numpy", "pyyaml",
#   "pyarrow", "tqdm",
# ]
# ///
"""Warm-start a model that is never right: supervised rounds on TRL's SFTTrainer until RL has something to reinforce.

Three sources of solutions:

    (default)      the column `completion` of the data: a string, or one assistant message
    --self         the model's own samples (rejection sampling; STaR, arXiv 2203.14465; expert iteration)
    --teacher M    samples of another model, a folder or hub id, through its own chat template, or behind an
                   OpenAI-compatible server: http://HOST:PORT/v1#MODEL

A solution is kept if the run's own reward passes it: the first --reward gives at least --pass_score, and the end token
comes within --max_new_tokens. A sample also needs full marks from the first reward named …format…, if there is one.
With samples, each round trains the start model on the solutions of all rounds (STaR); with the data's own solutions it
trains the previous round's policy. The loss is the mean negative log-likelihood of the completion, end token included,

    loss    -mean over t of log p(y_t | x, y_<t),   x = the prompt's ids as the RL trainers make them

Rounds repeat until held-out samples pass at a rate of --pass_low or more, end, and have the right format, and
until their entropy is high enough (references/warm_start.md). Then it writes final/ and prints the next command. After
kill -9, --resume continues and samples nothing twice. Training prompts that are also held out are refused.

Deliberately left out: several processes (torchrun), 4-bit weights, several turns, trackers. LoRA ends merged in final/.

    python scripts/warm_start.py --data solutions.jsonl --eval_data test.jsonl --reward my.py:reward \\
        --model Qwen/Qwen2.5-0.5B --output_dir runs/warm                                     # worked solutions
    python scripts/warm_start.py --self --samples 32 --sample_temperature 1.2 --output_dir runs/self   # CPU, embedded
    python scripts/warm_start.py --teacher Qwen/Qwen2.5-7B-Instruct --chat --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --model Qwen/Qwen2.5-0.5B --lora_rank 16 --output_dir runs/taught

Exit codes: 0 RL can begin, 1 not yet (--resume --rounds N continues), 2 bad input, 3 a reward function failed,
4 training diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

# Contents
#       144-247  messages          Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#       250-326  bundle            Paths of this bundle and of its embedded model, data and rewards; loading its …
#       329-551  dialect           Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       554-769  settings          Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#      772-1119  processes         The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#     1122-1192  exit codes        Program exit: errors that a user can fix become a message and an exit code
#     1195-1432  data files        Open data files as text: decompress, decode, refuse files without data; parse CSV …
#     1435-1532  nested rows       Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1535-1810  rows              Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1813-2023  chat              Chat templates: their settings, rendering messages, and prompts that bypass a …
#     2026-2109  held out          Held-out prompts: split them off, and count or refuse those that also occur in …
#     2112-2237  prompts           Load training and held-out prompts as token ids
#     2240-2316  pass rates        Pass rates of prompts: pass@k, groups with signal, and advice: RL, a warm start, …
#     2319-2374  text servers      Completions from OpenAI-compatible servers, one per request, with retries if a …
#     2377-2587  user code         What users' rewards get: texts, copies of the columns, and their own state of the …
#     2590-2827  reward forms      The forms that a reward function may have, and loading rewards from files
#     2830-3149  rewards           The reward of a run, a weighted sum of functions; async ones run in one event …
#     3152-3199  whole models      Refuse what transformers would make a model of by guessing: missing weights, other …
#     3202-3414  adapters          LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     3417-3517  models            The networks of a run: their precision, the frozen reference, prompts that they …
#     3520-3586  tokenizers        Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     3589-3699  loading           Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, …
#     3702-3847  batches           Batches: masked statistics, padding, micro-batches, and packed layouts that hold a …
#     3850-4104  key cache         The key-value cache while sampling: it grows in blocks, holds shared prompts once, …
#     4107-4312  forward           The forward pass: attention that runs a shared prompt once, backbone, logits, …
#     4315-4435  faster layers     Faster forms of layers while sampling: LoRA folded into weights, norms in one …
#     4438-4648  cache probe       Probe what a model's cache and attention can do, before sampling and training rely …
#     4651-4733  room steps        One more token per row, with fixed shapes and addresses within the cache, as a …
#     4736-4945  sampling          Sampling with the policy itself: a KV cache, rows that leave the batch when they end
#     4948-5085  sync check        Check that a sampler has the policy's weights: checksums of each tensor, log-probs …
#     5088-5280  sampling vllm     Sampling with vLLM on the same GPU, and copying the weights into it
#     5283-5336  rollouts          Sample and score a batch's rows over all processes
#     5339-5345  losses            The KL to the reference, policy and value losses, and how losses per token become …
#     5348-5418  idle settings     Settings without effect in a configuration: named at the start, with what would …
#     5421-5467  trainer settings  Settings that several trainers have, with their defaults: a trainer's Config adds …
#     5470-5488  optimizer         The updates of a step: learning rates, gradients over the processes, clipping, …
#     5491-5764  memory            The memory that a run will need, from the shape of its networks
#     5767-5970  fit               Sizes that fit the memory: chosen and reported in one line, refused if too large; …
#     5973-6136  output folder     The output folder: which run owns it, folders written whole or not at all, modes …
#     6139-6166  checkpoints       The state of a run, checkpoints, resuming, the exported model
#     6169-6175  progress          A run's progress and log: evaluations, the end of each step, stopping by a signal, …
#     6178-6287  settings          Settings of the warm start, and contradictions between them
#     6290-6413  solutions         Prompts that may train, and their solutions as token ids with the end token
#     6416-6573  workshop          The tools of a run: the policy of a round, its sampler, its files, and the signal …
#     6576-6782  samples           Samples of a round: written in parts, filtered, and judged: can RL take over?
#     6785-6915  supervise         A round's training: TRL's SFTTrainer on token ids that are made here
#     6918-7147  run               The memory and the plan, the rounds, the handover to RL, and the command line

import argparse
import asyncio
import builtins
import codecs
import contextlib
import copy
import csv
import ctypes
import dataclasses
import datetime
import difflib
import errno
import fcntl
import functools
import gc
import gzip
import hashlib
import http.client
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import logging
import math
import os
import platform
import random
import re
import shlex
import shutil
import signal
import socket
import ssl
import statistics
import sys
import sysconfig
import threading
import time
import traceback
import unicodedata
import urllib.error
import urllib.request
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

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


FULL = re.compile(r"No space left|os error (28|122)\b|unexpected pos \d+|PytorchStreamWriter failed writing")
SHORT = re.compile(r"out of memory|not enough memory|(can't|cannot) allocate memory|_ALLOC_FAILED", re.IGNORECASE)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a full disk or quota, by errno or a library's message."""
    while error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


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
EMBEDDED_SPECS = [f"{EMBEDDED_REWARDS}:correctness_reward", f"{EMBEDDED_REWARDS}:format_reward*0.2"]


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


def has_embedded_data(data: str) -> bool:
    """Whether `data` is the embedded task's training file."""
    return Path(data).resolve() == Path(EMBEDDED_DATA)


def held_out_source(config) -> str:
    """--eval_data, or the embedded task's held-out file if its training file is used; "" for none."""
    return config.eval_data or (EMBEDDED_EVAL if has_embedded_data(config.data) else "")


def prompts_in(file: Path) -> set[str]:
    """The prompts of a JSONL file, each as JSON text."""
    return {json.dumps(json.loads(line)["prompt"]) for line in file.read_bytes().splitlines() if line.strip()}


def has_embedded_prompts(data: str) -> bool:
    """Whether all prompts of a file occur in the embedded task's files."""
    try:
        left = prompts_in(Path(data))
        for file in sorted(Path(EMBEDDED_DATA).parent.glob("*.jsonl")):
            left -= prompts_in(file)
            if not left:
                return True
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return False


def specs_for(data: str, specs: list[str]) -> list[str]:
    """The given reward specs, by default those of the embedded task; UserError for other data without a reward."""
    need(
        specs or has_embedded_prompts(data),
        "got --data without a reward; expected one that fits it; try --reward FILE.py:function",
    )
    return specs or EMBEDDED_SPECS


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
OPTIMIZER_STEPS = {"max_steps", "save_steps", "eval_steps"}  # TRL counts these in optimizer steps, we in rollouts


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


def check_units(settings: dict, words: list[str]) -> None:
    """Raise UserError for TRL's names whose unit differs from ours under these settings.

    TRL's steps are optimizer steps, ours are rollouts. Its cispo bounds the weight itself, ours its distance from 1.
    """
    values = flag_values(words)
    passes = "ppo_epochs" if "ppo_epochs" in settings else "epochs"
    updates = settings.get(passes, 1) * settings.get("minibatches", 1) if "minibatches" in settings else 1
    for name in sorted(OPTIMIZER_STEPS & values.keys() - settings.keys()):
        own_key = own_name(name, settings)
        got = f"got --{name} {values[name]}, in optimizer steps"
        many = f"{passes} {settings.get(passes)} x minibatches {settings.get('minibatches')} of them"
        share = max(1, int(values[name]) // updates) if values[name].isdigit() else "N"
        need(
            updates == 1 or not own_key,
            f"{got}; expected --{own_key}, whose steps are {many} each; try --{own_key} {share}",
        )
    ours = settings.get("loss") == "cispo"
    others = {"epsilon", "epsilon_high"} if ours else {"clip_eps_low", "clip_eps_high"}
    mixed = sorted(others & values.keys()) if "cispo" in (settings.get("loss"), settings.get("loss_type")) else []
    names = ["--" + own_name(name, settings) for name in mixed]
    text = f"got --{', --'.join(mixed)} with cispo; expected {', '.join(names)}: epsilon_high = 1 + clip_eps_high"
    need(not mixed, text)


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


class BaseConfig:
    """Base of every program's Config. It has defaults for fields that parts read and some programs lack."""

    given = frozenset()  # names of the settings on the command line or in its YAML file
    decode_graphs = True  # a setting of programs that sample in every step
    attn_implementation = "auto"  # a setting of programs that train or evaluate
    share_prompts = False  # of those that train without a library's trainer
    eval_rows = hold_out = 0  # of those that evaluate while training
    threads = "auto"  # of those that compute on a CPU


def setting(default, help, choices=None, positive=False, free=False, several=False, auto=False, section=""):
    """A dataclass field that carries its help text; with a list as default the flag may be repeated.

    Args:
        choices: a list, or a function that returns one if the names are defined later in the file.
        positive: the number must be above 0; other numbers may be 0.
        free: may change on --resume.
        several: one flag takes several values.
        auto: the number may be `auto`: what memory holds, up to the default (0: up to a process's share of a step).
        section: heading in --help for the settings from this one on.
    """
    value = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    kinds = {"positive": positive, "free": free, "several": several, "auto": auto, "section": section}
    return field(metadata={"help": help, "choices": choices, **kinds}, **value)


def in_order(**after):
    """Class decorator that orders inherited and new settings: `b="a"` puts b after a; others follow the one above.

    Settings of a second base class count as new ones, above the class's own. The order applies to --help, the YAML
    template and saved settings.
    """

    def decorate(config_class):
        fields = config_class.__dataclass_fields__
        first, *mixins = config_class.__bases__
        order = list(first.__dataclass_fields__)
        new, previous = [name for mixin in mixins for name in mixin.__dataclass_fields__], order[-1]
        for name in (*new, *config_class.__annotations__):
            if name not in order or name in after:
                order = [other for other in order if other != name]
                before = after.get(name, previous)
                order.insert(order.index(before) + 1 if before else 0, name)
            previous = name
        config_class.__dataclass_fields__ = {name: fields[name] for name in order}
        return config_class

    return decorate


def parse_bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"got {text!r}; expected true or false")


def parse_auto(text: str) -> int | None:
    """Parse a whole number, or `auto` as None."""
    try:
        return None if text.lower() == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a whole number or auto") from None


METAVARS = {bool: "BOOL", int: "N", float: "X"}
EXPECTED = {int: "a whole number", float: "a number", parse_bool: "true or false", parse_auto: "a whole number or auto"}


def build_parser(config_class, description: str) -> argparse.ArgumentParser:
    """A parser with one flag per field of `config_class`, grouped by section; flags that are not given stay absent."""
    usage = "%(prog)s [--flag value ...]    (--help has all flags)"  # the full list would bury an error message
    parser = argparse.ArgumentParser(usage=usage, description=description, formatter_class=Help, allow_abbrev=False)
    group, hidden = parser, argparse.SUPPRESS
    parser.add_argument("--config", metavar="FILE", default=hidden, help="YAML file of settings; flags win over it")
    for f in dataclasses.fields(config_class):
        repeat, is_bool = f.type == list[str], f.type is bool
        default = [] if repeat else f.default
        choices = f.metadata["choices"]() if callable(f.metadata["choices"]) else f.metadata["choices"]
        auto = f.metadata["auto"]
        shown = "that of --algorithm" if default is None else default
        shown = f"auto: what memory holds, at most {default or 'its share of a step'}" if auto else shown
        explained = default == 0 and not is_bool and "0:" in f.metadata["help"]
        untold = repeat or default == "" or (explained and not auto)
        text = f.metadata["help"].replace("%", "%%") + ("" if untold else f" (default: {shown})")
        several = {"action": "extend", "nargs": "+"} if f.metadata["several"] else {"action": "append"}
        switch = {"nargs": "?", "const": True if is_bool else "true"} if is_bool or "true" in (choices or ()) else {}
        group = parser.add_argument_group(f.metadata["section"]) if f.metadata["section"] else group
        group.add_argument(
            f"--{f.name}",
            type=str if repeat else parse_bool if is_bool else parse_auto if auto else f.type,
            choices=choices,
            default=hidden,
            metavar=None if choices else METAVARS.get(f.type, f.name.upper().split("_")[-1]),
            help=text,
            **(several if repeat else switch),
        )
    return parser


def yaml_flags(path: str, names: list[str], lists: list[str] | None = None) -> list[str]:
    """Convert a flat YAML mapping to flags, so that it passes the same checks as the command line.

    Keys keep their names, also synonyms. `lists`: the settings that may have several values; None: any.
    """
    import yaml

    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        settings = yaml.safe_load(text) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"got --config {path}: {' '.join(str(error).split())}; expected a readable YAML file") from None
    need(isinstance(settings, dict), f"got --config {path} without 'key: value' lines; expected some")
    keys = [key.value for key, _ in getattr(yaml.compose(text), "value", [])]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    need(not twice, f"{path}: got the key {twice!r} twice; expected each once")
    flags, texts = [], {str(key): str(value) for key, value in settings.items()}
    unknown = [key for key in texts if not own_name(key, names)]
    near = [relation(key, names, texts) or suggest(key, names, 0.7).removeprefix("; ") for key in unknown]
    got = f"{path}: got unknown key{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}"
    need(not unknown, "; ".join([f"{got}; expected settings of --help", *filter(None, dict.fromkeys(near))]))
    for key, value in settings.items():
        known = own_name(str(key), names)
        need(value is not None, f"{path}: got no value for {key!r}; expected one; try leaving the line out")
        values = value if isinstance(value, list) else [value]
        fits = len(values) < 2 or lists is None or known in lists
        need(fits, f"{path}: got a list of values for {key!r}; expected one")
        for item in values:
            item = json.dumps(item) if isinstance(item, dict) else item
            item = str(Path(item).expanduser()) if str(item).startswith("~/") else item  # as a shell has it
            flags.append(f"--{key}={'true' if item is True else 'false' if item is False else item}")
    return flags


def check_file(path: str, words: list[str], parser: argparse.ArgumentParser) -> None:
    """Raise UserError for the value of a settings file that its setting cannot have; argparse would name a flag."""
    names = flags_of(parser)
    for word in words:
        key, _, text = word.removeprefix("--").partition("=")
        action, got = parser._option_string_actions[f"--{own_name(key, names)}"], f"{path}: got {key} {text!r}"
        try:
            value = action.type(text)
        except (ValueError, argparse.ArgumentTypeError):
            raise UserError(f"{got}; expected {EXPECTED[action.type]}") from None
        known = action.choices or [value]
        need(value in known, f"{got}; expected one of {', '.join(map(str, known))}")


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


def parse_settings(argv: list[str], config_class, description: str):
    """The settings of a command line: defaults, overridden by --config, overridden by flags."""
    parser, fields = build_parser(config_class, description), dataclasses.fields(config_class)
    names, lists = [f.name for f in fields], [f.name for f in fields if f.type == list[str]]
    for flag in ("--data", "--eval_data"):
        if sum(word.split("=")[0].replace("-", "_") == flag.replace("-", "_") for word in argv) > 1:
            say(f"note: {flag} is given more than once and the last one counts; data_loader.py joins files")
    path = flag_values(argv).get("config")
    unset = {f"--{f.name}=" for f in fields if f.metadata["choices"] and f.default == ""}  # as in a run's config.json
    words = [word for word in yaml_flags(path, names, lists) if word not in unset] if path else []
    check_file(path, words, parser)
    in_file = vars(parser.parse_args(in_own_words(words, names)))
    flags = vars(parse_flags(parser, argv, in_file))
    flags.pop("config", None)
    given = {name: value for name, value in {**in_file, **flags}.items() if value is not None}  # None is auto
    if given.get("report_to") == ["none"]:  # TRL's word for it
        del given["report_to"]
    config = config_class(**given)
    config.given = frozenset(given)
    check_units(dataclasses.asdict(config), [*words, *argv])
    return config


def check_values(config: BaseConfig, *required: str) -> None:
    """Raise UserError for a number out of range, an unknown choice in a Config from Python, an empty required value.

    Numbers must be finite and at least 0, above 0 where their setting is `positive`.
    """
    for f in dataclasses.fields(config):
        value, choices = getattr(config, f.name), f.metadata.get("choices")
        choices = choices() if callable(choices) else choices
        fits = not choices or value in (None, f.default) or isinstance(value, list) or value in choices
        need(fits, f"got {f.name} {value!r}; expected one of {', '.join(map(str, choices or []))}")
        if isinstance(value, int | float):
            positive = f.metadata["positive"]
            ok = math.isfinite(value) and (value > 0 if positive else value >= 0)
            need(ok, f"got {f.name} {value}; expected {'more than 0' if positive else '0 or more'}")
            need(f.name != "seed" or value < 2**32, f"got seed {value}; expected less than 2^32, as numpy does")
        need(value or f.name not in required, f"got an empty {f.name}; expected a value; try leaving --{f.name} out")


def free_on_resume(config) -> set[str]:
    return {f.name for f in dataclasses.fields(config) if f.metadata["free"]}


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)

GRACE_S = 5.0  # seconds for cleanup after a KeyboardInterrupt, before the process is ended by force
WAIT = datetime.timedelta(minutes=30)  # longest wait of a process for the others, whose rollouts may take longer
CGROUPS = Path("/sys/fs/cgroup")
SLOWER = 3.0  # ratio of a step's time to the fastest one's from which other programs may have taken the cores
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # from glibc's malloc.h
LOCKS = []  # open files; the system holds their locks until the run or the process ends
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


def is_first() -> bool:
    """Whether this is the first process of a launch, or the only one; also before the processes have a group."""
    return int(os.environ.get("RANK", world()[0])) == 0


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


@contextlib.contextmanager
def room_for(phase: str, advice: str, before_update: bool = False) -> Iterator[None]:
    """Context that turns running out of memory into a MemoryShortage with the phase and advice."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise memory_shortage(phase, error, advice, before_update) from error


def leave_processes() -> None:
    """Leave the process group, if any; every process must call it, as NCCL waits for the others."""
    if world()[1] > 1:
        torch.distributed.destroy_process_group()


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


def exit_code(
    run,
    mend: str = "fix it and try --resume",
    stopped: str = "stopped at once; if a checkpoint was saved, --resume continues from it",
) -> int:
    """Call run() and return its exit code, or that of the error that ended it.

    Args:
        mend: advice after an OSError, such as a full disk.
        stopped: message after Ctrl-C.
    """
    try:
        code = run()
    except BaseException as error:
        code = code_of(error, mend, stopped)
        if world()[1] > 1:  # other processes may wait for this one in a sum, and leaving NCCL would wait for them
            end_at_once(code)
        return code
    finally:
        say_once.cache_clear()  # a notebook's process outlives the run
        while LOCKS:
            LOCKS.pop().close()
    leave_processes()
    return code


def code_of(error: BaseException, mend: str, stopped: str) -> int:
    """Print the error that ended a run and return its exit code; a single process re-raises unknown errors."""
    if isinstance(error, KeyboardInterrupt):
        say(stopped)
        if __name__ == "__main__":  # threads and pools of a reward may never end
            end_at_once(130)
        return 130
    code = 2
    if isinstance(error, UserError):
        text, code = error, error.code
    elif isinstance(error, Exception) and is_out_of_memory(error):
        text = memory_shortage("in this program", error, "a smaller model or batch, or a machine with more")
    elif is_disk_full(error):
        got = f"no space left on the disk ({str(error).partition(chr(10))[0]})"
        text = f"got {got}; expected to read and write files; {mend}"
    elif isinstance(error, OSError):
        text = f"got {error}; expected to read and write files; {mend}"
    elif world()[1] == 1:
        raise error
    else:
        traceback.print_exception(error)
        return 1
    print(f"error: {text}", file=sys.stderr, flush=True)
    return code


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


def placed_json_lines(path: Path) -> list[tuple[str, dict]]:
    """(`FILE:LINE`, row) of each row of JSONL; a broken line raises UserError with its place (blank lines count)."""
    rows = []
    with open_text(str(path), "jsonl")[0] as stream:
        for line, row in json_lines(stream):
            need(not isinstance(row, RowFlaw), f"{path}:{line}: {row}")
            rows.append((f"{path}:{line}", row))
    return rows


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


# ------------------------------------------------------------------------------- held out (src/parts/data/held_out.py)

OPERAND, WORDS = r"(\d++(?:\.\d++)?+)", r"plus|minus|times|by"
PAIR = re.compile(  # a sum or product of exactly two numbers, in a text of `asked_words`
    rf"(?<![\d.+*×·/^-])(?<!plus)(?<!minus)(?<!times)(?<!by){OPERAND}([+*×·]|plus|times){OPERAND}"
    rf"(?!(?:[-+*×·/^]|{WORDS})\d)"
)


def asked_words(prompt) -> str:
    """Normalised text of a prompt: without case, white space, Unicode variants and system messages."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = [message for message in messages if message["role"] not in ("system", "developer")] or messages
    texts = [unicodedata.normalize("NFKC", str(message["content"])).casefold() for message in asked]
    return "\n".join("".join(text.split()) for text in texts)


def task_of(row: dict, with_columns: bool) -> tuple[str, str]:
    """Key that identifies a row's task: its prompt, and its columns where an environment makes tasks from them."""
    columns = json.dumps(row["columns"], sort_keys=True, default=str) if with_columns else ""
    return asked_words(row["prompt"]), columns


def mirrored(asked: str) -> str:
    """The question with the two numbers of its sum or product swapped; "" unless it has exactly one such pair.

    >>> mirrored("whatis3+41?")
    'whatis41+3?'
    """
    return PAIR.sub(r"\3\2\1", asked) if len(PAIR.findall(asked)) == 1 else ""


def of_swapped(held_out: list[str], trained: set[str]) -> str:
    """A note on how many held-out questions swap the numbers of a training question; "" if none do."""
    count = sum(mirrored(asked) in trained for asked in held_out)
    return f"; {count} of them swap the numbers of a training question (a+b, b+a)" if count else ""


def drawn_tasks(tasks: list, count: int, seed: str = "") -> set:
    """Draw from the rows' tasks some with at most `count` rows together, by a hash of task and seed in any order."""
    sizes, drawn, rows = Counter(tasks), set(), 0
    for task in sorted(sizes, key=lambda task: hashlib.sha256(f"{seed}{task!r}".encode()).digest()):
        if rows + sizes[task] <= count:
            drawn.add(task)
            rows += sizes[task]
    return drawn


def hold_out(config, rows: list[dict]) -> tuple[list[dict], list[dict]]:
    """(training rows, at most `config.hold_out` rows for evaluation); rows of one task stay together."""
    got, fewer = f"got --hold_out {config.hold_out}", f"try --hold_out {len(rows) // 10 or 1}, or more rows"
    need(config.hold_out > 0, f"{got}; expected more than 0; {fewer}")
    need(not config.eval_data, f"{got} beside --eval_data {config.eval_data}; expected only one of them")
    none_left = f"{got} with {len(rows)} rows in {config.data}, which leaves none for training; expected fewer"
    need(config.hold_out < len(rows), f"{none_left}; {fewer}")
    tasks = [task_of(row, bool(getattr(config, "environment", ""))) for row in rows]
    drawn = drawn_tasks(tasks, config.hold_out)
    larger = "expected several prompts and a larger number, as all rows of a prompt stay together"
    need(drawn, f"{got} with {len(rows)} rows of {len({*tasks})} prompts in {config.data}; {larger}")
    parts = [[row for row, task in zip(rows, tasks, strict=True) if (task in drawn) == side] for side in (False, True)]
    also = of_swapped([task[0] for task in tasks if task in drawn], {asked for asked, _ in {*tasks} - drawn})
    say(f"held out: {len(parts[1])} of {len(rows)} rows of {config.data}, the same ones for every seed{also}")
    return parts[0], parts[1]


def split_command(data: str) -> str:
    """The command that holds out a tenth of a file."""
    return f"`python {in_bundle('scripts/data_loader.py')} {data} --split 0.1 --out part.jsonl`"


def mark_trained(config, rows: list[dict], held_out: list[dict]) -> None:
    """Set `trains` in held-out rows that also train, and warn; UserError if all do, unless --allow_overlap is given."""
    with_columns = bool(getattr(config, "environment", ""))
    trained = {task_of(row, with_columns) for row in rows}
    for row in held_out:
        row["trains"] = task_of(row, with_columns) in trained
    count, total = sum(row["trains"] for row in held_out), len(held_out)
    got = f"got --eval_data {config.eval_data}, whose {total} evaluation prompts all occur in --data {config.data} too"
    expected = "expected prompts that are not trained on, or the accuracy says nothing about learning"
    split = f"{split_command(config.data)}, which writes part.eval.jsonl too"
    advice = f"{expected}; try {split}, or --allow_overlap to measure memorization"
    need(not count or count < total or config.allow_overlap, f"{got}; {advice}")
    if count:
        say(f"warning: {count} of {total} evaluation prompts also occur in training; the accuracy is inflated")


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


def load_splits(config: BaseConfig, tokenizer, check=mark_trained) -> tuple[list[dict], list[dict]]:
    """(training rows, held-out rows for evaluations); `check(config, rows, held_out)` compares the two."""
    rows, held_out = load_prompts(config, tokenizer, config.data), []
    if config.hold_out:
        rows, held_out = hold_out(config, rows)
    elif source := held_out_source(config):
        held_out = load_prompts(config, tokenizer, source)
    evaluated = evaluated_rows(config, held_out)
    check(config, rows, evaluated)
    return rows, evaluated


def evaluated_rows(config: BaseConfig, rows: list) -> list:
    """Draw `eval_rows` held-out rows (0: all), in their order; every run draws the same ones, so that runs compare."""
    if not 0 < config.eval_rows < len(rows):
        return rows
    say(f"held-out: {config.eval_rows} of {len(rows)} rows, the same in every evaluation; --eval_rows 0 takes all")
    picked = np.random.default_rng(0).permutation(len(rows))[: config.eval_rows]
    return [rows[i] for i in sorted(picked.tolist())]


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


# -------------------------------------------------------------------- text servers (src/parts/rewards/text_servers.py)


def is_server(source: str) -> bool:
    """Whether a model is behind HTTP."""
    return source.startswith(("http://", "https://"))


def server_json(url: str, body: dict | None, hint: str, tries=5, timeout: float = 600, wait: float = 0.5) -> dict:
    """The JSON answer to a GET (no body) or a POST; retried if the server is busy or the connection is lost.

    Raises:
        UserError: no try got an answer; the message ends with `hint`.
    """
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    for attempt in range(tries):
        time.sleep(min(30.0, wait * 2 ** (attempt - 1)) if attempt else 0)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            problem = f"{error} {error.read()[:200]!r}"
            if error.code not in (408, 425, 429) and error.code < 500:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = str(error)
    raise UserError(f"got {problem} from {url}; expected an answer; {hint}")


def server_text(base_url: str, prompt: str | list[dict], body: dict, hint: str) -> tuple[str, str | None, int | None]:
    """One completion: messages go to /chat/completions, text to /completions.

    Args:
        body: model, max_tokens, temperature and further fields of the request.

    Returns:
        (text, the server's finish_reason, its count of tokens or None).
    """
    chat = isinstance(prompt, list)
    if chat and prompt[-1]["role"] == "assistant":  # have vLLM and SGLang continue that message
        body = body | {"add_generation_prompt": False, "continue_final_message": True}
    url = base_url.rstrip("/") + ("/chat/completions" if chat else "/completions")
    answer = server_json(url, body | {"messages" if chat else "prompt": prompt}, hint)
    try:
        choice = answer["choices"][0]
        said = choice["message"] if chat else {"content": choice["text"]}
        text = said["content"] or ""
        text = text if isinstance(text, str) else "".join(part["text"] for part in text)
    except (KeyError, IndexError, TypeError):
        raise UserError(f"got {str(answer)[:200]} from {url}; expected choices with text; {hint}") from None
    if said.get("reasoning_content") or said.get("reasoning"):
        say_once(f"warning: {base_url} returns its thinking apart from its text; try it without a reasoning parser")
    return text, choice.get("finish_reason"), (answer.get("usage") or {}).get("completion_tokens")


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


def call_limits(config) -> CallLimits:
    return CallLimits(config.reward_timeout, config.reward_concurrency, config.reward_retries)


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


def settle_model(config: BaseConfig) -> None:
    """Make config.model an absolute path, and take rank and alpha from an adapter, whose training continues."""
    if Path(config.model).is_dir():
        config.model = str(Path(config.model).resolve())  # saved adapters name their base by it
    settings = adapter_settings(config.model)
    for name, key in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")) if settings else ():
        given, of_adapter = getattr(config, name), settings[key]
        got = f"got --{name} {given:g} with the adapter {config.model!r} of {name} {of_adapter:g}"
        advice = f"--{name} {of_adapter:g}, or for a new adapter merge this one: {merge_command(config.model)}"
        need(given in (0, of_adapter), f"{got}; expected the same, as it is trained on; try {advice}")
        setattr(config, name, type(given)(of_adapter))


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


def merged(model):
    """Merge a network's adapter into its weights; a plain network is returned as it is."""
    if not hasattr(model, "merge_and_unload"):
        return model
    untie(model)
    plain = model.merge_and_unload()
    note_untied(plain)
    return plain


def untie(model) -> None:
    """Give the output layer its own weights if it shares them with the embeddings and LoRA changes either layer."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = [model.get_base_model().get_input_embeddings(), model.get_base_model().get_output_embeddings()]
    tuned = [isinstance(layer, BaseTunerLayer) for layer in ends]
    first, last = (layer.get_base_layer() if t else layer for layer, t in zip(ends, tuned, strict=True))
    if any(tuned) and first.weight is last.weight:
        last.weight = torch.nn.Parameter(last.weight.detach().clone())


def note_untied(model) -> None:
    """Set tie_word_embeddings to false if the output layer has its own weights, so that other programs load them."""
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        model.config.tie_word_embeddings = False


def save_network(model, folder: Path) -> None:
    """Save a plain network, or only the trained adapter of one under LoRA."""
    model.save_pretrained(folder, **({"selected_adapters": ["default"]} if hasattr(model, "peft_config") else {}))


def add_lora(model, config: BaseConfig):
    """Wrap a network in new LoRA adapters on all linear layers that support them, unless it has adapters already."""
    from peft import LoraConfig, get_peft_model

    if hasattr(model, "peft_config"):
        return model
    modules = {name: type(module).__name__ for name, module in model.named_modules()}
    broken = [name for name, kind in modules.items() if kind == "Llama4Router"]  # returns a pair
    broken += [name for name in modules if name.endswith(("mamba.out_proj", "mixer.out_proj"))]  # kernels read weights
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        target_modules="all-linear",
        exclude_modules=broken or None,
        fan_in_fan_out="Conv1D" in modules.values(),  # GPT-2 stores weights transposed
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=RENAMED)
        adapted = get_peft_model(model, lora).eval()
    bare = [p for name, p in adapted.named_parameters() if re.search(r"\.experts\.\w+$", name)]
    share = sum(p.numel() for p in bare) / sum(p.numel() for p in adapted.parameters())
    if share >= 0.01:
        say(f"note: LoRA does not adapt the experts of {type(model).__name__}, {share:.0%} of its weights")
    return adapted


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


def save_tokenizer(tokenizer, folder: Path) -> None:
    """Save a tokenizer of `load_tokenizer` with the padding and truncation that it was loaded with."""
    backend, (padding, truncation) = getattr(tokenizer, "backend_tokenizer", None), tokenizer.files_ask_for
    if backend:
        backend.enable_padding(**padding) if padding else backend.no_padding()
        backend.enable_truncation(**truncation) if truncation else backend.no_truncation()
    tokenizer.save_pretrained(folder)


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

# attention kinds of transformers; auto leaves the choice to it: sdpa if the architecture supports it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


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


def shaped_network(config: BaseConfig, source: str):
    """A causal network on the meta device, with shapes but no weights; UserError if transformers cannot build it."""
    try:
        shape = transformers.AutoConfig.from_pretrained(base_of(source), trust_remote_code=False)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(shape, **attention_choice(config))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise load_error(config, source, error) from error


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


def load_policy(config: BaseConfig, device, saved: Path | None):
    """The network to be trained, from the checkpoint folder `saved` if given, else from config.model."""
    policy = load_network(transformers.AutoModelForCausalLM, str(saved or config.model), config, device)
    return add_lora(policy, config) if config.lora_rank else policy


def generation_settings(source: str):
    """A model's generation settings, from generation_config.json or else from config.json."""
    try:
        return transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # no such file
        return transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(source))


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)

OVERHEAD = 0.125  # cost in tokens of a cell (rows x columns) of a packed pass, as every row reads its prompt's keys


def cost_of_pass(tokens: int, cells: int) -> float:
    """Cost of a forward pass in tokens: that of a packed line of `tokens`, or of all rows x columns if this is less."""
    return min(tokens + OVERHEAD * cells, cells)


def same_prompts(piece: dict) -> tuple:
    """Find the rows that share a prompt.

    Returns:
        (first column in which a token was sampled: prompts stand before it, index [B] of each row's distinct prompt,
        row [n] in which each distinct prompt first occurs).
    """
    start = int(piece["response_mask"].any(0).long().argmax())
    which = torch.zeros_like(piece["input_ids"][:, 0])
    if start:
        beginnings = piece["input_ids"].masked_fill(piece["attention_mask"] == 0, -1)[:, :start]
        which = torch.unique(beginnings, dim=0, return_inverse=True)[1]
    order = torch.arange(len(which), device=which.device)
    first = torch.full_like(which, len(which)).scatter_reduce(0, which, order, "amin")
    return start, which, first[first < len(which)]


@dataclass
class Layout:
    """How the tokens of rows [B, T] are packed into one line of N tokens, without pads and without last tokens.

    The line has either whole texts, or the n distinct prompts followed by the responses. Tables hold places in the
    line, from 0 to N - 1, and N where there is no token.
    """

    ids: object  # [N]
    positions: object  # [N], position in its text, from 0
    prompts: object  # [n, P], tokens that attend within their row only: distinct prompts, or whole texts
    responses: object  # [B, C], tokens that also attend to their prompt; C is 0 if the line has whole texts
    texts: object  # [B, P + C], each row's prompt and, from column P on, its response
    back: object  # [N], index of each token in flattened `prompts` + `responses`; None if the line is `prompts`
    predicting: object  # [B, T], for each sampled token the place of the token before it
    seen: object  # [B or 1, 1, C, P + C], whether a response token attends to a text token
    masks: dict = field(default_factory=dict)

    @functools.cached_property
    def kept(self):
        """Unique places [M] in `predicting`, in order: only there are the last layer's states needed."""
        needed = torch.zeros(len(self.ids) + 1, dtype=torch.bool, device=self.ids.device)
        needed[self.predicting.flatten()] = True
        return needed[:-1].nonzero().squeeze(1)

    def added_to_scores(self, dtype):
        """Additive attention mask [B or 1, 1, C, P + C]: 0 where seen, else -inf. It is made once for all layers."""
        if dtype not in self.masks:
            zeros = torch.zeros(self.seen.shape, dtype=dtype, device=self.seen.device)
            self.masks[dtype] = zeros.masked_fill_(~self.seen, -math.inf)
        return self.masks[dtype]


def places_in_line(lengths, before: int, total: int):
    """Places [rows, longest] of consecutive texts with `lengths` [rows] after `before` tokens; pads get `total`."""
    columns = torch.arange(int(lengths.max()), device=lengths.device)
    starts = before + lengths.cumsum(0) - lengths
    return torch.where(columns < lengths[:, None], starts[:, None] + columns, total)


def layout_of(piece: dict, longest: float) -> Layout | None:
    """The cheaper layout of rows [B, T]; None if there are no prompts, or if a row is longer than `longest` tokens."""
    start, which, first = same_prompts(piece)
    mask = piece["attention_mask"].bool()
    lengths = mask.sum(1)
    if not start or int(lengths.max()) > longest:
        return None
    tokens, cells = int(lengths.sum()) - len(lengths), len(lengths) * (int(lengths.max()) - 1)
    once = tokens - int(mask[:, :start].sum()) + int(mask[first, :start].sum())
    if cost_of_pass(once, mask.numel()) < cost_of_pass(tokens, cells):
        return layout_of_rows(piece, start, which, first)
    every = torch.arange(len(mask), device=mask.device)
    return layout_of_rows(piece, mask.shape[1], every, every)


def layout_of_rows(piece: dict, start: int, which, first) -> Layout:
    """The layout that holds each distinct prompt once; further arguments are the result of `same_prompts`.

    Where `start` is T, the prompts are whole texts, and there are no responses.
    """
    ids, mask = piece["input_ids"], piece["attention_mask"].bool()
    (rows, columns), device = ids.shape, ids.device
    followed = mask & torch.nn.functional.pad(mask[:, 1:], (0, 1))  # all but each text's last token
    of_prompt, of_response = (followed if start == columns else mask)[first, :start], followed[:, start:-1]
    lengths, replies = of_prompt.sum(1), of_response.sum(1)
    before, total = int(lengths.sum()), int(lengths.sum() + replies.sum())
    prompts, responses = places_in_line(lengths, 0, total), places_in_line(replies, before, total)
    reach = responses.shape[1]
    line = torch.stack([ids, mask.cumsum(1) - 1])
    line = torch.cat([line[:, first, :start][:, of_prompt], line[:, :, start:-1][:, of_response]], dim=1)
    places = torch.full_like(ids, total)  # of each token in the line
    places[:, :start] = places[first, :start].masked_scatter(of_prompt, torch.arange(before, device=device))[which]
    places[:, start:-1].masked_scatter_(of_response, torch.arange(before, total, device=device))
    sees = torch.ones(reach, reach, dtype=torch.bool, device=device).tril().expand(rows, -1, -1)
    seen = torch.cat([(prompts < total)[which, None].expand(-1, reach, -1), sees], dim=2)[:, None]
    back = torch.cat([(table < total).flatten() for table in (prompts, responses)]).nonzero().squeeze(1)
    no_pads = bool((lengths == prompts.shape[1]).all())
    return Layout(
        ids=line[0],
        positions=line[1],
        prompts=prompts,
        responses=responses,
        texts=torch.cat([prompts[which], responses], dim=1),
        back=back if reach or not no_pads else None,
        predicting=places.roll(1, dims=1).masked_fill(piece["response_mask"] == 0, total),
        seen=seen[:1] if no_pads else seen,
    )


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Pad sequences on the left; returns (input_ids, attention_mask), both [B, T]."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


def collate(samples: list[dict], pad_id: int, device) -> dict:
    """Stack samples: prompts padded on the left, responses on the right, so every response starts in one column.

    Without a `response_mask` of its own, all of a sample's response counts as sampled.
    """
    prompt_ids, prompt_mask = left_pad([s["prompt_ids"] for s in samples], pad_id, device)
    width = max(len(s["response_ids"]) for s in samples)

    def right_pad(key, fill, dtype):
        return torch.tensor([s[key] + [fill] * (width - len(s[key])) for s in samples], dtype=dtype, device=device)

    response_ids = right_pad("response_ids", pad_id, torch.long)
    lengths = torch.tensor([len(s["response_ids"]) for s in samples], device=device)
    response = (torch.arange(width, device=device) < lengths[:, None]).long()
    sampled = [s.get("response_mask", [1] * len(s["response_ids"])) for s in samples]
    response_mask = torch.tensor([m + [0] * (width - len(m)) for m in sampled], device=device)
    return {
        "input_ids": torch.cat([prompt_ids, response_ids], dim=1),
        "attention_mask": torch.cat([prompt_mask, response], dim=1),
        "response_mask": torch.cat([torch.zeros_like(prompt_mask), response_mask], dim=1),
        "rollout_logprobs": torch.cat([prompt_mask * 0.0, right_pad("rollout_logprobs", 0.0, torch.float32)], dim=1),
    }


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


def rows_at(x, places, empty: bool = False):
    """Rows of x [N, ...] at places [...]. Place N gives the last row, or zeros with `empty`.

    The backward pass sums equal places in a fixed order.
    """
    padding = len(x) if empty else None
    x = torch.cat([x, x.new_zeros(1, *x.shape[1:])]) if empty else x
    rows = torch.nn.functional.embedding(places.clamp(max=len(x) - 1), x.flatten(1), padding_idx=padding)
    return rows.view(*places.shape, *x.shape[1:])


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


def logprobs_and_entropy(logits_fn, hidden, targets, temperature: float, chunk: int, entropy_grad: bool = False):
    """Log-prob of each target and entropy of its distribution, without holding all logits at once.

    Args:
        logits_fn: maps hidden states [n, H] to logits [n, V].
        hidden: [N, H], the states that predict the targets.
        targets: [N] token ids.
        temperature: logits are divided by it.
        chunk: rows of `hidden` per piece; several pieces are recomputed in the backward pass.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        (logprobs [N], entropy [N]), in float32 or wider.
    """

    def piece(h, t):
        logprobs = torch.log_softmax(tempered(logits_fn(h), temperature), dim=-1)  # [n, V]
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, t[:, None]).squeeze(-1), entropy

    if len(hidden) <= chunk:
        return piece(hidden, targets)
    pieces = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    if torch.is_grad_enabled():
        parts = [torch.utils.checkpoint.checkpoint(piece, h, t, use_reentrant=False) for h, t in pieces]
    else:
        parts = [piece(h, t) for h, t in pieces]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


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


def line_states(model, layout: Layout):
    """Run a packed line; returns the hidden states [B, T, H] that predict the sampled tokens, 0 elsewhere."""
    out = below_the_head(model)(
        input_ids=layout.ids[None],
        position_ids=layout.positions[None],
        attention_mask=layout.ids.new_zeros(1, 1, 1, 1),  # 4D: transformers builds no mask
        use_cache=False,
        layout=layout,
    )
    return rows_at(out.last_hidden_state[0], layout.predicting, empty=True)


def predicting_states(model, piece: dict):
    """Hidden states [B, T, H] that predict each token: entry t is the state after token t - 1 (entry 0 is unused).

    If `share_prompts` has enabled it, no pad is run, and a shared prompt runs once where that saves time. States that
    predict tokens that were not sampled are then 0.
    """
    longest = length_that_shares(model)
    layout = layout_of(piece, longest) if longest else None
    if layout:
        return line_states(model, layout)
    hidden = plain_states(model, piece["input_ids"], piece["attention_mask"])
    return torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)


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


def rng_state() -> dict:
    """State of every random generator that a reward function could use; training itself draws from seeds and steps."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_rng(states: dict) -> None:
    """Put the states back; those of GPUs where there are as many as there were."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]])


@contextlib.contextmanager
def untouched_generators(seed: int | None = None) -> Iterator[None]:
    """Seed the generators for the block with `seed`, of 32 bits, and restore them after it."""
    states = rng_state()
    try:
        if seed is not None:
            for set_seed in (random.seed, np.random.seed, torch.manual_seed):
                set_seed(seed)
        yield
    finally:
        restore_rng(states)


# ----------------------------------------------------------------------- sync check (src/parts/sampling/sync_check.py)


class StaleSamplerError(UserError):
    """The sampler does not have the policy's weights."""

    code = 5


def checksums(x, dtype):
    """Sum and sum of squares of a tensor's elements as `dtype` has them, [2] in float64.

    Neither depends on the elements' order, and both add up over tensors that a sampler keeps as one.
    """
    total = torch.zeros(2, dtype=torch.float64, device=x.device)
    for piece in x.detach().flatten().split(2**24):  # a float64 copy of a vocabulary's weights would be gigabytes
        piece = piece.to(dtype).double()
        total += torch.stack([piece.sum(), piece.square().sum()])
    return total


def same_checksums(a, b, count: int) -> bool:
    """Whether two checksums of `count` elements agree up to the rounding of float64 sums; NaN does not."""
    largest = max(a[1].item(), b[1].item())
    sums = abs(a[0] - b[0]).item() <= 1e-12 * (count * largest) ** 0.5  # at least 1e-12 sum |x|
    return sums and abs(a[1] - b[1]).item() <= 1e-12 * largest


def held_by(layer, name: str, dtype):
    """A parameter as a layer of vLLM computes with it; None where it is rounded or packed beyond recognition.

    On a CPU vLLM packs the matrices of linear layers away, or keeps a packed copy beside the output layer's; what such
    a layer makes of one-hot inputs is exact.
    """
    x = layer._parameters[name]
    packed = name == "weight" and hasattr(layer, "cpu_linear")
    if packed and not x.numel():
        width = layer.input_size_per_partition
    elif packed and type(layer).__name__ == "ParallelLMHead":
        width = x.shape[1]
    else:
        return x if x.dtype == dtype and x.numel() else None
    rows = torch.eye(width, dtype=dtype).split(256)
    return torch.cat([layer.cpu_linear(part, x, None) for part in rows])  # [in, out]: the matrix, transposed


def name_in_sampler(name: str, names: Iterable[str], packed: dict[str, list[str]]) -> str | None:
    """What vLLM calls the tensor that it keeps a tensor of the policy in, such as qkv_proj for q_proj."""
    if name in names:
        return name
    module, _, leaf = name.rpartition(".")
    parent, _, part = module.rpartition(".")
    fused = [f"{parent}.{whole}.{leaf}" for whole, parts in packed.items() if part in parts]
    return next((fused_name for fused_name in fused if fused_name in names), None)


def compare_weights(named: Iterable[tuple], sampler) -> tuple[list[str], list[str]]:
    """(tensors of a vLLM model that differ after a copy of `named`, or got none; those that cannot be compared)."""
    layers = {
        f"{prefix}.{name}".lstrip("."): (layer, name)
        for prefix, layer in sampler.named_modules()
        for name in layer._parameters
        if layer._parameters[name] is not None
    }
    plain = (torch.float32, torch.bfloat16, torch.float16)
    dtype = next(x.dtype for x in sampler.parameters() if x.dtype in plain)  # a rounded model keeps some as they are
    expected, lost = {}, []
    for name, x in named:
        target = name_in_sampler(name, layers, getattr(sampler, "packed_modules_mapping", {}))
        if target is None:
            lost.append(name)
            continue
        sums = checksums(x, dtype)
        count, total = expected.get(target, (0, torch.zeros_like(sums)))
        expected[target] = count + x.numel(), total + sums
    wrong = []
    for name, (layer, leaf) in layers.items():
        x = held_by(layer, leaf, dtype)
        if x is None or name not in expected:
            lost.append(name)
            continue
        count, total = expected[name]
        if not same_checksums(checksums(x, dtype).to(total.device), total, count):
            wrong.append(name)
    return wrong, lost


class SyncCheck:
    """When a sampler is compared with the policy: at the first two steps and every so many (0: never)."""

    def __init__(self, every: int, advice: str):
        self.every, self.advice, self.checked, self.partly = every, advice, None, False

    def due(self, step: int) -> bool:
        """Whether to compare the copy after `step` updates; each step's first copy only."""
        first = self.checked is None or step == 1
        if not self.every or step == self.checked or not (first or step % self.every == 0):
            return False
        self.checked = step
        return True

    def compare(self, step: int, named: Iterable[tuple], sampler) -> None:
        """Raise StaleSamplerError unless vLLM's network has the tensors that were copied, (name, tensor) each."""
        wrong, lost = compare_weights(named, sampler)
        if wrong:
            names = ", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else "")
            raise StaleSamplerError(
                f"step {step}: got a sampler with other weights than the policy's after the copy, {len(wrong)} "
                f"tensors: {names}; expected equal checksums; try {self.advice}"
            )
        if lost and not self.partly:
            say(f"note: vLLM keeps {len(lost)} tensors in its own form, such as {lost[0]}; log-probs check them")
            self.partly = True

    def judge(self, step: int, gap: float, exact: bool) -> None:
        """Raise StaleSamplerError where log-probs differ too much in the mean; `exact`: both compute in float32."""
        most = 0.01 if exact else 0.5
        if not gap <= most:
            raise StaleSamplerError(
                f"step {step}: got a sampler whose log-probs differ by {gap:.3g} in the mean from the policy's; "
                f"expected at most {most:g} at this precision if weights and temperature agree; try {self.advice}, "
                "or --check_sync 0 if the sampler is meant to be another"
            )


def logprob_gap(config: BaseConfig, models: Models, prompts: list[list[int]], outputs: list[tuple]) -> float:
    """Mean |difference| of the sampler's log-probs of the tokens that it sampled and the policy's own."""
    samples = [
        {"prompt_ids": prompt, "response_ids": ids, "rollout_logprobs": logprobs}
        for prompt, (ids, logprobs) in zip(prompts, outputs, strict=True)
    ]
    batch = collate(samples, models.pad_id, models.device)
    mask = batch["response_mask"].bool()
    with torch.no_grad(), autocast(config, models.device):
        hidden = predicting_states(models.policy, batch)[mask]
        ids = batch["input_ids"][mask]
        logprobs, _ = logprobs_and_entropy(lambda h: lm_logits(models.policy, h), hidden, ids, config.temperature, 64)
    return (logprobs - batch["rollout_logprobs"][mask]).abs().mean().item()


# ----------------------------------------------------------------- sampling vllm (src/parts/sampling/sampling_vllm.py)

# 0.30 is run by the tests; that 0.22 and 0.26 have the same interface was read in their source, as was 0.33, but from
# 0.31 on vLLM asks for an older transformers than this bundle does.
VLLM_OLDEST, VLLM_ABOVE = (0, 22), (0, 31)
VLLM_PIP = "pip install 'vllm>={}.{},<{}.{}'".format(*VLLM_OLDEST, *VLLM_ABOVE)
BOOLS = {**dict.fromkeys(("true", "yes", "on", "1"), "--"), **dict.fromkeys(("false", "no", "off", "0"), "--no-")}
OURS = {  # arguments of the engine that follow from the run's settings
    "model": "--model",
    "tokenizer": "--model",
    "seed": "--seed",
    "enable_lora": "leaving it out: adapters are merged for the copy",
    "gpu_memory_utilization": "--vllm_memory",
    "max_model_len": "--max_prompt_tokens, --max_new_tokens and --max_conversation_tokens",
    "logprobs_mode": "leaving it out",
    "distributed_executor_backend": "leaving it out",
    "tensor_parallel_size": "leaving it out: each process has an engine of its own",
    "pipeline_parallel_size": "leaving it out: each process has an engine of its own",
    "data_parallel_size": "torchrun",
    "enable_sleep_mode": "a smaller --vllm_memory: the engine keeps its memory during updates",
}
PROBE = "Each process samples a few tokens of this text, and the policy says how likely they are to it."


def import_vllm(flag: str, instead: str):
    """The module vllm, for what `flag` asked, its engine in this process, where weights can be copied into it."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing is sent without a word of the user's
    # it warns at every copy that rotary embeddings have no weights
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except ImportError as error:
        problem = "not installed" if not importlib.util.find_spec("vllm") else f"which does not load: {error}"
        raise UserError(f"got {flag}, {problem}; expected vLLM; try `{VLLM_PIP}`, or {instead}") from None
    version = tuple(int(part) for part in vllm.__version__.split(".")[:2])
    got = f"got {flag} with vLLM {vllm.__version__}"
    need(version >= VLLM_OLDEST, f"{got}; expected one that takes new weights; try `{VLLM_PIP}`, or {instead}")
    return vllm


def vllm_options(pairs: list[str], owned: dict[str, str]) -> dict:
    """--vllm_args as arguments of vLLM's engine, read as its command line does; `owned` are the program's."""
    if not pairs:
        return {}
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    actions, values = {action.dest: action for action in parser._actions}, {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key, got = key.replace("-", "_"), f"got --vllm_args {pair!r}; expected "
        need(equals, f"{got}key=value; try --vllm_args {key}=true")
        need(key not in owned, f"{got}an argument that this script leaves to you; try {owned.get(key)}")
        need(key in actions, f"{got}an argument of vLLM's engine{suggest(key, [*actions])}")
        values[key] = vllm_value(parser, actions[key], text, got)
    return values


def vllm_value(parser, action, text: str, got: str):
    """`text` as the value of an argument of vLLM's command line."""
    flag = "--" + action.dest.replace("_", "-")
    need(action.nargs != 0 or text.lower() in BOOLS, f"{got}true or false")
    line = [BOOLS[text.lower()] + flag.removeprefix("--")] if action.nargs == 0 else [f"{flag}={text}"]

    def refuse(message: str):
        raise UserError(f"{got}a value that vLLM takes: {message}")

    parser.error = refuse
    return getattr(parser.parse_args(line), action.dest)


def cut_vocabulary(network, known: int) -> None:
    """Let vLLM sample none but the first `known` rows of an embedding: it cuts its own padding at the same place."""
    for layer in network.modules():
        if type(layer).__name__ == "LogitsProcessor":
            layer.org_vocab_size = min(known, layer.org_vocab_size)


def check_copies(source: str, policy) -> None:
    """Raise UserError for an adapter that is more than matrices beside the base's, which are all that is copied."""
    settings = adapter_settings(source)
    if not settings:
        return
    base = transformers.AutoConfig.from_pretrained(base_of(source)).get_text_config()
    more = [
        name for name in ("use_dora", "modules_to_save", "trainable_token_indices", "lora_bias") if settings.get(name)
    ]
    if policy.get_input_embeddings().weight.shape[0] != base.vocab_size:
        more.append("rows of added tokens")
    got = f"got --rollout_engine vllm with the adapter {source!r}, which has {', '.join(more)}"
    need(not more, f"{got}; expected LoRA's matrices alone; try hf, or {merge_command(source)}")


class VllmEngine:
    """Samples with vLLM on the same GPU; the policy's weights are copied into it before every rollout."""

    def __init__(self, config: BaseConfig, models: Models):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # keeps the model reachable in this process
        self.vllm = import_vllm("--rollout_engine vllm", "hf")
        self.config, self.models = config, models
        self.watch = SyncCheck(config.check_sync, f"`{VLLM_PIP}`, or --rollout_engine hf")
        longest = getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None)
        length = config.max_prompt_tokens + config.max_new_tokens
        if getattr(config, "environment", ""):
            length = config.conversation_tokens
        settings = {
            "dtype": str(compute_dtype(config, models.device)).removeprefix("torch."),
            "gpu_memory_utilization": config.vllm_memory,
            "max_model_len": min(length, longest or length),
            "distributed_executor_backend": "external_launcher" if world()[1] > 1 else None,
            "logprobs_mode": "processed_logprobs",  # after the temperature, as the trainer has them
            "seed": config.seed,
        }
        if models.device.type == "cpu":
            settings["enforce_eager"] = True  # to compile takes minutes there, and gains little
        settings |= vllm_options(config.vllm_args, OURS)
        check_copies(config.model, models.policy)
        self.exact = settings["dtype"] in ("float32", "float") and not settings.get("quantization")
        tf32 = torch.get_float32_matmul_precision()
        try:
            with untouched_generators():  # it seeds all of them anew, and rewards may draw from them
                self.llm = self.vllm.LLM(model=base_of(config.model), **settings)
        except Exception as error:
            raise UserError(f"got --rollout_engine vllm, which does not start: {error}; try hf") from error
        finally:
            torch.set_float32_matmul_precision(tf32)  # its worker sets that of the whole process
        if known := unwrapped(models.policy).known_tokens:
            cut_vocabulary(self.network().get_model(), known)

    def network(self):
        """What runs vLLM's model in this process."""
        return self.llm.llm_engine.model_executor.driver_worker.model_runner

    def weights(self) -> Iterator[tuple]:
        """The policy's tensors under their own names, as vLLM loads them from a folder.

        LoRA's deltas are added on the way: merging into the base and back would wear it out in bf16.
        """
        policy = unwrapped(self.models.policy)
        adapted = {name: m for name, m in policy.named_modules() if hasattr(m, "get_delta_weight")}
        for key, x in policy.state_dict().items():
            owner, base, leaf = key.rpartition(".base_layer.")
            if base and leaf == "weight":
                x = (x.float() + adapted[owner].get_delta_weight("default").float()).to(x.dtype)
            if "lora_" not in key:
                yield key.replace(".base_layer", ""), x

    def sync(self, step: int = 0) -> None:
        """Copy the policy's weights into the engine after `step` updates, and forget cached prefixes.

        Every process must call it: an error of one, such as out of memory, is raised by all.
        """
        with raised_in_all():
            self.copy_weights()
            if self.watch.due(step):
                self.check(step)

    def copy_weights(self) -> None:
        """Load vLLM's layers anew: where it keeps a matrix packed (on CPUs, or rounded), it is packed again."""
        from vllm.config import set_current_vllm_config

        with torch.no_grad(), set_current_vllm_config(self.llm.llm_engine.vllm_config):
            self.network().reload_weights(weights_iterator=self.weights())
        self.llm.reset_prefix_cache()

    def check(self, step: int) -> None:
        """Raise StaleSamplerError unless the engine has the policy's weights."""
        with torch.no_grad():
            self.watch.compare(step, self.weights(), self.network().get_model())
        prompt = self.models.tokenizer.encode(PROBE, add_special_tokens=False)[: self.config.max_prompt_tokens]
        prompts = [prompt[: 1 + i * len(prompt) // 4] for i in range(1, 4)]
        outputs = self.generate(prompts, [[0.5]] * 3, limit=8)
        self.watch.judge(step, logprob_gap(self.config, self.models, prompts, outputs), self.exact)

    def generate(self, prompts: list[list[int]], noise, limit: int = 0) -> list[tuple[list[int], list[float]]]:
        """As HFEngine.generate, but all rows draw from one generator, which the first draw of `noise` seeds.

        The same prompts, draws and weights give the same batch; a row's completion depends on the rest of its batch.
        A seed for each row would keep vLLM from sampling all rows at once.
        """
        if not prompts:
            return []
        length = min(limit or self.config.max_new_tokens, self.config.max_new_tokens)
        shared = {"max_tokens": length, "stop_token_ids": self.models.eos_ids, "logprobs": 0}
        shared |= {"temperature": 0.0 if noise is None else self.config.temperature, "detokenize": False}
        params = self.vllm.SamplingParams(**shared)
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        with untouched_generators(None if noise is None else int(noise[0][0] * 2**32)):
            outputs = [done.outputs[0] for done in self.llm.generate(requests, params, use_tqdm=False)]
        return [
            (list(o.token_ids), [at[i].logprob for i, at in zip(o.token_ids, o.logprobs, strict=True)]) for o in outputs
        ]


# --------------------------------------------------------------------------- rollouts (src/parts/sampling/rollouts.py)


def batch_rows(rows: list[dict], config: BaseConfig, start: int, count: int) -> list[dict]:
    """`count` prompts from position `start` of one endless stream of reshuffled passes over the data."""
    picked = []
    for position in range(start, start + count):
        epoch, index = divmod(position, len(rows))
        if not picked or index == 0:
            order = np.random.default_rng([config.seed, 1, epoch]).permutation(len(rows)).tolist()
        picked.append(rows[order[index]])
    return picked


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


# ------------------------------------------------------------------------------- losses (src/parts/learning/losses.py)


def mismatch_mode(config: BaseConfig) -> str:
    """The correction for a sampler that is not the trainer; "none" for none."""
    auto = "tis" if config.rollout_engine == "vllm" else "none"
    return auto if config.mismatch == "auto" else config.mismatch


# ----------------------------------------------------------------- idle settings (src/parts/learning/idle_settings.py)


def does_nothing(config: BaseConfig, decider: str, values: tuple) -> bool:
    """Whether the deciding setting has one of the values, or is off where none are given; False without such a one."""
    if decider in ("always", "held_out"):
        return decider == "always" or not (held_out_source(config) or getattr(config, "hold_out", 0))
    if not hasattr(config, decider) or (decider == "rollout_engine" and hasattr(config, "hardware")):
        return False  # under verl, which has hardware, vLLM always samples
    held = mismatch_mode(config) if decider == "mismatch" else getattr(config, decider)  # what auto stands for
    return held in values if values else not held


BOUNDS, EPSILONS = ("mismatch_low", "mismatch_high"), ("epsilon", "epsilon_high")
VLLM_OF_TRL = ("vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_server_base_url", "check_sync")
OF_EVALUATION = ("eval_every", "eval_rows", "eval_samples", "per_device_eval_batch_size")
# (settings, the one that decides whether they act, its values where they do not, why, what makes them act); of all
# trainers, TRL's names too
IDLE = [
    (("kl_in", "kl_estimator"), "kl_coef", (), "there is no KL", "--kl_coef 0.05"),
    (("kl_horizon",), "kl_target", (), "the KL coefficient is fixed", "--kl_target 5"),
    (("lora_alpha", "merge_lora"), "lora_rank", (), "there are no adapters", "--lora_rank 16"),
    (("critic_model",), "critic", ("shared",), "the critic is the policy's backbone", "--critic separate"),
    (BOUNDS, "mismatch", ("none",), "no mismatch is corrected", "--mismatch seq_mask"),
    (BOUNDS[:1], "mismatch", ("tis",), "tis has no lower bound", "--mismatch icepop"),
    (("vllm_memory", "check_sync"), "rollout_engine", ("hf",), "vLLM does not sample", "--rollout_engine vllm"),
    (("decode_graphs",), "rollout_engine", ("vllm",), "vLLM has graphs of its own", "--rollout_engine hf"),
    (VLLM_OF_TRL, "use_vllm", (), "vLLM does not sample", "--use_vllm colocate"),
    (EPSILONS, "loss_type", ("sapo", "vespo"), "this loss_type has no such bound", "--loss_type dapo"),
    (EPSILONS[:1], "loss_type", ("cispo",), "cispo has an upper cap only", "--loss_type dapo"),
    (OF_EVALUATION, "held_out", (), "there are no held-out prompts", "--eval_data FILE or --hold_out N"),
]
# what the ratio to the policy before the update enters, which is 1 in a rollout's first update
OF_RATIO = (
    *("clip_eps_low", "clip_eps_high", "dual_clip", "sapo_tau_pos", "sapo_tau_neg", "kl_cov_coef", "value_clip"),
    *("target_kl", *EPSILONS, "importance_sampling_level"),
)
RATIO_LOSSES = ("clip", "gspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "kl_cov")  # all REINFORCE's at ratio 1


def idle_settings(config: BaseConfig, updates: int, named: Iterable[str] = ()) -> list[str]:
    """A line for each reason why settings do nothing: those that the user gave, or that a preset is named for.

    `updates` are the optimizer steps of a rollout.
    """
    passes = "--num_iterations 2" if hasattr(config, "num_iterations") else "--minibatches 4"
    once = "a rollout has one optimizer step, whose ratio is 1"
    table = [*IDLE]
    if updates == 1 and ".py:" not in str(getattr(config, "loss", "")):
        cap_below_1 = getattr(config, "loss_type", "") == "cispo" and 0 < config.epsilon_high < 1
        acting = {"epsilon_high"} if cap_below_1 else set()
        quantile = any(pair.startswith("top_entropy_quantile") for pair in getattr(config, "trainer_args", ()))
        acting |= {"importance_sampling_level"} if quantile else set()
        loss = ["loss"] if getattr(config, "loss", "") in RATIO_LOSSES else []
        names = [name for name in (*OF_RATIO, *loss) if name not in acting]
        table.append((names, "always", (), once, passes))
    if getattr(config, "objective", "policy_gradient") != "policy_gradient" and not config.reward_coef:
        names = (*OF_RATIO, "mismatch", *BOUNDS)
        table = [*IDLE, (names, "always", (), f"{config.objective} has no ratio", "--objective policy_gradient")]
    lines, asked = [], {*config.given, *named}
    for names, decider, values, why, remedy in table:
        idle = [f"{name} {getattr(config, name)}" for name in names if name in asked and getattr(config, name)]
        if idle and does_nothing(config, decider, values):
            lines.append(f"{', '.join(idle)}: without effect, as {why}; try {remedy}")
    return lines


def say_idle(config: BaseConfig, updates: int, named: Iterable[str] = ()) -> None:
    """Print `idle_settings` on stderr."""
    for line in idle_settings(config, updates, named):
        say(f"note: {line}")


# ----------------------------------------------------------- trainer settings (src/parts/learning/trainer_settings.py)


@dataclass
class RunSettings(BaseConfig):
    """What all trainers have."""

    # model and data
    model: str = setting(EMBEDDED_MODEL, "model folder or hub id", section="model and data")
    data: str = setting(EMBEDDED_DATA, "training prompts: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]")
    eval_data: str = setting("", "held-out prompts, same formats (default: those of the embedded task with its data)")
    prompt_column: str = setting("prompt", "column that holds the prompt, a string or chat messages")
    chat: bool = setting(False, "send string prompts as a user's turn through the chat template")
    chat_template: str = setting("", "FILE with a chat template to use instead of the tokenizer's")
    chat_template_kwargs: str = setting("", 'JSON object for the chat template, such as {"enable_thinking": false}')
    reward: list[str] = setting(
        [], "FILE.py:function[*weight] or a library's name, repeatable (default: the embedded data's)"
    )
    reward_timeout: float = setting(600.0, "seconds for one call of an async reward (0: no limit)", free=True)
    reward_concurrency: int = setting(32, "calls of async rewards at once, in each process", positive=True, free=True)
    reward_retries: int = setting(2, "retries after a lost connection, a timeout, HTTP 408, 425, 429, 5xx", free=True)
    output_dir: str = setting("runs/ppo", "folder for logs, checkpoints and final/", free=True)
    seed: int = setting(0, "seed of data order, sampling, minibatches and new adapters")
    # rollout
    temperature: float = setting(1.0, "sampling temperature; it divides the logits of all log-probs", positive=True)
    vllm_args: list[str] = setting([], "key=value …: any other argument of vLLM's engine", free=True, several=True)
    check_sync: int = setting(50, "steps between checks of vLLM's weights, besides the first two (0: none)", free=True)
    # optimization
    warmup_steps: int = setting(0, "steps over which the learning rates rise")
    weight_decay: float = setting(0.0, "AdamW weight decay")
    max_grad_norm: float = setting(1.0, "gradient clipping, of each network", positive=True)
    # precision and memory
    precision: str = setting(
        "auto",
        "compute precision; auto: bf16 if the CUDA GPU supports it, else fp32; trained weights stay fp32",
        ["auto", "fp32", "bf16", "fp16"],
        section="precision and memory",
    )
    attn_implementation: str = setting(
        "auto", "transformers' attention implementation; auto: its own choice", lambda: list(ATTENTION_KINDS), free=True
    )
    lora_rank: int = setting(0, "train new LoRA adapters of this rank on all linear layers (0: none)")
    lora_alpha: float = setting(0.0, "LoRA scale (0: twice the rank)")
    threads: str = setting("auto", "CPU threads: a number, or auto (fewer if other processes use the cores)", free=True)
    # logs and checkpoints
    resume: bool = setting(False, "continue from the newest checkpoint in output_dir", free=True)
    dry_run: bool = setting(False, "print the batch, memory needed and free, and changed settings; stop", free=True)


# ------------------------------------------------------------------------- optimizer (src/parts/learning/optimizer.py)


def default_learning_rate(role: str, parameters: float, lora: bool) -> float:
    """The learning rate where none is given, by role and size: the one rule of all trainers.

    Below 50M parameters a model moves too slowly at the rates of large ones: on the embedded one (0.4M), RL takes 2e-4
    and distillation 1e-3. `trl_policy` is the policy under TRL's schedule, which falls to 0, with ten times as much
    for LoRA (Schulman 2025, "LoRA Without Regret").
    """
    full, adapters, small, small_adapters = {
        "policy": (1e-6, 1e-5, 2e-4, 2e-4),
        "critic": (1e-5, 1e-5, 1e-3, 1e-3),
        "student": (1e-5, 1e-4, 1e-3, 1e-3),
        "trl_policy": (1e-6, 1e-5, 5e-4, 5e-3),
    }[role]
    if parameters < 50e6:
        return small_adapters if lora else small
    return adapters if lora else full


# -------------------------------------------------------------------------------- memory (src/parts/running/memory.py)

FOUR_NORMS = {"gemma2", "gemma3", "gemma3_text", "glm4"}  # norms before and after attention and MLP
QK_NORM = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text"}  # norms of queries and keys, per head
DRAWN = 2**24  # probabilities in float64 that the sampler holds three times: its DRAWN_AT_ONCE
INNER_COPIES = {"gelu_new": 5, "relu": 1}  # of MLPs without a gate; the others keep input and output


@dataclass(frozen=True)
class DecoderShape:
    """What of a model's config.json decides how much memory its activations take; see `decoder_shape`."""

    layers: int
    hidden: int
    vocab: int
    embeddings: int  # weights of the embedding and the output layer
    heads: int
    queries: int  # heads x head size
    keys: int  # kv heads x head size
    inner: int  # width of the MLP, or of one expert
    gated: bool  # the MLP has a gate, and its own layers for queries, keys and values stand beside it
    inner_copies: int  # tensors [tokens, inner] that the MLP keeps
    norms: int  # per layer
    norm: str  # layer, rms, or rms32 (Gemma's, all in float32)
    qk_norm: bool
    softcap: bool  # of attention scores
    logit_softcap: bool
    experts: int  # that a token visits; 0 for a dense MLP
    shared_inner: int  # of the expert that every token visits


@dataclass(frozen=True)
class PassShape:
    """A micro-batch, and how it runs through a network."""

    rows: int
    length: int  # tokens of a row, pads included
    compute: int = 4  # bytes per number in matrix products
    stream: int = 4  # bytes per number between layers; 4 with float32 weights, under autocast as well
    attention: str = "sdpa"  # eager keeps [rows, heads, length, length]; flash has neither these nor a mask
    checkpointing: bool = False
    lora_rank: int = 0  # 0: all weights are trained

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch, pads included."""
        return self.rows * self.length

    @property
    def casts(self) -> bool:
        """Whether every linear layer makes a copy of its own of its input; adapters are float32."""
        return self.compute < (4 if self.lora_rank else self.stream)

    @property
    def padded(self) -> bool:
        """Whether there is a mask [rows, 1, length, length], for which keys and values are repeated per head."""
        return self.rows > 1 and self.attention != "flash"


def first_set(config: dict, names, default=0):
    """The value of the first of several keys that a config has, and that is neither None nor 0."""
    return next((config[name] for name in names if config.get(name)), default)


def decoder_shape(config: dict) -> DecoderShape:
    """Read the config.json of a decoder, its text part where there are several."""
    hidden, kind = first_set(config, ("hidden_size", "n_embd", "d_model")), config.get("model_type") or ""
    heads = first_set(config, ("num_attention_heads", "n_head", "n_heads"))
    head = config.get("head_dim") or hidden // heads
    activation = first_set(config, ("hidden_act", "hidden_activation", "activation_function"), "")
    rms = bool(config.get("rms_norm_eps"))
    gated = rms or activation in ("silu", "swish")
    experts = first_set(config, ("num_experts_per_tok", "num_experts_per_token"))
    widths = ("n_inner", "ffn_dim", "intermediate_size")
    widths = ("moe_intermediate_size", *widths) if experts else widths
    return DecoderShape(
        layers=first_set(config, ("num_hidden_layers", "n_layer", "n_layers")),
        hidden=hidden,
        vocab=config["vocab_size"],
        embeddings=config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings", True) else 2),
        heads=heads,
        queries=heads * head,
        keys=(config.get("num_key_value_heads") or heads) * head,
        inner=first_set(config, widths, 4 * hidden),
        gated=gated,
        inner_copies=4 if gated else INNER_COPIES.get(activation, 2),
        norms=4 if kind in FOUR_NORMS else 2,
        norm=("rms32" if kind.startswith("gemma") else "rms") if rms else "layer",
        qk_norm=kind in QK_NORM,
        softcap=bool(config.get("attn_logit_softcapping")),
        logit_softcap=bool(config.get("final_logit_softcapping")),
        experts=experts,
        shared_inner=config.get("shared_expert_intermediate_size") or 0,
    )


def shape_of(network) -> DecoderShape | None:
    """The shape of a network of transformers; None where its config does not say it, as without attention."""
    try:
        shape = decoder_shape(network.config.get_text_config().to_dict())
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    sizes = (shape.layers, shape.hidden, shape.vocab, shape.heads, shape.keys, shape.inner)
    return shape if all(isinstance(size, int) and size for size in sizes) else None


def attention_kind(implementation: str | None) -> str:
    """What PassShape calls an attention of transformers."""
    name = implementation or "sdpa"
    return "flash" if "flash" in name else "eager" if name == "eager" else "sdpa"


def norm_bytes(model: DecoderShape, run: PassShape, width: int) -> int:
    """Bytes per number that a norm keeps: its input, and what a trained weight multiplies, of `width` bytes."""
    if model.norm == "layer":
        return 4 if run.casts else run.stream
    return 4 + (0 if run.lora_rank else 4 if model.norm == "rms32" else width)


def attention_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that the attention of one layer keeps, from its queries to its output."""
    width, queries, keys = run.compute, model.queries, model.keys
    repeated = run.padded or run.attention == "eager"
    per_token = (2 * queries + 2 * (queries if repeated else keys)) * width  # queries, output, keys, values
    if run.lora_rank and run.casts:
        per_token += queries * width
    if model.qk_norm:
        per_token += (queries + keys) * norm_bytes(model, run, width)
    pairs = run.rows * run.length**2
    if run.attention == "eager":  # softmax in float32, its copy for the product with the values, tanh of the scores
        scores = 4 + width * (width < 4) + width * model.softcap
        return run.tokens * per_token + pairs * model.heads * scores
    return run.tokens * (per_token + 4 * model.heads) + pairs * width * run.padded


def mlp_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that one MLP keeps, its input apart; experts run in the width of what is between layers."""
    copies = model.inner_copies
    if not model.experts:
        return run.tokens * copies * model.inner * run.compute
    routed = model.experts * (copies * model.inner + 2 * model.hidden) * run.stream
    return run.tokens * (routed + copies * model.shared_inner * run.compute)


def layer_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that one decoder layer keeps for its backward pass, weights apart."""
    inputs = 2  # of attention and MLP, one copy each, or one for every linear layer that reads it
    if run.casts and model.gated:
        inputs = 4 if model.experts else 5
    per_token = model.hidden * (model.norms * norm_bytes(model, run, run.stream) + inputs * run.compute)
    per_token += (7 if model.gated else 4) * run.lora_rank * run.compute
    return run.tokens * per_token + attention_activations(model, run) + mlp_activations(model, run)


def layer_transient(model: DecoderShape, run: PassShape) -> float:
    """Bytes that the backward pass of the last layer has beside what was saved: gradients of its activations."""
    inner = model.inner * (model.experts or 1)
    mlp = run.tokens * (2 * inner * (run.stream if model.experts else run.compute) + 2 * model.hidden * 4)
    if run.lora_rank and run.casts:
        mlp += run.tokens * inner * 4  # what goes into an adapter is made float32 first
    if run.attention != "eager":
        return mlp
    scores = 2 * 4 * run.rows * run.length**2 * model.heads  # by then the MLP's activations are gone
    return max(mlp, scores - mlp_activations(model, run))


def adapter_weights(model: DecoderShape, rank: int) -> int:
    """Weights of LoRA adapters of a rank on all linear layers."""
    hidden, inner = model.hidden, model.inner * (not model.experts)
    sides = (4 if model.gated else 2) * hidden + 2 * model.queries + 2 * model.keys  # GPT-2: one layer for q, k and v
    sides += (3 if model.gated else 2) * (hidden + inner)
    return model.layers * rank * sides


def layer_weights(model: DecoderShape) -> int:
    """Weights of the linear layers of one decoder layer, routed experts apart."""
    inner = model.shared_inner if model.experts else model.inner
    return model.hidden * (2 * model.queries + 2 * model.keys + (3 if model.gated else 2) * inner)


def weight_copies(model: DecoderShape, run: PassShape) -> float:
    """Bytes of the copies that autocast makes of one layer's float32 weights."""
    return layer_weights(model) * run.compute * (run.casts and not run.lora_rank)


def head_bytes(model: DecoderShape, run: PassShape, logits: float, buffers: int) -> float:
    """Bytes of `buffers` float32 tensors of `logits` numbers, and of the gradient a trained output layer adds."""
    buffers += model.logit_softcap
    return 4 * (buffers * logits + model.vocab * model.hidden * (not run.lora_rank))


def saved_for_backward(model: DecoderShape, run: PassShape) -> float:
    """Bytes that the network below its output layer keeps for the backward pass, with autocast's copies of weights.

    Measured on Llama, Qwen 2 and 3, GPT-2, Gemma 2 and 3, Mixtral and Qwen 3 MoE of transformers 5.23; a rough guess
    for networks with state-space or linear-attention layers, latent attention, or norms in other places.
    """
    last = run.tokens * model.hidden * norm_bytes(model, run, run.stream)
    if run.checkpointing:
        return last + model.layers * run.tokens * model.hidden * run.stream  # what goes into each layer
    return last + model.layers * (layer_activations(model, run) + weight_copies(model, run))


def backward_peak(model: DecoderShape, run: PassShape, head: float) -> float:
    """Most bytes of a forward and backward pass beside weights, gradients and optimizer; `head` is of `head_bytes`."""
    saved = saved_for_backward(model, run)
    states = 2 * 4 * run.tokens * model.hidden  # shifted, and picked by the mask
    mask = run.rows * run.length**2 * run.padded * (4 if run.attention == "eager" else 1)
    copies, layer = weight_copies(model, run), layer_transient(model, run)
    if not run.checkpointing:
        return mask + saved + max(states + head, layer)
    forward = model.layers * copies + layer
    again = layer_activations(model, run) + copies + layer
    return mask + saved + max(forward, states + head, again)


def frozen_bytes(model: DecoderShape, parameters: int, width: float, embedding_width: int) -> float:
    """Bytes of weights of which embedding and output layer have a width of their own; 4-bit ones take 0.516 each."""
    embeddings = min(model.embeddings, parameters)
    return (parameters - embeddings) * width + embeddings * embedding_width


def network_bytes(config: BaseConfig, shape: DecoderShape, parameters: int) -> tuple[float, float]:
    """Bytes of a trained network's weights with its optimizer's state, and of its gradients."""
    if not config.lora_rank:
        return 12 * parameters, 4 * parameters  # float32: weights, and the two moments of AdamW
    width = 4 if config.precision == "fp32" else 2
    base = frozen_bytes(shape, parameters, 0.516 if config.load_in_4bit else width, width)
    adapters = adapter_weights(shape, config.lora_rank)
    return base + 12 * adapters, 4 * adapters


def sampling_bytes(model: DecoderShape, run: PassShape, new_tokens: int) -> float:
    """Bytes of the KV cache of prompts of `run` and their completions, of their forward pass, and of a token's draw.

    That has logits, scaled ones and log-probs [rows, V] in float32, and probabilities in float64.
    """
    cache = 2 * model.layers * model.keys * run.compute * run.rows * (run.length + new_tokens)
    logits = run.rows * model.vocab
    draw = 4 * (3 + model.logit_softcap) * logits + 3 * 8 * min(logits, max(DRAWN, model.vocab))
    return cache + model.layers * weight_copies(model, run) + max(layer_transient(model, run), draw)


def folded_bytes(config: BaseConfig, model: DecoderShape, run: PassShape) -> float:
    """Bytes of the weights with LoRA in them, which a GPU samples with beside the base; see `foldable_layers`."""
    if not config.lora_rank or config.load_in_4bit or config.rollout_engine == "vllm":
        return 0
    size = model.layers * layer_weights(model) * run.compute
    return size if copy_fits(size, device_name(config)) else 0


TILE = (4096, 32_768)  # tokens and vocabulary of a piece of TRL's output layer
TILE_BUFFERS = 7  # float32 tensors of a piece that exist at once where there is no Triton, measured on a CPU


def trl_head(shape: DecoderShape, run: PassShape, fused: bool) -> float:
    """Bytes that TRL's output layer and loss take for a micro-batch; with Triton (`fused`) one piece is all."""
    tokens = min(run.tokens, TILE[0])
    logits = 0 if fused else tokens * min(shape.vocab, TILE[1])
    return tokens * TILE[1] * run.compute + head_bytes(shape, run, logits, TILE_BUFFERS)


def pass_of_rows(config: BaseConfig, model, rows: int, length: int) -> PassShape:
    """A micro-batch of so many rows of one length, in the run's precision."""
    width = 4 if config.precision == "fp32" else 2
    return PassShape(
        rows=rows,
        length=length,
        compute=width,
        stream=width if config.lora_rank else 4,
        attention=attention_kind(model.config._attn_implementation),
        checkpointing=config.gradient_checkpointing,
        lora_rank=config.lora_rank,
    )


# -------------------------------------------------------------------------------------- fit (src/parts/running/fit.py)

USABLE_SHARE = 0.85  # of free memory that a choice may take: the estimate was up to 15 % below what was measured
UPDATE, SAMPLING = "peak of the update", "peak of sampling"
LIMITS = (  # files of version 2 and 1: the limit, what is used, and what of that is a cache of files
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def main_memory(proc: Path = Path("/proc"), groups: Path = CGROUPS) -> dict[str, float]:
    """Free and total bytes of the main memory, the limits of cgroups included; {} where the system does not say."""
    if not (proc / "meminfo").exists():
        return {}
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    listing = proc / "self" / "cgroup"
    for folder in group_folders(groups, listing.read_text(), "memory") if listing.exists() else []:
        for limit, used, cache in LIMITS:
            if (folder / limit).exists() and (folder / used).exists() and (folder / limit).read_text().strip() != "max":
                most, taken = int((folder / limit).read_text()), int((folder / used).read_text())
                stat = folder / "memory.stat"
                counts = dict(line.split() for line in stat.read_text().splitlines()) if stat.exists() else {}
                total, free = min(total, most), min(free, most - taken + int(counts.get(cache, 0)))
    return {"free": max(0, free), "total": total}


def device_memory(device: str) -> dict[str, float]:
    """Free and total bytes of the memory that networks will use; {} where they are not known."""
    if device.startswith("cuda"):
        return dict(zip(("free", "total"), torch.cuda.mem_get_info(torch.device(device)), strict=True))
    return main_memory() if device == "cpu" else {}


def memory_for_each(device: str, aside: float = 0.0) -> dict[str, float]:
    """Free and total bytes per process: processes on one device share its memory, and all use the smallest figure.

    Every process must call it; {} if any process does not know.
    """
    machine, sharing = device_memory(device), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if machine and device != "cpu":
        places = gather_rows([(platform.node(), str(torch.cuda.get_device_properties(torch.device(device)).uuid))])
        sharing = max(map(places.count, places))
    of_all = gather_rows([machine])
    if not all(of_all):
        return {}
    fixed = os.environ.get("VLLM_CPU_KVCACHE_SPACE") if device == "cpu" and aside else None  # GiB, in place of a share
    free = min(one["free"] - (sharing * int(fixed) * 2**30 if fixed else aside * one["total"]) for one in of_all)
    return {"free": max(0.0, free) / sharing, "total": min(one["total"] for one in of_all)}


@dataclass(frozen=True)
class Sizes:
    """What a program lets `settle_sizes` choose."""

    estimate: Callable  # config -> bytes by name, {} where nothing is known of the architecture
    choices: Callable  # (config, whether to heed what the user gave) -> {peak: settings to try, the largest first}
    text: Callable  # config -> the sizes in words
    lighter: list[list[dict]]  # other settings that need less; of each list, the first that fits is advised
    aside: float = 0.0


def is_chosen_here(config: BaseConfig, name: str) -> bool:
    """Whether a setting is at its default because nobody gave it."""
    return name not in config.given and getattr(config, name) == type(config).__dataclass_fields__[name].default


def ladder(largest: int, least: int) -> list[int]:
    """`largest`, 3/4 and 1/2 of it, and so on, down to `least`."""
    rungs, size = [largest], largest
    while size > least:
        rungs += [max(least, 3 * size // 4), max(least, size // 2)]
        size //= 2
    return list(dict.fromkeys(rungs))


def lighter_settings(config: BaseConfig, length: str, recompute: dict, bits: bool) -> list[list[dict]]:
    """Settings that need less memory than those of a config.

    Args:
        length: name of the setting that bounds a completion.
        recompute: the settings that recompute activations, {} where they are on.
        bits: whether 4-bit weights are possible.
    """
    longest = getattr(config, length)
    shorter = [{length: longest >> i} for i in range(1, longest.bit_length()) if longest >> i >= 16]
    lora = {} if config.lora_rank else {"lora_rank": 16}
    packed = lora | {"load_in_4bit": True} if bits and not config.load_in_4bit else {}
    small = [lora, lora | recompute, packed, packed | recompute]
    return [[{"critic": "shared"}], [recompute], shorter, [one for one in small if one and one != recompute]]


def choose(config: BaseConfig, sizes: Sizes, room: float, heed: bool = True) -> float:
    """Set the largest sizes whose peaks are within `room`, else the smallest; returns the highest peak."""
    for peak, choices in sizes.choices(config, heed).items():
        for choice in choices:
            vars(config).update(choice)
            if sizes.estimate(config)[peak] <= room:
                break
    return max(sizes.estimate(config)[peak] for peak in (UPDATE, SAMPLING))


def gib(size: float) -> str:
    """Bytes as GiB."""
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.2g}"


def settle_sizes(config: BaseConfig, device: str, sizes: Sizes) -> tuple[bool, str]:
    """Replace sizes that the user left open by the largest that fit, at most the defaults; the same on all ranks.

    They change results only by the order of sums. Returns (whether the run fits, what to say).
    """
    machine = memory_for_each(device, sizes.aside)
    if not machine or not sizes.estimate(config):
        return True, ""
    free, asked = machine["free"], copy.copy(config)
    peak = choose(config, sizes, USABLE_SHARE * free)
    of = f"{gib(peak)} of {gib(free)} GiB"
    if peak <= free:
        return True, f"{sizes.text(config)}: {of}"
    smaller = copy.copy(asked)
    if choose(smaller, sizes, USABLE_SHARE * free, heed=False) <= free:
        advice = f"try {sizes.text(smaller)}, the values chosen if you leave these settings out"
        return True, f"warning: {sizes.text(config)} need about {of} free on {device}; {advice}"
    advised = list(lighter_that_fit(asked, sizes, free)) or ["a smaller model, or a machine with more memory"]
    return (
        False,
        f"got {asked.model} with settings that need {gib(peak)} GiB even with the smallest batches; expected at most "
        f"the {gib(free)} GiB that {device} has free for a process; try {', or '.join(advised)}",
    )


def lighter_that_fit(config: BaseConfig, sizes: Sizes, free: float) -> Iterator[str]:
    """Settings with which a run would fit, as flags with what they need."""
    allowed = set(free_on_resume(config) if config.resume else vars(config))
    for alternatives in sizes.lighter:
        for change in alternatives:
            lighter = copy.copy(config)
            vars(lighter).update(change)
            if change and change.keys() <= allowed:
                peak = choose(lighter, sizes, USABLE_SHARE * free, heed=False)
                if peak <= free:
                    flags = (f"--{name}" + ("" if value is True else f" {value}") for name, value in change.items())
                    yield f"{' '.join(flags)} ({gib(peak)} GiB)"
                    break


def settle_or_refuse(config: BaseConfig, device: str, sizes: Sizes) -> None:
    """`settle_sizes`, said in one line; UserError, before anything is loaded, where a run cannot fit."""
    fits, line = settle_sizes(config, device, sizes)
    need(fits, line)
    if line:
        say(line)
    peak = max(sizes.estimate(config).values(), default=0)
    if device == "cpu" and peak > 2**30:
        reuse_memory(1.25 * peak < memory_for_each(device, sizes.aside).get("free", 0))


def reuse_memory(keep: bool) -> None:
    """Keep the memory of freed tensors for later ones, or give blocks of 1 MiB and more back to the system at once.

    Getting fresh memory from the system took 40 % of a PPO update with two networks of 0.3B parameters. But small
    tensors fragment the heap that glibc keeps: that run took 15.5 GiB instead of 12.4, and a LoRA update 3.8 GiB
    instead of 2.5. Without this call, glibc keeps tensors below 32 MiB, which suits small models.
    """
    with contextlib.suppress(OSError, AttributeError):  # another system, another libc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30 if keep else 2**20) or mallopt(M_MMAP_THRESHOLD, 2**25)  # the most in old glibc
        if keep:
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def batch_plan(config, tokenizer, rows: list[dict], held_out: list[dict]) -> dict:
    """The first entries of `batch` in every plan."""
    return {
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "prompts": len(rows),
        "held_out_prompts": len(held_out),
        "longest_prompt_tokens": max(len(row["prompt_ids"]) for row in rows),
        "prompts_past_the_chat_template": strings_past_template(
            config, tokenizer, [row["prompt"] for row in rows + held_out]
        ),
    }


def in_gib(memory: dict[str, float]) -> dict[str, float]:
    """Bytes by name as GiB, rounded."""
    return {f"{name} (GiB)": round(value / 2**30, 3) for name, value in memory.items()}


def show_plan(config: BaseConfig, device: str, sizes: Sizes, plan: dict, **resolved) -> None:
    """Print a plan as JSON, with sizes that fit, the machine's memory, and changed and `resolved` settings."""
    _, line = settle_sizes(config, device, sizes)
    batch, memory, machine = {"batch": plan.pop("batch")}, in_gib(sizes.estimate(config)), in_gib(device_memory(device))
    chosen = {name: getattr(config, name) for name in ("algorithm", "profile") if getattr(config, name, "")}
    usual = dataclasses.asdict(type(config)(**chosen))  # what these two choose are defaults too
    values = dataclasses.asdict(config) | resolved | {"dry_run": False}
    settings = chosen | {name: value for name, value in values.items() if value != usual.get(name)}
    held = {"memory_estimate": memory, "memory_of_the_machine": {"device": device} | machine}
    tell(json.dumps(batch | held | plan | {"settings": settings}, indent=1))
    if line:
        say(line)


# ------------------------------------------------------------------ output folder (src/parts/running/output_folder.py)

WRITTEN = ("metrics.jsonl", "samples.jsonl", "summary.json", "curves.png", "versions.json")  # by a run, in its folder


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all, also after the machine went down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def follow_umask(folder: Path) -> None:
    """Let all files below a new folder have its read and write permissions: safetensors writes for the owner only."""
    allowed = folder.stat().st_mode & 0o666
    for file in filter(Path.is_file, folder.rglob("*")):
        file.chmod(file.stat().st_mode & 0o111 | allowed)


def write_folder(target: Path, write, intact: str = "earlier checkpoints are intact") -> None:
    """Call write(folder) on a temporary sibling and rename it, so that `target` never names a half-written folder."""
    temporary, before = (target.with_name(f".{target.name}.{end}") for end in ("tmp", "before"))
    shutil.rmtree(temporary, ignore_errors=True)
    if before.exists() and not target.exists():  # a kill came between the two renames below
        os.replace(before, target)
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        follow_umask(temporary)
        for file in filter(Path.is_file, temporary.rglob("*")):
            with file.open("rb") as f:
                os.fsync(f.fileno())
        if target.exists():  # removing it takes time; a kill would leave half of it
            shutil.rmtree(before, ignore_errors=True)
            os.replace(target, before)
        os.replace(temporary, target)
        shutil.rmtree(before, ignore_errors=True)
    except Exception as error:  # a full disk shows as OSError, RuntimeError or SafetensorError, by writer
        shutil.rmtree(temporary, ignore_errors=True)
        if before.exists() and not target.exists():
            os.replace(before, target)
        said = f"got {type(error).__name__} while saving {target}: {error}"
        if is_disk_full(error):
            said = f"got a full disk while saving {target}; expected enough space; try deleting files"
        elif isinstance(error, OSError):
            said = f"got {error} while saving {target}; expected a writable folder; try another one"
        raise UserError(f"{said}; {intact}") from error


def saved_settings(folder: Path) -> dict:
    """The settings in a run's config.json; UserError where that file is no run's, as in a model's folder."""
    file, saved = folder / "config.json", None
    if not file.exists():
        return {}
    with contextlib.suppress(ValueError):  # broken
        saved = json.loads(file.read_text(encoding="utf-8"))
    got = f"got output_dir {str(folder)!r}, whose config.json belongs to no run; expected a new folder"
    need(isinstance(saved, dict) and "output_dir" in saved, f"{got}; try another --output_dir")
    return saved


def finished_work(folder: Path) -> list[str]:
    """Names of what finished steps have left in a folder; evaluations and checkpoints of step 0 are none of that."""
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    left = {
        "final": (folder / "final").exists(),
        "metrics.jsonl": not all(re.match(r'\{"step": 0\b|$', line) for line in lines),
        "checkpoints": any(int(x.name.rpartition("-")[2]) for x in (folder / "checkpoints").glob("[!.]*-*[0-9]")),
        "rounds": any(path.is_file() for path in (folder / "rounds").rglob("[!.]*")),
    }
    return [name for name, there in left.items() if there]


# what a changed file means for --resume, by the setting that names it
CHANGED = {
    "data": "prompts are taken from the new rows by number, so some may train twice or never",
    "eval_data": "held-out figures from now on come from other rows",
}


def dependencies(config: BaseConfig) -> dict[str, tuple[str, str]]:
    """{package or file that a run's numbers depend on: (the setting that names it, version or hash)}."""
    versions_of = {name: ("", number) for name, number in versions().items()}
    for name, value in dataclasses.asdict(config).items():
        texts = [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, str)]
        texts = [text for text in texts if Path(text).suffix and name != "metrics_file"]
        specs = [text.partition("*")[0].rpartition(":")[0] for text in texts]  # of FILE.py:function*weight
        for file in filter(os.path.isfile, texts + specs):
            with open(file, "rb") as f:
                versions_of[file] = name, "sha256 " + hashlib.file_digest(f, "sha256").hexdigest()[:16]
    return versions_of


def warn_of_changes(config: BaseConfig) -> None:
    """Warn of each dependency that has changed since the run was last started."""
    path = Path(config.output_dir) / "versions.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for dependency, (name, value) in dependencies(config).items():
        if saved.get(dependency, value) != value:
            effect = CHANGED.get(name, "earlier steps ran with another one, so figures may not be comparable")
            say(f"warning: got --resume with a changed {dependency}: {effect}")


def check_folder(config: BaseConfig) -> bool:
    """Whether --resume continues the run in the output folder; a folder without a finished step is free.

    UserError: it holds a run, and --resume is not given or changes settings that may not change.
    """
    folder, settings = Path(config.output_dir), dataclasses.asdict(config)
    work, saved = finished_work(folder), saved_settings(folder)
    if not work:
        foreign = [name for name in WRITTEN if not saved and (folder / name).exists()]
        got = f"got output_dir {str(folder)!r}, which has {', '.join(foreign)} and no run's config.json"
        need(not foreign, f"{got}; expected a new folder, as these files would be replaced; try another --output_dir")
        return False
    got = f"got output_dir {str(folder)!r}, which holds a run ({', '.join(work)}); expected a new folder"
    need(config.resume, f"{got}; try --resume to continue, or another --output_dir")
    changed = [k for k in settings if k not in free_on_resume(config) and k in saved and saved[k] != settings[k]]
    text = ", ".join(f"{k} {saved[k]!r} -> {settings[k]!r}" for k in changed)
    need(not changed, f"got --resume with changed settings: {text}; expected the run's; try a new --output_dir")
    gone = ", ".join(f"{k} {value!r}" for k, value in saved.items() if k not in settings and value)
    if gone:
        say(f"note: got --resume of an older version's run, whose settings {gone} have no effect any more")
    warn_of_changes(config)
    return True


def make_folder(config: BaseConfig) -> None:
    """Create the output folder, once everybody has looked for another run's files in it, and keep other runs out."""
    gather_rows([None])
    try:
        Path(config.output_dir).mkdir(parents=True, exist_ok=True)
        if is_first():
            LOCKS.append(Path(config.output_dir, ".lock").open("a"))
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):  # a file system without locks
            return
        taken = isinstance(error, BlockingIOError)
        got = f"got output_dir {config.output_dir!r} ({'another run is writing to it' if taken else error})"
        raise UserError(f"{got}; expected a folder to write to; try another --output_dir") from None


def versions() -> dict:
    from importlib.metadata import PackageNotFoundError, version

    numbers = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "numpy", "peft", "trl", "vllm", "math-verify"):
        with contextlib.suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


def write_settings(config: BaseConfig) -> None:
    """Write config.json, and versions.json with the dependencies, once all else is known to be in order."""
    if world()[0] == 0:
        used = {dependency: value for dependency, (_, value) in dependencies(config).items()}
        write_text(Path(config.output_dir) / "versions.json", json.dumps(used, indent=1))
        write_text(Path(config.output_dir) / "config.json", json.dumps(dataclasses.asdict(config), indent=1))


# ---------------------------------------------------------------------- checkpoints (src/parts/running/checkpoints.py)


def trainer_checkpoints(folder: Path) -> dict[int, Path]:
    """{step: folder} of a transformers trainer's complete checkpoints; it writes trainer_state.json last."""
    complete = {}
    for checkpoint in folder.glob("checkpoint-*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            complete[json.loads((checkpoint / "trainer_state.json").read_text())["global_step"]] = checkpoint
    return complete


def export(config: BaseConfig, models: Models, target: Path) -> None:
    """Write final/: the policy in --save_dtype, or its adapters, with tokenizer; loads with transformers."""
    if world()[0] != 0:
        return
    policy, exact = models.policy, config.save_dtype == "fp32"
    if config.lora_rank and config.merge_lora:
        policy = merged(policy.float() if exact else policy)
    if not config.lora_rank and not exact:  # trained weights are fp32
        saved = transformers.AutoConfig.from_pretrained(config.model)
        policy = policy.to(getattr(saved, "dtype", None) or policy.dtype)

    def write(folder: Path) -> None:
        save_network(policy, folder)
        save_tokenizer(models.tokenizer, folder)

    write_folder(target, write)


# ---------------------------------------------------------------------------- progress (src/parts/running/progress.py)


def seed_generators(config: BaseConfig) -> None:
    """Seed all generators, for new adapters and the user's rewards; training itself draws from seeds and steps."""
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(config.seed)


# ---------------------------------------------------------------------- settings (src/programs/warm_start/settings.py)

PASS_HIGH = 0.9  # pass rate above which RL has little left to learn


@in_order(
    completion_column="prompt_column",
    device="precision",
    gradient_checkpointing="attn_implementation",
    save_every="lora_alpha",
)
@dataclass
class Config(RunSettings):
    """All settings and their defaults: those of RunSettings and these; each is a flag and a key of --config."""

    # model and data
    completion_column: str = setting("completion", "column with the solutions, without --self and --teacher")
    output_dir: str = setting("runs/warm", "folder for samples, rounds and final/", free=True)
    # where solutions come from
    self: bool = setting(False, "train on the model's own samples that pass", section="where solutions come from")
    teacher: str = setting("", "train on samples of this model: folder, hub id, or http://HOST:PORT/v1[#MODEL]")
    samples: int = setting(16, "completions sampled per prompt, with --self or --teacher", positive=True)
    sample_temperature: float = setting(
        1.0, "their sampling temperature; a higher one finds rare solutions", positive=True
    )
    prompts_per_round: int = setting(256, "prompts sampled in a round; rounds continue through the data", positive=True)
    max_draws: int = setting(4, "times that a round may draw prompts_per_round prompts", positive=True, free=True)
    # when RL can take over
    rounds: int = setting(
        5, "limit on rounds of solutions and training", positive=True, free=True, section="when RL can take over"
    )
    min_rounds: int = setting(0, "fewest rounds, even if the model is within the bounds earlier", free=True)
    pass_low: float = setting(0.1, "lowest held-out pass rate at which RL can begin")
    pass_score: float = setting(1.0, "lowest score of the first reward with which a completion passes", positive=True)
    hold_out: int = setting(0, "rows of --data to hold out for the measure, instead of --eval_data; whole prompts")
    eval_prompts: int = setting(64, "held-out prompts to sample (0: all)")
    eval_samples: int = setting(16, "completions of each held-out prompt", positive=True)
    group_size: int = setting(8, "completions per prompt in the RL run", positive=True)
    # sampling
    max_prompt_tokens: int = setting(512, "longer prompts are left out, and counted", positive=True, section="sampling")
    max_new_tokens: int = setting(256, "longest completion, as in the RL run", positive=True)
    temperature: float = setting(1.0, "temperature of the RL run, at which the pass rate is measured", positive=True)
    rollout_engine: str = setting("hf", "sampling engine", ["hf", "vllm"])
    rollout_batch_size: int = setting(128, "sequences sampled at once, and written to disk together", positive=True)
    vllm_memory: float = setting(0.3, "share of GPU memory that vLLM may take", free=True)
    check_sync: int = setting(1, "rounds between comparisons of vLLM's weights with the policy's (0: never)", free=True)
    # training
    epochs: float = setting(2.0, "passes over the solutions in a round", positive=True, section="training")
    batch_size: int = setting(16, "solutions per optimizer step", positive=True)
    micro_batch_size: int = setting(0, "solutions in a forward pass (0: all below 50M parameters, else 1)", free=True)
    lr: float = setting(0.0, "learning rate (0: 1e-3 below 50M parameters, 1e-4 with LoRA, else 1e-5)")
    lr_schedule: str = setting("linear", "shape of the learning rate in a round", ["constant", "linear", "cosine"])
    warmup_steps: int = setting(0, "steps of a round over which the learning rate rises")
    device: str = setting("auto", "auto: a CUDA GPU, else the CPU", ["auto", "cpu", "cuda"], free=True)
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass", free=True)
    save_every: int = setting(
        100, "optimizer steps between checkpoints within a round (0: none)", free=True, section="checkpoints"
    )
    resume: bool = setting(False, "continue from what was sampled and trained in output_dir", free=True)

    # what the parts read and this program does not offer
    load_in_4bit = False
    logits_chunk = 2**26
    merge_lora = True
    save_dtype = "checkpoint"
    environment = ""

    @property
    def samples_solutions(self_) -> bool:
        """Whether solutions are sampled; `self` is a setting here."""
        return bool(self_.self or self_.teacher)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)


def check_warm_start(config: Config) -> None:
    """Raise UserError for settings that are out of range or cannot work together."""
    c, usual = config, type(config)()
    check_values(c, "model", "data", "output_dir", "prompt_column", "completion_column")
    need(not (c.self and c.teacher), "got --self and --teacher; expected one of them; try --teacher alone")
    of_samples = ("samples", "sample_temperature", "prompts_per_round", "max_draws")
    unused = ("completion_column",) if c.samples_solutions else of_samples
    idle = ", ".join(f"--{name}" for name in unused if getattr(c, name) != getattr(usual, name))
    where = "with" if c.samples_solutions else "without"
    need(not idle, f"got {idle} {where} --self or --teacher, where they have no effect; try leaving them out")
    need(c.pass_low <= PASS_HIGH, f"got pass_low {c.pass_low}; expected at most {PASS_HIGH}; try --pass_low 0.3")
    need(c.min_rounds <= c.rounds, f"got min_rounds {c.min_rounds} above rounds; try --rounds {c.min_rounds}")
    micro = c.micro_batch_size or c.batch_size
    need(c.batch_size % micro == 0, f"got micro_batch_size {micro}; expected a divisor of batch_size {c.batch_size}")
    vllm = c.rollout_engine == "vllm"
    need(vllm or not c.vllm_args, f"got --vllm_args with rollout_engine {c.rollout_engine}; try --rollout_engine vllm")
    local = c.teacher and not is_server(c.teacher)
    known = not local or Path(c.teacher).is_dir() or is_hub_id(c.teacher)
    need(known, f"got teacher {c.teacher!r}; expected a folder, a hub id, or http://HOST:PORT/v1; try its whole path")
    need(not (vllm and local), "got --teacher with vllm, whose engine holds one model; try --rollout_engine hf")
    many = int(os.environ.get("WORLD_SIZE", "1"))
    need(many == 1, f"got {many} processes; expected one; try without torchrun")
    slow = c.precision == "fp16" and device_name(c) == "cpu"
    need(
        not slow, "got --precision fp16 on a CPU, where TRL trains in fp32; expected bf16 or fp32; try --precision bf16"
    )
    say_idle(config, updates=2)


def settled_training(config: Config, parameters: int) -> tuple[float, int]:
    """Learning rate and rows of a forward pass, by model size where the setting is 0."""
    lr = config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))
    return lr, config.micro_batch_size or (config.batch_size if parameters < 50e6 else 1)


# -------------------------------------------------------------------- solutions (src/programs/warm_start/solutions.py)


def check_leaks(rows: list[dict], held_out: list[dict], source: str) -> None:
    """Raise UserError where a prompt of `source` is held out too, but for case, white space or system prompt."""
    alike = {asked_words(row["prompt"]) for row in held_out}
    leaks = [row["prompt"] for row in rows if asked_words(row["prompt"]) in alike]
    first = json.dumps(leaks[:1], ensure_ascii=False)[:120]
    got = f"{source}: got {len(leaks)} of {len(rows)} prompts that are held out too, such as {first}"
    need(not leaks, f"{got}; expected none; try {split_command('FILE')}")


def without_solutions(rows: list[dict]) -> list[dict]:
    """Rows as RL will have them: a reward must not find the solution in the column `completion`."""
    return [row | {"columns": {k: v for k, v in row["columns"].items() if k != "completion"}} for row in rows]


def solution_text(config: Config, row: dict) -> str:
    """The solution that the data have for a prompt: a string, or one assistant message."""
    value = row["columns"].get(config.completion_column)
    got = f"{config.data}, prompt {json.dumps(row['prompt'])[:80]}: got {config.completion_column} {str(value)[:60]!r}"
    expected = "expected a solution, a string or one assistant message"
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        more = [key for key, held in value[0].items() if key not in ("role", "content") and held]
        need(not more, f"{got} with {', '.join(more)}; {expected}; try writing all that it says into its content")
        value = value[0].get("content") if value[0].get("role") == "assistant" else None
    remedy = "--completion_column NAME, data_loader.py, --self or --teacher"
    need(isinstance(value, str) and value.strip(), f"{got}; {expected}; try {remedy}")
    return value


def continued_ids(config: Config, tokenizer, row: dict, text: str) -> list[int]:
    """What stands after the prompt's ids where prompt and text are rendered together; nothing if those change."""
    sent, prompt_ids = as_turns(row["prompt"], config.chat), row["prompt_ids"]
    try:
        if isinstance(sent, str):
            whole = encode_text(tokenizer, sent + text)
        elif tokenizer.chat_template:
            before, begun = (sent[:-1], sent[-1]["content"]) if sent[-1]["role"] == "assistant" else (sent, "")
            answered = [*before, {"role": "assistant", "content": begun + text}]
            whole = write_chat(tokenizer, answered, **template_settings(config))
            whole = tokenizer(whole, add_special_tokens=False).input_ids
        else:
            return []
    except Exception:  # a template raises what it likes; the text alone is encoded then
        return []
    whole = list(whole)
    return whole[len(prompt_ids) :] if whole[: len(prompt_ids)] == prompt_ids else []


def without_opened_tag(tokenizer, row: dict, text: str) -> str:
    """The solution less a tag at its beginning, such as <think>, that the prompt opens at its end already."""
    opened = re.search(r"(<\w+>)(\s*)$", tokenizer.decode(row["prompt_ids"]))
    if opened and text.lstrip().startswith(opened[1]):
        return text.lstrip().removeprefix(opened[1]).removeprefix(opened[2])
    return text


def solution_ids(config: Config, models, row: dict, text: str) -> list[int]:
    """Token ids of a solution with one end token, as the policy would sample them after the row's prompt_ids.

    Where the chat template renders prompt and answer so that the prompt's ids stay, its ids are taken up to the first
    end token, if they read as the text; else the text's own.
    """
    tokenizer, ends = models.tokenizer, models.eos_ids
    text = without_opened_tag(tokenizer, row, text)
    behind = continued_ids(config, tokenizer, row, text)
    at = next((i for i, token in enumerate(behind) if token in ends), len(behind))
    end = behind[at] if at < len(behind) else tokenizer.eos_token_id
    end = end if end in ends else ends[0]
    if behind and visible_text(tokenizer, behind[:at], []) == text:
        return [*behind[:at], end]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    while ids and ids[-1] in ends:  # the text may hold its end token already
        ids = ids[:-1]
    got = f"got solution {text[:80]!r}, which is empty or has an end token inside"
    need(ids and not {*ids} & {*ends}, f"{got}; expected one at its end at most; try removing it from the text")
    return [*ids, end]


def given_solutions(config: Config, tokenizer, reward: Reward, rows: list[dict]) -> list[dict]:
    """The data's own solutions that end within max_new_tokens and pass the reward, each once; no weights are loaded."""
    ends = ending_ids(generation_settings(base_of(config.model)).eos_token_id, tokenizer)
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    models, bare = SimpleNamespace(tokenizer=tokenizer, eos_ids=ends), without_solutions(rows)
    solutions, long = {}, 0
    for i, row in enumerate(rows):
        text = solution_text(config, row)
        ids = solution_ids(config, models, row, text)
        long += len(ids) > config.max_new_tokens
        if len(ids) <= config.max_new_tokens:
            one = {"row": i, "text": text, "ids": ids, "prompt": row["prompt"]}
            solutions.setdefault((json.dumps(row["prompt"]), text), one)
    kept = [*solutions.values()]
    texts = [visible_text(tokenizer, one["ids"], ends) for one in kept]
    _, parts = reward([bare[one["row"]] for one in kept], texts, [one["ids"] for one in kept])
    first = next(iter(parts.values()), [])
    passing = [one for one, score in zip(kept, first, strict=True) if score is not None and score >= config.pass_score]
    repeated, failing = len(rows) - long - len(kept), len(kept) - len(passing)
    if long or repeated or failing:
        say(
            f"{config.data}: left out {failing} of {len(rows)} solutions as the reward does not pass them, {long} over "
            f"{config.max_new_tokens} tokens, {repeated} duplicates"
        )
    example = f"; the first that fails is {texts[0][-80:]!r}" if texts else "; try a higher --max_new_tokens"
    got = f"{config.data}: got no solution of {len(rows)} that ends within {config.max_new_tokens} tokens and passes"
    need(passing, f"{got} the first reward{example}; expected solutions in the form that the reward pays")
    return passing


def load_prompts_and_reward(config: Config) -> tuple:
    """(tokenizer, reward, rows, held-out rows), checked: columns and leaks."""
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer, check=lambda _, *rows: check_leaks(*rows, config.data))
    reward = Reward(specs_for(config.data, config.reward), call_limits(config))
    got = "got no --eval_data or --hold_out; expected held-out prompts, which show when RL can begin"
    need(held_out, f"{got}; try {split_command('FILE')}, which writes part.eval.jsonl too")
    if config.teacher and not is_server(config.teacher):
        of_teacher = dataclasses.replace(config, model=config.teacher, chat_template="")
        prompts = [row["prompt"] for row in rows]
        check_template(of_teacher, load_tokenizer(of_teacher), f"--teacher {config.teacher}", prompts)
    for row in without_solutions((rows + held_out)[:: max(1, len(rows))]):
        reward.check_columns(row)
    return tokenizer, reward, rows, held_out


# ---------------------------------------------------------------------- workshop (src/programs/warm_start/workshop.py)


def write_json(path: Path, value) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict]:
    """Read JSONL; no rows where there is no file."""
    return [row for _, row in placed_json_lines(path)] if path.exists() else []


class Workshop:
    """Loads policies when they are needed; `rows` are prompts without solutions, `held_out` those that are measured.

    `at_once` completions are sampled together, half as many whenever memory runs out.
    """

    def __init__(self, config: Config, device, tokenizer, reward: Reward, rows, held_out, at_once: int = 0):
        self.config, self.device, self.tokenizer, self.reward = config, device, tokenizer, reward
        self.rows, self.held_out, self.stop = rows, held_out, StopRequest()
        self.models, self.source, self.vllm = None, None, None
        self.folder, self.at_once = Path(config.output_dir), at_once or config.rollout_batch_size

    def round_folder(self, number: int) -> Path:
        """Where a round's files are; round 0 is the model as it came."""
        return self.folder / "rounds" / f"round-{number:03d}"

    def policy_folder(self, number: int) -> Path | None:
        """The newest policy up to a round; None for the model as it came."""
        folders = [self.round_folder(n) / "policy" for n in range(number, 0, -1)]
        return next((folder for folder in folders if folder.exists()), None)

    def check_stop(self) -> None:
        if self.stop.signum:
            raise StopRequested(self.stop.signum)

    def release(self) -> None:
        if self.models:
            self.models.policy = None
        self.source = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def load(self, number: int) -> Models:
        """The networks with the policy after a round."""
        folder = self.policy_folder(number)
        if self.models and self.models.policy is not None and self.source == (folder,):
            return self.models
        self.release()
        if not folder:
            torch.manual_seed(self.config.seed)  # new adapters are the same in each round
        policy = load_policy(self.config, self.device, folder)
        ends, pad = end_and_pad_ids(self.config, policy, self.tokenizer)
        if self.models is None:
            self.models = Models(policy, None, None, self.tokenizer, ends, pad, self.device)
            check_pads(self.config, self.models, policy, "model")
        self.models.policy, self.source = policy, (folder,)
        settle_logits(self.config, self.models)
        return self.models

    def engine(self, number: int, temperature: float):
        """Who samples with the policy after a round, at a temperature."""
        config, models = dataclasses.replace(self.config, temperature=temperature), self.load(number)
        if config.rollout_engine == "hf":
            return HFEngine(config, models)
        self.vllm = self.vllm or VllmEngine(config, models)
        self.vllm.config = config
        self.vllm.sync(number)
        return self.vllm

    def sampler(self, number: int, temperature: float):
        """A function that samples and scores one completion of each row with the policy after a round."""
        engine = self.engine(number, temperature)
        return lambda rows, noise: self.samples(self.models, engine, rows, noise)

    def samples(self, models: Models, engine, rows: list[dict], noise) -> list[dict]:
        """One scored completion of each row, in smaller batches where memory runs out."""
        while True:
            engine.config = dataclasses.replace(engine.config, rollout_batch_size=self.at_once)
            advice = f"a new run with a lower --max_new_tokens than {engine.config.max_new_tokens}"
            try:
                with room_for("while sampling", advice):
                    return collect(engine.config, models, engine, self.reward, rows, noise, {})
            except MemoryShortage:
                if self.at_once == 1 or engine is self.vllm:
                    raise
            self.at_once //= 2
            say(f"out of memory while sampling; going on with {self.at_once} completions at once")


class Teacher:
    """Another model that samples through its own tokenizer and chat template; the policy is let go of before."""

    def __init__(self, shop: Workshop):
        config = shop.config
        shop.release()
        self.config = dataclasses.replace(
            config, model=config.teacher, chat_template="", lora_rank=0, temperature=config.sample_temperature
        )
        with room_for("while the teacher was loaded", "a smaller --teacher, or one behind a server"):
            self.models = load_sampler(self.config, load_tokenizer(self.config), shop.device, "teacher")
        self.engine, self.shop = HFEngine(self.config, self.models), shop
        check_context(self.config, self.models, [*map(self.row, shop.rows)])

    def sample(self, rows: list[dict], noise) -> list[dict]:
        """One scored completion of each row."""
        return self.shop.samples(self.models, self.engine, [*map(self.row, rows)], noise)

    def row(self, row: dict) -> dict:
        sent, template = as_turns(row["prompt"], self.config.chat), template_settings(self.config)
        return row | {
            "prompt_ids": checked_ids(self.models.tokenizer, sent, f"--teacher {self.config.model}", **template)
        }


class ServerTeacher:
    """A model behind an OpenAI-compatible server: it gets prompts as they stand in the data, and gives texts."""

    at_once = 32  # requests that are under way
    hint = "try another --teacher http://HOST:PORT/v1#MODEL, or start it again and --resume"

    def __init__(self, shop: Workshop):
        self.shop, config = shop, shop.config
        self.url, _, self.name = config.teacher.partition("#")
        self.limits = {"max_tokens": config.max_new_tokens, "temperature": config.sample_temperature}
        self.template = template_settings(config)
        if not self.name:
            served = server_json(self.url.rstrip("/") + "/models", None, self.hint).get("data") or [{}]
            self.name = served[0].get("id", "")
            need(self.name, f"got --teacher {config.teacher}, which serves no model; expected one; {self.hint}")

    def ask(self, row: dict, draw: float) -> tuple[str, bool]:
        """(text, whether it ended by itself) for a row; the first draw of its noise is the seed."""
        prompt = as_turns(row["prompt"], self.shop.config.chat)
        body = {"model": self.name, **self.limits, "seed": int(draw * 2**31)}
        if self.template and not isinstance(prompt, str):
            body["chat_template_kwargs"] = self.template
        text, reason, _ = server_text(self.url, prompt, body, self.hint)
        return text, reason != "length"

    def sample(self, rows: list[dict], noise) -> list[dict]:
        """One scored completion of each row; its ids are those that the student's tokenizer has for the text."""
        with ThreadPoolExecutor(self.at_once) as pool:
            texts, ended = zip(*pool.map(self.ask, rows, noise[:, 0].tolist()), strict=True)
        ids = [self.shop.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        scores, parts = self.shop.reward(rows, list(texts), ids)
        made = zip(rows, texts, ids, ended, scores, strict=True)
        return [
            {"prompt": row["prompt"], "completion": text, "response_ids": response, "rollout_logprobs": []}
            | {"rewards": {name: values[i] for name, values in parts.items()}, "finished": end, "score": score}
            for i, (row, text, response, end, score) in enumerate(made)
        ]


# ------------------------------------------------------------------------ samples (src/programs/warm_start/samples.py)

HELD_OUT, TRAINING = 1, 2  # which draws: of the noise
FEWEST_PROMPTS = 16  # a round samples again while fewer prompts have a solution
MOST_PER_PROMPT = 4  # solutions kept per prompt in a round
FORMAT_LOW = 0.8  # least share of completions that end, and that have full marks from a reward named …format…
ENTROPY_LOW = 0.005  # least entropy of held-out samples, in nats per token
COVERAGE = 0.8  # rounds go on while a smaller share of held-out prompts was ever solved …
LEAST_GAIN = 0.05  # … and a round widens that share by this


class Sampler:
    """Draws samples of prompts into a folder; finished parts are read from it, and no model is loaded for them.

    `source` returns, when asked, a function of rows and noise that samples and scores a completion of each; `kind` and
    `number` choose the noise.
    """

    def __init__(self, shop: Workshop, folder: Path, source, kind: int, number: int, count: int):
        self.shop, self.folder, self.source, self.count = shop, folder, source, count
        self.seed, self.ready, self.next = [shop.config.seed, 5, kind, number], None, 0
        self.title = "held-out samples" if kind == HELD_OUT else f"samples of round {number}"

    def parts(self, rows: list[dict], numbers: list[int]) -> list[dict]:
        """Samples of rows[numbers], `count` of each, in this order; a further call has further parts."""
        from tqdm import tqdm

        size, wait = max(1, self.shop.config.rollout_batch_size // self.count), 0.5 if sys.stderr.isatty() else 20
        starts, samples = range(0, len(numbers), size), []
        bar = tqdm(starts, self.title, mininterval=wait, delay=wait, dynamic_ncols=True)
        for part, start in enumerate(bar, self.next):
            path = self.folder / f"part-{part:05d}.jsonl"
            if not path.exists():
                self.shop.check_stop()
                write_lines(path, self.draw(rows, numbers[start : start + size], part))
            samples += read_lines(path)
        self.next += len(starts)
        return samples

    def draw(self, rows: list[dict], numbers: list[int], part: int) -> list[dict]:
        self.ready = self.ready or self.source()
        config, asked = self.shop.config, [rows[i] for i in numbers for _ in range(self.count)]
        width = config.max_new_tokens if config.rollout_engine == "hf" else 1  # vLLM seeds a row by its first draw
        noise = np.random.default_rng([*self.seed, part]).random((len(asked), width))
        made = self.ready(asked, noise)
        samples = []
        for i, one in enumerate(made):
            first = next(iter(one["rewards"].values()))
            passed = bool(one["finished"] and first is not None and first >= config.pass_score)
            sample = {"row": numbers[i // self.count], "prompt": one["prompt"], "text": one["completion"]}
            sample |= {"ids": one["response_ids"], "passed": passed, "logprob": sum(one["rollout_logprobs"])}
            samples.append(sample | {name: one[name] for name in ("score", "rewards", "finished")})
        return samples


def well_formed(sample: dict) -> bool:
    """Whether a sample has full marks from the first reward that is named …format…, if there is one.

    RL begins only where most samples have them: right answers in a wrong form must not train.
    """
    value = next((value for name, value in sample["rewards"].items() if "format" in name), 1)
    return value is not None and value >= 1


def draws_of_round(shop: Workshop, number: int) -> Iterator[list[dict]]:
    """Samples of a round, by the policy before it or by the teacher: `prompts_per_round` prompts at a time."""
    config, folder = shop.config, shop.round_folder(number)
    count = min(config.prompts_per_round, len(shop.rows))
    earlier, start = [shop.round_folder(n) / "sampled.json" for n in range(1, number)], 0  # prompts that they used
    for path in earlier:
        need(path.exists(), f"got no {path}; expected the file of an earlier round; try a new --output_dir")
        start += json.loads(path.read_text())["prompts"]

    def source():
        if config.teacher:
            return (ServerTeacher if is_server(config.teacher) else Teacher)(shop).sample
        return shop.sampler(number - 1, config.sample_temperature)

    sampler = Sampler(shop, folder / "samples", source, TRAINING, number, config.samples)
    for draw in range(config.max_draws):
        picked = batch_rows(range(len(shop.rows)), config, start + draw * count, count)
        yield sampler.parts(shop.rows, picked)


def chosen_samples(samples: list[dict]) -> list[dict]:
    """Different, well-formed samples that pass: of a prompt as many as it had failures, 1 to MOST_PER_PROMPT."""
    groups = defaultdict(list)
    for one in samples:
        groups[one["row"]].append(one)
    kept = []
    for group in groups.values():
        different = [*{one["text"]: one for one in group if one["passed"] and well_formed(one)}.values()]
        failures = sum(not one["passed"] for one in group)
        kept += different[: min(MOST_PER_PROMPT, max(1, failures))]
    return kept


def in_policys_ids(shop: Workshop, number: int, kept: list[dict]) -> list[dict]:
    """A teacher's solutions as the policy's tokens; those that it cannot say within max_new_tokens are left out."""
    config, models, encoded = shop.config, shop.load(number - 1), []
    for one in kept:
        with contextlib.suppress(UserError):  # an end token inside the text
            ids = solution_ids(config, models, shop.rows[one["row"]], one["text"])
            if len(ids) <= config.max_new_tokens:
                encoded.append(one | {"ids": ids})
    if len(encoded) < len(kept):
        long = f"over {config.max_new_tokens} of the policy's tokens"
        say(f"left out {len(kept) - len(encoded)} of them: {long}, or with an end token inside")
    return encoded


def sampled_solutions(shop: Workshop, number: int) -> list[dict]:
    """Solutions of this round and of those before it, each text of a prompt once; a teacher's in the policy's ids.

    Samples are drawn until enough prompts have a solution: a policy trained on a few answers goes on to sample those,
    and the next round then solves only prompts with these answers.
    """
    config, earlier = shop.config, read_lines(shop.round_folder(number - 1) / "supervised.jsonl")
    solved, kept, counts = {one["row"] for one in earlier}, [], {"prompts": 0, "samples": 0, "passed": 0}
    least = min(FEWEST_PROMPTS, len(shop.rows))
    for draw, samples in enumerate(draws_of_round(shop, number), 1):
        kept += chosen_samples(samples)
        counts["prompts"] += len(samples) // config.samples
        counts["samples"] += len(samples)
        counts["passed"] += sum(one["passed"] for one in samples)
        solved |= {one["row"] for one in kept}
        share = f"{counts['passed']} of {counts['samples']} samples pass, {len(kept)} are kept"
        say(f"round {number}: {share}; {len(solved)} prompts have a solution")
        if len(solved) >= least:
            break
        few = "so few solutions teach little; " if solved else ""
        more = "sampling more" if draw < config.max_draws else f"{few}--max_draws allows more"
        say(f"that is below {FEWEST_PROMPTS} prompts: {more}")
    if config.teacher and kept:
        kept = in_policys_ids(shop, number, kept)
    solutions = {}
    for one in [*earlier, *kept]:
        solutions[json.dumps(one["prompt"]), one["text"]] = {key: one[key] for key in ("row", "text", "ids", "prompt")}
    counts |= {"solved": len(solved), "solutions": len(solutions)}
    write_json(shop.round_folder(number) / "sampled.json", counts)
    return [*solutions.values()]


def measured(config: Config, samples: list[dict], number: int) -> dict:
    """Figures of held-out samples after a round.

    `entropy` is minus the mean log-prob of the sampled tokens, an unbiased estimate at the sampler's temperature.
    `format` is the share with full marks from the first reward that is named …format…; None where there is none.
    """
    tried = Counter(one["row"] for one in samples)
    passed = Counter(one["row"] for one in samples if one["passed"])
    counts = [(n, passed[row]) for row, n in tried.items()]
    shape = next((name for name in samples[0]["rewards"] if "format" in name), None)
    shaped = [one["rewards"][shape] for one in samples if shape and one["rewards"][shape] is not None]
    rates = describe_pass_rates(counts, config.group_size, config.pass_low, PASS_HIGH)
    return {
        "round": number,
        **rates,
        "ends": statistics.fmean(one["finished"] for one in samples),
        "format": statistics.fmean(value >= 1 for value in shaped) if shaped else None,
        "entropy": -sum(one["logprob"] for one in samples) / sum(len(one["ids"]) for one in samples),
        "different": len({(one["row"], one["text"]) for one in samples}) / len(samples),
        "tokens_mean": statistics.fmean(len(one["ids"]) for one in samples),
    }


def measure(shop: Workshop, number: int) -> dict:
    """Figures of held-out samples by the policy after a round, from measure.json where it is there."""
    config, folder = shop.config, shop.round_folder(number)
    if (folder / "measure.json").exists():
        return json.loads((folder / "measure.json").read_text())
    order = np.random.default_rng([config.seed, 6]).permutation(len(shop.held_out)).tolist()
    picked = sorted(order[: config.eval_prompts or None])

    def source():
        return shop.sampler(number, config.temperature)

    # one noise for all rounds: what differs between them is the policy
    sampler = Sampler(shop, folder / "held_out", source, HELD_OUT, 0, config.eval_samples)
    figures = measured(config, sampler.parts(shop.held_out, picked), number)
    write_json(folder / "measure.json", figures)
    return figures


def coverage(figures: dict) -> float:
    """Share of held-out prompts with a sample that passes: those that RL can reinforce."""
    return 1 - figures["prompts_by_pass_rate"]["0"] / figures["prompts"]


def widens(config: Config, measures: list[dict]) -> bool:
    """Whether a further round pays though RL could begin: few prompts are solved, and more after each round."""
    if not config.samples_solutions or len(measures) < 2 or coverage(measures[-1]) >= COVERAGE:
        return False
    return coverage(measures[-1]) - coverage(measures[-2]) >= LEAST_GAIN


def obstacles(config: Config, figures: dict) -> dict[str, str]:
    """What keeps RL from taking over, by name: too low a pass rate, the format, a collapsed entropy."""
    wrong = {}
    if figures["pass_rate"] < config.pass_low:
        wrong["pass rate"] = f"pass rate {figures['pass_rate']:.3f}, below {config.pass_low:g}"
    for name, kind in (("ends", "completions that end"), ("format", "completions of the right format")):
        if figures[name] is not None and figures[name] < FORMAT_LOW:
            wrong[name] = f"{figures[name]:.3f} {kind}, below {FORMAT_LOW:g}"
    if figures["entropy"] < ENTROPY_LOW:
        wrong["entropy"] = f"entropy {figures['entropy']:.4f} nats per token, below {ENTROPY_LOW:g}"
    return wrong


# -------------------------------------------------------------------- supervise (src/programs/warm_start/supervise.py)

FEWEST_STEPS = 32  # optimizer steps of a round on samples; more passes if needed


def training_rows(shop: Workshop, solutions: list[dict]) -> list[dict]:
    """input_ids and labels: the prompt as the RL trainers have it, and the solution, which alone has labels."""
    rows = []
    for one in solutions:
        prompt = list(shop.rows[one["row"]]["prompt_ids"])
        rows.append({"input_ids": prompt + one["ids"], "labels": [-100] * len(prompt) + one["ids"]})
    return rows


def sft_settings(config: Config, folder: Path, parameters: int) -> dict:
    lr, micro = settled_training(config, parameters)
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": config.batch_size // micro,
        "learning_rate": lr,
        "lr_scheduler_type": config.lr_schedule,
        "warmup_steps": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "seed": config.seed,
        "bf16": config.precision == "bf16",
        "fp16": config.precision == "fp16",
        "use_cpu": config.device == "cpu" or not torch.cuda.is_available(),
        "dataloader_pin_memory": config.device != "cpu" and torch.cuda.is_available(),
        "activation_checkpointing": config.gradient_checkpointing,
        "max_length": None,
        "router_aux_loss_coef": 0.0,  # by default a mixture of experts adds its own to the loss
        "completion_only_loss": False,  # the labels say it; True asks for a mask's column
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "save_strategy": "steps" if config.save_every else "no",
        "save_steps": config.save_every or 500,
        "save_total_limit": 1,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def enough_epochs(config: Config, rows: int) -> float:
    """Passes over so many rows with which a round on sampled solutions has FEWEST_STEPS steps.

    Trained anew, the model has only this round's steps: four of them on one batch teach it nothing.
    """
    steps = math.ceil(rows / config.batch_size)
    return max(config.epochs, FEWEST_STEPS / steps)


def make_callback(stop: StopRequest):
    """A transformers callback that stops at a signal, and where gradients are not finite; it reports progress."""
    said = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        if stop.signum:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args, state, control, logs=None, **_):
        nonlocal said
        step, of, norm = state.global_step, state.max_steps, (logs or {}).get("grad_norm", 0.0)
        due = (of >= 100 and step % (of // 10) == 0) or time.monotonic() - said > 60
        if logs and "loss" in logs and due:
            said = time.monotonic()
            say(f"step {step} of {of}, loss {logs['loss']:.3f}")
        if not math.isfinite(norm) and not args.fp16:  # fp16's scaler leaves such updates out while it settles
            raise DivergedError(f"step {step}: got a gradient norm of {norm}; expected a finite one; try a lower --lr")

    return type("StopCallback", (transformers.TrainerCallback,), {"on_step_end": on_step_end, "on_log": on_log})()


def make_sft_trainer(shop: Workshop, folder: Path, rows: list[dict], policy):
    """TRL's SFTTrainer for a round; what it refuses is told as a UserError."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    settings = sft_settings(shop.config, folder, sum(p.numel() for p in policy.parameters()))
    try:
        trainer = SFTTrainer(
            model=policy,
            args=SFTConfig(**settings),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=load_tokenizer(shop.config),  # TRL gives it a pad token; ours is saved as it was
            callbacks=[make_callback(shop.stop)],
        )
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"got these settings, which TRL refuses: {error}") from error
    trainer.remove_callback(transformers.PrinterCallback)
    if shop.config.samples_solutions:
        trainer.args.num_train_epochs = enough_epochs(shop.config, len(rows))
    return trainer


def supervise(shop: Workshop, number: int, solutions: list[dict]) -> None:
    """Train on solutions and write the round's policy/ and training.json.

    Sampled solutions are those of all rounds and train the original model, so that a round with few of them
    leaves no trace (as in STaR). The data's own solutions train the policy of the round before.
    """
    start = 0 if shop.config.samples_solutions else number - 1
    folder, rows, models = shop.round_folder(number), training_rows(shop, solutions), shop.load(start)
    policy = unwrapped(models.policy)
    settings = copy.deepcopy((policy.config, policy.generation_config))  # TRL writes into them
    trainer = make_sft_trainer(shop, folder / "training", rows, models.policy)
    advice = "--resume --gradient_checkpointing, --resume --micro_batch_size 1, or a new run with --lora_rank 16"
    checkpoints = trainer_checkpoints(folder / "training")
    with room_for("in training", advice):
        trainer.train(resume_from_checkpoint=str(checkpoints[max(checkpoints)]) if checkpoints else None)
    steps = trainer.state.global_step
    if shop.stop.signum and steps < trainer.state.max_steps:
        raise StopRequested(shop.stop.signum)
    policy.config, policy.generation_config = settings
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    record = {"solutions": len(rows), "steps": steps, "loss_first": losses[0], "loss_last": losses[-1]}
    write_json(folder / "training.json", record)
    say(f"round {number}: solutions {len(rows)}, steps {steps}, loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    def write(target: Path) -> None:
        models.policy.save_pretrained(target)
        save_tokenizer(models.tokenizer, target)

    write_folder(folder / "policy", write)
    shutil.rmtree(folder / "training", ignore_errors=True)
    del trainer
    shop.release()  # TRL has patched the policy's forward pass: it is loaded anew


# -------------------------------------------------------------------------------- run (src/programs/warm_start/run.py)


def warm_start_memory(config: Config, model, teacher, prompt: int) -> dict[str, float]:
    """Bytes: what stays, and the peaks of training and sampling, with a longest prompt of `prompt` tokens.

    `model` and a local `teacher` are networks on the meta device; the model is not in memory while the teacher samples.
    """
    parameters, shape = sum(p.numel() for p in model.parameters()), shape_of(model)
    if not shape:
        return {}
    run = pass_of_rows(config, model, settled_training(config, parameters)[1], prompt + config.max_new_tokens)
    trained = sum(network_bytes(config, shape, parameters))
    rows = 0 if config.rollout_engine == "vllm" else config.rollout_batch_size
    prompts = dataclasses.replace(run, rows=rows, length=prompt)
    weights = parameters * run.stream + folded_bytes(config, shape, run)
    peaks = [weights + sampling_bytes(shape, prompts, config.max_new_tokens)]
    if teacher and (other := shape_of(teacher)):
        weights = sum(p.numel() for p in teacher.parameters()) * run.compute
        peaks.append(weights + sampling_bytes(other, prompts, config.max_new_tokens))
    return {
        "weights, gradients and optimizer": trained,
        UPDATE: trained + backward_peak(shape, run, trl_head(shape, run, fused=False)),
        SAMPLING: max(peaks),
    }


def sizes_of_run(config: Config, rows: list[dict]) -> Sizes:
    """What may be chosen by the memory that is free: how many completions are sampled at once."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    local = config.teacher and not is_server(config.teacher)
    teacher = shaped_network(config, config.teacher) if local else None
    recompute = {} if config.gradient_checkpointing else {"gradient_checkpointing": True}

    def choices(changed: Config, heed: bool) -> dict[str, list[dict]]:
        open_here = not heed or is_chosen_here(changed, "rollout_batch_size")
        counts = ladder(changed.rollout_batch_size, 1) if open_here else [changed.rollout_batch_size]
        return {UPDATE: [{}], SAMPLING: [{"rollout_batch_size": count} for count in counts]}

    return Sizes(
        estimate=lambda changed: warm_start_memory(changed, model, teacher, prompt),
        choices=choices,
        text=lambda changed: f"{changed.rollout_batch_size} completions sampled at once",
        lighter=lighter_settings(config, "max_new_tokens", recompute, bits=False),
        aside=config.vllm_memory if config.rollout_engine == "vllm" else 0.0,
    )


def print_warm_start_plan(config: Config, tokenizer, reward, rows: list[dict], held_out: list[dict]) -> int:
    """Print what a run would do as JSON; returns the exit code."""
    device = device_name(config)
    settle_precision(config, torch.device(device))
    parameters = sum(p.numel() for p in shaped_network(config, config.model).parameters())
    lr, micro = settled_training(config, parameters)
    round_prompts = min(config.prompts_per_round, len(rows))
    sampled = config.samples_solutions
    if sampled:
        most = round_prompts * min(MOST_PER_PROMPT, config.samples)
    else:
        most = len(given_solutions(config, tokenizer, reward, rows))
    epochs = enough_epochs(config, most) if sampled else config.epochs
    batch = batch_plan(config, tokenizer, rows, held_out) | {
        "rounds": config.rounds,
        "held_out_samples": min(config.eval_prompts or len(held_out), len(held_out)) * config.eval_samples,
        "samples_of_a_draw": round_prompts * config.samples * sampled,
        "draws_at_most": config.max_draws * sampled,
        "solutions_of_a_draw_at_most": most,
        "completions_per_optimizer_step": config.batch_size,
        "optimizer_steps_on_these": math.ceil(epochs * math.ceil(most / config.batch_size)),
    }
    source = config.teacher or ("the model's samples" if config.self else f"column {config.completion_column}")
    plan = {"batch": batch, "solutions": source, "parameters": parameters}
    show_plan(config, device, sizes_of_run(config, rows + held_out), plan, lr=lr, micro_batch_size=micro)
    return 0


def solutions_of_round(shop: Workshop, given: list[dict], number: int) -> list[dict]:
    """A round's solutions, from supervised.jsonl where they are there; `given` are those of the data."""
    config, path = shop.config, shop.round_folder(number) / "supervised.jsonl"
    if not path.exists():
        earlier = read_lines(shop.round_folder(number - 1) / "supervised.jsonl")
        write_lines(path, sampled_solutions(shop, number) if config.samples_solutions else earlier or given)
    solutions = read_lines(path)
    for one in solutions:
        same = one["row"] < len(shop.rows) and shop.rows[one["row"]]["prompt"] == one["prompt"]
        need(same, f"{path}: got a solution to another prompt than {config.data} has there; expected the run's data")
    return solutions


def play_round(shop: Workshop, given: list[dict], number: int, before: dict) -> dict:
    """Solutions, training and measure of a round; what is on disk is not done again."""
    folder = shop.round_folder(number)
    if not (folder / "measure.json").exists() and not (folder / "policy").exists():
        solutions = solutions_of_round(shop, given, number)
        if not solutions:  # the policy is what it was
            write_json(folder / "measure.json", before | {"round": number})
        else:
            supervise(shop, number, solutions)
    for earlier in range(1, number) if (folder / "policy").exists() else ():  # their samples and solutions stay
        shutil.rmtree(shop.round_folder(earlier) / "policy", ignore_errors=True)
    return measure(shop, number)


def tell_round(figures: dict) -> None:
    k, best = list(figures["pass_at_k"].items())[-1]
    shape = "" if figures["format"] is None else f", format {figures['format']:.3f}"
    rates = f"held-out pass rate {figures['pass_rate']:.3f}, pass@{k} {best:.3f}"
    signal = f"groups with signal {figures['groups_with_signal']:.3f}, ends {figures['ends']:.3f}{shape}"
    say(f"round {figures['round']}: {rates}, {signal}, entropy {figures['entropy']:.4f}")


def run_rounds(shop: Workshop, given: list[dict]) -> list[dict]:
    """Rounds until RL can take over, or no further one would help, as none does that finds nothing; their measures."""
    config = shop.config
    measures = [measure(shop, 0)]
    tell_round(measures[-1])
    while True:
        number, wrong = measures[-1]["round"], obstacles(config, measures[-1])
        goes_on = widens(config, measures) if not wrong else set(wrong) != {"entropy"}
        if number >= config.rounds or (number >= config.min_rounds and not goes_on):
            return measures
        folder = shop.round_folder(number + 1)
        is_new = not (folder / "measure.json").exists()
        measures.append(play_round(shop, given, number + 1, measures[-1]))
        tell_round(measures[-1])
        if is_new and not read_lines(folder / "supervised.jsonl"):  # another round would sample the same model
            return measures


# settings that the RL trainers have by the same names; grpo_train takes those of ppo_train for TRL's
SHARED = (
    "data eval_data hold_out prompt_column chat chat_template chat_template_kwargs reward temperature "
    "max_prompt_tokens max_new_tokens group_size"
).split()


def rl_command(config: Config, model: str, trainer: str) -> str:
    """The command that goes on with a model: the same data, rewards, template and lengths."""
    siblings = [place / f"{trainer}.py" for place in (HERE.parent, BUNDLE / "scripts")]  # beside a copy, in the bundle
    path = next((str(sibling) for sibling in siblings if sibling.is_file()), f"{trainer}.py")
    usual, words = type(config)(), ["python", path]
    words += ["--algorithm", "grpo"] if trainer == "ppo_train" else []
    words += ["--model", model]
    for name in SHARED:
        value = getattr(config, name)
        if value != getattr(usual, name) or name == "max_new_tokens":
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return shlex.join([*words, "--output_dir", f"{Path(config.output_dir)}_rl"])


def advice(shop: Workshop, measures: list[dict], wrong: dict) -> str:
    config = shop.config
    if "entropy" in wrong:
        return "try fewer --epochs, a lower --lr, or more different solutions, in a new --output_dir"
    last = measures[-1]["round"]
    if last and not read_lines(shop.round_folder(last) / "supervised.jsonl"):
        return "no solution was found: try --data with a column completion, in the form that the reward pays"
    rising = f"--resume --rounds {config.rounds + 5}" if measures[-1]["pass_rate"] > measures[0]["pass_rate"] else ""
    return f"try {rising or 'solutions in the form that the reward pays, more --epochs, a --teacher or easier prompts'}"


def conclude(shop: Workshop, measures: list[dict]) -> int:
    """Write summary.json, and final/ where RL can begin; say what comes next. Returns the exit code."""
    config, last = shop.config, measures[-1]
    wrong = obstacles(config, last)
    summary = {"ready": not wrong, "obstacles": [*wrong.values()], "seed": config.seed, "rounds": measures}
    if wrong:
        summary["try"] = advice(shop, measures, wrong)
        say(f"RL cannot begin yet: {'; '.join(wrong.values())}; {summary['try']}")
    else:
        trained, final = shop.policy_folder(last["round"]), shop.folder / "final"
        if trained and not (final.exists() and final.stat().st_mtime >= trained.stat().st_mtime):  # of an earlier round
            export(config, shop.load(last["round"]), final)
        summary["model"] = str(final) if trained else config.model
        summary["commands"] = [rl_command(config, summary["model"], name) for name in ("ppo_train", "grpo_train")]
    write_json(shop.folder / "summary.json", summary)
    if wrong:
        return 1
    rates = " -> ".join(f"{one['pass_rate']:.3f}" for one in (measures if len(measures) < 3 else (measures[0], last)))
    few = "few groups have both right and wrong answers: other prompts would teach more"
    why = last["why"] if last["fits"] in ("RL now", "harder prompts") else few
    tell(f"held-out pass rate {rates} after {last['round']} round{'s' if last['round'] != 1 else ''}: {why}")
    if not last["round"]:
        say("the model needs no warm start on these prompts; --min_rounds 1 trains anyway")
    tell("continue with one of\n" + "\n".join(f"  {command}" for command in summary["commands"]))
    return 0


def train(config: Config) -> int:
    device = start_processes(config)
    many = torch.cuda.device_count() if device.type == "cuda" else 1
    need(many == 1, f"got {many} GPUs; expected one, as TRL would use all; try CUDA_VISIBLE_DEVICES=0 before python")
    settle_precision(config, device)
    seed_generators(config)  # for new adapters and the user's rewards
    tokenizer, reward, rows, held_out = load_prompts_and_reward(config)
    resumed = check_folder(config) and any(Path(config.output_dir).glob("rounds/*/supervised.jsonl"))
    given = [] if config.samples_solutions or resumed else given_solutions(config, tokenizer, reward, rows)
    chosen = copy.copy(config)  # the parts of samples on disk stay as large as the setting says
    settle_or_refuse(chosen, str(device), sizes_of_run(chosen, rows + held_out))
    make_folder(config)
    write_settings(config)
    bare = without_solutions(rows)
    shop = Workshop(config, device, tokenizer, reward, bare, held_out, at_once=chosen.rollout_batch_size)
    try:
        check_context(config, shop.load(config.rounds), rows + held_out)
        return conclude(shop, run_rounds(shop, given))
    except StopRequested as stop:
        say(f"stopped by signal {stop.signum}; --resume continues")
        return 128 + stop.signum
    finally:
        shop.stop.restore()


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    check_warm_start(config)
    quiet_environment(config.rollout_engine == "vllm")
    settle_model(config)
    if config.dry_run:
        return print_warm_start_plan(config, *load_prompts_and_reward(config))
    return train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
