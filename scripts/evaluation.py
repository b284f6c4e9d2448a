#!/usr/bin/env python3
# Built from src/programs/evaluation/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.23,<6", "numpy", "pyyaml", "tqdm", "pyarrow", "datasets", "peft",
#   "math-verify[antlr4_13_2]>=0.8,<1",
# ]
# ///
"""Evaluate a language model: numbers with an interval, and a paired test where two runs are compared.

Tasks, by `--task NAME[:option=value,…]`, repeatable:
    generation       length, distinct-n, repetition, truncation
    math             strict and flexible as lm-evaluation-harness extracts them, verified by math_grader.py
                     template=auto|gsm8k|plain
    code             runs in sandbox.py; unbiased pass@k (Chen 2021, eq. 1)          k=1/10, timeout_s=3
    perplexity       per token, word and byte, bits per byte                         stride=N, column=NAME
    multiple_choice  acc, acc_norm (log-prob per character)                          template=auto|qa|plain
    reward           reward functions with TRL's signature, or of one sample         reward:FILE.py:function[*weight]
    environment      conversations with --environment FILE.py:Class, as ppo_train    k=1/10
Every task also takes data=FILE, limit=N and max_new_tokens=N.

    mean       standard error s / sqrt(n); 0/1 values: Wilson 1927 interval; others: percentile bootstrap over rows
    compared   0/1 values: exact McNemar test, Bonett-Price 2012 interval; others: permutation of the pairs, bootstrap

Deliberately left out: benchmarks' own data (give the file or hub id); log-probs from servers and vLLM, whose dialects
differ too much; judging by another model (a reward function may do that).

    python scripts/evaluation.py --task math --data assets/data/arithmetic_eval.jsonl              # CPU, in seconds
    python scripts/evaluation.py --model Qwen/Qwen2.5-0.5B-Instruct --model runs/qwen/final \\
        --task math --data openai/gsm8k:main@test --output_dir runs/before_after              # one GPU, both compared
    python scripts/evaluation.py --environment examples/environments.py:SecondAttempt --max_turns 2 \\
        --max_new_tokens 32 --data assets/data/arithmetic_eval.jsonl
    torchrun --nproc_per_node 4 -- scripts/evaluation.py --model … --task code --data HumanEval.jsonl.gz --n 20

Exit codes: 0 done, 2 bad input, 3 a grader or an environment failed.
"""

# Contents
#       155-166  python source       Parses Python source in a process with threads
#       169-272  messages            Errors that a user can fix, each with an exit code; messages on stderr; the …
#       275-312  bundle              Paths of this bundle and of its embedded model, data and rewards; loading its …
#       315-537  dialect             Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       540-751  settings            Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#      754-1090  processes           The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#     1093-1163  exit codes          Program exit: errors that a user can fix become a message and an exit code
#     1166-1403  data files          Open data files as text: decompress, decode, refuse files without data; parse …
#     1406-1503  nested rows         Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1506-1763  rows                Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their …
#     1766-1791  question parts      Detect columns that look like part of the question but are not in the prompt, …
#     1794-1932  chat                Chat templates: their settings, rendering messages, and prompts that bypass a …
#     1935-1959  held out            Held-out prompts: split them off, and count or refuse those that also occur in …
#     1962-2032  prompts             Load training and held-out prompts as token ids
#     2035-2046  pass rates          Pass rates of prompts: pass@k, groups with signal, and advice: RL, a warm start, …
#     2049-2099  text servers        Completions from OpenAI-compatible servers, one per request, with retries if a …
#     2102-2317  user code           What users' rewards get: texts, copies of the columns, and their own state of …
#     2320-2557  reward forms        The forms that a reward function may have, and loading rewards from files
#     2560-2879  rewards             The reward of a run, a weighted sum of functions; async ones run in one event …
#     2882-3011  environments        Load and check environments: classes whose methods are tools for the model, or …
#     3014-3217  tool calls          Parse tool calls in model output, by the tokenizer's response template or one of …
#     3220-3340  tool runs           Run the calls of many conversations concurrently, each with a time limit; none …
#     3343-3644  turn bridge         Compute the tokens between turns from the chat template, so that sampled ids are …
#     3647-3970  conversations       Play a policy's conversations with environments; each turn samples all open …
#     3973-4134  play setup          Set up and score conversations, for all programs that take --environment
#     4137-4184  whole models        Refuse what transformers would make a model of by guessing: missing weights, …
#     4187-4361  adapters            LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     4364-4450  models              The networks of a run: their precision, the frozen reference, prompts that they …
#     4453-4482  tokenizers          Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     4485-4525  loading             Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, …
#     4528-4536  batches             Batches: masked statistics, padding, micro-batches, and packed layouts that hold …
#     4539-4826  key cache           The key-value cache while sampling: it grows in blocks, holds shared prompts …
#     4829-4997  forward             The forward pass: attention that runs a shared prompt once, backbone, logits, …
#     5000-5120  faster layers       Faster forms of layers while sampling: LoRA folded into weights, norms in one …
#     5123-5311  cache probe         Probe what a model's cache and attention can do, before sampling and training …
#     5314-5396  room steps          One more token per row, with fixed shapes and addresses within the cache, as a …
#     5399-5610  sampling            Sampling with the policy itself: a KV cache, rows that leave the batch when they …
#     5613-5667  sampling vllm       Sampling with vLLM on the same GPU, and copying the weights into it
#     5670-5683  rollouts            Sample and score a batch's rows over all processes
#     5686-5712  trainer settings    Settings that several trainers have, with their defaults: a trainer's Config …
#     5715-5867  memory              The memory that a run will need, from the shape of its networks
#     5870-5924  fit                 Sizes that fit the memory: chosen and reported in one line, refused if too …
#     5927-5964  output folder       The output folder: which run owns it, folders written whole or not at all, modes …
#     5967-6173  paired tests        Intervals, paired tests, pass@k
#     6176-6260  evaluation results  Read evaluation.py's results.json, and compare two of them row by row
#     6263-6581  scored samples      Scored samples of other programs, in JSON, JSONL, CSV or parquet, and the …
#     6584-6725  settings            Settings
#     6728-6867  rows                Rows: reading and checking them, those that the model was trained on, files that …
#     6870-7155  tasks               What a task is; generation, mathematics, code
#     7158-7296  scored tasks        Tasks of log-probs: perplexity, multiple choice
#     7299-7471  requests            What is asked of a model: worked examples, templates, token ids; and what was …
#     7474-7622  own tasks           Tasks of the user: reward functions, conversations with an environment
#     7625-7892  local model         A model of transformers: batched sampling and scoring; the beginning that all …
#     7895-8014  models              Models in vLLM, on servers, and none; opening those that were named
#     8017-8077  others              Results of other programs, which --compare takes like results.json
#     8080-8256  run                 Running the tasks, and the command line

import argparse
import ast
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
import keyword
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
import string
import sys
import sysconfig
import threading
import time
import traceback
import unicodedata
import urllib.error
import urllib.request
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

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


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV, TSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    return [row for _, row in placed_rows(source)]


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


# ------------------------------------------------------------------- question parts (src/parts/data/question_parts.py)

TEST_NAMES = ("tests", "test_list", "unit_tests", "test")
CALL_NAME = re.compile(r"(?<![.\w])([A-Za-z_]\w*)\(")
BOUND = re.compile(r"\b(?:def|class|import|as|for)\s+(\w+)|\b(\w+)\s*=(?!=)")  # names that tests define
UNNAMED = "do not name the function that their tests call, so right programs fail; try adding its name, or the tests"


def is_empty(value) -> bool:
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def unnamed_function(row: dict, asked: str) -> str:
    """A message if the tests of a row call functions and its prompt, `asked`, has none of their names, else ""."""
    tests = next((row[name] for name in TEST_NAMES if not is_empty(row.get(name))), "")
    parts = tests if isinstance(tests, list) else [tests]
    cases = [part for part in parts if isinstance(part, dict)]
    source = "\n".join(part for part in parts if isinstance(part, str)).replace("from solution import", "")
    given = [case.get("fn_name") or case.get("function") for case in cases] or [tests and row.get("entry_point")]
    called = CALL_NAME.findall(source) if "assert" in source else []
    names = {str(name).split(".")[-1] for name in given if name} or {*called}
    names -= {*dir(builtins), *keyword.kwlist, "candidate", *(name for pair in BOUND.findall(source) for name in pair)}
    if not names:
        return ""
    known = re.findall(r"\w+", f"{asked} {row.get('setup')} {row.get('test_setup_code')}")
    return UNNAMED if names.isdisjoint(known) else ""


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


def joined_text(messages: list[dict]) -> str:
    """Chat messages as text, for a tokenizer without a chat template: contents joined by newlines."""
    end = "" if messages[-1]["role"] == "assistant" else "\n"
    return "\n".join(message["content"] for message in messages) + end


# ------------------------------------------------------------------------------- held out (src/parts/data/held_out.py)


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


def drawn_tasks(tasks: list, count: int, seed: str = "") -> set:
    """Draw from the rows' tasks some with at most `count` rows together, by a hash of task and seed in any order."""
    sizes, drawn, rows = Counter(tasks), set(), 0
    for task in sorted(sizes, key=lambda task: hashlib.sha256(f"{seed}{task!r}".encode()).digest()):
        if rows + sizes[task] <= count:
            drawn.add(task)
            rows += sizes[task]
    return drawn


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


# --------------------------------------------------------------------------- pass rates (src/parts/data/pass_rates.py)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples passes, if c of n did: 1 - C(n - c, k) / C(n, k) (Chen 2021, eq. 1).

    >>> pass_at_k(5, 2, 3), pass_at_k(4, 0, 2), pass_at_k(3, 1, 3)
    (0.9, 0.0, 1.0)
    """
    need(0 <= c <= n, f"got {c} passes of {n} samples; expected 0 to {n}")
    need(1 <= k <= n, f"got pass@{k} of {n} samples; expected k of 1 to n; try --n {max(k, 1)}")
    return float((math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k))


# -------------------------------------------------------------------- text servers (src/parts/rewards/text_servers.py)


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


# --------------------------------------------------------------- environments (src/parts/environments/environments.py)

HOOKS = ("reset", "get_reward", "reply")  # public methods that are not tools
ENVIRONMENT_COLUMN = "environment"
HIDE = "; try a leading underscore for a method that is not a tool"


class EnvironmentFault(UserError):
    """An environment itself failed: its reset, reply or get_reward, not one of its tools."""

    code = 3


@dataclass
class EnvironmentKind:
    """A class of environments: how to create one, its tools, and whether it has `reply` and `get_reward`."""

    name: str
    make: Callable
    file: str
    tools: list[dict] = field(default_factory=list)  # JSON schemas
    talks: bool = False  # it has reply
    scores: bool = False  # it has get_reward

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


@dataclass
class Environments:
    """The environments of a run: one under the key None, or several by the values of the column `environment`."""

    kinds: dict[str | None, EnvironmentKind]

    def kind_of(self, columns: dict) -> EnvironmentKind:
        if None in self.kinds:
            return self.kinds[None]
        name, known = columns.get(ENVIRONMENT_COLUMN), [*map(str, self.kinds)]
        kind = next((kind for key, kind in self.kinds.items() if key == name), None)
        got = f"got a row with environment {name!r}"
        need(kind, f"{got}; expected one of {', '.join(known)}{suggest(str(name), known)}")
        return kind

    def reset_arguments(self, reset: Callable, prompt, columns: dict) -> dict:
        """What `reset` names of the prompt and the columns, or all for `**row`; never the column that selects."""
        left_out = () if None in self.kinds else (ENVIRONMENT_COLUMN,)
        named = inspect.signature(reset).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in named.values())
        row = {**columns, "prompt": prompt}.items()
        return {name: value for name, value in row if name not in left_out and (takes_all or name in named)}

    @prints_aside()
    def check_row(self, prompt, columns: dict) -> None:
        """Raise UserError for a parameter of `reset` without a column; warn of one that looks misspelt."""
        kind = self.kind_of(columns)
        reset = kind.make().reset
        try:
            given = self.reset_arguments(reset, prompt, columns)
            inspect.signature(reset).bind(**given)
        except (TypeError, ValueError) as error:  # or it has no signature
            raise UserError(
                f"environment {kind.name}: reset does not take this data ({error}); got the columns "
                f"{', '.join(['prompt', *columns])}; expected one for each parameter (the prompt "
                "is `prompt`); try def reset(self, **row)"
            ) from None
        for name in inspect.signature(reset).parameters.keys() - given.keys() - columns.keys():
            if near := difflib.get_close_matches(name, columns.keys() - given.keys(), n=1, cutoff=0.75):
                say_once(f"environment {kind.name}: no column is called {name!r}; did you mean the column {near[0]!r}?")


def tool_schema(environment, name: str, subject: str) -> dict:
    """The JSON schema of the tool `name`, as transformers makes it for TRL; UserError that begins with `subject`."""
    from transformers.utils import get_json_schema

    method = getattr(environment, name)
    expected = f"expected type hints and a docstring, with `name: text` (no type) for each argument under Args:{HIDE}"
    if name == "step":
        expected += "; for gymnasium's step, try GameEnvironment in references/environments.md"
    for p in inspect.signature(method).parameters.values():
        fits = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        need(fits, f"{subject}: tool {name} has the parameter {p}, which a call by name cannot give; {expected}")
    generates = inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)
    need(not generates, f"{subject}: tool {name} is a generator; expected one that returns its result")
    try:
        return get_json_schema(method)
    except Exception as error:  # transformers raises its own types, and whatever evaluating the type hints raises
        raise UserError(f"{subject}: tool {name} has no schema ({error}); {expected}") from None


@prints_aside()
def environment_kind(name: str, make, file: str, spec: str) -> EnvironmentKind:
    """Create environments by `make` to learn what they can do; UserError if they break the contract."""
    subject = f"environment {spec!r}" if name in spec else f"environment {spec!r}, {name!r}"
    got = f"{subject}: got a {type(make).__name__}"
    need(callable(make), f"{got}; expected a class or a function that makes environments")
    try:
        environment, other = make(), make()
    except Exception as error:
        raised = f"raises {type(error).__name__}: {error}{user_place(error)}"
        text = f"{subject}: making one {raised}; expected a call without arguments"
        raise UserError(text) from error
    need(environment is not other, f"{subject}: got the same object twice; expected a new one for each conversation")
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)  # as TRL finds them
    names = [name for name, _ in members if not name.startswith("_")]
    form = "def reset(self, **row) -> str | None"
    need("reset" in names, f"{subject}: got a class without reset; expected {form}; try TRL's contract of environments")
    tools = [tool_schema(environment, tool, subject) for tool in names if tool not in HOOKS]
    return EnvironmentKind(name, make, file, tools, "reply" in names, "get_reward" in names)


def load_environments(spec: str) -> Environments:
    """Load `FILE.py:NAME`: a class, a function that creates environments, or a dictionary of such.

    Raises:
        UserError: the file or name does not exist, or it breaks the contract.
    """
    file, _, name = spec.rpartition(":")
    missing = f": no file {file!r}" if file else ""
    need(Path(file).is_file(), f"got environment {spec!r}{missing}; expected FILE.py:Class")
    module = import_file("environment", spec, file)
    members = {n: m for n, m in vars(module).items() if not n.startswith("_")}
    classes = [n for n, m in members.items() if inspect.isclass(m) and m.__module__ == module.__name__]
    known = f"expected one of {', '.join(classes)}" if classes else "expected a class in it"
    member = members.get(name)
    need(member is not None, f"got environment {spec!r}: {file} has no {name!r}; {known}{suggest(name, classes)}")
    if not isinstance(member, dict):
        return Environments({None: environment_kind(name, member, file, spec)})
    need(member, f"got environment {spec!r}: an empty dictionary; expected {{name: class}}")
    return Environments({key: environment_kind(str(key), make, file, spec) for key, make in member.items()})


# ------------------------------------------------------------------- tool calls (src/parts/environments/tool_calls.py)


class BadCall(Exception):
    """A malformed tool call; the message is for the model."""


def tool_call(name, arguments, identity: str = "") -> dict:
    """A tool call in the form of chat templates and TRL; BadCall unless the arguments are an object."""
    if isinstance(arguments, str):  # as in OpenAI's API
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise BadCall('a call needs a name and arguments: {"name": "...", "arguments": {...}}')
    # what cannot be written to a log, such as a depth of thousands or half a surrogate pair, is no call either
    json.dumps([name, arguments, identity], ensure_ascii=False).encode()
    call = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    return {"id": identity, **call} if isinstance(identity, str) and identity else call


def call_of_json(value) -> dict:
    """A tool call from {"name", "arguments" or "parameters", and perhaps "id"}."""
    if not isinstance(value, dict):
        raise BadCall('a call is an object: {"name": "...", "arguments": {...}}')
    return tool_call(value.get("name"), value.get("arguments", value.get("parameters")), value.get("id", ""))


def hermes_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3, SmolLM3."""
    before, *blocks = text.split("<tool_call>")
    return before, [call_of_json(json.loads(block.split("</tool_call>")[0])) for block in blocks]


PYTHON_WORDS = {"True": True, "False": False, "None": None}  # as templates write them that print values


def typed_argument(value: str, schema: dict):
    """Convert an argument from text: unchanged if the schema says string or it is not JSON, else parsed as JSON."""
    if schema.get("type") == "string" and not (schema.get("nullable") and value in ("None", "null")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return PYTHON_WORDS.get(value, value)


def qwen_xml_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5."""
    types = {s["function"]["name"]: s["function"]["parameters"]["properties"] for s in schemas}
    before, *blocks = text.split("<tool_call>")
    calls = []
    for block in blocks:
        match = re.match(r"\s*<function=([^>\n]+)>(.*?)</function>\s*</tool_call>", block, re.DOTALL)
        if not match:
            raise BadCall("a call has the form <tool_call><function=name>...</function></tool_call>")
        name, body = match[1].strip(), match[2]
        pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", body, re.DOTALL)
        known = types.get(name, {})
        calls.append(tool_call(name, {key: typed_argument(value, known.get(key, {})) for key, value in pairs}))
    return before, calls


def llama3_json_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`{"name": …, "parameters": {…}}` as the whole answer, several separated by `;`: Llama 3.1 to 3.3."""
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    if not (rest.startswith("{") and '"name"' in rest and re.search('"(parameters|arguments)"', rest)):
        return text, []
    calls = []
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        calls.append(call_of_json(value))
        rest = rest[end:].lstrip("; \n")
    return "", calls


def mistral_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`[TOOL_CALLS][{"name", "arguments", "id"}]`, or from version 11 on `[TOOL_CALLS]name[ARGS]{…}` per call."""
    before, *blocks = text.split("[TOOL_CALLS]")
    calls = []
    for block in map(str.strip, blocks):
        if block.startswith("["):
            calls += [call_of_json(value) for value in json.loads(block)]
            continue
        match = re.match(r"([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(\{.*)", block, re.DOTALL)
        if not match:
            raise BadCall("a call has the form [TOOL_CALLS]name[ARGS]{...}")
        calls.append(tool_call(match[1], json.loads(match[3]), match[2] or ""))
    return before, calls


def pythonic_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`[name(key=value), …]`, after `<|tool_call_start|>` or as the whole answer: LFM2, Llama 4."""
    before, marker, rest = text.partition("<|tool_call_start|>")
    rest = rest.split("<|tool_call_end|>")[0].strip() if marker else text.strip()
    if not marker and not re.match(r"\[\s*[A-Za-z_]\w*\(", rest):
        return text, []
    tree = parse_python(rest, mode="eval").body
    elements = tree.elts if isinstance(tree, ast.List) else []
    if not elements or not all(
        isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and not c.args for c in elements
    ):
        raise BadCall("calls have the form [name(key=value)]")
    pairs = [(c.func.id, [(k.arg, ast.literal_eval(k.value)) for k in c.keywords]) for c in elements]
    if any(key is None for _, arguments in pairs for key, _ in arguments):
        raise BadCall("an argument has the form key=value")
    return before if marker else "", [tool_call(name, dict(arguments)) for name, arguments in pairs]


# name -> (parser, text in a chat template that shows that the model uses the format)
CALL_FORMATS = {
    "qwen_xml": (qwen_xml_calls, "<function="),
    "hermes": (hermes_calls, "<tool_call>"),
    "mistral": (mistral_calls, "[TOOL_CALLS]"),
    "pythonic": (pythonic_calls, "<|tool_call_start|>"),
    "llama3_json": (llama3_json_calls, '"parameters": '),
}


def call_format(tokenizer, choice: str = "") -> str | dict:
    """How a model writes tool calls: by `choice`, else the tokenizer's response template, else its chat template.

    Returns:
        A name in CALL_FORMATS, or a response template of transformers.
    """
    known = [*CALL_FORMATS, "template"]
    expected = f"expected {', '.join(known)}{suggest(choice, known)}"
    need(not choice or choice in known, f"got tool format {choice!r}; {expected}")
    response_template = getattr(tokenizer, "response_template", None)
    if response_template and choice in ("", "template"):
        return response_template
    need(choice != "template", "got tool format 'template', but the tokenizer has no response_template")
    if choice:
        return choice
    text = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    if "<arg_key>" not in text:  # GLM's `<tool_call>` holds no JSON
        for name, (_, mark) in CALL_FORMATS.items():
            if mark in text:
                return name
    with contextlib.suppress(ImportError, ValueError):  # TRL may be missing, or have no response template for it
        from trl.chat_template_utils import add_response_schema

        if template := add_response_schema(copy.copy(tokenizer)).response_template:
            return template
    raise UserError(
        f"got a chat template that shows no known form of tool calls; expected one of {', '.join(CALL_FORMATS)}; "
        "try naming it, or a tokenizer with a response_template (transformers' response parsing)"
    )


def check_untagged_call(text: str, form: str, schemas: list[dict]) -> None:
    """Warn once if a text without calls has a call's JSON, bare or in a code fence, as Qwen2.5-Coder writes it."""
    names = {schema["function"]["name"] for schema in schemas}
    named = [name for name in re.findall(r'"name"\s*:\s*"([^"]+)"', text) if name in names]
    if named and re.search(r'"(arguments|parameters)"\s*:', text):
        bare = "" if form == "llama3_json" else "--tool_format llama3_json where the whole answer is JSON, "
        say_once(
            f"warning: got the JSON of a call of {named[0]} outside the form {form}; it stays text, as in vLLM and "
            f"TRL; try {bare}a warm start on calls in that form, or a model that was trained on it"
        )


def read_by_template(tokenizer, template: dict, prompt_ids: list[int], ids: list[int], schemas: list[dict]) -> dict:
    """The assistant's message, parsed by a response template of transformers."""
    message = tokenizer.parse_response(ids, template, prefix=prompt_ids, tools=schemas)
    message["content"] = (message.get("content") or "").removesuffix(tokenizer.eos_token or "")
    for i, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadCall("a call needs a name and arguments")
        message["tool_calls"][i] = tool_call(function.get("name"), function.get("arguments"), call.get("id", ""))
    return message


def read_answer(
    tokenizer, form: str | dict, prompt_ids: list[int], ids: list[int], text: str, schemas: list[dict]
) -> tuple[dict, str]:
    """(the assistant's message, the problem with its tool calls or "").

    Args:
        form: what `call_format` returned.
        prompt_ids: token ids before the answer.
        ids: token ids of the answer.
        text: the answer without its end token; calls within `<think>` do not count.
    """
    try:
        if isinstance(form, dict):
            message = read_by_template(tokenizer, form, prompt_ids, ids, schemas)
            if not message.get("tool_calls"):
                check_untagged_call(message["content"], "the response template", schemas)
            return message, ""
        begun = bool(prompt_ids) and tokenizer.decode(prompt_ids[-8:]).rstrip().endswith("<think>")
        thinks = begun or text.lstrip().startswith("<think>")
        thought, closed, rest = text.partition("</think>") if thinks else ("", "", text)
        if thinks and not closed:
            return {"role": "assistant", "content": text}, ""
        content, calls = CALL_FORMATS[form][0](rest, schemas)
    except BadCall as error:
        return {"role": "assistant", "content": text}, str(error)
    except Exception as error:  # json, ast and transformers' parsers may raise anything on hostile text
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        return {"role": "assistant", "content": text}, f"the tool call cannot be read ({reason})"
    if not calls:
        check_untagged_call(rest, form, schemas)
        return {"role": "assistant", "content": text}, ""
    return {"role": "assistant", "content": (thought + closed + content).rstrip("\n"), "tool_calls": calls}, ""


# --------------------------------------------------------------------- tool runs (src/parts/environments/tool_runs.py)

SHORT_INTERVAL = 1e-4  # seconds after which threads switch; Python's 5 ms would add up over 256 busy loops
POLL = 0.02  # seconds between checks for jobs that are out of time
LOOP_PATIENCE = 30.0  # seconds within which an event loop that is not blocked responds even on a busy machine
SIDE_BY_SIDE = 256  # jobs that run at once


@dataclass
class Outcome:
    """The result of a call: its value, or the error that it raised, and the seconds that it took."""

    value: object = None
    error: BaseException | None = None
    seconds: float = 0.0


class OutOfTime(Exception):
    """A call did not return within its limit."""


class LeftBehind(SystemExit):
    """Raised in the thread of a job that is out of time; a SystemExit ends a thread silently."""


class Job(threading.Thread):
    """A thread that waits for its gate, makes calls in order and records their outcomes."""

    def __init__(self, calls: list, seconds: float):
        super().__init__(name="environment", daemon=True)
        self.calls, self.seconds, self.begun, self.outcomes = calls, seconds, math.inf, []
        self.loop, self.awaits = reward_loop().loop, False  # not in run(), which may be stopped at any instruction
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        with contextlib.suppress(LeftBehind):
            self.gate.acquire()
            self.begun = time.monotonic()
            for call in self.calls:
                start, value, problem = time.monotonic(), None, None
                try:
                    value = self.awaited(call(), self.begun + self.seconds - start)
                except LeftBehind:
                    raise
                except BaseException as error:  # SystemExit and KeyboardInterrupt too: a tool does not end the run
                    problem = error
                self.outcomes.append(Outcome(value, problem, time.monotonic() - start))

    def awaited(self, value, seconds: float):
        """A value, or the result of an awaitable in the event loop."""
        if not inspect.isawaitable(value):
            return value
        self.awaits, late = True, OutOfTime(f"no answer in {self.seconds:g} s")
        return asyncio.run_coroutine_threadsafe(within(value, seconds, late), self.loop).result()

    def over(self) -> bool:
        """Whether its time is up; the time of a job starts when it starts to run."""
        return time.monotonic() >= self.begun + self.seconds


def with_missing(calls: list, outcomes: list[Outcome], seconds: float) -> list[Outcome]:
    """The outcomes of a job, with OutOfTime for the call that was running when time was up and all later ones."""
    made = outcomes[: len(calls)]
    late = OutOfTime(f"no answer in {seconds:g} s")
    spent = max(0.0, seconds - sum(outcome.seconds for outcome in made))
    missing = [Outcome(error=late, seconds=spent)] if len(made) < len(calls) else []
    rest = len(calls) - len(made) - len(missing)
    return [*made, *missing, *(Outcome(error=OutOfTime("not called: no time was left")) for _ in range(rest))]


def check_loop() -> None:
    """Raise UserError if the event loop is blocked, with the line that blocks it."""
    loop = reward_loop()
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop.loop).result(LOOP_PATIENCE)
    except TimeoutError:
        stack = traceback.extract_stack(sys._current_frames().get(loop.thread.ident))
        outside = [f for f in stack if "asyncio" not in f.filename and "threading" not in f.filename] or stack
        where = f"{outside[-1].filename}:{outside[-1].lineno}"
        raise UserError(
            f"the event loop of async methods is blocked at {where}; expected `await` wherever something takes time; "
            "try a plain `def`, which runs in a thread of its own"
        ) from None


def run_jobs(jobs: list[list], seconds: float) -> list[list[Outcome]]:
    """Run jobs concurrently, at most SIDE_BY_SIDE at once, and return the outcomes of their calls.

    Args:
        jobs: lists of functions without arguments; those of a job run in order.
        seconds: limit for each job, from its start.

    Raises:
        UserError: an async function blocks the event loop.
    """
    groups = [jobs[start : start + SIDE_BY_SIDE] for start in range(0, len(jobs), SIDE_BY_SIDE)]
    return [outcomes for group in groups for outcomes in run_together(group, seconds)]


def run_together(jobs: list[list], seconds: float) -> list[list[Outcome]]:
    """`run_jobs` for jobs that all run at once."""
    threads, interval = [Job(calls, seconds) for calls in jobs], sys.getswitchinterval()
    late = {}
    try:
        for thread in threads:
            thread.start()
        sys.setswitchinterval(SHORT_INTERVAL)
        for thread in threads:
            thread.gate.release()  # once all have started, as starting a thread waits for busy ones
        while waiting := [thread for thread in threads if thread.is_alive() and thread not in late]:
            for thread in filter(Job.over, waiting):
                late[thread] = [*thread.outcomes]
                # raises LeftBehind in it as soon as it executes Python code again
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(LeftBehind))
            waiting[0].join(POLL)
        if any(thread.awaits for thread in late):
            check_loop()
    finally:
        sys.setswitchinterval(interval)
    return [with_missing(thread.calls, late.get(thread, thread.outcomes), seconds) for thread in threads]


# ----------------------------------------------------------------- turn bridge (src/parts/environments/turn_bridge.py)

PROBE_TURNS = 3
KNOWN_RENDERINGS = 1000
OPENS, CLOSES = "\U000f0000", "\U000f0001"  # private-use characters around control tokens in messages


class TurnBridge:
    """Renders prompts and the tokens between turns.

    Args:
        tokenizer: one with a chat template.
        end_ids: tokens that end an answer.
        settings: the template's own settings, such as {"enable_thinking": False}.
        chat_template: replaces the tokenizer's template.
    """

    def __init__(self, tokenizer, end_ids: list[int], settings: dict | None = None, chat_template: str | None = None):
        need(
            tokenizer.chat_template or chat_template,
            "got a tokenizer without chat template; expected one; try --chat_template FILE",
        )
        self.tokenizer, self.end_ids, self.settings = tokenizer, {*end_ids}, {**(settings or {})}
        self.chat_template, self.rendered = chat_template, {}
        self.lock = threading.Lock()  # a tokenizer's backend fails if two threads use it at once
        # whether the installed transformers keeps control tokens out of messages by itself; 5.10, verl's, does not
        parameters = inspect.signature(tokenizer.apply_chat_template).parameters
        self.sanitizes = "sanitize_control_tokens" in parameters
        if chat_template:
            self.settings["chat_template"] = chat_template

    def render(self, messages: list[dict], tools: list[dict], guarded: bool = True) -> list[int]:
        """Token ids of messages and the start of the assistant's next answer.

        Args:
            guarded: encode control tokens in messages as letters.
        """
        messages = with_arguments(as_object, messages)
        if messages[-1]["role"] == "assistant":  # a turn that the data's prompt starts and the model continues
            return self.render(messages[:-1], tools, guarded) + self.begun_answer(messages, tools)
        given = {"tools": tools or None, "add_generation_prompt": True, **self.settings}  # some templates render [] too
        if not guarded:
            return list(self.tokenizer.apply_chat_template(messages, return_dict=True, **given)["input_ids"])
        key = (id(tools), repr(messages))  # a group's conversations start alike and often get equal messages
        with self.lock:
            if key not in self.rendered:
                if len(self.rendered) >= KNOWN_RENDERINGS:
                    self.rendered.clear()
                try:
                    ids = self.guarded(messages, given)
                except ValueError:
                    ids = self.guarded(self.parted(messages), given)
                self.rendered[key] = tools, ids  # keeps the tools alive, so that no other object gets their id
            return [*self.rendered[key][1]]

    def begun_answer(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """Token ids of the unfinished assistant turn that ends messages, without the turn's header."""
        given = {"tools": tools or None, **self.settings}
        before, whole = (chat_text(self.tokenizer, part, **given) for part in (messages[:-1], messages))
        if not whole.startswith(before):
            raise ValueError(f"it begins the assistant turn that ends the prompt in another way: {whole[-80:]!r}")
        return list(self.tokenizer(whole.removeprefix(before), add_special_tokens=False).input_ids)

    def guarded(self, messages: list[dict], given: dict) -> list[int]:
        """Token ids of messages, with control tokens in them encoded as letters."""
        if not self.sanitizes:
            return sanitized_ids(self.tokenizer, messages, **given)
        given = {**given, "sanitize_control_tokens": True, "return_dict": True}
        return list(self.tokenizer.apply_chat_template(messages, **given)["input_ids"])

    def parted(self, value):
        """Messages with a space inside control tokens (`< /s>`), for tokenizers that always recognise them."""
        if isinstance(value, dict):
            return {key: self.parted(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.parted(item) for item in value]
        for token in self.tokenizer.added_tokens_encoder if isinstance(value, str) else ():
            value = value.replace(token, f"{token[0]} {token[1:]}") if token.strip() else value
        return value

    def ends(self, ids: list[int]) -> bool:
        """Whether an answer ends with an end token, and was not cut off."""
        return bool(ids) and ids[-1] in self.end_ids

    def seam(
        self, before: list[dict], answer: dict, replies: list[dict], tools: list[dict], guarded: bool = True
    ) -> list[int]:
        """Token ids of the rendering up to the token that ends the answer; [] if the template writes none."""
        begins = len(self.render(before, tools, guarded))
        others = [[{**reply, "content": text} for reply in replies] for text in "01"]
        one, two = (self.render([*before, answer, *other], tools, guarded) for other in others)
        shared = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        places = [i for i in range(begins, shared) if one[i] in self.end_ids]
        return one[: places[-1] + 1] if places else []

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        """The tokens after an answer, up to the start of the next one.

        Args:
            last_id: the answer's last token; unless it ends the turn, the turn's end token comes first.
            replies: the environment's messages, of role tool or user.
            tools: the schemas with which the prompt was rendered.
        """
        before, answer, replies = stand_in(replies)
        seam = self.seam(before, answer, replies, tools)
        whole = self.render([*before, answer, *replies], tools)
        roles = ", ".join(dict.fromkeys(reply["role"] for reply in replies))
        need(
            seam and whole[: len(seam)] == seam,
            f"the chat template has no place where an answer ends and messages of the role {roles} follow; try "
            "another template",
        )
        return whole[len(seam) - (last_id != seam[-1]) :]

    def check(self, tools: list[dict], talks: bool) -> str:
        """The template's problem with conversations that have these tools or replies; "" if there is none."""
        for kind in [kind for kind, wanted in (("tool", tools), ("user", talks)) if wanted]:
            try:
                problems = [self.probe(kind, tools, place) for place in self.thought_places()]
            except Exception as error:  # templates may raise anything
                return f"it refuses such a conversation ({type(error).__name__}: {error})"
            if all(problems):
                return problems[0]
        return ""

    def thought_places(self) -> list[str]:
        """Fields of an answer in which the template may expect thoughts; [""] if it has none."""
        template = self.chat_template or self.tokenizer.get_chat_template()
        if "</think>" in template:
            return ["content", "reasoning_content"]
        if "<|channel>thought" in template and self.settings.get("enable_thinking"):  # Gemma 4
            return ["reasoning_content"]
        return ["thinking"] if "message.thinking" in template else [""]  # gpt-oss

    def probe(self, kind: str, tools: list[dict], place: str) -> str:
        """Play three turns and compare each with the rendering of the whole; returns the problem or ""."""
        messages = [{"role": "user", "content": "Question"}]
        ids, decode = self.render(messages, tools), self.tokenizer.decode
        if kind == "tool" and tools[0]["function"]["name"] not in decode(ids):
            return "it does not show the tools to the model"
        for turn in range(PROBE_TURNS):
            thought, thinks = probe_thought(decode(ids), turn, place)
            answer, replies, visible = probe_turn(kind, turn, thought, tools)
            seam = self.seam(messages, answer, replies, tools, guarded=False)  # thoughts need their control tokens
            whole = self.render([*messages, answer, *replies], tools, guarded=False)
            if whole[: len(ids)] != ids:
                return f"it rewrites earlier turns: {difference(decode, ids, whole)}"
            if not seam:
                ends = ", ".join(repr(decode([i])) for i in sorted(self.end_ids))
                return f"it ends the assistant's turn with none of the tokens that end an answer ({ends})"
            said, after = decode(whole[len(ids) : len(seam)]), decode(whole[len(seam) :])
            for part in (thinks, visible):
                if "".join(part.split()) not in "".join(said.split()):
                    return f"of an answer it keeps {said!r}, without {part!r}"
            if replies[0]["content"] not in after:
                return f"it does not show messages of the role {kind}"
            bridge = self.between(whole[len(seam) - 1], replies, tools)
            if whole[len(seam) :] != bridge:
                where = difference(decode, bridge, whole[len(seam) :])
                return f"what it writes between turns depends on their number: {where}"
            messages, ids = [*messages, answer, *replies], whole
        return ""


def sanitized_ids(tokenizer, messages: list[dict], tools: list[dict] | None, **given) -> list[int]:
    """Token ids of a conversation; control tokens in its messages and tools are encoded as plain letters.

    The same ids as by `apply_chat_template(…, sanitize_control_tokens=True)` of a newer transformers: control tokens
    are marked, the template renders them, and the tokenizer's model alone encodes them, without added tokens.

    Raises:
        ValueError: the tokenizer encodes the letters as the control token nevertheless.
    """
    template = tokenizer.get_chat_template(given.get("chat_template"), tools)
    added = tokenizer.added_tokens_decoder.values()  # special ones, and those that the template writes
    control = {t.content for t in added if t.special or (t.content in template and not t.content.isspace())}
    tokens = "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)"

    def marked(value):
        if isinstance(value, str):
            return re.sub(tokens, rf"{OPENS}\g<0>{CLOSES}", value.replace(OPENS, "").replace(CLOSES, ""))
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list | tuple) else value

    text = tokenizer.apply_chat_template(marked(messages), tools=marked(tools), tokenize=False, **given)
    # text, marked token, text, …; a marked token is None for a lone mark, whose partner the template has cut off
    first, *rest = re.split(f"{OPENS}({tokens}){CLOSES}|[{OPENS}{CLOSES}]", text)
    ids = tokenizer.encode(first, add_special_tokens=False)
    for i, piece in enumerate(rest):
        as_letters = i % 2 == 0
        encoded = piece_ids(tokenizer, piece, as_letters) if piece else []
        if as_letters and piece and tokenizer.convert_tokens_to_ids(piece) in encoded:
            raise ValueError(f"got {piece!r} in a message, which the tokenizer reads as a token in any text")
        ids += encoded
    return ids


def piece_ids(tokenizer, piece: str, as_letters: bool) -> list[int]:
    """Token ids of text within a conversation, encoded after a newline, as SentencePiece adds a space at a start."""

    def encoded(text: str) -> list[int]:
        return letter_ids(tokenizer, text) if as_letters else tokenizer.encode(text, add_special_tokens=False)

    newline = tokenizer.encode("\n", add_special_tokens=False)
    ids = encoded("\n" + piece)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encoded(piece)


def letter_ids(tokenizer, text: str) -> list[int]:
    """Token ids of text by the tokenizer's model alone, without recognising added tokens."""
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
    return [token.id for word in words for token in backend.model.tokenize(word)]


def stand_in(replies: list[dict]) -> tuple[list[dict], dict, list[dict]]:
    """A short conversation that replies can follow: (messages, the answer before the replies, replies)."""
    before, answer = [{"role": "user", "content": "Question"}], {"role": "assistant", "content": "Answer"}
    if replies[0]["role"] == "tool":
        names = [(reply.get("tool_call_id") or f"call{i:05}", reply["name"]) for i, reply in enumerate(replies)]
        answer["content"], answer["tool_calls"] = "", [stand_in_call(*name) for name in names[:1]]
        replies = [{**reply, "tool_call_id": i} for reply, (i, _) in zip(replies, names, strict=True)]
    return before, answer, replies


def stand_in_call(identity: str, name: str) -> dict:
    """A tool call without arguments; Mistral's templates need an id of nine characters."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": {}}}


def probe_thought(prompt: str, turn: int, place: str) -> tuple[dict, str]:
    """(field of an answer with a thought, the part of it that the model must sample)."""
    said, begun = f"Thought {turn}", prompt.rstrip().endswith("<think>")
    if not place or prompt.rstrip().endswith("</think>"):  # it is told not to think
        return {}, ""
    if place == "content":
        return {"content": f"<think>\n{said}\n</think>\n\n"}, f"{'' if begun else '<think>'}{said}</think>"
    return {place: said}, said


def probe_turn(kind: str, turn: int, thought: dict, tools: list[dict]) -> tuple[dict, list[dict], str]:
    """(an answer, the replies to it, the text of the answer that must appear in the rendering)."""
    answer = {"role": "assistant", "content": "", **thought}
    if kind == "user":
        visible = f"Answer {turn}"
        answer["content"] += visible
        return answer, [{"role": "user", "content": f"Reply {turn}"}], visible
    call = stand_in_call(f"probe{turn:04}", tools[0]["function"]["name"])
    reply = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": f"Result {turn}"}
    return {**answer, "tool_calls": [call]}, [reply], call["function"]["name"]


def difference(decode, one: list[int], two: list[int]) -> str:
    """Where two renderings diverge, as text."""
    part = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"{decode(one[part : part + 12])!r} becomes {decode(two[part : part + 12])!r}"


def training_template(tokenizer) -> str | None:
    """TRL's variant of a tokenizer's chat template that keeps earlier turns; None if TRL is missing or has none."""
    try:
        from trl.chat_template_utils import get_training_chat_template

        return get_training_chat_template(tokenizer)
    except (ImportError, ValueError):
        return None
    except Exception as error:  # TRL's checks render conversations that a template may refuse
        say(f"note: TRL has no training template for this tokenizer ({error})")
        return None


def turn_bridge(tokenizer, end_ids: list[int], environments: Environments, settings: dict | None = None) -> TurnBridge:
    """The bridge for a model's template, or for TRL's variant of it that keeps earlier turns.

    Raises:
        UserError: the template cannot be continued, and TRL has no variant that can.
    """

    def problem(bridge: TurnBridge) -> str:
        kinds = environments.kinds.values()
        return next(filter(None, (bridge.check(kind.tools, kind.talks) for kind in kinds)), "")

    bridge = TurnBridge(tokenizer, end_ids, settings)
    fault = problem(bridge)
    if not fault:
        return bridge
    other = training_template(tokenizer)
    if other:
        bridge = TurnBridge(tokenizer, end_ids, settings, other)
        if not problem(bridge):
            say(
                f"note: the chat template cannot be continued turn by turn: {fault}; sampling and training with "
                "TRL's form of it, which keeps earlier turns: serve the model with that one too"
            )
            return bridge
    raise UserError(
        f"the chat template cannot be continued turn by turn: {fault}; expected one whose rendering of a conversation "
        'begins with that of its earlier turns; try --chat_template FILE, --chat_template_kwargs {"enable_thinking": '
        "true or false}, or another model"
    )


# ------------------------------------------------------------- conversations (src/parts/environments/conversations.py)


@dataclass
class PlayLimits:
    """Limits of conversations: turns, tokens, time and length of tools' results."""

    turns: int = 8  # sampled answers
    tokens: int = 4096  # in a whole conversation, including the first prompt
    answer_tokens: int = 512  # a turn starts only if an answer of this length still fits
    seconds: float = 30.0  # for all tool calls of an answer, or for a reply
    characters: int = 8000  # in a tool's result; the rest is cut


@dataclass
class PlaySetup:
    """What conversations are played with."""

    environments: Environments
    bridge: object  # a TurnBridge, or TextTurns
    form: str | dict  # of tool calls, by `call_format`
    limits: PlayLimits


@dataclass
class Conversation:
    """One conversation as it was sampled. `response_mask` and `rollout_logprobs` have an entry per response token."""

    number: int  # index of its row in the batch
    prompt: object  # as in the data
    kind: EnvironmentKind
    environment: object
    messages: list[dict] = field(default_factory=list)  # including the prompt's
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)  # all tokens after the prompt: answers, and tokens in between
    response_mask: list[int] = field(default_factory=list)  # 1 = sampled
    rollout_logprobs: list[float] = field(default_factory=list)  # 0.0 for tokens that were not sampled
    spans: list[tuple[int, int]] = field(default_factory=list)  # (start, end) of each answer in response_ids
    turn_rewards: list[float] = field(default_factory=list)  # one for each answer; they sum to the score
    score: float | None = None  # from get_reward, else the sum of turn rewards; None without either
    calls: int = 0  # tool calls, including those that cannot be parsed
    failures: int = 0  # calls that ended in an error
    seconds: float = 0.0  # spent in tools and replies
    ended_by: str = ""  # answer, reply, turns or tokens; turns and tokens are limits; "" while it is open
    finished: bool = False  # the last answer was not cut off
    place: str = ""  # location of its row for messages, if that is not the batch

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.response_ids

    @property
    def label(self) -> str:
        """The environment and its row, for messages."""
        row = self.place or f"row {self.number + 1} of the batch"
        return f"environment {self.kind.name}, {row}, prompt {text_of_turns(self.prompt)[:100]!r}"


def call_hooks(method: str, calls: list[tuple[Conversation, dict]], limits: PlayLimits) -> list:
    """Call a method of each environment: in order and in this thread, as TRL does, or concurrently if it is async.

    Raises:
        EnvironmentFault: it raised, or an async one took too long.
    """
    outcomes, waiting = [], {}
    for i, (conversation, arguments) in enumerate(calls):
        bound = functools.partial(getattr(conversation.environment, method), **arguments)
        outcomes.append(Outcome())
        if inspect.iscoroutinefunction(bound.func):
            waiting[i] = [bound]
            continue
        try:
            outcomes[i].value = bound()
        except (Exception, SystemExit) as error:
            checked(method, conversation, Outcome(error=error))
    for i, results in zip(waiting, run_jobs([*waiting.values()], limits.seconds), strict=True):
        outcomes[i] = results[0]
    return [checked(method, c, outcome) for (c, _), outcome in zip(calls, outcomes, strict=True)]


def checked(method: str, conversation: Conversation, outcome: Outcome):
    """The value that an environment's own method returned; EnvironmentFault if it raised or took too long."""
    error = outcome.error
    if isinstance(error, OutOfTime):
        raise EnvironmentFault(f"{conversation.label}: {method} gave {error}")
    if error is not None:
        raised = f"raised {type(error).__name__}: {error}{user_place(error) or f' at {conversation.kind.file}'}"
        raise EnvironmentFault(f"{conversation.label}: {method} {raised}") from error
    return outcome.value


def checked_text(method: str, conversation: Conversation, value) -> str | None:
    """A string or None that an environment returned; EnvironmentFault for other types."""
    if value is None or isinstance(value, str):
        return value and encodable(value)
    got = f"{method} returned a {type(value).__name__}"
    raise EnvironmentFault(f"{conversation.label}: {got}; expected a string or None")


def checked_number(name: str, conversation: Conversation, value) -> float:
    """A finite number that an environment gave, as a float; EnvironmentFault for other values."""
    number = finite_number(value)
    if number is None:
        raise EnvironmentFault(f"{conversation.label}: got {name} {value!r:.200}; expected a finite number")
    return number


def tool_text(tool: Callable, arguments: dict, limit: int):
    """Call a tool with copied arguments; returns its result as text cut to `limit`, awaitable for async tools."""
    value = tool(**copy.deepcopy(arguments))
    return awaited_text(value, limit) if inspect.isawaitable(value) else cut(str(value), limit)


async def awaited_text(value, limit: int) -> str:
    """The text of an async tool's result, cut to `limit` characters."""
    return cut(str(await value), limit)


def cut(text: str, limit: int) -> str:
    """A text that tokenizers take, cut to `limit` characters with a note of its full length."""
    shown = encodable(text[:limit])
    return shown if len(text) <= limit else f"{shown}\n[cut: the first {limit} of {len(text)} characters]"


def encodable(text: str) -> str:
    """A text with `?` for each half of a surrogate pair, which no tokenizer takes."""
    return text.encode(errors="replace").decode()


def error_text(error: BaseException, limit: int) -> str:
    """An error as text for the model, in TRL's form."""
    try:
        said = str(error) or type(error).__name__
    except Exception:  # the error's __str__ raises
        said = type(error).__name__
    return cut(str({"error": said}), limit)


def missing_tool(name: str, /, **arguments) -> None:
    raise ValueError(f"Tool {name} not found.")  # TRL's error


def tool_job(conversation: Conversation, limits: PlayLimits) -> list[Callable]:
    """The tool calls of the last answer as functions, to be called in order."""
    calls = []
    for function in [call["function"] for call in conversation.messages[-1].get("tool_calls", ())]:
        name = function["name"]
        known = name in conversation.kind.tool_names
        tool = getattr(conversation.environment, name) if known else functools.partial(missing_tool, name)
        calls.append(functools.partial(tool_text, tool, function["arguments"], limits.characters))
    return calls


def sets_signal(error: BaseException) -> bool:
    """Whether a tool's own code failed to set a signal handler; code that the model wrote and a tool runs may fail."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_model = any(file.startswith("<") and not file.startswith("<frozen") for file in files)
    return files[-1:] == [signal.__file__] and not of_model and "only works in main thread" in str(error)


def tool_messages(conversation: Conversation, outcomes: list[Outcome], limits: PlayLimits) -> list[dict]:
    """The results of the last answer's tool calls as messages; counts calls and failures.

    EnvironmentFault if a tool sets a signal handler, so that each of its calls would fail.
    """
    messages = []
    for call, outcome in zip(conversation.messages[-1]["tool_calls"], outcomes, strict=True):
        failed, name = outcome.error is not None, call["function"]["name"]
        if failed and sets_signal(outcome.error):
            advice = "tools run in threads; try it without signals, as --tool_timeout limits its time"
            checked(f"tool {name} ({advice})", conversation, outcome)
        conversation.calls, conversation.failures = conversation.calls + 1, conversation.failures + failed
        content = error_text(outcome.error, limits.characters) if failed else outcome.value
        message = {"role": "tool", "name": name[:64], "content": content}
        messages.append({**message, "tool_call_id": call["id"]} if "id" in call else message)
    return messages


def begin(rows: list[dict], setup: PlaySetup) -> list[Conversation]:
    """Create and reset an environment per row {"prompt", "columns"}; text from `reset` is appended to the prompt."""
    environments, limits, conversations, calls = setup.environments, setup.limits, [], []
    for number, row in enumerate(rows):
        prompt = row.get("prompt") or ""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else copy.deepcopy(prompt)
        kind = environments.kind_of(row["columns"])
        conversation = Conversation(number, prompt, kind, kind.make(), messages, place=row.get("place", ""))
        given = environments.reset_arguments(conversation.environment.reset, messages, row["columns"])
        conversations.append(conversation)
        calls.append((conversation, copy.deepcopy(given)))  # rows are shared by the conversations of a group
    for conversation, value in zip(conversations, call_hooks("reset", calls, limits), strict=True):
        said = checked_text("reset", conversation, value)
        if said is not None:
            at = -2 if conversation.messages[-1]["role"] == "assistant" else -1  # before a turn the model continues
            got = f"{conversation.label}: got text from reset for a prompt of the assistant's turn alone"
            need(len(conversation.messages) >= -at, f"{got}; expected a user's turn before it")
            message = conversation.messages[at]
            conversation.messages[at] = {**message, "content": message["content"] + said}
        try:
            conversation.prompt_ids = setup.bridge.render(conversation.messages, conversation.kind.tools)
        except Exception as error:  # templates may raise anything, such as "system role not supported"
            got = f"{conversation.label}: got a prompt that the template refuses"
            raise UserError(f"{got} ({error}); try other roles") from error
        length = len(conversation.prompt_ids)
        need(
            length + limits.answer_tokens <= limits.tokens,
            f"{conversation.label}: got a prompt of {length} tokens with the text that reset appends; "
            f"expected at most {limits.tokens - limits.answer_tokens}, so that an answer of {limits.answer_tokens} "
            f"fits; try --max_conversation_tokens {length + limits.answer_tokens}, or a shorter text from reset",
        )
    return conversations


def hear(conversation: Conversation, ids: list[int], logprobs: list[float], setup: PlaySetup) -> tuple[str, str]:
    """Append a sampled answer to its conversation; returns (text, problem with its tool calls or "")."""
    before, bridge = conversation.ids, setup.bridge
    conversation.spans.append((len(conversation.response_ids), len(conversation.response_ids) + len(ids)))
    conversation.response_ids += ids
    conversation.response_mask += [1] * len(ids)
    conversation.rollout_logprobs += logprobs
    conversation.finished = bridge.ends(ids)
    text = visible_text(bridge.tokenizer, ids, bridge.end_ids)
    message, problem = {"role": "assistant", "content": text}, ""
    if conversation.kind.tools:
        message, problem = read_answer(bridge.tokenizer, setup.form, before, ids, text, conversation.kind.tools)
    conversation.messages.append(message)
    return text, problem


def answer_all(conversations: list[Conversation], heard: list[tuple[str, str]], last: bool, limits: PlayLimits) -> list:
    """The environments' messages in response to the answers that were `heard`; [] for conversations that have ended."""
    said, jobs = [[] for _ in conversations], {}
    for i, (conversation, (text, problem)) in enumerate(zip(conversations, heard, strict=True)):
        if problem:
            conversation.calls, conversation.failures = conversation.calls + 1, conversation.failures + 1
            said[i] = [{"role": "tool", "name": "unknown", "content": str({"error": problem})}]
        elif conversation.messages[-1].get("tool_calls"):
            jobs |= {} if last else {i: tool_job(conversation, limits)}
            conversation.ended_by = "turns" if last else ""
        elif conversation.kind.talks:
            jobs[i] = [functools.partial(conversation.environment.reply, text)]
        else:
            conversation.ended_by = "answer"
    results = run_jobs([*jobs.values()], limits.seconds)
    for i, outcomes in zip(jobs, results, strict=True):
        conversation = conversations[i]
        conversation.seconds += sum(outcome.seconds for outcome in outcomes)
        if conversation.messages[-1].get("tool_calls"):
            said[i] = tool_messages(conversation, outcomes, limits)
            continue
        reply = checked_text("reply", conversation, checked("reply", conversation, outcomes[0]))
        said[i] = [] if reply is None else [{"role": "user", "content": reply}]
        conversation.ended_by = "reply" if reply is None else ""
    for conversation in conversations:
        value = getattr(conversation.environment, "turn_reward", 0.0)
        conversation.turn_rewards.append(checked_number("turn_reward", conversation, value))
        if value:
            conversation.environment.turn_reward = 0.0
    return said


def go_on(conversation: Conversation, messages: list[dict], last: bool, setup: PlaySetup) -> None:
    """Append the environment's messages and the tokens up to the next answer, or end the conversation at a limit."""
    if conversation.ended_by or not messages:
        return
    if last:
        conversation.ended_by = "turns"
        return
    start, end = conversation.spans[-1]
    last_id = conversation.response_ids[-1] if end > start else None
    between = setup.bridge.between(last_id, messages, conversation.kind.tools)
    if len(conversation.ids) + len(between) + setup.limits.answer_tokens > setup.limits.tokens:
        conversation.ended_by = "tokens"
        return
    conversation.messages += messages
    conversation.response_ids += between
    conversation.response_mask += [0] * len(between)
    conversation.rollout_logprobs += [0.0] * len(between)


def take_turn(conversations: list[Conversation], sampled: list, last: bool, setup: PlaySetup) -> None:
    """Append an answer (ids, logprobs) to each conversation, let the environments respond, and continue or end."""
    heard = [hear(c, [*ids], [*logprobs], setup) for c, (ids, logprobs) in zip(conversations, sampled, strict=True)]
    for conversation, messages in zip(conversations, answer_all(conversations, heard, last, setup.limits), strict=True):
        go_on(conversation, messages, last, setup)


def score_all(conversations: list[Conversation], limits: PlayLimits) -> None:
    """Set the scores, by get_reward or else turn rewards; what turn rewards do not cover goes to the last answer."""
    scoring = [c for c in conversations if c.kind.scores]
    values = call_hooks("get_reward", [(c, {}) for c in scoring], limits)
    for conversation, value in zip(scoring, values, strict=True):
        conversation.score = None if value is None else checked_number("get_reward", conversation, value)
    for conversation in conversations:
        if not conversation.kind.scores and hasattr(conversation.environment, "turn_reward"):
            conversation.score = sum(conversation.turn_rewards)
        if conversation.score is None:  # not scored, whatever its turns earned
            conversation.turn_rewards = [0.0] * len(conversation.turn_rewards)
        else:
            conversation.turn_rewards[-1] += conversation.score - sum(conversation.turn_rewards)


@prints_aside()
def play(rows: list[dict], setup: PlaySetup, sample: Callable) -> list[Conversation]:
    """Play one conversation for each row.

    Args:
        rows: {"prompt": string or messages, "columns": {…}}; a string is a user turn.
        sample: `(prompts, numbers, turn) -> [(ids, logprobs), …]`: an answer for each prompt (token ids). `numbers` are
            the rows' indices and `turn` counts from 0; sampling noise should depend on these only. Ids include the end
            token unless the answer was cut off.

    Raises:
        EnvironmentFault: reset, reply or get_reward raised or returned a wrong type; or reply, or an async method, took
            too long.
    """
    conversations, turns = begin(rows, setup), setup.limits.turns
    for turn in range(turns):
        now, last = [c for c in conversations if not c.ended_by], turn == turns - 1
        if not now:
            break
        sampled = sample([c.ids for c in now], [c.number for c in now], turn)
        take_turn(now, sampled, last, setup)
    score_all(conversations, setup.limits)
    return conversations


# ------------------------------------------------------------------- play setup (src/parts/environments/play_setup.py)

OF_ENVIRONMENT = "environment"  # name of the environment's own score among a sample's rewards
OBJECTS = "environments"  # reward functions' argument, as in TRL: the object of each conversation
TURN_SETTINGS = ("max_turns", "max_conversation_tokens", "tool_timeout", "tool_characters", "tool_format")


def check_idle(config, converses: bool, names: tuple[str, ...] = TURN_SETTINGS) -> None:
    """Raise UserError for conversation settings that were changed although the run has no conversations."""
    usual = type(config)()
    for name in names:
        idle = not converses and getattr(config, name) != getattr(usual, name)
        got = f"got {name} {getattr(config, name)} without an environment"
        need(not idle, f"{got}; expected one beside it; try --environment FILE.py:Class")


def check_room(config, prompt_tokens: int) -> None:
    """Raise UserError if a conversation has no room for a prompt and an answer."""
    shortest = prompt_tokens + config.max_new_tokens
    need(
        config.conversation_tokens >= shortest,
        f"got max_conversation_tokens {config.max_conversation_tokens}; expected room for a prompt and an answer, "
        f"{prompt_tokens} + {config.max_new_tokens} tokens; try --max_conversation_tokens {2 * shortest}",
    )


def check_fits(config, limit: int | None, bound: str = "max_new_tokens") -> None:
    """Raise UserError if a conversation can exceed the model's `limit` of positions (None: no limit).

    Args:
        bound: name of the setting that limits an answer, for the message.
    """
    need(
        not limit or config.conversation_tokens <= limit,
        f"got conversations of up to {config.conversation_tokens} tokens; expected at most the model's {limit}; try "
        f"--max_conversation_tokens {limit}, or a lower --max_turns or --{bound}",
    )


@prints_aside()
def pays(kind: EnvironmentKind) -> bool:
    """Whether an environment scores conversations, by get_reward or turn_reward."""
    return kind.scores or hasattr(kind.make(), "turn_reward")


def check_chat_template(config, tokenizer) -> None:
    got = f"got --environment, but the tokenizer of {config.model!r} has no chat template"
    need(tokenizer.chat_template, f"{got}; expected one; try --chat_template FILE, or an instruct model")


def load_scored(config) -> tuple[Environments, Reward]:
    """(environments, reward functions beside them); UserError if an environment's conversations would get no score."""
    environments = load_environments(config.environment)
    reward = Reward(config.reward, call_limits(config))
    reward.others = (OBJECTS,)
    check_environments(config, environments, reward.functions)
    return environments, reward


def check_environments(config, environments: Environments, functions) -> None:
    """Raise UserError if conversations would get no score, or if tool_format is set without tools.

    Args:
        functions: names of the reward functions beside the environments.
    """
    got = f"got a reward function {OF_ENVIRONMENT!r}, the name of the environment's own score"
    need(OF_ENVIRONMENT not in functions, f"{got}; try another name")
    advice = "try def get_reward(self) -> float, or turn_reward = 0.0 in the class"
    for kind in environments.kinds.values():
        got = f"environment {kind.name}: got no get_reward and no --reward"
        need(functions or pays(kind), f"{got}; expected one of them; {advice}")
    tools = any(kind.tools for kind in environments.kinds.values())
    need(tools or not config.tool_format, f"got tool_format {config.tool_format} for an environment without tools")


def check_environment_rows(environments: Environments, rows: list[dict]) -> None:
    """Raise UserError for a row that `reset` does not accept; rows with the same columns are checked once."""
    tried = set()
    for row in rows:
        key = (environments.kind_of(row["columns"]).name, *row["columns"])
        if key not in tried:
            environments.check_row(row["prompt"], row["columns"])
            tried.add(key)


def make_play_setup(config, tokenizer, end_ids: list[int], environments: Environments) -> PlaySetup:
    """Build the PlaySetup; UserError for a chat template that cannot be continued or shows no form of tool calls."""
    tools = any(kind.tools for kind in environments.kinds.values())
    limits = PlayLimits(
        turns=config.max_turns,
        tokens=config.conversation_tokens,
        answer_tokens=config.max_new_tokens,
        seconds=config.tool_timeout,
        characters=config.tool_characters,
    )
    bridge = turn_bridge(tokenizer, end_ids, environments, template_settings(config))
    return PlaySetup(environments, bridge, call_format(tokenizer, config.tool_format) if tools else "", limits)


def playable_rows(
    config, setup: PlaySetup, rows: list[dict], source: str, limit: str = "max_prompt_tokens"
) -> list[dict]:
    """Render the rows' prompts with their environment's tools as `prompt_ids`; drop rows that are then too long.

    Text that `reset` appends is not included, as it is unknown before a conversation begins.

    Args:
        limit: name of the setting that limits a prompt.
    """
    kept, most = [], getattr(config, limit)
    for row in rows:
        prompt, tools = row["prompt"], setup.environments.kind_of(row["columns"]).tools
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            ids = setup.bridge.render(turns, tools)
        except ValueError as error:
            got = f"{source}: got prompt {str(prompt)[-80:]!r}"
            raise UserError(f"{got}, which the template refuses: {error}") from error
        kept += [row | {"prompt_ids": ids}] if len(ids) <= most else []
    too_long = f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {most} tokens with tools"
    need(kept or not rows, f"{source}: got {too_long}; expected some that fit; try a higher --{limit}")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    return kept


def score_talks(setup: PlaySetup, rows: list[dict], conversations: list[Conversation], reward: Reward) -> list[dict]:
    """Scores of conversations, one dict per row: the environment's own and each reward function's, by name.

    The first entry decides whether a held-out row has full marks; it is the environment's if it has get_reward.
    """
    parts = {}
    if reward.functions:
        seen, said = as_rewards_see(rows, conversations)
        parts = reward(seen, said, [t.response_ids for t in conversations])[1]
    scored = any(kind.scores for kind in setup.environments.kinds.values())
    environment_score = {OF_ENVIRONMENT: [c.score for c in conversations]}
    parts = environment_score | parts if scored else parts | environment_score
    return [{name: column[i] for name, column in parts.items()} for i in range(len(rows))]


def as_rewards_see(rows: list[dict], conversations: list[Conversation]) -> tuple[list[dict], list[list[dict]]]:
    """(rows with their environment and the prompt that `reset` completed, messages that followed), for rewards."""
    begun, seen = [1 if isinstance(row["prompt"], str) else len(row["prompt"]) for row in rows], []
    for row, t, n in zip(rows, conversations, begun, strict=True):
        seen.append({**row, "prompt": t.messages[:n], "columns": {**row["columns"], OBJECTS: t.environment}})
    return seen, [t.messages[n:] for t, n in zip(conversations, begun, strict=True)]


def score_weights(reward: Reward, names) -> dict[str, float]:
    """The weight of each score in a conversation's return."""
    return {name: 1.0 if name == OF_ENVIRONMENT else reward.weights[name] for name in names}


def pieces(tokenizer, conversation: Conversation) -> list[dict]:
    """The text after the prompt, split into sampled and other pieces: {"sampled", "text"} each."""
    parts, end_before, all_ids = [], 0, conversation.response_ids
    for start, end in conversation.spans:
        for sampled, ids in ((False, all_ids[end_before:start]), (True, all_ids[start:end])):
            parts += [{"sampled": sampled, "text": tokenizer.decode(ids)}] if ids else []
        end_before = end
    return parts


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


def refuse_adapter(source: str, flag: str, why: str) -> None:
    """Raise UserError if a model is an adapter; `why` says that `flag` needs a whole model."""
    adapter = f"got {flag} {source!r}, a LoRA adapter, {why}; expected a whole model; try {merge_command(source)}"
    need(not config_file(source), adapter)


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


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """Sorted ids of the tokens that end an answer: a model's eos_token_id (one or a list) and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def token_count(tokenizer, eos_ids: list[int]) -> int:
    """Number of embedding rows that belong to tokens; rows beyond only round up the size and must not be sampled."""
    return 1 + max(*tokenizer.get_vocab().values(), *eos_ids)


# ----------------------------------------------------------------------------- loading (src/parts/networks/loading.py)

# attention kinds of transformers; auto leaves the choice to it: sdpa if the architecture supports it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


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


def generation_settings(source: str):
    """A model's generation settings, from generation_config.json or else from config.json."""
    try:
        return transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # no such file
        return transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(source))


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


def continued(kept: KeptTexts, texts: dict[int, list[int]], read: Callable) -> tuple:
    """Read the new tokens of texts that extend kept ones, in groups of similar length to avoid pads.

    Args:
        read: `(new tokens of each row, mask [B, T], cache) -> (output at the last tokens [B, …], mask, cache)`; the
            returned mask and cache are of the whole texts.

    Returns:
        (the texts' numbers in the order of rows, output at each last token [B, …], mask [B, T], cache).
    """
    groups = alike({number: len(ids) - len(kept.ids[number]) for number, ids in texts.items()})
    whole, last = KeptTexts(texts), {}
    for group in groups:
        order, cache, mask = kept.cache_of(group, group is groups[-1])
        following, mask, cache = read([texts[n][len(kept.ids[n]) :] for n in order], mask, cache)
        if len(groups) == 1:
            return order, following, mask, cache
        whole.parts.append(Part(order, pairs_of(cache), mask))
        last |= zip(order, following, strict=True)
    order, cache, mask = whole.cache_of(list(texts))
    return order, torch.stack([last[number] for number in order]), mask, cache


def alike(lengths: dict[int, int]) -> list[list[int]]:
    """Group numbers by length, longest first; all in a group are within 16, or a quarter, of its longest."""
    groups, longest = [], 0
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        if not groups or lengths[number] < longest - max(16, longest // 4):
            groups, longest = [*groups, []], lengths[number]
        groups[-1].append(number)
    return groups


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


class TurnSampler:
    """Samples the turns of conversations: what was read and said up to a turn is not read again by the next.

    A turn that is no single batch is sampled as any prompts are, and nothing is kept of it.
    """

    def __init__(self, engine: HFEngine):
        self.engine, self.kept = engine, KeptTexts()

    def generate(self, prompts: list[list[int]], noise, numbers: list[int]) -> list[tuple[list[int], list[float]]]:
        """Like HFEngine.generate, for conversations with `numbers`: what was kept of them is not read again."""
        engine, kept, self.kept = self.engine, self.kept, KeptTexts()
        if len(engine.batches(list(map(len, prompts)))) != 1:
            say_once("note: each batch of a turn reads its conversations again; try a higher --rollout_batch_size")
            return engine.generate(prompts, noise)
        texts = dict(zip(numbers, prompts, strict=True))
        with engine.ready():
            if kept.begins(texts):
                order, states, mask, cache = continued(kept, texts, engine.read_on)
            else:
                order, (states, mask, cache) = numbers, engine.read(prompts)
            del kept
            place = {number: i for i, number in enumerate(numbers)}
            noise = None if noise is None else noise[[place[number] for number in order]]
            keep = functools.partial(self.kept.take, order, mask)
            sampled = dict(zip(order, engine.sample(states, mask, cache, noise, keep), strict=True))
        self.kept.ids = {number: texts[number] + ids[:-1] for number, (ids, _) in sampled.items()}
        return [sampled[number] for number in numbers]


# ----------------------------------------------------------------- sampling vllm (src/parts/sampling/sampling_vllm.py)

# 0.30 is run by the tests; that 0.22 and 0.26 have the same interface was read in their source, as was 0.33, but from
# 0.31 on vLLM asks for an older transformers than this bundle does.
VLLM_OLDEST, VLLM_ABOVE = (0, 22), (0, 31)
VLLM_PIP = "pip install 'vllm>={}.{},<{}.{}'".format(*VLLM_OLDEST, *VLLM_ABOVE)
BOOLS = {**dict.fromkeys(("true", "yes", "on", "1"), "--"), **dict.fromkeys(("false", "no", "off", "0"), "--no-")}


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


# --------------------------------------------------------------------------- rollouts (src/parts/sampling/rollouts.py)


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


# ----------------------------------------------------------- trainer settings (src/parts/learning/trainer_settings.py)


@dataclass
class ConversationSettings(BaseConfig):
    """Settings of programs that hold conversations with an environment."""

    environment: str = setting(
        "", "FILE.py:Class of a multi-turn environment: its methods are tools, or it replies; also a dict {name: class}"
    )
    max_turns: int = setting(8, "answers in a conversation with an environment", positive=True)
    max_conversation_tokens: int = setting(
        0, "token limit of a conversation (0: the limit of a prompt + max_turns x that of an answer)"
    )
    tool_timeout: float = setting(30.0, "seconds for an answer's tool calls, or for a reply", positive=True, free=True)
    tool_characters: int = setting(8000, "length at which tool results are cut, in characters", positive=True)
    tool_format: str = setting(
        "",
        "form of tool calls: hermes, qwen_xml, mistral, pythonic, llama3_json, or template for the "
        "tokenizer's response_template (default: what the chat template shows)",
    )

    @property
    def conversation_tokens(self) -> int:
        """Maximum number of tokens of a prompt and all that follows it."""
        turns = self.max_turns if self.environment else 1
        return self.max_conversation_tokens or self.max_prompt_tokens + turns * self.max_new_tokens


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


def mlp_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that one MLP keeps, its input apart; experts run in the width of what is between layers."""
    copies = model.inner_copies
    if not model.experts:
        return run.tokens * copies * model.inner * run.compute
    routed = model.experts * (copies * model.inner + 2 * model.hidden) * run.stream
    return run.tokens * (routed + copies * model.shared_inner * run.compute)


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


def layer_weights(model: DecoderShape) -> int:
    """Weights of the linear layers of one decoder layer, routed experts apart."""
    inner = model.shared_inner if model.experts else model.inner
    return model.hidden * (2 * model.queries + 2 * model.keys + (3 if model.gated else 2) * inner)


def weight_copies(model: DecoderShape, run: PassShape) -> float:
    """Bytes of the copies that autocast makes of one layer's float32 weights."""
    return layer_weights(model) * run.compute * (run.casts and not run.lora_rank)


def sampling_bytes(model: DecoderShape, run: PassShape, new_tokens: int) -> float:
    """Bytes of the KV cache of prompts of `run` and their completions, of their forward pass, and of a token's draw.

    That has logits, scaled ones and log-probs [rows, V] in float32, and probabilities in float64.
    """
    cache = 2 * model.layers * model.keys * run.compute * run.rows * (run.length + new_tokens)
    logits = run.rows * model.vocab
    draw = 4 * (3 + model.logit_softcap) * logits + 3 * 8 * min(logits, max(DRAWN, model.vocab))
    return cache + model.layers * weight_copies(model, run) + max(layer_transient(model, run), draw)


# -------------------------------------------------------------------------------------- fit (src/parts/running/fit.py)

USABLE_SHARE = 0.85  # of free memory that a choice may take: the estimate was up to 15 % below what was measured
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


def gib(size: float) -> str:
    """Bytes as GiB."""
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.2g}"


# ------------------------------------------------------------------ output folder (src/parts/running/output_folder.py)


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all, also after the machine went down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


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


# ----------------------------------------------------------------- paired tests (src/parts/evaluating/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); exact ends for 0 and n successes."""
    z, p = Z95, successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def mcnemar_exact(better: int, worse: int) -> float:
    """Two-sided exact p of a split of the differing pairs at least as uneven (McNemar 1947), binomial with 1/2.

    >>> mcnemar_exact(9, 0)
    0.00390625
    """
    n, tail = better + worse, sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_proportion_interval(better: int, worse: int, n: int) -> tuple[float, float]:
    """95 % interval of a difference of paired proportions, with one row added to each side (Bonett and Price 2012)."""
    up, down = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def rows_needed(difference: float, stderr: float, n: int) -> int | None:
    """Rows needed to find a difference at p < 0.05 in 4 of 5 runs, from its standard error over n rows."""
    return math.ceil(n * ((Z95 + Z_POWER) * stderr / difference) ** 2) if difference else None


@dataclass
class Values:
    """One metric over the rows: the mean of `top`, or f(sum of top / sum of bottom); None means not applicable."""

    top: list
    bottom: list | None = None
    exp: bool = False  # f is exp, as for perplexities, else the identity
    higher_is_better: bool | None = True

    def of(self, ratio):
        """f of a number or array."""
        with np.errstate(over="ignore"):  # callers handle inf
            return np.exp(ratio) if self.exp else ratio

    def columns(self, rows) -> list[list[float]]:
        """[top, bottom] of some rows."""
        return [[self.top[i] for i in rows], [1.0 if self.bottom is None else self.bottom[i] for i in rows]]

    def is_proportion(self) -> bool:
        """Whether all values are 0 or 1. Counts, such as the number of turns, are never proportions."""
        counts = self.bottom is not None or self.exp or self.higher_is_better is None
        return not counts and all(x in (0, 1) for x in self.top if x is not None)

    def mean(self, top: list[float], bottom: list[float]) -> float:
        """f(sum of top / sum of bottom); infinite if that overflows."""
        try:
            return float(self.of(math.fsum(top) / math.fsum(bottom)))
        except OverflowError:
            return math.inf


def bootstrap(sides: list[tuple[Values, list, list]], samples: int, seed: int) -> list:
    """Values [<= samples] of each (metric, top, bottom), from samples that draw the same rows of all.

    Samples in which something would be divided by 0 are left out.
    """
    columns = [column for _, *pair in sides for column in pair]
    table, rng = np.asarray(columns, dtype=float).T, np.random.default_rng(seed)  # [n, columns]
    n, step, sums = len(table), max(1, 2**22 // max(1, len(table))), []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, samples, step):
            picked = rng.integers(0, n, size=(min(step, samples - start), n))
            sums.append(table[picked].sum(axis=1))
        sums = np.concatenate(sums)
        sums = sums[(sums[:, 1::2] != 0).all(axis=1)]
        return [metric.of(sums[:, 2 * i] / sums[:, 2 * i + 1]) for i, (metric, *_) in enumerate(sides)]


def middle_95(draws, n: int) -> list[float]:
    """The bounds of the middle 95 % of bootstrap draws of n rows, widened as for Student's t (Hesterberg 2015, 3.3)."""
    z, df = Z95, n - 1
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)  # Abramowitz and Stegun, 26.7.5
    tail = statistics.NormalDist().cdf(-t * math.sqrt(n / df))
    with np.errstate(invalid="ignore"):
        return [float(x) for x in np.quantile(draws, [tail, 1 - tail])]


def swapped_p(sides: tuple[Values, Values], columns: list[list[float]], observed: float, samples: int, seed: int):
    """Two-sided p of a difference: each row's values, (top, bottom) of each side, may be swapped (Fisher 1935, 21).

    Of all ways to swap them if these are few, else of `samples` draws; exact for any number of rows.
    """
    table, rng = np.asarray(columns, dtype=float).T, np.random.default_rng(seed)  # [n, 4]
    change, sums, far = table[:, 2:] - table[:, :2], table.sum(axis=0), 0
    change, least = change[change.any(axis=1)], abs(observed) * (1 - 1e-9) - 1e-14 * abs(table).max()
    few, n = 2 ** len(change) <= samples, len(change)
    count = 2**n if few else samples
    for ways in np.array_split(np.arange(count), 1 + count * n // 2**22):
        moved = (ways[:, None] >> np.arange(n) & 1 if few else rng.integers(0, 2, (len(ways), n), np.int8)) @ change
        with np.errstate(all="ignore"):  # nan counts as far
            one, two = (sides[i].of(x[:, 0] / x[:, 1]) for i, x in enumerate((sums[:2] + moved, sums[2:] - moved)))
            far += int((~(abs(two - one) < least)).sum())
    return far / count if few else (far + 1) / (count + 1)


def summarize(values: Values, samples: int, seed: int) -> dict:
    """Value, standard error and 95 % interval of a metric, and how the interval was computed."""
    rows = [i for i, x in enumerate(values.top) if x is not None]
    top, bottom = values.columns(rows)
    result = {"value": None, "stderr": None, "ci95": None, "n": len(rows), "of": len(values.top), "interval": "none"}
    result["higher_is_better"] = values.higher_is_better
    if not rows or not sum(bottom):
        return result
    value, n = values.mean(top, bottom), len(rows)
    if not math.isfinite(value):
        return result | {"interval": "too large for a number"}
    result["value"] = value
    if values.is_proportion():
        result |= {"ci95": list(wilson_interval(sum(top), n)), "interval": "wilson"}
    elif n > 1:
        (draws,) = bootstrap([(values, top, bottom)], samples, seed)
        with np.errstate(over="ignore", invalid="ignore"):
            result |= {"ci95": middle_95(draws, n), "interval": "bootstrap", "stderr": float(draws.std(ddof=1))}
    if n > 1 and values.bottom is None and not values.exp:
        with np.errstate(over="ignore"):
            result["stderr"] = float(np.std(top, ddof=1) / math.sqrt(n))
    if not all(map(math.isfinite, [result["stderr"] or 0.0, *(result["ci95"] or [])])):
        result |= {"ci95": None, "stderr": None, "interval": "too large for a number"}
    return result


def compare_values(before: Values, after: Values, samples: int, seed: int) -> dict | None:
    """Paired test of two runs' values on the same rows, in the same order.

    None if no row has both values, there is nothing to divide by, or a figure overflows.
    """
    rows = [i for i, pair in enumerate(zip(before.top, after.top, strict=True)) if None not in pair]
    n = len(rows)
    if not n:
        return None
    (a, a_base), (b, b_base) = before.columns(rows), after.columns(rows)
    if not sum(a_base) or not sum(b_base):
        return None
    one, two = before.mean(a, a_base), after.mean(b, b_base)
    result = {"before": one, "after": two, "difference": two - one, "rows": n}
    if not math.isfinite(one) or not math.isfinite(two - one):
        return None
    if before.is_proportion() and after.is_proportion():
        up, down = (sum(x < y for x, y in pair) for pair in (zip(a, b, strict=True), zip(b, a, strict=True)))
        result |= {"test": "exact McNemar", "p": mcnemar_exact(up, down), "better": up, "worse": down}
        result["ci95"] = list(paired_proportion_interval(up, down, n))
        result |= {"before_ci95": list(wilson_interval(sum(a), n)), "after_ci95": list(wilson_interval(sum(b), n))}
        stderr = math.sqrt(max(0.0, (up + down) / n - ((up - down) / n) ** 2) / n)
    elif n > 1:
        sides = bootstrap([(before, a, a_base), (after, b, b_base)], samples, seed)
        with np.errstate(over="ignore", invalid="ignore"):
            draws = sides[1] - sides[0]
            stderr = float(draws.std(ddof=1))
        if not math.isfinite(stderr):
            return None
        for name, drawn in (("ci95", draws), ("before_ci95", sides[0]), ("after_ci95", sides[1])):
            result[name] = middle_95(drawn, n)
        p = swapped_p((before, after), [a, a_base, b, b_base], result["difference"], samples, seed)
        result |= {"test": "paired permutation", "p": p}
    else:
        return result | {"test": "none", "p": None, "ci95": None, "rows_needed": None}
    # even 9 better and none worse of 9, with a standard error of 0, needs the 6 rows that make p < 0.05
    needed = rows_needed(result["difference"], stderr, n)
    return result | {"rows_needed": None if needed is None else max(needed, 6)}


def other_scale(before: list[float], after: list[float]) -> bool:
    """Whether one side seems to have shares and the other percent, or one 0 and 1 and the other -1 and 1."""
    low, high = sorted((before, after), key=lambda values: max(map(abs, values)))
    signed = any(-1 in x and {*x} <= {-1, 1} and 0 in y and {*y} <= {0, 1} for x, y in ((low, high), (high, low)))
    return signed or (0 < max(map(abs, low)) <= 1 < statistics.fmean(high) and 10 < max(high) <= 100)


def ends_of(higher_is_better: bool | None) -> tuple[str, str]:
    """What a row is called whose value rises, and one whose value falls."""
    return ("better", "worse") if higher_is_better else ("higher", "lower")


def verdict_of(name: str, result: dict, higher_is_better: bool | None, doubts=()) -> str:
    """The comparison in words; doubts about the rows take the place of the verdict."""
    change = f"{name}: {result['before']:.4g} -> {result['after']:.4g}, difference {result['difference']:+.4g}"
    if result["p"] is None:
        return f"{change}; one row shows nothing"
    low, high = result["ci95"]
    up, down = ends_of(higher_is_better)
    counts = f", {result['better']} rows {up}, {result['worse']} {down}" if "better" in result else ""
    change += f", 95 % interval [{low:+.4g}, {high:+.4g}], p = {result['p']:.2g} ({result['test']}, "
    change += f"{result['rows']} rows{counts}). "
    if doubts:
        return f"{change}No verdict: {'; '.join(doubts)}."
    if result["p"] < 0.05:
        up = result["difference"] > 0
        return change + {None: "A real change.", up: "A real gain."}.get(higher_is_better, "A real loss.")
    if not result["rows_needed"]:
        return change + "No difference at all."
    return change + f"Within the noise; to see a difference of this size needs about {result['rows_needed']} rows."


# ----------------------------------------------------- evaluation results (src/parts/evaluating/evaluation_results.py)

# settings that change what a model is asked, or how it answers
ASKING = (
    *("fewshot", "fewshot_data", "chat_template", "chat_template_kwargs", "system_prompt", "n", "temperature", "top_p"),
    *("max_new_tokens", "stop", "max_length", "max_turns", "tool_format", "precision"),
)
OTHER_SCALE = "the two sides have scores on different scales, such as shares and percent, or 0 to 1 and -1 to 1"
REPEATED = re.compile(r"[0-9a-f]{16}\.\d+")  # the key of a row that repeats an earlier one


def count_repeated(keys: list[str]) -> int:
    return sum(REPEATED.fullmatch(key) is not None for key in keys)


def unique_keys(rows: list) -> list[str]:
    """A short hash of each row, by which two runs find their common rows; repeated rows get a number."""
    counts, keys = {}, []
    for text in (json.dumps(row, sort_keys=True, default=str) for row in rows):
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        counts[key] = counts.get(key, 0) + 1
        keys.append(key if counts[key] == 1 else f"{key}.{counts[key]}")
    return keys


def read_report(path: str) -> dict:
    """Read a results.json, or the one in a folder."""
    file = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        compared = [(task["keys"], task["values"]) for task in report["tasks"].values()]
        need(
            compared and report["model"]["name"], f"got {path!r} without tasks; expected results.json of evaluation.py"
        )
        return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"got {path!r} ({type(error).__name__}: {error}); expected results.json of evaluation.py"
        ) from None


def compare_reports(before: dict, after: dict, samples: int, seed: int) -> dict:
    """{task: {metric: paired test}} for all metrics that two runs share, on their common rows; bootstrap `samples`."""
    one, two = (run.get("settings") or {} for run in (before, after))
    differing = [name for name in ASKING if name in one and name in two and one[name] != two[name]]
    if differing:
        values = (f"{name} {one[name]!r:.40} and {two[name]!r:.40}" for name in differing)
        say(f"warning: got runs with {', '.join(values)}; expected the same settings, or these may be what differs")
    results, common = {}, [name for name in before["tasks"] if name in after["tasks"]]
    need(common, f"got runs of {list(before['tasks'])} and of {list(after['tasks'])}; expected a task that both have")
    for task in common:
        a, b = before["tasks"][task], after["tasks"][task]
        place = {key: i for i, key in enumerate(b["keys"])}
        pairs = [(i, place[key]) for i, key in enumerate(a["keys"]) if key in place and not REPEATED.fullmatch(key)]
        need(pairs, f"got two runs of {task} without a common row; expected the same data")
        alone = len({*a["keys"]} ^ {*b["keys"]})
        if alone:
            say(f"warning: {task}: {alone} rows are in only one of the runs and left out")
        if again := count_repeated(a["keys"]):
            say(f"warning: {task}: {again} rows repeat another one, are not independent of it, and are left out")
        for name in [name for name in a["values"] if name in b["values"]]:
            one, two = (pick_values(run["values"][name], [p[side] for p in pairs]) for side, run in enumerate((a, b)))
            if lacking := unpaired_scores([*zip(one.top, two.top, strict=True)]):
                say(f"warning: {task} {name}: {lacking}")
            if test := compare_values(one, two, samples, seed):
                scores = ([x for x in values.top if x is not None] for values in (one, two))
                doubts = dict.fromkeys([*a.get("doubts", ()), *b.get("doubts", ())])
                is_count = one.bottom or one.higher_is_better is None
                doubts |= {OTHER_SCALE: None} if not is_count and other_scale(*scores) else {}
                words = verdict_of(f"{task} {name}", test, one.higher_is_better, doubts)
                results.setdefault(task, {})[name] = {**test, "verdict": words}
    return results


def unpaired_scores(pairs: list[tuple]) -> str:
    """How many rows have a score on one side only, as a clause; "" if none."""
    lacking = [(x is None) - (y is None) for x, y in pairs]
    text = f"{lacking.count(1)} rows have no score before, {lacking.count(-1)} none after"
    return f"{text}: they are left out, and do not count as wrong" if any(lacking) else ""


def pick_values(values: dict, rows: list[int]) -> Values:
    """The values of some rows in a results.json."""
    picked = {name: values[name] and [values[name][i] for i in rows] for name in ("top", "bottom")}
    return Values(**{**values, **picked})


# ------------------------------------------------------------- scored samples (src/parts/evaluating/scored_samples.py)

SCORED_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".eval")  # the last is Inspect's: JSON files in a zip
ID = "(id|idx|index|uu?id)"
OF_ITEM = rf"(doc|task|question|problem|example|item)_?{ID}"
COLUMNS = {  # names of columns, the best first
    "key": ("item_?id", OF_ITEM, ID, f"sample_?{ID}", "key|name|item"),
    "prompt": ("((full|origin)_)?prompt", "question|problem|instruction|query", "(user_)?input"),
    "gold": (
        "golds?|gold_answer|targets?|references?|expected(_answer|_output)?|ground_truth|gt|correct_answer",
        "label|solution|answer|final_answer",
    ),
    "completion": (
        "completions?|(model_|full_)?(response|output)s?|generations?|generated_text|model_answer|resps|raw_output",
        "predictions?|preds?|code|text",
        "answer|solution",
    ),
    "finish": ("(finish|stop)(_reason)?", "(is_|was_)?truncated"),
    "model": (
        r"model(_?(name|id|path|name_or_path))?",
        "policy|checkpoint|system|arm|condition|llm|agent|generator|method",
    ),
    "part": ("subject", "data_?set(_name)?|benchmark|subset|category|task(_name)?|data_?source|config"),
}
DRAW = (
    "(sample|draw|seed|epoch|run|trial|rep(eat|lica|etition)?|attempt|rollout|generation|n|k|worker|judge|rater|grader"
    "|annotator|turn|template|lang(uage)?)(_?(id|idx|index|no))?"
)
GROUP = "(conversation|dialog|dialogue|thread|cluster|problem|question)(_?(id|name))?"
LOWER = (
    r"(?<![a-z])((wer|cer|ter|ppl|r?mse|mae|ece|brier(_score)?|perplexity|loss|errors?|latency|costs?)(?![a-z])"
    "|toxic|hallucin|harm(?!less|on))"
)
HIGHER = r"(?<![a-z])(acc|correct|right|pass|f1|precision|recall|auc|free)"  # error_free, num_correct
NEITHER = r"(?<![a-z])(length|len|tokens|words|turns|count|num|seconds|time|refus[a-z]+)(?![a-z])"
SCORE = (
    r"(is_)?(correct|right|solved)|correctness|acc(uracy)?|(exact_)?match|em|pass(ed)?|success|score|verified"
    r"|(.+\.)?(scores?|metrics?)\.\w+(\.value)?|(base|plus)_status"
)
VERDICTS = {
    **dict.fromkeys(("true", "yes", "pass", "passed", "correct", "right", "c", "y", "t"), 1.0),
    "p": 0.5,  # Inspect's letters: correct, partly, incorrect, no answer
    **dict.fromkeys(("false", "no", "fail", "failed", "incorrect", "wrong", "timeout", "i", "n", "f"), 0.0),
}
CUT_REASONS = ("length", "max_tokens", "max_length", "max_new_tokens", "true")  # how servers name the token limit


def column_name(name) -> str:
    """A name in lower case with underscores."""
    return re.sub("[ -]", "_", str(name).lower())


def flat(row: dict, place: str = "") -> dict:
    """A row without nesting, with dotted names."""
    columns = {}
    for name, x in row.items():
        full = place + column_name(name)
        columns |= flat(x, f"{full}.") if isinstance(x, dict) and x else {full: x}
    return {name: x for name, x in columns.items() if name}  # pandas's index has none


def columns_of(row: dict) -> dict[str, str]:
    """{role: column, or ""} of a flat row: of the columns without a role the least nested, of these the best name."""
    columns = {}
    for role, patterns in COLUMNS.items():
        ranks = [
            (name.count("."), rank, name)
            for name in row.keys() - {*columns.values()}
            for rank, pattern in enumerate(patterns)
            if re.fullmatch(pattern, name.rpartition(".")[2])
        ]
        columns[role] = min(ranks, default=(0, 0, ""))[2]
    if not columns["completion"] and columns["gold"].endswith("solution"):  # programs
        columns |= {"completion": columns["gold"], "gold": ""}
    return columns


def scores_in(row: dict, name: str) -> list[float | None] | None:
    """A row's scores of a column, None for empty cells; None if it lacks the column or has a text such as "error"."""
    try:
        cells = [VERDICTS.get(x.lower(), x) if isinstance(x, str) else x for x in listed(row[name])]
        return [None if x in (None, "") else float(x) for x in cells] or [None]
    except (KeyError, ValueError, TypeError):
        return None


def score_columns(rows: list[dict]) -> dict[str, list[list]]:
    """{metric: a list of scores for each row} of flat rows, most of which must have them; lm-eval declares metrics."""
    columns, declared = {}, rows[0].get("metrics") or ()
    for name in dict.fromkeys(name for row in rows for name in row if name in declared or re.fullmatch(SCORE, name)):
        cells = [scores_in(row, name) for row in rows]
        parts = name in declared and ("perplexity" in name or any(len(listed(row.get(name))) > 1 for row in rows))
        if not parts and 2 * cells.count(None) < len(rows):  # lm-eval's parts: (gold, prediction), a log-likelihood
            columns[name.removesuffix(".value")] = [cell or [None] for cell in cells]
    return {name: cells for name, cells in columns.items() if any(x is not None for cell in cells for x in cell)}


def text_of(value) -> str:
    """A completion as text: of messages the last one's."""
    while isinstance(value, list | dict) and value:
        value = value[-1] if isinstance(value, list) else value.get("content", value.get("text", value.get("prompt")))
    return value if isinstance(value, str) else "" if value in (None, [], {}) else str(value)


def listed(value) -> list:
    return value if isinstance(value, list) else [value]


def named_samples(value: dict) -> list[dict]:
    """Rows of {id: sample}, or of EvalPlus's {id: samples}, whose further tests (plus) count beside the first ones."""
    rows = [{"id": name} | x for name, part in value.items() for x in listed(part) if isinstance(x, dict)]
    if rows and all("base_status" in row for row in rows):
        failed = {"plus_status": "fail"}
        return [row | (failed if row["base_status"] != "pass" and row.get("plus_status") else {}) for row in rows]
    are_samples = len(rows) > 1 and all(isinstance(part, dict) for part in value.values())
    return rows if are_samples and all(columns_of(flat(row))["completion"] for row in rows) else []


def tables_in(value) -> Iterator[list[dict]]:
    """The tables of scored samples in a JSON value, as flat rows; none of training."""
    if isinstance(value, dict):
        for x in value.values():
            yield from tables_in(x)
        value = named_samples(value)
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        rows = [*map(flat, value)]
        if score_columns(rows) and "step" not in rows[0]:
            yield rows


def have_same_rows(tables: list[list[dict]]) -> bool:
    """Whether the flat rows of tables are of the same items, by their prompts or ids."""
    columns = columns_of(tables[0][0])
    for name in filter(None, (columns["prompt"], columns["key"])):
        first, *others = ({str(row.get(name)) for row in rows} for rows in tables)
        if len(first) ** 2 >= len(tables[0]):  # few are instructions that several rows share
            return all(2 * len(x & first) > len(x | first) for x in others)
    return False


def fits(finer: list[str], coarser: list[str]) -> bool:
    """Whether each value of a column has one value of another."""
    return len({*zip(finer, coarser, strict=True)}) == len({*finer})


def keys_of(rows: list[dict], columns: dict[str, str], asked: list[str]) -> list[str]:
    """What tells flat rows apart: their ids, or their prompts where ids number draws or begin anew.

    Ids that begin anew in each subject get its name. A prompt tells rows apart if it has one gold answer, unless it may
    be an instruction that many rows share: there are few prompts, and all have the same gold.
    """
    ids, parts, golds = ([str(row.get(columns[name])) for row in rows] for name in ("key", "part", "gold"))
    if columns["part"] and not fits(ids, parts):
        ids = [f"{part}, {key}" for part, key in zip(parts, ids, strict=True)]
    kind, number, prompts = columns["key"].rpartition(".")[2], len({*ids}), len({*asked})
    tells = prompts > 1 and fits(asked, golds) and (len({*golds}) > 1 or prompts**2 >= len(rows))
    if not columns["key"]:
        got = f"got {prompts} prompts in {len(rows)} rows without ids, which do not tell the rows apart"
        need(len(rows) == 1 or (prompts > 1 and fits(asked, golds)), f"{got}; try numbering the rows as item_id")
        return asked
    numbers_draws = number > 1.2 * prompts
    begins_anew = not re.fullmatch(OF_ITEM, kind) and not (fits(ids, golds) and number**2 >= len(rows))
    return asked if tells and kind != "item_id" and (numbers_draws or begins_anew) else ids


def doubts_of(rows: list[dict], columns: dict[str, str], scores: dict, keys: list[str]) -> dict[str, str]:
    """{what cannot be known of flat rows: the column that would tell it}.

    A column that is coarser than the keys may name the items: one of prompts with one gold each, one of groups by its
    name, one with the same number of rows for many values. One that all keys cross may name models.
    """
    groups, doubts = {}, {}
    ids, parts, golds = ([str(row.get(columns[name])) for row in rows] for name in ("key", "part", "gold"))
    others = {*scores, "filter", *(name for role, name in columns.items() if role not in ("prompt", "key"))}
    if columns["part"] and not fits(ids, parts):  # ids that begin anew in each part
        others.add(columns["key"])
    for name in sorted(rows[0].keys() - others):
        values = [str(row.get(name)) for row in rows]
        number, counts = len({*values}), Counter(values).values()
        if not 1 < number < len(rows) or re.fullmatch(DRAW, name.rpartition(".")[2]):
            continue
        is_crossed = number <= 20 and len({*zip(keys, values, strict=True)}) == number * len({*keys})
        if name == columns["prompt"]:
            may_be_items = fits(values, golds)
        else:
            is_even = len({*counts}) == 1 and number >= max(counts)
            may_be_items = is_even or re.fullmatch(GROUP, name.rpartition(".")[2])
        if may_be_items and fits(keys, values) and number < 0.8 * len({*keys}):
            groups[name] = number
        elif is_crossed and not re.fullmatch(ID, name):
            means = f"a row's value is the mean over column {name!r} ({', '.join(dict.fromkeys(values))}); if it names"
            doubts["Whether the rows are of one model"] = f"{means} models, rename it to model, else to sample"
    name = max(groups, key=groups.get, default="")
    if name and not re.fullmatch(OF_ITEM, columns["key"].rpartition(".")[2]):
        text = f"rows of one item are dependent; if column {name!r} names the items, rename it to item_id"
        text += "; if each row is an item of its own, number the rows in a column item_id"
        doubts["Whether the rows are independent"] = text
    return doubts


class OtherResults:
    """One model's samples in a file, {task: {key: samples}}, and the figures that it and other files state, by file.

    `model` is its name in a file that has several, else "".
    """

    def __init__(self, file: Path, rows: list[dict], stated: dict, model: str = ""):
        lm_eval = re.fullmatch(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?", file.stem)
        self.file, self.task, self.stated = file, lm_eval[1] if lm_eval else "samples", {file: stated}
        self.model, self.name = model, f"{file}, {model}" if model else str(file)
        head = {name: x for row in reversed(rows) for name, x in row.items()}
        columns, scores, keyed = columns_of(head), score_columns(rows), {}
        got = f"got {file} with columns {', '.join([*head][:9])}"
        need(columns["key"] or columns["prompt"], f"{got}; expected ids or prompts; try numbering its rows as item_id")
        asked = [text_of(row.get(columns["prompt"])) for row in rows]
        keys = keys_of(rows, columns, asked)
        for i, key in enumerate(keys):
            about = {"task": self.task, "key": key, "prompt": asked[i], "gold": rows[i].get(columns["gold"])}
            for sample in samples_of(rows[i], columns, {name: cells[i] for name, cells in scores.items()}):
                keyed.setdefault(key, []).append(about | sample)
        self.samples, self.siblings, self.doubts = {self.task: keyed}, 1, doubts_of(rows, columns, scores, keys)
        self.usual = Counter(map(len, keyed.values())).most_common(1)[0][0]
        more = [key for key, samples in keyed.items() if len(samples) > self.usual]
        ids = f"{len(more)} of {len(keyed)} ids, such as {str(more[:1])[1:-1]}, have more than {self.usual} samples"
        self.repeated = f"{self.name}: {ids}, as the others have: they count twice" if more else ""
        self.metrics = list(dict.fromkeys(m for samples in keyed.values() for x in samples for m in x["metrics"]))

    def higher_is_better(self, metric: str) -> bool | None:
        """Whether higher values of a metric are better: as lm-eval's file says or, without one, by its name."""
        name = metric.partition(",")[0]
        said = {x.get(f"higher_is_better.{column_name(self.task)}.{name}") for x in self.stated.values()} - {None}
        if said or re.search(HIGHER, name):
            return said != {False}
        return None if re.search(NEITHER, name) else not re.search(LOWER, name)


def samples_of(row: dict, columns: dict[str, str], scores: dict[str, list]) -> Iterator[dict]:
    """The samples of a flat row: as many as it has scores."""
    texts, finish, count = row.get(columns["completion"]), row.get(columns["finish"]), max(map(len, scores.values()))
    way = f",{row['filter'].replace('-', '_')}" if isinstance(row.get("filter"), str) else ""  # lm-eval's
    are_texts = count > 1 and isinstance(texts, list) and len(texts) == count
    for n in range(count):
        metrics = {f"{m}{way}": cell[n] if n < len(cell) else None for m, cell in scores.items()}
        cut = "length" if str(finish).lower() in CUT_REASONS else "stop" if finish is False else finish
        yield {"metrics": metrics, "completion": text_of(texts[n] if are_texts else texts), "finish": cut}


def read_table(file: Path) -> tuple[list[OtherResults], dict]:
    """(A file's scored samples of each model, its flat figures); UserError if it cannot be read."""
    try:
        if file.suffix == ".eval":
            with zipfile.ZipFile(file) as parts:
                value = [json.loads(parts.read(name)) for name in parts.namelist() if name.startswith("samples/")]
        else:
            value = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else read_rows(str(file))
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise UserError(f"got {file}, which cannot be read ({error}); expected JSON in UTF-8") from None
    figures = flat(value) if isinstance(value, dict) else {}
    *others, rows = [[], *sorted(tables_in(value), key=len)]
    got = f"got {file} with several tables of {', '.join([*rows[0]][:4]) if rows else ''}"
    is_one = not any(other and other[0].keys() == rows[0].keys() for other in others)
    need(
        is_one,
        f"{got}; expected one; try one list of rows, with the tables' names in a column model, subject or item_id",
    )
    column, models = columns_of(rows[0])["model"] if rows else "", {}
    for row in rows:
        models.setdefault(str(row.get(column)), []).append(row)
    is_model = "." not in column and re.match("model", column)  # other words may be of the items
    are_few = 2 <= len(models) <= max(20, len(rows) // 2 if is_model else 0)
    if not column or not are_few or not (is_model or have_same_rows([*models.values()])):
        models = {"": rows} if rows else {}
    return [OtherResults(file, table, figures, model) for model, table in models.items()], figures


def other_evaluations(path: Path) -> tuple[list[OtherResults], list[str]]:
    """(Scored samples of a file, or of a folder and its subfolders, with the figures beside; what is unreadable).

    UserError if `path` itself is a table that cannot be read.
    """
    results, figures, unreadable = [], {}, []
    files = [*path.glob("*"), *path.glob("*/*")]
    if path.is_file():
        files = [path, *(x for x in path.parent.glob("*.json") if path.stem in x.stem)]
    for file in sorted({x for x in files if x.suffix in SCORED_FILES}):
        try:
            of_models, figures_of_file = read_table(file)
        except UserError as error:
            if file == path:
                raise
            unreadable.append(str(error))
            continue
        if not of_models:
            figures[file] = figures_of_file
        elif file == path or not path.is_file():
            results += of_models
    for one in results:
        one.siblings = sum(x.file.parent == one.file.parent for x in results)
        one.stated |= {file: x for file, x in figures.items() if file.parent == one.file.parent}
    return results, unreadable


def pair_faults(one, other, task: str) -> list[str]:
    """What is wrong where rows of two results have the same id: other gold answers, or other prompts."""
    a, b = ({key: row[0] for key, row in x.samples[task].items()} for x in (one, other))
    common, faults = [key for key in a if key in b], []
    pairs = {key: [(x.get("gold"), x.get("prompt")) for x in (a[key], b[key])] for key in common}
    golds = [key for key, ((x, _), (y, _)) in pairs.items() if None not in (x, y) and str(x).strip() != str(y).strip()]
    asked = [key for key, ((_, x), (_, y)) in pairs.items() if x != y]
    are_others = {str(x) for (_, x), _ in pairs.values()} & {str(y) for _, (_, y) in pairs.values()}  # and no template
    apart = ": the rows are not paired"
    if golds:
        key, same = golds[0], [key for key in golds if key not in asked and a[key].get("prompt")]
        text = f"{len(golds)} of {len(common)} common rows have different golds in {other.name}"
        faults.append(f"{text}, such as {key!r}: {pairs[key][0][0]!r} and {pairs[key][1][0]!r}{'' if same else apart}")
    if asked and are_others:
        text = f"{len(asked)} of {len(common)} common ids have different prompts in {other.name}"
        faults.append(f"{text}, such as {asked[0]!r}{apart}")
    return faults


# ---------------------------------------------------------------------- settings (src/programs/evaluation/settings.py)


@in_order(task="", engine="tool_format")
@dataclass
class Config(ConversationSettings):
    """All settings and their defaults; every field is a flag and a key of --config."""

    # what
    task: list[str] = setting([], "NAME[:option=value,…], repeatable; see above", section="what is evaluated")
    model: list[str] = setting([], f"folder, adapter folder or hub id; two are compared (default: {EMBEDDED_MODEL})")
    data: str = setting("", "rows to evaluate on: file, folder, or hub id[:config][@split]")
    limit: int = setting(0, "use only the first rows (0: all)")
    compare: list[str] = setting(
        [], "BEFORE AFTER, or one file of two models: compare results of any program; no model runs", several=True
    )
    completion_column: str = setting("", "grade this column of the data instead of a model's completions")
    output_dir: str = setting("runs/evaluation", "folder for results.json, samples.jsonl and the cache")
    # prompt
    fewshot: int = setting(0, "worked examples before each prompt", section="prompt and rewards")
    fewshot_data: str = setting(
        "", "file whose first rows are the worked examples (default: --data; these rows are then not evaluated)"
    )
    chat_template: str = setting("auto", "auto: the model's if it has one; on, off, or a FILE with a template")
    chat_template_kwargs: str = setting("", 'JSON object for the chat template, such as {"enable_thinking": false}')
    system_prompt: str = setting("", "text, or a file with it")
    reward: list[str] = setting([], "FILE.py:function[*weight] for the tasks reward and environment, repeatable")
    reward_timeout: float = setting(600.0, "seconds for one call of an async reward (0: no limit)")
    reward_concurrency: int = setting(32, "calls of async rewards at once, in each process", positive=True)
    reward_retries: int = setting(2, "further calls after a lost connection, a time limit or HTTP 408, 425, 429, 5xx")
    # sampling
    n: int = setting(1, "completions per prompt", positive=True, section="sampling")
    temperature: float = setting(0.0, "0 is greedy")
    top_p: float = setting(1.0, "sample from the smallest set of tokens with this probability", positive=True)
    max_new_tokens: int = setting(256, "longest completion", positive=True)
    stop: list[str] = setting([], "string that ends a completion, repeatable; added to the task's own")
    seed: int = setting(0, "seed of sampling and bootstrap")
    # conversations
    max_prompt_tokens: int = setting(
        512, "longer prompts of conversations are left out, and counted", positive=True, section="conversations"
    )
    # engine
    engine: str = setting("hf", "engine that runs the model", ["hf", "vllm"], section="engine")
    base_url: str = setting("", "OpenAI-compatible server, such as http://localhost:8000/v1 (key: OPENAI_API_KEY)")
    base_model: str = setting("", "base model of an adapter folder (default: the one it names)")
    concurrency: int = setting(16, "requests to --base_url at a time", positive=True)
    precision: str = setting(
        "auto", "auto: bf16 if the CUDA GPU supports it, else fp32", ["auto", "fp32", "bf16", "fp16"]
    )
    attn_implementation: str = setting(
        "auto", "transformers' attention implementation; auto: its own choice", lambda: list(ATTENTION_KINDS)
    )
    device: str = setting("auto", "auto (a CUDA GPU, else the CPU), cpu, cuda, cuda:N, or mps, which is untested")
    threads: str = setting("auto", "CPU threads: a number, or auto (fewer if other processes use the cores)")
    batch_tokens: int = setting(
        32768, "tokens per batch, with completions; halved when memory runs out", positive=True, auto=True
    )
    batch_size: int = setting(0, "most sequences per batch (0: as many as batch_tokens allows)")
    max_length: int = setting(0, "context in tokens (0: the model's)")
    vllm_memory: float = setting(0.9, "share of GPU memory that vLLM may take")
    vllm_args: list[str] = setting([], "key=value …: any other argument of vLLM's engine", several=True)
    cache: bool = setting(True, "reuse earlier results from the cache, which also resumes a killed run")
    cache_dir: str = setting("", "folder of the cache (default: OUTPUT_DIR/cache)")
    # report
    bootstrap: int = setting(2000, "bootstrap samples", positive=True, section="report")

    # what the parts read and this program does not offer
    rollout_batch_size = 10**9

    def __post_init__(self):
        if self.environment and "environment" not in [text.partition(":")[0] for text in self.task]:
            self.task = [*self.task, "environment"]

    @property
    def template_file(self) -> str:
        """The file of --chat_template FILE; "" for auto, on and off."""
        return "" if self.chat_template in ("auto", "on", "off") else self.chat_template


def check_choices(config: Config) -> None:
    """Raise UserError for settings that cannot work."""
    c, url, served = config, config.base_url, config.engine == "vllm" or config.base_url
    check_values(c)
    template_settings(c)
    check_environment(c)
    text, path = c.system_prompt, Path(c.system_prompt)
    is_path = path.is_dir() or (len(text.split()) == 1 and path.suffix in (".txt", ".md", ".jinja"))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    wrong = {
        f"chat_template {c.template_file!r}, which is not a file; expected auto, on, off, or a template file": (
            c.template_file and not Path(c.template_file).is_file()
        ),
        "--chat_template FILE with --base_url; expected the server's own; try auto": c.template_file and url,
        f"top_p {c.top_p}; expected more than 0, at most 1; try 0.95": c.top_p > 1,
        f"n {c.n} with temperature 0, at which all completions are equal; try --temperature 0.8": (
            c.n > 1 and not c.temperature and not c.completion_column
        ),
        f"{len(c.model)} models; expected one, or two to compare": len(c.model) > 2,
        f"{len(c.compare)} paths after --compare; expected one or two; try --compare BEFORE AFTER": len(c.compare) > 2,
        "an empty --stop; expected text": not all(c.stop),
        "--base_url without one --model; expected the name that the server gives it": url and len(c.model) != 1,
        f"base_url {url!r}; expected http:// or https:// before it; try http://HOST:PORT/v1": (
            url and not url.startswith(("http://", "https://"))
        ),
        f"system_prompt {text!r}, which is not a file; expected text, or a file with it; try the path from here": (
            text and is_path and not path.is_file()
        ),
        "--attn_implementation, which only --engine hf reads; try leaving it out": (
            c.attn_implementation != "auto" and served
        ),
        "--vllm_args without vLLM in this process; try --engine vllm, or the server's own flags": (
            c.vllm_args and (c.engine != "vllm" or url)
        ),
        "--base_url or --engine vllm under torchrun; expected one process; try without torchrun": several and served,
    }
    for message, is_so in wrong.items():
        need(not is_so, f"got {message}")


def check_environment(config: Config) -> None:
    """Raise UserError for settings that contradict an environment, or do nothing without one."""
    c = config
    check_idle(c, bool(c.environment), (*TURN_SETTINGS, "max_prompt_tokens"))
    if not c.environment:
        return
    in_data = "expected the data's prompts as they are; try messages in the column prompt"
    refused = {
        "base_url": "expected a model that takes token ids; try its folder as --model, or --engine vllm",
        "completion_column": "but a conversation needs a model; try --model",
        "stop": "expected answers that end at the end token; try a lower --max_new_tokens",
        "fewshot": in_data,
        "system_prompt": in_data,
    }
    for name, why in refused.items():
        need(not getattr(c, name), f"got --environment with --{name}, {why}")
    templated = c.chat_template != "off"
    need(templated, "got --environment with --chat_template off; expected turns; try --chat_template auto")
    check_room(c, c.max_prompt_tokens)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)


# ------------------------------------------------------------------------------ rows (src/programs/evaluation/rows.py)

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "query", "text", "input")


def placed_rows_of(source: str, asks: bool, flag: str = "--data") -> list[tuple[str, dict]]:
    """(place, row) of a file, of a hub id, or of any other form by data_loader.py; never none.

    A task that `asks` gets the prompts of chats without a prompt, as the trainers read them.
    """
    need(source, f"got no {flag}; expected a file or hub id; try {flag} {EMBEDDED_EVAL}")
    plain = Path(source).suffix.lower() in (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
    if plain or (is_hub_id(source) and Path(source).suffix.lower() not in (".gz", ".zst", ".tsv", ".txt")):
        rows = placed_rows(source)
        if asks and all(first_of(row, PROMPT_COLUMNS) is None for _, row in rows):
            rows = read_prompts(source, "prompt")
    else:
        loader = sibling("data_loader")
        try:
            rows = [(f"{source}, row {i}", row) for i, row in enumerate(loader.load_rows(source).rows, 1)]
        except loader.UserError as error:
            raise UserError(str(error)) from None
    need(rows, f"got data {source!r} without rows; expected at least one")
    return rows


def first_of(row: dict, names) -> object:
    """The first of these columns that the row has; None without."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def what_asks(task, row: dict):
    """What tells a row from others: its prompt; all of it where the answer is one of its choices."""
    return row if task.logprobs else first_of(row, PROMPT_COLUMNS)


def task_rows(config, task) -> tuple[list[dict], list[dict]]:
    """(rows to evaluate, rows for worked examples), checked."""
    placed, shots = placed_rows_of(task.source, task.asks), []
    if config.fewshot and task.asks:
        same_rows = not config.fewshot_data
        pool = placed if same_rows else placed_rows_of(config.fewshot_data, task.asks, "--fewshot_data")
        enough = len(pool) >= config.fewshot + same_rows
        need(enough, f"got {len(pool)} rows; expected more than --fewshot {config.fewshot}; try a lower one")
        shots, count = [row for _, row in pool[: config.fewshot]], len(placed)
        shown = [what_asks(task, row) for row in shots]
        placed = [(place, row) for place, row in placed if what_asks(task, row) not in shown]
        need(placed, "got no rows besides the worked examples; expected others; try another --fewshot_data")
        if len(placed) < count:
            say(f"{task.label}: {count - len(placed)} rows serve as worked examples and are not evaluated")
    placed = placed[: task.settings["limit"] or config.limit or None]
    rows = [row for _, row in placed]
    for place, row in placed:
        try:
            task.check_row(row)
            if task.asks:
                task.question(row)
            if config.completion_column:
                given_texts(config, row)
        except UserError as error:
            raise type(error)(f"{place}: {error}") from None
    task.decide(placed)
    if task.asks:
        warn_unread(task.source, [(task.unused(row), task.question(row)) for row in rows])
    return rows, shots


def given_texts(config, row: dict) -> list[str]:
    """The completions in --completion_column: a text or a list of them."""
    given = row.get(config.completion_column)
    texts = [given] if isinstance(given, str) else given
    good = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    got = f"{str(given)[:60]!r} in column" if config.completion_column in row else "no column"
    need(good, f"got {got} {config.completion_column!r}; expected text or a list of texts")
    return texts


def run_settings(model: Path) -> tuple[Path, dict]:
    """(Folder, settings) of the run that wrote a model; {} if no run's settings lie beside it."""
    for folder in (model, *model.parents[:3]):  # the last: checkpoints/checkpoint-50
        for name in ("config.json", "settings.json"):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                saved = json.loads((folder / name).read_text(encoding="utf-8"))
                saved = saved.get("settings", saved)
                if {"data", "data.train_files"} & saved.keys():  # the config.json of a model has no data
                    return folder, saved
    return model, {}


def trained_tasks(source: str, with_columns: bool) -> set[tuple]:
    """What the prompts ask that a model, and those that it began from, were trained on, as their runs' settings say."""
    tasks, seen, model = set(), set(), Path(source).resolve()
    while model and model.is_dir() and model not in seen:
        seen.add(model)
        folder, settings = run_settings(model)
        data = settings.get("data") or settings.get("data.train_files") or []
        columns = (settings.get("prompt_column"), *PROMPT_COLUMNS)
        alike = bool(settings.get("environment")) == with_columns  # else the run told its tasks apart otherwise
        for file in data if isinstance(data, list) else [data]:
            try:
                rows = [row for _, row in read_prompts(str(file), "prompt")]
                asking = [task for row in rows if (task := asked(row, columns, with_columns))]
                tasks.update({*asking} - drawn_tasks(asking, (alike and settings.get("hold_out")) or 0))
            except UserError as error:
                say(f"note: cannot tell whether {source} was trained on these rows: {folder} names {file}: {error}")
        model = settings.get("model") and Path(str(settings["model"])).resolve()
    return tasks


def asked(row: dict, columns, with_columns: bool) -> tuple | None:
    """`task_of` a row of a data file; None where no prompt is found in it."""
    name = next((name for name in columns if row.get(name)), None)
    prompt = row.get(name)
    if not isinstance(prompt, str | list):
        return None
    others = {key: value for key, value in row.items() if key not in (*RESERVED, name)}
    try:
        return task_of({"prompt": prompt, "columns": others}, with_columns)
    except (KeyError, TypeError, AttributeError):  # a list, but not of messages
        return None


def count_trained(source: str, tasks: list[tuple]) -> dict[str, int]:
    """How many rows of each task, by its label, a model was trained on; says so in one line where there are any."""
    played = all(task.plays for task, _ in tasks)
    trained = trained_tasks(source, played)
    counts = {task.label: sum(asked(row, PROMPT_COLUMNS, played) in trained for row in rows) for task, rows in tasks}
    shares = [f"{task.label}: {counts[task.label]} of {len(rows)} rows" for task, rows in tasks if counts[task.label]]
    if shares:
        say(f"warning: {source} was trained on rows of this evaluation ({', '.join(shares)}); the figures are inflated")
    return {label: count for label, count in counts.items() if count}


def warn_of_trained(reports: list[dict]) -> None:
    """Say where results that are compared have rows that a model was trained on."""
    for report in reports:
        for label, result in report["tasks"].items():
            if result.get("trained_rows"):
                text = f"{report['model']['name']}, {label}: {result['trained_rows']} of {result['rows']}"
                say(f"warning: rows of this comparison were trained on ({text}); a gain is inflated")


# ---------------------------------------------------------------------------- tasks (src/programs/evaluation/tasks.py)

STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))


def extract_strict(text: str) -> str:
    """The first `#### number`, as lm-evaluation-harness's strict-match of GSM8K; "[invalid]" without one."""
    matches = STRICT.findall(text)
    return matches[0].strip() if matches else "[invalid]"


def extract_flexible(text: str) -> str:
    """The last number, as lm-evaluation-harness's flexible-extract of GSM8K; "[invalid]" without one."""
    matches = FLEXIBLE.findall(text)
    return next(part for part in matches[-1] if part).strip() if matches else "[invalid]"


def gsm8k_form(text: str) -> str:
    """What lm-evaluation-harness compares: without `,`, `$`, all up to the last `#### ` and a final point, lower case.

    >>> gsm8k_form("2+2=4\\n#### $1,004.")
    '1004'
    """
    for pattern in IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def ngram_share(words: list[str], size: int) -> float | None:
    """Distinct n-grams divided by n-grams (Li 2016); None for a text of fewer than `size` words."""
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) if grams else None


class Task:
    """One task: what to ask of a row, and how to score what comes back.

    `score(rows, outputs)` gets a list of outputs {"text", "ids", "tokens", "finish"} per row, or of log-probs, and
    returns a list of records per row, for samples.jsonl; `values_of(records)` is {metric: Values} over the rows.
    """

    name = "task"
    logprobs = False  # scored by log-probs instead of completions
    plays = False  # scored by conversations
    asks = True  # has prompts
    in_turns = False  # whether a chat template writes them, which depends on the model
    targets_named = False  # takes names of functions beside options
    options: ClassVar[dict] = {}  # option: default, whose type the option has
    choices_of: ClassVar[dict] = {}  # option: the values that it may have
    needs = ()  # columns of which a row must have one
    passes = ""  # the metric that pass@k counts
    definition = ""
    directions: ClassVar[dict] = {}  # whether higher is better, None for neither, where that is not so

    def __init__(self, text: str, config: Config):
        self.label, self.config, self.targets = text, config, []
        self.settings = {"data": "", "limit": 0, "max_new_tokens": 0, **self.options}
        for part in filter(None, text.partition(":")[2].split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                need(self.targets_named, f"got {part!r} in {text!r}; expected key=value")
                self.targets.append(part)
                continue
            near = suggest(key, list(self.settings))
            need(key in self.settings, f"got task {text!r}; expected options {', '.join(self.settings)}{near}")
            kind, known = type(self.settings[key]), self.choices_of.get(key)
            need(not known or value in known, f"got {part} in {text!r}; expected one of {', '.join(known or ())}")
            try:
                self.settings[key] = kind(value)
            except ValueError:
                raise UserError(f"got {key} {value!r} in task {text!r}; expected a {kind.__name__}") from None
        self.source = self.settings["data"] or config.data
        self.max_new_tokens = self.settings["max_new_tokens"] or config.max_new_tokens
        self.ks = read_ks(self)
        self.check()

    def check(self) -> None:
        """Raise UserError for what cannot work, and load what the task needs."""

    def stops(self, chat: bool) -> list[str]:
        return []

    def prompt(self, row: dict):
        """The prompt that a row has: text, or chat messages."""
        prompt = self.require(row, PROMPT_COLUMNS)
        check_prompt(prompt, "column prompt")
        return prompt

    def question(self, row: dict):
        """What is asked; with the option `template`, as `Question: …` where that or the column's name says so."""
        prompt, template = self.prompt(row), self.settings.get("template", "plain")
        if template == "plain" or (template == "auto" and "prompt" in row):
            return prompt
        return f"Question: {user_text(prompt)}\nAnswer:"

    def target(self, row: dict) -> str:
        """What the assistant says to a few-shot row."""
        answer = first_of(row, ("completion", "solution", "answer", "canonical_solution", "code"))
        text = user_text(answer) if isinstance(answer, list) and answer else answer
        need(isinstance(text, str), f"got columns {', '.join(row)}; expected completion, solution or answer as text")
        return text

    def require(self, row: dict, names) -> object:
        """The first of these columns, or UserError."""
        value = first_of(row, names)
        got = f"task {self.name} got columns {', '.join(row)}; expected one of {', '.join(names)}"
        need(value is not None, f"{got}; try data_loader.py, with --map prompt=COLUMN answer=COLUMN")
        return value

    def unused(self, row: dict) -> dict:
        """The columns of a row that the task does not use beside its question."""
        return row

    def check_row(self, row: dict) -> None:
        """Raise UserError unless the row has what the scoring needs."""
        if self.needs:
            self.require(row, self.needs)

    def decide(self, placed: list[tuple[str, dict]]) -> None:
        """Settle what holds for all (place, row) pairs; UserError where it cannot be."""

    def score(self, rows: list[dict], outputs: list[list[dict]]) -> list[list[dict]]:
        """Of each row its records, one for each completion, or one for all log-probs.

        A record is {"completion", "finish", "tokens", "metrics": {name: number or None}, "extracted", "reason"}.
        """
        if self.logprobs:
            scored, groups = map(self.score_logprobs, rows, outputs), [[{}]] * len(rows)
        else:
            pairs = [(row, out) for row, outs in zip(rows, outputs, strict=True) for out in outs]
            scored, groups = iter(self.score_pairs(pairs)), outputs
        shown = {"completion": "text", "finish": "finish", "tokens": "tokens"}
        return [[{name: out.get(key) for name, key in shown.items()} | next(scored) for out in outs] for outs in groups]

    def score_pairs(self, pairs: list[tuple[dict, dict]]) -> Iterable[dict]:
        """What the records of (row, output) pairs add to the output."""
        return (self.score_one(row, out) for row, out in pairs)

    def values_of(self, records: list[list[dict]]) -> dict:
        """The values of all metrics in the records: a row's is the mean over its samples that have one."""
        values = {}
        for name in dict.fromkeys(n for outs in records for r in outs for n in r["metrics"]):
            by_row = [[r["metrics"][name] for r in outs if r["metrics"].get(name) is not None] for outs in records]
            means = [sum(x) / len(x) if x else None for x in by_row]
            values[name] = Values(means, higher_is_better=self.directions.get(name, True))
        return values | pass_values(records, self.passes, self.ks)


def read_ks(task: Task) -> list[int]:
    """The option k=1/10 as numbers, none above the samples there are."""
    text = task.settings.get("k", "")
    try:
        ks = [int(k) for k in filter(None, text.split("/"))]
    except ValueError:
        raise UserError(f"got k={text} in {task.label!r}; expected numbers like k=1/10") from None
    n = math.inf if task.config.completion_column else task.config.n
    for k in ks:
        need(1 <= k <= n, f"got k={k} in {task.label!r} with n {n}; expected k of 1 to n; try --n {max(k, 1)}")
    return ks


def pass_values(records: list[list[dict]], metric: str, ks: list[int]) -> dict:
    """{"pass@k": Values}, a row's value being the unbiased estimate from its samples; None of fewer than k usable."""
    values = {f"pass@{k}": [] for k in ks}
    for outs in records:
        passed = [r["metrics"].get(metric) for r in outs]
        usable = [x for x in passed if x is not None]
        for k in ks:
            too_few = len(usable) < k <= len(outs) or not usable
            values[f"pass@{k}"].append(None if too_few else pass_at_k(len(usable), int(sum(usable)), k))
    return {name: Values(x) for name, x in values.items()}


class Generation(Task):
    """What completions look like."""

    name = "generation"
    neutral = ("length_tokens", "length_characters", "distinct_1", "distinct_2", "distinct_3", "repetition_4")
    directions: ClassVar[dict] = dict.fromkeys(neutral) | {"truncated": False, "empty": False}
    definition = "distinct_n and repetition_4 over whitespace-separated words of each completion; truncated: no end"

    def score_one(self, row, out):
        text, words = out["text"], out["text"].split()
        metrics = {"length_tokens": out["tokens"], "length_characters": len(text)}
        metrics |= {f"distinct_{n}": ngram_share(words, n) for n in (1, 2, 3)}
        share = ngram_share(words, 4)
        metrics["repetition_4"] = None if share is None else 1 - share
        metrics["truncated"] = None if out["finish"] == "given" else float(out["finish"] == "length")
        metrics["empty"] = float(not text.strip())
        return {"metrics": metrics, "extracted": None, "reason": f"ended by {out['finish']}"}


class Math(Task):
    """Final answers of mathematical problems."""

    name = "math"
    options: ClassVar[dict] = {"template": "auto", "k": ""}
    choices_of: ClassVar[dict] = {"template": ("auto", "gsm8k", "plain")}
    needs = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")
    passes = "verified"
    definition = (
        "strict, flexible: strict-match and flexible-extract of GSM8K in lm-evaluation-harness 0.4.13; "
        "verified: math_grader.py on the final answer (box, tag, ####, 'the answer is', or nothing but an answer)"
    )

    def question(self, row):
        """What is asked; in a user's turn as it is, unless the option `template` says otherwise."""
        as_it_is = self.in_turns and self.settings["template"] == "auto"
        return self.prompt(row) if as_it_is else super().question(row)

    def stops(self, chat):
        return ["Question:", "</s>", "<|im_end|>"]

    def target(self, row):
        solution = first_of(row, ("solution", "completion"))
        return super().target(row) if solution is None else super().target({"solution": solution})

    def score_one(self, row, out):
        grader, gold, text = sibling("math_grader"), first_of(row, self.needs), out["text"]
        grader.start_worker(patience_s=60)  # an evaluation waits for it rather than leave an answer out
        expected = gsm8k_form(str(gold))
        numeric = bool(re.fullmatch(r"-?[0-9.]+", expected))
        extracted = {"strict": extract_strict(text), "flexible": extract_flexible(text)}
        metrics = {name: float(gsm8k_form(x) == expected) if numeric else None for name, x in extracted.items()}
        verified, answer = grader.math_score(text, gold, user_text(self.prompt(row))), grader.final_answer(text)
        reason = "no final answer found" if answer is None else "right" if verified else "wrong answer"
        reason = reason if verified is not None else f"gold {str(gold)[:80]!r} cannot be graded"
        reason += " (cut off)" if out["finish"] == "length" else ""
        golds = [*map(grader.gold_answer, gold)] if isinstance(gold, list) else grader.gold_answer(gold)
        record = {"metrics": {"verified": verified} | metrics, "extracted": answer, "reason": reason, "gold": golds}
        return record | extracted


class Code(Task):
    """Programs, run against tests."""

    name = "code"
    options: ClassVar[dict] = {"k": "1", "timeout_s": 3.0}
    needs = ("tests", "test", "test_list", "test_cases")
    definition = "a sample passes if all its tests do, in sandbox.py; pass@k = 1 - C(n - c, k) / C(n, k) per problem"

    def check(self):
        need(self.settings["timeout_s"] > 0, f"got timeout_s in {self.label!r}; expected more than 0")

    def question(self, row):
        prompt = self.prompt(row)
        if isinstance(prompt, list) and len(prompt) == 1 and self.head(row):
            return prompt[0]["content"]
        tests = row.get("test_list")
        is_unnamed = "prompt" not in row or (isinstance(prompt, str) and unnamed_function(row, prompt))
        if tests and is_unnamed:  # MBPP's prompts do not name the function
            lines = [tests] if isinstance(tests, str) else map(str, tests)
            return f"{prompt}\nYour code should pass these tests:\n\n" + "\n".join(lines) + "\n"
        return prompt

    def head(self, row: dict) -> str:
        """The prompt, where it is the beginning of the program."""
        text, name = user_text(self.prompt(row)), row.get("entry_point")
        return text if name and re.search(rf"^\s*(?:async )?def {re.escape(str(name))}\b", text, re.M) else ""

    def stops(self, chat):
        return [] if chat else ["\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```\n", "[DONE]"]

    def score_pairs(self, pairs):
        sandbox, jobs = sibling("sandbox"), []
        for row, out in pairs:
            tests, prompt = first_of(row, self.needs), self.prompt(row)
            setup = row.get("setup") or "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or [])])
            about = {"entry_point": row.get("entry_point"), "setup": setup if setup.strip() else self.head(row)}
            program = sandbox.program_of(out["text"], tests, prompt=prompt, **about)
            jobs.append({"code": program, "tests": tests, "timeout_s": self.settings["timeout_s"], **about})
        try:
            return map(self.record, sandbox.run_many(jobs), jobs)
        except (sandbox.BadTests, sandbox.SandboxError) as error:
            raise UserError(f"task code: {error}") from None

    def values_of(self, records):
        return pass_values(records, "passed", self.ks)

    def record(self, verdict, job: dict) -> dict:
        """The record of one program; tests that cannot be used do not count."""
        passed = float(verdict.all_passed) if verdict.usable else None
        reason = f"{verdict.status}: {verdict.passed} of {verdict.total} tests; {verdict.detail}"
        return {"metrics": {"passed": passed}, "extracted": job["code"], "reason": reason[:2000]}


# -------------------------------------------------------------- scored tasks (src/programs/evaluation/scored_tasks.py)

CHOICE_COLUMNS = ("choices", "options", "endings")
GOLD_COLUMNS = ("answer", "label", "answerKey", "gold", "correct", "answer_idx", "answer_index")


def text_windows(tokens: list[int], prefix: list[int], length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    """Cut tokens into (context, scored) pairs for a model of `length` positions; every token is scored once.

    The first window is conditioned on `prefix`; each later one scores the next `stride` tokens, given as many tokens
    before them as fit. stride = length is lm-evaluation-harness's rolling window: one token of context, and a last
    window that looks back over a full one.
    """
    end = min(length, len(tokens))
    windows = [(prefix, tokens[:end])] if tokens else []
    while end < len(tokens):
        scored = min(stride, len(tokens) - end)
        end += scored
        windows.append((tokens[max(0, end - length - 1) : end - scored], tokens[end - scored : end]))
    return windows


class Perplexity(Task):
    """Log-probs of whole texts."""

    name = "perplexity"
    logprobs = True
    asks = False
    options: ClassVar[dict] = {"stride": 0, "column": ""}

    def check(self):
        stride = self.settings["stride"]
        windows = f"{stride} new tokens a window" if stride else "disjoint windows of the context with one token before"
        start = "each text is given BOS (end token without one) before the text as the tokenizer encodes it, so that a "
        start += "BOS of the tokenizer's own is scored, as lm-evaluation-harness does"
        self.definition = f"{start}; {windows}; words: re.split(r'\\s+'); bytes: UTF-8"

    def text(self, row: dict) -> str:
        names = [self.settings["column"]] if self.settings["column"] else ["text", "page", "content", "completion"]
        text = self.require(row, names)
        need(isinstance(text, str) and text, f"got {str(text)[:60]!r}; expected a non-empty text")
        check_unicode(text)
        return text

    def check_row(self, row):
        self.text(row)

    def requests(self, row: dict, model) -> list[tuple[list[int], list[int]]]:
        """(context, scored) token pairs of a row."""
        length, stride = model.max_length, self.settings["stride"] or model.max_length
        need(1 <= stride <= length, f"got stride {stride}; expected 1 to the context of {length} tokens")
        return text_windows(encode_text(model.tokenizer, self.text(row)), [model.prefix_id], length, stride)

    def score_logprobs(self, row, outs):
        text, sizes = self.text(row), {"nats": -math.fsum(out["logprob"] for out in outs)}
        sizes |= {"tokens": sum(out["count"] for out in outs), "words": len(re.split(r"\s+", text))}
        sizes["bytes"] = len(text.encode("utf-8", "replace"))
        return {"metrics": sizes, "extracted": None, "reason": ""}

    def values_of(self, records):
        sizes = {
            name: [record["metrics"][name] for (record,) in records] for name in ("nats", "tokens", "words", "bytes")
        }
        kinds = {"token_perplexity": "tokens", "word_perplexity": "words", "byte_perplexity": "bytes"}
        bits = Values([x / math.log(2) for x in sizes["nats"]], sizes["bytes"], False, False)
        perplexities = {name: Values(sizes["nats"], sizes[kind], True, False) for name, kind in kinds.items()}
        return perplexities | {"bits_per_byte": bits}


class MultipleChoice(Task):
    """The most likely of the choices."""

    name = "multiple_choice"
    logprobs = True
    options: ClassVar[dict] = {"template": "auto"}
    choices_of: ClassVar[dict] = {"template": ("auto", "qa", "plain")}
    definition = "acc: the highest log-prob; acc_norm: the highest log-prob per character of the choice"

    reading = "text"  # of an answer that could be the text of one choice and the place of another

    def choices_and_readings(self, row: dict) -> tuple[list[str], dict[str, int]]:
        """The choices, and the index of the right one by each reading of the answer; one where labels say which."""
        choices, labels = self.require(row, CHOICE_COLUMNS), None
        if isinstance(choices, dict) and "text" not in choices:  # MedQA: {"A": …, "B": …}
            labels, choices = list(choices), list(choices.values())
        elif isinstance(choices, dict):  # ARC: {"text": […], "label": […]}
            choices, labels = choices["text"], choices.get("label")
        good = isinstance(choices, list) and len(choices) > 1 and all(isinstance(c, str) and c for c in choices)
        need(good, f"got choices {str(choices)[:80]}; expected a list of two texts or more")
        gold = self.require(row, GOLD_COLUMNS)
        gold = gold[0] if isinstance(gold, list) and len(gold) == 1 else gold
        labels = [*map(str, labels or ())]
        if str(gold) in labels:
            return choices, {"text": labels.index(str(gold)), "place": labels.index(str(gold))}
        place = gold if isinstance(gold, int) and not isinstance(gold, bool) else -1
        if isinstance(gold, str):
            place = int(gold) if gold.isdecimal() else string.ascii_uppercase.find(gold) if len(gold) == 1 else -1
        indices = {"text": choices.index(gold) if gold in choices else -1, "place": place}
        indices = {reading: index for reading, index in indices.items() if 0 <= index < len(choices)}
        expected = "expected an index from 0, a letter, or the text"
        need(indices, f"got answer {gold!r} for {len(choices)} choices; {expected}")
        return choices, indices

    def choices(self, row: dict) -> tuple[list[str], int]:
        """The choices and the index of the right one."""
        choices, indices = self.choices_and_readings(row)
        return choices, indices.get(self.reading, next(iter(indices.values())))

    def decide(self, placed):
        """Read answers such as "0" the one way that fits all rows: as the text of a choice, or its place."""
        indices = [self.choices_and_readings(row)[1] for _, row in placed]
        unsure = next((i for i, of_row in enumerate(indices) if len({*of_row.values()}) > 1), None)
        if unsure is None:
            return
        fitting = [reading for reading in ("text", "place") if all(reading in of_row for of_row in indices)]
        place, row = placed[unsure]
        texts, gold = self.choices_and_readings(row)[0], self.require(row, GOLD_COLUMNS)
        got = f"{place}: got answer {gold!r} for choices {texts}, the text of one and the place of another"
        need(len(fitting) == 1, f"{got}; expected a file that allows one reading; try numbers, not strings, for places")
        (self.reading,) = fitting

    def unused(self, row):
        return {name: value for name, value in row.items() if name not in CHOICE_COLUMNS}

    def target(self, row):
        choices, gold = self.choices(row)
        return choices[gold]

    def check_row(self, row):
        self.choices(row)

    def score_logprobs(self, row, outs):
        (choices, gold), logprobs = self.choices(row), [out["logprob"] for out in outs]
        picked = max(range(len(choices)), key=logprobs.__getitem__)
        normed = [x / len(c) for x, c in zip(logprobs, choices, strict=True)]
        picked_norm = max(range(len(choices)), key=normed.__getitem__)
        metrics = {"acc": float(picked == gold), "acc_norm": float(picked_norm == gold)}
        record = {"metrics": metrics, "extracted": choices[picked], "logprobs": logprobs, "gold": choices[gold]}
        return record | {"reason": "right" if picked == gold else f"not {choices[gold]!r}"}


# ---------------------------------------------------------------------- requests (src/programs/evaluation/requests.py)


@dataclass
class Request:
    """One thing to compute: a completion of `ids`, or the log-prob of `scored` after `ids`."""

    ids: list[int]
    scored: list[int] | None = None
    stops: list[str] = field(default_factory=list)
    limit: int = 0  # most new tokens
    sample: int = 0  # which of the n completions
    prompt: object = None  # text or messages, for servers
    given: str | None = None  # the completion itself, with --completion_column
    cut: bool = False  # the beginning did not fit the context

    def key(self) -> str:
        """What the result depends on, besides model and settings."""
        content = [self.ids, self.scored, self.stops, self.limit, self.sample, self.prompt]
        content += [] if self.given is None else [self.given]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def seed(self) -> int:
        """A number that depends on the prompt only."""
        return int(hashlib.sha256(json.dumps([self.ids, self.prompt]).encode()).hexdigest()[:15], 16)


def cut_at(text: str, stops: list[str]) -> str:
    """The text before the first of each stop string, one after the other."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def add_shots(question, shots: list[tuple], system: str, chat: bool):
    """The prompt with system prompt and worked examples: chat messages with a template, text without."""
    as_text = [(user_text(q) if isinstance(q, list) else q, answer) for q, answer in shots]
    if not chat:
        if isinstance(question, list):  # the form that trainers give to a chat without a template
            question = joined_text(question)
        worked = "".join(f"{q} {answer}\n\n" for q, answer in as_text)
        return (f"{system}\n\n" if system else "") + worked + question
    messages = [dict(m) for m in question] if isinstance(question, list) else [{"role": "user", "content": question}]
    has_system = messages[0]["role"] == "system"
    head = [messages.pop(0)] if has_system else [{"role": "system", "content": system}] if system else []
    for q, answer in as_text:
        head += [{"role": "user", "content": q}, {"role": "assistant", "content": answer}]
    return head + messages


def encode_pair(tokenizer, prompt, choice: str, **template) -> tuple[list[int], list[int]]:
    """(context, continuation) ids; spaces between them belong to the continuation, as tokenizers have them."""
    if isinstance(prompt, list):
        with refusals_told():
            text = chat_text(tokenizer, prompt, **template)
        whole, before = (tokenizer.encode(part, add_special_tokens=False) for part in (text + choice, text.rstrip()))
    else:
        whole, before = (encode_text(tokenizer, part) for part in (f"{prompt} {choice}", prompt.rstrip()))
    return before, whole[len(before) :]


def make_requests(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[list, list, int]:
    """(prompts, requests of each row, how many prompts were cut to fit the context)."""
    if not task.asks:
        pairs = [task.requests(row, model) for row in rows]
        return [task.text(row) for row in rows], [[Request(a, b) for a, b in pair] for pair in pairs], 0
    has_template = bool(model.tokenizer.chat_template) if model.tokenizer else bool(config.base_url)
    fits = has_template or config.chat_template != "on" or config.completion_column
    need(fits, f"got --chat_template on, but {model.source} has none; expected a chat model; try off")
    prompts, requests, cut = [], [], 0
    task.in_turns = chat = has_template and config.chat_template != "off"
    worked, template = [(task.question(row), task.target(row)) for row in shots], template_settings(config)
    form = TemplateForm(model.tokenizer) if chat and model.tokenizer else None
    strings = sum(isinstance(row.get("prompt"), str) for row in rows)
    if chat and strings and config.chat_template == "auto":
        got = f"{strings} of {len(rows)} prompts are strings, sent as user turns through the chat template"
        say(f"note: {got}; for a model trained without --chat, which saw bare strings, use --chat_template off")
    for row in rows:
        question = task.question(row)
        templated = form is not None and form.holds(question)
        got = f"got prompt {str(question)[:80]!r}, which already has the form of the chat template"
        need(not templated or not (worked or config.system_prompt), f"{got}; try without --fewshot and --system_prompt")
        prompts.append(add_shots(question, worked, config.system_prompt, chat and not templated))
        if task.logprobs:
            pairs = [encode_pair(model.tokenizer, prompts[-1], choice, **template) for choice in task.choices(row)[0]]
            cut += any(len(a) + len(b) > model.max_length + 1 for a, b in pairs)
            fits = all(0 < len(b) <= model.max_length for _, b in pairs)
            need(fits, f"got a choice of 0 or over {model.max_length} tokens: {str(task.choices(row)[0])[:200]}")
            requests.append([Request(a, b) for a, b in pairs])
        elif config.completion_column:
            requests.append([Request([], sample=i, given=t) for i, t in enumerate(given_texts(config, row))])
        else:
            requests.append(completions_of(config, task, model, prompts[-1], chat))
            cut += requests[-1][0].cut
    return prompts, requests, cut


def completions_of(config: Config, task: Task, model, prompt, chat: bool) -> list[Request]:
    shared = {"stops": list(dict.fromkeys([*task.stops(chat), *config.stop])), "limit": task.max_new_tokens}
    if not model.tokenizer:
        return [Request([], sample=i, prompt=prompt, **shared) for i in range(config.n)]
    room = (model.max_length or math.inf) - task.max_new_tokens
    need(room > 0, f"got max_new_tokens {task.max_new_tokens} for a context of {model.max_length}; expected less")
    with refusals_told():
        ids = encode_prompt(model.tokenizer, prompt, **template_settings(config)) or [model.prefix_id]
    long = len(ids) > room
    return [Request(ids[-room:] if long else ids, sample=i, cut=long, **shared) for i in range(config.n)]


class ResultCache:
    """Results by request in a JSONL file per model and settings; a killed run finds there what it had."""

    def __init__(self, config: Config, model, kind: str):
        self.rows, self.file, self.hits = {}, None, 0
        if not config.cache or config.completion_column:
            return
        used = {"model": model.hash, "kind": kind, "engine": config.base_url or config.engine}
        used |= {"dtype": str(getattr(model, "dtype", "")), "length": model.max_length}
        used |= {"attention": config.attn_implementation} if config.attn_implementation != "auto" else {}
        used |= {"vllm_args": config.vllm_args} if config.vllm_args else {}
        if kind != "logprob" and config.temperature:
            used |= {name: getattr(config, name) for name in ("temperature", "top_p", "seed")}
        name = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]
        folder = Path(config.cache_dir or Path(config.output_dir) / "cache")
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{kind}-{name}.*.jsonl")):
            self.read(path)
        if world()[1] > 1:
            gather_rows([None])  # all have read before one writes
        self.file = (folder / f"{kind}-{name}.{world()[0]}.jsonl").open("a", encoding="utf-8")
        if self.file.tell():
            self.file.write("\n")  # ends a line that a kill cut short

    def read(self, path: Path) -> None:
        """Take in the whole lines of a cache file."""
        with path.open(encoding="utf-8", newline="\n") as f:
            for line in f:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    self.rows[row["key"]] = row["output"]

    def add(self, key: str, output: dict) -> None:
        if self.file:
            self.file.write(json.dumps({"key": key, "output": output}) + "\n")
            self.file.flush()

    def close(self) -> None:
        if self.file:
            self.file.close()


def compute(config: Config, model, requests: list[Request], kind: str, title: str) -> tuple[list[dict], int]:
    """(outputs of all requests in order, how many came from the cache); shared out over the processes."""
    from tqdm import tqdm

    cache, (rank, size) = ResultCache(config, model, kind), world()
    keys = [r.key() for r in requests]
    waiting = {key: r for key, r in zip(keys, requests, strict=True) if key not in cache.rows}
    reused, asked = sum(key in cache.rows for key in keys), list(waiting.values())
    sizes = [len(r.ids) + len(r.scored or ()) + r.limit for r in asked]
    local = [asked[i] for i in dealt(sizes, [tuple(r.ids) for r in asked], size)[rank]]
    computed = {}
    bar = tqdm(total=len(local), desc=title, disable=None if rank == 0 else True, smoothing=0.1)

    def done(i: int, output: dict) -> None:
        computed[local[i].key()] = output
        cache.add(local[i].key(), output)
        bar.update()

    with raised_in_all(), bar, contextlib.closing(cache):
        getattr(model, kind)(local, done)
    fresh = {key: output for part in gather_rows([computed]) for key, output in part.items()}
    return [fresh[key] if key in fresh else cache.rows[key] for key in keys], reused


# -------------------------------------------------------------------- own tasks (src/programs/evaluation/own_tasks.py)


class RewardTask(Task):
    """Any reward functions: the graders of training are the graders here."""

    name = "reward"
    targets_named = True
    definition = "the mean of each function where it applies; score: their weighted sum"

    def check(self):
        specs = [*self.targets, *self.config.reward]
        need(specs, "got task reward without a function; try --task reward:FILE.py:function")
        self.graders = Reward(specs, call_limits(self.config))

    def columns(self, row: dict) -> dict:
        return {"prompt": self.question(row), "columns": {k: v for k, v in row.items() if k not in RESERVED}}

    def check_row(self, row):
        self.graders.check_columns(self.columns(row))

    def score_pairs(self, pairs):
        texts, ids = ([out[key] for _, out in pairs] for key in ("text", "ids"))
        scores, parts = self.graders([self.columns(row) for row, _ in pairs], texts, ids)
        for i, score in enumerate(scores):
            metrics = {name: values[i] for name, values in parts.items()}
            applies = any(x is not None for x in metrics.values())
            metrics["score"] = score if applies else None
            yield {"metrics": metrics, "extracted": None, "reason": "" if applies else "no function applies"}


class EnvironmentTask(Task):
    """Conversations with --environment: what its tools and replies say, what it pays."""

    name = "environment"
    plays = True
    options: ClassVar[dict] = {"k": ""}
    passes = "accuracy"
    neutral = ("turns", "calls", "tool_seconds", "length_tokens")
    directions: ClassVar[dict] = dict.fromkeys(neutral) | {"limit_frac": False}
    definition = (
        "score: get_reward and the reward functions with their weights; accuracy: 1 or more by the first of them, and "
        "what pass@k counts; failure_frac: share of tool calls; limit_frac: ended by max_turns or by the tokens"
    )

    def check(self):
        given = self.config.environment
        need(given, "got task environment without a class; try --environment FILE.py:Class")
        self.tried = set()
        self.environments, self.reward = load_scored(self.config)

    def example(self, row: dict) -> dict:
        """A row as conversations take it: its prompt, and the columns that `reset` and the rewards get."""
        asked = next((name for name in PROMPT_COLUMNS if row.get(name) is not None), "prompt")
        columns = {name: value for name, value in row.items() if name not in (*RESERVED, asked)}
        return {"prompt": self.question(row), "columns": columns, "row": row}

    def check_row(self, row):
        example = self.example(row)
        key = (self.environments.kind_of(example["columns"]).name, *example["columns"])
        if key not in self.tried:
            check_environment_rows(self.environments, [example])
            self.reward.check_columns(example)
            self.tried.add(key)

    def play(self, model, rows: list[dict]) -> tuple:
        """(rows that were played, their prompts, the records of their conversations, counts)."""
        config = dataclasses.replace(self.config, model=model.source, max_new_tokens=self.max_new_tokens)
        check_chat_template(config, model.tokenizer)
        check_fits(config, model.max_length)
        setup = make_play_setup(config, model.tokenizer, model.eos_ids, self.environments)
        examples = [self.example(row) | {"place": f"{self.source}, row {i}"} for i, row in enumerate(rows, start=1)]
        examples = playable_rows(config, setup, examples, self.source)
        each = [{**example, "sample": i} for example in examples for i in range(config.n)]
        cache = ResultCache(config, model, "conversation")
        try:
            records = shared_out(lambda examples, _: self.records(config, setup, model, examples, cache), each, None)
        finally:
            cache.close()
        grouped = [records[start : start + config.n] for start in range(0, len(records), config.n)]
        counts = {"prompts_cut": 0, "rows_left_out": len(rows) - len(examples), "from_cache": cache.hits}
        return [e["row"] for e in examples], [e["prompt"] for e in examples], grouped, counts

    def records(self, config: Config, setup: PlaySetup, model, examples: list[dict], cache: ResultCache) -> list[dict]:
        """Play and score one conversation for each of this process's examples."""
        answer = answers_of(config, model, examples, cache)
        conversations = play(examples, setup, answer)
        scores = score_talks(setup, examples, conversations, self.reward)
        weights = score_weights(self.reward, scores[0]) if scores else {}
        return [conversation_record(model, c, values, weights) for c, values in zip(conversations, scores, strict=True)]

    def values_of(self, records):
        values = super().values_of(records)
        del values["failures"]
        failed, calls = ([sum(r["metrics"][name] for r in row) for row in records] for name in ("failures", "calls"))
        return values | {"failure_frac": Values(failed, calls, higher_is_better=False)}


def answers_of(config: Config, model, examples: list[dict], cache: ResultCache):
    """The `sample` of `play`: the model's answers, taken from the cache where it has them."""
    from tqdm import tqdm

    generate = model.turns()

    def answer(prompts: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        pairs = zip(prompts, numbers, strict=True)
        asked = [Request(ids, sample=examples[n]["sample"], limit=config.max_new_tokens) for ids, n in pairs]
        outputs = [cache.rows.get(request.key()) for request in asked]
        missing = [i for i, output in enumerate(outputs) if output is None]
        cache.hits += len(asked) - len(missing)
        with tqdm(total=len(missing), desc=f"turn {turn + 1}", disable=None) as bar:

            def done(place: int, output: dict) -> None:
                outputs[missing[place]] = output
                cache.add(asked[missing[place]].key(), output)
                bar.update()

            generate([asked[i] for i in missing], done, [numbers[i] for i in missing])
        ids = [[*output["ids"], *output["end"]] for output in outputs]  # as they were sampled
        return [(answer_ids, [0.0] * len(answer_ids)) for answer_ids in ids]

    return answer


def conversation_record(model, conversation: Conversation, scores: dict, weights: dict) -> dict:
    answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
    first = next(iter(scores.values()))
    metrics = {
        "score": sum(weights[name] * value for name, value in scores.items() if value is not None),
        "accuracy": float(first is not None and first >= 1.0),
        **scores,
        "turns": len(conversation.spans),
        "calls": conversation.calls,
        "failures": conversation.failures,
        "limit_frac": float(conversation.ended_by in ("turns", "tokens")),
        "tool_seconds": conversation.seconds,
        "length_tokens": sum(conversation.response_mask),
    }
    return {
        "completion": "\n".join(visible_text(model.tokenizer, ids, model.eos_ids) for ids in answers),
        "tokens": sum(conversation.response_mask),
        "finish": conversation.ended_by,
        "metrics": metrics,
        "extracted": None,
        "reason": f"ended by {conversation.ended_by}",
        "turn_rewards": conversation.turn_rewards,
        "messages": conversation.messages,
        "pieces": pieces(model.tokenizer, conversation),
    }


# ---------------------------------------------------------------- local model (src/programs/evaluation/local_model.py)

NOT_FINITE = "try --precision fp32, or another checkpoint"
LOGITS_AT_ONCE = 2**26
PROMPT = 256  # tokens of a prompt, as batches are reckoned
PREFIX_MIN = 16  # tokens that all prompts must share for their states to be kept
STOP_EVERY = 8  # steps between looks for stop strings; what was sampled past one is cut off


def common_prefix(sequences: list[list[int]]) -> list[int]:
    """The tokens that all sequences begin with, leaving each at least one of its own."""
    low, high = min(sequences), max(sequences)  # in the order of dictionaries, all others lie between these
    shared = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]
    return shared[: min(map(len, sequences)) - 1]


class PrefixEngine(HFEngine):
    """HFEngine for many prompts that begin alike, as those with worked examples do."""

    prefix, pairs, stops = (), None, ()  # the shared tokens, their keys and values by layer, and stop strings

    def share(self, sequences: list[list[int]]) -> None:
        """Let all batches to come share what these sequences begin with, where the cache can."""
        tokens = common_prefix(sequences) if len(sequences) > 1 else []
        tokens = tokens if len(tokens) >= PREFIX_MIN and self.decoding.plain else []
        if tokens != self.prefix:
            self.prefix, self.pairs = tokens, None

    def behind_prefix(self, sequences: list[list[int]]) -> tuple:
        """(the sequences without the shared prefix, its mask [B, T] and its cache); as they are, None, None without."""
        size = len(self.prefix)
        if not size or any(len(ids) <= size or ids[:size] != self.prefix for ids in sequences):
            return sequences, None, None
        device = self.models.device
        if self.pairs is None:
            ids = torch.tensor([self.prefix], device=device)
            with torch.no_grad(), autocast(self.config, device):
                self.pairs = pairs_of(cached_states(self.models.policy, ids, torch.ones_like(ids), None)[1])
        cache, rows = transformers.DynamicCache(), len(sequences)
        cache.layers = [roomy_layer()(*(x.expand(rows, -1, -1, -1) for x in pair)) for pair in self.pairs]
        return [ids[size:] for ids in sequences], torch.ones(rows, size, dtype=torch.long, device=device), cache

    def read_on(self, new, mask=None, cache=None):
        return super().read_on(*(self.behind_prefix(new) if cache is None else (new, mask, cache)))

    def draw(self, log_probs, uniform):
        top_p = self.config.top_p
        if uniform is not None and top_p < 1:  # the smallest set of tokens with this probability
            ordered, index = log_probs.sort(dim=-1, descending=True)
            mass = ordered.to(widest_float(log_probs.device)).exp()
            outside = mass.cumsum(-1) - mass >= top_p  # the mass before each token
            log_probs = log_probs.masked_fill(outside.scatter(-1, index, outside), -math.inf)
        return super().draw(log_probs, uniform)

    def ends(self, tokens, rows, t):
        ended = super().ends(tokens, rows, t)
        if not self.stops or (t + 1) % STOP_EVERY:
            return ended
        longest = max(len(stop.encode()) for stop in self.stops)  # no token is shorter than a byte
        tails = tokens[rows, max(0, t + 1 - STOP_EVERY - longest - 4) : t + 1].tolist()
        texts = self.models.tokenizer.batch_decode(tails, skip_special_tokens=False)
        stopped = [any(stop in text for stop in self.stops) for text in texts]
        return ended | torch.tensor(stopped, device=ended.device)


def fingerprint(source: str, full: int = 2**32) -> str:
    """Hash of the files of a checkpoint folder; of a file above 4 GiB its size, its time and 256 evenly spaced MiB."""
    total = hashlib.sha256()
    suffixes = (".json", ".safetensors", ".bin", ".model", ".jinja", ".txt")
    for path in sorted(p for p in Path(source).iterdir() if p.suffix in suffixes and p.is_file()):
        size, large = path.stat().st_size, path.stat().st_size > full
        total.update(f"{path.name} {size} {path.stat().st_mtime_ns if large else ''}".encode())
        with path.open("rb") as f:
            for start in range(0, size, max(2**20, size // 256) if large else 2**20):
                f.seek(start)
                total.update(f.read(2**20))
    return total.hexdigest()[:16]


class LocalModel:
    """A Hugging Face model: HFEngine samples, in batches under a budget of tokens that is halved where memory ends."""

    can_logprobs = True

    def __init__(self, config: Config, source: str, device):
        self.config, self.source, self.device, self.notes = config, source, device, []
        started = time.perf_counter()
        self.model, self.tokenizer, commit = self.load(source)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        sources = dict.fromkeys([source, base_of(source, config.base_model)])  # an adapter's base may change under it
        self.hash = "-".join(fingerprint(x) if Path(x).is_dir() else f"{x}@{commit}" for x in sources)
        text, longest = self.model.config.get_text_config(), self.tokenizer.model_max_length
        of_tokenizer = longest if longest < 10**12 else 2048
        self.max_length = int(config.max_length or getattr(text, "max_position_embeddings", None) or of_tokenizer)
        self.eos_ids = ending_ids(self.model.generation_config.eos_token_id, self.tokenizer)
        starts = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, *self.eos_ids, 0)
        self.prefix_id = next(i for i in starts if i is not None)
        self.pad_id = next(i for i in (self.tokenizer.pad_token_id, *self.eos_ids, 0) if i is not None)
        if not self.eos_ids:
            self.notes.append("no end token: completions end at a stop string or at max_new_tokens")
        if not self.tokenizer.chat_template:
            self.notes.append("no chat template: prompts are plain text")
        self.vocabulary, self.dtype = text.vocab_size, next(self.model.parameters()).dtype
        self.models = Models(self.model, None, None, self.tokenizer, self.eos_ids, self.pad_id, device)
        if self.can_logprobs:
            settle_logits(config, self.models)
        self.budget, self.load_s = self.tokens_at_once(), time.perf_counter() - started

    def load(self, source: str) -> tuple:
        """(model, tokenizer, commit) of a folder, adapter folder or hub id."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        dtype, base = compute_dtype(self.config, self.device), self.config.base_model
        try:
            tokenizer = read_tokenizer(source, base)
            options = {"dtype": dtype, **attention_choice(self.config)}
            model = merged(load_pretrained(transformers.AutoModelForCausalLM, source, base, **options))
            give_template(tokenizer, self.config.template_file)
        except Exception as error:  # OSError, ValueError, SafetensorError, …
            raise load_error(self.config, source, error) from error
        commit = getattr(model.config, "_commit_hash", None)
        return model.to(self.device).eval().requires_grad_(False), tokenizer, commit

    def tokens_at_once(self) -> int:
        """Tokens of a batch, completions included: those of --batch_tokens, or at most as many as memory holds."""
        shape, tokens = shape_of(self.model), self.config.batch_tokens
        machine = memory_for_each(str(self.device))
        if not shape or not machine or "batch_tokens" in self.config.given:
            return tokens
        new, width, kind = self.config.max_new_tokens, self.dtype.itemsize, self.model.config._attn_implementation
        row = sampling_bytes(shape, PassShape(1, PROMPT, width, width, attention_kind(kind)), new) / (PROMPT + new)
        pieces = 4 * 4 * min(LOGITS_AT_ONCE, tokens * self.vocabulary)  # of log-probs
        fitting = max(PROMPT + new, int((USABLE_SHARE * machine["free"] - pieces) / row))
        tokens = min(tokens, fitting)
        say(f"batches of {tokens:,} tokens: {gib(tokens * row + pieces)} of {gib(machine['free'])} GiB")
        return tokens

    @functools.cached_property
    def engine(self) -> PrefixEngine:
        """Who samples; made where it is needed, as it measures what the cache can do."""
        return PrefixEngine(dataclasses.replace(self.config, temperature=1.0), self.models)

    def turns(self):
        """`(requests, done, numbers)`: `generate` for the turns of the conversations with these numbers."""
        sampler = TurnSampler(self.engine) if self.engine.decoding.plain else None
        return lambda requests, done, numbers: self.generate(requests, done, sampler, numbers)

    def in_batches(self, sizes: list[int], run) -> None:
        """Call run(indices) on groups within the token budget, longest first; what does not fit memory is halved."""
        waiting = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
        while waiting:
            count, begin, failed = max(1, self.budget // max(1, sizes[waiting[0]])), time.perf_counter(), ""
            rows = waiting[: min(count, self.config.batch_size or count)]
            try:
                run(rows)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed = str(error).split("\n")[0][:200]
            if not failed:
                THREADS.after(time.perf_counter() - begin)
                del waiting[: len(rows)]
                continue
            size = sizes[rows[0]]
            advice = "expected room; try a lower --max_new_tokens or --max_length, or --precision bf16"
            need(len(rows) > 1, f"got out of memory on one sequence of {size} tokens ({failed}); {advice}")
            self.budget = len(rows) // 2 * size
            say(f"out of memory on {len(rows)} sequences; going on with batches of {len(rows) // 2}")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def generate(self, requests: list[Request], done, turns: TurnSampler | None = None, numbers=()) -> None:
        """Complete each request and call done(index, output) as its batch ends.

        `turns` samples requests that are one batch, the conversations with these `numbers`, from what it has kept.
        """
        check_tokens(self.models, [{"prompt_ids": r.ids} for r in requests])
        config, engine, whole = self.config, self.engine, [r.ids for r in requests if not r.cut]
        engine.share(whole)  # prompts that lost their beginning share none with the others
        engine.stops = list(dict.fromkeys(stop for r in requests for stop in r.stops))

        def run(rows: list[int]) -> None:
            picked = [requests[row] for row in rows]
            limit, prompts = max(r.limit for r in picked), [r.ids for r in picked]
            engine.config = dataclasses.replace(config, max_new_tokens=limit, temperature=config.temperature or 1.0)
            noise = self.noise(picked, limit)
            try:
                if turns and len(rows) == len(requests):
                    outputs = turns.generate(prompts, noise, [numbers[row] for row in rows])
                else:
                    if turns:
                        turns.kept = KeptTexts()
                    outputs = engine.generate(prompts, noise)
            except DivergedError as error:
                raise UserError(f"got logits that are not finite; expected finite ones; {NOT_FINITE}") from error
            for row, (ids, _) in zip(rows, outputs, strict=True):
                done(row, self.finished(requests[row], ids[: requests[row].limit]))

        self.in_batches([len(r.ids) + r.limit for r in requests], run)

    def noise(self, requests: list[Request], width: int):
        """Uniform draws [B, width] that depend on seed, prompt and sample only, so on no batch; None for greedy."""
        if not self.config.temperature:
            return None
        seeds = [[self.config.seed, r.seed(), r.sample] for r in requests]
        return np.stack([np.random.default_rng(seed).random(width) for seed in seeds])

    def finished(self, request: Request, ids: list[int]) -> dict:
        """The output of a request from its sampled ids: text before the first stop string, tokens up to it."""
        ended = bool(ids) and ids[-1] in self.eos_ids
        end, ids = (ids[-1:], ids[:-1]) if ended else ([], ids)
        whole = visible_text(self.tokenizer, ids, self.eos_ids)
        text, finish = cut_at(whole, request.stops), "eos" if ended else "length"
        if len(text) < len(whole):
            low, high = 1, len(ids)  # the fewest tokens whose text has a stop string
            while low < high:
                middle = (low + high) // 2
                part = self.tokenizer.decode(ids[:middle], skip_special_tokens=False)
                low, high = (low, middle) if any(s in part for s in request.stops) else (middle + 1, high)
            ids, finish = ids[:low], "stop"
        return {"text": text, "ids": ids, "end": end, "tokens": len(ids), "finish": finish}

    def logprob(self, requests: list[Request], done) -> None:
        """Sum the log-probs of each request's `scored` after its ids, and call done(index, output)."""
        check_tokens(self.models, [{"prompt_ids": r.ids + r.scored} for r in requests])
        # the last scored token is never read; requests that read the same tokens share a row (one-letter choices)
        groups: dict[tuple, list[int]] = {}
        for i, r in enumerate(requests):
            groups.setdefault(tuple((r.ids + r.scored)[-(self.max_length + 1) : -1]), []).append(i)
        reads, heads = list(groups), []
        for read, members in groups.items():
            if len(read) < self.max_length:  # texts that fill the context share no beginning with the others
                heads.append(list(read[: len(read) + 1 - max(len(requests[i].scored) for i in members)]))
        shared = len(heads) > 1 and len(common_prefix(heads)) >= PREFIX_MIN
        if shared:
            self.engine.share(heads)

        def run(rows: list[int]) -> None:
            batch = {reads[row]: groups[reads[row]] for row in rows}
            shares = shared and all(len(read) < self.max_length for read in batch)
            self.logprob_batch(batch, requests, shares, done)

        self.in_batches(list(map(len, reads)), run)

    def logprob_batch(self, batch: dict, requests: list[Request], shares: bool, done) -> None:
        """`logprob` for {tokens: requests} that fit memory at once; pads stand on the right, where nothing looks."""
        rows, mask, cache = list(map(list, batch)), None, None
        if shares:
            rows, mask, cache = self.engine.behind_prefix(rows)
        width = max(map(len, rows))
        ids = torch.tensor([r + [self.pad_id] * (width - len(r)) for r in rows], device=self.device)
        real = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows], device=self.device)
        numbers, chunk = [i for members in batch.values() for i in members], max(1, LOGITS_AT_ONCE // self.vocabulary)
        counts = [len(requests[i].scored) for i in numbers]
        scored = torch.tensor([token for i in numbers for token in requests[i].scored], device=self.device)
        with torch.no_grad():
            if cache:
                hidden, _ = cached_states(self.model, ids, torch.cat([mask, real], dim=1), cache)  # [n, width, H]
            else:
                hidden = plain_states(self.model, ids, real)
            states = []  # [n, H] of each request: those that predict its scored tokens
            for x, row, members in zip(hidden, rows, batch.values(), strict=True):
                states += [x[len(row) - len(requests[i].scored) : len(row)] for i in members]
            nats, _ = logprobs_and_entropy(lambda h: all_logits(self.model, h), torch.cat(states), scored, 1.0, chunk)
        sums = torch.stack([x.sum() for x in nats.to(widest_float(nats.device)).split(counts)])
        for i, count, total in zip(numbers, counts, sums.tolist(), strict=True):  # a GPU is waited for once
            need(math.isfinite(total), f"got a log-prob of {total}; expected a finite one; {NOT_FINITE}")
            done(i, {"logprob": total, "count": count})


# -------------------------------------------------------------------------- models (src/programs/evaluation/models.py)

OURS = {  # arguments of the engine that follow from other settings
    "model": "--model",
    "tokenizer": "--model",
    "dtype": "--precision",
    "seed": "--seed",
    "gpu_memory_utilization": "--vllm_memory",
    "max_model_len": "--max_length",
    "enable_lora": "a model that the adapters are merged into",
    "enable_sleep_mode": "leaving it out: nothing else needs the memory",
}


class VllmModel(LocalModel):
    """The same by vLLM; completions only."""

    can_logprobs = False

    def tokens_at_once(self) -> int:
        """Any number: vLLM makes its own batches."""
        return 0

    def load(self, source: str) -> tuple:
        vllm = import_vllm("--engine vllm", "--engine hf")
        refuse_adapter(source, "--model", "with --engine vllm")
        kind = str(compute_dtype(self.config, self.device)).removeprefix("torch.")
        settings = {"dtype": kind, "gpu_memory_utilization": self.config.vllm_memory, "seed": self.config.seed}
        settings["max_model_len"] = self.config.max_length or None
        if self.device.type == "cpu":
            settings["enforce_eager"] = True  # to compile takes minutes there, and gains little
        settings |= {"enable_prefix_caching": True} | vllm_options(self.config.vllm_args, OURS)
        try:
            self.vllm, self.llm = vllm, vllm.LLM(model=source, **settings)
            shape = transformers.AutoConfig.from_pretrained(source)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            give_template(tokenizer, self.config.template_file)
        except Exception as error:
            raise UserError(f"got --engine vllm, which fails to start: {error}; try --engine hf") from error
        weights = [torch.empty(0, dtype=getattr(torch, kind))]  # what LocalModel reads of a model that lives elsewhere
        model = SimpleNamespace(config=shape, generation_config=generation_settings(source))
        model.parameters = lambda: iter(weights)
        return model, tokenizer, getattr(shape, "_commit_hash", None)

    def turns(self):  # vLLM keeps what it has read by itself
        return lambda requests, done, numbers: self.generate(requests, done)

    def generate(self, requests, done):
        params = [
            self.vllm.SamplingParams(
                max_tokens=r.limit,
                temperature=self.config.temperature,
                top_p=self.config.top_p,
                stop=r.stops or None,
                stop_token_ids=self.eos_ids,
                skip_special_tokens=False,
                seed=(r.seed() + r.sample + self.config.seed) % 2**31,
            )
            for r in requests
        ]
        outputs = self.llm.generate([{"prompt_token_ids": r.ids} for r in requests], params, use_tqdm=False)
        for i, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            done(i, self.finished(request, list(output.outputs[0].token_ids)))


class ServerModel:
    """An OpenAI-compatible server; chat messages go to /chat/completions, text to /completions."""

    can_logprobs = False
    tokenizer, max_length, load_s, parameters = None, None, 0.0, None
    notes = ("a server's weights cannot be hashed: empty the cache when they change",)

    def __init__(self, config: Config):
        self.config, self.source, self.template = config, config.model[0], template_settings(config)
        self.hash = " ".join([config.base_url, self.source, json.dumps(self.template) * bool(self.template)]).rstrip()

    def generate(self, requests, done):
        with ThreadPoolExecutor(self.config.concurrency) as pool:
            for i, output in enumerate(pool.map(self.ask, requests)):
                done(i, output)

    def ask(self, request: Request) -> dict:
        """One completion; a busy server is asked five times."""
        chat = isinstance(request.prompt, list)
        body = {"model": self.source, "max_tokens": request.limit, "temperature": self.config.temperature}
        body |= {"top_p": self.config.top_p, "seed": (request.seed() + request.sample + self.config.seed) % 2**31}
        if chat and self.template:
            body["chat_template_kwargs"] = self.template
        if request.stops:
            body["stop"] = request.stops[:4]  # servers take four; all of them are cut off here
        hint = "try another --base_url or --model"
        whole, reason, tokens = server_text(self.config.base_url, request.prompt, body, hint)
        text = cut_at(whole, request.stops)
        finish = "length" if reason == "length" and text == whole else "stop"
        return {"text": text, "ids": [], "tokens": tokens, "finish": finish}


class GivenCompletions:
    """No model: the completions stand in the data."""

    can_logprobs, tokenizer, max_length, parameters, notes, load_s = False, None, None, None, (), 0.0
    source, hash = "completions of the data", "given"

    def generate(self, requests, done):
        for i, request in enumerate(requests):
            done(i, {"text": request.given, "ids": [], "tokens": None, "finish": "given"})


def open_models(config: Config):
    """Yield the models of a run, one after the other."""
    if config.completion_column:
        yield GivenCompletions()
    elif config.base_url:
        yield ServerModel(config)
    else:
        device = start_processes(config)
        settle_precision(config, device)
        kind = {"hf": LocalModel, "vllm": VllmModel}[config.engine]
        for source in config.model or [EMBEDDED_MODEL]:
            yield kind(config, source, device)


# -------------------------------------------------------------------------- others (src/programs/evaluation/others.py)


def read_models(path: str) -> list[tuple[dict, dict[str, OtherResults]]]:
    """[(report, {task: the samples that it is made of})], one for each model of another program's results.

    A results.json has one model. The newest file of a task counts; a row's value is the mean over its samples.
    """
    try:
        return [(read_report(path), {})]
    except UserError as error:
        need(Path(path).exists(), str(error))
    results, unreadable = other_evaluations(Path(path))
    for text in unreadable:
        say(f"warning: {text}")
    got = f"got {path} without scores of single rows; expected results.json of evaluation.py or scored samples"
    need(results, f"{got}; to score completions, try --task math --data FILE --completion_column COLUMN")
    files, models = {one.file for one in results}, {}
    for one in results:
        report, others = models.setdefault(one.model, ({"model": {"name": one.model or path}, "tasks": {}}, {}))
        task = one.task if one.task != "samples" or len(files) == 1 else one.file.stem
        if task in others:
            say(f"note: {task}: {one.file} is compared, {others[task].file} is not")
        rows, others[task] = one.samples[one.task], one
        scores = {metric: [mean_score(samples, metric) for samples in rows.values()] for metric in one.metrics}
        values = {metric: Values(x, higher_is_better=one.higher_is_better(metric)) for metric, x in scores.items()}
        values = {name: dataclasses.asdict(x) for name, x in values.items()}
        report["tasks"][task] = {"keys": [*rows], "values": values, "doubts": [*one.doubts.values()]}
    return [*models.values()]


def mean_score(samples: list[dict], metric: str) -> float | None:
    """The mean of a metric over a row's samples, None if they have none; UserError for nan and infinity."""
    scores = [x for sample in samples if (x := sample["metrics"].get(metric)) is not None]
    got = f"got {metric} nan or infinite in row {samples[0]['key']}"
    need(all(map(math.isfinite, scores)), f"{got}; expected numbers; try leaving a score out where a row has none")
    return sum(scores) / len(scores) if scores else None


def reports_to_compare(paths: list[str]) -> list[dict]:
    """The reports of the two models after --compare; UserError if rows of one id are not the same rows."""
    if len({Path(path).resolve() for path in paths}) < len(paths):
        say("warning: got the same path twice; expected two models")
    models = [model for path in paths for model in read_models(path)]
    names = [report["model"]["name"] for report, _ in models]
    got = f"got {' and '.join(paths)} with results of {', '.join(names[:9])}"
    need(len(names) == 2, f"{got}; expected two models: one in each of two paths, or both in one file's column `model`")
    (one, ones), (other, others) = models
    metrics = [[m for task in report["tasks"].values() for m in task["values"]] for report in (one, other)]
    got = f"got {names[0]} with {', '.join(metrics[0])} and {names[1]} with {', '.join(metrics[1])}"
    need({*metrics[0]} & {*metrics[1]}, f"{got}; expected a metric that both have; try renaming a column")
    for task in ones.keys() & others.keys():
        for fault in pair_faults(ones[task], others[task], ones[task].task):
            need("not paired" not in fault, f"got {names[0]} and {names[1]}: {fault}; expected the same rows")
            say(f"warning: {task}: {fault}")
        first = next(iter(ones[task].samples[ones[task].task].values()))[0]
        for text in filter(None, (ones[task].repeated, others[task].repeated)):
            say(f"warning: {task}: {text}")
        if not first["prompt"] and first["key"].isdecimal():
            say(f"warning: {task}: rows without prompts are paired by their numbers; expected the same ids or order")
    return [one, other]


# -------------------------------------------------------------------------------- run (src/programs/evaluation/run.py)

KINDS = (Generation, Math, Code, Perplexity, MultipleChoice, RewardTask, EnvironmentTask)
TASKS = {kind.name: kind for kind in KINDS}


def make_task(text: str, config: Config) -> Task:
    name = text.partition(":")[0]
    need(name != "custom", "got task custom, which was removed; try --task reward:FILE.py:function")
    need(name in TASKS, f"got task {name!r}; expected one of {', '.join(TASKS)}{suggest(name, list(TASKS))}")
    return TASKS[name](text, config)


def answered(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple:
    """(rows, their prompts, the records of the first process, counts) of a task that needs one answer at a time."""
    got = f"got task {task.name} with {model.source}"
    need(model.can_logprobs or not task.logprobs, f"{got}; expected a model with log-probs; try --engine hf")
    prompts, nested, cut = make_requests(config, task, model, rows, shots)
    if cut:
        say(f"warning: {task.label}: {cut} of {len(rows)} prompts exceed the context and lost their beginning")
    flat = [request for group in nested for request in group]
    outputs, reused = compute(config, model, flat, "logprob" if task.logprobs else "generate", task.label[:40])
    parts = iter(outputs)
    grouped = [[next(parts) for _ in group] for group in nested]
    records = task.score(rows, grouped) if world()[0] == 0 else []
    return rows, prompts, records, {"prompts_cut": cut, "from_cache": reused}


def run_task(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[dict, list[dict]]:
    """(results of one task, its samples); nothing on other processes than the first."""
    done = task.play(model, rows) if task.plays else answered(config, task, model, rows, shots)
    rows, prompts, records, counts = done
    if world()[0] != 0:
        return {}, []
    # a given completion is no part of a row's name: two files, or two columns, of completions have the same rows
    named, values = prompts if config.completion_column else rows, task.values_of(records)
    result = {
        "metrics": {name: summarize(v, config.bootstrap, config.seed) for name, v in values.items()},
        "definition": task.definition,
        "rows": len(rows),
        **counts,
        "keys": unique_keys(named),
        "values": {name: dataclasses.asdict(v) for name, v in values.items()},
    }
    samples = []
    for row, prompt, key, scored in zip(rows, prompts, result["keys"], records, strict=True):
        about = {"task": task.label, "key": key, "id": row.get("id", row.get("task_id"))}
        samples += [about | {"sample": i, "prompt": prompt} | record for i, record in enumerate(scored)]
    return result, samples


def keep_earlier(folder: Path, config: Config) -> None:
    """Rename results of other settings in a folder, which this run would replace; refuse a training run's folder."""
    got = f"got output_dir {str(folder)!r}, where a training run has its samples.jsonl"
    need(not (folder / "metrics.jsonl").exists(), f"{got}; expected another folder; try {folder / 'evaluation'}")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        earlier = json.loads((folder / "results.json").read_text(encoding="utf-8"))["settings"]
        if earlier != json.loads(json.dumps(dataclasses.asdict(config))):
            number = next(n for n in itertools.count(1) if not (folder / f"results-{n}.json").exists())
            for name in ("samples.jsonl", "results.json"):
                (folder / name).rename(folder / name.replace(".", f"-{number}."))
            say(f"note: earlier results with other settings are now {folder / f'results-{number}.json'}")


def evaluate(config: Config, tasks: list[tuple], model, folder: Path) -> dict:
    """Run all tasks on one model, write its files, and return what results.json holds."""
    started, results, samples = time.perf_counter(), {}, []
    trained = count_trained(model.source, [(task, rows) for task, rows, _ in tasks])
    for task, rows, shots in tasks:
        results[task.label], shown = run_task(config, task, model, rows, shots)
        results[task.label] |= {"trained_rows": trained[task.label]} if task.label in trained else {}
        samples += shown
    about = {"name": model.source, "hash": model.hash, "parameters": model.parameters, "context": model.max_length}
    about |= {"dtype": str(getattr(model, "dtype", "unknown")), "notes": model.notes}
    seconds = {"load": model.load_s, "all": time.perf_counter() - started + model.load_s}
    report = {"settings": dataclasses.asdict(config), "versions": versions(), "model": about, "seconds": seconds}
    report |= {"tasks": results}
    if world()[0] == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "samples.jsonl", "".join(json.dumps(s, ensure_ascii=True) + "\n" for s in samples))
        write_text(folder / "results.json", json.dumps(report, indent=1, allow_nan=False))
        print_metrics(report)
    return report


def in_short(metric: dict) -> list[str]:
    """Cells of a metric: value, standard error, interval, rows."""
    if metric["value"] is None:
        return ["not applicable", "", "", f"0 of {metric['of']}"]
    low_high = "" if metric["ci95"] is None else "[{:.4g}, {:.4g}]".format(*metric["ci95"])
    error = "" if metric["stderr"] is None else f"{metric['stderr']:.2g}"
    count = str(metric["n"]) if metric["n"] == metric["of"] else f"{metric['n']} of {metric['of']}"
    return [f"{metric['value']:.4g}", error, low_high, count]


def print_metrics(report: dict) -> None:
    lines, notes = [["task", "metric", "value", "stderr", "95 % interval", "rows"]], [*report["model"]["notes"]]
    for task, result in report["tasks"].items():
        lines += [[task, name, *in_short(metric)] for name, metric in result["metrics"].items()]
        if result["prompts_cut"]:
            notes.append(f"{task}: {result['prompts_cut']} of {result['rows']} prompts were cut to fit the context")
        if again := count_repeated(result["keys"]):
            notes.append(f"{task}: {again} of {result['rows']} rows repeat another one: the intervals are too narrow")
        if result.get("rows_left_out"):
            notes.append(f"{task}: {result['rows_left_out']} rows with too long prompts were left out")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    tell(f"{report['model']['name']} ({report['model']['hash']})")
    for line in lines:
        tell("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for note in notes:
        tell(f"  note: {note}")


def print_comparison(before: dict, after: dict, config: Config) -> None:
    """Compare two runs row by row: write comparison.json, print the verdicts."""
    names = [report["model"]["name"] for report in (before, after)]
    results = compare_reports(before, after, config.bootstrap, config.seed)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"before": names[0], "after": names[1], "tasks": results}
    write_text(folder / "comparison.json", json.dumps(content, indent=1, allow_nan=False))
    tell(f"before {names[0]}\nafter  {names[1]}")
    for metrics in results.values():
        for metric in metrics.values():
            tell(f"  {metric['verdict']}")
    tests = [metric["p"] for metrics in results.values() for metric in metrics.values() if metric["p"] is not None]
    if len(tests) > 2 and (small := sum(p < 0.05 for p in tests)):
        sure = f"{sum(p < 0.05 / len(tests) for p in tests)} below 0.05 / {len(tests)}"
        tell(f"{small} of {len(tests)} tests have p < 0.05, as 1 in 20 has by chance; {sure}")
    tell(f"as JSON {folder / 'comparison.json'}")


def run(config: Config) -> int:
    check_choices(config)
    need(config.task or config.compare, f"got no --task; expected one of {', '.join(TASKS)}; try --task math")
    if config.system_prompt and Path(config.system_prompt).is_file():
        config.system_prompt = Path(config.system_prompt).read_text(encoding="utf-8").strip()
    random.seed(config.seed)  # for the user's graders
    if config.compare:
        reports = reports_to_compare(config.compare)
        warn_of_trained(reports)
        print_comparison(*reports, config)
        return 0
    tasks = [make_task(text, config) for text in dict.fromkeys(config.task)]
    loaded = [(task, *task_rows(config, task)) for task in tasks]  # before a model is
    folder, reports = Path(config.output_dir), []
    folders = [folder / "before", folder / "after"] if len(config.model) == 2 else [folder]
    make_folder(config)
    for place in folders if is_first() else ():
        keep_earlier(place, config)
    for model in open_models(config):
        reports.append(evaluate(config, loaded, model, folders[len(reports)]))
        del model  # before the next one is loaded
    if world()[0] == 0:
        if len(reports) == 2:
            print_comparison(*reports, config)
        tell(f"report {folder}")
        target = shlex.quote(str(folder / "page.html"))
        say(f"as a page: python {in_bundle('scripts/report.py')} {shlex.join(map(str, folders))} --output {target}")
    return 0


def main(argv: list[str] | None = None) -> int:
    def start() -> int:
        config = parse_config(sys.argv[1:] if argv is None else argv)
        quiet_environment(config.engine == "vllm")
        return run(config)

    return exit_code(
        start,
        mend="fix it and run the same command",
        stopped="stopped; results so far are in the cache, the same command continues",
    )


if __name__ == "__main__":
    sys.exit(main())
